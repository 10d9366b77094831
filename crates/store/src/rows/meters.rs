//! The rows of meters and their versions.

use diesel::prelude::*;
use tollgate_domain::{FeeModel, MerchantId, MerchantMeter, MeterId};

use super::values::{from_word, time};
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::{meter_versions, meters};

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = meters)]
pub(crate) struct MeterRow {
    pub(crate) meter_id: Id<MeterId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) slug: String,
    pub(crate) name: String,
    pub(crate) tier_period: String,
    pub(crate) version: i32,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = meter_versions)]
pub(crate) struct MeterVersionRow {
    pub(crate) meter_id: Id<MeterId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) version: i32,
    pub(crate) model: String,
    pub(crate) created_at: i64,
}

impl MeterRow {
    pub(crate) fn with_model(self, model: FeeModel) -> Result<MerchantMeter, StoreError> {
        Ok(MerchantMeter {
            meter_id: self.meter_id.get(),
            merchant_id: self.merchant_id.get(),
            slug: self.slug,
            name: self.name,
            tier_period: from_word("meters.tier_period", &self.tier_period)?,
            version: self.version,
            model,
            created_at: time(self.created_at),
        })
    }
}
