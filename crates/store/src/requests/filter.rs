//! Filters for records, and their conditions on the columns of the archive.

use tollgate_archive::{Condition, Value};
use tollgate_domain::{
    BudgetId, ConnectionId, MerchantId, Metadata, MeterId, RequestId, RequestRecord, RequestStatus,
    RunId, SocketId, SpendKeyId, Timestamp,
};
use tollgate_pricing::Amount;

use crate::ids::Id;
use crate::rollups::QueuedCall;
use crate::rows::{to_json, word};

/// The most by which an id and the time of its record are expected to differ: a day.
pub(crate) const CLOCK_DIFFERENCE_MS: i64 = 24 * 60 * 60 * 1_000;

/// A filter for records. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFilter {
    /// Only this customer's records.
    pub connection_id: Option<ConnectionId>,
    /// Only records of this spend key.
    pub spend_key_id: Option<SpendKeyId>,
    /// Only records that count against this budget.
    pub budget_id: Option<BudgetId>,
    /// Only records that this meter priced.
    pub meter_id: Option<MeterId>,
    /// Only records of this provider.
    pub provider: Option<String>,
    /// Only records of this model.
    pub model: Option<String>,
    /// Only records with each of these pairs in their metadata.
    pub metadata: Vec<(String, String)>,
}

/// A filter for a list of records. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// The calls.
    pub calls: RequestFilter,
    /// Only records with this status.
    pub status: Option<RequestStatus>,
    /// Only records whose provider answered with this HTTP status.
    pub provider_status: Option<u16>,
    /// Only records of this run.
    pub run_id: Option<RunId>,
    /// Only records of this WebSocket.
    pub socket_id: Option<SocketId>,
    /// Only records that a budget would have refused if it enforced its limits.
    pub would_refuse: bool,
    /// Only records that cost at least this much in total.
    pub min_cost: Option<Amount>,
    /// Only records from this instant on.
    pub start: Option<Timestamp>,
    /// Only records before this instant.
    pub end: Option<Timestamp>,
}

impl From<RequestFilter> for ListFilter {
    fn from(calls: RequestFilter) -> Self {
        Self { calls, ..Self::default() }
    }
}

impl RequestFilter {
    /// Whether the metadata contains all pairs of the filter.
    pub(super) fn lets_through(&self, metadata: &Metadata) -> bool {
        let has = |(key, value): &(String, String)| metadata.get(key) == Some(value);
        self.metadata.iter().all(has)
    }

    /// The conditions on the columns of the archive, those that are the fastest to test first.
    pub(super) fn archive_conditions(&self) -> Vec<Condition<'_>> {
        let RequestFilter {
            connection_id,
            spend_key_id,
            budget_id,
            meter_id,
            provider,
            model,
            metadata,
        } = self;
        let texts = [
            ("connection_id", connection_id.map(|id| id.to_string())),
            ("spend_key_id", spend_key_id.map(|id| id.to_string())),
            ("meter_id", meter_id.map(|id| id.to_string())),
            ("provider", provider.clone()),
            ("model", model.clone()),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some(Condition::text(name, text?)));
        // The column is a list of ids as JSON.
        let budget = budget_id.map(|id| contains("budget_ids", vec![to_json(&id)]));
        let pairs = (!metadata.is_empty()).then(|| has_pairs(metadata));
        texts.chain(budget).chain(pairs).collect()
    }
}

impl QueuedCall {
    /// Whether the call belongs to this merchant and passes its filter.
    pub(crate) fn passes(&self, merchant_id: MerchantId, filter: &RequestFilter) -> bool {
        self.merchant_id == merchant_id
            && filter.connection_id.is_none_or(|id| self.connection_id == Some(id))
            && filter.spend_key_id.is_none_or(|id| self.spend_key_id == Some(id))
            && filter.budget_id.is_none_or(|id| self.budgets.ids.contains(&id))
            && filter.meter_id.is_none_or(|id| self.meter_id == Some(id))
            && filter.provider.as_ref().is_none_or(|name| self.provider == *name)
            && (filter.model.is_none() || self.model == filter.model)
            && filter.lets_through(&self.metadata)
    }
}

