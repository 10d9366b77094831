//! The simulator over real sockets, as a plain HTTP client sees it.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::rt;
use awc::error::PayloadError;
use serde_json::{Value, json};
use tollgate_simulator::{Behavior, Simulator, Stats};

fn simulator() -> Simulator {
    Simulator::start("127.0.0.1:0", Behavior::default()).unwrap()
}

/// An answer: the status, some headers, and the bytes that arrived.
struct ReceivedResponse {
    status: StatusCode,
    headers: awc::http::header::HeaderMap,
    body: Result<Vec<u8>, PayloadError>,
}

impl ReceivedResponse {
    fn text(&self) -> String {
        String::from_utf8(self.body.as_ref().unwrap().clone()).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The names and data of the events, after a check of their framing.
    fn events(&self) -> Vec<(String, String)> {
        assert!(self.header("content-type").starts_with("text/event-stream"));
        let text = self.text();
        let events = text.strip_suffix("\n\n").expect("the last event ends").split("\n\n");
        let parse = |event: &str| {
            let (name, data) = match event.split_once('\n') {
                Some((name, data)) => (name.strip_prefix("event: ").unwrap(), data),
                None => ("", event),
            };
            (name.to_owned(), data.strip_prefix("data: ").unwrap().to_owned())
        };
        events.map(parse).collect()
    }

    fn event_data(&self) -> Vec<Value> {
        let data = self.events().into_iter().map(|(_, data)| data);
        data.filter(|data| data != "[DONE]").map(|d| serde_json::from_str(&d).unwrap()).collect()
    }
}

/// A plain client. It needs a process-wide cryptography provider even for plain HTTP.
fn client() -> awc::Client {
    // Fails if another test has installed it, which is fine.
    drop(rustls::crypto::ring::default_provider().install_default());
    awc::Client::builder().no_default_headers().disable_redirects().finish()
}

async fn post(
    simulator: &Simulator,
    path: &str,
    with: &[(&str, &str)],
    body: Value,
) -> ReceivedResponse {
    let mut request = client().post(simulator.url(path)).no_decompress();
    for header in with {
        request = request.insert_header(*header);
    }
    receive(request.send_json(&body).await.unwrap()).await
}

async fn get(simulator: &Simulator, path: &str, with: &[(&str, &str)]) -> ReceivedResponse {
    let mut request = client().get(simulator.url(path));
    for header in with {
        request = request.insert_header(*header);
    }
    receive(request.send().await.unwrap()).await
}

async fn receive<S>(mut response: awc::ClientResponse<S>) -> ReceivedResponse
where
    S: futures_util::Stream<Item = Result<bytes::Bytes, PayloadError>>,
{
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.body().limit(1 << 27).await.map(|body| body.to_vec());
    ReceivedResponse { status, headers, body }
}

fn chat(more: Value) -> Value {
    let prompt = json!([{"role": "user", "content": "say hello to me"}]);
    merged(json!({"model": "gpt-x", "messages": prompt}), more)
}

fn merged(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

fn weather_tool() -> Value {
    json!({"name": "weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    }})
}

#[actix_web::test]
async fn a_chat_is_answered_in_the_shape_of_its_dialect() {
    let simulator = simulator();

    let answer = post(&simulator, "/v1/chat/completions", &[], chat(json!({}))).await;

    assert_eq!(answer.status, 200);
    assert!(answer.header("x-request-id").starts_with("req_"));
    let body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "gpt-x");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let text = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("You said: say hello to me"), "{text}");
    assert_eq!(text.split(' ').count(), 16);
    assert_eq!(body["usage"]["prompt_tokens"], 4);
    assert_eq!(body["usage"]["completion_tokens"], 16);
    assert_eq!(body["usage"]["total_tokens"], 20);
}

#[actix_web::test]
async fn a_streamed_chat_shows_usage_only_when_asked_and_then_in_an_extra_chunk() {
    let simulator = simulator();
    for (asked, extra) in [(json!({}), 0), (json!({"include_usage": true}), 1)] {
        let body = chat(json!({"stream": true, "stream_options": asked}));
        let answer = post(&simulator, "/v1/chat/completions", &[], body).await;

        let events = answer.events();
        assert_eq!(events.last().unwrap().1, "[DONE]");
        let chunks = answer.event_data();
        assert_eq!(chunks.len(), 1 + 16 + 1 + extra);
        let text: String =
            chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
        assert!(text.starts_with("You said: say hello to me I am"), "{text}");
        let (ending, choices): (Vec<_>, Vec<_>) =
            chunks.iter().partition(|chunk| chunk["choices"] == json!([]));
        assert_eq!(choices.last().unwrap()["choices"][0]["finish_reason"], "stop");
        for chunk in choices {
            assert_eq!(chunk.get("usage").is_some(), extra == 1);
            assert_eq!(chunk["usage"], Value::Null);
        }
        assert_eq!(ending.len(), extra);
        for chunk in ending {
            assert_eq!(chunk["usage"]["total_tokens"], 20);
        }
    }
}

#[actix_web::test]
async fn several_choices_are_all_there_and_all_paid_for() {
    let simulator = simulator();

    let whole = post(&simulator, "/v1/chat/completions", &[], chat(json!({"n": 3}))).await.json();
    let body = chat(json!({"n": 3, "stream": true}));
    let stream = post(&simulator, "/v1/chat/completions", &[], body).await;

    assert_eq!(whole["choices"].as_array().unwrap().len(), 3);
    assert_eq!(whole["usage"]["completion_tokens"], 48);
    let indices = stream
        .event_data()
        .iter()
        .map(|c| c["choices"][0]["index"].clone())
        .max_by_key(|i| i.as_u64());
    assert_eq!(indices, Some(json!(2)));
    assert_eq!(simulator.stats().output_tokens, 96);
}

#[actix_web::test]
async fn a_limit_on_tokens_cuts_the_answer_in_every_dialect() {
    let simulator = simulator();
    for (path, limit, reason) in [
        ("/v1/chat/completions", "max_completion_tokens", "/choices/0/finish_reason"),
        ("/v1/completions", "max_tokens", "/choices/0/finish_reason"),
        ("/v1/responses", "max_output_tokens", "/incomplete_details/reason"),
        ("/v1/messages", "max_tokens", "/stop_reason"),
    ] {
        let body = json!({"model": "m", "prompt": "a b", limit: 3});
        let answer = post(&simulator, path, &[], body).await.json();
        let reason = answer.pointer(reason).and_then(Value::as_str).unwrap();
        assert!(["length", "max_tokens", "max_output_tokens"].contains(&reason), "{path} {reason}");
        assert!(answer.to_string().contains("\"You said: a\""), "{answer}");
    }
}

#[actix_web::test]
async fn the_older_completions_stream_text() {
    let simulator = simulator();
    let body = json!({"model": "m", "prompt": "a b", "stream": true,
        "stream_options": {"include_usage": true}});

    let chunks = post(&simulator, "/v1/completions", &[], body).await.event_data();

    assert_eq!(chunks.len(), 16 + 1 + 1);
    assert_eq!(chunks[0]["object"], "text_completion");
    assert_eq!(chunks[0]["choices"][0]["text"], "You ");
    assert_eq!(chunks[16]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks[17]["usage"]["prompt_tokens"], 2);
}

#[actix_web::test]
async fn a_response_is_streamed_as_numbered_events_that_end_in_its_usage() {
    let simulator = simulator();
    let body = json!({"model": "m", "input": "one two three", "instructions": "be brief"});

    let whole = post(&simulator, "/v1/responses", &[], body.clone()).await.json();
    let answer =
        post(&simulator, "/v1/responses", &[], merged(body, json!({"stream": true}))).await;

    assert_eq!(whole["status"], "completed");
    assert_eq!(whole["usage"]["input_tokens"], 5);
    assert_eq!(whole["output"][0]["content"][0]["type"], "output_text");
    for (number, (name, data)) in answer.events().into_iter().enumerate() {
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["type"], name.as_str());
        assert_eq!(data["sequence_number"], number);
    }
    let events = answer.event_data();
    assert_eq!(events[0]["type"], "response.created");
    assert_eq!(events[0]["response"]["usage"], Value::Null);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["usage"], whole["usage"]);
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(whole["output"][0]["content"][0]["text"], deltas.as_str());
}

