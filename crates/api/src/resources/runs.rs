//! Runs: the calls of one task of an agent.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tollgate_domain::{ConnectionId, Run, RunId, SpendKeyId, Timestamp};
use tollgate_pricing::Amount;
use tollgate_store::runs::{self, RunFilter};
use utoipa::{IntoParams, ToSchema};

use super::{id_filter, optional_id};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::http::list::{ListView, PageQuery, Query, respond};
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = Run)]
struct RunView {
    /// The id that its calls have in `x-service-run`. Empty for the calls of a day (UTC) without a run, under a spend key
    /// with a `run_limit`.
    run_id: RunId,
    /// The spend key that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spend_key_id: Option<SpendKeyId>,
    /// The connection that it belongs to, if its calls have no spend key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    connection_id: Option<ConnectionId>,
    /// The limit of money that its calls have set in `x-service-run-limit`. The `run_limit` of the spend key applies as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit: Option<Amount>,
    /// The cost of its calls that have ended.
    spend: Amount,
    /// The holds of its calls in flight.
    held: Amount,
    /// The number of its admitted calls.
    calls: u64,
    /// The time of its first call.
    first_at: Timestamp,
    /// The time of its last call.
    last_at: Timestamp,
}

impl RunView {
    fn of(run: &Run) -> Self {
        let counters = &run.counters;
        // A run that is listed has had a call.
        let first_at =
            run.first_at.or(counters.last_used_at).unwrap_or(Timestamp::from_unix_micros(0));
        Self {
            run_id: run.run_id.clone(),
            spend_key_id: run.spend_key_id,
            connection_id: run.connection_id,
            limit: run.limit,
            spend: counters.spent.total,
            held: counters.held.total,
            calls: counters.requests.total,
            first_at,
            last_at: counters.last_used_at.unwrap_or(first_at),
        }
    }
}

/// The filters of the list of runs, as documents have them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct RunQuery {
    /// Only runs of this spend key.
    spend_key_id: Option<SpendKeyId>,
    /// Only runs of this connection. A run of a spend key is not one of its connection.
    connection_id: Option<ConnectionId>,
    /// Another name of `connection_id`.
    customer_id: Option<ConnectionId>,
}

/// List runs.
///
/// By their first calls, newest first. A run is forgotten 30 days after its last call.
#[utoipa::path(
    get,
    path = "/runs",
    operation_id = "listRuns",
    params(RunQuery, PageQuery),
    responses((status = 200, description = "A page", body = ListView<RunView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let merchant_id = caller.merchant_id;
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let filter = RunFilter {
        spend_key_id: optional_id("spend_key_id", query.get("spend_key_id"), &mut issues),
        connection_id: id_filter("connection_id", &query, &mut issues),
    };
    let page = query.page(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let read = app.store.read(move |conn| runs::list(conn, merchant_id, filter, &page));
    let found = read.await?;
    Ok(respond(found, page.limit, |run| run.account_id.to_string(), RunView::of))
}
