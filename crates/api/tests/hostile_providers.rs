//! Providers that break every rule: for any answer, the call ends in bounded time and memory, its record
//! is correct, no hold remains, and the next call gets its own answer.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_api::Settings;
use tollgate_gateway::CallSettings;
use tollgate_testkit::{Gate, ScriptedResponse, TestResponse};

use crate::support::{self, Gateway, chat_answer, each_gateway, each_gateway_with, settings};

const ESTIMATED: [&str; 2] = ["error", "estimated"];
const PARTIAL: [&str; 2] = ["error", "partial"];

/// Settings under which a provider that stops sending is given up soon.
fn impatient() -> Settings {
    let mut settings = settings();
    settings.calls.timeouts.first_byte = Duration::from_millis(500);
    settings.calls.timeouts.idle = Duration::from_millis(500);
    settings
}

fn streamed() -> Value {
    json!({"model": "m-1", "stream": true, "stream_options": {"include_usage": true}, "messages": []})
}

/// Fails unless the call has ended as expected, holds nothing, and the next call gets its own answer.
async fn recovers(gateway: &Gateway<'_>, what: &str, expected: [&str; 2]) -> Value {
    let record = gateway.records().await.remove(0);
    let found = [&record["status"], &record["usage_source"]].map(|word| word.as_str().unwrap());
    assert_eq!(found, expected, "{what}: {record}");
    assert_eq!(gateway.wallet().await.1, "0.0000000000", "{what}: held");
    for _ in 0..2 {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let next = gateway.chat().send().await;
        assert_eq!(next.expect(200), chat_answer(), "{what}: the next call");
    }
    record
}

