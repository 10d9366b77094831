//! Prices that apply only at some hours of the day.

use serde_json::json;
use time::macros::{date, time};
use time::{Date, Time};
use tollgate_pricing::import::{self, ImportFormat, ImportOptions, ImportedPrices, PriceChange};
use tollgate_pricing::{Catalog, CatalogFile, PriceBook, PriceSource, Rate, ServedCall, Usage};

use crate::common::{genai_prices, in_tier, litellm, models, prices, standard};

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
        all.iter().map(|one| (standard(one.row), one.source)).collect()
    };
    let catalogs = |input: &str| (format!("input {input}"), PriceSource::Catalog);
    assert_eq!(found(&[]), [catalogs("1"), catalogs("2"), catalogs("3")]);
    // The operator's own price applies to all hours.
    assert_eq!(found(&[row("", "9")]), [("input 9".to_owned(), PriceSource::Custom)]);
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
        import::find_row_errors(&file).iter().map(|one| one.text.clone()).collect()
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
    assert_eq!(import::find_row_errors(&file), []);
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

fn take(
    file: &CatalogFile,
    list: ImportedPrices,
    format: ImportFormat,
) -> (CatalogFile, Vec<PriceChange>) {
    let update = ImportOptions { from: TODAY, max_factor: Rate::from(3), only_missing: false };
    let (updated, changes) = file.updated(list, format, &update);
    assert_eq!(import::find_row_errors(&updated), [], "{}", updated.to_text());
    (updated, changes)
}

fn figures(changes: &[PriceChange]) -> Vec<String> {
    let shown = |rate: Option<Rate>| rate.map_or("-".to_owned(), |rate| rate.to_string());
    let line = |one: &PriceChange| format!("{} {}>{}", one.figure, shown(one.old), shown(one.new));
    changes.iter().map(line).collect()
}

#[test]
fn hours_imported_twice_change_nothing_the_second_time() {
    let (first, changes) =
        take(&CatalogFile::default(), with_peak("1", "2"), ImportFormat::GenaiPrices);
    assert_eq!(
        figures(&changes),
        ["input ->1", "input 01:00 to 04:00 ->2", "input 06:00 to 10:00 ->2"]
    );
    let (second, changes) = take(&first, with_peak("1", "2"), ImportFormat::GenaiPrices);
    assert_eq!((second, changes), (first, vec![]));
}

#[test]
fn a_day_and_its_hours_change_together() {
    let (old, _) = take(&CatalogFile::default(), with_peak("1", "2"), ImportFormat::GenaiPrices);
    let (new, changes) = take(&old, with_peak("1", "3"), ImportFormat::GenaiPrices);
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
    let (new, changes) = take(&old, plain, ImportFormat::GenaiPrices);
    assert_eq!(figures(&changes), ["input 01:00 to 04:00 2>-", "input 06:00 to 10:00 2>-"]);
    let catalog = Catalog::from(new);
    assert_eq!(input_at(&catalog, TODAY, time!(2:00)).as_deref(), Some("1"));
    assert_eq!(input_at(&catalog, yesterday, time!(2:00)).as_deref(), Some("2"));
}

#[test]
fn hours_of_another_list_stay_and_begin_anew_with_the_day() {
    let (old, _) = take(&CatalogFile::default(), with_peak("1", "2"), ImportFormat::GenaiPrices);
    let other = litellm(r#""m": {"litellm_provider": "openai", "input_cost_per_token": 1.5e-6}"#);
    let (new, changes) = take(&old, other, ImportFormat::Litellm);
    assert_eq!(figures(&changes), ["input 1>1.5"]);
    let catalog = Catalog::from(new);
    assert_eq!(input_at(&catalog, TODAY, time!(2:00)).as_deref(), Some("2"));
    assert_eq!(input_at(&catalog, TODAY, time!(5:00)).as_deref(), Some("1.5"));
}

#[test]
fn hours_of_a_list_take_the_place_of_those_they_overlap() {
    let old = file(&[&row("", "1"), &row(&at_hours("02:00", "05:00"), "2")]);
    let (new, changes) = take(&old, with_peak("1", "2"), ImportFormat::GenaiPrices);
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
    old.fill(other, TODAY);
    let book: Catalog = old.into();
    let at = |time| prices(&book.find("openai", "m", (TODAY, time)).unwrap().row.prices);
    assert_eq!(at(time!(2:00)), "input 2, page 0.1");
    assert_eq!(at(time!(5:00)), "input 1, page 0.1");
}

#[test]
fn lists_that_divide_the_day_otherwise_are_compared_hour_by_hour() {
    let peak = catalog(&[row("", "1"), row(&at_hours("01:00", "04:00"), "2")]);
    let off_peak = catalog(&[row("", "2"), row(&at_hours("04:00", "01:00"), "1")]);
    assert_eq!(peak.disagreements(&off_peak, TODAY), []);
    let longer = catalog(&[row("", "1"), row(&at_hours("01:00", "05:00"), "2")]);
    let [found] = peak.disagreements(&longer, TODAY).try_into().unwrap();
    assert_eq!(
        (&*found.figure, found.first, found.second),
        ("input from 04:00", 1.into(), 2.into())
    );
    assert_eq!(catalog(&[row("", "1")]).disagreements(&longer, TODAY).len(), 1);
}
