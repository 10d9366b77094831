//! Subscription configurations, their versions and their credit bundles.

use std::collections::BTreeMap;

use diesel::prelude::*;
use tollgate_domain::{
    BundleChange, ConfigTerms, CreditBundle, CreditBundleId, MerchantId, MeterId, NewCreditBundle,
    NewSubscriptionConfig, SubscriptionConfig, SubscriptionConfigChanges, SubscriptionConfigId,
    SubscriptionStatus, Timestamp,
};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{ConfigRow, ConfigVersionRow, CreditBundleRow, to_json, word};
use crate::schema::{
    credit_bundles, meters, subscription_config_versions, subscription_configs, subscriptions,
};

/// A configuration with its meters and bundles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDetails {
    /// The configuration.
    pub config: SubscriptionConfig,
    /// Its meters that are not deleted, with their names.
    pub linked_meters: Vec<(MeterId, String)>,
    /// The bundles it offers, oldest first.
    pub credit_bundles: Vec<CreditBundle>,
}

/// Resources that a request names and the merchant does not have, each by its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownResources {
    /// Meters.
    pub meters: Vec<usize>,
    /// Bundles of this configuration.
    pub bundles: Vec<usize>,
}

impl UnknownResources {
    fn is_empty(&self) -> bool {
        self.meters.is_empty() && self.bundles.is_empty()
    }
}

/// Configurations by their ids, deleted or not.
pub(crate) fn load(
    conn: &mut Conn,
    ids: impl IntoIterator<Item = Id<SubscriptionConfigId>>,
) -> Result<BTreeMap<Id<SubscriptionConfigId>, SubscriptionConfig>, StoreError> {
    let mut ids: Vec<_> = ids.into_iter().collect();
    ids.sort_unstable();
    ids.dedup();
    let mut configs: BTreeMap<Id<SubscriptionConfigId>, SubscriptionConfig> = BTreeMap::new();
    if ids.is_empty() {
        return Ok(configs);
    }
    for (row, version) in dialect::subscription_configs(conn, &ids)? {
        match configs.get_mut(&row.subscription_config_id) {
            Some(config) => config.later_versions.push(version.try_into()?),
            None => {
                let id = row.subscription_config_id;
                configs.insert(id, row.with_first(version)?);
            }
        }
    }
    Ok(configs)
}

/// Configurations by their ids, with their meters and bundles.
fn in_full(
    conn: &mut Conn,
    ids: Vec<Id<SubscriptionConfigId>>,
) -> Result<BTreeMap<Id<SubscriptionConfigId>, ConfigDetails>, StoreError> {
    let mut bundles: BTreeMap<Id<SubscriptionConfigId>, Vec<CreditBundle>> = BTreeMap::new();
    let rows: Vec<CreditBundleRow> = credit_bundles::table
        .filter(credit_bundles::subscription_config_id.eq_any(&ids))
        .filter(credit_bundles::deleted_at.is_null())
        .order(credit_bundles::credit_bundle_id)
        .select(CreditBundleRow::as_select())
        .load(conn)?;
    for row in rows {
        let config_id = row.subscription_config_id;
        bundles.entry(config_id).or_default().push(row.try_into()?);
    }
    let configs = load(conn, ids)?;
    let linked = configs.values().flat_map(|config| &config.terms().meter_ids);
    let linked: Vec<_> = linked.copied().map(Id).collect();
    let names: Vec<(Id<MeterId>, String)> = meters::table
        .filter(meters::meter_id.eq_any(&linked))
        .filter(meters::deleted_at.is_null())
        .select((meters::meter_id, meters::name))
        .load(conn)?;
    let names: BTreeMap<_, _> = names.into_iter().collect();
    let full = configs.into_iter().map(|(id, config)| {
        let meter_ids = config.terms().meter_ids.iter();
        let linked_meters = meter_ids.filter_map(|id| Some((*id, names.get(&Id(*id))?.clone())));
        let linked_meters = linked_meters.collect();
        let credit_bundles = bundles.remove(&id).unwrap_or_default();
        (id, ConfigDetails { config, linked_meters, credit_bundles })
    });
    Ok(full.collect())
}

