//! Settlement: the end of a call, whose cost is taken from the wallets that pay, once.

use std::sync::Arc;

use tollgate_domain::admission;
use tollgate_domain::settlement::{self, CallReport, Ending, SettlementResult};
use tollgate_domain::{
    Budget, PendingRecord, RequestId, RequestRecord, Run, SpendKey, TransactionKind, WalletId,
};
use tollgate_pricing::{Amount, Overflow};

use super::{CallHold, GroupDecision};
use crate::error::StoreError;
use crate::ledger::command::{SettleOutcome, SettledRecord, Settlement};
use crate::ledger::state::{Accounts, CallState};
use crate::rows::counter_key;
use crate::settled_call::SettledCall;
use crate::write_set::{MovementReason, out_of_range};

/// The end of a call.
struct CallEnd<'a> {
    report: &'a CallReport,
    /// Whether the sweeper ended it.
    swept: bool,
    /// The sweeper's settlement of the call, which is corrected.
    before: Option<&'a SettledCall>,
}

impl GroupDecision<'_> {
    /// Settles a call once.
    pub(super) fn settle(&mut self, settlement: &Settlement) -> Result<SettleOutcome, StoreError> {
        let request_id = settlement.request_id;
        let Some(known) = self.state.calls.remove(&request_id) else {
            return Ok(SettleOutcome::NotFound);
        };
        let has_begun = |call: &PendingRecord| !call.ahead || settlement.was_sent();
        let settled = match known {
            CallState::Open(call) if !has_begun(&call) => {
                self.changes.close_call(request_id);
                self.take_back(&call)?;
                return Ok(SettleOutcome::TakenBack);
            }
            CallState::Unadmitted(call) if !has_begun(&call) => {
                return Ok(SettleOutcome::TakenBack);
            }
            CallState::Open(call) => {
                self.changes.close_call(request_id);
                self.book_first(&call, settlement)?
            }
            CallState::Unadmitted(call) => {
                self.count_call(&call)?;
                self.book_first(&call, settlement)?
            }
            CallState::Settled(before) => {
                // The sweeper ends open calls only. A report corrects the sweeper.
                let Some(report) = settlement.report.as_deref().filter(|_| before.record.swept)
                else {
                    self.remember_settled(before);
                    return Ok(SettleOutcome::AlreadySettled);
                };
                let end = CallEnd { report, swept: false, before: Some(&before) };
                // Its holds are released. A call of the same group still has them.
                let call = self.without_forgotten_run(&before.call);
                let call = Arc::new(PendingRecord::clone(&call).without_holds());
                let settled = self.book(&call, end)?;
                self.changes.correct(before, settled.0.clone());
                settled
            }
        };
        let (settled, outcome) = settled;
        self.remember_settled(settled);
        Ok(outcome)
    }

    /// Takes back a call that was admitted ahead and did not begin.
    fn take_back(&mut self, call: &PendingRecord) -> Result<(), StoreError> {
        if let Some(wallet_id) = call.wallet_id {
            self.renew(wallet_id)?;
            let held = CallHold { on_balance: call.wallet_hold, on_credit: call.credit_hold };
            self.charge(wallet_id, held, Amount::ZERO, call.request_id, TransactionKind::Usage)?;
        }
        let held = CallHold { on_balance: call.merchant_hold, on_credit: None };
        let (id, kind) = (call.merchant_wallet_id, TransactionKind::Usage);
        self.charge(id, held, Amount::ZERO, call.request_id, kind)?;
        let (admitted_at, hold) = (call.created_at, call.spend_hold);
        self.change_counters(call, |counters, calendars| {
            counters.take_back(admitted_at, hold, calendars)
        })?;
        self.changes.take_back_call(call)
    }

    /// A call that is corrected. A run that was forgotten since it was swept counts no correction.
    fn without_forgotten_run(&self, call: &Arc<PendingRecord>) -> Arc<PendingRecord> {
        let run = call.run().and_then(|run| self.state.accounts.runs.get(&run.account_id));
        match run.is_some_and(|run| !run.counts(call.created_at)) {
            true => Arc::new(PendingRecord { run_id: None, ..PendingRecord::clone(call) }),
            false => Arc::clone(call),
        }
    }

    fn book_first(
        &mut self,
        call: &Arc<PendingRecord>,
        settlement: &Settlement,
    ) -> Result<(SettledCall, SettleOutcome), StoreError> {
        let lost;
        let report = match settlement.report.as_deref() {
            Some(report) => report,
            None => {
                lost = CallReport::unknown(call, Ending::Lost, self.now);
                &lost
            }
        };
        let end = CallEnd { report, swept: settlement.report.is_none(), before: None };
        let (settled, outcome) = self.book(call, end)?;
        self.changes.record(settled.clone());
        Ok((settled, outcome))
    }

    fn remember_settled(&mut self, settled: SettledCall) {
        let id = settled.call.request_id;
        self.state.calls.insert(id, CallState::Settled(settled));
        self.settled.push(id);
    }

    /// Counts a call on its spend key, its budgets and its run, for a call without an admission.
    fn count_call(&mut self, call: &PendingRecord) -> Result<(), StoreError> {
        if let Some(id) = call.spend_key_id {
            let SpendKey { counters, rules, .. } = self.change_spend_key(id)?;
            let at = counters.admitted_at(call.created_at);
            let counted = counters.admit(at, Amount::ZERO, rules.calendars());
            counted.map_err(|Overflow| out_of_range("spend key", id))?;
        }
        for id in &call.budgets.ids {
            let Budget { counters, rules, .. } = self.change_budget(*id)?;
            let at = counters.admitted_at(call.created_at);
            let counted = counters.admit(at, Amount::ZERO, rules.calendars());
            counted.map_err(|Overflow| out_of_range("budget", id))?;
        }
        if let Some(Run { account_id, .. }) = call.run() {
            let counted = self.change_run(account_id)?.admit(call.created_at);
            counted.map_err(|Overflow| out_of_range("run", account_id))?;
        }
        Ok(())
    }

    /// Books the end of a call: its cost, or the difference when it was booked before.
    fn book(
        &mut self,
        call: &Arc<PendingRecord>,
        CallEnd { report, swept, before }: CallEnd<'_>,
    ) -> Result<(SettledCall, SettleOutcome), StoreError> {
        let request_id = call.request_id;
        if let Some(wallet_id) = call.wallet_id {
            self.renew(wallet_id)?;
        }
        let versions = &self.rules.configs.versions;
        let version = call.meter.and_then(|meter| Some((meter, versions.get(&meter)?)));
        let counter =
            version.map(|(meter, version)| counter_key(call, meter.meter_id, version.tier_period));
        let used = counter.as_ref().and_then(|key| self.state.counters.get(key)).copied();
        let used = used.unwrap_or_default();
        let counted_before = before.map_or(0, |before| before.counted_units);
        let out_of_counter = || out_of_range("tier counter of call", request_id);
        let others = used.checked_sub(counted_before).ok_or_else(out_of_counter)?;
        let SettlementResult { mut record, counter_delta: counter_moves, overflowed } =
            settlement::settle(
                call,
                report,
                version.map(|(_, version)| &version.model),
                others.max(0).unsigned_abs(),
                self.rules.service_charge_rate,
            );
        record.settled_at = Some(self.now);
        record.swept = swept;
        if overflowed {
            log::error!(
                "{request_id}: what it costs is beyond all amounts; it is booked at nothing"
            );
        }
        // A full counter stays full: a call is settled whatever its units are.
        let room = i64::MAX.checked_sub(others).ok_or_else(out_of_counter)?;
        let counted_units = i64::try_from(counter_moves).unwrap_or(i64::MAX).min(room);
        let counted_units = if counter.is_some() { counted_units } else { 0 };
        if let Some(key) = counter.filter(|_| counted_units != counted_before) {
            let moved = others.checked_add(counted_units).ok_or_else(out_of_counter)?;
            self.state.counters.insert(key.clone(), moved);
            self.changes.move_counter(key, used, moved);
        }
        if !report.extended {
            warn_of_excess(call, record.quote.total_request_cost);
        }
        let (wallet_paid, merchant_paid) = self.pay(call, &record, before)?;
        record.sequence = match before {
            // A call without a wallet may be paid by the merchant's wallet, so that wallet is known.
            None => {
                let id = call.wallet_id.unwrap_or(call.merchant_wallet_id);
                let wallet = self.state.accounts.wallet_mut(id)?;
                u64::try_from(self.changes.number_record(wallet)?).ok()
            }
            Some(before) => before.record.sequence,
        };
        if let Some(end) = report.job {
            self.changes.end_job(call, end);
        }
        for object in &report.objects {
            self.changes.own_object(call, object);
        }
        let record = Arc::new(record);
        let settled =
            SettledRecord { record: Arc::clone(&record), remaining: self.remaining(call) };
        let outcome = match overflowed {
            true => SettleOutcome::SettledFree(settled),
            false => SettleOutcome::Settled(settled),
        };
        let settled = SettledCall {
            call: Arc::clone(call),
            record,
            wallet_paid,
            merchant_paid,
            counted_units,
            missing_price: report.missing.clone(),
        };
        Ok((settled, outcome))
    }

    /// The amount that the limits of a call leave for the next one.
    fn remaining(&self, call: &PendingRecord) -> Option<Amount> {
        let Accounts { spend_keys, budgets, runs, wallets, .. } = &self.state.accounts;
        let run = call.run().and_then(|run| runs.get(&run.account_id));
        let budgets = call.budgets.ids.iter().filter_map(|id| budgets.get(id));
        let key = call.spend_key_id.and_then(|id| spend_keys.get(&id));
        // A call without a wallet is paid by the merchant's own.
        let wallet = wallets.get(&call.wallet_id.unwrap_or(call.merchant_wallet_id));
        let wallet = wallet.map(|wallet| &wallet.wallet);
        admission::remaining(key, budgets, run, wallet, call.credit_hold.is_some(), self.now)
    }

    /// Takes the cost of a call from its wallets and counts it on its limits, less the amounts booked before.
    /// Releases the holds. Returns the sums now booked on the call's wallet and on the merchant's own.
    fn pay(
        &mut self,
        call: &PendingRecord,
        record: &RequestRecord,
        before: Option<&SettledCall>,
    ) -> Result<(Amount, Amount), StoreError> {
        let out_of_range = |Overflow| out_of_range("call", call.request_id);
        let difference =
            |total: Amount, before: Amount| total.checked_sub(before).map_err(out_of_range);
        let sum = |one: Amount, other: Amount| one.checked_add(other).map_err(out_of_range);
        let (wallet_paid, merchant_paid) =
            before.map(|before| (before.wallet_paid, before.merchant_paid)).unwrap_or_default();
        let kind = match before {
            None => TransactionKind::Usage,
            Some(_) => TransactionKind::Correction,
        };
        let quote = &record.quote;
        let due = difference(quote.total_wallet_cost, wallet_paid)?;
        let of_wallet = match call.wallet_id {
            None => Amount::ZERO,
            Some(wallet_id) => {
                let held = CallHold { on_balance: call.wallet_hold, on_credit: call.credit_hold };
                self.charge(wallet_id, held, due, call.request_id, kind)?
            }
        };
        let due = difference(quote.total_merchant_cost, merchant_paid)?;
        let held = CallHold { on_balance: call.merchant_hold, on_credit: None };
        let of_merchant = self.charge(call.merchant_wallet_id, held, due, call.request_id, kind)?;
        let spent = difference(quote.total_request_cost, sum(wallet_paid, merchant_paid)?)?;
        self.count_spend(call, spent)?;
        self.changes.end_call(call, sum(of_wallet, of_merchant)?, spent)?;
        Ok((sum(wallet_paid, of_wallet)?, sum(merchant_paid, of_merchant)?))
    }

    /// Releases the hold of a call on a wallet and takes the amount due: from credit first, then from the balance, each
    /// as a ledger line of its own. An amount that would take the balance out of range is not taken; the record keeps
    /// the whole cost. Returns the amount taken.
    fn charge(
        &mut self,
        wallet_id: WalletId,
        held: CallHold,
        due: Amount,
        request_id: RequestId,
        kind: TransactionKind,
    ) -> Result<Amount, StoreError> {
        if held.is_nothing() && due.is_zero() {
            return Ok(Amount::ZERO);
        }
        let out_of_range = |Overflow| out_of_range("wallet", wallet_id);
        let wallet = self.state.accounts.wallet_mut(wallet_id)?;
        let taken = chargeable_part(wallet.wallet.balance, due);
        if taken != due {
            log::error!(
                "{request_id}: {wallet_id} has room for {taken} of the {due} USD of its cost"
            );
        }
        self.changes.track_wallet(wallet);
        let still_held = wallet.wallet.held.checked_sub(held.on_balance);
        wallet.wallet.held = still_held.map_err(out_of_range)?;
        let of_balance = match held.on_credit {
            Some(hold) => self.changes.draw_on_credit(wallet, hold, taken, kind, request_id)?,
            None => taken,
        };
        if !of_balance.is_zero() {
            let reason = MovementReason {
                kind,
                request_id: Some(request_id),
                description: None,
                // No key is needed: the record of the call is written once.
                idempotency_key: None,
            };
            let booked = self.changes.move_balance(wallet, -of_balance, reason)?;
            booked.ok_or_else(|| out_of_range(Overflow))?;
        }
        Ok(taken)
    }

    /// Counts the part of the cost of a call that was not counted before on its spend key, its budgets and its run. Adds the
    /// events of the limits that they reach.
    fn count_spend(&mut self, pending: &PendingRecord, more: Amount) -> Result<(), StoreError> {
        let (admitted_at, hold) = (pending.created_at, pending.spend_hold);
        let mut news = Vec::new();
        if let Some(id) = pending.spend_key_id {
            let settled = self.change_spend_key(id)?.settle(admitted_at, hold, more);
            news.extend(settled.map_err(|Overflow| out_of_range("spend key", id))?);
        }
        for id in &pending.budgets.ids {
            let settled = self.change_budget(*id)?.settle(admitted_at, hold, more);
            news.extend(settled.map_err(|Overflow| out_of_range("budget", id))?);
        }
        if let Some(Run { account_id, .. }) = pending.run() {
            let settled = self.change_run(account_id)?.settle(admitted_at, hold, more);
            settled.map_err(|Overflow| out_of_range("run", account_id))?;
        }
        news.iter().for_each(|news| self.changes.add_event(pending.merchant_id, news));
        Ok(())
    }
}

fn warn_of_excess(call: &PendingRecord, cost: Amount) {
    let (request_id, hold) = (call.request_id, call.spend_hold);
    if cost > hold && hold.is_positive() {
        log::warn!("{request_id}: it cost {cost} USD and was held to cost at most {hold}");
    }
}

/// The part of `due` for which a balance has room. It is less than `due` only for a call that cost far more than it
/// held.
pub(super) fn chargeable_part(balance: Amount, due: Amount) -> Amount {
    let edge = if due.is_positive() { Amount::MIN } else { Amount::MAX };
    match balance.checked_sub(due) {
        Ok(_) => due,
        // `due` would take the balance past this edge: only the distance to the edge is taken.
        Err(Overflow) => balance.checked_sub(edge).unwrap_or_default(),
    }
}
