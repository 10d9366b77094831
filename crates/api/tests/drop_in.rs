//! The routes of the providers' own SDKs: a client changes only base URL and key.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestRequest, TestResponse};

use crate::support::{
    Gateway, TestSpendKey, chat_answer, chat_body, each_gateway, each_gateway_with, settings,
};

const USED: &str = "0.0020000000";
const NOTHING: &str = "0.0000000000";

/// A call as the SDK of the one format makes it.
fn call_a(gateway: &Gateway<'_>, path: &str, key: &str) -> TestRequest {
    gateway.call_without_key("POST", path).bearer(key)
}

/// The list of models, requested as the SDK of the one format does.
fn models(gateway: &Gateway<'_>) -> TestRequest {
    gateway.call_without_key("GET", "/models").header("x-stainless-lang", "python")
}

/// A call as the SDK of the other format makes it.
fn call_b(gateway: &Gateway<'_>, path: &str, key: &str) -> TestRequest {
    let call = gateway.call_without_key("POST", path).header("x-api-key", key);
    call.header("anthropic-version", "2023-06-01")
}

fn chat(gateway: &Gateway<'_>, key: &str) -> TestRequest {
    call_a(gateway, "/chat/completions", key).json(&chat_body())
}

fn message_body() -> Value {
    json!({"model": "m-1", "max_tokens": 500, "messages": [{"role": "user", "content": "Hello"}]})
}

fn message(gateway: &Gateway<'_>, key: &str) -> TestRequest {
    call_b(gateway, "/messages", key).json(&message_body())
}

/// An answer of the other format that used 1,000 input and 500 output tokens.
fn message_answer() -> Value {
    json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1-2026", "content": [],
           "stop_reason": "end_turn", "usage": {"input_tokens": 1000, "output_tokens": 500}})
}

async fn key_a(gateway: &Gateway<'_>) -> String {
    gateway.spend_key(&json!({})).await.key
}

async fn key_b(gateway: &Gateway<'_>) -> String {
    gateway.spend_key(&json!({"request_shape": "shape_b"})).await.key
}

/// Checks the fields of an error for the SDK of the one format, in the envelope of this service.
#[track_caller]
fn assert_error_a(answer: &TestResponse, status: u16, code: &str, param: Option<&str>) {
    assert_eq!((answer.status, answer.error().as_str()), (status, code), "{}", answer.text());
    let json = answer.json();
    let kind = json["error"]["type"].as_str();
    assert!(kind.is_some_and(|kind| !kind.is_empty()), "error.type: {json}");
    assert_eq!(json["error"].get("param"), Some(&json!(param)), "error.param: {json}");
}

/// Checks the fields of an error for the SDK of the other format, in the envelope of this service.
#[track_caller]
fn assert_error_b(answer: &TestResponse, status: u16, code: &str) {
    assert_eq!((answer.status, answer.error().as_str()), (status, code), "{}", answer.text());
    let json = answer.json();
    let kind = match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 | 405 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        _ => "api_error",
    };
    assert_eq!((&json["type"], &json["error"]["type"]), (&json!("error"), &json!(kind)), "{json}");
}

// Requests.

