//! The API of budgets: the resource, the calls that count against one, and their refusals.

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::support::document::assert_documented;
use crate::support::{
    Gateway, assert_issues, assert_refused, chat_answer, chat_body, each_gateway,
    each_gateway_by_the_stores_clock, text, with,
};

const NOTHING: &str = "0.0000000000";
/// The cost of `chat_answer` without a meter.
const USED: &str = "0.0020000000";

async fn budget(gateway: &Gateway<'_>, more: &Value) -> String {
    let made = gateway.post("/budgets", &with(json!({"name": "Team"}), more)).await;
    assert_documented("POST", "/v1/budgets", &made);
    text(&made.expect(201), "budget_id")
}

async fn read(gateway: &Gateway<'_>, id: &str) -> Value {
    gateway.get(&format!("/budgets/{id}")).await.expect(200)
}

fn chat(gateway: &Gateway<'_>, key: &str) -> TestRequest {
    let u = gateway.provider.url("/v1/chat/completions");
    gateway.forward_to(&u).bearer(key).json(&chat_body())
}

#[test]
fn a_budget_made_with_a_name_alone_has_every_default() {
    each_gateway(async |gateway| {
        let made = gateway.post("/budgets", &json!({"name": "Team"})).await.expect(201);
        let expected = json!({
            "budget_id": made["budget_id"],
            "name": "Team",
            "parent_id": null,
            "enforcement": "bounded",
            "time_zone": "UTC",
            "status": "active",
            "match": null,
            "alerts": [80, 95, 100],
            "current_spend": NOTHING,
            "current_requests": 0,
            "held": NOTHING,
            "resets_at": null,
            "metadata": {},
            "created_at": made["created_at"]
        });
        assert_eq!(made, expected);
        let id = text(&made, "budget_id");
        assert!(id.starts_with("bud_"), "{id}");
        assert_eq!(read(gateway, &id).await, made);
    });
}

#[test]
fn a_budget_is_made_with_every_field_changed_field_by_field_and_deleted() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let root = budget(gateway, &json!({})).await;
        let fields = json!({
            "name": "Job",
            "parent_id": root,
            "spend_limit": {"amount": "12.5", "cycle": "daily"},
            "request_limit": {"count": 10, "cycle": "total"},
            "enforcement": "observe",
            "time_zone": "Asia/Kolkata",
            "status": "paused",
            "match": {"job": "nightly", "team": "a"},
            "alerts": [100, 50, 50],
            "metadata": {"owner": "ann"}
        });
        let made = gateway.post("/budgets", &fields).await.expect(201);
        for (name, value) in fields.as_object().unwrap() {
            let shown = match name.as_str() {
                "spend_limit" => json!({"amount": "12.5000000000", "cycle": "daily"}),
                "alerts" => json!([50, 100]),
                _ => value.clone(),
            };
            assert_eq!(made[name], shown, "{name}");
        }
        // The clock begins at midnight in UTC.
        assert_eq!(made["resets_at"], "2026-11-21T18:30:00Z");
        let path = format!("/budgets/{}", text(&made, "budget_id"));
        let changed = gateway.put(&path, &json!({"spend_limit": null})).await.expect(200);
        assert_eq!((&changed["spend_limit"], &changed["resets_at"]), (&Value::Null, &Value::Null));
        assert_eq!(changed["request_limit"], fields["request_limit"], "what is absent is kept");
        let changes = json!({
            "name": "Other", "parent_id": null, "request_limit": {"count": 1, "cycle": "monthly"},
            "enforcement": "strict", "time_zone": null, "status": "active", "match": null,
            "alerts": null, "metadata": null
        });
        let answer = gateway.put(&path, &changes).await;
        assert_documented("PUT", "/v1/budgets/{id}", &answer);
        let changed = answer.expect(200);
        let defaults = json!({"time_zone": "UTC", "alerts": [80, 95, 100], "metadata": {}});
        for (name, value) in changes.as_object().unwrap() {
            assert_eq!(&changed[name], defaults.get(name).unwrap_or(value), "{name}");
        }
        // No call has counted yet, so the change of the zone takes effect at once.
        assert_eq!(changed["resets_at"], "2026-12-01T00:00:00Z");
        assert_eq!(gateway.get(&path).await.expect(200), changed);
        let list = gateway.get("/budgets?limit=1").await.expect(200);
        assert_eq!(list["data"], json!([changed]));
        let next = text(&list, "next_cursor");
        let list = gateway.get(&format!("/budgets?cursor={next}")).await.expect(200);
        assert_eq!(list["data"][0]["budget_id"], json!(root));
        let deleted = gateway.delete(&path).await;
        assert_documented("DELETE", "/v1/budgets/{id}", &deleted);
        assert_eq!(deleted.expect(200), json!({"success": true}));
        assert_refused(&gateway.get(&path).await, 404, "budget_not_found");
        assert_refused(&gateway.delete(&path).await, 404, "budget_not_found");
        assert_refused(&gateway.put(&path, &json!({})).await, 404, "budget_not_found");
    });
}

