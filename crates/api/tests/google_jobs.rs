//! Google's batches and videos: jobs whose objects are operations.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::jobs::{assert_body_issues, assert_settled, ended, ended_in_steps, polled, record_of};
use crate::support::{Gateway, TestSpendKey, each_gateway_by_the_stores_clock, text};

const NOTHING: &str = "0.0000000000";

/// A call of a version of Google's, with Google's kind of credential.
fn call_of(
    gateway: &Gateway<'_>,
    (version, key): (&str, &TestSpendKey),
    method: &str,
    path: &str,
) -> TestRequest {
    TestRequest::new(gateway.address, method, &format!("/{version}{path}"))
        .header("x-goog-api-key", &key.key)
}

fn call(gateway: &Gateway<'_>, key: &TestSpendKey, method: &str, path: &str) -> TestRequest {
    call_of(gateway, ("v1beta", key), method, path)
}

pub(crate) fn request(text: &str) -> Value {
    let contents = json!([{"role": "user", "parts": [{"text": text}]}]);
    json!({"request": {"contents": contents, "generationConfig": {"maxOutputTokens": 1000}},
        "metadata": {"key": text}})
}

pub(crate) fn body(requests: &[Value]) -> Value {
    json!({"batch": {"displayName": "A", "inputConfig": {"requests": {"requests": requests}}}})
}

/// The operation of a batch, with these answers if it has ended.
pub(crate) fn batch(id: &str, state: &str, answered: usize, answers: &[Value]) -> ScriptedResponse {
    let list = json!({"inlinedResponses": {"inlinedResponses": answers}});
    let name = format!("batches/{id}");
    let mut operation = json!({
        "name": name,
        "metadata": {
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            "model": "models/g-1", "displayName": "A", "name": name, "state": state,
            "batchStats": {"requestCount": "2", "successfulRequestCount": answered.to_string()},
        },
    });
    if !answers.is_empty() {
        operation["metadata"]["output"] = list.clone();
        operation["done"] = json!(true);
        operation["response"] = list;
    }
    ScriptedResponse::json(200, operation)
}

/// An answer of 1,000 input and 500 output tokens.
fn answered() -> Value {
    json!({"response": {"modelVersion": "g-1", "responseId": "r", "candidates": [
            {"content": {"parts": [{"text": "Hi ]}"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 500, "totalTokenCount": 1500}}})
}

async fn job_of(gateway: &Gateway<'_>, kind: &str, id: &str) -> Value {
    let job = gateway.get("/jobs?limit=1").await.expect(200)["data"][0].clone();
    assert_eq!(
        (&job["kind"], &job["provider_object_id"], &job["state"]),
        (&json!(kind), &json!(id), &json!("running"))
    );
    job
}

async fn running(gateway: &Gateway<'_>, key: &TestSpendKey, id: &str, requests: &[Value]) -> Value {
    gateway.provider.push(batch(id, "BATCH_STATE_PENDING", 0, &[]));
    let created = call(gateway, key, "POST", "/models/g-1:batchGenerateContent");
    let created = created.json(&body(requests)).send().await.expect(200);
    assert_eq!(created["name"], format!("batches/{id}"));
    job_of(gateway, "batch", id).await
}

#[test]
fn a_batch_holds_its_requests_and_costs_the_answers_in_its_operation_once() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let started = running(gateway, &key, "b1", &[request("a"), request("b")]).await;
        // Twice 1,000 output tokens at 1 USD per million, which is half of the price, and some input.
        let hold: f64 = text(&started, "hold").parse().unwrap();
        assert!((0.002..0.0025).contains(&hold), "{hold}");
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], started["hold"]);
        let failed = json!({"error": {"code": 3, "message": "bad"}});
        let whole = || batch("b1", "BATCH_STATE_SUCCEEDED", 1, &[answered(), failed.clone()]);
        gateway.provider.push(whole());
        let seen = call(gateway, &key, "GET", "/batches/b1").send().await.expect(200);
        assert_eq!(
            seen["metadata"]["output"]["inlinedResponses"]["inlinedResponses"][0],
            answered()
        );
        for _ in 0..2 {
            gateway.provider.push(whole());
        }
        polled(gateway, async {
            gateway.store.clock.advance_millis(2_000);
            assert_eq!(ended(gateway, &started).await["state"], "succeeded");
        })
        .await;
        let record = record_of(gateway, &started).await;
        assert_settled(&record, "completed", "0.0010000000");
        let line = &record["lines"][0];
        assert_eq!(
            (&line["model"], &line["tier"], &line["requests"]),
            (&json!("g-1"), &json!("batch"), &json!(1))
        );
        assert_eq!(
            (&record["model"], &record["usage_source"]),
            (&json!("g-1"), &json!("reported"))
        );
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], NOTHING);
        assert_eq!(gateway.get(&key.path).await.expect(200)["total_spend"], "0.0010000000");
    });
}

