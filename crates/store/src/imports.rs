//! The spend keys and budgets that come from another service.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use diesel::prelude::*;
use tollgate_domain::{BudgetId, KeyHash, MerchantId, Timestamp};
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rows::time;
use crate::schema::{budgets, imports};

/// The row of another service that an account is made from.
#[derive(Clone, Debug)]
pub struct ImportSource {
    /// The merchant that imports it.
    pub merchant_id: MerchantId,
    /// The name of the row there.
    pub name: String,
    /// The amount that was spent there in the present cycle, in USD.
    pub spent: Amount,
    /// The time of the import.
    pub imported_at: Timestamp,
}

/// The name of the row of a key, by its hash.
pub fn name_of_key(hash: &KeyHash) -> String {
    hash.iter().fold("key ".to_owned(), |mut name, byte| {
        // A string takes all that is written.
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// The merchant for which a key was imported, also if the spend key has another key now or is deleted.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn owner_of_key(conn: &mut Conn, hash: &KeyHash) -> Result<Option<MerchantId>, StoreError> {
    let owner: Option<Id<MerchantId>> = imports::table
        .filter(imports::source.eq(name_of_key(hash)))
        .select(imports::merchant_id)
        .first(conn)
        .optional()?;
    Ok(owner.map(Id::get))
}

/// The budgets of a merchant that were imported and are not deleted, by the names of their rows.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn budgets(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<HashMap<String, BudgetId>, StoreError> {
    let rows: Vec<(String, Id<BudgetId>)> = imports::table
        .inner_join(budgets::table.on(budgets::budget_id.eq(imports::account_id)))
        .filter(budgets::merchant_id.eq(Id(merchant_id)))
        .filter(budgets::deleted_at.is_null())
        .select((imports::source, budgets::budget_id))
        .load(conn)?;
    Ok(rows.into_iter().map(|(name, id)| (name, id.get())).collect())
}

/// Adds an account.
pub(crate) fn write(
    conn: &mut Conn,
    account_id: Id<AnyId>,
    source: &ImportSource,
) -> Result<(), StoreError> {
    diesel::insert_into(imports::table)
        .values((
            imports::account_id.eq(account_id),
            imports::merchant_id.eq(Id(source.merchant_id)),
            imports::source.eq(&source.name),
            imports::spent.eq(source.spent.units()),
            imports::imported_at.eq(source.imported_at.unix_micros()),
        ))
        .execute(conn)?;
    Ok(())
}

/// The spend of each account until its import, with the time of that.
pub(crate) fn spent(
    conn: &mut Conn,
) -> Result<BTreeMap<Id<AnyId>, (Amount, Timestamp)>, StoreError> {
    let rows: Vec<(Id<AnyId>, i64, i64)> = imports::table
        .select((imports::account_id, imports::spent, imports::imported_at))
        .load(conn)?;
    let rows = rows.into_iter();
    Ok(rows.map(|(id, amount, at)| (id, (Amount::from_units(amount), time(at)))).collect())
}
