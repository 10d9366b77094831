//! The answer to the client of a call, relayed from its task.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, TRAILER, TRANSFER_ENCODING};
use actix_web::http::{StatusCode, Version};
use actix_web::{HttpRequest, HttpResponse};
use bytes::{BufMut as _, Bytes, BytesMut};
use tollgate_gateway::{COST_TRAILERS, CallError, RelayReceiver, RelayedBytes};

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
pub(super) async fn response(
    http: &HttpRequest,
    from_call: RelayReceiver,
) -> Result<HttpResponse, CallError> {
    let head = from_call.head().await?;
    let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let has_trailers = head.has_trailers && http.version() == Version::HTTP_11;
    let body = match head.length.filter(|_| !has_trailers) {
        Some(0) => BoxBody::new(()),
        length => {
            let state = RelayState::Open;
            BoxBody::new(RelayBody { from_call, length, is_chunked: has_trailers, state })
        }
    };
    let mut response = HttpResponse::with_body(status, body);
    *response.headers_mut() = head.headers;
    // The server writes the length.
    response.headers_mut().remove(CONTENT_LENGTH);
    if has_trailers {
        // The server has no trailers, so the body is written as chunks here.
        response.head_mut().no_chunking(true);
        let headers = response.headers_mut();
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        headers.insert(TRAILER, COST_TRAILERS);
    }
    Ok(response)
}

/// The body as it comes from the call. It ends when the call drops its end.
struct RelayBody {
    from_call: RelayReceiver,
    length: Option<u64>,
    /// Whether its bytes are the chunks of RFC 9112, 7.1, with trailers.
    is_chunked: bool,
    state: RelayState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RelayState {
    Open,
    /// The last chunk was written.
    Ended,
    /// The body fails at the next turn.
    Aborted,
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
        match self.state {
            RelayState::Open => {}
            RelayState::Ended => return Poll::Ready(None),
            RelayState::Aborted => return Poll::Ready(Some(Err(ResponseAborted))),
        }
        match ready!(self.from_call.poll_next(cx)) {
            RelayedBytes::Piece(piece) if self.is_chunked => Poll::Ready(Some(Ok(chunk(&piece)))),
            RelayedBytes::Piece(piece) => Poll::Ready(Some(Ok(piece))),
            RelayedBytes::Complete(trailers) if self.is_chunked => {
                self.state = RelayState::Ended;
                Poll::Ready(Some(Ok(last_chunk(&trailers))))
            }
            RelayedBytes::Complete(_) => Poll::Ready(None),
            RelayedBytes::Aborted => {
                // When a body fails, the server drops what it has not written yet. So it gets one turn to
                // write first.
                self.state = RelayState::Aborted;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// A piece, which is not empty, as a chunk.
fn chunk(piece: &[u8]) -> Bytes {
    let mut chunk = BytesMut::with_capacity(piece.len().saturating_add(20)).writer();
    // A buffer in memory takes all that is written.
    let _ = write!(chunk, "{:x}\r\n", piece.len());
    let _ = chunk.write_all(piece);
    let _ = chunk.write_all(b"\r\n");
    chunk.into_inner().freeze()
}

/// The last chunk, with its trailers.
fn last_chunk(trailers: &HeaderMap) -> Bytes {
    let lines = trailers
        .iter()
        .map(|(name, value)| [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    [b"0\r\n".to_vec(), lines.collect::<Vec<_>>().concat(), b"\r\n".to_vec()].concat().into()
}
