//! Batches of messages: a job that holds the sum of its requests and costs the sum of its answers.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::jobs::{assert_body_issues, assert_settled, ended, ended_in_steps, polled, record_of};
use crate::support::{Gateway, TestSpendKey, each_gateway_by_the_stores_clock, names, text};

const NOTHING: &str = "0.0000000000";

pub(crate) fn request(custom_id: &str, model: &str) -> Value {
    let params = json!({"model": model, "max_tokens": 1000,
        "messages": [{"role": "user", "content": "Hello"}]});
    json!({"custom_id": custom_id, "params": params})
}

fn of_batches(gateway: &Gateway<'_>, key: &TestSpendKey, method: &str, path: &str) -> TestRequest {
    gateway
        .call_without_key(method, &format!("/messages/batches{path}"))
        .header("x-api-key", &key.key)
        .header("anthropic-version", "2023-06-01")
}

fn create(gateway: &Gateway<'_>, key: &TestSpendKey, requests: &[Value]) -> TestRequest {
    of_batches(gateway, key, "POST", "").json(&json!({"requests": requests}))
}

/// A batch of three requests, with these counts of `succeeded`, `errored`, `canceled` and `expired`.
pub(crate) fn batch(
    id: &str,
    status: &str,
    [succeeded, errored, canceled, expired]: [u64; 4],
) -> ScriptedResponse {
    let results = format!("https://api.anthropic.com/v1/messages/batches/{id}/results");
    ScriptedResponse::json(
        200,
        json!({
            "id": id, "type": "message_batch", "processing_status": status,
            "request_counts": {"processing": 3 - succeeded - errored - canceled - expired,
                "succeeded": succeeded, "errored": errored, "canceled": canceled, "expired": expired},
            "created_at": "2026-11-21T00:00:00Z", "expires_at": "2026-11-22T00:00:00Z",
            "results_url": if status == "ended" { json!(results) } else { Value::Null },
        }),
    )
}

/// The results of a batch, one in each line.
pub(crate) fn results(lines: &[Value]) -> ScriptedResponse {
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}\n")).collect();
    ScriptedResponse::bytes(200, "application/x-jsonl", lines.concat())
}

