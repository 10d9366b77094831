//! Jobs: responses in the background, whose end is seen by the client, by an event of the provider, or by a look.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tollgate_api::Settings;
use tollgate_domain::WebhookSecret;
use tollgate_provider::ProviderClient;
use tollgate_testkit::{Gate, ScriptedResponse, TestRequest, TestResponse};

use crate::support::{
    Gateway, PROVIDER_SECRET, TestSpendKey, assert_issues, each_gateway_by_the_stores_clock,
    each_gateway_by_the_stores_clock_under, settings, text,
};

/// 0.004 USD: 2,000 input tokens and 1,000 output tokens at the prices of tests.
const USED: &str = "0.0040000000";

/// The pause between two looks of a test at a job.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn body() -> Value {
    json!({"model": "m-1", "input": "Write a report.", "max_output_tokens": 1000, "background": true})
}

/// A response in a state. One that has ended well reports its usage.
fn response(id: &str, status: &str) -> Value {
    let usage = json!({"input_tokens": 2000, "output_tokens": 1000, "total_tokens": 3000});
    let error = json!({"code": "server_error", "message": "It broke."});
    json!({
        "id": id, "object": "response", "created_at": 1_700_000_000, "model": "m-1-2026",
        "status": status, "background": true, "output": [],
        "usage": if matches!(status, "completed" | "incomplete") { usage } else { Value::Null },
        "error": if status == "failed" { error } else { Value::Null },
    })
}

pub(crate) fn answer(id: &str, status: &str) -> ScriptedResponse {
    ScriptedResponse::json(200, response(id, status))
}

fn create(gateway: &Gateway<'_>, key: &TestSpendKey) -> TestRequest {
    gateway.call_without_key("POST", "/responses").bearer(&key.key).json(&body())
}

fn of_response(gateway: &Gateway<'_>, key: &TestSpendKey, method: &str, path: &str) -> TestRequest {
    gateway.call_without_key(method, &format!("/responses/{path}")).bearer(&key.key)
}

/// A job that runs, whose call the provider has queued.
async fn running(gateway: &Gateway<'_>, key: &TestSpendKey, id: &str) -> Value {
    gateway.provider.push(answer(id, "queued"));
    let created = create(gateway, key).send().await.expect(200);
    assert_eq!((&created["id"], &created["status"]), (&json!(id), &json!("queued")));
    let jobs = gateway.get("/jobs?limit=1").await.expect(200);
    let job = jobs["data"][0].clone();
    assert_eq!((&job["provider_object_id"], &job["state"]), (&json!(id), &json!("running")));
    job
}

async fn job(gateway: &Gateway<'_>, job: &Value) -> Value {
    gateway.get(&format!("/jobs/{}", text(job, "job_id"))).await.expect(200)
}

pub(crate) async fn record_of(gateway: &Gateway<'_>, job: &Value) -> Value {
    gateway.get(&format!("/requests/{}", text(job, "request_id"))).await.expect(200)
}

/// Waits until a job has ended, and returns it.
pub(crate) async fn ended(gateway: &Gateway<'_>, started: &Value) -> Value {
    loop {
        let job = job(gateway, started).await;
        if job["state"] != "running" {
            return job;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// As [`ended`], while the clock goes on in steps: the poller writes the time of its next look after it has asked.
pub(crate) async fn ended_in_steps(gateway: &Gateway<'_>, started: &Value, millis: i64) -> Value {
    loop {
        gateway.store.clock.advance_millis(millis);
        tokio::time::sleep(PAUSE).await;
        let job = job(gateway, started).await;
        if job["state"] != "running" {
            return job;
        }
    }
}

/// Runs the poller while `test` runs.
pub(crate) async fn polled(gateway: &Gateway<'_>, test: impl Future<Output = ()>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let shared = Arc::clone(&gateway.app.gateway);
    let poller = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            let client = ProviderClient::new(shared.settings.timeouts);
            tokio::select! {
                () = tollgate_gateway::poll_jobs(shared, client) => {}
                _ = stopped => {}
            }
        });
    });
    test.await;
    drop(stop);
    tokio::task::spawn_blocking(move || poller.join().unwrap()).await.unwrap();
}

