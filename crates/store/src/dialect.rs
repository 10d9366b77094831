//! The differences between SQLite and PostgreSQL.
//!
//! SQLite has one writer at a time, so a read in a write transaction is a lock. Statements run in process, so a loop
//! over cached single-row statements is the fastest batch. PostgreSQL locks rows, always in the order of their ids
//! within a table. Every round trip counts, so a batch is one statement whose rows are one parameter. Row locks are
//! `FOR NO KEY UPDATE`: inserts that refer to a locked row need not wait.

pub(crate) mod fold;
pub(crate) mod group;
mod reading;

use std::array::from_ref;

use diesel::connection::SimpleConnection;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Array, Binary, Text};
use diesel::upsert::excluded;
use diesel::{QueryResult, RunQueryDsl};
use sha2::{Digest, Sha256};
use tollgate_domain::{
    BudgetId, ConnectionId, MerchantId, RequestId, SecretKeyId, SpendKeyId, SubscriptionConfigId,
    SubscriptionId, Timestamp, Wallet, WalletId, WebhookId,
};

use crate::conn::Conn;
use crate::ids::{AnyId, Id};
use crate::prepared::{
    DataVersion, InsertSomeTransactions, InsertTransactions, ROWS_AT_ONCE, SaveCounter,
    SaveCounters, SaveCountersOfAccounts, SaveSpendCounters, SaveWallet, SaveWallets,
};
use crate::rows::{
    AnswerRow, BudgetRow, ConfigRow, ConfigVersionRow, ConnectionRow, CorrectionRow, DeliveryRow,
    EventRow, JobRow, MissingPriceRow, OpenCallRow, ProviderObjectRow, RefusalCountRow, RefusalRow,
    ReportedUsageRow, RepricingRow, RequestRow, RunRow, SpendCountersRow, SpendKeyRow,
    SubscriptionRow, TierCounterRow, TransactionRow, WalletRow, WebhookRow, to_json,
};
use crate::schema::{
    archive_state, budgets, connections, corrections, deliveries, events, idempotent_answers, jobs,
    merchants, missing_prices, open_calls, provider_events, provider_objects, refusal_counts,
    refusals, reported_usage, repricings, requests, runs, secret_keys, spend_counters, spend_keys,
    subscription_config_versions, subscription_configs, subscriptions, wallets, webhooks,
};
pub(crate) use reading::{
    BoundValue, RefusalCountsQuery, SeriesColumn, SlotRange, SummedCalls, UsageQuery, plan,
};

diesel::define_sql_function! {
    /// Takes a lock until the transaction ends, if it is free.
    #[sql_name = "pg_try_advisory_xact_lock"]
    fn try_advisory_lock(number: diesel::sql_types::BigInt) -> diesel::sql_types::Bool;
}

/// Prepares a connection for the ledger. The ledger's statements are few and find rows by keys, so each is planned
/// once. A plan made while a table was empty must not scan the table later. An index scan of a few rows begins faster
/// than a bitmap scan, and gives them in order. Citus finds the server of a row by the values of a statement, so with
/// it, a plan is for its values.
pub(crate) fn prepare_for_ledger(conn: &mut Conn) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(_) => Ok(()),
        Conn::Postgres(conn) => {
            let plan_once = "SELECT set_config('plan_cache_mode', 'force_generic_plan', false) \
                             WHERE NOT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'citus')";
            conn.batch_execute(&format!(
                "{plan_once}; SET enable_seqscan = off; SET enable_bitmapscan = off"
            ))
        }
    }
}

/// Runs a cached single-row query for each id. The result omits ids without a row.
fn find_each<Id, Row>(
    ids: &[Id],
    mut find: impl FnMut(&Id) -> QueryResult<Row>,
) -> QueryResult<Vec<Row>> {
    ids.iter().filter_map(|id| find(id).optional().transpose()).collect()
}

/// Runs a cached single-row statement for each row.
fn execute_each<Row>(
    rows: &[Row],
    mut execute: impl FnMut(&Row) -> QueryResult<usize>,
) -> QueryResult<()> {
    rows.iter().try_for_each(|row| execute(row).map(drop))
}

