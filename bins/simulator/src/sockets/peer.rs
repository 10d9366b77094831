//! One end of a WebSocket: it takes messages until the socket ends.

use std::rc::Rc;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse, rt};
use actix_ws::{AggregatedMessage, CloseCode, CloseReason, Session};
use bytes::Bytes;
use futures_util::StreamExt;

/// The most bytes of a message.
const MESSAGE_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// One end of a socket: what it does with messages.
pub(super) trait SocketPeer: 'static {
    /// Whether messages may be binary.
    const TAKES_BINARY: bool;

    /// Begins, before any message has come.
    async fn begin(self: Rc<Self>) {}

    /// Takes a message.
    async fn take(self: Rc<Self>, message: Bytes);
}

/// Answers the upgrade, and then each message.
pub(super) fn serve<P: SocketPeer>(
    http: &HttpRequest,
    payload: Payload,
    peer: impl FnOnce(Session) -> P,
) -> actix_web::Result<HttpResponse> {
    let (response, session, messages) = actix_ws::handle(http, payload)?;
    let messages = messages.max_frame_size(MESSAGE_LIMIT_BYTES).aggregate_continuations();
    let mut messages = messages.max_continuation_size(MESSAGE_LIMIT_BYTES);
    let peer = Rc::new(peer(session.clone()));
    rt::spawn(async move {
        let mut session = session;
        Rc::clone(&peer).begin().await;
        while let Some(message) = messages.next().await {
            match message {
                Ok(AggregatedMessage::Text(text)) => {
                    Rc::clone(&peer).take(text.into_bytes()).await;
                }
                Ok(AggregatedMessage::Binary(bytes)) if P::TAKES_BINARY => {
                    Rc::clone(&peer).take(bytes).await;
                }
                Ok(AggregatedMessage::Ping(bytes)) => drop(session.pong(&bytes).await),
                Ok(AggregatedMessage::Close(reason)) => {
                    drop(session.close(reason).await);
                    return;
                }
                Ok(AggregatedMessage::Binary(_)) => {
                    let reason = CloseReason::from((CloseCode::Unsupported, "no binary messages"));
                    drop(session.close(Some(reason)).await);
                    return;
                }
                Ok(AggregatedMessage::Pong(_)) => {}
                Err(_) => return,
            }
        }
    });
    Ok(response)
}
