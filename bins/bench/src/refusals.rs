//! What a refusal costs, beside the least that an answer of the same server costs.

use serde_json::{Value, json};

use crate::Options;
use crate::database::Database;
use crate::http::request;
use crate::line::{self, Line};
use crate::load::Load;
use crate::stand::{Call, Stand, Tollgate};

const CALLERS: [usize; 2] = [16, 64];

/// What is sent, and the status that answers it.
struct Refused {
    name: &'static str,
    status: u16,
    request: Vec<u8>,
}

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    let refused = refused(&stand.tollgate).await?;
    for concurrency in CALLERS {
        for Refused { name, status, request } in &refused {
            let (address, requests) = (stand.tollgate.address, [request.clone()].into());
            let load = Load { address, requests, status: *status, concurrency, streams: false };
            lines.push(Line::new(&format!("{name} | {concurrency} | {status}"), load));
        }
    }
    line::drive(stand, &mut lines, options).await?;
    print(stand, options, &lines, refused.len());
    Ok(())
}

/// The bare answer first.
async fn refused(tollgate: &Tollgate) -> anyhow::Result<Vec<Refused>> {
    let (merchant, address) = (&tollgate.merchant, tollgate.address);
    let bare = request("GET", "/v1/nope", &address.to_string(), &merchant.secret_key, &[], "");
    let unknown = Call { model: Some("no-such-llm"), ..Call::default() };
    let unknown = unknown.to(address, &merchant.secret_key);
    let poor = merchant.connection("0").await?;
    let chat = |credential: &str| Call::default().to(address, credential);
    let mut refused = vec![
        Refused { name: "no such route", status: 404, request: bare },
        Refused { name: "model without a price", status: 400, request: unknown },
        Refused { name: "wallet empty, a token", status: 402, request: chat(&poor.token) },
    ];
    let rich = &tollgate.rich.wallet_id;
    let keys = [
        ("wallet empty", 402, &poor.wallet_id, json!({})),
        ("paused", 403, rich, json!({"status": "paused"})),
        ("model not allowed", 403, rich, json!({"allowed_models": ["gpt-4o"]})),
        ("spend limit", 402, rich, json!({"spend_limit": {"amount": "0.00001", "cycle": "total"}})),
        ("request limit", 429, rich, json!({"request_limit": {"count": 1, "cycle": "total"}})),
        // The call that is sent ahead uses it up for a minute.
        ("rate limit", 429, rich, json!({"rate_limit": {"rpm": 1, "burst": 1}})),
    ];
    for (name, status, wallet_id, rule) in keys {
        let mut rules = json!({
            "name": name,
            "wallet_id": wallet_id,
            "meter_id": tollgate.meter_id,
            "enforcement": "strict",
        });
        if let (Value::Object(rules), Value::Object(rule)) = (&mut rules, rule) {
            rules.extend(rule);
        }
        let key = merchant.spend_key(&rules).await?;
        refused.push(Refused { name, status, request: chat(&key) });
    }
    Ok(refused)
}

fn print(stand: &Stand, options: &Options, lines: &[Line], at_a_time: usize) {
    println!(
        "\nRefusals on {}, {} rounds of {} s; medians. Latencies and CPU in µs.\n",
        stand.database, options.rounds, options.seconds
    );
    let with_database = stand.database != Database::Sqlite;
    let database = if with_database { " database CPU/answer |" } else { "" };
    println!(
        "| refused for | at a time | status | answers/s | p50 | CPU/answer | above the first |\
         {database}"
    );
    println!("|---|{}", "---:|".repeat(6 + usize::from(with_database)));
    for lines in lines.chunks(at_a_time) {
        let Some(bare) = lines.first() else { continue };
        for line in lines {
            let above = line.beside(bare, |f| f.cpu_us, |one, bare| one - bare);
            print!(
                "| {} | {:.0} | {:.0} | {:.1} | {above:+.1} |",
                line.name,
                line.median(|f| f.calls_per_s),
                line.median(|f| f.p50_us),
                line.median(|f| f.cpu_us),
            );
            if with_database {
                print!(" {:.1} |", line.median(|f| f.database_cpu_us));
            }
            println!();
        }
    }
    println!();
}
