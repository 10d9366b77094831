//! The pages of the demo: one that signs in, and one that sends a storm of calls at a limit.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::web::{self, ServiceConfig, get, post, resource};
use actix_web::{HttpRequest, HttpResponse};
use askama::Template;
use futures_util::future::BoxFuture;
use tollgate_api::{ApiError, App, ErrorCode};
use tollgate_domain::Key;

use crate::answer::{PageError, html};
use crate::form::FormFields;
use crate::sign_in;

/// The key and the action of the pages of the demo.
#[derive(Clone)]
pub struct DemoPages {
    /// The secret key with which `/demo` signs in.
    pub key: Key,
    /// Makes a spend key and sends calls with it, all at once.
    pub storm: Arc<dyn Fn() -> BoxFuture<'static, Result<StormResult, String>> + Send + Sync>,
}

/// The result of a storm of calls.
#[derive(Clone, Debug)]
pub struct StormResult {
    /// The number of calls.
    pub calls: usize,
    /// The number of calls that were answered.
    pub answered: usize,
    /// The number of calls that were refused with 402.
    pub refused: usize,
    /// The limit of the key, in US dollars.
    pub limit: String,
    /// The spend of the key, in US dollars.
    pub spent: String,
    /// Whether the spend is within the limit.
    pub is_kept: bool,
    /// The time from the first call to the last answer.
    pub millis: u128,
}

#[derive(Template)]
#[template(path = "storm.html")]
struct StormPage {
    result: Option<StormResult>,
}

pub(crate) fn routes(config: &mut ServiceConfig, pages: DemoPages) {
    let key = pages.key.clone();
    let sign_in = move |app, http| sign_in(app, http, key.clone());
    let storm = move |fields| send(fields, pages.clone());
    config
        .service(resource("/demo").route(get().to(sign_in)))
        .service(resource("/demo/storm").route(get().to(show)).route(post().to(storm)));
}

async fn sign_in(
    app: web::Data<App>,
    http: HttpRequest,
    key: Key,
) -> Result<HttpResponse, PageError> {
    sign_in::open_with(app, http, key).await
}

async fn show() -> Result<HttpResponse, PageError> {
    html(StatusCode::OK, &StormPage { result: None })
}

async fn send(_: FormFields, pages: DemoPages) -> Result<HttpResponse, PageError> {
    let result = (pages.storm)().await;
    let result = result.map_err(|cause| ApiError::new(ErrorCode::InternalError, cause))?;
    html(StatusCode::OK, &StormPage { result: Some(result) })
}
