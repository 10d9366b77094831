//! Reads of request records.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use diesel::prelude::*;
use tollgate_archive::Condition;
use tollgate_domain::{
    FeeModel, MerchantId, MeterVersion, PendingRecord, RequestId, RequestRecord, RequestStatus,
    Timestamp,
};

mod filter;
mod ids;

pub(crate) use filter::CLOCK_DIFFERENCE_MS;
pub use filter::{ListFilter, RequestFilter};
use ids::{IndexCondition, NthRequestQuery, RequestIdsQuery};

use crate::archived::{self, ArchiveWalk, ArchivedUntil, RecordArchive};
use crate::conn::{Conn, each_database};
use crate::dialect::RowLock;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rollups::{
    CONNECTION, FAILURE, IN_BUDGET, METER, MODEL, PROVIDER, QueuedCall, RUN, SOCKET, SPEND_KEY,
    WOULD_REFUSE,
};
use crate::rows::{OpenCallRow, RequestRow};
use crate::schema::{open_calls, reported_usage};
use crate::{dialect, jobs, meters, records, rollups};

/// A page of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestList {
    /// The records, newest first.
    pub records: Vec<RequestRecord>,
    /// The id after which the list continues; `None` at its end. A page that has to pass over many records may have
    /// fewer than its limit, or none.
    pub next: Option<RequestId>,
}

/// The number of records that a page passes over at most.
const PASSED_OVER: usize = 10_000;
/// The number of records of the archive that count as one that is passed over. Of them, only the columns of a filter are
/// decoded.
const ARCHIVED_AS_ONE: usize = 5;
/// The most records that a page reads at once to find those that pass.
const MOST_AT_ONCE: u32 = 1_000;

/// Returns a merchant's record.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    request_id: RequestId,
) -> Result<Option<RequestRecord>, StoreError> {
    // The open calls first: a call that is settled between the two reads is then found among the records.
    let open = open_calls::table
        .find(Id(request_id))
        .filter(open_calls::merchant_id.eq(Id(merchant_id)))
        .filter(open_calls::is_ahead.eq(false))
        .select(OpenCallRow::as_select())
        .first(conn)
        .optional()?;
    if let Some(row) = open {
        return Ok(open_records(conn, &[PendingRecord::try_from(&row)?])?.pop());
    }
    find_settled(conn, archive, merchant_id, request_id)
}

/// Returns a merchant's record of a settled call.
fn find_settled(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    request_id: RequestId,
) -> Result<Option<RequestRecord>, StoreError> {
    let mut rows = dialect::requests(conn, merchant_id, &[Id(request_id)], RowLock::No)?;
    if rows.is_empty() {
        rows.extend(archived::find(conn, archive, merchant_id, request_id)?);
    }
    Ok(to_records(conn, rows)?.pop())
}

/// Returns a merchant's record of reported usage with this reference id.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find_by_reference(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    reference_id: &str,
) -> Result<Option<RequestRecord>, StoreError> {
    match id_of_reference(conn, merchant_id, reference_id)? {
        Some(request_id) => find_settled(conn, archive, merchant_id, request_id),
        None => Ok(None),
    }
}

/// Returns the id of a merchant's record of reported usage with this reference id.
pub(crate) fn id_of_reference(
    conn: &mut Conn,
    merchant_id: MerchantId,
    reference_id: &str,
) -> Result<Option<RequestId>, StoreError> {
    let request_id: Option<Id<RequestId>> = reported_usage::table
        .find((Id(merchant_id), reference_id))
        .select(reported_usage::request_id)
        .first(conn)
        .optional()?;
    Ok(request_id.map(Id::get))
}

/// Returns a merchant's records, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filter: &ListFilter,
    page: &Page<RequestId>,
) -> Result<RequestList, StoreError> {
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let bound = filter.end.map(|end| RequestId::least(end.plus_millis(CLOCK_DIFFERENCE_MS)));
    let after = [page.after, bound].into_iter().flatten().min();
    let mut walk = Page { after, limit: page.limit };
    let (mut list, mut passed) = (RequestList::default(), 0);
    loop {
        let found = next_records(conn, archive, merchant_id, filter, &walk, passed)?;
        passed = found.passed;
        for record in found.records {
            if list.records.len() == limit {
                list.next = list.records.last().map(|record| record.request_id);
                return Ok(list);
            }
            if filter.passes(&record) {
                list.records.push(record);
            }
        }
        if found.last.is_none() || passed >= PASSED_OVER {
            list.next = found.last;
            return Ok(list);
        }
        walk.after = found.last;
        walk.limit = walk.limit.saturating_mul(4).min(MOST_AT_ONCE).max(page.limit);
    }
}

