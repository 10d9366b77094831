//! Answers of our own operations, kept for a day for those who ask again.

use diesel::prelude::*;
use tollgate_domain::Timestamp;

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::schema::idempotent_answers;

/// What makes a repeated operation recognisable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Whose key it is: a merchant's id, or the operator.
    pub scope: String,
    /// The caller's key.
    pub key: String,
    /// A hash of what was asked: method, path and body.
    pub fingerprint: [u8; 32],
}

/// An answer as it was given, but for what is shown only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// JSON body.
    pub body: String,
}

/// Whether an operation is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is new: do it and [`keep`] its answer in the same transaction.
    New,
    /// It was done: this was the answer.
    Done(Answer),
    /// The key was used for something else.
    Reused,
}

/// How long an answer is kept.
const KEPT_MILLIS: i64 = 24 * 60 * 60 * 1_000;

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = idempotent_answers)]
pub(crate) struct AnswerRow {
    scope: String,
    idempotency_key: String,
    fingerprint: Vec<u8>,
    status: i32,
    body: String,
    created_at: i64,
}

/// Claims a key. Call it first in the write transaction of the operation: what fails takes its
/// claim back, and of two at once the second waits for the first.
///
/// # Errors
/// Those of the store.
pub fn claim(conn: &mut Conn, key: &IdempotencyKey, now: Timestamp) -> Result<Claim, StoreError> {
    let expired = now.plus_millis(-KEPT_MILLIS).unix_micros();
    diesel::delete(
        idempotent_answers::table
            .find((&key.scope, &key.key))
            .filter(idempotent_answers::created_at.lt(expired)),
    )
    .execute(conn)?;
    let row = AnswerRow {
        scope: key.scope.clone(),
        idempotency_key: key.key.clone(),
        fingerprint: key.fingerprint.to_vec(),
        status: 0,
        body: String::new(),
        created_at: now.unix_micros(),
    };
    if dialect::claim_idempotency_key(conn, &row)? {
        return Ok(Claim::New);
    }
    let kept: AnswerRow = idempotent_answers::table
        .find((&key.scope, &key.key))
        .select(AnswerRow::as_select())
        .first(conn)?;
    if kept.fingerprint != key.fingerprint {
        return Ok(Claim::Reused);
    }
    let status = u16::try_from(kept.status).map_err(|_| StoreError::Corrupt {
        what: "idempotent_answers.status",
        value: kept.status.to_string(),
    })?;
    Ok(Claim::Done(Answer { status, body: kept.body }))
}

/// Keeps the answer of an operation whose key was claimed in this transaction.
///
/// # Errors
/// Those of the store.
pub fn keep(conn: &mut Conn, key: &IdempotencyKey, answer: &Answer) -> Result<(), StoreError> {
    diesel::update(idempotent_answers::table.find((&key.scope, &key.key)))
        .set((
            idempotent_answers::status.eq(i32::from(answer.status)),
            idempotent_answers::body.eq(&answer.body),
        ))
        .execute(conn)?;
    Ok(())
}

/// Forgets answers older than a day; how many.
///
/// # Errors
/// Those of the store.
pub fn forget_expired(conn: &mut Conn, now: Timestamp) -> Result<usize, StoreError> {
    let expired = now.plus_millis(-KEPT_MILLIS).unix_micros();
    let old = idempotent_answers::table.filter(idempotent_answers::created_at.lt(expired));
    Ok(diesel::delete(old).execute(conn)?)
}
