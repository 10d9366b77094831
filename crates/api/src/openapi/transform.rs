//! The document as a whole, in JSON: its operations, and the changes to all of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Every operation, with its method.
pub(super) fn operations(document: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    let items = paths.into_iter().flat_map(|paths| paths.values_mut());
    items.filter_map(Value::as_object_mut).flatten()
}

/// Leaves out what only the router reads: the method `HEAD`, which answers as `GET`, and the patterns of parameters.
pub(super) fn hide_head_and_patterns(document: &mut Value) {
    let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) else { return };
    *paths = std::mem::take(paths)
        .into_iter()
        .map(|(path, mut item)| {
            if let Some(item) = item.as_object_mut() {
                item.shift_remove("head");
            }
            (without_patterns(&path), item)
        })
        .collect();
}

/// The path as the document has it: `/models/{id}` for `/models/{id:.+}`.
pub(super) fn without_patterns(path: &str) -> String {
    [":.+}", ":[^:/]+}"].iter().fold(path.to_owned(), |path, pattern| path.replace(pattern, "}"))
}

/// Moves the description of an optional field to the field: utoipa writes it beside the reference in its `oneOf`.
pub(super) fn lift_descriptions(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let choices = fields.get_mut("oneOf").and_then(Value::as_array_mut);
            let choices = choices.into_iter().flatten().filter_map(Value::as_object_mut);
            let mut described =
                choices.filter(|choice| choice.contains_key("$ref") && choice.len() == 2);
            let lifted = described.find_map(|choice| choice.shift_remove("description"));
            if let Some(description) = lifted {
                fields.entry("description").or_insert(description);
            }
            fields.values_mut().for_each(lift_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(lift_descriptions),
        _ => {}
    }
}

/// Makes bodies optional where an empty body, which counts as `{}`, is enough.
pub(super) fn let_bodies_be_empty(document: &mut Value) {
    let needs_fields = |body: &Value, document: &Value| {
        let schema = body.pointer("/content/application~1json/schema/$ref");
        let place = schema.and_then(Value::as_str).and_then(|name| name.strip_prefix('#'));
        place
            .and_then(|place| document.pointer(place))
            .is_none_or(|it| it.get("required").is_some())
    };
    let whole = document.clone();
    for (_, operation) in operations(document) {
        let Some(body) = operation.get_mut("requestBody") else { continue };
        let is_ours = body.pointer("/content/*~1*").is_none();
        let required = !is_ours || needs_fields(body, &whole);
        if let Some(body) = body.as_object_mut() {
            body.insert("required".to_owned(), required.into());
        }
    }
}

/// Describes parameters that are objects or lists as JSON in a string. Generators of clients would leave them
/// out as `content`.
pub(super) fn describe_json_parameters(document: &mut Value) {
    let whole = document.clone();
    let is_json = |schema: &Value| {
        let place = schema.get("$ref").and_then(Value::as_str).and_then(|it| it.strip_prefix('#'));
        let schema = place.and_then(|place| whole.pointer(place)).unwrap_or(schema);
        schema.get("type").is_some_and(|kind| kind == "object" || kind == "array")
    };
    for (_, operation) in operations(document) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten().filter_map(Value::as_object_mut) {
            if parameter.get("schema").is_some_and(is_json) {
                let schema = parameter.shift_remove("schema");
                let text = json!({
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": schema,
                });
                parameter.insert("schema".to_owned(), text);
            }
        }
    }
}

/// Closes every object against fields that its schema does not name. A part of a composed object stays open,
/// because the other parts name more fields.
pub(super) fn close_objects(document: &mut Value) {
    let mut parts = BTreeSet::new();
    find_parts(document, &mut parts);
    for place in ["/components/schemas", "/components/responses", "/paths", "/webhooks"] {
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
