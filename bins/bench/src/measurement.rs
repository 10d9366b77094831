//! Loads that are driven beside each other in rounds, so that other activity of the machine affects all
//! of them, and their results.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::database::DatabaseHost;
use crate::load::{Load, LoadResult, StopCondition, percentile_us};
use crate::metrics::MetricsPage;
use crate::options::BenchOptions;
use crate::process::CpuClock;
use crate::testbed::{LoadTarget, Testbed};

/// A load on a target, and its result in each round.
pub(crate) struct Measurement {
    pub(crate) name: String,
    pub(crate) target: LoadTarget,
    pub(crate) load: Load,
    pub(crate) rounds: Vec<RoundResult>,
}

/// The result of one target under one load in one round; times in µs, CPU time per call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundResult {
    pub(crate) calls_per_s: f64,
    /// The data sent and received.
    pub(crate) megabytes_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The latency of events from the provider, where they have their time of sending.
    pub(crate) event_p50_us: f64,
    pub(crate) event_p99_us: f64,
    pub(crate) event_max_us: f64,
    pub(crate) cpu_us: f64,
    /// The parts of Tollgate's threads that write, and of those that serve.
    pub(crate) ledger_us: f64,
    pub(crate) workers_us: f64,
    /// The CPU time of PostgreSQL for a call through Tollgate.
    pub(crate) database_us: f64,
    /// The admissions and settlements that were booked together, on average.
    pub(crate) group_size: f64,
    /// The share of its one thread that the generator used; near 1 it measures itself.
    pub(crate) generator: f64,
}

impl Measurement {
    pub(crate) fn new(name: &str, target: LoadTarget, load: Load) -> Self {
        Self { name: name.to_owned(), target, load, rounds: Vec::new() }
    }

    pub(crate) fn median(&self, of: fn(&RoundResult) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }

    /// The median of the comparisons with the same rounds of another line: only rounds that ran side by
    /// side are compared.
    pub(crate) fn median_against(
        &self,
        other: &Self,
        of: fn(&RoundResult) -> f64,
        compare: fn(f64, f64) -> f64,
    ) -> f64 {
        let pairs = self.rounds.iter().map(of).zip(other.rounds.iter().map(of));
        median(pairs.map(|(one, other)| compare(one, other)))
    }
}

const WARM_UP: Duration = Duration::from_secs(1);

/// Drives every line in every round, in an order that changes from round to round.
pub(crate) async fn drive(
    stand: &mut Testbed,
    lines: &mut [Measurement],
    options: &BenchOptions,
) -> anyhow::Result<()> {
    let mut cold: BTreeSet<_> = lines.iter().map(|line| line.target).collect();
    for line in lines.iter() {
        let is_cold = cold.remove(&line.target);
        if is_cold {
            eprintln!("{}: processes {:?}", line.target, stand.processes(line.target));
        }
        // A node reads a key from the database when it sees it for the first time.
        if is_cold || line.load.requests.len() > 1 {
            stand.drive(line.target, &line.load, StopCondition::After(WARM_UP)).await?;
        }
    }
    for round in 1..=options.rounds.get() {
        for line in lines.iter_mut() {
            eprintln!("round {round}/{}: {}, {}", options.rounds, line.name, line.target);
            measure(stand, line, options).await?;
        }
        // So that no line always follows the same one.
        lines.rotate_left(1);
    }
    let turned = usize::try_from(options.rounds.get())?.checked_rem(lines.len()).unwrap_or(0);
    lines.rotate_right(turned);
    Ok(())
}

