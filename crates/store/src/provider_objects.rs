//! Objects that providers keep, each with the wallet that paid for it.

use diesel::prelude::*;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{BatchRequests, ConnectionId, MerchantId, ObjectKind, Timestamp, WalletId};

use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{ProviderObjectRow, from_json};
use crate::schema::{connections, merchants, provider_objects, spend_keys};

/// The caller of a call that names an object.
#[derive(Clone, Debug)]
pub struct ObjectCaller {
    /// The merchant.
    pub merchant_id: MerchantId,
    /// The key of the call.
    pub key: CallKey,
    /// The customer that the credential names.
    pub connection_id: Option<ConnectionId>,
}

/// An object that belongs to a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObject {
    /// The provider's name.
    pub provider: String,
    /// The tokens that it has as the beginning of another call, if they are known.
    pub tokens: Option<u64>,
    /// The requests in a file for a batch.
    pub requests: Option<BatchRequests>,
    /// The provider's id of the batch of which a file has results.
    pub result_of: Option<String>,
}

/// Returns the objects with this id that belong to the wallet of a caller. Ids of two providers may be equal.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn owned(
    conn: &mut Conn,
    caller: &ObjectCaller,
    object_id: &str,
    now: Timestamp,
) -> Result<Vec<OwnedObject>, StoreError> {
    let rows: Vec<ProviderObjectRow> = provider_objects::table
        .filter(provider_objects::object_id.eq(object_id))
        .filter(provider_objects::merchant_id.eq(Id(caller.merchant_id)))
        .filter(provider_objects::expires_at.gt(now.unix_micros()))
        .select(ProviderObjectRow::as_select())
        .load(conn)?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let Some(wallet_id) = wallet_of(conn, caller)? else { return Ok(Vec::new()) };
    let owned = rows.into_iter().filter(|row| row.wallet_id.get() == wallet_id);
    owned
        .map(|row| {
            Ok(OwnedObject {
                provider: row.provider,
                result_of: row.result_of,
                tokens: row.tokens.and_then(|tokens| u64::try_from(tokens).ok()),
                requests: row
                    .requests
                    .as_deref()
                    .map(|requests| from_json("the requests of a file", requests))
                    .transpose()?,
            })
        })
        .collect()
}

/// A page of objects. Both neighbours are provider's ids.
#[derive(Clone, Debug)]
pub struct ObjectPage {
    /// The most objects of the page.
    pub limit: u32,
    /// Only objects after this one.
    pub after: Option<String>,
    /// Only objects before this one.
    pub before: Option<String>,
    /// The oldest first; else the newest.
    pub is_ascending: bool,
}

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// The provider's name.
    pub provider: String,
    /// The provider's id of the object.
    pub object_id: String,
}

/// Returns the objects of a kind at one of the providers that belong to the wallet of a caller, and whether there are
/// more.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    caller: &ObjectCaller,
    providers: &[String],
    kind: ObjectKind,
    page: &ObjectPage,
    now: Timestamp,
) -> Result<(Vec<ListedObject>, bool), StoreError> {
    let nothing = (Vec::new(), false);
    let Some(wallet_id) = wallet_of(conn, caller)? else { return Ok(nothing) };
    let own = || {
        provider_objects::table
            .filter(provider_objects::wallet_id.eq(Id(wallet_id)))
            .filter(provider_objects::kind.eq(EnumCode(kind)))
            .filter(provider_objects::provider.eq_any(providers))
            .filter(provider_objects::expires_at.gt(now.unix_micros()))
    };
    let neighbour = page.after.as_ref().or(page.before.as_ref());
    let mut place: Option<(i64, String)> = None;
    if let Some(object_id) = neighbour {
        let found = own()
            .filter(provider_objects::object_id.eq(object_id))
            .select((provider_objects::created_at, provider_objects::object_id));
        place = found.first(conn).optional()?;
        // The object of another wallet is one that does not exist.
        if place.is_none() {
            return Ok(nothing);
        }
    }
    let is_backwards = page.after.is_none() && page.before.is_some();
    let (created_at, object_id) = (provider_objects::created_at, provider_objects::object_id);
    let mut query = own()
        .limit(i64::from(page.limit) + 1)
        .select((provider_objects::provider, provider_objects::object_id))
        .into_boxed();
    let upwards = page.is_ascending != is_backwards;
    if let Some((at, id)) = place {
        query = match upwards {
            true => query.filter(created_at.gt(at).or(created_at.eq(at).and(object_id.gt(id)))),
            false => query.filter(created_at.lt(at).or(created_at.eq(at).and(object_id.lt(id)))),
        };
    }
    query = match upwards {
        true => query.order((created_at.asc(), object_id.asc())),
        false => query.order((created_at.desc(), object_id.desc())),
    };
    let rows: Vec<(String, String)> = query.load(conn)?;
    let listed = rows.into_iter().map(|(provider, object_id)| ListedObject { provider, object_id });
    let mut listed: Vec<_> = listed.collect();
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let has_more = listed.len() > limit;
    listed.truncate(limit);
    if is_backwards {
        listed.reverse();
    }
    Ok((listed, has_more))
}

/// The wallet of a caller: that of the customer, else that of the spend key, else the merchant's own.
fn wallet_of(conn: &mut Conn, caller: &ObjectCaller) -> Result<Option<WalletId>, StoreError> {
    let merchant_id = Id(caller.merchant_id);
    let found: Option<Id<WalletId>> = match (caller.connection_id, caller.key) {
        (Some(id), _) => connections::table
            .find(Id(id))
            .filter(connections::merchant_id.eq(merchant_id))
            .select(connections::wallet_id)
            .first(conn)
            .optional()?,
        (None, CallKey::Spend(id, _)) => spend_keys::table
            .find(Id(id))
            .filter(spend_keys::merchant_id.eq(merchant_id))
            .select(spend_keys::wallet_id)
            .first(conn)
            .optional()?,
        (None, CallKey::Secret(_)) => merchants::table
            .find(merchant_id)
            .select(merchants::wallet_id)
            .first(conn)
            .optional()?,
    };
    Ok(found.map(Id::get))
}

/// Forgets an object that its provider has deleted.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn forget(conn: &mut Conn, provider: &str, object_id: &str) -> Result<(), StoreError> {
    diesel::delete(provider_objects::table.find((object_id, provider))).execute(conn)?;
    Ok(())
}

/// The most objects that are forgotten at once.
const AT_ONCE: i64 = 10_000;

/// Forgets objects that their providers have deleted by now. Returns their number, at most 10,000.
pub(crate) fn forget_expired(conn: &mut Conn, now: Timestamp) -> Result<usize, StoreError> {
    let old: Vec<(String, String)> = provider_objects::table
        .filter(provider_objects::expires_at.le(now.unix_micros()))
        .select((provider_objects::object_id, provider_objects::provider))
        .limit(AT_ONCE)
        .load(conn)?;
    for (object_id, provider) in &old {
        forget(conn, provider, object_id)?;
    }
    Ok(old.len())
}
