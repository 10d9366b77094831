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
    Ok(written(status, render(page)?))
}

/// The text of a page or of a part of one.
pub(crate) fn render(page: &impl Template) -> Result<String, PageError> {
    page.render().map_err(|cause| {
        log::error!("a page of the dashboard cannot be made: {cause}");
        ApiError::new(ErrorCode::InternalError, "Something went wrong in the service.").into()
    })
}

fn written(status: StatusCode, page: String) -> HttpResponse {
    HttpResponse::build(status).insert_header((CONTENT_TYPE, "text/html; charset=utf-8")).body(page)
}

/// Answers a form with a redirect to a page. Loading that page again sends nothing twice.
pub(crate) fn go_to(href: &str) -> HttpResponse {
    HttpResponse::SeeOther().insert_header((LOCATION, href)).finish()
}

/// An answer in place of the page: of an error, or of a form that is not performed.
#[derive(Debug)]
pub(crate) enum PageError {
    /// An error, as a page.
    Api(ApiError),
    /// The same form was performed before, and led to this page.
    Done { next: String },
    /// The form is shown again, in this page.
    FormRefused { status: StatusCode, page: String },
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    status: u16,
    message: &'a str,
    issues: Vec<String>,
}

impl PageError {
    pub(crate) fn invalid(message: &str) -> Self {
        ApiError::new(ErrorCode::ValidationFailed, message).into()
    }
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(error) => error.fmt(f),
            Self::Done { next } => write!(f, "the form was performed before, see {next}"),
            Self::FormRefused { status, .. } => write!(f, "the form was refused with {status}"),
        }
    }
}

impl ResponseError for PageError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::Api(error) => error.status_code(),
            Self::Done { .. } => StatusCode::SEE_OTHER,
            Self::FormRefused { status, .. } => *status,
        }
    }

    fn error_response(&self) -> HttpResponse {
        let error = match self {
            Self::Api(error) => error,
            Self::Done { next } => return go_to(next),
            Self::FormRefused { status, page } => return written(*status, page.clone()),
        };
        if matches!(error.code(), ErrorCode::AuthInvalid | ErrorCode::AuthHeaderMissing) {
            return go_to("/dashboard/sign-in");
        }
        let page = ErrorPage {
            status: self.status_code().as_u16(),
            message: error.message(),
            issues: issue_sentences(error.issues()),
        };
        let page = page.render().unwrap_or_else(|_| error.message().to_owned());
        let mut response = written(self.status_code(), page);
        for header in error.headers() {
            response.headers_mut().insert(header.0.clone(), header.1.clone());
        }
        response
    }
}

/// The message of an issue for those who fill in a form, in which every text is one.
pub(crate) fn for_people(message: &str) -> String {
    message
        .replace(" in a string, such as \"12.50\"", ", such as 12.50")
        .replace(" in a string", "")
        .replace("a JSON object of strings", "lines such as job=nightly, each key once")
}

/// The issues as sentences.
pub(crate) fn issue_sentences(issues: &[tollgate_domain::Issue]) -> Vec<String> {
    let sentence = |issue: &tollgate_domain::Issue| {
        format!("{} {}.", issue.path.join(" ").replace('_', " "), for_people(&issue.message))
    };
    issues.iter().map(sentence).collect()
}

impl From<ApiError> for PageError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl From<StoreError> for PageError {
    fn from(cause: StoreError) -> Self {
        Self::Api(cause.into())
    }
}
