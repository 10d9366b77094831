//! The queue of the roll-ups: calls that are settled and not folded yet.

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use tollgate_domain::{
    CallBudgets, ConnectionId, EventPayload, MerchantId, Metadata, MeterId, MissingPrice,
    RequestId, RequestStatus, RunId, SocketId, SpendKeyId, Timestamp,
};

use super::sums::RollupSums;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{EventRow, RequestIndexRow, RequestRow, from_json, time};
use crate::schema::rollup_queue;
use crate::settled_call::SettledCall;

/// The key of the index of records for customers. Its values are their ids.
pub(crate) const CONNECTION: &str = ":connection";
/// The key of the index of records for spend keys. Its values are their ids.
pub(crate) const SPEND_KEY: &str = ":spend_key";
/// The key of the index of records for the budgets that a call counts against. Its values are their ids.
pub(crate) const IN_BUDGET: &str = ":in_budget";
/// The key of the index of records for runs. Its values are their ids.
pub(crate) const RUN: &str = ":run";
/// The key of the index of records for WebSockets. Its values are their ids.
pub(crate) const SOCKET: &str = ":socket";
/// The key of the index of records for meters. Its values are their ids.
pub(crate) const METER: &str = ":meter";
/// The key of the index of records for providers. Its values are their names.
pub(crate) const PROVIDER: &str = ":provider";
/// The key of the index of records for models. Its values are their names.
pub(crate) const MODEL: &str = ":model";
/// The pair of the index of records for failed calls.
pub(crate) const FAILURE: (&str, &str) = (":status", "error");

/// The pair of the index of records for calls that a limit would have refused.
pub(crate) const WOULD_REFUSE: (&str, &str) = (":would_refuse", "true");

/// The longest model name of which sums are kept. Clients choose the name, and it is part of an index.
const MODEL_BYTES: usize = 255;

/// Whether a model has sums and index entries of its own.
pub(crate) fn is_indexed(model: &str) -> bool {
    model.len() <= MODEL_BYTES && !model.contains(char::is_control)
}

/// A settled call in the queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct QueuedCall {
    pub(crate) request_id: RequestId,
    pub(crate) merchant_id: MerchantId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connection_id: Option<ConnectionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spend_key_id: Option<SpendKeyId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) meter_id: Option<MeterId>,
    pub(crate) created_at: i64,
    pub(super) settled_at: i64,
    pub(crate) provider: String,
    /// The model, if it has sums of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// Whether the call counts as a failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_failed: bool,
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub(crate) metadata: Metadata,
    #[serde(default, skip_serializing_if = "CallBudgets::is_empty")]
    pub(crate) budgets: CallBudgets,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) socket_id: Option<SocketId>,
    pub(crate) sums: RollupSums,
    #[serde(default, skip_serializing_if = "QueuedStage::is_settled")]
    stage: QueuedStage,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_suspicious: bool,
    /// The price that the call needed and no price list has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) missing_price: Option<MissingPrice>,
}

/// The role of a queued call in the roll-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum QueuedStage {
    /// A settled call.
    #[default]
    Settled,
    /// A swept call that is corrected, with the sweeper's sums to subtract.
    TakenBack,
    /// A corrected call, as it was settled.
    Corrected,
}

impl QueuedStage {
    fn is_settled(&self) -> bool {
        *self == Self::Settled
    }
}

impl QueuedCall {
    pub(crate) fn settled(settled: &SettledCall, now: Timestamp) -> Self {
        let SettledCall { call, record, missing_price, .. } = settled;
        Self {
            request_id: call.request_id,
            merchant_id: call.merchant_id,
            connection_id: call.connection_id,
            spend_key_id: call.spend_key_id,
            meter_id: call.meter.map(|meter| meter.meter_id),
            created_at: call.created_at.unix_micros(),
            settled_at: now.unix_micros(),
            provider: record.provider.clone(),
            model: record.model.clone().filter(|model| is_indexed(model)),
            has_failed: record.status == RequestStatus::Error,
            metadata: call.forwarded.metadata.clone(),
            budgets: call.budgets.clone(),
            run_id: call.run_id.clone(),
            socket_id: call.forwarded.socket_id,
            sums: RollupSums::of(record),
            stage: QueuedStage::Settled,
            is_suspicious: record.suspicious,
            missing_price: missing_price.clone(),
        }
    }

    /// The call of a settled record, with its correction if the row has it.
    pub(crate) fn of_record(row: &RequestRow) -> Result<Self, StoreError> {
        Ok(Self::settled(&row.settled_call(None)?, time(row.created_at)))
    }

    /// The sweeper's record of a call, to be subtracted, and the corrected one.
    pub(crate) fn corrected(
        before: &SettledCall,
        after: &SettledCall,
        now: Timestamp,
    ) -> [Self; 2] {
        let before = Self { stage: QueuedStage::TakenBack, ..Self::settled(before, now) };
        let after = Self { stage: QueuedStage::Corrected, ..Self::settled(after, now) };
        [Self { sums: RollupSums::default() - before.sums, ..before }, after]
    }