#[test]
fn each_route_leads_to_its_providers_path_with_the_body_as_it_came() {
    each_gateway(async |gateway| {
        let (a, b) = (key_a(gateway).await, key_b(gateway).await);
        let response = json!({"id": "resp_1", "object": "response", "status": "completed", "model": "m-1",
                              "usage": {"input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500}});
        let embeddings = json!({"object": "list", "data": [], "model": "m-1",
                                "usage": {"prompt_tokens": 1000, "total_tokens": 1000}});
        let routes = [
            ("/chat/completions", "/v1/chat/completions", &a, chat_answer(), USED),
            ("/responses", "/v1/responses", &a, response, USED),
            ("/embeddings", "/v1/embeddings", &a, embeddings, "0.0010000000"),
            ("/messages", "/anthropic/v1/messages", &b, message_answer(), USED),
            (
                "/messages/count_tokens",
                "/anthropic/v1/messages/count_tokens",
                &b,
                json!({"input_tokens": 14}),
                NOTHING,
            ),
        ];
        let body = br#"{ "input":"x", "messages":[ ],  "max_tokens" :600,"model" :"m-1","temperature":0.10,"note":"\u00e9" }"#;
        for (number, (route, path, key, expected, cost)) in routes.into_iter().enumerate() {
            gateway
                .provider
                .push(ScriptedResponse::json(200, &expected).header("x-provider", "kept"));
            let answer = match route.starts_with("/messages") {
                false => call_a(gateway, route, key),
                true => call_b(gateway, route, key),
            }
            .bytes("application/json", body)
            .send()
            .await;
            assert_eq!(answer.expect(200), expected, "{route}");
            assert_eq!(answer.header("x-provider"), Some("kept"));

            let seen = gateway.provider.requests().remove(number);
            assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", path));
            assert_eq!(seen.body, body, "{route}");
            let managed = "managed-provider-key";
            match route.starts_with("/messages") {
                false => {
                    let bearer = format!("Bearer {managed}");
                    assert_eq!(seen.header("authorization"), Some(bearer.as_str()));
                    assert_eq!(seen.header("x-api-key"), None);
                }
                true => {
                    assert_eq!(seen.header("x-api-key"), Some(managed));
                    assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
                    assert_eq!(seen.header("authorization"), None);
                }
            }
            assert!(!format!("{seen:?}").contains("tgk_"));

            let id = answer.header("x-service-request-id").unwrap();
            let record = gateway.get(&format!("/requests/{id}")).await.expect(200);
            assert_eq!(record["endpoint"], format!("POST {}", gateway.provider.url(path)));
            assert_eq!(record["total_wallet_cost"], cost, "{route}");
            assert_eq!(record["status"], "completed");
            assert!(record["spend_key_id"].is_string());
        }
    });
}

/// The events of a chat stream, with the usage chunk of `include_usage` or without.
fn chat_events(usage: bool) -> Vec<String> {
    let chunk = |choices: Value, usage: Value| {
        json!({"id": "c", "object": "chat.completion.chunk", "model": "m-1-2026", "choices": choices, "usage": usage})
            .to_string()
    };
    let delta = json!([{"index": 0, "delta": {"content": "Hello"}, "finish_reason": null}]);
    let stop = json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]);
    let mut events = vec![chunk(delta, Value::Null), chunk(stop, Value::Null)];
    if usage {
        events.push(chunk(json!([]), json!({"prompt_tokens": 1000, "completion_tokens": 500})));
    }
    events.push("[DONE]".to_owned());
    events
}

fn stream_of(events: &[String]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

#[test]
fn a_streamed_chat_is_asked_for_usage_on_the_way_and_given_back_without_it() {
    each_gateway(async |gateway| {
        let key = key_a(gateway).await;
        gateway.provider.push(ScriptedResponse::events(chat_events(true)));
        // Two edits in one body: the option and the provider's name before the model.
        let body = br#"{"messages":[ ], "model" : "house/m-1" ,"stream": true }"#;
        let call = call_a(gateway, "/chat/completions", &key).bytes("application/json", body);
        let answer = call.send().await;
        assert_eq!(answer.status, 200);
        assert!(answer.complete);
        assert_eq!(answer.text(), stream_of(&chat_events(false)));
        let seen = gateway.provider.request();
        let expected = r#"{"stream_options":{"include_usage":true},"messages":[ ], "model" : "m-1" ,"stream": true }"#;
        assert_eq!(seen.text(), expected);
        let record = gateway.record().await;
        assert_eq!(
            (&record["usage_source"], &record["total_wallet_cost"]),
            (&json!("reported"), &json!(USED))
        );
    });
}

#[test]
fn a_streamed_chat_that_asks_for_usage_passes_as_it_is() {
    each_gateway(async |gateway| {
        let key = key_a(gateway).await;
        gateway.provider.push(ScriptedResponse::events(chat_events(true)));
        let body = br#"{"model":"m-1","stream":true,"stream_options":{"include_usage":true}}"#;
        let call = call_a(gateway, "/chat/completions", &key).bytes("application/json", body);
        let answer = call.send().await;
        assert_eq!(answer.text(), stream_of(&chat_events(true)));
        assert_eq!(gateway.provider.request().body, body);
    });
}

#[test]
fn other_streams_pass_byte_for_byte_in_both_directions() {
    each_gateway(async |gateway| {
        let (a, b) = (key_a(gateway).await, key_b(gateway).await);
        let start = json!({"type": "message_start", "message": {"id": "msg_2", "model": "m-1", "usage": {"input_tokens": 1000, "output_tokens": 1}}});
        let end = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 500}});
        let messages = [
            ("message_start", start),
            ("message_delta", end),
            ("message_stop", json!({"type": "message_stop"})),
        ];
        let response = json!({"id": "resp_1", "model": "m-1", "status": "completed", "usage": {"input_tokens": 1000, "output_tokens": 500}});
        let created = json!({"id": "resp_1", "model": "m-1", "status": "in_progress"});
        let responses = [
            ("response.created", json!({"type": "response.created", "response": created})),
            ("response.completed", json!({"type": "response.completed", "response": response})),
        ];
        let body = br#"{"stream":true, "model":"m-1","max_tokens":600,"max_output_tokens":600,"messages":[],"input":"Hi"}"#;
        for (number, (call, events)) in [
            (call_b(gateway, "/messages", &b), messages.to_vec()),
            (call_a(gateway, "/responses", &a), responses.to_vec()),
        ]
        .into_iter()
        .enumerate()
        {
            gateway.provider.push(ScriptedResponse::named_events(events.clone()));
            let answer = call.bytes("application/json", body).send().await;
            let expected: String = events
                .iter()
                .map(|(name, data)| format!("event: {name}\ndata: {data}\n\n"))
                .collect();
            assert_eq!(answer.text(), expected);
            assert_eq!(gateway.provider.requests()[number].body, body);
            assert!(answer.header("x-service-request-id").is_some());
            assert_eq!(gateway.records().await[0]["total_wallet_cost"], USED);
        }
    });
}

