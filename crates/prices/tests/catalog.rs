//! The rows of the catalogue.

use time::Date;
use time::macros::date;
use tollgate_pricing::Rate;

const TODAY: Date = date!(2026 - 11 - 21);

#[test]
fn nothing_that_an_operator_names_is_free_by_the_catalogue() {
    let catalog = tollgate_prices::catalog().unwrap();
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
fn the_catalogue_has_no_mistakes() {
    let catalog = tollgate_prices::catalog().unwrap();
    assert_eq!(catalog.file().row_errors(), []);
    assert!(!catalog.file().sources.is_empty());
    for row in &catalog.file().rows {
        assert!(row.source.is_some(), "{row:?}");
        // A free row prices tokens, so that no unit of it is unpriced.
        assert!(!row.free || row.prices.output == Some(Rate::ZERO), "{row:?}");
    }
}

#[test]
fn the_catalogue_prices_models_of_every_provider() {
    let catalog = tollgate_prices::catalog().unwrap();
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
    let catalog = tollgate_prices::catalog().unwrap();
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
fn the_tiers_and_tools_are_priced() {
    let catalog = tollgate_prices::catalog().unwrap();
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
    let catalog = tollgate_prices::catalog().unwrap();
    let row = catalog.find("anthropic", "claude-sonnet-4-6", date!(2026 - 03 - 01)).unwrap().row;
    let input =
        |tokens| row.prices_for::<&str>(tokens, &[]).prices.input.map(|rate| rate.to_string());
    assert_eq!(input(200_000).as_deref(), Some("3"));
    assert_eq!(input(200_001).as_deref(), Some("6"));
}
