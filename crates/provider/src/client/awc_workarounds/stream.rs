//! The byte stream of a connection: an end is an error, and interim heads are removed.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_rt::net::{ActixStream, Ready, TcpStream};
use actix_tls::connect::rustls_0_23::reexports::AsyncTlsStream;
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::head::{MAX_HEAD_BYTES, mark_if_closed_at_end};
use super::interim::InterimHeadFilter;

/// A connection to a provider, on which an end is an error and no interim head is seen.
///
/// The HTTP/1 codec below awc takes the end of a connection for the end of a body, even if
/// `content-length` or the last chunk say that more is to come. A cut answer would look whole. As
/// an error, the end is noticed; [`UpstreamResponse`](super::super::UpstreamResponse) accepts it for a body that has no
/// other end. [`InterimHeadFilter`] says why interim heads are removed.
#[derive(Debug)]
pub(in super::super) struct ProviderStream {
    transport: Transport,
    /// Whether a switch of protocols is requested: then all bytes pass as they are.
    is_socket: bool,
    start: InterimHeadFilter,
    /// The final head, and the bytes after it, until the head is whole.
    head: Option<Vec<u8>>,
    /// The bytes of `head` once it is whole, if they had to be moved. They are read first.
    ahead: Bytes,
}

/// An end of the connection that the provider announced. A TLS connection that ends otherwise may
/// have been cut.
#[derive(Debug)]
pub(in super::super) struct CleanClose;

impl fmt::Display for CleanClose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection has ended")
    }
}

impl Error for CleanClose {}

#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Tls(Box<AsyncTlsStream<TcpStream>>),
}

impl ProviderStream {
    pub(in super::super) fn plain(tcp: TcpStream) -> Self {
        Self::over(Transport::Plain(tcp))
    }

    pub(in super::super) fn tls(tls: AsyncTlsStream<TcpStream>) -> Self {
        Self::over(Transport::Tls(Box::new(tls)))
    }

    fn over(transport: Transport) -> Self {
        Self {
            transport,
            is_socket: false,
            start: InterimHeadFilter::default(),
            head: None,
            ahead: Bytes::new(),
        }
    }

    /// The connection for a WebSocket.
    pub(in super::super) fn for_socket(self) -> Self {
        Self { is_socket: true, ..self }
    }

    fn tcp(&self) -> &TcpStream {
        match &self.transport {
            Transport::Plain(tcp) => tcp,
            Transport::Tls(tls) => tls.get_ref().0,
        }
    }

    /// Moves the bytes that fit out of `ahead`.
    fn read_ahead(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.ahead.len().min(buffer.remaining());
        buffer.put_slice(&self.ahead.split_to(count));
    }
}

/// The most bytes read at once. Bytes that wait for a slow client wait in pieces of this size.
const PIECE_BYTES: usize = 8 * 1024;

impl Transport {
    /// Reads a piece; an end is an error.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining().min(PIECE_BYTES);
        // awc offers as much room as a piece. A larger room is bounded by a buffer that costs
        // zeroing.
        let read = if room == buffer.remaining() {
            let before = buffer.filled().len();
            ready!(self.poll_read_into(cx, buffer))?;
            buffer.filled().len().saturating_sub(before)
        } else {
            let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(room));
            ready!(self.poll_read_into(cx, &mut piece))?;
            let read = piece.filled().len();
            buffer.advance(read);
            read
        };
        if room > 0 && read == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, CleanClose)));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read_into(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncRead for ProviderStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.has_remaining() {
            this.read_ahead(buffer);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        while !this.start.is_passing() && buffer.remaining() > 0 {
            ready!(this.transport.poll_read(cx, buffer))?;
            let bytes = buffer.filled().get(before..).unwrap_or_default();
            let found = this.start.find(bytes);
            if let Ok(Some(at)) = found {
                let held = this.start.take_held();
                let is_first = at == 0 && held.is_empty();
                let read = buffer.filled_mut().get_mut(before..).unwrap_or_default();
                // Most heads come whole, and are not moved.
                if is_first && mark_if_closed_at_end(read) {
                    return Poll::Ready(Ok(()));
                }
                let bytes = read.get(at..).unwrap_or_default();
                this.head = Some([held.as_slice(), bytes].concat());
                buffer.set_filled(before);
                break;
            }
            buffer.set_filled(before);
            found?;
        }
        while let Some(head) = &mut this.head {
            if mark_if_closed_at_end(head) || head.len() > MAX_HEAD_BYTES {
                this.ahead = std::mem::take(head).into();
                this.head = None;
                this.read_ahead(buffer);
                return Poll::Ready(Ok(()));
            }
            ready!(this.transport.poll_read(cx, buffer))?;
            head.extend_from_slice(buffer.filled().get(before..).unwrap_or_default());
            buffer.set_filled(before);
        }
        this.transport.poll_read(cx, buffer)
    }
}

impl AsyncWrite for ProviderStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.is_socket {
            this.start.expect();
        }
        match &mut this.transport {
            Transport::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Transport::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Transport::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Transport::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

impl ActixStream for ProviderStream {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_read_ready(self.tcp(), cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_write_ready(self.tcp(), cx)
    }
}
