//! Test harness that Tollgate's tests share.
//!
//! - [`client`]: a plain HTTP/1.1 client;
//! - [`postgres`]: a real PostgreSQL, started from the installed binaries, and a database of its
//!   own for each test;
//! - [`provider`]: an AI provider that answers by script, byte by byte, and records the requests;
//! - [`random`]: seeds for tests of many orders;
//! - [`socket`]: one end of a WebSocket;
//! - [`store`]: fresh stores on both databases, and the calls to fill them;
//! - [`tools`]: tools of the system that some tests need;
//! - [`urls`]: URLs that lead elsewhere than they appear to.
//!
//! Everything here fails by panicking, as a test does.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test harness fails by panicking"
)]
#![cfg_attr(
    feature = "stores",
    expect(clippy::indexing_slicing, reason = "a test harness fails by panicking")
)]

#[cfg(feature = "stores")]
pub mod client;
pub mod postgres;
#[cfg(feature = "stores")]
pub mod provider;
#[cfg(feature = "stores")]
pub mod random;
#[cfg(feature = "stores")]
pub mod socket;
#[cfg(feature = "stores")]
pub mod store;
pub mod tools;
#[cfg(feature = "stores")]
pub mod urls;

#[cfg(feature = "stores")]
pub use client::{OpenResponse, TestRequest, TestResponse};
pub use postgres::TestDatabase;
#[cfg(feature = "stores")]
pub use provider::{Gate, RecordedRequest, ScriptedProvider, ScriptedResponse, broken_tls_url};
#[cfg(feature = "stores")]
pub use socket::{SocketEvent, TestSocket};
#[cfg(feature = "stores")]
pub use store::{TestStore, each_store};
