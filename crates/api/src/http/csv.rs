//! Answers as CSV (RFC 4180): a header, then a row for each item.
//!
//! Columns have the names of the JSON fields, nested ones joined by a dot. A list is JSON in its cell.

use actix_web::HttpRequest;
use actix_web::http::header::{ACCEPT, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use actix_web::{HttpResponse, HttpResponseBuilder};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use serde::Serialize;
use serde_json::{Map, Value};
use tollgate_domain::Issue;
use utoipa::IntoParams;

use super::error::{ApiError, ErrorCode};
use super::list::Query;

/// The choice of the form of an answer, as documents have it; [`AnswerFormat::of`] reads it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
pub(crate) struct FormatQuery {
    /// The form of the answer: `json` or `csv`. The header `Accept: text/csv` asks for CSV, too.
    #[param(pattern = "^(json|csv)$")]
    format: Option<String>,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerFormat {
    Json,
    Csv,
}

impl AnswerFormat {
    /// The requested form: the parameter `format`, else the header `Accept`.
    pub(crate) fn of(http: &HttpRequest, query: &Query, issues: &mut Vec<Issue>) -> Self {
        match query.get("format") {
            Some("csv") => Self::Csv,
            Some("json") => Self::Json,
            Some(_) => {
                issues.push(Issue::at(["format"], "must be one of json, csv"));
                Self::Json
            }
            None => {
                let accept = http.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
                let first = accept.and_then(|types| types.split([',', ';']).next());
                let is_csv = first.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/csv"));
                if is_csv { Self::Csv } else { Self::Json }
            }
        }
    }
}

/// Starts the answer that a browser saves as a file with this name.
fn answer(file_name: &str) -> HttpResponseBuilder {
    let mut answer = HttpResponse::Ok();
    answer.insert_header((CONTENT_TYPE, "text/csv; charset=utf-8"));
    let disposition = format!("attachment; filename=\"{file_name}\"");
    if let Ok(disposition) = HeaderValue::try_from(disposition) {
        answer.insert_header((CONTENT_DISPOSITION, disposition));
    }
    answer
}

/// Answers with a row for each item.
pub(crate) fn respond<View: Serialize>(
    file_name: &str,
    columns: &[String],
    items: &[View],
) -> Result<HttpResponse, ApiError> {
    Ok(answer(file_name).body(text(columns, items)?))
}

/// The header, and a row for each item.
pub(crate) fn text<View: Serialize>(columns: &[String], items: &[View]) -> Result<Bytes, ApiError> {
    let mut text = header(columns)?.to_vec();
    text.extend(rows(columns, items)?);
    Ok(text.into())
}

/// Answers with the items of a list, page by page. `page` gets the id after which the list continues, and returns the
/// items with the id of the next page.
pub(crate) fn respond_pages<Id, View, Pages>(
    file_name: &str,
    columns: &[&str],
    first: Option<Id>,
    page: impl Fn(Option<Id>) -> Pages + 'static,
) -> HttpResponse
where
    Id: 'static,
    View: Serialize + 'static,
    Pages: Future<Output = Result<(Vec<View>, Option<Id>), ApiError>> + 'static,
{
    let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    let head = header(&columns);
    let pages = stream::try_unfold(Some((page, columns, first)), |state| async {
        let Some((page, columns, after)) = state else { return Ok(None) };
        let (items, next) = page(after).await?;
        let text = rows(&columns, &items)?;
        Ok(Some((text, next.map(|next| (page, columns, Some(next))))))
    });
    answer(file_name).streaming(stream::once(async { head }).chain(pages))
}

/// The number of items of a page that is read for CSV.
pub(crate) const PAGE: u32 = 500;

/// The line with the names of the columns.
fn header(columns: &[String]) -> Result<Bytes, ApiError> {
    to_text(std::iter::once(columns.to_vec()))
}

/// The rows of items.
fn rows<View: Serialize>(columns: &[String], items: &[View]) -> Result<Bytes, ApiError> {
    let mut cells = Vec::with_capacity(items.len());
    for item in items {
        let item = serde_json::to_value(item).map_err(failed)?;
        let mut fields = Map::new();
        flatten("", item, columns, &mut fields);
        cells.push(
            columns.iter().map(|name| fields.get(name).map_or_else(String::new, cell)).collect(),
        );
    }
    to_text(cells.into_iter())
}

/// The error of a row that cannot be written, which no item causes.
fn failed(cause: impl std::fmt::Display) -> ApiError {
    log::error!("a row of CSV could not be written: {cause}");
    ApiError::new(ErrorCode::InternalError, "The answer could not be written as CSV.")
}

fn to_text(rows: impl Iterator<Item = Vec<String>>) -> Result<Bytes, ApiError> {
    let terminator = csv::Terminator::CRLF;
    let mut writer = csv::WriterBuilder::new().terminator(terminator).from_writer(Vec::new());
    for row in rows {
        writer.write_record(&row).map_err(failed)?;
    }
    writer.into_inner().map(Bytes::from).map_err(failed)
}

/// Collects the fields of a value by their paths. An object that is itself a column stays whole.
fn flatten(path: &str, value: Value, columns: &[String], fields: &mut Map<String, Value>) {
    match value {
        Value::Object(object) if !columns.iter().any(|column| column == path) => {
            for (name, value) in object {
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                flatten(&path, value, columns, fields);
            }
        }
        value => {
            fields.insert(path.to_owned(), value);
        }
    }
}

/// The text of a cell. A text that a spreadsheet would run begins with an apostrophe.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => {
            let runs = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && !is_number(text);
            if runs { format!("'{text}") } else { text.clone() }
        }
        other => other.to_string(),
    }
}

/// Whether a text is a decimal number, as amounts are.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    [whole, part]
        .iter()
        .all(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_spreadsheet_runs_no_cell_and_reads_every_number() {
        for (value, expected) in [
            (json!("=1+1"), "'=1+1"),
            (json!("+49 30"), "'+49 30"),
            (json!("-2.50"), "-2.50"),
            (json!("-2.5.0"), "'-2.5.0"),
            (json!("-cmd"), "'-cmd"),
            (json!("@a"), "'@a"),
            (json!("\tx"), "'\tx"),
            (json!("\rx"), "'\rx"),
            (json!("ada"), "ada"),
            (json!(-3), "-3"),
            (json!(null), ""),
            (json!(true), "true"),
            (json!([1, "a"]), r#"[1,"a"]"#),
        ] {
            assert_eq!(cell(&value), expected, "{value}");
        }
    }

    #[test]
    fn nested_fields_have_dotted_names_and_quotes_are_doubled() {
        let columns = ["a", "b.c", "metadata", "none"].map(str::to_owned);
        let item = json!({"a": "x\"y,z", "b": {"c": "1.50"}, "metadata": {"k": "v"}});
        let text = [header(&columns).unwrap(), rows(&columns, &[item]).unwrap()].concat();
        let expected = "a,b.c,metadata,none\r\n\"x\"\"y,z\",1.50,\"{\"\"k\"\":\"\"v\"\"}\",\r\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
