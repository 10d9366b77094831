//! Bodies in the providers' own formats: the position of the model, their bounds, and names that
//! are refused with a managed key.

use awc::http::header::{HeaderMap, HeaderName};
use bytes::Bytes;
use serde_json::{Value, json};
use tollgate_provider::AnswerHeaders;
use tollgate_usage::{
    BodyRefusal, InspectedBody, Issue, OutputBound, ResponseEnd, ResponseMeter, UsageBound,
};

use crate::common::endpoint;

const GEMINI: &str = "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-pro";
const BEDROCK: &str = "https://bedrock-runtime.eu-central-1.amazonaws.com/model";
const OPENAI: &str = "https://api.openai.com/v1";

const JSON: Option<&str> = Some("application/json");

fn issues_of(refused: BodyRefusal) -> Vec<Issue> {
    match refused {
        BodyRefusal::Invalid(issues) => issues,
        BodyRefusal::ContentType(hint) => unreachable!("{hint}"),
    }
}

fn read(url: &str, body: &Value) -> Result<(InspectedBody, UsageBound), String> {
    let endpoint = endpoint(url);
    let body = body.to_string();
    let call = InspectedBody::read(body.as_bytes(), JSON, &endpoint, true);
    let call = call.map_err(|issues| {
        issues_of(issues).iter().map(|issue| issue.path.join(".")).collect::<Vec<_>>().join(" ")
    })?;
    let bound = call.bound(&endpoint);
    Ok((call, bound))
}

fn accepted(url: &str, body: Value) -> (InspectedBody, UsageBound) {
    read(url, &body).unwrap_or_else(|issues| unreachable!("{url} {body}: {issues}"))
}

fn unbounded(url: &str, body: Value) -> Option<String> {
    accepted(url, body).1.unbounded.map(|path| path.join("."))
}

#[test]
fn the_model_is_read_from_where_the_endpoint_has_it() {
    let generate = format!("{GEMINI}:generateContent?alt=json");
    let converse = format!("{BEDROCK}/eu.anthropic.claude-v1%3A0/converse");
    let table = [
        (generate.as_str(), json!({"contents": []}), Some("gemini-3-pro")),
        (converse.as_str(), json!({"messages": []}), Some("eu.anthropic.claude-v1:0")),
        (
            "https://res.openai.azure.com/openai/deployments/mine/chat/completions?api-version=2024-10-21",
            json!({"messages": []}),
            Some("mine"),
        ),
        ("https://api.deepgram.com/v1/listen?model=nova-3", json!({"url": "x"}), Some("nova-3")),
        ("https://api.deepgram.com/v1/read", json!({"text": "x"}), None),
        (
            "https://api.elevenlabs.io/v1/text-to-speech/voice",
            json!({"text": "x", "model_id": "eleven_v3"}),
            Some("eleven_v3"),
        ),
        ("https://api.elevenlabs.io/v1/text-to-speech/voice", json!({"text": "x"}), None),
        ("https://api.cohere.com/v2/rerank", json!({"model": "rerank-v4"}), Some("rerank-v4")),
        ("https://api.openai.com/v1/images/generations", json!({"prompt": "x"}), None),
        ("https://api.mistral.ai/v1/ocr", json!({"model": "ocr"}), Some("ocr")),
    ];
    for (url, body, model) in table {
        assert_eq!(accepted(url, body).0.model.as_deref(), model, "{url}");
    }
    for (url, issue) in [
        ("https://api.mistral.ai/v1/ocr", "model"),
        ("https://api.openai.com/v1/audio/speech", "model"),
        ("https://res.openai.azure.com/openai/v1/chat/completions", "model"),
    ] {
        assert_eq!(read(url, &json!({})).unwrap_err(), issue, "{url}");
    }
}