/// The indexes of meters that the merchant does not have.
fn unknown_meters(
    conn: &mut Conn,
    merchant_id: MerchantId,
    meter_ids: &[MeterId],
) -> Result<Vec<usize>, StoreError> {
    let ids: Vec<_> = meter_ids.iter().copied().map(Id).collect();
    let known: Vec<Id<MeterId>> = meters::table
        .filter(meters::meter_id.eq_any(&ids))
        .filter(meters::merchant_id.eq(Id(merchant_id)))
        .filter(meters::deleted_at.is_null())
        .select(meters::meter_id)
        .load(conn)?;
    Ok(ids.iter().enumerate().filter(|(_, id)| !known.contains(id)).map(|(at, _)| at).collect())
}

/// Makes a configuration. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn create(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: &NewSubscriptionConfig,
    now: Timestamp,
) -> Result<Result<ConfigDetails, UnknownResources>, StoreError> {
    // A meter must not be deleted meanwhile.
    dialect::lock_merchant(conn, merchant_id)?;
    let meters = unknown_meters(conn, merchant_id, &new.terms.meter_ids)?;
    if !meters.is_empty() {
        return Ok(Err(UnknownResources { meters, bundles: Vec::new() }));
    }
    let row = ConfigRow {
        subscription_config_id: Id(SubscriptionConfigId::generate(now)),
        merchant_id: Id(merchant_id),
        name: new.name.clone(),
        period_amount: new.period_amount.units(),
        billing_interval: word(&new.billing_interval),
        version: 1,
        created_at: now.unix_micros(),
        deleted_at: None,
    };
    diesel::insert_into(subscription_configs::table).values(&row).execute(conn)?;
    insert_version(conn, &row, &new.terms, now)?;
    for bundle in &new.credit_bundles {
        insert_bundle(conn, &row, bundle, now)?;
    }
    let made = find_row(conn, row.subscription_config_id)?;
    Ok(Ok(made.ok_or_else(|| {
        StoreError::missing("subscription configuration", row.subscription_config_id)
    })?))
}

fn insert_version(
    conn: &mut Conn,
    config: &ConfigRow,
    terms: &ConfigTerms,
    now: Timestamp,
) -> Result<(), StoreError> {
    let version = ConfigVersionRow {
        subscription_config_id: config.subscription_config_id,
        merchant_id: config.merchant_id,
        version: config.version,
        terms: to_json(terms),
        created_at: now.unix_micros(),
    };
    diesel::insert_into(subscription_config_versions::table).values(&version).execute(conn)?;
    Ok(())
}

fn insert_bundle(
    conn: &mut Conn,
    config: &ConfigRow,
    new: &NewCreditBundle,
    now: Timestamp,
) -> Result<(), StoreError> {
    let row = CreditBundleRow {
        credit_bundle_id: Id(CreditBundleId::generate(now)),
        subscription_config_id: config.subscription_config_id,
        merchant_id: config.merchant_id,
        name: new.name.clone(),
        cost: new.cost.units(),
        credit_amount: new.credit_amount.units(),
        created_at: now.unix_micros(),
        deleted_at: None,
    };
    diesel::insert_into(credit_bundles::table).values(&row).execute(conn)?;
    Ok(())
}

fn find_row(
    conn: &mut Conn,
    id: Id<SubscriptionConfigId>,
) -> Result<Option<ConfigDetails>, StoreError> {
    Ok(in_full(conn, vec![id])?.into_values().next())
}

/// The query for a merchant's configurations that are not deleted.
macro_rules! offered {
    ($merchant_id:expr) => {
        subscription_configs::table
            .filter(subscription_configs::merchant_id.eq(Id($merchant_id)))
            .filter(subscription_configs::deleted_at.is_null())
    };
}

/// A merchant's configuration that is not deleted.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionConfigId,
) -> Result<Option<ConfigDetails>, StoreError> {
    let id: Option<Id<SubscriptionConfigId>> = offered!(merchant_id)
        .filter(subscription_configs::subscription_config_id.eq(Id(id)))
        .select(subscription_configs::subscription_config_id)
        .first(conn)
        .optional()?;
    id.map_or(Ok(None), |id| find_row(conn, id))
}

