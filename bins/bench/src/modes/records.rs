//! Records: calls on a store with many records, compared to calls on one without.

use std::process::Command;

use anyhow::ensure;

use crate::call::Call;
use crate::database::{Database, Server};
use crate::line::{self, Line};
use crate::options::Options;
use crate::program::built;
use crate::report::{self, Compare, Table};
use crate::stand::{Stand, Target};

/// Serves from a second store, with many records: the named one, or a new one.
pub(crate) async fn fill(
    stand: &mut Stand,
    server: &Server,
    options: &Options,
) -> anyhow::Result<()> {
    let database = match &options.filled {
        Some(url) => Database::at(url.clone()).await?,
        None => {
            let database = server.database(stand.folder(), "filled.db").await?;
            let lists = ["-p", "tollgate-store", "--example", "lists"];
            let mut fill = Command::new(built(&lists, "examples/lists")?);
            fill.args([database.url.as_str(), &options.records.to_string(), "fill"]);
            ensure!(fill.status()?.success(), "the store cannot be filled");
            database
        }
    };
    stand.serve(database, 1).await?;
    stand.mark_filled()
}

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for concurrency in [16, 64] {
        for (place, records) in [(0, "none"), (1, "many")] {
            let target = Target::Tollgate(place);
            let load = stand.load(target, &Call::default(), concurrency)?;
            lines.push(Line::new(&format!("{records} | {concurrency}"), target, load));
        }
    }
    line::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    let records = match &options.filled {
        Some(url) => format!("those of {url}"),
        None => options.records.to_string(),
    };
    let what = format!("Calls on a store with many records ({records}) and on one with none");
    report::title(&what, host, options);
    let none = || report::first_as_many(&lines);
    Table::of("records | at a time")
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .beside(
            "CPU to none",
            Compare::Ratio,
            |figures| figures.cpu_us + figures.database_us,
            none(),
        )
        .beside("p50 to none", Compare::Ratio, |figures| figures.p50_us, none())
        .cpu(host)
        .print(&lines);
    Ok(())
}
