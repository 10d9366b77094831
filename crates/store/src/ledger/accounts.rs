//! The accounts that calls draw on, wallets with their subscriptions and spend keys: read, decided by,
//! changed in memory, written back.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use tollgate_domain::admission::{self, Account, Admission, Call, Facts, Refusal};
use tollgate_domain::{
    CreditHold, MerchantId, News, PendingRecord, RequestId, SpendKey, SpendKeyId, Subscription,
    Timestamp, TransactionKind, Wallet, WalletId,
};
use tollgate_pricing::{Amount, Overflow, Rate};

use super::context::Context;
use super::parties::{Parties, Party};
use super::storms::{Changed, Remembered, Storms};
use crate::conn::Conn;
use crate::dialect::group::{self, Basis, Needed};
use crate::dialect::{self, Lock};
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{SpendCountersRow, SubscriptionRow, TransactionRow, WalletRow};
use crate::subscriptions;
use crate::write_set::{LedgerWallet, LedgerWallets, Reason, WriteSet, out_of_range};

/// Which accounts.
#[derive(Default)]
pub(super) struct AccountIds {
    pub(super) wallets: BTreeSet<WalletId>,
    pub(super) spend_keys: BTreeSet<SpendKeyId>,
}

impl AccountIds {
    /// Those that an admission of such a call needs.
    pub(super) fn add(&mut self, party: &Party<'_>) {
        self.spend_keys.extend(party.spend_key.map(|key| key.spend_key_id));
        self.wallets.extend(party.wallet_id());
        self.wallets.extend(party.guarded_account());
    }
}

/// What a call holds on a wallet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) on_balance: Amount,
    /// None for a call that may not draw on credit.
    pub(super) on_credit: Option<CreditHold>,
}

impl Held {
    fn is_nothing(&self) -> bool {
        let on_credit = self.on_credit.unwrap_or_default();
        self.on_balance.is_zero() && on_credit.cycle.is_zero() && on_credit.bundle.is_zero()
    }
}

/// Accounts as they stand.
pub(super) struct Accounts {
    /// When what is decided now is booked.
    now: Timestamp,
    wallets: LedgerWallets,
    /// The active subscriptions that fill the wallets' credits, by wallet.
    subscriptions: BTreeMap<WalletId, Subscription>,
    spend_keys: BTreeMap<SpendKeyId, SpendKey>,
    renewed: BTreeMap<WalletId, SubscriptionRow>,
    /// What was changed since the group began.
    changes: WriteSet,
    /// As of which epoch of the storms the accounts stand.
    epoch: u64,
}

