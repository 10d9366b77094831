//! The server, the same in production and in tests.

use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::time::Duration;

use actix_http::error::DispatchError;
use actix_http::{HttpService, Protocol};
use actix_server::{GracefulShutdownSignal, ServerBuilder};
use actix_service::{
    IntoServiceFactory, ServiceFactory, ServiceFactoryExt, fn_service, map_config,
};
use actix_tls::accept::TlsError;
use actix_tls::accept::rustls_0_23::{Acceptor, TlsStream};
use actix_web::dev::{AppConfig, Server};
use actix_web::middleware::{Condition, from_fn};
use actix_web::rt::net::TcpStream;
use actix_web::{App as Routes, Error, web};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::app::App;
use crate::client_connections::{self, ClientConnections, ClientStream};
use crate::http::auth::answer_if_here;
use crate::http::earlier::serve_earlier_names;
use crate::routes::{ServedRoutes, routes};
use crate::settings::InterfaceShape;
use crate::tls::{HTTP2, Tls};

/// The most connections that the system keeps until they are accepted.
const WAITING_CONNECTIONS: i32 = 1_024;

/// A bound server. It serves when it is awaited or spawned.
pub struct BoundServer {
    /// The address that it listens on.
    pub address: SocketAddr,
    /// The server itself.
    pub server: Server,
}

/// Binds a server to `address`; port 0 picks a free one. With `tls` it serves only clients that speak TLS.
/// The caller handles signals. It must be called within a runtime of tokio.
///
/// # Errors
/// When the operating system refuses the address, for example because it is taken.
pub fn listen(
    app: web::Data<App>,
    address: &str,
    tls: Option<&Tls>,
    served: &ServedRoutes,
) -> io::Result<BoundServer> {
    let clients = app.settings.clients;
    let connections = ClientConnections::new(app.metrics.connections.clone());
    // A client that takes nothing for as long as a provider may be silent counts as gone.
    let patience = app.settings.calls.timeouts.idle.max(clients.keep_alive + clients.head_timeout);
    tokio::spawn(connections.clone().watch(patience));
    let workers = if served.interface { app.settings.workers } else { NonZeroUsize::MIN };
    let mut builder = ServerBuilder::new()
        .workers(workers.get())
        .max_concurrent_connections(clients.max_connections.div_ceil(workers.get()))
        .disable_signals()
        .shutdown_timeout(5);
    let stops = builder.graceful_shutdown_signal();
    let listeners = bind_listeners(address)?;
    let address = listeners.first().map(TcpListener::local_addr);
    let address = address.ok_or_else(|| io::Error::other("no address to listen on"))??;
    for listener in listeners {
        let (app, connections, stops) = (app.clone(), connections.clone(), stops.clone());
        let served = served.clone();
        builder = match tls.map(Tls::config) {
            None => builder.listen("http", listener, move || {
                let connections = connections.clone();
                fn_service(move |tcp: TcpStream| {
                    let peer = tcp.peer_addr().ok();
                    let client = connections.accept(tcp, |tcp| tcp, true);
                    ready(Ok((client, Protocol::Http1, peer)))
                })
                .and_then(service(&app, &served, &stops))
            }),
            Some(config) => builder.listen("https", listener, move || {
                let connections = connections.clone();
                Acceptor::new(config.clone())
                    .map_init_err(drop)
                    .map_err(TlsError::into_service_error)
                    .and_then(move |tls: TlsStream<TcpStream>| {
                        let is_http1 = tls.get_ref().1.alpn_protocol() != Some(HTTP2);
                        let peer = tls.get_ref().0.peer_addr().ok();
                        let protocol = if is_http1 { Protocol::Http1 } else { Protocol::Http2 };
                        let client = connections.accept(tls, |tls| tls.get_ref().0, is_http1);
                        ready(Ok((client, protocol, peer)))
                    })
                    .and_then(service(&app, &served, &stops).map_err(TlsError::Service))
            }),
        }?;
    }
    Ok(BoundServer { address, server: builder.run() })
}

/// The service for clients over `Io`, made once for each worker.
fn service<Io: AsyncRead + AsyncWrite + Unpin + 'static>(
    app: &web::Data<App>,
    served: &ServedRoutes,
    stops: &GracefulShutdownSignal,
) -> impl ServiceFactory<
    (ClientStream<Io>, Protocol, Option<SocketAddr>),
    Config = (),
    Response = (),
    Error = DispatchError,
    InitError = (),
> + use<Io> {
    let clients = app.settings.clients;
    let is_earlier = app.settings.shape == InterfaceShape::Earlier;
    let log = app.settings.access_log;
    let routes = Routes::new()
        .wrap(from_fn(answer_if_here))
        .wrap(from_fn(move |request, next| client_connections::track(log, request, next)))
        .wrap(Condition::new(is_earlier, from_fn(serve_earlier_names)))
        .configure(routes(app.clone(), served))
        .into_factory()
        .map_err(|error: Error| error.error_response());
    let stops = stops.clone();
    HttpService::build()
        .graceful_shutdown_signal(move || {
            let stops = stops.clone();
            async move { stops.notified().await }
        })
        .on_connect_ext(ClientStream::put_into)
        // Bytes that wait in it for a slow client take memory of this service.
        .h1_write_buffer_size(16 * 1024)
        .client_request_timeout(clients.head_timeout)
        .client_disconnect_timeout(Duration::from_secs(1))
        .keep_alive(clients.keep_alive)
        // A client that closes has left: its call is drained or cancelled from then on.
        .h1_allow_half_closed(false)
        .finish(map_config(routes, |()| AppConfig::default()))
}

/// A listener for each address that a name has.
fn bind_listeners(address: &str) -> io::Result<Vec<TcpListener>> {
    let bind = |address: SocketAddr| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(WAITING_CONNECTIONS)?;
        Ok(TcpListener::from(socket))
    };
    let (listeners, failures): (Vec<_>, Vec<_>) =
        address.to_socket_addrs()?.map(bind).partition(Result::is_ok);
    match failures.into_iter().next() {
        Some(failure) if listeners.is_empty() => failure.map(|listener| vec![listener]),
        _ => listeners.into_iter().collect(),
    }
}
