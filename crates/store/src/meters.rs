//! Meters and their versions.

use diesel::prelude::*;
use tollgate_domain::{
    ConnectionId, FeeModel, MerchantId, MerchantMeter, MeterChanges, MeterId, NewMeter, TierPeriod,
    Timestamp, slug_of,
};
use tollgate_pricing::{Meter, TierErrors};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{MeterRow, MeterVersionRow, from_json, to_json, word};
use crate::schema::{meter_versions, meters, tier_counters};
use crate::subscription_configs;
use crate::tables::spend_keys;

/// The error for a slug that another meter of the merchant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlugTaken;

/// Makes a meter. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn create(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: &NewMeter,
    now: Timestamp,
) -> Result<Result<MerchantMeter, SlugTaken>, StoreError> {
    dialect::lock_merchant(conn, merchant_id)?;
    let slug = new.slug.clone().unwrap_or_else(|| slug_of(&new.name));
    let taken: i64 = meters::table
        .filter(meters::merchant_id.eq(Id(merchant_id)))
        .filter(meters::slug.eq(&slug))
        .filter(meters::deleted_at.is_null())
        .count()
        .get_result(conn)?;
    if taken > 0 {
        return Ok(Err(SlugTaken));
    }
    let row = MeterRow {
        meter_id: Id(MeterId::generate(now)),
        merchant_id: Id(merchant_id),
        slug,
        name: new.name.clone(),
        tier_period: word(&new.tier_period),
        version: 1,
        created_at: now.unix_micros(),
        deleted_at: None,
    };
    diesel::insert_into(meters::table).values(&row).execute(conn)?;
    insert_version(conn, merchant_id, row.meter_id.get(), 1, &new.model, now)?;
    Ok(Ok(row.with_model(new.model.clone())?))
}

fn insert_version(
    conn: &mut Conn,
    merchant_id: MerchantId,
    meter_id: MeterId,
    version: i32,
    model: &FeeModel,
    now: Timestamp,
) -> Result<(), StoreError> {
    let version = MeterVersionRow {
        meter_id: Id(meter_id),
        merchant_id: Id(merchant_id),
        version,
        model: to_json(model),
        created_at: now.unix_micros(),
    };
    diesel::insert_into(meter_versions::table).values(&version).execute(conn)?;
    Ok(())
}

/// A row of a meter with the JSON of its present version.
type MeterWithModel = (MeterRow, String);

fn meter((row, model): MeterWithModel) -> Result<MerchantMeter, StoreError> {
    let model = from_json("meter_versions.model", &model)?;
    row.with_model(model)
}

macro_rules! present {
    () => {
        meters::table
            .inner_join(
                meter_versions::table.on(meter_versions::meter_id
                    .eq(meters::meter_id)
                    .and(meter_versions::version.eq(meters::version))),
            )
            .filter(meters::deleted_at.is_null())
            .select((MeterRow::as_select(), meter_versions::model))
    };
}

/// A merchant's meter that is not deleted.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    meter_id: MeterId,
) -> Result<Option<MerchantMeter>, StoreError> {
    let row: Option<MeterWithModel> = present!()
        .filter(meters::meter_id.eq(Id(meter_id)))
        .filter(meters::merchant_id.eq(Id(merchant_id)))
        .first(conn)
        .optional()?;
    row.map(meter).transpose()
}

/// A merchant's meter by its slug.
pub(crate) fn find_by_slug(
    conn: &mut Conn,
    merchant_id: MerchantId,
    slug: &str,
) -> Result<Option<MerchantMeter>, StoreError> {
    let row: Option<MeterWithModel> = present!()
        .filter(meters::merchant_id.eq(Id(merchant_id)))
        .filter(meters::slug.eq(slug))
        .get_result(conn)
        .optional()?;
    row.map(meter).transpose()
}

/// The tier counter of a meter in the tier period of `at`.
///
/// The counter of a connection, or of the merchant's own calls.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn counted(
    conn: &mut Conn,
    meter: &MerchantMeter,
    connection_id: Option<ConnectionId>,
    at: Timestamp,
) -> Result<u64, StoreError> {
    let owner_id = match connection_id {
        Some(id) => Id(id).untyped(),
        None => Id(meter.merchant_id).untyped(),
    };
    let used: Option<i64> = tier_counters::table
        .find((Id(meter.merchant_id), owner_id, Id(meter.meter_id), meter.tier_period.key(at)))
        .select(tier_counters::used)
        .first(conn)
        .optional()?;
    Ok(used.unwrap_or(0).max(0).unsigned_abs())
}

/// The slug of a meter, deleted or not.
pub(crate) fn slug(conn: &mut Conn, meter_id: MeterId) -> Result<Option<String>, StoreError> {
    let meter = meters::table.find(Id(meter_id));
    Ok(meter.select(meters::slug).first(conn).optional()?)
}

