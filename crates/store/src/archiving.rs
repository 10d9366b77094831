//! The archiving of months: their records, refusals and ledger lines of usage are written to sealed files, and leave the
//! database.
//!
//! 1. The month is closed: no call of it is open, and its records are not priced again.
//! 2. Its rows are written to files, and a manifest seals them.
//! 3. The files are read back, and their sums are compared with those of the rows.
//! 4. The month is marked. From this transaction on, reads go to the archive.
//! 5. Its rows are deleted: with their partitions, or in small transactions.
//!
//! A process that dies leaves the rows until step 4. The next one begins the month again, and replaces its files. After
//! step 4, the next one goes on with step 5. One process works at a time, by a lease that every step extends.

use std::fmt;
use std::pin::pin;
use std::time::{Duration, Instant};

use diesel::prelude::*;
use tollgate_archive::{ArchivedFile, Manifest};
use tollgate_domain::{Month, NodeId, RefusalId, RequestId, Timestamp};

mod deleting;
pub(crate) mod lease;
mod line_partition;
mod month;
mod pace;
mod transactions;
mod writing;

use deleting::LeavingRecords;
use line_partition::LinePartition;
use month::MonthIds;
use pace::pause_after;

use crate::archived::{self, ArchivedRow, ArchivedUntil};
use crate::batch_size::BatchSize;
use crate::conn::{Conn, each_database};
use crate::error::StoreError;
use crate::ids::Id;
use crate::rollups;
use crate::rows::{ArchivedMonthRow, RefusalRow, TransactionRow};
use crate::schema::{archived_months, archived_sums, open_calls, refusals, requests};
use crate::store::Store;
use crate::{dialect, merchants};

/// The interval at which the lease is extended while files are written.
const EXTEND_EVERY: Duration = Duration::from_secs(15);
/// The most rows that are deleted in one transaction.
const MOST_ROWS: usize = 2_000;
/// The most pages that are given back in one transaction. Its commit writes each of them.
const MOST_PAGES: usize = 500;
/// The number of sums that are written in one transaction.
const SUMS_AT_ONCE: usize = 500;

/// The result of archiving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archiving {
    /// The months that were sealed, the oldest first.
    pub sealed: Vec<SealedMonth>,
    /// The reason why a month that is old enough was not sealed yet.
    pub waits: Option<ArchivingWait>,
}

/// A sealed month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedMonth {
    /// The month, such as `2026-01`.
    pub month: String,
    /// The SHA-256 of its manifest, in hex.
    pub manifest: String,
    /// The time at which it was sealed.
    pub sealed_at: Timestamp,
    /// Whether rows of it are still being deleted from the database.
    pub leaving: bool,
    /// The files.
    pub files: Vec<ArchivedFile>,
}

/// The reason why a month is not sealed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchivingWait {
    /// Another process works on the archive.
    OtherProcess,
    /// Calls of the month are still open.
    OpenCalls(String),
}

impl fmt::Display for ArchivingWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherProcess => f.write_str("another process works on the archive"),
            Self::OpenCalls(month) => write!(f, "{month} waits: it has calls that have not ended"),
        }
    }
}

impl Store {
    /// Archives the months whose last instant is older than this number of days. The oldest comes first.
    ///
    /// # Errors
    /// [`StoreError`] when the database or the archive fails. The month that it was at is in the database, or is sealed
    /// as a whole.
    pub async fn archive_months(&self, keep_days: u32) -> Result<Archiving, StoreError> {
        let node_id = self.0.context.node_id;
        let mut archiving = Archiving::default();
        if !self.take_archive_lease(node_id).await? {
            archiving.waits = Some(ArchivingWait::OtherProcess);
            return Ok(archiving);
        }
        let done = self.archive_due(node_id, keep_days, &mut archiving).await;
        let released = self.write_outside_calls(move |conn| lease::release(conn, node_id)).await;
        done?;
        released?;
        Ok(archiving)
    }

