//! What a target did under a load, and what it took for that.

use crate::database::Database;
use crate::load::Driven;
use crate::process::CpuClock;

/// What one target did under one load in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) calls_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) cpu_us: f64,
    /// Of PostgreSQL, for a call through Tollgate.
    pub(crate) database_cpu_us: f64,
}

/// Reads the CPU of a target and of the database.
pub(crate) struct Gauge {
    clock: CpuClock,
    database: Database,
}

/// What both have used so far, in µs.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    target: u64,
    database: u64,
}

impl Gauge {
    pub(crate) fn new(database: Database) -> anyhow::Result<Self> {
        Ok(Self { clock: CpuClock::new()?, database })
    }

    pub(crate) fn read(&self, process: u32) -> anyhow::Result<Reading> {
        let database = match self.database {
            Database::Sqlite => 0,
            Database::Server(postmaster) => self.clock.of_tree_micros(postmaster)?,
            Database::Elsewhere => self.clock.of_name_micros("postgres")?,
        };
        Ok(Reading { target: self.clock.of_tree_micros(process)?, database })
    }
}

impl Figures {
    pub(crate) fn of(driven: &Driven, before: Reading, after: Reading) -> Self {
        // Processes may have ended in between, and taken with them what they had used.
        let per_call = |before, after: u64| {
            after.saturating_sub(before) as f64 / driven.answered.max(1) as f64
        };
        Self {
            calls_per_s: driven.calls_per_s(),
            p50_us: driven.latency_us(0.5),
            p99_us: driven.latency_us(0.99),
            cpu_us: per_call(before.target, after.target),
            database_cpu_us: per_call(before.database, after.database),
        }
    }
}
