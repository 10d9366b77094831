//! The rows of a merchant: they are read as JSON and written as they are.

use diesel::connection::DefaultLoadingMode;
use diesel::pg::PgRowByRowLoadingMode;
use diesel::prelude::*;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Text};
use tollgate_domain::{Id as _, MerchantId, RequestId};

use super::error::MoveError;
use super::tables::{EarlyRows, MovedTable};
use crate::conn::Conn;

/// The most rows, and about the most bytes, of one statement.
const ROWS_AT_ONCE: usize = 5_000;
const BYTES_AT_ONCE: usize = 4 << 20;

/// A part of the rows of a merchant.
#[derive(Clone, Copy)]
pub(super) enum RowPart<'a> {
    /// The rows before the pause.
    Early,
    Rest,
    All,
    /// The rows of these calls.
    OfCalls(&'a [RequestId]),
}

/// A merchant that moves.
#[derive(Clone, Copy)]
pub(super) struct Moving {
    pub(super) merchant_id: MerchantId,
    /// The least id of a row that may still change.
    pub(super) changing_from: RequestId,
    /// The first quarter hour whose sums may still change.
    pub(super) changing_slot: i64,
}

/// The condition of the rows of a merchant.
fn condition(conn: &Conn, table: MovedTable, moving: Moving, part: RowPart<'_>) -> String {
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
    // A row of sums covers `width` quarter hours.
    let slot = moving.changing_slot;
    match (table.early_rows, part) {
        (_, RowPart::OfCalls(ids)) => {
            let ids: Vec<_> = ids.iter().map(|id| literal(conn, id.as_bytes())).collect();
            format!("{owned} AND request_id IN ({})", ids.join(", "))
        }
        (EarlyRows::Old(id), RowPart::Early) => format!("{owned} AND {id} < {bound}"),
        (EarlyRows::Old(id), RowPart::Rest) => format!("{owned} AND {id} >= {bound}"),
        (EarlyRows::Sums, RowPart::Early) => format!("{owned} AND slot + width <= {slot}"),
        (EarlyRows::Sums, RowPart::Rest) => format!("{owned} AND slot + width > {slot}"),
        (EarlyRows::Series, RowPart::Rest) => format!(
            "{owned} AND EXISTS (SELECT 1 FROM usage_rollups AS s \
             WHERE s.series_id = t.series_id AND s.slot + s.width > {slot})"
        ),
        (_, RowPart::All | RowPart::Early) | (EarlyRows::None, _) => owned,
    }
}

/// Bytes in SQL.
pub(super) fn literal(conn: &Conn, bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match conn {
        Conn::Sqlite(_) => format!("x'{hex}'"),
        Conn::Postgres(_) => format!("'\\x{hex}'::bytea"),
    }
}

pub(super) fn count(conn: &mut Conn, table: MovedTable, moving: Moving) -> Result<i64, MoveError> {
    #[derive(QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        rows: i64,
    }
    let condition = condition(conn, table, moving, RowPart::All);
    let query =
        sql_query(format!("SELECT count(*) AS rows FROM {} AS t WHERE {condition}", table.name));
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
///
/// # Errors
/// [`MoveError::Copy`].
pub(super) fn copy(
    from: &mut Conn,
    to: &mut Conn,
    table: MovedTable,
    moving: Moving,
    part: RowPart<'_>,
) -> Result<(), MoveError> {
    copy_rows(from, to, table, moving, part).map_err(|error| error.of_table(table.name))
}

fn copy_rows(
    from: &mut Conn,
    to: &mut Conn,
    table: MovedTable,
    moving: Moving,
    part: RowPart<'_>,
) -> Result<(), MoveError> {
    let query = sql_query(selection(from, table, moving, part)?);
    let mut batch = Batch::new(to, table)?;
    match from {
        Conn::Sqlite(from) => {
            for row in query.load_iter::<JsonRow, DefaultLoadingMode>(from)? {
                batch.push(to, row?.row)?;
            }
        }
        Conn::Postgres(from) => {
            for row in query.load_iter::<JsonRow, PgRowByRowLoadingMode>(from)? {
                batch.push(to, row?.row)?;
            }
        }
    }
    batch.write(to)
}

/// The query of rows as [`JsonRow`]s.
fn selection(
    conn: &mut Conn,
    table: MovedTable,
    moving: Moving,
    part: RowPart<'_>,
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
    let known = match table.early_rows {
        EarlyRows::Series => " WHERE true ON CONFLICT DO NOTHING",
        _ => "",
    };
    Ok(match conn {
        Conn::Sqlite(_) => {
            let values = columns.iter().map(|Column { name, kind }| match kind.as_str() {
                "BLOB" => format!("unhex(substr(json_extract(value, '$.{name}'), 3))"),
                _ => format!("json_extract(value, '$.{name}')"),
            });
            let values: Vec<_> = values.collect();
            format!(
                "INSERT INTO {name} ({names}) SELECT {} FROM json_each(?){known}",
                values.join(", ")
            )
        }
        Conn::Postgres(_) => format!(
            "INSERT INTO {name} ({names}) SELECT {names} \
             FROM json_populate_recordset(NULL::{name}, $1::json){known}"
        ),
    })
}

/// Rows that are inserted together.
pub(super) struct Batch {
    insert: String,
    rows: Vec<String>,
    bytes: usize,
    is_tree: bool,
}

impl Batch {
    /// No rows yet of a table of the database `to`.
    pub(super) fn new(to: &mut Conn, table: MovedTable) -> Result<Self, MoveError> {
        let insert = insertion(to, table)?;
        Ok(Self { insert, rows: Vec::new(), bytes: 0, is_tree: table.is_tree })
    }

    /// Adds a row. Writes all when there are many.
    pub(super) fn push(&mut self, to: &mut Conn, row: String) -> Result<(), MoveError> {
        self.bytes += row.len();
        self.rows.push(row);
        let is_full = self.rows.len() >= ROWS_AT_ONCE || self.bytes >= BYTES_AT_ONCE;
        if is_full && !self.is_tree { self.write(to) } else { Ok(()) }
    }

    /// Writes the rows.
    pub(super) fn write(&mut self, to: &mut Conn) -> Result<(), MoveError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let rows = format!("[{}]", self.rows.join(","));
        self.rows.clear();
        self.bytes = 0;
        sql_query(&self.insert).bind::<Text, _>(rows).execute(to)?;
        Ok(())
    }
}

/// Deletes rows.
pub(super) fn delete(
    conn: &mut Conn,
    table: MovedTable,
    moving: Moving,
    part: RowPart<'_>,
) -> Result<(), MoveError> {
    let condition = condition(conn, table, moving, part);
    execute(conn, &format!("DELETE FROM {} WHERE {condition}", table.name))
}

pub(super) fn execute(conn: &mut Conn, statement: &str) -> Result<(), MoveError> {
    sql_query(statement).execute(conn)?;
    Ok(())
}