/// Runs a cached statement for several rows at a time, and another for each remaining row.
fn execute_batched<Row>(
    conn: &mut SqliteConnection,
    rows: &[Row],
    mut some: impl FnMut(&mut SqliteConnection, &[Row; ROWS_AT_ONCE]) -> QueryResult<usize>,
    mut one: impl FnMut(&mut SqliteConnection, &[Row; 1]) -> QueryResult<usize>,
) -> QueryResult<()> {
    let (chunks, left) = rows.as_chunks();
    execute_each(chunks, |rows| some(conn, rows))?;
    execute_each(left, |row| one(conn, from_ref(row)))
}

/// Locks a merchant's row until the transaction ends. The lock guards the rows that depend
/// on the merchant.
pub(crate) fn lock_merchant(conn: &mut Conn, merchant_id: MerchantId) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(_) => Ok(()),
        Conn::Postgres(conn) => merchants::table
            .find(Id(merchant_id))
            .select(merchants::merchant_id)
            .for_no_key_update()
            .first::<Id<MerchantId>>(conn)
            .optional()
            .map(drop),
    }
}

/// The lock under which rows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLock {
    /// No lock: the rows are not changed.
    No,
    /// The rows are locked until the transaction ends.
    Rows,
}

/// A number that changes when another connection has written to a SQLite file.
pub(crate) fn data_version(conn: &mut Conn) -> QueryResult<i32> {
    match conn {
        Conn::Sqlite(conn) => DataVersion.get_result(conn),
        Conn::Postgres(_) => Ok(0),
    }
}

/// Turns off the checkpoints of this connection, so that commits stay in SQLite's log until a [checkpoint]. Otherwise
/// SQLite would make one at the end of a commit: other connections see the commit, but its caller still waits.
pub(crate) fn disable_auto_checkpoint(conn: &mut Conn) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => conn.batch_execute("PRAGMA wal_autocheckpoint = 0"),
        Conn::Postgres(_) => Ok(()),
    }
}

/// Moves committed pages from SQLite's log to the database file, as far as no reader needs the log. Returns `None`
/// while another connection makes a checkpoint.
pub(crate) fn checkpoint(conn: &mut Conn) -> QueryResult<Option<Checkpoint>> {
    match conn {
        Conn::Sqlite(conn) => {
            let answer: CheckpointRow =
                diesel::sql_query("PRAGMA wal_checkpoint(PASSIVE)").get_result(conn)?;
            let pages = u64::try_from(answer.log).ok();
            let left = u64::try_from(answer.log.saturating_sub(answer.checkpointed)).unwrap_or(0);
            Ok(pages.map(|pages| Checkpoint { pages, left }))
        }
        Conn::Postgres(_) => Ok(None),
    }
}

/// The damage that SQLite finds in a file, if any. It reads the whole file.
pub(crate) fn find_damage(conn: &mut Conn) -> QueryResult<Option<String>> {
    #[derive(QueryableByName)]
    struct QuickCheckRow {
        #[diesel(sql_type = Text)]
        quick_check: String,
    }
    let Conn::Sqlite(conn) = conn else { return Ok(None) };
    let answer = diesel::sql_query("PRAGMA quick_check(1)").get_result::<QuickCheckRow>(conn);
    Ok(match answer {
        Ok(answer) => Some(answer.quick_check).filter(|said| said != "ok"),
        // The file is too damaged to be checked.
        Err(diesel::result::Error::DatabaseError(_, why)) => Some(why.message().to_owned()),
        Err(cause) => return Err(cause),
    })
}

/// The result of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    /// The pages in the log when the checkpoint began.
    pub(crate) pages: u64,
    /// The pages of them that are not moved, because a read needs them. If there are none, SQLite writes its log from the
    /// beginning again, unless more was written since.
    pub(crate) left: u64,
}

/// SQLite's answer to a checkpoint, in pages.
#[derive(QueryableByName)]
struct CheckpointRow {
    #[diesel(sql_type = diesel::sql_types::Integer)]
    log: i32,
    #[diesel(sql_type = diesel::sql_types::Integer)]
    checkpointed: i32,
}

/// The start of the server of PostgreSQL, as a time zone does not change it, and the database, in SQL.
const START: &str = "extract(epoch FROM pg_postmaster_start_time()), \
                     (SELECT oid FROM pg_database WHERE datname = current_database())";

/// The identity of the database and its state. It changes after a restart, a failover and a restore. `None` for a
/// database that loses no commits, or that does not report it.
pub(crate) fn identity(conn: &mut Conn) -> Option<String> {
    match conn {
        Conn::Sqlite(_) => None,
        Conn::Postgres(conn) => diesel::select(sql::<Text>(&format!(
            "concat_ws(' ', (SELECT system_identifier FROM pg_control_system()), \
             left(pg_walfile_name(pg_current_wal_lsn()), 8), {START})"
        )))
        .get_result(conn)
        .ok(),
    }
}