#[actix_web::test]
async fn a_message_is_streamed_from_start_to_stop_with_cumulative_usage() {
    let simulator = simulator();
    let with = [("x-simulate-input-tokens", "10"), ("x-simulate-cached-tokens", "4")];
    let body = chat(json!({"max_tokens": 100, "system": "be brief"}));

    let whole = post(&simulator, "/v1/messages", &with, body.clone()).await;
    let stream =
        post(&simulator, "/v1/messages", &with, merged(body, json!({"stream": true}))).await;

    assert!(whole.header("request-id").starts_with("req_"));
    let whole = whole.json();
    assert_eq!(whole["usage"]["input_tokens"], 6);
    assert_eq!(whole["usage"]["cache_read_input_tokens"], 4);
    assert_eq!(whole["stop_reason"], "end_turn");
    let mut names: Vec<_> = stream.events().into_iter().map(|(name, _)| name).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "ping",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let events = stream.event_data();
    assert_eq!(events[0]["message"]["usage"]["output_tokens"], 1);
    assert_eq!(events[0]["message"]["usage"]["cache_read_input_tokens"], 4);
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["usage"]["output_tokens"], 16);
    assert_eq!(delta["usage"]["input_tokens"], 6);
}

#[actix_web::test]
async fn tokens_of_a_message_are_counted_for_nothing() {
    let simulator = simulator();

    let answer = post(&simulator, "/v1/messages/count_tokens", &[], chat(json!({}))).await;

    assert_eq!(answer.json(), json!({"input_tokens": 4}));
    assert_eq!(simulator.stats().input_tokens, 0);
    assert_eq!(simulator.stats().calls, 1);
}

