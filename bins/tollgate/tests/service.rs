//! The real program, with real sockets, signals and deaths.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_simulator::{Behavior, Simulator};
use tollgate_testkit::{Call, TestDatabase, postgres};

/// A configuration in a folder of its own, with a simulated provider.
struct Site {
    folder: TempDir,
    simulator: Simulator,
    database: Option<TestDatabase>,
}

/// Runs `test` on a site of each database.
fn each_site(test: impl AsyncFn(&Site)) {
    let databases = [None, postgres::database()];
    for (place, database) in databases.into_iter().enumerate() {
        if place == 1 && database.is_none() {
            continue;
        }
        let url = database.as_ref().map_or("sqlite:DIR/tollgate.db", TestDatabase::url).to_owned();
        let site = Site::new(&url, database);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(test(&site));
    }
}

impl Site {
    fn new(database_url: &str, database: Option<TestDatabase>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let simulator = Simulator::start("127.0.0.1:0", Behavior::default()).unwrap();
        let database_url = database_url.replace("DIR", folder.path().to_str().unwrap());
        let config = format!(
            r#"
            listen = "127.0.0.1:0"
            database_url = "{database_url}"
            operator_token = "operator"
            [providers.house]
            base_url = "{}"
            dialect = "openai"
            allow_private_network = true
            [[prices]]
            provider = "house"
            model = "*"
            input = "1"
            output = "2"
            "#,
            simulator.url("/v1")
        );
        std::fs::write(folder.path().join("tollgate.toml"), config).unwrap();
        Self { folder, simulator, database }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("--config").arg(self.path().join("tollgate.toml")).args(arguments);
        command.current_dir(self.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed and prints JSON.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(arguments).arg("--json").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn serve(&self) -> Service {
        let mut child =
            self.command(&["serve"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.strip_prefix("listening on http://").unwrap().parse().unwrap();
        Service { child, address }
    }

    fn chat_url(&self) -> String {
        self.simulator.url("/v1/chat/completions")
    }
}

/// A running `tollgate serve`; it dies with the test.
struct Service {
    child: Child,
    address: SocketAddr,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Service {
    fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    fn call(&self, method: &str, path: &str, credential: &str) -> Call {
        Call::new(self.address, method, path).bearer(credential)
    }

    /// A customer with money and a meter; answers a forward token for them.
    async fn customer(&self, key: &str, amount: &str) -> String {
        let connection =
            self.call("POST", "/v1/connections", key).json(&json!({})).send().await.expect(201);
        let credits = format!("/v1/wallets/{}/credits", connection["wallet_id"].as_str().unwrap());
        self.call("POST", &credits, key).json(&json!({"amount": amount})).send().await.expect(201);
        let meter = json!({"name": "Plan", "rate_type": "fixed", "tier_type": "tokens_1m",
                           "tiers": [{"start": "0", "rate": "10"}, {"start": "1000", "rate": "5"}]});
        let meter = self.call("POST", "/v1/meters", key).json(&meter).send().await.expect(201);
        let token = json!({"secret_key": key, "connection_id": connection["connection_id"], "meter_slug": meter["meter_slug"]});
        STANDARD.encode(token.to_string())
    }

    fn forward(&self, u: &str, token: &str, stream: bool) -> Call {
        let body = json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hello"}]});
        self.call("POST", &format!("/v1/forward?u={u}"), token).json(&body)
    }
}

fn merchant_key(site: &Site) -> String {
    let merchant = site.json(&["merchant", "create", "Acme"]);
    merchant["secret_key"].as_str().unwrap().to_owned()
}

fn assert_audit_clean(site: &Site) -> Value {
    let audit = site.json(&["audit"]);
    assert_eq!(audit["differences"], json!([]));
    audit
}

/// Eight callers, until they are told to stop or cannot go on.
async fn load(service: &Service, u: &str, token: &str, seconds: f32) {
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..8)
        .map(|number| {
            let (stop, call) = (stop.clone(), service.forward(u, token, number % 2 == 0));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let mut open = call.open().await;
                    while open.read_some().await {}
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs_f32(seconds)).await;
    service.signal("-KILL");
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        // A caller that cannot connect any more fails, as it should.
        let _ = caller.await;
    }
}

#[test]
fn a_killed_service_comes_back_with_nothing_pending_and_nothing_lost() {
    each_site(async |site| {
        let key = merchant_key(site);
        let mut service = site.serve();
        let token = service.customer(&key, "1000").await;
        load(&service, &site.chat_url(), &token, 0.7).await;
        assert_eq!(service.exit_code(), None, "killed");

        let service = site.serve();
        let deadline = Instant::now() + Duration::from_secs(40);
        let audit = loop {
            let audit = assert_audit_clean(site);
            if audit["pending"] == 0 {
                break audit;
            }
            assert!(Instant::now() < deadline, "still pending: {audit}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let reached = site.simulator.stats().calls;
        assert!(reached > 20, "there was load: {reached}");
        assert!(
            audit["requests"].as_u64().unwrap() >= reached,
            "{audit}: {reached} calls reached the provider"
        );
        service.forward(&site.chat_url(), &token, false).send().await.expect(200);
        let wallets = service.call("GET", "/v1/requests?limit=1", &key).send().await.expect(200);
        assert_eq!(wallets["data"][0]["status"], "completed");
    });
}

#[test]
fn a_service_that_is_told_to_end_finishes_its_streams_first() {
    each_site(async |site| {
        let key = merchant_key(site);
        let mut service = site.serve();
        let token = service.customer(&key, "1000").await;
        let call = service.forward(&site.chat_url(), &token, true);
        let slow = call.header("x-simulate-chunk-delay-ms", "40").header("x-simulate-words", "20");
        let mut streams = Vec::new();
        for _ in 0..20 {
            let mut open = slow.open().await;
            open.read_until("data: ").await;
            streams.push(open);
        }
        service.signal("-TERM");
        for mut open in streams {
            while open.read_some().await {}
            let answer = open.answer();
            assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"));
        }
        assert_eq!(service.exit_code(), Some(0));
        let audit = assert_audit_clean(site);
        assert_eq!((&audit["requests"], &audit["pending"]), (&json!(20), &json!(0)));
    });
}

#[test]
fn a_second_service_on_one_sqlite_file_does_not_start() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let _first = site.serve();
    let second = site.run(&["serve"]);
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("another tollgate serves"));
}

#[test]
fn the_commands_work_beside_a_running_service() {
    each_site(async |site| {
        let service = site.serve();
        let merchant = site.json(&["merchant", "create", "Acme"]);
        let id = merchant["merchant_id"].as_str().unwrap();
        let second = site.json(&["key", "create", "--merchant", id, "--name", "second"]);
        let second_key = second["secret_key"].as_str().unwrap();
        service.call("GET", "/v1/wallet", second_key).send().await.expect(200);
        let list = site.run(&["key", "list", "--merchant", id]);
        assert_eq!(String::from_utf8_lossy(&list.stdout).lines().count(), 2);

        let wallet = merchant["wallet_id"].as_str().unwrap();
        let credit = site.json(&["wallet", "credit", wallet, "12.5", "--description", "Start"]);
        assert_eq!(credit["balance_after"], "12.5000000000");
        let key_id = second["secret_key_id"].as_str().unwrap();
        site.json(&["key", "revoke", "--merchant", id, key_id]);
        let refused = service.call("GET", "/v1/wallet", second_key).send().await;
        assert_eq!(refused.error(), "auth_invalid");
        let list = site.run(&["key", "list", "--merchant", id, "--json"]);
        let first: Value = serde_json::from_slice(&list.stdout).unwrap();
        let last = site.run(&[
            "key",
            "revoke",
            "--merchant",
            id,
            first["secret_key_id"].as_str().unwrap(),
        ]);
        assert!(!last.status.success());
        assert!(String::from_utf8_lossy(&last.stderr).contains("last key"));
        assert!(site.run(&["migrate"]).status.success());
        assert!(site.run(&["config", "check"]).status.success());
    });
}

#[test]
fn an_audit_names_what_was_tampered_with_and_fails() {
    let Some(database) = postgres::database() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    let merchant = site.json(&["merchant", "create", "Acme"]);
    let wallet = merchant["wallet_id"].as_str().unwrap();
    site.json(&["wallet", "credit", wallet, "1"]);
    assert_audit_clean(&site);
    site.database.as_ref().unwrap().execute("UPDATE wallets SET balance = balance + 1");
    let audit = site.run(&["audit"]);
    assert_eq!(audit.status.code(), Some(1));
    let said = String::from_utf8_lossy(&audit.stdout).into_owned();
    let expected = format!("wallet {wallet} balance: kept 10000000001, recomputed 10000000000");
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn a_configuration_with_mistakes_does_not_start_and_says_all_of_them() {
    let site = Site::new("mysql://nowhere", None);
    let path = site.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("listn = \"x\"\n{text}")).unwrap();
    for command in [vec!["config", "check"], vec!["serve"]] {
        let output = site.run(&command);
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("listn:") && said.contains("database_url:"), "{said}");
    }
}

#[test]
fn the_demo_prints_lines_that_work_when_pasted() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["demo", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut script = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let line = line.trim();
        let pasted = ["TOKEN=", "KEY=", "curl ", "export ", "seq "];
        if pasted.iter().any(|start| line.starts_with(start)) {
            script.push_str(line);
            script.push_str("\necho\n");
        }
        // The last line that can be pasted sends 200 calls.
        if line.starts_with("seq 200 ") {
            break;
        }
    }
    // What the SDKs make of the exported lines: each adds its path, and sends its key in its way.
    script.push_str(
        r#"
        curl -s "$OPENAI_BASE_URL/models" -H "Authorization: Bearer $OPENAI_API_KEY"
        curl -s "$ANTHROPIC_BASE_URL/v1/messages/count_tokens" -H "x-api-key: $ANTHROPIC_API_KEY" \
            -H "Content-Type: application/json" \
            -d '{"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "Hello!"}]}'
        "#,
    );
    let output = Command::new("bash").arg("-c").arg(&script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let _ = child.kill();
    let _ = child.wait();
    for expected in [
        "chat.completion",
        "data: [DONE]",
        "\"type\":\"message\"",
        "\"has_more\":false",
        "\"user\":\"ada\"",
        "\"spend_key_id\":\"spk_",
        " 10 200\n",
        " 190 402\n",
        "\"id\":\"gpt-4o-mini\"",
        "\"input_tokens\":1}",
    ] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
    assert_eq!(
        said.matches("\"status\":\"completed\"").count(),
        5,
        "four in the list, one alone: {said}"
    );
}
