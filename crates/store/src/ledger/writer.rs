//! The writer threads: they take the jobs of the ledger's queue, book them and answer.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use r2d2::ManageConnection;
use tokio::sync::oneshot;
use tollgate_domain::PendingRecord;
use tollgate_domain::settlement::CallReport;

use super::command::{
    AdmissionResult, BeginResult, CallJob, CommandOutcome, LedgerCommand, SettleOutcome,
    Settlement, WriteWork, not_sent,
};
use super::context::{LedgerContext, ledger_unavailable};
use super::queue::JobQueue;
use super::recent::SettledReport;
use super::row_locks::RowLockWriter;
use super::single_writer::SingleWriter;
use crate::conn::{Conn, ConnManager, is_broken};
use crate::dialect;
use crate::error::StoreError;
use crate::journal::JournalEntry;

/// The most calls that are settled once more in one transaction.
const REBOOKED_AT_ONCE: usize = 128;
/// The number of attempts of a transaction that loses deadlocks.
const DECIDE_ATTEMPTS: usize = 5;
/// The time after which there is no further attempt. PostgreSQL finds a deadlock after a second.
const DECIDE_AGAIN_FOR: Duration = Duration::from_secs(3);

/// The time in which other writes are begun between two groups, after the first one. Calls wait for them on SQLite.
const SHORT_WORKS: Duration = Duration::from_millis(1);

pub(super) struct Writer {
    queue: Arc<JobQueue>,
    manager: ConnManager,
    conn: Option<Conn>,
    last_used: Instant,
    /// Whether the database was away at the last attempt.
    is_unavailable: bool,
    /// The reason that there is no connection for this batch. An attempt can take seconds, so it is made once.
    unreachable: Option<String>,
    context: Arc<LedgerContext>,
    database: WriterBackend,
    /// The database that this writer reached last, by the database's own identity.
    reached: Option<String>,
    /// Calls settled before the database was replaced, which the new one may not know.
    again: Vec<SettledReport>,
}

/// The way in which groups are booked.
enum WriterBackend {
    /// One process writes. The rows of one group are kept for the next. Absent until there is a connection.
    SingleWriter(Option<Box<SingleWriter>>),
    /// Other nodes write to the database as well.
    RowLocks(Box<RowLockWriter>),
}

impl Writer {
    pub(super) fn new(
        queue: &Arc<JobQueue>,
        manager: &ConnManager,
        context: &Arc<LedgerContext>,
    ) -> Self {
        Self {
            queue: Arc::clone(queue),
            manager: manager.clone(),
            conn: None,
            last_used: Instant::now(),
            is_unavailable: false,
            unreachable: None,
            context: Arc::clone(context),
            database: match manager.file() {
                Some(_) => WriterBackend::SingleWriter(None),
                None => WriterBackend::RowLocks(Box::default()),
            },
            reached: None,
            again: Vec::new(),
        }
    }

    pub(super) fn serve(&mut self) {
        let queue = Arc::clone(&self.queue);
        let context = Arc::clone(&self.context);
        while let Some(mut group) = queue.next_group(context.nodes.load(Ordering::Relaxed)) {
            let calls = mem::take(&mut group.calls);
            // After a panic, the calls of one group get an error and the writer goes on.
            if catch_unwind(AssertUnwindSafe(|| self.process(calls))).is_err() {
                log::error!("the ledger failed on a group; its connection is opened again");
                self.disconnect();
            }
        }
    }

    fn process(&mut self, calls: Vec<CallJob>) {
        self.unreachable = None;
        let mut commands = Vec::with_capacity(calls.len());
        let mut replies = Vec::with_capacity(calls.len());
        for call in calls {
            match call {
                CallJob::Admit(call, reply) => {
                    commands.push(LedgerCommand::Admit(call));
                    replies.push(JobReply::Admit(reply));
                }
                CallJob::Settle(settlement, reply) => {
                    commands.push(LedgerCommand::Settle(settlement));
                    replies.push(JobReply::Settle(reply));
                }
                CallJob::Begin(beginning, reply) => {
                    commands.push(LedgerCommand::Begin(beginning));
                    replies.push(JobReply::Begin(reply));
                }
                CallJob::SettleDetached(entry) => {
                    commands.push(LedgerCommand::Settle(Box::new(Settlement::from(&*entry))));
                    replies.push(JobReply::Detached(entry));
                }
            }
        }
        self.commit(&commands, replies);
        self.run_works();
        self.rebook();
    }

