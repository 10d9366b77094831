//! The import of prices that apply only at some hours of the day.

use time::macros::{date, time};
use time::{Date, Time};
use tollgate_price_import::{ImportFormat, ImportedPrices, PriceChange, disagreements, fill};
use tollgate_pricing::{Catalog, CatalogFile, Rate};

use crate::common::{genai_prices, import, in_tier, litellm, models, prices, standard};

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

fn of(list: &ImportedPrices) -> Vec<(Option<Date>, String, String)> {
    let hours = |row: &tollgate_pricing::PriceRow| {
        row.hours.map(|hours| hours.to_string()).unwrap_or_default()
    };
    list.rows.iter().map(|row| (row.effective_from, hours(row), standard(row))).collect()
}

/// Two prices by date, and two for the hours of the peak.
fn with_peak(input: &str, peak: &str) -> ImportedPrices {
    genai_prices(&format!(
        r#"{{"id": "m", "match": {{"equals": "m"}}, "prices": [
            {{"prices": {{"input_mtok": 4}}}},
            {{"constraint": {{"start_date": "2026-09-10"}}, "prices": {{"input_mtok": {input}}}}},
            {{"constraint": {{"start_time": "01:00:00+00:00", "end_time": "04:00:00+00:00"}},
              "prices": {{"input_mtok": {peak}}}}},
            {{"constraint": {{"start_time": "14:00:00+08:00", "end_time": "18:00:00+08:00"}},
              "prices": {{"input_mtok": {peak}}}}}]}}"#
    ))
}

#[test]
fn prices_by_the_time_of_day_are_rows_for_hours_from_the_latest_day_on() {
    let since = Some(date!(2026 - 09 - 10));
    let some = |from, hours: &str, prices: &str| (from, hours.to_owned(), prices.to_owned());
    assert_eq!(
        of(&with_peak("1", "2")),
        [
            some(None, "", "input 4"),
            some(since, "", "input 1"),
            some(since, "01:00 to 04:00", "input 2"),
            some(since, "06:00 to 10:00", "input 2"),
        ]
    );
}

#[test]
fn tiers_are_those_of_the_hour() {
    let list = genai_prices(
        r#"{"id": "m", "match": {"equals": "m"}, "prices": [
            {"prices": {"input_mtok": 1, "output_mtok": 4}},
            {"constraint": {"start_time": "01:00:00Z", "end_time": "04:00:00Z"},
             "prices": {"input_mtok": 2, "output_mtok": 8}}],
            "price_variants": [{"when": {"processing": "batch"}, "prices": {"input_mtok": 0.5}}]}"#,
    );
    let in_batch: Vec<_> = list.rows.iter().map(|row| in_tier(row, 0, "batch")).collect();
    assert_eq!(in_batch, ["input 0.5, output 4", "input 0.5, output 8"]);
}

#[test]
fn where_hours_of_a_list_overlap_the_last_counts() {
    let list = genai_prices(
        r#"{"id": "m", "match": {"equals": "m"}, "prices": [
            {"prices": {"input_mtok": 1}},
            {"constraint": {"start_time": "22:00:00Z", "end_time": "04:00:00Z"}, "prices": {"input_mtok": 2}},
            {"constraint": {"start_time": "23:30:00Z", "end_time": "01:00:00Z"}, "prices": {"input_mtok": 3}}]}"#,
    );
    let rows = of(&list);
    let rows: Vec<_> = rows.iter().map(|(_, hours, prices)| format!("{hours}: {prices}")).collect();
    assert_eq!(
        rows,
        [
            ": input 1",
            "01:00 to 04:00: input 2",
            "22:00 to 23:30: input 2",
            "23:30 to 01:00: input 3",
        ]
    );
    let file = CatalogFile { rows: list.rows, ..CatalogFile::default() };
    assert_eq!(file.row_errors(), []);
}

#[test]
fn of_hours_that_cannot_be_read_the_dearest_price_holds_all_day_and_a_note_says_so() {
    for constraint in [
        r#"{"start_time": "01:00:30+00:00", "end_time": "04:00:00+00:00"}"#,
        r#"{"start_time": "noon", "end_time": "04:00:00+00:00"}"#,
        r#"{"start_time": "01:00:00+00:00"}"#,
        r#"{"start_time": "01:00:00+00:00", "end_time": "01:00:00+00:00"}"#,
    ] {
        let list = genai_prices(&format!(
            r#"{{"id": "m", "match": {{"equals": "m"}}, "prices": [
                {{"prices": {{"input_mtok": 1, "output_mtok": 5}}}},
                {{"constraint": {constraint}, "prices": {{"input_mtok": 2, "output_mtok": 4}}}}]}}"#,
        ));
        assert_eq!(list.rows.len(), 1, "{constraint}");
        assert_eq!(standard(&list.rows[0]), "input 2, output 5");
        assert!(list.notes.iter().any(|note| note.text.contains("time of day")), "{constraint}");
    }
}

#[test]
fn what_is_cheaper_off_peak_is_dearer_at_the_other_hours() {
    let list = litellm(
        r#""m": {"litellm_provider": "openai", "input_cost_per_token": 2e-6,
            "cache_read_input_token_cost": 1e-6, "output_cost_per_token": 4e-6,
            "off_peak_pricing": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6,
                "windows": [{"hours_utc": ["04:00-06:00", "10:00-01:00"], "weekdays": [1, 2, 3, 4, 5]},
                    {"hours_utc": "00:00-00:00", "weekdays": [6, 7]}]}}"#,
    );
    let peak = "input 2, cached_input 1, output 4".to_owned();
    assert_eq!(
        of(&list),
        [
            (None, "01:00 to 04:00".to_owned(), peak.clone()),
            (None, "06:00 to 10:00".to_owned(), peak),
            (None, String::new(), "input 1, cached_input 1, output 2".to_owned()),
        ]
    );
    assert!(list.notes.iter().any(|note| note.text.contains("days of the week")));
}

