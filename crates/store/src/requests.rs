//! Reads of request records.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use diesel::prelude::*;
use tollgate_domain::{
    ConnectionId, FeeModel, MerchantId, Metadata, MeterId, MeterVersion, PendingRecord, RequestId,
    RequestRecord, RequestStatus, Timestamp,
};

mod ids;

use ids::{IndexCondition, NthRequestQuery, RequestIdsQuery};

use crate::conn::{Conn, each_database};
use crate::dialect::RowLock;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rollups::{CONNECTION, FAILURE, METER, QueuedCall};
use crate::rows::{OpenCallRow, RequestRow};
use crate::schema::{open_calls, reported_usage};
use crate::{dialect, meters, records, rollups};

/// A filter for records. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFilter {
    /// Only this customer's records.
    pub connection_id: Option<ConnectionId>,
    /// Only records that this meter priced.
    pub meter_id: Option<MeterId>,
    /// Only records with each of these pairs in their metadata.
    pub metadata: Vec<(String, String)>,
}

/// A filter for the end of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndingFilter {
    /// Any end, or none yet.
    #[default]
    Anyhow,
    /// Only failed calls.
    Failed,
}

/// Returns a merchant's record.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    request_id: RequestId,
) -> Result<Option<RequestRecord>, StoreError> {
    // The open calls first: a call that is settled between the two reads is then found among the records.
    let open = open_calls::table
        .find(Id(request_id))
        .filter(open_calls::merchant_id.eq(Id(merchant_id)))
        .select(OpenCallRow::as_select())
        .first(conn)
        .optional()?;
    if let Some(row) = open {
        return Ok(open_records(conn, &[PendingRecord::try_from(&row)?])?.pop());
    }
    let rows = dialect::requests(conn, merchant_id, &[Id(request_id)], RowLock::No)?;
    Ok(to_records(conn, rows)?.pop())
}

/// Returns a merchant's record of reported usage with this reference id.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find_by_reference(
    conn: &mut Conn,
    merchant_id: MerchantId,
    reference_id: &str,
) -> Result<Option<RequestRecord>, StoreError> {
    let request_id: Option<Id<RequestId>> = reported_usage::table
        .find((Id(merchant_id), reference_id))
        .select(reported_usage::request_id)
        .first(conn)
        .optional()?;
    let rows = dialect::requests(conn, merchant_id, request_id.as_slice(), RowLock::No)?;
    Ok(to_records(conn, rows)?.pop())
}

/// Returns a merchant's records, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    ended: EndingFilter,
    page: &Page<RequestId>,
) -> Result<Vec<RequestRecord>, StoreError> {
    let rows = usize::try_from(page.rows()).unwrap_or(usize::MAX);
    // A call moves from the open calls to the records and the queue, and from the queue to the index. Reads in this
    // order see each call at least once.
    let open = match ended {
        EndingFilter::Anyhow => open_calls(conn, merchant_id, filter, page)?,
        EndingFilter::Failed => Vec::new(),
    };
    let open = open_records(conn, &open)?;
    let conditions = conditions(filter, ended);
    let (mut ids, corrected) = match conditions.is_empty() {
        true => (Vec::new(), 0),
        false => queued(conn, merchant_id, filter, ended, page)?,
    };
    // Room for the records of the index that turn out not to have failed.
    let more = Page { limit: page.limit.saturating_add(corrected), ..*page };
    ids.extend(self::ids(conn, merchant_id, conditions, &more)?);
    ids.sort_unstable();
    ids.dedup();
    let most = usize::try_from(more.rows()).unwrap_or(usize::MAX);
    let skipped = ids.len().saturating_sub(most);
    let ids = ids.get(skipped..).unwrap_or_default();
    let settled = dialect::requests(conn, merchant_id, ids, RowLock::No)?;
    let settled = to_records(conn, settled)?.into_iter();
    // The index may not contain the correction of a record yet.
    let settled =
        settled.filter(|one| ended == EndingFilter::Anyhow || one.status == RequestStatus::Error);
    let mut records: BTreeMap<_, _> =
        open.into_iter().map(|record| (record.request_id, record)).collect();
    records.extend(settled.map(|record| (record.request_id, record)));
    Ok(records.into_values().rev().take(rows).collect())
}

