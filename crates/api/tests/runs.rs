//! The API of runs: the calls that belong to one, its limits, the list, and the page of a runaway agent.

use serde_json::json;
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::support::browser::Browser;
use crate::support::document::assert_documented;
use crate::support::{
    Gateway, assert_issues, assert_refused, chat_answer, chat_body, each_gateway,
    each_gateway_by_the_stores_clock, text,
};

/// The cost of `chat_answer` without a meter.
const USED: &str = "0.0020000000";

fn chat(gateway: &Gateway<'_>, key: &str) -> TestRequest {
    let u = gateway.provider.url("/v1/chat/completions");
    gateway.forward_to(&u).bearer(key).json(&chat_body())
}

#[test]
fn a_run_is_named_and_limited_by_headers() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let key = gateway.spend_key(&json!({})).await;
        let call = |run: &str| chat(gateway, &key.key).header("x-service-run", run);
        let limited = |run: &str, limit: &str| call(run).header("x-service-run-limit", limit);
        limited("task:1", "0.003").send().await.expect(200);
        let raised = limited("task:1", "0.0030000001").send().await;
        assert_refused(&raised, 409, "run_limit_conflict");
        assert!(raised.text().contains("0.003 USD"), "{}", raised.text());
        limited("task:1", "0.0025").send().await.expect(200);
        let refused = call("task:1").send().await;
        assert_refused(&refused, 402, "run_limit_reached");
        assert_eq!(refused.header("x-ratelimit-limit"), Some("0.0025000000"));
        assert_eq!(refused.header("x-ratelimit-remaining"), Some("0.0000000000"));
        assert_eq!(refused.header("x-ratelimit-reset"), None, "a run has no cycle");
        assert_eq!(refused.header("x-should-retry"), Some("false"));
        assert!(refused.text().contains("this run may spend in total"), "{}", refused.text());
        let refusal = refused.header("x-service-refusal-id").unwrap().to_owned();
        let kept = gateway.get(&format!("/refusals/{refusal}")).await.expect(200);
        assert_eq!((&kept["run_id"], &kept["limit"]), (&json!("task:1"), &json!("0.0025000000")));
        call("task-2").send().await.expect(200);
        chat(gateway, &key.key).send().await.expect(200);

        // Records, the list, and filters.
        let records = gateway.get("/requests?run_id=task:1").await;
        assert_documented("GET", "/v1/requests", &records);
        let records = records.expect(200)["data"].as_array().unwrap().clone();
        assert_eq!(records.len(), 2);
        assert!(records.iter().all(|record| record["run_id"] == "task:1"));
        let all = gateway.get("/requests").await.expect(200);
        assert!(all["data"][0].get("run_id").is_none(), "{}", all["data"][0]);
        let id = text(&key.made, "spend_key_id");
        let listed = gateway.get(&format!("/runs?spend_key_id={id}")).await;
        assert_documented("GET", "/v1/runs", &listed);
        let listed = listed.expect(200);
        let [newest, first] = &listed["data"].as_array().unwrap()[..] else { panic!("{listed}") };
        assert_eq!((&newest["run_id"], &newest["calls"]), (&json!("task-2"), &json!(1)));
        assert!(newest.get("limit").is_none(), "{newest}");
        let expected = json!({
            "run_id": "task:1",
            "spend_key_id": id,
            "limit": "0.0025000000",
            "spend": "0.0040000000",
            "held": "0.0000000000",
            "calls": 2,
            "first_at": first["first_at"],
            "last_at": records[0]["created_at"],
        });
        assert_eq!(*first, expected);
        let page = gateway.get("/runs?limit=1").await.expect(200);
        assert_eq!(page["data"][0]["run_id"], "task-2");
        let cursor = text(&page, "next_cursor");
        let page = gateway.get(&format!("/runs?limit=1&cursor={cursor}")).await.expect(200);
        assert_eq!((&page["data"][0], &page["has_more"]), (first, &json!(false)));
        assert_refused(&gateway.get("/runs?cursor=x").await, 400, "cursor_invalid");
        assert_issues(&gateway.get("/runs?spend_key_id=x").await, &["spend_key_id"]);
        assert_issues(&gateway.get("/requests?run_id=a%20b").await, &["run_id"]);

        // The page of the run, call by call.
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let list = browser.show(&format!("/runs?spend_key_id={id}")).await;
        let (_, after) = list.rsplit_once("href=\"/dashboard/runs/").unwrap();
        let page = browser.show(&format!("/runs/{}", after.split('"').next().unwrap())).await;
        for part in
            ["<h1>task:1</h1>", "$0.004", "of $0.0025", "refused: run limit reached", &refusal]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("/dashboard/requests/req_").count(), 2);
        let record = browser.show(&format!("/requests/{}", text(&records[0], "request_id"))).await;
        assert!(record.contains("/dashboard/runs/run_"), "{record}");
        assert_eq!(browser.get("/runs/run_01KAK0E8G00000000000000000").await.status, 404);
    });
}

