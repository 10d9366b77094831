//! Spend keys and their counters.

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tollgate_domain::{
    ConnectionId, Gcra, Key, KeyHash, KeyKind, MerchantId, MeterId, NewSpendKey, PerCycle,
    RateLimit, SpendCounters, SpendKey, SpendKeyChanges, SpendKeyId, SpendRules, Timestamp,
    WalletId,
};
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{from_json, time, to_json};
use crate::schema::{spend_counters, spend_keys};
use crate::{meters, wallets};

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = spend_keys)]
pub(crate) struct SpendKeyRow {
    pub(crate) spend_key_id: Id<SpendKeyId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) meter_id: Option<Id<MeterId>>,
    pub(crate) name: String,
    pub(crate) key_hash: Vec<u8>,
    pub(crate) key_preview: String,
    pub(crate) rules: String,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

impl SpendKeyRow {
    /// Whether a call made with the key of this hash may be admitted.
    pub(crate) fn is_opened_by(&self, hash: &KeyHash) -> bool {
        self.deleted_at.is_none() && bool::from(self.key_hash.as_slice().ct_eq(hash.as_slice()))
    }

    pub(crate) fn with_counters(self, counters: SpendCounters) -> Result<SpendKey, StoreError> {
        Ok(SpendKey {
            spend_key_id: self.spend_key_id.get(),
            merchant_id: self.merchant_id.get(),
            wallet_id: self.wallet_id.get(),
            meter_id: self.meter_id.map(Id::get),
            name: self.name,
            key_preview: self.key_preview,
            rules: from_json::<SpendRules>("spend_keys.rules", &self.rules)?,
            counters,
            created_at: time(self.created_at),
        })
    }
}

#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Queryable,
    Selectable,
    Insertable,
    AsChangeset,
    Identifiable,
    Serialize,
    Deserialize,
)]
#[diesel(table_name = spend_counters, primary_key(spend_key_id), treat_none_as_null = true)]
pub(crate) struct SpendCountersRow {
    pub(crate) spend_key_id: Id<SpendKeyId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) day_spent: i64,
    pub(crate) week_spent: i64,
    pub(crate) month_spent: i64,
    pub(crate) total_spent: i64,
    pub(crate) day_held: i64,
    pub(crate) week_held: i64,
    pub(crate) month_held: i64,
    pub(crate) total_held: i64,
    pub(crate) day_requests: i64,
    pub(crate) week_requests: i64,
    pub(crate) month_requests: i64,
    pub(crate) total_requests: i64,
    pub(crate) day_told: i32,
    pub(crate) week_told: i32,
    pub(crate) month_told: i32,
    pub(crate) total_told: i32,
    pub(crate) bucket_full_at: i64,
    pub(crate) last_used_at: Option<i64>,
}

impl SpendCountersRow {
    pub(crate) fn new(
        merchant_id: MerchantId,
        spend_key_id: SpendKeyId,
        counters: &SpendCounters,
    ) -> Self {
        let SpendCounters { spent, held, requests, told_percent: told, .. } = counters;
        let count = |requests: u64| i64::try_from(requests).unwrap_or(i64::MAX);
        Self {
            spend_key_id: Id(spend_key_id),
            merchant_id: Id(merchant_id),
            day_spent: spent.day.units(),
            week_spent: spent.week.units(),
            month_spent: spent.month.units(),
            total_spent: spent.total.units(),
            day_held: held.day.units(),
            week_held: held.week.units(),
            month_held: held.month.units(),
            total_held: held.total.units(),
            day_requests: count(requests.day),
            week_requests: count(requests.week),
            month_requests: count(requests.month),
            total_requests: count(requests.total),
            day_told: told.day.into(),
            week_told: told.week.into(),
            month_told: told.month.into(),
            total_told: told.total.into(),
            bucket_full_at: counters.bucket.full_at_nanos(),
            last_used_at: counters.last_used_at.map(Timestamp::unix_micros),
        }
    }
}

