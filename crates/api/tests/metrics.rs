//! `GET /metrics`: the counts agree with the records, and the documents agree with the exported
//! metrics.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_pricing::Amount;
use tollgate_testkit::{Gate, ScriptedResponse, TestRequest};

use crate::support::{
    Gateway, chat_answer, each_gateway, each_gateway_by_the_stores_clock,
    each_gateway_with_webhooks,
};

impl Gateway<'_> {
    async fn metrics(&self) -> String {
        let answer = TestRequest::new(self.address, "GET", "/metrics").send().await;
        assert_eq!(answer.status, 200);
        let text = answer.text().to_owned();
        assert!(text.ends_with("# EOF\n"), "{text}");
        text
    }

    /// Reads the metrics until these samples have the expected values.
    async fn until_metrics(&self, expected: &[(&str, u64)]) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let text = self.metrics().await;
            let missing: Vec<_> =
                expected.iter().filter(|(name, value)| sample(&text, name) != *value).collect();
            if missing.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{missing:?} in {text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The value of a sample; 0 if there is none.
fn sample(text: &str, name: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.map_or(0, |value| value.parse().unwrap())
}

/// The families of a text, and their types.
fn families(text: &str) -> BTreeMap<String, String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

#[test]
fn what_is_counted_agrees_with_the_records() {
    each_gateway(async |gateway| {
        for _ in 0..3 {
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            gateway.chat().send().await.expect(200);
        }
        gateway.provider.push(ScriptedResponse::json(429, json!({"error": {"message": "later"}})));
        assert_eq!(gateway.chat().send().await.status, 429);
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).cut_at(60));
        assert!(!gateway.chat().send().await.complete);
        gateway.provider.push(ScriptedResponse::hang_up());
        assert_eq!(gateway.chat().send().await.error(), "provider_unreachable");
        let token = gateway.token(&json!({}));
        let nobody = gateway.forward_to(&gateway.nobody).bearer(&token);
        let body = json!({"model": "m-1", "messages": []});
        assert_eq!(nobody.json(&body).send().await.error(), "provider_unreachable");
        let stray = gateway.forward("/v1/chat/completions").json(&json!({"messages": []}));
        assert_eq!(stray.send().await.error(), "forward_token_json_invalid");
        let no_key = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
        assert_eq!(no_key.json(&body).send().await.error(), "auth_header_missing");

        let records = gateway.records().await;
        let of_house: Vec<_> =
            records.iter().filter(|record| record["provider"] == "house").collect();
        assert_eq!((records.len(), of_house.len()), (7, 6));
        let tokens = |name: &str| -> u64 {
            let shown = of_house.iter().map(|record| &record["model_usage"][name]);
            shown.map(|tokens: &Value| tokens.as_u64().unwrap()).sum()
        };
        let costs = of_house.iter().map(|record| &record["model_usage"]["total_cost"]);
        let costs = costs.map(|cost| cost.as_str().unwrap().parse::<Amount>().unwrap());
        let cost = costs.fold(Amount::ZERO, Amount::saturating_add);
        gateway
            .until_metrics(&[
                ("tollgate_calls_admitted_total{provider=\"house\"}", 6),
                ("tollgate_calls_admitted_total{provider=\"nobody\"}", 1),
                ("tollgate_calls_ended_total{provider=\"house\",outcome=\"answered\"}", 3),
                ("tollgate_calls_ended_total{provider=\"house\",outcome=\"rejected\"}", 1),
                ("tollgate_calls_ended_total{provider=\"house\",outcome=\"broken\"}", 1),
                ("tollgate_calls_ended_total{provider=\"house\",outcome=\"unanswered\"}", 1),
                ("tollgate_calls_ended_total{provider=\"nobody\",outcome=\"not_sent\"}", 1),
                ("tollgate_calls_refused_total{code=\"forward_token_json_invalid\"}", 1),
                ("tollgate_calls_refused_total{code=\"auth_header_missing\"}", 1),
                ("tollgate_calls_refused_total{code=\"provider_unreachable\"}", 0),
                (
                    "tollgate_tokens_total{provider=\"house\",kind=\"input\"}",
                    tokens("input_tokens"),
                ),
                (
                    "tollgate_tokens_total{provider=\"house\",kind=\"output\"}",
                    tokens("output_tokens"),
                ),
                ("tollgate_cost_usd_e10_total{provider=\"house\"}", cost.units().unsigned_abs()),
                ("tollgate_call_before_provider_seconds_count", 7),
                ("tollgate_provider_first_byte_seconds_count{provider=\"house\"}", 5),
                ("tollgate_provider_answer_seconds_count{provider=\"house\"}", 5),
                ("tollgate_call_after_provider_seconds_count", 5),
                ("tollgate_ledger_admission_seconds_count", 7),
                ("tollgate_ledger_settlement_seconds_count", 7),
                ("tollgate_calls_running", 0),
                ("tollgate_holds_open", 0),
                ("tollgate_store_up", 1),
            ])
            .await;
        assert!(tokens("input_tokens") >= 3_000 && !cost.is_zero());
    });
}

