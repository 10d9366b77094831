//! Between a call's task and the handler that answers its client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, MessageBody};
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tollgate_domain::RequestId;

use crate::http::error::{ApiError, ErrorCode};

/// How many pieces may wait for a slow client before the provider is no longer read.
const PIECES_IN_FLIGHT: usize = 4;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-service-request-id");

/// The head of an answer.
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    /// How long the body is, if that is known.
    pub(super) length: Option<u64>,
}

/// The provider broke off, or the call did: so does the answer.
#[derive(Debug)]
pub(super) struct BrokenOff;

impl std::fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the provider broke off its answer")
    }
}

impl std::error::Error for BrokenOff {}

/// The call's end.
pub(super) struct ToClient {
    answer: Option<oneshot::Sender<Result<Head, ApiError>>>,
    /// A head that leaves with the first piece of its body, in one write.
    waiting_head: Option<Head>,
    body: mpsc::Sender<Bytes>,
    /// Only what says so is whole: a call may end anywhere, by a panic too.
    whole: Arc<AtomicBool>,
}

/// The handler's end.
pub(super) struct FromCall {
    head: oneshot::Receiver<Result<Head, ApiError>>,
    body: mpsc::Receiver<Bytes>,
    whole: Arc<AtomicBool>,
}

/// The client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientLeft;

pub(super) fn channel() -> (ToClient, FromCall) {
    let (head, head_receiver) = oneshot::channel();
    let (body, body_receiver) = mpsc::channel(PIECES_IN_FLIGHT);
    let whole = Arc::new(AtomicBool::new(false));
    let to_client = ToClient { answer: Some(head), waiting_head: None, body, whole: whole.clone() };
    (to_client, FromCall { head: head_receiver, body: body_receiver, whole })
}

/// A header that names the record of a call.
pub(super) fn request_id_header(request_id: RequestId) -> (HeaderName, HeaderValue) {
    let value = HeaderValue::from_str(&request_id.to_string());
    (REQUEST_ID, value.unwrap_or(HeaderValue::from_static("")))
}

impl ToClient {
    /// Answers with an error of our own, in place of any answer of the provider.
    pub(super) fn refuse(&mut self, error: ApiError) {
        if let Some(answer) = self.answer.take() {
            // Nobody may be there to hear it.
            let _ = answer.send(Err(error));
        }
    }

    /// Answers with the provider's head: at once where the body has no length, as streams have
    /// none and their client waits for a sign; else with the first piece.
    pub(super) fn head(&mut self, head: Head) -> Result<(), ClientLeft> {
        let is_stream = head.length.is_none();
        self.waiting_head = Some(head);
        if is_stream { self.release_head() } else { Ok(()) }
    }

    /// Sends the head if it still waits.
    pub(super) fn release_head(&mut self) -> Result<(), ClientLeft> {
        match (self.waiting_head.take(), self.answer.take()) {
            (Some(head), Some(answer)) => answer.send(Ok(head)).map_err(|_| ClientLeft),
            (_, answer) => {
                self.answer = answer;
                Ok(())
            }
        }
    }

    /// Sends a piece of the body, and waits while the client is slow.
    pub(super) async fn piece(&mut self, piece: Bytes) -> Result<(), ClientLeft> {
        if piece.is_empty() {
            return Ok(());
        }
        // The handler runs when this task waits, so it finds head and piece together.
        self.release_head()?;
        self.body.send(piece).await.map_err(|_| ClientLeft)
    }

    /// Ends the answer. The client sees whether all that was sent is the whole of it.
    pub(super) fn end(mut self, whole: bool) {
        self.whole.store(whole, Ordering::Release);
        // A body that had a length and no byte of it has left its head behind. A client that has left
        // needs no telling.
        let _ = self.release_head();
    }

    /// Resolves when the client has left.
    pub(super) async fn left(&self) {
        self.body.closed().await;
    }
}

impl FromCall {
    /// The answer to the client.
    pub(super) async fn response(self) -> Result<HttpResponse, ApiError> {
        let head = self.head.await.unwrap_or_else(|_| {
            Err(ApiError::new(ErrorCode::InternalError, "Something went wrong in the service."))
        })?;
        let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let mut response = HttpResponse::build(status);
        for (name, value) in &head.headers {
            if name != CONTENT_LENGTH {
                response.append_header((name.clone(), value.clone()));
            }
        }
        Ok(match head.length {
            Some(0) => response.finish(),
            length => {
                let (pieces, whole) = (self.body, self.whole);
                response.body(RelayBody { pieces, whole, length, breaking: false })
            }
        })
    }
}

/// The body as it comes from the call. It ends when the call drops its end.
struct RelayBody {
    pieces: mpsc::Receiver<Bytes>,
    whole: Arc<AtomicBool>,
    length: Option<u64>,
    breaking: bool,
}

impl MessageBody for RelayBody {
    type Error = BrokenOff;

    fn size(&self) -> BodySize {
        self.length.map_or(BodySize::Stream, BodySize::Sized)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        if self.breaking {
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        match ready!(self.pieces.poll_recv(cx)) {
            Some(piece) => Poll::Ready(Some(Ok(piece))),
            None if !self.whole.load(Ordering::Acquire) => {
                // The server drops what it has not written yet when a body fails: it is given one
                // turn to write first.
                self.breaking = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }
}
