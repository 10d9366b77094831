//! Reads LiteLLM's map of models.
//!
//! Prices are per token, character, second or call, without dates. A key names the unit, then
//! optionally the length of the prompt above which it applies, then optionally the tier:
//! `input_cost_per_token_above_272k_tokens_priority`.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use tollgate_pricing::{ModelPattern, PriceBand, PriceRow, Rate, TierPrices, Unit, UnitPrices};

use crate::error::ImportError;
use crate::format::ImportFormat;
use crate::imported::ImportedPrices;
use crate::note::ImportNote;
use crate::number::{self, ScaleFactor};
use crate::time_of_day;

type ModelFields = BTreeMap<String, Box<RawValue>>;

/// The list's names of the providers, the names in this crate, and the id prefixes.
///
/// If two are one provider here, the entries of the first count.
const PROVIDERS: [(&str, &str, &[&str]); 35] = [
    ("openai", "openai", &["openai/"]),
    ("text-completion-openai", "openai", &[]),
    ("azure", "azure", &["azure/"]),
    ("azure_text", "azure", &["azure/"]),
    ("azure_ai", "azure", &["azure_ai/"]),
    ("anthropic", "anthropic", &["anthropic/"]),
    ("gemini", "google", &["gemini/"]),
    ("vertex_ai-language-models", "google", &["vertex_ai/"]),
    ("vertex_ai-embedding-models", "google", &["vertex_ai/"]),
    ("vertex_ai-image-models", "google", &["vertex_ai/"]),
    ("vertex_ai-anthropic_models", "google", &["vertex_ai/"]),
    ("mistral", "mistral", &["mistral/"]),
    ("codestral", "mistral", &["codestral/"]),
    ("deepseek", "deepseek", &["deepseek/"]),
    ("xai", "xai", &["xai/"]),
    ("groq", "groq", &["groq/"]),
    ("together_ai", "together", &["together_ai/"]),
    ("fireworks_ai", "fireworks", &["fireworks_ai/"]),
    ("fireworks_ai-embedding-models", "fireworks", &["fireworks_ai/"]),
    ("openrouter", "openrouter", &["openrouter/"]),
    ("cerebras", "cerebras", &["cerebras/"]),
    ("sambanova", "sambanova", &["sambanova/"]),
    ("deepinfra", "deepinfra", &["deepinfra/"]),
    ("cohere", "cohere", &["cohere/"]),
    ("cohere_chat", "cohere", &["cohere_chat/"]),
    ("perplexity", "perplexity", &["perplexity/"]),
    ("moonshot", "moonshot", &["moonshot/"]),
    ("novita", "novita", &["novita/"]),
    ("nebius", "nebius", &["nebius/"]),
    ("hyperbolic", "hyperbolic", &["hyperbolic/"]),
    ("elevenlabs", "elevenlabs", &["elevenlabs/"]),
    ("deepgram", "deepgram", &["deepgram/"]),
    ("bedrock", "bedrock", &["bedrock/"]),
    ("bedrock_converse", "bedrock", &["bedrock_converse/"]),
    ("bedrock_mantle", "bedrock", &["bedrock_mantle/"]),
];

