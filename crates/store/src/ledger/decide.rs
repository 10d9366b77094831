//! The decision of a group: which calls are admitted, what the settled calls cost, and the changes that follow.
//!
//! It is a pure function of the state. It reads no database and no clock, and does not depend on the database in use.
//! Settlements are decided before admissions, because they free money that admissions may need.

mod settle;

use std::sync::Arc;

use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::{
    Budget, BudgetId, CreditHold, LimitCalendars, NodeId, PendingRecord, RequestId, Run,
    RunAccountId, SpendCounters, SpendKey, SpendKeyId, Timestamp, Wallet, WalletId,
};
use tollgate_pricing::{Amount, Overflow, Rate};

use super::command::{CommandOutcome, LedgerCommand, SettleOutcome, Settlement};
use super::config::ConfigCache;
use super::state::{Accounts, CallState, LedgerState};
use crate::error::StoreError;
use crate::subscriptions;
use crate::write_set::{LedgerWallet, WriteSet, out_of_range};

/// The inputs of a decision that calls do not change.
#[derive(Clone, Copy)]
pub(super) struct DecisionRules<'a> {
    pub(super) configs: &'a ConfigCache,
    pub(super) service_charge_rate: Rate,
    /// The node that owns the calls that it admits.
    pub(super) node_id: NodeId,
}

/// Decides a group. `state` contains everything that the group needs, and is changed as the write set says. The
/// outcomes are in the order of the group.
///
/// # Errors
/// [`StoreError::Corrupt`] when the state contradicts itself. The state must not be used afterwards.
pub(super) fn decide(
    state: &mut LedgerState,
    group: &[&LedgerCommand],
    now: Timestamp,
    rules: DecisionRules<'_>,
) -> Result<(Vec<CommandOutcome>, WriteSet), StoreError> {
    let changes = WriteSet::new(now);
    let mut decision = GroupDecision { state, changes, now, rules, settled: Vec::new() };
    let mut settled = Vec::new();
    for command in group {
        if let LedgerCommand::Settle(settlement) = command {
            settled.push(decision.settle(settlement)?);
        }
    }
    let mut settled = settled.into_iter();
    let mut outcomes = Vec::with_capacity(group.len());
    for command in group {
        outcomes.push(match command {
            LedgerCommand::Settle(_) => {
                CommandOutcome::Settled(settled.next().unwrap_or(SettleOutcome::NotFound))
            }
            LedgerCommand::Begin(beginning) => {
                CommandOutcome::Begun(decision.begin(&beginning.ahead, beginning.request_id)?)
            }
            LedgerCommand::Admit(call) => CommandOutcome::Admitted(decision.admit(call)?),
        });
    }
    let GroupDecision { state, mut changes, settled, .. } = decision;
    // Another node may correct these calls from now on.
    for id in settled {
        state.calls.remove(&id);
    }
    let Accounts { wallets, spend_keys, budgets, runs, .. } = &state.accounts;
    changes.seal(wallets, spend_keys, budgets, runs);
    Ok((outcomes, changes))
}

/// The refusal of a call by the accounts as they are, if any. A call is not refused here when a renewal of its credit
/// is due.
///
/// # Errors
/// [`StoreError::Corrupt`] when an account that the call names does not exist.
pub(super) fn precheck(
    accounts: &Accounts,
    call: &Call,
    now: Timestamp,
    rules: DecisionRules<'_>,
) -> Result<Option<Refusal>, StoreError> {
    let named = rules.configs.call_config(call);
    if accounts.is_due(&named, now) {
        return Ok(None);
    }
    Ok(accounts.decide(call, &named, rules.service_charge_rate)?.err())
}

/// A group that is being decided.
struct GroupDecision<'a> {
    state: &'a mut LedgerState,
    changes: WriteSet,
    now: Timestamp,
    rules: DecisionRules<'a>,
    /// The settled calls that the state knows. They are forgotten at the end.
    settled: Vec<RequestId>,
}