#[test]
fn every_issue_of_a_budget_is_named_with_its_path() {
    each_gateway(async |gateway| {
        let bad = json!({
            "name": "", "spend_limit": {"amount": "0", "cycle": "hourly"},
            "request_limit": {"count": 0, "cycle": "daily", "time_zone": "UTC"},
            "enforcement": "loose", "time_zone": "Mars/Olympus", "status": "gone",
            "match": {"a b": "c"}, "alerts": [0, 101], "more": 1
        });
        let paths = [
            "name",
            "spend_limit.amount",
            "spend_limit.cycle",
            "request_limit.count",
            "request_limit.time_zone",
            "enforcement",
            "time_zone",
            "status",
            "match.a b",
            "alerts.0",
            "alerts.1",
            "more",
        ];
        assert_issues(&gateway.post("/budgets", &bad).await, &paths);
        let many = json!({"name": "B", "alerts": vec![5; 21]});
        assert_issues(&gateway.post("/budgets", &many).await, &["alerts"]);
        let all = json!({"name": "All", "match": {}});
        assert_issues(&gateway.post("/budgets", &all).await, &["match"]);
        assert_issues(&gateway.post("/budgets", &json!({})).await, &["name"]);
        let unknown = json!({"name": "B", "parent_id": "bud_01M7XPE600MDSSSD1354KJFSJ9"});
        assert_refused(&gateway.post("/budgets", &unknown).await, 404, "budget_not_found");
        let id = budget(gateway, &json!({})).await;
        let shown = read(gateway, &id).await;
        let sent_back = gateway.put(&format!("/budgets/{id}"), &shown).await;
        assert_eq!(sent_back.expect(200), shown);
    });
}

#[test]
fn a_tree_has_at_most_four_levels_and_no_circle() {
    each_gateway(async |gateway| {
        let mut chain = vec![budget(gateway, &json!({})).await];
        for _ in 0..3 {
            chain.push(budget(gateway, &json!({"parent_id": chain.last().unwrap()})).await);
        }
        let path = |place: usize| format!("/budgets/{}", chain[place]);
        let fifth = json!({"name": "Fifth", "parent_id": chain[3]});
        assert_issues(&gateway.post("/budgets", &fifth).await, &["parent_id"]);
        for below in &chain {
            let circle = gateway.put(&path(0), &json!({"parent_id": below})).await;
            assert_issues(&circle, &["parent_id"]);
        }
        let answer = gateway.get(&format!("{}/tree", path(0))).await;
        assert_documented("GET", "/v1/budgets/{id}/tree", &answer);
        let mut level = answer.expect(200);
        for (place, id) in chain.iter().enumerate() {
            assert_eq!(level["budget"], read(gateway, id).await);
            let children = if place == 3 { 0 } else { 1 };
            assert_eq!(level["children"].as_array().unwrap().len(), children);
            level = level["children"][0].clone();
        }
        // A budget moves with all below it.
        let other = budget(gateway, &json!({})).await;
        gateway.put(&path(1), &json!({"parent_id": other})).await.expect(200);
        let tree = gateway.get(&format!("{}/tree", path(0))).await.expect(200);
        assert_eq!(tree["children"], json!([]));
        let tree = gateway.get(&format!("/budgets/{other}/tree")).await.expect(200);
        assert_eq!(tree["children"][0]["children"][0]["budget"]["budget_id"], json!(chain[2]));
        for (place, is_in_use) in [(1, true), (3, false), (2, false), (1, false), (0, false)] {
            let deleted = gateway.delete(&path(place)).await;
            match is_in_use {
                true => assert_refused(&deleted, 409, "budget_in_use"),
                false => assert_eq!(deleted.status, 200, "{}", deleted.text()),
            }
        }
    });
}

