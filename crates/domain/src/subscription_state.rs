//! The shown form of a subscription.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::billing_interval::BillingInterval;
use crate::credit::Rollover;
use crate::id::{ConnectionId, SubscriptionConfigId, SubscriptionId};
use crate::subscription_config::SubscriptionConfig;
use crate::time::Timestamp;

/// The status of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubscriptionStatus {
    /// In force.
    Active,
    /// Ended for good.
    Cancelled,
}

/// A subscription as it is shown, with its configuration and credit at that time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionState {
    /// The id.
    pub subscription_id: SubscriptionId,
    /// The customer.
    pub connection_id: ConnectionId,
    /// The plan.
    pub plan: Plan,
    /// The status.
    pub status: SubscriptionStatus,
    /// The length of a cycle.
    pub billing_interval: BillingInterval,
    /// The start of the subscription.
    pub started_at: Timestamp,
    /// The end of a cancelled subscription.
    pub cancelled_at: Option<Timestamp>,
    /// The start of the present cycle.
    pub cycle_start_at: Timestamp,
    /// The end of the present cycle.
    pub cycle_end_at: Timestamp,
    /// The remaining credit that cycles included.
    pub cycle_remaining: Amount,
    /// The remaining credit that was bought.
    pub bundle_remaining: Amount,
    /// The rollover of included credit at the end of the cycle.
    pub cycle_rollover: Rollover,
    /// The rollover of bought credit at the end of the cycle.
    pub bundle_rollover: Rollover,
    /// The change at the end of the cycle.
    pub pending_change: Option<PendingState>,
}

/// The part of a configuration that is shown with its subscriptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The id.
    pub subscription_config_id: SubscriptionConfigId,
    /// Display name.
    pub name: String,
    /// The price of a cycle.
    pub period_amount: Amount,
    /// The credit granted at the start of each cycle.
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

/// A pending change as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingState {
    /// The kind.
    pub kind: PendingKind,
    /// The time of effect.
    pub effective_at: Timestamp,
    /// The configuration from then on; for a cancellation, the present one.
    pub plan: Plan,
}

/// A kind of pending change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PendingKind {
    /// The subscription ends.
    Cancellation,
    /// The subscription continues under a configuration that costs the same or less.
    Downgrade,
}
