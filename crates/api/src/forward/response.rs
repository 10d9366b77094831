//! The answer to the client of a call, relayed from its task.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::StatusCode;
use actix_web::http::header::CONTENT_LENGTH;
use bytes::Bytes;
use tollgate_gateway::{CallError, RelayReceiver, RelayedBytes};

/// The error of an answer that was broken off, by the provider or by the call.
#[derive(Debug)]
pub(super) struct ResponseAborted;

impl std::fmt::Display for ResponseAborted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the provider broke off its answer")
    }
}

impl std::error::Error for ResponseAborted {}

/// The response to the client.
pub(super) async fn response(from_call: RelayReceiver) -> Result<HttpResponse, CallError> {
    let head = from_call.head().await?;
    let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let body = match head.length {
        Some(0) => BoxBody::new(()),
        length => BoxBody::new(RelayBody { from_call, length, breaking: false }),
    };
    let mut response = HttpResponse::with_body(status, body);
    *response.headers_mut() = head.headers;
    // The server writes the length.
    response.headers_mut().remove(CONTENT_LENGTH);
    Ok(response)
}

/// The body as it comes from the call. It ends when the call drops its end.
struct RelayBody {
    from_call: RelayReceiver,
    length: Option<u64>,
    breaking: bool,
}

impl MessageBody for RelayBody {
    type Error = ResponseAborted;

    fn size(&self) -> BodySize {
        self.length.map_or(BodySize::Stream, BodySize::Sized)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ResponseAborted>>> {
        if self.breaking {
            return Poll::Ready(Some(Err(ResponseAborted)));
        }
        match ready!(self.from_call.poll_next(cx)) {
            RelayedBytes::Piece(piece) => Poll::Ready(Some(Ok(piece))),
            RelayedBytes::Complete => Poll::Ready(None),
            RelayedBytes::Aborted => {
                // When a body fails, the server drops what it has not written yet. So it gets one turn to
                // write first.
                self.breaking = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}
