//! The API of spend keys: the resource, the calls that a key allows, and the refusals of others.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_gateway::{CallSettings, UnpricedPolicy};
use tollgate_testkit::{Gate, ScriptedResponse, TestRequest, TestResponse};

use crate::support::{
    Gateway, TestSpendKey, chat_answer, chat_body, each_gateway, each_gateway_by_the_stores_clock,
    each_gateway_with, settings,
};

const NOTHING: &str = "0.0000000000";
/// The cost of `chat_answer` without a meter, and with the meter of the gateway.
const USED: &str = "0.0020000000";
const USED_UNDER_METER: &str = "0.0170000000";

/// A chat call with this key.
fn chat(gateway: &Gateway<'_>, key: &str) -> TestRequest {
    chat_of(gateway, key, &chat_body())
}

fn chat_of(gateway: &Gateway<'_>, key: &str, body: &Value) -> TestRequest {
    gateway.forward_to(&gateway.provider.url("/v1/chat/completions")).bearer(key).json(body)
}

fn messages_of(gateway: &Gateway<'_>, key: &str, body: &Value) -> TestRequest {
    gateway.forward_to(&gateway.provider.url("/anthropic/v1/messages")).bearer(key).json(body)
}

#[track_caller]
fn assert_refused(answer: &TestResponse, status: u16, code: &str) {
    assert_eq!((answer.status, answer.error().as_str()), (status, code), "{}", answer.text());
    assert_eq!(answer.header("x-service-request-id"), None, "nothing was recorded");
}

/// The message of an error.
fn message(answer: &TestResponse) -> String {
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

/// The seconds of `Retry-After`.
fn wait(answer: &TestResponse) -> Option<i64> {
    answer.header("retry-after").map(|seconds| seconds.parse().unwrap())
}

async fn read(gateway: &Gateway<'_>, key: &TestSpendKey) -> Value {
    gateway.get(&key.path).await.expect(200)
}

async fn change(gateway: &Gateway<'_>, key: &TestSpendKey, changes: &Value) -> Value {
    gateway.put(&key.path, changes).await.expect(200)
}

async fn own_balance(gateway: &Gateway<'_>) -> String {
    gateway.get("/wallet").await.expect(200)["balance"].as_str().unwrap().to_owned()
}

// The resource.

#[test]
fn a_key_made_with_a_name_alone_has_every_default() {
    each_gateway(async |gateway| {
        let made = gateway.post("/spend_keys", &json!({"name": "Team"})).await.expect(201);
        let own_wallet = gateway.get("/wallet").await.expect(200);
        let key = made["key"].as_str().unwrap();
        let expected = json!({
            "spend_key_id": made["spend_key_id"],
            "key_preview": format!("{}****", &key[..12]),
            "key": key,
            "name": "Team",
            "status": "active",
            "request_shape": "any",
            "wallet_id": own_wallet["wallet_id"],
            "meter_id": null,
            "budget_id": null,
            "current_spend": NOTHING,
            "total_spend": NOTHING,
            "current_requests": 0,
            "total_requests": 0,
            "created_at": made["created_at"],
            "allowed_models": null,
            "allowed_providers": null,
            "enforcement": "bounded",
            "expires_at": null,
            "report": null,
            "last_used_at": null
        });
        assert_eq!(made, expected, "unset limits are left out");
        assert!(made["spend_key_id"].as_str().unwrap().starts_with("spk_"));
        assert!(made["created_at"].as_str().unwrap().ends_with('Z'));

        assert!(key.starts_with("tgk_") && key.len() == 4 + 32 + 6, "{key}");
        assert!(key[4..].bytes().all(|b| b.is_ascii_alphanumeric()), "{key}");
        assert!(tollgate_domain::Key::parse(key).is_ok(), "its checksum is right");
        let other_end = if key.ends_with('0') { '1' } else { '0' };
        let forged = format!("{}{other_end}", &key[..key.len() - 1]);
        assert_refused(&chat(gateway, &forged).send().await, 401, "auth_invalid");
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_key_is_made_with_every_field_and_shown_as_it_was_made() {
    each_gateway(async |gateway| {
        let fields = json!({
            "name": "Everything",
            "status": "paused",
            "request_shape": "shape_b",
            "wallet_id": gateway.connection.wallet_id.to_string(),
            "meter_id": gateway.meter.meter_id.to_string(),
            "allowed_models": ["m-1", "m-2*", "house/x"],
            "allowed_providers": ["mansion", "house"],
            "spend_limit": {"amount": "12.5", "cycle": "weekly"},
            "request_limit":
                {"count": 1_000_000_000, "cycle": "monthly", "time_zone": "Asia/Kolkata"},
            "report": "cost",
            "rate_limit": {"rpm": 1_000_000, "burst": 1_000_000},
            "enforcement": "strict",
            "expires_at": "2030-01-02T03:04:05+02:00"
        });
        let made = gateway.post("/spend_keys", &fields).await.expect(201);
        for (name, value) in fields.as_object().unwrap() {
            let shown = match name.as_str() {
                "spend_limit" => {
                    json!({"amount": "12.5000000000", "cycle": "weekly", "time_zone": "UTC"})
                }
                "expires_at" => json!("2030-01-02T01:04:05Z"),
                _ => value.clone(),
            };
            assert_eq!(made[name], shown, "{name}");
        }
        let mut shown = made.clone();
        shown.as_object_mut().unwrap().remove("key").unwrap();
        let id = made["spend_key_id"].as_str().unwrap();
        assert_eq!(gateway.get(&format!("/spend_keys/{id}")).await.expect(200), shown);
        assert_eq!(gateway.get("/spend_keys").await.expect(200)["data"], json!([shown]));
    });
}

#[test]
fn a_burst_that_is_left_out_or_null_is_the_rate() {
    each_gateway(async |gateway| {
        for limit in [json!({"rpm": 7}), json!({"rpm": 7, "burst": null})] {
            let key = gateway.spend_key(&json!({"rate_limit": limit})).await;
            assert_eq!(key.made["rate_limit"], json!({"rpm": 7, "burst": 7}));
        }
    });
}

#[test]
fn null_is_the_same_as_absent_when_a_key_is_made() {
    each_gateway(async |gateway| {
        let nulls = json!({
            "allowed_models": null, "allowed_providers": null, "spend_limit": null,
            "request_limit": null, "rate_limit": null, "expires_at": null
        });
        let key = gateway.spend_key(&nulls).await;
        for limit in ["spend_limit", "request_limit", "rate_limit"] {
            assert_eq!(key.made.get(limit), None);
        }
    });
}

#[test]
fn keys_are_listed_newest_first_and_without_the_key() {
    each_gateway(async |gateway| {
        let mut made = Vec::new();
        for name in ["a", "b", "c"] {
            made.push(gateway.spend_key(&json!({"name": name})).await);
        }
        let page = gateway.get("/spend_keys?limit=2").await.expect(200);
        assert_eq!(
            (&page["data"][0]["name"], &page["data"][1]["name"]),
            (&json!("c"), &json!("b"))
        );
        assert_eq!(page["has_more"], true);
        assert!(page["data"][0].get("key").is_none());
        let cursor = page["next_cursor"].as_str().unwrap();
        let rest = gateway.get(&format!("/spend_keys?limit=2&cursor={cursor}")).await.expect(200);
        assert_eq!(rest["data"][0]["name"], "a");
        assert_eq!((&rest["has_more"], &rest["next_cursor"]), (&json!(false), &json!("")));

        let deleted = gateway.call("DELETE", &made[1].path).send().await.expect(200);
        assert_eq!(deleted, json!({"success": true}));
        let list = gateway.get("/spend_keys").await.expect(200);
        let names: Vec<_> =
            list["data"].as_array().unwrap().iter().map(|key| &key["name"]).collect();
        assert_eq!(names, ["c", "a"]);
        for answer in [
            gateway.get(&made[1].path).await,
            gateway.put(&made[1].path, &json!({})).await,
            gateway.call("DELETE", &made[1].path).send().await,
            gateway.call("POST", &format!("{}/rotate", made[1].path)).send().await,
            gateway.get("/spend_keys/spk_nonsense").await,
        ] {
            assert_eq!((answer.status, answer.error().as_str()), (404, "spend_key_not_found"));
        }
    });
}

const EVERY_RULE: &str = r#"{
    "allowed_models": ["m-1"],
    "allowed_providers": ["house"],
    "spend_limit": {"amount": "1.0000000000", "cycle": "daily", "time_zone": "Europe/Berlin"},
    "request_limit": {"count": 5, "cycle": "total", "time_zone": "UTC"},
    "rate_limit": {"rpm": 10, "burst": 3},
    "expires_at": "2030-01-01T00:00:00Z"
}"#;

#[test]
fn what_a_change_leaves_out_stays_and_what_is_null_is_cleared() {
    each_gateway(async |gateway| {
        let rules: Value = serde_json::from_str(EVERY_RULE).unwrap();
        let key = gateway.spend_key(&rules).await;
        let mut shown = key.made.clone();
        shown.as_object_mut().unwrap().remove("key");
        assert_eq!(change(gateway, &key, &json!({})).await, shown, "without key, and unchanged");
        let empty = gateway.call("PUT", &key.path).bytes("application/json", b"").send().await;
        assert_eq!(empty.expect(200), shown);

        let renamed = change(gateway, &key, &json!({"name": "Other"})).await;
        shown["name"] = json!("Other");
        assert_eq!(renamed, shown);
        for field in rules.as_object().unwrap().keys() {
            let mut nothing = json!({});
            nothing[field] = Value::Null;
            let cleared = change(gateway, &key, &nothing).await;
            match field.ends_with("_limit") {
                true => drop(shown.as_object_mut().unwrap().remove(field)),
                false => shown[field] = Value::Null,
            }
            assert_eq!(cleared, shown, "{field}");
            assert_eq!(read(gateway, &key).await, shown, "{field}");
        }
    });
}

#[test]
fn a_key_that_was_read_can_be_sent_back() {
    each_gateway(async |gateway| {
        let mut rules: Value = serde_json::from_str(EVERY_RULE).unwrap();
        rules["meter_id"] = json!(gateway.meter.meter_id.to_string());
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        for rules in [rules, json!({})] {
            let key = gateway.spend_key(&rules).await;
            chat(gateway, &key.key).send().await.expect(200);
            let shown = read(gateway, &key).await;
            assert_eq!(change(gateway, &key, &shown).await, shown);
            let mut changed = key.made.clone();
            changed["status"] = json!("paused");
            let paused = change(gateway, &key, &changed).await;
            assert_eq!(
                (&paused["status"], &paused["total_requests"]),
                (&json!("paused"), &json!(1)),
                "its counters are not the caller's to write"
            );
        }
    });
}

#[test]
fn what_a_key_cannot_be_without_is_not_cleared() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let nulls = json!({"name": null, "status": null, "request_shape": null});
        let answer = gateway.put(&key.path, &nulls).await;
        assert_eq!((answer.status, answer.error().as_str()), (400, "validation_failed"));
        let mut paths = answer.issue_paths();
        paths.sort();
        assert_eq!(paths, ["name", "request_shape", "status"]);
        let mut shown = key.made.clone();
        shown.as_object_mut().unwrap().remove("key");
        assert_eq!(read(gateway, &key).await, shown);
    });
}

