//! An example of each operation: the request of one call, and its answer. `just examples` records them again.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::transform::operations;

#[derive(Deserialize)]
struct OperationExample {
    #[serde(default)]
    parameters: Map<String, Value>,
    request: Option<Value>,
    status: String,
    answer: Value,
}

/// Adds the examples to the operations.
pub(super) fn show(document: &mut Value) {
    let mut examples: BTreeMap<String, OperationExample> =
        serde_json::from_str(include_str!("examples.json")).unwrap_or_default();
    for (_, operation) in operations(document) {
        let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
        let Some(OperationExample { mut parameters, request, status, answer }) =
            examples.remove(id)
        else {
            continue;
        };
        let declared = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in declared.into_iter().flatten() {
            let name = parameter.get("name").and_then(Value::as_str).unwrap_or_default();
            if let Some(value) = parameters.remove(name) {
                add(parameter, "", value);
            }
        }
        if let Some(request) = request {
            add(operation, "/requestBody/content/application~1json", request);
        }
        add(operation, &format!("/responses/{status}/content/application~1json"), answer);
    }
}

fn add(operation: &mut Value, place: &str, example: Value) {
    if let Some(place) = operation.pointer_mut(place).and_then(Value::as_object_mut) {
        place.insert("example".to_owned(), example);
    }
}
