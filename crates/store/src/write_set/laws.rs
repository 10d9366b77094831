//! The laws of bookkeeping: the conditions that every write set meets.

use std::collections::BTreeMap;

use tollgate_domain::{
    LedgerAccount, MeterId, PerCycle, RequestId, TransactionKind, Wallet, WalletId,
};
use tollgate_pricing::{Amount, Overflow};

use super::{CountersChange, LedgerLine, LedgerWallet, WalletHolds, WriteSet, out_of_range};
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rows::counter_owner;
use crate::settled_call::SettledCall;

impl WriteSet {
    /// Checks the laws of bookkeeping.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] names the broken law and the row that breaks it. Nothing may be
    /// written then.
    pub(crate) fn check_laws(&self) -> Result<(), StoreError> {
        let mut moved: BTreeMap<WalletId, WalletTotals> = BTreeMap::new();
        let mut taken: BTreeMap<RequestId, Amount> = BTreeMap::new();
        for line in &self.lines {
            let wallet = moved.entry(line.wallet_id).or_insert_with(|| {
                self.wallets_before.get(&line.wallet_id).map(WalletTotals::from).unwrap_or_default()
            });
            wallet.add(line)?;
            if let (Some(id), TransactionKind::Usage | TransactionKind::Correction) =
                (line.request_id, line.kind)
            {
                let sum = taken.entry(id).or_default();
                *sum = sum.checked_sub(line.amount).map_err(|Overflow| out_of_range("call", id))?;
            }
        }
        for (id, before) in &self.wallets_before {
            let after =
                self.wallets_after.get(id).ok_or_else(|| law_broken(Law::LinesAreMovements, id))?;
            let expected = moved.get(id).copied().unwrap_or_else(|| WalletTotals::from(before));
            if expected != WalletTotals::from(after) {
                return Err(law_broken(Law::LinesAreMovements, id));
            }
            let Ok(holds) = WalletHolds::of(&before.wallet)
                .plus(self.holds.get(id).copied().unwrap_or_default())
            else {
                return Err(law_broken(Law::HoldsAreOfOpenCalls, id));
            };
            if holds != WalletHolds::of(&after.wallet) {
                return Err(law_broken(Law::HoldsAreOfOpenCalls, id));
            }
            if [holds.balance, holds.cycle, holds.bundle].iter().any(|held| *held < Amount::ZERO) {
                return Err(law_broken(Law::NoHoldIsNegative, id));
            }
        }
        if let Some(id) = moved.keys().find(|id| !self.wallets_before.contains_key(id)) {
            return Err(law_broken(Law::LinesAreMovements, id));
        }
        if let Some((id, _)) = self.holds.iter().find(|(id, holds)| {
            **holds != WalletHolds::default() && !self.wallets_before.contains_key(id)
        }) {
            return Err(law_broken(Law::HoldsAreOfOpenCalls, id));
        }
        for (id, sum) in &self.taken {
            if taken.get(id).copied().unwrap_or_default() != *sum {
                return Err(law_broken(Law::CallsPayTheirCost, id));
            }
        }
        self.check_numbers()?;
        self.check_counters()?;
        self.check_accounts()
    }

    fn check_numbers(&self) -> Result<(), StoreError> {
        let numbers = self.wallets_before.iter().map(|(id, before)| (*id, before.last_record));
        let mut numbers: BTreeMap<WalletId, i64> = numbers.collect();
        for SettledCall { call, record, .. } in &self.records {
            let id = call.wallet_id.unwrap_or(call.merchant_wallet_id);
            let last =
                numbers.get_mut(&id).ok_or_else(|| law_broken(Law::RecordsAreNumbered, id))?;
            let next = last.checked_add(1);
            let sequence = record.sequence.and_then(|number| i64::try_from(number).ok());
            *last = next
                .filter(|_| next == sequence)
                .ok_or_else(|| law_broken(Law::RecordsAreNumbered, id))?;
        }
        let differs = |(id, last): &(&WalletId, &i64)| {
            self.wallets_after.get(id).is_none_or(|after| after.last_record != **last)
        };
        match numbers.iter().find(differs) {
            Some((id, _)) => Err(law_broken(Law::RecordsAreNumbered, id)),
            None => Ok(()),
        }
    }

