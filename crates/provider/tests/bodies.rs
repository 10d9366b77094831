//! The facts that are read of a request body, and the changes that are made to it.

use awc::http::Method;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_provider::{ProviderSettings, ProviderTable};
use tollgate_usage::{EndpointFormat, InspectedBody, Issue, OutputBound, estimate_input};

fn endpoint(path: &str) -> EndpointFormat {
    let host = if path.starts_with("/messages") { "anthropic" } else { "openai" };
    let url = format!("https://api.{host}.com/v1{path}");
    let resolved = ProviderTable::builtin().resolve(&Method::POST, &url);
    resolved.unwrap_or_else(|error| unreachable!("{url}: {error}")).format
}

fn inspect(path: &str, body: &str, managed: bool) -> Result<InspectedBody, Vec<Issue>> {
    InspectedBody::inspect(body.as_bytes(), &endpoint(path), managed)
}

fn paths(path: &str, body: &str, managed: bool) -> Vec<String> {
    let issues = inspect(path, body, managed).err().unwrap_or_default();
    issues.into_iter().map(|issue| issue.path.join(".")).collect()
}

const CHAT: &str = "/chat/completions";
const RESPONSES: &str = "/responses";
const MESSAGES: &str = "/messages";

#[test]
fn the_fields_that_decide_about_money_are_read() {
    let body = r#"{"model":"m","stream":true,"n":3,"max_tokens":"10","max_completion_tokens":20.0,
        "stream_options":{"include_usage":true},"temperature":0.1,"messages":[{"content":"ü"}]}"#;
    let call = inspect(CHAT, body, true).unwrap();
    assert_eq!(call.model.as_deref(), Some("m"));
    assert!(call.stream && call.asks_usage);
    let bound = call.bound(&endpoint(CHAT));
    assert_eq!((bound.answers, bound.output), (3, OutputBound::Stated(20)));
    assert_eq!(call.input_bytes, u64::try_from(body.len()).unwrap());

    let call =
        inspect(CHAT, r#"{"model":"m","stream":null,"n":null,"max_tokens":null}"#, true).unwrap();
    assert!(!call.stream && !call.asks_usage);
    let bound = call.bound(&endpoint(CHAT));
    assert_eq!((bound.answers, bound.output), (1, OutputBound::Unstated));
    assert_eq!(estimate_input(&call).quantities.input, 16);
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    for body in ["", "x", "{", "{\"model\":\"m\"", "{\"model\":\"m\"}x", "[", "\u{feff}{}"] {
        assert_eq!(paths(CHAT, body, true), [""], "{body}");
    }
    for body in ["[]", "1", "\"x\"", "null", "true"] {
        assert_eq!(paths(CHAT, body, true), [""], "{body}");
    }
    for model in ["", ",\"model\":null", ",\"model\":\"\"", ",\"model\":\" \"", ",\"model\":7"] {
        assert_eq!(paths(CHAT, &format!("{{\"a\":1{model}}}"), true), ["model"], "{model}");
    }
    let body =
        r#"{"stream":"yes","n":1.5,"max_tokens":-1,"max_output_tokens":true,"max_tool_calls":"x"}"#;
    let expected = ["model", "stream", "n", "max_tokens", "max_output_tokens", "max_tool_calls"];
    assert_eq!(paths(CHAT, body, true), expected);
    let deep = format!("{{\"model\":\"m\",\"input\":{}{}}}", "[".repeat(500), "]".repeat(500));
    assert_eq!(paths(RESPONSES, &deep, true), [""]);
}

