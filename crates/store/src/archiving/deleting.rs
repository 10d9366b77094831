//! The deletion of the rows of a month that is in the archive.

use std::time::Duration;

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Binary, Bool};
use tollgate_domain::{Clock, Id as _, MerchantId, NodeId, RefusalId, RequestId};

use super::lease;
use super::month::{MonthIds, RecordKey};
use super::pace::ReadPace;
use crate::archived::{self, RecordTimes};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::partitions::{self, Partition, PartitionedTable};
use crate::records;
use crate::rollups::QueuedCall;
use crate::rows::{RequestIndexRow, RequestRow};
use crate::schema::{refusals, requests};

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
            let entries = entries_of(row)?;
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

/// Deletes some refusals of a merchant. Returns their number.
pub(super) fn delete_refusals(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: MonthIds,
    most: usize,
) -> Result<usize, StoreError> {
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
    Ok(deleted.execute(conn)?)
}

/// Drops the partitions of the records of a month on PostgreSQL, except for the records that stay. If they are in use, or if
/// the records are in the default partition, they are deleted one by one.
pub(super) fn drop_records(
    conn: &mut Conn,
    node_id: NodeId,
    ids: MonthIds,
    clock: &Clock,
) -> Result<(), StoreError> {
    // Records of a closed month do not change. Their entries in the index do.
    let staying = staying(conn, node_id, ids, clock)?;
    let replaced =
        until_unread(conn, node_id, clock, |conn| replace_partitions(conn, ids, &staying));
    if let Err(cause) = replaced {
        log::warn!("records of {} are deleted one by one: {cause}", ids.month);
    }
    Ok(())
}

/// Replaces partitions in a transaction, and tries again until no report reads them, ten times at most.
///
/// # Errors
/// The error of the last attempt, or the first one that is no lock timeout.
pub(super) fn until_unread(
    conn: &mut Conn,
    node_id: NodeId,
    clock: &Clock,
    replace: impl Fn(&mut Conn) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    const ATTEMPTS: u32 = 10;
    const PAUSE: Duration = Duration::from_secs(1);
    let mut attempt = || {
        conn.write_short_wait(|conn| {
            lease::extend(conn, node_id, clock.now())?;
            replace(conn)
        })
    };
    // Calls wait for the report in an attempt, so the pauses grow.
    for attempts in 1..ATTEMPTS {
        match attempt() {
            Err(cause) if cause.is_lock_timeout() => std::thread::sleep(PAUSE * attempts),
            ended => return ended,
        }
    }
    attempt()
}

/// Puts the records that stay, and their entries, in the place of the partitions of a month.
fn replace_partitions(
    conn: &mut Conn,
    ids: MonthIds,
    staying: &[RecordKey],
) -> Result<(), StoreError> {
    let records = locked_partition(conn, partitions::REQUESTS, ids)?;
    let entries = locked_partition(conn, partitions::REQUEST_INDEX, ids)?;
    for keys in staying.chunks(STAYING_AT_ONCE) {
        let index = entries_of_keys(conn, ids, keys)?;
        let Conn::Postgres(conn) = conn else { return Ok(()) };
        if let Some(records) = &records {
            records.copy_to_rest(conn, "merchant_id, request_id", &keys)?;
        }
        if let Some(entries) = &entries {
            entries.copy_to_rest(conn, "merchant_id, key, value, request_id", &index)?;
        }
    }
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    for partition in [records, entries].into_iter().flatten() {
        partition.replace_by_rest(conn)?;
    }
    Ok(())
}

/// The partition of a month, if there is one, with an empty table for the rows that stay. Nothing is written to it meanwhile.
fn locked_partition(
    conn: &mut Conn,
    table: PartitionedTable,
    ids: MonthIds,
) -> Result<Option<Partition>, StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(None) };
    let partition = Partition::find(conn, table, ids.from.date())?;
    if let Some(partition) = &partition {
        partition.make_rest(conn)?;
        partition.lock(conn)?;
    }
    Ok(partition)
}

/// The number of staying records that are copied at once.
const STAYING_AT_ONCE: usize = 1_000;

/// The records of a month that stay in the database.
fn staying(
    conn: &mut Conn,
    node_id: NodeId,
    ids: MonthIds,
    clock: &Clock,
) -> Result<Vec<RecordKey>, StoreError> {
    const AT_ONCE: i64 = 5_000;
    let range = ids.requests();
    // No merchant has this id.
    let before_all = Id(MerchantId::from_bytes([0; 16]));
    let mut last = RecordKey { merchant_id: before_all, request_id: range.start };
    let (mut staying, mut pace) = (Vec::new(), ReadPace::new());
    loop {
        pace.pause();
        conn.write_bounded(|conn| lease::extend(conn, node_id, clock.now()))?;
        let is_after = sql::<Bool>("(merchant_id, request_id) > (")
            .bind::<Binary, _>(last.merchant_id)
            .sql(", ")
            .bind::<Binary, _>(last.request_id)
            .sql(")");
        let records: Vec<(RecordKey, RecordTimes)> = requests::table
            .filter(requests::request_id.ge(range.start))
            .filter(requests::request_id.lt(range.end))
            .filter(is_after)
            .order((requests::merchant_id, requests::request_id))
            .limit(AT_ONCE)
            .select((RecordKey::as_select(), RecordTimes::as_select()))
            .load(conn)?;
        let Some((key, _)) = records.last() else { return Ok(staying) };
        last = *key;
        staying.extend(records.iter().filter(|(_, times)| times.stays()).map(|(key, _)| *key));
    }
}

/// The entries of records in the index, and perhaps others that are not there: a correction, which changes them, may still be
/// queued.
fn entries_of_keys(
    conn: &mut Conn,
    ids: MonthIds,
    keys: &[RecordKey],
) -> Result<Vec<RequestIndexRow>, StoreError> {
    let rows: Vec<RequestRow> = ids.records(keys).select(RequestRow::as_select()).load(conn)?;
    let mut corrected = rows.clone();
    records::correct(conn, &mut corrected)?;
    let mut entries = Vec::new();
    for row in rows.iter().chain(&corrected) {
        entries.extend(entries_of(row)?);
    }
    entries.sort_unstable();
    entries.dedup();
    Ok(entries)
}

/// The entries of a record in the index.
fn entries_of(row: &RequestRow) -> Result<Vec<RequestIndexRow>, StoreError> {
    let [entries, _] = QueuedCall::of_record(row)?.index_rows();
    Ok(entries)
}
