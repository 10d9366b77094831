//! Merchants cannot see each other. Every operation is called, with each of its methods,
//! for another merchant's resources: the answer is that for an id that does not exist, and nothing has
//! changed.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_api::{Settings, openapi};
use tollgate_testkit::{ScriptedResponse, TestResponse};

use crate::support::browser::{Browser, pages};
use crate::support::{self, Gateway, chat_answer, chat_body, each_gateway_with, settings, text};

/// Every operation below `/v1`, by its method and the rest of its path. The router and the document have one list.
fn routes() -> Vec<(String, String)> {
    let paths = openapi()["paths"].as_object().unwrap();
    let v1 = paths.iter().filter_map(|(path, item)| Some((path.strip_prefix("/v1/")?, item)));
    v1.flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys();
        methods.map(move |method| (method.to_uppercase(), format!("/{path}")))
    })
    .collect()
}

/// A merchant with one of each resource.
struct Tenant {
    key: String,
    /// The id of each resource, by the route that shows it.
    ids: BTreeMap<&'static str, String>,
    meter_slug: String,
    reference_id: String,
}

/// The resources of a tenant, and the prefixes of their ids.
const NOUNS: [(&str, &str); 17] = [
    ("budgets", "bud_"),
    ("meters", "mtr_"),
    ("requests", "req_"),
    ("connections", "con_"),
    ("subscription_configs", "sbc_"),
    ("credit_bundles", "cbn_"),
    ("subscriptions", "sub_"),
    ("wallets", "wal_"),
    ("spend_keys", "spk_"),
    ("secret_keys", "sec_"),
    ("webhooks", "whk_"),
    ("deliveries", "dlv_"),
    ("refusals", "rfs_"),
    ("events", "evt_"),
    ("runs", "run_"),
    ("jobs", "job_"),
    ("sockets", "skt_"),
];