    /// Runs other writes that wait: one, and more while they are short. While the database is away, all of them fail at once.
    fn run_works(&mut self) {
        let begun = Instant::now();
        while let Some(work) = self.queue.next_work() {
            self.run(work);
            if self.unreachable.is_none() && begun.elapsed() > SHORT_WORKS {
                return;
            }
        }
    }

    /// Settles calls once more, for a database that may not know them as settled.
    fn rebook(&mut self) {
        let again = mem::take(&mut self.again);
        for calls in again.chunks(REBOOKED_AT_ONCE) {
            let entries = calls.iter().map(|(call, report)| JournalEntry {
                request_id: call.request_id,
                report: CallReport::clone(report),
                call: Some(PendingRecord::clone(call)),
            });
            let settlements = entries.map(|entry| {
                let settlement = Box::new(Settlement::from(&entry));
                (LedgerCommand::Settle(settlement), JobReply::Detached(Box::new(entry)))
            });
            let (commands, replies): (Vec<_>, Vec<_>) = settlements.unzip();
            self.commit(&commands, replies);
        }
    }

    /// Forgets all that is in memory, after a failure.
    fn clear_memory(&mut self) {
        match &mut self.database {
            WriterBackend::SingleWriter(writer) => *writer = None,
            WriterBackend::RowLocks(row_locks) => **row_locks = RowLockWriter::default(),
        }
    }

    fn disconnect(&mut self) {
        self.clear_memory();
        self.conn = None;
    }

    /// Runs `work` on the connection. Without a connection, the work is dropped, and its caller gets an error.
    fn run(&mut self, work: WriteWork) {
        if let Err(cause) = self.connect() {
            log::debug!("a write is not done: {cause}");
            return;
        }
        let Self { conn: Some(conn), database, .. } = self else { return };
        let WriteWork { run, concerns_calls } = work;
        // A panic here must not affect other work.
        let done = catch_unwind(AssertUnwindSafe(|| {
            run(conn);
            is_broken(conn)
        }));
        match done {
            Ok(false) => {
                if let WriterBackend::SingleWriter(Some(writer)) = database {
                    writer.after_other_write(conn, concerns_calls);
                }
            }
            Ok(true) => self.disconnect(),
            Err(_) => {
                log::error!("the ledger failed on a write; its connection is opened again");
                self.disconnect();
            }
        }
    }