#[test]
fn each_format_bounds_its_answer_by_its_own_field() {
    let generate = format!("{GEMINI}:generateContent");
    let converse = format!("{BEDROCK}/m/converse");
    let invoke = format!("{BEDROCK}/m/invoke");
    let table = [
        (&generate, json!({"generationConfig": {"maxOutputTokens": 7}}), OutputBound::Stated(7)),
        (&generate, json!({"generation_config": {"max_output_tokens": 8}}), OutputBound::Stated(8)),
        (
            &generate,
            json!({"generationConfig": {"maxOutputTokens": 7},
                   "generation_config": {"max_output_tokens": 8}}),
            OutputBound::Stated(8),
        ),
        // A field of another format may be ignored, so it bounds nothing.
        (&generate, json!({"max_tokens": 7}), OutputBound::Unstated),
        (&converse, json!({"inferenceConfig": {"maxTokens": 9}}), OutputBound::Stated(9)),
        (&converse, json!({"max_tokens": 9}), OutputBound::Unstated),
        (&invoke, json!({"max_tokens": 9}), OutputBound::Stated(9)),
        (&invoke, json!({"max_gen_len": 9}), OutputBound::Stated(9)),
        (&invoke, json!({"textGenerationConfig": {"maxTokenCount": 9}}), OutputBound::Stated(9)),
        (&invoke, json!({"inferenceConfig": {"max_new_tokens": 9}}), OutputBound::Stated(9)),
        (&invoke, json!({"max_tokens": 9, "max_gen_len": 12}), OutputBound::Stated(12)),
    ];
    for (url, body, expected) in table {
        assert_eq!(accepted(url, body.clone()).1.output, expected, "{url} {body}");
    }
    let three = json!({"generationConfig": {"candidateCount": 3}});
    assert_eq!(accepted(&generate, three).1.answers, 3);
    for (url, body, issue) in [
        (
            &generate,
            json!({"generationConfig": {"maxOutputTokens": -1}}),
            "generationConfig.maxOutputTokens",
        ),
        (&converse, json!({"inferenceConfig": {"maxTokens": "x"}}), "inferenceConfig.maxTokens"),
        (&invoke, json!({"max_tokens": 1.5}), "max_tokens max_tokens"),
    ] {
        assert_eq!(read(url, &body).unwrap_err(), issue, "{body}");
    }
}