/// Asserts that a call is refused for these fields of its body.
#[track_caller]
pub(crate) fn assert_body_issues(answer: &TestResponse, paths: &[&str]) {
    assert_eq!((answer.status, answer.error().as_str()), (400, "forward_token_json_invalid"));
    assert_eq!(answer.issue_paths(), paths);
}

pub(crate) fn assert_settled(record: &Value, status: &str, cost: &str) {
    assert_eq!(record["status"], status, "{record}");
    assert_eq!(record["total_request_cost"], cost, "{record}");
}

#[test]
fn a_background_response_is_held_and_settled_by_the_retrieval_that_shows_its_end() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let started = running(gateway, &key, "resp_1").await;
        let pending = record_of(gateway, &started).await;
        assert_eq!(
            (&pending["status"], &pending["job_id"]),
            (&json!("pending"), &started["job_id"])
        );
        let held = text(&started, "hold");
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], held.as_str());
        assert_eq!(started["kind"], "response");
        assert_eq!(started["expires_at"], "2026-11-22T00:00:00Z");

        gateway.provider.push(answer("resp_1", "in_progress"));
        let seen = of_response(gateway, &key, "GET", "resp_1").send().await.expect(200);
        assert_eq!(seen["status"], "in_progress");
        assert_eq!(job(gateway, &started).await["state"], "running");

        gateway.provider.push(answer("resp_1", "completed"));
        gateway.store.clock.advance_millis(1_000);
        let seen = of_response(gateway, &key, "GET", "resp_1").send().await;
        assert_eq!(seen.expect(200), response("resp_1", "completed"));
        let done = job(gateway, &started).await;
        assert_eq!(
            (&done["state"], &done["ended_at"]),
            (&json!("succeeded"), &json!("2026-11-21T00:00:01Z"))
        );
        let record = record_of(gateway, &started).await;
        assert_settled(&record, "completed", USED);
        assert_eq!(
            (&record["usage_source"], &record["model"]),
            (&json!("reported"), &json!("m-1-2026"))
        );
        assert_eq!(
            (&record["response_id"], &record["job_id"]),
            (&json!("resp_1"), &started["job_id"])
        );

        gateway.provider.push(answer("resp_1", "completed"));
        of_response(gateway, &key, "GET", "resp_1?include[]=x").send().await.expect(200);
        let spent = gateway.get(&key.path).await.expect(200);
        assert_eq!(spent["total_spend"], USED);
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], "0.0000000000");
        let records = gateway.records().await;
        assert_eq!(records.len(), 4);
        let free = records.iter().filter(|one| one["total_request_cost"] == "0.0000000000");
        assert!(free.clone().all(|one| one["status"] == "completed"), "retrievals are no failures");
        assert_eq!(free.count(), 3, "retrievals are free");
        let targets: Vec<_> =
            gateway.provider.requests().into_iter().map(|one| one.target).collect();
        assert_eq!(targets[3], "/v1/responses/resp_1?include[]=x");
    });
}

#[test]
fn each_end_of_a_response_costs_what_it_reports() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        for (status, state, cost, code) in [
            ("completed", "succeeded", USED, None),
            ("incomplete", "succeeded", USED, None),
            ("failed", "failed", "0.0000000000", Some("server_error")),
            ("cancelled", "cancelled", "0.0000000000", Some("job_cancelled")),
        ] {
            let id = format!("resp_{status}");
            let started = running(gateway, &key, &id).await;
            gateway.provider.push(answer(&id, status));
            of_response(gateway, &key, "GET", &id).send().await.expect(200);
            assert_eq!(job(gateway, &started).await["state"], state, "{status}");
            let record = record_of(gateway, &started).await;
            let wanted = if code.is_some() { "error" } else { "completed" };
            assert_settled(&record, wanted, cost);
            assert_eq!(record["error"]["code"].as_str(), code, "{record}");
        }
        // A cancellation that reports usage costs that.
        let started = running(gateway, &key, "resp_c").await;
        let mut cancelled = response("resp_c", "completed");
        cancelled["status"] = json!("cancelled");
        gateway.provider.push(ScriptedResponse::json(200, cancelled));
        of_response(gateway, &key, "POST", "resp_c/cancel").send().await.expect(200);
        assert_eq!(job(gateway, &started).await["state"], "cancelled");
        assert_settled(&record_of(gateway, &started).await, "error", USED);
        // Without a report, a response that has succeeded costs an estimate.
        let started = running(gateway, &key, "resp_u").await;
        let mut silent = response("resp_u", "completed");
        silent["usage"] = Value::Null;
        gateway.provider.push(ScriptedResponse::json(200, silent));
        of_response(gateway, &key, "GET", "resp_u").send().await.expect(200);
        assert_eq!(record_of(gateway, &started).await["usage_source"], "estimated");
    });
}

