//! Batches of the requests in an uploaded file, in OpenAI's format: the file is checked before its provider has it, and
//! files and batches belong to the wallet that pays.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestRequest, TestResponse};

use crate::jobs::{assert_body_issues, assert_settled, ended, ended_in_steps, polled, record_of};
use crate::support::{
    Gateway, TestSpendKey, chat_answer, each_gateway_by_the_stores_clock, names, text,
};

const NOTHING: &str = "0.0000000000";

/// A line of a file: a chat of at most 1,000 output tokens.
pub(crate) fn line(custom_id: &str, model: &str) -> Value {
    let body = json!({"model": model, "max_tokens": 1000,
        "messages": [{"role": "user", "content": "Hello"}]});
    json!({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})
}

pub(crate) fn form(purpose: &str, lines: &[Value]) -> Vec<u8> {
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}\n")).collect();
    form_of(purpose, &lines.concat())
}

fn form_of(purpose: &str, file: &str) -> Vec<u8> {
    format!(
        "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n{purpose}\r\n\
         --x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"batch.jsonl\"\r\n\
         Content-Type: application/jsonl\r\n\r\n{file}\r\n--x--\r\n"
    )
    .into_bytes()
}

fn call(gateway: &Gateway<'_>, key: &TestSpendKey, method: &str, path: &str) -> TestRequest {
    gateway.call_without_key(method, path).bearer(&key.key)
}

fn upload(gateway: &Gateway<'_>, key: &TestSpendKey, form: &[u8]) -> TestRequest {
    call(gateway, key, "POST", "/files").bytes("multipart/form-data; boundary=x", form)
}

fn create(gateway: &Gateway<'_>, key: &TestSpendKey, file: &str) -> TestRequest {
    let endpoint = "/v1/chat/completions";
    let body = json!({"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"});
    call(gateway, key, "POST", "/batches").json(&body)
}

pub(crate) fn file(id: &str) -> ScriptedResponse {
    ScriptedResponse::json(
        200,
        json!({"id": id, "object": "file", "bytes": 9, "created_at": 1_795_219_200,
            "filename": "batch.jsonl", "purpose": "batch", "status": "processed"}),
    )
}

pub(crate) fn batch(id: &str, status: &str, files: [Option<&str>; 2]) -> ScriptedResponse {
    let [output, errors] = files;
    ScriptedResponse::json(
        200,
        json!({"id": id, "object": "batch", "endpoint": "/v1/chat/completions", "errors": null,
            "input_file_id": "file-in", "completion_window": "24h", "status": status,
            "output_file_id": output, "error_file_id": errors, "created_at": 1_795_219_200,
            "expires_at": 1_795_305_600, "request_counts": {"total": 3, "completed": 0, "failed": 0}}),
    )
}

/// A result of 1,000 input and 500 output tokens.
fn answered(custom_id: &str) -> Value {
    let response = json!({"status_code": 200, "request_id": "req_1", "body": chat_answer()});
    json!({"id": format!("batch_req_{custom_id}"), "custom_id": custom_id, "response": response, "error": null})
}

fn failed(custom_id: &str) -> Value {
    let body = json!({"error": {"message": "no", "type": "server_error"}});
    json!({"id": "batch_req_1", "custom_id": custom_id,
        "response": {"status_code": 500, "request_id": "req_1", "body": body}, "error": null})
}

fn expired(custom_id: &str) -> Value {
    json!({"id": "batch_req_1", "custom_id": custom_id, "response": null,
        "error": {"code": "batch_expired", "message": "too late"}})
}

fn results(lines: &[Value]) -> ScriptedResponse {
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}\n")).collect();
    ScriptedResponse::bytes(200, "application/octet-stream", lines.concat())
}

/// Uploads a file that the provider takes.
async fn uploaded(gateway: &Gateway<'_>, key: &TestSpendKey, id: &str, lines: &[Value]) {
    gateway.provider.push(file(id));
    let taken = upload(gateway, key, &form("batch", lines)).send().await.expect(200);
    assert_eq!(taken["id"], id);
}

/// The job of a batch of an uploaded file, which runs.
async fn running(gateway: &Gateway<'_>, key: &TestSpendKey, id: &str, of: &str) -> Value {
    gateway.provider.push(batch(id, "validating", [None; 2]));
    assert_eq!(create(gateway, key, of).send().await.expect(200)["id"], id);
    let job = gateway.get("/jobs?limit=1").await.expect(200)["data"][0].clone();
    assert_eq!(
        (&job["kind"], &job["provider_object_id"], &job["state"]),
        (&json!("batch"), &json!(id), &json!("running"))
    );
    job
}

