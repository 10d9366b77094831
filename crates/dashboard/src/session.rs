//! Sessions of the dashboard: a merchant signs in with a secret key.
//!
//! The browser keeps a random token, the store its SHA-256. So any node can serve a session, signing out ends it
//! everywhere, and the cookie and the store open only the dashboard. A cookie sealed with a secret that every node
//! derives would need no row, but could not be ended.

use std::net::IpAddr;

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::{COOKIE, ORIGIN, RETRY_AFTER, SET_COOKIE};
use actix_web::{FromRequest, HttpRequest, HttpResponse, web};
use askama::Template;
use futures_util::future::LocalBoxFuture;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{Key, KeyKind, MerchantId, Session, SessionToken};
use tollgate_store::idempotency::{IdempotencyClaim, IdempotencyKey, IdempotencyScope};
use tollgate_store::{idempotency, sessions};

use crate::answer::{PageError, go_to, html};
use tollgate_api::client::{mark_authenticated, note_caller, scheme};
use tollgate_api::{ApiError, App, ErrorCode, RateLimits, app_of, read_body};

/// The attempts to sign in, by IP address.
pub(crate) struct SignIns(RateLimits<IpAddr>);

impl Default for SignIns {
    fn default() -> Self {
        /// In a minute. One that succeeds does not count.
        const MOST: u32 = 10;
        Self(RateLimits::new(MOST))
    }
}

const COOKIE_NAME: &str = "tollgate_session";
const KEY_COOKIE_NAME: &str = "tollgate_new_key";
/// More than any form of the dashboard has.
const FORM_BYTES: usize = 64 * 1024;

/// A merchant with an open session, within the rate of its key.
pub(crate) struct SessionUser {
    pub(crate) session: Session,
    token: SessionToken,
    /// The token for the forms of the page that is shown.
    pub(crate) form_token: String,
    /// Scheme, host and port by which the browser reaches this service.
    pub(crate) origin: String,
}

impl SessionUser {
    pub(crate) const fn merchant_id(&self) -> MerchantId {
        self.session.merchant.merchant_id
    }
}

impl FromRequest for SessionUser {
    type Error = PageError;
    type Future = LocalBoxFuture<'static, Result<Self, PageError>>;

    fn from_request(http: &HttpRequest, _: &mut Payload) -> Self::Future {
        let http = http.clone();
        Box::pin(async move {
            let app = app_of(&http)?;
            let token = token(&http).ok_or_else(ApiError::auth_invalid)?;
            let (hash, now) = (token.hash(), app.clock.now());
            let find = move |conn: &mut _| sessions::find(conn, &hash, now);
            let session = app.store.read(find).await?.ok_or_else(ApiError::auth_invalid)?;
            let key = CallKey::Secret(session.secret_key_id);
            mark_authenticated(&http);
            note_caller(&http, session.merchant.merchant_id, key);
            app.take_call(session.secret_key_id, now)?;
            let (form_token, origin) = (token.form_token(), origin(&http));
            Ok(Self { session, token, form_token, origin })
        })
    }
}

/// The session token of the cookie.
fn token(http: &HttpRequest) -> Option<SessionToken> {
    cookie(http, COOKIE_NAME).and_then(SessionToken::parse)
}

