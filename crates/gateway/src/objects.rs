//! Objects that a provider keeps, such as responses: whether a call may name them.
//!
//! The operator's key opens all objects of its account. So a call with it may name only those that belong to its wallet.
//! An object of another wallet and one that does not exist are refused in the same words.

use tollgate_domain::Issue;
use tollgate_domain::admission::Refusal;
use tollgate_store::jobs;
use tollgate_store::provider_objects::{self, ObjectCaller, OwnedObject};
use tollgate_usage::dialect::ObjectRole;

use crate::error::CallError;
use crate::gateway::Gateway;
use crate::inbound::InboundCall;
use crate::outbound::OutboundCall;

impl OutboundCall {
    /// Checks that the objects that the call names belong to its caller, and finds the job that its answer shows.
    ///
    /// # Errors
    /// [`CallError::ObjectNotFound`] or [`CallError::BodyInvalid`] for an object that does not belong to the caller, and
    /// [`CallError::JobRunning`] for the deletion of an object whose job runs.
    pub async fn check_objects(
        &mut self,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> Result<(), CallError> {
        if let Some(id) = self.call_body.previous_response_id.clone() {
            match self.owned(&id, inbound, gateway).await? {
                Some(object) => self.call_body.continue_from(object.tokens),
                None => {
                    let message = "is not the id of a response that belongs to this wallet";
                    let issue = Issue::at(["previous_response_id"], message);
                    return Err(CallError::BodyInvalid(vec![issue]));
                }
            }
        }
        let mut issues = Vec::new();
        if let Some(id) = &self.call_body.conversation
            && self.owned(id, inbound, gateway).await?.is_none()
        {
            let message = "is not the id of a conversation that belongs to this wallet";
            issues.push(Issue::at(["conversation"], message));
        }
        for file in &self.call_body.files {
            if self.owned(&file.id, inbound, gateway).await?.is_none() {
                let message = "is not the id of a file that belongs to this wallet".to_owned();
                issues.push(Issue { path: file.path.clone(), message });
            }
        }
        if !issues.is_empty() {
            return Err(CallError::BodyInvalid(issues));
        }
        let in_body = self.call_body.operation.clone();
        let Some(id) = self.endpoint.format.object_id().or(in_body) else { return Ok(()) };
        let owned = self.owned(&id, inbound, gateway).await?;
        if self.checks_owner() && owned.is_none() {
            return Err(CallError::ObjectNotFound { id });
        }
        // The results of a batch must stay until they are read.
        let job_of = owned.and_then(|object| object.result_of).unwrap_or(id);
        let role = self.endpoint.format.object_role();
        if role == ObjectRole::Uses {
            return Ok(());
        }
        let provider = self.endpoint.provider.name.clone();
        let job = gateway.store.read(move |conn| jobs::find_open(conn, &provider, &job_of)).await?;
        let job = job.filter(|open| open.job.merchant_id == inbound.owner.merchant_id);
        match (role, job) {
            (ObjectRole::Deletes, Some(open)) => {
                Err(CallError::JobRunning { job_id: open.job.job_id })
            }
            (_, job) => {
                self.observed = job.map(Box::new);
                Ok(())
            }
        }
    }

    /// Whether the objects that the call names must belong to its caller.
    pub(crate) fn checks_owner(&self) -> bool {
        self.managed && !self.endpoint.provider.traits.allow_stored_state
    }

    /// The object with this id at the provider of the call, if it belongs to the caller.
    pub(crate) async fn owned(
        &self,
        id: &str,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> Result<Option<OwnedObject>, CallError> {
        let owned = owned_objects(id, inbound, gateway).await?;
        Ok(owned.into_iter().find(|object| object.provider == self.endpoint.provider.name))
    }
}

/// The caller, whose wallet owns objects.
pub(crate) fn object_caller(inbound: &InboundCall) -> Result<ObjectCaller, CallError> {
    let connection_id = inbound.credential.connection_id().map(str::parse).transpose();
    Ok(ObjectCaller {
        merchant_id: inbound.owner.merchant_id,
        key: inbound.owner.key,
        connection_id: connection_id
            .map_err(|_| CallError::Refused(Refusal::ConnectionNotFound))?,
    })
}

/// The objects with this id that belong to the caller, one of each provider.
pub(crate) async fn owned_objects(
    id: &str,
    inbound: &InboundCall,
    gateway: &Gateway,
) -> Result<Vec<OwnedObject>, CallError> {
    let caller = object_caller(inbound)?;
    let (id, now) = (id.to_owned(), gateway.clock.now());
    let owned =
        gateway.store.read(move |conn| provider_objects::owned(conn, &caller, &id, now)).await?;
    Ok(owned)
}
