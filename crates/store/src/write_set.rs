//! The write set: the changes of money of one transaction.
//!
//! Wallets and spend keys are changed in memory while they are locked, and each movement adds a ledger line.
//! [`WriteSet::commit`] checks the [laws](self::laws) of bookkeeping and writes everything.

mod commit;
mod laws;
mod wallets;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tollgate_domain::{
    Budget, BudgetId, CreditHold, CreditSettlement, EventPayload, JobEnd, LedgerAccount,
    MerchantId, NodeId, PendingRecord, ProviderObject, RequestId, Run, RunAccountId, SpendCounters,
    SpendKey, SpendKeyId, Subscription, SubscriptionId, SubscriptionTransition, Timestamp,
    TransactionId, TransactionKind, Wallet, WalletId,
};
use tollgate_pricing::{Amount, Overflow};

use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rows::{CounterKey, EventRow, PlanChargeRow, ProviderObjectRow, TransactionRow};
use crate::settled_call::SettledCall;
pub(crate) use wallets::{LedgerWallet, LedgerWallets, lock_wallets};

/// The reason of a movement.
pub(crate) struct MovementReason<'a> {
    pub(crate) kind: TransactionKind,
    pub(crate) request_id: Option<RequestId>,
    pub(crate) description: Option<&'a str>,
    /// Unique per wallet. Absent when another row makes the operation happen once.
    pub(crate) idempotency_key: Option<String>,
}

/// A movement of money or credit.
#[derive(Clone, Debug)]
struct LedgerLine {
    transaction_id: TransactionId,
    merchant_id: MerchantId,
    wallet_id: WalletId,
    account: LedgerAccount,
    number: i64,
    kind: TransactionKind,
    amount: Amount,
    balance_after: Amount,
    request_id: Option<RequestId>,
    description: Option<String>,
    idempotency_key: Option<String>,
    created_at: Timestamp,
}

/// The holds on a wallet, or their change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WalletHolds {
    balance: Amount,
    cycle: Amount,
    bundle: Amount,
}

impl WalletHolds {
    fn of(wallet: &Wallet) -> Self {
        let credits = &wallet.credits;
        Self { balance: wallet.held, cycle: credits.cycle.held, bundle: credits.bundle.held }
    }

    fn add(&mut self, balance: Amount, credit: Option<CreditHold>) -> Result<(), Overflow> {
        let credit = credit.unwrap_or_default();
        self.balance = self.balance.checked_add(balance)?;
        self.cycle = self.cycle.checked_add(credit.cycle)?;
        self.bundle = self.bundle.checked_add(credit.bundle)?;
        Ok(())
    }

    fn remove(&mut self, balance: Amount, credit: Option<CreditHold>) -> Result<(), Overflow> {
        let credit = credit.unwrap_or_default();
        self.balance = self.balance.checked_sub(balance)?;
        self.cycle = self.cycle.checked_sub(credit.cycle)?;
        self.bundle = self.bundle.checked_sub(credit.bundle)?;
        Ok(())
    }

    fn plus(mut self, other: Self) -> Result<Self, Overflow> {
        self.add(
            other.balance,
            Some(CreditHold { cycle: other.cycle, bundle: other.bundle, in_cycle: 0 }),
        )?;
        Ok(self)
    }
}

/// An account whose limits count calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CountedAccount {
    SpendKey(SpendKeyId),
    Budget(BudgetId),
    Run(RunAccountId),
}

impl CountedAccount {
    /// The accounts of a call.
    fn of_call(call: &PendingRecord) -> impl Iterator<Item = Self> {
        let budgets = call.budgets.ids.iter().copied().map(Self::Budget);
        let run = call.run().map(|run| Self::Run(run.account_id));
        call.spend_key_id.map(Self::SpendKey).into_iter().chain(budgets).chain(run)
    }

    /// The id in the table of counters.
    fn id(self) -> Id<AnyId> {
        match self {
            Self::SpendKey(id) => Id(id).untyped(),
            Self::Budget(id) => Id(id).untyped(),
            Self::Run(id) => Id(id).untyped(),
        }
    }
}

