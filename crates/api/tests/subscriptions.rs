//! The API of subscriptions: configurations, bundles, cycles as the clock advances, and credit that
//! pays calls before the balance.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use futures_util::future::join_all;
use serde_json::{Value, json};
use tollgate_testkit::{Gate, ScriptedResponse, TestRequest, TestResponse};

use crate::support::{
    self, Gateway, assert_issues, assert_refused, chat_answer, chat_body, each_gateway,
    each_gateway_by_the_stores_clock, names, text, with,
};

const DAY: i64 = 86_400_000;
/// The days from the start of the clock, 2026-11-21T00:00:00Z, to 2027-01-31T00:00:00Z.
const TO_JANUARY_31: i64 = 71;

/// A connection and its wallet.
struct CustomerWallet {
    id: String,
    wallet: String,
}

/// A whole number of dollars as the API shows it.
fn usd(dollars: i64) -> String {
    format!("{dollars}.0000000000")
}

/// A new connection with this amount in its wallet.
async fn new_customer(gateway: &Gateway<'_>, balance: &str) -> CustomerWallet {
    let made = gateway.post("/connections", &json!({})).await.expect(201);
    let customer =
        CustomerWallet { id: text(&made, "connection_id"), wallet: text(&made, "wallet_id") };
    if balance != "0" {
        let path = format!("/wallets/{}/credits", customer.wallet);
        gateway.post(&path, &json!({"amount": balance})).await.expect(201);
    }
    customer
}

/// A meter under which a call costs the wallet exactly this number of dollars.
async fn meter_of(gateway: &Gateway<'_>, dollars: &str) -> Value {
    let meter = json!({
        "name": "Calls", "rate_type": "fixed", "tier_type": "requests", "base_cost_payer": "merchant",
        "service_charge_payer": "merchant", "tiers": [{"start": "0", "rate": dollars}]
    });
    gateway.post("/meters", &meter).await.expect(201)
}

/// A configuration of 25 dollars a month, with these further fields.
async fn new_config(gateway: &Gateway<'_>, more: &Value) -> Value {
    let fields = json!({"name": "Pro", "period_amount": "25", "billing_interval": "month"});
    gateway.post("/subscription_configs", &with(fields, more)).await.expect(201)
}

async fn subscribe(gateway: &Gateway<'_>, customer: &CustomerWallet, config: &Value) -> Value {
    let body = json!({
        "connection_id": customer.id, "subscription_config_id": config["subscription_config_id"]
    });
    gateway.post("/subscriptions", &body).await.expect(201)["subscription"].clone()
}

fn path_of(subscription: &Value) -> String {
    format!("/subscriptions/{}", text(subscription, "subscription_id"))
}

fn path_of_config(config: &Value) -> String {
    format!("/subscription_configs/{}", text(config, "subscription_config_id"))
}

async fn change_to(gateway: &Gateway<'_>, subscription: &Value, config: &Value) -> TestResponse {
    let body = json!({"subscription_config_id": config["subscription_config_id"]});
    gateway.post(&format!("{}/change", path_of(subscription)), &body).await
}

async fn buy(gateway: &Gateway<'_>, subscription: &Value, bundle: &Value) -> TestResponse {
    let body = json!({"credit_bundle_id": bundle["credit_bundle_id"]});
    gateway.post(&format!("{}/bundles", path_of(subscription)), &body).await
}

/// The subscription as the connection shows it.
async fn shown(gateway: &Gateway<'_>, customer: &CustomerWallet) -> Value {
    let answer =
        gateway.get(&format!("/connections/{}/subscription", customer.id)).await.expect(200);
    assert_eq!(names(&answer), ["subscription"]);
    answer["subscription"].clone()
}

/// Fails unless the subscription has these remaining credits of cycle and bundles, and their sum as the total.
#[track_caller]
fn assert_credits(subscription: &Value, cycle: i64, bundle: i64) {
    let credits = &subscription["credits"];
    let found =
        ["cycle_remaining", "bundle_remaining", "total_remaining"].map(|name| &credits[name]);
    assert_eq!(found, [&usd(cycle), &usd(bundle), &usd(cycle + bundle)], "{subscription}");
}

/// Fails unless the current cycle has these days as its start and end.
#[track_caller]
fn assert_cycle(subscription: &Value, start: &str, end: &str) {
    let found = ["cycle_start_at", "cycle_end_at"].map(|name| text(subscription, name));
    assert_eq!(found, [start, end].map(|day| format!("{day}T00:00:00Z")), "{subscription}");
}

/// Balance, held and available of a wallet.
async fn wallet(gateway: &Gateway<'_>, customer: &CustomerWallet) -> [String; 3] {
    let wallet = gateway.get(&format!("/wallets/{}", customer.wallet)).await.expect(200);
    ["balance", "held", "available"].map(|name| text(&wallet, name))
}

/// All ledger lines of a wallet, oldest first.
async fn ledger(gateway: &Gateway<'_>, customer: &CustomerWallet) -> Vec<Value> {
    let (mut lines, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/wallets/{}/transactions?limit=100&cursor={cursor}", customer.wallet);
        let page = gateway.get(&path).await.expect(200);
        lines.extend(page["data"].as_array().unwrap().iter().cloned());
        if page["has_more"] == json!(false) {
            lines.reverse();
            return lines;
        }
        cursor = text(&page, "next_cursor");
    }
}

/// Kind, account, amount and balance afterwards of each line from `start` on.
fn lines_from(ledger: &[Value], start: usize) -> Vec<[String; 4]> {
    let names = ["kind", "account", "amount", "balance_after"];
    ledger[start..].iter().map(|line| names.map(|name| text(line, name))).collect()
}

/// The expected value of `lines_from`.
fn lines(expected: &[(&str, &str, i64, i64)]) -> Vec<[String; 4]> {
    let line = |&(kind, account, amount, after): &(&str, &str, i64, i64)| {
        [kind.to_owned(), account.to_owned(), usd(amount), usd(after)]
    };
    expected.iter().map(line).collect()
}

/// A chat call of a connection under a meter.
fn call_under(gateway: &Gateway<'_>, customer: &CustomerWallet, meter: &Value) -> TestRequest {
    let token =
        gateway.token(&json!({"connection_id": customer.id, "meter_slug": meter["meter_slug"]}));
    let u = gateway.provider.url("/v1/chat/completions");
    gateway.forward_to(&u).bearer(&token).json(&chat_body())
}

async fn spend(gateway: &Gateway<'_>, customer: &CustomerWallet, meter: &Value) {
    gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
    call_under(gateway, customer, meter).send().await.expect(200);
}

/// Runs `work` while a call is in flight, which is then answered with this status.
async fn call_while(
    gateway: &Gateway<'_>,
    customer: &CustomerWallet,
    meter: &Value,
    status: u16,
    meanwhile: impl AsyncFnOnce(),
) {
    let gate = Gate::new();
    let answer = match status {
        200 => chat_answer(),
        _ => json!({"error": {"message": "no"}}),
    };
    gateway.provider.push(ScriptedResponse::json(status, answer).gate_head(&gate));
    let (call, calls) = (call_under(gateway, customer, meter), gateway.provider.calls());
    let meanwhile = async {
        gateway.provider.wait_for_calls(calls + 1).await;
        meanwhile().await;
        gate.open();
    };
    let (answer, ()) = tokio::join!(call.send(), meanwhile);
    assert_eq!(answer.status, status, "{}", answer.text());
}

/// Advances the clock by days.
async fn pass_days(gateway: &Gateway<'_>, days: i64) {
    gateway.store.clock.advance_millis(days * DAY);
    gateway.store.store.renew_lease().await.unwrap();
}

/// All ids of a list, read in pages of this size, newest first.
async fn listed(gateway: &Gateway<'_>, path: &str, id: &str, limit: usize) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    let joint = if path.contains('?') { '&' } else { '?' };
    loop {
        let page =
            gateway.get(&format!("{path}{joint}limit={limit}&cursor={cursor}")).await.expect(200);
        assert_eq!(names(&page), ["data", "has_more", "next_cursor"]);
        let data = page["data"].as_array().unwrap();
        ids.extend(data.iter().map(|one| text(one, id)));
        if page["has_more"] == json!(false) {
            assert_eq!(page["next_cursor"], "");
            return ids;
        }
        assert_eq!(data.len(), limit);
        cursor = text(&page, "next_cursor");
    }
}

// Configurations.

#[test]
fn a_config_has_the_fields_of_the_interface_and_these_defaults() {
    each_gateway(async |gateway| {
        let made = new_config(gateway, &json!({})).await;
        let expected = json!({
            "subscription_config_id": made["subscription_config_id"],
            "merchant_id": gateway.merchant.merchant.merchant_id.to_string(),
            "name": "Pro", "period_amount": usd(25), "included_credit": usd(25),
            "billing_interval": "month", "rollover_type": "none", "bundle_rollover_type": "full",
            "linked_meters": [], "credit_bundles": [], "created_at": made["created_at"]
        });
        assert_eq!(made, expected);
        assert!(text(&made, "subscription_config_id").starts_with("sbc_"));
        assert_eq!(gateway.get(&path_of_config(&made)).await.expect(200), made);
        let list = gateway.get("/subscription_configs").await.expect(200);
        assert_eq!(list, json!({"data": [made], "has_more": false, "next_cursor": ""}));
    });
}

#[test]
fn a_config_is_made_with_everything_at_once() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "1").await;
        let made = new_config(
            gateway,
            &json!({
                "included_credit": "0.0000000001", "billing_interval": "week", "rollover_type": "full",
                "bundle_rollover_type": "none", "product_ids": [meter["meter_id"]],
                "credit_bundles": [
                    {"name": "Small", "cost": "10", "credit_amount": "12.5"},
                    {"name": "Large", "cost": "100", "credit_amount": "150"}
                ]
            }),
        )
        .await;
        assert_eq!(made["included_credit"], "0.0000000001");
        assert_eq!(made["billing_interval"], "week");
        assert_eq!([&made["rollover_type"], &made["bundle_rollover_type"]], ["full", "none"]);
        let linked = json!([{"meter_id": meter["meter_id"], "name": "Calls"}]);
        assert_eq!(made["linked_meters"], linked);
        let bundles = made["credit_bundles"].as_array().unwrap();
        assert_eq!(bundles.len(), 2);
        for bundle in bundles {
            assert_eq!(names(bundle), ["cost", "credit_amount", "credit_bundle_id", "name"]);
            assert!(text(bundle, "credit_bundle_id").starts_with("cbn_"));
        }
        let large = bundles.iter().find(|bundle| bundle["name"] == "Large").unwrap();
        assert_eq!([&large["cost"], &large["credit_amount"]], [&usd(100), &usd(150)]);

        // The bundle names its configuration and its time of creation, as in the list.
        let path = format!("/credit_bundles/{}", text(large, "credit_bundle_id"));
        let read = gateway.get(&path).await.expect(200);
        let expected = json!({
            "credit_bundle_id": large["credit_bundle_id"], "name": "Large", "cost": usd(100),
            "subscription_config_id": made["subscription_config_id"], "credit_amount": usd(150),
            "created_at": read["created_at"]
        });
        assert_eq!(read, expected);
        assert!(read["created_at"].is_string());
        let list = gateway.get("/credit_bundles").await.expect(200);
        assert!(list["data"].as_array().unwrap().contains(&read));
    });
}

