//! Webhooks and their deliveries.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::{Deserr, IntoValue, Value, ValuePointerRef};
use serde::Serialize;
use tollgate_domain::{
    Delivery, DeliveryFault, DeliveryId, DeliveryStatus, EventId, EventKind, Issue, NewWebhook,
    Timestamp, Webhook, WebhookChanges, WebhookId, WebhookSecret,
};
use tollgate_provider::{WebhookUrl, WebhookUrlPolicy};
use tollgate_store::Page;
use tollgate_store::deliveries::{self, DeliveryFilter};
use tollgate_store::webhooks::{self, MOST_WEBHOOKS};
use utoipa::{IntoParams, ToSchema};

use super::{Deleted, EmptyBody};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{EnumField, Issues, NameField, NullablePatch, PatchField, refuse};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, Query, page, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = Webhook)]
pub(crate) struct WebhookView {
    /// The id of the webhook.
    webhook_id: WebhookId,
    /// A name for people.
    name: String,
    /// The URL that receives the events.
    url: String,
    /// The kinds of events that are sent. Null: all but `request.*`.
    #[schema(value_type = Option<Vec<WantedKind>>, required)]
    events: Option<Vec<EventKind>>,
    /// The secret. It is only in the answers to creation and rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    webhook_secret: Option<String>,
    /// The time of creation.
    created_at: Timestamp,
}

impl WebhookView {
    pub(crate) fn of(webhook: &Webhook) -> Self {
        Self {
            webhook_id: webhook.webhook_id,
            name: webhook.name.clone(),
            url: webhook.url.clone(),
            events: webhook.events.clone(),
            webhook_secret: None,
            created_at: webhook.created_at,
        }
    }

    /// The view with the secret, which is shown only once.
    fn revealing(webhook: &Webhook, secret: &WebhookSecret) -> Self {
        Self { webhook_secret: Some(secret.reveal()), ..Self::of(webhook) }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Delivery)]
struct DeliveryView {
    /// The id of the delivery.
    delivery_id: DeliveryId,
    /// The `webhook-id` of the message, the same at every attempt.
    event_id: EventId,
    /// The kind of the event.
    r#type: EventKind,
    /// The number of the message on the webhook, from 1 and without gaps.
    #[schema(minimum = 1)]
    sequence: u64,
    /// The state.
    status: DeliveryStatus,
    /// The number of attempts.
    attempts: u32,
    /// The status of the last answer.
    #[schema(required)]
    response_status: Option<u16>,
    /// The beginning of the last answer, at most 4 KiB.
    #[schema(required)]
    response_body: Option<String>,
    /// The reason why there was no answer.
    #[schema(required)]
    error: Option<DeliveryFault>,
    /// The duration of the last attempt in milliseconds.
    #[schema(required)]
    duration_ms: Option<u32>,
    /// The time of the last attempt.
    #[schema(required)]
    last_attempt_at: Option<Timestamp>,
    /// The time of the next attempt. It is null when the delivery is done, while an attempt is under way, and
    /// while it waits for an earlier event.
    #[schema(required)]
    next_attempt_at: Option<Timestamp>,
    /// The time of creation.
    created_at: Timestamp,
}

impl DeliveryView {
    fn of(delivery: &Delivery) -> Self {
        let last = delivery.last.as_ref();
        Self {
            delivery_id: delivery.delivery_id,
            event_id: delivery.event_id,
            r#type: delivery.kind,
            sequence: delivery.sequence,
            status: delivery.status,
            attempts: delivery.attempts,
            response_status: last.and_then(|last| last.response_status),
            response_body: last.and_then(|last| last.response_body.clone()),
            error: last.and_then(|last| last.fault),
            duration_ms: last.map(|last| last.duration_ms),
            last_attempt_at: delivery.last_attempt_at,
            next_attempt_at: delivery.next_attempt_at,
            created_at: delivery.created_at,
        }
    }
}

/// A URL. [`WebhookTarget::check_reach`] checks whether this deployment may call it.
pub(crate) struct WebhookTarget(String);

impl Deserr<Issues> for WebhookTarget {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let text = String::deserialize_from_value(value, location)?;
        match WebhookUrl::parse(&text, WebhookUrlPolicy { http: true, private_network: true }) {
            Ok(_) => Ok(Self(text)),
            Err(why) => Err(refuse(why, location)),
        }
    }
}

