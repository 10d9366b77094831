//! The periodic work of a serving process for its store.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::store::Store;
use crate::subscriptions::RenewalScope;
use crate::{idempotency, jobs, missing_prices, provider_objects, runs, sessions};

/// The interval of the search for calls of dead processes.
const SWEEP_EVERY: Duration = Duration::from_secs(2);
/// The interval at which the journal is read.
///
/// While the database is away nothing can be booked. When it is back, the waiting settlements are booked.
const REPLAY_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failed renewal of the lease. A node is ready when it can write.
const AGAIN: Duration = Duration::from_millis(300);
/// The interval at which refused calls are written.
const REFUSALS_EVERY: Duration = Duration::from_millis(500);
/// The interval of the search for subscriptions whose cycle has ended.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// The interval at which calls settled by this process are folded into a SQLite file.
///
/// It is short, because calls wait for the fold.
const FOLD_FILE_EVERY: Duration = Duration::from_millis(50);
/// The interval on PostgreSQL, of all nodes together. A longer one makes the sums of more calls one write.
const FOLD_EVERY: Duration = Duration::from_millis(100);
/// The interval of the search for calls settled by others, and the longest one of a node.
const FOLD_OTHERS_EVERY: Duration = Duration::from_secs(1);
/// The interval at which old answers and sessions are deleted, and partitions made ahead.
const FORGET_EVERY: Duration = Duration::from_secs(60 * 60);
/// The interval at which months are archived. A month is due at the start of a day in UTC.
const ARCHIVE_EVERY: Duration = Duration::from_secs(60 * 60);
/// The pause after partitions could not be made.
const PARTITIONS_AGAIN: Duration = Duration::from_secs(60);

/// Does the periodic work of a store. Never returns.
///
/// Keeps the lease, ends calls of dead processes, books the journal, folds settled calls into the roll-ups,
/// renews subscriptions, deletes old answers, archives old months and makes partitions. Work that fails is tried again.
pub async fn run(store: Store) {
    let fold_every = if store.0.has_one_writer { FOLD_FILE_EVERY } else { FOLD_EVERY };
    let folded_all = Cell::new(Instant::now());
    let lease = Duration::from_millis(u64::from(store.0.lease_ms) / 3);
    tokio::join!(
        every_or_soon(lease, AGAIN, "the lease is not renewed", async || store.renew_lease().await),
        every(SWEEP_EVERY, "nothing is swept", async || {
            log_count(store.sweep().await?, "calls of a process that died were ended");
            Ok(())
        }),
        every(REPLAY_EVERY, "the journal is not booked", async || {
            log_count(store.replay_journal().await?, "settlements of the journal were booked");
            Ok(())
        }),
        every(fold_every, "the roll-ups are not brought up to date", async || {
            let context = &store.0.context;
            let since = folded_all.get().elapsed();
            // A node folds the calls of all nodes. So each of several nodes folds less often.
            let pause = fold_every * context.nodes.load(Ordering::Relaxed);
            if since < pause.min(FOLD_OTHERS_EVERY) {
                return Ok(());
            }
            let has_unfolded_calls = context.has_unfolded_calls.swap(false, Ordering::Relaxed);
            if has_unfolded_calls || since >= FOLD_OTHERS_EVERY {
                store.fold_in_turn().await?;
                folded_all.set(Instant::now());
            }
            Ok(())
        }),
        every(REFUSALS_EVERY, "refusals are not written", async || store.write_refusals().await),
        every(RENEW_EVERY, "subscriptions are not renewed", async || {
            store.renew(RenewalScope::Everybody).await.map(drop)
        }),
        every(FORGET_EVERY, "old answers are not forgotten", async || {
            let now = store.0.context.clock.now();
            store
                .ledger()?
                .write_outside_calls(move |conn| {
                    missing_prices::forget_old(conn, now)?;
                    jobs::forget_events(conn, now)?;
                    sessions::forget_expired(conn, now)?;
                    idempotency::forget_expired(conn, now)
                })
                .await?;
            store.ledger()?.write(move |conn| runs::forget_old(conn, now)).await?;
            store
                .write_outside_calls(move |conn| provider_objects::forget_expired(conn, now))
                .await?;
            store.forget_deliveries().await?;
            let kept = i64::from(store.0.context.refusals_keep_days) * 24 * 60 * 60 * 1_000;
            store.forget_refusals(now.plus_millis(-kept)).await
        }),
        every(ARCHIVE_EVERY, "nothing is archived", async || store.archive_when_due().await),
        every_or_soon(FORGET_EVERY, PARTITIONS_AGAIN, "partitions are not made", async || {
            store.make_partitions().await
        }),
    );
}

fn log_count(count: usize, what: &str) {
    if count > 0 {
        log::info!("{count} {what}");
    }
}

async fn every(pause: Duration, trouble: &str, work: impl AsyncFn() -> Result<(), StoreError>) {
    every_or_soon(pause, pause, trouble, work).await;
}

/// As [`every`], but pauses for `soon` after a failure. Only the first of several failures is logged.
async fn every_or_soon(
    pause: Duration,
    soon: Duration,
    trouble: &str,
    work: impl AsyncFn() -> Result<(), StoreError>,
) {
    let mut failing = false;
    loop {
        let done = work().await;
        if let Err(cause) = &done
            && !failing
        {
            log::warn!("{trouble}: {cause}");
        }
        failing = done.is_err();
        tokio::time::sleep(if failing { soon } else { pause }).await;
    }
}
