//! A WebSocket to a provider, whose responses are calls.
//!
//! | module | has |
//! |---|---|
//! | `opening` | the connection, before messages pass |
//! | `session` | the task of a socket: its beginning, its end, and the settlement of its calls |
//! | `from_client` | the messages of the client, and which of them are sent on |
//! | `admitting` | the admission of the calls |
//! | `from_provider` | the messages of the provider: which response begins, goes on and ends |
//! | `calls_ahead` | the calls that are admitted ahead |
//! | `ahead` | the money that is held for calls that the provider begins by itself |
//! | `open_responses` | the open responses, and which of them a message belongs to |
//! | `end` | the reasons of an end, and what each side learns of it |
//! | `keys` | the keys of open sockets that may not be used any more |

mod admitting;
mod ahead;
mod calls_ahead;
mod end;
mod from_client;
mod from_provider;
mod keys;
mod open_responses;
mod opening;
mod session;

pub use keys::watch_socket_keys;
pub use opening::{SocketCall, SocketRoute};
pub use session::{SocketInterface, SocketRefusal, spawn_socket};