#[test]
fn every_bad_field_of_a_key_is_named_when_it_is_made_and_when_it_is_changed() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let spend = |amount: Value| json!({"amount": amount, "cycle": "daily"});
        let count = |count: Value| json!({"count": count, "cycle": "daily"});
        let cases = [
            ("name", json!(""), "name"),
            ("name", json!("x".repeat(256)), "name"),
            ("name", json!(1), "name"),
            ("status", json!("deleted"), "status"),
            ("request_shape", json!("shape_c"), "request_shape"),
            ("enforcement", json!("lax"), "enforcement"),
            ("spend_limit", spend(json!("0")), "spend_limit.amount"),
            ("spend_limit", spend(json!("0.0000000000")), "spend_limit.amount"),
            ("spend_limit", spend(json!("-1")), "spend_limit.amount"),
            ("spend_limit", spend(json!("0.00000000001")), "spend_limit.amount"),
            ("spend_limit", spend(json!("1e2")), "spend_limit.amount"),
            ("spend_limit", spend(json!("")), "spend_limit.amount"),
            ("spend_limit", spend(json!("922337204")), "spend_limit.amount"),
            ("spend_limit", spend(json!(5)), "spend_limit.amount"),
            ("spend_limit", spend(json!(null)), "spend_limit.amount"),
            ("spend_limit", json!({"cycle": "daily"}), "spend_limit.amount"),
            ("spend_limit", json!({"amount": "1"}), "spend_limit.cycle"),
            ("spend_limit", json!({"amount": "1", "cycle": "yearly"}), "spend_limit.cycle"),
            ("spend_limit", json!({"amount": "1", "cycle": "Daily"}), "spend_limit.cycle"),
            ("spend_limit", json!({"amount": "1", "cycle": "total", "x": 1}), "spend_limit.x"),
            (
                "spend_limit",
                json!({"amount": "1", "cycle": "daily", "time_zone": "Europe/Bonn"}),
                "spend_limit.time_zone",
            ),
            (
                "request_limit",
                json!({"count": 1, "cycle": "daily", "time_zone": 2}),
                "request_limit.time_zone",
            ),
            ("spend_limit", json!("5"), "spend_limit"),
            ("request_limit", count(json!(0)), "request_limit.count"),
            ("request_limit", count(json!(-1)), "request_limit.count"),
            ("request_limit", count(json!(1.5)), "request_limit.count"),
            ("request_limit", count(json!("5")), "request_limit.count"),
            ("request_limit", count(json!(1_000_000_001)), "request_limit.count"),
            ("request_limit", count(json!(5_000_000_000_u64)), "request_limit.count"),
            ("request_limit", json!({"count": 1}), "request_limit.cycle"),
            ("request_limit", json!({"count": 1, "cycle": "hourly"}), "request_limit.cycle"),
            ("rate_limit", json!({"rpm": 0}), "rate_limit.rpm"),
            ("rate_limit", json!({"rpm": 1_000_001}), "rate_limit.rpm"),
            ("rate_limit", json!({"rpm": 1, "burst": 0}), "rate_limit.burst"),
            ("rate_limit", json!({"rpm": 1, "burst": 1_000_001}), "rate_limit.burst"),
            ("rate_limit", json!({"burst": 1}), "rate_limit.rpm"),
            ("rate_limit", json!({"rpm": 1, "rpd": 1}), "rate_limit.rpd"),
            ("allowed_providers", json!([]), "allowed_providers"),
            ("allowed_providers", json!("house"), "allowed_providers"),
            ("allowed_providers", json!(["house", 1]), "allowed_providers.1"),
            ("allowed_models", json!(["m-1", ""]), "allowed_models.1"),
            ("allowed_models", json!({"m-1": true}), "allowed_models"),
            ("expires_at", json!("tomorrow"), "expires_at"),
            ("expires_at", json!("2030-02-30T00:00:00Z"), "expires_at"),
            ("expires_at", json!("2030-01-01"), "expires_at"),
            ("expires_at", json!(1_900_000_000), "expires_at"),
            ("colour", json!("blue"), "colour"),
        ];
        for (field, value, path) in cases {
            let mut body = json!({"name": "Key"});
            body[field] = value;
            let made = gateway.post("/spend_keys", &body).await;
            assert_eq!((made.status, made.error().as_str()), (400, "validation_failed"), "{body}");
            assert_eq!(made.issue_paths(), [path], "{body}");
            let changed = gateway.put(&key.path, &body).await;
            assert_eq!(
                (changed.error().as_str(), changed.issue_paths()),
                ("validation_failed", vec![path.to_owned()]),
                "{body}"
            );
        }
        let fine = gateway.spend_key(&json!({"name": "é".repeat(255)})).await;
        assert_eq!(fine.made["name"], "é".repeat(255));
        let least = json!({
            "spend_limit": {"amount": "0.0000000001", "cycle": "total"},
            "request_limit": {"count": 1, "cycle": "weekly"},
            "rate_limit": {"rpm": 1, "burst": 1},
            "allowed_models": []
        });
        let least = gateway.spend_key(&least).await;
        assert_eq!(least.made["allowed_models"], json!([]));

        assert_eq!(gateway.post("/spend_keys", &json!({})).await.issue_paths(), ["name"]);
        let all = json!({
            "status": "x", "spend_limit": {"amount": "0", "cycle": "x"},
            "request_limit": {"count": 0, "cycle": "x"}, "rate_limit": {"rpm": 0, "burst": 0},
            "allowed_providers": [], "expires_at": "x", "colour": 1
        });
        let mut paths = gateway.post("/spend_keys", &all).await.issue_paths();
        paths.sort();
        assert_eq!(
            paths,
            [
                "allowed_providers",
                "colour",
                "expires_at",
                "name",
                "rate_limit.burst",
                "rate_limit.rpm",
                "request_limit.count",
                "request_limit.cycle",
                "spend_limit.amount",
                "spend_limit.cycle",
                "status",
            ]
        );
        let twice = br#"{"name":"x","spend_limit":{"amount":"1","amount":"2","cycle":"total"}}"#;
        let twice = gateway.call("POST", "/spend_keys").bytes("application/json", twice);
        assert_eq!(twice.send().await.issue_paths(), ["spend_limit.amount"]);
    });
}

/// Dates whose instant has no four-digit year in UTC.
#[test]
fn a_date_beyond_the_calendar_is_refused_or_kept() {
    each_gateway(async |gateway| {
        for date in ["9999-12-31T23:30:00-01:00", "9999-12-31T23:59:59Z"] {
            let body = json!({"name": "Edge", "expires_at": date});
            let answer = gateway.post("/spend_keys", &body).await;
            if answer.status == 400 {
                assert_eq!(answer.issue_paths(), ["expires_at"], "{date}");
                continue;
            }
            let made = answer.expect(201);
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            chat(gateway, made["key"].as_str().unwrap()).send().await.expect(200);
            let shown = made["expires_at"].as_str().unwrap();
            assert!(shown > "9999-12-31", "{date} became {shown}");
        }
    });
}

#[test]
fn a_date_before_the_calendar_is_refused_or_kept() {
    each_gateway(async |gateway| {
        let body = json!({"name": "Edge", "expires_at": "0000-01-01T00:30:00+01:00"});
        let answer = gateway.post("/spend_keys", &body).await;
        if answer.status == 400 {
            assert_eq!(answer.issue_paths(), ["expires_at"]);
        } else {
            let made = answer.expect(201);
            let refused = chat(gateway, made["key"].as_str().unwrap()).send().await;
            assert_refused(&refused, 403, "spend_key_expired");
        }
    });
}

/// Invalid input of one merchant does not affect other merchants.
#[test]
fn a_date_that_cannot_be_written_takes_nothing_down() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({})).await;
        let body = json!({"name": "Edge", "expires_at": "0000-01-01T00:30:00+01:00"});
        for _ in 0..20 {
            gateway.post("/spend_keys", &body).await;
            gateway.put(&key.path, &body).await;
        }
        gateway.get("/spend_keys").await.expect(200);
        let stranger = gateway.store.merchant().await;
        let by_stranger = gateway.call_without_key("POST", "/spend_keys");
        let by_stranger = by_stranger.bearer(stranger.key.reveal()).json(&json!({"name": "Key"}));
        by_stranger.send().await.expect(201);
        gateway.chat().send().await.expect(200);

        // Nor does it affect writes in the same transaction.
        let bad = || gateway.call("POST", "/spend_keys").json(&body);
        let (_, others) = tokio::join!(at_once(50, bad), at_once(50, || gateway.chat()));
        assert!(others.iter().all(|status| *status == 200), "{others:?}");
    });
}

