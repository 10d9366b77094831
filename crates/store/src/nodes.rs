//! The lives of serving processes. An open call names the life that will settle it; only when
//! that life's lease has lapsed may somebody else end the call, never for its age alone.

use diesel::prelude::*;
use tollgate_domain::{NodeId, RequestId, Timestamp};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::{nodes, open_calls};

/// Begins a life, or prolongs it.
pub(crate) fn renew(conn: &mut Conn, node_id: NodeId, until: Timestamp) -> Result<(), StoreError> {
    let lease = nodes::lease_until.eq(until.unix_micros());
    if diesel::update(nodes::table.find(Id(node_id))).set(lease).execute(conn)? == 0 {
        diesel::insert_into(nodes::table)
            .values((nodes::node_id.eq(Id(node_id)), lease))
            .execute(conn)?;
    }
    Ok(())
}

/// Ends a life that has nothing pending any more.
pub(crate) fn retire(conn: &mut Conn, node_id: NodeId) -> Result<(), StoreError> {
    diesel::delete(nodes::table.find(Id(node_id))).execute(conn)?;
    Ok(())
}

/// Ends every life: for who has the store to himself.
pub(crate) fn retire_all(conn: &mut Conn) -> Result<(), StoreError> {
    diesel::delete(nodes::table).execute(conn)?;
    Ok(())
}

/// The open calls of a process.
pub(crate) fn open_calls(conn: &mut Conn, node_id: NodeId) -> Result<Vec<RequestId>, StoreError> {
    let ids: Vec<Id<RequestId>> = open_calls::table
        .filter(open_calls::node_id.eq(Id(node_id)))
        .select(open_calls::request_id)
        .load(conn)?;
    Ok(ids.into_iter().map(Id::get).collect())
}

/// Open calls whose owner's lease has lapsed, or who is gone; at most `limit`. The asking node
/// lives, whatever its lease says.
pub(crate) fn abandoned(
    conn: &mut Conn,
    asking: NodeId,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<RequestId>, StoreError> {
    let alive: Vec<Id<NodeId>> = nodes::table
        .filter(nodes::lease_until.ge(now.unix_micros()))
        .select(nodes::node_id)
        .load(conn)?;
    let mut query = open_calls::table
        .filter(open_calls::node_id.ne(Id(asking)))
        .select(open_calls::request_id)
        .into_boxed();
    for node_id in alive {
        query = query.filter(open_calls::node_id.ne(node_id));
    }
    let ids: Vec<Id<RequestId>> = query.limit(limit).load(conn)?;
    Ok(ids.into_iter().map(Id::get).collect())
}
