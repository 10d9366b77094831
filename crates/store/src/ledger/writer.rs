//! The threads that take what waits for the ledger, book it, and answer.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use r2d2::ManageConnection;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tollgate_domain::PendingRecord;

use super::ahead::{Ahead, Waiter};
use super::books::{Answer, Item, Settlement};
use super::parties::Versions;
use super::through::Through;
use super::{Context, Decision, Job, SettleOutcome, Work, gave_up, not_sent};
use crate::conn::{Conn, Manager, is_broken};
use crate::dialect;
use crate::error::StoreError;
use crate::journal::Entry;

/// How many share one transaction at most: beyond it grouping gains little and waits grow.
const BATCH_SIZE: usize = 128;
/// How often a transaction that lost a deadlock is tried again.
const ATTEMPTS: usize = 5;
/// After so long a database that could not catch up is tried again.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Writer {
    queue: Arc<Mutex<mpsc::Receiver<Job>>>,
    manager: Manager,
    conn: Option<Conn>,
    last_used: Instant,
    /// Whether the database took nothing when it was last tried.
    away: bool,
    context: Arc<Context>,
    /// Meter versions never change, so what was read once holds for ever.
    versions: Versions,
    /// When the database last failed to catch up.
    failed_at: Instant,
    /// The books, where they may be ahead of the database; they need a connection to begin.
    ahead: Option<Ahead>,
    /// Who waits for them.
    waiting: Vec<Waiter>,
    /// The way to books in the database, where they may not.
    through: Through,
    /// Waits for the next job, but not for ever.
    runtime: Runtime,
}

