//! Invented price lists, and short texts for rows.

use time::macros::date;
use tollgate_price_import::{
    ImportFormat, ImportOptions, ImportedPrices, PriceChange, import_into, to_text,
};
use tollgate_pricing::{CatalogFile, ModelPattern, PriceRow, Rate, Unit, UnitPrices};

/// A price list in the format of genai-prices with these models of OpenAI.
pub(crate) fn genai_prices(models: &str) -> ImportedPrices {
    let text = format!(r#"[{{"id": "openai", "name": "OpenAI", "models": [{models}]}}]"#);
    ImportFormat::GenaiPrices.read(&text).unwrap_or_else(|why| unreachable!("{why}"))
}

/// A price list in LiteLLM's format with these entries.
pub(crate) fn litellm(entries: &str) -> ImportedPrices {
    ImportFormat::Litellm
        .read(&format!("{{{entries}}}"))
        .unwrap_or_else(|why| unreachable!("{why}"))
}

/// The patterns of a row.
pub(crate) fn models(row: &PriceRow) -> Vec<&str> {
    row.models.iter().map(ModelPattern::as_str).collect()
}

/// The prices of a row as `unit price` pairs, in the order of the units.
pub(crate) fn prices(prices: &UnitPrices) -> String {
    let units = Unit::ALL
        .iter()
        .filter_map(|&unit| Some(format!("{} {}", unit.price_key(), (*prices.get(unit))?)));
    units.collect::<Vec<_>>().join(", ")
}

/// The standard prices of a row.
pub(crate) fn standard(row: &PriceRow) -> String {
    prices(&row.prices)
}

/// The prices of a row for a prompt of `tokens` in a tier.
pub(crate) fn in_tier(row: &PriceRow, tokens: u64, tier: &str) -> String {
    let selected = row.prices_for(tokens, &[tier]);
    assert!(selected.unlisted_tiers.is_empty(), "no tier {tier}");
    prices(&selected.prices)
}

/// The file after an import on 2026-11-21, and what changes.
pub(crate) fn import(
    file: &CatalogFile,
    list: ImportedPrices,
    format: ImportFormat,
) -> (CatalogFile, Vec<PriceChange>) {
    let from = date!(2026 - 11 - 21);
    let options = ImportOptions { from, max_factor: Rate::from(3), only_missing: false };
    let (updated, changes) = import_into(file, list, Some(format), &options);
    assert_eq!(updated.row_errors(), [], "{}", to_text(&updated));
    (updated, changes)
}
