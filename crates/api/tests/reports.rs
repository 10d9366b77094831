//! Usage that a merchant reports itself: it is booked once for its id, and priced and paid like a
//! call.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestResponse};

use crate::support::{
    self, Gateway, assert_issues, assert_refused, chat_answer, each_gateway,
    each_gateway_by_the_stores_clock, each_gateway_with, settings, text, with,
};

const NOTHING: &str = "0.0000000000";

/// 1,000 input and 500 output tokens of the connection under the meter: 0.002 USD at the provider,
/// which the service does not charge, and 0.015 USD of fee.
fn report(gateway: &Gateway<'_>, request_id: &str, more: &Value) -> Value {
    let fields = json!({
        "request_id": request_id, "connection_id": gateway.connection.connection_id.to_string(),
        "meter_slug": gateway.meter.slug, "provider": "house", "model": "m-1",
        "input_tokens": 1000, "output_tokens": 500
    });
    with(fields, more)
}

async fn send(gateway: &Gateway<'_>, request_id: &str, more: &Value) -> TestResponse {
    gateway.post("/requests", &report(gateway, request_id, more)).await
}

async fn count(gateway: &Gateway<'_>) -> usize {
    gateway.records().await.len()
}

/// A meter of requests, or of another unit, at this rate.
async fn meter_of(gateway: &Gateway<'_>, unit: &str, rate: &str) -> Value {
    let meter = json!({
        "name": "Calls", "rate_type": "fixed", "tier_type": unit,
        "tiers": [{"start": "0", "rate": rate}]
    });
    gateway.post("/meters", &meter).await.expect(201)
}

#[test]
fn a_report_is_a_completed_record_whose_base_is_shown_and_not_charged() {
    each_gateway(async |gateway| {
        let metadata = json!({"metadata": {"user": "ada"}});
        let made = send(gateway, "mine-1", &metadata).await.expect(201);
        assert!(text(&made, "request_id").starts_with("req_"));
        let model_usage = json!({
            "input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500,
            "input_characters": 0, "output_characters": 0, "total_characters": 0,
            "input_seconds": 0, "output_seconds": 0, "total_seconds": 0,
            "cached_input_tokens": 0, "cache_write_tokens": 0, "reasoning_tokens": 0,
            "input_audio_tokens": 0, "output_audio_tokens": 0,
            "input_cost": "0.0010000000", "output_cost": "0.0010000000",
            "total_cost": "0.0020000000", "payer": "wallet"
        });
        let line = json!({
            "tier": {"start": 0, "rate": "10", "type": "tokens_1m"}, "tokens": 1500,
            "characters": 0, "seconds": 0, "requests": 0, "cost": "0.0150000000"
        });
        let expected = json!({
            "request_id": made["request_id"], "reference_id": "mine-1", "sequence": 1, "status": "completed",
            "provider": "house", "endpoint": made["endpoint"], "provider_key_type": "unmanaged",
            "model_usage": model_usage, "usage_source": "reported", "price_source": "custom",
            "fee": {
                "amount": "0.0150000000", "rate_type": "fixed", "token_basis": "input+output",
                "breakdown": [line]
            },
            "service_charge": {"amount": NOTHING, "payer": "wallet"},
            "total_request_cost": "0.0150000000", "total_wallet_cost": "0.0150000000",
            "total_merchant_cost": NOTHING, "metadata": {"user": "ada"},
            "created_at": made["created_at"], "timestamp": made["timestamp"],
            "timings": {"admitted_at": made["created_at"], "settled_at": made["created_at"]},
            "connection_id": gateway.connection.connection_id.to_string(),
            "meter_id": gateway.meter.meter_id.to_string(), "model": "m-1"
        });
        assert_eq!(made, expected);
        assert!(made["endpoint"].is_string() && made["timestamp"].is_string());
        assert_eq!(gateway.wallet().await, ("9.9850000000".to_owned(), NOTHING.to_owned()));
        gateway.provider.assert_calls(0);

        let path = format!("/wallets/{}/transactions", gateway.connection.wallet_id);
        let lines = gateway.get(&path).await.expect(200);
        let line = &lines["data"][0];
        assert_eq!([&line["kind"], &line["amount"]], ["usage", "-0.0150000000"]);
        assert_eq!(line["request_id"], made["request_id"]);
    });
}

