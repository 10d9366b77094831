//! The incoming call: its caller and its whole body.

use std::rc::Rc;

use actix_web::dev::Payload;
use actix_web::{HttpRequest, web};
use bytes::Bytes;
use tokio::time::Instant;
use tollgate_domain::MerchantId;
use tollgate_gateway::{CallError, Credential, InboundCall, RequestHead, Upload, UploadSpool};

use super::refused::CallFacts;
use crate::access::AccessEntry;
use crate::app::App;
use crate::client_connections::mark_authenticated;
use crate::http::body;
use crate::http::error::{ApiError, ErrorCode};

/// Refuses requests by which a browser would show or run the answer. A provider's answer would then be a page
/// or a script of this service's origin. Calls of scripts by `fetch` have the destination `empty`.
pub(super) fn refuse_navigation(http: &HttpRequest) -> Result<(), ApiError> {
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

/// The head of a request, as the gateway reads it.
pub(crate) fn request_head(http: &HttpRequest) -> RequestHead<'_> {
    RequestHead {
        method: http.method(),
        path: http.uri().path(),
        query: http.query_string(),
        headers: http.headers(),
    }
}

/// The bytes of the form around an uploaded file.
const FORM_BYTES: usize = 64 * 1024;

/// Reads an upload into a temporary file.
async fn read_upload(
    http: &HttpRequest,
    payload: &mut Payload,
    merchant_id: MerchantId,
    app: &App,
) -> Result<Upload, ApiError> {
    let mut spool = UploadSpool::begin(&request_head(http))?;
    let limit = app.settings.job_file_limit_bytes.saturating_add(FORM_BYTES);
    let [all, share] = app.upload_room.rooms(merchant_id);
    let read = body::read_pieces(http, payload, limit, [&all, &share], async |piece| {
        Ok(spool.write(&piece).await?)
    });
    let room = read.await?;
    Ok(spool.finish(Rc::new(room)).await?)
}

/// Reads a call: its credential, the owner of its key, and its whole body. An upload is kept in a temporary file.
pub(super) async fn read_call(
    http: &HttpRequest,
    payload: web::Payload,
    credential: fn(&RequestHead<'_>) -> Result<Credential, CallError>,
    app: &App,
    facts: &mut CallFacts,
) -> Result<InboundCall, ApiError> {
    let came_in = Instant::now();
    refuse_navigation(http)?;
    let in_flight = app.gateway.calls.enter(app.settings.clients.max_connections)?;
    let credential = credential(&request_head(http))?;
    let owner = app.gateway.owner_of(&credential).await?;
    facts.owned(owner, credential.connection_id());
    mark_authenticated(http);
    AccessEntry::of(http).caller(owner.merchant_id, owner.key);
    let before_body = Instant::now();
    let mut payload = payload.into_inner();
    let (body, upload) = match UploadSpool::is_upload(&request_head(http)) {
        true => {
            (Bytes::new(), Some(read_upload(http, &mut payload, owner.merchant_id, app).await?))
        }
        false => {
            let limit = app.settings.forward_body_limit_bytes;
            (body::read(http, &mut payload, limit).await?, None)
        }
    };
    let began = came_in + before_body.elapsed();
    let inbound = InboundCall { in_flight, credential, owner, body, upload, began };
    facts.read(&inbound.body);
    Ok(inbound)
}
