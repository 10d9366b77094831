//! The queue of the roll-ups: calls that are settled and not folded yet.

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use tollgate_domain::{
    ConnectionId, EventPayload, MerchantId, Metadata, MeterId, MissingPrice, RequestId, SpendKeyId,
    Timestamp,
};

use super::sums::{FAILED, RollupSums, STATUS, traits};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{EventRow, RequestIndexRow, from_json, time};
use crate::schema::rollup_queue;
use crate::settled_call::SettledCall;

/// The key of the index of records for customers. Its values are their ids.
pub(crate) const CONNECTION: &str = ":connection";
/// The key of the index of records for meters. Its values are their ids.
pub(crate) const METER: &str = ":meter";
/// The pair of the index of records for failed calls. It is also their pair in the roll-ups.
pub(crate) const FAILURE: (&str, &str) = (STATUS, FAILED);

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
    /// The pairs of the call beside its metadata, from [`traits`].
    pub(crate) traits: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub(crate) metadata: Metadata,
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
            traits: traits(record).map(|(key, value)| (key.to_owned(), value)).collect(),
            metadata: call.forwarded.metadata.clone(),
            sums: RollupSums::of(record),
            stage: QueuedStage::Settled,
            is_suspicious: record.suspicious,
            missing_price: missing_price.clone(),
        }
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

    /// Whether the call counts as a failure.
    pub(crate) fn has_failed(&self) -> bool {
        self.traits.iter().any(|(key, _)| key == STATUS)
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
        let failure = || index_pairs(None, None, &Metadata::default(), self.has_failed());
        match self.stage {
            QueuedStage::TakenBack => [Vec::new(), rows(failure())],
            QueuedStage::Corrected => [rows(failure()), Vec::new()],
            QueuedStage::Settled => {
                let Self { connection_id, meter_id, metadata, .. } = self;
                let all = index_pairs(*connection_id, *meter_id, metadata, self.has_failed());
                [rows(all), Vec::new()]
            }
        }
    }

    /// The events of the call, for a merchant with a webhook that wants them.
    pub(super) fn events(&self, now: Timestamp) -> impl Iterator<Item = EventRow> + '_ {
        let request_id = self.request_id;
        let ended = match self.has_failed() {
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

/// The pairs by which the index finds a record.
pub(crate) fn index_pairs(
    connection_id: Option<ConnectionId>,
    meter_id: Option<MeterId>,
    metadata: &Metadata,
    has_failed: bool,
) -> Vec<(String, String)> {
    let connection = connection_id.map(|id| (CONNECTION.to_owned(), id.to_string()));
    let meter = meter_id.map(|id| (METER.to_owned(), id.to_string()));
    let failure = has_failed.then(|| (FAILURE.0.to_owned(), FAILURE.1.to_owned()));
    let pairs = metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
    connection.into_iter().chain(meter).chain(failure).chain(pairs).collect()
}

/// Returns the calls in the queue, oldest first.
pub(crate) fn queued(conn: &mut Conn) -> Result<Vec<QueuedCall>, StoreError> {
    let groups: Vec<(i64, String)> = rollup_queue::table
        .order(rollup_queue::number)
        .select((rollup_queue::number, rollup_queue::calls))
        .load(conn)?;
    Ok(groups.iter().filter_map(|(number, calls)| read(*number, calls)).flatten().collect())
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
