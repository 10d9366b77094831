//! Price lists, and how the price row of a model is found.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use time::{Date, Time};

use crate::base_cost::BaseCost;
use crate::error::{CatalogError, Error};
use crate::hours::{DailyHours, Moment};
use crate::model::{ModelPattern, forms, lower_case};
use crate::price_row::{PriceRow, TierPrices};
use crate::usage::Usage;

/// A price list: price rows, and the providers whose rows stand in for another's.
///
/// A model is looked up by its exact id, then by its other forms (without a path, a region or the
/// date of a snapshot), then by patterns, longer ones before shorter. If only a form without date or
/// region is listed, a pattern that matches a fuller form and is longer than it goes first. Of the
/// rows that hold at a moment, the latest `effective_from` counts; of those with the same day, a row
/// for some hours goes before the row for the rest of the day. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct Catalog(Arc<CatalogInner>);

#[derive(Debug, Default)]
struct CatalogInner {
    file: CatalogFile,
    providers: HashMap<String, ProviderIndex>,
    /// The times at which the hours of rows begin.
    begins: BTreeSet<Time>,
}

/// Indices of rows, newest first; rows for some hours before the row for the whole day.
#[derive(Debug, Default)]
struct ProviderIndex {
    /// By id in lower case.
    exact: HashMap<String, Vec<usize>>,
    /// By pattern, longest first.
    patterns: Vec<(ModelPattern, usize)>,
}

/// The content of a price list file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogFile {
    /// The day on which the list was released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Date>,
    /// The sources of the figures, and their days.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// Per provider, the providers whose prices apply to models that it does not list.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fallbacks: BTreeMap<String, Vec<String>>,
    /// The price rows.
    pub rows: Vec<PriceRow>,
}

/// A price row found for a model, and the pattern that matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriceMatch<'a> {
    /// The row.
    pub row: &'a PriceRow,
    /// The pattern of the row that matched.
    pub pattern: &'a ModelPattern,
    /// The list that the row is from.
    pub source: PriceSource,
}

impl CatalogFile {
    /// Reads a file from its JSON.
    ///
    /// # Errors
    /// [`CatalogError`] when the text is not the JSON of a [`CatalogFile`].
    pub fn from_json(text: &str) -> Result<Self, CatalogError> {
        serde_json::from_str(text).map_err(|error| CatalogError(error.to_string()))
    }
}

impl From<CatalogFile> for Catalog {
    fn from(mut file: CatalogFile) -> Self {
        let mut providers: HashMap<String, ProviderIndex> = HashMap::new();
        let mut begins = BTreeSet::new();
        for (place, row) in file.rows.iter_mut().enumerate() {
            row.bands.sort_by_key(|band| band.above_input_tokens);
            for tier in row.tiers.values_mut() {
                if let TierPrices::Prices { bands, .. } = tier {
                    bands.sort_by_key(|band| band.above_input_tokens);
                }
            }
            begins.extend(row.hours.map(DailyHours::begin));
            let prices = providers.entry(row.provider.clone()).or_default();
            for model in &row.models {
                match model.is_exact() {
                    true => {
                        let id = model.as_str().to_ascii_lowercase();
                        prices.exact.entry(id).or_default().push(place);
                    }
                    false => prices.patterns.push((model.clone(), place)),
                }
            }
        }
        let rank = |place: usize| file.rows.get(place).map(PriceRow::rank);
        for prices in providers.values_mut() {
            for places in prices.exact.values_mut() {
                places.sort_by_key(|&place| std::cmp::Reverse(rank(place)));
            }
            prices.patterns.sort_by_key(|(model, place)| {
                std::cmp::Reverse((model.literal_len(), rank(*place)))
            });
        }
        Self(Arc::new(CatalogInner { file, providers, begins }))
    }
}

impl Catalog {
    /// A price list of these rows, without sources or fallbacks.
    pub fn new(rows: impl IntoIterator<Item = PriceRow>) -> Self {
        CatalogFile { rows: rows.into_iter().collect(), ..CatalogFile::default() }.into()
    }

    /// Reads a price list from JSON, in the format of [`CatalogFile`].
    ///
    /// Rows that contradict each other are no error here; [`CatalogFile::row_errors`] finds them.
    ///
    /// # Errors
    /// [`CatalogError`] when the text is not the JSON of a [`CatalogFile`].
    pub fn from_json(text: &str) -> Result<Self, CatalogError> {
        CatalogFile::from_json(text).map(Self::from)
    }

    /// The list in the form of its file.
    pub fn file(&self) -> &CatalogFile {
        &self.0.file
    }

