use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use time::{Date, Time};

use crate::hours::{Hours, Moment};
use crate::model::{ModelPattern, forms, lower_case};
use crate::price_row::PriceRow;

/// A price list: rows, and which providers' lists stand in for another's.
///
/// A model is looked up by its id as it stands, then by its other forms (without a path, a region or
/// the date of a snapshot), then by patterns, longer ones before shorter. A pattern that says more than
/// the id that was found without its date or region goes before it. Of the rows that hold at a moment,
/// the one that took effect last counts, and of those of one day the one for some hours goes before the
/// one for all others. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct Catalog(Arc<Lists>);

#[derive(Debug, Default)]
struct Lists {
    file: CatalogFile,
    providers: HashMap<String, ProviderPrices>,
    /// When the hours begin that rows are for.
    begins: BTreeSet<Time>,
}

/// Places in the rows, newest first, those for some hours before those for all.
#[derive(Debug, Default)]
struct ProviderPrices {
    /// By ids in lower case.
    exact: HashMap<String, Vec<usize>>,
    /// Longest first.
    patterns: Vec<(ModelPattern, usize)>,
}

/// A price list as it stands in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogFile {
    /// Where the figures come from, and of which day they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// For a provider, those whose prices hold where it lists none of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fallbacks: BTreeMap<String, Vec<String>>,
    /// The rows.
    pub rows: Vec<PriceRow>,
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

/// A row that prices a model, and by which of its patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The row.
    pub row: &'a PriceRow,
    /// The pattern of it that matched.
    pub pattern: &'a ModelPattern,
    /// Whose row it is.
    pub source: PriceSource,
}

impl CatalogFile {
    /// A file from its JSON.
    ///
    /// # Errors
    /// [`CatalogError`] when the text is no such file.
    pub fn from_json(text: &str) -> Result<Self, CatalogError> {
        serde_json::from_str(text).map_err(CatalogError)
    }
}

impl From<CatalogFile> for Catalog {
    fn from(mut file: CatalogFile) -> Self {
        let mut providers: HashMap<String, ProviderPrices> = HashMap::new();
        let mut begins = BTreeSet::new();
        for (place, row) in file.rows.iter_mut().enumerate() {
            row.bands.sort_by_key(|band| band.above_input_tokens);
            begins.extend(row.hours.map(Hours::begin));
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
        Self(Arc::new(Lists { file, providers, begins }))
    }
}

impl Catalog {
    /// A catalogue of these rows.
    pub fn new(rows: impl IntoIterator<Item = PriceRow>) -> Self {
        CatalogFile { rows: rows.into_iter().collect(), ..CatalogFile::default() }.into()
    }

    /// A catalogue from JSON: a [`CatalogFile`].
    ///
    /// # Errors
    /// [`CatalogError`] when the text is no such file.
    pub fn from_json(text: &str) -> Result<Self, CatalogError> {
        CatalogFile::from_json(text).map(Self::from)
    }

    /// The prices that ship with this crate. It names its sources.
    ///
    /// # Errors
    /// None in a released crate: a test reads every row.
    pub fn embedded() -> Result<Self, CatalogError> {
        static EMBEDDED: OnceLock<Catalog> = OnceLock::new();
        if let Some(catalog) = EMBEDDED.get() {
            return Ok(catalog.clone());
        }
        let catalog = Self::from_json(include_str!("../catalog.json"))?;
        Ok(EMBEDDED.get_or_init(|| catalog).clone())
    }

    /// The list as a file has it.
    pub fn file(&self) -> &CatalogFile {
        &self.0.file
    }

    /// The ids that are listed as they stand for `provider` on the UTC day `on`, in their order, with
    /// the day on which their prices took effect. What only a pattern matches is not among them.
    pub fn models(&self, provider: &str, on: Date) -> BTreeMap<&str, Option<Date>> {
        let rows = self.0.file.rows.iter().filter(|row| row.provider == provider && row.holds(on));
        let mut models = BTreeMap::new();
        for row in rows {
            for model in row.models.iter().filter(|model| model.is_exact()) {
                let since = models.entry(model.as_str()).or_insert(row.effective_from);
                *since = row.effective_from.max(*since);
            }
        }
        models
    }

