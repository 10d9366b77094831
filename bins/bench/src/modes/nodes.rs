//! Nodes: the same callers on one, two and four nodes of one PostgreSQL.

use crate::call::ChatCall;
use crate::load::Load;
use crate::measurement::{self, Measurement};
use crate::options::BenchOptions;
use crate::report::{self, ReportTable};
use crate::testbed::{LoadTarget, Testbed};

use super::keys;

const CALLERS: usize = 64;
const TARGET: LoadTarget = LoadTarget::Tollgate(0);
pub(crate) const MOST: usize = 4;

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (name, keys) in [("one key", 1), ("1,000 keys, a wallet each", 1_000)] {
        let requests: std::sync::Arc<[_]> =
            keys::calls_with_keys(stand, keys, keys > 1).await?.into();
        for nodes in [1, 2, MOST] {
            let serving = stand.service(0)?.nodes.iter().take(nodes);
            let load = Load {
                addresses: serving.map(|node| node.address).collect(),
                requests: requests.clone(),
                ..stand.load(TARGET, &ChatCall::default(), CALLERS)?
            };
            lines.push(Measurement::new(&format!("{name} | {nodes}"), TARGET, load));
        }
    }
    measurement::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    report::print_title(
        &format!("{CALLERS} callers on that number of nodes with one database"),
        host,
        options,
    );
    ReportTable::of("spend keys | nodes")
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .cpu(host)
        .print(&lines);
    report::print_generator_load(&lines);
    Ok(())
}