/// The settlements of calls share a transaction with other writes.
#[test]
fn a_date_that_cannot_be_written_loses_no_settlement() {
    each_gateway(async |gateway| {
        let gate = Gate::new();
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let mut calls = Vec::new();
        for _ in 0..20 {
            calls.push(gateway.chat().open().await);
        }
        gateway.provider.wait_for_calls(20).await;
        let body = json!({"name": "Edge", "expires_at": "0000-01-01T00:30:00+01:00"});
        let bad = || gateway.call("POST", "/spend_keys").json(&body);
        let answered = async {
            gate.open();
            for open in &mut calls {
                while open.read_some().await {}
                open.response().expect(200);
            }
        };
        tokio::join!(at_once(100, bad), answered);
        // Every client has read its answer, so every record is final already.
        let list = gateway.get("/requests?limit=100").await.expect(200);
        for record in list["data"].as_array().unwrap() {
            assert_eq!(record["status"], "completed", "{record}");
        }
        assert_eq!(gateway.wallet().await, ("9.6600000000".to_owned(), NOTHING.to_owned()));
    });
}

#[test]
fn a_wallet_and_a_meter_must_be_the_merchants() {
    each_gateway(async |gateway| {
        let stranger = gateway.store.merchant().await;
        let stranger_id = stranger.merchant.merchant_id;
        let strangers = gateway.store.connection(stranger_id, "1").await;
        let strangers_meter = gateway.store.meter(stranger_id, &[(0, "1")]).await;
        let wallets = [strangers.wallet_id.to_string(), "wal_nonsense".to_owned()];
        for wallet_id in wallets {
            let body = json!({"name": "Key", "wallet_id": wallet_id});
            let answer = gateway.post("/spend_keys", &body).await;
            assert_eq!((answer.status, answer.error().as_str()), (404, "wallet_not_found"));
        }
        let key = gateway.spend_key(&json!({})).await;
        for meter_id in [strangers_meter.meter_id.to_string(), "mtr_nonsense".to_owned()] {
            let body = json!({"name": "Key", "meter_id": meter_id});
            let made = gateway.post("/spend_keys", &body).await;
            assert_eq!((made.status, made.error().as_str()), (404, "meter_not_found"));
            let changed = gateway.put(&key.path, &body).await;
            assert_eq!((changed.status, changed.error().as_str()), (404, "meter_not_found"));
        }
        assert_eq!(
            gateway.get("/spend_keys").await.expect(200)["data"].as_array().unwrap().len(),
            1
        );
        let bound = json!({
            "wallet_id": gateway.connection.wallet_id.to_string(),
            "meter_id": gateway.meter.meter_id.to_string()
        });
        let bound = gateway.spend_key(&bound).await;
        assert_eq!(bound.made["wallet_id"], gateway.connection.wallet_id.to_string());
    });
}

#[test]
fn a_meter_that_a_key_names_cannot_be_deleted() {
    each_gateway(async |gateway| {
        let meter_id = gateway.meter.meter_id.to_string();
        let path = format!("/meters/{meter_id}");
        let delete = async || gateway.call("DELETE", &path).send().await;
        let one = gateway.spend_key(&json!({"meter_id": meter_id})).await;
        let other = gateway.spend_key(&json!({})).await;
        change(gateway, &other, &json!({"meter_id": meter_id})).await;
        let refused = delete().await;
        assert_eq!((refused.status, refused.error().as_str()), (409, "meter_in_use"));
        gateway.call("DELETE", &one.path).send().await.expect(200);
        assert_eq!(delete().await.error(), "meter_in_use");
        assert_eq!(
            change(gateway, &other, &json!({"meter_id": null})).await["meter_id"],
            json!(null)
        );
        delete().await.expect(200);
        let gone = gateway.put(&other.path, &json!({"meter_id": meter_id})).await;
        assert_eq!(gone.error(), "meter_not_found");
    });
}

#[test]
fn another_merchants_key_is_not_there() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let stranger = gateway.store.merchant().await;
        let by_stranger = |method: &str, path: &str| {
            gateway.call_without_key(method, path).bearer(stranger.key.reveal())
        };
        for (method, path) in [
            ("GET", key.path.clone()),
            ("PUT", key.path.clone()),
            ("DELETE", key.path.clone()),
            ("POST", format!("{}/rotate", key.path)),
        ] {
            let answer = by_stranger(method, &path).json(&json!({})).send().await;
            assert_eq!((answer.status, answer.error().as_str()), (404, "spend_key_not_found"));
        }
        let list = by_stranger("GET", "/spend_keys").send().await.expect(200);
        assert_eq!(list["data"], json!([]));
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        chat(gateway, &key.key).send().await.expect(200);
    });
}

#[test]
fn a_key_that_is_asked_for_twice_is_made_once_and_shown_once() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let once = |path: &str, idempotency_key: &str, body: &Value| {
            gateway.call("POST", path).header("idempotency-key", idempotency_key).json(body)
        };
        let make = |name: &str| once("/spend_keys", "make", &json!({"name": name}));
        let made = make("Key").send().await.expect(201);
        let again = make("Key").send().await.expect(201);
        let mut without_key = made.clone();
        without_key.as_object_mut().unwrap().remove("key").unwrap();
        assert_eq!(again, without_key);
        assert_eq!(
            gateway.get("/spend_keys").await.expect(200)["data"].as_array().unwrap().len(),
            1
        );
        let other = make("Other").send().await;
        assert_eq!((other.status, other.error().as_str()), (409, "idempotency_key_reused"));

        let path = format!("/spend_keys/{}/rotate", made["spend_key_id"].as_str().unwrap());
        let rotate = || once(&path, "rotate", &json!({}));
        let rotated = rotate().send().await.expect(200);
        let again = rotate().send().await.expect(200);
        assert_eq!(again.get("key"), None);
        assert_eq!(again["key_preview"], rotated["key_preview"]);
        chat(gateway, rotated["key"].as_str().unwrap()).send().await.expect(200);
    });
}

#[test]
fn a_spend_key_only_forwards() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let routes = [
            ("GET", "/spend_keys".to_owned()),
            ("POST", "/spend_keys".to_owned()),
            ("GET", key.path.clone()),
            ("PUT", key.path.clone()),
            ("DELETE", key.path.clone()),
            ("POST", format!("{}/rotate", key.path)),
            ("GET", "/meters".to_owned()),
            ("POST", "/meters".to_owned()),
            ("GET", "/requests".to_owned()),
            ("GET", "/wallet".to_owned()),
            ("GET", "/secret_keys".to_owned()),
            ("POST", "/connections".to_owned()),
        ];
        let unknown = tollgate_domain::Key::generate(
            tollgate_domain::KeyKind::Spend,
            tollgate_domain::CellNumber::default(),
        );
        let by = async |key: &str, method: &str, path: &str| {
            let call = gateway.call_without_key(method, path).bearer(key).json(&json!({}));
            let answer = call.send().await;
            (answer.status, answer.error())
        };
        for (method, path) in &routes {
            let forbidden = by(&key.key, method, path).await;
            assert_eq!(forbidden, (403, "operation_not_allowed".to_owned()), "{method} {path}");
            let nobody = by(unknown.reveal(), method, path).await;
            assert_eq!(nobody, (401, "auth_invalid".to_owned()), "{method} {path}");
        }
        gateway.call("DELETE", &key.path).send().await.expect(200);
        assert_eq!(by(&key.key, "GET", "/meters").await, (401, "auth_invalid".to_owned()));
    });
}

// Forwarding.

#[test]
fn a_spend_key_forwards_from_each_place_of_a_credential() {
    each_gateway(async |gateway| {
        let TestSpendKey { key, made, .. } = gateway.spend_key(&json!({})).await;
        let u = gateway.provider.url("/v1/chat/completions");
        let calls = [
            gateway.forward_to(&u).bearer(&key),
            gateway.forward_to(&u).header("x-api-key", &key),
            gateway.forward_to(&u).header("x-goog-api-key", &key),
            gateway.forward_to(&u).header("xi-api-key", &key),
            gateway.call_without_key("POST", &format!("/forward?u={u}&key={key}")),
        ];
        for call in calls {
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            let answer = call.json(&chat_body()).send().await;
            assert_eq!(answer.expect(200), chat_answer());
            let id = answer.header("x-service-request-id").unwrap();
            let record = gateway.get(&format!("/requests/{id}")).await.expect(200);
            assert_eq!(record["spend_key_id"], made["spend_key_id"]);
            assert_eq!(record["status"], "completed");
            let model_payer = &record["model_usage"]["payer"];
            assert_eq!([model_payer, &record["service_charge"]["payer"]], ["wallet", "wallet"]);
            let costs = ["total_request_cost", "total_wallet_cost", "total_merchant_cost"];
            assert_eq!(costs.map(|name| &record[name]), [USED, USED, NOTHING]);
            assert_eq!(record["fee"]["amount"], NOTHING);
            assert_eq!((record.get("connection_id"), record.get("meter_id")), (None, None));
        }
        for seen in gateway.provider.requests() {
            assert_eq!(seen.header("authorization"), Some("Bearer managed-provider-key"));
            assert!(!format!("{seen:?}").contains("tgk_"), "{seen:?}");
        }
        assert_eq!(own_balance(gateway).await, "-0.0100000000");
        assert_eq!(gateway.wallet().await.0, "10.0000000000");
    });
}

