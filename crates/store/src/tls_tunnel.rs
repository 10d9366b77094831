//! TLS to PostgreSQL.
//!
//! libpq is built without TLS, so that a C compiler is all that the build needs. A connection that is to be encrypted goes
//! through a tunnel within this process. libpq connects to a Unix socket in a folder that only this user can open, and rustls
//! connects to the server. One thread serves all connections.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use socket2::{SockRef, TcpKeepalive};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::error::StoreError;
use crate::postgres_url::{PostgresServer, PostgresUrl, TlsMode, TlsRoots, TlsSettings};

/// A tunnel to the servers of a URL. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct TlsTunnel {
    /// The URL by which libpq reaches it.
    url: String,
    is_encrypted: Arc<AtomicBool>,
    _folder: TempDir,
    _end: oneshot::Sender<()>,
}

/// The time for each step of a connection: to an address of a server, and of its handshake.
const STEP_WITHIN: Duration = Duration::from_secs(3);
/// The longest time in which a server takes nothing that was sent to it, and the times of the packets that ask
/// whether it is still there.
const TAKES_WITHIN: Duration = Duration::from_secs(10);
const ASKED_EVERY: Duration = Duration::from_secs(5);
const ASKED_TIMES: u32 = 3;
/// The request for encryption, by PostgreSQL's protocol: its length and its code.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// The longest first message of libpq.
const MOST_STARTUP_BYTES: usize = 10_000;

impl TlsTunnel {
    /// Starts a tunnel to the servers of a URL.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if a file of certificates cannot be read.
    pub(crate) fn start(url: &PostgresUrl<'_>, tls: &TlsSettings) -> Result<Self, StoreError> {
        let config = client_config(tls).map_err(StoreError::Unavailable)?;
        let unavailable = |cause: io::Error| {
            let what = "the sockets for encrypted connections to PostgreSQL";
            StoreError::Unavailable(format!(
                "{what}: {cause}; set TMPDIR to a folder with a short name"
            ))
        };
        let (folder, listeners) = listen_in_a_folder(&url.servers).map_err(unavailable)?;
        let is_encrypted = Arc::new(AtomicBool::new(false));
        let ways = url.servers.iter().map(|server| TunnelWay {
            server: server.clone(),
            mode: tls.mode,
            connector: TlsConnector::from(Arc::clone(&config)),
            is_encrypted: Arc::clone(&is_encrypted),
        });
        let listeners: Vec<_> = listeners.into_iter().zip(ways.map(Arc::new)).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(unavailable)?;
        let (end, ended) = oneshot::channel::<()>();
        let serve = move || {
            runtime.block_on(async move {
                for (listener, way) in listeners {
                    tokio::spawn(serve(listener, way));
                }
                // It is dropped, and nothing is sent.
                let _ = ended.await;
            });
        };
        let thread = std::thread::Builder::new().name("postgres-tls".to_owned());
        thread.spawn(serve).map_err(unavailable)?;
        Ok(Self { url: url.through(folder.path()), is_encrypted, _folder: folder, _end: end })
    }

    /// The URL by which libpq reaches it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Notes that a connection was made without it.
    pub(crate) fn note_plain(&self) {
        self.is_encrypted.store(false, Ordering::Relaxed);
    }

    /// Whether the last connection was encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted.load(Ordering::Relaxed)
    }
}

/// Sockets for the servers, in a folder that is removed at the end. A container may have no other writable folder than
/// `/dev/shm`, and the name of a socket must be short.
fn listen_in_a_folder(servers: &[PostgresServer]) -> io::Result<(TempDir, Vec<StdListener>)> {
    let listen_in = |parent: &Path| {
        let own = std::fs::Permissions::from_mode(0o700);
        let folder =
            tempfile::Builder::new().prefix("tollgate-").permissions(own).tempdir_in(parent)?;
        let listeners = servers
            .iter()
            .enumerate()
            .map(|(number, server)| listen(&folder.path().join(number.to_string()), server.port));
        let listeners = listeners.collect::<io::Result<_>>()?;
        Ok((folder, listeners))
    };
    listen_in(&std::env::temp_dir())
        .or_else(|cause: io::Error| listen_in(Path::new("/dev/shm")).map_err(|_| cause))
}

