//! The deletion of the rows of a month that is in the archive.

use std::time::Duration;

use diesel::prelude::*;
use tollgate_domain::{MerchantId, NodeId, RefusalId, RequestId, Timestamp};

use super::lease;
use super::month::MonthIds;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rollups::QueuedCall;
use crate::rows::{RequestIndexRow, RequestRow, time};
use crate::schema::{refusals, requests};
use crate::{archived, partitions};

/// The number of rows or pages that are deleted in one transaction, so that the deletion takes two milliseconds, and the pause
/// after it. On SQLite calls wait for it.
#[derive(Debug)]
pub(super) struct DeletionPace {
    most: usize,
}

impl DeletionPace {
    const LEAST: usize = 10;
    const MOST: usize = 2_000;
    const LONGEST: Duration = Duration::from_millis(2);
    /// The pause after a deletion, in the time that it took with its wait and its commit.
    const PAUSE_RATIO: u32 = 4;
    /// The lease lasts longer.
    const LONGEST_PAUSE: Duration = Duration::from_secs(2);

    /// The pace for the first transaction.
    pub(super) const fn new() -> Self {
        Self { most: 50 }
    }

    /// The number of rows for the next transaction.
    pub(super) const fn most(&self) -> usize {
        self.most
    }

    /// Adapts the number to the time that the last deletion took. Returns the pause after it, from the time that it took with
    /// its wait and its commit.
    pub(super) fn adapt(&mut self, took: Duration, in_all: Duration) -> Duration {
        if took > Self::LONGEST {
            self.most = (self.most / 2).max(Self::LEAST);
        } else if took < Self::LONGEST / 2 {
            self.most = (self.most + self.most / 4 + 1).min(Self::MOST);
        }
        (in_all * Self::PAUSE_RATIO).min(Self::LONGEST_PAUSE)
    }
}

/// Some records of a merchant that leave.
#[derive(Debug, Default)]
pub(super) struct LeavingRecords {
    pub(super) ids: Vec<Id<RequestId>>,
    /// Their entries in the index, in its order: neighbours are in the same pages.
    pub(super) entries: Vec<RequestIndexRow>,
    /// The last id that was looked at. `None` at the end of the month.
    pub(super) last: Option<Id<RequestId>>,
}

/// Returns the next records of a merchant after an id that leave.
pub(super) fn next_records(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: MonthIds,
    after: Option<Id<RequestId>>,
) -> Result<LeavingRecords, StoreError> {
    /// The more, the more entries are neighbours.
    const MOST: usize = 20_000;
    /// The entries are in memory.
    const MOST_BYTES: usize = 32 * 1024 * 1024;
    const CHUNK: i64 = 500;
    let mut leaving = LeavingRecords { last: after, ..LeavingRecords::default() };
    let mut bytes = 0;
    while leaving.ids.len() < MOST && bytes < MOST_BYTES {
        let rows = ids.records_after(conn, merchant_id, leaving.last, CHUNK)?;
        leaving.last = rows.last().map(|row| row.request_id);
        for row in rows.iter().filter(|row| !archived::stays(row)) {
            let call = QueuedCall::settled(&row.settled_call(None)?, time(row.created_at));
            let [entries, _] = call.index_rows();
            let size = |row: &RequestIndexRow| size_of_val(row) + row.key.len() + row.value.len();
            bytes += entries.iter().map(size).sum::<usize>();
            leaving.entries.extend(entries);
            leaving.ids.push(row.request_id);
        }
        if leaving.last.is_none() {
            break;
        }
    }
    leaving.entries.sort_unstable();
    Ok(leaving)
}

/// Deletes records of a merchant.
pub(super) fn delete_records(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: &[Id<RequestId>],
) -> QueryResult<()> {
    let of_merchant = requests::table.filter(requests::merchant_id.eq(Id(merchant_id)));
    diesel::delete(of_merchant.filter(requests::request_id.eq_any(ids))).execute(conn).map(drop)
}

