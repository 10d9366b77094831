//! The move of a merchant to the database of another cell.
//!
//! Rows are read as JSON and written as they are, so the two databases may be of different kinds. What no longer changes is
//! copied first, while calls go on. Then the merchant's calls and operations are refused until the rest has been copied,
//! in one transaction of the other database. From then on the merchant is there, and its rows here rest as they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel::prelude::*;
use tollgate_domain::{CellNumber, Id as _, MerchantId, NodeId, RequestId, Timestamp};

mod error;
mod from_archive;
mod rows;
mod tables;

pub use error::MoveError;
use from_archive::MonthsOfMerchant;
use rows::{Moving, RowPart, copy, count, delete, execute, literal};
use tables::{EarlyRows, REQUEST_INDEX, TABLES};

use crate::archiving::{self, lease};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::files::{FileLock, beside};
use crate::ids::Id;
use crate::readers::Readers;
use crate::requests::CLOCK_DIFFERENCE_MS;
use crate::rollups::{self, slot};
use crate::rows::ArchivedMonthRow;
use crate::schema::{corrections, jobs, open_calls, requests};
use crate::store::Store;
use crate::tables::merchants::{cell_of, complete_move, has_moved, set_cell};
use crate::{archived, cells, dialect, merchants, partitions};

/// The time after which an operation that had begun before the pause has ended.
const GRACE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// The most attempts to copy the rest while calls are still being settled.
const FOLD_ATTEMPTS: usize = 20;
/// Rows with ids of the last hour may still be written by transactions that have begun.
const SETTLED_AFTER_MILLIS: i64 = 60 * 60 * 1_000;

/// A completed move.
#[derive(Clone, Debug)]
pub struct MoveReport {
    /// The rows of each table.
    pub rows: BTreeMap<&'static str, i64>,
    /// The time for which calls and operations of the merchant were refused.
    pub pause: Duration,
}

impl Store {
    /// Moves a merchant to the database of another cell, or completes a move that was interrupted. Its calls and operations
    /// are refused with [`StoreError::Moved`] until open calls have ended, but at most for `patience`, and the rest is
    /// copied.
    ///
    /// # Errors
    /// [`MoveError`]. The merchant then stays, unless it has moved before or the other database could not say that it has
    /// committed.
    pub async fn move_merchant(
        &self,
        target: &Self,
        merchant_id: MerchantId,
        patience: Duration,
    ) -> Result<MoveReport, MoveError> {
        let _lock = self.move_lock(merchant_id).await?;
        let moved = self.move_locked(target, merchant_id, patience).await;
        match &moved {
            Ok(_) | Err(MoveError::HasMoved(_)) => self.complete_move(merchant_id).await,
            Err(_) => self.take_back(target, merchant_id).await?,
        }
        moved
    }

    async fn move_locked(
        &self,
        target: &Self,
        merchant_id: MerchantId,
        patience: Duration,
    ) -> Result<MoveReport, MoveError> {
        let now = self.0.context.clock.now();
        let settled = RequestId::least(now.plus_millis(-SETTLED_AFTER_MILLIS));
        let oldest = self.read(move |conn| oldest_open_call(conn, merchant_id)).await?;
        let changing_from = oldest.map_or(settled, |oldest| oldest.min(settled));
        let moving =
            Moving { merchant_id, changing_from, changing_slot: first_slot_of(changing_from) };
        // The index of old records and their sums must not grow any more.
        self.fold().await?;
        let archive = self.archive();
        let refused_from = now.plus_millis(-self.refusals_move_for());
        let begin = move |from: &mut Conn, to: &mut Conn| {
            let cell = check(from, to, merchant_id, now)?;
            let there = archived::months(to)?;
            // Of an attempt before this one.
            remove_rows(to, moving)?;
            let months = archived_months(from)?;
            let left = MonthsOfMerchant::among(&months, &archive, merchant_id)?;
            let oldest = [oldest_record(from, merchant_id)?, left.begin()?];
            if let Some(oldest) = oldest.into_iter().flatten().min() {
                partitions::make_between(to, oldest, now);
            }
            for table in TABLES.iter().filter(|table| table.early_rows != EarlyRows::None) {
                copy(from, to, *table, moving, RowPart::Early)?;
            }
            let copied = left.copy(&archive, to, refused_from)?;
            Ok((cell, EarlyCopy { begun: now, months, there, copied }))
        };
        let (cell, early) = self.with_both(target, begin).await?;
        let begun = Instant::now();
        self.set_cell(merchant_id, Some(cell)).await?;
        let rows = self.move_rest(target, moving, early, patience).await?;
        Ok(MoveReport { rows, pause: begun.elapsed() })
    }