#[test]
fn every_bad_field_of_a_config_is_named() {
    each_gateway(async |gateway| {
        let long = "x".repeat(256);
        let bundle = |field: &str, value: Value| {
            let good = json!({"name": "Small", "cost": "10", "credit_amount": "12"});
            json!([with(good, &json!({field: value}))])
        };
        for (field, value, path) in [
            ("name", json!(null), "name"),
            ("name", json!(""), "name"),
            ("name", json!(1), "name"),
            ("name", json!(long), "name"),
            ("period_amount", json!(null), "period_amount"),
            ("period_amount", json!(25), "period_amount"),
            ("period_amount", json!("-1"), "period_amount"),
            ("period_amount", json!("1e3"), "period_amount"),
            ("period_amount", json!("0.00000000001"), "period_amount"),
            ("period_amount", json!("9999999999"), "period_amount"),
            ("included_credit", json!("x"), "included_credit"),
            ("included_credit", json!("-1"), "included_credit"),
            ("included_credit", json!(1), "included_credit"),
            ("billing_interval", json!(null), "billing_interval"),
            ("billing_interval", json!("hour"), "billing_interval"),
            ("billing_interval", json!("Month"), "billing_interval"),
            ("rollover_type", json!("half"), "rollover_type"),
            ("bundle_rollover_type", json!(true), "bundle_rollover_type"),
            ("product_ids", json!("x"), "product_ids"),
            ("product_ids", json!([1]), "product_ids.0"),
            ("product_ids", json!(["mtr_x"]), "product_ids.0"),
            ("credit_bundles", json!({}), "credit_bundles"),
            ("credit_bundles", json!([1]), "credit_bundles.0"),
            ("credit_bundles", bundle("name", json!("")), "credit_bundles.0.name"),
            ("credit_bundles", bundle("name", json!(null)), "credit_bundles.0.name"),
            ("credit_bundles", bundle("cost", json!("-1")), "credit_bundles.0.cost"),
            ("credit_bundles", bundle("cost", json!(null)), "credit_bundles.0.cost"),
            ("credit_bundles", bundle("credit_amount", json!(1)), "credit_bundles.0.credit_amount"),
            (
                "credit_bundles",
                bundle("credit_amount", json!("x")),
                "credit_bundles.0.credit_amount",
            ),
            ("credit_bundles", bundle("colour", json!("x")), "credit_bundles.0.colour"),
            ("colour", json!("blue"), "colour"),
            ("linked_meters", json!([]), "linked_meters"),
            ("subscription_config_id", json!("sbc_1"), "subscription_config_id"),
        ] {
            let body = with(
                json!({"name": "Pro", "period_amount": "25", "billing_interval": "month"}),
                &json!({field: value}),
            );
            let answer = gateway.post("/subscription_configs", &body).await;
            assert_eq!(answer.status, 400, "{body}: {}", answer.text());
            assert_eq!(answer.issue_paths(), [path], "{body}");
        }
        let all = json!({
            "name": 1, "included_credit": "x", "rollover_type": "x", "colour": 1,
            "product_ids": [gateway.meter.meter_id.to_string(), "mtr_x"],
            "credit_bundles": [
                {"name": "Small", "cost": "1", "credit_amount": "1"}, {"cost": "x", "size": 1}
            ]
        });
        let answer = gateway.post("/subscription_configs", &all).await;
        assert_issues(
            &answer,
            &[
                "name",
                "period_amount",
                "billing_interval",
                "included_credit",
                "rollover_type",
                "colour",
                "product_ids.1",
                "credit_bundles.1.name",
                "credit_bundles.1.cost",
                "credit_bundles.1.credit_amount",
                "credit_bundles.1.size",
            ],
        );
        let list = gateway.get("/subscription_configs").await.expect(200);
        assert_eq!(list["data"], json!([]), "nothing was made");
    });
}

#[test]
fn a_config_is_changed_field_by_field_and_can_be_sent_back_as_it_was_read() {
    each_gateway(async |gateway| {
        let bundle = json!([{"name": "Small", "cost": "10", "credit_amount": "12"}]);
        let made = new_config(gateway, &json!({"credit_bundles": bundle})).await;
        let path = path_of_config(&made);
        assert_eq!(gateway.patch(&path, &json!({})).await.expect(200), made);
        assert_eq!(gateway.patch(&path, &made).await.expect(200), made);
        for (field, sent, seen) in [
            ("name", json!("Team"), json!("Team")),
            ("rollover_type", json!("full"), json!("full")),
            ("bundle_rollover_type", json!("none"), json!("none")),
            ("included_credit", json!("30.5"), json!("30.5000000000")),
        ] {
            let before = gateway.get(&path).await.expect(200);
            let after = gateway.patch(&path, &json!({field: sent})).await.expect(200);
            assert_eq!(after, with(before, &json!({field: seen})));
            assert_eq!(gateway.get(&path).await.expect(200), after);
        }
    });
}

#[test]
fn period_amount_and_billing_interval_are_for_good() {
    each_gateway(async |gateway| {
        let made = new_config(gateway, &json!({})).await;
        let path = path_of_config(&made);
        let changes = json!({"name": "Team", "period_amount": "26", "billing_interval": "year"});
        let answer = gateway.patch(&path, &changes).await;
        assert_issues(&answer, &["period_amount", "billing_interval"]);
        assert_eq!(gateway.get(&path).await.expect(200), made);
        // The same value in another notation is no change.
        let same = json!({"period_amount": "25.0", "billing_interval": "month"});
        assert_eq!(gateway.patch(&path, &same).await.expect(200), made);
    });
}

#[test]
fn every_bad_field_of_a_change_is_named_and_nothing_changes() {
    each_gateway(async |gateway| {
        let made = new_config(gateway, &json!({})).await;
        let path = path_of_config(&made);
        for (body, issue) in [
            (json!({"name": ""}), "name"),
            (json!({"name": null}), "name"),
            (json!({"rollover_type": "half"}), "rollover_type"),
            (json!({"rollover_type": null}), "rollover_type"),
            (json!({"bundle_rollover_type": 1}), "bundle_rollover_type"),
            (json!({"included_credit": "-0.1"}), "included_credit"),
            (json!({"included_credit": null}), "included_credit"),
            (json!({"product_ids": ["x"]}), "product_ids.0"),
            (json!({"product_ids": {}}), "product_ids"),
            (json!({"product_ids": [gateway.meter.meter_id.to_string(), 1]}), "product_ids.1"),
            (json!({"credit_bundles": "x"}), "credit_bundles"),
            (json!({"colour": 1}), "colour"),
        ] {
            let answer = gateway.patch(&path, &with(json!({"name": "Team"}), &body)).await;
            assert_issues(&answer, &[issue]);
            assert_eq!(gateway.get(&path).await.expect(200), made);
        }
    });
}

#[test]
fn what_is_wrong_with_one_element_hides_nothing_of_the_others() {
    each_gateway(async |gateway| {
        let made = new_config(gateway, &json!({})).await;
        let unknown = "cbn_01M7YS5040NCSYBM5NZVE98902";
        let body = json!({
            "product_ids": [1, "x", gateway.meter.meter_id.to_string(), "mtr_x"],
            "credit_bundles": [
                {"credit_bundle_id": "x"}, {"cost": 1}, {"name": "Incomplete"},
                {"is_deleted": true}, {"credit_bundle_id": unknown, "credit_amount": "0"}
            ]
        });
        let answer = gateway.patch(&path_of_config(&made), &body).await;
        assert_issues(
            &answer,
            &[
                "product_ids.0",
                "product_ids.1",
                "product_ids.3",
                "credit_bundles.0.credit_bundle_id",
                "credit_bundles.1.cost",
                "credit_bundles.2.cost",
                "credit_bundles.2.credit_amount",
                "credit_bundles.3.credit_bundle_id",
                "credit_bundles.4.credit_amount",
            ],
        );
        // The same id twice in one list is an error.
        let id = gateway.meter.meter_id.to_string();
        let twice = json!({"product_ids": [id, id]});
        assert_issues(&gateway.patch(&path_of_config(&made), &twice).await, &["product_ids.1"]);
    });
}

#[test]
fn product_ids_replace_all_links() {
    each_gateway(async |gateway| {
        let (one, two) = (meter_of(gateway, "1").await, meter_of(gateway, "2").await);
        let ids = |meters: &[&Value]| {
            let mut ids: Vec<_> = meters.iter().map(|meter| text(meter, "meter_id")).collect();
            ids.sort();
            ids
        };
        let linked = |config: &Value| {
            let meters = config["linked_meters"].as_array().unwrap();
            for meter in meters {
                assert_eq!(names(meter), ["meter_id", "name"]);
            }
            ids(&meters.iter().collect::<Vec<_>>())
        };
        let made = new_config(gateway, &json!({"product_ids": ids(&[&one])})).await;
        let path = path_of_config(&made);
        assert_eq!(linked(&made), ids(&[&one]));
        let renamed = gateway.patch(&path, &json!({"name": "Team"})).await.expect(200);
        assert_eq!(linked(&renamed), ids(&[&one]), "not mentioned, not changed");
        for meters in [vec![&two], vec![&one, &two], vec![&one], vec![]] {
            let body = json!({"product_ids": ids(&meters)});
            assert_eq!(linked(&gateway.patch(&path, &body).await.expect(200)), ids(&meters));
        }

        // One id that does not exist makes the whole change fail.
        gateway.patch(&path, &json!({"product_ids": ids(&[&one])})).await.expect(200);
        let stranger = gateway.store.merchant().await;
        let theirs = gateway.store.meter(stranger.merchant.merchant_id, &[(0, "1")]).await;
        let body = json!({"product_ids": [two["meter_id"], theirs.meter_id.to_string()]});
        assert_issues(&gateway.patch(&path, &body).await, &["product_ids.1"]);
        assert_eq!(linked(&gateway.get(&path).await.expect(200)), ids(&[&one]));
    });
}

#[test]
fn bundles_are_made_changed_and_deleted_by_one_list() {
    each_gateway(async |gateway| {
        let bundle = |name: &str| json!({"name": name, "cost": "10", "credit_amount": "12"});
        let bundles = json!([bundle("Kept"), bundle("Changed"), bundle("Deleted")]);
        let made = new_config(gateway, &json!({"credit_bundles": bundles})).await;
        let id = |name: &str| {
            let all = made["credit_bundles"].as_array().unwrap();
            text(all.iter().find(|one| one["name"] == name).unwrap(), "credit_bundle_id")
        };
        let changes = json!({"credit_bundles": [
            {"credit_bundle_id": id("Changed"), "cost": "11", "is_deleted": false},
            {"credit_bundle_id": id("Deleted"), "is_deleted": true},
            {"name": "New", "cost": "0", "credit_amount": "1"}
        ]});
        let changed = gateway.patch(&path_of_config(&made), &changes).await.expect(200);
        let mut seen: Vec<_> = changed["credit_bundles"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| ["name", "cost", "credit_amount"].map(|field| text(one, field)))
            .collect();
        seen.sort();
        let line = |name: &str, cost, credit| [name.to_owned(), usd(cost), usd(credit)];
        assert_eq!(seen, [line("Changed", 11, 12), line("Kept", 10, 12), line("New", 0, 1)]);
        let kept = gateway.get(&format!("/credit_bundles/{}", id("Kept"))).await.expect(200);
        assert_eq!(kept["name"], "Kept");
        let gone = gateway.get(&format!("/credit_bundles/{}", id("Deleted"))).await;
        assert_refused(&gone, 404, "credit_bundle_not_found");
        let listed = listed(gateway, "/credit_bundles", "credit_bundle_id", 100).await;
        assert_eq!(listed.len(), 3);
        assert!(!listed.contains(&id("Deleted")));
    });
}

