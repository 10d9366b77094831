//! The rows of wallets.

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use tollgate_domain::{
    ConnectionId, Credit, Credits, MerchantId, SubscriptionId, Wallet, WalletId,
};
use tollgate_pricing::Amount;

use super::values::time;
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::wallets;

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
#[diesel(table_name = wallets, primary_key(wallet_id), treat_none_as_null = true)]
pub(crate) struct WalletRow {
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) balance: i64,
    pub(crate) held: i64,
    pub(crate) overdraft_limit: Option<i64>,
    pub(crate) low_balance_threshold: Option<i64>,
    pub(crate) subscription_id: Option<Id<SubscriptionId>>,
    pub(crate) cycle_credit: i64,
    pub(crate) cycle_held: i64,
    pub(crate) cycle_expired: i64,
    pub(crate) bundle_credit: i64,
    pub(crate) bundle_held: i64,
    pub(crate) bundle_expired: i64,
    pub(crate) cycles: i64,
    pub(crate) transactions: i64,
    pub(crate) records: i64,
    pub(crate) created_at: i64,
}

impl WalletRow {
    pub(crate) fn credits(&self) -> Credits {
        let credit = |remaining, held, expired_cycle| Credit {
            remaining: Amount::from_units(remaining),
            held: Amount::from_units(held),
            expired_cycle,
        };
        Credits {
            cycle: credit(self.cycle_credit, self.cycle_held, self.cycle_expired),
            bundle: credit(self.bundle_credit, self.bundle_held, self.bundle_expired),
            cycles: self.cycles,
        }
    }
}

impl TryFrom<&WalletRow> for Wallet {
    type Error = StoreError;

    fn try_from(row: &WalletRow) -> Result<Self, StoreError> {
        Ok(Self {
            wallet_id: row.wallet_id.get(),
            merchant_id: row.merchant_id.get(),
            connection_id: row.connection_id.map(Id::get),
            balance: Amount::from_units(row.balance),
            held: Amount::from_units(row.held),
            credits: row.credits(),
            overdraft_limit: row.overdraft_limit.map(Amount::from_units),
            low_balance_threshold: row.low_balance_threshold.map(Amount::from_units),
            created_at: time(row.created_at),
        })
    }
}
