//! The lookup of price rows by provider, model and day.

use proptest::prelude::*;
use time::Date;
use time::macros::date;
use tollgate_pricing::{
    Catalog, CatalogFile, Error, ModelPattern, PriceBand, PriceBook, PriceRow, PriceSource, Rate,
    TierPrices, Unit, UnitPrices, Usage,
};

const TODAY: Date = date!(2026 - 11 - 21);

fn row(model: &str, from: Option<Date>, input: u32) -> PriceRow {
    PriceRow {
        provider: "house".to_owned(),
        models: vec![ModelPattern::new(model)],
        effective_from: from,
        prices: UnitPrices { input: Some(Rate::from(input)), ..UnitPrices::default() },
        ..PriceRow::default()
    }
}

fn input_price(catalog: &Catalog, model: &str, on: Date) -> Option<String> {
    Some(catalog.find("house", model, on)?.row.prices.input?.to_string())
}

#[test]
fn exact_ids_go_before_patterns_and_longer_patterns_before_shorter() {
    let catalog = Catalog::new([
        row("*", None, 1),
        row("m-*", None, 2),
        row("m-large*", None, 3),
        row("m-large", None, 4),
    ]);
    for (model, price) in [("other", "1"), ("m-small", "2"), ("m-large-2", "3"), ("m-large", "4")] {
        assert_eq!(input_price(&catalog, model, TODAY).as_deref(), Some(price), "{model}");
    }
}

#[test]
fn a_price_holds_from_its_day_on() {
    let march = date!(2026 - 03 - 13);
    let catalog =
        Catalog::new([row("m", Some(march), 2), row("m", None, 1), row("n", Some(march), 1)]);
    assert_eq!(input_price(&catalog, "m", date!(2026 - 03 - 12)).as_deref(), Some("1"));
    assert_eq!(input_price(&catalog, "m", march).as_deref(), Some("2"));
    assert_eq!(input_price(&catalog, "n", date!(2026 - 03 - 12)), None);
}

#[test]
fn custom_prices_go_before_the_catalogue() {
    let book = PriceBook::new(Catalog::new([row("*", None, 9)]), Catalog::new([row("m", None, 1)]));
    assert_eq!(book.find("house", "m", TODAY).map(|found| found.source), Some(PriceSource::Custom));
    let book = PriceBook::new(Catalog::default(), Catalog::new([row("m", None, 1)]));
    assert_eq!(
        book.find("house", "m", TODAY).map(|found| found.source),
        Some(PriceSource::Catalog)
    );
    assert!(book.find("house", "unheard-of", TODAY).is_none());
}

#[test]
fn prices_of_a_stand_in_hold_where_a_provider_has_none_of_its_own() {
    let of = |provider: &str, model: &str, from: Option<Date>, input: u32| PriceRow {
        provider: provider.to_owned(),
        ..row(model, from, input)
    };
    let custom = [of("house", "a", None, 1), of("maker", "*", None, 2)];
    let listed = [of("house", "b", None, 3), of("maker", "b", None, 4), of("other", "c", None, 5)];
    let mut file = Catalog::new(listed).file().clone();
    file.fallbacks = [("maker".to_owned(), vec!["other".to_owned()])].into();
    let stand_ins = || [("house".to_owned(), "maker".to_owned())].into();
    let input = |book: &PriceBook, provider: &str, model: &str| {
        let found = book.find(provider, model, TODAY)?;
        Some((found.source, found.row.prices.input?.to_string()))
    };
    let is = |source: PriceSource, price: &str| Some((source, price.to_owned()));

    let book = PriceBook::new(Catalog::new(custom.clone()), file.clone().into());
    let book = book.with_stand_ins(stand_ins());
    assert_eq!(input(&book, "house", "a"), is(PriceSource::Custom, "1"));
    // The operator's own prices of the stand-in go before the catalogue's of the provider.
    assert_eq!(input(&book, "house", "b"), is(PriceSource::Custom, "2"));
    assert_eq!(input(&book, "maker", "a"), is(PriceSource::Custom, "2"));

    let book = PriceBook::new(Catalog::default(), file.into()).with_stand_ins(stand_ins());
    assert_eq!(input(&book, "house", "b"), is(PriceSource::Catalog, "3"));
    assert_eq!(input(&book, "maker", "b"), is(PriceSource::Catalog, "4"));
    // The stand-in's own fallbacks.
    assert_eq!(input(&book, "house", "c"), is(PriceSource::Catalog, "5"));
    assert_eq!(input(&book, "house", "d"), None);
    assert_eq!(book.find_all("house", "c", TODAY).len(), 1);
}

