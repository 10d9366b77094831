//! Prices as an operator configures them: price rows, a catalogue file, and the providers whose prices
//! apply to other providers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use time::Date;
use tollgate_pricing::{
    Catalog, CatalogFile, ModelPattern, PriceBook, PriceRow, Rate, TierPrices, Unit, UnitPrices,
};
use tollgate_provider::ProviderTable;

use super::section::Section;

/// The price book: the operator's own prices, then the catalogue's.
pub(super) fn prices(
    root: &mut Section<'_>,
    providers: &ProviderTable,
    catalog: Option<&Path>,
) -> Option<PriceBook> {
    let tables = root.take_rows("prices").into_iter().enumerate();
    let rows: Vec<_> = tables
        .map(|(place, row)| {
            price_row(root.subsection(["prices", &place.to_string()], row), providers)
        })
        .collect();
    let catalog = match catalog {
        None => tollgate_prices::catalog().map_err(|why| vec![why.to_string()]),
        Some(file) => read_catalog(file).map(Catalog::from),
    };
    match catalog {
        Ok(catalog) => {
            let stand_ins = stand_ins(root, providers, &catalog);
            Some(PriceBook::new(Catalog::new(rows), catalog).with_stand_ins(stand_ins))
        }
        Err(errors) => {
            errors.iter().for_each(|error| root.add_error("catalog", error));
            None
        }
    }
}

/// A row of `[[prices]]`. A row without a price would admit calls for free, so it must say that this is
/// intended.
fn price_row(mut section: Section<'_>, providers: &ProviderTable) -> PriceRow {
    let provider: Option<String> = section.take("provider");
    let model: Option<String> = section.take("model");
    for (key, value) in [("provider", &provider), ("model", &model)] {
        if value.is_none() {
            section.add_error(key, "is required");
        }
    }
    if provider.as_deref().is_some_and(|name| providers.get(name).is_none()) {
        section.add_error("provider", "is not a provider, built-in or configured");
    }
    if model.as_deref() == Some("") {
        section.add_error("model", "must not be empty");
    }
    let says_free = section.has("free");
    let free: Option<bool> = section.take("free");
    let is_read = says_free == free.is_some();
    let free = free.unwrap_or(false);
    let StatedPrices { mut prices, named, is_positive } = StatedPrices::take(&mut section);
    // A price that could not be read is reported already.
    if let Some(is_positive) = is_positive.filter(|_| is_read) {
        match (!is_positive, free) {
            (true, false) if named == 0 => {
                section.add_issue([], "names no price; what costs nothing has free = true");
            }
            (true, false) => {
                section.add_issue([], "has no price above 0; if that is meant, set free = true");
            }
            (false, true) => section.add_error("free", "has prices above 0"),
            _ => (),
        }
    }
    if free {
        // So that every unit has a price.
        for &unit in Unit::ALL.iter().filter(|unit| unit.parent().is_none()) {
            *prices.get_mut(unit) = Some(Rate::ZERO);
        }
    }
    let effective_from = section.take("effective_from").map(|DateArgument(date)| date);
    let effective_to = section.take("effective_to").map(|DateArgument(date)| date);
    if effective_from.zip(effective_to).is_some_and(|(from, to)| to < from) {
        section.add_error("effective_to", "is before effective_from");
    }
    let max_output_tokens = section.take("max_output_tokens");
    let tiers = tiers(&mut section);
    section.finish();
    PriceRow {
        provider: provider.unwrap_or_default(),
        models: vec![ModelPattern::new(model.unwrap_or_default())],
        effective_from,
        effective_to,
        free,
        max_output_tokens,
        prices,
        tiers,
        ..PriceRow::default()
    }
}

/// The prices that a table names.
struct StatedPrices {
    prices: UnitPrices,
    named: usize,
    /// Whether any is above 0. `None` if one could not be read.
    is_positive: Option<bool>,
}

