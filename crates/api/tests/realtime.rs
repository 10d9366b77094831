//! OpenAI's Realtime API over a WebSocket: responses that are asked for, those that the provider begins by itself, and
//! transcriptions of the input are calls.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::{SocketEvent, TestRequest, TestSocket};

use crate::support::sockets::{customer_key, ending, held, open, pass, until_closed, until_held};
use crate::support::{Gateway, each_gateway};

const NOTHING: &str = "0.0000000000";
/// The cost of 1,000 input and 500 output tokens, without a fee.
const USED: &str = "0.0020000000";

/// A request for a conversation with a spend key of the customer's wallet.
async fn request(gateway: &Gateway<'_>, rules: &Value) -> TestRequest {
    let key = customer_key(gateway, rules).await;
    gateway.call_without_key("GET", "/realtime?model=m-1").bearer(&key)
}

/// A socket of the customer, and its other end at the provider.
async fn both_ends(gateway: &Gateway<'_>, rules: &Value) -> (TestSocket, TestSocket) {
    let client = open(request(gateway, rules).await).await;
    (client, gateway.provider.socket().await)
}

/// A session with voice activity, and with a model that transcribes.
fn session(kind: &str, detection: &Value, transcription: &Value) -> Value {
    json!({"type": format!("session.{kind}"), "event_id": "event_1", "session": {
        "object": "realtime.session", "type": "realtime", "id": "sess_1", "model": "m-1",
        "max_output_tokens": "inf", "tools": [],
        "audio": {"input": {"format": {"type": "audio/pcm", "rate": 24000},
            "turn_detection": detection, "transcription": transcription}}}})
}

fn vad() -> Value {
    json!({"type": "server_vad", "create_response": true})
}

/// A socket whose session has voice activity.
async fn voice(gateway: &Gateway<'_>, rules: &Value) -> (TestSocket, TestSocket) {
    let (mut client, mut provider) = both_ends(gateway, rules).await;
    pass(&mut provider, &mut client, &session("created", &vad(), &Value::Null)).await;
    (client, provider)
}

fn create(more: &Value) -> Value {
    let mut message = json!({"type": "response.create"});
    message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    message
}

fn created(id: &str) -> Value {
    json!({"type": "response.created", "response": {"id": id, "object": "realtime.response",
        "status": "in_progress", "usage": null}})
}

fn delta(id: &str) -> Value {
    json!({"type": "response.output_audio_transcript.delta", "response_id": id,
        "delta": "Hello there, how are you?"})
}

/// The end of a response that used 1,000 input and 500 output tokens.
fn done(id: &str, status: &str) -> Value {
    json!({"type": "response.done", "response": {
        "id": id, "object": "realtime.response", "status": status, "output": [],
        "usage": {"input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500,
            "input_token_details": {"text_tokens": 200, "audio_tokens": 800, "cached_tokens": 0},
            "output_token_details": {"text_tokens": 100, "audio_tokens": 400}}}})
}

/// The transcription of two seconds of input.
fn transcribed(usage: &Value) -> Value {
    json!({"type": "conversation.item.input_audio_transcription.completed", "item_id": "item_1",
        "content_index": 0, "transcript": "Hello", "usage": usage})
}

/// A piece of sound of this length.
fn sound(seconds: usize) -> Value {
    json!({"type": "input_audio_buffer.append", "audio": "A".repeat(64_000 * seconds)})
}

