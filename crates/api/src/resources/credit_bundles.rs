//! Credit bundles that subscribers can buy. They are made and changed with their configuration.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tollgate_domain::{CreditBundle, CreditBundleId, SubscriptionConfigId, Timestamp};
use tollgate_pricing::Amount;
use tollgate_store::subscription_configs;
use utoipa::{IntoParams, ToSchema};

use super::id_filter;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::error::{ApiError, ErrorCode};
use crate::http::list::{ListView, PageQuery, Query, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = CreditBundle)]
pub(crate) struct CreditBundleView {
    /// The credit bundle.
    credit_bundle_id: CreditBundleId,
    /// The subscription configuration (the plan).
    subscription_config_id: SubscriptionConfigId,
    /// A name for people.
    name: String,
    /// The price in US dollars.
    cost: Amount,
    /// The credit that it adds.
    credit_amount: Amount,
    /// The time of creation.
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

/// The filters of a list of bundles, as documents have them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct BundleQuery {
    /// Only bundles of this subscription configuration.
    subscription_config_id: Option<SubscriptionConfigId>,
    /// Another name of `subscription_config_id`.
    plan_id: Option<SubscriptionConfigId>,
}

/// List the credit bundles that are offered.
#[utoipa::path(
    get,
    path = "/credit_bundles",
    operation_id = "listCreditBundles",
    params(BundleQuery, PageQuery),
    responses((status = 200, description = "A page", body = ListView<CreditBundleView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let config_id = id_filter("subscription_config_id", &query, &mut issues);
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

/// Read a credit bundle.
#[utoipa::path(
    get,
    path = "/credit_bundles/{id}",
    operation_id = "getCreditBundle",
    params(("id" = CreditBundleId, Path)),
    responses(
        (status = 200, description = "The bundle", body = CreditBundleView),
        ApiError, refused::CreditBundleNotFound,
    ),
)]
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