    /// Archives the months that are due by the options of the store, if they name days and an archive.
    pub(crate) async fn archive_when_due(&self) -> Result<(), StoreError> {
        let context = &self.0.context;
        let Some(keep_days) = context.records_keep_days.filter(|_| context.archive.is_configured())
        else {
            return Ok(());
        };
        match self.archive_months(keep_days).await?.waits {
            Some(ArchivingWait::OpenCalls(month)) => {
                log::warn!("{}", ArchivingWait::OpenCalls(month));
            }
            Some(ArchivingWait::OtherProcess) | None => {}
        }
        Ok(())
    }

    async fn take_archive_lease(&self, node_id: NodeId) -> Result<bool, StoreError> {
        let now = self.0.context.clock.now();
        self.write_outside_calls(move |conn| lease::take(conn, node_id, now)).await
    }

    async fn archive_due(
        &self,
        node_id: NodeId,
        keep_days: u32,
        archiving: &mut Archiving,
    ) -> Result<(), StoreError> {
        let leaving = self.read(archived::months).await?.into_iter().rev();
        for month in leaving {
            let ids = MonthIds::of(archived::parse(&month.month)?);
            if month.deleted_at.is_none() {
                self.delete_records(node_id, ids).await?;
            }
            if month.transactions_deleted_at.is_none() {
                self.delete_lines(node_id, ids).await?;
            }
        }
        let keep_ms = i64::from(keep_days).saturating_mul(24 * 60 * 60 * 1_000);
        loop {
            let last = self.0.context.clock.now().plus_millis(-keep_ms);
            let Some(month) =
                self.read(oldest_month).await?.filter(|month| MonthIds::of(*month).to <= last)
            else {
                return Ok(());
            };
            self.fold().await?;
            let now = self.0.context.clock.now();
            let close = move |conn: &mut Conn| close(conn, node_id, month, now);
            if !self.write_outside_calls(close).await? {
                archiving.waits = Some(ArchivingWait::OpenCalls(month.to_string()));
                return Ok(());
            }
            let sealed = self.seal_month(node_id, month).await?;
            log::info!("{month} is in the archive");
            archiving.sealed.push(sealed);
            self.delete_records(node_id, MonthIds::of(month)).await?;
            self.delete_lines(node_id, MonthIds::of(month)).await?;
        }
    }

    /// Writes the files of a month, verifies them, and marks the month.
    async fn seal_month(&self, node_id: NodeId, month: Month) -> Result<SealedMonth, StoreError> {
        let archive = self.archive();
        let clock = self.0.context.clock.clone();
        let write = self.read(move |conn| {
            let check = |conn: &mut Conn| lease::check(conn, node_id, clock.now());
            writing::write(conn, &archive, MonthIds::of(month), check)
        });
        let mut write = pin!(write);
        let (manifest, digest, sums) = loop {
            match tokio::time::timeout(EXTEND_EVERY, &mut write).await {
                Ok(written) => break written?,
                Err(_) => {
                    let now = self.0.context.clock.now();
                    self.write_outside_calls(move |conn| lease::extend(conn, node_id, now)).await?;
                }
            }
        };
        let now = self.0.context.clock.now();
        self.write_outside_calls(move |conn| {
            lease::extend(conn, node_id, now)?;
            // Those of an earlier attempt.
            let of_month = archived_sums::table.filter(archived_sums::month.eq(month.to_string()));
            diesel::delete(of_month).execute(conn)?;
            Ok::<_, StoreError>(())
        })
        .await?;
        for sums in sums.chunks(SUMS_AT_ONCE) {
            let (sums, now) = (sums.to_vec(), self.0.context.clock.now());
            self.write_outside_calls(move |conn| {
                lease::extend(conn, node_id, now)?;
                each_database!(conn, conn => {
                    diesel::insert_into(archived_sums::table).values(sums).execute(conn)
                })?;
                Ok::<_, StoreError>(())
            })
            .await?;
        }
        let now = self.0.context.clock.now();
        let row = ArchivedMonthRow {
            month: month.to_string(),
            manifest: digest,
            sealed_at: now.unix_micros(),
            deleted_at: None,
            transactions_deleted_at: None,
        };
        let sealed = sealed_month(&row, &manifest);
        self.write_outside_calls(move |conn| {
            lease::extend(conn, node_id, now)?;
            diesel::insert_into(archived_months::table).values(&row).execute(conn)?;
            Ok::<_, StoreError>(())
        })
        .await?;
        Ok(sealed)
    }