impl ListFilter {
    /// Whether a record meets all conditions.
    pub fn passes(&self, record: &RequestRecord) -> bool {
        let RequestFilter {
            connection_id, spend_key_id, budget_id, meter_id, provider, model, ..
        } = &self.calls;
        connection_id.is_none_or(|id| record.connection_id == Some(id))
            && spend_key_id.is_none_or(|id| record.spend_key_id == Some(id))
            && budget_id.is_none_or(|id| record.budgets.ids.contains(&id))
            && meter_id.is_none_or(|id| record.meter_id == Some(id))
            && provider.as_ref().is_none_or(|name| record.provider == *name)
            && (model.is_none() || record.model == *model)
            && self.calls.lets_through(&record.metadata)
            && self.lets_through(record)
    }

    /// Whether a record of the calls meets the other conditions.
    fn lets_through(&self, record: &RequestRecord) -> bool {
        let status = record.provider_status;
        self.status.is_none_or(|wanted| record.status == wanted)
            && self.provider_status.is_none_or(|wanted| status == Some(wanted))
            && (!self.would_refuse || record.budgets.would_refuse)
            && (self.run_id.is_none() || record.run_id == self.run_id)
            && (self.socket_id.is_none() || record.socket_id == self.socket_id)
            && self.min_cost.is_none_or(|least| record.quote.total_request_cost >= least)
            && self.start.is_none_or(|start| start <= record.created_at)
            && self.end.is_none_or(|end| record.created_at < end)
    }

    /// The least id that a record from the start of the filter may have.
    pub(super) fn oldest(&self) -> Option<Id<RequestId>> {
        let oldest = self.start.map(|start| start.plus_millis(-CLOCK_DIFFERENCE_MS));
        oldest.map(|oldest| Id(RequestId::least(oldest)))
    }

    /// Whether a settled record meets the conditions of the index that a correction may change.
    pub(super) fn has_wanted_outcome(&self, record: &RequestRecord) -> bool {
        let is_of_model = |wanted: &String| record.model.as_ref() == Some(wanted);
        let has_failed = record.status == RequestStatus::Error;
        (self.status != Some(RequestStatus::Error) || has_failed)
            && self.calls.model.as_ref().is_none_or(is_of_model)
    }

    /// The conditions on the columns of the archive.
    pub(super) fn archive_conditions(&self) -> Vec<Condition<'_>> {
        let texts = [
            ("socket_id", self.socket_id.map(|id| id.to_string())),
            ("run_id", self.run_id.as_ref().map(ToString::to_string)),
            ("status", self.status.map(|status: RequestStatus| word(&status))),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some(Condition::text(name, text?)));
        let status = self.provider_status.map(i64::from);
        let status = status.map(|status| Condition::integer("provider_status", status..status + 1));
        let start = self.start.map(Timestamp::unix_micros);
        let end = self.end.map(Timestamp::unix_micros);
        let times = (start.is_some() || end.is_some())
            .then(|| start.unwrap_or(i64::MIN)..end.unwrap_or(i64::MAX))
            .map(|times| Condition::integer("created_at", times));
        let would_refuse = self.would_refuse.then(|| Condition::boolean("would_refuse", true));
        let min_cost = self.min_cost.map(|least| {
            Condition::new(
                "total_request_cost",
                move |cost| matches!(cost, Value::Amount(cost) if *cost >= least),
            )
        });
        let others = [status, times, would_refuse, min_cost].into_iter().flatten();
        texts.chain(others).chain(self.calls.archive_conditions()).collect()
    }
}

/// The metadata has all pairs. The JSON is searched for their texts, because to parse it takes longer than to read the column.
/// The text of a pair is nowhere else: in a value its quotes are escaped, and a key has letters, digits and underscores.
fn has_pairs<'a>(pairs: &[(String, String)]) -> Condition<'a> {
    let text = |(key, value): &(String, String)| format!("{}:{}", to_json(key), to_json(value));
    contains("metadata", pairs.iter().map(text).collect())
}

fn contains<'a>(column: &'static str, parts: Vec<String>) -> Condition<'a> {
    let has_all = move |text: &String| parts.iter().all(|part| text.contains(part));
    Condition::new(column, move |value| matches!(value, Value::Text(text) if has_all(text)))
}