impl From<&SpendCountersRow> for SpendCounters {
    fn from(row: &SpendCountersRow) -> Self {
        fn per_cycle<T, U>(values: [T; 4], of: impl Fn(T) -> U) -> PerCycle<U> {
            let [day, week, month, total] = values.map(of);
            PerCycle { day, week, month, total }
        }
        Self {
            spent: per_cycle(
                [row.day_spent, row.week_spent, row.month_spent, row.total_spent],
                Amount::from_units,
            ),
            held: per_cycle(
                [row.day_held, row.week_held, row.month_held, row.total_held],
                Amount::from_units,
            ),
            requests: per_cycle(
                [row.day_requests, row.week_requests, row.month_requests, row.total_requests],
                |count| count.max(0).unsigned_abs(),
            ),
            told_percent: per_cycle(
                [row.day_told, row.week_told, row.month_told, row.total_told],
                |percent| u8::try_from(percent).unwrap_or(u8::MAX),
            ),
            bucket: Gcra::from_full_at_nanos(row.bucket_full_at),
            last_used_at: row.last_used_at.map(time),
        }
    }
}

/// Something that a spend key names and the merchant does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The wallet.
    Wallet,
    /// The meter.
    Meter,
}

/// Makes a spend key; the key itself is never seen again. Call it in a write transaction.
///
/// # Errors
/// Those of the store.
pub fn create(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: &NewSpendKey,
    now: Timestamp,
) -> Result<Result<(SpendKey, Key), Missing>, StoreError> {
    // The meter must not be deleted while a key comes to name it.
    dialect::lock_merchant(conn, merchant_id)?;
    let wallet = match new.wallet_id {
        Some(wallet_id) => wallets::find(conn, merchant_id, wallet_id)?,
        None => wallets::find_own(conn, merchant_id)?,
    };
    let Some(wallet) = wallet else { return Ok(Err(Missing::Wallet)) };
    if let Some(meter_id) = new.meter_id
        && meters::find(conn, merchant_id, meter_id)?.is_none()
    {
        return Ok(Err(Missing::Meter));
    }
    let key = Key::generate(KeyKind::Spend);
    let row = SpendKeyRow {
        spend_key_id: Id(SpendKeyId::generate(now)),
        merchant_id: Id(merchant_id),
        wallet_id: Id(wallet.wallet_id),
        connection_id: wallet.connection_id.map(Id),
        meter_id: new.meter_id.map(Id),
        name: new.name.clone(),
        key_hash: key.hash().to_vec(),
        key_preview: key.preview(),
        rules: to_json(&new.rules),
        created_at: now.unix_micros(),
        deleted_at: None,
    };
    let counters =
        SpendCountersRow::new(merchant_id, row.spend_key_id.get(), &SpendCounters::default());
    diesel::insert_into(spend_keys::table).values(&row).execute(conn)?;
    diesel::insert_into(spend_counters::table).values(&counters).execute(conn)?;
    Ok(Ok((row.with_counters((&counters).into())?, key)))
}

/// A key with its counters.
type WithCounters = (SpendKeyRow, SpendCountersRow);

fn spend_key((row, counters): WithCounters) -> Result<SpendKey, StoreError> {
    row.with_counters((&counters).into())
}

macro_rules! present {
    () => {
        spend_keys::table
            .inner_join(spend_counters::table)
            .filter(spend_keys::deleted_at.is_null())
            .select((SpendKeyRow::as_select(), SpendCountersRow::as_select()))
    };
}

/// A merchant's spend key that is not deleted.
///
/// # Errors
/// Those of the store.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    spend_key_id: SpendKeyId,
) -> Result<Option<SpendKey>, StoreError> {
    let row: Option<WithCounters> = present!()
        .filter(spend_keys::spend_key_id.eq(Id(spend_key_id)))
        .filter(spend_keys::merchant_id.eq(Id(merchant_id)))
        .first(conn)
        .optional()?;
    row.map(spend_key).transpose()
}

/// The key with this hash, if it is a valid one.
///
/// # Errors
/// Those of the store.
pub fn find_by_hash(conn: &mut Conn, hash: &KeyHash) -> Result<Option<SpendKey>, StoreError> {
    let row: Option<WithCounters> =
        present!().filter(spend_keys::key_hash.eq(hash.as_slice())).first(conn).optional()?;
    row.map(spend_key).transpose()
}

