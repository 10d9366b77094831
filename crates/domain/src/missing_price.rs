//! Missing prices: models and units without a price row.

use serde::{Deserialize, Serialize};
use tollgate_pricing::{CostBreakdown, PerUnit, PriceSource, Usage};

use crate::event::EventPayload;
use crate::record::PricedUsage;

/// A price that a call needed and that is in no price list.
///
/// Callers and providers choose the names, so a name is cut to [`MissingPrice::MAX_NAME`] bytes,
/// and its control characters are replaced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MissingPrice {
    provider: String,
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
}

impl MissingPrice {
    /// The most bytes of a name that are kept.
    pub const MAX_NAME: usize = 200;

    /// A model without any price at a provider. The name is empty for a call without a model.
    pub fn of_model(provider: &str, model: &str) -> Self {
        Self { provider: clip(provider), model: clip(model), unit: None }
    }

    /// The price that a call lacks; `None` where all prices were found, where the provider stated
    /// the cost, or where nothing was used.
    pub fn of(provider: &str, model: &str, usage: &Usage, priced: &CostBreakdown) -> Option<Self> {
        let missing = || Self::of_model(provider, model);
        match priced.source {
            _ if is_nothing(usage) => None,
            PriceSource::Provider => None,
            PriceSource::Unpriced => Some(missing()),
            PriceSource::Catalog | PriceSource::Custom => {
                let unit = priced.unpriced_unit?.price_key().to_owned();
                Some(Self { unit: Some(unit), ..missing() })
            }
        }
    }

    /// As [`MissingPrice::of`], for an estimate, of which only the source of its price is kept.
    pub(crate) fn of_estimate(provider: &str, model: &str, estimate: &PricedUsage) -> Option<Self> {
        let is_missing =
            estimate.price_source == PriceSource::Unpriced && !is_nothing(&estimate.usage);
        is_missing.then(|| Self::of_model(provider, model))
    }

    /// The provider's name.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The model that served the call, else the requested one.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The event that reports it.
    pub fn event_payload(&self) -> EventPayload {
        let Self { provider, model, unit } = self.clone();
        EventPayload::PriceMissing { provider, model, unit }
    }
}

fn is_nothing(usage: &Usage) -> bool {
    usage.quantities == PerUnit::default()
}

/// The part of a name that is kept.
fn clip(name: &str) -> String {
    let mut kept = String::new();
    for one in name.chars() {
        let one = if one.is_control() { char::REPLACEMENT_CHARACTER } else { one };
        if kept.len().saturating_add(one.len_utf8()) > MissingPrice::MAX_NAME {
            break;
        }
        kept.push(one);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_pricing::Unit;

    fn priced(source: PriceSource, unpriced_unit: Option<Unit>) -> CostBreakdown {
        CostBreakdown { source, unpriced_unit, ..CostBreakdown::default() }
    }

    #[test]
    fn a_model_is_missing_when_it_is_unpriced_and_a_unit_when_only_that_is() {
        let used = Usage::tokens(1, 0);
        let missing = |source, unit| MissingPrice::of("house", "m", &used, &priced(source, unit));
        let unit = |missing: Option<MissingPrice>| missing.and_then(|missing| missing.unit);

        assert_eq!(
            missing(PriceSource::Unpriced, Some(Unit::Image)),
            Some(MissingPrice::of_model("house", "m")),
        );
        let of_unit = unit(missing(PriceSource::Custom, Some(Unit::InputAudio)));
        assert_eq!(of_unit.as_deref(), Some("input_audio"));
        assert_eq!(missing(PriceSource::Catalog, None), None);
        assert_eq!(missing(PriceSource::Provider, Some(Unit::Image)), None);
    }

    #[test]
    fn nothing_is_missing_where_nothing_was_used() {
        let unpriced = priced(PriceSource::Unpriced, None);
        assert_eq!(MissingPrice::of("house", "m", &Usage::default(), &unpriced), None);
    }

    #[test]
    fn names_are_clipped_between_characters_and_lose_their_control_characters() {
        let missing = MissingPrice::of_model("a\0b", &"€".repeat(100));
        assert_eq!(missing.provider(), "a\u{fffd}b");
        assert_eq!(missing.model(), "€".repeat(66));
    }
}
