//! What the merchant's systems are told. Events are written in the transaction that causes them.

use serde::{Deserialize, Serialize};

use crate::id::{EventId, MerchantId};
use crate::spend_key::SpendKey;
use crate::time::Timestamp;

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
}

impl News {
    /// The word by which webhooks know it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::SpendKeyThresholdReached { .. } => "spend_key.threshold_reached",
            Self::SpendKeyLimitReached { .. } => "spend_key.limit_reached",
        }
    }
}
