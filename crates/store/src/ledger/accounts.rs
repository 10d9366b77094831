//! The accounts that calls draw on, wallets with their subscriptions and spend keys: read, decided by,
//! changed in memory, written back.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use tollgate_domain::admission::{self, Account, Admission, Call, Facts, Refusal};
use tollgate_domain::{
    CreditHold, MerchantId, News, PendingRecord, SpendKey, Subscription, Timestamp,
    TransactionKind, Wallet,
};
use tollgate_pricing::{Amount, Rate};

use super::Context;
use super::parties::{Parties, Party};
use super::storms::{Changed, Remembered, Storms};
use crate::conn::Conn;
use crate::dialect::group::{self, Basis, Needed};
use crate::dialect::{self, Lock};
use crate::entries::{Entries, Reason};
use crate::error::StoreError;
use crate::rows::{WalletRow, parsed, word};
use crate::spend_keys::SpendCountersRow;
use crate::subscriptions::{self, SubscriptionRow};

/// Which accounts.
#[derive(Default)]
pub(super) struct AccountIds {
    pub(super) wallets: BTreeSet<String>,
    pub(super) spend_keys: BTreeSet<String>,
}

impl AccountIds {
    /// Those that an admission of such a call needs.
    pub(super) fn add(&mut self, party: &Party<'_>) {
        self.spend_keys.extend(party.spend_key.map(|key| key.spend_key_id.clone()));
        self.wallets.extend(party.wallet_id());
        self.wallets.extend(party.guarded_account().map(str::to_owned));
    }
}

/// What a call holds on a wallet.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) on_balance: i64,
    /// None for a call that may not draw on credit.
    pub(super) on_credit: Option<CreditHold>,
}

impl Held {
    const fn is_nothing(&self) -> bool {
        let on_credit = match self.on_credit {
            Some(hold) => hold.cycle.units() | hold.bundle.units(),
            None => 0,
        };
        self.on_balance | on_credit == 0
    }
}

