//! The calls that were settled lately, kept in memory for a database that may lose what it has committed.
//!
//! PostgreSQL that fails over to an asynchronous standby, or is restored, comes back without its last commits. Then
//! the calls of the last minute are booked again: each is booked once, by its id.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_domain::settlement::Report;
use tollgate_domain::{PendingRecord, Timestamp};

/// How long they are kept.
const KEPT_MS: i64 = 60_000;

/// How many are kept at most.
const MOST_KEPT: usize = 20_000;

#[derive(Default)]
pub(crate) struct Recent(Mutex<VecDeque<(Timestamp, Settled)>>);

/// A call and how it ended.
pub(super) type Settled = (Arc<PendingRecord>, Arc<Report>);

impl Recent {
    /// Keeps calls whose settlement is committed, and forgets old ones.
    pub(super) fn keep(&self, settled: Vec<Settled>, now: Timestamp) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(settled.into_iter().map(|settled| (now, settled)));
        while kept.len() > MOST_KEPT
            || kept.front().is_some_and(|(at, _)| at.plus_millis(KEPT_MS) < now)
        {
            kept.pop_front();
        }
    }

    /// The calls that are kept, oldest first.
    pub(super) fn all(&self) -> Vec<Settled> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|(_, settled)| settled.clone()).collect()
    }
}
