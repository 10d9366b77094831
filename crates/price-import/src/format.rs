//! The formats of price lists.

use std::str::FromStr;

/// A format of price lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportFormat {
    /// The JSON of the `genai-prices` project: prices per million, with dates and variants.
    GenaiPrices,
    /// LiteLLM's map of models: prices per single unit, without dates.
    Litellm,
}

impl ImportFormat {
    /// The name, as in [`PriceRow::source`](tollgate_pricing::PriceRow::source) of its rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GenaiPrices => "genai-prices",
            Self::Litellm => "litellm",
        }
    }
}

impl FromStr for ImportFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = [Self::GenaiPrices, Self::Litellm];
        known
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| "must be genai-prices or litellm".to_owned())
    }
}
