//! Request records, of forwarded calls and of reported usage.

pub(crate) mod report;
mod view;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde_json::Value;
use tollgate_domain::{
    BudgetId, Issue, LocalTime, MerchantId, Metadata, MeterId, RequestId, RequestRecord,
    RequestStatus, RunId, SocketId, SpendKeyId,
};
use tollgate_pricing::Amount;
use tollgate_store::requests::{self, ListFilter, RequestFilter, RequestList};
use tollgate_store::{Conn, Page, RecordArchive};
use utoipa::IntoParams;

use super::{ConnectionQuery, id_filter, optional_id, time};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::csv::{self, AnswerFormat, FormatQuery};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::NonNegativeAmount;
use crate::http::list::{ListView, PageQuery, Query, respond_page};
use crate::openapi::fields::MetadataFilters;
use crate::openapi::marks::refused;
use crate::openapi::types::*;
use crate::settings::InterfaceShape;
pub(crate) use report::report;
use view::RECORD_COLUMNS;
pub use view::RecordView;
pub(crate) use view::{CostView, CurrentCost, ModelUsageView};

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
    let find = move |conn: &mut Conn, archive: &RecordArchive| {
        find(conn, archive, caller.merchant_id, &id)
    };
    let record = app.store.read_records(find).await?;
    Ok(HttpResponse::Ok().json(RecordView::of(&record, app.settings.shape)))
}

/// A merchant's record, by its id or by the merchant's own id.
pub fn find(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    id: &str,
) -> Result<RequestRecord, ApiError> {
    // No text in the database has a NUL, and PostgreSQL accepts none.
    if id.contains('\0') {
        return Err(ApiError::not_found(ErrorCode::RequestNotFound, "request"));
    }
    let ours = match id.parse() {
        Ok(id) => requests::find(conn, archive, merchant_id, id)?,
        Err(_) => None,
    };
    let record = match ours {
        Some(record) => Some(record),
        None => requests::find_by_reference(conn, archive, merchant_id, id)?,
    };
    record.ok_or_else(|| ApiError::not_found(ErrorCode::RequestNotFound, "request"))
}

/// List the records of calls.
///
/// A page that has to pass over many records may have fewer than `limit`, or none, and a `next_cursor`. CSV has all
/// records that pass, in the names of the current interface.
#[utoipa::path(
    get,
    path = "/requests",
    operation_id = "listRequests",
    params(RecordQuery, ListQuery, ConnectionQuery, PageQuery, FormatQuery),
    responses(
        (
            status = 200,
            description = "A page",
            content((ListView<RecordView> = "application/json"), (String = "text/csv")),
        ),
        ApiError,
    ),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let filter = list_filter(&query, &mut issues);
    let format = AnswerFormat::of(&http, &query, &mut issues);
    let reference = query.get("reference_id").map(str::to_owned);
    let page = query.page::<RequestId>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let records = RecordPages { app, merchant_id: caller.merchant_id, filter, reference };
    if format == AnswerFormat::Csv {
        let pages = move |after| {
            let records = records.clone();
            async move {
                let found = records.page(Page { after, limit: csv::PAGE }).await?;
                let view = |one| RecordView::of(one, InterfaceShape::default());
                Ok((found.records.iter().map(view).collect(), found.next))
            }
        };
        return Ok(csv::respond_pages("requests.csv", RECORD_COLUMNS, page.after, pages));
    }
    let found = records.page(page).await?;
    let shape = records.app.settings.shape;
    let views = found.records.iter().map(|one| RecordView::of(one, shape)).collect();
    Ok(respond_page(views, found.next.map(|id| id.to_string())))
}

/// A page of a merchant's records, as `GET /v1/requests` answers with them: their JSON or their CSV, and the id after which
/// the list continues.
///
/// # Errors
/// The error of a query that is not valid, or of the store.
pub fn list_page(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    query: &Query,
    page: &Page<RequestId>,
) -> Result<(Vec<RecordView>, Option<RequestId>), ApiError> {
    let mut issues = Vec::new();
    let filter = list_filter(query, &mut issues);
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let found = requests::list(conn, archive, merchant_id, &filter, page)?;
    let view = |one| RecordView::of(one, InterfaceShape::default());
    Ok((found.records.iter().map(view).collect(), found.next))
}

/// The CSV of records.
///
/// # Errors
/// [`ApiError`] for a row that cannot be written.
pub fn to_csv(records: &[RecordView]) -> Result<Bytes, ApiError> {
    let columns: Vec<String> = RECORD_COLUMNS.iter().map(|name| (*name).to_owned()).collect();
    csv::text(&columns, records)
}

/// The pages of a list of records.
#[derive(Clone)]
struct RecordPages {
    app: web::Data<App>,
    merchant_id: MerchantId,
    filter: ListFilter,
    /// Only the record of usage that was reported under this id.
    reference: Option<String>,
}

impl RecordPages {
    async fn page(&self, page: Page<RequestId>) -> Result<RequestList, ApiError> {
        let (merchant_id, filter) = (self.merchant_id, self.filter.clone());
        let reference = self.reference.clone();
        let read = move |conn: &mut Conn, archive: &RecordArchive| match reference {
            None => requests::list(conn, archive, merchant_id, &filter, &page),
            Some(reference) if reference.contains('\0') => Ok(RequestList::default()),
            Some(reference) => {
                let record = requests::find_by_reference(conn, archive, merchant_id, &reference)?;
                let after = |id| page.after.is_none_or(|after| id < after);
                let record = record.filter(|one| filter.passes(one) && after(one.request_id));
                Ok(RequestList { records: record.into_iter().collect(), next: None })
            }
        };
        Ok(self.app.store.read_records(read).await?)
    }
}

