//! Tollgate's HTTP interface.
//!
//! - [`routes`] is the whole tree; [`App`] is what stands behind it. Tests and the binary mount the
//!   same two.
//! - `http` holds what every operation shares: who asks, bodies with all their issues, errors,
//!   lists, idempotency.
//! - `resources` has a file per resource.
//! - `forward` is the path of a forwarded call.

mod app;
mod forward;
mod http;
mod resources;
mod routes;

pub use app::{App, InterfaceShape, OnDisconnect, Settings, Unpriced};
pub use forward::calls::Calls;
pub use http::error::{ApiError, ErrorCode};
pub use routes::routes;
