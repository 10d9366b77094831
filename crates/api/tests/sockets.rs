//! WebSockets: messages pass unchanged, each response is a call, and a socket ends in the ways of the documents.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate_api::Settings;
use tollgate_gateway::{OnDisconnect, watch_socket_keys};
use tollgate_testkit::{ScriptedResponse, SocketEvent, TestRequest, TestSocket};

use crate::support::sockets::{customer_key, open};
use crate::support::{Gateway, each_gateway, each_gateway_with, settings};

const NOTHING: &str = "0.0000000000";
/// The cost of 1,000 input and 500 output tokens, without a fee.
const USED: &str = "0.0020000000";

/// A request for responses with a spend key of the customer's wallet.
async fn request(gateway: &Gateway<'_>, rules: &Value) -> TestRequest {
    let key = customer_key(gateway, rules).await;
    gateway.call_without_key("GET", "/responses").bearer(&key)
}

/// A socket of the customer, and its other end at the provider.
async fn both_ends(gateway: &Gateway<'_>, rules: &Value) -> (TestSocket, TestSocket) {
    let client = open(request(gateway, rules).await).await;
    (client, gateway.provider.socket().await)
}

fn create(more: &Value) -> Value {
    let mut message = json!({"type": "response.create", "model": "m-1", "input": "Hello"});
    message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    message
}

fn created(id: &str) -> Value {
    json!({"type": "response.created", "response": {"id": id, "object": "response", "model": "m-1-2026", "status": "in_progress"}})
}

fn delta() -> Value {
    json!({"type": "response.output_text.delta", "delta": "Hello there, how are you?"})
}

