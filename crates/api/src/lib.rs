//! Tollgate's HTTP interface.
//!
//! - [`routes`] is the whole tree, [`App`] what stands behind it, [`Settings`] what an operator can choose
//!   of it, and [`listen`] starts both: tests drive exactly what the binary serves.
//! - `http` holds what every operation shares: who asks, bodies with all their issues, errors,
//!   lists, idempotency.
//! - `resources` has a file per resource.
//! - `forward` is the path of a forwarded call.
//! - `client_connections` closes those that are idle, and bounds the requests of each; `line_ends` checks the
//!   lines of their heads.
//! - `dashboard` shows a merchant all of it on pages.
//! - `delivery` sends events to webhooks, in a thread of its own: [`Courier`].
//! - `metrics` is what Prometheus reads, `access` the line that is logged of each request.
//! - [`probe`] asks a service whether it takes calls.
//! - `openapi` is the document of the operations, and of the messages that webhooks get.

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
mod tariff;
mod tls;

pub use access::{AccessLine, AccessLog};
pub use app::App;
pub use delivery::Courier;
pub use forward::calls::Calls;
#[doc(hidden)]
pub use forward::credential::credential_hash;
pub use http::error::{ApiError, ErrorCode};
pub use openapi::{WebhookMessages, openapi};
pub use probe::{Readiness, probe};
pub use resources::quote::{HoldView, QuoteView, usage};
pub use routes::{Served, routes};
pub use server::{Listening, listen};
pub use settings::{Clients, InterfaceShape, OnDisconnect, Settings, Unpriced};
pub use tariff::{Bound, Tariff};
pub use tls::{Tls, TlsError};
