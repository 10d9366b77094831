//! Request records, read.

use std::collections::HashMap;

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, MerchantId, MeterId, RequestId, RequestRecord};
use tollgate_pricing::Meter;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::meters;
use crate::page::Page;
use crate::rows::RequestRow;
use crate::schema::{request_metadata, requests};

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
    let merchant = merchant_id.to_string();
    let mut query = requests::table
        .filter(requests::merchant_id.eq(&merchant))
        .select(RequestRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(requests::request_id.lt(after.to_string()));
    }
    if let Some(connection_id) = filter.connection_id {
        query = query.filter(requests::connection_id.eq(connection_id.to_string()));
    }
    if let Some(meter_id) = filter.meter_id {
        query = query.filter(requests::meter_id.eq(meter_id.to_string()));
    }
    for (key, value) in &filter.metadata {
        let tagged = request_metadata::table
            .filter(request_metadata::merchant_id.eq(&merchant))
            .filter(request_metadata::key.eq(key))
            .filter(request_metadata::value.eq(value))
            .select(request_metadata::request_id);
        query = query.filter(requests::request_id.eq_any(tagged));
    }
    let rows: Vec<RequestRow> =
        query.order(requests::request_id.desc()).limit(page.rows()).load(conn)?;
    to_records(conn, &rows)
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
