//! The ledger: every admission and settlement goes through one queue, and a writer takes all that
//! wait, decides them under the same locks, and commits once.
//!
//! A durable commit costs far more than the statements in it, so calls share it; nobody waits for
//! a group to fill. Other writes go through the same queue, each in its own transaction: on SQLite
//! that makes one writer per store, which never meets "database is locked".

mod accounts;
mod batch;
mod parties;
mod reported;
mod rollups;
mod storms;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::Report;
use tollgate_domain::{
    Clock, MerchantId, MissingPrice, NodeId, PendingRecord, RequestId, RequestRecord,
};
use tollgate_pricing::Rate;

use crate::conn::{Conn, Manager, is_broken};
use crate::error::StoreError;
use crate::journal::{Entry, Journal};
use crate::missing_prices::{self, Told};
use batch::{Answer, Item, Settlement};
use parties::Versions;
pub(crate) use reported::book as book_reported;
pub use reported::{Reported, ReportedUsage};
pub(crate) use rollups::{Series, rebuild as rebuild_rollups};
pub(crate) use storms::Storms;

/// How many may wait for a writer; who comes then is told that the store cannot keep up.
const QUEUE_LENGTH: usize = 8_192;
/// How many share one transaction at most: beyond it grouping gains little and waits grow.
const BATCH_SIZE: usize = 128;
/// How often a transaction that lost a deadlock is tried again.
const ATTEMPTS: usize = 5;

/// What became of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// It is booked; the record in its final state.
    Settled(Box<RequestRecord>),
    /// It is booked at nothing: what it costs, or a balance after it, would be beyond all amounts.
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

/// Closures that run on the writer's connection.
type Work = Box<dyn FnOnce(&mut Conn) + Send>;

/// What becomes of a call that asks to be admitted.
type Decision = Result<Result<Box<PendingRecord>, Refusal>, StoreError>;

enum Job {
    Admit(Box<Call>, oneshot::Sender<Decision>),
    Settle(Box<Settlement>, oneshot::Sender<Result<SettleOutcome, StoreError>>),
    /// A settlement whose outcome nobody waits for.
    SettleUnheard(Box<Entry>),
    Write(Work),
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
    pub(crate) told: Told,
    pub(crate) journal: Option<Journal>,
    /// What neither the database nor the journal took. No more calls than are on their way can come
    /// to wait here: new ones are not admitted then.
    pub(crate) unkept: Mutex<Vec<Entry>>,
}

impl Context {
    /// Keeps a settlement that cannot be booked now, in the journal or else in memory; whether it
    /// will outlive this process.
    pub(crate) fn keep(&self, entry: Entry) -> bool {
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
    Entry { request_id: pending.request_id, report: Report::not_sent(pending.created_at) }
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
            let mut writer = Writer {
                queue: Arc::clone(&queue),
                manager: manager.clone(),
                conn: None,
                last_used: Instant::now(),
                away: false,
                context: Arc::clone(context),
                versions: Versions::new(),
            };
            std::thread::Builder::new()
                .name(format!("ledger-{number}"))
                .spawn(move || writer.serve())
        });
        let context = Arc::clone(context);
        Ok((Self { jobs, context }, threads.collect::<Result<_, _>>()?))
    }

    pub(crate) async fn admit(&self, call: Box<Call>) -> Decision {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Admit(call, reply))?;
        let mut waiting = Waiting { ledger: self, answer };
        (&mut waiting.answer).await.map_err(|_| gave_up())?
    }

    pub(crate) async fn settle(
        &self,
        request_id: RequestId,
        report: Option<Report>,
    ) -> Result<SettleOutcome, StoreError> {
        let (reply, answer) = oneshot::channel();
        let settlement = Box::new(Settlement { request_id, report });
        // A settlement waits for its place: it must not be lost for a full queue.
        self.jobs.send(Job::Settle(settlement, reply)).await.map_err(|_| gave_up())?;
        answer.await.map_err(|_| gave_up())?
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
        self.run(work, move || context.storms.forget_all()).await
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
        self.run(work, || {}).await
    }

    async fn run<T, E>(
        &self,
        work: impl FnOnce(&mut Conn) -> Result<T, E> + Send + 'static,
        afterwards: impl FnOnce() + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Write(Box::new(move |conn| {
            let done = conn.write(work);
            afterwards();
            // Whoever asked may have left; the work is done all the same.
            let _ = reply.send(done);
        })))?;
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
        let _ = self.jobs.try_send(Job::Write(Box::new(move |conn| teller.tell(conn))));
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

