//! Request records, of forwarded calls and of reported usage.

pub(crate) mod report;
mod view;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;
use tollgate_domain::{Issue, MerchantId, Metadata, MeterId, RequestId, RequestRecord};
use tollgate_store::Conn;
use tollgate_store::requests::{self, EndingFilter, RequestFilter};
use utoipa::IntoParams;

use super::{ConnectionQuery, id_filter, optional_id};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::error::{ApiError, ErrorCode};
use crate::http::list::{ListView, PageQuery, Query, respond};
use crate::openapi::fields::MetadataFilters;
use crate::openapi::marks::refused;
use crate::openapi::types::*;
pub(crate) use report::report;
pub(crate) use view::{CostView, CurrentCost, ModelUsageView, RecordView};

/// Read the record of a call.
///
/// Reported usage is also found by the id under which it was reported.
#[utoipa::path(
    get,
    path = "/requests/{id}",
    operation_id = "getRequest",
    params(
        ("id" = String, Path, description = "The id of a record, or the `request_id` under which usage was reported"),
    ),
    responses(
        (status = 200, description = "The record", body = RecordView),
        ApiError, refused::RequestNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let find = move |conn: &mut Conn| find(conn, caller.merchant_id, &id);
    let record = app.store.read(find).await?;
    Ok(HttpResponse::Ok().json(RecordView::of(&record, app.settings.shape)))
}

/// A merchant's record, by its id or by the merchant's own id.
pub fn find(conn: &mut Conn, merchant_id: MerchantId, id: &str) -> Result<RequestRecord, ApiError> {
    // No text in the database has a NUL, and PostgreSQL accepts none.
    if id.contains('\0') {
        return Err(ApiError::not_found(ErrorCode::RequestNotFound, "request"));
    }
    let ours = match id.parse() {
        Ok(id) => requests::find(conn, merchant_id, id)?,
        Err(_) => None,
    };
    let record = match ours {
        Some(record) => Some(record),
        None => requests::find_by_reference(conn, merchant_id, id)?,
    };
    record.ok_or_else(|| ApiError::not_found(ErrorCode::RequestNotFound, "request"))
}

/// List the records of calls.
#[utoipa::path(
    get,
    path = "/requests",
    operation_id = "listRequests",
    params(RecordQuery, ConnectionQuery, PageQuery),
    responses((status = 200, description = "A page", body = ListView<RecordView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let filter = filter(&query, &mut issues);
    let page = query.page::<RequestId>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let read = move |conn: &mut _| {
        requests::list(conn, caller.merchant_id, &filter, EndingFilter::Anyhow, &page)
    };
    let found = app.store.read(read).await?;
    let shape = app.settings.shape;
    Ok(respond(
        found,
        page.limit,
        |one| one.request_id.to_string(),
        |one| RecordView::of(one, shape),
    ))
}

/// The filters of the list of records, as documents have them; [`filter`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
pub(super) struct RecordQuery {
    /// Only records that this meter priced.
    meter_id: Option<MeterId>,
    /// At most 100 `[key, value]` pairs of strings. A record must have every pair.
    #[param(inline)]
    metadata_filters: Option<MetadataFilters>,
}

/// The filters of the list of records.
pub(super) fn filter(query: &Query, issues: &mut Vec<Issue>) -> RequestFilter {
    RequestFilter {
        connection_id: id_filter("connection_id", query, issues),
        meter_id: optional_id("meter_id", query.get("meter_id"), issues),
        metadata: metadata_filters(query.get("metadata_filters"), issues),
    }
}

/// The most filters of metadata: no record has more pairs.
const MOST_FILTERS: usize = 100;

/// A JSON array of `[key, value]` pairs of strings.
fn metadata_filters(text: Option<&str>, issues: &mut Vec<Issue>) -> Vec<(String, String)> {
    const NAME: &str = "metadata_filters";
    let Some(text) = text else { return Vec::new() };
    let Ok(pairs) = serde_json::from_str::<Vec<Value>>(text) else {
        issues.push(Issue::at([NAME], "must be a JSON array of [key, value] pairs"));
        return Vec::new();
    };
    if pairs.len() > MOST_FILTERS {
        let message = format!("may have at most {MOST_FILTERS} pairs");
        issues.push(Issue::at([NAME], message));
        return Vec::new();
    }
    let mut filters = Vec::new();
    for (place, pair) in pairs.into_iter().enumerate() {
        let place = place.to_string();
        match serde_json::from_value::<(String, String)>(pair) {
            Ok((key, _)) if !Metadata::is_key(&key) => issues.push(Issue::at(
                [NAME, &place, "0"],
                "must have 1 to 255 ASCII letters, digits and underscores",
            )),
            Ok((_, value)) if value.contains('\0') => {
                issues.push(Issue::at([NAME, &place, "1"], "must not contain NUL"));
            }
            Ok(filter) => filters.push(filter),
            Err(_) => {
                issues.push(Issue::at([NAME, &place], "must be a pair of strings: [key, value]"));
            }
        }
    }
    filters
}