#[test]
fn a_field_that_decides_about_money_stands_only_once() {
    for field in [
        "model",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tool_calls",
    ] {
        let body = format!(r#"{{"model":"a","{field}":null,"{field}":null}}"#);
        let found = paths(CHAT, &body, false);
        assert!(found.contains(&field.to_owned()), "{field}: {found:?}");
    }
    // An escaped key is the same key.
    assert_eq!(paths(CHAT, r#"{"model":"a","m\u006fdel":"b"}"#, false), ["model"]);
    assert!(paths(CHAT, r#"{"model":"a","x":1,"x":2}"#, false).is_empty());
}

#[test]
fn with_a_managed_key_nothing_stored_is_named() {
    let table: &[(&str, Value, &str)] = &[
        (CHAT, json!({"background": true}), "background"),
        (RESPONSES, json!({"deferred": true}), "deferred"),
        (CHAT, json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (CHAT, json!({"conversation": "conv_1"}), "conversation"),
        (RESPONSES, json!({"prompt": {"id": "pmpt_1"}}), "prompt"),
        (RESPONSES, json!({"input": [{"type": "item_reference", "id": "msg_1"}]}), "input.0.type"),
        (
            RESPONSES,
            json!({"tools": [{"type": "file_search", "vector_store_ids": ["vs"]}]}),
            "tools.0.vector_store_ids",
        ),
        (
            RESPONSES,
            json!({"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}),
            "tools.0.container",
        ),
        (RESPONSES, json!({"file_id": "f"}), "file_id"),
        (
            RESPONSES,
            json!({"tools": [{"type": "code_interpreter", "container": {"file_id": "f"}}]}),
            "tools.0.container.file_id",
        ),
        (
            MESSAGES,
            json!({"messages": [{"content": [{"source": {"type": "file", "file_id": "f"}}]}]}),
            "messages.0.content.0.source.file_id",
        ),
        (MESSAGES, json!({"container": "container_1"}), "container"),
    ];
    let mut generous = endpoint(RESPONSES);
    let settings = ProviderSettings { allow_stored_state: true, ..ProviderSettings::default() };
    let mut providers = ProviderTable::builtin();
    providers.configure("openai", settings).unwrap();
    generous.provider = providers.get("openai").unwrap().traits.clone();

    for (path, field, expected) in table {
        let mut body = field.clone();
        body["model"] = json!("m");
        let body = body.to_string();
        assert_eq!(paths(path, &body, true), [*expected], "{body}");
        assert!(inspect(path, &body, false).is_ok(), "the caller's own key may: {body}");
        assert!(InspectedBody::inspect(body.as_bytes(), &generous, true).is_ok(), "{body}");
    }
    for conversation in [json!("conv_1"), json!({"id": "conv_1"})] {
        let body = with_model(&json!({"conversation": conversation}));
        let body = InspectedBody::inspect(body.as_bytes(), &endpoint(RESPONSES), true).unwrap();
        assert_eq!(body.conversation.as_deref(), Some("conv_1"));
    }
    for odd in [json!(7), json!({"id": 7}), json!([])] {
        assert_eq!(
            paths(RESPONSES, &with_model(&json!({"conversation": odd})), true),
            ["conversation"]
        );
    }
    // The end of a response can be seen, and the owner of one is checked.
    let body = br#"{"model":"m","background":true,"previous_response_id":"resp_1","store":false}"#;
    let responses = InspectedBody::inspect(body, &endpoint(RESPONSES), true).unwrap();
    assert_eq!(responses.previous_response_id.as_deref(), Some("resp_1"));
    assert!(responses.background && !responses.keeps_answer);
    let harmless = json!({
        "model": "m", "background": false, "previous_response_id": null, "prompt": "text",
        "metadata": {"file_id": "mine"}, "user": "file_id", "input": "file_id",
        "tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": []}},
            {"type": "function", "parameters": {"properties":
                {"file_id": {"type": "string"}, "file_ids": {"type": "array"}}}}],
    });
    assert!(paths(RESPONSES, &harmless.to_string(), true).is_empty());
    let both = json!({"model": "m", "deferred": true, "input": [{"type": "item_reference"}],
        "messages": [{"container_id": "a"}]});
    assert_eq!(
        paths(RESPONSES, &both.to_string(), true),
        ["deferred", "input.0.type", "messages.0.container_id"]
    );
}

#[test]
fn files_that_messages_name_are_listed_so_that_their_owner_can_be_checked() {
    let content = |id: &str| json!([{"type": "file", "file": {"file_id": id}}]);
    let of = |path: &str, body: &Value| {
        let mut body = body.clone();
        body["model"] = json!("m");
        let body = InspectedBody::inspect(body.to_string().as_bytes(), &endpoint(path), true);
        let files = body.unwrap().files.into_iter();
        files.map(|file| (file.path.join("."), file.id)).collect::<Vec<_>>()
    };
    let file = |path: &str, id: &str| (path.to_owned(), id.to_owned());
    let chat = json!({"messages": [{"content": content("a")}, {"content": content("b")}]});
    assert_eq!(
        of(CHAT, &chat),
        [
            file("messages.0.content.0.file.file_id", "a"),
            file("messages.1.content.0.file.file_id", "b")
        ]
    );
    let input = json!({"input": [1, {"content": [{"type": "input_file", "file_id": "c"}]}]});
    assert_eq!(of(RESPONSES, &input), [file("input.1.content.0.file_id", "c")]);
    // Arguments are the caller's own.
    let arguments =
        json!({"messages": [{"tool_calls": [{"function": {"arguments": {"file_id": "x"}}}]}]});
    assert_eq!(
        paths(CHAT, &with_model(&arguments), true),
        ["messages.0.tool_calls.0.function.arguments.file_id"]
    );
    let many: Vec<_> =
        (0..33).map(|number| json!({"content": content(&number.to_string())})).collect();
    let many = with_model(&json!({"messages": many}));
    assert_eq!(paths(CHAT, &many, true), ["messages.32.content.0.file.file_id"]);
}

#[test]
fn the_tier_of_google_is_read_in_both_spellings_and_words() {
    let url = "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent";
    let endpoint = ProviderTable::builtin().resolve(&Method::POST, url).unwrap().format;
    let tiers = |field: &str, word: &str| {
        let body = json!({"contents": [], field: word}).to_string();
        let body = InspectedBody::inspect(body.as_bytes(), &endpoint, true).unwrap();
        body.tiers().iter().map(|(_, tier)| tier.clone()).collect::<Vec<_>>()
    };
    for field in ["serviceTier", "service_tier"] {
        assert_eq!(tiers(field, "priority"), ["priority"]);
        assert_eq!(tiers(field, "SERVICE_TIER_PRIORITY"), ["priority"]);
        assert!(tiers(field, "SERVICE_TIER_FLEX").is_empty());
        assert!(tiers(field, "SERVICE_TIER_UNSPECIFIED").is_empty());
    }
}

fn with_model(body: &Value) -> String {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.insert("model".to_owned(), json!("m"));
    }
    body.to_string()
}

fn edited(path: &str, body: &str) -> Option<String> {
    let call = inspect(path, body, false).ok()?;
    let edited = call.apply_edits(&Bytes::copy_from_slice(body.as_bytes()))?;
    assert!(call.inserts_usage());
    String::from_utf8(edited.to_vec()).ok()
}

#[test]
fn usage_is_asked_for_by_one_token() {
    let table = [
        (
            r#"{"model":"m","stream":true}"#,
            r#"{"stream_options":{"include_usage":true},"model":"m","stream":true}"#,
        ),
        (
            " \n{ \"model\":\"m\",\"stream\":true}",
            " \n{\"stream_options\":{\"include_usage\":true}, \"model\":\"m\",\"stream\":true}",
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":null}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options": {} }"#,
            r#"{"model":"m","stream":true,"stream_options": {"include_usage":true} }"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{ "a":1}}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true, "a":1}}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{"a":{},"include_usage" : false}}"#,
            r#"{"model":"m","stream":true,"stream_options":{"a":{},"include_usage" : true}}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":null}}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
    ];
    for (body, expected) in table {
        assert_eq!(edited(CHAT, body).as_deref(), Some(expected));
        assert_eq!(edited("/completions", body).as_deref(), Some(expected));
    }
}

#[test]
fn nothing_is_changed_where_nothing_is_to_be_asked() {
    let stream = r#"{"model":"m","stream":true}"#;
    assert_eq!(edited(RESPONSES, stream), None, "reports usage unasked");
    assert_eq!(edited(MESSAGES, stream), None, "reports usage unasked");
    for body in [
        r#"{"model":"m"}"#,
        r#"{"model":"m","stream":false}"#,
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
    ] {
        assert!(inspect(CHAT, body, false).is_ok(), "{body}");
        assert_eq!(edited(CHAT, body), None, "{body}");
    }
    let mut providers = ProviderTable::builtin();
    let settings = ProviderSettings { stream_options: Some(false), ..Default::default() };
    providers.configure("openai", settings).unwrap();
    let url = "https://api.openai.com/v1/chat/completions";
    let endpoint = providers.resolve(&Method::POST, url).unwrap();
    let call = InspectedBody::inspect(stream.as_bytes(), &endpoint.format, true).unwrap();
    assert_eq!(call.apply_edits(&Bytes::from_static(stream.as_bytes())), None);
    assert!(!call.inserts_usage());
}

#[test]
fn the_provider_before_the_model_is_cut_out_and_nothing_else() {
    let table = [
        (
            r#"{ "model" : "openai/gpt-4o" ,"a":"openai/gpt-4o","model2":1}"#,
            r#"{ "model" : "gpt-4o" ,"a":"openai/gpt-4o","model2":1}"#,
        ),
        (
            r#"{"x":{"model":"a"},"model":"openai\/gpt-4o"}"#,
            r#"{"x":{"model":"a"},"model":"gpt-4o"}"#,
        ),
        (r#"{"m\u006fdel":"\u006fpenai/gpt-4\u006f"}"#, r#"{"m\u006fdel":"gpt-4o"}"#),
        // Usage is requested before the model,
        (
            r#"{"stream":true,"model":"openai\/gpt-4o"}"#,
            r#"{"stream_options":{"include_usage":true},"stream":true,"model":"gpt-4o"}"#,
        ),
        (
            r#"{"stream":true,"stream_options":{},"model":"openai/gpt-4o", "z":0}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true},"model":"gpt-4o", "z":0}"#,
        ),
        // and after it.
        (
            r#"{"model":"\u006fpenai/gpt-4o","stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"model":"gpt-4o","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
    ];
    for (body, expected) in table {
        let mut call = inspect(CHAT, body, true).unwrap();
        assert_eq!(call.model.as_deref(), Some("openai/gpt-4o"));
        call.set_model("gpt-4o");
        assert_eq!(call.model.as_deref(), Some("gpt-4o"));
        let edited = call.apply_edits(&Bytes::from_static(body.as_bytes())).unwrap();
        assert_eq!(String::from_utf8_lossy(&edited), expected);
        assert_eq!(call.inserts_usage(), body.contains("stream"));
    }
    let mut call = inspect(CHAT, r#"{"model":"x"}"#, true).unwrap();
    call.set_model("first");
    call.set_model("ü \"quoted\"\n");
    let edited = call.apply_edits(&Bytes::from_static(br#"{"model":"x"}"#)).unwrap();
    assert_eq!(String::from_utf8_lossy(&edited), r#"{"model":"ü \"quoted\"\n"}"#);
}

#[test]
fn the_model_alone_can_be_read_first() {
    let table = [
        (r#"{"messages":[{"model":"a"}],"m\u006fdel":"openai\/gpt-4o"}"#, Some("openai/gpt-4o")),
        (r#"{"model":"a","model":"b"}"#, None),
        (r#"{"model":" "}"#, None),
        (r#"{"model":7}"#, None),
        (r#"{}"#, None),
        (r#"{"model":"a""#, None),
        (r#"["a"]"#, None),
        ("", None),
    ];
    for (body, expected) in table {
        assert_eq!(InspectedBody::model_of(body.as_bytes(), None).as_deref(), expected, "{body}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..4)
                .prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn the_change_is_that_token_and_nothing_else(
        extra in prop::collection::vec(("[a-z{}\"\\\\]{1,6}", any_json()), 0..5),
        options in prop::option::of(prop_oneof![
            Just(json!(null)), Just(json!({})), Just(json!({"include_usage": false})),
            Just(json!({"include_obfuscation": false})),
            Just(json!({"x": {"include_usage": true}, "include_usage": null})),
        ]),
        pretty in any::<bool>(),
    ) {
        let mut body = json!({"model": "m", "stream": true});
        for (key, value) in extra.iter().filter(|(key, _)| key != "n") {
            body[key] = value.clone();
        }
        if let Some(options) = &options {
            body["stream_options"] = options.clone();
        }
        let text = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) };
        let text = text.unwrap();
        let after = edited(CHAT, &text).unwrap();

        let mut expected = body.clone();
        if !expected["stream_options"].is_object() {
            expected["stream_options"] = json!({});
        }
        expected["stream_options"]["include_usage"] = json!(true);
        prop_assert_eq!(serde_json::from_str::<Value>(&after).unwrap(), expected);

        // Both changes are made.
        let mut call = inspect(CHAT, &text, false).unwrap();
        call.set_model("another \"model\"");
        let both = call.apply_edits(&Bytes::copy_from_slice(text.as_bytes())).unwrap();
        let key = ["\"model\":\"m\"", "\"model\": \"m\""].into_iter().find(|key| after.contains(*key)).unwrap();
        let expected = after.replacen(key, &key.replace("\"m\"", r#""another \"model\"""#), 1);
        prop_assert_eq!(String::from_utf8_lossy(&both), expected);

        // The bytes before and after the change are the same.
        let same_start = text.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count();
        let same_end = text.bytes().rev().zip(after.bytes().rev()).take_while(|(a, b)| a == b).count();
        prop_assert!(same_start + same_end + "false".len() >= text.len());
    }
}
