//! The operations of this service itself: their answers, and their errors of invalid input.

use serde_json::{Value, json};
use tollgate_testkit::ScriptedResponse;

use crate::support::{
    self, Gateway, OPERATOR_TOKEN, assert_refused, chat_answer, each_gateway, each_gateway_with,
    settings,
};

fn meter() -> Value {
    json!({
        "name": "Standard Plan", "rate_type": "fixed", "tier_type": "tokens_1m",
        "tiers": [{"start": "0", "rate": "5"}, {"start": "1000000", "rate": "3.50"}]
    })
}

#[test]
fn a_meter_is_made_read_changed_listed_and_deleted() {
    each_gateway(async |gateway| {
        let made = gateway.post("/meters", &meter()).await.expect(201);
        let id = made["meter_id"].as_str().unwrap().to_owned();
        assert!(made["meter_slug"].as_str().unwrap().starts_with("standard-plan-"));
        assert_eq!(
            made,
            json!({
                "meter_id": id, "meter_slug": made["meter_slug"], "name": "Standard Plan", "rate_type": "fixed",
                "token_basis": "input+output", "base_cost_payer": "wallet", "service_charge_payer": "wallet",
                "tier_period": "lifetime", "created_at": made["created_at"],
                "tiers": [{"start": 0, "rate": "5", "type": "tokens_1m"}, {"start": 1_000_000, "rate": "3.5", "type": "tokens_1m"}]
            })
        );
        assert_eq!(gateway.get(&format!("/meters/{id}")).await.expect(200), made);

        // A resource can be sent back with changes.
        let mut changed = made.clone();
        changed["name"] = json!("Renamed");
        changed["base_cost_payer"] = json!("merchant");
        let patched =
            gateway.call("PATCH", &format!("/meters/{id}")).json(&changed).send().await.expect(200);
        assert_eq!(patched, changed);

        let for_good = json!({"rate_type": "percentage", "tier_type": "minutes", "meter_slug": "x", "tier_period": "month"});
        let refused = gateway.call("PATCH", &format!("/meters/{id}")).json(&for_good).send().await;
        assert_eq!(refused.error(), "validation_failed");
        assert_eq!(refused.issue_paths(), ["meter_slug", "rate_type", "tier_type", "tier_period"]);

        let list = gateway.get("/meters").await.expect(200);
        assert_eq!(list["data"][0], changed);
        let deleted = gateway.call("DELETE", &format!("/meters/{id}")).send().await.expect(200);
        assert_eq!(deleted, json!({"id": id, "deleted": true}));
        assert_eq!(gateway.get(&format!("/meters/{id}")).await.error(), "meter_not_found");
        assert_eq!(gateway.get("/meters").await.expect(200)["data"].as_array().unwrap().len(), 1);
    });
}

#[test]
fn every_bad_field_of_a_meter_is_named() {
    each_gateway(async |gateway| {
        let long = "x".repeat(256);
        for (field, value, path) in [
            ("name", json!(null), "name"),
            ("name", json!(""), "name"),
            ("name", json!(long), "name"),
            ("rate_type", json!("free"), "rate_type"),
            ("rate_type", json!(1), "rate_type"),
            ("tier_type", json!("tokens"), "tier_type"),
            ("tiers", json!([]), "tiers"),
            ("tiers", json!("x"), "tiers"),
            ("tiers", json!([{"start": "1", "rate": "1"}]), "tiers.0.start"),
            (
                "tiers",
                json!([{"start": "0", "rate": "1"}, {"start": "0", "rate": "1"}]),
                "tiers.1.start",
            ),
            ("tiers", json!([{"start": "-1", "rate": "1"}]), "tiers.0.start"),
            ("tiers", json!([{"start": "1.5", "rate": "1"}]), "tiers.0.start"),
            ("tiers", json!([{"start": "0", "rate": "-1"}]), "tiers.0.rate"),
            ("tiers", json!([{"start": "0", "rate": "1e3"}]), "tiers.0.rate"),
            ("tiers", json!([{"start": "0", "rate": 1}]), "tiers.0.rate"),
            ("tiers", json!([{"start": "0"}]), "tiers.0.rate"),
            ("tiers", json!([{"start": "0", "rate": "1", "colour": 1}]), "tiers.0.colour"),
            ("meter_slug", json!("Has Spaces"), "meter_slug"),
            ("tier_period", json!("week"), "tier_period"),
            ("token_basis", json!("input"), "token_basis"),
            ("base_cost_payer", json!("nobody"), "base_cost_payer"),
            ("service_charge_payer", json!(true), "service_charge_payer"),
            ("colour", json!("blue"), "colour"),
        ] {
            let mut body = meter();
            body[field] = value;
            let answer = gateway.post("/meters", &body).await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (400, "validation_failed"),
                "{body}"
            );
            assert_eq!(answer.issue_paths(), [path], "{body}");
        }
        let mut two = meter();
        two["name"] = json!("");
        two["tiers"] = json!([{"start": "5", "rate": "1"}, {"start": "5", "rate": "1"}]);
        let paths = gateway.post("/meters", &two).await.issue_paths();
        assert_eq!(paths, ["name", "tiers.0.start", "tiers.1.start"]);
        let all = gateway
            .post("/meters", &json!({"name": 1, "tiers": [{"rate": "x"}], "colour": 1}))
            .await;
        let mut paths = all.issue_paths();
        paths.sort();
        assert_eq!(
            paths,
            ["colour", "name", "rate_type", "tier_type", "tiers.0.rate", "tiers.0.start"]
        );
    });
}

