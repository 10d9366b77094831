//! Sessions of the dashboard, and what the browser keeps of them in cookies.
//!
//! The browser keeps a random token, the store its SHA-256. So any node can serve a session, signing out ends it
//! everywhere, and the cookie and the store open only the dashboard. A cookie sealed with a secret that every node
//! derives would need no row, but could not be ended.

use actix_web::dev::Payload;
use actix_web::http::header::{COOKIE, SET_COOKIE};
use actix_web::{FromRequest, HttpRequest, HttpResponse};
use futures_util::future::LocalBoxFuture;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{MerchantId, Session, SessionToken};
use tollgate_store::sessions;

use crate::answer::PageError;
use crate::clock::PageClock;
use tollgate_api::client::{mark_authenticated, note_caller, scheme};
use tollgate_api::{ApiError, app_of, mark_operation};

/// The cookie with the token of a session.
pub(crate) const COOKIE_NAME: &str = "tollgate_session";
const KEY_COOKIE_NAME: &str = "tollgate_new_key";
const DISPLAY_COOKIE_NAME: &str = "tollgate_display";

/// A merchant with an open session, within the rate of its key.
pub(crate) struct SessionUser {
    pub(crate) session: Session,
    token: SessionToken,
    /// The token for the forms of the page that is shown.
    pub(crate) form_token: String,
    /// Scheme, host and port by which the browser reaches this service.
    pub(crate) origin: String,
    pub(crate) clock: PageClock,
    pub(crate) display: Display,
}

/// The look of the pages in one browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Display {
    /// `system`, `light` or `dark`.
    pub(crate) colors: &'static str,
    /// `relative` or `exact`.
    pub(crate) times: &'static str,
}

impl Display {
    pub(crate) const COLORS: [&'static str; 3] = ["system", "light", "dark"];
    pub(crate) const TIMES: [&'static str; 2] = ["relative", "exact"];

    /// The chosen ones; the first of each in place of an unknown one.
    pub(crate) fn of(colors: &str, times: &str) -> Self {
        let known = |all: &[&'static str], asked: &str, first| {
            all.iter().find(|one| **one == asked).copied().unwrap_or(first)
        };
        Self {
            colors: known(&Self::COLORS, colors, "system"),
            times: known(&Self::TIMES, times, "relative"),
        }
    }

    fn of_cookie(http: &HttpRequest) -> Self {
        let text = cookie(http, DISPLAY_COOKIE_NAME).unwrap_or_default();
        let (colors, times) = text.split_once('.').unwrap_or_default();
        Self::of(colors, times)
    }

    /// Keeps them in the browser for a year.
    pub(crate) fn keep(
        self,
        http: &HttpRequest,
        answer: &mut HttpResponse,
    ) -> Result<(), PageError> {
        let value = format!("{}.{}; Max-Age={}", self.colors, self.times, 365 * 86_400);
        set_cookie(http, answer, DISPLAY_COOKIE_NAME, &value)
    }
}

impl SessionUser {
    pub(crate) const fn merchant_id(&self) -> MerchantId {
        self.session.merchant.merchant_id
    }

    /// The part of a form's token that counts once, if the token is one of this session.
    pub(crate) fn opened(&self, form_token: &str) -> Option<String> {
        self.token.opened(form_token)
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
            mark_operation(&http, session.merchant.merchant_id);
            note_caller(&http, session.merchant.merchant_id, key);
            app.take_call(session.secret_key_id, now)?;
            let (form_token, origin) = (token.form_token(), origin(&http));
            let display = Display::of_cookie(&http);
            let is_relative = display.times == "relative";
            let clock = PageClock { now, zone: session.time_zone.clone(), is_relative };
            Ok(Self { session, token, form_token, origin, clock, display })
        })
    }
}

/// The session token of the cookie.
pub(crate) fn token(http: &HttpRequest) -> Option<SessionToken> {
    cookie(http, COOKIE_NAME).and_then(SessionToken::parse)
}

/// The value of a cookie.
fn cookie<'a>(http: &'a HttpRequest, name: &str) -> Option<&'a str> {
    let cookies = http.headers().get_all(COOKIE).filter_map(|header| header.to_str().ok());
    let mut pairs = cookies.flat_map(|header| header.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Adds a new secret to the redirect to the page that shows it once. The browser carries it in a cookie that no script
/// reads, so any node can show it and none has to keep it.
pub(crate) fn carry_secret(
    http: &HttpRequest,
    answer: &mut HttpResponse,
    secret: &str,
) -> Result<(), PageError> {
    set_cookie(http, answer, KEY_COOKIE_NAME, &format!("{secret}; Max-Age=60"))
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

/// Scheme, host and port by which a request reached this service.
pub(crate) fn origin(http: &HttpRequest) -> String {
    format!("{}://{}", scheme(http), http.connection_info().host())
}

/// Sets or removes a cookie. No script reads it, no other site sends it, and if the browser came over TLS, it
/// is sent over TLS only.
pub(crate) fn set_cookie(
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