fn figures(changes: &[PriceChange]) -> Vec<String> {
    let shown = |rate: Option<Rate>| rate.map_or("-".to_owned(), |rate| rate.to_string());
    let line = |one: &PriceChange| format!("{} {}>{}", one.figure, shown(one.old), shown(one.new));
    changes.iter().map(line).collect()
}

#[test]
fn hours_imported_twice_change_nothing_the_second_time() {
    let (first, changes) =
        import(&CatalogFile::default(), with_peak("1", "2"), ImportFormat::GenaiPrices);
    assert_eq!(
        figures(&changes),
        ["input ->1", "input 01:00 to 04:00 ->2", "input 06:00 to 10:00 ->2"]
    );
    let (second, changes) = import(&first, with_peak("1", "2"), ImportFormat::GenaiPrices);
    assert_eq!((second, changes), (first, vec![]));
}

#[test]
fn a_day_and_its_hours_change_together() {
    let (old, _) = import(&CatalogFile::default(), with_peak("1", "2"), ImportFormat::GenaiPrices);
    let (new, changes) = import(&old, with_peak("1", "3"), ImportFormat::GenaiPrices);
    assert_eq!(figures(&changes), ["input 01:00 to 04:00 2>3", "input 06:00 to 10:00 2>3"]);
    assert!(new.rows.iter().all(|row| models(row) == ["m"]));
    let catalog = Catalog::from(new);
    let yesterday = date!(2026 - 11 - 20);
    for (day, at, price) in [
        (yesterday, time!(2:00), "2"),
        (TODAY, time!(2:00), "3"),
        (TODAY, time!(5:00), "1"),
        (TODAY, time!(9:59), "3"),
        (date!(2026 - 09 - 09), time!(2:00), "4"),
    ] {
        assert_eq!(input_at(&catalog, day, at).as_deref(), Some(price), "{day} {at}");
    }
    // A list without hours ends the hours from that day on.
    let plain =
        genai_prices(r#"{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 1}}"#);
    let (new, changes) = import(&old, plain, ImportFormat::GenaiPrices);
    assert_eq!(figures(&changes), ["input 01:00 to 04:00 2>-", "input 06:00 to 10:00 2>-"]);
    let catalog = Catalog::from(new);
    assert_eq!(input_at(&catalog, TODAY, time!(2:00)).as_deref(), Some("1"));
    assert_eq!(input_at(&catalog, yesterday, time!(2:00)).as_deref(), Some("2"));
}

#[test]
fn hours_of_another_list_stay_and_begin_anew_with_the_day() {
    let (old, _) = import(&CatalogFile::default(), with_peak("1", "2"), ImportFormat::GenaiPrices);
    let other = litellm(r#""m": {"litellm_provider": "openai", "input_cost_per_token": 1.5e-6}"#);
    let (new, changes) = import(&old, other, ImportFormat::Litellm);
    assert_eq!(figures(&changes), ["input 1>1.5"]);
    let catalog = Catalog::from(new);
    assert_eq!(input_at(&catalog, TODAY, time!(2:00)).as_deref(), Some("2"));
    assert_eq!(input_at(&catalog, TODAY, time!(5:00)).as_deref(), Some("1.5"));
}

#[test]
fn hours_of_a_list_take_the_place_of_those_they_overlap() {
    let old = file(&[&row("", "1"), &row(&at_hours("02:00", "05:00"), "2")]);
    let (new, changes) = import(&old, with_peak("1", "2"), ImportFormat::GenaiPrices);
    assert_eq!(
        figures(&changes),
        ["input 01:00 to 04:00 ->2", "input 06:00 to 10:00 ->2", "input 02:00 to 05:00 2>-"]
    );
    assert_eq!(input_at(&new.into(), TODAY, time!(4:30)).as_deref(), Some("1"));
}

#[test]
fn only_missing_fills_each_row_by_the_list_s_row_of_its_hours() {
    let mut old = with_peak("1", "2").into_file();
    let other = litellm(
        r#""m": {"litellm_provider": "openai", "input_cost_per_token": 2e-6, "ocr_cost_per_page": 0.1,
            "off_peak_pricing": {"input_cost_per_token": 1e-6, "windows": [
                {"hours_utc": ["00:00-01:00", "04:00-06:00", "10:00-00:00"]}]}}"#,
    );
    fill(&mut old, other, TODAY);
    let book: Catalog = old.into();
    let at = |time| prices(&book.find("openai", "m", (TODAY, time)).unwrap().row.prices);
    assert_eq!(at(time!(2:00)), "input 2, page 0.1");
    assert_eq!(at(time!(5:00)), "input 1, page 0.1");
}

#[test]
fn lists_that_divide_the_day_otherwise_are_compared_hour_by_hour() {
    let peak = catalog(&[row("", "1"), row(&at_hours("01:00", "04:00"), "2")]);
    let off_peak = catalog(&[row("", "2"), row(&at_hours("04:00", "01:00"), "1")]);
    assert_eq!(disagreements(&peak, &off_peak, TODAY), []);
    let longer = catalog(&[row("", "1"), row(&at_hours("01:00", "05:00"), "2")]);
    let [found] = disagreements(&peak, &longer, TODAY).try_into().unwrap();
    assert_eq!(
        (&*found.figure, found.first, found.second),
        ("input from 04:00", 1.into(), 2.into())
    );
    assert_eq!(disagreements(&catalog(&[row("", "1")]), &longer, TODAY).len(), 1);
}
