//! The incoming call: its caller and its whole body.

use actix_web::{HttpRequest, web};
use bytes::Bytes;
use tokio::time::Instant;

use super::calls::InFlightGuard;
use super::credential::Credential;
use crate::access::AccessEntry;
use crate::app::{App, KeyOwner};
use crate::client_connections::mark_authenticated;
use crate::http::body;
use crate::http::error::{ApiError, ErrorCode};

/// Refuses requests by which a browser would show or run the answer. A provider's answer would then be a page
/// or a script of this service's origin. Calls of scripts by `fetch` have the destination `empty`.
fn refuse_navigation(http: &HttpRequest) -> Result<(), ApiError> {
    const DESTINATIONS: [&str; 14] = [
        "document",
        "iframe",
        "frame",
        "fencedframe",
        "object",
        "embed",
        "script",
        "worker",
        "serviceworker",
        "sharedworker",
        "audioworklet",
        "paintworklet",
        "webidentity",
        "xslt",
    ];
    let says = |name: &str, words: &[&str]| {
        let mut values = http.headers().get_all(name);
        values.any(|value| value.to_str().is_ok_and(|value| words.contains(&value)))
    };
    let is_page = says("sec-fetch-dest", &DESTINATIONS) || says("sec-fetch-mode", &["navigate"]);
    match is_page {
        true => Err(ApiError::new(
            ErrorCode::OperationNotAllowed,
            "A browser cannot open this address as a page, a frame or a script. Call it from a program.",
        )),
        false => Ok(()),
    }
}

/// A call as it came in. Its caller is known; the rest is not checked yet.
pub(super) struct InboundCall {
    pub(super) tracked: InFlightGuard,
    pub(super) credential: Credential,
    pub(super) owner: KeyOwner,
    pub(super) body: Bytes,
    pub(super) access: AccessEntry,
    /// When it came in, plus the time that its body took to arrive.
    pub(super) began: Instant,
}

impl InboundCall {
    pub(super) async fn read(
        http: &HttpRequest,
        payload: web::Payload,
        credential: fn(&HttpRequest) -> Result<Credential, ApiError>,
        app: &App,
    ) -> Result<Self, ApiError> {
        let came_in = Instant::now();
        refuse_navigation(http)?;
        let tracked = app.calls.enter(app.settings.clients.max_connections)?;
        let credential = credential(http)?;
        let owner = app.owner_of(&credential.key).await?;
        mark_authenticated(http);
        let access = AccessEntry::of(http);
        access.caller(owner.merchant_id, owner.key);
        let limit = app.settings.forward_body_limit_bytes;
        let asked = Instant::now();
        let body = body::read(http, &mut payload.into_inner(), limit).await?;
        let began = came_in + asked.elapsed();
        Ok(Self { tracked, credential, owner, body, access, began })
    }
}
