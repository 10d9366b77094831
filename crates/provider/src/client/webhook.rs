//! The client that posts messages to webhooks. Merchants name the URLs, so the risks are the same
//! as with providers, and the connections are the same: addresses are checked when they are
//! connected to, and no redirect is followed.

use std::fmt;
use std::time::Duration;

use awc::ClientResponse;
use awc::http::header::{self, HeaderMap, HeaderValue};
use awc::http::{Method, Uri};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout, timeout_at};
use tollgate_domain::{DeliveryFault, MAX_ANSWER_BYTES};
use url::{Host, Url};

use super::connect::{self, ConnectionClass, client};
use super::error::{NotSentReason, SendError, send_error};
use super::resolver::Resolver;
use crate::address::{is_public, pool_uri};

/// The URLs that merchants may name, beyond https at public addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookUrlPolicy {
    /// Plain HTTP.
    pub http: bool,
    /// Private addresses.
    pub private_network: bool,
}

/// A URL that messages may be sent to, as far as this is known without its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl(Uri);

/// The reason that a URL is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookUrlError {
    /// It is not a URL of the web.
    Invalid,
    /// It is longer than 2,048 characters.
    TooLong,
    /// It is plain HTTP, which is not allowed.
    NotSecure,
    /// It holds a user or password.
    Credentials,
    /// It holds a fragment, which is never sent.
    Fragment,
    /// It names this machine or a private address, which is not allowed.
    Private,
}

/// The longest URL.
const MAX_URL_BYTES: usize = 2_048;

impl fmt::Display for WebhookUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("must be a URL, such as https://example.com/webhooks"),
            Self::TooLong => write!(f, "must have at most {MAX_URL_BYTES} characters"),
            Self::NotSecure => {
                f.write_str("must begin with https://, unless the operator sets webhook_allow_http")
            }
            Self::Credentials => f.write_str(
                "must not hold a user or password; verify the signature of the message instead",
            ),
            Self::Fragment => f.write_str("must not have a fragment (#…): it is never sent"),
            Self::Private => f.write_str(
                "must not name this machine or a private address, unless the operator sets \
                 webhook_allow_private_network",
            ),
        }
    }
}

impl std::error::Error for WebhookUrlError {}

impl WebhookUrl {
    /// Checks a URL. A name is checked by its addresses when a message is sent.
    ///
    /// # Errors
    /// [`WebhookUrlError`] says what a valid URL looks like.
    pub fn parse(text: &str, reach: WebhookUrlPolicy) -> Result<Self, WebhookUrlError> {
        use WebhookUrlError as Error;
        if text.len() > MAX_URL_BYTES {
            return Err(Error::TooLong);
        }
        // The parser is more lenient than a reader of the URL expects, so the text is checked
        // first.
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        let (_, rest) = text.split_once("://").filter(|_| is_plain).ok_or(Error::Invalid)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err(Error::Credentials);
        }
        let is_somewhere = !authority.is_empty() && !authority.ends_with(":0");
        let url = Url::parse(text).ok().filter(|_| is_somewhere).ok_or(Error::Invalid)?;
        match url.scheme() {
            "https" => {}
            "http" if reach.http => {}
            "http" => return Err(Error::NotSecure),
            _ => return Err(Error::Invalid),
        }
        if url.fragment().is_some() {
            return Err(Error::Fragment);
        }
        let is_private = match url.host().ok_or(Error::Invalid)? {
            Host::Ipv4(address) => !is_public(address.into()),
            Host::Ipv6(address) => !is_public(address.into()),
            Host::Domain(name) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                name == "localhost" || name.ends_with(".localhost")
            }
        };
        if is_private && !reach.private_network {
            return Err(Error::Private);
        }
        // The checked URL is the one that is sent to, in the form that its parser writes.
        url.as_str().parse().map(Self).map_err(|_| Error::Invalid)
    }
}

/// The time for an answer, from the look-up of the host to the status.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The additional time for the body, which is only kept for display.
const BODY_WITHIN: Duration = Duration::from_secs(1);

/// The answer of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookResponse {
    /// The status.
    pub status: u16,
    /// The beginning of the body, at most [`MAX_ANSWER_BYTES`].
    pub body: Vec<u8>,
}

/// Posts messages. Not `Send`: it belongs to one thread. Each message has its own connection, so
/// that addresses are checked every time.
#[derive(Clone)]
pub struct WebhookClient {
    reach: WebhookUrlPolicy,
    secure: awc::Client,
    plain: awc::Client,
}

impl WebhookClient {
    /// A client that takes addresses from `resolver`.
    pub fn new(reach: WebhookUrlPolicy, resolver: &Resolver) -> Self {
        let tls = connect::tls_config();
        let client = |is_secure| {
            let lane =
                ConnectionClass { tls: is_secure, private: reach.private_network, socket: false };
            client(lane, &tls, resolver, ANSWER_WITHIN)
        };
        Self { reach, secure: client(true), plain: client(false) }
    }

