//! The import of price lists of other projects into price rows.

use time::Date;
use time::macros::date;
use tollgate_price_import::{ImportFormat, ImportedPrices};

use crate::common::{genai_prices, in_tier, litellm, models, prices, standard};

const TODAY: Date = date!(2026 - 11 - 21);

fn has_note(list: &ImportedPrices, model: &str, text: &str) -> bool {
    list.notes.iter().any(|note| note.model == model && note.text.contains(text))
}

mod of_genai_prices {
    use super::*;

    #[test]
    fn every_kind_of_price_finds_its_unit_exactly() {
        let list = genai_prices(
            r#"{"id": "m", "match": {"equals": "m"}, "prices": {
                "input_mtok": 0.15, "cache_read_mtok": 0.075, "cache_write_mtok": 1.5e-1,
                "cache_write_1h_mtok": 0.3, "cache_audio_read_mtok": 0.5, "input_audio_mtok": 1,
                "input_image_mtok": 2, "input_video_mtok": 3, "output_mtok": 0.6,
                "output_reasoning_mtok": 0.7, "output_audio_mtok": 20, "output_image_mtok": 30,
                "input_mchars": 15, "input_audio_hours": 0.36, "audio_hours": 0.36,
                "input_document_kpages": 1, "requests_kcount": 12, "web_searches_kcount": 10,
                "storage_searches_kcount": 2.5, "cache_image_read_mtok": 5}}"#,
        );
        let [row] = list.rows.as_slice() else { panic!("{list:?}") };
        assert_eq!(
            standard(row),
            "input 0.15, cached_input 0.075, cached_input_audio 0.5, cache_write 0.15, \
             cache_write_1h 0.3, input_audio 1, input_image 2, input_video 3, output 0.6, \
             reasoning 0.7, output_audio 20, output_image 30, input_characters 15, \
             input_second 0.0001, page 0.001, request 0.012, web_search 0.01, file_search 0.0025"
        );
        assert_eq!(row.source.as_deref(), Some("genai-prices"));
        assert!(has_note(&list, "m", "cache_image_read_mtok has no unit here"));
    }

    #[test]
    fn steps_are_bands_with_all_prices_of_the_row() {
        let list = genai_prices(
            r#"{"id": "m", "match": {"equals": "m"}, "prices": {
                "input_mtok": {"base": 2, "tiers": [{"start": 272000, "price": 4}]},
                "output_mtok": {"base": 8, "tiers": [
                    {"start": 500000, "price": 20}, {"start": 272000, "price": 12}]},
                "web_searches_kcount": 10}}"#,
        );
        let row = &list.rows[0];
        assert_eq!(standard(row), "input 2, output 8, web_search 0.01");
        let above = |tokens| prices(&row.prices_for::<&str>(tokens, &[]).prices);
        assert_eq!(above(272_000), "input 2, output 8, web_search 0.01");
        assert_eq!(above(272_001), "input 4, output 12, web_search 0.01");
        assert_eq!(above(500_001), "input 4, output 20, web_search 0.01");
    }

    #[test]
    fn conditional_prices_have_a_first_day_and_the_first_holds_since_ever() {
        let list = genai_prices(
            r#"{"id": "m", "match": {"equals": "m"}, "prices": [
                {"prices": {"input_mtok": 3}},
                {"constraint": {"start_date": "2026-03-13"}, "prices": {"input_mtok": 2}}]}"#,
        );
        let days: Vec<_> =
            list.rows.iter().map(|row| (row.effective_from, standard(row))).collect();
        let march = Some(date!(2026 - 03 - 13));
        assert_eq!(days, [(None, "input 3".to_owned()), (march, "input 2".to_owned())]);
    }

    #[test]
    fn variants_are_tiers_as_factors_where_they_are_one() {
        let list = genai_prices(
            r#"{"id": "m", "match": {"equals": "m"},
                "prices": {"input_mtok": 2, "output_mtok": 8, "web_searches_kcount": 10},
                "price_variants": [
                    {"when": {"service_tier": "default"}, "prices": {}},
                    {"when": {"processing": "batch"}, "constraint": {"start_date": "2026-10-14"},
                     "prices": {"input_mtok": 1, "output_mtok": 4}},
                    {"when": {"service_tier": "priority"}, "prices": {"input_mtok": 3}},
                    {"when": {"route": "eu"}, "prices": {"input_mtok": 9}}]}"#,
        );
        let row = &list.rows[0];
        let tiers = serde_json::to_value(&row.tiers).unwrap();
        assert_eq!(tiers["batch"], serde_json::json!({"factor": "0.5"}));
        assert_eq!(in_tier(row, 0, "batch"), "input 1, output 4, web_search 0.01");
        assert_eq!(in_tier(row, 0, "priority"), "input 3, output 8, web_search 0.01");
        assert_eq!(row.tiers.len(), 2);
        assert!(has_note(&list, "m", "prices for route=eu are not carried over"));
    }

    #[test]
    fn an_empty_price_list_is_free_only_where_that_is_known() {
        let list = genai_prices(
            r#"{"id": "a", "match": {"equals": "v/m:free"}, "prices": {}},
               {"id": "b", "match": {"equals": "omni-moderation-latest"}, "prices": {}},
               {"id": "c", "match": {"equals": "gpt-x"}, "prices": {"input_mtok": 0}}"#,
        );
        let free: Vec<_> = list.rows.iter().map(|row| (models(row), row.free)).collect();
        assert_eq!(free, [(vec!["v/m:free"], true), (vec!["omni-moderation-latest"], true)]);
        assert!(has_note(&list, "gpt-x", "not known to be free"));
    }

    #[test]
    fn what_is_free_is_named_by_ids_alone() {
        let list = genai_prices(
            r#"{"id": "a", "match": {"contains": "moderation"}, "prices": {}},
               {"id": "b", "match": {"starts_with": "text-moderation-x"}, "prices": {}}"#,
        );
        let free: Vec<_> = list.rows.iter().map(models).collect();
        let ids = ["omni-moderation-latest", "omni-moderation-2024-09-26"];
        let older = ["text-moderation-latest", "text-moderation-stable"];
        assert_eq!(free, [[ids, older].concat()]);
        assert!(has_note(&list, "*moderation*", "in its place omni-moderation-latest, "));
        assert!(has_note(&list, "text-moderation-x*", "only ids can be free"));
        assert!(list.into_catalog().find("openai", "content-moderation", TODAY).is_none());
    }

    #[test]
    fn a_model_with_prices_in_a_tier_alone_is_left_out() {
        let list = genai_prices(
            r#"{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 0},
                "price_variants": [{"when": {"processing": "batch"}, "prices": {"input_mtok": 1}}]}"#,
        );
        assert!(list.rows.is_empty());
        assert!(has_note(&list, "m", "only for long prompts or in tiers"));
    }

    #[test]
    fn a_zero_beside_prices_leaves_the_unit_to_its_parent() {
        let list = genai_prices(
            r#"{"id": "m", "match": {"equals": "m"},
                "prices": {"input_mtok": 2, "cache_write_mtok": 0, "output_mtok": 8}}"#,
        );
        assert_eq!(standard(&list.rows[0]), "input 2, output 8");
    }

    #[test]
    fn providers_have_our_names_and_unknown_ones_are_noted() {
        let text = r#"[
            {"id": "x-ai", "models": [{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 1}}]},
            {"id": "azure", "fallback_model_providers": ["openai", "x-ai", "nobody"], "models": []},
            {"id": "nobody", "models": [{"id": "m", "match": {"equals": "m"}, "prices": {}}]}]"#;
        let list = ImportFormat::GenaiPrices.read(text).unwrap();
        assert_eq!(list.rows[0].provider, "xai");
        assert_eq!(list.fallbacks["azure"], ["openai", "xai"]);
        let notes: Vec<_> = list.notes.iter().map(ToString::to_string).collect();
        assert_eq!(notes, ["nobody: 1 models of a provider not known here"]);
    }

    #[test]
    fn what_is_no_such_list_is_an_error() {
        for text in ["", "{}", "[{}]", r#"[{"id": "openai", "models": [{"id": "m"}]}]"#] {
            assert!(ImportFormat::GenaiPrices.read(text).is_err(), "{text}");
        }
        assert!(ImportFormat::Litellm.read("[]").is_err());
    }
}

