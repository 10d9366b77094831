//! Rate limits on this node.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate_domain::{Gcra, RateExceeded, SecretKeyId, Timestamp};

use super::error::{ApiError, ErrorCode};

/// A rate limit for each of a kind of owner, with a bucket for each, on this node.
#[derive(Debug)]
pub struct RateLimits<Whose> {
    per_minute: u32,
    buckets: Mutex<HashMap<Whose, Gcra>>,
}

/// The number of buckets beyond which the full ones are forgotten. The limits stay the same.
const MANY: usize = 10_000;

impl<Whose: Eq + Hash> RateLimits<Whose> {
    /// The limits at a rate in calls per minute; 0 is no limit.
    pub fn new(per_minute: u32) -> Self {
        Self { per_minute, buckets: Mutex::default() }
    }

    /// Takes one unit from a bucket.
    ///
    /// # Errors
    /// [`RateExceeded`] when the bucket is empty.
    pub fn take(&self, whose: Whose, now: Timestamp) -> Result<(), RateExceeded> {
        if self.per_minute == 0 {
            return Ok(());
        }
        let mut buckets = self.buckets();
        if buckets.len() > MANY {
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        let bucket = buckets.entry(whose).or_default();
        bucket.take(now, self.per_minute, self.per_minute)
    }

    /// Fills a bucket again.
    pub fn forget(&self, whose: &Whose) {
        self.buckets().remove(whose);
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<Whose, Gcra>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RateLimits<SecretKeyId> {
    /// Takes one of the operations that a key may call, which are not forwards.
    pub(crate) fn take_call(&self, key: SecretKeyId, now: Timestamp) -> Result<(), ApiError> {
        self.take(key, now).map_err(|too_soon| {
            let message = format!("This key may make {} calls a minute.", self.per_minute);
            let reset = now.unix_micros().saturating_add(too_soon.wait_micros);
            ApiError::new(ErrorCode::RateLimited, message)
                .retry_after(too_soon.wait_micros)
                .with_limit(self.per_minute, 0, Some(Timestamp::from_unix_micros(reset)))
        })
    }
}
