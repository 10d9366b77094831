//! Whether the process lives, and whether it should be given calls.

use actix_web::{HttpResponse, web};
use serde_json::json;
use tollgate_store::StoreError;

use crate::app::App;

/// `GET /healthz`: the process lives.
pub(crate) async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(json!({"status": "ok"}))
}

/// `GET /readyz`: it takes calls: the store answers and no shutdown has begun.
pub(crate) async fn readyz(app: web::Data<App>) -> HttpResponse {
    if app.calls.is_draining() {
        return HttpResponse::ServiceUnavailable().json(json!({"status": "draining"}));
    }
    match app.store.read(|conn| conn.ping()).await {
        Ok(()) => HttpResponse::Ok().json(json!({"status": "ok"})),
        Err::<(), StoreError>(cause) => {
            log::warn!("not ready: {cause}");
            HttpResponse::ServiceUnavailable().json(json!({"status": "store_unavailable"}))
        }
    }
}
