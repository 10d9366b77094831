//! Webhooks, with a clock that the test moves: the times of attempts, the order of deliveries, the
//! signatures, and the content of each kind of message.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_domain::{Timestamp, WebhookSecrets};
use tollgate_testkit::{Gate, RecordedRequest, ScriptedProvider, ScriptedResponse};

use crate::support::{
    Gateway, assert_refused, chat_answer, chat_body, each_gateway_with_webhooks, names, text,
};

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// The documented pauses between attempts, without their random part.
const PAUSES: [i64; 7] =
    [5 * SECOND, MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 8 * HOUR, 24 * HOUR];

/// Runs `test` after the events of the gateway's own resources are delivered.
fn each_gateway(test: impl AsyncFn(&Gateway<'_>)) {
    each_gateway_with_webhooks(async |gateway| {
        gateway.advance(0).await;
        test(gateway).await;
    });
}

/// A webhook with its receiver, which answers 200 when its script is empty.
struct TestWebhook<'a> {
    gateway: &'a Gateway<'a>,
    receiver: ScriptedProvider,
    path: String,
    secret: String,
}

impl<'a> TestWebhook<'a> {
    async fn new(gateway: &'a Gateway<'a>, events: &Value) -> Self {
        let receiver = ScriptedProvider::start().always(ScriptedResponse::json(200, "{}"));
        let new = json!({"name": "TestWebhook", "url": receiver.url("/hooks"), "events": events});
        let made = gateway.post("/webhooks", &new).await.expect(201);
        let path = format!("/webhooks/{}", text(&made, "webhook_id"));
        Self { gateway, receiver, path, secret: text(&made, "webhook_secret") }
    }

    /// Sends a test event; returns the path of its delivery.
    async fn test(&self) -> String {
        let made = self.gateway.post(&format!("{}/test", self.path), &json!({})).await.expect(200);
        format!("{}/deliveries/{}", self.path, text(&made, "delivery_id"))
    }

    /// All messages, once there are `count`.
    async fn messages(&self, count: usize) -> Vec<RecordedRequest> {
        in_time(self.receiver.wait_for_answered(count)).await;
        let messages = self.receiver.requests();
        assert_eq!(messages.len(), count);
        messages
    }