impl fmt::Display for CountedAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SpendKey(id) => id.fmt(f),
            Self::Budget(id) => id.fmt(f),
            Self::Run(id) => id.fmt(f),
        }
    }
}

/// The change of the counters of an account by calls.
#[derive(Clone, Copy, Debug, Default)]
struct CountersChange {
    held: Amount,
    spent: Amount,
    /// The calls that are taken back.
    taken_back: u64,
}

/// A tier counter, before and after.
#[derive(Clone, Copy, Debug)]
struct CounterChange {
    before: i64,
    after: i64,
}

/// A swept call with its settlement before and after the correction.
#[derive(Debug)]
pub(crate) struct Correction {
    pub(crate) before: SettledCall,
    pub(crate) after: SettledCall,
}

/// The changes of one transaction, in memory.
#[derive(Debug)]
pub(crate) struct WriteSet {
    now: Timestamp,
    /// The calls that are admitted, with the nodes that own them.
    opened: Vec<(Arc<PendingRecord>, NodeId)>,
    /// The open calls that are settled.
    closed: Vec<RequestId>,
    records: Vec<SettledCall>,
    corrections: Vec<Correction>,
    counters: BTreeMap<CounterKey, CounterChange>,
    /// Each wallet that is changed, before and after.
    wallets_before: LedgerWallets,
    wallets_after: LedgerWallets,
    /// The counters of each changed spend key, budget and run, before and after.
    counters_before: BTreeMap<CountedAccount, SpendCounters>,
    counters_after: BTreeMap<CountedAccount, (MerchantId, SpendCounters)>,
    /// Each changed run, before and after.
    runs_before: BTreeMap<RunAccountId, Run>,
    runs_after: BTreeMap<RunAccountId, Run>,
    subscriptions: BTreeMap<SubscriptionId, Subscription>,
    lines: Vec<LedgerLine>,
    events: Vec<EventRow>,
    plan_charges: Vec<PlanChargeRow>,
    ended_jobs: Vec<JobEnd>,
    provider_objects: Vec<ProviderObjectRow>,
    /// The holds of opened calls, less the holds of ended calls.
    holds: BTreeMap<WalletId, WalletHolds>,
    accounts: BTreeMap<CountedAccount, CountersChange>,
    /// The amounts that ended calls take from wallets, by call.
    taken: BTreeMap<RequestId, Amount>,
}

impl WriteSet {
    /// Returns an empty write set for a transaction at `now`.
    pub(crate) const fn new(now: Timestamp) -> Self {
        Self {
            now,
            opened: Vec::new(),
            closed: Vec::new(),
            records: Vec::new(),
            corrections: Vec::new(),
            counters: BTreeMap::new(),
            wallets_before: BTreeMap::new(),
            wallets_after: BTreeMap::new(),
            counters_before: BTreeMap::new(),
            counters_after: BTreeMap::new(),
            runs_before: BTreeMap::new(),
            runs_after: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            lines: Vec::new(),
            events: Vec::new(),
            plan_charges: Vec::new(),
            ended_jobs: Vec::new(),
            provider_objects: Vec::new(),
            holds: BTreeMap::new(),
            accounts: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }

    /// Whether the write set changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.opened.is_empty()
            && self.closed.is_empty()
            && self.records.is_empty()
            && self.corrections.is_empty()
            && self.wallets_before.is_empty()
            && self.counters_before.is_empty()
    }

    /// Whether a wallet becomes [guarded](Wallet::is_guarded), or is guarded no longer.
    pub(crate) fn changes_guards(&self) -> bool {
        self.wallets_before.iter().any(|(id, before)| {
            let after = self.wallets_after.get(id);
            after.is_some_and(|after| before.wallet.is_guarded() != after.wallet.is_guarded())
        })
    }

    /// The admitted calls.
    pub(crate) fn opened_calls(&self) -> impl Iterator<Item = &Arc<PendingRecord>> {
        self.opened.iter().map(|(call, _)| call)
    }

