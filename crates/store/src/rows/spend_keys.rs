//! The rows of spend keys and their counters.

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tollgate_domain::{
    BudgetId, ConnectionId, Gcra, KeyHash, MerchantId, MeterId, PerCycle, SpendCounters, SpendKey,
    SpendKeyId, SpendRules, Timestamp, WalletId,
};
use tollgate_pricing::Amount;

use super::values::{from_json, time};
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::schema::{spend_counters, spend_keys};

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = spend_keys)]
pub(crate) struct SpendKeyRow {
    pub(crate) spend_key_id: Id<SpendKeyId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) meter_id: Option<Id<MeterId>>,
    pub(crate) name: String,
    pub(crate) key_hash: Vec<u8>,
    pub(crate) key_preview: String,
    pub(crate) rules: String,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
    pub(crate) budget_id: Option<Id<BudgetId>>,
}

impl SpendKeyRow {
    /// Whether the key is not deleted and has this hash.
    pub(crate) fn matches_hash(&self, hash: &KeyHash) -> bool {
        self.deleted_at.is_none() && bool::from(self.key_hash.as_slice().ct_eq(hash.as_slice()))
    }

    pub(crate) fn with_counters(self, counters: SpendCounters) -> Result<SpendKey, StoreError> {
        Ok(SpendKey {
            spend_key_id: self.spend_key_id.get(),
            merchant_id: self.merchant_id.get(),
            wallet_id: self.wallet_id.get(),
            meter_id: self.meter_id.map(Id::get),
            budget_id: self.budget_id.map(Id::get),
            name: self.name,
            key_preview: self.key_preview,
            rules: from_json::<SpendRules>("spend_keys.rules", &self.rules)?,
            counters,
            created_at: time(self.created_at),
        })
    }
}

#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Queryable,
    Selectable,
    Insertable,
    AsChangeset,
    Identifiable,
    Serialize,
    Deserialize,
)]
#[diesel(table_name = spend_counters, primary_key(account_id), treat_none_as_null = true)]
pub(crate) struct SpendCountersRow {
    /// A spend key or a budget.
    pub(crate) account_id: Id<AnyId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) day_spent: i64,
    pub(crate) week_spent: i64,
    pub(crate) month_spent: i64,
    pub(crate) total_spent: i64,
    pub(crate) day_held: i64,
    pub(crate) week_held: i64,
    pub(crate) month_held: i64,
    pub(crate) total_held: i64,
    pub(crate) day_requests: i64,
    pub(crate) week_requests: i64,
    pub(crate) month_requests: i64,
    pub(crate) total_requests: i64,
    pub(crate) day_told: i32,
    pub(crate) week_told: i32,
    pub(crate) month_told: i32,
    pub(crate) total_told: i32,
    pub(crate) bucket_full_at: i64,
    pub(crate) last_used_at: Option<i64>,
}

impl SpendCountersRow {
    /// The row of the counters of a spend key or a budget.
    pub(crate) fn new(
        account_id: Id<AnyId>,
        merchant_id: MerchantId,
        counters: &SpendCounters,
    ) -> Self {
        let SpendCounters { spent, held, requests, told_percent: told, .. } = counters;
        let count = |requests: u64| i64::try_from(requests).unwrap_or(i64::MAX);
        Self {
            account_id,
            merchant_id: Id(merchant_id),
            day_spent: spent.day.units(),
            week_spent: spent.week.units(),
            month_spent: spent.month.units(),
            total_spent: spent.total.units(),
            day_held: held.day.units(),
            week_held: held.week.units(),
            month_held: held.month.units(),
            total_held: held.total.units(),
            day_requests: count(requests.day),
            week_requests: count(requests.week),
            month_requests: count(requests.month),
            total_requests: count(requests.total),
            day_told: told.day.into(),
            week_told: told.week.into(),
            month_told: told.month.into(),
            total_told: told.total.into(),
            bucket_full_at: counters.bucket.full_at_nanos(),
            last_used_at: counters.last_used_at.map(Timestamp::unix_micros),
        }
    }
}

impl From<&SpendCountersRow> for SpendCounters {
    fn from(row: &SpendCountersRow) -> Self {
        fn per_cycle<T, U>(values: [T; 4], of: impl Fn(T) -> U) -> PerCycle<U> {
            let [day, week, month, total] = values.map(of);
            PerCycle { day, week, month, total }
        }
        Self {
            spent: per_cycle(
                [row.day_spent, row.week_spent, row.month_spent, row.total_spent],
                Amount::from_units,
            ),
            held: per_cycle(
                [row.day_held, row.week_held, row.month_held, row.total_held],
                Amount::from_units,
            ),
            requests: per_cycle(
                [row.day_requests, row.week_requests, row.month_requests, row.total_requests],
                |count| count.max(0).unsigned_abs(),
            ),
            told_percent: per_cycle(
                [row.day_told, row.week_told, row.month_told, row.total_told],
                |percent| u8::try_from(percent).unwrap_or(u8::MAX),
            ),
            bucket: Gcra::from_full_at_nanos(row.bucket_full_at),
            last_used_at: row.last_used_at.map(time),
        }
    }
}
