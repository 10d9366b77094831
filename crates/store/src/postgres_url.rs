//! The parts of a PostgreSQL URL that say how a server is reached.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A PostgreSQL URL in libpq's form, which may name several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresUrl<'a> {
    /// The user and the password with the `@`, as they are written.
    user: &'a str,
    pub(crate) servers: Vec<PostgresServer>,
    /// The database with the `/` before it, as it is written.
    database: &'a str,
    /// The other parameters, as they are written.
    parameters: Vec<(&'a str, &'a str)>,
    /// The encryption that it asks for. `None` for none.
    pub(crate) tls: Option<TlsSettings>,
}

/// A server that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresServer {
    /// The name or the address, or the folder of a Unix socket.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The encryption of connections, as libpq names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    pub(crate) mode: TlsMode,
    /// The certificates of authorities.
    pub(crate) roots: Option<TlsRoots>,
    /// The certificate of the client and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// The demands on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TlsMode {
    /// Encrypted, if the server can.
    Prefer,
    /// Encrypted.
    Require,
    /// Encrypted, by a certificate of a known authority.
    VerifyCa,
    /// As [`VerifyCa`](Self::VerifyCa), and with the name of the host.
    VerifyFull,
}

/// The authorities that are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsRoots {
    /// Those in a file.
    File(PathBuf),
    /// The public ones.
    System,
}

/// The reason that a text is not a database URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseDatabaseUrlError {
    /// It has none of the known forms.
    Form,
    /// Its `sslmode` has no meaning.
    TlsMode,
    /// Its `sslmode` verifies a certificate, and it names no authority.
    TlsRoots,
    /// Public authorities vouch for a name only, and it does not check the name.
    TlsSystem,
    /// It asks for encryption, and names a Unix socket beside other servers.
    TlsSocket,
    /// It has only one of `sslcert` and `sslkey`.
    TlsClient,
    /// It has a parameter of encryption that is not known here.
    TlsParameter,
}

impl fmt::Display for ParseDatabaseUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => {
                "must be sqlite:PATH, sqlite::memory: or postgres://USER:PASSWORD@HOST/DATABASE, with \
                 `/`, `?` and `@` in a user or password percent-encoded"
            }
            Self::TlsMode => {
                "has an `sslmode` that is none of disable, allow, prefer, require, verify-ca and verify-full"
            }
            Self::TlsRoots => {
                "has an `sslmode` that verifies a certificate: it needs `sslrootcert`, which is a file with \
                 certificates of authorities, or `system`"
            }
            Self::TlsSystem => "has `sslrootcert=system`, which needs `sslmode=verify-full`",
            Self::TlsSocket => "asks for encryption, and names a Unix socket beside other servers",
            Self::TlsClient => "has one of `sslcert` and `sslkey`, and needs both or none",
            Self::TlsParameter => {
                "has a parameter that encrypted connections do not know here: sslmode, sslrootcert, sslcert and \
                 sslkey are known, and a host instead of hostaddr"
            }
        })
    }
}

impl std::error::Error for ParseDatabaseUrlError {}

const DEFAULT_PORT: u16 = 5432;
/// The parameters of encryption that are known.
const KNOWN: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];

