//! The changes of an import, and how it keeps earlier prices as they were.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use time::{Date, Time};
use tollgate_pricing::{
    Catalog, CatalogFile, DailyHours, ModelPattern, Moment, PriceRow, Rate, TierPrices, Unit,
    UnitPrices,
};

use crate::fill::{fill, name_source, overlay_tier};
use crate::format::ImportFormat;
use crate::imported::ImportedPrices;
use crate::tidy;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The figure is new.
    Added,
    /// The figure has another value.
    Changed,
    /// The figure is gone. For a whole model: the list no longer names it, and its prices stay.
    Removed,
}

/// A figure of a price list that changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PriceChange {
    /// The provider.
    pub provider: String,
    /// The id or pattern.
    pub model: String,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The price: `input`, `output above 200000`, `batch input`.
    pub figure: String,
    /// The first day of the new value, if that is later than the day of the import.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Date>,
    /// The old value: USD per million or each, or a factor.
    pub old: Option<Rate>,
    /// The new value: USD per million or each, or a factor.
    pub new: Option<Rate>,
    /// Whether the change needs a review: beyond [`ImportOptions::max_factor`], or from or to zero.
    pub refused: bool,
}

/// A figure on which two price lists disagree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PriceDisagreement {
    /// The provider.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The price, as in [`PriceChange::figure`].
    pub figure: String,
    /// The value in the first list.
    pub first: Rate,
    /// The value in the second list.
    pub second: Rate,
}

/// The settings of an import.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// The first day of new prices.
    pub from: Date,
    /// The factor by which a price may rise or fall without [`PriceChange::refused`].
    pub max_factor: Rate,
    /// Whether only missing models and figures are added (see [`fill`]).
    pub only_missing: bool,
}

type RowKey = (String, String);

/// The price list `file` after the import of another list, and every figure that changes.
///
/// Figures that the list names are taken. Others stay, except in rows that are from this list alone. A
/// price that changes ends the day before [`ImportOptions::from`], and a row from that day on has the new one.
/// Models that the list no longer names keep their prices. Those of a `format` are reported as [`ChangeKind::Removed`].
pub fn import_into(
    file: &CatalogFile,
    list: ImportedPrices,
    format: Option<ImportFormat>,
    update: &ImportOptions,
) -> (CatalogFile, Vec<PriceChange>) {
    let before = file;
    let mut file = before.clone();
    let mut gone = Vec::new();
    if update.only_missing {
        fill(&mut file, list, update.from);
        tidy::group(&mut file.rows);
    } else {
        gone = format.map_or_else(Vec::new, |format| no_longer_listed(before, &list, format));
        let mut rows = single(&file.rows);
        let new = single(&list.rows);
        for (provider, others) in list.fallbacks {
            match format {
                // Those of the file stay.
                Some(_) => _ = file.fallbacks.entry(provider).or_insert(others),
                None => _ = file.fallbacks.insert(provider, others),
            }
        }
        for ((provider, model), new) in new {
            let own = rows.entry((provider, model)).or_default();
            merge_rows(own, new, update.from);
        }
        file.rows = rows.into_values().flatten().collect();
        tidy::group(&mut file.rows);
    }
    let mut changes = changes_between(before, &file, update);
    changes.extend(gone);
    changes.sort();
    (file, changes)
}