#[test]
fn each_response_that_is_asked_for_is_a_call_on_every_route() {
    each_gateway(async |gateway| {
        let base = gateway.provider.url("/v1/realtime?model=m-1").replace("http", "ws");
        let u: String = url::form_urlencoded::byte_serialize(base.as_bytes()).collect();
        let token = gateway.token(&json!({}));
        let own = gateway.token(&json!({"provider_key": "sk-of-the-caller"}));
        let to = |path: &str| gateway.call_without_key("GET", path);
        let subprotocol = format!(
            "realtime, openai-insecure-api-key.{}, openai-beta.realtime-v1",
            gateway
                .spend_key(&json!({"wallet_id": gateway.connection.wallet_id.to_string()}))
                .await
                .key
        );
        let routes = [
            (to("/realtime?model=m-1").bearer(&token), "managed-provider-key"),
            (to("/realtime?model=house%2Fm-1").bearer(&token), "managed-provider-key"),
            (
                to("/realtime?model=m-1").header("sec-websocket-protocol", &subprotocol),
                "managed-provider-key",
            ),
            (to("/providers/house/realtime?model=m-1").bearer(&token), "managed-provider-key"),
            (to(&format!("/forward?u={u}")).bearer(&token), "managed-provider-key"),
            (to(&format!("/forward?u={u}")).bearer(&own), "sk-of-the-caller"),
        ];
        for (at, (request, key)) in routes.into_iter().enumerate() {
            let mut client = open(request.header("openai-beta", "realtime=v1")).await;
            let mut provider = gateway.provider.socket().await;
            let seen = gateway.provider.requests().pop().unwrap();
            assert_eq!(seen.target, "/v1/realtime?model=m-1");
            assert_eq!(seen.header("authorization"), Some(format!("Bearer {key}").as_str()));
            assert_eq!(seen.header("openai-beta"), Some("realtime=v1"));
            pass(&mut provider, &mut client, &session("created", &Value::Null, &Value::Null)).await;
            let item = json!({"type": "conversation.item.create", "item": {"type": "message",
                "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}});
            pass(&mut client, &mut provider, &item).await;
            for number in 0..2 {
                let id = format!("resp_{at}_{number}");
                pass(&mut client, &mut provider, &create(&json!({}))).await;
                for message in [created(&id), delta(&id), done(&id, "completed")] {
                    pass(&mut provider, &mut client, &message).await;
                }
            }
            client.close(1000, "bye").await;
            assert_eq!(provider.closed().await, (1000, "bye".to_owned()));
        }
        let records = gateway.records().await;
        assert_eq!(records.len(), 12);
        for record in &records {
            // A token has a meter with a fee.
            assert_eq!(ending(record)[..2], ["completed", "reported"]);
            assert_eq!(record["model_usage"]["total_cost"], USED);
            assert_eq!(
                (&record["endpoint"], &record["model"]),
                (&json!(format!("GET {base}")), &json!("m-1"))
            );
            assert_eq!(record["provider_status"], 200);
            assert_eq!(record["model_usage"]["input_audio_tokens"], 800, "{record}");
        }
        until_closed(gateway).await;
    });
}

#[test]
fn the_money_of_a_response_of_the_provider_is_held_ahead() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = voice(gateway, &json!({})).await;
        until_held(gateway, |held| held > 0.002).await;
        let ahead = held(gateway).await;
        assert_eq!(gateway.records().await.len(), 0, "it has not begun");
        for number in 0..3 {
            let id = format!("resp_{number}");
            pass(&mut client, &mut provider, &sound(1)).await;
            pass(&mut provider, &mut client, &json!({"type": "input_audio_buffer.speech_stopped"}))
                .await;
            pass(&mut provider, &mut client, &created(&id)).await;
            let listed = gateway.get("/requests").await.expect(200)["data"].clone();
            assert_eq!(listed.as_array().unwrap().len(), number + 1);
            assert_eq!(listed[0]["status"], "pending");
            // The next one is held while this one is open.
            until_held(gateway, |held| held > ahead * 1.9).await;
            pass(&mut provider, &mut client, &delta(&id)).await;
            pass(&mut provider, &mut client, &done(&id, "completed")).await;
            assert_eq!(ending(&gateway.records().await[0]), ["completed", "reported", USED]);
            assert!(held(gateway).await > 0.0);
        }
        client.close(1000, "").await;
        until_closed(gateway).await;
        assert_eq!(gateway.records().await.len(), 3);
        let audit = gateway.app.gateway.store.audit().await.unwrap();
        assert!(audit.differences.is_empty(), "{:?}", audit.differences);
    });
}

