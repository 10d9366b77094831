//! The lists of fields, parameters, errors and operations in the pages `docs/api`. A list is between two comments, such
//! as `<!-- openapi: body POST /v1/meters -->` and `<!-- /openapi -->`, and is made from the document.

use serde_json::Value;

use super::page::{fields, find_required, items, properties, resolved, text};

const BEGIN: &str = "<!-- openapi: ";
const END: &str = "<!-- /openapi -->";

/// The most columns of a line.
const COLUMNS: usize = 120;
/// The most fields of an object within another one. Those of a larger one are left out: prices by unit.
const MOST_NESTED: usize = 20;
/// The codes that follow from what an operation takes. `docs/api/errors.md` has them once for all operations.
const COMMON_CODES: [&str; 12] = [
    "json_invalid",
    "cursor_invalid",
    "auth_header_missing",
    "auth_invalid",
    "operation_not_allowed",
    "body_too_slow",
    "body_too_large",
    "content_type_unsupported",
    "rate_limited",
    "internal_error",
    "store_unavailable",
    "overloaded",
];

/// A page with its lists made again. The error names a mark that cannot be resolved.
///
/// The marks are `body`, `parameters`, `answer` and `errors`, each with a method and a path, and `operations` with tags.
/// The answer of a list is one element of it.
pub fn reference_page(document: &Value, page: &str) -> Result<String, String> {
    let mut made = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        made.push_str(line);
        made.push('\n');
        let mark = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->"));
        let Some(mark) = mark else { continue };
        let list =
            list(document, mark).ok_or_else(|| format!("the document has nothing for: {mark}"))?;
        lines.find(|line| *line == END).ok_or_else(|| format!("no {END} follows: {mark}"))?;
        made.push_str(&format!("\n{list}\n{END}\n"));
    }
    Ok(made)
}

fn list(document: &Value, mark: &str) -> Option<String> {
    let (kind, of) = mark.split_once(' ')?;
    if kind == "operations" {
        let lists: Option<Vec<_>> = of.split(' ').map(|tag| operations_of(document, tag)).collect();
        return Some(lists?.concat());
    }
    let (method, path) = of.split_once(' ')?;
    let operation = document.get("paths")?.get(path)?.get(method.to_lowercase())?;
    match kind {
        "body" => {
            let mut list = FieldList::new(document, "optional", "required");
            list.add(operation.pointer("/requestBody/content/application~1json/schema")?, "");
            Some(format!("Fields of the body:\n\n{}", list.lines))
        }
        "parameters" => Some(format!("Parameters:\n\n{}", parameters(document, operation))),
        "answer" => {
            let mut answers = answers(operation);
            let answer =
                answers.find_map(|(_, it)| it.pointer("/content/application~1json/schema"))?;
            let data = resolved(document, answer).pointer("/properties/data/items");
            let mut list = FieldList::new(document, "may be absent", "");
            list.add(data.unwrap_or(answer), "");
            let whole = if data.is_some() { "an element of `data`" } else { "the answer" };
            Some(format!("Fields of {whole}:\n\n{}", list.lines))
        }
        "errors" => Some(wrapped(&errors(document, operation))),
        _ => None,
    }
}

/// The operations of a tag, each with its statuses and its summary.
fn operations_of(document: &Value, tag: &str) -> Option<String> {
    let items = fields(document, "/paths").flat_map(|(path, item)| {
        item.as_object()
            .into_iter()
            .flatten()
            .map(move |(method, operation)| (path, method, operation))
    });
    let lines: Vec<_> = items
        .filter(|(.., operation)| text(operation, "/tags/0") == tag)
        .map(|(path, method, operation)| {
            let statuses: Vec<_> = answers(operation).map(|(status, _)| status.as_str()).collect();
            let summary = text(operation, "/summary");
            let method = method.to_uppercase();
            wrapped(&format!("- `{method} {path}` ({}): {summary}", statuses.join(", ")))
        })
        .collect();
    (!lines.is_empty()).then(|| lines.concat())
}

/// The answers of an operation that are no errors.
fn answers(operation: &Value) -> impl Iterator<Item = (&String, &Value)> {
    fields(operation, "/responses").filter(|(status, _)| status.starts_with(['1', '2']))
}

