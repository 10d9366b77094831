//! The OpenAPI document describes the messages of webhooks: the samples, and messages that were really
//! delivered.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jsonschema::Validator;
use serde_json::{Value, json};
use tollgate_api::{ErrorCode, WebhookMessagesDoc, openapi, reference_page};
use tollgate_domain::EventKind;
use tollgate_testkit::{RecordedRequest, ScriptedProvider, ScriptedResponse, TestRequest};

use crate::support::document::{assert_valid, resolve, validator_at};
use crate::support::*;

fn kinds() -> impl Iterator<Item = &'static str> {
    EventKind::ALL.iter().chain(&[EventKind::WebhookTest]).map(|kind| kind.as_str())
}

/// The schema and example of the message of a kind, from the document.
fn content(kind: &str) -> &'static Value {
    &openapi()["webhooks"][kind]["post"]["requestBody"]["content"]["application/json"]
}

fn validator(kind: &str) -> Arc<Validator> {
    validator_at(&format!("#/webhooks/{kind}/post/requestBody/content/application~1json/schema"))
}

/// Every object within a value, by its pointer.
fn objects(value: &Value, pointer: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(pointer.clone());
            for (name, field) in fields {
                objects(field, format!("{pointer}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                objects(item, format!("{pointer}/{place}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_kind_of_event_has_an_entry_and_nothing_else_has() {
    let entries: BTreeSet<_> = names(&openapi()["webhooks"]).into_iter().collect();
    assert_eq!(entries, kinds().collect());
}

#[test]
fn every_sample_is_as_its_schema_says_and_no_field_may_be_added() {
    for kind in kinds() {
        let (validator, sample) = (validator(kind), &content(kind)["example"]);
        assert_valid(&validator, sample);
        assert_eq!(sample["type"], kind);
        let mut places = Vec::new();
        objects(sample, String::new(), &mut places);
        // Only metadata can have other fields.
        for place in places.iter().filter(|place| !place.ends_with("/metadata")) {
            let mut more = sample.clone();
            more.pointer_mut(place).unwrap()["more"] = json!("x");
            assert!(!validator.is_valid(&more), "{kind} with one more at {place}");
        }
    }
}

#[test]
fn no_field_of_a_sample_may_be_missing_but_those_that_are_left_out_at_times() {
    /// The fields that are absent when they have no value.
    const OPTIONAL: [&str; 24] = [
        "budget/spend_limit",
        "spend_key/spend_limit",
        "spend_key/rate_limit",
        "request/provider_status",
        "request/connection_id",
        "request/flags",
        "request/meter_id",
        "request/model",
        "request/response_id",
        "request/sequence",
        "request/timestamp",
        "request/error",
        "error/type",
        "error/code",
        "error/message",
        "timings/settled_at",
        "timings/sent_at",
        "job/connection_id",
        "job/ended_at",
        "request/job_id",
        "timings/first_byte_at",
        "timings/last_byte_at",
        "model_usage/payer",
        "fee/token_basis",
    ];
    for kind in kinds() {
        let (validator, sample) = (validator(kind), &content(kind)["example"]);
        let mut places = Vec::new();
        objects(sample, String::new(), &mut places);
        for place in places {
            for name in names(sample.pointer(&place).unwrap()) {
                let pointer = format!("{place}/{name}");
                let mut less = sample.clone();
                less.pointer_mut(&place).unwrap().as_object_mut().unwrap().remove(name);
                let may_be_missing = OPTIONAL.iter().any(|optional| pointer.ends_with(optional));
                assert_eq!(validator.is_valid(&less), may_be_missing, "{kind} without {pointer}");
            }
        }
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_operation_has_a_name_of_its_own() {
    let document = openapi();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1."));
    let mut places = Vec::new();
    objects(document, String::new(), &mut places);
    for value in places.iter().filter_map(|place| document.pointer(place)) {
        let Some(reference) = value.get("$ref").and_then(Value::as_str) else { continue };
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let mut seen = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(seen.insert(text(operation, "operationId")), "{method} {path}");
            let stated = operation["parameters"].as_array().into_iter().flatten();
            let stated: Vec<_> =
                stated.filter(|one| one["in"] == "path").map(|one| text(one, "name")).collect();
            let named: Vec<_> =
                path.split('{').skip(1).filter_map(|part| part.split('}').next()).collect();
            assert_eq!(stated, named, "{method} {path}");
        }
    }
    for name in names(&document["components"]["schemas"]) {
        let schema = &document["components"]["schemas"][name];
        jsonschema::draft202012::meta::validate(schema).unwrap();
    }
}

#[test]
fn the_page_of_messages_has_the_samples() {
    assert!(
        include_str!("../../../docs/features/webhook-messages.md")
            == WebhookMessagesDoc.to_string(),
        "make the page again: \
         cargo run -p tollgate-api --example webhooks > docs/features/webhook-messages.md"
    );
}

/// The pages `docs/api`, by their names.
fn api_pages() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    paths.map(|path| (name(&path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn the_pages_of_the_interface_have_the_lists_of_the_document() {
    for (name, page) in api_pages() {
        assert!(
            reference_page(openapi(), &page).unwrap() == page,
            "docs/api/{name} is stale: cargo run -p tollgate-api --example reference"
        );
        for list in page.split("<!-- openapi: ").skip(1) {
            let list = list.split("<!-- /openapi -->").next().unwrap();
            let long = list.lines().find(|line| line.chars().count() > 120);
            assert_eq!(long, None, "{name}");
        }
    }
}

#[test]
fn a_mark_that_means_nothing_is_an_error() {
    for mark in ["body GET /v1/meters", "fields POST /v1/meters", "operations no_tag", "body"] {
        let page = format!("<!-- openapi: {mark} -->\n<!-- /openapi -->\n");
        assert!(reference_page(openapi(), &page).unwrap_err().contains(mark), "{mark}");
    }
    assert!(reference_page(openapi(), "<!-- openapi: body POST /v1/meters -->\n").is_err());
}

#[test]
fn every_operation_is_in_the_index_and_on_a_page_with_its_fields() {
    let mut pages = api_pages();
    let index = pages.remove("index.md").unwrap();
    let text = pages.into_values().collect::<String>();
    for (path, item) in openapi()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["tags"][0] == "forward" {
                assert!(text.contains(path.as_str()), "{path}");
                continue;
            }
            let operation_name = format!("{} {path}", method.to_uppercase());
            assert!(index.contains(&format!("`{operation_name}`")), "{operation_name}");
            assert!(text.contains(&format!("`{operation_name}`")), "{operation_name}");
            let marked =
                |kind: &str| text.contains(&format!("<!-- openapi: {kind} {operation_name} -->"));
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let mut filters = parameters.filter(|it| {
                it["in"] == "query" && it["name"] != "limit" && it["name"] != "cursor"
            });
            assert!(filters.next().is_none() || marked("parameters"), "{operation_name}");
            // A debit has the body of a credit.
            let has_body = operation.get("requestBody").is_some() && !path.ends_with("/debits");
            assert!(!has_body || marked("body"), "{operation_name}");
        }
    }
}

/// The first message of a kind that a receiver got.
async fn message(receiver: &ScriptedProvider, kind: &str) -> (RecordedRequest, Value) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let complete = receiver.requests().into_iter().filter(|request| request.complete);
        let mut all = complete.map(|request| (request.json(), request));
        if let Some((message, request)) = all.find(|(message, _)| message["type"] == kind) {
            return (request, message);
        }
        assert!(Instant::now() < deadline, "no {kind}");
        tokio::task::yield_now().await;
    }
}

/// Causes each kind of event, except the test.
async fn let_everything_happen(gateway: &Gateway<'_>) {
    const DAY: i64 = 24 * 60 * 60 * 1_000;
    let customer = json!({"reference_id": "customer-1", "metadata": {"plan": "a"}});
    let connection = gateway.post("/connections", &customer).await.expect(201);
    let connection = text(&connection, "connection_id");
    let config = async |period_amount: &str| {
        let config = json!({"name": "Pro", "period_amount": period_amount, "included_credit": "30",
            "billing_interval": "month", "rollover_type": "none", "bundle_rollover_type": "full",
            "credit_bundles": [{"name": "More", "cost": "10", "credit_amount": "11"}]});
        gateway.post("/subscription_configs", &config).await.expect(201)
    };
    let (small, large) = (config("25").await, config("50").await);
    let id = |config: &Value| json!({"subscription_config_id": config["subscription_config_id"]});
    let subscribe = with(id(&small), &json!({"connection_id": connection}));
    let made = gateway.post("/subscriptions", &subscribe).await.expect(201);
    let subscription = format!("/subscriptions/{}", text(&made["subscription"], "subscription_id"));
    let bundle = json!({"credit_bundle_id": small["credit_bundles"][0]["credit_bundle_id"]});
    gateway.post(&format!("{subscription}/bundles"), &bundle).await.expect(201);
    gateway.post(&format!("{subscription}/change"), &id(&large)).await.expect(200);
    gateway.store.clock.advance_millis(31 * DAY);
    gateway.get(&subscription).await.expect(200);
    gateway.delete(&format!("/connections/{connection}")).await.expect(200);

    let wallet = format!("/wallets/{}", gateway.connection.wallet_id);
    let limits = json!({"low_balance_threshold": "10", "overdraft_limit": "0"});
    gateway.patch(&wallet, &limits).await.expect(200);
    gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
    gateway.chat().send().await.expect(200);
    gateway.provider.push(ScriptedResponse::json(500, "{}"));
    assert_eq!(gateway.chat().send().await.status, 500);
    let much = json!({"prompt_tokens": 20_000, "completion_tokens": 1});
    gateway
        .provider
        .push(ScriptedResponse::json(200, with(chat_answer(), &json!({"usage": much}))));
    gateway.chat().json(&with(chat_body(), &json!({"max_tokens": 5}))).send().await.expect(200);
    // A call costs 0.002 USD.
    let limit = json!({"amount": "0.0023", "cycle": "daily"});
    let budget = json!({"name": "Team", "spend_limit": limit});
    let budget = gateway.post("/budgets", &budget).await.expect(201);
    let key = gateway
        .spend_key(&json!({
            "budget_id": budget["budget_id"],
            "wallet_id": gateway.connection.wallet_id.to_string(),
            "spend_limit": {"amount": "0.0023", "cycle": "monthly"},
        }))
        .await;
    let call = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
    let call = call.bearer(&key.key).json(&chat_body());
    call.send().await.expect(200);
    call.send().await.expect(200);
    for (index, status) in ["completed", "failed", "queued"].into_iter().enumerate() {
        end_job(gateway, &format!("resp_{index}"), status).await;
    }
    let unknown = json!({"model": "unheard-of", "messages": []});
    let refused = gateway.forward("/v1/chat/completions").json(&unknown).send().await;
    assert_refused(&refused, 400, "model_price_unknown");
    gateway.post(&format!("{wallet}/debits"), &json!({"amount": "100"})).await.expect(201);
}

/// A job that ends in this state. One that stays queued is forgotten by the provider.
async fn end_job(gateway: &Gateway<'_>, id: &str, status: &str) {
    let response = |status: &str| {
        let usage = json!({"input_tokens": 20, "output_tokens": 10, "total_tokens": 30});
        let body = json!({"id": id, "object": "response", "status": status, "usage": usage});
        ScriptedResponse::json(200, body)
    };
    let body = json!({"model": "m-1", "input": "Hi", "background": true});
    gateway.provider.push(response("queued"));
    let u = gateway.provider.url("/v1/responses");
    let token = gateway.token(&json!({}));
    gateway.forward_to(&u).bearer(&token).json(&body).send().await.expect(200);
    let jobs = gateway.get("/jobs?state=running").await.expect(200);
    let refresh = format!("/jobs/{}/refresh", text(&jobs["data"][0], "job_id"));
    match status {
        "queued" => {
            for _ in 0..2 {
                gateway.provider.push(ScriptedResponse::json(404, "{}"));
                gateway.post(&refresh, &json!({})).await.expect(200);
                gateway.store.clock.advance_millis(5_000);
            }
        }
        status => {
            gateway.provider.push(response(status));
            gateway.post(&refresh, &json!({})).await.expect(200);
        }
    }
}

#[test]
fn every_message_that_is_delivered_is_as_the_document_says() {
    each_gateway_with_webhooks(async |gateway| {
        let receiver = ScriptedProvider::start().always(ScriptedResponse::json(200, "{}"));
        let wanted: Vec<_> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let webhook = json!({"name": "All", "url": receiver.url("/hook"), "events": wanted});
        let made = gateway.post("/webhooks", &webhook).await.expect(201);
        let path = format!("/webhooks/{}", text(&made, "webhook_id"));
        gateway.post(&format!("{path}/test"), &json!({})).await.expect(200);
        let_everything_happen(gateway).await;
        gateway.store.store.fold().await.unwrap();

        for kind in kinds() {
            let (headers, message) = message(&receiver, kind).await;
            assert_valid(&validator(kind), &message);
            let stated = &openapi()["webhooks"][kind]["post"]["parameters"];
            for parameter in stated.as_array().unwrap() {
                let mut schema = parameter["schema"].clone();
                schema["components"] = openapi()["components"].clone();
                let header = headers.header(parameter["name"].as_str().unwrap()).unwrap();
                let schema = jsonschema::draft202012::new(&schema).unwrap();
                assert_valid(&schema, &json!(header));
            }
        }
    });
}

#[test]
fn what_the_operations_on_webhooks_answer_is_as_the_document_says() {
    each_gateway_with_webhooks(async |gateway| {
        let served =
            TestRequest::new(gateway.address, "GET", "/openapi.json").send().await.expect(200);
        assert_eq!(&served, openapi());

        let is = |schema: &str, value: &Value| {
            assert_valid(&validator_at(&format!("#/components/schemas/{schema}")), value);
        };
        let receiver = ScriptedProvider::start().always(ScriptedResponse::json(200, "{}"));
        let webhook = json!({"name": "All", "url": receiver.url("/hook")});
        is("CreateWebhook", &webhook);
        let made = gateway.post("/webhooks", &webhook).await.expect(201);
        is("Webhook", &made);
        let path = format!("/webhooks/{}", text(&made, "webhook_id"));
        is("List_Webhook", &gateway.get("/webhooks").await.expect(200));
        is("Webhook", &gateway.get(&path).await.expect(200));
        let change = json!({"name": "Some", "events": ["price.missing"]});
        is("UpdateWebhook", &change);
        is("Webhook", &gateway.patch(&path, &change).await.expect(200));
        is("Webhook", &gateway.post(&format!("{path}/rotate"), &json!({})).await.expect(200));
        is("Error", &gateway.post("/webhooks", &json!({"name": ""})).await.expect(400));

        let begun = gateway.post(&format!("{path}/test"), &json!({})).await.expect(200);
        is("Delivery", &begun);
        message(&receiver, "webhook.test").await;
        is("List_Delivery", &gateway.get(&format!("{path}/deliveries")).await.expect(200));
        let delivery = format!("{path}/deliveries/{}", text(&begun, "delivery_id"));
        is("Delivery", &gateway.get(&delivery).await.expect(200));
        let redelivered = gateway.post(&format!("{delivery}/redeliver"), &json!({})).await;
        is("Delivery", &redelivered.expect(200));
        is("Deleted", &gateway.delete(&path).await.expect(200));
    });
}

/// Every operation, as `METHOD path`, with its part of the document.
fn operations() -> impl Iterator<Item = (String, &'static Value)> {
    let paths = openapi()["paths"].as_object().unwrap();
    let of_path = |(path, item): (&'static String, &'static Value)| {
        let operations = item.as_object().unwrap().iter();
        operations.map(move |(method, operation)| {
            (format!("{} {path}", method.to_uppercase()), operation)
        })
    };
    paths.iter().flat_map(of_path)
}

#[test]
fn every_operation_is_served_and_its_path_has_no_other_methods() {
    each_gateway(async |gateway| {
        let paths = openapi()["paths"].as_object().unwrap();
        for (path, item) in paths {
            assert!(!path.contains("/dashboard"), "pages are not operations: {path}");
            let target = path.replace("{call}", "generateContent").replace(['{', '}'], "");
            for method in ["get", "post", "put", "patch", "delete"] {
                let answer =
                    TestRequest::new(gateway.address, &method.to_uppercase(), &target).send().await;
                assert_ne!(answer.status, 404, "{method} {path}");
                assert_eq!(answer.status != 405, item.get(method).is_some(), "{method} {path}");
            }
        }
    });
}

#[test]
fn every_property_of_every_schema_has_a_description() {
    let mut without = Vec::new();
    let schemas = openapi()["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas {
        let mut objects = vec![schema];
        while let Some(object) = objects.pop() {
            for parts in ["allOf", "oneOf", "anyOf"] {
                objects.extend(object[parts].as_array().into_iter().flatten());
            }
            for (property, schema) in object["properties"].as_object().into_iter().flatten() {
                if !schema["description"].is_string() {
                    without.push(format!("{name}.{property}"));
                }
                objects.push(schema);
            }
        }
    }
    assert_eq!(without, <Vec<String>>::new());
}

/// The codes that an operation can be refused with, by status.
fn codes(operation: &'static Value) -> impl Iterator<Item = (u16, &'static str)> {
    let responses = operation["responses"].as_object().unwrap().iter();
    responses.flat_map(|(status, response)| {
        let codes = resolve(response)["x-error-codes"].as_array().into_iter().flatten();
        codes.map(move |code| (status.parse().unwrap(), code.as_str().unwrap()))
    })
}

#[test]
fn errors_are_those_that_are_explained_and_each_belongs_to_some_operation() {
    let explained = concat!(
        include_str!("../../../docs/api/error-codes.md"),
        include_str!("../../../docs/api/error-codes-resources.md"),
        include_str!("../../../docs/api/error-codes-limits.md"),
    );
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for (name, operation) in operations() {
        for (status, code) in codes(operation) {
            let chapter = format!("## `{code}`\n\nHTTP {status}. ");
            assert!(explained.contains(&chapter), "{name}: {chapter}");
            told.insert(code);
        }
    }
    // No operation has this error: it occurs when a path has no such method.
    told.insert("method_not_allowed");
    assert_eq!(told, ErrorCode::ALL.iter().map(|code| code.name()).collect());
}

#[test]
fn what_an_operation_takes_says_which_errors_it_has() {
    let has = |name: &str, code: &str| {
        let (_, operation) = operations().find(|(one, _)| one == name).unwrap();
        codes(operation).any(|(_, known)| known == code)
    };
    for (name, code, expected) in [
        ("GET /v1/wallet", "auth_invalid", true),
        ("GET /v1/wallet", "validation_failed", false),
        ("GET /v1/wallet", "json_invalid", false),
        ("GET /v1/meters", "cursor_invalid", true),
        ("GET /v1/usage", "cursor_invalid", false),
        ("POST /v1/meters", "meter_slug_taken", true),
        ("POST /v1/meters", "idempotency_key_reused", true),
        ("PATCH /v1/meters/{id}", "idempotency_key_reused", false),
        ("POST /v1/operator/merchants", "operation_not_allowed", false),
        ("POST /v1/operator/merchants", "route_not_found", true),
        ("POST /v1/messages", "provider_timeout", true),
        ("GET /healthz", "internal_error", false),
    ] {
        assert_eq!(has(name, code), expected, "{name}: {code}");
    }
}
