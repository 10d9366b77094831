use rand::Rng;
use rand::distr::Alphanumeric;
use serde::{Deserialize, Serialize};
use tollgate_pricing::{Meter, Payer, Tier, TokenBasis};

use crate::id::{MerchantId, MeterId};
use crate::time::Timestamp;

/// When a meter's counters start anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierPeriod {
    /// Never.
    #[default]
    Lifetime,
    /// With each calendar month, UTC.
    Month,
}

impl TierPeriod {
    /// The name of the period that `at` falls into: empty, or such as `2026-11`.
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

/// A merchant's meter: the fee model and what surrounds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MerchantMeter {
    /// Its id.
    pub meter_id: MeterId,
    /// Whose meter it is.
    pub merchant_id: MerchantId,
    /// How a forward credential names it, unique per merchant.
    pub slug: String,
    /// Display name.
    pub name: String,
    /// When its counters start anew.
    pub tier_period: TierPeriod,
    /// Grows with every change of what it charges; a pending call keeps the version it began with.
    pub version: i32,
    /// The fee model.
    pub model: Meter,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What a merchant states of a new meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMeter {
    /// Display name.
    pub name: String,
    /// Its slug; made from the name when absent.
    pub slug: Option<String>,
    /// When its counters start anew.
    pub tier_period: TierPeriod,
    /// The fee model.
    pub model: Meter,
}

/// What changes in a meter: `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeterChanges {
    /// Display name.
    pub name: Option<String>,
    /// All tiers, replaced as a whole; they must be valid.
    pub tiers: Option<Vec<Tier>>,
    /// Which tokens count.
    pub token_basis: Option<TokenBasis>,
    /// Who pays the base cost.
    pub base_cost_payer: Option<Payer>,
    /// Who pays the service charge.
    pub service_charge_payer: Option<Payer>,
}

/// A slug made from a name and a short random part, such as `standard-plan-x7k2p9`.
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
