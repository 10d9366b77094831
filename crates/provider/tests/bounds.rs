//! The most that a call can use. Limits that must never be passed rest on these figures.

use awc::http::Method;
use serde_json::{Value, json};
use tollgate_pricing::{PerUnit, Unit};
use tollgate_provider::{ProviderSettings, ProviderTable};
use tollgate_usage::{EndpointFormat, InspectedBody, OutputBound, ToolCharge, UsageBound};

const CHAT: &str = "/chat/completions";
const COMPLETIONS: &str = "/completions";
const RESPONSES: &str = "/responses";
const MESSAGES: &str = "/messages";

fn endpoint(path: &str) -> EndpointFormat {
    let host = if path.starts_with("/messages") { "anthropic" } else { "openai" };
    let url = format!("https://api.{host}.com/v1{path}");
    let resolved = ProviderTable::builtin().resolve(&Method::POST, &url);
    resolved.unwrap_or_else(|error| unreachable!("{url}: {error}")).format
}

/// The bound of a body, and the number of its bytes.
fn bound_of(endpoint: &EndpointFormat, text: &str) -> (UsageBound, u64) {
    let call = InspectedBody::inspect(text.as_bytes(), endpoint, false)
        .unwrap_or_else(|issues| unreachable!("{text}: {issues:?}"));
    (call.bound(endpoint), u64::try_from(text.len()).unwrap_or_default())
}

fn bound(path: &str, mut body: Value) -> (UsageBound, u64) {
    let fields = body.as_object_mut().into_iter();
    fields.for_each(|fields| drop(fields.insert("model".to_owned(), json!("m"))));
    bound_of(&endpoint(path), &body.to_string())
}

fn unbounded(path: &str, body: Value) -> Option<String> {
    bound(path, body).0.unbounded.map(|path| path.join("."))
}

/// The input tokens beyond the bytes of the body.
fn hidden(path: &str, body: Value) -> u64 {
    let (bound, bytes) = bound(path, body);
    assert_eq!((bound.tool_calls, &bound.unbounded), (0, &None));
    bound.input_tokens - bytes
}

fn image_url() -> Value {
    json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}})
}

fn base64(kind: &str, media_type: &str) -> Value {
    json!({"type": kind, "source": {"type": "base64", "media_type": media_type, "data": "AA"}})
}

#[test]
fn a_text_is_no_more_tokens_than_bytes() {
    let body = json!({"messages": [{"role": "user", "content": "ü"}]});
    for path in [CHAT, MESSAGES] {
        let (bound, bytes) = bound(path, body.clone());
        let expected = UsageBound {
            input_tokens: bytes,
            output: OutputBound::Unstated,
            answers: 1,
            tool_calls: 0,
            tool_charges: Vec::new(),
            others: PerUnit::default(),
            unbounded: None,
        };
        assert_eq!(bound, expected);
    }
}

#[test]
fn the_largest_maximum_that_the_endpoint_has_bounds_an_answer() {
    use OutputBound::*;
    let all = json!({"max_tokens": 1, "max_completion_tokens": 2, "max_output_tokens": 3});
    let table = [
        (CHAT, Stated(2)),
        (COMPLETIONS, Stated(2)),
        (RESPONSES, Stated(3)),
        (MESSAGES, Stated(1)),
        ("/embeddings", None),
    ];
    for (path, expected) in table {
        assert_eq!(bound(path, all.clone()).0.output, expected, "{path}");
    }
    // A provider may ignore fields that its endpoint does not have.
    for (path, field) in [
        (CHAT, "max_output_tokens"),
        (RESPONSES, "max_tokens"),
        (RESPONSES, "max_completion_tokens"),
        (MESSAGES, "max_completion_tokens"),
        (MESSAGES, "max_output_tokens"),
    ] {
        assert_eq!(bound(path, json!({field: 1})).0.output, Unstated, "{path} {field}");
    }
}

