//! The watchdog of the connections to PostgreSQL: it closes those on which no answer comes.
//!
//! A thread that waits for libpq waits as long as the socket is open. The kernel notices a server that has vanished. It
//! notices neither a server that takes a statement and does nothing, nor a proxy that has forgotten the connection.
//!
//! libpq bounds the time of a handshake, but not that of the statements that end the opening of a connection. The watchdog
//! does.
//!
//! A statement may take long. So the watchdog asks the server on a connection of its own which sessions have a statement
//! (`pg_stat_activity`). A connection whose thread waits, and whose session has none, is closed after the timeout. So is
//! each one that waits while the server does not answer the watchdog either.

use std::collections::HashSet;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use diesel::connection::{Instrumentation, InstrumentationEvent, get_default_instrumentation};
use diesel::pg::PgConnection;
use diesel::prelude::*;
use diesel::sql_types::{Array, Integer};
use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, shutdown};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::postgres_url::PostgresUrl;

/// A watchdog. Clones share it. It ends with the last one.
#[derive(Clone, Debug)]
pub(crate) struct Watchdog(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    /// The longest wait for an answer.
    timeout: Duration,
    connections: Mutex<Vec<Weak<Mutex<WatchedConnection>>>>,
    openings: Mutex<Vec<Weak<Opening>>>,
}

/// A connection that is being opened.
#[derive(Debug)]
struct Opening {
    url: String,
    /// The sockets of this process that were there before.
    before: HashSet<Socket>,
    /// The time at which it is given up.
    until: Instant,
    is_given_up: AtomicBool,
}

impl Opening {
    /// The sockets that may be its own.
    fn sockets(&self) -> impl Iterator<Item = Socket> {
        sockets().filter(|socket| !self.before.contains(socket) && socket.leads_to(&self.url))
    }
}

#[derive(Debug)]
struct WatchedConnection {
    /// Its socket, or those of several connections that were opened at once.
    sockets: Vec<Socket>,
    /// The server's number of the session, if it has said it.
    session: Option<i32>,
    /// The time since which the thread of the connection waits. A server that works on the statement renews it.
    waits_since: Option<Instant>,
}

/// A socket of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Socket {
    descriptor: RawFd,
    /// Another socket may get the same descriptor later, and has another inode.
    inode: u64,
}

/// The opening of a connection. libpq does not name its socket. It is the one to a server of the URL that was not there
/// before, so connections are opened one at a time, unless that takes long.
static OPENING: Mutex<()> = Mutex::new(());

/// The watchdogs of this process. A socket that one of them watches is not that of an opening.
static WATCHDOGS: Mutex<Vec<Weak<Watched>>> = Mutex::new(Vec::new());

impl Watchdog {
    /// A watchdog for connections to `url`, by which it asks.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if a thread cannot be started.
    pub(crate) fn start(url: &str, timeout: Duration) -> Result<Self, StoreError> {
        let watched = Arc::new(Watched {
            timeout,
            connections: Mutex::default(),
            openings: Mutex::default(),
        });
        WATCHDOGS.lock().push(Arc::downgrade(&watched));
        let start = |name: &str, serve: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(serve);
            thread.map(drop).map_err(|cause| StoreError::Unavailable(cause.to_string()))
        };
        let (weak, url) = (Arc::downgrade(&watched), url.to_owned());
        start("postgres-watch", Box::new(move || close_silent(&weak, timeout)))?;
        let weak = Arc::downgrade(&watched);
        start("postgres-ask", Box::new(move || ask(&weak, &url, timeout)))?;
        Ok(Self(watched))
    }

    /// Opens a connection that is watched.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it cannot be opened.
    pub(crate) fn connect(&self, url: &str) -> Result<PgConnection, StoreError> {
        let turn = OPENING.try_lock_for(self.0.timeout / 20);
        let opening = self.0.begin_opening(url);
        let opened = PgConnection::establish(url);
        let mut conn = opened.map_err(|cause| StoreError::Unavailable(cause.to_string()))?;
        let sockets = opening.sockets().collect();
        drop((opening, turn));
        let watched = WatchedConnection { sockets, session: None, waits_since: None };
        let watched = Arc::new(Mutex::new(watched));
        self.0.add(&watched);
        let others = get_default_instrumentation();
        conn.set_instrumentation(WaitInstrumentation { watched: Arc::clone(&watched), others });
        // A statement without a name, which a pooler may give to any session.
        let session: BackendSession =
            diesel::sql_query("SELECT pg_backend_pid() AS session").get_result(&mut conn)?;
        watched.lock().session = Some(session.session);
        Ok(conn)
    }
}