    /// Deletes the records and refusals of a month that is marked.
    async fn delete_records(&self, node_id: NodeId, ids: MonthIds) -> Result<(), StoreError> {
        if !self.0.has_one_writer {
            let clock = self.0.context.clock.clone();
            let drop = move |conn: &mut Conn| deleting::drop_records(conn, node_id, ids, &clock);
            self.read(drop).await?;
        }
        let [of_entries, of_records, of_refusals] = [(); 3].map(|()| deletion_size(MOST_ROWS));
        for merchant_id in self.read(merchants::ids).await? {
            let mut after = None;
            loop {
                let read =
                    move |conn: &mut Conn| deleting::next_records(conn, merchant_id, ids, after);
                let LeavingRecords { ids: records, entries, last } = self.read(read).await?;
                // Entries first. A process that dies leaves none without its record.
                self.delete_all(node_id, &of_entries, entries, |conn, some| {
                    Ok(dialect::fold::delete_index_rows(conn, some)?)
                })
                .await?;
                self.delete_all(node_id, &of_records, records, move |conn, some| {
                    Ok(deleting::delete_records(conn, merchant_id, some)?)
                })
                .await?;
                after = last;
                if after.is_none() {
                    break;
                }
            }
            let mut is_more = true;
            while is_more {
                let rows = of_refusals.rows();
                let delete =
                    move |conn: &mut Conn| deleting::delete_refusals(conn, merchant_id, ids, rows);
                is_more = self.delete_some(node_id, &of_refusals, delete).await? > 0;
            }
        }
        self.end_deletion(node_id, move |conn, now| {
            diesel::update(archived_months::table.find(ids.month.to_string()))
                .set(archived_months::deleted_at.eq(now))
                .execute(conn)
        })
        .await
    }

