//! Counters, gauges and histograms that cost little to update, and their [text](Exposition) for
//! Prometheus.
//!
//! All values are whole numbers. Times are counted in microseconds and written as exact decimals of
//! a second. An update takes one or two additions, without a lock or an allocation.

mod exposition;
mod instruments;

pub use exposition::{Exposition, MetricFamily, MetricType};
pub use instruments::{Counter, Gauge, Histogram, MicrosAsSeconds};