/// The next records of a list.
#[derive(Default)]
struct NextRecords {
    /// The newest first.
    records: Vec<RequestRecord>,
    /// The id down to which all records were looked at. `None` at the end of the list.
    last: Option<RequestId>,
    /// The number of records that the list has passed over, with these.
    passed: usize,
}

/// Returns the next records that the index or the archive has, up to one more than the limit. Those of the index meet all
/// conditions that it has, and those of the archive meet all. `passed` is the number of records that the list has passed
/// over.
fn next_records(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filter: &ListFilter,
    page: &Page<RequestId>,
    passed: usize,
) -> Result<NextRecords, StoreError> {
    let rows = usize::try_from(page.rows()).unwrap_or(usize::MAX);
    // A call moves from the open calls to the records and the queue, and from the queue to the index. Reads in this
    // order see each call at least once.
    let open = match filter.status {
        None | Some(RequestStatus::Pending) => open_calls(conn, merchant_id, &filter.calls, page)?,
        Some(RequestStatus::Completed | RequestStatus::Error) => Vec::new(),
    };
    let open = open_records(conn, &open)?;
    let mut records: BTreeMap<_, _> =
        open.into_iter().map(|record| (record.request_id, record)).collect();
    let (mut until, mut last) = (None, None);
    if filter.status != Some(RequestStatus::Pending) {
        until = archived::until(conn)?;
        let settled = next_settled(conn, merchant_id, filter, page, until)?;
        records.extend(settled.records.into_iter().map(|record| (record.request_id, record)));
        last = settled.last;
    }
    let here: Vec<_> = records.into_values().rev().take(rows).collect();
    last = last.max(here.last().filter(|_| here.len() == rows).map(|record| record.request_id));
    let here = NextRecords { last, passed: passed.saturating_add(here.len()), records: here };
    match until {
        Some(until) if last.is_none_or(|last| Id(last) < until.id) => {
            let archived = next_archived(conn, archive, merchant_id, filter, page, here.passed)?;
            Ok(here.merge(archived))
        }
        _ => Ok(here),
    }
}

impl NextRecords {
    /// The records of both, as far down as both were looked at.
    fn merge(mut self, other: Self) -> Self {
        let last = self.last.max(other.last);
        self.records.extend(other.records);
        self.records.retain(|record| last.is_none_or(|last| record.request_id >= last));
        self.records.sort_unstable_by_key(|record| Reverse(record.request_id));
        Self { records: self.records, last, passed: other.passed }
    }
}

/// The settled records that the index and the queue find.
struct SettledRecords {
    records: Vec<RequestRecord>,
    /// The id down to which the index was read. There are more below. `None` at its end.
    last: Option<RequestId>,
}

/// Returns the next settled records that the index and the queue find, without those that are about to be deleted: the
/// archive has them.
fn next_settled(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &ListFilter,
    page: &Page<RequestId>,
    until: Option<ArchivedUntil>,
) -> Result<SettledRecords, StoreError> {
    let conditions = conditions(filter);
    let (mut ids, corrected) = match conditions.is_empty() {
        true => (Vec::new(), 0),
        false => queued(conn, merchant_id, filter, page)?,
    };
    // Room for the records of the index that turn out not to have failed, or to have another model.
    let more = Page { limit: page.limit.saturating_add(corrected), ..*page };
    ids.extend(self::ids(conn, merchant_id, conditions, &more, filter.oldest())?);
    ids.sort_unstable();
    ids.dedup();
    let most = usize::try_from(more.rows()).unwrap_or(usize::MAX);
    let skipped = ids.len().saturating_sub(most);
    let ids = ids.get(skipped..).unwrap_or_default();
    let last = ids.first().filter(|_| ids.len() == most).map(|id| id.get());
    let mut rows = dialect::requests(conn, merchant_id, ids, RowLock::No)?;
    rows.retain(|row| until.is_none_or(|until| !until.is_leaving(row)));
    let mut records = to_records(conn, rows)?;
    // The index may not contain the correction of a record yet.
    records.retain(|record| filter.has_wanted_outcome(record));
    Ok(SettledRecords { records, last })
}

