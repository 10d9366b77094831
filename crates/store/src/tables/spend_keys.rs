//! Queries of the table of spend keys.

use diesel::prelude::*;
use tollgate_domain::MeterId;

use crate::conn::Conn;
use crate::ids::Id;
use crate::schema::spend_keys;

/// Whether any spend key that is not deleted has this meter.
pub(crate) fn any_under(conn: &mut Conn, meter_id: MeterId) -> QueryResult<bool> {
    let count: i64 = spend_keys::table
        .filter(spend_keys::meter_id.eq(Id(meter_id)))
        .filter(spend_keys::deleted_at.is_null())
        .count()
        .get_result(conn)?;
    Ok(count > 0)
}
