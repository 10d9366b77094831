//! What the merchant's systems are told. Events are written in the transaction that causes them.

use serde::{Deserialize, Serialize};

use tollgate_pricing::Amount;

use crate::connection::Connection;
use crate::id::{EventId, MerchantId, RequestId};
use crate::spend_key::SpendKey;
use crate::subscription::SubscriptionState;
use crate::subscription_config::CreditBundle;
use crate::time::Timestamp;
use crate::wallet::Wallet;
use crate::webhook::Webhook;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its id.
    pub event_id: EventId,
    /// Whom it concerns.
    pub merchant_id: MerchantId,
    /// What happened.
    pub news: News,
    /// When.
    pub created_at: Timestamp,
}

/// What happened, with the resource as it was right after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum News {
    /// A customer was made.
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
    /// Nothing is left of a balance and its overdraft.
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
        /// What the merchant has to collect for the cycle.
        amount_due: Amount,
    },
    /// A cycle has ended and the next one begun.
    #[serde(rename = "subscription.renewed")]
    SubscriptionRenewed {
        /// The subscription.
        subscription: Box<SubscriptionState>,
        /// What the merchant has to collect for the cycle.
        amount_due: Amount,
    },
    /// A subscription goes on under another configuration, in a new cycle.
    #[serde(rename = "subscription.changed")]
    SubscriptionChanged {
        /// The subscription.
        subscription: Box<SubscriptionState>,
        /// What the merchant has to collect for the cycle.
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
        /// What was bought.
        credit_bundle: Box<CreditBundle>,
        /// Whose it is now.
        subscription: Box<SubscriptionState>,
        /// What the merchant has to collect for it.
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
    /// A call needed a price that no list has, for the first time that day (UTC).
    #[serde(rename = "price.missing")]
    PriceMissing {
        /// The provider's name.
        provider: String,
        /// The model.
        model: String,
        /// The unit that has none; absent where the model has no price at all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unit: Option<String>,
    },
    /// A call was answered and is booked.
    #[serde(rename = "request.completed")]
    RequestCompleted {
        /// The call; its record is read when the message is written, for it does not change any more.
        request_id: RequestId,
    },
    /// A call failed and is booked.
    #[serde(rename = "request.failed")]
    RequestFailed {
        /// The call; its record is read when the message is written.
        request_id: RequestId,
    },
    /// A provider claimed far more than a call could use.
    #[serde(rename = "request.suspicious")]
    RequestSuspicious {
        /// The call; its record is read when the message is written.
        request_id: RequestId,
    },
    /// Somebody wants to see whether a webhook works.
    #[serde(rename = "webhook.test")]
    WebhookTest {
        /// The webhook.
        webhook: Box<Webhook>,
    },
}

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

impl News {
    /// What kind of event it is.
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
            Self::PriceMissing { .. } => EventKind::PriceMissing,
            Self::RequestCompleted { .. } => EventKind::RequestCompleted,
            Self::RequestFailed { .. } => EventKind::RequestFailed,
            Self::RequestSuspicious { .. } => EventKind::RequestSuspicious,
            Self::WebhookTest { .. } => EventKind::WebhookTest,
        }
    }

    /// The resource whose events are told in their order.
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
            Self::PriceMissing { provider, model, .. } => format!("{provider}/{model}"),
            Self::RequestCompleted { request_id }
            | Self::RequestFailed { request_id }
            | Self::RequestSuspicious { request_id } => request_id.to_string(),
            Self::WebhookTest { webhook } => webhook.webhook_id.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_stored_under_the_word_of_its_kind() {
        let request_id = RequestId::generate(Timestamp::from_unix_micros(1));
        for news in [News::RequestCompleted { request_id }, News::RequestFailed { request_id }] {
            let stored = serde_json::to_value(&news).unwrap();
            assert_eq!(stored["type"], news.kind().as_str());
            assert_eq!(stored["type"], serde_json::to_value(news.kind()).unwrap());
            assert_eq!(news.resource(), request_id.to_string());
        }
    }
}
