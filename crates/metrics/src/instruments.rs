//! Counters, gauges and histograms.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `more`.
    pub fn add(&self, more: u64) {
        if more > 0 {
            self.0.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts one.
    pub fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The unit of a histogram's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistogramUnit {
    Microseconds,
    Each,
}

/// The number of values in each of a row of buckets.
#[derive(Debug)]
pub struct Histogram {
    pub(crate) unit: HistogramUnit,
    /// The largest value of each bucket. Values above all bounds are in the last bucket.
    pub(crate) bounds: &'static [u64],
    pub(crate) buckets: Box<[AtomicU64]>,
    pub(crate) sum: AtomicU64,
}

impl Histogram {
    /// Creates a histogram of times. `bounds` are in microseconds and ascend.
    pub fn of_times(bounds: &'static [u64]) -> Self {
        Self::new(HistogramUnit::Microseconds, bounds)
    }

    /// Creates a histogram of numbers. `bounds` ascend.
    pub fn of_numbers(bounds: &'static [u64]) -> Self {
        Self::new(HistogramUnit::Each, bounds)
    }

    fn new(unit: HistogramUnit, bounds: &'static [u64]) -> Self {
        let buckets = bounds.iter().map(|_| 0).chain([0]).map(AtomicU64::new);
        Self { unit, bounds, buckets: buckets.collect(), sum: AtomicU64::new(0) }
    }

    /// Counts a value, in the unit of the bounds.
    pub fn observe(&self, value: u64) {
        let place = self.bounds.iter().take_while(|bound| value > **bound).count();
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(1, Ordering::Relaxed);
            self.sum.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Counts a time.
    pub fn observe_time(&self, time: Duration) {
        self.observe(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// The number of counted values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }
}

/// A number of microseconds, written as seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicrosAsSeconds(pub u64);

impl fmt::Display for MicrosAsSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MICROS: u64 = 1_000_000;
        let (whole, micros) = (self.0 / MICROS, self.0 % MICROS);
        let digits = format!("{micros:06}");
        match digits.trim_end_matches('0') {
            "" => write!(f, "{whole}.0"),
            digits => write!(f, "{whole}.{digits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::of_numbers(&[1, 10]);
        for value in [0, 1, 2, 10, 11, 1_000] {
            histogram.observe(value);
        }
        let buckets: Vec<_> =
            histogram.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        assert_eq!(buckets, [2, 2, 2]);
        assert_eq!((histogram.count(), histogram.sum.load(Ordering::Relaxed)), (6, 1_024));
    }

    #[test]
    fn seconds_are_exact_decimals() {
        for (micros, text) in [
            (0, "0.0"),
            (50, "0.00005"),
            (250_000, "0.25"),
            (1_000_000, "1.0"),
            (61_000_001, "61.000001"),
        ] {
            assert_eq!(MicrosAsSeconds(micros).to_string(), text);
        }
    }

    #[test]
    fn nothing_is_lost_when_many_count_at_once() {
        let (counter, histogram) = (Counter::default(), Histogram::of_times(&[5]));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for value in 0..1_000 {
                        counter.inc();
                        histogram.observe(value % 10);
                    }
                });
            }
        });
        assert_eq!((counter.get(), histogram.count()), (4_000, 4_000));
        assert_eq!(histogram.sum.load(Ordering::Relaxed), 4 * 100 * 45);
    }
}
