//! The real program while its store is not available, and after it returns.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::TestResponse;
use tollgate_testkit::postgres::{self, TcpProxy};
use tollgate_testkit::store::block_on;

use crate::site::load::Load;
use crate::site::{ServiceProcess, Site, assert_audit_clean, merchant_key};

/// The length of the outage: `OUTAGE_SECONDS` of the environment, or long enough that every connection
/// and every deadline of the service is affected.
fn outage_length() -> Duration {
    let set = std::env::var("OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(set.unwrap_or(7))
}

/// Fails unless the answer is one that callers may get during an outage.
fn assert_unavailable(answer: Option<&TestResponse>) {
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.error().as_str()), (503, "store_unavailable"));
}

async fn wait_until_settled(site: &Site) -> Value {
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

fn files_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect()
}

async fn is_ready(service: &ServiceProcess) -> bool {
    service.call("GET", "/readyz", "").send().await.status == 200
}

#[test]
fn while_the_store_is_away_calls_are_refused_and_those_on_their_way_are_settled_when_it_is_back() {
    let Some((server, database)) = postgres::server() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    block_on(async {
        let key = merchant_key(&site);
        let nodes = [site.serve(), site.serve()];
        let token = nodes[0].create_customer(&key, "1000").await;
        let limit = json!({"amount": "1000", "cycle": "daily"});
        let limited = json!({"name": "Key", "spend_limit": limit});
        let limited =
            nodes[0].call("POST", "/v1/spend_keys", &key).json(&limited).send().await.expect(201);
        let spend_key = limited["key"].as_str().unwrap();

        let load = Load::start(&nodes, &[&token, spend_key], &site.chat_url(), assert_unavailable);
        // These streams end during the outage.
        let words = (outage_length().as_millis() / 100).to_string();
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
        // Calls that were admitted before the outage reach the provider a moment later.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = site.simulator.stats().calls;
        let (_, refused) = load.counts();
        for mut open in streams {
            while open.read_some().await {}
            let answer = open.response();
            assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"));
        }
        assert!(
            stopped.elapsed() < outage_length(),
            "they end while it is away: {:?}",
            stopped.elapsed()
        );
        tokio::time::sleep(outage_length().saturating_sub(stopped.elapsed())).await;
        assert_eq!(site.simulator.stats().calls, before, "nothing is forwarded unmetered");
        let refused = load.counts().1 - refused;
        println!("{refused} calls were refused");
        assert!(
            refused > 16 * usize::try_from(outage_length().as_secs()).unwrap(),
            "{refused}: at once"
        );
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
        let (answered, _) = load.counts();
        while load.counts().0 < answered + 8 {
            assert!(back.elapsed() < Duration::from_secs(20), "calls are not answered again");
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
        let audit = wait_until_settled(&site).await;
        let calls = site.simulator.stats().calls;
        assert!(audit["requests"].as_u64().unwrap() >= calls, "{audit}: {calls} were answered");
        for file in std::fs::read_dir(site.path().join("tollgate-journal")).unwrap() {
            // A call that was refused because its commit had no answer is kept for a while, in case the
            // commit still arrives. No other entry waits.
            let entry = std::fs::read_to_string(file.unwrap().path()).unwrap();
            assert!(entry.contains("not_sent"), "{entry}");
        }
        // Every call that the provider answered is paid: none is estimated or free.
        let list = nodes[0].call("GET", "/v1/requests?limit=100", &key).send().await.expect(200);
        for record in list["data"].as_array().unwrap() {
            let sent = record["provider_status"] != Value::Null;
            assert!(!sent || record["status"] == "completed", "{record}");
        }
    });
}

/// A server that vanished is detected by TCP keepalive, without any setting of the operator.
#[cfg(target_os = "linux")]
#[test]
fn a_server_that_says_nothing_is_asked_every_five_seconds_whether_it_is_there() {
    /// The keepalive interval in hundredths of a second, the unit in which Linux shows the time left.
    const ASKED_WITHIN: u32 = 500;
    let Some(database) = postgres::database() else { return };
    let way = TcpProxy::to(&database);
    let site = Site::new(way.url(), Some(database));
    let service = site.serve();
    let port = format!(":{:04X}", way.address().port());
    // A connection with unsent data has another timer for a moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let timers = sockets.lines().filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let is_ours = fields[2].ends_with(&port) && fields[3] == "01";
            is_ours.then(|| fields[5].split_once(':').unwrap())
        });
        let timers: Vec<_> = timers.collect();
        let is_asking = |&(kind, left): &(&str, &str)| {
            kind == "02" && u32::from_str_radix(left, 16).unwrap() <= ASKED_WITHIN
        };
        // Two connections of the ledger, and at least one that reads.
        if timers.len() >= 3 && timers.iter().all(is_asking) {
            break;
        }
        assert!(Instant::now() < deadline, "{timers:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(service);
}