    /// The age in milliseconds from which on refusals of the archive do not move. The other cell deletes those that are a day
    /// older, perhaps before it has the merchant.
    fn refusals_move_for(&self) -> i64 {
        const DAY: i64 = 24 * 60 * 60 * 1_000;
        (i64::from(self.0.context.refusals_keep_days) - 1) * DAY
    }

    /// Serves a merchant here again whose move was interrupted. No other database may have it: without that one, nothing
    /// can tell whether it does. `is_lost` says that the other database is lost. A merchant whose move was complete is then
    /// served as it was before the move.
    ///
    /// # Errors
    /// [`MoveError::NotMoving`] for a merchant that has not begun to move, [`MoveError::HasMoved`] for one whose move is
    /// complete, and those of [`Store::move_merchant`].
    pub async fn take_merchant_back(
        &self,
        merchant_id: MerchantId,
        is_lost: bool,
    ) -> Result<(), MoveError> {
        let _lock = self.move_lock(merchant_id).await?;
        let state = move |conn: &mut Conn| -> Result<_, StoreError> {
            Ok((cell_of(conn, merchant_id)?, has_moved(conn, merchant_id)?))
        };
        match self.read(state).await? {
            (None, _) => Err(MoveError::NotMoving),
            (Some(cell), true) if !is_lost => Err(MoveError::HasMoved(cell)),
            (Some(_), _) => Ok(self.set_cell(merchant_id, None).await?),
        }
    }

    /// Notes that the other database has the merchant.
    async fn complete_move(&self, merchant_id: MerchantId) {
        let now = self.0.context.clock.now();
        let noted = self.write(move |conn| complete_move(conn, merchant_id, now)).await;
        if let Err(cause) = noted {
            log::warn!(
                "{merchant_id} has moved, and this database does not know it yet: run the same command again: {cause}"
            );
        }
    }

    async fn move_lock(&self, merchant_id: MerchantId) -> Result<MoveLock, MoveError> {
        let (from, merchant) = (self.0.readers.clone(), merchant_id.to_string());
        let locked = tokio::task::spawn_blocking(move || MoveLock::take(&from, &merchant));
        locked.await.map_err(interrupted)?
    }

    /// Admits calls again after a move to `target` that has failed. The answer of a commit may be lost. In doubt, the merchant is
    /// refused in both places.
    async fn take_back(&self, target: &Self, merchant_id: MerchantId) -> Result<(), MoveError> {
        let is_back = self.with_both(target, move |from, to| {
            let cell = i32::from(cells::number(to)?.get());
            let moves = cell_of(from, merchant_id)? == Some(cell) && !has_moved(from, merchant_id)?;
            Ok(moves && merchants::find(to, merchant_id)?.is_none())
        });
        if is_back.await? {
            self.set_cell(merchant_id, None).await?;
        }
        Ok(())
    }

    async fn set_cell(
        &self,
        merchant_id: MerchantId,
        cell: Option<CellNumber>,
    ) -> Result<(), StoreError> {
        self.write(move |conn| set_cell(conn, merchant_id, cell)).await
    }

    async fn move_rest(
        &self,
        target: &Self,
        moving: Moving,
        early: EarlyCopy,
        patience: Duration,
    ) -> Result<BTreeMap<&'static str, i64>, MoveError> {
        tokio::time::sleep(GRACE).await;
        let begun = Instant::now();
        loop {
            let open = self.read(move |conn| count_open_calls(conn, moving.merchant_id)).await?;
            match open {
                0 => break,
                open if begun.elapsed() > patience => return Err(MoveError::OpenCalls(open)),
                _ => tokio::time::sleep(POLL).await,
            }
        }
        let early = Arc::new(early);
        for _ in 1..FOLD_ATTEMPTS {
            match self.copy_folded(target, moving, &early).await {
                Err(MoveError::NotFolded) => tokio::time::sleep(POLL).await,
                copied => return copied,
            }
        }
        self.copy_folded(target, moving, &early).await
    }

    /// Copies the rest, when the calls of the merchant are in the sums and the index.
    async fn copy_folded(
        &self,
        target: &Self,
        moving: Moving,
        early: &Arc<EarlyCopy>,
    ) -> Result<BTreeMap<&'static str, i64>, MoveError> {
        self.fold().await?;
        let (node_id, now) = (self.0.context.node_id, self.0.context.clock.now());
        let early = Arc::clone(early);
        let copy_rest = move |from: &mut Conn, to: &mut Conn| {
            from.snapshot(|from| {
                // A call may have been settled since: the queue is not copied. This read also fixes the state of the snapshot,
                // before the other database is waited for.
                let queued = rollups::queued(from)?;
                if queued.iter().any(|call| call.merchant_id == moving.merchant_id) {
                    return Err(MoveError::NotFolded);
                }
                to.write(|to| copy_rest(from, to, moving, &early, node_id, now))
            })
        };
        self.with_both(target, copy_rest).await
    }

    /// Runs `work` on a connection to each database.
    async fn with_both<T: Send + 'static>(
        &self,
        target: &Self,
        work: impl FnOnce(&mut Conn, &mut Conn) -> Result<T, MoveError> + Send + 'static,
    ) -> Result<T, MoveError> {
        let (from, to) = (self.0.readers.clone(), target.0.readers.clone());
        let done = tokio::task::spawn_blocking(move || {
            let (mut from, mut to) = (from.get()?, to.get()?);
            work(&mut from, &mut to)
        });
        done.await.map_err(interrupted)?
    }
}

