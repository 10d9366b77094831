//! The cost of a refusal, compared to the smallest cost of an answer by the same server.

use serde_json::{Value, json};

use crate::call::ChatCall;
use crate::http::field_text;
use crate::http::request;
use crate::load::Load;
use crate::measurement::{self, Measurement};
use crate::options::BenchOptions;
use crate::report::{self, Comparison, ReportTable};
use crate::service::BenchService;
use crate::testbed::{LoadTarget, Testbed};

const CALLERS: [usize; 2] = [16, 64];

/// A request, and the status of its refusal.
struct RefusedRequest {
    name: &'static str,
    status: u16,
    request: Vec<u8>,
}

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    let target = LoadTarget::Tollgate(0);
    let mut lines = Vec::new();
    let refused = refused_requests(stand.service(0)?).await?;
    for concurrency in CALLERS {
        for RefusedRequest { name, status, request } in &refused {
            let load = Load {
                requests: [request.clone()].into(),
                status: *status,
                ..stand.load(target, &ChatCall::default(), concurrency)?
            };
            lines.push(Measurement::new(
                &format!("{name} | {concurrency} | {status}"),
                target,
                load,
            ));
        }
    }
    measurement::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    report::print_title("Refusals", host, options);
    // The line without a refusal by the ledger is the first.
    let bare = report::first_at_concurrency(&lines);
    ReportTable::of("refused for | at a time | status")
        .figure("answers/s", 0, |figures| figures.calls_per_s)
        .figure("p50", 0, |figures| figures.p50_us)
        .compared_to(
            "CPU above the first",
            Comparison::Difference(1),
            |figures| figures.cpu_us,
            bare,
        )
        .cpu(host)
        .print(&lines);
    report::print_generator_load(&lines);
    Ok(())
}

/// The refused requests; the first one is only an unknown route.
async fn refused_requests(service: &BenchService) -> anyhow::Result<Vec<RefusedRequest>> {
    let (merchant, address) = (&service.merchant, service.address()?);
    let bare = request("GET", "/v1/nope", &address.to_string(), &merchant.secret_key, &[], "");
    let unknown = ChatCall { model: Some("no-such-llm"), ..ChatCall::default() };
    let unknown = unknown.request_to(address, &merchant.secret_key);
    let poor = merchant.create_customer("0").await?;
    let chat = |credential: &str| ChatCall::default().request_to(address, credential);
    let mut refused = vec![
        RefusedRequest { name: "no such route", status: 404, request: bare },
        RefusedRequest { name: "model without a price", status: 400, request: unknown },
        RefusedRequest { name: "wallet empty, a token", status: 402, request: chat(&poor.token) },
    ];
    let rich = &service.rich.wallet_id;
    let keys = [
        ("wallet empty", 402, &poor.wallet_id, json!({})),
        ("paused", 403, rich, json!({"status": "paused"})),
        ("model not allowed", 403, rich, json!({"allowed_models": ["gpt-4o"]})),
        ("spend limit", 402, rich, json!({"spend_limit": {"amount": "0.00001", "cycle": "total"}})),
        ("request limit", 429, rich, json!({"request_limit": {"count": 1, "cycle": "total"}})),
        // The call before the measurement uses up the limit for a minute.
        ("rate limit", 429, rich, json!({"rate_limit": {"rpm": 1, "burst": 1}})),
    ];
    for (name, status, wallet_id, rule) in keys {
        let mut rules = json!({"wallet_id": wallet_id, "enforcement": "strict"});
        if let (Value::Object(rules), Value::Object(rule)) = (&mut rules, rule) {
            rules.extend(rule);
        }
        let key = field_text(&merchant.create_spend_key(rules).await?, "key")?;
        refused.push(RefusedRequest { name, status, request: chat(&key) });
    }
    Ok(refused)
}
