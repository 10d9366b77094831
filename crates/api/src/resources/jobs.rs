//! Jobs: calls that a provider answers later.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tollgate_domain::{
    ConnectionId, Issue, Job, JobId, JobKind, JobState, MerchantId, RequestId, SpendKeyId,
    Timestamp,
};
use tollgate_pricing::Amount;
use tollgate_provider::ProviderClient;
use tollgate_store::jobs::{self, JobFilter};
use tollgate_store::{Conn, StoreError};
use utoipa::{IntoParams, ToSchema};

use super::{EmptyBody, id_filter, optional_id};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::ApiRequest;
use crate::http::error::{ApiError, ErrorCode};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, Query, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct JobView {
    /// The id.
    job_id: JobId,
    /// The record of the call that created the job. It is `pending` until the job has ended.
    request_id: RequestId,
    /// The kind.
    kind: JobKind,
    /// The provider's name.
    provider: String,
    /// The provider's id of the object.
    provider_object_id: String,
    /// The spend key of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spend_key_id: Option<SpendKeyId>,
    /// The connection of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    connection_id: Option<ConnectionId>,
    /// The state.
    state: JobState,
    /// The amount that the call holds until the job has ended.
    hold: Amount,
    /// The time of creation.
    created_at: Timestamp,
    /// The time at which the object was last seen at the provider.
    last_seen_at: Timestamp,
    /// The time at which the end was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ended_at: Option<Timestamp>,
    /// The time at which the provider gives up, or 24 hours after the creation.
    expires_at: Timestamp,
}

impl JobView {
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            job_id: job.job_id,
            request_id: job.request_id,
            kind: job.kind,
            provider: job.provider.clone(),
            provider_object_id: job.provider_object_id.clone(),
            spend_key_id: job.spend_key_id,
            connection_id: job.connection_id,
            state: job.state,
            hold: job.hold,
            created_at: job.created_at,
            last_seen_at: job.last_seen_at.unwrap_or(job.created_at),
            ended_at: job.ended_at,
            expires_at: job.expires_at,
        }
    }
}

/// The filters of the list of jobs, as documents have them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct JobQuery {
    /// Only jobs in this state.
    state: Option<JobState>,
    /// Only jobs of this kind.
    kind: Option<JobKind>,
    /// Only jobs of this spend key.
    spend_key_id: Option<SpendKeyId>,
    /// Only jobs of this connection.
    connection_id: Option<ConnectionId>,
    /// Another name of `connection_id`.
    customer_id: Option<ConnectionId>,
}

/// List jobs.
///
/// Newest first.
#[utoipa::path(
    get,
    path = "/jobs",
    operation_id = "listJobs",
    params(JobQuery, PageQuery),
    responses((status = 200, description = "A page", body = ListView<JobView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let merchant_id = caller.merchant_id;
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let states = JobState::ALL.map(JobState::as_str);
    let kinds = JobKind::ALL.map(JobKind::as_str);
    let filter = JobFilter {
        state: word_filter("state", &states, &query, &mut issues).and_then(|it| it.parse().ok()),
        kind: word_filter("kind", &kinds, &query, &mut issues).and_then(|it| it.parse().ok()),
        spend_key_id: optional_id("spend_key_id", query.get("spend_key_id"), &mut issues),
        connection_id: id_filter("connection_id", &query, &mut issues),
    };
    let page = query.page::<JobId>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let read = app.store.read(move |conn| jobs::list(conn, merchant_id, filter, &page));
    let found = read.await?;
    Ok(respond(found, page.limit, |job| job.job_id.to_string(), JobView::of))
}

/// The value of a filter that is one of some words.
fn word_filter<'a>(
    name: &str,
    words: &[&str],
    query: &'a Query,
    issues: &mut Vec<Issue>,
) -> Option<&'a str> {
    let word = query.get(name)?;
    let is_known = words.contains(&word);
    if !is_known {
        issues.push(Issue::at([name], format!("must be one of {}", words.join(", "))));
    }
    is_known.then_some(word)
}

/// Get a job.
#[utoipa::path(
    get,
    path = "/jobs/{id}",
    operation_id = "getJob",
    params(("id" = JobId, Path, description = "The id of a job")),
    responses((status = 200, description = "The job", body = JobView), ApiError, refused::JobNotFound),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let job = find(&app, caller.merchant_id, &id).await?;
    Ok(HttpResponse::Ok().json(JobView::of(&job)))
}

/// Ask the provider for the state of a job.
///
/// If the job has ended, it is settled. The answer is the job after that.
#[utoipa::path(
    post,
    path = "/jobs/{id}/refresh",
    operation_id = "refreshJob",
    params(("id" = JobId, Path, description = "The id of a job"), IdempotencyHeader),
    responses((status = 200, description = "The job", body = JobView), ApiError, refused::JobNotFound),
)]
pub(crate) async fn refresh(
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
    asked: ApiRequest<Caller, EmptyBody>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let merchant_id = asked.caller.merchant_id;
    let job = find(&app, merchant_id, &id).await?;
    let find_open =
        move |conn: &mut Conn| jobs::find_open(conn, &job.provider, &job.provider_object_id);
    let open: Option<_> = app.store.read::<_, StoreError>(find_open).await?;
    if let Some(open) = open {
        tollgate_gateway::look(&app.gateway, &client, &open).await?;
    }
    let job_id = job.job_id;
    app.write_apart(asked.idempotency_key, move |conn| {
        let job = jobs::find(conn, merchant_id, job_id)?.ok_or_else(not_found)?;
        Ok(ApiResponse::ok(&JobView::of(&job)))
    })
    .await
}

async fn find(app: &App, merchant_id: MerchantId, id: &str) -> Result<Job, ApiError> {
    let id: JobId = id.parse().map_err(|_| not_found())?;
    let found: Option<Job> =
        app.store.read::<_, StoreError>(move |conn| jobs::find(conn, merchant_id, id)).await?;
    found.ok_or_else(not_found)
}

fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::JobNotFound, "job")
}
