//! The statements that write the changes of calls, each prepared once per connection.
//!
//! Diesel prepares an `UPDATE` again each time, because its builder cannot know the columns that it will set. The same
//! holds for an `INSERT` of several rows, because its text depends on their number. These statements always set the
//! same columns. On SQLite there is one for each row, or for several. On PostgreSQL all rows of a batch are one
//! parameter, a JSON list.

use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{BigInt, Binary, Bool, Integer, Nullable, SmallInt, Text};
use diesel::sqlite::Sqlite;

use tollgate_domain::RequestId;

use crate::ids::Id;
use crate::rows::{
    OpenCallRow, QueueRow, RequestIndexRow, RequestRow, RollupRow, SetRollupRow, SpendCountersRow,
    TierCounterRow, TransactionRow, WalletRow, to_json, with_sums,
};

/// Parts of the statements that add to a row of the roll-ups. A sum that would leave the range of its column is clamped.
/// SQLite returns such a sum as a real number.
macro_rules! sums_in_statements {
    ($first:ident $(, $sum:ident)*) => {
        const SUM_COLUMNS: &str = concat!(", ", stringify!($first) $(, ", ", stringify!($sum) )*);

        const ADDED_ON_SQLITE: &str =
            concat!(added_on_sqlite!($first) $(, ", ", added_on_sqlite!($sum))*);

        const ADD_ON_POSTGRES: &str = concat!(
            " ON CONFLICT (series_id, width, slot) DO UPDATE SET ",
            added_on_postgres!($first) $(, ", ", added_on_postgres!($sum))*
        );

        const ADD_TO_SET_ON_POSTGRES: &str = concat!(
            " ON CONFLICT (merchant_id, width, slot, set_id) DO UPDATE SET ",
            added_on_postgres!($first) $(, ", ", added_on_postgres!($sum))*
        );
    };
}

macro_rules! added_on_sqlite {
    ($sum:ident) => {
        concat!(
            stringify!($sum),
            " = CASE WHEN typeof(",
            stringify!($sum),
            " + excluded.",
            stringify!($sum),
            ") = 'integer' THEN ",
            stringify!($sum),
            " + excluded.",
            stringify!($sum),
            " WHEN excluded.",
            stringify!($sum),
            " > 0 THEN 9223372036854775807 ELSE -9223372036854775808 END"
        )
    };
}

macro_rules! added_on_postgres {
    ($sum:ident) => {
        concat!(
            stringify!($sum),
            " = least(greatest(kept.",
            stringify!($sum),
            "::numeric + excluded.",
            stringify!($sum),
            ", -9223372036854775808), 9223372036854775807)::bigint"
        )
    };
}

with_sums!(sums_in_statements);

/// Reads a number that changes when another connection has written to the SQLite file.
pub(crate) struct DataVersion;

impl QueryId for DataVersion {
    type QueryId = Self;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl Query for DataVersion {
    type SqlType = Integer;
}

impl QueryFragment<Sqlite> for DataVersion {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        out.push_sql("PRAGMA data_version");
        Ok(())
    }
}

impl diesel::RunQueryDsl<diesel::SqliteConnection> for DataVersion {}

macro_rules! fixed_statement {
    ($(
        $(#[$doc:meta])*
        $Statement:ident($row:ident: $Row:ty) = $( $sql:literal $value:expr => $Type:ty ),+ ; $tail:expr ;
    )*) => { $(
        $(#[$doc])*
        pub(crate) struct $Statement<'a>(pub(crate) &'a $Row);

        impl QueryId for $Statement<'_> {
            type QueryId = $Statement<'static>;
            const HAS_STATIC_QUERY_ID: bool = true;
        }

        impl QueryFragment<Sqlite> for $Statement<'_> {
            fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
                let $row = self.0;
                $(
                    out.push_sql($sql);
                    out.push_bind_param::<$Type, _>($value)?;
                )+
                out.push_sql($tail);
                Ok(())
            }
        }

        impl diesel::RunQueryDsl<diesel::SqliteConnection> for $Statement<'_> {}
    )* };
}