impl<'a> PostgresUrl<'a> {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`ParseDatabaseUrlError`] if it has another form, or asks for encryption in an unknown way.
    pub(crate) fn parse(url: &'a str) -> Result<Self, ParseDatabaseUrlError> {
        let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"));
        let rest = rest.ok_or(ParseDatabaseUrlError::Form)?;
        // The user ends where libpq ends it: at the first `@` before any `/`.
        let authority = rest.split('/').next().unwrap_or_default();
        let user = authority.find('@').map_or(0, |at| at.saturating_add(1));
        let (user, rest) = rest.split_at(user);
        let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // libpq would take the text before a `/` for host and port, and show it in its error.
        if place.contains('@') {
            return Err(ParseDatabaseUrlError::Form);
        }
        let (hosts, database) = place.split_at(place.find('/').unwrap_or(place.len()));
        let parameters: Vec<_> = parameters
            .split('&')
            .filter(|parameter| !parameter.is_empty())
            .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
            .collect();
        let text = |name: &str| -> Option<Cow<'a, str>> {
            let found = parameters.iter().rev().find(|(key, _)| *key == name);
            found.map(|(_, value)| decoded(value))
        };
        let servers = match text("host") {
            Some(hosts) => named(&hosts, text("port").as_deref())?,
            None => listed(hosts, text("port").as_deref())?,
        };
        let tls = tls(&servers, &parameters, text)?;
        Ok(Self { user, servers, database, parameters, tls })
    }

    /// The longest time in which libpq opens a connection, if it has one: `connect_timeout` for each server.
    pub(crate) fn opens_within(&self) -> Option<Duration> {
        let named = self.parameters.iter().rfind(|(name, _)| *name == "connect_timeout");
        let seconds =
            named.and_then(|(_, value)| value.parse().ok()).filter(|seconds| *seconds > 0);
        let servers = u32::try_from(self.servers.len()).unwrap_or(u32::MAX);
        // libpq waits for two seconds at least.
        seconds.map(|seconds: u64| Duration::from_secs(seconds.max(2)).saturating_mul(servers))
    }

    /// The URL without encryption, by which libpq reaches a Unix socket for each server: in `folder`, below the number of the
    /// server.
    pub(crate) fn through(&self, folder: &Path) -> String {
        let mut url = format!("postgres://{}", self.user);
        for (number, server) in self.servers.iter().enumerate() {
            let separator = if number == 0 { "" } else { "," };
            let folder = encoded(&folder.join(number.to_string()));
            // Writing to a string does not fail.
            let _ = write!(url, "{separator}{folder}:{}", server.port);
        }
        url.push_str(self.database);
        url.push_str("?sslmode=disable");
        let is_kept = |name: &str| !name.starts_with("ssl") && name != "host" && name != "port";
        for (name, value) in self.parameters.iter().filter(|(name, _)| is_kept(name)) {
            // Writing to a string does not fail.
            let _ = write!(url, "&{name}={value}");
        }
        url
    }
}

impl PostgresServer {
    /// Whether it is a Unix socket, as it is without a host.
    pub(crate) fn is_socket(&self) -> bool {
        self.host.is_empty() || self.host.starts_with(['/', '@'])
    }

    /// Whether its Unix socket is this file. Without a host, libpq knows the folder.
    pub(crate) fn is_at(&self, socket: &Path) -> bool {
        let folder = socket.parent().filter(|_| !self.host.is_empty());
        socket.ends_with(format!(".s.PGSQL.{}", self.port))
            && folder.is_none_or(|folder| folder == Path::new(&self.host))
    }

    /// Whether it is on this machine.
    fn is_local(&self) -> bool {
        let Self { host, .. } = self;
        let address: Option<std::net::IpAddr> = host.parse().ok();
        self.is_socket()
            || host.eq_ignore_ascii_case("localhost")
            || address.is_some_and(|address| address.is_loopback())
    }
}

/// The servers in the place of hosts in a URL. The parameter of ports is used in place of theirs, as libpq does.
fn listed(hosts: &str, ports: Option<&str>) -> Result<Vec<PostgresServer>, ParseDatabaseUrlError> {
    let servers = hosts.split(',').map(|host| {
        // An IPv6 address is in brackets.
        let (host, port) = match host.strip_prefix('[') {
            Some(host) => match host.split_once(']') {
                Some((host, "")) => (host, ""),
                Some((host, port)) => {
                    (host, port.strip_prefix(':').ok_or(ParseDatabaseUrlError::Form)?)
                }
                None => return Err(ParseDatabaseUrlError::Form),
            },
            None => host.split_once(':').unwrap_or((host, "")),
        };
        Ok(PostgresServer { host: decoded(host).into_owned(), port: parse_port(port)? })
    });
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    match ports {
        Some(ports) => with_ports(servers, ports),
        None => Ok(servers),
    }
}

/// The servers in the parameters of a URL.
fn named(hosts: &str, ports: Option<&str>) -> Result<Vec<PostgresServer>, ParseDatabaseUrlError> {
    let servers = hosts
        .split(',')
        .map(|host| PostgresServer { host: host.to_owned(), port: DEFAULT_PORT })
        .collect();
    with_ports(servers, ports.unwrap_or_default())
}