/// The figures that differ between two files.
fn changes_between(
    old: &CatalogFile,
    new: &CatalogFile,
    update: &ImportOptions,
) -> Vec<PriceChange> {
    let (before, after) = (single(&old.rows), single(&new.rows));
    let none = Vec::new();
    let mut changes = Vec::new();
    for (key @ (provider, model), rows) in &after {
        let old_rows = before.get(key).unwrap_or(&none);
        let later = rows.iter().filter_map(|row| row.effective_from);
        let later = later.filter(|day| *day > update.from);
        let known = |day: &Date| old_rows.iter().any(|row| row.effective_from == Some(*day));
        let days: BTreeSet<Date> = later.chain([update.from]).collect();
        for day in days {
            let of_day = |rows: &[PriceRow]| -> BTreeMap<String, Rate> {
                in_effect(rows, day).into_iter().flat_map(figures).collect()
            };
            let (old, new) = (of_day(old_rows), of_day(rows));
            let expected = day > update.from && known(&day);
            let from = (day > update.from && !expected).then_some(day);
            let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for name in names {
                let (old, new) = (old.get(name).copied(), new.get(name).copied());
                let kind = match (old, new) {
                    (None, Some(_)) => ChangeKind::Added,
                    (Some(_), None) => ChangeKind::Removed,
                    (old, new) if old != new => ChangeKind::Changed,
                    _ => continue,
                };
                changes.push(PriceChange {
                    provider: provider.clone(),
                    model: model.clone(),
                    kind,
                    figure: name.clone(),
                    from,
                    old,
                    new,
                    refused: is_refused(old, new, update.max_factor),
                });
            }
        }
    }
    changes
}

/// Whether a change of a price needs a review.
fn is_refused(old: Option<Rate>, new: Option<Rate>, max_factor: Rate) -> bool {
    old.zip(new).is_some_and(|(old, new)| needs_review(old, new, max_factor))
}

/// Whether a price rises or falls by more than a factor, or changes from or to 0.
pub fn needs_review(old: Rate, new: Rate, max_factor: Rate) -> bool {
    let (less, more) = (old.min(new), old.max(new));
    less != more && (less.is_zero() || more > less.times(max_factor))
}

/// Whether two figures differ by more than a millionth, the rounding of their sources.
fn differ(one: Rate, other: Rate) -> bool {
    let (less, more) = (one.min(other), one.max(other));
    let millionth = Rate::from_parts(1_000_001, 6).unwrap_or(Rate::ZERO);
    more > less.times(millionth)
}

/// The models that only this list named and that it no longer names.
fn no_longer_listed(
    file: &CatalogFile,
    list: &ImportedPrices,
    format: ImportFormat,
) -> Vec<PriceChange> {
    let listed = single(&list.rows);
    let providers: BTreeSet<&str> = list.rows.iter().map(|row| row.provider.as_str()).collect();
    let rows = file.rows.iter().filter(|row| {
        row.source.as_deref() == Some(format.name()) && providers.contains(row.provider.as_str())
    });
    let models = rows.flat_map(|row| row.models.iter().map(move |model| (row, model)));
    let gone = models.filter(|(row, model)| !listed.contains_key(&key(row, model)));
    let changes: BTreeSet<PriceChange> = gone
        .map(|(row, model)| PriceChange {
            provider: row.provider.clone(),
            model: model.as_str().to_owned(),
            kind: ChangeKind::Removed,
            figure: "all".to_owned(),
            from: None,
            old: row.prices.input,
            new: row.prices.input,
            refused: false,
        })
        .collect();
    changes.into_iter().collect()
}

fn key(row: &PriceRow, model: &ModelPattern) -> RowKey {
    (row.provider.clone(), model.as_str().to_ascii_lowercase())
}

/// The rows, with one pattern each, by provider and pattern.
fn single(rows: &[PriceRow]) -> BTreeMap<RowKey, Vec<PriceRow>> {
    let mut single: BTreeMap<RowKey, Vec<PriceRow>> = BTreeMap::new();
    for row in rows {
        for model in &row.models {
            let alone = PriceRow { models: vec![model.clone()], ..row.clone() };
            single.entry(key(row, model)).or_default().push(alone);
        }
    }
    single
}

/// The rows of one model in effect on a day.
///
/// They are the latest for the whole day, and rows for some hours that are not older.
fn in_effect(rows: &[PriceRow], on: Date) -> Vec<&PriceRow> {
    let mut latest: BTreeMap<Option<DailyHours>, &PriceRow> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.applies_on(on)) {
        let known = latest.entry(row.hours).or_insert(row);
        if row.effective_from > known.effective_from {
            *known = row;
        }
    }
    let since = latest.get(&None).and_then(|row| row.effective_from);
    latest.into_values().filter(|row| row.effective_from >= since).collect()
}

