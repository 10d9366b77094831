//! The lookup of price rows by provider, model and day.

use time::Date;
use time::macros::date;
use tollgate_pricing::{
    Catalog, CatalogFile, CostError, ModelPattern, PriceBook, PriceRow, PriceSource, Rate, Unit,
    UnitPrices, Usage, import,
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
fn prices_of_nothing_are_mistakes_wherever_they_stand() {
    let errors = |row: &str| {
        let file = format!(r#"{{"rows": [{{"provider": "openai", {row}}}]}}"#);
        let found = import::find_row_errors(&CatalogFile::from_json(&file).unwrap());
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
fn nothing_that_an_operator_names_is_free_by_the_embedded_catalogue() {
    let catalog = Catalog::embedded().unwrap();
    for provider in ["openai", "azure"] {
        let free =
            |model: &str| catalog.find(provider, model, TODAY).is_some_and(|found| found.row.free);
        assert!(free("omni-moderation-latest") && free("text-moderation-stable"));
        assert!(!free("content-moderation") && !free("moderation"));
    }
    assert!(catalog.find("google", "gemma-3-house", TODAY).is_none());
    assert!(catalog.find("google", "gemma-3-12b-it", TODAY).unwrap().row.free);
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
fn the_embedded_catalogue_has_no_mistakes() {
    let catalog = Catalog::embedded().unwrap();
    assert_eq!(import::find_row_errors(catalog.file()), []);
    assert!(!catalog.file().sources.is_empty());
    for row in &catalog.file().rows {
        assert!(row.source.is_some(), "{row:?}");
        // A free row prices tokens, so that no unit of it is unpriced.
        assert!(!row.free || row.prices.output == Some(Rate::ZERO), "{row:?}");
    }
}

#[test]
fn the_embedded_catalogue_prices_models_of_every_provider() {
    let catalog = Catalog::embedded().unwrap();
    let table = [
        ("anthropic", "claude-sonnet-4-5-20250929"),
        ("azure", "gpt-4o-2024-08-06"),
        ("bedrock", "amazon.nova-pro-v1:0"),
        ("cerebras", "gpt-oss-120b"),
        ("cohere", "command-r-plus-08-2024"),
        ("deepgram", "nova-3"),
        ("deepinfra", "deepseek-ai/DeepSeek-V3.1"),
        ("deepseek", "deepseek-chat"),
        ("elevenlabs", "eleven_multilingual_v2"),
        ("fireworks", "accounts/fireworks/models/gpt-oss-120b"),
        ("google", "gemini-2.5-flash"),
        ("groq", "openai/gpt-oss-20b"),
        ("hyperbolic", "Qwen/QwQ-32B"),
        ("mistral", "mistral-large-latest"),
        ("moonshot", "kimi-k3"),
        ("nebius", "Qwen/Qwen3-32B"),
        ("novita", "openai/gpt-oss-120b"),
        ("openai", "gpt-4o-mini"),
        ("openrouter", "openai/gpt-4o"),
        ("perplexity", "sonar"),
        ("sambanova", "Meta-Llama-3.3-70B-Instruct"),
        ("together", "openai/gpt-oss-120b"),
        ("xai", "grok-4.3"),
    ];
    for (provider, model) in table {
        let rows = catalog.file().rows.iter().filter(|row| row.provider == provider);
        assert!(rows.count() > 0, "{provider}");
        assert!(catalog.find(provider, model, TODAY).is_some(), "{provider} {model}");
    }
}

/// The ids as requests and answers write them, and the row that prices each.
#[test]
fn an_id_is_found_in_whichever_form_it_is_written() {
    let catalog = Catalog::embedded().unwrap();
    /// A provider, an id, and the provider and pattern of its row.
    type LookupCase<'a> = (&'a str, &'a str, Option<(&'a str, &'a str)>);
    let table: [LookupCase<'_>; 24] = [
        // Exact, with the date of a snapshot, in other case, under the provider's name.
        ("openai", "gpt-4o-mini", Some(("openai", "gpt-4o-mini"))),
        ("openai", "gpt-4o-mini-2024-07-18", Some(("openai", "gpt-4o-mini-2024-07-18"))),
        ("openai", "gpt-4o-mini-2031-01-02", Some(("openai", "gpt-4o-mini"))),
        ("openai", "GPT-4o-Mini", Some(("openai", "gpt-4o-mini"))),
        ("openai", "openai/gpt-4o-mini", Some(("openai", "gpt-4o-mini"))),
        ("anthropic", "claude-sonnet-5-20260701", Some(("anthropic", "claude-sonnet-5"))),
        ("anthropic", "claude-sonnet-4-5", Some(("anthropic", "claude-sonnet-4-5*"))),
        ("google", "models/gemini-2.5-flash", Some(("google", "gemini-2.5-flash"))),
        (
            "google",
            "publishers/google/models/gemini-2.5-flash",
            Some(("google", "gemini-2.5-flash")),
        ),
        // An older snapshot with a price of its own.
        ("openai", "gpt-4o-2024-05-13", Some(("openai", "gpt-4o-2024-05-13"))),
        // Not an id with the same beginning.
        ("openai", "gpt-4o-mini-next", None),
        ("openai", "gpt", None),
        // Fine-tuned.
        ("openai", "ft:gpt-4o-2024-08-06:org::id", Some(("openai", "ft:gpt-4o-2024-*"))),
        ("openai", "ft:gpt-4o-2031-01-02:org::id", None),
        ("openai", "ft:gpt-4o", None),
        // A free and a paid model of the same name.
        (
            "openrouter",
            "deepseek/deepseek-r1:free",
            Some(("openrouter", "deepseek/deepseek-r1:free")),
        ),
        ("openrouter", "deepseek/deepseek-r1", Some(("openrouter", "deepseek/deepseek-r1"))),
        ("openrouter", "unheard/of:free", None),
        // The lists of fallback providers.
        ("azure", "gpt-4o", Some(("openai", "gpt-4o"))),
        ("google", "claude-2.1", Some(("anthropic", "claude-2*"))),
        // Regions.
        (
            "bedrock",
            "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
            Some(("bedrock", "regional.anthropic.claude-sonnet-4-5-20250929*")),
        ),
        (
            "bedrock",
            "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-opus-5-5",
            Some(("bedrock", "regional.anthropic.claude-opus-5-5")),
        ),
        (
            "bedrock",
            "global.anthropic.claude-sonnet-4-5-20250929-v1:0",
            Some(("bedrock", "global.anthropic.claude-sonnet-4-5-20250929*")),
        ),
        (
            "bedrock",
            "us.meta.llama3-1-405b-instruct-v1:0",
            Some(("bedrock", "us.meta.llama3-1-405b-instruct-v1:0")),
        ),
    ];
    for (provider, model, expected) in table {
        let found = catalog.find(provider, model, TODAY);
        let found = found.map(|found| (found.row.provider.as_str(), found.pattern.as_str()));
        assert_eq!(found, expected, "{provider} {model}");
    }
}

#[test]
fn the_embedded_tiers_and_tools_are_priced() {
    let catalog = Catalog::embedded().unwrap();
    let prices = |provider: &str, model: &str, tiers: &[&str]| {
        let row = catalog.find(provider, model, TODAY).unwrap().row;
        let selected = row.prices_for(0, tiers);
        assert!(selected.unlisted_tiers.is_empty(), "{model} {tiers:?}");
        selected.prices
    };
    let text = |rate: Option<Rate>| rate.map(|rate| rate.to_string()).unwrap_or_default();
    let opus = |tiers: &[&str]| prices("anthropic", "claude-opus-5-5", tiers);
    assert_eq!(text(opus(&[]).input), "4");
    assert_eq!(text(opus(&["us"]).input), "4.4");
    assert_eq!(text(opus(&["batch"]).output), "10");
    assert_eq!(text(opus(&["fast", "us"]).output), "44");
    assert_eq!(text(opus(&["us"]).web_search), "0.01");
    assert_eq!(text(opus(&[]).cache_write_1h), "8");
    let sol = |tiers: &[&str]| prices("openai", "gpt-6-sol", tiers);
    assert_eq!(text(sol(&["priority"]).output), "20");
    assert_eq!(text(sol(&["flex"]).output), "5");
    assert_eq!(text(sol(&["batch"]).file_search), "0.0025");
    assert_eq!(text(sol(&[]).code_session), "0.03");
    assert_eq!(text(prices("openai", "whisper-1", &[]).input_second), "0.0001");
    assert_eq!(text(prices("deepgram", "nova-3", &[]).input_second), "0.00007167");
    assert_eq!(text(prices("elevenlabs", "eleven_multilingual_v2", &[]).input_characters), "80");
    assert_eq!(text(prices("cohere", "rerank-v3.5", &[]).search_unit), "0.002");
    assert_eq!(text(prices("mistral", "mistral-ocr-latest", &[]).page), "0.004");
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

#[test]
fn a_cost_is_that_of_the_row_and_an_unknown_price_is_an_error() {
    let row = serde_json::json!({"provider": "house", "models": ["m"], "prices": {"input": "1.5", "output": "6"}});
    let file = serde_json::json!({"rows": [row]}).to_string();
    let catalog = Catalog::from_json(&file).unwrap();
    let day = time::macros::date!(2026 - 11 - 01);
    let cost = |model: &str, usage: &Usage| catalog.cost("house", model, day, usage);
    let tokens = Usage::tokens(1_000_000, 500_000);
    assert_eq!(cost("m", &tokens).unwrap().total().unwrap().to_string(), "4.5000000000");
    assert_eq!(cost("other", &tokens), Err(CostError::UnknownModel));
    let mut images = Usage::default();
    images.quantities.image = 1;
    assert_eq!(cost("m", &images), Err(CostError::UnpricedUnit(Unit::Image)));
    // A cost that the provider reports needs no price.
    images.provider_cost = Some("0.04".parse().unwrap());
    assert_eq!(cost("m", &images).unwrap().total().unwrap().to_string(), "0.0400000000");
    assert_eq!(cost("m", &Usage::tokens(u64::MAX, 0)), Err(CostError::Overflow));
}
