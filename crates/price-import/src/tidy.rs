//! Checks and order of price rows.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_pricing::{ModelPattern, PriceBand, PriceRow, Rate, TierPrices, Unit, UnitPrices};

use crate::note::ImportNote;

/// The models, in addition to `:free` ids, that are known to cost nothing. For any other model a zero or
/// an empty list means that its source knows no price.
const FREE: [(&str, &str); 12] = [
    ("openai", "moderation"),
    ("openai", "omni-moderation*"),
    ("openai", "text-moderation*"),
    ("google", "gemma-*"),
    ("google", "*gemma-*-it"),
    ("google", "gemini-exp-*"),
    ("google", "gemini-2.5-pro-exp-*"),
    ("google", "learnlm-*-experimental"),
    ("openrouter", "google/*-exp"),
    ("openrouter", "google/*-exp-*"),
    ("openrouter", "gemini-*-exp-*"),
    ("mistral", "labs-leanstral-*"),
];

/// The ids of the families that sources list as free by a pattern. The pattern itself would also make an
/// operator's deployment free, if its name happens to match.
const FREE_IDS: [(&str, &str); 10] = [
    ("openai", "omni-moderation-latest"),
    ("openai", "omni-moderation-2024-09-26"),
    ("openai", "text-moderation-latest"),
    ("openai", "text-moderation-stable"),
    ("google", "gemma-3-1b-it"),
    ("google", "gemma-3-4b-it"),
    ("google", "gemma-3-12b-it"),
    ("google", "gemma-3-27b-it"),
    ("google", "gemma-3n-e2b-it"),
    ("google", "gemma-3n-e4b-it"),
];

/// Models whose figures are a factor of a thousand off, as similar models show.
const MISTAKEN: [(&str, &str, &str); 2] =
    [("litellm", "azure", "jais-30b-chat"), ("litellm", "cohere", "embed-multilingual-light-v3.0")];

fn has_errors(row: &PriceRow) -> bool {
    MISTAKEN.iter().any(|(source, provider, id)| {
        row.source.as_deref() == Some(*source)
            && row.provider == *provider
            && row.models.iter().any(|model| model.as_str() == *id)
    })
}

fn is_free(provider: &str, models: &[ModelPattern]) -> bool {
    let free = |model: &ModelPattern| {
        let id = model.as_str().trim_matches('*');
        id.ends_with(":free")
            || FREE
                .iter()
                .any(|(at, pattern)| *at == provider && ModelPattern::new(*pattern).matches(id))
    };
    !models.is_empty() && models.iter().all(free)
}

/// The ids of a free row: the ones that it names, and the known ids of each pattern. Patterns are left out
/// with a note.
fn free_ids(
    provider: &str,
    models: &[ModelPattern],
    mut note: impl FnMut(&str),
) -> Vec<ModelPattern> {
    let mut ids: Vec<ModelPattern> = Vec::new();
    for model in models {
        if model.is_exact() {
            ids.push(model.clone());
            continue;
        }
        let known = FREE_IDS.iter().filter(|(at, id)| *at == provider && model.matches(id));
        let known: Vec<&str> = known.map(|(_, id)| *id).collect();
        let instead = match known.is_empty() {
            true => String::new(),
            false => format!(", in its place {}", known.join(", ")),
        };
        let name = model.as_str();
        note(&format!("{name} is left out: only ids can be free, not patterns{instead}"));
        ids.extend(known.into_iter().map(ModelPattern::new));
    }
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert(id.as_str().to_ascii_lowercase()));
    ids
}

/// The rows of an import that are valid in a price list, in their shortest form.
///
/// Zero prices are valid only for models that are known to be free.
pub(crate) fn checked(rows: Vec<PriceRow>, notes: &mut Vec<ImportNote>) -> Vec<PriceRow> {
    let mut kept = Vec::new();
    for mut row in rows {
        let name = row.models.first().map_or("", ModelPattern::as_str).to_owned();
        let mut note = |text: &str| notes.push(ImportNote::new(&row.provider, &name, text));
        if has_errors(&row) {
            note("is left out: its figures are wrong by a factor of a thousand");
            continue;
        }
        let named = row.models.len();
        row.models.retain(|model| model.literal_len() > 0);
        if row.models.len() < named {
            note("an empty id, or one that stands for every model, is left out");
        }
        if row.models.is_empty() {
            continue;
        }
        if row.all_prices().all(UnitPrices::is_all_zero) {
            if !is_free(&row.provider, &row.models) {
                note("has no price above 0 and is not known to be free");
                continue;
            }
            row.prices = UnitPrices {
                input: Some(Rate::ZERO),
                output: Some(Rate::ZERO),
                ..UnitPrices::default()
            };
            (row.free, row.bands, row.tiers) = (true, Vec::new(), BTreeMap::new());
            row.models = free_ids(&row.provider, &row.models, note);
            if row.models.is_empty() {
                continue;
            }
        } else if row.prices.is_all_zero() {
            note("has prices above 0 only for long prompts or in tiers");
            continue;
        } else {
            // Next to prices above 0, a zero means that the source knows no price or that there is no such
            // usage. Without it, the unit takes its parent's price.
            without_zeros(&mut row);
            shorten_tiers(&mut row);
        }
        kept.push(row);
    }
    kept
}