#[test]
fn a_report_is_found_by_our_id_and_by_its_own() {
    each_gateway(async |gateway| {
        let made = send(gateway, "order/17 é", &json!({})).await.expect(201);
        let id = text(&made, "request_id");
        assert_eq!(gateway.get(&format!("/requests/{id}")).await.expect(200), made);
        let own = "/requests/order%2F17%20%C3%A9";
        assert_eq!(gateway.get(own).await.expect(200), made);
        assert_eq!(gateway.records().await, [made]);

        let stranger = gateway.store.merchant().await;
        for path in [format!("/requests/{id}"), own.to_owned()] {
            let call = gateway.call_without_key("GET", &path).bearer(stranger.key.reveal());
            assert_refused(&call.send().await, 404, "request_not_found");
        }
    });
}

#[test]
fn a_report_is_listed_and_filtered_like_a_call() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        let metadata = json!({"metadata": {"user": "ada"}});
        let made = send(gateway, "mine-1", &metadata).await.expect(201);
        for query in [
            format!("connection_id={}", gateway.connection.connection_id),
            format!("customer_id={}", gateway.connection.connection_id),
            format!("meter_id={}", gateway.meter.meter_id),
        ] {
            let list = gateway.get(&format!("/requests?{query}")).await.expect(200);
            assert_eq!(list["data"].as_array().unwrap().len(), 2);
            assert_eq!(list["data"][0], made, "newest first");
        }
        let filter = "metadata_filters=%5B%5B%22user%22%2C%22ada%22%5D%5D";
        let list = gateway.get(&format!("/requests?{filter}")).await.expect(200);
        assert_eq!(list["data"], json!([made]));
    });
}

#[test]
fn a_report_sent_again_is_the_same_record_and_charged_once() {
    each_gateway(async |gateway| {
        let made = send(gateway, "mine-1", &json!({})).await.expect(201);
        for _ in 0..2 {
            assert_eq!(send(gateway, "mine-1", &json!({})).await.expect(200), made);
        }
        // The order of the fields and the name of the connection's field make no difference.
        let mut renamed = report(gateway, "mine-1", &json!({}));
        let fields = renamed.as_object_mut().unwrap();
        let connection = fields.remove("connection_id").unwrap();
        fields.insert("customer_id".to_owned(), connection);
        assert_eq!(gateway.post("/requests", &renamed).await.expect(200), made);
        assert_eq!(count(gateway).await, 1);
        assert_eq!(gateway.wallet().await.0, "9.9850000000");

        send(gateway, "mine-2", &json!({})).await.expect(201);
        assert_eq!(gateway.wallet().await.0, "9.9700000000");
    });
}

#[test]
fn other_content_under_the_same_id_is_a_conflict() {
    each_gateway(async |gateway| {
        let other = gateway.store.connection(gateway.merchant.merchant.merchant_id, "1").await;
        let meter = meter_of(gateway, "requests", "1").await;
        let made = send(gateway, "mine-1", &json!({})).await.expect(201);
        for different in [
            json!({"input_tokens": 1001}),
            json!({"output_seconds": 1}),
            json!({"model": "m-2"}),
            json!({"provider": "mansion"}),
            json!({"metadata": {"user": "ada"}}),
            json!({"meter_slug": meter["meter_slug"]}),
            json!({"connection_id": other.connection_id.to_string()}),
        ] {
            let answer = send(gateway, "mine-1", &different).await;
            assert_refused(&answer, 409, "idempotency_key_reused");
        }
        assert_eq!(gateway.records().await, [made]);
        assert_eq!(gateway.wallet().await.0, "9.9850000000");

        // Each merchant has its own ids.
        let stranger = gateway.store.merchant().await;
        let merchant_id = stranger.merchant.merchant_id;
        let connection = gateway.store.connection(merchant_id, "1").await;
        let body = json!({
            "request_id": "mine-1", "connection_id": connection.connection_id.to_string(),
            "meter_slug": gateway.store.meter(merchant_id, &[(0, "1")]).await.slug
        });
        let theirs = gateway.call_without_key("POST", "/requests").bearer(stranger.key.reveal());
        theirs.json(&body).send().await.expect(201);
    });
}

