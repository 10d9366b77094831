//! The dashboard: a merchant's resources as pages in a browser, after sign-in with a secret key.
//!
//! The service renders whole pages, which work without scripts. One script of its own adds copy buttons, search, live
//! figures and the figures of a chart's column; nothing is loaded from elsewhere. A page calls the same functions of the
//! store as the operations do, for the merchant of its session; its forms perform the operations themselves.
//!
//! - `page.rs` has what all pages share, `session.rs` the session, `form.rs` and `actions.rs` the forms, `answer.rs`
//!   the answers.
//! - `text.rs` has figures, `clock.rs` times, `time_range.rs` and `trend.rs` what `chart.rs` draws.
//! - Every other file is the pages of a part of the navigation.

mod actions;
mod answer;
mod budgets;
mod calls;
mod chart;
mod clock;
mod customers;
mod demo;
mod developers;
mod events;
mod form;
mod home;
mod in_flight;
mod jobs;
mod latency;
mod limits;
mod meters;
mod page;
mod price;
mod prices;
mod pricing;
mod refusals;
mod requests;
mod runs;
mod session;
mod settings;
mod sign_in;
mod sockets;
mod spend_keys;
mod subscriptions;
mod text;
mod time_range;
mod trend;
mod usage;
mod wallets;
mod webhooks;

use std::sync::LazyLock;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::ErrorInternalServerError;
use actix_web::http::Method;
use actix_web::http::header::CONTENT_SECURITY_POLICY;
use actix_web::middleware::{DefaultHeaders, Next, from_fn};
use actix_web::web::{self, ServiceConfig, get, post, redirect, resource, scope};
use actix_web::{Error, HttpResponse};

use tollgate_api::Pages;
use tollgate_api::html::{self, HEADERS};

pub use crate::demo::{DemoPages, StormResult};
use crate::sign_in::SignIns;

/// The path below which the style sheet and the icon are.
const ASSETS: &str = "/dashboard";

/// The pages, to be mounted by a server. They are not part of the API, so the OpenAPI document does not describe them.
pub fn pages() -> Pages {
    let sign_ins = web::Data::new(SignIns::default());
    Pages::new(move |config| routes(config, sign_ins.clone()))
}

/// As [`pages`], with those of the demo.
pub fn pages_with_demo(demo: DemoPages) -> Pages {
    let sign_ins = web::Data::new(SignIns::default());
    Pages::new(move |config| {
        demo::routes(config, demo.clone());
        routes(config, sign_ins.clone());
    })
}

/// The policy of the pages: that of all pages, with the script of [`script`] and the events that it reads.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

