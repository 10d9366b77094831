//! The accounts of a batch, wallets and spend keys: read, decided by, changed in memory, written
//! back once.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_domain::admission::{self, Account, Admission, Call, CallKey, Facts, Refusal};
use tollgate_domain::{PendingRecord, SpendKey, Wallet};
use tollgate_pricing::{Amount, Rate};

use super::parties::{Parties, Party};
use super::storms::{Remembered, Storms};
use crate::conn::Conn;
use crate::dialect::{self, Lock};
use crate::error::StoreError;
use crate::rows::{WalletRow, parsed};
use crate::spend_keys::SpendCountersRow;

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
        self.wallets.extend(party.limited_account().map(str::to_owned));
    }
}

/// Accounts as they stand.
pub(super) struct Accounts {
    wallets: BTreeMap<String, WalletRow>,
    spend_keys: BTreeMap<String, SpendKey>,
    changed_wallets: BTreeSet<String>,
    changed_spend_keys: BTreeSet<String>,
}

impl Accounts {
    /// Reads accounts, spend keys before wallets, each by id: the order in which all lock.
    pub(super) fn read(
        conn: &mut Conn,
        ids: AccountIds,
        parties: &Parties,
        lock: Lock,
    ) -> Result<Self, StoreError> {
        let mut spend_keys = BTreeMap::new();
        if !ids.spend_keys.is_empty() {
            let ids: Vec<_> = ids.spend_keys.into_iter().collect();
            for counters in dialect::spend_counters(conn, &ids, lock)? {
                if let Some(row) = parties.spend_key(&counters.spend_key_id) {
                    let key = row.clone().with_counters(&counters)?;
                    spend_keys.insert(counters.spend_key_id, key);
                }
            }
        }
        let ids: Vec<_> = ids.wallets.into_iter().collect();
        let wallets = if ids.is_empty() { Vec::new() } else { dialect::wallets(conn, &ids, lock)? };
        Ok(Self {
            wallets: wallets.into_iter().map(|row| (row.wallet_id.clone(), row)).collect(),
            spend_keys,
            changed_wallets: BTreeSet::new(),
            changed_spend_keys: BTreeSet::new(),
        })
    }

    /// What the rules say of a call as the accounts stand.
    pub(super) fn decide(
        &self,
        call: &Call,
        party: &Party<'_>,
        service_charge_rate: Rate,
    ) -> Result<Result<Admission, Refusal>, StoreError> {
        let limited = party.limited_account().map(|id| self.wallet(id)).transpose()?;
        let account = match party.account {
            Some((wallet_id, _)) => Some(Account {
                wallet_id: parsed("merchants.wallet_id", wallet_id)?,
                limited: limited.as_ref(),
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
            self.hold(&wallet_id.to_string(), admission.pending.wallet_hold)?;
        }
        self.hold(&merchant_wallet_id.to_string(), admission.pending.merchant_hold)
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

    /// A wallet, to change it.
    pub(super) fn change_wallet(&mut self, wallet_id: &str) -> Result<&mut WalletRow, StoreError> {
        let wallet = self.wallets.get_mut(wallet_id).ok_or_else(|| missing("wallet", wallet_id))?;
        self.changed_wallets.insert(wallet_id.to_owned());
        Ok(wallet)
    }

    /// A spend key, to change its counters.
    pub(super) fn change_spend_key(&mut self, id: &str) -> Result<&mut SpendKey, StoreError> {
        let key = self.spend_keys.get_mut(id).ok_or_else(|| missing("spend key", id))?;
        self.changed_spend_keys.insert(id.to_owned());
        Ok(key)
    }

    fn wallet(&self, wallet_id: &str) -> Result<Wallet, StoreError> {
        let row = self.wallets.get(wallet_id).ok_or_else(|| missing("wallet", wallet_id))?;
        Wallet::try_from(row)
    }

    fn spend_key(&self, id: &str) -> Result<&SpendKey, StoreError> {
        self.spend_keys.get(id).ok_or_else(|| missing("spend key", id))
    }

    /// Remembers by which facts a call of a spend key was refused.
    pub(super) fn note_refusal(&self, call: &Call, party: &Party<'_>, storms: &Storms) {
        let CallKey::Spend(id, key_hash) = call.key else { return };
        storms.note(id, || {
            Some(Remembered {
                key_hash,
                spend_key: self.spend_key(&id.to_string()).ok()?.clone(),
                account: party.account?.0.parse().ok()?,
                limited_account: party.limited_account().and_then(|id| self.wallet(id).ok()),
                wallet: Some(self.wallet(&party.wallet_id()?).ok()?),
                key_connection: party.key_connection.cloned(),
                meter: party.meter.cloned(),
            })
        });
    }

    /// Writes back what was changed: one statement per table.
    pub(super) fn write(self, conn: &mut Conn, storms: &Storms) -> Result<(), StoreError> {
        // Before it is committed: nothing is decided between now and then but by this writer.
        storms.forget(&self.changed_spend_keys, &self.changed_wallets);
        if !self.changed_spend_keys.is_empty() {
            let changed =
                self.spend_keys.into_iter().filter(|(id, _)| self.changed_spend_keys.contains(id));
            let rows: Vec<_> =
                changed.map(|(id, key)| SpendCountersRow::new(id, &key.counters)).collect();
            dialect::save_spend_counters(conn, &rows)?;
        }
        if !self.changed_wallets.is_empty() {
            let changed =
                self.wallets.into_iter().filter(|(id, _)| self.changed_wallets.contains(id));
            let rows: Vec<_> = changed.map(|(_, row)| row).collect();
            dialect::save_wallets(conn, &rows)?;
        }
        Ok(())
    }
}

fn missing(noun: &'static str, id: &str) -> StoreError {
    StoreError::Corrupt { what: "row (it is missing)", value: format!("{noun} {id}") }
}

/// An amount would leave the range of amounts.
pub(super) fn out_of_range(wallet_id: &str) -> StoreError {
    StoreError::Corrupt {
        what: "balance (it would leave the range of an amount)",
        value: wallet_id.to_owned(),
    }
}
