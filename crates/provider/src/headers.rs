//! Which headers pass, in both directions.
//!
//! End-to-end headers pass as they are. What belongs to one connection stays on it, what belongs
//! to the caller's dealings with this service stays here, and what would bind the client to the
//! provider's origin (cookies, alternative services) stays there. Of a trace passes what is valid.

use std::fmt;

use awc::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use tollgate_domain::{Issue, MerchantId};

use crate::dialect::{Dialect, KeyHeader};
use crate::table::{Endpoint, is_header_value};
use crate::trace::{self, trace_id};

/// Whose key a call is made with.
#[derive(Clone, PartialEq, Eq)]
pub enum ProviderKey {
    /// The operator's, from the configuration.
    Managed,
    /// The caller's.
    Own(String),
}

impl ProviderKey {
    /// The caller's key, if it can be sent at all.
    ///
    /// # Errors
    /// An issue with an empty path, for the caller to place.
    pub fn own(key: String) -> Result<Self, Issue> {
        match is_header_value(&key) {
            true => Ok(Self::Own(key)),
            false => Err(Issue::at([], "must be visible ASCII characters without spaces")),
        }
    }
}

/// Never prints the key.
impl fmt::Debug for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Managed => "Managed",
            Self::Own(_) => "Own(…)",
        })
    }
}

/// Headers of one connection (RFC 9110, 7.6.1), with the names that are older than the rule.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "proxy-authenticate",
    "proxy-authentication-info",
];

/// What the caller says to this service or to proxies before it, and what the client writes anew.
/// `expect` is among them because the whole body is here already.
const NOT_FORWARDED: [&str; 16] = [
    "host",
    "content-length",
    "expect",
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "xi-api-key",
    "cookie",
    "cookie2",
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
];

/// Choose among the accounts that a key opens, or what is done there at which price, beside the body:
/// with the operator's key that is not the caller's choice.
const ACCOUNT_SELECTING: [&str; 22] = [
    // Another path, another model, a part of an answer, or an answer that comes later.
    "x-original-url",
    "x-rewrite-url",
    "x-model",
    "range",
    "if-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "prefer",
    "openai-organization",
    "openai-project",
    "x-goog-user-project",
    "x-goog-fieldmask",
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-amzn-bedrock-service-tier",
    "x-amzn-bedrock-performanceconfig-latency",
    "x-amzn-bedrock-guardrailidentifier",
    "x-amzn-bedrock-guardrailversion",
    "x-amzn-bedrock-trace",
];

/// Speak about the provider's origin, which is not the one that the client called, or have a browser
/// act on ours.
const NOT_RETURNED: [&str; 14] = [
    "set-cookie",
    "set-cookie2",
    "alt-svc",
    "strict-transport-security",
    "clear-site-data",
    "public-key-pins",
    "public-key-pins-report-only",
    "service-worker-allowed",
    "nel",
    "report-to",
    "reporting-endpoints",
    "refresh",
    "www-authenticate",
    "content-security-policy-report-only",
];
/// A browser that is led to an answer of a provider runs nothing of it, and takes it for nothing else than
/// its type says.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");
const NO_SNIFFING: HeaderValue = HeaderValue::from_static("nosniff");

/// Anthropic demands a version; this is the one to speak when the client does not say.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
const DEFAULT_ANTHROPIC_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
/// The encodings in which an answer can be read.
const UNDERSTOOD: [&str; 6] = ["identity", "gzip", "x-gzip", "deflate", "br", "zstd"];

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

/// The headers of a call to the provider.
///
/// With `identity` the provider is asked not to compress, which a stream must not be from which an
/// event is to be removed. Otherwise those of the client's `accept-encoding` pass that can be read,
/// and `identity` stands in their place if there are none. `host` and `content-length` are left to the
/// client that sends. An `idempotency-key` begins with a hash of `merchant`: all merchants share the
/// operator's account.
pub fn request_headers(
    incoming: &HeaderMap,
    endpoint: &Endpoint,
    key: &ProviderKey,
    merchant: MerchantId,
    identity: bool,
) -> HeaderMap {
    let listed = connection_listed(incoming);
    let managed = *key == ProviderKey::Managed;
    let is_traced = trace_id(incoming).is_some();
    let mut outgoing = HeaderMap::with_capacity(incoming.len().saturating_add(3));
    for (name, value) in incoming {
        let text = name.as_str();
        let stays = HOP_BY_HOP.contains(&text)
            || NOT_FORWARDED.contains(&text)
            || text.starts_with("x-service-")
            || text.starts_with("x-forwarded-")
            || text.starts_with("proxy-")
            || (managed && ACCOUNT_SELECTING.contains(&text))
            // Gateways to programs take an underscore for a hyphen.
            || (managed && text.contains('_'))
            || (text == trace::PARENT && !is_traced)
            || (text == trace::STATE && !(is_traced && trace::is_valid_state(incoming)))
            || listed.iter().any(|listed| listed == text);
        if !stays {
            outgoing.append(name.clone(), value.clone());
        }
    }
    let accepted = if identity { IDENTITY } else { understood(&outgoing) };
    outgoing.insert(header::ACCEPT_ENCODING, accepted);
    if let Some(key) = outgoing.get(IDEMPOTENCY_KEY).and_then(|key| of_merchant(key, merchant)) {
        outgoing.insert(IDEMPOTENCY_KEY, key);
    }
    add_key(&mut outgoing, endpoint, key);
    outgoing
}

