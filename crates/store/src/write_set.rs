//! What one transaction does to money. Wallets and spend keys change in memory, while they are locked. Each
//! movement leaves a ledger line. Before anything is written, the laws of bookkeeping are [checked](WriteSet::check).

use std::collections::{BTreeMap, BTreeSet};

use diesel::RunQueryDsl;

use tollgate_domain::{
    CreditHold, Drawn, LedgerAccount, MerchantId, News, PendingRecord, PerCycle, RequestId,
    SpendCounters, SpendKey, SpendKeyId, Step, SubscriptionId, Timestamp, TransactionId,
    TransactionKind, Wallet, WalletId,
};
use tollgate_pricing::{Amount, Overflow};

use crate::codes::Code;
use crate::conn::Conn;
use crate::dialect::{self, Lock};
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{EventRow, TransactionKeyRow, TransactionRow, WalletRow};
use crate::schema::transaction_keys;

/// A wallet as the ledger changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LedgerWallet {
    pub(crate) wallet: Wallet,
    /// The active subscription that fills its credits.
    pub(crate) subscription_id: Option<SubscriptionId>,
    /// The number of its last ledger line.
    pub(crate) last_number: i64,
    /// The number of its last record.
    pub(crate) last_record: i64,
}

/// Wallets under lock, by id.
pub(crate) type LedgerWallets = BTreeMap<WalletId, LedgerWallet>;

impl TryFrom<&WalletRow> for LedgerWallet {
    type Error = StoreError;

    fn try_from(row: &WalletRow) -> Result<Self, StoreError> {
        Ok(Self {
            wallet: Wallet::try_from(row)?,
            subscription_id: row.subscription_id.map(Id::get),
            last_number: row.transactions,
            last_record: row.records,
        })
    }
}

impl From<&LedgerWallet> for WalletRow {
    fn from(locked: &LedgerWallet) -> Self {
        let LedgerWallet { wallet, subscription_id, last_number, last_record } = locked;
        let Wallet { credits, .. } = wallet;
        Self {
            wallet_id: Id(wallet.wallet_id),
            merchant_id: Id(wallet.merchant_id),
            connection_id: wallet.connection_id.map(Id),
            balance: wallet.balance.units(),
            held: wallet.held.units(),
            overdraft_limit: wallet.overdraft_limit.map(Amount::units),
            low_balance_threshold: wallet.low_balance_threshold.map(Amount::units),
            subscription_id: subscription_id.map(Id),
            cycle_credit: credits.cycle.remaining.units(),
            cycle_held: credits.cycle.held.units(),
            cycle_expired: credits.cycle.expired_cycle,
            bundle_credit: credits.bundle.remaining.units(),
            bundle_held: credits.bundle.held.units(),
            bundle_expired: credits.bundle.expired_cycle,
            cycles: credits.cycles,
            transactions: *last_number,
            records: *last_record,
            created_at: wallet.created_at.unix_micros(),
        }
    }
}

/// Locks wallets, in the order of their ids; one that is not there is not in the answer.
pub(crate) fn lock_wallets(
    conn: &mut Conn,
    ids: impl IntoIterator<Item = WalletId>,
) -> Result<LedgerWallets, StoreError> {
    let ids: BTreeSet<_> = ids.into_iter().map(Id).collect();
    let ids = Vec::from_iter(ids);
    let rows = dialect::wallets(conn, &ids, Lock::Rows)?;
    let wallets = rows.iter().map(|row| {
        let wallet = LedgerWallet::try_from(row)?;
        Ok((wallet.wallet.wallet_id, wallet))
    });
    wallets.collect()
}

/// Why something moved.
pub(crate) struct Reason<'a> {
    pub(crate) kind: TransactionKind,
    pub(crate) request_id: Option<RequestId>,
    pub(crate) description: Option<&'a str>,
    /// No wallet books two lines with one key; absent where another row makes it happen once.
    pub(crate) idempotency_key: Option<String>,
}

