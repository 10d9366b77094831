//! Credit bundles, as subscribers can buy them. They are made and changed with their configuration.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tollgate_domain::{CreditBundle, CreditBundleId, SubscriptionConfigId, Timestamp};
use tollgate_pricing::Amount;
use tollgate_store::subscription_configs;
use utoipa::ToSchema;

use super::optional_id;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::error::{ApiError, ErrorCode};
use crate::http::list::{Query, respond};
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = CreditBundle)]
pub(crate) struct CreditBundleView {
    credit_bundle_id: CreditBundleId,
    subscription_config_id: SubscriptionConfigId,
    name: String,
    cost: Amount,
    credit_amount: Amount,
    created_at: Timestamp,
}

impl CreditBundleView {
    pub(crate) fn of(bundle: &CreditBundle) -> Self {
        Self {
            credit_bundle_id: bundle.credit_bundle_id,
            subscription_config_id: bundle.subscription_config_id,
            name: bundle.name.clone(),
            cost: bundle.cost,
            credit_amount: bundle.credit_amount,
            created_at: bundle.created_at,
        }
    }
}

/// `GET /credit_bundles`
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    const FILTER: &str = "subscription_config_id";
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let config_id = optional_id(FILTER, query.get(FILTER), &mut issues);
    let page = query.page::<CreditBundleId>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let merchant_id = caller.merchant_id;
    let read =
        move |conn: &mut _| subscription_configs::list_bundles(conn, merchant_id, config_id, &page);
    let found = app.store.read(read).await?;
    Ok(respond(found, page.limit, |one| one.credit_bundle_id.to_string(), CreditBundleView::of))
}

/// `GET /credit_bundles/{id}`
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let not_found = || ApiError::not_found(ErrorCode::CreditBundleNotFound, "credit bundle");
    let id: CreditBundleId = id.parse().map_err(|_| not_found())?;
    let read = move |conn: &mut _| subscription_configs::find_bundle(conn, caller.merchant_id, id);
    let bundle = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(CreditBundleView::of(&bundle)))
}
