//! The report of the changes of a catalogue.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use time::Date;
use tollgate_price_import::{ChangeKind, PriceChange};
use tollgate_pricing::Rate;

use crate::output;

/// Prints changes: one line for each model and kind of change.
pub(super) fn report(changes: &[PriceChange], json: bool) -> anyhow::Result<()> {
    if json {
        let lines: Vec<_> = changes.iter().map(|change| json!(change).to_string()).collect();
        return output::print_lines(&lines);
    }
    type Line<'a> = (ChangeKind, &'a str, &'a str, Option<Date>, bool);
    let mut lines: BTreeMap<Line<'_>, Vec<String>> = BTreeMap::new();
    for change in changes {
        let key = (change.kind, &*change.provider, &*change.model, change.from, change.refused);
        let text = match (change.old, change.new) {
            (Some(old), Some(new)) if change.kind == ChangeKind::Changed => {
                format!("{} {old} -> {new}", change.figure)
            }
            (_, Some(new)) if change.kind == ChangeKind::Added => {
                format!("{} {new}", change.figure)
            }
            (Some(old), None) => format!("{} {old}", change.figure),
            _ => "no longer listed; its prices stay".to_owned(),
        };
        lines.entry(key).or_default().push(text);
    }
    let mut text = Vec::new();
    for ((kind, provider, model, from, refused), figures) in &lines {
        let kind = match kind {
            ChangeKind::Added => "added  ",
            ChangeKind::Changed => "changed",
            ChangeKind::Removed => "removed",
        };
        let from = from.map(|day| format!(" from {day}")).unwrap_or_default();
        let mark = if *refused { "! " } else { "  " };
        text.push(format!("{mark}{kind}  {provider} {model}{from}: {}", figures.join(", ")));
    }
    let models = |kind: ChangeKind| {
        let of = lines.keys().filter(|key| key.0 == kind);
        of.map(|key| (key.1, key.2)).collect::<BTreeSet<_>>().len()
    };
    text.push(format!(
        "Models with figures added: {}, changed: {}, removed: {}.",
        models(ChangeKind::Added),
        models(ChangeKind::Changed),
        models(ChangeKind::Removed)
    ));
    output::print_lines(&text)
}

/// Ends the process with 1 if changes need a review that they have not had.
pub(super) fn refuse_unreviewed(changes: &[PriceChange], max_factor: Rate, accept: bool) {
    let refused = changes.iter().filter(|change| change.refused).count();
    if refused > 0 && !accept {
        eprintln!(
            "{refused} prices (marked !) need a review, because they change by more than {max_factor} times, from or to 0, \
             or in another way that may be wrong: nothing is written without --accept."
        );
        std::process::exit(1)
    }
}