/// A movement of money or credit.
#[derive(Clone, Debug)]
struct Line {
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

impl From<&Line> for TransactionRow {
    fn from(line: &Line) -> Self {
        Self {
            transaction_id: Id(line.transaction_id),
            merchant_id: Id(line.merchant_id),
            wallet_id: Id(line.wallet_id),
            account: Code(line.account),
            number: line.number,
            kind: Code(line.kind),
            amount: line.amount.units(),
            balance_after: line.balance_after.units(),
            request_id: line.request_id.map(Id),
            description: line.description.clone(),
            created_at: line.created_at.unix_micros(),
        }
    }
}

/// What calls hold on a wallet, or hold more than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holds {
    balance: Amount,
    cycle: Amount,
    bundle: Amount,
}

impl Holds {
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

/// What calls have done to a spend key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyChange {
    held: Amount,
    spent: Amount,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct WriteSet {
    now: Timestamp,
    /// Each wallet that was changed, as it was before.
    wallets_before: LedgerWallets,
    /// The counters of each spend key that was changed, as they were before.
    keys_before: BTreeMap<SpendKeyId, SpendCounters>,
    lines: Vec<Line>,
    events: Vec<EventRow>,
    /// What calls that were opened hold, less what calls that have ended held.
    holds: BTreeMap<WalletId, Holds>,
    keys: BTreeMap<SpendKeyId, KeyChange>,
    /// What calls that have ended take of wallets, by call.
    taken: BTreeMap<RequestId, Amount>,
    /// How many records were written on each wallet.
    records: BTreeMap<WalletId, i64>,
}

impl WriteSet {
    /// Nothing yet, of a transaction at this instant.
    pub(crate) const fn new(now: Timestamp) -> Self {
        Self {
            now,
            wallets_before: BTreeMap::new(),
            keys_before: BTreeMap::new(),
            lines: Vec::new(),
            events: Vec::new(),
            holds: BTreeMap::new(),
            keys: BTreeMap::new(),
            taken: BTreeMap::new(),
            records: BTreeMap::new(),
        }
    }

    /// Call it before a wallet is changed otherwise than by this write set.
    pub(crate) fn change(&mut self, wallet: &LedgerWallet) {
        self.wallets_before.entry(wallet.wallet.wallet_id).or_insert_with(|| wallet.clone());
    }

    /// Call it before the counters of a spend key are changed.
    pub(crate) fn change_key(&mut self, key: &SpendKey) {
        self.keys_before.entry(key.spend_key_id).or_insert(key.counters);
    }

    /// The wallets that were changed.
    pub(crate) fn wallets(&self) -> impl Iterator<Item = WalletId> + '_ {
        self.wallets_before.keys().copied()
    }

