//! The ledger: a queue of admissions and settlements, and the writers that book them.
//!
//! Every admission and settlement goes through one queue. A writer takes all waiting jobs, decides
//! them under the same locks and commits once.
//!
//! A durable commit costs far more than the statements in it, so calls share one. No call waits for
//! a group to fill. Other writes go through the same queue, each in its own transaction, few between
//! two groups. On SQLite this makes one writer per store, which never meets "database is locked".

mod checkpoints;
mod command;
mod config;
mod context;
mod decide;
mod load;
mod queue;
mod recent;
mod reported;
mod row_locks;
mod single_writer;
mod state;
mod writer;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tollgate_domain::admission::Call;
use tollgate_domain::settlement::CallReport;
use tollgate_domain::{MerchantId, MissingPrice, PendingRecord, RequestId};

use crate::conn::{Conn, ConnManager};
use crate::error::StoreError;
use crate::journal::JournalEntry;
use crate::missing_prices;
use command::{
    AdmissionResult, BeginResult, Beginning, CallJob, Job, Settlement, WriteWork, not_sent,
};
pub use command::{SettleOutcome, SettledRecord};
pub(crate) use context::LedgerContext;
use context::{ledger_unavailable, overtaken_error};
use queue::JobQueue;
pub(crate) use recent::RecentSettlements;
pub use reported::{ReportOutcome, ReportedUsage};
pub(crate) use reported::{book as book_reported, find_archived as find_archived_report};
use writer::Writer;

/// The length of the queue. A caller that meets a full queue gets [`StoreError::Unavailable`].
const QUEUE_LENGTH: usize = 8_192;

/// The sending end of the ledger's queue.
#[derive(Clone)]
pub(crate) struct Ledger {
    jobs: mpsc::Sender<Job>,
    queue: Arc<JobQueue>,
    context: Arc<LedgerContext>,
}

/// Waits for a decision. An admission whose caller has left, after a timeout or a dropped call, is
/// ended: the call was not sent, and must not hold money.
struct AdmissionWaiter<'a> {
    ledger: &'a Ledger,
    answer: oneshot::Receiver<AdmissionResult>,
}

impl Drop for AdmissionWaiter<'_> {
    fn drop(&mut self) {
        // From here on the writer finds the channel closed, and ends the call itself.
        self.answer.close();
        if let Ok(Ok(Ok(pending))) = self.answer.try_recv() {
            self.ledger.settle_detached(not_sent(&pending));
        }
    }
}