/// The servers with the ports of a list: one for each, or one for all.
fn with_ports(
    mut servers: Vec<PostgresServer>,
    ports: &str,
) -> Result<Vec<PostgresServer>, ParseDatabaseUrlError> {
    let ports: Vec<_> = ports.split(',').collect();
    if ports.len() != 1 && ports.len() != servers.len() {
        return Err(ParseDatabaseUrlError::Form);
    }
    for (server, port) in servers.iter_mut().zip(ports.into_iter().cycle()) {
        server.port = parse_port(port)?;
    }
    Ok(servers)
}

fn parse_port(port: &str) -> Result<u16, ParseDatabaseUrlError> {
    match port {
        "" => Ok(DEFAULT_PORT),
        port => port.parse().ok().filter(|port| *port > 0).ok_or(ParseDatabaseUrlError::Form),
    }
}

fn tls<'a>(
    servers: &[PostgresServer],
    parameters: &[(&str, &str)],
    text: impl Fn(&str) -> Option<Cow<'a, str>>,
) -> Result<Option<TlsSettings>, ParseDatabaseUrlError> {
    let are_local = servers.iter().all(PostgresServer::is_local);
    let roots = text("sslrootcert").map(|file| match &*file {
        "system" => TlsRoots::System,
        file => TlsRoots::File(file.into()),
    });
    // libpq encrypts no Unix socket.
    if servers.iter().all(PostgresServer::is_socket) {
        return Ok(None);
    }
    let is_system = roots == Some(TlsRoots::System);
    let mode = match text("sslmode").as_deref() {
        Some("disable") => return Ok(None),
        // As libpq does.
        None if is_system => TlsMode::VerifyFull,
        Some(mode) if is_system && mode != "verify-full" => {
            return Err(ParseDatabaseUrlError::TlsSystem);
        }
        None if are_local => return Ok(None),
        None | Some("prefer" | "allow") => TlsMode::Prefer,
        Some("require") if roots.is_some() => TlsMode::VerifyCa,
        Some("require") => TlsMode::Require,
        Some("verify-ca") => TlsMode::VerifyCa,
        Some("verify-full") => TlsMode::VerifyFull,
        Some(_) => return Err(ParseDatabaseUrlError::TlsMode),
    };
    if mode >= TlsMode::VerifyCa && roots.is_none() {
        return Err(ParseDatabaseUrlError::TlsRoots);
    }
    if servers.iter().any(PostgresServer::is_socket) {
        return Err(ParseDatabaseUrlError::TlsSocket);
    }
    let is_unknown = |(name, _): &(&str, &str)| {
        (name.starts_with("ssl") && !KNOWN.contains(name)) || *name == "hostaddr"
    };
    if parameters.iter().any(is_unknown) {
        return Err(ParseDatabaseUrlError::TlsParameter);
    }
    let client = match (text("sslcert"), text("sslkey")) {
        (Some(certificate), Some(key)) => {
            Some((PathBuf::from(&*certificate), PathBuf::from(&*key)))
        }
        (None, None) => None,
        _ => return Err(ParseDatabaseUrlError::TlsClient),
    };
    Ok(Some(TlsSettings { mode, roots, client }))
}

/// A text without percent-encoding.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

