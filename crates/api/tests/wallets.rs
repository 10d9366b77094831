//! The API of connections and wallets: every operation, its bounds, and its effects.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tollgate_testkit::{Gate, ScriptedResponse, TestRequest};

use crate::support::{
    self, Gateway, assert_issues, assert_refused, chat_answer, chat_body, each_gateway, names, text,
};

/// Valid ids of resources that do not exist.
const NO_CONNECTION: &str = "con_01M7YS5040NCSYBM5NZVE98902";
const NO_WALLET: &str = "wal_01M7YS5040NCSYBM5NZVE98902";

async fn connect(gateway: &Gateway<'_>, body: &Value) -> Value {
    gateway.post("/connections", body).await.expect(201)
}

fn wallet_path(connection: &Value) -> String {
    format!("/wallets/{}", text(connection, "wallet_id"))
}

fn connection_path(connection: &Value) -> String {
    format!("/connections/{}", text(connection, "connection_id"))
}

async fn book(gateway: &Gateway<'_>, connection: &Value, what: &str, amount: &str) -> Value {
    let path = format!("{}/{what}", wallet_path(connection));
    gateway.post(&path, &json!({"amount": amount})).await.expect(201)
}

/// Balance, held and available of a connection's wallet.
async fn wallet(gateway: &Gateway<'_>, connection: &Value) -> [String; 3] {
    let wallet = gateway.get(&wallet_path(connection)).await.expect(200);
    ["balance", "held", "available"].map(|name| text(&wallet, name))
}

fn usd(dollars: [i64; 3]) -> [String; 3] {
    dollars.map(|dollars| format!("{dollars}.0000000000"))
}

/// A meter under which a call costs the wallet exactly this number of dollars.
async fn meter_of(gateway: &Gateway<'_>, dollars: &str) -> Value {
    let meter = json!({
        "name": "Calls", "rate_type": "fixed", "tier_type": "requests", "base_cost_payer": "merchant",
        "service_charge_payer": "merchant", "tiers": [{"start": "0", "rate": dollars}]
    });
    gateway.post("/meters", &meter).await.expect(201)
}

fn call_under(gateway: &Gateway<'_>, connection: &Value, meter: &Value) -> TestRequest {
    let fields = json!({
        "connection_id": connection["connection_id"], "meter_slug": meter["meter_slug"]
    });
    let u = gateway.provider.url("/v1/chat/completions");
    gateway.forward_to(&u).bearer(&gateway.token(&fields)).json(&chat_body())
}

// Connections.

#[test]
fn a_connection_has_these_fields_and_a_wallet_of_its_own() {
    each_gateway(async |gateway| {
        let bare = connect(gateway, &json!({})).await;
        let expected = json!({
            "connection_id": bare["connection_id"], "reference_id": null, "name": null, "email": null,
            "metadata": {}, "wallet_id": bare["wallet_id"], "status": "active",
            "report": null, "budget_id": null, "created_at": bare["created_at"]
        });
        assert_eq!(bare, expected);
        assert!(text(&bare, "connection_id").starts_with("con_"));
        assert!(text(&bare, "wallet_id").starts_with("wal_"));
        assert_eq!(gateway.get(&connection_path(&bare)).await.expect(200), bare);

        let body = json!({
            "reference_id": "r", "name": "Ada", "email": "a@b.c", "metadata": {"plan": "gold"}
        });
        let full = connect(gateway, &body).await;
        for field in ["reference_id", "name", "email", "metadata"] {
            assert_eq!(full[field], body[field], "{field}");
        }
        assert_ne!(full["wallet_id"], bare["wallet_id"]);

        let wallet = gateway.get(&wallet_path(&bare)).await.expect(200);
        let zero = "0.0000000000";
        let expected = json!({
            "wallet_id": bare["wallet_id"], "balance": zero, "held": zero, "available": zero,
            "overdraft_limit": zero, "low_balance_threshold": null, "created_at": wallet["created_at"]
        });
        assert_eq!(wallet, expected);
    });
}

