//! The OpenAPI document: `GET /openapi.json`. It is assembled from the annotations of the operations and the
//! views. A new operation needs a place in one of the lists here, from which the router takes it, too. It is tagged with
//! the name of its module.

mod credentials;
mod errors;
mod examples;
pub(crate) mod fields;
mod lists;
pub(crate) mod marks;
mod messages;
mod operation;
pub(crate) mod page;
mod transform;
pub(crate) mod types;

use std::sync::LazyLock;

use actix_web::HttpResponse;
use actix_web::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, ContentType};
use bytes::Bytes;
use serde_json::Value;
use utoipa::openapi::{OpenApi, RefOr, Schema};
use utoipa::{OpenApi as _, PartialSchema, ToSchema};

use self::credentials::SecuritySchemes;
pub use self::lists::reference_page;
pub use self::messages::WebhookMessagesDoc;
pub(crate) use self::operation::Operation;
use self::operation::operations;
use crate::forward::operations as forward;
use crate::html::{HEADERS, REFERENCE_POLICY};
use crate::http::error::ErrorEnvelope;
use crate::http::parameters::OperationParameters;
use crate::metrics::page as metrics;
use crate::resources::requests::report;
use crate::resources::{
    budgets, connections, credit_bundles, health, jobs, merchants, meters, models, prices,
    provider_events, quote, refusals, requests, runs, secret_keys, spend_keys, statements,
    subscription_configs, subscriptions, usage, wallets, webhooks,
};

operations! {
    Root:
    health::healthz, health::readyz, metrics::metrics, self::get, self::get_page,
    forward::google, forward::list_google_batches, forward::retrieve_google_batch,
    forward::delete_google_batch, forward::cancel_google_batch, forward::retrieve_google_operation,
    forward::google_file_content, forward::connect_live, forward::cohere_chat, forward::cohere_embed, forward::cohere_rerank;
    info(
        title = "Tollgate",
        description = "Meters, prices and forwards calls of AI providers. The documentation says the same \
                       to people, and more. In bodies `customer_id` is read as another name of \
                       `connection_id`, `plan_id` of `subscription_config_id`, and `meter_ids` of \
                       `product_ids`; in a PATCH or PUT the fields that only answers have are \
                       ignored, so that what was read can be sent back."
    ),
    servers((url = "/", description = "This service")),
    // The order of the documentation.
    tags(
        (name = "forward", description = "Calls of AI providers."),
        (name = "models", description = "The models that a key may call."),
        (name = "prices", description = "The price list."),
        (name = "budgets", description = "Limits that keys, connections and other budgets share."),
        (name = "runs", description = "The calls of one task of an agent."),
        (name = "spend_keys", description = "Keys that make calls within limits."),
        (name = "meters", description = "Your fees."),
        (name = "requests", description = "The records of calls."),
        (name = "jobs", description = "Calls that a provider answers later."),
        (name = "provider_events", description = "Events of providers about jobs."),
        (name = "refusals", description = "The calls that were refused, and why."),
        (name = "quote", description = "The cost of a call before it is made."),
        (name = "usage", description = "Sums over records."),
        (name = "connections", description = "Your customers."),
        (name = "statements", description = "The monthly statements of your customers."),
        (name = "subscription_configs", description = "The plans that you sell."),
        (name = "credit_bundles", description = "Credit that subscribers can buy."),
        (name = "subscriptions", description = "The plans of your customers."),
        (name = "wallets", description = "The money of your customers, and your own."),
        (name = "secret_keys", description = "Keys that open these operations."),
        (name = "webhooks", description = "URLs that receive events."),
        (name = "merchants", description = "The tenants of the operator."),
        (name = "health", description = "Whether the service takes calls."),
        (name = "metrics", description = "Figures for Prometheus."),
        (name = "openapi", description = "This document."),
    ),
    nest((path = "/v1", api = V1)),
    modifiers(&SecuritySchemes),
    security(("secret_key" = []))
}