/// Merges a list's rows for one pattern into `own`, from the day `from` on.
fn merge_rows(own: &mut Vec<PriceRow>, new: Vec<PriceRow>, from: Date) {
    if own.is_empty() {
        *own = new;
        return;
    }
    let to_come = new.iter().filter_map(|row| row.effective_from).filter(|day| *day > from);
    let days: BTreeSet<Date> = to_come.chain([from]).collect();
    for day in days {
        let rows = in_effect(&new, day);
        if rows.is_empty() {
            continue;
        }
        let old: Vec<PriceRow> = in_effect(own, day).into_iter().cloned().collect();
        let merged = merged_day(&old, &rows);
        let same = |one: &PriceRow, other: &PriceRow| {
            (one.hours, one.prices, &one.bands, &one.tiers, one.free)
                == (other.hours, other.prices, &other.bands, &other.tiers, other.free)
        };
        let same_prices = old.len() == merged.len()
            && merged.iter().all(|row| old.iter().any(|known| same(known, row)));
        if same_prices {
            for place in own.iter_mut().filter(|one| old.contains(one)) {
                let row = merged.iter().find(|row| row.hours == place.hours);
                place.max_output_tokens = row.and_then(|row| row.max_output_tokens);
            }
            continue;
        }
        // Rows that begin on the same day are corrected; older ones end.
        own.retain(|one| one.effective_from != Some(day));
        for one in own.iter_mut().filter(|one| one.applies_on(day)) {
            one.effective_to = day.previous_day();
        }
        // Later rows still follow.
        let until =
            own.iter().filter_map(|one| one.effective_from).filter(|next| *next > day).min();
        let effective_to = until.and_then(Date::previous_day);
        let of_day = merged.into_iter().map(|row| PriceRow {
            effective_from: Some(day),
            effective_to,
            ..row
        });
        own.extend(of_day);
    }
}

/// The rows of one model on a day: `new` merged over `old`, by hours.
///
/// An old row for other hours stays, unless it overlaps a new one or is from the same list.
fn merged_day(old: &[PriceRow], new: &[&PriceRow]) -> Vec<PriceRow> {
    let of = |hours: Option<DailyHours>| old.iter().find(|row| row.hours == hours);
    let mut rows: Vec<PriceRow> = new
        .iter()
        .map(|row| {
            let known = of(row.hours).or_else(|| of(None));
            PriceRow { hours: row.hours, ..merged(known, row) }
        })
        .collect();
    let stays = |row: &&PriceRow| {
        let overlap = |other: DailyHours| row.hours.is_some_and(|hours| hours.overlaps(other));
        let in_the_way = new.iter().any(|other| {
            other.hours == row.hours
                || other.hours.is_some_and(overlap)
                || other.source == row.source
        });
        !in_the_way
    };
    rows.extend(old.iter().filter(stays).cloned());
    rows
}

/// The row `new`, with the figures that it lacks from `old`, if `old` is from another list.
fn merged(old: Option<&PriceRow>, new: &PriceRow) -> PriceRow {
    let Some(old) = old.filter(|old| old.source != new.source && !new.free) else {
        let known = old.and_then(|old| old.max_output_tokens);
        return PriceRow { max_output_tokens: new.max_output_tokens.or(known), ..new.clone() };
    };
    let mut row = old.clone();
    row.free = false;
    for &unit in Unit::ALL {
        let named = new.prices.get(unit).or(*old.prices.get(unit));
        *row.prices.get_mut(unit) = named;
    }
    if new.prices.input.is_some() || new.prices.output.is_some() {
        row.bands.clone_from(&new.bands);
        for band in &mut row.bands {
            for &unit in Unit::ALL.iter().filter(|unit| !unit.counts_tokens()) {
                let named = band.prices.get(unit).or(*row.prices.get(unit));
                *band.prices.get_mut(unit) = named;
            }
        }
    }
    for (tier, prices) in &new.tiers {
        let prices = overlay_tier(&row, new, prices);
        row.tiers.insert(tier.clone(), prices);
    }
    tidy::shorten_tiers(&mut row);
    row.max_output_tokens = new.max_output_tokens.or(old.max_output_tokens);
    name_source(&mut row, new);
    row
}