#[test]
fn a_taken_slug_is_a_conflict() {
    each_gateway(async |gateway| {
        let mut body = meter();
        body["meter_slug"] = json!("plan");
        gateway.post("/meters", &body).await.expect(201);
        let answer = gateway.post("/meters", &body).await;
        assert_eq!((answer.status, answer.error().as_str()), (409, "meter_slug_taken"));
    });
}

#[test]
fn connections_are_made_once_per_reference_changed_and_softly_deleted() {
    each_gateway(async |gateway| {
        let body = json!({"reference_id": "cust-1", "name": "Ada", "email": "ada@example.com", "metadata": {"plan": "gold"}});
        let made = gateway.post("/connections", &body).await.expect(201);
        let id = made["connection_id"].as_str().unwrap().to_owned();
        assert_eq!(made["status"], "active");
        let again =
            gateway.post("/connections", &json!({"reference_id": "cust-1", "name": "Other"})).await;
        assert_eq!(again.expect(200), made);

        let path = format!("/connections/{id}");
        let mut sent_back = made.clone();
        sent_back["name"] = json!(null);
        let changed = gateway.call("PATCH", &path).json(&sent_back).send().await.expect(200);
        assert_eq!(
            (&changed["name"], &changed["email"]),
            (&json!(null), &json!("ada@example.com"))
        );

        gateway.call("DELETE", &path).send().await.expect(200);
        assert_eq!(gateway.get(&path).await.expect(200)["status"], "deleted");
        let listed = gateway.get("/connections").await.expect(200);
        assert!(
            listed["data"].as_array().unwrap().iter().all(|one| one["connection_id"] != json!(id))
        );
        assert_eq!(gateway.call("DELETE", &path).send().await.error(), "connection_not_found");
        assert_eq!(
            gateway.call("PATCH", &path).json(&json!({})).send().await.error(),
            "connection_not_found"
        );
        let renewed =
            gateway.post("/connections", &json!({"reference_id": "cust-1"})).await.expect(201);
        assert_ne!(renewed["connection_id"], json!(id));

        let bad = json!({"metadata": {"a-b": "x", "n": 1}, "name": 1, "email": "", "colour": 1});
        let mut paths = gateway.post("/connections", &bad).await.issue_paths();
        paths.sort();
        assert_eq!(paths, ["colour", "email", "metadata.a-b", "metadata.n", "name"]);
    });
}

