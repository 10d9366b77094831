//! The cell of the database.

use diesel::prelude::*;
use tollgate_domain::CellNumber;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::schema::cell;

/// The number of the cell: that of the first configuration that had one, else 0.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn number(conn: &mut Conn) -> Result<CellNumber, StoreError> {
    Ok(find(conn)?.unwrap_or_default())
}

/// Makes the database that of a cell, unless it is one already. Returns the number of its cell.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn claim(conn: &mut Conn, cell: CellNumber) -> Result<CellNumber, StoreError> {
    if let Some(number) = find(conn)? {
        return Ok(number);
    }
    let number = cell::number.eq(i32::from(cell.get()));
    diesel::insert_into(cell::table).values(number).execute(conn)?;
    Ok(cell)
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