#[test]
fn of_many_reports_of_the_same_at_once_one_is_charged() {
    each_gateway(async |gateway| {
        let nothing = json!({});
        let answers = join_all((0..12).map(|_| send(gateway, "mine-1", &nothing))).await;
        assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
        let first = answers[0].json();
        for answer in &answers {
            assert!([200, 201].contains(&answer.status), "{}", answer.text());
            assert_eq!(answer.json(), first);
        }
        assert_eq!(gateway.wallet().await.0, "9.9850000000");
    });
}

#[test]
fn an_idempotency_key_goes_with_a_report_too() {
    each_gateway(async |gateway| {
        let call = |request_id: &str| {
            let body = report(gateway, request_id, &json!({}));
            gateway.call("POST", "/requests").header("idempotency-key", "k").json(&body)
        };
        let made = call("mine-1").send().await.expect(201);
        assert_eq!(call("mine-1").send().await.expect(201), made, "the stored answer");
        assert_refused(&call("mine-2").send().await, 409, "idempotency_key_reused");
        assert_eq!(count(gateway).await, 1);
    });
}

#[test]
fn reports_and_calls_walk_the_same_tiers() {
    each_gateway(async |gateway| {
        let meter = json!({
            "name": "Tiers", "rate_type": "fixed", "tier_type": "tokens_1m",
            "base_cost_payer": "merchant",
            "tiers": [{"start": "0", "rate": "5"}, {"start": "1000000", "rate": "3"},
                      {"start": "10000000", "rate": "1"}]
        });
        let meter = gateway.post("/meters", &meter).await.expect(201);
        let slug = json!({"meter_slug": meter["meter_slug"]});
        // The example of the specification: 5,000,000 tokens cost 17.
        let tokens = json!({"input_tokens": 4_000_000, "output_tokens": 1_000_000});
        let made = send(gateway, "mine-1", &with(slug.clone(), &tokens)).await.expect(201);
        assert_eq!(made["fee"]["amount"], "17.0000000000");
        let lines = made["fee"]["breakdown"].as_array().unwrap();
        let seen: Vec<_> = lines.iter().map(|line| (&line["tokens"], &line["cost"])).collect();
        let (five, twelve) = (json!("5.0000000000"), json!("12.0000000000"));
        assert_eq!(seen, [(&json!(1_000_000), &five), (&json!(4_000_000), &twelve)]);
        // The usage has happened already, so it is paid even if the wallet falls below zero.
        assert_eq!(gateway.wallet().await.0, "-7.0000000000");

        // A later call is in the second tier.
        gateway
            .store
            .credit(gateway.merchant.merchant.merchant_id, gateway.connection.wallet_id, "10")
            .await;
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let u = gateway.provider.url("/v1/chat/completions");
        let call = gateway.forward_to(&u).bearer(&gateway.token(&slug));
        call.json(&support::chat_body()).send().await.expect(200);
        let record = &gateway.records().await[0];
        assert_eq!(record["fee"]["breakdown"][0]["tier"]["start"], 1_000_000);
        assert_eq!(record["fee"]["amount"], "0.0045000000");
    });
}