#[test]
fn every_answer_to_every_prompt_counts() {
    let table = [
        (json!({}), 1),
        (json!({"n": 0}), 1),
        (json!({"n": 3}), 3),
        (json!({"n": 3, "best_of": 5}), 5),
        (json!({"prompt": "a"}), 1),
        (json!({"prompt": []}), 1),
        (json!({"prompt": ["a"]}), 1),
        (json!({"prompt": ["a", "b"]}), 2),
        (json!({"prompt": ["a", "b"], "n": 3}), 6),
        (json!({"prompt": [1, 2, 3]}), 1),
        (json!({"prompt": [[1, 2], [3]]}), 2),
    ];
    for (body, expected) in table {
        assert_eq!(bound(COMPLETIONS, body.clone()).0.answers, expected, "{body}");
    }
}

#[test]
fn a_small_image_may_be_many_tokens() {
    let content = |parts: Value| json!({"messages": [{"content": parts}]});
    assert_eq!(hidden(CHAT, content(json!([image_url()]))), 50_000);
    assert_eq!(hidden(CHAT, content(json!([image_url(), image_url()]))), 100_000);
    // An escaped URL.
    let escaped =
        r#"{"model":"m","messages":[{"content":[{"image_url":{"url":"d\u0061ta:image/png,x"}}]}]}"#;
    let (bound, bytes) = bound_of(&endpoint(CHAT), escaped);
    assert_eq!(bound.input_tokens - bytes, 50_000);

    let input = json!({"input": [
        {"content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]},
        {"type": "image_generation_call", "result": "AA"},
        {"type": "computer_call_output", "output": {"image_url": "data:image/png;base64,AA"}},
    ]});
    assert_eq!(hidden(RESPONSES, input), 150_000);

    let image = base64("image", "image/webp");
    assert_eq!(hidden(MESSAGES, content(json!([image]))), 5_000);
    let result = json!([{"type": "tool_result", "content": [image, image]}]);
    assert_eq!(hidden(MESSAGES, content(result)), 10_000);
}

#[test]
fn what_is_written_for_tools_goes_in_as_well() {
    let tools = json!({"tools": [
        {"type": "computer_20250124", "name": "computer"},
        {"name": "mine", "input_schema": {"type": "object", "properties": {"tools": {}}}},
    ]});
    assert_eq!(hidden(MESSAGES, tools), 3_000);
    assert_eq!(hidden(MESSAGES, json!({"tools": []})), 0);
    let function = json!({"tools": [{"type": "function", "function": {"name": "f"}}]});
    assert_eq!(hidden(CHAT, function), 0, "counted as the text that they are");
}

#[test]
fn sound_is_bounded_by_its_bytes() {
    let audio = json!({"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}});
    assert_eq!(hidden(CHAT, json!({"messages": [{"content": [audio]}]})), 0);
}

#[test]
fn what_has_no_length_in_the_body_is_named() {
    let in_chat = |part: Value| (CHAT, json!({"messages": [{"content": [part]}]}));
    let in_messages = |part: Value| (MESSAGES, json!({"messages": [{"content": [part]}]}));
    let in_input = |part: Value| (RESPONSES, json!({"input": [{"content": [part]}]}));
    let table = [
        // URLs that the provider would fetch.
        (
            in_chat(json!({"image_url": {"url": "https://x/y.png"}})),
            "messages.0.content.0.image_url.url",
        ),
        (in_input(json!({"image_url": "https://x/y.png"})), "input.0.content.0.image_url"),
        (in_input(json!({"file_url": "https://x/y.pdf"})), "input.0.content.0.file_url"),
        (
            in_messages(json!({"source": {"type": "url", "url": "https://x"}})),
            "messages.0.content.0.source.url",
        ),
        // Packed documents.
        (
            in_chat(
                json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,A"}}),
            ),
            "messages.0.content.0.file.file_data",
        ),
        (in_input(json!({"type": "input_file", "file_data": "AA"})), "input.0.content.0.file_data"),
        (
            in_input(json!({"file_url": "data:application/pdf;base64,A"})),
            "input.0.content.0.file_url",
        ),
        (in_messages(base64("document", "application/pdf")), "messages.0.content.0.source"),
        // Handles to stored things.
        (in_input(json!({"type": "input_image", "file_id": "f"})), "input.0.content.0.file_id"),
        ((RESPONSES, json!({"previous_response_id": "resp_1"})), "previous_response_id"),
        ((RESPONSES, json!({"prompt": {"id": "pmpt_1"}})), "prompt"),
        ((CHAT, json!({"messages": [{"audio": {"id": "audio_1"}}]})), "messages.0.audio"),
        // Tools without a maximum of uses.
        ((CHAT, json!({"web_search_options": {}})), "web_search_options"),
        ((MESSAGES, json!({"mcp_servers": [{"type": "url", "url": "https://x"}]})), "mcp_servers"),
    ];
    for ((path, body), expected) in table {
        assert_eq!(unbounded(path, body.clone()).as_deref(), Some(expected), "{body}");
    }
    for (path, body) in [
        in_messages(json!({"type": "document", "source": {"type": "text", "data": "text"}})),
        (RESPONSES, json!({"input": [{"type": "web_search_call", "id": "ws_1"}]})),
        (RESPONSES, json!({"previous_response_id": null, "input": "file_id"})),
        (CHAT, json!({"messages": [], "metadata": {"url": "https://x"}})),
        (MESSAGES, json!({"mcp_servers": []})),
        (RESPONSES, json!({"tools": [{"type": "computer_use_preview"}, {"type": "local_shell"}]})),
        (
            CHAT,
            json!({"tools": [{"type": "function", "function": {"name": "web_search",
            "parameters": {"properties": {"url": {"type": "web_search"}, "audio": {"type": "base"}}}}}]}),
        ),
    ] {
        assert_eq!(unbounded(path, body.clone()), None, "{body}");
    }
}

#[test]
fn what_is_served_otherwise_or_at_other_prices_is_named() {
    for (field, value) in [
        ("prediction", json!({"type": "content", "content": "x"})),
        ("models", json!(["dear"])),
        ("fallbacks", json!(["dear"])),
        ("route", json!("fallback")),
        ("plugins", json!([{"id": "web"}])),
        ("search_parameters", json!({"mode": "on"})),
        ("context_management", json!({"edits": [{"type": "compact_20260112"}]})),
        ("provider", json!({"order": ["dear"]})),
    ] {
        let body = json!({field: value});
        assert_eq!(unbounded(CHAT, body.clone()).as_deref(), Some(field), "{body}");
    }
    for plain in [
        json!({"prediction": null, "models": [], "service_tier": "flex"}),
        json!({"service_tier": "auto", "speed": "standard", "inference_geo": "global"}),
    ] {
        assert_eq!(unbounded(CHAT, plain.clone()), None, "{plain}");
    }
}

#[test]
fn tiers_that_may_cost_more_are_named_with_their_fields() {
    let tiers = |body: Value| {
        let mut body = body;
        body["model"] = json!("m");
        let body = body.to_string();
        let call = InspectedBody::inspect(body.as_bytes(), &endpoint(CHAT), true).unwrap();
        call.tiers().iter().map(|(field, tier)| format!("{field}={tier}")).collect::<Vec<_>>()
    };
    let dear = json!({"service_tier": "Priority", "speed": "fast", "inference_geo": "us"});
    assert_eq!(tiers(dear), ["service_tier=priority", "speed=fast", "inference_geo=us"]);
    let plain = json!({"service_tier": "flex", "speed": "standard", "inference_geo": "global"});
    assert!(tiers(plain).is_empty());
    assert!(tiers(json!({"service_tier": null, "speed": 7})).is_empty());
}

/// Some servers take 0 for no maximum at all.
#[test]
fn a_maximum_of_zero_bounds_nothing() {
    let (bounded, _) = bound(CHAT, json!({"max_tokens": 0}));
    assert_eq!(bounded.output, OutputBound::Unstated);
}

#[test]
fn films_and_documents_in_a_data_url_are_no_images() {
    for url in ["data:video/mp4;base64,AAAA", "data:application/pdf;base64,AAAA"] {
        let part = json!({"type": "image_url", "image_url": {"url": url}});
        let body = json!({"messages": [{"role": "user", "content": [part]}]});
        assert!(unbounded(CHAT, body).is_some(), "{url}");
    }
}

#[test]
fn a_document_cannot_pass_for_an_image_by_a_second_type() {
    for media_types in [
        r#""media_type":"image/png","media_type":"application/pdf""#,
        r#""media_type":"application/pdf","media_type":"image/png""#,
        r#""media_type":null"#,
        r#""a":1"#,
    ] {
        let source = format!(r#"{{"type":"base64",{media_types},"data":"A"}}"#);
        let text = format!(r#"{{"model":"m","messages":[{{"content":[{{"source":{source}}}]}}]}}"#);
        let (bound, _) = bound_of(&endpoint(MESSAGES), &text);
        assert_eq!(bound.unbounded.unwrap().join("."), "messages.0.content.0.source", "{text}");
    }
}

#[test]
fn tools_at_the_provider_are_bounded_where_their_uses_are() {
    let search = |uses: Value| json!({"type": "web_search_20250305", "max_uses": uses});
    let fetch = json!({"type": "web_fetch_20250910", "max_uses": 2});
    let mine = json!({"type": "custom", "name": "f", "max_uses": 7});
    let (bounded, bytes) = bound(MESSAGES, json!({"tools": [search(json!(3)), fetch, mine]}));
    assert_eq!((bounded.tool_calls, bounded.unbounded), (5, None));
    // The whole input is repeated after each of the five calls, with their results.
    assert_eq!(bounded.input_tokens, 6 * (bytes + 4 * 1_000 + 5 * 32_768));

    for uses in [json!(-1), json!(1.5), json!("3"), json!(true)] {
        let tools = json!({"tools": [fetch, search(uses)]});
        assert_eq!(unbounded(MESSAGES, tools.clone()).as_deref(), Some("tools.1.type"), "{tools}");
    }
    // An unknown kind may be anything.
    for kind in ["advisor_20260301", "code_execution_20250825", "new", "functional"] {
        let path = unbounded(MESSAGES, json!({"tools": [{"type": kind}]}));
        assert_eq!(path.as_deref(), Some("tools.0.type"), "{kind}");
    }
    let mcp = json!({"tools": [{"type": "mcp_toolset", "max_uses": 1}]});
    assert_eq!(unbounded(MESSAGES, mcp).as_deref(), Some("tools.0.type"));
    let both = r#"{"model":"m","tools":[{"type":"web_search","type":"custom"}]}"#;
    assert!(bound_of(&endpoint(MESSAGES), both).0.unbounded.is_some());
    let twice = r#"{"model":"m","tools":[{"type":"web_search","max_uses":9,"max_uses":1}]}"#;
    assert_eq!(bound_of(&endpoint(MESSAGES), twice).0.tool_calls, 9);
}

#[test]
fn a_maximum_of_tool_calls_bounds_all_tools_but_those_of_others() {
    let tools = json!([{"type": "web_search"}, {"type": "code_interpreter"}]);
    let (bounded, bytes) = bound(RESPONSES, json!({"tools": tools, "max_tool_calls": 4}));
    assert_eq!((bounded.tool_calls, bounded.unbounded), (4, None));
    assert_eq!(bounded.input_tokens, 5 * (bytes + 4 * 32_768));

    let mcp = json!({"tools": [{"type": "web_search"}, {"type": "mcp", "server_url": "https://x"}],
        "max_tool_calls": 4});
    assert_eq!(unbounded(RESPONSES, mcp).as_deref(), Some("tools.1.server_url"));
    let connector = json!({"tools": [{"type": "mcp", "connector_id": "c"}], "max_tool_calls": 4});
    assert_eq!(unbounded(RESPONSES, connector).as_deref(), Some("tools.0.type"));

    let path = |path, body| unbounded(path, body).unwrap_or_default();
    assert_eq!(path(RESPONSES, json!({"tools": tools})), "tools.1.type");
    let null = json!({"tools": tools, "max_tool_calls": null});
    assert_eq!(path(RESPONSES, null), "tools.1.type");
    // Each field bounds only at the provider that has it.
    assert_eq!(path(MESSAGES, json!({"tools": tools, "max_tool_calls": 4})), "tools.1.type");
    let uses = json!({"tools": [{"type": "web_search", "max_uses": 4}]});
    assert_eq!(path(RESPONSES, uses), "tools.0.type");
    // Nothing runs at the provider.
    let mine = json!({"tools": [{"type": "function", "name": "f"}], "max_tool_calls": 4});
    assert_eq!(hidden(RESPONSES, mine), 0);
}

#[test]
fn figures_that_are_too_large_stay_the_largest() {
    let uses = json!({"type": "web_search", "max_uses": u64::MAX});
    let (bounded, _) = bound(MESSAGES, json!({"tools": [uses, uses]}));
    assert_eq!((bounded.tool_calls, bounded.input_tokens), (u64::MAX, u64::MAX));
}

#[test]
fn nothing_bounds_an_endpoint_that_is_not_known() {
    let (bounded, _) = bound("/vector_stores", json!({"max_tokens": 1}));
    assert_eq!(bounded.unbounded, Some(Vec::new()));

    let mut table = ProviderTable::builtin();
    let settings = ProviderSettings {
        base_url: Some("https://house.example/v1".to_owned()),
        dialect: Some("none".to_owned()),
        ..ProviderSettings::default()
    };
    table.configure("house", settings).unwrap();
    let endpoint = table.resolve(&Method::POST, "https://house.example/v1/messages").unwrap();
    let (bounded, _) = bound_of(&endpoint.format, r#"{"model":"m","max_tokens":1}"#);
    assert_eq!(bounded.unbounded, Some(Vec::new()));
    // A field of the body is the better hint.
    let (bounded, _) = bound_of(&endpoint.format, r#"{"model":"m","input":[{"url":"https://x"}]}"#);
    assert_eq!(bounded.unbounded.unwrap().join("."), "input.0.url");
}

#[test]
fn a_maximum_bounds_where_the_provider_honours_it() {
    let chat = |host: &str| format!("{host}/chat/completions");
    let output = |url: &str, body: Value| {
        let endpoint = ProviderTable::builtin().resolve(&Method::POST, url).unwrap();
        bound_of(&endpoint.format, &body.to_string()).0.output
    };
    let newer = || json!({"model": "m", "messages": [], "max_completion_tokens": 7});
    let older = || json!({"model": "m", "messages": [], "max_tokens": 7});
    for honours in ["https://api.openai.com/v1", "https://api.groq.com/openai/v1"] {
        assert_eq!(output(&chat(honours), newer()), OutputBound::Stated(7), "{honours}");
        assert_eq!(output(&chat(honours), older()), OutputBound::Stated(7), "{honours}");
    }
    for ignores in ["https://api.deepseek.com", "https://api.together.xyz/v1"] {
        assert_eq!(output(&chat(ignores), newer()), OutputBound::Unstated, "{ignores}");
        assert_eq!(output(&chat(ignores), older()), OutputBound::Stated(7), "{ignores}");
    }
    let both = json!({"model": "m", "max_tokens": 9, "max_completion_tokens": 7});
    assert_eq!(output(&chat("https://api.deepseek.com"), both), OutputBound::Stated(9));
    let legacy = "https://api.openai.com/v1/completions";
    assert_eq!(output(legacy, newer()), OutputBound::Unstated, "it is no field of these");
}

#[test]
fn tools_at_the_provider_are_charged_by_their_kind() {
    let charges = |url: &str, tools: Value| {
        let charges = bound(url, json!({"tools": tools})).0.tool_charges.into_iter();
        charges.map(|(charge, path)| (charge, path.join("."))).collect::<Vec<_>>()
    };
    let table = [
        (json!([{"type": "function", "name": "f"}]), vec![]),
        (
            json!([{"type": "web_search"}]),
            vec![(ToolCharge::Each(Unit::WebSearch), "tools.0.type")],
        ),
        (
            json!([{"type": "web_search_preview_2025_03_11"}, {"type": "file_search"}]),
            vec![
                (ToolCharge::Each(Unit::WebSearch), "tools.0.type"),
                (ToolCharge::Each(Unit::FileSearch), "tools.1.type"),
            ],
        ),
        (
            json!([{"type": "code_interpreter"}]),
            vec![(ToolCharge::Each(Unit::CodeSession), "tools.0.type")],
        ),
        (
            json!([{"type": "image_generation"}]),
            vec![(ToolCharge::Image("gpt-image-1"), "tools.0.type")],
        ),
        (
            json!([{"type": "image_generation", "model": "gpt-image-2-codex", "n": 1}]),
            vec![(ToolCharge::Image("gpt-image-2"), "tools.0.type")],
        ),
        (
            json!([{"type": "image_generation", "n": 8}]),
            vec![(ToolCharge::Unknown, "tools.0.type")],
        ),
        (json!([{"type": "mcp"}]), vec![(ToolCharge::Tokens, "tools.0.type")]),
        (json!([{"type": "time_travel"}]), vec![(ToolCharge::Unknown, "tools.0.type")]),
        (json!([{"type": "namespace", "tools": [{"type": "function", "name": "f"}]}]), vec![]),
        (
            json!([{"type": "namespace", "tools": [{"type": "image_generation"}]}]),
            vec![(ToolCharge::Image("gpt-image-1"), "tools.0.tools.0.type")],
        ),
    ];
    for (tools, expected) in table {
        let expected: Vec<_> = expected.into_iter().map(|(c, path)| (c, path.to_owned())).collect();
        assert_eq!(charges(RESPONSES, tools.clone()), expected, "{tools}");
    }
    // The conversation may offer tools too.
    let later = json!({"model": "m", "input": [{"type": "additional_tools", "tools":
        [{"type": "image_generation"}]}]});
    assert_eq!(bound(RESPONSES, later).0.tool_charges.len(), 1);
}

#[test]
fn a_search_without_a_maximum_has_that_of_the_provider_or_of_the_table() {
    let tools = json!([{"type": "web_search"}]);
    let (bounded, _) = bound(RESPONSES, json!({"tools": tools}));
    assert_eq!((bounded.tool_calls, bounded.unbounded), (5, None));
    let (bounded, _) = bound(MESSAGES, json!({"tools": [{"type": "web_search_20250305"}]}));
    assert_eq!((bounded.tool_calls, bounded.unbounded), (10, None));
    let tools = json!([{"type": "web_search"}, {"type": "file_search"}]);
    let path = unbounded(RESPONSES, json!({"tools": tools}));
    assert_eq!(path.as_deref(), Some("tools.1.type"));
}

#[test]
fn edits_that_only_remove_leave_a_bound_and_others_do_not() {
    let clears = json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"},
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1}}]});
    for edits in [clears, json!({"edits": []}), json!({}), Value::Null] {
        let (bounded, _) = bound(MESSAGES, json!({"context_management": edits}));
        assert_eq!(bounded.unbounded, None, "{edits}");
    }
    for edits in [
        json!({"edits": [{"type": "compact_20260112"}]}),
        json!({"edits": [{"type": "clear_thinking_20251015"}, {"type": "compact_20260112"}]}),
        json!({"edits": [], "more": 1}),
        json!({"edits": "clear_thinking"}),
        json!([{"type": "compaction", "compact_threshold": 1}]),
        json!("clear_thinking"),
    ] {
        let path = unbounded(MESSAGES, json!({"context_management": edits}));
        assert_eq!(path.as_deref(), Some("context_management"));
    }
    let routed = unbounded(CHAT, json!({"provider": {"sort": "price"}}));
    assert_eq!(routed.as_deref(), Some("provider"));
}
