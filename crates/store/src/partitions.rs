//! The monthly partitions of the tables that have rows of each call, on PostgreSQL.
//!
//! Writes then go to the tables and indexes of one month. Rows of a month without a partition are in the default
//! partition, so no write depends on the creation of a partition in time.

use diesel::connection::SimpleConnection as _;
use diesel::dsl::sql;
use diesel::pg::PgConnection;
use diesel::sql_types::{BigInt, Bool, Text};
use diesel::{QueryResult, RunQueryDsl};
use serde::Serialize;
use time::{Date, Month};
use tollgate_domain::{Id as DomainId, RequestId, Timestamp};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::rows::to_json;

/// A partitioned table.
#[derive(Clone, Copy)]
pub(crate) struct PartitionedTable {
    name: &'static str,
    /// The id by which it is partitioned. An id begins with its creation time.
    id: &'static str,
}

pub(crate) const REQUESTS: PartitionedTable =
    PartitionedTable { name: "requests", id: "request_id" };
pub(crate) const REQUEST_INDEX: PartitionedTable =
    PartitionedTable { name: "request_index", id: "request_id" };
pub(crate) const TRANSACTIONS: PartitionedTable =
    PartitionedTable { name: "transactions", id: "transaction_id" };
const TABLES: [PartitionedTable; 3] = [REQUESTS, REQUEST_INDEX, TRANSACTIONS];
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
    for table in TABLES {
        make(conn, &Partition::of(table, month))?;
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
    let found = sql::<Bool>("to_regclass(").bind::<Text, _>(name);
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
    let has_rows = sql::<Bool>(&format!(
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

/// A partition of a month.
pub(crate) struct Partition {
    table: &'static str,
    name: String,
    id: &'static str,
    /// The least id of the month and of the next one, in SQL.
    from: String,
    to: String,
}

impl Partition {
    /// The partition of a month. `None` if the rows of the month, if there are any, are in the default partition.
    pub(crate) fn find(
        conn: &mut PgConnection,
        table: PartitionedTable,
        month: Date,
    ) -> QueryResult<Option<Self>> {
        let partition = Self::of(table, month);
        Ok(is_there(conn, &partition.name)?.then_some(partition))
    }

    fn of(PartitionedTable { name: table, id }: PartitionedTable, month: Date) -> Self {
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

    /// Makes an empty table for the rows that stay, in the place of that of an earlier attempt. It is checked now what
    /// attaching would check under a lock.
    pub(crate) fn make_rest(&self, conn: &mut PgConnection) -> QueryResult<()> {
        let Self { table, name, .. } = self;
        conn.batch_execute(&format!(
            "DROP TABLE IF EXISTS {name}_rest; \
             CREATE TABLE {name}_rest (LIKE {table} INCLUDING ALL, CONSTRAINT rest CHECK ({}))",
            self.bounds()
        ))
    }

    /// Copies rows to the table of those that stay: the rows with the keys of these objects.
    pub(crate) fn copy_to_rest(
        &self,
        conn: &mut PgConnection,
        keys: &str,
        rows: &impl Serialize,
    ) -> QueryResult<()> {
        let name = &self.name;
        diesel::sql_query(format!(
            "INSERT INTO {name}_rest SELECT {name}.* FROM {name} \
             JOIN json_populate_recordset(NULL::{name}, $1::json) AS staying USING ({keys})"
        ))
        .bind::<Text, _>(to_json(rows))
        .execute(conn)
        .map(drop)
    }

    /// Waits until the server does not vacuum it and the table of rows that stay, and keeps writers out until the transaction
    /// ends. A node whose clock is wrong may still write to it, and waits for this partition alone.
    pub(crate) fn lock(&self, conn: &mut PgConnection) -> QueryResult<()> {
        conn.batch_execute(&format!(
            "SET LOCAL lock_timeout = '5s'; \
             LOCK TABLE {0}, {0}_rest IN SHARE ROW EXCLUSIVE MODE; \
             SET LOCAL lock_timeout = '100ms'",
            self.name
        ))
    }

    /// The number of its rows, and of those that were copied.
    pub(crate) fn count(&self, conn: &mut PgConnection) -> QueryResult<(i64, i64)> {
        let rows = |name: &str| sql::<BigInt>(&format!("(SELECT count(*) FROM {name})"));
        let rest = format!("{}_rest", self.name);
        diesel::select((rows(&self.name), rows(&rest))).get_result(conn)
    }

    /// Puts the copied rows in its place, if there are any. Must be called in a write transaction that does not wait
    /// [long](Conn::write_short_wait) for a lock: while it waits, all others wait for it.
    ///
    /// # Errors
    /// When the database fails, or when a report reads the partition.
    pub(crate) fn replace_by_rest(&self, conn: &mut PgConnection) -> QueryResult<()> {
        let Self { table, name, .. } = self;
        let rest = sql::<Bool>(&format!("EXISTS (SELECT 1 FROM {name}_rest)"));
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