#[test]
fn every_unit_is_counted_and_charged_in_its_own_meter() {
    each_gateway(async |gateway| {
        let counts = json!({
            "input_tokens": 1, "output_tokens": 2, "input_characters": 300_000,
            "output_characters": 200_000, "input_seconds": 60, "output_seconds": 30
        });
        for (unit, rate, fee) in [
            ("requests", "2", "2.0000000000"),
            ("characters_1m", "2", "1.0000000000"),
            ("minutes", "0.5", "0.7500000000"),
            ("tokens_1m", "1000000", "3.0000000000"),
        ] {
            let meter = meter_of(gateway, unit, rate).await;
            let slug = json!({"meter_slug": meter["meter_slug"]});
            let made = send(gateway, unit, &with(slug, &counts)).await.expect(201);
            assert_eq!(made["fee"]["amount"], fee, "{unit}");
            let usage = &made["model_usage"];
            for (field, count) in counts.as_object().unwrap() {
                assert_eq!(&usage[field], count, "{field}");
            }
            let totals = ["tokens", "characters", "seconds"];
            let totals = totals.map(|unit| usage[format!("total_{unit}")].as_u64().unwrap());
            assert_eq!(totals, [3, 500_000, 90]);
        }
    });
}

#[test]
fn a_percentage_is_of_the_base_that_is_shown() {
    each_gateway(async |gateway| {
        let meter = json!({
            "name": "Margin", "rate_type": "percentage", "tier_type": "tokens_1m",
            "tiers": [{"start": "0", "rate": "20"}]
        });
        let meter = gateway.post("/meters", &meter).await.expect(201);
        let slug = json!({"meter_slug": meter["meter_slug"]});
        let made = send(gateway, "mine-1", &slug).await.expect(201);
        assert_eq!(made["model_usage"]["total_cost"], "0.0020000000");
        assert_eq!(made["fee"]["amount"], "0.0004000000");
        assert_eq!(made["total_request_cost"], "0.0004000000");

        // Of an unknown base cost the fee is 0.
        let unpriced = with(slug, &json!({"model": "unheard-of"}));
        let made = send(gateway, "mine-2", &unpriced).await.expect(201);
        assert_eq!([&made["price_source"], &made["fee"]["amount"]], ["unpriced", NOTHING]);
    });
}

#[test]
fn what_has_no_price_is_reported_all_the_same() {
    each_gateway(async |gateway| {
        for (id, more) in [
            ("model", json!({"model": "unheard-of"})),
            ("provider", json!({"provider": "somebody"})),
            ("neither", json!({"provider": null, "model": null})),
        ] {
            let made = send(gateway, id, &more).await.expect(201);
            assert_eq!(made["price_source"], "unpriced", "{id}");
            assert_eq!(made["model_usage"]["total_cost"], NOTHING, "{id}");
            assert_eq!(made["total_wallet_cost"], "0.0150000000", "the fee, of {id}");
            assert!(made["provider"].is_string(), "the interface requires it, of {id}: {made}");
        }
        let neither = gateway.get("/requests/neither").await.expect(200);
        assert_eq!(neither.get("model"), None, "optional fields are never null");
        assert_eq!(gateway.wallet().await.0, "9.9550000000");
    });
}

#[test]
fn a_report_needs_an_id_a_connection_and_a_meter_and_nothing_else() {
    each_gateway(async |gateway| {
        let required = ["request_id", "connection_id", "meter_slug"];
        assert_issues(&gateway.post("/requests", &json!({})).await, &required);
        let nulls = json!({"request_id": null, "connection_id": null, "meter_slug": null});
        assert_issues(&gateway.post("/requests", &nulls).await, &required);
        let bare = json!({
            "request_id": "bare", "connection_id": gateway.connection.connection_id.to_string(),
            "meter_slug": gateway.meter.slug
        });
        let made = gateway.post("/requests", &bare).await.expect(201);
        assert_eq!(made["model_usage"]["total_tokens"], 0);
        assert_eq!([&made["total_request_cost"], &made["fee"]["amount"]], [NOTHING; 2]);
        assert_eq!(made["metadata"], json!({}));
        assert_eq!(gateway.wallet().await.0, "10.0000000000");
    });
}

