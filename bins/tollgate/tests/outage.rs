//! The real program while its store is away, and when it is back.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::{Call, postgres};

use crate::site::{Service, Site, assert_audit_clean, merchant_key};

/// How long the store is away: `OUTAGE_SECONDS` of the environment, or so long that every connection
/// and every deadline within the service meets it.
fn outage() -> Duration {
    let set = std::env::var("OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(set.unwrap_or(7))
}

/// Callers that call without pause; what they were answered is counted.
struct Load {
    answered: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    callers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(calls: &[Call]) -> Self {
        let [answered, refused] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let callers = calls.iter().map(|call| {
            let (call, answered, refused) = (call.clone(), answered.clone(), refused.clone());
            tokio::spawn(async move {
                loop {
                    let answer = call.send().await;
                    match answer.status {
                        200 if answer.complete => answered.fetch_add(1, Ordering::SeqCst),
                        503 => {
                            assert_eq!(answer.error(), "store_unavailable");
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            refused.fetch_add(1, Ordering::SeqCst)
                        }
                        other => unreachable!("{other}: {}", answer.text()),
                    };
                }
            })
        });
        let callers = callers.collect();
        Self { answered, refused, callers }
    }

    async fn stop(self) {
        for caller in self.callers {
            caller.abort();
            if let Err(cause) = caller.await {
                assert!(cause.is_cancelled(), "{cause}");
            }
        }
    }
}

async fn settled(site: &Site) -> Value {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let audit = assert_audit_clean(site);
        if audit["pending"] == 0 {
            return audit;
        }
        assert!(Instant::now() < deadline, "still pending: {audit}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn is_ready(service: &Service) -> bool {
    service.call("GET", "/readyz", "").send().await.status == 200
}

#[test]
fn while_the_store_is_away_calls_are_refused_and_those_on_their_way_are_settled_when_it_is_back() {
    let Some((server, database)) = postgres::server() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let key = merchant_key(&site);
        let nodes = [site.serve(), site.serve()];
        let token = nodes[0].customer(&key, "1000").await;
        let limit = json!({"amount": "1000", "cycle": "daily"});
        let limited = json!({"name": "Key", "spend_limit": limit});
        let limited =
            nodes[0].call("POST", "/v1/spend_keys", &key).json(&limited).send().await.expect(201);
        let spend_key = limited["key"].as_str().unwrap();

        let calls: Vec<_> = (0..8)
            .map(|number| {
                let credential = if number < 4 { &token } else { spend_key };
                nodes[number % 2].forward(&site.chat_url(), credential, number % 3 == 0)
            })
            .collect();
        let load = Load::start(&calls);
        // Streams that end while the store is away.
        let words = (outage().as_millis() / 100).to_string();
        let mut streams = Vec::new();
        for number in 0..20 {
            let call = nodes[number % 2].forward(&site.chat_url(), &token, true);
            let call = call.header("x-simulate-chunk-delay-ms", "40");
            let mut open = call.header("x-simulate-words", &words).open().await;
            open.read_until("data: ").await;
            streams.push(open);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;

        let stopped = Instant::now();
        server.stop();
        // What was admitted before reaches the provider a moment later.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = site.simulator.stats().calls;
        let refused = load.refused.load(Ordering::SeqCst);
        for mut open in streams {
            while open.read_some().await {}
            let answer = open.answer();
            assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"));
        }
        assert!(stopped.elapsed() < outage(), "they end while it is away: {:?}", stopped.elapsed());
        tokio::time::sleep(outage().saturating_sub(stopped.elapsed())).await;
        assert_eq!(site.simulator.stats().calls, before, "nothing is forwarded unmetered");
        let refused = load.refused.load(Ordering::SeqCst) - refused;
        println!("{refused} calls were refused");
        assert!(refused > 16 * usize::try_from(outage().as_secs()).unwrap(), "{refused}: at once");
        for node in &nodes {
            let asked = Instant::now();
            let answer = node.call("GET", "/v1/wallet", &key).send().await;
            assert_eq!((answer.status, answer.error().as_str()), (503, "store_unavailable"));
            assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
            assert!(!is_ready(node).await);
            assert_eq!(node.call("GET", "/healthz", "").send().await.status, 200, "it lives");
        }

        server.start();
        let back = Instant::now();
        let answered = load.answered.load(Ordering::SeqCst);
        while load.answered.load(Ordering::SeqCst) < answered + 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("calls are answered {:?} after its return", back.elapsed());
        for node in &nodes {
            while !is_ready(node).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            node.call("GET", "/v1/wallet", &key).send().await.expect(200);
        }
        println!("everything is healthy {:?} after its return", back.elapsed());
        assert!(back.elapsed() < Duration::from_secs(1), "{:?}", back.elapsed());

        load.stop().await;
        let audit = settled(&site).await;
        let calls = site.simulator.stats().calls;
        assert!(audit["requests"].as_u64().unwrap() >= calls, "{audit}: {calls} were answered");
        for file in std::fs::read_dir(site.path().join("tollgate-journal")).unwrap() {
            // A call that was refused because its commit had no answer is remembered for a while, should
            // the commit be on its way. Nothing else waits.
            let entry = std::fs::read_to_string(file.unwrap().path()).unwrap();
            assert!(entry.contains("not_sent"), "{entry}");
        }
        // Every call that the provider answered was paid: none is an estimate or free.
        let list = nodes[0].call("GET", "/v1/requests?limit=100", &key).send().await.expect(200);
        for record in list["data"].as_array().unwrap() {
            let sent = record["provider_status"] != Value::Null;
            assert!(!sent || record["status"] == "completed", "{record}");
        }
    });
}
