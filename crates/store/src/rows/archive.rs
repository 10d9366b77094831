//! The rows of the archive: its months and the sums of its records.

use diesel::prelude::*;
use tollgate_domain::MerchantId;

use crate::ids::{AnyId, Id};
use crate::schema::{archived_months, archived_sums};

/// A month that is in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable)]
#[diesel(table_name = archived_months)]
pub(crate) struct ArchivedMonthRow {
    pub(crate) month: String,
    pub(crate) manifest: String,
    pub(crate) sealed_at: i64,
    pub(crate) deleted_at: Option<i64>,
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
