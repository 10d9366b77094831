//! The relay between a call's task and the handler that answers its client.
//!
//! Both are tasks of one worker, which is one thread, so the relay needs no lock and no atomic. A stream is
//! many small pieces: pieces that arrive together leave together.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use tollgate_domain::RequestId;
use tollgate_provider::http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::error::CallError;

/// The bytes and pieces that may wait for a slow client before the provider is no longer read.
const BYTES_IN_FLIGHT: usize = 32 * 1024;
const PIECES_IN_FLIGHT: usize = 64;

/// The length up to which pieces are joined. It is that of the longest piece that a provider's connection
/// yields, so joining adds nothing to the server's buffer.
const JOINED_BYTES: usize = 8 * 1024;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-service-request-id");

/// The head of an answer.
#[derive(Debug)]
pub struct RelayedHead {
    /// The provider's status.
    pub status: u16,
    /// The headers for the client.
    pub headers: HeaderMap,
    /// The length of the body, if it is known.
    pub length: Option<u64>,
    /// Whether trailers follow the body.
    pub has_trailers: bool,
}

/// The state that both ends share.
#[derive(Debug, Default)]
struct RelayState {
    head: Option<Result<RelayedHead, CallError>>,
    pieces: VecDeque<Bytes>,
    /// The length of the pieces together.
    bytes: usize,
    /// Whether the answer is whole; `None` while more may come. An answer is whole only if the call states
    /// it: a call may end anywhere, by a panic too.
    ended: Option<bool>,
    /// The trailers of an answer that is whole.
    trailers: HeaderMap,
    client_left: bool,
    /// The waker of the handler, which waits for the call.
    handler: Option<Waker>,
    /// The waker of the call, which waits for the client.
    call: Option<Waker>,
}

impl RelayState {
    fn wake_handler(&mut self) {
        if let Some(waker) = self.handler.take() {
            waker.wake();
        }
    }

    fn is_full(&self) -> bool {
        self.bytes >= BYTES_IN_FLIGHT || self.pieces.len() >= PIECES_IN_FLIGHT
    }

    /// The waiting pieces, as one.
    fn take(&mut self) -> Option<Bytes> {
        let first = self.pieces.pop_front()?;
        let mut piece = first;
        if self.pieces.front().is_some_and(|next| joins(piece.len(), next)) {
            let mut joined = BytesMut::with_capacity(self.bytes.min(JOINED_BYTES));
            joined.extend_from_slice(&piece);
            while self.pieces.front().is_some_and(|next| joins(joined.len(), next))
                && let Some(next) = self.pieces.pop_front()
            {
                joined.extend_from_slice(&next);
            }
            piece = joined.freeze();
        }
        self.bytes = self.bytes.saturating_sub(piece.len());
        if let Some(waker) = self.call.take() {
            waker.wake();
        }
        Some(piece)
    }
}

fn joins(length: usize, next: &Bytes) -> bool {
    length.saturating_add(next.len()) <= JOINED_BYTES
}

/// The end of the relay at the call's task.
pub(crate) struct RelaySender {
    shared: Rc<RefCell<RelayState>>,
    answered: bool,
    /// A head that leaves with the first piece of its body, in one write.
    waiting_head: Option<RelayedHead>,
}

/// The end of the relay at the handler. If it is dropped, the client has left.
#[derive(Debug)]
pub struct RelayReceiver(Rc<RefCell<RelayState>>);

/// The next part of a relayed body.
#[derive(Clone, Debug)]
pub enum RelayedBytes {
    /// Some bytes.
    Piece(Bytes),
    /// The end of an answer that is whole, with its trailers.
    Complete(HeaderMap),
    /// The end of an answer that was broken off, by the provider or by the call.
    Aborted,
}

/// The client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientLeft;

