//! `GET /usage`: the sums of each day, and the errors of invalid queries.

use serde_json::{Value, json};
use tollgate_testkit::ScriptedResponse;

use crate::support::{Gateway, chat_answer, each_gateway, each_gateway_by_the_stores_clock};

async fn chat(gateway: &Gateway<'_>, metadata: &str) {
    gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
    gateway.chat().header("x-service-metadata", metadata).send().await.expect(200);
}

async fn usage(gateway: &Gateway<'_>, query: &str) -> Value {
    gateway.get(&format!("/usage?{query}")).await.expect(200)
}

/// The sums of this number of chat calls, all paid by the wallet.
fn sums(calls: u32) -> Value {
    let amount = |ten_thousandths: u32| format!("0.{:04}000000", ten_thousandths * calls);
    json!({
        "total_requests": calls, "total_usage_tokens": 1_500 * calls,
        "total_usage_cost": amount(20), "total_fee_amount": amount(150),
        "total_service_charge_amount": amount(0), "total_request_cost": amount(170),
        "total_wallet_cost": amount(170), "total_merchant_cost": amount(0),
        "provider_cost": amount(20), "fee_amount": amount(150), "service_charge_amount": amount(0),
        "revenue": amount(170), "margin": amount(150), "requests": calls, "failed": 0,
        "input_tokens": 1_000 * calls, "output_tokens": 500 * calls, "cached_input_tokens": 0,
        "cache_write_tokens": 0, "reasoning_tokens": 0, "input_audio_tokens": 0,
        "output_audio_tokens": 0, "refused": 0,
    })
}

#[test]
fn calls_are_added_up_by_the_days_of_the_offset_of_start() {
    each_gateway_by_the_stores_clock(async |gateway| {
        chat(gateway, "{}").await;
        // 23:00 in UTC is the next day in Kathmandu.
        gateway.store.clock.advance_millis(23 * 3_600_000);
        chat(gateway, "{}").await;
        chat(gateway, "{}").await;
        gateway.records().await;

        let query = "start=2026-11-20T12:00:00%2B05:45&end=2026-11-23T00:00:00%2B05:45";
        let found = usage(gateway, query).await;
        let days = [
            ("2026-11-20", "2026-11-20T12:00:00+05:45", "2026-11-21T00:00:00+05:45", 0),
            ("2026-11-21", "2026-11-21T00:00:00+05:45", "2026-11-22T00:00:00+05:45", 1),
            ("2026-11-22", "2026-11-22T00:00:00+05:45", "2026-11-23T00:00:00+05:45", 2),
        ];
        let items = days.map(|(date, start, end, calls)| {
            let mut item = sums(calls);
            item["date"] = json!(date);
            item["start"] = json!(start);
            item["end"] = json!(end);
            item
        });
        let (start, end) = ("2026-11-20T12:00:00+05:45", "2026-11-23T00:00:00+05:45");
        let expected = json!({"start": start, "end": end, "items": items, "totals": sums(3)});
        assert_eq!(found, expected);
        // A plus that is not encoded counts as one.
        assert_eq!(usage(gateway, &query.replace("%2B", "+")).await, found);
    });
}

#[test]
fn without_start_and_end_it_is_the_last_thirty_days_with_today() {
    each_gateway_by_the_stores_clock(async |gateway| {
        chat(gateway, "{}").await;
        gateway.records().await;
        gateway.store.clock.advance_millis(60_000);
        let found = usage(gateway, "").await;
        let items = found["items"].as_array().unwrap();
        // The end is a minute past midnight, widened to a quarter of an hour.
        assert_eq!(
            (&found["start"], &found["end"]),
            (&json!("2026-10-22T00:00:00Z"), &json!("2026-11-21T00:15:00Z"))
        );
        assert_eq!(items.len(), 31);
        assert_eq!(items[0]["start"], "2026-10-22T00:00:00Z");
        assert_eq!(items[30]["date"], "2026-11-21");
        assert_eq!(items[30]["total_requests"], 1);
        assert_eq!(found["totals"], sums(1));
    });
}