/// The filters of the list that sums do not have, as documents have them; [`list_filter`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct ListQuery {
    /// Only records from this instant on.
    #[param(format = DateTime)]
    start: Option<String>,
    /// Only records before this instant.
    #[param(format = DateTime)]
    end: Option<String>,
    /// Only records with this status.
    #[param(inline)]
    status: Option<RequestStatus>,
    /// Only records whose provider answered with this HTTP status.
    #[param(minimum = 100, maximum = 599)]
    provider_status: Option<u16>,
    /// Only records of this run. Runs of several keys may have one id.
    run_id: Option<RunId>,
    /// Only records of this WebSocket.
    socket_id: Option<SocketId>,
    /// Only records of calls that a budget with `enforcement: observe` would have refused. The only value is `true`.
    would_refuse: Option<bool>,
    /// Only records whose `total_request_cost` is at least this amount.
    min_cost: Option<NonNegativeAmount>,
    /// Only the record of usage that you reported under this id.
    reference_id: Option<String>,
}

/// The filters of the list of records.
fn list_filter(query: &Query, issues: &mut Vec<Issue>) -> ListFilter {
    let calls = filter(query, issues);
    let status = match query.get("status") {
        None => None,
        Some("pending") => Some(RequestStatus::Pending),
        Some("completed") => Some(RequestStatus::Completed),
        Some("error") => Some(RequestStatus::Error),
        Some(_) => {
            issues.push(Issue::at(["status"], "must be one of pending, completed, error"));
            None
        }
    };
    let number = query.get("provider_status").map(str::parse::<u16>);
    let provider_status = match number {
        None => None,
        Some(Ok(status)) if (100..600).contains(&status) => Some(status),
        Some(_) => {
            issues.push(Issue::at(["provider_status"], "must be an integer from 100 to 599"));
            None
        }
    };
    let min_cost = match query.get("min_cost").map(str::parse::<Amount>) {
        None => None,
        Some(Ok(amount)) if amount >= Amount::ZERO => Some(amount),
        Some(_) => {
            let message = "must be a decimal amount of at least 0, such as 0.05";
            issues.push(Issue::at(["min_cost"], message));
            None
        }
    };
    let mut instant = |name| time(query, name, issues).ok().flatten().map(LocalTime::instant);
    let (start, end) = (instant("start"), instant("end"));
    let would_refuse = match query.get("would_refuse") {
        None => false,
        Some("true") => true,
        Some(_) => {
            issues.push(Issue::at(["would_refuse"], "must be true"));
            false
        }
    };
    let run_id = run_filter(query, issues);
    let socket_id = optional_id("socket_id", query.get("socket_id"), issues);
    ListFilter {
        calls,
        status,
        provider_status,
        run_id,
        socket_id,
        would_refuse,
        min_cost,
        start,
        end,
    }
}

/// A filter by a run. The run of a day has the empty id.
pub(super) fn run_filter(query: &Query, issues: &mut Vec<Issue>) -> Option<RunId> {
    let text = query.get("run_id")?;
    if text.is_empty() {
        return Some(RunId::of_the_day());
    }
    let id = text.parse().ok();
    if id.is_none() {
        issues.push(Issue::at(["run_id"], "must be the id of a run"));
    }
    id
}

/// The filters of the list of records, as documents have them; [`filter`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
pub(super) struct RecordQuery {
    /// Only records of this spend key.
    spend_key_id: Option<SpendKeyId>,
    /// Only records of calls that counted against this budget.
    budget_id: Option<BudgetId>,
    /// Only records that this meter priced.
    meter_id: Option<MeterId>,
    /// Only records of this provider.
    provider: Option<String>,
    /// Only records of this model.
    model: Option<String>,
    /// At most 100 `[key, value]` pairs of strings. A record must have every pair.
    #[param(inline)]
    metadata_filters: Option<MetadataFilters>,
}

/// The filters of the list of records.
pub(super) fn filter(query: &Query, issues: &mut Vec<Issue>) -> RequestFilter {
    RequestFilter {
        connection_id: id_filter("connection_id", query, issues),
        spend_key_id: optional_id("spend_key_id", query.get("spend_key_id"), issues),
        budget_id: optional_id("budget_id", query.get("budget_id"), issues),
        meter_id: optional_id("meter_id", query.get("meter_id"), issues),
        provider: name_filter("provider", query, issues),
        model: name_filter("model", query, issues),
        metadata: metadata_filters(query.get("metadata_filters"), issues),
    }
}

/// A filter by the name of a provider or a model.
pub(super) fn name_filter(name: &str, query: &Query, issues: &mut Vec<Issue>) -> Option<String> {
    let text = query.get(name)?;
    // No text in the database has a NUL, and PostgreSQL accepts none.
    if text.is_empty() || text.contains('\0') {
        issues.push(Issue::at([name], "must be a name"));
    }
    Some(text.to_owned())
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
