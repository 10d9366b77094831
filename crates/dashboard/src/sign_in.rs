//! The page to sign in with a secret key, and the end of a session.

use std::net::IpAddr;

use actix_web::http::StatusCode;
use actix_web::http::header::RETRY_AFTER;
use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{CellNumber, Key, KeyKind, Session};
use tollgate_store::{cells, merchants, sessions};

use crate::answer::{PageError, go_to, html};
use crate::form::{FormFields, SessionForm};
use crate::session::{COOKIE_NAME, SessionUser, set_cookie, token};
use tollgate_api::{App, RateLimits};

/// The attempts to sign in, by IP address.
pub(crate) struct SignIns(RateLimits<IpAddr>);

impl Default for SignIns {
    fn default() -> Self {
        /// In a minute. One that succeeds does not count.
        const MOST: u32 = 10;
        Self(RateLimits::new(MOST))
    }
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    problem: &'a str,
    /// The query with the cell, by which a router finds it.
    cell: String,
}

/// The page to sign in. A visitor with a session is redirected.
pub(crate) async fn show(
    http: HttpRequest,
    visitor: Result<SessionUser, PageError>,
) -> Result<HttpResponse, PageError> {
    match visitor {
        Ok(_) => Ok(go_to("/dashboard")),
        Err(_) => page(&http, StatusCode::OK, ""),
    }
}

/// Whether this cell does not have a key. It may have one that another cell has made, if its merchant has moved.
async fn is_unknown(app: &App, key: &Key) -> Result<bool, PageError> {
    let hash = key.hash();
    let found = app.store.read(move |conn| merchants::find_secret_key(conn, &hash)).await?;
    Ok(found.is_none())
}

fn page(http: &HttpRequest, status: StatusCode, problem: &str) -> Result<HttpResponse, PageError> {
    let cell = cell_in_query(http).map(query_of).unwrap_or_default();
    html(status, &SignInPage { problem, cell })
}

/// The cell that the query names.
fn cell_in_query(http: &HttpRequest) -> Option<CellNumber> {
    http.query_string().split('&').find_map(|pair| pair.strip_prefix("cell=")?.parse().ok())
}

fn query_of(cell: CellNumber) -> String {
    format!("?cell={cell}")
}

pub(crate) async fn sign_in(
    app: web::Data<App>,
    sign_ins: web::Data<SignIns>,
    http: HttpRequest,
    fields: FormFields,
) -> Result<HttpResponse, PageError> {
    // A form has no key in its head, so a router cannot know the cell of the first attempt.
    let key = Key::parse(fields.get("key").unwrap_or_default());
    if let Ok(key) = &key
        && cell_in_query(&http) != Some(key.cell())
        && app.store.read(cells::number).await? != key.cell()
        && is_unknown(&app, key).await?
    {
        return Ok(go_to(&format!("/dashboard/sign-in{}", query_of(key.cell()))));
    }
    let now = app.clock.now();
    let from = http.peer_addr().map(|peer| sender(peer.ip()));
    if let Some(Err(too_soon)) = from.map(|from| sign_ins.0.take(from, now)) {
        let problem = "Too many attempts. Wait a moment, and try again.";
        let mut answer = page(&http, StatusCode::TOO_MANY_REQUESTS, problem)?;
        let seconds = too_soon.wait_micros.max(1).unsigned_abs().div_ceil(1_000_000);
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
        return Ok(answer);
    }
    let refused = |problem| page(&http, StatusCode::FORBIDDEN, problem);
    let Ok(key) = key else {
        return refused("That is not a key. A secret key begins with tgs_.");
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
pub(crate) async fn open_with(
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
