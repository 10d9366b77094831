//! The errors between a call and its answer, and whether the provider may have seen the call.

use std::fmt;

use awc::error::{ConnectError, SendRequestError};

/// The reason that nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotSentReason {
    /// The provider's name has no address.
    Dns,
    /// It has only private addresses, and the provider is not allowed to have one.
    PrivateAddress,
    /// No server listens there, or it cannot be reached.
    Refused,
    /// TLS failed: a wrong certificate, or none.
    Tls,
    /// The connection took too long.
    TimedOut,
    /// The call cannot be written as HTTP.
    Invalid,
}

/// The reason that there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No byte was written: the provider has not seen the call.
    NotSent(NotSentReason),
    /// The call was sent, at least in part, and no readable answer came. The provider may bill it.
    NoAnswer {
        /// Whether the time ran out; else the connection was lost.
        timed_out: bool,
    },
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent(NotSentReason::Dns) => "the provider's name could not be resolved",
            Self::NotSent(NotSentReason::PrivateAddress) => "the provider's address is private",
            Self::NotSent(NotSentReason::Refused) => "the provider could not be reached",
            Self::NotSent(NotSentReason::Tls) => "no secure connection to the provider came about",
            Self::NotSent(NotSentReason::TimedOut) => {
                "the connection to the provider took too long"
            }
            Self::NotSent(NotSentReason::Invalid) => "the call cannot be written as HTTP",
            Self::NoAnswer { timed_out: true } => "the provider did not answer in time",
            Self::NoAnswer { timed_out: false } => "the provider closed without an answer",
        })
    }
}

impl std::error::Error for SendError {}

/// The reason that a body ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The connection was lost, or the bytes are not HTTP.
    Broken,
    /// No byte came for the idle time.
    TimedOut,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broken => "the provider broke off its answer",
            Self::TimedOut => "the provider fell silent within its answer",
        })
    }
}

impl std::error::Error for BodyError {}

/// The reason for a failed connection, in the form that passes through awc.
#[derive(Debug)]
pub(super) struct ConnectFailure(pub(super) NotSentReason);

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for ConnectFailure {}

/// The meaning of an awc error. Its `Connect` errors come before a byte is written, except
/// `Disconnected`: the connection ended where the answer should begin.
pub(super) fn send_error(error: &SendRequestError) -> SendError {
    let not_sent = match error {
        SendRequestError::Connect(ConnectError::Timeout) => NotSentReason::TimedOut,
        SendRequestError::Connect(ConnectError::Disconnected) => {
            return SendError::NoAnswer { timed_out: false };
        }
        SendRequestError::Connect(ConnectError::Resolver(cause)) => {
            cause.downcast_ref::<ConnectFailure>().map_or(NotSentReason::Dns, |failure| failure.0)
        }
        SendRequestError::Connect(ConnectError::NoRecords | ConnectError::Unresolved) => {
            NotSentReason::Dns
        }
        SendRequestError::Connect(ConnectError::SslIsNotSupported) => NotSentReason::Tls,
        SendRequestError::Connect(_) => NotSentReason::Refused,
        SendRequestError::Url(_) => NotSentReason::Invalid,
        _ => return SendError::NoAnswer { timed_out: false },
    };
    SendError::NotSent(not_sent)
}