fn interrupted(_: tokio::task::JoinError) -> StoreError {
    StoreError::Unavailable("the copy was interrupted".to_owned())
}

/// Held by the command that moves a merchant. It ends with its process.
enum MoveLock {
    File {
        _lock: FileLock,
    },
    /// A connection whose transaction has the lock.
    Transaction(Box<Conn>),
}

impl MoveLock {
    fn take(readers: &Readers, merchant: &str) -> Result<Self, MoveError> {
        if let Some(file) = readers.file() {
            let taken = FileLock::take(&beside(file, ".moving"));
            let taken = taken.map_err(|cause| StoreError::Unavailable(cause.to_string()))?;
            return Ok(Self::File { _lock: taken.ok_or(MoveError::Busy)? });
        }
        let mut conn = readers.connect()?;
        match dialect::try_begin_lock(&mut conn, &format!("move of {merchant}"))? {
            true => Ok(Self::Transaction(Box::new(conn))),
            false => Err(MoveError::Busy),
        }
    }
}

impl Drop for MoveLock {
    fn drop(&mut self) {
        if let Self::Transaction(conn) = self {
            // Without this, the server ends the transaction a little later than the connection.
            let _ = dialect::end_lock(conn);
        }
    }
}

fn check(
    from: &mut Conn,
    to: &mut Conn,
    merchant_id: MerchantId,
    now: Timestamp,
) -> Result<CellNumber, MoveError> {
    if !cells::is_one(to)? {
        return Err(MoveError::NoCell);
    }
    let (here, there) = (cells::number(from)?, cells::number(to)?);
    if here == there {
        return Err(MoveError::SameCell(here));
    }
    if merchants::find(from, merchant_id)?.is_none() {
        return Err(MoveError::NotHere);
    }
    // A move to the same cell that was interrupted begins again.
    let is_there = merchants::find(to, merchant_id)?.is_some();
    match cell_of(from, merchant_id)? {
        Some(cell) if cell != i32::from(there.get()) => return Err(MoveError::MovesTo(cell)),
        Some(cell) if is_there => return Err(MoveError::HasMoved(cell)),
        // The database that has it goes on.
        Some(cell) if has_moved(from, merchant_id)? => return Err(MoveError::NotThere(cell)),
        None if is_there => return Err(MoveError::IsThere),
        Some(_) | None => {}
    }
    if lease::is_held(to, now)? || archiving::is_archiving(to)? {
        return Err(MoveError::ArchivesThere);
    }
    Ok(there)
}

/// The months that are in the archive. None of them is being deleted.
fn archived_months(from: &mut Conn) -> Result<Vec<ArchivedMonthRow>, MoveError> {
    let months = archived::months(from)?;
    match archiving::is_deleting(from, &months)? {
        true => Err(MoveError::ArchivesHere),
        false => Ok(months),
    }
}

/// The copy before the pause.
struct EarlyCopy {
    begun: Timestamp,
    /// The months that were in the archive.
    months: Vec<ArchivedMonthRow>,
    /// The months that were in the archive of the other database.
    there: Vec<ArchivedMonthRow>,
    /// The numbers of rows from the archive, by table.
    copied: BTreeMap<&'static str, i64>,
}

/// The open calls that are not those of jobs, which move as they are.
fn count_open_calls(conn: &mut Conn, merchant_id: MerchantId) -> Result<i64, StoreError> {
    let of_job =
        diesel::dsl::exists(jobs::table.filter(jobs::request_id.eq(open_calls::request_id)));
    let open = open_calls::table
        .filter(open_calls::merchant_id.eq(Id(merchant_id)))
        .filter(diesel::dsl::not(of_job));
    Ok(open.count().get_result(conn)?)
}

