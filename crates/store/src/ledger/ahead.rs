//! Books that run ahead of the database: for a process that has a SQLite file to itself.
//!
//! Nobody else books calls there, so what was read once still stands, and calls are decided in memory.
//! A batch is durable when it is in the [log](redo), which costs one write. The database gets many batches
//! in one transaction, which a [thread of its own](scribe) writes while the next calls are decided: a
//! call that came and went in between is one row inserted, and a wallet that a hundred calls drew on is
//! one row updated.
//!
//! Whoever reads the database through this process, or writes to it, waits until what was booked before
//! is written. What other processes write (a subcommand, an operator) is noticed: then everything is
//! read again, and what is not written yet is booked again from the log on what stands there now.
//! The same happens after a crash, and after anything that went wrong.

mod redo;
mod scribe;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

pub(super) use self::redo::Logged;
use self::redo::{Booked, Log};
use self::scribe::Scribe;
use super::books::{Answer, Books, Item};
use super::parties::Versions;
use super::{Context, Work};
use crate::conn::{Conn, Manager, is_broken};
use crate::dialect;
use crate::dialect::group::Basis;
use crate::error::StoreError;

/// What is booked is on its way to the database after so long, unless that is written to just then: what
/// every group changes is written once for all of them, and more of the calls that are short have ended.
const BEHIND: Duration = Duration::from_millis(200);
/// The same after so many bytes of log, two thousand calls: whoever reads waits until they are written.
const MUCH: u64 = 1024 * 1024;
/// How often somebody looks whether the scribe is back, when nothing else happens.
const LOOK: Duration = Duration::from_millis(1);
/// After so many bytes of log, two thousand calls, what is in SQLite's own log is moved to where it
/// belongs, unless somebody waits for what is to be written next.
const CHECKPOINT: usize = 1024 * 1024;
/// After so many, whoever waits.
const CHECKPOINT_FIRST: usize = 8 * CHECKPOINT;
/// Whatever else is written counts for so many: some ten pages of SQLite's log.
const WORK: usize = 16 * 1024;
/// So many bytes of log may wait for the scribe, sixteen thousand calls without metadata; then calls wait
/// for him, too.
const MOST_LOGGED: u64 = 8 * 1024 * 1024;
/// How many rows are remembered; then everything is forgotten, which costs a few reads.
const REMEMBERED: usize = 200_000;

/// Who waits until all that is booked by now is written.
pub(super) enum Waiter {
    /// Somebody who will read.
    Reader(oneshot::Sender<()>),
    /// Something to be written that changes nothing by which calls are decided.
    Work(Work),
}

/// What the scribe is away for.
enum Out {
    Posting,
    Other,
}

pub(super) struct Ahead {
    books: Books,
    log: Log,
    scribe: Scribe,
    out: Option<Out>,
    /// Whether the scribe has the database to himself.
    keeps_others_out: Arc<AtomicBool>,
    /// What the database tells the scribe as long as nobody else writes to it.
    version: i32,
    /// What it told whoever reads here when that was last so.
    seen: i32,
    /// Since when something is booked that is neither written nor being written.
    behind_since: Option<Instant>,
    /// How often something was taken to be written, and how often that was done.
    taken: u64,
    written: u64,
    /// Who waits until so much is written; the numbers ascend.
    waiting: VecDeque<(u64, Waiter)>,
    /// How many bytes were logged since the last checkpoint, and [as many](WORK) for each other write. Whoever was
    /// here before may have left some.
    unmoved: usize,
}