#[test]
fn a_known_reference_is_answered_with_its_connection_also_when_asked_at_once() {
    each_gateway(async |gateway| {
        let body = json!({"reference_id": "customer 1", "name": "Ada"});
        let answers = join_all((0..8).map(|_| gateway.post("/connections", &body))).await;
        assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
        let first = answers[0].json();
        for answer in &answers {
            assert!([200, 201].contains(&answer.status));
            assert_eq!(answer.json(), first);
        }
        let renamed = json!({"reference_id": "customer 1", "name": "B"});
        let other = gateway.post("/connections", &renamed).await;
        assert_eq!(other.expect(200), first, "unchanged");

        // Another merchant can use the same reference.
        let stranger = gateway.store.merchant().await;
        let theirs = gateway.call_without_key("POST", "/connections").bearer(stranger.key.reveal());
        let theirs = theirs.json(&body).send().await.expect(201);
        assert_ne!(theirs["connection_id"], first["connection_id"]);
    });
}

#[test]
fn a_connection_is_changed_field_by_field() {
    each_gateway(async |gateway| {
        let body = json!({
            "reference_id": "r", "name": "Ada", "email": "a@b.c", "metadata": {"plan": "gold"}
        });
        let made = connect(gateway, &body).await;
        let path = connection_path(&made);
        assert_eq!(gateway.patch(&path, &json!({})).await.expect(200), made);
        assert_eq!(gateway.patch(&path, &made).await.expect(200), made, "sent back as read");
        for (field, sent, seen) in [
            ("name", json!("Bea"), json!("Bea")),
            ("name", json!(null), json!(null)),
            ("email", json!("b@b.c"), json!("b@b.c")),
            ("email", json!(null), json!(null)),
            ("metadata", json!({"team": "blue"}), json!({"team": "blue"})),
            ("metadata", json!({}), json!({})),
        ] {
            let mut expected = gateway.get(&path).await.expect(200);
            expected[field] = seen;
            let changed = gateway.patch(&path, &json!({field: sent})).await.expect(200);
            assert_eq!(changed, expected);
            assert_eq!(gateway.get(&path).await.expect(200), expected);
        }
    });
}

#[test]
fn every_bad_field_of_a_connection_is_named() {
    each_gateway(async |gateway| {
        let long = "x".repeat(256);
        let made = connect(gateway, &json!({"name": "Ada"})).await;
        let many: serde_json::Map<_, _> =
            (0..101).map(|number| (format!("k{number}"), json!("v"))).collect();
        for (field, value, path) in [
            ("name", json!(""), "name"),
            ("name", json!(long), "name"),
            ("name", json!([]), "name"),
            ("email", json!(1), "email"),
            ("metadata", json!("x"), "metadata"),
            ("metadata", json!(many), "metadata"),
            ("metadata", json!({"a b": "x"}), "metadata.a b"),
            ("metadata", json!({"a": 1}), "metadata.a"),
            ("metadata", json!({"a": ""}), "metadata.a"),
            ("metadata", json!({"a": long}), "metadata.a"),
            ("colour", json!("blue"), "colour"),
        ] {
            let body = json!({field: value});
            assert_issues(&gateway.post("/connections", &body).await, &[path]);
            assert_issues(&gateway.patch(&connection_path(&made), &body).await, &[path]);
        }
        for reference in [json!(""), json!(1), json!(long)] {
            let body = json!({"reference_id": reference});
            assert_issues(&gateway.post("/connections", &body).await, &["reference_id"]);
        }
        let own = json!({"wallet_id": made["wallet_id"]});
        assert_issues(&gateway.post("/connections", &own).await, &["wallet_id"]);
        assert_eq!(gateway.get(&connection_path(&made)).await.expect(200), made);
    });
}

