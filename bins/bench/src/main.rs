//! The cost of Tollgate compared to a plain proxy: a simulated provider is called directly, through
//! nginx, and through `tollgate serve` with all features, interleaved in one run. Other modes measure
//! how that cost grows.
//!
//! `just bench-proxy` runs it; docs/internals/benchmarks.md explains the tables.

#![expect(
    clippy::float_arithmetic,
    clippy::as_conversions,
    reason = "figures are measured and printed here; nothing is booked with them"
)]

mod call;
mod conservation;
mod database;
mod http;
mod load;
mod measurement;
mod merchant;
mod metrics;
mod modes;
mod nginx;
mod options;
mod process;
mod program;
mod report;
mod service;
mod testbed;

use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use database::{DatabaseHost, DatabaseSource};
use modes::{bodies, keys, nodes, proxy, records, refusals, sockets, webhooks};
use options::{BenchMode, BenchOptions};
use testbed::Testbed;

fn main() -> anyhow::Result<ExitCode> {
    let options = BenchOptions::parse();
    // One thread, because the CPU time of the generator is lost to the measured programs.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        // In each case the programs end when the future that owns them is dropped.
        tokio::select! {
            result = run(&options) => result,
            _ = interrupt.recv() => bail!("interrupted"),
            _ = terminate.recv() => bail!("terminated"),
        }
    })
}

async fn run(options: &BenchOptions) -> anyhow::Result<ExitCode> {
    process::raise_open_files()?;
    let server = DatabaseSource::start(&options.database)?;
    let mut conserved = true;
    for mode in &options.modes {
        conserved &= measure(*mode, &server, options).await?;
    }
    Ok(if conserved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures one mode on its own stand. Returns whether every call is in the ledger at the end.
async fn measure(
    mode: BenchMode,
    server: &DatabaseSource,
    options: &BenchOptions,
) -> anyhow::Result<bool> {
    let mut stand = Testbed::start(matches!(mode, BenchMode::Proxy | BenchMode::Bodies)).await?;
    let services: &[usize] = if mode == BenchMode::Nodes { &nodes::NODES } else { &[1] };
    for nodes in services {
        let database = server.database(stand.folder(), "tollgate.db").await?;
        ensure!(
            *nodes == 1 || database.host != DatabaseHost::Sqlite,
            "nodes need `--database postgres`"
        );
        stand.serve(database, *nodes).await?;
    }
    match mode {
        BenchMode::Proxy => proxy::run(&mut stand, options).await?,
        BenchMode::Bodies => bodies::run(&mut stand, options).await?,
        BenchMode::Keys => keys::run(&mut stand, options).await?,
        BenchMode::Nodes => nodes::run(&mut stand, options).await?,
        BenchMode::Records => {
            records::fill(&mut stand, server, options).await?;
            records::run(&mut stand, options).await?;
        }
        BenchMode::Refusals => refusals::run(&mut stand, options).await?,
        BenchMode::Sockets => sockets::run(&mut stand, options).await?,
        BenchMode::Webhooks => webhooks::run(&mut stand, options).await?,
    }
    conservation::check(stand).await
}