#[test]
fn headers_that_do_not_fit_are_named_and_nothing_is_sent() {
    each_gateway(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let long = "x".repeat(129);
        for (headers, paths) in [
            (&[("x-service-run", "a b")][..], &["x-service-run"][..]),
            (&[("x-service-run", "")], &["x-service-run"]),
            (&[("x-service-run", long.as_str())], &["x-service-run"]),
            (&[("x-service-run", "a"), ("x-service-run", "b")], &["x-service-run"]),
            (&[("x-service-run-limit", "1")], &["x-service-run-limit"]),
            (&[("x-service-run", "a"), ("x-service-run-limit", "0")], &["x-service-run-limit"]),
            (
                &[("x-service-run", "é"), ("x-service-run-limit", "much")],
                &["x-service-run", "x-service-run-limit"],
            ),
            (&[("x-service-metadata", r#"{"run": "a b"}"#)], &["metadata.run"]),
        ] {
            let call = chat(gateway, &key.key);
            let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
            let refused = call.send().await;
            assert_refused(&refused, 400, "validation_failed");
            assert_issues(&refused, paths);
        }
        gateway.provider.assert_calls(0);
        assert_eq!(gateway.get("/runs").await.expect(200)["data"], json!([]));
    });
}

#[test]
fn a_key_limits_its_runs_and_the_metadata_names_them() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        assert_issues(
            &gateway.post("/spend_keys", &json!({"name": "a", "run_limit": {"amount": "0"}})).await,
            &["run_limit.amount"],
        );
        let key = gateway.spend_key(&json!({"run_limit": {"amount": "0.002"}})).await;
        assert_eq!(key.made["run_limit"], json!({"amount": "0.0020000000"}));
        let call = |metadata: &str| chat(gateway, &key.key).header("x-service-metadata", metadata);
        call(r#"{"run": "a"}"#).send().await.expect(200);
        assert_refused(&call(r#"{"run": "a"}"#).send().await, 402, "run_limit_reached");
        call(r#"{"run": "b"}"#).send().await.expect(200);
        // The header takes precedence.
        call(r#"{"run": "a"}"#).header("x-service-run", "c").send().await.expect(200);
        // Calls without a run are the run of the day.
        let unnamed = || chat(gateway, &key.key);
        unnamed().send().await.expect(200);
        let refused = unnamed().send().await;
        assert_refused(&refused, 402, "run_limit_reached");
        assert_eq!(refused.header("x-ratelimit-reset"), Some("2026-11-22T00:00:00Z"));
        let refusals = gateway.get("/refusals?run_id=").await.expect(200);
        assert_eq!(refusals["data"].as_array().unwrap().len(), 1);
        let of_the_day = gateway.get("/requests?run_id=").await.expect(200);
        assert_eq!(of_the_day["data"].as_array().unwrap().len(), 1);
        assert_eq!(of_the_day["data"][0]["run_id"], "");
        let runs = gateway.get("/runs").await.expect(200);
        let runs = runs["data"].as_array().unwrap();
        assert!(runs.iter().all(|run| run["spend"] == USED && run["calls"] == 1), "{runs:?}");
        assert_eq!(runs.len(), 4);
        gateway.store.clock.advance_millis(24 * 60 * 60 * 1_000);
        unnamed().send().await.expect(200);
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let list = browser.show("/runs").await;
        assert!(list.contains("Without a run, 2026-11-21"), "{list}");
        let (_, after) = list.split_once("href=\"/dashboard/runs/").unwrap();
        let page = browser.show(&format!("/runs/{}", after.split('"').next().unwrap())).await;
        assert_eq!(page.matches("/dashboard/requests/req_").count(), 1, "{page}");
        assert!(list.contains("Without a run, 2026-11-22"), "{list}");

        // What the next call may spend is in the answer.
        let asked = chat(gateway, &key.key).header("x-service-report", "cost");
        let answer =
            asked.header("x-service-run", "d").header("x-service-run-limit", "5").send().await;
        assert_eq!(answer.header("x-service-remaining"), Some("0.0000000000"));
        gateway.put(&key.path, &json!({"run_limit": null})).await.expect(200);
        unnamed().send().await.expect(200);
        let shown = gateway.get(&key.path).await.expect(200);
        assert!(shown.get("run_limit").is_none(), "{shown}");
    });
}

#[test]
fn a_run_of_a_secret_key_belongs_to_the_connection_or_to_the_merchant() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let u = gateway.provider.url("/v1/chat/completions");
        let connection = gateway.connection.connection_id.to_string();
        let token = gateway.token(&json!({"connection_id": connection}));
        let call = |bearer: &str| {
            gateway.forward_to(&u).bearer(bearer).json(&chat_body()).header("x-service-run", "a")
        };
        call(gateway.key()).send().await.expect(200);
        call(&token).send().await.expect(200);
        call(&token).send().await.expect(200);
        let runs = async |query: &str| {
            let runs = gateway.get(&format!("/runs{query}")).await.expect(200);
            let runs = runs["data"].as_array().unwrap().iter();
            runs.map(|run| (run["connection_id"].clone(), run["calls"].clone())).collect::<Vec<_>>()
        };
        let of_connection = (json!(connection), json!(2));
        assert_eq!(runs("").await, [of_connection.clone(), (json!(null), json!(1))]);
        assert_eq!(runs(&format!("?connection_id={connection}")).await, [of_connection]);

        // The page of each run has the calls of its owner alone.
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let list = browser.show("/runs").await;
        let ids = list.split("href=\"/dashboard/runs/").skip(1);
        let mut counts = Vec::new();
        for id in ids {
            let page = browser.show(&format!("/runs/{}", id.split('"').next().unwrap())).await;
            assert!(!page.contains('−'), "no sum is negative: {page}");
            counts.push(page.matches("/dashboard/requests/req_").count());
        }
        assert_eq!(counts, [2, 1]);
    });
}
