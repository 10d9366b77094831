//! The end of a call in the books: what it cost is taken from whoever pays, once.

use std::sync::Arc;

use tollgate_domain::settlement::{self, Ending, Report, Settled};
use tollgate_domain::{PendingRecord, RequestId, RequestRecord, TransactionKind, WalletId};
use tollgate_pricing::{Amount, Overflow};

use super::{Books, Known};
use crate::error::StoreError;
use crate::ids::Id;
use crate::ledger::accounts::Held;
use crate::ledger::context::Context;
use crate::ledger::job::{SettleOutcome, Settlement};
use crate::ledger::parties::Versions;
use crate::missing_prices;
use crate::rollups::QueuedCall;
use crate::rows::{CorrectionRow, RequestRow, counter_key};
use crate::write_set::out_of_range;

impl Books {
    /// Settles a call once.
    pub(super) fn settle(
        &mut self,
        settlement: &Settlement,
        versions: &Versions,
        context: &Context,
    ) -> Result<SettleOutcome, StoreError> {
        let request_id = settlement.request_id;
        let known = self.calls.remove(&request_id);
        match &known {
            Some(Known::Open(_)) => self.closed.push(Id(request_id)),
            Some(Known::Unasked(call)) => self.count(call)?,
            Some(Known::Ended(_)) | None => {}
        }
        match known {
            None => Ok(SettleOutcome::NotFound),
            Some(Known::Open(call) | Known::Unasked(call)) => {
                let lost;
                let report = match settlement.report.as_deref() {
                    Some(report) => report,
                    None => {
                        lost = Report::unknown(&call, Ending::Lost, self.now);
                        &lost
                    }
                };
                let swept = settlement.report.is_none();
                let end = End { report, swept, before: None };
                let (row, outcome) = self.book_end(&call, end, versions, context)?;
                self.end(request_id, row.clone());
                self.records.push(row);
                self.settled.extend(settlement.report.clone().map(|report| (call, report)));
                Ok(outcome)
            }
            Some(Known::Ended(row)) => {
                // The sweeper ends only open calls; a report corrects the sweeper.
                let Some(report) = settlement.report.as_deref().filter(|_| row.swept) else {
                    self.end(request_id, *row);
                    return Ok(SettleOutcome::AlreadySettled);
                };
                let end = End { report, swept: false, before: Some(&row) };
                let call = Arc::new(row.call()?);
                let (corrected, outcome) = self.book_end(&call, end, versions, context)?;
                self.settled.extend(settlement.report.clone().map(|report| (call, report)));
                self.corrections.push(CorrectionRow::new(corrected.clone(), self.now));
                self.end(request_id, corrected);
                Ok(outcome)
            }
        }
    }

    /// Counts a call on its spend key that no admission has counted.
    fn count(&mut self, call: &PendingRecord) -> Result<(), StoreError> {
        let Some(id) = call.spend_key_id else { return Ok(()) };
        let counters = &mut self.accounts.change_spend_key(id)?.counters;
        let at = counters.admitted_at(call.created_at);
        counters.admit(at, Amount::ZERO).map_err(|Overflow| out_of_range("spend key", id))
    }

    /// Books the end of a call: its cost, and nothing but the difference where it was booked before.
    fn book_end(
        &mut self,
        call: &PendingRecord,
        End { report, swept, before }: End<'_>,
        versions: &Versions,
        context: &Context,
    ) -> Result<(RequestRow, SettleOutcome), StoreError> {
        let request_id = call.request_id;
        let version = call.meter.and_then(|meter| Some((meter, versions.get(&meter)?)));
        let model = version.map(|(_, version)| &version.model);
        let counter =
            version.map(|(meter, version)| counter_key(call, meter.meter_id, version.tier_period));
        let counted_before = before.map_or(0, |row| row.counted_units);
        let used = counter.as_ref().and_then(|key| self.counters.get(key)).copied().unwrap_or(0);
        let others = used
            .checked_sub(counted_before)
            .ok_or_else(|| out_of_range("tier counter of call", request_id))?;
        let settled = settlement::settle(
            call,
            report,
            model,
            others.max(0).unsigned_abs(),
            self.service_charge_rate,
        );
        let Settled { mut record, counter_moves, overflowed } = settled;
        record.settled_at = Some(self.now);
        record.swept = swept;
        if overflowed {
            log::error!(
                "{request_id}: what it costs is beyond all amounts; it is booked at nothing"
            );
        }
        let counted = i64::try_from(counter_moves).unwrap_or(i64::MAX);
        if let Some(key) = counter.filter(|_| counted != counted_before) {
            let moved = others
                .checked_add(counted)
                .ok_or_else(|| out_of_range("tier counter of call", request_id))?;
            self.counters.insert(key.clone(), moved);
            self.changed_counters.insert(key);
        }
        let booked = self.pay(call, &record, before)?;
        let sequence = match before {
            // Without a wallet of its own, the merchant's may have to pay, and is locked.
            None => {
                self.accounts.number_record(call.wallet_id.unwrap_or(call.merchant_wallet_id))?
            }
            Some(row) => row.sequence,
        };
        record.sequence = u64::try_from(sequence).ok();
        if let Some(missing) = &report.missing
            && !context.told.is_told(call.merchant_id, missing, self.now)
        {
            missing_prices::add(&mut self.missing, call.merchant_id, missing);
        }
        match before {
            None => self.queued.push(QueuedCall::settled(call, &record, self.now)),
            Some(row) => {
                let before = row.to_record(model)?;
                self.queued.extend(QueuedCall::corrected(call, &before, &record, self.now));
            }
        }
        let row = RequestRow::new(call, &record, booked, counted);
        let record = Box::new(record);
        let outcome = match overflowed {
            true => SettleOutcome::LetGo(record),
            false => SettleOutcome::Settled(record),
        };
        Ok((row, outcome))
    }

