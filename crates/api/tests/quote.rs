//! A quote returns the cost of a call, and its hold, without making the call.

#![expect(clippy::indexing_slicing, reason = "a helper of tests fails by panicking")]

use serde_json::{Value, json};
use tollgate_api::InterfaceShape;
use tollgate_gateway::{CallSettings, UnpricedPolicy};
use tollgate_store::spend_keys;
use tollgate_testkit::{Gate, ScriptedResponse};

use crate::support::{
    Gateway, chat_answer, chat_body, each_gateway, each_gateway_with, settings, with,
};

/// The fields that a quote and a record have in common.
const SHARED: [&str; 7] = [
    "model_usage",
    "price_source",
    "fee",
    "service_charge",
    "total_request_cost",
    "total_wallet_cost",
    "total_merchant_cost",
];

fn answer_of(usage: &Value) -> Value {
    with(chat_answer(), &json!({"usage": usage}))
}

fn of_house(usage: &Value) -> Value {
    json!({"provider": "house", "model": "m-1", "usage": usage})
}

/// A new meter.
async fn meter(gateway: &Gateway<'_>, more: &Value) -> Value {
    let plan = json!({
        "name": "Plan", "rate_type": "fixed", "tier_type": "tokens_1m",
        "tiers": [{"start": "0", "rate": "10"}, {"start": "1000", "rate": "5"}],
    });
    gateway.post("/meters", &with(plan, more)).await.expect(201)
}

/// The newest record, reduced to the fields of a quote.
async fn charged(gateway: &Gateway<'_>) -> Value {
    let record = gateway.records().await.remove(0);
    assert_eq!(record["status"], "completed", "{record}");
    SHARED.iter().map(|name| ((*name).to_owned(), record[name].clone())).collect()
}

async fn quoted(gateway: &Gateway<'_>, body: &Value) -> Value {
    gateway.post("/quote", body).await.expect(200)
}