#[test]
fn the_providers_name_before_a_model_is_cut_in_place() {
    each_gateway(async |gateway| {
        let a = gateway.spend_key(&json!({"allowed_models": ["m-1"]})).await.key;
        let b = json!({"request_shape": "shape_b", "allowed_models": ["m-1"]});
        let b = gateway.spend_key(&b).await.key;
        for (body, expected) in [
            (
                r#"{ "x":[ 1,2 ], "model" :  "house/m-1" , "y" : 1.0 }"#,
                r#"{ "x":[ 1,2 ], "model" :  "m-1" , "y" : 1.0 }"#,
            ),
            (r#"{"model":"house\/m-1","z":"house/m-1"}"#, r#"{"model":"m-1","z":"house/m-1"}"#),
            (r#"{"m\u006fdel":"house/m-1"}"#, r#"{"m\u006fdel":"m-1"}"#),
        ] {
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            let call = call_a(gateway, "/chat/completions", &a);
            call.bytes("application/json", body.as_bytes()).send().await.expect(200);
            assert_eq!(gateway.provider.requests().pop().unwrap().text(), expected);
            assert_eq!(gateway.records().await[0]["provider"], "house");
        }
        gateway.provider.push(ScriptedResponse::json(200, message_answer()));
        let mut body = message_body();
        body["model"] = json!("mansion/m-1");
        call_b(gateway, "/messages", &b).json(&body).send().await.expect(200);
        assert_eq!(gateway.provider.requests().pop().unwrap().json(), message_body());
    });
}

#[test]
fn the_query_is_passed_on_without_what_is_ours() {
    each_gateway(async |gateway| {
        let b = key_b(gateway).await;
        gateway.provider.push_always(ScriptedResponse::json(200, message_answer()));
        for (query, passed) in [
            ("?beta=true", "?beta=true"),
            (
                &format!("?beta=true&key={b}&metadata=%7B%22user%22:%22ada%22%7D&x=%20y"),
                "?beta=true&x=%20y",
            ),
            (&format!("?key={b}"), ""),
            (&format!("?k%65y={b}"), ""),
        ] {
            let path = format!("/messages{query}");
            let call = match query.contains('=') && query.contains("y=tgk") {
                true => gateway.call_without_key("POST", &path),
                false => call_b(gateway, &path, &b),
            };
            call.json(&message_body()).send().await.expect(200);
            let seen = gateway.provider.requests().pop().unwrap();
            assert_eq!(seen.target, format!("/anthropic/v1/messages{passed}"));
            let record = gateway.records().await.remove(0);
            let url = gateway.provider.url(&format!("/anthropic/v1/messages{passed}"));
            assert_eq!(record["endpoint"], format!("POST {url}"));
            let user = if query.contains("metadata") { json!({"user": "ada"}) } else { json!({}) };
            assert_eq!(record["metadata"], user);
        }
    });
}

#[test]
fn metadata_is_recorded_and_stays_here() {
    each_gateway(async |gateway| {
        let key = key_a(gateway).await;
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let call = chat(gateway, &key).header("x-service-metadata", r#"{"user":"ada"}"#);
        call.send().await.expect(200);
        assert_eq!(gateway.record().await["metadata"], json!({"user": "ada"}));
        assert_eq!(gateway.provider.request().header("x-service-metadata"), None);

        let bad = chat(gateway, &key).header("x-service-metadata", r#"{"a-b":"x"}"#).send().await;
        assert_error_a(&bad, 400, "metadata_invalid", Some("a-b"));
        gateway.provider.assert_calls(1);
    });
}

#[test]
fn a_providers_error_passes_unchanged() {
    each_gateway(async |gateway| {
        let key = key_b(gateway).await;
        let overloaded =
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "no"}});
        gateway.provider.push(ScriptedResponse::json(529, &overloaded).header("retry-after", "7"));
        let answer = message(gateway, &key).send().await;
        assert_eq!(answer.expect(529), overloaded);
        assert_eq!(answer.header("retry-after"), Some("7"));
        assert!(answer.header("x-service-request-id").is_some());
    });
}

#[test]
fn a_merchants_own_key_works_here_too() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        chat(gateway, gateway.key()).send().await.expect(200);
        let record = gateway.record().await;
        assert_eq!(record["total_merchant_cost"], USED);
        assert_eq!(record.get("spend_key_id"), None);
        chat(gateway, &gateway.token(&json!({}))).send().await.expect(200);
        assert_eq!(gateway.wallet().await.0, "9.9830000000");
    });
}

