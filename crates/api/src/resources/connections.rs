//! Connections: a merchant's customers.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::Deserr;
use serde::Serialize;
use tollgate_domain::{
    AnswerReport, BudgetId, Connection, ConnectionChanges, ConnectionId, ConnectionStatus,
    Metadata, NewConnection, Timestamp, WalletId,
};
use tollgate_store::connections::{self, ConnectionUpdate};
use utoipa::ToSchema;

use super::Success;
use super::budgets::not_found as budget_not_found;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{
    EnumField, EnumWords, Issues, MetadataField, NameField, NullablePatch, PatchField,
};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, page, respond};
use crate::openapi::fields::MetadataSchema;
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = Connection)]
pub(crate) struct ConnectionView {
    /// The id of the connection.
    connection_id: ConnectionId,
    /// Your own name for the connection. Null: none.
    #[schema(required)]
    reference_id: Option<String>,
    /// A name for people. Null: none.
    #[schema(required)]
    name: Option<String>,
    /// An e-mail address. Null: none.
    #[schema(required)]
    email: Option<String>,
    /// Pairs of strings that you can filter by.
    metadata: Metadata,
    /// The wallet of the connection.
    wallet_id: WalletId,
    /// The state.
    status: ConnectionStatus,
    /// The report in the answers to its calls. Null: none.
    #[schema(required)]
    report: Option<AnswerReport>,
    /// The budget that its calls count against. Null: none.
    #[schema(required)]
    budget_id: Option<BudgetId>,
    /// The time of creation.
    created_at: Timestamp,
}

impl ConnectionView {
    pub(crate) fn of(connection: &Connection) -> Self {
        Self {
            connection_id: connection.connection_id,
            reference_id: connection.reference_id.clone(),
            name: connection.name.clone(),
            email: connection.email.clone(),
            metadata: connection.metadata.clone(),
            wallet_id: connection.wallet_id,
            status: connection.status,
            report: connection.report,
            budget_id: connection.budget_id,
            created_at: connection.created_at,
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct CreateConnection {
    /// Your own name for the connection. It is unique among the connections that are not deleted.
    #[deserr(default)]
    reference_id: Option<NameField>,
    /// A name for people.
    #[deserr(default)]
    name: Option<NameField>,
    /// An e-mail address. It is not checked.
    #[deserr(default)]
    email: Option<NameField>,
    /// Pairs of strings that you can filter by.
    #[deserr(default)]
    metadata: Option<MetadataField>,
    /// The report in the answers to its calls: `cost`, what each call cost. Default: none.
    #[deserr(default)]
    #[schema(value_type = Option<AnswerReport>)]
    report: Option<EnumField<AnswerReport>>,
    /// The budget that its calls count against, with all that include it. Default: none.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetId>)]
    budget_id: Option<NameField>,
}

impl Input for CreateConnection {}

fn budget(id: Option<String>) -> Result<Option<BudgetId>, ApiError> {
    id.map(|id| id.parse().map_err(|_| budget_not_found())).transpose()
}

/// Make a connection.
///
/// A repetition with the same `reference_id` answers with the connection that has it.
#[utoipa::path(
    post,
    path = "/connections",
    operation_id = "createConnection",
    params(IdempotencyHeader),
    request_body = CreateConnection,
    responses(
        (status = 201, description = "Made", body = ConnectionView),
        (status = 200, description = "The connection that has the reference", body = ConnectionView),
        ApiError, refused::BudgetNotFound,
    ),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Caller, CreateConnection>,
) -> Result<HttpResponse, ApiError> {
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    let new = NewConnection {
        reference_id: asked.what.reference_id.map(|name| name.0),
        name: asked.what.name.map(|name| name.0),
        email: asked.what.email.map(|name| name.0),
        metadata: asked.what.metadata.unwrap_or_default().0,
        report: asked.what.report.map(|word| word.0),
        budget_id: budget(asked.what.budget_id.map(|id| id.0))?,
    };
    app.write(asked.idempotency_key, move |conn| {
        let made = connections::create(conn, merchant_id, &new, now)?;
        let made = made.ok_or_else(budget_not_found)?;
        let view = ConnectionView::of(&made.connection);
        Ok(if made.is_new { ApiResponse::created(&view) } else { ApiResponse::ok(&view) })
    })
    .await
}

/// List connections.
#[utoipa::path(
    get,
    path = "/connections",
    operation_id = "listConnections",
    params(PageQuery),
    responses((status = 200, description = "A page", body = ListView<ConnectionView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let page = page::<ConnectionId>(&http)?;
    let read = move |conn: &mut _| connections::list(conn, caller.merchant_id, &page);
    let found = app.store.read(read).await?;
    Ok(respond(found, page.limit, |one| one.connection_id.to_string(), ConnectionView::of))
}

/// The error of a connection that does not exist, or is of another merchant.
pub fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::ConnectionNotFound, "connection")
}

/// Read a connection, even a deleted one.
#[utoipa::path(
    get,
    path = "/connections/{id}",
    operation_id = "getConnection",
    params(("id" = ConnectionId, Path)),
    responses(
        (status = 200, description = "The connection", body = ConnectionView),
        ApiError, refused::ConnectionNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: ConnectionId = id.parse().map_err(|_| not_found())?;
    let read = move |conn: &mut _| connections::find(conn, caller.merchant_id, id);
    let connection = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(ConnectionView::of(&connection)))
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct UpdateConnection {
    /// A name for people. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<NameField>)]
    name: NullablePatch<NameField>,
    /// An e-mail address. It is not checked. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<NameField>)]
    email: NullablePatch<NameField>,
    /// Pairs of strings that you can filter by, replaced as a whole. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<Metadata>)]
    metadata: NullablePatch<MetadataField>,
    /// Whether calls for the connection are accepted.
    #[deserr(default)]
    #[schema(value_type = Option<SettableStatus>, nullable = false)]
    status: PatchField<EnumField<SettableStatus>>,
    /// The report in the answers to its calls: `cost`, what each call cost. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<AnswerReport>)]
    report: NullablePatch<EnumField<AnswerReport>>,
    /// The budget that its calls count against from the next one on. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetId>)]
    budget_id: NullablePatch<NameField>,
}

impl Input for UpdateConnection {
    const READ_ONLY: &'static [&'static str] =
        &["connection_id", "reference_id", "wallet_id", "created_at"];
}

