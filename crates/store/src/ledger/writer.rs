//! The writer threads: they take the jobs of the ledger's queue, book them and answer.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use r2d2::ManageConnection;
use tokio::sync::{mpsc, oneshot};
use tollgate_domain::PendingRecord;
use tollgate_domain::settlement::Report;

use super::command::{
    AdmissionResult, Command, Job, Outcome, SettleOutcome, Settlement, Work, not_sent,
};
use super::context::{Context, gave_up};
use super::recent::Settled;
use super::row_locks::RowLocks;
use super::single_writer::SingleWriter;
use crate::conn::{Conn, Manager, is_broken};
use crate::dialect;
use crate::error::StoreError;
use crate::journal::Entry;

/// The most jobs in one transaction. A larger group gains little, and its callers wait longer.
const BATCH_SIZE: usize = 128;
/// The number of attempts of a transaction that loses deadlocks.
const ATTEMPTS: usize = 5;

pub(super) struct Writer {
    queue: Arc<Mutex<mpsc::Receiver<Job>>>,
    manager: Manager,
    conn: Option<Conn>,
    last_used: Instant,
    /// Whether the database was away at the last attempt.
    away: bool,
    context: Arc<Context>,
    database: Database,
    /// The database that this writer reached last, by the database's own identity.
    reached: Option<String>,
    /// Calls settled before the database was replaced, which the new one may not know.
    again: Vec<Settled>,
}

/// The way in which groups are booked.
enum Database {
    /// One process writes. The rows of one group are kept for the next. Absent until there is a connection.
    SingleWriter(Option<Box<SingleWriter>>),
    /// Other nodes write to the database as well.
    RowLocks(Box<RowLocks>),
}

impl Writer {
    pub(super) fn new(
        queue: &Arc<Mutex<mpsc::Receiver<Job>>>,
        manager: &Manager,
        context: &Arc<Context>,
    ) -> Self {
        Self {
            queue: Arc::clone(queue),
            manager: manager.clone(),
            conn: None,
            last_used: Instant::now(),
            away: false,
            context: Arc::clone(context),
            database: match manager.file() {
                Some(_) => Database::SingleWriter(None),
                None => Database::RowLocks(Box::default()),
            },
            reached: None,
            again: Vec::new(),
        }
    }

    pub(super) fn serve(&mut self) {
        while let Some(jobs) = self.take() {
            // After a panic, the calls of one batch get an error and the writer goes on.
            if catch_unwind(AssertUnwindSafe(|| self.process(jobs))).is_err() {
                log::error!("the ledger failed on a batch; its connection is opened again");
                self.disconnect();
            }
        }
    }

