//! Secret keys: a merchant's own API keys.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::Deserr;
use serde::Serialize;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{SecretKey, SecretKeyId, Timestamp};
use tollgate_store::merchants::{self, SecretKeyDeletion};
use utoipa::ToSchema;

use super::Deleted;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{Issues, NameField};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, page, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = SecretKey)]
pub(crate) struct SecretKeyView {
    /// The id of the secret key.
    secret_key_id: SecretKeyId,
    /// A name for people.
    name: String,
    /// The first characters of the key.
    key_preview: String,
    /// The key itself. It is only in the answer to creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    secret_key: Option<String>,
    /// The time of creation.
    created_at: Timestamp,
}

impl SecretKeyView {
    fn of(key: &SecretKey) -> Self {
        Self {
            secret_key_id: key.secret_key_id,
            name: key.name.clone(),
            key_preview: key.key_preview.clone(),
            secret_key: None,
            created_at: key.created_at,
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct CreateSecretKey {
    /// A name for people.
    name: NameField,
}

impl Input for CreateSecretKey {}

/// Make a secret key.
#[utoipa::path(
    post,
    path = "/secret_keys",
    operation_id = "createSecretKey",
    params(IdempotencyHeader),
    request_body = CreateSecretKey,
    responses(
        (status = 201, description = "Made; the key is shown this once", body = SecretKeyView),
        ApiError,
    ),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Caller, CreateSecretKey>,
) -> Result<HttpResponse, ApiError> {
    let (merchant_id, name, now) = (asked.caller.merchant_id, asked.what.name.0, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        let (secret_key, key) = merchants::create_secret_key(conn, merchant_id, &name, now)?;
        let shown = Some(key.reveal().to_owned());
        Ok(ApiResponse::created(&SecretKeyView {
            secret_key: shown,
            ..SecretKeyView::of(&secret_key)
        }))
    })
    .await
}

/// List secret keys.
#[utoipa::path(
    get,
    path = "/secret_keys",
    operation_id = "listSecretKeys",
    params(PageQuery),
    responses((status = 200, description = "A page", body = ListView<SecretKeyView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let page = page::<SecretKeyId>(&http)?;
    let read = move |conn: &mut _| merchants::list_secret_keys(conn, caller.merchant_id, &page);
    let found = app.store.read(read).await?;
    Ok(respond(found, page.limit, |one| one.secret_key_id.to_string(), SecretKeyView::of))
}

/// Delete a secret key.
#[utoipa::path(
    delete,
    path = "/secret_keys/{id}",
    operation_id = "deleteSecretKey",
    params(("id" = SecretKeyId, Path)),
    responses(
        (status = 200, description = "Deleted", body = Deleted),
        ApiError, refused::SecretKeyNotFound, refused::LastSecretKey,
    ),
)]
pub(crate) async fn delete(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let not_found = || ApiError::not_found(ErrorCode::SecretKeyNotFound, "secret key");
    let key_id: SecretKeyId = id.parse().map_err(|_| not_found())?;
    let now = app.clock.now();
    let work = move |conn: &mut _| match merchants::delete_secret_key(
        conn,
        caller.merchant_id,
        key_id,
        now,
    )? {
        SecretKeyDeletion::Deleted => {
            Ok(ApiResponse::ok(&Deleted { id: key_id.to_string(), deleted: true }))
        }
        SecretKeyDeletion::NotFound => Err(not_found()),
        SecretKeyDeletion::Last => Err(ApiError::new(
            ErrorCode::LastSecretKey,
            "This is the last secret key. Create another before you delete it.",
        )),
    };
    let response = app.write(None, work).await?;
    app.gateway.forget_key(CallKey::Secret(key_id));
    Ok(response)
}
