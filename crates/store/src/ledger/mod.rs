//! The ledger: every admission and settlement goes through one queue, and a writer takes all that
//! wait, decides them under the same locks, and commits once.
//!
//! A durable commit costs far more than the statements in it, so calls share it; nobody waits for
//! a group to fill. Other writes go through the same queue, each in its own transaction: on SQLite
//! that makes one writer per store, which never meets "database is locked".

mod accounts;
mod books;
mod checkpoints;
mod parties;
mod posting;
mod recent;
mod reported;
mod row_locks;
mod single_writer;
mod storms;
mod writer;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::Report;
use tollgate_domain::{
    Clock, MerchantId, MissingPrice, NodeId, PendingRecord, RequestId, RequestRecord,
};
use tollgate_pricing::Rate;

use crate::conn::{Conn, Manager};
use crate::error::StoreError;
use crate::journal::{Entry, Journal};
use crate::missing_prices::{self, Told};
use crate::rollups::Series;
use crate::vitals::Vitals;
use books::Settlement;
pub(crate) use recent::Recent;
pub(crate) use reported::book as book_reported;
pub use reported::{Reported, ReportedUsage};
pub(crate) use storms::Storms;
use writer::Writer;

/// How many may wait for a writer; who comes then is told that the store cannot keep up.
const QUEUE_LENGTH: usize = 8_192;

/// What became of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// It is booked; the record in its final state.
    Settled(Box<RequestRecord>),
    /// It is booked at nothing: what it costs is beyond all amounts.
    LetGo(Box<RequestRecord>),
    /// It had been settled before; nothing moved.
    AlreadySettled,
    /// There is no such call.
    NotFound,
    /// The database is away; it waits in the journal.
    Journaled,
    /// Neither the database nor the journal took it: it waits in memory for either. If this process
    /// ends before, the call is swept.
    NotSettled,
}

/// What becomes of a call that asks to be admitted.
type Decision = Result<Result<Box<PendingRecord>, Refusal>, StoreError>;

enum Job {
    Admit(Box<Call>, oneshot::Sender<Decision>),
    Settle(Box<Settlement>, oneshot::Sender<Result<SettleOutcome, StoreError>>),
    /// A settlement whose outcome nobody waits for.
    SettleUnheard(Box<Entry>),
    Write(Work),
}

/// What runs on a writer's connection.
struct Work {
    run: Box<dyn FnOnce(&mut Conn) + Send>,
    /// Whether it may change what calls are decided by.
    concerns_calls: bool,
}

/// The sending end of the ledger's queue.
#[derive(Clone)]
pub(crate) struct Ledger {
    jobs: mpsc::Sender<Job>,
    context: Arc<Context>,
}

/// What every writer needs to know.
pub(crate) struct Context {
    pub(crate) node_id: NodeId,
    pub(crate) service_charge_rate: Rate,
    pub(crate) clock: Clock,
    pub(crate) storms: Storms,
    pub(crate) series: Series,
    /// Whether calls were settled that this process has not folded since.
    pub(crate) is_queued: AtomicBool,
    pub(crate) told: Told,
    pub(crate) journal: Option<Journal>,
    /// What neither the database nor the journal took. No more calls than are on their way can come
    /// to wait here: new ones are not admitted then.
    pub(crate) unkept: Mutex<Vec<Entry>>,
    /// The calls that this process has admitted and that are not settled, where the books of a batch end
    /// with it.
    pub(crate) open_calls: Mutex<HashMap<RequestId, Arc<PendingRecord>>>,
    /// The calls that were settled lately, where the database may lose what it has committed.
    pub(crate) recent: Recent,
    /// The epoch in which this process serves from a SQLite file.
    pub(crate) epoch: Option<i64>,
    /// Whether another process has begun to serve from it since.
    pub(crate) overtaken: watch::Sender<bool>,
    pub(crate) vitals: Vitals,
}

impl Context {
    pub(crate) fn open_calls(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<PendingRecord>>> {
        self.open_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_overtaken(&self) -> bool {
        *self.overtaken.borrow()
    }

    /// Another process has begun to serve from the same SQLite file.
    fn set_overtaken(&self) {
        if !self.overtaken.send_replace(true) {
            log::error!("another process serves from this SQLite file: no more calls are admitted");
        }
    }

    /// Keeps a settlement that cannot be booked now, in the journal or else in memory; whether it
    /// will outlive this process.
    pub(crate) fn keep(&self, mut entry: Entry) -> bool {
        if entry.call.is_none() {
            let call = self.open_calls().get(&entry.request_id).cloned();
            entry.call = call.map(Arc::unwrap_or_clone);
        }
        let kept = match &self.journal {
            Some(journal) => journal.write(&entry),
            None => Err(io::Error::other("there is no journal")),
        };
        if let Err(cause) = &kept {
            log::error!("{} could not be kept in the journal: {cause}", entry.request_id);
            self.unkept.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        }
        kept.is_ok()
    }
}

/// Waits for a decision. An admission that comes when nobody waits any more, because that took too
/// long or because the call was dropped, is ended: it was not sent, and must not hold money.
struct Waiting<'a> {
    ledger: &'a Ledger,
    answer: oneshot::Receiver<Decision>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // From here on the writer finds that nobody listens, and ends the call itself.
        self.answer.close();
        if let Ok(Ok(Ok(pending))) = self.answer.try_recv() {
            self.ledger.settle_unheard(not_sent(&pending));
        }
    }
}

