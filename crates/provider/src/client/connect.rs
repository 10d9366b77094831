//! Connections to providers and webhooks: name, address, TCP and TLS, and the clients that keep them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use actix_rt::net::TcpStream;
use actix_service::Service;
use actix_tls::connect::rustls_0_23::reexports::ClientConfig;
use actix_tls::connect::rustls_0_23::{TlsConnector, webpki_roots_cert_store};
use actix_tls::connect::{ConnectError, ConnectInfo, Connection, Host};
use awc::Connector;
use awc::http::Uri;
use rustls::RootCertStore;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::awc_workarounds::{ProviderStream, install_crypto_provider};
use super::error::{ConnectFailure, NotSentReason};
use super::resolver::Resolver;
use crate::address::is_public;

/// A kind of connection: its protocol, and the addresses that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionClass {
    /// TLS; else plain HTTP.
    pub(super) tls: bool,
    /// Any address; else public ones only.
    pub(super) private: bool,
    /// For WebSockets; else for calls.
    pub(super) socket: bool,
}

/// Makes connections: name, address check, TCP, TLS. One service does all of it, so that the
/// checked addresses are the ones that are used: a second look-up could return others.
#[derive(Clone)]
pub(super) struct GuardedConnector {
    lane: ConnectionClass,
    tls: Arc<ClientConfig>,
    resolver: Resolver,
}

impl GuardedConnector {
    pub(super) fn new(lane: ConnectionClass, tls: &Arc<ClientConfig>, resolver: &Resolver) -> Self {
        Self { lane, tls: Arc::clone(tls), resolver: resolver.clone() }
    }
}

type ProviderConnection = Connection<Uri, ProviderStream>;

impl Service<ConnectInfo<Uri>> for GuardedConnector {
    type Response = ProviderConnection;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<ProviderConnection, ConnectError>>>>;

    actix_service::always_ready!();

    fn call(&self, info: ConnectInfo<Uri>) -> Self::Future {
        let connecting = self.clone();
        Box::pin(async move {
            let uri = info.request().clone();
            let connected = connecting.connect(&uri).await;
            let failed = |failure| ConnectError::Resolver(Box::new(ConnectFailure(failure)));
            connected.map(|stream| Connection::new(uri, stream)).map_err(failed)
        })
    }
}

impl GuardedConnector {
    async fn connect(self, uri: &Uri) -> Result<ProviderStream, NotSentReason> {
        let host = uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let addresses = self.resolver.addresses(host, uri.port_u16().unwrap_or(0)).await?;
        let allowed = allowed(self.lane, addresses)?;
        let tcp = connect_to_any(&allowed).await?;
        let stream = match self.lane.tls {
            false => ProviderStream::plain(tcp),
            true => {
                let connection = Connection::new(ServerName(host.to_owned()), tcp);
                let connected = TlsConnector::service(self.tls).call(connection).await;
                let (stream, _) = connected.map_err(|_| NotSentReason::Tls)?.into_parts();
                ProviderStream::tls(stream)
            }
        };
        Ok(if self.lane.socket { stream.for_socket() } else { stream })
    }
}

