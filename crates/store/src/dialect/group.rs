//! The load and the write of a group. On PostgreSQL each is one statement, because a round trip costs more than the
//! work in it.

use std::collections::{BTreeSet, HashMap};

use diesel::RunQueryDsl;
use diesel::pg::Pg;
use diesel::prelude::*;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{Array, BigInt, Binary, Text};

use super::{
    RowLock, execute_batched, execute_each, find_each, insert_transactions, lock_spend_counters,
    save_counters, save_spend_counters, save_wallets, wallets,
};
use tollgate_domain::{MerchantId, RequestId, RunAccountId, WalletId};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::prepared::{
    DeleteOpenCall, InsertOpenCalls, InsertRequests, InsertSomeOpenCalls, InsertSomeRequests,
    InsertTransactions, LockCounters, QueueCalls, SaveCounters, SaveCountersOfAccounts,
    SaveWallets,
};
use crate::rows::{
    OpenCallRow, QueueRow, RequestRow, RunRow, SpendCountersRow, TierCounterRow, TransactionRow,
    WalletRow, from_json,
};
use crate::schema::{rollup_queue, runs, tier_counters};

/// The rows that a group needs. Their ids ascend.
#[derive(Debug, Default)]
pub(crate) struct NeededRows {
    /// Calls to be settled. Empty without row locks, because only this process then settles them.
    pub(crate) open_calls: Vec<Id<RequestId>>,
    /// The spend keys, budgets and runs, together.
    pub(crate) limited: Vec<Id<AnyId>>,
    /// The runs among them.
    pub(crate) runs: Vec<Id<RunAccountId>>,
    pub(crate) wallets: Vec<Id<WalletId>>,
    /// Tier counters, with the values of new ones.
    pub(crate) counters: Vec<TierCounterRow>,
}

impl NeededRows {
    /// Whether nothing is needed.
    pub(crate) const fn is_empty(&self) -> bool {
        let Self { open_calls, limited, runs: _, wallets, counters } = self;
        open_calls.is_empty() && limited.is_empty() && wallets.is_empty() && counters.is_empty()
    }
}

/// The rows that were found.
#[derive(Default)]
pub(crate) struct FoundRows {
    /// The number of the open calls that exist.
    pub(crate) open_calls: usize,
    pub(crate) spend_counters: Vec<SpendCountersRow>,
    pub(crate) runs: Vec<RunRow>,
    pub(crate) wallets: Vec<WalletRow>,
    pub(crate) counters: Vec<TierCounterRow>,
}

/// The configurations by which a group is decided: the merchants, and marks with each merchant's id and configuration
/// version. Empty where no other process can change them.
#[derive(Debug, Default)]
pub(crate) struct ConfigBasis {
    merchants: Vec<Id<MerchantId>>,
    pub(crate) marks: BTreeSet<String>,
}

impl ConfigBasis {
    pub(crate) fn new(versions: impl Iterator<Item = (MerchantId, i64)>) -> Self {
        let mut basis = Self::default();
        for (id, version) in versions {
            basis.merchants.push(Id(id));
            // A configuration without changes has no row.
            if version > 0 {
                basis.marks.insert(format!("{} {version}", Id(id).untyped()));
            }
        }
        basis
    }
}

/// The number of configuration changes of these merchants. Merchants without changes are omitted.
pub(crate) fn config_versions(
    conn: &mut Conn,
    ids: &[Id<MerchantId>],
) -> QueryResult<HashMap<Id<MerchantId>, i64>> {
    #[derive(QueryableByName)]
    struct MerchantConfigVersionRow {
        #[diesel(sql_type = Binary)]
        merchant_id: Id<MerchantId>,
        #[diesel(sql_type = BigInt)]
        version: i64,
    }
    let Conn::Postgres(conn) = conn else { return Ok(HashMap::new()) };
    let versions = diesel::sql_query(
        "SELECT merchant_id, version FROM config_versions WHERE merchant_id = ANY($1)",
    );
    let rows: Vec<MerchantConfigVersionRow> = versions.bind::<Array<Binary>, _>(ids).load(conn)?;
    Ok(rows.into_iter().map(|row| (row.merchant_id, row.version)).collect())
}

/// The changes of a group, without the rare ones. The rows of each table ascend.
pub(crate) struct ChangedRows<'a> {
    pub(crate) opened: &'a [OpenCallRow],
    /// The ids of open calls that are settled.
    pub(crate) closed: &'a [Id<RequestId>],
    pub(crate) records: &'a [RequestRow],
    pub(crate) spend_counters: &'a [SpendCountersRow],
    pub(crate) wallets: &'a [WalletRow],
    pub(crate) transactions: &'a [TransactionRow],
    pub(crate) counters: &'a [TierCounterRow],
    /// The settled calls, for the roll-ups: one row or none.
    pub(crate) queued: &'a [QueueRow],
}

