//! The move of a merchant to the database of another cell.
//!
//! Rows are read as JSON and written as they are, so the two databases may be of different kinds. What no longer changes is
//! copied first, while calls go on. Then the merchant's calls and operations are refused until the rest has been copied,
//! in one transaction of the other database. From then on the merchant is there, and its rows here rest as they are.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::time::{Duration, Instant};

use diesel::connection::DefaultLoadingMode;
use diesel::pg::PgRowByRowLoadingMode;
use diesel::prelude::*;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Text};
use tollgate_domain::{CellNumber, Id as _, MerchantId, NodeId, RequestId, Timestamp};

use crate::archiving::lease;
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::files::{beside, private};
use crate::ids::Id;
use crate::readers::Readers;
use crate::schema::{archived_months, archived_sums, jobs, open_calls};
use crate::store::Store;
use crate::tables::merchants::{cell_of, set_cell};
use crate::{cells, merchants};

/// The most rows, and about the most bytes, of one statement.
const ROWS_AT_ONCE: usize = 5_000;
const BYTES_AT_ONCE: usize = 4 << 20;
/// The time after which an operation that had begun before the pause has ended.
const GRACE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// Rows with ids of the last hour may still be written by transactions that have begun.
const SETTLED_AFTER_MILLIS: i64 = 60 * 60 * 1_000;

/// A table with rows of merchants.
#[derive(Clone, Copy)]
struct MovedTable {
    name: &'static str,
    /// The id by which rows that no longer change are copied before the pause.
    old_rows: Option<&'static str>,
    /// The column that the other database fills itself.
    numbered: Option<&'static str>,
    /// Whether rows refer to rows of the same table, so that all are inserted at once.
    is_tree: bool,
}

impl MovedTable {
    const fn new(name: &'static str) -> Self {
        Self { name, old_rows: None, numbered: None, is_tree: false }
    }

    const fn growing(name: &'static str, id: &'static str) -> Self {
        Self { old_rows: Some(id), ..Self::new(name) }
    }

    const fn numbered(name: &'static str, column: &'static str) -> Self {
        Self { numbered: Some(column), ..Self::new(name) }
    }

    const fn tree(name: &'static str) -> Self {
        Self { is_tree: true, ..Self::new(name) }
    }

    /// Adds the table to an error of its rows.
    fn failed(self, error: MoveError) -> MoveError {
        match error {
            MoveError::Store(cause) => MoveError::Copy { table: self.name, cause },
            other => other,
        }
    }
}

/// The tables, so that a row refers to rows before it. Not among them are sessions, which carry the number of the old cell;
/// the queue of the roll-ups, which is folded before; and what belongs to the database and not to a merchant.
const TABLES: &[MovedTable] = &[
    MovedTable::new("merchants"),
    MovedTable::new("secret_keys"),
    MovedTable::new("wallets"),
    MovedTable::tree("budgets"),
    MovedTable::new("connections"),
    MovedTable::new("meters"),
    MovedTable::new("meter_versions"),
    MovedTable::new("tier_counters"),
    MovedTable::new("spend_keys"),
    MovedTable::new("spend_counters"),
    MovedTable::new("imports"),
    MovedTable::new("runs"),
    MovedTable::new("subscription_configs"),
    MovedTable::new("subscription_config_versions"),
    MovedTable::new("credit_bundles"),
    MovedTable::new("subscriptions"),
    MovedTable::new("plan_charges"),
    MovedTable::new("open_calls"),
    MovedTable::new("jobs"),
    MovedTable::new("provider_objects"),
    MovedTable::growing("requests", "request_id"),
    MovedTable::growing("request_index", "request_id"),
    MovedTable::growing("transactions", "transaction_id"),
    MovedTable::new("transaction_keys"),
    MovedTable::new("corrections"),
    MovedTable::new("repricings"),
    MovedTable::new("reported_usage"),
    MovedTable::new("usage_series"),
    MovedTable::new("usage_rollups"),
    MovedTable::new("refusals"),
    MovedTable::new("refusal_counts"),
    MovedTable::new("missing_prices"),
    MovedTable::new("idempotent_answers"),
    MovedTable::new("webhooks"),
    MovedTable::numbered("events", "number"),
    MovedTable::new("deliveries"),
];