/// A result of 1,000 input and 500 output tokens.
fn succeeded(custom_id: &str, model: &str) -> Value {
    let message = json!({"id": format!("msg_{custom_id}"), "type": "message", "role": "assistant",
        "model": model, "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 1000, "output_tokens": 500, "service_tier": "batch"}});
    json!({"custom_id": custom_id, "result": {"type": "succeeded", "message": message}})
}

fn without_answer(custom_id: &str, kind: &str) -> Value {
    json!({"custom_id": custom_id, "result": {"type": kind}})
}

/// A job of a batch of these requests, which runs.
async fn running(gateway: &Gateway<'_>, key: &TestSpendKey, id: &str, requests: &[Value]) -> Value {
    gateway.provider.push(batch(id, "in_progress", [0; 4]));
    let created = create(gateway, key, requests).send().await.expect(200);
    assert_eq!(created["id"], id);
    let jobs = gateway.get("/jobs?limit=1").await.expect(200);
    let job = jobs["data"][0].clone();
    assert_eq!(
        (&job["kind"], &job["provider_object_id"], &job["state"]),
        (&json!("batch"), &json!(id), &json!("running"))
    );
    job
}

#[test]
fn a_batch_holds_the_sum_of_its_requests_and_costs_the_sum_of_its_answers() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let requests = [request("a", "m-half"), request("b", "m-half"), request("c", "m-1")];
        let started = running(gateway, &key, "msgbatch_1", &requests).await;
        // 1,000 output tokens twice at 1 USD per million, and once at 2; and some input.
        let hold: f64 = text(&started, "hold").parse().unwrap();
        assert!((0.004..0.005).contains(&hold), "{hold}");
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], started["hold"]);
        assert_eq!(started["expires_at"], "2026-11-22T00:00:00Z");

        // The retrieval that shows the end is passed on, and its results are read by the poller.
        gateway.provider.push(batch("msgbatch_1", "ended", [3, 0, 0, 0]));
        gateway.store.clock.advance_millis(1_000);
        let seen = of_batches(gateway, &key, "GET", "/msgbatch_1").send().await.expect(200);
        let address = text(&seen, "results_url");
        gateway.provider.push(batch("msgbatch_1", "ended", [3, 0, 0, 0]));
        let listed = of_batches(gateway, &key, "GET", "").send().await.expect(200);
        assert_eq!(text(&listed["data"][0], "results_url"), address);
        assert!(address.ends_with("/v1/messages/batches/msgbatch_1/results"), "{address}");
        assert!(!address.contains("anthropic.com"), "{address}");
        let all = [
            succeeded("c", "m-1-2026"),
            succeeded("a", "m-half-2026"),
            succeeded("b", "m-half-2026"),
        ];
        gateway.provider.push(batch("msgbatch_1", "ended", [3, 0, 0, 0]));
        gateway.provider.push(results(&all));
        polled(gateway, async {
            assert_eq!(ended(gateway, &started).await["state"], "succeeded");
        })
        .await;
        let targets: Vec<_> =
            gateway.provider.requests().into_iter().map(|one| one.target).collect();
        assert_eq!(
            targets[3..],
            [
                "/anthropic/v1/messages/batches/msgbatch_1",
                "/anthropic/v1/messages/batches/msgbatch_1/results"
            ]
        );
        let record = record_of(gateway, &started).await;
        // 0.002 USD of m-1, and twice 0.001 of m-half.
        assert_settled(&record, "completed", "0.0040000000");
        assert_eq!(
            (&record["usage_source"], &record["response_id"]),
            (&json!("reported"), &json!("msgbatch_1"))
        );
        let lines = record["lines"].as_array().unwrap();
        let line = |number: usize| {
            let line = &lines[number];
            (text(line, "model"), line["requests"].as_u64().unwrap(), text(line, "cost"))
        };
        assert_eq!(line(0), ("m-1-2026".to_owned(), 1, "0.0020000000".to_owned()));
        assert_eq!(line(1), ("m-half-2026".to_owned(), 2, "0.0020000000".to_owned()));
        assert_eq!(lines[1]["usage"]["input_tokens"], 2000);
        assert_eq!(lines[1]["tier"], "batch");
        assert_eq!(names(&lines[1]), ["cost", "model", "requests", "tier", "usage"]);
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], NOTHING);
        assert_eq!(gateway.get(&key.path).await.expect(200)["total_spend"], "0.0040000000");

        // The results are passed to the client, byte for byte, for nothing.
        gateway.provider.push(results(&all));
        let read = of_batches(gateway, &key, "GET", "/msgbatch_1/results").send().await;
        let expected: Vec<_> = all.iter().map(|line| format!("{line}\n")).collect();
        assert_eq!((read.status, read.text()), (200, expected.concat().as_str()));
        assert_eq!(gateway.get(&key.path).await.expect(200)["total_spend"], "0.0040000000");
    });
}

#[test]
fn requests_without_an_answer_cost_nothing() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let requests = ["a", "b", "c"].map(|id| request(id, "m-1"));
        for (kind, counts, state, cost, status) in [
            ("errored", [1, 2, 0, 0], "succeeded", "0.0020000000", "completed"),
            ("canceled", [1, 0, 2, 0], "cancelled", "0.0020000000", "error"),
            ("expired", [1, 0, 0, 2], "expired", "0.0020000000", "error"),
            ("errored", [0, 3, 0, 0], "succeeded", NOTHING, "completed"),
        ] {
            let id = format!("msgbatch_{state}_{}", counts[0]);
            let started = running(gateway, &key, &id, &requests).await;
            let first = match counts[0] {
                1 => succeeded("a", "m-1-2026"),
                _ => without_answer("a", kind),
            };
            gateway.provider.push(batch(&id, "ended", counts));
            gateway.provider.push(results(&[
                without_answer("b", kind),
                first,
                without_answer("c", kind),
            ]));
            polled(gateway, async {
                gateway.store.clock.advance_millis(2_000);
                assert_eq!(ended(gateway, &started).await["state"], state);
            })
            .await;
            assert_settled(&record_of(gateway, &started).await, status, cost);
        }
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], NOTHING);
    });
}

