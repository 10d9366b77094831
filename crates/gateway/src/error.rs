//! The reasons why a call is not forwarded, or has no answer from its provider.

use std::fmt;

use tollgate_domain::admission::Refusal;
use tollgate_domain::{CallCost, Issue, JobId, RequestId};
use tollgate_provider::SocketOpenError;
use tollgate_store::StoreError;

/// The reason why a call has no answer from a provider.
///
/// The interface has a code, a status and a message for each.
#[derive(Debug)]
pub enum CallError {
    /// The request has no credential.
    CredentialMissing,
    /// The credential is not valid for this route.
    CredentialInvalid,
    /// The credential is neither a valid forward token nor a key.
    TokenInvalid(Vec<Issue>),
    /// The limit of calls in flight on this node is reached.
    TooManyCalls,
    /// The limit of open sockets on this node is reached.
    TooManySockets,
    /// The limit of open responses on this socket is reached.
    TooManyResponses,
    /// The socket to the provider could not be opened.
    SocketNotOpened(SocketOpenError),
    /// The node takes no new calls.
    ShuttingDown,
    /// A parameter of the query, or a header for this service, is not valid.
    ParametersInvalid(Vec<Issue>),
    /// The metadata is not valid.
    MetadataInvalid(Vec<Issue>),
    /// A call may not go to the URL.
    EndpointNotSupported(Issue),
    /// No configured provider has the route.
    RouteNotSupported,
    /// The model is served on another route.
    ModelOnOtherRoute {
        /// The path of that route.
        route: &'static str,
    },
    /// No configured provider serves the model at a known price.
    ModelNotServed,
    /// The price of the call is not known, and it needs one.
    PriceUnknown(Issue),
    /// The type or encoding of the body is not supported; the text is the advice.
    ContentTypeUnsupported(String),
    /// The body may not be forwarded.
    BodyInvalid(Vec<Issue>),
    /// The object that the path names does not exist, or belongs to another wallet.
    ObjectNotFound {
        /// The provider's id of the object.
        id: String,
    },
    /// The object cannot be deleted while its job runs.
    JobRunning {
        /// The job.
        job_id: JobId,
    },
    /// The admission refuses the call.
    Refused(Refusal),
    /// The store failed.
    Store(StoreError),
    /// The admitted call did not reach its provider. It costs nothing.
    NotSent {
        /// The id of its record.
        request_id: RequestId,
        /// Its cost, if the caller requests it.
        cost: Option<CallCost>,
    },
    /// The admitted call was sent, and no answer came.
    NoAnswer {
        /// The id of its record.
        request_id: RequestId,
        /// Its cost, if the caller requests it.
        cost: Option<CallCost>,
        /// Whether the time for an answer is over. Else the provider closed, or this service is shutting down.
        timed_out: bool,
    },
    /// The call ended without an answer by a fault of this service.
    Aborted,
}

impl CallError {
    /// The error of a URL or route to which calls may not go.
    pub(crate) fn not_supported(why: impl Into<String>) -> Self {
        Self::EndpointNotSupported(Issue::at([], why))
    }

    /// The error with its issues below the field whose value the input is.
    pub fn within(mut self, field: &str) -> Self {
        let issues = match &mut self {
            Self::TokenInvalid(issues)
            | Self::ParametersInvalid(issues)
            | Self::MetadataInvalid(issues)
            | Self::BodyInvalid(issues) => issues.as_mut_slice(),
            Self::EndpointNotSupported(issue) | Self::PriceUnknown(issue) => {
                std::slice::from_mut(issue)
            }
            _ => &mut [],
        };
        issues.iter_mut().for_each(|issue| issue.path.insert(0, field.to_owned()));
        self
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the call has no answer from a provider: {self:?}")
    }
}

impl std::error::Error for CallError {}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for CallError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

/// The error of a body that may not be forwarded, with an issue for each fault.
pub(crate) fn body_invalid(issues: Vec<tollgate_usage::Issue>) -> CallError {
    let issues = issues.into_iter();
    let issues = issues.map(|tollgate_usage::Issue { path, message }| Issue { path, message });
    CallError::BodyInvalid(issues.collect())
}