/// A merchant's configurations that are not deleted, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<SubscriptionConfigId>,
) -> Result<Vec<ConfigDetails>, StoreError> {
    let mut query =
        offered!(merchant_id).select(subscription_configs::subscription_config_id).into_boxed();
    if let Some(after) = page.after {
        query = query.filter(subscription_configs::subscription_config_id.lt(Id(after)));
    }
    let ids: Vec<Id<SubscriptionConfigId>> = query
        .order(subscription_configs::subscription_config_id.desc())
        .limit(page.rows())
        .load(conn)?;
    Ok(in_full(conn, ids)?.into_values().rev().collect())
}

/// The outcome of [`update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigUpdate {
    /// The configuration as it is now.
    Config(Box<ConfigDetails>),
    /// The merchant has no such configuration.
    NotFound,
    /// The change names a meter or bundle that does not exist. Nothing was changed.
    Unknown(UnknownResources),
}

/// Changes a configuration, completely or not at all. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn update(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionConfigId,
    changes: &SubscriptionConfigChanges,
    now: Timestamp,
) -> Result<ConfigUpdate, StoreError> {
    dialect::lock_merchant(conn, merchant_id)?;
    let Some(present) = find(conn, merchant_id, id)? else { return Ok(ConfigUpdate::NotFound) };
    let unknown = unknown(conn, &present, changes)?;
    if !unknown.is_empty() {
        return Ok(ConfigUpdate::Unknown(unknown));
    }
    let key = Id(id);
    let mut row: ConfigRow =
        subscription_configs::table.find(key).select(ConfigRow::as_select()).first(conn)?;
    if let Some(name) = &changes.name {
        diesel::update(subscription_configs::table.find(key))
            .set(subscription_configs::name.eq(name))
            .execute(conn)?;
    }
    let before = present.config.terms();
    let terms = ConfigTerms {
        included_credit: changes.included_credit.unwrap_or(before.included_credit),
        rollover_type: changes.rollover_type.unwrap_or(before.rollover_type),
        bundle_rollover_type: changes.bundle_rollover_type.unwrap_or(before.bundle_rollover_type),
        meter_ids: changes.meter_ids.clone().unwrap_or_else(|| before.meter_ids.clone()),
    };
    if terms != *before {
        row.version = row.version.saturating_add(1);
        diesel::update(subscription_configs::table.find(key))
            .set(subscription_configs::version.eq(row.version))
            .execute(conn)?;
        insert_version(conn, &row, &terms, now)?;
    }
    for change in &changes.credit_bundles {
        change_bundle(conn, &row, change, now)?;
    }
    let changed = find_row(conn, key)?.ok_or_else(|| {
        StoreError::missing("subscription configuration", row.subscription_config_id)
    })?;
    Ok(ConfigUpdate::Config(Box::new(changed)))
}

/// The meters and bundles that a change names and the merchant does not have.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn unknown(
    conn: &mut Conn,
    present: &ConfigDetails,
    changes: &SubscriptionConfigChanges,
) -> Result<UnknownResources, StoreError> {
    let meter_ids = changes.meter_ids.as_deref().unwrap_or(&[]);
    Ok(UnknownResources {
        meters: unknown_meters(conn, present.config.merchant_id, meter_ids)?,
        bundles: unknown_bundles(present, &changes.credit_bundles),
    })
}

/// The indexes of changes to bundles that the configuration does not offer.
fn unknown_bundles(present: &ConfigDetails, changes: &[BundleChange]) -> Vec<usize> {
    let is_unknown = |change: &BundleChange| match change {
        BundleChange::Create(_) => false,
        BundleChange::Update { credit_bundle_id: id, .. } | BundleChange::Delete(id) => {
            !present.credit_bundles.iter().any(|bundle| bundle.credit_bundle_id == *id)
        }
    };
    let places = changes.iter().enumerate().filter(|(_, change)| is_unknown(change));
    places.map(|(place, _)| place).collect()
}