#[test]
fn a_response_that_is_answered_at_once_is_no_job() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        gateway.provider.push(answer("resp_1", "completed"));
        create(gateway, &key).send().await.expect(200);
        assert_settled(&gateway.record().await, "completed", USED);
        gateway.provider.push(ScriptedResponse::json(400, json!({"error": {"message": "no"}})));
        create(gateway, &key).send().await.expect(400);
        assert_eq!(gateway.get("/jobs").await.expect(200)["data"], json!([]));
    });
}

#[test]
fn the_poller_settles_what_no_client_retrieves() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let started = running(gateway, &key, "resp_1").await;
        polled(gateway, async {
            gateway.provider.push(answer("resp_1", "in_progress"));
            gateway.store.clock.advance_millis(2_000);
            while job(gateway, &started).await["last_seen_at"] != "2026-11-21T00:00:02Z" {
                tokio::time::sleep(PAUSE).await;
            }
            gateway.provider.push(answer("resp_1", "completed"));
            gateway.store.clock.advance_millis(2_000);
            let done = ended(gateway, &started).await;
            assert_eq!(done["state"], "succeeded");
        })
        .await;
        assert_settled(&record_of(gateway, &started).await, "completed", USED);
        assert_eq!(gateway.records().await.len(), 1, "a look has no record");
        let look = gateway.provider.requests().pop().unwrap();
        assert_eq!(look.target, "/v1/responses/resp_1");
        assert_eq!(look.header("authorization"), Some("Bearer managed-provider-key"));
    });
}

/// An event of the provider, signed with a secret.
fn event(gateway: &Gateway<'_>, secret: &str, kind: &str, id: &str) -> TestRequest {
    let body = json!({"id": "evt_1", "type": kind, "data": {"id": id}}).to_string();
    let at = gateway.app.clock.now().unix_micros() / 1_000_000;
    let secret = WebhookSecret::parse(secret).unwrap();
    let signature = secret.signature("msg_1", at, body.as_bytes()).unwrap();
    gateway
        .call_without_key("POST", "/provider_events/house")
        .header("webhook-id", "msg_1")
        .header("webhook-timestamp", &at.to_string())
        .header("webhook-signature", &format!("v1,AAAA {signature}"))
        .bytes("application/json", body.as_bytes())
}

#[test]
fn an_event_of_the_provider_is_looked_into_at_once_and_a_forged_one_is_refused() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let started = running(gateway, &key, "resp_1").await;
        let other = WebhookSecret::generate().reveal();
        event(gateway, &other, "response.completed", "resp_1").send().await.expect(401);
        let unsigned = gateway.call_without_key("POST", "/provider_events/house");
        unsigned.json(&json!({"type": "response.completed"})).send().await.expect(401);
        polled(gateway, async {
            gateway.provider.push(answer("resp_1", "completed"));
            for (kind, id) in [
                ("response.completed", "resp_1"),
                ("response.completed", "resp_1"),
                ("response.completed", "resp_unknown"),
                ("something.else", "resp_1"),
            ] {
                event(gateway, PROVIDER_SECRET, kind, id).send().await.expect(200);
            }
            assert_eq!(ended(gateway, &started).await["state"], "succeeded");
            event(gateway, PROVIDER_SECRET, "response.completed", "resp_1")
                .send()
                .await
                .expect(200);
        })
        .await;
        assert_settled(&record_of(gateway, &started).await, "completed", USED);
        gateway.provider.assert_calls(2);
        gateway.store.clock.advance_millis(-400_000);
        let late = event(gateway, PROVIDER_SECRET, "response.completed", "resp_1");
        gateway.store.clock.advance_millis(400_000);
        late.send().await.expect(401);
    });
}

