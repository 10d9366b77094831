use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tollgate_domain::{Gcra, SecretKeyId, Timestamp};

use super::error::{ApiError, ErrorCode};

/// The standard rate of our own operations: a bucket per secret key, on this node.
#[derive(Debug)]
pub(crate) struct RateLimits {
    per_minute: u32,
    buckets: Mutex<HashMap<SecretKeyId, Gcra>>,
}

/// Beyond this many buckets the full ones are forgotten, which changes nothing.
const MANY: usize = 10_000;

impl RateLimits {
    /// A rate in calls per minute; 0 is none.
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute, buckets: Mutex::default() }
    }

    /// Takes one call from a key's bucket.
    pub(crate) fn take(&self, key: SecretKeyId, now: Timestamp) -> Result<(), ApiError> {
        if self.per_minute == 0 {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > MANY {
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        let bucket = buckets.entry(key).or_default();
        bucket.take(now, self.per_minute, self.per_minute).map_err(|too_soon| {
            let message = format!("This key may make {} calls a minute.", self.per_minute);
            let reset = now.unix_micros().saturating_add(too_soon.wait_micros);
            ApiError::new(ErrorCode::RateLimited, message).retry_after(too_soon.wait_micros).limit(
                self.per_minute,
                0,
                Some(Timestamp::from_unix_micros(reset)),
            )
        })
    }
}
