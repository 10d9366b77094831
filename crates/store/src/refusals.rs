//! Refused calls: why a call did not go out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::BigInt;
use tollgate_archive::{Condition, Part};
use tollgate_domain::admission::CallKey;
use tollgate_domain::{
    ConnectionId, Id as _, MerchantId, MeterId, RefusalId, RefusalRecord, RunId, SpendKeyId,
    TimeSpan, Timestamp,
};

use crate::archived::{self, ArchiveWalk, RecordArchive};
use crate::conn::{Conn, each_database};
use crate::dialect::{self, RefusalCountsQuery};
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::page::Page;
use crate::refusal_queue::RefusalBatch;
use crate::requests::CLOCK_DIFFERENCE_MS;
use crate::rows::{RefusalCountRow, RefusalRow};
use crate::schema::{connections, refusal_counts, refusals, spend_keys};

/// A filter for refused calls. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalFilter {
    /// Only refusals from this instant on.
    pub start: Option<Timestamp>,
    /// Only refusals before this instant.
    pub end: Option<Timestamp>,
    /// Only refusals with this code.
    pub code: Option<String>,
    /// Only refusals of this spend key.
    pub spend_key_id: Option<SpendKeyId>,
    /// Only refusals of calls of this customer.
    pub connection_id: Option<ConnectionId>,
    /// Only refusals of calls of this model.
    pub model: Option<String>,
    /// Only refusals of calls of this run.
    pub run_id: Option<RunId>,
}

/// Returns a merchant's refusal.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    refusal_id: RefusalId,
) -> Result<Option<RefusalRecord>, StoreError> {
    let row = match find_row(conn, merchant_id, refusal_id)? {
        None => archived::find_row(conn, archive, merchant_id, refusal_id)?,
        found => found,
    };
    row.map(RefusalRecord::try_from).transpose()
}

fn find_row(
    conn: &mut Conn,
    merchant_id: MerchantId,
    refusal_id: RefusalId,
) -> Result<Option<RefusalRow>, StoreError> {
    Ok(refusals::table
        .find((Id(merchant_id), Id(refusal_id)))
        .select(RefusalRow::as_select())
        .first(conn)
        .optional()?)
}

/// Returns a merchant's refusals, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filter: &RefusalFilter,
    page: &Page<RefusalId>,
) -> Result<Vec<RefusalRecord>, StoreError> {
    let RefusalFilter { start, end, code, spend_key_id, connection_id, model, run_id } = filter;
    let until = archived::until(conn)?;
    let mut rows: Vec<RefusalRow> = each_database!(conn, conn => {
        let mut query = refusals::table
            .filter(refusals::merchant_id.eq(Id(merchant_id)))
            .order(refusals::refusal_id.desc())
            .limit(page.rows())
            .select(RefusalRow::as_select())
            .into_boxed();
        if let Some(after) = page.after {
            query = query.filter(refusals::refusal_id.lt(Id(after)));
        }
        if let Some(leaving) = until.and_then(|until| until.leaving_refusals()) {
            let is_before = refusals::refusal_id.lt(leaving.start);
            query = query.filter(is_before.or(refusals::refusal_id.ge(leaving.end)));
        }
        if let Some(start) = start {
            query = query.filter(refusals::last_at.ge(start.unix_micros()));
        }
        if let Some(end) = end {
            query = query.filter(refusals::first_at.lt(end.unix_micros()));
        }
        if let Some(code) = code {
            query = query.filter(refusals::code.eq(code));
        }
        if let Some(id) = spend_key_id {
            query = query.filter(refusals::spend_key_id.eq(Id(*id)));
        }
        if let Some(id) = connection_id {
            query = query.filter(refusals::connection_id.eq(Id(*id)));
        }
        if let Some(model) = model {
            query = query.filter(refusals::model.eq(model));
        }
        if let Some(id) = run_id {
            query = query.filter(refusals::run_id.eq(id.as_str()));
        }
        query.load(conn)
    })?;
    let most = usize::try_from(page.rows()).unwrap_or(usize::MAX);
    let until = until.map(|until| Id(RefusalId::least(until.at)));
    let last = rows.last().filter(|_| rows.len() == most).map(|row| row.refusal_id);
    if let Some(until) = until.filter(|until| last.is_none_or(|last| last < *until)) {
        let below = page.after.map_or(until, |after| until.min(Id(after)));
        let oldest = start.map(|start| start.plus_millis(-CLOCK_DIFFERENCE_MS));
        let oldest = oldest.map(|oldest| Id(RefusalId::least(oldest)));
        let walk = ArchiveWalk {
            merchant_id,
            below: Some(below),
            oldest,
            conditions: filter.conditions(),
            at_once: most,
            unread: Vec::new(),
        };
        let mut archived = Vec::new();
        walk.rows(conn, archive, |_, part: Part<RefusalRow>| {
            archived.extend(part.rows);
            Ok(archived.len() < most)
        })?;
        rows.extend(archived);
        rows.sort_unstable_by_key(|row| Reverse(row.refusal_id));
        rows.truncate(most);
    }
    rows.into_iter().map(RefusalRecord::try_from).collect()
}

