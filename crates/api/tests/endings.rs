//! Every way in which a call can end: the record shows which, the payer of the table pays, and nothing
//! stays held.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_gateway::{CallSettings, OnDisconnect};
use tollgate_testkit::{Gate, ScriptedResponse};

use crate::support::{Gateway, chat_answer, chat_body, each_gateway, each_gateway_with, settings};

/// Status, usage source, the wallet's and the merchant's part; fails if anything is held.
async fn ended(gateway: &Gateway<'_>) -> [String; 4] {
    let record = gateway.record().await;
    let (_, held) = gateway.wallet().await;
    assert_eq!(held, "0.0000000000");
    let text = |name: &str| record[name].as_str().unwrap().to_owned();
    [text("status"), text("usage_source"), text("total_wallet_cost"), text("total_merchant_cost")]
}

const NOTHING: &str = "0.0000000000";
const USED: &str = "0.0170000000";

fn stream_body() -> Value {
    json!({"model": "m-1", "stream": true, "stream_options": {"include_usage": true}, "messages": []})
}

fn events() -> Vec<String> {
    let content = json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "Hello there"}}]});
    let stop = json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let usage = json!({"id": "c", "model": "m-1", "choices": [],
                       "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}});
    vec![content.to_string(), stop.to_string(), usage.to_string(), "[DONE]".to_owned()]
}

fn length_of(events: &[String]) -> usize {
    events.iter().map(|event| event.len() + "data: \n\n".len()).sum()
}

#[test]
fn a_provider_error_passes_unchanged_and_costs_nothing() {
    for status in [400, 401, 404, 429, 500, 529] {
        each_gateway(async |gateway| {
            let body = json!({"error": {"message": "no", "type": "x"}});
            gateway.provider.push(ScriptedResponse::json(status, &body).header("retry-after", "7"));
            let answer = gateway.chat().send().await;
            assert_eq!(answer.expect(status), body);
            assert_eq!(answer.header("retry-after"), Some("7"));
            assert_eq!(ended(gateway).await, ["error", "none", NOTHING, NOTHING]);
            assert_eq!(gateway.record().await["provider_status"], status);
        });
    }
}

#[test]
fn an_answer_without_usage_is_estimated_and_says_so() {
    each_gateway(async |gateway| {
        let mut body = chat_answer();
        body.as_object_mut().unwrap().remove("usage");
        gateway.provider.push(ScriptedResponse::json(200, &body));
        assert_eq!(gateway.chat().send().await.expect(200), body);
        let [status, source, by_wallet, by_merchant] = ended(gateway).await;
        assert_eq!([status.as_str(), &source, &by_merchant], ["completed", "estimated", NOTHING]);
        assert_ne!(by_wallet, NOTHING);
    });
}

#[test]
fn an_explicit_zero_is_zero() {
    each_gateway(async |gateway| {
        let mut body = chat_answer();
        body["usage"] = json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0});
        gateway.provider.push(ScriptedResponse::json(200, &body));
        gateway.chat().send().await.expect(200);
        assert_eq!(ended(gateway).await, ["completed", "reported", NOTHING, NOTHING]);
    });
}

#[test]
fn an_empty_answer_is_settled_before_its_head() {
    each_gateway(async |gateway| {
        gateway
            .provider
            .push(ScriptedResponse::bytes(200, "application/json", b"".to_vec()).content_length());
        let answer = gateway.chat().send().await;
        assert_eq!((answer.status, answer.body.len(), answer.complete), (200, 0, true));
        assert_eq!(gateway.record().await["usage_source"], "estimated");
    });
}

#[test]
fn a_call_that_reaches_nobody_costs_nothing() {
    each_gateway(async |gateway| {
        let call = gateway.forward_to(&gateway.nobody).bearer(&gateway.token(&json!({})));
        let answer = call.json(&chat_body()).send().await;
        assert_eq!((answer.status, answer.error().as_str()), (502, "provider_unreachable"));
        assert!(answer.header("x-service-request-id").is_some());
        assert_eq!(ended(gateway).await, ["error", "none", NOTHING, NOTHING]);
        assert_eq!(gateway.record().await.get("provider_status"), None);
    });
}

