//! A database, its ledger, and this process's place in it.

use std::collections::HashSet;
use std::fs::File;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::{Ending, Report};
use tollgate_domain::{MerchantId, MissingPrice, PendingRecord, RequestId, Timestamp};
use tollgate_pricing::Rate;

use crate::backlog::{self, Open};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::journal::Entry;
use crate::ledger::{self, Context, Ledger, Reported, ReportedUsage, SettleOutcome};
use crate::readers::Readers;
use crate::subscriptions::{self, Whose};
use crate::vitals::Vitals;
use crate::{audit, nodes, partitions, rollups, serving};

/// A database, its ledger, and this process's place in it. Clones share it.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) readers: Readers,
    pub(crate) ledger: Mutex<Option<Ledger>>,
    pub(crate) writers: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) context: Arc<Context>,
    pub(crate) lease_ms: u32,
    pub(crate) renewals: Mutex<Renewals>,
    pub(crate) lock: Mutex<Option<File>>,
    /// The open calls of this process that it did not know when it looked last.
    pub(crate) unknown_calls: Mutex<HashSet<RequestId>>,
    /// Whether no other process can have a call on its way.
    pub(crate) alone: bool,
    pub(crate) has_one_writer: bool,
    pub(crate) _temporary: Option<tempfile::TempDir>,
}

/// How this process has kept its lease.
pub(crate) struct Renewals {
    pub(crate) last: Timestamp,
    /// Since when there was no pause as long as a lease.
    pub(crate) unbroken_since: Timestamp,
}

/// A client waits no longer than this for its last bytes.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