#[test]
fn input_beyond_the_hold_takes_a_larger_one() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = voice(gateway, &json!({})).await;
        until_held(gateway, |held| held > 0.0).await;
        let before = held(gateway).await;
        for _ in 0..3 {
            pass(&mut client, &mut provider, &sound(20)).await;
        }
        // 60 and 30 more seconds of 10 tokens.
        let after = held(gateway).await;
        assert!(after >= before + 0.000_3 && after < before + 0.001, "{before} {after}");
        assert_eq!(gateway.records().await.len(), 0);
        pass(&mut provider, &mut client, &created("resp_1")).await;
        pass(&mut provider, &mut client, &done("resp_1", "completed")).await;
        client.close(1000, "").await;
        until_closed(gateway).await;
        assert_eq!(gateway.records().await.len(), 1);
    });
}

#[test]
fn input_without_a_hold_is_refused() {
    each_gateway(async |gateway| {
        let rules = json!({"enforcement": "strict",
            "spend_limit": {"amount": "0.002", "cycle": "total"}});
        let (mut client, mut provider) = voice(gateway, &rules).await;
        for number in 0..3 {
            let id = format!("event_{number}");
            let mut message = sound(1);
            message["event_id"] = id.as_str().into();
            client.send(&message).await;
            let error = client.message().await;
            assert_eq!(
                (&error["type"], &error["status"]),
                (&json!("error"), &json!(402)),
                "{error}"
            );
            assert_eq!(error["error"]["code"], "spend_limit_reached");
            assert_eq!(error["error"]["event_id"], id);
            assert!(error["error"]["refusal_id"].is_string());
            if number == 1 {
                // What adds nothing passes.
                let clear = json!({"type": "input_audio_buffer.clear"});
                pass(&mut client, &mut provider, &clear).await;
            }
        }
        assert_eq!(client.closed().await, (1008, "spend_limit_reached".to_owned()));
        assert_eq!(provider.closed().await.0, 1000);
        until_closed(gateway).await;
        assert_eq!(gateway.records().await.len(), 0);
    });
}

#[test]
fn a_session_without_money_is_closed_at_once() {
    each_gateway(async |gateway| {
        let rules = json!({"spend_limit": {"amount": "0.001", "cycle": "total"}});
        let request = request(gateway, &rules).await;
        let mut client = open(request.clone()).await;
        let mut provider = gateway.provider.socket().await;
        pass(&mut client, &mut provider, &create(&json!({}))).await;
        pass(&mut provider, &mut client, &done("resp_1", "completed")).await;
        // The limit is gone, so the hold of another session is refused.
        let mut client = open(request).await;
        let mut provider = gateway.provider.socket().await;
        pass(&mut provider, &mut client, &session("created", &vad(), &Value::Null)).await;
        assert_eq!(client.message().await["error"]["code"], "spend_limit_reached");
        assert_eq!(client.closed().await, (1008, "spend_limit_reached".to_owned()));
        assert_eq!(gateway.records().await.len(), 1);
    });
}

/// With voice activity that the client has just turned on, the provider's settings are not known yet.
#[test]
fn input_behind_a_change_of_the_session_needs_its_hold() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        pass(&mut provider, &mut client, &session("created", &Value::Null, &Value::Null)).await;
        pass(&mut client, &mut provider, &sound(1)).await;
        assert_eq!(gateway.wallet().await.1, NOTHING);
        let update = json!({"type": "session.update",
            "session": {"audio": {"input": {"turn_detection": vad()}}}});
        pass(&mut client, &mut provider, &update).await;
        pass(&mut client, &mut provider, &sound(1)).await;
        assert!(held(gateway).await > 0.0);
        pass(&mut provider, &mut client, &session("updated", &vad(), &Value::Null)).await;
        pass(&mut provider, &mut client, &created("resp_1")).await;
        pass(&mut provider, &mut client, &done("resp_1", "completed")).await;
        assert_eq!(gateway.records().await.len(), 1);
    });
}

