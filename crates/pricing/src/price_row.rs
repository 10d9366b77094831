//! Price rows: the prices of one model at one provider, with bands and tiers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::Date;

use crate::hours::{DailyHours, Moment};
use crate::model::ModelPattern;
use crate::rate::Rate;
use crate::usage::{CostSide, Unit, UnitPrices};

/// The prices of calls whose whole prompt is longer than a bound.
///
/// The length includes cached tokens. The prices apply to all tokens of such a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, BandValue>")]
pub struct PriceBand {
    /// The bound: the band begins above this number of prompt tokens.
    pub above_input_tokens: u64,
    /// The prices in the band.
    #[serde(flatten)]
    pub prices: UnitPrices,
}

/// A value of a band: its bound, or a price.
#[derive(Deserialize)]
#[serde(untagged)]
enum BandValue {
    Bound(u64),
    Price(Option<Rate>),
}

/// Reads key by key, so that an unknown key is an error here too.
impl TryFrom<BTreeMap<String, BandValue>> for PriceBand {
    type Error = String;

    fn try_from(figures: BTreeMap<String, BandValue>) -> Result<Self, Self::Error> {
        let (mut bound, mut prices) = (None, UnitPrices::default());
        for (key, figure) in figures {
            let unit = Unit::ALL.iter().find(|unit| unit.price_key() == key);
            match (key.as_str(), unit, figure) {
                ("above_input_tokens", _, BandValue::Bound(tokens)) => bound = Some(tokens),
                (_, Some(&unit), BandValue::Price(price)) => *prices.get_mut(unit) = price,
                ("above_input_tokens", ..) => return Err("above_input_tokens: a number".into()),
                (_, Some(_), _) => return Err(format!("{key}: a price in a string")),
                _ => return Err(format!("unknown field `{key}` of a band")),
            }
        }
        let above_input_tokens = bound.ok_or("a band needs above_input_tokens")?;
        Ok(Self { above_input_tokens, prices })
    }
}

/// The prices of a provider's tier, such as `priority`, `flex` or `batch`.
///
/// Other deviations from the standard are tiers too, such as `fast` or `us`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum TierPrices {
    /// A factor on the price of every token; other units keep their price.
    Factor {
        /// The factor.
        factor: Rate,
    },
    /// The tier's own prices, in place of all others.
    Prices {
        /// The prices.
        prices: Box<UnitPrices>,
        /// Bands of long prompts, ascending.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        bands: Vec<PriceBand>,
    },
}

/// The tier of requests that are answered within a day.
const BATCH: &str = "batch";

/// The tier of calls that use capacity paid for in advance.
///
/// It is Google's provisioned throughput. Tokens cost nothing more in it, whatever a row lists.
pub(crate) const PROVISIONED: &str = "provisioned";

/// The prices of some models at one provider, from one date to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceRow {
    /// The provider's name.
    pub provider: String,
    /// The ids and patterns of the models.
    pub models: Vec<ModelPattern>,
    /// The first day (UTC) of these prices; absent for no first day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_from: Option<Date>,
    /// The last day (UTC) of these prices; absent until a later row replaces them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_to: Option<Date>,
    /// The hours of the day (UTC) at which these prices apply. Absent: all hours that no other row of the
    /// same model and day has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<DailyHours>,
    /// The source of the figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether zero prices are intended; otherwise a row of zeros is an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free: bool,
    /// The most tokens that one answer can have: the bound of a call that states none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// The prices.
    pub prices: UnitPrices,
    /// Bands of long prompts, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bands: Vec<PriceBand>,
    /// The prices in the provider's tiers, by the name that the answer gives them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tiers: BTreeMap<String, TierPrices>,
}

/// The prices of a row that apply to one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectivePrices {
    /// The prices.
    pub prices: UnitPrices,
    /// The bound of the applied band, in prompt tokens; `None` below all bands.
    pub above_input_tokens: Option<u64>,
    /// The served tiers that the row has no prices for. They were priced as the standard.
    pub unlisted_tiers: Vec<String>,
}

impl PriceRow {
    /// Whether the row applies on the UTC day `on`, at some or all of its hours.
    pub fn applies_on(&self, on: Date) -> bool {
        self.effective_from.is_none_or(|from| from <= on)
            && self.effective_to.is_none_or(|to| on <= to)
    }

    /// Whether the row applies at a moment.
    pub fn applies_at(&self, at: Moment) -> bool {
        let in_hours = |hours: DailyHours| at.time.is_some_and(|time| hours.contains(time));
        self.applies_on(at.day) && self.hours.is_none_or(in_hours)
    }

    /// All sets of prices of the row: the standard's, those of bands and of tiers.
    pub fn all_prices(&self) -> impl Iterator<Item = &UnitPrices> {
        let tiers = self.tiers.values().flat_map(|tier| match tier {
            TierPrices::Factor { .. } => Vec::new(),
            TierPrices::Prices { prices, bands } => {
                let in_bands = bands.iter().map(|band| &band.prices);
                std::iter::once(prices.as_ref()).chain(in_bands).collect()
            }
        });
        let in_bands = self.bands.iter().map(|band| &band.prices);
        std::iter::once(&self.prices).chain(in_bands).chain(tiers)
    }

    /// The rank among the rows of one model: the highest that applies counts. Later days rank above
    /// earlier ones, and on one day a row for some hours ranks above the row for the rest.
    pub(crate) fn rank(&self) -> (Option<Date>, bool) {
        (self.effective_from, self.hours.is_some())
    }

