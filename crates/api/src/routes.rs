//! All routes of the service.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::guard::{Guard, fn_guard};
use actix_web::http::Method;
use actix_web::http::header::{ALLOW, HeaderValue};
use actix_web::web::{self, ServiceConfig, redirect, resource};
use actix_web::{HttpRequest, HttpResponse};
use tollgate_gateway::has_google_credential;
use tollgate_provider::ProviderClient;

use crate::app::App;
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
    config.configure(html::assets).service(redirect("/docs/", "/docs"));
    let mut by_path: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
    for (prefix, operations) in openapi::operations() {
        for operation in operations {
            by_path.entry(format!("{prefix}{}", operation.path)).or_default().push(operation);
        }
    }
    let routes = |operations: &[Operation], at: actix_web::Resource| {
        operations.iter().flat_map(Operation::routes).fold(at, actix_web::Resource::route)
    };
    // Google's versions have the same routes. Below `/v1` they come first, because the paths are those of others, too.
    for (path, operations) in &by_path {
        if let Some(below) = path.strip_prefix(GOOGLE_VERSION) {
            for operation in operations {
                let google = google_call(operation.methods());
                let at_v1 = resource(format!("/v1{below}")).guard(google);
                config.service(routes(std::slice::from_ref(operation), at_v1));
            }
            config.service(routes(operations, route(&format!("{GOOGLE_ALPHA}{below}"))));
        }
    }
    for (path, operations) in &by_path {
        config.service(routes(operations, route(path)));
    }
}

/// The version of Google's routes in the document, and one that has the same routes.
const GOOGLE_VERSION: &str = "/v1beta";
const GOOGLE_ALPHA: &str = "/v1alpha";

/// A call in Google's form with one of these methods: with Google's kind of credential, or of a model in the path, such
/// as `POST /v1/models/gemini-3-pro:generateContent`.
fn google_call(methods: Vec<Method>) -> impl Guard {
    fn_guard(move |request| {
        let head = request.head();
        let ends_in_verb = || {
            let last = head.uri.path().rsplit('/').next();
            last.is_some_and(|segment| segment.contains(':'))
        };
        methods.contains(&head.method)
            && ((head.method == Method::POST && ends_in_verb())
                || has_google_credential(&head.headers, head.uri.query().unwrap_or_default()))
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
    let pattern = http.match_pattern();
    let methods = pattern.and_then(|pattern| {
        // The document has one of Google's versions.
        openapi::methods(&pattern.replacen(GOOGLE_ALPHA, GOOGLE_VERSION, 1))
    });
    if let Some(methods) = methods.and_then(|methods| HeaderValue::from_str(&methods).ok()) {
        error = error.header(ALLOW, methods);
    }
    Err(error)
}
