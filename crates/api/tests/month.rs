//! A month of a reseller: statements, ledger, usage, CSV and dashboard agree to the last decimal, in UTC and in a zone
//! whose clocks change in that month.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tollgate_domain::{Month, TimeZone, Timestamp};
use tollgate_pricing::{Catalog, ModelPattern, PriceBook, PriceRow, UnitPrices};
use tollgate_store::repricings::{Repricing, RepricingOutcome, RepricingScope};
use tollgate_testkit::ScriptedResponse;
use tollgate_testkit::random::Random;

use crate::support::browser::Browser;
use crate::support::{Gateway, chat_body, each_gateway_by_the_stores_clock, text, with};

const HOUR: i64 = 3_600_000;
const MONTH: &str = "2027-03";

/// A customer with its wallet, and a spend key if it has one.
struct Customer {
    id: String,
    wallet: String,
    key: Option<String>,
}

/// An amount in units of 10⁻¹⁰ USD.
fn units(amount: &Value) -> i128 {
    units_of(amount.as_str().unwrap())
}

fn units_of(text: &str) -> i128 {
    let digits = text.replace('.', "");
    assert_eq!(text.rsplit_once('.').unwrap().1.len(), 10, "{text}");
    digits.parse().unwrap()
}

/// An amount as pages show it exactly.
fn money(units: i128) -> String {
    let (usd, rest) = (units / 10_000_000_000, units % 10_000_000_000);
    let decimals = format!("{rest:010}");
    format!("${usd}.{:0<2}", decimals.trim_end_matches('0'))
}

async fn made(gateway: &Gateway<'_>, path: &str, body: Value) -> Value {
    gateway.post(path, &body).await.expect(201)
}

/// 16 customers: four without a plan, seven with spend keys, one of which has a limit that is soon reached.
async fn customers(gateway: &Gateway<'_>, plans: &[String], meter: &str) -> Vec<Customer> {
    let mut customers = Vec::new();
    for number in 0..16 {
        let connection = made(gateway, "/connections", json!({"name": format!("C{number}")})).await;
        let (id, wallet) = (text(&connection, "connection_id"), text(&connection, "wallet_id"));
        made(gateway, &format!("/wallets/{wallet}/credits"), json!({"amount": "40"})).await;
        if number % 4 > 0 {
            let plan = &plans[number % plans.len()];
            let subscription = json!({"connection_id": id, "subscription_config_id": plan});
            made(gateway, "/subscriptions", subscription).await;
        }
        let key = match number {
            0..7 => {
                let limit = if number == 6 { "0.02" } else { "100" };
                let limit = json!({"amount": limit, "cycle": "monthly"});
                let key = json!({
                    "name": format!("K{number}"), "wallet_id": wallet, "meter_id": meter,
                    "spend_limit": limit,
                });
                Some(text(&made(gateway, "/spend_keys", key).await, "key"))
            }
            _ => None,
        };
        customers.push(Customer { id, wallet, key });
    }
    customers
}

/// One call, or a movement of money, or an upgrade. Returns whether the call was refused.
async fn act(
    gateway: &Gateway<'_>,
    random: &mut Random,
    customer: &Customer,
    slug: &str,
    most_expensive: &str,
) -> bool {
    match random.below(20) {
        0 => {
            let amount = json!({"amount": "1.2345678901"});
            let path = format!("/wallets/{}/credits", customer.wallet);
            gateway.post(&path, &amount).await.expect(201);
        }
        1 => {
            let amount = json!({"amount": "0.0000000007"});
            let path = format!("/wallets/{}/debits", customer.wallet);
            gateway.post(&path, &amount).await.expect(201);
        }
        2 => {
            let path = format!("/connections/{}/subscription", customer.id);
            let found = gateway.get(&path).await.expect(200);
            if let Some(id) = found["subscription"]["subscription_id"].as_str() {
                let rule = ["carry", "expire", "prorate"][random.index(3)];
                let change = json!({"subscription_config_id": most_expensive, "on_upgrade": rule});
                gateway.post(&format!("/subscriptions/{id}/change"), &change).await.expect(200);
            }
        }
        _ => {
            let model = format!("m-{}", 1 + random.below(9));
            let usage = json!({
                "prompt_tokens": random.below(9_000), "completion_tokens": random.below(4_000),
            });
            let answer = json!({
                "id": "c", "object": "chat.completion", "choices": [], "model": model,
                "usage": usage,
            });
            let has_failed = random.one_in(10);
            gateway.provider.push(match has_failed {
                true => ScriptedResponse::json(500, json!({"error": {"message": "no"}})),
                false => ScriptedResponse::json(200, answer),
            });
            let token = json!({"connection_id": customer.id, "meter_slug": slug});
            let token = customer.key.clone().unwrap_or_else(|| gateway.token(&token));
            let call = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
            let body = with(chat_body(), &json!({"model": model}));
            let answer = call.bearer(&token).json(&body).send().await;
            if answer.status == 402 || answer.status == 429 {
                // The answer that the provider was not asked for must not be that of the next call.
                let unused = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
                unused.bearer(&gateway.token(&json!({}))).json(&chat_body()).send().await;
                return true;
            }
            assert_eq!(answer.status, if has_failed { 500 } else { 200 }, "{}", answer.text());
        }
    }
    false
}