#[test]
fn answers_that_are_missing_or_break_are_read_again() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let started = running(gateway, &key, "b1", &[request("a"), request("b")]).await;
        let of = |answers: &[Value]| batch("b1", "BATCH_STATE_SUCCEEDED", 2, answers);
        let whole = || of(&[answered(), answered()]);
        polled(gateway, async {
            for answer in [
                whole(),
                ScriptedResponse::json(500, json!({})),
                whole(),
                of(&[answered()]),
                whole(),
                ScriptedResponse::bytes(200, "application/json", "{\"name\":\"batches/b1\",\"m"),
                whole(),
                whole(),
            ] {
                gateway.provider.push(answer);
            }
            assert_eq!(ended_in_steps(gateway, &started, 30_000).await["state"], "succeeded");
        })
        .await;
        assert_settled(&record_of(gateway, &started).await, "completed", "0.0020000000");
    });
}

#[test]
fn a_batch_that_fails_is_cancelled_or_expires_costs_nothing() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        for (id, word, state) in [
            ("b1", "BATCH_STATE_FAILED", "failed"),
            ("b2", "BATCH_STATE_CANCELLED", "cancelled"),
            ("b3", "BATCH_STATE_EXPIRED", "expired"),
        ] {
            let started = running(gateway, &key, id, &[request("a")]).await;
            if state == "cancelled" {
                gateway.provider.push(ScriptedResponse::json(200, json!({})));
                let path = format!("/batches/{id}:cancel");
                let cancelled = call(gateway, &key, "POST", &path).send().await.expect(200);
                assert_eq!(cancelled, json!({}));
            }
            for _ in 0..2 {
                gateway.provider.push(batch(id, word, 0, &[]));
            }
            polled(gateway, async {
                assert_eq!(ended_in_steps(gateway, &started, 2_000).await["state"], state);
            })
            .await;
            assert_settled(&record_of(gateway, &started).await, "error", NOTHING);
        }
    });
}