    fn check_counters(&self) -> Result<(), StoreError> {
        // By owner and meter: the movement of the counters, less the units of the calls.
        let mut left: BTreeMap<(Id<AnyId>, Id<MeterId>), i128> = BTreeMap::new();
        for ((_, owner, meter, _), change) in &self.counters {
            *left.entry((*owner, *meter)).or_default() +=
                i128::from(change.after) - i128::from(change.before);
        }
        let of_records = self.records.iter().map(|after| (after, 0));
        let of_corrections =
            self.corrections.iter().map(|one| (&one.after, one.before.counted_units));
        for (settled, before) in of_records.chain(of_corrections) {
            let units = i128::from(settled.counted_units) - i128::from(before);
            match settled.call.meter {
                Some(meter) => {
                    let counter = (counter_owner(&settled.call), Id(meter.meter_id));
                    *left.entry(counter).or_default() -= units;
                }
                None if units == 0 => {}
                None => return Err(law_broken(Law::TiersCountTheirCalls, settled.call.request_id)),
            }
        }
        match left.iter().find(|(_, left)| **left != 0) {
            Some(((owner, _), _)) => Err(law_broken(Law::TiersCountTheirCalls, owner)),
            None => Ok(()),
        }
    }

    fn check_accounts(&self) -> Result<(), StoreError> {
        let unchanged = self.counters_before.keys().map(|one| (one, CountersChange::default()));
        let mut accounts: BTreeMap<_, _> = unchanged.collect();
        accounts.extend(self.accounts.iter().map(|(account, change)| (account, *change)));
        for (account, change) in accounts {
            let before = self.counters_before.get(account);
            let (Some(before), Some((_, after))) = (before, self.counters_after.get(account))
            else {
                return Err(law_broken(Law::LimitsCountTheirCalls, account));
            };
            let is_sum = |before: Amount, more: Amount, after: Amount| {
                // A full sum stays full: see `SpendCounters`.
                after == Amount::MAX || before.checked_add(more) == Ok(after)
            };
            if !is_sum(before.held.total, change.held, after.held.total)
                || !is_sum(before.spent.total, change.spent, after.spent.total)
                || after.requests.total.saturating_add(change.taken_back) < before.requests.total
            {
                return Err(law_broken(Law::LimitsCountTheirCalls, account));
            }
            let PerCycle { day, week, month, total } = after.held;
            if [day, week, month, total].iter().any(|held| *held < Amount::ZERO) {
                return Err(law_broken(Law::NoHoldIsNegative, account));
            }
        }
        Ok(())
    }
}

/// The accounts of a wallet, and the number of its last line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WalletTotals {
    balance: Amount,
    cycle: Amount,
    bundle: Amount,
    last_number: i64,
}

impl From<&LedgerWallet> for WalletTotals {
    fn from(locked: &LedgerWallet) -> Self {
        let Wallet { balance, credits, .. } = &locked.wallet;
        Self {
            balance: *balance,
            cycle: credits.cycle.remaining,
            bundle: credits.bundle.remaining,
            last_number: locked.last_number,
        }
    }
}

impl WalletTotals {
    /// Applies a line. It must have the next number and the right balance after it.
    fn add(&mut self, line: &LedgerLine) -> Result<(), StoreError> {
        let account = match line.account {
            LedgerAccount::Balance => &mut self.balance,
            LedgerAccount::CycleCredit => &mut self.cycle,
            LedgerAccount::BundleCredit => &mut self.bundle,
        };
        let is_next = self.last_number.checked_add(1) == Some(line.number);
        if !is_next || account.checked_add(line.amount) != Ok(line.balance_after) {
            return Err(law_broken(Law::LinesAreMovements, line.wallet_id));
        }
        *account = line.balance_after;
        self.last_number = line.number;
        Ok(())
    }
}

/// The laws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Law {
    /// The accounts of a wallet change by its ledger lines, which are numbered without gaps.
    LinesAreMovements,
    /// The records of a wallet are numbered without gaps.
    RecordsAreNumbered,
    /// The holds on a wallet change by the holds of calls that are opened or have ended.
    HoldsAreOfOpenCalls,
    /// No hold is below zero.
    NoHoldIsNegative,
    /// The ledger lines of a call that ends sum to the amount that it takes.
    CallsPayTheirCost,
    /// The tier counters change by the units of the settled calls.
    TiersCountTheirCalls,
    /// The counters of a spend key, a budget or a run change by its calls. The number of requests falls by no more than
    /// the calls that are taken back.
    LimitsCountTheirCalls,
}