impl Ahead {
    /// Begins with what the database has, after the log of whoever was ahead before is written to it.
    /// `reader` is the connection that will read.
    pub(super) fn begin(
        manager: &Manager,
        reader: &mut Conn,
        log: &[PathBuf; 2],
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Self, StoreError> {
        let mut scribe = Scribe::start(manager)?;
        let (mut log, batches) = Log::open(log, context.clock.now())?;
        let mut books = Books::new(context);
        // Before anything is read: what is written from here on is noticed.
        let seen = dialect::version(reader)?;
        let conn = scribe.conn().ok_or(StoreError::Interrupted)?;
        dialect::without_checkpoints_of_its_own(conn)?;
        let (posting, version) = conn.write(|conn| {
            for batch in &batches {
                book_again(&mut books, conn, batch, context, versions)?;
            }
            books.take_changed();
            let posting = books.take();
            posting.write(conn, &Basis::default())?;
            Ok::<_, StoreError>((posting, dialect::version(conn)?))
        })?;
        posting.written(context);
        books.written();
        books.log_from_now_on();
        log.turn();
        context.set_behind(false);
        Ok(Self {
            books,
            log,
            scribe,
            out: None,
            keeps_others_out: Arc::default(),
            version,
            seen,
            behind_since: None,
            taken: 0,
            written: 0,
            waiting: VecDeque::new(),
            unmoved: CHECKPOINT,
        })
    }

    /// Fails with [`StoreError::Interrupted`] if somebody else has written to the database since it was
    /// read.
    pub(super) fn check(&mut self, reader: &mut Conn, context: &Context) -> Result<(), StoreError> {
        // While he writes, nobody else has written or can, but long before he has committed there is another
        // version: as soon as SQLite begins its log anew for him.
        if self.keeps_others_out.load(Ordering::Acquire) || dialect::version(reader)? == self.seen {
            return Ok(());
        }
        match self.out {
            // He has written, and is about to come back.
            Some(_) => self.wait(reader, context),
            None => self.look_who_wrote(reader),
        }
    }

    /// Whoever reads sees that something was written; the connection of the scribe, who must be here,
    /// tells whether it was by somebody else.
    fn look_who_wrote(&mut self, reader: &mut Conn) -> Result<(), StoreError> {
        // In this order: what is written between the two is noticed now or the next time.
        self.seen = dialect::version(reader)?;
        let version = self.scribe.conn().map(dialect::version).transpose()?;
        if version == Some(self.version) { Ok(()) } else { Err(StoreError::Interrupted) }
    }

    /// Decides and books `items`, durably; the answers come in their order. After an error,
    /// [begin](Ahead::begin) again; unless that was [`StoreError::Interrupted`], nothing of them is booked.
    pub(super) fn book(
        &mut self,
        reader: &mut Conn,
        items: &[Item],
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Vec<Answer>, StoreError> {
        let is_leaving = |item: &Item| match item {
            Item::Settle(settlement) => self.books.is_leaving(settlement),
            Item::Admit(_) => false,
        };
        // What is being written cannot be booked on, and the log must not grow without end.
        if items.iter().any(is_leaving) || self.log.len() >= MOST_LOGGED {
            self.wait(reader, context)?;
        }
        if matches!(self.out, Some(Out::Other)) {
            // What he is away for may be done already, and whoever wanted it may know.
            self.books.forget_who_is_told();
        }
        let now = context.clock.now();
        self.books.begin(now, context.service_charge_rate, context);
        let answers = self.books.book(reader, items, context, versions)?;
        let changed = self.books.take_changed();
        let lines = self.books.log();
        if !lines.is_empty() {
            let node_id = context.node_id.to_string();
            let service_charge_rate = context.service_charge_rate;
            let booked = Booked { node_id: node_id.into(), at: now, service_charge_rate };
            self.log.append(&booked, lines)?;
            self.unmoved = self.unmoved.saturating_add(lines.len());
            context.vitals.log_bytes.set(self.log.len());
        }
        // A subscription that was renewed for a call that was refused is no line of the log: it will
        // be renewed again.
        if !lines.is_empty() || !changed.is_empty() {
            self.behind_since.get_or_insert_with(Instant::now);
            context.set_behind(true);
        }
        if !changed.is_empty() {
            context.storms.forget(&changed);
        }
        Ok(answers)
    }

    /// When somebody must [attend](Ahead::attend) to the database, though nothing else happens.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.out {
            Some(_) => Some(Instant::now() + LOOK),
            None => Some(self.behind_since? + BEHIND),
        }
    }

    /// Lets somebody wait until all that is booked by now is written.
    pub(super) fn wait_for_all(&mut self, waiter: Waiter) {
        let after = self.taken.saturating_add(u64::from(self.behind_since.is_some()));
        self.waiting.push_back((after, waiter));
    }

    /// Those who still wait: they may go on when it has [begun](Ahead::begin) again.
    pub(super) fn into_waiting(self) -> impl Iterator<Item = Waiter> {
        self.waiting.into_iter().map(|(_, waiter)| waiter)
    }

    /// Has the database written to as far as it is time for that, without waiting for it. After an error,
    /// [begin](Ahead::begin) again.
    pub(super) fn attend(
        &mut self,
        reader: &mut Conn,
        context: &Arc<Context>,
    ) -> Result<(), StoreError> {
        if self.books.len() > REMEMBERED {
            self.settle_up(reader, context)?;
            self.books.forget(context);
        }
        loop {
            if self.out.is_some() {
                let Some(outcome) = self.scribe.look() else { return Ok(()) };
                self.returned(outcome, reader, context)?;
            }
            let is_late = self.behind_since.is_some_and(|since| since.elapsed() >= BEHIND);
            let is_due = is_late || self.log.len() >= MUCH;
            if !self.send_scribe(is_due, context) {
                return Ok(());
            }
        }
    }

    /// Waits until everything is written. After an error, [begin](Ahead::begin) again.
    pub(super) fn settle_up(
        &mut self,
        reader: &mut Conn,
        context: &Arc<Context>,
    ) -> Result<(), StoreError> {
        loop {
            self.wait(reader, context)?;
            if !self.send_scribe(true, context) {
                return Ok(());
            }
        }
    }

