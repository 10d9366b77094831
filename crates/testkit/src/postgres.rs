//! A real PostgreSQL for tests, from the installed binaries, without configuration.
//!
//! ```no_run
//! let Some(database) = tollgate_testkit::postgres::database() else { return };
//! println!("{}", database.url());
//! ```
//!
//! One server serves all test processes of a `cargo test` or `cargo nextest` run, because the start of
//! one takes a second and nextest makes a process for each test. It listens only on a socket in a
//! temporary directory. It does not wait for disks (`fsync=off`): tests prove the statements that the
//! database receives, not that it survives a power cut.
//!
//! The server must not outlive the run, however the run ends. So it is started by a watchdog, a shell in
//! a process group of its own. The watchdog stops the server and removes its directory when the owner is
//! gone: cargo if it started the test, else the test process itself.

mod client;
mod cluster;
mod database;
mod faults;
mod install;
mod pooler;
mod tcp;

use std::net::Ipv4Addr;
use std::sync::OnceLock;

use cluster::{Cluster, QUICK};
pub use database::TestDatabase;
pub use faults::{FaultProxy, StatementFault};
use install::Installation;
pub use pooler::{PgBouncer, PoolMode};
pub use tcp::TcpProxy;

use crate::tools;

/// A new, empty database; `None`, with a warning, where PostgreSQL is not installed.
///
/// # Panics
/// If PostgreSQL is missing although `CI` is `true`, or if it does not start.
pub fn database() -> Option<TestDatabase> {
    cluster().map(TestDatabase::create)
}

/// A new database with the schema in it; `None` as for [`database()`].
///
/// It is a copy of a database that `migrate` has made once, given its URL, because migrations take longer
/// than most tests.
///
/// # Panics
/// As [`database`].
pub fn migrated_database(migrate: impl FnOnce(&str)) -> Option<TestDatabase> {
    const MIGRATED: &str = "migrated";
    let cluster = cluster()?;
    cluster.once(MIGRATED, || {
        cluster.execute(&format!("CREATE DATABASE {MIGRATED}")).expect("a database can be created");
        migrate(&cluster.url(MIGRATED));
    });
    Some(TestDatabase::copy(cluster, MIGRATED))
}

/// The server that the tests share.
fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(|| {
        let install =
            tools::require_tool("PostgreSQL (initdb, pg_ctl, postgres)", Installation::find());
        install.map(|install| Cluster::join_or_start(&install, &cluster::owner()))
    });
    cluster.as_ref()
}

/// A server that a test may stop and start.
#[derive(Debug)]
pub struct TestServer {
    cluster: &'static Cluster,
    install: Installation,
}

/// A server for one test, and a new database on it.
///
/// `None`, with a warning, where PostgreSQL is not installed.
///
/// # Panics
/// As [`database`].
pub fn server() -> Option<(TestServer, TestDatabase)> {
    // Prints the warning where PostgreSQL is missing.
    database()?;
    let install = Installation::find()?;
    let server = TestServer::with(install, QUICK);
    let database = server.database();
    Some((server, database))
}

/// A server that waits for its disk, with the defaults of `initdb`.
///
/// It is for measurements and ends with the process. `None` where PostgreSQL is not installed.
///
/// # Panics
/// If it does not start.
pub fn durable_server() -> Option<TestServer> {
    Installation::find().map(|install| TestServer::with(install, ""))
}

impl TestServer {
    fn with(install: Installation, options: &str) -> Self {
        let cluster: &Cluster = Box::leak(Box::new(Cluster::start_own(&install, options)));
        Self { cluster, install }
    }

    /// A new database on this server.
    pub fn database(&self) -> TestDatabase {
        TestDatabase::create(self.cluster)
    }

    /// Stops the server at once, as a crash would.
    pub fn stop(&self) {
        self.cluster.stop(&self.install);
    }

    /// Starts the server again, and waits until it accepts connections.
    pub fn start(&self) {
        self.cluster.start_again(&self.install, "");
    }

    /// Keeps a copy of everything committed so far. The server is stopped for that, and started again.
    pub fn take_snapshot(&self) {
        self.stop();
        self.cluster.copy_data();
        self.start();
    }

