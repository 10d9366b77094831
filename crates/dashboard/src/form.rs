//! The forms of pages: their fields, the token that counts once, and the page of a form that was not accepted.

use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header::ORIGIN;
use actix_web::rt::time::sleep;
use actix_web::{FromRequest, HttpRequest, HttpResponse, ResponseError as _};
use askama::Template;
use futures_util::future::LocalBoxFuture;
use sha2::{Digest, Sha256};
use tollgate_api::{ApiError, App, ErrorCode, app_of, read_body};
use tollgate_domain::Issue;
use tollgate_store::idempotency::{
    self, IdempotencyClaim, IdempotencyKey, IdempotencyScope, StoredAnswer,
};

use crate::answer::{PageError, for_people, go_to, issue_sentences, render};
use crate::page::{DashboardSection, Shell};
use crate::session::{SessionUser, origin};

/// More than any form of the dashboard has.
const FORM_BYTES: usize = 64 * 1024;

/// The fields of a form that was sent from a page of this dashboard.
#[derive(Default)]
pub(crate) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// These fields, as a query or a test has them.
    pub(crate) fn of(fields: &[(&str, &str)]) -> Self {
        let fields = fields.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Self(fields.collect())
    }

    /// The fields in the order of the form, without its token.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.0.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        fields.filter(|(name, _)| *name != TOKEN)
    }

    /// The value of a field, if it has one.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.trim());
        found.filter(|value| !value.is_empty())
    }

    /// The value of a field, to be shown in it again.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// Whether `choice` is the one that was made, or the default before any is made.
    pub(crate) fn has(&self, name: &str, choice: &str, before: &str) -> bool {
        self.get(name).unwrap_or(before) == choice
    }

    /// A hash of where the form goes and of its fields without the token.
    fn fingerprint(&self, path: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        for text in std::iter::once(path).chain(self.iter().flat_map(|(name, text)| [name, text])) {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
        hash.finalize().into()
    }
}

impl FromRequest for FormFields {
    type Error = PageError;
    type Future = LocalBoxFuture<'static, Result<Self, PageError>>;

    fn from_request(http: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (http, mut payload) = (http.clone(), payload.take());
        Box::pin(async move {
            // Browsers send the origin with every form; a request without it is refused.
            let said = http.headers().get(ORIGIN).and_then(|origin| origin.to_str().ok());
            if said != Some(origin(&http).as_str()) {
                return Err(not_from_here());
            }
            let body = read_body(&http, &mut payload, FORM_BYTES).await?;
            Ok(Self(url::form_urlencoded::parse(&body).into_owned().collect()))
        })
    }
}

const TOKEN: &str = "form_token";
/// The number of looks at a form that is being performed, and the time between two.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

fn not_from_here() -> PageError {
    let message =
        "This form was not sent from a page of this session. Load the page and try again.";
    ApiError::new(ErrorCode::OperationNotAllowed, message).into()
}

fn sent_before() -> ApiError {
    let message = "The page of this form was used before. See what became of it before you send the form again.";
    ApiError::new(ErrorCode::IdempotencyKeyReused, message)
}

/// A form of a session. It carries a token that only a page of this session has and that counts once, so
/// sending the form again changes nothing: it leads to the page that the first one led to.
pub(crate) struct SessionForm {
    pub(crate) visitor: SessionUser,
    pub(crate) fields: FormFields,
    path: String,
    once: IdempotencyKey,
}

impl SessionForm {
    /// Answers a form that was accepted with a redirect to the next page.
    pub(crate) async fn accept(&self, app: &App, next: &str) -> Result<HttpResponse, PageError> {
        let answer = StoredAnswer { status: 303, body: next.to_owned() };
        let once = self.once.clone();
        let keep = move |conn: &mut _| idempotency::keep(conn, &once, &answer);
        app.store.write_outside_calls(keep).await?;
        Ok(go_to(next))
    }

    /// Releases the token of a form that was not accepted, so that it can be corrected and sent again.
    pub(crate) async fn release(&self, app: &App) -> Result<(), PageError> {
        let once = self.once.clone();
        app.store.write_outside_calls(move |conn| idempotency::release(conn, &once)).await?;
        Ok(())
    }

    /// Answers a form that was not accepted with its fields, its problems, and a new token.
    ///
    /// After an error of the service the token stays used, because the form may have been performed all the same.
    pub(crate) async fn refuse(
        self,
        app: &App,
        error: ApiError,
    ) -> Result<HttpResponse, PageError> {
        if !error.status_code().is_client_error() {
            return Err(error.into());
        }
        self.release(app).await?;
        Err(refused(&self.visitor, &self.path, &self.fields, &error)?)
    }
}

fn refused(
    visitor: &SessionUser,
    path: &str,
    fields: &FormFields,
    error: &ApiError,
) -> Result<PageError, PageError> {
    let shown: Vec<_> =
        fields.iter().map(|(name, text)| RefusedField::of(name, text, error.issues())).collect();
    let named =
        |issue: &&Issue| shown.iter().any(|field| !field.is_hidden && is_at(issue, &field.path));
    let others: Vec<_> = error.issues().iter().filter(|issue| !named(issue)).cloned().collect();
    let page = RefusedFormPage {
        shell: Shell::new(
            visitor,
            DashboardSection::of_path(fields.get("_next").unwrap_or(path)),
            "That was not done",
        ),
        message: if error.issues().is_empty() { error.message().to_owned() } else { String::new() },
        problems: issue_sentences(&others),
        action: path.to_owned(),
        was_sent: error.code() == ErrorCode::IdempotencyKeyReused,
        fields: shown,
    };
    Ok(PageError::FormRefused { status: error.status_code(), page: render(&page)? })
}