/// Errors in one model of a list: they cost that model, with a note, and no other.
mod what_is_odd {
    use super::*;

    const GOOD: &str = r#"{"id": "ok", "match": {"equals": "ok"}, "prices": {"input_mtok": 1}}"#;

    fn left(list: &ImportedPrices) -> Vec<String> {
        list.rows
            .iter()
            .map(|row| format!("{}: {}", models(row).join(" "), standard(row)))
            .collect()
    }

    #[test]
    fn a_model_that_cannot_be_read_is_left_out_and_named() {
        for (model, note) in [
            (
                r#"{"id": "m", "match": {"sounds_like": "m"}, "prices": {"input_mtok": 1}}"#,
                "sounds_like",
            ),
            (r#"{"id": "m", "match": {"equals": "m"}}"#, "missing field `prices`"),
            (r#"{"id": "m", "match": {"equals": "m"}, "prices": null}"#, "cannot be read"),
            (r#"{"id": "m", "match": {"equals": "m"}, "prices": []}"#, "has no prices"),
            (
                r#"{"id": "m", "match": {"equals": "m"}, "prices": [
                    {"constraint": {"start_date": "soon"}, "prices": {"input_mtok": 1}}]}"#,
                "cannot be read",
            ),
            (
                r#"{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": -1, "output_mtok": 2}}"#,
                "input_mtok is not a price: -1",
            ),
            (
                r#"{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 1, "output_mtok": 1e400}}"#,
                "is left out, since it cannot be read: ",
            ),
            (
                r#"{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok":
                    {"base": 1, "tiers": [{"start": 9, "price": "more"}]}}}"#,
                "is left out, since it cannot be read: input_mtok is not a price",
            ),
        ] {
            let list = genai_prices(&format!("{model}, {GOOD}"));
            assert_eq!(left(&list), ["ok: input 1"], "{model}");
            assert!(has_note(&list, "m", note), "{model}: {:?}", list.notes);
            let left_out = list.notes.iter().any(|note| note.left_out);
            assert_eq!(left_out, note != "has no prices", "{model}");
        }
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_left_out_and_named() {
        let ok = r#""ok": {"litellm_provider": "openai", "input_cost_per_token": 1e-6}"#;
        for (entry, note) in [
            ("5", "names no provider"),
            (r#"{"input_cost_per_token": 1e-6}"#, "names no provider"),
            (r#"{"litellm_provider": "openai"}"#, "no price above 0"),
            (
                r#"{"litellm_provider": "openai", "input_cost_per_token": -1, "output_cost_per_token": 1}"#,
                "input_cost_per_token is not a price: -1",
            ),
            (
                r#"{"litellm_provider": "openai", "input_cost_per_token": 1, "output_cost_per_token": "?"}"#,
                "is left out, since it cannot be read: ",
            ),
            (
                r#"{"litellm_provider": "openai", "input_cost_per_token": 1e-6,
                    "search_context_cost_per_query": {"small": 0.1, "large": "more"}}"#,
                "search_context_cost_per_query is not a price:",
            ),
        ] {
            let list =
                litellm(&format!(r#""m": {entry}, {ok}, "sample_spec": {{"mode": "chat"}}"#));
            assert_eq!(left(&list), ["ok: input 1"], "{entry}");
            assert!(has_note(&list, "m", note), "{entry}: {:?}", list.notes);
            let left_out = list.notes.iter().any(|note| note.left_out);
            assert_eq!(left_out, note.contains("a price:") || note.contains("left out"), "{entry}");
        }
    }

    #[test]
    fn of_two_models_of_one_id_the_first_counts() {
        let list = genai_prices(
            r#"{"id": "a", "match": {"equals": "m"}, "prices": {"input_mtok": 1}},
               {"id": "b", "match": {"or": [{"equals": "M"}, {"equals": "n"}]}, "prices": {"input_mtok": 2}}"#,
        );
        assert_eq!(left(&list), ["m: input 1", "n: input 2"]);
        assert!(has_note(&list, "b", "M is listed before"));
    }

    #[test]
    fn an_id_that_is_empty_or_everything_is_left_out() {
        let list = genai_prices(
            r#"{"id": "a", "match": {"starts_with": ""}, "prices": {"input_mtok": 1}},
               {"id": "b", "match": {"or": [{"equals": ""}, {"equals": "n"}]}, "prices": {"input_mtok": 2}}"#,
        );
        assert_eq!(left(&list), ["n: input 2"]);
        assert!(has_note(&list, "*", "stands for every model"), "{:?}", list.notes);
    }

    #[test]
    fn a_zero_or_nothing_in_a_band_or_tier_makes_nothing_free() {
        let list = genai_prices(
            r#"{"id": "m", "match": {"equals": "m"},
                "prices": {"input_mtok": {"base": 1, "tiers": [{"start": 9, "price": 0}]}, "output_mtok": 2},
                "price_variants": [{"when": {"processing": "batch"}, "prices": {"output_mtok": 0}},
                    {"when": {"service_tier": "flex"},
                     "constraint": {"start_time": "01:00:00Z", "end_time": "02:00:00Z"},
                     "prices": {"input_mtok": 0.1}}]}"#,
        );
        let row = &list.rows[0];
        assert_eq!(prices(&row.prices_for::<&str>(10, &[]).prices), "input 1, output 2");
        assert_eq!(in_tier(row, 0, "batch"), "input 1, output 2");
        assert!(!row.tiers.contains_key("flex"), "a tier at some hours");
        let list = litellm(
            r#""m": {"litellm_provider": "openai", "input_cost_per_token": 1e-6,
                "regional_processing_uplift_multiplier_eu": -1,
                "provider_specific_entry": {"us": "x", "fast": 0}}"#,
        );
        assert!(list.rows[0].tiers.is_empty());
        for key in ["regional_processing_uplift_multiplier_eu", "us", "fast"] {
            assert!(has_note(&list, "m", &format!("{key} is not a factor")), "{key}");
        }
    }

    #[test]
    fn a_mark_of_the_byte_order_is_passed_over() {
        assert!(ImportFormat::GenaiPrices.read("\u{feff}[]").is_ok());
        assert!(ImportFormat::Litellm.read("\u{feff}{}").is_ok());
    }
}

mod of_litellm {
    use super::*;