#[test]
fn a_list_of_bundles_is_done_wholly_or_not_at_all_and_says_every_mistake() {
    each_gateway(async |gateway| {
        let small = json!({"name": "Small", "cost": "10", "credit_amount": "12"});
        let made = new_config(gateway, &json!({"credit_bundles": [small]})).await;
        let others = new_config(gateway, &json!({"credit_bundles": [small]})).await;
        let id = &made["credit_bundles"][0]["credit_bundle_id"];
        let of_another_config = &others["credit_bundles"][0]["credit_bundle_id"];
        let path = path_of_config(&made);
        let list = json!({"name": "Team", "credit_bundles": [
            {"credit_bundle_id": id, "cost": "99"},
            {"credit_bundle_id": "cbn_01M7YS5040NCSYBM5NZVE98902", "name": "x"},
            {"credit_bundle_id": of_another_config, "is_deleted": true},
            {"name": "New", "cost": "1", "credit_amount": "1"},
            {"name": "Incomplete"},
            {"name": "New", "cost": "-1", "credit_amount": "1"},
            {"name": "New", "cost": "1", "credit_amount": "1", "is_deleted": "yes"},
            {"name": "New", "cost": "1", "credit_amount": "1", "size": 1}
        ]});
        let answer = gateway.patch(&path, &list).await;
        assert_issues(
            &answer,
            &[
                "credit_bundles.4.cost",
                "credit_bundles.4.credit_amount",
                "credit_bundles.5.cost",
                "credit_bundles.6.is_deleted",
                "credit_bundles.7.size",
            ],
        );
        // A deleted bundle without an id is invalid.
        let nameless = json!({"credit_bundles": [{"is_deleted": true}]});
        assert_refused(&gateway.patch(&path, &nameless).await, 400, "validation_failed");
        assert_eq!(gateway.get(&path).await.expect(200), made);
        assert_eq!(gateway.get(&path_of_config(&others)).await.expect(200), others);
    });
}

#[test]
fn an_unknown_bundle_alone_undoes_the_whole_change() {
    each_gateway(async |gateway| {
        let small = json!({"name": "Small", "cost": "10", "credit_amount": "12"});
        let made = new_config(gateway, &json!({"credit_bundles": [small]})).await;
        let id = &made["credit_bundles"][0]["credit_bundle_id"];
        let path = path_of_config(&made);
        let list = json!({"name": "Team", "product_ids": [gateway.meter.meter_id.to_string()], "credit_bundles": [
            {"credit_bundle_id": id, "is_deleted": true},
            {"name": "New", "cost": "1", "credit_amount": "1"},
            {"credit_bundle_id": "cbn_01M7YS5040NCSYBM5NZVE98902", "name": "x"}
        ]});
        let answer = gateway.patch(&path, &list).await;
        assert_issues(&answer, &["credit_bundles.2.credit_bundle_id"]);
        assert_eq!(gateway.get(&path).await.expect(200), made);
    });
}

#[test]
fn the_last_linked_meter_of_a_config_is_not_deleted() {
    each_gateway(async |gateway| {
        let (one, two) = (meter_of(gateway, "1").await, meter_of(gateway, "2").await);
        let made =
            new_config(gateway, &json!({"product_ids": [one["meter_id"], two["meter_id"]]})).await;
        let path = |meter: &Value| format!("/meters/{}", text(meter, "meter_id"));
        gateway.delete(&path(&one)).await.expect(200);
        let left = gateway.get(&path_of_config(&made)).await.expect(200);
        assert_eq!(left["linked_meters"], json!([{"meter_id": two["meter_id"], "name": "Calls"}]));
        assert_refused(&gateway.delete(&path(&two)).await, 409, "meter_in_use");
        gateway.get(&path(&two)).await.expect(200);
        gateway.patch(&path_of_config(&made), &json!({"product_ids": []})).await.expect(200);
        gateway.delete(&path(&two)).await.expect(200);
    });
}

#[test]
fn a_deleted_config_is_not_there_and_takes_its_bundles_along() {
    each_gateway(async |gateway| {
        let small = json!({"name": "Small", "cost": "10", "credit_amount": "12"});
        let made = new_config(gateway, &json!({"credit_bundles": [small]})).await;
        let path = path_of_config(&made);
        let deleted = gateway.delete(&path).await.expect(200);
        assert_eq!(deleted, json!({"id": made["subscription_config_id"], "deleted": true}));
        for answer in [
            gateway.get(&path).await,
            gateway.patch(&path, &json!({"name": "x"})).await,
            gateway.delete(&path).await,
        ] {
            assert_refused(&answer, 404, "subscription_config_not_found");
        }
        assert_eq!(gateway.get("/subscription_configs").await.expect(200)["data"], json!([]));
        assert_eq!(gateway.get("/credit_bundles").await.expect(200)["data"], json!([]));
        let body = json!({
            "connection_id": gateway.connection.connection_id.to_string(),
            "subscription_config_id": made["subscription_config_id"]
        });
        let answer = gateway.post("/subscriptions", &body).await;
        assert_refused(&answer, 404, "subscription_config_not_found");
    });
}

#[test]
fn configs_bundles_and_subscriptions_are_listed_page_by_page_newest_first() {
    each_gateway(async |gateway| {
        let (mut configs, mut bundles, mut subscriptions) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..5 {
            let small = json!([{"name": "Small", "cost": "10", "credit_amount": "12"}]);
            let made = new_config(gateway, &json!({"credit_bundles": small})).await;
            let subscription = subscribe(gateway, &new_customer(gateway, "0").await, &made).await;
            configs.push(text(&made, "subscription_config_id"));
            bundles.push(text(&made["credit_bundles"][0], "credit_bundle_id"));
            subscriptions.push(text(&subscription, "subscription_id"));
        }
        for (path, id, mut expected) in [
            ("/subscription_configs", "subscription_config_id", configs.clone()),
            ("/credit_bundles", "credit_bundle_id", bundles.clone()),
            ("/subscriptions", "subscription_id", subscriptions),
        ] {
            expected.reverse();
            for limit in [1, 2, 5, 100] {
                assert_eq!(listed(gateway, path, id, limit).await, expected, "{path}");
            }
            for limit in ["0", "101", "x", "-1", "1.5"] {
                assert_issues(&gateway.get(&format!("{path}?limit={limit}")).await, &["limit"]);
            }
            let cursor = gateway.get(&format!("{path}?cursor=nonsense")).await;
            assert_refused(&cursor, 400, "cursor_invalid");
            assert_issues(&gateway.get(&format!("{path}?unknown=1")).await, &["unknown"]);
        }
        let path = format!("/credit_bundles?subscription_config_id={}", configs[1]);
        assert_eq!(listed(gateway, &path, "credit_bundle_id", 10).await, [bundles[1].clone()]);
        let answer = gateway.get("/credit_bundles?subscription_config_id=x").await;
        assert_issues(&answer, &["subscription_config_id"]);
    });
}

// Subscriptions.

#[test]
fn the_subscription_of_a_connection_has_exactly_the_fields_of_the_interface() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let path = format!("/connections/{}/subscription", customer.id);
        assert_eq!(gateway.get(&path).await.expect(200), json!({"subscription": null}));

        let config = new_config(
            gateway,
            &json!({"included_credit": "20", "rollover_type": "full", "bundle_rollover_type": "none"}),
        )
        .await;
        let made = subscribe(gateway, &customer, &config).await;
        let interface = json!({
            "subscription_id": made["subscription_id"],
            "subscription_config_id": config["subscription_config_id"],
            "name": "Pro", "status": "active", "billing_interval": "month",
            "period_amount": usd(25), "included_credit": usd(20),
            "cycle_start_at": "2026-11-21T00:00:00Z", "cycle_end_at": "2026-12-21T00:00:00Z",
            "credits": {
                "total_remaining": usd(20), "cycle_remaining": usd(20), "bundle_remaining": usd(0),
                "cycle_rollover": "full", "bundle_rollover": "none"
            },
            "pending_change": null
        });
        assert!(text(&made, "subscription_id").starts_with("sub_"));
        assert_eq!(gateway.get(&path).await.expect(200), json!({"subscription": interface}));
        let more = json!({
            "connection_id": customer.id, "started_at": "2026-11-21T00:00:00Z", "cancelled_at": null
        });
        let whole = with(interface, &more);
        assert_eq!(made, whole);
        let read = gateway.get(&path_of(&made)).await.expect(200);
        assert_eq!(read, json!({"subscription": whole}));
        let list = gateway.get("/subscriptions").await.expect(200);
        assert_eq!(list, json!({"data": [whole], "has_more": false, "next_cursor": ""}));
    });
}

#[test]
fn a_pending_change_has_the_fields_of_the_interface() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let pro = new_config(gateway, &json!({})).await;
        let small = json!({"name": "Small", "period_amount": "5", "included_credit": "4"});
        let small = new_config(gateway, &small).await;
        let subscription = subscribe(gateway, &customer, &pro).await;

        let changed = change_to(gateway, &subscription, &small).await.expect(200);
        let downgrade = json!({
            "type": "downgrade", "effective_at": "2026-12-21T00:00:00Z", "name": "Small",
            "subscription_config_id": small["subscription_config_id"],
            "period_amount": usd(5), "included_credit": usd(4)
        });
        let expected = with(subscription.clone(), &json!({"pending_change": downgrade}));
        assert_eq!(changed, json!({"subscription": expected}));
        assert_eq!(shown(gateway, &customer).await["pending_change"], downgrade);

        let gone = gateway.delete(&path_of(&subscription)).await.expect(200);
        assert_eq!(gone, json!({"success": true}));
        let cancellation = json!({
            "type": "cancellation", "effective_at": "2026-12-21T00:00:00Z", "name": "Pro",
            "subscription_config_id": pro["subscription_config_id"],
            "period_amount": usd(25), "included_credit": usd(25)
        });
        assert_eq!(shown(gateway, &customer).await["pending_change"], cancellation);

        let undone = change_to(gateway, &subscription, &pro).await.expect(200);
        assert_eq!(undone, json!({"subscription": subscription}));
    });
}

#[test]
fn of_25_included_and_15_used_the_next_cycle_has_35_with_rollover_and_25_without() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let meter = meter_of(gateway, "15").await;
        for (rollover, remaining) in [("full", 35), ("none", 25)] {
            let customer = new_customer(gateway, "0").await;
            let fields = json!({"rollover_type": rollover, "product_ids": [meter["meter_id"]]});
            let config = new_config(gateway, &fields).await;
            subscribe(gateway, &customer, &config).await;
            assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(25)]);
            spend(gateway, &customer, &meter).await;
            assert_credits(&shown(gateway, &customer).await, 10, 0);
            assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(10)]);

            let before = shown(gateway, &customer).await;
            pass_days(gateway, 31).await;
            let renewed = shown(gateway, &customer).await;
            assert_credits(&renewed, remaining, 0);
            assert_eq!(renewed["cycle_start_at"], before["cycle_end_at"]);
            assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(remaining)]);
            let ledger = ledger(gateway, &customer).await;
            let mut expected =
                vec![("credit_grant", "cycle_credit", 25, 25), ("usage", "cycle_credit", -15, 10)];
            if rollover == "full" {
                expected.push(("rollover", "cycle_credit", -10, 0));
                expected.push(("rollover", "cycle_credit", 10, 10));
            } else {
                expected.push(("credit_expiry", "cycle_credit", -10, 0));
            }
            expected.push(("credit_grant", "cycle_credit", 25, remaining));
            assert_eq!(lines_from(&ledger, 0), lines(&expected), "{ledger:#?}");
        }
    });
}