#[test]
fn a_deleted_connection_pays_for_nothing_more_and_keeps_its_wallet_and_records() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let made = connect(gateway, &json!({"reference_id": "r"})).await;
        let path = connection_path(&made);
        book(gateway, &made, "credits", "10").await;
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        call_under(gateway, &made, &meter).send().await.expect(200);

        assert_eq!(gateway.delete(&path).await.expect(200), json!({"success": true}));
        let call = call_under(gateway, &made, &meter).send().await;
        assert_refused(&call, 403, "connection_disabled");
        gateway.provider.assert_calls(1);
        let mut expected = made.clone();
        expected["status"] = json!("deleted");
        assert_eq!(gateway.get(&path).await.expect(200), expected);
        assert_refused(&gateway.delete(&path).await, 404, "connection_not_found");
        let renamed = gateway.patch(&path, &json!({"name": "x"})).await;
        assert_refused(&renamed, 404, "connection_not_found");

        assert_eq!(wallet(gateway, &made).await, usd([6, 0, 6]));
        assert_eq!(gateway.record().await["connection_id"], made["connection_id"]);
        book(gateway, &made, "debits", "6").await;
        assert_eq!(wallet(gateway, &made).await, usd([0, 0, 0]), "the rest can be paid out");

        let again = connect(gateway, &json!({"reference_id": "r"})).await;
        assert_ne!(again["connection_id"], made["connection_id"]);
    });
}

#[test]
fn a_call_on_its_way_is_paid_by_a_connection_that_is_deleted_meanwhile() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let made = connect(gateway, &json!({})).await;
        book(gateway, &made, "credits", "10").await;
        let gate = Gate::new();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let call = call_under(gateway, &made, &meter);
        let path = connection_path(&made);
        let gone = async {
            gateway.provider.wait_for_calls(1).await;
            assert_eq!(wallet(gateway, &made).await, usd([10, 4, 6]));
            gateway.delete(&path).await.expect(200);
            gate.open();
        };
        let (answer, ()) = tokio::join!(call.send(), gone);
        answer.expect(200);
        assert_eq!(wallet(gateway, &made).await, usd([6, 0, 6]));
    });
}

#[test]
fn a_deleted_connection_subscribes_to_nothing() {
    each_gateway(async |gateway| {
        let config = json!({"name": "Pro", "period_amount": "25", "billing_interval": "month"});
        let config = gateway.post("/subscription_configs", &config).await.expect(201);
        let body = |connection: &Value| {
            json!({
                "connection_id": connection["connection_id"],
                "subscription_config_id": config["subscription_config_id"]
            })
        };
        let made = connect(gateway, &json!({})).await;
        gateway.delete(&connection_path(&made)).await.expect(200);
        let answer = gateway.post("/subscriptions", &body(&made)).await;
        assert_refused(&answer, 403, "connection_disabled");
        let path = format!("{}/subscription", connection_path(&made));
        assert_eq!(gateway.get(&path).await.expect(200), json!({"subscription": null}));

        // A subscription ends with its connection, and its credit with it; the balance stays.
        let made = connect(gateway, &json!({})).await;
        book(gateway, &made, "credits", "3").await;
        let subscribed = gateway.post("/subscriptions", &body(&made)).await.expect(201);
        assert_eq!(wallet(gateway, &made).await, usd([3, 0, 28]));
        gateway.delete(&connection_path(&made)).await.expect(200);
        let id = text(&subscribed["subscription"], "subscription_id");
        let ended = gateway.get(&format!("/subscriptions/{id}")).await.expect(200);
        assert_eq!(ended["subscription"]["status"], "cancelled");
        assert!(ended["subscription"]["cancelled_at"].is_string());
        assert_eq!(wallet(gateway, &made).await, usd([3, 0, 3]));
    });
}

// Wallets.

