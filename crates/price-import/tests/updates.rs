//! Imports into price list files: what changes, and which earlier prices stay.

use time::Date;
use time::macros::date;
use tollgate_price_import::{
    ChangeKind, ImportFormat, ImportedPrices, disagreements, fill, to_text,
};
use tollgate_pricing::{CatalogFile, PriceRow};

use crate::common::{genai_prices, import, in_tier, litellm, models, standard};

const TODAY: Date = date!(2026 - 11 - 21);

fn file(rows: &str) -> CatalogFile {
    let file = CatalogFile::from_json(&format!(r#"{{"rows": [{rows}]}}"#));
    file.unwrap_or_else(|why| unreachable!("{why}"))
}

fn openai(id: &str, keys: &str) -> String {
    format!(r#""{id}": {{"litellm_provider": "openai", {keys}}}"#)
}

#[test]
fn a_list_imported_twice_changes_nothing_the_second_time() {
    let list = || {
        genai_prices(
            r#"{"id": "m", "match": {"or": [{"equals": "m"}, {"starts_with": "m-"}]}, "prices": [
                {"prices": {"input_mtok": {"base": 3, "tiers": [{"start": 9, "price": 4}]}}},
                {"constraint": {"start_date": "2026-03-13"}, "prices": {"input_mtok": 2}}],
                "price_variants": [{"when": {"processing": "batch"}, "prices": {"input_mtok": 1}}]}"#,
        )
    };
    let (first, changes) = import(&CatalogFile::default(), list(), ImportFormat::GenaiPrices);
    assert!(changes.iter().all(|change| change.kind == ChangeKind::Added && !change.refused));
    let (second, changes) = import(&first, list(), ImportFormat::GenaiPrices);
    assert_eq!((second, changes), (first, vec![]));
}

#[test]
fn the_embedded_catalogue_imported_onto_itself_changes_nothing() {
    let file = tollgate_prices::catalog().unwrap().file().clone();
    let list = || ImportedPrices { rows: file.rows.clone(), ..ImportedPrices::default() };
    for format in [ImportFormat::GenaiPrices, ImportFormat::Litellm] {
        let (same, changes) = import(&file, list(), format);
        assert_eq!(changes, []);
        assert!(same == file, "{format:?}");
    }
}

#[test]
fn a_changed_price_ends_the_day_before_and_the_past_stays() {
    let old = file(
        r#"{"provider": "openai", "models": ["m", "n"], "prices": {"input": "2", "output": "8"}}"#,
    );
    let list = genai_prices(
        r#"{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 3, "output_mtok": 8}}"#,
    );
    let (new, changes) = import(&old, list, ImportFormat::GenaiPrices);
    let rows: Vec<_> = new
        .rows
        .iter()
        .map(|row| (models(row), row.effective_from, row.effective_to, standard(row)))
        .collect();
    let (until, from) = (Some(date!(2026 - 11 - 20)), Some(TODAY));
    assert_eq!(
        rows,
        [
            (vec!["m"], None, until, "input 2, output 8".to_owned()),
            (vec!["m"], from, None, "input 3, output 8".to_owned()),
            (vec!["n"], None, None, "input 2, output 8".to_owned()),
        ]
    );
    let [change] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!((change.kind, &*change.figure), (ChangeKind::Changed, "input"));
    assert_eq!((change.old, change.new), ("2".parse().ok(), "3".parse().ok()));
}

#[test]
fn prices_to_come_are_taken_with_their_day() {
    let old = file(r#"{"provider": "openai", "models": ["m"], "prices": {"input": "2"}}"#);
    let list = genai_prices(
        r#"{"id": "m", "match": {"equals": "m"}, "prices": [{"prices": {"input_mtok": 2}},
            {"constraint": {"start_date": "2027-01-01"}, "prices": {"input_mtok": 1}}]}"#,
    );
    let (new, changes) = import(&old, list, ImportFormat::GenaiPrices);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].from, Some(date!(2027 - 01 - 01)));
    assert_eq!(new.rows[0].effective_to, Some(date!(2026 - 12 - 31)));
    assert_eq!(new.rows[1].effective_from, Some(date!(2027 - 01 - 01)));
}

