//! Nodes: the same callers on one, two and four nodes of one PostgreSQL.

use crate::call::Call;
use crate::line::{self, Line};
use crate::load::Load;
use crate::options::Options;
use crate::report::{self, Table};
use crate::stand::{Stand, Target};

use super::keys;

const CALLERS: usize = 64;
const TARGET: Target = Target::Tollgate(0);
pub(crate) const MOST: usize = 4;

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (name, keys) in [("one key", 1), ("1,000 keys, a wallet each", 1_000)] {
        let requests: std::sync::Arc<[_]> = keys::calls(stand, keys, keys > 1).await?.into();
        for nodes in [1, 2, MOST] {
            let serving = stand.service(0)?.nodes.iter().take(nodes);
            let load = Load {
                addresses: serving.map(|node| node.address).collect(),
                requests: requests.clone(),
                ..stand.load(TARGET, &Call::default(), CALLERS)?
            };
            lines.push(Line::new(&format!("{name} | {nodes}"), TARGET, load));
        }
    }
    line::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    report::title(&format!("{CALLERS} callers on so many nodes of one database"), host, options);
    Table::of("spend keys | nodes")
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .cpu(host)
        .print(&lines);
    report::generator(&lines);
    Ok(())
}