#[test]
fn one_call_draws_on_cycle_credit_then_bundle_credit_then_balance() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "12").await;
        let customer = new_customer(gateway, "10").await;
        let config = new_config(
            gateway,
            &json!({
                "included_credit": "5", "product_ids": [meter["meter_id"]],
                "credit_bundles": [{"name": "Small", "cost": "2", "credit_amount": "3"}]
            }),
        )
        .await;
        let subscription = subscribe(gateway, &customer, &config).await;
        let bought = buy(gateway, &subscription, &config["credit_bundles"][0]).await.expect(201);
        assert_eq!(names(&bought), ["subscription"]);
        assert_credits(&bought["subscription"], 5, 3);
        assert_eq!(wallet(gateway, &customer).await, [usd(10), usd(0), usd(18)]);

        spend(gateway, &customer, &meter).await;
        assert_credits(&shown(gateway, &customer).await, 0, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(6), usd(0), usd(6)]);
        let ledger = ledger(gateway, &customer).await;
        let expected = [
            ("credit", "balance", 10, 10),
            ("credit_grant", "cycle_credit", 5, 5),
            ("bundle_purchase", "bundle_credit", 3, 3),
            ("usage", "cycle_credit", -5, 0),
            ("usage", "bundle_credit", -3, 0),
            ("usage", "balance", -4, 6),
        ];
        assert_eq!(lines_from(&ledger, 0), lines(&expected), "{ledger:#?}");
        let record = gateway.record().await;
        assert_eq!(record["total_wallet_cost"], usd(12));
        for line in &ledger[3..] {
            assert_eq!(line["request_id"], record["request_id"]);
            assert_eq!(line["wallet_id"], customer.wallet);
        }

        // With no credit left, the balance pays alone.
        let small = meter_of(gateway, "1").await;
        gateway
            .patch(&path_of_config(&config), &json!({"product_ids": [small["meter_id"]]}))
            .await
            .expect(200);
        spend(gateway, &customer, &small).await;
        assert_eq!(wallet(gateway, &customer).await, [usd(5), usd(0), usd(5)]);
    });
}

#[test]
fn bundle_credit_is_spent_after_the_cycle_credit_and_before_the_balance() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let customer = new_customer(gateway, "10").await;
        let config = new_config(
            gateway,
            &json!({"included_credit": "4", "product_ids": [meter["meter_id"]],
                    "credit_bundles": [{"name": "Small", "cost": "2", "credit_amount": "4"}]}),
        )
        .await;
        let subscription = subscribe(gateway, &customer, &config).await;
        buy(gateway, &subscription, &config["credit_bundles"][0]).await.expect(201);
        for (cycle, bundle, balance) in [(0, 4, 10), (0, 0, 10), (0, 0, 6)] {
            spend(gateway, &customer, &meter).await;
            assert_credits(&shown(gateway, &customer).await, cycle, bundle);
            assert_eq!(wallet(gateway, &customer).await[0], usd(balance));
        }
    });
}

#[test]
fn a_meter_that_is_not_linked_draws_on_the_balance() {
    each_gateway(async |gateway| {
        let (linked, other) = (meter_of(gateway, "2").await, meter_of(gateway, "3").await);
        let customer = new_customer(gateway, "3").await;
        let config = new_config(gateway, &json!({"product_ids": [linked["meter_id"]]})).await;
        subscribe(gateway, &customer, &config).await;
        spend(gateway, &customer, &other).await;
        assert_credits(&shown(gateway, &customer).await, 25, 0);
        assert_eq!(wallet(gateway, &customer).await[0], usd(0));

        // The credit cannot pay under this meter, but under the other it can.
        let refused = call_under(gateway, &customer, &other).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
        gateway.provider.assert_calls(1);
        spend(gateway, &customer, &linked).await;
        assert_credits(&shown(gateway, &customer).await, 23, 0);
        assert_eq!(wallet(gateway, &customer).await[0], usd(0));
    });
}

#[test]
fn a_config_without_linked_meters_lets_every_meter_draw() {
    each_gateway(async |gateway| {
        let (one, two) = (meter_of(gateway, "2").await, meter_of(gateway, "3").await);
        let customer = new_customer(gateway, "0").await;
        subscribe(gateway, &customer, &new_config(gateway, &json!({})).await).await;
        spend(gateway, &customer, &one).await;
        spend(gateway, &customer, &two).await;
        assert_credits(&shown(gateway, &customer).await, 20, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(20)]);
    });
}

#[test]
fn a_call_on_its_way_holds_credit() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let customer = new_customer(gateway, "2").await;
        let config = new_config(
            gateway,
            &json!({"included_credit": "3", "product_ids": [meter["meter_id"]]}),
        )
        .await;
        subscribe(gateway, &customer, &config).await;
        let gate = Gate::new();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let open = call_under(gateway, &customer, &meter);
        let call = open.send();
        let look = async {
            gateway.provider.wait_for_calls(1).await;
            let held = wallet(gateway, &customer).await;
            gate.open();
            held
        };
        let (answer, held) = tokio::join!(call, look);
        answer.expect(200);
        assert_eq!(held, [usd(2), usd(4), usd(1)]);
        assert_eq!(wallet(gateway, &customer).await, [usd(1), usd(0), usd(1)]);
    });
}

#[test]
fn credit_that_a_call_holds_survives_a_renewal_until_that_call_ends() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        for (rollover, status, remaining) in
            [("none", 200, 25), ("none", 500, 25), ("full", 200, 46), ("full", 500, 50)]
        {
            let customer = new_customer(gateway, "10").await;
            let fields = json!({"rollover_type": rollover, "product_ids": [meter["meter_id"]]});
            let config = new_config(gateway, &fields).await;
            subscribe(gateway, &customer, &config).await;
            call_while(gateway, &customer, &meter, status, async || {
                pass_days(gateway, 31).await;
                let renewed = shown(gateway, &customer).await;
                assert_ne!(renewed["cycle_start_at"], renewed["started_at"]);
                assert_eq!(wallet(gateway, &customer).await[..2], [usd(10), usd(4)]);
            })
            .await;
            // The 4 dollars of the old cycle paid the call, or were treated like the rest of its credit.
            assert_credits(&shown(gateway, &customer).await, remaining, 0);
            let expected = [usd(10), usd(0), usd(10 + remaining)];
            assert_eq!(wallet(gateway, &customer).await, expected, "{rollover} {status}");
        }
    });
}

#[test]
fn credit_that_a_call_holds_survives_the_end_of_the_subscription_until_that_call_ends() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        for status in [200, 500] {
            let customer = new_customer(gateway, "10").await;
            let fields = json!({"rollover_type": "full", "product_ids": [meter["meter_id"]]});
            let config = new_config(gateway, &fields).await;
            let subscription = subscribe(gateway, &customer, &config).await;
            gateway.delete(&path_of(&subscription)).await.expect(200);
            call_while(gateway, &customer, &meter, status, async || {
                pass_days(gateway, 31).await;
                assert_eq!(shown(gateway, &customer).await, json!(null));
            })
            .await;
            assert_eq!(wallet(gateway, &customer).await, [usd(10), usd(0), usd(10)], "{status}");
            let ledger = ledger(gateway, &customer).await;
            let credit = ledger.iter().filter(|line| line["account"] == "cycle_credit").count();
            assert!(credit >= 3, "granted, used or expired, expired: {ledger:#?}");
            let last = ledger.iter().rev().find(|line| line["account"] == "cycle_credit").unwrap();
            assert_eq!(last["balance_after"], usd(0));
        }
    });
}

#[test]
fn credit_that_a_call_holds_survives_an_upgrade() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let linked = json!({"product_ids": [meter["meter_id"]]});
        let big = with(json!({"name": "Big", "period_amount": "50"}), &linked);
        let big = new_config(gateway, &big).await;
        let pro = new_config(gateway, &linked).await;
        let customer = new_customer(gateway, "10").await;
        let subscription = subscribe(gateway, &customer, &pro).await;
        call_while(gateway, &customer, &meter, 200, async || {
            change_to(gateway, &subscription, &big).await.expect(200);
        })
        .await;
        // The call has used 4 of 25; the rest stays.
        assert_credits(&shown(gateway, &customer).await, 71, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(10), usd(0), usd(81)]);
    });
}

#[test]
fn what_is_held_on_credit_leaves_the_balance_to_other_meters() {
    each_gateway(async |gateway| {
        let (linked, other) = (meter_of(gateway, "4").await, meter_of(gateway, "3").await);
        let customer = new_customer(gateway, "3").await;
        let fields = json!({"included_credit": "10", "product_ids": [linked["meter_id"]]});
        subscribe(gateway, &customer, &new_config(gateway, &fields).await).await;
        call_while(gateway, &customer, &linked, 200, async || {
            assert_eq!(wallet(gateway, &customer).await, [usd(3), usd(4), usd(9)]);
            call_while(gateway, &customer, &other, 200, async || {
                assert_eq!(wallet(gateway, &customer).await, [usd(3), usd(7), usd(6)]);
                // The whole balance is held, so this meter has no money, but the other has credit.
                let refused = call_under(gateway, &customer, &other).send().await;
                assert_refused(&refused, 402, "wallet_balance_insufficient");
                assert_eq!(refused.header("retry-after"), Some("1"), "what is held may come back");
                spend(gateway, &customer, &linked).await;
            })
            .await;
        })
        .await;
        assert_credits(&shown(gateway, &customer).await, 2, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(2)]);
    });
}

#[test]
fn a_debt_counts_against_the_credit_that_is_available() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let customer = new_customer(gateway, "0").await;
        subscribe(gateway, &customer, &new_config(gateway, &json!({})).await).await;
        let debits = format!("/wallets/{}/debits", customer.wallet);
        gateway.post(&debits, &json!({"amount": "24"})).await.expect(201);
        assert_eq!(wallet(gateway, &customer).await, [usd(-24), usd(0), usd(1)]);
        spend(gateway, &customer, &meter).await;
        assert_credits(&shown(gateway, &customer).await, 21, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(-24), usd(0), usd(-3)]);
        let refused = call_under(gateway, &customer, &meter).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
    });
}

#[test]
fn a_debit_takes_from_the_balance_and_never_from_credit() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "1").await;
        subscribe(gateway, &customer, &new_config(gateway, &json!({})).await).await;
        let debits = format!("/wallets/{}/debits", customer.wallet);
        let line = gateway.post(&debits, &json!({"amount": "5"})).await.expect(201);
        assert_eq!([&line["account"], &line["balance_after"]], ["balance", "-4.0000000000"]);
        assert_credits(&shown(gateway, &customer).await, 25, 0);
    });
}