#[test]
fn a_quote_is_what_the_next_such_call_is_charged() {
    let provider_says = json!({
        "prompt_tokens": 700, "completion_tokens": 200, "total_tokens": 900,
        "prompt_tokens_details": {"cached_tokens": 300, "audio_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 50, "audio_tokens": 3},
    });
    let usage = json!({
        "input_tokens": 700, "output_tokens": 200, "cached_input_tokens": 300,
        "reasoning_tokens": 50, "input_audio_tokens": 7, "output_audio_tokens": 3,
    });
    each_gateway(async |gateway| {
        let plans = [
            json!({}),
            json!({"token_basis": "output", "base_cost_payer": "merchant", "tier_period": "month"}),
            json!({"rate_type": "percentage"}),
            json!({"tier_type": "requests", "tiers": [{"start": "0", "rate": "1"}, {"start": "1", "rate": "0.5"}]}),
        ];
        for plan in plans {
            let meter = meter(gateway, &plan).await;
            let token = |connection: Value| {
                gateway
                    .token(&json!({"meter_slug": meter["meter_slug"], "connection_id": connection}))
            };
            let connection = json!(gateway.connection.connection_id.to_string());
            // The second call is in two tiers of tokens.
            for (calls, who) in
                [&connection, &connection, &connection, &Value::Null].iter().enumerate()
            {
                let ask = json!({"meter_id": meter["meter_id"], "connection_id": who});
                let quote = quoted(gateway, &with(of_house(&usage), &ask)).await;
                if plan == json!({}) {
                    let lines = quote["fee"]["breakdown"].as_array().unwrap().len();
                    assert_eq!(lines, if calls == 1 { 2 } else { 1 });
                }
                gateway.provider.push(ScriptedResponse::json(200, answer_of(&provider_says)));
                let call = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
                call.bearer(&token((*who).clone())).json(&chat_body()).send().await.expect(200);
                assert_eq!(quote, charged(gateway).await, "{plan} {who}");
            }
        }
    });
}

#[test]
fn a_quote_without_a_meter_has_no_fee_and_the_merchant_pays() {
    each_gateway(async |gateway| {
        let quote =
            quoted(gateway, &of_house(&json!({"input_tokens": 1000, "output_tokens": 500}))).await;
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let call = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
        call.bearer(gateway.key()).json(&chat_body()).send().await.expect(200);
        assert_eq!(quote, charged(gateway).await);
        assert_eq!(quote["total_merchant_cost"], "0.0020000000");
        assert_eq!(quote["model_usage"]["payer"], "merchant");
    });
}

#[test]
fn a_quote_writes_nothing() {
    each_gateway(async |gateway| {
        let ask = json!({
            "meter_id": gateway.meter.meter_id.to_string(),
            "connection_id": gateway.connection.connection_id.to_string(),
        });
        let body = with(of_house(&json!({"input_tokens": 1_000_000})), &ask);
        let first = quoted(gateway, &body).await;
        assert_eq!(quoted(gateway, &body).await, first, "no counter has moved");
        assert_eq!(gateway.get("/requests").await.expect(200)["data"], json!([]));
        assert_eq!(gateway.wallet().await, ("10.0000000000".to_owned(), "0.0000000000".to_owned()));
    });
}

#[test]
fn what_has_no_price_costs_nothing_and_says_so() {
    each_gateway(async |gateway| {
        let meter_id = gateway.meter.meter_id.to_string();
        for model in [
            json!({"provider": "house", "model": "unheard-of"}),
            json!({"provider": "unheard-of", "model": "m-1"}),
            json!({}),
        ] {
            let ask = with(json!({"meter_id": meter_id, "usage": {"input_tokens": 1000}}), &model);
            let quote = quoted(gateway, &ask).await;
            assert_eq!(quote["price_source"], "unpriced");
            assert_eq!(quote["model_usage"]["total_cost"], "0.0000000000");
            assert_eq!(
                quote["fee"]["amount"], "0.0100000000",
                "the meter counts tokens all the same"
            );
        }
    });
}

#[test]
fn every_quantity_has_its_place() {
    each_gateway(async |gateway| {
        let usage = json!({
            "input_tokens": 100, "cached_input_tokens": 40, "cache_write_tokens": 50,
            "input_audio_tokens": 10, "output_tokens": 9, "reasoning_tokens": 4,
            "output_audio_tokens": 5, "input_characters": 1, "output_characters": 2,
            "input_seconds": "1.5", "output_seconds": 2, "images": null, "tool_calls": 2, "requests": 1,
        });
        let body = json!({"provider": "house", "model": "m-listed", "usage": usage});
        let quote = quoted(gateway, &body).await;
        let shown = &quote["model_usage"];
        for (name, count) in [
            ("input_tokens", 100),
            ("cached_input_tokens", 40),
            ("cache_write_tokens", 50),
            ("input_audio_tokens", 10),
            ("output_tokens", 9),
            ("reasoning_tokens", 4),
            ("output_audio_tokens", 5),
            ("total_tokens", 109),
            ("input_characters", 1),
            ("output_characters", 2),
            ("input_seconds", 2),
            ("output_seconds", 2),
        ] {
            assert_eq!(shown[name], count, "{name}");
        }
        // 9 tokens at 2 USD per million, and two calls of a tool at 0.01 USD.
        assert_eq!(shown["output_cost"], "0.0200180000");
        let minutes = meter(
            gateway,
            &json!({"tier_type": "minutes", "tiers": [{"start": "0", "rate": "0.6"}]}),
        )
        .await;
        let ask = with(body, &json!({"meter_id": minutes["meter_id"]}));
        assert_eq!(quoted(gateway, &ask).await["fee"]["amount"], "0.0350000000", "3.5 seconds");
    });
}

#[test]
fn a_hold_is_what_the_call_holds_while_it_is_on_its_way() {
    // Spaces count as bytes of a body, too.
    let bodies = [
        r#"{"model":"m-1","max_tokens":1000,"messages":[]}"#,
        "{ \"model\" : \"m-1\",\n \"max_tokens\" : 1e3, \"n\": 3, \"messages\" : [] }",
        r#"{"model":"m-1","messages":[{"role":"user","content":"H\u00e9llo"}],"stream":true}"#,
    ];
    each_gateway(async |gateway| {
        let url = gateway.provider.url("/v1/chat/completions");
        let connection_id = gateway.connection.connection_id.to_string();
        let meter_id = gateway.meter.meter_id.to_string();
        let limit = json!({"amount": "100", "cycle": "total"});
        for body in bodies {
            let ask = |under: &str| format!(r#"{{"url": "{url}", {under} "body": {body}}}"#);
            let hold = async |under: &str| {
                let call = gateway.call("POST", "/quote");
                let quote = call.bytes("application/json", ask(under).as_bytes()).send().await;
                quote.expect(200)
            };
            let under_meter = format!(r#""meter_id": "{meter_id}","#);
            let metered = hold(&under_meter).await;
            let paid = hold(&format!(r#"{under_meter} "connection_id": "{connection_id}","#)).await;
            assert_eq!(paid, metered, "a hold is the same, whoever pays");
            assert_eq!(metered.as_object().unwrap().len(), 1, "it has a bound: {metered}");

            let gate = Gate::new();
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
            let calls = gateway.provider.calls();
            let call = gateway.forward("/v1/chat/completions");
            let open = call.bytes("application/json", body.as_bytes()).open().await;
            gateway.provider.wait_for_calls(calls + 1).await;
            assert_eq!(metered["hold"], json!(gateway.wallet().await.1));
            gate.open();
            drop(open);
            gateway.records().await;

            let key = gateway.spend_key(&json!({"spend_limit": limit})).await;
            let gate = Gate::new();
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
            let call = gateway.forward_to(&url).bearer(&key.key);
            let open = call.bytes("application/json", body.as_bytes()).open().await;
            gateway.provider.wait_for_calls(calls + 2).await;
            let (merchant_id, id) = (
                gateway.merchant.merchant.merchant_id,
                key.made["spend_key_id"].as_str().unwrap().parse().unwrap(),
            );
            let read =
                gateway.store.store.read(move |conn| spend_keys::find(conn, merchant_id, id));
            let held = read.await.unwrap().unwrap().counters.held.total;
            assert_eq!(hold("").await["hold"], json!(held.to_string()));
            gate.open();
            drop(open);
            gateway.records().await;
        }
    });
}

#[test]
fn a_hold_without_bound_names_the_field_and_a_free_call_holds_nothing() {
    each_gateway(async |gateway| {
        let url = gateway.provider.url("/v1/chat/completions");
        let part = json!({"type": "image_url", "image_url": {"url": "https://example.com/x.png"}});
        let body = json!({"model": "m-1", "messages": [{"role": "user", "content": [part]}]});
        let quote = quoted(gateway, &json!({"url": url, "body": body})).await;
        assert_eq!(
            quote["unbounded_field"],
            json!(["messages", "0", "content", "0", "image_url", "url"])
        );
        let unlisted = json!({"model": "m-listed", "messages": []});
        let quote = quoted(gateway, &json!({"url": url, "body": unlisted})).await;
        assert_eq!(quote["unbounded_field"], json!(["max_tokens"]));

        let url = gateway.provider.url("/anthropic/v1/messages/count_tokens");
        let ask = json!({"url": url, "body": {"model": "m-1", "messages": []},
                         "meter_id": gateway.meter.meter_id.to_string()});
        assert_eq!(quoted(gateway, &ask).await, json!({"hold": "0.0000000000"}));
    });
}

#[test]
fn a_call_that_would_be_refused_has_no_hold() {
    each_gateway(async |gateway| {
        let url = gateway.provider.url("/v1/chat/completions");
        for (url, body, code, paths) in [
            (
                "https://example.com/v1/chat",
                chat_body(),
                "forward_endpoint_not_supported",
                &["url"][..],
            ),
            ("nonsense", chat_body(), "forward_endpoint_not_supported", &["url"]),
            (
                &gateway.provider.url("/v1/uploads"),
                chat_body(),
                "forward_endpoint_not_supported",
                &["url"],
            ),
            (
                "https://api.openai.com/v1/embeddings",
                chat_body(),
                "forward_endpoint_not_supported",
                &["url"],
            ),
            (&url, json!({}), "forward_token_json_invalid", &["body.model"]),
            (
                &url,
                json!({"model": "m-1", "max_tokens": -1, "stream": "yes"}),
                "forward_token_json_invalid",
                &["body.stream", "body.max_tokens"],
            ),
            (&url, json!({"model": "unheard-of"}), "model_price_unknown", &["body.model"]),
            (
                &url,
                json!({"model": "m-1", "max_tokens": 1_000_000_000_000_u64, "n": 128}),
                "validation_failed",
                &["body"],
            ),
        ] {
            let answer = gateway.post("/quote", &json!({"url": url, "body": body})).await;
            assert_eq!((answer.status, answer.error().as_str()), (400, code), "{url} {body}");
            assert_eq!(answer.issue_paths(), paths, "{url} {body}");
        }
    });
}

#[test]
fn where_unpriced_models_pass_their_hold_is_an_estimate() {
    let lenient = tollgate_api::Settings {
        calls: CallSettings { unpriced: UnpricedPolicy::Allow, ..settings().calls },
        ..settings()
    };
    each_gateway_with(lenient, async |gateway| {
        let url = gateway.provider.url("/v1/chat/completions");
        let body = json!({"model": "unheard-of", "messages": []});
        let quote = quoted(gateway, &json!({"url": url, "body": body})).await;
        assert_eq!(quote, json!({"hold": "0.0000000000", "unbounded_field": ["model"]}));
    });
}

#[test]
fn who_is_named_must_be_there() {
    each_gateway(async |gateway| {
        let others = gateway.store.merchant().await.merchant.merchant_id;
        let others_meter = gateway.store.meter(others, &[(0, "1")]).await.meter_id.to_string();
        let others_connection =
            gateway.store.connection(others, "0").await.connection_id.to_string();
        let gone = gateway.post("/connections", &json!({})).await.expect(201);
        let path = format!("/connections/{}", gone["connection_id"].as_str().unwrap());
        gateway.call("DELETE", &path).send().await.expect(200);
        let (meter, connection) =
            (gateway.meter.meter_id.to_string(), gateway.connection.connection_id.to_string());
        let url = gateway.provider.url("/v1/chat/completions");
        for what in [of_house(&json!({})), json!({"url": url, "body": chat_body()})] {
            for (who, status, code) in [
                (json!({"meter_id": "mtr_nonsense"}), 404, "meter_not_found"),
                (json!({"meter_id": others_meter}), 404, "meter_not_found"),
                (
                    json!({"meter_id": others_meter, "connection_id": connection}),
                    404,
                    "meter_not_found",
                ),
                (json!({"meter_id": meter, "connection_id": "x"}), 404, "connection_not_found"),
                (
                    json!({"meter_id": meter, "connection_id": others_connection}),
                    404,
                    "connection_not_found",
                ),
                (
                    json!({"meter_id": meter, "connection_id": gone["connection_id"]}),
                    403,
                    "connection_disabled",
                ),
                (
                    json!({"meter_id": meter, "customer_id": gone["connection_id"]}),
                    403,
                    "connection_disabled",
                ),
            ] {
                let answer = gateway.post("/quote", &with(what.clone(), &who)).await;
                assert_eq!((answer.status, answer.error().as_str()), (status, code), "{who}");
            }
        }
        let spend_key = gateway.spend_key(&json!({})).await;
        let call = gateway.call_without_key("POST", "/quote").bearer(&spend_key.key);
        assert_eq!(call.json(&of_house(&json!({}))).send().await.error(), "operation_not_allowed");
    });
}

#[test]
fn every_bad_field_is_named() {
    let usage = |usage: Value| of_house(&usage);
    each_gateway(async |gateway| {
        let url = gateway.provider.url("/v1/chat/completions");
        for (body, paths) in [
            (json!({}), &[""][..]),
            (json!([]), &[""]),
            (json!({"usage": null, "url": null, "body": null}), &[""]),
            (json!({"usage": 1}), &["usage"]),
            (usage(json!({"input_tokens": -1})), &["usage.input_tokens"]),
            (usage(json!({"input_tokens": 1.5})), &["usage.input_tokens"]),
            (usage(json!({"input_tokens": "1"})), &["usage.input_tokens"]),
            (usage(json!({"requests": 1_000_000_000_001_u64})), &["usage.requests"]),
            (usage(json!({"output_seconds": 1_000_000_000_001_u64})), &["usage.output_seconds"]),
            (usage(json!({"input_seconds": 1.5})), &["usage.input_seconds"]),
            (usage(json!({"input_seconds": "1.0000001"})), &["usage.input_seconds"]),
            (usage(json!({"input_seconds": "-1"})), &["usage.input_seconds"]),
            (usage(json!({"colour": 1})), &["usage.colour"]),
            (usage(json!({"cached_input_tokens": 1})), &["usage.cached_input_tokens"]),
            (
                usage(
                    json!({"input_tokens": 5, "cached_input_tokens": 3, "cache_write_tokens": 3}),
                ),
                &["usage.cache_write_tokens"],
            ),
            (
                usage(json!({"output_tokens": 1, "reasoning_tokens": 2, "input_audio_tokens": 1})),
                &["usage.input_audio_tokens", "usage.reasoning_tokens"],
            ),
            (json!({"provider": "house", "usage": {}}), &["model"]),
            (json!({"model": "m-1", "usage": {}}), &["provider"]),
            (json!({"provider": 1, "model": "", "usage": {}}), &["provider", "model"]),
            (json!({"usage": {}, "url": url, "body": {}}), &["url", "body"]),
            (json!({"usage": {}, "body": {}}), &["body"]),
            (json!({"url": url}), &["body"]),
            (json!({"body": {}}), &["url"]),
            (json!({"url": 1, "body": "text"}), &["url", "body"]),
            (json!({"url": url, "body": [1]}), &["body"]),
            (
                json!({"url": url, "body": {}, "provider": "house", "model": "m-1"}),
                &["provider", "model"],
            ),
            (json!({"usage": {}, "connection_id": "con_x"}), &["meter_id"]),
            (json!({"usage": {}, "meter_id": 1}), &["meter_id"]),
            (
                json!({"usage": {"colour": 1, "requests": "x"}, "url": 1, "model": "m", "connection_id": "x"}),
                &["url", "provider", "meter_id", "usage.colour", "usage.requests", "url"],
            ),
        ] {
            let answer = gateway.post("/quote", &body).await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (400, "validation_failed"),
                "{body}"
            );
            let mut found = answer.issue_paths();
            let mut paths = paths.to_vec();
            found.sort();
            paths.sort_unstable();
            assert_eq!(found, paths, "{body}: {}", answer.text());
        }
        // 10¹² tokens at 1 USD per million are in range; at a meter's 10⁶ they exceed all amounts.
        let dear = meter(gateway, &json!({"tiers": [{"start": "0", "rate": "1000000"}]})).await;
        let most = of_house(&json!({"input_tokens": 1_000_000_000_000_u64}));
        quoted(gateway, &most).await;
        let answer =
            gateway.post("/quote", &with(most, &json!({"meter_id": dear["meter_id"]}))).await;
        assert_eq!(
            (answer.error().as_str(), answer.issue_paths()),
            ("validation_failed", vec!["usage".to_owned()])
        );
    });
}

#[test]
fn the_earlier_shape_has_cost_and_charge() {
    let earlier = tollgate_api::Settings { shape: InterfaceShape::Earlier, ..settings() };
    each_gateway_with(earlier, async |gateway| {
        let ask = json!({"meter_id": gateway.meter.meter_id.to_string()});
        let usage = json!({"input_tokens": 1000, "output_tokens": 500});
        let quote = quoted(gateway, &with(of_house(&usage), &ask)).await;
        assert_eq!(
            (&quote["cost"], &quote["charge"]["amount"]),
            (&json!("0.0020000000"), &json!("0.0150000000"))
        );
        let fields: Vec<_> = quote.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, ["model_usage", "price_source", "cost", "charge"]);
    });
}