impl WebhookTarget {
    fn check_reach(self, reach: WebhookUrlPolicy) -> Result<String, ApiError> {
        match WebhookUrl::parse(&self.0, reach) {
            Ok(_) => Ok(self.0),
            Err(why) => Err(ApiError::invalid(vec![Issue::at(["url"], why.to_string())])),
        }
    }
}

/// The kinds of events to send: at least one, each once.
pub(crate) struct EventKindsField(Vec<EventKind>);

impl Deserr<Issues> for EventKindsField {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let kinds = Vec::<EnumField<EventKind>>::deserialize_from_value(value, location)?;
        let mut kinds: Vec<_> = kinds.into_iter().map(|kind| kind.0).collect();
        kinds.sort_unstable();
        kinds.dedup();
        match kinds.is_empty() {
            true => Err(refuse(
                "must have at least 1 element; null is all but those of single requests",
                location,
            )),
            false => Ok(Self(kinds)),
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct CreateWebhook {
    /// A name for people.
    name: NameField,
    /// The URL to which messages are sent, without user, password and fragment. It must be https and at a public
    /// address, unless the operator allows others.
    url: WebhookTarget,
    /// The kinds of events that are sent, each once. Null means all but `request.*`. Default: null.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<WantedKind>>, min_items = 1)]
    events: Option<EventKindsField>,
}

impl Input for CreateWebhook {}

/// Make a webhook.
#[utoipa::path(
    post,
    path = "/webhooks",
    operation_id = "createWebhook",
    params(IdempotencyHeader),
    request_body = CreateWebhook,
    responses(
        (status = 201, description = "Made; its secret is shown this once", body = WebhookView),
        ApiError,
    ),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Caller, CreateWebhook>,
) -> Result<HttpResponse, ApiError> {
    let CreateWebhook { name, url, events } = asked.what;
    let new = NewWebhook {
        name: name.0,
        url: url.check_reach(app.settings.webhooks)?,
        events: events.map(|kinds| kinds.0),
    };
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write_apart(asked.idempotency_key, move |conn| {
        match webhooks::create(conn, merchant_id, new, now)? {
            Some((webhook, secret)) => {
                Ok(ApiResponse::created(&WebhookView::revealing(&webhook, &secret)))
            }
            None => {
                let message = format!("is one too many: a merchant has at most {MOST_WEBHOOKS}");
                Err(ApiError::invalid(vec![Issue::at([], message)]))
            }
        }
    })
    .await
}

/// List webhooks.
#[utoipa::path(
    get,
    path = "/webhooks",
    operation_id = "listWebhooks",
    params(PageQuery),
    responses((status = 200, description = "A page", body = ListView<WebhookView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let page = page::<WebhookId>(&http)?;
    let read = move |conn: &mut _| webhooks::list(conn, caller.merchant_id, &page);
    let found = app.store.read(read).await?;
    Ok(respond(found, page.limit, |one| one.webhook_id.to_string(), WebhookView::of))
}

/// The error of a webhook that does not exist, or is of another merchant.
pub fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::WebhookNotFound, "webhook")
}

/// Read a webhook.
#[utoipa::path(
    get,
    path = "/webhooks/{id}",
    operation_id = "getWebhook",
    params(("id" = WebhookId, Path)),
    responses(
        (status = 200, description = "The webhook", body = WebhookView),
        ApiError, refused::WebhookNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: WebhookId = id.parse().map_err(|_| not_found())?;
    let read = move |conn: &mut _| webhooks::find(conn, caller.merchant_id, id);
    let webhook = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(WebhookView::of(&webhook)))
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct UpdateWebhook {
    /// A name for people.
    #[deserr(default)]
    #[schema(value_type = Option<NameField>, nullable = false)]
    name: PatchField<NameField>,
    /// The URL to which messages are sent, without user, password and fragment. It must be https and at a public
    /// address, unless the operator allows others.
    #[deserr(default)]
    #[schema(value_type = Option<WebhookTarget>, nullable = false)]
    url: PatchField<WebhookTarget>,
    /// The kinds of events that are sent, each once. Null means all but `request.*`.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<WantedKind>>, min_items = 1)]
    events: NullablePatch<EventKindsField>,
}