impl Law {
    const fn text(self) -> &'static str {
        match self {
            Self::LinesAreMovements => "ledger (its lines are not the movements of a wallet)",
            Self::RecordsAreNumbered => "record (its number is not the next one of its wallet)",
            Self::HoldsAreOfOpenCalls => "hold (it is not that of the open calls of a wallet)",
            Self::NoHoldIsNegative => "hold (it would be below zero)",
            Self::CallsPayTheirCost => "ledger (its lines are not what a call takes)",
            Self::TiersCountTheirCalls => {
                "tier counter (it is not the sum of the calls that it counts)"
            }
            Self::LimitsCountTheirCalls => {
                "counter (it is not that of the calls of a spend key, a budget or a run)"
            }
        }
    }
}

fn law_broken(law: Law, whose: impl ToString) -> StoreError {
    StoreError::Corrupt { what: law.text(), value: whose.to_string() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_domain::settlement::{self, CallReport, Ending};
    use tollgate_domain::{
        Credits, MerchantId, MeterVersion, NodeId, PendingRecord, SpendCounters, SpendKey,
        SpendKeyId, SpendRules, Timestamp,
    };
    use tollgate_pricing::Rate;

    use super::*;
    use crate::write_set::MovementReason;

    const NOW: Timestamp = Timestamp::from_unix_micros(1_795_219_200_000_000);

    fn usd(text: &str) -> Amount {
        text.parse().unwrap()
    }

    fn wallet(balance: &str) -> LedgerWallet {
        let wallet = Wallet {
            wallet_id: WalletId::generate(NOW),
            merchant_id: MerchantId::generate(NOW),
            connection_id: None,
            balance: usd(balance),
            held: Amount::ZERO,
            credits: Credits::default(),
            overdraft_limit: None,
            low_balance_threshold: None,
            created_at: NOW,
        };
        LedgerWallet { wallet, subscription_id: None, last_number: 3, last_record: 2 }
    }

    fn spend_key() -> SpendKey {
        SpendKey {
            spend_key_id: SpendKeyId::generate(NOW),
            merchant_id: MerchantId::generate(NOW),
            wallet_id: WalletId::generate(NOW),
            meter_id: None,
            budget_id: None,
            name: "Key".to_owned(),
            key_preview: "sk_…".to_owned(),
            rules: SpendRules::default(),
            counters: SpendCounters::default(),
            created_at: NOW,
        }
    }

    fn call(wallet: &LedgerWallet, key: Option<&SpendKey>, hold: &str) -> PendingRecord {
        PendingRecord {
            request_id: RequestId::generate(NOW),
            merchant_id: wallet.wallet.merchant_id,
            spend_key_id: key.map(|key| key.spend_key_id),
            wallet_id: Some(wallet.wallet.wallet_id),
            spend_hold: usd(hold),
            wallet_hold: usd(hold),
            ..crate::outcome::tests::pending()
        }
    }

    fn settled(call: &PendingRecord, sequence: i64, counted_units: i64) -> SettledCall {
        let report = CallReport::unknown(call, Ending::Lost, NOW);
        let mut record = settlement::settle(call, &report, None, 0, Rate::ZERO).record;
        record.sequence = u64::try_from(sequence).ok();
        SettledCall {
            call: Arc::new(call.clone()),
            record: Arc::new(record),
            wallet_paid: Amount::ZERO,
            merchant_paid: Amount::ZERO,
            counted_units,
            missing_price: None,
        }
    }

    fn reason(request_id: Option<RequestId>) -> MovementReason<'static> {
        let kind = TransactionKind::Usage;
        MovementReason { kind, request_id, description: None, idempotency_key: None }
    }

    /// Returns the law that a change of one wallet and one key breaks.
    fn breaks(
        change: impl FnOnce(&mut WriteSet, &mut LedgerWallet, &mut SpendKey),
    ) -> Option<&'static str> {
        let (mut wallet, mut key) = (wallet("10"), spend_key());
        let mut changes = WriteSet::new(NOW);
        changes.track_wallet(&wallet);
        changes.track_spend_key(&key);
        change(&mut changes, &mut wallet, &mut key);
        changes.seal(
            &BTreeMap::from([(wallet.wallet.wallet_id, wallet)]),
            &BTreeMap::from([(key.spend_key_id, key)]),
            &BTreeMap::new(),
            &BTreeMap::new(),
        );
        match changes.check_laws() {
            Ok(()) => None,
            Err(StoreError::Corrupt { what, .. }) => Some(what),
            Err(cause) => unreachable!("{cause}"),
        }
    }

    #[test]
    fn what_is_booked_as_it_should_be_keeps_every_law() {
        let nothing = breaks(|_, _, _| {});
        let call_and_end = breaks(|changes, wallet, key| {
            let call = call(wallet, Some(key), "2");
            changes.open_call(Arc::new(call.clone()), NodeId::generate(NOW)).unwrap();
            changes.end_call(&call, usd("1.5"), usd("1.5")).unwrap();
            let taken = reason(Some(call.request_id));
            changes.move_balance(wallet, usd("-1.5"), taken).unwrap().unwrap();
            key.counters.admit(NOW, usd("2"), key.rules.calendars()).unwrap();
            key.counters.settle(NOW, usd("2"), usd("1.5"), key.rules.calendars()).unwrap();
        });
        assert_eq!([nothing, call_and_end], [None, None]);
    }

    #[test]
    fn money_that_moves_without_a_line_is_found() {
        let law = Some(Law::LinesAreMovements.text());
        assert_eq!(breaks(|_, wallet, _| wallet.wallet.balance = usd("11")), law);
        assert_eq!(breaks(|_, wallet, _| wallet.wallet.credits.cycle.remaining = usd("1")), law);
        assert_eq!(breaks(|_, wallet, _| wallet.last_number += 1), law);
        let twice = breaks(|changes, wallet, _| {
            changes.move_balance(wallet, usd("1"), reason(None)).unwrap().unwrap();
            wallet.last_number -= 1;
            changes.move_balance(wallet, usd("1"), reason(None)).unwrap().unwrap();
        });
        assert_eq!(twice, law, "a number is there twice");
        let other = breaks(|changes, _, _| {
            // A wallet that is not locked.
            changes.wallets_before.clear();
            let wallet = &mut wallet("1");
            changes.move_balance(wallet, usd("1"), reason(None)).unwrap().unwrap();
        });
        assert_eq!(other, law);
    }

    #[test]
    fn a_record_that_is_not_numbered_is_found() {
        let law = Some(Law::RecordsAreNumbered.text());
        let record = |changes: &mut WriteSet, wallet: &LedgerWallet, sequence| {
            changes.record(settled(&call(wallet, None, "0"), sequence, 0));
        };
        let numbered = breaks(|changes, wallet, _| {
            for number in [3, 4] {
                assert_eq!(changes.number_record(wallet).unwrap(), number);
                record(changes, wallet, number);
            }
        });
        assert_eq!(numbered, None);
        let without_record = breaks(|changes, wallet, _| {
            changes.number_record(wallet).unwrap();
        });
        let given_twice = breaks(|changes, wallet, _| {
            for _ in 0..2 {
                changes.number_record(wallet).unwrap();
                record(changes, wallet, 3);
                wallet.last_record = 2;
            }
        });
        let without_number = breaks(|changes, wallet, _| record(changes, wallet, 3));
        let of_no_wallet = breaks(|changes, _, _| {
            let wallet = wallet("1");
            record(changes, &wallet, 3);
        });
        assert_eq!([without_record, given_twice, without_number, of_no_wallet], [law; 4]);
    }

    #[test]
    fn a_hold_without_its_call_is_found() {
        let law = Some(Law::HoldsAreOfOpenCalls.text());
        assert_eq!(breaks(|_, wallet, _| wallet.wallet.held = usd("1")), law);
        assert_eq!(breaks(|_, wallet, _| wallet.wallet.credits.bundle.held = usd("1")), law);
        let forgotten = breaks(|changes, wallet, _| {
            changes.open_call(Arc::new(call(wallet, None, "2")), NodeId::generate(NOW)).unwrap();
        });
        assert_eq!(forgotten, law, "a call that nothing is held for");
        let below_zero = breaks(|changes, wallet, _| {
            let call = call(wallet, None, "2");
            changes.end_call(&call, Amount::ZERO, Amount::ZERO).unwrap();
            wallet.wallet.held = usd("-2");
        });
        assert_eq!(below_zero, Some(Law::NoHoldIsNegative.text()));
    }

    #[test]
    fn a_tier_counter_that_is_not_the_sum_of_its_calls_is_found() {
        let law = Some(Law::TiersCountTheirCalls.text());
        let moved = breaks(|changes, wallet, _| {
            let owner = Id(wallet.wallet.wallet_id).untyped();
            let merchant_id = Id(wallet.wallet.merchant_id);
            let key = (merchant_id, owner, Id(MeterId::generate(NOW)), "2026-11".to_owned());
            changes.move_counter(key, 5, 7);
        });
        assert_eq!(moved, law);
        let on = |owner: fn(&PendingRecord) -> Id<AnyId>| {
            breaks(move |changes, wallet, _| {
                let meter = MeterVersion { meter_id: MeterId::generate(NOW), version: 1 };
                let call = PendingRecord { meter: Some(meter), ..call(wallet, None, "0") };
                let number = changes.number_record(wallet).unwrap();
                changes.record(settled(&call, number, 2));
                let month = "2026-11".to_owned();
                let key = (Id(call.merchant_id), owner(&call), Id(meter.meter_id), month);
                changes.move_counter(key, 5, 7);
            })
        };
        assert_eq!(on(counter_owner), None);
        let without_meter = breaks(|changes, wallet, _| {
            let number = changes.number_record(wallet).unwrap();
            changes.record(settled(&call(wallet, None, "0"), number, 2));
        });
        assert_eq!(without_meter, law);
        assert_eq!(on(|_| Id(MerchantId::generate(NOW)).untyped()), law, "another one's counter");
    }

    #[test]
    fn a_call_whose_lines_are_not_what_it_takes_is_found() {
        let law = Some(Law::CallsPayTheirCost.text());
        let unpaid = breaks(|changes, wallet, _| {
            let call = call(wallet, None, "0");
            changes.end_call(&call, usd("1"), usd("1")).unwrap();
        });
        let paid_twice = breaks(|changes, wallet, _| {
            let call = call(wallet, None, "0");
            changes.end_call(&call, usd("1"), usd("1")).unwrap();
            for _ in 0..2 {
                let taken = reason(Some(call.request_id));
                changes.move_balance(wallet, usd("-1"), taken).unwrap().unwrap();
            }
        });
        assert_eq!([unpaid, paid_twice], [law, law]);
    }

    #[test]
    fn a_key_that_does_not_count_its_calls_is_found() {
        let law = Some(Law::LimitsCountTheirCalls.text());
        let not_held = breaks(|changes, wallet, key| {
            let mut call = call(wallet, Some(key), "0");
            call.spend_hold = usd("2");
            changes.open_call(Arc::new(call.clone()), NodeId::generate(NOW)).unwrap();
        });
        let not_spent = breaks(|changes, wallet, key| {
            let call = call(wallet, Some(key), "0");
            changes.end_call(&call, Amount::ZERO, usd("1")).unwrap();
        });
        let fewer_calls = breaks(|changes, wallet, key| {
            key.counters.requests.total = 5;
            changes.counters_before.clear();
            changes.track_spend_key(key);
            key.counters.requests.total = 4;
            changes
                .open_call(Arc::new(call(wallet, Some(key), "0")), NodeId::generate(NOW))
                .unwrap();
        });
        let no_call = breaks(|_, _, key| key.counters.spent.total = usd("1"));
        assert_eq!([not_held, not_spent, fewer_calls, no_call], [law; 4]);
        let below_zero = breaks(|changes, wallet, key| {
            let mut call = call(wallet, Some(key), "0");
            call.spend_hold = usd("1");
            changes.end_call(&call, Amount::ZERO, Amount::ZERO).unwrap();
            key.counters.settle(NOW, usd("1"), Amount::ZERO, key.rules.calendars()).unwrap();
        });
        assert_eq!(below_zero, Some(Law::NoHoldIsNegative.text()));
    }
}