#[test]
fn a_call_that_was_taken_and_never_answered_is_the_merchants() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::hang_up());
        let answer = gateway.chat().send().await;
        assert_eq!((answer.status, answer.error().as_str()), (502, "provider_unreachable"));
        let [status, source, by_wallet, by_merchant] = ended(gateway).await;
        assert_eq!([status.as_str(), &source, &by_wallet], ["error", "estimated", NOTHING]);
        assert_ne!(by_merchant, NOTHING);
    });
}

#[test]
fn a_provider_that_is_silent_too_long_is_a_timeout_and_the_merchants() {
    let mut settings = settings();
    settings.calls.timeouts.first_byte = Duration::from_millis(200);
    each_gateway_with(settings, async |gateway| {
        gateway.provider.push(ScriptedResponse::silence());
        let answer = gateway.chat().send().await;
        assert_eq!((answer.status, answer.error().as_str()), (504, "provider_timeout"));
        let [status, source, by_wallet, by_merchant] = ended(gateway).await;
        assert_eq!([status.as_str(), &source, &by_wallet], ["error", "estimated", NOTHING]);
        assert_ne!(by_merchant, NOTHING);
    });
}

#[test]
fn a_body_that_breaks_off_reaches_the_client_broken_and_is_charged_as_far_as_it_came() {
    each_gateway(async |gateway| {
        gateway
            .provider
            .push(ScriptedResponse::json(200, chat_answer()).content_length().cut_at(40));
        let answer = gateway.chat().send().await;
        assert_eq!((answer.status, answer.complete, answer.body.len()), (200, false, 40));
        let [status, source, by_wallet, _] = ended(gateway).await;
        assert_eq!([status.as_str(), &source], ["error", "partial"]);
        assert_ne!(by_wallet, NOTHING);
    });
}

#[test]
fn a_stream_that_breaks_off_reaches_the_client_broken() {
    each_gateway(async |gateway| {
        let first = length_of(&events()[..1]);
        gateway.provider.push(ScriptedResponse::events(events()).chunked().cut_at(first));
        let answer = gateway.forward("/v1/chat/completions").json(&stream_body()).send().await;
        assert_eq!((answer.status, answer.complete, answer.body.len()), (200, false, first));
        let [status, source, by_wallet, _] = ended(gateway).await;
        assert_eq!([status.as_str(), &source], ["error", "partial"]);
        assert_ne!(by_wallet, NOTHING);
    });
}

#[test]
fn an_error_event_ends_the_record_in_error_and_the_stream_as_it_came() {
    each_gateway(async |gateway| {
        let error = json!({"error": {"message": "overloaded", "type": "server_error"}}).to_string();
        let stream = vec![events()[0].clone(), error];
        gateway.provider.push(ScriptedResponse::events(stream.clone()));
        let answer = gateway.forward("/v1/chat/completions").json(&stream_body()).send().await;
        let expected: String = stream.iter().map(|event| format!("data: {event}\n\n")).collect();
        assert_eq!(answer.text(), expected);
        assert_eq!(gateway.record().await["status"], "error");
    });
}

/// The client closes its connection after each possible number of events.
#[test]
fn a_client_that_leaves_pays_what_the_provider_reports_in_the_end() {
    for events_read in 0..events().len() {
        each_gateway(async |gateway| {
            let gate = Gate::new();
            let cuts: Vec<_> =
                (1..events().len()).map(|count| length_of(&events()[..count])).collect();
            gateway.provider.push(ScriptedResponse::events(events()).pieces_at(cuts).gate(&gate));
            let mut open =
                gateway.forward("/v1/chat/completions").json(&stream_body()).open().await;
            gateway.provider.wait_for_calls(1).await;
            for event in events().iter().take(events_read) {
                gate.pass(1);
                open.read_until(event).await;
            }
            drop(open);
            gate.open();
            assert_eq!(
                ended(gateway).await,
                ["completed", "reported", USED, NOTHING],
                "{events_read}"
            );
        });
    }
}

