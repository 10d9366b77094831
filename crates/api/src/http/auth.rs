//! The caller of an operation. An extractor yields the merchant, so a handler cannot skip the check.

use actix_web::body::BoxBody;
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::header::AUTHORIZATION;
use actix_web::middleware::Next;
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest, ResponseError, web};
use futures_util::future::LocalBoxFuture;
use subtle::ConstantTimeEq;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{Key, KeyKind, MerchantId};
use tollgate_store::{merchants, spend_keys};

use super::error::{ApiError, ErrorCode};
use super::parameters::refuse_unknown_parameters;
use crate::access::AccessEntry;
use crate::app::App;
use crate::client_connections::mark_authenticated;

/// A merchant who has shown a valid secret key, within the standard rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) merchant_id: MerchantId,
}

/// The operator, who has shown the token of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operator;

/// The value of `Authorization: Bearer`.
pub(crate) fn bearer(http: &HttpRequest) -> Result<&str, ApiError> {
    let missing = || {
        ApiError::new(
            ErrorCode::AuthHeaderMissing,
            "Send your key in the header `Authorization: Bearer <key>`.",
        )
    };
    let header = http.headers().get(AUTHORIZATION).ok_or_else(missing)?;
    let text = header.to_str().map_err(|_| ApiError::auth_invalid())?;
    let (scheme, credential) = text.split_once(' ').ok_or_else(missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") || credential.trim().is_empty() {
        return Err(missing());
    }
    Ok(credential.trim())
}

impl FromRequest for Caller {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(http: &HttpRequest, _: &mut Payload) -> Self::Future {
        let http = http.clone();
        Box::pin(async move {
            let app = app(&http)?;
            // A key with a wrong checksum is refused without a query to the store.
            let key = Key::parse(bearer(&http)?).map_err(|_| ApiError::auth_invalid())?;
            let hash = key.hash();
            if key.kind() == KeyKind::Spend {
                let known = move |conn: &mut _| spend_keys::find_by_hash(conn, &hash);
                return Err(match app.store.read(known).await? {
                    Some(_) => ApiError::new(
                        ErrorCode::OperationNotAllowed,
                        "A spend key only forwards calls. Use a secret key of the merchant here.",
                    ),
                    None => ApiError::auth_invalid(),
                });
            }
            let found = app.store.read(move |conn| merchants::find_secret_key(conn, &hash)).await?;
            let key = found.ok_or_else(ApiError::auth_invalid)?;
            mark_authenticated(&http);
            mark_operation(&http, key.merchant_id);
            AccessEntry::of(&http).caller(key.merchant_id, CallKey::Secret(key.secret_key_id));
            app.rate_limits.take_call(key.secret_key_id, app.clock.now())?;
            refuse_unknown_parameters(&http)?;
            Ok(Self { merchant_id: key.merchant_id })
        })
    }
}

/// The merchant of an operation.
#[derive(Clone, Copy)]
struct OperationMerchant(MerchantId);

/// Notes the merchant of an operation, which is confirmed only while the merchant is in this cell.
pub fn mark_operation(http: &HttpRequest, merchant_id: MerchantId) {
    http.extensions_mut().insert(OperationMerchant(merchant_id));
}

/// Answers an operation that changes something only while its merchant is in this cell. A merchant may begin to move after
/// the caller was checked. What is written from then on stays behind, so it is not confirmed.
pub(crate) async fn answer_if_here(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let is_change = !request.method().is_safe();
    let response = next.call(request).await?;
    let status = response.status();
    let merchant = response.request().extensions().get::<OperationMerchant>().copied();
    if let Some(OperationMerchant(merchant_id)) = merchant
        && is_change
        && (status.is_success() || status.is_redirection())
    {
        let app = app(response.request())?;
        let here = move |conn: &mut _| merchants::require_here(conn, merchant_id);
        if let Err(cause) = app.store.read(here).await {
            return Ok(response.into_response(ApiError::from(cause).error_response()));
        }
    }
    Ok(response)
}

impl FromRequest for Operator {
    type Error = ApiError;
    type Future = std::future::Ready<Result<Self, ApiError>>;

    fn from_request(http: &HttpRequest, _: &mut Payload) -> Self::Future {
        std::future::ready(operator(http))
    }
}

fn operator(http: &HttpRequest) -> Result<Operator, ApiError> {
    let app = app(http)?;
    let token = app.settings.operator_token.as_deref().ok_or_else(|| {
        ApiError::new(ErrorCode::RouteNotFound, "The operator's routes are off: no token is set.")
    })?;
    let shown = bearer(http)?;
    match bool::from(shown.as_bytes().ct_eq(token.as_bytes())) {
        true => {
            mark_authenticated(http);
            refuse_unknown_parameters(http).map(|()| Operator)
        }
        false => Err(ApiError::auth_invalid()),
    }
}

/// The state behind the operations, as the server mounted it.
///
/// # Errors
/// When it was mounted without it, which is a defect.
pub fn app(http: &HttpRequest) -> Result<web::Data<App>, ApiError> {
    http.app_data::<web::Data<App>>().cloned().ok_or_else(|| {
        log::error!("the routes were mounted without their application");
        ApiError::new(ErrorCode::InternalError, "Something went wrong in the service.")
    })
}
