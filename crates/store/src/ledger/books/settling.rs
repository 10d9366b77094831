//! The end of a call in the books: what it cost is taken from whoever pays, once.

use std::collections::hash_map::Entry;

use tollgate_domain::settlement::{self, Ending, Report, Settled};
use tollgate_domain::{
    MerchantId, News, PendingRecord, RequestRecord, RequestStatus, TransactionKind, WalletId,
};
use tollgate_pricing::{Amount, Overflow};

use super::{Books, Entered, Settlement, Stands};
use crate::error::StoreError;
use crate::ledger::accounts::Held;
use crate::ledger::parties::Versions;
use crate::ledger::{Context, SettleOutcome};
use crate::missing_prices;
use crate::usage::Sums;
use crate::write_set::out_of_range;

impl Books {
    /// Ends a call once.
    pub(super) fn settle(
        &mut self,
        settlement: &Settlement,
        versions: &Versions,
        context: &Context,
    ) -> Result<SettleOutcome, StoreError> {
        let Entry::Occupied(entry) = self.requests.entry(settlement.request_id) else {
            return Ok(SettleOutcome::NotFound);
        };
        // The sweeper ends only what is pending; whoever knows better may correct the sweeper.
        let corrects = entry.get().row.swept && settlement.report.is_some();
        if !entry.get().row.is_pending() && !corrects {
            return Ok(SettleOutcome::AlreadySettled);
        }
        let Entered { mut row, pending, stands } = entry.remove();
        let request_id = settlement.request_id;
        let lost;
        let report = match settlement.report.as_deref() {
            Some(report) => report,
            None => {
                lost = Report::unknown(&pending, Ending::Lost, self.now);
                &lost
            }
        };
        let version = row.meter_id.as_ref().zip(row.meter_version);
        let version =
            version.and_then(|(id, version)| Some((id, versions.get(&(id.clone(), version))?)));
        let key = version.map(|(meter_id, version)| row.counter_key(meter_id, version.tier_period));
        let used = key.as_ref().and_then(|key| self.counters.get(key)).copied().unwrap_or(0);
        let others = used
            .checked_sub(row.counted_units)
            .ok_or_else(|| out_of_range("tier counter of call", request_id))?;
        let before = others.max(0).unsigned_abs();
        let model = version.map(|(_, version)| &version.model);
        let settled = settlement::settle(&pending, report, model, before, self.service_charge_rate);
        let Settled { mut record, counter_moves, overflowed } = settled;
        record.settled_at = Some(self.now);
        record.swept = settlement.report.is_none();
        if overflowed {
            log::error!(
                "{request_id}: what it costs is beyond all amounts; it is booked at nothing"
            );
        }

        let counted = i64::try_from(counter_moves).unwrap_or(i64::MAX);
        if let Some(key) = key.filter(|_| counted != row.counted_units) {
            let moved = others
                .checked_add(counted)
                .ok_or_else(|| out_of_range("tier counter of call", request_id))?;
            self.counters.insert(key.clone(), moved);
            self.changed_counters.insert(key);
        }
        let (wallet_cost, merchant_cost) = row.costs();
        let kind = if corrects { TransactionKind::Correction } else { TransactionKind::Usage };
        let booking = Booking { pending: &pending, kind };
        let quote = &record.quote;
        let costs_more = |total: Amount, before: Amount| {
            total.checked_sub(before).map_err(|Overflow| out_of_range("call", request_id))
        };
        let due = costs_more(quote.total_wallet_cost, wallet_cost)?;
        let of_wallet = self.take_from_wallet(&booking, due)?;
        let due = costs_more(quote.total_merchant_cost, merchant_cost)?;
        let of_merchant = self.take_from_merchant(&booking, due)?;
        let sum = |one: Amount, other: Amount| {
            one.checked_add(other).map_err(|Overflow| out_of_range("call", request_id))
        };
        let spent = costs_more(quote.total_request_cost, sum(wallet_cost, merchant_cost)?)?;
        self.spend(&pending, quote.total_request_cost, spent)?;
        self.accounts.ended(&pending, sum(of_wallet, of_merchant)?, spent)?;
        let booked = (sum(wallet_cost, of_wallet)?, sum(merchant_cost, of_merchant)?);

        if let Some(missing) = &report.missing
            && !context.told.is_told(pending.merchant_id, missing, self.now)
        {
            missing_prices::add(&mut self.missing, pending.merchant_id, missing);
        }
        if corrects {
            // It may have been added up under another model, and as a failure.
            let before = row.to_record(model)?;
            self.rollups.add(&context.series, &row, &before, Sums::default() - Sums::of(&before));
        }
        self.rollups.add(&context.series, &row, &record, Sums::of(&record));
        row.finish(&record, booked, counted);
        let stands = match stands {
            Stands::Written => {
                self.unwritten.push(settlement.request_id);
                Stands::Changed
            }
            stands => stands,
        };
        self.tell_of_call(pending.merchant_id, &record);
        let pending = pending.without_holds();
        self.requests.insert(settlement.request_id, Entered { row, pending, stands });
        Ok(match overflowed {
            true => SettleOutcome::LetGo(Box::new(record)),
            false => SettleOutcome::Settled(Box::new(record)),
        })
    }

