//! The rows of refused calls, and of their numbers.

use diesel::prelude::*;
use serde::Serialize;
use tollgate_domain::{
    ConnectionId, MerchantId, RefusalId, RefusalRecord, RunId, SecretKeyId, SpendKeyId,
};

use super::values::{from_json, time, to_json};
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::schema::{refusal_counts, refusals};

#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = refusals)]
pub(crate) struct RefusalRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) refusal_id: Id<RefusalId>,
    pub(crate) code: String,
    pub(crate) spend_key_id: Option<Id<SpendKeyId>>,
    pub(crate) secret_key_id: Option<Id<SecretKeyId>>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) model: Option<String>,
    pub(crate) count: i64,
    pub(crate) first_at: i64,
    pub(crate) last_at: i64,
    pub(crate) call: String,
    pub(crate) run_id: Option<String>,
}

impl From<&RefusalRecord> for RefusalRow {
    fn from(refusal: &RefusalRecord) -> Self {
        Self {
            merchant_id: Id(refusal.merchant_id),
            refusal_id: Id(refusal.refusal_id),
            code: refusal.code.clone(),
            spend_key_id: refusal.spend_key_id.map(Id),
            secret_key_id: refusal.secret_key_id.map(Id),
            connection_id: refusal.connection_id.map(Id),
            model: refusal.model.clone(),
            count: i64::try_from(refusal.count).unwrap_or(i64::MAX),
            first_at: refusal.first_at.unix_micros(),
            last_at: refusal.last_at.unix_micros(),
            call: to_json(&refusal.call),
            run_id: refusal.run_id.as_ref().map(ToString::to_string),
        }
    }
}

impl TryFrom<RefusalRow> for RefusalRecord {
    type Error = StoreError;

    fn try_from(row: RefusalRow) -> Result<Self, StoreError> {
        Ok(Self {
            refusal_id: row.refusal_id.get(),
            merchant_id: row.merchant_id.get(),
            code: row.code,
            spend_key_id: row.spend_key_id.map(Id::get),
            secret_key_id: row.secret_key_id.map(Id::get),
            connection_id: row.connection_id.map(Id::get),
            model: row.model,
            run_id: row.run_id.map(RunId::stored),
            count: u64::try_from(row.count).unwrap_or_default(),
            first_at: time(row.first_at),
            last_at: time(row.last_at),
            call: from_json("refusals.call", &row.call)?,
        })
    }
}

/// The number of refused calls of a quarter hour, a code, a spend key and a connection.
#[derive(Clone, Debug, Insertable)]
#[diesel(table_name = refusal_counts)]
pub(crate) struct RefusalCountRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) slot: i64,
    pub(crate) code: String,
    /// Zero when a secret key made the call.
    pub(crate) spend_key_id: Id<AnyId>,
    /// Zero when the call is no customer's.
    pub(crate) connection_id: Id<AnyId>,
    pub(crate) count: i64,
}