impl RefusalFilter {
    /// The conditions on the columns of the archive.
    fn conditions(&self) -> Vec<Condition<'_>> {
        let Self { start, end, code, spend_key_id, connection_id, model, run_id } = self;
        let texts = [
            ("code", code.clone()),
            ("spend_key_id", spend_key_id.map(|id| id.to_string())),
            ("connection_id", connection_id.map(|id| id.to_string())),
            ("model", model.clone()),
            ("run_id", run_id.as_ref().map(|id| id.as_str().to_owned())),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some(Condition::text(name, text?)));
        let start = start.map(|at| Condition::integer("last_at", at.unix_micros()..i64::MAX));
        let end = end.map(|at| Condition::integer("first_at", i64::MIN..at.unix_micros()));
        texts.chain(start).chain(end).collect()
    }
}

/// The number of refused calls in a quarter hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusalCount {
    /// The number of the quarter hour since 1970.
    pub(crate) quarter: i64,
    /// The spend key, if one made the calls and the counts are by key.
    pub(crate) spend_key_id: Option<SpendKeyId>,
    /// The customer of the calls, if the counts are by customer.
    pub(crate) connection_id: Option<ConnectionId>,
    /// The number of calls.
    pub(crate) count: i64,
}

/// Returns the numbers of a merchant's refused calls in a range of quarter hours, the end excluded: of this key and this
/// customer or of all, and by key and by customer or together.
pub(crate) fn counts(
    conn: &mut Conn,
    merchant_id: MerchantId,
    quarters: (i64, i64),
    of: (Option<SpendKeyId>, Option<ConnectionId>),
    by: (bool, bool),
) -> Result<Vec<RefusalCount>, StoreError> {
    let ids = (of.0.map(|id| Id(id).untyped()), of.1.map(|id| Id(id).untyped()));
    let query = RefusalCountsQuery { merchant_id: Id(merchant_id), quarters, of: ids, by };
    let present = |id: Id<AnyId>| Some(*id.get().as_bytes()).filter(|bytes| *bytes != [0; 16]);
    let counts = query.load(conn)?.into_iter().map(|row| RefusalCount {
        quarter: row.slot,
        spend_key_id: row.spend_key_id.and_then(present).map(SpendKeyId::from_bytes),
        connection_id: row.connection_id.and_then(present).map(ConnectionId::from_bytes),
        count: row.count,
    });
    Ok(counts.collect())
}

/// The numbers of a merchant's refused calls in a span by their codes, the largest first: those of this key and this
/// customer, or of all.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn counts_by_code(
    conn: &mut Conn,
    merchant_id: MerchantId,
    span: &TimeSpan,
    spend_key_id: Option<SpendKeyId>,
    connection_id: Option<ConnectionId>,
) -> Result<Vec<(String, i64)>, StoreError> {
    let (first, past) = span.quarters();
    let mut query = refusal_counts::table
        .filter(refusal_counts::merchant_id.eq(Id(merchant_id)))
        .filter(refusal_counts::slot.ge(first))
        .filter(refusal_counts::slot.lt(past))
        .group_by(refusal_counts::code)
        .select((refusal_counts::code, sql::<BigInt>("CAST(SUM(count) AS BIGINT)")))
        .into_boxed();
    if let Some(id) = spend_key_id {
        query = query.filter(refusal_counts::spend_key_id.eq(Id(id).untyped()));
    }
    if let Some(id) = connection_id {
        query = query.filter(refusal_counts::connection_id.eq(Id(id).untyped()));
    }
    let mut counts: Vec<(String, i64)> = query.load(conn)?;
    counts.sort_by(|(code, count), (other, others)| others.cmp(count).then(code.cmp(other)));
    Ok(counts)
}