impl Tenant {
    async fn furnish(gateway: &Gateway<'_>, key: &str, name: &str) -> Self {
        let made = async |path: &str, body: Value, id: &str| {
            let call = gateway.call_without_key("POST", path).bearer(key).json(&body);
            let answer = call.send().await;
            assert!(answer.status < 300, "{path}: {}", answer.text());
            (text(&answer.json(), id), answer.json())
        };
        let meter = json!({"name": name, "rate_type": "fixed", "tier_type": "requests",
                           "tiers": [{"start": "0", "rate": "0.01"}]});
        let (meter, shown) = made("/meters", meter, "meter_id").await;
        let meter_slug = text(&shown, "meter_slug");
        let (budget, _) = made("/budgets", json!({"name": name}), "budget_id").await;
        let reference_id = format!("ref-{name}");
        let connection = json!({"reference_id": reference_id, "name": name, "budget_id": budget});
        let (connection, shown) = made("/connections", connection, "connection_id").await;
        let wallet = text(&shown, "wallet_id");
        made(&format!("/wallets/{wallet}/credits"), json!({"amount": "5"}), "transaction_id").await;
        let config = json!({"name": name, "period_amount": "1", "billing_interval": "month",
                            "product_ids": [meter],
                            "credit_bundles": [{"name": name, "cost": "1", "credit_amount": "1"}]});
        let path = "/subscription_configs";
        let (config, shown) = made(path, config, "subscription_config_id").await;
        let bundle = text(&shown["credit_bundles"][0], "credit_bundle_id");
        let subscription = json!({"connection_id": connection, "subscription_config_id": config});
        let call = gateway.call_without_key("POST", "/subscriptions").bearer(key);
        let subscription = call.json(&subscription).send().await.expect(201);
        let subscription = text(&subscription["subscription"], "subscription_id");
        let (spend_key, _) = made("/spend_keys", json!({"name": name}), "spend_key_id").await;
        let (secret_key, _) = made("/secret_keys", json!({"name": name}), "secret_key_id").await;
        let hook = json!({"name": name, "url": "https://example.com/hooks", "events": null});
        let (webhook, _) = made("/webhooks", hook, "webhook_id").await;
        let test = format!("/webhooks/{webhook}/test");
        let (delivery, shown) = made(&test, json!({}), "delivery_id").await;
        let event = text(&shown, "event_id");
        let token =
            json!({"secret_key": key, "connection_id": connection, "meter_slug": meter_slug});
        let u = gateway.provider.url("/v1/chat/completions");
        let call = gateway.forward_to(&u).bearer(&STANDARD.encode(token.to_string()));
        let call = call.header("x-service-run", "task");
        let answer = call.json(&chat_body()).send().await;
        answer.expect(200);
        let request = answer.header("x-service-request-id").unwrap().to_owned();
        // Only the dashboard has an id of a run; the interface has the one that the caller chose.
        let runs = Browser::sign_in(gateway, key).await.show("/runs").await;
        let (_, run) = runs.split_once("href=\"/dashboard/runs/").unwrap();
        let run = run.split('"').next().unwrap().to_owned();
        let response = format!("resp_{name}");
        for status in ["queued", "completed"] {
            let state = json!({"id": response, "object": "response", "status": status});
            gateway.provider.push(ScriptedResponse::json(200, state));
        }
        let body = json!({"model": "m-1", "input": "Hi", "background": true});
        let call = gateway.call_without_key("POST", "/responses").bearer(key);
        call.json(&body).send().await.expect(200);
        let call = gateway.call_without_key("GET", &format!("/responses/{response}"));
        call.bearer(key).send().await.expect(200);
        let jobs = gateway.call_without_key("GET", "/jobs").bearer(key).send().await.expect(200);
        let job = text(&jobs["data"][0], "job_id");
        let open = gateway.call_without_key("GET", "/responses").bearer(key).open_socket();
        let (mut socket, _) = open.await.ok().unwrap();
        let mut provider = gateway.provider.socket().await;
        socket.send(&json!({"type": "response.create", "model": "m-1", "input": "Hi"})).await;
        provider.message().await;
        provider
            .send(
                &json!({"type": "response.completed", "response": {"id": format!("{response}s")}}),
            )
            .await;
        socket.message().await;
        let records = gateway.call_without_key("GET", "/requests").bearer(key).send().await;
        let socket = text(&records.expect(200)["data"][0], "socket_id");
        let astray = gateway.forward_to("https://example.invalid/v1/chat").bearer(key);
        let answer = astray.json(&chat_body()).send().await;
        let refusal = answer.header("x-service-refusal-id").unwrap().to_owned();
        let ids = [
            budget,
            meter,
            request,
            connection,
            config,
            bundle,
            subscription,
            wallet,
            spend_key,
            secret_key,
            webhook,
            delivery,
            refusal,
            event,
            run,
            job,
            socket,
        ];
        let ids = NOUNS.iter().map(|(noun, _)| *noun).zip(ids).collect();
        Self { key: key.to_owned(), ids, meter_slug, reference_id }
    }

