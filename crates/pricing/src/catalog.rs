use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};
use time::Date;

use crate::usage::{Unit, UnitPrices};

/// A model id, exact or with a trailing `*` that stands for any rest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModelPattern(String);

impl ModelPattern {
    /// A pattern from its text: `gpt-4o` is exact, `gpt-4o*` matches every id that begins so.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether `model` matches.
    pub fn matches(&self, model: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => model.starts_with(prefix),
            None => self.0 == model,
        }
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches one id only.
    pub fn is_exact(&self) -> bool {
        !self.0.ends_with('*')
    }
}

/// Other prices for a call whose whole prompt, cached tokens included, is longer than a bound.
/// They apply to all tokens of that call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Band {
    /// The band begins above this many prompt tokens.
    pub above_input_tokens: u64,
    /// The prices in the band.
    #[serde(flatten)]
    pub prices: UnitPrices,
}

/// The prices of the models that match a pattern at one provider, from a date on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriceRow {
    /// The provider's name.
    pub provider: String,
    /// Which models.
    pub model: ModelPattern,
    /// The first day (UTC) of these prices; absent means since ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_from: Option<Date>,
    /// The most tokens one answer can have: the bound of a call that names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// The prices.
    pub prices: UnitPrices,
    /// Bands of long prompts, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bands: Vec<Band>,
}

impl PriceRow {
    /// The prices for a call whose whole prompt has `input_tokens`.
    pub fn prices_for(&self, input_tokens: u64) -> &UnitPrices {
        let band = self.bands.iter().rev().find(|band| input_tokens > band.above_input_tokens);
        band.map_or(&self.prices, |band| &band.prices)
    }

    /// The dearest prices that a call of at most `input_tokens` can meet: each side at the highest
    /// price of its units, in the dearest band within reach. Only `input`, `output`, `request` and
    /// `tool_call` are set. Whatever a call of so many tokens turns out to be (cached, written to a
    /// cache, audio, reasoning), it costs no more than by these.
    pub fn dearest(&self, input_tokens: u64) -> UnitPrices {
        const INPUT: [Unit; 6] = [
            Unit::Input,
            Unit::CachedInput,
            Unit::CacheWrite,
            Unit::CacheWrite1h,
            Unit::InputAudio,
            Unit::InputImage,
        ];
        const OUTPUT: [Unit; 4] =
            [Unit::Output, Unit::Reasoning, Unit::OutputAudio, Unit::OutputImage];
        let in_reach = self.bands.iter().filter(|band| input_tokens > band.above_input_tokens);
        let lists: Vec<_> =
            std::iter::once(&self.prices).chain(in_reach.map(|band| &band.prices)).collect();
        let dearest =
            |units: &[Unit]| lists.iter().filter_map(|prices| prices.dearest(units)).max();
        UnitPrices {
            input: dearest(&INPUT),
            output: dearest(&OUTPUT),
            request: dearest(&[Unit::Request]),
            tool_call: dearest(&[Unit::ToolCall]),
            ..UnitPrices::default()
        }
    }
}

/// A price list. Exact ids go before patterns, longer patterns before shorter, and among the rows
/// of one pattern the one that took effect last.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    providers: HashMap<String, ProviderPrices>,
}

#[derive(Clone, Debug, Default)]
struct ProviderPrices {
    exact: HashMap<String, Vec<PriceRow>>,
    /// Longest first; rows of one pattern newest first.
    patterns: Vec<PriceRow>,
}

/// Why a catalogue file was refused.
#[derive(Debug)]
pub struct CatalogError(serde_json::Error);

impl fmt::Display for CatalogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the price catalogue does not parse: {}", self.0)
    }
}

impl std::error::Error for CatalogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl Catalog {
    /// A catalogue of these rows.
    pub fn new(rows: impl IntoIterator<Item = PriceRow>) -> Self {
        let mut providers: HashMap<String, ProviderPrices> = HashMap::new();
        for mut row in rows {
            row.bands.sort_by_key(|band| band.above_input_tokens);
            let prices = providers.entry(row.provider.clone()).or_default();
            if row.model.is_exact() {
                prices.exact.entry(row.model.as_str().to_owned()).or_default().push(row);
            } else {
                prices.patterns.push(row);
            }
        }
        for prices in providers.values_mut() {
            for rows in prices.exact.values_mut() {
                rows.sort_by_key(|row| std::cmp::Reverse(row.effective_from));
            }
            prices.patterns.sort_by_key(|row| {
                std::cmp::Reverse((row.model.as_str().len(), row.effective_from))
            });
        }
        Self { providers }
    }

    /// A catalogue from JSON: an array of rows.
    ///
    /// # Errors
    /// [`CatalogError`] when the text is not such an array.
    pub fn from_json(text: &str) -> Result<Self, CatalogError> {
        serde_json::from_str::<Vec<PriceRow>>(text).map(Self::new).map_err(CatalogError)
    }

    /// The prices that ship with this crate. Figures carried over from the `genai-prices` project.
    ///
    /// # Errors
    /// None in a released crate: a test reads every row.
    pub fn embedded() -> Result<Self, CatalogError> {
        Self::from_json(include_str!("../catalog.json"))
    }

    /// The ids that are listed as they stand for `provider` on the UTC day `on`, in their order, with
    /// the day on which their prices took effect. What only a pattern matches is not among them.
    pub fn models(&self, provider: &str, on: Date) -> BTreeMap<&str, Option<Date>> {
        let exact = self.providers.get(provider).map(|prices| &prices.exact);
        let listed = exact.into_iter().flatten().filter_map(|(model, rows)| {
            let row = rows.iter().find(|row| row.effective_from.is_none_or(|from| from <= on))?;
            Some((model.as_str(), row.effective_from))
        });
        listed.collect()
    }

    /// The row for `model` at `provider` on the UTC day `on`.
    pub fn find(&self, provider: &str, model: &str, on: Date) -> Option<&PriceRow> {
        let prices = self.providers.get(provider)?;
        let in_effect = |row: &&PriceRow| row.effective_from.is_none_or(|from| from <= on);
        let exact = prices.exact.get(model).into_iter().flatten();
        let patterns = prices.patterns.iter().filter(|row| row.model.matches(model));
        exact.chain(patterns).find(in_effect)
    }
}

/// Where a price came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceSource {
    /// The provider stated the cost itself.
    Provider,
    /// The catalogue.
    Catalog,
    /// The operator's own prices.
    Custom,
    /// There is no price.
    Unpriced,
}

/// The operator's own prices before the catalogue's.
#[derive(Clone, Debug, Default)]
pub struct PriceBook {
    custom: Catalog,
    catalog: Catalog,
}

impl PriceBook {
    /// A book of two lists; `custom` is looked up first.
    pub fn new(custom: Catalog, catalog: Catalog) -> Self {
        Self { custom, catalog }
    }

    /// The ids that either list has as they stand for `provider` on the UTC day `on`, in their
    /// order, with the day on which their prices took effect.
    pub fn models(&self, provider: &str, on: Date) -> BTreeMap<&str, Option<Date>> {
        let mut models = self.catalog.models(provider, on);
        models.extend(self.custom.models(provider, on));
        models
    }

    /// The row for `model` at `provider` on the UTC day `on`, and whose it is.
    pub fn find(&self, provider: &str, model: &str, on: Date) -> Option<(&PriceRow, PriceSource)> {
        let custom = self.custom.find(provider, model, on).map(|row| (row, PriceSource::Custom));
        custom.or_else(|| {
            self.catalog.find(provider, model, on).map(|row| (row, PriceSource::Catalog))
        })
    }
}