/// Those of the accepted encodings that can be read, with their weights; `identity` if there are none.
fn understood(headers: &HeaderMap) -> HeaderValue {
    let lists = headers.get_all(header::ACCEPT_ENCODING).filter_map(|value| value.to_str().ok());
    let accepted: Vec<&str> = lists
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|one| {
            let name = one.split(';').next().unwrap_or_default().trim();
            UNDERSTOOD.iter().any(|known| name.eq_ignore_ascii_case(known))
        })
        .collect();
    match accepted.as_slice() {
        [] => IDENTITY,
        some => HeaderValue::from_str(&some.join(", ")).unwrap_or(IDENTITY),
    }
}

/// An idempotency key that no other merchant can send.
fn of_merchant(key: &HeaderValue, merchant: MerchantId) -> Option<HeaderValue> {
    // Of a key that has to be cut, the hash tells apart what is left out.
    let is_cut = key.len() > MAX_IDEMPOTENCY_KEY_BYTES - 17;
    let whole = if is_cut { key.as_bytes() } else { b"" };
    let hash = Sha256::digest([merchant.to_string().as_bytes(), whole].concat());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut bytes = [hash.as_bytes(), b"-", key.as_bytes()].concat();
    bytes.truncate(MAX_IDEMPOTENCY_KEY_BYTES);
    HeaderValue::from_bytes(&bytes).ok()
}

fn add_key(outgoing: &mut HeaderMap, endpoint: &Endpoint, key: &ProviderKey) {
    if endpoint.dialect == Dialect::Anthropic && !outgoing.contains_key(ANTHROPIC_VERSION) {
        outgoing.insert(ANTHROPIC_VERSION, DEFAULT_ANTHROPIC_VERSION);
    }
    let key = match key {
        ProviderKey::Managed => endpoint.provider.api_key(),
        ProviderKey::Own(key) => Some(key.as_str()),
    };
    let Some(key) = key else { return };
    let (name, value) = match endpoint.dialect.key_header() {
        KeyHeader::Bearer => (header::AUTHORIZATION, format!("Bearer {key}")),
        KeyHeader::Token => (header::AUTHORIZATION, format!("Token {key}")),
        KeyHeader::Named(name) => (HeaderName::from_static(name), key.to_owned()),
    };
    // Keys are checked where they come in; one that cannot be sent is not, and the provider says so.
    if let Ok(mut value) = HeaderValue::from_str(&value) {
        value.set_sensitive(true);
        outgoing.insert(name, value);
    }
}

/// Leaves those of the headers of the provider's answer that reach the client.
///
/// `content-length` is kept, because the body is not changed; with `usage_inserted` an event is
/// removed from it, so the length goes, and with it the digests of the body.
pub fn response_headers(mut headers: HeaderMap, usage_inserted: bool) -> HeaderMap {
    const OF_THE_WHOLE_BODY: [&str; 5] =
        ["content-length", "content-digest", "repr-digest", "digest", "content-md5"];
    let listed = connection_listed(&headers);
    headers.retain(|name, _| {
        let text = name.as_str();
        let stays = HOP_BY_HOP.contains(&text)
            || NOT_RETURNED.contains(&text)
            || (usage_inserted && OF_THE_WHOLE_BODY.contains(&text))
            || listed.iter().any(|listed| listed == text);
        !stays
    });
    headers.insert(header::CONTENT_SECURITY_POLICY, SANDBOX);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NO_SNIFFING);
    headers
}

/// The header names that `Connection` lists: they are of that connection as well.
fn connection_listed(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect()
}
