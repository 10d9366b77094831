//! Refusals: the decision that a call may not go out.

use tollgate_pricing::Amount;

use crate::id::{BudgetId, WalletId};
use crate::limit::LimitOwner;
use crate::spend_counters::SpendLimit;
use crate::spend_key::{RequestLimit, RequestShape};
use crate::time::Timestamp;
use crate::wallet::Wallet;

/// The reason why a call may not go out. The variants are in the order of the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key is not valid, or no longer.
    KeyInvalid,
    /// The customer of the credential is unknown or another merchant's.
    ConnectionNotFound,
    /// The meter of the credential or of the spend key is unknown or another merchant's.
    MeterNotFound,
    /// The customer of the credential, or the one whose wallet the spend key draws on, was deleted.
    ConnectionDisabled,
    /// That customer is suspended.
    ConnectionSuspended,
    /// The spend key is paused.
    SpendKeyPaused,
    /// The spend key has expired.
    SpendKeyExpired {
        /// The time of expiry.
        expired_at: Timestamp,
    },
    /// The spend key accepts another format.
    RequestShapeMismatch {
        /// The accepted format.
        accepted: RequestShape,
    },
    /// The spend key may not use the model.
    ModelNotAllowed {
        /// The requested model; `None` where the other models in the body are the reason.
        model: Option<String>,
    },
    /// The spend key may not use the provider.
    ProviderNotAllowed {
        /// The provider of the call.
        provider: String,
    },
    /// A budget is paused.
    BudgetPaused {
        /// The budget.
        budget_id: BudgetId,
    },
    /// The call would raise the limit that its run has.
    RunLimitConflict {
        /// The limit of the run in USD.
        limit: Amount,
    },
    /// The cost of the call has no bound, and the spend key, a budget or the run requires one.
    CostBoundUnknown {
        /// The owner of the limit that requires a bound.
        owner: LimitOwner,
        /// The path of the field that leaves it without a bound.
        field: Vec<String>,
    },
    /// The call's upper bound is above the most that one call may hold.
    BoundTooLarge,
    /// The spend key's rate limit is reached.
    RateLimited {
        /// The calls allowed per minute.
        rpm: u32,
        /// The time from which the next call passes.
        reset: LimitReset,
    },
    /// A request limit is reached.
    RequestLimitReached {
        /// The owner of the limit.
        owner: LimitOwner,
        /// The limit and its cycle.
        limit: RequestLimit,
        /// The number of calls in this cycle.
        used: u64,
        /// The start of the next cycle; `None` for a limit in total.
        reset: Option<LimitReset>,
    },
    /// A spend limit has too little left. For a call that two accounts refuse, the first account comes first, whichever
    /// limits these are.
    SpendLimitReached {
        /// The owner of the limit.
        owner: LimitOwner,
        /// The limit and its cycle.
        limit: SpendLimit,
        /// The amount spent in this cycle.
        spent: Amount,
        /// The amount that is left.
        shortage: Shortage,
        /// The start of the next cycle; `None` for a limit in total.
        reset: Option<LimitReset>,
    },
    /// A wallet that would pay has too little left.
    WalletInsufficient {
        /// The wallet; `None` where it is the merchant's own and the caller may not know it.
        wallet_id: Option<WalletId>,
        /// The amount that is left.
        shortage: Shortage,
    },
}

impl Refusal {
    /// The refusal of a call whose end could take the wallet's balance out of the range of an
    /// amount.
    pub(super) fn wallet_overflow(wallet: &Wallet, is_known: bool) -> Self {
        Self::WalletInsufficient {
            wallet_id: is_known.then_some(wallet.wallet_id),
            shortage: Shortage {
                left: wallet.available_balance(),
                held: wallet.held,
                needed: None,
                largest_max_tokens: None,
            },
        }
    }
}

/// The time at which a limit allows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReset {
    /// The instant.
    pub at: Timestamp,
    /// The time from the refusal to the instant, in microseconds.
    pub wait_micros: i64,
}

impl LimitReset {
    /// A reset at `at`, as seen from `now`.
    pub(super) const fn new(at: Timestamp, now: Timestamp) -> Self {
        Self { at, wait_micros: at.unix_micros().saturating_sub(now.unix_micros()) }
    }
}

/// The amount that is left, and what would be enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The amount that a new call may draw on. It may be negative.
    pub left: Amount,
    /// The holds of calls in flight, which may exceed their later cost.
    pub held: Amount,
    /// The most that the call can cost, where all of it must be left.
    pub needed: Option<Amount>,
    /// The largest maximum of tokens with which the call would be admitted, if there is one.
    pub largest_max_tokens: Option<u64>,
}

impl Shortage {
    /// Returns whether enough may be left when the calls in flight have ended, so that it helps to
    /// wait.
    pub fn is_temporary(&self) -> bool {
        let without_holds = self.left.saturating_add(self.held);
        self.held.is_positive()
            && match self.needed {
                Some(needed) => without_holds >= needed,
                None => without_holds.is_positive(),
            }
    }
}
