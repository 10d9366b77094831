//! Several real processes on one PostgreSQL: limits hold for all of them together, and a change on one
//! applies to all.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::time::Instant;

use serde_json::{Value, json};
use tollgate_pricing::Amount;
use tollgate_testkit::store::block_on;
use tollgate_testkit::{TestRequest, postgres};

use crate::site::{ServiceProcess, Site, assert_audit_clean, merchant_key};

/// Runs `test` on two and on four processes of one store.
fn each_fleet(test: impl AsyncFn(&Fleet)) {
    each_fleet_of(&[2, 4], test);
}

/// Runs `test` on fleets of these sizes. There must be no deadlock.
fn each_fleet_of(sizes: &[usize], test: impl AsyncFn(&Fleet)) {
    for &size in sizes {
        let Some(database) = postgres::database() else { return };
        let url = database.url().to_owned();
        let site = Site::new(&url, Some(database));
        block_on(async {
            let key = merchant_key(&site);
            let nodes = (0..size).map(|_| site.serve()).collect();
            let fleet = Fleet { nodes, key, site };
            test(&fleet).await;
            let Fleet { nodes, site, .. } = fleet;
            drop(nodes);
            assert_eq!(assert_audit_clean(&site)["pending"], 0);
            site.assert_no_deadlocks();
        });
    }
}

struct Fleet {
    nodes: Vec<ServiceProcess>,
    key: String,
    site: Site,
}

/// The distribution of calls over the nodes.
#[derive(Clone, Copy, Debug)]
enum CallSpread {
    OnOne,
    ByTurns,
    MostlyOnTheLast,
}

impl Fleet {
    async fn spend_key(&self, more: Value) -> Value {
        let mut fields = json!({"name": "Key"});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let call = self.nodes[0].call("POST", "/v1/spend_keys", &self.key);
        call.json(&fields).send().await.expect(201)
    }

    async fn change(&self, node: usize, key: &Value, changes: &Value) {
        let path = format!("/v1/spend_keys/{}", key["spend_key_id"].as_str().unwrap());
        let call = self.nodes[node].call("PUT", &path, &self.key);
        call.json(changes).send().await.expect(200);
    }

    /// A call with the longest allowed answer, which costs its hold less a few millionths.
    fn call(&self, node: usize, key: &str) -> TestRequest {
        let body = json!({"model": "m", "max_tokens": 1_000, "messages": [{"role": "user", "content": "Hi"}]});
        let path = format!("/v1/forward?u={}", self.site.chat_url());
        let call = self.nodes[node].call("POST", &path, key).json(&body);
        call.header("x-simulate-output-tokens", "1000")
    }

    /// Sends `count` calls at once; returns the number of answers, and the statuses of the refusals.
    async fn rush(&self, key: &Value, count: usize, spread: CallSpread) -> (usize, Vec<u16>) {
        self.rush_of(std::slice::from_ref(key), count, spread).await
    }