// Providers.

#[test]
fn the_first_configured_provider_of_a_model_serves_it_unless_the_key_says_otherwise() {
    each_gateway(async |gateway| {
        let free = key_a(gateway).await;
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        chat(gateway, &free).send().await.expect(200);
        assert_eq!(gateway.records().await[0]["provider"], "house");

        // The other provider of the format, which also has prices of these models, cannot be reached.
        let rules = json!({"allowed_providers": ["nobody", "mansion"]});
        let elsewhere = gateway.spend_key(&rules).await.key;
        let answer = chat(gateway, &elsewhere).send().await;
        assert_error_a(&answer, 502, "provider_unreachable", None);
        assert!(answer.header("x-service-request-id").is_some());
        assert_eq!(gateway.records().await[0]["provider"], "nobody");

        let mut named = chat_body();
        named["model"] = json!("nobody/m-1");
        let by_name = call_a(gateway, "/chat/completions", &free).json(&named).send().await;
        assert_error_a(&by_name, 502, "provider_unreachable", None);
        named["model"] = json!("house/m-1");
        let forbidden = call_a(gateway, "/chat/completions", &elsewhere).json(&named).send().await;
        assert_error_a(&forbidden, 403, "spend_key_provider_not_allowed", None);

        let other_format = gateway.spend_key(&json!({"allowed_providers": ["mansion"]})).await.key;
        let forbidden = chat(gateway, &other_format).send().await;
        assert_error_a(&forbidden, 403, "spend_key_provider_not_allowed", None);
        gateway.provider.assert_calls(1);
    });
}

/// One provider lists the id, another has it by a pattern, and the key allows only the second.
#[test]
fn the_allow_list_of_a_key_decides_before_the_better_entry_of_a_price_list() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({"allowed_providers": ["house"]})).await.key;
        let mut answer = chat_answer();
        answer["model"] = json!("m-rare");
        gateway.provider.push(ScriptedResponse::json(200, &answer));
        let mut body = chat_body();
        body["model"] = json!("m-rare");
        let answer = call_a(gateway, "/chat/completions", &key).json(&body).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(gateway.record().await["provider"], "house");
    });
}

