//! The rows of roll-ups, of their series, and of the queue of calls.

use diesel::dsl::sql;
use diesel::expression::SqlLiteral;
use diesel::prelude::*;
use diesel::sql_types::BigInt;
use serde::Serialize;
use tollgate_domain::{BudgetId, ConnectionId, MerchantId, MeterId, SpendKeyId};

use crate::ids::{AnyId, Id};
use crate::schema::{metadata_rollups, metadata_sets, rollup_queue, usage_rollups, usage_series};

/// The unit of the high number of a sum in [`PartSums`].
pub(crate) const HIGH: i64 = 10_000_000_000;

/// The sum of a column in SQL, as two numbers that do not overflow: the sum of the remainders by [`HIGH`], and that of the
/// quotients.
pub(crate) fn split_sum(column: &str) -> [SqlLiteral<BigInt>; 2] {
    ["%", "/"].map(|part| sql(&format!("CAST(COALESCE(sum({column} {part} {HIGH}), 0) AS BIGINT)")))
}

/// The sum whose two numbers these are.
pub(crate) fn joined_sum(low: i64, high: i64) -> i128 {
    i128::from(low) + i128::from(high) * i128::from(HIGH)
}

/// The number of sums of a row.
pub(crate) const SUMS: usize = 16;

/// Calls a macro with the names of all sums, in the order of the columns.
macro_rules! with_sums {
    ($then:ident) => {
        $then! {
            requests, failed, input_tokens, output_tokens, cached_input_tokens, cache_write_tokens,
            reasoning_tokens, input_audio_tokens, output_audio_tokens, usage_cost, provider_cost,
            fee, service_charge, wallet_cost, merchant_cost, revenue
        }
    };
}
pub(crate) use with_sums;

macro_rules! rows_of_sums {
    ($($sum:ident),*) => { pastey::paste! {
        /// A row of the roll-ups, or an addition to one. A sum that would leave the range of its column is
        /// clamped: at 922,337,203 USD for a row of a series.
        #[derive(Clone, Debug, PartialEq, Eq, Queryable, Selectable, Serialize)]
        #[diesel(table_name = usage_rollups)]
        pub(crate) struct RollupRow {
            pub(crate) series_id: Id<AnyId>,
            pub(crate) width: i32,
            pub(crate) slot: i64,
            $( pub(crate) $sum: i64, )*
        }

        impl RollupRow {
            /// The names of the sums.
            pub(crate) const SUM_NAMES: [&str; SUMS] = [$( stringify!($sum) ),*];

            pub(crate) const fn new(
                series_id: Id<AnyId>,
                (width, slot): (i32, i64),
                [$( $sum ),*]: [i64; SUMS],
            ) -> Self {
                Self { series_id, width, slot, $( $sum ),* }
            }

            pub(crate) const fn sums(&self) -> [&i64; SUMS] {
                [$( &self.$sum ),*]
            }
        }

        /// A row of the sums of a set of metadata, or an addition to one.
        #[derive(Clone, Debug, PartialEq, Eq, Queryable, Selectable, Serialize)]
        #[diesel(table_name = metadata_rollups)]
        pub(crate) struct SetRollupRow {
            pub(crate) merchant_id: Id<MerchantId>,
            pub(crate) width: i32,
            pub(crate) slot: i64,
            pub(crate) set_id: Id<AnyId>,
            $( pub(crate) $sum: i64, )*
        }

        impl SetRollupRow {
            /// The row of a set of a merchant with the sums, the width and the slot of `row`.
            pub(crate) const fn new(merchant_id: Id<MerchantId>, row: &RollupRow) -> Self {
                let RollupRow { series_id: set_id, width, slot, $( $sum ),* } = *row;
                Self { merchant_id, width, slot, set_id, $( $sum ),* }
            }

            pub(crate) const fn sums(&self) -> [&i64; SUMS] {
                [$( &self.$sum ),*]
            }
        }

        /// The sums of one period of a query. They are over any number of rows, so each is two numbers: the sum
        /// of the remainders by [`HIGH`], and the sum of the quotients.
        #[derive(Clone, Debug, QueryableByName)]
        pub(crate) struct PartSums {
            #[diesel(sql_type = BigInt)]
            pub(crate) part: i64,
            $(
                #[diesel(sql_type = BigInt)]
                $sum: i64,
                #[diesel(sql_type = BigInt)]
                [<$sum _high>]: i64,
            )*
        }

        impl PartSums {
            /// The remainder and the quotient of each sum.
            pub(crate) const fn sums(&self) -> [(i64, i64); SUMS] {
                [$( (self.$sum, self.[<$sum _high>]) ),*]
            }
        }
    } };
}

with_sums!(rows_of_sums);

/// A set of calls whose sums are kept. Columns that do not tell its calls apart are absent.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Queryable, Selectable, Insertable, Serialize,
)]
#[diesel(table_name = usage_series)]
pub(crate) struct SeriesRow {
    pub(crate) merchant_id: Id<MerchantId>,
    /// A key of metadata, or a name with a colon.
    pub(crate) key: String,
    /// The value of the metadata, or empty.
    pub(crate) value: String,
    pub(crate) series_id: Id<AnyId>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) spend_key_id: Option<Id<SpendKeyId>>,
    /// The budget that the spend key names, else the customer.
    pub(crate) budget_id: Option<Id<BudgetId>>,
    /// The ids of all budgets that the calls count against, with commas between.
    pub(crate) budgets: Option<String>,
    pub(crate) meter_id: Option<Id<MeterId>>,
    pub(crate) provider: Option<String>,
    pub(crate) model: Option<String>,
    /// The code of the status of its calls.
    pub(crate) status: Option<i16>,
}

/// A set of calls that are alike in metadata.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Queryable, Selectable, Insertable)]
#[diesel(table_name = metadata_sets)]
pub(crate) struct MetadataSetRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) set_id: Id<AnyId>,
    /// A JSON object.
    pub(crate) metadata: String,
}

/// The settled calls of a group.
#[derive(Clone, Debug, Insertable, Serialize)]
#[diesel(table_name = rollup_queue)]
pub(crate) struct QueueRow {
    /// A JSON array of `QueuedCall`.
    pub(crate) calls: String,
    pub(crate) created_at: i64,
}
