//! Wallets, and the movements of money that a person orders.

use diesel::prelude::*;
use tollgate_domain::{
    ConnectionId, MerchantId, Timestamp, Transaction, TransactionKind, Wallet, WalletChanges,
    WalletId,
};
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::dialect::{self, Lock};
use crate::entries::{Entries, Reason};
use crate::error::StoreError;
use crate::page::Page;
use crate::rows::{TransactionRow, WalletRow, parsed};
use crate::schema::{merchants, transactions, wallets};

/// Makes an empty wallet: a connection's may not be overdrawn, a merchant's own has no limit.
pub(crate) fn create(
    conn: &mut Conn,
    wallet_id: WalletId,
    merchant_id: MerchantId,
    connection_id: Option<ConnectionId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let row = WalletRow {
        wallet_id: wallet_id.to_string(),
        merchant_id: merchant_id.to_string(),
        connection_id: connection_id.map(|id| id.to_string()),
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
        created_at: now.unix_micros(),
    };
    diesel::insert_into(wallets::table).values(&row).execute(conn)?;
    Ok(())
}

/// A merchant's wallet, if it has this one.
///
/// # Errors
/// Those of the store.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    wallet_id: WalletId,
) -> Result<Option<Wallet>, StoreError> {
    let row = wallets::table
        .find(wallet_id.to_string())
        .filter(wallets::merchant_id.eq(merchant_id.to_string()))
        .select(WalletRow::as_select())
        .first(conn)
        .optional()?;
    row.as_ref().map(Wallet::try_from).transpose()
}

/// A merchant's own wallet.
///
/// # Errors
/// Those of the store.
pub fn find_own(conn: &mut Conn, merchant_id: MerchantId) -> Result<Option<Wallet>, StoreError> {
    let row = merchants::table
        .inner_join(wallets::table.on(wallets::wallet_id.eq(merchants::wallet_id)))
        .filter(merchants::merchant_id.eq(merchant_id.to_string()))
        .select(WalletRow::as_select())
        .first(conn)
        .optional()?;
    row.as_ref().map(Wallet::try_from).transpose()
}

/// Whose wallet it is: for the operator, who may name any.
///
/// # Errors
/// Those of the store.
pub fn owner_of(conn: &mut Conn, wallet_id: WalletId) -> Result<Option<MerchantId>, StoreError> {
    let owner: Option<String> = wallets::table
        .find(wallet_id.to_string())
        .select(wallets::merchant_id)
        .first(conn)
        .optional()?;
    owner.map(|id| parsed("wallets.merchant_id", &id)).transpose()
}

/// Changes a merchant's wallet; `None` when it has no such wallet. Call it in a write transaction.
///
/// # Errors
/// Those of the store.
pub fn update(
    conn: &mut Conn,
    merchant_id: MerchantId,
    wallet_id: WalletId,
    changes: WalletChanges,
) -> Result<Option<Wallet>, StoreError> {
    let Some(mut row) = locked(conn, merchant_id, wallet_id)? else { return Ok(None) };
    if let Some(limit) = changes.overdraft_limit {
        row.overdraft_limit = limit.map(Amount::units);
    }
    if let Some(threshold) = changes.low_balance_threshold {
        row.low_balance_threshold = threshold.map(Amount::units);
    }
    dialect::save_wallets(conn, std::slice::from_ref(&row))?;
    Ok(Some(Wallet::try_from(&row)?))
}

/// Money that somebody puts in or takes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Movement {
    /// Credit or debit.
    pub kind: TransactionKind,
    /// How much, above zero.
    pub amount: Amount,
    /// In the words of who ordered it.
    pub description: Option<String>,
}

/// What became of a movement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It is booked.
    Booked(Transaction),
    /// The merchant has no such wallet.
    NotFound,
    /// The balance would pass what a credit or a debit may take it to.
    OutOfRange,
}

/// Books a movement on a merchant's wallet. Call it in a write transaction.
///
/// # Errors
/// Those of the store.
pub fn book(
    conn: &mut Conn,
    merchant_id: MerchantId,
    wallet_id: WalletId,
    movement: &Movement,
    now: Timestamp,
) -> Result<Moved, StoreError> {
    let Some(mut row) = locked(conn, merchant_id, wallet_id)? else { return Ok(Moved::NotFound) };
    let units = movement.amount.units();
    let signed =
        if movement.kind == TransactionKind::Debit { units.checked_neg() } else { Some(units) };
    let reason = Reason {
        kind: movement.kind,
        request_id: None,
        description: movement.description.clone(),
        idempotency_key: None,
    };
    let Some(signed) = signed else { return Ok(Moved::OutOfRange) };
    let bounds = [Wallet::LEAST_BALANCE, Wallet::MOST_BALANCE].map(Amount::units);
    let after = row.balance.checked_add(signed);
    // A balance that is beyond may come back.
    let is_allowed = |after: &i64| match signed.is_negative() {
        true => *after >= bounds[0],
        false => *after <= bounds[1],
    };
    if !after.is_some_and(|after| is_allowed(&after)) {
        return Ok(Moved::OutOfRange);
    }
    let mut entries = Entries::new(now);
    let booked = entries.move_balance(&mut row, signed, reason)?;
    let Some(transaction) = booked.cloned() else { return Ok(Moved::OutOfRange) };
    dialect::save_wallets(conn, std::slice::from_ref(&row))?;
    entries.write(conn)?;
    Ok(Moved::Booked(transaction.try_into()?))
}

fn locked(
    conn: &mut Conn,
    merchant_id: MerchantId,
    wallet_id: WalletId,
) -> Result<Option<WalletRow>, StoreError> {
    let found = dialect::wallets(conn, &[wallet_id.to_string()], Lock::Rows)?;
    Ok(found.into_iter().find(|row| row.merchant_id == merchant_id.to_string()))
}

/// The movements of a wallet, newest first; a page begins after a number. The caller has made sure
/// whose wallet it is.
///
/// # Errors
/// Those of the store.
pub fn list_transactions(
    conn: &mut Conn,
    wallet_id: WalletId,
    page: &Page<i64>,
) -> Result<Vec<Transaction>, StoreError> {
    let mut query = transactions::table
        .filter(transactions::wallet_id.eq(wallet_id.to_string()))
        .select(TransactionRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(transactions::number.lt(after));
    }
    let rows = query.order(transactions::number.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(Transaction::try_from).collect()
}