#[test]
fn what_the_meter_lays_on_the_merchant_is_the_merchants() {
    each_gateway(async |gateway| {
        let meter = json!({
            "name": "Ours", "rate_type": "fixed", "tier_type": "requests",
            "base_cost_payer": "merchant", "service_charge_payer": "merchant",
            "tiers": [{"start": "0", "rate": "1"}]
        });
        let meter = gateway.post("/meters", &meter).await.expect(201);
        let slug = json!({"meter_slug": meter["meter_slug"]});
        let made = send(gateway, "mine-1", &slug).await.expect(201);
        assert_eq!(made["model_usage"]["payer"], "merchant");
        assert_eq!(made["service_charge"], json!({"amount": NOTHING, "payer": "merchant"}));
        let costs = ["total_request_cost", "total_wallet_cost", "total_merchant_cost"];
        let one = "1.0000000000".to_owned();
        assert_eq!(costs.map(|cost| text(&made, cost)), [one.clone(), one, NOTHING.to_owned()]);
        assert_eq!(gateway.get("/wallet").await.expect(200)["balance"], NOTHING);
    });
}

#[test]
fn a_report_draws_on_credit_before_the_balance() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "requests", "12").await;
        let config = json!({
            "name": "Pro", "period_amount": "25", "billing_interval": "month",
            "included_credit": "5", "product_ids": [meter["meter_id"]],
            "credit_bundles": [{"name": "Small", "cost": "2", "credit_amount": "3"}]
        });
        let config = gateway.post("/subscription_configs", &config).await.expect(201);
        let connection = gateway.connection.connection_id.to_string();
        let body = json!({
            "connection_id": connection, "subscription_config_id": config["subscription_config_id"]
        });
        let made = gateway.post("/subscriptions", &body).await.expect(201);
        let path =
            format!("/subscriptions/{}/bundles", text(&made["subscription"], "subscription_id"));
        let bundle = &config["credit_bundles"][0]["credit_bundle_id"];
        gateway.post(&path, &json!({"credit_bundle_id": bundle})).await.expect(201);

        // Usage under a meter that is not linked does not use the credit.
        send(gateway, "other", &json!({})).await.expect(201);
        assert_eq!(gateway.wallet().await.0, "9.9850000000");

        let slug = json!({"meter_slug": meter["meter_slug"]});
        let record = send(gateway, "mine-1", &slug).await.expect(201);
        assert_eq!(gateway.wallet().await.0, "5.9850000000");
        let path = format!("/connections/{connection}/subscription");
        let credits = &gateway.get(&path).await.expect(200)["subscription"]["credits"];
        assert_eq!(credits["total_remaining"], NOTHING);
        let path = format!("/wallets/{}/transactions", gateway.connection.wallet_id);
        let list = gateway.get(&path).await.expect(200);
        let lines: Vec<_> = list["data"].as_array().unwrap().iter().take(3).rev().collect();
        let drawn = lines.iter().map(|line| [text(line, "account"), text(line, "amount")]);
        assert_eq!(
            drawn.collect::<Vec<_>>(),
            [
                ["cycle_credit", "-5.0000000000"],
                ["bundle_credit", "-3.0000000000"],
                ["balance", "-4.0000000000"]
            ]
        );
        assert!(lines.iter().all(|line| line["request_id"] == record["request_id"]));
    });
}

