//! Merchants and their secret keys.

use diesel::prelude::*;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{
    Key, KeyHash, KeyKind, Merchant, MerchantId, SecretKey, SecretKeyId, TimeZone, Timestamp,
    WalletId,
};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{MerchantRow, SecretKeyRow};
use crate::schema::{merchants, secret_keys, spend_keys};
pub use crate::tables::merchants::require_here;
use crate::{cells, wallets};

/// A new merchant and its first key, which is shown only this once.
#[derive(Clone, Debug)]
pub struct NewMerchant {
    /// The merchant.
    pub merchant: Merchant,
    /// Its first secret key.
    pub key: Key,
}

/// Makes a merchant, its own wallet without a limit, and its first secret key.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn create(conn: &mut Conn, name: &str, now: Timestamp) -> Result<NewMerchant, StoreError> {
    let merchant_id = MerchantId::generate(now);
    let wallet_id = WalletId::generate(now);
    let row = MerchantRow {
        merchant_id: Id(merchant_id),
        name: name.to_owned(),
        wallet_id: Id(wallet_id),
        created_at: now.unix_micros(),
        moved_to: None,
    };
    diesel::insert_into(merchants::table).values(&row).execute(conn)?;
    wallets::create(conn, wallet_id, merchant_id, None, now)?;
    let (_, key) = create_secret_key(conn, merchant_id, "default", now)?;
    Ok(NewMerchant { merchant: row.try_into()?, key })
}

/// The merchant, if there is one.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(conn: &mut Conn, merchant_id: MerchantId) -> Result<Option<Merchant>, StoreError> {
    let row = merchants::table
        .find(Id(merchant_id))
        .select(MerchantRow::as_select())
        .first(conn)
        .optional()?;
    row.map(Merchant::try_from).transpose()
}

/// Sets the zone in which the dashboard shows days and times. It has an IANA name, which UTC has, too.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn set_time_zone(
    conn: &mut Conn,
    merchant_id: MerchantId,
    zone: &TimeZone,
) -> Result<(), StoreError> {
    let name = zone.name().unwrap_or("UTC");
    diesel::update(merchants::table.find(Id(merchant_id)))
        .set(merchants::time_zone.eq(name))
        .execute(conn)?;
    Ok(())
}

/// Fails for a key of a merchant that moves to another cell, or has moved there.
///
/// # Errors
/// [`StoreError::Moved`] then. Other errors when the database fails.
pub fn require_key_here(conn: &mut Conn, key: CallKey) -> Result<(), StoreError> {
    let owner: Option<Id<MerchantId>> = match key {
        CallKey::Secret(id) => {
            secret_keys::table.find(Id(id)).select(secret_keys::merchant_id).first(conn).optional()
        }
        CallKey::Spend(id, _) => {
            spend_keys::table.find(Id(id)).select(spend_keys::merchant_id).first(conn).optional()
        }
    }?;
    owner.map_or(Ok(()), |owner| require_here(conn, owner.get()))
}

/// The ids of all merchants.
pub(crate) fn ids(conn: &mut Conn) -> Result<Vec<MerchantId>, StoreError> {
    let ids = merchants::table.order(merchants::merchant_id).select(merchants::merchant_id);
    let ids: Vec<Id<MerchantId>> = ids.load(conn)?;
    Ok(ids.into_iter().map(Id::get).collect())
}

/// All merchants, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(conn: &mut Conn, page: &Page<MerchantId>) -> Result<Vec<Merchant>, StoreError> {
    let mut query = merchants::table.select(MerchantRow::as_select()).into_boxed();
    if let Some(after) = page.after {
        query = query.filter(merchants::merchant_id.lt(Id(after)));
    }
    let rows = query.order(merchants::merchant_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(Merchant::try_from).collect()
}

/// The valid secret key with this hash.
///
/// # Errors
/// [`StoreError::Moved`] for a merchant that moves to another cell, or another error when the database fails.
pub fn find_secret_key(conn: &mut Conn, hash: &KeyHash) -> Result<Option<SecretKey>, StoreError> {
    let row = secret_keys::table
        .filter(secret_keys::key_hash.eq(hash.as_slice()))
        .filter(secret_keys::deleted_at.is_null())
        .select(SecretKeyRow::as_select())
        .first(conn)
        .optional()?;
    let key = row.map(SecretKey::try_from).transpose()?;
    key.iter().try_for_each(|key| require_here(conn, key.merchant_id))?;
    Ok(key)
}

/// Makes a secret key. The key itself is returned only here.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn create_secret_key(
    conn: &mut Conn,
    merchant_id: MerchantId,
    name: &str,
    now: Timestamp,
) -> Result<(SecretKey, Key), StoreError> {
    require_here(conn, merchant_id)?;
    let key = Key::generate(KeyKind::Secret, cells::number(conn)?);
    let row = SecretKeyRow {
        secret_key_id: Id(SecretKeyId::generate(now)),
        merchant_id: Id(merchant_id),
        name: name.to_owned(),
        key_hash: key.hash().to_vec(),
        key_preview: key.preview(),
        created_at: now.unix_micros(),
        deleted_at: None,
    };
    diesel::insert_into(secret_keys::table).values(&row).execute(conn)?;
    Ok((row.try_into()?, key))
}

/// A merchant's valid secret keys, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list_secret_keys(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<SecretKeyId>,
) -> Result<Vec<SecretKey>, StoreError> {
    let mut query = secret_keys::table
        .filter(secret_keys::merchant_id.eq(Id(merchant_id)))
        .filter(secret_keys::deleted_at.is_null())
        .select(SecretKeyRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(secret_keys::secret_key_id.lt(Id(after)));
    }
    let rows = query.order(secret_keys::secret_key_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(SecretKey::try_from).collect()
}

/// The outcome of [`delete_secret_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKeyDeletion {
    /// It is gone, at once.
    Deleted,
    /// The merchant has no such key.
    NotFound,
    /// It is the merchant's last one and stays.
    Last,
}

/// Locks the row of a merchant until the transaction ends. A move that begins waits for it.
///
/// # Errors
/// [`StoreError::Moved`] for a merchant that moves to another cell or has moved there, and others when the database fails.
pub fn lock_here(conn: &mut Conn, merchant_id: MerchantId) -> Result<(), StoreError> {
    crate::dialect::lock_merchant(conn, merchant_id)?;
    require_here(conn, merchant_id)
}

/// Deletes a secret key, unless it is a merchant's last. Call it in a write transaction.
///
/// # Errors
/// [`StoreError::Moved`] for a merchant that is not here, and others when the database fails.
pub fn delete_secret_key(
    conn: &mut Conn,
    merchant_id: MerchantId,
    secret_key_id: SecretKeyId,
    now: Timestamp,
) -> Result<SecretKeyDeletion, StoreError> {
    // Two deletions of the last two keys must not both see the other key: the merchant is locked.
    lock_here(conn, merchant_id)?;
    let valid: Vec<Id<SecretKeyId>> = secret_keys::table
        .filter(secret_keys::merchant_id.eq(Id(merchant_id)))
        .filter(secret_keys::deleted_at.is_null())
        .select(secret_keys::secret_key_id)
        .load(conn)?;
    if !valid.contains(&Id(secret_key_id)) {
        return Ok(SecretKeyDeletion::NotFound);
    }
    if valid.len() == 1 {
        return Ok(SecretKeyDeletion::Last);
    }
    diesel::update(secret_keys::table.find(Id(secret_key_id)))
        .set(secret_keys::deleted_at.eq(Some(now.unix_micros())))
        .execute(conn)?;
    Ok(SecretKeyDeletion::Deleted)
}