impl Input for UpdateWebhook {
    const READ_ONLY: &'static [&'static str] = &["webhook_id", "webhook_secret", "created_at"];
}

/// Change a webhook.
///
/// Absent fields are kept. Attempts from now on go to the new URL.
#[utoipa::path(
    patch,
    path = "/webhooks/{id}",
    operation_id = "updateWebhook",
    params(("id" = WebhookId, Path)),
    request_body = UpdateWebhook,
    responses(
        (status = 200, description = "The webhook as it is now", body = WebhookView),
        ApiError, refused::WebhookNotFound,
    ),
)]
pub(crate) async fn update(
    app: web::Data<App>,
    asked: ApiRequest<Caller, UpdateWebhook>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: WebhookId = id.parse().map_err(|_| not_found())?;
    let UpdateWebhook { name, url, events } = asked.what;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    let find = move |conn: &mut _| webhooks::find(conn, merchant_id, id);
    let webhook = app.store.read(find).await?.ok_or_else(not_found)?;
    // An unchanged URL is not checked again, so that a response can be sent back.
    let url = url.0.filter(|url| url.0 != webhook.url);
    let changes = WebhookChanges {
        name: name.0.map(|name| name.0),
        url: url.map(|url| url.check_reach(app.settings.webhooks)).transpose()?,
        events: events.into_option(|kinds| kinds.0),
    };
    app.write_apart(None, move |conn| {
        let webhook = webhooks::update(conn, merchant_id, id, changes, now)?;
        Ok(ApiResponse::ok(&WebhookView::of(&webhook.ok_or_else(not_found)?)))
    })
    .await
}

/// Delete a webhook.
#[utoipa::path(
    delete,
    path = "/webhooks/{id}",
    operation_id = "deleteWebhook",
    params(("id" = WebhookId, Path)),
    responses(
        (status = 200, description = "Deleted", body = Deleted),
        ApiError, refused::WebhookNotFound,
    ),
)]
pub(crate) async fn delete(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: WebhookId = id.parse().map_err(|_| not_found())?;
    let now = app.clock.now();
    app.write_apart(None, move |conn| match webhooks::delete(conn, caller.merchant_id, id, now)? {
        true => Ok(ApiResponse::ok(&Deleted { id: id.to_string(), deleted: true })),
        false => Err(not_found()),
    })
    .await
}

/// Replace the secret.
///
/// For a day, messages are signed with the old secret, too.
#[utoipa::path(
    post,
    path = "/webhooks/{id}/rotate",
    operation_id = "rotateWebhook",
    params(("id" = WebhookId, Path), IdempotencyHeader),
    responses(
        (status = 200, description = "The webhook; its new secret is shown this once", body = WebhookView),
        ApiError, refused::WebhookNotFound,
    ),
)]
pub(crate) async fn rotate(
    app: web::Data<App>,
    asked: ApiRequest<Caller, EmptyBody>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: WebhookId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write_apart(asked.idempotency_key, move |conn| {
        let rotated = webhooks::rotate(conn, merchant_id, id, now)?;
        let (webhook, secret) = rotated.ok_or_else(not_found)?;
        Ok(ApiResponse::ok(&WebhookView::revealing(&webhook, &secret)))
    })
    .await
}

/// Send a test event.
///
/// The answer is its delivery, which is about to begin.
#[utoipa::path(
    post,
    path = "/webhooks/{id}/test",
    operation_id = "testWebhook",
    params(("id" = WebhookId, Path), IdempotencyHeader),
    responses(
        (status = 200, description = "The delivery, which is just to begin", body = DeliveryView),
        ApiError, refused::WebhookNotFound,
    ),
)]
pub(crate) async fn test(
    app: web::Data<App>,
    asked: ApiRequest<Caller, EmptyBody>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: WebhookId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write_apart(asked.idempotency_key, move |conn| {
        let delivery = deliveries::send_test(conn, merchant_id, id, now)?.ok_or_else(not_found)?;
        Ok(ApiResponse::ok(&DeliveryView::of(&delivery)))
    })
    .await
}