fn routes(config: &mut ServiceConfig, sign_ins: web::Data<SignIns>) {
    let shared = HEADERS.into_iter().filter(|(name, _)| *name != CONTENT_SECURITY_POLICY);
    let policy = (CONTENT_SECURITY_POLICY, POLICY);
    let headers = shared.chain([policy]).fold(DefaultHeaders::new(), DefaultHeaders::add);
    // People open the root in a browser.
    config.service(redirect("/", "/dashboard"));
    let pages = scope("/dashboard")
        .app_data(sign_ins)
        .wrap(from_fn(perform_to_the_end))
        .wrap(headers)
        .service(route("").route(get().to(home::show)))
        .service(redirect("/", "/dashboard"))
        .service(
            route("/sign-in").route(get().to(sign_in::show)).route(post().to(sign_in::sign_in)),
        )
        .service(route("/sign-out").route(post().to(sign_in::sign_out)))
        .service(route("/style.css").route(get().to(html::style)))
        .service(route("/icon.svg").route(get().to(html::icon)))
        .service(route("/script.js").route(get().to(script)))
        .service(route("/live").route(get().to(home::live)))
        .service(
            route("/settings").route(get().to(settings::show)).route(post().to(settings::save)),
        )
        .service(route("/usage").route(get().to(usage::show)))
        .service(route("/usage.csv").route(get().to(usage::csv)))
        .service(route("/requests").route(get().to(calls::list)))
        .service(route("/requests/{id:.+}").route(get().to(requests::show)))
        .service(route("/refusals/{id}").route(get().to(refusals::show)))
        .service(route("/jobs").route(get().to(jobs::list)))
        .service(route("/sockets/{id}").route(get().to(sockets::show)))
        .service(route("/in-flight").route(get().to(in_flight::show)))
        .service(route("/pricing").route(get().to(pricing::show)))
        .service(route("/prices").route(get().to(prices::show)))
        .service(route("/plans/{id}").route(get().to(pricing::show_plan)))
        .service(route("/meters/{id}").route(get().to(meters::show)))
        .service(
            route("/spend-keys")
                .route(get().to(spend_keys::list))
                .route(post().to(spend_keys::create)),
        )
        .service(route("/spend-keys/{id}").route(get().to(spend_keys::show)))
        .service(route("/spend-keys/{id}/key").route(get().to(spend_keys::show_key)))
        .service(route("/spend-keys/{id}/pause").route(post().to(spend_keys::pause)))
        .service(route("/spend-keys/{id}/resume").route(post().to(spend_keys::resume)))
        .service(route("/spend-keys/{id}/rotate").route(post().to(spend_keys::rotate)))
        .service(route("/runs").route(get().to(runs::list)))
        .service(route("/runs/{id}").route(get().to(runs::show)))
        .service(route("/budgets").route(get().to(budgets::list)))
        .service(route("/budgets/{id}").route(get().to(budgets::show)))
        .service(route("/wallets").route(get().to(wallets::list)))
        .service(route("/wallets/{id}").route(get().to(wallets::show)))
        .service(route("/customers").route(get().to(customers::list)))
        .service(route("/customers/{id}").route(get().to(customers::show)))
        .service(route("/customers/{id}/statements/{month}").route(get().to(customers::statement)))
        .service(route("/actions/{operation}").route(post().to(actions::submit)))
        .service(route("/secret").route(get().to(actions::show_secret)))
        .service(route("/subscriptions").route(get().to(subscriptions::list)))
        .service(route("/subscriptions/{id}").route(get().to(subscriptions::show)))
        .service(route("/events").route(get().to(events::list)))
        .service(route("/events/{id}").route(get().to(events::show)))
        .service(route("/developers").route(get().to(developers::show)))
        .service(route("/webhooks").route(get().to(webhooks::list)))
        .service(route("/webhooks/{id}").route(get().to(webhooks::show)))
        .service(route("/webhooks/{id}/redeliver").route(post().to(webhooks::redeliver_failed)))
        .service(
            route("/webhooks/{id}/deliveries/{delivery_id}/redeliver")
                .route(post().to(webhooks::redeliver)),
        )
        .default_service(web::to(page::not_found));
    config.service(pages);
}

/// Answers a request. A form is performed to its end, even when the browser hangs up meanwhile, as it does with
/// the first of two clicks: the server drops what it does for a connection that ends.
async fn perform_to_the_end<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, Error> {
    let is_form = request.method() == Method::POST;
    let answer = next.call(request);
    match is_form {
        true => actix_web::rt::spawn(answer).await.map_err(ErrorInternalServerError)?,
        false => answer.await,
    }
}

/// The script of the pages.
const SCRIPT: &str = include_str!("../templates/script.js");

async fn script() -> HttpResponse {
    html::asset("text/javascript; charset=utf-8", SCRIPT)
}

/// The name of the script. It changes with the script, so browsers may keep it.
fn script_name() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| html::versioned("script.js", SCRIPT));
    &NAME
}

/// A route of a page; it answers other methods with a page, too.
fn route(path: &str) -> actix_web::Resource {
    resource(path).default_service(web::to(page::method_not_allowed))
}
