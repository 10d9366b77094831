//! The lease of the process that works on the archive, and the instant until which months are closed.

use diesel::dsl::exists;
use diesel::prelude::*;
use tollgate_domain::{Id as _, NodeId, Timestamp};

use crate::conn::{Conn, each_database};
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::archive_state;

/// The lease of a process that has died lapses within this time.
const LEASE_MS: i64 = 60_000;

/// Takes the lease, unless another process has it.
pub(crate) fn take(conn: &mut Conn, node_id: NodeId, now: Timestamp) -> Result<bool, StoreError> {
    let database_id: String =
        NodeId::generate(now).as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let first = (
        archive_state::number.eq(1),
        archive_state::database_id.eq(database_id),
        archive_state::closed_until.eq(0),
        archive_state::lease_until.eq(0),
    );
    each_database!(conn, conn => diesel::insert_into(archive_state::table)
        .values(first)
        .on_conflict_do_nothing()
        .execute(conn))?;
    let is_free = archive_state::lease_until
        .lt(now.unix_micros())
        .or(archive_state::holder.eq(Some(Id(node_id))).assume_not_null());
    let taken = diesel::update(archive_state::table.filter(is_free))
        .set((
            archive_state::holder.eq(Some(Id(node_id))),
            archive_state::lease_until.eq(now.plus_millis(LEASE_MS).unix_micros()),
        ))
        .execute(conn)?;
    Ok(taken > 0)
}

/// Extends the lease. Every transaction of the work does so first.
///
/// # Errors
/// [`StoreError::Archive`] if another process has it.
pub(super) fn extend(conn: &mut Conn, node_id: NodeId, now: Timestamp) -> Result<(), StoreError> {
    let own = archive_state::table.filter(archive_state::holder.eq(Some(Id(node_id))));
    let extended = diesel::update(own)
        .set(archive_state::lease_until.eq(now.plus_millis(LEASE_MS).unix_micros()))
        .execute(conn)?;
    match extended {
        0 => Err(StoreError::Archive("another process works on the archive".to_owned())),
        _ => Ok(()),
    }
}

/// Fails unless this process has the lease, and has it for a while.
///
/// # Errors
/// [`StoreError::Archive`] if it has not.
pub(super) fn check(conn: &mut Conn, node_id: NodeId, now: Timestamp) -> Result<(), StoreError> {
    let held: Option<i64> = archive_state::table
        .filter(archive_state::holder.eq(Some(Id(node_id))))
        .filter(archive_state::lease_until.gt(now.plus_millis(LEASE_MS / 4).unix_micros()))
        .select(archive_state::lease_until)
        .first(conn)
        .optional()?;
    held.map(drop)
        .ok_or_else(|| StoreError::Archive("the lease of the archive has lapsed".to_owned()))
}

/// Gives the lease back.
pub(crate) fn release(conn: &mut Conn, node_id: NodeId) -> Result<(), StoreError> {
    diesel::update(archive_state::table.filter(archive_state::holder.eq(Some(Id(node_id)))))
        .set((archive_state::holder.eq(None::<Id<NodeId>>), archive_state::lease_until.eq(0)))
        .execute(conn)?;
    Ok(())
}

/// Closes all months before an instant.
pub(super) fn close(conn: &mut Conn, until: Timestamp) -> Result<(), StoreError> {
    diesel::update(archive_state::table)
        .set(archive_state::closed_until.eq(until.unix_micros()))
        .execute(conn)?;
    Ok(())
}

/// The instant before which all months are closed. `None` before the first one.
pub(super) fn closed_until(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    let until: Option<i64> =
        archive_state::table.select(archive_state::closed_until).first(conn).optional()?;
    Ok(until.filter(|until| *until > 0).map(Timestamp::from_unix_micros))
}

/// Whether a process has the lease.
pub(crate) fn is_held(conn: &mut Conn, now: Timestamp) -> Result<bool, StoreError> {
    let held = archive_state::table.filter(archive_state::lease_until.ge(now.unix_micros()));
    Ok(diesel::select(exists(held)).get_result(conn)?)
}

/// The id of this database in manifests.
pub(super) fn database_id(conn: &mut Conn) -> Result<String, StoreError> {
    Ok(archive_state::table.select(archive_state::database_id).first(conn)?)
}
