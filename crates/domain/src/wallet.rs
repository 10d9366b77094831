use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::credit::{Credits, LedgerAccount};
use crate::id::{ConnectionId, MerchantId, RequestId, TransactionId, WalletId};
use crate::time::Timestamp;

/// An account. Its balance equals the sum of its transactions; `held` that of its open holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wallet {
    /// Its id.
    pub wallet_id: WalletId,
    /// Whose wallet it is.
    pub merchant_id: MerchantId,
    /// The connection it belongs to; absent for the merchant's own.
    pub connection_id: Option<ConnectionId>,
    /// What is on it; may be negative.
    pub balance: Amount,
    /// What admitted calls may still take of it.
    pub held: Amount,
    /// What subscriptions granted, to be drawn before the balance.
    pub credits: Credits,
    /// How far below zero it may be drawn; `None` is without limit.
    pub overdraft_limit: Option<Amount>,
    /// Below this balance the merchant is told.
    pub low_balance_threshold: Option<Amount>,
    /// When it was made.
    pub created_at: Timestamp,
}

impl Wallet {
    /// To here a debit may take a balance, and no further: the rest of the range of an amount is for
    /// calls that were admitted before.
    pub const LEAST_BALANCE: Amount = Amount::from_units(-400_000_000 * 10_000_000_000);
    /// To here a credit may.
    pub const MOST_BALANCE: Amount = Amount::from_units(400_000_000 * 10_000_000_000);

    /// Whether the balance can say what is owed if `hold` and all that is held are spent.
    pub fn has_room_for(&self, hold: Amount) -> bool {
        let without = self.balance.checked_sub(self.held);
        without.and_then(|left| left.checked_sub(hold)).is_ok()
    }

    /// `balance + overdraft − held`: what a new call may draw on that may not draw on credit. A
    /// wallet without limit shows `balance − held`.
    pub fn available_balance(&self) -> Amount {
        let limit = self.overdraft_limit.unwrap_or(Amount::ZERO);
        self.balance.saturating_add(limit).saturating_sub(self.held)
    }

    /// The same with credit: what a new call may draw on.
    pub fn available(&self) -> Amount {
        self.available_balance().saturating_add(self.credits.free())
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
    /// A cycle of a subscription began and brought credit.
    CreditGrant,
    /// Credit that was not used in time is gone.
    CreditExpiry,
    /// Credit that was not used in its cycle is taken into the next: out of the one, into the other.
    Rollover,
    /// Credit was bought.
    BundlePurchase,
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
    /// What of the wallet it moved.
    pub account: LedgerAccount,
    /// Why.
    pub kind: TransactionKind,
    /// By how much; negative takes out.
    pub amount: Amount,
    /// What it left of what it moved.
    pub balance_after: Amount,
    /// The call it was for, if it was for one.
    pub request_id: Option<RequestId>,
    /// The merchant's words.
    pub description: Option<String>,
    /// When.
    pub created_at: Timestamp,
}
