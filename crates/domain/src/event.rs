//! What the merchant's systems are told. Events are written in the transaction that causes them.

use serde::{Deserialize, Serialize};

use tollgate_pricing::Amount;

use crate::connection::Connection;
use crate::id::{EventId, MerchantId};
use crate::spend_key::SpendKey;
use crate::subscription::SubscriptionState;
use crate::subscription_config::CreditBundle;
use crate::time::Timestamp;
use crate::wallet::Wallet;

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
}

impl News {
    /// The word by which webhooks know it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::ConnectionCreated { .. } => "connection.created",
            Self::ConnectionDeleted { .. } => "connection.deleted",
            Self::WalletBalanceLow { .. } => "wallet.balance_low",
            Self::WalletBalanceDepleted { .. } => "wallet.balance_depleted",
            Self::SubscriptionCreated { .. } => "subscription.created",
            Self::SubscriptionRenewed { .. } => "subscription.renewed",
            Self::SubscriptionChanged { .. } => "subscription.changed",
            Self::SubscriptionCancelled { .. } => "subscription.cancelled",
            Self::CreditBundlePurchased { .. } => "credit_bundle.purchased",
            Self::SpendKeyThresholdReached { .. } => "spend_key.threshold_reached",
            Self::SpendKeyLimitReached { .. } => "spend_key.limit_reached",
            Self::PriceMissing { .. } => "price.missing",
        }
    }
}
