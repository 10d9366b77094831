//! Several real processes on one PostgreSQL: limits hold for all of them together, and a change on one
//! applies to all.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::time::Instant;

use serde_json::{Value, json};
use tollgate_testkit::{TestRequest, postgres};

use crate::site::{ServiceProcess, Site, assert_audit_clean, merchant_key};

/// Runs `test` on two and on four processes of one store.
fn each_fleet(test: impl AsyncFn(&Fleet)) {
    for size in [2, 4] {
        let Some(database) = postgres::database() else { return };
        let url = database.url().to_owned();
        let site = Site::new(&url, Some(database));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let key = merchant_key(&site);
            let nodes = (0..size).map(|_| site.serve()).collect();
            let fleet = Fleet { nodes, key, site };
            test(&fleet).await;
            assert_eq!(assert_audit_clean(&fleet.site)["pending"], 0);
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
        let last = self.nodes.len() - 1;
        let key = key["key"].as_str().unwrap();
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
            let call = self.call(node, key);
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
