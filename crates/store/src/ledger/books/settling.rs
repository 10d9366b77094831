//! The end of a call in the books: what it cost is taken from whoever pays, once.

use std::borrow::Cow;
use std::collections::hash_map::Entry;

use tollgate_domain::settlement::{self, Ending, Report, Settled};
use tollgate_domain::{
    MerchantId, News, PendingRecord, RequestRecord, RequestStatus, TransactionKind,
};
use tollgate_pricing::Amount;

use super::{Books, Entered, Settlement, Stands};
use crate::error::StoreError;
use crate::ledger::accounts::Held;
use crate::ledger::ahead::Logged;
use crate::ledger::parties::Versions;
use crate::ledger::{Context, SettleOutcome};
use crate::missing_prices;
use crate::usage::Sums;

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
        let request_id = row.request_id.clone();
        if let Some(log) = &mut self.log {
            let report = settlement.report.as_deref().map(Cow::Borrowed);
            Logged::Settled { request_id: settlement.request_id, report }.append_to(log);
        }
        let pending = match pending {
            Some(pending) => pending,
            None => row.to_pending()?,
        };
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
        let before = used.saturating_sub(row.counted_units).max(0).unsigned_abs();
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
            let moved = used.saturating_sub(row.counted_units).saturating_add(counted);
            self.counters.insert(key.clone(), moved);
            self.changed_counters.insert(key);
        }
        self.spend(&pending, record.quote.total_request_cost, row.request_cost())?;
        let kind = if corrects { TransactionKind::Correction } else { TransactionKind::Usage };
        // What a balance has no room for is not booked; the record keeps the whole cost.
        let (mut wallet_due, mut missing) = (0, 0_i64);
        if let Some(wallet_id) = &row.wallet_id {
            let due = record.quote.total_wallet_cost.units().saturating_sub(row.wallet_cost);
            wallet_due = self.accounts.room_for(wallet_id, due);
            missing = due.saturating_sub(wallet_due);
            let held = Held { on_balance: row.wallet_hold, on_credit: row.credit_hold() };
            self.accounts.debit(wallet_id, held, wallet_due, kind, &request_id, "wallet")?;
        }
        let due = record.quote.total_merchant_cost.units().saturating_sub(row.merchant_cost);
        let merchant_due = self.accounts.room_for(&row.merchant_wallet_id, due);
        missing = missing.saturating_add(due.saturating_sub(merchant_due));
        let held = Held { on_balance: row.merchant_hold, on_credit: None };
        self.accounts.debit(
            &row.merchant_wallet_id,
            held,
            merchant_due,
            kind,
            &request_id,
            "merchant",
        )?;
        if missing != 0 {
            let missing = Amount::from_units(missing);
            log::error!("{request_id}: the balances have no room for {missing} USD of its cost");
        }
        let booked = (
            row.wallet_cost.saturating_add(wallet_due),
            row.merchant_cost.saturating_add(merchant_due),
        );

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
        self.requests.insert(settlement.request_id, Entered { row, pending: None, stands });
        self.tell_of_call(pending.merchant_id, &record);
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

    /// Counts what a call cost on its spend key, and writes down what is to be told of it.
    fn spend(
        &mut self,
        pending: &PendingRecord,
        cost: Amount,
        counted_before: i64,
    ) -> Result<(), StoreError> {
        let Some(id) = pending.spend_key_id else { return Ok(()) };
        if cost > pending.spend_hold && counted_before == 0 && pending.spend_hold.is_positive() {
            log::warn!(
                "{}: it cost {cost} USD and was held to cost at most {}",
                pending.request_id,
                pending.spend_hold
            );
        }
        let key = self.accounts.change_spend_key(&id.to_string())?;
        let more = cost.saturating_sub(Amount::from_units(counted_before));
        let news = key.settle(pending.created_at, pending.spend_hold, more);
        news.iter().for_each(|news| self.accounts.tell(pending.merchant_id, news));
        Ok(())
    }
}
