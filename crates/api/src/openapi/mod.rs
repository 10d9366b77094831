//! The OpenAPI document: `GET /openapi.json`. It is put together here from what stands beside the
//! operations and the views. It begins with webhooks; a resource is added by a line in `nest`.

pub(crate) mod types;
mod webhooks;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use actix_web::HttpResponse;
use actix_web::http::header::ContentType;
use bytes::Bytes;
use serde_json::{Value, json};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{OpenApi, RefOr, Schema};
use utoipa::{Modify, OpenApi as _, PartialSchema, ToSchema};

use crate::http::error::Envelope;
use crate::resources;
pub use webhooks::WebhookMessages;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tollgate",
        description = "Meters, prices and forwards calls of AI providers. This document begins with \
                       webhooks; the other operations are in docs/API.md."
    ),
    nest((path = "/v1", api = resources::webhooks::Operations)),
    modifiers(&SecretKey),
    security(("secret_key" = []))
)]
struct Document;

/// What opens the operations of a merchant.
struct SecretKey;

impl Modify for SecretKey {
    fn modify(&self, document: &mut OpenApi) {
        let mut bearer = Http::new(HttpAuthScheme::Bearer);
        bearer.description = Some("A secret key of the merchant: `tgs_…`".to_owned());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("secret_key", SecurityScheme::Http(bearer));
    }
}

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = Document::openapi();
    let mut referred = Vec::new();
    let webhooks = webhooks::webhooks(&mut referred);
    // Operations refer to it by name only.
    referred.push((Envelope::name().into_owned(), Envelope::schema()));
    Envelope::schemas(&mut referred);
    add_schemas(&mut document, referred);
    // A document of strings and maps always makes JSON.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    if let Some(parts) = document.as_object_mut() {
        parts.insert("webhooks".to_owned(), webhooks);
    }
    close(&mut document);
    document
});

/// The OpenAPI document, as `GET /openapi.json` answers.
pub fn openapi() -> &'static Value {
    &DOCUMENT
}

/// `GET /openapi.json`
pub(crate) async fn get() -> HttpResponse {
    static TEXT: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(openapi()).unwrap_or_default().into());
    HttpResponse::Ok().content_type(ContentType::json()).body(TEXT.clone())
}

fn add_schemas(document: &mut OpenApi, schemas: Vec<(String, RefOr<Schema>)>) {
    document.components.get_or_insert_default().schemas.extend(schemas);
}

/// Closes every object: a field that a schema does not name is none. What an object is composed of
/// stays open, for its other fields are named beside it.
fn close(document: &mut Value) {
    let mut parts = BTreeSet::new();
    find_parts(document, &mut parts);
    for place in ["/components/schemas", "/paths", "/webhooks"] {
        let Some(Value::Object(schemas)) = document.pointer_mut(place) else { continue };
        for (name, schema) in schemas {
            if !parts.contains(&format!("#{place}/{name}")) {
                close_within(schema);
            }
        }
    }
}

/// The names of the schemas that others are composed of.
fn find_parts(value: &Value, parts: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let composed = fields.get("allOf").and_then(Value::as_array);
            for part in composed.into_iter().flatten() {
                parts.extend(part.get("$ref").and_then(Value::as_str).map(str::to_owned));
            }
            fields.values().for_each(|field| find_parts(field, parts));
        }
        Value::Array(items) => items.iter().for_each(|item| find_parts(item, parts)),
        _ => {}
    }
}

fn close_within(value: &mut Value) {
    let keyword = match value.get("allOf") {
        Some(_) => Some("unevaluatedProperties"),
        None if value.get("additionalProperties").is_some() => None,
        None if value.get("type").is_some_and(|kind| kind == "object") => {
            Some("additionalProperties")
        }
        None => None,
    };
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if name != "allOf" && name != "example" {
                    close_within(field);
                }
            }
            if let Some(keyword) = keyword {
                fields.insert(keyword.to_owned(), json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close_within),
        _ => {}
    }
}