fn gave_up() -> StoreError {
    StoreError::Unavailable("the ledger could not reach the database".to_owned())
}

struct Writer {
    queue: Arc<Mutex<mpsc::Receiver<Job>>>,
    manager: Manager,
    conn: Option<Conn>,
    last_used: Instant,
    /// Whether the database took nothing when it was last tried.
    away: bool,
    context: Arc<Context>,
    /// Meter versions never change, so what was read once holds for ever.
    versions: Versions,
}

impl Writer {
    fn serve(&mut self) {
        while let Some(jobs) = self.take() {
            // A panic costs the calls of one batch an error, not the service its ledger.
            if catch_unwind(AssertUnwindSafe(|| self.process(jobs))).is_err() {
                log::error!("the ledger failed on a batch; its connection is opened anew");
                self.conn = None;
            }
        }
    }

    /// The next job and all that wait behind it, or `None` when nobody can send any more.
    fn take(&self) -> Option<Vec<Job>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut jobs = vec![queue.blocking_recv()?];
        while jobs.len() < BATCH_SIZE
            && let Ok(job) = queue.try_recv()
        {
            jobs.push(job);
        }
        Some(jobs)
    }

    fn process(&mut self, jobs: Vec<Job>) {
        let mut items = Vec::with_capacity(jobs.len());
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs {
            match job {
                Job::Admit(call, reply) => {
                    items.push(Item::Admit(call));
                    replies.push(Reply::Admit(reply));
                }
                Job::Settle(settlement, reply) => {
                    items.push(Item::Settle(settlement));
                    replies.push(Reply::Settle(reply));
                }
                Job::SettleUnheard(entry) => {
                    items.push(Item::Settle(Box::new(Settlement::from(&*entry))));
                    replies.push(Reply::Unheard(entry));
                }
                Job::Write(work) => self.run_alone(work),
            }
        }
        self.commit(&items, replies);
    }

    fn run_alone(&mut self, work: Work) {
        let _ = self.connect();
        // Without a connection the work is dropped, and who asked for it learns that.
        if let Some(conn) = &mut self.conn {
            // What fails here must not take the calls of the batch with it.
            let panicked = catch_unwind(AssertUnwindSafe(|| work(conn))).is_err();
            if panicked {
                log::error!("the ledger failed on a write; its connection is opened anew");
            }
            if panicked || is_broken(conn) {
                self.conn = None;
            }
        }
    }

    /// Commits `items` together; when that fails, in halves, until the poisoned one is alone and
    /// answered with its own error.
    fn commit(&mut self, items: &[Item], mut replies: Vec<Reply>) {
        if items.is_empty() {
            return;
        }
        match self.try_commit(items) {
            Ok(answers) => {
                self.away = false;
                let answered = replies.into_iter().zip(answers);
                let unheard: Vec<_> = answered
                    .filter_map(|(reply, answer)| reply.send(answer, &self.context))
                    .collect();
                let ends = unheard.iter().map(|pending| Box::new(not_sent(pending)));
                let (items, replies): (Vec<_>, Vec<_>) = ends
                    .map(|entry| {
                        let settlement = Box::new(Settlement::from(&*entry));
                        (Item::Settle(settlement), Reply::Unheard(entry))
                    })
                    .unzip();
                self.commit(&items, replies);
            }
            Err(StoreError::Unavailable(why)) => {
                // Said when it begins, not for every call in between.
                if !std::mem::replace(&mut self.away, true) {
                    log::error!("the ledger books nothing: {why}");
                }
                for reply in replies {
                    reply.fail(StoreError::Unavailable(why.clone()), &self.context);
                }
            }
            Err(StoreError::Interrupted) => {
                log::error!("the ledger lost the database while it was booking");
                for reply in replies {
                    reply.fail(StoreError::Interrupted, &self.context);
                }
            }
            Err(cause) if replies.len() == 1 => {
                log::error!("the ledger cannot book a call: {cause:?}");
                if let Some(reply) = replies.pop() {
                    reply.fail(cause, &self.context);
                }
            }
            Err(_) => {
                let half = items.len() / 2;
                let (first, second) = items.split_at(half);
                let rest = replies.split_off(half);
                self.commit(first, replies);
                self.commit(second, rest);
            }
        }
    }

    fn try_commit(&mut self, items: &[Item]) -> Result<Vec<Answer>, StoreError> {
        let mut attempt = 1;
        loop {
            self.connect()?;
            let Self { conn: Some(conn), context, versions, .. } = self else {
                return Err(gave_up());
            };
            let result = conn.write(|conn| batch::book(conn, items, context, versions));
            let broken = result.is_err() && is_broken(conn);
            match result {
                Err(cause) if cause.is_away() => {
                    self.conn = None;
                    return Err(cause);
                }
                // Even the commit may have gone through without an answer.
                Err(_) if broken => {
                    self.conn = None;
                    return Err(StoreError::Interrupted);
                }
                Err(cause) if cause.is_transient() && attempt < ATTEMPTS => attempt += 1,
                Err(cause) => return Err(cause),
                Ok((answers, mut changed)) => {
                    context.series.learn(std::mem::take(&mut changed.series));
                    context.told.learn(std::mem::take(&mut changed.missing), changed.at);
                    if !changed.is_empty() {
                        context.storms.forget(&changed);
                    }
                    return Ok(answers);
                }
            }
        }
    }

    /// Makes sure of a connection. One that was idle for a while is asked for a sign of life first:
    /// a database that was restarted must not cost a call.
    fn connect(&mut self) -> Result<(), StoreError> {
        use r2d2::ManageConnection;
        const IDLE: Duration = Duration::from_secs(1);
        let idle = self.last_used.elapsed() > IDLE;
        self.last_used = Instant::now();
        if let Some(conn) = &mut self.conn
            && idle
            && conn.ping().is_err()
        {
            self.conn = None;
        }
        if self.conn.is_none() {
            self.conn = Some(self.manager.connect()?);
            self.context.series.forget();
            self.context.told.forget();
        }
        Ok(())
    }
}

