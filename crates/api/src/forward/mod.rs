//! The path of a forwarded call, from top to bottom:
//!
//! 1. [`credential`]: who calls, for which connection, under which meter, with whose provider key;
//! 2. [`asked`]: what is called: URL, body, metadata, each parsed once and wholly checked;
//! 3. [`price`]: what it can cost at most;
//! 4. [`call`]: a task of its own from here on: admitted, sent, relayed while it is measured,
//!    settled;
//! 5. [`relay`]: how its bytes reach the client.
//!
//! The server drops a handler whose client has left. So from its admission on, a call is a task
//! that nobody can drop, and the handler only relays from it.

mod asked;
mod call;
pub(crate) mod calls;
mod credential;
mod price;
mod relay;

use actix_web::{HttpRequest, HttpResponse, web};
use tollgate_provider::ProviderClient;

use self::asked::Asked;
use self::call::Call;
use self::credential::Credential;
use crate::app::App;
use crate::http::body;
use crate::http::error::ApiError;

/// `POST /forward` and `GET /forward`
pub(crate) async fn forward(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    let tracked = app.calls.enter()?;
    let credential = Credential::of(&http)?;
    let owner = app.owner_of(&credential.secret_key).await?;
    let limit = app.settings.forward_body_limit_bytes;
    let body = body::read(&http, &mut payload.into_inner(), limit).await?;
    let asked = Asked::of(&http, body, &credential, &app)?;
    let admission = price::admission(owner, &credential, &asked, &app)?;

    let (to_client, from_call) = relay::channel();
    let call = Call { app, client, asked, admission, tracked };
    actix_web::rt::spawn(call.run(to_client));
    from_call.response().await
}
