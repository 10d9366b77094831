//! The measurements, one module each.

pub(crate) mod bodies;
pub(crate) mod keys;
pub(crate) mod nodes;
pub(crate) mod proxy;
pub(crate) mod records;
pub(crate) mod refusals;
pub(crate) mod sockets;
pub(crate) mod webhooks;