/// The unit of a price key, and its scale.
const UNITS: [(&str, Unit, ScaleFactor); 27] = [
    ("input_cost_per_token", Unit::Input, ScaleFactor::MILLION),
    ("cache_read_input_token_cost", Unit::CachedInput, ScaleFactor::MILLION),
    ("input_cost_per_token_cache_hit", Unit::CachedInput, ScaleFactor::MILLION),
    ("cache_read_input_audio_token_cost", Unit::CachedInputAudio, ScaleFactor::MILLION),
    ("cache_creation_input_token_cost", Unit::CacheWrite, ScaleFactor::MILLION),
    ("cache_creation_input_token_cost_above_1hr", Unit::CacheWrite1h, ScaleFactor::MILLION),
    ("input_cost_per_audio_token", Unit::InputAudio, ScaleFactor::MILLION),
    ("input_cost_per_image_token", Unit::InputImage, ScaleFactor::MILLION),
    ("input_cost_per_video_token", Unit::InputVideo, ScaleFactor::MILLION),
    ("output_cost_per_token", Unit::Output, ScaleFactor::MILLION),
    ("output_cost_per_reasoning_token", Unit::Reasoning, ScaleFactor::MILLION),
    ("output_cost_per_audio_token", Unit::OutputAudio, ScaleFactor::MILLION),
    ("output_cost_per_image_token", Unit::OutputImage, ScaleFactor::MILLION),
    ("input_cost_per_character", Unit::InputCharacters, ScaleFactor::MILLION),
    ("output_cost_per_character", Unit::OutputCharacters, ScaleFactor::MILLION),
    ("input_cost_per_second", Unit::InputSecond, ScaleFactor::ONE),
    ("input_cost_per_audio_per_second", Unit::InputSecond, ScaleFactor::ONE),
    ("output_cost_per_second", Unit::OutputSecond, ScaleFactor::ONE),
    ("output_cost_per_video_per_second", Unit::OutputSecond, ScaleFactor::ONE),
    ("output_cost_per_image", Unit::Image, ScaleFactor::ONE),
    ("ocr_cost_per_page", Unit::Page, ScaleFactor::ONE),
    ("input_cost_per_request", Unit::Request, ScaleFactor::ONE),
    ("search_context_cost_per_query", Unit::WebSearch, ScaleFactor::ONE),
    ("file_search_cost_per_1k_calls", Unit::FileSearch, ScaleFactor::THOUSANDTH),
    ("code_interpreter_cost_per_session", Unit::CodeSession, ScaleFactor::ONE),
    ("input_cost_per_query", Unit::SearchUnit, ScaleFactor::ONE),
    // Image models without a price of generated images use this key for it.
    ("input_cost_per_image", Unit::Image, ScaleFactor::ONE),
];

/// The tier suffixes of keys, and the names of the tiers in price rows.
const TIERS: [(&str, &str); 5] = [
    ("_priority", "priority"),
    ("_flex", "flex"),
    ("_batches", "batch"),
    ("_batch_requests", "batch"),
    ("_ultrafast", "ultrafast"),
];

/// The keys of factors on the price of every token, and the tier of each.
const FACTORS: [(&str, &str); 2] = [
    ("regional_processing_uplift_multiplier_us", "us"),
    ("regional_processing_uplift_multiplier_eu", "eu"),
];

pub(crate) fn read(text: &str) -> Result<(ImportedPrices, Vec<PriceRow>), ImportError> {
    // The values are read one by one, since one entry explains the format and is no price list.
    let models: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(text).map_err(ImportError)?;
    let mut read = ImportedPrices::default();
    let mut unknown: BTreeMap<String, usize> = BTreeMap::new();
    // By provider and id; the number is the index of the provider in `PROVIDERS`.
    let mut found: BTreeMap<(&str, String), (usize, Vec<PriceRow>)> = BTreeMap::new();
    for (name, raw) in models {
        let keys: ModelFields = serde_json::from_str(raw.get()).unwrap_or_default();
        // The entry that explains the format.
        if name == "sample_spec" {
            continue;
        }
        let Some(theirs) = text_of(&keys, "litellm_provider") else {
            read.notes.push(ImportNote::new("", &name, "names no provider"));
            continue;
        };
        let known = PROVIDERS.iter().enumerate().find(|(_, (listed, ..))| *listed == theirs);
        let Some((place, (_, provider, prefixes))) = known else {
            *unknown.entry(theirs).or_default() += 1;
            continue;
        };
        let id = match own_id(provider, prefixes, &name) {
            Ok(id) => id,
            Err(why) => {
                read.notes.push(ImportNote::new(provider, &name, why));
                continue;
            }
        };
        let mut reader = LitellmReader {
            provider,
            model: &name,
            keys: &keys,
            notes: Vec::new(),
            unreadable: Vec::new(),
        };
        let row = reader.row(id);
        let mut rows = reader.by_hours(row);
        let LitellmReader { mut notes, unreadable, .. } = reader;
        if !unreadable.is_empty() {
            rows.clear();
            notes.push(ImportNote::unreadable(provider, &name, unreadable.join(", ")));
        }
        let earlier = found.get(&(*provider, id.to_ascii_lowercase()));
        // An entry with the provider's prefix goes before one without.
        if earlier.is_some_and(|(at, _)| *at < place || (*at == place && name == id)) {
            continue;
        }
        read.notes.extend(notes);
        found.insert((provider, id.to_ascii_lowercase()), (place, rows));
    }
    for (theirs, count) in unknown {
        let text = format!("{count} models of a provider not known here");
        read.notes.push(ImportNote::new(&theirs, "", text));
    }
    let rows = found.into_values().flat_map(|(_, rows)| rows).collect();
    Ok((read, rows))
}

