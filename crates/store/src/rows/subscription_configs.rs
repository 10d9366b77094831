//! The rows of plans, their versions and credit bundles.

use diesel::prelude::*;
use tollgate_domain::{
    BillingInterval, ConfigTerms, ConfigVersion, CreditBundle, CreditBundleId, MerchantId,
    SubscriptionConfig, SubscriptionConfigId,
};
use tollgate_pricing::Amount;

use super::values::{from_json, from_word, time};
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::{credit_bundles, subscription_config_versions, subscription_configs};

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = subscription_configs)]
pub(crate) struct ConfigRow {
    pub(crate) subscription_config_id: Id<SubscriptionConfigId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) name: String,
    pub(crate) period_amount: i64,
    pub(crate) billing_interval: String,
    pub(crate) version: i32,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = subscription_config_versions)]
pub(crate) struct ConfigVersionRow {
    pub(crate) subscription_config_id: Id<SubscriptionConfigId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) version: i32,
    pub(crate) terms: String,
    pub(crate) created_at: i64,
}

impl TryFrom<ConfigVersionRow> for ConfigVersion {
    type Error = StoreError;

    fn try_from(row: ConfigVersionRow) -> Result<Self, StoreError> {
        Ok(Self {
            since: time(row.created_at),
            terms: from_json::<ConfigTerms>("subscription_config_versions.terms", &row.terms)?,
        })
    }
}

impl ConfigRow {
    pub(crate) fn with_first(
        self,
        first: ConfigVersionRow,
    ) -> Result<SubscriptionConfig, StoreError> {
        Ok(SubscriptionConfig {
            subscription_config_id: self.subscription_config_id.get(),
            merchant_id: self.merchant_id.get(),
            name: self.name,
            period_amount: Amount::from_units(self.period_amount),
            billing_interval: from_word::<BillingInterval>(
                "subscription_configs.billing_interval",
                &self.billing_interval,
            )?,
            first_version: first.try_into()?,
            later_versions: Vec::new(),
            created_at: time(self.created_at),
        })
    }
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = credit_bundles)]
pub(crate) struct CreditBundleRow {
    pub(crate) credit_bundle_id: Id<CreditBundleId>,
    pub(crate) subscription_config_id: Id<SubscriptionConfigId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) name: String,
    pub(crate) cost: i64,
    pub(crate) credit_amount: i64,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

impl TryFrom<CreditBundleRow> for CreditBundle {
    type Error = StoreError;

    fn try_from(row: CreditBundleRow) -> Result<Self, StoreError> {
        Ok(Self {
            credit_bundle_id: row.credit_bundle_id.get(),
            subscription_config_id: row.subscription_config_id.get(),
            name: row.name,
            cost: Amount::from_units(row.cost),
            credit_amount: Amount::from_units(row.credit_amount),
            created_at: time(row.created_at),
        })
    }
}