#[test]
fn linked_and_other_meters_at_once_draw_what_is_theirs() {
    each_gateway(async |gateway| {
        let (linked, other) = (meter_of(gateway, "1").await, meter_of(gateway, "1").await);
        let customer = new_customer(gateway, "10").await;
        let fields = json!({"included_credit": "10", "product_ids": [linked["meter_id"]]});
        subscribe(gateway, &customer, &new_config(gateway, &fields).await).await;
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let calls: Vec<_> = (0..40)
            .map(|n| call_under(gateway, &customer, if n % 2 == 0 { &linked } else { &other }))
            .collect();
        let answers = join_all(calls.iter().map(TestRequest::send)).await;
        let paid = answers.iter().filter(|answer| answer.status == 200).count();
        assert_eq!(paid, 20, "10 of credit and 10 of the balance");
        assert_credits(&shown(gateway, &customer).await, 0, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(0)]);
        let id = &linked["meter_id"];
        let records = gateway.records().await;
        let of_credit: Vec<_> = ledger(gateway, &customer)
            .await
            .iter()
            .filter(|line| line["kind"] == "usage" && line["account"] == "cycle_credit")
            .map(|line| line["request_id"].clone())
            .collect();
        assert_eq!(of_credit.len(), 10);
        for request in of_credit {
            let record = records.iter().find(|record| record["request_id"] == request).unwrap();
            assert_eq!(&record["meter_id"], id, "only the linked meter draws on credit");
        }
    });
}

#[test]
fn a_config_that_is_deleted_goes_on_for_those_who_have_it() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let (linked, other) = (meter_of(gateway, "1").await, meter_of(gateway, "2").await);
        let customer = new_customer(gateway, "10").await;
        let fields = json!({"product_ids": [linked["meter_id"]]});
        let config = new_config(gateway, &fields).await;
        subscribe(gateway, &customer, &config).await;
        gateway.delete(&path_of_config(&config)).await.expect(200);
        pass_days(gateway, 31).await;
        assert_credits(&shown(gateway, &customer).await, 25, 0);
        spend(gateway, &customer, &linked).await;
        assert_credits(&shown(gateway, &customer).await, 24, 0);
        // The last link keeps its meter: without any link, every meter could use the credit.
        let meter = format!("/meters/{}", text(&linked, "meter_id"));
        assert_refused(&gateway.delete(&meter).await, 409, "meter_in_use");
        spend(gateway, &customer, &other).await;
        assert_credits(&shown(gateway, &customer).await, 24, 0);
    });
}

#[test]
fn links_that_are_replaced_bear_on_the_next_call() {
    each_gateway(async |gateway| {
        let (one, two) = (meter_of(gateway, "1").await, meter_of(gateway, "2").await);
        let customer = new_customer(gateway, "10").await;
        let config = new_config(gateway, &json!({"product_ids": [one["meter_id"]]})).await;
        subscribe(gateway, &customer, &config).await;
        let links = json!({"product_ids": [two["meter_id"]]});
        gateway.patch(&path_of_config(&config), &links).await.expect(200);
        spend(gateway, &customer, &one).await;
        spend(gateway, &customer, &two).await;
        assert_credits(&shown(gateway, &customer).await, 23, 0);
        assert_eq!(wallet(gateway, &customer).await[0], usd(9));
    });
}

#[test]
fn the_smallest_credit_is_drawn_exactly() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "1").await;
        let customer = new_customer(gateway, "1").await;
        let fields = json!({"included_credit": "0.0000000001", "product_ids": [meter["meter_id"]]});
        subscribe(gateway, &customer, &new_config(gateway, &fields).await).await;
        assert_eq!(wallet(gateway, &customer).await[2], "1.0000000001");
        spend(gateway, &customer, &meter).await;
        let left = "0.0000000001".to_owned();
        assert_eq!(wallet(gateway, &customer).await, [left.clone(), usd(0), left]);
        let ledger = ledger(gateway, &customer).await;
        let drawn: Vec<_> = ledger[2..].iter().map(|line| text(line, "amount")).collect();
        assert_eq!(drawn, ["-0.0000000001", "-0.9999999999"]);
    });
}

#[test]
fn a_config_may_include_no_credit() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let meter = meter_of(gateway, "1").await;
        let customer = new_customer(gateway, "3").await;
        let free = json!({"period_amount": "0", "rollover_type": "full"});
        let config = new_config(gateway, &free).await;
        assert_eq!(config["included_credit"], usd(0));
        subscribe(gateway, &customer, &config).await;
        spend(gateway, &customer, &meter).await;
        pass_days(gateway, 365).await;
        assert_credits(&shown(gateway, &customer).await, 0, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(2), usd(0), usd(2)]);
    });
}

#[test]
fn what_the_wallet_does_not_pay_draws_on_no_credit() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let customer = new_customer(gateway, "0").await;
        let fields = json!({"product_ids": [meter["meter_id"]]});
        subscribe(gateway, &customer, &new_config(gateway, &fields).await).await;
        // A call that the provider refuses.
        gateway.provider.push(ScriptedResponse::json(429, json!({"error": {"message": "no"}})));
        let refused = call_under(gateway, &customer, &meter).send().await;
        assert_eq!(refused.status, 429);
        // A call that the customer does not pay.
        let token = gateway.token(&json!({
            "connection_id": customer.id, "meter_slug": meter["meter_slug"], "disable_billing": true
        }));
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let u = gateway.provider.url("/v1/chat/completions");
        let call = gateway.forward_to(&u).bearer(&token).json(&chat_body());
        call.send().await.expect(200);
        assert_credits(&shown(gateway, &customer).await, 25, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(25)]);
    });
}

#[test]
fn a_spend_key_of_the_wallet_draws_on_its_credit() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let customer = new_customer(gateway, "0").await;
        let fields = json!({"product_ids": [meter["meter_id"]]});
        subscribe(gateway, &customer, &new_config(gateway, &fields).await).await;
        let key = json!({"wallet_id": customer.wallet, "meter_id": meter["meter_id"]});
        let key = gateway.spend_key(&key).await;
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let u = gateway.provider.url("/v1/chat/completions");
        let call = gateway.forward_to(&u).bearer(&key.key).json(&chat_body());
        call.send().await.expect(200);
        assert_credits(&shown(gateway, &customer).await, 21, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(21)]);
    });
}

#[test]
fn a_renewal_that_many_see_at_once_happens_once() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let meter = meter_of(gateway, "1").await;
        let customer = new_customer(gateway, "0").await;
        let fields = json!({"rollover_type": "full", "product_ids": [meter["meter_id"]]});
        let config = new_config(gateway, &fields).await;
        let subscription = subscribe(gateway, &customer, &config).await;
        let path = path_of(&subscription);
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        pass_days(gateway, 62).await;
        let calls: Vec<_> = (0..10).map(|_| call_under(gateway, &customer, &meter)).collect();
        let (called, _, _, read) = tokio::join!(
            join_all(calls.iter().map(TestRequest::send)),
            join_all((0..5).map(|_| shown(gateway, &customer))),
            join_all((0..5).map(|_| wallet(gateway, &customer))),
            join_all((0..5).map(|_| gateway.get(&path))),
        );
        for answer in called.iter().chain(&read) {
            answer.expect(200);
        }
        assert_credits(&shown(gateway, &customer).await, 3 * 25 - 10, 0);
        let ledger = ledger(gateway, &customer).await;
        let granted = ledger.iter().filter(|line| line["kind"] == "credit_grant").count();
        assert_eq!(granted, 3);
    });
}

#[test]
fn bundles_bought_at_once_all_count() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let bundles = json!([{"name": "Small", "cost": "10", "credit_amount": "12"}]);
        let config = new_config(gateway, &json!({"credit_bundles": bundles})).await;
        let subscription = subscribe(gateway, &customer, &config).await;
        let bundle = &config["credit_bundles"][0];
        for answer in join_all((0..10).map(|_| buy(gateway, &subscription, bundle))).await {
            answer.expect(201);
        }
        assert_credits(&shown(gateway, &customer).await, 25, 120);
    });
}

#[test]
fn credit_bought_is_kept_or_expires_by_its_own_rule() {
    each_gateway_by_the_stores_clock(async |gateway| {
        for (cycle_rule, bundle_rule, cycle, bundle) in
            [("full", "none", 50, 0), ("none", "full", 25, 12), ("full", "full", 50, 12)]
        {
            let customer = new_customer(gateway, "0").await;
            let config = new_config(
                gateway,
                &json!({
                    "rollover_type": cycle_rule, "bundle_rollover_type": bundle_rule,
                    "credit_bundles": [{"name": "Small", "cost": "10", "credit_amount": "12"}]
                }),
            )
            .await;
            let subscription = subscribe(gateway, &customer, &config).await;
            buy(gateway, &subscription, &config["credit_bundles"][0]).await.expect(201);
            pass_days(gateway, 31).await;
            assert_credits(&shown(gateway, &customer).await, cycle, bundle);
            let ledger = ledger(gateway, &customer).await;
            let rolled: Vec<_> = ledger.iter().filter(|line| line["kind"] == "rollover").collect();
            let full = [cycle_rule, bundle_rule].iter().filter(|rule| **rule == "full").count();
            assert_eq!(rolled.len(), 2 * full, "out and in for each account: {rolled:#?}");
        }
    });
}

#[test]
fn an_upgrade_takes_effect_at_once_and_starts_a_new_cycle() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let big = json!({"name": "Big", "period_amount": "50", "rollover_type": "none"});
        let big = new_config(gateway, &big).await;
        let upgrades = [
            // The rule and the rollover; then the credit after, lost and due.
            (json!({}), "full", 75, 0, 50),
            (json!({}), "none", 75, 0, 50),
            (json!({"on_upgrade": "carry"}), "none", 75, 0, 50),
            (json!({"on_upgrade": "expire"}), "full", 50, 25, 50),
            // 6 of 30 days of 25 dollars are left.
            (json!({"on_upgrade": "prorate"}), "none", 75, 0, 45),
        ];
        for (rule, rollover, credit, lost, due) in upgrades {
            let customer = new_customer(gateway, "0").await;
            let config = json!({
                "rollover_type": rollover, "billing_interval": "week", "period_amount": "25"
            });
            let config = match rule["on_upgrade"] == "prorate" {
                true => new_config(gateway, &json!({"rollover_type": rollover})).await,
                false => new_config(gateway, &config).await,
            };
            let subscription = subscribe(gateway, &customer, &config).await;
            let cycle = ["cycle_start_at", "cycle_end_at"].map(|name| {
                let at = text(&subscription, name);
                at.parse::<tollgate_domain::Timestamp>().unwrap().unix_micros()
            });
            let passed = match rule["on_upgrade"] == "prorate" {
                true => (cycle[1] - cycle[0]) / 1_000 * 4 / 5,
                false => DAY,
            };
            gateway.store.clock.advance_millis(passed);
            let path = format!("{}/change", path_of(&subscription));
            let body =
                with(json!({"subscription_config_id": big["subscription_config_id"]}), &rule);
            let before = ledger(gateway, &customer).await;
            let preview = with(body.clone(), &json!({"preview": true}));
            let preview = gateway.post(&path, &preview).await.expect(200);
            assert_eq!(names(&preview), ["preview"]);
            let preview = &preview["preview"];
            assert_eq!(ledger(gateway, &customer).await, before, "nothing is written");
            assert_eq!(shown(gateway, &customer).await["name"], "Pro");

            let changed = gateway.post(&path, &body).await.expect(200);
            let now = &changed["subscription"];
            assert_credits(now, credit, 0);
            assert_eq!(preview["credits_after"], now["credits"]);
            assert_eq!(preview["effective_at"], now["cycle_start_at"]);
            assert_eq!(preview["amount_due"], usd(due), "{rule}");
            assert_eq!(preview["credit_lost"], usd(lost), "{rule}");
            assert_eq!(preview["credit_carried"], usd(25 - lost), "{rule}");
            let events = gateway.store.store.clone();
            let merchant_id = gateway.merchant.merchant.merchant_id;
            let page = tollgate_store::Page { after: None, limit: 1 };
            let last = events
                .read(move |conn| tollgate_store::events::list(conn, merchant_id, &page))
                .await
                .unwrap();
            let told = last[0].payload.charge().unwrap().amount_due;
            assert_eq!(told.to_string(), usd(due), "{rule}");
            assert_eq!(now["subscription_id"], subscription["subscription_id"]);
            assert_eq!(now["subscription_config_id"], big["subscription_config_id"]);
            assert_eq!([&now["name"], &now["period_amount"]], [&json!("Big"), &json!(usd(50))]);
            assert_eq!(now["pending_change"], json!(null));
            assert_eq!(now["started_at"], subscription["started_at"]);
        }
    });
}