    /// A tenant with ids that do not exist.
    fn nobody(key: &str) -> Self {
        let id = |(number, (noun, prefix)): (usize, &(&'static str, &str))| {
            (*noun, format!("{prefix}01M7XPE6{number:02}MDSSSD1354KJFSJ9"))
        };
        let ids = NOUNS.iter().enumerate().map(id).collect();
        let (meter_slug, reference_id) =
            ("no-such-slug".to_owned(), "no-such-reference".to_owned());
        Self { key: key.to_owned(), ids, meter_slug, reference_id }
    }

    fn id(&self, noun: &str) -> &str {
        self.ids.get(noun).unwrap_or_else(|| panic!("{noun}: say here what a tenant has of it"))
    }

    /// The path of a route with this tenant's ids; deliveries may be another tenant's.
    fn path(&self, route: &str, deliveries_of: &Self) -> String {
        let noun = route.split('/').nth(1).unwrap();
        let path = route.replace("{delivery_id}", deliveries_of.id("deliveries"));
        let path = path.replace("{month}", "2026-11");
        if path.contains("{id}") { path.replace("{id}", self.id(noun)) } else { path }
    }

    async fn ask(
        &self,
        gateway: &Gateway<'_>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> TestResponse {
        let call = gateway.call_without_key(method, path).bearer(&self.key);
        match body {
            Some(body) => call.json(body).send().await,
            None => call.send().await,
        }
    }

    /// Everything that the tenant can read.
    async fn everything(&self, gateway: &Gateway<'_>) -> BTreeMap<String, Value> {
        let mut shown = BTreeMap::new();
        for (method, route) in routes() {
            let is_ours = !NOT_OF_A_MERCHANT.iter().any(|other| route.starts_with(other));
            if method == "GET" && is_ours {
                let path = self.path(&route, self);
                let mut answer = self.ask(gateway, "GET", &path, None).await.json();
                if route == "/usage" {
                    // Its window ends with the present quarter hour, which may end meanwhile.
                    answer = answer["items"].as_array().unwrap().last().unwrap().clone();
                    let answer = answer.as_object_mut().unwrap();
                    answer.retain(|name, _| !["date", "start", "end"].contains(&name.as_str()));
                }
                shown.insert(path, answer);
            }
        }
        shown
    }
}

/// The beginnings of routes whose answers are the operator's or a provider's.
const NOT_OF_A_MERCHANT: [&str; 13] = [
    "/operator",
    "/forward",
    "/models",
    "/prices",
    "/providers",
    "/realtime",
    "/live",
    "/responses",
    "/messages",
    "/files",
    "/batches",
    "/videos",
    "/conversations",
];

/// A body that is valid for a route, with this tenant's own ids.
fn body(method: &str, route: &str, of: &Tenant) -> Option<Value> {
    Some(match (method, route) {
        ("GET" | "DELETE", _) => return None,
        ("PATCH", "/wallets/{id}") => json!({"low_balance_threshold": "1"}),
        ("PATCH" | "PUT", _) => json!({"name": "Changed"}),
        (_, "/subscriptions/{id}/change") => {
            json!({"subscription_config_id": of.id("subscription_configs")})
        }
        (_, "/subscriptions/{id}/bundles") => json!({"credit_bundle_id": of.id("credit_bundles")}),
        (_, "/wallets/{id}/credits" | "/wallets/{id}/debits") => json!({"amount": "1"}),
        _ => json!({}),
    })
}

/// Fails unless both answers are the same refusal.
#[track_caller]
fn assert_alike(what: &str, theirs: &TestResponse, nobodys: &TestResponse) {
    // The refusal of each call has an id of its own.
    let without_id = |answer: &TestResponse| {
        let id = answer.header("x-service-refusal-id").unwrap_or("no refusal");
        answer.text().replace(id, "rfs_")
    };
    assert_eq!(without_id(theirs), without_id(nobodys), "{what}");
    assert_eq!(theirs.status, nobodys.status, "{what}: {}", theirs.text());
    assert!((400..500).contains(&theirs.status), "{what}: {}", theirs.text());
}

fn each_pair(test: impl AsyncFn(&Gateway<'_>, &Tenant, &Tenant)) {
    let settings = Settings { standard_rate_per_minute: 0, ..settings() };
    each_gateway_with(settings, async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let other = gateway.store.merchant().await;
        let one = Tenant::furnish(gateway, gateway.key(), "Alpha").await;
        let other = Tenant::furnish(gateway, other.key.reveal(), "Beta").await;
        test(gateway, &one, &other).await;
    });
}

#[test]
fn every_route_with_an_id_hides_what_is_another_merchants() {
    each_pair(async |gateway, one, other| {
        let nobody = Tenant::nobody(&other.key);
        // All merchants share the models.
        let with_id = |(_, route): &&(String, String)| {
            route.contains("{id}") && !route.starts_with("/models/")
        };
        let routes = routes();
        let with_id: Vec<_> = routes.iter().filter(with_id).collect();
        assert!(with_id.len() >= 30, "{with_id:?}");

        let before = one.everything(gateway).await;
        for (method, route) in &with_id {
            let what = format!("{method} {route}");
            let body = body(method, route, other);
            let ask = async |path: String| other.ask(gateway, method, &path, body.as_ref()).await;
            let theirs = ask(one.path(route, one)).await;
            let nobodys = ask(nobody.path(route, &nobody)).await;
            assert_alike(&what, &theirs, &nobodys);
            assert_eq!(theirs.status, 404, "{what}: {}", theirs.text());
            assert!(theirs.error().ends_with("_not_found"), "{what}: {}", theirs.text());
            if route.contains("{delivery_id}") {
                for (webhook, delivery) in [(other, one), (one, other)] {
                    let mixed = ask(webhook.path(route, delivery)).await;
                    assert_eq!(mixed.status, 404, "{what}: {}", mixed.text());
                }
            }
        }
        assert_eq!(one.everything(gateway).await, before, "nothing has changed");

        // The owner can use each route; deletions come last.
        let mut owned = with_id.clone();
        owned.sort_by_key(|(method, route)| (method == "DELETE", route.starts_with("/meters")));
        for (method, route) in owned {
            if method == "DELETE" && route.starts_with("/meters") {
                continue; // It may still be in use; another test checks that.
            }
            let body = body(method, route, one);
            let answer = one.ask(gateway, method, &one.path(route, one), body.as_ref()).await;
            let own = answer.status < 300 || answer.status == 409;
            assert!(own, "{method} {route}: {}", answer.text());
        }
    });
}

#[test]
fn no_list_shows_what_is_another_merchants_and_no_filter_finds_it() {
    each_pair(async |gateway, one, other| {
        let nobody = Tenant::nobody(&other.key);
        let shown = other.everything(gateway).await;
        for (path, shown) in &shown {
            let text = shown.to_string();
            assert!(!text.contains("\"error\":{"), "{path}: {text}");
            for theirs in one.ids.values().chain([&one.meter_slug, &one.reference_id]) {
                assert!(!text.contains(theirs.as_str()), "{theirs} in {path}: {text}");
            }
            assert!(!text.contains("Alpha"), "{path}: {text}");
        }
        let all: String = shown.values().map(Value::to_string).collect();
        for own in other.ids.iter().filter(|(noun, _)| **noun != "runs").map(|(_, id)| id) {
            assert!(all.contains(own.as_str()), "{own} is shown to its owner");
        }
        for (list, filter, noun) in [
            ("/requests", "connection_id", "connections"),
            ("/requests", "customer_id", "connections"),
            ("/requests", "meter_id", "meters"),
            ("/requests", "budget_id", "budgets"),
            ("/usage", "budget_id", "budgets"),
            ("/usage", "connection_id", "connections"),
            ("/usage", "meter_id", "meters"),
            ("/subscriptions", "connection_id", "connections"),
            ("/credit_bundles", "subscription_config_id", "subscription_configs"),
        ] {
            let found = async |of: &Tenant| {
                let path = format!("{list}?{filter}={}", of.id(noun));
                other.ask(gateway, "GET", &path, None).await
            };
            let (theirs, nobodys, own) =
                (found(one).await, found(&nobody).await, found(other).await);
            assert_eq!(theirs.text(), nobodys.text(), "{list} by {filter}");
            assert_ne!(own.text(), nobodys.text(), "{list} by {filter} finds one's own");
        }
        // A cursor is an id, too: another merchant's is only a position in the caller's own list.
        let page = one.ask(gateway, "GET", "/wallets", None).await;
        assert_eq!(page.status, 404, "there is no list of wallets");
        for path in [
            "/budgets",
            "/runs",
            "/connections",
            "/meters",
            "/spend_keys",
            "/webhooks",
            "/requests",
            "/refusals",
            "/secret_keys",
        ] {
            for theirs in [text(
                &one.ask(gateway, "GET", &format!("{path}?limit=1"), None).await.json(),
                "next_cursor",
            )] {
                let path = format!("{path}?cursor={theirs}");
                let shown = other.ask(gateway, "GET", &path, None).await;
                assert!(!shown.text().contains("Alpha"), "{path}: {}", shown.text());
            }
        }
    });
}

#[test]
fn an_id_of_another_merchants_in_a_body_is_one_that_never_was() {
    each_pair(async |gateway, one, other| {
        let nobody = Tenant::nobody(&other.key);
        let before = one.everything(gateway).await;
        let own = |noun: &str| other.id(noun).to_owned();
        type BodyBuilder<'a> = Box<dyn Fn(&Tenant) -> Value + 'a>;
        let usage = json!({"input_tokens": 1});
        let cases: Vec<(&str, String, BodyBuilder<'_>)> = vec![
            (
                "POST",
                "/spend_keys".into(),
                Box::new(|of| json!({"name": "K", "wallet_id": of.id("wallets")})),
            ),
            (
                "POST",
                "/spend_keys".into(),
                Box::new(|of| json!({"name": "K", "meter_id": of.id("meters")})),
            ),
            (
                "PUT",
                format!("/spend_keys/{}", own("spend_keys")),
                Box::new(|of| json!({"meter_id": of.id("meters")})),
            ),
            (
                "POST",
                "/spend_keys".into(),
                Box::new(|of| json!({"name": "K", "budget_id": of.id("budgets")})),
            ),
            (
                "PUT",
                format!("/spend_keys/{}", own("spend_keys")),
                Box::new(|of| json!({"budget_id": of.id("budgets")})),
            ),
            (
                "POST",
                "/connections".into(),
                Box::new(|of| json!({"name": "C", "budget_id": of.id("budgets")})),
            ),
            (
                "PATCH",
                format!("/connections/{}", own("connections")),
                Box::new(|of| json!({"budget_id": of.id("budgets")})),
            ),
            (
                "POST",
                "/budgets".into(),
                Box::new(|of| json!({"name": "B", "parent_id": of.id("budgets")})),
            ),
            (
                "POST",
                "/subscriptions".into(),
                Box::new(|of| {
                    json!({
                "connection_id": of.id("connections"), "subscription_config_id": own("subscription_configs")})
                }),
            ),
            (
                "POST",
                "/subscriptions".into(),
                Box::new(|of| {
                    json!({
                "connection_id": own("connections"), "subscription_config_id": of.id("subscription_configs")})
                }),
            ),
            (
                "POST",
                format!("/subscriptions/{}/change", own("subscriptions")),
                Box::new(|of| {
                    json!({
                "subscription_config_id": of.id("subscription_configs")})
                }),
            ),
            (
                "POST",
                format!("/subscriptions/{}/bundles", own("subscriptions")),
                Box::new(|of| {
                    json!({
                "credit_bundle_id": of.id("credit_bundles")})
                }),
            ),
            (
                "POST",
                "/subscription_configs".into(),
                Box::new(|of| {
                    json!({
                "name": "C", "period_amount": "1", "billing_interval": "month", "product_ids": [of.id("meters")]})
                }),
            ),
            (
                "PATCH",
                format!("/subscription_configs/{}", own("subscription_configs")),
                Box::new(|of| {
                    json!({
                "product_ids": [of.id("meters")]})
                }),
            ),
            (
                "PATCH",
                format!("/subscription_configs/{}", own("subscription_configs")),
                Box::new(|of| {
                    json!({
                "credit_bundles": [{"credit_bundle_id": of.id("credit_bundles"), "name": "Taken"}]})
                }),
            ),
            (
                "PATCH",
                format!("/subscription_configs/{}", own("subscription_configs")),
                Box::new(|of| {
                    json!({
                "credit_bundles": [{"credit_bundle_id": of.id("credit_bundles"), "is_deleted": true}]})
                }),
            ),
            (
                "POST",
                "/requests".into(),
                Box::new(|of| {
                    json!({
                "request_id": "r-1", "connection_id": of.id("connections"), "meter_slug": other.meter_slug, "input_tokens": 1})
                }),
            ),
            (
                "POST",
                "/requests".into(),
                Box::new(|of| {
                    json!({
                "request_id": "r-2", "connection_id": own("connections"), "meter_slug": of.meter_slug, "input_tokens": 1})
                }),
            ),
            (
                "POST",
                "/quote".into(),
                Box::new(|of| {
                    json!({
                "meter_id": of.id("meters"), "provider": "house", "model": "m-1", "usage": usage})
                }),
            ),
            (
                "POST",
                "/quote".into(),
                Box::new(|of| {
                    json!({
                "connection_id": of.id("connections"), "meter_id": own("meters"), "provider": "house", "model": "m-1", "usage": usage})
                }),
            ),
        ];
        for (method, path, body) in &cases {
            let what = format!("{method} {path} {}", body(one));
            let ask = async |of: &Tenant| other.ask(gateway, method, path, Some(&body(of))).await;
            assert_alike(&what, &ask(one).await, &ask(&nobody).await);
        }
        for (method, path, body) in &cases {
            let own = other.ask(gateway, method, path, Some(&body(other))).await;
            let is_valid = own.status < 300 || own.error() == "subscription_exists";
            assert!(is_valid, "{method} {path} of one's own: {}", own.text());
        }
        let calls = gateway.provider.calls();
        let token = |connection: &str, slug: &str| {
            let token =
                json!({"secret_key": other.key, "connection_id": connection, "meter_slug": slug});
            STANDARD.encode(token.to_string())
        };
        let u = gateway.provider.url("/v1/chat/completions");
        let forward = async |connection: &str, slug: &str| {
            gateway.forward_to(&u).bearer(&token(connection, slug)).json(&chat_body()).send().await
        };
        let connection = |of: &Tenant| of.id("connections").to_owned();
        let theirs = forward(&connection(one), &other.meter_slug).await;
        assert_alike(
            "a call of another's connection",
            &theirs,
            &forward(&connection(&nobody), &other.meter_slug).await,
        );
        let theirs = forward(&connection(other), &one.meter_slug).await;
        assert_alike(
            "a call under another's meter",
            &theirs,
            &forward(&connection(other), &nobody.meter_slug).await,
        );
        assert_eq!(gateway.provider.calls(), calls, "neither was sent");
        forward(&connection(other), &other.meter_slug).await.expect(200);
        assert_eq!(one.everything(gateway).await, before, "nothing has changed");
    });
}

#[test]
fn names_that_merchants_choose_are_their_own() {
    each_pair(async |gateway, one, other| {
        // The same reference names another connection, and the same slug another meter.
        let reference = json!({"reference_id": one.reference_id});
        let made = other.ask(gateway, "POST", "/connections", Some(&reference)).await.expect(201);
        assert_ne!(text(&made, "connection_id"), one.id("connections"));
        assert_eq!(made["name"], Value::Null);
        let meter = json!({"name": "M", "meter_slug": one.meter_slug, "rate_type": "fixed",
                           "tier_type": "requests", "tiers": [{"start": "0", "rate": "1"}]});
        let made = other.ask(gateway, "POST", "/meters", Some(&meter)).await.expect(201);
        assert_ne!(text(&made, "meter_id"), one.id("meters"));
        // A request id finds only the caller's own record.
        let report = async |of: &Tenant| {
            let used = json!({"request_id": "order-1", "connection_id": of.id("connections"),
                              "meter_slug": of.meter_slug, "input_tokens": 1});
            let made = of.ask(gateway, "POST", "/requests", Some(&used)).await;
            assert!(made.status < 300, "{}", made.text());
            text(&of.ask(gateway, "GET", "/requests/order-1", None).await.expect(200), "request_id")
        };
        let first = report(one).await;
        let missing = other.ask(gateway, "GET", "/requests/order-1", None).await;
        support::assert_refused(&missing, 404, "request_not_found");
        assert_ne!(report(other).await, first);
        // An idempotency key, too, returns only the caller's own answer.
        let name = |of: &Tenant| {
            let call = gateway.call_without_key("POST", "/connections").bearer(&of.key);
            call.header("idempotency-key", "key-1").json(&json!({"name": "Same"}))
        };
        let (first, second) =
            (name(one).send().await.expect(201), name(other).send().await.expect(201));
        assert_ne!(text(&first, "connection_id"), text(&second, "connection_id"));
        assert_eq!(
            text(&name(one).send().await.expect(201), "connection_id"),
            text(&first, "connection_id")
        );
    });
}

#[test]
fn no_page_of_the_dashboard_shows_or_changes_what_is_another_merchants() {
    each_pair(async |gateway, one, other| {
        let nobody = Tenant::nobody(&other.key);
        let browser = Browser::sign_in(gateway, &other.key).await;
        let owner = Browser::sign_in(gateway, &one.key).await;
        let before = one.everything(gateway).await;
        let path = |page: &str, of: &Tenant| {
            let route = page.replace("-keys", "_keys").replace("{id:.+}", "{id}");
            // Pages have the words of people.
            let names = [("/plans", "/subscription_configs"), ("/customers", "/connections")];
            let route = names.iter().fold(route, |route, (page, noun)| route.replace(page, noun));
            let path = of.path(&route, of).replace("spend_keys", "spend-keys");
            names.iter().fold(path, |path, (page, noun)| path.replace(noun, page))
        };
        let hides = |what: &str, shown: &str| {
            for theirs in one.ids.values().chain([&one.meter_slug, &one.reference_id]) {
                assert!(!shown.contains(theirs.as_str()), "{theirs} in {what}: {shown}");
            }
            assert!(!shown.contains("Alpha"), "{what}: {shown}");
        };
        let mut with_id = 0;
        for (method, page) in pages() {
            let what = format!("{method} {page}");
            // A secret is shown only after it was made.
            if ["/sign-in", "/sign-out", "/secret"].contains(&page) {
                continue;
            }
            if !page.contains("{id") {
                if method == "GET" {
                    hides(&what, &browser.show(page).await);
                    owner.show(page).await;
                }
                continue;
            }
            with_id += 1;
            let ask = async |path: String| match method {
                "GET" => browser.get(&path).await,
                _ => browser.send(&path, &[]).await,
            };
            let theirs = ask(path(page, one)).await;
            assert_alike(&what, &theirs, &ask(path(page, &nobody)).await);
            assert_eq!(theirs.status, 404, "{what}: {}", theirs.text());
            // A new key is shown once, only to the browser that created it.
            if method == "GET" && !page.ends_with("/key") {
                let shown = owner.show(&path(page, one)).await;
                assert!(
                    shown.contains("Alpha")
                        || page.contains("requests")
                        || page.contains("refusals")
                        || page.contains("sockets"),
                    "{what}: {shown}"
                );
            }
        }
        assert!(with_id >= 11, "{with_id}");
        for filter in [
            format!("/requests?connection_id={}", one.id("connections")),
            format!("/requests?meter_id={}", one.id("meters")),
            format!("/requests/{}", one.reference_id),
            format!("/requests?after={}", one.id("requests")),
            format!("/usage?by=connection&range=24h&connection_id={}", one.id("connections")),
            format!(
                "/meters/{}?input=1&connection_id={}",
                other.id("meters"),
                one.id("connections")
            ),
        ] {
            let answer = browser.get(&filter).await;
            // The page shows the filter as it was entered.
            let shown =
                answer.text().replace(one.id("connections"), "").replace(one.id("meters"), "");
            hides(&filter, &shown);
        }
        let (config, bundle) = (other.id("subscription_configs"), other.id("credit_bundles"));
        for (operation, noun, field, value) in [
            ("updateConnection", "connections", "name", "Taken"),
            ("deleteConnection", "connections", "", ""),
            ("creditWallet", "wallets", "amount", "1"),
            ("debitWallet", "wallets", "amount", "1"),
            ("updateWallet", "wallets", "low_balance_threshold", "1"),
            ("updateSubscriptionConfig", "subscription_configs", "name", "Taken"),
            ("deleteSubscriptionConfig", "subscription_configs", "", ""),
            ("changeSubscription", "subscriptions", "subscription_config_id", config),
            ("buyCreditBundle", "subscriptions", "credit_bundle_id", bundle),
            ("cancelSubscription", "subscriptions", "", ""),
            ("updateMeter", "meters", "name", "Taken"),
            ("deleteMeter", "meters", "", ""),
            ("updateSpendKey", "spend_keys", "name", "Taken"),
            ("deleteSpendKey", "spend_keys", "", ""),
            ("deleteSecretKey", "secret_keys", "", ""),
            ("updateWebhook", "webhooks", "name", "Taken"),
            ("testWebhook", "webhooks", "", ""),
            ("rotateWebhook", "webhooks", "", ""),
            ("deleteWebhook", "webhooks", "", ""),
        ] {
            let fields = [("_id", one.id(noun)), (field, value)];
            let fields = if field.is_empty() { &fields[..1] } else { &fields[..] };
            let answer = browser.send(&format!("/actions/{operation}"), fields).await;
            assert_eq!(answer.status, 404, "{operation}: {}", answer.text());
        }
        let wallet = [("name", "Taken"), ("wallet_id", one.id("wallets"))];
        assert_eq!(browser.send("/spend-keys", &wallet).await.status, 400);
        assert_eq!(one.everything(gateway).await, before, "nothing has changed");
    });
}