#[test]
fn a_field_of_money_that_stands_twice_is_refused_in_every_format() {
    let generate = endpoint(&format!("{GEMINI}:generateContent"));
    for (body, issue) in [
        (r#"{"generationConfig":{},"generationConfig":{}}"#, "generationConfig"),
        (
            r#"{"generationConfig":{"maxOutputTokens":1,"maxOutputTok\u0065ns":9}}"#,
            "generationConfig.maxOutputTokens",
        ),
    ] {
        let refused = InspectedBody::inspect(body.as_bytes(), &generate, true).unwrap_err();
        assert_eq!(refused[0].path.join("."), issue, "{body}");
    }
}

#[test]
fn what_is_stored_is_not_for_the_managed_key_in_any_format() {
    let generate = format!("{GEMINI}:streamGenerateContent?alt=sse");
    let part = |part: Value| json!({"contents": [{"parts": [part]}]});
    let table = [
        (generate.clone(), json!({"cachedContent": "cachedContents/x"}), "cachedContent"),
        (generate.clone(), json!({"cached_content": "cachedContents/x"}), "cached_content"),
        (
            generate.clone(),
            part(json!({"fileData": {"fileUri": "https://x/files/1"}})),
            "contents.0.parts.0.fileData.fileUri",
        ),
        (
            generate,
            part(json!({"file_data": {"file_uri": "gs://x"}})),
            "contents.0.parts.0.file_data.file_uri",
        ),
        (
            format!("{BEDROCK}/m/converse"),
            json!({"messages": [{"content": [{"image": {"source": {"s3Location":
                {"uri": "s3://bucket/x"}}}}]}]}),
            "messages.0.content.0.image.source.s3Location.uri",
        ),
        (
            "https://api.cohere.com/v1/chat".to_owned(),
            json!({"conversation_id": "x"}),
            "conversation_id",
        ),
        (
            "https://api.mistral.ai/v1/ocr".to_owned(),
            json!({"model": "m", "document": {"file_id": "x"}}),
            "document.file_id",
        ),
    ];
    for (url, body, issue) in table {
        assert_eq!(read(&url, &body).unwrap_err(), issue, "{url} {body}");
        let own =
            InspectedBody::inspect(body.to_string().as_bytes(), &endpoint(&url), false).unwrap();
        assert!(own.bound(&endpoint(&url)).unbounded.is_some(), "{url} {body}");
    }
    let called_back = endpoint("https://api.deepgram.com/v1/listen?model=m&callback=https://x");
    let refused = InspectedBody::read(b"sound", Some("audio/wav"), &called_back, true).unwrap_err();
    assert_eq!(issues_of(refused)[0].path, ["callback"]);
}

#[test]
fn tools_that_run_at_google_or_amazon_leave_the_cost_without_a_bound() {
    let generate = format!("{GEMINI}:generateContent");
    for tool in ["googleSearch", "google_search", "codeExecution", "urlContext", "googleMaps"] {
        let body = json!({"tools": [{tool: {}}], "generationConfig": {"maxOutputTokens": 1}});
        assert_eq!(unbounded(&generate, body), Some(format!("tools.0.{tool}")));
    }
    let function = json!({"tools": [{"functionDeclarations": [{"name": "googleSearch",
        "parameters": {"properties": {"googleSearch": {"type": "string"}}}}]}]});
    assert_eq!(unbounded(&generate, function), None);
    let converse = format!("{BEDROCK}/m/converse");
    let grounded = json!({"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}});
    assert_eq!(unbounded(&converse, grounded).as_deref(), Some("toolConfig.tools.0.systemTool"));
    for field in ["additionalModelRequestFields", "guardrailConfig", "performanceConfig"] {
        assert_eq!(unbounded(&converse, json!({field: {"x": 1}})).as_deref(), Some(field));
    }
}

#[test]
fn images_count_and_documents_have_no_length() {
    let generate = format!("{GEMINI}:generateContent");
    let inline = |kind: &str| json!({"contents": [{"parts": [{"inlineData": {"mimeType": kind, "data": "AAAA"}}]}]});
    let (_, image) = accepted(&generate, inline("image/png"));
    assert!(image.unbounded.is_none() && image.input_tokens > 50_000);
    assert!(unbounded(&generate, inline("application/pdf")).is_some());
    assert!(unbounded(&generate, inline("video/mp4")).is_some());
}

#[test]
fn what_is_no_token_is_counted_by_its_unit() {
    let speech = json!({"model": "tts-1", "input": "né\u{1f600}\n", "voice": "x"});
    let (_, bound) = accepted(&format!("{OPENAI}/audio/speech"), speech);
    assert_eq!((bound.others.input_characters, bound.unbounded), (4, None));
    let spoken = json!({"text": "four"});
    let (_, bound) =
        accepted("https://api.elevenlabs.io/v1/text-to-speech/v/stream", spoken.clone());
    assert_eq!(bound.others.input_characters, 8, "a character costs up to two credits");
    let (_, bound) = accepted("https://api.deepgram.com/v1/speak?model=aura", spoken);
    assert_eq!(bound.others.input_characters, 4);
    let images = json!({"model": "gpt-image-1", "prompt": "x", "n": 3});
    let (_, bound) = accepted(&format!("{OPENAI}/images/generations"), images);
    assert_eq!((bound.others.image, bound.answers), (3, 3));
    let predicted = json!({"instances": [{"prompt": "x"}], "parameters": {"sampleCount": 2}});
    let url = "https://generativelanguage.googleapis.com/v1beta/models/imagen-4:predict";
    assert_eq!(accepted(url, predicted).1.others.image, 2);
    assert_eq!(accepted(url, json!({"instances": []})).1.others.image, 4);
}

/// A form as a client sends it.
fn form(fields: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut form = Vec::new();
    for (name, value) in fields {
        form.extend_from_slice(
            format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
                .as_bytes(),
        );
    }
    form.extend_from_slice(
        b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n",
    );
    form.extend_from_slice(file);
    form.extend_from_slice(b"\r\n--x--\r\n");
    form
}

/// Ten seconds at 8,000 bytes a second.
fn wav() -> Vec<u8> {
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0".to_vec();
    file.extend_from_slice(&8_000_u32.to_le_bytes());
    file.extend_from_slice(b"\x01\0\x08\0data\0\0\0\0");
    file.extend_from_slice(&vec![0; 80_000]);
    file
}

#[test]
fn a_form_names_its_model_and_its_sound_has_a_length() {
    let url = format!("{OPENAI}/audio/transcriptions");
    let endpoint = endpoint(&url);
    let kind = Some("multipart/form-data; boundary=x");
    let read = |body: &[u8]| InspectedBody::read(body, kind, &endpoint, true);
    let call = read(&form(&[("model", "whisper-1"), ("stream", "true")], &wav())).unwrap();
    assert_eq!((call.model.as_deref(), call.stream), (Some("whisper-1"), true));
    let bound = call.bound(&endpoint);
    assert_eq!((bound.others.input_second, bound.unbounded), (10_000_000, None));
    // Packed sound has no length that the body states.
    let call = read(&form(&[("model", "whisper-1")], b"ID3 packed")).unwrap();
    assert_eq!(call.bound(&endpoint).unbounded, Some(vec!["file".to_owned()]));
    for (fields, issue) in [
        (&[][..], "model"),
        (&[("model", "")][..], "model"),
        (&[("model", "a"), ("model", "b")][..], "model"),
        (&[("model", "a"), ("stream", "perhaps")][..], "stream"),
        (&[("model", "a"), ("n", "-1")][..], "n"),
    ] {
        let refused = read(&form(fields, b"x")).unwrap_err();
        assert_eq!(issues_of(refused)[0].path, [issue], "{fields:?}");
    }
    let whole = form(&[("model", "a")], b"x");
    for cut in 0..whole.len() - 4 {
        assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_form_is_taken_only_where_files_are() {
    let kind = Some("multipart/form-data; boundary=x");
    let body = form(&[("model", "cheap")], b"x");
    for (url, taken) in [
        (format!("{OPENAI}/audio/translations"), true),
        (format!("{OPENAI}/images/edits"), true),
        ("https://api.elevenlabs.io/v1/speech-to-text".to_owned(), true),
        (format!("{OPENAI}/chat/completions"), false),
        (format!("{OPENAI}/responses"), false),
        (format!("{GEMINI}:generateContent"), false),
        ("https://api.deepgram.com/v1/listen?model=m".to_owned(), false),
    ] {
        let body = match url.contains("elevenlabs") {
            true => form(&[("model_id", "cheap")], b"x"),
            false => body.clone(),
        };
        assert_eq!(InspectedBody::read(&body, kind, &endpoint(&url), true).is_ok(), taken, "{url}");
    }
}

#[test]
fn a_model_that_stands_twice_in_the_query_is_refused() {
    let endpoint = endpoint("https://api.deepgram.com/v1/listen?model=cheap&%6dodel=dear");
    let refused = InspectedBody::read(&wav(), Some("audio/wav"), &endpoint, true).unwrap_err();
    assert_eq!(issues_of(refused)[0].path, ["model"]);
}

#[test]
fn sound_may_be_the_whole_body() {
    let endpoint = endpoint("https://api.deepgram.com/v1/listen?model=nova-3");
    let call = InspectedBody::read(&wav(), Some("audio/wav"), &endpoint, true).unwrap();
    assert_eq!(call.model.as_deref(), Some("nova-3"));
    let bound = call.bound(&endpoint);
    assert_eq!(bound.others.input_second, 10_000_000);
    assert_eq!(bound.unbounded, Some(vec!["audio".to_owned()]), "options multiply the price");
}

#[test]
fn usage_is_asked_of_azure_only_in_versions_that_know_the_question() {
    let asks = |url: &str| {
        let body = br#"{"model":"m","stream":true,"messages":[]}"#;
        InspectedBody::inspect(body, &endpoint(url), true).unwrap().inserts_usage()
    };
    let deployment = "https://res.openai.azure.com/openai/deployments/d/chat/completions";
    for (version, knows) in [
        ("?api-version=2024-09-01-preview", true),
        ("?api-version=2024-10-21", true),
        ("?api-version=2025-04-01-preview", true),
        ("?api-version=2024-08-01-preview", false),
        ("?api-version=2024-06-01", false),
        ("?api-version=2024-10-01", false),
        ("?api-version=nonsense", false),
        ("?api-version=9999", false),
        ("", false),
    ] {
        assert_eq!(asks(&format!("{deployment}{version}")), knows, "{version}");
    }
    assert!(asks("https://res.openai.azure.com/openai/v1/chat/completions"));
    for (url, knows) in [
        ("https://api.mistral.ai/v1/chat/completions", false),
        ("https://openrouter.ai/api/v1/chat/completions", false),
        ("https://api.perplexity.ai/chat/completions", false),
        ("https://api.groq.com/openai/v1/chat/completions", true),
        ("https://generativelanguage.googleapis.com/v1beta/openai/chat/completions", true),
    ] {
        assert_eq!(asks(url), knows, "{url}");
    }
}

#[test]
fn models_that_search_unasked_have_no_bound() {
    let body = json!({"model": "sonar", "max_tokens": 5, "messages": []});
    let url = "https://api.perplexity.ai/chat/completions";
    assert_eq!(unbounded(url, body).as_deref(), Some("model"));
    let url = "https://api.groq.com/openai/v1/chat/completions";
    let body = |model: &str| json!({"model": model, "max_tokens": 5, "messages": []});
    assert_eq!(unbounded(url, body("groq/compound-mini")).as_deref(), Some("model"));
    assert_eq!(unbounded(url, body("llama-3.3-70b-versatile")), None);
}

#[test]
fn of_cohere_only_a_ranking_leaves_its_cost_without_bound() {
    for (path, output, field) in [
        ("chat", OutputBound::Unstated, None),
        ("embed", OutputBound::None, None),
        ("rerank", OutputBound::None, Some("documents")),
    ] {
        for version in ["v1", "v2"] {
            let url = format!("https://api.cohere.com/{version}/{path}");
            let body = json!({"model": "m", "messages": [{"role": "user", "content": "Say hi."}]});
            assert_eq!(unbounded(&url, body.clone()).as_deref(), field, "{url}");
            assert_eq!(accepted(&url, body).1.output, output, "{url}");
        }
    }
    let stated = json!({"model": "m", "max_tokens": 64, "messages": []});
    let url = "https://api.cohere.com/v2/chat";
    assert_eq!(accepted(url, stated).1.output, OutputBound::Stated(64));
}

#[test]
fn a_body_of_very_many_keys_costs_no_more_than_its_length() {
    let keys: Vec<_> = (0..400_000).map(|key| format!("\"k{key}\":0")).collect();
    let body = format!("{{\"model\":\"m\",\"input\":\"x\",{}}}", keys.join(","));
    let speech = endpoint(&format!("{OPENAI}/audio/speech"));
    assert!(InspectedBody::read(body.as_bytes(), JSON, &speech, true).is_ok());
    let twice = body.replace("\"k399999\"", "\"k7\"");
    let refused = InspectedBody::read(twice.as_bytes(), JSON, &speech, true).unwrap_err();
    assert_eq!(issues_of(refused)[0].path, ["k7"]);
}

#[test]
fn handles_are_found_wherever_they_stand() {
    let compatible = "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions";
    let table: [(&str, Value, &str); 14] = [
        (
            compatible,
            json!({"model": "m", "extra_body": {"google": {"cached_content": "x"}}}),
            "extra_body.google.cached_content",
        ),
        (
            compatible,
            json!({"model": "m", "google": {"cached_content": "x"}}),
            "google.cached_content",
        ),
        (
            "https://api.openai.com/v1/images/edits",
            json!({"images": [{"file_id": "f"}]}),
            "images.0.file_id",
        ),
        (
            "https://api.openai.com/v1/images/edits",
            json!({"mask": {"file_id": "f"}}),
            "mask.file_id",
        ),
        (
            "https://api.openai.com/v1/responses",
            json!({"model": "m", "tools": [{"type": "shell",
            "environment": {"type": "container_reference", "container_id": "c"}}]}),
            "tools.0.environment.container_id",
        ),
        (
            "https://api.openai.com/v1/responses",
            json!({"model": "m", "tools": [{"type": "mcp", "connector_id": "c"}]}),
            "tools.0.connector_id",
        ),
        (
            "https://api.mistral.ai/v1/audio/transcriptions",
            json!({"model": "m", "file_id": "f"}),
            "file_id",
        ),
        (
            "https://api.mistral.ai/v1/ocr",
            json!({"model": "m", "document": {"document": {"file_id": "f"}}}),
            "document.document.file_id",
        ),
        (
            "https://generativelanguage.googleapis.com/v1beta/models/m:countTokens",
            json!({"generateContentRequest": {"cachedContent": "x"}}),
            "generateContentRequest.cachedContent",
        ),
        (
            "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent",
            json!({"tools": [{"retrieval": {"vertexAiSearch": {"datastore": "d"}}}]}),
            "tools.0.retrieval.vertexAiSearch.datastore",
        ),
        (
            "https://bedrock-runtime.eu-central-1.amazonaws.com/model/m/invoke",
            json!({"mediaSource": {"s3Location": {"uri": "S3://bucket/x"}}}),
            "mediaSource.s3Location.uri",
        ),
        (
            "https://api.elevenlabs.io/v1/text-to-speech/v",
            json!({"text": "x", "previous_request_ids": ["r"]}),
            "previous_request_ids",
        ),
        (
            "https://openrouter.ai/api/v1/chat/completions",
            json!({"model": "m", "preset": "p"}),
            "preset",
        ),
        (
            "https://res.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21",
            json!({"messages": [], "data_sources": [{"type": "azure_search"}]}),
            "data_sources",
        ),
    ];
    for (url, body, path) in table {
        assert_eq!(read(url, &body).unwrap_err(), path, "{url} {body}");
    }
    let deferred = json!({"model": "grok-4", "deferred": true});
    let url = "https://api.x.ai/v1/chat/completions";
    assert_eq!(read(url, &deferred).unwrap_err(), "deferred");
    let text = json!({"model": "m", "messages": [{"role": "user", "content": "file_id"}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"properties":
            {"file_id": {"type": "string", "default": "f"}, "url": {"default": "https://x"}}}}}});
    assert!(read(&format!("{OPENAI}/chat/completions"), &text).is_ok(), "a schema is no handle");
}

#[test]
fn parameters_that_hide_what_a_call_used_are_refused_with_the_managed_key() {
    for query in
        ["fields=candidates", "%24fields=candidates", "alt=proto", "Fields=x", "$alt=media"]
    {
        let url = format!("{GEMINI}:generateContent?{query}");
        assert!(read(&url, &json!({"contents": []})).is_err(), "{query}");
        let own = InspectedBody::read(b"{}", JSON, &endpoint(&url), false);
        assert!(own.is_ok(), "{query} with one's own key");
    }
    for query in ["alt=sse", "alt=json", "$prettyPrint=false"] {
        let url = format!("{GEMINI}:streamGenerateContent?{query}");
        assert!(read(&url, &json!({"contents": []})).is_ok(), "{query}");
    }
    let url = "https://api.deepgram.com/v1/listen?model=m&Callback=https://x";
    let refused = InspectedBody::read(&wav(), Some("audio/wav"), &endpoint(url), true).unwrap_err();
    assert_eq!(issues_of(refused)[0].path, ["Callback"]);
}

#[test]
fn a_key_of_money_in_other_letters_is_refused() {
    let url = format!("{OPENAI}/chat/completions");
    let body = json!({"model": "cheap", "Model": "dear", "messages": []});
    assert_eq!(read(&url, &body).unwrap_err(), "Model");
    let body = json!({"model": "m", "messages": [], "customKey": 1});
    assert!(read(&url, &body).is_ok());
}

#[test]
fn keys_that_servers_fold_into_others_are_refused_with_the_managed_key() {
    let chat = format!("{OPENAI}/chat/completions");
    let message = |key: &str| {
        json!({"model": "m", "messages": [{"role": "user", "content":
        [{"type": "image_url", key: {"url": "https://x"}}]}]})
    };
    let table = [
        (json!({"model": "m", "max_to\u{212a}ens": 1}), "max_to\u{212a}ens"),
        (json!({"model": "m", "\u{17f}tream": true}), "\u{17f}tream"),
        (json!({"model": "m", "MAX_TOKENS": 1}), "MAX_TOKENS"),
        (json!({"model": "m", "Tools": []}), "Tools"),
        (json!({"model": "m", "Messages": []}), "Messages"),
        (json!({"model": "m", "tools": [{"Type": "web_search"}]}), "tools.0.Type"),
        (json!({"model": "m", "tools": [{"type": "x", "Max_Uses": 1}]}), "tools.0.Max_Uses"),
        (message("Image_Url"), "messages.0.content.0.Image_Url"),
    ];
    for (body, key) in table {
        assert_eq!(read(&chat, &body).unwrap_err(), key, "{body}");
    }
    assert!(read(&chat, &message("image_url")).is_ok());
    // Keys that the caller defines are free.
    let mine = json!({"model": "m", "tools": [{"type": "function", "function": {"name": "f",
        "parameters": {"properties": {"Type": {"type": "string"}, "URL": {"type": "string"}}}}}],
        "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f",
            "input": {"Type": "x", "File_ID": "y"}}]}]});
    assert!(read(&chat, &mine).is_ok());
    // An escape does not change the letter.
    let escaped = br#"{"model":"m","max_to\u212aens":1}"#;
    let refused = InspectedBody::read(escaped, JSON, &endpoint(&chat), true).unwrap_err();
    assert_eq!(issues_of(refused)[0].path, ["max_to\u{212a}ens"]);
}

