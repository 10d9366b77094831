//! `tollgate prices update`: a signed price list for all nodes, while they run.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use serde_json::json;
use tollgate_domain::Clock;
use tollgate_price_import::{
    ChangeKind, ImportOptions, ImportedPrices, PriceChange, import_into, needs_review, to_text,
};
use tollgate_pricing::{Catalog, CatalogFile, Unit};
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
    let (bytes, signature) = (read(&place).await?, read(&signature_of(&place)).await?);
    let place = shown(&place);
    if !key.has_signed(&bytes, &String::from_utf8_lossy(&signature)) {
        bail!("{place} is not signed by `prices_public_key`: nothing is changed");
    }
    let text = String::from_utf8(bytes).map_err(|_| anyhow!("{place} is not UTF-8"))?;
    let list = check_catalog(&place, &text).map_err(|errors| anyhow!("{}", errors.join("\n")))?;
    let released = list.released.with_context(|| {
        format!("{place} has no `released`, the day of its release: an older list could replace a newer one")
    })?;

    let now = Clock::system().now();
    // Clocks differ by zones.
    if now.date().next_day().is_some_and(|tomorrow| released > tomorrow) {
        bail!(
            "{place} says that it was released on {released}, which is to come: nothing is changed"
        );
    }
    let store = open(config)?;
    let before = store.read(|conn| price_lists::latest(conn, None)).await?;
    let catalog = match &before {
        Some(stored) => CatalogFile::from_json(&stored.list)?,
        None => config.prices.catalog().file().clone(),
    };
    if catalog.released.is_some_and(|day| day > released) {
        bail!(
            "{place} was released on {released}, before the list that is used: nothing is changed"
        );
    }
    let imported =
        ImportedPrices { rows: list.rows, fallbacks: list.fallbacks, ..ImportedPrices::default() };
    let (mut updated, mut changes) = import_into(&catalog, imported, None, options);
    mark_unclear(&mut changes, &catalog.clone().into(), options);
    report(&changes, mode.json)?;
    if updated.fallbacks != catalog.fallbacks && !mode.accept {
        let text = |fallbacks: &BTreeMap<String, Vec<String>>| json!(fallbacks).to_string();
        bail!(
            "the fallbacks of providers change from {} to {}: nothing is written without --accept",
            text(&catalog.fallbacks),
            text(&updated.fallbacks)
        );
    }
    refuse_unreviewed(&changes, options.max_factor, mode.accept);
    if (&updated.rows, &updated.fallbacks) == (&catalog.rows, &catalog.fallbacks) {
        let text = "No price changes: the list that is used stays.";
        return print(mode.json, &json!({"number": before.map(|stored| stored.number)}), text);
    }
    if mode.dry_run {
        return Ok(());
    }
    updated.released = Some(released);
    updated.sources = list.sources;
    let (number, source) = (before.map(|stored| stored.number), place.clone());
    let text = to_text(&updated);
    let added = store
        .write(move |conn| {
            price_lists::add(conn, number, &released.to_string(), &source, &text, now)
        })
        .await?;
    store.close().await?;
    let number = added.context("another list was accepted meanwhile: run the command again")?;
    if options.from < now.date() {
        log::warn!("calls since {} keep their cost until `tollgate reprice`", options.from);
    }
    print(
        mode.json,
        &json!({"number": number, "released": released.to_string(), "source": place}),
        &format!(
            "Price list {number}, released on {released}, is used by all nodes within 30 seconds."
        ),
    )
}

/// Marks changes that need a review although no factor can be computed: a price that is gone, and one that is added to a model
/// which has had others, by its id or by a pattern. A price by a pattern, or of the unit that stands in, has a factor.
fn mark_unclear(changes: &mut [PriceChange], before: &Catalog, options: &ImportOptions) {
    for change in changes {
        let unit = Unit::ALL.iter().find(|unit| unit.price_key() == change.figure);
        let had = before.find(&change.provider, &change.model, options.from);
        let had = had.map(|listed| unit.and_then(|unit| listed.row.prices.price(*unit)));
        change.refused |= match (change.kind, had, change.new) {
            (ChangeKind::Removed, ..) => true,
            (ChangeKind::Added, Some(Some(old)), Some(new)) => {
                needs_review(old, new, options.max_factor)
            }
            (ChangeKind::Added, Some(None), _) => true,
            _ => false,
        };
    }
}

/// Reads a URL or a file.
async fn read(place: &str) -> anyhow::Result<Vec<u8>> {
    let read = match place.starts_with("https://") || place.starts_with("http://") {
        true => fetch(place, MOST_BYTES).await.map_err(anyhow::Error::from),
        false => std::fs::read(Path::new(place)).map_err(anyhow::Error::from),
    };
    read.with_context(|| format!("cannot read {}", shown(place)))
}

/// A place without what may be secret in a URL.
fn shown(place: &str) -> String {
    match Url::parse(place) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => {
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            let host = url.host_str().unwrap_or_default();
            format!("{}://{host}{port}{}", url.scheme(), url.path())
        }
        _ => place.to_owned(),
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
    fn a_place_is_shown_without_secrets() {
        for (place, expected) in [
            ("prices.json", "prices.json"),
            ("https://u:canary@x.test:8/p.json?t=canary", "https://x.test:8/p.json"),
        ] {
            assert_eq!(shown(place), expected);
        }
    }

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
