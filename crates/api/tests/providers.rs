//! Calls to the built-in providers, each in its own format and at its real prices: the place of the
//! key, the usage that is read from the answer, and the cost.

#![expect(clippy::indexing_slicing, reason = "helpers of tests fail by panicking")]

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::file_batches;
use crate::support::{Gateway, each_gateway_at_real_prices};

/// Input and output cost, usage source and price source of the only record.
async fn bill(gateway: &Gateway<'_>) -> [String; 4] {
    let record = gateway.record().await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let usage = &record["model_usage"];
    [
        text(&usage["input_cost"]),
        text(&usage["output_cost"]),
        text(&record["usage_source"]),
        text(&record["price_source"]),
    ]
}

/// A forward to `path` of a provider, which starts with its name.
fn to(gateway: &Gateway<'_>, path: &str) -> TestRequest {
    gateway.forward(path)
}

#[test]
fn gemini_is_metered_in_events_and_in_an_array_alike() {
    let chunk = |usage: Value| {
        json!({"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
               "usageMetadata": usage, "modelVersion": "gemini-2.5-flash", "responseId": "r1"})
    };
    let first = chunk(json!({"promptTokenCount": 1000, "totalTokenCount": 1000}));
    let last = chunk(json!({"promptTokenCount": 1000, "cachedContentTokenCount": 200,
        "candidatesTokenCount": 100, "thoughtsTokenCount": 50, "totalTokenCount": 1150}));
    let array = format!("[{first}\n,\n{last}]");
    let replies = [
        ("?alt=sse", ScriptedResponse::events([&first, &last])),
        ("", ScriptedResponse::json(200, &array).chunked_every(7)),
    ];
    for (query, reply) in replies {
        each_gateway_at_real_prices(async |gateway| {
            gateway.provider.push(reply.clone());
            let path =
                format!("/google/v1beta/models/gemini-2.5-flash:streamGenerateContent{query}");
            let answer = to(gateway, &path).json(&json!({"contents": []})).send().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let sent = gateway.provider.request();
            assert_eq!(sent.header("x-goog-api-key"), Some("key-of-google"));
            assert_eq!(sent.header("authorization"), None);
            let record = gateway.record().await;
            assert_eq!(record["model"], "gemini-2.5-flash");
            assert_eq!(record["model_usage"]["input_tokens"], 1000);
            assert_eq!(record["model_usage"]["output_tokens"], 150);
            assert_eq!(record["model_usage"]["cached_input_tokens"], 200);
            assert_eq!(record["model_usage"]["reasoning_tokens"], 50);
            let expected = ["0.0002460000", "0.0003750000", "reported", "catalog"];
            assert_eq!(bill(gateway).await, expected);
        });
    }
}

#[test]
fn a_key_in_the_query_reaches_nobody() {
    each_gateway_at_real_prices(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(
            200,
            json!({"usageMetadata": {"promptTokenCount": 1,
            "candidatesTokenCount": 1, "totalTokenCount": 2}}),
        ));
        let path = "/google/v1beta/models/gemini-2.5-flash:generateContent?key=AIza-canary";
        let refused = to(gateway, path).json(&json!({"contents": []})).send().await;
        assert_eq!(refused.issue_paths(), ["key"], "two keys would be two accounts");
        assert!(!refused.text().contains("canary"));
        let token = gateway.token(&json!({"provider_key": "AIza-own"}));
        let url = gateway.provider.url(path);
        let own = gateway.forward_to(&url).bearer(&token).json(&json!({"contents": []}));
        own.send().await.expect(200);
        let record = gateway.record().await;
        assert!(!record.to_string().contains("canary"), "{record}");
    });
}

#[test]
fn a_recording_is_billed_by_the_seconds_that_the_answer_states() {
    each_gateway_at_real_prices(async |gateway| {
        let answer = json!({"task": "transcribe", "duration": 12.5, "text": "Hi", "segments": []});
        gateway.provider.push(ScriptedResponse::json(200, answer));
        let form = b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n\
            --x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.mp3\"\r\n\r\n\
            ID3 sound\r\n--x--\r\n";
        let call = to(gateway, "/openai/v1/audio/transcriptions");
        let answer = call.bytes("multipart/form-data; boundary=x", form).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(gateway.provider.request().body, form, "byte for byte");
        let record = gateway.record().await;
        assert_eq!(record["model_usage"]["input_seconds"], 13, "rounded up to be shown");
        assert_eq!(
            bill(gateway).await,
            ["0.0012500000", "0.0000000000", "reported", "catalog"],
            "and exact to be priced"
        );
    });
}