    /// Stops the server at once and starts it as it was [kept](Self::take_snapshot).
    ///
    /// Later commits are lost, as with an asynchronous standby that takes over.
    pub fn restore_snapshot(&self) {
        self.stop();
        self.cluster.restore_data();
        self.start();
    }

    /// Makes the server listen on TCP as well, at an IPv4 address of this machine, with TLS alone. The certificate, the key
    /// and the authority of clients are PEM. With an authority, a client needs a certificate of it. The user `scram` needs a
    /// password, and `plain` a connection without TLS.
    pub fn listen_with_tls(
        &self,
        address: Ipv4Addr,
        (certificate, key): (&str, &str),
        clients: Option<&str>,
    ) {
        let cluster = self.cluster;
        cluster.put_file("server.crt", certificate);
        cluster.put_file("server.key", key);
        cluster.put_file("clients.crt", clients.unwrap_or_default());
        let verified = if clients.is_some() { "clientcert=verify-ca" } else { "" };
        let rules = [
            "local all all trust".to_owned(),
            "hostssl all scram 127.0.0.0/8 scram-sha-256".to_owned(),
            "hostssl all plain 127.0.0.0/8 reject".to_owned(),
            "hostnossl all plain 127.0.0.0/8 trust".to_owned(),
            format!("hostssl all all 127.0.0.0/8 trust {verified}"),
        ];
        cluster.put_file("pg_hba.conf", &rules.join("\n"));
        let authority = if clients.is_some() { "clients.crt" } else { "" };
        let more = format!(
            "-c listen_addresses={address} -c ssl=on -c ssl_cert_file=server.crt \
             -c ssl_key_file=server.key -c ssl_ca_file={authority}"
        );
        self.stop();
        cluster.start_again(&self.install, &more);
    }

    /// Suspends the server until the [`SuspendedServer`] is dropped; its connections stay open.
    pub fn suspend(&self) -> SuspendedServer<'_> {
        self.cluster.signal("-STOP");
        SuspendedServer(self)
    }

    /// Makes the server read-only or writable, also on open connections.
    pub fn set_read_only(&self, read_only: bool) {
        let value = if read_only { "on" } else { "off" };
        for sql in [
            &format!("ALTER SYSTEM SET default_transaction_read_only = {value}"),
            "SELECT pg_reload_conf()",
        ] {
            self.cluster.execute(sql).expect("the server's settings can be changed");
        }
    }
}

/// A suspended server, which continues when this is dropped.
#[derive(Debug)]
pub struct SuspendedServer<'a>(&'a TestServer);

impl Drop for SuspendedServer<'_> {
    fn drop(&mut self) {
        self.0.cluster.signal("-CONT");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_has_a_database_of_its_own_that_goes_with_it() {
        let Some(first) = database() else { return };
        let second = database().expect("there was one before");
        assert_ne!(first.url(), second.url());
        first.execute("CREATE TABLE t (id BIGINT PRIMARY KEY); INSERT INTO t VALUES (1)");
        second.execute("CREATE TABLE t (id TEXT)");

        let (cluster, name) = (first.cluster, first.name().to_owned());
        drop(first);

        let error = cluster.execute_in(&name, "SELECT 1").expect_err("it is gone");
        assert!(error.contains("does not exist"), "{error}");
        second.execute("SELECT id FROM t");
    }

    #[test]
    fn the_server_says_what_is_wrong() {
        let Some(database) = database() else { return };
        let error = database.cluster.execute("SELECT nonsense").expect_err("no such column");
        assert!(error.contains("nonsense"), "{error}");
    }

    #[test]
    fn the_server_is_set_up_for_tests() {
        let Some(database) = database() else { return };
        for (setting, value) in
            [("max_connections", "200"), ("listen_addresses", ""), ("fsync", "off")]
        {
            let check = format!(
                "DO $$ BEGIN ASSERT current_setting('{setting}') = '{value}', '{setting}'; END $$"
            );
            database.execute(&check);
        }
    }

    #[test]
    fn a_durable_server_waits_for_its_disk() {
        let Some(server) = durable_server() else { return };
        server.database().execute(
            "DO $$ BEGIN ASSERT current_setting('fsync') = 'on';
                ASSERT current_setting('synchronous_commit') = 'on';
                ASSERT current_setting('full_page_writes') = 'on'; END $$",
        );
    }
}