#[derive(QueryableByName)]
struct BackendSession {
    #[diesel(sql_type = Integer)]
    session: i32,
}

/// Notes when the thread of a connection waits.
struct WaitInstrumentation {
    watched: Arc<Mutex<WatchedConnection>>,
    /// The default instrumentation of the process.
    others: Option<Box<dyn Instrumentation>>,
}

impl Instrumentation for WaitInstrumentation {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        match event {
            InstrumentationEvent::StartQuery { .. } => {
                self.watched.lock().waits_since = Some(Instant::now());
            }
            InstrumentationEvent::FinishQuery { .. } => self.watched.lock().waits_since = None,
            _ => {}
        }
        if let Some(others) = &mut self.others {
            others.on_connection_event(event);
        }
    }
}

impl Watched {
    /// Notes that a connection is being opened, for as long as the result lives.
    fn begin_opening(&self, url: &str) -> Arc<Opening> {
        let parsed = PostgresUrl::parse(url).ok();
        let handshake = parsed.and_then(|url| url.opens_within()).unwrap_or_default();
        let until = Instant::now() + handshake + self.timeout;
        let (url, before) = (url.to_owned(), sockets().collect());
        let opening = Opening { url, before, until, is_given_up: AtomicBool::new(false) };
        let opening = Arc::new(opening);
        self.openings.lock().push(Arc::downgrade(&opening));
        opening
    }

    /// Closes the connections that are being opened and have taken too long. Another one that is being opened may be closed
    /// with them.
    fn close_openings(&self) {
        let mut openings = self.openings.lock();
        openings.retain(|opening| opening.strong_count() > 0);
        let late: Vec<_> = openings.iter().filter_map(Weak::upgrade).collect();
        drop(openings);
        for opening in late.iter().filter(|opening| opening.until < Instant::now()) {
            if opening.is_given_up.swap(true, Ordering::Relaxed) {
                continue;
            }
            let mut watchdogs = WATCHDOGS.lock();
            watchdogs.retain(|watchdog| watchdog.strong_count() > 0);
            let watchdogs: Vec<_> = watchdogs.iter().filter_map(Weak::upgrade).collect();
            let known: HashSet<Socket> = watchdogs
                .iter()
                .flat_map(|watchdog| watchdog.connections())
                .flat_map(|connection| connection.lock().sockets.clone())
                .collect();
            let sockets = opening.sockets().filter(|socket| !known.contains(socket));
            sockets.for_each(Socket::shut_down);
            log::warn!("PostgreSQL has not answered while a connection was opened: it is closed");
        }
    }

    /// Adds a connection. A socket that is known to be that of one connection is that of no other.
    fn add(&self, new: &Arc<Mutex<WatchedConnection>>) {
        self.connections.lock().push(Arc::downgrade(new));
        let connections = self.connections();
        loop {
            let known: HashSet<Socket> = connections
                .iter()
                .filter_map(|connection| match connection.lock().sockets[..] {
                    [socket] => Some(socket),
                    _ => None,
                })
                .collect();
            let removed = connections.iter().filter(|connection| {
                let sockets = &mut connection.lock().sockets;
                let before = sockets.len();
                if before > 1 {
                    sockets.retain(|socket| socket.is_open() && !known.contains(socket));
                }
                sockets.len() < before
            });
            if removed.count() == 0 {
                break;
            }
        }
    }

    fn connections(&self) -> Vec<Arc<Mutex<WatchedConnection>>> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.iter().filter_map(Weak::upgrade).collect()
    }
}

impl WatchedConnection {
    fn has_waited(&self, time: Duration) -> bool {
        self.waits_since.is_some_and(|since| since.elapsed() > time)
    }
}

