//! Events: facts that a merchant can subscribe to. An event is written in the transaction that
//! causes it.

use serde::{Deserialize, Serialize};

use tollgate_pricing::{Amount, Overflow};

use crate::budget::Budget;
use crate::connection::Connection;
use crate::event_kind::EventKind;
use crate::id::{EventId, JobId, MerchantId, RequestId};
use crate::spend_key::SpendKey;
use crate::subscription_config::CreditBundle;
use crate::subscription_state::SubscriptionState;
use crate::time::Timestamp;
use crate::wallet::Wallet;
use crate::webhook::Webhook;

/// A fact that a merchant can subscribe to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The id.
    pub event_id: EventId,
    /// The merchant that it concerns.
    pub merchant_id: MerchantId,
    /// The fact, with its resource.
    pub payload: EventPayload,
    /// The time of the event.
    pub created_at: Timestamp,
}

/// The content of an event: a fact, with the resource as it was right after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum EventPayload {
    /// A customer was created.
    #[serde(rename = "connection.created")]
    ConnectionCreated {
        /// The customer.
        connection: Box<Connection>,
    },
    /// A customer was deleted.
    #[serde(rename = "connection.deleted")]
    ConnectionDeleted {
        /// The customer.
        connection: Box<Connection>,
    },
    /// A balance has fallen below its threshold.
    #[serde(rename = "wallet.balance_low")]
    WalletBalanceLow {
        /// The wallet.
        wallet: Box<Wallet>,
    },
    /// A balance and its overdraft are used up.
    #[serde(rename = "wallet.balance_depleted")]
    WalletBalanceDepleted {
        /// The wallet.
        wallet: Box<Wallet>,
    },
    /// A subscription has begun.
    #[serde(rename = "subscription.created")]
    SubscriptionCreated {
        /// The subscription.
        subscription: Box<SubscriptionState>,
        /// The amount that the merchant has to collect for the cycle.
        amount_due: Amount,
    },
    /// A cycle has ended and the next one has begun.
    #[serde(rename = "subscription.renewed")]
    SubscriptionRenewed {
        /// The subscription.
        subscription: Box<SubscriptionState>,
        /// The amount that the merchant has to collect for the cycle.
        amount_due: Amount,
    },
    /// A subscription continues under another configuration, in a new cycle.
    #[serde(rename = "subscription.changed")]
    SubscriptionChanged {
        /// The subscription.
        subscription: Box<SubscriptionState>,
        /// The amount that the merchant has to collect for the cycle.
        amount_due: Amount,
    },
    /// A subscription has ended.
    #[serde(rename = "subscription.cancelled")]
    SubscriptionCancelled {
        /// The subscription.
        subscription: Box<SubscriptionState>,
    },
    /// Credit was bought.
    #[serde(rename = "credit_bundle.purchased")]
    CreditBundlePurchased {
        /// The bundle.
        credit_bundle: Box<CreditBundle>,
        /// The subscription that the credit belongs to.
        subscription: Box<SubscriptionState>,
        /// The amount that the merchant has to collect for it.
        amount_due: Amount,
    },
    /// A share of a spend limit is used up, for the first time in its cycle.
    #[serde(rename = "spend_key.threshold_reached")]
    SpendKeyThresholdReached {
        /// The key.
        spend_key: Box<SpendKey>,
        /// The share, in percent.
        threshold: u8,
    },
    /// A spend limit is used up, for the first time in its cycle.
    #[serde(rename = "spend_key.limit_reached")]
    SpendKeyLimitReached {
        /// The key.
        spend_key: Box<SpendKey>,
    },
    /// A share of the spend limit of a budget is used up, for the first time in its cycle.
    #[serde(rename = "budget.threshold_reached")]
    BudgetThresholdReached {
        /// The budget.
        budget: Box<Budget>,
        /// The share, in percent.
        threshold: u8,
    },
    /// The spend limit of a budget is used up, for the first time in its cycle.
    #[serde(rename = "budget.limit_reached")]
    BudgetLimitReached {
        /// The budget.
        budget: Box<Budget>,
    },
    /// A call needed a price that is in no price list, for the first time on that day (UTC).
    #[serde(rename = "price.missing")]
    PriceMissing {
        /// The provider's name.
        provider: String,
        /// The model.
        model: String,
        /// The unit without a price; absent where the model has no price at all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unit: Option<String>,
    },
    /// A call was answered and is settled.
    #[serde(rename = "request.completed")]
    RequestCompleted {
        /// The call. Its record is read when the message is written, because it no longer changes.
        request_id: RequestId,
    },
    /// A call failed and is settled.
    #[serde(rename = "request.failed")]
    RequestFailed {
        /// The call. Its record is read when the message is written.
        request_id: RequestId,
    },
    /// A provider reported far more usage than a call could have.
    #[serde(rename = "request.suspicious")]
    RequestSuspicious {
        /// The call. Its record is read when the message is written.
        request_id: RequestId,
    },
    /// A job has succeeded, and its call is settled.
    #[serde(rename = "job.succeeded")]
    JobSucceeded {
        /// The job. It is read when the message is written, because it no longer changes.
        job_id: JobId,
        /// The call that created it.
        request_id: RequestId,
    },
    /// A job has failed, was cancelled or has expired, and its call is settled.
    #[serde(rename = "job.failed")]
    JobFailed {
        /// The job. It is read when the message is written.
        job_id: JobId,
        /// The call that created it.
        request_id: RequestId,
    },
    /// A job is lost, and its call is settled.
    #[serde(rename = "job.lost")]
    JobLost {
        /// The job. It is read when the message is written.
        job_id: JobId,
        /// The call that created it.
        request_id: RequestId,
    },
    /// A merchant tests a webhook.
    #[serde(rename = "webhook.test")]
    WebhookTest {
        /// The webhook.
        webhook: Box<Webhook>,
    },
}

