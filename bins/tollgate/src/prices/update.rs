//! `tollgate prices update`: a signed price list for all nodes, while they run.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use serde_json::json;
use tollgate_domain::Clock;
use tollgate_price_import::{ImportOptions, ImportedPrices, import_into, to_text};
use tollgate_pricing::CatalogFile;
use tollgate_provider::fetch;
use tollgate_store::price_lists;
use url::Url;

use super::changes::{refuse_unreviewed, report};
use crate::config::{TollgateConfig, check_catalog};
use crate::database::open;
use crate::output::print;

/// The largest list. The built-in one has 0.5 MB.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// The way in which a list is taken over.
pub(super) struct UpdateMode {
    /// Whether changes beyond the limit are accepted.
    pub(super) accept: bool,
    /// Whether nothing is written.
    pub(super) dry_run: bool,
    /// Whether the output is JSON.
    pub(super) json: bool,
}

pub(super) async fn run(
    config: &TollgateConfig,
    place: Option<String>,
    options: &ImportOptions,
    mode: UpdateMode,
) -> anyhow::Result<()> {
    let key = config.prices_public_key.ok_or_else(|| {
        anyhow!("no list is accepted: set `prices_public_key` in the configuration")
    })?;
    let place = place.or_else(|| config.prices_url.clone());
    let place = place.context("name the list, or set `prices_url` in the configuration")?;
    let bytes = read(&place).await?;
    let signature = read(&signature_of(&place)).await?;
    if !key.has_signed(&bytes, &String::from_utf8_lossy(&signature)) {
        bail!("{place} is not signed by `prices_public_key`: nothing is changed");
    }
    let text = String::from_utf8(bytes).map_err(|_| anyhow!("{place} is not UTF-8"))?;
    let list = check_catalog(&place, &text).map_err(|errors| anyhow!("{}", errors.join("\n")))?;
    let released = list.released.with_context(|| {
        format!("{place} has no `released`, the day of its release: an older list could replace a newer one")
    })?;

    let store = open(config)?;
    let before = store.read(|conn| price_lists::latest(conn, None)).await?;
    let catalog = match &before {
        Some(stored) => CatalogFile::from_json(&stored.list)?,
        None => config.prices.catalog().file().clone(),
    };
    if catalog.released.is_some_and(|day| day > released) {
        bail!(
            "{place} was released on {released}, and the list that is used later: nothing is changed"
        );
    }
    let imported =
        ImportedPrices { rows: list.rows, fallbacks: list.fallbacks, ..ImportedPrices::default() };
    let (mut updated, changes) = import_into(&catalog, imported, None, options);
    report(&changes, mode.json)?;
    refuse_unreviewed(&changes, options.max_factor, mode.accept);
    if mode.dry_run {
        return Ok(());
    }
    updated.released = Some(released);
    updated.sources = list.sources;
    let (number, source) = (before.map(|stored| stored.number), place.clone());
    let (text, now) = (to_text(&updated), Clock::system().now());
    let added = store
        .write(move |conn| {
            price_lists::add(conn, number, &released.to_string(), &source, &text, now)
        })
        .await?;
    store.close().await?;
    let number = added.context("another list was accepted meanwhile: run the command again")?;
    print(
        mode.json,
        &json!({"number": number, "released": released.to_string(), "source": place}),
        &format!(
            "Price list {number}, released on {released}, is used by all nodes within 30 seconds."
        ),
    )
}

/// Reads a URL or a file.
async fn read(place: &str) -> anyhow::Result<Vec<u8>> {
    match place.starts_with("https://") || place.starts_with("http://") {
        true => fetch(place, MOST_BYTES).await.with_context(|| format!("cannot read {place}")),
        false => std::fs::read(Path::new(place)).with_context(|| format!("cannot read {place}")),
    }
}

/// The place of the signature of a list. The query of a URL stays.
fn signature_of(place: &str) -> String {
    match Url::parse(place) {
        Ok(mut url) if matches!(url.scheme(), "http" | "https") => {
            url.set_path(&format!("{}.sig", url.path()));
            url.into()
        }
        _ => format!("{place}.sig"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_beside_the_list() {
        for (place, expected) in [
            ("prices.json", "prices.json.sig"),
            ("/etc/p.json", "/etc/p.json.sig"),
            ("https://x.test/p.json", "https://x.test/p.json.sig"),
            ("https://x.test/p.json?v=1", "https://x.test/p.json.sig?v=1"),
        ] {
            assert_eq!(signature_of(place), expected);
        }
    }
}