impl StatedPrices {
    fn take(section: &mut Section<'_>) -> Self {
        let (mut prices, mut named, mut read) = (UnitPrices::default(), 0_usize, Vec::new());
        for &unit in Unit::ALL {
            named = named.saturating_add(usize::from(section.has(unit.price_key())));
            let price: Option<Rate> = section.take(unit.price_key());
            read.extend(price);
            *prices.get_mut(unit) = price;
        }
        let is_positive = read.iter().any(|price| !price.is_zero());
        Self { prices, named, is_positive: (read.len() == named).then_some(is_positive) }
    }
}

/// The tiers of a row, each with a factor or with prices of its own.
fn tiers(row: &mut Section<'_>) -> BTreeMap<String, TierPrices> {
    let mut tiers = BTreeMap::new();
    for (name, table) in row.take_tables("tiers") {
        let mut tier = row.subsection(["tiers", &name], table);
        let has_factor = tier.has("factor");
        let factor: Option<Rate> = tier.take("factor");
        match (has_factor, tier.take_table("prices")) {
            (true, None) => {
                if factor.is_some_and(|factor| factor.is_zero()) {
                    tier.add_error("factor", "must be above 0");
                }
                tiers.extend(factor.map(|factor| (name, TierPrices::Factor { factor })));
            }
            (false, Some(table)) => {
                let mut section = tier.subsection(["prices"], table);
                let StatedPrices { prices, is_positive, .. } = StatedPrices::take(&mut section);
                if is_positive == Some(false) {
                    section.add_issue([], "has no price above 0");
                }
                section.finish();
                let prices = Box::new(prices);
                tiers.insert(name, TierPrices::Prices { prices, bands: Vec::new() });
            }
            (true, Some(_)) | (false, None) => {
                tier.add_issue([], "must have either factor or prices");
            }
        }
        tier.finish();
    }
    tiers
}

/// For each provider with a `price_list`, the provider whose prices apply.
fn stand_ins(
    root: &mut Section<'_>,
    providers: &ProviderTable,
    catalog: &Catalog,
) -> BTreeMap<String, String> {
    // The catalogue also has prices of providers that have no address until they are configured.
    let rows = catalog.file().rows.iter();
    let listed: BTreeSet<&str> = rows.map(|row| row.provider.as_str()).collect();
    let mut stand_ins = BTreeMap::new();
    for provider in providers.iter().filter(|one| one.traits.price_list != one.name) {
        let (name, list) = (&provider.name, &provider.traits.price_list);
        if providers.get(list).is_none() && !listed.contains(list.as_str()) {
            let path = ["providers", name, "price_list"];
            root.add_issue(path, "is not a provider, built-in or configured");
        }
        stand_ins.insert(name.clone(), list.clone());
    }
    stand_ins
}

/// Reads a catalogue file, or returns all of its errors.
pub(crate) fn read_catalog(file: &Path) -> Result<CatalogFile, Vec<String>> {
    let name = file.display();
    let text =
        std::fs::read_to_string(file).map_err(|why| vec![format!("cannot read {name}: {why}")])?;
    check_catalog(&name.to_string(), &text)
}

/// The catalogue in the text of a file, or all of its errors, with the name of the file.
pub(crate) fn check_catalog(name: &str, text: &str) -> Result<CatalogFile, Vec<String>> {
    let catalog = CatalogFile::from_json(text).map_err(|why| vec![format!("{name}: {why}")])?;
    let errors = catalog.row_errors();
    match errors.is_empty() {
        true => Ok(catalog),
        false => Err(errors.iter().map(|error| format!("{name}: {error}")).collect()),
    }
}

/// A date in the configuration or on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DateArgument(pub(crate) Date);

impl FromStr for DateArgument {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let date = serde_json::from_value(serde_json::Value::from(text));
        date.map(Self).map_err(|_| "expected a date such as 2026-11-01")
    }
}