#[test]
fn what_is_open_is_told_while_it_is() {
    each_gateway(async |gateway| {
        let gate = Gate::new();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate(&gate));
        let call = gateway.chat();
        let call = tokio::spawn(async move { call.send().await });
        gate.wait_for_arrivals(1).await;
        gateway.until_metrics(&[("tollgate_holds_open", 1), ("tollgate_calls_running", 1)]).await;
        let text = gateway.metrics().await;
        assert!(sample(&text, "tollgate_holds_open_usd_e10") > 0, "{text}");
        assert!(sample(&text, "tollgate_client_connections") >= 2, "{text}");
        gate.open();
        call.await.unwrap().expect(200);
        gateway
            .until_metrics(&[("tollgate_holds_open", 0), ("tollgate_holds_open_usd_e10", 0)])
            .await;
    });
}

#[test]
fn a_store_that_takes_no_calls_is_not_up() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.until_metrics(&[("tollgate_store_up", 1)]).await;
        // The lease has expired without a renewal, so the store counts as not writable.
        gateway.store.clock.advance_millis(60_000);
        gateway.until_metrics(&[("tollgate_store_up", 0)]).await;
        let text = gateway.metrics().await;
        assert!(text.contains("\ntollgate_holds_open 0\n"), "it can be read: {text}");
    });
}

#[test]
fn a_settled_call_that_is_not_in_the_sums_yet_shows_how_long_it_waits() {
    each_gateway_by_the_stores_clock(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        gateway.store.clock.advance_millis(7_000);
        let text = gateway.metrics().await;
        assert!(text.contains("\ntollgate_rollup_lag_seconds 7.0\n"), "{text}");
        gateway.store.store.fold().await.unwrap();
        let text = gateway.metrics().await;
        assert!(text.contains("\ntollgate_rollup_lag_seconds 0.0\n"), "{text}");
    });
}