/// The language of the database's messages, such as `de_DE.UTF-8`. `None` for one that does not translate them.
pub(crate) fn message_language(conn: &mut Conn) -> QueryResult<Option<String>> {
    match conn {
        Conn::Sqlite(_) => Ok(None),
        Conn::Postgres(conn) => {
            diesel::select(sql::<Text>("current_setting('lc_messages')")).get_result(conn).map(Some)
        }
    }
}

/// The place of series and sets: the start of the server, the database, and the files of their tables. What was committed
/// there is still there. Empty on SQLite, which loses no commits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeriesPlace(pub(crate) String);

/// Returns the place that this transaction writes series to.
pub(crate) fn series_place(conn: &mut Conn) -> QueryResult<SeriesPlace> {
    match conn {
        Conn::Sqlite(_) => Ok(SeriesPlace::default()),
        Conn::Postgres(conn) => diesel::select(sql::<Text>(&format!(
            "concat_ws(' ', {START}, pg_relation_filenode('usage_series'), \
             pg_relation_filenode('metadata_sets'))"
        )))
        .get_result(conn)
        .map(SeriesPlace),
    }
}

/// Whether the database locks rows. A group may then be decided without locks first. On SQLite a writer is alone.
pub(crate) const fn has_row_locks(conn: &Conn) -> bool {
    match conn {
        Conn::Sqlite(_) => false,
        Conn::Postgres(_) => true,
    }
}

/// Returns the wallets with these ids, under `lock`. `ids` must ascend.
pub(crate) fn wallets(
    conn: &mut Conn,
    ids: &[Id<WalletId>],
    lock: RowLock,
) -> QueryResult<Vec<WalletRow>> {
    match conn {
        Conn::Sqlite(conn) => find_each(ids, |id| {
            wallets::table.find(id).select(WalletRow::as_select()).get_result(conn)
        }),
        Conn::Postgres(conn) => {
            let rows = wallets::table
                .filter(wallets::wallet_id.eq_any(ids))
                .order(wallets::wallet_id)
                .select(WalletRow::as_select());
            match lock {
                RowLock::No => rows.load(conn),
                RowLock::Rows => rows.for_no_key_update().load(conn),
            }
        }
    }
}

/// Returns the subscriptions with these ids. A caller that changes them must hold the locks of their wallets.
pub(crate) fn subscriptions(
    conn: &mut Conn,
    ids: &[Id<SubscriptionId>],
) -> QueryResult<Vec<SubscriptionRow>> {
    match conn {
        Conn::Sqlite(conn) => find_each(ids, |id| {
            subscriptions::table.find(id).select(SubscriptionRow::as_select()).get_result(conn)
        }),
        Conn::Postgres(conn) => subscriptions::table
            .filter(subscriptions::subscription_id.eq_any(ids))
            .select(SubscriptionRow::as_select())
            .load(conn),
    }
}

/// Returns the plans with these ids, each with its versions in order.
pub(crate) fn subscription_configs(
    conn: &mut Conn,
    ids: &[Id<SubscriptionConfigId>],
) -> QueryResult<Vec<(ConfigRow, ConfigVersionRow)>> {
    macro_rules! with_versions {
        () => {
            subscription_configs::table
                .inner_join(subscription_config_versions::table)
                .order((
                    subscription_configs::subscription_config_id,
                    subscription_config_versions::version,
                ))
                .select((ConfigRow::as_select(), ConfigVersionRow::as_select()))
        };
    }
    match conn {
        Conn::Sqlite(conn) => {
            let mut rows = Vec::new();
            for id in ids {
                let one = subscription_configs::subscription_config_id.eq(id);
                rows.extend(with_versions!().filter(one).load(conn)?);
            }
            Ok(rows)
        }
        Conn::Postgres(conn) => with_versions!()
            .filter(subscription_configs::subscription_config_id.eq_any(ids))
            .load(conn),
    }
}