#[test]
fn a_transcription_is_a_call_with_a_model_of_its_own() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        let transcriber = json!({"model": "m-listed"});
        pass(&mut provider, &mut client, &session("created", &vad(), &transcriber)).await;
        pass(&mut client, &mut provider, &sound(2)).await;
        let usage = json!({"type": "tokens", "input_tokens": 20, "output_tokens": 5,
            "total_tokens": 25, "input_token_details": {"audio_tokens": 20, "text_tokens": 0}});
        // Before the end of a response, behind it, and without one.
        pass(&mut provider, &mut client, &created("resp_1")).await;
        pass(&mut provider, &mut client, &transcribed(&usage)).await;
        pass(&mut provider, &mut client, &done("resp_1", "completed")).await;
        pass(&mut provider, &mut client, &transcribed(&usage)).await;
        client.close(1000, "").await;
        until_closed(gateway).await;
        let records = gateway.records().await;
        let of = |model: &str| {
            records.iter().filter(|record| record["model"] == model).collect::<Vec<_>>()
        };
        assert_eq!((records.len(), of("m-1").len()), (3, 1));
        for record in of("m-listed") {
            assert_eq!(ending(record), ["completed", "reported", "0.0000300000"]);
            assert_eq!(record["model_usage"]["input_audio_tokens"], 20);
            assert_eq!(record["socket_id"], of("m-1")[0]["socket_id"]);
            assert_eq!(record["endpoint"], of("m-1")[0]["endpoint"]);
        }
    });
}

#[test]
fn a_session_for_transcription_makes_no_responses() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await.key;
        let path = "/realtime?intent=transcription";
        let mut client = open(gateway.call_without_key("GET", path).bearer(&key)).await;
        let mut provider = gateway.provider.socket().await;
        assert_eq!(gateway.provider.request().target, "/v1/realtime?intent=transcription");
        let mut begun = session("created", &vad(), &json!({"model": "m-listed"}));
        begun["session"]["type"] = "transcription".into();
        begun["session"].as_object_mut().unwrap().remove("model");
        pass(&mut provider, &mut client, &begun).await;
        pass(&mut client, &mut provider, &sound(2)).await;
        let usage = json!({"type": "duration", "seconds": 2});
        pass(&mut provider, &mut client, &transcribed(&usage)).await;
        client.close(1000, "").await;
        until_closed(gateway).await;
        let record = gateway.record().await;
        assert_eq!(
            (&record["model"], &record["usage_source"]),
            (&json!("m-listed"), &json!("reported"))
        );
        // A model without a price is refused before its input is sent on.
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        let unknown = json!({"model": "unknown"});
        pass(&mut provider, &mut client, &session("created", &Value::Null, &unknown)).await;
        client.send(&sound(1)).await;
        assert_eq!(client.message().await["error"]["code"], "model_price_unknown");
    });
}

#[test]
fn an_error_refuses_the_message_that_it_names() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        pass(&mut client, &mut provider, &create(&json!({"event_id": "a"}))).await;
        pass(&mut client, &mut provider, &create(&json!({"event_id": "b"}))).await;
        let error = |id: &Value, code: &str| {
            json!({"type": "error", "event_id": "event_9", "error": {"type": "invalid_request_error",
                "code": code, "message": "It is not possible.", "param": null, "event_id": id}})
        };
        for message in [
            created("resp_a"),
            // About others, or about nothing that asks.
            error(&json!("elsewhere"), "item_truncate_invalid_item_id"),
            error(&Value::Null, "input_audio_buffer_commit_empty"),
            error(&json!("a"), "late"),
            error(&json!("b"), "conversation_already_has_active_response"),
            delta("resp_a"),
            done("resp_a", "cancelled"),
        ] {
            pass(&mut provider, &mut client, &message).await;
        }
        // One without an id, whose error has none either.
        pass(&mut client, &mut provider, &create(&json!({}))).await;
        pass(&mut provider, &mut client, &error(&Value::Null, "server_error")).await;
        assert_eq!(gateway.wallet().await.1, NOTHING);
        let records = gateway.records().await;
        let endings: Vec<_> = records.iter().rev().map(ending).collect();
        assert_eq!(
            endings,
            [
                ["completed", "reported", USED],
                ["error", "none", NOTHING],
                ["error", "none", NOTHING],
            ]
        );
        assert_eq!(records[1]["error"]["code"], "conversation_already_has_active_response");
        assert_eq!(records[1]["provider_status"], 400);
    });
}

