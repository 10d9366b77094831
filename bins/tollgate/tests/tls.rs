//! The real program with a TLS certificate.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use tollgate_testkit::postgres;
use tollgate_testkit::store::block_on;

use crate::site::{ServiceProcess, Site, merchant_key};

const NAME: &str = "tollgate.test";

/// A site with a certificate for [`NAME`] and its key, as files.
struct TlsSite {
    site: Site,
    certificate: CertifiedKey<KeyPair>,
}

impl TlsSite {
    fn new() -> Self {
        let site = Site::new("sqlite:DIR/tollgate.db", None);
        let certificate = generate_simple_self_signed([NAME.to_owned()]).unwrap();
        std::fs::write(site.path().join("cert.pem"), certificate.cert.pem()).unwrap();
        let key = certificate.signing_key.serialize_pem();
        std::fs::write(site.path().join("key.pem"), key).unwrap();
        Self { site, certificate }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.site.path().join(name)
    }

    fn serve(&self) -> ServiceProcess {
        // The files are beside the configuration.
        self.site.serve_with(&[
            ("TOLLGATE_TLS_CERTIFICATE", "cert.pem"),
            ("TOLLGATE_TLS_KEY", "key.pem"),
        ])
    }

    /// The errors of a configuration that names these files.
    fn config_errors(&self, certificate: Option<&str>, key: Option<&str>) -> String {
        let mut check = self.site.command(&["config", "check"]);
        check.envs(certificate.map(|file| ("TOLLGATE_TLS_CERTIFICATE", file)));
        check.envs(key.map(|file| ("TOLLGATE_TLS_KEY", file)));
        let output = check.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        // Warnings are printed, too, and are not errors.
        let mistakes = text.split_inclusive('\n').filter(|line| !line.starts_with("note: "));
        let mistakes: String = mistakes.collect();
        assert_eq!(output.status.success(), mistakes.is_empty(), "{text}");
        mistakes
    }
}

/// Sends raw bytes and reads until the other side closes.
async fn exchange(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, bytes: &str) -> String {
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let end = timeout(Duration::from_secs(20), stream.read_to_end(&mut read)).await;
    // A peer that closes without `close_notify` has closed, too.
    drop(end.unwrap());
    String::from_utf8_lossy(&read).into_owned()
}

#[test]
fn with_a_certificate_it_speaks_tls_and_nothing_else() {
    block_on(async {
        let scene = TlsSite::new();
        let key = merchant_key(&scene.site);
        let node = scene.serve();
        let request = format!(
            "GET /v1/wallet HTTP/1.1\r\nhost: {NAME}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
        );
        let mut roots = RootCertStore::empty();
        roots.add(scene.certificate.cert.der().clone()).unwrap();
        let connect = async |roots: RootCertStore, name: &'static str| {
            let config =
                ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            let tcp = TcpStream::connect(node.address).await.unwrap();
            TlsConnector::from(Arc::new(config)).connect(name.try_into().unwrap(), tcp).await
        };
        let stream = connect(roots.clone(), NAME).await.unwrap();
        let answer = exchange(stream, &request).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let wallet: Value = serde_json::from_str(body).unwrap();
        assert_eq!(wallet["balance"], "0.0000000000");

        let plain = TcpStream::connect(node.address).await.unwrap();
        let answer = exchange(plain, &request).await;
        assert!(!answer.contains("HTTP") && !answer.contains("balance"), "{answer}");
        assert!(connect(roots, "other.test").await.is_err(), "it is for one name");
        assert!(connect(RootCertStore::empty(), NAME).await.is_err(), "and from nobody else");
    });
}

