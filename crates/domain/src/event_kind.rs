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
            /// Somebody wants to see whether a webhook works. It cannot be left out.
            #[serde(rename = "webhook.test")]
            WebhookTest,
        }

        impl EventKind {
            /// All that a webhook can ask for.
            pub const ALL: &'static [Self] = &[ $( Self::$Kind, )* ];

            /// The word by which webhooks know it.
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
    /// A customer was made.
    ConnectionCreated = "connection.created";
    /// A customer was deleted.
    ConnectionDeleted = "connection.deleted";
    /// A balance has fallen below its threshold.
    WalletBalanceLow = "wallet.balance_low";
    /// Nothing is left of a balance and its overdraft.
    WalletBalanceDepleted = "wallet.balance_depleted";
    /// A share of a spend limit is used up.
    SpendKeyThresholdReached = "spend_key.threshold_reached";
    /// A spend limit is used up.
    SpendKeyLimitReached = "spend_key.limit_reached";
    /// A subscription has begun.
    SubscriptionCreated = "subscription.created";
    /// A cycle has ended and the next one begun.
    SubscriptionRenewed = "subscription.renewed";
    /// A subscription goes on under another configuration.
    SubscriptionChanged = "subscription.changed";
    /// A subscription has ended.
    SubscriptionCancelled = "subscription.cancelled";
    /// Credit was bought.
    CreditBundlePurchased = "credit_bundle.purchased";
    /// A call needed a price that no list has.
    PriceMissing = "price.missing";
    /// A call was answered and is booked.
    RequestCompleted = "request.completed";
    /// A call failed and is booked.
    RequestFailed = "request.failed";
    /// A provider claimed far more than a call could use.
    RequestSuspicious = "request.suspicious";
}

impl EventKind {
    /// Whether it tells of a single call. There are as many as calls, so they are written and told
    /// only where a webhook asks for them by name.
    pub const fn is_of_a_request(self) -> bool {
        matches!(self, Self::RequestCompleted | Self::RequestFailed | Self::RequestSuspicious)
    }
}
