//! Filling of one price list with the models and figures of another.

use time::Date;
use tollgate_pricing::{
    Catalog, CatalogFile, ModelPattern, PriceBand, PriceRow, TierPrices, Unit, UnitPrices,
};

use crate::imported::ImportedPrices;
use crate::note::ImportNote;
use crate::tidy;

/// Whether a list may add the price of this unit to the rows of another. Token prices are not added,
/// as the first list is complete there, except the one-hour cache write, which few lists name.
fn fills(unit: Unit) -> bool {
    !unit.counts_tokens() || unit == Unit::CacheWrite1h
}

/// Adds the models and figures that `file` lacks and `other` has.
///
/// `on` is the day of `other`'s prices. A model that is not found here is added with its row. For a
/// model of which both lists price input and output tokens alike, tiers and prices of other units are
/// added. [`PriceRow::max_output_tokens`] is raised in any case. No price of `file` changes. The
/// notes are the notes of `other` and the differences found, sorted.
pub fn fill(file: &mut CatalogFile, other: ImportedPrices, on: Date) -> Vec<ImportNote> {
    let mut notes = other.notes;
    for (provider, others) in other.fallbacks {
        file.fallbacks.entry(provider).or_insert(others);
    }
    let own = Catalog::from(CatalogFile { rows: file.rows.clone(), ..file.clone() });
    // Short ids before long: if they share a row, the plain name decides.
    let mut rows = other.rows;
    let name = |row: &PriceRow| {
        let name = row.models.first().map_or("", ModelPattern::as_str).to_owned();
        (name.len(), name)
    };
    rows.sort_by_cached_key(name);
    let mut missing = Vec::new();
    let mut sessions = Vec::new();
    for row in rows {
        let Some(id) = row.models.first().map(ModelPattern::as_str) else { continue };
        if only(&row.prices, Unit::CodeSession) {
            sessions.push(row);
            continue;
        }
        match own.find(&row.provider, id, on) {
            None => missing.push(row),
            Some(listed) if listed.row.provider != row.provider => (),
            Some(listed) => {
                let (pattern, since) = (listed.pattern.clone(), listed.row.effective_from);
                let same = |one: &&mut PriceRow| {
                    one.provider == row.provider && one.models.contains(&pattern)
                };
                for mine in file.rows.iter_mut().filter(same) {
                    // A row for several models applies to each of them: the largest answer bounds all.
                    mine.max_output_tokens = mine.max_output_tokens.max(row.max_output_tokens);
                    // The other list's prices are of one day and do not apply to earlier ones.
                    if mine.effective_from >= since && mine.hours == row.hours {
                        add(mine, &row, id, &mut notes);
                    }
                }
            }
        }
    }
    file.rows.extend(missing);
    // A row with only this price is for the provider's tool: it applies to every model with tools.
    for session in sessions {
        let with_tools = |row: &&mut PriceRow| {
            row.provider == session.provider
                && row.prices.price(Unit::WebSearch).is_some()
                && row.prices.price(Unit::CodeSession).is_none()
        };
        for row in file.rows.iter_mut().filter(with_tools) {
            set_everywhere(row, Unit::CodeSession, &session.prices);
            name_source(row, &session);
        }
    }
    notes.sort();
    notes.dedup();
    notes
}

fn only(prices: &UnitPrices, unit: Unit) -> bool {
    let mut priced = Unit::ALL.iter().filter(|&&one| prices.get(one).is_some());
    priced.next() == Some(&unit) && priced.next().is_none()
}

/// Adds to a row the figures that another row of the same model has and it lacks.
fn add(mine: &mut PriceRow, other: &PriceRow, id: &str, notes: &mut Vec<ImportNote>) {
    if mine.free || !alike(&mine.prices, &other.prices) {
        return;
    }
    let mut added = false;
    for &unit in Unit::ALL.iter().filter(|&&unit| fills(unit)) {
        let twice = unit == Unit::Image && mine.prices.get(Unit::OutputImage).is_some();
        if mine.prices.get(unit).is_none() && other.prices.get(unit).is_some() && !twice {
            if unit.counts_tokens() {
                *mine.prices.get_mut(unit) = *other.prices.get(unit);
                for band in &mut mine.bands {
                    let same = |one: &&PriceBand| one.above_input_tokens == band.above_input_tokens;
                    let theirs = other.bands.iter().find(same);
                    *band.prices.get_mut(unit) = theirs.and_then(|one| *one.prices.get(unit));
                }
            } else {
                set_everywhere(mine, unit, &other.prices);
            }
            added = true;
        }
    }
    for (tier, theirs) in &other.tiers {
        let theirs = overlay_tier(mine, other, theirs);
        match mine.tiers.get(tier) {
            None => {
                mine.tiers.insert(tier.clone(), theirs);
                added = true;
            }
            Some(known) if !alike(&priced(mine, known), &priced(mine, &theirs)) => {
                let text = format!("prices the tier {tier} otherwise than the row it is listed in");
                notes.push(ImportNote::new(&mine.provider, id, text));
            }
            Some(_) => (),
        }
    }
    tidy::shorten_tiers(mine);
    if added {
        name_source(mine, other);
    }
}

