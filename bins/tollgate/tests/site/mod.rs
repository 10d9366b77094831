//! The real program in its own folder, with a simulated provider.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test harness fails by panicking"
)]
#![expect(unreachable_pub, reason = "it is all of one program")]

pub mod load;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_simulator::{Behavior, Simulator};
use tollgate_testkit::store::block_on;
use tollgate_testkit::{TestDatabase, TestRequest, postgres};

/// A configuration in its own folder, with a simulated provider.
pub struct Site {
    folder: TempDir,
    pub simulator: Simulator,
    pub database: Option<TestDatabase>,
}

/// Runs `test` on a site of each database.
pub fn each_site(test: impl AsyncFn(&Site)) {
    let databases = [None, postgres::database()];
    for (place, database) in databases.into_iter().enumerate() {
        if place == 1 && database.is_none() {
            continue;
        }
        let url = database.as_ref().map_or("sqlite:DIR/tollgate.db", TestDatabase::url).to_owned();
        let site = Site::new(&url, database);
        block_on(test(&site));
    }
}

impl Site {
    /// Changes the database behind the program's back.
    pub fn execute(&self, sql: &str) {
        match &self.database {
            Some(database) => database.execute(sql),
            None => {
                let file = self.path().join("tollgate.db");
                let conn = rusqlite::Connection::open(file).unwrap();
                conn.busy_timeout(Duration::from_secs(10)).unwrap();
                conn.execute_batch(sql).unwrap();
            }
        }
    }

    pub fn new(database_url: &str, database: Option<TestDatabase>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let simulator = Simulator::start("127.0.0.1:0", Behavior::default()).unwrap();
        let database_url = database_url.replace("DIR", folder.path().to_str().unwrap());
        let config = format!(
            r#"
            listen = "127.0.0.1:0"
            database_url = "{database_url}"
            operator_token = "operator"
            standard_rate_per_minute = 0
            webhook_allow_http = true
            webhook_allow_private_network = true
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

    /// Fails if PostgreSQL ended a transaction of the site because of a deadlock. No node may run.
    pub fn assert_no_deadlocks(&self) {
        let Some(database) = &self.database else { return };
        // A server process reports its counts when it ends, at the latest.
        database.execute(
            "DO $$ BEGIN
                WHILE EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                        AND pid <> pg_backend_pid()) LOOP
                    PERFORM pg_sleep(0.05);
                    PERFORM pg_stat_clear_snapshot();
                END LOOP;
                IF (SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()) > 0
                    THEN RAISE EXCEPTION 'there were deadlocks';
                END IF;
            END $$",
        );
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("--config").arg(self.path().join("tollgate.toml")).args(arguments);
        // As for users by default.
        command.current_dir(self.path()).env_remove("RUST_BACKTRACE");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed and prints JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(arguments).arg("--json").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn serve(&self) -> ServiceProcess {
        self.serve_with(&[])
    }

    /// As [`Self::serve`], with settings of the environment.
    pub fn serve_with(&self, settings: &[(&str, &str)]) -> ServiceProcess {
        let mut command = self.command(&["serve"]);
        ServiceProcess::start(command.envs(settings.iter().copied()).stderr(Stdio::null()))
    }

    /// As [`Self::serve_with`], with all log lines of the process in this file.
    pub fn serve_logging_to(&self, log: &Path, settings: &[(&str, &str)]) -> ServiceProcess {
        let log = std::fs::File::create(log).unwrap();
        let mut command = self.command(&["serve"]);
        command.envs(settings.iter().copied()).env("RUST_LOG", "trace");
        ServiceProcess::start(command.stderr(log))
    }

    /// Starts the simulator as a separate process.
    pub fn simulate(&self) -> ServiceProcess {
        let mut command = self.command(&["simulator", "--listen", "127.0.0.1:0"]);
        ServiceProcess::start(command.stderr(Stdio::null()))
    }

    pub fn chat_url(&self) -> String {
        self.simulator.url("/v1/chat/completions")
    }
}

/// A running `tollgate serve` (or `simulator`); it ends with the test.
pub struct ServiceProcess {
    child: Child,
    pub address: SocketAddr,
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServiceProcess {
    /// Starts it, and waits until it prints its address.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let (_, url) = line.split_once("://").unwrap();
        let address = url.split('/').next().unwrap().parse().unwrap();
        Self { child, address }
    }

    /// The id of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// The resident memory, from `/proc`.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }

    pub fn call(&self, method: &str, path: &str, credential: &str) -> TestRequest {
        TestRequest::new(self.address, method, path).bearer(credential)
    }

    /// Creates a customer with money, and a meter; returns a forward token for them.
    pub async fn create_customer(&self, key: &str, amount: &str) -> String {
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

    pub fn forward(&self, u: &str, token: &str, stream: bool) -> TestRequest {
        let body = json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hello"}]});
        self.call("POST", &format!("/v1/forward?u={u}"), token).json(&body)
    }
}

pub fn merchant_key(site: &Site) -> String {
    let merchant = site.json(&["merchant", "create", "Acme"]);
    merchant["secret_key"].as_str().unwrap().to_owned()
}

pub fn assert_audit_clean(site: &Site) -> Value {
    let audit = site.json(&["audit"]);
    assert_eq!(audit["differences"], json!([]));
    audit
}