/// Reads the rows that a group needs, under `lock`: table by table in the order of [`NeededRows`], rows in the order of
/// their ids. Counters are read only under a lock.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn read(
    conn: &mut Conn,
    needed: &NeededRows,
    lock: RowLock,
) -> Result<FoundRows, StoreError> {
    match conn {
        Conn::Sqlite(sqlite) => {
            let counters = find_each(&needed.counters, |key| {
                tier_counters::table
                    .find((key.merchant_id, key.owner_id, key.meter_id, &key.period))
                    .select(TierCounterRow::as_select())
                    .get_result(sqlite)
            })?;
            let runs = find_each(&needed.runs, |id| {
                runs::table.find(id).select(RunRow::as_select()).get_result(sqlite)
            })?;
            // A SQLite writer is alone, so this locks nothing.
            let spend_counters = lock_spend_counters(conn, &needed.limited)?;
            let wallets = wallets(conn, &needed.wallets, lock)?;
            Ok(FoundRows { spend_counters, runs, wallets, counters, ..FoundRows::default() })
        }
        Conn::Postgres(conn) => {
            let counters = LockCounters::of(&needed.counters);
            let rows: Vec<(String, String)> = match lock {
                RowLock::No => ReadGroup::<false> { needed, counters }.load(conn)?,
                RowLock::Rows => ReadGroup::<true> { needed, counters }.load(conn)?,
            };
            let mut found = FoundRows::default();
            for (kind, row) in rows {
                match kind.as_str() {
                    OPEN_CALL => found.open_calls += 1,
                    SPEND_COUNTERS => found.spend_counters.push(from_json("spend_counters", &row)?),
                    RUN => found.runs.push(from_json("runs", &row)?),
                    WALLET => found.wallets.push(from_json("wallets", &row)?),
                    COUNTER => found.counters.push(from_json("tier_counters", &row)?),
                    _ => return Err(StoreError::Corrupt { what: "kind of a row", value: kind }),
                }
            }
            Ok(found)
        }
    }
}

/// Returns the current marks of a basis.
pub(crate) fn read_marks(conn: &mut Conn, basis: &ConfigBasis) -> QueryResult<BTreeSet<String>> {
    match conn {
        Conn::Postgres(conn) if !basis.merchants.is_empty() => {
            Ok(basis.load(conn)?.into_iter().collect())
        }
        _ => Ok(BTreeSet::new()),
    }
}

/// Writes the changes of a group. Returns the current marks of its basis, while the group's rows are locked.
pub(crate) fn write(
    conn: &mut Conn,
    group: &ChangedRows<'_>,
    basis: &ConfigBasis,
) -> QueryResult<BTreeSet<String>> {
    let sqlite = match conn {
        Conn::Sqlite(sqlite) => sqlite,
        Conn::Postgres(conn) => return write_on_postgres(conn, group, basis),
    };
    execute_batched(
        sqlite,
        group.opened,
        |conn, rows| InsertSomeOpenCalls(rows).execute(conn),
        |conn, row| InsertSomeOpenCalls(row).execute(conn),
    )?;
    execute_each(group.closed, |id| DeleteOpenCall(id).execute(sqlite))?;
    execute_batched(
        sqlite,
        group.records,
        |conn, rows| InsertSomeRequests(rows).execute(conn),
        |conn, row| InsertSomeRequests(row).execute(conn),
    )?;
    execute_each(group.queued, |row| {
        diesel::insert_into(rollup_queue::table).values(row).execute(sqlite)
    })?;
    save_spend_counters(conn, group.spend_counters)?;
    save_wallets(conn, group.wallets)?;
    insert_transactions(conn, group.transactions)?;
    save_counters(conn, group.counters)?;
    Ok(BTreeSet::new())
}

fn write_on_postgres(
    conn: &mut PgConnection,
    group: &ChangedRows<'_>,
    basis: &ConfigBasis,
) -> QueryResult<BTreeSet<String>> {
    let statement = WriteGroup {
        opened: InsertOpenCalls::of(group.opened),
        closed: group.closed,
        records: InsertRequests::of(group.records),
        spend_counters: SaveCountersOfAccounts::of(group.spend_counters),
        wallets: SaveWallets::of(group.wallets),
        transactions: InsertTransactions::of(group.transactions),
        counters: SaveCounters::of(group.counters),
        queued: QueueCalls::of(group.queued),
        basis,
    };
    Ok(statement.load(conn)?.into_iter().collect())
}

/// The kinds of rows in the result of [`ReadGroup`].
const OPEN_CALL: &str = "open_call";
const SPEND_COUNTERS: &str = "spend_counters";
const RUN: &str = "run";
const WALLET: &str = "wallet";
const COUNTER: &str = "counter";

/// Reads the rows that a group needs, each as its kind and its JSON. The parts of the union run in order, so tables are
/// locked in the order of the text.
struct ReadGroup<'a, const LOCKED: bool> {
    needed: &'a NeededRows,
    counters: LockCounters,
}

