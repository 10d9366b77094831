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
            assert_eq!(usage(gateway, &query).await["totals"], sums(calls), "{query}");
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