#[test]
fn a_get_with_a_spend_key_is_recorded_and_free() {
    each_gateway(async |gateway| {
        gateway
            .provider
            .push_always(ScriptedResponse::json(200, json!({"object": "list", "data": []})));
        let rules = json!({
            "allowed_models": ["m-1"], "request_shape": "shape_b",
            "spend_limit": {"amount": "0.0000000001", "cycle": "total"}, "enforcement": "strict"
        });
        let key = gateway.spend_key(&rules).await;
        let u = gateway.provider.url("/v1/models");
        let get = || gateway.call_without_key("GET", &format!("/forward?u={u}")).bearer(&key.key);
        get().send().await.expect(200);
        get().send().await.expect(200);
        let shown = read(gateway, &key).await;
        assert_eq!((&shown["total_requests"], &shown["total_spend"]), (&json!(2), &json!(NOTHING)));
        let record = gateway.records().await.remove(0);
        assert_eq!(record["spend_key_id"], shown["spend_key_id"]);
        assert_eq!(record["total_request_cost"], NOTHING);
        change(gateway, &key, &json!({"allowed_providers": ["mansion"]})).await;
        let elsewhere = get().send().await;
        assert_refused(&elsewhere, 403, "spend_key_provider_not_allowed");
    });
}

#[test]
fn the_wallet_of_a_key_pays_what_its_meter_says() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let wallet_id = gateway.connection.wallet_id.to_string();
        let meter_id = gateway.meter.meter_id.to_string();
        let key = gateway.spend_key(&json!({"wallet_id": wallet_id, "meter_id": meter_id})).await;
        chat(gateway, &key.key).send().await.expect(200);
        let record = gateway.record().await;
        assert_eq!(record["meter_id"], meter_id);
        assert_eq!(record["fee"]["amount"], "0.0150000000");
        assert_eq!(
            [&record["total_wallet_cost"], &record["total_merchant_cost"]],
            [USED_UNDER_METER, NOTHING]
        );
        assert_eq!(gateway.wallet().await, ("9.9830000000".to_owned(), NOTHING.to_owned()));
        assert_eq!(own_balance(gateway).await, NOTHING);

        // The merchant pays the base cost, from another wallet or from the same one.
        let change_meter = json!({"base_cost_payer": "merchant"});
        gateway
            .call("PATCH", &format!("/meters/{meter_id}"))
            .json(&change_meter)
            .send()
            .await
            .expect(200);
        chat(gateway, &key.key).send().await.expect(200);
        let record = gateway.records().await.remove(0);
        assert_eq!(record["model_usage"]["payer"], "merchant");
        assert_eq!(
            [&record["total_wallet_cost"], &record["total_merchant_cost"]],
            ["0.0150000000", USED]
        );
        assert_eq!(gateway.wallet().await.0, "9.9680000000");
        assert_eq!(own_balance(gateway).await, "-0.0020000000");
        let shown = read(gateway, &key).await;
        assert_eq!(shown["total_spend"], "0.0340000000", "whoever pays it");

        let own = gateway.spend_key(&json!({"meter_id": meter_id})).await;
        chat(gateway, &own.key).send().await.expect(200);
        assert_eq!(own_balance(gateway).await, "-0.0190000000");
    });
}

#[test]
fn each_key_has_its_own_way_through_the_tiers() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let merchant_id = gateway.merchant.merchant.merchant_id;
        let meter = gateway.store.meter(merchant_id, &[(0, "10"), (1_500, "1")]).await;
        let meter_id = json!({"meter_id": meter.meter_id.to_string()});
        let (one, other) = (gateway.spend_key(&meter_id).await, gateway.spend_key(&meter_id).await);
        for (key, fee) in [(&one, "0.0150000000"), (&one, "0.0015000000"), (&other, "0.0150000000")]
        {
            chat(gateway, &key.key).send().await.expect(200);
            assert_eq!(gateway.records().await[0]["fee"]["amount"], fee);
        }
    });
}

#[test]
fn a_spend_key_inside_a_token_is_refused() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        for more in [json!({}), json!({"provider_key": "sk-own"})] {
            let mut token =
                json!({"secret_key": key.key, "connection_id": null, "meter_slug": null});
            token.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let token = STANDARD.encode(token.to_string());
            let answer = chat(gateway, &token).send().await;
            assert_refused(&answer, 400, "forward_token_json_invalid");
            assert_eq!(answer.issue_paths(), ["secret_key"]);
            assert!(!answer.text().contains(&key.key));
        }
        gateway.provider.assert_calls(0);
    });
}

// Refusals.

#[test]
fn the_first_reason_in_the_order_of_precedence_is_told() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let poor = gateway.store.connection(gateway.merchant.merchant.merchant_id, "0.001").await;
        let rate = json!({"rpm": 1, "burst": 1});
        let wallet_id = poor.wallet_id.to_string();
        let key = gateway.spend_key(&json!({"wallet_id": wallet_id, "rate_limit": rate})).await;
        chat(gateway, &key.key).send().await.expect(200);
        let all_at_once = json!({
            "status": "paused",
            "expires_at": "2020-01-01T00:00:00Z",
            "request_shape": "shape_b",
            "allowed_models": ["other"],
            "allowed_providers": ["mansion"],
            "request_limit": {"count": 1, "cycle": "total"},
            "spend_limit": {"amount": "0.001", "cycle": "total"}
        });
        let before = change(gateway, &key, &all_at_once).await;

        for (status, code, repair) in [
            (403, "spend_key_paused", json!({"status": "active"})),
            (403, "spend_key_expired", json!({"expires_at": null})),
            (403, "spend_key_request_shape_mismatch", json!({"request_shape": "shape_a"})),
            (403, "spend_key_model_not_allowed", json!({"allowed_models": ["m*"]})),
            (403, "spend_key_provider_not_allowed", json!({"allowed_providers": ["house"]})),
            (429, "rate_limited", json!({"rate_limit": null})),
            (
                429,
                "request_limit_reached",
                json!({"request_limit": {"count": 3, "cycle": "total"}}),
            ),
            (402, "spend_limit_reached", json!({"spend_limit": {"amount": "1", "cycle": "total"}})),
        ] {
            assert_refused(&chat(gateway, &key.key).send().await, status, code);
            change(gateway, &key, &repair).await;
        }
        let answer = chat(gateway, &key.key).send().await;
        assert_refused(&answer, 402, "wallet_balance_insufficient");
        gateway.provider.assert_calls(1);
        let shown = read(gateway, &key).await;
        for unmoved in ["total_requests", "total_spend", "current_spend", "last_used_at"] {
            assert_eq!(shown[unmoved], before[unmoved], "a refusal moves no counter");
        }
        let credit = format!("/wallets/{}/credits", poor.wallet_id);
        gateway.post(&credit, &json!({"amount": "1"})).await.expect(201);
        chat(gateway, &key.key).send().await.expect(200);
    });
}

#[test]
fn models_are_allowed_by_id_or_by_their_beginning() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({})).await;
        for (allowed, passes) in [
            (json!(["m-1"]), true),
            (json!(["other", "m-*"]), true),
            (json!(["*"]), true),
            (json!(["m"]), false),
            (json!(["M-1"]), false),
            (json!(["m-1-2026"]), false),
            (json!(["m*1"]), false),
            (json!([]), false),
            (json!(null), true),
        ] {
            change(gateway, &key, &json!({"allowed_models": allowed})).await;
            let answer = chat(gateway, &key.key).send().await;
            match passes {
                true => drop(answer.expect(200)),
                false => {
                    assert_refused(&answer, 403, "spend_key_model_not_allowed");
                    assert_eq!(answer.issue_paths(), ["model"]);
                }
            }
        }
        gateway.provider.assert_calls(4);
    });
}

#[test]
fn the_format_of_a_key_is_that_of_its_calls() {
    each_gateway(async |gateway| {
        let any = gateway.spend_key(&json!({})).await;
        let a = gateway.spend_key(&json!({"request_shape": "shape_a"})).await;
        let b = gateway.spend_key(&json!({"request_shape": "shape_b"})).await;
        let body = json!({"model": "m-1", "max_tokens": 9, "messages": []});
        for answer in
            [chat(gateway, &b.key).send().await, messages_of(gateway, &a.key, &body).send().await]
        {
            assert_refused(&answer, 403, "spend_key_request_shape_mismatch");
        }
        gateway.provider.assert_calls(0);
        let usage = json!({"input_tokens": 1000, "output_tokens": 500});
        let message = json!({"id": "msg_1", "type": "message", "model": "m-1", "content": [], "usage": usage});
        for key in [&b, &any] {
            gateway.provider.push(ScriptedResponse::json(200, &message));
            messages_of(gateway, &key.key, &body).send().await.expect(200);
            assert_eq!(read(gateway, key).await["total_spend"], USED);
        }
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        chat(gateway, &any.key).send().await.expect(200);
        assert_eq!(read(gateway, &any).await["total_requests"], 2);
    });
}

#[test]
fn two_pass_under_two_a_minute_and_the_third_waits_half_a_minute() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({"rate_limit": {"rpm": 2}})).await;
        chat(gateway, &key.key).send().await.expect(200);
        chat(gateway, &key.key).send().await.expect(200);
        let third = chat(gateway, &key.key).send().await;
        assert_refused(&third, 429, "rate_limited");
        assert_eq!(wait(&third), Some(30));
        assert_eq!(third.header("x-should-retry"), None);
        assert_eq!(third.header("x-ratelimit-limit"), Some("2"));
        assert_eq!(third.header("x-ratelimit-remaining"), Some("0"));
        let reset = gateway.store.clock.now().plus_millis(30_000).to_string();
        assert_eq!(third.header("x-ratelimit-reset"), Some(reset.as_str()));
        assert!(message(&third).contains(&reset), "{}", message(&third));
        gateway.provider.assert_calls(2);

        gateway.store.clock.advance_millis(29_999);
        let early = chat(gateway, &key.key).send().await;
        assert_eq!((early.status, wait(&early)), (429, Some(1)));
        gateway.store.clock.advance_millis(1);
        chat(gateway, &key.key).send().await.expect(200);
        assert_eq!(chat(gateway, &key.key).send().await.status, 429);
        gateway.provider.assert_calls(3);
        assert_eq!(read(gateway, &key).await["total_requests"], 3);
    });
}