/// The reason that a merchant is not moved. It stays where it is, and its calls go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum MoveError {
    /// A database failed.
    Store(StoreError),
    /// Both databases are of this cell.
    SameCell(CellNumber),
    /// The merchant is not in this database.
    NotHere,
    /// The merchant has not begun to move.
    NotMoving,
    /// The merchant has moved to this cell.
    HasMoved(i32),
    /// The merchant has moved to this cell, which is another one, or a move there was interrupted.
    MovesTo(i32),
    /// Another command moves the merchant.
    Busy,
    /// The other database has neither a number nor a merchant.
    NoCell,
    /// The rows of this table cannot be copied.
    Copy {
        /// The table.
        table: &'static str,
        /// The error of the database.
        cause: StoreError,
    },
    /// The other database has the merchant.
    IsThere,
    /// The merchant has records in the archive, which stay with this cell.
    HasArchive,
    /// Another process archives a month of the other database.
    Archives,
    /// This number of calls did not end in time.
    OpenCalls(i64),
    /// The databases have different numbers of rows in this table.
    Differs {
        /// The table.
        table: &'static str,
        /// The rows in this database.
        here: i64,
        /// The rows in the other database.
        there: i64,
    },
}

/// A completed move.
#[derive(Clone, Debug)]
pub struct MoveReport {
    /// The rows of each table.
    pub rows: BTreeMap<&'static str, i64>,
    /// The time for which calls and operations of the merchant were refused.
    pub pause: Duration,
}

impl From<StoreError> for MoveError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

impl From<diesel::result::Error> for MoveError {
    fn from(cause: diesel::result::Error) -> Self {
        Self::Store(cause.into())
    }
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(cause) => cause.fmt(f),
            Self::SameCell(cell) => write!(f, "both databases are of cell {cell}"),
            Self::NotHere => f.write_str("there is no such merchant"),
            Self::NotMoving => f.write_str("there is no such merchant that has begun to move"),
            Self::HasMoved(cell) => write!(f, "the merchant has moved to cell {cell}"),
            Self::MovesTo(cell) => write!(f, "the merchant has moved, or moves, to cell {cell}"),
            Self::Busy => {
                f.write_str("another command moves the merchant, or one of the same file")
            }
            Self::NoCell => f.write_str(
                "the other database is of no cell yet: serve it with `cell` in its configuration",
            ),
            Self::Copy { table, cause } => {
                write!(f, "the rows of {table} cannot be copied: {cause:?}")
            }
            Self::IsThere => f.write_str("the other database has the merchant"),
            Self::HasArchive => f.write_str("the merchant has records in the archive of this cell"),
            Self::Archives => {
                f.write_str("a month of the other database is being archived: move it afterwards")
            }
            Self::OpenCalls(count) => write!(f, "{count} calls of the merchant have not ended"),
            Self::Differs { table, here, there } => {
                write!(f, "{table} has {here} rows here and {there} in the other database")
            }
        }
    }
}

impl std::error::Error for MoveError {}

/// The old and the new part of the rows of a merchant.
#[derive(Clone, Copy)]
enum RowPart {
    Old,
    Rest,
    All,
}

/// A merchant that moves, and the least id of a row that may still change.
#[derive(Clone, Copy)]
struct Moving {
    merchant_id: MerchantId,
    changing_from: RequestId,
}

impl Store {
    /// Moves a merchant to the database of another cell, or completes a move that was interrupted. Its calls and operations
    /// are refused with [`StoreError::Unavailable`] until open calls have ended, but at most for `patience`, and the rest is
    /// copied.
    ///
    /// # Errors
    /// [`MoveError`]. The merchant then stays, unless the other database could not say that it has committed.
    pub async fn move_merchant(
        &self,
        target: &Self,
        merchant_id: MerchantId,
        patience: Duration,
    ) -> Result<MoveReport, MoveError> {
        let _lock = self.move_lock(merchant_id).await?;
        let moved = self.move_locked(target, merchant_id, patience).await;
        if moved.is_err() {
            self.take_back(target, merchant_id).await?;
        }
        moved
    }