#[test]
fn speech_is_billed_by_the_characters_that_were_sent() {
    each_gateway_at_real_prices(async |gateway| {
        gateway.provider.push(ScriptedResponse::bytes(200, "audio/mpeg", b"ID3\0\xff".to_vec()));
        let body = json!({"model": "tts-1", "input": "Grüße", "voice": "alloy"});
        let answer = to(gateway, "/openai/v1/audio/speech").json(&body).send().await;
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"ID3\0\xff"[..]));
        let record = gateway.record().await;
        assert_eq!(record["model_usage"]["input_characters"], 5);
        assert_eq!(bill(gateway).await, ["0.0000750000", "0.0000000000", "estimated", "catalog"]);
    });
}

#[test]
fn deepgram_is_billed_by_the_exact_length_it_states() {
    each_gateway_at_real_prices(async |gateway| {
        let answer = json!({"metadata": {"request_id": "d1", "duration": 25.933313, "channels": 1,
            "models": ["m"]}, "results": {"channels": []}});
        gateway.provider.push(ScriptedResponse::json(200, answer));
        let call = to(gateway, "/deepgram/v1/listen?model=nova-3&smart_format=true");
        call.bytes("audio/wav", b"RIFF sound").send().await.expect(200);
        let sent = gateway.provider.request();
        assert_eq!(sent.header("authorization"), Some("Token key-of-deepgram"));
        assert_eq!(sent.target, "/deepgram/v1/listen?model=nova-3&smart_format=true");
        assert_eq!(bill(gateway).await, ["0.0018586405", "0.0000000000", "reported", "catalog"]);
    });
}

#[test]
fn a_cost_that_the_provider_states_is_the_cost_and_the_drift_is_counted() {
    each_gateway_at_real_prices(async |gateway| {
        let answer = json!({"id": "x1", "model": "grok-4", "choices": [], "usage": {
            "prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1110,
            "completion_tokens_details": {"reasoning_tokens": 100},
            "cost_in_usd_ticks": 50_000_000}});
        gateway.provider.push(ScriptedResponse::json(200, answer));
        let body = json!({"model": "grok-4", "messages": []});
        to(gateway, "/xai/v1/chat/completions").json(&body).send().await.expect(200);
        let record = gateway.record().await;
        assert_eq!(record["model_usage"]["output_tokens"], 110, "thoughts beside the answer");
        assert_eq!(record["model_usage"]["total_cost"], "0.0050000000");
        // 1,000 at 3 per million; the rest of the reported cost is the output's.
        assert_eq!(bill(gateway).await, ["0.0030000000", "0.0020000000", "reported", "provider"]);
        let metrics = TestRequest::new(gateway.address, "GET", "/metrics").send().await;
        let line = |name: &str, units: u64| {
            let line = format!("tollgate_{name}_total{{provider=\"xai\"}} {units}\n");
            assert!(metrics.text().contains(&line), "{line} in {}", metrics.text());
        };
        line("provider_stated_cost_usd_e10", 50_000_000);
        line("provider_listed_cost_usd_e10", 30_000_000 + 16_500_000);
    });
}

#[test]
fn the_tier_that_served_prices_the_call_and_not_the_one_asked_for() {
    for (asked, served, expected) in [
        ("flex", "default", ["0.0012500000", "0.0010000000"]),
        ("default", "priority", ["0.0025000000", "0.0020000000"]),
        ("auto", "flex", ["0.0006250000", "0.0005000000"]),
        ("priority", "priority", ["0.0025000000", "0.0020000000"]),
    ] {
        each_gateway_at_real_prices(async |gateway| {
            let answer = json!({"id": "c1", "model": "gpt-5-2025-08-07", "service_tier": served,
                "choices": [{"index": 0}],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}});
            gateway.provider.push(ScriptedResponse::json(200, answer));
            let body = json!({"model": "gpt-5", "messages": [], "service_tier": asked});
            to(gateway, "/openai/v1/chat/completions").json(&body).send().await.expect(200);
            assert_eq!(bill(gateway).await[..2], expected, "{asked}, served {served}");
        });
    }
}

