//! The rows of roll-ups, of the pairs of calls, and of the queue of calls.

use diesel::prelude::*;
use diesel::sql_types::BigInt;
use serde::Serialize;
use tollgate_domain::MerchantId;

use crate::ids::{AnyId, Id};
use crate::schema::{rollup_queue, usage_pairs, usage_rollups};

/// The unit of the high number of a sum in [`PartSums`].
pub(crate) const HIGH: i64 = 10_000_000_000;

/// A row of the roll-ups, or an addition to one. A sum that would leave the range of its column is clamped: at
/// 922,337,203 USD for a quarter of an hour or three hours of a series.
#[derive(Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = usage_rollups)]
pub(crate) struct RollupRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) series_id: Id<AnyId>,
    pub(crate) width: i32,
    pub(crate) slot: i64,
    /// Zero when no meter priced the calls.
    pub(crate) meter_id: Id<AnyId>,
    pub(crate) requests: i64,
    pub(crate) tokens: i64,
    pub(crate) usage_cost: i64,
    pub(crate) fee: i64,
    pub(crate) service_charge: i64,
    pub(crate) wallet_cost: i64,
    pub(crate) merchant_cost: i64,
}

/// The sums of one day, or of one part of a `usage::TrendWindow`. They are over any number of rows, so each amount is two
/// numbers: the sum of the remainders by [`HIGH`], and the sum of the quotients.
#[derive(Clone, Debug, QueryableByName)]
pub(crate) struct PartSums {
    #[diesel(sql_type = BigInt)]
    pub(crate) part: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) requests: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) tokens: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) tokens_high: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) usage_cost: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) usage_cost_high: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) fee: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) fee_high: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) service_charge: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) service_charge_high: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) wallet_cost: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) wallet_cost_high: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) merchant_cost: i64,
    #[diesel(sql_type = BigInt)]
    pub(crate) merchant_cost_high: i64,
}

/// A pair that calls of a merchant have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Queryable, Selectable, Insertable)]
#[diesel(table_name = usage_pairs)]
pub(crate) struct PairRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) key: String,
    pub(crate) value: String,
}

impl PairRow {
    pub(crate) fn new(merchant_id: MerchantId, (key, value): (&String, &String)) -> Self {
        Self { merchant_id: Id(merchant_id), key: key.clone(), value: value.clone() }
    }
}

/// The settled calls of a group.
#[derive(Clone, Debug, Insertable, Serialize)]
#[diesel(table_name = rollup_queue)]
pub(crate) struct QueueRow {
    /// A JSON array of `QueuedCall`.
    pub(crate) calls: String,
    pub(crate) created_at: i64,
}