/// The filter of a list of deliveries, as documents have it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct DeliveryQuery {
    /// Only deliveries in this state. `all` does not restrict the list. Default: `all`.
    #[param(inline)]
    status: Option<DeliveryStatusFilter>,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "read by its derive only")]
enum DeliveryStatusFilter {
    Pending,
    Delivered,
    Failed,
    All,
}

/// List the deliveries of a webhook.
#[utoipa::path(
    get,
    path = "/webhooks/{id}/deliveries",
    operation_id = "listDeliveries",
    params(("id" = WebhookId, Path), DeliveryQuery, PageQuery),
    responses(
        (status = 200, description = "A page", body = ListView<DeliveryView>),
        ApiError, refused::WebhookNotFound,
    ),
)]
pub(crate) async fn list_deliveries(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let id: WebhookId = id.parse().map_err(|_| not_found())?;
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let status = match query.get("status") {
        None | Some("all") => None,
        Some("pending") => Some(DeliveryStatus::Pending),
        Some("delivered") => Some(DeliveryStatus::Delivered),
        Some("failed") => Some(DeliveryStatus::Failed),
        Some(_) => {
            let message = "must be one of pending, delivered, failed, all";
            issues.push(Issue::at(["status"], message));
            None
        }
    };
    let page: Page<DeliveryId> = query.page(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let filter = DeliveryFilter { status };
    let read = move |conn: &mut _| deliveries::list(conn, caller.merchant_id, id, filter, &page);
    let found = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(respond(found, page.limit, |one| one.delivery_id.to_string(), DeliveryView::of))
}

/// The error of a delivery that does not exist, or is of another merchant.
pub fn delivery_not_found() -> ApiError {
    ApiError::not_found(ErrorCode::DeliveryNotFound, "delivery")
}

/// The ids of a path to a delivery.
fn ids(path: &(String, String)) -> Result<(WebhookId, DeliveryId), ApiError> {
    let webhook_id = path.0.parse().map_err(|_| not_found())?;
    Ok((webhook_id, path.1.parse().map_err(|_| delivery_not_found())?))
}

/// Read a delivery.
#[utoipa::path(
    get,
    path = "/webhooks/{id}/deliveries/{delivery_id}",
    operation_id = "getDelivery",
    params(("id" = WebhookId, Path), ("delivery_id" = DeliveryId, Path)),
    responses(
        (status = 200, description = "The delivery", body = DeliveryView),
        ApiError, refused::WebhookNotFound, refused::DeliveryNotFound,
    ),
)]
pub(crate) async fn get_delivery(
    app: web::Data<App>,
    caller: Caller,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, ApiError> {
    let (webhook_id, delivery_id) = ids(&path)?;
    let read = move |conn: &mut _| {
        let merchant_id = caller.merchant_id;
        webhooks::find(conn, merchant_id, webhook_id)?.ok_or_else(not_found)?;
        let found = deliveries::find(conn, merchant_id, webhook_id, delivery_id)?;
        found.ok_or_else(delivery_not_found)
    };
    let delivery = app.store.read(read).await?;
    Ok(HttpResponse::Ok().json(DeliveryView::of(&delivery)))
}

/// Deliver again.
///
/// The delivery is made again, whatever its state.
#[utoipa::path(
    post,
    path = "/webhooks/{id}/deliveries/{delivery_id}/redeliver",
    operation_id = "redeliver",
    params(("id" = WebhookId, Path), ("delivery_id" = DeliveryId, Path), IdempotencyHeader),
    responses(
        (status = 200, description = "The delivery, which starts again at once", body = DeliveryView),
        ApiError, refused::WebhookNotFound, refused::DeliveryNotFound,
    ),
)]
pub(crate) async fn redeliver(
    app: web::Data<App>,
    asked: ApiRequest<Caller, EmptyBody>,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, ApiError> {
    let (webhook_id, delivery_id) = ids(&path)?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write_apart(asked.idempotency_key, move |conn| {
        webhooks::find(conn, merchant_id, webhook_id)?.ok_or_else(not_found)?;
        let sent = deliveries::redeliver(conn, merchant_id, webhook_id, delivery_id, now)?;
        Ok(ApiResponse::ok(&DeliveryView::of(&sent.ok_or_else(delivery_not_found)?)))
    })
    .await
}
