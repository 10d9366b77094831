//! The headers that pass, in both directions.
//!
//! End-to-end headers pass unchanged. Not passed on are headers of one connection, headers for this
//! service, and headers that bind the client to the provider's origin (cookies, alternative
//! services). A trace context passes if it is valid.

use std::fmt;

use awc::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use tollgate_domain::{Issue, MerchantId};
use tollgate_usage::Dialect;

use crate::key_header::{KeyHeader, key_header};
use crate::table::{Endpoint, is_header_value};
use crate::trace::{self, trace_id};

/// The headers of an answer, for those who read its usage.
#[derive(Clone, Copy, Debug)]
pub struct AnswerHeaders<'a>(pub &'a HeaderMap);

impl tollgate_usage::Headers for AnswerHeaders<'_> {
    fn line(&self, name: &'static str, number: usize) -> Option<&[u8]> {
        self.0.get_all(name).nth(number).map(HeaderValue::as_bytes)
    }
}

/// The key with which a call is made.
#[derive(Clone, PartialEq, Eq)]
pub enum ProviderKey {
    /// The operator's key, from the configuration.
    Managed,
    /// The merchant's own key.
    Own(String),
}

impl ProviderKey {
    /// The caller's key, if it can be sent in a header.
    ///
    /// # Errors
    /// An issue with an empty path, which the caller completes.
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

/// Headers of one connection (RFC 9110, 7.6.1), with names that are older than that rule.
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

/// Headers for this service or proxies before it, and headers that the client writes itself.
/// `expect` is among them because the whole body has been received.
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

/// Headers that choose an account of a key, or the service and price of a call. With the operator's
/// key, the caller may not choose these beside the body.
const ACCOUNT_SELECTING: [&str; 22] = [
    // Another path or model, a part of an answer, or a later answer.
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

/// Headers about the provider's origin, which the client did not call. Others make a browser act on
/// the origin of this service.
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
/// Keeps a browser that opens an answer from running any of it, and from guessing another type.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");
const NO_SNIFFING: HeaderValue = HeaderValue::from_static("nosniff");

/// Anthropic requires a version. This one is sent if the client sends none.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
const DEFAULT_ANTHROPIC_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
/// The content encodings that can be read.
const UNDERSTOOD: [&str; 6] = ["identity", "gzip", "x-gzip", "deflate", "br", "zstd"];

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

/// The headers of a call to the provider.
///
/// With `identity` no compression is requested, because an event can only be removed from a stream
/// that is not compressed. Otherwise the encodings of the client's `accept-encoding` that can be
/// read pass, or `identity` if there are none. The sending client writes `host` and
/// `content-length`. An `idempotency-key` gets a hash of `merchant` as its prefix, because all
/// merchants share the operator's account.
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
            // Of the client's own connection, and perhaps with its key.
            || text.starts_with("sec-websocket-")
            || (managed && ACCOUNT_SELECTING.contains(&text))
            // Some gateways treat an underscore as a hyphen.
            || (managed && text.contains('_'))
            || (text == trace::PARENT && !is_traced)
            || (text == trace::STATE && !(is_traced && trace::is_valid_state(incoming)))
            || listed.iter().any(|listed| listed == text);
        if !stays {
            outgoing.append(name.clone(), value.clone());
        }
    }
    let accepted = if identity { IDENTITY } else { accepted_encodings(&outgoing) };
    outgoing.insert(header::ACCEPT_ENCODING, accepted);
    if let Some(key) = outgoing.get(IDEMPOTENCY_KEY).and_then(|key| of_merchant(key, merchant)) {
        outgoing.insert(IDEMPOTENCY_KEY, key);
    }
    add_key(&mut outgoing, endpoint, key);
    outgoing
}

/// The accepted encodings that can be read, with their weights; `identity` if there are none.
fn accepted_encodings(headers: &HeaderMap) -> HeaderValue {
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

/// An idempotency key that differs from the keys of all other merchants.
fn of_merchant(key: &HeaderValue, merchant: MerchantId) -> Option<HeaderValue> {
    // A key that is cut is hashed whole, so that keys with the same start differ.
    let is_cut = key.len() > MAX_IDEMPOTENCY_KEY_BYTES - 17;
    let whole = if is_cut { key.as_bytes() } else { b"" };
    let hash = Sha256::digest([merchant.to_string().as_bytes(), whole].concat());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut bytes = [hash.as_bytes(), b"-", key.as_bytes()].concat();
    bytes.truncate(MAX_IDEMPOTENCY_KEY_BYTES);
    HeaderValue::from_bytes(&bytes).ok()
}

fn add_key(outgoing: &mut HeaderMap, endpoint: &Endpoint, key: &ProviderKey) {
    if endpoint.format.dialect == Dialect::Anthropic && !outgoing.contains_key(ANTHROPIC_VERSION) {
        outgoing.insert(ANTHROPIC_VERSION, DEFAULT_ANTHROPIC_VERSION);
    }
    let key = match key {
        ProviderKey::Managed => endpoint.provider.api_key(),
        ProviderKey::Own(key) => Some(key.as_str()),
    };
    let Some(key) = key else { return };
    let (name, value) = match key_header(endpoint.format.dialect) {
        KeyHeader::Bearer => (header::AUTHORIZATION, format!("Bearer {key}")),
        KeyHeader::Token => (header::AUTHORIZATION, format!("Token {key}")),
        KeyHeader::Named(name) => (HeaderName::from_static(name), key.to_owned()),
    };
    // Keys are checked when they are configured or received. An invalid key is not sent, and the
    // provider refuses the call.
    if let Ok(mut value) = HeaderValue::from_str(&value) {
        value.set_sensitive(true);
        outgoing.insert(name, value);
    }
}

/// Removes the headers of the provider's answer that may not reach the client.
///
/// `content-length` is kept, because the body is unchanged. With `usage_inserted` an event is
/// removed from the body, so its length and digests are removed too.
pub fn response_headers(mut headers: HeaderMap, usage_inserted: bool) -> HeaderMap {
    const OF_THE_WHOLE_BODY: [&str; 5] =
        ["content-length", "content-digest", "repr-digest", "digest", "content-md5"];
    let listed = connection_listed(&headers);
    headers.retain(|name, _| {
        let text = name.as_str();
        let stays = HOP_BY_HOP.contains(&text)
            || NOT_RETURNED.contains(&text)
            // The client would take them for headers of this service.
            || text.starts_with("x-service-")
            || (usage_inserted && OF_THE_WHOLE_BODY.contains(&text))
            || listed.iter().any(|listed| listed == text);
        !stays
    });
    headers.insert(header::CONTENT_SECURITY_POLICY, SANDBOX);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NO_SNIFFING);
    headers
}

/// The header names that `Connection` lists: they belong to that connection too.
fn connection_listed(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect()
}