/// Deletes some refusals of a merchant. Returns whether there were any.
pub(super) fn delete_refusals(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: MonthIds,
    most: usize,
) -> Result<bool, StoreError> {
    let range = ids.refusals();
    let some: Vec<Id<RefusalId>> = refusals::table
        .filter(refusals::merchant_id.eq(Id(merchant_id)))
        .filter(refusals::refusal_id.ge(range.start))
        .filter(refusals::refusal_id.lt(range.end))
        .order(refusals::refusal_id)
        .limit(i64::try_from(most).unwrap_or(i64::MAX))
        .select(refusals::refusal_id)
        .load(conn)?;
    let of_merchant = refusals::table.filter(refusals::merchant_id.eq(Id(merchant_id)));
    let deleted = diesel::delete(of_merchant.filter(refusals::refusal_id.eq_any(some)));
    Ok(deleted.execute(conn)? > 0)
}

/// Drops the partitions of the records of a month on PostgreSQL, except for the records that stay. Returns whether it did:
/// otherwise they are deleted one by one.
pub(super) fn drop_records(
    conn: &mut Conn,
    node_id: NodeId,
    ids: MonthIds,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let staying = staying(conn, ids)?;
    drop_partitions(conn, node_id, ids, now, |conn| {
        partitions::drop_records(conn, ids.from.date(), &staying)
    })
}

/// Makes the partition of the ledger lines of a month on PostgreSQL small, when its lines were deleted. Returns whether it did.
pub(super) fn shrink_lines(
    conn: &mut Conn,
    node_id: NodeId,
    ids: MonthIds,
    now: Timestamp,
) -> Result<bool, StoreError> {
    drop_partitions(conn, node_id, ids, now, |conn| {
        partitions::drop_transactions(conn, ids.from.date())
    })
}

/// Waits shortly for long reports. If they do not end, the partitions stay. Returns whether they are dropped.
fn drop_partitions(
    conn: &mut Conn,
    node_id: NodeId,
    ids: MonthIds,
    now: Timestamp,
    drop: impl Fn(&mut Conn) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    const ATTEMPTS: u32 = 10;
    const PAUSE: Duration = Duration::from_secs(1);
    for attempt in 1..=ATTEMPTS {
        let dropped = conn.write_short_wait(|conn| {
            lease::extend(conn, node_id, now)?;
            drop(conn)
        });
        match dropped {
            Err(cause) if cause.is_lock_timeout() && attempt < ATTEMPTS => {
                std::thread::sleep(PAUSE);
            }
            Err(cause) => {
                let month = ids.month;
                log::warn!("partitions of {month} are not dropped: {cause}");
                return Ok(false);
            }
            Ok(()) => return Ok(true),
        }
    }
    Ok(false)
}

/// The ids of the records of a month that stay in the database.
fn staying(conn: &mut Conn, ids: MonthIds) -> Result<Vec<Id<RequestId>>, StoreError> {
    const CHUNK: i64 = 1_000;
    let range = ids.requests();
    let (mut staying, mut after) = (Vec::new(), None);
    loop {
        let is_possible = requests::swept
            .eq(true)
            .or(requests::created_at.ge(ids.to.unix_micros()))
            // Of these, `archived::stays` chooses.
            .or(diesel::dsl::sql::<diesel::sql_types::Bool>(
                "settled_at / 900000000 <> created_at / 900000000",
            ));
        let mut query = requests::table
            .filter(requests::request_id.ge(range.start))
            .filter(requests::request_id.lt(range.end))
            .filter(is_possible)
            .order(requests::request_id)
            .limit(CHUNK)
            .select(RequestRow::as_select())
            .into_boxed();
        if let Some(after) = after {
            query = query.filter(requests::request_id.gt(after));
        }
        let rows: Vec<RequestRow> = query.load(conn)?;
        let Some(last) = rows.last() else { return Ok(staying) };
        after = Some(last.request_id);
        staying.extend(rows.iter().filter(|row| archived::stays(row)).map(|row| row.request_id));
    }
}