fixed_statement! {
    /// Writes a wallet.
    SaveWallet(row: WalletRow) =
        "UPDATE wallets SET balance = " &row.balance => BigInt,
        ", held = " &row.held => BigInt,
        ", overdraft_limit = " &row.overdraft_limit => Nullable<BigInt>,
        ", low_balance_threshold = " &row.low_balance_threshold => Nullable<BigInt>,
        ", subscription_id = " &row.subscription_id => Nullable<Binary>,
        ", cycle_credit = " &row.cycle_credit => BigInt,
        ", cycle_held = " &row.cycle_held => BigInt,
        ", cycle_expired = " &row.cycle_expired => BigInt,
        ", bundle_credit = " &row.bundle_credit => BigInt,
        ", bundle_held = " &row.bundle_held => BigInt,
        ", bundle_expired = " &row.bundle_expired => BigInt,
        ", cycles = " &row.cycles => BigInt,
        ", transactions = " &row.transactions => BigInt,
        ", records = " &row.records => BigInt,
        " WHERE wallet_id = " &row.wallet_id => Binary; "";

    /// Deletes the row of a call that is settled.
    DeleteOpenCall(id: Id<RequestId>) =
        "DELETE FROM open_calls WHERE request_id = " id => Binary; "";

    /// Writes the counters of a spend key or a budget.
    SaveSpendCounters(row: SpendCountersRow) =
        "UPDATE spend_counters SET day_spent = " &row.day_spent => BigInt,
        ", week_spent = " &row.week_spent => BigInt,
        ", month_spent = " &row.month_spent => BigInt,
        ", total_spent = " &row.total_spent => BigInt,
        ", day_held = " &row.day_held => BigInt,
        ", week_held = " &row.week_held => BigInt,
        ", month_held = " &row.month_held => BigInt,
        ", total_held = " &row.total_held => BigInt,
        ", day_requests = " &row.day_requests => BigInt,
        ", week_requests = " &row.week_requests => BigInt,
        ", month_requests = " &row.month_requests => BigInt,
        ", total_requests = " &row.total_requests => BigInt,
        ", day_told = " &row.day_told => Integer,
        ", week_told = " &row.week_told => Integer,
        ", month_told = " &row.month_told => Integer,
        ", total_told = " &row.total_told => Integer,
        ", bucket_full_at = " &row.bucket_full_at => BigInt,
        ", last_used_at = " &row.last_used_at => Nullable<BigInt>,
        " WHERE account_id = " &row.account_id => Binary; "";

    /// Writes a tier counter, or creates it.
    SaveCounter(row: TierCounterRow) =
        "INSERT INTO tier_counters (merchant_id, owner_id, meter_id, period, used) VALUES (" &row.merchant_id => Binary,
        ", " &row.owner_id => Binary,
        ", " &row.meter_id => Binary,
        ", " &row.period => Text,
        ", " &row.used => BigInt; ") ON CONFLICT DO UPDATE SET used = excluded.used";
}