#[cfg(test)]
mod tests {
    use tollgate_pricing::PriceSource;

    use super::super::tests::read;
    use super::super::{ConfigErrors, TollgateConfig};
    use super::*;

    #[test]
    fn a_catalogue_file_is_read_in_place_of_the_built_in_one_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let read = |rows: &str| {
            std::fs::write(folder.path().join("p.json"), format!(r#"{{"rows": [{rows}]}}"#))
                .unwrap();
            let table = "catalog = \"p.json\"".parse().unwrap();
            TollgateConfig::from_parts(table, [], Some(folder.path().to_owned()))
        };
        let config =
            read(r#"{"provider": "openai", "models": ["m"], "prices": {"input": "1"}}"#).unwrap();
        assert_eq!(config.prices.rows().count(), 1);
        let table = [
            (r#"{"provider": "a", "models": ["m"], "prices": {"inputt": "1"}}"#, "unknown field"),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"},
                    "bands": [{"above_input_tokens": 5, "outptu": "1"}]}"#,
                "unknown field",
            ),
            (r#"{"provider": "a", "models": ["m"], "prices": {"input": "0"}}"#, "set free"),
            (
                r#"{"provider": "a", "models": ["m*"], "free": true, "prices": {"input": "0"}}"#,
                "m* is a pattern",
            ),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"},
                    "tiers": {"flex": {"factor": "0"}}}"#,
                "a factor of 0",
            ),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"},
                    "bands": [{"above_input_tokens": 5, "input": "0"}]}"#,
                "has no price above 0",
            ),
            (r#"{"provider": "a", "models": [], "prices": {"input": "1"}}"#, "at least one"),
            (
                r#"{"provider": "a", "models": ["m", "M"], "prices": {"input": "1"}}"#,
                "listed twice",
            ),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"}, "bands": [
                    {"above_input_tokens": 5, "input": "2"}, {"above_input_tokens": 4, "input": "3"}]}"#,
                "must ascend",
            ),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"},
                    "effective_from": "2026-02-01", "effective_to": "2026-01-01"}"#,
                "before effective_from",
            ),
        ];
        for (rows, expected) in table {
            let ConfigErrors(errors) = read(rows).unwrap_err();
            let [error] = errors.as_slice() else { panic!("{errors:?}") };
            assert!(error.starts_with("catalog: ") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_row_that_prices_nothing_is_a_mistake_unless_it_is_meant() {
        let errors = |keys: &str| match read(
            &format!("[[prices]]\nprovider = \"openai\"\nmodel = \"m\"\n{keys}"),
            &[],
        ) {
            Ok(_) => Vec::new(),
            Err(ConfigErrors(errors)) => errors,
        };
        let table = [
            ("", "prices[0]: names no price; what costs nothing has free = true"),
            (
                "max_output_tokens = 5",
                "prices[0]: names no price; what costs nothing has free = true",
            ),
            ("free = false", "prices[0]: names no price; what costs nothing has free = true"),
            (
                "input = \"0\"\noutput = \"0.0\"",
                "prices[0]: has no price above 0; if that is meant, set free = true",
            ),
            ("input = \"1\"\nfree = true", "prices[0].free: has prices above 0"),
        ];
        for (keys, expected) in table {
            assert_eq!(errors(keys), [expected], "{keys}");
        }
        for keys in ["free = true", "input = \"0\"\nfree = true", "input = \"0\"\noutput = \"1\""] {
            assert_eq!(errors(keys), Vec::<String>::new(), "{keys}");
        }
        // A value that cannot be read is one error, not two.
        assert_eq!(errors("input = \"x\"").len(), 1);
        assert_eq!(errors("free = \"maybe\"").len(), 1);
        let ConfigErrors(errors) =
            read("[[prices]]\nprovider = \"openai\"\nmodel = \"\"\ninput = \"1\"", &[])
                .unwrap_err();
        assert_eq!(errors, ["prices[0].model: must not be empty"]);
    }

    #[test]
    fn a_row_may_have_tiers_as_in_the_catalogue() {
        let text = |tiers: &str| {
            format!("[[prices]]\nprovider = \"openai\"\nmodel = \"m\"\ninput = \"2\"\n{tiers}")
        };
        let both = "[prices.tiers.batch]\nfactor = \"0.5\"\n\
            [prices.tiers.priority]\nprices = {input = \"5\", output = \"9\"}";
        let config = read(&text(both), &[]).unwrap();
        let found = config.prices.find("openai", "m", time::macros::date!(2026 - 11 - 21)).unwrap();
        let input = |tier: &str| {
            let price = found.row.prices_for(1, &[tier]).prices.input.unwrap();
            price.to_string()
        };
        assert_eq!(
            (input("batch"), input("priority"), input("flex")),
            ("1".into(), "5".into(), "2".into())
        );
        for (tiers, expected) in [
            ("tiers = 5", "prices[0].tiers: expected tables, such as [providers.openai]"),
            ("tiers.batch = {}", "prices[0].tiers.batch: must have either factor or prices"),
            (
                "tiers.batch = {factor = \"1\", prices = {input = \"1\"}}",
                "prices[0].tiers.batch: must have either factor or prices",
            ),
            ("tiers.batch.factor = \"0\"", "prices[0].tiers.batch.factor: must be above 0"),
            ("tiers.batch.factor = \"x\"", "prices[0].tiers.batch.factor: "),
            (
                "tiers.batch.prices = {input = \"0\"}",
                "prices[0].tiers.batch.prices: has no price above 0",
            ),
            ("tiers.batch.prices = {}", "prices[0].tiers.batch.prices: has no price above 0"),
            (
                "tiers.batch = {factr = \"1\", factor = \"1\"}",
                "prices[0].tiers.batch.factr: is not a key of the configuration; do you mean factor?",
            ),
        ] {
            let ConfigErrors(errors) = read(&text(tiers), &[]).unwrap_err();
            let [error] = errors.as_slice() else { panic!("{errors:?}") };
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn what_is_free_leaves_nothing_without_a_price() {
        let text = "[[prices]]\nprovider = \"openai\"\nmodel = \"m\"\nfree = true";
        let config = read(text, &[]).unwrap();
        let found = config.prices.find("openai", "m", time::macros::date!(2026 - 11 - 21)).unwrap();
        for &unit in Unit::ALL {
            assert_eq!(found.row.prices.price(unit), Some(Rate::ZERO), "{unit:?}");
        }
        assert!(found.row.free);
    }

    const HOUSE: &str = "[providers.house]\nbase_url = \"https://house.example\"\n\
        dialect = \"openai\"\nprice_list = ";

    #[test]
    fn prices_are_those_of_the_price_list_unless_the_provider_has_its_own() {
        let own = "\n[[prices]]\nprovider = \"house\"\nmodel = \"gpt-4o\"\ninput = \"7\"";
        let config = read(&format!("{HOUSE}\"openai\"{own}"), &[]).unwrap();
        let find = |model| {
            let found = config.prices.find("house", model, time::macros::date!(2026 - 11 - 21));
            found.map(|found| (found.row.provider.as_str(), found.source))
        };
        assert_eq!(find("gpt-4o"), Some(("house", PriceSource::Custom)));
        assert_eq!(find("gpt-4o-mini"), Some(("openai", PriceSource::Catalog)));
    }

    #[test]
    fn an_unknown_price_list_is_a_mistake() {
        let ConfigErrors(errors) = read(&format!("{HOUSE}\"opnai\""), &[]).unwrap_err();
        let expected = "providers.house.price_list: is not a provider, built-in or configured";
        assert_eq!(errors, [expected]);
        // Azure is built in, but has no address until it is configured.
        assert!(read(&format!("{HOUSE}\"azure\""), &[]).is_ok());
    }
}
