//! A measurement of the ledger alone: callers that admit and settle, without a provider between.
//!
//! `cargo run --release -p tollgate-store --example ledger -- CALLERS SECONDS PAIRS RATE LEVELS KEYS` uses a
//! SQLite
//! file in the temporary directory, which `TMPDIR` names, and a PostgreSQL server of its own if PostgreSQL
//! is installed. Every call has a spend key with every limit, a wallet, a meter of three tiers, and PAIRS
//! pairs of metadata. With a RATE, that number of calls begins each second; with 0, callers call without a pause.
//! There are KEYS spend keys, each with a wallet of its own. All of them name a budget at the end of a chain of LEVELS
//! budgets with limits.
//!
//! It prints the CPU time of a call by thread and the waits of callers, both in µs, the bytes that a call
//! adds to the file, the lag of the roll-ups, and the size of SQLite's log.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::float_arithmetic,
    reason = "a program for measuring"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use diesel::{Connection, SqliteConnection};
use tollgate_domain::*;
use tollgate_store::{DatabaseUrl, SettleOutcome};
use tollgate_testkit::each_store;
use tollgate_testkit::store::{TestStore, amount, answered};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().unwrap());
    let (callers, seconds) = (arguments.next().unwrap_or(16), arguments.next().unwrap_or(5));
    let [pairs, rate, levels] = [(); 3].map(|()| arguments.next().unwrap_or(0));
    let keys = arguments.next().unwrap_or(1).max(1);
    each_store(async |store| {
        tokio::select! {
            () = tollgate_store::upkeep::run(store.store.clone()) => {}
            () = measure(store, callers, Duration::from_secs(seconds), pairs, rate, (levels, keys)) => {}
        }
    });
}

async fn measure(
    store: &TestStore,
    callers: u64,
    time: Duration,
    pairs: u64,
    rate: u64,
    (levels, keys): (u64, u64),
) {
    let merchant = store.merchant().await.merchant;
    let meter =
        store.meter(merchant.merchant_id, &[(0, "10"), (1_000, "5"), (1_000_000, "2")]).await;
    let now = store.clock.now();
    let spend_limit = Some(SpendLimit { amount: amount("1000000"), cycle: Cycle::Daily });
    let mut budget_id = None;
    for _ in 0..levels {
        let rules = BudgetRules {
            spend_limit,
            enforcement: BudgetEnforcement::Strict,
            ..BudgetRules::default()
        };
        budget_id = Some(store.budget(merchant.merchant_id, budget_id, rules).await.budget_id);
    }
    let mut spend_keys = Vec::new();
    for _ in 0..keys {
        let wallet_id = store.connection(merchant.merchant_id, "1000000").await.wallet_id;
        let new = NewSpendKey {
            name: "Key".to_owned(),
            wallet_id: Some(wallet_id),
            meter_id: Some(meter.meter_id),
            budget_id,
            rules: SpendRules {
                spend_limit,
                enforcement: Enforcement::Strict,
                ..SpendRules::default()
            },
        };
        let made = store.store.write(move |conn| {
            tollgate_store::spend_keys::create(conn, merchant.merchant_id, &new, now)
        });
        spend_keys.push(made.await.unwrap().unwrap());
    }
    let metadata = |call: u64| {
        let pairs = (0..pairs).map(|pair| match pair {
            0 => format!(r#""user": "user-{}""#, call % 1_000),
            _ => format!(r#""team_{pair}": "team-{}""#, call % 8),
        });
        Metadata::parse(&format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))).unwrap()
    };
    let size_before = size(store);
    let (before, wrote, begun) = (threads(), writes(), Instant::now());
    let calls = (0..callers).map(async |caller| {
        let mut waits = Vec::new();
        while begun.elapsed() < time {
            if rate > 0 {
                let number = caller + callers * waits.len() as u64;
                let due = begun + Duration::from_secs_f64(number as f64 / rate as f64);
                tokio::time::sleep_until(due.into()).await;
            }
            let turn = (caller + callers * waits.len() as u64) % keys;
            let (spend_key, key) = &spend_keys[turn as usize];
            let mut call = store.call_with(spend_key, key);
            call.bound.input_tokens = 1_000;
            call.forwarded.metadata = metadata(caller + waits.len() as u64);
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
    let behind = Cell::default();
    let waits = tokio::select! {
        waits = futures_util::future::join_all(calls) => waits,
        never = watch(store, &behind) => match never {},
    };
    let seconds = begun.elapsed().as_secs_f64();
    let mut waits = waits.concat();
    waits.sort_unstable();
    let (calls, last) = (waits.len(), waits.len().saturating_sub(1));
    let [p50, p99, most] = [last / 2, last * 99 / 100, last].map(|at| waits[at].as_micros());
    println!("{calls} calls, {:.0} a second", calls as f64 / seconds);
    println!("the longer of a call's two waits: p50 {p50}, p99 {p99}, at most {most}");
    let Behind { millis, log } = behind.get();
    println!(
        "the roll-ups were at most {millis} ms behind, SQLite's log had at most {} MB",
        log >> 20
    );
    let each = |after: u64, before: u64| (after - before) as f64 / calls as f64;
    let [count, bytes] = [0, 1].map(|what| each(writes()[what], wrote[what]));
    println!("{count:.1} writes of {bytes:.0} bytes in all for each");
    if let Some((before, after)) = size_before.zip({
        store.store.fold().await.unwrap();
        size(store)
    }) {
        println!("{} bytes of the file for each", (after - before) / calls as u64);
    }
    for (name, ticks) in threads() {
        let ticks = ticks - before.get(&name).copied().unwrap_or(0);
        if ticks > 0 {
            println!("{name}: {:.1} µs of CPU for each", ticks as f64 * 10_000.0 / calls as f64);
        }
    }
}

/// The lag of the roll-ups and the size of the log.
#[derive(Clone, Copy, Default)]
struct Behind {
    /// The wait of the oldest settled call for the roll-ups, in milliseconds.
    millis: i64,
    /// The size of SQLite's log, in bytes.
    log: u64,
}

/// Measures the lag ten times a second, and advances the clock of the store.
async fn watch(store: &TestStore, most: &Cell<Behind>) -> Infallible {
    let begun = Instant::now();
    let mut passed = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = i64::try_from(begun.elapsed().as_millis()).unwrap();
        store.clock.advance_millis(now - passed);
        passed = now;
        let oldest = store.store.count_backlog().await.unwrap().oldest_unfolded;
        let now = store.clock.now().unix_micros();
        let behind = oldest.map_or(0, |oldest| (now - oldest.unix_micros()) / 1_000);
        let log = match &store.url {
            DatabaseUrl::Sqlite(file) => file.with_extension("db-wal").metadata().unwrap().len(),
            _ => 0,
        };
        let before = most.get();
        most.set(Behind { millis: before.millis.max(behind), log: before.log.max(log) });
    }
}

/// The number of writes of this process, to files and sockets, and their bytes.
fn writes() -> [u64; 2] {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let value = |name: &str| io.lines().find_map(|line| line.strip_prefix(name));
    ["syscw: ", "wchar: "].map(|name| value(name).unwrap().parse().unwrap())
}

/// The size of the SQLite file after all of its log is moved into it.
fn size(store: &TestStore) -> Option<u64> {
    let DatabaseUrl::Sqlite(file) = &store.url else { return None };
    let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
    conn.batch_execute("PRAGMA busy_timeout = 10000; PRAGMA wal_checkpoint(RESTART)").unwrap();
    Some(file.metadata().unwrap().len())
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
