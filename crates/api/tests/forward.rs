//! A forwarded call, end to end: the provider's request, the client's answer, and the record.

use serde_json::{Value, json};
use tollgate_testkit::{Gate, ScriptedResponse};

use crate::support::{chat_answer, chat_body, each_gateway};

#[test]
fn a_call_is_forwarded_metered_priced_and_recorded() {
    each_gateway(async |gateway| {
        gateway
            .provider
            .push(ScriptedResponse::json(200, chat_answer()).header("x-provider-header", "kept"));
        // Unusual spacing and key order must arrive unchanged.
        let body = br#"{ "messages":[ {"content":"Hello","role":"user"}], "model" :"m-1","temperature":0.10 }"#;
        let call = gateway
            .forward("/v1/chat/completions")
            .bytes("application/json", body)
            .header("x-service-metadata", r#"{"user":"ada"}"#);

        let answer = call.send().await;

        assert_eq!(answer.expect(200), chat_answer());
        assert_eq!(answer.header("x-provider-header"), Some("kept"));
        let request_id = answer.header("x-service-request-id").unwrap().to_owned();
        let seen = gateway.provider.request();
        assert_eq!(seen.body, body);
        assert_eq!(seen.target, "/v1/chat/completions");
        assert_eq!(seen.header("authorization"), Some("Bearer managed-provider-key"));
        assert_eq!(seen.header("x-service-metadata"), None);

        // A client that has read its answer can read its completed record without a wait.
        let record = gateway.get(&format!("/requests/{request_id}")).await.expect(200);
        let expected = json!({
            "request_id": request_id,
            "sequence": 1,
            "status": "completed",
            "provider": "house",
            "endpoint": format!("POST {}", gateway.provider.url("/v1/chat/completions")),
            "provider_key_type": "managed",
            "provider_status": 200,
            "connection_id": gateway.connection.connection_id.to_string(),
            "meter_id": gateway.meter.meter_id.to_string(),
            "model": "m-1-2026",
            "response_id": "chatcmpl-1",
            "timestamp": "2023-11-14T22:13:20Z",
            "model_usage": {
                "input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500,
                "input_characters": 0, "output_characters": 0, "total_characters": 0,
                "input_seconds": 0, "output_seconds": 0, "total_seconds": 0,
                "cached_input_tokens": 0, "cache_write_tokens": 0, "reasoning_tokens": 0,
                "input_audio_tokens": 0, "output_audio_tokens": 0,
                "input_cost": "0.0010000000", "output_cost": "0.0010000000",
                "total_cost": "0.0020000000", "payer": "wallet"
            },
            "usage_source": "reported",
            "price_source": "custom",
            "fee": {
                "amount": "0.0150000000", "rate_type": "fixed", "token_basis": "input+output",
                "breakdown": [{
                    "tier": {"start": 0, "rate": "10", "type": "tokens_1m"},
                    "tokens": 1500, "characters": 0, "seconds": 0, "requests": 0, "cost": "0.0150000000"
                }]
            },
            "service_charge": {"amount": "0.0000000000", "payer": "wallet"},
            "total_request_cost": "0.0170000000",
            "total_wallet_cost": "0.0170000000",
            "total_merchant_cost": "0.0000000000",
            "metadata": {"user": "ada"},
            "timings": record["timings"],
            "created_at": record["created_at"]
        });
        assert_eq!(record, expected);
        assert_eq!(gateway.wallet().await, ("9.9830000000".to_owned(), "0.0000000000".to_owned()));
    });
}

/// The events of a chat stream, with the usage of `include_usage` or without.
fn chat_events(usage: bool) -> Vec<String> {
    let chunk = |choices: Value, usage: Value| {
        json!({"id": "chatcmpl-2", "object": "chat.completion.chunk", "created": 1_700_000_000,
               "model": "m-1-2026", "choices": choices, "usage": usage})
        .to_string()
    };
    let delta =
        |text: &str| json!([{"index": 0, "delta": {"content": text}, "finish_reason": null}]);
    let stop = json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]);
    let mut events = vec![
        chunk(delta("Hel"), Value::Null),
        chunk(delta("lo"), Value::Null),
        chunk(stop, Value::Null),
    ];
    if usage {
        let used = json!({"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500});
        events.push(chunk(json!([]), used));
    }
    events.push("[DONE]".to_owned());
    events
}

fn stream_of(events: &[String]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

#[test]
fn a_stream_that_did_not_ask_for_usage_is_asked_on_the_way_and_given_back_without_it() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::events(chat_events(true)));
        let body = r#"{"model":"m-1","stream":true,"messages":[]}"#;
        let call =
            gateway.forward("/v1/chat/completions").bytes("application/json", body.as_bytes());

        let answer = call.send().await;

        assert_eq!(answer.status, 200);
        assert!(answer.complete);
        assert_eq!(answer.text(), stream_of(&chat_events(false)));
        let seen = gateway.provider.request();
        assert_eq!(seen.json()["stream_options"], json!({"include_usage": true}));
        assert_eq!(seen.header("accept-encoding"), Some("identity"));
        let record = gateway.record().await;
        assert_eq!(
            (&record["status"], &record["usage_source"]),
            (&json!("completed"), &json!("reported"))
        );
        assert_eq!(record["total_wallet_cost"], "0.0170000000");
    });
}

