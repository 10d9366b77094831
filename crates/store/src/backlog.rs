//! What is open in the database, counted for metrics.

use diesel::prelude::*;
use tollgate_domain::Timestamp;
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::rollups;
use crate::schema::{events, open_calls};
use crate::tables::deliveries;

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
