//! The rows of the archive: its months, the sums of its records, and its ledger lines.

use diesel::prelude::*;
use serde::Serialize;
use tollgate_domain::{LedgerAccount, MerchantId, WalletId};

use crate::codes::EnumCode;
use crate::ids::{AnyId, Id};
use crate::schema::{archived_months, archived_sums, archived_transactions};

/// A month that is in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable)]
#[diesel(table_name = archived_months)]
pub(crate) struct ArchivedMonthRow {
    pub(crate) month: String,
    pub(crate) manifest: String,
    pub(crate) sealed_at: i64,
    /// The time at which the last of its records was deleted.
    pub(crate) deleted_at: Option<i64>,
    /// The time at which the last of its ledger lines was deleted.
    pub(crate) transactions_deleted_at: Option<i64>,
}

/// The sums of archived records of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable)]
#[diesel(table_name = archived_sums)]
pub(crate) struct ArchivedSumRow {
    pub(crate) month: String,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) owner_id: Id<AnyId>,
    /// Zero for all but tier counters.
    pub(crate) meter_id: Id<AnyId>,
    /// Empty for all but tier counters.
    pub(crate) period: String,
    pub(crate) records: i64,
    pub(crate) amount: i64,
}

/// Consecutive ledger lines of a wallet that are in the archive: those of one account.
#[derive(Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = archived_transactions)]
pub(crate) struct ArchivedLinesRow {
    pub(crate) wallet_id: Id<WalletId>,
    /// The number of the first line, and the last one, of any account.
    pub(crate) first_number: i64,
    pub(crate) account: EnumCode<LedgerAccount>,
    pub(crate) last_number: i64,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) month: String,
    /// The sum of the lines of the account.
    pub(crate) amount: i64,
    /// The balance of the account after its last line.
    pub(crate) balance_after: i64,
    /// The time of the first line.
    pub(crate) created_at: i64,
}

impl ArchivedLinesRow {
    /// The most rows of a group: one for each account.
    pub(crate) const MOST_OF_GROUP: i64 = 3;
}
