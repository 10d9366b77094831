//! Google's Gemini Live over a WebSocket: each turn of the model is a call.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tollgate_testkit::{SocketEvent, TestRequest, TestSocket};

use crate::support::sockets::{customer_key, ending, open, pass, until_closed};
use crate::support::{Gateway, each_gateway};

const NOTHING: &str = "0.0000000000";
/// The cost of 1,000 input and 500 output tokens, without a fee.
const USED: &str = "0.0020000000";
const PATH: &str = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent";

fn to(gateway: &Gateway<'_>, path: &str) -> TestRequest {
    TestRequest::new(gateway.address, "GET", path)
}

/// A request for a conversation with a spend key of the customer's wallet.
async fn request(gateway: &Gateway<'_>, rules: &Value) -> TestRequest {
    let key = customer_key(gateway, rules).await;
    to(gateway, PATH).header("x-goog-api-key", &key)
}

fn setup() -> Value {
    json!({"setup": {"model": "models/g-live",
        "generationConfig": {"responseModalities": ["AUDIO"], "maxOutputTokens": 1000}}})
}

/// A socket of the customer whose session has begun, and its other end at the provider.
async fn session(gateway: &Gateway<'_>, rules: &Value) -> (TestSocket, TestSocket) {
    let mut client = open(request(gateway, rules).await).await;
    let mut provider = gateway.provider.socket().await;
    pass(&mut client, &mut provider, &setup()).await;
    answer(&mut provider, &mut client, &json!({"setupComplete": {}})).await;
    (client, provider)
}

/// Sends a message of the provider, which it sends as bytes.
async fn answer(from: &mut TestSocket, to: &mut TestSocket, message: &Value) {
    let bytes = message.to_string().into_bytes();
    from.send_message(Message::binary(bytes.clone())).await;
    assert_eq!(to.next().await, SocketEvent::Binary(bytes));
}

fn sound(seconds: usize) -> Value {
    json!({"realtimeInput": {"audio": {"mimeType": "audio/pcm;rate=16000",
        "data": "A".repeat(32_000 * 4 / 3 * seconds)}}})
}

fn content() -> Value {
    json!({"serverContent": {"modelTurn": {"parts": [{"text": "Hello there, how are you?"}]}}})
}

fn usage() -> Value {
    json!({"promptTokenCount": 1000, "responseTokenCount": 500, "totalTokenCount": 1500})
}

/// The end of a turn that used 1,000 input and 500 output tokens.
fn complete() -> Value {
    json!({"serverContent": {"turnComplete": true}, "usageMetadata": usage()})
}

#[test]
fn each_turn_is_a_call_on_every_route() {
    each_gateway(async |gateway| {
        let base = gateway.provider.url(PATH).replace("http", "ws");
        let u: String = url::form_urlencoded::byte_serialize(base.as_bytes()).collect();
        let key = gateway.spend_key(&json!({})).await.key;
        let own = gateway.token(&json!({"provider_key": "key-of-the-caller"}));
        let alpha = PATH.replace("v1beta", "v1alpha");
        let routes = [
            (to(gateway, PATH).header("x-goog-api-key", &key), PATH, "managed-provider-key"),
            (to(gateway, &format!("{PATH}?key={key}")), PATH, "managed-provider-key"),
            (to(gateway, &alpha).bearer(&key), &*alpha, "managed-provider-key"),
            (
                to(gateway, &format!("/v1/providers/palace{PATH}")).bearer(&key),
                PATH,
                "managed-provider-key",
            ),
            (to(gateway, &format!("/v1/forward?u={u}")).bearer(&own), PATH, "key-of-the-caller"),
        ];
        let sockets = routes.len();
        for (request, target, key) in routes {
            let mut client = open(request).await;
            let mut provider = gateway.provider.socket().await;
            let seen = gateway.provider.requests().pop().unwrap();
            assert_eq!((seen.target.as_str(), seen.header("x-goog-api-key")), (target, Some(key)));
            assert_eq!(seen.header("authorization"), None);
            // A client may send bytes as well.
            let bytes = setup().to_string().into_bytes();
            client.send_message(Message::binary(bytes.clone())).await;
            assert_eq!(provider.next().await, SocketEvent::Binary(bytes));
            answer(&mut provider, &mut client, &json!({"setupComplete": {}})).await;
            let text = json!({"client_content": {"turns": [{"role": "user",
                "parts": [{"text": "Hello"}]}], "turn_complete": true}});
            pass(&mut client, &mut provider, &text).await;
            answer(&mut provider, &mut client, &content()).await;
            answer(&mut provider, &mut client, &complete()).await;
            pass(&mut client, &mut provider, &sound(1)).await;
            // The usage comes behind the end.
            answer(&mut provider, &mut client, &content()).await;
            answer(&mut provider, &mut client, &json!({"serverContent": {"turnComplete": true}}))
                .await;
            answer(&mut provider, &mut client, &json!({"usageMetadata": usage()})).await;
            client.close(1000, "").await;
            provider.closed().await;
        }
        let records = gateway.records().await;
        assert_eq!(records.len(), 2 * sockets);
        for record in &records {
            assert_eq!(ending(record)[..2], ["completed", "reported"]);
            assert_eq!(
                (&record["model"], &record["model_usage"]["total_cost"]),
                (&json!("g-live"), &json!(USED))
            );
        }
        assert_eq!(records[0]["endpoint"], format!("GET {base}"));
        until_closed(gateway).await;
    });
}

