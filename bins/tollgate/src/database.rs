//! Opens the database for commands.

use anyhow::{Context, bail};
use tollgate_domain::MerchantId;
use tollgate_store::{DatabaseUrl, Options, Store, merchants};

use crate::config::TollgateConfig;

/// Opens the store, also beside a running service. A missing SQLite file is an error, because its name is
/// probably wrong: a new, empty database would hide that.
pub(crate) fn open(config: &TollgateConfig) -> anyhow::Result<Store> {
    open_existing(config, false)
}

/// As [`open`], also if a newer version of the program has changed the schema in a way that this one does not know.
pub(crate) fn open_newer(config: &TollgateConfig) -> anyhow::Result<Store> {
    open_existing(config, true)
}

fn open_existing(config: &TollgateConfig, accept_newer: bool) -> anyhow::Result<Store> {
    require_file(&config.database_url, "database_url")?;
    // The schema may belong to a running service or to another program, so it is not changed.
    let options = Options { migrate: false, accept_newer, ..config.store_options(false) };
    open_with(config, options)
}

/// As [`open`], for another database, of any cell.
pub(crate) fn open_at(config: &TollgateConfig, url: &DatabaseUrl) -> anyhow::Result<Store> {
    require_file(url, "--to")?;
    let options = Options { migrate: false, cell: None, ..config.store_options(false) };
    Store::open(url, &options).with_context(|| format!("cannot open {url:?}"))
}

fn require_file(url: &DatabaseUrl, option: &str) -> anyhow::Result<()> {
    if let DatabaseUrl::Sqlite(file) = url
        && !file.exists()
    {
        bail!(
            "there is no database at {}: look at `{option}`; `tollgate serve`, `migrate` and \
             `merchant create` make one",
            file.display()
        );
    }
    Ok(())
}

/// As [`open`], and checks that the store has the merchant.
pub(crate) async fn store_of(
    config: &TollgateConfig,
    merchant: MerchantId,
) -> anyhow::Result<Store> {
    let store = open(config)?;
    if store.read(move |conn| merchants::find(conn, merchant)).await?.is_none() {
        bail!("there is no merchant {merchant}: `tollgate merchant list` prints them");
    }
    store.read(move |conn| merchants::require_here(conn, merchant)).await?;
    Ok(store)
}

/// As [`open`], but creates a missing database and migrates the schema, as the configuration says.
pub(crate) fn open_or_create(config: &TollgateConfig) -> anyhow::Result<Store> {
    open_with(config, config.store_options(false))
}

fn open_with(config: &TollgateConfig, options: Options) -> anyhow::Result<Store> {
    Store::open(&config.database_url, &options)
        .with_context(|| format!("cannot open {:?}", config.database_url))
}
