//! Events of providers about objects: a job that has ended is looked at without delay.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use subtle::ConstantTimeEq;
use tollgate_store::jobs;
use utoipa::ToSchema;

use super::Success;
use crate::app::App;
use crate::http::body;
use crate::http::error::{ApiError, ErrorCode};
use crate::openapi::marks::refused;

/// The largest difference between the time of an event and ours, in seconds.
const MOST_SECONDS: i64 = 300;
/// The beginnings of the kinds of events about jobs.
const KINDS: [&str; 3] = ["response.", "batch.", "video."];
/// The longest id of an object.
const MAX_ID_BYTES: usize = 512;

/// An event of a provider, by Standard Webhooks.
#[derive(Deserialize, ToSchema)]
#[schema(as = ProviderEvent)]
struct ProviderEventInput {
    /// The kind, such as `response.completed`.
    #[serde(default)]
    r#type: String,
    /// The object that it is about.
    data: Option<ProviderEventObject>,
}

#[derive(Deserialize, ToSchema)]
struct ProviderEventObject {
    /// The provider's id of the object.
    #[serde(default)]
    id: String,
}

/// Take an event of a provider.
///
/// The URL of a provider's webhook. The event is signed by Standard Webhooks, with the `webhook_secret` of the provider in
/// the configuration. Events about unknown objects, and of other kinds, are accepted.
#[utoipa::path(
    post,
    path = "/provider_events/{provider}",
    operation_id = "takeProviderEvent",
    params(("provider" = String, Path, description = "Its name in the configuration")),
    request_body = ProviderEventInput,
    responses(
        (status = 200, description = "It is taken", body = Success),
        ApiError, refused::AuthInvalid,
    ),
    security(()),
)]
pub(crate) async fn take(
    app: web::Data<App>,
    http: HttpRequest,
    payload: web::Payload,
    provider: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let limit = app.settings.body_limit_bytes;
    let body = body::read(&http, &mut payload.into_inner(), limit).await?;
    check_signature(&app, &http, &provider, &body)?;
    let event: ProviderEventInput = serde_json::from_slice(&body).map_err(|_| {
        ApiError::new(ErrorCode::JsonInvalid, "The event must be a JSON object with type and data.")
    })?;
    let id = event.data.map(|object| object.id).unwrap_or_default();
    let concerns_job = KINDS.iter().any(|kind| event.r#type.starts_with(kind));
    if concerns_job && (1..=MAX_ID_BYTES).contains(&id.len()) && !id.contains('\0') {
        let (provider, now) = (provider.into_inner(), app.clock.now());
        let taken = app
            .store
            .write_outside_calls(move |conn| jobs::take_provider_event(conn, &provider, &id, now));
        taken.await?;
    }
    Ok(HttpResponse::Ok().json(Success::yes()))
}

/// Checks the signature of an event. A provider without a secret has no events.
fn check_signature(
    app: &App,
    http: &HttpRequest,
    provider: &str,
    body: &[u8],
) -> Result<(), ApiError> {
    let header = |name: &str| http.headers().get(name)?.to_str().ok();
    let provider = app.gateway.providers.get(provider);
    let secret = provider.and_then(|provider| provider.webhook_secret.as_ref());
    let found = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
    let (Some(secret), (Some(id), Some(timestamp), Some(signatures))) = (secret, found) else {
        return Err(ApiError::auth_invalid());
    };
    let sent_at: i64 = timestamp.parse().map_err(|_| ApiError::auth_invalid())?;
    let now = app.clock.now().unix_micros().div_euclid(1_000_000);
    let is_current = now.abs_diff(sent_at) <= MOST_SECONDS.unsigned_abs();
    let expected = secret.signature(id, sent_at, body).unwrap_or_default();
    let mut signatures = signatures.split(' ');
    let is_signed = signatures.any(|one| one.as_bytes().ct_eq(expected.as_bytes()).into());
    match is_current && is_signed && !expected.is_empty() {
        true => Ok(()),
        false => Err(ApiError::auth_invalid()),
    }
}
