//! The path of a forwarded call, without a server, in the order of its steps:
//!
//! 1. `inbound`: the incoming call. From its [`RequestHead`] come the [`Credential`] and the owner of its key
//!    ([`Gateway::owner_of`]);
//! 2. `outbound`: the outgoing call: URL, body, metadata, each parsed once and fully checked; `endpoint`: whether
//!    the call may go there; on the drop-in routes `drop_in` finds the provider by the model first;
//! 3. `price`: the admission that is requested, with the most that the call can cost, by the [`Tariff`];
//! 4. `call_task`: a task of its own from here on ([`spawn_call`]): admitted, sent, relayed while it is measured,
//!    settled;
//! 5. `relay`: the way of its bytes to the client; `cost_report`: the cost of the call in them, if requested.
//!
//! The words: the **operator** runs the service and owns the managed provider keys. A **merchant** sells calls to its
//! customers (a **connection**, with a **wallet**), under a **meter**, which is its fee. A **spend key** is a key for calls
//! alone, with limits. A **hold** is money that is reserved from the admission of a call to its settlement.
//!
//! | module | has |
//! |---|---|
//! | `gateway`, `settings` | the state of all calls, and the operator's choices |
//! | `request`, `credential`, `keys`, `inbound` | the caller |
//! | `outbound`, `endpoint`, `drop_in` | the destination |
//! | `objects`, `lists` | whether the caller owns what the call names |
//! | `upload`, `batch`, `batch_file`, `job`, `poller`, `key_seal` | calls whose cost is known later |
//! | `socket`, `open_sockets` | WebSockets, whose responses are calls |
//! | `tariff`, `price`, `settlement` | what a call can cost at most, what it has cost, and what is charged |
//! | `call_task`, `admitted`, `in_flight`, `relay`, `cost_report`, `observer`, `metrics` | the task of a call, and what is known of it while it runs |
//!
//! The rules of money are not here: `tollgate_domain::admission` decides whether a call may go out,
//! `tollgate_domain::settlement` who pays what, and the store books both.
//!
//! The server drops a handler whose client has left. So from its admission on, a call is a task of its own,
//! and the handler only relays from it. [`InFlightCalls`] counts what runs, so that a shutdown can wait for it.
//!
//! A [`CallError`] says why a call has no answer from a provider. What a client gets for it is the interface's matter.

mod admitted;
mod batch;
mod batch_body;
mod batch_file;
mod call_task;
mod cost_report;
mod credential;
mod drop_in;
mod endpoint;
mod error;
mod gateway;
mod in_flight;
mod inbound;
mod job;
mod key_seal;
mod keys;
mod lists;
mod metrics;
mod objects;
mod observer;
mod open_sockets;
mod outbound;
mod poller;
mod price;
mod relay;
mod request;
mod run;
mod settings;
mod settlement;
mod socket;
mod tariff;
mod upload;

pub use call_task::spawn_call;
pub use cost_report::{COST_TRAILERS, cost_headers};
pub use credential::Credential;
#[doc(hidden)]
pub use credential::credential_hash;
pub use drop_in::{DropInRoute, MatchRank, has_google_credential, match_model};
pub use error::CallError;
pub use gateway::Gateway;
pub use in_flight::{InFlightCalls, InFlightGuard};
pub use inbound::InboundCall;
pub use key_seal::{KeySeal, KeySealError};
pub use keys::KeyOwner;
pub use metrics::{CallMetrics, MessageCounts, MessageSender, ProviderMetrics, amount_units};
pub use observer::CallObserver;
pub use open_sockets::OpenSockets;
pub use outbound::{CallSummary, OutboundCall};
pub use poller::{look, poll_jobs};
pub use relay::{RelayReceiver, RelayedBytes, RelayedHead, request_id_header};
pub use request::RequestHead;
pub use settings::{CallSettings, OnDisconnect, SocketLimits, UnpricedPolicy};
pub use socket::{
    SocketCall, SocketInterface, SocketRefusal, SocketRoute, spawn_socket, watch_socket_keys,
};
pub use tariff::{CallBound, Tariff};
pub use upload::{Upload, UploadSpool};
