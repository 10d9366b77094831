//! The dashboard: a merchant's resources as pages in a browser, after sign-in with a secret key.
//!
//! The service renders whole pages. No script runs in the browser, and it loads nothing from elsewhere. A page
//! calls the same functions of the store as the operations do, for the merchant of its session; its forms are read
//! by the same types. `page.rs` has what all pages share, `session.rs` the session, `answer.rs` the answers.

mod actions;
mod answer;
mod calls;
mod chart;
mod customers;
mod demo;
mod developers;
mod home;
mod in_flight;
mod meters;
mod page;
mod price;
mod pricing;
mod refusals;
mod requests;
mod session;
mod spend;
mod spend_keys;
mod subscriptions;
mod text;
mod wallets;
mod webhooks;

use actix_web::middleware::DefaultHeaders;
use actix_web::web::{self, ServiceConfig, get, post, redirect, resource, scope};

use tollgate_api::Pages;
use tollgate_api::html::{self, HEADERS};

pub use crate::demo::{DemoPages, StormResult};
use crate::session::SignIns;

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

fn routes(config: &mut ServiceConfig, sign_ins: web::Data<SignIns>) {
    let headers = HEADERS.into_iter().fold(DefaultHeaders::new(), DefaultHeaders::add);
    // People open the root in a browser.
    config.service(redirect("/", "/dashboard"));
    let pages = scope("/dashboard")
        .app_data(sign_ins)
        .wrap(headers)
        .service(route("").route(get().to(home::show)))
        .service(redirect("/", "/dashboard"))
        .service(
            route("/sign-in").route(get().to(session::show)).route(post().to(session::sign_in)),
        )
        .service(route("/sign-out").route(post().to(session::sign_out)))
        .service(route("/style.css").route(get().to(html::style)))
        .service(route("/icon.svg").route(get().to(html::icon)))
        .service(route("/usage").route(get().to(spend::show)))
        .service(route("/usage.csv").route(get().to(spend::csv)))
        .service(route("/requests").route(get().to(calls::list)))
        .service(route("/requests/{id:.+}").route(get().to(requests::show)))
        .service(route("/refusals/{id}").route(get().to(refusals::show)))
        .service(route("/in-flight").route(get().to(in_flight::show)))
        .service(route("/pricing").route(get().to(pricing::show)))
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
        .service(route("/wallets").route(get().to(wallets::list)))
        .service(route("/wallets/{id}").route(get().to(wallets::show)))
        .service(route("/customers").route(get().to(customers::list)))
        .service(route("/customers/{id}").route(get().to(customers::show)))
        .service(route("/customers/{id}/statements/{month}").route(get().to(customers::statement)))
        .service(route("/actions/{operation}").route(post().to(actions::submit)))
        .service(route("/secret").route(get().to(actions::show_secret)))
        .service(route("/subscriptions").route(get().to(subscriptions::list)))
        .service(route("/subscriptions/{id}").route(get().to(subscriptions::show)))
        .service(route("/developers").route(get().to(developers::show)))
        .service(route("/webhooks").route(get().to(webhooks::list)))
        .service(route("/webhooks/{id}").route(get().to(webhooks::show)))
        .service(
            route("/webhooks/{id}/deliveries/{delivery_id}/redeliver")
                .route(post().to(webhooks::redeliver)),
        )
        .default_service(web::to(page::not_found));
    config.service(pages);
}

/// A route of a page; it answers other methods with a page, too.
fn route(path: &str) -> actix_web::Resource {
    resource(path).default_service(web::to(page::method_not_allowed))
}