#[test]
fn a_client_that_leaves_before_a_plain_answer_pays_it_all_the_same() {
    each_gateway(async |gateway| {
        let gate = Gate::new();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let open = gateway.chat().open().await;
        gateway.provider.wait_for_calls(1).await;
        drop(open);
        gate.open();
        assert_eq!(ended(gateway).await, ["completed", "reported", USED, NOTHING]);
    });
}

#[test]
fn a_client_that_leaves_ends_the_call_where_the_operator_wants_it_so() {
    let cancelling = tollgate_api::Settings {
        calls: CallSettings { on_disconnect: OnDisconnect::Cancel, ..settings().calls },
        ..settings()
    };
    each_gateway_with(cancelling, async |gateway| {
        let gate = Gate::new();
        let cut = length_of(&events()[..1]);
        gateway.provider.push(ScriptedResponse::events(events()).pieces_at([cut]).gate(&gate));
        let mut open = gateway.forward("/v1/chat/completions").json(&stream_body()).open().await;
        gate.pass(1);
        open.read_until("Hello there").await;
        drop(open);
        gateway.provider.wait_for_hang_ups(1).await;
        let [status, source, by_wallet, _] = ended(gateway).await;
        assert_eq!([status.as_str(), &source], ["completed", "partial"]);
        assert_ne!(by_wallet, NOTHING);
    });
}

/// As above, but the call is cancelled: the client pays the events that were sent, at least the input.
#[test]
fn a_client_whose_call_is_cancelled_pays_what_has_passed() {
    let cancelling = tollgate_api::Settings {
        calls: CallSettings { on_disconnect: OnDisconnect::Cancel, ..settings().calls },
        ..settings()
    };
    let words = ["One ", "two ", "three ", "four "].map(|word| {
        let delta = json!({"content": word.repeat(50)});
        json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": delta}]}).to_string()
    });
    let all: Vec<_> = words.into_iter().chain(events().into_iter().skip(1)).collect();
    each_gateway_with(cancelling, async |gateway| {
        let mut costs = Vec::new();
        for events_read in 0..all.len() {
            let gate = Gate::new();
            let cuts: Vec<_> = (1..all.len()).map(|count| length_of(&all[..count])).collect();
            gateway
                .provider
                .push(ScriptedResponse::events(all.clone()).pieces_at(cuts).gate(&gate));
            let hang_ups = gateway.provider.hang_ups();
            let call = gateway.forward("/v1/chat/completions").json(&stream_body());
            let mut open = call.open().await;
            open.read_until("\r\n\r\n").await;
            for event in all.iter().take(events_read) {
                gate.pass(1);
                open.read_until(event).await;
            }
            drop(open);
            gateway.provider.wait_for_hang_ups(hang_ups + 1).await;
            let record = gateway.records().await.remove(0);
            // The usage is the last event but one.
            let source = if events_read + 1 == all.len() { "reported" } else { "partial" };
            assert_eq!(
                (&record["status"], &record["usage_source"]),
                (&json!("completed"), &json!(source)),
                "{events_read}"
            );
            assert_eq!(record["total_merchant_cost"], NOTHING, "{events_read}");
            assert_eq!(gateway.wallet().await.1, NOTHING, "{events_read}");
            costs.push(record["total_wallet_cost"].as_str().unwrap().to_owned());
        }
        assert!(costs[0].as_str() > NOTHING, "the input went in: {costs:?}");
        assert!(costs.is_sorted() && costs[1] < costs[4], "{costs:?}");
        assert_eq!(costs.last().unwrap(), USED);
    });
}

