//! Nodes: the same callers on one, two and four nodes of one PostgreSQL.

use std::sync::Arc;

use crate::call::ChatCall;
use crate::load::Load;
use crate::measurement::{self, Measurement};
use crate::options::BenchOptions;
use crate::report::{self, Comparison, ReportTable};
use crate::testbed::{LoadTarget, Testbed};

use super::keys;

const CALLERS: usize = 64;
/// The numbers of nodes. Each number has a service of its own, with its own database. One is called at a time.
pub(crate) const NODES: [usize; 3] = [1, 2, 4];

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (name, keys) in [("one key", 1), ("1,000 keys, a wallet each", 1_000)] {
        for (place, nodes) in NODES.into_iter().enumerate() {
            let target = LoadTarget::Tollgate(place);
            let service = stand.service(place)?;
            let requests: Arc<[_]> = keys::calls_with_keys(service, keys, keys > 1).await?.into();
            let load = Load {
                addresses: service.nodes.iter().map(|node| node.address).collect(),
                requests,
                ..stand.load(target, &ChatCall::default(), CALLERS)?
            };
            lines.push(Measurement::new(&format!("{name} | {nodes}"), target, load));
        }
    }
    measurement::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    report::print_title(
        &format!("{CALLERS} callers on that number of nodes with one database"),
        host,
        options,
    );
    let one_node = |line: &Measurement| {
        let place = lines.iter().position(|other| other.name == line.name)?;
        lines.get(place - place.checked_rem(NODES.len())?)
    };
    ReportTable::of("spend keys | nodes")
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .compared_to("to one node", Comparison::Ratio, |figures| figures.calls_per_s, one_node)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .figure("group", 1, |figures| figures.group_size)
        .cpu(host)
        .print(&lines);
    report::print_generator_load(&lines);
    print_model(&lines);
    Ok(())
}

/// The cost of a group, in µs: of the group itself, and of each job in it. A call is two jobs.
#[derive(Clone, Copy)]
struct GroupCost {
    fixed: f64,
    job: f64,
}

impl GroupCost {
    /// The cost by which groups of two sizes cost this much.
    fn between([(few, of_few), (many, of_many)]: [(f64, f64); 2]) -> Self {
        let job = (of_many - of_few) / (many - few);
        Self { fixed: of_few - few * job, job }
    }

    fn of(self, jobs: f64) -> f64 {
        self.fixed + jobs * self.job
    }
}

/// Prints what more cores would do, by the costs of groups on few and on many nodes.
fn print_model(lines: &[Measurement]) {
    const CORES: f64 = 16.0;
    let (Some([hot, .., hot_spread]), Some([separate, .., spread])) =
        (lines.get(..NODES.len()), lines.get(NODES.len()..))
    else {
        return;
    };
    let cpu = |line: &Measurement| {
        let jobs = line.median(|round| round.group_size);
        (jobs, line.median(|round| (round.cpu_us + round.database_us) * round.group_size / 2.0))
    };
    // On one key, no two groups are booked at once.
    let time = |line: &Measurement| {
        let jobs = line.median(|round| round.group_size);
        (jobs, line.median(|round| 1e6 * round.group_size / (2.0 * round.calls_per_s)))
    };
    let cpu = GroupCost::between([cpu(spread), cpu(separate)]);
    let time = GroupCost::between([time(hot_spread), time(hot)]);
    println!(
        "Model of {CORES} cores for {} nodes and PostgreSQL, from the lines of 1 and {0} nodes. A call is two jobs.\n\
         With a wallet each, a group takes {:.0} µs of CPU and {:.1} more for each job. On one key, a group follows\n\
         the one before after {:.0} µs and {:.1} more for each job.\n",
        NODES.last().copied().unwrap_or_default(),
        cpu.fixed,
        cpu.job,
        time.fixed,
        time.job
    );
    println!("| jobs in a group | calls/s, a wallet each | calls/s, one key |\n|---:|---:|---:|");
    for jobs in [16.0, 32.0, 64.0, 128.0] {
        let calls = 1e6 * jobs / 2.0;
        let (each, one) = (CORES * calls / cpu.of(jobs), calls / time.of(jobs));
        println!("| {jobs} | {each:.0} | {one:.0} |");
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_group_is_a_line_through_two_sizes() {
        let cost = GroupCost::between([(10.0, 300.0), (30.0, 500.0)]);
        assert_eq!((cost.fixed, cost.job, cost.of(128.0)), (200.0, 10.0, 1_480.0));
    }
}
