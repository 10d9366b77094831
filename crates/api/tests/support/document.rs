//! Checks that answers conform to the OpenAPI document.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Value, json};
use tollgate_api::openapi;
use tollgate_testkit::TestResponse;

/// A validator for the schema at this place of the document.
pub fn validator_at(place: &str) -> Arc<Validator> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap();
    let new = || {
        let mut root = openapi().clone();
        root["$ref"] = json!(place);
        let options = jsonschema::draft202012::options().should_validate_formats(true);
        Arc::new(options.build(&root).unwrap())
    };
    known.entry(place.to_owned()).or_insert_with(new).clone()
}

#[track_caller]
pub fn assert_valid(validator: &Validator, value: &Value) {
    let faults: Vec<_> = validator
        .iter_errors(value)
        .map(|fault| format!("{}: {fault}", fault.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}\n{value:#}");
}

/// A value of the document, or the value that it refers to.
pub fn resolve(value: &'static Value) -> &'static Value {
    let place = value["$ref"].as_str().and_then(|place| place.strip_prefix('#'));
    place.map_or(value, |place| openapi().pointer(place).unwrap())
}

/// A path, escaped for a reference into the document.
fn escaped(path: &str) -> String {
    path.replace('/', "~1").replace('{', "%7B").replace('}', "%7D")
}

/// The path of the document that matches a path.
fn template(path: &str) -> Option<&'static str> {
    let is_one = |template: &str| {
        let (parts, names) = (path.split('/'), template.split('/'));
        let open = template == "/v1/models/{id}" && path.starts_with("/v1/models/");
        let alike = |(part, name): (&str, &str)| part == name || name.starts_with('{');
        open || (parts.clone().count() == names.clone().count() && parts.zip(names).all(alike))
    };
    let paths = openapi()["paths"].as_object().unwrap();
    paths.keys().map(String::as_str).find(|template| is_one(template))
}

/// Fails unless the document has this answer to the operation. `target` is path and query.
#[track_caller]
pub fn assert_documented(method: &str, target: &str, answer: &TestResponse) {
    let path = target.split('?').next().unwrap();
    let method = method.to_lowercase();
    let operation =
        template(path).map(|template| (template, &openapi()["paths"][template][&method]));
    let Some((template, operation)) = operation.filter(|(_, operation)| operation.is_object())
    else {
        assert!([404, 405].contains(&answer.status), "{method} {path}: {}", answer.status);
        return;
    };
    // The answers of providers are not described.
    if operation["responses"]["default"].is_object() {
        return;
    }
    let status = answer.status.to_string();
    let response = &operation["responses"][&status];
    assert!(response.is_object(), "{method} {template} has no {status}: {}", answer.text());
    let place = match response["$ref"].as_str() {
        Some(shared) => shared.to_owned(),
        None => format!("#/paths/{}/{method}/responses/{status}", escaped(template)),
    };
    let schema = validator_at(&format!("{place}/content/application~1json/schema"));
    let content_type = answer.header("content-type").unwrap_or_default();
    for (text_type, name) in [("text/csv", "text~1csv"), ("text/html", "text~1html")] {
        if content_type.starts_with(text_type) {
            let text = Value::from(answer.text());
            assert_valid(&validator_at(&format!("{place}/content/{name}/schema")), &text);
            return;
        }
    }
    assert_valid(&schema, &answer.json());
    if answer.status >= 400 {
        let codes = &resolve(response)["x-error-codes"];
        let code = json!(answer.error());
        assert!(codes.as_array().unwrap().contains(&code), "{method} {template}: {code}");
    }
}
