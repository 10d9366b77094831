//! Storms of calls that are refused: a client that tries again without pause must cost next to
//! nothing.
//!
//! When the ledger has refused many calls of one credential within a moment, the facts by which it
//! did so are remembered, and more calls of that one are decided by them, by the same rules. Only a
//! refusal is ever taken from them; what they would admit goes to the ledger. A change that this
//! process makes to the key or its wallets drops them before anybody learns that it was made, so on
//! one node nobody is refused who would be admitted; a change made elsewhere is seen when they are
//! [`FRESH`] no longer.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tollgate_domain::admission::{self, Account, Call, CallKey, Facts, Refusal};
use tollgate_domain::{
    Connection, ConnectionId, MerchantMeter, SpendKey, SpendKeyId, Timestamp, Wallet, WalletId,
};
use tollgate_pricing::Rate;

/// How long facts are believed.
const FRESH: Duration = Duration::from_millis(50);
/// How many calls must have been refused in that time. Whoever tries now and then always reaches
/// the ledger.
const STORM: u32 = 16;
/// How many callers are remembered.
const CALLERS: usize = 1_024;

/// Who calls: a key, and what its token names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Who {
    key: CallKey,
    connection_id: Option<ConnectionId>,
    meter_slug: Option<String>,
}

impl Who {
    fn calls(call: &Call) -> Self {
        Self {
            key: call.key,
            connection_id: call.connection_id,
            meter_slug: call.meter_slug.clone(),
        }
    }
}

/// The facts by which calls were refused.
pub(super) struct Remembered {
    pub(super) account: WalletId,
    pub(super) guarded_account: Option<Wallet>,
    pub(super) spend_key: Option<SpendKey>,
    pub(super) connection: Option<Connection>,
    pub(super) key_connection: Option<Connection>,
    pub(super) wallet: Option<Wallet>,
    pub(super) meter: Option<MerchantMeter>,
    pub(super) draws_on_credit: bool,
    /// When there will be other credit.
    pub(super) credit_renews_at: Option<Timestamp>,
}

struct Storm {
    facts: Remembered,
    since: Instant,
    refused: AtomicU32,
}

/// Accounts that have changed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) spend_keys: BTreeSet<SpendKeyId>,
    pub(super) wallets: BTreeSet<WalletId>,
}

impl Changed {
    /// Whether none has.
    pub(super) fn is_empty(&self) -> bool {
        self.spend_keys.is_empty() && self.wallets.is_empty()
    }
}

/// The storms of this process.
#[derive(Default)]
pub(crate) struct Storms {
    by_caller: RwLock<HashMap<Who, Arc<Storm>>>,
    /// Most of the time there is none, and nobody needs to ask for the lock.
    any: AtomicBool,
    /// Grows with everything that is forgotten: facts that were read before may be old.
    epoch: AtomicU64,
}

impl Storms {
    /// The refusal of a call, if its key is in a storm and the facts refuse it.
    pub(crate) fn refuse(&self, call: &Call, service_charge_rate: Rate) -> Option<Refusal> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let storm = {
            let by_caller = self.by_caller.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(by_caller.get(&Who::calls(call))?)
        };
        let known = &storm.facts;
        let is_believed =
            storm.refused.load(Ordering::Relaxed) >= STORM && storm.since.elapsed() <= FRESH;
        let has_renewed = known.credit_renews_at.is_some_and(|at| at <= call.created_at);
        if !is_believed || has_renewed {
            return None;
        }
        let facts = Facts {
            account: Some(Account {
                wallet_id: known.account,
                guarded: known.guarded_account.as_ref(),
            }),
            spend_key: known.spend_key.as_ref(),
            connection: known.connection.as_ref(),
            key_connection: known.key_connection.as_ref(),
            wallet: known.wallet.as_ref(),
            meter: known.meter.as_ref(),
            draws_on_credit: known.draws_on_credit,
        };
        admission::decide(call, &facts, service_charge_rate).err()
    }

    /// Ask before facts are read that may come to be noted.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Notes that the ledger has refused a call, by facts read in `epoch`.
    pub(super) fn note(&self, epoch: u64, call: &Call, facts: impl FnOnce() -> Option<Remembered>) {
        let mut by_caller = self.by_caller.write().unwrap_or_else(PoisonError::into_inner);
        if self.epoch() != epoch {
            return;
        }
        let who = Who::calls(call);
        if let Some(storm) = by_caller.get(&who).filter(|storm| storm.since.elapsed() <= FRESH) {
            storm.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(facts) = facts() else { return };
        if by_caller.len() >= CALLERS {
            by_caller.clear();
        }
        let storm = Storm { facts, since: Instant::now(), refused: AtomicU32::new(1) };
        by_caller.insert(who, Arc::new(storm));
        self.any.store(true, Ordering::Release);
    }

    /// Forgets what rests on accounts that have changed. Call it when that is committed.
    pub(super) fn forget(&self, changed: &Changed) {
        let Changed { spend_keys, wallets } = changed;
        let mut by_caller = self.by_caller.write().unwrap_or_else(PoisonError::into_inner);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        by_caller.retain(|_, storm| {
            let facts = &storm.facts;
            let key = facts.spend_key.as_ref().map(|key| key.spend_key_id);
            let wallet = facts.wallet.as_ref().map(|wallet| wallet.wallet_id);
            let rests_on = key.is_some_and(|id| spend_keys.contains(&id))
                || wallet.is_some_and(|id| wallets.contains(&id))
                || wallets.contains(&facts.account);
            !rests_on && storm.since.elapsed() <= FRESH
        });
        self.any.store(!by_caller.is_empty(), Ordering::Release);
    }

    /// Forgets everything: anything may have changed.
    pub(super) fn forget_all(&self) {
        let mut by_caller = self.by_caller.write().unwrap_or_else(PoisonError::into_inner);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        by_caller.clear();
        self.any.store(false, Ordering::Release);
    }
}