#[test]
fn an_event_that_comes_before_the_answer_is_kept() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        event(gateway, PROVIDER_SECRET, "response.completed", "resp_1").send().await.expect(200);
        let started = running(gateway, &key, "resp_1").await;
        gateway.provider.push(answer("resp_1", "completed"));
        polled(gateway, async {
            assert_eq!(ended(gateway, &started).await["state"], "succeeded");
        })
        .await;
    });
}

#[test]
fn a_job_that_the_provider_forgets_twice_is_lost() {
    each_gateway_by_the_stores_clock(async |gateway| {
        for (rules, cost) in [(json!({}), "0.0000000000"), (json!({"enforcement": "strict"}), "")] {
            let key = gateway.spend_key(&rules).await;
            let id = format!("resp_{}", cost.len());
            let started = running(gateway, &key, &id).await;
            let calls = gateway.provider.calls();
            polled(gateway, async {
                let gone = || ScriptedResponse::json(404, json!({"error": {"message": "gone"}}));
                gateway.provider.push(gone());
                gateway.provider.push(gone());
                gateway.store.clock.advance_millis(2_000);
                gateway.provider.wait_for_answered(calls + 1).await;
                assert_eq!(job(gateway, &started).await["state"], "running", "it may come back");
                assert_eq!(ended_in_steps(gateway, &started, 5_100).await["state"], "lost");
                gateway.provider.assert_calls(calls + 2);
            })
            .await;
            let hold = text(&started, "hold");
            let record = record_of(gateway, &started).await;
            assert_settled(&record, "error", if cost.is_empty() { &hold } else { cost });
            assert_eq!(record["error"]["code"], "job_lost");
        }
    });
}

#[test]
fn a_job_whose_end_is_never_seen_is_given_up_a_day_after_it_has_expired() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let started = running(gateway, &key, "resp_1").await;
        gateway.provider.push_always(ScriptedResponse::json(503, json!({})));
        polled(gateway, async {
            gateway.store.clock.advance_millis(48 * 3_600_000 - 1_000);
            gateway.provider.wait_for_answered(2).await;
            assert_eq!(job(gateway, &started).await["state"], "running");
            assert_eq!(ended_in_steps(gateway, &started, 301_000).await["state"], "lost");
        })
        .await;
    });
}

#[test]
fn objects_of_another_wallet_and_of_no_one_are_not_found_in_the_same_words() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let own = gateway
            .spend_key(&json!({"wallet_id": gateway.connection.wallet_id.to_string()}))
            .await;
        let other = gateway.spend_key(&json!({})).await;
        running(gateway, &own, "resp_own").await;
        let calls = gateway.provider.calls();
        let words = |answer: &TestResponse| {
            let mut error = answer.json()["error"].clone();
            error.as_object_mut().unwrap().remove("refusal_id").unwrap();
            error.to_string().replace("resp_own", "resp_no1")
        };
        for (method, tail) in [
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
            ("GET", "?stream=true"),
        ] {
            let known =
                of_response(gateway, &other, method, &format!("resp_own{tail}")).send().await;
            let unknown =
                of_response(gateway, &own, method, &format!("resp_no1{tail}")).send().await;
            assert_eq!((known.status, unknown.status), (404, 404), "{method} {tail}");
            assert_eq!(words(&known), words(&unknown));
            assert_eq!(unknown.json()["error"]["code"], "provider_object_not_found");
            for key in [&other, &own] {
                let url = gateway.provider.url(&format!("/v1/responses/resp_no1{tail}"));
                let u: String = url::form_urlencoded::byte_serialize(url.as_bytes()).collect();
                let call = gateway.call_without_key(method, &format!("/forward?u={u}"));
                call.bearer(&key.key).send().await.expect(404);
            }
        }
        let mut follows = body();
        for (key, id) in [(&other, "resp_own"), (&own, "resp_no1")] {
            follows["previous_response_id"] = json!(id);
            let call =
                gateway.call_without_key("POST", "/responses").bearer(&key.key).json(&follows);
            assert_body_issues(&call.send().await, &["previous_response_id"]);
        }
        gateway.provider.assert_calls(calls);
        gateway.provider.push(answer("resp_own", "completed"));
        of_response(gateway, &own, "GET", "resp_own").send().await.expect(200);
    });
}

