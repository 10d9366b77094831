//! The path of a forwarded call, from top to bottom:
//!
//! 1. [`credential`]: who calls, for which connection, under which meter, with whose provider key;
//! 2. [`outbound`]: what is called: URL, body, metadata, each parsed once and wholly checked; on
//!    the drop-in routes [`drop_in`] finds the provider by the model first;
//! 3. [`price`]: what it can cost at most;
//! 4. [`call`]: a task of its own from here on: admitted, sent, relayed while it is measured,
//!    settled;
//! 5. [`relay`]: how its bytes reach the client; [`refusal`]: what is said when they may not.
//!
//! The server drops a handler whose client has left. So from its admission on, a call is a task
//! that nobody can drop, and the handler only relays from it. [`operations`] has the handlers.

mod call;
pub(crate) mod calls;
pub(crate) mod credential;
mod drop_in;
pub(crate) mod operations;
pub(crate) mod outbound;
pub(crate) mod price;
mod refusal;
mod relay;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use tokio::time::Instant;
use tollgate_provider::ProviderClient;

use self::call::Call;
use self::calls::Tracked;
pub(crate) use self::credential::Credential;
pub(crate) use self::drop_in::ranks;
use self::outbound::Outbound;
use crate::access::Access;
use crate::app::{App, KeyOwner};
use crate::client_connections::recognised;
use crate::http::body;
use crate::http::error::{ApiError, ErrorCode};

/// Refuses what a browser asks for to show or run it: an answer of a provider would then be a page, or a
/// script, of our own origin. Calls of scripts by `fetch` have the destination `empty`.
fn refuse_pages(http: &HttpRequest) -> Result<(), ApiError> {
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

/// A call as it came in: its caller is known, and nothing else of it is checked.
struct Inbound {
    tracked: Tracked,
    credential: Credential,
    owner: KeyOwner,
    body: Bytes,
    access: Access,
    /// Since when it is here, without the time that its body took to come.
    began: Instant,
}

impl Inbound {
    async fn read(
        http: &HttpRequest,
        payload: web::Payload,
        credential: fn(&HttpRequest) -> Result<Credential, ApiError>,
        app: &App,
    ) -> Result<Self, ApiError> {
        let came_in = Instant::now();
        refuse_pages(http)?;
        let tracked = app.calls.enter(app.settings.clients.max_connections)?;
        let credential = credential(http)?;
        let owner = app.owner_of(&credential.key).await?;
        recognised(http);
        let access = Access::of(http);
        access.caller(owner.merchant_id, owner.key);
        let limit = app.settings.forward_body_limit_bytes;
        let asked = Instant::now();
        let body = body::read(http, &mut payload.into_inner(), limit).await?;
        let began = came_in + asked.elapsed();
        Ok(Self { tracked, credential, owner, body, access, began })
    }

    async fn send(
        self,
        outbound: Outbound,
        app: web::Data<App>,
        client: web::Data<ProviderClient>,
    ) -> Result<HttpResponse, ApiError> {
        let admission = price::admission(self.owner, &self.credential, &outbound, &app)?;
        let (to_client, from_call) = relay::channel();
        let Self { tracked, access, began, .. } = self;
        let call = Call { app, client, outbound, admission, tracked, access, began };
        // In a box, for it is moved several times on its way.
        actix_web::rt::spawn(Box::pin(call.run(to_client)));
        from_call.response().await
    }
}