#[test]
fn the_models_of_a_stand_in_are_listed_with_the_days_of_the_prices_that_count() {
    let march = Some(date!(2026 - 03 - 13));
    let of_maker = |model: &str| PriceRow {
        provider: "maker".to_owned(),
        effective_from: march,
        ..row(model, None, 1)
    };
    let custom = Catalog::new([row("own", None, 1)]);
    let listed = Catalog::new([of_maker("a"), of_maker("b"), row("a", None, 2)]);
    let book = PriceBook::new(custom, listed);
    let book = book.with_stand_ins([("house".to_owned(), "maker".to_owned())].into());
    let models: Vec<_> = book.models("house", TODAY).into_iter().collect();
    assert_eq!(models, [("a", None), ("b", march), ("own", None)]);
    assert_eq!(book.models("maker", TODAY).len(), 2);
}

#[test]
fn tokens_of_provisioned_capacity_cost_nothing_and_lower_no_bound() {
    let factor = |factor: &str| serde_json::json!({"factor": factor});
    let row: PriceRow = serde_json::from_value(serde_json::json!({
        "provider": "google", "models": ["m"],
        "prices": {"input": "2", "cached_input": "1", "output": "8", "web_search": "0.01"},
        "tiers": {"fast": factor("2"), "us": factor("1.5"), "provisioned": factor("3")},
    }))
    .unwrap();
    let selected = row.prices_for(9, &["us", "provisioned"]);
    assert_eq!(selected.unlisted_tiers, Vec::<String>::new());
    for &unit in Unit::ALL.iter().filter(|unit| unit.counts_tokens()) {
        assert_eq!(selected.prices.price(unit), Some(Rate::ZERO), "{unit:?}");
    }
    assert_eq!(selected.prices.web_search, row.prices.web_search);
    assert_eq!(row.highest_prices(9, &["provisioned"]), row.highest_prices::<&str>(9, &[]));
    let all = row.highest_prices(9, &["fast", "us", "provisioned"]);
    assert_eq!(all.output.map(|rate| rate.to_string()).as_deref(), Some("24"));
}

#[test]
fn a_batch_is_bounded_by_the_prices_of_its_tier_or_else_by_the_standard() {
    let row = |tiers: serde_json::Value| -> PriceRow {
        serde_json::from_value(serde_json::json!({
            "provider": "anthropic", "models": ["m"], "prices": {"input": "2", "cache_write_1h": "4", "output": "8"},
            "bands": [{"above_input_tokens": 100, "input": "20", "output": "40"}], "tiers": tiers,
        }))
        .unwrap()
    };
    let bound = |row: &PriceRow, tokens, tiers: &[&str]| {
        let prices = row.highest_batch_prices(tokens, tiers);
        [prices.input, prices.output].map(|rate| rate.map(|rate| rate.to_string()))
    };
    let pair = |input: &str, output: &str| [Some(input.to_owned()), Some(output.to_owned())];
    let half = row(serde_json::json!({"batch": {"factor": "0.5"}, "us": {"factor": "1.1"}}));
    assert_eq!(bound(&half, 9, &[]), pair("2", "4"));
    assert_eq!(bound(&half, 101, &[]), pair("10", "20"));
    assert_eq!(bound(&half, 9, &["us"]), pair("2.2", "4.4"));
    assert_eq!(bound(&row(serde_json::json!({})), 9, &[]), pair("4", "8"));
    let own = row(serde_json::json!({"batch": {"prices": {"input": "1", "output": "3"}}}));
    assert_eq!(bound(&own, 9, &[]), pair("1", "3"));
}

