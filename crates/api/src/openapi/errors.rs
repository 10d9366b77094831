//! The errors of operations. Annotations name the codes of one operation. The codes of all operations of a
//! kind follow from what they take. Here both become responses: one for each status, shared by all operations
//! that have the same.

use serde_json::{Map, Value, json};

use super::marks::{CALL_ERRORS, COMMON, EITHER_SHAPE_ERRORS, SHAPE_A_ERRORS, SHAPE_B_ERRORS};
use super::transform::operations;
use crate::http::error::ErrorCode;

/// The marks of the SDKs' formats. An operation has at most one.
const SHAPES: [&str; 3] = [SHAPE_A_ERRORS, SHAPE_B_ERRORS, EITHER_SHAPE_ERRORS];

/// The schemas of the envelope: the plain one, and those with the fields that SDKs read.
const ERROR: &str = "Error";
const ERROR_OF_SHAPE_A: &str = "ErrorOfShapeA";
const ERROR_OF_SHAPE_B: &str = "ErrorOfShapeB";

/// The inputs of an operation that can cause errors.
struct OperationInputs {
    secret_key: bool,
    operator_token: bool,
    body: bool,
    query: bool,
    cursor: bool,
    idempotency_key: bool,
}

impl OperationInputs {
    fn of(method: &str, operation: &Value) -> Self {
        let secured_by = |name: &str| match operation.get("security") {
            None => name == "secret_key",
            Some(by) => by.pointer(&format!("/0/{name}")).is_some(),
        };
        let parameters = operation.get("parameters").and_then(Value::as_array);
        let has = |field: &str, value: &str| {
            parameters.into_iter().flatten().any(|one| one.get(field).is_some_and(|it| it == value))
        };
        Self {
            secret_key: secured_by("secret_key"),
            operator_token: secured_by("operator_token"),
            // Operations whose path is their whole input read a body, too.
            body: method != "get" && method != "delete",
            query: has("in", "query"),
            cursor: has("name", "cursor"),
            idempotency_key: has("name", "Idempotency-Key"),
        }
    }

    fn can_fail_with(&self, code: ErrorCode) -> bool {
        use ErrorCode::*;
        match code {
            AuthHeaderMissing | AuthInvalid => self.secret_key || self.operator_token,
            OperationNotAllowed | RateLimited => self.secret_key,
            // The operator's routes are off without a token.
            RouteNotFound => self.operator_token,
            JsonInvalid | BodyTooLarge | BodyTooSlow | Overloaded | ContentTypeUnsupported => {
                self.body
            }
            ValidationFailed => self.body || self.query,
            CursorInvalid => self.cursor,
            IdempotencyKeyReused => self.idempotency_key,
            InternalError | StoreUnavailable => true,
            _ => false,
        }
    }
}

/// Whether a call can be refused with this code.
fn is_call_error(code: ErrorCode) -> bool {
    use ErrorCode::*;
    matches!(
        code,
        JsonInvalid
            | ValidationFailed
            | ForwardTokenJsonInvalid
            | ForwardEndpointNotSupported
            | MetadataInvalid
            | ModelPriceUnknown
            | CostBoundUnknown
            | AuthHeaderMissing
            | AuthInvalid
            | WalletBalanceInsufficient
            | SpendLimitReached
            | BudgetExhausted
            | RunLimitReached
            | RunLimitConflict
            | BudgetPaused
            | ConnectionDisabled
            | SpendKeyPaused
            | SpendKeyExpired
            | SpendKeyRequestShapeMismatch
            | SpendKeyModelNotAllowed
            | SpendKeyProviderNotAllowed
            | ConnectionNotFound
            | MeterNotFound
            | BodyTooLarge
            | BodyTooSlow
            | Overloaded
            | RateLimited
            | RequestLimitReached
            | BudgetRequestsExhausted
            | InternalError
            | ProviderUnreachable
            | StoreUnavailable
            | ShuttingDown
            | ProviderTimeout
    )
}

/// Makes responses of the annotations.
pub(super) fn spell_out(document: &mut Value) {
    let mut shared = Map::new();
    for (method, operation) in operations(document) {
        let takes = OperationInputs::of(method, operation);
        let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else {
            continue;
        };
        let mut says = |name: &str| responses.shift_remove(name).is_some();
        let (common, of_a_call) = (says(COMMON), says(CALL_ERRORS));
        let shape = SHAPES.into_iter().find(|shape| says(shape));
        let codes: Vec<_> = ErrorCode::ALL
            .iter()
            .copied()
            .filter(|code| {
                says(code.name())
                    || (common && takes.can_fail_with(*code))
                    || (of_a_call && is_call_error(*code))
            })
            .collect();
        for codes in codes.chunk_by(|one, next| one.status() == next.status()) {
            let Some(status) = codes.first().map(|code| code.status()) else { continue };
            let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
            let kind = of_a_call.then_some(CALL_ERRORS).into_iter().chain(shape);
            let name = kind.chain(names.iter().copied()).collect::<Vec<_>>().join(".");
            let reference = json!({"$ref": format!("#/components/responses/{name}")});
            responses.insert(status.to_string(), reference);
            shared.entry(name).or_insert_with(|| response(codes, &names, shape, of_a_call));
        }
    }
    if let Some(components) = document.get_mut("components").and_then(Value::as_object_mut) {
        components.insert("responses".to_owned(), shared.into());
        if let Some(schemas) = components.get_mut("schemas").and_then(Value::as_object_mut) {
            schemas.extend(of_sdks(schemas));
        }
    }
}