/// Statements that add to a row of sums of SQLite, or create it.
macro_rules! add_row_of_sums {
    ($(
        $(#[$doc:meta])*
        $Statement:ident($Row:ident) = $table:literal { $first:ident: $First:ty, $( $key:ident: $Key:ty, )+ }
    )*) => { $(
        $(#[$doc])*
        pub(crate) struct $Statement<'a>(pub(crate) &'a $Row);

        impl QueryId for $Statement<'_> {
            type QueryId = $Statement<'static>;
            const HAS_STATIC_QUERY_ID: bool = true;
        }

        impl QueryFragment<Sqlite> for $Statement<'_> {
            fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
                let row = self.0;
                let keys = concat!(stringify!($first), $( ", ", stringify!($key) ),+);
                out.push_sql(concat!("INSERT INTO ", $table, " ("));
                out.push_sql(keys);
                out.push_sql(SUM_COLUMNS);
                out.push_sql(") VALUES (");
                out.push_bind_param::<$First, _>(&row.$first)?;
                $(
                    out.push_sql(", ");
                    out.push_bind_param::<$Key, _>(&row.$key)?;
                )+
                for sum in row.sums() {
                    out.push_sql(", ");
                    out.push_bind_param::<BigInt, _>(sum)?;
                }
                out.push_sql(") ON CONFLICT (");
                out.push_sql(keys);
                out.push_sql(") DO UPDATE SET ");
                out.push_sql(ADDED_ON_SQLITE);
                Ok(())
            }
        }

        impl diesel::RunQueryDsl<diesel::SqliteConnection> for $Statement<'_> {}
    )* };
}

add_row_of_sums! {
    /// Adds to a row of the roll-ups.
    AddRollup(RollupRow) = "usage_rollups" { series_id: Binary, width: Integer, slot: BigInt, }

    /// Adds to a row of the sums of a set of metadata.
    AddSetRollup(SetRollupRow) = "metadata_rollups" {
        merchant_id: Binary, width: Integer, slot: BigInt, set_id: Binary,
    }
}

/// The number of rows of one insert on SQLite. The fixed cost of a statement is about that of a row.
pub(crate) const ROWS_AT_ONCE: usize = 8;

/// Statements that insert `N` rows into a table of SQLite. If a row cannot be inserted, the rows before it stay
/// inserted, and the transaction around the statement must be rolled back. With `OR FAIL`, SQLite need not copy each
/// page that it changes to be able to undo the statement.
macro_rules! insert_some {
    ($(
        $(#[$doc:meta])*
        $Statement:ident($Row:ident) = $table:literal {
            $first:ident: $First:ty, $( $column:ident: $Type:ty, )+
        }
    )*) => { $(
        $(#[$doc])*
        pub(crate) struct $Statement<'a, const N: usize>(pub(crate) &'a [$Row; N]);

        impl<const N: usize> QueryId for $Statement<'_, N> {
            type QueryId = $Statement<'static, N>;
            const HAS_STATIC_QUERY_ID: bool = true;
        }

        impl<const N: usize> QueryFragment<Sqlite> for $Statement<'_, N> {
            fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
                out.push_sql(concat!(
                    "INSERT OR FAIL INTO ", $table, " (", stringify!($first), $( ", ", stringify!($column), )+
                    ") VALUES "
                ));
                let mut separator = "(";
                // This pattern names every column of the row.
                for $Row { $first, $( $column ),+ } in self.0 {
                    out.push_sql(separator);
                    out.push_bind_param::<$First, _>($first)?;
                    $(
                        out.push_sql(", ");
                        out.push_bind_param::<$Type, _>($column)?;
                    )+
                    separator = "), (";
                }
                out.push_sql(")");
                Ok(())
            }
        }

        impl<const N: usize> diesel::RunQueryDsl<diesel::SqliteConnection> for $Statement<'_, N> {}
    )* };
}