#[test]
fn prices_of_nothing_are_mistakes_wherever_they_stand() {
    let errors = |row: &str| {
        let file = format!(r#"{{"rows": [{{"provider": "openai", {row}}}]}}"#);
        let found = CatalogFile::from_json(&file).unwrap().row_errors();
        found.into_iter().map(|one| one.text).collect::<Vec<_>>().join("; ")
    };
    let priced =
        |more: &str| errors(&format!(r#""models": ["m"], "prices": {{"input": "1"}}, {more}"#));
    let free = |models: &str| {
        errors(&format!(r#""models": [{models}], "free": true, "prices": {{"input": "0"}}"#))
    };
    assert_eq!(free(r#""m", "m:free""#), "");
    assert_eq!(free(r#""m", "*-m""#), "free: *-m is a pattern, and only ids can be free");
    let nothing = r#"[{"above_input_tokens": 5, "input": "0"}]"#;
    assert_eq!(
        priced(&format!(r#""bands": {nothing}"#)),
        "bands: the one above 5 has no price above 0"
    );
    assert_eq!(
        priced(&format!(r#""tiers": {{"t": {{"prices": {{"input": "1"}}, "bands": {nothing}}}}}"#)),
        "tiers.t.bands: the one above 5 has no price above 0"
    );
    assert_eq!(
        priced(r#""tiers": {"t": {"prices": {"input": "0"}}}"#),
        "tiers.t: has no price above 0"
    );
    assert_eq!(
        priced(r#""tiers": {"t": {"factor": "0"}}"#),
        "tiers.t: a factor of 0 would make every token free"
    );
    assert_eq!(priced(r#""tiers": {"provisioned": {"factor": "0"}}"#), "");
    assert_eq!(
        errors(r#""models": ["m"], "prices": {}, "tiers": {"t": {"prices": {"input": "1"}}}"#),
        "has no price above 0; if that is meant, set free"
    );
}

#[test]
fn a_pattern_that_names_more_goes_before_an_id_found_without_its_date_or_region() {
    let catalog = Catalog::new([
        row("m", None, 1),
        row("m-2026*", None, 2),
        row("n", None, 3),
        row("n*", None, 4),
        row("regional.v.m*", None, 5),
        row("v.m", None, 6),
    ]);
    for (model, price) in [
        ("m", "1"),
        ("m-2025-01-01", "1"),
        ("m-2026-01-01", "2"),
        ("m-20260101", "2"),
        // The pattern is not longer than the id.
        ("n-2026-01-01", "3"),
        ("n-large", "4"),
        ("eu.v.m", "5"),
        ("global.v.m", "6"),
    ] {
        assert_eq!(input_price(&catalog, model, TODAY).as_deref(), Some(price), "{model}");
    }
}

#[test]
fn a_fine_tuned_model_never_takes_the_price_of_its_base() {
    let rows = [row("m*", None, 1), row("*m-large*", None, 2), row("ft:m-large:*", None, 3)];
    let catalog = Catalog::new(rows);
    assert_eq!(input_price(&catalog, "ft:m-large:org::id", TODAY).as_deref(), Some("3"));
    assert_eq!(input_price(&catalog, "ft:m-large-2:org::id", TODAY), None);
    // A pattern for every id includes fine-tuned models.
    let catalog = Catalog::new([row("*", None, 9)]);
    assert_eq!(input_price(&catalog, "ft:m:org::id", TODAY).as_deref(), Some("9"));
}

#[test]
fn a_cost_is_that_of_the_row_and_an_unknown_price_is_an_error() {
    let row = serde_json::json!({"provider": "house", "models": ["m"], "prices": {"input": "1.5", "output": "6"}});
    let file = serde_json::json!({"rows": [row]}).to_string();
    let catalog = Catalog::from_json(&file).unwrap();
    let day = time::macros::date!(2026 - 11 - 01);
    let cost = |model: &str, usage: &Usage| catalog.cost("house", model, day, usage);
    let tokens = Usage::tokens(1_000_000, 500_000);
    assert_eq!(cost("m", &tokens).unwrap().total().unwrap().to_string(), "4.5000000000");
    assert_eq!(cost("other", &tokens), Err(Error::UnknownModel));
    let mut images = Usage::default();
    images.quantities.image = 1;
    assert_eq!(cost("m", &images), Err(Error::UnpricedUnit(Unit::Image)));
    // A cost that the provider reports needs no price.
    images.provider_cost = Some("0.04".parse().unwrap());
    assert_eq!(cost("m", &images).unwrap().total().unwrap().to_string(), "0.0400000000");
    assert_eq!(cost("m", &Usage::tokens(u64::MAX, 0)), Err(Error::Overflow));
}

/// A row with bands above 10 and 20, a tier with a band of its own, and a tier by a factor. Every price
/// identifies its place.
fn row_of_bands_and_tiers(factor: Rate) -> PriceRow {
    let prices = |input: u32| UnitPrices {
        input: Some(Rate::from(input)),
        web_search: Some(Rate::from(7)),
        ..UnitPrices::default()
    };
    let band =
        |above: u64, input: u32| PriceBand { above_input_tokens: above, prices: prices(input) };
    let own = TierPrices::Prices { prices: Box::new(prices(3)), bands: vec![band(15, 30)] };
    PriceRow {
        prices: prices(1),
        bands: vec![band(10, 10), band(20, 20)],
        tiers: [("own".to_owned(), own), ("times".to_owned(), TierPrices::Factor { factor })]
            .into(),
        ..PriceRow::default()
    }
}

proptest! {
    #[test]
    fn a_call_meets_the_prices_of_its_band_and_tiers(
        tokens in 0_u64..40, own: bool, times: bool, unknown: bool, factor in crate::laws::rates(),
    ) {
        let names = [("own", own), ("times", times), ("unknown", unknown)];
        let tiers: Vec<_> = names.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        let row = row_of_bands_and_tiers(factor);
        let selected = row.prices_for(tokens, &tiers);
        let input = match (own, tokens) {
            (true, 0..=15) => 3,
            (true, _) => 30,
            (false, 0..=10) => 1,
            (false, 11..=20) => 10,
            (false, _) => 20,
        };
        let input = Rate::from(input);
        let input = if times { input.times(factor) } else { input };
        prop_assert_eq!(selected.prices.input, Some(input));
        // A unit that is no token has the same price in every tier.
        prop_assert_eq!(selected.prices.web_search, Some(Rate::from(7)));
        prop_assert_eq!(selected.unlisted_tiers.len(), usize::from(unknown));
        // The bound covers every call of at most this number of tokens, whichever of the tiers serve it.
        let bound = row.highest_prices(tokens, &["own", "times", "unknown"]);
        prop_assert!(bound.input >= selected.prices.input);
    }

    /// Whichever of the tiers serve a call, in whichever order.
    #[test]
    fn no_call_costs_more_than_the_highest_prices(
        factors in prop::collection::vec(crate::laws::rates(), 3), served in prop::sample::subsequence(vec!["a", "b", "c", "own"], 0..=4).prop_shuffle(),
        tokens in 0_u64..40,
    ) {
        let mut row = row_of_bands_and_tiers(Rate::from(1));
        for (name, factor) in ["a", "b", "c"].into_iter().zip(factors) {
            row.tiers.insert(name.to_owned(), TierPrices::Factor { factor });
        }
        let highest = row.highest_prices(tokens, &["a", "b", "c", "own"]);
        let prices = row.prices_for(tokens, &served).prices;
        for &unit in Unit::ALL {
            let bound = highest.price(unit);
            prop_assert!(prices.price(unit) <= bound, "{unit:?} {:?} {bound:?}", prices.price(unit));
        }
    }
}
