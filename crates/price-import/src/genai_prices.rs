//! Reads the JSON of the `genai-prices` project.
//!
//! Prices are per million tokens, per thousand calls or pages, per hour of audio. A price may have
//! steps by the length of the prompt: a call beyond a step pays its price for all tokens. A model may
//! have several prices by date or time of day, and variants by how a call was served.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use time::Date;
use tollgate_pricing::{
    DailyHours, ModelPattern, PriceBand, PriceRow, Rate, TierPrices, Unit, UnitPrices,
};

use crate::error::ImportError;
use crate::format::ImportFormat;
use crate::imported::ImportedPrices;
use crate::note::ImportNote;
use crate::number::{self, ScaleFactor};
use crate::patterns::ModelCondition;
use crate::time_of_day;

#[derive(Deserialize)]
struct GenaiProvider {
    id: String,
    #[serde(default)]
    fallback_model_providers: Option<Vec<String>>,
    /// Read one by one, so that an unreadable model does not affect the others.
    models: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct GenaiModel {
    id: String,
    r#match: ModelCondition,
    /// One price list, or several under conditions.
    prices: Box<RawValue>,
    #[serde(default)]
    price_variants: Option<Vec<PriceVariant>>,
}

type PriceKeys = BTreeMap<String, Box<RawValue>>;

#[derive(Deserialize)]
struct ConditionalPrices {
    #[serde(default)]
    constraint: Option<PriceConstraint>,
    prices: PriceKeys,
}

#[derive(Deserialize)]
struct PriceVariant {
    when: BTreeMap<String, String>,
    #[serde(default)]
    constraint: Option<PriceConstraint>,
    prices: PriceKeys,
}

#[derive(Deserialize)]
struct PriceConstraint {
    #[serde(default)]
    start_date: Option<Date>,
    #[serde(default)]
    start_time: Option<String>,
    #[serde(default)]
    end_time: Option<String>,
    /// Conditions that are not supported.
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

impl PriceConstraint {
    fn hours(&self) -> Option<DailyHours> {
        let minute = |text: &Option<String>| time_of_day::minute(text.as_deref()?);
        DailyHours::new(minute(&self.start_time)?, minute(&self.end_time)?)
    }
}

/// A price, with steps by the length of the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SteppedPrice {
    base: Rate,
    steps: Vec<(u64, Rate)>,
}

#[derive(Deserialize)]
struct RawSteppedPrice {
    base: Box<RawValue>,
    tiers: Vec<RawPriceStep>,
}

#[derive(Deserialize)]
struct RawPriceStep {
    start: u64,
    price: Box<RawValue>,
}

type SteppedPrices = BTreeMap<&'static str, (Unit, SteppedPrice)>;

/// A tier, the first day of its own prices, and these prices.
type DatedTierPrices<'a> = (&'a str, Option<Date>, SteppedPrices);

/// Prices at some hours of the day.
struct HourlyPrices {
    since: Option<Date>,
    hours: DailyHours,
    prices: SteppedPrices,
}

/// The list's names of the providers, and the names in this crate.
const PROVIDERS: [(&str, &str); 19] = [
    ("anthropic", "anthropic"),
    ("aws", "bedrock"),
    ("azure", "azure"),
    ("cerebras", "cerebras"),
    ("cohere", "cohere"),
    ("deepseek", "deepseek"),
    ("elevenlabs", "elevenlabs"),
    ("fireworks", "fireworks"),
    ("google", "google"),
    ("groq", "groq"),
    ("mistral", "mistral"),
    ("moonshotai", "moonshot"),
    ("novita", "novita"),
    ("openai", "openai"),
    ("openrouter", "openrouter"),
    ("perplexity", "perplexity"),
    ("together", "together"),
    ("x-ai", "xai"),
    ("xai", "xai"),
];

fn our_name(provider: &str) -> Option<&'static str> {
    PROVIDERS.iter().find(|(theirs, _)| *theirs == provider).map(|(_, ours)| *ours)
}

