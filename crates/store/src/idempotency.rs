//! Answers of this service's own operations, kept for a day for repeated requests.

use diesel::prelude::*;
use tollgate_domain::{MerchantId, Timestamp};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rows::AnswerRow;
use crate::schema::idempotent_answers;

/// The identity of an operation that may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The owner of the key.
    pub scope: IdempotencyScope,
    /// The caller's key.
    pub key: String,
    /// A hash of the request: method, path and body.
    pub fingerprint: [u8; 32],
}

/// The owner of an idempotency key. The same key is another one in each scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdempotencyScope {
    /// The operator.
    Operator,
    /// A merchant, over the API.
    Api(MerchantId),
    /// A merchant, on the dashboard.
    Dashboard(MerchantId),
}

impl IdempotencyScope {
    /// The columns. The operator has no merchant.
    fn columns(self) -> (Id<AnyId>, &'static str) {
        match self {
            Self::Operator => (Id::default(), "operator"),
            Self::Api(merchant_id) => (Id(merchant_id).untyped(), "api"),
            Self::Dashboard(merchant_id) => (Id(merchant_id).untyped(), "dashboard"),
        }
    }
}

/// An answer as it was given, without secrets that are shown only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// HTTP status.
    pub status: u16,
    /// JSON body.
    pub body: String,
}

/// Whether an operation is to be done, or its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyClaim {
    /// It is new: do it and [`keep`] its answer in the same transaction.
    New,
    /// It was done, with this answer.
    Done(StoredAnswer),
    /// The key was used for another request.
    Reused,
}

/// The time for which an answer is kept.
const KEPT_MILLIS: i64 = 24 * 60 * 60 * 1_000;

/// Claims a key. Call it first in the write transaction of the operation.
///
/// A failed operation rolls its claim back. Of two claims at once, the second waits for the first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn claim(
    conn: &mut Conn,
    key: &IdempotencyKey,
    now: Timestamp,
) -> Result<IdempotencyClaim, StoreError> {
    let expired = now.plus_millis(-KEPT_MILLIS).unix_micros();
    let (merchant_id, scope) = key.scope.columns();
    diesel::delete(
        idempotent_answers::table
            .find((merchant_id, scope, &key.key))
            .filter(idempotent_answers::created_at.lt(expired)),
    )
    .execute(conn)?;
    let row = AnswerRow {
        merchant_id,
        scope: scope.to_owned(),
        idempotency_key: key.key.clone(),
        fingerprint: key.fingerprint.to_vec(),
        status: 0,
        body: String::new(),
        created_at: now.unix_micros(),
    };
    if dialect::claim_idempotency_key(conn, &row)? {
        return Ok(IdempotencyClaim::New);
    }
    let kept: AnswerRow = idempotent_answers::table
        .find((merchant_id, scope, &key.key))
        .select(AnswerRow::as_select())
        .first(conn)?;
    if kept.fingerprint != key.fingerprint {
        return Ok(IdempotencyClaim::Reused);
    }
    let status = u16::try_from(kept.status).map_err(|_| StoreError::Corrupt {
        what: "idempotent_answers.status",
        value: kept.status.to_string(),
    })?;
    Ok(IdempotencyClaim::Done(StoredAnswer { status, body: kept.body }))
}

/// Keeps the answer of an operation whose key was claimed in this transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn keep(
    conn: &mut Conn,
    key: &IdempotencyKey,
    answer: &StoredAnswer,
) -> Result<(), StoreError> {
    let (merchant_id, scope) = key.scope.columns();
    diesel::update(idempotent_answers::table.find((merchant_id, scope, &key.key)))
        .set((
            idempotent_answers::status.eq(i32::from(answer.status)),
            idempotent_answers::body.eq(&answer.body),
        ))
        .execute(conn)?;
    Ok(())
}

/// Releases a key whose operation was not done, so that it can be claimed again.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn release(conn: &mut Conn, key: &IdempotencyKey) -> Result<(), StoreError> {
    let (merchant_id, scope) = key.scope.columns();
    diesel::delete(idempotent_answers::table.find((merchant_id, scope, &key.key))).execute(conn)?;
    Ok(())
}

/// Deletes answers older than a day. Returns their number.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn forget_expired(conn: &mut Conn, now: Timestamp) -> Result<usize, StoreError> {
    let expired = now.plus_millis(-KEPT_MILLIS).unix_micros();
    let old = idempotent_answers::table.filter(idempotent_answers::created_at.lt(expired));
    Ok(diesel::delete(old).execute(conn)?)
}