    /// Deletes rows, some at a time.
    async fn delete_all<T: Send + 'static>(
        &self,
        node_id: NodeId,
        size: &BatchSize,
        rows: Vec<T>,
        delete: impl Fn(&mut Conn, &[T]) -> Result<(), StoreError> + Copy + Send + 'static,
    ) -> Result<(), StoreError> {
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let some = Vec::from_iter(rows.by_ref().take(size.rows()));
            let delete = move |conn: &mut Conn| {
                delete(conn, &some)?;
                Ok(some.len())
            };
            self.delete_some(node_id, size, delete).await?;
        }
        Ok(())
    }

    /// Deletes a few rows or pages in a transaction of its own, and pauses. Returns their number.
    async fn delete_some(
        &self,
        node_id: NodeId,
        size: &BatchSize,
        delete: impl FnOnce(&mut Conn) -> Result<usize, StoreError> + Send + 'static,
    ) -> Result<usize, StoreError> {
        let (begun, now) = (Instant::now(), self.0.context.clock.now());
        let (rows, took) = self
            .write_repeatable(move |conn| {
                lease::extend(conn, node_id, now)?;
                let begun = Instant::now();
                let rows = delete(conn)?;
                Ok::<_, StoreError>((rows, begun.elapsed()))
            })
            .await?;
        size.adapt(rows, took);
        tokio::time::sleep(pause_after(begun.elapsed())).await;
        Ok(rows)
    }

    /// Notes the time of a deletion, and gives the pages of the rows back to the file system.
    async fn end_deletion(
        &self,
        node_id: NodeId,
        note: impl FnOnce(&mut Conn, i64) -> QueryResult<usize> + Send + 'static,
    ) -> Result<(), StoreError> {
        let now = self.0.context.clock.now();
        self.write_outside_calls(move |conn| {
            lease::extend(conn, node_id, now)?;
            note(conn, now.unix_micros())?;
            Ok::<_, StoreError>(())
        })
        .await?;
        let size = deletion_size(MOST_PAGES);
        let mut is_more = true;
        while is_more {
            let pages = size.rows();
            let give_back = move |conn: &mut Conn| {
                Ok(if dialect::give_back_pages(conn, pages)? { pages } else { 0 })
            };
            is_more = self.delete_some(node_id, &size, give_back).await? > 0;
        }
        Ok(())
    }

    /// Deletes the ledger lines of a month whose records were deleted, unless an older program must find them.
    async fn delete_lines(&self, node_id: NodeId, ids: MonthIds) -> Result<(), StoreError> {
        if !self.read(transactions::may_leave).await? {
            return Ok(());
        }
        let archive = self.archive();
        let are_written =
            self.read(move |conn| transactions::are_written(conn, &archive, ids)).await?;
        // Those of a month that an older version sealed stay.
        if are_written && !self.replace_lines(node_id, ids).await? {
            // The next process tries again.
            return Ok(());
        }
        self.end_deletion(node_id, move |conn, now| {
            diesel::update(archived_months::table.find(ids.month.to_string()))
                .set(archived_months::transactions_deleted_at.eq(now))
                .execute(conn)
        })
        .await
    }

    /// Puts sums in the place of the ledger lines of a month. Returns whether all of it is done.
    async fn replace_lines(&self, node_id: NodeId, ids: MonthIds) -> Result<bool, StoreError> {
        if !self.0.has_one_writer {
            let clock = self.0.context.clock.clone();
            let replace =
                move |conn: &mut Conn| line_partition::replace(conn, node_id, ids, &clock);
            match self.read(replace).await? {
                LinePartition::Replaced => return Ok(true),
                LinePartition::Busy => return Ok(false),
                LinePartition::Missing => {}
            }
        }
        let (size, mut after) = (deletion_size(MOST_ROWS), transactions::before_all());
        loop {
            let next = move |conn: &mut Conn| transactions::lines_after(conn, ids, after);
            let lines = self.read(next).await?;
            let Some((last, _)) = lines.last() else { return Ok(true) };
            after = (last.wallet_id, last.number);
            let leaving = lines.into_iter().filter(|(_, leaves)| *leaves);
            let leaving = leaving.map(|(line, _)| line).collect();
            self.delete_all(node_id, &size, leaving, move |conn, some| {
                transactions::replace(conn, ids, some)
            })
            .await?;
        }
    }

    /// The months that are in the archive, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`] when the database or the archive fails.
    pub async fn archived_months(&self) -> Result<Vec<SealedMonth>, StoreError> {
        self.read_records(|conn, archive| {
            let months = archived::months(conn)?.into_iter().rev();
            let may_leave = transactions::may_leave(conn)?;
            let sealed = months.map(|row| {
                let manifest = archive.files()?.manifest(&row.month, &row.manifest)?;
                let leaving = is_leaving(&row, may_leave);
                Ok(SealedMonth { leaving, ..sealed_month(&row, &manifest) })
            });
            sealed.collect()
        })
        .await
    }

    /// Reads a month of the archive and compares it with its manifest, and the manifest with the previous one.
    ///
    /// # Errors
    /// [`StoreError`] with the name of the file that differs.
    pub async fn verify_archive(&self, month: &str) -> Result<(), StoreError> {
        let (archive, month) = (self.archive(), month.to_owned());
        self.read(move |conn| {
            let mut previous = None;
            for row in archived::months(conn)?.into_iter().rev() {
                if row.month == month {
                    let files = archive.files()?;
                    let manifest = files.manifest(&row.month, &row.manifest)?;
                    files.verify_chain(&manifest, previous.as_deref())?;
                    files.verify::<ArchivedRow>(&manifest, || {})?;
                    files.verify::<RefusalRow>(&manifest, || {})?;
                    if transactions::are_in(&manifest) {
                        files.verify::<TransactionRow>(&manifest, || {})?;
                    }
                    return Ok(());
                }
                previous = Some(row.manifest);
            }
            Err(StoreError::missing("archived month", &month))
        })
        .await
    }
}

