//! What a group of calls takes of the database, and what it gives back: on PostgreSQL one statement each,
//! because a round trip costs more than what is done in it.

use std::collections::{BTreeSet, HashSet};

use diesel::RunQueryDsl;
use diesel::pg::Pg;
use diesel::prelude::*;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{Array, Text};
use serde::Deserialize;
use tollgate_domain::MerchantId;

use super::{
    Lock, add_rollups, each, insert_metadata, insert_requests, insert_transactions,
    lock_spend_counters, save_counters, save_requests, save_spend_counters, save_wallets, wallets,
};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::rows::{
    RequestMetadataRow, RequestRow, TierCounterRow, TransactionRow, WalletRow, from_json, parsed,
};
use crate::schema::tier_counters;
use crate::spend_keys::SpendCountersRow;
use crate::statements::{
    AddRollups, InsertMetadata, InsertRequests, InsertTransactions, LockCounters, SaveCounters,
    SaveCountersOfKeys, SaveRequests, SaveWallets,
};
use crate::usage::RollupRow;
use crate::webhooks;

/// What a group needs; ids ascend.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    /// Calls that end. Only where rows are locked: elsewhere they still stand as they were read.
    pub(crate) requests: Vec<String>,
    pub(crate) spend_keys: Vec<String>,
    pub(crate) wallets: Vec<String>,
    /// Tier counters, as they are made if they are missing.
    pub(crate) counters: Vec<TierCounterRow>,
    /// Of which merchants it must be known whether they are told of every call.
    pub(crate) merchants: Vec<String>,
}

impl Needed {
    /// Whether nothing is needed.
    pub(crate) const fn is_empty(&self) -> bool {
        let Self { requests, spend_keys, wallets, counters, merchants } = self;
        requests.is_empty()
            && spend_keys.is_empty()
            && wallets.is_empty()
            && counters.is_empty()
            && merchants.is_empty()
    }
}

/// How these rows stand.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) requests: Vec<Standing>,
    pub(crate) spend_counters: Vec<SpendCountersRow>,
    pub(crate) wallets: Vec<WalletRow>,
    pub(crate) counters: Vec<TierCounterRow>,
    /// The merchants that are told of every call: where rows are locked of those that were asked for,
    /// elsewhere all.
    pub(crate) told: HashSet<MerchantId>,
    /// What the rows of the [`Basis`] are marked with now.
    pub(crate) marks: BTreeSet<String>,
}

/// How a call that is to end stands.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Standing {
    /// It is pending, so it is as it was admitted: its id.
    Pending(String),
    /// It has ended.
    Ended(Box<RequestRow>),
}

/// What a group is decided by and does not change or lock: which rows, and marks by which their present
/// state is known from others. Empty where nobody else can change them.
#[derive(Debug, Default)]
pub(crate) struct Basis {
    pub(crate) secret_keys: Vec<String>,
    pub(crate) spend_keys: Vec<String>,
    pub(crate) connections: Vec<String>,
    pub(crate) meters: Vec<String>,
    /// The merchants' own wallets, of which it only matters whether they have a limit.
    pub(crate) accounts: Vec<String>,
    pub(crate) marks: BTreeSet<String>,
}

/// What a group has changed, but for what few groups do; rows of each table ascend.
pub(crate) struct Group<'a> {
    pub(crate) new_requests: &'a [RequestRow],
    pub(crate) metadata: &'a [RequestMetadataRow],
    pub(crate) changed_requests: &'a [RequestRow],
    pub(crate) spend_counters: &'a [SpendCountersRow],
    pub(crate) wallets: &'a [WalletRow],
    pub(crate) transactions: &'a [TransactionRow],
    pub(crate) counters: &'a [TierCounterRow],
    /// Added to what stands there at that moment, so nothing has to be read or locked before.
    pub(crate) rollups: &'a [RollupRow],
}