#[test]
fn a_model_that_nobody_serves_is_400_and_names_the_model() {
    each_gateway(async |gateway| {
        let (a, b) = (key_a(gateway).await, key_b(gateway).await);
        for model in ["unheard-of", "house/unheard-of", "stranger/m-1", "house/", "/m-1"] {
            let body = json!({"model": model, "messages": [], "max_tokens": 5});
            let answer = call_a(gateway, "/chat/completions", &a).json(&body).send().await;
            assert_error_a(&answer, 400, "model_price_unknown", Some("model"));
            assert_eq!(answer.issue_paths(), ["model"]);
            let answer = call_b(gateway, "/messages", &b).json(&body).send().await;
            assert_error_b(&answer, 400, "model_price_unknown");
            assert_eq!(answer.issue_paths(), ["model"]);
        }
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_body_that_is_not_valid_is_refused_with_every_issue() {
    each_gateway(async |gateway| {
        let (a, b) = (key_a(gateway).await, key_b(gateway).await);
        for (body, paths) in [
            ("{}", vec!["model"]),
            (r#"{"messages":[]}"#, vec!["model"]),
            (r#"{"model":1}"#, vec!["model"]),
            (r#"{"model":null,"stream":"yes"}"#, vec!["model", "stream"]),
            (r#"{"model":"m-1","model":"m-2"}"#, vec!["model"]),
            (r#"{"model":"m-1","max_tokens":1,"max_tokens":2}"#, vec!["max_tokens"]),
            ("", vec![""]),
            ("{", vec![""]),
            (r#"["m-1"]"#, vec![""]),
        ] {
            let call = call_a(gateway, "/chat/completions", &a);
            let answer = call.bytes("application/json", body.as_bytes()).send().await;
            let param = Some(paths[0]).filter(|path| !path.is_empty());
            assert_error_a(&answer, 400, "forward_token_json_invalid", param);
            assert_eq!(answer.issue_paths(), paths, "{body}");
            let call = call_b(gateway, "/messages", &b);
            let answer = call.bytes("application/json", body.as_bytes()).send().await;
            assert_error_b(&answer, 400, "forward_token_json_invalid");
            assert_eq!(answer.issue_paths(), paths, "{body}");
        }
        let stored = json!({"model": "m-1", "input": "Hi", "previous_response_id": "resp_1"});
        let answer = call_a(gateway, "/responses", &a).json(&stored).send().await;
        assert_error_a(&answer, 400, "forward_token_json_invalid", Some("previous_response_id"));
        gateway.provider.assert_calls(0);
    });
}

// Refusals.

#[test]
fn every_refusal_is_said_so_that_either_sdk_understands_it() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let unknown = tollgate_domain::Key::generate(
            tollgate_domain::KeyKind::Spend,
            tollgate_domain::CellNumber::default(),
        );
        let missing =
            gateway.call_without_key("POST", "/chat/completions").bytes("application/json", b"{");
        assert_error_a(&missing.send().await, 401, "auth_header_missing", None);
        let missing = gateway.call_without_key("POST", "/messages").bytes("application/json", b"{");
        assert_error_b(&missing.send().await, 401, "auth_header_missing");
        for key in [unknown.reveal(), "tgk_wrong"] {
            assert_error_a(&chat(gateway, key).send().await, 401, "auth_invalid", None);
            assert_error_b(&message(gateway, key).send().await, 401, "auth_invalid");
        }

        let limit = json!({"amount": "0.0000000001", "cycle": "total"});
        let used_up = json!({"enforcement": "strict", "spend_limit": limit});
        let slow = json!({"rate_limit": {"rpm": 1}});
        let once = json!({"request_limit": {"count": 1, "cycle": "daily"}});
        for (rules, used_before, status, code, param) in [
            (json!({"status": "paused"}), false, 403, "spend_key_paused", None),
            (json!({"expires_at": "2020-01-01T00:00:00Z"}), false, 403, "spend_key_expired", None),
            (
                json!({"allowed_models": []}),
                false,
                403,
                "spend_key_model_not_allowed",
                Some("model"),
            ),
            (used_up, false, 402, "spend_limit_reached", None),
            (slow, true, 429, "rate_limited", None),
            (once, true, 429, "request_limit_reached", None),
        ] {
            let a = gateway.spend_key(&rules).await.key;
            let mut rules_b = rules.clone();
            rules_b["request_shape"] = json!("shape_b");
            let b = gateway.spend_key(&rules_b).await.key;
            if used_before {
                chat(gateway, &a).send().await.expect(200);
                gateway.provider.push(ScriptedResponse::json(200, message_answer()));
                message(gateway, &b).send().await.expect(200);
            }
            let calls = gateway.provider.calls();
            let (of_a, of_b) = (chat(gateway, &a).send().await, message(gateway, &b).send().await);
            assert_error_a(&of_a, status, code, param);
            assert_error_b(&of_b, status, code);
            if status == 429 {
                for answer in [&of_a, &of_b] {
                    // SDKs wait silently for this time, so a longer wait is left to the caller.
                    let seconds = answer.header("retry-after").map(|text| text.parse::<u64>());
                    let soon = code == "rate_limited";
                    assert_eq!(
                        seconds.is_some_and(|seconds| seconds.unwrap() <= 60),
                        soon,
                        "{code}"
                    );
                    assert_eq!(
                        answer.header("x-should-retry"),
                        (!soon).then_some("false"),
                        "{code}"
                    );
                    assert_eq!(answer.header("x-ratelimit-limit"), Some("1"));
                    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
                    assert!(answer.header("x-ratelimit-reset").is_some());
                }
            }
            gateway.provider.assert_calls(calls);
        }
        let (a, b) = (key_a(gateway).await, key_b(gateway).await);
        // A key accepts both formats unless it is restricted to one.
        gateway.provider.push(ScriptedResponse::json(200, message_answer()));
        message(gateway, &a).send().await.expect(200);
        let only = json!({"request_shape": "shape_a"});
        let a = gateway.spend_key(&only).await.key;
        let code = "spend_key_request_shape_mismatch";
        assert_error_a(&chat(gateway, &b).send().await, 403, code, None);
        assert_error_b(&message(gateway, &a).send().await, 403, code);

        let nowhere = gateway.token(&json!({"connection_id": "con_nonsense"}));
        let answer = chat(gateway, &nowhere).send().await;
        assert_error_a(&answer, 404, "connection_not_found", None);
        assert_error_b(&message(gateway, &nowhere).send().await, 404, "connection_not_found");
        gateway.provider.assert_calls(5);
    });
}

#[test]
fn a_body_that_is_too_large_is_said_in_the_sdks_words() {
    let small = tollgate_api::Settings { forward_body_limit_bytes: 1_000, ..settings() };
    each_gateway_with(small, async |gateway| {
        let (a, b) = (key_a(gateway).await, key_b(gateway).await);
        let body = json!({"model": "m-1", "padding": "x".repeat(2_000)});
        let answer = call_a(gateway, "/chat/completions", &a).json(&body).send().await;
        assert_error_a(&answer, 413, "body_too_large", None);
        let answer = call_b(gateway, "/messages", &b).json(&body).send().await;
        assert_error_b(&answer, 413, "body_too_large");
    });
}

#[test]
fn another_method_on_these_routes_is_said_in_the_sdks_words_too() {
    each_gateway(async |gateway| {
        let (a, b) = (key_a(gateway).await, key_b(gateway).await);
        let answer = gateway
            .call_without_key("GET", "/chat/completions")
            .header("x-stainless-lang", "python")
            .bearer(&a)
            .send()
            .await;
        assert_eq!((answer.status, answer.error().as_str()), (405, "method_not_allowed"));
        assert_error_a(&answer, 405, "method_not_allowed", None);
        let answer = gateway
            .call_without_key("GET", "/messages")
            .header("anthropic-version", "2023-06-01")
            .header("x-api-key", &b)
            .send()
            .await;
        assert_error_b(&answer, 405, "method_not_allowed");
    });
}

#[test]
fn a_rotated_or_deleted_key_is_dead_at_once() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let TestSpendKey { key, path, .. } = gateway.spend_key(&json!({})).await;
        let models = |key: &str| models(gateway).bearer(key);
        chat(gateway, &key).send().await.expect(200);
        models(&key).send().await.expect(200);
        let rotated = gateway.call("POST", &format!("{path}/rotate")).send().await.expect(200);
        let new_key = rotated["key"].as_str().unwrap();
        assert_error_a(&models(&key).send().await, 401, "auth_invalid", None);
        assert_error_a(&chat(gateway, &key).send().await, 401, "auth_invalid", None);
        chat(gateway, new_key).send().await.expect(200);
        gateway.call("DELETE", &path).send().await.expect(200);
        assert_error_a(&chat(gateway, new_key).send().await, 401, "auth_invalid", None);
        assert_error_a(&models(new_key).send().await, 401, "auth_invalid", None);
        gateway.provider.assert_calls(2);
    });
}

#[test]
fn what_is_free_is_never_refused_for_money_and_is_a_request() {
    each_gateway(async |gateway| {
        let limit = json!({"amount": "0.0000000001", "cycle": "total"});
        let count = json!({"count": 2, "cycle": "total"});
        let rules = json!({"request_shape": "shape_b", "spend_limit": limit, "request_limit": count, "enforcement": "strict"});
        let key = gateway.spend_key(&rules).await.key;
        gateway.provider.push_always(ScriptedResponse::json(200, json!({"input_tokens": 14})));
        let counting = call_b(gateway, "/messages/count_tokens", &key).json(&message_body());
        counting.send().await.expect(200);
        counting.send().await.expect(200);
        assert_error_b(&counting.send().await, 429, "request_limit_reached");
    });
}

#[test]
fn an_embedding_has_no_maximum_to_ask_for() {
    each_gateway(async |gateway| {
        let limit = json!({"amount": "0.0000000001", "cycle": "total"});
        let rules = json!({"spend_limit": limit, "enforcement": "strict"});
        let key = gateway.spend_key(&rules).await;
        let body = json!({"model": "m-listed", "input": "Hi"});
        let embed = call_a(gateway, "/embeddings", &key.key).json(&body);
        let refused = embed.send().await;
        assert_error_a(&refused, 402, "spend_limit_reached", None);
        assert!(!refused.text().contains("tokens"), "{}", refused.text());
        let bytes = i64::try_from(body.to_string().len()).unwrap();
        let amount = tollgate_pricing::Amount::from_units(bytes * 10_000).to_string();
        let enough = json!({"spend_limit": {"amount": amount, "cycle": "total"}});
        gateway.put(&key.path, &enough).await.expect(200);
        let usage = json!({"prompt_tokens": 2, "total_tokens": 2});
        gateway.provider.push(ScriptedResponse::json(
            200,
            json!({"data": [], "model": "m-listed", "usage": usage}),
        ));
        embed.send().await.expect(200);
    });
}

/// A refusal of the key comes before an error that shows whether the model exists.
#[test]
fn a_paused_key_of_an_unknown_model_reaches_nobody() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({"status": "paused"})).await.key;
        for model in ["m-1", "m-listed", "house/m-1", "nobody/m-1"] {
            let body = json!({"model": model, "messages": []});
            let answer = call_a(gateway, "/chat/completions", &key).json(&body).send().await;
            assert_error_a(&answer, 403, "spend_key_paused", None);
        }
        gateway.provider.assert_calls(0);
    });
}