    /// The spend keys whose counters were changed.
    pub(crate) fn spend_keys(&self) -> impl Iterator<Item = SpendKeyId> + '_ {
        self.keys_before.keys().copied()
    }

    /// A call was opened: its wallets and its spend key hold what it says.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when a hold would leave the range of an amount.
    pub(crate) fn opened(&mut self, call: &PendingRecord) -> Result<(), StoreError> {
        self.sum_holds(call, Holds::add, Amount::checked_add)
    }

    /// A call has ended: its wallets and its spend key hold nothing for it any more, `taken` was taken of the wallets,
    /// and its key has spent so much more.
    ///
    /// # Errors
    /// As [`WriteSet::opened`].
    pub(crate) fn ended(
        &mut self,
        call: &PendingRecord,
        taken: Amount,
        spent: Amount,
    ) -> Result<(), StoreError> {
        self.sum_holds(call, Holds::remove, Amount::checked_sub)?;
        let id = call.request_id;
        let sum = self.taken.entry(id).or_default();
        *sum = sum.checked_add(taken).map_err(|Overflow| out_of_range("call", id))?;
        if let Some(id) = call.spend_key_id {
            let key = self.keys.entry(id).or_default();
            key.spent = key.spent.checked_add(spent).map_err(|Overflow| out_of_range("key", id))?;
        }
        Ok(())
    }

    /// The number of a new record on a wallet.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when there is no greater number.
    pub(crate) fn number_record(&mut self, locked: &mut LedgerWallet) -> Result<i64, StoreError> {
        self.change(locked);
        let id = locked.wallet.wallet_id;
        let number = locked.last_record.checked_add(1).ok_or_else(|| out_of_range("wallet", id))?;
        locked.last_record = number;
        *self.records.entry(id).or_default() += 1;
        Ok(number)
    }

    fn sum_holds(
        &mut self,
        call: &PendingRecord,
        on_wallet: fn(&mut Holds, Amount, Option<CreditHold>) -> Result<(), Overflow>,
        on_key: fn(Amount, Amount) -> Result<Amount, Overflow>,
    ) -> Result<(), StoreError> {
        let merchants = (call.merchant_wallet_id, call.merchant_hold, None);
        let of_call = call.wallet_id.map(|id| (id, call.wallet_hold, call.credit_hold));
        for (id, balance, credit) in of_call.into_iter().chain([merchants]) {
            let holds = self.holds.entry(id).or_default();
            on_wallet(holds, balance, credit).map_err(|Overflow| out_of_range("wallet", id))?;
        }
        if let Some(id) = call.spend_key_id {
            let key = self.keys.entry(id).or_default();
            key.held = on_key(key.held, call.spend_hold)
                .map_err(|Overflow| out_of_range("spend key", id))?;
        }
        Ok(())
    }

    /// Moves `amount` on a balance; `None` when that would leave the range of an amount.
    pub(crate) fn move_balance(
        &mut self,
        locked: &mut LedgerWallet,
        amount: Amount,
        reason: Reason<'_>,
    ) -> Result<Option<TransactionRow>, StoreError> {
        let before = locked.wallet.balance;
        let Ok(after) = before.checked_add(amount) else { return Ok(None) };
        self.change(locked);
        locked.wallet.balance = after;
        if amount < Amount::ZERO {
            for news in locked.wallet.news_since(before) {
                self.tell(locked.wallet.merchant_id, &news);
            }
        }
        self.add_line(locked, LedgerAccount::Balance, amount, after, reason, self.now)?;
        Ok(self.lines.last().map(TransactionRow::from))
    }

    /// Ends what a call has reserved of a wallet's credits and draws its cost on them, each account
    /// as a line of its own; what is left is for the balance.
    pub(crate) fn draw_on_credit(
        &mut self,
        locked: &mut LedgerWallet,
        hold: CreditHold,
        cost: Amount,
        kind: TransactionKind,
        request_id: RequestId,
    ) -> Result<Amount, StoreError> {
        self.change(locked);
        let id = locked.wallet.wallet_id;
        let out_of_range = |Overflow| out_of_range("wallet", id);
        let before = locked.wallet.credits;
        let Drawn { cycle, bundle, balance, cycle_expired, bundle_expired } =
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
                let reason = Reason {
                    kind,
                    request_id: Some(request_id),
                    description: None,
                    idempotency_key: None,
                };
                let amount = out.checked_neg().map_err(out_of_range)?;
                self.add_line(locked, account, amount, left, reason, self.now)?;
            }
        }
        Ok(balance)
    }

    /// What a subscription went through on the wallet that its credit lies on, which has
    /// [changed](WriteSet::change) already.
    pub(crate) fn add_steps(
        &mut self,
        locked: &mut LedgerWallet,
        steps: impl IntoIterator<Item = Step>,
    ) -> Result<(), StoreError> {
        for step in steps {
            for movement in step.movements {
                let reason = Reason {
                    kind: movement.kind,
                    request_id: None,
                    description: None,
                    idempotency_key: movement.idempotency_key,
                };
                let (amount, left) = (movement.amount, movement.balance_after);
                self.add_line(locked, movement.account, amount, left, reason, step.at)?;
            }
            let event = EventRow::new(locked.wallet.merchant_id, &step.news, step.at, self.now);
            self.events.push(event);
        }
        Ok(())
    }

    /// An event.
    pub(crate) fn tell(&mut self, merchant_id: MerchantId, news: &News) {
        self.events.push(EventRow::new(merchant_id, news, self.now, self.now));
    }

    /// The line of a movement that a wallet has made and that takes effect `at` an instant, which
    /// may be before it is booked. Ids are of the booking, so that they grow.
    fn add_line(
        &mut self,
        locked: &mut LedgerWallet,
        account: LedgerAccount,
        amount: Amount,
        balance_after: Amount,
        reason: Reason<'_>,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let wallet_id = locked.wallet.wallet_id;
        let number = locked.last_number.checked_add(1);
        locked.last_number = number.ok_or_else(|| out_of_range("wallet", wallet_id))?;
        self.lines.push(Line {
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

    /// The laws of bookkeeping, of what was changed and how it is now.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] says which law is broken, and for whom. Then nothing may be written.
    pub(crate) fn check<'a>(
        &self,
        wallet: impl Fn(WalletId) -> Option<&'a LedgerWallet>,
        spend_key: impl Fn(SpendKeyId) -> Option<&'a SpendKey>,
    ) -> Result<(), StoreError> {
        let mut moved: BTreeMap<WalletId, Moved> = BTreeMap::new();
        let mut taken: BTreeMap<RequestId, Amount> = BTreeMap::new();
        for line in &self.lines {
            let wallet = moved.entry(line.wallet_id).or_insert_with(|| {
                self.wallets_before.get(&line.wallet_id).map(Moved::from).unwrap_or_default()
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
            let after = wallet(*id).ok_or_else(|| broken(Law::LinesAreMovements, id))?;
            let expected = moved.get(id).copied().unwrap_or_else(|| Moved::from(before));
            if expected != Moved::from(after) {
                return Err(broken(Law::LinesAreMovements, id));
            }
            let records = self.records.get(id).copied().unwrap_or_default();
            if before.last_record.checked_add(records) != Some(after.last_record) {
                return Err(broken(Law::RecordsAreNumbered, id));
            }
            let Ok(holds) =
                Holds::of(&before.wallet).plus(self.holds.get(id).copied().unwrap_or_default())
            else {
                return Err(broken(Law::HoldsAreOfOpenCalls, id));
            };
            if holds != Holds::of(&after.wallet) {
                return Err(broken(Law::HoldsAreOfOpenCalls, id));
            }
            if [holds.balance, holds.cycle, holds.bundle].iter().any(|held| *held < Amount::ZERO) {
                return Err(broken(Law::NoHoldIsNegative, id));
            }
        }
        if let Some(id) = moved.keys().find(|id| !self.wallets_before.contains_key(id)) {
            return Err(broken(Law::LinesAreMovements, id));
        }
        if let Some((id, _)) = self.holds.iter().find(|(id, holds)| {
            **holds != Holds::default() && !self.wallets_before.contains_key(id)
        }) {
            return Err(broken(Law::HoldsAreOfOpenCalls, id));
        }
        for (id, sum) in &self.taken {
            if taken.get(id).copied().unwrap_or_default() != *sum {
                return Err(broken(Law::CallsPayTheirCost, id));
            }
        }
        self.check_keys(spend_key)
    }

    fn check_keys<'a>(
        &self,
        spend_key: impl Fn(SpendKeyId) -> Option<&'a SpendKey>,
    ) -> Result<(), StoreError> {
        for (id, change) in &self.keys {
            let (Some(before), Some(key)) = (self.keys_before.get(id), spend_key(*id)) else {
                return Err(broken(Law::KeysCountTheirCalls, id));
            };
            let after = &key.counters;
            let is_sum = |before: Amount, more: Amount, after: Amount| {
                // A sum that is full stays so: see `SpendCounters`.
                after == Amount::MAX || before.checked_add(more) == Ok(after)
            };
            if !is_sum(before.held.total, change.held, after.held.total)
                || !is_sum(before.spent.total, change.spent, after.spent.total)
                || after.requests.total < before.requests.total
            {
                return Err(broken(Law::KeysCountTheirCalls, id));
            }
            let PerCycle { day, week, month, total } = after.held;
            if [day, week, month, total].iter().any(|held| *held < Amount::ZERO) {
                return Err(broken(Law::NoHoldIsNegative, id));
            }
        }
        Ok(())
    }
}

impl WriteSet {
    /// Checks and writes what was changed of wallets, with its lines and events: for operations that open and end
    /// no calls.
    ///
    /// # Errors
    /// Those of the check and of the store.
    pub(crate) fn commit(
        &self,
        conn: &mut Conn,
        wallets: &LedgerWallets,
    ) -> Result<(), StoreError> {
        self.check(|id| wallets.get(&id), |_| None)?;
        let rows: Vec<_> =
            self.wallets().filter_map(|id| wallets.get(&id)).map(WalletRow::from).collect();
        if !rows.is_empty() {
            dialect::save_wallets(conn, &rows)?;
        }
        let lines = self.lines();
        if !lines.is_empty() {
            dialect::insert_transactions(conn, &lines)?;
        }
        self.write_rest(conn)
    }

    /// The ledger lines, as rows.
    pub(crate) fn lines(&self) -> Vec<TransactionRow> {
        self.lines.iter().map(TransactionRow::from).collect()
    }

    /// Writes what few transactions have: the keys of lines, and events.
    pub(crate) fn write_rest(&self, conn: &mut Conn) -> Result<(), StoreError> {
        let keys = self.lines.iter().filter_map(|line| {
            Some(TransactionKeyRow {
                wallet_id: Id(line.wallet_id),
                idempotency_key: line.idempotency_key.clone()?,
                merchant_id: Id(line.merchant_id),
                number: line.number,
            })
        });
        for key in keys {
            diesel::insert_into(transaction_keys::table).values(key).execute(conn)?;
        }
        if !self.events.is_empty() {
            dialect::insert_events(conn, &self.events)?;
        }
        Ok(())
    }
}

/// The accounts of a wallet, and the number of its last line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    balance: Amount,
    cycle: Amount,
    bundle: Amount,
    last_number: i64,
}

impl From<&LedgerWallet> for Moved {
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

impl Moved {
    /// Applies a line, which must be the next one and leave what it says.
    fn add(&mut self, line: &Line) -> Result<(), StoreError> {
        let account = match line.account {
            LedgerAccount::Balance => &mut self.balance,
            LedgerAccount::CycleCredit => &mut self.cycle,
            LedgerAccount::BundleCredit => &mut self.bundle,
        };
        let is_next = self.last_number.checked_add(1) == Some(line.number);
        if !is_next || account.checked_add(line.amount) != Ok(line.balance_after) {
            return Err(broken(Law::LinesAreMovements, line.wallet_id));
        }
        *account = line.balance_after;
        self.last_number = line.number;
        Ok(())
    }
}

/// What holds of every transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Law {
    /// The accounts of a wallet change by its ledger lines, which are numbered without gaps.
    LinesAreMovements,
    /// The records of a wallet are numbered without gaps.
    RecordsAreNumbered,
    /// What a wallet holds changes by the holds of calls that are opened or have ended.
    HoldsAreOfOpenCalls,
    /// No hold is below zero.
    NoHoldIsNegative,
    /// The ledger lines of a call that ends are what it takes.
    CallsPayTheirCost,
    /// The counters of a spend key change by the calls of that key, and count no call less.
    KeysCountTheirCalls,
}

impl Law {
    const fn text(self) -> &'static str {
        match self {
            Self::LinesAreMovements => "ledger (its lines are not the movements of a wallet)",
            Self::RecordsAreNumbered => "record (its number is not the next one of its wallet)",
            Self::HoldsAreOfOpenCalls => "hold (it is not that of the open calls of a wallet)",
            Self::NoHoldIsNegative => "hold (it would be below zero)",
            Self::CallsPayTheirCost => "ledger (its lines are not what a call takes)",
            Self::KeysCountTheirCalls => "counter (it is not that of the calls of a spend key)",
        }
    }
}