#[test]
fn results_that_break_are_read_again_and_booked_once() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let requests = ["a", "b", "c"].map(|id| request(id, "m-1"));
        let started = running(gateway, &key, "msgbatch_1", &requests).await;
        let all = ["a", "b", "c"].map(|id| succeeded(id, "m-1-2026"));
        let whole = || batch("msgbatch_1", "ended", [3, 0, 0, 0]);
        let calls = gateway.provider.calls();
        polled(gateway, async {
            for answer in [
                whole(),
                ScriptedResponse::json(500, json!({})),
                whole(),
                ScriptedResponse::json(404, json!({})),
                whole(),
                results(&[]),
                whole(),
                results(&all[..2]),
                whole(),
                ScriptedResponse::bytes(200, "application/x-jsonl", "<html>oops</html>"),
                whole(),
                results(&all),
            ] {
                gateway.provider.push(answer);
            }
            let done = ended_in_steps(gateway, &started, 30_000).await;
            assert_eq!(done["state"], "succeeded");
        })
        .await;
        gateway.provider.assert_calls(calls + 12);
        assert_settled(&record_of(gateway, &started).await, "completed", "0.0060000000");
    });
}

#[test]
fn an_answer_of_an_unknown_model_costs_what_the_requested_model_costs() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let mut silent = succeeded("a", "m-half-2026");
        silent["result"]["message"]["usage"] = Value::Null;
        for (id, result, source) in [
            ("msgbatch_1", succeeded("a", "other"), "reported"),
            ("msgbatch_2", silent, "estimated"),
        ] {
            let started = running(gateway, &key, id, &[request("a", "m-half")]).await;
            gateway.provider.push(batch(id, "ended", [1, 0, 0, 0]));
            gateway.provider.push(results(&[result]));
            polled(gateway, async {
                ended_in_steps(gateway, &started, 2_000).await;
            })
            .await;
            let record = record_of(gateway, &started).await;
            assert_eq!(record["usage_source"], source);
            if source == "reported" {
                assert_settled(&record, "completed", "0.0010000000");
            }
        }
    });
}

#[test]
fn each_request_of_a_batch_is_checked_and_named_by_its_place() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({"allowed_models": ["m-1"]})).await;
        let mut streamed = request("b", "m-1");
        streamed["params"]["stream"] = json!(true);
        let mut silent = request("c", "m-1");
        silent["params"].as_object_mut().unwrap().remove("messages");
        silent["params"]["max_tokens"] = json!("many");
        let requests = [request("a", "m-2"), streamed, silent];
        let refused = create(gateway, &key, &requests).send().await;
        assert_body_issues(
            &refused,
            &[
                "requests.0.params.model",
                "requests.1.params.stream",
                "requests.2.params.max_tokens",
            ],
        );
        assert_body_issues(&create(gateway, &key, &[]).send().await, &["requests"]);
        let unknown = create(gateway, &key, &[request("a", "unknown")]).send().await;
        assert_body_issues(&unknown, &["requests.0.params.model"; 2]);
        let unknown =
            of_batches(gateway, &key, "POST", "").json(&json!({"requests": [{"custom_id": "a"}]}));
        assert_body_issues(&unknown.send().await, &["requests"]);
        gateway.provider.assert_calls(0);
        assert_eq!(gateway.get("/jobs").await.expect(200)["data"], json!([]));
    });
}

#[test]
fn a_batch_beyond_a_limit_is_refused_as_a_whole() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let limit =
            json!({"enforcement": "strict", "spend_limit": {"amount": "0.005", "cycle": "total"}});
        let key = gateway.spend_key(&limit).await;
        let requests = ["a", "b", "c"].map(|id| request(id, "m-1"));
        let refused = create(gateway, &key, &requests).send().await;
        assert_eq!((refused.status, refused.error().as_str()), (402, "spend_limit_reached"));
        gateway.provider.assert_calls(0);
        let started = running(gateway, &key, "msgbatch_1", &requests[..2]).await;
        let refused = create(gateway, &key, &requests[..2]).send().await;
        assert_eq!(refused.status, 402, "the first holds most of the limit");
        gateway.provider.push(batch("msgbatch_1", "ended", [2, 0, 0, 0]));
        gateway.provider.push(results(&["a", "b"].map(|id| succeeded(id, "m-1-2026"))));
        polled(gateway, async {
            gateway.store.clock.advance_millis(2_000);
            ended(gateway, &started).await;
        })
        .await;
        assert_eq!(gateway.get(&key.path).await.expect(200)["total_spend"], "0.0040000000");
    });
}

