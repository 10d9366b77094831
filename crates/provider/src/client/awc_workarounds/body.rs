//! The body of a call to a provider, in pieces, with a mark for the start of its writing.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use awc::body::{BodySize, MessageBody};
use bytes::Bytes;

/// The size of a piece. awc copies each piece into its write buffer; this keeps the buffer small.
const PIECE_BYTES: usize = 64 * 1024;

/// A request body that marks when its first piece is taken for writing: from then on the provider
/// may have seen the call.
pub(in super::super) struct CountedBody {
    rest: Bytes,
    length: u64,
    started: Rc<Cell<bool>>,
}

impl CountedBody {
    pub(in super::super) fn new(body: Bytes, started: Rc<Cell<bool>>) -> Self {
        let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
        Self { rest: body, length, started }
    }
}

impl MessageBody for CountedBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.length)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        self.started.set(true);
        let count = self.rest.len().min(PIECE_BYTES);
        Poll::Ready((count > 0).then(|| Ok(self.rest.split_to(count))))
    }
}
