//! Endpoints: the place at a provider that a URL means, if there is one way to read it.

use std::fmt;
use std::sync::Arc;

use awc::http::header::HeaderValue;
use awc::http::uri::Authority;
use awc::http::{Method, Uri};
use tollgate_domain::RequestFormat;
use tollgate_usage::dialect::path_matches;
use tollgate_usage::{Dialect, EndpointFormat};
use url::Url;

use super::provider::{Mount, Provider, shape_of};
use crate::address::pool_uri;

/// The longest URL. Longer ones are refused before they are parsed.
const MAX_URL_BYTES: usize = 8 * 1024;

/// The start of the paths of WebSockets below an origin, such as those of Gemini Live.
const SOCKETS_AT_ORIGIN: &str = "/ws/";

/// The target of a call: a provider, one of its URLs, and the facts known about it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The provider.
    pub provider: Arc<Provider>,
    /// The facts that decide how its bodies are read.
    pub format: EndpointFormat,
    /// The method.
    pub method: Method,
    /// The whole URL, query included. It may carry the caller's secrets: store
    /// [`Endpoint::recorded_url`] instead.
    pub url: Url,
    /// The URL without parts that may be a secret.
    recorded: String,
    /// The URI that the client connects to and requests, and the host name that it sends.
    pub(crate) target: (Uri, HeaderValue),
}

impl Endpoint {
    /// Whether the operator's key may be used here. The key opens a whole account, so a row of the
    /// table, or of the provider's `managed_endpoints`, must list the endpoint.
    pub fn allows_managed_key(&self) -> bool {
        let listed = |path: &str| {
            let mut rows = self.provider.managed_endpoints.iter();
            rows.any(|(method, pattern)| *method == self.method && path_matches(pattern, path))
        };
        let below = |base| relative_path(base, "", &self.url);
        self.format.operation.is_some() || below(&self.provider.base_url).is_some_and(listed)
    }

    /// The endpoint of the transcriptions of its input, which are calls of their own.
    #[must_use]
    pub fn of_transcriptions(&self) -> Self {
        Self { format: self.format.of_transcriptions(), ..self.clone() }
    }

    /// The endpoint of the responses that a session delegates its work to, which are calls of their own.
    #[must_use]
    pub fn of_responses(&self) -> Self {
        Self { format: self.format.of_responses(), ..self.clone() }
    }

    /// The format of its requests, if it has one and it is known.
    pub fn shape(&self) -> Option<RequestFormat> {
        let EndpointFormat { operation, dialect, .. } = &self.format;
        let stated = operation.and_then(|operation| shape_of(operation.api));
        let of_dialect = match dialect {
            Dialect::OpenAi | Dialect::Azure => Some(RequestFormat::ShapeA),
            Dialect::Anthropic => Some(RequestFormat::ShapeB),
            _ => None,
        };
        stated.or(of_dialect).filter(|_| self.method != Method::GET)
    }

    /// The URL without the query parameters that may carry a secret.
    pub fn recorded_url(&self) -> &str {
        &self.recorded
    }

    /// Whether a part of the URL is not recorded.
    pub(super) fn may_carry_secret(&self) -> bool {
        self.recorded != self.url.as_str()
    }

    /// The endpoint of `path` below a part of `provider`, at `url`.
    pub(super) fn new(
        provider: &Arc<Provider>,
        mount: &Mount,
        method: &Method,
        path: &str,
        url: &Url,
    ) -> Result<Self, EndpointError> {
        let uri = client_uri(url).ok_or(EndpointError::NotNormal)?;
        Ok(Self {
            recorded: recorded_url(url),
            target: target(&uri).ok_or(EndpointError::NotNormal)?,
            provider: Arc::clone(provider),
            format: EndpointFormat {
                provider: Arc::clone(&provider.traits),
                method: http::Method::from_bytes(method.as_str().as_bytes())
                    .map_err(|_| EndpointError::NotNormal)?,
                dialect: mount.dialect,
                operation: mount.operation(method, path),
                path: path.to_owned(),
                query: url.query().map(str::to_owned),
            },
            method: method.clone(),
            url: url.clone(),
        })
    }
}

/// A URL without the query pairs that may carry a secret.
fn recorded_url(url: &Url) -> String {
    let mut recorded = url.clone();
    let Some(query) = url.query() else { return recorded.into() };
    // Kept pairs are copied unchanged: the record shows the called URL.
    let kept: Vec<_> = query.split('&').filter(|pair| !carries_secret(pair)).collect();
    recorded.set_query((!kept.is_empty()).then(|| kept.join("&")).as_deref());
    recorded.into()
}