/// Accounts as they stand.
pub(super) struct Accounts {
    /// When what is decided now is booked.
    now: Timestamp,
    wallets: BTreeMap<String, WalletRow>,
    /// The active subscriptions that fill the wallets' credits, by wallet.
    subscriptions: BTreeMap<String, Subscription>,
    spend_keys: BTreeMap<String, SpendKey>,
    /// What was changed since somebody last [asked](Accounts::take_changed).
    changed: Changed,
    /// What is changed and not written.
    unwritten: Changed,
    renewed: BTreeMap<String, SubscriptionRow>,
    /// The movements and events that the changes bring.
    entries: Entries,
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
            changed: Changed::default(),
            unwritten: Changed::default(),
            renewed: BTreeMap::new(),
            entries: Entries::new(now),
            epoch: 0,
        }
    }

    /// From here on, things are booked at `now`.
    pub(super) fn begin(&mut self, now: Timestamp, context: &Context) {
        self.now = now;
        self.entries.begin(now);
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
        accounts.know(conn, found.spend_counters, found.wallets, parties)?;
        if !accounts.subscriptions.is_empty() {
            // A renewal may have come between wallets and subscriptions. Wallets that are read after
            // their subscriptions are as new as those, or the subscription is seen to be due.
            let ids: Vec<_> = accounts.wallets.keys().cloned().collect();
            let again = dialect::wallets(conn, &ids, Lock::No)?;
            accounts.wallets = again.into_iter().map(|row| (row.wallet_id.clone(), row)).collect();
        }
        Ok(accounts)
    }

    /// Those of these accounts that are not known.
    pub(super) fn needed(&self, ids: &AccountIds) -> Needed {
        let unknown_keys = ids.spend_keys.iter().filter(|id| !self.spend_keys.contains_key(*id));
        let unknown_wallets = ids.wallets.iter().filter(|id| !self.wallets.contains_key(*id));
        Needed {
            spend_keys: unknown_keys.cloned().collect(),
            wallets: unknown_wallets.cloned().collect(),
            ..Needed::default()
        }
    }

    /// Learns how accounts stand.
    pub(super) fn know(
        &mut self,
        conn: &mut Conn,
        counters: Vec<SpendCountersRow>,
        wallets: Vec<WalletRow>,
        parties: &Parties,
    ) -> Result<(), StoreError> {
        for counters in counters {
            if let Some(row) = parties.spend_key(&counters.spend_key_id) {
                let key = row.clone().with_counters(&counters)?;
                self.spend_keys.insert(counters.spend_key_id, key);
            }
        }
        let ids: Vec<_> = wallets.iter().filter_map(|row| row.subscription_id.clone()).collect();
        if !ids.is_empty() {
            let rows = dialect::subscriptions(conn, &ids)?;
            let found = subscriptions::with_configs(conn, rows)?.into_iter();
            self.subscriptions.extend(found.map(|found| (found.wallet_id.to_string(), found)));
        }
        self.wallets.extend(wallets.into_iter().map(|row| (row.wallet_id.clone(), row)));
        Ok(())
    }

    /// Brings the subscriptions on these wallets whose cycle has ended up to now.
    pub(super) fn renew(&mut self, wallet_ids: &BTreeSet<String>) -> Result<(), StoreError> {
        if self.subscriptions.is_empty() {
            return Ok(());
        }
        let Self { now, wallets, subscriptions, renewed, entries, changed, .. } = self;
        for wallet_id in wallet_ids {
            let Some(subscription) = subscriptions.get_mut(wallet_id) else { continue };
            let Some(wallet) = wallets.get_mut(wallet_id) else { continue };
            if subscriptions::bring_up_to(*now, subscription, wallet, entries)? {
                renewed.insert(wallet_id.clone(), SubscriptionRow::from(&*subscription));
                changed.wallets.insert(wallet_id.clone());
            }
        }
        Ok(())
    }

    /// What was changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> Changed {
        let changed = mem::take(&mut self.changed);
        self.unwritten.spend_keys.extend(changed.spend_keys.iter().cloned());
        self.unwritten.wallets.extend(changed.wallets.iter().cloned());
        changed
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
        let account = match party.account {
            Some((wallet_id, _)) => Some(Account {
                wallet_id: parsed("merchants.wallet_id", wallet_id)?,
                guarded: guarded.as_ref(),
            }),
            None => None,
        };
        let wallet = party.wallet_id().map(|id| self.wallet(&id)).transpose()?;
        let spend_key = party.spend_key.map(|key| self.spend_key(&key.spend_key_id)).transpose()?;
        let facts = Facts {
            account,
            spend_key,
            connection: party.connection,
            key_connection: party.key_connection,
            wallet: wallet.as_ref(),
            meter: party.meter,
            draws_on_credit: self.subscription(party).is_some(),
        };
        Ok(admission::decide(call, &facts, service_charge_rate))
    }

    /// Books an admission: its holds, and its place in the counters of its spend key.
    pub(super) fn admit(&mut self, admission: &Admission) -> Result<(), StoreError> {
        let PendingRecord { spend_key_id, wallet_id, merchant_wallet_id, .. } = &admission.pending;
        if let (Some(id), Some(counters)) = (spend_key_id, admission.counters) {
            self.change_spend_key(&id.to_string())?.counters = counters;
        }
        if let Some(wallet_id) = wallet_id {
            let wallet_id = wallet_id.to_string();
            if let Some(hold) = admission.pending.credit_hold {
                self.hold_credit(&wallet_id, &hold)?;
            }
            self.hold(&wallet_id, admission.pending.wallet_hold)?;
        }
        self.hold(&merchant_wallet_id.to_string(), admission.pending.merchant_hold)
    }

    /// Books an admission that was booked before, on accounts that others may have changed since.
    pub(super) fn admit_again(&mut self, admission: &Admission) -> Result<(), StoreError> {
        let PendingRecord { spend_key_id, spend_hold, created_at, .. } = admission.pending;
        let mut counters = admission.counters;
        if let (Some(id), Some(then)) = (spend_key_id, &mut counters) {
            let mut now = self.spend_key(&id.to_string())?.counters;
            now.bucket = then.bucket;
            let at = now.admitted_at(created_at);
            now.admit(at, spend_hold).map_err(|_| out_of_range(&id.to_string()))?;
            *then = now;
        }
        self.admit(&Admission { pending: admission.pending.clone(), counters })
    }

    fn hold(&mut self, wallet_id: &str, amount: Amount) -> Result<(), StoreError> {
        if amount == Amount::ZERO {
            return Ok(());
        }
        let wallet = self.change_wallet(wallet_id)?;
        wallet.held =
            wallet.held.checked_add(amount.units()).ok_or_else(|| out_of_range(wallet_id))?;
        Ok(())
    }

    fn hold_credit(&mut self, wallet_id: &str, hold: &CreditHold) -> Result<(), StoreError> {
        if hold.cycle.is_zero() && hold.bundle.is_zero() {
            return Ok(());
        }
        let wallet = self.change_wallet(wallet_id)?;
        wallet.cycle_held = wallet.cycle_held.saturating_add(hold.cycle.units());
        wallet.bundle_held = wallet.bundle_held.saturating_add(hold.bundle.units());
        Ok(())
    }

    /// The part of `due` for which a balance has room: less than all of it only where a call cost far
    /// more than it held.
    pub(super) fn room_for(&self, wallet_id: &str, due: i64) -> i64 {
        let balance = self.wallets.get(wallet_id).map_or(0, |wallet| wallet.balance);
        // Sums that leave the range saturate at its edge: the difference is the room.
        balance.saturating_sub(balance.saturating_sub(due))
    }

    /// Releases what a call held on a wallet and takes what is `due`, of credit before the balance,
    /// each as a ledger line of its own.
    pub(super) fn debit(
        &mut self,
        wallet_id: &str,
        held: Held,
        due: i64,
        kind: TransactionKind,
        request_id: &str,
        part: &str,
    ) -> Result<(), StoreError> {
        if held.is_nothing() && due == 0 {
            return Ok(());
        }
        self.changed.wallets.insert(wallet_id.to_owned());
        let wallet = self
            .wallets
            .get_mut(wallet_id)
            .ok_or_else(|| StoreError::missing("wallet", wallet_id))?;
        let entries = &mut self.entries;
        let out_of_range = || out_of_range(wallet_id);
        wallet.held = wallet.held.checked_sub(held.on_balance).ok_or_else(out_of_range)?;
        let due = match held.on_credit {
            Some(hold) => entries.draw_on_credit(wallet, hold, due, kind, request_id),
            None => due,
        };
        if due == 0 {
            return Ok(());
        }
        let reason = Reason {
            kind,
            request_id: Some(request_id),
            description: None,
            idempotency_key: Some(format!("{}:{request_id}:{part}", word(&kind))),
        };
        let amount = due.checked_neg().ok_or_else(out_of_range)?;
        entries.move_balance(wallet, amount, reason)?.ok_or_else(out_of_range)?;
        Ok(())
    }

    /// An event.
    pub(super) fn tell(&mut self, merchant_id: MerchantId, news: &News) {
        self.entries.tell(merchant_id, news);
    }

    /// A wallet, to change it.
    fn change_wallet(&mut self, wallet_id: &str) -> Result<&mut WalletRow, StoreError> {
        let wallet = self
            .wallets
            .get_mut(wallet_id)
            .ok_or_else(|| StoreError::missing("wallet", wallet_id))?;
        self.changed.wallets.insert(wallet_id.to_owned());
        Ok(wallet)
    }

    /// A spend key, to change its counters.
    pub(super) fn change_spend_key(&mut self, id: &str) -> Result<&mut SpendKey, StoreError> {
        let key =
            self.spend_keys.get_mut(id).ok_or_else(|| StoreError::missing("spend key", id))?;
        self.changed.spend_keys.insert(id.to_owned());
        Ok(key)
    }

    fn wallet(&self, wallet_id: &str) -> Result<Wallet, StoreError> {
        let row =
            self.wallets.get(wallet_id).ok_or_else(|| StoreError::missing("wallet", wallet_id))?;
        Wallet::try_from(row)
    }

    fn spend_key(&self, id: &str) -> Result<&SpendKey, StoreError> {
        self.spend_keys.get(id).ok_or_else(|| StoreError::missing("spend key", id))
    }

    /// Remembers by which facts a call was refused. Of a key that opens nothing there are none.
    pub(super) fn note_refusal(&self, call: &Call, party: &Party<'_>, storms: &Storms) {
        storms.note(self.epoch, call, || {
            let spend_key = party.spend_key.map(|key| self.spend_key(&key.spend_key_id));
            let wallet = party.wallet_id().map(|id| self.wallet(&id));
            Some(Remembered {
                account: party.account?.0.parse().ok()?,
                guarded_account: party.guarded_account().and_then(|id| self.wallet(id).ok()),
                spend_key: spend_key.transpose().ok()?.cloned(),
                connection: party.connection.cloned(),
                key_connection: party.key_connection.cloned(),
                wallet: wallet.transpose().ok()?,
                meter: party.meter.cloned(),
                draws_on_credit: self.subscription(party).is_some(),
                credit_renews_at: self.subscription(party).map(|found| found.cycle_end_at),
            })
        });
    }

    /// Takes what was changed, to write it.
    pub(super) fn take(&mut self) -> ChangedAccounts {
        let Changed { spend_keys, wallets } = mem::take(&mut self.unwritten);
        let keys = spend_keys.into_iter().filter_map(|id| self.spend_keys.get_key_value(&id));
        let wallets = wallets.iter().filter_map(|id| self.wallets.get(id));
        ChangedAccounts {
            spend_counters: keys
                .map(|(id, key)| SpendCountersRow::new(id.clone(), &key.counters))
                .collect(),
            wallets: wallets.cloned().collect(),
            renewed: mem::take(&mut self.renewed).into_values().collect(),
            entries: mem::replace(&mut self.entries, Entries::new(self.now)),
        }
    }
}

/// What has become of accounts, to be written.
pub(super) struct ChangedAccounts {
    pub(super) spend_counters: Vec<SpendCountersRow>,
    pub(super) wallets: Vec<WalletRow>,
    pub(super) renewed: Vec<SubscriptionRow>,
    pub(super) entries: Entries,
}

/// An amount would leave the range of amounts.
fn out_of_range(wallet_id: &str) -> StoreError {
    StoreError::Corrupt {
        what: "balance (it would leave the range of an amount)",
        value: wallet_id.to_owned(),
    }
}