/// A server that a standby has replaced takes no more writes. A service that keeps its connections would
/// never reach the new one.
#[test]
fn a_server_that_only_reads_is_away_and_its_connections_are_opened_anew() {
    let Some((server, database)) = postgres::server() else { return };
    let way = TcpProxy::to(&database);
    let site = Site::new(way.url(), Some(database));
    block_on(async {
        let key = merchant_key(&site);
        let node = site.serve();
        let token = node.create_customer(&key, "1000").await;
        let call = node.forward(&site.chat_url(), &token, false);
        call.send().await.expect(200);

        server.set_read_only(true);
        let mut answers = Vec::new();
        // Until the server's processes have reloaded their settings.
        let deadline = Instant::now() + Duration::from_secs(20);
        while answers.len() < 5 {
            let calls = site.simulator.stats().calls;
            let answer = call.send().await;
            if answer.status == 200 {
                assert!(Instant::now() < deadline, "it goes on writing");
                continue;
            }
            assert_eq!(site.simulator.stats().calls, calls, "it was forwarded");
            answers.push((answer.status, answer.error()));
        }
        assert_eq!(answers, vec![(503, "store_unavailable".to_owned()); 5]);
        let change = node.call("POST", "/v1/connections", &key).json(&json!({})).send().await;
        assert_eq!((change.status, change.error().as_str()), (503, "store_unavailable"));

        let before = way.connections();
        server.set_read_only(false);
        let deadline = Instant::now() + Duration::from_secs(20);
        while call.send().await.status != 200 {
            assert!(Instant::now() < deadline, "it does not recover");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(way.connections() > before, "it writes on connections that had been refused");
        wait_until_settled(&site).await;
    });
}

#[test]
fn a_service_that_is_told_to_end_does_so_in_time_although_its_store_says_nothing() {
    let Some((server, database)) = postgres::server() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    block_on(async {
        let key = merchant_key(&site);
        let mut node = site.serve_with(&[("TOLLGATE_DRAIN_TIMEOUT_MS", "5000")]);
        let token = node.create_customer(&key, "1000").await;
        let stream = node.forward(&site.chat_url(), &token, true);
        let stream = stream.header("x-simulate-chunk-delay-ms", "100");
        let mut open = stream.header("x-simulate-words", "10").open().await;
        open.read_until("data: ").await;

        let silence = server.suspend();
        while open.read_some().await {}
        let answer = open.response();
        assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"));
        let told = Instant::now();
        node.signal("-TERM");
        assert_eq!(node.exit_code(), Some(1), "it says that it did not end as it should");
        assert!(told.elapsed() < Duration::from_secs(20), "{:?}", told.elapsed());
        drop(silence);

        // The settlement that was not booked is in the journal. A node may book it within a minute.
        assert_eq!(assert_audit_clean(&site)["unbooked_settlements"], json!([]));
        let journal = site.path().join("tollgate-journal");
        let [waiting] = files_in(&journal).try_into().unwrap();
        let unknown = waiting.with_extension("unknown");
        fs::rename(&waiting, &unknown).unwrap();
        let audit = site.run(&["audit"]);
        assert_eq!(audit.status.code(), Some(1));
        let text = String::from_utf8(audit.stdout).unwrap();
        assert!(text.contains("0 differences."), "{text}");
        assert!(text.contains(unknown.file_name().unwrap().to_str().unwrap()), "{text}");
        fs::rename(&unknown, &waiting).unwrap();

        let node = site.serve();
        assert_eq!(wait_until_settled(&site).await["requests"], 1);
        let list = node.call("GET", "/v1/requests", &key).send().await.expect(200);
        let record = &list["data"][0];
        assert_eq!(
            (&record["status"], &record["usage_source"]),
            (&json!("completed"), &json!("reported"))
        );
    });
}
