//! The caller of an operation. An extractor yields the merchant, so a handler cannot skip the check.

use actix_web::dev::Payload;
use actix_web::http::header::AUTHORIZATION;
use actix_web::{FromRequest, HttpRequest, web};
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
            AccessEntry::of(&http).caller(key.merchant_id, CallKey::Secret(key.secret_key_id));
            app.rate_limits.take_call(key.secret_key_id, app.clock.now())?;
            refuse_unknown_parameters(&http)?;
            Ok(Self { merchant_id: key.merchant_id })
        })
    }
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
