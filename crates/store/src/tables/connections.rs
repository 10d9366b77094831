//! Queries of the table of customers.

use diesel::prelude::*;
use tollgate_domain::{Connection, ConnectionId, MerchantId};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::ConnectionRow;
use crate::schema::connections;

/// Returns a merchant's connection, deleted or not.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    connection_id: ConnectionId,
) -> Result<Option<Connection>, StoreError> {
    let row = connections::table
        .find(Id(connection_id))
        .filter(connections::merchant_id.eq(Id(merchant_id)))
        .select(ConnectionRow::as_select())
        .first(conn)
        .optional()?;
    row.map(Connection::try_from).transpose()
}