#[test]
fn wallets_are_credited_debited_limited_and_listed() {
    each_gateway(async |gateway| {
        let id = gateway.connection.wallet_id.to_string();
        let path = format!("/wallets/{id}");
        let credit = json!({"amount": "2.5", "description": "Gift"});
        let booked = gateway.post(&format!("{path}/credits"), &credit).await.expect(201);
        assert_eq!(
            (&booked["kind"], &booked["amount"]),
            (&json!("credit"), &json!("2.5000000000"))
        );
        let debit =
            gateway.post(&format!("{path}/debits"), &json!({"amount": "1"})).await.expect(201);
        assert_eq!(
            (&debit["amount"], &debit["balance_after"]),
            (&json!("-1.0000000000"), &json!("11.5000000000"))
        );

        let limits = json!({"overdraft_limit": "5", "low_balance_threshold": "2"});
        let wallet = gateway.call("PATCH", &path).json(&limits).send().await.expect(200);
        assert_eq!(
            wallet,
            json!({
                "wallet_id": id, "balance": "11.5000000000", "held": "0.0000000000", "available": "16.5000000000",
                "overdraft_limit": "5.0000000000", "low_balance_threshold": "2.0000000000", "created_at": wallet["created_at"]
            })
        );
        let cleared = gateway
            .call("PATCH", &path)
            .json(&json!({"overdraft_limit": null}))
            .send()
            .await
            .expect(200);
        assert_eq!(
            (&cleared["overdraft_limit"], &cleared["low_balance_threshold"]),
            (&json!(null), &json!("2.0000000000"))
        );
        assert_eq!(gateway.get("/wallet").await.expect(200)["overdraft_limit"], json!(null));

        let list = gateway.get(&format!("{path}/transactions")).await.expect(200);
        let kinds: Vec<_> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["kind"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["debit", "credit", "credit"]);

        for (body, path_of_issue) in [
            (json!({}), "amount"),
            (json!({"amount": "0"}), "amount"),
            (json!({"amount": "-1"}), "amount"),
            (json!({"amount": 1}), "amount"),
            (json!({"amount": "0.00000000001"}), "amount"),
            (json!({"amount": "922337203"}), "amount"),
            (json!({"amount": "1", "description": 1}), "description"),
        ] {
            let answer = gateway.post(&format!("{path}/credits"), &body).await;
            assert_eq!(
                (answer.error().as_str(), answer.issue_paths()),
                ("validation_failed", vec![path_of_issue.to_owned()]),
                "{body}"
            );
        }
        let twice = gateway
            .call("POST", &format!("{path}/credits"))
            .bytes("application/json", br#"{"amount":"1","amount":"5"}"#)
            .send()
            .await;
        assert_eq!(twice.issue_paths(), ["amount"]);
        let negative =
            gateway.call("PATCH", &path).json(&json!({"overdraft_limit": "-1"})).send().await;
        assert_eq!(negative.issue_paths(), ["overdraft_limit"]);
    });
}

#[test]
fn secret_keys_are_shown_once_and_the_last_one_stays() {
    each_gateway(async |gateway| {
        let made = gateway.post("/secret_keys", &json!({"name": "ci"})).await.expect(201);
        let key = made["secret_key"].as_str().unwrap();
        assert_eq!(made["key_preview"], json!(format!("{}****", &key[..12])));
        let list = gateway.get("/secret_keys").await.expect(200);
        let keys = list["data"].as_array().unwrap();
        assert_eq!(keys.len(), 2);
        assert!(keys.iter().all(|one| one.get("secret_key").is_none()));

        let path = |place: usize| {
            format!("/secret_keys/{}", keys[place]["secret_key_id"].as_str().unwrap())
        };
        let deleted = gateway.call("DELETE", &path(0)).send().await.expect(200);
        assert_eq!(deleted, json!({"id": keys[0]["secret_key_id"], "deleted": true}));
        let again = gateway.call("DELETE", &path(0)).send().await;
        assert_eq!((again.status, again.error().as_str()), (404, "secret_key_not_found"));
        let last = gateway.call("DELETE", &path(1)).send().await;
        assert_eq!((last.status, last.error().as_str()), (409, "last_secret_key"));
        let by_deleted = gateway.call_without_key("GET", "/meters").bearer(key).send().await;
        assert_eq!(by_deleted.error(), "auth_invalid");
    });
}

#[test]
fn the_operator_makes_and_lists_merchants() {
    each_gateway(async |gateway| {
        let operator = |method: &str| {
            gateway.call_without_key(method, "/operator/merchants").bearer(OPERATOR_TOKEN)
        };
        let made = operator("POST").json(&json!({"name": "Globex"})).send().await.expect(201);
        let mut names: Vec<_> = made.as_object().unwrap().keys().cloned().collect();
        names.sort();
        assert_eq!(names, ["created_at", "merchant_id", "name", "secret_key", "wallet_id"]);
        let key = made["secret_key"].as_str().unwrap();
        let wallet =
            gateway.call_without_key("GET", "/wallet").bearer(key).send().await.expect(200);
        assert_eq!(wallet["wallet_id"], made["wallet_id"]);
        let list = operator("GET").send().await.expect(200);
        assert_eq!(list["data"].as_array().unwrap().len(), 2);
        assert_eq!(list["data"][0].get("secret_key"), None);

        assert_eq!(gateway.get("/operator/merchants").await.error(), "auth_invalid");
        let on_merchants_route =
            gateway.call_without_key("GET", "/meters").bearer(OPERATOR_TOKEN).send().await;
        assert_eq!(on_merchants_route.error(), "auth_invalid");
        assert_eq!(operator("POST").json(&json!({})).send().await.issue_paths(), ["name"]);
    });
}

#[test]
fn the_operators_routes_take_nothing_but_the_whole_token_and_are_not_there_without_one() {
    let routes = ["GET", "POST"];
    each_gateway(async |gateway| {
        let longer = format!("{OPERATOR_TOKEN}x");
        let upper = OPERATOR_TOKEN.to_uppercase();
        let wrong =
            [&OPERATOR_TOKEN[1..], &OPERATOR_TOKEN[..5], &longer, &upper, "x", gateway.key()];
        for method in routes {
            let call = || gateway.call_without_key(method, "/operator/merchants");
            for token in wrong {
                assert_refused(&call().bearer(token).send().await, 401, "auth_invalid");
            }
            assert_refused(&call().send().await, 401, "auth_header_missing");
            // The token is accepted in one header only.
            let elsewhere = call().header("x-api-key", OPERATOR_TOKEN).send().await;
            assert_refused(&elsewhere, 401, "auth_header_missing");
        }
    });
    let off = tollgate_api::Settings { operator_token: None, ..settings() };
    each_gateway_with(off, async |gateway| {
        for method in routes {
            let call = || gateway.call_without_key(method, "/operator/merchants");
            for call in [call(), call().bearer(OPERATOR_TOKEN), call().bearer(gateway.key())] {
                assert_refused(&call.send().await, 404, "route_not_found");
            }
        }
    });
}

#[test]
fn lists_are_newest_first_and_seen_exactly_once_while_rows_come_in() {
    each_gateway(async |gateway| {
        for number in 0..7 {
            gateway.post("/connections", &json!({"name": format!("c{number}")})).await.expect(201);
        }
        let before = gateway.get("/connections?limit=100").await.expect(200);
        let expected: Vec<_> = before["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["connection_id"].clone())
            .collect();
        let mut seen = Vec::new();
        let mut cursor = String::new();
        loop {
            let page =
                gateway.get(&format!("/connections?limit=3&cursor={cursor}")).await.expect(200);
            seen.extend(
                page["data"].as_array().unwrap().iter().map(|one| one["connection_id"].clone()),
            );
            gateway.post("/connections", &json!({})).await.expect(201);
            if page["has_more"] == json!(false) {
                assert_eq!(page["next_cursor"], "");
                break;
            }
            cursor = page["next_cursor"].as_str().unwrap().to_owned();
        }
        assert_eq!(seen, expected);

        for query in ["limit=0", "limit=101", "limit=x", "limit="] {
            let answer = gateway.get(&format!("/connections?{query}")).await;
            assert_eq!(
                (answer.error().as_str(), answer.issue_paths()),
                ("validation_failed", vec!["limit".to_owned()]),
                "{query}"
            );
        }
        for cursor in ["nonsense", "!", "bXRyXzE"] {
            assert_eq!(
                gateway.get(&format!("/connections?cursor={cursor}")).await.error(),
                "cursor_invalid"
            );
        }
        let unknown = gateway.get("/meters?limits=1").await;
        assert_eq!((unknown.status, unknown.issue_paths()), (400, vec!["limits".to_owned()]));
        assert!(unknown.text().contains("did you mean limit?"), "{}", unknown.text());
    });
}

#[test]
fn records_are_filtered_by_connection_meter_and_metadata() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        for metadata in
            [r#"{"user":"ada","team":"x"}"#, r#"{"user":"ada","team":"y"}"#, r#"{"user":"bob"}"#]
        {
            gateway.chat().header("x-service-metadata", metadata).send().await.expect(200);
        }
        let bare =
            gateway.forward_to(&gateway.provider.url("/v1/chat/completions")).bearer(gateway.key());
        bare.json(&support::chat_body()).send().await.expect(200);

        let count = async |query: String| {
            let list = gateway.get(&format!("/requests?limit=100&{query}")).await.expect(200);
            list["data"].as_array().unwrap().len()
        };
        let filter = |pairs: &Value| {
            let encoded: String =
                url::form_urlencoded::byte_serialize(pairs.to_string().as_bytes()).collect();
            format!("metadata_filters={encoded}")
        };
        let connection = gateway.connection.connection_id;
        assert_eq!(count(String::new()).await, 4);
        assert_eq!(count(format!("connection_id={connection}")).await, 3);
        assert_eq!(count(format!("customer_id={connection}")).await, 3);
        assert_eq!(count(format!("meter_id={}", gateway.meter.meter_id)).await, 3);
        assert_eq!(count(filter(&json!([["user", "ada"]]))).await, 2);
        assert_eq!(count(filter(&json!([["user", "ada"], ["team", "y"]]))).await, 1);
        assert_eq!(count(filter(&json!([["user", "nobody"]]))).await, 0);

        for (query, path) in [
            ("connection_id=x".to_owned(), "connection_id"),
            ("meter_id=con_x".to_owned(), "meter_id"),
            ("metadata_filters=x".to_owned(), "metadata_filters"),
            (filter(&json!([["a"]])), "metadata_filters.0"),
            (filter(&json!([["a", 1]])), "metadata_filters.0"),
            (filter(&json!([["ok", "x"], ["a-b", "x"]])), "metadata_filters.1.0"),
        ] {
            assert_eq!(gateway.get(&format!("/requests?{query}")).await.issue_paths(), [path]);
        }
        let all = gateway.get("/requests?limit=0&cursor=zz&meter_id=x&metadata_filters=[1]").await;
        assert_eq!(all.issue_paths(), ["meter_id", "metadata_filters.0", "limit", "cursor"]);
        assert_eq!(gateway.get("/requests/req_x").await.error(), "request_not_found");
    });
}

