//! Connections of clients: idle ones are closed, and the requests of each are bounded.
//!
//! The server itself bounds the time of the head of a connection's first request, and the time for which a
//! connection may be idle. This file bounds the rest: the head of a later request, and the rest of a body that is
//! not read because its call was refused. Both can be sent a byte at a time without end. The server does not bound
//! the number of requests at once either: over HTTP/2 a client can begin any number of them and read no answer.

use std::any::TypeId;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Extensions, ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::rt::net::TcpStream;
use actix_web::rt::task::JoinHandle;
use actix_web::{Error, HttpMessage, HttpRequest};
use bytes::Bytes;
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::access::{AccessEntry, AccessLog};
use crate::http::error::{ApiError, ErrorCode};
use crate::line_ends::LineEndFilter;

/// All connections of a server.
#[derive(Clone)]
pub(crate) struct ClientConnections {
    all: Arc<Mutex<Vec<Weak<ClientConnection>>>>,
    open: Gauge<u64, AtomicU64>,
    unauthenticated: Arc<AtomicUsize>,
}

/// The most requests of one connection that are answered at once.
const MOST_RUNNING: usize = 1_000;
/// The most of them whose client has shown no valid credential.
const MOST_UNAUTHENTICATED: usize = 250;
/// The most of those on all connections; a few of each connection are answered beyond it.
const MOST_UNAUTHENTICATED_OF_ALL: usize = 1_000;
const FEW_UNAUTHENTICATED: usize = 10;
/// The most requests of one connection that wait, refused ones included. Beyond it the connection is closed.
const MOST_WAITING: usize = 2_000;
const MOST_UNAUTHENTICATED_WAITING: usize = 1_000;
/// The most of those on all connections that wait, refused ones included. Beyond it a connection is closed that has more
/// than some of them and no other request.
const MOST_UNAUTHENTICATED_WAITING_OF_ALL: usize = 2_000;
const SOME_UNAUTHENTICATED: usize = 50;

/// A connection.
struct ClientConnection {
    /// Another handle of its socket. The server's own handle is out of reach.
    socket: std::net::TcpStream,
    /// Whether it speaks TLS.
    is_encrypted: bool,
    /// Whether it was closed from this side. Bytes that came before are not read any more.
    is_closed: AtomicBool,
    activity: Mutex<Activity>,
    /// Requests of all connections whose client has shown no valid credential.
    unauthenticated_of_all: Arc<AtomicUsize>,
    _open: OpenConnectionGuard,
}

/// A connection that counts as open until this is dropped.
struct OpenConnectionGuard(Gauge<u64, AtomicU64>);

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct Activity {
    /// Requests that are being answered.
    running: usize,
    /// Requests whose client has shown no valid credential.
    unauthenticated: usize,
    /// When the last request began or ended.
    since: Instant,
}

impl ClientConnections {
    /// No connections yet; `open` counts the open ones.
    pub(crate) fn new(open: Gauge<u64, AtomicU64>) -> Self {
        Self { all: Arc::default(), open, unauthenticated: Arc::default() }
    }

    /// Takes a client's connection, and watches it for as long as it is open.
    pub(crate) fn accept<Io: 'static>(
        &self,
        io: Io,
        tcp: impl Fn(&Io) -> &TcpStream,
        is_http1: bool,
    ) -> ClientStream<Io> {
        let stream = tcp(&io);
        // Without it a stream of small events stalls for tens of milliseconds.
        let _ = stream.set_nodelay(true);
        keep_little_unsent(stream);
        let connection = stream.as_fd().try_clone_to_owned().ok().map(|socket| {
            let activity = Activity { running: 0, unauthenticated: 0, since: Instant::now() };
            self.open.inc();
            let connection = Arc::new(ClientConnection {
                socket: socket.into(),
                is_encrypted: TypeId::of::<Io>() != TypeId::of::<TcpStream>(),
                is_closed: AtomicBool::new(false),
                activity: Mutex::new(activity),
                unauthenticated_of_all: Arc::clone(&self.unauthenticated),
                _open: OpenConnectionGuard(self.open.clone()),
            });
            lock(&self.all).push(Arc::downgrade(&connection));
            connection
        });
        ClientStream { io, lines: is_http1.then(LineEndFilter::default), pause: None, connection }
    }

    /// Closes connections that are idle for longer than `patience`, until the server is gone.
    pub(crate) async fn watch(self, patience: Duration) {
        const LOOKS_WITHIN_PATIENCE: u32 = 8;
        let connections = Arc::downgrade(&self.all);
        drop(self);
        let mut looks = tokio::time::interval(patience / LOOKS_WITHIN_PATIENCE);
        loop {
            looks.tick().await;
            let Some(connections) = connections.upgrade() else { return };
            lock(&connections).retain(|connection| {
                let connection = connection.upgrade();
                connection.inspect(|connection| connection.close_if_idle(patience)).is_some()
            });
        }
    }
}

