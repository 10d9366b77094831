//! The state by which the ledger decides: a snapshot, in memory, of the rows that a group needs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tollgate_domain::admission::{self, Admission, AdmissionFacts, Call, MerchantAccount, Refusal};
use tollgate_domain::{
    Budget, BudgetId, PendingRecord, RequestId, Run, RunAccountId, SpendKey, SpendKeyId,
    Subscription, Timestamp, Wallet, WalletId,
};
use tollgate_pricing::Rate;

use super::config::CallConfig;
use crate::error::StoreError;
use crate::rows::CounterKey;
use crate::settled_call::SettledCall;
use crate::write_set::{LedgerWallet, LedgerWallets};

/// The snapshot of accounts, calls and counters by which groups are decided.
#[derive(Default)]
pub(super) struct LedgerState {
    pub(super) accounts: Accounts,
    pub(super) calls: HashMap<RequestId, CallState>,
    /// The units of each tier counter.
    pub(super) counters: BTreeMap<CounterKey, i64>,
}

/// The accounts that calls draw on.
#[derive(Default)]
pub(super) struct Accounts {
    pub(super) wallets: LedgerWallets,
    /// The active subscriptions that provide the wallets' credits, by wallet.
    pub(super) subscriptions: BTreeMap<WalletId, Subscription>,
    pub(super) spend_keys: BTreeMap<SpendKeyId, SpendKey>,
    pub(super) budgets: BTreeMap<BudgetId, Budget>,
    pub(super) runs: BTreeMap<RunAccountId, Run>,
}

/// The state of a known call.
pub(super) enum CallState {
    /// Admitted and not settled.
    Open(Arc<PendingRecord>),
    /// To be settled, but not among the open calls: it was reported afterwards, or the database has lost it. It holds
    /// nothing.
    Unadmitted(Arc<PendingRecord>),
    /// Settled.
    Settled(SettledCall),
}

impl LedgerState {
    /// The number of known rows.
    pub(super) fn len(&self) -> usize {
        let Accounts { wallets, spend_keys, budgets, runs, .. } = &self.accounts;
        let limited = spend_keys.len() + budgets.len() + runs.len();
        wallets.len() + limited + self.calls.len() + self.counters.len()
    }

    /// Forgets everything but the open calls, which only this process ends.
    pub(super) fn forget(&mut self) {
        self.accounts = Accounts::default();
        self.counters = BTreeMap::new();
        self.calls.retain(|_, call| matches!(call, CallState::Open(_)));
    }
}

impl Accounts {
    /// Decides a call by the accounts as they are. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when an account that the call names does not exist.
    pub(super) fn decide(
        &self,
        call: &Call,
        named: &CallConfig<'_>,
        service_charge_rate: Rate,
    ) -> Result<Result<Admission, Refusal>, StoreError> {
        let guarded = named.guarded_wallet_id().map(|id| self.wallet(id)).transpose()?;
        let spend_key = named.spend_key.map(|key| self.spend_key(key.spend_key_id)).transpose()?;
        let budgets = named.budget_ids.iter().map(|id| self.budget(*id));
        let budgets = budgets.collect::<Result<Vec<_>, _>>()?;
        let facts = AdmissionFacts {
            budgets: &budgets,
            own_budget_id: named.own_budget_id,
            run: named.run.as_ref().map(|run| self.run(run.account_id)).transpose()?,
            account: named
                .own_wallet
                .map(|own| MerchantAccount { wallet_id: own.wallet_id, guarded }),
            spend_key,
            connection: named.connection,
            key_connection: named.key_connection,
            wallet: named.wallet_id().map(|id| self.wallet(id)).transpose()?,
            meter: named.meter,
            draws_on_credit: self.draws_on_credit(named),
        };
        Ok(admission::decide(call, &facts, service_charge_rate))
    }

    /// Whether the meter of a call is linked to the subscription of its wallet.
    fn draws_on_credit(&self, named: &CallConfig<'_>) -> bool {
        let subscription = named.wallet_id().and_then(|id| self.subscriptions.get(&id));
        let drawn = named.meter.zip(subscription);
        drawn.is_some_and(|(meter, subscription)| subscription.allows_draw(meter.meter_id))
    }

    /// Whether a renewal is due for the credit that a call may draw on, so that the credit is out of date.
    pub(super) fn is_due(&self, named: &CallConfig<'_>, now: Timestamp) -> bool {
        let subscription = named.wallet_id().and_then(|id| self.subscriptions.get(&id));
        subscription.is_some_and(|subscription| subscription.is_due(now))
    }

    fn wallet(&self, id: WalletId) -> Result<&Wallet, StoreError> {
        Ok(&self.wallets.get(&id).ok_or_else(|| missing_wallet(id))?.wallet)
    }

    pub(super) fn wallet_mut(&mut self, id: WalletId) -> Result<&mut LedgerWallet, StoreError> {
        self.wallets.get_mut(&id).ok_or_else(|| missing_wallet(id))
    }

    fn spend_key(&self, id: SpendKeyId) -> Result<&SpendKey, StoreError> {
        self.spend_keys.get(&id).ok_or_else(|| missing_key(id))
    }

    fn budget(&self, id: BudgetId) -> Result<&Budget, StoreError> {
        self.budgets.get(&id).ok_or_else(|| missing_budget(id))
    }

    fn run(&self, id: RunAccountId) -> Result<&Run, StoreError> {
        self.runs.get(&id).ok_or_else(|| missing_run(id))
    }

    pub(super) fn run_mut(&mut self, id: RunAccountId) -> Result<&mut Run, StoreError> {
        self.runs.get_mut(&id).ok_or_else(|| missing_run(id))
    }

    pub(super) fn budget_mut(&mut self, id: BudgetId) -> Result<&mut Budget, StoreError> {
        self.budgets.get_mut(&id).ok_or_else(|| missing_budget(id))
    }

    pub(super) fn spend_key_mut(&mut self, id: SpendKeyId) -> Result<&mut SpendKey, StoreError> {
        self.spend_keys.get_mut(&id).ok_or_else(|| missing_key(id))
    }
}

fn missing_wallet(id: WalletId) -> StoreError {
    StoreError::missing("wallet", id)
}

fn missing_budget(id: BudgetId) -> StoreError {
    StoreError::missing("budget", id)
}

fn missing_run(id: RunAccountId) -> StoreError {
    StoreError::missing("run", id)
}

fn missing_key(id: SpendKeyId) -> StoreError {
    StoreError::missing("spend key", id)
}