    /// As [`Self::rush`], with several keys by turns.
    async fn rush_of(&self, keys: &[Value], count: usize, spread: CallSpread) -> (usize, Vec<u16>) {
        let last = self.nodes.len() - 1;
        let calls = (0..count).map(|number| {
            let node = match spread {
                CallSpread::OnOne => 0,
                CallSpread::ByTurns => number % self.nodes.len(),
                CallSpread::MostlyOnTheLast => {
                    if number % 5 == 0 {
                        0
                    } else {
                        last
                    }
                }
            };
            let key = keys[number / self.nodes.len() % keys.len()]["key"].as_str().unwrap();
            let call = self.call(node, key).header("x-service-metadata", r#"{"job": "nightly"}"#);
            tokio::spawn(async move { call.send().await.status })
        });
        let (mut answered, mut refused) = (0, Vec::new());
        for call in calls.collect::<Vec<_>>() {
            match call.await.unwrap() {
                200 => answered += 1,
                status => refused.push(status),
            }
        }
        (answered, refused)
    }
}

#[test]
fn limits_hold_for_all_nodes_together_however_calls_are_spread() {
    each_fleet(async |fleet| {
        for spread in [CallSpread::OnOne, CallSpread::ByTurns, CallSpread::MostlyOnTheLast] {
            let reached = fleet.site.simulator.stats().calls;
            let counted =
                fleet.spend_key(json!({"request_limit": {"count": 7, "cycle": "total"}})).await;
            let (answered, refused) = fleet.rush(&counted, 200, spread).await;
            assert_eq!(answered, 7, "{spread:?}");
            assert!(refused.iter().all(|status| *status == 429), "{spread:?}: {refused:?}");

            // A hold is 0.002 USD plus a part for the bytes of the body; three of them fit.
            let limit = json!({"amount": "0.0065", "cycle": "daily"});
            let strict =
                fleet.spend_key(json!({"enforcement": "strict", "spend_limit": limit})).await;
            let (answered, refused) = fleet.rush(&strict, 200, spread).await;
            assert_eq!(answered, 3, "{spread:?}");
            assert!(refused.iter().all(|status| *status == 402), "{spread:?}: {refused:?}");

            let began = Instant::now();
            let paced = fleet.spend_key(json!({"rate_limit": {"rpm": 60, "burst": 5}})).await;
            let (answered, _) = fleet.rush(&paced, 200, spread).await;
            let refilled = usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
            assert!((5..=5 + refilled).contains(&answered), "{spread:?}: {answered}");
            let made = u64::try_from(7 + 3 + answered).unwrap();
            assert_eq!(fleet.site.simulator.stats().calls - reached, made, "{spread:?}");
        }
    });
}

#[test]
fn what_is_changed_on_one_node_acts_on_the_next_call_of_every_other() {
    each_fleet(async |fleet| {
        let all = 0..fleet.nodes.len();
        let key = fleet.spend_key(json!({})).await;
        let old = key["key"].as_str().unwrap();
        let everywhere = async |key: &str, status: u16, code: &str| {
            for node in all.clone() {
                let answer = fleet.call(node, key).send().await;
                assert_eq!(answer.status, status, "node {node}: {}", answer.text());
                if status != 200 {
                    assert_eq!(answer.error(), code, "node {node}");
                }
            }
        };
        // Every node loads the key.
        everywhere(old, 200, "").await;
        for node in all.clone() {
            fleet.change(node, &key, &json!({"status": "paused"})).await;
            everywhere(old, 403, "spend_key_paused").await;
            fleet.change(node, &key, &json!({"status": "active"})).await;
            everywhere(old, 200, "").await;
        }
        fleet
            .change(1, &key, &json!({"spend_limit": {"amount": "0.000001", "cycle": "total"}}))
            .await;
        everywhere(old, 402, "spend_limit_reached").await;
        fleet
            .change(0, &key, &json!({"spend_limit": null, "expires_at": "2020-01-01T00:00:00Z"}))
            .await;
        everywhere(old, 403, "spend_key_expired").await;
        fleet.change(1, &key, &json!({"expires_at": null})).await;

        let path = format!("/v1/spend_keys/{}/rotate", key["spend_key_id"].as_str().unwrap());
        let rotated = fleet.nodes[1].call("POST", &path, &fleet.key).send().await.expect(200);
        everywhere(old, 401, "auth_invalid").await;
        everywhere(rotated["key"].as_str().unwrap(), 200, "").await;
    });
}

impl Fleet {
    async fn budget(&self, parent: Option<&Value>, more: Value) -> Value {
        let mut fields = json!({
            "name": "Team", "enforcement": "strict",
            "parent_id": parent.map(|parent| &parent["budget_id"]),
        });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let call = self.nodes[0].call("POST", "/v1/budgets", &self.key);
        call.json(&fields).send().await.expect(201)
    }