#[actix_web::test]
async fn embeddings_come_one_per_input_as_numbers_or_base64() {
    let simulator = simulator();
    let body = json!({"model": "m", "input": ["a b", "c"], "dimensions": 3});

    let numbers = post(&simulator, "/v1/embeddings", &[], body.clone()).await.json();
    let base64 = merged(body, json!({"encoding_format": "base64"}));
    let base64 = post(&simulator, "/v1/embeddings", &[], base64).await.json();

    assert_eq!(numbers["data"].as_array().unwrap().len(), 2);
    assert_eq!(numbers["data"][1]["embedding"].as_array().unwrap().len(), 3);
    assert_eq!(base64["data"][0]["embedding"].as_str().unwrap().len(), 16);
    assert_eq!(numbers["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
}

#[actix_web::test]
async fn models_are_listed_in_both_dialects() {
    let simulator = simulator();
    let anthropic = [("anthropic-version", "2023-06-01")];

    let list = get(&simulator, "/v1/models", &[]).await.json();
    assert_eq!(list["data"][0]["object"], "model");
    assert_eq!(get(&simulator, "/v1/models/a/b", &[]).await.json()["id"], "a/b");
    let list = get(&simulator, "/v1/models", &anthropic).await.json();
    assert_eq!(list["data"][0]["type"], "model");
    assert_eq!(list["has_more"], false);
}

#[actix_web::test]
async fn the_first_tool_is_called_and_not_again_after_its_result() {
    let simulator = simulator();
    let arguments = json!({"city": "simulated", "days": 1});
    let function = json!({"tools": [{"type": "function", "function": weather_tool()}]});

    let whole = post(&simulator, "/v1/chat/completions", &[], chat(function.clone())).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "weather");
    assert_eq!(
        serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap(),
        arguments
    );

    let body = merged(chat(function.clone()), json!({"stream": true}));
    let chunks = post(&simulator, "/v1/chat/completions", &[], body).await.event_data();
    let parts: String = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str())
        .collect();
    assert_eq!(serde_json::from_str::<Value>(&parts).unwrap(), arguments);

    let answered = json!({"messages": [{"role": "tool", "tool_call_id": "c", "content": "rain"}]});
    let body = merged(chat(function), answered);
    let whole = post(&simulator, "/v1/chat/completions", &[], body).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
}