#[test]
fn each_request_of_a_batch_is_checked_and_named_by_its_place() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let create = |model: &str, body: &Value| {
            let path = format!("/models/{model}:batchGenerateContent");
            call(gateway, &key, "POST", &path).json(body)
        };
        let mut stored = request("a");
        stored["request"]["cachedContent"] = json!("cachedContents/c");
        let mut many = request("b");
        many["request"]["generationConfig"]["maxOutputTokens"] = json!("many");
        let mut other = request("c");
        other["request"]["model"] = json!("models/g-2");
        let refused = create("g-1", &body(&[stored, many])).send().await;
        assert_body_issues(
            &refused,
            &[
                "requests.0.request.cachedContent",
                "requests.1.request.generationConfig.maxOutputTokens",
            ],
        );
        let refused = create("g-1", &body(&[other])).send().await;
        assert_body_issues(&refused, &["requests.0.request.model"]);
        assert_body_issues(&create("g-1", &body(&[])).send().await, &["requests"]);
        let file = json!({"batch": {"input_config": {"file_name": "files/f"}}});
        let refused = create("g-1", &file).send().await;
        assert_body_issues(&refused, &["batch.inputConfig.fileName"]);
        let refused = create("unknown", &body(&[request("a")])).send().await;
        assert_eq!(refused.error(), "model_price_unknown");
        let limits = json!({"allowed_models": ["g-2"]});
        let limited = gateway.spend_key(&limits).await;
        let refused = call(gateway, &limited, "POST", "/models/g-1:batchGenerateContent");
        let refused = refused.json(&body(&[request("a")])).send().await;
        assert_body_issues(&refused, &["requests.0.request.model"]);
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn batches_and_videos_belong_to_their_wallet_in_every_version() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
        let own = gateway.spend_key(&wallet).await;
        let other = gateway.spend_key(&json!({})).await;
        let first = running(gateway, &own, "b1", &[request("a")]).await;
        gateway.store.clock.advance_millis(1);
        let second = running(gateway, &own, "b2", &[request("a")]).await;
        let calls = gateway.provider.calls();
        for version in ["v1", "v1beta", "v1alpha"] {
            let foreign =
                |method: &str, path: &str| call_of(gateway, (version, &other), method, path);
            for (method, path) in [
                ("GET", "/batches/b1"),
                ("DELETE", "/batches/b1"),
                ("POST", "/batches/b1:cancel"),
                ("GET", "/models/film-1/operations/o1"),
                ("GET", "/files/f1:download?alt=media"),
            ] {
                let refused = foreign(method, path).send().await;
                assert_eq!(refused.status, 404, "{version} {method} {path}");
            }
            let listed = foreign("GET", "/batches").send().await.expect(200);
            assert_eq!(listed, json!({"operations": []}), "{version}");
        }
        let refused = call(gateway, &own, "DELETE", "/batches/b1").send().await;
        assert_eq!((refused.status, refused.error().as_str()), (409, "job_running"));
        gateway.provider.assert_calls(calls);

        gateway.provider.push(batch("b2", "BATCH_STATE_SUCCEEDED", 1, &[answered()]));
        let page = call(gateway, &own, "GET", "/batches?pageSize=1").send().await.expect(200);
        assert_eq!(page["operations"][0]["name"], "batches/b2");
        let shown = &page["operations"][0]["response"]["inlinedResponses"]["inlinedResponses"];
        assert_eq!(*shown, json!([]), "a list does not show answers");
        gateway.provider.push(batch("b1", "BATCH_STATE_RUNNING", 0, &[]));
        let next = format!("/batches?pageSize=1&pageToken={}", text(&page, "nextPageToken"));
        let page = call(gateway, &own, "GET", &next).send().await.expect(200);
        assert_eq!(page["operations"][0]["name"], "batches/b1");
        assert_eq!(page.get("nextPageToken"), None);
        gateway.provider.push_always(batch("b", "BATCH_STATE_FAILED", 0, &[]));
        polled(gateway, async {
            for started in [first, second] {
                ended_in_steps(gateway, &started, 2_000).await;
            }
        })
        .await;
        let deleted = call(gateway, &own, "DELETE", "/batches/b1").send().await;
        assert_eq!(deleted.status, 200);
        let gone = call(gateway, &own, "GET", "/batches/b1").send().await;
        assert_eq!(gone.status, 404, "what is deleted belongs to no one");
    });
}

/// The operation of videos, with this response if it is done.
pub(crate) fn operation(id: &str, response: Option<Value>) -> ScriptedResponse {
    let name = format!("models/film-1/operations/{id}");
    ScriptedResponse::json(
        200,
        match response {
            Some(response) => json!({"name": name, "done": true, "response": response}),
            None => json!({"name": name}),
        },
    )
}

fn samples(ids: &[&str], filtered: u64) -> Value {
    let sample = |id: &&str| {
        let uri = format!("https://google.invalid/v1beta/files/{id}:download?alt=media");
        json!({"video": {"uri": uri}})
    };
    let samples: Vec<_> = ids.iter().map(sample).collect();
    json!({"generateVideoResponse": {"generatedSamples": samples, "raiMediaFilteredCount": filtered}})
}

