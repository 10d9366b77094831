//! Queries of single tables that several operations share.

pub(crate) mod connections;
pub(crate) mod deliveries;
pub(crate) mod merchants;
pub(crate) mod repricings;
pub(crate) mod spend_keys;
pub(crate) mod subscriptions;
pub(crate) mod webhooks;