#[test]
fn a_body_has_a_type_that_every_server_reads_in_one_way() {
    let chat = format!("{OPENAI}/chat/completions");
    let listen = "https://api.deepgram.com/v1/listen?model=m";
    let json = &br#"{"model":"m"}"#[..];
    let taken = |url: &str, body: &[u8], kind: &str| match InspectedBody::read(
        body,
        Some(kind),
        &endpoint(url),
        true,
    ) {
        Ok(_) => true,
        Err(BodyRefusal::ContentType(hint)) => {
            assert!(hint.contains("application/json"), "{hint}");
            false
        }
        Err(BodyRefusal::Invalid(issues)) => unreachable!("{kind}: {issues:?}"),
    };
    for kind in [
        "application/json",
        "Application/JSON",
        "application/json;charset=UTF-8",
        "application/json; charset=\"utf-8\"",
        "application/json;",
    ] {
        assert!(taken(&chat, json, kind), "{kind}");
    }
    for kind in [
        "application/json; charset=utf-7",
        "application/json; charset=utf-16",
        "application/json; charset=utf-8; charset=utf-7",
        "application/json; profile=x",
        "application/json, text/plain",
        "application/x-www-form-urlencoded",
        "text/plain",
        "application/vnd.api+json",
        "multipart/form-data; boundary=x",
        "application/octet-stream",
        "audio/wav",
        "",
    ] {
        assert!(!taken(&chat, json, kind), "{kind}");
    }
    for kind in ["audio/wav", "video/mp4", "application/octet-stream"] {
        assert!(taken(listen, &wav(), kind), "{kind}");
    }
    assert!(!taken(listen, &wav(), "text/plain"));
    let translations = format!("{OPENAI}/audio/translations");
    let mixed = form(&[("model", "m")], b"x");
    assert!(!taken(&translations, &mixed, "multipart/mixed; boundary=x"));
    let none = InspectedBody::read(json, None, &endpoint(&chat), true);
    assert!(matches!(none, Err(BodyRefusal::ContentType(_))));
}