#[test]
fn a_burst_is_how_many_may_come_at_once() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({"rate_limit": {"rpm": 1, "burst": 3}})).await;
        let statuses = at_once(20, || chat(gateway, &key.key)).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 3, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 17, "{statuses:?}");
        gateway.provider.assert_calls(3);
    });
}

#[test]
fn a_limit_of_requests_says_when_there_are_more() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        // The clock is at midnight of a Saturday.
        for (cycle, reset) in [
            ("daily", Some("2026-11-22T00:00:00Z")),
            ("weekly", Some("2026-11-23T00:00:00Z")),
            ("monthly", Some("2026-12-01T00:00:00Z")),
            ("total", None),
        ] {
            let limit = json!({"request_limit": {"count": 2, "cycle": cycle}});
            let key = gateway.spend_key(&limit).await;
            chat(gateway, &key.key).send().await.expect(200);
            chat(gateway, &key.key).send().await.expect(200);
            let answer = chat(gateway, &key.key).send().await;
            assert_refused(&answer, 429, "request_limit_reached");
            assert_eq!(wait(&answer), None, "SDKs would sleep: {cycle}");
            assert_eq!(answer.header("x-should-retry"), Some("false"), "{cycle}");
            assert_eq!(answer.header("x-ratelimit-limit"), Some("2"));
            assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
            assert_eq!(answer.header("x-ratelimit-reset"), reset);
            let message = message(&answer);
            assert!(message.contains("2 of 2"), "used and limit: {message}");
            assert!(reset.is_none_or(|at| message.contains(at)), "{message}");
        }
        gateway.provider.assert_calls(8);
    });
}

#[test]
fn a_limit_whose_cycle_ends_within_a_minute_is_worth_waiting_for() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        gateway.store.clock.advance_millis(86_340_000);
        let limit = json!({"request_limit": {"count": 1, "cycle": "daily"}});
        let key = gateway.spend_key(&limit).await;
        chat(gateway, &key.key).send().await.expect(200);
        let answer = chat(gateway, &key.key).send().await;
        assert_refused(&answer, 429, "request_limit_reached");
        assert_eq!((wait(&answer), answer.header("x-should-retry")), (Some(60), None));
    });
}

#[test]
fn a_limit_of_requests_is_exact_when_all_come_at_once() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key =
            gateway.spend_key(&json!({"request_limit": {"count": 7, "cycle": "total"}})).await;
        let statuses = at_once(50, || chat(gateway, &key.key)).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 7, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 43, "{statuses:?}");
        gateway.provider.assert_calls(7);
        assert_eq!(read(gateway, &key).await["current_requests"], 7);
    });
}

/// The statuses of `count` calls that are sent at once.
async fn at_once(count: usize, call: impl Fn() -> TestRequest) -> Vec<u16> {
    let sent: Vec<_> = (0..count)
        .map(|_| {
            let call = call();
            tokio::spawn(async move { call.send().await.status })
        })
        .collect();
    let mut statuses = Vec::new();
    for status in sent {
        statuses.push(status.await.unwrap());
    }
    statuses
}

/// Fails unless the message contains these facts, such as the limit and the amounts spent and held.
#[track_caller]
fn assert_names(answer: &TestResponse, facts: &[&str]) {
    let message = message(answer);
    for fact in facts {
        assert!(message.contains(fact), "{fact:?} in {message:?}");
    }
}

#[test]
fn held_by_calls_in_flight_and_spent_are_different_refusals() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let gate = Gate::new();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let limit = json!({"spend_limit": {"amount": "0.001", "cycle": "daily"}});
        let key = gateway.spend_key(&limit).await;
        let mut open = chat(gateway, &key.key).open().await;
        gateway.provider.wait_for_calls(1).await;

        let held = chat(gateway, &key.key).send().await;
        assert_refused(&held, 402, "spend_limit_reached");
        assert_eq!(wait(&held), Some(1));
        assert_eq!(held.header("x-ratelimit-limit"), Some("0.0010000000"));
        assert_eq!(held.header("x-ratelimit-remaining"), Some(NOTHING));
        assert_eq!(held.header("x-ratelimit-reset"), Some("2026-11-22T00:00:00Z"));
        let bytes = chat_body().to_string().len();
        let hold = format!("0.00{:04} USD", bytes + 2_000);
        assert_names(&held, &["0.001 USD", "0.00 USD", &hold]);
        gate.open();
        while open.read_some().await {}
        open.response().expect(200);

        let spent = chat(gateway, &key.key).send().await;
        assert_refused(&spent, 402, "spend_limit_reached");
        assert_eq!(wait(&spent), None, "a day is too long to wait without a word");
        assert_names(&spent, &["0.001 USD", "0.002 USD", "0.00 USD", "2026-11-22T00:00:00Z"]);
        change(gateway, &key, &json!({"spend_limit": {"amount": "0.001", "cycle": "total"}})).await;
        let for_good = chat(gateway, &key.key).send().await;
        assert_refused(&for_good, 402, "spend_limit_reached");
        assert_eq!(wait(&for_good), None, "waiting does not help");
        assert_eq!(for_good.header("x-ratelimit-reset"), None);
        gateway.provider.assert_calls(1);
        assert_names(&held, &["2026-11-22T00:00:00Z"]);
    });
}

#[test]
fn a_wallet_that_is_held_by_calls_in_flight_is_worth_waiting_for() {
    each_gateway(async |gateway| {
        let gate = Gate::new();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let poor = gateway.store.connection(gateway.merchant.merchant.merchant_id, "0.001").await;
        let key = gateway.spend_key(&json!({"wallet_id": poor.wallet_id.to_string()})).await;
        let mut open = chat(gateway, &key.key).open().await;
        gateway.provider.wait_for_calls(1).await;
        let held = chat(gateway, &key.key).send().await;
        assert_refused(&held, 402, "wallet_balance_insufficient");
        assert_eq!(wait(&held), Some(1));
        gate.open();
        while open.read_some().await {}
        let empty = chat(gateway, &key.key).send().await;
        assert_refused(&empty, 402, "wallet_balance_insufficient");
        assert_eq!(wait(&empty), None);
        gateway.provider.assert_calls(1);
    });
}

#[test]
fn a_refused_call_takes_nothing_from_the_rate() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let rules = json!({
            "rate_limit": {"rpm": 2}, "spend_limit": {"amount": "0.0000001", "cycle": "total"},
            "enforcement": "strict"
        });
        let key = gateway.spend_key(&rules).await;
        for _ in 0..5 {
            assert_eq!(chat(gateway, &key.key).send().await.error(), "spend_limit_reached");
        }
        change(gateway, &key, &json!({"spend_limit": null})).await;
        chat(gateway, &key.key).send().await.expect(200);
        chat(gateway, &key.key).send().await.expect(200);
        assert_refused(&chat(gateway, &key.key).send().await, 429, "rate_limited");
    });
}

#[test]
fn what_costs_a_wallet_nothing_is_not_refused_for_its_balance() {
    each_gateway(async |gateway| {
        gateway
            .provider
            .push_always(ScriptedResponse::json(200, json!({"object": "list", "data": []})));
        let poor = gateway.store.connection(gateway.merchant.merchant.merchant_id, "0").await;
        let rules = json!({"wallet_id": poor.wallet_id.to_string(), "enforcement": "strict"});
        let key = gateway.spend_key(&rules).await;
        let u = gateway.provider.url("/v1/models");
        let get = gateway.call_without_key("GET", &format!("/forward?u={u}")).bearer(&key.key);
        get.send().await.expect(200);
        let refused = chat(gateway, &key.key).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
    });
}

/// The key draws on the merchant's own wallet, which also pays the merchant's part.
#[test]
fn a_merchants_own_wallet_pays_both_parts_within_its_limit() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, used(100, 500)));
        let own = gateway.get("/wallet").await.expect(200);
        let path = format!("/wallets/{}", own["wallet_id"].as_str().unwrap());
        let limit = json!({"overdraft_limit": "0"});
        gateway.call("PATCH", &path).json(&limit).send().await.expect(200);
        let meter = format!("/meters/{}", gateway.meter.meter_id);
        let payer = json!({"base_cost_payer": "merchant"});
        gateway.call("PATCH", &meter).json(&payer).send().await.expect(200);
        let rules =
            json!({"enforcement": "strict", "meter_id": gateway.meter.meter_id.to_string()});
        let key = gateway.spend_key(&rules).await;
        let refused = chat(gateway, &key.key).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
        // The most that the call can cost: 11 USD per million tokens in, 12 out.
        let bytes = padded(1).len();
        let hold = i64::try_from(11 * bytes + 12 * 500).unwrap() * 10_000;
        let credit = |units: i64| {
            let amount = tollgate_pricing::Amount::from_units(units).to_string();
            let (path, body) = (format!("{path}/credits"), json!({"amount": amount}));
            async move { gateway.post(&path, &body).await.expect(201) }
        };
        credit(hold - 1).await;
        let refused = chat_bytes(gateway, &key.key, &padded(500)).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
        assert_eq!(largest_that_passes(&refused), 499);
        credit(1).await;
        chat_bytes(gateway, &key.key, &padded(500)).send().await.expect(200);
        gateway.provider.assert_calls(1);
    });
}

// Strict and bounded.