impl<const LOCKED: bool> QueryId for ReadGroup<'_, LOCKED> {
    type QueryId = ReadGroup<'static, LOCKED>;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl<const LOCKED: bool> Query for ReadGroup<'_, LOCKED> {
    type SqlType = (Text, Text);
}

impl<const LOCKED: bool> QueryFragment<Pg> for ReadGroup<'_, LOCKED> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let NeededRows { open_calls, limited, runs, wallets, .. } = self.needed;
        if LOCKED {
            out.push_sql("WITH counters AS (");
            self.counters.walk_ast(out.reborrow())?;
            out.push_sql(") ");
        }
        // An open call does not change, so only its existence is read.
        out.push_sql(
            "SELECT 'open_call', '' FROM (SELECT request_id FROM open_calls \
             WHERE request_id = ANY(",
        );
        push_ids(&mut out, open_calls, ") ORDER BY request_id", LOCKED)?;
        out.push_sql(
            ") row UNION ALL SELECT 'spend_counters', to_json(row)::text \
             FROM (SELECT * FROM spend_counters WHERE account_id = ANY(",
        );
        push_ids(&mut out, limited, ") ORDER BY account_id", LOCKED)?;
        out.push_sql(
            ") row UNION ALL SELECT 'run', to_json(row)::text \
             FROM (SELECT * FROM runs WHERE account_id = ANY(",
        );
        push_ids(&mut out, runs, ") ORDER BY account_id", LOCKED)?;
        out.push_sql(
            ") row UNION ALL SELECT 'wallet', to_json(row)::text \
             FROM (SELECT * FROM wallets WHERE wallet_id = ANY(",
        );
        push_ids(&mut out, wallets, ") ORDER BY wallet_id", LOCKED)?;
        if LOCKED {
            out.push_sql(
                ") row UNION ALL SELECT 'counter', to_json(row)::text FROM (TABLE counters",
            );
        }
        out.push_sql(") row");
        Ok(())
    }
}

impl<const LOCKED: bool> RunQueryDsl<diesel::PgConnection> for ReadGroup<'_, LOCKED> {}

/// Pushes ids, the text after them, and the lock. Locks are `FOR NO KEY UPDATE`, so inserts that refer to a row need
/// not wait for it.
fn push_ids<'b, T>(
    out: &mut AstPass<'_, 'b, Pg>,
    ids: &'b Vec<Id<T>>,
    end: &str,
    lock: bool,
) -> QueryResult<()>
where
    T: tollgate_domain::Id,
{
    out.push_bind_param::<Array<Binary>, _>(ids)?;
    out.push_sql(end);
    if lock {
        out.push_sql(" FOR NO KEY UPDATE");
    }
    Ok(())
}

impl QueryId for ConfigBasis {
    type QueryId = Self;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl Query for ConfigBasis {
    type SqlType = Text;
}

impl RunQueryDsl<diesel::PgConnection> for &ConfigBasis {}

/// Selects the current marks of the configurations.
impl QueryFragment<Pg> for ConfigBasis {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(
            "SELECT concat(encode(merchant_id, 'hex'), ' ', version) FROM config_versions \
             WHERE merchant_id = ANY(",
        );
        out.push_bind_param::<Array<Binary>, _>(&self.merchants)?;
        out.push_sql(")");
        Ok(())
    }
}

/// Writes the changes of a group and returns the marks of its basis. The group has locked all the rows that other nodes
/// may lock.
struct WriteGroup<'a> {
    opened: InsertOpenCalls,
    closed: &'a [Id<RequestId>],
    records: InsertRequests,
    spend_counters: SaveCountersOfAccounts,
    wallets: SaveWallets,
    transactions: InsertTransactions,
    counters: SaveCounters,
    queued: QueueCalls,
    basis: &'a ConfigBasis,
}

impl QueryId for WriteGroup<'_> {
    type QueryId = WriteGroup<'static>;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl Query for WriteGroup<'_> {
    type SqlType = Text;
}

impl QueryFragment<Pg> for WriteGroup<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("WITH closed AS (DELETE FROM open_calls WHERE request_id = ANY(");
        out.push_bind_param::<Array<Binary>, _>(self.closed)?;
        let parts: [(&str, &'b dyn QueryFragment<Pg>); 7] = [
            (")), opened AS (", &self.opened),
            ("), records AS (", &self.records),
            ("), keys AS (", &self.spend_counters),
            ("), accounts AS (", &self.wallets),
            ("), lines AS (", &self.transactions),
            ("), counters AS (", &self.counters),
            ("), queued AS (", &self.queued),
        ];
        for (sql, part) in parts {
            out.push_sql(sql);
            part.walk_ast(out.reborrow())?;
        }
        out.push_sql(") ");
        self.basis.walk_ast(out)
    }
}

impl RunQueryDsl<diesel::PgConnection> for WriteGroup<'_> {}
