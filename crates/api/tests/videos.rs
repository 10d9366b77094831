//! Videos: a job that holds the price of its seconds, and costs that of the seconds that are delivered.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::jobs::{assert_body_issues, assert_settled, ended_in_steps, polled, record_of};
use crate::support::{Gateway, TestSpendKey, each_gateway_by_the_stores_clock, text};

const NOTHING: &str = "0.0000000000";

fn call(gateway: &Gateway<'_>, key: &TestSpendKey, method: &str, path: &str) -> TestRequest {
    gateway.call_without_key(method, &format!("/videos{path}")).bearer(&key.key)
}

pub(crate) fn body(model: &str, seconds: &Value, size: &str) -> Value {
    json!({"model": model, "prompt": "A gate opens.", "seconds": seconds, "size": size})
}

pub(crate) fn video(id: &str, status: &str, seconds: &Value, size: &str) -> ScriptedResponse {
    ScriptedResponse::json(
        200,
        json!({"id": id, "object": "video", "status": status, "model": "film-1", "progress": 0,
            "seconds": seconds, "size": size, "created_at": 1_795_219_200}),
    )
}

/// A job of a video, which runs.
async fn running(gateway: &Gateway<'_>, key: &TestSpendKey, id: &str, body: &Value) -> Value {
    gateway.provider.push(video(id, "queued", &body["seconds"], &text(body, "size")));
    assert_eq!(call(gateway, key, "POST", "").json(body).send().await.expect(200)["id"], id);
    let job = gateway.get("/jobs?limit=1").await.expect(200)["data"][0].clone();
    assert_eq!(
        (&job["kind"], &job["provider_object_id"], &job["state"]),
        (&json!("video"), &json!(id), &json!("running"))
    );
    job
}

#[test]
fn a_video_holds_and_costs_the_price_of_its_seconds_and_size() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        // 0.1 USD a second, and 0.5 in the larger size.
        for (id, seconds, size, cost) in [
            ("video_1", json!("8"), "720x1280", "0.8000000000"),
            ("video_2", json!(4), "1024x1792", "2.0000000000"),
            ("video_3", json!("4"), "1x1", "0.4000000000"),
        ] {
            let started = running(gateway, &key, id, &body("film-1", &seconds, size)).await;
            assert_eq!(started["hold"], cost, "{id}");
            gateway.provider.push(video(id, "in_progress", &seconds, size));
            call(gateway, &key, "GET", &format!("/{id}")).send().await.expect(200);
            assert_eq!(record_of(gateway, &started).await["status"], "pending");
            gateway.provider.push(video(id, "completed", &seconds, size));
            call(gateway, &key, "GET", &format!("/{id}")).send().await.expect(200);
            let record = record_of(gateway, &started).await;
            assert_settled(&record, "completed", cost);
            assert_eq!(record["usage_source"], "reported");
            gateway.provider.push(ScriptedResponse::bytes(200, "video/mp4", "film"));
            let content = call(gateway, &key, "GET", &format!("/{id}/content")).send().await;
            assert_eq!((content.status, content.text()), (200, "film"));
        }
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], NOTHING);
    });
}

#[test]
fn a_video_that_is_not_delivered_costs_nothing_and_the_poller_sees_it() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let body = body("film-1", &json!("4"), "720x1280");
        for (id, status, seconds, cost) in [
            ("video_1", "failed", json!("4"), NOTHING),
            ("video_2", "completed", json!("4"), "0.4000000000"),
            // Its object has no length: that of the request counts.
            ("video_3", "completed", Value::Null, "0.4000000000"),
        ] {
            let started = running(gateway, &key, id, &body).await;
            gateway.provider.push(video(id, status, &seconds, "720x1280"));
            polled(gateway, async {
                ended_in_steps(gateway, &started, 2_000).await;
            })
            .await;
            let state = if status == "failed" { "error" } else { "completed" };
            assert_settled(&record_of(gateway, &started).await, state, cost);
        }
    });
}