/// The end of a response that used 1,000 input and 500 output tokens.
fn completed(id: &str) -> Value {
    json!({"type": "response.completed", "response": {
        "id": id, "object": "response", "model": "m-1-2026", "status": "completed", "output": [],
        "usage": {"input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500}}})
}

fn in_lane(mut message: Value, lane: &str) -> Value {
    message["stream_id"] = lane.into();
    message
}

/// Asks for a response that is answered to its end.
async fn exchange(client: &mut TestSocket, provider: &mut TestSocket, id: &str) {
    let asked = create(&json!({}));
    client.send(&asked).await;
    assert_eq!(provider.message().await, asked);
    for message in [created(id), delta(), completed(id)] {
        provider.send(&message).await;
        assert_eq!(client.message().await, message);
    }
}

async fn assert_nothing_held(gateway: &Gateway<'_>) {
    assert_eq!(gateway.wallet().await.1, NOTHING);
}

/// The columns of the only record that the table of endings has.
async fn ending(gateway: &Gateway<'_>) -> [String; 3] {
    let record = gateway.record().await;
    assert_nothing_held(gateway).await;
    ["status", "usage_source", "total_wallet_cost"]
        .map(|name| record[name].as_str().unwrap().to_owned())
}

#[test]
fn each_response_is_a_call_on_every_route() {
    each_gateway(async |gateway| {
        let base = gateway.provider.url("/v1/responses").replace("http", "ws");
        let u: String = url::form_urlencoded::byte_serialize(base.as_bytes()).collect();
        let token = gateway.token(&json!({}));
        let own = gateway.token(&json!({"provider_key": "sk-of-the-caller"}));
        let to = |path: &str| gateway.call_without_key("GET", path);
        let routes = [
            (to("/responses").bearer(&token), "managed-provider-key"),
            (to("/responses?model=house/m-1").bearer(&token), "managed-provider-key"),
            (to("/responses").header("x-api-key", &token), "managed-provider-key"),
            (to("/providers/house/responses").bearer(&token), "managed-provider-key"),
            (to(&format!("/forward?u={u}")).bearer(&token), "managed-provider-key"),
            (to(&format!("/forward?u={u}")).bearer(&own), "sk-of-the-caller"),
        ];
        for (at, (request, key)) in routes.into_iter().enumerate() {
            let request = request
                .header("x-service-metadata", r#"{"app":"voice"}"#)
                .header("x-service-run", "run-7")
                .header("openai-beta", "responses_websockets=2026-02-06")
                .header("sec-websocket-extensions", "permessage-deflate");
            let (mut client, answer) = request.open_socket().await.ok().unwrap();
            assert_eq!(answer.header("sec-websocket-extensions"), None);
            let mut provider = gateway.provider.socket().await;
            let seen = gateway.provider.requests().pop().unwrap();
            assert_eq!(seen.target, "/v1/responses");
            assert_eq!(seen.header("authorization"), Some(format!("Bearer {key}").as_str()));
            assert_eq!(seen.header("openai-beta"), Some("responses_websockets=2026-02-06"));
            for absent in
                ["sec-websocket-extensions", "x-service-run", "x-service-metadata", "x-api-key"]
            {
                assert_eq!(seen.header(absent), None, "{absent}");
            }
            for number in 0..2 {
                exchange(&mut client, &mut provider, &format!("resp_{at}_{number}")).await;
            }
            client.close(1000, "bye").await;
            assert_eq!(provider.closed().await, (1000, "bye".to_owned()));
            assert_eq!(client.closed().await, (1000, "bye".to_owned()));
        }
        let records = gateway.records().await;
        assert_eq!(records.len(), 12);
        let id = |record: &Value| record["socket_id"].as_str().unwrap().to_owned();
        let mut sockets: Vec<_> = records.iter().map(id).collect();
        sockets.dedup();
        assert_eq!(sockets.len(), 6);
        for id in sockets {
            let path = format!("/requests?socket_id={id}");
            let of_socket = gateway.get(&path).await.expect(200)["data"].clone();
            let all = records.iter().filter(|record| record["socket_id"] == *id);
            assert_eq!(of_socket, json!(all.collect::<Vec<_>>()));
        }
        let other = gateway.get("/requests?socket_id=skt_01M7YS5040NCSYBM5NZVE98902").await;
        assert_eq!(other.expect(200)["data"], json!([]));
        assert_eq!(gateway.get("/requests?socket_id=x").await.issue_paths(), ["socket_id"]);
        for record in &records {
            assert!(record["socket_id"].as_str().unwrap().starts_with("skt_"));
            assert_eq!(record["endpoint"], format!("GET {base}"));
            assert_eq!(record["status"], "completed");
            assert_eq!(record["usage_source"], "reported");
            assert_eq!(record["model"], "m-1-2026");
            assert_eq!(record["provider_status"], 200);
            assert_eq!(record["metadata"], json!({"app": "voice"}));
            assert_eq!(record["run_id"], "run-7");
            assert_eq!(record["model_usage"]["input_tokens"], 1000);
        }
        assert_nothing_held(gateway).await;
    });
}

#[test]
fn the_key_may_be_in_a_subprotocol_which_the_provider_does_not_get() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await.key;
        let offered =
            format!("realtime, openai-insecure-api-key.{key}, openai-organization.org_1, v2");
        let request = gateway.call_without_key("GET", "/responses");
        let opened = request.header("sec-websocket-protocol", &offered).open_socket().await;
        let (mut client, head) = opened.ok().unwrap();
        // The provider of the test chooses none.
        assert_eq!(head.header("sec-websocket-protocol"), Some("realtime"));
        let mut provider = gateway.provider.socket().await;
        let seen = gateway.provider.request();
        assert_eq!(seen.header("sec-websocket-protocol"), Some("realtime, v2"));
        assert!(!format!("{seen:?}").contains(&key));
        exchange(&mut client, &mut provider, "resp_1").await;
    });
}

#[test]
fn a_request_that_opens_no_socket_is_answered_in_the_envelope() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let responses = || gateway.call_without_key("GET", "/responses").bearer(&key.key);
        // No upgrade, or one of another version.
        let answer = responses().send().await;
        assert_eq!((answer.status, answer.error().as_str()), (426, "upgrade_required"));
        assert_eq!(answer.header("upgrade"), Some("websocket"));
        let answer = gateway.call_without_key("GET", "/responses").send().await;
        assert_eq!((answer.status, answer.error().as_str()), (401, "auth_header_missing"));
        let refused = async |request: TestRequest| {
            let answer = request.open_socket().await.err().unwrap();
            (answer.status, answer.error())
        };
        let refusal = |status: u16, code: &str| (status, code.to_owned());
        let anonymous = gateway.call_without_key("GET", "/responses");
        assert_eq!(refused(anonymous.clone()).await, refusal(401, "auth_header_missing"));
        assert_eq!(refused(anonymous.bearer("tgk_no")).await, refusal(401, "auth_invalid"));
        let to = |path: &str| gateway.call_without_key("GET", path).bearer(&key.key);
        for path in [
            "/providers/house/chat/completions",
            "/providers/nobody-knows/responses",
            "/forward?u=https%3A%2F%2Fapi.openai.com%2Fv1%2Fresponses",
            "/forward?u=wss%3A%2F%2Fapi.openai.com%2Fv1%2Fchat%2Fcompletions",
            "/forward?u=wss%3A%2F%2Felsewhere.invalid%2Fv1%2Fresponses",
        ] {
            let answer = refused(to(path)).await;
            assert_eq!(answer, refusal(400, "forward_endpoint_not_supported"), "{path}");
        }
        assert_eq!(refused(to("/responses?model=no-such-model")).await.1, "model_price_unknown");
        let invalid = to("/responses").header("x-service-metadata", "no");
        assert_eq!(refused(invalid).await.1, "metadata_invalid");
        // A provider that does not want it, or is not there.
        gateway.provider.push(ScriptedResponse::json(429, "{}"));
        assert_eq!(refused(to("/responses")).await, refusal(502, "provider_unreachable"));
        assert_eq!(
            refused(to("/providers/nobody/responses")).await,
            refusal(502, "provider_unreachable")
        );
        // A plain call does not reach a socket.
        let answer = to("/providers/house/responses").send().await;
        assert_eq!(answer.error(), "forward_endpoint_not_supported");
        gateway.put(&key.path, &json!({"status": "paused"})).await.expect(200);
        assert_eq!(refused(to("/responses")).await, refusal(403, "spend_key_paused"));
        gateway.provider.assert_calls(1);
    });
}

