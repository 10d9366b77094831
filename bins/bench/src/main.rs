//! What Tollgate costs beside a plain proxy: a simulated provider is called directly, through
//! nginx, and through `tollgate serve` with everything on, interleaved in one run. On request it
//! measures the service alone: a hot spend key, or refusals.
//!
//! `cargo run --release -p tollgate-bench -- --streams`; docs/BENCHMARKS.md explains the table.

#![expect(
    clippy::float_arithmetic,
    clippy::as_conversions,
    reason = "figures are measured and printed here; nothing is booked with them"
)]

mod conservation;
mod database;
mod gauge;
mod http;
mod keys;
mod line;
mod load;
mod measure;
mod merchant;
mod nginx;
mod process;
mod program;
mod refusals;
mod report;
mod stand;
mod webhooks;

use std::num::{NonZeroU32, NonZeroUsize};
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use stand::Stand;

/// Measures the simulated provider directly, through nginx and through Tollgate.
#[derive(Parser)]
struct Options {
    /// How long each target is driven in a round.
    #[arg(long, default_value = "3", value_name = "N")]
    seconds: NonZeroU32,
    /// How many rounds; the table has the medians.
    #[arg(long, default_value = "5", value_name = "N")]
    rounds: NonZeroU32,
    /// How many calls are on their way at a time.
    #[arg(long, default_value = "1,16,64", value_delimiter = ',', value_name = "N,…")]
    concurrency: Vec<NonZeroUsize>,
    /// `sqlite` for a file in the temporary directory, or the URL of an empty PostgreSQL database.
    #[arg(long, default_value = "sqlite", value_name = "sqlite|URL")]
    database: String,
    /// Measure streams, too: as fast as they come, and paced.
    #[arg(long)]
    streams: bool,
    /// Measure a hot spend key instead: 64 callers on one, and on a thousand.
    #[arg(long)]
    keys: bool,
    /// Measure what refusals cost instead.
    #[arg(long)]
    refusals: bool,
    /// Measure calls while events wait for receivers that are dead instead.
    #[arg(long)]
    webhooks: bool,
}

impl Options {
    fn compares_proxies(&self) -> bool {
        !self.keys && !self.refusals && !self.webhooks
    }
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
    let mut stand = Stand::start(options).await?;
    let conserved = if options.compares_proxies() {
        let measured = measure::run(&mut stand, options).await?;
        report::print(&stand, options, &measured);
        conservation::check(stand).await?
    } else {
        if options.keys {
            keys::run(&mut stand, options).await?;
        }
        if options.refusals {
            refusals::run(&mut stand, options).await?;
        }
        if options.webhooks {
            webhooks::run(&mut stand, options).await?;
        }
        conservation::books(stand.tollgate)?
    };
    Ok(if conserved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
