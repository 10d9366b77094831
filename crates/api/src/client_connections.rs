//! Connections of clients, of which those on which nothing goes on are closed.
//!
//! The server itself bounds how long the head of a connection's first request may take, and how long a
//! connection may be idle. What it does not bound is left to this: the head of a later request, and
//! the rest of a body that nobody reads because its call was refused. Both can be sent a byte at a
//! time for ever.

use std::any::Any;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::Error;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Extensions, ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::rt::net::TcpStream;
use bytes::Bytes;
use tokio::time::Instant;
use tollgate_metrics::Gauge;

use crate::access::{Access, AccessLog};
use crate::http::error::ErrorCode;

/// All connections of a server.
#[derive(Clone)]
pub(crate) struct Connections {
    all: Arc<Mutex<Vec<Weak<Connection>>>>,
    open: Arc<Gauge>,
}

/// One of them.
struct Connection {
    /// Another handle of its socket. The server's own is out of reach.
    socket: std::net::TcpStream,
    activity: Mutex<Activity>,
    _open: Open,
}

/// A connection that counts as open until this is dropped.
struct Open(Arc<Gauge>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct Activity {
    /// Requests that are being answered.
    running: usize,
    /// When the last of them began or ended.
    since: Instant,
}

impl Connections {
    /// None yet; how many are open is counted there.
    pub(crate) fn new(open: Arc<Gauge>) -> Self {
        Self { all: Arc::default(), open }
    }

    /// Remembers a connection for as long as it stands.
    pub(crate) fn add(&self, io: &dyn Any, extensions: &mut Extensions) {
        let encrypted = io.downcast_ref::<TlsStream<TcpStream>>().map(|io| io.get_ref().0);
        let Some(stream) = io.downcast_ref::<TcpStream>().or(encrypted) else { return };
        keep_little_unsent(stream);
        let Ok(socket) = stream.as_fd().try_clone_to_owned() else { return };
        let activity = Activity { running: 0, since: Instant::now() };
        self.open.inc();
        let connection = Arc::new(Connection {
            socket: socket.into(),
            activity: Mutex::new(activity),
            _open: Open(self.open.clone()),
        });
        lock(&self.all).push(Arc::downgrade(&connection));
        // It lives as long as the server's side of the connection does.
        extensions.insert(connection);
    }

    /// Closes what has been idle for longer than `patience`, until the server is gone.
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
                connection.inspect(|connection| connection.close_after(patience)).is_some()
            });
        }
    }
}

impl Connection {
    fn close_after(&self, patience: Duration) {
        let activity = lock(&self.activity);
        if activity.running == 0 && activity.since.elapsed() > patience {
            // It may have been closed from the other side.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

/// Has the system take no more than it can send soon. Left to itself it takes megabytes for each
/// client that reads slowly, and nobody sees for minutes whether that one still reads.
fn keep_little_unsent(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    {
        const MOST_UNSENT_BYTES: u32 = 128 * 1024;
        // Without it answers pass all the same.
        let _ = socket2::SockRef::from(stream).set_tcp_notsent_lowat(MOST_UNSENT_BYTES);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that is being answered; it counts until this is dropped.
struct Running(Arc<Connection>);

impl Running {
    fn on(connection: &Arc<Connection>) -> Self {
        let mut activity = lock(&connection.activity);
        *activity = Activity { running: activity.running.saturating_add(1), since: Instant::now() };
        Self(connection.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut activity = lock(&self.0.activity);
        *activity = Activity { running: activity.running.saturating_sub(1), since: Instant::now() };
    }
}

/// Has a request count as being answered until its answer's last byte was taken, and its access line know
/// how long that took.
pub(crate) async fn track(
    log: Option<AccessLog>,
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<Tracked>, Error> {
    let running = request.conn_data::<Arc<Connection>>().map(Running::on);
    let access = Access::begin(&request, log);
    let response = next.call(request).await?;
    let error = response.response().extensions().get::<ErrorCode>().copied();
    access.answered(|| response.request().match_pattern(), response.status().as_u16(), error);
    Ok(response.map_body(|_, body| Tracked { body, access, _running: running }))
}

/// The body of an answer.
pub(crate) struct Tracked {
    body: BoxBody,
    access: Access,
    _running: Option<Running>,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.access.left();
    }
}

impl MessageBody for Tracked {
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