    #[test]
    fn prices_of_one_become_prices_of_ours_exactly() {
        let list = litellm(
            r#""m": {"litellm_provider": "openai", "mode": "chat",
                "input_cost_per_token": 1.5e-07, "output_cost_per_token": 6E-07,
                "cache_read_input_token_cost": 7.5e-08, "cache_creation_input_token_cost": 2e-7,
                "cache_creation_input_token_cost_above_1hr": 3e-7,
                "input_cost_per_audio_token": 1e-05, "output_cost_per_reasoning_token": 7e-07,
                "input_cost_per_character": 1.5e-05, "input_cost_per_second": 0.0001,
                "output_cost_per_image": 0.04, "ocr_cost_per_page": 0.001,
                "search_context_cost_per_query": {"search_context_size_low": 0.03,
                    "search_context_size_medium": 0.035, "search_context_size_high": 0.05},
                "file_search_cost_per_1k_calls": 2.5, "code_interpreter_cost_per_session": 0.03,
                "input_cost_per_query": 0.002, "input_cost_per_pixel": 1e-9,
                "max_output_tokens": 16384}"#,
        );
        let [row] = list.rows.as_slice() else { panic!("{list:?}") };
        assert_eq!(
            standard(row),
            "input 0.15, cached_input 0.075, cache_write 0.2, cache_write_1h 0.3, input_audio 10, \
             output 0.6, reasoning 0.7, input_characters 15, input_second 0.0001, image 0.04, \
             page 0.001, web_search 0.05, file_search 0.0025, code_session 0.03, search_unit 0.002"
        );
        assert_eq!(row.max_output_tokens, Some(16_384));
        assert!(has_note(&list, "m", "input_cost_per_pixel has no unit here"));
    }