#[test]
fn a_dearer_tier_is_bounded_where_it_has_a_price_and_refused_under_strict_where_not() {
    each_gateway_at_real_prices(async |gateway| {
        let hold = async |tier: &str| {
            let body = json!({"model": "gpt-5", "messages": [], "max_tokens": 1000,
                              "service_tier": tier});
            let url = gateway.provider.url("/openai/v1/chat/completions");
            let quote = json!({"url": url, "body": body});
            let quoted = gateway.post("/quote", &quote).await.expect(200);
            quoted["hold"].as_str().unwrap().parse::<f64>().unwrap()
        };
        let (standard, priority) = (hold("default").await, hold("priority").await);
        assert!(priority > 1.9 * standard && priority < 2.2 * standard, "{standard} {priority}");
        let key =
            json!({"enforcement": "strict", "spend_limit": {"amount": "9", "cycle": "total"}});
        let key = gateway.spend_key(&key).await;
        let body = json!({"model": "gpt-5", "messages": [], "max_tokens": 10,
                          "service_tier": "unheard-of"});
        let url = gateway.provider.url("/openai/v1/chat/completions");
        let refused = gateway.forward_to(&url).bearer(&key.key).json(&body).send().await;
        assert_eq!(refused.error(), "cost_bound_unknown");
        assert_eq!(refused.issue_paths(), ["service_tier"]);
    });
}

#[test]
fn turns_of_other_models_are_billed_at_their_own_prices() {
    each_gateway_at_real_prices(async |gateway| {
        let turn = |kind: &str, model: Option<&str>, input: u64, output: u64| {
            let mut turn = json!({"type": kind, "input_tokens": input, "output_tokens": output});
            if let Some(model) = model {
                turn["model"] = json!(model);
            }
            turn
        };
        let answer = json!({"id": "msg_1", "type": "message", "model": "claude-sonnet-4-5",
            "usage": {"input_tokens": 3000, "output_tokens": 300, "iterations": [
                turn("message", None, 1000, 100),
                turn("advisor_message", Some("claude-opus-4-8"), 5000, 50),
                turn("message", None, 2000, 200)]}});
        gateway.provider.push(ScriptedResponse::json(200, answer));
        let body = json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": []});
        to(gateway, "/anthropic/v1/messages").json(&body).send().await.expect(200);
        let record = gateway.record().await;
        assert_eq!(record["model_usage"]["input_tokens"], 8000);
        // 3,000 at 3 and 5,000 at 5; 300 at 15 and 50 at 25.
        assert_eq!(bill(gateway).await, ["0.0340000000", "0.0057500000", "reported", "catalog"]);
    });
}

#[test]
fn azure_is_priced_by_the_model_that_answers_from_a_deployment() {
    each_gateway_at_real_prices(async |gateway| {
        let answer = json!({"id": "c1", "model": "gpt-4o-2024-08-06", "choices": [{"index": 0}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}});
        gateway.provider.push(ScriptedResponse::json(200, answer));
        let path = "/azure/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21";
        to(gateway, path).json(&json!({"messages": []})).send().await.expect(200);
        assert_eq!(gateway.provider.request().header("api-key"), Some("key-of-azure"));
        let record = gateway.record().await;
        assert_eq!(record["model"], "gpt-4o-2024-08-06");
        assert_eq!(bill(gateway).await, ["0.0025000000", "0.0010000000", "reported", "catalog"]);
    });
}