/// Returns the open calls with these ids.
pub(crate) fn open_calls(conn: &mut Conn, ids: &[Id<RequestId>]) -> QueryResult<Vec<OpenCallRow>> {
    match conn {
        Conn::Sqlite(conn) => find_each(ids, |id| {
            open_calls::table.find(id).select(OpenCallRow::as_select()).get_result(conn)
        }),
        Conn::Postgres(conn) => open_calls::table
            .filter(open_calls::request_id.eq_any(ids))
            .select(OpenCallRow::as_select())
            .load(conn),
    }
}

/// Returns the merchant and the id of each settled call among `ids`. It searches the calls of all merchants, so it is
/// for the few calls that are settled twice.
pub(crate) fn request_keys(
    conn: &mut Conn,
    ids: &[Id<RequestId>],
) -> QueryResult<Vec<(Id<MerchantId>, Id<RequestId>)>> {
    #[derive(QueryableByName)]
    struct RequestKeyRow {
        #[diesel(sql_type = Binary)]
        merchant_id: Id<MerchantId>,
        #[diesel(sql_type = Binary)]
        request_id: Id<RequestId>,
    }
    let keys: Vec<RequestKeyRow> = match conn {
        Conn::Sqlite(conn) => diesel::sql_query(
            "SELECT r.merchant_id, r.request_id FROM json_each(?) AS i CROSS JOIN merchants AS m \
             CROSS JOIN requests AS r WHERE r.merchant_id = m.merchant_id AND r.request_id = unhex(substr(i.value, 3))",
        )
        .bind::<Text, _>(to_json(&ids))
        .load(conn),
        Conn::Postgres(conn) => diesel::sql_query(
            "SELECT r.merchant_id, r.request_id FROM unnest($1) AS i (id) CROSS JOIN merchants AS m \
             CROSS JOIN LATERAL (SELECT merchant_id, request_id FROM requests AS r \
             WHERE r.merchant_id = m.merchant_id AND r.request_id = i.id OFFSET 0) AS r",
        )
        .bind::<Array<Binary>, _>(ids)
        .load(conn),
    }?;
    Ok(keys.into_iter().map(|key| (key.merchant_id, key.request_id)).collect())
}

/// Returns a merchant's records with these ids, under `lock`. `ids` must ascend.
pub(crate) fn requests(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: &[Id<RequestId>],
    lock: RowLock,
) -> QueryResult<Vec<RequestRow>> {
    match conn {
        Conn::Sqlite(conn) => find_each(ids, |id| {
            requests::table
                .find((Id(merchant_id), id))
                .select(RequestRow::as_select())
                .get_result(conn)
        }),
        Conn::Postgres(conn) => {
            let rows = requests::table
                .filter(requests::merchant_id.eq(Id(merchant_id)))
                .filter(requests::request_id.eq_any(ids))
                .order(requests::request_id)
                .select(RequestRow::as_select());
            match lock {
                RowLock::No => rows.load(conn),
                RowLock::Rows => rows.for_no_key_update().load(conn),
            }
        }
    }
}

/// The facts of a key that an admission needs: its id, its merchant, the merchant's wallet, whether that wallet is
/// [guarded](is_guarded), and whether the merchant has moved.
pub(crate) type SecretKeyFacts = (Id<SecretKeyId>, Id<MerchantId>, Id<WalletId>, bool, bool);

/// Whether admissions check a merchant's own wallet: it has a limit, or almost no room.
#[diesel::dsl::auto_type(no_type_alias)]
fn is_guarded() -> _ {
    let is_limited: diesel::dsl::IsNotNull<wallets::overdraft_limit> =
        wallets::overdraft_limit.is_not_null();
    let is_low: diesel::dsl::LtEq<wallets::balance, i64> = wallets::balance.le(GUARDED_FROM);
    is_limited.or(is_low)
}

/// The trigger on wallets that counts configuration changes has the same number in SQL.
const GUARDED_FROM: i64 = -4_000_000_000_000_000_000;
const _: () = assert!(GUARDED_FROM == Wallet::LEAST_BALANCE.units());

/// Returns the facts of the valid secret keys among `ids`.
pub(crate) fn secret_key_facts(
    conn: &mut Conn,
    ids: &[Id<SecretKeyId>],
) -> QueryResult<Vec<SecretKeyFacts>> {
    macro_rules! facts {
        () => {
            secret_keys::table
                .inner_join(merchants::table)
                .inner_join(wallets::table.on(wallets::wallet_id.eq(merchants::wallet_id)))
                .filter(secret_keys::deleted_at.is_null())
                .select((
                    secret_keys::secret_key_id,
                    merchants::merchant_id,
                    merchants::wallet_id,
                    is_guarded(),
                    merchants::moved_to.is_not_null(),
                ))
        };
    }
    match conn {
        Conn::Sqlite(conn) => {
            find_each(ids, |id| facts!().filter(secret_keys::secret_key_id.eq(id)).get_result(conn))
        }
        Conn::Postgres(conn) => facts!().filter(secret_keys::secret_key_id.eq_any(ids)).load(conn),
    }
}

