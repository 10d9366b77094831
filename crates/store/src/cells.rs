//! The cell of the database.

use diesel::prelude::*;
use tollgate_domain::{CellNumber, Key};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::schema::{cell, merchants, secret_keys, spend_keys};
use crate::tables::merchants::moved_merchants;

/// The number of the cell: that of the first configuration that had one, else 0.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn number(conn: &mut Conn) -> Result<CellNumber, StoreError> {
    Ok(find(conn)?.unwrap_or_default())
}

/// The beginnings of the valid keys that other cells have made, such as `tgk_3_4Kd9Qx2v`. Their merchants have moved here.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn moved_keys(conn: &mut Conn) -> Result<Vec<String>, StoreError> {
    let cell = number(conn)?;
    let moved = moved_merchants(conn)?;
    let secret = secret_keys::table
        .filter(secret_keys::deleted_at.is_null())
        .filter(secret_keys::merchant_id.ne_all(&moved))
        .select(secret_keys::key_preview);
    let mut previews: Vec<String> = secret.load(conn)?;
    let spend = spend_keys::table
        .filter(spend_keys::deleted_at.is_null())
        .filter(spend_keys::merchant_id.ne_all(&moved))
        .select(spend_keys::key_preview);
    previews.extend(spend.load::<String>(conn)?);
    let made_elsewhere = previews.iter().filter_map(|preview| {
        let start = preview.trim_end_matches('*');
        (Key::cell_of_start(start)? != cell).then(|| start.to_owned())
    });
    Ok(made_elsewhere.collect())
}

/// Makes the database that of a cell, unless it is one already: with merchants and without a number it is cell 0. Returns
/// the number of its cell.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn claim(conn: &mut Conn, cell: CellNumber) -> Result<CellNumber, StoreError> {
    if !is_one(conn)? {
        let row = (cell::one.eq(1), cell::number.eq(i32::from(cell.get())));
        // Another node may be making it the same or another cell.
        match conn {
            Conn::Sqlite(conn) => {
                diesel::insert_or_ignore_into(cell::table).values(row).execute(conn)?
            }
            Conn::Postgres(conn) => diesel::insert_into(cell::table)
                .values(row)
                .on_conflict_do_nothing()
                .execute(conn)?,
        };
    }
    number(conn)
}

/// Whether the database is that of a cell: it has a number or a merchant.
pub(crate) fn is_one(conn: &mut Conn) -> Result<bool, StoreError> {
    let has_merchants = diesel::dsl::exists(merchants::table.select(merchants::merchant_id));
    Ok(find(conn)?.is_some() || diesel::select(has_merchants).get_result::<bool>(conn)?)
}

fn find(conn: &mut Conn) -> Result<Option<CellNumber>, StoreError> {
    let number: Option<i32> = cell::table.select(cell::number).first(conn).optional()?;
    let read = |number: i32| {
        let corrupt = || StoreError::Corrupt { what: "cell.number", value: number.to_string() };
        let number = u16::try_from(number).map_err(|_| corrupt())?;
        CellNumber::try_from(number).map_err(|_| corrupt())
    };
    number.map(read).transpose()
}
