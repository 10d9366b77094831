//! The forms that perform operations of the API: `POST /dashboard/actions/{operation}`.
//!
//! A field is named by its path in the body of the operation, such as `spend_limit.amount` or `tiers.0.rate`. A kind
//! after a colon says what its text is: `number`, `flag`, `list` (names with commas between), `numbers` (the same with numbers),
//! `lines` (a name on each) or `pairs` (`key=value` on each).
//! An empty text is left out. With `clear` before the kind, as in `clear-list`, it is null, and with `clears`, as in `clears-number`, the whole
//! object that the field is in is null. Fields of the page itself begin with an underscore: `_id` is the resource, and `_next` the page that
//! is shown then.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use serde_json::{Map, Value};
use tollgate_domain::Issue;

use crate::answer::{PageError, go_to, respond};
use crate::form::{FormFields, SessionForm};
use crate::page::{DashboardSection, Shell};
use crate::session::{SessionUser, carry_secret, clear_shown_key, secret_to_show};
use tollgate_api::operations::perform;
use tollgate_api::{ApiError, App, ErrorCode};

/// The fields of answers that are shown once.
const SECRETS: [&str; 3] = ["key", "secret_key", "webhook_secret"];

pub(crate) async fn submit(
    app: web::Data<App>,
    http: HttpRequest,
    form: SessionForm,
    operation: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let answer = match perform_form(app.clone(), &form, &operation).await {
        Ok(answer) => answer,
        Err(error) => return form.refuse(&app, error).await,
    };
    let next = next_page(form.fields.text("_next"), &answer);
    let secret = SECRETS.iter().find_map(|name| answer.get(name)?.as_str());
    let Some(secret) = secret else { return form.accept(&app, &next).await };
    let shown_at = url::form_urlencoded::byte_serialize(next.as_bytes());
    let page = format!("/dashboard/secret?next={}", shown_at.collect::<String>());
    let mut answer = form.accept(&app, &page).await?;
    carry_secret(&http, &mut answer, secret)?;
    Ok(answer)
}

/// Performs the operation of a form. Returns the body of its answer.
async fn perform_form(
    app: web::Data<App>,
    form: &SessionForm,
    operation: &str,
) -> Result<Value, ApiError> {
    let body = body(&form.fields)?;
    let merchant_id = form.visitor.merchant_id();
    let (status, answer) =
        perform(app, merchant_id, operation, form.fields.text("_id"), &body).await?;
    // The operation answers with the customer that has the id. A form means a new one.
    if operation == "createConnection" && status == StatusCode::OK {
        let taken = Issue::at(["reference_id"], "is the id of a customer that exists");
        return Err(ApiError::invalid(vec![taken]));
    }
    Ok(answer)
}

/// The page that is shown after a form. `{name}` stands for a field of the answer, which has the id of what was made.
fn next_page(text: &str, answer: &Value) -> String {
    let mut next = text.to_owned();
    for (name, value) in answer.as_object().into_iter().flatten() {
        if let Some(value) = value.as_str() {
            next = next.replace(&format!("{{{name}}}"), value);
        }
    }
    // Only a page of the dashboard: a form must not send its user elsewhere.
    let is_page = next == "/dashboard" || next.starts_with("/dashboard/");
    match is_page && !next.contains(char::is_control) {
        true => next,
        false => "/dashboard".to_owned(),
    }
}