    /// A delivery, once this number of attempts has ended.
    async fn after(&self, delivery: &str, attempts: u64) -> Value {
        in_time(async {
            loop {
                let shown = self.gateway.get(delivery).await.expect(200);
                if shown["attempts"] == attempts && !shown["duration_ms"].is_null() {
                    return shown;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    /// The deliveries of a kind of event, oldest first, once there are `count`.
    async fn deliveries(&self, kind: &str, count: usize) -> Vec<String> {
        in_time(async {
            loop {
                let path = format!("{}/deliveries?limit=100", self.path);
                let listed = self.gateway.get(&path).await.expect(200);
                let all = listed["data"].as_array().unwrap().iter().rev();
                let of_kind = all.filter(|one| one["type"] == kind);
                let paths: Vec<_> = of_kind
                    .map(|one| format!("{}/deliveries/{}", self.path, text(one, "delivery_id")))
                    .collect();
                if paths.len() >= count {
                    return paths;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.unwrap()
}

impl Gateway<'_> {
    /// Moves the clock, and returns when everything that is due by then has been claimed. That is known when
    /// a message to a working receiver is delivered.
    async fn advance(&self, millis: i64) {
        self.store.clock.advance_millis(millis);
        let well = TestWebhook::new(self, &json!(["price.missing"])).await;
        let delivery = well.test().await;
        well.after(&delivery, 1).await;
        self.delete(&well.path).await.expect(200);
    }

    fn now(&self) -> i64 {
        self.store.clock.now().unix_micros() / 1_000
    }
}

/// The milliseconds until the next attempt of a delivery.
fn pause(gateway: &Gateway<'_>, delivery: &Value) -> i64 {
    let next: Timestamp = text(delivery, "next_attempt_at").parse().unwrap();
    next.unix_micros() / 1_000 - gateway.now()
}

/// The signature of a message with the secret of a webhook.
fn signature(secret: &str, message: &RecordedRequest) -> String {
    let secrets = json!({"newest": secret, "old": []});
    let secrets: WebhookSecrets = serde_json::from_value(secrets).unwrap();
    let timestamp = message.header("webhook-timestamp").unwrap().parse().unwrap();
    let id = message.header("webhook-id").unwrap();
    secrets.signatures(id, timestamp, &message.body, Timestamp::default())
}

#[test]
fn a_message_is_tried_eight_times_and_anew_when_it_is_sent_again() {
    each_gateway(async |gateway| {
        let hook = TestWebhook::new(gateway, &json!(null)).await;
        hook.receiver.push_always(ScriptedResponse::json(503, r#"{"why":"full"}"#));
        let delivery = hook.test().await;
        for (made, least) in (1..).zip(PAUSES) {
            let shown = hook.after(&delivery, made).await;
            assert_eq!(
                (&shown["status"], &shown["response_status"]),
                (&json!("pending"), &json!(503))
            );
            assert_eq!(shown["response_body"], r#"{"why":"full"}"#);
            let pause = pause(gateway, &shown);
            assert!((least..=least + least / 10).contains(&pause), "{made}: {pause} ms");
            let calls = hook.receiver.calls();
            gateway.advance(pause - 1).await;
            assert_eq!(hook.receiver.calls(), calls, "not before its time");
            gateway.advance(2).await;
        }
        let shown = hook.after(&delivery, 8).await;
        assert_eq!((&shown["status"], &shown["next_attempt_at"]), (&json!("failed"), &json!(null)));
        gateway.advance(48 * HOUR).await;
        let messages = hook.messages(8).await;
        let times: Vec<i64> = messages
            .iter()
            .map(|message| message.header("webhook-timestamp").unwrap().parse().unwrap())
            .collect();
        for (pair, least) in times.windows(2).zip(PAUSES) {
            let seconds = least / SECOND;
            let pause = pair[1] - pair[0];
            assert!((seconds..=seconds + seconds / 10 + 1).contains(&pause), "{pause} s");
        }
        for message in &messages {
            assert_eq!(message.header("webhook-id"), messages[0].header("webhook-id"));
            assert_eq!(message.body, messages[0].body);
            let signed = signature(&hook.secret, message);
            assert_eq!(message.header("webhook-signature"), Some(signed.as_str()));
        }

        let again = gateway.post(&format!("{delivery}/redeliver"), &json!({})).await.expect(200);
        assert_eq!(again["status"], "pending");
        let shown = hook.after(&delivery, 9).await;
        assert_eq!(shown["status"], "pending", "the schedule begins anew");
        assert!((5 * SECOND..=5_500).contains(&pause(gateway, &shown)), "{shown}");
        hook.receiver.push_always(ScriptedResponse::status(204));
        gateway.advance(6 * SECOND).await;
        let shown = hook.after(&delivery, 10).await;
        assert_eq!(
            (&shown["status"], &shown["response_status"]),
            (&json!("delivered"), &json!(204))
        );
        assert_eq!(shown["sequence"], 1);
    });
}

/// The attempt in flight ends after the request to send again, and must not count as its result.
#[test]
fn what_is_sent_again_while_an_attempt_is_under_way_is_sent_again() {
    each_gateway(async |gateway| {
        let hook = TestWebhook::new(gateway, &json!(null)).await;
        // A receiver that fails gets one message at a time.
        hook.receiver.push(ScriptedResponse::status(500));
        hook.after(&hook.test().await, 1).await;
        let gate = Gate::new();
        hook.receiver.push(ScriptedResponse::status(500).gate_head(&gate));
        let delivery = hook.test().await;
        in_time(gate.wait_for_arrivals(1)).await;
        gateway.post(&format!("{delivery}/redeliver"), &json!({})).await.expect(200);
        gate.open();
        let shown = hook.after(&delivery, 2).await;
        assert_eq!(shown["status"], "delivered", "{shown}");
    });
}

#[test]
fn what_a_receiver_says_is_kept_as_text_of_four_kib_at_most() {
    each_gateway(async |gateway| {
        let hook = TestWebhook::new(gateway, &json!(null)).await;
        let said = async |body: &[u8]| {
            hook.receiver.push(ScriptedResponse::bytes(200, "text/plain", body));
            text(&hook.after(&hook.test().await, 1).await, "response_body")
        };
        assert_eq!(said("über\n".as_bytes()).await, "über\n");
        assert_eq!(said(b"").await, "");
        assert_eq!(said(b"a\0b\xff").await, "a\u{fffd}b\u{fffd}");
        assert_eq!(said(&[b'x'; 5_000]).await, "x".repeat(4_096));
        assert_eq!(said(&[0xff; 5_000]).await, "\u{fffd}".repeat(1_365));
        assert_eq!(said("€".repeat(2_000).as_bytes()).await, "€".repeat(1_365));
    });
}

#[test]
fn an_old_secret_signs_beside_the_new_one_for_a_day() {
    each_gateway(async |gateway| {
        let hook = TestWebhook::new(gateway, &json!(null)).await;
        let rotate = async || {
            let made = gateway.post(&format!("{}/rotate", hook.path), &json!({})).await.expect(200);
            text(&made, "webhook_secret")
        };
        let mut count = 0;
        let mut assert_signed_with = async |secrets: &[&String]| {
            hook.test().await;
            count += 1;
            let message = hook.messages(count).await.pop().unwrap();
            let expected: Vec<_> =
                secrets.iter().map(|secret| signature(secret, &message)).collect();
            assert_eq!(message.header("webhook-signature"), Some(expected.join(" ").as_str()));
        };
        let first = &hook.secret;
        assert_signed_with(&[first]).await;
        let second = &rotate().await;
        assert_signed_with(&[second, first]).await;
        gateway.advance(12 * HOUR).await;
        let third = &rotate().await;
        assert_signed_with(&[third, second, first]).await;
        gateway.advance(12 * HOUR - 1).await;
        assert_signed_with(&[third, second, first]).await;
        gateway.advance(1).await;
        assert_signed_with(&[third, second]).await;
        gateway.advance(12 * HOUR).await;
        assert_signed_with(&[third]).await;
    });
}

#[test]
fn a_later_event_of_a_resource_waits_until_the_earlier_has_failed_four_times() {
    each_gateway(async |gateway| {
        let hook = TestWebhook::new(gateway, &json!(null)).await;
        let kinds = async |count: usize| -> Vec<String> {
            let messages = hook.messages(count).await;
            messages.iter().map(|message| text(&message.json(), "type")).collect()
        };
        hook.receiver.push(ScriptedResponse::status(500));
        let one = gateway.post("/connections", &json!({})).await.expect(201);
        let one = format!("/connections/{}", text(&one, "connection_id"));
        let created = hook.deliveries("connection.created", 1).await.remove(0);
        hook.after(&created, 1).await;
        gateway.delete(&one).await.expect(200);
        let deleted = hook.deliveries("connection.deleted", 1).await.remove(0);

        // The event of another resource does not wait.
        let other = gateway.post("/connections", &json!({})).await.expect(201);
        let others = hook.deliveries("connection.created", 2).await.remove(1);
        assert_eq!(hook.after(&others, 1).await["status"], "delivered");
        assert_eq!(
            hook.messages(2).await[1].json()["data"]["connection"]["connection_id"],
            other["connection_id"]
        );

        for (made, least) in (2..=4).zip(PAUSES) {
            let waiting = gateway.get(&deleted).await.expect(200);
            assert_eq!((&waiting["status"], &waiting["attempts"]), (&json!("pending"), &json!(0)));
            assert_eq!(waiting["next_attempt_at"], Value::Null, "it waits for the other");
            hook.receiver.push(ScriptedResponse::status(500));
            gateway.advance(least + least / 10).await;
            hook.after(&created, made).await;
        }
        assert_eq!(hook.after(&deleted, 1).await["status"], "delivered");
        assert_eq!(
            kinds(6).await,
            [&["connection.created"; 5][..], &["connection.deleted"]].concat()
        );
        gateway.advance(33 * MINUTE).await;
        assert_eq!(hook.after(&created, 5).await["status"], "delivered");
        let sequences: Vec<_> = hook
            .messages(7)
            .await
            .iter()
            .map(|message| message.json()["sequence"].clone())
            .collect();
        assert_eq!(json!(sequences), json!([1, 3, 1, 1, 1, 2, 1]));
    });
}

#[test]
fn a_receiver_is_asked_sixteen_at_once_and_one_while_it_fails() {
    each_gateway(async |gateway| {
        let hook = TestWebhook::new(gateway, &json!(["connection.created"])).await;
        let gate = Gate::new();
        hook.receiver.push_always(ScriptedResponse::status(500).gate_head(&gate));
        for _ in 0..20 {
            gateway.post("/connections", &json!({})).await.expect(201);
        }
        hook.deliveries("connection.created", 20).await;
        in_time(gate.wait_for_arrivals(16)).await;
        gateway.advance(1).await;
        assert_eq!(hook.receiver.calls(), 16);
        gate.pass(16);
        in_time(gate.wait_for_arrivals(17)).await;
        gateway.advance(1).await;
        assert_eq!(hook.receiver.calls(), 17, "one, to see whether it is back");
        hook.receiver.push_always(ScriptedResponse::status(200));
        gate.open();
        in_time(hook.receiver.wait_for_answered(20)).await;
    });
}

/// The content of each kind of event is the answer of the API right after it.
#[test]
fn every_kind_of_event_holds_its_resource_as_the_api_shows_it() {
    each_gateway(async |gateway| {
        let hook = TestWebhook::new(gateway, &json!(null)).await;
        let mut count = 0;
        // The kind and data of the next message.
        let mut told = async || {
            count += 1;
            let message = hook.messages(count).await.pop().unwrap().json();
            assert_eq!(message["sequence"], count);
            assert_eq!(message["timestamp"], gateway.store.clock.now().to_string());
            (text(&message, "type"), message["data"].clone())
        };
        let kind = |kind: &str, data: Value| (kind.to_owned(), data);
        let get = async |path: &str| gateway.get(path).await.expect(200);
        let post = async |path: &str, body: Value| {
            let answer = gateway.post(path, &body).await;
            assert!([200, 201].contains(&answer.status), "{path}: {}", answer.text());
            answer.json()
        };

        let connection = post("/connections", json!({"name": "Ada"})).await;
        let path = format!("/connections/{}", text(&connection, "connection_id"));
        let shown = get(&path).await;
        assert_eq!(told().await, kind("connection.created", json!({"connection": shown})));

        let wallet = format!("/wallets/{}", text(&connection, "wallet_id"));
        post(&format!("{wallet}/credits"), json!({"amount": "10"})).await;
        gateway.patch(&wallet, &json!({"low_balance_threshold": "5"})).await.expect(200);
        for (amount, word) in [("6", "wallet.balance_low"), ("4", "wallet.balance_depleted")] {
            post(&format!("{wallet}/debits"), json!({"amount": amount})).await;
            let data = json!({
                "wallet": get(&wallet).await,
                "connection_id": connection["connection_id"],
            });
            assert_eq!(told().await, kind(word, data));
        }
        post(&format!("{wallet}/credits"), json!({"amount": "10"})).await;

        let config = json!({
            "name": "Pro", "period_amount": "25", "billing_interval": "month",
            "credit_bundles": [{"name": "Large", "cost": "5", "credit_amount": "7"}]
        });
        let config = post("/subscription_configs", config).await;
        let config_id = &config["subscription_config_id"];
        let new = json!({
            "connection_id": connection["connection_id"], "subscription_config_id": config_id
        });
        let subscription = post("/subscriptions", new).await["subscription"].clone();
        let of_it = format!("/subscriptions/{}", text(&subscription, "subscription_id"));
        let shown = async || get(&of_it).await["subscription"].clone();
        let due = |subscription: Value, amount: &str| json!({"subscription": subscription, "amount_due": amount});
        assert_eq!(told().await, kind("subscription.created", due(shown().await, "25.0000000000")));
        let bundle = &get(&format!("/subscription_configs/{}", config_id.as_str().unwrap())).await
            ["credit_bundles"][0];
        post(&format!("{of_it}/bundles"), json!({"credit_bundle_id": bundle["credit_bundle_id"]}))
            .await;
        let (word, data) = told().await;
        assert_eq!(word, "credit_bundle.purchased");
        assert_eq!(names(&data), ["amount_due", "credit_bundle", "subscription"]);
        assert_eq!(data["amount_due"], "5.0000000000");
        assert_eq!(data["credit_bundle"]["credit_bundle_id"], bundle["credit_bundle_id"]);
        assert_eq!(data["subscription"], shown().await);
        gateway.store.clock.advance_millis(30 * 24 * HOUR);
        let renewed = due(shown().await, "25.0000000000");
        assert_eq!(told().await, kind("subscription.renewed", renewed));
        let other = json!({"name": "Max", "period_amount": "50", "billing_interval": "month"});
        let other = post("/subscription_configs", other).await;
        let change = json!({"subscription_config_id": other["subscription_config_id"]});
        post(&format!("{of_it}/change"), change).await;
        assert_eq!(told().await, kind("subscription.changed", due(shown().await, "50.0000000000")));
        gateway.delete(&of_it).await.expect(200);
        gateway.store.clock.advance_millis(31 * 24 * HOUR);
        let ended = json!({"subscription": shown().await});
        assert_eq!(told().await, kind("subscription.cancelled", ended));

        let limit = json!({"amount": "0.01", "cycle": "total"});
        let key = gateway.spend_key(&json!({"spend_limit": limit})).await;
        let own = format!("/wallets/{}", text(&get("/wallet").await, "wallet_id"));
        post(&format!("{own}/credits"), json!({"amount": "10"})).await;
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let chat = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
        let chat = chat.bearer(&key.key).json(&chat_body());
        for call in 1..=5 {
            chat.send().await.expect(200);
            if call == 4 {
                let shown = json!({"spend_key": get(&key.path).await, "threshold": 80});
                assert_eq!(told().await, kind("spend_key.threshold_reached", shown));
            }
        }
        let shown = get(&key.path).await;
        let threshold = json!({"spend_key": shown, "threshold": 95});
        assert_eq!(told().await, kind("spend_key.threshold_reached", threshold));
        assert_eq!(told().await, kind("spend_key.limit_reached", json!({"spend_key": shown})));

        let body = json!({"model": "unheard-of", "messages": []});
        let refused = gateway.forward("/v1/chat/completions").json(&body).send().await;
        assert_refused(&refused, 400, "model_price_unknown");
        let price = json!({"price": {"provider": "house", "model": "unheard-of"}});
        assert_eq!(told().await, kind("price.missing", price));

        gateway.delete(&path).await.expect(200);
        let (word, data) = told().await;
        assert_eq!(word, "connection.deleted");
        assert_eq!(data["connection"]["connection_id"], connection["connection_id"]);
    });
}