/// Returns the ids of settled calls that are not in the index yet. Also returns the number of calls in the index that
/// may have been corrected.
fn queued(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    ended: EndingFilter,
    page: &Page<RequestId>,
) -> Result<(Vec<Id<RequestId>>, u32), StoreError> {
    let mut calls = rollups::queued(conn)?;
    let corrected = calls.iter().filter(|call| call.is_taken_back()).count();
    calls.retain(|call| {
        call.passes(merchant_id, filter)
            && (ended == EndingFilter::Anyhow || call.has_failed())
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

/// Returns a merchant's open calls, newest first. It reads the whole table, which is small.
fn open_calls(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    page: &Page<RequestId>,
) -> Result<Vec<PendingRecord>, StoreError> {
    let mut query = open_calls::table
        .filter(open_calls::merchant_id.eq(Id(merchant_id)))
        .order(open_calls::request_id.desc())
        .select(OpenCallRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(open_calls::request_id.lt(Id(after)));
    }
    if let Some(id) = filter.connection_id {
        query = query.filter(open_calls::connection_id.eq(Id(id)));
    }
    if let Some(id) = filter.meter_id {
        query = query.filter(open_calls::meter_id.eq(Id(id)));
    }
    if filter.metadata.is_empty() {
        query = query.limit(page.rows());
    }
    let rows: Vec<OpenCallRow> = query.load(conn)?;
    let mut calls = Vec::new();
    for row in &rows {
        let call = PendingRecord::try_from(row)?;
        if filter.lets_through(&call.forwarded.metadata) {
            calls.push(call);
        }
    }
    Ok(calls)
}

impl RequestFilter {
    /// Whether the metadata contains all pairs of the filter.
    fn lets_through(&self, metadata: &Metadata) -> bool {
        let has = |(key, value): &(String, String)| metadata.get(key) == Some(value);
        self.metadata.iter().all(has)
    }
}

impl QueuedCall {
    /// Whether the call belongs to this merchant and passes its filter.
    pub(crate) fn passes(&self, merchant_id: MerchantId, filter: &RequestFilter) -> bool {
        self.merchant_id == merchant_id
            && filter.connection_id.is_none_or(|id| self.connection_id == Some(id))
            && filter.meter_id.is_none_or(|id| self.meter_id == Some(id))
            && filter.lets_through(&self.metadata)
    }
}

/// The conditions of a filter, ordered by the likely number of records that meet them, fewest first.
fn conditions(filter: &RequestFilter, ended: EndingFilter) -> Vec<IndexCondition> {
    let failure = (ended == EndingFilter::Failed).then(|| (FAILURE.0, FAILURE.1.to_owned()));
    let connection = filter.connection_id.map(|id| (CONNECTION, id.to_string()));
    let pairs = filter.metadata.iter().map(|(key, value)| (key.as_str(), value.clone()));
    let meter = filter.meter_id.map(|id| (METER, id.to_string()));
    let conditions = failure.into_iter().chain(connection).chain(pairs).chain(meter);
    conditions.map(|(key, value)| IndexCondition { key: key.to_owned(), value }).collect()
}

/// The numbers of records of one condition that are walked through before another is tried.
const PATIENCE: [i64; 3] = [200, 2_000, 20_000];

/// The number of records that are read at once for a sum.
const RECORDS_AT_ONCE: i64 = 1_000;
/// The most by which an id and the time of its record are expected to differ: a day.
const CLOCK_DIFFERENCE_MS: i64 = 24 * 60 * 60 * 1_000;

/// Calls `each` with every settled record of a span that passes the filter, and with some of a day before and after it.
/// Call it in a snapshot.
pub(crate) fn for_each_settled(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: Range<Timestamp>,
    mut each: impl FnMut(RequestRow) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    // An id begins with the time at which its call was made. It is ahead of the record when a clock was set back within
    // an hour, and behind it when the last call of the spend key was later by the clock of another node.
    let from = span.start.plus_millis(-CLOCK_DIFFERENCE_MS);
    let past = span.end.plus_millis(CLOCK_DIFFERENCE_MS);
    let [from, past] = [from, past].map(|at| Id(RequestId::least(at)));
    let mut read = |conn: &mut Conn, ids: &[Id<RequestId>]| {
        let mut rows = dialect::requests(conn, merchant_id, ids, RowLock::No)?;
        records::correct(conn, &mut rows)?;
        rows.into_iter().try_for_each(&mut each)
    };
    let queued = rollups::queued(conn)?.into_iter();
    let queued = queued.filter(|call| call.passes(merchant_id, filter));
    let queued: BTreeSet<_> = queued.map(|call| Id(call.request_id)).collect();
    let in_span: Vec<_> = queued.range(from..past).copied().collect();
    read(conn, &in_span)?;
    let conditions =
        rarest_first(conn, merchant_id, conditions(filter, EndingFilter::Anyhow), from..past)?;
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

/// Returns the ids of a page. The condition that the fewest records meet is not known. So each condition is tried with
/// a limit, and then with higher limits. This takes at most a few times as long as the best condition alone.
fn ids(
    conn: &mut Conn,
    merchant_id: MerchantId,
    mut conditions: Vec<IndexCondition>,
    page: &Page<RequestId>,
) -> Result<Vec<Id<RequestId>>, StoreError> {
    let (merchant_id, after) = (Id(merchant_id), page.after.map(Id));
    let limit = page.rows();
    let patience = if conditions.len() < 2 { &[][..] } else { &PATIENCE[..] };
    for &skip in patience {
        for _ in 0..conditions.len() {
            let Some(condition) = conditions.first() else { break };
            let nth = NthRequestQuery { merchant_id, condition, after, skip };
            let until: Option<Id<RequestId>> =
                each_database!(conn, conn => nth.get_result(conn).optional())?;
            let walk =
                RequestIdsQuery { merchant_id, conditions: &conditions, after, until, limit };
            let found: Vec<Id<RequestId>> = each_database!(conn, conn => walk.load(conn))?;
            let is_full = i64::try_from(found.len()).is_ok_and(|count| count >= limit);
            if is_full || until.is_none() {
                return Ok(found);
            }
            conditions.rotate_left(1);
        }
    }
    let walk = RequestIdsQuery { merchant_id, conditions: &conditions, after, until: None, limit };
    Ok(each_database!(conn, conn => walk.load(conn))?)
}

/// Returns the query plans for each condition of a filter, step by step, to explain why a list takes long.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn plans(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    ended: EndingFilter,
    page: &Page<RequestId>,
) -> Result<Vec<Vec<String>>, StoreError> {
    let (merchant_id, after) = (Id(merchant_id), page.after.map(Id));
    let mut conditions = conditions(filter, ended);
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
    let records = calls.iter().map(|call| {
        let model = call.meter.and_then(|meter| models.get(&meter));
        tollgate_domain::settlement::in_flight(call, model)
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
