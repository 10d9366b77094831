//! The forwarding operations: the routes of the gateway.
//!
//! [`operations`] has the handlers. Each reads the call ([`inbound`]), has the gateway make the outgoing call of it and
//! start its task, and relays the answer ([`response`]). [`errors`] has the error of each call without an answer, and
//! [`refused`] keeps refusals. [`sockets`] opens WebSockets, whose responses are calls.

mod errors;
pub(crate) mod inbound;
pub(crate) mod operations;
mod refused;
mod response;
mod sockets;