#[test]
fn usage_is_filtered_like_records() {
    each_gateway(async |gateway| {
        chat(gateway, r#"{"user":"ada","env":"prod"}"#).await;
        chat(gateway, r#"{"env":"prod"}"#).await;
        gateway.records().await;
        let (connection, meter) = (gateway.connection.connection_id, gateway.meter.meter_id);
        let nobody = tollgate_domain::ConnectionId::generate(gateway.store.clock.now());
        let pairs = |pairs: &str| {
            let text: String = url::form_urlencoded::byte_serialize(pairs.as_bytes()).collect();
            format!("metadata_filters={text}")
        };
        for (query, calls) in [
            (String::new(), 2),
            (format!("connection_id={connection}"), 2),
            (format!("customer_id={connection}&meter_id={meter}"), 2),
            (format!("connection_id={nobody}"), 0),
            (pairs(r#"[["env","prod"]]"#), 2),
            (pairs(r#"[["env","prod"],["user","ada"]]"#), 1),
            (format!("{}&connection_id={connection}", pairs(r#"[["user","ada"]]"#)), 1),
            (pairs(r#"[["user","bob"]]"#), 0),
        ] {
            let mut expected = sums(calls);
            expected.as_object_mut().unwrap().remove("refused");
            assert_eq!(totals(&usage(gateway, &query).await), expected, "{query}");
        }
    });
}

#[test]
fn every_fault_of_a_question_is_named() {
    each_gateway(async |gateway| {
        let time = "2026-11-21T00:00:00Z";
        for (query, paths) in [
            (
                "start=today&end=x&meter_id=1&metadata_filters=x".to_owned(),
                &["meter_id", "metadata_filters", "start", "end"][..],
            ),
            (format!("start={time}&end={time}"), &["end"]),
            (format!("start={time}&end=2027-11-23T00:00:00Z"), &["end"]),
            ("start=2026-11-21T00:01:00Z&end=2026-11-21T00:00:01Z".to_owned(), &["end"]),
            ("start=2026-11-21T00:00:00%2B00:20&end=2026-11-22T00:00:00Z".to_owned(), &["start"]),
        ] {
            let answer = gateway.get(&format!("/usage?{query}")).await;
            assert_eq!(answer.error(), "validation_failed", "{query}");
            assert_eq!(answer.issue_paths(), paths, "{query}");
        }
    });
}

/// The sums of an answer without the number of refused calls, which not every query has.
#[expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]
fn totals(found: &Value) -> Value {
    let mut totals = found["totals"].clone();
    totals.as_object_mut().unwrap().remove("refused");
    totals
}

/// The groups of an answer, each with its number of calls.
#[expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]
fn groups(found: &Value) -> Vec<(Value, i64)> {
    let items = found["items"].as_array().unwrap().iter();
    items.map(|item| (item["group"].clone(), item["requests"].as_i64().unwrap())).collect()
}

#[test]
fn calls_are_grouped_by_up_to_two_dimensions_and_null_is_a_group() {
    each_gateway(async |gateway| {
        chat(gateway, r#"{"user":"ada"}"#).await;
        chat(gateway, r#"{"user":"ada","env":"prod"}"#).await;
        chat(gateway, "{}").await;
        gateway.records().await;
        let connection = gateway.connection.connection_id.to_string();
        let ask = async |by: &str| {
            let found = usage(gateway, &format!("interval=none&group_by={by}")).await;
            let mut all = sums(3);
            all.as_object_mut().unwrap().remove("refused");
            assert_eq!(totals(&found), all, "{by}");
            groups(&found)
        };
        assert_eq!(ask("connection").await, [(json!({"connection": connection}), 3)]);
        assert_eq!(ask("spend_key").await, [(json!({"spend_key": null}), 3)]);
        assert_eq!(ask("status").await, [(json!({"status": "completed"}), 3)]);
        let by_user = [(json!({"metadata.user": null}), 1), (json!({"metadata.user": "ada"}), 2)];
        assert_eq!(ask("metadata.user").await, by_user);
        assert_eq!(
            ask("metadata.user,metadata.env").await,
            [
                (json!({"metadata.user": null, "metadata.env": null}), 1),
                (json!({"metadata.user": "ada", "metadata.env": null}), 1),
                (json!({"metadata.user": "ada", "metadata.env": "prod"}), 1),
            ]
        );
        let by_provider = ask("provider,model").await;
        assert_eq!(by_provider.len(), 1);
        assert_eq!(by_provider[0].0["provider"], "house");
    });
}

#[test]
fn a_day_of_a_time_zone_has_25_hours_when_the_clocks_go_back() {
    each_gateway(async |gateway| {
        let query = "start=2026-10-24T22:00:00Z&end=2026-10-26T23:00:00Z&time_zone=Europe/Berlin";
        let found = usage(gateway, query).await;
        let days: Vec<_> = found["items"].as_array().unwrap().iter().collect();
        assert_eq!(days.len(), 2);
        assert_eq!(days[0]["start"], "2026-10-25T00:00:00+02:00");
        assert_eq!(days[0]["end"], "2026-10-26T00:00:00+01:00");
        assert_eq!(days[1]["end"], "2026-10-27T00:00:00+01:00");
    });
}

#[test]
fn usage_and_records_are_answered_as_csv() {
    each_gateway_by_the_stores_clock(async |gateway| {
        chat(gateway, r#"{"user":"=1+1"}"#).await;
        chat(gateway, r#"{"user":"ada, the first"}"#).await;
        gateway.records().await;
        let csv = async |path: &str| {
            let answer = gateway.get(path).await;
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(answer.header("content-type"), Some("text/csv; charset=utf-8"));
            let disposition = answer.header("content-disposition").unwrap();
            assert!(disposition.starts_with("attachment; filename="), "{disposition}");
            answer.text().to_owned()
        };
        let text =
            csv("/usage?interval=none&group_by=metadata.user&end=2026-11-22T00:00:00Z&format=csv")
                .await;
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with("date,start,end,group.metadata.user,total_requests,"),
            "{text}"
        );
        assert!(
            lines[1]
                .starts_with("2026-10-23,2026-10-23T00:00:00Z,2026-11-22T00:00:00Z,'=1+1,1,1500,")
        );
        assert!(lines[2].contains(",\"ada, the first\",1,1500,0.0020000000,"), "{text}");
        assert_eq!(lines.len(), 3);

        let text = csv("/requests?format=csv").await;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("request_id,reference_id,sequence,created_at,status,"));
        assert!(
            lines[0].contains(",model_usage.total_cost,") && lines[0].ends_with(",metadata,flags")
        );
        assert!(lines[1].ends_with(r#","{""user"":""ada, the first""}","#), "{text}");
        let columns: Vec<_> = lines[0].split(',').collect();
        for record in gateway.records().await {
            for (name, value) in record.as_object().unwrap() {
                let nested = value.as_object().filter(|_| name != "metadata");
                let names =
                    nested.map(|fields| fields.keys().map(|field| format!("{name}.{field}")));
                for name in names.map_or(vec![name.clone()], Iterator::collect) {
                    assert!(columns.contains(&name.as_str()), "{name}");
                }
            }
        }
        let wallet = gateway.connection.wallet_id;
        let text = csv(&format!("/wallets/{wallet}/transactions?format=csv")).await;
        // The credit of the gateway's customer, and two calls.
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.lines().nth(1).unwrap().contains(",balance,usage,-0.0170000000,"), "{text}");
        let answer = gateway.get("/wallets/wal_x/transactions?format=csv").await;
        assert_eq!(answer.error(), "wallet_not_found");
        let filtered = csv("/requests?format=csv&status=error").await;
        assert_eq!(filtered.lines().count(), 1);
    });
}

#[test]
fn records_are_filtered_by_everything_they_say() {
    each_gateway(async |gateway| {
        chat(gateway, "{}").await;
        gateway.provider.push(ScriptedResponse::json(429, json!({"error": {"message": "slow"}})));
        gateway.chat().send().await;
        gateway.records().await;
        for (query, calls) in [
            ("", 2),
            ("status=completed", 1),
            ("status=error", 1),
            ("status=pending", 0),
            ("provider_status=429", 1),
            ("provider_status=200", 1),
            ("provider_status=500", 0),
            ("min_cost=0.017", 1),
            ("min_cost=0.0170000001", 0),
            ("provider=house", 2),
            ("provider=mansion", 0),
            ("model=none-such", 0),
            ("start=2026-11-21T00:00:00Z", 2),
            ("end=2026-11-21T00:00:00Z", 0),
            ("reference_id=none-such", 0),
            ("reference_id=%00", 0),
        ] {
            let found = gateway.get(&format!("/requests?{query}")).await.expect(200);
            assert_eq!(found["data"].as_array().unwrap().len(), calls, "{query}");
        }
        let query = "status=x&provider_status=1&min_cost=a&start=x&format=x&group=y";
        let answer = gateway.get(&format!("/requests?{query}")).await;
        assert_eq!(answer.error(), "validation_failed");
        assert_eq!(answer.issue_paths(), ["group"]);
        let answer = gateway.get(&format!("/requests?{}", query.replace("&group=y", ""))).await;
        let paths = ["status", "provider_status", "min_cost", "start", "format"];
        assert_eq!(answer.issue_paths(), paths);
    });
}

#[test]
fn every_fault_of_a_grouping_is_named() {
    each_gateway(async |gateway| {
        for query in [
            "group_by=customer",
            "group_by=model,model",
            "group_by=model,provider,status",
            "group_by=metadata.",
            "group_by=model,",
        ] {
            let answer = gateway.get(&format!("/usage?{query}")).await;
            assert_eq!(answer.error(), "validation_failed", "{query}");
            assert_eq!(answer.issue_paths(), ["group_by"], "{query}");
        }
        let answer = gateway.get("/usage?interval=year&time_zone=Berlin&format=xml").await;
        assert_eq!(answer.issue_paths(), ["interval", "time_zone", "format"]);
    });
}