/// Prices the calls of a model again, also those of the month before. The differences are booked as corrections.
async fn reprice(gateway: &Gateway<'_>) {
    let row = PriceRow {
        provider: "house".to_owned(),
        models: vec![ModelPattern::new("m-3*")],
        prices: UnitPrices {
            input: Some("3.7".parse().unwrap()),
            output: Some("11.3".parse().unwrap()),
            ..UnitPrices::default()
        },
        ..PriceRow::default()
    };
    let book = PriceBook::new(Catalog::default(), Catalog::new([row]));
    let day = |at: &str| at.parse::<Timestamp>().unwrap().date();
    let scope = RepricingScope {
        from: day("2027-02-26T00:00:00Z"),
        to: day("2027-03-15T00:00:00Z"),
        provider: None,
        model: None,
        merchant_id: None,
    };
    let mut booked = 0;
    let count =
        |one: Repricing| booked += i32::from(matches!(one.outcome, RepricingOutcome::Differs(_)));
    gateway.store.store.reprice(&scope, &book, false, count).await.unwrap();
    assert!(booked > 0, "no call was priced again");
}

/// All transactions of a wallet.
async fn ledger(gateway: &Gateway<'_>, wallet: &str) -> Vec<Value> {
    let (mut lines, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/wallets/{wallet}/transactions?limit=100&cursor={cursor}");
        let page = gateway.get(&path).await.expect(200);
        lines.extend(page["data"].as_array().unwrap().iter().cloned());
        if page["has_more"] == json!(false) {
            return lines;
        }
        cursor = text(&page, "next_cursor");
    }
}

/// The rows of a CSV text as maps by column. No cell of these has a comma.
fn rows(csv: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = csv.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let header = lines.next().unwrap();
    lines.map(|cells| header.iter().cloned().zip(cells).collect()).collect()
}

/// The figures of a customer in the month.
struct Figures {
    revenue: i128,
    corrections: i128,
    closing: i128,
}

/// Compares every figure of a customer's statement with the ledger, `/usage` and the CSV.
async fn check_customer(
    gateway: &Gateway<'_>,
    customer: &Customer,
    zone_name: &str,
    of_customer: Option<&Value>,
) -> Figures {
    let zone = TimeZone::named(zone_name).unwrap();
    let range = MONTH.parse::<Month>().unwrap().range(&zone);
    let path = format!("/connections/{}/statements/{MONTH}?time_zone={zone_name}", customer.id);
    let statement = gateway.get(&path).await.expect(200);
    assert_eq!(statement["ended"], json!(true));
    let lines = ledger(gateway, &customer.wallet).await;
    let sum = |accounts: &[&str], kinds: &[&str]| {
        let in_month = lines.iter().filter(|line| {
            let at: Timestamp = text(line, "created_at").parse().unwrap();
            range.contains(&at)
                && accounts.contains(&line["account"].as_str().unwrap())
                && kinds.contains(&line["kind"].as_str().unwrap())
        });
        in_month.map(|line| units(&line["amount"])).sum::<i128>()
    };
    let (money, credit) = (["balance"], ["cycle_credit", "bundle_credit"]);
    for (figure, expected) in [
        ("/credits", sum(&money, &["credit"])),
        ("/debits", sum(&money, &["debit"])),
        ("/usage", sum(&money, &["usage"])),
        ("/corrections", sum(&money, &["correction"])),
        ("/credit/granted", sum(&credit, &["credit_grant", "bundle_purchase"])),
        ("/credit/used", -sum(&credit, &["usage"])),
        ("/credit/expired", -sum(&credit, &["credit_expiry"])),
    ] {
        assert_eq!(units(statement.pointer(figure).unwrap()), expected, "{figure} in {zone_name}");
    }
    let parts = ["opening_balance", "credits", "debits", "usage", "corrections"];
    let closing: i128 = parts.iter().map(|part| units(&statement[*part])).sum();
    assert_eq!(units(&statement["closing_balance"]), closing);

    let by_model = statement["usage_by_model"].as_array().unwrap();
    let revenue: i128 = by_model.iter().map(|one| units(&one["amount"])).sum();
    let requests: i64 = by_model.iter().map(|one| one["requests"].as_i64().unwrap()).sum();
    let tokens: i64 = by_model.iter().map(|one| one["tokens"].as_i64().unwrap()).sum();
    let of_usage = |name: &str| of_customer.map_or(json!(0), |item| item[name].clone());
    assert_eq!(of_customer.map_or(0, |item| units(&item["revenue"])), revenue);
    assert_eq!(
        (of_usage("requests"), of_usage("total_usage_tokens")),
        (json!(requests), json!(tokens))
    );

    let csv = gateway.get(&format!("{path}&format=csv")).await;
    let rows = rows(csv.text());
    let in_csv = |section: &str, name: &str| {
        let row = rows.iter().find(|row| row["section"] == section && row["name"] == name);
        units_of(&row.unwrap()["amount"])
    };
    assert_eq!(in_csv("balance", "closing_balance"), closing);
    for one in by_model {
        let model = one["model"].as_str().unwrap();
        assert_eq!(in_csv("usage_by_model", model), units(&one["amount"]));
    }
    Figures { revenue, corrections: units(&statement["corrections"]), closing }
}

