//! From what was used to what it costs: the one place where a usage meets a price list.

use serde::{Deserialize, Serialize};
use time::{Date, Time};

use crate::amount::Amount;
use crate::base_cost::BaseCost;
use crate::catalog::{Listed, PriceBook, PriceSource};
use crate::exact::Overflow;
use crate::hours::{Hours, Moment};
use crate::model::ModelPattern;
use crate::usage::{PerUnit, Unit, UnitPrices, Usage};

/// What one model of a call used, where several served it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The model; absent where the answer does not say: then it is the call's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much of each unit.
    pub quantities: PerUnit<u64>,
}

/// A call as it was served.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The provider's name.
    pub provider: &'a str,
    /// Names of the model, the first that has a price counts: what the answer says before what was
    /// asked for.
    pub models: &'a [&'a str],
    /// How it was served, where that is not the standard: `priority`, `flex`, `us`.
    pub tiers: &'a [String],
    /// The UTC day of the call.
    pub on: Date,
    /// The UTC time of the call; without it, prices of some hours are passed over.
    pub time: Option<Time>,
    /// What was used in all.
    pub usage: &'a Usage,
    /// What of it each model used, where several served the call. What no part has is the call's
    /// own model's.
    pub parts: &'a [Part],
}

/// The prices that a call, or a part of one, was priced with, as its record keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedPrices {
    /// The id or pattern of the row.
    pub model: ModelPattern,
    /// Whose row it was.
    pub list: PriceSource,
    /// Where its figures come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The first day of the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_from: Option<Date>,
    /// The hours of the day that the row is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<Hours>,
    /// The tiers it was served in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<String>,
    /// The band of long prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above_input_tokens: Option<u64>,
    /// What was paid for each unit, tiers and band reckoned in.
    pub prices: UnitPrices,
    /// The part of the usage they were applied to; absent where it is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
}

/// What a call costs at its provider, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priced {
    /// What it costs.
    pub base: BaseCost,
    /// Where that comes from; one part without a price makes the call unpriced.
    pub source: PriceSource,
    /// What it costs by the price list, where the provider's own figure took its place.
    pub listed: Option<Amount>,
    /// The prices that were applied, one for each part.
    pub applied: Vec<AppliedPrices>,
    /// Tiers that have no prices: what they served was priced as the standard.
    pub unlisted_tiers: Vec<String>,
    /// The first unit that was used and has no price.
    pub unpriced_unit: Option<Unit>,
}

impl PriceBook {
    /// Prices a call by what served it.
    ///
    /// # Errors
    /// [`Overflow`] when the cost is beyond the range of an [`Amount`].
    pub fn price(&self, served: &Served<'_>) -> Result<Priced, Overflow> {
        let at = Moment { day: served.on, time: served.time };
        let own = served.models.iter().find_map(|model| self.find(served.provider, model, at));
        self.price_by(served, own)
    }

    /// The same, by the row that was found for the call's own model.
    ///
    /// # Errors
    /// As [`PriceBook::price`].
    pub fn price_by(
        &self,
        served: &Served<'_>,
        own: Option<Listed<'_>>,
    ) -> Result<Priced, Overflow> {
        let at = Moment { day: served.on, time: served.time };
        let mut priced = Priced::default();
        let mut sources = Vec::new();
        let mut rest = served.usage.quantities;
        for part in served.parts {
            for &unit in Unit::ALL {
                let left = rest.get(unit).saturating_sub(*part.quantities.get(unit));
                *rest.get_mut(unit) = left;
            }
            let model = part.model.as_deref();
            let listed = model.and_then(|model| self.find(served.provider, model, at));
            sources.push(priced.add(served, listed.or(own), Some(part.clone()))?);
        }
        if rest != PerUnit::default() || served.parts.is_empty() {
            let part = Part { model: None, quantities: rest };
            let part = Some(part).filter(|_| !served.parts.is_empty());
            sources.push(priced.add(served, own, part)?);
        }
        let unpriced = sources.contains(&PriceSource::Unpriced);
        priced.source = sources.into_iter().find(|_| !unpriced).unwrap_or_default();
        if let Some(total) = served.usage.provider_cost {
            priced.listed = (!unpriced).then(|| priced.base.total()).transpose()?;
            priced.base = BaseCost::from_total(priced.base.input, total);
            priced.source = PriceSource::Provider;
        }
        Ok(priced)
    }
}

impl Listed<'_> {
    /// What a usage costs by the row, served as the standard.
    ///
    /// # Errors
    /// [`Overflow`] when the cost is beyond the range of an [`Amount`].
    pub fn base(&self, usage: &Usage) -> Result<BaseCost, Overflow> {
        BaseCost::of(usage, &self.row.prices_for::<&str>(usage.input_tokens(), &[]).prices)
    }
}

impl Priced {
    /// Adds what a part costs by its row, and says whose row that is.
    fn add(
        &mut self,
        served: &Served<'_>,
        listed: Option<Listed<'_>>,
        part: Option<Part>,
    ) -> Result<PriceSource, Overflow> {
        let Some(listed) = listed else { return Ok(PriceSource::Unpriced) };
        let quantities = part.as_ref().map_or(served.usage.quantities, |part| part.quantities);
        let usage = Usage { quantities, provider_cost: None };
        let selected = listed.row.prices_for(usage.input_tokens(), served.tiers);
        let cost = BaseCost::of(&usage, &selected.prices)?;
        self.base.input = self.base.input.checked_add(cost.input)?;
        self.base.output = self.base.output.checked_add(cost.output)?;
        self.unlisted_tiers.extend(selected.unlisted_tiers);
        let unpriced_unit = || BaseCost::unpriced_unit(&usage, &selected.prices);
        self.unpriced_unit = self.unpriced_unit.or_else(unpriced_unit);
        self.applied.push(AppliedPrices {
            model: listed.pattern.clone(),
            list: listed.source,
            source: listed.row.source.clone(),
            effective_from: listed.row.effective_from,
            hours: listed.row.hours,
            tiers: served.tiers.to_vec(),
            above_input_tokens: selected.above_input_tokens,
            prices: selected.prices,
            part,
        });
        Ok(listed.source)
    }
}