/// The addresses that may be connected to. A private address among public ones is an attack or a
/// misconfiguration; the public ones are used all the same.
fn allowed(
    lane: ConnectionClass,
    addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, NotSentReason> {
    if addresses.is_empty() {
        return Err(NotSentReason::Dns);
    }
    if lane.private {
        return Ok(addresses);
    }
    let public: Vec<_> = addresses.into_iter().filter(|a| is_public(a.ip())).collect();
    if public.is_empty() { Err(NotSentReason::PrivateAddress) } else { Ok(public) }
}

/// Tries one address after the other. An address that is silent may be in a network that is not
/// routed here, often IPv6. It gets two seconds, so that the next one is tried within the timeout.
async fn connect_to_any(addresses: &[SocketAddr]) -> Result<TcpStream, NotSentReason> {
    const MOMENT: Duration = Duration::from_secs(2);
    let Some((last, others)) = addresses.split_last() else { return Err(NotSentReason::Dns) };
    for address in others {
        if let Ok(Ok(tcp)) = timeout(MOMENT, connect_to(*address)).await {
            return Ok(tcp);
        }
    }
    connect_to(*last).await.map_err(|_| NotSentReason::Refused)
}

/// The size of the receive buffer of the system. By default the system accepts as much as the
/// provider sends, many megabytes for each client that reads slowly. This size is enough for 5 MB/s
/// at a distance of 50 ms.
const RECEIVE_BUFFER_BYTES: u32 = 256 * 1024;

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    let tcp = socket.connect(address).await?;
    // Without it, small writes wait for the delayed acknowledgements of the peer.
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// The name that the certificate must have. IPv6 addresses are without their brackets.
struct ServerName(String);

impl Host for ServerName {
    fn hostname(&self) -> &str {
        &self.0
    }
}

/// A client that makes connections of one kind, with a timeout for each.
pub(super) fn client(
    lane: ConnectionClass,
    tls: &Arc<ClientConfig>,
    resolver: &Resolver,
    connect: Duration,
) -> awc::Client {
    let connecting = GuardedConnector::new(lane, tls, resolver);
    let connector = Connector::new().connector(connecting).timeout(connect).limit(0);
    awc::Client::builder()
        .connector(connector)
        .disable_redirects()
        .disable_timeout()
        .no_default_headers()
        .finish()
}

/// The TLS configuration for providers: the web's roots, no client certificate, HTTP/1.1.
pub(super) fn tls_config() -> Arc<ClientConfig> {
    tls_config_trusting(webpki_roots_cert_store())
}

fn tls_config_trusting(roots: RootCertStore) -> Arc<ClientConfig> {
    install_crypto_provider();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Mutex;
    use std::time::Instant;

    use actix_rt::net::TcpListener;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
    };
    use rustls::ServerConfig;
    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Starts a server that presents `chain` and keeps the bytes that clients send.
    async fn listen(
        chain: Vec<CertificateDer<'static>>,
        key: &KeyPair,
    ) -> (u16, Arc<Mutex<Vec<u8>>>) {
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let config = ServerConfig::builder().with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        actix_rt::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                if let Ok(mut stream) = acceptor.accept(tcp).await {
                    let mut bytes = Vec::new();
                    let _ = stream.read_buf(&mut bytes).await;
                    heard.lock().unwrap().extend(bytes);
                }
            }
        });
        (port, told)
    }

    #[test]
    fn a_key_is_told_to_nobody_whose_certificate_is_not_the_hosts() {
        actix_rt::System::new().block_on(tell_only_the_host());
    }

    async fn tell_only_the_host() {
        let key = || KeyPair::generate().unwrap();
        let authority = |name: &str| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, name);
            let key = key();
            let certificate = params.self_signed(&key).unwrap();
            (certificate.der().clone(), Issuer::new(params, key))
        };
        let (root, trusted) = authority("Trusted");
        let (_, stranger) = authority("Stranger");
        let leaf = |names: &[&str], issuer: Option<&Issuer<'_, KeyPair>>, until: i32| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(until, 1, 1);
            let key = key();
            let certificate = match issuer {
                Some(issuer) => params.signed_by(&key, issuer),
                None => params.self_signed(&key),
            };
            (certificate.unwrap().der().clone(), key)
        };
        let mut roots = RootCertStore::empty();
        roots.add(root).unwrap();
        let tls = tls_config_trusting(roots);
        let (good, late) = (4000, 2021);
        for (what, (certificate, key), is_trusted) in [
            ("the host's own", leaf(&["provider.test"], Some(&trusted), good), true),
            ("another host's", leaf(&["evil.test"], Some(&trusted), good), false),
            ("that of the domain above", leaf(&["test"], Some(&trusted), good), false),
            (
                "a wildcard of another level",
                leaf(&["*.provider.test"], Some(&trusted), good),
                false,
            ),
            ("nobody's", leaf(&[], Some(&trusted), good), false),
            ("an expired one", leaf(&["provider.test"], Some(&trusted), late), false),
            ("one of itself", leaf(&["provider.test"], None, good), false),
            ("one of a stranger", leaf(&["provider.test"], Some(&stranger), good), false),
        ] {
            let (port, told) = listen(vec![certificate], &key).await;
            let resolver = Resolver::Names(Arc::new(|_| vec![Ipv4Addr::LOCALHOST.into()]));
            let lane = ConnectionClass { tls: true, private: true, socket: false };
            let uri = format!("http://provider.test:{port}/").parse().unwrap();
            let connected = GuardedConnector::new(lane, &tls, &resolver).connect(&uri).await;
            match connected {
                Ok(mut stream) if is_trusted => stream.write_all(b"sk-canary").await.unwrap(),
                Ok(_) => panic!("{what}: connected"),
                Err(why) => assert_eq!((why, is_trusted), (NotSentReason::Tls, false), "{what}"),
            }
            let deadline = Instant::now() + Duration::from_secs(10);
            while is_trusted && told.lock().unwrap().is_empty() && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let heard = if is_trusted { b"sk-canary".as_slice() } else { b"" };
            assert_eq!(told.lock().unwrap().as_slice(), heard, "{what}");
        }
    }

    #[test]
    fn only_public_addresses_are_connected_to_unless_private_ones_are_allowed() {
        let addresses = || vec!["127.0.0.1:1".parse().unwrap(), "8.8.8.8:1".parse().unwrap()];
        let only_private = || vec!["[::ffff:10.0.0.1]:1".parse().unwrap()];
        for tls in [true, false] {
            let class = |private| ConnectionClass { tls, private, socket: false };
            let [public, any] = [false, true].map(class);
            assert_eq!(allowed(public, addresses()).unwrap(), addresses()[1..]);
            assert_eq!(allowed(public, only_private()), Err(NotSentReason::PrivateAddress));
            assert_eq!(allowed(any, only_private()).unwrap(), only_private());
            assert_eq!(allowed(any, addresses()).unwrap(), addresses());
            assert_eq!(allowed(any, Vec::new()), Err(NotSentReason::Dns));
        }
    }
}