#[test]
fn every_bad_field_of_a_report_is_named_and_nothing_is_recorded() {
    each_gateway(async |gateway| {
        let long = "x".repeat(256);
        for (field, value, path) in [
            ("request_id", json!(null), "request_id"),
            ("request_id", json!(""), "request_id"),
            ("request_id", json!(1), "request_id"),
            ("request_id", json!(long), "request_id"),
            ("connection_id", json!(1), "connection_id"),
            ("meter_slug", json!(null), "meter_slug"),
            ("meter_slug", json!(1), "meter_slug"),
            ("provider", json!(1), "provider"),
            ("provider", json!(""), "provider"),
            ("model", json!([]), "model"),
            ("model", json!(""), "model"),
            ("metadata", json!("x"), "metadata"),
            ("metadata", json!({"a-b": "x"}), "metadata.a-b"),
            ("metadata", json!({"a": 1}), "metadata.a"),
            ("metadata", json!({"a": long}), "metadata.a"),
            ("input_tokens", json!(-1), "input_tokens"),
            ("output_tokens", json!(1.5), "output_tokens"),
            ("input_characters", json!("5"), "input_characters"),
            ("output_characters", json!(u64::MAX), "output_characters"),
            ("input_seconds", json!(-1), "input_seconds"),
            ("output_seconds", json!([]), "output_seconds"),
            ("total_tokens", json!(1500), "total_tokens"),
            ("colour", json!("blue"), "colour"),
        ] {
            let body = report(gateway, "mine-1", &json!({field: value}));
            let answer = gateway.post("/requests", &body).await;
            assert_eq!(answer.status, 400, "{body}: {}", answer.text());
            assert_eq!(answer.issue_paths(), [path], "{body}: {}", answer.text());
        }
        let all = json!({
            "provider": 1, "input_tokens": -1, "output_seconds": "x", "colour": 1,
            "metadata": {"a-b": "x"}
        });
        assert_issues(
            &gateway.post("/requests", &all).await,
            &[
                "request_id",
                "connection_id",
                "meter_slug",
                "provider",
                "input_tokens",
                "output_seconds",
                "colour",
                "metadata.a-b",
            ],
        );
        assert_eq!(count(gateway).await, 0);
    });
}

#[test]
fn a_report_names_a_connection_and_a_meter_that_are_there() {
    each_gateway(async |gateway| {
        let stranger = gateway.store.merchant().await.merchant.merchant_id;
        let theirs = gateway.store.connection(stranger, "1").await.connection_id.to_string();
        let their_meter = gateway.store.meter(stranger, &[(0, "1")]).await.slug;
        for (more, code) in [
            (json!({"connection_id": theirs}), "connection_not_found"),
            (json!({"connection_id": "con_01M7YS5040NCSYBM5NZVE98902"}), "connection_not_found"),
            (json!({"meter_slug": their_meter}), "meter_not_found"),
            (json!({"meter_slug": "nothing"}), "meter_not_found"),
        ] {
            assert_refused(&send(gateway, "mine-1", &more).await, 404, code);
        }
        let gone = gateway.post("/connections", &json!({})).await.expect(201);
        let path = format!("/connections/{}", text(&gone, "connection_id"));
        gateway.call("DELETE", &path).send().await.expect(200);
        let more = json!({"connection_id": gone["connection_id"]});
        assert_refused(&send(gateway, "mine-1", &more).await, 403, "connection_disabled");
        assert_eq!(count(gateway).await, 0);
        // A refused report does not use up its id.
        send(gateway, "mine-1", &json!({})).await.expect(201);
    });
}

#[test]
fn only_a_secret_key_reports() {
    each_gateway(async |gateway| {
        let spend_key = gateway.spend_key(&json!({})).await;
        let body = report(gateway, "mine-1", &json!({}));
        let call = || gateway.call_without_key("POST", "/requests").json(&body);
        assert_refused(&call().send().await, 401, "auth_header_missing");
        assert_refused(&call().bearer("tgs_x").send().await, 401, "auth_invalid");
        let operator = call().bearer(support::OPERATOR_TOKEN).send().await;
        assert_refused(&operator, 401, "auth_invalid");
        let spend = call().bearer(&spend_key.key).send().await;
        assert_refused(&spend, 403, "operation_not_allowed");
        assert_eq!(count(gateway).await, 0);
    });
}