/// Whether the name of a query pair marks a credential. Names are compared by their parts, after
/// decoding; a match too many is better than a miss.
fn carries_secret(pair: &str) -> bool {
    const MARKS: [&str; 9] =
        ["key", "token", "secret", "password", "auth", "sig", "credential", "session", "jwt"];
    url::form_urlencoded::parse(pair.as_bytes()).any(|(name, _)| {
        let name = name.to_ascii_lowercase();
        MARKS.iter().any(|mark| name.contains(mark))
    })
}

/// The reason that a URL is not forwarded to. Its text is for the caller and repeats no part of the
/// URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointError {
    /// It is longer than 8 KiB.
    TooLong,
    /// It is not a URL with a scheme and a host.
    NotAUrl,
    /// It has characters that no URL has.
    Characters,
    /// It names a user or password.
    UserInfo,
    /// It is not in normal form, so another parser might read another URL.
    Fragment,
    /// It is not in normal form, so that another parser might understand another URL.
    NotNormal,
    /// Its path has empty, dotted or doubly encoded segments.
    AmbiguousPath,
    /// No configured provider has this origin and path prefix.
    UnknownProvider,
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "must have at most 8192 bytes",
            Self::NotAUrl => "must be an absolute https URL",
            Self::Characters => {
                "must not have spaces, control characters, backslashes or characters beyond ASCII"
            }
            Self::UserInfo => "must not contain a user name or password",
            Self::Fragment => "must not have a fragment",
            Self::NotNormal => {
                "must be in normal form: lower-case scheme and host, no default port, no dot \
                 segments, special characters percent-encoded"
            }
            Self::AmbiguousPath => {
                "must not have '//', or encoded slashes, dots, backslashes, percent signs or \
                 control characters, in its path"
            }
            Self::UnknownProvider => {
                "must have the scheme, host, port and path prefix of a configured provider"
            }
        })
    }
}

impl std::error::Error for EndpointError {}

impl Provider {
    /// The part of its API that contains `url`, and the path below that part. Of several parts, the
    /// one with the longest prefix; of equal prefixes, the first that lists the endpoint.
    pub(super) fn mount_at<'a>(&self, method: &Method, url: &'a Url) -> Option<(&Mount, &'a str)> {
        let at_home = same_origin(&self.base_url, url);
        if let Some(mount) = self.mount_of_socket(method, url.path()).filter(|_| at_home) {
            return Some((mount, url.path()));
        }
        let mounts = self
            .mounts
            .iter()
            .filter(|_| at_home)
            .filter_map(|mount| Some((mount, relative_path(&self.base_url, mount.path, url)?)));
        mounts.min_by_key(|(mount, path)| (path.len(), mount.operation(method, path).is_none()))
    }

    /// The part of its API that lists a WebSocket whose path is below the origin, and not below the base URL.
    fn mount_of_socket(&self, method: &Method, path: &str) -> Option<&Mount> {
        let is_socket = *method == Method::CONNECT && path.starts_with(SOCKETS_AT_ORIGIN);
        self.mounts.iter().find(|mount| is_socket && mount.operation(method, path).is_some())
    }

    /// The endpoint of a WebSocket whose path is below the origin.
    fn socket_at_origin(
        self: &Arc<Self>,
        method: &Method,
        path: &str,
        query: Option<&str>,
    ) -> Option<Endpoint> {
        let mount = self.mount_of_socket(method, path)?;
        let origin = self.base_url.origin().ascii_serialization();
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let url = parse(&format!("{origin}{path}{query}")).ok()?;
        Endpoint::new(self, mount, method, path, &url).ok()
    }

    /// The endpoint at `path` below the base URL, listed or not. A path that repeats the path of
    /// the base URL, as SDKs add it, is read from the origin on. Path and query come from the
    /// caller and must keep the rules of [`ProviderTable::resolve`](super::ProviderTable::resolve).
    ///
    /// # Errors
    /// [`EndpointError`] says which rule they break.
    pub fn endpoint_at(
        self: &Arc<Self>,
        method: &Method,
        path: &str,
        query: Option<&str>,
    ) -> Result<Endpoint, EndpointError> {
        if let Some(endpoint) = self.socket_at_origin(method, path, query) {
            return Ok(endpoint);
        }
        let base = self.base_url.as_str().trim_end_matches('/');
        let prefix = self.base_url.path().trim_end_matches('/');
        let repeated = path.strip_prefix(prefix).filter(|rest| rest.starts_with('/'));
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let url = parse(&format!("{base}{}{query}", repeated.unwrap_or(path)))?;
        let (mount, path) = self.mount_at(method, &url).ok_or(EndpointError::UnknownProvider)?;
        Endpoint::new(self, mount, method, path, &url)
    }

    /// The endpoint at `path` below one of its parts, if a row lists it. Path and query come from
    /// the caller and must keep the rules of
    /// [`ProviderTable::resolve`](super::ProviderTable::resolve). They cannot lead anywhere else.
    /// `None` also if they break a rule.
    pub fn endpoint(
        self: &Arc<Self>,
        method: &Method,
        path: &str,
        query: Option<&str>,
    ) -> Option<Endpoint> {
        let base = &self.base_url;
        let query = query.filter(|query| !query.is_empty());
        if let Some(endpoint) = self.socket_at_origin(method, path, query) {
            return Some(endpoint);
        }
        self.mounts.iter().find_map(|mount| {
            let mut u = format!("{}{}{path}", base.as_str().trim_end_matches('/'), mount.path);
            if let Some(query) = query {
                u.push('?');
                u.push_str(query);
            }
            let url = parse(&u).ok()?;
            let as_given = same_origin(base, &url)
                && relative_path(base, mount.path, &url) == Some(path)
                && url.query() == query;
            let endpoint =
                as_given.then(|| Endpoint::new(self, mount, method, path, &url).ok())??;
            endpoint.format.operation.is_some().then_some(endpoint)
        })
    }
}