#[test]
fn messages_and_control_frames_pass_as_they_are() {
    use tokio_tungstenite::tungstenite::Message;
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        // Fragments of one message, with a ping between them, masked with zeros.
        let text = r#"{ "type" : "response.create", "model":"m-1", "input":"é \u00e9", "x": 1e3 }"#;
        let (first, rest) = text.as_bytes().split_at(60);
        let frame = |head: u8, payload: &[u8]| {
            [&[head, 0x80 | u8::try_from(payload.len()).unwrap(), 0, 0, 0, 0], payload].concat()
        };
        for bytes in [frame(0x01, first), frame(0x89, b"are you there"), frame(0x80, rest)] {
            client.send_raw(&bytes).await;
        }
        assert_eq!(provider.next().await, SocketEvent::Ping(b"are you there".to_vec()));
        assert_eq!(provider.text().await, text);
        // The other side has answered the ping by itself.
        assert_eq!(client.next().await, SocketEvent::Pong(b"are you there".to_vec()));
        let answers = [
            created("resp_1").to_string(),
            "{\n  \"type\": \"response.output_text.delta\", \"delta\": \"é\" }".to_owned(),
            "no JSON".to_owned(),
            "x".repeat(200_000),
            completed("resp_1").to_string(),
        ];
        for answer in answers {
            provider.send_text(&answer).await;
            assert_eq!(client.text().await, answer);
        }
        provider.send_message(Message::binary(vec![0, 255, 7])).await;
        assert_eq!(client.next().await, SocketEvent::Binary(vec![0, 255, 7]));
        provider.send_message(Message::Ping(b"ping".to_vec().into())).await;
        assert_eq!(client.next().await, SocketEvent::Ping(b"ping".to_vec()));
        // The client's library answers with its next message, and the answer passes.
        client.send_message(Message::Ping(b"two".to_vec().into())).await;
        let mut passed = [provider.next().await, provider.next().await];
        passed.sort_by_key(|event| matches!(event, SocketEvent::Ping(_)));
        let expected = [SocketEvent::Pong(b"ping".to_vec()), SocketEvent::Ping(b"two".to_vec())];
        assert_eq!(passed, expected);
        assert_eq!(ending(gateway).await, ["completed", "reported", USED]);
    });
}

#[test]
fn the_operators_key_is_in_no_message() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        let said = "my key is managed-provider-key.";
        let masked = said.replace("managed-provider-key", &"*".repeat(20));
        provider.send_text(said).await;
        assert_eq!(client.text().await, masked);
        provider.close(4001, said).await;
        assert_eq!(client.closed().await, (4001, masked));
    });
}