    /// Returns the next job and all that wait behind it, or `None` when the queue is closed.
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
        let mut works = Vec::new();
        for job in jobs {
            match job {
                Job::Admit(call, reply) => {
                    items.push(Command::Admit(call));
                    replies.push(Reply::Admit(reply));
                }
                Job::Settle(settlement, reply) => {
                    items.push(Command::Settle(settlement));
                    replies.push(Reply::Settle(reply));
                }
                Job::SettleUnheard(entry) => {
                    items.push(Command::Settle(Box::new(Settlement::from(&*entry))));
                    replies.push(Reply::Unheard(entry));
                }
                Job::Write(work) => works.push(work),
            }
        }
        works.into_iter().for_each(|work| self.run(work));
        self.commit(&items, replies);
        self.book_again();
    }

    /// Settles calls once more, for a database that may not know them as settled.
    fn book_again(&mut self) {
        let again = mem::take(&mut self.again);
        for calls in again.chunks(BATCH_SIZE) {
            let entries = calls.iter().map(|(call, report)| Entry {
                request_id: call.request_id,
                report: Report::clone(report),
                call: Some(PendingRecord::clone(call)),
            });
            let settlements = entries.map(|entry| {
                let settlement = Box::new(Settlement::from(&entry));
                (Command::Settle(settlement), Reply::Unheard(Box::new(entry)))
            });
            let (items, replies): (Vec<_>, Vec<_>) = settlements.unzip();
            self.commit(&items, replies);
        }
    }

    /// Forgets all that is in memory, after a failure.
    fn distrust(&mut self) {
        match &mut self.database {
            Database::SingleWriter(writer) => *writer = None,
            Database::RowLocks(row_locks) => **row_locks = RowLocks::default(),
        }
    }

    fn disconnect(&mut self) {
        self.distrust();
        self.conn = None;
    }

    /// Runs `work` on the connection. Without a connection, the work is dropped, and its caller gets an error.
    fn run(&mut self, work: Work) {
        if let Err(cause) = self.connect() {
            log::debug!("a write is not done: {cause}");
            return;
        }
        let Self { conn: Some(conn), database, .. } = self else { return };
        let Work { run, concerns_calls } = work;
        // A panic here must not affect the calls of the batch.
        let done = catch_unwind(AssertUnwindSafe(|| {
            run(conn);
            is_broken(conn)
        }));
        match done {
            Ok(false) => {
                if let Database::SingleWriter(Some(writer)) = database {
                    writer.wrote_beside_groups(conn, concerns_calls);
                }
            }
            Ok(true) => self.disconnect(),
            Err(_) => {
                log::error!("the ledger failed on a write; its connection is opened again");
                self.disconnect();
            }
        }
    }

    /// Commits `items` together. When that fails, commits them in halves, until the item that fails is alone and gets
    /// its own error.
    fn commit(&mut self, items: &[Command], mut replies: Vec<Reply>) {
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
                        (Command::Settle(settlement), Reply::Unheard(entry))
                    })
                    .unzip();
                self.commit(&items, replies);
            }
            Err(StoreError::Unavailable(why)) => {
                // Logged when it begins, not for every call in between.
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

    fn try_commit(&mut self, items: &[Command]) -> Result<Vec<Outcome>, StoreError> {
        let mut attempt = 1;
        loop {
            self.connect()?;
            let Self { conn: Some(conn), context, database, .. } = self else {
                return Err(gave_up());
            };
            let result = match database {
                Database::SingleWriter(Some(writer)) => writer.book(conn, items, context),
                Database::SingleWriter(None) => return Err(gave_up()),
                Database::RowLocks(row_locks) => row_locks.book(conn, items, context),
            };
            let broken = result.is_err() && is_broken(conn);
            if result.is_err() {
                self.distrust();
            }
            match result {
                Err(cause) if cause.is_away() => {
                    self.disconnect();
                    return Err(cause);
                }
                // The commit may have been done without an answer.
                Err(_) if broken => {
                    self.disconnect();
                    return Err(StoreError::Interrupted);
                }
                Err(cause) if cause.is_transient() && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// Opens a connection if there is none, and discards what is in memory after a new one. A connection that was idle
    /// for a second is checked first: a restart of the database must not cost a call.
    fn connect(&mut self) -> Result<(), StoreError> {
        const IDLE: Duration = Duration::from_secs(1);
        let idle = self.last_used.elapsed() > IDLE;
        self.last_used = Instant::now();
        if let Some(conn) = &mut self.conn
            && idle
            && conn.ping().is_err()
        {
            self.disconnect();
        }
        if self.conn.is_none() {
            let mut conn = self.manager.connect()?;
            dialect::ready_for_the_ledger(&mut conn).map_err(StoreError::from)?;
            let reached = dialect::identity(&mut conn);
            if let Some(before) = mem::replace(&mut self.reached, reached)
                && self.reached.as_ref() != Some(&before)
            {
                self.again = self.context.recent.all();
                log::warn!(
                    "the database was restarted or replaced: the last {} calls are booked again, \
                     unless it has them",
                    self.again.len()
                );
            }
            self.conn = Some(conn);
            self.distrust();
            self.context.known_pairs.forget();
            self.context.reported_prices.forget();
        }
        let Self { conn: Some(conn), database, context, manager, .. } = self else {
            return Err(gave_up());
        };
        if let Database::SingleWriter(writer @ None) = database {
            *writer = Some(Box::new(SingleWriter::new(manager, conn, context)?));
        }
        Ok(())
    }
}

enum Reply {
    Admit(oneshot::Sender<AdmissionResult>),
    Settle(oneshot::Sender<Result<SettleOutcome, StoreError>>),
    Unheard(Box<Entry>),
}

impl Reply {
    /// Sends an answer. The caller may have left; what is booked stays booked. A call that was admitted for a caller
    /// that has left is returned, to be ended.
    fn send(self, answer: Outcome, context: &Context) -> Option<Box<PendingRecord>> {
        match (self, answer) {
            (Self::Admit(reply), Outcome::Admitted(decision)) => {
                if let Err(Ok(Ok(pending))) = reply.send(Ok(decision)) {
                    return Some(pending);
                }
            }
            (Self::Settle(reply), Outcome::Settled(outcome)) => drop(reply.send(Ok(outcome))),
            (Self::Unheard(entry), Outcome::Settled(SettleOutcome::NotFound))
                if entry.may_come(context.clock.now()) =>
            {
                context.keep(*entry);
            }
            (Self::Unheard(_), Outcome::Settled(_)) => {}
            // Answers come in the order of their items. A mismatch is dropped, and the caller gets the error of a
            // ledger that gave up.
            (Self::Admit(_) | Self::Settle(_) | Self::Unheard(_), _) => {
                log::error!("an answer went astray");
            }
        }
        None
    }

    /// Answers with an error, or keeps the settlement if it has no caller.
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
