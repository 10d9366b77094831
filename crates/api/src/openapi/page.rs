//! The OpenAPI document as an HTML page, rendered once from the document alone. The page loads nothing from
//! elsewhere.

use askama::Template;
use serde_json::{Map, Value};
use url::form_urlencoded;

/// Renders the page of a document.
pub(super) fn render(document: &Value) -> String {
    let page = ReferencePage::of(document).render();
    page.inspect_err(|cause| log::error!("the reference cannot be made: {cause}"))
        .unwrap_or_default()
}

#[derive(Template)]
#[template(path = "reference.html")]
struct ReferencePage {
    about: String,
    groups: Vec<OperationGroup>,
    messages: Vec<MessageDoc>,
    schemas: Vec<SchemaDoc>,
}

/// The operations of one resource.
struct OperationGroup {
    name: String,
    operations: Vec<OperationDoc>,
}

struct OperationDoc {
    id: String,
    method: String,
    path: String,
    summary: String,
    about: Vec<String>,
    credentials: String,
    parameters: Vec<FieldDoc>,
    body: Vec<TypePiece>,
    fields: Vec<FieldDoc>,
    answers: Vec<ResponseDoc>,
    example: String,
    answered: Option<String>,
}

struct ResponseDoc {
    status: String,
    about: String,
    body: Vec<TypePiece>,
}

/// A message of a webhook.
struct MessageDoc {
    kind: String,
    about: String,
    example: String,
}

struct SchemaDoc {
    name: String,
    about: String,
    kind: Vec<TypePiece>,
    fields: Vec<FieldDoc>,
}

struct FieldDoc {
    name: String,
    place: String,
    is_required: bool,
    kind: Vec<TypePiece>,
    about: String,
    limits: String,
}

/// A piece of a type's name: words, or the name of a schema.
struct TypePiece {
    text: String,
    is_schema: bool,
}

impl TypePiece {
    fn words(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_schema: false }
    }
}

impl ReferencePage {
    fn of(document: &Value) -> Self {
        let mut groups: Vec<OperationGroup> = Vec::new();
        for (path, item) in fields(document, "/paths") {
            for (method, operation) in item.as_object().into_iter().flatten() {
                let name = text(operation, "/tags/0").replace('_', " ");
                let operation = OperationDoc::of(document, path, method, operation);
                match groups.iter_mut().find(|group| group.name == name) {
                    Some(group) => group.operations.push(operation),
                    None => groups.push(OperationGroup { name, operations: vec![operation] }),
                }
            }
        }
        let order: Vec<_> =
            document.get("tags").and_then(Value::as_array).into_iter().flatten().collect();
        groups.sort_by_key(|group| {
            order.iter().position(|tag| text(tag, "/name").replace('_', " ") == group.name)
        });
        let messages = fields(document, "/webhooks").map(|(kind, item)| MessageDoc {
            kind: kind.clone(),
            about: text(item, "/post/summary") + &text(item, "/post/description"),
            example: item
                .pointer("/post/requestBody/content/application~1json/example")
                .map(pretty)
                .unwrap_or_default(),
        });
        let schemas = fields(document, "/components/schemas").map(|(name, schema)| SchemaDoc {
            name: name.clone(),
            about: text(schema, "/description"),
            kind: kind(schema),
            fields: fields_of(document, schema),
        });
        Self {
            about: text(document, "/info/description"),
            groups,
            messages: messages.collect(),
            schemas: schemas.collect(),
        }
    }
}

