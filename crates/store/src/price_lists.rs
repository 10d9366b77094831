//! Price lists that were accepted while the program runs. All nodes use the last one.

use diesel::prelude::*;
use tollgate_domain::Timestamp;

use crate::conn::{Conn, each_database};
use crate::error::StoreError;
use crate::schema::price_lists;

/// The number of lists that are kept. One has about half a megabyte.
const KEPT: i64 = 100;

/// A price list that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Queryable)]
pub struct StoredPriceList {
    /// Its number, from 1.
    pub number: i64,
    /// The day of its release, such as `2026-11-27`.
    pub released: String,
    /// The catalogue that it has become, as the JSON of a catalogue file.
    pub list: String,
}

/// The list that applies, unless it is number `known`.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn latest(conn: &mut Conn, known: Option<i64>) -> Result<Option<StoredPriceList>, StoreError> {
    let newest: Option<i64> =
        price_lists::table.select(diesel::dsl::max(price_lists::number)).first(conn)?;
    let Some(newest) = newest.filter(|newest| Some(*newest) != known) else { return Ok(None) };
    let found = price_lists::table
        .find(newest)
        .select((price_lists::number, price_lists::released, price_lists::list))
        .first(conn);
    Ok(Some(found?))
}

/// Adds a list, which applies from now on, as the successor of number `before`, and deletes old ones. Returns its number.
/// `None` if another one was added meanwhile.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn add(
    conn: &mut Conn,
    before: Option<i64>,
    released: &str,
    source: &str,
    list: &str,
    now: Timestamp,
) -> Result<Option<i64>, StoreError> {
    let newest: Option<i64> =
        price_lists::table.select(diesel::dsl::max(price_lists::number)).first(conn)?;
    if newest != before {
        return Ok(None);
    }
    let number = before.unwrap_or(0).saturating_add(1);
    let row = (
        price_lists::number.eq(number),
        price_lists::released.eq(released),
        price_lists::source.eq(source),
        price_lists::accepted_at.eq(now.unix_micros()),
        price_lists::list.eq(list),
    );
    // Of two that are added at once, the second one waits for the first and finds its number.
    let insert = diesel::insert_into(price_lists::table).values(row).on_conflict_do_nothing();
    if each_database!(conn, conn => insert.execute(conn))? == 0 {
        return Ok(None);
    }
    let old = price_lists::table.filter(price_lists::number.le(number.saturating_sub(KEPT)));
    diesel::delete(old).execute(conn)?;
    Ok(Some(number))
}
