//! The store: a database, its ledger, and this process's state in it.

use std::collections::HashSet;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{
    Job, MerchantId, MissingPrice, PendingRecord, RefusalId, RefusedCall, RequestId, Timestamp,
};
use tollgate_pricing::Rate;

use crate::archived::RecordArchive;
use crate::backlog::{self, Backlog};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::files::FileLock;
use crate::journal::JournalEntry;
use crate::ledger::{self, Ledger, LedgerContext, ReportOutcome, ReportedUsage, SettleOutcome};
use crate::ledger_metrics::LedgerMetrics;
use crate::readers::Readers;
use crate::refusal_queue::{RefusalBatch, RefusalCause};
use crate::rollups::{FoldMemory, FoldResult};
use crate::subscriptions::{self, RenewalScope};
use crate::tables::merchants::cell_of;
use crate::{audit, nodes, partitions, refusals, rollups, serving};

/// A database, its ledger, and this process's state in it. Clones share it.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<StoreInner>);

pub(crate) struct StoreInner {
    pub(crate) readers: Readers,
    pub(crate) ledger: Mutex<Option<Ledger>>,
    pub(crate) writers: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) context: Arc<LedgerContext>,
    pub(crate) lease_ms: u32,
    pub(crate) renewals: Mutex<LeaseRenewals>,
    pub(crate) lock: Mutex<Option<FileLock>>,
    /// The open calls of this process that it did not know at the last sweep.
    pub(crate) unknown_calls: Mutex<HashSet<RequestId>>,
    /// Whether no other process can have a call in flight.
    pub(crate) alone: bool,
    pub(crate) has_one_writer: bool,
    pub(crate) _temporary: Option<tempfile::TempDir>,
}

/// The renewals of this process's lease.
pub(crate) struct LeaseRenewals {
    pub(crate) last: Timestamp,
    /// The instant since which no pause was as long as a lease.
    pub(crate) unbroken_since: Timestamp,
}

/// The longest wait of a reader of refusals for those that are not written yet.
const REFUSALS_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that a client's last bytes wait for its settlement.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for the cell of a job's merchant, before the job is settled.
const CELL_TIMEOUT: Duration = Duration::from_secs(1);

impl Store {
    /// Runs `work` on a reading connection, in a thread for blocking work.
    ///
    /// # Errors
    /// The error of `work`, or [`StoreError::Unavailable`].
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

