//! What Prometheus reads of a process: what is counted, and the page that shows it.

pub(crate) mod counts;
pub(crate) mod page;