#[test]
fn a_stream_that_asked_for_usage_passes_as_it_is() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::events(chat_events(true)));
        let body = r#"{"model":"m-1","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;
        let answer = gateway
            .forward("/v1/chat/completions")
            .bytes("application/json", body.as_bytes())
            .send()
            .await;
        assert_eq!(answer.text(), stream_of(&chat_events(true)));
        assert_eq!(gateway.provider.request().body, body.as_bytes());
    });
}

/// The record is final before the client gets `[DONE]`; the events before it are not delayed.
#[test]
fn the_last_event_of_a_stream_waits_for_the_settlement_and_nothing_else_does() {
    each_gateway(async |gateway| {
        let gate = Gate::new();
        let stream = stream_of(&chat_events(true));
        let done_at = stream.find("data: [DONE]").unwrap();
        let first_event = stream.find("\n\n").unwrap() + 2;
        gateway.provider.push(
            ScriptedResponse::events(chat_events(true))
                .pieces_at([first_event, done_at])
                .gate(&gate),
        );
        let body =
            json!({"model": "m-1", "stream": true, "stream_options": {"include_usage": true}});
        let mut open = gateway.forward("/v1/chat/completions").json(&body).open().await;

        gate.pass(1);
        open.read_until("Hel").await;
        gate.pass(1);
        open.read_until("\"prompt_tokens\":1000").await;
        let pending = gateway.get("/requests").await.expect(200);
        assert_eq!(pending["data"][0]["status"], "pending");
        gate.open();
        open.read_until("[DONE]").await;
        let record = gateway.get("/requests").await.expect(200);
        assert_eq!(record["data"][0]["status"], "completed");
        while open.read_some().await {}
        assert!(open.response().complete);
    });
}

#[test]
fn a_stream_gives_the_same_bytes_and_usage_at_every_chunk_boundary() {
    each_gateway(async |gateway| {
        let stream = stream_of(&chat_events(true));
        let body = json!({"model": "m-1", "stream": true});
        let cuts: Vec<usize> = (1..stream.len()).step_by(7).collect();
        for &cut in &cuts {
            gateway.provider.push(ScriptedResponse::events(chat_events(true)).pieces_at([cut]));
            let answer = gateway.forward("/v1/chat/completions").json(&body).send().await;
            assert_eq!(answer.text(), stream_of(&chat_events(false)), "cut at {cut}");
        }
        let page = gateway.get("/requests?limit=100").await.expect(200);
        for record in page["data"].as_array().unwrap() {
            assert_eq!(record["total_wallet_cost"], "0.0170000000");
        }
    });
}