#[test]
fn a_batch_of_a_file_holds_the_sum_of_its_lines_and_costs_the_sum_of_its_answers() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let lines = [line("a", "m-1"), line("b", "m-1"), line("c", "m-2")];
        let sent = form("batch", &lines);
        gateway.provider.push(file("file-in"));
        let taken = upload(gateway, &key, &sent).send().await.expect(200);
        assert_eq!(taken["id"], "file-in");
        let request = gateway.provider.request();
        assert_eq!((request.target.as_str(), &request.body[..]), ("/v1/files", &sent[..]));
        let content_type = request.header("content-type");
        assert_eq!(content_type, Some("multipart/form-data; boundary=x"));
        assert_settled(&gateway.record().await, "completed", NOTHING);

        let started = running(gateway, &key, "batch_1", "file-in").await;
        // 1,000 output tokens three times at 2 USD per million, and some input.
        let hold: f64 = text(&started, "hold").parse().unwrap();
        assert!((0.006..0.007).contains(&hold), "{hold}");
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], started["hold"]);
        assert_eq!(started["expires_at"], "2026-11-22T00:00:00Z");

        // The retrieval that shows the end names the files of results, which are the wallet's from then on.
        let whole = || batch("batch_1", "completed", [Some("file-out"), Some("file-err")]);
        gateway.provider.push(whole());
        gateway.store.clock.advance_millis(1_000);
        call(gateway, &key, "GET", "/batches/batch_1").send().await.expect(200);
        let good = results(&[answered("c"), answered("a")]);
        gateway.provider.push(good);
        let read = call(gateway, &key, "GET", "/files/file-out/content").send().await;
        let expected: Vec<_> = ["c", "a"].map(|id| format!("{}\n", answered(id))).into();
        assert_eq!((read.status, read.text()), (200, expected.concat().as_str()));

        let calls = gateway.provider.calls();
        for id in ["file-out", "file-err"] {
            let early = call(gateway, &key, "DELETE", &format!("/files/{id}")).send().await;
            assert_eq!((early.status, early.error().as_str()), (409, "job_running"), "{id}");
        }
        gateway.provider.assert_calls(calls);

        gateway.provider.push(whole());
        gateway.provider.push(results(&[answered("c"), answered("a")]));
        gateway.provider.push(results(&[failed("b")]));
        let before = gateway.provider.requests().len();
        polled(gateway, async {
            assert_eq!(ended(gateway, &started).await["state"], "succeeded");
        })
        .await;
        let asked = gateway.provider.requests();
        let targets: Vec<_> = asked[before..].iter().map(|one| one.target.as_str()).collect();
        assert_eq!(
            targets,
            ["/v1/batches/batch_1", "/v1/files/file-out/content", "/v1/files/file-err/content"]
        );
        let record = record_of(gateway, &started).await;
        assert_settled(&record, "completed", "0.0040000000");
        assert_eq!(
            (&record["usage_source"], &record["response_id"]),
            (&json!("reported"), &json!("batch_1"))
        );
        let [only] = record["lines"].as_array().unwrap().as_slice() else { panic!("{record}") };
        assert_eq!(names(only), ["cost", "model", "requests", "tier", "usage"]);
        assert_eq!((&only["requests"], &only["tier"]), (&json!(2), &json!("batch")));
        assert_eq!(only["usage"]["output_tokens"], 1000);
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], NOTHING);
        assert_eq!(gateway.get(&key.path).await.expect(200)["total_spend"], "0.0040000000");
    });
}

#[test]
fn a_batch_that_ends_early_costs_the_answers_that_it_has() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        uploaded(gateway, &key, "file-in", &["a", "b", "c"].map(|id| line(id, "m-1"))).await;
        for (status, state, files, cost) in [
            ("failed", "failed", [None, None], NOTHING),
            ("expired", "expired", [Some("file-1"), Some("file-2")], "0.0020000000"),
            ("cancelled", "cancelled", [Some("file-1"), None], "0.0020000000"),
            ("cancelled", "cancelled", [None, None], NOTHING),
        ] {
            let id = format!("batch_{status}_{}", files[0].is_some());
            let started = running(gateway, &key, &id, "file-in").await;
            gateway.provider.push(batch(&id, status, files));
            if files[0].is_some() {
                gateway.provider.push(results(&[answered("a")]));
            }
            if files[1].is_some() {
                gateway.provider.push(results(&[expired("b"), expired("c")]));
            }
            polled(gateway, async {
                assert_eq!(ended_in_steps(gateway, &started, 2_000).await["state"], state);
            })
            .await;
            assert_settled(&record_of(gateway, &started).await, "error", cost);
        }
        assert_eq!(gateway.get("/wallet").await.expect(200)["held"], NOTHING);
    });
}

