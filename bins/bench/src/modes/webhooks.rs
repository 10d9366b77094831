//! Calls while events wait for dead receivers, compared to calls while none wait.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use serde_json::json;

use crate::call::ChatCall;
use crate::http::field_text;
use crate::measurement::{self, Measurement};
use crate::options::BenchOptions;
use crate::report::{self, Comparison, ReportTable};
use crate::testbed::{LoadTarget, Testbed};

const CALLERS: [usize; 2] = [1, 16];
const TARGET: LoadTarget = LoadTarget::Tollgate(0);
/// The number of events that wait for each receiver.
const EVENTS: usize = 1_000;

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // One accepts connections and never answers; at the other address no process listens.
    let receivers = [silent.local_addr()?, SocketAddr::from((Ipv4Addr::LOCALHOST, 9))];
    let mut lines = Vec::new();
    for concurrency in CALLERS {
        for waiting in ["none", "1,000 for each of two dead receivers"] {
            let load = stand.load(TARGET, &ChatCall::default(), concurrency)?;
            lines.push(Measurement::new(&format!("{waiting} | {concurrency}"), TARGET, load));
        }
    }
    for round in 1..=options.rounds.get() {
        eprintln!("round {round}/{}", options.rounds);
        for pair in lines.chunks_mut(2) {
            // The same events occur before both lines; they wait only where webhooks receive them.
            let told: [&[SocketAddr]; 2] = [&[], &receivers];
            for (line, told) in pair.iter_mut().zip(told) {
                let webhooks = create_events(stand, told).await?;
                measurement::measure(stand, line, options).await?;
                for webhook_id in webhooks {
                    let path = format!("/webhooks/{webhook_id}");
                    stand.service(0)?.merchant.send("DELETE", &path, "").await?;
                }
            }
        }
    }
    let host = stand.service(0)?.database.host;
    report::print_title("Calls while events wait", host, options);
    let none = || report::first_at_concurrency(&lines);
    ReportTable::of("events that wait | at a time")
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .compared_to("p50 to none", Comparison::Ratio, |figures| figures.p50_us, none())
        .compared_to("p99 to none", Comparison::Ratio, |figures| figures.p99_us, none())
        .cpu(host)
        .print(&lines);
    Ok(())
}

/// Creates webhooks for receivers, and events.
async fn create_events(stand: &Testbed, receivers: &[SocketAddr]) -> anyhow::Result<Vec<String>> {
    let merchant = &stand.service(0)?.merchant;
    let mut made = Vec::new();
    for receiver in receivers {
        let webhook = json!({"name": "dead", "url": format!("http://{receiver}/")});
        made.push(field_text(&merchant.post("/webhooks", &webhook).await?, "webhook_id")?);
    }
    for _ in 0..EVENTS {
        merchant.create_customer("0").await?;
    }
    Ok(made)
}
