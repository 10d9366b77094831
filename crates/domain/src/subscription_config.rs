//! Subscription configurations, or plans: the terms that a merchant offers for a price per cycle.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::billing_interval::BillingInterval;
use crate::credit::Rollover;
use crate::id::{CreditBundleId, MerchantId, MeterId, SubscriptionConfigId};
use crate::time::Timestamp;

/// The terms of a configuration that can change. A change counts from the next cycle of each
/// subscription; a change of `meter_ids` counts from the next call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigTerms {
    /// The credit granted at the start of each cycle.
    pub included_credit: Amount,
    /// The rollover of that credit at the end of the cycle.
    pub rollover_type: Rollover,
    /// The rollover of bought credit at the end of the cycle.
    pub bundle_rollover_type: Rollover,
    /// The meters whose calls draw on credit. Empty means all meters.
    pub meter_ids: Vec<MeterId>,
}

impl ConfigTerms {
    /// Returns whether calls under a meter draw on the credit.
    pub fn allows_draw(&self, meter_id: MeterId) -> bool {
        self.meter_ids.is_empty() || self.meter_ids.contains(&meter_id)
    }
}

/// The terms from one change to the next, written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigVersion {
    /// The instant from which the terms count.
    pub since: Timestamp,
    /// The terms.
    pub terms: ConfigTerms,
}

/// A subscription configuration with all its versions. The versions let a cycle be ended later by
/// the terms of its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionConfig {
    /// The id.
    pub subscription_config_id: SubscriptionConfigId,
    /// The merchant that offers it.
    pub merchant_id: MerchantId,
    /// Display name.
    pub name: String,
    /// The price of a cycle, collected by the merchant.
    pub period_amount: Amount,
    /// The length of a cycle.
    pub billing_interval: BillingInterval,
    /// The first terms.
    pub first_version: ConfigVersion,
    /// The later terms, in order of time.
    pub later_versions: Vec<ConfigVersion>,
    /// The time of creation.
    pub created_at: Timestamp,
}

impl SubscriptionConfig {
    /// The terms at an instant.
    pub fn terms_at(&self, at: Timestamp) -> &ConfigTerms {
        let version = self.later_versions.iter().rfind(|version| version.since <= at);
        &version.unwrap_or(&self.first_version).terms
    }

    /// The present terms.
    pub fn terms(&self) -> &ConfigTerms {
        &self.later_versions.last().unwrap_or(&self.first_version).terms
    }
}

/// Credit that subscribers can buy beside the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditBundle {
    /// The id.
    pub credit_bundle_id: CreditBundleId,
    /// The configuration whose subscribers can buy it.
    pub subscription_config_id: SubscriptionConfigId,
    /// Display name.
    pub name: String,
    /// The price, collected by the merchant.
    pub cost: Amount,
    /// The credit that it adds.
    pub credit_amount: Amount,
    /// The time of creation.
    pub created_at: Timestamp,
}

/// The fields of a new bundle, as the merchant states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCreditBundle {
    /// Display name.
    pub name: String,
    /// The price.
    pub cost: Amount,
    /// The credit that it adds.
    pub credit_amount: Amount,
}

/// The fields of a new configuration, as the merchant states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubscriptionConfig {
    /// Display name.
    pub name: String,
    /// The price of a cycle.
    pub period_amount: Amount,
    /// The length of a cycle.
    pub billing_interval: BillingInterval,
    /// The first terms.
    pub terms: ConfigTerms,
    /// The bundles that are created with it.
    pub credit_bundles: Vec<NewCreditBundle>,
}

/// A change of one bundle, as a part of a change of its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleChange {
    /// Creates a bundle.
    Create(NewCreditBundle),
    /// Replaces the given fields of a bundle.
    Update {
        /// The bundle.
        credit_bundle_id: CreditBundleId,
        /// Display name.
        name: Option<String>,
        /// The price.
        cost: Option<Amount>,
        /// The credit that it adds.
        credit_amount: Option<Amount>,
    },
    /// Ends the offer of a bundle.
    Delete(CreditBundleId),
}

/// The changes of a configuration. `None` keeps a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionConfigChanges {
    /// Display name.
    pub name: Option<String>,
    /// The credit granted at the start of each cycle.
    pub included_credit: Option<Amount>,
    /// The rollover of that credit at the end of the cycle.
    pub rollover_type: Option<Rollover>,
    /// The rollover of bought credit at the end of the cycle.
    pub bundle_rollover_type: Option<Rollover>,
    /// All linked meters, replaced as a whole.
    pub meter_ids: Option<Vec<MeterId>>,
    /// The bundles that change. Others stay.
    pub credit_bundles: Vec<BundleChange>,
}
