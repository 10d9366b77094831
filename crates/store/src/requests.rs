//! Request records, read.

use std::collections::HashMap;

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, MerchantId, MeterId, RequestId, RequestRecord};
use tollgate_pricing::Meter;

mod ids;

use ids::{Condition, Count, Ids};

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
    Ok(row
        .map(|row| to_records(conn, &[row]))
        .transpose()?
        .and_then(|records| records.into_iter().next()))
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
    Ok(row
        .map(|row| to_records(conn, &[row]))
        .transpose()?
        .and_then(|records| records.into_iter().next()))
}

/// A merchant's records, newest first.
///
/// # Errors
/// Those of the store.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    page: &Page<RequestId>,
) -> Result<Vec<RequestRecord>, StoreError> {
    let merchant_id = merchant_id.to_string();
    let conditions = by_rarity(conn, &merchant_id, filter)?;
    let after = page.after.map(|id| id.to_string());
    let query = Ids {
        merchant_id: &merchant_id,
        conditions: &conditions,
        after: after.as_ref(),
        limit: page.rows(),
    };
    let ids: Vec<String> = each_database!(conn, conn => query.load(conn))?;
    let rows: Vec<RequestRow> = requests::table
        .filter(requests::request_id.eq_any(ids))
        .filter(requests::merchant_id.eq(&merchant_id))
        .order(requests::request_id.desc())
        .select(RequestRow::as_select())
        .load(conn)?;
    to_records(conn, &rows)
}

/// How the database goes about a filtered list, step by step: for whoever wonders why it takes long.
///
/// # Errors
/// Those of the store.
pub fn plan(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    page: &Page<RequestId>,
) -> Result<Vec<String>, StoreError> {
    let merchant_id = merchant_id.to_string();
    let conditions = by_rarity(conn, &merchant_id, filter)?;
    let after = page.after.map(|id| id.to_string());
    let query = Ids {
        merchant_id: &merchant_id,
        conditions: &conditions,
        after: after.as_ref(),
        limit: page.rows(),
    };
    Ok(dialect::plan(conn, query)?)
}

/// The conditions of a filter, the one that the fewest records meet first, as far as few tells: those
/// that many meet are not counted to the end.
fn by_rarity(
    conn: &mut Conn,
    merchant_id: &String,
    filter: &RequestFilter,
) -> Result<Vec<Condition>, StoreError> {
    /// Counting so many takes a millisecond or two.
    const MANY: i64 = 2_000;
    let pairs = filter.metadata.iter().cloned();
    let mut conditions: Vec<_> = pairs.map(|(key, value)| Condition::Pair(key, value)).collect();
    conditions.extend(filter.connection_id.map(|id| Condition::Connection(id.to_string())));
    conditions.extend(filter.meter_id.map(|id| Condition::Meter(id.to_string())));
    if conditions.len() < 2 {
        return Ok(conditions);
    }
    let mut counted = Vec::with_capacity(conditions.len());
    let mut bound = MANY;
    for condition in conditions {
        let count = Count { merchant_id, condition: &condition, bound };
        let found: i64 = each_database!(conn, conn => count.get_result(conn))?;
        // Nothing is rarer for having more than the rarest.
        bound = bound.min(found.max(1));
        counted.push((found, condition));
    }
    counted.sort_by_key(|(count, _)| *count);
    Ok(counted.into_iter().map(|(_, condition)| condition).collect())
}

fn to_records(conn: &mut Conn, rows: &[RequestRow]) -> Result<Vec<RequestRecord>, StoreError> {
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