    /// Takes the cost of a call of its wallets and counts it on its spend key, less what was booked before, and
    /// releases the holds. Answers the sum that is booked now on the call's wallet, and on the merchant's own.
    fn pay(
        &mut self,
        call: &PendingRecord,
        record: &RequestRecord,
        before: Option<&RequestRow>,
    ) -> Result<(Amount, Amount), StoreError> {
        let out_of_range = |Overflow| out_of_range("call", call.request_id);
        let difference =
            |total: Amount, before: Amount| total.checked_sub(before).map_err(out_of_range);
        let sum = |one: Amount, other: Amount| one.checked_add(other).map_err(out_of_range);
        let (wallet_cost, merchant_cost) = before.map(RequestRow::costs).unwrap_or_default();
        let kind = match before {
            None => TransactionKind::Usage,
            Some(_) => TransactionKind::Correction,
        };
        let quote = &record.quote;
        let due = difference(quote.total_wallet_cost, wallet_cost)?;
        let of_wallet = match call.wallet_id {
            None => Amount::ZERO,
            Some(wallet_id) => {
                let held = Held { on_balance: call.wallet_hold, on_credit: call.credit_hold };
                self.take_from(wallet_id, held, due, call.request_id, kind)?
            }
        };
        let due = difference(quote.total_merchant_cost, merchant_cost)?;
        let held = Held { on_balance: call.merchant_hold, on_credit: None };
        let of_merchant =
            self.take_from(call.merchant_wallet_id, held, due, call.request_id, kind)?;
        let spent = difference(quote.total_request_cost, sum(wallet_cost, merchant_cost)?)?;
        self.spend(call, quote.total_request_cost, spent)?;
        self.accounts.ended(call, sum(of_wallet, of_merchant)?, spent)?;
        Ok((sum(wallet_cost, of_wallet)?, sum(merchant_cost, of_merchant)?))
    }

    /// Takes what is due of a wallet, as far as that has room for it, and releases what the call held there. Answers
    /// how much it took.
    fn take_from(
        &mut self,
        wallet_id: WalletId,
        held: Held,
        due: Amount,
        request_id: RequestId,
        kind: TransactionKind,
    ) -> Result<Amount, StoreError> {
        // What a balance has no room for is not booked; the record keeps the whole cost.
        let taken = self.accounts.room_for(wallet_id, due);
        if taken != due {
            log::error!(
                "{request_id}: {wallet_id} has room for {taken} of the {due} USD of its cost"
            );
        }
        self.accounts.debit(wallet_id, held, taken, kind, request_id)?;
        Ok(taken)
    }

    /// Counts what a call cost on its spend key, of which `more` was not counted before, and writes down what
    /// is to be told of it.
    fn spend(
        &mut self,
        pending: &PendingRecord,
        cost: Amount,
        more: Amount,
    ) -> Result<(), StoreError> {
        let Some(id) = pending.spend_key_id else { return Ok(()) };
        if cost > pending.spend_hold && pending.spend_hold.is_positive() {
            log::warn!(
                "{}: it cost {cost} USD and was held to cost at most {}",
                pending.request_id,
                pending.spend_hold
            );
        }
        let key = self.accounts.change_spend_key(id)?;
        let news = key.settle(pending.created_at, pending.spend_hold, more);
        let news = news.map_err(|Overflow| out_of_range("spend key", id))?;
        news.iter().for_each(|news| self.accounts.tell(pending.merchant_id, news));
        Ok(())
    }
}

/// How a call has ended.
struct End<'a> {
    report: &'a Report,
    /// Whether the sweeper ended it.
    swept: bool,
    /// Its record by the sweeper, which is corrected.
    before: Option<&'a RequestRow>,
}
