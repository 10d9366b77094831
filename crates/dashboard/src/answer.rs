//! The answers of the dashboard: a page, a redirect to a page, or the page of an error.

use std::fmt;

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, LOCATION};
use actix_web::{HttpResponse, ResponseError};
use askama::Template;
use tollgate_store::StoreError;

use tollgate_api::{ApiError, ErrorCode};

/// Answers with a page.
pub(crate) fn respond(page: &impl Template) -> Result<HttpResponse, PageError> {
    html(StatusCode::OK, page)
}

pub(crate) fn html(status: StatusCode, page: &impl Template) -> Result<HttpResponse, PageError> {
    let text = page.render().map_err(|cause| {
        log::error!("a page of the dashboard cannot be made: {cause}");
        ApiError::new(ErrorCode::InternalError, "Something went wrong in the service.")
    })?;
    let mut response = HttpResponse::build(status);
    Ok(response.insert_header((CONTENT_TYPE, "text/html; charset=utf-8")).body(text))
}

/// Answers a form with a redirect to a page. Loading that page again sends nothing twice.
pub(crate) fn go_to(href: &str) -> HttpResponse {
    HttpResponse::SeeOther().insert_header((LOCATION, href)).finish()
}

/// An error, as a page.
#[derive(Debug)]
pub(crate) struct PageError(ApiError);

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    status: u16,
    message: &'a str,
    issues: Vec<String>,
}

impl PageError {
    pub(crate) fn invalid(message: &str) -> Self {
        Self(ApiError::new(ErrorCode::ValidationFailed, message))
    }
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ResponseError for PageError {
    fn status_code(&self) -> StatusCode {
        self.0.status_code()
    }

    fn error_response(&self) -> HttpResponse {
        if matches!(self.0.code(), ErrorCode::AuthInvalid | ErrorCode::AuthHeaderMissing) {
            return go_to("/dashboard/sign-in");
        }
        let page = ErrorPage {
            status: self.status_code().as_u16(),
            message: self.0.message(),
            issues: issue_sentences(self.0.issues()),
        };
        let mut response = HttpResponse::build(self.status_code());
        for header in self.0.headers() {
            response.insert_header(header.clone());
        }
        response
            .insert_header((CONTENT_TYPE, "text/html; charset=utf-8"))
            .body(page.render().unwrap_or_else(|_| self.0.message().to_owned()))
    }
}

/// The issues as sentences.
pub(crate) fn issue_sentences(issues: &[tollgate_domain::Issue]) -> Vec<String> {
    let sentence = |issue: &tollgate_domain::Issue| {
        format!("{} {}.", issue.path.join(" ").replace('_', " "), issue.message)
    };
    issues.iter().map(sentence).collect()
}

impl From<ApiError> for PageError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<StoreError> for PageError {
    fn from(cause: StoreError) -> Self {
        Self(cause.into())
    }
}
