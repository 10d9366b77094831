//! The archiving of old months while calls are made.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use tollgate_domain::Timestamp;
use tollgate_store::Store;

use crate::{BenchShop, Dice, END, call};

/// The interval of calls.
const EVERY: Duration = Duration::from_millis(2);
/// The time for which calls are made before they are measured: caches fill, and a checkpoint may have to write whole pages.
const WARM_UP: Duration = Duration::from_secs(40);
/// The time for which calls are measured before the work begins, and after it.
const WITHOUT: Duration = Duration::from_secs(40);
const PHASES: [&str; 5] = [
    "the first calls",
    "nothing is archived",
    "files are written",
    "rows are deleted",
    "nothing is archived any more",
];

/// The times of admissions, by the number of the phase.
#[derive(Default)]
struct AdmissionTimes([Mutex<Vec<Duration>>; PHASES.len()]);

/// Archives the months that are older than some days, for `limit` at most, and prints the times of admissions meanwhile.
pub(crate) async fn run(
    store: &Store,
    (shops, shares): (&[BenchShop], &[u64]),
    keep_days: u32,
    limit: Duration,
) -> Result<()> {
    let (times, phase) = (AdmissionTimes::default(), AtomicU8::new(0));
    let calls = async {
        let mut dice = Dice(20_261_127);
        let mut ticks = tokio::time::interval(EVERY);
        let mut running = tokio::task::JoinSet::new();
        loop {
            ticks.tick().await;
            let at = Timestamp::from_unix_micros(END);
            let (call, report) = call(shops, shares, &mut dice, at);
            let (store, phase) = (store.clone(), phase.load(Ordering::Relaxed));
            running.spawn(async move {
                let (request_id, began) = (call.request_id, Instant::now());
                let admitted = store.admit(Box::new(call)).await;
                let took = began.elapsed();
                if let Ok(Ok(_)) = admitted {
                    store.settle(request_id, report).await;
                }
                (phase, took)
            });
            while let Some(done) = running.try_join_next() {
                let (phase, took) = done?;
                let of_phase = times.0.get(usize::from(phase));
                let of_phase = of_phase.unwrap_or_else(|| unreachable!("it is a phase"));
                of_phase.lock().unwrap_or_else(PoisonError::into_inner).push(took);
            }
        }
        #[expect(unreachable_code, reason = "the type of the loop's errors")]
        Ok::<(), anyhow::Error>(())
    };
    let watch = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            if (2..4).contains(&phase.load(Ordering::Relaxed)) {
                let is_leaving = store.archived_months().await?.iter().any(|month| month.leaving);
                let next = if is_leaving { 3 } else { 2 };
                let _ = phase.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |phase| {
                    (phase < 4).then_some(next)
                });
            }
        }
        #[expect(unreachable_code, reason = "the type of the loop's errors")]
        Ok::<(), anyhow::Error>(())
    };
    let work = async {
        tokio::time::sleep(WARM_UP).await;
        phase.store(1, Ordering::Relaxed);
        tokio::time::sleep(WITHOUT).await;
        phase.store(2, Ordering::Relaxed);
        let began = Instant::now();
        let archived = tokio::time::timeout(limit, store.archive_months(keep_days)).await;
        let Ok(archived) = archived else {
            println!("not archived within {limit:?}");
            return Ok(());
        };
        let archiving = archived?;
        for month in &archiving.sealed {
            let of = |table: &str| {
                let files = month.files.iter().filter(|file| file.table == table);
                files.fold((0, 0), |(rows, bytes), file| (rows + file.rows, bytes + file.bytes))
            };
            let [(records, bytes), (lines, line_bytes)] = [of("requests"), of("transactions")];
            println!(
                "{}: {records} records in {bytes} bytes, {lines} ledger lines in {line_bytes} bytes",
                month.month
            );
        }
        println!("archived in {:?}", began.elapsed());
        phase.store(4, Ordering::Relaxed);
        tokio::time::sleep(WITHOUT).await;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = calls => ended?,
        ended = watch => ended?,
        () = tollgate_store::upkeep::run(store.clone()) => {}
        done = work => done?,
    }
    println!(
        "\n| admissions while | calls | p50 µs | p99 µs | most µs |\n|---|---:|---:|---:|---:|"
    );
    for (name, times) in PHASES.iter().zip(&times.0) {
        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
        times.sort();
        let at = |permille: usize| times.get(times.len().saturating_sub(1) * permille / 1_000);
        let [p50, p99, most] = [500, 990, 1_000].map(|one| at(one).map_or(0, Duration::as_micros));
        println!("| {name} | {} | {p50} | {p99} | {most} |", times.len());
    }
    println!();
    Ok(())
}