/// The end of a call that was admitted and went nowhere.
fn not_sent(pending: &PendingRecord) -> Entry {
    let report = Report::not_sent(pending.created_at);
    Entry { request_id: pending.request_id, report, call: None }
}

impl Ledger {
    /// Starts `writers` threads on one queue. They end when the last [`Ledger`] is dropped and the
    /// queue is empty.
    pub(crate) fn start(
        manager: &Manager,
        writers: usize,
        context: &Arc<Context>,
    ) -> std::io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (jobs, queue) = mpsc::channel(QUEUE_LENGTH);
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..writers).map(|number| {
            let mut writer = Writer::new(&queue, manager, context);
            std::thread::Builder::new()
                .name(format!("ledger-{number}"))
                .spawn(move || writer.serve())
        });
        let context = Arc::clone(context);
        Ok((Self { jobs, context }, threads.collect::<Result<_, _>>()?))
    }

    pub(crate) async fn admit(&self, call: Box<Call>) -> Decision {
        if self.context.is_overtaken() {
            return Err(overtaken());
        }
        let begun = Instant::now();
        let (reply, answer) = oneshot::channel();
        self.send(Job::Admit(call, reply))?;
        let mut waiting = Waiting { ledger: self, answer };
        let decision = (&mut waiting.answer).await.map_err(|_| gave_up())?;
        self.context.vitals.admissions.observe_time(begun.elapsed());
        decision
    }

    pub(crate) async fn settle(
        &self,
        request_id: RequestId,
        report: Option<Arc<Report>>,
        call: Option<Arc<PendingRecord>>,
    ) -> Result<SettleOutcome, StoreError> {
        let begun = Instant::now();
        let (reply, answer) = oneshot::channel();
        let settlement = Box::new(Settlement { request_id, report, call });
        // A settlement waits for its place: it must not be lost for a full queue.
        self.jobs.send(Job::Settle(settlement, reply)).await.map_err(|_| gave_up())?;
        let outcome = answer.await.map_err(|_| gave_up())?;
        self.context.vitals.settlements.observe_time(begun.elapsed());
        outcome
    }

    /// How many jobs wait for a writer.
    pub(crate) fn queue_length(&self) -> usize {
        QUEUE_LENGTH.saturating_sub(self.jobs.capacity())
    }

    /// Settles without anybody waiting for it.
    pub(crate) fn settle_unheard(&self, entry: Entry) {
        let job = Job::SettleUnheard(Box::new(entry));
        if let Err(TrySendError::Full(job) | TrySendError::Closed(job)) = self.jobs.try_send(job)
            && let Job::SettleUnheard(entry) = job
        {
            self.context.keep(*entry);
        }
    }

    /// Runs `work` in a transaction of its own. It may change what refusals rest on.
    pub(crate) async fn write<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let context = Arc::clone(&self.context);
        let write = |conn: &mut Conn| conn.write(work);
        self.run(write, true, move || context.storms.forget_all()).await
    }

    /// The same, for work that changes nothing by which calls are admitted.
    pub(crate) async fn write_apart<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run(|conn: &mut Conn| conn.write(work), false, || {}).await
    }

    /// The same, for work that begins and ends its transactions itself.
    pub(crate) async fn run_apart<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run(work, false, || {}).await
    }

    async fn run<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
        concerns_calls: bool,
        afterwards: impl FnOnce() + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let run = Box::new(move |conn: &mut Conn| {
            let done = work(conn);
            afterwards();
            // Whoever asked may have left; the work is done all the same.
            let _ = reply.send(done);
        });
        self.send(Job::Write(Work { run, concerns_calls }))?;
        answer.await.map_err(|_| gave_up())?
    }

    /// Tells of a missing price when a writer has time for it; one writes for all that wait.
    pub(crate) fn tell_missing_price(&self, merchant_id: MerchantId, missing: &MissingPrice) {
        let context = &self.context;
        if context.told.is_told(merchant_id, missing, context.clock.now())
            || self.jobs.capacity() < QUEUE_LENGTH / 2
            || !context.told.wait(merchant_id, missing)
        {
            return;
        }
        let teller = Teller(Some(Arc::clone(context)));
        // Refused or dropped by a busy queue, the teller lets go of what waits.
        let run = Box::new(move |conn: &mut Conn| teller.tell(conn));
        let _ = self.jobs.try_send(Job::Write(Work { run, concerns_calls: false }));
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        self.jobs.try_send(job).map_err(|_| {
            StoreError::Unavailable(
                "too many calls wait for the ledger, or it has stopped".to_owned(),
            )
        })
    }
}

/// Tells of the missing prices that wait; if it never comes to that, it lets go of them, so that
/// nothing waits for it in vain.
struct Teller(Option<Arc<Context>>);

impl Teller {
    fn tell(mut self, conn: &mut Conn) {
        let Some(context) = self.0.take() else { return };
        let Context { told, clock, .. } = &*context;
        let (missing, now) = (told.take_waiting(), clock.now());
        match conn.write(|conn| missing_prices::tell(conn, &missing, now)) {
            Ok(()) => told.learn(missing, now),
            Err(cause) => log::warn!("missing prices are not told: {cause}"),
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            context.told.take_waiting();
        }
    }
}

fn overtaken() -> StoreError {
    StoreError::Unavailable("another process serves from it".to_owned())
}

fn gave_up() -> StoreError {
    StoreError::Unavailable("the ledger could not reach the database".to_owned())
}