pub(crate) fn film(parameters: &Value) -> Value {
    json!({"instances": [{"prompt": "A gate opens."}], "parameters": parameters})
}

#[test]
fn videos_hold_every_sample_and_cost_those_that_are_delivered() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let parameters = |size: &str, samples: u64| json!({"durationSeconds": 8, "sampleCount": samples, "resolution": size});
        for (id, size, hold, delivered, cost) in [
            ("o1", "720p", "1.6000000000", samples(&["f1", "f2"], 0), "1.6000000000"),
            ("o2", "1080p", "8.0000000000", samples(&["f3"], 1), "4.0000000000"),
            ("o3", "720p", "1.6000000000", samples(&[], 2), NOTHING),
            // Nothing is said of the samples: those of the request count.
            ("o4", "720p", "1.6000000000", json!({}), "1.6000000000"),
        ] {
            gateway.provider.push(operation(id, None));
            let made = call(gateway, &key, "POST", "/models/film-1:predictLongRunning");
            made.json(&film(&parameters(size, 2))).send().await.expect(200);
            let started = job_of(gateway, "video", id).await;
            assert_eq!(started["hold"], hold, "{id}");
            gateway.provider.push(operation(id, Some(delivered)));
            let path = format!("/models/film-1/operations/{id}");
            let seen = call(gateway, &key, "GET", &path).send().await.expect(200);
            assert_eq!(seen["done"], true);
            let record = record_of(gateway, &started).await;
            assert_settled(&record, "completed", cost);
            let source = if id == "o4" { "estimated" } else { "reported" };
            assert_eq!(record["usage_source"], source, "{id}");
        }
        gateway.provider.push(ScriptedResponse::bytes(200, "video/mp4", "film"));
        let content = call(gateway, &key, "GET", "/files/f1:download?alt=media").send().await;
        assert_eq!((content.status, content.text()), (200, "film"));
        let unknown = call(gateway, &key, "GET", "/files/f9:download?alt=media").send().await;
        assert_eq!(unknown.status, 404);
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], NOTHING);
    });
}

#[test]
fn an_operation_that_fails_costs_nothing_and_the_poller_sees_it() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        for (id, code, state) in [("o1", 13, "failed"), ("o2", 1, "cancelled")] {
            gateway.provider.push(operation(id, None));
            let made = call(gateway, &key, "POST", "/models/film-1:predictLongRunning");
            made.json(&film(&json!({"durationSeconds": "8"}))).send().await.expect(200);
            let started = job_of(gateway, "video", id).await;
            assert_eq!(started["hold"], "0.8000000000");
            gateway.provider.push(ScriptedResponse::json(
                200,
                json!({"name": format!("models/film-1/operations/{id}"), "done": true,
                    "error": {"code": code, "message": "no film"}}),
            ));
            polled(gateway, async {
                assert_eq!(ended_in_steps(gateway, &started, 2_000).await["state"], state);
            })
            .await;
            assert_settled(&record_of(gateway, &started).await, "error", NOTHING);
        }
    });
}

#[test]
fn an_answer_that_settles_a_job_cannot_be_asked_for_in_part() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        gateway.provider.push(operation("o1", None));
        let made = call(gateway, &key, "POST", "/models/film-1:predictLongRunning");
        made.json(&film(&json!({"durationSeconds": 8}))).send().await.expect(200);
        let started = job_of(gateway, "video", "o1").await;
        let calls = gateway.provider.calls();
        let own = gateway.token(&json!({"provider_key": "sk-own"}));
        for query in ["fields=name,done", "%24fields=name", "alt=proto", "access_token=a"] {
            let path = format!("/models/film-1/operations/o1?{query}");
            let refused = call(gateway, &key, "GET", &path).send().await;
            let name = query.split('=').next().unwrap().replace("%24", "$");
            assert_body_issues(&refused, &[&name]);
            let path = format!("/providers/palace{path}");
            let refused = gateway.call_without_key("GET", &path).bearer(&own).send().await;
            assert_body_issues(&refused, &[&name]);
        }
        gateway.provider.assert_calls(calls);
        gateway.provider.push(operation("o1", Some(samples(&["f1"], 0))));
        call(gateway, &key, "GET", "/models/film-1/operations/o1").send().await.expect(200);
        assert_settled(&record_of(gateway, &started).await, "completed", "0.8000000000");
    });
}