    /// The settled calls, corrected ones included.
    pub(crate) fn settled_calls(&self) -> impl Iterator<Item = &SettledCall> {
        let corrected = self.corrections.iter().map(|correction| &correction.after);
        self.records.iter().chain(corrected)
    }

    /// Must be called before a wallet is changed by other code than this write set.
    pub(crate) fn track_wallet(&mut self, wallet: &LedgerWallet) {
        self.wallets_before.entry(wallet.wallet.wallet_id).or_insert_with(|| wallet.clone());
    }

    /// Must be called before the counters of a spend key are changed.
    pub(crate) fn track_spend_key(&mut self, key: &SpendKey) {
        let account = CountedAccount::SpendKey(key.spend_key_id);
        self.counters_before.entry(account).or_insert(key.counters);
    }

    /// Must be called before the counters of a budget are changed.
    pub(crate) fn track_budget(&mut self, budget: &Budget) {
        let account = CountedAccount::Budget(budget.budget_id);
        self.counters_before.entry(account).or_insert(budget.counters);
    }

    /// Must be called before a run is changed.
    pub(crate) fn track_run(&mut self, run: &Run) {
        let account = CountedAccount::Run(run.account_id);
        self.counters_before.entry(account).or_insert(run.counters);
        self.runs_before.entry(run.account_id).or_insert_with(|| run.clone());
    }

    /// Stores the final state of the wallets, spend keys, budgets and runs that were changed. They must not change
    /// afterwards.
    pub(crate) fn seal(
        &mut self,
        wallets: &LedgerWallets,
        keys: &BTreeMap<SpendKeyId, SpendKey>,
        budgets: &BTreeMap<BudgetId, Budget>,
        runs: &BTreeMap<RunAccountId, Run>,
    ) {
        let changed = self.wallets_before.keys().filter_map(|id| wallets.get_key_value(id));
        self.wallets_after = changed.map(|(id, wallet)| (*id, wallet.clone())).collect();
        let changed = self.counters_before.keys().filter_map(|account| {
            let after = match account {
                CountedAccount::SpendKey(id) => {
                    keys.get(id).map(|key| (key.merchant_id, key.counters))
                }
                CountedAccount::Budget(id) => {
                    budgets.get(id).map(|budget| (budget.merchant_id, budget.counters))
                }
                CountedAccount::Run(id) => runs.get(id).map(|run| (run.merchant_id, run.counters)),
            };
            Some((*account, after?))
        });
        self.counters_after = changed.collect();
        let changed = self.runs_before.keys().filter_map(|id| runs.get_key_value(id));
        self.runs_after = changed.map(|(id, run)| (*id, run.clone())).collect();
    }

    /// Adds a call that a node has admitted, with its holds.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when a hold would leave the range of an amount.
    pub(crate) fn open_call(
        &mut self,
        call: Arc<PendingRecord>,
        node_id: NodeId,
    ) -> Result<(), StoreError> {
        self.sum_holds(&call, WalletHolds::add, Amount::checked_add)?;
        self.opened.push((call, node_id));
        Ok(())
    }

    /// Adds an open call that is settled.
    pub(crate) fn close_call(&mut self, id: RequestId) {
        self.closed.push(id);
    }

    /// Adds the end of the job that a settled call created, and its event.
    pub(crate) fn end_job(&mut self, call: &PendingRecord, end: JobEnd) {
        self.ended_jobs.push(end);
        self.add_event(call.merchant_id, &end.event(call.request_id));
    }

    /// Adds an object that a settled call made.
    pub(crate) fn own_object(&mut self, call: &PendingRecord, object: &ProviderObject) {
        self.provider_objects.push(ProviderObjectRow::new(call, object, self.now));
    }

    /// Adds the record of a settled call.
    pub(crate) fn record(&mut self, settled: SettledCall) {
        self.records.push(settled);
    }

    /// Adds the correction of a record.
    pub(crate) fn correct(&mut self, before: SettledCall, after: SettledCall) {
        self.corrections.push(Correction { before, after });
    }

