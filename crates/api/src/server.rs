//! The server, as production and tests start it.

use std::io;
use std::net::SocketAddr;

use actix_web::dev::Server;
use actix_web::{App as Routes, HttpServer, web};

use crate::app::App;
use crate::routes::routes;
use crate::tls::Tls;

/// A server that is bound; it serves when it is awaited or spawned.
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// What serves.
    pub server: Server,
}

/// Binds a server to `address`; port 0 picks a free one. Signals are the caller's to handle.
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
    let server = HttpServer::new(move || Routes::new().configure(routes(app.clone())))
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
