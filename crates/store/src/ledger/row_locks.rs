//! Books that are the database's own: for a database that others write to as well.
//!
//! A batch is a transaction. What it draws on and changes is read under locks. What it is decided by
//! besides (keys, connections, meters) changes rarely and is remembered from batch to batch; the statement
//! that writes the batch tells whether it still stands as it was read, and if not, the batch is taken back
//! and decided anew. So nothing is decided by what had changed before the call came.

use std::collections::BTreeSet;
use std::mem;
use std::time::{Duration, Instant};

use super::books::Books;
use super::context::Context;
use super::job::{Answer, Item};
use super::parties::{Parties, Versions};
use super::posting::Posting;
use super::storms::Changed;
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;

/// How often a batch is decided anew, because what it is decided by has changed.
const ATTEMPTS: usize = 5;
/// How many rows are remembered; then they are forgotten, which costs a few reads.
const REMEMBERED: usize = 20_000;
/// For so long after a refusal, calls are looked at before anything is locked for them.
const WARY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(super) struct RowLocks {
    parties: Parties,
    refused_at: Option<Instant>,
}

/// What a transaction that is not taken back has done.
struct Done {
    answers: Vec<Answer>,
    changed: Changed,
    posting: Posting,
    books: Books,
}

/// Why one is taken back.
enum TakenBack {
    /// Something by which it was decided has changed, or a call has ended that was to end.
    Stale,
    Failed(StoreError),
}

impl From<StoreError> for TakenBack {
    fn from(cause: StoreError) -> Self {
        Self::Failed(cause)
    }
}

impl RowLocks {
    /// Decides and books `items` in a transaction of their own; the answers come in their order.
    pub(super) fn book(
        &mut self,
        conn: &mut Conn,
        items: &[Item],
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Vec<Answer>, StoreError> {
        let has_row_locks = dialect::has_row_locks(conn);
        let admits = items.iter().any(|item| matches!(item, Item::Admit(_)));
        let is_wary = self.refused_at.is_some_and(|at| at.elapsed() < WARY);
        let mut looks_first = has_row_locks && admits && is_wary;
        for attempt in 0..ATTEMPTS {
            let parties = mem::take(&mut self.parties);
            let books = Books::with(parties, looks_first, attempt > 0, context);
            let book = |conn: &mut Conn| book(conn, books, items, context, versions);
            // Who waits for a lock may be refused as things stand: nobody waits for long without a look.
            let done = match has_row_locks && admits && !looks_first {
                true => conn.write_soon(book),
                false => conn.write(book),
            };
            let Done { answers, changed, posting, books } = match done {
                Ok(done) => done,
                Err(TakenBack::Stale) => continue,
                Err(TakenBack::Failed(cause)) if cause.is_of_a_lock() && !looks_first => {
                    looks_first = true;
                    continue;
                }
                Err(TakenBack::Failed(cause)) => return Err(cause),
            };
            posting.written(context);
            let parties = books.into_parties(context);
            // Elsewhere nobody would tell that they have changed.
            if has_row_locks && parties.len() < REMEMBERED {
                self.parties = parties;
            }
            if !changed.is_empty() {
                context.storms.forget(&changed);
            }
            if answers.iter().any(|answer| matches!(answer, Answer::Admitted(Err(_)))) {
                self.refused_at = Some(Instant::now());
            }
            return Ok(answers);
        }
        Err(StoreError::Unavailable("what calls name changes all the time".to_owned()))
    }
}

fn book(
    conn: &mut Conn,
    mut books: Books,
    items: &[Item],
    context: &Context,
    versions: &mut Versions,
) -> Result<Done, TakenBack> {
    let answers = books.book(conn, items, context, versions)?.ok_or(TakenBack::Stale)?;
    let changed = books.changed();
    let posting = books.take()?;
    let written: BTreeSet<String>;
    let marks = match posting.is_empty() {
        true => books.marks(),
        false => {
            written = posting.write(conn, books.basis())?;
            &written
        }
    };
    match *marks == books.basis().marks {
        true => Ok(Done { answers, changed, posting, books }),
        false => Err(TakenBack::Stale),
    }
}
