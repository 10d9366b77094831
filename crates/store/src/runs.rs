//! Runs of a merchant, with their counters.

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, MerchantId, Run, RunAccountId, SpendKeyId, Timestamp};

use crate::conn::{Conn, each_database};
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::page::Page;
use crate::rows::{RunRow, SpendCountersRow};
use crate::schema::{runs, spend_counters};

/// A filter for runs. All given conditions must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Only runs of this spend key.
    pub spend_key_id: Option<SpendKeyId>,
    /// Only runs that belong to this customer and to no spend key.
    pub connection_id: Option<ConnectionId>,
}

/// Returns a merchant's run.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: RunAccountId,
) -> Result<Option<Run>, StoreError> {
    let found: Option<(RunRow, SpendCountersRow)> = runs::table
        .inner_join(spend_counters::table)
        .filter(runs::account_id.eq(Id(id)))
        .filter(runs::merchant_id.eq(Id(merchant_id)))
        .select((RunRow::as_select(), SpendCountersRow::as_select()))
        .first(conn)
        .optional()?;
    Ok(found.map(run))
}

/// Returns a merchant's runs, by their first calls, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: RunFilter,
    page: &Page<RunAccountId>,
) -> Result<Vec<Run>, StoreError> {
    let mut query = runs::table
        .inner_join(spend_counters::table)
        .filter(runs::merchant_id.eq(Id(merchant_id)))
        .order((runs::first_at.desc(), runs::account_id.desc()))
        .limit(page.rows())
        .select((RunRow::as_select(), SpendCountersRow::as_select()))
        .into_boxed();
    if let Some(id) = filter.spend_key_id {
        query = query.filter(runs::spend_key_id.eq(Id(id)));
    }
    if let Some(id) = filter.connection_id {
        query = query.filter(runs::connection_id.eq(Id(id)));
    }
    if let Some(id) = page.after {
        // The list ends after a run that was forgotten meanwhile: those after it are older.
        let Some(after) = find(conn, merchant_id, id)?.and_then(|run| run.first_at) else {
            return Ok(Vec::new());
        };
        let at = after.unix_micros();
        query = query.filter(
            runs::first_at.lt(at).or(runs::first_at.eq(at).and(runs::account_id.lt(Id(id)))),
        );
    }
    let rows: Vec<(RunRow, SpendCountersRow)> = query.load(conn)?;
    Ok(rows.into_iter().map(run).collect())
}

fn run((row, counters): (RunRow, SpendCountersRow)) -> Run {
    row.with_counters((&counters).into())
}

/// The time after its last call for which a run is kept.
const KEPT_MILLIS: i64 = 30 * 24 * 60 * 60 * 1_000;

/// The most runs that are deleted at once. SQLite has a limit of bound values.
const AT_ONCE: i64 = 10_000;

/// Deletes runs whose last call was 30 days ago. Returns their number, at most 10,000.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn forget_old(conn: &mut Conn, now: Timestamp) -> Result<usize, StoreError> {
    let last = now.plus_millis(-KEPT_MILLIS).unix_micros();
    let old = runs::table
        .inner_join(spend_counters::table)
        .filter(spend_counters::last_used_at.lt(last))
        .filter(spend_counters::total_held.eq(0))
        .select(spend_counters::account_id)
        .limit(AT_ONCE);
    let old: Vec<Id<AnyId>> = match conn {
        Conn::Sqlite(conn) => old.load(conn)?,
        // A run that is locked is in use.
        Conn::Postgres(conn) => old.for_update().skip_locked().load(conn)?,
    };
    // The row of a run is deleted with its counters.
    Ok(each_database!(conn, conn => {
        diesel::delete(spend_counters::table.filter(spend_counters::account_id.eq_any(&old)))
            .execute(conn)
    })?)
}
