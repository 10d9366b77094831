//! Wallets, and the movements of money that a person orders.

use diesel::prelude::*;
use tollgate_domain::{
    ConnectionId, MerchantId, Timestamp, Transaction, TransactionKind, Wallet, WalletChanges,
    WalletId,
};
use tollgate_pricing::Amount;

use crate::archived::{self, RecordArchive};
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{TransactionRow, WalletRow};
use crate::schema::{merchants, transactions, wallets};
use crate::subscriptions;
use crate::write_set::{LedgerWallet, LedgerWallets, MovementReason, WriteSet, lock_wallets};

/// Makes an empty wallet. A connection's may not be overdrawn; a merchant's own has no limit.
pub(crate) fn create(
    conn: &mut Conn,
    wallet_id: WalletId,
    merchant_id: MerchantId,
    connection_id: Option<ConnectionId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let row = WalletRow {
        wallet_id: Id(wallet_id),
        merchant_id: Id(merchant_id),
        connection_id: connection_id.map(Id),
        balance: 0,
        held: 0,
        overdraft_limit: connection_id.map(|_| 0),
        low_balance_threshold: None,
        subscription_id: None,
        cycle_credit: 0,
        cycle_held: 0,
        cycle_expired: 0,
        bundle_credit: 0,
        bundle_held: 0,
        bundle_expired: 0,
        cycles: 0,
        transactions: 0,
        records: 0,
        created_at: now.unix_micros(),
    };
    diesel::insert_into(wallets::table).values(&row).execute(conn)?;
    Ok(())
}

/// A merchant's wallet, if the merchant has this one.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    wallet_id: WalletId,
) -> Result<Option<Wallet>, StoreError> {
    let row = wallets::table
        .find(Id(wallet_id))
        .filter(wallets::merchant_id.eq(Id(merchant_id)))
        .select(WalletRow::as_select())
        .first(conn)
        .optional()?;
    row.as_ref().map(Wallet::try_from).transpose()
}

/// A merchant's own wallet.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find_own(conn: &mut Conn, merchant_id: MerchantId) -> Result<Option<Wallet>, StoreError> {
    let row = merchants::table
        .inner_join(wallets::table.on(wallets::wallet_id.eq(merchants::wallet_id)))
        .filter(merchants::merchant_id.eq(Id(merchant_id)))
        .select(WalletRow::as_select())
        .first(conn)
        .optional()?;
    row.as_ref().map(Wallet::try_from).transpose()
}

/// The merchant of a wallet. For the operator, who may name any wallet.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn owner_of(conn: &mut Conn, wallet_id: WalletId) -> Result<Option<MerchantId>, StoreError> {
    let owner: Option<Id<MerchantId>> =
        wallets::table.find(Id(wallet_id)).select(wallets::merchant_id).first(conn).optional()?;
    Ok(owner.map(Id::get))
}

/// Changes a merchant's wallet; `None` if there is no such wallet.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn update(
    conn: &mut Conn,
    merchant_id: MerchantId,
    wallet_id: WalletId,
    changes: WalletChanges,
) -> Result<Option<Wallet>, StoreError> {
    let mut wallets = lock_wallets(conn, [wallet_id])?;
    let Some(locked) = of_merchant(&mut wallets, merchant_id, wallet_id) else { return Ok(None) };
    if let Some(limit) = changes.overdraft_limit {
        locked.wallet.overdraft_limit = limit;
    }
    if let Some(threshold) = changes.low_balance_threshold {
        locked.wallet.low_balance_threshold = threshold;
    }
    dialect::save_wallets(conn, &[WalletRow::from(&*locked)])?;
    Ok(Some(locked.wallet.clone()))
}

/// Money that a person puts into a wallet or takes out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalletMovement {
    /// Credit or debit.
    pub kind: TransactionKind,
    /// The amount, above zero.
    pub amount: Amount,
    /// The description that the caller gave.
    pub description: Option<String>,
}

/// The outcome of [`book`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MovementOutcome {
    /// It is booked.
    Booked(Transaction),
    /// The merchant has no such wallet.
    NotFound,
    /// The balance would pass the limits of a credit or a debit.
    OutOfRange,
}

/// Books a movement on a merchant's wallet. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn book(
    conn: &mut Conn,
    merchant_id: MerchantId,
    wallet_id: WalletId,
    movement: &WalletMovement,
    now: Timestamp,
) -> Result<MovementOutcome, StoreError> {
    if find(conn, merchant_id, wallet_id)?.is_none() {
        return Ok(MovementOutcome::NotFound);
    }
    // Cycles that have ended are booked first, so that the lines of a wallet are in the order of their times.
    subscriptions::renew(conn, &[wallet_id], now)?;
    let mut wallets = lock_wallets(conn, [wallet_id])?;
    let Some(locked) = of_merchant(&mut wallets, merchant_id, wallet_id) else {
        return Ok(MovementOutcome::NotFound);
    };
    let is_debit = movement.kind == TransactionKind::Debit;
    let signed = if is_debit { -movement.amount } else { movement.amount };
    let Ok(after) = locked.wallet.balance.checked_add(signed) else {
        return Ok(MovementOutcome::OutOfRange);
    };
    // A balance beyond the limits may move back towards them.
    let is_allowed = match signed < Amount::ZERO {
        true => after >= Wallet::LEAST_BALANCE,
        false => after <= Wallet::MOST_BALANCE,
    };
    if !is_allowed {
        return Ok(MovementOutcome::OutOfRange);
    }
    let reason = MovementReason {
        kind: movement.kind,
        request_id: None,
        description: movement.description.as_deref(),
        idempotency_key: None,
    };
    let mut change = WriteSet::new(now);
    let Some(line) = change.move_balance(locked, signed, reason)? else {
        return Ok(MovementOutcome::OutOfRange);
    };
    change.commit_wallets(conn, &wallets)?;
    Ok(MovementOutcome::Booked(line.into()))
}

fn of_merchant(
    wallets: &mut LedgerWallets,
    merchant_id: MerchantId,
    wallet_id: WalletId,
) -> Option<&mut LedgerWallet> {
    wallets.get_mut(&wallet_id).filter(|locked| locked.wallet.merchant_id == merchant_id)
}

/// The ledger lines of a wallet, newest first, also those in the archive. A page begins after a number.
///
/// The caller has checked that the wallet is the merchant's. Call it in a snapshot.
///
/// # Errors
/// [`StoreError`] when the database fails, or the archive if the page needs it.
pub fn list_transactions(
    conn: &mut Conn,
    archive: &RecordArchive,
    wallet_id: WalletId,
    page: &Page<i64>,
) -> Result<Vec<Transaction>, StoreError> {
    let wallet_id = Id(wallet_id);
    let (below, most) = (page.after.unwrap_or(i64::MAX), page.rows());
    let mut rows: Vec<TransactionRow> = transactions::table
        .filter(transactions::wallet_id.eq(wallet_id))
        .filter(transactions::number.lt(below))
        .order(transactions::number.desc())
        .limit(most)
        .select(TransactionRow::as_select())
        .load(conn)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let last_row = rows.get(most.saturating_sub(1));
    let numbers = last_row.map_or(1, |row| row.number)..below;
    rows.extend(archived::transactions::of_wallet(conn, archive, wallet_id, numbers, most)?);
    rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.number));
    rows.truncate(most);
    Ok(rows.into_iter().map(Transaction::from).collect())
}