#[test]
fn a_refused_response_is_an_error_and_the_provider_does_not_see_it() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) =
            both_ends(gateway, &json!({"allowed_models": ["m-1"]})).await;
        let refused = async |client: &mut TestSocket, text: &str, status: u16, code: &str| {
            client.send_text(text).await;
            let error = client.message().await;
            assert_eq!(
                (&error["type"], &error["status"]),
                (&json!("error"), &json!(status)),
                "{error}"
            );
            assert_eq!(error["error"]["code"], code, "{error}");
            assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string());
            let id = error["error"]["refusal_id"].as_str().unwrap();
            let kept = gateway.get(&format!("/refusals/{id}")).await.expect(200);
            assert_eq!(kept["code"], code);
            error
        };
        let no_model = json!({"type": "response.create", "input": "x"}).to_string();
        let other = create(&json!({"model": "m-2", "stream_id": "b"})).to_string();
        let unknown = create(&json!({"model": "unknown"})).to_string();
        let background = create(&json!({"background": true})).to_string();
        let foreign = create(&json!({"previous_response_id": "resp_of_another"})).to_string();
        let error = refused(&mut client, &other, 403, "spend_key_model_not_allowed").await;
        assert_eq!(error["stream_id"], "b");
        refused(&mut client, &unknown, 400, "model_price_unknown").await;
        // One that passes makes up for those before.
        exchange(&mut client, &mut provider, "resp_1").await;
        refused(&mut client, &background, 400, "forward_token_json_invalid").await;
        let error = refused(&mut client, &foreign, 400, "forward_token_json_invalid").await;
        assert_eq!(error["error"]["param"], "previous_response_id");
        exchange(&mut client, &mut provider, "resp_2").await;
        refused(&mut client, &no_model, 400, "forward_token_json_invalid").await;
        refused(&mut client, "no JSON", 400, "forward_token_json_invalid").await;
        let steer =
            json!({"type": "response.steer", "previous_response_id": "resp_2", "input": "x"});
        refused(&mut client, &steer.to_string(), 400, "forward_token_json_invalid").await;
        let reason = (1008, "forward_token_json_invalid".to_owned());
        assert_eq!(client.closed().await, reason);
        assert_eq!(provider.closed().await.0, 1000);
        assert_eq!(gateway.records().await.len(), 2);
        assert_nothing_held(gateway).await;
    });
}

#[test]
fn a_socket_without_money_is_closed_at_once() {
    each_gateway(async |gateway| {
        let rules = json!({"spend_limit": {"amount": "0.003", "cycle": "total"}});
        let (mut client, mut provider) = both_ends(gateway, &rules).await;
        exchange(&mut client, &mut provider, "resp_1").await;
        exchange(&mut client, &mut provider, "resp_2").await;
        client.send(&create(&json!({}))).await;
        assert_eq!(client.message().await["error"]["code"], "spend_limit_reached");
        assert_eq!(client.closed().await, (1008, "spend_limit_reached".to_owned()));
        assert_eq!(provider.closed().await.0, 1000);
        assert_eq!(gateway.records().await.len(), 2);
    });
}

#[test]
fn responses_of_several_streams_are_told_apart() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        for lane in ["a", "b", "a"] {
            client.send(&create(&json!({"stream_id": lane}))).await;
            assert_eq!(provider.message().await["stream_id"], lane);
        }
        let usage = |id: &str, lane: &str, input: u64| {
            let mut message = in_lane(completed(id), lane);
            message["response"]["usage"]["input_tokens"] = input.into();
            message
        };
        let messages = [
            in_lane(created("resp_b"), "b"),
            in_lane(created("resp_a"), "a"),
            in_lane(delta(), "b"),
            usage("resp_b", "b", 10),
            in_lane(delta(), "a"),
            usage("resp_a", "a", 20),
            in_lane(created("resp_c"), "a"),
            in_lane(
                json!({"type": "error", "error": {"code": "server_error", "message": "it failed"}}),
                "a",
            ),
        ];
        for message in messages {
            provider.send(&message).await;
            assert_eq!(client.message().await, message);
        }
        let mut found: Vec<_> = gateway
            .records()
            .await
            .iter()
            .map(|record| {
                let input = record["model_usage"]["input_tokens"].as_u64().unwrap();
                (
                    record["response_id"].as_str().unwrap().to_owned(),
                    record["status"].clone(),
                    input,
                )
            })
            .collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!((found[0].1.as_str(), found[0].2), (Some("completed"), 20));
        assert_eq!((found[1].1.as_str(), found[1].2), (Some("completed"), 10));
        assert_eq!((found[2].0.as_str(), found[2].1.as_str()), ("resp_c", Some("error")));
        assert_nothing_held(gateway).await;
    });
}

#[test]
fn a_response_continues_one_of_its_socket_or_one_of_its_wallet() {
    each_gateway(async |gateway| {
        let rules =
            json!({"enforcement": "strict", "spend_limit": {"amount": "5", "cycle": "total"}});
        let (mut client, mut provider) = both_ends(gateway, &rules).await;
        exchange(&mut client, &mut provider, "resp_here").await;
        // The provider keeps it for the socket alone. Its tokens are in the hold, so that a strict key may.
        let held = async || gateway.wallet().await.1;
        let next = create(
            &json!({"previous_response_id": "resp_here", "store": false, "max_output_tokens": 1}),
        );
        client.send(&next).await;
        assert_eq!(provider.message().await, next);
        let hold: f64 = held().await.parse().unwrap();
        assert!(hold > 0.0015, "{hold}");
        for message in [created("resp_next"), completed("resp_next")] {
            provider.send(&message).await;
            client.message().await;
        }
        // Another socket of the wallet knows the one that the provider keeps.
        let (mut other, mut provider) = both_ends(gateway, &rules).await;
        let foreign = create(&json!({"previous_response_id": "resp_next", "max_output_tokens": 1}));
        other.send(&foreign).await;
        assert_eq!(other.message().await["error"]["param"], "previous_response_id");
        let kept = create(&json!({"previous_response_id": "resp_here", "max_output_tokens": 1}));
        other.send(&kept).await;
        assert_eq!(provider.message().await, kept);
        provider.send(&completed("resp_last")).await;
        other.message().await;
        assert_eq!(gateway.records().await.len(), 3);
        assert_nothing_held(gateway).await;
    });
}