impl Accounts {
    /// None that is known, yet.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            now,
            wallets: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            spend_keys: BTreeMap::new(),
            renewed: BTreeMap::new(),
            changes: WriteSet::new(now),
            epoch: 0,
        }
    }

    /// A group begins, which is booked at `now`. What was changed before must be [taken](Accounts::take).
    pub(super) fn begin(&mut self, now: Timestamp, context: &Context) {
        self.now = now;
        self.changes = WriteSet::new(now);
        self.epoch = context.storms.epoch();
    }

    /// Looks at accounts as they stand, without keeping anybody from them.
    pub(super) fn look(
        conn: &mut Conn,
        ids: AccountIds,
        parties: &Parties,
        context: &Context,
    ) -> Result<Self, StoreError> {
        let now = context.clock.now();
        let mut accounts = Self::new(now);
        accounts.begin(now, context);
        let needed = accounts.needed(&ids);
        let found = group::read(conn, &needed, &Basis::default(), Lock::No)?;
        accounts.know(conn, &found.spend_counters, &found.wallets, parties)?;
        if !accounts.subscriptions.is_empty() {
            // A renewal may have come between wallets and subscriptions. Wallets that are read after
            // their subscriptions are as new as those, or the subscription is seen to be due.
            let ids: Vec<_> = accounts.wallets.keys().copied().map(Id).collect();
            accounts.know_wallets(&dialect::wallets(conn, &ids, Lock::No)?)?;
        }
        Ok(accounts)
    }

    /// Those of these accounts that are not known.
    pub(super) fn needed(&self, ids: &AccountIds) -> Needed {
        let unknown_keys = ids.spend_keys.iter().filter(|id| !self.spend_keys.contains_key(*id));
        let unknown_wallets = ids.wallets.iter().filter(|id| !self.wallets.contains_key(*id));
        Needed {
            spend_keys: unknown_keys.copied().map(Id).collect(),
            wallets: unknown_wallets.copied().map(Id).collect(),
            ..Needed::default()
        }
    }

    /// Learns how accounts stand.
    pub(super) fn know(
        &mut self,
        conn: &mut Conn,
        counters: &[SpendCountersRow],
        wallets: &[WalletRow],
        parties: &Parties,
    ) -> Result<(), StoreError> {
        for counters in counters {
            let id = counters.spend_key_id.get();
            if let Some(key) = parties.spend_key(id) {
                let key = SpendKey { counters: counters.into(), ..key.clone() };
                self.spend_keys.insert(id, key);
            }
        }
        let ids: Vec<_> = wallets.iter().filter_map(|row| row.subscription_id).collect();
        if !ids.is_empty() {
            let rows = dialect::subscriptions(conn, &ids)?;
            let found = subscriptions::with_configs(conn, rows)?.into_iter();
            self.subscriptions.extend(found.map(|found| (found.wallet_id, found)));
        }
        self.know_wallets(wallets)
    }

    fn know_wallets(&mut self, rows: &[WalletRow]) -> Result<(), StoreError> {
        for row in rows {
            let wallet = LedgerWallet::try_from(row)?;
            self.wallets.insert(wallet.wallet.wallet_id, wallet);
        }
        Ok(())
    }

    /// Brings the subscriptions on these wallets whose cycle has ended up to now.
    pub(super) fn renew(&mut self, wallet_ids: &BTreeSet<WalletId>) -> Result<(), StoreError> {
        if self.subscriptions.is_empty() {
            return Ok(());
        }
        let Self { now, wallets, subscriptions, renewed, changes, .. } = self;
        for wallet_id in wallet_ids {
            let Some(subscription) = subscriptions.get_mut(wallet_id) else { continue };
            let Some(wallet) = wallets.get_mut(wallet_id) else { continue };
            if subscriptions::bring_up_to(*now, subscription, wallet, changes)? {
                renewed.insert(*wallet_id, SubscriptionRow::from(&*subscription));
            }
        }
        Ok(())
    }

    /// The accounts that were changed since the group began.
    pub(super) fn changed(&self) -> Changed {
        Changed {
            spend_keys: self.changes.spend_keys().collect(),
            wallets: self.changes.wallets().collect(),
        }
    }

    /// How many accounts are known.
    pub(super) fn len(&self) -> usize {
        self.wallets.len() + self.spend_keys.len()
    }

    /// The subscription that a call of this party may draw on, if its meter is linked to it.
    fn subscription(&self, party: &Party<'_>) -> Option<&Subscription> {
        let meter = party.meter?;
        let subscription = self.subscriptions.get(&party.wallet_id()?)?;
        subscription.lets_draw(meter.meter_id).then_some(subscription)
    }

    /// Whether the credit that a call may draw on is not what it was when it was read: its cycle has
    /// ended.
    pub(super) fn is_due(&self, party: &Party<'_>) -> bool {
        let subscription = party.wallet_id().and_then(|id| self.subscriptions.get(&id));
        subscription.is_some_and(|subscription| subscription.is_due(self.now))
    }

    /// What the rules say of a call as the accounts stand.
    pub(super) fn decide(
        &self,
        call: &Call,
        party: &Party<'_>,
        service_charge_rate: Rate,
    ) -> Result<Result<Admission, Refusal>, StoreError> {
        let guarded = party.guarded_account().map(|id| self.wallet(id)).transpose()?;
        let account = party.account.map(|(wallet_id, _)| Account { wallet_id, guarded });
        let facts = Facts {
            account,
            spend_key: party.spend_key.map(|key| self.spend_key(key.spend_key_id)).transpose()?,
            connection: party.connection,
            key_connection: party.key_connection,
            wallet: party.wallet_id().map(|id| self.wallet(id)).transpose()?,
            meter: party.meter,
            draws_on_credit: self.subscription(party).is_some(),
        };
        Ok(admission::decide(call, &facts, service_charge_rate))
    }

    /// Books an admission: its holds, and its place in the counters of its spend key.
    pub(super) fn admit(&mut self, admission: &Admission) -> Result<(), StoreError> {
        let pending = &admission.pending;
        self.changes.opened(pending)?;
        if let (Some(id), Some(counters)) = (pending.spend_key_id, admission.counters) {
            self.change_spend_key(id)?.counters = counters;
        }
        if let Some(wallet_id) = pending.wallet_id {
            self.hold(wallet_id, pending.wallet_hold, pending.credit_hold)?;
        }
        self.hold(pending.merchant_wallet_id, pending.merchant_hold, None)
    }

    fn hold(
        &mut self,
        wallet_id: WalletId,
        on_balance: Amount,
        on_credit: Option<CreditHold>,
    ) -> Result<(), StoreError> {
        if (Held { on_balance, on_credit }).is_nothing() {
            return Ok(());
        }
        let Wallet { held, credits, .. } = &mut self.change_wallet(wallet_id)?.wallet;
        let hold = on_credit.unwrap_or_default();
        for (held, more) in [
            (held, on_balance),
            (&mut credits.cycle.held, hold.cycle),
            (&mut credits.bundle.held, hold.bundle),
        ] {
            *held = held.checked_add(more).map_err(|Overflow| out_of_range("wallet", wallet_id))?;
        }
        Ok(())
    }

    /// The part of `due` for which a balance has room: less than all of it only where a call cost far
    /// more than it held.
    pub(super) fn room_for(&self, wallet_id: WalletId, due: Amount) -> Amount {
        let balance = self.wallets.get(&wallet_id).map_or(Amount::ZERO, |one| one.wallet.balance);
        // Sums that leave the range saturate at its edge: the difference is the room.
        balance.saturating_sub(balance.saturating_sub(due))
    }

    /// Releases what a call held on a wallet and takes what is `due`, of credit before the balance,
    /// each as a ledger line of its own.
    pub(super) fn debit(
        &mut self,
        wallet_id: WalletId,
        held: Held,
        due: Amount,
        kind: TransactionKind,
        request_id: RequestId,
    ) -> Result<(), StoreError> {
        if held.is_nothing() && due.is_zero() {
            return Ok(());
        }
        let out_of_range = |Overflow| out_of_range("wallet", wallet_id);
        let Self { wallets, changes, .. } = self;
        let wallet = wallets.get_mut(&wallet_id).ok_or_else(|| missing_wallet(wallet_id))?;
        changes.change(wallet);
        let still_held = wallet.wallet.held.checked_sub(held.on_balance);
        wallet.wallet.held = still_held.map_err(out_of_range)?;
        let due = match held.on_credit {
            Some(hold) => changes.draw_on_credit(wallet, hold, due, kind, request_id)?,
            None => due,
        };
        if due.is_zero() {
            return Ok(());
        }
        let reason = Reason {
            kind,
            request_id: Some(request_id),
            description: None,
            // The record of the call is written once.
            idempotency_key: None,
        };
        let amount = due.checked_neg().map_err(out_of_range)?;
        let booked = changes.move_balance(wallet, amount, reason)?;
        booked.map(drop).ok_or_else(|| out_of_range(Overflow))
    }

    /// The number of a new record on a wallet.
    pub(super) fn number_record(&mut self, id: WalletId) -> Result<i64, StoreError> {
        let wallet = self.wallets.get_mut(&id).ok_or_else(|| missing_wallet(id))?;
        self.changes.number_record(wallet)
    }

    /// A call has ended: see [`WriteSet::ended`].
    pub(super) fn ended(
        &mut self,
        call: &PendingRecord,
        taken: Amount,
        spent: Amount,
    ) -> Result<(), StoreError> {
        self.changes.ended(call, taken, spent)
    }

    /// An event.
    pub(super) fn tell(&mut self, merchant_id: MerchantId, news: &News) {
        self.changes.tell(merchant_id, news);
    }

    /// A wallet, to change it.
    fn change_wallet(&mut self, wallet_id: WalletId) -> Result<&mut LedgerWallet, StoreError> {
        let wallet = self.wallets.get_mut(&wallet_id).ok_or_else(|| missing_wallet(wallet_id))?;
        self.changes.change(wallet);
        Ok(wallet)
    }

    /// A spend key, to change its counters.
    pub(super) fn change_spend_key(&mut self, id: SpendKeyId) -> Result<&mut SpendKey, StoreError> {
        let key = self.spend_keys.get_mut(&id).ok_or_else(|| missing_key(id))?;
        self.changes.change_key(key);
        Ok(key)
    }

    fn wallet(&self, id: WalletId) -> Result<&Wallet, StoreError> {
        Ok(&self.wallets.get(&id).ok_or_else(|| missing_wallet(id))?.wallet)
    }

    fn spend_key(&self, id: SpendKeyId) -> Result<&SpendKey, StoreError> {
        self.spend_keys.get(&id).ok_or_else(|| missing_key(id))
    }

    /// Remembers by which facts a call was refused. Of a key that opens nothing there are none.
    pub(super) fn note_refusal(&self, call: &Call, party: &Party<'_>, storms: &Storms) {
        storms.note(self.epoch, call, || {
            let spend_key = party.spend_key.map(|key| self.spend_key(key.spend_key_id));
            let wallet = party.wallet_id().map(|id| self.wallet(id));
            let guarded_account = party.guarded_account().and_then(|id| self.wallet(id).ok());
            Some(Remembered {
                account: party.account?.0,
                guarded_account: guarded_account.cloned(),
                spend_key: spend_key.transpose().ok()?.cloned(),
                connection: party.connection.cloned(),
                key_connection: party.key_connection.cloned(),
                wallet: wallet.transpose().ok()?.cloned(),
                meter: party.meter.cloned(),
                draws_on_credit: self.subscription(party).is_some(),
                credit_renews_at: self.subscription(party).map(|found| found.cycle_end_at),
            })
        });
    }

    /// Takes what was changed, to write it, if it keeps the laws of bookkeeping.
    ///
    /// # Errors
    /// As [`WriteSet::check`].
    pub(super) fn take(&mut self) -> Result<ChangedAccounts, StoreError> {
        let changes = mem::replace(&mut self.changes, WriteSet::new(self.now));
        changes.check(|id| self.wallets.get(&id), |id| self.spend_keys.get(&id))?;
        let keys = changes.spend_keys().filter_map(|id| self.spend_keys.get(&id));
        let wallets = changes.wallets().filter_map(|id| self.wallets.get(&id));
        Ok(ChangedAccounts {
            spend_counters: keys
                .map(|key| SpendCountersRow::new(key.merchant_id, key.spend_key_id, &key.counters))
                .collect(),
            wallets: wallets.map(WalletRow::from).collect(),
            renewed: mem::take(&mut self.renewed).into_values().collect(),
            lines: changes.lines(),
            changes,
        })
    }
}

/// What has become of accounts, to be written.
pub(super) struct ChangedAccounts {
    pub(super) spend_counters: Vec<SpendCountersRow>,
    pub(super) wallets: Vec<WalletRow>,
    pub(super) renewed: Vec<SubscriptionRow>,
    pub(super) lines: Vec<TransactionRow>,
    pub(super) changes: WriteSet,
}

fn missing_wallet(id: WalletId) -> StoreError {
    StoreError::missing("wallet", id)
}

fn missing_key(id: SpendKeyId) -> StoreError {
    StoreError::missing("spend key", id)
}