impl OperationDoc {
    fn of(document: &Value, path: &str, method: &str, operation: &Value) -> Self {
        let parameters: Vec<_> = items(operation, "/parameters")
            .map(|parameter| {
                let schema = parameter.get("schema").unwrap_or(&Value::Null);
                FieldDoc {
                    name: text(parameter, "/name"),
                    place: text(parameter, "/in"),
                    is_required: parameter.get("required") == Some(&Value::Bool(true)),
                    kind: kind(schema),
                    about: text(parameter, "/description"),
                    limits: limits(schema),
                }
            })
            .collect();
        let body = operation.pointer("/requestBody/content/application~1json/schema");
        let answers = fields(operation, "/responses").map(|(status, answer)| {
            let answer = resolved(document, answer);
            let schema = answer.pointer("/content/application~1json/schema");
            ResponseDoc {
                status: status.clone(),
                about: text(answer, "/description"),
                body: schema.map(kind).unwrap_or_default(),
            }
        });
        let answered = fields(operation, "/responses")
            .find_map(|(_, answer)| answer.pointer("/content/application~1json/example"));
        let about = text(operation, "/description");
        let security = operation.get("security").or_else(|| document.get("security"));
        Self {
            id: text(operation, "/operationId"),
            method: method.to_uppercase(),
            path: path.to_owned(),
            summary: text(operation, "/summary"),
            about: about.split("\n\n").filter(|it| !it.is_empty()).map(str::to_owned).collect(),
            credentials: credentials(document, security),
            body: body.map(kind).unwrap_or_default(),
            fields: body.map(|body| fields_of(document, body)).unwrap_or_default(),
            answers: answers.collect(),
            example: curl(path, method, operation),
            answered: answered.map(pretty),
            parameters,
        }
    }
}

/// The credentials of an operation, and the places where they may be.
fn credentials(document: &Value, security: Option<&Value>) -> String {
    let (mut what, mut places) = (Vec::new(), vec!["Authorization: Bearer".to_owned()]);
    let names = security.and_then(Value::as_array).into_iter().flatten();
    for name in names.filter_map(Value::as_object).flat_map(Map::keys) {
        let scheme = document.pointer(&format!("/components/securitySchemes/{name}"));
        match scheme.filter(|scheme| scheme["type"] == "http") {
            Some(bearer) => what.push(text(bearer, "/description")),
            None => places.push(name.clone()),
        }
    }
    match what.is_empty() {
        true => String::new(),
        false => format!("{}, as {}", what.join("; "), places.join(" or ")),
    }
}

/// A command to paste.
fn curl(path: &str, method: &str, operation: &Value) -> String {
    let (mut path, mut query) = (path.to_owned(), form_urlencoded::Serializer::new(String::new()));
    for parameter in items(operation, "/parameters") {
        let Some(example) = parameter.get("example") else { continue };
        let example = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
        let name = text(parameter, "/name");
        match text(parameter, "/in").as_str() {
            "path" => path = path.replace(&format!("{{{name}}}"), &example),
            _ => drop(query.append_pair(&name, &example)),
        }
    }
    let query = query.finish();
    let query = if query.is_empty() { query } else { format!("?{query}") };
    let mut lines = vec![match method {
        "get" => format!("curl \"$BASE{path}{query}\""),
        method => format!("curl -X {} \"$BASE{path}{query}\"", method.to_uppercase()),
    }];
    let opened_by = operation.get("security").and_then(Value::as_array);
    if opened_by.is_none_or(|credentials| !credentials.is_empty()) {
        lines.push("-H \"Authorization: Bearer $KEY\"".to_owned());
    }
    if let Some(body) = operation.pointer("/requestBody/content/application~1json/example") {
        lines.push("-H \"Content-Type: application/json\"".to_owned());
        lines.push(format!("-d '{body}'"));
    }
    lines.join(" \\\n  ")
}

/// The properties of a schema, and of all its parts or alternatives.
pub(super) fn properties<'a>(
    document: &'a Value,
    schema: &'a Value,
) -> Vec<(&'a String, &'a Value)> {
    let schema = resolved(document, schema);
    let mut parts: Vec<_> = items(schema, "/allOf").chain(items(schema, "/oneOf")).collect();
    // The own properties of a composed object are its last part.
    parts.sort_by_key(|part| part.get("$ref").is_some());
    let parts = parts.into_iter().flat_map(|part| properties(document, part));
    parts.chain(fields(schema, "/properties")).collect()
}

