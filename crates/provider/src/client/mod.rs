//! The client that forwards calls to providers. Each worker has one.
//!
//! It speaks HTTP/1.1 only: one connection carries one call. So a broken connection costs one call,
//! an idle connection can be checked before its use, and no stream waits for the window of another.
//!
//! The consequence of a failure for the money depends on one fact: whether the provider may have
//! seen the call. Until a connection is ready, nothing is written: [`SendError::NotSent`]. From the
//! first written byte on, it is unknown how much the provider has processed:
//! [`SendError::NoAnswer`]. Nothing is tried twice, even if a pooled connection turns out to be
//! closed: the provider may have read the POST before.

mod awc_workarounds;
mod connect;
mod error;
mod fetch;
mod mask;
mod request_body;
mod resolver;
mod socket;
mod webhook;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use awc::ClientResponse;
use awc::error::PayloadError;
use awc::http::Method;
use awc::http::header::{self, HeaderMap};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, Sleep, sleep_until};

use self::awc_workarounds::{CleanClose, CountedBody};
use self::connect::{ConnectionClass, client};
use self::error::send_error;
pub use self::error::{BodyError, NotSentReason, SendError};
pub use self::fetch::{FetchError, fetch};
use self::mask::KeyMask;
pub use self::request_body::{FileBody, RequestBody};
pub use self::resolver::{NameServer, Resolver};
pub use self::socket::{
    CloseCode, CloseReason, MessageDecoder, MessageEncoder, ProviderSocket, SocketFault,
    SocketMessage, SocketOpenError, SocketReader, SocketWriter, UpstreamSocket,
};
pub use self::webhook::{
    WebhookClient, WebhookResponse, WebhookUrl, WebhookUrlError, WebhookUrlPolicy,
};
use crate::table::Endpoint;

/// The timeouts of a call.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The time for the connection: name, TCP and TLS together.
    pub connect: Duration,
    /// The time from the first written byte to the head of the answer.
    pub first_byte: Duration,
    /// The time between two pieces of the body.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(600),
            idle: Duration::from_secs(300),
        }
    }
}

/// A call to be sent.
pub struct UpstreamRequest<'a> {
    /// The target.
    pub endpoint: &'a Endpoint,
    /// The method.
    pub method: Method,
    /// The headers, as [`request_headers`](crate::request_headers) makes them.
    pub headers: HeaderMap,
    /// The body.
    pub body: RequestBody,
    /// Whether the operator's key is sent. It is then blanked in the answer.
    pub managed: bool,
}

/// Sends calls to providers. Not `Send`: each worker has its own, with its own idle connections.
/// Clones share them.
#[derive(Clone)]
pub struct ProviderClient {
    timeouts: Timeouts,
    calls: ClientSet,
    /// No connection of a call becomes a WebSocket.
    sockets: ClientSet,
}

/// Three clients: a connection to a private address that one provider is allowed to make must not be
/// taken from the pool by another that is not.
#[derive(Clone)]
struct ClientSet {
    /// TLS to public addresses only.
    public: awc::Client,
    /// TLS to any address.
    private: awc::Client,
    /// Plain HTTP to any address.
    plain: awc::Client,
}

impl ClientSet {
    fn of_endpoint(&self, endpoint: &Endpoint) -> &awc::Client {
        let https = endpoint.url.scheme() == "https";
        match (https, endpoint.provider.allow_private_network) {
            (true, false) => &self.public,
            (true, true) => &self.private,
            (false, _) => &self.plain,
        }
    }
}

impl ProviderClient {
    /// A client without connections, which resolves names by the system.
    pub fn new(timeouts: Timeouts) -> Self {
        Self::with_resolver(timeouts, &Resolver::System)
    }

    /// As [`ProviderClient::new`], with another resolver.
    pub fn with_resolver(timeouts: Timeouts, resolver: &Resolver) -> Self {
        let tls = connect::tls_config();
        let client = |lane| client(lane, &tls, resolver, timeouts.connect);
        let clients = |socket| ClientSet {
            public: client(ConnectionClass { tls: true, private: false, socket }),
            private: client(ConnectionClass { tls: true, private: true, socket }),
            plain: client(ConnectionClass { tls: false, private: true, socket }),
        };
        Self { timeouts, calls: clients(false), sockets: clients(true) }
    }

    /// Sends a call and waits for the head of the answer.
    ///
    /// # Errors
    /// [`SendError`] says whether the provider may have seen the call.
    pub async fn send(&self, call: UpstreamRequest<'_>) -> Result<UpstreamResponse, SendError> {
        let (target, host) = call.endpoint.target.clone();
        let bodiless = call.method == Method::HEAD;
        let mut request =
            self.calls.of_endpoint(call.endpoint).request(call.method, target).no_decompress();
        *request.headers_mut() = call.headers;
        request.headers_mut().insert(header::HOST, host);

        let (sending, deadline) = if call.body.len() == 0 {
            // A connection is ready after `connect` at most. After both times, only the answer can
            // be missing.
            (request.send(), HeadDeadline::After(self.timeouts.connect + self.timeouts.first_byte))
        } else {
            let started = Rc::new(Cell::new(false));
            let body = CountedBody::new(call.body, Rc::clone(&started));
            (request.send_body(body), HeadDeadline::AfterStart(started, self.timeouts.first_byte))
        };
        let response = tokio::select! {
            biased;
            result = sending => result.map_err(|error| send_error(&error))?,
            // It is polled after each write, because the sending comes before it in this `select!`.
            () = deadline.passed() => return Err(SendError::NoAnswer { timed_out: true }),
        };
        let framing = Framing::of(&response, bodiless);
        let key = call.endpoint.provider.api_key().filter(|_| call.managed);
        let mask = key.and_then(KeyMask::of);
        Ok(UpstreamResponse::new(response, self.timeouts.idle, framing, mask))
    }