/// The id that a request names, or the reason why no request can name this one.
fn own_id<'n>(provider: &str, prefixes: &[&str], name: &'n str) -> Result<&'n str, &'static str> {
    let id = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let (first, _) = id.split_once('/').unwrap_or(("", ""));
    let sized = first.contains("-x-")
        || ["low", "medium", "high", "standard", "hd"].contains(&first)
        || id.contains("-steps/");
    if sized {
        return Err("is the price of one size or quality, which a model's id does not say");
    }
    match (provider, first) {
        ("bedrock", region) if region.contains('-') || region == "*" || region == "invoke" => {
            Err("is the price in one region or under a commitment, which a model's id does not say")
        }
        ("bedrock", "claude_platform") => Err("is no model of this provider's interface"),
        ("azure", "eu" | "us" | "apac" | "us-gov" | "global" | "global-standard") => {
            Err("is the price of one kind of deployment, which a model's id does not say")
        }
        ("fireworks" | "together", "") if id.starts_with("fireworks-ai-") => {
            Err("is the price of a class of models")
        }
        ("together", "") if id.starts_with("together-ai-") => {
            Err("is the price of a class of models")
        }
        _ => Ok(id),
    }
}

fn text_of(keys: &ModelFields, key: &str) -> Option<String> {
    serde_json::from_str(keys.get(key)?.get()).ok()
}

/// A reader of the prices of one model.
struct LitellmReader<'a> {
    provider: &'a str,
    model: &'a str,
    keys: &'a ModelFields,
    notes: Vec<ImportNote>,
    /// The prices that could not be read. Without them the model would be too cheap.
    unreadable: Vec<String>,
}

/// A price with its tier and the length of the prompt above which it applies.
struct LitellmPrice<'a> {
    tier: Option<&'a str>,
    above: Option<u64>,
    unit: Unit,
    rate: Rate,
}