/// A merchant's spend keys that are not deleted, newest first.
///
/// # Errors
/// Those of the store.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<SpendKeyId>,
) -> Result<Vec<SpendKey>, StoreError> {
    let mut query = present!().filter(spend_keys::merchant_id.eq(Id(merchant_id))).into_boxed();
    if let Some(after) = page.after {
        query = query.filter(spend_keys::spend_key_id.lt(Id(after)));
    }
    let rows: Vec<WithCounters> =
        query.order(spend_keys::spend_key_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(spend_key).collect()
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Updated {
    /// The key as it is now.
    SpendKey(Box<SpendKey>),
    /// The merchant has no such key.
    NotFound,
    /// The merchant has no such meter.
    MeterNotFound,
}

/// Changes a spend key; the next admission obeys. Call it in a write transaction.
///
/// # Errors
/// Those of the store.
pub fn update(
    conn: &mut Conn,
    merchant_id: MerchantId,
    spend_key_id: SpendKeyId,
    changes: SpendKeyChanges,
    now: Timestamp,
) -> Result<Updated, StoreError> {
    // Two changes at once must not undo each other, nor a meter be deleted meanwhile.
    dialect::lock_merchant(conn, merchant_id)?;
    let Some(mut key) = find(conn, merchant_id, spend_key_id)? else {
        return Ok(Updated::NotFound);
    };
    if let Some(name) = &changes.name {
        key.name.clone_from(name);
    }
    if let Some(meter_id) = changes.meter_id {
        if let Some(meter_id) = meter_id
            && meters::find(conn, merchant_id, meter_id)?.is_none()
        {
            return Ok(Updated::MeterNotFound);
        }
        key.meter_id = meter_id;
    }
    let old_rate = key.rules.rate_limit;
    key.rules = key.rules.changed(changes);
    diesel::update(spend_keys::table.find(Id(spend_key_id)))
        .set((
            spend_keys::name.eq(&key.name),
            spend_keys::meter_id.eq(key.meter_id.map(Id)),
            spend_keys::rules.eq(to_json(&key.rules)),
        ))
        .execute(conn)?;
    if key.rules.rate_limit != old_rate {
        change_rate(conn, &key, old_rate, now)?;
    }
    Ok(Updated::SpendKey(Box::new(key)))
}

/// Takes the bucket of a key over to its new rate.
fn change_rate(
    conn: &mut Conn,
    key: &SpendKey,
    old: Option<RateLimit>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let ids = [Id(key.spend_key_id)];
    let locked = dialect::lock_spend_counters(conn, &ids)?;
    let bucket = locked.first().map(|row| Gcra::from_full_at_nanos(row.bucket_full_at));
    let bucket = match (bucket, old, key.rules.rate_limit) {
        (Some(bucket), Some(old), Some(new)) => {
            bucket.under_new_rate(now, old.rpm, new.rpm, new.burst)
        }
        // What was taken while nothing counted it is not known.
        _ => Gcra::default(),
    };
    diesel::update(spend_counters::table.find(Id(key.spend_key_id)))
        .set(spend_counters::bucket_full_at.eq(bucket.full_at_nanos()))
        .execute(conn)?;
    Ok(())
}

/// Gives a spend key a new key; the old one is dead at once. `None` when there is no such one. Call
/// it in a write transaction.
///
/// # Errors
/// Those of the store.
pub fn rotate(
    conn: &mut Conn,
    merchant_id: MerchantId,
    spend_key_id: SpendKeyId,
) -> Result<Option<(SpendKey, Key)>, StoreError> {
    let key = Key::generate(KeyKind::Spend);
    let present = spend_keys::table
        .find(Id(spend_key_id))
        .filter(spend_keys::merchant_id.eq(Id(merchant_id)))
        .filter(spend_keys::deleted_at.is_null());
    diesel::update(present)
        .set((
            spend_keys::key_hash.eq(key.hash().to_vec()),
            spend_keys::key_preview.eq(key.preview()),
        ))
        .execute(conn)?;
    Ok(find(conn, merchant_id, spend_key_id)?.map(|rotated| (rotated, key)))
}

/// Deletes a spend key, at once. Whether there was one. Call it in a write transaction.
///
/// # Errors
/// Those of the store.
pub fn delete(
    conn: &mut Conn,
    merchant_id: MerchantId,
    spend_key_id: SpendKeyId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let present = spend_keys::table
        .find(Id(spend_key_id))
        .filter(spend_keys::merchant_id.eq(Id(merchant_id)))
        .filter(spend_keys::deleted_at.is_null());
    let deleted = spend_keys::deleted_at.eq(Some(now.unix_micros()));
    Ok(diesel::update(present).set(deleted).execute(conn)? > 0)
}

/// Whether a key that is not deleted is priced by this meter.
pub(crate) fn any_under(conn: &mut Conn, meter_id: MeterId) -> QueryResult<bool> {
    let count: i64 = spend_keys::table
        .filter(spend_keys::meter_id.eq(Id(meter_id)))
        .filter(spend_keys::deleted_at.is_null())
        .count()
        .get_result(conn)?;
    Ok(count > 0)
}