    /// Adds the movement of a tier counter.
    pub(crate) fn move_counter(&mut self, key: CounterKey, before: i64, after: i64) {
        let change = self.counters.entry(key).or_insert(CounterChange { before, after });
        change.after = after;
    }

    /// Adds a subscription that is changed or new.
    pub(crate) fn save_subscription(&mut self, subscription: &Subscription) {
        self.subscriptions.insert(subscription.subscription_id, subscription.clone());
    }

    /// Adds the end of a call: its holds are released, `taken` is taken from its wallets, and its spend key,
    /// budgets and run have spent `spent` more.
    ///
    /// # Errors
    /// As [`WriteSet::open_call`].
    pub(crate) fn end_call(
        &mut self,
        call: &PendingRecord,
        taken: Amount,
        spent: Amount,
    ) -> Result<(), StoreError> {
        self.sum_holds(call, WalletHolds::remove, Amount::checked_sub)?;
        let id = call.request_id;
        let sum = self.taken.entry(id).or_default();
        *sum = sum.checked_add(taken).map_err(|Overflow| out_of_range("call", id))?;
        for account in CountedAccount::of_call(call) {
            let change = self.accounts.entry(account).or_default();
            let sum = change.spent.checked_add(spent);
            change.spent = sum.map_err(|Overflow| out_of_range("account", account))?;
        }
        Ok(())
    }

    /// Adds the end of a call that is taken back: its holds are released, and it counts no longer.
    ///
    /// # Errors
    /// As [`WriteSet::open_call`].
    pub(crate) fn take_back_call(&mut self, call: &PendingRecord) -> Result<(), StoreError> {
        self.end_call(call, Amount::ZERO, Amount::ZERO)?;
        for account in CountedAccount::of_call(call) {
            let change = self.accounts.entry(account).or_default();
            change.taken_back = change.taken_back.saturating_add(1);
        }
        Ok(())
    }

    /// Returns the number of a new record on a wallet.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when there is no greater number.
    pub(crate) fn number_record(&mut self, locked: &mut LedgerWallet) -> Result<i64, StoreError> {
        self.track_wallet(locked);
        let id = locked.wallet.wallet_id;
        let number = locked.last_record.checked_add(1).ok_or_else(|| out_of_range("wallet", id))?;
        locked.last_record = number;
        Ok(number)
    }

    fn sum_holds(
        &mut self,
        call: &PendingRecord,
        on_wallet: fn(&mut WalletHolds, Amount, Option<CreditHold>) -> Result<(), Overflow>,
        on_account: fn(Amount, Amount) -> Result<Amount, Overflow>,
    ) -> Result<(), StoreError> {
        let merchants = (call.merchant_wallet_id, call.merchant_hold, None);
        let of_call = call.wallet_id.map(|id| (id, call.wallet_hold, call.credit_hold));
        for (id, balance, credit) in of_call.into_iter().chain([merchants]) {
            let holds = self.holds.entry(id).or_default();
            on_wallet(holds, balance, credit).map_err(|Overflow| out_of_range("wallet", id))?;
        }
        for account in CountedAccount::of_call(call) {
            let change = self.accounts.entry(account).or_default();
            change.held = on_account(change.held, call.spend_hold)
                .map_err(|Overflow| out_of_range("account", account))?;
        }
        Ok(())
    }

    /// Moves `amount` on a balance. Returns `None` when the balance would leave the range of an amount.
    pub(crate) fn move_balance(
        &mut self,
        locked: &mut LedgerWallet,
        amount: Amount,
        reason: MovementReason<'_>,
    ) -> Result<Option<TransactionRow>, StoreError> {
        let before = locked.wallet.balance;
        let Ok(after) = before.checked_add(amount) else { return Ok(None) };
        self.track_wallet(locked);
        locked.wallet.balance = after;
        if amount < Amount::ZERO {
            for news in locked.wallet.events_since(before) {
                self.add_event(locked.wallet.merchant_id, &news);
            }
        }
        self.add_line(locked, LedgerAccount::Balance, amount, after, reason, self.now)?;
        Ok(self.lines.last().map(TransactionRow::from))
    }

