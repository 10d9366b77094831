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
use crate::rows::{RequestRow, time};
use crate::schema::{refusals, requests};
use crate::{archived, dialect, partitions};

/// The number of rows that are deleted in one transaction, so that it takes a few milliseconds. On SQLite calls wait for it.
#[derive(Debug)]
pub(super) struct DeletionPace {
    most: i64,
}

impl DeletionPace {
    const LEAST: i64 = 5;
    const MOST: i64 = 2_000;
    const LONGEST: Duration = Duration::from_millis(10);

    /// The pace for the first transaction.
    pub(super) const fn new() -> Self {
        Self { most: 50 }
    }

    /// The number of rows for the next transaction.
    pub(super) const fn most(&self) -> i64 {
        self.most
    }

    /// Adapts the number to the time of the last transaction. Returns the pause after it.
    pub(super) fn adapt(&mut self, took: Duration) -> Duration {
        if took > Self::LONGEST {
            self.most = (self.most / 2).max(Self::LEAST);
        } else if took < Self::LONGEST / 2 {
            self.most = (self.most + self.most / 4 + 1).min(Self::MOST);
        }
        took * 2
    }
}

/// The place of the deletion among a merchant's rows of a month.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeletionPlace {
    /// At the records after this id, or at the first one.
    Requests(Option<Id<RequestId>>),
    /// At the refusals.
    Refusals,
}

/// Deletes some rows of a merchant, with their entries in the index. Returns the next place, or `None` at the end.
pub(super) fn some(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: MonthIds,
    place: DeletionPlace,
    most: i64,
) -> Result<Option<DeletionPlace>, StoreError> {
    match place {
        DeletionPlace::Requests(after) => Ok(Some(
            some_requests(conn, merchant_id, ids, after, most)?
                .map_or(DeletionPlace::Refusals, |last| DeletionPlace::Requests(Some(last))),
        )),
        DeletionPlace::Refusals => {
            Ok(some_refusals(conn, merchant_id, ids, most)?.then_some(DeletionPlace::Refusals))
        }
    }
}

/// Deletes some records after an id. Returns the last id that was looked at, or `None` at the end.
fn some_requests(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: MonthIds,
    after: Option<Id<RequestId>>,
    most: i64,
) -> Result<Option<Id<RequestId>>, StoreError> {
    let rows = ids.records_after(conn, merchant_id, after, most)?;
    let last = rows.last().map(|row| row.request_id);
    let leaving: Vec<_> = rows.into_iter().filter(|row| !archived::stays(row)).collect();
    for row in &leaving {
        let call = QueuedCall::settled(&row.settled_call(None)?, time(row.created_at));
        let [entries, _] = call.index_rows();
        dialect::delete_index_rows(conn, &entries)?;
    }
    let leaving: Vec<_> = leaving.into_iter().map(|row| row.request_id).collect();
    let of_merchant = requests::table.filter(requests::merchant_id.eq(Id(merchant_id)));
    diesel::delete(of_merchant.filter(requests::request_id.eq_any(leaving))).execute(conn)?;
    Ok(last)
}

/// Deletes some refusals. Returns whether there were any.
fn some_refusals(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: MonthIds,
    most: i64,
) -> Result<bool, StoreError> {
    let range = ids.refusals();
    let some: Vec<Id<RefusalId>> = refusals::table
        .filter(refusals::merchant_id.eq(Id(merchant_id)))
        .filter(refusals::refusal_id.ge(range.start))
        .filter(refusals::refusal_id.lt(range.end))
        .order(refusals::refusal_id)
        .limit(most)
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
