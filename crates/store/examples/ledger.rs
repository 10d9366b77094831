//! What the ledger itself costs: callers that admit and settle, and nothing between.
//!
//! `cargo run --release -p tollgate-store --example ledger -- CALLERS SECONDS` uses a SQLite file in the
//! temporary directory, which `TMPDIR` names. Every call has a spend key with every limit, a wallet and a
//! meter of three tiers. It prints what a call costs by thread, in µs of CPU, and how long callers waited, in µs.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::float_arithmetic,
    reason = "a program for measuring"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollgate_domain::*;
use tollgate_store::SettleOutcome;
use tollgate_testkit::each_store;
use tollgate_testkit::store::{TestStore, amount, answered};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().unwrap());
    let (callers, seconds) = (arguments.next().unwrap_or(16), arguments.next().unwrap_or(5));
    each_store(async |store| measure(store, callers, Duration::from_secs(seconds)).await);
}

async fn measure(store: &TestStore, callers: u64, time: Duration) {
    let merchant = store.merchant().await.merchant;
    let wallet_id = store.connection(merchant.merchant_id, "1000000").await.wallet_id;
    let meter =
        store.meter(merchant.merchant_id, &[(0, "10"), (1_000, "5"), (1_000_000, "2")]).await;
    let now = store.clock.now();
    let new = NewSpendKey {
        name: "Key".to_owned(),
        wallet_id: Some(wallet_id),
        meter_id: Some(meter.meter_id),
        rules: SpendRules {
            spend_limit: Some(SpendLimit { amount: amount("1000000"), cycle: Cycle::Daily }),
            enforcement: Enforcement::Strict,
            ..SpendRules::default()
        },
    };
    let made = store.store.write(move |conn| {
        tollgate_store::spend_keys::create(conn, merchant.merchant_id, &new, now)
    });
    let (spend_key, key) = made.await.unwrap().unwrap();
    let (before, begun) = (threads(), Instant::now());
    let calls = (0..callers).map(|_| async {
        let mut waits = Vec::new();
        while begun.elapsed() < time {
            let mut call = store.call_with(&spend_key, &key);
            call.bound.input_tokens = 1_000;
            let request_id = call.request_id;
            let asked = Instant::now();
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            let admitted = Instant::now();
            let outcome = store.store.settle(request_id, answered(1_000, "0.0001")).await;
            assert!(matches!(outcome, SettleOutcome::Settled(_)), "{outcome:?}");
            waits.push((admitted - asked).max(admitted.elapsed()));
        }
        waits
    });
    let waits = futures_util::future::join_all(calls).await;
    let seconds = begun.elapsed().as_secs_f64();
    let mut waits = waits.concat();
    waits.sort_unstable();
    let (calls, last) = (waits.len(), waits.len().saturating_sub(1));
    let [p50, p99, most] = [last / 2, last * 99 / 100, last].map(|at| waits[at].as_micros());
    println!("{calls} calls, {:.0} a second", calls as f64 / seconds);
    println!("the longer of a call's two waits: p50 {p50}, p99 {p99}, at most {most}");
    for (name, ticks) in threads() {
        let ticks = ticks - before.get(&name).copied().unwrap_or(0);
        if ticks > 0 {
            println!("{name}: {:.1} µs of CPU for each", ticks as f64 * 10_000.0 / calls as f64);
        }
    }
}

/// The CPU time of this process by the names of its threads, in hundredths of a second.
fn threads() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let name = stat.split(['(', ')']).nth(1).unwrap_or_default().to_owned();
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
        *all.entry(name).or_default() +=
            fields.take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>();
    }
    all
}