/// The envelopes with the fields that the SDKs of each format read.
fn of_sdks(schemas: &Map<String, Value>) -> Vec<(String, Value)> {
    let with = |name: &str, of_whole: &[&str], of_body: &[&str]| {
        let mut whole = schemas.get(ERROR)?.clone();
        let mut body = schemas.get("ErrorBody")?.clone();
        body.get_mut("required")?.as_array_mut()?.extend(of_body.iter().map(|name| json!(name)));
        whole.get_mut("required")?.as_array_mut()?.extend(of_whole.iter().map(|name| json!(name)));
        if let Some(body) = body.as_object_mut() {
            body.insert(
                "description".to_owned(),
                json!("The error, with the fields that SDKs read."),
            );
        }
        whole.get_mut("properties")?.as_object_mut()?.insert("error".to_owned(), body);
        Some((name.to_owned(), whole))
    };
    let shape_a = with(ERROR_OF_SHAPE_A, &[], &["type", "param"]);
    let shape_b = with(ERROR_OF_SHAPE_B, &["type"], &["type"]);
    shape_a.into_iter().chain(shape_b).collect()
}

/// One response for all these codes, which have one status. A schema for each code would be a type for each
/// in a client, so the codes are listed beside the schema.
fn response(codes: &[ErrorCode], names: &[&str], shape: Option<&str>, of_a_call: bool) -> Value {
    let ours = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let ours = match shape {
        None => ours(ERROR),
        Some(SHAPE_A_ERRORS) => ours(ERROR_OF_SHAPE_A),
        Some(SHAPE_B_ERRORS) => ours(ERROR_OF_SHAPE_B),
        Some(_) => json!({"anyOf": [ours(ERROR_OF_SHAPE_A), ours(ERROR_OF_SHAPE_B)]}),
    };
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    let (schema, description) = match of_a_call {
        false => (ours, quoted.join(", ")),
        true => (
            json!({"anyOf": [ours, {"description": "The provider's own answer."}]}),
            format!("{}; or the provider's own answer, as it is", quoted.join(", ")),
        ),
    };
    let mut content = json!({"application/json": {"schema": schema}});
    if let Some(content) = content.as_object_mut().filter(|_| of_a_call) {
        content.insert("*/*".to_owned(), json!({}));
    }
    let headers: Map<_, _> = codes.iter().flat_map(|code| headers(*code)).collect();
    let mut response = json!({
        "description": description,
        "content": content,
        "x-error-codes": names,
    });
    if let Some(response) = response.as_object_mut().filter(|_| !headers.is_empty()) {
        response.insert("headers".to_owned(), headers.into());
    }
    response
}

/// The headers that an error can have.
fn headers(code: ErrorCode) -> impl Iterator<Item = (String, Value)> {
    use ErrorCode::*;
    let limit = matches!(
        code,
        RateLimited
            | RequestLimitReached
            | SpendLimitReached
            | BudgetExhausted
            | BudgetRequestsExhausted
            | RunLimitReached
    );
    let waits = limit || matches!(code, WalletBalanceInsufficient | StoreUnavailable);
    let ends_late = limit && code != RateLimited;
    let of_budget = matches!(code, BudgetExhausted | BudgetRequestsExhausted | BudgetPaused);
    let recorded = matches!(code, ProviderUnreachable | ProviderTimeout);
    let text =
        |description: &str| json!({"description": description, "schema": {"type": "string"}});
    let all = [
        (
            waits,
            "Retry-After",
            json!({
                "description": "After how many seconds it may be tried again, if waiting helps.",
                "schema": {"type": "integer", "minimum": 1},
            }),
        ),
        (
            ends_late,
            "x-should-retry",
            text("`false` where trying again helps only after more than a minute, or never."),
        ),
        (limit, "x-ratelimit-limit", text("The limit: calls a minute, calls, or USD.")),
        (limit, "x-ratelimit-remaining", text("What is left of it.")),
        (limit, "x-ratelimit-reset", text("When there is more, if ever.")),
        (
            of_budget,
            "x-service-budget",
            json!({
                "description": "The id of the budget.",
                "schema": {"$ref": "#/components/schemas/BudgetId"},
            }),
        ),
        (
            recorded,
            "x-service-request-id",
            json!({
                "description": "The id of the record.",
                "schema": {"$ref": "#/components/schemas/RequestId"},
            }),
        ),
    ];
    let there = all.into_iter().filter(|(is_there, ..)| *is_there);
    there.map(|(_, name, header)| (name.to_owned(), header))
}