#[test]
fn a_preview_of_a_change_that_cannot_be_made_is_the_same_error() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let config = new_config(gateway, &json!({})).await;
        let subscription = subscribe(gateway, &customer, &config).await;
        let path = format!("{}/change", path_of(&subscription));
        let unknown = json!({"subscription_config_id": "sbc_01M7XPE601MDSSSD1354KJFSJ9"});
        let bad = json!({"on_upgrade": "keep", "preview": "yes"});
        let bad = with(json!({"subscription_config_id": config["subscription_config_id"]}), &bad);
        assert_issues(&gateway.post(&path, &bad).await, &["on_upgrade", "preview"]);
        for more in [json!({}), json!({"preview": true})] {
            let answer = gateway.post(&path, &with(unknown.clone(), &more)).await;
            assert_refused(&answer, 404, "subscription_config_not_found");
            let answer = gateway
                .post(
                    "/subscriptions/sub_01M7XPE601MDSSSD1354KJFSJ9/change",
                    &with(unknown.clone(), &more),
                )
                .await;
            assert_eq!(answer.status, 404);
        }
    });
}

#[test]
fn an_upgrade_undoes_what_was_pending() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let pro = new_config(gateway, &json!({})).await;
        let big =
            new_config(gateway, &json!({"name": "Big", "period_amount": "25.0000000001"})).await;
        let subscription = subscribe(gateway, &customer, &pro).await;
        gateway.delete(&path_of(&subscription)).await.expect(200);
        change_to(gateway, &subscription, &big).await.expect(200);
        let now = shown(gateway, &customer).await;
        assert_eq!([&now["name"], &now["pending_change"]], [&json!("Big"), &json!(null)]);
        pass_days(gateway, 40).await;
        assert_eq!(shown(gateway, &customer).await["status"], "active");
    });
}

#[test]
fn a_downgrade_waits_for_the_end_of_the_cycle() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let pro = new_config(gateway, &json!({})).await;
        for (name, period) in [("Smaller", "5"), ("Equal", "25"), ("Free", "0")] {
            let customer = new_customer(gateway, "0").await;
            let target = json!({"name": name, "period_amount": period, "included_credit": "4"});
            let target = new_config(gateway, &target).await;
            let subscription = subscribe(gateway, &customer, &pro).await;
            change_to(gateway, &subscription, &target).await.expect(200);
            let pending = shown(gateway, &customer).await;
            assert_eq!(pending["name"], "Pro");
            assert_eq!(pending["pending_change"]["type"], "downgrade");
            assert_eq!(pending["pending_change"]["name"], name);
            assert_eq!(pending["pending_change"]["effective_at"], subscription["cycle_end_at"]);
            assert_credits(&pending, 25, 0);

            pass_days(gateway, 31).await;
            let now = shown(gateway, &customer).await;
            assert_eq!([&now["name"], &now["pending_change"]], [&json!(name), &json!(null)]);
            assert_eq!(now["subscription_id"], subscription["subscription_id"]);
            assert_eq!(now["cycle_start_at"], subscription["cycle_end_at"]);
            assert_credits(&now, 4, 0);
        }
    });
}

#[test]
fn the_last_change_asked_for_is_the_one_that_happens() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let pro = new_config(gateway, &json!({})).await;
        let small = new_config(gateway, &json!({"name": "Small", "period_amount": "5"})).await;
        let tiny = new_config(gateway, &json!({"name": "Tiny", "period_amount": "1"})).await;
        let subscription = subscribe(gateway, &customer, &pro).await;
        change_to(gateway, &subscription, &small).await.expect(200);
        change_to(gateway, &subscription, &tiny).await.expect(200);
        assert_eq!(shown(gateway, &customer).await["pending_change"]["name"], "Tiny");
        pass_days(gateway, 30).await;
        assert_eq!(shown(gateway, &customer).await["name"], "Tiny");
    });
}

#[test]
fn a_change_that_was_undone_does_not_happen() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let pro = new_config(gateway, &json!({})).await;
        let small = new_config(gateway, &json!({"name": "Small", "period_amount": "5"})).await;
        let subscription = subscribe(gateway, &customer, &pro).await;
        for scheduled in [true, false] {
            if scheduled {
                gateway.delete(&path_of(&subscription)).await.expect(200);
            } else {
                change_to(gateway, &subscription, &small).await.expect(200);
            }
            change_to(gateway, &subscription, &pro).await.expect(200);
            assert_eq!(shown(gateway, &customer).await["pending_change"], json!(null));
            pass_days(gateway, 31).await;
            let now = shown(gateway, &customer).await;
            assert_eq!([&now["name"], &now["status"]], ["Pro", "active"]);
        }
    });
}

#[test]
fn a_cancellation_takes_effect_when_the_cycle_ends_and_what_is_left_expires() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let customer = new_customer(gateway, "10").await;
        let config = new_config(
            gateway,
            &json!({
                "rollover_type": "full",
                "credit_bundles": [{"name": "Small", "cost": "10", "credit_amount": "12"}]
            }),
        )
        .await;
        let subscription = subscribe(gateway, &customer, &config).await;
        buy(gateway, &subscription, &config["credit_bundles"][0]).await.expect(201);
        let (path, one) = (path_of(&subscription), json!({"success": true}));
        assert_eq!(gateway.delete(&path).await.expect(200), one);
        assert_eq!(gateway.delete(&path).await.expect(200), one);

        // Nothing changes before the end of the cycle.
        pass_days(gateway, 29).await;
        let pending = shown(gateway, &customer).await;
        assert_eq!(pending["status"], "active");
        assert_credits(&pending, 25, 12);
        pass_days(gateway, 1).await;
        assert_eq!(shown(gateway, &customer).await, json!(null));
        assert_eq!(wallet(gateway, &customer).await, [usd(10), usd(0), usd(10)]);
        let ended = gateway.get(&path).await.expect(200)["subscription"].clone();
        assert_eq!(ended["status"], "cancelled");
        assert_eq!(ended["cancelled_at"], "2026-12-21T00:00:00Z");
        assert_eq!(ended["pending_change"], json!(null));
        assert_credits(&ended, 0, 0);
        let ledger = ledger(gateway, &customer).await;
        let mut expired = lines_from(&ledger, 3);
        expired.sort();
        let expected =
            [("credit_expiry", "bundle_credit", -12, 0), ("credit_expiry", "cycle_credit", -25, 0)];
        assert_eq!(expired, lines(&expected));

        // An ended subscription does not change, and the connection can have another.
        assert_eq!(gateway.delete(&path).await.expect(200), one);
        let changed = change_to(gateway, &subscription, &config).await;
        assert_refused(&changed, 404, "subscription_not_found");
        let bought = buy(gateway, &subscription, &config["credit_bundles"][0]).await;
        assert_refused(&bought, 404, "subscription_not_found");
        pass_days(gateway, 100).await;
        assert_eq!(gateway.get(&path).await.expect(200)["subscription"], ended);
        let next = subscribe(gateway, &customer, &config).await;
        assert_ne!(next["subscription_id"], subscription["subscription_id"]);
        assert_credits(&shown(gateway, &customer).await, 25, 0);
    });
}

#[test]
fn twelve_cycles_that_nobody_saw_are_caught_up_at_once() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let mut customers = Vec::new();
        for rollover in ["full", "none"] {
            let customer = new_customer(gateway, "0").await;
            let config = new_config(gateway, &json!({"rollover_type": rollover})).await;
            subscribe(gateway, &customer, &config).await;
            customers.push(customer);
        }
        pass_days(gateway, 365).await;
        for (customer, credit) in customers.iter().zip([13 * 25, 25]) {
            let now = shown(gateway, customer).await;
            assert_credits(&now, credit, 0);
            assert_cycle(&now, "2027-11-21", "2027-12-21");
            let ledger = ledger(gateway, customer).await;
            let granted = ledger.iter().filter(|line| line["kind"] == "credit_grant").count();
            assert_eq!(granted, 13);
            assert_eq!(shown(gateway, customer).await, now, "once is enough");
        }
    });
}

#[test]
fn whatever_looks_first_after_the_cycles_end_sees_the_new_cycle() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let meter = meter_of(gateway, "25").await;
        let fields = json!({"product_ids": [meter["meter_id"]],
                            "credit_bundles": [{"name": "S", "cost": "1", "credit_amount": "1"}]});
        let config = new_config(gateway, &fields).await;
        let small = json!({"name": "Small", "period_amount": "1"});
        let small = new_config(gateway, &small).await;
        for first in ["wallet", "read", "list", "call", "buy", "change", "ledger", "delete"] {
            let customer = new_customer(gateway, "0").await;
            let subscription = subscribe(gateway, &customer, &config).await;
            spend(gateway, &customer, &meter).await;
            assert_eq!(wallet(gateway, &customer).await[2], usd(0));
            pass_days(gateway, 31).await;
            match first {
                "wallet" => assert_eq!(wallet(gateway, &customer).await[2], usd(25)),
                "read" => {
                    let read = gateway.get(&path_of(&subscription)).await.expect(200);
                    assert_credits(&read["subscription"], 25, 0);
                }
                "list" => {
                    let path = format!("/subscriptions?connection_id={}", customer.id);
                    let list = gateway.get(&path).await.expect(200);
                    assert_credits(&list["data"][0], 25, 0);
                }
                "call" => spend(gateway, &customer, &meter).await,
                "buy" => {
                    let bundle = &config["credit_bundles"][0];
                    let bought = buy(gateway, &subscription, bundle).await.expect(201);
                    assert_credits(&bought["subscription"], 25, 1);
                }
                "change" => {
                    let changed = change_to(gateway, &subscription, &small).await.expect(200);
                    let effective = &changed["subscription"]["pending_change"]["effective_at"];
                    assert_eq!(effective, &changed["subscription"]["cycle_end_at"]);
                    assert_credits(&changed["subscription"], 25, 0);
                }
                "ledger" => {
                    let ledger = ledger(gateway, &customer).await;
                    assert_eq!(ledger.last().unwrap()["kind"], "credit_grant");
                    assert_eq!(ledger.len(), 3, "{ledger:#?}");
                }
                _ => {
                    gateway.delete(&path_of(&subscription)).await.expect(200);
                    let now = shown(gateway, &customer).await;
                    assert_eq!(now["pending_change"]["effective_at"], now["cycle_end_at"]);
                    assert_credits(&now, 25, 0);
                }
            }
        }
    });
}