// Models.

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect()
}

#[test]
fn models_are_listed_as_both_sdks_read_them() {
    each_gateway(async |gateway| {
        let key = key_a(gateway).await;
        let by_key = gateway.call_without_key("GET", "/models").bearer(&key);
        let list = by_key.send().await.expect(200);
        assert_eq!(list["object"], "list");
        assert_eq!(ids(&list), ["m-listed", "m-rare"]);
        assert_eq!((&list["first_id"], &list["last_id"]), (&json!("m-listed"), &json!("m-rare")));
        assert_eq!(list["has_more"], false);
        let model = &list["data"][0];
        assert_eq!((&model["object"], &model["type"]), (&json!("model"), &json!("model")));
        assert_eq!(model["owned_by"], "house");
        assert!(model["created"].is_i64() && model["display_name"].is_string(), "{model}");
        assert!(model["created_at"].as_str().unwrap().ends_with('Z'));

        let in_header = gateway.call_without_key("GET", "/models").header("x-api-key", &key);
        assert_eq!(in_header.send().await.expect(200), list);
        let in_query = gateway.call_without_key("GET", &format!("/models?key={key}"));
        assert_eq!(in_query.send().await.expect(200), list);
        assert_eq!(ids(&gateway.get("/models").await.expect(200)), ["m-listed", "m-rare"]);
        assert_eq!(gateway.records().await.len(), 0, "nothing is forwarded");
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_key_lists_what_it_may_call() {
    each_gateway(async |gateway| {
        for (rules, expected) in [
            (json!({}), vec!["m-listed", "m-rare"]),
            (json!({"request_shape": "shape_b"}), vec!["m-listed"]),
            (json!({"allowed_models": ["m-r*"]}), vec!["m-rare"]),
            (json!({"allowed_models": []}), vec![]),
            (json!({"allowed_providers": ["house"]}), vec!["m-listed"]),
            // Models of the other format.
            (json!({"allowed_providers": ["mansion"]}), vec!["m-listed"]),
            (json!({"allowed_providers": ["mansion"], "request_shape": "shape_a"}), vec![]),
        ] {
            let key = gateway.spend_key(&rules).await.key;
            let answer = gateway.call_without_key("GET", "/models").bearer(&key).send().await;
            let list = answer.expect(200);
            assert_eq!(ids(&list), expected, "{rules}");
            if expected.is_empty() {
                assert_eq!((&list["first_id"], &list["last_id"]), (&json!(null), &json!(null)));
            }
        }
    });
}

#[test]
fn models_are_paged_when_a_limit_is_given() {
    each_gateway(async |gateway| {
        let page = async |query: &str| {
            let list = gateway.get(&format!("/models{query}")).await.expect(200);
            let ids: Vec<_> = ids(&list).into_iter().map(str::to_owned).collect();
            (ids, list["has_more"] == true)
        };
        let (listed, rare) = (vec!["m-listed".to_owned()], vec!["m-rare".to_owned()]);
        assert_eq!(page("?limit=1").await, (listed.clone(), true));
        assert_eq!(page("?limit=1&after_id=m-listed").await, (rare.clone(), false));
        assert_eq!(page("?limit=1&after_id=m-rare").await, (vec![], false));
        assert_eq!(page("?limit=1&before_id=m-rare").await, (listed, false));
        assert_eq!(page("?after_id=m-listed").await, (rare, false));
        assert!(!page("?limit=2").await.1);
        for limit in ["0", "x", "-1", ""] {
            let answer = gateway.get(&format!("/models?limit={limit}")).await;
            assert_eq!((answer.status, answer.error().as_str()), (400, "validation_failed"));
            assert_eq!(answer.issue_paths(), ["limit"]);
        }
    });
}

/// A client that pages from a missing id would otherwise start from the first page for ever.
#[test]
fn a_page_after_an_id_that_is_not_listed_is_not_the_first_page_again() {
    each_gateway(async |gateway| {
        let answer = gateway.get("/models?limit=1&after_id=m-gone").await;
        assert_ne!(
            (answer.status, answer.json()["data"][0]["id"].clone()),
            (200, json!("m-listed"))
        );
    });
}

#[test]
fn models_are_for_valid_keys_only() {
    each_gateway(async |gateway| {
        let models = || models(gateway);
        assert_error_a(&models().send().await, 401, "auth_header_missing", None);
        let b = || {
            let call = gateway.call_without_key("GET", "/models");
            call.header("anthropic-version", "2023-06-01")
        };
        assert_error_b(&b().send().await, 401, "auth_header_missing");
        for (rules, code) in [
            (json!({"status": "paused"}), "spend_key_paused"),
            (json!({"expires_at": "2020-01-01T00:00:00Z"}), "spend_key_expired"),
        ] {
            let key = gateway.spend_key(&rules).await.key;
            assert_error_a(&models().bearer(&key).send().await, 403, code, None);
            assert_error_b(&b().header("x-api-key", &key).send().await, 403, code);
        }
    });
}

#[test]
fn a_deleted_secret_key_lists_no_models_any_more() {
    each_gateway(async |gateway| {
        let made = gateway.post("/secret_keys", &json!({"name": "second"})).await.expect(201);
        let models = models(gateway).bearer(made["secret_key"].as_str().unwrap());
        models.send().await.expect(200);
        let path = format!("/secret_keys/{}", made["secret_key_id"].as_str().unwrap());
        gateway.call("DELETE", &path).send().await.expect(200);
        assert_error_a(&models.send().await, 401, "auth_invalid", None);
    });
}

/// Some clients of a format are not the official SDKs, which send more headers.
#[test]
fn a_plain_client_that_may_not_list_models_is_told_in_the_format_as_well() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({"status": "paused"})).await.key;
        let call = gateway.call_without_key("GET", "/models").bearer(&key);
        assert_error_a(&call.send().await, 403, "spend_key_paused", None);
    });
}