#[test]
fn each_line_of_a_file_is_checked_before_its_provider_has_it() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({"allowed_models": ["m-1"]})).await;
        let changed = |path: &str, value: Value| {
            let mut line = line("b", "m-1");
            *line.pointer_mut(path).unwrap() = value;
            line
        };
        let mut background = line("b", "m-1");
        background["body"]["previous_response_id"] = json!("resp_1");
        let mut misspelt = line("b", "m-1");
        misspelt["Body"] = json!({"model": "m-2"});
        let lines = [
            line("a", "m-1"),
            line("b", "m-2"),
            changed("/body/max_tokens", json!("many")),
            changed("/method", json!("GET")),
            changed("/url", json!("/v1/embeddings")),
            changed("/custom_id", json!("")),
            misspelt,
            json!({"custom_id": "a"}),
            background,
        ];
        let refused = upload(gateway, &key, &form("batch", &lines)).send().await;
        assert_body_issues(
            &refused,
            &[
                "file.2.body.model",
                "file.3.body.max_tokens",
                "file.4.method",
                "file.5.url",
                "file.6.custom_id",
                "file.7.Body",
                "file.8",
                "file.9.body.previous_response_id",
            ],
        );
        let good = line("a", "m-1").to_string();
        for (what, file, paths) in [
            ("empty", String::new(), vec!["file"]),
            ("blank", "\n \r\n".to_owned(), vec!["file"]),
            ("no JSON", "hello".to_owned(), vec!["file.1"]),
            ("cut", format!("\n{good}\n{}", &good[..20]), vec!["file.3"]),
            ("a list", format!("{good}\n[]"), vec!["file.2"]),
            (
                "another endpoint",
                changed("/url", json!("/v1/files")).to_string(),
                vec!["file.1.url"],
            ),
        ] {
            let refused = upload(gateway, &key, &form_of("batch", &file)).send().await;
            assert_eq!(
                (what, refused.issue_paths()),
                (what, paths.into_iter().map(str::to_owned).collect())
            );
            assert_eq!(refused.status, 400, "{what}");
        }
        let any = gateway.spend_key(&json!({})).await;
        let unknown = [line("a", "m-1"), line("b", "unknown")];
        let refused = upload(gateway, &any, &form("batch", &unknown)).send().await;
        assert_body_issues(&refused, &["file.2.body.model"]);
        let refused = upload(gateway, &any, &form("fine-tune", &[])).send().await;
        assert_body_issues(&refused, &["purpose"]);
        let bare = call(gateway, &any, "POST", "/files").json(&json!({"purpose": "batch"}));
        assert_eq!(bare.send().await.status, 415);
        let cut = form("batch", &[line("a", "m-1")]);
        let refused = upload(gateway, &any, &cut[..cut.len() - 8]).send().await;
        assert_eq!((refused.status, refused.error().as_str()), (400, "forward_token_json_invalid"));
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_file_of_the_wallet_is_input_of_its_calls_and_that_of_another_is_unknown() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
        let own = gateway.spend_key(&wallet).await;
        let other = gateway.spend_key(&json!({})).await;
        let strict = json!({"enforcement": "strict", "wallet_id": wallet["wallet_id"],
            "spend_limit": {"amount": "1", "cycle": "total"}});
        let strict = gateway.spend_key(&strict).await;
        gateway.provider.push(file("file-doc"));
        let form = form_of("user_data", "%PDF-1.7");
        upload(gateway, &own, &form).send().await.expect(200);
        let asks = |id: &str| {
            let content = json!([{"type": "file", "file": {"file_id": id}}]);
            json!({"model": "m-1", "max_tokens": 100,
                "messages": [{"role": "user", "content": content}]})
        };
        let chat = async |key: &TestSpendKey, body: &Value| {
            call(gateway, key, "POST", "/chat/completions").json(body).send().await
        };
        let calls = gateway.provider.calls();
        let path = "messages.0.content.0.file.file_id";
        let foreign = chat(&other, &asks("file-doc")).await;
        let unknown = chat(&other, &asks("file-no1")).await;
        for refused in [&foreign, &unknown] {
            assert_body_issues(refused, &[path]);
        }
        let message = |answer: &TestResponse| answer.json()["error"]["message"].to_string();
        assert_eq!(message(&foreign), message(&unknown));
        // The tokens of a file are not known before the call.
        let refused = chat(&strict, &asks("file-doc")).await;
        assert_eq!((refused.status, refused.error().as_str()), (400, "cost_bound_unknown"));
        assert_eq!(refused.issue_paths(), [path]);
        let mut of_batch = line("a", "m-1");
        of_batch["body"] = asks("file-doc");
        let refused = upload(gateway, &own, &self::form("batch", &[of_batch])).send().await;
        assert_body_issues(&refused, &[&format!("file.1.body.{path}")]);
        gateway.provider.assert_calls(calls);

        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        chat(&own, &asks("file-doc")).await.expect(200);
        let sent = gateway.provider.requests().pop().unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&sent.body).unwrap(), asks("file-doc"));
        gateway
            .provider
            .push(ScriptedResponse::json(200, json!({"id": "file-doc", "deleted": true})));
        call(gateway, &own, "DELETE", "/files/file-doc").send().await.expect(200);
        assert_body_issues(&chat(&own, &asks("file-doc")).await, &[path]);
    });
}

