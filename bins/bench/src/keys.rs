//! A hot key: all callers on one spend key, beside as many on a thousand.

use serde_json::json;

use crate::Options;
use crate::database::Database;
use crate::line::{self, Line};
use crate::load::Load;
use crate::stand::{Call, Stand, Tollgate};

const CALLERS: usize = 64;
const KEYS: usize = 1_000;

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<()> {
    eprintln!("{KEYS} spend keys on one wallet, and {KEYS} on a wallet each");
    let tollgate = &stand.tollgate;
    let (mut hot, mut many, mut apart) = (Vec::new(), Vec::new(), Vec::new());
    hot.push(call(tollgate, &tollgate.rich.wallet_id).await?);
    for _ in 0..KEYS {
        many.push(call(tollgate, &tollgate.rich.wallet_id).await?);
        let own = tollgate.merchant.connection("1000").await?;
        apart.push(call(tollgate, &own.wallet_id).await?);
    }
    let line = |name: &str, requests: Vec<Vec<u8>>| {
        let (address, requests) = (tollgate.address, requests.into());
        Line::new(
            name,
            Load { address, requests, status: 200, concurrency: CALLERS, streams: false },
        )
    };
    let mut lines = [
        line("one key", hot),
        line("1,000 keys, one wallet", many),
        line("1,000 keys, a wallet each", apart),
    ];
    line::drive(stand, &mut lines, options).await?;
    print(stand, options, &lines);
    Ok(())
}

/// A call with a new spend key that has every limit there is, all of them far away.
async fn call(tollgate: &Tollgate, wallet_id: &str) -> anyhow::Result<Vec<u8>> {
    let rules = json!({
        "name": "Benchmark",
        "wallet_id": wallet_id,
        "meter_id": tollgate.meter_id,
        "allowed_models": ["gpt-4o*"],
        "allowed_providers": ["openai"],
        "spend_limit": {"amount": "1000000", "cycle": "daily"},
        "request_limit": {"count": 1_000_000_000, "cycle": "daily"},
        "rate_limit": {"rpm": 1_000_000, "burst": 1_000_000},
        "enforcement": "strict",
        "expires_at": "2100-01-01T00:00:00Z",
    });
    let key = tollgate.merchant.spend_key(&rules).await?;
    Ok(Call::default().to(tollgate.address, &key))
}

fn print(stand: &Stand, options: &Options, lines: &[Line]) {
    println!(
        "\n{CALLERS} callers on {}, {} rounds of {} s; medians. Latencies and CPU in µs.\n",
        stand.database, options.rounds, options.seconds
    );
    let with_database = stand.database != Database::Sqlite;
    let database = if with_database { " database CPU/call |" } else { "" };
    println!(
        "| spend keys | calls/s | p50 | p99 | CPU/call | calls/s of one key to it |{database}"
    );
    println!("|---|{}", "---:|".repeat(5 + usize::from(with_database)));
    let Some(hot) = lines.first() else { return };
    for line in lines {
        let to = hot.beside(line, |f| f.calls_per_s, |hot, other| hot / other);
        print!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.1} | {to:.2} |",
            line.name,
            line.median(|f| f.calls_per_s),
            line.median(|f| f.p50_us),
            line.median(|f| f.p99_us),
            line.median(|f| f.cpu_us),
        );
        if with_database {
            print!(" {:.1} |", line.median(|f| f.database_cpu_us));
        }
        println!();
    }
    println!();
}