/// Adds the sources of `other` to a row that received some of its figures.
pub(crate) fn name_source(row: &mut PriceRow, other: &PriceRow) {
    let sources = [row.source.as_deref(), other.source.as_deref()];
    let mut named: Vec<&str> = Vec::new();
    for source in sources.into_iter().flatten().flat_map(|source| source.split(", ")) {
        if !named.contains(&source) {
            named.push(source);
        }
    }
    row.source = (!named.is_empty()).then(|| named.join(", "));
}

/// Whether two lists have the same prices of input and output.
///
/// If neither has those, the prices of all units that both have are compared.
fn alike(one: &UnitPrices, other: &UnitPrices) -> bool {
    let main = [Unit::Input, Unit::Output];
    if main.iter().any(|&unit| one.get(unit).is_some() || other.get(unit).is_some()) {
        return main.iter().all(|&unit| one.get(unit) == other.get(unit));
    }
    let mut shared = Unit::ALL.iter().filter_map(|&unit| one.get(unit).zip(*other.get(unit)));
    shared.clone().next().is_some() && shared.all(|(one, other)| one == other)
}

/// The prices of a tier of a row, below all bands.
fn priced(row: &PriceRow, tier: &TierPrices) -> UnitPrices {
    let tiers = [("it".to_owned(), tier.clone())].into();
    PriceRow { tiers, ..row.clone() }.prices_for(0, &["it"]).prices
}

/// The own prices of `tier` in `other`, over the standard prices of `mine`.
///
/// It has no bands where the standard has none.
pub(crate) fn overlay_tier(mine: &PriceRow, other: &PriceRow, tier: &TierPrices) -> TierPrices {
    let TierPrices::Prices { prices, bands } = tier else { return tier.clone() };
    let over = |own: &UnitPrices, theirs: &UnitPrices, mine: &UnitPrices| {
        let mut all = *mine;
        for &unit in Unit::ALL {
            // A price that equals their standard one was taken from there.
            let own = own.get(unit).filter(|price| Some(*price) != *theirs.get(unit));
            *all.get_mut(unit) = own.or(*mine.get(unit));
        }
        all
    };
    let at = |bands: &[PriceBand], start: u64| {
        let same = bands.iter().find(|band| band.above_input_tokens == start);
        same.map(|band| band.prices)
    };
    let bands = bands.iter().filter_map(|band| {
        let start = band.above_input_tokens;
        let theirs = at(&other.bands, start).unwrap_or(other.prices);
        let prices = over(&band.prices, &theirs, &at(&mine.bands, start)?);
        Some(PriceBand { above_input_tokens: start, prices })
    });
    let bands = bands.collect();
    TierPrices::Prices { prices: Box::new(over(prices, &other.prices, &mine.prices)), bands }
}

/// Sets the price of a unit that bands and tiers do not change.
fn set_everywhere(row: &mut PriceRow, unit: Unit, from: &UnitPrices) {
    let price = *from.get(unit);
    *row.prices.get_mut(unit) = price;
    let tiers = row.tiers.values_mut().flat_map(|tier| match tier {
        TierPrices::Factor { .. } => Vec::new(),
        TierPrices::Prices { prices, bands } => {
            let banded = bands.iter_mut().map(|band| &mut band.prices);
            std::iter::once(prices.as_mut()).chain(banded).collect()
        }
    });
    let bands = row.bands.iter_mut().map(|band| &mut band.prices);
    bands.chain(tiers).for_each(|prices| {
        if prices.get(unit).is_none() {
            *prices.get_mut(unit) = price;
        }
    });
}
