//! The price of a call: the one place where a usage meets a price list.

use serde::{Deserialize, Serialize};
use time::{Date, Time};

use crate::amount::Amount;
use crate::base_cost::BaseCost;
use crate::catalog::{PriceBook, PriceMatch, PriceSource};
use crate::exact::Overflow;
use crate::hours::{DailyHours, Moment};
use crate::model::ModelPattern;
use crate::usage::{PerModelUsage, PerUnit, Unit, UnitPrices, Usage};

/// A call as it was served.
#[derive(Clone, Copy, Debug)]
pub struct ServedCall<'a> {
    /// The provider's name.
    pub provider: &'a str,
    /// The names of the model: the one in the answer before the requested one. The first that has a
    /// price counts.
    pub models: &'a [&'a str],
    /// The tiers in which it was served, if not the standard: `priority`, `flex`, `us`.
    pub tiers: &'a [String],
    /// The UTC day of the call.
    pub on: Date,
    /// The UTC time of the call. Without it, rows for some hours of the day are skipped.
    pub time: Option<Time>,
    /// The whole usage of the call.
    pub usage: &'a Usage,
    /// The usage of each model, if several served the call. Usage that is in no part belongs to the
    /// call's own model.
    pub parts: &'a [PerModelUsage],
}

/// The prices applied to a call or a part of it, as its record keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedPrices {
    /// The id or pattern of the row.
    pub model: ModelPattern,
    /// The list that the row is from.
    pub list: PriceSource,
    /// The source of the row's figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The first day (UTC) of the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_from: Option<Date>,
    /// The hours of the day (UTC) at which the row applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<DailyHours>,
    /// The tiers in which the call was served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<String>,
    /// The bound of the applied band of long prompts, in prompt tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above_input_tokens: Option<u64>,
    /// The price of each unit, including the effect of tiers and band.
    pub prices: UnitPrices,
    /// The part of the usage that they were applied to; absent for the whole usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PerModelUsage>,
}

/// The base cost of a call, and the prices that gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostBreakdown {
    /// The base cost.
    pub base: BaseCost,
    /// The source of the cost. One part without a price makes the call unpriced.
    pub source: PriceSource,
    /// The cost by the price list, if the provider's own figure replaced it.
    pub listed: Option<Amount>,
    /// The prices that were applied, one for each part.
    pub applied: Vec<AppliedPrices>,
    /// Served tiers without prices; their usage was priced as the standard.
    pub unlisted_tiers: Vec<String>,
    /// The first unit that was used and has no price.
    pub unpriced_unit: Option<Unit>,
}

impl PriceBook {
    /// The base cost of a call, by the first of its model names that has a price.
    ///
    /// A model without a price is no error: `source` is [`PriceSource::Unpriced`], and the cost is zero.
    /// Check `source`, `unpriced_unit` and `unlisted_tiers` before you charge.
    ///
    /// # Errors
    /// [`Overflow`] when the cost is beyond the range of an [`Amount`].
    pub fn price(&self, served: &ServedCall<'_>) -> Result<CostBreakdown, Overflow> {
        let at = Moment { day: served.on, time: served.time };
        let own = served.models.iter().find_map(|model| self.find(served.provider, model, at));
        self.price_with_row(served, own)
    }

    /// As [`PriceBook::price`], by the row `own` that was found for the call's own model.
    ///
    /// # Errors
    /// As [`PriceBook::price`].
    pub fn price_with_row(
        &self,
        served: &ServedCall<'_>,
        own: Option<PriceMatch<'_>>,
    ) -> Result<CostBreakdown, Overflow> {
        let at = Moment { day: served.on, time: served.time };
        let mut priced = CostBreakdown::default();
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
            let part = PerModelUsage { model: None, quantities: rest };
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

impl PriceMatch<'_> {
    /// The cost of a usage by this row, in the standard tier.
    ///
    /// # Errors
    /// [`Overflow`] when the cost is beyond the range of an [`Amount`].
    pub fn base_cost(&self, usage: &Usage) -> Result<BaseCost, Overflow> {
        BaseCost::of(usage, &self.row.prices_for::<&str>(usage.input_tokens(), &[]).prices)
    }
}

impl CostBreakdown {
    /// Adds the cost of a part by its row; returns the list that the row is from.
    fn add(
        &mut self,
        served: &ServedCall<'_>,
        listed: Option<PriceMatch<'_>>,
        part: Option<PerModelUsage>,
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
