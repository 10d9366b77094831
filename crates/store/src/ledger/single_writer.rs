//! The ledger on SQLite, where one process serves from a file and writes all that calls change.
//!
//! A group is one transaction with `synchronous = FULL`. Its callers are answered when it is committed, so
//! the file and SQLite's log hold every answer that was given.
//!
//! What was read for one group is kept for the next: only this connection writes it. Another connection
//! (a subcommand, an operator) may write all the same. SQLite's `data_version` tells that, and everything is
//! read again. The same number tells when another process has begun to serve from the file: its row in
//! `serving` is newer. This process then admits nothing more and ends the calls that it has.

use super::books::Books;
use super::checkpoints::Checkpoints;
use super::context::{Context, overtaken};
use super::job::{Answer, Item};
use super::parties::Versions;
use super::posting::Posting;
use super::storms::Changed;
use crate::conn::{Conn, Manager};
use crate::dialect;
use crate::dialect::group::Basis;
use crate::error::StoreError;
use crate::serving;

/// How many rows are kept; then they are forgotten, which costs a few reads.
const MOST_KEPT: usize = 200_000;

/// See the module.
pub(super) struct SingleWriter {
    books: Books,
    /// What SQLite answers this connection as long as no other has written.
    version: i32,
    checkpoints: Checkpoints,
}

/// A group that is decided.
struct Decided {
    answers: Vec<Answer>,
    changed: Changed,
    posting: Posting,
}

/// Why a group's transaction is rolled back.
enum Failure {
    /// Another connection has written since the group was decided.
    Stale,
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

impl SingleWriter {
    /// Begins with nothing read.
    pub(super) fn new(
        manager: &Manager,
        conn: &mut Conn,
        context: &Context,
    ) -> Result<Self, StoreError> {
        dialect::without_checkpoints_of_its_own(conn)?;
        let checkpoints = Checkpoints::start(manager, &context.vitals.sqlite_log_pages)?;
        let version = dialect::version(conn)?;
        let this = Self { books: Books::new(context), version, checkpoints };
        this.check_serving(conn, context)?;
        Ok(this)
    }

    /// Forgets what was read, for another connection has written since.
    fn read_again(&mut self, conn: &mut Conn, context: &Context) -> Result<(), StoreError> {
        // The number first: a later write then changes it again.
        self.version = dialect::version(conn)?;
        self.books = Books::new(context);
        self.check_serving(conn, context)
    }

    fn check_serving(&self, conn: &mut Conn, context: &Context) -> Result<(), StoreError> {
        if let Some(epoch) = context.epoch
            && serving::epoch(conn)? != Some(epoch)
        {
            context.set_overtaken();
        }
        Ok(())
    }

    /// Decides and books `items` in one transaction; the answers come in their order. After an error, begin
    /// [again](Self::new).
    pub(super) fn book(
        &mut self,
        conn: &mut Conn,
        items: &[Item],
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Vec<Answer>, StoreError> {
        if self.books.len() > MOST_KEPT {
            self.books.forget(context);
        }
        let booked = match self.book_as_read(conn, items, context, versions) {
            // No other connection can write during the second attempt.
            Err(Failure::Stale) => conn.write(|conn| {
                self.read_again(conn, context)?;
                let decided = self.decide(conn, items, context, versions)?;
                decided.posting.write(conn, &Basis::default())?;
                Ok(decided)
            }),
            booked => booked,
        };
        match booked {
            Ok(Decided { answers, changed, posting }) => {
                posting.written(context);
                if !changed.is_empty() {
                    context.storms.forget(&changed);
                }
                self.checkpoints.after(items.len(), conn);
                Ok(answers)
            }
            Err(Failure::Stale) => {
                Err(StoreError::Unavailable("it changes all the time".to_owned()))
            }
            Err(Failure::Store(cause)) => Err(cause.or_away()),
        }
    }

    /// The same, by what was read before, unless another connection has written since.
    fn book_as_read(
        &mut self,
        conn: &mut Conn,
        items: &[Item],
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Decided, Failure> {
        let decided = self.decide(conn, items, context, versions)?;
        if decided.posting.is_empty() {
            self.check_version(conn)?;
            return Ok(decided);
        }
        conn.write(|conn| {
            self.check_version(conn)?;
            decided.posting.write(conn, &Basis::default())?;
            Ok(decided)
        })
    }

    fn decide(
        &mut self,
        conn: &mut Conn,
        items: &[Item],
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Decided, Failure> {
        if context.is_overtaken() && items.iter().any(|item| matches!(item, Item::Admit(_))) {
            return Err(overtaken().into());
        }
        self.books.begin(context.clock.now(), context);
        let answers = self.books.book(conn, items, context, versions)?.ok_or(Failure::Stale)?;
        let (changed, posting) = (self.books.changed(), self.books.take()?);
        Ok(Decided { answers, changed, posting })
    }

    /// Whether what was read is as the file has it.
    fn check_version(&self, conn: &mut Conn) -> Result<(), Failure> {
        match dialect::version(conn).map_err(StoreError::from)? {
            version if version == self.version => Ok(()),
            _ => Err(Failure::Stale),
        }
    }

    /// This connection has written something else, which may change what calls are decided by.
    pub(super) fn forget(&mut self, context: &Context) {
        self.books.forget(context);
    }
}
