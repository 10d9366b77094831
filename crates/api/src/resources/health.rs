//! The health of the process: whether it lives, and whether it takes calls.

use actix_web::{HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;

/// The state of the service.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`, `draining` or `store_unavailable`.
    status: &'static str,
}

/// Whether the process lives.
#[utoipa::path(
    method(get, head),
    path = "/healthz",
    operation_id = "getHealth",
    responses((status = 200, description = "It does", body = Health)),
    security(()),
)]
pub(crate) async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(Health { status: "ok" })
}

/// Whether the service takes calls: the store can be read and written, and no shutdown has begun.
#[utoipa::path(
    method(get, head),
    path = "/readyz",
    operation_id = "getReadiness",
    responses(
        (status = 200, description = "It does", body = Health),
        (status = 503, description = "It does not", body = Health),
    ),
    security(()),
)]
pub(crate) async fn readyz(app: web::Data<App>) -> HttpResponse {
    if app.gateway.calls.is_draining() {
        return HttpResponse::ServiceUnavailable().json(Health { status: "draining" });
    }
    match app.store.ready().await {
        Ok(()) => HttpResponse::Ok().json(Health { status: "ok" }),
        Err(cause) => {
            log::warn!("not ready: {cause}");
            HttpResponse::ServiceUnavailable().json(Health { status: "store_unavailable" })
        }
    }
}
