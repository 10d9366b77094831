//! The refusal of a call whose key is known: it is kept, and its id is in the error.

use bytes::Bytes;
use serde::Deserialize;
use tollgate_domain::{ConnectionId, RefusedCall, RunId};
use tollgate_gateway::{CallSummary, KeyOwner};
use tollgate_store::RefusalCause;

use crate::app::App;
use crate::http::error::{ApiError, ErrorCode};

/// The facts about a call, as far as it came.
#[derive(Default)]
pub(super) struct CallFacts {
    owner: Option<KeyOwner>,
    connection_id: Option<ConnectionId>,
    body: Bytes,
    summary: Option<CallSummary>,
}

/// The longest body that is read for the model of a refused call.
const MOST_READ: usize = 1_000_000;

impl CallFacts {
    /// Takes note of the owner of the key.
    pub(super) fn owned(&mut self, owner: KeyOwner, connection_id: Option<&str>) {
        self.owner = Some(owner);
        self.connection_id = connection_id.and_then(|id| id.parse().ok());
    }

    /// Takes note of a call whose body was read.
    pub(super) fn read(&mut self, body: &Bytes) {
        self.body = body.clone();
    }

    /// Takes note of a call that may be sent if it is admitted.
    pub(super) fn checked(&mut self, summary: CallSummary) {
        self.summary = Some(summary);
    }

    /// Keeps the refusal of the call. An error of this service or of the provider is no refusal.
    pub(super) fn keep(self, error: ApiError, app: &App) -> ApiError {
        let Some(owner) = self.owner.filter(|_| error.code().status() < 500) else { return error };
        let named = match self.summary {
            Some(_) => None,
            None => named_model(&self.body),
        };
        let summary = self.summary.unwrap_or_default();
        // A call that names no run is refused by that of the day.
        let is_of_the_day = error.code() == ErrorCode::RunLimitReached;
        let run_id = summary.run_id.clone();
        let run_id = run_id.or_else(|| is_of_the_day.then(RunId::of_the_day));
        let cause = RefusalCause {
            merchant_id: owner.merchant_id,
            key: owner.key,
            connection_id: self.connection_id,
            model: summary.model.as_deref().or(named.as_deref()),
            run_id: run_id.as_ref(),
            code: error.code().name(),
            at: app.clock.now(),
        };
        let refusal_id = app.store.record_refusal(&cause, || RefusedCall {
            message: error.full_message().into_owned(),
            meter_id: None,
            provider: summary.provider().map(str::to_owned),
            endpoint: summary.endpoint(),
            limit: error.limit(),
            metadata: summary.metadata.clone(),
        });
        error.with_refusal(refusal_id)
    }
}

/// The model that a body names.
fn named_model(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct NamedModel {
        model: String,
    }
    let body = Some(body).filter(|body| body.len() <= MOST_READ)?;
    serde_json::from_slice::<NamedModel>(body).ok().map(|named| named.model)
}
