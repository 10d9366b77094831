//! The metrics of the ledger of this process.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

/// The bounds of waiting times for the ledger, in seconds.
const WAITS: [f64; 15] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
];
/// The bounds of the sizes of groups.
const GROUPS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// The metrics of the ledger of this process.
#[derive(Debug)]
pub struct LedgerMetrics {
    /// The number of admissions and settlements in each group.
    pub groups: Histogram,
    /// The seconds of admissions, from the queue to their answer.
    pub admissions: Histogram,
    /// The seconds of settlements, from the queue to their answer.
    pub settlements: Histogram,
    /// The number of refusals that were counted and not kept, because too many waited.
    pub refusals_dropped: Counter,
    /// The number of pages of 4 KiB in SQLite's log at the last checkpoint.
    pub sqlite_log_pages: Gauge<u64, AtomicU64>,
}

impl Default for LedgerMetrics {
    fn default() -> Self {
        Self {
            groups: Histogram::new(GROUPS),
            admissions: Histogram::new(WAITS),
            settlements: Histogram::new(WAITS),
            refusals_dropped: Counter::default(),
            sqlite_log_pages: Gauge::default(),
        }
    }
}
