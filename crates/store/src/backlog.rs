//! The numbers of open calls, of running jobs and of waiting messages, for metrics.

use diesel::prelude::*;
use tollgate_domain::Timestamp;
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::rollups;
use crate::schema::{events, jobs, open_calls};
use crate::tables::deliveries;

/// The highest count. A count of more rows would be a load on the database.
const MOST_COUNTED: i64 = 100_000;

/// The open calls, the running jobs and the waiting messages of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Calls that hold money.
    pub holds: usize,
    /// The sum of their holds.
    pub held: Amount,
    /// Running jobs.
    pub jobs: usize,
    /// The instant since which the oldest of them runs.
    pub oldest_job: Option<Timestamp>,
    /// Events and deliveries in the outbox.
    pub messages: usize,
    /// The instant since which the oldest of them waits.
    pub oldest_message: Option<Timestamp>,
    /// The instant since which the oldest settled call waits for its fold into the roll-ups.
    pub oldest_unfolded: Option<Timestamp>,
}

/// Counts the open calls, the running jobs and the waiting messages, each up to 100,000.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn count_backlog(conn: &mut Conn) -> Result<Backlog, StoreError> {
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
    let jobs: Vec<i64> = jobs::table
        .filter(jobs::look_at.is_not_null())
        .select(jobs::created_at)
        .limit(MOST_COUNTED)
        .load(conn)?;
    let events: Vec<i64> = events::table
        .filter(events::dispatched_at.is_null())
        .select(events::created_at)
        .limit(MOST_COUNTED)
        .load(conn)?;
    let deliveries = deliveries::waiting_since(conn, MOST_COUNTED)?;
    let messages = events.iter().chain(&deliveries);
    Ok(Backlog {
        holds: holds.len(),
        held: held.fold(Amount::ZERO, Amount::saturating_add),
        jobs: jobs.len(),
        oldest_job: jobs.iter().min().copied().map(Timestamp::from_unix_micros),
        messages: events.len().saturating_add(deliveries.len()),
        oldest_message: messages.min().copied().map(Timestamp::from_unix_micros),
        oldest_unfolded: rollups::queued_since(conn)?,
    })
}
