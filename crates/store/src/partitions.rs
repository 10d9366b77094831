//! The monthly partitions of the tables that only grow, on PostgreSQL.
//!
//! Writes then go to the tables and indexes of one month. Rows of a month without a partition are in the default
//! partition, so no write depends on the creation of a partition in time.

use diesel::pg::PgConnection;
use diesel::sql_types::{Array, Binary, Bool, Text};
use diesel::{QueryResult, RunQueryDsl};
use time::{Date, Month};
use tollgate_domain::{Id as DomainId, RequestId, Timestamp};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;

/// The partitioned tables, each with the id by which it is partitioned. An id begins with its creation time.
const TABLES: [(&str, &str); 3] = [
    ("requests", "request_id"),
    ("request_index", "request_id"),
    ("transactions", "transaction_id"),
];
/// The number of months whose partitions are created in advance.
const MONTHS_AHEAD: usize = 2;

/// Creates the missing partitions of this month and the next ones. Must be called in a write transaction of its own
/// that does not wait [long](Conn::write_short_wait) for a lock: while it waits for a reader of the default partition, all
/// others wait for it. SQLite has no partitions.
///
/// # Errors
/// [`StoreError`] when the database fails. Rows go to the default partition until a call succeeds.
pub(crate) fn make_ahead(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    // To attach a partition reads the default partition, and all other transactions wait meanwhile.
    diesel::sql_query("SET LOCAL statement_timeout = '1s'").execute(conn)?;
    let mut month = now.date().replace_day(1).unwrap_or(now.date());
    for _ in 0..=MONTHS_AHEAD {
        let next = month_after(month);
        for (table, id) in TABLES {
            make(conn, table, id, month, next)?;
        }
        month = next;
    }
    Ok(())
}

fn month_after(month: Date) -> Date {
    let year = if month.month() == Month::December { month.year() + 1 } else { month.year() };
    Date::from_calendar_date(year, month.month().next(), 1).unwrap_or(Date::MAX)
}

fn is_there(conn: &mut PgConnection, name: &str) -> QueryResult<bool> {
    let found = diesel::dsl::sql::<Bool>("to_regclass(").bind::<Text, _>(name);
    diesel::select(found.sql(") IS NOT NULL")).get_result::<bool>(conn)
}

fn make(
    conn: &mut PgConnection,
    table: &str,
    id: &str,
    month: Date,
    next: Date,
) -> Result<(), StoreError> {
    let name = partition_name(table, month);
    if is_there(conn, &name)? {
        return Ok(());
    }
    // Only one process creates it.
    dialect::lock_partitions(conn)?;
    if is_there(conn, &name)? {
        return Ok(());
    }
    let [from, to] = [month, next].map(|day| {
        let least = RequestId::least(Timestamp::at_midnight(day));
        format!("'\\x{:032x}'", u128::from_be_bytes(*least.as_bytes()))
    });
    let has_rows = diesel::dsl::sql::<Bool>(&format!(
        "EXISTS (SELECT 1 FROM {table}_default WHERE {id} >= {from} AND {id} < {to})"
    ));
    if diesel::select(has_rows).get_result(conn)? {
        log::warn!("{name} is not made: {table}_default has rows of that month");
        return Ok(());
    }
    // To attach a table locks the default partition only. `CREATE TABLE … PARTITION OF` would lock all.
    for statement in [
        format!("CREATE TABLE {name} (LIKE {table} INCLUDING ALL)"),
        format!("ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})"),
    ] {
        diesel::sql_query(statement).execute(conn)?;
    }
    Ok(())
}

/// Drops the partitions of records of a month, except for the records that stay: they go to the default partition. Must be
/// called in a write transaction that does not wait [long](Conn::write_short_wait) for a lock: while it waits, all others
/// wait for it.
///
/// # Errors
/// [`StoreError`] when the database fails, or when a report reads the partitions.
pub(crate) fn drop_records(
    conn: &mut Conn,
    month: Date,
    staying: &[Id<RequestId>],
) -> Result<(), StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    let mut copied = Vec::new();
    // Copied before a lock is taken, because it takes long. Records of a closed month do not change.
    for table in ["requests", "request_index"] {
        if let Some(name) = partition(conn, table, month)? {
            let copy = copy(table, &name, "WHERE request_id = ANY($1)");
            diesel::sql_query(copy).bind::<Array<Binary>, _>(staying).execute(conn)?;
            copied.push((table, name));
        }
    }
    for (table, name) in copied {
        replace(conn, table, &name)?;
    }
    Ok(())
}

/// Drops the partition of the transactions of a month, when most of them were deleted. The others go to the default
/// partition. Must be called as [`drop_records`].
///
/// # Errors
/// [`StoreError`] when the database fails, or when a report reads the partition.
pub(crate) fn drop_transactions(conn: &mut Conn, month: Date) -> Result<(), StoreError> {
    const TABLE: &str = "transactions";
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    let Some(name) = partition(conn, TABLE, month)? else { return Ok(()) };
    // A node whose clock is wrong may still write to it. It waits for this partition alone.
    for statement in
        [format!("LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE"), copy(TABLE, &name, "")]
    {
        diesel::sql_query(statement).execute(conn)?;
    }
    replace(conn, TABLE, &name)?;
    Ok(())
}

fn partition_name(table: &str, month: Date) -> String {
    format!("{table}_{:04}_{:02}", month.year(), u8::from(month.month()))
}

/// The name of the partition of a month, if there is one.
fn partition(conn: &mut PgConnection, table: &str, month: Date) -> QueryResult<Option<String>> {
    let name = partition_name(table, month);
    Ok(is_there(conn, &name)?.then_some(name))
}

/// The statement that copies rows of a partition.
fn copy(table: &str, name: &str, rows: &str) -> String {
    format!("CREATE TEMPORARY TABLE staying_{table} ON COMMIT DROP AS SELECT * FROM {name} {rows}")
}

/// Drops a partition. The copied rows go to the default partition.
fn replace(conn: &mut PgConnection, table: &str, name: &str) -> QueryResult<()> {
    for statement in [
        format!("ALTER TABLE {table} DETACH PARTITION {name}"),
        format!("DROP TABLE {name}"),
        format!("INSERT INTO {table} SELECT * FROM staying_{table}"),
    ] {
        diesel::sql_query(statement).execute(conn)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_ends_where_the_next_begins() {
        let days = [(2026, Month::January), (2026, Month::November), (2026, Month::December)];
        let next = days.map(|(year, month)| {
            let day = Date::from_calendar_date(year, month, 1).unwrap();
            let next = month_after(day);
            (next.year(), u8::from(next.month()), next.day())
        });
        assert_eq!(next, [(2026, 2, 1), (2026, 12, 1), (2027, 1, 1)]);
    }
}