    async fn move_locked(
        &self,
        target: &Self,
        merchant_id: MerchantId,
        patience: Duration,
    ) -> Result<MoveReport, MoveError> {
        // The index of old records must not grow any more.
        self.fold().await?;
        let now = self.0.context.clock.now();
        let begin = move |from: &mut Conn, to: &mut Conn| {
            let cell = check(from, to, merchant_id)?;
            let oldest = oldest_open_call(from, merchant_id)?;
            let settled = RequestId::least(now.plus_millis(-SETTLED_AFTER_MILLIS));
            let changing_from = oldest.map_or(settled, |oldest| oldest.min(settled));
            let moving = Moving { merchant_id, changing_from };
            // Of an attempt before this one.
            remove_old_rows(to, merchant_id)?;
            for table in TABLES.iter().filter(|table| table.old_rows.is_some()) {
                copy(from, to, *table, moving, RowPart::Old)
                    .map_err(|error| table.failed(error))?;
            }
            Ok((cell, moving))
        };
        let (cell, moving) = self.with_both(target, begin).await?;
        let begun = Instant::now();
        self.set_cell(merchant_id, Some(cell)).await?;
        let rows = self.move_rest(target, moving, patience).await?;
        Ok(MoveReport { rows, pause: begun.elapsed() })
    }

    /// Serves a merchant here again whose move was interrupted. No other database may have it: without that one, nothing
    /// can tell whether it does.
    ///
    /// # Errors
    /// [`MoveError::NotMoving`] for a merchant that has not begun to move, and those of [`Store::move_merchant`].
    pub async fn take_merchant_back(&self, merchant_id: MerchantId) -> Result<(), MoveError> {
        let _lock = self.move_lock(merchant_id).await?;
        match self.read(move |conn| cell_of(conn, merchant_id)).await? {
            Some(_) => Ok(self.set_cell(merchant_id, None).await?),
            None => Err(MoveError::NotMoving),
        }
    }

    async fn move_lock(&self, merchant_id: MerchantId) -> Result<MoveLock, MoveError> {
        let (from, merchant) = (self.0.readers.clone(), merchant_id.to_string());
        let locked = tokio::task::spawn_blocking(move || MoveLock::take(&from, &merchant));
        locked.await.map_err(interrupted)?
    }

    /// Admits calls again after a move to `target` that has failed. The answer of a commit may be lost. In doubt, the merchant is
    /// refused in both places.
    async fn take_back(&self, target: &Self, merchant_id: MerchantId) -> Result<(), MoveError> {
        let is_back = self.with_both(target, move |from, to| {
            let cell = i32::from(cells::number(to)?.get());
            let moves = cell_of(from, merchant_id)? == Some(cell);
            Ok(moves && merchants::find(to, merchant_id)?.is_none())
        });
        if is_back.await? {
            self.set_cell(merchant_id, None).await?;
        }
        Ok(())
    }

    async fn set_cell(
        &self,
        merchant_id: MerchantId,
        cell: Option<CellNumber>,
    ) -> Result<(), StoreError> {
        self.write(move |conn| set_cell(conn, merchant_id, cell)).await
    }

    async fn move_rest(
        &self,
        target: &Self,
        moving: Moving,
        patience: Duration,
    ) -> Result<BTreeMap<&'static str, i64>, MoveError> {
        tokio::time::sleep(GRACE).await;
        let begun = Instant::now();
        loop {
            let open = self.read(move |conn| count_open_calls(conn, moving.merchant_id)).await?;
            match open {
                0 => break,
                open if begun.elapsed() > patience => return Err(MoveError::OpenCalls(open)),
                _ => tokio::time::sleep(POLL).await,
            }
        }
        self.fold().await?;
        let (node_id, now) = (self.0.context.node_id, self.0.context.clock.now());
        let copy_rest = move |from: &mut Conn, to: &mut Conn| {
            from.snapshot(|from| to.write(|to| copy_rest(from, to, moving, node_id, now)))
        };
        self.with_both(target, copy_rest).await
    }

    /// Runs `work` on a connection to each database.
    async fn with_both<T: Send + 'static>(
        &self,
        target: &Self,
        work: impl FnOnce(&mut Conn, &mut Conn) -> Result<T, MoveError> + Send + 'static,
    ) -> Result<T, MoveError> {
        let (from, to) = (self.0.readers.clone(), target.0.readers.clone());
        let done = tokio::task::spawn_blocking(move || {
            let (mut from, mut to) = (from.get()?, to.get()?);
            work(&mut from, &mut to)
        });
        done.await.map_err(interrupted)?
    }
}