/// Returns the next records of the archive that pass the filter, up to one more than the limit. `passed` is the number of
/// records that the list has passed over.
fn next_archived(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filter: &ListFilter,
    page: &Page<RequestId>,
    passed: usize,
) -> Result<NextRecords, StoreError> {
    let most = usize::try_from(page.rows()).unwrap_or(usize::MAX);
    let walk = ArchiveWalk {
        merchant_id,
        below: page.after.map(Id),
        oldest: filter.oldest(),
        conditions: filter.archive_conditions(),
        at_once: most,
        unread: Vec::new(),
    };
    let mut found = NextRecords { passed, ..NextRecords::default() };
    let mut is_full = false;
    walk.requests(conn, archive, |conn, part| {
        found.passed = found.passed.saturating_add(part.passed.div_ceil(ARCHIVED_AS_ONE));
        let what = "request_id";
        let last = part.last.unwrap_or_default();
        found.last = Some(last.parse().map_err(|_| StoreError::Corrupt { what, value: last })?);
        found.records.extend(to_records(conn, part.rows)?);
        is_full = found.records.len() >= most || found.passed >= PASSED_OVER;
        Ok(!is_full)
    })?;
    if !is_full {
        found.last = None;
    }
    Ok(found)
}

/// Returns the ids of settled calls that are not in the index yet. Also returns the number of calls in the index that
/// may have been corrected.
fn queued(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &ListFilter,
    page: &Page<RequestId>,
) -> Result<(Vec<Id<RequestId>>, u32), StoreError> {
    let mut calls = rollups::queued(conn)?;
    let corrected = calls.iter().filter(|call| call.is_taken_back()).count();
    calls.retain(|call| {
        call.passes(merchant_id, &filter.calls)
            && filter.status.is_none_or(|status| call.status() == status)
            && (!filter.would_refuse || call.budgets.would_refuse)
            && (filter.run_id.is_none() || call.run_id == filter.run_id)
            && (filter.socket_id.is_none() || call.socket_id == filter.socket_id)
            && page.after.is_none_or(|after| call.request_id < after)
    });
    let ids = calls.iter().map(|call| Id(call.request_id)).collect();
    Ok((ids, u32::try_from(corrected).unwrap_or(u32::MAX)))
}

/// Returns a merchant's calls in flight, newest first. Each holds money until it is settled.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn in_flight(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Vec<PendingRecord>, StoreError> {
    let newest = Page { after: None, limit: u32::MAX };
    open_calls(conn, merchant_id, &RequestFilter::default(), &newest)
}

/// Returns a merchant's open calls that have begun, newest first. It reads the whole table, which is small.
fn open_calls(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    page: &Page<RequestId>,
) -> Result<Vec<PendingRecord>, StoreError> {
    let mut query = open_calls::table
        .filter(open_calls::merchant_id.eq(Id(merchant_id)))
        .filter(open_calls::is_ahead.eq(false))
        .order(open_calls::request_id.desc())
        .select(OpenCallRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(open_calls::request_id.lt(Id(after)));
    }
    if let Some(id) = filter.connection_id {
        query = query.filter(open_calls::connection_id.eq(Id(id)));
    }
    if let Some(id) = filter.spend_key_id {
        query = query.filter(open_calls::spend_key_id.eq(Id(id)));
    }
    if let Some(id) = filter.meter_id {
        query = query.filter(open_calls::meter_id.eq(Id(id)));
    }
    let RequestFilter { budget_id, provider, model, metadata, .. } = filter;
    if metadata.is_empty() && budget_id.is_none() && provider.is_none() && model.is_none() {
        query = query.limit(page.rows());
    }
    let rows: Vec<OpenCallRow> = query.load(conn)?;
    let mut calls = Vec::new();
    for row in &rows {
        let call = PendingRecord::try_from(row)?;
        let forwarded = &call.forwarded;
        if provider.as_ref().is_none_or(|name| forwarded.provider == *name)
            && (model.is_none() || forwarded.model == *model)
            && budget_id.is_none_or(|id| call.budgets.ids.contains(&id))
            && filter.lets_through(&forwarded.metadata)
        {
            calls.push(call);
        }
    }
    Ok(calls)
}

