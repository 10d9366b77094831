//! The operations that forms of pages perform. They are the handlers of the API, so a form follows the same rules.

use actix_web::HttpResponse;
use actix_web::body::MessageBody as _;
use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Path};
use serde_json::Value;
use tollgate_domain::MerchantId;

use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::ApiRequest;
use crate::http::error::{ApiError, ErrorCode};
use crate::resources::{
    budgets, connections, meters, secret_keys, spend_keys, subscription_configs, subscriptions,
    wallets, webhooks,
};

/// Performs an operation for a merchant whose session a form has proved. `operation` is its id in the OpenAPI document,
/// `id` the resource of its path, empty for none. Returns the status and the body of its answer.
///
/// # Errors
/// The error of the operation, or `route_not_found` for an operation that no form performs.
pub async fn perform(
    app: Data<App>,
    merchant_id: MerchantId,
    operation: &str,
    id: &str,
    body: &Value,
) -> Result<(StatusCode, Value), ApiError> {
    let caller = Caller { merchant_id };
    let path = || Path::from(id.to_owned());
    /// The request of an operation with a body.
    macro_rules! request {
        () => {
            ApiRequest::of_form(caller, body)?
        };
    }
    let answer = match operation {
        "createConnection" => connections::create(app, request!()).await,
        "updateConnection" => connections::update(app, request!(), path()).await,
        "deleteConnection" => connections::delete(app, caller, path()).await,
        "creditWallet" => wallets::credit(app, request!(), path()).await,
        "debitWallet" => wallets::debit(app, request!(), path()).await,
        "updateWallet" => wallets::update(app, request!(), path()).await,
        "createSubscriptionConfig" => subscription_configs::create(app, request!()).await,
        "updateSubscriptionConfig" => subscription_configs::update(app, request!(), path()).await,
        "deleteSubscriptionConfig" => subscription_configs::delete(app, caller, path()).await,
        "createSubscription" => subscriptions::create(app, request!()).await,
        "changeSubscription" => subscriptions::change(app, request!(), path()).await,
        "buyCreditBundle" => subscriptions::buy_bundle(app, request!(), path()).await,
        "cancelSubscription" => subscriptions::cancel(app, caller, path()).await,
        "createMeter" => meters::create(app, request!()).await,
        "updateMeter" => meters::update(app, request!(), path()).await,
        "deleteMeter" => meters::delete(app, caller, path()).await,
        "createBudget" => budgets::create(app, request!()).await,
        "updateBudget" => budgets::update(app, request!(), path()).await,
        "deleteBudget" => budgets::delete(app, caller, path()).await,
        "updateSpendKey" => spend_keys::update(app, request!(), path()).await,
        "deleteSpendKey" => spend_keys::delete(app, caller, path()).await,
        "createSecretKey" => secret_keys::create(app, request!()).await,
        "deleteSecretKey" => secret_keys::delete(app, caller, path()).await,
        "createWebhook" => webhooks::create(app, request!()).await,
        "updateWebhook" => webhooks::update(app, request!(), path()).await,
        "deleteWebhook" => webhooks::delete(app, caller, path()).await,
        "testWebhook" => webhooks::test(app, request!(), path()).await,
        "rotateWebhook" => webhooks::rotate(app, request!(), path()).await,
        _ => {
            return Err(ApiError::new(ErrorCode::RouteNotFound, "There is no such form."));
        }
    };
    let answer = answer?;
    Ok((answer.status(), body_of(answer)?))
}

/// The body of an answer that is written at once, as those of all these operations are.
fn body_of(answer: HttpResponse) -> Result<Value, ApiError> {
    let bytes: Option<web::Bytes> = answer.into_body().try_into_bytes().ok();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or_else(|| {
        log::error!("an operation of a form has answered without JSON");
        ApiError::new(ErrorCode::InternalError, "Something went wrong in the service.")
    })
}