    /// The exact ids listed for `provider` on the UTC day `on`, in alphabetical order.
    ///
    /// The value is the first day of their prices. Ids that only a pattern matches are not included.
    pub fn models(&self, provider: &str, on: Date) -> BTreeMap<&str, Option<Date>> {
        let rows =
            self.0.file.rows.iter().filter(|row| row.provider == provider && row.applies_on(on));
        let mut models = BTreeMap::new();
        for row in rows {
            for model in row.models.iter().filter(|model| model.is_exact()) {
                let since = models.entry(model.as_str()).or_insert(row.effective_from);
                *since = row.effective_from.max(*since);
            }
        }
        models
    }

    /// The rows in effect on the UTC day `on`, in their order.
    ///
    /// A row is left out if later rows replace it for each of its models.
    pub fn rows_on(&self, on: Date) -> impl Iterator<Item = &PriceRow> {
        let held = || self.0.file.rows.iter().filter(move |row| row.applies_on(on));
        let mut latest: HashMap<(&str, &str, Option<DailyHours>), Option<Date>> = HashMap::new();
        for row in held() {
            for model in &row.models {
                let since = latest.entry((&row.provider, model.as_str(), row.hours)).or_default();
                *since = row.effective_from.max(*since);
            }
        }
        held().filter(move |row| {
            row.models.iter().any(|model| {
                let latest = |hours| latest.get(&(&*row.provider, model.as_str(), hours)).copied();
                latest(row.hours) == Some(row.effective_from)
                    // A later row for the whole day also replaces one for some hours.
                    && latest(None).is_none_or(|since| since <= row.effective_from)
            })
        })
    }

    /// The cost of `usage` of a model at a provider, at the standard prices of a moment.
    ///
    /// It ignores the tier that served a call (`flex`, `priority`). [`PriceBook::price`](crate::PriceBook::price)
    /// takes the tiers and parts that an answer reports.
    ///
    /// # Errors
    /// [`Error`] when a price is missing, or when the cost is beyond the range of an amount.
    pub fn cost(
        &self,
        provider: &str,
        model: &str,
        at: impl Into<Moment>,
        usage: &Usage,
    ) -> Result<BaseCost, Error> {
        let listed = self.find(provider, model, at).ok_or(Error::UnknownModel)?;
        let prices = listed.row.prices_for::<&str>(usage.input_tokens(), &[]).prices;
        match BaseCost::unpriced_unit(usage, &prices).filter(|_| usage.provider_cost.is_none()) {
            Some(unit) => Err(Error::UnpricedUnit(unit)),
            None => Ok(BaseCost::of(usage, &prices)?),
        }
    }

    /// The price row for `model` at `provider` at a moment; `None` without one.
    ///
    /// Without a time of the day, rows for some hours are skipped. A provider without a row for the
    /// model falls back to the providers of [`CatalogFile::fallbacks`].
    pub fn find(
        &self,
        provider: &str,
        model: &str,
        at: impl Into<Moment>,
    ) -> Option<PriceMatch<'_>> {
        let at = at.into();
        self.find_at(provider, model, at).or_else(|| {
            let others = self.0.file.fallbacks.get(provider)?;
            others.iter().find_map(|other| self.find_at(other, model, at))
        })
    }

    fn find_at(&self, provider: &str, model: &str, at: Moment) -> Option<PriceMatch<'_>> {
        let prices = self.0.providers.get(provider)?;
        let in_effect =
            |&place: &usize| self.0.file.rows.get(place).filter(|row| row.applies_at(at));
        let exactly = |form: &str| {
            let row = prices.exact.get(form)?.iter().find_map(in_effect)?;
            let named = |model: &&ModelPattern| model.as_str().eq_ignore_ascii_case(form);
            Some((row, row.models.iter().find(named)?))
        };
        // Most ids are listed exactly, and an exact id goes before everything else.
        if let Some((row, pattern)) = exactly(&lower_case(model.trim())) {
            return Some(PriceMatch { row, pattern, source: PriceSource::Catalog });
        }
        let forms = forms(provider, model);
        let exact = forms.iter().enumerate().find_map(|(place, form)| {
            exactly(form).map(|(row, named)| (place, form.len(), row, named))
        });
        // An exact match counts. But if it matched without the date of a snapshot or a region, a pattern
        // that matches a fuller form of the id and is longer than the listed id goes before it.
        let (particular, at_least) = match exact {
            Some((place, length, ..)) => (forms.get(..place).unwrap_or_default(), length + 1),
            None => (forms.as_slice(), 0),
        };
        let by_pattern = particular.iter().find_map(|form| {
            let patterns = prices.patterns.iter();
            let mut long = patterns.take_while(|(pattern, _)| pattern.literal_len() >= at_least);
            long.find_map(|(pattern, place)| {
                let row = in_effect(place).filter(|_| pattern.prices(form))?;
                Some((row, pattern))
            })
        });
        let (row, pattern) = by_pattern.or_else(|| exact.map(|(_, _, row, named)| (row, named)))?;
        Some(PriceMatch { row, pattern, source: PriceSource::Catalog })
    }
}