#[test]
fn a_batch_belongs_to_its_wallet_and_only_its_own_are_listed() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
        let own = gateway.spend_key(&wallet).await;
        let other = gateway.spend_key(&json!({})).await;
        let requests = [request("a", "m-1")];
        let mut jobs = Vec::new();
        for id in ["msgbatch_1", "msgbatch_2", "msgbatch_3"] {
            gateway.store.clock.advance_millis(1);
            jobs.push((id, running(gateway, &own, id, &requests).await));
        }
        let calls = gateway.provider.calls();
        for (method, tail) in
            [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/results")]
        {
            let path = format!("/msgbatch_1{tail}");
            let refused = of_batches(gateway, &other, method, &path).send().await;
            assert_eq!(refused.status, 404, "{method} {tail}");
        }
        let listed = of_batches(gateway, &other, "GET", "").send().await.expect(200);
        assert_eq!((&listed["data"], &listed["has_more"]), (&json!([]), &json!(false)));
        let refused = of_batches(gateway, &own, "DELETE", "/msgbatch_1").send().await;
        assert_eq!(refused.status, 409, "its results are not read yet");
        gateway.provider.assert_calls(calls);

        for id in ["msgbatch_3", "msgbatch_2"] {
            gateway.provider.push(batch(id, "in_progress", [0; 4]));
        }
        let listed =
            of_batches(gateway, &own, "GET", "?limit=2&after_id=").send().await.expect(200);
        assert_eq!(
            (&listed["has_more"], listed["data"].as_array().unwrap().len()),
            (&json!(true), 2)
        );
        gateway.provider.push(batch("msgbatch_1", "in_progress", [0; 4]));
        let next =
            of_batches(gateway, &own, "GET", "?after_id=msgbatch_2").send().await.expect(200);
        assert_eq!((&next["first_id"], &next["has_more"]), (&json!("msgbatch_1"), &json!(false)));
        gateway.provider.push(batch("msgbatch_2", "in_progress", [0; 4]));
        let before = of_batches(gateway, &own, "GET", "?before_id=msgbatch_1&limit=1");
        let before = before.send().await.expect(200);
        assert_eq!(
            (&before["first_id"], &before["last_id"], &before["has_more"]),
            (&json!("msgbatch_2"), &json!("msgbatch_2"), &json!(true))
        );
        for id in ["msgbatch_1", "msgbatch_unknown"] {
            let path = format!("?before_id={id}");
            let foreign = of_batches(gateway, &other, "GET", &path).send().await.expect(200);
            assert_eq!((&foreign["data"], &foreign["has_more"]), (&json!([]), &json!(false)));
        }
        let refused = of_batches(gateway, &own, "GET", "?limit=0").send().await;
        assert_eq!(refused.status, 400);
        let records = gateway.get("/requests").await.expect(200);
        assert_eq!(records["data"].as_array().unwrap().len(), 3, "a list has no record");

        for (id, started) in jobs {
            let path = format!("/{id}/cancel");
            gateway.provider.push(batch(id, "ended", [0, 0, 3, 0]));
            of_batches(gateway, &own, "POST", &path).send().await.expect(200);
            gateway.provider.push(batch(id, "ended", [0, 0, 3, 0]));
            gateway.provider.push(results(&[without_answer("a", "canceled")]));
            polled(gateway, async {
                assert_eq!(ended(gateway, &started).await["state"], "cancelled");
            })
            .await;
            gateway.provider.push(ScriptedResponse::json(200, json!({"id": id})));
            of_batches(gateway, &own, "DELETE", &format!("/{id}")).send().await.expect(200);
        }
        let listed = of_batches(gateway, &own, "GET", "").send().await.expect(200);
        assert_eq!(listed["data"], json!([]), "they are deleted");
    });
}
