//! What the ledger of this process counts of itself.

use std::sync::Arc;

use tollgate_metrics::{Gauge, Histogram};

/// How long a call waits for the ledger, in microseconds.
const WAITS: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 10_000_000,
];
/// How many calls are booked together.
const GROUPS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128];

/// What the ledger of this process counts of itself.
#[derive(Debug)]
pub struct Vitals {
    /// How many admissions and settlements were booked together.
    pub groups: Histogram,
    /// How long admissions took, from the queue to their answer.
    pub admissions: Histogram,
    /// How long settlements took, from the queue to their answer.
    pub settlements: Histogram,
    /// How many pages of 4 KiB SQLite's log had at the last checkpoint.
    pub sqlite_log_pages: Arc<Gauge>,
}

impl Default for Vitals {
    fn default() -> Self {
        Self {
            groups: Histogram::of_numbers(GROUPS),
            admissions: Histogram::of_times(WAITS),
            settlements: Histogram::of_times(WAITS),
            sqlite_log_pages: Arc::default(),
        }
    }
}
