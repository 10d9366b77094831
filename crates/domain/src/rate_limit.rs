//! The rate limit of a spend key.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A token bucket by the generic cell rate algorithm. Its whole state is one instant.
///
/// It refills at `per_minute` calls per 60 s and holds `burst` of them, so in any 60 s at most
/// `per_minute + burst` calls pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gcra {
    /// The instant at which the bucket is full, in nanoseconds since 1970. Near a million calls a
    /// minute, the interval between two calls is not a whole number of microseconds.
    full_at_nanos: i64,
}

/// The error of an empty bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateExceeded {
    /// The time until the next call passes, in microseconds.
    pub wait_micros: i64,
}

const NANOS_PER_MINUTE: u64 = 60_000_000_000;
const NANOS_PER_MICRO: i64 = 1_000;

impl Gcra {
    /// Creates a bucket that is full at an instant, in nanoseconds since 1970.
    pub const fn from_full_at_nanos(full_at_nanos: i64) -> Self {
        Self { full_at_nanos }
    }

    /// The instant at which the bucket is full, in nanoseconds since 1970.
    pub const fn full_at_nanos(self) -> i64 {
        self.full_at_nanos
    }

    /// Takes one call from the bucket. `per_minute` and `burst` must be at least 1.
    ///
    /// # Errors
    /// [`RateExceeded`] with the time to wait, when the bucket is empty. The bucket does not change
    /// then.
    pub fn take(
        &mut self,
        now: Timestamp,
        per_minute: u32,
        burst: u32,
    ) -> Result<(), RateExceeded> {
        let (interval, capacity) = interval_and_capacity(per_minute, burst);
        let now = nanos(now);
        let full_at = self.full_at_nanos.max(now).saturating_add(interval);
        let wait = full_at.saturating_sub(capacity).saturating_sub(now);
        if wait > 0 {
            let wait_micros = wait.saturating_add(NANOS_PER_MICRO - 1) / NANOS_PER_MICRO;
            return Err(RateExceeded { wait_micros });
        }
        self.full_at_nanos = full_at;
        Ok(())
    }

    /// The bucket under another rate. The same number of calls is missing from it, up to `burst`.
    #[must_use]
    pub fn under_new_rate(
        self,
        now: Timestamp,
        old_per_minute: u32,
        per_minute: u32,
        burst: u32,
    ) -> Self {
        let (old_interval, _) = interval_and_capacity(old_per_minute, 1);
        let (interval, _) = interval_and_capacity(per_minute, 1);
        let until_full = self.full_at_nanos.saturating_sub(nanos(now)).max(0);
        let missing = until_full.saturating_add(old_interval.saturating_sub(1)) / old_interval;
        let missing = missing.min(i64::from(burst));
        Self { full_at_nanos: nanos(now).saturating_add(missing.saturating_mul(interval)) }
    }

    /// Returns whether the bucket is full at `now`. A full bucket can be forgotten.
    pub const fn is_full(&self, now: Timestamp) -> bool {
        self.full_at_nanos <= nanos(now)
    }
}

const fn nanos(at: Timestamp) -> i64 {
    at.unix_micros().saturating_mul(NANOS_PER_MICRO)
}

/// The interval between two calls, and the time to fill a bucket, in nanoseconds. Both are rounded
/// up, so that no more calls pass than the rate allows.
fn interval_and_capacity(per_minute: u32, burst: u32) -> (i64, i64) {
    let interval = NANOS_PER_MINUTE.div_ceil(u64::from(per_minute.max(1)));
    let capacity = interval.saturating_mul(u64::from(burst.max(1)));
    (i64::try_from(interval).unwrap_or(i64::MAX), i64::try_from(capacity).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_micros(1_795_219_200_000_000);

    #[test]
    fn two_pass_at_once_under_two_a_minute_and_the_third_waits_half_a_minute() {
        let mut bucket = Gcra::default();
        assert_eq!(bucket.take(NOW, 2, 2), Ok(()));
        assert_eq!(bucket.take(NOW, 2, 2), Ok(()));
        assert_eq!(bucket.take(NOW, 2, 2), Err(RateExceeded { wait_micros: 30_000_000 }));
        assert_eq!(bucket.take(NOW.plus_millis(30_000), 2, 2), Ok(()));
        assert!(bucket.is_full(NOW.plus_millis(90_000)));
    }

    #[test]
    fn in_any_minute_at_most_the_rate_and_the_burst_pass() {
        for (rate, burst) in [(1, 1), (7, 3), (60, 1), (999_999, 10)] {
            let mut bucket = Gcra::default();
            let passed = (0..60_000)
                .filter(|&millis| bucket.take(NOW.plus_millis(millis), rate, burst).is_ok())
                .count();
            assert!(passed <= usize::try_from(rate + burst).unwrap(), "{rate}: {passed}");
            assert!(passed >= usize::try_from(rate.min(60_000)).unwrap(), "{rate}: {passed}");
        }
    }

    #[test]
    fn a_rate_that_is_raised_lets_go_at_once() {
        let mut bucket = Gcra::default();
        assert_eq!(bucket.take(NOW, 1, 1), Ok(()));
        assert_eq!(bucket.take(NOW, 1, 1), Err(RateExceeded { wait_micros: 60_000_000 }));
        bucket = bucket.under_new_rate(NOW, 1, 60, 1);
        assert_eq!(bucket.take(NOW, 60, 1), Err(RateExceeded { wait_micros: 1_000_000 }));
        assert_eq!(bucket.take(NOW.plus_millis(1_000), 60, 1), Ok(()));
    }
}