#[actix_web::test]
async fn a_tool_is_called_in_messages_and_in_responses_too() {
    let simulator = simulator();
    let arguments = json!({"city": "simulated", "days": 1});
    let mut tool = weather_tool();
    let tools = json!({"tools": [tool], "stream": true});
    let input = merged(json!({"model": "m", "input": "rain?"}), tools);
    let events = post(&simulator, "/v1/responses", &[], input).await.event_data();
    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(item["type"], "function_call");
    assert_eq!(item["arguments"], arguments.to_string());
    let parts: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(parts, arguments.to_string());

    tool["input_schema"] = tool.as_object_mut().unwrap().remove("parameters").unwrap();
    let body = chat(json!({"max_tokens": 9, "tools": [tool]}));
    let whole = post(&simulator, "/v1/messages", &[], body.clone()).await.json();
    assert_eq!(whole["stop_reason"], "tool_use");
    assert_eq!(whole["content"][0]["input"], arguments);
    let body = merged(body, json!({"stream": true}));
    let events = post(&simulator, "/v1/messages", &[], body).await.event_data();
    let parts: String =
        events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(parts, arguments.to_string());
}

#[actix_web::test]
async fn usage_can_be_withheld_or_false() {
    let simulator = simulator();
    for (report, expected) in [("missing", None), ("null", Some(Value::Null))] {
        for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"] {
            let with = [("x-simulate-usage", report)];
            let answer = post(&simulator, path, &with, chat(json!({}))).await.json();
            assert_eq!(answer.get("usage"), expected.as_ref(), "{path}");
        }
    }
    assert_eq!(simulator.stats().input_tokens, 8 * 4, "silence is not free");

    let with = [("x-simulate-usage", "zero")];
    let answer = post(&simulator, "/v1/chat/completions", &with, chat(json!({}))).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 0);
    assert_eq!(simulator.stats().input_tokens, 8 * 4, "an explicit zero is");

    let with = [("x-simulate-usage", "missing")];
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = post(&simulator, "/v1/chat/completions", &with, body).await;
    assert!(!answer.text().contains("usage"));
    assert_eq!(answer.event_data().len(), 18);
}

#[actix_web::test]
async fn numbers_model_and_tier_are_as_the_call_wants_them() {
    let simulator = simulator();
    let with = [
        ("x-simulate-input-tokens", "100"),
        ("x-simulate-output-tokens", "5"),
        ("x-simulate-reasoning-tokens", "7"),
        ("x-simulate-cached-tokens", "60"),
        ("x-simulate-snapshot", "2026-01-02"),
        ("x-simulate-service-tier", "flex"),
        ("x-simulate-words", "2"),
    ];

    let answer = post(&simulator, "/v1/chat/completions", &with, chat(json!({}))).await.json();

    assert_eq!(answer["model"], "gpt-x-2026-01-02");
    assert_eq!(answer["service_tier"], "flex");
    assert_eq!(answer["choices"][0]["message"]["content"], "You said:");
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], 100);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 60);
    assert_eq!(usage["completion_tokens"], 7, "raised to its part");
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 7);
}

