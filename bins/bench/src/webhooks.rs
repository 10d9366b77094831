//! Calls while events wait for receivers that are dead, beside calls while none do.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::json;

use crate::Options;
use crate::gauge::{Figures, Gauge};
use crate::line::Line;
use crate::load::{Load, Until};
use crate::stand::{Call, Stand, text_or_count};

const CALLERS: [usize; 2] = [1, 16];
/// How many events wait, for each receiver.
const EVENTS: usize = 1_000;

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<()> {
    let gauge = Gauge::new(stand.database)?;
    let process = stand.tollgate.program.id();
    let time = Duration::from_secs(options.seconds.get().into());
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // One that connects and never answers, and one where nobody listens.
    let receivers = [silent.local_addr()?, SocketAddr::from((Ipv4Addr::LOCALHOST, 9))];
    let mut lines = Vec::new();
    for concurrency in CALLERS {
        for waiting in ["none", "1,000 for each of two dead receivers"] {
            let address = stand.tollgate.address;
            let call = Call::default();
            let requests = [call.through(&stand.tollgate, Until::After(time), &stand.provider)];
            let requests = requests.into();
            let load = Load { address, requests, status: 200, concurrency, streams: false };
            lines.push(Line::new(&format!("{waiting} | {concurrency}"), load));
        }
    }
    for round in 1..=options.rounds.get() {
        eprintln!("round {round}/{}", options.rounds);
        for pair in lines.chunks_mut(2) {
            // The same happens before both, and only where somebody is to be told of it does it wait.
            let told: [&[SocketAddr]; 2] = [&[], &receivers];
            for (line, told) in pair.iter_mut().zip(told) {
                let webhooks = happen(stand, told).await?;
                let before = gauge.read(process)?;
                let driven = stand.drive_through(&line.load, Until::After(time)).await?;
                line.rounds.push(Figures::of(&driven, before, gauge.read(process)?));
                for webhook_id in webhooks {
                    let path = format!("/webhooks/{webhook_id}");
                    stand.tollgate.merchant.ask("DELETE", &path, "").await?;
                }
            }
        }
    }
    print(stand, options, &lines);
    Ok(())
}

/// Makes webhooks at receivers, and events.
async fn happen(stand: &Stand, receivers: &[SocketAddr]) -> anyhow::Result<Vec<String>> {
    let merchant = &stand.tollgate.merchant;
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

fn print(stand: &Stand, options: &Options, lines: &[Line]) {
    println!(
        "\nCalls while events wait, on {}, {} rounds of {} s; medians. Latencies and CPU in µs.\n",
        stand.database, options.rounds, options.seconds
    );
    println!(
        "| events that wait | at a time | calls/s | p50 | p99 | CPU/call | p50 to none | p99 to none |"
    );
    println!("|---|{}", "---:|".repeat(7));
    for pair in lines.chunks(2) {
        let Some(none) = pair.first() else { continue };
        for line in pair {
            println!(
                "| {} | {:.0} | {:.0} | {:.0} | {:.1} | {:.2} | {:.2} |",
                line.name,
                line.median(|f| f.calls_per_s),
                line.median(|f| f.p50_us),
                line.median(|f| f.p99_us),
                line.median(|f| f.cpu_us),
                line.beside(none, |f| f.p50_us, |one, none| one / none),
                line.beside(none, |f| f.p99_us, |one, none| one / none),
            );
        }
    }
    println!();
}