/// An amount that the merchant has to collect: for a cycle of a plan, or for bought credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanCharge<'a> {
    /// The subscription.
    pub subscription: &'a SubscriptionState,
    /// The name of the plan or of the bundle.
    pub name: &'a str,
    /// The amount.
    pub amount_due: Amount,
}

impl EventPayload {
    /// The kind of the event.
    pub const fn kind(&self) -> EventKind {
        match self {
            Self::ConnectionCreated { .. } => EventKind::ConnectionCreated,
            Self::ConnectionDeleted { .. } => EventKind::ConnectionDeleted,
            Self::WalletBalanceLow { .. } => EventKind::WalletBalanceLow,
            Self::WalletBalanceDepleted { .. } => EventKind::WalletBalanceDepleted,
            Self::SubscriptionCreated { .. } => EventKind::SubscriptionCreated,
            Self::SubscriptionRenewed { .. } => EventKind::SubscriptionRenewed,
            Self::SubscriptionChanged { .. } => EventKind::SubscriptionChanged,
            Self::SubscriptionCancelled { .. } => EventKind::SubscriptionCancelled,
            Self::CreditBundlePurchased { .. } => EventKind::CreditBundlePurchased,
            Self::SpendKeyThresholdReached { .. } => EventKind::SpendKeyThresholdReached,
            Self::SpendKeyLimitReached { .. } => EventKind::SpendKeyLimitReached,
            Self::BudgetThresholdReached { .. } => EventKind::BudgetThresholdReached,
            Self::BudgetLimitReached { .. } => EventKind::BudgetLimitReached,
            Self::PriceMissing { .. } => EventKind::PriceMissing,
            Self::RequestCompleted { .. } => EventKind::RequestCompleted,
            Self::RequestFailed { .. } => EventKind::RequestFailed,
            Self::RequestSuspicious { .. } => EventKind::RequestSuspicious,
            Self::JobSucceeded { .. } => EventKind::JobSucceeded,
            Self::JobFailed { .. } => EventKind::JobFailed,
            Self::JobLost { .. } => EventKind::JobLost,
            Self::WebhookTest { .. } => EventKind::WebhookTest,
        }
    }

    /// The amount that the merchant has to collect because of the event. `None` for an event without one.
    pub fn charge(&self) -> Option<PlanCharge<'_>> {
        let (subscription, name, amount_due) = match self {
            Self::SubscriptionCreated { subscription, amount_due }
            | Self::SubscriptionRenewed { subscription, amount_due }
            | Self::SubscriptionChanged { subscription, amount_due } => {
                (subscription, &subscription.plan.name, amount_due)
            }
            Self::CreditBundlePurchased { credit_bundle, subscription, amount_due } => {
                (subscription, &credit_bundle.name, amount_due)
            }
            _ => return None,
        };
        Some(PlanCharge { subscription, name, amount_due: *amount_due })
    }

    /// The resource of the event, as text. Events of one resource are sent in their order.
    pub fn resource(&self) -> String {
        match self {
            Self::ConnectionCreated { connection } | Self::ConnectionDeleted { connection } => {
                connection.connection_id.to_string()
            }
            Self::WalletBalanceLow { wallet } | Self::WalletBalanceDepleted { wallet } => {
                wallet.wallet_id.to_string()
            }
            Self::SubscriptionCreated { subscription, .. }
            | Self::SubscriptionRenewed { subscription, .. }
            | Self::SubscriptionChanged { subscription, .. }
            | Self::SubscriptionCancelled { subscription }
            | Self::CreditBundlePurchased { subscription, .. } => {
                subscription.subscription_id.to_string()
            }
            Self::SpendKeyThresholdReached { spend_key, .. }
            | Self::SpendKeyLimitReached { spend_key } => spend_key.spend_key_id.to_string(),
            Self::BudgetThresholdReached { budget, .. } | Self::BudgetLimitReached { budget } => {
                budget.budget_id.to_string()
            }
            Self::PriceMissing { provider, model, .. } => format!("{provider}/{model}"),
            Self::RequestCompleted { request_id }
            | Self::RequestFailed { request_id }
            | Self::RequestSuspicious { request_id } => request_id.to_string(),
            Self::JobSucceeded { job_id, .. }
            | Self::JobFailed { job_id, .. }
            | Self::JobLost { job_id, .. } => job_id.to_string(),
            Self::WebhookTest { webhook } => webhook.webhook_id.to_string(),
        }
    }
}

