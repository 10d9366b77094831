//! Lists: newest first, a page at a time, by an opaque cursor.

use std::str::FromStr;

use actix_web::{HttpRequest, HttpResponse};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use tollgate_domain::Issue;
use tollgate_store::Page;
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, ErrorCode};

const DEFAULT_LIMIT: u32 = 10;
const MAX_LIMIT: u32 = 100;

/// The requested page of a list without filters.
pub(crate) fn page<Id: FromStr>(http: &HttpRequest) -> Result<Page<Id>, ApiError> {
    let mut issues = Vec::new();
    let page = Query::of(http).page(&mut issues)?;
    if issues.is_empty() { Ok(page) } else { Err(ApiError::invalid(issues)) }
}

/// The decoded pairs of a request's query.
#[derive(Clone)]
pub struct Query(pub(super) Vec<(String, String)>);

impl Query {
    /// The query of a request.
    pub fn of(http: &HttpRequest) -> Self {
        Self(url::form_urlencoded::parse(http.query_string().as_bytes()).into_owned().collect())
    }

    /// A query with these pairs.
    pub fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The requested page. It is read last: an invalid cursor beside other issues becomes one of them.
    pub(crate) fn page<Id: FromStr>(&self, issues: &mut Vec<Issue>) -> Result<Page<Id>, ApiError> {
        let limit = match self.get("limit").map(str::parse) {
            None => DEFAULT_LIMIT,
            Some(Ok(limit)) if (1..=MAX_LIMIT).contains(&limit) => limit,
            Some(_) => {
                issues.push(Issue::at(["limit"], "must be an integer from 1 to 100"));
                DEFAULT_LIMIT
            }
        };
        let cursor = self.get("cursor").filter(|cursor| !cursor.is_empty());
        let after = match cursor.map(decode).transpose() {
            Ok(after) => after,
            Err(invalid) if issues.is_empty() => return Err(invalid),
            Err(_) => {
                issues.push(Issue::at(["cursor"], "is not one of this list"));
                None
            }
        };
        Ok(Page { after, limit })
    }
}

fn decode<Id: FromStr>(cursor: &str) -> Result<Id, ApiError> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        ApiError::new(
            ErrorCode::CursorInvalid,
            "The cursor is not one of this list. Take it from next_cursor, or leave it out.",
        )
    })
}

/// The requested page of a list, as documents have it; [`Query::page`] reads it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
pub(crate) struct PageQuery {
    /// The most items of the page.
    #[param(minimum = 1, maximum = 100, default = 10)]
    limit: Option<u32>,
    /// The `next_cursor` of the previous page. Empty or absent for the first page.
    #[param(pattern = "^[A-Za-z0-9_-]*$")]
    cursor: Option<String>,
}

/// A page of a list, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = List)]
pub(crate) struct ListView<T> {
    /// The elements of the page.
    data: Vec<T>,
    /// Whether there are older items.
    has_more: bool,
    /// The `cursor` of the next page; empty on the last one.
    next_cursor: String,
}

/// Answers with a page. `items` has one more than `limit` when there are more.
pub(crate) fn respond<T, View: Serialize>(
    items: Vec<T>,
    limit: u32,
    id: impl Fn(&T) -> String,
    view: impl Fn(&T) -> View,
) -> HttpResponse {
    let (items, next) = Page { after: None, limit }.cut(items, id);
    respond_page(items.iter().map(view).collect(), next)
}

/// Answers with a page after which the list continues at the id `next`.
pub(crate) fn respond_page<View: Serialize>(data: Vec<View>, next: Option<String>) -> HttpResponse {
    HttpResponse::Ok().json(ListView {
        data,
        has_more: next.is_some(),
        next_cursor: next.map_or_else(String::new, |id| URL_SAFE_NO_PAD.encode(id)),
    })
}