    /// The prices for a call with `input_tokens` in its whole prompt, served in `tiers`.
    ///
    /// Factors of several tiers are multiplied. Tokens in the tier `provisioned` cost nothing, as they
    /// were paid for in advance.
    pub fn prices_for<T: AsRef<str>>(&self, input_tokens: u64, tiers: &[T]) -> EffectivePrices {
        let (mut prices, mut bands) = (&self.prices, &self.bands);
        let mut factors = Vec::new();
        let mut unlisted_tiers = Vec::new();
        let is_provisioned = |tier: &&T| tier.as_ref() == PROVISIONED;
        for tier in tiers.iter().filter(|tier| !is_provisioned(tier)) {
            match self.tiers.get(tier.as_ref()) {
                Some(TierPrices::Factor { factor }) => factors.push(*factor),
                Some(TierPrices::Prices { prices: own, bands: in_bands }) => {
                    (prices, bands) = (own.as_ref(), in_bands);
                }
                None => unlisted_tiers.push(tier.as_ref().to_owned()),
            }
        }
        let band = bands.iter().rev().find(|band| input_tokens > band.above_input_tokens);
        let mut prices = *band.map_or(prices, |band| &band.prices);
        if !factors.is_empty() {
            for &unit in Unit::ALL.iter().filter(|unit| unit.counts_tokens()) {
                if let Some(price) = prices.get_mut(unit) {
                    *price = factors.iter().fold(*price, |price, factor| price.times(*factor));
                }
            }
        }
        if tiers.iter().any(|tier| is_provisioned(&tier)) {
            for &unit in Unit::ALL.iter().filter(|unit| unit.counts_tokens()) {
                // The other token units fall back to these two.
                let named = matches!(unit, Unit::Input | Unit::Output);
                *prices.get_mut(unit) = named.then_some(Rate::ZERO);
            }
        }
        EffectivePrices {
            prices,
            above_input_tokens: band.map(|band| band.above_input_tokens),
            unlisted_tiers,
        }
    }

    /// The highest prices that a call of at most `input_tokens` can have.
    ///
    /// They cover the standard and all of `tiers`: each side has the highest price of its units, in the
    /// most expensive band within reach. Of the token units only `input` and `output` are set. A call of
    /// at most that size costs no more than by these prices, whatever kind its tokens are (cached, written
    /// to a cache, audio, reasoning).
    pub fn highest_prices<T: AsRef<str>>(&self, input_tokens: u64, tiers: &[T]) -> UnitPrices {
        self.highest_prices_beside(None, input_tokens, tiers)
    }

    /// As [`highest_prices`](Self::highest_prices), for a call that is certainly served in the tier `batch`. A row
    /// without that tier has its standard prices for it.
    pub fn highest_batch_prices<T: AsRef<str>>(
        &self,
        input_tokens: u64,
        tiers: &[T],
    ) -> UnitPrices {
        self.highest_prices_beside(Some(BATCH), input_tokens, tiers)
    }

    /// The highest prices of a call that is served in the tier `base`, or else in the standard.
    fn highest_prices_beside<T: AsRef<str>>(
        &self,
        base: Option<&str>,
        input_tokens: u64,
        tiers: &[T],
    ) -> UnitPrices {
        // A call may exceed the capacity paid for in advance; then the other prices apply.
        let charged = tiers.iter().map(AsRef::as_ref).filter(|tier| *tier != PROVISIONED);
        let tiers: Vec<&str> = charged.collect();
        let reached = |bands: &[PriceBand]| -> Vec<u64> {
            let starts = bands.iter().map(|band| band.above_input_tokens);
            starts
                .filter(|start| input_tokens > *start)
                .map(|start| start.saturating_add(1))
                .collect()
        };
        // A tier's own prices replace all others, and factors multiply: the highest price has every factor above one.
        let factors = tiers.iter().copied().filter(|tier| {
            let one = Rate::from(1);
            matches!(self.tiers.get(*tier), Some(TierPrices::Factor { factor }) if *factor > one)
        });
        let with_own_prices = tiers
            .iter()
            .copied()
            .filter(|tier| matches!(self.tiers.get(*tier), Some(TierPrices::Prices { .. })));
        let served: Vec<Vec<&str>> = std::iter::once(None)
            .chain(with_own_prices.map(Some))
            .map(|own| base.into_iter().chain(own).chain(factors.clone()).collect())
            .collect();
        let mut highest = UnitPrices::default();
        let mut meet = |list: &UnitPrices| {
            for &unit in Unit::ALL {
                let price = highest.get_mut(bounded_by(unit));
                *price = list.price(unit).max(*price);
            }
        };
        for tiers in &served {
            let own = tiers.iter().filter_map(|tier| match self.tiers.get(*tier)? {
                TierPrices::Prices { bands, .. } => Some(reached(bands)),
                TierPrices::Factor { .. } => None,
            });
            let lengths = own.flatten().chain(reached(&self.bands)).chain([0]);
            lengths.for_each(|length| meet(&self.prices_for(length, tiers).prices));
        }
        highest
    }
}

/// The unit whose price bounds this one. Units that can replace each other have one bound.
const fn bounded_by(unit: Unit) -> Unit {
    match (unit.counts_tokens(), unit.side()) {
        (true, CostSide::Input) => Unit::Input,
        (true, CostSide::Output) => Unit::Output,
        (false, _) => unit,
    }
}