/// The body of an operation from the fields of a form.
fn body(fields: &FormFields) -> Result<Value, ApiError> {
    let mut body = Value::Object(Map::new());
    let fields = fields.iter().filter(|(name, _)| !name.starts_with('_'));
    let fields = fields.map(|(name, text)| {
        let (path, kind) = name.split_once(':').unwrap_or((name, "text"));
        (path.split('.').collect::<Vec<_>>(), kind, text.trim())
    });
    let fields: Vec<_> = fields.collect();
    let cleared = fields.iter().filter(|(_, kind, text)| clears(kind) && text.is_empty());
    let cleared = cleared.filter_map(|(path, ..)| path.split_last().map(|(_, object)| object));
    // A number beside the empty one was meant, so the operation says what is missing.
    let is_meant = |object: &&[&str]| {
        let mut numbers =
            fields.iter().filter(|(_, kind, text)| *kind == "number" && !text.is_empty());
        numbers.any(|(path, ..)| path.starts_with(object))
    };
    let cleared: Vec<_> = cleared.filter(|object| !is_meant(object)).collect();
    for object in &cleared {
        put(&mut body, object, Value::Null).ok_or_else(not_a_form)?;
    }
    for (path, kind, text) in &fields {
        if cleared.iter().any(|object| path.starts_with(object)) {
            continue;
        }
        if let Some(value) = value_of(kind, text) {
            put(&mut body, path, value).ok_or_else(not_a_form)?;
        }
    }
    Ok(body)
}

/// Whether an empty text of this kind makes the object of its field null.
fn clears(kind: &str) -> bool {
    kind == "clears" || kind.starts_with("clears-")
}

fn not_a_form() -> ApiError {
    ApiError::new(ErrorCode::ValidationFailed, "The fields of this form do not belong together.")
}

/// The value of a field; `None` leaves it out. A text that is no number stays as it is, so that it becomes one of the
/// issues, and so does a text of pairs of which one is none or comes twice. No numbers are an empty list. A list without names is an empty text.
fn value_of(kind: &str, text: &str) -> Option<Value> {
    let kind = kind.strip_prefix("clears-").unwrap_or(kind);
    let (kind, is_cleared) = match kind.strip_prefix("clear-") {
        Some(kind) => (kind, true),
        None => (kind, kind == "clear"),
    };
    let is_list = matches!(kind, "list" | "numbers" | "lines" | "pairs");
    let between: &[char] = if matches!(kind, "list" | "numbers") { &[',', '\n'] } else { &['\n'] };
    let names = || text.split(between).map(str::trim).filter(|name| !name.is_empty());
    let text = if is_list && names().next().is_none() { "" } else { text };
    match kind {
        "flag" => Some(Value::Bool(text == "true")),
        "numbers" if text.is_empty() => Some(Value::Array(Vec::new())),
        _ if text.is_empty() && is_cleared => Some(Value::Null),
        _ if text.is_empty() => None,
        "number" => Some(number(text)),
        "numbers" => Some(names().map(number).collect::<Vec<_>>().into()),
        "pairs" => Some(pairs(names()).unwrap_or_else(|| text.into())),
        "list" | "lines" => Some(names().map(str::to_owned).collect::<Vec<_>>().into()),
        _ => Some(text.into()),
    }
}

/// An object of `key=value` texts. `None` if one is no pair, or a key is there twice.
fn pairs<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Value> {
    let mut all = Map::new();
    for text in texts {
        let (key, value) = text.split_once('=')?;
        if all.insert(key.trim().to_owned(), value.trim().into()).is_some() {
            return None;
        }
    }
    Some(Value::Object(all))
}

fn number(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| text.into(), Value::from)
}

/// Puts a value at a path of names and of places in lists, which come in order. A name that stands twice makes a list.
fn put(body: &mut Value, path: &[&str], value: Value) -> Option<()> {
    let (step, rest) = path.split_first()?;
    let slot = match step.parse::<usize>() {
        Ok(place) => {
            if body.is_null() {
                *body = Value::Array(Vec::new());
            }
            let items = body.as_array_mut()?;
            if place > items.len() {
                return None;
            }
            if place == items.len() {
                items.push(Value::Null);
            }
            items.get_mut(place)?
        }
        Err(_) => {
            if body.is_null() {
                *body = Value::Object(Map::new());
            }
            body.as_object_mut()?.entry(*step).or_insert(Value::Null)
        }
    };
    match (rest.is_empty(), &mut *slot) {
        (true, Value::Null) => *slot = value,
        (true, Value::Array(items)) => match value {
            Value::Array(more) => items.extend(more),
            one => items.push(one),
        },
        (true, _) => return None,
        (false, _) => put(slot, rest, value)?,
    }
    Some(())
}