/// Closes the connections that have waited too long, until the watchdog ends.
fn close_silent(watched: &Weak<Watched>, timeout: Duration) {
    while let Some(watched) = watched.upgrade() {
        watched.close_openings();
        for connection in watched.connections() {
            // Its thread waits for as long as this is locked, so the descriptor is still that of its socket. If it is
            // not known which one that is, closing another one costs a statement that is tried again.
            let mut connection = connection.lock();
            if connection.has_waited(timeout) {
                connection.waits_since = None;
                connection.sockets.iter().for_each(|socket| socket.shut_down());
                log::warn!(
                    "PostgreSQL has not answered for {} ms: the connection is closed",
                    timeout.as_millis()
                );
            }
        }
        drop(watched);
        std::thread::sleep(timeout / 20);
    }
}

/// Asks the server for the sessions that work, while a connection waits, until the watchdog ends.
fn ask(watched: &Weak<Watched>, url: &str, timeout: Duration) {
    let mut conn = None;
    while let Some(watched) = watched.upgrade().map(Watchdog) {
        let waiting: Vec<_> = watched
            .0
            .connections()
            .into_iter()
            .filter(|connection| connection.lock().has_waited(timeout / 5))
            .collect();
        let sessions: Vec<i32> =
            waiting.iter().filter_map(|connection| connection.lock().session).collect();
        let asked = Instant::now();
        conn = match (sessions.is_empty(), conn) {
            (true, _) => None,
            (false, None) => watched.connect(url).ok(),
            (false, conn) => conn,
        };
        // A server that refuses another connection is not silent. One that has not named a session yet may be.
        if conn.is_none() && asked.elapsed() < timeout / 2 {
            for connection in &waiting {
                let mut connection = connection.lock();
                if connection.session.is_some() {
                    connection.waits_since = connection.waits_since.map(|since| asked.max(since));
                }
            }
        }
        if let Some(open) = &mut conn {
            let asked = Instant::now();
            match idle_sessions(open, &sessions) {
                Ok(idle) => {
                    for connection in &waiting {
                        let mut connection = connection.lock();
                        let works = connection.session.is_some_and(|one| !idle.contains(&one));
                        // It may have its answer by now, or wait for the next one.
                        if works && let Some(since) = &mut connection.waits_since {
                            *since = asked.max(*since);
                        }
                    }
                }
                Err(_) => conn = None,
            }
        }
        drop(watched);
        std::thread::sleep(timeout / 10);
    }
}

/// Those of some sessions that have no statement, or have ended.
fn idle_sessions(conn: &mut PgConnection, sessions: &[i32]) -> QueryResult<HashSet<i32>> {
    let idle: Vec<BackendSession> = diesel::sql_query(
        "SELECT session FROM unnest($1) session LEFT JOIN pg_stat_activity ON pid = session \
         WHERE pid IS NULL OR state LIKE 'idle%'",
    )
    .bind::<Array<Integer>, _>(sessions)
    .load(conn)?;
    Ok(idle.into_iter().map(|row| row.session).collect())
}

/// The descriptors of this process that may be sockets.
fn sockets() -> impl Iterator<Item = Socket> {
    let files = std::fs::read_dir("/dev/fd").into_iter().flatten().flatten();
    files.filter_map(|file| {
        let descriptor = file.file_name().to_str()?.parse().ok()?;
        Socket::of(descriptor)
    })
}

impl Socket {
    fn of(descriptor: RawFd) -> Option<Self> {
        let inode = std::fs::metadata(format!("/dev/fd/{descriptor}")).ok()?.ino();
        Some(Self { descriptor, inode })
    }

    /// Whether it is connected with a server of this URL.
    fn leads_to(self, url: &str) -> bool {
        let Ok(PostgresUrl { servers, .. }) = PostgresUrl::parse(url) else { return false };
        let Ok(peer) = getpeername::<SockaddrStorage>(self.descriptor) else { return false };
        let path = peer.as_unix_addr().and_then(|peer| peer.path());
        let port = peer.as_sockaddr_in().map(|peer| peer.port());
        let port = port.or_else(|| peer.as_sockaddr_in6().map(|peer| peer.port()));
        servers.iter().any(|server| match server.is_socket() {
            true => path.is_some_and(|path| server.is_at(path)),
            false => port == Some(server.port),
        })
    }

    fn is_open(self) -> bool {
        Self::of(self.descriptor) == Some(self)
    }

    fn shut_down(self) {
        if self.is_open() {
            // A socket that is closed already needs no more.
            let _ = shutdown(self.descriptor, Shutdown::Both);
        }
    }
}