insert_some! {
    /// Inserts open calls.
    InsertSomeOpenCalls(OpenCallRow) = "open_calls" {
        request_id: Binary,
        merchant_id: Binary,
        node_id: Binary,
        connection_id: Nullable<Binary>,
        spend_key_id: Nullable<Binary>,
        wallet_id: Nullable<Binary>,
        merchant_wallet_id: Binary,
        meter_id: Nullable<Binary>,
        meter_version: Nullable<Integer>,
        disable_billing: Bool,
        spend_hold: BigInt,
        wallet_hold: BigInt,
        cycle_hold: BigInt,
        bundle_hold: BigInt,
        credit_cycle: Nullable<BigInt>,
        merchant_hold: BigInt,
        forwarded: Text,
        created_at: BigInt,
        budgets: Nullable<Text>,
        run_id: Nullable<Text>,
        is_ahead: Bool,
    }

    /// Inserts records of settled calls.
    InsertSomeRequests(RequestRow) = "requests" {
        merchant_id: Binary,
        request_id: Binary,
        sequence: BigInt,
        reference_id: Nullable<Text>,
        connection_id: Nullable<Binary>,
        spend_key_id: Nullable<Binary>,
        wallet_id: Nullable<Binary>,
        merchant_wallet_id: Binary,
        meter_id: Nullable<Binary>,
        meter_version: Nullable<Integer>,
        disable_billing: Bool,
        status: SmallInt,
        credit_cycle: Nullable<BigInt>,
        wallet_cost: BigInt,
        merchant_cost: BigInt,
        counted_units: BigInt,
        swept: Bool,
        forwarded: Text,
        outcome: Text,
        created_at: BigInt,
        settled_at: Nullable<BigInt>,
        budgets: Nullable<Text>,
        run_id: Nullable<Text>,
    }

    /// Inserts entries of the index of records.
    InsertSomeIndexRows(RequestIndexRow) = "request_index" {
        merchant_id: Binary,
        key: Text,
        value: Text,
        request_id: Binary,
    }

    /// Inserts ledger lines.
    InsertSomeTransactions(TransactionRow) = "transactions" {
        transaction_id: Binary,
        merchant_id: Binary,
        wallet_id: Binary,
        account: SmallInt,
        number: BigInt,
        kind: SmallInt,
        amount: BigInt,
        balance_after: BigInt,
        request_id: Nullable<Binary>,
        description: Nullable<Text>,
        created_at: BigInt,
    }
}