/// The value of a cookie.
fn cookie<'a>(http: &'a HttpRequest, name: &str) -> Option<&'a str> {
    let cookies = http.headers().get_all(COOKIE).filter_map(|header| header.to_str().ok());
    let mut pairs = cookies.flat_map(|header| header.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Redirects to a page that shows a new secret once. The browser carries it in a cookie that no script
/// reads, so any node can show it and none has to keep it.
pub(crate) fn redirect_with_secret(
    http: &HttpRequest,
    href: &str,
    secret: &str,
) -> Result<HttpResponse, PageError> {
    let mut answer = go_to(href);
    set_cookie(http, &mut answer, KEY_COOKIE_NAME, &format!("{secret}; Max-Age=60"))?;
    Ok(answer)
}

/// The secret to be shown once.
pub(crate) fn secret_to_show(http: &HttpRequest) -> Option<String> {
    let is_of_secret = |byte: u8| byte.is_ascii_alphanumeric() || b"_-+/=".contains(&byte);
    let secret = cookie(http, KEY_COOKIE_NAME)?;
    (!secret.is_empty() && secret.bytes().all(is_of_secret)).then(|| secret.to_owned())
}

/// Removes that key from the browser.
pub(crate) fn clear_shown_key(
    http: &HttpRequest,
    answer: &mut HttpResponse,
) -> Result<(), PageError> {
    set_cookie(http, answer, KEY_COOKIE_NAME, "; Max-Age=0")
}

fn origin(http: &HttpRequest) -> String {
    format!("{}://{}", scheme(http), http.connection_info().host())
}

/// The fields of a form that was sent from a page of this dashboard.
#[derive(Default)]
pub(crate) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// These fields, as a query or a test has them.
    pub(crate) fn of(fields: &[(&str, &str)]) -> Self {
        let fields = fields.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Self(fields.collect())
    }

    /// The fields in the order of the form.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (name.as_str(), text.as_str()))
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

fn sent_before() -> PageError {
    let message = "This form was sent before. Load the page to see what became of it.";
    ApiError::new(ErrorCode::IdempotencyKeyReused, message).into()
}

fn not_from_here() -> PageError {
    let message =
        "This form was not sent from a page of this session. Load the page and try again.";
    ApiError::new(ErrorCode::OperationNotAllowed, message).into()
}

/// A form of a session. It carries a token that only a page of this session has and that counts once, so
/// sending the form again changes nothing.
pub(crate) struct SessionForm {
    pub(crate) visitor: SessionUser,
    pub(crate) fields: FormFields,
}

impl FromRequest for SessionForm {
    type Error = PageError;
    type Future = LocalBoxFuture<'static, Result<Self, PageError>>;

    fn from_request(http: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (visitor, fields) =
            (SessionUser::from_request(http, payload), FormFields::from_request(http, payload));
        let app = app_of(http);
        Box::pin(async move {
            let (visitor, fields, app) = (visitor.await?, fields.await?, app?);
            let shown = fields.get("form_token").unwrap_or_default();
            let key = visitor.token.opened(shown).ok_or_else(not_from_here)?;
            let scope = IdempotencyScope::Dashboard(visitor.merchant_id());
            let once = IdempotencyKey { scope, key, fingerprint: [0; 32] };
            let now = app.clock.now();
            match app
                .store
                .write_outside_calls(move |conn| idempotency::claim(conn, &once, now))
                .await?
            {
                IdempotencyClaim::New => Ok(Self { visitor, fields }),
                IdempotencyClaim::Done(_) | IdempotencyClaim::Reused => Err(sent_before()),
            }
        })
    }
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    problem: &'a str,
}

/// The page to sign in. A visitor with a session is redirected.
pub(crate) async fn show(
    visitor: Result<SessionUser, PageError>,
) -> Result<HttpResponse, PageError> {
    match visitor {
        Ok(_) => Ok(go_to("/dashboard")),
        Err(_) => html(StatusCode::OK, &SignInPage { problem: "" }),
    }
}

pub(crate) async fn sign_in(
    app: web::Data<App>,
    sign_ins: web::Data<SignIns>,
    http: HttpRequest,
    fields: FormFields,
) -> Result<HttpResponse, PageError> {
    let now = app.clock.now();
    let from = http.peer_addr().map(|peer| sender(peer.ip()));
    if let Some(Err(too_soon)) = from.map(|from| sign_ins.0.take(from, now)) {
        let problem = "Too many attempts. Wait a moment, and try again.";
        let mut answer = html(StatusCode::TOO_MANY_REQUESTS, &SignInPage { problem })?;
        let seconds = too_soon.wait_micros.max(1).unsigned_abs().div_ceil(1_000_000);
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
        return Ok(answer);
    }
    let refused = |problem| html(StatusCode::FORBIDDEN, &SignInPage { problem });
    let Ok(key) = Key::parse(fields.get("key").unwrap_or_default()) else {
        return refused("That is not a key. A secret key begins with tgs_ and has 42 characters.");
    };
    if key.kind() == KeyKind::Spend {
        return refused("That is a spend key, which only forwards calls. Use a secret key.");
    }
    let Some(answer) = open_session(&app, &http, &key).await? else {
        return refused("There is no such key. It may have been deleted.");
    };
    if let Some(from) = from {
        sign_ins.0.forget(&from);
    }
    Ok(answer)
}

/// Signs in with a key that the service knows, and not the visitor.
pub(crate) async fn sign_in_with(
    app: web::Data<App>,
    http: HttpRequest,
    key: Key,
) -> Result<HttpResponse, PageError> {
    let opened = open_session(&app, &http, &key).await?;
    Ok(opened.unwrap_or_else(|| go_to("/dashboard/sign-in")))
}

/// Opens a session of a secret key, and redirects to the dashboard. `None` without such a key.
async fn open_session(
    app: &App,
    http: &HttpRequest,
    key: &Key,
) -> Result<Option<HttpResponse>, PageError> {
    let (hash, now) = (key.hash(), app.clock.now());
    let open = move |conn: &mut _| sessions::open(conn, &hash, now);
    let Some(token) = app.store.write_outside_calls(open).await? else { return Ok(None) };
    let seconds = Session::LASTS_MILLIS / 1_000;
    let mut answer = go_to("/dashboard");
    let value = format!("{}; Max-Age={seconds}", token.reveal());
    set_cookie(http, &mut answer, COOKIE_NAME, &value)?;
    Ok(Some(answer))
}

/// The address of a sender. Of IPv6 it is the network of 64 bits, because one client has all 2⁶⁴ addresses in
/// it.
fn sender(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(network.into())
        }
        address @ IpAddr::V4(_) => address,
    }
}

pub(crate) async fn sign_out(
    app: web::Data<App>,
    http: HttpRequest,
    _: SessionForm,
) -> Result<HttpResponse, PageError> {
    if let Some(token) = token(&http) {
        let hash = token.hash();
        app.store.write_outside_calls(move |conn| sessions::end(conn, &hash)).await?;
    }
    let mut answer = go_to("/dashboard/sign-in");
    set_cookie(&http, &mut answer, COOKIE_NAME, "; Max-Age=0")?;
    Ok(answer)
}

/// Sets or removes a cookie. No script reads it, no other site sends it, and if the browser came over TLS, it
/// is sent over TLS only.
fn set_cookie(
    http: &HttpRequest,
    answer: &mut HttpResponse,
    name: &str,
    value: &str,
) -> Result<(), PageError> {
    let secure = if scheme(http) == "https" { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; Path=/dashboard; HttpOnly; SameSite=Strict{secure}");
    let cookie = cookie.parse().map_err(|_| PageError::invalid("The cookie cannot be set."))?;
    answer.headers_mut().insert(SET_COOKIE, cookie);
    Ok(())
}