    /// As [`Store::read_snapshot`], with the archive of the records. A record that moves to the archive meanwhile is in one
    /// of the two throughout.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn read_records<T, E>(
        &self,
        work: impl FnOnce(&mut Conn, &RecordArchive) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let archive = self.archive();
        self.read_snapshot(move |conn| work(conn, &archive)).await
    }

    /// The archive of the records.
    pub(crate) fn archive(&self) -> RecordArchive {
        self.0.context.archive.clone()
    }

    /// Runs `work` in a write transaction of its own. `Err` rolls it back.
    ///
    /// # Errors
    /// The error of `work`, or [`StoreError::Unavailable`].
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

    /// As [`Store::write`], for work on which no admission depends.
    ///
    /// No call waits for it on PostgreSQL: it runs beside the ledger, and waits two seconds at most for a
    /// locked row. On SQLite it takes turns with the ledger.
    ///
    /// # Errors
    /// The error of `work`, or [`StoreError::Unavailable`].
    pub async fn write_outside_calls<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        match self.0.has_one_writer {
            true => self.ledger()?.write_outside_calls(work).await,
            false => self.read(|conn| conn.write_bounded(work)).await,
        }
    }

    /// As [`Store::write_outside_calls`], for work that can be repeated. A power cut may take it back, as long as nothing later
    /// is written.
    pub(crate) async fn write_repeatable<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let work = |conn: &mut Conn| conn.write_repeatable(work);
        match self.0.has_one_writer {
            true => self.ledger()?.run_outside_calls(work).await,
            false => self.read(work).await,
        }
    }

    /// Admits a call durably, or refuses it and writes nothing.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails. A refusal is not an error.
    pub async fn admit(
        &self,
        call: Box<Call>,
    ) -> Result<Result<Box<PendingRecord>, Refusal>, StoreError> {
        self.ledger()?.admit(call).await
    }

    /// Makes a call that was [admitted ahead](Call::ahead) a call of now: it has a record from now on, under another id.
    /// `None` if it is not open.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails. A report of its end gives it a record also then.
    pub async fn begin(
        &self,
        request_id: RequestId,
    ) -> Result<Option<Box<PendingRecord>>, StoreError> {
        self.ledger()?.begin(request_id).await
    }

    /// The service charge as a fraction of the fee, by which calls are settled.
    pub fn service_charge_rate(&self) -> Rate {
        self.0.context.service_charge_rate
    }

    /// Settles a call durably and once, also when it is called again.
    ///
    /// If the database does not take the settlement within two seconds, it is kept in the journal and
    /// booked when the database is back.
    pub async fn settle(&self, request_id: RequestId, report: CallReport) -> SettleOutcome {
        self.settle_call(request_id, report, None).await
    }

    /// As [`Store::settle`], for the call of a job. Nothing is done for a merchant that moves to another cell or has moved
    /// there: the cell that has the job then looks at it.
    pub async fn settle_job(&self, job: &Job, report: CallReport) -> SettleOutcome {
        let merchant_id = job.merchant_id;
        let cell = self.read(move |conn| cell_of(conn, merchant_id));
        // A database that does not answer gets the settlement from the journal later.
        if let Ok(Ok(Some(_))) = tokio::time::timeout(CELL_TIMEOUT, cell).await {
            return SettleOutcome::Moved;
        }
        self.settle(job.request_id, report).await
    }

    /// As [`Store::settle`]. `call` is the call, if it was not admitted: it is admitted without a hold, whatever its
    /// limits say, and settled.
    pub async fn settle_call(
        &self,
        request_id: RequestId,
        report: CallReport,
        call: Option<PendingRecord>,
    ) -> SettleOutcome {
        let report = Arc::new(report);
        let booking = self.book(request_id, Arc::clone(&report), call.clone());
        match tokio::time::timeout(SETTLE_TIMEOUT, booking).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(cause)) => log::error!("{request_id} is not settled yet: {cause}"),
            Err(_) => log::error!("{request_id} is not settled yet: the database is slow"),
        }
        let entry = JournalEntry { request_id, report: Arc::unwrap_or_clone(report), call };
        let context = Arc::clone(&self.0.context);
        let kept = tokio::task::spawn_blocking(move || context.keep(entry));
        match kept.await.unwrap_or(false) {
            true => SettleOutcome::Journaled,
            false => SettleOutcome::NotSettled,
        }
    }

    /// Books usage that did not pass through this service, once under its reference.
    ///
    /// Call it in a write transaction of this store.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub fn report(
        &self,
        conn: &mut Conn,
        merchant_id: MerchantId,
        reported: &ReportedUsage,
    ) -> Result<ReportOutcome, StoreError> {
        ledger::book_reported(conn, merchant_id, reported, &self.0.context)
    }

    /// The outcome of an earlier report of this usage whose record is in the archive, if there is one.
    ///
    /// Call it before [`Store::report`], which does not find such a report.
    ///
    /// # Errors
    /// [`StoreError`] when the database or the archive fails.
    pub async fn find_archived_report(
        &self,
        merchant_id: MerchantId,
        reported: ReportedUsage,
    ) -> Result<Option<ReportOutcome>, StoreError> {
        // A single record is found without a snapshot, and this is part of each report.
        let archive = self.archive();
        self.read(move |conn| ledger::find_archived_report(conn, &archive, merchant_id, &reported))
            .await
    }

    /// Settles a call for a caller that cannot wait.
    ///
    /// That is a task that is being dropped, perhaps with its runtime, or a client that is refused. The
    /// journal keeps it like any other settlement.
    pub fn settle_in_background(&self, request_id: RequestId, report: CallReport) {
        let entry = JournalEntry { request_id, report, call: None };
        match self.ledger() {
            Ok(ledger) => ledger.settle_detached(entry),
            Err(_) => drop(self.0.context.keep(entry)),
        }
    }

    /// Writes the event of a missing price for which a call was refused.
    ///
    /// It is written in the background, once a day, and not at all while the ledger is busy.
    pub fn report_missing_price(&self, merchant_id: MerchantId, missing: MissingPrice) {
        if let Ok(ledger) = self.ledger() {
            ledger.report_missing_price(merchant_id, missing);
        }
    }

    /// Keeps a refusal, and returns its id. It is written within a second, and not at all if the process ends before.
    ///
    /// In a storm, refusals of one key for one reason share an id. `call` is then not called.
    pub fn record_refusal(
        &self,
        cause: &RefusalCause<'_>,
        call: impl FnOnce() -> RefusedCall,
    ) -> RefusalId {
        let (refusal_id, is_kept) = self.0.context.refusals.add(cause, call);
        if !is_kept {
            self.0.context.metrics.refusals_dropped.inc();
        }
        refusal_id
    }

    /// Writes the refusals that wait, before they are read. Without a database that takes writes soon, the reader sees
    /// those that were written before.
    pub async fn flush_refusals(&self) {
        let store = self.clone();
        // A task of its own, because a write that is dropped halfway would lose what it has taken from the queue.
        let written = tokio::spawn(async move { store.write_refusals().await });
        if let Ok(Ok(Err(cause))) = tokio::time::timeout(REFUSALS_TIMEOUT, written).await {
            log::debug!("refusals are not written: {cause}");
        }
    }

    /// Writes the refusals that wait.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails. The refusals go on waiting.
    pub async fn write_refusals(&self) -> Result<(), StoreError> {
        // A second caller finds an empty queue, and waits until the first batch is written.
        let _in_turn = self.0.context.refusals_in_turn.lock().await;
        let queue = &self.0.context.refusals;
        if let Some(batch) = queue.take_failed() {
            self.write_refusal_batch(batch).await?;
        }
        // One batch at a time: in a storm there are new ones at once, and each has rows of its own.
        match queue.take() {
            Some(batch) => self.write_refusal_batch(batch).await,
            None => Ok(()),
        }
    }

    async fn write_refusal_batch(&self, batch: Arc<RefusalBatch>) -> Result<(), StoreError> {
        let written = Arc::clone(&batch);
        let done = self.write_outside_calls(move |conn| refusals::write(conn, &written)).await;
        if done.is_err() {
            self.0.context.refusals.put_back(batch);
        }
        done
    }

    /// Deletes refusals from before an instant.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn forget_refusals(&self, before: Timestamp) -> Result<(), StoreError> {
        while self.write_outside_calls(move |conn| refusals::forget_old(conn, before)).await? > 0 {}
        Ok(())
    }

    async fn book(
        &self,
        request_id: RequestId,
        report: Arc<CallReport>,
        call: Option<PendingRecord>,
    ) -> Result<SettleOutcome, StoreError> {
        self.ledger()?.settle(request_id, Some(report), call.map(Arc::new)).await
    }

    /// Books the settlements that wait in the journal or in memory. Returns their number.
    ///
    /// They wait in memory when the journal had no room for them either.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails. Settlements that are not booked go on waiting.
    pub async fn replay_journal(&self) -> Result<usize, StoreError> {
        let mut booked = self.replay_unkept().await?;
        let Some(journal) = self.0.context.journal.clone() else { return Ok(booked) };
        let unreadable = |cause: std::io::Error| StoreError::Unavailable(cause.to_string());
        let entries = journal.entries().map_err(unreadable)?;
        let mut trouble = None;
        for entry in entries {
            let may_come = entry.may_still_appear(self.0.context.clock.now());
            let JournalEntry { request_id, report, call } = entry;
            let certainly_sent = report.ending != Ending::NotSent;
            match self.book(request_id, Arc::new(report), call).await {
                Ok(SettleOutcome::NotFound) if may_come => {}
                // A call that was perhaps never admitted may have no record. Any other must have one, here
                // or in the database that this one has replaced.
                Ok(SettleOutcome::NotFound) if certainly_sent => {
                    log::error!("{request_id} of the journal is not in this database; set aside");
                    journal.set_aside(request_id).map_err(unreadable)?;
                }
                Ok(_) => {
                    journal.remove(request_id).map_err(unreadable)?;
                    booked += 1;
                }
                // A database that is away takes none of the others.
                Err(cause @ (StoreError::Unavailable(_) | StoreError::Interrupted)) => {
                    return Err(cause);
                }
                // An entry that cannot be booked must not block the others.
                Err(cause) => trouble = Some(cause),
            }
        }
        trouble.map_or(Ok(booked), Err)
    }

    /// Books the settlements that wait in memory, or moves them to the journal.
    async fn replay_unkept(&self) -> Result<usize, StoreError> {
        let context = &self.0.context;
        let (mut booked, mut trouble) = (0, None);
        let entries = held(&context.unjournaled).clone();
        for entry in entries {
            let request_id = entry.request_id;
            let report = Arc::new(entry.report.clone());
            match self.book(request_id, report, entry.call.clone()).await {
                Ok(_) => booked += 1,
                Err(cause) => match context.journal.as_ref().map(|journal| journal.write(&entry)) {
                    Some(Ok(())) => {}
                    Some(Err(_)) | None if cause.is_unavailable() => return Err(cause),
                    // An entry that cannot be booked must not block the others.
                    Some(Err(_)) | None => {
                        trouble = Some(cause);
                        continue;
                    }
                },
            }
            // Removed only now, because this future may be dropped while it waits.
            held(&context.unjournaled).retain(|waiting| waiting.request_id != request_id);
        }
        trouble.map_or(Ok(booked), Err)
    }

    /// Renews this process's lease. Call it a few times per
    /// [`Options::lease_ms`](crate::Options::lease_ms).
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn renew_lease(&self) -> Result<(), StoreError> {
        let context = &self.0.context;
        let node_id = context.node_id;
        let until = context.clock.now().plus_millis(i64::from(self.0.lease_ms));
        // The ledger runs it, so that it has a connection and its turn. No call is decided by it.
        self.ledger()?.write_outside_calls(move |conn| nodes::renew(conn, node_id, until)).await?;
        let now = context.clock.now();
        self.note_renewal(now);
        if !self.0.has_one_writer {
            let nodes = self.read(move |conn| nodes::count(conn, now)).await?;
            context.nodes.store(nodes.max(1), Ordering::Relaxed);
        }
        Ok(())
    }

    fn note_renewal(&self, now: Timestamp) {
        let mut renewals = held(&self.0.renewals);
        if renewals.last.plus_millis(i64::from(self.0.lease_ms)) < now {
            renewals.unbroken_since = now;
        }
        renewals.last = now;
    }

    /// Fails unless the store can be read and this process's lease is current.
    ///
    /// The lease is written a few times in its length. So the check fails for a database that is full,
    /// read-only or silent.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.read(|conn| conn.ping()).await?;
        let until = held(&self.0.renewals).last.plus_millis(i64::from(self.0.lease_ms));
        match self.0.context.clock.now() <= until {
            true => Ok(()),
            false => Err(StoreError::Unavailable("the lease is not renewed".to_owned())),
        }
    }

    /// Whether this process may take another's silence for its death.
    ///
    /// While the database was away no node could renew its lease. After that, each node has the time of one
    /// lease to come back.
    fn may_sweep(&self, now: Timestamp) -> bool {
        let renewals = held(&self.0.renewals);
        let lease = i64::from(self.0.lease_ms);
        // A process that was suspended finds its own lease lapsed, too.
        let is_kept = now <= renewals.last.plus_millis(lease);
        self.0.alone || (is_kept && renewals.unbroken_since.plus_millis(lease) <= now)
    }

    /// Ends the calls of processes whose lease has lapsed. Returns their number.
    ///
    /// Their holds are released. The merchant bears the cost that they may have had.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        const AT_ONCE: i64 = 500;
        let node_id = self.0.context.node_id;
        let mut swept = self.sweep_own().await?;
        loop {
            let now = self.0.context.clock.now();
            if !self.may_sweep(now) {
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
                    // A call that cannot be ended must not block the others.
                    Err(cause) => trouble = Some(cause),
                }
            }
            match trouble {
                Some(cause) if swept == before => return Err(cause),
                _ => {}
            }
        }
    }

    /// Ends open calls of this process that it did not know in two sweeps in a row.
    ///
    /// Their settlement was lost with the last commits of a PostgreSQL server that was replaced.
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

    /// Folds settled calls into the roll-ups and the metadata index, and writes events.
    ///
    /// Returns the number of calls. Readers of sums and lists need not wait for it.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn fold(&self) -> Result<usize, StoreError> {
        self.fold_all(rollups::fold).await
    }

    /// As [`Store::fold`], but leaves the calls to another node that folds at this moment.
    pub(crate) async fn fold_in_turn(&self) -> Result<usize, StoreError> {
        self.fold_all(rollups::fold_in_turn).await
    }

    async fn fold_all(
        &self,
        fold_some: fn(&mut Conn, &FoldMemory, Timestamp) -> Result<FoldResult, StoreError>,
    ) -> Result<usize, StoreError> {
        let mut calls = 0;
        loop {
            let context = Arc::clone(&self.0.context);
            let fold = move |conn: &mut Conn| fold_some(conn, &context.folds, context.clock.now());
            let folded = self.write_repeatable(fold).await?;
            if folded.calls == 0 {
                return Ok(calls);
            }
            calls += folded.calls;
            folded.committed(&self.0.context.folds);
        }
    }

    /// Makes the partitions of the coming months, where the database has partitions.
    pub(crate) async fn make_partitions(&self) -> Result<(), StoreError> {
        if self.0.has_one_writer {
            return Ok(());
        }
        let now = self.0.context.clock.now();
        self.read(move |conn| conn.write_short_wait(|conn| partitions::make_ahead(conn, now))).await
    }

    /// Renews the subscriptions of [`RenewalScope`] whose billing cycle has ended. Returns their number.
    ///
    /// Call it before reading them. A call that draws on a subscription renews it, too. A task renews
    /// [all](RenewalScope::Everybody) from time to time, so that their events are written in time.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails. [`StoreError::Unavailable`] also when a renewal for a read takes four seconds: a
    /// read is answered within five.
    pub async fn renew(&self, whose: RenewalScope) -> Result<usize, StoreError> {
        const PATIENCE: Duration = Duration::from_secs(4);
        if whose == RenewalScope::Everybody {
            return self.renew_due(whose).await;
        }
        let renewal = tokio::time::timeout(PATIENCE, self.renew_due(whose));
        renewal.await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable("subscriptions are not renewed in time".to_owned()))
        })
    }

    async fn renew_due(&self, whose: RenewalScope) -> Result<usize, StoreError> {
        const AT_ONCE: i64 = 100;
        let (mut renewed, mut before, mut failure) = (0, Vec::new(), None);
        loop {
            let now = self.0.context.clock.now();
            let due = self
                .read(move |conn| subscriptions::due_wallets(conn, whose, now, AT_ONCE))
                .await?;
            if due.is_empty() {
                return Ok(renewed);
            }
            if due == before {
                return Err(failure.unwrap_or_else(|| {
                    let value = format!("of wallets {due:?}");
                    StoreError::Corrupt { what: "subscription (it is not renewed)", value }
                }));
            }
            renewed += due.len();
            before.clone_from(&due);
            let together = due.clone();
            let renewal = self.write(move |conn| subscriptions::renew(conn, &together, now));
            let Err(cause) = renewal.await else { continue };
            // A locked row holds up one subscription only.
            if cause.is_unavailable() && !cause.is_lock_timeout() {
                return Err(cause);
            }
            log::warn!("subscriptions are renewed one by one: {cause}");
            for one in due {
                let renewal = self.write(move |conn| subscriptions::renew(conn, &[one], now));
                if let Err(cause) = renewal.await {
                    log::error!("the subscription on {one} is not renewed: {cause}");
                    failure = Some(cause);
                }
            }
        }
    }

    /// Recalculates balances, counters and holds from the ledger lines, in one snapshot.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails. Differences are findings of the [`audit::Audit`].
    pub async fn audit(&self) -> Result<audit::Audit, StoreError> {
        self.read_snapshot(|conn| audit::run(conn, None)).await
    }

    /// As [`Store::audit`], with all records of the archive.
    ///
    /// # Errors
    /// [`StoreError`] when the database or the archive fails.
    pub async fn audit_with_archive(&self) -> Result<audit::Audit, StoreError> {
        self.read_records(|conn, archive| audit::run(conn, Some(archive))).await
    }

    /// The metrics of the ledger.
    pub fn metrics(&self) -> &LedgerMetrics {
        &self.0.context.metrics
    }

    /// The number of jobs that wait for the ledger.
    pub fn queue_length(&self) -> usize {
        self.ledger().map_or(0, |ledger| ledger.queue_length())
    }

    /// The number of settlements in memory that neither the database nor the journal took.
    pub fn unjournaled(&self) -> usize {
        held(&self.0.context.unjournaled).len()
    }

    /// The number of settlements in the journal, and their size in bytes.
    ///
    /// # Errors
    /// When the folder of the journal cannot be read.
    pub async fn journal_size(&self) -> std::io::Result<(u64, u64)> {
        let Some(journal) = self.0.context.journal.clone() else { return Ok((0, 0)) };
        tokio::task::spawn_blocking(move || journal.size()).await.map_err(std::io::Error::other)?
    }

    /// Counts the open calls and the waiting messages in the database.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn count_backlog(&self) -> Result<Backlog, StoreError> {
        self.read(backlog::count_backlog).await
    }

    /// Returns when another process has begun to serve from the same SQLite file.
    ///
    /// From then on this process admits no call; its admitted calls can be settled.
    pub async fn overtaken(&self) {
        let mut overtaken = self.0.context.overtaken.subscribe();
        // The sender lives as long as this store.
        let _ = overtaken.wait_for(|is_overtaken| *is_overtaken).await;
    }

    /// Ends this process's part in the store. A second call does nothing.
    ///
    /// The queue is emptied, the writers stop, the lease and the file are released. Nothing can be written
    /// afterwards.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn close(&self) -> Result<(), StoreError> {
        if let Err(cause) = self.replay_unkept().await {
            log::error!("what waits in memory is not booked: {cause}");
        }
        if let Err(cause) = self.write_refusals().await {
            log::warn!("the last refusals are not written: {cause}");
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

/// The value of a mutex, even if a thread that held it has panicked.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