    #[test]
    fn suffixes_are_bands_and_tiers() {
        let list = litellm(
            r#""m": {"litellm_provider": "openai",
                "input_cost_per_token": 2e-06, "output_cost_per_token": 8e-06,
                "input_cost_per_token_above_200k_tokens": 4e-06,
                "input_cost_per_token_priority": 3e-06, "output_cost_per_token_priority": 1.2e-05,
                "input_cost_per_token_above_200k_tokens_priority": 6e-06,
                "input_cost_per_token_batches": 1e-06, "output_cost_per_token_batches": 4e-06,
                "input_cost_per_token_flex": 1.4e-06,
                "regional_processing_uplift_multiplier_eu": 1.1,
                "provider_specific_entry": {"us": 1.2, "other": 3}}"#,
        );
        let row = &list.rows[0];
        assert_eq!(standard(row), "input 2, output 8");
        let above = |tokens| prices(&row.prices_for::<&str>(tokens, &[]).prices);
        assert_eq!(above(200_000), "input 2, output 8");
        assert_eq!(above(200_001), "input 4, output 8");
        assert_eq!(in_tier(row, 0, "priority"), "input 3, output 12");
        assert_eq!(in_tier(row, 200_001, "priority"), "input 6, output 12");
        assert_eq!(in_tier(row, 0, "batch"), "input 1, output 4");
        // This tier has no prices of long prompts: the standard prices apply.
        assert_eq!(in_tier(row, 200_001, "batch"), "input 4, output 8");
        assert_eq!(in_tier(row, 0, "flex"), "input 1.4, output 8");
        assert_eq!(in_tier(row, 0, "eu"), "input 2.2, output 8.8");
        assert_eq!(in_tier(row, 0, "us"), "input 2.4, output 9.6");
        assert_eq!(row.tiers.len(), 5);
    }

    #[test]
    fn what_costs_as_much_as_the_unit_it_falls_back_to_does_so_in_tiers_and_bands_too() {
        let list = litellm(
            r#""m": {"litellm_provider": "gemini",
                "input_cost_per_token": 5e-07, "input_cost_per_image_token": 5e-07,
                "output_cost_per_token": 3e-06, "output_cost_per_reasoning_token": 3e-06,
                "input_cost_per_token_above_200k_tokens": 1e-06,
                "input_cost_per_token_flex": 2.5e-07, "output_cost_per_token_flex": 1.5e-06,
                "input_cost_per_token_priority": 9e-07, "output_cost_per_token_priority": 5.4e-06,
                "output_cost_per_reasoning_token_priority": 6e-06,
                "input_cost_per_image_token_priority": 5e-07},
               "r": {"litellm_provider": "gemini", "input_cost_per_token": 5e-07,
                "output_cost_per_token": 3e-06, "output_cost_per_reasoning_token": 4e-06,
                "output_cost_per_token_flex": 1.5e-06}"#,
        );
        let [m, r] = list.rows.as_slice() else { panic!("{list:?}") };
        assert_eq!(standard(m), "input 0.5, input_image 0.5, output 3");
        let above = prices(&m.prices_for::<&str>(200_001, &[]).prices);
        assert_eq!(above, "input 1, input_image 1, output 3");
        assert_eq!(in_tier(m, 0, "flex"), "input 0.25, input_image 0.25, output 1.5");
        // Prices that a tier names go first.
        let priority = "input 0.9, input_image 0.5, output 5.4, reasoning 6";
        assert_eq!(in_tier(m, 0, "priority"), priority);
        // Reasoning keeps a price of its own.
        assert_eq!(in_tier(r, 0, "flex"), "input 0.5, output 1.5, reasoning 4");
    }

    #[test]
    fn ids_lose_their_provider_and_what_no_request_can_name_is_left_out() {
        let entry = |id: &str, provider: &str| {
            format!(
                r#""{id}": {{"litellm_provider": "{provider}", "input_cost_per_token": 1e-06}}"#
            )
        };
        let entries = [
            entry("groq/llama-x", "groq"),
            entry("together_ai/v/m", "together_ai"),
            entry("gemini/gemini-x", "gemini"),
            entry("ft:gpt-x", "openai"),
            entry("eu.v.m-v1:0", "bedrock_converse"),
            entry("high/1024-x-1024/gpt-image", "openai"),
            entry("azure/eu/gpt-x", "azure"),
            entry("bedrock/us-east-1/v.m", "bedrock"),
            entry("nobody/m", "nobody"),
        ];
        let list = litellm(&entries.join(","));
        let mut found: Vec<_> = list
            .rows
            .iter()
            .map(|row| format!("{} {}", row.provider, models(row).join(" ")))
            .collect();
        found.sort();
        assert_eq!(
            found,
            [
                "bedrock eu.v.m-v1:0",
                "google gemini-x",
                "groq llama-x",
                "openai ft:gpt-x ft:gpt-x:*",
                "together v/m"
            ]
        );
        assert_eq!(list.notes.len(), 4, "{:?}", list.notes);
    }

    #[test]
    fn a_zero_for_a_paid_model_is_left_out() {
        let list = litellm(
            r#""a": {"litellm_provider": "cohere", "input_cost_per_token": 0.0, "output_cost_per_token": 0},
               "e": {"litellm_provider": "cohere", "input_cost_per_token": 1e-07, "output_cost_per_token": 0.0}"#,
        );
        let rows: Vec<_> = list.rows.iter().map(|row| (models(row), standard(row))).collect();
        assert_eq!(rows, [(vec!["e"], "input 0.1".to_owned())]);
        assert!(has_note(&list, "a", "not known to be free"));
    }

    #[test]
    fn what_would_be_paid_twice_is_carried_over_once() {
        let list = litellm(
            r#""t": {"litellm_provider": "openai", "mode": "audio_transcription",
                     "input_cost_per_second": 0.0001, "output_cost_per_second": 0.0001},
               "i": {"litellm_provider": "openai", "mode": "image_generation",
                     "output_cost_per_image": 0.04, "output_cost_per_image_token": 3e-05}"#,
        );
        let rows: Vec<_> = list.rows.iter().map(standard).collect();
        assert_eq!(rows, ["output_image 30", "input_second 0.0001"]);
    }
}
