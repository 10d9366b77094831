//! A database of one test.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use super::cluster::Cluster;

/// A database of one test, removed when this is dropped.
#[derive(Debug)]
pub struct TestDatabase {
    pub(super) cluster: &'static Cluster,
    pub(super) name: String,
    pub(super) url: String,
}

impl TestDatabase {
    pub(super) fn create(cluster: &'static Cluster) -> Self {
        Self::copy(cluster, "template1")
    }

    pub(super) fn copy(cluster: &'static Cluster, template: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Processes share the server, and the system reuses process ids.
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros());
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{now}_{serial}", process::id());
        let sql = format!("CREATE DATABASE {name} TEMPLATE {template}");
        // To copy pages through the log, as PostgreSQL does by default, takes five times as long. Before version 15 it
        // copies files and does not know the option.
        let created = cluster.execute(&format!("{sql} STRATEGY file_copy"));
        let created = created.or_else(|error| match error.contains("not recognized") {
            true => cluster.execute(&sql),
            false => Err(error),
        });
        created.expect("a database can be created");
        let url = cluster.url(&name);
        Self { cluster, name, url }
    }

    /// The URL for libpq: `postgres:///name?host=/socket/directory&user=postgres`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs SQL in the database, for tests that bypass the code under test.
    ///
    /// # Panics
    /// With the server's message if it refuses.
    pub fn execute(&self, sql: &str) {
        if let Err(message) = self.cluster.execute_in(&self.name, sql) {
            panic!("{sql}: {message}");
        }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // Forced, because pools may still be connected. If it fails, the watchdog removes the database with all
        // others.
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        drop(self.cluster.execute(&sql));
    }
}