/// The properties as fields of a table, the required ones first.
fn fields_of(document: &Value, schema: &Value) -> Vec<FieldDoc> {
    let mut required = Vec::new();
    find_required(document, schema, &mut required);
    let field = |(name, schema): (&String, &Value)| {
        let described = text(schema, "/description");
        let nested = items(schema, "/oneOf").map(|one| text(one, "/description"));
        FieldDoc {
            name: name.clone(),
            place: String::new(),
            is_required: required.contains(name),
            kind: kind(schema),
            about: if described.is_empty() { nested.collect() } else { described },
            limits: limits(schema),
        }
    };
    let mut found: Vec<_> = properties(document, schema).into_iter().map(field).collect();
    found.sort_by_key(|field| !field.is_required);
    found
}

pub(super) fn find_required(document: &Value, schema: &Value, found: &mut Vec<String>) {
    let schema = resolved(document, schema);
    found.extend(items(schema, "/required").filter_map(Value::as_str).map(str::to_owned));
    items(schema, "/allOf").for_each(|part| find_required(document, part, found));
}

/// The name of a type.
fn kind(schema: &Value) -> Vec<TypePiece> {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let text = name.rsplit('/').next().unwrap_or_default().to_owned();
        return vec![TypePiece { text, is_schema: true }];
    }
    for (place, word) in [("/oneOf", " or "), ("/anyOf", " or "), ("/allOf", " and ")] {
        let mut parts: Vec<_> = items(schema, place).collect();
        if !parts.is_empty() {
            // `null` is the last alternative.
            parts.sort_by_key(|part| text(part, "/type") == "null");
            return joined(parts.into_iter().map(kind), word);
        }
    }
    let words: Vec<_> = items(schema, "/enum").map(Value::to_string).collect();
    if !words.is_empty() {
        return vec![TypePiece::words(words.join(" | "))];
    }
    let kinds = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(kind)) => vec![kind.as_str()],
        _ => vec!["anything"],
    };
    let of_kind = |name: &str| match (name, schema.get("items")) {
        ("array", Some(item)) => {
            [TypePiece::words("list of ")].into_iter().chain(kind(item)).collect()
        }
        (name, _) => vec![TypePiece::words(name)],
    };
    joined(kinds.into_iter().map(of_kind), " or ")
}

fn joined(parts: impl Iterator<Item = Vec<TypePiece>>, word: &str) -> Vec<TypePiece> {
    let mut all = Vec::new();
    for part in parts {
        if !all.is_empty() {
            all.push(TypePiece::words(word));
        }
        all.extend(part);
    }
    all
}

/// The limits of a value beyond its type.
fn limits(schema: &Value) -> String {
    const SAID: [(&str, &str); 9] = [
        ("minLength", "at least {} characters"),
        ("maxLength", "at most {} characters"),
        ("minimum", "at least {}"),
        ("maximum", "at most {}"),
        ("minItems", "at least {} items"),
        ("maxItems", "at most {} items"),
        ("default", "{} if absent"),
        ("format", "{}"),
        ("pattern", "matches {}"),
    ];
    let said = SAID.into_iter().filter_map(|(name, words)| {
        let value = schema.get(name)?;
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Some(words.replace("{}", &value))
    });
    said.collect::<Vec<_>>().join(", ")
}

/// The pieces of a text that has code between backticks, each with whether it is code.
fn pieces(text: &str) -> impl Iterator<Item = (bool, &str)> {
    text.split('`').enumerate().map(|(place, piece)| (place % 2 == 1, piece))
}

/// The target of a reference; `value` itself if it is none.
pub(super) fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let place = value.get("$ref").and_then(Value::as_str).and_then(|it| it.strip_prefix('#'));
    place.and_then(|place| document.pointer(place)).unwrap_or(value)
}

pub(super) fn fields<'a>(
    value: &'a Value,
    place: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.pointer(place).and_then(Value::as_object).into_iter().flatten()
}

pub(super) fn items<'a>(value: &'a Value, place: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(place).and_then(Value::as_array).into_iter().flatten()
}

pub(super) fn text(value: &Value, place: &str) -> String {
    value.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
