//! Tollgate's HTTP interface.
//!
//! - [`routes`] has all routes, [`App`] is the state of the operations, [`Settings`] are the operator's choices, and
//!   [`listen`] starts the server: tests run the same server as the binary.
//! - `http` has the parts that all operations share: caller, bodies with all their issues, errors,
//!   lists, idempotency.
//! - `resources` has a file per resource.
//! - `forward` has the operations that forward calls; `tollgate-gateway` is the path of a call.
//! - `client_connections` closes idle connections, and bounds the requests of each; `line_ends` checks the
//!   lines of their heads.
//! - [`html`] is what all pages share; `tollgate-dashboard` has a merchant's pages, with what [`operations`] and
//!   [`client`] give them.
//! - `delivery` is the dispatcher, which sends events to webhooks in a thread of its own: [`WebhookDispatcher`].
//! - `metrics` is the page for Prometheus, `access` the log line of each request.
//! - [`probe`] checks whether a service takes calls.
//! - `openapi` is the document of the operations, and of the messages of webhooks.

mod access;
mod app;
mod client_connections;
mod delivery;
mod form_operations;
mod forward;
pub mod html;
mod http;
mod line_ends;
mod metrics;
mod openapi;
mod probe;
mod resources;
mod routes;
mod server;
mod settings;
mod tls;

pub use access::{AccessLine, AccessLog};
pub use app::App;
pub use delivery::WebhookDispatcher;
#[doc(hidden)]
pub use delivery::samples::completed as sample_record;
pub use http::auth::{app as app_of, mark_operation};
pub use http::body::read as read_body;
pub use http::error::{ApiError, ErrorCode};
pub use http::list::Query;
pub use http::rate_limits::RateLimits;
pub use openapi::{WebhookMessagesDoc, openapi, reference_page};
pub use probe::{Readiness, probe};
pub use resources::quote::{HoldView, QuoteView, usage};
pub use routes::{Pages, ServedRoutes, routes};
pub use server::{BoundServer, listen};
pub use settings::{ClientLimits, InterfaceShape, Settings};
pub use tls::{Tls, TlsError};

/// The path below which the style sheet and the icon of the interface's own page are.
const ASSETS: &str = "/docs";

/// The functions of operations that pages call too.
pub mod operations {
    pub use crate::delivery::message::{EventResources, event_text};
    pub use crate::form_operations::perform;
    pub use crate::resources::budgets::{
        change as change_budget, make as make_budget, not_found as budget_not_found,
        remove as delete_budget, to_json as budget_to_json,
    };
    pub use crate::resources::connections::not_found as connection_not_found;
    pub use crate::resources::focus::{costs_of_month as focus_costs, header as focus_header};
    pub use crate::resources::meters::not_found as meter_not_found;
    pub use crate::resources::quote::{QuotedUsage, quote_usage};
    pub use crate::resources::refusals::{
        RefusalView, list_page as list_refusals, to_csv as refusals_to_csv,
    };
    pub use crate::resources::requests::{
        RecordView, find as find_request, list_page as list_requests, to_csv as requests_to_csv,
    };
    pub use crate::resources::spend_keys::{
        make as make_spend_key, new_key as read_new_spend_key, not_found as spend_key_not_found,
    };
    pub use crate::resources::statements::StatementDocument;
    pub use crate::resources::subscription_configs::not_found as plan_not_found;
    pub use crate::resources::subscriptions::not_found as subscription_not_found;
    pub use crate::resources::usage::UsageReport;
    pub use crate::resources::wallets::not_found as wallet_not_found;
    pub use crate::resources::webhooks::{delivery_not_found, not_found as webhook_not_found};
}

/// The facts about the client of a request.
pub mod client {
    pub use crate::access::note_caller;
    pub use crate::client_connections::{mark_authenticated, scheme};
}
