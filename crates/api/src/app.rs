//! What the routes share: the store, the providers, the prices, and the calls on their way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{Clock, Key, KeyHash, KeyKind, MerchantId, SecretKeyId, Timestamp};
use tollgate_pricing::PriceBook;
use tollgate_provider::{AnswerMemory, ProviderTable, Reach, Resolver, Timeouts};
use tollgate_store::{Store, merchants, spend_keys};

use crate::access::AccessLog;
use crate::forward::calls::Calls;
use crate::http::error::ApiError;
use crate::http::rate_limits::RateLimits;
use crate::http::room::room_for_bodies;
use crate::metrics::counts::Metrics;
use crate::tariff::Tariff;

/// Which of the two shapes of the interface responses have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterfaceShape {
    /// With `connection_id`, fees, service charges and totals.
    #[default]
    Current,
    /// With `customer_id`, cost and charge.
    Earlier,
}

/// What to do when a client leaves before its answer has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisconnect {
    /// Read on, within bounds, to learn what the call really used.
    #[default]
    Drain,
    /// Stop, and charge what has passed.
    Cancel,
}

/// What to do with a call whose price is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unpriced {
    /// Refuse it with the operator's key, allow it with the caller's.
    #[default]
    RefuseManaged,
    /// Refuse it.
    Refuse,
    /// Allow it, marked as unpriced.
    Allow,
}

/// How long to wait for clients, and for how many.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// For the head of a connection's first request.
    pub head_timeout: Duration,
    /// For the next piece of a body; and for the whole of one that only trickles.
    pub body_timeout: Duration,
    /// For the next request of a connection.
    pub keep_alive: Duration,
    /// How many connections are open at once; more of them wait.
    pub max_connections: usize,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            // Longer than the minute for which load balancers keep theirs: who closes first must be
            // the one that sends.
            keep_alive: Duration::from_secs(75),
            max_connections: 25_000,
        }
    }
}

/// The ledger's threads, which all calls pass, keep the last core busy: with a worker for that core, too, they
/// take turns on it and wake each other more often than they work.
fn one_less_than_cores() -> NonZeroUsize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(cores.saturating_sub(1)).unwrap_or(NonZeroUsize::MIN)
}

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Opens the operator's routes; they are off without one.
    pub operator_token: Option<String>,
    /// The shape of responses.
    pub shape: InterfaceShape,
    /// What to do when a client leaves.
    pub on_disconnect: OnDisconnect,
    /// What to do without a price.
    pub unpriced: Unpriced,
    /// How long a call whose client has left is read on at most.
    pub disconnect_drain_max: Duration,
    /// How many bytes more are read then at most.
    pub disconnect_drain_max_bytes: u64,
    /// How large a forwarded body may be.
    pub forward_body_limit_bytes: usize,
    /// How large a body of our own operations may be.
    pub body_limit_bytes: usize,
    /// How much memory bodies that are on their way may take, all together.
    pub body_memory_bytes: usize,
    /// How much memory answers that are kept to be read may take, all together. Beyond it only their
    /// beginning and end are kept.
    pub answer_memory_bytes: usize,
    /// How many of our own operations a key may ask for in a minute; 0 is without limit.
    pub standard_rate_per_minute: u32,
    /// How long to wait for providers.
    pub timeouts: Timeouts,
    /// How long to wait for clients.
    pub clients: Clients,
    /// How many threads forward calls and answer, each with an event loop and connections of its own.
    pub workers: NonZeroUsize,
    /// Which URLs webhooks may have.
    pub webhooks: Reach,
    /// Who says which addresses the names of providers and webhooks have.
    pub resolver: Resolver,
    /// Who writes a line for each request, if anybody does.
    pub access_log: Option<AccessLog>,
    /// The commit that the program was built from, for the metrics.
    pub commit: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            operator_token: None,
            shape: InterfaceShape::default(),
            on_disconnect: OnDisconnect::default(),
            unpriced: Unpriced::default(),
            disconnect_drain_max: Duration::from_secs(900),
            disconnect_drain_max_bytes: 64 * 1024 * 1024,
            forward_body_limit_bytes: 32 * 1024 * 1024,
            body_limit_bytes: 1024 * 1024,
            body_memory_bytes: 512 * 1024 * 1024,
            answer_memory_bytes: 128 * 1024 * 1024,
            standard_rate_per_minute: 1_000,
            timeouts: Timeouts::default(),
            clients: Clients::default(),
            workers: one_less_than_cores(),
            webhooks: Reach::default(),
            resolver: Resolver::System,
            access_log: None,
            commit: "unknown",
        }
    }
}

/// The application behind the routes.
pub struct App {
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) providers: ProviderTable,
    pub(crate) prices: PriceBook,
    pub(crate) clock: Clock,
    pub(crate) rate_limits: RateLimits<SecretKeyId>,
    /// Of those who sign in to the dashboard, by where they come from.
    pub(crate) sign_ins: RateLimits<IpAddr>,
    pub(crate) room_for_bodies: Arc<Semaphore>,
    pub(crate) answer_memory: Arc<AnswerMemory>,
    pub(crate) calls: Calls,
    pub(crate) metrics: Metrics,
    known_keys: RwLock<HashMap<KeyHash, KeyOwner>>,
}

/// Whose key it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyOwner {
    pub(crate) merchant_id: MerchantId,
    pub(crate) key: CallKey,
}

/// Only keys that were valid are remembered, so nobody can fill this but merchants; beyond so many
/// it is begun anew.
const KNOWN_KEYS: usize = 10_000;

/// How often somebody may try to sign in to the dashboard. One that succeeds does not count.
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
            room_for_bodies: room_for_bodies(settings.body_memory_bytes),
            answer_memory: Arc::new(AnswerMemory::new(settings.answer_memory_bytes)),
            calls: Calls::default(),
            metrics: Metrics::new(&providers, settings.commit),
            known_keys: RwLock::default(),
            store,
            settings,
            providers,
            prices,
            clock,
        }
    }

    /// What calls cost that come in at this instant.
    pub(crate) fn tariff(&self, at: Timestamp) -> Tariff<'_> {
        let unpriced = self.settings.unpriced;
        Tariff { providers: &self.providers, prices: &self.prices, unpriced, at }
    }

    /// The calls on their way, to drain them.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Whose key this is. It may be one that was deleted or rotated a moment ago: what an admission
    /// allows is decided in the store, every time.
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

    /// Forgets a key that was found to be deleted.
    pub(crate) fn forget_key(&self, key: CallKey) {
        let mut known = self.known_keys.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, owner| owner.key != key);
    }
}
