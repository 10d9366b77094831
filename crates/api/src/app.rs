//! The state that the operations share.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate_domain::{Clock, SecretKeyId};
use tollgate_gateway::Gateway;
use tollgate_store::Store;

use crate::http::body_memory::body_memory;
use crate::http::rate_limits::RateLimits;
use crate::metrics::counts::Metrics;
use crate::settings::Settings;

/// The state behind the operations, beside the [`Gateway`] that forwards calls.
pub struct App {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) rate_limits: RateLimits<SecretKeyId>,
    /// The attempts to sign in to the dashboard, by IP address.
    pub(crate) sign_ins: RateLimits<IpAddr>,
    pub(crate) body_memory: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
}

/// The attempts to sign in to the dashboard in a minute. One that succeeds does not count.
const SIGN_INS_PER_MINUTE: u32 = 10;

impl App {
    /// The state of the operations on the store of a gateway.
    pub fn new(gateway: Arc<Gateway>, settings: Settings) -> Self {
        Self {
            rate_limits: RateLimits::new(settings.standard_rate_per_minute),
            sign_ins: RateLimits::new(SIGN_INS_PER_MINUTE),
            body_memory: body_memory(settings.body_memory_bytes),
            metrics: Metrics::new(settings.commit),
            store: gateway.store.clone(),
            clock: gateway.clock.clone(),
            gateway,
            settings,
        }
    }
}
