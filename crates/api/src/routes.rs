//! All routes of the service.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::guard::{Guard, fn_guard};
use actix_web::http::Method;
use actix_web::http::header::{ALLOW, HeaderValue};
use actix_web::web::{self, ServiceConfig, post, redirect, resource};
use actix_web::{HttpRequest, HttpResponse};
use tollgate_provider::ProviderClient;

use crate::app::App;
use crate::forward::operations as forward;
use crate::html;
use crate::http::earlier::requested_path;
use crate::http::error::{ApiError, ErrorCode};
use crate::openapi::{self, Operation};
use crate::settings::Settings;

/// Pages that a server mounts beside the operations.
#[derive(Clone)]
pub struct Pages(Arc<dyn Fn(&mut ServiceConfig) + Send + Sync>);

impl Pages {
    /// Pages that `mount` adds to a server. It is called once per worker.
    pub fn new(mount: impl Fn(&mut ServiceConfig) + Send + Sync + 'static) -> Self {
        Self(Arc::new(mount))
    }
}

/// The routes that an address serves.
#[derive(Clone)]
pub struct ServedRoutes {
    /// Whether it serves the operations.
    pub interface: bool,
    /// The pages that it serves. On an address of their own, their origin has no content from providers.
    pub pages: Option<Pages>,
}

/// Mounts the served routes. It is called once per worker: each gets its own provider client.
pub fn routes(app: web::Data<App>, served: &ServedRoutes) -> impl FnOnce(&mut ServiceConfig) {
    let ServedRoutes { interface, pages } = served.clone();
    move |config| {
        let Settings { calls, resolver, .. } = &app.settings;
        let client = ProviderClient::with_resolver(calls.timeouts, resolver);
        config.app_data(app).app_data(web::Data::new(client)).app_data(&openapi::PARAMETERS);
        // Routes are tried in this order.
        if interface {
            config.configure(self::interface);
        }
        if let Some(Pages(mount)) = pages {
            mount(config);
        }
        config.default_service(web::to(not_found));
    }
}

fn interface(config: &mut ServiceConfig) {
    config
        .service(
            resource("/v1/models/{id:.+}").guard(google_call()).route(post().to(forward::google)),
        )
        .configure(html::assets)
        .service(redirect("/docs/", "/docs"));
    for (prefix, operations) in openapi::operations() {
        let mut by_path: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
        for operation in operations {
            by_path.entry(format!("{prefix}{}", operation.path)).or_default().push(operation);
        }
        for (path, operations) in by_path {
            let routes = operations.iter().flat_map(Operation::routes);
            config.service(routes.fold(route(&path), actix_web::Resource::route));
        }
    }
}

/// A call of a model in Google's form, such as `POST /v1/models/gemini-3-pro:generateContent`. The path is that of a
/// model in the other forms.
fn google_call() -> impl Guard {
    fn_guard(|request| {
        let path = request.head().uri.path();
        request.head().method == Method::POST
            && path.rsplit('/').next().is_some_and(|segment| segment.contains(':'))
    })
}

/// A route that answers other methods in the envelope.
fn route(path: &str) -> actix_web::Resource {
    resource(path).default_service(web::to(method_not_allowed))
}

async fn not_found(http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let message = format!("There is no route {} {}.", http.method(), requested_path(&http));
    Err(ApiError::new(ErrorCode::RouteNotFound, message).for_sdk_of(&http))
}

async fn method_not_allowed(http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let message = format!("{} is not a method of {}.", http.method(), requested_path(&http));
    let mut error = ApiError::new(ErrorCode::MethodNotAllowed, message).for_sdk_of(&http);
    let methods = http.match_pattern().and_then(|pattern| openapi::methods(&pattern));
    if let Some(methods) = methods.and_then(|methods| HeaderValue::from_str(&methods).ok()) {
        error = error.header(ALLOW, methods);
    }
    Err(error)
}
