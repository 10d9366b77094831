//! The rows of answers that are kept by idempotency key.

use diesel::prelude::*;

use crate::ids::{AnyId, Id};
use crate::schema::idempotent_answers;

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = idempotent_answers)]
pub(crate) struct AnswerRow {
    pub(crate) merchant_id: Id<AnyId>,
    pub(crate) scope: String,
    pub(crate) idempotency_key: String,
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) status: i32,
    pub(crate) body: String,
    pub(crate) created_at: i64,
}