#[test]
fn an_error_in_place_of_a_response_costs_nothing() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        client.send(&create(&json!({}))).await;
        provider.message().await;
        let error = json!({"type": "error", "status": 404, "error": {"type": "invalid_request_error",
            "code": "previous_response_not_found", "message": "Previous response not found."}});
        provider.send(&error).await;
        assert_eq!(client.message().await, error);
        assert_eq!(ending(gateway).await, ["error", "none", NOTHING]);
        let record = gateway.record().await;
        assert_eq!(record["provider_status"], 404);
        assert_eq!(record["error"]["code"], "previous_response_not_found");
    });
}

/// The way in which a socket ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    ClientCloses,
    ClientLeaves,
    ClientGarbage,
    ProviderCloses,
    ProviderLeaves,
    ProviderGarbage,
}

/// The progress of the response at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Progress {
    None,
    Asked,
    Begun,
}

#[test]
fn every_end_settles_what_is_open() {
    for drains in [false, true] {
        let mut settings = settings();
        settings.calls.on_disconnect =
            if drains { OnDisconnect::Drain } else { OnDisconnect::Cancel };
        each_gateway_with(settings, async |gateway| {
            for way in [
                Way::ClientCloses,
                Way::ClientLeaves,
                Way::ClientGarbage,
                Way::ProviderCloses,
                Way::ProviderLeaves,
                Way::ProviderGarbage,
            ] {
                for progress in [Progress::None, Progress::Asked, Progress::Begun] {
                    end_one(gateway, way, progress, drains).await;
                }
            }
            assert_nothing_held(gateway).await;
            assert!(gateway.app.gateway.sockets.is_empty());
        });
    }
}