/// A status that a change can set. Deletion is an operation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SettableConnectionStatus)]
pub(crate) enum SettableStatus {
    Active,
    Suspended,
}

impl EnumWords for SettableStatus {
    const ALL: &'static [Self] = &[Self::Active, Self::Suspended];
}

/// Change a connection.
#[utoipa::path(
    patch,
    path = "/connections/{id}",
    operation_id = "updateConnection",
    params(("id" = ConnectionId, Path)),
    request_body = UpdateConnection,
    responses(
        (status = 200, description = "The connection as it is now", body = ConnectionView),
        ApiError, refused::ConnectionNotFound, refused::BudgetNotFound,
    ),
)]
pub(crate) async fn update(
    app: web::Data<App>,
    asked: ApiRequest<Caller, UpdateConnection>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: ConnectionId = id.parse().map_err(|_| not_found())?;
    let changes = ConnectionChanges {
        name: asked.what.name.into_option(|name| name.0),
        email: asked.what.email.into_option(|name| name.0),
        metadata: asked.what.metadata.into_option(|field| field.0).map(Option::unwrap_or_default),
        is_suspended: asked.what.status.0.map(|status| status.0 == SettableStatus::Suspended),
        report: asked.what.report.into_option(|word| word.0),
        budget_id: asked.what.budget_id.into_option(|id| id.0).map(budget).transpose()?,
    };
    let now = app.clock.now();
    app.write(None, move |conn| {
        match connections::update(conn, asked.caller.merchant_id, id, &changes, now)? {
            ConnectionUpdate::Connection(changed) => {
                Ok(ApiResponse::ok(&ConnectionView::of(&changed)))
            }
            ConnectionUpdate::NotFound => Err(not_found()),
            ConnectionUpdate::BudgetNotFound => Err(budget_not_found()),
        }
    })
    .await
}

/// Delete a connection.
#[utoipa::path(
    delete,
    path = "/connections/{id}",
    operation_id = "deleteConnection",
    params(("id" = ConnectionId, Path)),
    responses(
        (status = 200, description = "Deleted", body = Success),
        ApiError, refused::ConnectionNotFound,
    ),
)]
pub(crate) async fn delete(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: ConnectionId = id.parse().map_err(|_| not_found())?;
    let now = app.clock.now();
    app.write(None, move |conn| match connections::delete(conn, caller.merchant_id, id, now)? {
        true => Ok(ApiResponse::ok(&Success { success: true })),
        false => Err(not_found()),
    })
    .await
}