#[test]
fn a_deployment_whose_price_is_unknown_is_refused_with_the_managed_key() {
    each_gateway_at_real_prices(async |gateway| {
        let path = "/azure/openai/deployments/mine/chat/completions?api-version=2024-10-21";
        let refused = to(gateway, path).json(&json!({"messages": []})).send().await;
        assert_eq!((refused.status, refused.error().as_str()), (400, "model_price_unknown"));
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_batch_at_azures_older_paths_keeps_their_version() {
    each_gateway_at_real_prices(async |gateway| {
        let version = "?api-version=2024-10-21";
        let mut line = file_batches::line("a", "gpt-4o");
        line["url"] = json!("/chat/completions");
        gateway.provider.push(file_batches::file("file-in"));
        let form = file_batches::form("batch", &[line]);
        let upload = to(gateway, &format!("/azure/openai/files{version}"));
        upload.bytes("multipart/form-data; boundary=x", &form).send().await.expect(200);
        assert_eq!(gateway.provider.request().header("api-key"), Some("key-of-azure"));
        gateway.provider.push(file_batches::batch("batch_1", "validating", [None; 2]));
        let body = json!({"input_file_id": "file-in", "endpoint": "/chat/completions"});
        let created = to(gateway, &format!("/azure/openai/batches{version}"));
        created.json(&body).send().await.expect(200);
        let job = gateway.get("/jobs").await.expect(200)["data"][0].clone();
        assert_eq!((&job["kind"], &job["state"]), (&json!("batch"), &json!("running")));
        let ended = file_batches::batch("batch_1", "completed", [Some("file-out"), None]);
        gateway.provider.push(ended);
        let answer = json!({"model": "gpt-4o-2024-11-20", "usage": {"prompt_tokens": 1000,
            "completion_tokens": 100, "total_tokens": 1100}});
        let line = json!({"custom_id": "a", "response": {"status_code": 200, "body": answer}});
        gateway.provider.push(ScriptedResponse::bytes(200, "application/jsonl", line.to_string()));
        let refresh = format!("/jobs/{}/refresh", job["job_id"].as_str().unwrap_or_default());
        let ended = gateway.post(&refresh, &json!({})).await.expect(200);
        assert_eq!(ended["state"], "succeeded");
        let targets: Vec<_> =
            gateway.provider.requests().into_iter().map(|request| request.target).collect();
        assert_eq!(
            targets[2..],
            [
                format!("/azure/openai/batches/batch_1{version}"),
                format!("/azure/openai/files/file-out/content{version}")
            ]
        );
        let path = format!("/requests/{}", job["request_id"].as_str().unwrap_or_default());
        let record = gateway.get(&path).await.expect(200);
        assert_eq!(
            (&record["status"], &record["lines"][0]["requests"]),
            (&json!("completed"), &json!(1))
        );
    });
}

#[test]
fn reranking_is_billed_by_searches() {
    each_gateway_at_real_prices(async |gateway| {
        let answer = json!({"id": "r1", "results": [],
            "meta": {"billed_units": {"search_units": 3}}});
        gateway.provider.push(ScriptedResponse::json(200, answer));
        let body = json!({"model": "rerank-v3.5", "query": "x", "documents": ["a"]});
        to(gateway, "/cohere/v2/rerank").json(&body).send().await.expect(200);
        assert_eq!(bill(gateway).await, ["0.0000000000", "0.0060000000", "reported", "catalog"]);
    });
}

#[test]
fn what_opens_the_operators_account_is_refused_at_every_provider() {
    each_gateway_at_real_prices(async |gateway| {
        for path in [
            "/google/v1beta/cachedContents",
            "/google/v1beta/models/gemini-2.5-pro:asyncBatchEmbedContent",
            "/google/v1beta/corpora",
            "/openai/v1/uploads",
            "/openai/v1/vector_stores",
            "/openai/v1/videos/v/remix",
            "/bedrock/model/m/async-invoke",
            "/mistral/v1/fine_tuning/jobs",
            "/cohere/v1/datasets",
            "/elevenlabs/v1/voices/add",
            "/deepgram/v1/projects",
            "/groq/openai/v1/fine_tunings",
        ] {
            let refused = to(gateway, path).json(&json!({"model": "m"})).send().await;
            assert_eq!(refused.error(), "forward_endpoint_not_supported", "{path}");
        }
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn prices_are_listed_page_by_page_and_by_model() {
    each_gateway_at_real_prices(async |gateway| {
        let page = gateway.get("/prices?provider=openai&limit=2").await.expect(200);
        assert_eq!(page["data"].as_array().unwrap().len(), 2);
        assert_eq!(
            (&page["has_more"], &page["data"][0]["list"]),
            (&json!(true), &json!("catalog"))
        );
        let cursor = page["next_cursor"].as_str().unwrap();
        let path = format!("/prices?provider=openai&limit=100&cursor={cursor}");
        let next = gateway.get(&path).await.expect(200);
        let all = [page["data"].as_array().unwrap(), next["data"].as_array().unwrap()];
        let mut models: Vec<_> =
            all.into_iter().flatten().map(|row| row["models"].to_string()).collect();
        let count = models.len();
        models.sort();
        models.dedup();
        assert_eq!(models.len(), count, "no row twice");

        let one = gateway.get("/prices?provider=openai&model=gpt-4o-2024-08-06").await.expect(200);
        assert_eq!(one["data"].as_array().unwrap().len(), 1, "{one}");
        assert_eq!(one["data"][0]["prices"]["input"], "2.5");
        let anywhere = gateway.get("/prices?model=gpt-4o&limit=100").await.expect(200);
        let names: Vec<_> = anywhere["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["provider"].clone())
            .collect();
        assert!(names.contains(&json!("openai")), "{names:?}");
        let none = gateway.get("/prices?provider=openai&model=unheard-of").await.expect(200);
        assert_eq!(none["data"], json!([]));

        let dated = async |on: &str| {
            let path = format!("/prices?provider=openai&model=o3&on={on}");
            gateway.get(&path).await.expect(200)["data"][0]["prices"]["input"].clone()
        };
        assert_eq!(dated("2025-06-09").await, "10");
        assert_eq!(dated("2025-06-10").await, "2");
        let refused = gateway.get("/prices?on=yesterday&limit=0").await;
        assert_eq!(refused.error(), "validation_failed");
        assert_eq!(refused.issue_paths(), ["on", "limit"]);
        let nobody = gateway.call_without_key("GET", "/prices").send().await;
        assert_eq!(nobody.error(), "auth_header_missing");
    });
}

#[test]
fn the_drop_in_routes_find_a_provider_by_the_model_and_send_it_the_name_it_knows() {
    each_gateway_at_real_prices(async |gateway| {
        let sent = async |path: &str, model: &str| {
            let before = gateway.provider.calls();
            gateway.provider.push(ScriptedResponse::json(
                200,
                json!({"choices": [], "usage":
                {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}),
            ));
            let body = json!({"model": model, "max_tokens": 5, "messages": []});
            let call = gateway.call("POST", path).json(&body);
            let answer = call.send().await;
            assert_eq!(answer.status, 200, "{model}: {}", answer.text());
            let request = gateway.provider.requests().remove(before);
            format!("{} {}", request.target, request.json()["model"].as_str().unwrap())
        };
        let chat = "/chat/completions";
        let table = [
            (chat, "gpt-4o", "/openai/v1/chat/completions gpt-4o"),
            // A listed id that contains a slash takes precedence over a provider's name.
            (chat, "openai/gpt-4o", "/openrouter/api/v1/chat/completions openai/gpt-4o"),
            (chat, "xai/grok-4", "/xai/v1/chat/completions grok-4"),
            (chat, "openrouter/openai/gpt-4o", "/openrouter/api/v1/chat/completions openai/gpt-4o"),
            (chat, "gpt-4o-2099-01-01", "/openai/v1/chat/completions gpt-4o-2099-01-01"),
            (chat, "azure/gpt-4o", "/azure/openai/v1/chat/completions gpt-4o"),
            (chat, "gemini-2.5-flash", "/google/v1beta/openai/chat/completions gemini-2.5-flash"),
            (chat, "mistral/ministral-8b-2512", "/mistral/v1/chat/completions ministral-8b-2512"),
            ("/messages", "claude-sonnet-4-5", "/anthropic/v1/messages claude-sonnet-4-5"),
            (
                "/messages",
                "anthropic/claude-sonnet-4-5",
                "/anthropic/v1/messages claude-sonnet-4-5",
            ),
        ];
        for (path, model, expected) in table {
            assert_eq!(sent(path, model).await, expected, "{model}");
        }
    });
}

#[test]
fn a_model_that_is_priced_for_another_use_has_no_price_for_this_one() {
    each_gateway_at_real_prices(async |gateway| {
        for (path, model) in [
            ("/openai/v1/chat/completions", "whisper-1"),
            ("/openai/v1/chat/completions", "tts-1"),
            ("/openai/v1/audio/transcriptions", "tts-1"),
            ("/azure/openai/v1/chat/completions", "whisper-1"),
        ] {
            let refused = to(gateway, path).json(&json!({"model": model, "messages": []}));
            assert_eq!(refused.send().await.error(), "model_price_unknown", "{path} {model}");
        }
        gateway.provider.assert_calls(0);
    });
}
