//! The queue of refused calls in memory. The path of a call adds to it, and the database gets it in batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_domain::admission::CallKey;
use tollgate_domain::{
    ConnectionId, MerchantId, RefusalId, RefusalRecord, RefusedCall, RunId, Timestamp,
};

use crate::rollups::{is_indexed, slot};

/// A refusal of a call whose key is known.
#[derive(Clone, Copy, Debug)]
pub struct RefusalCause<'a> {
    /// The merchant of the key.
    pub merchant_id: MerchantId,
    /// The key.
    pub key: CallKey,
    /// The customer named in the credential.
    pub connection_id: Option<ConnectionId>,
    /// The requested model.
    pub model: Option<&'a str>,
    /// The run of the call.
    pub run_id: Option<&'a RunId>,
    /// The code of the error.
    pub code: &'static str,
    /// The time.
    pub at: Timestamp,
}

/// The refusals of a key for one reason that have rows of their own between two batches. The others share a row.
const ALONE: u64 = 100;
/// The most rows that wait. Refusals beyond are only counted.
const MOST_WAITING: usize = 10_000;

/// Refused calls that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct RefusalQueue {
    current: Mutex<RefusalBatch>,
    /// A batch whose write has failed, or has an unknown outcome. It stays as it is, so that the next try finds out.
    failed: Mutex<Option<Arc<RefusalBatch>>>,
}

/// Refused calls, and their numbers.
#[derive(Debug, Default)]
pub(crate) struct RefusalBatch {
    pub(crate) records: Vec<RefusalRecord>,
    pub(crate) counts: HashMap<RefusalCountKey, CauseCount>,
}

/// The number of refusals for one cause in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CauseCount {
    pub(crate) count: u64,
    /// The place of the record that the later ones share.
    shared: Option<usize>,
}

/// The merchant, slot, code, key and connection of a number of refused calls.
pub(crate) type RefusalCountKey = (MerchantId, i64, &'static str, CallKey, Option<ConnectionId>);

impl RefusalQueue {
    fn lock(&self) -> MutexGuard<'_, RefusalBatch> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Option<Arc<RefusalBatch>>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a refusal and returns its id. Returns `false` beside it if the refusal is only counted.
    pub(crate) fn add(
        &self,
        cause: &RefusalCause<'_>,
        call: impl FnOnce() -> RefusedCall,
    ) -> (RefusalId, bool) {
        let RefusalCause { merchant_id, key, connection_id, code, at, .. } = *cause;
        let mut batch = self.lock();
        let batch = &mut *batch;
        let cause_key = (merchant_id, slot(at.unix_micros()), code, key, connection_id);
        let of_cause = batch.counts.entry(cause_key).or_default();
        of_cause.count = of_cause.count.saturating_add(1);
        if let Some(record) = of_cause.shared.and_then(|place| batch.records.get_mut(place)) {
            record.count = record.count.saturating_add(1);
            record.last_at = at;
            return (record.refusal_id, true);
        }
        let refusal_id = RefusalId::generate(at);
        if batch.records.len() >= MOST_WAITING {
            return (refusal_id, false);
        }
        if of_cause.count > ALONE {
            of_cause.shared = Some(batch.records.len());
        }
        batch.records.push(cause.record(refusal_id, call()));
        (refusal_id, true)
    }

    /// Takes the batch that may not be written.
    pub(crate) fn take_failed(&self) -> Option<Arc<RefusalBatch>> {
        self.failed().take()
    }

    /// Takes all that waits. `None` if nothing does.
    pub(crate) fn take(&self) -> Option<Arc<RefusalBatch>> {
        let batch = std::mem::take(&mut *self.lock());
        (!batch.is_empty()).then(|| Arc::new(batch))
    }

    /// Puts back a batch that may not be written.
    pub(crate) fn put_back(&self, batch: Arc<RefusalBatch>) {
        *self.failed() = Some(batch);
    }
}

impl RefusalBatch {
    fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.records.is_empty()
    }
}

impl RefusalCause<'_> {
    fn record(&self, refusal_id: RefusalId, call: RefusedCall) -> RefusalRecord {
        let (spend_key_id, secret_key_id) = match self.key {
            CallKey::Spend(id, _) => (Some(id), None),
            CallKey::Secret(id) => (None, Some(id)),
        };
        RefusalRecord {
            refusal_id,
            merchant_id: self.merchant_id,
            code: self.code.to_owned(),
            spend_key_id,
            secret_key_id,
            connection_id: self.connection_id,
            model: self.model.filter(|model| is_indexed(model)).map(str::to_owned),
            run_id: self.run_id.cloned(),
            count: 1,
            first_at: self.at,
            last_at: self.at,
            call,
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_domain::SecretKeyId;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_micros(1_795_219_200_000_000);

    fn cause(key: CallKey) -> RefusalCause<'static> {
        RefusalCause {
            merchant_id: MerchantId::least(NOW),
            key,
            connection_id: None,
            model: Some("m"),
            run_id: None,
            code: "rate_limited",
            at: NOW,
        }
    }

    #[test]
    fn a_batch_that_failed_comes_again_as_it_was_and_before_the_next() {
        let queue = RefusalQueue::default();
        let key = CallKey::Secret(SecretKeyId::least(NOW));
        let (first, _) = queue.add(&cause(key), RefusedCall::default);
        let batch = queue.take().unwrap();
        queue.put_back(batch);
        let (second, _) = queue.add(&cause(key), RefusedCall::default);
        let ids = |batch: &RefusalBatch| -> Vec<_> {
            batch.records.iter().map(|record| record.refusal_id).collect()
        };
        assert_eq!(ids(&queue.take_failed().unwrap()), [first]);
        assert!(queue.take_failed().is_none());
        assert_eq!(ids(&queue.take().unwrap()), [second]);
        assert!(queue.take().is_none());
    }

    #[test]
    fn a_full_queue_counts_what_it_cannot_keep() {
        let queue = RefusalQueue::default();
        let mut kept = 0;
        for number in 0..MOST_WAITING + 50 {
            let micros = i64::try_from(number).unwrap();
            let key = CallKey::Secret(SecretKeyId::least(NOW.plus_millis(micros)));
            let (_, is_kept) = queue.add(&cause(key), RefusedCall::default);
            kept += usize::from(is_kept);
        }
        assert_eq!(kept, MOST_WAITING);
        let batch = queue.take().unwrap();
        assert_eq!(batch.records.len(), MOST_WAITING);
        let counted: u64 = batch.counts.values().map(|of_cause| of_cause.count).sum();
        assert_eq!(usize::try_from(counted).unwrap(), MOST_WAITING + 50);
    }
}