/// A merchant's meters that are not deleted, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<MeterId>,
) -> Result<Vec<MerchantMeter>, StoreError> {
    let mut query = present!().filter(meters::merchant_id.eq(Id(merchant_id))).into_boxed();
    if let Some(after) = page.after {
        query = query.filter(meters::meter_id.lt(Id(after)));
    }
    let rows: Vec<MeterWithModel> =
        query.order(meters::meter_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(meter).collect()
}

/// The outcome of [`update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeterUpdate {
    /// The meter as it is now.
    Meter(Box<MerchantMeter>),
    /// The merchant has no such meter.
    NotFound,
    /// The tiers are not valid.
    BadTiers(TierErrors),
}

/// Changes a meter. Calls admitted before keep the version with which they began.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn update(
    conn: &mut Conn,
    merchant_id: MerchantId,
    meter_id: MeterId,
    changes: &MeterChanges,
    now: Timestamp,
) -> Result<MeterUpdate, StoreError> {
    dialect::lock_merchant(conn, merchant_id)?;
    let Some(mut meter) = find(conn, merchant_id, meter_id)? else {
        return Ok(MeterUpdate::NotFound);
    };
    let before = &meter.model;
    let tiers = changes.tiers.clone().unwrap_or_else(|| before.meter.tiers().to_vec());
    let mut changed = match Meter::new(before.meter.rate_type, before.meter.unit, tiers) {
        Ok(meter) => meter,
        Err(faults) => return Ok(MeterUpdate::BadTiers(faults)),
    };
    changed.token_basis = changes.token_basis.unwrap_or(before.meter.token_basis);
    let model = FeeModel {
        meter: changed,
        base_cost_payer: changes.base_cost_payer.unwrap_or(before.base_cost_payer),
        service_charge_payer: changes.service_charge_payer.unwrap_or(before.service_charge_payer),
    };

    if let Some(name) = &changes.name {
        meter.name.clone_from(name);
        diesel::update(meters::table.find(Id(meter_id)))
            .set(meters::name.eq(name))
            .execute(conn)?;
    }
    if model != meter.model {
        meter.version += 1;
        meter.model = model;
        diesel::update(meters::table.find(Id(meter_id)))
            .set(meters::version.eq(meter.version))
            .execute(conn)?;
        insert_version(conn, merchant_id, meter_id, meter.version, &meter.model, now)?;
    }
    Ok(MeterUpdate::Meter(Box::new(meter)))
}

/// The outcome of [`delete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterDeletion {
    /// It is gone.
    Deleted,
    /// The merchant has no such meter.
    NotFound,
    /// It is in use and stays.
    InUse(MeterUse),
}

/// The use of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterUse {
    /// Spend keys are priced by it.
    BySpendKeys,
    /// It is the last meter of a subscription configuration. No call could draw on its credit without it.
    ByConfigs,
}

/// Deletes a meter. Calls in flight are still priced by it.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn delete(
    conn: &mut Conn,
    merchant_id: MerchantId,
    meter_id: MeterId,
    now: Timestamp,
) -> Result<MeterDeletion, StoreError> {
    // A spend key must not begin to use it meanwhile.
    dialect::lock_merchant(conn, merchant_id)?;
    if find(conn, merchant_id, meter_id)?.is_none() {
        return Ok(MeterDeletion::NotFound);
    }
    if spend_keys::any_under(conn, meter_id)? {
        return Ok(MeterDeletion::InUse(MeterUse::BySpendKeys));
    }
    if subscription_configs::any_last_link(conn, merchant_id, meter_id)? {
        return Ok(MeterDeletion::InUse(MeterUse::ByConfigs));
    }
    let present = meters::table
        .find(Id(meter_id))
        .filter(meters::merchant_id.eq(Id(merchant_id)))
        .filter(meters::deleted_at.is_null());
    let deleted = meters::deleted_at.eq(Some(now.unix_micros()));
    diesel::update(present).set(deleted).execute(conn)?;
    Ok(MeterDeletion::Deleted)
}

/// A version of a meter: its prices and its tier period. It never changes.
#[derive(Clone, Debug)]
pub(crate) struct MeterPricing {
    pub(crate) model: FeeModel,
    pub(crate) tier_period: TierPeriod,
}

pub(crate) fn model_of(
    conn: &mut Conn,
    meter_id: MeterId,
    version: i32,
) -> Result<MeterPricing, StoreError> {
    let (model, tier_period): (String, String) = meter_versions::table
        .inner_join(meters::table)
        .filter(meter_versions::meter_id.eq(Id(meter_id)))
        .filter(meter_versions::version.eq(version))
        .select((meter_versions::model, meters::tier_period))
        .get_result(conn)?;
    Ok(MeterPricing {
        model: from_json("meter_versions.model", &model)?,
        tier_period: from_json("meters.tier_period", &format!("\"{tier_period}\""))?,
    })
}