#[test]
fn the_merchants_own_wallet_is_a_running_account() {
    each_gateway(async |gateway| {
        let own = gateway.get("/wallet").await.expect(200);
        let zero = "0.0000000000";
        let expected = json!({
            "wallet_id": own["wallet_id"], "balance": zero, "held": zero, "available": own["available"],
            "overdraft_limit": null, "low_balance_threshold": null, "created_at": own["created_at"]
        });
        assert_eq!(own, expected);
        let path = format!("/wallets/{}", text(&own, "wallet_id"));
        assert_eq!(gateway.get(&path).await.expect(200), own);

        // The merchant's own wallet pays for its calls without any money.
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let u = gateway.provider.url("/v1/chat/completions");
        let bare = gateway.forward_to(&u).bearer(gateway.key()).json(&chat_body());
        bare.send().await.expect(200);
        assert_eq!(gateway.get("/wallet").await.expect(200)["balance"], "-0.0020000000");
        let lines = gateway.get(&format!("{path}/transactions")).await.expect(200);
        let line = &lines["data"][0];
        assert_eq!([&line["kind"], &line["amount"]], ["usage", "-0.0020000000"]);

        // With a limit, calls are refused when it is reached.
        gateway.patch(&path, &json!({"overdraft_limit": "0.001"})).await.expect(200);
        let refused = gateway.forward_to(&u).bearer(gateway.key()).json(&chat_body()).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
    });
}

#[test]
fn an_overdraft_is_money_that_may_be_spent() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "4").await;
        let made = connect(gateway, &json!({})).await;
        let refused = call_under(gateway, &made, &meter).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
        gateway.provider.assert_calls(0);

        let path = wallet_path(&made);
        let limited = gateway.patch(&path, &json!({"overdraft_limit": "5"})).await.expect(200);
        assert_eq!(limited["overdraft_limit"], "5.0000000000");
        assert_eq!(wallet(gateway, &made).await, usd([0, 0, 5]));
        for left in [1, -3] {
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            call_under(gateway, &made, &meter).send().await.expect(200);
            assert_eq!(wallet(gateway, &made).await, usd([left - 5, 0, left]));
        }
        let refused = call_under(gateway, &made, &meter).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
        assert_eq!(refused.header("retry-after"), None, "waiting does not help");

        // Without a limit all calls pass, and a new limit applies at once.
        gateway.patch(&path, &json!({"overdraft_limit": null})).await.expect(200);
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        call_under(gateway, &made, &meter).send().await.expect(200);
        let none = gateway.patch(&path, &json!({"overdraft_limit": "0"})).await.expect(200);
        assert_eq!([&none["balance"], &none["available"]], ["-12.0000000000", "-12.0000000000"]);
        let refused = call_under(gateway, &made, &meter).send().await;
        assert_refused(&refused, 402, "wallet_balance_insufficient");
    });
}

#[test]
fn a_call_that_costs_the_wallet_nothing_is_not_refused_for_its_balance() {
    each_gateway(async |gateway| {
        let meter = meter_of(gateway, "0").await;
        let made = connect(gateway, &json!({})).await;
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        call_under(gateway, &made, &meter).send().await.expect(200);
        assert_eq!(wallet(gateway, &made).await, usd([0, 0, 0]));
    });
}

#[test]
fn limits_of_a_wallet_are_set_cleared_and_left_alone() {
    each_gateway(async |gateway| {
        let made = connect(gateway, &json!({})).await;
        let path = wallet_path(&made);
        let limits = json!({"overdraft_limit": "0.0000000001", "low_balance_threshold": "0"});
        let set = gateway.patch(&path, &limits).await.expect(200);
        assert_eq!(set["overdraft_limit"], "0.0000000001");
        assert_eq!(set["low_balance_threshold"], "0.0000000000");
        assert_eq!(gateway.patch(&path, &json!({})).await.expect(200), set);
        assert_eq!(gateway.patch(&path, &set).await.expect(200), set, "sent back as read");
        let cleared =
            gateway.patch(&path, &json!({"low_balance_threshold": null})).await.expect(200);
        assert_eq!(cleared["low_balance_threshold"], json!(null));
        assert_eq!(cleared["overdraft_limit"], "0.0000000001");
        for (body, issues) in [
            (json!({"overdraft_limit": 1}), vec!["overdraft_limit"]),
            (json!({"overdraft_limit": "-1"}), vec!["overdraft_limit"]),
            (json!({"overdraft_limit": "0.00000000001"}), vec!["overdraft_limit"]),
            (json!({"overdraft_limit": "1e2"}), vec!["overdraft_limit"]),
            (json!({"overdraft_limit": ""}), vec!["overdraft_limit"]),
            (
                json!({"overdraft_limit": "x", "low_balance_threshold": "-1", "colour": 1}),
                vec!["colour", "low_balance_threshold", "overdraft_limit"],
            ),
        ] {
            assert_issues(&gateway.patch(&path, &body).await, &issues);
        }
        assert_eq!(gateway.get(&path).await.expect(200), cleared);
    });
}

