//! The real program, killed repeatedly at random moments under load; and a machine that loses power.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_testkit::random::Random;
use tollgate_testkit::store::block_on;
use tollgate_testkit::{postgres, tools};

use crate::site::load::Load;
use crate::site::{ServiceProcess, Site, assert_audit_clean, each_site, merchant_key};

/// The number of kills: `KILLS` of the environment, or 6.
fn kills() -> u64 {
    std::env::var("KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// Fails unless the calls are paid as the provider reported. An answer ends after its call is settled.
async fn assert_paid(service: &ServiceProcess, key: &str, answered: &[String]) {
    for id in answered {
        let record = service.call("GET", &format!("/v1/requests/{id}"), key).send().await;
        let record = record.expect(200);
        assert_eq!(
            (&record["status"], &record["usage_source"]),
            (&json!("completed"), &json!("reported"))
        );
    }
}

/// Kills random nodes at random moments, starts them again, and checks that nothing is lost.
async fn assert_survives_kills(site: &Site, nodes: usize, serve: impl Fn() -> ServiceProcess) {
    let key = merchant_key(site);
    let mut services: Vec<_> = (0..nodes).map(|_| serve()).collect();
    let token = services[0].create_customer(&key, "1000").await;
    let limit = json!({"amount": "1000", "cycle": "daily"});
    let limited = json!({"name": "Key", "spend_limit": limit});
    let limited =
        services[0].call("POST", "/v1/spend_keys", &key).json(&limited).send().await.expect(201);
    let spend_key = limited["key"].as_str().unwrap();

    // A node that dies breaks off its answers, or does not answer.
    let load = Load::start(&services, &[&token, spend_key], &site.chat_url(), |_| {});
    let mut random = Random(u64::from(std::process::id()));
    println!("seed {}", random.0);
    for _ in 0..kills() {
        // On a slow machine too, there is load when a node is killed.
        let (before, deadline) = (load.counts().0, Instant::now() + Duration::from_secs(30));
        while load.counts().0 < before + 4 {
            assert!(Instant::now() < deadline, "nothing is answered");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(random.below(450))).await;
        let node = random.index(nodes);
        services[node].signal("-KILL");
        assert_eq!(services[node].exit_code(), None, "killed");
        services[node] = serve();
        load.set_address(node, &services[node]);
    }
    let answered = load.stop().await;

    // The lease of a killed node must expire first.
    let deadline = Instant::now() + Duration::from_secs(60);
    let audit = loop {
        let audit = assert_audit_clean(site);
        if audit["pending"] == 0 {
            break audit;
        }
        assert!(Instant::now() < deadline, "still pending: {audit}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let reached = site.simulator.stats().calls;
    println!("{} answered, {reached} reached the provider, {audit}", answered.len());
    assert!(answered.len() > 20, "there was load: {}", answered.len());
    assert!(audit["requests"].as_u64().unwrap() >= reached, "{reached} reached the provider");
    assert_paid(&services[0], &key, &answered).await;
    // The records of calls that were in flight show it.
    let mut cursor = String::new();
    let mut sent = 0;
    loop {
        let page = services[0].call("GET", &format!("/v1/requests?limit=100{cursor}"), &key);
        let page = page.send().await.expect(200);
        for record in page["data"].as_array().unwrap() {
            let source = record["usage_source"].as_str().unwrap();
            match record["status"].as_str().unwrap() {
                "completed" => assert_eq!(source, "reported", "{record}"),
                "error" => assert!(["estimated", "partial", "none"].contains(&source), "{record}"),
                other => unreachable!("{other}: {record}"),
            }
            sent += u64::from(source != "none");
        }
        if page["has_more"] == false {
            break;
        }
        cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
    }
    assert!(sent >= reached, "{sent} records of {reached} calls say that they were sent");
    let wallets = services[0].call("GET", "/v1/connections", &key).send().await.expect(200);
    let wallet = format!("/v1/wallets/{}", wallets["data"][0]["wallet_id"].as_str().unwrap());
    let wallet = services[0].call("GET", &wallet, &key).send().await.expect(200);
    assert_eq!(wallet["held"], "0.0000000000");
    for credential in [token.as_str(), spend_key] {
        services[0].forward(&site.chat_url(), credential, false).send().await.expect(200);
    }
}

#[test]
fn a_node_that_is_killed_at_any_moment_leaves_nothing_pending_and_loses_nothing() {
    each_site(async |site| assert_survives_kills(site, 1, || site.serve()).await);
}

#[test]
fn of_two_nodes_either_may_be_killed_at_any_moment() {
    let Some(database) = postgres::database() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    block_on(assert_survives_kills(&site, 2, || site.serve()));
}

/// A disk for one site that keeps synced data apart from written data.
struct PowerCutDisk<'a> {
    site: &'a Site,
    preloaded: PathBuf,
}

impl<'a> PowerCutDisk<'a> {
    fn of(site: &'a Site) -> Option<Self> {
        let preloaded = site.path().join("power.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/site/power.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&preloaded).arg(source);
        let compiled = compiler.status().is_ok_and(|status| status.success());
        tools::require_tool("cc", compiled.then_some(Self { site, preloaded }))
    }

    /// Starts the service on this disk, with the present content of its files.
    fn serve(&self, settings: &[(&str, &str)]) -> ServiceProcess {
        let preload = [("LD_PRELOAD", self.preloaded.to_str().unwrap())];
        self.site.serve_with(&[&preload, settings].concat())
    }

    /// Leaves only synced data in the files, as a power cut may. No service may be running.
    fn lose_unsynced(&self) {
        for name in ["tollgate.db", "tollgate.db-wal"] {
            let synced = self.site.path().join(format!("{name}.synced"));
            if synced.exists() {
                std::fs::rename(synced, self.site.path().join(name)).unwrap();
            }
        }
        let _ = std::fs::remove_file(self.site.path().join("tollgate.db-shm"));
    }
}

#[test]
fn a_power_cut_at_any_moment_loses_nothing() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let Some(disk) = PowerCutDisk::of(&site) else { return };
    block_on(assert_survives_kills(&site, 1, || {
        disk.lose_unsynced();
        disk.serve(&[])
    }));
}

/// Checks the test above: it would fail if calls were answered before they are synced.
#[test]
fn a_power_cut_on_a_disk_that_ignores_syncs_loses_calls() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let Some(disk) = PowerCutDisk::of(&site) else { return };
    block_on(async {
        let key = merchant_key(&site);
        let mut service = disk.serve(&[("POWER_SYNC", "ignored")]);
        let token = service.create_customer(&key, "1000").await;
        let answer = service.forward(&site.chat_url(), &token, false).send().await;
        answer.expect(200);
        let record = format!("/v1/requests/{}", answer.header("x-service-request-id").unwrap());
        service.call("GET", &record, &key).send().await.expect(200);
        service.signal("-KILL");
        assert_eq!(service.exit_code(), None, "killed");
        disk.lose_unsynced();
        // Such a disk may lose the merchant's key too, so the database itself is asked.
        let _service = disk.serve(&[]);
        assert_eq!(assert_audit_clean(&site)["requests"], 0, "the call is lost");
    });
}

/// Without the lock file, a second service starts on the file that the first one serves from.
#[test]
fn a_service_that_is_overtaken_ends_itself_and_loses_nothing() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    block_on(async {
        let key = merchant_key(&site);
        let mut services = vec![site.serve()];
        let token = services[0].create_customer(&key, "1000").await;
        let load = Load::start(&services, &[&token], &site.chat_url(), |_| {});
        let reach = async |count: usize| {
            let (before, deadline) = (load.counts().0, Instant::now() + Duration::from_secs(30));
            while load.counts().0 < before + count {
                assert!(Instant::now() < deadline, "nothing is answered");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        reach(20).await;
        std::fs::remove_file(site.path().join("tollgate.db.lock")).unwrap();
        let second = site.serve();
        assert_eq!(services[0].exit_code(), Some(1), "the first ends by itself");
        load.set_address(0, &second);
        services[0] = second;
        reach(20).await;
        let answered = load.stop().await;
        let deadline = Instant::now() + Duration::from_secs(60);
        while assert_audit_clean(&site)["pending"] != 0 {
            assert!(Instant::now() < deadline, "something is pending");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_paid(&services[0], &key, &answered).await;
    });
}
