//! The updates of SQLite's hot path, as statements that are prepared once.
//!
//! Diesel prepares an `UPDATE` anew each time, because its builder cannot know which columns it
//! will set. These always set the same.

use diesel::QueryResult;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{BigInt, Bool, Integer, Nullable, Text};
use diesel::sqlite::Sqlite;

use crate::rows::{RequestRow, TierCounterRow, WalletRow};
use crate::spend_keys::SpendCountersRow;
use crate::usage::RollupRow;

/// Asks SQLite for a number that changes when another connection has written to the file.
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
        $Statement:ident($row:ident: $Row:ident) = $( $sql:literal $value:expr => $Type:ty ),+ ; $tail:literal ;
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
    /// Writes a wallet back.
    SaveWallet(row: WalletRow) =
        "UPDATE wallets SET balance = " &row.balance => BigInt,
        ", held = " &row.held => BigInt,
        ", overdraft_limit = " &row.overdraft_limit => Nullable<BigInt>,
        ", low_balance_threshold = " &row.low_balance_threshold => Nullable<BigInt>,
        ", subscription_id = " &row.subscription_id => Nullable<Text>,
        ", cycle_credit = " &row.cycle_credit => BigInt,
        ", cycle_held = " &row.cycle_held => BigInt,
        ", cycle_expired = " &row.cycle_expired => BigInt,
        ", bundle_credit = " &row.bundle_credit => BigInt,
        ", bundle_held = " &row.bundle_held => BigInt,
        ", bundle_expired = " &row.bundle_expired => BigInt,
        ", cycles = " &row.cycles => BigInt,
        ", transactions = " &row.transactions => BigInt,
        " WHERE wallet_id = " &row.wallet_id => Text; "";

    /// Writes a settled request back: only what a settlement changes.
    SaveRequest(row: RequestRow) =
        "UPDATE requests SET status = " &row.status => Text,
        ", node_id = " &row.node_id => Nullable<Text>,
        ", spend_hold = " &row.spend_hold => BigInt,
        ", wallet_hold = " &row.wallet_hold => BigInt,
        ", cycle_hold = " &row.cycle_hold => BigInt,
        ", bundle_hold = " &row.bundle_hold => BigInt,
        ", merchant_hold = " &row.merchant_hold => BigInt,
        ", wallet_cost = " &row.wallet_cost => BigInt,
        ", merchant_cost = " &row.merchant_cost => BigInt,
        ", counted_units = " &row.counted_units => BigInt,
        ", swept = " &row.swept => Bool,
        ", outcome = " &row.outcome => Nullable<Text>,
        " WHERE request_id = " &row.request_id => Text; "";

    /// Writes the counters of a spend key back.
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
        " WHERE spend_key_id = " &row.spend_key_id => Text; "";

    /// Writes a counter back, or makes it. What is written is the whole row: it may be replaced.
    SaveCounter(row: TierCounterRow) =
        "INSERT OR REPLACE INTO tier_counters (owner_id, meter_id, period, used) VALUES (" &row.owner_id => Text,
        ", " &row.meter_id => Text,
        ", " &row.period => Text,
        ", " &row.used => BigInt; ")";

    /// Adds to a row of the roll-ups, or makes it.
    AddRollup(row: RollupRow) =
        "INSERT INTO usage_rollups (series_id, width, slot, meter_id, shard, requests, tokens, tokens_high, \
         usage_cost, usage_cost_high, fee, fee_high, service_charge, service_charge_high, wallet_cost, \
         wallet_cost_high, merchant_cost, merchant_cost_high) VALUES (" &row.series_id => Text,
        ", " &row.width => Integer,
        ", " &row.slot => BigInt,
        ", " &row.meter_id => Text,
        ", " &row.shard => Integer,
        ", " &row.requests => BigInt,
        ", " &row.tokens => BigInt,
        ", " &row.tokens_high => BigInt,
        ", " &row.usage_cost => BigInt,
        ", " &row.usage_cost_high => BigInt,
        ", " &row.fee => BigInt,
        ", " &row.fee_high => BigInt,
        ", " &row.service_charge => BigInt,
        ", " &row.service_charge_high => BigInt,
        ", " &row.wallet_cost => BigInt,
        ", " &row.wallet_cost_high => BigInt,
        ", " &row.merchant_cost => BigInt,
        ", " &row.merchant_cost_high => BigInt;
        ") ON CONFLICT (series_id, width, slot, meter_id, shard) DO UPDATE SET \
         requests = requests + excluded.requests, \
         tokens = tokens + excluded.tokens, \
         tokens_high = tokens_high + excluded.tokens_high, \
         usage_cost = usage_cost + excluded.usage_cost, \
         usage_cost_high = usage_cost_high + excluded.usage_cost_high, \
         fee = fee + excluded.fee, \
         fee_high = fee_high + excluded.fee_high, \
         service_charge = service_charge + excluded.service_charge, \
         service_charge_high = service_charge_high + excluded.service_charge_high, \
         wallet_cost = wallet_cost + excluded.wallet_cost, \
         wallet_cost_high = wallet_cost_high + excluded.wallet_cost_high, \
         merchant_cost = merchant_cost + excluded.merchant_cost, \
         merchant_cost_high = merchant_cost_high + excluded.merchant_cost_high";
}
