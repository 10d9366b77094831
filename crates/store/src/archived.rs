//! Reads of records that are in the archive.
//!
//! A month leaves the database as a whole, and older months before it. From the moment at which it is marked, its records
//! are read from the archive, except for the few that [stay](RecordTimes::stays): also those whose rows are not deleted yet.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use diesel::prelude::*;
use tollgate_archive::{Archive, ArchiveError, Condition, Manifest, Part, Selection, Table};
use tollgate_domain::{
    ConnectionId, Id as DomainId, MerchantId, Month, RefusalId, RequestId, TimeZone, Timestamp,
};

mod columns;
pub(crate) mod transactions;

use columns::ArchivedCall;
pub(crate) use columns::{ArchivedRefusal, ArchivedRequest, ArchivedRow};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{ArchivedMonthRow, RequestRow, time};
use crate::schema::{archived_months, requests};

/// The archive of a store's records, for reads. Clones share it.
///
/// [`Store::read_records`](crate::Store::read_records) hands it out together with a snapshot. A record is in one of the
/// two: reads of two states of the database would miss a record that moves meanwhile, or find it twice.
#[derive(Clone, Debug, Default)]
pub struct RecordArchive(Access);

#[derive(Clone, Debug, Default)]
enum Access {
    /// No archive is configured. A read that needs one fails.
    #[default]
    Missing,
    /// Reads end where the database ends.
    LeftOut,
    Open(Arc<SharedArchive>),
}

#[derive(Debug)]
struct SharedArchive {
    archive: Archive,
    turns: Turns,
}

/// The reads of the archive at once. Each has a connection of the readers, also while it waits, so their number is bounded:
/// an archive that is slow leaves connections for everything else.
#[derive(Debug)]
struct Turns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug)]
struct TurnState {
    free: u32,
    waiting: u32,
}

const NOT_CONFIGURED: &str =
    "records of this database are in an archive, and `archive_url` is not set";
/// The most reads of the archive at once.
const AT_ONCE: u32 = 2;
/// The most reads that wait for a turn. There are eight connections for readers.
const MOST_WAITING: u32 = 3;
/// The longest wait for a turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);

/// A turn to read the archive.
struct Turn<'a>(&'a Turns);

impl Turns {
    fn take(&self) -> Result<Turn<'_>, StoreError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.free == 0 && state.waiting < MOST_WAITING {
            state.waiting += 1;
            let is_taken = |state: &mut TurnState| state.free == 0;
            let waited = self.changed.wait_timeout_while(state, TURN_TIMEOUT, is_taken);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        let busy = || StoreError::Busy("others read the archive".to_owned());
        state.free = state.free.checked_sub(1).ok_or_else(busy)?;
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free += 1;
        drop(state);
        self.0.changed.notify_one();
    }
}

impl From<ArchiveError> for StoreError {
    fn from(cause: ArchiveError) -> Self {
        Self::Archive(cause.to_string())
    }
}

impl RecordArchive {
    /// The records of an archive.
    pub(crate) fn new(archive: Archive) -> Self {
        let state = Mutex::new(TurnState { free: AT_ONCE, waiting: 0 });
        let turns = Turns { state, changed: Condvar::new() };
        Self(Access::Open(Arc::new(SharedArchive { archive, turns })))
    }

    /// An archive that is left out: a list ends where the database ends. For the newest few records.
    pub const fn left_out() -> Self {
        Self(Access::LeftOut)
    }

    /// Whether an archive is configured.
    pub(crate) const fn is_configured(&self) -> bool {
        matches!(self.0, Access::Open(_))
    }

    /// The archive.
    ///
    /// # Errors
    /// [`StoreError::Archive`] if none is configured.
    pub(crate) fn files(&self) -> Result<&Archive, StoreError> {
        let missing = || StoreError::Archive(NOT_CONFIGURED.to_owned());
        self.shared()?.map(|shared| &shared.archive).ok_or_else(missing)
    }

    /// The archive, unless it is left out.
    fn shared(&self) -> Result<Option<&SharedArchive>, StoreError> {
        match &self.0 {
            Access::Missing => Err(StoreError::Archive(NOT_CONFIGURED.to_owned())),
            Access::LeftOut => Ok(None),
            Access::Open(shared) => Ok(Some(shared)),
        }
    }
}

/// The end of the months that are in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArchivedUntil {
    /// The first instant of the next month.
    pub(crate) at: Timestamp,
    /// The least id of that instant.
    pub(crate) id: Id<RequestId>,
    /// The least id of the last month, while its rows are being deleted.
    leaving: Option<Id<RequestId>>,
}

impl ArchivedUntil {
    /// The end of a month of UTC.
    pub(crate) fn end_of(month: Month) -> Self {
        let at = month.range(&TimeZone::UTC).end;
        Self { at, id: Id(RequestId::least(at)), leaving: None }
    }

