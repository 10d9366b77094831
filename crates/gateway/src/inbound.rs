//! The incoming call: its caller and its whole body.

use bytes::Bytes;
use tokio::time::Instant;
use tollgate_domain::SpendRules;
use tollgate_domain::admission::CallKey;
use tollgate_store::spend_keys;

use crate::credential::Credential;
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::in_flight::InFlightGuard;
use crate::keys::KeyOwner;
use crate::upload::Upload;

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

impl InboundCall {
    /// The current rules of its spend key; a merchant's own key has none.
    pub(crate) async fn rules(&self, gateway: &Gateway) -> Result<SpendRules, CallError> {
        let CallKey::Spend(_, hash) = self.owner.key else { return Ok(SpendRules::default()) };
        let key = gateway.store.read(move |conn| spend_keys::find_by_hash(conn, &hash)).await?;
        Ok(key.ok_or(CallError::CredentialInvalid)?.rules)
    }
}