#[test]
fn health_is_asked_of_the_certificate_of_the_configuration_and_no_other() {
    let scene = TlsSite::new();
    let node = scene.serve();
    let health = |certificate: &str, key: &str| {
        let mut health = scene.site.command(&["health", "--address", &node.address.to_string()]);
        health.env("TOLLGATE_TLS_CERTIFICATE", certificate).env("TOLLGATE_TLS_KEY", key);
        let output = health.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(health("cert.pem", "key.pem"), (Some(0), String::new()));
    let other = generate_simple_self_signed([NAME.to_owned()]).unwrap();
    std::fs::write(scene.file("other-cert.pem"), other.cert.pem()).unwrap();
    std::fs::write(scene.file("other.pem"), other.signing_key.serialize_pem()).unwrap();
    let (code, said) = health("other-cert.pem", "other.pem");
    assert!(code == Some(1) && said.contains("no service answers at"), "{said}");
}

#[test]
fn what_is_wrong_with_certificate_or_key_is_said_before_anything_listens() {
    let scene = TlsSite::new();
    let other = generate_simple_self_signed([NAME.to_owned()]).unwrap().signing_key;
    std::fs::write(scene.file("other.pem"), other.serialize_pem()).unwrap();
    std::fs::write(scene.file("empty.pem"), "").unwrap();
    std::fs::write(scene.file("broken.pem"), "-----BEGIN CERTIFICATE-----\nCANARY\n").unwrap();
    assert_eq!(scene.config_errors(None, None), "");
    assert_eq!(scene.config_errors(Some("cert.pem"), Some("key.pem")), "");
    for (certificate, key, wrong, why) in [
        (Some("cert.pem"), None, "tls_key", "is required with tls_certificate"),
        (None, Some("key.pem"), "tls_certificate", "is required with tls_key"),
        (Some("missing.pem"), Some("key.pem"), "tls_certificate", "cannot read"),
        (Some("cert.pem"), Some("missing.pem"), "tls_key", "cannot read"),
        (Some("empty.pem"), Some("key.pem"), "tls_certificate", "holds none"),
        (Some("broken.pem"), Some("key.pem"), "tls_certificate", "broken.pem"),
        (Some("cert.pem"), Some("empty.pem"), "tls_key", "holds none"),
        (Some("key.pem"), Some("key.pem"), "tls_certificate", "holds none"),
        (Some("cert.pem"), Some("cert.pem"), "tls_key", "holds none"),
        (Some("cert.pem"), Some("other.pem"), "tls_key", "does not go with the certificate"),
    ] {
        let text = scene.config_errors(certificate, key);
        let is_of = |line: &&str| {
            let rest = line.trim_start().strip_prefix(wrong).unwrap_or_default();
            rest.starts_with(": ") || rest.starts_with(" (TOLLGATE_TLS_")
        };
        let line = text.lines().find(is_of);
        assert!(line.is_some_and(|line| line.contains(why)), "{certificate:?} {key:?}: {text}");
        assert!(!text.contains("CANARY") && text.lines().count() == 2, "{text}");
    }
}

#[tokio::test]
async fn the_start_says_whether_the_connection_to_the_database_is_encrypted() {
    let Some((server, database)) = postgres::server() else { return };
    let [high, low] = u16::try_from(std::process::id() % 60_000).unwrap().to_be_bytes();
    let address = Ipv4Addr::new(127, 120, high, low.clamp(1, 254));
    let certificate = generate_simple_self_signed([address.to_string()]).unwrap();
    let key = certificate.signing_key.serialize_pem();
    server.listen_with_tls(address, (&certificate.cert.pem(), &key), None);
    let name = database.url().trim_start_matches("postgres:///").split('?').next().unwrap();
    let over_tls = format!("postgres://postgres@{address}:5432/{name}?sslmode=require");
    let site = Site::new(database.url(), None);
    let log = site.path().join("log");
    for (url, said) in [(&*over_tls, "encrypted"), (database.url(), "not encrypted")] {
        let mut service = site.serve_logging_to(&log, &[("TOLLGATE_DATABASE_URL", url)]);
        service.call("GET", "/healthz", "").send().await.expect(200);
        service.signal("-TERM");
        assert_eq!(service.exit_code(), Some(0));
        let text = std::fs::read_to_string(&log).unwrap();
        let line = text.lines().find(|line| line.contains("database connection: ")).unwrap();
        assert!(line.ends_with(&format!("database connection: {said}")), "{line}");
    }
}