/// A chat body that has the same length for every maximum.
fn padded(max_tokens: u64) -> Vec<u8> {
    format!(r#"{{"model":"m-1","messages":[],"max_tokens":{max_tokens:>9}}}"#).into_bytes()
}

fn chat_bytes(gateway: &Gateway<'_>, key: &str, body: &[u8]) -> TestRequest {
    let u = gateway.provider.url("/v1/chat/completions");
    gateway.forward_to(&u).bearer(key).bytes("application/json", body)
}

/// An answer with this usage.
fn used(input: usize, output: u64) -> Value {
    let mut answer = chat_answer();
    answer["usage"] = json!({"prompt_tokens": input, "completion_tokens": output});
    answer
}

fn largest_that_passes(answer: &TestResponse) -> u64 {
    let message = message(answer);
    let (_, rest) = message.split_once("maximum of ").unwrap();
    rest.split_once(" tokens").unwrap().0.parse().unwrap()
}

#[test]
fn the_largest_maximum_that_a_strict_key_names_passes_and_one_more_does_not() {
    each_gateway(async |gateway| {
        for cycle in ["daily", "total"] {
            let rules = json!({"enforcement": "strict", "spend_limit": {"amount": "0.0015", "cycle": cycle}});
            let key = gateway.spend_key(&rules).await;
            let refused = chat_bytes(gateway, &key.key, &padded(100_000)).send().await;
            assert_refused(&refused, 402, "spend_limit_reached");
            let largest = largest_that_passes(&refused);
            let exact = (1_500 - u64::try_from(padded(1).len()).unwrap()) / 2;
            assert_eq!(largest, exact);
            let more = chat_bytes(gateway, &key.key, &padded(largest + 1)).send().await;
            assert_refused(&more, 402, "spend_limit_reached");
            assert_eq!(largest_that_passes(&more), largest);
            gateway.provider.push(ScriptedResponse::json(200, used(padded(1).len(), largest)));
            chat_bytes(gateway, &key.key, &padded(largest)).send().await.expect(200);
        }
        gateway.provider.assert_calls(2);
    });
}

#[test]
fn a_strict_wallet_names_the_largest_maximum_too() {
    each_gateway(async |gateway| {
        let poor = gateway.store.connection(gateway.merchant.merchant.merchant_id, "0.0015").await;
        let rules = json!({"enforcement": "strict", "wallet_id": poor.wallet_id.to_string()});
        let key = gateway.spend_key(&rules).await;
        let refused = chat_bytes(gateway, &key.key, &padded(1_000)).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
        let largest = largest_that_passes(&refused);
        let more = chat_bytes(gateway, &key.key, &padded(largest + 1)).send().await;
        assert_refused(&more, 402, "wallet_balance_insufficient");
        gateway.provider.push(ScriptedResponse::json(200, used(1, 1)));
        chat_bytes(gateway, &key.key, &padded(largest)).send().await.expect(200);
    });
}

/// A client can write the maximum that the message names into its body.
#[test]
fn a_body_without_a_maximum_passes_with_the_one_that_is_named() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, used(10, 10)));
        let rules =
            json!({"enforcement": "strict", "spend_limit": {"amount": "0.0015", "cycle": "total"}});
        let key = gateway.spend_key(&rules).await;
        let refused = chat(gateway, &key.key).send().await;
        assert_refused(&refused, 402, "spend_limit_reached");
        let mut body = chat_body();
        body["max_tokens"] = json!(largest_that_passes(&refused));
        let second = chat_of(gateway, &key.key, &body).send().await;
        assert_eq!(second.status, 200, "{}", second.text());
    });
}

#[test]
fn a_strict_hold_counts_every_answer_and_the_fee() {
    each_gateway(async |gateway| {
        let rules = json!({
            "enforcement": "strict", "meter_id": gateway.meter.meter_id.to_string(),
            "spend_limit": {"amount": "0.1", "cycle": "total"}
        });
        let key = gateway.spend_key(&rules).await;
        let body = |max_tokens: u64| {
            let text =
                format!(r#"{{"model":"m-1","messages":[],"n":4,"max_tokens":{max_tokens:>9}}}"#);
            text.into_bytes()
        };
        let refused = chat_bytes(gateway, &key.key, &body(10_000)).send().await;
        assert_refused(&refused, 402, "spend_limit_reached");
        let input = u64::try_from(body(1).len()).unwrap();
        // 11 USD per million tokens in, 12 out.
        assert_eq!(largest_that_passes(&refused), (100_000 - 11 * input) / 12 / 4);
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_strict_call_that_no_cycle_can_hold_is_not_told_to_wait() {
    each_gateway(async |gateway| {
        let rules =
            json!({"enforcement": "strict", "spend_limit": {"amount": "0.0001", "cycle": "daily"}});
        let key = gateway.spend_key(&rules).await;
        let answer = chat(gateway, &key.key).send().await;
        assert_refused(&answer, 402, "spend_limit_reached");
        assert_eq!(wait(&answer), None, "tomorrow it costs too much as well: {}", answer.text());
    });
}

#[test]
fn every_refusal_for_a_spend_limit_says_when_it_resets() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let rules =
            json!({"enforcement": "strict", "spend_limit": {"amount": "0.0015", "cycle": "daily"}});
        let key = gateway.spend_key(&rules).await;
        let smaller = chat(gateway, &key.key).send().await;
        assert_refused(&smaller, 402, "spend_limit_reached");
        assert_eq!(smaller.header("x-ratelimit-reset"), Some("2026-11-22T00:00:00Z"));
        assert_eq!(smaller.header("x-ratelimit-remaining"), Some("0.0015000000"));
        assert_names(&smaller, &["0.0015 USD", "2026-11-22T00:00:00Z"]);
    });
}

#[test]
fn a_strict_limit_that_fits_three_calls_lets_three_of_fifty_pass() {
    each_gateway(async |gateway| {
        let input = padded(1).len();
        gateway.provider.push_always(ScriptedResponse::json(200, used(input, 500)));
        let cost = i64::try_from((input + 1_000) * 10_000).unwrap();
        for spare in [0, 1, cost - 1] {
            let amount = tollgate_pricing::Amount::from_units(3 * cost + spare).to_string();
            let rules = json!({"enforcement": "strict", "spend_limit": {"amount": amount, "cycle": "total"}});
            let key = gateway.spend_key(&rules).await;
            let before = gateway.provider.calls();
            let statuses = at_once(50, || chat_bytes(gateway, &key.key, &padded(500))).await;
            assert_eq!(statuses.iter().filter(|s| **s == 200).count(), 3, "{statuses:?}");
            assert_eq!(statuses.iter().filter(|s| **s == 402).count(), 47, "{statuses:?}");
            gateway.provider.assert_calls(before + 3);
            let shown = read(gateway, &key).await;
            let spent = tollgate_pricing::Amount::from_units(3 * cost).to_string();
            assert_eq!(shown["total_spend"], spent);
        }
    });
}

#[test]
fn a_bounded_limit_is_passed_by_less_than_one_call() {
    each_gateway(async |gateway| {
        let input = padded(1).len();
        gateway.provider.push_always(ScriptedResponse::json(200, used(input, 500)));
        let cost = i64::try_from((input + 1_000) * 10_000).unwrap();
        for (limit, calls) in [(1, 1), (cost, 1), (cost + 1, 2), (3 * cost - 1, 3), (3 * cost, 3)] {
            let amount = tollgate_pricing::Amount::from_units(limit).to_string();
            let rules = json!({"spend_limit": {"amount": amount, "cycle": "monthly"}});
            let key = gateway.spend_key(&rules).await;
            let before = gateway.provider.calls();
            let statuses = at_once(50, || chat_bytes(gateway, &key.key, &padded(500))).await;
            assert_eq!(statuses.iter().filter(|s| **s == 200).count(), calls, "{statuses:?}");
            gateway.provider.assert_calls(before + calls);
            let spent = tollgate_pricing::Amount::from_units(cost * i64::try_from(calls).unwrap());
            assert_eq!(read(gateway, &key).await["current_spend"], spent.to_string());
        }
    });
}

#[test]
fn a_call_without_a_bound_is_refused_by_a_strict_key_with_the_field() {
    each_gateway(async |gateway| {
        let a = gateway.spend_key(&json!({"enforcement": "strict"})).await;
        let b = json!({"enforcement": "strict", "request_shape": "shape_b"});
        let b = gateway.spend_key(&b).await;
        let image =
            json!({"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}});
        let chats = [
            (
                json!({"model": "m-1", "messages": [{"role": "user", "content": [image]}]}),
                "messages.0.content.0",
            ),
            (json!({"model": "m-listed", "messages": []}), "max_tokens"),
            (
                json!({"model": "m-1", "messages": [], "web_search_options": {}}),
                "web_search_options",
            ),
        ];
        for (body, path) in chats {
            let answer = chat_of(gateway, &a.key, &body).send().await;
            assert_refused(&answer, 400, "cost_bound_unknown");
            let paths = answer.issue_paths();
            assert!(paths.len() == 1 && paths[0].starts_with(path), "{paths:?} {body}");
        }
        let source = json!({"type": "url", "url": "https://example.com/cat.png"});
        let image = json!({"type": "image", "source": source});
        let document = json!({"type": "document", "source": source});
        let tool = json!({"type": "web_search_20250305", "name": "web_search"});
        let message = |content: Value, tools: Value| json!({"model": "m-1", "max_tokens": 9, "messages": [{"role": "user", "content": content}], "tools": tools});
        let messages = [
            (message(json!([image]), json!([])), "messages.0.content.0"),
            (message(json!([document]), json!([])), "messages.0.content.0"),
        ];
        for (body, path) in messages {
            let answer = messages_of(gateway, &b.key, &body).send().await;
            assert_refused(&answer, 400, "cost_bound_unknown");
            let paths = answer.issue_paths();
            assert!(paths.len() == 1 && paths[0].starts_with(path), "{paths:?} {body}");
        }
        let u = gateway.provider.url("/v1/responses");
        for (more, path) in [(
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}]}),
            "input.0",
        )] {
            let mut body = json!({"model": "m-1", "input": "Hi", "max_output_tokens": 9});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let answer = gateway.forward_to(&u).bearer(&a.key).json(&body).send().await;
            assert_refused(&answer, 400, "cost_bound_unknown");
            let paths = answer.issue_paths();
            assert!(paths.len() == 1 && paths[0].starts_with(path), "{paths:?} {body}");
        }
        gateway.provider.assert_calls(0);

        // A body with a bound passes; one without passes under `bounded`.
        let answer = json!({"id": "msg_1", "type": "message", "model": "m-listed", "content": [],
                            "usage": {"input_tokens": 10, "output_tokens": 5}});
        gateway.provider.push_always(ScriptedResponse::json(200, &answer));
        let limited = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 2});
        let mut body = message(json!("Hi"), json!([limited]));
        body["model"] = json!("m-listed");
        messages_of(gateway, &b.key, &body).send().await.expect(200);
        // A search passes as well, because it has a maximum of its own.
        body["tools"] = json!([tool]);
        messages_of(gateway, &b.key, &body).send().await.expect(200);
        change(gateway, &b, &json!({"enforcement": "bounded"})).await;
        change(gateway, &b, &json!({"spend_limit": {"amount": "1", "cycle": "total"}})).await;
        messages_of(gateway, &b.key, &message(json!([image]), json!([]))).send().await.expect(200);
    });
}