#[test]
fn messages_that_wait_and_attempts_are_counted() {
    each_gateway_with_webhooks(async |gateway| {
        let receiver = tollgate_testkit::ScriptedProvider::start();
        receiver.push(ScriptedResponse::bytes(503, "text/plain", "not today"));
        receiver.push_always(ScriptedResponse::json(200, "{}"));
        let hook = json!({"name": "Hook", "url": receiver.url("/hooks"), "events": ["connection.created"]});
        gateway.post("/webhooks", &hook).await.expect(201);
        gateway.post("/connections", &json!({})).await.expect(201);
        receiver.wait_for_calls(1).await;
        gateway
            .until_metrics(&[
                ("tollgate_webhook_attempts_total{outcome=\"rejected\"}", 1),
                ("tollgate_webhook_backlog", 1),
            ])
            .await;
        // The next attempt is due minutes after the first was booked, which may still be going on.
        let deadline = Instant::now() + Duration::from_secs(10);
        while receiver.calls() < 2 {
            assert!(Instant::now() < deadline, "it is not told again");
            gateway.store.clock.advance_millis(600_000);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        gateway
            .until_metrics(&[
                ("tollgate_webhook_attempts_total{outcome=\"delivered\"}", 1),
                ("tollgate_webhook_backlog", 0),
            ])
            .await;
        let text = gateway.metrics().await;
        assert!(text.contains("tollgate_webhook_backlog_age_seconds 0.0\n"), "{text}");
    });
}

/// The metrics of the document: name, kind, labels.
fn documented() -> BTreeMap<String, (String, String)> {
    let lines = include_str!("../../../docs/operate/metrics.md").lines();
    let rows = lines.filter_map(|line| {
        let (name, rest) = line.strip_prefix("- `tollgate_")?.split_once("` (")?;
        let (kind, _) = rest.split_once("):")?;
        let (kind, labels) = kind.split_once("; ").unwrap_or((kind, ""));
        Some((format!("tollgate_{name}"), (kind.to_owned(), labels.replace('`', ""))))
    });
    rows.collect()
}

#[test]
fn every_metric_is_documented_with_its_kind_and_labels_and_no_other_is() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        assert_eq!(gateway.forward("/v1/nothing").send().await.status, 400);
        let text = gateway.metrics().await;
        let labels = |family: &str| -> String {
            let samples = text.lines().filter_map(|line| {
                let rest = line.strip_prefix(family)?;
                let (suffix, labels) = rest.split_once('{').unwrap_or((rest, ""));
                let suffix = suffix.split_once(' ').map_or(suffix, |(suffix, _)| suffix);
                let suffixes = ["", "_total", "_info", "_bucket", "_sum", "_count"];
                suffixes.contains(&suffix).then_some(labels)
            });
            let names = samples.flat_map(|labels| labels.split(',')).filter_map(|label| {
                label.split_once('=').map(|(name, _)| name).filter(|name| *name != "le")
            });
            let mut unique = Vec::new();
            for name in names {
                if !unique.contains(&name) {
                    unique.push(name);
                }
            }
            unique.join(", ")
        };
        let exported: BTreeMap<_, _> = families(&text)
            .into_iter()
            .map(|(name, kind)| (name.clone(), (kind, labels(&name))))
            .collect();
        assert_eq!(documented(), exported);
    });
}

/// The words of a text that are names of metrics.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("tollgate_")).collect()
}

#[test]
fn the_runbook_has_a_section_for_each_alert() {
    let alerts = include_str!("../../../docs/observability/alerts.yml");
    let runbook = include_str!("../../../docs/operate/runbook.md");
    let names: Vec<_> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let sections: Vec<_> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert!(names.len() >= 15, "{names:?}");
    assert_eq!(names, sections);
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_are_exported() {
    let dashboard = include_str!("../../../docs/observability/grafana.json");
    let alerts = include_str!("../../../docs/observability/alerts.yml");
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let expressions: Vec<_> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(expressions.len() >= 15, "{expressions:?}");
    let rules: Vec<_> = alerts.lines().filter(|line| line.contains("expr:")).collect();
    assert!(rules.len() >= 10, "{rules:?}");
    each_gateway(async |gateway| {
        let families = families(&gateway.metrics().await);
        let samples: BTreeSet<_> = families
            .iter()
            .flat_map(|(name, kind)| {
                let suffixes: &[_] = match kind.as_str() {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    "info" => &["_info"],
                    _ => &[""],
                };
                suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
            })
            .collect();
        for text in expressions.iter().chain(&rules) {
            let named = named(text);
            assert!(!named.is_empty() || text.contains("up{"), "{text}");
            for name in named {
                assert!(samples.contains(name), "{name} in {text}");
            }
        }
    });
}
