//! Deliveries: from an event that waits in the outbox to the answers of the webhooks that want it.
//!
//! Several nodes work on the same deliveries. What they share is the turn: one transaction that
//! books how attempts ended, finds the webhooks of new events, and claims what is due. A claim is a
//! lease: it moves the time of the next attempt behind the end of this one, so that what a node
//! takes with it when it dies is due again by itself. An attempt has a number, and only the last one
//! that was claimed can be booked.

mod queue;
mod retention;
mod turn;

pub(crate) use queue::hasten;
pub use queue::{DeliveryFilter, find, list, redeliver, test};
pub(crate) use turn::release_all;
pub use turn::{Claimed, ENDED_AT_ONCE, Ended, Room, Share};