    /// Posts a message and waits for the answer, ten seconds at most.
    ///
    /// # Errors
    /// [`DeliveryFault`] if there is no answer. An answer with an error status is no fault.
    pub async fn post(
        &self,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<WebhookResponse, DeliveryFault> {
        let response = self.send(Method::POST, url, headers, body).await?;
        Ok(WebhookResponse { status: response.status().as_u16(), body: beginning(response).await })
    }

    /// Asks for the head of a URL, and returns the status. It shows whether messages would get there.
    ///
    /// # Errors
    /// [`DeliveryFault`] if there is no answer. An answer with an error status is no fault.
    pub async fn probe(&self, url: &str) -> Result<u16, DeliveryFault> {
        let response = self.send(Method::HEAD, url, HeaderMap::new(), Bytes::new()).await?;
        Ok(response.status().as_u16())
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<ClientResponse, DeliveryFault> {
        let WebhookUrl(uri) =
            WebhookUrl::parse(url, self.reach).map_err(|_| DeliveryFault::UrlRefused)?;
        let target = pool_uri(&uri).ok_or(DeliveryFault::UrlRefused)?;
        let host = uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        let is_secure = uri.scheme_str() == Some("https");
        let client = if is_secure { &self.secure } else { &self.plain };
        let mut request = client.request(method, target).no_decompress().force_close();
        *request.headers_mut() = headers;
        request.headers_mut().insert(header::HOST, host.ok_or(DeliveryFault::UrlRefused)?);
        let sent = match body.is_empty() {
            true => timeout(ANSWER_WITHIN, request.send()).await,
            false => timeout(ANSWER_WITHIN, request.send_body(body)).await,
        };
        sent.map_err(|_| DeliveryFault::TimedOut)?.map_err(|error| fault(send_error(&error)))
    }
}

/// The part of a body that comes in its time, up to [`MAX_ANSWER_BYTES`].
async fn beginning(mut response: ClientResponse) -> Vec<u8> {
    let mut body = Vec::new();
    let end = Instant::now() + BODY_WITHIN;
    while body.len() < MAX_ANSWER_BYTES
        && let Ok(Some(Ok(piece))) = timeout_at(end, response.next()).await
    {
        let room = MAX_ANSWER_BYTES.saturating_sub(body.len());
        body.extend_from_slice(piece.get(..room).unwrap_or(&piece));
    }
    body
}

const fn fault(error: SendError) -> DeliveryFault {
    match error {
        SendError::NotSent(NotSentReason::Dns) => DeliveryFault::NameNotFound,
        SendError::NotSent(NotSentReason::PrivateAddress) => DeliveryFault::AddressPrivate,
        SendError::NotSent(NotSentReason::Refused) => DeliveryFault::Unreachable,
        SendError::NotSent(NotSentReason::Tls) => DeliveryFault::TlsFailed,
        SendError::NotSent(NotSentReason::Invalid) => DeliveryFault::UrlRefused,
        SendError::NotSent(NotSentReason::TimedOut) | SendError::NoAnswer { timed_out: true } => {
            DeliveryFault::TimedOut
        }
        SendError::NoAnswer { timed_out: false } => DeliveryFault::NoAnswer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: WebhookUrlPolicy = WebhookUrlPolicy { http: true, private_network: true };

    fn judged(text: &str, reach: WebhookUrlPolicy) -> Option<WebhookUrlError> {
        WebhookUrl::parse(text, reach).err()
    }

    #[test]
    fn a_url_of_the_public_web_is_taken_as_it_stands() {
        for text in [
            "https://example.com",
            "https://example.com:8443/a/b?token=1&x=%20",
            "https://8.8.8.8/hooks",
            "https://[2606:4700::1]/hooks",
            "HTTPS://EXAMPLE.com/",
        ] {
            assert_eq!(judged(text, WebhookUrlPolicy::default()), None, "{text}");
        }
    }

    #[test]
    fn what_is_inside_is_refused_however_it_is_written() {
        for host in [
            "localhost",
            "LOCALHOST",
            "localhost.",
            "a.localhost",
            "127.0.0.1",
            "127.1",
            "0x7f.1",
            "2130706433",
            "017700000001",
            "0.0.0.0",
            "0",
            "10.1.2.3",
            "169.254.169.254",
            "192.168.0.1",
            "172.16.0.1",
            "100.64.0.1",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[fd00::1]",
            "[fe80::1]",
            "[64:ff9b::7f00:1]",
            "%31%32%37.0.0.1",
            "127.0.0.1.",
        ] {
            let text = format!("https://{host}/hooks");
            assert_eq!(
                judged(&text, WebhookUrlPolicy::default()),
                Some(WebhookUrlError::Private),
                "{text}"
            );
            assert_eq!(judged(&text, OPEN), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_url_of_the_web_is_refused_whatever_is_allowed() {
        use WebhookUrlError::{Credentials, Fragment, Invalid, TooLong};
        let long = format!("https://example.com/{}", "a".repeat(MAX_URL_BYTES));
        for (text, why) in [
            ("", Invalid),
            ("example.com/hooks", Invalid),
            ("/hooks", Invalid),
            ("ftp://example.com", Invalid),
            ("file:///etc/passwd", Invalid),
            ("gopher://example.com", Invalid),
            ("https://", Invalid),
            ("https://exa mple.com", Invalid),
            ("https://example.com/\r\nx-a: b", Invalid),
            ("https://example.com\\@10.0.0.1/", Invalid),
            ("https://example.com/ü", Invalid),
            ("https:///example.com", Invalid),
            ("https:/example.com", Invalid),
            ("https:example.com", Invalid),
            ("https://example.com:0/", Invalid),
            ("https://example.com:65536/", Invalid),
            ("https://user@example.com", Credentials),
            ("https://@example.com", Credentials),
            ("https://:@example.com", Credentials),
            ("https://user:word@example.com", Credentials),
            ("https://example.com/#a", Fragment),
            (long.as_str(), TooLong),
        ] {
            assert_eq!(judged(text, OPEN), Some(why), "{text}");
        }
        assert_eq!(
            judged("http://example.com", WebhookUrlPolicy::default()),
            Some(WebhookUrlError::NotSecure)
        );
        assert_eq!(judged("http://example.com", OPEN), None);
    }
}