#[test]
fn a_credit_and_a_debit_are_lines_of_the_ledger() {
    each_gateway(async |gateway| {
        let made = connect(gateway, &json!({})).await;
        let path = wallet_path(&made);
        let body = json!({"amount": "0.0000000001", "description": "A trifle"});
        let credit = gateway.post(&format!("{path}/credits"), &body).await.expect(201);
        let expected = json!({
            "transaction_id": credit["transaction_id"], "wallet_id": made["wallet_id"],
            "kind": "credit", "account": "balance", "amount": "0.0000000001",
            "balance_after": "0.0000000001", "description": "A trifle",
            "created_at": credit["created_at"]
        });
        assert_eq!(credit, expected);
        assert!(text(&credit, "transaction_id").starts_with("txn_"));

        // A debit may take the balance below zero.
        let debit = book(gateway, &made, "debits", "2.5").await;
        assert_eq!(
            [&debit["kind"], &debit["amount"], &debit["balance_after"]],
            ["debit", "-2.5000000000", "-2.4999999999"]
        );
        assert_eq!(debit.get("description"), None);
        let list = gateway.get(&format!("{path}/transactions")).await.expect(200);
        let expected = json!({"data": [debit, credit], "has_more": false, "next_cursor": ""});
        assert_eq!(list, expected);
        let wallet = gateway.get(&path).await.expect(200);
        assert_eq!(wallet["available"], "-2.4999999999");
    });
}

#[test]
fn every_bad_field_of_a_credit_or_debit_is_named_and_nothing_is_booked() {
    each_gateway(async |gateway| {
        let made = connect(gateway, &json!({})).await;
        let path = wallet_path(&made);
        for what in ["credits", "debits"] {
            for (body, issues) in [
                (json!({}), vec!["amount"]),
                (json!({"amount": null}), vec!["amount"]),
                (json!({"amount": "0"}), vec!["amount"]),
                (json!({"amount": "-1"}), vec!["amount"]),
                (json!({"amount": 1.5}), vec!["amount"]),
                (json!({"amount": "1,5"}), vec!["amount"]),
                (json!({"amount": " 1"}), vec!["amount"]),
                (json!({"amount": "1e3"}), vec!["amount"]),
                (json!({"amount": "0.00000000001"}), vec!["amount"]),
                (json!({"amount": "99999999999"}), vec!["amount"]),
                (
                    json!({"amount": "x", "description": "", "kind": "credit"}),
                    vec!["amount", "description", "kind"],
                ),
            ] {
                assert_issues(&gateway.post(&format!("{path}/{what}"), &body).await, &issues);
            }
        }
        // An operation that would leave the range of an amount is refused.
        for (what, most) in [("credits", "400000000"), ("debits", "-400000000")] {
            let amount = if what == "debits" { "800000000" } else { most };
            book(gateway, &made, what, amount).await;
            let more = json!({"amount": "0.0000000001"});
            let more = gateway.post(&format!("{path}/{what}"), &more).await;
            assert_issues(&more, &["amount"]);
            assert_eq!(wallet(gateway, &made).await[0], format!("{most}.0000000000"));
        }
        let list = gateway.get(&format!("{path}/transactions")).await.expect(200);
        assert_eq!(list["data"].as_array().unwrap().len(), 2);
    });
}

