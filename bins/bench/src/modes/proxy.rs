//! The whole path, compared to nginx and to direct calls: calls, streams, stalls in streams, and
//! memory.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::call::Call;
use crate::line::{self, Line};
use crate::load::{Load, Until, percentile_us};
use crate::nginx::Buffering;
use crate::options::Options;
use crate::process::peak_memory_kib;
use crate::report::{self, Compare, Table};
use crate::stand::{Stand, Target};

/// The number of streams that are open at a time to measure their memory, and the time between their
/// events: long enough that all are open before the first ends.
const OPEN_STREAMS: usize = 1_000;
const OPEN_APART_MS: u64 = 200;

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (name, call, concurrency, apart) in loads() {
        if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        for target in stand.targets() {
            let load = Load { apart, ..stand.load(target, &call, concurrency)? };
            lines.push(Line::new(&name, target, load));
        }
    }
    anyhow::ensure!(!lines.is_empty(), "no load has the text of --only in its name");
    line::drive(stand, &mut lines, options).await?;
    let under_calls = peaks(stand)?;
    let host = stand.service(0)?.database.host;
    report::title("Tollgate beside nginx and beside direct calls", host, options);
    let to = |target| report::same_on(&lines, target);
    Table::of("load")
        .text("target", |line| line.target.to_string())
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .beside("added p50", Compare::Difference(0), |figures| figures.p50_us, to(Target::Direct))
        .beside("added p99", Compare::Difference(0), |figures| figures.p99_us, to(Target::Direct))
        .beside(
            "CPU × nginx",
            Compare::Ratio,
            |figures| figures.cpu_us,
            to(Target::Nginx(Buffering::Off)),
        )
        .beside(
            "CPU × defaults",
            Compare::Ratio,
            |figures| figures.cpu_us,
            to(Target::Nginx(Buffering::Default)),
        )
        .beside("CPU × direct", Compare::Ratio, |figures| figures.cpu_us, to(Target::Direct))
        .cpu(host)
        .print(&lines);
    let paced: Vec<_> =
        lines.iter().filter(|line| line.median(|figures| figures.event_p50_us) > 0.0).collect();
    if !paced.is_empty() {
        report::title("Events, from the provider's sending to the client's reading", host, options);
        Table::of("streams")
            .text("target", |line| line.target.to_string())
            .figure("p50", 0, |figures| figures.event_p50_us)
            .figure("p99", 0, |figures| figures.event_p99_us)
            .figure("max", 0, |figures| figures.event_max_us)
            .print(paced);
    }
    open_streams(stand, &under_calls).await?;
    report::generator(&lines);
    Ok(())
}

/// The loads: name, call, concurrency, and the time between the starts of the connections.
fn loads() -> Vec<(String, Call, usize, Duration)> {
    let (mut loads, together) = (Vec::new(), Duration::ZERO);
    for count in [1, 16, 64] {
        loads.push((format!("calls, {count} at a time"), Call::default(), count, together));
    }
    let behavior = vec![("x-simulate-first-byte-delay-ms", "50".to_owned())];
    let slow = Call { behavior, ..Call::default() };
    let name = "calls, 64 at a time, provider takes 50 ms";
    loads.push((name.to_owned(), slow.clone(), 64, together));
    // Starts spread over the time that the provider takes, so that clients do not wait for each other.
    loads.push((format!("{name}, begun one by one"), slow, 64, Duration::from_micros(50_000 / 64)));
    let fast = Call { streams: true, ..Call::default() };
    loads.push(("streams of 24 events, 16 at a time".to_owned(), fast, 16, together));
    for (apart_ms, count) in [(5, 16), (20, 200)] {
        let name = format!("streams of 24 events, {apart_ms} ms apart, {count} at a time");
        loads.push((name, Call::paced(apart_ms), count, together));
    }
    loads
}

/// The peak memory of each target, in MB.
fn peaks(stand: &Stand) -> anyhow::Result<BTreeMap<Target, f64>> {
    let peak = |target| -> anyhow::Result<_> {
        let kib = stand.processes(target).into_iter().map(peak_memory_kib);
        Ok((target, kib.sum::<anyhow::Result<u64>>()? as f64 * 1.024e-3))
    };
    stand.targets().into_iter().map(peak).collect()
}

/// Opens many streams at once on each target; prints its peak memory before and after.
async fn open_streams(stand: &mut Stand, before: &BTreeMap<Target, f64>) -> anyhow::Result<()> {
    println!(
        "Peak memory in MB, and how late events came while so many streams were open, in µs.\n"
    );
    println!("| target | under the loads above | with {OPEN_STREAMS} open streams | p50 | p99 |");
    println!("|---|---:|---:|---:|---:|");
    for target in stand.targets() {
        eprintln!("{OPEN_STREAMS} open streams, {target}");
        let load = stand.load(target, &Call::paced(OPEN_APART_MS), OPEN_STREAMS)?;
        // The short time makes each connection open one stream.
        let driven = stand.drive(target, &load, Until::After(Duration::from_millis(1))).await?;
        let memory = |peaks: &BTreeMap<_, f64>| peaks.get(&target).copied().unwrap_or(f64::NAN);
        println!(
            "| {target} | {:.1} | {:.1} | {:.0} | {:.0} |",
            memory(before),
            memory(&peaks(stand)?),
            percentile_us(&driven.events_ns, 0.5),
            percentile_us(&driven.events_ns, 0.99),
        );
    }
    println!();
    Ok(())
}