/// The conditions of a filter, ordered by the likely number of records that meet them, fewest first.
fn conditions(filter: &ListFilter) -> Vec<IndexCondition> {
    let calls = &filter.calls;
    let has_failed = filter.status == Some(RequestStatus::Error);
    let failure = has_failed.then(|| (FAILURE.0, FAILURE.1.to_owned()));
    let connection = calls.connection_id.map(|id| (CONNECTION, id.to_string()));
    let spend_key = calls.spend_key_id.map(|id| (SPEND_KEY, id.to_string()));
    let budget = calls.budget_id.map(|id| (IN_BUDGET, id.to_string()));
    let would_refuse = filter.would_refuse.then(|| (WOULD_REFUSE.0, WOULD_REFUSE.1.to_owned()));
    let run = filter.run_id.as_ref().map(|id| (RUN, id.to_string()));
    let socket = filter.socket_id.map(|id| (SOCKET, id.to_string()));
    let pairs = calls.metadata.iter().map(|(key, value)| (key.as_str(), value.clone()));
    let model = calls.model.clone().map(|name| (MODEL, name));
    let meter = calls.meter_id.map(|id| (METER, id.to_string()));
    let provider = calls.provider.clone().map(|name| (PROVIDER, name));
    let first = socket.into_iter().chain(run).chain(failure).chain(would_refuse);
    let first = first.chain(connection).chain(spend_key);
    let conditions = first.chain(budget).chain(pairs).chain(model).chain(meter).chain(provider);
    conditions.map(|(key, value)| IndexCondition { key: key.to_owned(), value }).collect()
}

/// The numbers of records of one condition that are walked through before another is tried.
const PATIENCE: [i64; 3] = [200, 2_000, 20_000];

/// The most records that are read for a sum rather than many rows of roll-ups.
const FEW: i64 = 500;
/// The number of records of the database that are read at once for a sum.
const RECORDS_AT_ONCE: i64 = 1_000;

/// The settled calls of the archive that a sum adds up.
pub(crate) struct ArchivedCalls<'a> {
    pub(crate) merchant_id: MerchantId,
    pub(crate) filter: &'a RequestFilter,
    /// The span in which they were made.
    pub(crate) span: &'a Range<Timestamp>,
    /// The times of the span at which they were made, which ascend.
    pub(crate) times: &'a [Range<Timestamp>],
    /// The columns that are not read. The calls do not have their values.
    pub(crate) unread: Vec<&'static str>,
}

impl ArchivedCalls<'_> {
    /// Calls `each` with every call. Call it in a snapshot.
    pub(crate) fn each(
        self,
        conn: &mut Conn,
        archive: &RecordArchive,
        mut each: impl FnMut(&QueuedCall),
    ) -> Result<(), StoreError> {
        let Self { merchant_id, filter, span, times, unread } = self;
        if times.is_empty() {
            return Ok(());
        }
        let [from, past] = ids_around(span);
        let micros = |time: &Range<Timestamp>| time.start.unix_micros()..time.end.unix_micros();
        let times = Condition::integers("created_at", times.iter().map(micros).collect());
        let walk = ArchiveWalk {
            merchant_id,
            below: Some(past),
            oldest: Some(from),
            conditions: [times].into_iter().chain(filter.archive_conditions()).collect(),
            at_once: usize::MAX,
            unread,
        };
        walk.calls(conn, archive, |row| {
            let call = QueuedCall::of_record(row)?;
            // The columns have what the API shows, and sums are of what is indexed.
            if call.passes(merchant_id, filter) {
                each(&call);
            }
            Ok(())
        })
    }
}

