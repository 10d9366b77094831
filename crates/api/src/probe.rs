//! A check whether the service on this machine takes calls, as a load balancer makes it. It is for containers
//! without a shell, which have no HTTP client.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error,
    SignatureScheme, StreamOwned,
};

use crate::tls::Tls;

/// The whole answer has a few hundred bytes.
const MAX_ANSWER_BYTES: u64 = 16 * 1024;

/// The answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Whether it takes calls.
    pub is_ready: bool,
    /// `ok`, `draining` or `store_unavailable`; empty for any other answer.
    pub status: &'static str,
}

/// Queries `/readyz` of the service at `address`. With TLS the service must show the certificate of `tls`;
/// its issuer is not checked.
///
/// # Errors
/// When there is no connection or no answer in time, or the answer is not HTTP.
pub fn probe(address: &str, tls: Option<&Tls>, patience: Duration) -> io::Result<Readiness> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                return match tls {
                    None => ask(stream),
                    Some(tls) => ask(StreamOwned::new(client(tls)?, stream)),
                };
            }
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

fn ask(mut stream: impl Read + Write) -> io::Result<Readiness> {
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: tollgate\r\nconnection: close\r\n\r\n")?;
    stream.flush()?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status: Option<u16> = status.and_then(|status| status.parse().ok());
    let status = status
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it does not speak HTTP"))?;
    let words = ["ok", "draining", "store_unavailable"];
    let said = words.into_iter().find(|word| answer.contains(&format!("\"{word}\"")));
    Ok(Readiness { is_ready: status == 200, status: said.unwrap_or_default() })
}

fn client(tls: &Tls) -> io::Result<ClientConnection> {
    let provider = Arc::new(ring::default_provider());
    let verifier =
        Arc::new(PinnedCertificate { certificate: tls.certificate(), provider: provider.clone() });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)
}

/// Trusts one certificate, whatever its names and its issuer.
struct PinnedCertificate {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for PinnedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own(…)")
    }
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match *shown == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
