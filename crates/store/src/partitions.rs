//! The monthly partitions of the tables that have rows of each call, on PostgreSQL.
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
const TABLES: [(&str, &str); 3] = [REQUESTS, REQUEST_INDEX, TRANSACTIONS];
const REQUESTS: (&str, &str) = ("requests", "request_id");
const REQUEST_INDEX: (&str, &str) = ("request_index", "request_id");
const TRANSACTIONS: (&str, &str) = ("transactions", "transaction_id");
/// The number of months whose partitions are created in advance.
const MONTHS_AHEAD: usize = 2;
/// The time for whose months partitions are created later.
const LONGEST_PAST_MS: i64 = 10 * 366 * 24 * 60 * 60 * 1_000;

/// Creates the missing partitions of this month and the next ones. Must be called in a write transaction of its own
/// that does not wait [long](Conn::write_short_wait) for a lock: while it waits for a reader of the default partition, all
/// others wait for it. SQLite has no partitions.
///
/// # Errors
/// [`StoreError`] when the database fails. Rows go to the default partition until a call succeeds.
pub(crate) fn make_ahead(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    let mut month = month_of(now);
    for _ in 0..=MONTHS_AHEAD {
        make_month(conn, month)?;
        month = month_after(month);
    }
    Ok(())
}

/// Creates the missing partitions of the months from that of `first` to that of `last`, at most of ten years. Each month
/// has a transaction of its own. If it fails, its rows go to the default partition. SQLite has no partitions.
pub(crate) fn make_between(conn: &mut Conn, first: Timestamp, last: Timestamp) {
    if matches!(conn, Conn::Sqlite(_)) {
        return;
    }
    // The clock of a node may have been wrong.
    let oldest = last.plus_millis(-LONGEST_PAST_MS);
    let (mut month, last) = (month_of(first.max(oldest)), month_of(last));
    while month <= last {
        let made: Result<(), StoreError> = conn.write_short_wait(|conn| make_month(conn, month));
        if let Err(cause) = made {
            log::warn!("no partitions of the month of {month}: {cause}");
        }
        month = month_after(month);
    }
}

fn make_month(conn: &mut Conn, month: Date) -> Result<(), StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    // To attach a partition reads the default partition, and all other transactions wait meanwhile.
    diesel::sql_query("SET LOCAL statement_timeout = '1s'").execute(conn)?;
    for (table, id) in TABLES {
        make(conn, &Partition::of(table, id, month))?;
    }
    Ok(())
}

/// The first day of the month of an instant.
fn month_of(at: Timestamp) -> Date {
    at.date().replace_day(1).unwrap_or(at.date())
}

fn month_after(month: Date) -> Date {
    let year = if month.month() == Month::December { month.year() + 1 } else { month.year() };
    Date::from_calendar_date(year, month.month().next(), 1).unwrap_or(Date::MAX)
}

fn is_there(conn: &mut PgConnection, name: &str) -> QueryResult<bool> {
    let found = diesel::dsl::sql::<Bool>("to_regclass(").bind::<Text, _>(name);
    diesel::select(found.sql(") IS NOT NULL")).get_result::<bool>(conn)
}

fn make(conn: &mut PgConnection, partition: &Partition) -> Result<(), StoreError> {
    let Partition { table, name, .. } = partition;
    if is_there(conn, name)? {
        return Ok(());
    }
    // Only one process creates it.
    dialect::lock_partitions(conn)?;
    if is_there(conn, name)? {
        return Ok(());
    }
    let has_rows = diesel::dsl::sql::<Bool>(&format!(
        "EXISTS (SELECT 1 FROM {table}_default WHERE {})",
        partition.bounds()
    ));
    if diesel::select(has_rows).get_result(conn)? {
        log::warn!("{name} is not made: {table}_default has rows of that month");
        return Ok(());
    }
    for statement in
        [format!("CREATE TABLE {name} (LIKE {table} INCLUDING ALL)"), partition.attach()]
    {
        diesel::sql_query(statement).execute(conn)?;
    }
    Ok(())
}