#[test]
fn statements_ledger_usage_csv_and_dashboard_agree_about_a_month() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let mut random = Random(20_270_301);
        let clock = &gateway.store.clock;
        let until = |at: &str| {
            (at.parse::<Timestamp>().unwrap().unix_micros() - clock.now().unix_micros()) / 1_000
        };
        clock.advance_millis(until("2027-02-26T09:00:00Z"));
        let meter = json!({
            "name": "Retail", "rate_type": "percentage", "tier_type": "tokens_1m",
            "tiers": [{"start": "0", "rate": "33.3"}],
        });
        let meter = made(gateway, "/meters", meter).await;
        let (meter, slug) = (text(&meter, "meter_id"), text(&meter, "meter_slug"));
        let mut plans = Vec::new();
        for (price, credit, rollover) in
            [("5", "0.01", "none"), ("20", "0.05", "full"), ("60", "0.09", "none")]
        {
            let plan = json!({
                "name": price, "period_amount": price, "included_credit": credit,
                "billing_interval": "week", "rollover_type": rollover,
            });
            let plan = made(gateway, "/subscription_configs", plan).await;
            plans.push(text(&plan, "subscription_config_id"));
        }
        let customers = customers(gateway, &plans, &meter).await;
        let (mut refused, mut is_repriced) = (0, false);
        while until("2027-04-03T00:00:00Z") > 0 {
            if !is_repriced && until("2027-03-16T00:00:00Z") < 0 {
                is_repriced = true;
                reprice(gateway).await;
            }
            let customer = &customers[random.index(customers.len())];
            refused += i32::from(act(gateway, &mut random, customer, &slug, &plans[2]).await);
            clock.advance_millis(random.between(0, 5 * HOUR));
        }
        gateway.records().await;
        assert!(refused > 0, "no call was refused");

        let browser = Browser::sign_in(gateway, gateway.key()).await;
        for zone_name in ["UTC", "Europe/Berlin"] {
            let zone = TimeZone::named(zone_name).unwrap();
            let range = MONTH.parse::<Month>().unwrap().range(&zone);
            let query = format!(
                "/usage?group_by=connection&interval=none&start={}&end={}",
                zone.at(range.start).to_string().replace('+', "%2B"),
                zone.at(range.end).to_string().replace('+', "%2B"),
            );
            let usage = gateway.get(&query).await.expect(200);
            let items = usage["items"].as_array().unwrap();
            let item_of = |id: &str| items.iter().find(|item| item["group"]["connection"] == id);
            let settings = [("time_zone", zone_name), ("times", "exact"), ("colors", "system")];
            assert_eq!(browser.send("/settings", &settings).await.status, 303);
            let (mut total, mut corrections) = (0, 0);
            let mut revenues = Vec::new();
            for customer in &customers {
                let figures =
                    check_customer(gateway, customer, zone_name, item_of(&customer.id)).await;
                revenues.push((customer.id.clone(), figures.revenue));
                total += figures.revenue;
                corrections += figures.corrections.abs();
                let page = format!("/customers/{}/statements/{MONTH}", customer.id);
                let closing = money(figures.closing).replace('$', "");
                let shown = browser.show(&page).await;
                assert!(shown.contains(&format!(">{closing}<")), "{closing}: {shown}");
            }
            assert!(total > 0 && corrections > 0, "{corrections}");
            // The calls that took the answers of refused ones are those of another customer.
            let own = gateway.connection.connection_id.to_string();
            let others = item_of(&own).map_or(0, |item| units(&item["revenue"]));
            assert_eq!(units(&usage["totals"]["revenue"]), total + others, "{zone_name}");

            let csv = gateway.get(&format!("{query}&format=csv")).await;
            for row in rows(csv.text()) {
                let id = &row["group.connection"];
                let found = revenues.iter().find(|(one, _)| one == id).map(|(_, sum)| *sum);
                assert_eq!(units_of(&row["revenue"]), found.unwrap_or(others), "{id}");
            }
            let page = browser.show("/usage?range=last-month&by=connection").await;
            let all = money(total + others);
            assert!(page.contains(&format!("title=\"{all}\"")), "{all}: {page}");
            for (id, revenue) in revenues.iter().filter(|(_, revenue)| *revenue > 0) {
                let (_, row) = page.split_once(&format!("/customers/{id}\"")).unwrap();
                let row = row.split("</tr>").next().unwrap();
                assert!(row.contains(&format!("title=\"{}\"", money(*revenue))), "{row}");
            }
        }
        gateway.store.assert_audited().await;
    });
}
