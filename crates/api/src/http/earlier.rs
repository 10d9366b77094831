//! The names of the interface's earlier shape. Requests may use either names. Responses have the earlier ones
//! if the operator has chosen them.

use actix_web::body::{MessageBody, to_bytes};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::ErrorBadRequest;
use actix_web::http::Uri;
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest};
use serde_json::{Map, Value};
use tollgate_domain::Issue;

/// The present and the earlier name of each renamed field.
const NAMES: [(&str, &str); 3] = [
    ("connection_id", "customer_id"),
    ("subscription_config_id", "plan_id"),
    ("product_ids", "meter_ids"),
];

/// The present and the earlier path of each renamed resource.
const PATHS: [(&str, &str); 2] =
    [("/v1/connections", "/v1/customers"), ("/v1/subscription_configs", "/v1/plans")];

/// Paths that are the same in both shapes, and whose responses have renamed fields.
const SHARED: [&str; 2] = ["/v1/subscriptions", "/v1/credit_bundles"];

/// The earlier name of a field, if it was renamed.
pub(crate) fn earlier_name(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|(now, _)| *now == name).map(|(_, earlier)| *earlier)
}

/// The fields of a body that came under their earlier names.
#[derive(Default)]
pub(crate) struct RenamedFields(Vec<(&'static str, &'static str)>);

impl RenamedFields {
    /// Renames fields from their earlier to their present names.
    pub(crate) fn of(fields: &mut Map<String, Value>, issues: &mut Vec<Issue>) -> Self {
        let mut renamed = Vec::new();
        for (name, earlier) in NAMES {
            let Some(value) = fields.remove(earlier) else { continue };
            match fields.get(name).filter(|now| !now.is_null()) {
                Some(now) if !value.is_null() && *now != value => {
                    issues.push(Issue::at([earlier], Issue::differs_from(name)));
                }
                Some(_) => {}
                None => {
                    fields.insert(name.to_owned(), value);
                    renamed.push((name, earlier));
                }
            }
        }
        Self(renamed)
    }

    /// Restores the names under which the fields came, in the paths of issues.
    pub(crate) fn restore_names(&self, issues: &mut [Issue]) {
        for first in issues.iter_mut().filter_map(|issue| issue.path.first_mut()) {
            if let Some((_, earlier)) = self.0.iter().find(|(name, _)| first == name) {
                *first = (*earlier).to_owned();
            }
        }
    }
}

/// Serves the paths of the earlier shape as the present ones, with earlier names in the responses. Under a
/// renamed path a response has the earlier names only; under a path of both shapes it has both.
pub(crate) async fn serve_earlier_names(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse, Error> {
    let path = request.path();
    let is_earlier = PATHS.iter().find_map(|(now, earlier)| Some((now, below(path, earlier)?)));
    let names = match is_earlier {
        Some((now, rest)) => {
            let query = request.query_string();
            let separator = if query.is_empty() { "" } else { "?" };
            let uri = format!("{now}{rest}{separator}{query}");
            let uri: Uri = uri.parse().map_err(ErrorBadRequest)?;
            request.extensions_mut().insert(RequestedPath(path.to_owned()));
            request.match_info_mut().get_mut().update(&uri);
            request.head_mut().uri = uri;
            ResponseNames::Earlier
        }
        None if SHARED.iter().any(|shared| below(path, shared).is_some()) => ResponseNames::Both,
        None => return Ok(next.call(request).await?.map_into_boxed_body()),
    };
    let (request, response) = next.call(request).await?.into_parts();
    let (head, body) = response.into_parts();
    let whole = to_bytes(body).await.map_err(|cause| Error::from(cause.into()))?;
    // Some responses have no body.
    let whole = match serde_json::from_slice(&whole) {
        Ok(value) => serde_json::to_vec(&with_earlier_names(value, names))?.into(),
        Err(_) => whole,
    };
    Ok(ServiceResponse::new(request, head.set_body(whole).map_into_boxed_body()))
}

/// The path of a request before it was renamed.
struct RequestedPath(String);

/// The path of a request as the client sent it.
pub(crate) fn requested_path(http: &HttpRequest) -> String {
    let asked = http.extensions().get::<RequestedPath>().map(|RequestedPath(path)| path.clone());
    asked.unwrap_or_else(|| http.path().to_owned())
}

/// The rest of a path behind `base`, if the path is `base` or below it.
fn below<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    path.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ResponseNames {
    Earlier,
    Both,
}

fn with_earlier_names(value: Value, names: ResponseNames) -> Value {
    match value {
        Value::Array(items) => {
            items.into_iter().map(|item| with_earlier_names(item, names)).collect()
        }
        Value::Object(fields) => {
            let mut named = Map::new();
            for (name, value) in fields {
                // The keys of metadata are the merchant's own.
                if name == "metadata" {
                    named.insert(name, value);
                    continue;
                }
                // An issue names a field in its `path`.
                if name == "path" && value.is_array() {
                    named.insert(name, by_earlier_name(value, names));
                    continue;
                }
                let earlier = match name.as_str() {
                    "linked_meters" => Some(("meter_ids", ids(&value))),
                    name => earlier_name(name).map(|earlier| (earlier, value.clone())),
                };
                if names == ResponseNames::Both || earlier.is_none() {
                    named.insert(name, with_earlier_names(value, names));
                }
                named.extend(earlier.map(|(name, value)| (name.to_owned(), value)));
            }
            Value::Object(named)
        }
        value => value,
    }
}

/// The path of an issue with the earlier name of its field, which comes first.
fn by_earlier_name(mut path: Value, names: ResponseNames) -> Value {
    if names == ResponseNames::Earlier
        && let Some(field) = path.get_mut(0)
        && let Some(earlier) = field.as_str().and_then(earlier_name)
    {
        *field = earlier.into();
    }
    path
}

/// The ids of linked meters.
fn ids(meters: &Value) -> Value {
    let meters = meters.as_array().into_iter().flatten();
    meters.filter_map(|meter| meter.get("meter_id").cloned()).collect()
}