/// Whether rows of a month in the archive are being deleted from the database.
pub(crate) fn is_deleting(
    conn: &mut Conn,
    months: &[ArchivedMonthRow],
) -> Result<bool, StoreError> {
    let may_leave = transactions::may_leave(conn)?;
    Ok(months.iter().any(|month| is_leaving(month, may_leave)))
}

/// Whether a month is being archived: it is closed and not marked yet, or its records are being deleted.
pub(crate) fn is_archiving(conn: &mut Conn) -> Result<bool, StoreError> {
    let marked_until = archived::until(conn)?.map(|until| until.at);
    let is_closed = lease::closed_until(conn)? > marked_until;
    Ok(is_closed || archived::months(conn)?.iter().any(|month| month.deleted_at.is_none()))
}

/// Whether rows of a month are being deleted. Ledger lines are, if they `may_leave`.
const fn is_leaving(month: &ArchivedMonthRow, may_leave: bool) -> bool {
    month.deleted_at.is_none() || may_leave && month.transactions_deleted_at.is_none()
}

/// The number of rows or pages that are deleted in one transaction.
const fn deletion_size(most: usize) -> BatchSize {
    BatchSize::new(50, 10, most)
}

fn sealed_month(row: &ArchivedMonthRow, manifest: &Manifest) -> SealedMonth {
    SealedMonth {
        month: row.month.clone(),
        manifest: row.manifest.clone(),
        sealed_at: Timestamp::from_unix_micros(row.sealed_at),
        leaving: row.deleted_at.is_none(),
        files: manifest.files.clone(),
    }
}

/// The month of the oldest record or refusal after the months that are in the archive.
fn oldest_month(conn: &mut Conn) -> Result<Option<Month>, StoreError> {
    let from = archived::until(conn)?.map_or(Timestamp::from_unix_micros(0), |until| until.at);
    let mut oldest: Option<Month> = None;
    for merchant_id in merchants::ids(conn)? {
        let record: Option<Id<RequestId>> = requests::table
            .filter(requests::merchant_id.eq(Id(merchant_id)))
            .filter(requests::request_id.ge(Id(RequestId::least(from))))
            .order(requests::request_id)
            .select(requests::request_id)
            .first(conn)
            .optional()?;
        let refusal: Option<Id<RefusalId>> = refusals::table
            .filter(refusals::merchant_id.eq(Id(merchant_id)))
            .filter(refusals::refusal_id.ge(Id(RefusalId::least(from))))
            .order(refusals::refusal_id)
            .select(refusals::refusal_id)
            .first(conn)
            .optional()?;
        let record = record.map(|id| archived::month_of(id.get()));
        let refusal = refusal.map(|id| archived::month_of(id.get()));
        oldest = [oldest, record, refusal].into_iter().flatten().min();
    }
    Ok(oldest)
}

/// Closes a month if all of its calls have ended and are in the roll-ups. Returns whether it did.
fn close(
    conn: &mut Conn,
    node_id: NodeId,
    month: Month,
    now: Timestamp,
) -> Result<bool, StoreError> {
    lease::extend(conn, node_id, now)?;
    let until = ArchivedUntil::end_of(month);
    let open: i64 =
        open_calls::table.filter(open_calls::request_id.lt(until.id)).count().get_result(conn)?;
    let waits = |call: &rollups::QueuedCall| Id(call.request_id) < until.id;
    if open > 0 || rollups::queued(conn)?.iter().any(waits) {
        return Ok(false);
    }
    lease::close(conn, until.at)?;
    Ok(true)
}