#[test]
fn the_money_of_a_turn_is_held_ahead() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = session(gateway, &json!({})).await;
        pass(&mut client, &mut provider, &sound(1)).await;
        assert_ne!(gateway.wallet().await.1, NOTHING);
        assert_eq!(gateway.records().await.len(), 0);
        answer(&mut provider, &mut client, &content()).await;
        let listed = gateway.get("/requests").await.expect(200)["data"].clone();
        assert_eq!(listed[0]["status"], "pending");
        // The speaker interrupts: the end of the turn has its usage, and a completion follows.
        let interrupted = json!({"serverContent": {"interrupted": true}, "usageMetadata": usage()});
        answer(&mut provider, &mut client, &interrupted).await;
        answer(&mut provider, &mut client, &json!({"serverContent": {"turnComplete": true}})).await;
        assert_eq!(ending(&gateway.record().await), ["completed", "reported", USED]);
        // A call of a tool, whose answer is input of the next turn.
        let call = json!({"toolCall": {"functionCalls": [{"id": "f1", "name": "f"}]}});
        answer(&mut provider, &mut client, &call).await;
        answer(&mut provider, &mut client, &complete()).await;
        let result = json!({"toolResponse": {"functionResponses": [{"id": "f1", "response": {}}]}});
        pass(&mut client, &mut provider, &result).await;
        answer(&mut provider, &mut client, &content()).await;
        answer(&mut provider, &mut client, &complete()).await;
        client.close(1000, "").await;
        until_closed(gateway).await;
        assert_eq!(gateway.records().await.len(), 3);
        let audit = gateway.app.gateway.store.audit().await.unwrap();
        assert!(audit.differences.is_empty(), "{:?}", audit.differences);
    });
}

#[test]
fn the_first_refusal_closes_the_socket() {
    each_gateway(async |gateway| {
        let rules = json!({"enforcement": "strict",
            "spend_limit": {"amount": "0.001", "cycle": "total"}});
        let (mut client, mut provider) = session(gateway, &rules).await;
        client.send(&sound(1)).await;
        assert_eq!(client.closed().await, (1008, "spend_limit_reached".to_owned()));
        assert_eq!(provider.closed().await.0, 1000);
        let refused = gateway.get("/refusals").await.expect(200)["data"].clone();
        assert_eq!(
            (refused.as_array().unwrap().len(), &refused[0]["model"]),
            (1, &json!("g-live"))
        );
        let unusable = [
            (setup().to_string().replace("g-live", "unknown"), "model_price_unknown"),
            (
                r#"{"setup":{"model":"models/g","sessionResumption":{"handle":"h"}}}"#.to_owned(),
                "forward_token_json_invalid",
            ),
            ("no JSON".to_owned(), "forward_token_json_invalid"),
        ];
        for (text, code) in unusable {
            let mut client = open(request(gateway, &json!({})).await).await;
            let mut provider = gateway.provider.socket().await;
            client.send_text(&text).await;
            if code == "model_price_unknown" {
                assert_eq!(provider.text().await, text);
                client.send(&sound(1)).await;
            }
            assert_eq!(client.closed().await, (1008, code.to_owned()));
        }
        until_closed(gateway).await;
        assert_eq!(gateway.records().await.len(), 0);
    });
}

#[test]
fn a_turn_without_usage_is_estimated() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = session(gateway, &json!({})).await;
        pass(&mut client, &mut provider, &sound(1)).await;
        answer(&mut provider, &mut client, &content()).await;
        answer(&mut provider, &mut client, &json!({"serverContent": {"turnComplete": true}})).await;
        // It is waited for five seconds.
        tokio::time::sleep(Duration::from_millis(5_100)).await;
        let records = gateway.records().await;
        assert_eq!(ending(&records[0])[..2], ["completed", "estimated"]);
        // The provider leaves in the middle of another.
        answer(&mut provider, &mut client, &content()).await;
        let go_away = json!({"goAway": {"timeLeft": "1s"}});
        answer(&mut provider, &mut client, &go_away).await;
        provider.close(1011, "deadline").await;
        assert_eq!(client.closed().await, (1011, "deadline".to_owned()));
        until_closed(gateway).await;
        let records = gateway.records().await;
        assert_eq!((records.len(), ending(&records[0])[1]), (2, "partial"));
    });
}

#[test]
fn a_turn_in_which_the_model_says_nothing_costs_its_input() {
    each_gateway(async |gateway| {
        let (mut client, mut provider) = session(gateway, &json!({})).await;
        pass(&mut client, &mut provider, &sound(1)).await;
        let silent = json!({"serverContent": {"turnComplete": true},
            "usageMetadata": {"promptTokenCount": 1000, "totalTokenCount": 1000}});
        answer(&mut provider, &mut client, &silent).await;
        client.close(1000, "").await;
        until_closed(gateway).await;
        assert_eq!(ending(&gateway.record().await), ["completed", "reported", "0.0010000000"]);
    });
}