    /// Commits `commands` together. When that fails, commits them in halves, until the item that fails is alone and gets
    /// its own error.
    fn commit(&mut self, commands: &[LedgerCommand], mut replies: Vec<JobReply>) {
        if commands.is_empty() {
            return;
        }
        match self.try_commit(commands) {
            Ok(answers) => {
                self.is_unavailable = false;
                let size = u32::try_from(answers.len()).unwrap_or(u32::MAX);
                self.context.metrics.groups.observe(size.into());
                let answered = replies.into_iter().zip(answers);
                let without_caller: Vec<_> = answered
                    .filter_map(|(reply, answer)| reply.send(answer, &self.context))
                    .collect();
                let ends = without_caller.iter().map(|pending| Box::new(not_sent(pending)));
                let (commands, replies): (Vec<_>, Vec<_>) = ends
                    .map(|entry| {
                        let settlement = Box::new(Settlement::from(&*entry));
                        (LedgerCommand::Settle(settlement), JobReply::Detached(entry))
                    })
                    .unzip();
                self.commit(&commands, replies);
            }
            Err(StoreError::Unavailable(why)) => {
                // Logged when it begins, not for every call in between.
                if !mem::replace(&mut self.is_unavailable, true) {
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
                let half = commands.len() / 2;
                let (first, second) = commands.split_at(half);
                let rest = replies.split_off(half);
                self.commit(first, replies);
                self.commit(second, rest);
            }
        }
    }

    fn try_commit(
        &mut self,
        commands: &[LedgerCommand],
    ) -> Result<Vec<CommandOutcome>, StoreError> {
        let (mut attempt, begun) = (1, Instant::now());
        loop {
            self.connect()?;
            let Self { conn: Some(conn), context, database, .. } = self else {
                return Err(ledger_unavailable());
            };
            let result = match database {
                WriterBackend::SingleWriter(Some(writer)) => writer.book(conn, commands, context),
                WriterBackend::SingleWriter(None) => return Err(ledger_unavailable()),
                WriterBackend::RowLocks(row_locks) => row_locks.book(conn, commands, context),
            };
            let broken = result.is_err() && is_broken(conn);
            if result.is_err() {
                self.clear_memory();
            }
            match result {
                Err(cause) if cause.is_unavailable() => {
                    self.disconnect();
                    return Err(cause);
                }
                // The commit may have been done without an answer.
                Err(_) if broken => {
                    self.disconnect();
                    return Err(StoreError::Interrupted);
                }
                Err(cause)
                    if cause.is_transient()
                        && attempt < DECIDE_ATTEMPTS
                        && begun.elapsed() < DECIDE_AGAIN_FOR =>
                {
                    log::warn!("a group is decided again: {cause:?}");
                    attempt += 1;
                }
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
            if let Some(why) = &self.unreachable {
                return Err(StoreError::Unavailable(why.clone()));
            }
            let opened = self.manager.connect();
            if let Err(StoreError::Unavailable(why)) = &opened {
                self.unreachable = Some(why.clone());
            }
            let mut conn = opened?;
            dialect::prepare_for_ledger(&mut conn).map_err(StoreError::from)?;
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
            self.clear_memory();
            self.context.folds.known.forget();
            self.context.reported_prices.forget();
        }
        let Self { conn: Some(conn), database, context, manager, .. } = self else {
            return Err(ledger_unavailable());
        };
        if let WriterBackend::SingleWriter(writer @ None) = database {
            *writer = Some(Box::new(SingleWriter::new(manager, conn, context)?));
        }
        Ok(())
    }
}

enum JobReply {
    Admit(oneshot::Sender<AdmissionResult>),
    Settle(oneshot::Sender<Result<SettleOutcome, StoreError>>),
    Begin(oneshot::Sender<BeginResult>),
    Detached(Box<JournalEntry>),
}

impl JobReply {
    /// Sends an answer. The caller may have left; what is booked stays booked. A call that was admitted for a caller
    /// that has left is returned, to be ended.
    fn send(self, answer: CommandOutcome, context: &LedgerContext) -> Option<Box<PendingRecord>> {
        match (self, answer) {
            (Self::Admit(reply), CommandOutcome::Admitted(decision)) => {
                if let Err(Ok(Ok(pending))) = reply.send(Ok(decision)) {
                    return Some(pending);
                }
            }
            (Self::Settle(reply), CommandOutcome::Settled(outcome)) => {
                drop(reply.send(Ok(outcome)))
            }
            // The call is open, whether or not its caller is there.
            (Self::Begin(reply), CommandOutcome::Begun(begun)) => drop(reply.send(Ok(begun))),
            (Self::Detached(entry), CommandOutcome::Settled(SettleOutcome::NotFound))
                if entry.may_still_appear(context.clock.now()) =>
            {
                context.keep(*entry);
            }
            (Self::Detached(_), CommandOutcome::Settled(_)) => {}
            // Answers come in the order of their commands. A mismatch is dropped, and the caller gets the error of a
            // ledger that gave up.
            (Self::Admit(_) | Self::Settle(_) | Self::Begin(_) | Self::Detached(_), _) => {
                log::error!("an answer went astray");
            }
        }
        None
    }

    /// Answers with an error, or keeps the settlement if it has no caller.
    fn fail(self, cause: StoreError, context: &LedgerContext) {
        match self {
            Self::Admit(reply) => drop(reply.send(Err(cause))),
            Self::Settle(reply) => drop(reply.send(Err(cause))),
            Self::Begin(reply) => drop(reply.send(Err(cause))),
            Self::Detached(entry) => {
                log::error!("{} is not settled yet: {cause}", entry.request_id);
                context.keep(*entry);
            }
        }
    }
}