/// Reads what a group needs, and locks it if `lock`, table by table in the order of [`Needed`], rows by
/// id. Counters are read only to be locked.
///
/// # Errors
/// Those of the store.
pub(crate) fn read(
    conn: &mut Conn,
    needed: &Needed,
    basis: &Basis,
    lock: Lock,
) -> Result<Found, StoreError> {
    match conn {
        Conn::Sqlite(sqlite) => {
            let counters = each(&needed.counters, |key| {
                tier_counters::table
                    .find((&key.owner_id, &key.meter_id, &key.period))
                    .select(TierCounterRow::as_select())
                    .get_result(sqlite)
            })?;
            // Who reads is alone, so that this locks nothing.
            let spend_counters = lock_spend_counters(conn, &needed.spend_keys)?;
            let wallets = wallets(conn, &needed.wallets, lock)?;
            let told = match needed.merchants.is_empty() {
                true => HashSet::new(),
                false => webhooks::merchants_told_of_requests(conn)?,
            };
            Ok(Found { spend_counters, wallets, counters, told, ..Found::default() })
        }
        Conn::Postgres(conn) => {
            let counters = LockCounters::of(&needed.counters);
            let rows: Vec<(String, String)> = match lock {
                Lock::No => ReadGroup::<false> { needed, basis, counters }.load(conn)?,
                Lock::Rows => ReadGroup::<true> { needed, basis, counters }.load(conn)?,
            };
            let mut found = Found::default();
            for (kind, row) in rows {
                match kind.as_str() {
                    REQUEST => found.requests.push(from_json("requests", &row)?),
                    SPEND_COUNTERS => found.spend_counters.push(from_json("spend_counters", &row)?),
                    WALLET => found.wallets.push(from_json("wallets", &row)?),
                    COUNTER => found.counters.push(from_json("tier_counters", &row)?),
                    TOLD => {
                        found.told.insert(parsed("webhooks.merchant_id", &row)?);
                    }
                    MARK => {
                        found.marks.insert(row);
                    }
                    _ => return Err(StoreError::Corrupt { what: "kind of a row", value: kind }),
                }
            }
            Ok(found)
        }
    }
}

/// Writes what a group has changed; answers what the rows of its basis are marked with now, that its rows
/// are locked.
pub(crate) fn write(
    conn: &mut Conn,
    group: &Group<'_>,
    basis: &Basis,
) -> QueryResult<BTreeSet<String>> {
    if let Conn::Postgres(conn) = conn {
        let statement = WriteGroup {
            new_requests: InsertRequests::of(group.new_requests),
            metadata: InsertMetadata::of(group.metadata),
            changed_requests: SaveRequests::of(group.changed_requests),
            spend_counters: SaveCountersOfKeys::of(group.spend_counters),
            wallets: SaveWallets::of(group.wallets),
            transactions: InsertTransactions::of(group.transactions),
            counters: SaveCounters::of(group.counters),
            rollups: AddRollups::of(group.rollups),
            basis,
        };
        let marks: Vec<(String, String)> = statement.load(conn)?;
        return Ok(marks.into_iter().map(|(_, mark)| mark).collect());
    }
    insert_requests(conn, group.new_requests)?;
    insert_metadata(conn, group.metadata)?;
    save_requests(conn, group.changed_requests)?;
    save_spend_counters(conn, group.spend_counters)?;
    save_wallets(conn, group.wallets)?;
    insert_transactions(conn, group.transactions)?;
    save_counters(conn, group.counters)?;
    add_rollups(conn, group.rollups)?;
    Ok(BTreeSet::new())
}

/// Which kind of row a line of [`ReadGroup`] is.
const REQUEST: &str = "request";
const SPEND_COUNTERS: &str = "spend_counters";
const WALLET: &str = "wallet";
const COUNTER: &str = "counter";
const TOLD: &str = "told";
const MARK: &str = "mark";

