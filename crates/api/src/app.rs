//! The state that the routes share: store, providers, prices, and calls in flight.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Semaphore;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{Clock, Key, KeyHash, KeyKind, MerchantId, SecretKeyId, Timestamp};
use tollgate_pricing::PriceBook;
use tollgate_provider::ProviderTable;
use tollgate_store::{Store, merchants, spend_keys};
use tollgate_usage::ResponseMemory;

use crate::forward::calls::InFlightCalls;
use crate::http::body_memory::body_memory;
use crate::http::error::ApiError;
use crate::http::rate_limits::RateLimits;
use crate::metrics::counts::Metrics;
use crate::settings::Settings;
use crate::tariff::Tariff;

/// The application behind the routes.
pub struct App {
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) providers: ProviderTable,
    pub(crate) prices: PriceBook,
    pub(crate) clock: Clock,
    pub(crate) rate_limits: RateLimits<SecretKeyId>,
    /// The attempts to sign in to the dashboard, by IP address.
    pub(crate) sign_ins: RateLimits<IpAddr>,
    pub(crate) body_memory: Arc<Semaphore>,
    pub(crate) answer_memory: Arc<ResponseMemory>,
    pub(crate) calls: InFlightCalls,
    pub(crate) metrics: Metrics,
    known_keys: RwLock<HashMap<KeyHash, KeyOwner>>,
}

/// The merchant of a key, and the key itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyOwner {
    pub(crate) merchant_id: MerchantId,
    pub(crate) key: CallKey,
}

/// The number of remembered keys at which all are forgotten. Only valid keys are remembered, so only
/// merchants can fill the map.
const KNOWN_KEYS: usize = 10_000;

/// The attempts to sign in to the dashboard in a minute. One that succeeds does not count.
const SIGN_INS_PER_MINUTE: u32 = 10;

impl App {
    /// An application on an open store.
    pub fn new(
        store: Store,
        settings: Settings,
        providers: ProviderTable,
        prices: PriceBook,
        clock: Clock,
    ) -> Self {
        Self {
            rate_limits: RateLimits::new(settings.standard_rate_per_minute),
            sign_ins: RateLimits::new(SIGN_INS_PER_MINUTE),
            body_memory: body_memory(settings.body_memory_bytes),
            answer_memory: Arc::new(ResponseMemory::new(settings.answer_memory_bytes)),
            calls: InFlightCalls::default(),
            metrics: Metrics::new(&providers, settings.commit),
            known_keys: RwLock::default(),
            store,
            settings,
            providers,
            prices,
            clock,
        }
    }

    /// The prices of calls that come in at this instant.
    pub(crate) fn tariff(&self, at: Timestamp) -> Tariff<'_> {
        let unpriced = self.settings.unpriced;
        Tariff { providers: &self.providers, prices: &self.prices, unpriced, at }
    }

    /// The calls in flight, to drain them.
    pub fn calls(&self) -> &InFlightCalls {
        &self.calls
    }

    /// The owner of a key. The key may have been deleted or rotated a moment ago: each admission decides
    /// again in the store.
    pub(crate) async fn owner_of(&self, key: &Key) -> Result<KeyOwner, ApiError> {
        let hash = key.hash();
        let known =
            self.known_keys.read().unwrap_or_else(PoisonError::into_inner).get(&hash).copied();
        if let Some(owner) = known {
            return Ok(owner);
        }
        let owner = match key.kind() {
            KeyKind::Secret => {
                let find = move |conn: &mut _| merchants::find_secret_key(conn, &hash);
                self.store.read(find).await?.map(|found| KeyOwner {
                    merchant_id: found.merchant_id,
                    key: CallKey::Secret(found.secret_key_id),
                })
            }
            KeyKind::Spend => {
                let find = move |conn: &mut _| spend_keys::find_by_hash(conn, &hash);
                self.store.read(find).await?.map(|found| KeyOwner {
                    merchant_id: found.merchant_id,
                    key: CallKey::Spend(found.spend_key_id, hash),
                })
            }
        };
        let owner = owner.ok_or_else(ApiError::auth_invalid)?;
        let mut known = self.known_keys.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_KEYS {
            known.clear();
        }
        known.insert(hash, owner);
        Ok(owner)
    }

    /// Forgets a key that has been found deleted.
    pub(crate) fn forget_key(&self, key: CallKey) {
        let mut known = self.known_keys.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, owner| owner.key != key);
    }
}