impl ClientConnection {
    fn close_if_idle(&self, patience: Duration) {
        let activity = lock(&self.activity);
        if activity.running == 0 && activity.since.elapsed() > patience {
            self.close();
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // The other side may have closed it before.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Whether one more request may be answered. A client that ignores refusals is cut off.
    fn has_room(&self) -> bool {
        let strangers_of_all = self.unauthenticated_of_all.load(Ordering::Relaxed);
        let Activity { running, unauthenticated: strangers, .. } = *lock(&self.activity);
        let is_crowd = strangers_of_all > MOST_UNAUTHENTICATED_WAITING_OF_ALL
            && strangers > SOME_UNAUTHENTICATED
            && strangers == running;
        if running > MOST_WAITING || strangers > MOST_UNAUTHENTICATED_WAITING || is_crowd {
            self.close();
        }
        let too_many_of_all =
            strangers_of_all > MOST_UNAUTHENTICATED_OF_ALL && strangers > FEW_UNAUTHENTICATED;
        running <= MOST_RUNNING && strangers <= MOST_UNAUTHENTICATED && !too_many_of_all
    }
}

/// A client's connection as the server reads and writes it. The lines of its heads are checked, and a closed
/// one is not read.
pub(crate) struct ClientStream<Io> {
    io: Io,
    /// `None` on a connection of HTTP/2.
    lines: Option<LineEndFilter>,
    /// Over HTTP/2, a task that does nothing. It ends when the requests before it have been counted. Before, no more are
    /// read.
    pause: Option<JoinHandle<()>>,
    /// `None` if its socket gave no other handle.
    connection: Option<Arc<ClientConnection>>,
}

impl<Io> ClientStream<Io> {
    /// Makes the connection known to its requests. It lives as long as the server's side of it.
    pub(crate) fn put_into(&self, extensions: &mut Extensions) {
        if let Some(connection) = &self.connection {
            extensions.insert(connection.clone());
        }
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for ClientStream<Io> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let is_closed =
            |connection: &Arc<ClientConnection>| connection.is_closed.load(Ordering::Relaxed);
        if this.connection.as_ref().is_some_and(is_closed) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if let Some(pause) = &mut this.pause {
            // It cannot fail. If the runtime ends, the connection does.
            let _ = ready!(Pin::new(pause).poll(cx));
            this.pause = None;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
        this.pause = this.lines.is_none().then(|| actix_web::rt::spawn(async {}));
        if let Some(lines) = &mut this.lines {
            lines.check(buffer.filled_mut().get_mut(before..).unwrap_or_default());
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for ClientStream<Io> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

/// Limits the unsent bytes in the system's buffer. By default the system takes megabytes for each client that
/// reads slowly, and for minutes it is not seen whether the client still reads.
fn keep_little_unsent(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    {
        const MOST_UNSENT_BYTES: u32 = 128 * 1024;
        // Without it answers still pass.
        let _ = socket2::SockRef::from(stream).set_tcp_notsent_lowat(MOST_UNSENT_BYTES);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that is being answered. It counts until this is dropped.
struct RunningRequest(Arc<ClientConnection>);

impl RunningRequest {
    fn on(connection: &Arc<ClientConnection>) -> Self {
        let mut activity = lock(&connection.activity);
        activity.running = activity.running.saturating_add(1);
        activity.since = Instant::now();
        Self(connection.clone())
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let mut activity = lock(&self.0.activity);
        activity.running = activity.running.saturating_sub(1);
        activity.since = Instant::now();
    }
}

/// A request whose client has shown no valid credential. It counts until this is dropped.
struct UnauthenticatedRequest(Arc<ClientConnection>);

impl UnauthenticatedRequest {
    fn on(connection: &Arc<ClientConnection>) -> Self {
        connection.unauthenticated_of_all.fetch_add(1, Ordering::Relaxed);
        let mut activity = lock(&connection.activity);
        activity.unauthenticated = activity.unauthenticated.saturating_add(1);
        Self(connection.clone())
    }
}

impl Drop for UnauthenticatedRequest {
    fn drop(&mut self) {
        self.0.unauthenticated_of_all.fetch_sub(1, Ordering::Relaxed);
        let mut activity = lock(&self.0.activity);
        activity.unauthenticated = activity.unauthenticated.saturating_sub(1);
    }
}

/// The scheme of the address that this request was sent to, as its client or a proxy states it.
pub fn scheme(request: &HttpRequest) -> String {
    let connection = request.conn_data::<Arc<ClientConnection>>();
    match connection.is_some_and(|connection| connection.is_encrypted) {
        true => "https".to_owned(),
        false => request.connection_info().scheme().to_owned(),
    }
}

/// Notes that the client of this request has shown a valid credential.
pub fn mark_authenticated(request: &impl HttpMessage) {
    request.extensions_mut().remove::<UnauthenticatedRequest>();
}

fn too_many(request: &ServiceRequest) -> ApiError {
    let message = "Too many requests of this connection wait for their answers. Try again.";
    let error = ApiError::new(ErrorCode::Overloaded, message).retry_after(1_000_000);
    error.for_sdk_of(request.request())
}

/// Counts a request until the last byte of its answer is taken. Its access line gets the time of that.
pub(crate) async fn track(
    log: Option<AccessLog>,
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<TrackedBody>, Error> {
    let connection = request.conn_data::<Arc<ClientConnection>>().cloned();
    let running = connection.as_ref().map(RunningRequest::on);
    let access = AccessEntry::begin(&request, log);
    let mut has_room = true;
    if let Some(connection) = &connection {
        request.extensions_mut().insert(UnauthenticatedRequest::on(connection));
        has_room = connection.has_room();
    }
    let response = match has_room {
        true => next.call(request).await?,
        false => {
            let refusal = too_many(&request);
            request.error_response(refusal)
        }
    };
    let stranger = response.request().extensions_mut().remove::<UnauthenticatedRequest>();
    let error = response.response().extensions().get::<ErrorCode>().copied();
    access.answered(|| response.request().match_pattern(), response.status().as_u16(), error);
    Ok(response.map_body(|_, body| TrackedBody {
        body,
        access,
        _running: running,
        _stranger: stranger,
    }))
}

/// The body of an answer, with the counts that end with it.
pub(crate) struct TrackedBody {
    body: BoxBody,
    access: AccessEntry,
    _running: Option<RunningRequest>,
    _stranger: Option<UnauthenticatedRequest>,
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.access.left();
    }
}

impl MessageBody for TrackedBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}