    async fn change_budget(&self, node: usize, budget: &Value, changes: &Value) -> Value {
        let path = format!("/v1/budgets/{}", budget["budget_id"].as_str().unwrap());
        let call = self.nodes[node].call("PUT", &path, &self.key);
        call.json(changes).send().await.expect(200)
    }
}

/// A tree of four levels with two leaves, keys that name these, and a budget that matches their calls. `limits` are the
/// daily limits of the root, of the second level and of the budget that matches.
async fn tree(fleet: &Fleet, limits: [&str; 3]) -> (Vec<Value>, Vec<Value>) {
    let limited =
        |usd: &str| json!({"spend_limit": {"amount": usd, "cycle": "daily"}, "match": null});
    let root = fleet.budget(None, limited(limits[0])).await;
    let second = fleet.budget(Some(&root), limited(limits[1])).await;
    let (mut budgets, mut keys) = (vec![root, second.clone()], Vec::new());
    for _ in 0..2 {
        let third = fleet.budget(Some(&second), json!({})).await;
        let leaf = fleet.budget(Some(&third), json!({})).await;
        for _ in 0..2 {
            keys.push(fleet.spend_key(json!({"budget_id": leaf["budget_id"]})).await);
        }
        budgets.extend([third, leaf]);
    }
    let mut matching = limited(limits[2]);
    matching["match"] = json!({"job": "nightly"});
    budgets.push(fleet.budget(None, matching).await);
    (budgets, keys)
}

#[test]
fn a_shared_budget_admits_exactly_what_fits_on_all_nodes_together() {
    // A hold is 0.002 USD plus a part for the bytes of the body; three of them fit.
    const TIGHT: &str = "0.0065";
    each_fleet_of(&[1, 2, 4], async |fleet| {
        for tight in 0..3 {
            let mut limits = ["1000"; 3];
            limits[tight] = TIGHT;
            let (budgets, keys) = tree(fleet, limits).await;
            let (answered, refused) = fleet.rush_of(&keys, 200, CallSpread::ByTurns).await;
            assert_eq!(answered, 3, "limit {tight}");
            assert!(refused.iter().all(|status| *status == 402), "limit {tight}: {refused:?}");
            // The calls of the next tree have the same metadata.
            fleet.change_budget(0, &budgets[6], &json!({"status": "paused", "match": null})).await;
            for place in [0, 1, 6] {
                let shown = fleet.change_budget(0, &budgets[place], &json!({})).await;
                assert_eq!(
                    (&shown["current_requests"], &shown["held"]),
                    (&json!(3), &json!("0.0000000000"))
                );
            }
        }
    });
}

#[test]
fn budgets_move_and_shrink_under_load_without_a_deadlock() {
    each_fleet_of(&[1, 2, 4], async |fleet| {
        let (budgets, keys) = tree(fleet, ["0.05"; 3]).await;
        let changes = async {
            for round in 0..20 {
                let node = round % fleet.nodes.len();
                let leaf = &budgets[if round % 2 == 0 { 3 } else { 5 }];
                fleet
                    .change(node, &keys[round % 4], &json!({"budget_id": leaf["budget_id"]}))
                    .await;
                let third = &budgets[if round % 3 == 0 { 2 } else { 4 }];
                let parent = &budgets[usize::from(round % 4 < 2)]["budget_id"];
                fleet.change_budget(node, third, &json!({"parent_id": parent})).await;
                let limit = format!("0.0{}", 40 - round);
                let limit = json!({"spend_limit": {"amount": limit, "cycle": "daily"}});
                fleet.change_budget(node, &budgets[6], &limit).await;
            }
        };
        let rush = fleet.rush_of(&keys, 200, CallSpread::ByTurns);
        let ((answered, refused), ()) = tokio::join!(rush, changes);
        assert!(answered > 0 && refused.iter().all(|status| *status == 402), "{refused:?}");
        let shown = fleet.change_budget(0, &budgets[0], &json!({})).await;
        let spent: Amount = shown["current_spend"].as_str().unwrap().parse().unwrap();
        assert!(spent <= "0.05".parse().unwrap(), "{spent}");
    });
}