impl LitellmReader<'_> {
    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(ImportNote::new(self.provider, self.model, text));
    }

    fn row(&mut self, id: &str) -> PriceRow {
        let mut prices = Vec::new();
        let mut factors: Vec<(String, Rate)> = Vec::new();
        for (key, raw) in self.keys {
            match key.as_str() {
                "provider_specific_entry" => {
                    let entries: ModelFields = serde_json::from_str(raw.get()).unwrap_or_default();
                    for (tier, raw) in
                        entries.iter().filter(|(tier, _)| ["us", "fast"].contains(&tier.as_str()))
                    {
                        factors.extend(self.factor(tier, raw).map(|one| (tier.clone(), one)));
                    }
                }
                key => match FACTORS.iter().find(|(name, _)| *name == key) {
                    Some((_, tier)) => {
                        let factor = self.factor(key, raw);
                        factors.extend(factor.map(|factor| ((*tier).to_owned(), factor)));
                    }
                    None => prices.extend(self.price(key, raw)),
                },
            }
        }
        let models = match id.strip_prefix("ft:") {
            // The id of a fine-tuned model continues after the name of its base model.
            Some(_) => vec![ModelPattern::new(id), ModelPattern::new(format!("{id}:*"))],
            None => vec![ModelPattern::new(id)],
        };
        let (standard, bands) = in_bands(&prices, None);
        let mut row = PriceRow {
            provider: self.provider.to_owned(),
            models,
            source: Some(ImportFormat::Litellm.name().to_owned()),
            max_output_tokens: self.keys.get("max_output_tokens").and_then(|raw| {
                let count: u64 = raw.get().parse().ok()?;
                // Models without a text answer state the length of the prompt here.
                (count > 0 && standard.output.is_some_and(|price| !price.is_zero()))
                    .then_some(count)
            }),
            prices: standard,
            bands,
            ..PriceRow::default()
        };
        for (_, tier) in TIERS {
            if prices.iter().any(|price| price.tier == Some(tier)) {
                let (prices, bands) = in_bands(&prices, Some(tier));
                let prices = TierPrices::Prices { prices: Box::new(prices), bands };
                row.tiers.insert(tier.to_owned(), prices);
            }
        }
        for (tier, factor) in factors {
            row.tiers.entry(tier).or_insert(TierPrices::Factor { factor });
        }
        row
    }

    /// A factor on the prices of tokens; `None` for zero.
    fn factor(&mut self, key: &str, raw: &RawValue) -> Option<Rate> {
        let factor = number::rate(raw, ScaleFactor::ONE).filter(|factor| !factor.is_zero());
        if factor.is_none() && raw.get() != "null" {
            self.note(format!("{key} is not a factor: {}", raw.get()));
        }
        factor
    }

    /// The row for most of the day and the rows for the peak hours, if the list has both.
    fn by_hours(&mut self, row: PriceRow) -> Vec<PriceRow> {
        let Some(raw) = self.keys.get("off_peak_pricing") else { return vec![row] };
        let keys: ModelFields = serde_json::from_str(raw.get()).unwrap_or_default();
        let peak = time_of_day::peak(&keys);
        let Some(peak) = peak.filter(|_| row.bands.is_empty() && row.tiers.is_empty()) else {
            self.note("has prices by the time of day: the highest is taken for the whole day");
            return vec![row];
        };
        if peak.not_on_all_days {
            self.note(
                "is cheaper all day on some days of the week: its hours are taken for every day",
            );
        }
        let prices: Vec<_> = keys.iter().filter_map(|(key, raw)| self.price(key, raw)).collect();
        let (off_peak, _) = in_bands(&prices, None);
        let prices = over(&row.prices, &off_peak);
        let hours =
            peak.hours.into_iter().map(|hours| PriceRow { hours: Some(hours), ..row.clone() });
        let mut rows: Vec<_> = hours.collect();
        rows.push(PriceRow { prices, ..row });
        rows
    }

    fn price<'k>(&mut self, key: &'k str, raw: &RawValue) -> Option<LitellmPrice<'k>> {
        if !key.contains("cost") {
            if key.contains("multiplier") {
                self.note(format!("{key} has no tier here"));
            }
            return None;
        }
        let tier = TIERS.iter().find(|(suffix, _)| key.ends_with(suffix));
        let without_tier = tier.and_then(|(suffix, _)| key.strip_suffix(suffix)).unwrap_or(key);
        let (base, above) = match without_tier.strip_suffix("k_tokens") {
            Some(start) => {
                let (base, thousands) = start.rsplit_once("_above_")?;
                (base, Some(thousands.parse::<u64>().ok()?.checked_mul(1_000)?))
            }
            None => (without_tier, None),
        };
        let known = UNITS.iter().find(|(name, ..)| *name == base);
        let Some(&(_, unit, scale)) = known else {
            if !raw.get().starts_with('{') {
                self.note(format!("{base} has no unit here"));
            }
            return None;
        };
        let makes_images = ["image_generation", "image_edit"].map(|mode| format!("\"{mode}\""));
        let mode = self.keys.get("mode").map_or("", |mode| mode.get());
        let in_doubt = match base {
            // In other modes it is the price of an image in the prompt.
            "input_cost_per_image" => {
                !makes_images.iter().any(|one| one == mode)
                    || self.keys.contains_key("output_cost_per_image")
            }
            // For a transcription it repeats the price of the input.
            "output_cost_per_second" => mode == "\"audio_transcription\"",
            // Charged with each request, which has its own price.
            "search_context_cost_per_query" => self.provider == "perplexity",
            "input_cost_per_audio_per_second" => self.keys.contains_key("input_cost_per_token"),
            "input_cost_per_token_cache_hit" => {
                self.keys.contains_key("cache_read_input_token_cost")
            }
            _ => false,
        };
        if in_doubt {
            return None;
        }
        let rate = match serde_json::from_str::<ModelFields>(raw.get()) {
            // Prices by the size of the search context: the highest counts.
            Ok(sizes) => {
                let stated = sizes.values().filter(|raw| raw.get() != "null");
                let rates: Option<Vec<_>> = stated.map(|raw| number::rate(raw, scale)).collect();
                rates.and_then(|rates| rates.into_iter().max())
            }
            Err(_) => number::rate(raw, scale),
        };
        if rate.is_none() && raw.get() != "null" {
            self.unreadable.push(format!("{key} is not a price: {}", raw.get()));
        }
        Some(LitellmPrice { tier: tier.map(|(_, name)| *name), above, unit, rate: rate? })
    }
}