    /// Writes down that a call has ended, for a merchant with a webhook that asks for it.
    fn tell_of_call(&mut self, merchant_id: MerchantId, record: &RequestRecord) {
        if !self.told_of_calls.as_ref().is_some_and(|told| told.contains(&merchant_id)) {
            return;
        }
        let request_id = record.request_id;
        let news = match record.status {
            RequestStatus::Error => News::RequestFailed { request_id },
            RequestStatus::Pending | RequestStatus::Completed => {
                News::RequestCompleted { request_id }
            }
        };
        self.accounts.tell(merchant_id, &news);
        if record.suspicious {
            self.accounts.tell(merchant_id, &News::RequestSuspicious { request_id });
        }
    }

    /// Takes what is due of the wallet of a call, as far as that has room for it, and releases what the call
    /// held there. Answers how much it took.
    fn take_from_wallet(
        &mut self,
        booking: &Booking<'_>,
        due: Amount,
    ) -> Result<Amount, StoreError> {
        let PendingRecord { wallet_hold, credit_hold, .. } = *booking.pending;
        let Some(wallet_id) = booking.pending.wallet_id else { return Ok(Amount::ZERO) };
        let held = Held { on_balance: wallet_hold, on_credit: credit_hold };
        self.take_from(wallet_id, held, due, booking, "wallet")
    }

    /// The same of the merchant's own wallet.
    fn take_from_merchant(
        &mut self,
        booking: &Booking<'_>,
        due: Amount,
    ) -> Result<Amount, StoreError> {
        let PendingRecord { merchant_wallet_id, merchant_hold, .. } = *booking.pending;
        let held = Held { on_balance: merchant_hold, on_credit: None };
        self.take_from(merchant_wallet_id, held, due, booking, "merchant")
    }

    fn take_from(
        &mut self,
        wallet_id: WalletId,
        held: Held,
        due: Amount,
        &Booking { pending, kind }: &Booking<'_>,
        part: &str,
    ) -> Result<Amount, StoreError> {
        let request_id = pending.request_id;
        // What a balance has no room for is not booked; the record keeps the whole cost.
        let taken = self.accounts.room_for(wallet_id, due);
        if taken != due {
            log::error!(
                "{request_id}: {wallet_id} has room for {taken} of the {due} USD of its cost"
            );
        }
        self.accounts.debit(wallet_id, held, taken, kind, request_id, part)?;
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

/// The call whose end is booked, and as what.
struct Booking<'a> {
    pending: &'a PendingRecord,
    kind: TransactionKind,
}
