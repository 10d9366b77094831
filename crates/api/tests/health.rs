//! The readiness of a node, and the most calls that it takes at once.

use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_api::{ClientLimits, Settings};
use tollgate_testkit::{Gate, ScriptedResponse, TestRequest};

use crate::support::{
    Gateway, assert_refused, chat_answer, each_gateway_by_the_stores_clock, each_gateway_with,
    settings, text,
};

/// The answers of `/readyz` and `/healthz`.
async fn health(gateway: &Gateway<'_>) -> [(u16, String); 2] {
    let ask = async |path| {
        let answer = TestRequest::new(gateway.address, "GET", path).send().await;
        (answer.status, text(&answer.json(), "status"))
    };
    [ask("/readyz").await, ask("/healthz").await]
}

fn said(status: u16, word: &str) -> (u16, String) {
    (status, word.to_owned())
}

#[test]
fn who_asks_for_the_head_alone_is_told_as_much() {
    each_gateway_by_the_stores_clock(async |gateway| {
        for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"] {
            let answer = TestRequest::new(gateway.address, "HEAD", path).send().await;
            assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
        }
    });
}

/// The node can read, but other nodes count it as dead and would sweep its calls.
#[test]
fn a_node_whose_lease_is_not_kept_lives_and_is_not_ready() {
    const LEASE_MS: i64 = 10_000;
    each_gateway_by_the_stores_clock(async |gateway| {
        let clock = &gateway.store.clock;
        assert_eq!(health(gateway).await, [said(200, "ok"), said(200, "ok")]);
        clock.advance_millis(LEASE_MS);
        assert_eq!(health(gateway).await[0], said(200, "ok"), "it is kept until its end");
        clock.advance_millis(1);
        assert_eq!(health(gateway).await, [said(503, "store_unavailable"), said(200, "ok")]);
        gateway.store.store.renew_lease().await.unwrap();
        assert_eq!(health(gateway).await, [said(200, "ok"), said(200, "ok")]);
    });
}

/// A client that leaves does not end its call, so there can be more calls than connections.
#[test]
fn calls_beyond_as_many_as_a_node_takes_are_refused_and_not_sent() {
    const MOST: usize = 2;
    let clients = ClientLimits { max_connections: MOST, ..ClientLimits::default() };
    each_gateway_with(Settings { clients, ..settings() }, async |gateway| {
        let gate = Gate::new();
        for number in 1..=MOST {
            gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
            let open = gateway.chat().open().await;
            gateway.provider.wait_for_calls(number).await;
            drop(open);
        }
        let refused = gateway.chat().send().await;
        assert_refused(&refused, 503, "overloaded");
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(gateway.provider.calls(), MOST, "it was sent");
        gateway.get("/wallet").await.expect(200);

        gate.open();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        let deadline = Instant::now() + Duration::from_secs(20);
        while gateway.chat().send().await.status != 200 {
            assert!(Instant::now() < deadline, "the calls have ended, and there is no room");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let records = gateway.records().await;
        assert_eq!(records.len(), MOST + 1);
        assert!(records.iter().all(|record| record["status"] == json!("completed")), "{records:?}");
    });
}