    /// Does what nobody else may write beside, or decide calls by. The database must be
    /// [settled up](Ahead::settle_up).
    pub(super) fn run_alone(&mut self, work: Work, context: &Context) -> Result<(), StoreError> {
        let conn = self.scribe.conn().ok_or(StoreError::Interrupted)?;
        self.unmoved = self.unmoved.saturating_add(WORK);
        (work.run)(conn);
        if is_broken(conn) {
            return Err(StoreError::Interrupted);
        }
        if work.concerns_calls {
            self.books.forget(context);
        }
        Ok(())
    }

    /// Nobody goes on from here. The database must be [settled up](Ahead::settle_up).
    pub(super) fn end(self) {
        if let Err(cause) = self.log.close() {
            log::warn!("the log of the ledger cannot be emptied: {cause}");
        }
    }

    /// Sends the scribe on what comes next, if anything does. He must be here.
    fn send_scribe(&mut self, is_due: bool, context: &Arc<Context>) -> bool {
        let may_go_on = |(after, _): &(u64, Waiter)| *after <= self.written;
        while self.waiting.front().is_some_and(may_go_on)
            && let Some((_, waiter)) = self.waiting.pop_front()
        {
            match waiter {
                // Whoever asked may have left.
                Waiter::Reader(reader) => drop(reader.send(())),
                Waiter::Work(work) => {
                    self.unmoved = self.unmoved.saturating_add(WORK);
                    self.out = Some(Out::Other);
                    self.scribe.send(Box::new(|conn| {
                        (work.run)(conn);
                        if is_broken(conn) { Err(StoreError::Interrupted) } else { Ok(()) }
                    }));
                    return true;
                }
            }
        }
        // Before more is written, of which there may be no end.
        let most = if self.waiting.is_empty() { CHECKPOINT } else { CHECKPOINT_FIRST };
        if self.unmoved >= most {
            self.unmoved = 0;
            self.out = Some(Out::Other);
            self.scribe.send(Box::new(|conn| {
                if let Err(cause) = dialect::checkpoint(conn) {
                    log::warn!("SQLite's log is not emptied: {cause}");
                }
                Ok(())
            }));
            return true;
        }
        if self.behind_since.is_some() && (is_due || !self.waiting.is_empty()) {
            self.post(context);
            return true;
        }
        false
    }

    fn post(&mut self, context: &Arc<Context>) {
        let (posting, version) = (self.books.take(), self.version);
        let context = Arc::clone(context);
        let keeping = Keeping(Arc::clone(&self.keeps_others_out));
        self.log.turn();
        context.vitals.log_bytes.set(0);
        self.behind_since = None;
        self.taken += 1;
        self.out = Some(Out::Posting);
        self.scribe.send(Box::new(move |conn| {
            conn.write(|conn| {
                if dialect::version(conn)? != version {
                    // Written over it, what somebody else did would be lost.
                    return Err(StoreError::Interrupted);
                }
                keeping.begin();
                posting.write(conn, &Basis::default()).map(drop)
            })?;
            drop(keeping);
            posting.written(&context);
            Ok(())
        }));
    }

    /// Waits until the scribe is here.
    fn wait(&mut self, reader: &mut Conn, context: &Context) -> Result<(), StoreError> {
        match self.out {
            Some(_) => {
                let outcome = self.scribe.wait();
                self.returned(outcome, reader, context)
            }
            None => Ok(()),
        }
    }

    fn returned(
        &mut self,
        outcome: Result<(), StoreError>,
        reader: &mut Conn,
        context: &Context,
    ) -> Result<(), StoreError> {
        let out = self.out.take();
        outcome?;
        self.look_who_wrote(reader)?;
        match out {
            Some(Out::Posting) => {
                self.written = self.taken;
                self.books.written();
                match self.behind_since {
                    None => context.set_behind(false),
                    since => context.vitals.is_behind_since(since),
                }
            }
            Some(Out::Other) => self.books.forget_who_is_told(),
            None => {}
        }
        Ok(())
    }
}

/// The scribe has the database to himself from when he [begins](Keeping::begin) until this is dropped, just after
/// his transaction is over.
struct Keeping(Arc<AtomicBool>);

impl Keeping {
    fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Reads a log that somebody has left, to see whether it can be booked.
pub(super) fn read_through(log: &[PathBuf; 2]) -> Result<(), StoreError> {
    for batch in Log::read(log)? {
        let (_, mut entries) = redo::entries(&batch)?;
        entries.try_for_each(|logged| logged.map(drop))?;
    }
    Ok(())
}

/// Books a batch of the log again, as whoever booked it.
fn book_again(
    books: &mut Books,
    conn: &mut Conn,
    batch: &[u8],
    context: &Context,
    versions: &mut Versions,
) -> Result<(), StoreError> {
    let (Booked { node_id, at, service_charge_rate }, entries) = redo::entries(batch)?;
    books.begin(at, service_charge_rate, context);
    for logged in entries {
        books.book_again(conn, logged?, &node_id, context, versions)?;
    }
    Ok(())
}