/// Reads what a group needs, each row as a line of its kind and its JSON. The parts of such a union are
/// run one after the other, so tables are locked in the order of the text.
struct ReadGroup<'a, const LOCKED: bool> {
    needed: &'a Needed,
    basis: &'a Basis,
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
        let Needed { requests, spend_keys, wallets, merchants, .. } = self.needed;
        if LOCKED {
            out.push_sql("WITH counters AS (");
            self.counters.walk_ast(out.reborrow())?;
            out.push_sql(") ");
        }
        // What is pending is known by whoever admitted it.
        out.push_sql(
            "SELECT 'request', CASE WHEN outcome IS NULL THEN to_json(request_id) \
             ELSE to_json(row) END::text FROM (SELECT * FROM requests WHERE request_id = ANY(",
        );
        push_ids(&mut out, requests, ") ORDER BY request_id", LOCKED)?;
        out.push_sql(
            ") row UNION ALL SELECT 'spend_counters', to_json(row)::text \
             FROM (SELECT * FROM spend_counters WHERE spend_key_id = ANY(",
        );
        push_ids(&mut out, spend_keys, ") ORDER BY spend_key_id", LOCKED)?;
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
        out.push_sql(
            ") row UNION ALL SELECT DISTINCT 'told', merchant_id FROM webhooks \
             WHERE requests_since IS NOT NULL AND merchant_id = ANY(",
        );
        out.push_bind_param::<Array<Text>, _>(merchants)?;
        out.push_sql(") UNION ALL ");
        self.basis.walk_ast(out)
    }
}

impl<const LOCKED: bool> RunQueryDsl<diesel::PgConnection> for ReadGroup<'_, LOCKED> {}

/// Ids, what follows them, and the lock. Locks are `FOR NO KEY UPDATE`, so inserts that refer to a row need
/// not wait for it.
fn push_ids<'b>(
    out: &mut AstPass<'_, 'b, Pg>,
    ids: &'b Vec<String>,
    end: &str,
    lock: bool,
) -> QueryResult<()> {
    out.push_bind_param::<Array<Text>, _>(ids)?;
    out.push_sql(end);
    if lock {
        out.push_sql(" FOR NO KEY UPDATE");
    }
    Ok(())
}

/// The marks of the rows of a basis. PostgreSQL's own mark of a row, `xmin`, is another after each change.
impl QueryFragment<Pg> for Basis {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        for (sql, ids) in [
            (
                "SELECT 'mark', secret_key_id FROM secret_keys \
                 WHERE deleted_at IS NULL AND secret_key_id = ANY(",
                &self.secret_keys,
            ),
            (
                ") UNION ALL SELECT 'mark', concat(spend_key_id, ' ', xmin) FROM spend_keys \
                 WHERE spend_key_id = ANY(",
                &self.spend_keys,
            ),
            (
                ") UNION ALL SELECT 'mark', concat(connection_id, ' ', xmin) FROM connections \
                 WHERE connection_id = ANY(",
                &self.connections,
            ),
            (
                ") UNION ALL SELECT 'mark', concat(meter_id, ' ', version, ' ', slug) FROM meters \
                 WHERE deleted_at IS NULL AND meter_id = ANY(",
                &self.meters,
            ),
            (
                ") UNION ALL SELECT 'mark', concat(wallet_id, ' ', \
                 overdraft_limit IS NOT NULL OR balance <= -4000000000000000000) \
                 FROM wallets WHERE wallet_id = ANY(",
                &self.accounts,
            ),
        ] {
            out.push_sql(sql);
            out.push_bind_param::<Array<Text>, _>(ids)?;
        }
        out.push_sql(")");
        Ok(())
    }
}

/// Writes what a group has changed, and tells the marks of its basis. All that others may have locked is
/// locked by the group, but for the roll-ups.
struct WriteGroup<'a> {
    new_requests: InsertRequests,
    metadata: InsertMetadata,
    changed_requests: SaveRequests,
    spend_counters: SaveCountersOfKeys,
    wallets: SaveWallets,
    transactions: InsertTransactions,
    counters: SaveCounters,
    rollups: AddRollups,
    basis: &'a Basis,
}

impl QueryId for WriteGroup<'_> {
    type QueryId = WriteGroup<'static>;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl Query for WriteGroup<'_> {
    type SqlType = (Text, Text);
}

impl QueryFragment<Pg> for WriteGroup<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let parts: [(&str, &'b dyn QueryFragment<Pg>); 8] = [
            ("WITH new_requests AS (", &self.new_requests),
            ("), metadata AS (", &self.metadata),
            ("), changed_requests AS (", &self.changed_requests),
            ("), keys AS (", &self.spend_counters),
            ("), accounts AS (", &self.wallets),
            ("), lines AS (", &self.transactions),
            ("), counters AS (", &self.counters),
            ("), sums AS (", &self.rollups),
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
