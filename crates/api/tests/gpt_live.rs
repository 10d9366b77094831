//! OpenAI's GPT-Live over a WebSocket: a session is a call that is billed by its time, and so are the responses that it
//! delegates to calls of another model.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::{TestRequest, TestSocket};

use crate::support::sockets::{customer_key, ending, open, pass, until_closed, until_held};
use crate::support::{Gateway, each_gateway};

const NOTHING: &str = "0.0000000000";
/// The cost of 1,000 input and 500 output tokens, without a fee.
const USED: &str = "0.0020000000";

/// A request for a session with a spend key of the customer's wallet.
async fn request(gateway: &Gateway<'_>, rules: &Value) -> TestRequest {
    let key = customer_key(gateway, rules).await;
    gateway.call_without_key("GET", "/live/sessions").bearer(&key)
}

/// A socket of the customer, and its other end at the provider.
async fn both_ends(gateway: &Gateway<'_>, rules: &Value) -> (TestSocket, TestSocket) {
    let client = open(request(gateway, rules).await).await;
    (client, gateway.provider.socket().await)
}

/// A session that has started.
async fn session(
    gateway: &Gateway<'_>,
    rules: &Value,
    delegation: &Value,
) -> (TestSocket, TestSocket) {
    let (mut client, mut provider) = both_ends(gateway, rules).await;
    pass(&mut client, &mut provider, &start(delegation)).await;
    pass(&mut provider, &mut client, &started(delegation)).await;
    (client, provider)
}

fn start(delegation: &Value) -> Value {
    json!({"type": "session.start", "event_id": "event_1",
        "session": {"model": "voice-1", "delegation": delegation}})
}

fn started(delegation: &Value) -> Value {
    json!({"type": "session.started", "client_event_id": "event_1", "event_id": "event_2",
        "session": {"id": "sess_1", "model": "voice-1", "status": "active", "delegation": delegation}})
}

fn to_responses() -> Value {
    json!({"type": "responses", "responses": {"model": "m-1", "max_output_tokens": 500}})
}

fn usage(seconds: f64) -> Value {
    json!({"type": "session.usage.updated", "event_id": "e", "usage": {"seconds": seconds}})
}

fn closed(seconds: f64) -> Value {
    json!({"type": "session.closed", "event_id": "e", "reason": "close_requested",
        "session": {"id": "sess_1", "model": "voice-1"}, "usage": {"seconds": seconds}})
}

fn sound() -> Value {
    json!({"type": "session.input_audio.append", "audio": "A".repeat(64_000)})
}

/// An event of a response that is delegated.
fn event(event: &Value) -> Value {
    json!({"type": "response.event", "event_id": "e", "delegation_id": "deleg_1", "event": event})
}

fn created(id: &str) -> Value {
    event(&json!({"type": "response.created", "response": {"id": id, "model": "m-1",
        "status": "in_progress", "usage": null}}))
}

