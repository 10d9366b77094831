//! Holds always end: wherever a call breaks off, its record shows it, nothing stays held on its key or
//! its wallet, and the next call is admitted.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::{Gate, ScriptedResponse, TestRequest};

use crate::support::{
    Gateway, NOWHERE, TestSpendKey, chat_answer, each_gateway, each_gateway_with, settings,
};

/// A call that can cost 0.2 USD, under a limit of 0.3: two do not fit. The next one fits when the
/// first has released its hold and has cost the usual amount.
fn body() -> Value {
    json!({"model": "m-1", "max_tokens": 100_000, "messages": [{"role": "user", "content": "Hi"}]})
}

fn streamed() -> Value {
    json!({"model": "m-1", "max_tokens": 100_000, "stream": true,
           "stream_options": {"include_usage": true}, "messages": []})
}

async fn strict_key(gateway: &Gateway<'_>) -> TestSpendKey {
    let limit = json!({"amount": "0.3", "cycle": "total"});
    let wallet = gateway.connection.wallet_id.to_string();
    gateway
        .spend_key(&json!({"enforcement": "strict", "spend_limit": limit, "wallet_id": wallet}))
        .await
}

fn chat(gateway: &Gateway<'_>, key: &TestSpendKey, body: &Value) -> TestRequest {
    let u = gateway.provider.url("/v1/chat/completions");
    gateway.forward_to(&u).bearer(&key.key).json(body)
}

/// Fails unless the call has ended like this, holds nothing, and leaves room for the next.
async fn ended_as(
    gateway: &Gateway<'_>,
    key: &TestSpendKey,
    what: &str,
    status: &str,
    source: &str,
) {
    let record = gateway.records().await.remove(0);
    let found = [&record["status"], &record["usage_source"]].map(|word| word.as_str().unwrap());
    assert_eq!(found, [status, source], "{what}: {record}");
    assert_eq!(record["spend_key_id"], key.made["spend_key_id"], "{what}");
    assert_eq!(gateway.wallet().await.1, "0.0000000000", "{what}: held on the wallet");

    gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
    let next = chat(gateway, key, &body()).send().await;
    assert_eq!(next.status, 200, "{what}: the next call: {}", next.text());
    let shown = gateway.get(&key.path).await.expect(200);
    assert_eq!(shown["total_requests"], 2, "{what}");
}

#[test]
fn two_calls_do_not_fit_at_once() {
    each_gateway(async |gateway| {
        let (key, gate) = (strict_key(gateway).await, Gate::new());
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let open = chat(gateway, &key, &body()).open().await;
        gateway.provider.wait_for_calls(1).await;
        let second = chat(gateway, &key, &body()).send().await;
        assert_eq!((second.status, second.error().as_str()), (402, "spend_limit_reached"));
        assert_eq!(second.header("retry-after"), Some("1"));
        gate.open();
        drop(open);
        ended_as(gateway, &key, "a client that left", "completed", "reported").await;
    });
}

#[test]
fn a_call_that_is_never_sent_holds_nothing() {
    each_gateway(async |gateway| {
        for (what, u) in [
            ("connection refused", gateway.nobody.clone()),
            ("no address", format!("{NOWHERE}/chat/completions")),
            ("no TLS", gateway.untrusted.clone()),
        ] {
            let key = strict_key(gateway).await;
            let answer = gateway.forward_to(&u).bearer(&key.key).json(&body()).send().await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (502, "provider_unreachable"),
                "{what}"
            );
            ended_as(gateway, &key, what, "error", "none").await;
        }
    });
}

