//! How the store does, for whoever watches it: what the ledger counts of itself, and what is read of the
//! database when somebody asks.

use std::sync::Arc;

use diesel::prelude::*;
use tollgate_domain::Timestamp;
use tollgate_metrics::{Gauge, Histogram};
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::schema::{events, open_calls};
use crate::{deliveries, rollups};

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
    /// How many pages of 4 KiB SQLite's log had after the last checkpoint that SQLite cannot write over yet.
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

/// More is not counted: whoever asks must not become a load.
const MOST_COUNTED: i64 = 100_000;

/// What is open in the database, of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Calls that hold money.
    pub holds: usize,
    /// What they hold on wallets, together.
    pub held: Amount,
    /// Events and deliveries that wait for a webhook to take them.
    pub messages: usize,
    /// Since when the oldest of them waits.
    pub oldest_message: Option<Timestamp>,
    /// Since when the oldest settled call waits to be added to the roll-ups.
    pub oldest_unfolded: Option<Timestamp>,
}

/// Counts what is open, each up to 100,000.
///
/// # Errors
/// Those of the store.
pub(crate) fn open(conn: &mut Conn) -> Result<Open, StoreError> {
    let holds: Vec<(i64, i64, i64, i64)> = open_calls::table
        .select((
            open_calls::wallet_hold,
            open_calls::cycle_hold,
            open_calls::bundle_hold,
            open_calls::merchant_hold,
        ))
        .limit(MOST_COUNTED)
        .load(conn)?;
    let of_call = |hold: &(i64, i64, i64, i64)| [hold.0, hold.1, hold.2, hold.3];
    let held = holds.iter().flat_map(of_call).map(Amount::from_units);
    let events: Vec<i64> = events::table
        .filter(events::dispatched_at.is_null())
        .select(events::created_at)
        .limit(MOST_COUNTED)
        .load(conn)?;
    let deliveries = deliveries::waiting_since(conn, MOST_COUNTED)?;
    let messages = events.iter().chain(&deliveries);
    Ok(Open {
        holds: holds.len(),
        held: held.fold(Amount::ZERO, Amount::saturating_add),
        messages: events.len().saturating_add(deliveries.len()),
        oldest_message: messages.min().copied().map(Timestamp::from_unix_micros),
        oldest_unfolded: rollups::queued_since(conn)?,
    })
}