/// A path with percent-encoding, in the place of a host.
fn encoded(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                text.push(char::from(*byte));
            }
            // Writing to a string does not fail.
            byte => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(url: &str) -> Vec<(String, u16)> {
        let servers = PostgresUrl::parse(url).unwrap().servers;
        servers.into_iter().map(|server| (server.host, server.port)).collect()
    }

    #[test]
    fn the_servers_of_a_url_are_those_that_libpq_finds() {
        for (url, expected) in [
            ("postgres://db/t", vec![("db", 5432)]),
            ("postgresql://u:p@db:6432/t", vec![("db", 6432)]),
            ("postgres://u:p@a,b:2,[::1]:3/t?x=y", vec![("a", 5432), ("b", 2), ("::1", 3)]),
            ("postgres:///t?host=/run/pg", vec![("/run/pg", 5432)]),
            ("postgres://%2Frun%2Fpg/t", vec![("/run/pg", 5432)]),
            ("postgres://u@/t?host=a,b&port=1,2", vec![("a", 1), ("b", 2)]),
            ("postgres://u@/t?host=a,b&port=7", vec![("a", 7), ("b", 7)]),
            ("postgres://a,b/t?port=7", vec![("a", 7), ("b", 7)]),
            ("postgres://a:1/t?port=7", vec![("a", 7)]),
            ("postgres://a,b/t?port=7,8", vec![("a", 7), ("b", 8)]),
            ("postgres://db", vec![("db", 5432)]),
            ("postgres:///t", vec![("", 5432)]),
            ("postgres://u:a?b@db/t", vec![("db", 5432)]),
            ("postgres:///t?host=/run&user=a@b", vec![("/run", 5432)]),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(host, port)| (host.to_owned(), port)).collect();
            assert_eq!(servers(url), expected, "{url}");
        }
        for url in [
            "postgres://u:a/b@db/t",
            "postgres://db:x/t",
            "postgres://db:0/t",
            "postgres://[::1]7/t",
            "postgres://[::1/t",
            "postgres://a,b,c/t?port=1,2",
            "mysql://db/t",
        ] {
            assert_eq!(PostgresUrl::parse(url), Err(ParseDatabaseUrlError::Form), "{url}");
        }
    }

    #[test]
    fn encryption_is_asked_for_as_libpq_asks() {
        let mode = |url: &str| PostgresUrl::parse(url).map(|url| url.tls.map(|tls| tls.mode));
        for (url, expected) in [
            ("postgres://db/t", Some(TlsMode::Prefer)),
            ("postgres://db/t?sslmode=disable", None),
            ("postgres://localhost/t", None),
            ("postgres://127.0.0.1/t", None),
            ("postgres:///t?host=/run/pg", None),
            ("postgres://localhost,db/t", Some(TlsMode::Prefer)),
            ("postgres://localhost/t?sslmode=require", Some(TlsMode::Require)),
            ("postgres://db/t?sslmode=require&sslrootcert=/ca.pem", Some(TlsMode::VerifyCa)),
            ("postgres://db/t?sslmode=verify-ca&sslrootcert=%2Fca.pem", Some(TlsMode::VerifyCa)),
            ("postgres://db/t?sslmode=verify-full&sslrootcert=system", Some(TlsMode::VerifyFull)),
            ("postgres://db/t?sslrootcert=system", Some(TlsMode::VerifyFull)),
            ("postgres:///t?host=/run/pg&sslmode=require", None),
            ("postgres:///t?sslmode=require", None),
        ] {
            assert_eq!(mode(url), Ok(expected), "{url}");
        }
        for (url, expected) in [
            ("postgres://db/t?sslmode=on", ParseDatabaseUrlError::TlsMode),
            ("postgres://db/t?sslmode=verify-full", ParseDatabaseUrlError::TlsRoots),
            ("postgres://db/t?sslmode=require&sslcrl=/crl", ParseDatabaseUrlError::TlsParameter),
            (
                "postgres://db/t?sslmode=require&hostaddr=1.2.3.4",
                ParseDatabaseUrlError::TlsParameter,
            ),
            (
                "postgres://db/t?sslmode=verify-ca&sslrootcert=system",
                ParseDatabaseUrlError::TlsSystem,
            ),
            ("postgres:///t?host=/run,db&sslmode=require", ParseDatabaseUrlError::TlsSocket),
            ("postgres://db/t?sslmode=require&sslcert=/c.pem", ParseDatabaseUrlError::TlsClient),
        ] {
            assert_eq!(mode(url), Err(expected), "{url}");
        }
        let url = "postgres://db/t?sslmode=require&sslrootcert=/a%20b.pem&sslcert=/c&sslkey=/k";
        let tls = PostgresUrl::parse(url).unwrap().tls.unwrap();
        assert_eq!(tls.roots, Some(TlsRoots::File("/a b.pem".into())));
        assert_eq!(tls.client, Some(("/c".into(), "/k".into())));
    }

    #[test]
    fn libpq_is_led_through_a_socket_for_each_server() {
        let url = PostgresUrl::parse(
            "postgres://u:p%40@a,b:2/t%20t?sslmode=require&target_session_attrs=read-write&port=9",
        )
        .unwrap();
        assert_eq!(
            url.through(Path::new("/tmp/x")),
            "postgres://u:p%40@%2Ftmp%2Fx%2F0:9,%2Ftmp%2Fx%2F1:9/t%20t?sslmode=disable\
             &target_session_attrs=read-write"
        );
    }
}