/// The unit of a price key, and its scale.
fn unit_of(key: &str) -> Option<(&'static str, Unit, ScaleFactor)> {
    const UNITS: [(&str, Unit, ScaleFactor); 22] = [
        ("input_mtok", Unit::Input, ScaleFactor::ONE),
        ("cache_read_mtok", Unit::CachedInput, ScaleFactor::ONE),
        ("cache_audio_read_mtok", Unit::CachedInputAudio, ScaleFactor::ONE),
        ("cache_write_mtok", Unit::CacheWrite, ScaleFactor::ONE),
        ("cache_write_5m_mtok", Unit::CacheWrite, ScaleFactor::ONE),
        ("cache_write_1h_mtok", Unit::CacheWrite1h, ScaleFactor::ONE),
        ("input_audio_mtok", Unit::InputAudio, ScaleFactor::ONE),
        ("input_image_mtok", Unit::InputImage, ScaleFactor::ONE),
        ("input_video_mtok", Unit::InputVideo, ScaleFactor::ONE),
        ("output_mtok", Unit::Output, ScaleFactor::ONE),
        ("output_reasoning_mtok", Unit::Reasoning, ScaleFactor::ONE),
        ("output_audio_mtok", Unit::OutputAudio, ScaleFactor::ONE),
        ("output_image_mtok", Unit::OutputImage, ScaleFactor::ONE),
        ("input_mchars", Unit::InputCharacters, ScaleFactor::ONE),
        ("output_mchars", Unit::OutputCharacters, ScaleFactor::ONE),
        ("input_audio_hours", Unit::InputSecond, ScaleFactor::PER_SECOND),
        ("output_audio_hours", Unit::OutputSecond, ScaleFactor::PER_SECOND),
        ("input_document_kpages", Unit::Page, ScaleFactor::THOUSANDTH),
        ("requests_kcount", Unit::Request, ScaleFactor::THOUSANDTH),
        ("web_searches_kcount", Unit::WebSearch, ScaleFactor::THOUSANDTH),
        ("storage_searches_kcount", Unit::FileSearch, ScaleFactor::THOUSANDTH),
        ("rerank_searches_kcount", Unit::SearchUnit, ScaleFactor::THOUSANDTH),
    ];
    UNITS.into_iter().find(|(name, ..)| *name == key)
}

/// The tier of a price row that a variant is for.
fn tier_of(when: &BTreeMap<String, String>) -> Option<&str> {
    let mut conditions = when.iter();
    let (key, value) = conditions.next().filter(|_| when.len() == 1)?;
    match (key.as_str(), value.as_str()) {
        ("processing", "batch")
        | ("service_tier", "priority" | "flex" | "fast")
        | ("speed", "fast") => Some(value),
        _ => None,
    }
}

pub(crate) fn read(text: &str) -> Result<(ImportedPrices, Vec<PriceRow>), ImportError> {
    let providers: Vec<GenaiProvider> = serde_json::from_str(text).map_err(ImportError)?;
    let mut read = ImportedPrices::default();
    let mut rows = Vec::new();
    let mut named = BTreeSet::new();
    let mut unread = None;
    for provider in providers {
        let Some(name) = our_name(&provider.id) else {
            let text = format!("{} models of a provider not known here", provider.models.len());
            read.notes.push(ImportNote::new(&provider.id, "", text));
            continue;
        };
        let others = provider.fallback_model_providers.unwrap_or_default();
        let others: Vec<_> = others.iter().filter_map(|other| our_name(other)).collect();
        if !others.is_empty() {
            let others = others.into_iter().map(str::to_owned).collect();
            read.fallbacks.insert(name.to_owned(), others);
        }
        for model in provider.models {
            let model: GenaiModel = match serde_json::from_str(model.get()) {
                Ok(model) => model,
                Err(why) => {
                    #[derive(Deserialize)]
                    struct ModelId {
                        id: String,
                    }
                    let id = serde_json::from_str(model.get())
                        .map_or_else(|_| "a model".to_owned(), |ModelId { id }| id);
                    read.notes.push(ImportNote::unreadable(name, &id, &why));
                    unread.get_or_insert(why);
                    continue;
                }
            };
            let notes = &mut read.notes;
            let unreadable = Vec::new();
            let mut reader = GenaiReader { provider: name, model: &model.id, notes, unreadable };
            match reader.model(&model) {
                Ok(_) if !reader.unreadable.is_empty() => {
                    let what = reader.unreadable.join(", ");
                    read.notes.push(ImportNote::unreadable(name, &model.id, what));
                }
                Ok(own) => {
                    // As in the list itself, the first model that an id matches counts.
                    let mut patterns: Vec<ModelPattern> =
                        own.first().map(|row| row.models.clone()).unwrap_or_default();
                    patterns.retain(|pattern| {
                        let is_new = named.insert((name, pattern.as_str().to_ascii_lowercase()));
                        if !is_new {
                            reader.note(format!("{} is listed before", pattern.as_str()));
                        }
                        is_new
                    });
                    rows.extend(
                        own.into_iter().map(|row| PriceRow { models: patterns.clone(), ..row }),
                    );
                }
                Err(why) => read.notes.push(ImportNote::unreadable(name, &model.id, why)),
            }
        }
    }
    // A list without one readable model is in another format.
    match unread.filter(|_| rows.is_empty()) {
        Some(why) => Err(ImportError(why)),
        None => Ok((read, rows)),
    }
}