    /// Whether the call is removed from the index and the sums.
    pub(crate) fn is_taken_back(&self) -> bool {
        self.stage == QueuedStage::TakenBack
    }

    /// The status of the ended call.
    pub(crate) const fn status(&self) -> RequestStatus {
        if self.has_failed { RequestStatus::Error } else { RequestStatus::Completed }
    }

    /// The entries that the index of records gains, and the entries that it loses.
    pub(crate) fn index_rows(&self) -> [Vec<RequestIndexRow>; 2] {
        let rows = |pairs: Vec<(String, String)>| {
            let rows = pairs.into_iter().map(|(key, value)| RequestIndexRow {
                merchant_id: Id(self.merchant_id),
                key,
                value,
                request_id: Id(self.request_id),
            });
            rows.collect()
        };
        // A correction changes the status and the model, which the provider may have named.
        let changing = || self.changing_pairs().collect();
        match self.stage {
            QueuedStage::TakenBack => [Vec::new(), rows(changing())],
            QueuedStage::Corrected => [rows(changing()), Vec::new()],
            QueuedStage::Settled => [rows(self.index_pairs()), Vec::new()],
        }
    }

    /// The pairs by which the index finds the record.
    pub(crate) fn index_pairs(&self) -> Vec<(String, String)> {
        let connection = self.connection_id.map(|id| (CONNECTION, id.to_string()));
        let spend_key = self.spend_key_id.map(|id| (SPEND_KEY, id.to_string()));
        let meter = self.meter_id.map(|id| (METER, id.to_string()));
        let provider = Some((PROVIDER, self.provider.clone()));
        let fixed = [connection, spend_key, meter, provider].into_iter().flatten();
        let fixed = fixed.map(|(key, value)| (key.to_owned(), value));
        let would_refuse = self.budgets.would_refuse;
        let would_refuse =
            would_refuse.then(|| (WOULD_REFUSE.0.to_owned(), WOULD_REFUSE.1.to_owned()));
        let budgets = self.budgets.ids.iter().map(|id| (IN_BUDGET.to_owned(), id.to_string()));
        let pairs = self.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
        let run = self.run_id.as_ref().map(|id| (RUN.to_owned(), id.to_string()));
        let socket = self.socket_id.map(|id| (SOCKET.to_owned(), id.to_string()));
        let fixed = fixed.chain(budgets).chain(would_refuse).chain(run).chain(socket);
        fixed.chain(self.changing_pairs()).chain(pairs).collect()
    }

    /// Those of [`Self::index_pairs`] that a correction may change.
    fn changing_pairs(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let failure = self.has_failed.then(|| (FAILURE.0.to_owned(), FAILURE.1.to_owned()));
        let model = self.model.clone().map(|model| (MODEL.to_owned(), model));
        failure.into_iter().chain(model)
    }

    /// The events of the call, for a merchant with a webhook that wants them.
    pub(super) fn events(&self, now: Timestamp) -> impl Iterator<Item = EventRow> + '_ {
        let request_id = self.request_id;
        let ended = match self.has_failed {
            true => EventPayload::RequestFailed { request_id },
            false => EventPayload::RequestCompleted { request_id },
        };
        let suspicious =
            self.is_suspicious.then_some(EventPayload::RequestSuspicious { request_id });
        let news =
            (self.stage != QueuedStage::TakenBack).then_some(ended).into_iter().chain(suspicious);
        news.map(move |news| EventRow::new(self.merchant_id, &news, time(self.settled_at), now))
    }
}

/// Returns the calls in the queue, oldest first.
pub(crate) fn queued(conn: &mut Conn) -> Result<Vec<QueuedCall>, StoreError> {
    let groups: Vec<(i64, String)> = rollup_queue::table
        .order(rollup_queue::number)
        .select((rollup_queue::number, rollup_queue::calls))
        .load(conn)?;
    Ok(groups.iter().filter_map(|(number, calls)| read(*number, calls)).flatten().collect())
}

/// The number of groups in the queue, by their numbers. On SQLite these have no gaps.
pub(super) fn length(conn: &mut Conn) -> QueryResult<usize> {
    let number = rollup_queue::table.select(rollup_queue::number);
    let oldest: Option<i64> = number.order(rollup_queue::number).first(conn).optional()?;
    let newest: Option<i64> = number.order(rollup_queue::number.desc()).first(conn).optional()?;
    let length = oldest.zip(newest).map_or(0, |(oldest, newest)| newest - oldest + 1);
    Ok(usize::try_from(length).unwrap_or_default())
}

/// Parses the calls of a group. A group that cannot be read is logged, and the audit reports its calls as missing.
pub(super) fn read(number: i64, calls: &str) -> Option<Vec<QueuedCall>> {
    let calls = from_json("rollup_queue.calls", calls);
    calls.inspect_err(|cause| log::error!("row {number} of rollup_queue: {cause:?}")).ok()
}

/// The settlement time of the oldest group in the queue.
pub(crate) fn queued_since(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    let oldest: Option<i64> = rollup_queue::table
        .order(rollup_queue::number)
        .select(rollup_queue::created_at)
        .first(conn)
        .optional()?;
    Ok(oldest.map(time))
}
