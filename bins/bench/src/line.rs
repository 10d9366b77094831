//! Loads on Tollgate that are driven beside each other, in rounds.

use std::time::Duration;

use crate::Options;
use crate::gauge::{Figures, Gauge};
use crate::load::{Load, Until};
use crate::report::median;
use crate::stand::Stand;

/// A load, and what came of it in each round.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) load: Load,
    pub(crate) rounds: Vec<Figures>,
}

impl Line {
    pub(crate) fn new(name: &str, load: Load) -> Self {
        Self { name: name.to_owned(), load, rounds: Vec::new() }
    }

    pub(crate) fn median(&self, of: fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }

    /// The median of what each round has beside the same round of another line.
    pub(crate) fn beside(
        &self,
        other: &Self,
        of: fn(&Figures) -> f64,
        compare: fn(f64, f64) -> f64,
    ) -> f64 {
        let pairs = self.rounds.iter().map(of).zip(other.rounds.iter().map(of));
        median(pairs.map(|(one, other)| compare(one, other)))
    }
}

/// Drives every line in every round, in an order that changes.
pub(crate) async fn drive(
    stand: &mut Stand,
    lines: &mut [Line],
    options: &Options,
) -> anyhow::Result<()> {
    let gauge = Gauge::new(stand.database)?;
    let process = stand.tollgate.program.id();
    eprintln!("tollgate: process {process}");
    let time = Duration::from_secs(options.seconds.get().into());
    for round in 1..=options.rounds.get() {
        for line in lines.iter_mut() {
            eprintln!("round {round}/{}: {}", options.rounds, line.name);
            // One ahead, of which nothing is measured: it uses up what allows a single call.
            if let Some(request) = line.load.requests.first() {
                stand.send_through(request).await?;
            }
            let before = gauge.read(process)?;
            let driven = stand.drive_through(&line.load, Until::After(time)).await?;
            line.rounds.push(Figures::of(&driven, before, gauge.read(process)?));
        }
        lines.rotate_left(1);
    }
    // As they were.
    let turned = usize::try_from(options.rounds.get())?.checked_rem(lines.len()).unwrap_or(0);
    lines.rotate_right(turned);
    Ok(())
}
