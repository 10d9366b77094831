//! The price lists in the database, which replace the catalogue of the configuration.

use std::sync::Arc;
use std::time::Duration;

use tollgate_gateway::Gateway;
use tollgate_pricing::{Catalog, PriceBook};
use tollgate_store::price_lists::{self, StoredPriceList};
use tollgate_store::{Store, StoreError};

use crate::config::TollgateConfig;
use crate::database::open;

/// The interval at which a node looks for another list.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The prices that calls are charged by. They are those of the configuration if it accepts no lists.
pub(crate) struct CurrentPrices {
    /// The prices of the configuration.
    configured: PriceBook,
    /// Whether lists of the database are used.
    accepts_lists: bool,
    /// The number of the list that is used.
    number: Option<i64>,
}

impl CurrentPrices {
    pub(crate) fn new(config: &TollgateConfig) -> Self {
        let accepts_lists = config.prices_public_key.is_some();
        Self { configured: config.prices.clone(), accepts_lists, number: None }
    }

    /// As [`Self::changed`]. A list that cannot be read is logged and not used.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub(crate) async fn changed_if_readable(
        &mut self,
        store: &Store,
    ) -> Result<Option<PriceBook>, StoreError> {
        match self.changed(store).await {
            Err(cause @ StoreError::Corrupt { .. }) => {
                log::error!("a price list is not used: {cause}");
                Ok(None)
            }
            changed => changed,
        }
    }

    /// The prices with the list of the database, if that is another one than before.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a list that this version cannot read, and others when the database fails.
    async fn changed(&mut self, store: &Store) -> Result<Option<PriceBook>, StoreError> {
        if !self.accepts_lists {
            return Ok(None);
        }
        let known = self.number;
        // A list of half a megabyte is parsed where the database is read, off the threads of calls.
        let read = store.read(move |conn| {
            let found = price_lists::latest(conn, known)?;
            Ok::<_, StoreError>(found.map(|list| (Catalog::from_json(&list.list), list)))
        });
        let Some((catalog, StoredPriceList { number, released, .. })) = read.await? else {
            return Ok(None);
        };
        self.number = Some(number);
        match catalog {
            Ok(catalog) => {
                log::info!("price list {number}, released on {released}, is used");
                Ok(Some(self.configured.clone().with_catalog(catalog)))
            }
            Err(cause) => {
                let value = format!("number {number}: {cause}");
                Err(StoreError::Corrupt { what: "price list", value })
            }
        }
    }

    /// Keeps the prices of a gateway up to date.
    pub(crate) async fn watch(mut self, gateway: Arc<Gateway>) {
        while self.accepts_lists {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.changed_if_readable(&gateway.store).await {
                Ok(Some(prices)) => gateway.set_prices(prices),
                Ok(None) => {}
                Err(cause) => log::debug!("price lists are not read: {cause}"),
            }
        }
    }
}

/// The prices that a service of this configuration charges. The database is opened if it may have a list.
pub(crate) async fn configured_prices(config: &TollgateConfig) -> anyhow::Result<PriceBook> {
    if config.prices_public_key.is_none() {
        return Ok(config.prices.clone());
    }
    let store = open(config)?;
    let prices = prices_of(config, &store).await;
    store.close().await?;
    Ok(prices?)
}

/// As [`configured_prices`], with an open store.
///
/// # Errors
/// Those of [`CurrentPrices::changed`]: a command must not use other prices than services of the version of the list do.
pub(crate) async fn prices_of(
    config: &TollgateConfig,
    store: &Store,
) -> Result<PriceBook, StoreError> {
    let changed = CurrentPrices::new(config).changed(store).await?;
    warn_of_unused(config, store).await?;
    Ok(changed.unwrap_or_else(|| config.prices.clone()))
}

/// Warns if the database has a list that this configuration does not use.
pub(crate) async fn warn_of_unused(
    config: &TollgateConfig,
    store: &Store,
) -> Result<(), StoreError> {
    if config.prices_public_key.is_none()
        && let Some(list) = store.read(|conn| price_lists::latest(conn, None)).await?
    {
        log::warn!(
            "price list {} of the database is not used, because there is no prices_public_key",
            list.number
        );
    }
    Ok(())
}
