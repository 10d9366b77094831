//! A subscription as it is shown.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::billing_interval::BillingInterval;
use crate::credit::Rollover;
use crate::id::{ConnectionId, SubscriptionConfigId, SubscriptionId};
use crate::subscription_config::SubscriptionConfig;
use crate::time::Timestamp;

/// Whether a subscription goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubscriptionStatus {
    /// It does.
    Active,
    /// It has ended for good.
    Cancelled,
}

/// A subscription as it can be shown: with its configuration and credit as they stood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionState {
    /// Its id.
    pub subscription_id: SubscriptionId,
    /// Who has it.
    pub connection_id: ConnectionId,
    /// What was subscribed to.
    pub plan: Plan,
    /// Whether it goes on.
    pub status: SubscriptionStatus,
    /// How long a cycle is.
    pub billing_interval: BillingInterval,
    /// Since when.
    pub started_at: Timestamp,
    /// When it ended.
    pub cancelled_at: Option<Timestamp>,
    /// When the cycle began.
    pub cycle_start_at: Timestamp,
    /// When it ends.
    pub cycle_end_at: Timestamp,
    /// What is left of what cycles included.
    pub cycle_remaining: Amount,
    /// What is left of what was bought.
    pub bundle_remaining: Amount,
    /// What becomes of the first when the cycle ends.
    pub cycle_rollover: Rollover,
    /// What becomes of the second.
    pub bundle_rollover: Rollover,
    /// What happens when the cycle ends.
    pub pending_change: Option<PendingState>,
}

/// What is shown of a configuration with its subscriptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its id.
    pub subscription_config_id: SubscriptionConfigId,
    /// Display name.
    pub name: String,
    /// What a cycle costs.
    pub period_amount: Amount,
    /// Credit granted at the start of each cycle.
    pub included_credit: Amount,
}

impl Plan {
    pub(crate) fn of(config: &SubscriptionConfig) -> Self {
        Self {
            subscription_config_id: config.subscription_config_id,
            name: config.name.clone(),
            period_amount: config.period_amount,
            included_credit: config.terms().included_credit,
        }
    }
}

/// A pending change as it can be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingState {
    /// What kind it is.
    pub kind: PendingKind,
    /// When it takes effect.
    pub effective_at: Timestamp,
    /// The configuration from then on; for a cancellation the present one.
    pub plan: Plan,
}

/// A kind of pending change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PendingKind {
    /// The subscription ends.
    Cancellation,
    /// It goes on under a configuration that costs as much or less.
    Downgrade,
}