pub(super) fn parse(u: &str) -> Result<Url, EndpointError> {
    if u.len() > MAX_URL_BYTES {
        return Err(EndpointError::TooLong);
    }
    if u.bytes().any(|b| !b.is_ascii_graphic() || b == b'\\') {
        return Err(EndpointError::Characters);
    }
    let url = Url::parse(u).map_err(|_| EndpointError::NotAUrl)?;
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none_or(str::is_empty) {
        return Err(EndpointError::NotAUrl);
    }
    let authority_end = u.find("://").and_then(|at| u.get(at.saturating_add(3)..));
    let authority = authority_end.and_then(|rest| rest.split(['/', '?', '#']).next());
    if authority.is_none_or(|authority| authority.contains('@')) {
        return Err(EndpointError::UserInfo);
    }
    if url.fragment().is_some() {
        return Err(EndpointError::Fragment);
    }
    if url.as_str() != u || url.host_str().is_some_and(|host| host.ends_with('.')) {
        return Err(EndpointError::NotNormal);
    }
    if ambiguous_path(url.path()) {
        return Err(EndpointError::AmbiguousPath);
    }
    Ok(url)
}

/// Whether two servers might read a path in two ways: empty segments, dot segments, and encoded
/// characters with a meaning after decoding (`/`, `\`, `.`, `%`, controls).
pub(super) fn ambiguous_path(path: &str) -> bool {
    const CODES: [&str; 5] = ["2f", "5c", "2e", "25", "7f"];
    let encoded = path.split('%').skip(1).any(|after| {
        let code = after.get(..2).unwrap_or_default().to_ascii_lowercase();
        code.len() < 2
            || !code.bytes().all(|b| b.is_ascii_hexdigit())
            || code.starts_with(['0', '1'])
            || CODES.contains(&code.as_str())
    });
    encoded
        || path.contains("//")
        || path.contains('\\')
        || path.split('/').any(|segment| matches!(segment, "." | ".."))
}

fn same_origin(base: &Url, url: &Url) -> bool {
    base.scheme() == url.scheme()
        && base.host_str() == url.host_str()
        && base.port_or_known_default() == url.port_or_known_default()
}

/// The path after the paths of the base URL and of a mount; `None` unless each prefix ends at the
/// end of a segment.
fn relative_path<'a>(base: &Url, mount: &str, url: &'a Url) -> Option<&'a str> {
    let rest = url.path().strip_prefix(base.path().trim_end_matches('/'))?;
    let rest = rest.strip_prefix(mount)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// The URL in the client's own parser, which must read exactly the same parts.
fn client_uri(url: &Url) -> Option<Uri> {
    let uri: Uri = url.as_str().parse().ok()?;
    let path_and_query = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let same = uri.scheme_str() == Some(url.scheme())
        && uri.host() == url.host_str()
        && uri.port_u16() == url.port()
        && uri.path_and_query().map(|p| p.as_str()) == Some(path_and_query.as_str());
    same.then_some(uri)
}

/// The requested URI, and the host name in the caller's spelling.
fn target(uri: &Uri) -> Option<(Uri, HeaderValue)> {
    let host = uri.authority().map(Authority::as_str)?;
    Some((pool_uri(uri)?, HeaderValue::from_str(host).ok()?))
}