#[test]
fn a_file_is_checked_again_against_the_key_that_creates_the_batch() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let any = gateway.spend_key(&json!({})).await;
        let lines = ["a", "b", "c"].map(|id| line(id, "m-2"));
        uploaded(gateway, &any, "file-in", &lines).await;
        let narrow = gateway.spend_key(&json!({"allowed_models": ["m-1"]})).await;
        assert_body_issues(&create(gateway, &narrow, "file-in").send().await, &["input_file_id"]);
        let strict =
            json!({"enforcement": "strict", "spend_limit": {"amount": "0.005", "cycle": "total"}});
        let strict = gateway.spend_key(&strict).await;
        let refused = create(gateway, &strict, "file-in").send().await;
        assert_eq!((refused.status, refused.error().as_str()), (402, "spend_limit_reached"));
        for file in ["file-other", ""] {
            assert_body_issues(&create(gateway, &any, file).send().await, &["input_file_id"]);
        }
        for (body, path) in [
            (json!({"endpoint": "x"}), "input_file_id"),
            (json!({"input_file_id": "file-in", "endpoint": "/v1/embeddings"}), "endpoint"),
            (json!({"input_file_id": "file-in", "Input_File_Id": "file-other"}), "Input_File_Id"),
        ] {
            let refused = call(gateway, &any, "POST", "/batches").json(&body).send().await;
            assert_body_issues(&refused, &[path]);
        }
        gateway.provider.assert_calls(1);
        assert_eq!(gateway.get("/jobs").await.expect(200)["data"], json!([]));
    });
}

#[test]
fn files_and_batches_belong_to_their_wallet() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
        let own = gateway.spend_key(&wallet).await;
        let other = gateway.spend_key(&json!({})).await;
        for id in ["file-1", "file-2", "file-3"] {
            gateway.store.clock.advance_millis(1);
            uploaded(gateway, &own, id, &[line("a", "m-1")]).await;
        }
        let started = running(gateway, &own, "batch_1", "file-1").await;
        let calls = gateway.provider.calls();
        for (method, path) in [
            ("GET", "/files/file-1"),
            ("GET", "/files/file-1/content"),
            ("DELETE", "/files/file-1"),
            ("GET", "/batches/batch_1"),
            ("POST", "/batches/batch_1/cancel"),
        ] {
            let refused = call(gateway, &other, method, path).send().await;
            assert_eq!(refused.status, 404, "{method} {path}");
        }
        assert_body_issues(&create(gateway, &other, "file-1").send().await, &["input_file_id"]);
        for path in ["/files", "/batches", "/files?after=file-2", "/batches?after=batch_1"] {
            let listed = call(gateway, &other, "GET", path).send().await.expect(200);
            let empty = (&json!([]), &json!(false));
            assert_eq!((&listed["data"], &listed["has_more"]), empty, "{path}");
        }
        gateway.provider.assert_calls(calls);

        for id in ["file-3", "file-2"] {
            gateway.provider.push(file(id));
        }
        let listed = call(gateway, &own, "GET", "/files?limit=2").send().await.expect(200);
        assert_eq!((&listed["object"], &listed["has_more"]), (&json!("list"), &json!(true)));
        assert_eq!((&listed["first_id"], &listed["last_id"]), (&json!("file-3"), &json!("file-2")));
        gateway.provider.push(file("file-1"));
        let next = call(gateway, &own, "GET", "/files?after=file-2").send().await.expect(200);
        assert_eq!((&next["first_id"], &next["has_more"]), (&json!("file-1"), &json!(false)));
        gateway.provider.push(file("file-1"));
        let oldest = call(gateway, &own, "GET", "/files?limit=1&order=asc").send().await;
        let oldest = oldest.expect(200);
        assert_eq!((&oldest["first_id"], &oldest["has_more"]), (&json!("file-1"), &json!(true)));
        gateway.provider.push(batch("batch_1", "in_progress", [None; 2]));
        let listed = call(gateway, &own, "GET", "/batches").send().await.expect(200);
        assert_eq!(listed["data"][0]["id"], "batch_1");

        let deleted = json!({"id": "file-3", "object": "file", "deleted": true});
        gateway.provider.push(ScriptedResponse::json(200, deleted));
        call(gateway, &own, "DELETE", "/files/file-3").send().await.expect(200);
        let gone = call(gateway, &own, "GET", "/files/file-3").send().await;
        assert_eq!(gone.status, 404, "it is forgotten");

        gateway.provider.push(batch("batch_1", "cancelling", [None; 2]));
        call(gateway, &own, "POST", "/batches/batch_1/cancel").send().await.expect(200);
        gateway.provider.push(batch("batch_1", "cancelled", [None; 2]));
        polled(gateway, async {
            assert_eq!(ended_in_steps(gateway, &started, 2_000).await["state"], "cancelled");
        })
        .await;
    });
}

