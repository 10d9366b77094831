//! Wallets and their ledger lines.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::credit::{Credits, LedgerAccount};
use crate::id::{ConnectionId, MerchantId, RequestId, TransactionId, WalletId};
use crate::time::Timestamp;

/// A prepaid account. `balance` is the sum of its ledger lines, `held` the sum of its open holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wallet {
    /// The id.
    pub wallet_id: WalletId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// The customer that it belongs to; absent for the merchant's own wallet.
    pub connection_id: Option<ConnectionId>,
    /// The money in the wallet. It may be negative.
    pub balance: Amount,
    /// The holds of admitted calls.
    pub held: Amount,
    /// The credit from subscriptions, drawn before the balance.
    pub credits: Credits,
    /// The overdraft limit: how far the balance may go below zero. `None` is unlimited.
    pub overdraft_limit: Option<Amount>,
    /// The balance below which the merchant is notified.
    pub low_balance_threshold: Option<Amount>,
    /// The time of creation.
    pub created_at: Timestamp,
}

impl Wallet {
    /// The lowest balance that a debit may leave. The rest of the range of an amount is for calls
    /// that were admitted before.
    pub const LEAST_BALANCE: Amount = Amount::from_units(-400_000_000 * 10_000_000_000);
    /// The highest balance that a credit may leave.
    pub const MOST_BALANCE: Amount = Amount::from_units(400_000_000 * 10_000_000_000);

    /// Whether admissions must check a merchant's own wallet: it has a limit, or almost no room left.
    pub fn is_guarded(&self) -> bool {
        self.overdraft_limit.is_some() || self.balance <= Self::LEAST_BALANCE
    }

    /// Returns whether the balance stays in the range of an amount if `hold` and all present holds
    /// are spent.
    pub fn has_room_for(&self, hold: Amount) -> bool {
        let without = self.balance.checked_sub(self.held);
        without.and_then(|left| left.checked_sub(hold)).is_ok()
    }

    /// The money for a new call that may not draw on credit: `balance + overdraft − held`. A wallet
    /// without a limit shows `balance − held`.
    pub fn available_balance(&self) -> Amount {
        let limit = self.overdraft_limit.unwrap_or(Amount::ZERO);
        self.balance.saturating_add(limit).saturating_sub(self.held)
    }

    /// The money for a new call that may draw on credit: [`Wallet::available_balance`] and the free
    /// credit.
    pub fn available(&self) -> Amount {
        self.available_balance().saturating_add(self.credits.free())
    }
}

/// The changes of a wallet. `None` keeps a field, `Some(None)` clears it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalletChanges {
    /// The overdraft limit.
    pub overdraft_limit: Option<Option<Amount>>,
    /// The balance below which the merchant is notified.
    pub low_balance_threshold: Option<Option<Amount>>,
}

/// The reason of a ledger line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransactionKind {
    /// The merchant or the operator put money in.
    Credit,
    /// The merchant or the operator took money out.
    Debit,
    /// A call was paid.
    Usage,
    /// A cycle of a subscription began and brought credit.
    CreditGrant,
    /// Credit that was not used in time expired.
    CreditExpiry,
    /// Unused credit moved from its cycle into the next: one line out, one line in.
    Rollover,
    /// Credit was bought.
    BundlePurchase,
    /// An earlier booking was corrected.
    Correction,
}

/// A ledger line: one movement of money or credit, written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The id.
    pub transaction_id: TransactionId,
    /// The wallet.
    pub wallet_id: WalletId,
    /// The number of the line in its wallet: 1, 2, 3, …
    pub number: i64,
    /// The account of the wallet.
    pub account: LedgerAccount,
    /// The reason.
    pub kind: TransactionKind,
    /// The amount; negative takes out.
    pub amount: Amount,
    /// The account's balance after it.
    pub balance_after: Amount,
    /// The call that it belongs to, if any.
    pub request_id: Option<RequestId>,
    /// The merchant's description.
    pub description: Option<String>,
    /// The time of booking.
    pub created_at: Timestamp,
}