fn parameters(document: &Value, operation: &Value) -> String {
    let parameters = items(operation, "/parameters").filter(|it| text(it, "/in") != "path");
    let lines = parameters.map(|parameter| {
        let schema = parameter.get("schema").unwrap_or(&Value::Null);
        let presence = match (schema.get("default"), parameter.get("required")) {
            (Some(default), _) => format!("default `{}`", plain(default)),
            (None, Some(Value::Bool(true))) => "required".to_owned(),
            (None, _) => "optional".to_owned(),
        };
        let place = match text(parameter, "/in").as_str() {
            "query" => String::new(),
            place => format!("{place}, "),
        };
        let (name, kind) = (text(parameter, "/name"), type_words(document, schema));
        let about = text(parameter, "/description");
        wrapped(&format!("- `{name}` ({place}{kind}, {presence}): {about}"))
    });
    lines.collect()
}

/// The codes of an operation that not every operation has, by status.
fn errors(document: &Value, operation: &Value) -> String {
    let by_status = fields(operation, "/responses").filter_map(|(status, answer)| {
        let codes = items(resolved(document, answer), "/x-error-codes").filter_map(Value::as_str);
        let codes: Vec<_> = codes
            .filter(|code| !COMMON_CODES.contains(code))
            .map(|code| format!("`{code}`"))
            .collect();
        (!codes.is_empty()).then(|| format!("{status} {}", codes.join(", ")))
    });
    format!("Errors: {}.", by_status.collect::<Vec<_>>().join("; "))
}

/// The fields of an object and of the objects within it.
struct FieldList<'a> {
    document: &'a Value,
    lines: String,
    /// The words for a field that may be absent, and for any other one.
    absent: &'static str,
    required: &'static str,
    /// The schemas that are listed, each with the name of the field where it is.
    listed: Vec<(String, String)>,
}

impl<'a> FieldList<'a> {
    fn new(document: &'a Value, absent: &'static str, required: &'static str) -> Self {
        Self { document, lines: String::new(), absent, required, listed: Vec::new() }
    }

    fn add(&mut self, schema: &Value, prefix: &str) {
        let mut required = Vec::new();
        find_required(self.document, schema, &mut required);
        for (name, field) in properties(self.document, schema) {
            let presence = if required.contains(name) { self.required } else { self.absent };
            let name = format!("{prefix}{name}");
            let nested = nested(self.document, field);
            let above = nested.as_ref().and_then(|(_, part)| {
                let part = text(part, "/$ref");
                self.listed.iter().find(|(schema, _)| !part.is_empty() && *schema == part)
            });
            let mut notes = vec![type_words(self.document, field)];
            notes.extend(above.map(|(_, name)| format!("as `{name}`")));
            notes.extend((!presence.is_empty()).then(|| presence.to_owned()));
            let (is_listed, notes) = (above.is_some(), notes.join(", "));
            let about = text(field, "/description") + &words_of_elements(self.document, field);
            self.lines.push_str(&wrapped(&format!("- `{name}` ({notes}): {about}")));
            let Some((suffix, part)) = nested.filter(|_| !is_listed) else { continue };
            if properties(self.document, part).len() <= MOST_NESTED {
                self.listed.push((text(part, "/$ref"), format!("{name}{suffix}")));
                self.add(part, &format!("{name}{suffix}."));
            }
        }
    }
}

/// A sentence with the words of a list of words.
fn words_of_elements(document: &Value, field: &Value) -> String {
    let element = resolved(document, field).get("items").map(|it| resolved(document, it));
    match element.filter(|element| element.get("enum").is_some()) {
        Some(element) => format!(" Each word is {}.", type_words(document, element)),
        None => String::new(),
    }
}

/// The object within a field, and the sign for its place: the field itself, an element, or any value.
fn nested<'a>(document: &'a Value, field: &'a Value) -> Option<(&'static str, &'a Value)> {
    let alternatives = || items(field, "/oneOf").filter(|one| text(one, "/type") != "null");
    let field = alternatives().next().filter(|_| alternatives().count() == 1).unwrap_or(field);
    let schema = resolved(document, field);
    let found = match (schema.get("items"), schema.get("additionalProperties")) {
        (Some(element), _) => ("[]", element),
        (None, Some(value)) if value.is_object() => (".*", value),
        _ => ("", field),
    };
    Some(found).filter(|(_, part)| !properties(document, part).is_empty())
}