    /// The rows by which anything is priced on the UTC day `on`, in their order: those that hold and
    /// whose place no later one has taken for each of their models.
    pub fn rows_on(&self, on: Date) -> impl Iterator<Item = &PriceRow> {
        let held = || self.0.file.rows.iter().filter(move |row| row.holds(on));
        let mut latest: HashMap<(&str, &str, Option<Hours>), Option<Date>> = HashMap::new();
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
                    // A later row for the whole day takes the place of one for some hours, too.
                    && latest(None).is_none_or(|since| since <= row.effective_from)
            })
        })
    }

    /// The row for `model` at `provider` at a moment; without a time of the day, the one for the hours
    /// that no other row is for.
    pub fn find(&self, provider: &str, model: &str, at: impl Into<Moment>) -> Option<Listed<'_>> {
        let at = at.into();
        self.find_at(provider, model, at).or_else(|| {
            let others = self.0.file.fallbacks.get(provider)?;
            others.iter().find_map(|other| self.find_at(other, model, at))
        })
    }

    fn find_at(&self, provider: &str, model: &str, at: Moment) -> Option<Listed<'_>> {
        let prices = self.0.providers.get(provider)?;
        let in_effect = |&place: &usize| self.0.file.rows.get(place).filter(|row| row.holds_at(at));
        let exactly = |form: &str| {
            let row = prices.exact.get(form)?.iter().find_map(in_effect)?;
            let named = |model: &&ModelPattern| model.as_str().eq_ignore_ascii_case(form);
            Some((row, row.models.iter().find(named)?))
        };
        // Most ids are listed as they stand, and nothing goes before that.
        if let Some((row, pattern)) = exactly(&lower_case(model.trim())) {
            return Some(Listed { row, pattern, source: PriceSource::Catalog });
        }
        let forms = forms(provider, model);
        let exact = forms.iter().enumerate().find_map(|(place, form)| {
            exactly(form).map(|(row, named)| (place, form.len(), row, named))
        });
        // An id that is listed exactly counts, but what it is listed without (the date of a snapshot,
        // a region) a pattern may name: one that says more than the listed id goes before it.
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
        Some(Listed { row, pattern, source: PriceSource::Catalog })
    }
}

/// Where a price came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceSource {
    /// The provider stated the cost itself.
    Provider,
    /// The catalogue.
    Catalog,
    /// The operator's own prices.
    Custom,
    /// There is no price.
    #[default]
    Unpriced,
}

/// The operator's own prices before the catalogue's.
#[derive(Clone, Debug, Default)]
pub struct PriceBook {
    custom: Catalog,
    catalog: Catalog,
    /// For a provider, the one whose prices hold where it has none of its own.
    stand_ins: Arc<BTreeMap<String, String>>,
}

impl PriceBook {
    /// A book of two lists; `custom` is looked up first.
    pub fn new(custom: Catalog, catalog: Catalog) -> Self {
        Self { custom, catalog, stand_ins: Arc::default() }
    }

    /// The book with providers, by name, whose prices another provider's take the place of where they
    /// have none of their own.
    #[must_use]
    pub fn with_stand_ins(mut self, stand_ins: BTreeMap<String, String>) -> Self {
        self.stand_ins = Arc::new(stand_ins);
        self
    }

    /// The provider whose prices hold for `provider` where it has none of its own.
    pub fn stand_in(&self, provider: &str) -> Option<&str> {
        self.stand_ins.get(provider).map(String::as_str).filter(|other| *other != provider)
    }

    /// The names that have a stand-in.
    pub fn stood_in_for(&self) -> impl Iterator<Item = &str> {
        self.stand_ins.keys().map(String::as_str)
    }

    /// Under which names the prices of a provider may be listed, its own first.
    fn names<'a>(&'a self, provider: &'a str) -> impl DoubleEndedIterator<Item = &'a str> + Clone {
        [Some(provider), self.stand_in(provider)].into_iter().flatten()
    }

    /// The ids that either list has as they stand for `provider` or its stand-in on the UTC day `on`,
    /// in their order, with the day on which their prices took effect.
    pub fn models<'a>(&'a self, provider: &str, on: Date) -> BTreeMap<&'a str, Option<Date>> {
        let mut models = BTreeMap::new();
        // What is looked up first comes last and stays.
        for list in [&self.catalog, &self.custom] {
            for name in self.names(provider).rev() {
                models.extend(list.models(name, on));
            }
        }
        models
    }

    /// Every row: the operator's own, then the catalogue's.
    pub fn rows(&self) -> impl Iterator<Item = (&PriceRow, PriceSource)> {
        let custom = self.custom.file().rows.iter().map(|row| (row, PriceSource::Custom));
        custom.chain(self.catalog.file().rows.iter().map(|row| (row, PriceSource::Catalog)))
    }

    /// The rows by which anything is priced on the UTC day `on`: the operator's own, then the
    /// catalogue's.
    pub fn rows_on(&self, on: Date) -> impl Iterator<Item = (&PriceRow, PriceSource)> {
        let custom = self.custom.rows_on(on).map(|row| (row, PriceSource::Custom));
        custom.chain(self.catalog.rows_on(on).map(|row| (row, PriceSource::Catalog)))
    }

    /// The row for `model` at `provider` at a moment; without a time of the day, the one for the hours
    /// that no other row is for. The operator's own prices of the provider go before those of its
    /// stand-in, and these before the catalogue's of the one and then of the other.
    pub fn find(&self, provider: &str, model: &str, at: impl Into<Moment>) -> Option<Listed<'_>> {
        let at = at.into();
        let names = self.names(provider);
        let custom = names.clone().find_map(|name| self.custom.find(name, model, at));
        let custom = custom.map(|listed| Listed { source: PriceSource::Custom, ..listed });
        custom.or_else(|| names.clone().find_map(|name| self.catalog.find(name, model, at)))
    }

    /// Every row that prices `model` at `provider` at some hour of the UTC day `on`: the one for most
    /// of the day, then those for some hours.
    pub fn find_all(&self, provider: &str, model: &str, on: Date) -> Vec<Listed<'_>> {
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