    /// The ids of the calls of the month whose rows are being deleted.
    pub(crate) fn leaving_requests(&self) -> Option<Range<Id<RequestId>>> {
        self.leaving.map(|first| first..self.id)
    }

    /// The ids of the refusals of the month whose rows are being deleted.
    pub(crate) fn leaving_refusals(&self) -> Option<Range<Id<RefusalId>>> {
        let of = |id: Id<RequestId>| Id(RefusalId::from_bytes(*id.get().as_bytes()));
        self.leaving_requests().map(|ids| of(ids.start)..of(ids.end))
    }

    /// Whether the row of a record is about to be deleted, and the record is read from the archive. The row must be as it
    /// was settled first, without a correction.
    pub(crate) fn is_leaving(&self, row: &RequestRow) -> bool {
        let is_of_month = |ids: Range<_>| ids.contains(&row.request_id);
        self.leaving_requests().is_some_and(is_of_month) && !stays(row)
    }
}

/// The month of UTC in which an id was made.
pub(crate) fn month_of(id: impl DomainId) -> Month {
    // All ids begin with their time.
    Month::of(RequestId::from_bytes(*id.as_bytes()).created_at(), &TimeZone::UTC)
}

/// The columns that decide whether a record stays in the database when its month leaves, as it was settled first.
#[derive(Clone, Copy, Debug, Queryable, Selectable)]
#[diesel(table_name = requests)]
pub(crate) struct RecordTimes {
    pub(crate) request_id: Id<RequestId>,
    connection_id: Option<Id<ConnectionId>>,
    created_at: i64,
    settled_at: Option<i64>,
    swept: bool,
}

impl RecordTimes {
    /// Whether the record stays.
    ///
    /// One that the sweeper ended stays, because its settlement may still come. One that was made after its month, by the
    /// clock of another node, stays with the sums of that time. And one stays that was settled in another month than it was
    /// made, by the clocks of any zone, because statements of that month name it. There are few.
    pub(crate) fn stays(&self) -> bool {
        const HOUR: i64 = 60 * 60 * 1_000;
        let end = ArchivedUntil::end_of(month_of(self.request_id.get())).at;
        if self.swept || self.created_at >= end.unix_micros() {
            return true;
        }
        let Some(settled_at) = self.settled_at.map(time) else { return false };
        // The last zone begins a month 12 hours after UTC, and the first one 14 hours before.
        let begun_last = time(self.created_at).plus_millis(-12 * HOUR);
        let next_month = Month::of(begun_last, &TimeZone::UTC).range(&TimeZone::UTC).end;
        self.connection_id.is_some()
            && settled_at >= next_month.plus_millis(-14 * HOUR)
            && is_settled_later(self.created_at, settled_at.unix_micros())
    }
}

/// Whether a [record stays](RecordTimes::stays). Its row must be as it was settled first.
pub(crate) fn stays(row: &RequestRow) -> bool {
    let RequestRow { request_id, connection_id, created_at, settled_at, swept, .. } = *row;
    RecordTimes { request_id, connection_id, created_at, settled_at, swept }.stays()
}

/// Whether a call was settled in a later quarter hour than it was made. Months begin with one in every zone.
fn is_settled_later(created_at: i64, settled_at: i64) -> bool {
    quarter_hour(settled_at) != quarter_hour(created_at)
}

/// The number of the quarter hour of an instant.
pub(crate) const fn quarter_hour(micros: i64) -> i64 {
    const QUARTER_HOUR: i64 = 15 * 60 * 1_000_000;
    micros.div_euclid(QUARTER_HOUR)
}

/// The months that are in the archive, the last one first.
pub(crate) fn months(conn: &mut Conn) -> Result<Vec<ArchivedMonthRow>, StoreError> {
    Ok(archived_months::table
        .order(archived_months::month.desc())
        .select(ArchivedMonthRow::as_select())
        .load(conn)?)
}

/// The end of the months that are in the archive. `None` if there are none.
pub(crate) fn until(conn: &mut Conn) -> Result<Option<ArchivedUntil>, StoreError> {
    let last: Option<ArchivedMonthRow> = archived_months::table
        .order(archived_months::month.desc())
        .select(ArchivedMonthRow::as_select())
        .first(conn)
        .optional()?;
    let Some(last) = last else { return Ok(None) };
    let month = parse(&last.month)?;
    let first = Id(RequestId::least(month.range(&TimeZone::UTC).start));
    let leaving = last.deleted_at.is_none().then_some(first);
    Ok(Some(ArchivedUntil { leaving, ..ArchivedUntil::end_of(month) }))
}

/// Parses the month of a row.
pub(crate) fn parse(month: &str) -> Result<Month, StoreError> {
    month
        .parse()
        .map_err(|_| StoreError::Corrupt { what: "archived_months.month", value: month.to_owned() })
}

/// Returns a merchant's record that is in the archive.
pub(crate) fn find(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    request_id: RequestId,
) -> Result<Option<RequestRow>, StoreError> {
    let found = find_row::<ArchivedRow, _>(conn, archive, merchant_id, request_id)?;
    Ok(found.filter(|found| !found.stays).map(|found| found.row))
}