/// The end of a response that used 1,000 input and 500 output tokens.
fn completed(id: &str) -> Value {
    event(&json!({"type": "response.completed", "response": {"id": id, "model": "m-1",
        "status": "completed", "output": [],
        "usage": {"input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500}}}))
}

#[test]
fn a_session_is_a_call_on_every_route() {
    each_gateway(async |gateway| {
        let base = gateway.provider.url("/v1/live/sessions").replace("http", "ws");
        let u: String = url::form_urlencoded::byte_serialize(base.as_bytes()).collect();
        let token = gateway.token(&json!({}));
        let own = gateway.token(&json!({"provider_key": "key-of-the-caller"}));
        let subprotocol = format!("realtime, openai-insecure-api-key.{token}");
        let to = |path: &str| gateway.call_without_key("GET", path);
        let routes = [
            (to("/live/sessions").bearer(&token), "managed-provider-key"),
            (
                to("/live/sessions").header("sec-websocket-protocol", &subprotocol),
                "managed-provider-key",
            ),
            (to("/providers/house/live/sessions").bearer(&token), "managed-provider-key"),
            (to(&format!("/forward?u={u}")).bearer(&own), "key-of-the-caller"),
        ];
        let sockets = routes.len();
        for (request, key) in routes {
            let mut client = open(request).await;
            let mut provider = gateway.provider.socket().await;
            let seen = gateway.provider.requests().pop().unwrap();
            assert_eq!(seen.target, "/v1/live/sessions");
            assert_eq!(seen.header("authorization"), Some(&*format!("Bearer {key}")));
            pass(&mut client, &mut provider, &start(&Value::Null)).await;
            pass(&mut provider, &mut client, &started(&json!({"type": "client"}))).await;
            let listed = gateway.get("/requests?status=pending").await.expect(200)["data"].clone();
            assert_eq!(listed.as_array().unwrap().len(), 1);
            pass(&mut client, &mut provider, &sound()).await;
            let said = json!({"type": "session.output_audio.delta", "delta": "AAAA"});
            pass(&mut provider, &mut client, &said).await;
            pass(&mut provider, &mut client, &usage(30.0)).await;
            pass(&mut client, &mut provider, &json!({"type": "session.close"})).await;
            pass(&mut provider, &mut client, &closed(45.5)).await;
            provider.close(1000, "").await;
            assert_eq!(client.closed().await.0, 1000);
        }
        let records = gateway.records().await;
        assert_eq!(records.len(), sockets);
        for record in &records {
            assert_eq!(ending(record)[..2], ["completed", "reported"]);
            assert_eq!(
                (&record["model"], &record["model_usage"]["total_cost"]),
                (&json!("voice-1"), &json!("0.0455000000"))
            );
            assert_eq!(record["model_usage"]["input_seconds"], 46, "rounded up to be shown");
        }
        assert_eq!(records[0]["endpoint"], format!("GET {base}"));
        until_closed(gateway).await;
    });
}

/// A limit of 100 seconds, of which no more are used.
#[test]
fn a_session_ends_before_the_time_that_is_paid_is_over() {
    each_gateway(async |gateway| {
        let rules = json!({"enforcement": "strict",
            "spend_limit": {"amount": "0.1", "cycle": "total"}});
        let (mut client, mut provider) = session(gateway, &rules, &Value::Null).await;
        assert_eq!(gateway.wallet().await.1, "0.0600000000");
        // The next minute would be too much, and 15 seconds are not.
        pass(&mut provider, &mut client, &usage(50.0)).await;
        until_held(gateway, |held| held > 0.0649 && held < 0.07).await;
        pass(&mut provider, &mut client, &usage(84.0)).await;
        until_held(gateway, |held| held > 0.098).await;
        pass(&mut provider, &mut client, &usage(97.0)).await;
        let error = client.message().await;
        assert_eq!(
            (&error["type"], &error["error"]["code"]),
            (&json!("error"), &json!("spend_limit_reached"))
        );
        assert_eq!(client.closed().await, (1008, "spend_limit_reached".to_owned()));
        assert_eq!(provider.text().await, r#"{"type":"session.close"}"#);
        provider.send(&closed(97.75)).await;
        assert_eq!(provider.closed().await.0, 1000);
        until_closed(gateway).await;
        assert_eq!(ending(&gateway.record().await)[1..], ["reported", "0.0977500000"]);
    });
}

#[test]
fn the_time_of_a_session_is_held_while_there_is_money() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = session(gateway, &json!({}), &Value::Null).await;
        for minutes in 1..5_u32 {
            let seconds = 60.0 * f64::from(minutes);
            pass(&mut provider, &mut client, &usage(seconds)).await;
            until_held(gateway, |held| held >= (seconds + 15.0) / 1_000.0).await;
        }
        client.close(1000, "").await;
        assert_eq!(provider.text().await, r#"{"type":"session.close"}"#);
        provider.send(&closed(250.0)).await;
        provider.closed().await;
        until_closed(gateway).await;
        let records = gateway.records().await;
        assert_eq!(records.len(), 1);
        assert_eq!(ending(&records[0])[1..], ["reported", "0.2500000000"]);
        let audit = gateway.app.gateway.store.audit().await.unwrap();
        assert!(audit.differences.is_empty(), "{:?}", audit.differences);
    });
}

#[test]
fn a_session_that_breaks_has_the_time_that_was_reported_last() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = session(gateway, &json!({}), &Value::Null).await;
        pass(&mut provider, &mut client, &usage(10.0)).await;
        pass(&mut provider, &mut client, &usage(12.5)).await;
        provider.close(1011, "").await;
        client.closed().await;
        until_closed(gateway).await;
        assert_eq!(ending(&gateway.record().await)[1..], ["partial", "0.0125000000"]);

        // A strict key pays what is held for it.
        let rules = json!({"enforcement": "strict",
            "spend_limit": {"amount": "1", "cycle": "total"}});
        let (mut client, mut provider) = session(gateway, &rules, &Value::Null).await;
        pass(&mut provider, &mut client, &usage(70.0)).await;
        until_held(gateway, |held| held > 0.14).await;
        let held = gateway.wallet().await.1;
        provider.close(1011, "").await;
        client.closed().await;
        until_closed(gateway).await;
        assert_eq!(ending(&gateway.records().await[0])[1..], ["partial", &held]);

        // Without a report it is the time that has passed.
        let (client, mut provider) = session(gateway, &json!({}), &Value::Null).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        provider.close(1011, "").await;
        drop(client);
        until_closed(gateway).await;
        let record = gateway.records().await.remove(0);
        let cost: f64 = record["total_wallet_cost"].as_str().unwrap().parse().unwrap();
        assert!(record["usage_source"] == "partial" && (0.0001..0.01).contains(&cost), "{record}");
    });
}

#[test]
fn responses_of_a_session_are_calls_of_their_model() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = session(gateway, &json!({}), &to_responses()).await;
        // The session, and a response ahead.
        until_held(gateway, |held| held > 0.061).await;
        pass(&mut client, &mut provider, &sound()).await;
        let delta = event(&json!({"type": "response.output_text.delta", "delta": "Hello"}));
        for id in ["resp_1", "resp_2"] {
            for message in [created(id), delta.clone(), completed(id)] {
                pass(&mut provider, &mut client, &message).await;
            }
        }
        pass(&mut provider, &mut client, &closed(20.0)).await;
        provider.close(1000, "").await;
        client.closed().await;
        until_closed(gateway).await;
        let records = gateway.records().await;
        let seen = records.iter().map(|record| {
            let [status, source, cost] = ending(record);
            (record["model"].as_str().unwrap(), status, source, cost)
        });
        let of_response = ("m-1", "completed", "reported", USED);
        let of_session = ("voice-1", "completed", "reported", "0.0200000000");
        // A response has begun a moment before or after the last time of the session is reported.
        let mut seen: Vec<_> = seen.collect();
        seen.sort();
        assert_eq!(seen, [of_response, of_response, of_session]);
        let socket_ids: Vec<_> = records.iter().map(|record| &record["socket_id"]).collect();
        assert!(socket_ids[0].is_string() && socket_ids.iter().all(|id| *id == socket_ids[0]));
    });
}