/// A spend key, its merchant's wallet, whether that wallet is [guarded](is_guarded), and whether the merchant has moved.
pub(crate) type SpendKeyFacts = (SpendKeyRow, Id<WalletId>, bool, bool);

/// Returns the facts of the spend keys with these ids, deleted or not.
pub(crate) fn spend_key_facts(
    conn: &mut Conn,
    ids: &[Id<SpendKeyId>],
) -> QueryResult<Vec<SpendKeyFacts>> {
    macro_rules! facts {
        () => {
            spend_keys::table
                .inner_join(merchants::table)
                .inner_join(wallets::table.on(wallets::wallet_id.eq(merchants::wallet_id)))
                .select((
                    SpendKeyRow::as_select(),
                    merchants::wallet_id,
                    is_guarded(),
                    merchants::moved_to.is_not_null(),
                ))
        };
    }
    match conn {
        Conn::Sqlite(conn) => {
            find_each(ids, |id| facts!().filter(spend_keys::spend_key_id.eq(id)).get_result(conn))
        }
        Conn::Postgres(conn) => facts!().filter(spend_keys::spend_key_id.eq_any(ids)).load(conn),
    }
}

/// Returns the counters of the spend keys and budgets with these ids, locked. `ids` must ascend.
pub(crate) fn lock_spend_counters(
    conn: &mut Conn,
    ids: &[Id<AnyId>],
) -> QueryResult<Vec<SpendCountersRow>> {
    match conn {
        Conn::Sqlite(conn) => find_each(ids, |id| {
            spend_counters::table.find(id).select(SpendCountersRow::as_select()).get_result(conn)
        }),
        Conn::Postgres(conn) => spend_counters::table
            .filter(spend_counters::account_id.eq_any(ids))
            .order(spend_counters::account_id)
            .select(SpendCountersRow::as_select())
            .for_no_key_update()
            .load(conn),
    }
}

/// Writes locked counters of spend keys and budgets.
pub(crate) fn save_spend_counters(conn: &mut Conn, rows: &[SpendCountersRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| SaveSpendCounters(row).execute(conn)),
        Conn::Postgres(conn) => SaveCountersOfAccounts::of(rows).execute(conn).map(drop),
    }
}

pub(crate) fn insert_events(conn: &mut Conn, rows: &[EventRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => {
            execute_each(rows, |row| diesel::insert_into(events::table).values(row).execute(conn))
        }
        Conn::Postgres(conn) => {
            diesel::insert_into(events::table).values(rows).execute(conn).map(drop)
        }
    }
}

pub(crate) fn insert_deliveries(conn: &mut Conn, rows: &[DeliveryRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| {
            diesel::insert_into(deliveries::table).values(row).execute(conn)
        }),
        Conn::Postgres(conn) => {
            diesel::insert_into(deliveries::table).values(rows).execute(conn).map(drop)
        }
    }
}

/// Locks the outbox against other nodes until the transaction ends. Returns whether the lock was free.
pub(crate) fn try_lock_outbox(conn: &mut Conn) -> QueryResult<bool> {
    try_lock_advisory(conn, "outbox")
}

/// Begins a transaction that does nothing but hold a lock, if it is free. SQLite has none.
///
/// Sessions have such locks as well. But behind a pooler, a session outlives the connection to the pooler.
pub(crate) fn try_begin_lock(conn: &mut Conn, name: &str) -> QueryResult<bool> {
    if let Conn::Postgres(conn) = conn {
        conn.batch_execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0")?;
    }
    try_lock_advisory(conn, name)
}

/// Ends the transaction of [`try_begin_lock`].
pub(crate) fn end_lock(conn: &mut Conn) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(_) => Ok(()),
        Conn::Postgres(conn) => conn.batch_execute("ROLLBACK"),
    }
}

