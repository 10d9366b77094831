//! The gateway: the state that all calls share.

use std::sync::{Arc, PoisonError, RwLock};

use tollgate_domain::admission::CallKey;
use tollgate_domain::{Clock, Timestamp};
use tollgate_pricing::PriceBook;
use tollgate_provider::ProviderTable;
use tollgate_store::Store;
use tollgate_usage::ResponseMemory;

use crate::credential::Credential;
use crate::error::CallError;
use crate::in_flight::InFlightCalls;
use crate::keys::{KeyOwner, KnownKeys};
use crate::metrics::CallMetrics;
use crate::open_sockets::OpenSockets;
use crate::settings::CallSettings;
use crate::tariff::Tariff;

/// The state that all calls of a process share: store, providers, prices, and the calls in flight.
pub struct Gateway {
    /// The store that admits and settles calls.
    pub store: Store,
    /// The providers that calls may go to.
    pub providers: ProviderTable,
    /// The clock of calls.
    pub clock: Clock,
    /// The operator's choices.
    pub settings: CallSettings,
    /// The calls in flight.
    pub calls: InFlightCalls,
    /// The open sockets.
    pub sockets: OpenSockets,
    /// The figures of calls.
    pub metrics: CallMetrics,
    prices: RwLock<PriceBook>,
    known_keys: KnownKeys,
    pub(crate) answer_memory: Arc<ResponseMemory>,
    /// The memory of answers that wait for their cost.
    pub(crate) withheld_memory: Arc<ResponseMemory>,
}

impl Gateway {
    /// A gateway on an open store.
    pub fn new(
        store: Store,
        settings: CallSettings,
        providers: ProviderTable,
        prices: PriceBook,
        clock: Clock,
    ) -> Self {
        Self {
            answer_memory: Arc::new(ResponseMemory::new(settings.answer_memory_bytes)),
            withheld_memory: Arc::new(ResponseMemory::new(settings.answer_memory_bytes)),
            calls: InFlightCalls::default(),
            sockets: OpenSockets::default(),
            metrics: CallMetrics::new(&providers),
            known_keys: KnownKeys::default(),
            store,
            providers,
            prices: RwLock::new(prices),
            clock,
            settings,
        }
    }

    /// The prices of the providers, as they are now.
    pub fn prices(&self) -> PriceBook {
        self.prices.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the prices, for calls in flight as well. A call is priced by the prices of the moment when it came in.
    pub fn set_prices(&self, prices: PriceBook) {
        *self.prices.write().unwrap_or_else(PoisonError::into_inner) = prices;
    }

    /// The prices of calls that come in at this instant.
    pub fn tariff(&self, at: Timestamp) -> Tariff<'_> {
        let unpriced = self.settings.unpriced;
        Tariff { providers: &self.providers, prices: self.prices(), unpriced, at }
    }

    /// The owner of the key of a credential. The key may have been deleted or rotated a moment ago: each admission
    /// decides again in the store.
    ///
    /// # Errors
    /// [`CallError::CredentialInvalid`] for a key that does not exist, or the error of a text that is no credential if
    /// another service made it. [`CallError::Store`] if the store fails.
    pub async fn owner_of(&self, credential: &Credential) -> Result<KeyOwner, CallError> {
        let owner = self.known_keys.owner_of(&self.store, &credential.key).await?;
        owner.ok_or_else(|| credential.unknown())
    }

    /// Forgets a key that has been found deleted.
    pub fn forget_key(&self, key: CallKey) {
        self.known_keys.forget(key);
    }
}