impl Store {
    /// Runs `work` on a connection, away from the threads that serve.
    ///
    /// # Errors
    /// What `work` returned, or [`StoreError::Unavailable`].
    pub async fn read<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let readers = self.0.readers.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut conn = readers.get()?;
            work(&mut conn)
        });
        done.await.unwrap_or_else(|cause| Err(StoreError::Unavailable(cause.to_string()).into()))
    }

    /// As [`Store::read`], but `work` sees one state of the database throughout.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn read_snapshot<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.read(|conn| conn.snapshot(work)).await
    }

    /// Runs `work` in a write transaction of its own; `Err` takes everything back.
    ///
    /// # Errors
    /// What `work` returned, or [`StoreError::Unavailable`].
    pub async fn write<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.ledger()?.write(work).await
    }

    /// As [`Store::write`], for work that changes nothing by which calls are admitted, and that none
    /// may wait for: on PostgreSQL it is done beside the ledger, and waits two seconds at most for what
    /// others have locked. On SQLite it takes turns with the ledger.
    ///
    /// # Errors
    /// What `work` returned, or [`StoreError::Unavailable`].
    pub async fn write_apart<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        match self.0.has_one_writer {
            true => self.ledger()?.write_apart(work).await,
            false => self.read(|conn| conn.write_apart(work)).await,
        }
    }

    /// Admits a call, durably, or refuses it, writing nothing.
    ///
    /// # Errors
    /// Those of the store; a refusal is not an error but the answer.
    pub async fn admit(
        &self,
        call: Box<Call>,
    ) -> Result<Result<Box<PendingRecord>, Refusal>, StoreError> {
        self.ledger()?.admit(call).await
    }

    /// The operator's charge as a fraction of the fee, by which calls are settled.
    pub fn service_charge_rate(&self) -> Rate {
        self.0.context.service_charge_rate
    }

    /// Settles a call, durably and once, however often it is called. A database that does not take
    /// it within two seconds is not waited for: the settlement is kept in the journal and booked
    /// when the database is back.
    pub async fn settle(&self, request_id: RequestId, report: Report) -> SettleOutcome {
        let report = Arc::new(report);
        let booking = self.book(request_id, Arc::clone(&report), None);
        match tokio::time::timeout(SETTLE_TIMEOUT, booking).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(cause)) => log::error!("{request_id} is not settled yet: {cause}"),
            Err(_) => log::error!("{request_id} is not settled yet: the database is slow"),
        }
        let entry = Entry { request_id, report: Arc::unwrap_or_clone(report), call: None };
        let context = Arc::clone(&self.0.context);
        let kept = tokio::task::spawn_blocking(move || context.keep(entry));
        match kept.await.unwrap_or(false) {
            true => SettleOutcome::Journaled,
            false => SettleOutcome::NotSettled,
        }
    }

    /// Books usage that did not pass through this service, once under its reference. Call it in a
    /// write transaction of this store.
    ///
    /// # Errors
    /// Those of the store.
    pub fn report(
        &self,
        conn: &mut Conn,
        merchant_id: MerchantId,
        reported: &ReportedUsage,
    ) -> Result<Reported, StoreError> {
        ledger::book_reported(conn, merchant_id, reported, &self.0.context)
    }

    /// Settles a call for somebody who cannot wait: a task that is being dropped, perhaps with all
    /// that would run another, or a client that is refused. It is kept in the journal like any other
    /// settlement.
    pub fn settle_in_background(&self, request_id: RequestId, report: Report) {
        let entry = Entry { request_id, report, call: None };
        match self.ledger() {
            Ok(ledger) => ledger.settle_unheard(entry),
            Err(_) => drop(self.0.context.keep(entry)),
        }
    }

    /// Writes the event of a price for want of which a call was refused: in the background, once a day,
    /// and not at all while the ledger is busy.
    pub fn report_missing_price(&self, merchant_id: MerchantId, missing: MissingPrice) {
        if let Ok(ledger) = self.ledger() {
            ledger.report_missing_price(merchant_id, missing);
        }
    }

    async fn book(
        &self,
        request_id: RequestId,
        report: Arc<Report>,
        call: Option<PendingRecord>,
    ) -> Result<SettleOutcome, StoreError> {
        self.ledger()?.settle(request_id, Some(report), call.map(Arc::new)).await
    }

    /// Books what waits in the journal, or in memory because there was no room in the journal either;
    /// answers how many.
    ///
    /// # Errors
    /// Those of the store: what could not be booked goes on waiting.
    pub async fn replay_journal(&self) -> Result<usize, StoreError> {
        let mut booked = self.replay_unkept().await?;
        let Some(journal) = self.0.context.journal.clone() else { return Ok(booked) };
        let unreadable = |cause: std::io::Error| StoreError::Unavailable(cause.to_string());
        let entries = journal.entries().map_err(unreadable)?;
        let mut trouble = None;
        for entry in entries {
            let may_come = entry.may_come(self.0.context.clock.now());
            let Entry { request_id, report, call } = entry;
            let certainly_sent = report.ending != Ending::NotSent;
            match self.book(request_id, Arc::new(report), call).await {
                Ok(SettleOutcome::NotFound) if may_come => {}
                // Of a call that was perhaps never admitted there may be no record; of any other
                // there must be one, here or in the database that this one has replaced.
                Ok(SettleOutcome::NotFound) if certainly_sent => {
                    log::error!("{request_id} of the journal is not in this database; set aside");
                    journal.set_aside(request_id).map_err(unreadable)?;
                }
                Ok(_) => {
                    journal.remove(request_id).map_err(unreadable)?;
                    booked += 1;
                }
                // A database that is away takes none of them.
                Err(cause @ (StoreError::Unavailable(_) | StoreError::Interrupted)) => {
                    return Err(cause);
                }
                // One that cannot be booked must not stand before those that can.
                Err(cause) => trouble = Some(cause),
            }
        }
        trouble.map_or(Ok(booked), Err)
    }

    /// Books what waits in memory, or puts it into the journal if that takes it by now.
    async fn replay_unkept(&self) -> Result<usize, StoreError> {
        let context = &self.0.context;
        let (mut booked, mut trouble) = (0, None);
        let entries = held(&context.unkept).clone();
        for entry in entries {
            let request_id = entry.request_id;
            let report = Arc::new(entry.report.clone());
            match self.book(request_id, report, entry.call.clone()).await {
                Ok(_) => booked += 1,
                Err(cause) => match context.journal.as_ref().map(|journal| journal.write(&entry)) {
                    Some(Ok(())) => {}
                    Some(Err(_)) | None if cause.is_away() => return Err(cause),
                    // One that cannot be booked must not stand before those that can.
                    Some(Err(_)) | None => {
                        trouble = Some(cause);
                        continue;
                    }
                },
            }
            // Until then it stays in memory: whoever waits for this may be dropped.
            held(&context.unkept).retain(|waiting| waiting.request_id != request_id);
        }
        trouble.map_or(Ok(booked), Err)
    }

    /// Keeps this process's lease alive; call it a few times per [`Options::lease_ms`](crate::Options::lease_ms).
    ///
    /// # Errors
    /// Those of the store.
    pub async fn renew_lease(&self) -> Result<(), StoreError> {
        let context = &self.0.context;
        let node_id = context.node_id;
        let until = context.clock.now().plus_millis(i64::from(self.0.lease_ms));
        // By the ledger, so that it has a connection and its turn; but no call is decided by it.
        self.ledger()?.write_apart(move |conn| nodes::renew(conn, node_id, until)).await?;
        let mut renewals = held(&self.0.renewals);
        let now = context.clock.now();
        if renewals.last.plus_millis(i64::from(self.0.lease_ms)) < now {
            renewals.unbroken_since = now;
        }
        renewals.last = now;
        Ok(())
    }

    /// Fails unless the store can be read and this process's lease is kept, which is written a few times
    /// in its length: a database that is full, read-only or silent takes no calls.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.read(|conn| conn.ping()).await?;
        let until = held(&self.0.renewals).last.plus_millis(i64::from(self.0.lease_ms));
        match self.0.context.clock.now() <= until {
            true => Ok(()),
            false => Err(StoreError::Unavailable("the lease is not renewed".to_owned())),
        }
    }

    /// Whether this process may take another's silence for its death. While the database was away
    /// nobody could renew, so after such a time everybody has one lease to come back.
    fn may_judge(&self, now: Timestamp) -> bool {
        let renewals = held(&self.0.renewals);
        let lease = i64::from(self.0.lease_ms);
        // A process that stood still finds its own lease lapsed, too.
        let is_kept = now <= renewals.last.plus_millis(lease);
        self.0.alone || (is_kept && renewals.unbroken_since.plus_millis(lease) <= now)
    }

    /// Ends the calls of processes whose lease has lapsed: their holds are released and what they
    /// may have cost is the merchant's. Answers how many.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        const AT_ONCE: i64 = 500;
        let node_id = self.0.context.node_id;
        let mut swept = self.sweep_own().await?;
        loop {
            let now = self.0.context.clock.now();
            if !self.may_judge(now) {
                return Ok(swept);
            }
            let lost = self.read(move |conn| nodes::abandoned(conn, node_id, now, AT_ONCE)).await?;
            if lost.is_empty() {
                return Ok(swept);
            }
            let ledger = self.ledger()?;
            let (before, mut trouble) = (swept, None);
            for request_id in lost {
                match ledger.settle(request_id, None, None).await {
                    Ok(_) => swept += 1,
                    // One that cannot be ended must not stand before those that can.
                    Err(cause) => trouble = Some(cause),
                }
            }
            match trouble {
                Some(cause) if swept == before => return Err(cause),
                _ => {}
            }
        }
    }

    /// Ends calls of this process that the database has among the open ones and this process does not know, twice in a
    /// row: their settlement was lost with the last commits of a PostgreSQL that was replaced.
    async fn sweep_own(&self) -> Result<usize, StoreError> {
        if self.0.has_one_writer {
            return Ok(0);
        }
        let context = &self.0.context;
        let node_id = context.node_id;
        let mut open = self.read(move |conn| nodes::open_calls(conn, node_id)).await?;
        {
            let known = context.open_calls();
            open.retain(|id| !known.contains_key(id));
        }
        let unknown: HashSet<RequestId> = open.into_iter().collect();
        let before = mem::replace(&mut *held(&self.0.unknown_calls), unknown.clone());
        let mut ended = 0;
        for request_id in unknown.intersection(&before) {
            log::warn!("{request_id} is open and not known to this process: it is ended");
            self.ledger()?.settle(*request_id, None, None).await?;
            ended += 1;
        }
        Ok(ended)
    }

    /// Adds settled calls to the roll-ups and to the index of their metadata, and writes their events. Answers how
    /// many calls. Readers of sums and lists need not wait for it.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn fold(&self) -> Result<usize, StoreError> {
        let mut calls = 0;
        loop {
            let context = Arc::clone(&self.0.context);
            let fold = move |conn: &mut Conn| {
                conn.write_again(|conn| rollups::fold(conn, &context.series, context.clock.now()))
            };
            let folded = match self.0.has_one_writer {
                true => self.ledger()?.run_apart(fold).await?,
                false => self.read(fold).await?,
            };
            if folded.calls == 0 {
                return Ok(calls);
            }
            calls += folded.calls;
            folded.committed(&self.0.context.series);
        }
    }

    /// Makes the partitions of the months to come, where the database has any.
    pub(crate) async fn make_partitions(&self) -> Result<(), StoreError> {
        if self.0.has_one_writer {
            return Ok(());
        }
        let now = self.0.context.clock.now();
        self.read(move |conn| conn.write_soon(|conn| partitions::make_ahead(conn, now))).await
    }

    /// Ends the billing cycles that have passed of [`Whose`] subscriptions, and begins those that
    /// followed. Call it before reading them; it is done by itself when a call draws on them, and
    /// from time to time for [everybody](Whose::Everybody), so that what happened is told in time.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn renew(&self, whose: Whose) -> Result<usize, StoreError> {
        const AT_ONCE: i64 = 100;
        let (mut renewed, mut before) = (0, Vec::new());
        loop {
            let now = self.0.context.clock.now();
            let due = self.read(move |conn| subscriptions::due(conn, whose, now, AT_ONCE)).await?;
            if due.is_empty() {
                return Ok(renewed);
            }
            if due == before {
                let value = format!("of wallets {due:?}");
                return Err(StoreError::Corrupt {
                    what: "subscription (it is not renewed)",
                    value,
                });
            }
            renewed += due.len();
            before.clone_from(&due);
            let together = due.clone();
            let renewal = self.write(move |conn| subscriptions::renew(conn, &together, now));
            if let Err(cause) = renewal.await {
                log::warn!("subscriptions are renewed one by one: {cause}");
                for one in due {
                    let renewal = self.write(move |conn| subscriptions::renew(conn, &[one], now));
                    if let Err(cause) = renewal.await {
                        log::error!("the subscription on {one} is not renewed: {cause}");
                    }
                }
            }
        }
    }

    /// Recomputes balances, counters and holds from the ledger, of one state of the store.
    ///
    /// # Errors
    /// Those of the store; differences are findings of the [`audit::Audit`].
    pub async fn audit(&self) -> Result<audit::Audit, StoreError> {
        self.read_snapshot(audit::run).await
    }

    /// What the ledger counts of itself.
    pub fn vitals(&self) -> &Vitals {
        &self.0.context.vitals
    }

    /// How many jobs wait for the ledger.
    pub fn queue_length(&self) -> usize {
        self.ledger().map_or(0, |ledger| ledger.queue_length())
    }

    /// How many settlements wait in memory because neither the database nor the journal took them.
    pub fn unkept(&self) -> usize {
        held(&self.0.context.unkept).len()
    }

    /// How many settlements wait in the journal, and how many bytes of disk they take.
    ///
    /// # Errors
    /// Those of the operating system.
    pub async fn journal_size(&self) -> std::io::Result<(u64, u64)> {
        let Some(journal) = self.0.context.journal.clone() else { return Ok((0, 0)) };
        tokio::task::spawn_blocking(move || journal.size()).await.map_err(std::io::Error::other)?
    }

    /// Counts what is open in the database.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn count_open(&self) -> Result<Open, StoreError> {
        self.read(backlog::open).await
    }

    /// Returns when another process has begun to serve from the same SQLite file. This one admits nothing
    /// more then; the calls that it has admitted can be settled.
    pub async fn overtaken(&self) {
        let mut overtaken = self.0.context.overtaken.subscribe();
        // The sender lives as long as this store.
        let _ = overtaken.wait_for(|is_overtaken| *is_overtaken).await;
    }

    /// Ends this process's life in the store: the queue is emptied, the writers stop, the lease and
    /// the file are given back. Nothing can be written afterwards. To close twice is fine.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn close(&self) -> Result<(), StoreError> {
        if let Err(cause) = self.replay_unkept().await {
            log::error!("what waits in memory is not booked: {cause}");
        }
        let Some(ledger) = held(&self.0.ledger).take() else { return Ok(()) };
        let (node_id, epoch) = (self.0.context.node_id, self.0.context.epoch);
        let retired = ledger.write(move |conn| {
            epoch.map_or(Ok(()), |epoch| serving::end(conn, epoch))?;
            nodes::retire(conn, node_id)
        });
        let retired = retired.await;
        drop(ledger);
        let writers = std::mem::take(&mut *held(&self.0.writers));
        let joined = tokio::task::spawn_blocking(move || {
            writers.into_iter().for_each(|writer| drop(writer.join()));
        });
        joined.await.map_err(|cause| StoreError::Unavailable(cause.to_string()))?;
        held(&self.0.lock).take();
        retired
    }

    pub(crate) fn ledger(&self) -> Result<Ledger, StoreError> {
        let ledger = held(&self.0.ledger);
        ledger.clone().ok_or_else(|| StoreError::Unavailable("the store is closed".to_owned()))
    }
}

/// What a mutex guards, whatever became of those who held it before.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
