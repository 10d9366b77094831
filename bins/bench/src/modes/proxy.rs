//! The whole path, compared to nginx and to direct calls: calls, streams, stalls in streams, and
//! memory.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::call::ChatCall;
use crate::load::{Load, StopCondition, percentile_us};
use crate::measurement::{self, Measurement};
use crate::nginx::Buffering;
use crate::options::BenchOptions;
use crate::process::peak_memory_kib;
use crate::report::{self, Comparison, ReportTable};
use crate::testbed::{LoadTarget, Testbed};

/// The number of streams that are open at a time to measure their memory, and the time between their
/// events: long enough that all are open before the first ends.
const OPEN_STREAMS: usize = 1_000;
const OPEN_APART_MS: u64 = 200;

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (name, call, concurrency, apart) in loads() {
        if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        for target in stand.targets() {
            let load = Load { apart, ..stand.load(target, &call, concurrency)? };
            lines.push(Measurement::new(&name, target, load));
        }
    }
    anyhow::ensure!(!lines.is_empty(), "no load has the text of --only in its name");
    measurement::drive(stand, &mut lines, options).await?;
    let under_calls = peak_memory_mb(stand)?;
    let host = stand.service(0)?.database.host;
    report::print_title("Tollgate beside nginx and beside direct calls", host, options);
    let to = |target| report::baseline_on(&lines, target);
    ReportTable::of("load")
        .text("target", |line| line.target.to_string())
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .compared_to(
            "added p50",
            Comparison::Difference(0),
            |figures| figures.p50_us,
            to(LoadTarget::Direct),
        )
        .compared_to(
            "added p99",
            Comparison::Difference(0),
            |figures| figures.p99_us,
            to(LoadTarget::Direct),
        )
        .compared_to(
            "CPU × nginx",
            Comparison::Ratio,
            |figures| figures.cpu_us,
            to(LoadTarget::Nginx(Buffering::Off)),
        )
        .compared_to(
            "CPU × defaults",
            Comparison::Ratio,
            |figures| figures.cpu_us,
            to(LoadTarget::Nginx(Buffering::Default)),
        )
        .compared_to(
            "CPU × direct",
            Comparison::Ratio,
            |figures| figures.cpu_us,
            to(LoadTarget::Direct),
        )
        .cpu(host)
        .print(&lines);
    let paced: Vec<_> =
        lines.iter().filter(|line| line.median(|figures| figures.event_p50_us) > 0.0).collect();
    if !paced.is_empty() {
        report::print_title(
            "Events, from the provider's sending to the client's reading",
            host,
            options,
        );
        ReportTable::of("streams")
            .text("target", |line| line.target.to_string())
            .figure("p50", 0, |figures| figures.event_p50_us)
            .figure("p99", 0, |figures| figures.event_p99_us)
            .figure("max", 0, |figures| figures.event_max_us)
            .print(paced);
    }
    open_streams(stand, &under_calls).await?;
    report::print_generator_load(&lines);
    Ok(())
}

/// The loads: name, call, concurrency, and the time between the starts of the connections.
fn loads() -> Vec<(String, ChatCall, usize, Duration)> {
    let (mut loads, together) = (Vec::new(), Duration::ZERO);
    for count in [1, 16, 64] {
        loads.push((format!("calls, {count} at a time"), ChatCall::default(), count, together));
    }
    let behavior = vec![("x-simulate-first-byte-delay-ms", "50".to_owned())];
    let slow = ChatCall { behavior, ..ChatCall::default() };
    let name = "calls, 64 at a time, provider takes 50 ms";
    loads.push((name.to_owned(), slow.clone(), 64, together));
    // Starts spread over the time that the provider takes, so that clients do not wait for each other.
    loads.push((format!("{name}, begun one by one"), slow, 64, Duration::from_micros(50_000 / 64)));
    let fast = ChatCall { streams: true, ..ChatCall::default() };
    loads.push(("streams of 24 events, 16 at a time".to_owned(), fast, 16, together));
    for (apart_ms, count) in [(5, 16), (20, 200)] {
        let name = format!("streams of 24 events, {apart_ms} ms apart, {count} at a time");
        loads.push((name, ChatCall::paced(apart_ms), count, together));
    }
    loads
}

/// The peak memory of each target, in MB.
fn peak_memory_mb(stand: &Testbed) -> anyhow::Result<BTreeMap<LoadTarget, f64>> {
    let peak = |target| -> anyhow::Result<_> {
        let kib = stand.processes(target).into_iter().map(peak_memory_kib);
        Ok((target, kib.sum::<anyhow::Result<u64>>()? as f64 * 1.024e-3))
    };
    stand.targets().into_iter().map(peak).collect()
}

/// Opens many streams at once on each target; prints its peak memory before and after.
async fn open_streams(
    stand: &mut Testbed,
    before: &BTreeMap<LoadTarget, f64>,
) -> anyhow::Result<()> {
    println!("Peak memory in MB, and how late events came while the streams were open, in µs.\n");
    println!("| target | under the loads above | with {OPEN_STREAMS} open streams | p50 | p99 |");
    println!("|---|---:|---:|---:|---:|");
    for target in stand.targets() {
        eprintln!("{OPEN_STREAMS} open streams, {target}");
        let load = stand.load(target, &ChatCall::paced(OPEN_APART_MS), OPEN_STREAMS)?;
        // The short time makes each connection open one stream.
        let driven =
            stand.drive(target, &load, StopCondition::After(Duration::from_millis(1))).await?;
        let memory = |peaks: &BTreeMap<_, f64>| peaks.get(&target).copied().unwrap_or(f64::NAN);
        println!(
            "| {target} | {:.1} | {:.1} | {:.0} | {:.0} |",
            memory(before),
            memory(&peak_memory_mb(stand)?),
            percentile_us(&driven.events_ns, 0.5),
            percentile_us(&driven.events_ns, 0.99),
        );
    }
    println!();
    Ok(())
}