    /// Opens a WebSocket.
    ///
    /// # Errors
    /// [`SocketOpenError`]: none is open, and nothing was sent on one.
    pub async fn open_socket(
        &self,
        socket: UpstreamSocket<'_>,
    ) -> Result<ProviderSocket, SocketOpenError> {
        let client = self.sockets.of_endpoint(socket.endpoint);
        socket::open(client, self.timeouts.connect, socket).await
    }
}

/// The end of the wait for the head of an answer.
enum HeadDeadline {
    After(Duration),
    /// This time after the first byte of the body is taken for writing.
    AfterStart(Rc<Cell<bool>>, Duration),
}

impl HeadDeadline {
    async fn passed(self) {
        match self {
            Self::After(wait) => tokio::time::sleep(wait).await,
            Self::AfterStart(started, wait) => {
                let start = || if started.get() { Poll::Ready(()) } else { Poll::Pending };
                poll_fn(|_| start()).await;
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// The initial capacity for the headers of an answer.
const USUAL_HEADERS: usize = 12;

/// The answer of a provider.
pub struct UpstreamResponse {
    /// The HTTP status.
    pub status: u16,
    /// All headers as received, with the operator's key blanked.
    pub headers: HeaderMap,
    response: Option<ClientResponse>,
    framing: Framing,
    silence: IdleTimer,
    mask: Option<KeyMask>,
}

impl UpstreamResponse {
    fn new(
        response: ClientResponse,
        idle: Duration,
        framing: Framing,
        mut mask: Option<KeyMask>,
    ) -> Self {
        // The headers are moved out of the answer. Only its body is read from here on.
        let mut headers = HeaderMap::with_capacity(USUAL_HEADERS);
        let response = response.map_body(|head, body| {
            std::mem::swap(&mut headers, &mut head.headers);
            body
        });
        if let Some(mask) = &mut mask {
            mask.headers(&mut headers);
        }
        Self {
            status: response.status().as_u16(),
            framing,
            headers,
            response: Some(response),
            silence: IdleTimer { most: idle, since: None, timer: None },
            mask,
        }
    }

    /// The number of times that the operator's key was blanked since the last call.
    pub fn take_masked(&mut self) -> u64 {
        self.mask.as_mut().map_or(0, |mask| std::mem::take(&mut mask.found))
    }

    /// The next piece of the body as received, with the operator's key blanked. `None` after the
    /// last piece, and after an error.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`UpstreamResponse::next`], for a caller that polls something else too.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let Some(response) = &mut self.response else { return Poll::Ready(None) };
        let error = match response.poll_next_unpin(cx) {
            Poll::Ready(Some(Ok(piece))) => {
                self.silence.since = None;
                let Some(mask) = &mut self.mask else { return Poll::Ready(Some(Ok(piece))) };
                let passes = mask.piece(piece);
                if passes.is_empty() {
                    // All of it may be the start of a key.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                return Poll::Ready(Some(Ok(passes)));
            }
            Poll::Ready(None) => None,
            Poll::Ready(Some(Err(error))) => match self.framing {
                Framing::UntilClosed if is_end(&error) => None,
                _ => Some(BodyError::Broken),
            },
            Poll::Pending => {
                ready!(self.silence.poll_too_long(cx));
                Some(BodyError::TimedOut)
            }
        };
        // Dropping an answer that is not read to its end closes the connection.
        self.response = None;
        let rest = self.mask.as_mut().map(KeyMask::rest).filter(|rest| !rest.is_empty());
        match (rest, error) {
            (Some(rest), None) => Poll::Ready(Some(Ok(rest))),
            (_, error) => Poll::Ready(error.map(Err)),
        }
    }
}

/// The time since the last piece. The timer is not set for each piece: when it fires, it is
/// postponed by the pieces that came in the meantime.
struct IdleTimer {
    most: Duration,
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    fn poll_too_long(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = *self.since.get_or_insert_with(Instant::now) + self.most;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}

/// The way in which the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// Its length or its last chunk; or there is no body.
    Stated,
    /// The end of the connection.
    UntilClosed,
}

impl Framing {
    /// The framing of an answer. `bodiless` says that the call requested no body.
    fn of(response: &ClientResponse, bodiless: bool) -> Self {
        let headers = response.headers();
        let stated = headers.contains_key(header::CONTENT_LENGTH)
            || headers.get(header::TRANSFER_ENCODING).is_some_and(|coding| {
                coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")
            });
        let no_body = bodiless || matches!(response.status().as_u16(), 204 | 304);
        if stated || no_body { Self::Stated } else { Self::UntilClosed }
    }
}

fn is_end(error: &PayloadError) -> bool {
    let cause = match error {
        PayloadError::Io(cause) | PayloadError::Incomplete(Some(cause)) => cause,
        _ => return false,
    };
    cause.get_ref().is_some_and(|cause| cause.is::<CleanClose>())
}