/// Calls `each` with every settled call of a span that passes the filter and is not in the archive, and with some of a day
/// before and after it. Call it in a snapshot.
pub(crate) fn each_settled(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: &Range<Timestamp>,
    mut each: impl FnMut(&QueuedCall),
) -> Result<(), StoreError> {
    let [from, past] = ids_around(span);
    let until = archived::until(conn)?;
    let mut read = |conn: &mut Conn, ids: &[Id<RequestId>]| {
        let mut rows = dialect::requests(conn, merchant_id, ids, RowLock::No)?;
        // Rows that are about to be deleted are read from the archive.
        rows.retain(|row| until.is_none_or(|until| !until.is_leaving(row)));
        records::correct(conn, &mut rows)?;
        for row in rows {
            each(&QueuedCall::of_record(&row)?);
        }
        Ok::<_, StoreError>(())
    };
    let queued = rollups::queued(conn)?.into_iter();
    let queued = queued.filter(|call| call.passes(merchant_id, filter));
    let queued: BTreeSet<_> = queued.map(|call| Id(call.request_id)).collect();
    let in_span: Vec<_> = queued.range(from..past).copied().collect();
    read(conn, &in_span)?;
    let conditions = conditions(&ListFilter::from(filter.clone()));
    let conditions = rarest_first(conn, merchant_id, conditions, from..past)?;
    let mut after = Some(past);
    loop {
        let walk = RequestIdsQuery {
            merchant_id: Id(merchant_id),
            conditions: &conditions,
            after,
            until: Some(from),
            limit: RECORDS_AT_ONCE,
        };
        let mut ids: Vec<Id<RequestId>> = each_database!(conn, conn => walk.load(conn))?;
        let is_last = i64::try_from(ids.len()).is_ok_and(|count| count < RECORDS_AT_ONCE);
        after = ids.last().copied();
        // A call in the queue may be the correction of a record of the index.
        ids.retain(|id| !queued.contains(id));
        ids.sort_unstable();
        read(conn, &ids)?;
        if is_last {
            return Ok(());
        }
    }
}

/// The ids between which the records of a span are.
///
/// An id begins with the time at which its call was made. It is ahead of the record when a clock was set back within an
/// hour, and behind it when the last call of the spend key was later by the clock of another node.
fn ids_around(span: &Range<Timestamp>) -> [Id<RequestId>; 2] {
    let from = span.start.plus_millis(-CLOCK_DIFFERENCE_MS);
    let past = span.end.plus_millis(CLOCK_DIFFERENCE_MS);
    [from, past].map(|at| Id(RequestId::least(at)))
}

