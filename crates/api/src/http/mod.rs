//! The parts that all operations share: caller, body, query, answer and errors.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod body_memory;
pub(crate) mod csv;
pub(crate) mod earlier;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod idempotency;
mod json;
pub(crate) mod list;
pub(crate) mod parameters;
pub(crate) mod rate_limits;