fn try_lock_advisory(conn: &mut Conn, name: &str) -> QueryResult<bool> {
    match conn {
        Conn::Sqlite(_) => Ok(true),
        Conn::Postgres(conn) => {
            diesel::select(try_advisory_lock(advisory_number(name))).get_result(conn)
        }
    }
}

/// Returns the webhooks with these ids, deleted or not, locked. `ids` must ascend.
pub(crate) fn lock_webhooks(
    conn: &mut Conn,
    ids: &[Id<WebhookId>],
) -> QueryResult<Vec<WebhookRow>> {
    match conn {
        Conn::Sqlite(conn) => find_each(ids, |id| {
            webhooks::table.find(id).select(WebhookRow::as_select()).get_result(conn)
        }),
        Conn::Postgres(conn) => webhooks::table
            .filter(webhooks::webhook_id.eq_any(ids))
            .order(webhooks::webhook_id)
            .select(WebhookRow::as_select())
            .for_no_key_update()
            .load(conn),
    }
}

/// Returns and locks the webhooks that are due, longest due first. Webhooks with these ids, of these merchants, or
/// locked by another node are omitted.
pub(crate) fn lock_due_webhooks(
    conn: &mut Conn,
    now: i64,
    (webhook_ids, merchant_ids): (Vec<Id<WebhookId>>, Vec<Id<MerchantId>>),
    most: i64,
) -> QueryResult<Vec<WebhookRow>> {
    macro_rules! due {
        () => {
            webhooks::table
                .filter(webhooks::due_at.le(now))
                .filter(webhooks::webhook_id.ne_all(webhook_ids))
                .filter(webhooks::merchant_id.ne_all(merchant_ids))
                .order(webhooks::due_at)
                .limit(most)
                .select(WebhookRow::as_select())
        };
    }
    match conn {
        Conn::Sqlite(conn) => due!().load(conn),
        Conn::Postgres(conn) => due!().for_no_key_update().skip_locked().load(conn),
    }
}

/// Returns the connections with these ids, deleted or not, of any merchant.
pub(crate) fn connections_by_id(
    conn: &mut Conn,
    ids: &[Id<ConnectionId>],
) -> QueryResult<Vec<ConnectionRow>> {
    match conn {
        Conn::Sqlite(conn) => find_each(ids, |id| {
            connections::table.find(id).select(ConnectionRow::as_select()).get_result(conn)
        }),
        Conn::Postgres(conn) => connections::table
            .filter(connections::connection_id.eq_any(ids))
            .select(ConnectionRow::as_select())
            .load(conn),
    }
}

/// The budgets with these ids, deleted or not.
pub(crate) fn budgets_by_id(conn: &mut Conn, ids: &[Id<BudgetId>]) -> QueryResult<Vec<BudgetRow>> {
    match conn {
        Conn::Sqlite(conn) => find_each(ids, |id| {
            budgets::table.find(id).select(BudgetRow::as_select()).get_result(conn)
        }),
        Conn::Postgres(conn) => budgets::table
            .filter(budgets::budget_id.eq_any(ids))
            .select(BudgetRow::as_select())
            .load(conn),
    }
}

/// Claims a reference of reported usage. Returns whether it was free. A second claim waits until the first transaction
/// ends.
pub(crate) fn claim_reference(conn: &mut Conn, row: &ReportedUsageRow) -> QueryResult<bool> {
    let claimed = crate::conn::each_database!(conn, conn => {
        diesel::insert_into(reported_usage::table)
            .values(row)
            .on_conflict_do_nothing()
            .execute(conn)
    });
    claimed.map(|count| count > 0)
}

pub(crate) fn insert_corrections(conn: &mut Conn, rows: &[CorrectionRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| {
            diesel::insert_into(corrections::table).values(row).execute(conn)
        }),
        Conn::Postgres(conn) => {
            diesel::insert_into(corrections::table).values(rows).execute(conn).map(drop)
        }
    }
}

pub(crate) fn insert_transactions(conn: &mut Conn, rows: &[TransactionRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => {
            let some = |conn: &mut _, rows: &_| InsertSomeTransactions(rows).execute(conn);
            execute_batched(conn, rows, some, |conn, row| InsertSomeTransactions(row).execute(conn))
        }
        Conn::Postgres(conn) => InsertTransactions::of(rows).execute(conn).map(drop),
    }
}

/// Writes locked wallets.
pub(crate) fn save_wallets(conn: &mut Conn, rows: &[WalletRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| SaveWallet(row).execute(conn)),
        Conn::Postgres(conn) => SaveWallets::of(rows).execute(conn).map(drop),
    }
}