#[test]
fn large_changes_and_those_from_or_to_zero_are_refused() {
    let old = file(
        r#"{"provider": "openai", "models": ["m"], "prices": {"input": "2", "output": "8"}},
           {"provider": "openai", "models": ["f:free"], "free": true, "prices": {"input": "0"}}"#,
    );
    let table = [
        (r#""m", "match": {"equals": "m"}, "prices": {"input_mtok": 6, "output_mtok": 8}"#, 0),
        (r#""m", "match": {"equals": "m"}, "prices": {"input_mtok": 6.01, "output_mtok": 8}"#, 1),
        (r#""m", "match": {"equals": "m"}, "prices": {"input_mtok": 0.66, "output_mtok": 2}"#, 2),
        (r#""f", "match": {"equals": "f:free"}, "prices": {"input_mtok": 0.01}"#, 1),
    ];
    for (model, refused) in table {
        let list = genai_prices(&format!(r#"{{"id": {model}}}"#));
        let (_, changes) = import(&old, list, ImportFormat::GenaiPrices);
        let found = changes.iter().filter(|change| change.refused).count();
        assert_eq!(found, refused, "{model}: {changes:?}");
    }
}

#[test]
fn what_a_list_does_not_name_stays_unless_the_row_is_the_lists_alone() {
    let row = |source: &str| {
        file(&format!(
            r#"{{"provider": "openai", "models": ["m"], "source": "{source}",
                "prices": {{"input": "2", "output": "8", "image": "0.04"}},
                "tiers": {{"flex": {{"factor": "0.5"}}}}, "max_output_tokens": 5}}"#
        ))
    };
    let list = || {
        genai_prices(
            r#"{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 2, "output_mtok": 8}}"#,
        )
    };
    let (mine, changes) = import(&row("a contract"), list(), ImportFormat::GenaiPrices);
    assert_eq!(
        (changes, standard(&mine.rows[0])),
        (vec![], "input 2, output 8, image 0.04".to_owned())
    );
    let (its_own, changes) = import(&row("genai-prices"), list(), ImportFormat::GenaiPrices);
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(standard(&its_own.rows[1]), "input 2, output 8");
    assert_eq!(its_own.rows[1].max_output_tokens, Some(5));
}

#[test]
fn models_that_the_list_names_no_more_are_reported_and_stay() {
    let old = file(
        r#"{"provider": "openai", "models": ["gone"], "source": "genai-prices", "prices": {"input": "2"}},
           {"provider": "openai", "models": ["other"], "source": "litellm", "prices": {"input": "2"}}"#,
    );
    let list =
        genai_prices(r#"{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 2}}"#);
    let (new, changes) = import(&old, list, ImportFormat::GenaiPrices);
    let listed: Vec<_> = new.rows.iter().flat_map(models).collect();
    assert_eq!(listed, ["gone", "m", "other"]);
    let gone: Vec<_> = changes.iter().filter(|change| change.kind == ChangeKind::Removed).collect();
    assert_eq!(gone.iter().map(|change| &*change.model).collect::<Vec<_>>(), ["gone"]);
}

#[test]
fn filling_in_adds_what_is_missing_and_changes_nothing() {
    let mut catalog = file(
        r#"{"provider": "openai", "models": ["m"], "source": "genai-prices",
            "prices": {"input": "2", "output": "8"}},
           {"provider": "openai", "models": ["dear"], "prices": {"input": "3", "output": "8"}}"#,
    );
    let tokens = r#""input_cost_per_token": 2e-06, "output_cost_per_token": 8e-06,
        "cache_read_input_token_cost": 1e-06, "input_cost_per_token_flex": 1e-06,
        "output_cost_per_token_flex": 4e-06, "max_output_tokens": 100,
        "file_search_cost_per_1k_calls": 2.5"#;
    let entries = [openai("m", tokens), openai("dear", tokens), openai("new", tokens)];
    fill(&mut catalog, litellm(&entries.join(",")), TODAY);
    let row = |name: &str| {
        let named = |row: &&PriceRow| models(row) == [name];
        catalog.rows.iter().find(named).unwrap()
    };
    // Token prices come from the first list; the rest is added.
    assert_eq!(standard(row("m")), "input 2, output 8, file_search 0.0025");
    assert_eq!(in_tier(row("m"), 0, "flex"), "input 1, output 4, file_search 0.0025");
    assert_eq!(row("m").source.as_deref(), Some("genai-prices, litellm"));
    // If prices disagree, only the largest answer is added.
    assert_eq!(standard(row("dear")), "input 3, output 8");
    assert_eq!((row("dear").tiers.len(), row("dear").max_output_tokens), (0, Some(100)));
    assert_eq!(row("new").prices.cached_input, "1".parse().ok());
}

#[test]
fn what_is_filled_in_says_nothing_of_the_past() {
    let mut catalog = file(
        r#"{"provider": "openai", "models": ["m"], "prices": {"input": "2"}},
           {"provider": "openai", "models": ["m"], "effective_from": "2026-03-13", "prices": {"input": "2"}}"#,
    );
    let keys = r#""input_cost_per_token": 2e-06, "search_context_cost_per_query": 0.01"#;
    fill(&mut catalog, litellm(&openai("m", keys)), TODAY);
    let rows: Vec<_> = catalog.rows.iter().map(standard).collect();
    assert_eq!(rows, ["input 2", "input 2, web_search 0.01"]);
}

#[test]
fn a_price_of_the_providers_tool_alone_is_that_of_every_model_with_tools() {
    let mut catalog = file(
        r#"{"provider": "openai", "models": ["m"], "prices": {"input": "2", "web_search": "0.01"}},
           {"provider": "openai", "models": ["n"], "prices": {"input": "2"}}"#,
    );
    fill(
        &mut catalog,
        litellm(&openai("openai/container", r#""code_interpreter_cost_per_session": 0.03"#)),
        TODAY,
    );
    let rows: Vec<_> = catalog.rows.iter().map(standard).collect();
    assert_eq!(rows, ["input 2, web_search 0.01, code_session 0.03", "input 2"]);
}

#[test]
fn a_file_reads_back_what_was_written() {
    let file = tollgate_prices::catalog().unwrap().file().clone();
    let text = to_text(&file);
    assert_eq!(CatalogFile::from_json(&text).unwrap(), file);
    assert_eq!(text, include_str!("../../prices/catalog.json"), "`just catalog` makes the file");
}

#[test]
fn lists_disagree_where_both_price_a_model_and_not_alike() {
    let catalog = |input: &str, more: &str| {
        let text = format!(
            r#"{{"rows": [{{"provider": "openai", "models": ["m"],
                "prices": {{"input": "{input}", "output": "1"}}}}{more}]}}"#
        );
        tollgate_pricing::Catalog::from_json(&text).unwrap()
    };
    let more = r#", {"provider": "openai", "models": ["n"], "prices": {"input": "9"}}"#;
    let found = disagreements(&catalog("2", ""), &catalog("3", more), TODAY);
    let found: Vec<_> = found
        .iter()
        .map(|one| format!("{} {} {} {}", one.model, one.figure, one.first, one.second))
        .collect();
    assert_eq!(found, ["m input 2 3"]);
    assert_eq!(disagreements(&catalog("2", ""), &catalog("2.0000001", ""), TODAY), []);
}