enum Reply {
    Admit(oneshot::Sender<Decision>),
    Settle(oneshot::Sender<Result<SettleOutcome, StoreError>>),
    Unheard(Box<Entry>),
}

impl Reply {
    /// Answers. Whoever asked may have left, and what is booked stays booked; but a call that was
    /// admitted for nobody comes back, to be ended.
    fn send(self, answer: Answer, context: &Context) -> Option<Box<PendingRecord>> {
        match (self, answer) {
            (Self::Admit(reply), Answer::Admitted(decision)) => {
                if let Err(Ok(Ok(pending))) = reply.send(Ok(decision)) {
                    return Some(pending);
                }
            }
            (Self::Settle(reply), Answer::Settled(outcome)) => drop(reply.send(Ok(outcome))),
            (Self::Unheard(entry), Answer::Settled(SettleOutcome::NotFound))
                if entry.may_come(context.clock.now()) =>
            {
                context.keep(*entry);
            }
            (Self::Unheard(_), Answer::Settled(_)) => {}
            // Answers come in the order of their items; a mismatch is dropped, and who asked
            // learns that the ledger gave up.
            (Self::Admit(_) | Self::Settle(_) | Self::Unheard(_), _) => {
                log::error!("an answer went astray");
            }
        }
        None
    }

    /// Tells why there is no answer.
    fn fail(self, cause: StoreError, context: &Context) {
        match self {
            Self::Admit(reply) => drop(reply.send(Err(cause))),
            Self::Settle(reply) => drop(reply.send(Err(cause))),
            Self::Unheard(entry) => {
                log::error!("{} is not settled yet: {cause}", entry.request_id);
                context.keep(*entry);
            }
        }
    }
}
