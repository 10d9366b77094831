//! Merchants that are here, that move to another cell, or have moved there. Nothing is done for the last two here.

use std::collections::BTreeSet;

use diesel::prelude::*;
use tollgate_domain::{CellNumber, MerchantId, Timestamp};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::merchants;

/// Fails for a merchant that moves to another cell, or has moved there.
///
/// # Errors
/// [`StoreError::Moved`] then. Other errors when the database fails.
pub fn require_here(conn: &mut Conn, merchant_id: MerchantId) -> Result<(), StoreError> {
    match cell_of(conn, merchant_id)? {
        None => Ok(()),
        Some(cell) => Err(StoreError::Moved(cell)),
    }
}

/// The merchants of the database. One that moves here has records and ledger lines before it is among them.
pub(crate) fn present(conn: &mut Conn) -> Result<BTreeSet<Id<MerchantId>>, StoreError> {
    let ids: Vec<_> = merchants::table.select(merchants::merchant_id).load(conn)?;
    Ok(ids.into_iter().collect())
}

/// The number of the cell to which a merchant moves or has moved.
pub(crate) fn cell_of(conn: &mut Conn, merchant_id: MerchantId) -> Result<Option<i32>, StoreError> {
    let cell = merchants::table.find(Id(merchant_id)).select(merchants::moved_to);
    Ok(cell.first(conn).optional()?.flatten())
}

/// Sets the cell to which a merchant moves, or none. The move is not complete.
pub(crate) fn set_cell(
    conn: &mut Conn,
    merchant_id: MerchantId,
    cell: Option<CellNumber>,
) -> Result<(), StoreError> {
    let cell = cell.map(|cell| i32::from(cell.get()));
    let merchant = merchants::table.find(Id(merchant_id));
    let moves = (merchants::moved_to.eq(cell), merchants::moved_at.eq(None::<i64>));
    diesel::update(merchant).set(moves).execute(conn)?;
    Ok(())
}

/// Notes that a move is complete.
pub(crate) fn complete_move(
    conn: &mut Conn,
    merchant_id: MerchantId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let merchant = merchants::table.find(Id(merchant_id)).filter(merchants::moved_at.is_null());
    diesel::update(merchant).set(merchants::moved_at.eq(now.unix_micros())).execute(conn)?;
    Ok(())
}

/// Whether a move is complete.
pub(crate) fn has_moved(conn: &mut Conn, merchant_id: MerchantId) -> Result<bool, StoreError> {
    let moved_at = merchants::table.find(Id(merchant_id)).select(merchants::moved_at);
    let moved_at: Option<Option<i64>> = moved_at.first(conn).optional()?;
    Ok(moved_at.flatten().is_some())
}

/// The merchants that are here, and do not move.
pub(crate) fn here(conn: &mut Conn) -> Result<Vec<MerchantId>, StoreError> {
    let here = merchants::table.filter(merchants::moved_to.is_null()).order(merchants::merchant_id);
    let here: Vec<Id<MerchantId>> = here.select(merchants::merchant_id).load(conn)?;
    Ok(here.into_iter().map(Id::get).collect())
}

/// The merchants that move or have moved.
pub(crate) fn moved_merchants(conn: &mut Conn) -> Result<Vec<Id<MerchantId>>, StoreError> {
    let moved = merchants::table.filter(merchants::moved_to.is_not_null());
    Ok(moved.select(merchants::merchant_id).load(conn)?)
}
