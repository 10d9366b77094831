//! Calls while events wait for dead receivers, compared to calls while none wait.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use serde_json::json;

use crate::call::Call;
use crate::http::text_or_count;
use crate::line::{self, Line};
use crate::options::Options;
use crate::report::{self, Compare, Table};
use crate::stand::{Stand, Target};

const CALLERS: [usize; 2] = [1, 16];
const TARGET: Target = Target::Tollgate(0);
/// The number of events that wait for each receiver.
const EVENTS: usize = 1_000;

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<()> {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // One accepts connections and never answers; at the other address no process listens.
    let receivers = [silent.local_addr()?, SocketAddr::from((Ipv4Addr::LOCALHOST, 9))];
    let mut lines = Vec::new();
    for concurrency in CALLERS {
        for waiting in ["none", "1,000 for each of two dead receivers"] {
            let load = stand.load(TARGET, &Call::default(), concurrency)?;
            lines.push(Line::new(&format!("{waiting} | {concurrency}"), TARGET, load));
        }
    }
    for round in 1..=options.rounds.get() {
        eprintln!("round {round}/{}", options.rounds);
        for pair in lines.chunks_mut(2) {
            // The same events occur before both lines; they wait only where webhooks receive them.
            let told: [&[SocketAddr]; 2] = [&[], &receivers];
            for (line, told) in pair.iter_mut().zip(told) {
                let webhooks = happen(stand, told).await?;
                line::measure(stand, line, options).await?;
                for webhook_id in webhooks {
                    let path = format!("/webhooks/{webhook_id}");
                    stand.service(0)?.merchant.ask("DELETE", &path, "").await?;
                }
            }
        }
    }
    let host = stand.service(0)?.database.host;
    report::title("Calls while events wait", host, options);
    let none = || report::first_as_many(&lines);
    Table::of("events that wait | at a time")
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .beside("p50 to none", Compare::Ratio, |figures| figures.p50_us, none())
        .beside("p99 to none", Compare::Ratio, |figures| figures.p99_us, none())
        .cpu(host)
        .print(&lines);
    Ok(())
}

/// Creates webhooks for receivers, and events.
async fn happen(stand: &Stand, receivers: &[SocketAddr]) -> anyhow::Result<Vec<String>> {
    let merchant = &stand.service(0)?.merchant;
    let mut made = Vec::new();
    for receiver in receivers {
        let webhook = json!({"name": "dead", "url": format!("http://{receiver}/")});
        made.push(text_or_count(&merchant.post("/webhooks", &webhook).await?, "webhook_id")?);
    }
    for _ in 0..EVENTS {
        merchant.connection("0").await?;
    }
    Ok(made)
}