/// Replaces the partitions of the records of a month by those that have only the records that stay. Must be called in a write
/// transaction that does not wait [long](Conn::write_short_wait) for a lock: while it waits, all others wait for it.
///
/// # Errors
/// [`StoreError`] when the database fails, or when a report reads the partitions.
pub(crate) fn drop_records(
    conn: &mut Conn,
    month: Date,
    staying: &[Id<RequestId>],
) -> Result<(), StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    // Records of a closed month do not change.
    let rows = "WHERE request_id = ANY($1)";
    let mut left = Vec::new();
    for (table, id) in [REQUESTS, REQUEST_INDEX] {
        let partition = Partition::of(table, id, month);
        if is_there(conn, &partition.name)? {
            diesel::sql_query(partition.make_rest()).execute(conn)?;
            let copy = diesel::sql_query(partition.copy_rest(rows));
            copy.bind::<Array<Binary>, _>(staying).execute(conn)?;
            left.push(partition);
        }
    }
    for partition in left {
        partition.replace_by_rest(conn)?;
    }
    Ok(())
}

/// Replaces the partition of the transactions of a month, of which most were deleted, by one that has the others. Must be
/// called as [`drop_records`].
///
/// # Errors
/// [`StoreError`] when the database fails, or when a report reads the partition.
pub(crate) fn drop_transactions(conn: &mut Conn, month: Date) -> Result<(), StoreError> {
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    let (table, id) = TRANSACTIONS;
    let partition = Partition::of(table, id, month);
    if !is_there(conn, &partition.name)? {
        return Ok(());
    }
    for statement in [
        // The server vacuums it, because many rows were deleted, and ends that after a second.
        "SET LOCAL lock_timeout = '5s'".to_owned(),
        // A node whose clock is wrong may still write to it. It waits for this partition alone.
        format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", partition.name),
        "SET LOCAL lock_timeout = '100ms'".to_owned(),
        partition.make_rest(),
        partition.copy_rest(""),
    ] {
        diesel::sql_query(statement).execute(conn)?;
    }
    partition.replace_by_rest(conn)?;
    Ok(())
}

/// A partition of a month.
struct Partition {
    table: &'static str,
    name: String,
    id: &'static str,
    /// The least id of the month and of the next one, in SQL.
    from: String,
    to: String,
}

impl Partition {
    fn of(table: &'static str, id: &'static str, month: Date) -> Self {
        let [from, to] = [month, month_after(month)].map(|day| {
            let least = RequestId::least(Timestamp::at_midnight(day));
            format!("'\\x{:032x}'", u128::from_be_bytes(*least.as_bytes()))
        });
        let name = format!("{table}_{:04}_{:02}", month.year(), u8::from(month.month()));
        Self { table, name, id, from, to }
    }

    /// The condition of its rows.
    fn bounds(&self) -> String {
        let Self { id, from, to, .. } = self;
        format!("{id} >= {from} AND {id} < {to}")
    }

    /// The statement that attaches a table as this partition. That locks the default partition only. `CREATE TABLE …
    /// PARTITION OF` would lock all.
    fn attach(&self) -> String {
        let Self { table, name, from, to, .. } = self;
        format!("ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})")
    }

    /// The statement that makes a table for the rows that stay. It is checked now what attaching would check under a lock.
    fn make_rest(&self) -> String {
        let Self { table, name, .. } = self;
        format!(
            "CREATE TABLE {name}_rest (LIKE {table} INCLUDING ALL, CONSTRAINT rest CHECK ({}))",
            self.bounds()
        )
    }

    fn copy_rest(&self, rows: &str) -> String {
        format!("INSERT INTO {0}_rest SELECT * FROM {0} {rows}", self.name)
    }

    /// Puts the rows that stay in its place, if there are any.
    fn replace_by_rest(&self, conn: &mut PgConnection) -> QueryResult<()> {
        let Self { table, name, .. } = self;
        let rest = diesel::dsl::sql::<Bool>(&format!("EXISTS (SELECT 1 FROM {name}_rest)"));
        let mut statements = vec![
            // All calls wait from here on.
            "SET LOCAL statement_timeout = '1s'".to_owned(),
            format!("ALTER TABLE {table} DETACH PARTITION {name}"),
            format!("DROP TABLE {name}"),
        ];
        match diesel::select(rest).get_result(conn)? {
            true => statements.extend([
                format!("ALTER TABLE {name}_rest RENAME TO {name}"),
                self.attach(),
                format!("ALTER TABLE {name} DROP CONSTRAINT rest"),
            ]),
            false => statements.push(format!("DROP TABLE {name}_rest")),
        }
        for statement in statements {
            diesel::sql_query(statement).execute(conn)?;
        }
        Ok(())
    }
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