#[test]
fn what_is_asked_of_a_stream_has_one_meaning() {
    let chat = format!("{OPENAI}/chat/completions");
    let read = |options: &str| {
        let body = format!(r#"{{"model":"m","stream":true,"stream_options":{options}}}"#);
        InspectedBody::read(body.as_bytes(), JSON, &endpoint(&chat), true)
    };
    for options in [
        "null",
        "{}",
        r#"{"include_usage":true}"#,
        r#"{"include_usage":false}"#,
        r#"{"include_usage":null,"include_obfuscation":false}"#,
    ] {
        let call = read(options).unwrap();
        assert!(call.asks_usage || call.inserts_usage(), "{options}");
    }
    for (options, path) in [
        ("0", "stream_options"),
        (r#""off""#, "stream_options"),
        ("[]", "stream_options"),
        ("[true]", "stream_options"),
        ("true", "stream_options"),
        (r#"{"include_usage":1}"#, "stream_options.include_usage"),
        (r#"{"include_usage":"false"}"#, "stream_options.include_usage"),
        (r#"{"include_usage":true,"include_usage":false}"#, "stream_options.include_usage"),
        (r#"{"include_usage":true,"include\u005fusage":false}"#, "stream_options.include_usage"),
        (r#"{"include_usage":true,"Include_Usage":false}"#, "stream_options.Include_Usage"),
    ] {
        let issues = issues_of(read(options).unwrap_err());
        assert_eq!(issues[0].path.join("."), path, "{options}");
    }
    let twice = br#"{"model":"m","stream_options":null,"stream_options":{"include_usage":true}}"#;
    let refused = InspectedBody::read(twice, JSON, &endpoint(&chat), true).unwrap_err();
    assert_eq!(issues_of(refused)[0].path, ["stream_options"]);
}

#[test]
fn an_hour_in_the_cache_is_one_however_it_is_written() {
    let body = br#"{"model":"m","max_tokens":1,"system":[{"type":"text","text":"x",
        "cache_control":{"type":"ephemeral","ttl":"\u0031h"}}],"messages":[]}"#;
    let messages = endpoint("https://api.anthropic.com/v1/messages");
    let call = InspectedBody::read(body, JSON, &messages, true).unwrap();
    let mut headers = HeaderMap::new();
    headers
        .insert("content-type".parse::<HeaderName>().unwrap(), "application/json".parse().unwrap());
    let mut meter = ResponseMeter::new(&messages, 200, &AnswerHeaders(&headers), &call, false);
    let answer = br#"{"model":"m","usage":{"input_tokens":1,"output_tokens":1,
        "cache_creation_input_tokens":100}}"#;
    meter.feed(Bytes::from_static(answer));
    let used = meter.finish(ResponseEnd::Complete).usage.quantities;
    assert_eq!((used.cache_write_1h, used.cache_write), (100, 0));
}

#[test]
fn what_nothing_bounds_is_named() {
    let chat = |host: &str| format!("{host}/chat/completions");
    let table: [(String, Value, &str); 7] = [
        (
            "https://api.together.xyz/v1/rerank".to_owned(),
            json!({"model": "m", "max_tokens": 1, "documents": []}),
            "documents",
        ),
        (
            chat("https://generativelanguage.googleapis.com/v1beta/openai"),
            json!({"model": "m", "max_tokens": 1, "extra_body": {"google": {"thinking_config": {}}}}),
            "extra_body",
        ),
        (
            chat("https://openrouter.ai/api/v1"),
            json!({"model": "Perplexity/Sonar", "max_tokens": 1}),
            "model",
        ),
        (
            chat("https://openrouter.ai/api/v1"),
            json!({"model": "openai/gpt-4o-search-preview", "max_tokens": 1}),
            "model",
        ),
        (
            chat("https://res.openai.azure.com/openai/v1"),
            json!({"model": "model-router", "max_tokens": 1}),
            "model",
        ),
        (
            chat("https://api.groq.com/openai/v1"),
            json!({"model": "compound_custom", "max_tokens": 1}),
            "model",
        ),
        (
            format!("{OPENAI}/audio/speech"),
            json!({"model": "gpt-4o-mini-tts", "input": "x"}),
            "input",
        ),
    ];
    for (url, body, field) in table {
        assert_eq!(unbounded(&url, body.clone()).as_deref(), Some(field), "{url} {body}");
    }
}