#[test]
fn the_other_format_works_streamed_and_not() {
    each_gateway(async |gateway| {
        let usage =
            json!({"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 500});
        let message = json!({"id": "msg_1", "type": "message", "model": "m-2", "stop_reason": "end_turn",
                             "content": [{"type": "text", "text": "Hi"}], "usage": usage});
        gateway.provider.push(ScriptedResponse::json(200, &message));
        let body = json!({"model": "m-2", "max_tokens": 9, "messages": []});
        let answer = gateway.forward("/anthropic/v1/messages").json(&body).send().await;
        assert_eq!(answer.expect(200), message);
        let seen = gateway.provider.request();
        assert_eq!(seen.header("x-api-key"), Some("managed-provider-key"));
        assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
        assert_eq!(seen.header("authorization"), None);

        let start = json!({"type": "message_start", "message": {"id": "msg_2", "model": "m-2", "usage": {"input_tokens": 100, "output_tokens": 1}}});
        let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}});
        let end = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 500}});
        let events = [
            ("message_start", start.to_string()),
            ("content_block_delta", delta.to_string()),
            ("message_delta", end.to_string()),
            ("message_stop", json!({"type": "message_stop"}).to_string()),
        ];
        gateway.provider.push(ScriptedResponse::named_events(events.clone()));
        let body = json!({"model": "m-2", "max_tokens": 9, "stream": true, "messages": []});
        let answer = gateway.forward("/anthropic/v1/messages").json(&body).send().await;
        let expected: String =
            events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect();
        assert_eq!(answer.text(), expected);

        for record in gateway.records().await {
            assert_eq!(record["provider"], "mansion");
            assert_eq!(record["model_usage"]["input_tokens"], 100);
            assert_eq!(record["model_usage"]["output_tokens"], 500);
        }
    });
}

#[test]
fn every_kind_of_credential_pays_as_it_should() {
    each_gateway(async |gateway| {
        let own = json!({"provider_key": "sk-own"});
        let merge = |more: Value| {
            let mut all = own.clone();
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        let no_customer = json!({"connection_id": null, "meter_slug": null});
        let customer_id = json!({"connection_id": null, "customer_id": gateway.connection.connection_id.to_string()});
        // credential, key type, wallet pays, merchant pays, fee, base payer
        let cases = [
            (
                gateway.token(&json!({})),
                "managed",
                "0.0170000000",
                "0.0000000000",
                "0.0150000000",
                "wallet",
            ),
            (
                gateway.token(&customer_id),
                "managed",
                "0.0170000000",
                "0.0000000000",
                "0.0150000000",
                "wallet",
            ),
            (
                gateway.token(&json!({"disable_billing": true})),
                "managed",
                "0.0000000000",
                "0.0170000000",
                "0.0150000000",
                "merchant",
            ),
            (
                gateway.token(&json!({"connection_id": null})),
                "managed",
                "0.0000000000",
                "0.0170000000",
                "0.0150000000",
                "merchant",
            ),
            (
                gateway.token(&no_customer),
                "managed",
                "0.0000000000",
                "0.0020000000",
                "0.0000000000",
                "merchant",
            ),
            (
                gateway.key().to_owned(),
                "managed",
                "0.0000000000",
                "0.0020000000",
                "0.0000000000",
                "merchant",
            ),
            (
                gateway.token(&own),
                "unmanaged",
                "0.0150000000",
                "0.0000000000",
                "0.0150000000",
                "wallet",
            ),
            (
                gateway.token(&merge(no_customer)),
                "unmanaged",
                "0.0000000000",
                "0.0000000000",
                "0.0000000000",
                "merchant",
            ),
        ];
        for (credential, key_type, by_wallet, by_merchant, fee, payer) in cases {
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            let u = gateway.provider.url("/v1/chat/completions");
            let answer = gateway.forward_to(&u).bearer(&credential).json(&chat_body()).send().await;
            answer.expect(200);
            let id = answer.header("x-service-request-id").unwrap();
            let record = gateway.get(&format!("/requests/{id}")).await.expect(200);
            let found = [
                &record["provider_key_type"],
                &record["total_wallet_cost"],
                &record["total_merchant_cost"],
                &record["fee"]["amount"],
                &record["model_usage"]["payer"],
            ];
            assert_eq!(found, [key_type, by_wallet, by_merchant, fee, payer], "{record}");
            assert_eq!(record["model_usage"]["total_cost"], "0.0020000000", "always shown");
        }
        let seen = gateway.provider.requests();
        assert_eq!(seen[6].header("authorization"), Some("Bearer sk-own"));
        let merchant = gateway.get("/wallet").await.expect(200);
        assert_eq!(merchant["balance"], "-0.0380000000");
    });
}

#[test]
fn a_credential_may_stand_in_any_of_its_places_in_order_of_precedence() {
    each_gateway(async |gateway| {
        let u = gateway.provider.url("/v1/chat/completions");
        let token = gateway.token(&json!({}));
        let url_safe = token.replace('+', "-").replace('/', "_").trim_end_matches('=').to_owned();
        let encoded: String = url::form_urlencoded::byte_serialize(token.as_bytes()).collect();
        let in_query = gateway.call_without_key("POST", &format!("/forward?u={u}&key={encoded}"));
        let wrong = "tgs_wrong";
        let calls = [
            gateway.forward_to(&u).header("authorization", &format!("bearer {url_safe}")),
            gateway.forward_to(&u).header("x-api-key", &token),
            gateway.forward_to(&u).header("x-goog-api-key", &token),
            gateway.forward_to(&u).header("xi-api-key", &token),
            in_query,
            gateway.forward_to(&u).bearer(&token).header("x-api-key", wrong),
            gateway.forward_to(&u).header("x-api-key", &token).header("xi-api-key", wrong),
        ];
        for call in calls {
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            let answer = call.json(&chat_body()).send().await;
            answer.expect(200);
        }
        for seen in gateway.provider.requests() {
            for (name, value) in &seen.headers {
                assert!(!value.contains(&token) && !value.contains("tgs_"), "{name}: {value}");
            }
            assert!(!seen.target.contains("key="), "{}", seen.target);
        }
    });
}

#[test]
fn a_get_is_forwarded_recorded_and_free() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, json!({"object": "list", "data": []})));
        let u = gateway.provider.url("/v1/models");
        let call = gateway
            .call_without_key("GET", &format!("/forward?u={u}"))
            .bearer(&gateway.token(&json!({})));
        call.send().await.expect(200);
        let record = gateway.record().await;
        assert_eq!(record["endpoint"], format!("GET {u}"));
        assert_eq!(record["status"], "completed");
        assert_eq!(record["usage_source"], "none");
        assert_eq!(record["total_request_cost"], "0.0000000000");
        assert_eq!(record.get("model"), None);
    });
}