fn broken(law: Law, whose: impl ToString) -> StoreError {
    StoreError::Corrupt { what: law.text(), value: whose.to_string() }
}

/// An amount would leave the range of amounts.
pub(crate) fn out_of_range(noun: &str, id: impl ToString) -> StoreError {
    StoreError::Corrupt {
        what: "sum (it would leave the range of an amount)",
        value: format!("{noun} {}", id.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_domain::{Credits, SpendRules};

    use super::*;

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

    fn reason(request_id: Option<RequestId>) -> Reason<'static> {
        let kind = TransactionKind::Usage;
        Reason { kind, request_id, description: None, idempotency_key: None }
    }

    /// Which law a change of one wallet and one key breaks.
    fn breaks(
        change: impl FnOnce(&mut WriteSet, &mut LedgerWallet, &mut SpendKey),
    ) -> Option<&'static str> {
        let (mut wallet, mut key) = (wallet("10"), spend_key());
        let mut changes = WriteSet::new(NOW);
        changes.change(&wallet);
        changes.change_key(&key);
        change(&mut changes, &mut wallet, &mut key);
        let checked = changes.check(
            |id| Some(&wallet).filter(|one| one.wallet.wallet_id == id),
            |id| Some(&key).filter(|one| one.spend_key_id == id),
        );
        match checked {
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
            changes.opened(&call).unwrap();
            changes.ended(&call, usd("1.5"), usd("1.5")).unwrap();
            let taken = reason(Some(call.request_id));
            changes.move_balance(wallet, usd("-1.5"), taken).unwrap().unwrap();
            key.counters.admit(NOW, usd("2")).unwrap();
            key.counters.settle(NOW, usd("2"), usd("1.5")).unwrap();
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
            // One that nobody has locked.
            changes.wallets_before.clear();
            let wallet = &mut wallet("1");
            changes.move_balance(wallet, usd("1"), reason(None)).unwrap().unwrap();
        });
        assert_eq!(other, law);
    }

    #[test]
    fn a_record_that_is_not_numbered_is_found() {
        let law = Some(Law::RecordsAreNumbered.text());
        assert_eq!(breaks(|_, wallet, _| wallet.last_record += 1), law);
        let given_twice = breaks(|changes, wallet, _| {
            assert_eq!(changes.number_record(wallet).unwrap(), 3);
            wallet.last_record -= 1;
            assert_eq!(changes.number_record(wallet).unwrap(), 3);
        });
        assert_eq!(given_twice, law);
    }

    #[test]
    fn a_hold_without_its_call_is_found() {
        let law = Some(Law::HoldsAreOfOpenCalls.text());
        assert_eq!(breaks(|_, wallet, _| wallet.wallet.held = usd("1")), law);
        assert_eq!(breaks(|_, wallet, _| wallet.wallet.credits.bundle.held = usd("1")), law);
        let forgotten = breaks(|changes, wallet, _| {
            changes.opened(&call(wallet, None, "2")).unwrap();
        });
        assert_eq!(forgotten, law, "a call that nothing is held for");
        let below_zero = breaks(|changes, wallet, _| {
            let call = call(wallet, None, "2");
            changes.ended(&call, Amount::ZERO, Amount::ZERO).unwrap();
            wallet.wallet.held = usd("-2");
        });
        assert_eq!(below_zero, Some(Law::NoHoldIsNegative.text()));
    }

    #[test]
    fn a_call_whose_lines_are_not_what_it_takes_is_found() {
        let law = Some(Law::CallsPayTheirCost.text());
        let unpaid = breaks(|changes, wallet, _| {
            let call = call(wallet, None, "0");
            changes.ended(&call, usd("1"), usd("1")).unwrap();
        });
        let paid_twice = breaks(|changes, wallet, _| {
            let call = call(wallet, None, "0");
            changes.ended(&call, usd("1"), usd("1")).unwrap();
            for _ in 0..2 {
                let taken = reason(Some(call.request_id));
                changes.move_balance(wallet, usd("-1"), taken).unwrap().unwrap();
            }
        });
        assert_eq!([unpaid, paid_twice], [law, law]);
    }

    #[test]
    fn a_key_that_does_not_count_its_calls_is_found() {
        let law = Some(Law::KeysCountTheirCalls.text());
        let not_held = breaks(|changes, wallet, key| {
            let mut call = call(wallet, Some(key), "0");
            call.spend_hold = usd("2");
            changes.opened(&call).unwrap();
        });
        let not_spent = breaks(|changes, wallet, key| {
            let call = call(wallet, Some(key), "0");
            changes.ended(&call, Amount::ZERO, usd("1")).unwrap();
        });
        let fewer_calls = breaks(|changes, wallet, key| {
            key.counters.requests.total = 5;
            changes.keys_before.clear();
            changes.change_key(key);
            key.counters.requests.total = 4;
            changes.opened(&call(wallet, Some(key), "0")).unwrap();
        });
        assert_eq!([not_held, not_spent, fewer_calls], [law; 3]);
        let below_zero = breaks(|changes, wallet, key| {
            let mut call = call(wallet, Some(key), "0");
            call.spend_hold = usd("1");
            changes.ended(&call, Amount::ZERO, Amount::ZERO).unwrap();
            key.counters.settle(NOW, usd("1"), Amount::ZERO).unwrap();
        });
        assert_eq!(below_zero, Some(Law::NoHoldIsNegative.text()));
    }
}
