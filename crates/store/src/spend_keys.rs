//! Spend keys and their counters.

use std::collections::HashMap;

use diesel::prelude::*;
use tollgate_domain::{
    Gcra, Key, KeyHash, KeyKind, MerchantId, NewSpendKey, RateLimit, SpendCounters, SpendKey,
    SpendKeyChanges, SpendKeyId, SpendRules, Timestamp,
};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::imports::{self, ImportSource};
use crate::page::Page;
use crate::rows::{SpendCountersRow, SpendKeyRow, from_json, to_json};
use crate::schema::{spend_counters, spend_keys};
use crate::tables::merchants::require_here;
use crate::{budgets, cells, meters, wallets};

/// A resource that a spend key names and the merchant does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingResource {
    /// The wallet.
    Wallet,
    /// The meter.
    Meter,
    /// The budget, or one that takes calls by their metadata.
    Budget,
}

/// Makes a spend key. The key itself is returned only here.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn create(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: &NewSpendKey,
    now: Timestamp,
) -> Result<Result<(SpendKey, Key), MissingResource>, StoreError> {
    let key = Key::generate(KeyKind::Spend, cells::number(conn)?);
    let text = (&key.hash(), key.preview());
    let made = insert(conn, merchant_id, new, text, SpendCounters::default(), now)?;
    Ok(made.map(|spend_key| (spend_key, key)))
}

/// Makes a spend key of a key that another service made, with what was spent there in its present cycle.
///
/// Call it in a write transaction, for a key that was [not imported](imports::owner_of_key) yet.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn import(
    conn: &mut Conn,
    new: &NewSpendKey,
    (hash, preview): (&KeyHash, String),
    source: &ImportSource,
) -> Result<Result<SpendKey, MissingResource>, StoreError> {
    let ImportSource { merchant_id, spent, imported_at, .. } = *source;
    let counters = SpendCounters::imported(spent, imported_at);
    let made = insert(conn, merchant_id, new, (hash, preview), counters, imported_at)?;
    if let Ok(spend_key) = &made {
        imports::write(conn, Id(spend_key.spend_key_id).untyped(), source)?;
    }
    Ok(made)
}

fn insert(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: &NewSpendKey,
    (hash, preview): (&KeyHash, String),
    counters: SpendCounters,
    now: Timestamp,
) -> Result<Result<SpendKey, MissingResource>, StoreError> {
    // The meter must not be deleted meanwhile.
    dialect::lock_merchant(conn, merchant_id)?;
    let wallet = match new.wallet_id {
        Some(wallet_id) => wallets::find(conn, merchant_id, wallet_id)?,
        None => wallets::find_own(conn, merchant_id)?,
    };
    let Some(wallet) = wallet else { return Ok(Err(MissingResource::Wallet)) };
    if let Some(meter_id) = new.meter_id
        && meters::find(conn, merchant_id, meter_id)?.is_none()
    {
        return Ok(Err(MissingResource::Meter));
    }
    if let Some(budget_id) = new.budget_id
        && !budgets::can_be_named(conn, merchant_id, budget_id)?
    {
        return Ok(Err(MissingResource::Budget));
    }
    let row = SpendKeyRow {
        spend_key_id: Id(SpendKeyId::generate(now)),
        merchant_id: Id(merchant_id),
        wallet_id: Id(wallet.wallet_id),
        connection_id: wallet.connection_id.map(Id),
        meter_id: new.meter_id.map(Id),
        budget_id: new.budget_id.map(Id),
        name: new.name.clone(),
        key_hash: hash.to_vec(),
        key_preview: preview,
        rules: to_json(&new.rules),
        created_at: now.unix_micros(),
        deleted_at: None,
    };
    diesel::insert_into(spend_keys::table).values(&row).execute(conn)?;
    let spend_key = row.with_counters(counters)?;
    let account_id = Id(spend_key.spend_key_id).untyped();
    let counters = SpendCountersRow::new(account_id, merchant_id, &spend_key.counters);
    diesel::insert_into(spend_counters::table).values(&counters).execute(conn)?;
    Ok(Ok(spend_key))
}

/// A row of a spend key with its counters.
type KeyWithCounters = (SpendKeyRow, SpendCountersRow);

fn spend_key((row, counters): KeyWithCounters) -> Result<SpendKey, StoreError> {
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
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    spend_key_id: SpendKeyId,
) -> Result<Option<SpendKey>, StoreError> {
    let row: Option<KeyWithCounters> = present!()
        .filter(spend_keys::spend_key_id.eq(Id(spend_key_id)))
        .filter(spend_keys::merchant_id.eq(Id(merchant_id)))
        .first(conn)
        .optional()?;
    row.map(spend_key).transpose()
}

/// The valid spend key with this hash.
///
/// # Errors
/// [`StoreError::Moved`] for a merchant that moves to another cell, or another error when the database fails.
pub fn find_by_hash(conn: &mut Conn, hash: &KeyHash) -> Result<Option<SpendKey>, StoreError> {
    let row: Option<KeyWithCounters> =
        present!().filter(spend_keys::key_hash.eq(hash.as_slice())).first(conn).optional()?;
    let key = row.map(spend_key).transpose()?;
    key.iter().try_for_each(|key| require_here(conn, key.merchant_id))?;
    Ok(key)
}