#[test]
fn a_video_without_a_bound_is_refused_under_a_strict_limit() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let strict =
            json!({"enforcement": "strict", "spend_limit": {"amount": "1", "cycle": "total"}});
        let key = gateway.spend_key(&strict).await;
        let mut endless = body("film-1", &Value::Null, "720x1280");
        endless.as_object_mut().unwrap().remove("seconds");
        let refused = call(gateway, &key, "POST", "").json(&endless).send().await;
        assert_eq!((refused.status, refused.error().as_str()), (400, "cost_bound_unknown"));
        assert_eq!(refused.issue_paths(), ["seconds"]);
        let long = body("film-1", &json!("12"), "720x1280");
        let refused = call(gateway, &key, "POST", "").json(&long).send().await;
        assert_eq!((refused.status, refused.error().as_str()), (402, "spend_limit_reached"));
        let unpriced = body("m-1", &json!("4"), "720x1280");
        let refused = call(gateway, &key, "POST", "").json(&unpriced).send().await;
        assert_eq!(refused.error(), "forward_endpoint_not_supported", "it has other prices");
        let twice = "{\"model\": \"film-1\", \"seconds\": \"4\", \"seconds\": \"12\"}";
        let refused = call(gateway, &key, "POST", "").bytes("application/json", twice.as_bytes());
        assert_body_issues(&refused.send().await, &["seconds"]);
        gateway.provider.assert_calls(0);
        let form = b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nfilm-1\r\n\
            --x\r\nContent-Disposition: form-data; name=\"seconds\"\r\n\r\n8\r\n\
            --x\r\nContent-Disposition: form-data; name=\"size\"\r\n\r\n720x1280\r\n--x--\r\n";
        gateway.provider.push(video("video_1", "completed", &json!("8"), "720x1280"));
        let made = call(gateway, &key, "POST", "").bytes("multipart/form-data; boundary=x", form);
        made.send().await.expect(200);
        let record = gateway.record().await;
        assert_settled(&record, "completed", "0.8000000000");
        gateway.provider.push(ScriptedResponse::bytes(200, "video/mp4", "film"));
        let content = call(gateway, &key, "GET", "/video_1/content").send().await;
        assert_eq!((content.status, content.text()), (200, "film"), "it is the wallet's");
    });
}

#[test]
fn videos_belong_to_their_wallet() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
        let own = gateway.spend_key(&wallet).await;
        let other = gateway.spend_key(&json!({})).await;
        let seconds = json!("4");
        running(gateway, &own, "video_1", &body("film-1", &seconds, "720x1280")).await;
        let calls = gateway.provider.calls();
        for (method, tail) in [("GET", ""), ("GET", "/content"), ("DELETE", "")] {
            let refused = call(gateway, &other, method, &format!("/video_1{tail}")).send().await;
            assert_eq!(refused.status, 404, "{method} {tail}");
        }
        let listed = call(gateway, &other, "GET", "").send().await.expect(200);
        assert_eq!(listed["data"], json!([]));
        let refused = call(gateway, &own, "DELETE", "/video_1").send().await;
        assert_eq!((refused.status, refused.error().as_str()), (409, "job_running"));
        gateway.provider.assert_calls(calls);
        gateway.provider.push(video("video_1", "completed", &seconds, "720x1280"));
        let listed = call(gateway, &own, "GET", "").send().await.expect(200);
        assert_eq!(listed["data"][0]["id"], "video_1");
        gateway.provider.push(video("video_1", "completed", &seconds, "720x1280"));
        call(gateway, &own, "GET", "/video_1").send().await.expect(200);
        gateway
            .provider
            .push(ScriptedResponse::json(200, json!({"id": "video_1", "deleted": true})));
        call(gateway, &own, "DELETE", "/video_1").send().await.expect(200);
        assert_eq!(call(gateway, &own, "GET", "/video_1").send().await.status, 404);
    });
}
