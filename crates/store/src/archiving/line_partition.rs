//! The ledger lines of a month that leave PostgreSQL with their partition.
//!
//! The lines that stay, and the sums of the others, are written to tables beside the partition, some at a time. Then a short
//! transaction puts them in its place.

use diesel::connection::SimpleConnection as _;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Text};
use tollgate_domain::{Clock, NodeId};

use super::deleting::until_unread;
use super::lease;
use super::month::MonthIds;
use super::pace::ReadPace;
use super::transactions::{LineGroup, before_all, lines_after};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::partitions::{self, Partition};
use crate::rows::{ArchivedLinesRow, TransactionRow, to_json};

/// The rows of `archived_transactions` that are added when the partition is replaced.
const SUMS: &str = "archived_transactions_next";

/// The result for the partition of the lines of a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinePartition {
    /// The lines of the month are in the default partition, if there are any.
    Missing,
    /// It is in use. A later run tries again.
    Busy,
    Replaced,
}

/// The numbers of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RowCounts {
    /// The rows of the partition.
    lines: i64,
    /// The rows of the tables beside it.
    staying: i64,
    sums: i64,
}

/// Puts the lines that stay in the place of the partition of a month, and sums in the place of the lines that leave.
pub(super) fn replace(
    conn: &mut Conn,
    node_id: NodeId,
    ids: MonthIds,
    clock: &Clock,
) -> Result<LinePartition, StoreError> {
    let partition = conn.write_bounded(|conn| {
        lease::extend(conn, node_id, clock.now())?;
        prepare(conn, ids)
    })?;
    let Some(partition) = partition else { return Ok(LinePartition::Missing) };
    let (mut groups, mut after, mut pace) = (Vec::new(), before_all(), ReadPace::new());
    let mut counts = RowCounts::default();
    loop {
        pace.pause();
        let lines = lines_after(conn, ids, after)?;
        let mut staying = Vec::new();
        for (line, leaves) in &lines {
            after = (line.wallet_id, line.number);
            match leaves {
                true => LineGroup::add_line(&mut groups, ids, line),
                false => staying.push(line),
            }
        }
        // The next lines may go on with the last group.
        let unfinished = if lines.is_empty() { None } else { groups.pop() };
        let sums = Vec::from_iter(groups.iter().flat_map(|group| group.rows(ids)));
        groups = Vec::from_iter(unfinished);
        counts = counts.plus(lines.len(), staying.len(), sums.len());
        conn.write_bounded(|conn| {
            lease::extend(conn, node_id, clock.now())?;
            write_beside(conn, &partition, &staying, &sums)
        })?;
        if lines.is_empty() {
            break;
        }
    }
    let replaced =
        until_unread(conn, node_id, clock, |conn| put_in_place(conn, &partition, &counts));
    Ok(match replaced {
        Ok(()) => LinePartition::Replaced,
        Err(cause) => {
            log::warn!("ledger lines of {} have not left: {cause}", ids.month);
            LinePartition::Busy
        }
    })
}

impl RowCounts {
    fn plus(self, lines: usize, staying: usize, sums: usize) -> Self {
        let more = |count: i64, more: usize| count + i64::try_from(more).unwrap_or(i64::MAX);
        Self {
            lines: more(self.lines, lines),
            staying: more(self.staying, staying),
            sums: more(self.sums, sums),
        }
    }
}

/// Makes empty tables beside the partition of a month, if it has one.
fn prepare(conn: &mut Conn, ids: MonthIds) -> Result<Option<Partition>, StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(None) };
    let partition = Partition::find(conn, partitions::TRANSACTIONS, ids.from.date())?;
    if let Some(partition) = &partition {
        partition.make_rest(conn)?;
        conn.batch_execute(&format!(
            "DROP TABLE IF EXISTS {SUMS}; CREATE TABLE {SUMS} (LIKE archived_transactions)"
        ))?;
    }
    Ok(partition)
}

/// Writes rows to the tables beside a partition.
fn write_beside(
    conn: &mut Conn,
    partition: &Partition,
    staying: &[&TransactionRow],
    sums: &[ArchivedLinesRow],
) -> Result<(), StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    partition.copy_to_rest(conn, "wallet_id, number", &staying)?;
    let rows = format!("SELECT * FROM json_populate_recordset(NULL::{SUMS}, $1::json)");
    diesel::sql_query(format!("INSERT INTO {SUMS} {rows}"))
        .bind::<Text, _>(to_json(&sums))
        .execute(conn)?;
    Ok(())
}

/// Puts the tables beside a partition in its place, if they have all of their rows.
fn put_in_place(
    conn: &mut Conn,
    partition: &Partition,
    written: &RowCounts,
) -> Result<(), StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    // The server may be vacuuming it.
    conn.batch_execute(&format!(
        "SET LOCAL lock_timeout = '5s'; LOCK TABLE {SUMS} IN SHARE ROW EXCLUSIVE MODE"
    ))?;
    partition.lock(conn)?;
    let (lines, staying) = partition.count(conn)?;
    let sums = diesel::select(sql::<BigInt>(&format!("(SELECT count(*) FROM {SUMS})")));
    // A node whose clock is wrong may have written lines, and a failover may have lost rows.
    if (RowCounts { lines, staying, sums: sums.get_result(conn)? }) != *written {
        return Err(StoreError::Archive("rows were written or lost meanwhile".to_owned()));
    }
    conn.batch_execute(&format!(
        "INSERT INTO archived_transactions SELECT * FROM {SUMS}; DROP TABLE {SUMS}"
    ))?;
    Ok(partition.replace_by_rest(conn)?)
}
