//! The metrics of a process, and their page for Prometheus.

pub(crate) mod counts;
pub(crate) mod page;