impl Ledger {
    /// Starts `writers` threads on one queue. They end when the last [`Ledger`] is dropped and the
    /// queue is empty.
    pub(crate) fn start(
        manager: &ConnManager,
        writers: usize,
        context: &Arc<LedgerContext>,
    ) -> std::io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (jobs, queue) = mpsc::channel(QUEUE_LENGTH);
        let queue = Arc::new(JobQueue::new(queue));
        let threads = (0..writers).map(|number| {
            let mut writer = Writer::new(&queue, manager, context);
            std::thread::Builder::new()
                .name(format!("ledger-{number}"))
                .spawn(move || writer.serve())
        });
        let context = Arc::clone(context);
        let threads = threads.collect::<Result<_, _>>()?;
        Ok((Self { jobs, queue, context }, threads))
    }

    pub(crate) async fn admit(&self, call: Box<Call>) -> AdmissionResult {
        if self.context.is_overtaken() {
            return Err(overtaken_error());
        }
        let begun = Instant::now();
        let (reply, answer) = oneshot::channel();
        self.send(Job::Call(CallJob::Admit(call, reply)))?;
        let mut waiting = AdmissionWaiter { ledger: self, answer };
        let decision = (&mut waiting.answer).await.map_err(|_| ledger_unavailable())?;
        self.context.metrics.admissions.observe(begun.elapsed().as_secs_f64());
        decision
    }

    pub(crate) async fn settle(
        &self,
        request_id: RequestId,
        report: Option<Arc<CallReport>>,
        call: Option<Arc<PendingRecord>>,
    ) -> Result<SettleOutcome, StoreError> {
        let begun = Instant::now();
        let (reply, answer) = oneshot::channel();
        let settlement = Box::new(Settlement { request_id, report, call });
        // A settlement waits for its place: it must not be lost because the queue is full.
        let job = Job::Call(CallJob::Settle(settlement, reply));
        self.jobs.send(job).await.map_err(|_| ledger_unavailable())?;
        let outcome = answer.await.map_err(|_| ledger_unavailable())?;
        self.context.metrics.settlements.observe(begun.elapsed().as_secs_f64());
        outcome
    }

    /// Begins a call that was admitted ahead. It has another id from then on.
    pub(crate) async fn begin(&self, ahead: RequestId) -> BeginResult {
        let (reply, answer) = oneshot::channel();
        let ahead = Settlement { request_id: ahead, report: None, call: None };
        let request_id = RequestId::generate(self.context.clock.now());
        let beginning = Box::new(Beginning { ahead, request_id });
        self.send(Job::Call(CallJob::Begin(beginning, reply)))?;
        answer.await.map_err(|_| ledger_unavailable())?
    }

    /// The number of jobs that wait for a writer.
    pub(crate) fn queue_length(&self) -> usize {
        QUEUE_LENGTH.saturating_sub(self.jobs.capacity()) + self.queue.waiting_works()
    }

    /// Settles a call without waiting for the outcome.
    pub(crate) fn settle_detached(&self, entry: JournalEntry) {
        let job = Job::Call(CallJob::SettleDetached(Box::new(entry)));
        if let Err(TrySendError::Full(job) | TrySendError::Closed(job)) = self.jobs.try_send(job)
            && let Job::Call(CallJob::SettleDetached(entry)) = job
        {
            self.context.keep(*entry);
        }
    }

    /// Runs `work` in a transaction of its own. It may change the configuration of calls.
    pub(crate) async fn write<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run(|conn: &mut Conn| conn.write(work), true).await
    }

    /// As [`Ledger::write`], for work that does not change the configuration of calls.
    pub(crate) async fn write_outside_calls<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run(|conn: &mut Conn| conn.write(work), false).await
    }

    /// As [`Ledger::write_outside_calls`], for work that begins and ends its transactions itself.
    pub(crate) async fn run_outside_calls<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run(work, false).await
    }

    async fn run<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
        concerns_calls: bool,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let run = Box::new(move |conn: &mut Conn| {
            let done = work(conn);
            // The caller may have left. The work is done all the same.
            let _ = reply.send(done);
        });
        self.send(Job::Write(WriteWork { run, concerns_calls }))?;
        answer.await.map_err(|_| ledger_unavailable())?
    }

    /// Writes the event of a missing price, once a day, while the queue is less than half full.
    pub(crate) fn report_missing_price(&self, merchant_id: MerchantId, missing: MissingPrice) {
        let (context, now) = (Arc::clone(&self.context), self.context.clock.now());
        let is_busy = self.queue_length() > QUEUE_LENGTH / 2;
        if is_busy || !context.reported_prices.is_first(merchant_id, &missing, now) {
            return;
        }
        let run = Box::new(move |conn: &mut Conn| {
            let missing = [(merchant_id, missing)];
            if let Err(cause) = conn.write(|conn| missing_prices::report(conn, missing, now)) {
                log::warn!("the event of a missing price is not written: {cause}");
                context.reported_prices.forget();
            }
        });
        // A job that finds no room is dropped. The next day brings the next event.
        let _ = self.jobs.try_send(Job::Write(WriteWork { run, concerns_calls: false }));
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        let is_full = self.queue_length() >= QUEUE_LENGTH;
        if is_full || self.jobs.try_send(job).is_err() {
            let why = "too many calls wait for the ledger, or it has stopped";
            return Err(StoreError::Unavailable(why.to_owned()));
        }
        Ok(())
    }
}
