//! The metrics of the ledger of this process.

use std::sync::Arc;

use tollgate_metrics::{Gauge, Histogram};

/// The bounds of waiting times for the ledger, in microseconds.
const WAITS: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 10_000_000,
];
/// The bounds of the sizes of groups.
const GROUPS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128];

/// The metrics of the ledger of this process.
#[derive(Debug)]
pub struct LedgerMetrics {
    /// The number of admissions and settlements in each group.
    pub groups: Histogram,
    /// The time of admissions, from the queue to their answer.
    pub admissions: Histogram,
    /// The time of settlements, from the queue to their answer.
    pub settlements: Histogram,
    /// The number of pages of 4 KiB in SQLite's log at the last checkpoint.
    pub sqlite_log_pages: Arc<Gauge>,
}

impl Default for LedgerMetrics {
    fn default() -> Self {
        Self {
            groups: Histogram::of_numbers(GROUPS),
            admissions: Histogram::of_times(WAITS),
            settlements: Histogram::of_times(WAITS),
            sqlite_log_pages: Arc::default(),
        }
    }
}