#[test]
fn keys_and_connections_name_a_budget_that_does_not_match_calls() {
    each_gateway(async |gateway| {
        let team = budget(gateway, &json!({})).await;
        let job = budget(gateway, &json!({"match": {"job": "a"}})).await;
        let key = gateway.spend_key(&json!({"budget_id": team})).await;
        assert_eq!(key.made["budget_id"], json!(team));
        let connection = json!({"name": "Shop", "budget_id": team});
        let connection = gateway.post("/connections", &connection).await.expect(201);
        assert_eq!(connection["budget_id"], json!(team));
        let connection = format!("/connections/{}", text(&connection, "connection_id"));
        let names = json!({"name": "K", "budget_id": job});
        for answer in [
            gateway.post("/spend_keys", &names).await,
            gateway.post("/connections", &names).await,
            gateway.put(&key.path, &json!({"budget_id": job})).await,
            gateway.patch(&connection, &json!({"budget_id": job})).await,
            gateway.put(&key.path, &json!({"budget_id": "bud_1"})).await,
        ] {
            assert_refused(&answer, 404, "budget_not_found");
        }
        let path = format!("/budgets/{team}");
        let matching = json!({"match": {"job": "a"}});
        assert_issues(&gateway.put(&path, &matching).await, &["match"]);
        assert_refused(&gateway.delete(&path).await, 409, "budget_in_use");
        gateway.put(&key.path, &json!({"budget_id": null})).await.expect(200);
        assert_refused(&gateway.delete(&path).await, 409, "budget_in_use");
        let freed = gateway.patch(&connection, &json!({"budget_id": null})).await.expect(200);
        assert_eq!(freed["budget_id"], Value::Null);
        gateway.put(&path, &matching).await.expect(200);
        gateway.delete(&path).await.expect(200);
    });
}

#[test]
fn a_refusal_names_the_budget_and_its_limit() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let spend = json!({"spend_limit": {"amount": "0.002", "cycle": "daily"}});
        let root = budget(gateway, &spend).await;
        let team = budget(gateway, &json!({"parent_id": root})).await;
        let key = gateway.spend_key(&json!({"budget_id": team})).await;
        chat(gateway, &key.key).send().await.expect(200);
        for id in [&root, &team] {
            let shown = read(gateway, id).await;
            assert_eq!(shown["current_spend"], USED);
            assert_eq!((&shown["current_requests"], &shown["held"]), (&json!(1), &json!(NOTHING)));
        }
        let refused = chat(gateway, &key.key).send().await;
        assert_refused(&refused, 402, "budget_exhausted");
        assert_eq!(refused.header("x-service-budget"), Some(root.as_str()));
        assert_eq!(refused.header("x-ratelimit-limit"), Some("0.0020000000"));
        assert_eq!(refused.header("x-ratelimit-remaining"), Some(NOTHING));
        assert_eq!(refused.header("x-ratelimit-reset"), Some("2026-11-22T00:00:00Z"));
        assert!(refused.text().contains(&root), "{}", refused.text());
        let refusal = refused.header("x-service-refusal-id").unwrap();
        let kept = gateway.get(&format!("/refusals/{refusal}")).await.expect(200);
        assert_eq!(kept["budget_id"], json!(root));
        assert_eq!((&kept["limit"], &kept["used"]), (&json!("0.0020000000"), &json!(USED)));
        let path = format!("/budgets/{root}");
        let calls = json!({"spend_limit": null, "request_limit": {"count": 1, "cycle": "total"}});
        gateway.put(&path, &calls).await.expect(200);
        let refused = chat(gateway, &key.key).send().await;
        assert_refused(&refused, 429, "budget_exhausted");
        assert_eq!(refused.header("x-service-budget"), Some(root.as_str()));
        let paused = json!({"request_limit": null, "status": "paused"});
        gateway.put(&path, &paused).await.expect(200);
        let refused = chat(gateway, &key.key).send().await;
        assert_refused(&refused, 403, "budget_paused");
        assert_eq!(refused.header("x-service-budget"), Some(root.as_str()));
        gateway.provider.assert_calls(1);
        gateway.put(&path, &json!({"status": "active"})).await.expect(200);
        chat(gateway, &key.key).send().await.expect(200);
        gateway.provider.assert_calls(2);
    });
}

