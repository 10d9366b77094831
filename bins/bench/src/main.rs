//! What Tollgate costs beside a plain proxy: a simulated provider is called directly, through
//! nginx, and through `tollgate serve` with everything on, interleaved in one run. Other modes measure
//! how that cost grows.
//!
//! `just bench-proxy`; docs/BENCHMARKS.md explains the tables.

#![expect(
    clippy::float_arithmetic,
    clippy::as_conversions,
    reason = "figures are measured and printed here; nothing is booked with them"
)]

mod call;
mod conservation;
mod database;
mod http;
mod line;
mod load;
mod merchant;
mod modes;
mod nginx;
mod process;
mod program;
mod report;
mod service;
mod stand;

use std::num::NonZeroU32;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use database::{Host, Server};
use modes::{bodies, keys, nodes, proxy, records, refusals, webhooks};
use stand::Stand;

/// Measures the simulated provider directly, through nginx and through Tollgate.
#[derive(Parser)]
struct Options {
    /// What to measure, one after the other.
    #[arg(value_enum, default_value = "proxy")]
    modes: Vec<Mode>,
    /// How long each target is driven in a round.
    #[arg(long, default_value = "2", value_name = "N")]
    seconds: NonZeroU32,
    /// How many rounds; the tables have the medians.
    #[arg(long, default_value = "5", value_name = "N")]
    rounds: NonZeroU32,
    /// `sqlite` for files in the temporary directory, `postgres` for a server that is started for
    /// this run, or the URL of an empty PostgreSQL database.
    #[arg(long, default_value = "sqlite", value_name = "sqlite|postgres|URL")]
    database: String,
    /// Of `proxy` and `bodies`, only the loads whose names have this in them.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// How many records the store of `records` is filled with.
    #[arg(long, default_value = "1000000", value_name = "N")]
    records: u64,
    /// A store of `records` that `just bench-lists` has filled before.
    #[arg(long, value_name = "URL")]
    filled: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Calls, streams and memory, beside nginx and direct calls.
    Proxy,
    /// Bodies from 1 KB to 10 MB, beside nginx and direct calls.
    Bodies,
    /// One spend key, and up to a thousand.
    Keys,
    /// One, two and four nodes; on PostgreSQL.
    Nodes,
    /// A store with many records.
    Records,
    /// Calls that are refused.
    Refusals,
    /// Events that wait for receivers that are dead.
    Webhooks,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    // One thread: what the generator takes is taken from everything that it measures.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        // Whatever wins, the programs end with the future that owns them.
        tokio::select! {
            result = run(&options) => result,
            _ = interrupt.recv() => bail!("interrupted"),
            _ = terminate.recv() => bail!("terminated"),
        }
    })
}

async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    process::raise_open_files()?;
    let server = Server::start(&options.database)?;
    let mut conserved = true;
    for mode in &options.modes {
        conserved &= measure(*mode, &server, options).await?;
    }
    Ok(if conserved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures one thing on a stand of its own. Whether every call is in the books at its end.
async fn measure(mode: Mode, server: &Server, options: &Options) -> anyhow::Result<bool> {
    let mut stand = Stand::start(matches!(mode, Mode::Proxy | Mode::Bodies)).await?;
    let database = server.database(stand.folder(), "tollgate.db").await?;
    let nodes = if mode == Mode::Nodes { nodes::MOST } else { 1 };
    ensure!(nodes == 1 || database.host != Host::Sqlite, "nodes need `--database postgres`");
    stand.serve(database, nodes).await?;
    match mode {
        Mode::Proxy => proxy::run(&mut stand, options).await?,
        Mode::Bodies => bodies::run(&mut stand, options).await?,
        Mode::Keys => keys::run(&mut stand, options).await?,
        Mode::Nodes => nodes::run(&mut stand, options).await?,
        Mode::Records => {
            records::fill(&mut stand, server, options).await?;
            records::run(&mut stand, options).await?;
        }
        Mode::Refusals => refusals::run(&mut stand, options).await?,
        Mode::Webhooks => webhooks::run(&mut stand, options).await?,
    }
    conservation::check(stand).await
}