#[derive(Template)]
#[template(path = "secret.html")]
struct SecretPage {
    shell: Shell,
    secret: String,
    next: String,
}

/// The page that shows a new secret once. Loaded again, it redirects to the next page.
pub(crate) async fn show_secret(
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let next = tollgate_api::Query::of(&http).get("next").unwrap_or_default().to_owned();
    let next = next_page(&next, &Value::Null);
    let Some(secret) = secret_to_show(&http) else { return Ok(go_to(&next)) };
    let page = SecretPage {
        shell: Shell::new(&visitor, DashboardSection::Developers, "New secret"),
        secret,
        next,
    };
    let mut answer = respond(&page)?;
    clear_shown_key(&http, &mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body_of(fields: &[(&str, &str)]) -> Option<Value> {
        body(&FormFields::of(fields)).ok()
    }

    #[test]
    fn fields_become_the_body_of_an_operation() {
        let fields = [
            ("form_token", "t"),
            ("_id", "x"),
            ("name", " Pro "),
            ("email:clear", ""),
            ("period_amount", ""),
            ("limit.amount", "5"),
            ("limit.cycle", "daily"),
            ("rate_limit.rpm:number", "60"),
            ("count:number", "many"),
            ("preview:flag", "true"),
            ("models:list", "a, b*\n c"),
            ("tiers.0.start", "0"),
            ("tiers.0.rate", "20"),
            ("tiers.1.start", "10"),
            ("allowed_models:clear-list", ""),
            ("burst:clear-number", "7"),
            ("spend_limit.amount:clears", ""),
            ("spend_limit.cycle", "daily"),
            ("other_limit.count:clears-number", "2"),
            ("rate.rpm:clears-number", ""),
            ("rate.burst:number", ""),
            ("half.rpm:clears-number", ""),
            ("half.burst:number", "5"),
            ("lines:lines", "a, b\r\n\r\nc"),
            ("none:clear-list", " , "),
            ("alerts:numbers", "50, 100,x"),
            ("match:pairs", "job = a=b\r\n\nteam="),
            ("other:clear-pairs", "job"),
            ("no_pairs:clear-pairs", " "),
            ("twice:pairs", "a=1\na=2"),
            ("no_alerts:numbers", ""),
            ("product_ids:list", "m1"),
            ("product_ids:list", "m2"),
        ];
        let expected = json!({
            "name": "Pro", "email": null, "limit": {"amount": "5", "cycle": "daily"},
            "rate_limit": {"rpm": 60}, "count": "many", "preview": true,
            "models": ["a", "b*", "c"], "tiers": [{"start": "0", "rate": "20"}, {"start": "10"}],
            "allowed_models": null, "burst": 7, "spend_limit": null,
            "other_limit": {"count": 2}, "rate": null, "product_ids": ["m1", "m2"],
            "half": {"burst": 5}, "lines": ["a, b", "c"], "none": null,
            "alerts": [50, 100, "x"], "match": {"job": "a=b", "team": ""}, "other": "job",
            "no_pairs": null, "twice": "a=1\na=2", "no_alerts": [],
        });
        assert_eq!(body_of(&fields), Some(expected));
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused() {
        for fields in [
            &[("a", "1"), ("a.b", "2")][..],
            &[("a", "1"), ("a", "2")],
            &[("a.1", "x")],
            &[("a.b", "1"), ("a.0", "2")],
        ] {
            assert_eq!(body_of(fields), None, "{fields:?}");
        }
    }

    #[test]
    fn a_form_leads_to_pages_of_the_dashboard_only() {
        let made = json!({"connection_id": "con_1", "other": 1});
        for (next, page) in [
            ("/dashboard/customers/{connection_id}", "/dashboard/customers/con_1"),
            ("/dashboard", "/dashboard"),
            ("https://example.com/dashboard/", "/dashboard"),
            ("//example.com", "/dashboard"),
            ("/dashboardx", "/dashboard"),
            ("/dashboard/\r\nx: y", "/dashboard"),
            ("", "/dashboard"),
        ] {
            assert_eq!(next_page(next, &made), page, "{next}");
        }
    }
}