fn interrupted(_: tokio::task::JoinError) -> StoreError {
    StoreError::Unavailable("the copy was interrupted".to_owned())
}

/// Held by the command that moves a merchant. It ends with its process.
enum MoveLock {
    File {
        _file: File,
    },
    /// A connection with a lock of its session.
    Session {
        _conn: Box<Conn>,
    },
}

impl MoveLock {
    fn take(readers: &Readers, merchant: &str) -> Result<Self, MoveError> {
        if let Some(file) = readers.file() {
            let file = private().create(true).truncate(false).open(beside(file, ".moving"));
            let file = file.map_err(|cause| StoreError::Unavailable(cause.to_string()))?;
            file.try_lock().map_err(|_| MoveError::Busy)?;
            return Ok(Self::File { _file: file });
        }
        let mut conn = readers.connect()?;
        match dialect::try_lock_session(&mut conn, &format!("move of {merchant}"))? {
            true => Ok(Self::Session { _conn: Box::new(conn) }),
            false => Err(MoveError::Busy),
        }
    }
}

fn check(from: &mut Conn, to: &mut Conn, merchant_id: MerchantId) -> Result<CellNumber, MoveError> {
    if !cells::is_one(to)? {
        return Err(MoveError::NoCell);
    }
    let (here, there) = (cells::number(from)?, cells::number(to)?);
    if here == there {
        return Err(MoveError::SameCell(here));
    }
    if merchants::find(from, merchant_id)?.is_none() {
        return Err(MoveError::NotHere);
    }
    // A move to the same cell that was interrupted begins again.
    let is_there = merchants::find(to, merchant_id)?.is_some();
    match cell_of(from, merchant_id)? {
        Some(cell) if cell != i32::from(there.get()) => return Err(MoveError::MovesTo(cell)),
        Some(cell) if is_there => return Err(MoveError::HasMoved(cell)),
        None if is_there => return Err(MoveError::IsThere),
        Some(_) | None => {}
    }
    let archived = archived_sums::table.filter(archived_sums::merchant_id.eq(Id(merchant_id)));
    if diesel::select(diesel::dsl::exists(archived)).get_result(from)? {
        return Err(MoveError::HasArchive);
    }
    if has_leaving_month(to)? {
        return Err(MoveError::Archives);
    }
    Ok(there)
}

fn has_leaving_month(conn: &mut Conn) -> Result<bool, StoreError> {
    let leaving = archived_months::table.filter(archived_months::deleted_at.is_null());
    Ok(diesel::select(diesel::dsl::exists(leaving)).get_result(conn)?)
}

/// The open calls that are not those of jobs, which move as they are.
fn count_open_calls(conn: &mut Conn, merchant_id: MerchantId) -> Result<i64, StoreError> {
    let of_job =
        diesel::dsl::exists(jobs::table.filter(jobs::request_id.eq(open_calls::request_id)));
    let open = open_calls::table
        .filter(open_calls::merchant_id.eq(Id(merchant_id)))
        .filter(diesel::dsl::not(of_job));
    Ok(open.count().get_result(conn)?)
}