/// Nothing was held ahead, because nothing says that the provider begins responses.
#[test]
fn a_response_that_was_not_asked_for_is_admitted_when_it_begins() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        for message in [created("resp_1"), delta("resp_1"), done("resp_1", "completed")] {
            pass(&mut provider, &mut client, &message).await;
        }
        // One that is repeated is none.
        pass(&mut provider, &mut client, &done("resp_1", "completed")).await;
        assert_eq!(ending(&gateway.record().await), ["completed", "reported", USED]);
        let rules = json!({"enforcement": "strict",
            "spend_limit": {"amount": "0.001", "cycle": "total"}});
        let (mut client, mut provider) = both_ends(gateway, &rules).await;
        provider.send(&created("resp_2")).await;
        assert_eq!(client.closed().await, (1008, "spend_limit_reached".to_owned()));
        assert_eq!(provider.closed().await.0, 1000);
        assert_eq!(gateway.records().await.len(), 1);
    });
}

/// Two utterances are sent at once, on one hold. There is money for one response.
#[test]
fn a_response_without_a_hold_is_paid_by_the_merchant_and_ends_the_socket() {
    for enforcement in ["bounded", "strict"] {
        each_gateway(async |gateway| {
            let rules = json!({"enforcement": enforcement,
                "spend_limit": {"amount": "0.0026", "cycle": "total"}});
            let (mut client, mut provider) = voice(gateway, &rules).await;
            pass(&mut client, &mut provider, &sound(1)).await;
            let mut first = done("resp_1", "cancelled");
            // A strict key has no hold for the next one, and the other one has spent all.
            let output = if enforcement == "strict" { 500 } else { 900 };
            first["response"]["usage"]["output_tokens"] = output.into();
            first["response"]["usage"]["total_tokens"] = (1_000 + output).into();
            pass(&mut provider, &mut client, &created("resp_1")).await;
            if enforcement == "strict" {
                pass(&mut provider, &mut client, &first).await;
            } else {
                provider.send(&first).await;
                // The refusal of the next hold may come before the message.
                let messages = [client.message().await, client.message().await];
                assert!(messages.contains(&first), "{messages:?}");
                let codes = messages.each_ref().map(|message| &message["error"]["code"]);
                assert!(codes.contains(&&json!("spend_limit_reached")), "{messages:?}");
            }
            provider.send(&created("resp_2")).await;
            assert_eq!(client.closed().await, (1008, "spend_limit_reached".to_owned()));
            assert_eq!(provider.closed().await.0, 1000);
            until_closed(gateway).await;
            let records = gateway.records().await;
            assert_eq!((records.len(), &records[0]["spend_key_id"]), (2, &Value::Null));
            assert_eq!(records[0]["total_wallet_cost"], NOTHING);
            assert_eq!(records[0]["socket_id"], records[1]["socket_id"]);
            let audit = gateway.app.gateway.store.audit().await.unwrap();
            assert!(audit.differences.is_empty(), "{:?}", audit.differences);
        });
    }
}