#[test]
fn an_operation_sent_twice_is_done_once() {
    each_gateway(async |gateway| {
        let path = format!("/wallets/{}/credits", gateway.connection.wallet_id);
        let credit = |key: &str, amount: &str| {
            gateway
                .call("POST", &path)
                .header("idempotency-key", key)
                .json(&json!({"amount": amount}))
        };
        let (one, two) = (credit("k1", "1"), credit("k1", "1"));
        let at_once = tokio::join!(one.send(), two.send());
        let first = at_once.0.expect(201);
        assert_eq!(at_once.1.expect(201), first);
        assert_eq!(credit("k1", "1").send().await.expect(201), first);
        assert_eq!(gateway.wallet().await.0, "11.0000000000");

        let reused = credit("k1", "2").send().await;
        assert_eq!((reused.status, reused.error().as_str()), (409, "idempotency_key_reused"));
        assert_eq!(credit("", "1").send().await.issue_paths(), ["idempotency-key"]);
        // A failed request can be repeated with the same key.
        assert_eq!(credit("k2", "0").send().await.status, 400);
        credit("k2", "1").send().await.expect(201);

        let key = || {
            gateway
                .call("POST", "/secret_keys")
                .header("idempotency-key", "k3")
                .json(&json!({"name": "x"}))
        };
        let shown = key().send().await.expect(201);
        let again = key().send().await.expect(201);
        assert!(shown["secret_key"].is_string());
        assert_eq!(again.get("secret_key"), None);
        assert_eq!(again["secret_key_id"], shown["secret_key_id"]);
    });
}