/// The socket of a server, in a folder of its own, by the name that libpq expects.
fn listen(folder: &Path, port: u16) -> io::Result<StdListener> {
    std::fs::create_dir(folder)?;
    let listener = StdListener::bind(folder.join(format!(".s.PGSQL.{port}")))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The way to one server.
struct TunnelWay {
    server: PostgresServer,
    mode: TlsMode,
    connector: TlsConnector,
    is_encrypted: Arc<AtomicBool>,
}

async fn serve(listener: StdListener, way: Arc<TunnelWay>) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(cause) => return log::error!("no encrypted connections to PostgreSQL: {cause}"),
    };
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let way = Arc::clone(&way);
                tokio::spawn(async move { way.connect(client).await });
            }
            Err(cause) => {
                log::error!("an encrypted connection to PostgreSQL: {cause}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl TunnelWay {
    /// Connects a client of the tunnel with the server, until one of them ends.
    async fn connect(&self, mut client: UnixStream) {
        let done = async {
            let mut server = self.open().await?;
            server.set_nodelay(true).map_err(|cause| self.fault(&cause))?;
            if !self.asks_for_tls(&mut server).await? {
                self.is_encrypted.store(false, Ordering::Relaxed);
                join(&mut client, server).await;
                return Ok(());
            }
            let name = ServerName::try_from(self.server.host.clone());
            let name = name.map_err(|_| format!("{} is no host name", self.server.host))?;
            let handshake = timeout(STEP_WITHIN, self.connector.connect(name, server)).await;
            let handshake =
                handshake.map_err(|_| self.fault("its TLS handshake takes too long"))?;
            let server = handshake.map_err(|cause| self.fault(&cause))?;
            self.is_encrypted.store(true, Ordering::Relaxed);
            join(&mut client, server).await;
            Ok(())
        };
        if let Err(reason) = done.await {
            // A client that has left needs no reason.
            let _ = refuse(&mut client, reason).await;
        }
    }

    async fn open(&self) -> Result<TcpStream, String> {
        let PostgresServer { host, port } = &self.server;
        let addresses = tokio::net::lookup_host((host.as_str(), *port)).await;
        let addresses: Vec<SocketAddr> = addresses.map_err(|cause| self.fault(&cause))?.collect();
        let mut reason = self.fault("it has no address");
        for address in addresses {
            match timeout(STEP_WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    keep_alive(&stream).map_err(|cause| self.fault(&cause))?;
                    return Ok(stream);
                }
                Ok(Err(cause)) => reason = self.fault(&cause),
                Err(_) => reason = self.fault("it does not answer"),
            }
        }
        Err(reason)
    }

    /// Whether the server encrypts the connection. If it does not, the connection may go on without.
    async fn asks_for_tls(&self, server: &mut TcpStream) -> Result<bool, String> {
        let answer = async {
            server.write_all(&SSL_REQUEST).await?;
            server.read_u8().await
        };
        match timeout(STEP_WITHIN, answer).await {
            Ok(Ok(b'S')) => Ok(true),
            Ok(Ok(b'N')) if self.mode == TlsMode::Prefer => Ok(false),
            Ok(Ok(b'N')) => Err(self.fault("it does not support TLS, which sslmode demands")),
            Ok(Ok(_)) => Err(self.fault("it is no PostgreSQL, or does not know TLS")),
            Ok(Err(cause)) => Err(self.fault(&cause)),
            Err(_) => Err(self.fault("it does not answer")),
        }
    }

    fn fault(&self, cause: &(impl std::fmt::Display + ?Sized)) -> String {
        let PostgresServer { host, port } = &self.server;
        format!("connection to {host}:{port}: {cause}")
    }
}

/// Connects both sides. The end of one side ends the connection.
async fn join(client: &mut UnixStream, server: impl AsyncRead + AsyncWrite) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let to_libpq = async {
        authenticate(&mut from_server, &mut to_client).await?;
        tokio::io::copy(&mut from_server, &mut to_client).await
    };
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {
            // A server that does not take the end has a connection that ends.
            let _ = timeout(STEP_WITHIN, to_server.shutdown()).await;
        }
        _ = to_libpq => {}
    }
}

/// Passes the messages of a server on until it has accepted the client.
///
/// It offers channel binding where the connection is encrypted. libpq would refuse that offer, because its own connection is
/// not, so the offer is taken out: the client then proves the password without it.
async fn authenticate(
    server: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    const AUTHENTICATION: u8 = b'R';
    const OFFER: u32 = 10;
    const ACCEPTED: u32 = 0;
    loop {
        let kind = server.read_u8().await?;
        let length = server.read_u32().await?;
        let rest = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(4);
        if rest > MOST_STARTUP_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; rest];
        server.read_exact(&mut body).await?;
        let code = body.first_chunk().map(|code| u32::from_be_bytes(*code));
        let code = code.filter(|_| kind == AUTHENTICATION);
        if code == Some(OFFER) {
            body = without_channel_binding(&body);
        }
        let length = u32::try_from(body.len().saturating_add(4)).unwrap_or(u32::MAX);
        client.write_all(&[&[kind], &length.to_be_bytes()[..], &body].concat()).await?;
        if code == Some(ACCEPTED) || kind == b'E' {
            return Ok(());
        }
    }
}

