//! The server, as production and tests start it.

use std::io;
use std::net::SocketAddr;

use actix_web::dev::Server;
use actix_web::middleware::{Condition, from_fn};
use actix_web::{App as Routes, HttpServer, web};

use crate::app::{App, InterfaceShape};
use crate::client_connections::{self, Connections};
use crate::http::earlier::serve_earlier_names;
use crate::routes::routes;
use crate::tls::Tls;

/// A server that is bound; it serves when it is awaited or spawned.
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// What serves.
    pub server: Server,
}

/// Binds a server to `address`; port 0 picks a free one. Signals are the caller's to handle. It must
/// be called within a runtime of tokio's.
///
/// # Errors
/// Those of the operating system, such as an address that is taken.
pub fn listen(app: web::Data<App>, address: &str) -> io::Result<Listening> {
    bind(app, address, None)
}

/// The same, for clients that speak TLS and no others.
///
/// # Errors
/// As [`listen`].
pub fn listen_tls(app: web::Data<App>, address: &str, tls: &Tls) -> io::Result<Listening> {
    bind(app, address, Some(tls))
}

fn bind(app: web::Data<App>, address: &str, tls: Option<&Tls>) -> io::Result<Listening> {
    let clients = app.settings.clients;
    let connections = Connections::new(app.metrics.connections.clone());
    // A client that takes nothing for as long as a provider may be silent counts as gone.
    let patience = app.settings.timeouts.idle.max(clients.keep_alive + clients.head_timeout);
    tokio::spawn(connections.clone().watch(patience));
    let workers = app.settings.workers;
    let routes = move || {
        let is_earlier = app.settings.shape == InterfaceShape::Earlier;
        let log = app.settings.access_log;
        Routes::new()
            .wrap(from_fn(move |request, next| client_connections::track(log, request, next)))
            .wrap(Condition::new(is_earlier, from_fn(serve_earlier_names)))
            .configure(routes(app.clone()))
    };
    let server = HttpServer::new(routes)
        .workers(workers.get())
        .on_connect(move |io, extensions| connections.add(io, extensions))
        // What waits in it for a slow client is memory of ours.
        .h1_write_buffer_size(16 * 1024)
        .client_request_timeout(clients.head_timeout)
        .keep_alive(clients.keep_alive)
        .max_connections(clients.max_connections.div_ceil(workers.get()))
        // Without it a stream of small events stalls for tens of milliseconds.
        .tcp_nodelay(true)
        // A client that closes has left: its call is drained or cancelled from then on.
        .h1_allow_half_closed(false)
        .disable_signals()
        .shutdown_timeout(5);
    let server = match tls {
        None => server.bind(address),
        Some(tls) => server.bind_rustls_0_23(address, tls.config()),
    }?;
    let address = server.addrs().first().copied();
    let address = address.ok_or_else(|| io::Error::other("no address to listen on"))?;
    Ok(Listening { address, server: server.run() })
}
