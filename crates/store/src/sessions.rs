//! Sessions of the dashboard. A session is a row, so any node can serve it.

use diesel::prelude::*;
use tollgate_domain::{KeyHash, Session, SessionHash, SessionToken, TimeZone, Timestamp};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{MerchantRow, SecretKeyRow, time};
use crate::schema::{merchants as merchant_rows, secret_keys, sessions};
use crate::tables::merchants::require_here;
use crate::{cells, merchants};

/// Opens a session with the secret key that has this hash; `None` if there is none.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn open(
    conn: &mut Conn,
    key: &KeyHash,
    now: Timestamp,
) -> Result<Option<SessionToken>, StoreError> {
    let Some(key) = merchants::find_secret_key(conn, key)? else { return Ok(None) };
    let token = SessionToken::generate(cells::number(conn)?);
    let expires_at = now.plus_millis(Session::LASTS_MILLIS);
    diesel::insert_into(sessions::table)
        .values((
            sessions::token_hash.eq(token.hash().to_vec()),
            sessions::secret_key_id.eq(Id(key.secret_key_id)),
            sessions::merchant_id.eq(Id(key.merchant_id)),
            sessions::expires_at.eq(expires_at.unix_micros()),
        ))
        .execute(conn)?;
    Ok(Some(token))
}

/// The session with this token, unless it has expired or its key was deleted.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    token: &SessionHash,
    now: Timestamp,
) -> Result<Option<Session>, StoreError> {
    let row: Option<(i64, SecretKeyRow, MerchantRow, String)> = sessions::table
        .inner_join(secret_keys::table.inner_join(merchant_rows::table))
        .filter(sessions::token_hash.eq(token.as_slice()))
        .filter(sessions::expires_at.gt(now.unix_micros()))
        .filter(secret_keys::deleted_at.is_null())
        .select((
            sessions::expires_at,
            SecretKeyRow::as_select(),
            MerchantRow::as_select(),
            merchant_rows::time_zone,
        ))
        .first(conn)
        .optional()?;
    let Some((expires_at, key, merchant, zone)) = row else { return Ok(None) };
    require_here(conn, merchant.merchant_id.get())?;
    let corrupt = || StoreError::Corrupt { what: "merchants.time_zone", value: zone.clone() };
    Ok(Some(Session {
        merchant: merchant.try_into()?,
        time_zone: TimeZone::named(&zone).ok_or_else(corrupt)?,
        secret_key_id: key.secret_key_id.get(),
        key_preview: key.key_preview,
        expires_at: time(expires_at),
    }))
}

/// Ends the session with this token, if there is one.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn end(conn: &mut Conn, token: &SessionHash) -> Result<(), StoreError> {
    let session = sessions::table.filter(sessions::token_hash.eq(token.as_slice()));
    diesel::delete(session).execute(conn)?;
    Ok(())
}

/// Deletes expired sessions. Returns their number.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn forget_expired(conn: &mut Conn, now: Timestamp) -> Result<usize, StoreError> {
    let expired = sessions::table.filter(sessions::expires_at.le(now.unix_micros()));
    Ok(diesel::delete(expired).execute(conn)?)
}