#[test]
fn a_scheduled_change_in_the_past_counts_from_when_it_was_due() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let pro = new_config(gateway, &json!({"rollover_type": "full"})).await;
        let small = json!({"name": "Small", "period_amount": "5", "rollover_type": "full"});
        let small = new_config(gateway, &small).await;
        let (changed, cancelled) =
            (new_customer(gateway, "0").await, new_customer(gateway, "0").await);
        let subscription = subscribe(gateway, &changed, &pro).await;
        change_to(gateway, &subscription, &small).await.expect(200);
        let ending = subscribe(gateway, &cancelled, &pro).await;
        gateway.delete(&path_of(&ending)).await.expect(200);
        pass_days(gateway, 365).await;
        // One grant of 25, then twelve of 5.
        assert_credits(&shown(gateway, &changed).await, 25 + 12 * 5, 0);
        assert_eq!(shown(gateway, &cancelled).await, json!(null));
        let ended = gateway.get(&path_of(&ending)).await.expect(200);
        assert_eq!(ended["subscription"]["cancelled_at"], "2026-12-21T00:00:00Z");
    });
}

#[test]
fn a_month_ends_on_its_last_day_and_is_counted_from_the_first_start() {
    each_gateway_by_the_stores_clock(async |gateway| {
        pass_days(gateway, TO_JANUARY_31).await;
        let customer = new_customer(gateway, "0").await;
        subscribe(gateway, &customer, &new_config(gateway, &json!({})).await).await;
        let ends = ["2027-01-31", "2027-02-28", "2027-03-31", "2027-04-30", "2027-05-31"];
        for (cycle, days) in ends.windows(2).zip([28, 31, 30, 31]) {
            assert_cycle(&shown(gateway, &customer).await, cycle[0], cycle[1]);
            gateway.store.clock.advance_millis(days * DAY - 1);
            assert_cycle(&shown(gateway, &customer).await, cycle[0], cycle[1]);
            gateway.store.clock.advance_millis(1);
            gateway.store.store.renew_lease().await.unwrap();
        }
    });
}

#[test]
fn a_year_from_the_29th_of_february_ends_on_the_last_of_february() {
    each_gateway_by_the_stores_clock(async |gateway| {
        pass_days(gateway, 465).await;
        let customer = new_customer(gateway, "0").await;
        let yearly = new_config(gateway, &json!({"billing_interval": "year"})).await;
        subscribe(gateway, &customer, &yearly).await;
        let ends = ["2028-02-29", "2029-02-28", "2030-02-28", "2031-02-28", "2032-02-29"];
        for (cycle, days) in ends.windows(2).zip([365, 365, 365, 366]) {
            assert_cycle(&shown(gateway, &customer).await, cycle[0], cycle[1]);
            pass_days(gateway, days).await;
        }
    });
}

#[test]
fn days_and_weeks_are_cycles_too() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let (daily, weekly) = (new_customer(gateway, "0").await, new_customer(gateway, "0").await);
        let day = new_config(gateway, &json!({"billing_interval": "day"})).await;
        let week = new_config(gateway, &json!({"billing_interval": "week"})).await;
        subscribe(gateway, &daily, &day).await;
        subscribe(gateway, &weekly, &week).await;
        assert_cycle(&shown(gateway, &daily).await, "2026-11-21", "2026-11-22");
        assert_cycle(&shown(gateway, &weekly).await, "2026-11-21", "2026-11-28");
        pass_days(gateway, 8).await;
        assert_cycle(&shown(gateway, &daily).await, "2026-11-29", "2026-11-30");
        assert_cycle(&shown(gateway, &weekly).await, "2026-11-28", "2026-12-05");
    });
}

#[test]
fn a_new_included_credit_counts_from_the_next_grant() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let config = new_config(gateway, &json!({})).await;
        subscribe(gateway, &customer, &config).await;
        let more = json!({"included_credit": "40"});
        gateway.patch(&path_of_config(&config), &more).await.expect(200);
        assert_credits(&shown(gateway, &customer).await, 25, 0);
        pass_days(gateway, 31).await;
        let now = shown(gateway, &customer).await;
        assert_credits(&now, 40, 0);
        assert_eq!(now["included_credit"], usd(40));
    });
}

#[test]
fn credit_of_a_bundle_outlives_the_bundle() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let bundles = json!([{"name": "Small", "cost": "10", "credit_amount": "12"}]);
        let config = new_config(gateway, &json!({"credit_bundles": bundles})).await;
        let subscription = subscribe(gateway, &customer, &config).await;
        let bundle = &config["credit_bundles"][0];
        buy(gateway, &subscription, bundle).await.expect(201);
        buy(gateway, &subscription, bundle).await.expect(201);
        let delete = json!({"credit_bundles": [
            {"credit_bundle_id": bundle["credit_bundle_id"], "is_deleted": true}
        ]});
        gateway.patch(&path_of_config(&config), &delete).await.expect(200);
        assert_credits(&shown(gateway, &customer).await, 25, 24);
        let again = buy(gateway, &subscription, bundle).await;
        assert_refused(&again, 404, "credit_bundle_not_found");
        assert_credits(&shown(gateway, &customer).await, 25, 24);
    });
}

#[test]
fn a_connection_has_one_active_subscription() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let (one, two) =
            (new_config(gateway, &json!({})).await, new_config(gateway, &json!({})).await);
        let first = subscribe(gateway, &customer, &one).await;
        for config in [&one, &two] {
            let body = json!({
                "connection_id": customer.id,
                "subscription_config_id": config["subscription_config_id"]
            });
            let answer = gateway.post("/subscriptions", &body).await;
            assert_refused(&answer, 409, "subscription_exists");
        }
        // A subscription that is to end stays active until then.
        gateway.delete(&path_of(&first)).await.expect(200);
        let body = json!({
            "connection_id": customer.id, "subscription_config_id": two["subscription_config_id"]
        });
        let answer = gateway.post("/subscriptions", &body).await;
        assert_refused(&answer, 409, "subscription_exists");
        assert_credits(&shown(gateway, &customer).await, 25, 0);
    });
}

#[test]
fn of_many_subscriptions_at_once_one_is_made() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let config = new_config(gateway, &json!({})).await;
        let body = json!({
            "connection_id": customer.id,
            "subscription_config_id": config["subscription_config_id"]
        });
        let answers = join_all((0..8).map(|_| gateway.post("/subscriptions", &body))).await;
        let made = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(made, 1);
        for answer in answers.iter().filter(|answer| answer.status != 201) {
            assert_refused(answer, 409, "subscription_exists");
        }
        assert_credits(&shown(gateway, &customer).await, 25, 0);
        assert_eq!(ledger(gateway, &customer).await.len(), 1);
    });
}

#[test]
fn subscriptions_are_filtered_by_connection_and_status() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let config = new_config(gateway, &json!({})).await;
        let (one, two) = (new_customer(gateway, "0").await, new_customer(gateway, "0").await);
        let ended = subscribe(gateway, &one, &config).await;
        gateway.delete(&path_of(&ended)).await.expect(200);
        pass_days(gateway, 31).await;
        let active = subscribe(gateway, &one, &config).await;
        let others = subscribe(gateway, &two, &config).await;
        let id = |subscription: &Value| text(subscription, "subscription_id");
        for (query, expected) in [
            (String::new(), vec![&others, &active]),
            ("status=active".to_owned(), vec![&others, &active]),
            ("status=cancelled".to_owned(), vec![&ended]),
            ("status=all".to_owned(), vec![&others, &active, &ended]),
            (format!("connection_id={}", one.id), vec![&active]),
            (format!("customer_id={}&status=all", one.id), vec![&active, &ended]),
            (format!("connection_id={}&status=cancelled", two.id), vec![]),
        ] {
            let found =
                listed(gateway, &format!("/subscriptions?{query}"), "subscription_id", 2).await;
            let expected: Vec<_> = expected.into_iter().map(id).collect();
            assert_eq!(found, expected, "{query}");
        }
        let bad = gateway.get("/subscriptions?status=paused&connection_id=x&limit=0").await;
        assert_issues(&bad, &["status", "connection_id", "limit"]);
    });
}

#[test]
fn a_subscription_that_is_due_to_end_is_listed_as_ended_whoever_asks_first() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let config = new_config(gateway, &json!({})).await;
        let customer = new_customer(gateway, "0").await;
        let subscription = subscribe(gateway, &customer, &config).await;
        gateway.delete(&path_of(&subscription)).await.expect(200);
        pass_days(gateway, 31).await;
        let active = listed(gateway, "/subscriptions", "subscription_id", 10).await;
        assert_eq!(active, Vec::<String>::new());
        let ended = gateway.get("/subscriptions?status=cancelled").await.expect(200);
        assert_eq!(ended["data"][0]["subscription_id"], subscription["subscription_id"]);
        assert_eq!(ended["data"][0]["status"], "cancelled");
    });
}

#[test]
fn every_bad_field_of_a_subscription_is_named() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let config = new_config(gateway, &json!({})).await;
        let subscription = subscribe(gateway, &customer, &config).await;
        let path = path_of(&subscription);
        let (change, bundles) = (format!("{path}/change"), format!("{path}/bundles"));
        for (path, body, issues) in [
            ("/subscriptions", json!({}), vec!["connection_id", "subscription_config_id"]),
            (
                "/subscriptions",
                json!({"connection_id": 1, "subscription_config_id": null, "colour": 1}),
                vec!["colour", "connection_id", "subscription_config_id"],
            ),
            (change.as_str(), json!({}), vec!["subscription_config_id"]),
            (
                change.as_str(),
                json!({"subscription_config_id": [], "x": 1}),
                vec!["subscription_config_id", "x"],
            ),
            (bundles.as_str(), json!({}), vec!["credit_bundle_id"]),
            (
                bundles.as_str(),
                json!({"credit_bundle_id": 1, "quantity": 2}),
                vec!["credit_bundle_id", "quantity"],
            ),
        ] {
            assert_issues(&gateway.post(path, &body).await, &issues);
        }
    });
}

#[test]
fn a_customer_id_is_a_connection_id() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let config = new_config(gateway, &json!({})).await;
        let body = json!({
            "customer_id": customer.id, "subscription_config_id": config["subscription_config_id"]
        });
        let made = gateway.post("/subscriptions", &body).await.expect(201);
        assert_eq!(made["subscription"]["connection_id"], customer.id);
    });
}

