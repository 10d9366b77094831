//! Refused calls are kept: their ids are in the errors, and lists and sums explain them.

use serde_json::json;
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::support::{
    Gateway, TestSpendKey, chat_answer, chat_body, each_gateway, each_gateway_by_the_stores_clock,
    text,
};

/// A chat call with a spend key.
fn chat_with(gateway: &Gateway<'_>, key: &str) -> TestRequest {
    let url = gateway.provider.url("/v1/chat/completions");
    gateway.forward_to(&url).bearer(key).json(&chat_body())
}

/// A forward to a URL that is no provider's.
fn astray(gateway: &Gateway<'_>) -> TestRequest {
    let call = gateway.forward_to("https://example.invalid/v1/chat").bearer(gateway.key());
    call.json(&chat_body())
}

fn id_of(key: &TestSpendKey) -> String {
    text(&key.made, "spend_key_id")
}

#[test]
fn a_refusal_is_explained_a_day_later() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet = gateway.connection.wallet_id.to_string();
        let limit = json!({"amount": "0.001", "cycle": "daily"});
        let made = gateway.spend_key(&json!({"wallet_id": wallet, "spend_limit": limit})).await;
        let (id, key) = (id_of(&made), &made.key);
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        chat_with(gateway, key).send().await.expect(200);
        gateway.records().await;
        let answer =
            chat_with(gateway, key).header("x-service-metadata", r#"{"user":"ada"}"#).send().await;
        assert_eq!(answer.error(), "spend_limit_reached");
        let refusal_id = answer.json()["error"]["refusal_id"].as_str().unwrap().to_owned();
        assert_eq!(answer.header("x-service-refusal-id"), Some(refusal_id.as_str()));
        gateway.store.clock.advance_millis(86_400_000);

        let found = gateway.get(&format!("/refusals/{refusal_id}")).await.expect(200);
        let connection = gateway.connection.connection_id.to_string();
        for (name, value) in [
            ("refusal_id", json!(refusal_id)),
            ("code", json!("spend_limit_reached")),
            ("spend_key_id", json!(id)),
            ("connection_id", json!(connection)),
            ("provider", json!("house")),
            ("limit", json!("0.0010000000")),
            ("used", json!("0.0020000000")),
            ("held", json!("0.0000000000")),
            ("resets_at", json!("2026-11-22T00:00:00Z")),
            ("metadata", json!({"user": "ada"})),
            ("count", json!(1)),
            ("at", json!("2026-11-21T00:00:00Z")),
        ] {
            assert_eq!(found[name], value, "{name}");
        }
        assert_eq!(found["message"], answer.json()["error"]["message"]);
        for (query, count) in [
            (String::new(), 1),
            (format!("spend_key_id={id}"), 1),
            (format!("connection_id={connection}"), 1),
            ("code=spend_limit_reached".to_owned(), 1),
            ("code=rate_limited".to_owned(), 0),
            ("model=none-such".to_owned(), 0),
            ("start=2026-11-21T00:00:00Z&end=2026-11-21T00:00:01Z".to_owned(), 1),
            ("start=2026-11-21T00:00:00.000001Z".to_owned(), 0),
        ] {
            let list = gateway.get(&format!("/refusals?{query}")).await.expect(200);
            assert_eq!(list["data"].as_array().unwrap().len(), count, "{query}");
        }
        let answer = gateway.get("/refusals?code=x&start=y&spend_key_id=z").await;
        assert_eq!(answer.issue_paths(), ["start", "code", "spend_key_id"]);
        let csv = gateway.get("/refusals?format=csv").await;
        assert_eq!(csv.text().lines().count(), 2);
        assert!(csv.text().starts_with("refusal_id,at,code,message,"));

        let span = "start=2026-11-21T00:00:00Z&end=2026-11-23T00:00:00Z";
        let usage = gateway.get(&format!("/usage?{span}")).await.expect(200);
        assert_eq!(usage["totals"]["refused"], 1);
        assert_eq!(usage["items"][0]["refused"], 1);
        assert_eq!(usage["items"][1]["refused"], 0);
        let usage = gateway.get(&format!("/usage?{span}&group_by=spend_key")).await.expect(200);
        let item = &usage["items"][0];
        assert_eq!((&item["group"]["spend_key"], &item["refused"]), (&json!(id), &json!(1)));
        let usage = gateway.get(&format!("/usage?{span}&group_by=model")).await.expect(200);
        assert!(usage["totals"].get("refused").is_none());
    });
}

#[test]
fn calls_of_unknown_keys_and_failures_of_providers_are_no_refusals() {
    each_gateway(async |gateway| {
        let unknown = tollgate_domain::Key::generate(
            tollgate_domain::KeyKind::Spend,
            tollgate_domain::CellNumber::default(),
        );
        let answer = chat_with(gateway, unknown.reveal()).send().await;
        assert_eq!(answer.status, 401);
        assert!(answer.json()["error"].get("refusal_id").is_none());
        gateway.provider.push(ScriptedResponse::json(500, json!({"error": {"message": "no"}})));
        gateway.chat().send().await;
        let list = gateway.get("/refusals").await.expect(200);
        assert_eq!(list["data"], json!([]));
        // A call that cannot be forwarded is one.
        let answer = astray(gateway).send().await;
        assert_eq!(answer.error(), "forward_endpoint_not_supported");
        let list = gateway.get("/refusals").await.expect(200);
        assert_eq!(list["data"][0]["refusal_id"], answer.json()["error"]["refusal_id"]);
        assert!(list["data"][0].get("secret_key_id").is_some());
        assert_eq!(gateway.get("/refusals/rfs_x").await.error(), "refusal_not_found");
    });
}

#[test]
fn in_a_storm_every_id_leads_to_a_refusal_and_the_numbers_are_exact() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let made = gateway.spend_key(&json!({"status": "paused"})).await;
        let (id, key) = (id_of(&made), &made.key);
        let mut ids = std::collections::BTreeSet::new();
        for _ in 0..250 {
            let answer = chat_with(gateway, key).send().await;
            assert_eq!(answer.error(), "spend_key_paused");
            ids.insert(answer.json()["error"]["refusal_id"].as_str().unwrap().to_owned());
        }
        let mut count = 0;
        for id in &ids {
            let found = gateway.get(&format!("/refusals/{id}")).await.expect(200);
            count += found["count"].as_u64().unwrap();
        }
        assert_eq!(count, 250);
        assert!(ids.len() < 250, "{}", ids.len());
        let usage = gateway
            .get(&format!("/usage?spend_key_id={id}&interval=none&end=2026-11-22T00:00:00Z"))
            .await
            .expect(200);
        assert_eq!(usage["totals"]["refused"], 250);
    });
}

#[test]
fn nobody_sees_the_refusals_of_others() {
    each_gateway(async |gateway| {
        let answer = astray(gateway).send().await;
        let id = answer.json()["error"]["refusal_id"].as_str().unwrap().to_owned();
        let other = gateway.store.merchant().await;
        let get = async |path: &str| {
            gateway.call_without_key("GET", path).bearer(other.key.reveal()).send().await
        };
        assert_eq!(get(&format!("/refusals/{id}")).await.error(), "refusal_not_found");
        let list = get("/refusals").await.expect(200);
        assert_eq!(list["data"], json!([]));
    });
}
