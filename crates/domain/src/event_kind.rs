//! The kinds of events.

use serde::{Deserialize, Serialize};

macro_rules! kinds {
    ($( $(#[$doc:meta])* $Kind:ident = $word:literal; )*) => {
        /// A kind of event.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub enum EventKind {
            $( $(#[$doc])* #[serde(rename = $word)] $Kind, )*
            /// A merchant tests a webhook. No webhook can leave this kind out.
            #[serde(rename = "webhook.test")]
            WebhookTest,
        }

        impl EventKind {
            /// All kinds that a webhook can select.
            pub const ALL: &'static [Self] = &[ $( Self::$Kind, )* ];

            /// The name of the kind in the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$Kind => $word, )*
                    Self::WebhookTest => "webhook.test",
                }
            }
        }
    };
}

kinds! {
    /// A customer was created.
    ConnectionCreated = "connection.created";
    /// A customer was deleted.
    ConnectionDeleted = "connection.deleted";
    /// A balance has fallen below its threshold.
    WalletBalanceLow = "wallet.balance_low";
    /// A balance and its overdraft are used up.
    WalletBalanceDepleted = "wallet.balance_depleted";
    /// A share of a spend limit is used up.
    SpendKeyThresholdReached = "spend_key.threshold_reached";
    /// A spend limit is used up.
    SpendKeyLimitReached = "spend_key.limit_reached";
    /// A share of the spend limit of a budget is used up.
    BudgetThresholdReached = "budget.threshold_reached";
    /// The spend limit of a budget is used up.
    BudgetLimitReached = "budget.limit_reached";
    /// A subscription has begun.
    SubscriptionCreated = "subscription.created";
    /// A cycle has ended and the next one has begun.
    SubscriptionRenewed = "subscription.renewed";
    /// A subscription continues under another configuration.
    SubscriptionChanged = "subscription.changed";
    /// A subscription has ended.
    SubscriptionCancelled = "subscription.cancelled";
    /// Credit was bought.
    CreditBundlePurchased = "credit_bundle.purchased";
    /// A call needed a price that is in no price list.
    PriceMissing = "price.missing";
    /// A job has succeeded.
    JobSucceeded = "job.succeeded";
    /// A job has failed, was cancelled or has expired.
    JobFailed = "job.failed";
    /// A job is lost.
    JobLost = "job.lost";
    /// A call was answered and is settled.
    RequestCompleted = "request.completed";
    /// A call failed and is settled.
    RequestFailed = "request.failed";
    /// A provider reported far more usage than a call could have.
    RequestSuspicious = "request.suspicious";
}

impl EventKind {
    /// Returns whether it concerns a single call. There are as many such events as calls, so they
    /// are written and sent only where a webhook selects them by name.
    pub const fn is_request_event(self) -> bool {
        matches!(self, Self::RequestCompleted | Self::RequestFailed | Self::RequestSuspicious)
    }
}
