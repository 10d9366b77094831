//! Deliveries: from an event in the outbox to the answers of its webhooks.
//!
//! Several nodes work on the same deliveries. They share the turn: one transaction that books the ends of attempts,
//! finds the webhooks of new events, and claims the deliveries that are due. A claim is a lease: it sets the time of
//! the next attempt to a time after the end of this one. So the deliveries of a node that dies become due again.
//! Attempts are numbered, and only the end of the last claimed attempt is booked.

mod queue;
mod retention;
mod turn;

pub(crate) use queue::make_due;
pub use queue::{
    DeliveryFilter, failing_since, find, list, redeliver, redeliver_failed, send_test,
};
pub(crate) use turn::release_all;
pub use turn::{AttemptCapacity, CapacityShare, ClaimedDelivery, ENDED_AT_ONCE, EndedAttempt};