/// The prices of `above`, and of `below` for units that it lacks. A unit with the same price as
/// its parent in `below` also follows its parent here.
fn over(below: &UnitPrices, above: &UnitPrices) -> UnitPrices {
    let mut units = *below;
    // Parents precede their children.
    for &unit in Unit::ALL {
        let parent = |prices: &UnitPrices| unit.parent().and_then(|parent| prices.price(parent));
        let follows = below.get(unit).is_some() && *below.get(unit) == parent(below);
        let others = if follows { parent(&units) } else { *below.get(unit) };
        *units.get_mut(unit) = above.get(unit).or(others);
    }
    units
}

/// The prices of a tier or the standard, below all bounds and above each.
fn in_bands(prices: &[LitellmPrice<'_>], tier: Option<&str>) -> (UnitPrices, Vec<PriceBand>) {
    let list = |tier: Option<&str>, above: Option<u64>| {
        let mut units = UnitPrices::default();
        for price in prices.iter().filter(|price| price.tier == tier && price.above == above) {
            *units.get_mut(price.unit) = Some(price.rate);
        }
        units
    };
    let mut starts: Vec<u64> = prices.iter().filter_map(|price| price.above).collect();
    starts.sort_unstable();
    starts.dedup();
    let standard = list(None, None);
    let base = match tier {
        Some(_) => over(&standard, &list(tier, None)),
        None => standard,
    };
    let (mut in_standard, mut bands) = (standard, Vec::new());
    let mut below = base;
    for start in starts {
        in_standard = over(&in_standard, &list(None, Some(start)));
        let own = list(tier, Some(start));
        below = match tier {
            // A tier without prices for long prompts has the standard's, unless its own are higher.
            Some(_) if own == UnitPrices::default() => {
                let mut dearer = in_standard;
                for &unit in Unit::ALL {
                    *dearer.get_mut(unit) = (*in_standard.get(unit)).max(*below.get(unit));
                }
                dearer
            }
            _ => over(&below, &own),
        };
        bands.push(PriceBand { above_input_tokens: start, prices: below });
    }
    bands.dedup_by(|later, earlier| later.prices == earlier.prices);
    if bands.first().is_some_and(|first| first.prices == base) {
        bands.remove(0);
    }
    (base, bands)
}