#[test]
fn a_movement_sent_twice_under_its_key_is_booked_once() {
    each_gateway(async |gateway| {
        let made = connect(gateway, &json!({})).await;
        let other = connect(gateway, &json!({})).await;
        let send = |connection: &Value, what: &str, key: &str, amount: &str| {
            let call = gateway.call("POST", &format!("{}/{what}", wallet_path(connection)));
            call.header("idempotency-key", key).json(&json!({"amount": amount}))
        };
        for (what, balance) in [("credits", 7), ("debits", 0)] {
            let calls: Vec<_> = (0..8).map(|_| send(&made, what, what, "7")).collect();
            let answers = join_all(calls.iter().map(TestRequest::send)).await;
            let first = answers[0].expect(201);
            for answer in &answers {
                assert_eq!(answer.expect(201), first);
            }
            assert_eq!(wallet(gateway, &made).await, usd([balance, 0, balance]));
        }
        // With another amount, wallet or operation, the request is a different one.
        for different in [
            send(&made, "credits", "credits", "8"),
            send(&other, "credits", "credits", "7"),
            send(&made, "debits", "credits", "7"),
        ] {
            assert_refused(&different.send().await, 409, "idempotency_key_reused");
        }
        let long = "k".repeat(256);
        let answer = send(&made, "credits", &long, "1").send().await;
        assert_issues(&answer, &["idempotency-key"]);
        send(&made, "credits", &long[1..], "1").send().await.expect(201);
        // Without a key each request is a new one.
        book(gateway, &made, "credits", "1").await;
        book(gateway, &made, "credits", "1").await;
        assert_eq!(wallet(gateway, &made).await, usd([3, 0, 3]));

        // Keys are per merchant.
        let stranger = gateway.store.merchant().await;
        let path = format!("/wallets/{}/credits", stranger.merchant.wallet_id);
        let theirs = gateway.call_without_key("POST", &path).bearer(stranger.key.reveal());
        let theirs = theirs.header("idempotency-key", "credits").json(&json!({"amount": "7"}));
        theirs.send().await.expect(201);
    });
}

#[test]
fn movements_at_once_all_count() {
    each_gateway(async |gateway| {
        let made = connect(gateway, &json!({})).await;
        let moves = (0..30).map(|number| match number % 3 {
            0 => book(gateway, &made, "debits", "1"),
            _ => book(gateway, &made, "credits", "2"),
        });
        join_all(moves).await;
        assert_eq!(wallet(gateway, &made).await, usd([30, 0, 30]));
        // The balance of each line follows from the line before.
        let path = format!("{}/transactions?limit=100", wallet_path(&made));
        let list = gateway.get(&path).await.expect(200);
        let amount = |line: &Value, name: &str| -> i64 {
            text(line, name).strip_suffix(".0000000000").unwrap().parse().unwrap()
        };
        let mut balance = 0;
        for line in list["data"].as_array().unwrap().iter().rev() {
            balance += amount(line, "amount");
            assert_eq!(amount(line, "balance_after"), balance, "{list:#}");
        }
        assert_eq!(balance, 30);
    });
}

#[test]
fn transactions_are_paged_and_seen_exactly_once_while_more_come_in() {
    each_gateway(async |gateway| {
        let made = connect(gateway, &json!({})).await;
        let mut expected = Vec::new();
        for amount in 1..=7 {
            let line = book(gateway, &made, "credits", &amount.to_string()).await;
            expected.insert(0, line);
        }
        let path = format!("{}/transactions", wallet_path(&made));
        for limit in [1, 3, 7, 8] {
            let (mut seen, mut cursor) = (Vec::new(), String::new());
            loop {
                let page = gateway.get(&format!("{path}?limit={limit}&cursor={cursor}")).await;
                let page = page.expect(200);
                assert_eq!(names(&page), ["data", "has_more", "next_cursor"]);
                seen.extend(page["data"].as_array().unwrap().iter().cloned());
                expected.insert(0, book(gateway, &made, "credits", "1").await);
                if page["has_more"] == json!(false) {
                    assert_eq!(page["next_cursor"], "");
                    break;
                }
                cursor = text(&page, "next_cursor");
            }
            let before = expected.len() - seen.len();
            assert_eq!(seen[..], expected[before..], "pages of {limit}");
        }
        let first = gateway.get(&path).await.expect(200);
        assert_eq!(first["data"].as_array().unwrap().len(), 10, "the default");
        for limit in ["0", "101", "x"] {
            assert_issues(&gateway.get(&format!("{path}?limit={limit}")).await, &["limit"]);
        }
        let answer = gateway.get(&format!("{path}?cursor=nonsense")).await;
        assert_refused(&answer, 400, "cursor_invalid");
        // The cursor of another kind of list is invalid here.
        let connections = gateway.get("/connections?limit=1").await.expect(200);
        let theirs = text(&connections, "next_cursor");
        let answer = gateway.get(&format!("{path}?cursor={theirs}")).await;
        assert_refused(&answer, 400, "cursor_invalid");
    });
}