fn without_zeros(row: &mut PriceRow) {
    let clean = |prices: &mut UnitPrices| {
        for &unit in Unit::ALL {
            let own = *prices.get(unit);
            let parents = unit.parent().and_then(|parent| prices.price(parent));
            let redundant = unit == Unit::Reasoning && own == parents;
            // Generated images are paid by their tokens or by number: if a source states both, one price is
            // derived from the other.
            let twice = unit == Unit::Image && prices.get(Unit::OutputImage).is_some();
            if own.is_some_and(Rate::is_zero) || redundant || twice {
                *prices.get_mut(unit) = None;
            }
        }
    };
    clean(&mut row.prices);
    let standard = row.prices;
    // A unit without a parent would cost nothing in a band or tier: the standard price stays there.
    let clean = |prices: &mut UnitPrices| {
        clean(prices);
        for &unit in Unit::ALL.iter().filter(|unit| unit.parent().is_none()) {
            let own = prices.get(unit).or(*standard.get(unit));
            *prices.get_mut(unit) = own;
        }
    };
    row.bands.iter_mut().for_each(|band| clean(&mut band.prices));
    for tier in row.tiers.values_mut() {
        if let TierPrices::Prices { prices, bands } = tier {
            clean(prices);
            bands.iter_mut().for_each(|band| clean(&mut band.prices));
        }
    }
}

/// Writes the prices of a tier as a factor, if they are a multiple of the standard's.
pub(crate) fn shorten_tiers(row: &mut PriceRow) {
    let (standard, standard_bands) = (row.prices, row.bands.clone());
    for tier in row.tiers.values_mut() {
        let TierPrices::Prices { prices, bands } = &*tier else { continue };
        if let Some(factor) = factor_between(&standard, &standard_bands, prices, bands) {
            *tier = TierPrices::Factor { factor };
        }
    }
}

fn factor_between(
    standard: &UnitPrices,
    standard_bands: &[PriceBand],
    prices: &UnitPrices,
    bands: &[PriceBand],
) -> Option<Rate> {
    let tokens = Unit::ALL.iter().copied().filter(|unit| unit.counts_tokens());
    let factor = tokens.into_iter().find_map(|unit| {
        let (from, to) = ((*standard.get(unit))?, (*prices.get(unit))?);
        // Factors have few decimals: a quotient that is no multiple of a ten-thousandth is no factor.
        const SCALE: u128 = 10_000;
        let attos = |rate: Rate| rate.mantissa().checked_mul(10_u128.pow(18 - rate.decimals()));
        let quotient = attos(to)?.checked_mul(SCALE)?.checked_div(attos(from)?)?;
        Rate::from_parts(quotient, 4)
    })?;
    let alike = |from: &UnitPrices, to: &UnitPrices| {
        Unit::ALL.iter().all(|&unit| {
            let expected = match unit.counts_tokens() {
                true => from.get(unit).map(|price| price.times(factor)),
                false => *from.get(unit),
            };
            expected == *to.get(unit)
        })
    };
    let bands_alike = standard_bands.len() == bands.len()
        && standard_bands.iter().zip(bands).all(|(from, to)| {
            from.above_input_tokens == to.above_input_tokens && alike(&from.prices, &to.prices)
        });
    (alike(standard, prices) && bands_alike).then_some(factor)
}

/// Groups rows that differ only in their models, and sorts them.
///
/// The order is by provider, id, day and hours.
pub(crate) fn group(rows: &mut Vec<PriceRow>) {
    let mut grouped: Vec<PriceRow> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for mut row in rows.drain(..) {
        let models = std::mem::take(&mut row.models);
        let key = crate::write::line(&row);
        let place = *places.entry(key).or_insert_with(|| {
            grouped.push(row);
            grouped.len().saturating_sub(1)
        });
        if let Some(row) = grouped.get_mut(place) {
            row.models.extend(models);
        }
    }
    for row in &mut grouped {
        row.models.sort_by_cached_key(|model| model.as_str().to_ascii_lowercase());
        row.models.dedup();
    }
    let first = |row: &PriceRow| row.models.first().map(|one| one.as_str().to_ascii_lowercase());
    grouped.sort_by_cached_key(|row| {
        (row.provider.clone(), first(row), row.effective_from, row.hours)
    });
    *rows = grouped;
}
