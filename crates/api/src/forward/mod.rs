//! The path of a forwarded call, from top to bottom:
//!
//! 1. [`inbound`]: what came in, and by its [`credential`] who calls, for which connection, under which
//!    meter, with whose provider key;
//! 2. [`outbound`]: what is called: URL, body, metadata, each parsed once and wholly checked;
//!    [`endpoint`]: whether the call may go there; on the drop-in routes [`drop_in`] finds the provider by
//!    the model first;
//! 3. [`price`]: what it asks to be admitted for, with the most that it can cost;
//! 4. [`call`]: a task of its own from here on: admitted, sent, relayed while it is measured,
//!    settled;
//! 5. [`relay`]: how its bytes reach the client; [`refusal`]: what is said when they may not.
//!
//! The server drops a handler whose client has left. So from its admission on, a call is a task
//! that nobody can drop, and the handler only relays from it. [`operations`] has the handlers, and
//! [`calls`] counts what runs.

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
pub(crate) use self::drop_in::ranks;
