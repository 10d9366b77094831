//! The process that serves from a SQLite file.
//!
//! Only one may serve. The lock of a file beside the database excludes others, but that file can be
//! removed. So a process that begins to serve writes a row with the next epoch, and the process before it
//! finds that row.

use diesel::prelude::*;
use tollgate_domain::{NodeId, Timestamp};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::serving;

/// Begins to serve, with the next epoch.
///
/// `lock_file` is the identity of the file whose lock this process holds. [`ServingStart::alone`] is true if the
/// process before held the lock of the same file: then it has ended.
pub(crate) fn begin(
    conn: &mut Conn,
    node_id: NodeId,
    lock_file: &str,
    now: Timestamp,
) -> Result<ServingStart, StoreError> {
    let before: Option<(i64, String)> =
        serving::table.select((serving::epoch, serving::lock_file)).first(conn).optional()?;
    let (last, alone) = match &before {
        Some((epoch, locked)) => (*epoch, locked == lock_file),
        None => (0, true),
    };
    let epoch = last.saturating_add(1);
    diesel::delete(serving::table).execute(conn)?;
    diesel::insert_into(serving::table)
        .values((
            serving::epoch.eq(epoch),
            serving::node_id.eq(Id(node_id)),
            serving::lock_file.eq(lock_file),
            serving::since.eq(now.unix_micros()),
            serving::has_ended.eq(false),
        ))
        .execute(conn)?;
    Ok(ServingStart { epoch, alone })
}

/// The result of [`begin`].
pub(crate) struct ServingStart {
    pub(crate) epoch: i64,
    /// Whether no other process can be serving.
    pub(crate) alone: bool,
}

/// Whether the process that served last called [`end`]; `None` if none ever served.
pub(crate) fn has_ended(conn: &mut Conn) -> Result<Option<bool>, StoreError> {
    Ok(serving::table.select(serving::has_ended).first(conn).optional()?)
}

/// Notes that the process has stopped serving.
pub(crate) fn end(conn: &mut Conn, epoch: i64) -> Result<(), StoreError> {
    let own = serving::table.find(epoch);
    diesel::update(own).set(serving::has_ended.eq(true)).execute(conn)?;
    Ok(())
}

/// The epoch of the process that serves.
pub(crate) fn epoch(conn: &mut Conn) -> Result<Option<i64>, StoreError> {
    Ok(serving::table.select(serving::epoch).first(conn).optional()?)
}
