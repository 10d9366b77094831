//! The rows of missing prices.

use diesel::prelude::*;
use tollgate_domain::MerchantId;

use crate::ids::Id;
use crate::schema::missing_prices;

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = missing_prices)]
pub(crate) struct MissingPriceRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) day: i64,
    pub(crate) provider: String,
    pub(crate) model: String,
}
