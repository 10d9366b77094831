//! All routes of the service.

use std::sync::Arc;

use actix_web::guard::{Guard, fn_guard};
use actix_web::http::header::{ALLOW, HeaderValue};
use actix_web::web::{
    self, ServiceConfig, delete, get, head, patch, post, put, redirect, resource, scope,
};
use actix_web::{HttpRequest, HttpResponse};
use tollgate_provider::ProviderClient;

use crate::app::App;
use crate::forward::operations as forward;
use crate::html;
use crate::http::earlier::requested_path;
use crate::http::error::{ApiError, ErrorCode};
use crate::metrics::page as metrics;
use crate::openapi;
use crate::resources::{
    connections, credit_bundles, health, merchants, meters, models, prices, quote, requests,
    secret_keys, spend_keys, subscription_configs, subscriptions, usage, wallets, webhooks,
};
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
        .service(scope("/v1").configure(v1))
        .service(route("/v1beta/models/{model}:{call}").route(post().to(forward::google)))
        .service(route("/v2/chat").route(post().to(forward::cohere_chat)))
        .service(route("/v2/embed").route(post().to(forward::cohere_embed)))
        .service(route("/v2/rerank").route(post().to(forward::cohere_rerank)))
        // Monitors often send HEAD requests.
        .service(
            route("/healthz").route(get().to(health::healthz)).route(head().to(health::healthz)),
        )
        .service(route("/readyz").route(get().to(health::readyz)).route(head().to(health::readyz)))
        .service(
            route("/metrics").route(get().to(metrics::metrics)).route(head().to(metrics::metrics)),
        )
        .service(
            route("/openapi.json").route(get().to(openapi::get)).route(head().to(openapi::get)),
        )
        .service(
            route("/docs").route(get().to(openapi::get_page)).route(head().to(openapi::get_page)),
        )
        .configure(html::assets)
        .service(redirect("/docs/", "/docs"));
}

