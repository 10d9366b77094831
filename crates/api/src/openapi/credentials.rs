//! The credentials of operations.

use serde_json::{Value, json};
use utoipa::Modify;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};

use super::transform::operations;

/// The credential of a call in its first place. [`spell_out`] adds the others.
const CREDENTIAL: &str = "credential";
/// The other places of the credential, in the order of precedence.
const PLACES: [&str; 4] = ["x-api-key", "x-goog-api-key", "xi-api-key", "key"];

pub(super) struct SecuritySchemes;

impl Modify for SecuritySchemes {
    fn modify(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearers = [
            ("secret_key", "A secret key of the merchant: `tgs_…`"),
            ("operator_token", "The `operator_token` of the configuration"),
            (CREDENTIAL, "A spend key (`tgk_…`), a secret key, or a forward token"),
        ];
        for (name, description) in bearers {
            let mut bearer = Http::new(HttpAuthScheme::Bearer);
            bearer.description = Some(description.to_owned());
            components.add_security_scheme(name, SecurityScheme::Http(bearer));
        }
        for place in PLACES {
            let value = ApiKeyValue::with_description(place, "The same in another place");
            let key = match place {
                "key" => ApiKey::Query(value),
                _ => ApiKey::Header(value),
            };
            components.add_security_scheme(place, SecurityScheme::ApiKey(key));
        }
    }
}

/// Names every place of the credential of a call.
pub(super) fn spell_out(document: &mut Value) {
    for (_, operation) in operations(document) {
        let Some(by) = operation.get_mut("security").and_then(Value::as_array_mut) else {
            continue;
        };
        if by.iter().any(|one| one.get(CREDENTIAL).is_some()) {
            by.extend(PLACES.map(|place| json!({place: []})));
        }
    }
}
