//! Records: calls on a store with many records, compared to calls on one without.

use std::process::Command;

use anyhow::ensure;

use crate::call::ChatCall;
use crate::database::{BenchDatabase, DatabaseSource};
use crate::measurement::{self, Measurement};
use crate::options::BenchOptions;
use crate::program::program_path;
use crate::report::{self, Comparison, ReportTable};
use crate::testbed::{LoadTarget, Testbed};

/// Serves from a second store, with many records: the named one, or a new one.
pub(crate) async fn fill(
    stand: &mut Testbed,
    server: &DatabaseSource,
    options: &BenchOptions,
) -> anyhow::Result<()> {
    let database = match &options.filled {
        Some(url) => BenchDatabase::at(url.clone()).await?,
        None => {
            let database = server.database(stand.folder(), "filled.db").await?;
            let lists = ["-p", "tollgate-store", "--example", "lists"];
            let mut fill = Command::new(program_path(&lists, "examples/lists")?);
            fill.args([database.url.as_str(), &options.records.to_string(), "fill"]);
            ensure!(fill.status()?.success(), "the store cannot be filled");
            database
        }
    };
    stand.serve(database, 1).await?;
    stand.mark_filled()
}

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for concurrency in [16, 64] {
        for (place, records) in [(0, "none"), (1, "many")] {
            let target = LoadTarget::Tollgate(place);
            let load = stand.load(target, &ChatCall::default(), concurrency)?;
            lines.push(Measurement::new(&format!("{records} | {concurrency}"), target, load));
        }
    }
    measurement::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    let records = match &options.filled {
        Some(url) => format!("those of {url}"),
        None => options.records.to_string(),
    };
    let what = format!("Calls on a store with many records ({records}) and on one with none");
    report::print_title(&what, host, options);
    let none = || report::first_at_concurrency(&lines);
    ReportTable::of("records | at a time")
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .compared_to(
            "CPU to none",
            Comparison::Ratio,
            |figures| figures.cpu_us + figures.database_us,
            none(),
        )
        .compared_to("p50 to none", Comparison::Ratio, |figures| figures.p50_us, none())
        .cpu(host)
        .print(&lines);
    Ok(())
}