    /// Releases the hold of a call on a wallet's credits and draws its cost on them. Each account gets ledger lines of
    /// its own. Returns the rest, which the balance pays.
    pub(crate) fn draw_on_credit(
        &mut self,
        locked: &mut LedgerWallet,
        hold: CreditHold,
        cost: Amount,
        kind: TransactionKind,
        request_id: RequestId,
    ) -> Result<Amount, StoreError> {
        self.track_wallet(locked);
        let id = locked.wallet.wallet_id;
        let out_of_range = |Overflow| out_of_range("wallet", id);
        let before = locked.wallet.credits;
        let CreditSettlement { cycle, bundle, balance, cycle_expired, bundle_expired } =
            locked.wallet.credits.settle(hold, cost).map_err(out_of_range)?;
        for (account, mut left, drawn, expired) in [
            (LedgerAccount::CycleCredit, before.cycle.remaining, cycle, cycle_expired),
            (LedgerAccount::BundleCredit, before.bundle.remaining, bundle, bundle_expired),
        ] {
            for (kind, out) in [(kind, drawn), (TransactionKind::CreditExpiry, expired)] {
                if out.is_zero() {
                    continue;
                }
                left = left.checked_sub(out).map_err(out_of_range)?;
                let reason = MovementReason {
                    kind,
                    request_id: Some(request_id),
                    description: None,
                    idempotency_key: None,
                };
                self.add_line(locked, account, -out, left, reason, self.now)?;
            }
        }
        Ok(balance)
    }

    /// Adds the transitions of a subscription on the wallet of its credit. [`WriteSet::track_wallet`] must have been called for the
    /// wallet.
    pub(crate) fn add_transitions(
        &mut self,
        locked: &mut LedgerWallet,
        steps: impl IntoIterator<Item = SubscriptionTransition>,
    ) -> Result<(), StoreError> {
        for step in steps {
            for movement in step.movements {
                let reason = MovementReason {
                    kind: movement.kind,
                    request_id: None,
                    description: None,
                    idempotency_key: movement.idempotency_key,
                };
                let (amount, left) = (movement.amount, movement.balance_after);
                self.add_line(locked, movement.account, amount, left, reason, step.at)?;
            }
            let event = EventRow::new(locked.wallet.merchant_id, &step.payload, step.at, self.now);
            let wallet_id = locked.wallet.wallet_id;
            let charge = step.payload.charge().filter(|charge| charge.amount_due.is_positive());
            self.plan_charges.extend(charge.map(|due| PlanChargeRow::new(wallet_id, &event, due)));
            self.events.push(event);
        }
        Ok(())
    }

    /// Adds an event.
    pub(crate) fn add_event(&mut self, merchant_id: MerchantId, news: &EventPayload) {
        self.events.push(EventRow::new(merchant_id, news, self.now, self.now));
    }

    /// Adds the ledger line of a movement that takes effect at `at`, which may be before the booking. The id has the
    /// time of the booking, so ids ascend.
    fn add_line(
        &mut self,
        locked: &mut LedgerWallet,
        account: LedgerAccount,
        amount: Amount,
        balance_after: Amount,
        reason: MovementReason<'_>,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let wallet_id = locked.wallet.wallet_id;
        let number = locked.last_number.checked_add(1);
        locked.last_number = number.ok_or_else(|| out_of_range("wallet", wallet_id))?;
        self.lines.push(LedgerLine {
            transaction_id: TransactionId::generate(self.now),
            merchant_id: locked.wallet.merchant_id,
            wallet_id,
            account,
            number: locked.last_number,
            kind: reason.kind,
            amount,
            balance_after,
            request_id: reason.request_id,
            description: reason.description.map(str::to_owned),
            idempotency_key: reason.idempotency_key,
            created_at: at,
        });
        Ok(())
    }
}

/// The error of an amount that would leave the range of amounts.
pub(crate) fn out_of_range(noun: &str, id: impl ToString) -> StoreError {
    StoreError::Corrupt {
        what: "sum (it would leave the range of an amount)",
        value: format!("{noun} {}", id.to_string()),
    }
}
