//! Hot keys: all callers on one spend key, compared to the same number on many.

use crate::call::ChatCall;
use crate::load::Load;
use crate::measurement::{self, Measurement};
use crate::options::BenchOptions;
use crate::report::{self, Comparison, ReportTable};
use crate::service::BenchService;
use crate::testbed::{LoadTarget, Testbed};

const CALLERS: usize = 64;
const TARGET: LoadTarget = LoadTarget::Tollgate(0);

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (name, keys, own_wallets) in [
        ("1", 1, false),
        ("10, one wallet", 10, false),
        ("100, one wallet", 100, false),
        ("1,000, one wallet", 1_000, false),
        ("1,000, a wallet each", 1_000, true),
    ] {
        let requests = calls_with_keys(stand.service(0)?, keys, own_wallets).await?.into();
        let load = Load { requests, ..stand.load(TARGET, &ChatCall::default(), CALLERS)? };
        lines.push(Measurement::new(name, TARGET, load));
    }
    measurement::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    report::print_title(&format!("{CALLERS} callers on as many spend keys"), host, options);
    ReportTable::of("spend keys")
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .compared_to(
            "to one key",
            Comparison::Ratio,
            |f| f.calls_per_s,
            report::first_at_concurrency(&lines),
        )
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .cpu(host)
        .print(&lines);
    Ok(())
}

/// A call with each of this number of new spend keys.
pub(super) async fn calls_with_keys(
    service: &BenchService,
    keys: usize,
    own_wallets: bool,
) -> anyhow::Result<Vec<Vec<u8>>> {
    eprintln!("making {keys} spend keys");
    let mut calls = Vec::with_capacity(keys);
    for _ in 0..keys {
        let mut wallet_id = service.rich.wallet_id.clone();
        if own_wallets {
            wallet_id = service.merchant.create_customer("1000").await?.wallet_id;
        }
        let key = service.merchant.create_limited_key(&wallet_id).await?;
        calls.push(ChatCall::default().request_to(service.address()?, &key));
    }
    Ok(calls)
}
