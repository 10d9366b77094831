//! Nodes and their leases.
//!
//! An open call names the node that will settle it. Another node may end the call only when that lease has
//! lapsed, and not for its age alone.

use diesel::prelude::*;
use tollgate_domain::{NodeId, RequestId, Timestamp};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::{jobs, nodes, open_calls};

/// Begins the lease of a node, or renews it.
pub(crate) fn renew(conn: &mut Conn, node_id: NodeId, until: Timestamp) -> Result<(), StoreError> {
    let lease = nodes::lease_until.eq(until.unix_micros());
    if diesel::update(nodes::table.find(Id(node_id))).set(lease).execute(conn)? == 0 {
        diesel::insert_into(nodes::table)
            .values((nodes::node_id.eq(Id(node_id)), lease))
            .execute(conn)?;
    }
    Ok(())
}

/// The number of nodes with a current lease.
pub(crate) fn count(conn: &mut Conn, now: Timestamp) -> Result<u32, StoreError> {
    let alive = nodes::table.filter(nodes::lease_until.ge(now.unix_micros()));
    let alive: i64 = alive.count().get_result(conn)?;
    Ok(u32::try_from(alive).unwrap_or(u32::MAX))
}

/// Ends the lease of a node that has no open calls.
pub(crate) fn retire(conn: &mut Conn, node_id: NodeId) -> Result<(), StoreError> {
    diesel::delete(nodes::table.find(Id(node_id))).execute(conn)?;
    Ok(())
}

/// Ends every lease: for a process that has the store to itself.
pub(crate) fn retire_all(conn: &mut Conn) -> Result<(), StoreError> {
    diesel::delete(nodes::table).execute(conn)?;
    Ok(())
}

/// The open calls of a node, without those of jobs, which no node owns.
pub(crate) fn open_calls(conn: &mut Conn, node_id: NodeId) -> Result<Vec<RequestId>, StoreError> {
    let ids: Vec<Id<RequestId>> = open_calls::table
        .filter(open_calls::node_id.eq(Id(node_id)))
        .filter(diesel::dsl::not(of_job()))
        .select(open_calls::request_id)
        .load(conn)?;
    Ok(ids.into_iter().map(Id::get).collect())
}

/// Open calls of other nodes whose lease has lapsed or is gone, at most `limit`, without those of jobs.
///
/// The node `asking` counts as alive, whatever its lease.
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
        .filter(diesel::dsl::not(of_job()))
        .select(open_calls::request_id)
        .into_boxed();
    for node_id in alive {
        query = query.filter(open_calls::node_id.ne(node_id));
    }
    let ids: Vec<Id<RequestId>> = query.limit(limit).load(conn)?;
    Ok(ids.into_iter().map(Id::get).collect())
}

/// Whether an open call is that of a job. It is settled when the job has ended, by any node.
#[diesel::dsl::auto_type(no_type_alias)]
fn of_job() -> _ {
    diesel::dsl::exists(jobs::table.filter(jobs::request_id.eq(open_calls::request_id)))
}