#[test]
fn nothing_of_another_merchants_is_there_and_neither_is_what_never_was() {
    each_gateway(async |gateway| {
        let made = connect(gateway, &json!({"name": "Ada"})).await;
        let stranger = gateway.store.merchant().await;
        let ids = [
            (text(&made, "connection_id"), text(&made, "wallet_id"), stranger.key.reveal()),
            (NO_CONNECTION.to_owned(), NO_WALLET.to_owned(), gateway.key()),
            ("x".to_owned(), text(&made, "connection_id"), gateway.key()),
        ];
        let (nothing, one) = (json!({}), json!({"amount": "1"}));
        for (connection, wallet, key) in ids {
            for (method, path, body, noun) in [
                ("GET", format!("/connections/{connection}"), &nothing, "connection"),
                ("PATCH", format!("/connections/{connection}"), &nothing, "connection"),
                ("DELETE", format!("/connections/{connection}"), &nothing, "connection"),
                ("GET", format!("/wallets/{wallet}"), &nothing, "wallet"),
                ("PATCH", format!("/wallets/{wallet}"), &nothing, "wallet"),
                ("POST", format!("/wallets/{wallet}/credits"), &one, "wallet"),
                ("POST", format!("/wallets/{wallet}/debits"), &one, "wallet"),
                ("GET", format!("/wallets/{wallet}/transactions"), &nothing, "wallet"),
            ] {
                let call = gateway.call_without_key(method, &path).bearer(key).json(body);
                assert_refused(&call.send().await, 404, &format!("{noun}_not_found"));
            }
        }
        assert_eq!(gateway.get(&connection_path(&made)).await.expect(200), made);
        assert_eq!(wallet(gateway, &made).await, usd([0, 0, 0]));
    });
}

#[test]
fn only_a_secret_key_opens_these_operations() {
    each_gateway(async |gateway| {
        let made = connect(gateway, &json!({})).await;
        let spend_key = gateway.spend_key(&json!({"wallet_id": made["wallet_id"]})).await;
        let (connection, at) = (connection_path(&made), wallet_path(&made));
        for (method, path) in [
            ("POST", "/connections".to_owned()),
            ("GET", "/connections".to_owned()),
            ("GET", connection.clone()),
            ("PATCH", connection.clone()),
            ("DELETE", connection),
            ("GET", "/wallet".to_owned()),
            ("GET", at.clone()),
            ("PATCH", at.clone()),
            ("POST", format!("{at}/credits")),
            ("POST", format!("{at}/debits")),
            ("GET", format!("{at}/transactions")),
        ] {
            let call = || gateway.call_without_key(method, &path).json(&json!({"amount": "1"}));
            assert_refused(&call().send().await, 401, "auth_header_missing");
            assert_refused(&call().bearer("tgs_x").send().await, 401, "auth_invalid");
            let operator = call().bearer(support::OPERATOR_TOKEN).send().await;
            assert_refused(&operator, 401, "auth_invalid");
            let spend = call().bearer(&spend_key.key).send().await;
            assert_refused(&spend, 403, "operation_not_allowed");
        }
        assert_eq!(wallet(gateway, &made).await, usd([0, 0, 0]));
    });
}