/// A reader of the prices of one model.
struct GenaiReader<'a> {
    provider: &'a str,
    model: &'a str,
    notes: &'a mut Vec<ImportNote>,
    /// The prices that could not be read. Without them the model would be too cheap.
    unreadable: Vec<String>,
}

impl GenaiReader<'_> {
    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(ImportNote::new(self.provider, self.model, text));
    }

    fn model(&mut self, model: &GenaiModel) -> Result<Vec<PriceRow>, serde_json::Error> {
        let (models, left_out) = model.r#match.patterns(self.provider);
        for what in left_out {
            self.note(format!("{what} are not carried over"));
        }
        let lists: Vec<ConditionalPrices> = match model.prices.get().trim_start().starts_with('[') {
            true => serde_json::from_str(model.prices.get())?,
            false => {
                let prices = serde_json::from_str(model.prices.get())?;
                vec![ConditionalPrices { constraint: None, prices }]
            }
        };
        if lists.is_empty() {
            self.note("has no prices");
        }
        let variants = self.variants(model.price_variants.as_deref().unwrap_or_default());
        // The last list whose condition is met applies, or else the first.
        let mut dated: BTreeMap<Option<Date>, SteppedPrices> = BTreeMap::new();
        let mut hourly: Vec<HourlyPrices> = Vec::new();
        let mut all_day: Vec<SteppedPrices> = Vec::new();
        for (place, list) in lists.iter().enumerate() {
            let prices = self.prices(&list.prices);
            let constraint = list.constraint.as_ref().filter(|_| place > 0);
            for other in list.constraint.iter().flat_map(|one| one.others.keys()) {
                self.note(format!("the condition {other} of a price is not carried over"));
            }
            match constraint {
                Some(one) if one.start_time.is_some() || one.end_time.is_some() => {
                    // Its first day is that of the prices before it, because the list states hours from then on.
                    let since = dated.keys().max().copied().flatten();
                    match one.hours() {
                        Some(hours) => hourly.push(HourlyPrices { since, hours, prices }),
                        None => all_day.push(prices),
                    }
                }
                constraint => {
                    dated.insert(constraint.and_then(|one| one.start_date), prices);
                }
            }
        }
        if !all_day.is_empty() {
            self.note("has prices by the time of day that cannot be read: the highest are taken for the whole day");
        }
        let days: Vec<_> = dated.keys().copied().collect();
        let ends = days.iter().skip(1).copied().chain([None]);
        let mut steps: Vec<Vec<PriceRow>> = Vec::new();
        for ((since, mut prices), until) in dated.into_iter().zip(ends) {
            for higher in &all_day {
                keep_highest(&mut prices, higher);
            }
            let mut step = vec![self.row(&models, since, None, &prices, (&variants, until))];
            // Where hours overlap, the last list counts.
            let of_day: Vec<_> = hourly.iter().filter(|one| one.since == since).collect();
            let last = |time| of_day.iter().rposition(|one| one.hours.contains(time));
            for (hours, place) in time_of_day::runs(last) {
                let Some(one) = place.and_then(|place| of_day.get(place)) else { continue };
                step.push(self.row(&models, since, hours, &one.prices, (&variants, until)));
            }
            let alike = |(one, other): (&PriceRow, &PriceRow)| {
                PriceRow { effective_from: one.effective_from, ..other.clone() } == *one
            };
            let unchanged = steps
                .last()
                .is_some_and(|last| last.len() == step.len() && last.iter().zip(&step).all(alike));
            if !unchanged {
                steps.push(step);
            }
        }
        Ok(steps.into_iter().flatten().collect())
    }

    fn row(
        &self,
        models: &[ModelPattern],
        effective_from: Option<Date>,
        hours: Option<DailyHours>,
        prices: &SteppedPrices,
        (variants, until): (&[DatedTierPrices<'_>], Option<Date>),
    ) -> PriceRow {
        let (standard, bands) = in_bands(prices);
        let mut row = PriceRow {
            provider: self.provider.to_owned(),
            models: models.to_vec(),
            effective_from,
            hours,
            source: Some(ImportFormat::GenaiPrices.name().to_owned()),
            prices: standard,
            bands,
            ..PriceRow::default()
        };
        let mut tiers: BTreeMap<&str, SteppedPrices> = BTreeMap::new();
        // A variant that begins while these prices apply is theirs from the start: its date is the day on
        // which the list began to state it.
        let begun = |since: Option<Date>| until.is_none_or(|until| since < Some(until));
        for (tier, _, own) in variants.iter().filter(|(_, since, _)| begun(*since)) {
            let tier = tiers.entry(tier).or_default();
            for (key, price) in own {
                // Of two variants for one key, the first counts.
                tier.entry(*key).or_insert_with(|| price.clone());
            }
        }
        for (tier, own) in tiers {
            let mut all = prices.clone();
            all.extend(own);
            let (prices, bands) = in_bands(&all);
            let tier_prices = TierPrices::Prices { prices: Box::new(prices), bands };
            row.tiers.insert(tier.to_owned(), tier_prices);
        }
        row
    }

    fn variants<'v>(&mut self, variants: &'v [PriceVariant]) -> Vec<DatedTierPrices<'v>> {
        let mut read = Vec::new();
        for variant in variants.iter().filter(|variant| !variant.prices.is_empty()) {
            let by_hours = |one: &PriceConstraint| {
                one.start_time.is_some() || one.end_time.is_some() || !one.others.is_empty()
            };
            let in_part = variant.constraint.as_ref().is_some_and(by_hours);
            match tier_of(&variant.when).filter(|_| !in_part) {
                Some(tier) => {
                    let since = variant.constraint.as_ref().and_then(|one| one.start_date);
                    read.push((tier, since, self.prices(&variant.prices)));
                }
                None => {
                    let when: Vec<_> =
                        variant.when.iter().map(|(key, value)| format!("{key}={value}")).collect();
                    self.note(format!("prices for {} are not carried over", when.join(", ")));
                }
            }
        }
        read
    }

    fn prices(&mut self, keys: &PriceKeys) -> SteppedPrices {
        let mut prices = SteppedPrices::new();
        for (key, raw) in keys {
            // Audio of either direction: the list does not distinguish them.
            let known = match key.as_str() {
                "audio_hours" if keys.contains_key("input_audio_hours") => continue,
                "audio_hours" => unit_of("input_audio_hours"),
                key => unit_of(key),
            };
            let Some((key, unit, scale)) = known else {
                self.note(format!("{key} has no unit here"));
                continue;
            };
            match stepped(raw, scale) {
                Some(price) => {
                    prices.insert(key, (unit, price));
                }
                None if raw.get() == "null" => (),
                None => self.unreadable.push(format!("{key} is not a price: {}", raw.get())),
            }
        }
        prices
    }
}

