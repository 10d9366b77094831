//! `GET /connections/{id}/statements`: months, figures, CSV and the page for printing.

#![expect(clippy::indexing_slicing, reason = "a helper of tests fails by panicking")]

use serde_json::{Value, json};
use tollgate_testkit::ScriptedResponse;

use crate::support::{
    Gateway, assert_issues, chat_answer, chat_body, each_gateway_by_the_stores_clock, text,
};

const DAY: i64 = 86_400_000;

/// A customer with 20 dollars, a plan, and two calls of 0.0170 dollars: one on 2026-11-21, one on 2026-11-30 at 23:30
/// in UTC.
async fn customer(gateway: &Gateway<'_>) -> String {
    let body = json!({"name": "Größe <b>& Co</b>"});
    let made = gateway.post("/connections", &body).await.expect(201);
    let (id, wallet) = (text(&made, "connection_id"), text(&made, "wallet_id"));
    let credit = json!({"amount": "20"});
    gateway.post(&format!("/wallets/{wallet}/credits"), &credit).await.expect(201);
    let debit = json!({"amount": "1.5"});
    gateway.post(&format!("/wallets/{wallet}/debits"), &debit).await.expect(201);
    let token = gateway.token(&json!({"connection_id": id}));
    let call = async || {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let chat = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
        chat.bearer(&token).json(&chat_body()).send().await.expect(200);
        gateway.records().await;
    };
    call().await;
    let plan = json!({
        "name": "Pro", "period_amount": "25", "included_credit": "0.01", "billing_interval": "month"
    });
    let plan = gateway.post("/subscription_configs", &plan).await.expect(201);
    let subscription = json!({
        "connection_id": id, "subscription_config_id": plan["subscription_config_id"]
    });
    gateway.post("/subscriptions", &subscription).await.expect(201);
    gateway.store.clock.advance_millis(9 * DAY + DAY - 30 * 60_000);
    call().await;
    id
}

async fn statement(gateway: &Gateway<'_>, customer: &str, rest: &str) -> Value {
    gateway.get(&format!("/connections/{customer}/statements/{rest}")).await.expect(200)
}

#[test]
fn a_statement_adds_up_in_every_form_and_by_the_clocks_of_its_zone() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let id = customer(gateway).await;
        let months = gateway.get(&format!("/connections/{id}/statements")).await.expect(200);
        assert_eq!(months, json!({"data": [{"month": "2026-11"}]}));
        let berlin = "time_zone=Europe%2FBerlin";
        let months = gateway.get(&format!("/connections/{id}/statements?{berlin}")).await;
        let both = json!({"data": [{"month": "2026-12"}, {"month": "2026-11"}]});
        assert_eq!(months.expect(200), both);

        let found = statement(gateway, &id, "2026-11").await;
        assert_eq!(found["start"], "2026-11-01T00:00:00Z");
        assert_eq!(found["end"], "2026-12-01T00:00:00Z");
        assert_eq!((&found["ended"], &found["time_zone"]), (&json!(false), &json!("UTC")));
        for (name, value) in [
            ("opening_balance", "0.0000000000"),
            ("credits", "20.0000000000"),
            ("debits", "-1.5000000000"),
            ("plan_charges", "25.0000000000"),
            ("corrections", "0.0000000000"),
        ] {
            assert_eq!(found[name], value, "{name}: {found}");
        }
        assert_eq!(found["credit"]["granted"], "0.0100000000", "{found}");
        assert_eq!(found["credit"]["used"], "0.0100000000", "{found}");
        let usage = &found["usage_by_model"][0];
        assert_eq!((&usage["requests"], &usage["tokens"]), (&json!(2), &json!(3_000)));
        let [paid, total] = [&found["usage"], &usage["amount"]]
            .map(|sum| sum.as_str().unwrap().parse::<tollgate_pricing::Amount>().unwrap().units());
        // A cent is paid by credit.
        assert!(total + paid == 100_000_000 && total > 100_000_000, "{found}");
        let charge = &found["plan_charge_items"][0];
        assert_eq!(
            (&charge["type"], &charge["name"]),
            (&json!("subscription.created"), &json!("Pro"))
        );

        // Of 23:30 in UTC it is December in Berlin.
        let november = statement(gateway, &id, &format!("2026-11?{berlin}")).await;
        let december = statement(gateway, &id, &format!("2026-12?{berlin}")).await;
        assert_eq!(november["end"], "2026-12-01T00:00:00+01:00");
        assert_eq!(november["ended"], json!(true));
        assert_eq!(november["usage_by_model"][0]["requests"], json!(1));
        assert_eq!(december["usage_by_model"][0]["requests"], json!(1));
        assert_eq!(november["closing_balance"], december["opening_balance"]);
        assert_eq!(december["closing_balance"], found["closing_balance"]);

        let path = format!("/connections/{id}/statements/2026-11");
        let csv = gateway.get(&format!("{path}?format=csv")).await;
        assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
        let rows = csv.text();
        for name in ["opening_balance", "usage", "closing_balance"] {
            let row = format!("balance,{name},,,,{}\r\n", text(&found, name));
            assert!(rows.contains(&row), "{row} in {rows}");
        }
        assert!(rows.contains(&format!(",2,3000,{}\r\n", text(usage, "amount"))), "{rows}");

        let page = gateway.get(&format!("{path}?format=html")).await;
        assert_eq!(page.status, 200);
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.contains("style-src 'sha256-") && !policy.contains("script"), "{policy}");
        let page = page.text();
        assert!(page.contains("Acme") && page.contains("Größe &#60;b&#62;&#38; Co"), "{page}");
        assert!(page.contains("2026-11-01 to 2026-11-30 (UTC)"), "{page}");
        assert!(page.contains("not ended") && page.contains("−1.50"), "{page}");

        gateway.delete(&format!("/connections/{id}")).await.expect(200);
        let ended = statement(gateway, &id, "2026-11").await;
        assert_eq!(ended["closing_balance"], found["closing_balance"]);
    });
}

#[test]
fn what_is_no_month_no_zone_or_no_customer_is_an_error_with_its_path() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let made = gateway.post("/connections", &json!({})).await.expect(201);
        let id = text(&made, "connection_id");
        let path = format!("/connections/{id}/statements");
        assert_eq!(gateway.get(&path).await.expect(200), json!({"data": []}));
        let empty = statement(gateway, &id, "2020-01").await;
        assert_eq!((&empty["usage_by_model"], &empty["ended"]), (&json!([]), &json!(true)));
        for (rest, names) in [
            ("/2026-13", vec!["month"]),
            ("/now?time_zone=Berlin&format=pdf", vec!["format", "month", "time_zone"]),
            ("?time_zone=Berlin", vec!["time_zone"]),
            ("?month=2026-11", vec!["month"]),
        ] {
            let answer = gateway.get(&format!("{path}{rest}")).await;
            assert_issues(&answer, &names);
        }
        for rest in ["", "/2026-11"] {
            let answer = gateway
                .get(&format!("/connections/con_01M7XPE601MDSSSD1354KJFSJ9/statements{rest}"))
                .await;
            assert_eq!((answer.status, answer.error().as_str()), (404, "connection_not_found"));
        }
    });
}