fn oldest_open_call(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Option<RequestId>, StoreError> {
    let oldest: Option<Id<RequestId>> = open_calls::table
        .filter(open_calls::merchant_id.eq(Id(merchant_id)))
        .order(open_calls::request_id)
        .select(open_calls::request_id)
        .first(conn)
        .optional()?;
    Ok(oldest.map(Id::get))
}

fn copy_rest(
    from: &mut Conn,
    to: &mut Conn,
    moving: Moving,
    node_id: NodeId,
    now: Timestamp,
) -> Result<BTreeMap<&'static str, i64>, MoveError> {
    // The merchant is not in the files of a month that is being archived.
    if !lease::take(to, node_id, now)? || has_leaving_month(to)? {
        return Err(MoveError::Archives);
    }
    let mut rows = BTreeMap::new();
    for table in TABLES {
        let part = if table.old_rows.is_some() { RowPart::Rest } else { RowPart::All };
        copy(from, to, *table, moving, part).map_err(|error| table.failed(error))?;
        let (here, there) = (count(from, *table, moving)?, count(to, *table, moving)?);
        if here != there {
            return Err(MoveError::Differs { table: table.name, here, there });
        }
        rows.insert(table.name, here);
    }
    set_cell(to, moving.merchant_id, None)?;
    lease::release(to, node_id)?;
    // Numbers of events are those of a database.
    let merchant = literal(to, moving.merchant_id.as_bytes());
    execute(to, &format!("UPDATE webhooks SET events_before = 0 WHERE merchant_id = {merchant}"))?;
    Ok(rows)
}

/// Removes what an earlier attempt has copied, while the merchant is not there.
fn remove_old_rows(conn: &mut Conn, merchant_id: MerchantId) -> Result<(), MoveError> {
    let merchant = literal(conn, merchant_id.as_bytes());
    for table in TABLES.iter().filter(|table| table.old_rows.is_some()) {
        execute(conn, &format!("DELETE FROM {} WHERE merchant_id = {merchant}", table.name))?;
    }
    Ok(())
}

/// The condition of the rows of a merchant.
fn condition(conn: &Conn, table: MovedTable, moving: Moving, part: RowPart) -> String {
    let merchant = literal(conn, moving.merchant_id.as_bytes());
    let owned = match table.name {
        "usage_rollups" => {
            format!(
                "series_id IN (SELECT series_id FROM usage_series WHERE merchant_id = {merchant})"
            )
        }
        _ => format!("merchant_id = {merchant}"),
    };
    let bound = literal(conn, moving.changing_from.as_bytes());
    match (table.old_rows, part) {
        (Some(id), RowPart::Old) => format!("{owned} AND {id} < {bound}"),
        (Some(id), RowPart::Rest) => format!("{owned} AND {id} >= {bound}"),
        (_, RowPart::All) | (None, _) => owned,
    }
}

/// Bytes in SQL.
fn literal(conn: &Conn, bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match conn {
        Conn::Sqlite(_) => format!("x'{hex}'"),
        Conn::Postgres(_) => format!("'\\x{hex}'::bytea"),
    }
}

fn count(conn: &mut Conn, table: MovedTable, moving: Moving) -> Result<i64, MoveError> {
    #[derive(QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        rows: i64,
    }
    let condition = condition(conn, table, moving, RowPart::All);
    let query = sql_query(format!("SELECT count(*) AS rows FROM {} WHERE {condition}", table.name));
    let Count { rows } = query.get_result(conn)?;
    Ok(rows)
}

/// A row, as JSON with bytes in hex after `\x`.
#[derive(QueryableByName)]
struct JsonRow {
    #[diesel(sql_type = Text)]
    row: String,
}

/// A column of a table.
#[derive(QueryableByName)]
struct Column {
    #[diesel(sql_type = Text)]
    name: String,
    #[diesel(sql_type = Text)]
    kind: String,
}

fn columns(conn: &mut Conn, table: MovedTable) -> Result<Vec<Column>, MoveError> {
    let query = match conn {
        Conn::Sqlite(_) => "SELECT name, type AS kind FROM pragma_table_info(?)",
        Conn::Postgres(_) => {
            "SELECT column_name::text AS name, data_type::text AS kind \
             FROM information_schema.columns \
             WHERE table_name = $1 AND table_schema = current_schema() ORDER BY ordinal_position"
        }
    };
    let mut columns: Vec<Column> = sql_query(query).bind::<Text, _>(table.name).load(conn)?;
    columns.retain(|column| Some(column.name.as_str()) != table.numbered);
    Ok(columns)
}