#[test]
fn a_post_that_is_repeated_under_its_key_is_done_once() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let small = json!([{"name": "Small", "cost": "10", "credit_amount": "12"}]);
        let config_body = json!({
            "name": "Pro", "period_amount": "25", "billing_interval": "month", "credit_bundles": small
        });
        let twice = async |path: &str, key: &str, body: &Value, other: &Value, status: u16| {
            let call = gateway.call("POST", path).header("idempotency-key", key).json(body);
            let (one, two) = (call.clone(), call.clone());
            let answers = tokio::join!(one.send(), two.send());
            let first = answers.0.expect(status);
            assert_eq!(answers.1.expect(status), first);
            assert_eq!(call.send().await.expect(status), first);
            let other = gateway.call("POST", path).header("idempotency-key", key).json(other);
            let other = other.send().await;
            assert_refused(&other, 409, "idempotency_key_reused");
            first
        };
        let config = twice(
            "/subscription_configs",
            "k1",
            &config_body,
            &with(config_body.clone(), &json!({"name": "Other"})),
            201,
        )
        .await;
        let configs = gateway.get("/subscription_configs").await.expect(200);
        assert_eq!(configs["data"], json!([config]));
        let body = json!({
            "connection_id": customer.id, "subscription_config_id": config["subscription_config_id"]
        });
        let other_config = json!({"subscription_config_id": "sbc_01M7YS5040NCSYBM5NZVE98902"});
        let made =
            twice("/subscriptions", "k2", &body, &with(body.clone(), &other_config), 201).await;
        let path = path_of(&made["subscription"]);
        let bundle = json!({"credit_bundle_id": config["credit_bundles"][0]["credit_bundle_id"]});
        twice(
            &format!("{path}/bundles"),
            "k3",
            &bundle,
            &json!({"credit_bundle_id": "cbn_01M7YS5040NCSYBM5NZVE98902"}),
            201,
        )
        .await;
        assert_credits(&shown(gateway, &customer).await, 25, 12);
        let target = json!({"subscription_config_id": config["subscription_config_id"]});
        twice(&format!("{path}/change"), "k4", &target, &other_config, 200).await;
        assert_eq!(ledger(gateway, &customer).await.len(), 2);
    });
}

#[test]
fn nothing_of_another_merchants_is_there() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let small = json!([{"name": "Small", "cost": "10", "credit_amount": "12"}]);
        let config = new_config(gateway, &json!({"credit_bundles": small})).await;
        let bundle = &config["credit_bundles"][0];
        let subscription = subscribe(gateway, &customer, &config).await;

        let stranger = gateway.store.merchant().await;
        let connection = gateway.store.connection(stranger.merchant.merchant_id, "0").await;
        let as_stranger = async |method: &str, path: &str, body: &Value| {
            let call = gateway.call_without_key(method, path).bearer(stranger.key.reveal());
            call.json(body).send().await
        };
        let own_config = as_stranger(
            "POST",
            "/subscription_configs",
            &json!({"name": "Own", "period_amount": "1", "billing_interval": "day",
                    "credit_bundles": small}),
        )
        .await
        .expect(201);
        let own = json!({
            "connection_id": connection.connection_id.to_string(),
            "subscription_config_id": own_config["subscription_config_id"]
        });
        let their_bundle = json!({"credit_bundle_id": bundle["credit_bundle_id"]});
        let their_config = json!({"subscription_config_id": config["subscription_config_id"]});
        let own_subscription = as_stranger("POST", "/subscriptions", &own).await.expect(201);
        let own_path = path_of(&own_subscription["subscription"]);

        let (at_config, at) = (path_of_config(&config), path_of(&subscription));
        let at_bundle = format!("/credit_bundles/{}", text(bundle, "credit_bundle_id"));
        let at_connection = format!("/connections/{}/subscription", customer.id);
        let (at_change, at_bundles) = (format!("{at}/change"), format!("{at}/bundles"));
        let (own_change, own_bundles) =
            (format!("{own_path}/change"), format!("{own_path}/bundles"));
        let nothing = json!({});
        let own_config_only =
            json!({"subscription_config_id": own_config["subscription_config_id"]});
        let own_bundle =
            json!({"credit_bundle_id": own_config["credit_bundles"][0]["credit_bundle_id"]});
        let other_connection = with(own.clone(), &json!({"connection_id": customer.id}));
        let other_config = with(own.clone(), &their_config);
        for (method, path, body, noun) in [
            ("GET", &at_config, &nothing, "subscription_config"),
            ("PATCH", &at_config, &json!({"name": "Mine"}), "subscription_config"),
            ("DELETE", &at_config, &nothing, "subscription_config"),
            ("GET", &at_bundle, &nothing, "credit_bundle"),
            ("GET", &at_connection, &nothing, "connection"),
            ("GET", &at, &nothing, "subscription"),
            ("DELETE", &at, &nothing, "subscription"),
            ("POST", &at_change, &own_config_only, "subscription"),
            ("POST", &at_bundles, &own_bundle, "subscription"),
            ("POST", &own_change, &their_config, "subscription_config"),
            ("POST", &own_bundles, &their_bundle, "credit_bundle"),
            ("POST", &"/subscriptions".to_owned(), &other_connection, "connection"),
            ("POST", &"/subscriptions".to_owned(), &other_config, "subscription_config"),
        ] {
            let answer = as_stranger(method, path, body).await;
            assert_refused(&answer, 404, &format!("{noun}_not_found"));
        }
        for path in [
            format!("/subscriptions?status=all&connection_id={}", customer.id),
            format!(
                "/credit_bundles?subscription_config_id={}",
                text(&config, "subscription_config_id")
            ),
        ] {
            let list = as_stranger("GET", &path, &nothing).await.expect(200);
            assert_eq!(list["data"], json!([]), "{path}");
        }
        let configs = as_stranger("GET", "/subscription_configs", &nothing).await.expect(200);
        assert_eq!(configs["data"], json!([own_config]));
        assert_eq!(gateway.get(&at_config).await.expect(200), config);
        assert_eq!(gateway.get(&at).await.expect(200)["subscription"], subscription);
    });
}

#[test]
fn what_was_never_there_is_not_found_either() {
    each_gateway(async |gateway| {
        for (path, code) in [
            (
                "/subscription_configs/sbc_01M7YS5040NCSYBM5NZVE98902",
                "subscription_config_not_found",
            ),
            ("/subscription_configs/x", "subscription_config_not_found"),
            ("/credit_bundles/cbn_01M7YS5040NCSYBM5NZVE98902", "credit_bundle_not_found"),
            ("/credit_bundles/sbc_01M7YS5040NCSYBM5NZVE98902", "credit_bundle_not_found"),
            ("/subscriptions/x", "subscription_not_found"),
            ("/connections/con_01M7YS5040NCSYBM5NZVE98902/subscription", "connection_not_found"),
            ("/connections/x/subscription", "connection_not_found"),
        ] {
            assert_refused(&gateway.get(path).await, 404, code);
        }
        let customer = new_customer(gateway, "0").await;
        let made = new_config(gateway, &json!({})).await;
        let subscription = subscribe(gateway, &customer, &made).await;
        let nowhere = json!({"subscription_config_id": "sbc_01M7YS5040NCSYBM5NZVE98902",
                             "credit_bundle_id": "cbn_01M7YS5040NCSYBM5NZVE98902"});
        let changed = change_to(gateway, &subscription, &nowhere).await;
        assert_refused(&changed, 404, "subscription_config_not_found");
        let bought = buy(gateway, &subscription, &nowhere).await;
        assert_refused(&bought, 404, "credit_bundle_not_found");
        // A bundle can be bought only with the configuration that it belongs to.
        let small = json!([{"name": "Small", "cost": "10", "credit_amount": "12"}]);
        let other = new_config(gateway, &json!({"credit_bundles": small})).await;
        let bought = buy(gateway, &subscription, &other["credit_bundles"][0]).await;
        assert_refused(&bought, 404, "credit_bundle_not_found");
        assert_credits(&shown(gateway, &customer).await, 25, 0);
    });
}

#[test]
fn only_a_secret_key_opens_these_operations() {
    each_gateway(async |gateway| {
        let customer = new_customer(gateway, "0").await;
        let config = new_config(gateway, &json!({})).await;
        let subscription = subscribe(gateway, &customer, &config).await;
        let spend_key = gateway.spend_key(&json!({})).await;
        let (at_config, at) = (path_of_config(&config), path_of(&subscription));
        for (method, path) in [
            ("POST", "/subscription_configs".to_owned()),
            ("GET", "/subscription_configs".to_owned()),
            ("GET", at_config.clone()),
            ("PATCH", at_config.clone()),
            ("DELETE", at_config),
            ("GET", "/credit_bundles".to_owned()),
            ("GET", "/credit_bundles/cbn_x".to_owned()),
            ("POST", "/subscriptions".to_owned()),
            ("GET", "/subscriptions".to_owned()),
            ("GET", at.clone()),
            ("DELETE", at.clone()),
            ("POST", format!("{at}/change")),
            ("POST", format!("{at}/bundles")),
            ("GET", format!("/connections/{}/subscription", customer.id)),
        ] {
            let call = || gateway.call_without_key(method, &path);
            assert_refused(&call().send().await, 401, "auth_header_missing");
            assert_refused(&call().bearer("tgs_nonsense").send().await, 401, "auth_invalid");
            let operator = call().bearer(support::OPERATOR_TOKEN).send().await;
            assert_refused(&operator, 401, "auth_invalid");
            let spend = call().bearer(&spend_key.key).send().await;
            assert_refused(&spend, 403, "operation_not_allowed");
        }
        assert_eq!(gateway.get(&at).await.expect(200)["subscription"], subscription);
    });
}

#[test]
fn thirty_calls_at_once_draw_every_dollar_once() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "1").await;
        let customer = new_customer(gateway, "5").await;
        let config = new_config(
            gateway,
            &json!({
                "included_credit": "14", "product_ids": [meter["meter_id"]],
                "credit_bundles": [{"name": "Small", "cost": "3", "credit_amount": "6"}]
            }),
        )
        .await;
        let subscription = subscribe(gateway, &customer, &config).await;
        buy(gateway, &subscription, &config["credit_bundles"][0]).await.expect(201);
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let calls: Vec<_> = (0..30).map(|_| call_under(gateway, &customer, &meter)).collect();
        let answers = join_all(calls.iter().map(TestRequest::send)).await;
        let paid = answers.iter().filter(|answer| answer.status == 200).count();
        assert_eq!(paid, 25, "14 of the cycle, 6 of the bundle, 5 of the balance");
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            assert_refused(answer, 402, "wallet_balance_insufficient");
        }
        assert_credits(&shown(gateway, &customer).await, 0, 0);
        assert_eq!(wallet(gateway, &customer).await, [usd(0), usd(0), usd(0)]);

        let ledger = ledger(gateway, &customer).await;
        let drawn = |account: &str| {
            let of = |line: &&Value| line["kind"] == "usage" && line["account"] == account;
            ledger.iter().filter(of).map(|line| text(line, "amount")).collect::<Vec<_>>()
        };
        for (account, dollars) in [("cycle_credit", 14), ("bundle_credit", 6), ("balance", 5)] {
            assert_eq!(drawn(account), vec![usd(-1); dollars], "{account}");
        }
        let records = gateway.records().await;
        assert_eq!(records.len(), 25);
        let mut payers: Vec<_> = records.iter().map(|record| text(record, "request_id")).collect();
        let mut paid: Vec<_> = ledger
            .iter()
            .filter_map(|line| line["request_id"].as_str().map(str::to_owned))
            .collect();
        payers.sort();
        paid.sort();
        assert_eq!(paid, payers, "one line per call");
    });
}