/// The type of a value with its limits, such as "`daily` or `null`".
fn type_words(document: &Value, schema: &Value) -> String {
    let mut words = alternatives(document, schema);
    // `null` is the last alternative.
    words.sort_by_key(|word| word == "`null`");
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "any value".to_owned(),
    }
}

fn alternatives(document: &Value, schema: &Value) -> Vec<String> {
    let schema = resolved(document, schema);
    let choices: Vec<_> = items(schema, "/oneOf").chain(items(schema, "/anyOf")).collect();
    if !choices.is_empty() {
        let mut words: Vec<_> =
            choices.into_iter().flat_map(|choice| alternatives(document, choice)).collect();
        words.dedup();
        return words;
    }
    let mut words: Vec<_> =
        items(schema, "/enum").map(|word| format!("`{}`", plain(word))).collect();
    if !words.is_empty() {
        return words;
    }
    let kinds: Vec<_> = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(kind)) => vec![kind],
        _ => items(schema, "/allOf").next().map(|_| "object").into_iter().collect(),
    };
    let named: Vec<_> = kinds.iter().copied().filter(|kind| *kind != "null").collect();
    words.extend(
        (!named.is_empty() || kinds.is_empty()).then(|| named_type(document, schema, &named)),
    );
    words.extend((named.len() < kinds.len()).then(|| "`null`".to_owned()));
    words
}

/// The name of a type that is not null, with its limits.
fn named_type(document: &Value, schema: &Value, kinds: &[&str]) -> String {
    if let Some(title) = schema.get("title").and_then(Value::as_str) {
        return title.to_owned();
    }
    if schema.get("contentMediaType").is_some() {
        return "JSON in a string".to_owned();
    }
    // Ids begin with the letters of their kind.
    let pattern = text(schema, "/pattern");
    if let Some((prefix, "")) = pattern.split_once("[0-7][0-9A-HJKMNP-TV-Z]{25}$") {
        return format!("id `{}…`", prefix.trim_start_matches('^'));
    }
    match kinds {
        ["string"] => match (schema.get("format"), range(schema, "minLength", "maxLength")) {
            (Some(format), _) => plain(format),
            (None, Some(limits)) => format!("string of {limits} characters"),
            (None, None) => "string".to_owned(),
        },
        ["array"] => {
            let limits = range(schema, "minItems", "maxItems");
            format!("list of {}", several(document, schema.get("items"), limits))
        }
        ["object"] => match schema.get("additionalProperties").filter(|value| value.is_object()) {
            Some(value) => {
                let limits = range(schema, "minProperties", "maxProperties");
                format!("object of {}", several(document, Some(value), limits))
            }
            None => "object".to_owned(),
        },
        kinds => {
            // The minimum of a count, 0, is shown only beside a maximum.
            let limits = schema.get("maximum").and(range(schema, "minimum", "maximum"));
            let limits = limits.map(|limits| format!(" from {limits}")).unwrap_or_default();
            kinds.join(" or ") + &limits
        }
    }
}

/// The type of elements in the plural, such as "at most 100 strings".
fn several(document: &Value, element: Option<&Value>, limits: Option<String>) -> String {
    let words = element.map(|it| type_words(document, it)).unwrap_or_default();
    let words = if words.starts_with('`') { "word".to_owned() } else { words };
    let plural = match words.split_once(' ') {
        _ if limits.as_deref() == Some("at least 1") => words,
        Some((first, rest)) => format!("{first}s {rest}"),
        None => format!("{words}s"),
    };
    limits.into_iter().chain([plural]).collect::<Vec<_>>().join(" ")
}

/// The limits of a value in words, such as "1 to 255" and "at most 100".
fn range(schema: &Value, least: &str, most: &str) -> Option<String> {
    let limit = |name: &str| schema.get(name).map(|limit| with_commas(&limit.to_string()));
    match (limit(least), limit(most)) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("at least {least}")),
        (None, Some(most)) => Some(format!("at most {most}")),
        (None, None) => None,
    }
}

/// A whole number with its thousands separated.
fn with_commas(digits: &str) -> String {
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A paragraph in lines of at most [`COLUMNS`]. Later lines of an item are indented.
fn wrapped(paragraph: &str) -> String {
    let indent = if paragraph.starts_with("- ") { "  " } else { "" };
    let (mut lines, mut line) = (String::new(), String::new());
    for word in paragraph.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push_str(&line);
            lines.push('\n');
            line = format!("{indent}{word}");
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines + &line + "\n"
}