/// A hold is as large as the next response may be, whatever has changed since it was taken.
#[test]
fn a_hold_follows_every_change_of_its_bound() {
    each_gateway(async |gateway| {
        let rules = json!({"enforcement": "strict",
            "spend_limit": {"amount": "0.01", "cycle": "total"}});
        let (mut client, mut provider) = both_ends(gateway, &rules).await;
        let with = |kind: &str, most: u64| {
            let mut session = session(kind, &vad(), &Value::Null);
            session["session"]["max_output_tokens"] = most.into();
            session
        };
        pass(&mut provider, &mut client, &with("created", 100)).await;
        until_held(gateway, |held| held > 0.0).await;
        let small = held(gateway).await;
        // More output: it is held before the provider knows.
        let update =
            |most: u64| json!({"type": "session.update", "session": {"max_output_tokens": most}});
        pass(&mut client, &mut provider, &update(1_000)).await;
        let large = held(gateway).await;
        assert!(large >= small + 0.001_8 && large < small + 0.001_9, "{small} {large}");
        pass(&mut provider, &mut client, &with("updated", 1_000)).await;
        // More context, by a response that was asked for.
        pass(&mut client, &mut provider, &create(&json!({"response": {"max_output_tokens": 1}})))
            .await;
        pass(&mut provider, &mut client, &created("resp_1")).await;
        pass(&mut provider, &mut client, &done("resp_1", "completed")).await;
        // The response could have 1,000 tokens of output. What was held for them then is enough for the 1,500 of now.
        until_held(gateway, |held| held >= large + 0.001).await;
        // More instructions than there is money for are not sent on.
        let long =
            json!({"type": "session.update", "session": {"instructions": "x".repeat(20_000)}});
        client.send(&long).await;
        assert_eq!(client.message().await["error"]["code"], "spend_limit_reached");
        pass(&mut client, &mut provider, &sound(1)).await;
    });
}

/// The way in which a socket ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ConversationEnd {
    ClientCloses,
    ClientLeaves,
    ProviderCloses,
    ProviderLeaves,
}

#[test]
fn every_end_releases_what_is_held_ahead() {
    each_gateway(async |gateway| {
        let mut responses = 0;
        for way in [
            ConversationEnd::ClientCloses,
            ConversationEnd::ClientLeaves,
            ConversationEnd::ProviderCloses,
            ConversationEnd::ProviderLeaves,
        ] {
            for has_begun in [false, true] {
                let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
                let transcriber = json!({"model": "m-listed"});
                pass(&mut provider, &mut client, &session("created", &vad(), &transcriber)).await;
                pass(&mut client, &mut provider, &sound(1)).await;
                if has_begun {
                    pass(&mut provider, &mut client, &created("resp_1")).await;
                    pass(&mut provider, &mut client, &delta("resp_1")).await;
                    responses += 1;
                }
                let is_drained = has_begun
                    && matches!(way, ConversationEnd::ClientCloses | ConversationEnd::ClientLeaves);
                match way {
                    ConversationEnd::ClientCloses => client.close(1000, "").await,
                    ConversationEnd::ClientLeaves => client.leave().await,
                    ConversationEnd::ProviderCloses => {
                        provider.close(1000, "session_expired").await
                    }
                    ConversationEnd::ProviderLeaves => provider.leave().await,
                }
                if is_drained {
                    provider.send(&done("resp_1", "completed")).await;
                }
                until_closed(gateway).await;
                let records = gateway.records().await;
                assert_eq!(records.len(), responses, "{way:?} {has_begun}");
                if has_begun {
                    let expected = match (way, is_drained) {
                        (_, true) => ["completed", "reported"],
                        _ => ["error", "partial"],
                    };
                    assert_eq!(ending(&records[0])[..2], expected, "{way:?}");
                }
            }
        }
        let audit = gateway.app.gateway.store.audit().await.unwrap();
        assert!(audit.differences.is_empty(), "{:?}", audit.differences);
    });
}

#[test]
fn a_shutdown_lets_a_response_of_the_provider_end_and_begins_no_other() {
    each_gateway(async |gateway| {
        let (mut idle, _idle_provider) = voice(gateway, &json!({})).await;
        let (mut client, mut provider) = voice(gateway, &json!({})).await;
        pass(&mut client, &mut provider, &sound(1)).await;
        pass(&mut provider, &mut client, &created("resp_1")).await;
        let drain = gateway.calls.drain(Duration::from_secs(10));
        let test = async {
            assert_eq!(idle.closed().await, (1001, "shutting_down".to_owned()));
            for _ in 0..4 {
                client.send(&sound(1)).await;
                assert_eq!(client.message().await["error"]["code"], "shutting_down");
            }
            // What stops it passes.
            let cancel = json!({"type": "response.cancel"});
            pass(&mut client, &mut provider, &cancel).await;
            pass(&mut provider, &mut client, &done("resp_1", "cancelled")).await;
            assert_eq!(client.closed().await, (1001, "shutting_down".to_owned()));
        };
        tokio::join!(drain, test);
        until_closed(gateway).await;
        assert_eq!(ending(&gateway.record().await), ["completed", "reported", USED]);
    });
}