#[test]
fn a_call_that_the_provider_breaks_holds_nothing() {
    let event = json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "Hello"}}]});
    each_gateway(async |gateway| {
        let usage = json!({"error": {"message": "no"}});
        for (what, reply, client_status, status, source) in [
            ("400", ScriptedResponse::json(400, &usage), 400, "error", "none"),
            ("429", ScriptedResponse::json(429, &usage), 429, "error", "none"),
            ("500", ScriptedResponse::json(500, &usage), 500, "error", "none"),
            ("cut before the first byte", ScriptedResponse::hang_up(), 502, "error", "estimated"),
            (
                "cut in the head",
                ScriptedResponse::json(200, chat_answer()).cut_in_head_at(10),
                502,
                "error",
                "estimated",
            ),
            (
                "cut in the body",
                ScriptedResponse::json(200, chat_answer()).content_length().cut_at(40),
                200,
                "error",
                "partial",
            ),
            (
                "a panic in the extractor",
                ScriptedResponse::json(200, chat_answer()).header("x-fault", "panic"),
                500,
                "error",
                "estimated",
            ),
            (
                "a panic in the extractor before the end",
                ScriptedResponse::json(200, chat_answer()).header("x-fault", "panic at the end"),
                500,
                "error",
                "estimated",
            ),
        ] {
            let key = strict_key(gateway).await;
            gateway.provider.push(reply);
            let answer = chat(gateway, &key, &body()).send().await;
            assert_eq!(answer.status, client_status, "{what}: {}", answer.text());
            ended_as(gateway, &key, what, status, source).await;
        }
        // The usage of such a stream is unknown, so a strict key pays the hold.
        let key = strict_key(gateway).await;
        gateway.put(&key.path, &json!({"enforcement": "bounded"})).await.expect(200);
        gateway.provider.push(ScriptedResponse::events([&event]).chunked().cut_at(20));
        assert!(!chat(gateway, &key, &streamed()).send().await.complete);
        ended_as(gateway, &key, "cut in a stream", "error", "partial").await;

        // The status of a started answer cannot change, but the answer must not look complete.
        for fault in ["panic while reading", "panic at the end"] {
            let key = strict_key(gateway).await;
            gateway.provider.push(ScriptedResponse::events([&event]).header("x-fault", fault));
            let answer = chat(gateway, &key, &streamed()).send().await;
            assert_eq!((answer.status, answer.complete), (200, false), "{fault}");
            ended_as(gateway, &key, fault, "error", "estimated").await;
        }
    });
}

#[test]
fn a_provider_that_never_answers_holds_nothing_for_long() {
    let mut impatient = settings();
    impatient.calls.timeouts.first_byte = Duration::from_millis(200);
    each_gateway_with(impatient, async |gateway| {
        let key = strict_key(gateway).await;
        gateway.provider.push(ScriptedResponse::silence());
        let answer = chat(gateway, &key, &body()).send().await;
        assert_eq!((answer.status, answer.error().as_str()), (504, "provider_timeout"));
        ended_as(gateway, &key, "timeout", "error", "estimated").await;
    });
}

#[test]
fn a_client_that_leaves_at_any_time_holds_nothing() {
    let content = json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "Hello"}}]});
    let usage = json!({"id": "c", "model": "m-1", "choices": [],
                       "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}});
    let events = [content.to_string(), usage.to_string(), "[DONE]".to_owned()];
    let ends: Vec<_> = events
        .iter()
        .scan(0, |sent, event| {
            *sent += event.len() + "data: \n\n".len();
            Some(*sent)
        })
        .collect();
    each_gateway(async |gateway| {
        for read in 0..events.len() {
            let (key, gate) = (strict_key(gateway).await, Gate::new());
            let cuts = std::iter::once(0).chain(ends.iter().copied());
            gateway.provider.push(ScriptedResponse::events(&events).pieces_at(cuts).gate(&gate));
            let calls = gateway.provider.calls();
            let mut open = chat(gateway, &key, &streamed()).open().await;
            gateway.provider.wait_for_calls(calls + 1).await;
            for event in events.iter().take(read) {
                gate.pass(1);
                open.read_until(event).await;
            }
            drop(open);
            gate.open();
            let what = format!("a client that left after {read} events");
            ended_as(gateway, &key, &what, "completed", "reported").await;
        }
    });
}

/// The task that runs the call is dropped; the drop settles the call.
#[test]
fn a_call_whose_task_is_cancelled_holds_nothing() {
    each_gateway(async |gateway| {
        let (key, gate) = (strict_key(gateway).await, Gate::new());
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let listening = tollgate_api::listen(
            gateway.app.clone(),
            "127.0.0.1:0",
            None,
            &tollgate_api::ServedRoutes { interface: true, pages: None },
        )
        .unwrap();
        let handle = listening.server.handle();
        tokio::spawn(listening.server);
        let u: String = url::form_urlencoded::byte_serialize(
            gateway.provider.url("/v1/chat/completions").as_bytes(),
        )
        .collect();
        let call = TestRequest::new(listening.address, "POST", &format!("/v1/forward?u={u}"));
        let open = call.bearer(&key.key).json(&body()).open().await;
        gateway.provider.wait_for_calls(1).await;
        handle.stop(false).await;
        drop(open);
        ended_as(gateway, &key, "a cancelled task", "error", "estimated").await;
        gate.open();
    });
}