/// With the operator's key, for every kind of caller.
#[test]
fn a_tool_without_a_price_is_refused_by_its_kind() {
    each_gateway(async |gateway| {
        let strict = gateway.spend_key(&json!({"enforcement": "strict"})).await.key;
        let bounded = gateway.spend_key(&json!({})).await.key;
        let search = json!({"type": "web_search_20250305", "name": "web_search"});
        for key in [&strict, &bounded, gateway.key()] {
            for (model, tools, path) in [
                ("m-1", json!([search]), "tools.0.type"),
                ("m-1", json!([{"type": "custom", "name": "c"}, search]), "tools.1.type"),
            ] {
                let body = json!({"model": model, "max_tokens": 9, "messages": [], "tools": tools});
                let answer = messages_of(gateway, key, &body).send().await;
                assert_refused(&answer, 400, "model_price_unknown");
                assert_eq!(answer.issue_paths(), [path], "{body}");
            }
            let u = gateway.provider.url("/v1/responses");
            let image = json!([{"type": "function", "name": "f"}, {"type": "image_generation"}]);
            let body =
                json!({"model": "m-1", "input": "Hi", "max_output_tokens": 9, "tools": image});
            let answer = gateway.forward_to(&u).bearer(key).json(&body).send().await;
            assert_refused(&answer, 400, "model_price_unknown");
            assert_eq!(answer.issue_paths(), ["tools.1.type"]);
        }
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_model_without_a_price_is_no_model_for_a_key_with_a_limit() {
    let allowing = tollgate_api::Settings {
        calls: CallSettings { unpriced: UnpricedPolicy::Allow, ..settings().calls },
        ..settings()
    };
    each_gateway_with(allowing, async |gateway| {
        let mut answer = chat_answer();
        answer["model"] = json!("unheard-of");
        gateway.provider.push_always(ScriptedResponse::json(200, &answer));
        let body = json!({"model": "unheard-of", "messages": [], "max_tokens": 5});
        let limit = json!({"amount": "1", "cycle": "total"});
        for rules in [
            json!({"enforcement": "strict"}),
            json!({"enforcement": "strict", "spend_limit": limit}),
            json!({"spend_limit": limit}),
        ] {
            let key = gateway.spend_key(&rules).await;
            let answer = chat_of(gateway, &key.key, &body).send().await;
            assert_refused(&answer, 400, "cost_bound_unknown");
            assert_eq!(answer.issue_paths(), ["model"], "{rules}");
        }
        gateway.provider.assert_calls(0);
        let free = gateway.spend_key(&json!({})).await;
        chat_of(gateway, &free.key, &body).send().await.expect(200);
        assert_eq!(gateway.record().await["price_source"], "unpriced");
    });
}

#[test]
fn an_unknown_price_is_refused_before_a_limit_is_looked_at() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({"enforcement": "strict"})).await;
        let body = json!({"model": "unheard-of", "messages": []});
        let answer = chat_of(gateway, &key.key, &body).send().await;
        assert_refused(&answer, 400, "model_price_unknown");
        gateway.provider.assert_calls(0);
    });
}

/// Usage of more than a hundred times the bound of the body is an error of the provider.
#[test]
fn what_cannot_have_been_used_is_flagged_and_charged_at_the_bound_by_a_strict_key() {
    each_gateway(async |gateway| {
        let hold = format!("0.00{:04}0000", chat_body().to_string().len() + 2_000);
        for (enforcement, tokens, flags, cost) in [
            ("strict", 2_000_000, json!(["suspicious_usage"]), hold.as_str()),
            ("bounded", 2_000_000, json!(["suspicious_usage"]), "2.0000000000"),
            ("strict", 1_000, Value::Null, "0.0010000000"),
        ] {
            let key = gateway.spend_key(&json!({"enforcement": enforcement})).await;
            gateway.provider.push(ScriptedResponse::json(200, used(tokens, 0)));
            chat(gateway, &key.key).send().await.expect(200);
            assert_eq!(read(gateway, &key).await["total_spend"], cost, "{enforcement} {tokens}");
            let record = gateway.records().await.remove(0);
            assert_eq!(record["flags"], flags, "{enforcement} {tokens}");
        }
    });
}

/// The usage of such a stream is unknown, so a strict key pays the hold.
#[test]
fn a_stream_without_usage_costs_a_strict_key_what_was_held() {
    let delta = json!({"id": "c", "object": "chat.completion.chunk", "model": "m-1-2026",
                       "choices": [{"index": 0, "delta": {"content": "Hello"}}]});
    let whole = [delta.to_string(), "[DONE]".to_owned()];
    let cut = ScriptedResponse::events([delta.to_string()]);
    each_gateway(async |gateway| {
        for (what, reply) in
            [("whole", ScriptedResponse::events(whole.clone())), ("cut", cut.clone())]
        {
            for enforcement in ["strict", "bounded"] {
                let key = gateway.spend_key(&json!({"enforcement": enforcement})).await;
                let mut body = chat_body();
                body["stream"] = json!(true);
                gateway.provider.push(reply.clone());
                chat_of(gateway, &key.key, &body).send().await;
                let record = gateway.records().await.remove(0);
                let cost = read(gateway, &key).await["total_spend"].as_str().unwrap().to_owned();
                let hold = format!("0.00{:04}0000", body.to_string().len() + 2_000);
                assert_eq!(
                    cost == hold,
                    enforcement == "strict",
                    "{what} {enforcement}: {cost} {hold}"
                );
                assert_ne!(record["usage_source"], "reported", "{what}");
            }
        }
    });
}

/// If the price list was wrong, the actual cost is charged, and the key stops.
#[test]
fn a_call_that_cost_more_than_it_could_is_charged_as_it_is() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, used(5_000, 0)));
        let rules =
            json!({"enforcement": "strict", "spend_limit": {"amount": "0.005", "cycle": "total"}});
        let key = gateway.spend_key(&rules).await;
        chat(gateway, &key.key).send().await.expect(200);
        assert_eq!(read(gateway, &key).await["total_spend"], "0.0050000000");
        let answer = chat(gateway, &key.key).send().await;
        assert_refused(&answer, 402, "spend_limit_reached");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(NOTHING));
        assert_eq!(wait(&answer), None);
        assert!(!message(&answer).contains("would be admitted"), "{}", message(&answer));
    });
}

// Changes apply to the next call.

#[test]
fn a_change_acts_on_the_very_next_call() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({})).await;
        let limit = |amount: &str| json!({"spend_limit": {"amount": amount, "cycle": "daily"}});
        let count = |count: u32| json!({"request_limit": {"count": count, "cycle": "daily"}});
        chat(gateway, &key.key).send().await.expect(200);
        for (changes, code) in [
            (json!({"status": "paused"}), Some("spend_key_paused")),
            (json!({"status": "active"}), None),
            (json!({"expires_at": "2001-01-01T00:00:00Z"}), Some("spend_key_expired")),
            (json!({"expires_at": "2101-01-01T00:00:00Z"}), None),
            (limit("0.0060000001"), None),
            (limit("0.008"), Some("spend_limit_reached")),
            (limit("0.0080000001"), None),
            (json!({"spend_limit": null}), None),
            (count(6), Some("request_limit_reached")),
            (count(7), None),
            (json!({"request_limit": null}), None),
            (json!({"rate_limit": {"rpm": 1}}), None),
            (json!({}), Some("rate_limited")),
            (json!({"rate_limit": null}), None),
            (
                json!({"enforcement": "strict", "spend_limit": {"amount": "0.0000001", "cycle": "total"}}),
                Some("spend_limit_reached"),
            ),
            (json!({"spend_limit": {"amount": "1", "cycle": "total"}}), None),
        ] {
            change(gateway, &key, &changes).await;
            let answer = chat(gateway, &key.key).send().await;
            match code {
                None => assert_eq!(answer.status, 200, "{changes}: {}", answer.text()),
                Some(code) => assert_eq!(answer.error(), code, "{changes}"),
            }
        }
    });
}