async fn end_one(gateway: &Gateway<'_>, way: Way, progress: Progress, drains: bool) {
    let case = format!("{way:?} {progress:?} {drains}");
    let before = gateway.records().await.len();
    let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
    if progress != Progress::None {
        client.send(&create(&json!({}))).await;
        provider.message().await;
    }
    if progress == Progress::Begun {
        for message in [created("resp_1"), delta()] {
            provider.send(&message).await;
            client.message().await;
        }
    }
    let is_of_client = matches!(way, Way::ClientCloses | Way::ClientLeaves | Way::ClientGarbage);
    match way {
        Way::ClientCloses => {
            client.close(4000, "enough").await;
            assert_eq!(client.closed().await, (4000, "enough".to_owned()), "{case}");
        }
        Way::ClientLeaves => client.leave().await,
        Way::ClientGarbage => {
            client.send_raw(&[0xff; 40]).await;
            assert_eq!(
                client.closed().await,
                (1002, "socket_message_invalid".to_owned()),
                "{case}"
            );
        }
        Way::ProviderCloses => {
            provider.close(4001, "session expired").await;
            assert_eq!(client.closed().await, (4001, "session expired".to_owned()), "{case}");
        }
        Way::ProviderLeaves => {
            provider.leave().await;
            assert_eq!(client.closed().await, (1011, "provider_unreachable".to_owned()), "{case}");
        }
        Way::ProviderGarbage => {
            provider.send_raw(&[0xff; 40]).await;
            assert_eq!(client.closed().await, (1011, "provider_unreachable".to_owned()), "{case}");
        }
    }
    // With `drain`, the provider is read on until the response has ended.
    let is_drained = is_of_client && drains && progress != Progress::None;
    if is_drained {
        provider.send(&completed("resp_1")).await;
    }
    if is_of_client {
        let expected = match way {
            Way::ClientCloses => (4000, "enough".to_owned()),
            _ => (1000, String::new()),
        };
        let closed = loop {
            match provider.next().await {
                SocketEvent::Closed(reason) => break reason.unwrap_or((1000, String::new())),
                SocketEvent::Lost => unreachable!("{case}: no close frame"),
                _ => {}
            }
        };
        assert_eq!(closed, expected, "{case}");
    }
    let records = loop {
        let records = gateway.records().await;
        if gateway.app.gateway.sockets.is_empty() {
            break records;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    if progress == Progress::None {
        return assert_eq!(records.len(), before, "{case}");
    }
    assert_eq!(records.len(), before + 1, "{case}");
    let record = &records[0];
    let text = |name: &str| record[name].as_str().unwrap();
    match is_drained {
        true => {
            assert_eq!((text("status"), text("usage_source")), ("completed", "reported"), "{case}");
            assert_eq!(text("total_wallet_cost"), USED, "{case}");
        }
        false => {
            let status = if is_of_client { "completed" } else { "error" };
            assert_eq!((text("status"), text("usage_source")), (status, "partial"), "{case}");
            assert_ne!(text("total_wallet_cost"), NOTHING, "{case}");
        }
    }
}

#[test]
fn a_key_that_may_not_be_used_any_more_closes_its_sockets() {
    each_gateway(async |gateway| {
        let watch = watch_socket_keys(gateway.app.gateway.clone());
        let test = async {
            let key = |number: usize| json!({"name": format!("Key {number}")});
            let keys = [
                gateway.spend_key(&key(0)).await,
                gateway.spend_key(&key(1)).await,
                gateway.spend_key(&key(2)).await,
            ];
            let mut sockets = Vec::new();
            for key in &keys {
                let request = gateway.call_without_key("GET", "/responses").bearer(&key.key);
                sockets.push((open(request).await, gateway.provider.socket().await));
            }
            // Another key is not concerned.
            let (mut unconcerned, mut its_provider) = both_ends(gateway, &json!({})).await;
            let began = Instant::now();
            gateway.put(&keys[0].path, &json!({"status": "paused"})).await.expect(200);
            gateway.post(&format!("{}/rotate", keys[1].path), &json!({})).await.expect(200);
            gateway.delete(&keys[2].path).await.expect(200);
            for ((client, _), code) in
                sockets.iter_mut().zip(["spend_key_paused", "auth_invalid", "auth_invalid"])
            {
                assert_eq!(client.closed().await, (1008, code.to_owned()));
            }
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            exchange(&mut unconcerned, &mut its_provider, "resp_1").await;
            // An expired one, and a merchant's own key.
            let soon = tollgate_domain::Clock::system().now().plus_millis(500).to_string();
            let expiring = gateway.spend_key(&json!({"expires_at": soon})).await;
            let request = gateway.call_without_key("GET", "/responses").bearer(&expiring.key);
            let mut client = open(request).await;
            assert_eq!(client.closed().await, (1008, "spend_key_expired".to_owned()));
        };
        tokio::select! {
            () = watch => {}
            () = test => {}
        }
    });
}

fn with_limits(change: impl Fn(&mut tollgate_gateway::SocketLimits)) -> Settings {
    let mut settings = settings();
    change(&mut settings.calls.sockets);
    settings
}

#[test]
fn a_socket_has_limits_of_time_size_and_number() {
    let short = with_limits(|limits| limits.max = Duration::from_millis(300));
    each_gateway_with(short, async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        exchange(&mut client, &mut provider, "resp_1").await;
        assert_eq!(client.closed().await, (1001, "socket_max_reached".to_owned()));
        assert_eq!(provider.closed().await.0, 1000);
    });
    let idle = with_limits(|limits| limits.idle = Duration::from_millis(400));
    each_gateway_with(idle, async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        let began = Instant::now();
        // A message is activity, and a ping is not.
        for number in 0..3 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            exchange(&mut client, &mut provider, &format!("resp_{number}")).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let ping = tokio_tungstenite::tungstenite::Message::Ping(Vec::new().into());
        client.send_message(ping).await;
        assert_eq!(provider.next().await, SocketEvent::Ping(Vec::new()));
        assert_eq!(client.closed().await, (1001, "socket_idle".to_owned()));
        let open = began.elapsed();
        assert!(
            open >= Duration::from_millis(850) && open < Duration::from_millis(1_600),
            "{open:?}"
        );
    });
    let small = with_limits(|limits| limits.message_bytes = 1_000);
    each_gateway_with(small, async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        provider.send_text(&"x".repeat(1_000)).await;
        assert_eq!(client.text().await.len(), 1_000);
        client.send(&create(&json!({"input": "x".repeat(1_000)}))).await;
        assert_eq!(client.closed().await, (1009, "socket_message_invalid".to_owned()));
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        provider.send_text(&"x".repeat(1_001)).await;
        assert_eq!(client.closed().await, (1011, "provider_unreachable".to_owned()));
        assert_eq!(provider.closed().await.0, 1009);
    });
    let few = with_limits(|limits| limits.most = 2);
    each_gateway_with(few, async |gateway| {
        let first = both_ends(gateway, &json!({})).await;
        let _second = both_ends(gateway, &json!({})).await;
        let refused = request(gateway, &json!({})).await.open_socket().await.err().unwrap();
        assert_eq!((refused.status, refused.error().as_str()), (503, "overloaded"));
        assert_eq!(refused.header("retry-after"), Some("1"));
        drop(first);
        while gateway.app.gateway.sockets.len() > 1 {
            tokio::task::yield_now().await;
        }
        both_ends(gateway, &json!({})).await;
    });
}

