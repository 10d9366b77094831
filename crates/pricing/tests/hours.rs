//! Prices that apply only at some hours of the day.

use serde_json::json;
use time::macros::{date, time};
use time::{Date, Time};
use tollgate_pricing::{Catalog, CatalogFile, PriceBook, PriceSource, ServedCall, Usage};

const TODAY: Date = date!(2026 - 11 - 21);

fn file(rows: &[&str]) -> CatalogFile {
    let text = format!(r#"{{"rows": [{}]}}"#, rows.join(","));
    CatalogFile::from_json(&text).unwrap_or_else(|why| unreachable!("{why}"))
}

/// A row of `m` with an input price, preceded by other keys.
fn row(keys: &str, input: &str) -> String {
    format!(r#"{{"provider": "openai", "models": ["m"], {keys} "prices": {{"input": "{input}"}}}}"#)
}

fn at_hours(from: &str, to: &str) -> String {
    format!(r#""hours": {{"from": "{from}", "to": "{to}"}},"#)
}

fn catalog(rows: &[String]) -> Catalog {
    file(&rows.iter().map(String::as_str).collect::<Vec<_>>()).into()
}

fn input_at(catalog: &Catalog, day: Date, at: Time) -> Option<String> {
    Some(catalog.find("openai", "m", (day, at))?.row.prices.input?.to_string())
}

#[test]
fn a_row_for_some_hours_goes_before_the_one_for_the_day_and_only_at_its_hours() {
    // In either order of the rows.
    for turned in [false, true] {
        let mut rows = [row(&at_hours("22:00", "04:00"), "2"), row("", "1")];
        if turned {
            rows.reverse();
        }
        let catalog = catalog(&rows);
        for (at, price) in [
            (time!(21:59:59), "1"),
            (time!(22:00), "2"),
            (time!(0:00), "2"),
            (time!(3:59:59.999), "2"),
            (time!(4:00), "1"),
        ] {
            assert_eq!(input_at(&catalog, TODAY, at).as_deref(), Some(price), "{at}");
        }
        // Without a time, the prices of the hours do not apply.
        let whole = catalog.find("openai", "m", TODAY).unwrap();
        assert_eq!(whole.row.hours, None);
    }
}

#[test]
fn the_latest_day_counts_before_the_hours() {
    let rows = [
        row(&at_hours("01:00", "04:00"), "2"),
        row("", "1"),
        row(r#""effective_from": "2026-12-01","#, "5"),
    ];
    let catalog = catalog(&rows);
    let december = date!(2026 - 12 - 01);
    assert_eq!(input_at(&catalog, TODAY, time!(2:00)).as_deref(), Some("2"));
    assert_eq!(input_at(&catalog, december, time!(2:00)).as_deref(), Some("5"));
    assert_eq!(catalog.rows_on(TODAY).count(), 2);
    assert_eq!(catalog.rows_on(december).count(), 1);
    // Hours that begin later leave the rest of the day as it was.
    let later = format!(r#""effective_from": "2026-12-01", {}"#, at_hours("01:00", "04:00"));
    let catalog = self::catalog(&[row("", "1"), row(&later, "2")]);
    assert_eq!(input_at(&catalog, december, time!(2:00)).as_deref(), Some("2"));
    assert_eq!(input_at(&catalog, december, time!(5:00)).as_deref(), Some("1"));
    assert_eq!(catalog.rows_on(december).count(), 2);
}

#[test]
fn all_rows_of_a_day_are_found_each_once() {
    let rows = [
        row(&at_hours("01:00", "04:00"), "2"),
        row(&at_hours("06:00", "10:00"), "3"),
        row("", "1"),
    ];
    let list = catalog(&rows);
    let found = |custom: &[String]| -> Vec<(String, PriceSource)> {
        let book = PriceBook::new(catalog(custom), list.clone());
        let all = book.find_all("openai", "m", TODAY);
        all.iter().map(|one| (one.row.prices.input.unwrap().to_string(), one.source)).collect()
    };
    let catalogs = |input: &str| (input.to_owned(), PriceSource::Catalog);
    assert_eq!(found(&[]), [catalogs("1"), catalogs("2"), catalogs("3")]);
    // The operator's own price applies to all hours.
    assert_eq!(found(&[row("", "9")]), [("9".to_owned(), PriceSource::Custom)]);
}

#[test]
fn a_call_is_priced_by_the_hour_and_says_so() {
    let list = catalog(&[row(&at_hours("01:00", "04:00"), "2"), row("", "1")]);
    let book = PriceBook::new(Catalog::default(), list);
    let usage = Usage::tokens(1_000_000, 0);
    let priced = |time: Option<Time>| {
        let served = ServedCall {
            provider: "openai",
            models: &["m"],
            tiers: &[],
            on: TODAY,
            time,
            usage: &usage,
            parts: &[],
        };
        let priced = book.price(&served).unwrap();
        (priced.base.input.to_string(), serde_json::to_value(&priced.applied[0]).unwrap())
    };
    let (cost, applied) = priced(Some(time!(3:59)));
    assert_eq!(cost, "2.0000000000");
    assert_eq!(applied["hours"], json!({"from": "01:00", "to": "04:00"}));
    let (cost, applied) = priced(Some(time!(4:00)));
    assert_eq!((&*cost, applied.get("hours")), ("1.0000000000", None));
    assert_eq!(priced(None).0, "1.0000000000");
}

#[test]
fn rows_for_the_same_hours_or_hours_that_overlap_are_mistakes() {
    let errors = |rows: &[String]| -> Vec<String> {
        let file = file(&rows.iter().map(String::as_str).collect::<Vec<_>>());
        file.row_errors().iter().map(|one| one.text.clone()).collect()
    };
    let (early, late) = (at_hours("01:00", "04:00"), at_hours("04:00", "10:00"));
    let none: [&str; 0] = [];
    assert_eq!(errors(&[row("", "1"), row(&early, "2"), row(&late, "2")]), none);
    assert_eq!(
        errors(&[row(&early, "1"), row(&early, "2")]),
        ["m is listed twice for the same day and hours"]
    );
    assert_eq!(
        errors(&[row(&early, "1"), row(&at_hours("22:00", "01:01"), "2")]),
        ["hours: 22:00 to 01:01 overlap 01:00 to 04:00, for which m is listed, too"]
    );
    assert_eq!(errors(&[row("", "1"), row("", "2")]), ["m is listed twice for the same day"]);
}
