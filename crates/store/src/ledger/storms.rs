//! Storms of calls that are refused: a client that tries again without pause must cost next to
//! nothing.
//!
//! When the ledger has refused many calls of one spend key within a moment, the facts by which it
//! did so are remembered, and more calls of that key are decided by them, by the same rules. Only a
//! refusal is ever taken from them; what they would admit goes to the ledger. A change that this
//! process makes to the key or its wallets drops them at once, so on one node nobody is refused who
//! would be admitted; a change made elsewhere is seen when they are [`FRESH`] no longer.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tollgate_domain::admission::{self, Account, Call, CallKey, Facts, Refusal};
use tollgate_domain::{Connection, KeyHash, MerchantMeter, SpendKey, SpendKeyId, Wallet, WalletId};
use tollgate_pricing::Rate;

/// How long facts are believed.
const FRESH: Duration = Duration::from_millis(50);
/// How many calls must have been refused in that time. Whoever tries now and then always reaches
/// the ledger.
const STORM: u32 = 16;
/// How many keys are remembered.
const KEYS: usize = 1_024;

/// The facts by which calls of a key were refused.
pub(super) struct Remembered {
    pub(super) key_hash: KeyHash,
    pub(super) spend_key: SpendKey,
    pub(super) account: WalletId,
    pub(super) limited_account: Option<Wallet>,
    pub(super) wallet: Option<Wallet>,
    pub(super) key_connection: Option<Connection>,
    pub(super) meter: Option<MerchantMeter>,
}

struct Storm {
    facts: Remembered,
    since: Instant,
    refused: AtomicU32,
}

/// The storms of this process.
#[derive(Default)]
pub(crate) struct Storms {
    by_key: RwLock<HashMap<SpendKeyId, Arc<Storm>>>,
    /// Most of the time there is none, and nobody needs to ask for the lock.
    any: AtomicBool,
}

impl Storms {
    /// The refusal of a call, if its key is in a storm and the facts refuse it.
    pub(crate) fn refuse(&self, call: &Call, service_charge_rate: Rate) -> Option<Refusal> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let CallKey::Spend(id, hash) = call.key else { return None };
        let storm = {
            let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(by_key.get(&id)?)
        };
        let known = &storm.facts;
        let is_believed = storm.refused.load(Ordering::Relaxed) >= STORM
            && storm.since.elapsed() <= FRESH
            && known.key_hash == hash;
        if !is_believed {
            return None;
        }
        let facts = Facts {
            account: Some(Account {
                wallet_id: known.account,
                limited: known.limited_account.as_ref(),
            }),
            spend_key: Some(&known.spend_key),
            connection: None,
            key_connection: known.key_connection.as_ref(),
            wallet: known.wallet.as_ref(),
            meter: known.meter.as_ref(),
        };
        admission::decide(call, &facts, service_charge_rate).err()
    }

    /// Notes that the ledger has refused a call of a key.
    pub(super) fn note(&self, id: SpendKeyId, facts: impl FnOnce() -> Option<Remembered>) {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(storm) = by_key.get(&id).filter(|storm| storm.since.elapsed() <= FRESH) {
            storm.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(facts) = facts() else { return };
        if by_key.len() >= KEYS {
            by_key.clear();
        }
        let storm = Storm { facts, since: Instant::now(), refused: AtomicU32::new(1) };
        by_key.insert(id, Arc::new(storm));
        self.any.store(true, Ordering::Release);
    }

    /// Forgets what rests on accounts that have changed.
    pub(super) fn forget(&self, spend_keys: &BTreeSet<String>, wallets: &BTreeSet<String>) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        by_key.retain(|id, storm| {
            let facts = &storm.facts;
            let wallets_of = [Some(facts.account), facts.wallet.as_ref().map(|w| w.wallet_id)];
            let changed = spend_keys.contains(&id.to_string())
                || wallets_of.iter().flatten().any(|id| wallets.contains(&id.to_string()));
            !changed && storm.since.elapsed() <= FRESH
        });
        self.any.store(!by_key.is_empty(), Ordering::Release);
    }

    /// Forgets everything: anything may have changed.
    pub(super) fn forget_all(&self) {
        if self.any.swap(false, Ordering::AcqRel) {
            self.by_key.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}