#[test]
fn a_shutdown_lets_open_responses_end_and_takes_no_new_ones() {
    each_gateway(async |gateway| {
        let (mut idle, _idle_provider) = both_ends(gateway, &json!({})).await;
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        client.send(&create(&json!({}))).await;
        provider.message().await;
        let drain = gateway.calls.drain(Duration::from_secs(10));
        let test = async {
            assert_eq!(idle.closed().await, (1001, "shutting_down".to_owned()));
            client.send(&create(&json!({}))).await;
            assert_eq!(client.message().await["error"]["code"], "shutting_down");
            provider.send(&completed("resp_1")).await;
            assert_eq!(client.message().await, completed("resp_1"));
            assert_eq!(client.closed().await, (1001, "shutting_down".to_owned()));
        };
        tokio::join!(drain, test);
        gateway.app.gateway.sockets.wait(Duration::from_secs(1)).await;
        assert!(gateway.app.gateway.sockets.is_empty());
        assert_eq!(ending(gateway).await, ["completed", "reported", USED]);
        let refused = request(gateway, &json!({})).await.open_socket().await.err().unwrap();
        assert_eq!(refused.error(), "shutting_down");
    });
}

#[test]
fn a_shutdown_that_cannot_wait_settles_what_is_open() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        client.send(&create(&json!({}))).await;
        provider.message().await;
        provider.send(&created("resp_1")).await;
        client.message().await;
        gateway.calls.drain(Duration::from_millis(50)).await;
        assert_eq!(client.closed().await, (1001, "shutting_down".to_owned()));
        assert_eq!(ending(gateway).await[..2], ["completed", "partial"]);
    });
}

/// Sockets at once on one limit: responses are asked for until the limit refuses them.
#[test]
fn sockets_at_once_do_not_pass_their_limit() {
    for (enforcement, most) in [("strict", 0.05), ("bounded", 0.05 + 16.0 * 0.002)] {
        each_gateway(async |gateway| {
            let rules = json!({"enforcement": enforcement,
                "spend_limit": {"amount": "0.05", "cycle": "total"}});
            let key = gateway.spend_key(&rules).await;
            let sockets = (0..16).map(async |number| {
                let request = gateway.call_without_key("GET", "/responses").bearer(&key.key);
                let mut client = open(request).await;
                // The ends at the provider come in any order, so one of them is served here.
                let mut provider = gateway.provider.socket().await;
                let serve = async {
                    let mut served = 0;
                    loop {
                        match provider.next().await {
                            SocketEvent::Text(_) => {
                                served += 1;
                                provider.send(&completed(&format!("resp_{number}_{served}"))).await;
                            }
                            SocketEvent::Closed(_) | SocketEvent::Lost => return served,
                            _ => {}
                        }
                    }
                };
                let ask = async {
                    loop {
                        client
                            .send(&create(
                                &json!({"max_output_tokens": 500, "input": "x".repeat(900)}),
                            ))
                            .await;
                        match client.next().await {
                            SocketEvent::Text(_) => {}
                            _ => return,
                        }
                    }
                };
                tokio::join!(serve, ask).0
            });
            let served: usize = futures_util::future::join_all(sockets).await.into_iter().sum();
            let records = gateway.records().await;
            assert_eq!(records.len(), served);
            let key = gateway.get(&key.path).await.expect(200);
            let spent: f64 = key["total_spend"].as_str().unwrap().parse().unwrap();
            assert!(spent <= most && spent > 0.04, "{enforcement}: {spent}");
        });
    }
}

#[test]
fn an_error_ends_a_response_only_if_it_can_be_of_no_other() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        // Two are open, and the error names neither; or it names another stream.
        for lane in ["a", "b"] {
            client.send(&create(&json!({"stream_id": lane}))).await;
            provider.message().await;
        }
        let error = json!({"type": "error", "status": 400, "error": {"code": "x", "message": "y"}});
        for message in [
            error.clone(),
            in_lane(error.clone(), "zz"),
            in_lane(created("resp_a"), "a"),
            in_lane(delta(), "a"),
            in_lane(completed("resp_a"), "a"),
            // The only one of its stream.
            in_lane(error.clone(), "b"),
        ] {
            provider.send(&message).await;
            assert_eq!(client.message().await, message);
        }
        let [b, a] = &gateway.records().await[..] else { unreachable!("two records") };
        assert_eq!(
            (a["status"].as_str(), &a["usage_source"]),
            (Some("completed"), &json!("reported"))
        );
        assert_eq!(a["total_wallet_cost"], USED);
        assert_eq!(
            (b["status"].as_str(), &b["total_wallet_cost"]),
            (Some("error"), &json!(NOTHING))
        );
    });
}