operations! {
    V1:
    forward::forward, forward::forward_get, forward::chat_completions, forward::completions,
    forward::responses, forward::connect_responses, forward::connect_realtime, forward::connect_live_session,
    forward::input_tokens, forward::embeddings,
    forward::images, forward::image_edits, forward::speech, forward::transcriptions,
    forward::translations, forward::moderations, forward::rerank, forward::messages,
    forward::count_tokens, forward::retrieve_response, forward::delete_response,
    forward::cancel_response, forward::input_items, forward::create_message_batch,
    forward::list_message_batches, forward::retrieve_message_batch, forward::delete_message_batch,
    forward::cancel_message_batch, forward::message_batch_results, forward::create_file,
    forward::list_files, forward::retrieve_file, forward::delete_file, forward::file_content,
    forward::create_batch, forward::list_batches, forward::retrieve_batch, forward::cancel_batch,
    forward::create_video, forward::list_videos, forward::retrieve_video, forward::delete_video,
    forward::video_content, forward::create_conversation, forward::retrieve_conversation,
    forward::update_conversation, forward::delete_conversation, forward::list_conversation_items,
    forward::add_conversation_items, forward::retrieve_conversation_item,
    forward::delete_conversation_item, forward::call_provider,
    forward::get_from_provider, forward::delete_at_provider, forward::forward_delete,
    jobs::list, jobs::get, jobs::refresh, provider_events::take,
    models::list, models::get,
    prices::list,
    meters::create, meters::list, meters::get, meters::update, meters::delete,
    quote::quote,
    report::report, requests::list, requests::get,
    refusals::list, refusals::get,
    usage::get,
    connections::create, connections::list, connections::get, connections::update,
    connections::delete,
    statements::list, statements::get,
    subscriptions::get_of_connection,
    subscription_configs::create, subscription_configs::list, subscription_configs::get,
    subscription_configs::update, subscription_configs::delete,
    credit_bundles::list, credit_bundles::get,
    subscriptions::create, subscriptions::list, subscriptions::get, subscriptions::cancel,
    subscriptions::change, subscriptions::buy_bundle,
    wallets::get_own, wallets::get, wallets::update, wallets::credit, wallets::debit,
    wallets::list_transactions,
    budgets::create, budgets::list, budgets::get, budgets::tree, budgets::update, budgets::delete,
    runs::list,
    spend_keys::create, spend_keys::list, spend_keys::get, spend_keys::update, spend_keys::delete,
    spend_keys::rotate,
    secret_keys::create, secret_keys::list, secret_keys::delete,
    webhooks::create, webhooks::list, webhooks::get, webhooks::update, webhooks::delete,
    webhooks::rotate, webhooks::test, webhooks::list_deliveries, webhooks::get_delivery,
    webhooks::redeliver,
    merchants::create, merchants::list;
}

/// The operations at the root, and those below `/v1`.
pub(crate) fn operations() -> [(&'static str, Vec<Operation>); 2] {
    [("", Root::operations()), ("/v1", V1::operations())]
}

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = Root::openapi();
    let mut referred = Vec::new();
    let messages = messages::webhooks(&mut referred);
    // Errors refer to it by name only.
    referred.push((ErrorEnvelope::name().into_owned(), ErrorEnvelope::schema()));
    ErrorEnvelope::schemas(&mut referred);
    add_schemas(&mut document, referred);
    // A document of strings and maps always makes JSON.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    if let Some(parts) = document.as_object_mut() {
        parts.insert("webhooks".to_owned(), messages);
    }
    transform::hide_head_and_patterns(&mut document);
    transform::lift_descriptions(&mut document);
    errors::spell_out(&mut document);
    credentials::spell_out(&mut document);
    transform::let_bodies_be_empty(&mut document);
    transform::describe_json_parameters(&mut document);
    transform::close_objects(&mut document);
    examples::show(&mut document);
    document
});

/// The OpenAPI document, as `GET /openapi.json` answers.
pub fn openapi() -> &'static Value {
    &DOCUMENT
}

/// The methods of a route, given as the router writes its path, for the header `Allow`.
pub(crate) fn methods(pattern: &str) -> Option<String> {
    let item = openapi().get("paths")?.get(transform::without_patterns(pattern))?.as_object()?;
    Some(item.keys().map(|method| method.to_uppercase()).collect::<Vec<_>>().join(", "))
}

/// The query parameters of each operation.
pub(crate) static PARAMETERS: LazyLock<OperationParameters> = LazyLock::new(|| {
    let paths = openapi().get("paths").and_then(Value::as_object);
    OperationParameters::of(paths.into_iter().flatten().flat_map(|(path, item)| {
        let operations = item.as_object().into_iter().flatten();
        operations.map(|(method, operation)| (method.as_str(), path.as_str(), in_query(operation)))
    }))
});

fn in_query(operation: &Value) -> Vec<String> {
    let parameters = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
    let in_query = parameters.filter(|one| one.get("in").is_some_and(|place| place == "query"));
    in_query.filter_map(|one| Some(one.get("name")?.as_str()?.to_owned())).collect()
}

/// Read the OpenAPI document.
#[utoipa::path(
    method(get, head),
    path = "/openapi.json",
    operation_id = "getOpenApi",
    tag = "openapi",
    responses((status = 200, description = "The document", body = Object)),
    security(()),
)]
pub(crate) async fn get() -> HttpResponse {
    static TEXT: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(openapi()).unwrap_or_default().into());
    HttpResponse::Ok().content_type(ContentType::json()).body(TEXT.clone())
}

/// Read the OpenAPI document as a page.
#[utoipa::path(
    method(get, head),
    path = "/docs",
    operation_id = "getDocs",
    tag = "openapi",
    responses((status = 200, description = "The page", content_type = "text/html", body = String)),
    security(()),
)]
pub(crate) async fn get_page() -> HttpResponse {
    static PAGE: LazyLock<Bytes> = LazyLock::new(|| page::render(openapi()).into());
    let mut response = HttpResponse::Ok();
    for header in HEADERS {
        response.insert_header(header);
    }
    response.insert_header((CONTENT_SECURITY_POLICY, REFERENCE_POLICY));
    response.insert_header((CONTENT_TYPE, "text/html; charset=utf-8")).body(PAGE.clone())
}

fn add_schemas(document: &mut OpenApi, schemas: Vec<(String, RefOr<Schema>)>) {
    document.components.get_or_insert_default().schemas.extend(schemas);
}