#[test]
fn what_is_another_merchants_is_not_there() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        let request = gateway.record().await["request_id"].as_str().unwrap().to_owned();
        let stranger = gateway.store.merchant().await;
        let paths = [
            ("GET", format!("/meters/{}", gateway.meter.meter_id)),
            ("PATCH", format!("/meters/{}", gateway.meter.meter_id)),
            ("DELETE", format!("/meters/{}", gateway.meter.meter_id)),
            ("GET", format!("/connections/{}", gateway.connection.connection_id)),
            ("PATCH", format!("/connections/{}", gateway.connection.connection_id)),
            ("DELETE", format!("/connections/{}", gateway.connection.connection_id)),
            ("GET", format!("/wallets/{}", gateway.connection.wallet_id)),
            ("PATCH", format!("/wallets/{}", gateway.connection.wallet_id)),
            ("GET", format!("/wallets/{}/transactions", gateway.connection.wallet_id)),
            ("GET", format!("/requests/{request}")),
        ];
        for (method, path) in paths {
            let answer = gateway
                .call_without_key(method, &path)
                .bearer(stranger.key.reveal())
                .json(&json!({}))
                .send()
                .await;
            assert_eq!(answer.status, 404, "{method} {path}");
            assert!(answer.error().ends_with("_not_found"));
        }
        let credit = gateway.call_without_key(
            "POST",
            &format!("/wallets/{}/credits", gateway.connection.wallet_id),
        );
        let answer =
            credit.bearer(stranger.key.reveal()).json(&json!({"amount": "1"})).send().await;
        assert_eq!(answer.error(), "wallet_not_found");
    });
}

