//! Clients that break every rule: each is answered or dropped in bounded time, other clients are served
//! meanwhile, and nothing is held or pending for a client that never sent a whole call.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_api::{ClientLimits, Settings};
use tollgate_testkit::ScriptedResponse;

use crate::support::{
    self, Gateway, chat_answer, chat_body, each_gateway, each_gateway_with, settings,
};

/// The time within which the service must be done with any client of these tests.
const BOUND: Duration = Duration::from_secs(10);

/// Settings under which the service waits only a short time for clients.
fn impatient() -> Settings {
    let moment = Duration::from_millis(700);
    let clients = ClientLimits {
        head_timeout: moment,
        body_timeout: moment,
        keep_alive: moment,
        ..ClientLimits::default()
    };
    let mut settings = Settings { clients, ..settings() };
    settings.calls.timeouts.idle = 2 * moment;
    settings
}

/// A connection for raw bytes.
struct RawConnection(TcpStream);

impl RawConnection {
    async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// Sends bytes; false if the server takes no more of them. A server that has closed may not be noticed
    /// while buffers on the way are full.
    async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        const TAKEN_WITHIN: Duration = Duration::from_secs(2);
        timeout(TAKEN_WITHIN, self.0.write_all(bytes.as_ref())).await.is_ok_and(|sent| sent.is_ok())
    }

    /// All bytes until the server closes, which it must within the bound.
    async fn until_closed(&mut self, what: &str) -> String {
        let mut bytes = Vec::new();
        let closed = timeout(BOUND, self.0.read_to_end(&mut bytes)).await;
        assert!(closed.is_ok(), "{what}: still open after {}", String::from_utf8_lossy(&bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    async fn read_until(&mut self, text: &str) -> String {
        let mut bytes = Vec::new();
        let read = async {
            while !String::from_utf8_lossy(&bytes).contains(text) {
                assert!(self.0.read_buf(&mut bytes).await.unwrap() > 0, "{text} never came");
            }
        };
        timeout(BOUND, read).await.unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The head of a forward, without the framing of its body.
fn head(gateway: &Gateway<'_>) -> String {
    let u = gateway.provider.url("/v1/chat/completions");
    let token = gateway.token(&json!({}));
    format!(
        "POST /v1/forward?u={u} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         authorization: Bearer {token}\r\n"
    )
}

/// A whole forward.
fn whole(gateway: &Gateway<'_>, body: &str) -> String {
    format!("{}content-length: {}\r\n\r\n{body}", head(gateway), body.len())
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("")
}

/// Fails unless a correct client is served, and the other clients have left nothing.
async fn serves_and_holds_nothing(gateway: &Gateway<'_>, calls: usize) {
    gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
    gateway.chat().send().await.expect(200);
    assert_eq!(gateway.records().await.len(), calls + 1);
    assert_eq!(gateway.wallet().await.1, "0.0000000000");
}

/// A JSON body of this length.
fn body_of(length: usize) -> String {
    let mut body = chat_body();
    let rest = length - body.to_string().len() - r#","user":"""#.len();
    body.as_object_mut().unwrap().insert("user".to_owned(), Value::from("x".repeat(rest)));
    assert_eq!(body.to_string().len(), length);
    body.to_string()
}

#[test]
fn half_a_request_is_not_waited_for() {
    each_gateway_with(impatient(), async |gateway| {
        let head = head(gateway);
        let length = "content-length: 100\r\n\r\n";
        let chunked = "transfer-encoding: chunked\r\n\r\n";
        let beginnings = [
            String::new(),
            "PO".to_owned(),
            head.clone(),
            format!("{head}{length}"),
            format!("{head}{length}{{\"model\""),
            format!("{head}{chunked}"),
            format!("{head}{chunked}9\r\n{{\"model\""),
            format!("{head}{chunked}8\r\n{{\"model\"\r\n"),
        ];
        for beginning in &beginnings {
            // One client vanishes, one closes its sending side, one stays.
            drop({
                let mut raw = RawConnection::open(gateway.address).await;
                raw.send(beginning).await;
                raw
            });
            let mut raw = RawConnection::open(gateway.address).await;
            raw.send(beginning).await;
            raw.0.shutdown().await.unwrap();
            raw.until_closed(beginning).await;

            let mut raw = RawConnection::open(gateway.address).await;
            raw.send(beginning).await;
            let answer = raw.until_closed(beginning).await;
            assert!(["", "408"].contains(&status(&answer)), "{beginning}: {answer}");
        }
        serves_and_holds_nothing(gateway, 0).await;
    });
}

/// The limits of the first request of a connection also apply to the next one.
#[test]
fn half_of_a_second_request_is_not_waited_for_either() {
    each_gateway_with(impatient(), async |gateway| {
        let first = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
        let head = head(gateway);
        for second in ["", "PO", &head, &format!("{head}content-length: 9\r\n\r\n{{")] {
            for together in [false, true] {
                let mut raw = RawConnection::open(gateway.address).await;
                if together {
                    raw.send(format!("{first}{second}")).await;
                } else {
                    raw.send(first).await;
                    raw.read_until("ok").await;
                    raw.send(second).await;
                }
                let answer = raw.until_closed(second).await;
                assert!(!answer.contains(" 500 "), "{second}: {answer}");
            }
        }
        serves_and_holds_nothing(gateway, 0).await;
    });
}

/// A client that is refused before its body was read cannot send the body for ever.
#[test]
fn the_body_of_a_refused_call_is_not_read_for_ever() {
    each_gateway_with(impatient(), async |gateway| {
        let head = "POST /v1/forward?u=x HTTP/1.1\r\nhost: x\r\n";
        for framing in ["transfer-encoding: chunked", "content-length: 1000000"] {
            let mut raw = RawConnection::open(gateway.address).await;
            raw.send(format!("{head}{framing}\r\n\r\n")).await;
            assert_eq!(status(&raw.read_until("\r\n\r\n").await), "401");
            let started = Instant::now();
            while raw.send("1\r\nx\r\n").await {
                assert!(started.elapsed() < BOUND, "{framing}: still taken");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        serves_and_holds_nothing(gateway, 0).await;
    });
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    each_gateway(async |gateway| {
        let many: String = (0..10_000).map(|number| format!("x-{number}: 1\r\n")).collect();
        let large = "a".repeat(1024 * 1024);
        for (what, bytes) in [
            (
                "a megabyte of a header",
                format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx: {large}\r\n\r\n"),
            ),
            ("10,000 headers", format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{many}\r\n")),
            ("a megabyte of URL", format!("GET /healthz?{large} HTTP/1.1\r\nhost: x\r\n\r\n")),
            ("a megabyte of method", format!("{large} / HTTP/1.1\r\nhost: x\r\n\r\n")),
            ("headers without end", format!("GET / HTTP/1.1\r\nhost: x\r\n{many}{many}")),
        ] {
            let mut raw = RawConnection::open(gateway.address).await;
            raw.send(bytes).await;
            let answer = raw.until_closed(what).await;
            // When many bytes are left unread, the answer may be lost in the reset.
            assert!(["", "400", "414", "431"].contains(&status(&answer)), "{what}: {answer}");
        }
        serves_and_holds_nothing(gateway, 0).await;
    });
}

#[test]
fn a_long_url_is_an_error_of_its_own() {
    each_gateway(async |gateway| {
        let u =
            format!("{}?x={}", gateway.provider.url("/v1/chat/completions"), "y".repeat(60_000));
        let answer = gateway.forward_to(&u).bearer(&gateway.token(&json!({}))).json(&chat_body());
        let answer = answer.send().await;
        assert!([200, 400, 414, 502].contains(&answer.status), "{}", answer.text());
    });
}

#[test]
fn bodies_are_taken_up_to_their_limit_and_not_a_byte_beyond() {
    let limits =
        Settings { forward_body_limit_bytes: 100_000, body_limit_bytes: 50_000, ..settings() };
    each_gateway_with(limits, async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        for (length, expected) in [(99_999, "200"), (100_000, "200"), (100_001, "413")] {
            let body = body_of(length);
            let chunks: String = body
                .as_bytes()
                .chunks(7_000)
                .map(|chunk| format!("{:x}\r\n{}\r\n", chunk.len(), String::from_utf8_lossy(chunk)))
                .collect();
            let head = head(gateway);
            for (what, bytes) in [
                ("with a length", whole(gateway, &body)),
                ("in chunks", format!("{head}transfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")),
            ] {
                let mut raw = RawConnection::open(gateway.address).await;
                raw.send(bytes).await;
                let answer = raw.read_until("}").await;
                assert_eq!(status(&answer), expected, "{what}, {length}: {answer}");
            }
        }
        let arrived = gateway.provider.requests();
        assert_eq!(arrived.len(), 4);
        assert!(arrived.iter().all(|request| request.complete && request.body.len() >= 99_999));
        for (length, expected) in [(50_000, 400), (50_001, 413)] {
            let body = json!({"name": "x".repeat(length - r#"{"name":""}"#.len())});
            assert_eq!(body.to_string().len(), length);
            assert_eq!(gateway.post("/meters", &body).await.status, expected, "{length}");
        }
        serves_and_holds_nothing(gateway, 4).await;
    });
}

#[test]
fn a_chunked_body_without_end_ends_at_the_limit() {
    let limits = Settings { forward_body_limit_bytes: 100_000, ..impatient() };
    each_gateway_with(limits, async |gateway| {
        let mut raw = RawConnection::open(gateway.address).await;
        raw.send(format!("{}transfer-encoding: chunked\r\n\r\n", head(gateway))).await;
        let started = Instant::now();
        let chunk = format!("{:x}\r\n{}\r\n", 10_000, "x".repeat(10_000));
        while raw.send(&chunk).await {
            assert!(started.elapsed() < BOUND, "still taken");
        }
        serves_and_holds_nothing(gateway, 0).await;
    });
}

/// An occasional byte does not count as progress.
#[test]
fn a_body_that_trickles_is_not_waited_for() {
    each_gateway_with(impatient(), async |gateway| {
        for framing in ["transfer-encoding: chunked", "content-length: 1000000"] {
            let mut raw = RawConnection::open(gateway.address).await;
            raw.send(format!("{}{framing}\r\n\r\n", head(gateway))).await;
            let started = Instant::now();
            let trickle = async {
                while raw.send("1\r\n \r\n").await {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            assert!(timeout(BOUND, trickle).await.is_ok(), "{framing}: still taken");
            assert!(started.elapsed() >= Duration::from_millis(700), "it was waited for");
        }
        serves_and_holds_nothing(gateway, 0).await;
    });
}

#[test]
fn slow_clients_in_hundreds_leave_room_for_others() {
    let clients = ClientLimits { head_timeout: Duration::from_secs(3), ..ClientLimits::default() };
    each_gateway_with(Settings { clients, ..settings() }, async |gateway| {
        let address = gateway.address;
        let slow: Vec<_> = (0..500)
            .map(|_| {
                tokio::spawn(async move {
                    let mut raw = RawConnection::open(address).await;
                    for byte in b"POST /v1/forward HTTP/1.1\r\nhost: x\r\n".iter().cycle() {
                        if !raw.send([*byte]).await {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(250)).await;
                    }
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        let mut calls = 0;
        while !slow.iter().all(tokio::task::JoinHandle::is_finished) {
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            let started = Instant::now();
            gateway.chat().send().await.expect(200);
            slowest = slowest.max(started.elapsed());
            calls += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(calls < 500, "slow clients are still there");
        }
        assert!(calls > 5, "{calls}");
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");
        assert_eq!(gateway.wallet().await.1, "0.0000000000");
    });
}

#[test]
fn clients_beyond_the_limit_wait_for_their_turn() {
    let settings = impatient();
    let clients = ClientLimits { max_connections: 2, ..settings.clients };
    each_gateway_with(Settings { clients, ..settings }, async |gateway| {
        let mut silent = Vec::new();
        for _ in 0..6 {
            silent.push(RawConnection::open(gateway.address).await);
        }
        let started = Instant::now();
        let served = timeout(BOUND, serves_and_holds_nothing(gateway, 0)).await;
        assert!(served.is_ok(), "nobody's turn comes");
        assert!(started.elapsed() > Duration::from_millis(500), "more were served than may be");
    });
}

#[test]
fn requests_in_one_write_are_answered_in_their_order() {
    each_gateway(async |gateway| {
        let body = chat_body().to_string();
        let calls: String = (0..20).map(|_| whole(gateway, &body)).collect();
        for number in 0..20 {
            gateway.provider.push(ScriptedResponse::json(200, json!({"number": number})));
        }
        let mut raw = RawConnection::open(gateway.address).await;
        raw.send(calls).await;
        let answers = raw.read_until("{\"number\":19}").await;
        let at: Vec<_> =
            (0..20).map(|number| answers.find(&format!("{{\"number\":{number}}}"))).collect();
        assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{answers}");
        serves_and_holds_nothing(gateway, 20).await;
    });
}

/// The call that is being answered is drained; the requests behind it are not calls.
#[test]
fn a_client_that_leaves_behind_many_requests_holds_nothing() {
    each_gateway(async |gateway| {
        let calls: String = (0..20).map(|_| whole(gateway, &chat_body().to_string())).collect();
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let mut raw = RawConnection::open(gateway.address).await;
        raw.send(calls).await;
        gateway.provider.wait_for_calls(1).await;
        drop(raw);
        gateway.calls.drain(BOUND).await;
        let records = gateway.records().await;
        assert_eq!(records.len(), gateway.provider.calls());
        assert!(records.iter().all(|record| record["status"] == "completed"), "{records:?}");
        assert_eq!(gateway.wallet().await.1, "0.0000000000");
    });
}

#[test]
fn a_client_may_wait_for_leave_to_send_its_body() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let body = chat_body().to_string();
        let head = head(gateway);
        let mut raw = RawConnection::open(gateway.address).await;
        raw.send(format!("{head}expect: 100-continue\r\ncontent-length: {}\r\n\r\n", body.len()))
            .await;
        assert_eq!(raw.read_until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
        raw.send(&body).await;
        let answer = raw.read_until("total_tokens").await;
        assert_eq!(status(&answer), "200");
        // The expectation is for this service and is not passed on.
        assert_eq!(gateway.provider.request().header("expect"), None);
        assert_eq!(gateway.provider.request().text(), body);
        serves_and_holds_nothing(gateway, 1).await;
    });
}

/// The model is stored in the record, so its length is limited.
#[test]
fn a_model_without_end_is_no_model() {
    each_gateway(async |gateway| {
        let body = json!({"model": format!("m-{}", "x".repeat(1_000_000)), "messages": []});
        let answer = gateway.forward("/v1/chat/completions").json(&body).send().await;
        support::assert_refused(&answer, 400, "forward_token_json_invalid");
        assert_eq!(answer.issue_paths(), ["model"]);
        serves_and_holds_nothing(gateway, 0).await;
    });
}

/// Each body is small enough, but together they are not.
#[test]
fn bodies_take_no_more_memory_than_they_may_together() {
    let settings = Settings { body_memory_bytes: 1024 * 1024, ..settings() };
    each_gateway_with(settings, async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let large = body_of(600 * 1024);
        let (most, last) = large.split_at(large.len() - 1);
        // The merchant's own wallet pays, which is allowed.
        let u = gateway.provider.url("/v1/chat/completions");
        let head = format!(
            "POST /v1/forward?u={u} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             authorization: Bearer {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{most}",
            gateway.key(),
            large.len()
        );
        let [mut one, mut other] = [
            RawConnection::open(gateway.address).await,
            RawConnection::open(gateway.address).await,
        ];
        assert!(one.send(&head).await && other.send(&head).await);
        // The body that arrives first gets the memory.
        let (refused, mut slow) = tokio::select! {
            refused = one.until_closed("one too many") => (refused, other),
            refused = other.until_closed("one too many") => (refused, one),
        };
        assert_eq!(status(&refused), "503", "{refused}");
        assert!(refused.contains("overloaded") && refused.contains("retry-after: 1"), "{refused}");
        gateway.chat().send().await.expect(200);

        assert!(slow.send(last).await);
        assert_eq!(status(&slow.until_closed("a whole body").await), "200");
        let call = gateway.forward_to(&u).bearer(gateway.key());
        call.bytes("application/json", large.as_bytes()).send().await.expect(200);
    });
}

/// A proxy may not take a bare line feed as the end of a line; then it and the service read two different heads.
#[test]
fn a_line_that_ends_in_a_line_feed_alone_is_400_also_behind_another_request() {
    each_gateway(async |gateway| {
        let first = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n\
                     POST /v1/requests HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n\n\n\n";
        for before in ["", first] {
            let lawful = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let mut raw = RawConnection::open(gateway.address).await;
            raw.send(format!("{before}{lawful}")).await;
            let said = raw.until_closed("lawful").await;
            assert_eq!(said.matches("HTTP/1.1 200").count(), if before.is_empty() { 1 } else { 2 });
            for (at, _) in lawful.match_indices("\r\n") {
                let bare = format!("{}{}", &lawful[..at], &lawful[at + 1..]);
                let mut raw = RawConnection::open(gateway.address).await;
                raw.send(format!("{before}{bare}")).await;
                let said = raw.until_closed(&bare).await;
                let last = said.rfind("HTTP/1.1 ").map(|at| &said[at..at + 12]);
                assert_eq!(last, Some("HTTP/1.1 400"), "{bare:?}: {said}");
            }
        }
    });
}
