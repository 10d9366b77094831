//! The state that the operations share.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate_domain::{Clock, SecretKeyId, Timestamp};
use tollgate_gateway::Gateway;
use tollgate_store::Store;

use crate::http::body_memory::{UploadRoom, body_memory};
use crate::http::error::ApiError;
use crate::http::rate_limits::RateLimits;
use crate::metrics::counts::Metrics;
use crate::settings::Settings;

/// The state behind the operations, beside the [`Gateway`] that forwards calls.
pub struct App {
    /// The gateway that forwards calls.
    pub gateway: Arc<Gateway>,
    /// The store.
    pub store: Store,
    /// The operator's choices.
    pub settings: Settings,
    /// The clock of operations.
    pub clock: Clock,
    pub(crate) rate_limits: RateLimits<SecretKeyId>,
    pub(crate) body_memory: Arc<Semaphore>,
    /// The room in the temporary folder for uploads.
    pub(crate) upload_room: UploadRoom,
    pub(crate) metrics: Metrics,
}

impl App {
    /// The state of the operations on the store of a gateway.
    pub fn new(gateway: Arc<Gateway>, settings: Settings) -> Self {
        Self {
            rate_limits: RateLimits::new(settings.standard_rate_per_minute),
            body_memory: body_memory(settings.body_memory_bytes),
            upload_room: UploadRoom::of(settings.job_file_limit_bytes),
            metrics: Metrics::new(settings.commit),
            store: gateway.store.clone(),
            clock: gateway.clock.clone(),
            gateway,
            settings,
        }
    }

    /// Takes one of the operations that a key may call in a minute.
    ///
    /// # Errors
    /// The error of a key that has called too often.
    pub fn take_call(&self, key: SecretKeyId, now: Timestamp) -> Result<(), ApiError> {
        self.rate_limits.take_call(key, now)
    }
}