/// The rules of the valid spend keys with these hashes.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn rules_by_hash(
    conn: &mut Conn,
    hashes: &[KeyHash],
) -> Result<HashMap<KeyHash, SpendRules>, StoreError> {
    let mut found = HashMap::new();
    for hashes in hashes.chunks(500) {
        let rows: Vec<(Vec<u8>, String)> = spend_keys::table
            .filter(spend_keys::deleted_at.is_null())
            .filter(spend_keys::key_hash.eq_any(hashes.iter().map(KeyHash::as_slice)))
            .select((spend_keys::key_hash, spend_keys::rules))
            .load(conn)?;
        for (hash, rules) in rows {
            let rules = from_json::<SpendRules>("spend_keys.rules", &rules)?;
            found.extend(hash.try_into().ok().map(|hash: KeyHash| (hash, rules)));
        }
    }
    Ok(found)
}

/// A merchant's spend keys that are not deleted, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<SpendKeyId>,
) -> Result<Vec<SpendKey>, StoreError> {
    let mut query = present!().filter(spend_keys::merchant_id.eq(Id(merchant_id))).into_boxed();
    if let Some(after) = page.after {
        query = query.filter(spend_keys::spend_key_id.lt(Id(after)));
    }
    let rows: Vec<KeyWithCounters> =
        query.order(spend_keys::spend_key_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(spend_key).collect()
}

/// The outcome of [`update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpendKeyUpdate {
    /// The key as it is now.
    SpendKey(Box<SpendKey>),
    /// The merchant has no such key.
    NotFound,
    /// The merchant has no such meter.
    MeterNotFound,
    /// The merchant has no such budget that a key can name.
    BudgetNotFound,
}

/// Changes a spend key. The change applies from the next admission.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn update(
    conn: &mut Conn,
    merchant_id: MerchantId,
    spend_key_id: SpendKeyId,
    changes: SpendKeyChanges,
    now: Timestamp,
) -> Result<SpendKeyUpdate, StoreError> {
    // Two changes at once must not undo each other, and the meter must not be deleted meanwhile.
    dialect::lock_merchant(conn, merchant_id)?;
    let Some(mut key) = find(conn, merchant_id, spend_key_id)? else {
        return Ok(SpendKeyUpdate::NotFound);
    };
    if let Some(name) = &changes.name {
        key.name.clone_from(name);
    }
    if let Some(meter_id) = changes.meter_id {
        if let Some(meter_id) = meter_id
            && meters::find(conn, merchant_id, meter_id)?.is_none()
        {
            return Ok(SpendKeyUpdate::MeterNotFound);
        }
        key.meter_id = meter_id;
    }
    if let Some(budget_id) = changes.budget_id {
        if let Some(budget_id) = budget_id
            && !budgets::can_be_named(conn, merchant_id, budget_id)?
        {
            return Ok(SpendKeyUpdate::BudgetNotFound);
        }
        key.budget_id = budget_id;
    }
    if changes.spend_zone.is_some() || changes.request_zone.is_some() {
        // The zone of the present cycle depends on the last use, so no call may be admitted meanwhile.
        let locked = dialect::lock_spend_counters(conn, &[Id(spend_key_id).untyped()])?;
        key.counters = locked.first().map_or(key.counters, SpendCounters::from);
    }
    let old_rate = key.rules.rate_limit;
    key.rules = key.rules.changed(changes, now, key.counters.last_used_at);
    diesel::update(spend_keys::table.find(Id(spend_key_id)))
        .set((
            spend_keys::name.eq(&key.name),
            spend_keys::meter_id.eq(key.meter_id.map(Id)),
            spend_keys::budget_id.eq(key.budget_id.map(Id)),
            spend_keys::rules.eq(to_json(&key.rules)),
        ))
        .execute(conn)?;
    if key.rules.rate_limit != old_rate {
        change_rate(conn, &key, old_rate, now)?;
    }
    Ok(SpendKeyUpdate::SpendKey(Box::new(key)))
}

/// Converts the bucket of a key to its new rate.
fn change_rate(
    conn: &mut Conn,
    key: &SpendKey,
    old: Option<RateLimit>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let account_id = Id(key.spend_key_id).untyped();
    let locked = dialect::lock_spend_counters(conn, &[account_id])?;
    let bucket = locked.first().map(|row| Gcra::from_full_at_nanos(row.bucket_full_at));
    let bucket = match (bucket, old, key.rules.rate_limit) {
        (Some(bucket), Some(old), Some(new)) => {
            bucket.under_new_rate(now, old.rpm, new.rpm, new.burst)
        }
        // Without a rate limit no calls were counted: the bucket begins full.
        _ => Gcra::default(),
    };
    diesel::update(spend_counters::table.find(account_id))
        .set(spend_counters::bucket_full_at.eq(bucket.full_at_nanos()))
        .execute(conn)?;
    Ok(())
}

/// Replaces the key of a spend key. The old key is invalid at once.
///
/// `None` if the merchant has no such spend key. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn rotate(
    conn: &mut Conn,
    merchant_id: MerchantId,
    spend_key_id: SpendKeyId,
) -> Result<Option<(SpendKey, Key)>, StoreError> {
    let key = Key::generate(KeyKind::Spend, cells::number(conn)?);
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

/// Deletes a spend key at once. Returns whether there was one.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
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
