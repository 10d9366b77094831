//! Wallets as the ledger changes them, with the numbers of their last line and last record.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_domain::{SubscriptionId, Wallet, WalletId};
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::dialect::{self, RowLock};
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::WalletRow;

/// A wallet as the ledger changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LedgerWallet {
    pub(crate) wallet: Wallet,
    /// The active subscription that provides its credits.
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

/// Locks wallets in the order of their ids. The result omits wallets that do not exist.
pub(crate) fn lock_wallets(
    conn: &mut Conn,
    ids: impl IntoIterator<Item = WalletId>,
) -> Result<LedgerWallets, StoreError> {
    let ids: BTreeSet<_> = ids.into_iter().map(Id).collect();
    let ids = Vec::from_iter(ids);
    let rows = dialect::wallets(conn, &ids, RowLock::Rows)?;
    let wallets = rows.iter().map(|row| {
        let wallet = LedgerWallet::try_from(row)?;
        Ok((wallet.wallet.wallet_id, wallet))
    });
    wallets.collect()
}
