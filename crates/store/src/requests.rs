//! Request records, read.

use std::collections::HashMap;

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, MerchantId, MeterId, PendingRecord, RequestId, RequestRecord};
use tollgate_pricing::Meter;

mod ids;

use ids::{Condition, Ids, Nth};

use crate::conn::{Conn, each_database};
use crate::dialect;
use crate::error::StoreError;
use crate::meters;
use crate::page::Page;
use crate::rows::RequestRow;
use crate::schema::requests;

/// Which records to list; everything given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFilter {
    /// Of this connection.
    pub connection_id: Option<ConnectionId>,
    /// Priced by this meter.
    pub meter_id: Option<MeterId>,
    /// With each of these pairs in their metadata.
    pub metadata: Vec<(String, String)>,
}

/// How the records of a list may have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HowEnded {
    /// In any way, or not yet.
    #[default]
    Anyhow,
    /// They failed.
    Failed,
}

/// A merchant's record.
///
/// # Errors
/// Those of the store.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    request_id: RequestId,
) -> Result<Option<RequestRecord>, StoreError> {
    let row = requests::table
        .find(request_id.to_string())
        .filter(requests::merchant_id.eq(merchant_id.to_string()))
        .select(RequestRow::as_select())
        .first(conn)
        .optional()?;
    Ok(to_records(conn, row.as_slice())?.into_iter().next())
}

/// A merchant's record of usage that it reported under this id of its own.
///
/// # Errors
/// Those of the store.
pub fn find_by_reference(
    conn: &mut Conn,
    merchant_id: MerchantId,
    reference_id: &str,
) -> Result<Option<RequestRecord>, StoreError> {
    let row = requests::table
        .filter(requests::merchant_id.eq(merchant_id.to_string()))
        .filter(requests::reference_id.is_not_null())
        .filter(requests::reference_id.eq(reference_id))
        .select(RequestRow::as_select())
        .first(conn)
        .optional()?;
    Ok(to_records(conn, row.as_slice())?.into_iter().next())
}

/// A merchant's records, newest first.
///
/// # Errors
/// Those of the store.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    ended: HowEnded,
    page: &Page<RequestId>,
) -> Result<Vec<RequestRecord>, StoreError> {
    let merchant_id = merchant_id.to_string();
    let ids = ids(conn, &merchant_id, conditions(filter, ended), page)?;
    let rows: Vec<RequestRow> = requests::table
        .filter(requests::request_id.eq_any(ids))
        .filter(requests::merchant_id.eq(&merchant_id))
        .order(requests::request_id.desc())
        .select(RequestRow::as_select())
        .load(conn)?;
    to_records(conn, &rows)
}

/// A merchant's calls on their way, newest first: each holds money until it is settled.
///
/// # Errors
/// Those of the store.
pub fn in_flight(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Vec<PendingRecord>, StoreError> {
    // Only those on their way are in that index. With `|| ''` none of the merchant's records is walked
    // through, of which there may be many.
    let mut rows: Vec<RequestRow> = requests::table
        .filter(requests::node_id.is_not_null())
        .filter(requests::merchant_id.concat("").eq(merchant_id.to_string()))
        .select(RequestRow::as_select())
        .load(conn)?;
    rows.sort_unstable_by(|one, other| other.request_id.cmp(&one.request_id));
    rows.iter().map(RequestRow::to_pending).collect()
}

/// What a filter asks for, what few records meet before what many do, as far as can be guessed.
fn conditions(filter: &RequestFilter, ended: HowEnded) -> Vec<Condition> {
    let failure = (ended == HowEnded::Failed).then_some(Condition::Failure);
    let connection = filter.connection_id.map(|id| Condition::Connection(id.to_string()));
    let pairs = filter.metadata.iter().cloned();
    let pairs = pairs.map(|(key, value)| Condition::Pair(key, value));
    let meter = filter.meter_id.map(|id| Condition::Meter(id.to_string()));
    failure.into_iter().chain(connection).chain(pairs).chain(meter).collect()
}

/// How many records of one condition are walked through before those of another are tried.
const PATIENCE: [i64; 3] = [200, 2_000, 20_000];

/// The ids of a page. Nobody knows which condition the fewest records meet, so each is tried for a
/// while, and then each for longer: that takes no more than a few times what the best one takes alone.
fn ids(
    conn: &mut Conn,
    merchant_id: &String,
    mut conditions: Vec<Condition>,
    page: &Page<RequestId>,
) -> Result<Vec<String>, StoreError> {
    let after = page.after.map(|id| id.to_string());
    let after = after.as_ref();
    let limit = page.rows();
    let patience = if conditions.len() < 2 { &[][..] } else { &PATIENCE[..] };
    for &skip in patience {
        for _ in 0..conditions.len() {
            let Some(condition) = conditions.first() else { break };
            let nth = Nth { merchant_id, condition, after, skip };
            let until: Option<String> =
                each_database!(conn, conn => nth.get_result(conn).optional())?;
            let until = until.as_ref();
            let walk = Ids { merchant_id, conditions: &conditions, after, until, limit };
            let found: Vec<String> = each_database!(conn, conn => walk.load(conn))?;
            let is_full = i64::try_from(found.len()).is_ok_and(|count| count >= limit);
            if is_full || until.is_none() {
                return Ok(found);
            }
            conditions.rotate_left(1);
        }
    }
    let walk = Ids { merchant_id, conditions: &conditions, after, until: None, limit };
    Ok(each_database!(conn, conn => walk.load(conn))?)
}

/// How the database walks through each condition of a filter, step by step: for whoever wonders why a
/// list takes long.
///
/// # Errors
/// Those of the store.
pub fn plans(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    ended: HowEnded,
    page: &Page<RequestId>,
) -> Result<Vec<Vec<String>>, StoreError> {
    let merchant_id = &merchant_id.to_string();
    let mut conditions = conditions(filter, ended);
    let after = page.after.map(|id| id.to_string());
    let after = after.as_ref();
    let mut plans = Vec::new();
    for _ in 0..conditions.len().max(1) {
        let (until, limit) = (None, page.rows());
        let walk = Ids { merchant_id, conditions: &conditions, after, until, limit };
        plans.push(dialect::plan(conn, walk)?);
        if let Some(condition) = conditions.first() {
            plans.push(dialect::plan(conn, Nth { merchant_id, condition, after, skip: 1 })?);
            conditions.rotate_left(1);
        }
    }
    Ok(plans)
}

/// Records with what their meters say, in the order of their rows.
pub(crate) fn to_records(
    conn: &mut Conn,
    rows: &[RequestRow],
) -> Result<Vec<RequestRecord>, StoreError> {
    let mut models: HashMap<(&str, i32), Meter> = HashMap::new();
    for row in rows {
        if let (Some(meter_id), Some(version)) = (row.meter_id.as_deref(), row.meter_version)
            && !models.contains_key(&(meter_id, version))
        {
            models.insert((meter_id, version), meters::model_of(conn, meter_id, version)?.model);
        }
    }
    let records = rows.iter().map(|row| {
        let version = row.meter_id.as_deref().zip(row.meter_version);
        row.to_record(version.and_then(|version| models.get(&version)))
    });
    records.collect()
}