/// Every price of a row by name, including bands and tiers, with the hours of the row.
fn figures(row: &PriceRow) -> BTreeMap<String, Rate> {
    let figures = priced(row).into_iter();
    match row.hours {
        Some(hours) => figures.map(|(name, rate)| (format!("{name} {hours}"), rate)).collect(),
        None => figures.collect(),
    }
}

fn priced(row: &PriceRow) -> BTreeMap<String, Rate> {
    let mut figures = BTreeMap::new();
    let mut add = |before: &str, prices: &UnitPrices, behind: &str| {
        for &unit in Unit::ALL {
            if let Some(price) = prices.get(unit) {
                figures.insert(format!("{before}{}{behind}", unit.price_key()), *price);
            }
        }
    };
    add("", &row.prices, "");
    for band in &row.bands {
        add("", &band.prices, &format!(" above {}", band.above_input_tokens));
    }
    let mut factors = Vec::new();
    for (tier, prices) in &row.tiers {
        match prices {
            TierPrices::Factor { factor } => factors.push((format!("{tier} factor"), *factor)),
            TierPrices::Prices { prices, bands } => {
                add(&format!("{tier} "), prices, "");
                for band in bands {
                    let behind = format!(" above {}", band.above_input_tokens);
                    add(&format!("{tier} "), &band.prices, &behind);
                }
            }
        }
    }
    figures.extend(factors);
    figures
}

/// The prices on which two lists disagree on the UTC day `on`.
///
/// It compares the models that either lists by exact id and both can price. A figure that only one of
/// them has is no disagreement, nor is a difference below a millionth, which is rounding.
pub fn disagreements(one: &Catalog, other: &Catalog, on: Date) -> Vec<PriceDisagreement> {
    let mut found = BTreeSet::new();
    let rows = one.file().rows.iter().chain(&other.file().rows);
    let ids = rows.flat_map(|row| row.models.iter().map(move |model| (row, model)));
    let ids: BTreeSet<RowKey> =
        ids.filter(|(_, model)| model.is_exact()).map(|(row, model)| key(row, model)).collect();
    let by_hours: Vec<(&PriceRow, DailyHours)> = one
        .file()
        .rows
        .iter()
        .chain(&other.file().rows)
        .filter(|row| row.applies_on(on))
        .filter_map(|row| Some((row, row.hours?)))
        .collect();
    for (provider, model) in ids {
        // Lists may divide the day differently, so they are compared at each time at which the hours of
        // either begin or end.
        let of_model = by_hours.iter().filter(|(row, _)| {
            row.provider == provider && row.models.iter().any(|pattern| pattern.matches(&model))
        });
        let times: BTreeSet<Time> =
            of_model.flat_map(|(_, hours)| [hours.begin(), hours.end()]).collect();
        let mut moments: Vec<Moment> =
            times.into_iter().map(|time| Moment::from((on, time))).collect();
        if moments.is_empty() {
            moments.push(on.into());
        }
        for at in moments {
            let rows = (one.find(&provider, &model, at), other.find(&provider, &model, at));
            let (Some(mine), Some(theirs)) = rows else { continue };
            let (mine, theirs) = (priced(mine.row), priced(theirs.row));
            for (figure, first) in &mine {
                let second = theirs.get(figure).filter(|second| differ(*first, **second));
                let Some(second) = second else { continue };
                let time =
                    at.time.map(|time| format!(" from {:02}:{:02}", time.hour(), time.minute()));
                found.insert(PriceDisagreement {
                    provider: provider.clone(),
                    model: model.clone(),
                    figure: format!("{figure}{}", time.unwrap_or_default()),
                    first: *first,
                    second: *second,
                });
            }
        }
    }
    found.into_iter().collect()
}
