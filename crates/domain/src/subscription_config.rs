//! Subscription configurations: what a merchant offers for a price per cycle.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::billing_interval::BillingInterval;
use crate::credit::Rollover;
use crate::id::{CreditBundleId, MerchantId, MeterId, SubscriptionConfigId};
use crate::time::Timestamp;

/// What of a configuration can change. A change counts from the next cycle of each subscription;
/// which meters draw on credit, from the next call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigTerms {
    /// Credit granted at the start of each cycle.
    pub included_credit: Amount,
    /// What becomes of it when the cycle ends.
    pub rollover_type: Rollover,
    /// What becomes of bought credit then.
    pub bundle_rollover_type: Rollover,
    /// The meters whose calls draw on credit; every meter's do when there is none.
    pub meter_ids: Vec<MeterId>,
}

impl ConfigTerms {
    /// Whether calls under a meter draw on the credit.
    pub fn let_draw(&self, meter_id: MeterId) -> bool {
        self.meter_ids.is_empty() || self.meter_ids.contains(&meter_id)
    }
}

/// Terms from one change to the next; never changed themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigVersion {
    /// From when on.
    pub since: Timestamp,
    /// What held from then.
    pub terms: ConfigTerms,
}

/// A subscription configuration with all its versions, so that a cycle that ended unseen can be
/// ended later by the terms of its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionConfig {
    /// Its id.
    pub subscription_config_id: SubscriptionConfigId,
    /// Whose it is.
    pub merchant_id: MerchantId,
    /// Display name.
    pub name: String,
    /// What a cycle costs; collected by the merchant.
    pub period_amount: Amount,
    /// How long a cycle is.
    pub billing_interval: BillingInterval,
    /// Its first terms.
    pub first_version: ConfigVersion,
    /// Its later terms, in order.
    pub later_versions: Vec<ConfigVersion>,
    /// When it was made.
    pub created_at: Timestamp,
}

impl SubscriptionConfig {
    /// The terms that held at an instant.
    pub fn terms_at(&self, at: Timestamp) -> &ConfigTerms {
        let version = self.later_versions.iter().rfind(|version| version.since <= at);
        &version.unwrap_or(&self.first_version).terms
    }

    /// The present terms.
    pub fn terms(&self) -> &ConfigTerms {
        &self.later_versions.last().unwrap_or(&self.first_version).terms
    }
}

/// Credit that subscribers can buy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditBundle {
    /// Its id.
    pub credit_bundle_id: CreditBundleId,
    /// Whose subscribers can buy it.
    pub subscription_config_id: SubscriptionConfigId,
    /// Display name.
    pub name: String,
    /// What it costs; collected by the merchant.
    pub cost: Amount,
    /// The credit it brings.
    pub credit_amount: Amount,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What a merchant states of a new bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCreditBundle {
    /// Display name.
    pub name: String,
    /// What it costs.
    pub cost: Amount,
    /// The credit it brings.
    pub credit_amount: Amount,
}

/// What a merchant states of a new configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubscriptionConfig {
    /// Display name.
    pub name: String,
    /// What a cycle costs.
    pub period_amount: Amount,
    /// How long a cycle is.
    pub billing_interval: BillingInterval,
    /// Its terms.
    pub terms: ConfigTerms,
    /// The bundles it begins with.
    pub credit_bundles: Vec<NewCreditBundle>,
}

/// What becomes of a bundle when its configuration is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleChange {
    /// A new one.
    Create(NewCreditBundle),
    /// A known one, with what is given replaced.
    Update {
        /// Which.
        credit_bundle_id: CreditBundleId,
        /// Display name.
        name: Option<String>,
        /// What it costs.
        cost: Option<Amount>,
        /// The credit it brings.
        credit_amount: Option<Amount>,
    },
    /// It is offered no more.
    Delete(CreditBundleId),
}

/// What changes in a configuration: `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionConfigChanges {
    /// Display name.
    pub name: Option<String>,
    /// Credit granted at the start of each cycle.
    pub included_credit: Option<Amount>,
    /// What becomes of it when the cycle ends.
    pub rollover_type: Option<Rollover>,
    /// What becomes of bought credit then.
    pub bundle_rollover_type: Option<Rollover>,
    /// All linked meters.
    pub meter_ids: Option<Vec<MeterId>>,
    /// Bundles that change; those not named stay.
    pub credit_bundles: Vec<BundleChange>,
}