/// A list of mechanisms, each of which ends with a zero, as the list does.
fn without_channel_binding(body: &[u8]) -> Vec<u8> {
    let (code, names) = body.split_at(body.len().min(4));
    let names = names.split_inclusive(|byte| *byte == 0);
    let kept = names.filter(|name| *name != b"SCRAM-SHA-256-PLUS\0");
    [code].into_iter().chain(kept).flatten().copied().collect()
}

/// Notices a server that has vanished.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(ASKED_EVERY).with_interval(ASKED_EVERY);
    socket.set_tcp_keepalive(&keepalive.with_retries(ASKED_TIMES))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(TAKES_WITHIN))?;
    Ok(())
}

/// Tells libpq why there is no connection, as a server does that cannot take one. libpq tries the next server then.
async fn refuse(client: &mut UnixStream, reason: String) -> io::Result<()> {
    // A client reads no answer from a socket that is closed with bytes unread.
    let length = usize::try_from(client.read_u32().await?).unwrap_or(0);
    let mut startup = vec![0; length.saturating_sub(4).min(MOST_STARTUP_BYTES)];
    client.read_exact(&mut startup).await?;
    let mut fields = Vec::new();
    for (kind, text) in [(b'S', "FATAL"), (b'V', "FATAL"), (b'C', "57P03"), (b'M', &*reason)] {
        fields.push(kind);
        fields.extend_from_slice(text.as_bytes());
        fields.push(0);
    }
    fields.push(0);
    let length = u32::try_from(fields.len().saturating_add(4)).unwrap_or(u32::MAX);
    let message = [&b"E"[..], &length.to_be_bytes(), &fields].concat();
    client.write_all(&message).await?;
    client.shutdown().await
}

fn client_config(tls: &TlsSettings) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let mut trusted = Vec::new();
    match &tls.roots {
        Some(TlsRoots::System) => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(TlsRoots::File(file)) => {
            trusted = certificates(file)?;
            for certificate in &trusted {
                roots.add(certificate.clone()).map_err(|cause| unreadable(file, &cause))?;
            }
        }
        None => {}
    }
    let verifier = ServerVerifier {
        trusted,
        known: match tls.mode {
            TlsMode::Prefer | TlsMode::Require => None,
            TlsMode::VerifyCa | TlsMode::VerifyFull => {
                let builder = WebPkiServerVerifier::builder_with_provider(
                    Arc::new(roots),
                    Arc::clone(&provider),
                );
                Some(builder.build().map_err(|cause| cause.to_string())?)
            }
        },
        checks_name: tls.mode == TlsMode::VerifyFull,
        provider: Arc::clone(&provider),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|cause| cause.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key_file)) => {
            let key = PrivateKeyDer::from_pem_file(key_file);
            let key = key.map_err(|cause| unreadable(key_file, &cause))?;
            let chain = certificates(certificate)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|cause| unreadable(certificate, &cause))?
        }
    };
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(unreadable(file, "it has no certificate")),
        read => read.map_err(|cause| unreadable(file, &cause)),
    }
}

fn unreadable(file: &Path, cause: &(impl std::fmt::Display + ?Sized)) -> String {
    format!("{}: {cause}", file.display())
}

/// Verifies a server as `sslmode` says.
#[derive(Debug)]
struct ServerVerifier {
    /// The check of the authority. `None` where any server will do.
    known: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates in the file of authorities. A server may have one of them as its own.
    trusted: Vec<CertificateDer<'static>>,
    checks_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(known) = &self.known else { return Ok(ServerCertVerified::assertion()) };
        if self.trusted.iter().any(|trusted| trusted == end_entity) {
            if self.checks_name {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        let verified =
            known.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match &self.known {
            // Any certificate will do, also one of an old form that cannot be read.
            None => Ok(HandshakeSignatureValid::assertion()),
            Some(_) => verify_tls12_signature(message, certificate, signature, algorithms),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match &self.known {
            // Any certificate will do, also one of an old form that cannot be read.
            None => Ok(HandshakeSignatureValid::assertion()),
            Some(_) => verify_tls13_signature(message, certificate, signature, algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sockets_are_for_this_user_alone() {
        let server = PostgresServer { host: "db.invalid".to_owned(), port: 5432 };
        let (folder, listeners) = listen_in_a_folder(&[server]).unwrap();
        assert_eq!(listeners.len(), 1);
        let mode = folder.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn an_offer_loses_channel_binding_alone() {
        let offer = |names: &[&str]| {
            let names: String = names.iter().map(|name| format!("{name}\0")).collect();
            [&[0, 0, 0, 10], names.as_bytes(), &[0]].concat()
        };
        assert_eq!(
            without_channel_binding(&offer(&["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"])),
            offer(&["SCRAM-SHA-256"])
        );
        for kept in [offer(&["SCRAM-SHA-256"]), offer(&[]), vec![0, 0]] {
            assert_eq!(without_channel_binding(&kept), kept);
        }
    }
}
