//! Refused calls, as they are kept.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::id::{BudgetId, ConnectionId, MerchantId, MeterId, RefusalId, SecretKeyId, SpendKeyId};
use crate::metadata::Metadata;
use crate::run::RunId;
use crate::time::Timestamp;

/// A quantity that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LimitQuantity {
    /// A number of calls.
    Calls(u64),
    /// An amount of money.
    Money(Amount),
}

/// The state of the limit that refused a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitState {
    /// The budget that has the limit, or is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_id: Option<BudgetId>,
    /// The limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitQuantity>,
    /// The part that is used in its cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<LimitQuantity>,
    /// The part that calls in flight hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<LimitQuantity>,
    /// The amount that the call would hold, where all of it must be left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_hold: Option<LimitQuantity>,
    /// The start of the next cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<Timestamp>,
}

/// The facts about a refused call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCall {
    /// The message of the error.
    pub message: String,
    /// The meter that would have priced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter_id: Option<MeterId>,
    /// The provider's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Method and URL, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The limit or the budget that refused it, if one did.
    #[serde(flatten)]
    pub limit: LimitState,
    /// Metadata from the caller.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

/// A refusal, as it is kept. In a storm, one stands for several calls of a key that were refused for one reason; the facts
/// are those of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalRecord {
    /// The id.
    pub refusal_id: RefusalId,
    /// The merchant of the key.
    pub merchant_id: MerchantId,
    /// The code of the error.
    pub code: String,
    /// The spend key.
    pub spend_key_id: Option<SpendKeyId>,
    /// The secret key.
    pub secret_key_id: Option<SecretKeyId>,
    /// The customer of the call.
    pub connection_id: Option<ConnectionId>,
    /// The requested model.
    pub model: Option<String>,
    /// The run of the call.
    pub run_id: Option<RunId>,
    /// The number of refused calls.
    pub count: u64,
    /// The time of the first of them.
    pub first_at: Timestamp,
    /// The time of the last of them.
    pub last_at: Timestamp,
    /// The facts about the first of them.
    pub call: RefusedCall,
}
