//! The rows of runs. Their counters have rows of their own.

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use tollgate_domain::{
    ConnectionId, MerchantId, Run, RunAccountId, RunId, SpendCounters, SpendKeyId, Timestamp,
};
use tollgate_pricing::Amount;

use super::values::time;
use crate::ids::Id;
use crate::schema::runs;

#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize, Deserialize)]
#[diesel(table_name = runs)]
pub(crate) struct RunRow {
    pub(crate) account_id: Id<RunAccountId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) spend_key_id: Option<Id<SpendKeyId>>,
    pub(crate) run_id: String,
    pub(crate) run_limit: Option<i64>,
    pub(crate) first_at: i64,
}

impl RunRow {
    /// The row of a run that has had a call.
    pub(crate) fn new(run: &Run, first_at: Timestamp) -> Self {
        Self {
            account_id: Id(run.account_id),
            merchant_id: Id(run.merchant_id),
            connection_id: run.connection_id.map(Id),
            spend_key_id: run.spend_key_id.map(Id),
            run_id: run.run_id.as_str().to_owned(),
            run_limit: run.limit.map(Amount::units),
            first_at: first_at.unix_micros(),
        }
    }

    pub(crate) fn with_counters(self, counters: SpendCounters) -> Run {
        Run {
            account_id: self.account_id.get(),
            merchant_id: self.merchant_id.get(),
            connection_id: self.connection_id.map(Id::get),
            spend_key_id: self.spend_key_id.map(Id::get),
            run_id: RunId::stored(self.run_id),
            limit: self.run_limit.map(Amount::from_units),
            counters,
            first_at: Some(time(self.first_at)),
        }
    }
}