#[test]
fn a_raw_u_works_and_secrets_in_it_are_not_recorded() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let u = gateway.provider.url("/v1/chat/completions");
        let path = format!("/forward?u={u}?api_key=sk-secret");
        let call = gateway
            .call_without_key("POST", &path)
            .bearer(&gateway.token(&json!({"provider_key": "sk-own"})));
        call.json(&chat_body()).send().await.expect(200);
        assert_eq!(gateway.provider.request().target, "/v1/chat/completions?api_key=sk-secret");
        assert_eq!(gateway.record().await["endpoint"], format!("POST {u}"));
    });
}

#[test]
fn two_hundred_callers_on_one_balance_agree_with_the_provider_and_leave_no_hold() {
    each_gateway(async |gateway| {
        // Each call holds and costs 1.03 USD; the wallet has 10.
        let mut body = chat_body();
        body["max_tokens"] = json!(100_000);
        let mut answer = chat_answer();
        answer["usage"] =
            json!({"prompt_tokens": 50_000, "completion_tokens": 40_000, "total_tokens": 90_000});
        gateway.provider.push_always(ScriptedResponse::json(200, answer));
        let calls = (0..200).map(|_| {
            let call = gateway.forward("/v1/chat/completions").json(&body);
            tokio::spawn(async move { call.send().await.status })
        });
        let mut statuses = Vec::new();
        for call in calls.collect::<Vec<_>>() {
            statuses.push(call.await.unwrap());
        }
        let answered = statuses.iter().filter(|status| **status == 200).count();
        let refused = statuses.iter().filter(|status| **status == 402).count();
        assert_eq!(answered + refused, 200, "{statuses:?}");
        assert!(
            (9..=10).contains(&answered),
            "10 USD pay nine calls, and may begin a tenth: {answered}"
        );
        assert_eq!(gateway.provider.calls(), answered);
        let audit = gateway.store.store.audit().await.unwrap();
        assert_eq!((audit.requests, audit.pending), (answered, 0));
        let spent = 10_300_000_000 * i64::try_from(answered).unwrap();
        let balance = tollgate_pricing::Amount::from_units(100_000_000_000 - spent);
        assert_eq!(gateway.wallet().await, (balance.to_string(), "0.0000000000".to_owned()));
    });
}