/// The source of a price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceSource {
    /// The provider, which reported the cost itself.
    Provider,
    /// The price list of the catalogue.
    Catalog,
    /// The operator's own price list.
    Custom,
    /// No price was found.
    #[default]
    Unpriced,
}

/// Two price lists: the operator's own, and the catalogue behind it.
#[derive(Clone, Debug, Default)]
pub struct PriceBook {
    custom: Catalog,
    catalog: Catalog,
    /// Per provider, the provider whose prices apply to models that it does not list.
    stand_ins: Arc<BTreeMap<String, String>>,
}

impl PriceBook {
    /// A book of two lists; `custom` is searched first.
    pub fn new(custom: Catalog, catalog: Catalog) -> Self {
        Self { custom, catalog, stand_ins: Arc::default() }
    }

    /// Sets the stand-ins of providers, by name.
    ///
    /// The prices of a stand-in apply to models that the provider does not list.
    #[must_use]
    pub fn with_stand_ins(mut self, stand_ins: BTreeMap<String, String>) -> Self {
        self.stand_ins = Arc::new(stand_ins);
        self
    }

    /// The catalogue behind the operator's own list.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The book with another catalogue.
    #[must_use]
    pub fn with_catalog(self, catalog: Catalog) -> Self {
        Self { catalog, ..self }
    }

    /// The provider whose prices apply to models that `provider` does not list.
    pub fn stand_in(&self, provider: &str) -> Option<&str> {
        self.stand_ins.get(provider).map(String::as_str).filter(|other| *other != provider)
    }

    /// The names of the providers that have a stand-in.
    pub fn providers_with_stand_in(&self) -> impl Iterator<Item = &str> {
        self.stand_ins.keys().map(String::as_str)
    }

    /// The names under which a provider's prices may be listed, its own first.
    fn names<'a>(&'a self, provider: &'a str) -> impl DoubleEndedIterator<Item = &'a str> + Clone {
        [Some(provider), self.stand_in(provider)].into_iter().flatten()
    }

    /// The exact ids that either list has for `provider` or its stand-in on the UTC day `on`.
    ///
    /// They are in alphabetical order; the value is the first day of their prices.
    pub fn models<'a>(&'a self, provider: &str, on: Date) -> BTreeMap<&'a str, Option<Date>> {
        let mut models = BTreeMap::new();
        // The list that is searched first is added last, so its days stay.
        for list in [&self.catalog, &self.custom] {
            for name in self.names(provider).rev() {
                models.extend(list.models(name, on));
            }
        }
        models
    }

    /// Every price row: the operator's own, then the catalogue's.
    pub fn rows(&self) -> impl Iterator<Item = (&PriceRow, PriceSource)> {
        let custom = self.custom.file().rows.iter().map(|row| (row, PriceSource::Custom));
        custom.chain(self.catalog.file().rows.iter().map(|row| (row, PriceSource::Catalog)))
    }

    /// The rows in effect on the UTC day `on`: the operator's own, then the catalogue's.
    pub fn rows_on(&self, on: Date) -> impl Iterator<Item = (&PriceRow, PriceSource)> {
        let custom = self.custom.rows_on(on).map(|row| (row, PriceSource::Custom));
        custom.chain(self.catalog.rows_on(on).map(|row| (row, PriceSource::Catalog)))
    }

    /// The price row for `model` at `provider` at a moment; `None` without one.
    ///
    /// Without a time of the day, rows for some hours are skipped. The search order is: the operator's
    /// list for the provider, then for its stand-in; the catalogue for the provider, then for its
    /// stand-in.
    pub fn find(
        &self,
        provider: &str,
        model: &str,
        at: impl Into<Moment>,
    ) -> Option<PriceMatch<'_>> {
        let at = at.into();
        let names = self.names(provider);
        let custom = names.clone().find_map(|name| self.custom.find(name, model, at));
        let custom = custom.map(|listed| PriceMatch { source: PriceSource::Custom, ..listed });
        custom.or_else(|| names.clone().find_map(|name| self.catalog.find(name, model, at)))
    }

    /// Every row for `model` at `provider` at some hour of the UTC day `on`.
    ///
    /// The row for most of the day is first, then those for some hours.
    pub fn find_all(&self, provider: &str, model: &str, on: Date) -> Vec<PriceMatch<'_>> {
        let mut all: Vec<_> = self.find(provider, model, on).into_iter().collect();
        let begins = self.custom.0.begins.union(&self.catalog.0.begins);
        let at_hours = begins.filter_map(|&begin| self.find(provider, model, (on, begin)));
        for listed in at_hours.filter(|listed| listed.row.hours.is_some()) {
            if !all.iter().any(|known| std::ptr::eq(known.row, listed.row)) {
                all.push(listed);
            }
        }
        all
    }
}
