//! A merchant's own API keys.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::Deserr;
use serde::Serialize;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{SecretKey, SecretKeyId, Timestamp};
use tollgate_store::merchants::{self, Deletion};

use super::Deleted;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{Asked, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{Issues, Name};
use crate::http::idempotency::Reply;
use crate::http::list::{page, respond};

#[derive(Serialize)]
struct SecretKeyView {
    secret_key_id: SecretKeyId,
    name: String,
    key_preview: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_key: Option<String>,
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

#[derive(Deserr)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct CreateSecretKey {
    name: Name,
}

impl Input for CreateSecretKey {}

/// `POST /secret_keys`
pub(crate) async fn create(
    app: web::Data<App>,
    asked: Asked<Caller, CreateSecretKey>,
) -> Result<HttpResponse, ApiError> {
    let (merchant_id, name, now) = (asked.who.merchant_id, asked.what.name.0, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        let (secret_key, key) = merchants::create_secret_key(conn, merchant_id, &name, now)?;
        let shown = Some(key.reveal().to_owned());
        Ok(Reply::created(&SecretKeyView { secret_key: shown, ..SecretKeyView::of(&secret_key) }))
    })
    .await
}

/// `GET /secret_keys`
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

/// `DELETE /secret_keys/{id}`
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
        Deletion::Deleted => Ok(Reply::ok(&Deleted { id: key_id.to_string(), deleted: true })),
        Deletion::NotFound => Err(not_found()),
        Deletion::Last => Err(ApiError::new(
            ErrorCode::LastSecretKey,
            "This is the last secret key. Create another before you delete it.",
        )),
    };
    let response = app.write(None, work).await?;
    app.forget_key(CallKey::Secret(key_id));
    Ok(response)
}
