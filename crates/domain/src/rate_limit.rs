use crate::time::Timestamp;

/// A token bucket by the generic cell rate algorithm: one instant is all its state.
///
/// It refills at `per_minute` calls per 60 s and holds `burst` of them, so in any 60 s at most
/// `per_minute + burst` calls pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gcra {
    /// When the bucket will be full again.
    full_at: Timestamp,
}

/// The bucket is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSoon {
    /// Until the next call passes, in microseconds.
    pub wait_micros: i64,
}

const MICROS_PER_MINUTE: i64 = 60_000_000;

impl Gcra {
    /// Takes one call from the bucket, or tells how long to wait. Neither rate may be zero.
    ///
    /// # Errors
    /// [`TooSoon`] when the bucket is empty; it is unchanged then.
    pub fn take(&mut self, now: Timestamp, per_minute: u32, burst: u32) -> Result<(), TooSoon> {
        let interval = MICROS_PER_MINUTE / i64::from(per_minute.max(1));
        let capacity = interval * i64::from(burst.max(1));
        let full_at = self.full_at.unix_micros().max(now.unix_micros()) + interval;
        let wait_micros = full_at - capacity - now.unix_micros();
        if wait_micros > 0 {
            return Err(TooSoon { wait_micros });
        }
        self.full_at = Timestamp::from_unix_micros(full_at);
        Ok(())
    }

    /// Whether the bucket is full at `now`, so that forgetting it changes nothing.
    pub fn is_full(&self, now: Timestamp) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pass_at_once_under_two_a_minute_and_the_third_waits_half_a_minute() {
        let now = Timestamp::from_unix_micros(1_000_000);
        let mut bucket = Gcra::default();
        assert_eq!(bucket.take(now, 2, 2), Ok(()));
        assert_eq!(bucket.take(now, 2, 2), Ok(()));
        assert_eq!(bucket.take(now, 2, 2), Err(TooSoon { wait_micros: 30_000_000 }));
        assert_eq!(bucket.take(now.plus_millis(30_000), 2, 2), Ok(()));
        assert!(bucket.is_full(now.plus_millis(90_000)));
    }
}