#[test]
fn secrets_and_calls_of_the_provider_do_not_reach_a_client() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await.key;
        for path in ["client_secrets", "calls", "sessions", "transcription_sessions"] {
            let request =
                gateway.call_without_key("POST", &format!("/realtime/{path}")).bearer(&key);
            let answer = request.json(&json!({})).send().await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (404, "route_not_found"),
                "{path}"
            );
            let url = gateway.provider.url(&format!("/v1/realtime/{path}"));
            let u: String = url::form_urlencoded::byte_serialize(url.as_bytes()).collect();
            let request = gateway.call_without_key("POST", &format!("/forward?u={u}")).bearer(&key);
            let answer = request.json(&json!({})).send().await;
            assert_eq!(answer.error(), "forward_endpoint_not_supported", "{path}");
        }
        for path in [
            "/realtime?call_id=rtc_1",
            "/realtime?model=m-1&call_id=rtc_1",
            "/providers/house/realtime?model=m-1&model=m-2",
        ] {
            let request = gateway.call_without_key("GET", path).bearer(&key);
            let answer = request.open_socket().await.err().unwrap();
            assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        }
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_prompt_that_the_provider_stores_is_refused() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        let update = json!({"type": "session.update", "event_id": "e", "session": {"prompt": {"id": "pmpt_1"}}});
        client.send(&update).await;
        let error = client.message().await;
        assert_eq!(error["error"]["param"], "session.prompt", "{error}");
        client.send_message(tokio_tungstenite::tungstenite::Message::binary(vec![1, 2])).await;
        assert_eq!(client.message().await["error"]["code"], "forward_token_json_invalid");
        pass(&mut client, &mut provider, &create(&json!({}))).await;
    });
}

/// Sockets at once on one limit, whose provider begins responses by itself until the limit refuses the input.
#[test]
fn voices_at_once_do_not_pass_their_limit() {
    for (enforcement, most) in [("strict", 0.05), ("bounded", 0.05 + 8.0 * 0.002)] {
        each_gateway(async |gateway| {
            let rules = json!({"enforcement": enforcement,
                "spend_limit": {"amount": "0.05", "cycle": "total"}});
            let key = gateway.spend_key(&rules).await;
            let sockets = (0..8).map(async |number| {
                let request =
                    gateway.call_without_key("GET", "/realtime?model=m-1").bearer(&key.key);
                let mut client = open(request).await;
                let mut provider = gateway.provider.socket().await;
                let serve = async {
                    let mut served = 0;
                    provider.send(&session("created", &vad(), &Value::Null)).await;
                    loop {
                        match provider.next().await {
                            SocketEvent::Text(_) => {
                                served += 1;
                                let id = format!("resp_{number}_{served}");
                                provider.send(&created(&id)).await;
                                provider.send(&done(&id, "completed")).await;
                            }
                            SocketEvent::Closed(_) | SocketEvent::Lost => return served,
                            _ => {}
                        }
                    }
                };
                let speak = async {
                    client.message().await;
                    loop {
                        client.send(&sound(1)).await;
                        match client.next().await {
                            SocketEvent::Text(text) if text.contains("response.created") => {
                                client.next().await;
                            }
                            SocketEvent::Text(_) => {}
                            _ => return,
                        }
                    }
                };
                tokio::join!(serve, speak).0
            });
            let served: usize = futures_util::future::join_all(sockets).await.into_iter().sum();
            until_closed(gateway).await;
            assert_eq!(gateway.records().await.len(), served);
            let key = gateway.get(&key.path).await.expect(200);
            let spent: f64 = key["total_spend"].as_str().unwrap().parse().unwrap();
            assert!(spent <= most && spent > 0.04, "{enforcement}: {spent}");
            let audit = gateway.app.gateway.store.audit().await.unwrap();
            assert!(audit.differences.is_empty(), "{:?}", audit.differences);
        });
    }
}
