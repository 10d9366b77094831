//! The path of a forwarded call, in the order of its steps:
//!
//! 1. [`inbound`]: the incoming call, and from its [`credential`] the caller, the connection, the meter and the
//!    provider key;
//! 2. [`outbound`]: the outgoing call: URL, body, metadata, each parsed once and fully checked;
//!    [`endpoint`]: whether the call may go there; on the drop-in routes [`drop_in`] finds the provider by
//!    the model first;
//! 3. [`price`]: the admission that is requested, with the most that the call can cost;
//! 4. [`call`]: a task of its own from here on: admitted, sent, relayed while it is measured,
//!    settled;
//! 5. [`relay`]: the way of its bytes to the client; [`refusal`]: the errors of calls that may not go out.
//!
//! The server drops a handler whose client has left. So from its admission on, a call is a task of its own,
//! and the handler only relays from it. [`operations`] has the handlers, and [`calls`] counts what runs.

mod call;
pub(crate) mod calls;
pub(crate) mod credential;
mod drop_in;
pub(crate) mod endpoint;
mod inbound;
pub(crate) mod operations;
mod outbound;
mod price;
pub(crate) mod refusal;
mod relay;

pub(crate) use self::credential::Credential;
pub(crate) use self::drop_in::match_model;