fn oldest_open_call(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Option<RequestId>, StoreError> {
    let oldest: Option<Id<RequestId>> = open_calls::table
        .filter(open_calls::merchant_id.eq(Id(merchant_id)))
        .order(open_calls::request_id)
        .select(open_calls::request_id)
        .first(conn)
        .optional()?;
    Ok(oldest.map(Id::get))
}

/// The time of the merchant's oldest record that is in the database.
fn oldest_record(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Option<Timestamp>, StoreError> {
    let oldest: Option<Id<RequestId>> = requests::table
        .filter(requests::merchant_id.eq(Id(merchant_id)))
        .order(requests::request_id)
        .select(requests::request_id)
        .first(conn)
        .optional()?;
    Ok(oldest.map(|id| id.get().created_at()))
}

fn copy_rest(
    from: &mut Conn,
    to: &mut Conn,
    moving: Moving,
    early: &EarlyCopy,
    node_id: NodeId,
    now: Timestamp,
) -> Result<BTreeMap<&'static str, i64>, MoveError> {
    // The merchant is not in the files of a month that is being archived.
    if !lease::take(to, node_id, now)? || archiving::is_archiving(to)? {
        return Err(MoveError::ArchivesThere);
    }
    // With a month that has left there meanwhile, rows of it that were copied may be gone.
    if archived::months(to)? != early.there {
        return Err(MoveError::ArchivesThere);
    }
    // A month that has left meanwhile may be copied in part.
    if archived_months(from)? != early.months {
        return Err(MoveError::ArchivesHere);
    }
    let corrected = corrected_calls(from, moving, early.begun)?;
    let first_slot = corrected.first().map_or(i64::MAX, |id| first_slot_of(*id));
    let moving = Moving { changing_slot: moving.changing_slot.min(first_slot), ..moving };
    let mut rows = BTreeMap::new();
    for table in TABLES {
        // Rows that were copied before the pause and have changed since are copied again.
        if table.early_rows == EarlyRows::Sums {
            delete(to, *table, moving, RowPart::Rest)?;
        }
        if table.name == REQUEST_INDEX.name && !corrected.is_empty() {
            delete(to, *table, moving, RowPart::OfCalls(&corrected))?;
            copy(from, to, *table, moving, RowPart::OfCalls(&corrected))?;
        }
        copy(from, to, *table, moving, RowPart::Rest)?;
        let of_archive = early.copied.get(table.name).copied().unwrap_or_default();
        let here = count(from, *table, moving)?.saturating_add(of_archive);
        let there = count(to, *table, moving)?;
        if here != there {
            return Err(MoveError::Differs { table: table.name, here, there });
        }
        rows.insert(table.name, here);
    }
    set_cell(to, moving.merchant_id, None)?;
    lease::release(to, node_id)?;
    // Numbers of events are those of a database.
    let merchant = literal(to, moving.merchant_id.as_bytes());
    execute(to, &format!("UPDATE webhooks SET events_before = 0 WHERE merchant_id = {merchant}"))?;
    Ok(rows)
}

/// Removes what an earlier attempt has copied, while the merchant is not there.
fn remove_rows(to: &mut Conn, moving: Moving) -> Result<(), MoveError> {
    // Sums are found by their series, which come before them.
    let mut tables = TABLES.iter().rev().filter(|table| table.is_early());
    tables.try_for_each(|table| delete(to, *table, moving, RowPart::All))
}

/// The first quarter hour whose sums the calls from this one on may change. The clocks of nodes differ.
fn first_slot_of(first: RequestId) -> i64 {
    slot(first.created_at().plus_millis(-SETTLED_AFTER_MILLIS).unix_micros())
}

/// The old calls that were corrected since an instant, the oldest first. Their index entries and sums have changed.
fn corrected_calls(
    from: &mut Conn,
    moving: Moving,
    since: Timestamp,
) -> Result<Vec<RequestId>, StoreError> {
    let since = since.plus_millis(-CLOCK_DIFFERENCE_MS).unix_micros();
    let ids: Vec<Id<RequestId>> = corrections::table
        .filter(corrections::merchant_id.eq(Id(moving.merchant_id)))
        .filter(corrections::request_id.lt(Id(moving.changing_from)))
        .filter(corrections::created_at.ge(since))
        .order(corrections::request_id)
        .select(corrections::request_id)
        .load(from)?;
    Ok(ids.into_iter().map(Id::get).collect())
}
