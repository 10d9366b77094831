//! How a price is found.

use time::Date;
use time::macros::date;
use tollgate_pricing::{Catalog, ModelPattern, PriceBook, PriceRow, PriceSource, Rate, UnitPrices};

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
fn the_embedded_catalogue_reads_and_prices_every_row() {
    for row in &Catalog::embedded().unwrap().file().rows {
        assert!(Some(row.prices).is_some_and(|prices| prices != UnitPrices::default()), "{row:?}");
    }
    let catalog = Catalog::embedded().unwrap();
    assert!(catalog.find("openai", "gpt-4o-mini-2024-07-18", TODAY).is_some());
    assert!(catalog.find("anthropic", "claude-sonnet-4-5-20250929", TODAY).is_some());
}

#[test]
fn a_long_prompt_takes_the_prices_of_its_band() {
    let catalog = Catalog::embedded().unwrap();
    let row = catalog.find("anthropic", "claude-sonnet-4-6", date!(2026 - 03 - 01)).unwrap().row;
    let input =
        |tokens| row.prices_for::<&str>(tokens, &[]).prices.input.map(|rate| rate.to_string());
    assert_eq!(input(200_000).as_deref(), Some("3"));
    assert_eq!(input(200_001).as_deref(), Some("6"));
}