async fn refused(
    gateway: &Gateway<'_>,
    method: &str,
    path: &str,
    content_type: &str,
    body: &[u8],
) -> (u16, String) {
    let answer = gateway.call(method, path).bytes(content_type, body).send().await;
    (answer.status, answer.error())
}

#[test]
fn whatever_goes_wrong_is_said_in_the_envelope() {
    each_gateway(async |gateway| {
        let json = "application/json";
        assert_eq!(
            refused(gateway, "GET", "/nowhere", json, b"").await,
            (404, "route_not_found".to_owned())
        );
        assert_eq!(
            refused(gateway, "PUT", "/meters", json, b"").await,
            (405, "method_not_allowed".to_owned())
        );
        assert_eq!(
            refused(gateway, "PATCH", "/forward", json, b"").await,
            (405, "method_not_allowed".to_owned())
        );
        assert_eq!(
            refused(gateway, "POST", "/meters", json, b"{").await,
            (400, "json_invalid".to_owned())
        );
        assert_eq!(
            refused(gateway, "POST", "/meters", json, b"\xff").await,
            (400, "json_invalid".to_owned())
        );
        assert_eq!(
            refused(gateway, "POST", "/meters", json, b"[]").await,
            (400, "validation_failed".to_owned())
        );
        assert_eq!(
            refused(gateway, "POST", "/meters", json, b"").await,
            (400, "validation_failed".to_owned())
        );
        assert_eq!(
            refused(gateway, "POST", "/meters", "text/plain", b"{}").await,
            (415, "content_type_unsupported".to_owned())
        );
        let large = vec![b' '; 1024 * 1024 + 1];
        assert_eq!(
            refused(gateway, "POST", "/meters", json, &large).await,
            (413, "body_too_large".to_owned())
        );
        let unauthorised =
            gateway.call_without_key("POST", "/meters").bytes(json, &large).send().await;
        assert_eq!(unauthorised.error(), "auth_header_missing");
        let health = gateway.call_without_key("GET", "/../healthz").send().await;
        assert_eq!(health.status, 404, "paths are not tidied up");
    });
}

#[test]
fn a_key_has_its_standard_rate() {
    let slow = tollgate_api::Settings { standard_rate_per_minute: 2, ..settings() };
    each_gateway_with(slow, async |gateway| {
        assert_eq!(gateway.get("/meters").await.status, 200);
        assert_eq!(gateway.get("/meters").await.status, 200);
        let third = gateway.get("/meters").await;
        assert_eq!((third.status, third.error().as_str()), (429, "rate_limited"));
        let wait: u32 = third.header("retry-after").unwrap().parse().unwrap();
        assert!((29..=30).contains(&wait), "{wait}");
        assert_eq!(third.header("x-ratelimit-limit"), Some("2"));
        assert_eq!(third.header("x-ratelimit-remaining"), Some("0"));
        assert!(third.header("x-ratelimit-reset").is_some_and(|at| at.ends_with('Z')));
    });
}

#[test]
fn the_earlier_shape_shows_the_same_records_under_its_names() {
    let earlier =
        tollgate_api::Settings { shape: tollgate_api::InterfaceShape::Earlier, ..settings() };
    each_gateway_with(earlier, async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        let record = gateway.record().await;
        assert_eq!(record["customer_id"], json!(gateway.connection.connection_id.to_string()));
        assert_eq!(record["cost"], "0.0020000000");
        assert_eq!(record["charge"]["amount"], "0.0150000000");
        for absent in [
            "connection_id",
            "fee",
            "service_charge",
            "total_request_cost",
            "total_wallet_cost",
            "total_merchant_cost",
        ] {
            assert_eq!(record.get(absent), None, "{absent}");
        }
        assert_eq!(record["model_usage"].get("payer"), None);
        assert_eq!(record["charge"].get("token_basis"), None);
        let meter = gateway.post("/meters", &meter()).await.expect(201);
        let mut names: Vec<_> = meter.as_object().unwrap().keys().cloned().collect();
        names.sort();
        assert_eq!(names, ["created_at", "meter_id", "meter_slug", "name", "rate_type", "tiers"]);
    });
}