/// Copies rows.
fn copy(
    from: &mut Conn,
    to: &mut Conn,
    table: MovedTable,
    moving: Moving,
    part: RowPart,
) -> Result<(), MoveError> {
    let query = sql_query(selection(from, table, moving, part)?);
    let insert = insertion(to, table)?;
    let mut batch = Batch { to, insert, rows: Vec::new(), bytes: 0, is_tree: table.is_tree };
    match from {
        Conn::Sqlite(from) => {
            for row in query.load_iter::<JsonRow, DefaultLoadingMode>(from)? {
                batch.push(row?.row)?;
            }
        }
        Conn::Postgres(from) => {
            for row in query.load_iter::<JsonRow, PgRowByRowLoadingMode>(from)? {
                batch.push(row?.row)?;
            }
        }
    }
    batch.write()
}

/// The query of rows as [`JsonRow`]s.
fn selection(
    conn: &mut Conn,
    table: MovedTable,
    moving: Moving,
    part: RowPart,
) -> Result<String, MoveError> {
    let condition = condition(conn, table, moving, part);
    let object = match conn {
        Conn::Postgres(_) => "to_json(t)::text".to_owned(),
        Conn::Sqlite(_) => {
            let fields = columns(conn, table)?.into_iter().map(|Column { name, .. }| {
                format!(
                    "'{name}', CASE typeof({name}) WHEN 'blob' THEN '\\x' || lower(hex({name})) \
                     ELSE {name} END"
                )
            });
            format!("json_object({})", fields.collect::<Vec<_>>().join(", "))
        }
    };
    let order = table.numbered.map(|number| format!(" ORDER BY {number}")).unwrap_or_default();
    let name = table.name;
    Ok(format!("SELECT {object} AS \"row\" FROM {name} AS t WHERE {condition}{order}"))
}

/// The statement that inserts an array of rows.
fn insertion(conn: &mut Conn, table: MovedTable) -> Result<String, MoveError> {
    let name = table.name;
    let columns = columns(conn, table)?;
    let names: Vec<_> = columns.iter().map(|column| column.name.clone()).collect();
    let names = names.join(", ");
    Ok(match conn {
        Conn::Sqlite(_) => {
            let values = columns.iter().map(|Column { name, kind }| match kind.as_str() {
                "BLOB" => format!("unhex(substr(json_extract(value, '$.{name}'), 3))"),
                _ => format!("json_extract(value, '$.{name}')"),
            });
            let values: Vec<_> = values.collect();
            format!("INSERT INTO {name} ({names}) SELECT {} FROM json_each(?)", values.join(", "))
        }
        Conn::Postgres(_) => format!(
            "INSERT INTO {name} ({names}) SELECT {names} \
             FROM json_populate_recordset(NULL::{name}, $1::json)"
        ),
    })
}

/// Rows that are inserted together.
struct Batch<'a> {
    to: &'a mut Conn,
    insert: String,
    rows: Vec<String>,
    bytes: usize,
    is_tree: bool,
}

impl Batch<'_> {
    fn push(&mut self, row: String) -> Result<(), MoveError> {
        self.bytes += row.len();
        self.rows.push(row);
        let is_full = self.rows.len() >= ROWS_AT_ONCE || self.bytes >= BYTES_AT_ONCE;
        if is_full && !self.is_tree { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), MoveError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let rows = format!("[{}]", self.rows.join(","));
        self.rows.clear();
        self.bytes = 0;
        sql_query(&self.insert).bind::<Text, _>(rows).execute(self.to)?;
        Ok(())
    }
}

fn execute(conn: &mut Conn, statement: &str) -> Result<(), MoveError> {
    sql_query(statement).execute(conn)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The tables whose rows belong to no merchant, or do not move.
    const OTHERS: [&str; 12] = [
        "sessions",
        "rollup_queue",
        "provider_events",
        "serving",
        "nodes",
        "cell",
        "breaking_migrations",
        "price_lists",
        "archived_months",
        "archive_state",
        "archived_sums",
        "archived_transactions",
    ];

    #[test]
    fn every_table_moves_or_is_known_to_stay() {
        let schema = include_str!("schema.rs");
        let tables = schema.split("diesel::table! {").skip(1);
        let tables: BTreeSet<_> =
            tables.filter_map(|text| text.split_whitespace().next()).collect();
        let known: BTreeSet<_> = TABLES.iter().map(|table| table.name).chain(OTHERS).collect();
        assert_eq!(tables, known);
    }
}