/// An answer of 200 with these bytes after its status line.
fn answer(rest: &str) -> ScriptedResponse {
    ScriptedResponse::raw(format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{rest}"))
}

/// A head, and then the same bytes without end.
fn endless(head: &str, bytes: &str) -> ScriptedResponse {
    ScriptedResponse::raw(format!("{head}{bytes}")).pieces_at([head.len()]).endless()
}

fn assert_unreachable(answer: &TestResponse, what: &str) {
    assert_eq!((answer.status, answer.error().as_str()), (502, "provider_unreachable"), "{what}");
}

#[test]
fn a_head_that_is_none_is_no_answer() {
    let many: String = (0..10_000).map(|number| format!("x-{number}: 1\r\n")).collect();
    let large = "a".repeat(1024 * 1024);
    let whole = chat_answer().to_string();
    let length = whole.len();
    let cases = [
        ("a head without end", endless("HTTP/1.1 200 OK\r\nx: ", &"a".repeat(4096))),
        ("headers without end", endless("HTTP/1.1 200 OK\r\n", "x: 1\r\n")),
        ("10,000 headers", answer(&format!("{many}content-length: {length}\r\n\r\n{whole}"))),
        ("a megabyte of header", answer(&format!("x: {large}\r\ncontent-length: 0\r\n\r\n"))),
        ("interim heads without end", endless("", "HTTP/1.1 100 Continue\r\n\r\n")),
        ("hints without end", endless("", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")),
        ("an interim head without end", endless("HTTP/1.1 103 Hints\r\nx: ", "aaaaaaaaaaaaaaaa")),
        (
            "another protocol",
            ScriptedResponse::raw("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
        ),
        ("no HTTP", ScriptedResponse::raw("SSH-2.0-OpenSSH_9.6\r\n")),
        ("a head of zeros", ScriptedResponse::raw(vec![0; 100_000])),
        ("a length that is none", answer(&format!("content-length: many\r\n\r\n{whole}"))),
        ("a length below zero", answer(&format!("content-length: -1\r\n\r\n{whole}"))),
        (
            "a length beyond all numbers",
            answer(&format!("content-length: 99999999999999999999999\r\n\r\n{whole}")),
        ),
        (
            "two lengths",
            answer(&format!("content-length: {length}\r\ncontent-length: 5\r\n\r\n{whole}")),
        ),
    ];
    each_gateway(async |gateway| {
        for (what, reply) in &cases {
            gateway.provider.push(reply.clone());
            let answer = gateway.chat().send().await;
            assert_unreachable(&answer, what);
            let record = recovers(gateway, what, ESTIMATED).await;
            assert_eq!(record["total_wallet_cost"], "0.0000000000", "{what}: the merchant's");
        }
    });
}

/// HTTP/1.0, and some small servers: RFC 9112, 6.3.
#[test]
fn a_body_without_a_length_ends_with_its_connection() {
    let whole = chat_answer().to_string();
    each_gateway(async |gateway| {
        for head in [
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nconnection: close\r\n",
            "HTTP/1.0 200 OK\r\n",
        ] {
            let said = format!("{head}content-type: application/json\r\n\r\n{whole}");
            gateway.provider.push(ScriptedResponse::raw(said));
            let answer = gateway.chat().send().await;
            assert_eq!((answer.expect(200), answer.complete), (chat_answer(), true), "{head}");
            let record = gateway.records().await.remove(0);
            assert_eq!(
                (&record["status"], &record["usage_source"]),
                (&json!("completed"), &json!("reported")),
                "{head}"
            );
        }
    });
}

#[test]
fn a_body_whose_length_is_a_lie_is_cut_where_the_lie_shows() {
    let whole = chat_answer().to_string();
    let length = whole.len();
    let chunk = format!("{length:x}\r\n{whole}\r\n");
    // The name of the case, the answer, and whether it can look complete to the client.
    let cases = [
        ("a length too long", format!("content-length: {}\r\n\r\n{whole}", length + 1), false),
        ("no chunk", "transfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(), false),
        ("a chunk below zero", "transfer-encoding: chunked\r\n\r\n-1\r\n".to_owned(), false),
        (
            "a chunk beyond all numbers",
            format!("transfer-encoding: chunked\r\n\r\n{chunk}ffffffffffffffffff\r\n{whole}"),
            false,
        ),
        (
            "a chunk larger than it says",
            format!("transfer-encoding: chunked\r\n\r\n5\r\n{whole}\r\n0\r\n\r\n"),
            false,
        ),
        ("no last chunk", format!("transfer-encoding: chunked\r\n\r\n{chunk}"), false),
    ];
    each_gateway(async |gateway| {
        for (what, rest, whole) in &cases {
            gateway.provider.push(answer(rest));
            let answer = gateway.chat().send().await;
            assert_eq!((answer.status, answer.complete), (200, *whole), "{what}");
            let source = gateway.records().await[0]["usage_source"].as_str().unwrap().to_owned();
            assert!(["reported", "partial"].contains(&source.as_str()), "{what}: {source}");
            recovers(gateway, what, ["error", &source]).await;
        }
    });
}

#[test]
fn a_provider_that_stalls_anywhere_is_given_up() {
    let whole = chat_answer().to_string();
    let cases = [
        ("before the head", ScriptedResponse::raw("").stalled(), 504, ESTIMATED),
        ("in the head", ScriptedResponse::raw("HTTP/1.1 200 OK\r\nx: ").stalled(), 504, ESTIMATED),
        (
            "in an interim head",
            ScriptedResponse::raw("HTTP/1.1 103 Hints\r\nx: ").stalled(),
            504,
            ESTIMATED,
        ),
        ("before the body", answer("content-length: 9\r\n\r\n").stalled(), 200, PARTIAL),
        ("in the body", answer("content-length: 9\r\n\r\n{\"id\"").stalled(), 200, PARTIAL),
        (
            "in a chunk",
            answer("transfer-encoding: chunked\r\n\r\n9\r\n{\"").stalled(),
            200,
            PARTIAL,
        ),
    ];
    each_gateway_with(impatient(), async |gateway| {
        for (what, reply, status, expected) in &cases {
            let started = Instant::now();
            gateway.provider.push(reply.clone());
            let answer = gateway.chat().send().await;
            assert_eq!(answer.status, *status, "{what}");
            assert!(*status == 504 || !answer.complete, "{what}: it looks whole");
            assert!(started.elapsed() < Duration::from_secs(5), "{what}: {:?}", started.elapsed());
            recovers(gateway, what, *expected).await;
        }
        // A body ends at its length, even if the connection stays open.
        gateway.provider.push(
            answer(&format!("connection: close\r\ncontent-length: {}\r\n\r\n{whole}", whole.len()))
                .stalled(),
        );
        assert_eq!(gateway.chat().send().await.text(), whole);
        recovers(gateway, "a connection that stays", ["completed", "reported"]).await;
    });
}

/// Bytes after an answer are dropped: the next call on that connection must not get them.
#[test]
fn what_follows_an_answer_answers_no_other_call() {
    let evil = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n\"evil\"";
    let whole = chat_answer().to_string();
    let length = whole.len();
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{length:x}\r\n{whole}\r\n0\r\n\r\n");
    let (reported, estimated) = (["completed", "reported"], ["completed", "estimated"]);
    let cases = [
        ("behind a length", "200 OK", format!("content-length: {length}\r\n\r\n{whole}"), reported),
        ("behind the last chunk", "200 OK", chunked.clone(), reported),
        ("behind both framings", "200 OK", format!("content-length: 5\r\n{chunked}"), reported),
        ("a length too short", "200 OK", format!("content-length: 10\r\n\r\n{whole}"), estimated),
        ("behind no content", "204 No Content", "x: 1\r\n\r\n".to_owned(), estimated),
        ("behind nothing new", "304 Not Modified", "x: 1\r\n\r\n".to_owned(), ["error", "none"]),
    ];
    each_gateway(async |gateway| {
        for (what, status, rest, expected) in &cases {
            let said = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{rest}");
            for late in [false, true] {
                let what = format!("{what}, late: {late}");
                let gate = Gate::new();
                let reply = ScriptedResponse::raw(format!("{said}{evil}")).kept();
                let answered = gateway.provider.answered();
                if late {
                    gateway.provider.push(reply.pieces_at([said.len()]).gate(&gate));
                    gate.pass(1);
                } else {
                    gateway.provider.push(reply);
                }
                let answer = gateway.chat().send().await;
                assert!(
                    status.starts_with(&answer.status.to_string()),
                    "{what}: {}",
                    answer.status
                );
                assert!(!answer.text().contains("evil"), "{what}: {}", answer.text());
                gate.open();
                gateway.provider.wait_for_answered(answered + 1).await;
                recovers(gateway, &what, *expected).await;
            }
        }
    });
}

#[test]
fn old_http_with_a_body_that_ends_with_the_connection_is_an_answer() {
    each_gateway(async |gateway| {
        let whole = chat_answer().to_string();
        let head = "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n";
        gateway.provider.push(ScriptedResponse::raw(format!("{head}{whole}")));
        let answer = gateway.chat().send().await;
        assert_eq!((answer.expect(200), answer.complete), (chat_answer(), true));
        recovers(gateway, "HTTP/1.0", ["completed", "reported"]).await;
    });
}

/// A body that unpacks to a far larger size is passed on unchanged, and is unpacked only for a limited time.
#[test]
fn a_bomb_passes_unread() {
    let zeros = vec![b'0'; 320 * 1024 * 1024];
    let packed = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let once = packed(&zeros);
    let twice = packed(&once);
    each_gateway(async |gateway| {
        for kind in ["application/json", "text/event-stream"] {
            for (encoding, bomb) in [("gzip", &once), ("gzip, gzip", &twice)] {
                let what = format!("{kind} {encoding}");
                let started = Instant::now();
                gateway
                    .provider
                    .push(ScriptedResponse::bytes(200, kind, "").encoded(encoding, bomb.clone()));
                let answer = gateway.chat().header("accept-encoding", "gzip").send().await;
                assert!(answer.complete && answer.body == *bomb, "{what}");
                assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
                recovers(gateway, &what, ["completed", "estimated"]).await;
            }
        }
    });
}

#[test]
fn a_body_without_end_is_left_when_its_client_is() {
    let bounded = Settings {
        calls: CallSettings { disconnect_drain_max_bytes: 1024 * 1024, ..settings().calls },
        ..settings()
    };
    let event =
        format!("data: {}\n\n", json!({"choices": [{"delta": {"content": "x".repeat(4000)}}]}));
    each_gateway_with(bounded, async |gateway| {
        for (what, reply) in [
            ("events", ScriptedResponse::bytes(200, "text/event-stream", event.clone())),
            (
                "a line",
                ScriptedResponse::bytes(200, "text/event-stream", "data: xxxxxxxxxxxx".repeat(300)),
            ),
            (
                "JSON",
                ScriptedResponse::bytes(200, "application/json", "[[[[[[[[[[[[[[[[[".repeat(300)),
            ),
            ("zeros", ScriptedResponse::bytes(200, "application/octet-stream", vec![0; 65_536])),
        ] {
            let hang_ups = gateway.provider.hang_ups();
            gateway.provider.push(reply.chunked().endless());
            let mut open = gateway.forward("/v1/chat/completions").json(&streamed()).open().await;
            // More than the service keeps of any body or event.
            while open.raw().len() < 12 * 1024 * 1024 {
                assert!(open.read_some().await, "{what} ended");
            }
            drop(open);
            gateway.provider.wait_for_hang_ups(hang_ups + 1).await;
            recovers(gateway, what, ["completed", "partial"]).await;
        }
    });
}

#[test]
fn an_error_behind_a_good_status_is_an_error() {
    let error = json!({"error": {"message": "overloaded", "type": "server_error", "code": "x"}});
    let begun = json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "Hello"}}]});
    let usage = json!({"id": "c", "model": "m-1", "choices": [],
                       "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}});
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, &error));
        assert_eq!(gateway.chat().send().await.expect(200), error);
        recovers(gateway, "a body", PARTIAL).await;

        gateway.provider.push(ScriptedResponse::events([&begun, &error]));
        let answer = gateway.forward("/v1/chat/completions").json(&streamed()).send().await;
        assert!(answer.complete && answer.text().contains("overloaded"));
        recovers(gateway, "an event", PARTIAL).await;

        gateway.provider.push(ScriptedResponse::events([&begun, &usage, &error]));
        let answer = gateway.forward("/v1/chat/completions").json(&streamed()).send().await;
        assert!(answer.complete);
        let record = recovers(gateway, "an event behind the usage", ["error", "reported"]).await;
        assert_eq!(record["total_wallet_cost"], "0.0170000000", "what was reported");

        let start = json!({"type": "message_start", "message": {"id": "m", "model": "m-1",
                           "usage": {"input_tokens": 1000, "output_tokens": 1}}});
        let failed =
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "x"}});
        gateway
            .provider
            .push(ScriptedResponse::named_events([("message_start", start), ("error", failed)]));
        let mut body = streamed();
        body["max_tokens"] = json!(10);
        let answer = gateway.forward("/anthropic/v1/messages").json(&body).send().await;
        assert!(answer.complete && answer.text().contains("overloaded_error"));
        let record = recovers(gateway, "an event of the other format", PARTIAL).await;
        assert_eq!(record["model_usage"]["input_tokens"], 1000, "{record}");
    });
}

/// Names in an answer can have any length, but the record keeps only a part of them.
#[test]
fn names_without_end_are_kept_short() {
    each_gateway(async |gateway| {
        let long = "ü".repeat(1_000_000);
        let body =
            support::with(chat_answer(), &json!({"model": long, "id": long, "service_tier": long}));
        gateway.provider.push(ScriptedResponse::json(200, &body));
        assert_eq!(gateway.chat().send().await.expect(200), body);
        let record = recovers(gateway, "long names", ["completed", "reported"]).await;
        assert!(record.to_string().len() < 8_000, "{}", record.to_string().len());
    });
}
