//! The statements that write what is derived from settled calls: sums, sets of metadata and the index of records.

use std::collections::BTreeSet;

use diesel::prelude::*;
use diesel::sql_types::{Binary, Text};
use diesel::{QueryResult, RunQueryDsl};

use tollgate_domain::MerchantId;

use super::{execute_batched, execute_each, try_lock_advisory};
use crate::conn::Conn;
use crate::ids::Id;
use crate::prepared::{
    AddRollup, AddRollups, AddSetRollup, AddSetRollups, InsertIndexRows, InsertSomeIndexRows,
};
use crate::rows::{MetadataSetRow, RequestIndexRow, RollupRow, SeriesRow, SetRollupRow};
use crate::schema::{metadata_sets, request_index, rollup_queue, usage_series};

/// Returns and locks the oldest groups in the queue of the roll-ups, with their numbers. Only groups after the number
/// `after` are returned. A second caller waits until the first transaction ends, and gets the remaining groups.
pub(crate) fn lock_queued_calls(
    conn: &mut Conn,
    after: Option<i64>,
    most: i64,
) -> QueryResult<Vec<(i64, String)>> {
    macro_rules! oldest {
        () => {
            rollup_queue::table
                .filter(rollup_queue::number.gt(after.unwrap_or(i64::MIN)))
                .order(rollup_queue::number)
                .limit(most)
                .select((rollup_queue::number, rollup_queue::calls))
        };
    }
    match conn {
        Conn::Sqlite(conn) => oldest!().load(conn),
        Conn::Postgres(conn) => oldest!().for_update().load(conn),
    }
}

/// Locks the queue of the roll-ups against other nodes, as [`super::try_lock_outbox`].
pub(crate) fn try_lock_rollup_queue(conn: &mut Conn) -> QueryResult<bool> {
    try_lock_advisory(conn, "rollup_queue")
}

/// Inserts the series that do not exist yet. `rows` must ascend.
pub(crate) fn insert_series(conn: &mut Conn, rows: &[SeriesRow]) -> QueryResult<()> {
    /// PostgreSQL takes 65,535 values.
    const AT_ONCE: usize = 3_000;
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| {
            diesel::insert_or_ignore_into(usage_series::table).values(row).execute(conn)
        }),
        Conn::Postgres(conn) => rows.chunks(AT_ONCE).try_for_each(|rows| {
            let insert = diesel::insert_into(usage_series::table).values(rows);
            insert.on_conflict_do_nothing().execute(conn).map(drop)
        }),
    }
}

/// Adds to roll-ups. `rows` must ascend. The statement computes the sums, so no row is read or locked before.
pub(crate) fn add_rollups(conn: &mut Conn, rows: &[RollupRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| AddRollup(row).execute(conn)),
        Conn::Postgres(conn) => AddRollups::of(rows).execute(conn).map(drop),
    }
}

/// Inserts the sets of metadata that do not exist yet, and returns their merchants. `rows` must ascend.
pub(crate) fn insert_metadata_sets(
    conn: &mut Conn,
    rows: &[MetadataSetRow],
) -> QueryResult<BTreeSet<Id<MerchantId>>> {
    /// PostgreSQL takes 65,535 values.
    const AT_ONCE: usize = 20_000;
    match conn {
        Conn::Sqlite(conn) => {
            let mut merchants = BTreeSet::new();
            for row in rows {
                let insert = diesel::insert_or_ignore_into(metadata_sets::table).values(row);
                if insert.execute(conn)? > 0 {
                    merchants.insert(row.merchant_id);
                }
            }
            Ok(merchants)
        }
        Conn::Postgres(conn) => {
            let mut merchants = BTreeSet::new();
            for rows in rows.chunks(AT_ONCE) {
                let insert = diesel::insert_into(metadata_sets::table).values(rows);
                let insert = insert.on_conflict_do_nothing().returning(metadata_sets::merchant_id);
                let inserted: Vec<Id<MerchantId>> = insert.get_results(conn)?;
                merchants.extend(inserted);
            }
            Ok(merchants)
        }
    }
}

/// As [`add_rollups`], to the sums of sets of metadata.
pub(crate) fn add_set_rollups(conn: &mut Conn, rows: &[SetRollupRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| AddSetRollup(row).execute(conn)),
        Conn::Postgres(conn) => AddSetRollups::of(rows).execute(conn).map(drop),
    }
}

/// The key of metadata of which the sets of a merchant have the most values, without those that are left out already. A
/// thousand sets are looked at. Their ids are hashes, so these are any.
pub(crate) fn most_varied_key(
    conn: &mut Conn,
    merchant_id: Id<MerchantId>,
) -> QueryResult<Option<String>> {
    #[derive(QueryableByName)]
    struct MostVariedKey {
        #[diesel(sql_type = Text)]
        key: String,
    }
    let sql = |pairs: &str, mark: &str| {
        format!(
            "SELECT j.key AS key FROM (SELECT metadata FROM metadata_sets WHERE merchant_id = {mark} \
             ORDER BY set_id LIMIT 1000) AS s CROSS JOIN {pairs} AS j WHERE j.key NOT IN \
             (SELECT h.key FROM high_cardinality_keys AS h WHERE h.merchant_id = {mark}) \
             GROUP BY j.key ORDER BY count(DISTINCT j.value) DESC, j.key LIMIT 1"
        )
    };
    let found: Option<MostVariedKey> = match conn {
        Conn::Sqlite(conn) => diesel::sql_query(sql("json_each(s.metadata)", "?1"))
            .bind::<Binary, _>(merchant_id)
            .get_result(conn),
        Conn::Postgres(conn) => diesel::sql_query(sql("jsonb_each_text(s.metadata::jsonb)", "$1"))
            .bind::<Binary, _>(merchant_id)
            .get_result(conn),
    }
    .optional()?;
    Ok(found.map(|row| row.key))
}

pub(crate) fn insert_index_rows(conn: &mut Conn, rows: &[RequestIndexRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => {
            let some = |conn: &mut _, rows: &_| InsertSomeIndexRows(rows).execute(conn);
            execute_batched(conn, rows, some, |conn, row| InsertSomeIndexRows(row).execute(conn))
        }
        Conn::Postgres(conn) => InsertIndexRows::of(rows).execute(conn).map(drop),
    }
}

/// Deletes entries of the index of records. There are few, and rarely any.
pub(crate) fn delete_index_rows(conn: &mut Conn, rows: &[RequestIndexRow]) -> QueryResult<()> {
    for row in rows {
        let key = (row.merchant_id, &row.key, &row.value, row.request_id);
        diesel::delete(request_index::table.find(key)).execute(conn)?;
    }
    Ok(())
}
