//! Refused calls, with the reasons.

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde::Serialize;
use tollgate_domain::{
    BudgetId, ConnectionId, Issue, LimitQuantity, LocalTime, MerchantId, Metadata, MeterId,
    RefusalId, RefusalRecord, RunId, SecretKeyId, SpendKeyId, Timestamp,
};
use tollgate_store::refusals::{self, RefusalFilter};
use tollgate_store::{Conn, Page, RecordArchive};
use utoipa::{IntoParams, ToSchema};

use super::requests::{name_filter, run_filter};
use super::{ConnectionQuery, id_filter, optional_id, time};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::csv::{self, AnswerFormat, FormatQuery};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::list::{ListView, PageQuery, Query, respond};
use crate::openapi::fields::MetadataSchema;
use crate::openapi::marks::refused;
use crate::openapi::types::*;

/// The view of a refusal.
#[derive(Serialize, ToSchema)]
#[schema(as = Refusal)]
pub struct RefusalView {
    /// The refusal. The error of the call has it, too.
    refusal_id: RefusalId,
    /// The time of the call, or of the first of them.
    at: Timestamp,
    /// The code of the error.
    code: String,
    /// The message of the error.
    message: String,
    /// The spend key that made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spend_key_id: Option<SpendKeyId>,
    /// The secret key that made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    secret_key_id: Option<SecretKeyId>,
    /// The customer that the call was made for, as the credential names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    connection_id: Option<ConnectionId>,
    /// The budget that refused the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    budget_id: Option<BudgetId>,
    /// The run of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    run_id: Option<RunId>,
    /// The meter of the spend key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    meter_id: Option<MeterId>,
    /// The provider's name in the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    provider: Option<String>,
    /// The requested model.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    model: Option<String>,
    /// The method and the URL of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    endpoint: Option<String>,
    /// The limit that refused the call: an amount, or a number of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit: Option<LimitQuantity>,
    /// The part of the limit that was used in its cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    used: Option<LimitQuantity>,
    /// The part of the limit that calls in flight held.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    held: Option<LimitQuantity>,
    /// The amount that the call would have held, where all of it had to be left.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    would_hold: Option<LimitQuantity>,
    /// The start of the limit's next cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    resets_at: Option<Timestamp>,
    /// Metadata of the call.
    metadata: Metadata,
    /// The number of calls that this refusal stands for. It is above 1 in a storm of refusals of one key.
    count: u64,
    /// The time of the first of them.
    first_at: Timestamp,
    /// The time of the last of them.
    last_at: Timestamp,
}

/// The columns of refusals as CSV: the fields of the view.
const COLUMNS: &[&str] = &[
    "refusal_id",
    "at",
    "code",
    "message",
    "spend_key_id",
    "secret_key_id",
    "connection_id",
    "budget_id",
    "run_id",
    "meter_id",
    "provider",
    "model",
    "endpoint",
    "limit",
    "used",
    "held",
    "would_hold",
    "resets_at",
    "metadata",
    "count",
    "first_at",
    "last_at",
];

impl RefusalView {
    fn of(refusal: &RefusalRecord) -> Self {
        let call = &refusal.call;
        Self {
            refusal_id: refusal.refusal_id,
            at: refusal.first_at,
            code: refusal.code.clone(),
            message: call.message.clone(),
            spend_key_id: refusal.spend_key_id,
            secret_key_id: refusal.secret_key_id,
            connection_id: refusal.connection_id,
            budget_id: call.limit.budget_id,
            run_id: refusal.run_id.clone(),
            meter_id: call.meter_id,
            provider: call.provider.clone(),
            model: refusal.model.clone(),
            endpoint: call.endpoint.clone(),
            limit: call.limit.limit,
            used: call.limit.used,
            held: call.limit.held,
            would_hold: call.limit.would_hold,
            resets_at: call.limit.resets_at,
            metadata: call.metadata.clone(),
            count: refusal.count,
            first_at: refusal.first_at,
            last_at: refusal.last_at,
        }
    }
}

/// A page of a merchant's refusals, as `GET /v1/refusals` answers with them: their JSON or their CSV, and the id after which the
/// list continues.
///
/// # Errors
/// The error of a query that is not valid, or of the store.
pub fn list_page(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    query: &Query,
    page: &Page<RefusalId>,
) -> Result<(Vec<RefusalView>, Option<RefusalId>), ApiError> {
    let mut issues = Vec::new();
    let filter = filter(query, &mut issues);
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let found = refusals::list(conn, archive, merchant_id, &filter, page)?;
    let (found, next) = page.cut(found, |one| one.refusal_id);
    Ok((found.iter().map(RefusalView::of).collect(), next))
}