#[test]
fn a_paused_budget_refuses_the_calls_that_it_matches() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({})).await;
        let job = json!({"match": {"job": "a"}, "status": "paused"});
        let job = budget(gateway, &job).await;
        let call = |metadata| chat(gateway, &key.key).header("x-service-metadata", metadata);
        let refused = call(r#"{"job": "a", "more": "b"}"#).send().await;
        assert_refused(&refused, 403, "budget_paused");
        assert_eq!(refused.header("x-service-budget"), Some(job.as_str()));
        call(r#"{"job": "b"}"#).send().await.expect(200);
        // A strict budget needs a bound, whose lack its error names.
        let strict = json!({"status": "active", "enforcement": "strict"});
        gateway.put(&format!("/budgets/{job}"), &strict).await.expect(200);
        let image = json!({"type": "image_url", "image_url": {"url": "https://example.invalid/a"}});
        let unbounded = with(
            chat_body(),
            &json!({"messages": [{"role": "user", "content": [image]}], "max_tokens": 9}),
        );
        let refused = call(r#"{"job": "a"}"#).json(&unbounded).send().await;
        assert_refused(&refused, 400, "cost_bound_unknown");
        assert_eq!(refused.header("x-service-budget"), Some(job.as_str()));
        assert!(refused.text().contains(&format!("The budget {job} needs")), "{}", refused.text());
    });
}

#[test]
fn records_and_sums_have_the_budgets_of_a_call() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let observed = json!({
            "enforcement": "observe", "spend_limit": {"amount": "0.001", "cycle": "total"},
        });
        let root = budget(gateway, &observed).await;
        let team = budget(gateway, &json!({"parent_id": root})).await;
        let other = budget(gateway, &json!({"parent_id": root})).await;
        let job = budget(gateway, &json!({"match": {"job": "a"}})).await;
        let key = gateway.spend_key(&json!({"budget_id": team})).await;
        chat(gateway, &key.key).send().await.expect(200);
        gateway.put(&key.path, &json!({"budget_id": other})).await.expect(200);
        let of_job = chat(gateway, &key.key).header("x-service-metadata", r#"{"job": "a"}"#);
        of_job.send().await.expect(200);
        gateway.put(&key.path, &json!({"budget_id": null})).await.expect(200);
        chat(gateway, &key.key).send().await.expect(200);
        let records = gateway.records().await;
        let [third, second, first] = &records[..] else { panic!("{records:?}") };
        assert_eq!(
            (&first["budget_id"], &first["budget_ids"]),
            (&json!(team), &json!([root, team]))
        );
        assert_eq!(first.get("would_refuse"), None);
        assert_eq!(second["budget_id"], json!(other));
        assert_eq!(second["budget_ids"], json!([root, other, job]));
        assert_eq!(second["would_refuse"], json!(true), "the first call has used the limit up");
        assert_eq!((third.get("budget_id"), third.get("budget_ids")), (None, None));
        let list = async |filter: &str| {
            let answer = gateway.get(&format!("/requests?{filter}")).await;
            answer.expect(200)["data"].as_array().unwrap().clone()
        };
        assert_eq!(list(&format!("budget_id={root}")).await, records[1..]);
        assert_eq!(list(&format!("budget_id={job}")).await, records[1..2]);
        assert_eq!(list(&format!("budget_id={team}")).await, records[2..]);
        assert_eq!(list("would_refuse=true").await, records[1..2]);
        assert_issues(&gateway.get("/requests?would_refuse=yes").await, &["would_refuse"]);
        assert_issues(&gateway.get("/requests?budget_id=1").await, &["budget_id"]);
        let usage = async |query: &str| {
            gateway.get(&format!("/usage?interval=none&{query}")).await.expect(200)
        };
        let by_budget = usage("group_by=budget").await;
        let groups = by_budget["items"].as_array().unwrap();
        let group = |id: &Value| {
            let found = groups.iter().find(|item| item["group"]["budget"] == *id);
            found.unwrap()["total_request_cost"].clone()
        };
        assert_eq!(groups.len(), 3, "a call is in the group of one budget");
        for id in [json!(team), json!(other), Value::Null] {
            assert_eq!(group(&id), USED);
        }
        assert_eq!(by_budget["totals"]["total_request_cost"], "0.0060000000");
        let of_root = usage(&format!("budget_id={root}")).await;
        assert_eq!(of_root["totals"]["total_request_cost"], "0.0040000000");
        let by_model = usage(&format!("budget_id={root}&group_by=model")).await;
        assert_eq!(by_model["items"][0]["total_request_cost"], "0.0040000000");
        let csv = gateway.call("GET", "/requests?format=csv").send().await;
        assert!(csv.text().lines().next().unwrap().contains("budget_id,budget_ids,would_refuse"));
        assert_eq!(read(gateway, &root).await["current_spend"], "0.0040000000");
    });
}