fn v1(config: &mut ServiceConfig) {
    config
        .service(
            route("/forward")
                .route(post().to(forward::forward))
                .route(get().to(forward::forward_get)),
        )
        .service(route("/chat/completions").route(post().to(forward::chat_completions)))
        .service(route("/completions").route(post().to(forward::completions)))
        .service(
            route("/responses")
                .route(post().to(forward::responses))
                .route(get().to(forward::responses_upgrade)),
        )
        .service(route("/responses/input_tokens").route(post().to(forward::input_tokens)))
        .service(route("/embeddings").route(post().to(forward::embeddings)))
        .service(route("/images/generations").route(post().to(forward::images)))
        .service(route("/images/edits").route(post().to(forward::image_edits)))
        .service(route("/audio/speech").route(post().to(forward::speech)))
        .service(route("/audio/transcriptions").route(post().to(forward::transcriptions)))
        .service(route("/audio/translations").route(post().to(forward::translations)))
        .service(route("/moderations").route(post().to(forward::moderations)))
        .service(route("/rerank").route(post().to(forward::rerank)))
        .service(route("/messages").route(post().to(forward::messages)))
        .service(route("/messages/count_tokens").route(post().to(forward::count_tokens)))
        .service(
            route("/providers/{provider}/{path:.+}")
                .route(post().to(forward::call_provider))
                .route(get().to(forward::get_from_provider)),
        )
        .service(route("/models").route(get().to(models::list)).route(head().to(models::list)))
        // Some ids have a slash. Google's calls of a model have the same path, with a colon.
        .service(
            route("/models/{id:.+}")
                .route(get().to(models::get))
                .route(head().to(models::get))
                .route(post().guard(google_call()).to(forward::google)),
        )
        .service(route("/prices").route(get().to(prices::list)))
        .service(route("/meters").route(post().to(meters::create)).route(get().to(meters::list)))
        .service(
            route("/meters/{id}")
                .route(get().to(meters::get))
                .route(patch().to(meters::update))
                .route(delete().to(meters::delete)),
        )
        .service(route("/quote").route(post().to(quote::quote)))
        .service(
            route("/requests").route(post().to(requests::report)).route(get().to(requests::list)),
        )
        .service(route("/requests/{id}").route(get().to(requests::get)))
        .service(route("/usage").route(get().to(usage::get)))
        .service(
            route("/connections")
                .route(post().to(connections::create))
                .route(get().to(connections::list)),
        )
        .service(
            route("/connections/{id}")
                .route(get().to(connections::get))
                .route(patch().to(connections::update))
                .route(delete().to(connections::delete)),
        )
        .service(
            route("/connections/{id}/subscription")
                .route(get().to(subscriptions::get_of_connection)),
        )
        .service(
            route("/subscription_configs")
                .route(post().to(subscription_configs::create))
                .route(get().to(subscription_configs::list)),
        )
        .service(
            route("/subscription_configs/{id}")
                .route(get().to(subscription_configs::get))
                .route(patch().to(subscription_configs::update))
                .route(delete().to(subscription_configs::delete)),
        )
        .service(route("/credit_bundles").route(get().to(credit_bundles::list)))
        .service(route("/credit_bundles/{id}").route(get().to(credit_bundles::get)))
        .service(
            route("/subscriptions")
                .route(post().to(subscriptions::create))
                .route(get().to(subscriptions::list)),
        )
        .service(
            route("/subscriptions/{id}")
                .route(get().to(subscriptions::get))
                .route(delete().to(subscriptions::cancel)),
        )
        .service(route("/subscriptions/{id}/change").route(post().to(subscriptions::change)))
        .service(route("/subscriptions/{id}/bundles").route(post().to(subscriptions::buy_bundle)))
        .service(route("/wallet").route(get().to(wallets::get_own)))
        .service(
            route("/wallets/{id}").route(get().to(wallets::get)).route(patch().to(wallets::update)),
        )
        .service(route("/wallets/{id}/credits").route(post().to(wallets::credit)))
        .service(route("/wallets/{id}/debits").route(post().to(wallets::debit)))
        .service(route("/wallets/{id}/transactions").route(get().to(wallets::list_transactions)))
        .service(
            route("/spend_keys")
                .route(post().to(spend_keys::create))
                .route(get().to(spend_keys::list)),
        )
        .service(
            route("/spend_keys/{id}")
                .route(get().to(spend_keys::get))
                .route(put().to(spend_keys::update))
                .route(delete().to(spend_keys::delete)),
        )
        .service(route("/spend_keys/{id}/rotate").route(post().to(spend_keys::rotate)))
        .service(
            route("/secret_keys")
                .route(post().to(secret_keys::create))
                .route(get().to(secret_keys::list)),
        )
        .service(route("/secret_keys/{id}").route(delete().to(secret_keys::delete)))
        .service(
            route("/webhooks").route(post().to(webhooks::create)).route(get().to(webhooks::list)),
        )
        .service(
            route("/webhooks/{id}")
                .route(get().to(webhooks::get))
                .route(patch().to(webhooks::update))
                .route(delete().to(webhooks::delete)),
        )
        .service(route("/webhooks/{id}/rotate").route(post().to(webhooks::rotate)))
        .service(route("/webhooks/{id}/test").route(post().to(webhooks::test)))
        .service(route("/webhooks/{id}/deliveries").route(get().to(webhooks::list_deliveries)))
        .service(
            route("/webhooks/{id}/deliveries/{delivery_id}")
                .route(get().to(webhooks::get_delivery)),
        )
        .service(
            route("/webhooks/{id}/deliveries/{delivery_id}/redeliver")
                .route(post().to(webhooks::redeliver)),
        )
        .service(
            route("/operator/merchants")
                .route(post().to(merchants::create))
                .route(get().to(merchants::list)),
        );
}

/// A call of a model in Google's form, such as `/models/gemini-3-pro:generateContent`.
fn google_call() -> impl Guard {
    fn_guard(|request| {
        let path = request.head().uri.path();
        path.rsplit('/').next().is_some_and(|segment| segment.contains(':'))
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
