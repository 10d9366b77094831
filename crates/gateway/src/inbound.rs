//! The incoming call: its caller and its whole body.

use crate::credential::Credential;
use crate::in_flight::InFlightGuard;
use crate::keys::KeyOwner;
use crate::upload::Upload;
use bytes::Bytes;
use tokio::time::Instant;

/// A call as it came in. Its caller is known; the rest is not checked yet.
pub struct InboundCall {
    /// Counts the call as one in flight.
    pub in_flight: InFlightGuard,
    /// The credential.
    pub credential: Credential,
    /// The owner of its key.
    pub owner: KeyOwner,
    /// The whole body; empty for an upload.
    pub body: Bytes,
    /// The body of an upload.
    pub upload: Option<Upload>,
    /// The time of its arrival, moved by the time that its body took, which is not the gateway's.
    pub began: Instant,
}