#[actix_web::test]
async fn errors_speak_the_dialect_of_their_path() {
    let simulator = simulator();
    let with = [("x-simulate-status", "429"), ("x-simulate-retry-after", "7")];

    let openai = post(&simulator, "/v1/chat/completions", &with, chat(json!({}))).await;
    assert_eq!(openai.status, 429);
    assert_eq!(openai.header("retry-after"), "7");
    assert_eq!(openai.json()["error"]["code"], "rate_limit_exceeded");

    let anthropic = post(&simulator, "/v1/messages", &with[..1], chat(json!({}))).await;
    assert_eq!(anthropic.header("retry-after"), "1");
    assert_eq!(anthropic.json()["type"], "error");
    assert_eq!(anthropic.json()["error"]["type"], "rate_limit_error");

    for (path, with, body, status) in [
        ("/v1/chat/completions", ("x-simulate-statsu", "1"), chat(json!({})), 400),
        ("/v1/chat/completions", ("x-simulate-words", "many"), chat(json!({})), 400),
        ("/v1/chat/completions", ("x-simulate-words", "1"), json!({"messages": []}), 400),
        ("/v1/nothing", ("x-simulate-words", "1"), chat(json!({})), 404),
    ] {
        let answer = post(&simulator, path, &[with], body).await;
        assert_eq!(answer.status, status, "{path} {with:?}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    let stats = simulator.stats();
    assert_eq!((stats.calls, stats.errors, stats.input_tokens), (6, 6, 0));
}

#[actix_web::test]
async fn only_the_right_key_opens_a_simulator_that_has_one() {
    let behavior = Behavior { api_key: Some("sk-right".to_owned()), ..Behavior::default() };
    let simulator = Simulator::start("127.0.0.1:0", behavior).unwrap();
    for (header, status) in [
        (("authorization", "Bearer sk-right"), 200),
        (("x-api-key", "sk-right"), 200),
        (("authorization", "Bearer sk-wrong"), 401),
        (("accept", "*/*"), 401),
    ] {
        let answer = post(&simulator, "/v1/chat/completions", &[header], chat(json!({}))).await;
        assert_eq!(answer.status, status, "{header:?}");
    }
}

/// Everything that the connection returns, read without awc, which takes a body that ends too early
/// for a complete one.
fn post_raw(simulator: &Simulator, path: &str, header: (&str, &str), body: &Value) -> String {
    let (name, value) = header;
    let body = body.to_string();
    let length = body.len();
    let mut socket = TcpStream::connect(simulator.addr()).unwrap();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nhost: x\r\n{name}: {value}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_stream_can_break_after_any_number_of_events() {
    let simulator = simulator();
    for path in ["/v1/chat/completions", "/v1/messages"] {
        for events in ["0", "1", "5"] {
            let cut = ("x-simulate-cut-after-events", events);
            let answer = post_raw(&simulator, path, cut, &chat(json!({"stream": true})));

            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(!answer.ends_with("0\r\n\r\n"), "{path} {events}: the body has an end");
            assert_eq!(answer.matches("data: ").count().to_string(), events, "{path}");
        }
    }
}

#[test]
fn a_plain_body_can_break_half_way() {
    let simulator = simulator();
    let cut = ("x-simulate-cut-after-events", "0");

    let answer = post_raw(&simulator, "/v1/chat/completions", cut, &chat(json!({})));

    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
    assert_eq!(body.len(), length.parse::<usize>().unwrap() / 2);
}

#[actix_web::test]
async fn a_stream_can_end_in_an_error_of_its_dialect() {
    let simulator = simulator();
    let with = [("x-simulate-error-after-events", "3")];
    for (path, kind) in [
        ("/v1/chat/completions", "/error/type"),
        ("/v1/messages", "/error/type"),
        ("/v1/responses", "/code"),
    ] {
        let answer = post(&simulator, path, &with, chat(json!({"stream": true}))).await;
        let events = answer.event_data();
        assert_eq!(events.len(), 4, "{path}");
        let kind = events[3].pointer(kind).and_then(Value::as_str).unwrap();
        assert!(["server_error", "overloaded_error"].contains(&kind));
    }
}

#[actix_web::test]
async fn compressed_answers_are_the_plain_ones_compressed() {
    let simulator = simulator();
    let with = [("x-simulate-encoding", "gzip")];
    for stream in [false, true] {
        let body = chat(json!({"stream": stream}));
        let answer = post(&simulator, "/v1/chat/completions", &with, body).await;

        assert_eq!(answer.header("content-encoding"), "gzip");
        let mut text = String::new();
        let bytes = answer.body.unwrap();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        assert!(text.contains("chatcmpl-"));
        assert_eq!(text.contains("[DONE]"), stream);
    }
}

#[actix_web::test]
async fn delays_are_kept() {
    let simulator = simulator();
    let with = [
        ("x-simulate-first-byte-delay-ms", "20"),
        ("x-simulate-chunk-delay-ms", "5"),
        ("x-simulate-words", "2"),
    ];
    let start = std::time::Instant::now();

    let answer =
        post(&simulator, "/v1/chat/completions", &with, chat(json!({"stream": true}))).await;

    assert_eq!(answer.events().len(), 5);
    assert!(start.elapsed().as_millis() >= 20 + 4 * 5);
}

#[actix_web::test]
async fn words_can_say_when_they_were_sent() {
    let simulator = simulator();
    let with = [
        ("x-simulate-chunk-delay-ms", "2"),
        ("x-simulate-words", "3"),
        ("x-simulate-stamps", "true"),
    ];
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let before = now();

    let answer =
        post(&simulator, "/v1/chat/completions", &with, chat(json!({"stream": true}))).await;

    let words = answer.event_data();
    let words = words.iter().filter_map(|data| data["choices"][0]["delta"]["content"].as_str());
    let sent: Vec<u128> = words.filter_map(|word| word.trim().parse().ok()).collect();
    let &[first, second, third] = sent.as_slice() else { panic!("{sent:?}") };
    assert!(before < first && third < now());
    assert!(second - first >= 2_000_000 && third - second >= 2_000_000);
}

#[actix_web::test]
async fn its_books_can_be_read_from_outside() {
    let simulator = simulator();
    post(&simulator, "/v1/chat/completions", &[], chat(json!({}))).await;
    post(&simulator, "/v1/messages", &[], chat(json!({"stream": true}))).await;

    let stats: Stats = serde_json::from_value(get(&simulator, "/stats", &[]).await.json()).unwrap();

    assert_eq!(stats, simulator.stats());
    assert_eq!((stats.calls, stats.input_tokens, stats.output_tokens), (2, 8, 32));
    assert_eq!(stats.endpoints["/v1/messages"].output_tokens, 16);
}

#[actix_web::test]
async fn a_receiver_shows_what_came_and_how_it_was_answered() {
    let simulator = simulator();
    let message = json!({"type": "webhook.test"});
    for expected in [500, 500, 201, 201] {
        let with = [("webhook-id", "evt_1")];
        let path = "/webhooks/a?fail=2&status=201&body_bytes=5";
        let answer = post(&simulator, path, &with, message.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (expected, "xxxxx"));
    }
    let elsewhere = post(&simulator, "/webhooks/b?redirect=/webhooks/a", &[], json!({})).await;
    assert_eq!((elsewhere.status.as_u16(), elsewhere.header("location")), (307, "/webhooks/a"));

    let came = get(&simulator, "/webhooks/a", &[]).await.json();
    let came = came["data"].as_array().unwrap();
    let answered: Vec<_> = came.iter().map(|one| &one["answered"]).collect();
    assert_eq!(json!(answered), json!([500, 500, 201, 201]));
    assert_eq!(came[3]["number"], 4);
    assert_eq!(came[3]["headers"]["webhook-id"], "evt_1");
    assert_eq!(came[3]["body"], message.to_string());
    assert!(came[0]["at_ms"].as_u64().unwrap() <= came[3]["at_ms"].as_u64().unwrap());
    assert_eq!(get(&simulator, "/webhooks/c", &[]).await.json(), json!({"data": []}));
}

#[actix_web::test]
async fn a_receiver_can_hang_and_cut() {
    let simulator = simulator();
    for (path, answered) in [("/webhooks/a?cut=1", "cut"), ("/webhooks/b?hang=1", "hang")] {
        let request = client().post(simulator.url(path)).timeout(Duration::from_millis(300));
        assert!(request.send_body("{}").await.is_err(), "{path}");
        let path = path.split_once('?').unwrap().0;
        assert_eq!(get(&simulator, path, &[]).await.json()["data"][0]["answered"], answered);
    }
    let address = simulator.addr();
    let raw = rt::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = "POST /webhooks/a?cut=1 HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    });
    assert_eq!(raw.await.unwrap(), b"", "not even a status line");
}

#[actix_web::test]
async fn a_receiver_keeps_the_latest_messages_only() {
    let simulator = simulator();
    for _ in 0..100 {
        let sent = post(&simulator, "/webhooks/a", &[], json!("x".repeat(900_000))).await;
        assert_eq!(sent.status, 200);
    }
    let came = get(&simulator, "/webhooks/a", &[]).await;
    let came = came.json();
    let came = came["data"].as_array().unwrap();
    assert_eq!((came.len(), &came[came.len() - 1]["number"]), (74, &json!(100)));
}

#[actix_web::test]
async fn a_receiver_refuses_a_manner_that_it_does_not_have() {
    let simulator = simulator();
    for query in ["stauts=500", "status=x", "status=101", "body_bytes=2000000"] {
        let answer = post(&simulator, &format!("/webhooks/a?{query}"), &[], json!({})).await;
        assert_eq!(answer.status, 400, "{query}");
    }
    assert_eq!(get(&simulator, "/webhooks/a", &[]).await.json(), json!({"data": []}));
}

#[actix_web::test]
async fn a_stopped_simulator_refuses_connections() {
    let simulator = simulator();
    let addr = simulator.addr();
    simulator.stop().await;
    simulator.wait().await;
    assert!(std::net::TcpStream::connect(addr).is_err());
    assert!(Simulator::start("nowhere", Behavior::default()).is_err());
}

async fn send(simulator: &Simulator, method: awc::http::Method, path: &str) -> (StatusCode, Value) {
    let answer = client().request(method, simulator.url(path)).send().await.unwrap();
    let answer = receive(answer).await;
    (answer.status, answer.json())
}

#[test]
fn a_response_in_the_background_runs_ends_and_is_counted_once() {
    rt::System::new().block_on(async {
        let simulator = simulator();
        let body = json!({"model": "m", "input": "one two", "background": true});
        let with = [("x-simulate-job-ms", "300"), ("x-simulate-words", "3")];
        let queued = post(&simulator, "/v1/responses", &with, body.clone()).await.json();
        assert_eq!((&queued["status"], &queued["usage"]), (&json!("queued"), &Value::Null));
        let path = format!("/v1/responses/{}", queued["id"].as_str().unwrap());
        let running = get(&simulator, &path, &[]).await.json();
        assert_eq!(running["status"], "in_progress");
        assert_eq!(simulator.stats().output_tokens, 0);
        // The stream of a response that runs ends with it.
        let streamed = get(&simulator, &format!("{path}?stream=true&starting_after=1"), &[]).await;
        let events = streamed.event_data();
        assert_eq!(events[0]["sequence_number"], 2);
        assert_eq!(events.last().unwrap()["type"], "response.completed");
        let done = get(&simulator, &path, &[]).await.json();
        assert_eq!(
            (&done["status"], &done["usage"]["output_tokens"]),
            (&json!("completed"), &json!(3))
        );
        assert_eq!(simulator.stats().output_tokens, 3, "counted once");
        let items = get(&simulator, &format!("{path}/input_items"), &[]).await.json();
        assert_eq!(items["data"][0]["content"][0]["text"], "one two");
        let (status, deleted) = send(&simulator, awc::http::Method::DELETE, &path).await;
        assert_eq!((status, &deleted["deleted"]), (StatusCode::OK, &json!(true)));
        assert_eq!(get(&simulator, &path, &[]).await.status, StatusCode::NOT_FOUND);

        let with = |outcome| [("x-simulate-job-ms", "0"), ("x-simulate-job-outcome", outcome)];
        for (outcome, status) in [("failed", 200), ("forgotten", 404)] {
            let made = post(&simulator, "/v1/responses", &with(outcome), body.clone()).await.json();
            let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
            let answer = get(&simulator, &path, &[]).await;
            assert_eq!(answer.status.as_u16(), status, "{outcome}");
            if status == 200 {
                assert_eq!(answer.json()["error"]["code"], "server_error");
            }
        }
        let made = post(&simulator, "/v1/responses", &[], body.clone()).await.json();
        let path = format!("/v1/responses/{}/cancel", made["id"].as_str().unwrap());
        let (_, cancelled) = send(&simulator, awc::http::Method::POST, &path).await;
        assert_eq!(cancelled["status"], "cancelled");
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let whole = post(&simulator, "/v1/responses", &[("x-simulate-words", "2")], streamed).await;
        assert_eq!(whole.event_data().last().unwrap()["response"]["background"], true);
    });
}

#[test]
fn a_batch_of_messages_runs_ends_and_is_counted_once() {
    rt::System::new().block_on(async {
        let simulator = simulator();
        let params = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "one two"}]});
        let request = |id: &str| json!({"custom_id": id, "params": params});
        let body = json!({"requests": [request("a"), request("b"), request("c"), request("d")]});
        let begin = async |with: &[(&str, &str)]| {
            let made = post(&simulator, "/v1/messages/batches", with, body.clone()).await.json();
            (format!("/v1/messages/batches/{}", made["id"].as_str().unwrap()), made)
        };
        let counts = |batch: &Value, kinds: &[&str]| -> Vec<u64> {
            kinds.iter().map(|kind| batch["request_counts"][kind].as_u64().unwrap()).collect()
        };
        let with = [
            ("x-simulate-job-ms", "200"),
            ("x-simulate-words", "3"),
            ("x-simulate-failed-requests", "1"),
        ];
        let (path, made) = begin(&with).await;
        assert_eq!((&made["processing_status"], &made["results_url"]), (&json!("in_progress"), &Value::Null));
        assert_eq!(counts(&made, &["processing"]), [4]);
        assert_eq!(get(&simulator, &format!("{path}/results"), &[]).await.status.as_u16(), 400);
        let (status, _) = send(&simulator, awc::http::Method::DELETE, &path).await;
        assert_eq!((status.as_u16(), simulator.stats().output_tokens), (400, 0));
        tokio::time::sleep(Duration::from_millis(250)).await;
        let done = get(&simulator, &path, &[]).await.json();
        assert_eq!(done["processing_status"], "ended");
        assert_eq!(counts(&done, &["processing", "succeeded", "errored"]), [0, 3, 1]);
        assert_eq!(done["results_url"], simulator.url(&format!("{path}/results")));
        assert_eq!(simulator.stats().output_tokens, 9, "three answers, counted once");
        let results = get(&simulator, &format!("{path}/results"), &[]).await;
        let lines: Vec<Value> =
            results.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["custom_id"], &lines[0]["result"]["type"]), (&json!("d"), &json!("errored")));
        assert_eq!(lines[3]["result"]["message"]["usage"]["output_tokens"], 3);
        let listed = get(&simulator, "/v1/messages/batches", &[]).await.json();
        assert_eq!(listed["first_id"], done["id"]);

        let (path, _) = begin(&[("x-simulate-job-ms", "0"), ("x-simulate-job-outcome", "expired")]).await;
        let expired = get(&simulator, &path, &[]).await.json();
        assert_eq!(counts(&expired, &["succeeded", "expired"]), [2, 2]);
        let (path, _) = begin(&[]).await;
        let cancelled = send(&simulator, awc::http::Method::POST, &format!("{path}/cancel")).await.1;
        assert_eq!(counts(&cancelled, &["canceled"]), [4]);
        let (status, _) = send(&simulator, awc::http::Method::DELETE, &path).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(get(&simulator, &path, &[]).await.status, StatusCode::NOT_FOUND);
    });
}
