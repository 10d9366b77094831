//! Merchants, which only the operator makes and lists.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::Deserr;
use serde::Serialize;
use tollgate_domain::{CellNumber, Merchant, MerchantId, Timestamp, WalletId};
use tollgate_store::merchants;
use utoipa::ToSchema;

use crate::app::App;
use crate::http::auth::Operator;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::ApiError;
use crate::http::fields::{Issues, NameField};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, page, respond};
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = Merchant)]
pub(crate) struct MerchantView {
    /// The id of the merchant.
    merchant_id: MerchantId,
    /// A name for people.
    name: String,
    /// The merchant's own wallet.
    wallet_id: WalletId,
    /// The first secret key. It is only in the answer to creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    secret_key: Option<String>,
    /// The time of creation.
    created_at: Timestamp,
    /// The number of the cell to which the merchant moves or has moved. Absent for one that is in this cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    moved_to: Option<u16>,
}

impl MerchantView {
    fn of(merchant: &Merchant) -> Self {
        Self {
            merchant_id: merchant.merchant_id,
            name: merchant.name.clone(),
            wallet_id: merchant.wallet_id,
            secret_key: None,
            created_at: merchant.created_at,
            moved_to: merchant.moved_to.map(CellNumber::get),
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct CreateMerchant {
    /// A name for people.
    name: NameField,
}

impl Input for CreateMerchant {}

/// Make a merchant.
#[utoipa::path(
    post,
    path = "/operator/merchants",
    operation_id = "createMerchant",
    params(IdempotencyHeader),
    request_body = CreateMerchant,
    responses(
        (status = 201, description = "Made; its secret key is shown this once", body = MerchantView),
        ApiError,
    ),
    security(("operator_token" = [])),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Operator, CreateMerchant>,
) -> Result<HttpResponse, ApiError> {
    let (name, now) = (asked.what.name.0, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        let new = merchants::create(conn, &name, now)?;
        let secret_key = Some(new.key.reveal().to_owned());
        Ok(ApiResponse::created(&MerchantView { secret_key, ..MerchantView::of(&new.merchant) }))
    })
    .await
}

/// List merchants.
#[utoipa::path(
    get,
    path = "/operator/merchants",
    operation_id = "listMerchants",
    params(PageQuery),
    responses((status = 200, description = "A page", body = ListView<MerchantView>), ApiError),
    security(("operator_token" = [])),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    _: Operator,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let page = page::<MerchantId>(&http)?;
    let found = app.store.read(move |conn| merchants::list(conn, &page)).await?;
    Ok(respond(found, page.limit, |one| one.merchant_id.to_string(), MerchantView::of))
}