/// Writes locked counters.
pub(crate) fn save_counters(conn: &mut Conn, rows: &[TierCounterRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| SaveCounter(row).execute(conn)),
        Conn::Postgres(conn) => SaveCounters::of(rows).execute(conn).map(drop),
    }
}

/// Claims an idempotency key. Returns whether it was free. A second claim waits until the first transaction ends.
pub(crate) fn claim_idempotency_key(conn: &mut Conn, row: &AnswerRow) -> QueryResult<bool> {
    let claimed = crate::conn::each_database!(conn, conn => {
        diesel::insert_into(idempotent_answers::table)
            .values(row)
            .on_conflict_do_nothing()
            .execute(conn)
    });
    claimed.map(|count| count > 0)
}

/// Inserts a job, unless one has its provider and object. Returns whether it was inserted.
pub(crate) fn insert_job(conn: &mut Conn, row: &JobRow) -> QueryResult<bool> {
    let inserted = match conn {
        Conn::Sqlite(conn) => diesel::insert_or_ignore_into(jobs::table).values(row).execute(conn),
        Conn::Postgres(conn) => {
            diesel::insert_into(jobs::table).values(row).on_conflict_do_nothing().execute(conn)
        }
    };
    Ok(inserted? > 0)
}

/// Inserts objects of providers. An object that is known already keeps its owner, and gets its tokens.
pub(crate) fn insert_provider_objects(
    conn: &mut Conn,
    rows: &[ProviderObjectRow],
) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| {
            diesel::insert_into(provider_objects::table)
                .values(row)
                .on_conflict((provider_objects::object_id, provider_objects::provider))
                .do_update()
                .set(provider_objects::tokens.eq(excluded(provider_objects::tokens)))
                .execute(conn)
        }),
        // Row by row, because a batch may have an object twice.
        Conn::Postgres(conn) => execute_each(rows, |row| {
            diesel::insert_into(provider_objects::table)
                .values(row)
                .on_conflict((provider_objects::object_id, provider_objects::provider))
                .do_update()
                .set(provider_objects::tokens.eq(excluded(provider_objects::tokens)))
                .execute(conn)
        }),
    }
}

/// Inserts the event of a provider about an object, unless one is kept.
pub(crate) fn insert_provider_event(
    conn: &mut Conn,
    provider: &str,
    object_id: &str,
    now: Timestamp,
) -> QueryResult<()> {
    let row = (
        provider_events::provider.eq(provider),
        provider_events::object_id.eq(object_id),
        provider_events::received_at.eq(now.unix_micros()),
    );
    let inserted = match conn {
        Conn::Sqlite(conn) => {
            diesel::insert_or_ignore_into(provider_events::table).values(row).execute(conn)
        }
        Conn::Postgres(conn) => diesel::insert_into(provider_events::table)
            .values(row)
            .on_conflict_do_nothing()
            .execute(conn),
    };
    inserted.map(drop)
}

/// Inserts new runs with their counters. Returns whether none of them exists already. The rows must ascend.
pub(crate) fn create_runs(
    conn: &mut Conn,
    counters: &[SpendCountersRow],
    rows: &[RunRow],
) -> QueryResult<bool> {
    let created = match conn {
        Conn::Sqlite(conn) => {
            let mut created = 0;
            for row in counters {
                created += diesel::insert_or_ignore_into(spend_counters::table)
                    .values(row)
                    .execute(conn)?;
            }
            created
        }
        Conn::Postgres(conn) => diesel::insert_into(spend_counters::table)
            .values(counters)
            .on_conflict_do_nothing()
            .execute(conn)?,
    };
    if created < counters.len() {
        return Ok(false);
    }
    crate::conn::each_database!(conn, conn => {
        for row in rows {
            diesel::insert_into(runs::table).values(row).execute(conn)?;
        }
        Ok(true)
    })
}

/// Locks the missing prices of a merchant until the transaction ends.
pub(crate) fn lock_missing_prices(conn: &mut Conn, merchant_id: MerchantId) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(_) => Ok(()),
        Conn::Postgres(conn) => {
            // No row may exist yet that could be locked, and the merchant's row must be locked before all others.
            lock_advisory(conn, &format!("missing prices of {merchant_id}"))
        }
    }
}

