use tollgate_pricing::Amount;

use crate::id::WalletId;
use crate::spend_counters::SpendLimit;
use crate::spend_key::{RequestLimit, RequestShape};
use crate::time::Timestamp;
use crate::wallet::Wallet;

/// Why a call may not go out, in the order in which it is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key is not, or no longer, valid.
    KeyInvalid,
    /// The credential's connection is unknown or another merchant's.
    ConnectionNotFound,
    /// The meter of the credential or of the spend key is unknown or another merchant's.
    MeterNotFound,
    /// The connection was deleted: the credential's, or the one whose wallet the spend key draws on.
    ConnectionDisabled,
    /// The spend key is paused.
    SpendKeyPaused,
    /// The spend key has expired.
    SpendKeyExpired {
        /// Since when.
        expired_at: Timestamp,
    },
    /// The spend key accepts another format.
    RequestShapeMismatch {
        /// The one that it accepts.
        accepted: RequestShape,
    },
    /// The spend key may not use the model.
    ModelNotAllowed {
        /// The model that was asked for; none where it is the others that the body names.
        model: Option<String>,
    },
    /// The spend key may not use the provider.
    ProviderNotAllowed {
        /// The provider it would have gone to.
        provider: String,
    },
    /// What the call may cost has no bound, and the spend key demands one.
    CostBoundUnknown {
        /// The field that leaves it without.
        field: Vec<String>,
    },
    /// The call's upper bound is beyond what one call may hold.
    BoundTooLarge,
    /// Calls of the spend key follow each other too fast.
    RateLimited {
        /// How many may be made in a minute.
        rpm: u32,
        /// When the next one passes.
        reset: Reset,
    },
    /// The spend key has made all its calls.
    RequestLimitReached {
        /// How many it may make, and when that begins anew.
        limit: RequestLimit,
        /// How many it made in this cycle.
        used: u64,
        /// When the next cycle begins; never for a limit in total.
        reset: Option<Reset>,
    },
    /// Too little of the spend key's limit is left.
    SpendLimitReached {
        /// How much it may spend, and when that begins anew.
        limit: SpendLimit,
        /// How much it spent in this cycle.
        spent: Amount,
        /// What is left.
        shortage: Shortage,
        /// When the next cycle begins; never for a limit in total.
        reset: Option<Reset>,
    },
    /// Too little is left on a wallet that would pay.
    WalletInsufficient {
        /// The wallet; none where it is the merchant's own and not the caller's to know.
        wallet_id: Option<WalletId>,
        /// What is left.
        shortage: Shortage,
    },
}

impl Refusal {
    /// A wallet whose balance could not say what is owed once the call has ended.
    pub(super) fn out_of_room(wallet: &Wallet, is_known: bool) -> Self {
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

/// When there is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The instant.
    pub at: Timestamp,
    /// How long that is from the refusal, in microseconds.
    pub wait_micros: i64,
}

impl Reset {
    /// A reset at `at`, seen from `now`.
    pub(super) const fn new(at: Timestamp, now: Timestamp) -> Self {
        Self { at, wait_micros: at.unix_micros().saturating_sub(now.unix_micros()) }
    }
}

/// How little is left, and what would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// What a new call may draw on; may be below zero.
    pub left: Amount,
    /// How much calls in flight hold, which may be more than they will cost.
    pub held: Amount,
    /// The most that the call can cost, where all of it must be left.
    pub needed: Option<Amount>,
    /// The largest maximum of tokens with which the call would be admitted, if there is one.
    pub largest_max_tokens: Option<u64>,
}

impl Shortage {
    /// Whether there may be enough when the calls in flight have ended: waiting helps then.
    pub fn is_held_by_calls_in_flight(&self) -> bool {
        let without_holds = self.left.saturating_add(self.held);
        self.held.is_positive()
            && match self.needed {
                Some(needed) => without_holds >= needed,
                None => without_holds.is_positive(),
            }
    }
}