impl Wallet {
    /// The events of a change of the balance from `before`: a fall below the threshold, and the use
    /// of all money and overdraft. Each is reported when the balance crosses the line, not while it
    /// stays beyond it.
    pub fn events_since(&self, before: Amount) -> impl Iterator<Item = EventPayload> {
        let has_fallen = |below: fn(Amount, Amount) -> bool, line: Option<Amount>| {
            line.is_some_and(|line| !below(before, line) && below(self.balance, line))
        };
        let bottom = self.overdraft_limit.map(|limit| Amount::ZERO.saturating_sub(limit));
        let low = has_fallen(|balance, line| balance < line, self.low_balance_threshold);
        let depleted = has_fallen(|balance, line| balance <= line, bottom);
        let wallet = || Box::new(self.clone());
        let low = low.then(|| EventPayload::WalletBalanceLow { wallet: wallet() });
        let depleted = depleted.then(|| EventPayload::WalletBalanceDepleted { wallet: wallet() });
        low.into_iter().chain(depleted)
    }
}

impl SpendKey {
    /// Settles a call that was admitted at `admitted_at`: releases its hold, counts its cost (for a
    /// correction, the difference), and returns the events to write.
    ///
    /// # Errors
    /// As [`SpendCounters::settle`](crate::SpendCounters::settle).
    pub fn settle(
        &mut self,
        admitted_at: Timestamp,
        hold: Amount,
        cost: Amount,
    ) -> Result<Vec<EventPayload>, Overflow> {
        self.counters.settle(admitted_at, hold, cost, self.rules.calendars())?;
        let Some(limit) = self.rules.spend_limit else { return Ok(Vec::new()) };
        let reached = self.counters.report_thresholds(limit, &THRESHOLDS);
        let told = reached.into_iter().map(|percent| {
            let spend_key = Box::new(self.clone());
            match percent {
                100 => EventPayload::SpendKeyLimitReached { spend_key },
                threshold => EventPayload::SpendKeyThresholdReached { spend_key, threshold },
            }
        });
        Ok(told.collect())
    }
}

/// The shares of the spend limit of a key, in percent, that are reported: each once per cycle.
const THRESHOLDS: [u8; 3] = [80, 95, 100];

impl Budget {
    /// As [`SpendKey::settle`], for a call that counts against the budget.
    ///
    /// # Errors
    /// As [`SpendCounters::settle`](crate::SpendCounters::settle).
    pub fn settle(
        &mut self,
        admitted_at: Timestamp,
        hold: Amount,
        cost: Amount,
    ) -> Result<Vec<EventPayload>, Overflow> {
        self.counters.settle(admitted_at, hold, cost, self.rules.calendars())?;
        let Some(limit) = self.rules.spend_limit else { return Ok(Vec::new()) };
        let reached = self.counters.report_thresholds(limit, &self.rules.alerts);
        let events = reached.into_iter().map(|percent| {
            let budget = Box::new(self.clone());
            match percent {
                100 => EventPayload::BudgetLimitReached { budget },
                threshold => EventPayload::BudgetThresholdReached { budget, threshold },
            }
        });
        Ok(events.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_stored_under_the_word_of_its_kind() {
        let request_id = RequestId::generate(Timestamp::from_unix_micros(1));
        for news in [
            EventPayload::RequestCompleted { request_id },
            EventPayload::RequestFailed { request_id },
        ] {
            let stored = serde_json::to_value(&news).unwrap();
            assert_eq!(stored["type"], news.kind().as_str());
            assert_eq!(stored["type"], serde_json::to_value(news.kind()).unwrap());
            assert_eq!(news.resource(), request_id.to_string());
        }
    }
}