#[test]
fn what_leaves_the_cost_of_videos_open_or_names_stored_films_is_refused() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let limit =
            json!({"enforcement": "strict", "spend_limit": {"amount": "1", "cycle": "total"}});
        let key = gateway.spend_key(&limit).await;
        let send = async |body: &Value| {
            let made = call(gateway, &key, "POST", "/models/film-1:predictLongRunning");
            made.json(body).send().await
        };
        for (parameters, path) in [
            (json!({"sampleCount": 1}), "parameters.durationSeconds"),
            (json!({"sampleCount": 1, "durationSeconds": 0}), "parameters.durationSeconds"),
            (json!({"durationSeconds": 8}), "parameters.sampleCount"),
        ] {
            let refused = send(&film(&parameters)).await;
            assert_eq!(refused.error(), "cost_bound_unknown");
            assert_eq!(refused.issue_paths(), [path]);
        }
        let refused = send(&film(&json!({"durationSeconds": 8, "sampleCount": 2}))).await;
        assert_eq!((refused.status, refused.error().as_str()), (402, "spend_limit_reached"));
        let mut stored =
            film(&json!({"durationSeconds": 8, "sampleCount": 1, "storageUri": "gs://b"}));
        stored["instances"][0]["video"] = json!({"gcsUri": "gs://bucket/film.mp4"});
        assert_body_issues(&send(&stored).await, &["instances.0", "parameters.storageUri"]);
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn the_operation_of_vertex_is_named_in_the_body() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
        let own = gateway.spend_key(&wallet).await;
        let other = gateway.spend_key(&json!({})).await;
        let model = "/projects/p/locations/l/publishers/google/models/film-1";
        let path = |verb: &str| format!("/providers/palace{model}:{verb}");
        let send = async |key: &TestSpendKey, verb: &str, body: &Value| {
            gateway.call_without_key("POST", &path(verb)).bearer(&key.key).json(body).send().await
        };
        let name = format!("{}/operations/o1", model.trim_start_matches('/'));
        gateway.provider.push(ScriptedResponse::json(200, json!({"name": name})));
        let parameters = json!({"durationSeconds": 8, "sampleCount": 1});
        send(&own, "predictLongRunning", &film(&parameters)).await.expect(200);
        let started = job_of(gateway, "video", "o1").await;
        let calls = gateway.provider.calls();
        let named = json!({"operationName": name});
        let refused = send(&other, "fetchPredictOperation", &named).await;
        assert_eq!(refused.status, 404);
        let refused = send(&own, "fetchPredictOperation", &json!({})).await;
        assert_body_issues(&refused, &["operationName"]);
        gateway.provider.assert_calls(calls);
        gateway.provider.push(ScriptedResponse::json(200, json!({"name": name})));
        send(&own, "fetchPredictOperation", &named).await.expect(200);
        let film = "A".repeat(9 * 1024 * 1024);
        gateway.provider.push(ScriptedResponse::json(
            200,
            json!({"name": name, "done": true,
                "response": {"raiMediaFilteredCount": 0, "videos": [{"bytesBase64Encoded": film}]}}),
        ));
        polled(gateway, async {
            assert_eq!(ended_in_steps(gateway, &started, 2_000).await["state"], "succeeded");
        })
        .await;
        assert_settled(&record_of(gateway, &started).await, "completed", "0.8000000000");
        let asked = gateway.provider.requests().pop().unwrap();
        assert_eq!(asked.target, format!("/google/v1beta{model}:fetchPredictOperation"));
        assert_eq!(asked.method, "POST");
        assert_eq!(serde_json::from_slice::<Value>(&asked.body).unwrap(), named);
    });
}
