//! Books that run ahead of the database: for a process that has a SQLite file to itself.
//!
//! Nobody else books calls there, so what was read once still stands, and calls are decided in memory.
//! A batch is durable when it is in the [log](redo), which costs one write; the database gets
//! many batches in one transaction, soon: a call that came and went in between is one row inserted,
//! and a wallet that a hundred calls drew on is one row updated.
//!
//! Whoever reads the database through this process, or writes to it, has what is booked
//! written first. What other processes write (a subcommand, an operator) is noticed: then everything is
//! read again, and what is not written yet is booked again from the log on what stands there now.
//! The same happens after a crash, and after anything that went wrong.

mod redo;

use std::path::Path;
use std::time::{Duration, Instant};

pub(super) use self::redo::Logged;
use self::redo::{Booked, Log};
use super::Context;
use super::books::{Answer, Books, Item};
use super::parties::Versions;
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;

/// The database is never further behind than this, unless it is written to by somebody else.
const BEHIND: Duration = Duration::from_millis(20);
/// How many bytes the log has before it is written: some hundred calls. What waits for
/// them waits for a few milliseconds.
const MOST_LOGGED: u64 = 256 * 1024;
/// How many rows are remembered; then everything is forgotten, which costs a few reads.
const REMEMBERED: usize = 200_000;

pub(super) struct Ahead {
    books: Books,
    log: Log,
    /// What the database said when it was last read that others have not written since.
    version: i32,
    /// Since when the database lacks something.
    behind_since: Option<Instant>,
}

impl Ahead {
    /// Begins with what the database has, after the log of whoever was ahead before is written to it.
    pub(super) fn begin(
        conn: &mut Conn,
        log: &Path,
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Self, StoreError> {
        let mut log = Log::open(log, context.clock.now())?;
        let batches = log.read()?;
        let mut books = Books::new(context);
        let version = conn.write(|conn| {
            for batch in &batches {
                book_again(&mut books, conn, batch, context, versions)?;
            }
            books.take_changed();
            books.write(conn)?;
            Ok::<_, StoreError>(dialect::version(conn)?)
        })?;
        books.written(context);
        books.log_from_now_on();
        log.clear();
        context.set_behind(false);
        Ok(Self { books, log, version, behind_since: None })
    }

    /// Whether nobody else has written to the database since it was read.
    pub(super) fn is_current(&self, conn: &mut Conn) -> Result<bool, StoreError> {
        Ok(dialect::version(conn)? == self.version)
    }

    /// Decides and books `items`, durably; the answers come in their order. After an error,
    /// [begin](Ahead::begin) again; unless that was [`StoreError::Interrupted`], nothing of them is booked.
    pub(super) fn book(
        &mut self,
        conn: &mut Conn,
        items: &[Item],
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Vec<Answer>, StoreError> {
        let now = context.clock.now();
        self.books.begin(now, context);
        let answers = self.books.book(conn, items, context, versions)?;
        let changed = self.books.take_changed();
        let lines = self.books.log();
        if !lines.is_empty() {
            let node_id = context.node_id.to_string();
            let booked = Booked { node_id: node_id.into(), at: now };
            self.log.append(&booked, lines)?;
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

    /// When the database must catch up, if it lacks something.
    pub(super) fn due(&self) -> Option<Instant> {
        let since = self.behind_since?;
        Some(if self.log.len() < MOST_LOGGED { since + BEHIND } else { since })
    }

    /// Writes what the database lacks; whether it could, for somebody else may be writing. After an error,
    /// [begin](Ahead::begin) again.
    pub(super) fn catch_up(
        &mut self,
        conn: &mut Conn,
        context: &Context,
    ) -> Result<bool, StoreError> {
        if self.behind_since.is_none() {
            return Ok(true);
        }
        let written = conn.write(|conn| {
            if dialect::version(conn)? != self.version {
                // Written over it, what somebody else did would be lost.
                return Err(StoreError::Interrupted);
            }
            self.books.write(conn)
        });
        match written {
            Err(cause) if cause.is_transient() => {
                self.behind_since = Some(Instant::now());
                return Ok(false);
            }
            written => written?,
        }
        self.books.written(context);
        self.log.clear();
        self.behind_since = None;
        context.set_behind(false);
        if self.books.len() > REMEMBERED {
            self.forget(context);
        }
        Ok(true)
    }

    /// Forgets what was read: this process has changed it. The database must have caught up.
    pub(super) fn forget(&mut self, context: &Context) {
        self.books.forget(context);
    }

    /// Nobody goes on from here. The database must have caught up.
    pub(super) fn end(self) {
        if let Err(cause) = self.log.close() {
            log::warn!("the log of the ledger cannot be emptied: {cause}");
        }
    }
}

/// Books a batch of the log again, as whoever booked it.
fn book_again(
    books: &mut Books,
    conn: &mut Conn,
    batch: &[u8],
    context: &Context,
    versions: &mut Versions,
) -> Result<(), StoreError> {
    let mut lines = batch.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head = lines.next().unwrap_or_default();
    let Booked { node_id, at } = parse(head)?;
    books.begin(at, context);
    for line in lines {
        books.book_again(conn, parse::<Logged<'_>>(line)?, &node_id, context, versions)?;
    }
    Ok(())
}

fn parse<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Result<T, StoreError> {
    serde_json::from_slice(line).map_err(|_| StoreError::Corrupt {
        what: "line in the log of the ledger",
        value: String::from_utf8_lossy(line).into_owned(),
    })
}