impl Writer {
    pub(super) fn new(
        queue: &Arc<Mutex<mpsc::Receiver<Job>>>,
        manager: &Manager,
        context: &Arc<Context>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            queue: Arc::clone(queue),
            manager: manager.clone(),
            conn: None,
            last_used: Instant::now(),
            failed_at: Instant::now(),
            away: false,
            context: Arc::clone(context),
            versions: Versions::new(),
            ahead: None,
            waiting: Vec::new(),
            through: Through::default(),
            runtime: tokio::runtime::Builder::new_current_thread().enable_time().build()?,
        })
    }

    pub(super) fn serve(&mut self) {
        loop {
            let Some(jobs) = self.take() else { return self.end() };
            // A panic costs the calls of one batch an error, not the service its ledger.
            if catch_unwind(AssertUnwindSafe(|| self.process(jobs))).is_err() {
                log::error!("the ledger failed on a batch; its connection is opened anew");
                self.distrust();
                self.conn = None;
            }
        }
    }

    /// The next job and all that wait behind it, or none when the database must catch up before there
    /// is one; `None` when nobody can send any more.
    fn take(&self) -> Option<Vec<Job>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut jobs = Vec::new();
        match queue.try_recv() {
            Ok(job) => jobs.push(job),
            Err(mpsc::error::TryRecvError::Disconnected) => return None,
            Err(mpsc::error::TryRecvError::Empty) => match self.due() {
                None => jobs.push(queue.blocking_recv()?),
                Some(due) => {
                    let next = async { tokio::time::timeout_at(due.into(), queue.recv()).await };
                    match self.runtime.block_on(next) {
                        Ok(job) => jobs.push(job?),
                        Err(_) => return Some(jobs),
                    }
                }
            },
        }
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
        let (mut works, mut readers) = (Vec::new(), Vec::new());
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
                Job::Write(work) => works.push(work),
                Job::CatchUp(reader) => readers.push(reader),
            }
        }
        if self.context.log.is_some() {
            let (alone, beside): (Vec<_>, Vec<_>) =
                works.into_iter().partition(|work| work.concerns_calls);
            self.waiting.extend(beside.into_iter().map(Waiter::Work));
            self.waiting.extend(readers.into_iter().map(Waiter::Reader));
            self.attend(alone);
        } else {
            // Nothing is ever behind that a reader could wait for.
            works.into_iter().for_each(|work| self.run(work));
        }
        self.commit(&items, replies);
    }

    /// When the books that are ahead must be attended to, though nothing comes.
    fn due(&self) -> Option<Instant> {
        match &self.ahead {
            Some(ahead) => ahead.due(),
            None => {
                let is_awaited = self.context.is_behind() || !self.waiting.is_empty();
                is_awaited.then(|| self.failed_at + PAUSE)
            }
        }
    }

    /// Attends to the books that are ahead, and does what must be `alone`. What is not done is dropped,
    /// and who asked for it learns that.
    fn attend(&mut self, alone: Vec<Work>) {
        let attend = |writer: &mut Self| {
            let (ahead, conn, context) = writer.ahead()?;
            match alone.is_empty() {
                true => ahead.attend(conn, context),
                false => ahead.settle_up(conn, context),
            }
        };
        let attended = attend(self).or_else(|_| {
            self.distrust();
            attend(self)
        });
        match attended {
            Ok(()) => alone.into_iter().for_each(|work| self.run(work)),
            Err(cause) => {
                // Said when it begins, not each time.
                if !mem::replace(&mut self.away, true) {
                    log::error!("the database does not take what the ledger has booked: {cause}");
                }
                self.failed_at = Instant::now();
                self.distrust();
                self.waiting.clear();
            }
        }
    }

    /// The books that are ahead, and what they need.
    fn ahead(&mut self) -> Result<(&mut Ahead, &mut Conn, &Arc<Context>), StoreError> {
        self.connect()?;
        match self {
            Self { ahead: Some(ahead), conn: Some(conn), context, .. } => {
                Ok((ahead, conn, context))
            }
            _ => Err(gave_up()),
        }
    }

    /// After a failure, nothing in memory is believed. What the database lacks is in the log, with which
    /// the books begin again.
    fn distrust(&mut self) {
        self.waiting.extend(self.ahead.take().into_iter().flat_map(Ahead::into_waiting));
    }

    /// The queue has ended.
    fn end(&mut self) {
        if self.context.log.is_none() {
            return;
        }
        let settle_up = |writer: &mut Self| {
            let (ahead, conn, context) = writer.ahead()?;
            ahead.settle_up(conn, context)
        };
        let settled = settle_up(self).or_else(|_| {
            self.distrust();
            settle_up(self)
        });
        match settled {
            Ok(()) => self.ahead.take().into_iter().for_each(Ahead::end),
            Err(cause) => log::error!("the database lacks what is in the ledger's log: {cause}"),
        }
    }

    /// Does what nothing may be decided beside. Without a connection, the work is dropped, and who asked
    /// for it learns that.
    fn run(&mut self, work: Work) {
        if let Err(cause) = self.connect() {
            log::debug!("a write is not done: {cause}");
            return;
        }
        // What fails here must not take the calls of the batch with it.
        let done = catch_unwind(AssertUnwindSafe(|| match self {
            Self { ahead: Some(ahead), context, .. } => ahead.run_alone(work, context),
            Self { conn: Some(conn), .. } => {
                (work.run)(conn);
                if is_broken(conn) { Err(StoreError::Interrupted) } else { Ok(()) }
            }
            _ => Err(gave_up()),
        }));
        if done.is_err() {
            log::error!("the ledger failed on a write; its connection is opened anew");
        }
        if !matches!(done, Ok(Ok(()))) {
            self.distrust();
            self.conn = None;
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
                self.context.vitals.groups.observe(answers.len().try_into().unwrap_or(u64::MAX));
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
                if !mem::replace(&mut self.away, true) {
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
            self.read_again_what_others_wrote()?;
            let Self { conn: Some(conn), context, versions, through, ahead, .. } = self else {
                return Err(gave_up());
            };
            let result = match ahead {
                Some(ahead) => ahead.book(conn, items, context, versions),
                None => through.book(conn, items, context, versions),
            };
            let broken = result.is_err() && is_broken(conn);
            if result.is_err() {
                self.distrust();
            }
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
                result => return result,
            }
        }
    }

    /// Makes sure of a connection, and of books where they may be ahead of it.
    /// A connection that was idle for a while is asked for a sign of life first: a database that was
    /// restarted must not cost a call.
    fn connect(&mut self) -> Result<(), StoreError> {
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
            let mut conn = self.manager.connect()?;
            dialect::ready_for_the_ledger(&mut conn).map_err(StoreError::from)?;
            self.conn = Some(conn);
            self.distrust();
            self.context.series.forget();
            self.context.told.forget();
        }
        self.stand_ahead()
    }

    /// Makes sure that calls are decided by the database as it stands.
    fn read_again_what_others_wrote(&mut self) -> Result<(), StoreError> {
        if let Self { conn: Some(conn), ahead: Some(ahead), context, .. } = self
            && ahead.check(conn, context).is_err()
        {
            self.distrust();
            return self.stand_ahead();
        }
        Ok(())
    }

    /// Makes sure of books, where they may be ahead of the database.
    fn stand_ahead(&mut self) -> Result<(), StoreError> {
        let Self { conn: Some(conn), ahead, context, versions, manager, waiting, .. } = self else {
            return Err(gave_up());
        };
        let Some(log) = &context.log else { return Ok(()) };
        let ahead = match ahead {
            Some(ahead) => ahead,
            None => {
                let began = Ahead::begin(manager, conn, log, context, versions);
                ahead.insert(began.map_err(StoreError::or_away)?)
            }
        };
        waiting.drain(..).for_each(|waiter| ahead.wait_for_all(waiter));
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