/// Writes a batch. A call of a spend key is one of the customer on whose wallet the key draws, under the key's meter. A
/// customer that a credential names and that the merchant does not have is left out.
pub(crate) fn write(conn: &mut Conn, batch: &RefusalBatch) -> Result<(), StoreError> {
    // The answer to an earlier commit of the batch may have been lost.
    if let Some(first) = batch.records.first()
        && find_row(conn, first.merchant_id, first.refusal_id)?.is_some()
    {
        return Ok(());
    }
    let (keys, customers) = (keys(conn, batch)?, customers(conn, batch)?);
    let customer =
        |merchant_id: MerchantId, key: Option<SpendKeyId>, named: Option<ConnectionId>| {
            let named = named.filter(|id| customers.get(id) == Some(&merchant_id));
            named.or_else(|| key.and_then(|id| keys.get(&id)).and_then(|(customer, _)| *customer))
        };
    let rows: Vec<_> = batch
        .records
        .iter()
        .map(|record| {
            let mut record = record.clone();
            let key = record.spend_key_id;
            record.connection_id = customer(record.merchant_id, key, record.connection_id);
            record.call.meter_id = key.and_then(|id| keys.get(&id)).and_then(|(_, meter)| *meter);
            RefusalRow::from(&record)
        })
        .collect();
    dialect::insert_refusals(conn, &rows)?;
    let mut counts: BTreeMap<_, i64> = BTreeMap::new();
    for ((merchant_id, slot, code, key, named), of_cause) in &batch.counts {
        let key = match key {
            CallKey::Spend(id, _) => Some(*id),
            CallKey::Secret(_) => None,
        };
        let connection_id = customer(*merchant_id, key, *named);
        let connection_id = connection_id.map(|id| Id(id).untyped()).unwrap_or_default();
        let spend_key_id = key.map(|id| Id(id).untyped()).unwrap_or_default();
        let of_row = (Id(*merchant_id), *slot, *code, spend_key_id, connection_id);
        let sum = counts.entry(of_row).or_default();
        *sum = sum.saturating_add(i64::try_from(of_cause.count).unwrap_or(i64::MAX));
    }
    let counts: Vec<_> = counts
        .into_iter()
        .map(|((merchant_id, slot, code, spend_key_id, connection_id), count)| RefusalCountRow {
            merchant_id,
            slot,
            code: code.to_owned(),
            spend_key_id,
            connection_id,
            count,
        })
        .collect();
    Ok(dialect::add_refusal_counts(conn, &counts)?)
}

/// The customer and the meter of each spend key of a batch.
type KeyFacts = HashMap<SpendKeyId, (Option<ConnectionId>, Option<MeterId>)>;

fn keys(conn: &mut Conn, batch: &RefusalBatch) -> Result<KeyFacts, StoreError> {
    let ids = batch.counts.keys().filter_map(|(_, _, _, key, _)| match key {
        CallKey::Spend(id, _) => Some(Id(*id)),
        CallKey::Secret(_) => None,
    });
    type KeyRow = (Id<SpendKeyId>, Option<Id<ConnectionId>>, Option<Id<MeterId>>);
    let rows: Vec<KeyRow> = spend_keys::table
        .filter(spend_keys::spend_key_id.eq_any(ids))
        .select((spend_keys::spend_key_id, spend_keys::connection_id, spend_keys::meter_id))
        .load(conn)?;
    let facts = rows.into_iter();
    Ok(facts
        .map(|(key, customer, meter)| (key.get(), (customer.map(Id::get), meter.map(Id::get))))
        .collect())
}

/// The merchant of each customer that a credential of the batch names and that exists.
fn customers(
    conn: &mut Conn,
    batch: &RefusalBatch,
) -> Result<HashMap<ConnectionId, MerchantId>, StoreError> {
    let named = batch.counts.keys().filter_map(|(.., named)| named.map(Id));
    let rows: Vec<(Id<ConnectionId>, Id<MerchantId>)> = connections::table
        .filter(connections::connection_id.eq_any(named))
        .select((connections::connection_id, connections::merchant_id))
        .load(conn)?;
    Ok(rows.into_iter().map(|(id, merchant_id)| (id.get(), merchant_id.get())).collect())
}

/// The number of refusals that are deleted in one transaction.
const FORGOTTEN_AT_ONCE: i64 = 1_000;

/// Deletes a limited number of refusals before an instant, and returns the number.
pub(crate) fn forget_old(conn: &mut Conn, before: Timestamp) -> Result<usize, StoreError> {
    let old: Vec<(Id<MerchantId>, Id<RefusalId>)> = refusals::table
        .filter(refusals::last_at.lt(before.unix_micros()))
        .order(refusals::last_at)
        .limit(FORGOTTEN_AT_ONCE)
        .select((refusals::merchant_id, refusals::refusal_id))
        .load(conn)?;
    for (merchant_id, refusal_id) in &old {
        diesel::delete(refusals::table.find((merchant_id, refusal_id))).execute(conn)?;
    }
    Ok(old.len())
}