#[test]
fn a_report_has_the_earlier_shape_where_that_is_spoken() {
    let earlier =
        tollgate_api::Settings { shape: tollgate_api::InterfaceShape::Earlier, ..settings() };
    each_gateway_with(earlier, async |gateway| {
        let made = send(gateway, "mine-1", &json!({})).await.expect(201);
        assert_eq!(made["customer_id"], gateway.connection.connection_id.to_string());
        assert_eq!(made["cost"], "0.0020000000");
        assert_eq!(made["charge"]["amount"], "0.0150000000");
        assert_eq!(made["reference_id"], "mine-1");
        for absent in ["connection_id", "fee", "service_charge", "total_wallet_cost"] {
            assert_eq!(made.get(absent), None, "{absent}");
        }
        assert_eq!(gateway.get("/requests/mine-1").await.expect(200), made);
        assert_eq!(gateway.records().await, std::slice::from_ref(&made));
        assert_eq!(send(gateway, "mine-1", &json!({})).await.expect(200), made);
    });
}

#[test]
fn thirty_reports_at_once_are_all_paid() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "requests", "1").await;
        let slug = json!({"meter_slug": meter["meter_slug"]});
        let ids: Vec<_> = (0..30).map(|number| format!("mine-{number}")).collect();
        let answers = join_all(ids.iter().map(|id| send(gateway, id, &slug))).await;
        for answer in &answers {
            assert_eq!(answer.expect(201)["total_wallet_cost"], "1.0000000000");
        }
        assert_eq!(gateway.wallet().await.0, "-20.0000000000");
        assert_eq!(count(gateway).await, 30);
    });
}

#[test]
fn what_costs_more_than_can_be_booked_is_refused_and_may_be_reported_anew() {
    each_gateway(async |gateway| {
        let dear = meter_of(gateway, "requests", "900000000").await;
        let slug = json!({"meter_slug": dear["meter_slug"]});
        send(gateway, "mine-1", &slug).await.expect(201);
        let before = gateway.wallet().await;
        assert_refused(&send(gateway, "mine-2", &slug).await, 400, "validation_failed");
        let dearer = meter_of(gateway, "tokens_1m", "1000000").await;
        let more = json!({
            "meter_slug": dearer["meter_slug"],
            "input_tokens": 1_000_000_000_000_u64, "output_tokens": 1_000_000_000_000_u64,
        });
        assert_refused(&send(gateway, "mine-2", &more).await, 400, "validation_failed");
        assert_eq!(gateway.wallet().await, before);
        assert_eq!(count(gateway).await, 1);
        send(gateway, "mine-2", &json!({})).await.expect(201);
    });
}

#[test]
fn two_names_for_two_customers_are_refused() {
    each_gateway(async |gateway| {
        let other = gateway.post("/connections", &json!({})).await.expect(201);
        let both = json!({"customer_id": other["connection_id"]});
        let refused = send(gateway, "mine-1", &both).await.expect(400);
        assert_eq!(refused["error"]["issues"][0]["path"], json!(["customer_id"]));
        let same = json!({"customer_id": gateway.connection.connection_id.to_string()});
        send(gateway, "mine-1", &same).await.expect(201);
        let token = gateway.token(&both);
        let forward = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
        let refused = forward.bearer(&token).json(&support::chat_body()).send().await;
        assert_refused(&refused, 400, "forward_token_json_invalid");
        let query = format!(
            "/requests?connection_id={}&customer_id={}",
            gateway.connection.connection_id,
            text(&other, "connection_id")
        );
        let refused = gateway.get(&query).await.expect(400);
        assert_eq!(refused["error"]["issues"][0]["path"], json!(["customer_id"]));
    });
}