/// Measures one round of one line.
pub(crate) async fn measure(
    stand: &mut Testbed,
    line: &mut Measurement,
    options: &BenchOptions,
) -> anyhow::Result<()> {
    let time = Duration::from_secs(options.seconds.get().into());
    // One call before the measurement uses up limits that allow a single call.
    if let (LoadTarget::Tollgate(place), Some(request)) = (line.target, line.load.requests.first())
    {
        stand.send_through(place, request).await?;
    }
    let groups_before = GroupCount::of(stand, line.target).await?;
    let before = CpuReading::take(stand, line.target)?;
    let driven = stand.drive(line.target, &line.load, StopCondition::After(time)).await?;
    let after = CpuReading::take(stand, line.target)?;
    let group_size = GroupCount::of(stand, line.target).await?.mean_since(&groups_before);
    line.rounds.push(RoundResult { group_size, ..RoundResult::of(&driven, &before, &after) });
    Ok(())
}

/// The groups that the nodes of a target have booked so far.
#[derive(Default)]
struct GroupCount {
    groups: f64,
    jobs: f64,
}

impl GroupCount {
    async fn of(stand: &Testbed, target: LoadTarget) -> anyhow::Result<Self> {
        let mut count = Self::default();
        let LoadTarget::Tollgate(place) = target else { return Ok(count) };
        let service = stand.service(place)?;
        for node in &service.nodes {
            let page = MetricsPage::of(node.address, &service.spend_key).await?;
            count.groups += page.value("tollgate_ledger_batch_calls_count")?;
            count.jobs += page.value("tollgate_ledger_batch_calls_sum")?;
        }
        Ok(count)
    }

    /// The mean size of the groups since `before`.
    fn mean_since(&self, before: &Self) -> f64 {
        (self.jobs - before.jobs) / (self.groups - before.groups)
    }
}

/// The CPU time used so far, in µs.
struct CpuReading {
    target: u64,
    ledger: u64,
    workers: u64,
    database: u64,
    generator: u64,
}

impl CpuReading {
    fn take(stand: &Testbed, target: LoadTarget) -> anyhow::Result<Self> {
        let clock = CpuClock::new()?;
        let (mut tree, mut ledger, mut workers, mut database) = (0, 0, 0, 0);
        for process in stand.processes(target) {
            tree += clock.of_tree_micros(process)?;
            ledger += clock.of_threads_micros(process, "ledger-")?;
            workers += clock.of_threads_micros(process, "actix-rt|")?;
        }
        if let LoadTarget::Tollgate(place) = target {
            database = match stand.service(place)?.database.host {
                DatabaseHost::Sqlite => 0,
                DatabaseHost::Server(postmaster) => clock.of_tree_micros(postmaster)?,
                DatabaseHost::Elsewhere => clock.of_name_micros("postgres")?,
            };
        }
        let generator = clock.of_process_micros(std::process::id())?;
        Ok(Self { target: tree, ledger, workers, database, generator })
    }
}

impl RoundResult {
    fn of(driven: &LoadResult, before: &CpuReading, after: &CpuReading) -> Self {
        let seconds = driven.elapsed.as_secs_f64();
        // A process or thread that ended in between takes its CPU time out of the sum.
        let used = |of: fn(&CpuReading) -> u64| of(after).saturating_sub(of(before)) as f64;
        let per_call = |of| used(of) / driven.answered.max(1) as f64;
        let latency = |share| percentile_us(&driven.latencies_ns, share);
        let event = |share| percentile_us(&driven.events_ns, share);
        Self {
            calls_per_s: driven.answered as f64 / seconds,
            megabytes_per_s: driven.bytes as f64 / seconds / 1e6,
            p50_us: latency(0.5),
            p99_us: latency(0.99),
            event_p50_us: event(0.5),
            event_p99_us: event(0.99),
            event_max_us: event(1.0),
            cpu_us: per_call(|reading| reading.target),
            ledger_us: per_call(|reading| reading.ledger),
            workers_us: per_call(|reading| reading.workers),
            database_us: per_call(|reading| reading.database),
            group_size: f64::NAN,
            generator: used(|reading| reading.generator) / seconds / 1e6,
        }
    }
}

/// The median; of an even number of values, the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    if values.len() % 2 == 1 { at(middle) } else { (at(middle.wrapping_sub(1)) + at(middle)) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