/// Refusals as CSV, with a header.
///
/// # Errors
/// [`ApiError`] for a row that cannot be written.
pub fn to_csv(refusals: &[RefusalView]) -> Result<Bytes, ApiError> {
    let columns: Vec<_> = COLUMNS.iter().map(|name| (*name).to_owned()).collect();
    csv::text(&columns, refusals)
}

/// The filters of the list, as documents have them; [`filter`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct RefusalQuery {
    /// Only refusals from this instant on.
    #[param(format = DateTime)]
    start: Option<String>,
    /// Only refusals before this instant.
    #[param(format = DateTime)]
    end: Option<String>,
    /// Only refusals with this code.
    code: Option<ErrorCode>,
    /// Only refusals of this spend key.
    spend_key_id: Option<SpendKeyId>,
    /// Only refusals of calls of this model.
    model: Option<String>,
    /// Only refusals of calls of this run. Runs of several keys may have one id.
    run_id: Option<RunId>,
}

fn filter(query: &Query, issues: &mut Vec<Issue>) -> RefusalFilter {
    let mut instant = |name| time(query, name, issues).ok().flatten().map(LocalTime::instant);
    let (start, end) = (instant("start"), instant("end"));
    let code = query.get("code").map(str::to_owned);
    if code.as_ref().is_some_and(|code| !ErrorCode::ALL.iter().any(|one| one.name() == code)) {
        issues.push(Issue::at(["code"], "is no code of an error"));
    }
    RefusalFilter {
        start,
        end,
        code,
        spend_key_id: optional_id("spend_key_id", query.get("spend_key_id"), issues),
        connection_id: id_filter("connection_id", query, issues),
        model: name_filter("model", query, issues),
        run_id: run_filter(query, issues),
    }
}

/// List refused calls.
///
/// They are kept for 30 days, or as long as the operator chooses.
#[utoipa::path(
    get,
    path = "/refusals",
    operation_id = "listRefusals",
    params(RefusalQuery, ConnectionQuery, PageQuery, FormatQuery),
    responses(
        (
            status = 200,
            description = "A page",
            content((ListView<RefusalView> = "application/json"), (String = "text/csv")),
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
    let filter = filter(&query, &mut issues);
    let format = AnswerFormat::of(&http, &query, &mut issues);
    let page = query.page::<RefusalId>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    app.store.flush_refusals().await;
    let merchant_id = caller.merchant_id;
    let read = move |filter: RefusalFilter, page: Page<RefusalId>| {
        move |conn: &mut Conn, archive: &RecordArchive| {
            refusals::list(conn, archive, merchant_id, &filter, &page)
        }
    };
    if format == AnswerFormat::Csv {
        let pages = move |after| {
            let page = Page { after, limit: csv::PAGE };
            let (app, read) = (app.clone(), read(filter.clone(), page));
            async move {
                let found = app.store.read_records(read).await?;
                let (found, next) = page.cut(found, |one| one.refusal_id);
                Ok((found.iter().map(RefusalView::of).collect(), next))
            }
        };
        return Ok(csv::respond_pages("refusals.csv", COLUMNS, page.after, pages));
    }
    let limit = page.limit;
    let found = app.store.read_records(read(filter, page)).await?;
    Ok(respond(found, limit, |one| one.refusal_id.to_string(), RefusalView::of))
}

/// Read why a call was refused.
#[utoipa::path(
    get,
    path = "/refusals/{id}",
    operation_id = "getRefusal",
    params(("id" = RefusalId, Path, description = "The id of a refusal")),
    responses(
        (status = 200, description = "The refusal", body = RefusalView),
        ApiError, refused::RefusalNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let not_found = || ApiError::not_found(ErrorCode::RefusalNotFound, "refusal");
    let id: RefusalId = id.parse().map_err(|_| not_found())?;
    app.store.flush_refusals().await;
    let find = move |conn: &mut Conn, archive: &RecordArchive| {
        refusals::find(conn, archive, caller.merchant_id, id)
    };
    let refusal = app.store.read_records(find).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(RefusalView::of(&refusal)))
}