impl FromRequest for SessionForm {
    type Error = PageError;
    type Future = LocalBoxFuture<'static, Result<Self, PageError>>;

    fn from_request(http: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (visitor, fields) =
            (SessionUser::from_request(http, payload), FormFields::from_request(http, payload));
        let (app, path) = (app_of(http), http.path().to_owned());
        Box::pin(async move {
            let (visitor, fields, app) = (visitor.await?, fields.await?, app?);
            let key = visitor.opened(fields.text(TOKEN)).ok_or_else(not_from_here)?;
            let scope = IdempotencyScope::Dashboard(visitor.merchant_id());
            let once = IdempotencyKey { scope, key, fingerprint: fields.fingerprint(&path) };
            let now = app.clock.now();
            for _ in 0..LOOKS {
                let claimed = once.clone();
                let claim = move |conn: &mut _| idempotency::claim(conn, &claimed, now);
                match app.store.write_outside_calls(claim).await? {
                    IdempotencyClaim::New => return Ok(Self { visitor, fields, path, once }),
                    IdempotencyClaim::Done(answer) if answer.status == 303 => {
                        return Err(PageError::Done { next: answer.body });
                    }
                    // The first one has not ended, as with a double click.
                    IdempotencyClaim::Done(_) => sleep(PAUSE).await,
                    // Other values were sent from the same page.
                    IdempotencyClaim::Reused => break,
                }
            }
            Err(refused(&visitor, &path, &fields, &sent_before())?)
        })
    }
}

/// The page of a form that was not accepted.
#[derive(Template)]
#[template(path = "refused_form.html")]
struct RefusedFormPage {
    shell: Shell,
    /// The reason, if it is not one of a field.
    message: String,
    /// The issues of no field of the form.
    problems: Vec<String>,
    action: String,
    /// Whether the page of the form was used before.
    was_sent: bool,
    fields: Vec<RefusedField>,
}

/// The fields that people type, by their paths without places in lists, and their labels.
const TYPED: [(&str, &str); 26] = [
    ("name", "Name"),
    ("email", "Email"),
    ("reference_id", "Your id"),
    ("amount", "Amount, USD"),
    ("description", "Description"),
    ("overdraft_limit", "Overdraft limit, USD"),
    ("low_balance_threshold", "Low balance, USD"),
    ("period_amount", "Price, USD"),
    ("included_credit", "Included credit, USD"),
    ("tiers.rate", "Rate"),
    ("credit_bundles.name", "Bundle: name"),
    ("credit_bundles.cost", "Bundle: price, USD"),
    ("credit_bundles.credit_amount", "Bundle: credit, USD"),
    ("spend_limit.amount", "Spend limit, USD"),
    ("spend_limit.time_zone", "Spend limit: time zone"),
    ("request_limit.count", "Request limit"),
    ("request_limit.time_zone", "Request limit: time zone"),
    ("rate_limit.rpm", "Requests a minute"),
    ("rate_limit.burst", "At once"),
    ("run_limit.amount", "Limit of each run, USD"),
    ("allowed_models", "Models, one on each line"),
    ("alerts", "Alerts at, %"),
    ("match", "Only calls with this metadata"),
    ("url", "URL"),
    ("events", "Events, with commas between"),
    ("time_zone", "Time zone of days and times"),
];

/// A field of that form.
struct RefusedField {
    name: String,
    label: String,
    text: String,
    problem: String,
    /// Whether it was chosen or is one of the page, and is not the problem.
    is_hidden: bool,
    /// Whether it has a name on each line.
    has_lines: bool,
    /// The names and places that lead to its value in the body.
    path: Vec<String>,
}

impl RefusedField {
    fn of(name: &str, text: &str, issues: &[Issue]) -> Self {
        let (path, kind) = name.split_once(':').unwrap_or((name, "text"));
        let path: Vec<_> = path.split('.').map(str::to_owned).collect();
        let steps = path.iter().map(String::as_str).filter(|step| step.parse::<usize>().is_err());
        let steps = steps.collect::<Vec<_>>().join(".");
        let label = TYPED.into_iter().find(|(typed, _)| *typed == steps).map(|(_, label)| label);
        let problem = issues.iter().find(|issue| is_at(issue, &path)).map(problem);
        Self {
            is_hidden: name.starts_with('_') || (label.is_none() && problem.is_none()),
            has_lines: kind.ends_with("lines") || kind.ends_with("pairs"),
            label: label
                .map_or_else(|| capitalized(&steps.replace(['.', '_'], " ")), str::to_owned),
            name: name.to_owned(),
            text: text.to_owned(),
            problem: problem.unwrap_or_default(),
            path,
        }
    }
}

/// Whether an issue is one of the value at a path, or of what is in it.
fn is_at(issue: &Issue, path: &[String]) -> bool {
    !issue.path.is_empty() && issue.path.starts_with(path)
}

fn problem(issue: &Issue) -> String {
    capitalized(&format!("{}.", for_people(&issue.message)))
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
