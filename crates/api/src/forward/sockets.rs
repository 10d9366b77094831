//! The upgrade of a request to a WebSocket, and the errors of its responses.

use actix_http::ConnectionType;
use actix_http::ws::{hash_key, verify_handshake};
use actix_web::http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE,
};
use actix_web::http::{Method, Version};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use tollgate_domain::RequestFormat;
use tollgate_gateway::{
    CallError, CallSummary, Credential, KeyOwner, RequestHead, SocketCall, SocketInterface,
    SocketRefusal, SocketRoute, spawn_socket,
};
use tollgate_provider::ProviderClient;

use super::inbound::{refuse_navigation, request_head};
use super::refused::CallFacts;
use super::response::response;
use crate::access::AccessEntry;
use crate::app::App;
use crate::client_connections::mark_authenticated;
use crate::http::error::{ApiError, ErrorCode};

/// Whether a request is for a WebSocket.
pub(super) fn is_upgrade(http: &HttpRequest) -> bool {
    // The body of another method would have no end.
    if http.method() != Method::GET {
        return false;
    }
    let mut named = http.headers().get_all(UPGRADE).filter_map(|value| value.to_str().ok());
    named.any(|value| value.to_ascii_lowercase().contains("websocket"))
}

/// Opens a socket to a provider, and answers with the upgrade.
pub(super) async fn open_socket(
    http: &HttpRequest,
    payload: web::Payload,
    route: SocketRoute<'_>,
    credential: fn(&RequestHead<'_>) -> Result<Credential, CallError>,
    app: &web::Data<App>,
    client: &ProviderClient,
    facts: &mut CallFacts,
) -> Result<HttpResponse, ApiError> {
    refuse_navigation(http)?;
    let head = request_head(http);
    let credential = credential(&head)?;
    let owner = app.gateway.owner_of(&credential).await?;
    facts.owned(owner, credential.connection_id());
    check_handshake(http)?;
    mark_authenticated(http);
    AccessEntry::of(http).caller(owner.merchant_id, owner.key);
    let connection_id = credential.connection_id().map(str::to_owned);
    let socket = SocketCall::open(route, &head, (credential, owner), &app.gateway, client).await?;
    let protocol = socket.protocol();
    let interface = SocketErrors { app: app.clone(), owner, connection_id };
    let from_socket = spawn_socket(socket, payload, &app.gateway, interface);
    let mut response = response(http, from_socket).await?;
    response.head_mut().set_connection_type(ConnectionType::Upgrade);
    let key = http.headers().get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
    let accept = HeaderValue::from_bytes(&hash_key(key.unwrap_or_default()));
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept.map_err(|_| CallError::Aborted)?);
    if let Some(protocol) = protocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(response)
}

/// Checks that a request is an upgrade of RFC 6455, 4.2.1, which servers cannot understand in two ways.
fn check_handshake(http: &HttpRequest) -> Result<(), ApiError> {
    let headers = http.headers();
    let mut upgrades = headers.get_all(UPGRADE);
    let is_only = upgrades
        .next()
        .is_some_and(|one| one.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket"))
        && upgrades.next().is_none();
    let is_empty = |length: &HeaderValue| length.as_bytes().trim_ascii() == b"0";
    let has_body =
        headers.contains_key(TRANSFER_ENCODING) || !headers.get_all(CONTENT_LENGTH).all(is_empty);
    let why = match verify_handshake(http.head()) {
        Err(why) => why.to_string(),
        Ok(()) if http.version() != Version::HTTP_11 => "It needs HTTP/1.1".to_owned(),
        Ok(()) if !is_only => "The header Upgrade must be websocket".to_owned(),
        Ok(()) if has_body => "The request must have no body".to_owned(),
        Ok(()) => return Ok(()),
    };
    let message = format!("This is a WebSocket of RFC 6455. {}.", why.trim_end_matches('.'));
    let error = ApiError::new(ErrorCode::UpgradeRequired, message);
    let error = error.header(UPGRADE, HeaderValue::from_static("websocket"));
    let error = error.header(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    Err(error.header(CONNECTION, HeaderValue::from_static("close")))
}

/// The errors of the responses on a socket.
struct SocketErrors {
    app: web::Data<App>,
    owner: KeyOwner,
    connection_id: Option<String>,
}

impl SocketInterface for SocketErrors {
    fn refused(&self, error: CallError, text: &Bytes, summary: CallSummary) -> SocketRefusal {
        let error = ApiError::from(error).for_sdk(RequestFormat::ShapeA);
        self.app.metrics.refused(&error);
        let mut facts = CallFacts::default();
        facts.owned(self.owner, self.connection_id.as_deref());
        facts.read(text);
        facts.checked(summary);
        let error = facts.keep(error, &self.app);
        SocketRefusal {
            code: error.code().name(),
            status: error.code().status(),
            error: error.to_json(),
        }
    }

    fn code(&self, error: CallError) -> &'static str {
        ApiError::from(error).code().name()
    }
}
