//! Meters: the markup of a merchant.

use rand::Rng;
use rand::distr::Alphanumeric;
use serde::{Deserialize, Serialize};
use tollgate_pricing::{Tier, TokenBasis};

use crate::id::{MerchantId, MeterId};
use crate::quote::{FeeModel, Payer};
use crate::time::Timestamp;

/// The period after which a meter's counters start again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierPeriod {
    /// All time: the counters do not start again.
    #[default]
    Lifetime,
    /// One calendar month, in UTC.
    Month,
}

impl TierPeriod {
    /// The name of the period that contains `at`: empty for [`TierPeriod::Lifetime`], else such as
    /// `2026-11`.
    pub fn key(self, at: Timestamp) -> String {
        match self {
            Self::Lifetime => String::new(),
            Self::Month => {
                let date = at.date();
                format!("{:04}-{:02}", date.year(), u8::from(date.month()))
            }
        }
    }
}

/// A merchant's meter: the fee model with its name and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MerchantMeter {
    /// The id.
    pub meter_id: MeterId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// The name in a forward credential, unique per merchant.
    pub slug: String,
    /// Display name.
    pub name: String,
    /// The period of its counters.
    pub tier_period: TierPeriod,
    /// The version, which grows with every change of the fee model. A pending call keeps the
    /// version of its admission.
    pub version: i32,
    /// The fee model.
    pub model: FeeModel,
    /// The time of creation.
    pub created_at: Timestamp,
}

/// The fields of a new meter, as the merchant states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMeter {
    /// Display name.
    pub name: String,
    /// The slug; derived from the name when absent.
    pub slug: Option<String>,
    /// The period of its counters.
    pub tier_period: TierPeriod,
    /// The fee model.
    pub model: FeeModel,
}

/// The changes of a meter. `None` keeps a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeterChanges {
    /// Display name.
    pub name: Option<String>,
    /// All tiers, replaced as a whole. They must be valid.
    pub tiers: Option<Vec<Tier>>,
    /// The tokens that count.
    pub token_basis: Option<TokenBasis>,
    /// The payer of the base cost.
    pub base_cost_payer: Option<Payer>,
    /// The payer of the service charge.
    pub service_charge_payer: Option<Payer>,
}

/// Derives a slug from a name, with a short random part, such as `standard-plan-x7k2p9`.
pub fn slug_of(name: &str) -> String {
    const NAME_CHARS: usize = 40;
    const RANDOM_CHARS: usize = 6;
    let lower = name.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut slug: String = words.collect::<Vec<_>>().join("-").chars().take(NAME_CHARS).collect();
    if !slug.is_empty() && !slug.ends_with('-') {
        slug.push('-');
    }
    let random = rand::rng().sample_iter(Alphanumeric).take(RANDOM_CHARS);
    slug.extend(random.map(|byte| char::from(byte).to_ascii_lowercase()));
    slug
}