/// The service requested the usage itself, so it counts, although the client never gets it.
#[test]
fn a_client_that_leaves_pays_usage_that_it_did_not_ask_for() {
    let body = json!({"model": "m-1", "stream": true, "messages": []});
    each_gateway(async |gateway| {
        for events_read in 0..2 {
            let gate = Gate::new();
            let cuts: Vec<_> =
                (1..events().len()).map(|count| length_of(&events()[..count])).collect();
            gateway.provider.push(ScriptedResponse::events(events()).pieces_at(cuts).gate(&gate));
            let mut open = gateway.forward("/v1/chat/completions").json(&body).open().await;
            open.read_until("\r\n\r\n").await;
            for event in events().iter().take(events_read) {
                gate.pass(1);
                open.read_until(event).await;
            }
            drop(open);
            gate.open();
            let record = gateway.records().await.remove(0);
            assert_eq!(record["usage_source"], "reported", "{events_read}");
            assert_eq!(record["total_wallet_cost"], USED, "{events_read}");
        }
    });
}

/// Eighty megabytes without a pause: more than all buffers between provider and client hold.
fn long_stream() -> ScriptedResponse {
    let delta = json!({"content": "x".repeat(4_000)});
    let content = json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": delta}]});
    let long = std::iter::repeat_n(content.to_string(), 20_000).chain(events());
    ScriptedResponse::events(long).chunked_every(65_536)
}

/// Without pauses between pieces, a write detects that the client has left.
#[test]
fn a_client_that_leaves_a_busy_stream_ends_it_too() {
    let cancelling = tollgate_api::Settings {
        calls: CallSettings { on_disconnect: OnDisconnect::Cancel, ..settings().calls },
        ..settings()
    };
    each_gateway_with(cancelling, async |gateway| {
        gateway.provider.push(long_stream());
        let mut open = gateway.forward("/v1/chat/completions").json(&stream_body()).open().await;
        open.read_until("xxxx").await;
        drop(open);
        gateway.provider.wait_for_hang_ups(1).await;
        let [status, source, ..] = ended(gateway).await;
        assert_eq!([status.as_str(), &source], ["completed", "partial"]);
    });
}

/// The connection stays open, and the client reads nothing from it.
#[test]
fn a_client_that_stops_reading_holds_neither_its_call_nor_a_shutdown_up() {
    each_gateway(async |gateway| {
        gateway.provider.push(long_stream());
        let mut open = gateway.forward("/v1/chat/completions").json(&stream_body()).open().await;
        open.read_until("xxxx").await;
        gateway.calls.drain(Duration::from_millis(300)).await;
        assert_eq!(gateway.calls.running(), 0);
        let [status, source, ..] = ended(gateway).await;
        assert_eq!([status.as_str(), &source], ["completed", "partial"]);
        drop(open);
    });
}

#[test]
fn a_client_that_leaves_is_drained_only_within_bounds() {
    let bounded = tollgate_api::Settings {
        calls: CallSettings {
            disconnect_drain_max: Duration::from_millis(100),
            ..settings().calls
        },
        ..settings()
    };
    each_gateway_with(bounded, async |gateway| {
        let gate = Gate::new();
        let cut = length_of(&events()[..1]);
        gateway.provider.push(ScriptedResponse::events(events()).pieces_at([cut]).gate(&gate));
        let mut open = gateway.forward("/v1/chat/completions").json(&stream_body()).open().await;
        gate.pass(1);
        open.read_until("Hello there").await;
        drop(open);
        gateway.provider.wait_for_hang_ups(1).await;
        let [status, source, ..] = ended(gateway).await;
        assert_eq!([status.as_str(), &source], ["completed", "partial"]);
    });
}

#[test]
fn a_shutdown_settles_what_is_left_as_far_as_it_came() {
    each_gateway(async |gateway| {
        let gate = Gate::new();
        let cut = length_of(&events()[..1]);
        gateway.provider.push(ScriptedResponse::events(events()).pieces_at([cut]).gate(&gate));
        let mut open = gateway.forward("/v1/chat/completions").json(&stream_body()).open().await;
        gate.pass(1);
        open.read_until("Hello there").await;
        gateway.calls.drain(Duration::from_millis(50)).await;
        let [status, source, ..] = ended(gateway).await;
        assert_eq!([status.as_str(), &source], ["completed", "partial"]);
        let refused = gateway.chat().send().await;
        assert_eq!((refused.status, refused.error().as_str()), (503, "shutting_down"));
    });
}