/// Statements that insert rows into a table of PostgreSQL. Their tail says what happens on a conflict.
macro_rules! insert_of_rows {
    ($(
        $(#[$doc:meta])*
        $Statement:ident($Row:ident) = $table:literal, $tail:expr;
    )*) => { $(
        $(#[$doc])*
        pub(crate) struct $Statement(String);

        impl $Statement {
            pub(crate) fn of(rows: &[$Row]) -> Self {
                Self(to_json(&rows))
            }
        }

        impl QueryId for $Statement {
            type QueryId = Self;
            const HAS_STATIC_QUERY_ID: bool = true;
        }

        impl QueryFragment<Pg> for $Statement {
            fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
                out.push_sql(concat!(
                    "INSERT INTO ", $table, " AS kept SELECT * FROM json_populate_recordset(NULL::", $table, ", "
                ));
                out.push_bind_param::<Text, _>(&self.0)?;
                out.push_sql("::json)");
                out.push_sql($tail);
                Ok(())
            }
        }

        impl diesel::RunQueryDsl<diesel::PgConnection> for $Statement {}
    )* };
}

insert_of_rows! {
    /// Inserts open calls.
    InsertOpenCalls(OpenCallRow) = "open_calls", "";

    /// Inserts records of settled calls.
    InsertRequests(RequestRow) = "requests", "";

    /// Inserts entries of the index of records.
    InsertIndexRows(RequestIndexRow) = "request_index", "";

    /// Inserts ledger lines.
    InsertTransactions(TransactionRow) = "transactions", "";

    /// Writes locked wallets.
    SaveWallets(WalletRow) = "wallets",
        " ON CONFLICT (wallet_id) DO UPDATE SET balance = excluded.balance, held = excluded.held, \
         overdraft_limit = excluded.overdraft_limit, \
         low_balance_threshold = excluded.low_balance_threshold, \
         subscription_id = excluded.subscription_id, cycle_credit = excluded.cycle_credit, \
         cycle_held = excluded.cycle_held, cycle_expired = excluded.cycle_expired, \
         bundle_credit = excluded.bundle_credit, bundle_held = excluded.bundle_held, \
         bundle_expired = excluded.bundle_expired, cycles = excluded.cycles, \
         transactions = excluded.transactions, records = excluded.records";

    /// Writes locked counters of spend keys and budgets.
    SaveCountersOfAccounts(SpendCountersRow) = "spend_counters",
        " ON CONFLICT (account_id) DO UPDATE SET day_spent = excluded.day_spent, \
         week_spent = excluded.week_spent, month_spent = excluded.month_spent, \
         total_spent = excluded.total_spent, day_held = excluded.day_held, \
         week_held = excluded.week_held, month_held = excluded.month_held, \
         total_held = excluded.total_held, day_requests = excluded.day_requests, \
         week_requests = excluded.week_requests, month_requests = excluded.month_requests, \
         total_requests = excluded.total_requests, day_told = excluded.day_told, \
         week_told = excluded.week_told, month_told = excluded.month_told, \
         total_told = excluded.total_told, bucket_full_at = excluded.bucket_full_at, \
         last_used_at = excluded.last_used_at";

    /// Locks and returns tier counters, and creates missing ones. A missing row cannot be locked; an update to the same
    /// value locks an existing one.
    LockCounters(TierCounterRow) = "tier_counters",
        " ON CONFLICT (merchant_id, owner_id, meter_id, period) DO UPDATE SET used = kept.used \
         RETURNING merchant_id, owner_id, meter_id, period, used";

    /// Writes locked tier counters.
    SaveCounters(TierCounterRow) = "tier_counters",
        " ON CONFLICT (merchant_id, owner_id, meter_id, period) DO UPDATE SET used = excluded.used";

    /// Adds to rows of the roll-ups, or creates them.
    AddRollups(RollupRow) = "usage_rollups",
        ADD_ON_POSTGRES;

    /// Adds to rows of the sums of sets of metadata, or creates them.
    AddSetRollups(SetRollupRow) = "metadata_rollups",
        ADD_TO_SET_ON_POSTGRES;
}

/// Inserts the settled calls of a group into the queue of the roll-ups. The database numbers them.
pub(crate) struct QueueCalls(String);

impl QueueCalls {
    pub(crate) fn of(rows: &[QueueRow]) -> Self {
        Self(to_json(&rows))
    }
}

impl QueryId for QueueCalls {
    type QueryId = Self;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl QueryFragment<Pg> for QueueCalls {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(
            "INSERT INTO rollup_queue (calls, created_at) SELECT calls, created_at \
             FROM json_populate_recordset(NULL::rollup_queue, ",
        );
        out.push_bind_param::<Text, _>(&self.0)?;
        out.push_sql("::json)");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use diesel::connection::SimpleConnection;
    use diesel::sqlite::SqliteConnection;
    use diesel::{Connection, QueryDsl, RunQueryDsl};

    use tollgate_domain::{Id as _, MerchantId};

    use super::*;
    use crate::schema::request_index;

    /// With `OR FAIL`, SQLite need not copy the pages that it changes.
    #[test]
    fn of_rows_inserted_at_once_the_transaction_takes_back_those_before_one_that_cannot_be() {
        let mut conn = SqliteConnection::establish(":memory:").unwrap();
        conn.batch_execute(
            "CREATE TABLE request_index (merchant_id BLOB, key TEXT, value TEXT, request_id BLOB PRIMARY KEY)",
        )
        .unwrap();
        let row = RequestIndexRow {
            merchant_id: Id(MerchantId::from_bytes([1; 16])),
            key: "team".to_owned(),
            value: "red".to_owned(),
            request_id: Id(RequestId::from_bytes([2; 16])),
        };
        let count = |conn: &mut SqliteConnection| {
            request_index::table.count().get_result::<i64>(conn).unwrap()
        };
        let written = conn.transaction(|conn| {
            let inserted = InsertSomeIndexRows(&[row.clone(), row]).execute(conn);
            assert_eq!(count(conn), 1);
            inserted
        });
        assert!(written.is_err());
        assert_eq!(count(&mut conn), 0);
    }
}