#[test]
fn a_response_may_be_continued_by_its_wallet_within_a_bound() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let strict =
            json!({"enforcement": "strict", "spend_limit": {"amount": "1", "cycle": "total"}});
        let key = gateway.spend_key(&strict).await;
        let mut plain = body();
        plain["background"] = json!(false);
        gateway.provider.push(answer("resp_1", "completed"));
        let post = |body: &Value| {
            gateway.call_without_key("POST", "/responses").bearer(&key.key).json(body)
        };
        post(&plain).send().await.expect(200);
        let alone = gateway.provider.requests().pop().unwrap().body.len();
        let mut follows = body();
        follows["previous_response_id"] = json!("resp_1");
        gateway.provider.push(answer("resp_2", "queued"));
        post(&follows).send().await.expect(200);
        let sent = gateway.provider.requests().pop().unwrap().body;
        assert_eq!(sent, follows.to_string().into_bytes(), "byte for byte");
        let jobs = gateway.get("/jobs").await.expect(200);
        // 3,000 tokens of the earlier response and the bytes of the body, at 1 USD per million; 1,000 at 2 USD.
        let bound = 3_000 + sent.len() + 2 * 1_000;
        assert!(alone < sent.len());
        assert_eq!(jobs["data"][0]["hold"], format!("0.{bound:06}0000"));

        gateway.provider.push(answer("resp_2", "completed"));
        of_response(gateway, &key, "GET", "resp_2").send().await.expect(200);
        // A response whose tokens are not known has no bound.
        let mut silent = response("resp_3", "completed");
        silent["usage"] = Value::Null;
        gateway.provider.push(ScriptedResponse::json(200, silent));
        post(&plain).send().await.expect(200);
        follows["previous_response_id"] = json!("resp_3");
        let refused = post(&follows).send().await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (400, &json!("cost_bound_unknown"))
        );
        // The provider does not keep this one.
        plain["store"] = json!(false);
        gateway.provider.push(answer("resp_4", "completed"));
        post(&plain).send().await.expect(200);
        follows["previous_response_id"] = json!("resp_4");
        assert_body_issues(&post(&follows).send().await, &["previous_response_id"]);
    });
}

#[test]
fn an_object_is_deleted_when_its_job_has_ended() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        running(gateway, &key, "resp_1").await;
        let delete = || of_response(gateway, &key, "DELETE", "resp_1");
        let refused = delete().send().await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (409, &json!("job_running"))
        );
        gateway.provider.push(answer("resp_1", "cancelled"));
        of_response(gateway, &key, "POST", "resp_1/cancel")
            .json(&json!({}))
            .send()
            .await
            .expect(200);
        gateway.provider.push(ScriptedResponse::json(500, json!({})));
        delete().send().await.expect(500);
        gateway
            .provider
            .push(ScriptedResponse::json(200, json!({"id": "resp_1", "deleted": true})));
        delete().send().await.expect(200);
        let last = gateway.provider.requests().pop().unwrap();
        assert_eq!(
            (last.method.as_str(), last.target.as_str()),
            ("DELETE", "/v1/responses/resp_1")
        );
        delete().send().await.expect(404);
    });
}

