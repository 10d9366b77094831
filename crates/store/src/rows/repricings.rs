//! The rows of repricings.

use diesel::prelude::*;
use tollgate_domain::{MerchantId, RequestId};

use crate::ids::Id;
use crate::schema::repricings;

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = repricings)]
pub(crate) struct RepricingRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) request_id: Id<RequestId>,
    pub(crate) number: i32,
    pub(crate) base_before: i64,
    pub(crate) base_after: i64,
    pub(crate) wallet_delta: i64,
    pub(crate) merchant_delta: i64,
    pub(crate) applied: String,
    pub(crate) created_at: i64,
}