/// The provider may begin a response as soon as a session that delegates has begun.
#[test]
fn a_session_that_delegates_does_not_start_without_money_for_a_response() {
    each_gateway(async |gateway| {
        let rules = json!({"enforcement": "strict",
            "spend_limit": {"amount": "0.0601", "cycle": "total"}});
        let (mut client, mut provider) = both_ends(gateway, &rules).await;
        client.send(&start(&to_responses())).await;
        let error = client.message().await;
        assert_eq!(error["error"]["code"], "spend_limit_reached", "{error}");
        assert_eq!(gateway.wallet().await.1, NOTHING);
        let mut alone = start(&json!({"type": "client"}));
        alone["event_id"] = "event_2".into();
        pass(&mut client, &mut provider, &alone).await;
        pass(&mut provider, &mut client, &started(&json!({"type": "client"}))).await;
        // A response that begins all the same is paid by the merchant, and ends the socket.
        provider.send(&created("resp_1")).await;
        assert_eq!(client.closed().await.0, 1008);
        assert_eq!(provider.text().await, r#"{"type":"session.close"}"#);
        until_closed(gateway).await;
    });
}

/// A bounded limit is passed by less than the time that is held at once.
#[test]
fn a_bounded_key_ends_a_session_as_well() {
    each_gateway(async |gateway| {
        let rules = json!({"enforcement": "bounded",
            "spend_limit": {"amount": "0.1", "cycle": "total"}});
        let (mut client, mut provider) = session(gateway, &rules, &Value::Null).await;
        pass(&mut provider, &mut client, &usage(50.0)).await;
        until_held(gateway, |held| held > 0.12).await;
        provider.send(&usage(124.0)).await;
        while client.message().await["type"] != "error" {}
        assert_eq!(client.closed().await, (1008, "spend_limit_reached".to_owned()));
        assert_eq!(provider.text().await, r#"{"type":"session.close"}"#);
        provider.send(&closed(124.5)).await;
        provider.closed().await;
        until_closed(gateway).await;
        assert_eq!(ending(&gateway.record().await)[2], "0.1245000000");
    });
}

/// The time that has passed stays held while more is asked for, however many sessions want it.
#[test]
fn sessions_at_once_do_not_pass_a_strict_limit() {
    each_gateway(async |gateway| {
        let rules = json!({"enforcement": "strict",
            "wallet_id": gateway.connection.wallet_id.to_string(),
            "spend_limit": {"amount": "0.25", "cycle": "total"}});
        let key = gateway.spend_key(&rules).await;
        let to = || gateway.call_without_key("GET", "/live/sessions").bearer(&key.key);
        let mut client = open(to()).await;
        let mut provider = gateway.provider.socket().await;
        pass(&mut client, &mut provider, &start(&Value::Null)).await;
        pass(&mut provider, &mut client, &started(&Value::Null)).await;
        // The long session holds all of the limit but for less than a minute.
        provider.send(&usage(150.0)).await;
        until_held(gateway, |held| held > 0.2).await;
        let long = async {
            for seconds in [180.0, 200.0, 220.0, 230.0, 240.0, 249.0] {
                provider.send(&usage(seconds)).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            while provider.text().await != r#"{"type":"session.close"}"# {}
            provider.send(&closed(249.5)).await;
        };
        let others = async {
            for _ in 0..12 {
                let mut other = open(to()).await;
                other.send(&start(&Value::Null)).await;
                assert_eq!(other.message().await["error"]["code"], "spend_limit_reached");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::join!(long, others, async { while client.message().await["type"] != "error" {} });
        until_closed(gateway).await;
        let key = gateway.get(&key.path).await.expect(200);
        let spent: f64 = key["total_spend"].as_str().unwrap().parse().unwrap();
        assert!(spent <= 0.25, "{spent}");
    });
}

#[test]
fn a_session_that_may_not_start_is_answered_with_an_error() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = both_ends(gateway, &json!({})).await;
        let mut unknown = start(&Value::Null);
        unknown["session"]["model"] = "unknown".into();
        let mut tokens_only = start(&Value::Null);
        tokens_only["session"]["model"] = "m-1".into();
        for message in [&unknown, &tokens_only] {
            client.send(message).await;
            let error = client.message().await;
            assert_eq!(error["error"]["code"], "model_price_unknown", "{error}");
            assert_eq!(error["error"]["client_event_id"], "event_1");
        }
        // The provider refuses it: it costs nothing.
        pass(&mut client, &mut provider, &start(&Value::Null)).await;
        let refused = json!({"type": "error", "event_id": "e", "error": {
            "type": "invalid_request_error", "code": "invalid_value", "message": "No.",
            "client_event_id": "event_1"}});
        pass(&mut provider, &mut client, &refused).await;
        assert_eq!(ending(&gateway.record().await), ["error", "none", NOTHING]);
        // Another one may start, and no third one beside it.
        let mut second = start(&Value::Null);
        second["event_id"] = "event_3".into();
        pass(&mut client, &mut provider, &second).await;
        pass(&mut provider, &mut client, &started(&Value::Null)).await;
        client.send(&start(&Value::Null)).await;
        assert_eq!(client.message().await["error"]["param"], "type");
        pass(&mut provider, &mut client, &closed(1.0)).await;
        let records = gateway.records().await;
        assert_eq!(ending(&records[0]), ["completed", "reported", "0.0010000000"]);
        client.close(1000, "").await;
        assert_eq!(provider.closed().await.0, 1000);
        until_closed(gateway).await;
    });
}

#[test]
fn sessions_of_others_are_not_joined() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await.key;
        for (method, path) in [
            ("POST", "/live/sessions"),
            ("POST", "/live/sessions/sess_1/accept"),
            ("GET", "/live/sessions/sess_1/attach"),
        ] {
            let answer = gateway.call_without_key(method, path).bearer(&key).send().await;
            assert_eq!(answer.status / 100, 4, "{path}: {}", answer.text());
        }
        let url = gateway.provider.url("/v1/live/sessions/sess_1/attach").replace("http", "ws");
        let u: String = url::form_urlencoded::byte_serialize(url.as_bytes()).collect();
        for token in [key, gateway.token(&json!({"provider_key": "key-of-the-caller"}))] {
            let request =
                gateway.call_without_key("GET", &format!("/forward?u={u}")).bearer(&token);
            let answer = request.open_socket().await.err().unwrap();
            assert_eq!(answer.error(), "forward_endpoint_not_supported", "{}", answer.text());
        }
        gateway.provider.assert_calls(0);
    });
}
