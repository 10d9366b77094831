//! The command line of the benchmark.

use std::num::NonZeroU32;

use clap::{Parser, ValueEnum};

/// Measure the simulated provider directly, through nginx and through Tollgate.
#[derive(Parser)]
pub(crate) struct BenchOptions {
    /// The modes, measured one after the other.
    #[arg(value_enum, default_value = "proxy")]
    pub(crate) modes: Vec<BenchMode>,
    /// The time for which each target is driven in a round.
    #[arg(long, default_value = "2", value_name = "N")]
    pub(crate) seconds: NonZeroU32,
    /// The number of rounds; the tables show medians.
    #[arg(long, default_value = "5", value_name = "N")]
    pub(crate) rounds: NonZeroU32,
    /// `sqlite` for files in the temporary directory, `postgres` for a server that is started for
    /// this run, or the URL of an empty PostgreSQL database.
    #[arg(long, default_value = "sqlite", value_name = "sqlite|postgres|URL")]
    pub(crate) database: String,
    /// A text: of `proxy` and `bodies`, only the loads whose names contain it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// The number of records in the store of `records`.
    #[arg(long, default_value = "1000000", value_name = "N")]
    pub(crate) records: u64,
    /// An existing store for `records`, filled by `just bench-lists`.
    #[arg(long, value_name = "URL")]
    pub(crate) filled: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchMode {
    /// Calls, streams and memory, compared to nginx and direct calls.
    Proxy,
    /// Bodies from 1 KB to 10 MB, compared to nginx and direct calls.
    Bodies,
    /// One spend key, and up to a thousand.
    Keys,
    /// One, two and four nodes; on PostgreSQL.
    Nodes,
    /// A store with many records.
    Records,
    /// Calls that are refused.
    Refusals,
    /// Voice sessions beside calls, compared to sessions at the provider, and idle sockets.
    Sockets,
    /// Events that wait for dead receivers.
    Webhooks,
}