/// The instant until which months are closed for the archive, in microseconds since 1970. It stays until the transaction
/// ends.
pub(crate) fn closed_until(conn: &mut Conn) -> QueryResult<i64> {
    let state = archive_state::table.select(archive_state::closed_until);
    let closed = match conn {
        Conn::Sqlite(conn) => state.first(conn).optional()?,
        Conn::Postgres(conn) => state.for_share().first(conn).optional()?,
    };
    Ok(closed.unwrap_or_default())
}

/// Gives up to `most` free pages of a SQLite file back to the file system. Returns whether there are more. A file that was
/// made by an early version keeps them, and writes new rows there.
pub(crate) fn give_back_pages(conn: &mut Conn, most: usize) -> QueryResult<bool> {
    let Conn::Sqlite(conn) = conn else { return Ok(false) };
    let pragma = |conn: &mut SqliteConnection, name: &str| {
        let value =
            diesel::dsl::sql::<diesel::sql_types::BigInt>(&format!("{name} FROM pragma_{name}"));
        diesel::select(value).get_result::<i64>(conn)
    };
    const INCREMENTAL: i64 = 2;
    if pragma(conn, "auto_vacuum")? != INCREMENTAL || pragma(conn, "freelist_count")? == 0 {
        return Ok(false);
    }
    conn.batch_execute(&format!("PRAGMA incremental_vacuum({most})"))?;
    Ok(true)
}

/// Locks the creation of partitions until the transaction ends.
pub(crate) fn lock_partitions(conn: &mut PgConnection) -> QueryResult<()> {
    lock_advisory(conn, "partitions")
}

fn lock_advisory(conn: &mut PgConnection, what: &str) -> QueryResult<()> {
    diesel::sql_query("SELECT pg_advisory_xact_lock($1)")
        .bind::<diesel::sql_types::BigInt, _>(advisory_number(what))
        .execute(conn)
        .map(drop)
}

/// The number of an advisory lock. All users of a database share these numbers; the hash avoids collisions with other
/// users.
fn advisory_number(what: &str) -> i64 {
    let hash = Sha256::digest(what);
    hash.iter().take(8).fold(0_i64, |all, byte| (all << 8) | i64::from(*byte))
}

/// Inserts missing prices.
pub(crate) fn insert_missing_prices(conn: &mut Conn, rows: &[MissingPriceRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| {
            diesel::insert_or_ignore_into(missing_prices::table).values(row).execute(conn)
        }),
        Conn::Postgres(conn) => diesel::insert_into(missing_prices::table)
            .values(rows)
            .on_conflict_do_nothing()
            .execute(conn)
            .map(drop),
    }
}

/// Inserts the repricings of records.
pub(crate) fn insert_repricings(conn: &mut Conn, rows: &[RepricingRow]) -> QueryResult<()> {
    match conn {
        Conn::Sqlite(conn) => execute_each(rows, |row| {
            diesel::insert_into(repricings::table).values(row).execute(conn)
        }),
        Conn::Postgres(conn) => {
            diesel::insert_into(repricings::table).values(rows).execute(conn).map(drop)
        }
    }
}

/// Inserts refusals.
pub(crate) fn insert_refusals(conn: &mut Conn, rows: &[RefusalRow]) -> QueryResult<()> {
    /// PostgreSQL takes 65,535 values.
    const AT_ONCE: usize = 2_000;
    match conn {
        Conn::Sqlite(conn) => {
            execute_each(rows, |row| diesel::insert_into(refusals::table).values(row).execute(conn))
        }
        Conn::Postgres(conn) => rows.chunks(AT_ONCE).try_for_each(|rows| {
            diesel::insert_into(refusals::table).values(rows).execute(conn).map(drop)
        }),
    }
}

/// Adds to numbers of refusals. `rows` must ascend.
pub(crate) fn add_refusal_counts(conn: &mut Conn, rows: &[RefusalCountRow]) -> QueryResult<()> {
    let count = refusal_counts::count;
    crate::conn::each_database!(conn, conn => {
        execute_each(rows, |row| {
            diesel::insert_into(refusal_counts::table)
                .values(row)
                .on_conflict((
                    refusal_counts::merchant_id,
                    refusal_counts::slot,
                    refusal_counts::code,
                    refusal_counts::spend_key_id,
                    refusal_counts::connection_id,
                ))
                .do_update()
                .set(count.eq(count + excluded(count)))
                .execute(conn)
        })
    })
}
