//! How commands open the database.

use anyhow::{Context, bail};
use tollgate_store::{DatabaseUrl, Options, Store};

use crate::config::Config;

/// Opens the store beside a service that may be running on it. One that is not there is a mistake in its name:
/// to make it would be to say that nothing is wrong with it.
pub(crate) fn open(config: &Config) -> anyhow::Result<Store> {
    if let DatabaseUrl::Sqlite(file) = &config.database_url
        && !file.exists()
    {
        bail!(
            "there is no database at {}: look at `database_url`; `tollgate serve`, `migrate` and \
             `merchant create` make one",
            file.display()
        );
    }
    // Nor does it change the schema below a service that runs, or that of another program.
    open_with(config, Options { migrate: false, ..config.store_options(false) })
}

/// The same; a database that is not there, or not as it should be, is made.
pub(crate) fn open_or_make(config: &Config) -> anyhow::Result<Store> {
    open_with(config, config.store_options(false))
}

fn open_with(config: &Config, options: Options) -> anyhow::Result<Store> {
    Store::open(&config.database_url, &options)
        .with_context(|| format!("cannot open {:?}", config.database_url))
}