fn change_bundle(
    conn: &mut Conn,
    config: &ConfigRow,
    change: &BundleChange,
    now: Timestamp,
) -> Result<(), StoreError> {
    match change {
        BundleChange::Create(new) => insert_bundle(conn, config, new, now)?,
        BundleChange::Update { credit_bundle_id, name, cost, credit_amount } => {
            let bundle = || credit_bundles::table.find(Id(*credit_bundle_id));
            if let Some(name) = name {
                diesel::update(bundle()).set(credit_bundles::name.eq(name)).execute(conn)?;
            }
            if let Some(cost) = cost {
                let cost = credit_bundles::cost.eq(cost.units());
                diesel::update(bundle()).set(cost).execute(conn)?;
            }
            if let Some(credit) = credit_amount {
                let credit = credit_bundles::credit_amount.eq(credit.units());
                diesel::update(bundle()).set(credit).execute(conn)?;
            }
        }
        BundleChange::Delete(id) => {
            diesel::update(credit_bundles::table.find(Id(*id)))
                .set(credit_bundles::deleted_at.eq(Some(now.unix_micros())))
                .execute(conn)?;
        }
    }
    Ok(())
}

/// Deletes a configuration and its bundles. Returns whether there was one.
///
/// No customer can subscribe to it or buy its bundles any more. Existing subscriptions keep it. Call it in
/// a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn delete(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionConfigId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    dialect::lock_merchant(conn, merchant_id)?;
    let offered = subscription_configs::table
        .find(Id(id))
        .filter(subscription_configs::merchant_id.eq(Id(merchant_id)))
        .filter(subscription_configs::deleted_at.is_null());
    let deleted = subscription_configs::deleted_at.eq(Some(now.unix_micros()));
    if diesel::update(offered).set(deleted).execute(conn)? == 0 {
        return Ok(false);
    }
    let bundles = credit_bundles::table
        .filter(credit_bundles::subscription_config_id.eq(Id(id)))
        .filter(credit_bundles::deleted_at.is_null());
    diesel::update(bundles)
        .set(credit_bundles::deleted_at.eq(Some(now.unix_micros())))
        .execute(conn)?;
    Ok(true)
}

/// Whether a meter is the last one that is linked to some configuration in use.
///
/// The caller has locked the merchant.
pub(crate) fn any_last_link(
    conn: &mut Conn,
    merchant_id: MerchantId,
    meter_id: MeterId,
) -> Result<bool, StoreError> {
    let subscribed = subscriptions::table
        .filter(subscriptions::merchant_id.eq(Id(merchant_id)))
        .filter(subscriptions::status.eq(word(&SubscriptionStatus::Active)))
        .select((subscriptions::subscription_config_id, subscriptions::pending_config_id))
        .distinct();
    let subscribed: Vec<(Id<_>, Option<Id<_>>)> = subscribed.load(conn)?;
    let offered: Vec<Id<SubscriptionConfigId>> =
        offered!(merchant_id).select(subscription_configs::subscription_config_id).load(conn)?;
    let subscribed = subscribed.into_iter().flat_map(|(id, pending)| [Some(id), pending]);
    let mut in_use: Vec<Id<SubscriptionConfigId>> = subscribed.flatten().chain(offered).collect();
    in_use.sort_unstable();
    in_use.dedup();
    let configs = in_full(conn, in_use)?;
    Ok(configs.values().any(|full| matches!(&*full.linked_meters, [(id, _)] if *id == meter_id)))
}

/// A merchant's bundle that is offered.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find_bundle(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: CreditBundleId,
) -> Result<Option<CreditBundle>, StoreError> {
    let row = credit_bundles::table
        .find(Id(id))
        .filter(credit_bundles::merchant_id.eq(Id(merchant_id)))
        .filter(credit_bundles::deleted_at.is_null())
        .select(CreditBundleRow::as_select())
        .first(conn)
        .optional()?;
    row.map(CreditBundle::try_from).transpose()
}

/// A merchant's bundles that are offered, of one configuration or all, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list_bundles(
    conn: &mut Conn,
    merchant_id: MerchantId,
    config_id: Option<SubscriptionConfigId>,
    page: &Page<CreditBundleId>,
) -> Result<Vec<CreditBundle>, StoreError> {
    let mut query = credit_bundles::table
        .filter(credit_bundles::merchant_id.eq(Id(merchant_id)))
        .filter(credit_bundles::deleted_at.is_null())
        .select(CreditBundleRow::as_select())
        .into_boxed();
    if let Some(id) = config_id {
        query = query.filter(credit_bundles::subscription_config_id.eq(Id(id)));
    }
    if let Some(after) = page.after {
        query = query.filter(credit_bundles::credit_bundle_id.lt(Id(after)));
    }
    let rows =
        query.order(credit_bundles::credit_bundle_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(CreditBundle::try_from).collect()
}
