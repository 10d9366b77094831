//! The body of a call to a provider, in pieces, with a mark for the start of its writing.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use awc::body::{BodySize, MessageBody};
use bytes::Bytes;
use futures_util::StreamExt;

use super::super::request_body::{PIECE_BYTES, RequestBody};

/// A request body that marks when its first piece is taken for writing: from then on the provider
/// may have seen the call.
pub(in super::super) struct CountedBody {
    rest: RequestBody,
    length: u64,
    started: Rc<Cell<bool>>,
}

impl CountedBody {
    pub(in super::super) fn new(body: RequestBody, started: Rc<Cell<bool>>) -> Self {
        Self { length: body.len(), rest: body, started }
    }
}

impl MessageBody for CountedBody {
    type Error = io::Error;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.length)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, io::Error>>> {
        self.started.set(true);
        match &mut self.rest {
            RequestBody::Bytes(rest) => {
                let count = rest.len().min(PIECE_BYTES);
                Poll::Ready((count > 0).then(|| Ok(rest.split_to(count))))
            }
            RequestBody::File(file) => file.pieces.poll_next_unpin(cx),
        }
    }
}