/// Whether few records of a span have a pair of the filter. The archive is not asked: those that are there count as many.
pub(crate) fn are_few(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: Range<Timestamp>,
) -> Result<bool, StoreError> {
    let [first, past] = [span.start, span.end].map(|at| Id(RequestId::least(at)));
    if archived::until(conn)?.is_some_and(|until| first < until.id) {
        return Ok(false);
    }
    for condition in &conditions(&ListFilter::from(filter.clone())) {
        let merchant_id = Id(merchant_id);
        let nth = NthRequestQuery { merchant_id, condition, after: Some(past), skip: FEW };
        let nth: Option<Id<RequestId>> =
            each_database!(conn, conn => nth.get_result(conn).optional())?;
        if nth.is_none_or(|nth| nth < first) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Moves the condition that the fewest records of a span meet to the front, unless all are met by many.
fn rarest_first(
    conn: &mut Conn,
    merchant_id: MerchantId,
    mut conditions: Vec<IndexCondition>,
    span: Range<Id<RequestId>>,
) -> Result<Vec<IndexCondition>, StoreError> {
    for skip in PATIENCE.into_iter().chain([200_000, 2_000_000]) {
        for number in 0..conditions.len() {
            let Some(condition) = conditions.get(number) else { break };
            let nth = NthRequestQuery {
                merchant_id: Id(merchant_id),
                condition,
                after: Some(span.end),
                skip,
            };
            let nth: Option<Id<RequestId>> =
                each_database!(conn, conn => nth.get_result(conn).optional())?;
            if nth.is_none_or(|nth| nth < span.start) {
                conditions.swap(0, number);
                return Ok(conditions);
            }
        }
    }
    Ok(conditions)
}

/// Returns the ids of a page, from `oldest` on. The condition that the fewest records meet is not known. So each
/// condition is tried with a limit, and then with higher limits. This takes at most a few times as long as the best
/// condition alone.
fn ids(
    conn: &mut Conn,
    merchant_id: MerchantId,
    mut conditions: Vec<IndexCondition>,
    page: &Page<RequestId>,
    oldest: Option<Id<RequestId>>,
) -> Result<Vec<Id<RequestId>>, StoreError> {
    let (merchant_id, after) = (Id(merchant_id), page.after.map(Id));
    let limit = page.rows();
    let patience = if conditions.len() < 2 { &[][..] } else { &PATIENCE[..] };
    for &skip in patience {
        for _ in 0..conditions.len() {
            let Some(condition) = conditions.first() else { break };
            let nth = NthRequestQuery { merchant_id, condition, after, skip };
            let nth: Option<Id<RequestId>> =
                each_database!(conn, conn => nth.get_result(conn).optional())?;
            let nth = nth.filter(|nth| oldest.is_none_or(|oldest| *nth > oldest));
            let until = nth.or(oldest);
            let walk =
                RequestIdsQuery { merchant_id, conditions: &conditions, after, until, limit };
            let found: Vec<Id<RequestId>> = each_database!(conn, conn => walk.load(conn))?;
            let is_full = i64::try_from(found.len()).is_ok_and(|count| count >= limit);
            if is_full || nth.is_none() {
                return Ok(found);
            }
            conditions.rotate_left(1);
        }
    }
    let walk =
        RequestIdsQuery { merchant_id, conditions: &conditions, after, until: oldest, limit };
    Ok(each_database!(conn, conn => walk.load(conn))?)
}

/// Returns the query plans for each condition of a filter, step by step, to explain why a list takes long.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn plans(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &ListFilter,
    page: &Page<RequestId>,
) -> Result<Vec<Vec<String>>, StoreError> {
    let (merchant_id, after) = (Id(merchant_id), page.after.map(Id));
    let mut conditions = conditions(filter);
    let mut plans = Vec::new();
    for _ in 0..conditions.len().max(1) {
        let (until, limit) = (None, page.rows());
        let walk = RequestIdsQuery { merchant_id, conditions: &conditions, after, until, limit };
        plans.push(dialect::plan(conn, walk)?);
        if let Some(condition) = conditions.first() {
            plans.push(dialect::plan(
                conn,
                NthRequestQuery { merchant_id, condition, after, skip: 1 },
            )?);
            conditions.rotate_left(1);
        }
    }
    Ok(plans)
}

/// Converts settled calls to records, in the order of their rows.
pub(crate) fn to_records(
    conn: &mut Conn,
    mut rows: Vec<RequestRow>,
) -> Result<Vec<RequestRecord>, StoreError> {
    records::correct(conn, &mut rows)?;
    let calls = rows.iter().map(|row| row.meter());
    let models = models(conn, calls)?;
    let records = rows.iter().map(|row| {
        let model = row.meter().and_then(|meter| models.get(&meter));
        row.to_record(model)
    });
    records.collect()
}

/// Converts open calls to records.
fn open_records(
    conn: &mut Conn,
    calls: &[PendingRecord],
) -> Result<Vec<RequestRecord>, StoreError> {
    let models = models(conn, calls.iter().map(|call| call.meter))?;
    let ids: Vec<_> = calls.iter().map(|call| Id(call.request_id)).collect();
    let jobs = jobs::of_calls(conn, &ids)?;
    let records = calls.iter().map(|call| {
        let model = call.meter.and_then(|meter| models.get(&meter));
        let mut record = tollgate_domain::settlement::in_flight(call, model);
        record.job_id = jobs.get(&call.request_id).copied();
        record
    });
    Ok(records.collect())
}

/// Returns the models of these meter versions.
fn models(
    conn: &mut Conn,
    meters: impl IntoIterator<Item = Option<MeterVersion>>,
) -> Result<HashMap<MeterVersion, FeeModel>, StoreError> {
    let mut models = HashMap::new();
    for meter in meters.into_iter().flatten() {
        if let Entry::Vacant(unknown) = models.entry(meter) {
            let MeterVersion { meter_id, version } = meter;
            unknown.insert(meters::model_of(conn, meter_id, version)?.model);
        }
    }
    Ok(models)
}
