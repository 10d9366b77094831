//! The calls that were settled lately, kept in memory for a database that may lose committed transactions.
//!
//! PostgreSQL loses its last commits when it fails over to an asynchronous standby or is restored. The calls of the
//! last minute are then booked again. Each is booked once, by its id.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_domain::settlement::CallReport;
use tollgate_domain::{PendingRecord, Timestamp};

/// The time for which calls are kept.
const KEPT_MS: i64 = 60_000;

/// The most calls that are kept.
const MOST_KEPT: usize = 20_000;

#[derive(Default)]
pub(crate) struct RecentSettlements(Mutex<VecDeque<(Timestamp, SettledReport)>>);

/// A call and its end.
pub(super) type SettledReport = (Arc<PendingRecord>, Arc<CallReport>);

impl RecentSettlements {
    /// Keeps calls whose settlement is committed, and forgets old ones.
    pub(super) fn keep(&self, settled: Vec<SettledReport>, now: Timestamp) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(settled.into_iter().map(|settled| (now, settled)));
        while kept.len() > MOST_KEPT
            || kept.front().is_some_and(|(at, _)| at.plus_millis(KEPT_MS) < now)
        {
            kept.pop_front();
        }
    }

    /// The kept calls, oldest first.
    pub(super) fn all(&self) -> Vec<SettledReport> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|(_, settled)| settled.clone()).collect()
    }
}
