//! TLS of the service itself. The certificate and its key are compared before the server listens.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};

/// The name of HTTP/2 in ALPN.
pub(crate) const HTTP2: &[u8] = b"h2";

/// The identity of the service, for TLS 1.2 and 1.3. The HTTP version is negotiated with the client.
#[derive(Clone)]
pub struct Tls {
    config: ServerConfig,
    certificate: CertificateDer<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

/// The reason why there is no TLS. The text contains nothing of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// The file of the certificate cannot be read, or has none.
    Certificate(String),
    /// The file of the key cannot be read, has no key, or has the key of another certificate.
    Key(String),
}

impl Tls {
    /// Reads a chain of certificates, the service's own first, and its key, both PEM.
    ///
    /// # Errors
    /// [`TlsError`] with the file that is wrong, and the fault.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let unreadable = |file: &Path, cause: &pem::Error| match cause {
            pem::Error::Io(cause) => format!("cannot read {}: {cause}", file.display()),
            pem::Error::NoItemsFound => format!("{} holds none", file.display()),
            _ => format!("{} is not PEM", file.display()),
        };
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
        let chain = chain.map_err(|why| TlsError::Certificate(unreadable(certificate, &why)))?;
        let Some(own) = chain.first().cloned() else {
            return Err(TlsError::Certificate(format!("{} holds none", certificate.display())));
        };
        let private = PrivateKeyDer::from_pem_file(key);
        let private = private.map_err(|why| TlsError::Key(unreadable(key, &why)))?;
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, private))
            .map(|mut config| {
                config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
                Self { config, certificate: own }
            })
            .map_err(|why| TlsError::Key(format!("does not go with the certificate: {why}")))
    }

    pub(crate) fn config(&self) -> ServerConfig {
        self.config.clone()
    }

    /// The service's own certificate.
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }
}
