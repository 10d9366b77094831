//! The reading of a file by its URL.

use std::fmt;
use std::time::Duration;

use awc::http::Uri;
use awc::http::header::{self, HeaderValue};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::connect::{self, ConnectionClass, client};
use super::error::{NotSentReason, SendError, send_error};
use super::resolver::Resolver;
use crate::address::pool_uri;

/// The time for a whole file.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// The reason that a file was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The URL is none of `http` or `https`, or has a user.
    Url,
    /// The server answered with this status.
    Status(u16),
    /// The file is larger than this number of bytes.
    TooLarge(usize),
    /// There was no whole answer in time.
    TimedOut,
    /// The connection failed.
    Failed(String),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url => f.write_str("it is no URL of http or https, or has a user"),
            Self::Status(status) => write!(f, "its server answers with status {status}"),
            Self::TooLarge(most) => write!(f, "it has more than {most} bytes"),
            Self::TimedOut => {
                write!(f, "its server takes longer than {} s", READ_WITHIN.as_secs())
            }
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for FetchError {}

/// Reads a file of at most `most` bytes by its URL, `https` or `http`. Redirects are not followed.
///
/// # Errors
/// [`FetchError`] if it cannot be read.
pub async fn fetch(url: &str, most: usize) -> Result<Vec<u8>, FetchError> {
    timeout(READ_WITHIN, read(url, most)).await.map_err(|_| FetchError::TimedOut)?
}

/// The reason that a server sent no file.
fn reason(failure: SendError) -> String {
    let reason = match failure {
        SendError::NotSent(NotSentReason::Dns) => "the name of its server cannot be resolved",
        SendError::NotSent(NotSentReason::Tls) => "its server has no valid certificate",
        SendError::NotSent(_) => "its server cannot be reached",
        SendError::NoAnswer { .. } => "its server closed without an answer",
    };
    reason.to_owned()
}

async fn read(url: &str, most: usize) -> Result<Vec<u8>, FetchError> {
    let uri: Uri = url.parse().map_err(|_| FetchError::Url)?;
    let tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(FetchError::Url),
    };
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
    let host = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    let (host, target) = host.zip(pool_uri(&uri)).ok_or(FetchError::Url)?;
    let lane = ConnectionClass { tls, private: true, socket: false };
    let client = client(lane, &connect::tls_config(), &Resolver::System, READ_WITHIN);
    let request = client.get(target).no_decompress().force_close();
    let sent = request.insert_header((header::HOST, host)).send().await;
    let mut response = sent.map_err(|cause| FetchError::Failed(reason(send_error(&cause))))?;
    if !response.status().is_success() {
        return Err(FetchError::Status(response.status().as_u16()));
    }
    let mut bytes = Vec::new();
    while let Some(piece) = response.next().await {
        bytes.extend_from_slice(&piece.map_err(|cause| FetchError::Failed(cause.to_string()))?);
        if bytes.len() > most {
            return Err(FetchError::TooLarge(most));
        }
    }
    Ok(bytes)
}