fn stepped(raw: &RawValue, scale: ScaleFactor) -> Option<SteppedPrice> {
    if !raw.get().trim_start().starts_with('{') {
        return Some(SteppedPrice { base: number::rate(raw, scale)?, steps: Vec::new() });
    }
    let raw: RawSteppedPrice = serde_json::from_str(raw.get()).ok()?;
    let steps: Option<Vec<_>> = raw
        .tiers
        .iter()
        .map(|step| Some((step.start, number::rate(&step.price, scale)?)))
        .collect();
    let mut steps = steps?;
    steps.sort_by_key(|(start, _)| *start);
    Some(SteppedPrice { base: number::rate(&raw.base, scale)?, steps })
}

/// Raises each price to the higher of two.
fn keep_highest(prices: &mut SteppedPrices, other: &SteppedPrices) {
    for (key, (unit, price)) in other {
        let (_, mine) = prices.entry(key).or_insert_with(|| (*unit, price.clone()));
        if price.base > mine.base {
            *mine = price.clone();
        }
    }
}

/// The prices below all steps, and above each step.
fn in_bands(prices: &SteppedPrices) -> (UnitPrices, Vec<PriceBand>) {
    let above = |start: Option<u64>| {
        let mut units = UnitPrices::default();
        for (unit, price) in prices.values() {
            let steps = price.steps.iter().rev();
            let step = steps.clone().find(|(from, _)| start.is_some_and(|start| *from <= start));
            *units.get_mut(*unit) = Some(step.map_or(price.base, |(_, price)| *price));
        }
        units
    };
    let mut starts: Vec<u64> =
        prices.values().flat_map(|(_, price)| price.steps.iter().map(|(from, _)| *from)).collect();
    starts.sort_unstable();
    starts.dedup();
    let bands = starts
        .into_iter()
        .map(|start| PriceBand { above_input_tokens: start, prices: above(Some(start)) });
    (above(None), bands.collect())
}