#[test]
fn a_rate_that_is_raised_lets_the_very_next_call_pass() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({"rate_limit": {"rpm": 2}})).await;
        chat(gateway, &key.key).send().await.expect(200);
        chat(gateway, &key.key).send().await.expect(200);
        assert_eq!(chat(gateway, &key.key).send().await.status, 429);
        change(gateway, &key, &json!({"rate_limit": {"rpm": 600}})).await;
        let answer = chat(gateway, &key.key).send().await;
        assert_eq!(answer.status, 200, "two of 600 are used: {}", answer.text());
    });
}

#[test]
fn a_rotated_key_is_dead_at_once_and_its_counters_stay() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key =
            gateway.spend_key(&json!({"request_limit": {"count": 3, "cycle": "total"}})).await;
        chat(gateway, &key.key).send().await.expect(200);
        let before = read(gateway, &key).await;
        let rotated =
            gateway.call("POST", &format!("{}/rotate", key.path)).send().await.expect(200);
        let new_key = rotated["key"].as_str().unwrap().to_owned();
        assert_ne!(new_key, key.key);
        let mut expected = before.clone();
        expected["key"] = json!(new_key);
        expected["key_preview"] = json!(format!("{}****", &new_key[..12]));
        assert_eq!(rotated, expected);
        assert_refused(&chat(gateway, &key.key).send().await, 401, "auth_invalid");
        assert_refused(&chat(gateway, &key.key).send().await, 401, "auth_invalid");
        chat(gateway, &new_key).send().await.expect(200);
        chat(gateway, &new_key).send().await.expect(200);
        assert_refused(&chat(gateway, &new_key).send().await, 429, "request_limit_reached");
        gateway.provider.assert_calls(3);

        gateway.call("DELETE", &key.path).send().await.expect(200);
        assert_refused(&chat(gateway, &new_key).send().await, 401, "auth_invalid");
        gateway.provider.assert_calls(3);
    });
}

#[test]
fn a_call_in_flight_outlives_its_key() {
    each_gateway(async |gateway| {
        let gate = Gate::new();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let key = gateway.spend_key(&json!({})).await;
        let mut open = chat(gateway, &key.key).open().await;
        gateway.provider.wait_for_calls(1).await;
        gateway.call("DELETE", &key.path).send().await.expect(200);
        gate.open();
        while open.read_some().await {}
        assert_eq!(open.response().expect(200), chat_answer());
        let record = gateway.record().await;
        assert_eq!(record["total_wallet_cost"], USED);
        assert_eq!(own_balance(gateway).await, "-0.0020000000");
    });
}

// Counters.

#[test]
fn what_was_used_is_counted_as_it_happens() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let gate = Gate::new();
        let key = gateway.spend_key(&json!({})).await;
        let counted = async || {
            let shown = read(gateway, &key).await;
            let names = ["current_requests", "total_requests", "current_spend", "total_spend"];
            (names.map(|name| shown[name].clone()), shown["last_used_at"].clone())
        };
        gateway.store.clock.advance_millis(1_000);
        let came = json!(gateway.store.clock.now().to_string());
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let mut open = chat(gateway, &key.key).open().await;
        gateway.provider.wait_for_calls(1).await;
        gateway.store.clock.advance_millis(1_000);
        assert_eq!(
            counted().await,
            ([json!(1), json!(1), json!(NOTHING), json!(NOTHING)], came.clone()),
            "admitted, and not yet paid"
        );
        gate.open();
        while open.read_some().await {}
        assert_eq!(counted().await, ([json!(1), json!(1), json!(USED), json!(USED)], came));
        // A call that failed at the provider counts as a request, and costs nothing.
        gateway.provider.push(ScriptedResponse::json(500, json!({"error": {}})));
        assert_eq!(chat(gateway, &key.key).send().await.status, 500);
        let now = json!(gateway.store.clock.now().to_string());
        assert_eq!(counted().await, ([json!(2), json!(2), json!(USED), json!(USED)], now));
    });
}

#[test]
fn what_fails_gives_back_what_it_held() {
    each_gateway(async |gateway| {
        let rules =
            json!({"enforcement": "strict", "spend_limit": {"amount": "0.004", "cycle": "total"}});
        let key = gateway.spend_key(&rules).await;
        let away = gateway.forward_to(&gateway.nobody).bearer(&key.key).json(&chat_body());
        assert_eq!(away.send().await.error(), "provider_unreachable");
        gateway.provider.push(ScriptedResponse::json(429, json!({"error": {}})));
        assert_eq!(chat(gateway, &key.key).send().await.status, 429);
        let shown = read(gateway, &key).await;
        assert_eq!((&shown["total_requests"], &shown["total_spend"]), (&json!(2), &json!(NOTHING)));

        // A call that was accepted and never answered: the merchant pays the estimate, which counts as spend.
        gateway.provider.push(ScriptedResponse::hang_up());
        assert_eq!(chat(gateway, &key.key).send().await.error(), "provider_unreachable");
        let record = gateway.records().await.remove(0);
        assert_eq!(record["total_wallet_cost"], NOTHING);
        assert_ne!(record["total_request_cost"], NOTHING);
        assert_eq!(read(gateway, &key).await["total_spend"], record["total_request_cost"]);
        gateway.provider.push(ScriptedResponse::json(200, used(10, 10)));
        chat(gateway, &key.key).send().await.expect(200);
    });
}

#[test]
fn changes_at_once_do_not_undo_each_other() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let changes = [
            json!({"name": "Other"}),
            json!({"allowed_models": ["m-1"]}),
            json!({"allowed_providers": ["house"]}),
            json!({"request_limit": {"count": 5, "cycle": "daily", "time_zone": "Asia/Tokyo"}}),
            json!({"rate_limit": {"rpm": 5, "burst": 5}}),
            json!({"enforcement": "strict"}),
            json!({"status": "paused"}),
        ];
        let sent: Vec<_> = changes
            .iter()
            .map(|change| {
                let call = gateway.call("PUT", &key.path).json(change);
                tokio::spawn(async move { call.send().await.expect(200) })
            })
            .collect();
        for change in sent {
            change.await.unwrap();
        }
        let shown = read(gateway, &key).await;
        for change in &changes {
            for (field, value) in change.as_object().unwrap() {
                assert_eq!(&shown[field], value, "{field}");
            }
        }
    });
}

#[test]
fn each_counter_follows_the_cycle_of_its_limit() {
    each_gateway_by_the_stores_clock(async |gateway| {
        const DAY: i64 = 86_400_000;
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({})).await;
        let current = async || {
            let shown = read(gateway, &key).await;
            (
                shown["current_requests"].as_u64().unwrap(),
                shown["current_spend"].as_str().unwrap().to_owned(),
                shown["total_requests"].as_u64().unwrap(),
            )
        };
        // Saturday, then Sunday, then Monday.
        chat(gateway, &key.key).send().await.expect(200);
        assert_eq!(current().await, (1, USED.to_owned(), 1));
        gateway.store.clock.advance_millis(DAY);
        assert_eq!(current().await, (0, NOTHING.to_owned(), 1), "without a limit: of the day");
        chat(gateway, &key.key).send().await.expect(200);
        let weekly = json!({
            "spend_limit": {"amount": "0.004", "cycle": "weekly"},
            "request_limit": {"count": 9, "cycle": "total"}
        });
        change(gateway, &key, &weekly).await;
        assert_eq!(current().await, (2, "0.0040000000".to_owned(), 2));
        let spent = chat(gateway, &key.key).send().await;
        assert_refused(&spent, 402, "spend_limit_reached");
        assert_eq!(spent.header("x-ratelimit-reset"), Some("2026-11-23T00:00:00Z"));
        gateway.store.clock.advance_millis(DAY);
        assert_eq!(current().await, (2, NOTHING.to_owned(), 2));
        chat(gateway, &key.key).send().await.expect(200);
        let monthly = json!({
            "spend_limit": {"amount": "0.006", "cycle": "monthly"}, "request_limit": null
        });
        change(gateway, &key, &monthly).await;
        assert_eq!(current().await, (1, "0.0060000000".to_owned(), 3));
        assert_eq!(chat(gateway, &key.key).send().await.error(), "spend_limit_reached");
        gateway.store.clock.advance_millis(8 * DAY);
        assert_eq!(gateway.store.clock.now().to_string(), "2026-12-01T00:00:00Z");
        chat(gateway, &key.key).send().await.expect(200);
        assert_eq!(current().await, (1, USED.to_owned(), 4));
    });
}

#[test]
fn a_call_belongs_to_the_cycle_in_which_it_was_admitted() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let gate = Gate::new();
        let limit = json!({"spend_limit": {"amount": "0.002", "cycle": "daily"}});
        let key = gateway.spend_key(&limit).await;
        gateway.store.clock.advance_millis(86_399_999);
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let mut open = chat(gateway, &key.key).open().await;
        gateway.provider.wait_for_calls(1).await;
        assert_eq!(chat(gateway, &key.key).send().await.error(), "spend_limit_reached");
        gateway.store.clock.advance_millis(1);
        gate.open();
        while open.read_some().await {}
        let shown = read(gateway, &key).await;
        assert_eq!(
            (&shown["current_spend"], &shown["total_spend"]),
            (&json!(NOTHING), &json!(USED))
        );
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        chat(gateway, &key.key).send().await.expect(200);
        let shown = read(gateway, &key).await;
        assert_eq!(
            (&shown["current_spend"], &shown["total_spend"]),
            (&json!(USED), &json!("0.0040000000"))
        );
    });
}

#[test]
fn a_key_expires_at_its_instant() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({"expires_at": "2026-11-21T01:00:00+00:30"})).await;
        assert_eq!(key.made["expires_at"], "2026-11-21T00:30:00Z");
        gateway.store.clock.advance_millis(30 * 60_000 - 1);
        chat(gateway, &key.key).send().await.expect(200);
        gateway.store.clock.advance_millis(1);
        assert_refused(&chat(gateway, &key.key).send().await, 403, "spend_key_expired");
        gateway.provider.assert_calls(1);
    });
}
