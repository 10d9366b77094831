//! What a serving process does for its store from time to time.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::StoreError;
use crate::store::Store;
use crate::subscriptions::Whose;
use crate::{idempotency, missing_prices, sessions};

/// How often what a dead process left is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(2);
/// How often the journal is looked at: while the database is away nothing can be booked, and when
/// it is back the calls that waited are booked at once.
const REPLAY_EVERY: Duration = Duration::from_secs(1);
/// When the lease is tried again that could not be renewed: a node is ready when it can write.
const AGAIN: Duration = Duration::from_millis(300);
/// How often subscriptions whose cycle has ended are looked for.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// How often calls that this process has settled are added to the roll-ups: often, because on SQLite calls wait for it.
const FOLD_EVERY: Duration = Duration::from_millis(50);
/// How often calls are looked for that others have settled.
const FOLD_OTHERS_EVERY: u32 = 20;
/// How often old answers and sessions are forgotten, and partitions made ahead.
const FORGET_EVERY: Duration = Duration::from_secs(60 * 60);
/// When partitions are tried again that could not be made.
const PARTITIONS_AGAIN: Duration = Duration::from_secs(60);

/// Keeps the lease, ends what dead processes left, books what waits in the journal, folds settled calls into the
/// roll-ups, renews subscriptions, forgets old answers, makes partitions. It never returns; a store that is away is tried again.
pub async fn run(store: Store) {
    let turn = Cell::new(0);
    let lease = Duration::from_millis(u64::from(store.0.lease_ms) / 3);
    tokio::join!(
        every_or_soon(lease, AGAIN, "the lease is not renewed", async || store.renew_lease().await),
        every(SWEEP_EVERY, "nothing is swept", async || {
            told(store.sweep().await?, "calls of a process that died were ended");
            Ok(())
        }),
        every(REPLAY_EVERY, "the journal is not booked", async || {
            told(store.replay_journal().await?, "settlements of the journal were booked");
            Ok(())
        }),
        every(FOLD_EVERY, "the roll-ups are not brought up to date", async || {
            turn.set((turn.get() + 1) % FOLD_OTHERS_EVERY);
            let is_queued = store.0.context.is_queued.swap(false, Ordering::Relaxed);
            if is_queued || turn.get() == 0 {
                store.fold().await?;
            }
            Ok(())
        }),
        every(RENEW_EVERY, "subscriptions are not renewed", async || {
            store.renew(Whose::Everybody).await.map(drop)
        }),
        every(FORGET_EVERY, "old answers are not forgotten", async || {
            let now = store.0.context.clock.now();
            store
                .ledger()?
                .write_apart(move |conn| {
                    missing_prices::forget_old(conn, now)?;
                    sessions::forget_expired(conn, now)?;
                    idempotency::forget_expired(conn, now)
                })
                .await?;
            store.forget_deliveries().await
        }),
        every_or_soon(FORGET_EVERY, PARTITIONS_AGAIN, "partitions are not made", async || {
            store.make_partitions().await
        }),
    );
}

fn told(count: usize, what: &str) {
    if count > 0 {
        log::info!("{count} {what}");
    }
}

async fn every(pause: Duration, trouble: &str, work: impl AsyncFn() -> Result<(), StoreError>) {
    every_or_soon(pause, pause, trouble, work).await;
}

/// The same, but `soon` after it has failed. Said when it begins to fail, not each time.
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