/// The amounts that a call holds on a wallet.
#[derive(Clone, Copy, Debug)]
struct CallHold {
    on_balance: Amount,
    /// None for a call that may not draw on credit.
    on_credit: Option<CreditHold>,
}

impl CallHold {
    fn is_nothing(&self) -> bool {
        let on_credit = self.on_credit.unwrap_or_default();
        self.on_balance.is_zero() && on_credit.cycle.is_zero() && on_credit.bundle.is_zero()
    }
}

impl GroupDecision<'_> {
    /// Admits a call or refuses it. A refusal changes nothing.
    fn admit(&mut self, call: &Call) -> Result<Result<Box<PendingRecord>, Refusal>, StoreError> {
        let named = self.rules.configs.call_config(call);
        if let Some(wallet_id) = named.wallet_id() {
            self.renew(wallet_id)?;
        }
        let accounts = &self.state.accounts;
        let admission = match accounts.decide(call, &named, self.rules.service_charge_rate)? {
            Ok(admission) => admission,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let pending = Arc::new(admission.pending);
        let request_id = pending.request_id;
        if self.state.calls.contains_key(&request_id) {
            return Err(StoreError::Corrupt {
                what: "id of a call (it is taken)",
                value: request_id.to_string(),
            });
        }
        if let (Some(id), Some(counters)) = (pending.spend_key_id, admission.counters) {
            self.change_spend_key(id)?.counters = counters;
        }
        for (id, counters) in pending.budgets.ids.iter().zip(admission.budget_counters) {
            self.change_budget(*id)?.counters = counters;
        }
        if let Some(run) = admission.run {
            let account_id = run.account_id;
            *self.change_run(account_id)? = run;
        }
        if let Some(wallet_id) = pending.wallet_id {
            let held = CallHold { on_balance: pending.wallet_hold, on_credit: pending.credit_hold };
            self.hold(wallet_id, held)?;
        }
        let held = CallHold { on_balance: pending.merchant_hold, on_credit: None };
        self.hold(pending.merchant_wallet_id, held)?;
        self.changes.open_call(Arc::clone(&pending), self.rules.node_id)?;
        self.state.calls.insert(request_id, CallState::Open(Arc::clone(&pending)));
        Ok(Ok(Box::new(PendingRecord::clone(&pending))))
    }

    /// Begins a call that was admitted ahead: it is a call of now, with the same hold.
    fn begin(
        &mut self,
        ahead: &Settlement,
        request_id: RequestId,
    ) -> Result<Option<Box<PendingRecord>>, StoreError> {
        let call = match self.state.calls.get(&ahead.request_id) {
            Some(CallState::Open(call)) if call.ahead => Arc::clone(call),
            _ => return Ok(None),
        };
        self.state.calls.remove(&ahead.request_id);
        self.changes.close_call(ahead.request_id);
        let mut begun = PendingRecord { request_id, ahead: false, ..PendingRecord::clone(&call) };
        if begun.run().map(|run| run.account_id) != call.run().map(|run| run.account_id) {
            // It counts in the run of the day on which it was admitted.
            begun.request_id = RequestId::generate(call.created_at);
        }
        begun.created_at = self.move_count(&call)?;
        self.changes.take_back_call(&call)?;
        let begun = Arc::new(begun);
        self.changes.open_call(Arc::clone(&begun), self.rules.node_id)?;
        self.state.calls.insert(begun.request_id, CallState::Open(Arc::clone(&begun)));
        Ok(Some(Box::new(PendingRecord::clone(&begun))))
    }

    /// Counts a call and its hold at the present time, and no longer at that of its admission. Returns the time.
    fn move_count(&mut self, call: &PendingRecord) -> Result<Timestamp, StoreError> {
        let (admitted_at, hold) = (call.created_at, call.spend_hold);
        let mut at = self.now;
        self.change_counters(call, |counters, _| {
            at = counters.admitted_at(at);
            Ok(())
        })?;
        self.change_counters(call, |counters, calendars| {
            counters.take_back(admitted_at, hold, calendars)?;
            counters.admit(at, hold, calendars)
        })?;
        Ok(at)
    }

    /// Changes the counters of the spend key, the budgets and the run of a call.
    fn change_counters(
        &mut self,
        call: &PendingRecord,
        mut change: impl FnMut(&mut SpendCounters, LimitCalendars<'_>) -> Result<(), Overflow>,
    ) -> Result<(), StoreError> {
        if let Some(id) = call.spend_key_id {
            let SpendKey { counters, rules, .. } = self.change_spend_key(id)?;
            change(counters, rules.calendars())
                .map_err(|Overflow| out_of_range("spend key", id))?;
        }
        for id in &call.budgets.ids {
            let Budget { counters, rules, .. } = self.change_budget(*id)?;
            change(counters, rules.calendars()).map_err(|Overflow| out_of_range("budget", id))?;
        }
        if let Some(Run { account_id: id, .. }) = call.run() {
            let counters = &mut self.change_run(id)?.counters;
            change(counters, Run::calendars()).map_err(|Overflow| out_of_range("run", id))?;
        }
        Ok(())
    }

    fn hold(&mut self, wallet_id: WalletId, held: CallHold) -> Result<(), StoreError> {
        if held.is_nothing() {
            return Ok(());
        }
        let Wallet { held: on_balance, credits, .. } = &mut self.change_wallet(wallet_id)?.wallet;
        let on_credit = held.on_credit.unwrap_or_default();
        for (sum, more) in [
            (on_balance, held.on_balance),
            (&mut credits.cycle.held, on_credit.cycle),
            (&mut credits.bundle.held, on_credit.bundle),
        ] {
            *sum = sum.checked_add(more).map_err(|Overflow| out_of_range("wallet", wallet_id))?;
        }
        Ok(())
    }

    /// Renews the subscription of a wallet, if its cycle has ended.
    fn renew(&mut self, wallet_id: WalletId) -> Result<(), StoreError> {
        let Accounts { wallets, subscriptions, .. } = &mut self.state.accounts;
        let of_wallet = subscriptions.get_mut(&wallet_id).zip(wallets.get_mut(&wallet_id));
        if let Some((subscription, wallet)) = of_wallet {
            subscriptions::renew_until(self.now, subscription, wallet, &mut self.changes)?;
        }
        Ok(())
    }

    /// Returns a wallet to be changed.
    fn change_wallet(&mut self, id: WalletId) -> Result<&mut LedgerWallet, StoreError> {
        let wallet = self.state.accounts.wallet_mut(id)?;
        self.changes.track_wallet(wallet);
        Ok(wallet)
    }

    /// Returns a spend key whose counters are to be changed.
    fn change_spend_key(&mut self, id: SpendKeyId) -> Result<&mut SpendKey, StoreError> {
        let key = self.state.accounts.spend_key_mut(id)?;
        self.changes.track_spend_key(key);
        Ok(key)
    }

    /// Returns a run that is to be changed.
    fn change_run(&mut self, id: RunAccountId) -> Result<&mut Run, StoreError> {
        let run = self.state.accounts.run_mut(id)?;
        self.changes.track_run(run);
        Ok(run)
    }

    /// Returns a budget whose counters are to be changed.
    fn change_budget(&mut self, id: BudgetId) -> Result<&mut Budget, StoreError> {
        let budget = self.state.accounts.budget_mut(id)?;
        self.changes.track_budget(budget);
        Ok(budget)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_domain::admission::{CallKey, CostBound};
    use tollgate_domain::settlement::{CallReport, Ending};
    use tollgate_domain::{Credits, ForwardedRequest, MerchantId, PricedUsage, SecretKeyId};
    use tollgate_pricing::{BaseCost, UnitPrices};

    use super::*;
    use crate::ledger::config::{MerchantConfig, OwnWallet};

    const NOW: Timestamp = Timestamp::from_unix_micros(1_795_219_200_000_000);

    fn usd(text: &str) -> Amount {
        text.parse().unwrap()
    }

    /// A merchant whose own wallet may not be overdrawn.
    struct DecisionFixture {
        configs: ConfigCache,
        state: LedgerState,
        merchant_id: MerchantId,
        key_id: SecretKeyId,
        wallet_id: WalletId,
    }

    fn wallet(merchant_id: MerchantId, wallet_id: WalletId, balance: &str) -> LedgerWallet {
        let wallet = Wallet {
            wallet_id,
            merchant_id,
            connection_id: None,
            balance: usd(balance),
            held: Amount::ZERO,
            credits: Credits::default(),
            overdraft_limit: Some(Amount::ZERO),
            low_balance_threshold: None,
            created_at: NOW,
        };
        LedgerWallet { wallet, subscription_id: None, last_number: 0, last_record: 0 }
    }

    impl DecisionFixture {
        fn new(balance: &str) -> Self {
            let (merchant_id, wallet_id) = (MerchantId::generate(NOW), WalletId::generate(NOW));
            let key_id = SecretKeyId::generate(NOW);
            let mut config = MerchantConfig::default();
            config
                .secret_keys
                .insert(key_id, OwnWallet { wallet_id, is_guarded: true, has_moved: false });
            let mut configs = ConfigCache::default();
            configs.merchants.insert(merchant_id, config);
            let mut state = LedgerState::default();
            let wallet = wallet(merchant_id, wallet_id, balance);
            state.accounts.wallets.insert(wallet_id, wallet);
            Self { configs, state, merchant_id, key_id, wallet_id }
        }

        /// An admission that may cost 2 USD.
        fn admit(&self, request_id: RequestId) -> LedgerCommand {
            let pending = crate::outcome::tests::pending();
            LedgerCommand::Admit(Box::new(Call {
                request_id,
                merchant_id: self.merchant_id,
                key: CallKey::Secret(self.key_id),
                connection_id: None,
                meter_slug: None,
                disable_billing: false,
                forwarded: ForwardedRequest { model: Some("m".to_owned()), ..pending.forwarded },
                shape: None,
                names_other_models: false,
                run: None,
                bound: CostBound {
                    input_tokens: 1_000_000,
                    answers: 1,
                    prices: Some(UnitPrices { input: Some(2.into()), ..UnitPrices::default() }),
                    ..CostBound::default()
                },
                report: None,
                ahead: false,
                created_at: NOW,
            }))
        }

        /// Decides a group and checks that its write set meets every law.
        fn decide(&mut self, group: &[LedgerCommand]) -> (Vec<CommandOutcome>, WriteSet) {
            let service_charge_rate = Rate::default();
            let node_id = NodeId::generate(NOW);
            let rules = DecisionRules { configs: &self.configs, service_charge_rate, node_id };
            let group: Vec<_> = group.iter().collect();
            let (outcomes, changes) = decide(&mut self.state, &group, NOW, rules).unwrap();
            changes.check_laws().unwrap();
            (outcomes, changes)
        }
    }

    /// A settlement of a call with the given cost.
    fn settle(request_id: RequestId, cost: &str) -> LedgerCommand {
        let mut report = CallReport::not_sent(NOW);
        report.ending = Ending::Answered;
        report.provider_status = Some(200);
        let base = BaseCost { input: usd(cost), output: Amount::ZERO };
        report.priced = PricedUsage { base, ..PricedUsage::nothing() };
        let report = Some(Arc::new(report));
        LedgerCommand::Settle(Box::new(Settlement { request_id, report, call: None }))
    }

    fn word(outcome: &CommandOutcome) -> &'static str {
        match outcome {
            CommandOutcome::Admitted(Ok(_)) => "admitted",
            CommandOutcome::Admitted(Err(_)) => "refused",
            CommandOutcome::Settled(SettleOutcome::Settled(_)) => "settled",
            CommandOutcome::Settled(SettleOutcome::AlreadySettled) => "already settled",
            CommandOutcome::Settled(SettleOutcome::NotFound) => "not found",
            CommandOutcome::Settled(_) | CommandOutcome::Begun(_) => "another",
        }
    }

    /// A step of a group.
    #[derive(Clone, Copy)]
    enum GroupStep {
        Admit(usize),
        Settle(usize, &'static str),
    }
    use GroupStep::{Admit, Settle};

    #[test]
    fn groups_are_decided_by_the_wallet_and_change_it_as_they_say() {
        type Row<'a> = (&'a str, &'a [&'a [GroupStep]], &'a [&'a [&'a str]], [&'a str; 2]);
        let table: [Row<'_>; 7] = [
            ("5", &[&[Admit(0)]], &[&["admitted"]], ["5", "2"]),
            // A call is admitted while anything is available, and holds the most that it can cost.
            (
                "4",
                &[&[Admit(0), Admit(1), Admit(2)]],
                &[&["admitted", "admitted", "refused"]],
                ["4", "4"],
            ),
            ("0", &[&[Admit(0)]], &[&["refused"]], ["0", "0"]),
            (
                "5",
                &[&[Admit(0)], &[Settle(0, "0.5")]],
                &[&["admitted"], &["settled"]],
                ["4.5", "0"],
            ),
            // Money that a settlement frees is available to an admission of the same group, in any order.
            (
                "2",
                &[&[Admit(0)], &[Admit(1), Settle(0, "0.5")]],
                &[&["admitted"], &["admitted", "settled"]],
                ["1.5", "2"],
            ),
            // A call is settled once.
            (
                "5",
                &[&[Admit(0)], &[Settle(0, "1"), Settle(0, "3")]],
                &[&["admitted"], &["settled", "already settled"]],
                ["4", "0"],
            ),
            ("5", &[&[Settle(0, "1")]], &[&["not found"]], ["5", "0"]),
        ];
        for (number, (balance, groups, expected, after)) in table.into_iter().enumerate() {
            let mut world = DecisionFixture::new(balance);
            let ids = [(); 3].map(|()| RequestId::generate(NOW));
            for (steps, expected) in groups.iter().zip(expected) {
                let group = steps.iter().map(|step| match *step {
                    Admit(call) => world.admit(ids[call]),
                    Settle(call, cost) => settle(ids[call], cost),
                });
                let group: Vec<_> = group.collect();
                let (outcomes, _) = world.decide(&group);
                let words: Vec<_> = outcomes.iter().map(word).collect();
                assert_eq!(words, *expected, "row {number}");
            }
            let wallet = &world.state.accounts.wallets[&world.wallet_id].wallet;
            assert_eq!([wallet.balance, wallet.held], after.map(usd), "row {number}");
        }
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut world = DecisionFixture::new("0");
        let group = [world.admit(RequestId::generate(NOW))];
        let (_, changes) = world.decide(&group);
        assert!(changes.is_empty());
        assert!(world.state.calls.is_empty());
    }

    #[test]
    fn a_balance_without_room_for_a_cost_pays_the_part_that_it_has_room_for() {
        let max = Amount::MAX;
        let least = Amount::MIN;
        let one = Amount::from_units(1);
        for (balance, due, room) in [
            (Amount::ZERO, max, max),
            (least, one, Amount::ZERO),
            (Amount::from_units(5 - i64::MAX), max, Amount::from_units(5)),
            (max, Amount::from_units(-1), Amount::ZERO),
            (Amount::from_units(i64::MAX - 5), Amount::from_units(-9), Amount::from_units(-5)),
        ] {
            assert_eq!(settle::chargeable_part(balance, due), room, "{balance} {due}");
        }
    }

    #[test]
    fn an_id_that_is_taken_is_not_admitted_again() {
        let mut world = DecisionFixture::new("5");
        let id = RequestId::generate(NOW);
        let group = [world.admit(id)];
        world.decide(&group);
        let rules = DecisionRules {
            configs: &world.configs,
            service_charge_rate: Rate::default(),
            node_id: NodeId::generate(NOW),
        };
        let again = decide(&mut world.state, &[&group[0]], NOW, rules);
        assert!(matches!(again, Err(StoreError::Corrupt { .. })));
    }
}