#[test]
fn responses_without_a_stream_are_told_apart_by_their_ids() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        for most in [1, 900] {
            client
                .send(&create(&json!({"stream_id": most.to_string(), "max_output_tokens": most})))
                .await;
            provider.message().await;
        }
        let mut small = completed("resp_1");
        small["response"]["usage"] =
            json!({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2});
        for message in [created("resp_1"), created("resp_2"), completed("resp_2"), small] {
            provider.send(&message).await;
            assert_eq!(client.message().await, message);
        }
        let [second, first] = &gateway.records().await[..] else { unreachable!("two records") };
        assert_eq!(first["response_id"], "resp_1");
        assert_eq!(first["model_usage"]["output_tokens"], 1);
        assert_eq!(second["response_id"], "resp_2");
        assert_eq!((&second["total_wallet_cost"], &second["flags"]), (&json!(USED), &Value::Null));
    });
}

#[test]
fn a_response_that_was_not_asked_for_closes_the_socket() {
    for message in [created("resp_9"), completed("resp_9")] {
        each_gateway(async |gateway| {
            let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
            exchange(&mut client, &mut provider, "resp_1").await;
            // What was seen before is repeated.
            provider.send(&completed("resp_1")).await;
            client.message().await;
            provider.send(&message).await;
            assert_eq!(client.closed().await, (1011, "response_not_asked_for".to_owned()));
            assert_eq!(gateway.records().await.len(), 1);
        });
    }
}

#[test]
fn refusals_close_a_socket_when_its_open_responses_have_ended() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        client.send(&create(&json!({}))).await;
        provider.message().await;
        for _ in 0..3 {
            client.send_text("no JSON").await;
            assert_eq!(client.message().await["type"], "error");
        }
        for message in [created("resp_1"), delta(), completed("resp_1")] {
            provider.send(&message).await;
            assert_eq!(client.message().await, message);
        }
        assert_eq!(client.closed().await, (1008, "forward_token_json_invalid".to_owned()));
        assert_eq!(ending(gateway).await, ["completed", "reported", USED]);
    });
}

#[test]
fn a_response_that_the_provider_cancels_has_ended() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        client.send(&create(&json!({}))).await;
        provider.message().await;
        let cancelled = json!({"type": "response.cancelled", "response": {"id": "resp_1", "status": "cancelled", "usage": null}});
        for message in [created("resp_1"), delta(), cancelled] {
            provider.send(&message).await;
            assert_eq!(client.message().await, message);
        }
        assert_eq!(ending(gateway).await[..2], ["error", "partial"]);
    });
}

#[test]
fn an_upgrade_is_understood_in_one_way_or_refused() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await.key;
        let request = |version: &str, headers: &str| {
            format!(
                "GET /v1/responses HTTP/{version}\r\nhost: test\r\nauthorization: Bearer {key}\r\n\
                connection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
            )
        };
        for (version, headers) in [
            ("1.1", "upgrade: h2c, websocket\r\n"),
            ("1.1", "upgrade: h2c\r\nupgrade: websocket\r\n"),
            ("1.0", "upgrade: websocket\r\n"),
            ("1.1", "upgrade: websocket\r\ncontent-length: 2\r\n"),
            ("1.1", "upgrade: websocket\r\ntransfer-encoding: chunked\r\n"),
        ] {
            let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
            stream.write_all(request(version, headers).as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let _ =
                tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
            let answer = String::from_utf8_lossy(&answer);
            let status = answer.split(' ').nth(1).unwrap_or_default();
            assert!(["400", "426"].contains(&status), "{version} {headers}: {answer}");
        }
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_socket_has_no_more_open_responses_than_it_may() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        for number in 0..256 {
            client
                .send(&create(&json!({"stream_id": number.to_string(), "max_output_tokens": 1})))
                .await;
            provider.message().await;
        }
        client.send(&create(&json!({"stream_id": "more"}))).await;
        assert_eq!(client.message().await["error"]["code"], "overloaded");
        provider.send(&in_lane(completed("resp_7"), "7")).await;
        client.message().await;
        client.send(&create(&json!({"stream_id": "more"}))).await;
        assert_eq!(provider.message().await["stream_id"], "more");
    });
}