#[test]
fn a_stream_in_the_background_that_breaks_off_goes_on_as_a_job() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let event = |kind: &str, status: &str| {
            (kind.to_owned(), json!({"type": kind, "response": response("resp_1", status)}))
        };
        let mut streamed = body();
        streamed["stream"] = json!(true);
        let call =
            || gateway.call_without_key("POST", "/responses").bearer(&key.key).json(&streamed);
        let gate = Gate::new();
        let events =
            [event("response.created", "queued"), event("response.in_progress", "in_progress")];
        gateway.provider.push(ScriptedResponse::named_events(events).cut().gate(&gate));
        let first = call();
        let answer_to_call = tokio::spawn(async move { first.try_send().await });
        gate.pass(1);
        gate.wait_for_arrivals(2).await;
        let started = loop {
            let jobs = gateway.get("/jobs").await.expect(200);
            match jobs["data"].as_array().unwrap().first() {
                Some(job) => break job.clone(),
                None => tokio::task::yield_now().await,
            }
        };
        gate.open();
        drop(answer_to_call.await);
        assert_eq!(record_of(gateway, &started).await["status"], "pending");
        // The client reads on from the first event.
        let rest = [
            event("response.in_progress", "in_progress"),
            event("response.completed", "completed"),
        ];
        gateway.provider.push(ScriptedResponse::named_events(rest));
        let resumed = of_response(gateway, &key, "GET", "resp_1?stream=true&starting_after=0");
        let resumed = resumed.send().await;
        assert!(resumed.text().contains("response.completed"), "{}", resumed.text());
        assert_eq!(job(gateway, &started).await["state"], "succeeded");
        assert_settled(&record_of(gateway, &started).await, "completed", USED);

        // One that is read to its end is settled by it.
        let whole = [event("response.created", "queued"), event("response.completed", "completed")];
        let whole = whole.map(|(kind, data)| (kind, data.to_string().replace("resp_1", "resp_2")));
        gateway.provider.push(ScriptedResponse::named_events(whole));
        call().send().await;
        let jobs = gateway.get("/jobs?state=succeeded").await.expect(200);
        assert_eq!(jobs["data"].as_array().unwrap().len(), 2);
        assert_eq!(gateway.get(&key.path).await.expect(200)["total_spend"], "0.0080000000");
    });
}

fn with_job_keys() -> Settings {
    let mut settings = settings();
    let secret = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    settings.calls.job_keys = Some(secret.parse().unwrap());
    settings
}

#[test]
fn a_caller_with_a_key_of_its_own_has_jobs_too() {
    for (settings, is_polled) in [(settings(), false), (with_job_keys(), true)] {
        each_gateway_by_the_stores_clock_under(settings, async |gateway| {
            let token = gateway.token(&json!({"provider_key": "sk-own"}));
            gateway.provider.push(answer("resp_1", "queued"));
            let url = gateway.provider.url("/v1/responses");
            gateway.forward_to(&url).bearer(&token).json(&body()).send().await.expect(200);
            let jobs = gateway.get("/jobs").await.expect(200);
            let started = jobs["data"][0].clone();
            polled(gateway, async {
                gateway.provider.push(answer("resp_1", "completed"));
                gateway.store.clock.advance_millis(2_000);
                if !is_polled {
                    let call = gateway.call_without_key("GET", "/responses/resp_1");
                    call.bearer(&token).send().await.expect(200);
                }
                assert_eq!(ended(gateway, &started).await["state"], "succeeded");
            })
            .await;
            let seen = gateway.provider.requests().pop().unwrap();
            assert_eq!(seen.header("authorization"), Some("Bearer sk-own"));
            let record = record_of(gateway, &started).await;
            assert_eq!(record["model_usage"]["total_cost"], USED, "{record}");
            assert_eq!(record["provider_key_type"], "unmanaged");
        });
    }
}

#[test]
fn a_refresh_asks_the_provider_now() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let started = running(gateway, &key, "resp_1").await;
        let refresh = format!("/jobs/{}/refresh", text(&started, "job_id"));
        gateway.provider.push(answer("resp_1", "in_progress"));
        gateway.store.clock.advance_millis(1_500);
        let seen = gateway.post(&refresh, &json!({})).await.expect(200);
        assert_eq!(
            (&seen["state"], &seen["last_seen_at"]),
            (&json!("running"), &json!("2026-11-21T00:00:01.5Z"))
        );
        gateway.provider.push(answer("resp_1", "failed"));
        let done = gateway.post(&refresh, &json!({})).await.expect(200);
        assert_eq!(done["state"], "failed");
        let again = gateway.post(&refresh, &json!({})).await.expect(200);
        assert_eq!(again, done, "it is not asked again");
        gateway.provider.assert_calls(3);
    });
}

