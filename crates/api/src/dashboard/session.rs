//! Who looks at the pages: a merchant who has signed in with a secret key.
//!
//! The browser keeps a random token, the store its SHA-256, so any node can serve a session, signing out ends
//! it everywhere, and neither the cookie nor the store opens anything but the dashboard. A cookie that is
//! sealed with something every node derives could do without the row, but not be ended.

use std::net::IpAddr;

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::{COOKIE, ORIGIN, RETRY_AFTER, SET_COOKIE};
use actix_web::{FromRequest, HttpRequest, HttpResponse, web};
use askama::Template;
use futures_util::future::LocalBoxFuture;
use subtle::ConstantTimeEq;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{Key, KeyKind, MerchantId, Session, SessionToken};
use tollgate_store::sessions;

use super::page::{PageError, go_to, html};
use crate::access::Access;
use crate::app::App;
use crate::http::auth::app;
use crate::http::body;
use crate::http::error::{ApiError, ErrorCode};

const COOKIE_NAME: &str = "tollgate_session";
/// More than any form of ours has.
const FORM_BYTES: usize = 64 * 1024;

/// Somebody with an open session, within the rate of its key.
pub(super) struct Visitor {
    pub(super) session: Session,
    pub(super) form_token: String,
    /// Scheme, host and port by which the browser knows us.
    pub(super) origin: String,
}

impl Visitor {
    pub(super) const fn merchant_id(&self) -> MerchantId {
        self.session.merchant.merchant_id
    }
}

impl FromRequest for Visitor {
    type Error = PageError;
    type Future = LocalBoxFuture<'static, Result<Self, PageError>>;

    fn from_request(http: &HttpRequest, _: &mut Payload) -> Self::Future {
        let http = http.clone();
        Box::pin(async move {
            let app = app(&http)?;
            let token = token(&http).ok_or_else(ApiError::auth_invalid)?;
            let (hash, now) = (token.hash(), app.clock.now());
            let find = move |conn: &mut _| sessions::find(conn, &hash, now);
            let session = app.store.read_apart(find).await?.ok_or_else(ApiError::auth_invalid)?;
            let key = CallKey::Secret(session.secret_key_id);
            Access::of(&http).caller(session.merchant.merchant_id, key);
            app.rate_limits.take_call(session.secret_key_id, now)?;
            Ok(Self { session, form_token: token.form_token(), origin: origin(&http) })
        })
    }
}

/// The token of the cookie.
fn token(http: &HttpRequest) -> Option<SessionToken> {
    let cookies = http.headers().get_all(COOKIE).filter_map(|header| header.to_str().ok());
    let mut pairs = cookies.flat_map(|header| header.split(';'));
    let value = pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='));
    value.and_then(SessionToken::parse)
}

fn origin(http: &HttpRequest) -> String {
    let connection = http.connection_info();
    format!("{}://{}", connection.scheme(), connection.host())
}

/// The fields of a form, which was sent from one of our pages.
#[derive(Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// What stands in a field, if anything does.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.trim());
        found.filter(|value| !value.is_empty())
    }

    /// What stands in a field, to be shown in it again.
    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// Whether a choice is the one that was made, or that stands there before any is made.
    pub(super) fn has(&self, name: &str, choice: &str, before: &str) -> bool {
        self.get(name).unwrap_or(before) == choice
    }
}

impl FromRequest for Fields {
    type Error = PageError;
    type Future = LocalBoxFuture<'static, Result<Self, PageError>>;

    fn from_request(http: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (http, mut payload) = (http.clone(), payload.take());
        Box::pin(async move {
            // Browsers say with every form where it comes from; what does not say so is none.
            let said = http.headers().get(ORIGIN).and_then(|origin| origin.to_str().ok());
            if said != Some(origin(&http).as_str()) {
                return Err(not_from_here());
            }
            let body = body::read(&http, &mut payload, FORM_BYTES).await?;
            Ok(Self(url::form_urlencoded::parse(&body).into_owned().collect()))
        })
    }
}

fn not_from_here() -> PageError {
    let message =
        "This form was not sent from a page of this session. Load the page and try again.";
    ApiError::new(ErrorCode::OperationNotAllowed, message).into()
}

/// A form of a session: it carries the token that only pages of this session have.
pub(super) struct Form {
    pub(super) visitor: Visitor,
    pub(super) fields: Fields,
}

impl FromRequest for Form {
    type Error = PageError;
    type Future = LocalBoxFuture<'static, Result<Self, PageError>>;

    fn from_request(http: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (visitor, fields) =
            (Visitor::from_request(http, payload), Fields::from_request(http, payload));
        Box::pin(async move {
            let (visitor, fields) = (visitor.await?, fields.await?);
            let shown = fields.get("form_token").unwrap_or_default();
            match bool::from(shown.as_bytes().ct_eq(visitor.form_token.as_bytes())) {
                true => Ok(Self { visitor, fields }),
                false => Err(not_from_here()),
            }
        })
    }
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    problem: &'a str,
}

/// The page to sign in; who is signed in already goes on.
pub(super) async fn show(visitor: Result<Visitor, PageError>) -> Result<HttpResponse, PageError> {
    match visitor {
        Ok(_) => Ok(go_to("/dashboard")),
        Err(_) => html(StatusCode::OK, &SignInPage { problem: "" }),
    }
}

pub(super) async fn sign_in(
    app: web::Data<App>,
    http: HttpRequest,
    fields: Fields,
) -> Result<HttpResponse, PageError> {
    let now = app.clock.now();
    let from = http.peer_addr().map(|peer| sender(peer.ip()));
    if let Some(Err(too_soon)) = from.map(|from| app.sign_ins.take(from, now)) {
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
    let hash = key.hash();
    let open = move |conn: &mut _| sessions::open(conn, &hash, now);
    let Some(token) = app.store.write_apart(open).await? else {
        return refused("There is no such key. It may have been deleted.");
    };
    if let Some(from) = from {
        app.sign_ins.forget(&from);
    }
    let seconds = Session::LASTS_MILLIS / 1_000;
    let mut answer = go_to("/dashboard");
    set_cookie(&http, &mut answer, &format!("{}; Max-Age={seconds}", token.reveal()))?;
    Ok(answer)
}

/// An address; whoever has one of IPv6 has 2⁶⁴ of them.
fn sender(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(network.into())
        }
        address @ IpAddr::V4(_) => address,
    }
}

pub(super) async fn sign_out(
    app: web::Data<App>,
    http: HttpRequest,
    _: Form,
) -> Result<HttpResponse, PageError> {
    if let Some(token) = token(&http) {
        let hash = token.hash();
        app.store.write_apart(move |conn| sessions::end(conn, &hash)).await?;
    }
    let mut answer = go_to("/dashboard/sign-in");
    set_cookie(&http, &mut answer, "; Max-Age=0")?;
    Ok(answer)
}

/// Sets the cookie, or takes it away: no script reads it, no other site sends it along, and where the
/// browser came over TLS it is never sent without.
fn set_cookie(http: &HttpRequest, answer: &mut HttpResponse, value: &str) -> Result<(), PageError> {
    let secure = if http.connection_info().scheme() == "https" { "; Secure" } else { "" };
    let cookie =
        format!("{COOKIE_NAME}={value}; Path=/dashboard; HttpOnly; SameSite=Strict{secure}");
    let cookie = cookie.parse().map_err(|_| PageError::invalid("The cookie cannot be set."))?;
    answer.headers_mut().insert(SET_COOKIE, cookie);
    Ok(())
}
