//! Tollgate's HTTP interface.
//!
//! - [`routes`] has all routes, [`App`] is the state of the operations, [`Settings`] are the operator's choices, and
//!   [`listen`] starts the server: tests run the same server as the binary.
//! - `http` has the parts that all operations share: caller, bodies with all their issues, errors,
//!   lists, idempotency.
//! - `resources` has a file per resource.
//! - `forward` has the operations that forward calls; `tollgate-gateway` is the path of a call.
//! - `client_connections` closes idle connections, and bounds the requests of each; `line_ends` checks the
//!   lines of their heads.
//! - `dashboard` has a merchant's pages.
//! - `delivery` is the dispatcher, which sends events to webhooks in a thread of its own: [`WebhookDispatcher`].
//! - `metrics` is the page for Prometheus, `access` the log line of each request.
//! - [`probe`] checks whether a service takes calls.
//! - `openapi` is the document of the operations, and of the messages of webhooks.

mod access;
mod app;
mod client_connections;
mod dashboard;
mod delivery;
mod forward;
mod http;
mod line_ends;
mod metrics;
mod openapi;
mod probe;
mod resources;
mod routes;
mod server;
mod settings;
mod tls;

pub use access::{AccessLine, AccessLog};
pub use app::App;
pub use delivery::WebhookDispatcher;
pub use http::error::{ApiError, ErrorCode};
pub use openapi::{WebhookMessagesDoc, openapi};
pub use probe::{Readiness, probe};
pub use resources::quote::{HoldView, QuoteView, usage};
pub use routes::{ServedRoutes, routes};
pub use server::{BoundServer, listen};
pub use settings::{ClientLimits, InterfaceShape, Settings};
pub use tls::{Tls, TlsError};