/// Returns a merchant's row of a table that is in the archive.
pub(crate) fn find_row<T: Table, I: DomainId + ToString + Copy>(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    id: I,
) -> Result<Option<T>, StoreError> {
    let month: Option<ArchivedMonthRow> = archived_months::table
        .find(month_of(id).to_string())
        .select(ArchivedMonthRow::as_select())
        .first(conn)
        .optional()?;
    let Some(month) = month else { return Ok(None) };
    let Some(SharedArchive { archive, turns }) = archive.shared()? else { return Ok(None) };
    let _turn = turns.take()?;
    let manifest = archive.manifest(&month.month, &month.manifest)?;
    Ok(archive.find(manifest, &merchant_id.to_string(), &id.to_string())?)
}

/// A walk through a merchant's rows of a table that are in the archive, the newest first.
pub(crate) struct ArchiveWalk<'a, I> {
    pub(crate) merchant_id: MerchantId,
    /// The end of the ids, which is excluded.
    pub(crate) below: Option<Id<I>>,
    /// The least id.
    pub(crate) oldest: Option<Id<I>>,
    /// The conditions on columns that all rows meet.
    pub(crate) conditions: Vec<Condition<'a>>,
    /// The most rows of a part.
    pub(crate) at_once: usize,
    /// The columns that are not read.
    pub(crate) unread: Vec<&'static str>,
}

impl ArchiveWalk<'_, RequestId> {
    /// Calls `each` with the records that are not in the database too, in parts, until it returns false.
    pub(crate) fn requests(
        self,
        conn: &mut Conn,
        archive: &RecordArchive,
        mut each: impl FnMut(&mut Conn, Part<RequestRow>) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        self.rows(conn, archive, |conn, Part { rows, passed, last }| {
            let rows = rows.into_iter().filter(|one: &ArchivedRow| !one.stays);
            each(conn, Part { rows: rows.map(|one| one.row).collect(), passed, last })
        })
    }

    /// Calls `each` with the records that are not in the database too, with [what sums need](ArchivedCall) of them.
    pub(crate) fn calls(
        self,
        conn: &mut Conn,
        archive: &RecordArchive,
        mut each: impl FnMut(&RequestRow) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let merchant_id = Id(self.merchant_id);
        self.rows(conn, archive, |_, Part { rows, .. }| {
            let rows = rows.into_iter().filter(|one: &ArchivedCall| !one.stays);
            let mut rows = rows.map(|one| RequestRow { merchant_id, ..one.row });
            rows.try_for_each(|row| each(&row)).map(|()| true)
        })
    }
}

impl<I: DomainId + ToString + Copy> ArchiveWalk<'_, I> {
    /// Calls `each` with the rows, in parts, until it returns false.
    pub(crate) fn rows<T: Table>(
        self,
        conn: &mut Conn,
        archive: &RecordArchive,
        mut each: impl FnMut(&mut Conn, Part<T>) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let Self { merchant_id, below, oldest, conditions, at_once, unread } = self;
        let mut months = months(conn)?;
        let first = oldest.map(|oldest| month_of(oldest.get()).to_string());
        let last = below.map(|below| month_of(below.get()).to_string());
        months.retain(|month| first.as_ref().is_none_or(|first| *first <= month.month));
        months.retain(|month| last.as_ref().is_none_or(|last| month.month <= *last));
        if months.is_empty() {
            return Ok(());
        }
        let Some(SharedArchive { archive, turns }) = archive.shared()? else { return Ok(()) };
        let _turn = turns.take()?;
        let [from, below] = [oldest, below].map(|id| id.map(|id| id.get().to_string()));
        let merchant = merchant_id.to_string();
        let selection = Selection { merchant, from, below, conditions, unread };
        for month in months {
            let manifest = archive.manifest(&month.month, &month.manifest)?;
            let mut walk = archive.descending::<T>(manifest, &selection);
            while let Some(part) = walk.next_part(at_once)? {
                if !each(conn, part)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Calls `each` with all records of the archive that are not in the database too, in parts.
pub(crate) fn each_part(
    conn: &mut Conn,
    archive: &RecordArchive,
    most: usize,
    mut each: impl FnMut(&mut Conn, Vec<RequestRow>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for month in months(conn)?.into_iter().rev() {
        let files = archive.files()?;
        let manifest: Arc<Manifest> = files.manifest(&month.month, &month.manifest)?;
        let mut rows = files.ascending::<ArchivedRow>(manifest, None);
        let mut part = Vec::new();
        while let Some(ArchivedRow { row, stays }) = rows.next_row()? {
            if !stays {
                part.push(row);
            }
            if part.len() >= most {
                each(conn, std::mem::take(&mut part))?;
            }
        }
        each(conn, part)?;
    }
    Ok(())
}
