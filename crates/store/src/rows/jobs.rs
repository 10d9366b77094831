//! The rows of jobs.

use diesel::prelude::*;
use tollgate_domain::{
    ConnectionId, Job, JobId, JobKind, JobObserver, JobState, JobTerms, MerchantId, PricedUsage,
    RequestId, SpendKeyId,
};
use tollgate_pricing::Amount;

use super::values::{from_json, time};
use crate::codes::EnumCode;
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::jobs;

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = jobs)]
pub(crate) struct JobRow {
    pub(crate) job_id: Id<JobId>,
    pub(crate) request_id: Id<RequestId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) kind: EnumCode<JobKind>,
    pub(crate) provider: String,
    pub(crate) object_id: String,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) spend_key_id: Option<Id<SpendKeyId>>,
    pub(crate) state: EnumCode<JobState>,
    pub(crate) hold: i64,
    pub(crate) terms: String,
    pub(crate) known: Option<String>,
    pub(crate) provider_key: Option<Vec<u8>>,
    pub(crate) created_at: i64,
    pub(crate) last_seen_at: Option<i64>,
    pub(crate) missing_since: Option<i64>,
    pub(crate) look_at: Option<i64>,
    pub(crate) ended_at: Option<i64>,
    pub(crate) expires_at: i64,
    pub(crate) observer: Option<EnumCode<JobObserver>>,
}

impl JobRow {
    /// The facts by which the job is settled.
    pub(crate) fn terms(&self) -> Result<JobTerms, StoreError> {
        from_json("jobs.terms", &self.terms)
    }

    /// The usage that the provider reported before the end.
    pub(crate) fn known(&self) -> Result<Option<PricedUsage>, StoreError> {
        self.known.as_deref().map(|known| from_json("jobs.known", known)).transpose()
    }
}

impl From<JobRow> for Job {
    fn from(row: JobRow) -> Self {
        Self {
            job_id: row.job_id.get(),
            request_id: row.request_id.get(),
            merchant_id: row.merchant_id.get(),
            kind: row.kind.0,
            provider: row.provider,
            provider_object_id: row.object_id,
            connection_id: row.connection_id.map(Id::get),
            spend_key_id: row.spend_key_id.map(Id::get),
            state: row.state.0,
            hold: Amount::from_units(row.hold),
            created_at: time(row.created_at),
            last_seen_at: row.last_seen_at.map(time),
            ended_at: row.ended_at.map(time),
            expires_at: time(row.expires_at),
        }
    }
}