#[test]
fn a_file_that_its_provider_refuses_is_no_file_of_the_wallet() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        let error = json!({"error": {"message": "full"}, "id": "file-in"});
        gateway.provider.push(ScriptedResponse::json(500, error));
        let refused = upload(gateway, &key, &form("batch", &[line("a", "m-1")])).send().await;
        assert_eq!(refused.status, 500);
        assert_body_issues(&create(gateway, &key, "file-in").send().await, &["input_file_id"]);
    });
}

#[test]
fn with_a_provider_key_of_its_own_a_caller_uploads_any_file() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let token = gateway.token(&json!({"provider_key": "sk-own"}));
        let own = |method: &str, path: &str| {
            gateway.call_without_key(method, &format!("/providers/house{path}")).bearer(&token)
        };
        let sent = form("fine-tune", &[json!({"messages": []})]);
        gateway.provider.push(file("file-tune"));
        let taken =
            own("POST", "/files").bytes("multipart/form-data; boundary=x", &sent).send().await;
        assert_eq!(taken.status, 200, "{}", taken.text());
        assert_eq!(gateway.provider.request().body, sent);
        // A batch of a file that was uploaded elsewhere has no bound.
        gateway.provider.push(batch("batch_1", "validating", [None; 2]));
        let body = json!({"input_file_id": "file-elsewhere", "endpoint": "/v1/chat/completions"});
        own("POST", "/batches").json(&body).send().await.expect(200);
        let job = &gateway.get("/jobs?limit=1").await.expect(200)["data"][0];
        assert_eq!((&job["state"], &job["hold"]), (&json!("running"), &json!(NOTHING)));
        // Its results are read with the key of the retrieval that shows the end.
        for _ in 0..2 {
            gateway.provider.push(batch("batch_1", "completed", [Some("file-out"), None]));
        }
        gateway.provider.push(results(&[answered("a")]));
        own("GET", "/batches/batch_1").send().await.expect(200);
        assert_eq!(ended(gateway, job).await["state"], "succeeded");
        let seen = gateway.provider.requests().pop().unwrap();
        assert_eq!(seen.target, "/v1/files/file-out/content");
        assert_eq!(seen.header("authorization"), Some("Bearer sk-own"));
        let record = record_of(gateway, job).await;
        assert_eq!(record["model_usage"]["output_tokens"], 500, "{record}");
    });
}

#[test]
fn files_of_other_vendors_are_not_those_of_openai() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let key = gateway.spend_key(&json!({})).await;
        for (path, of_google) in [
            ("/files", (400, "forward_endpoint_not_supported")),
            ("/files/file-1", (400, "forward_endpoint_not_supported")),
            // Google has batches, and this is none of the wallet.
            ("/batches/batch_1", (404, "provider_object_not_found")),
        ] {
            let by_header =
                gateway.call_without_key("GET", path).header("x-goog-api-key", &key.key);
            let by_query = gateway.call_without_key("GET", &format!("{path}?key={}", key.key));
            let of_anthropic = call(gateway, &key, "GET", path).header("anthropic-version", "1");
            let unsupported = (400, "forward_endpoint_not_supported");
            for (call, expected) in
                [(by_header, of_google), (by_query, of_google), (of_anthropic, unsupported)]
            {
                let refused = call.send().await;
                assert_eq!((refused.status, refused.error().as_str()), expected, "{path}");
            }
        }
        gateway.provider.assert_calls(0);
    });
}