#[test]
fn jobs_are_listed_by_their_filters_to_their_merchant_alone() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet_id = gateway.connection.wallet_id.to_string();
        let key = gateway.spend_key(&json!({"wallet_id": wallet_id})).await;
        let other = gateway.spend_key(&json!({})).await;
        let first = running(gateway, &key, "resp_1").await;
        let second = running(gateway, &other, "resp_2").await;
        gateway.provider.push(answer("resp_2", "completed"));
        of_response(gateway, &other, "GET", "resp_2").send().await.expect(200);
        let spend_key_id = text(&key.made, "spend_key_id");
        let connection_id = gateway.connection.connection_id;
        for (query, expected) in [
            ("".to_owned(), vec![&second, &first]),
            ("?state=running".to_owned(), vec![&first]),
            ("?state=succeeded".to_owned(), vec![&second]),
            ("?kind=response".to_owned(), vec![&second, &first]),
            ("?kind=batch".to_owned(), vec![]),
            (format!("?spend_key_id={spend_key_id}"), vec![&first]),
            (format!("?connection_id={connection_id}"), vec![&first]),
            (format!("?customer_id={connection_id}&state=lost"), vec![]),
        ] {
            let list = gateway.get(&format!("/jobs{query}")).await.expect(200);
            let ids: Vec<_> =
                list["data"].as_array().unwrap().iter().map(|job| &job["job_id"]).collect();
            let expected: Vec<_> = expected.iter().map(|job| &job["job_id"]).collect();
            assert_eq!(ids, expected, "{query}");
        }
        let page = gateway.get("/jobs?limit=1").await.expect(200);
        assert_eq!(page["has_more"], true);
        let next =
            gateway.get(&format!("/jobs?limit=1&cursor={}", text(&page, "next_cursor"))).await;
        assert_eq!(next.expect(200)["data"][0]["job_id"], first["job_id"]);
        assert_issues(
            &gateway.get("/jobs?state=done&kind=x&spend_key_id=y").await,
            &["state", "kind", "spend_key_id"],
        );
        let stranger = gateway.store.merchant().await;
        let path = format!("/jobs/{}", text(&first, "job_id"));
        for (method, path) in [("GET", path.clone()), ("POST", format!("{path}/refresh"))] {
            let call = gateway.call_without_key(method, &path).bearer(stranger.key.reveal());
            let refused = call.send().await;
            assert_eq!(
                (refused.status, &refused.json()["error"]["code"]),
                (404, &json!("job_not_found"))
            );
        }
        let call = gateway.call_without_key("GET", "/jobs").bearer(stranger.key.reveal());
        assert_eq!(call.send().await.expect(200)["data"], json!([]));
        gateway.provider.push(answer("resp_1", "completed"));
        of_response(gateway, &key, "GET", "resp_1").send().await.expect(200);
    });
}

#[test]
fn the_field_background_is_checked_and_refused_where_no_one_could_see_the_end() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let mut odd = body();
        odd["background"] = json!("yes");
        odd["previous_response_id"] = json!(7);
        let call = gateway.call_without_key("POST", "/responses").bearer(&key.key).json(&odd);
        assert_body_issues(&call.send().await, &["background", "previous_response_id"]);
        let chat = json!({"model": "m-1", "messages": [], "background": true});
        let call =
            gateway.call_without_key("POST", "/chat/completions").bearer(&key.key).json(&chat);
        assert_body_issues(&call.send().await, &["background"]);
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn what_was_paid_for_can_be_retrieved_under_a_limit_that_is_used_up() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let rules = json!({
            "wallet_id": gateway.connection.wallet_id.to_string(),
            "spend_limit": {"amount": "0.004", "cycle": "total"},
            "allowed_models": ["m-1"],
            "allowed_providers": ["house"],
            "request_shape": "shape_a",
        });
        let key = gateway.spend_key(&rules).await;
        running(gateway, &key, "resp_1").await;
        let wallet = format!("/wallets/{}", gateway.connection.wallet_id);
        gateway.post(&format!("{wallet}/debits"), &json!({"amount": "10"})).await.expect(201);
        for _ in 0..2 {
            gateway.provider.push(answer("resp_1", "completed"));
            of_response(gateway, &key, "GET", "resp_1").send().await.expect(200);
        }
        let refused = create(gateway, &key).send().await;
        assert_eq!((refused.status, refused.error().as_str()), (402, "spend_limit_reached"));
        gateway.provider.push(ScriptedResponse::json(200, json!({"deleted": true})));
        of_response(gateway, &key, "DELETE", "resp_1").send().await.expect(200);
    });
}
