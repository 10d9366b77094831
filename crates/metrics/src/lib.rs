//! Counters and histograms that cost next to nothing to move, and the [text](Exposition) in which
//! Prometheus reads them.
//!
//! Everything is a whole number, in memory and in the text: times are counted in microseconds and written as
//! exact decimals of a second. To move one takes an addition or two, without a lock and without memory.

mod exposition;
mod instruments;

pub use exposition::{Exposition, Family, Kind};
pub use instruments::{Counter, Gauge, Histogram, Seconds};
