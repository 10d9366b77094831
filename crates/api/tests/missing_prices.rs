//! The events about missing prices: of calls that were sent without one, that were refused for it, and
//! that were reported.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use serde_json::{Value, json};
use tollgate_api::Settings;
use tollgate_domain::EventPayload;
use tollgate_gateway::{CallSettings, UnpricedPolicy};
use tollgate_store::{Page, events};
use tollgate_testkit::ScriptedResponse;

use crate::support::*;

/// The data of the `price.missing` events, oldest first, once there are `count`. Events of calls are written when the
/// calls are folded; events of refusals have their own jobs.
async fn told(gateway: &Gateway<'_>, count: usize) -> Vec<Value> {
    let merchant_id = gateway.merchant.merchant.merchant_id;
    loop {
        gateway.store.store.fold().await.unwrap();
        let page = Page { after: None, limit: 100 };
        let list = move |conn: &mut _| events::list(conn, merchant_id, &page);
        let all = gateway.store.store.read(list).await.unwrap();
        let missing = all.into_iter().rev().map(|event| event.payload);
        let missing: Vec<_> = missing
            .filter(|news| matches!(news, EventPayload::PriceMissing { .. }))
            .map(|news| {
                assert_eq!(news.kind().as_str(), "price.missing");
                serde_json::to_value(news).unwrap()["data"].clone()
            })
            .collect();
        if missing.len() >= count {
            return missing;
        }
        tokio::task::yield_now().await;
    }
}

fn allow() -> Settings {
    Settings {
        calls: CallSettings { unpriced: UnpricedPolicy::Allow, ..settings().calls },
        ..settings()
    }
}

#[test]
fn a_call_without_a_price_is_told_of_once_by_the_model_that_served_it() {
    each_gateway_with(allow(), async |gateway| {
        let mut answer = chat_answer();
        answer["model"] = json!("unheard-of-2026");
        gateway.provider.push_always(ScriptedResponse::json(200, &answer));
        let body = json!({"model": "unheard-of", "messages": []});
        for _ in 0..3 {
            gateway.forward("/v1/chat/completions").json(&body).send().await.expect(200);
        }
        assert_eq!(gateway.records().await.len(), 3);
        let expected = json!({"provider": "house", "model": "unheard-of-2026"});
        assert_eq!(told(gateway, 1).await, [expected]);
    });
}

#[test]
fn a_used_unit_without_a_price_is_named() {
    each_gateway(async |gateway| {
        let mut answer = chat_answer();
        let details = json!({"audio_tokens": 400});
        answer["usage"]["prompt_tokens_details"] = details;
        gateway.provider.push(ScriptedResponse::json(200, &answer));
        gateway.chat().send().await.expect(200);
        gateway.record().await;
        // Audio has the price of the input, so no price is missing.
        assert_eq!(told(gateway, 0).await, Vec::<Value>::new());

        let reported = json!({
            "request_id": "mine-1", "connection_id": gateway.connection.connection_id.to_string(),
            "meter_slug": gateway.meter.slug, "provider": "house", "model": "m-1",
            "input_tokens": 10, "input_characters": 10,
        });
        gateway.post("/requests", &reported).await.expect(201);
        let expected = json!({"provider": "house", "model": "m-1", "unit": "input_characters"});
        assert_eq!(told(gateway, 1).await, [expected]);
    });
}

#[test]
fn reported_usage_without_a_price_is_told_of_where_provider_and_model_are_named() {
    each_gateway(async |gateway| {
        let reported = |id: &str, more: Value| {
            let fields = json!({
                "request_id": id, "connection_id": gateway.connection.connection_id.to_string(),
                "meter_slug": gateway.meter.slug, "input_tokens": 10,
            });
            with(fields, &more)
        };
        for (id, more) in [
            ("1", json!({})),
            ("2", json!({"provider": "house"})),
            ("3", json!({"model": "unheard-of"})),
            ("4", json!({"provider": "house", "model": "m-1"})),
            ("5", json!({"provider": "house", "model": "unheard-of"})),
            ("6", json!({"provider": "house", "model": "unheard-of"})),
        ] {
            gateway.post("/requests", &reported(id, more)).await.expect(201);
        }
        let expected = json!({"provider": "house", "model": "unheard-of"});
        assert_eq!(told(gateway, 1).await, [expected]);
    });
}

#[test]
fn a_refusal_for_want_of_a_price_is_told_of_and_leaves_no_record() {
    each_gateway(async |gateway| {
        let body = json!({"model": "unheard-of", "messages": [], "max_tokens": 5});
        for _ in 0..20 {
            let refused = gateway.forward("/v1/chat/completions").json(&body).send().await;
            assert_refused(&refused, 400, "model_price_unknown");
        }
        let expected = json!({"provider": "house", "model": "unheard-of"});
        assert_eq!(told(gateway, 1).await, [expected]);
        assert_eq!(gateway.records().await.len(), 0);
    });
}

/// On the routes of the SDKs the model names the provider; an unlisted model names none.
#[test]
fn a_model_that_nobody_serves_is_told_of_without_a_provider() {
    each_gateway(async |gateway| {
        let call = |model: &str| {
            let body = json!({"model": model, "messages": [], "max_tokens": 5});
            gateway.call("POST", "/chat/completions").json(&body)
        };
        for model in ["unheard-of", "house/unheard-of"] {
            assert_refused(&call(model).send().await, 400, "model_price_unknown");
        }
        let mut told = told(gateway, 2).await;
        told.sort_by_key(|one| one["provider"].to_string());
        let expected = ["house", "unknown"]
            .map(|provider| json!({"provider": provider, "model": "unheard-of"}));
        assert_eq!(told, expected);
    });
}

#[test]
fn a_call_that_the_provider_refused_lacks_no_price() {
    each_gateway_with(allow(), async |gateway| {
        gateway
            .provider
            .push(ScriptedResponse::json(404, json!({"error": {"message": "no such model"}})));
        let body = json!({"model": "unheard-of", "messages": []});
        gateway.forward("/v1/chat/completions").json(&body).send().await.expect(404);
        gateway.records().await;
        assert_eq!(told(gateway, 0).await, Vec::<Value>::new());
    });
}

#[test]
fn a_quote_of_a_model_without_a_price_tells_nobody() {
    each_gateway(async |gateway| {
        let url = gateway.provider.url("/v1/chat/completions");
        let quote = json!({"url": url, "body": {"model": "unheard-of", "messages": []}});
        assert_refused(&gateway.post("/quote", &quote).await, 400, "model_price_unknown");
        assert_eq!(told(gateway, 0).await, Vec::<Value>::new());
    });
}
