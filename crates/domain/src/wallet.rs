use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::id::{ConnectionId, MerchantId, RequestId, TransactionId, WalletId};
use crate::time::Timestamp;

/// An account. Its balance equals the sum of its transactions; `held` that of its open holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wallet {
    /// Its id.
    pub wallet_id: WalletId,
    /// Whose wallet it is.
    pub merchant_id: MerchantId,
    /// The connection it belongs to; absent for the merchant's own.
    pub connection_id: Option<ConnectionId>,
    /// What is on it; may be negative.
    pub balance: Amount,
    /// What admitted calls may still take.
    pub held: Amount,
    /// How far below zero it may be drawn; `None` is without limit.
    pub overdraft_limit: Option<Amount>,
    /// Below this balance the merchant is told.
    pub low_balance_threshold: Option<Amount>,
    /// When it was made.
    pub created_at: Timestamp,
}

impl Wallet {
    /// `balance + overdraft − held`: what a new call may draw on. A wallet without limit shows
    /// `balance − held`.
    pub fn available(&self) -> Amount {
        let limit = self.overdraft_limit.unwrap_or(Amount::ZERO);
        self.balance.saturating_add(limit).saturating_sub(self.held)
    }
}

/// What changes in a wallet: `None` leaves a field as it is, `Some(None)` clears it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalletChanges {
    /// How far below zero it may be drawn.
    pub overdraft_limit: Option<Option<Amount>>,
    /// Below this balance the merchant is told.
    pub low_balance_threshold: Option<Option<Amount>>,
}

/// Why money moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransactionKind {
    /// Put in by the merchant or the operator.
    Credit,
    /// Taken out by the merchant or the operator.
    Debit,
    /// A call was paid.
    Usage,
    /// Something booked before was put right.
    Correction,
}

/// One movement of money: written once, never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Its id.
    pub transaction_id: TransactionId,
    /// The wallet it moved.
    pub wallet_id: WalletId,
    /// Which of the wallet's movements it is: 1, 2, 3, …
    pub number: i64,
    /// Why.
    pub kind: TransactionKind,
    /// By how much; negative takes out.
    pub amount: Amount,
    /// The balance it left.
    pub balance_after: Amount,
    /// The call it paid, if it paid one.
    pub request_id: Option<RequestId>,
    /// The merchant's words.
    pub description: Option<String>,
    /// When.
    pub created_at: Timestamp,
}
