//! Calls that are not forwarded, and their errors: every issue, with its path.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_gateway::{CallSettings, UnpricedPolicy};
use tollgate_testkit::ScriptedResponse;

use crate::support::{chat_answer, chat_body, each_gateway, each_gateway_with, settings};

#[test]
fn a_missing_or_wrong_credential_is_401_before_anything_else_is_looked_at() {
    each_gateway(async |gateway| {
        let u = gateway.provider.url("/v1/chat/completions");
        let bad_body = || gateway.forward_to(&u).bytes("application/json", b"{");
        let missing = bad_body().send().await;
        assert_eq!((missing.status, missing.error().as_str()), (401, "auth_header_missing"));
        let basic = bad_body().header("authorization", "Basic abc").send().await;
        assert_eq!(basic.error(), "auth_header_missing");

        let nobody = tollgate_domain::Key::generate(
            tollgate_domain::KeyKind::Secret,
            tollgate_domain::CellNumber::default(),
        );
        let spend = tollgate_domain::Key::generate(
            tollgate_domain::KeyKind::Spend,
            tollgate_domain::CellNumber::default(),
        );
        let forged = gateway.token(&json!({"secret_key": nobody.reveal()}));
        for credential in ["tgs_wrong", nobody.reveal(), spend.reveal(), &forged] {
            let answer = bad_body().bearer(credential).send().await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (401, "auth_invalid"),
                "{credential}"
            );
        }
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn every_fault_of_a_token_is_named() {
    each_gateway(async |gateway| {
        let u = gateway.provider.url("/v1/chat/completions");
        let paths = async |token: String| {
            let answer = gateway.forward_to(&u).bearer(&token).json(&chat_body()).send().await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (400, "forward_token_json_invalid")
            );
            answer.issue_paths()
        };
        assert_eq!(paths("not base64 at all".to_owned()).await, [""]);
        assert_eq!(paths(STANDARD.encode("[1]")).await, [""]);
        assert_eq!(paths(STANDARD.encode("{}")).await, ["secret_key"]);
        assert_eq!(paths(gateway.token(&json!({"meter_slug": null}))).await, ["meter_slug"]);
        let no_customer = json!({"connection_id": null, "disable_billing": true});
        assert_eq!(paths(gateway.token(&no_customer)).await, ["disable_billing"]);
        let all = json!({"secret_key": 1, "meter_slug": [], "disable_billing": "yes", "provider_key": "a b", "colour": 1});
        let mut found = paths(gateway.token(&all)).await;
        found.sort();
        assert_eq!(
            found,
            ["colour", "disable_billing", "meter_slug", "meter_slug", "provider_key", "secret_key"]
        );
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn connections_and_meters_that_are_not_there_are_404_and_deleted_ones_403() {
    each_gateway(async |gateway| {
        let u = gateway.provider.url("/v1/chat/completions");
        let refused = async |fields: Value| {
            let call = gateway.forward_to(&u).bearer(&gateway.token(&fields)).json(&chat_body());
            let answer = call.send().await;
            (answer.status, answer.error())
        };
        let stranger = gateway.store.merchant().await;
        let strangers = gateway.store.connection(stranger.merchant.merchant_id, "1").await;
        for id in ["con_nonsense".to_owned(), strangers.connection_id.to_string()] {
            assert_eq!(
                refused(json!({"connection_id": id})).await,
                (404, "connection_not_found".to_owned())
            );
        }
        assert_eq!(
            refused(json!({"meter_slug": "nonsense"})).await,
            (404, "meter_not_found".to_owned())
        );
        let id = gateway.connection.connection_id;
        gateway.call("DELETE", &format!("/connections/{id}")).send().await.expect(200);
        assert_eq!(refused(json!({})).await, (403, "connection_disabled".to_owned()));
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_deleted_key_is_refused_at_once() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        gateway.post("/secret_keys", &json!({"name": "second"})).await.expect(201);
        let keys = gateway.get("/secret_keys").await.expect(200);
        let old = keys["data"][1]["secret_key_id"].as_str().unwrap().to_owned();
        gateway.call("DELETE", &format!("/secret_keys/{old}")).send().await.expect(200);
        let answer = gateway.chat().send().await;
        assert_eq!((answer.status, answer.error().as_str()), (401, "auth_invalid"));
        gateway.provider.assert_calls(1);
    });
}

#[test]
fn a_query_is_checked_whole() {
    each_gateway(async |gateway| {
        let refused = async |query: &str| {
            let call = gateway.call_without_key("POST", &format!("/forward{query}"));
            let answer = call.bearer(&gateway.token(&json!({}))).json(&chat_body()).send().await;
            assert_eq!(answer.status, 400);
            (answer.error(), answer.issue_paths())
        };
        let validation = |paths: &[&str]| {
            (
                "validation_failed".to_owned(),
                paths.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(refused("").await, validation(&["u"]));
        assert_eq!(refused("?u=").await.0, "forward_endpoint_not_supported");
        let u = gateway.provider.url("/v1/chat/completions");
        assert_eq!(refused(&format!("?u={u}?a=1&b=2&c=3")).await, validation(&["b", "c"]));
        assert_eq!(refused(&format!("?u={u}&u={u}")).await, validation(&["u"]));
        let metadata =
            refused(&format!("?u={u}&metadata=%7B%22a-b%22:%22x%22,%22ok%22:1%7D")).await;
        assert_eq!(metadata.0, "metadata_invalid");
        let mut paths = metadata.1;
        paths.sort();
        assert_eq!(paths, ["a-b", "ok"]);
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn metadata_in_the_header_wins() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let u = gateway.provider.url("/v1/chat/completions");
        let path = format!("/forward?u={u}&metadata=not-json");
        let call = gateway.call_without_key("POST", &path).bearer(&gateway.token(&json!({})));
        call.header("x-service-metadata", r#"{"a":"1"}"#)
            .json(&chat_body())
            .send()
            .await
            .expect(200);
        assert_eq!(gateway.record().await["metadata"], json!({"a": "1"}));
    });
}

#[test]
fn a_url_that_is_no_providers_is_refused() {
    each_gateway(async |gateway| {
        let own = gateway.token(&json!({"provider_key": "sk"}));
        let host = gateway.provider.url("");
        for u in [
            "https://evil.example/v1/chat/completions".to_owned(),
            "http://api.openai.com/v1/chat/completions".to_owned(),
            "https://api.openai.com.evil.example/v1/chat/completions".to_owned(),
            "https://api.openai.com@evil.example/v1/chat/completions".to_owned(),
            "https://user:pass@api.openai.com/v1/chat/completions".to_owned(),
            "https://api.openai.com/v1/../admin".to_owned(),
            "https://api.openai.com/v2/chat/completions".to_owned(),
            "ftp://api.openai.com/v1".to_owned(),
            format!("{host}/v1beta/chat/completions"),
            format!("{host}/v1/chat/completions#x"),
            format!("{host}/v1//chat/completions"),
            format!("{host}/v1/%2e%2e/admin"),
            "nonsense".to_owned(),
        ] {
            let answer = gateway.forward_to(&u).bearer(&own).json(&chat_body()).send().await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (400, "forward_endpoint_not_supported"),
                "{u}"
            );
            assert_eq!(answer.issue_paths(), ["u"]);
        }
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_managed_key_opens_only_the_listed_endpoints_and_no_stored_state() {
    each_gateway(async |gateway| {
        let managed = gateway.token(&json!({}));
        for path in [
            "/v1/uploads",
            "/v1/vector_stores",
            "/v1/fine_tuning/jobs",
            "/v1/responses/resp_1/other",
        ] {
            let u = gateway.provider.url(path);
            let answer = gateway.forward_to(&u).bearer(&managed).json(&chat_body()).send().await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (400, "forward_endpoint_not_supported"),
                "{path}"
            );
        }
        let u = gateway.provider.url("/v1/responses");
        for (field, value) in [
            ("deferred", json!(true)),
            ("conversation", json!("conv_1")),
            ("previous_response_id", json!("resp_1")),
            ("prompt", json!({"id": "pmpt_1"})),
        ] {
            let mut body = json!({"model": "m-1", "input": "Hi"});
            body[field] = value;
            let answer = gateway.forward_to(&u).bearer(&managed).json(&body).send().await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (400, "forward_token_json_invalid"),
                "{field}"
            );
            assert!(
                answer.issue_paths()[0].starts_with(field),
                "{field}: {:?}",
                answer.issue_paths()
            );
        }
        gateway.provider.assert_calls(0);

        gateway.provider.push(ScriptedResponse::json(200, json!({"id": "batch_1"})));
        let own = gateway.token(&json!({"provider_key": "sk-own"}));
        let u = gateway.provider.url("/v1/vector_stores");
        gateway.forward_to(&u).bearer(&own).json(&chat_body()).send().await.expect(200);
    });
}

#[test]
fn a_body_that_is_not_valid_is_refused_with_every_issue() {
    each_gateway(async |gateway| {
        for (body, paths) in [
            ("", vec![""]),
            ("{", vec![""]),
            ("[]", vec![""]),
            ("{}", vec!["model"]),
            (r#"{"model":1}"#, vec!["model"]),
            (r#"{"model":"","stream":"yes"}"#, vec!["model", "stream"]),
            (r#"{"model":"m-1","model":"m-2"}"#, vec!["model"]),
            (
                r#"{"model":"m-1","n":1,"n":9,"max_tokens":1,"max_tokens":2}"#,
                vec!["n", "max_tokens"],
            ),
        ] {
            let call =
                gateway.forward("/v1/chat/completions").bytes("application/json", body.as_bytes());
            let answer = call.send().await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (400, "forward_token_json_invalid"),
                "{body}"
            );
            let (mut found, mut paths) = (answer.issue_paths(), paths);
            found.sort();
            paths.sort_unstable();
            assert_eq!(found, paths, "{body}");
        }
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_body_that_is_too_large_is_413() {
    let small = tollgate_api::Settings { forward_body_limit_bytes: 1_000, ..settings() };
    each_gateway_with(small, async |gateway| {
        let mut body = chat_body();
        body["padding"] = json!("x".repeat(2_000));
        let answer = gateway.forward("/v1/chat/completions").json(&body).send().await;
        assert_eq!((answer.status, answer.error().as_str()), (413, "body_too_large"));
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn an_unknown_price_is_refused_or_marked_as_the_operator_wants() {
    for (unpriced, managed_passes, own_passes) in [
        (UnpricedPolicy::RefuseManaged, false, true),
        (UnpricedPolicy::Refuse, false, false),
        (UnpricedPolicy::Allow, true, true),
    ] {
        let settings = tollgate_api::Settings {
            calls: CallSettings { unpriced, ..settings().calls },
            ..settings()
        };
        each_gateway_with(settings, async |gateway| {
            let mut answer = chat_answer();
            answer["model"] = json!("unheard-of-2026");
            gateway.provider.push_always(ScriptedResponse::json(200, &answer));
            let u = gateway.provider.url("/v1/chat/completions");
            let body = json!({"model": "unheard-of", "messages": []});
            for (more, passes) in
                [(json!({}), managed_passes), (json!({"provider_key": "sk"}), own_passes)]
            {
                let answer =
                    gateway.forward_to(&u).bearer(&gateway.token(&more)).json(&body).send().await;
                if passes {
                    answer.expect(200);
                } else {
                    assert_eq!(
                        (answer.status, answer.error().as_str()),
                        (400, "model_price_unknown")
                    );
                    assert_eq!(answer.issue_paths(), ["model"]);
                }
            }
            for record in gateway.records().await {
                assert_eq!(record["price_source"], "unpriced");
                assert_eq!(record["model_usage"]["total_cost"], "0.0000000000");
                assert_eq!(record["fee"]["amount"], "0.0150000000", "a fixed fee needs no price");
            }
        });
    }
}

#[test]
fn an_empty_wallet_is_402_and_reaches_nobody() {
    each_gateway(async |gateway| {
        let poor = gateway.store.connection(gateway.merchant.merchant.merchant_id, "0").await;
        let token = gateway.token(&json!({"connection_id": poor.connection_id.to_string()}));
        let u = gateway.provider.url("/v1/chat/completions");
        let answer = gateway.forward_to(&u).bearer(&token).json(&chat_body()).send().await;
        assert_eq!((answer.status, answer.error().as_str()), (402, "wallet_balance_insufficient"));
        assert_eq!(answer.header("retry-after"), None, "waiting would not help");
        gateway.provider.assert_calls(0);
        assert_eq!(gateway.records().await.len(), 0);
    });
}