pub(crate) fn channel() -> (RelaySender, RelayReceiver) {
    let shared = Rc::<RefCell<RelayState>>::default();
    let to_client = RelaySender { shared: Rc::clone(&shared), answered: false, waiting_head: None };
    (to_client, RelayReceiver(shared))
}

/// The header with the id of a call's record.
pub fn request_id_header(request_id: RequestId) -> (HeaderName, HeaderValue) {
    let value = HeaderValue::from_str(&request_id.to_string());
    (REQUEST_ID, value.unwrap_or(HeaderValue::from_static("")))
}

/// The room of a relay. All that wait for it and for its sender are of one task: the relay keeps one waker.
pub(crate) struct RelayRoom(Rc<RefCell<RelayState>>);

impl RelayRoom {
    /// Resolves when the client has taken some of the waiting pieces, or has left.
    pub(crate) async fn wait(&self) {
        wait_until(&self.0, |shared| shared.client_left || !shared.is_full()).await;
    }

    /// Resolves when the client has left.
    pub(crate) async fn wait_until_left(&self) {
        wait_until(&self.0, |shared| shared.client_left).await;
    }
}

async fn wait_until(shared: &RefCell<RelayState>, holds: impl Fn(&RelayState) -> bool) {
    poll_fn(|cx| {
        let mut shared = shared.borrow_mut();
        if holds(&shared) {
            return Poll::Ready(());
        }
        shared.call = Some(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

impl RelaySender {
    fn shared(&self) -> RefMut<'_, RelayState> {
        self.shared.borrow_mut()
    }

    fn answer(&mut self, answer: Result<RelayedHead, CallError>) {
        if !std::mem::replace(&mut self.answered, true) {
            let mut shared = self.shared();
            shared.head = Some(answer);
            shared.wake_handler();
        }
    }

    /// Answers with an error of this service, in place of the provider's answer.
    pub(crate) fn refuse(&mut self, error: CallError) {
        self.answer(Err(error));
    }

    /// Answers with the provider's head. It leaves at once if the body has no length, because the client of a
    /// stream waits for a sign; else it leaves with the first piece.
    pub(crate) fn send_head(&mut self, head: RelayedHead) -> Result<(), ClientLeft> {
        let is_stream = head.length.is_none();
        self.waiting_head = Some(head);
        if is_stream { self.release_head() } else { Ok(()) }
    }

    /// Sends the head if it still waits.
    fn release_head(&mut self) -> Result<(), ClientLeft> {
        let Some(head) = self.waiting_head.take() else { return Ok(()) };
        if self.has_left() {
            return Err(ClientLeft);
        }
        self.answer(Ok(head));
        Ok(())
    }

    /// Sends a piece of the body, however slow the client is.
    pub(crate) fn send_piece(&mut self, piece: Bytes) -> Result<(), ClientLeft> {
        if piece.is_empty() {
            return Ok(());
        }
        // The handler runs when this task waits, so it finds head and pieces together.
        self.release_head()?;
        let mut shared = self.shared();
        if shared.client_left {
            return Err(ClientLeft);
        }
        shared.bytes = shared.bytes.saturating_add(piece.len());
        shared.pieces.push_back(piece);
        shared.wake_handler();
        Ok(())
    }

    /// Ends the answer. The client sees whether the answer is whole.
    pub(crate) fn end(mut self, whole: bool, trailers: HeaderMap) {
        self.shared().ended = Some(whole);
        self.shared().trailers = trailers;
        // The head of a body with a length but no bytes still waits. If the client has left, no head is
        // needed.
        let _ = self.release_head();
    }

    /// The room for the client, for one who does not hold the relay while it waits.
    pub(crate) fn room(&self) -> RelayRoom {
        RelayRoom(Rc::clone(&self.shared))
    }

    /// Whether no more may wait for the client.
    pub(crate) fn is_full(&self) -> bool {
        self.shared().is_full()
    }

    /// Resolves when the client has taken some of the waiting pieces, or has left.
    pub(crate) async fn wait_for_room(&self) {
        wait_until(&self.shared, |shared| shared.client_left || !shared.is_full()).await;
    }

    /// Whether the client has left.
    pub(crate) fn has_left(&self) -> bool {
        self.shared().client_left
    }

    /// Resolves when the client has left.
    pub(crate) async fn wait_until_left(&self) {
        wait_until(&self.shared, |shared| shared.client_left).await;
    }
}

impl Drop for RelaySender {
    fn drop(&mut self) {
        let mut shared = self.shared();
        shared.ended.get_or_insert(false);
        shared.wake_handler();
    }
}

impl RelayReceiver {
    /// The head of the answer.
    ///
    /// # Errors
    /// The reason why there is no answer from a provider.
    pub async fn head(&self) -> Result<RelayedHead, CallError> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Result<RelayedHead, CallError>> {
        let mut shared = self.0.borrow_mut();
        match shared.head.take() {
            Some(answer) => Poll::Ready(answer),
            None if shared.ended.is_some() => Poll::Ready(Err(CallError::Aborted)),
            None => {
                shared.handler = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The next bytes of the body, or its end.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<RelayedBytes> {
        let mut shared = self.0.borrow_mut();
        if let Some(piece) = shared.take() {
            return Poll::Ready(RelayedBytes::Piece(piece));
        }
        if let Some(is_whole) = shared.ended {
            return Poll::Ready(match is_whole {
                true => RelayedBytes::Complete(std::mem::take(&mut shared.trailers)),
                false => RelayedBytes::Aborted,
            });
        }
        shared.handler = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for RelayReceiver {
    fn drop(&mut self) {
        let mut shared = self.0.borrow_mut();
        shared.client_left = true;
        if let Some(waker) = shared.call.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn next(from_call: &RelayReceiver) -> Poll<RelayedBytes> {
        from_call.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    fn next_piece(from_call: &RelayReceiver) -> Bytes {
        match next(from_call) {
            Poll::Ready(RelayedBytes::Piece(piece)) => piece,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn pieces_that_wait_leave_as_one_and_long_ones_as_they_are() {
        let (mut to_client, from_call) = channel();
        for text in ["one ", "two ", "", "three"] {
            to_client.send_piece(piece(text)).unwrap();
        }
        let long = Bytes::from(vec![7; JOINED_BYTES]);
        to_client.send_piece(long.clone()).unwrap();
        assert_eq!(next_piece(&from_call), piece("one two three"));
        assert_eq!(next_piece(&from_call), long);
        assert!(next(&from_call).is_pending());
        to_client.end(true, HeaderMap::new());
        assert!(matches!(next(&from_call), Poll::Ready(RelayedBytes::Complete(_))));
    }

    #[test]
    fn no_more_waits_for_a_client_than_may() {
        let (mut to_client, from_call) = channel();
        for piece in [Bytes::from(vec![7; BYTES_IN_FLIGHT - 1]), piece("!")] {
            assert!(!to_client.is_full());
            to_client.send_piece(piece).unwrap();
        }
        assert!(to_client.is_full());
        assert!(next(&from_call).is_ready() && !to_client.is_full());
        assert!(next(&from_call).is_ready() && next(&from_call).is_pending());
        for _ in 0..PIECES_IN_FLIGHT {
            assert!(!to_client.is_full());
            to_client.send_piece(piece("x")).unwrap();
        }
        assert!(to_client.is_full());
    }

    #[test]
    fn a_client_that_has_left_is_noticed_and_a_call_that_is_dropped_is_not_whole() {
        let (mut to_client, from_call) = channel();
        drop(from_call);
        assert!(to_client.has_left());
        assert_eq!(to_client.send_piece(piece("late")), Err(ClientLeft));
        let (to_client, from_call) = channel();
        drop(to_client);
        assert!(matches!(next(&from_call), Poll::Ready(RelayedBytes::Aborted)));
    }
}
