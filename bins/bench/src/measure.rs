//! The rounds: every target under every load, one after the other, so that what else happens on
//! the machine happens to all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Options;
use crate::gauge::{Figures, Gauge};
use crate::load::Until;
use crate::process::peak_memory_kib;
use crate::stand::{Call, Stand, Target};

/// One line of the table: what is sent, and how many at a time.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) call: Call,
    pub(crate) concurrency: usize,
}

/// One round of a cell.
pub(crate) type Round = BTreeMap<Target, Figures>;

pub(crate) struct Measured {
    pub(crate) cells: Vec<(Cell, Vec<Round>)>,
    pub(crate) peak_memory_kib: BTreeMap<Target, u64>,
}

const WARM_UP: Duration = Duration::from_secs(1);

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<Measured> {
    let gauge = Gauge::new(stand.database)?;
    let time = Duration::from_secs(options.seconds.get().into());
    let mut targets = stand.targets();
    let mut cells: Vec<_> = cells(options).into_iter().map(|cell| (cell, Vec::new())).collect();
    for target in &targets {
        let process = stand.process(*target).unwrap_or_default();
        eprintln!("{target:?}: process {process}");
        stand.drive(*target, &Call::default(), 64, Until::After(WARM_UP)).await?;
    }
    for round in 1..=options.rounds.get() {
        for (cell, rounds) in &mut cells {
            eprintln!("round {round}/{}: {}", options.rounds, cell.name);
            let mut figures = Round::new();
            for target in &targets {
                figures.insert(*target, one(stand, &gauge, cell, *target, time).await?);
            }
            rounds.push(figures);
        }
        // Nobody is always the one who comes after the same other.
        targets.rotate_left(1);
    }
    let mut peaks = BTreeMap::new();
    for target in targets {
        if let Some(process) = stand.process(target) {
            peaks.insert(target, peak_memory_kib(process)?);
        }
    }
    Ok(Measured { cells, peak_memory_kib: peaks })
}

fn cells(options: &Options) -> Vec<Cell> {
    let cell = |name: &str, concurrency, streams, behavior| Cell {
        name: name.to_owned(),
        call: Call { streams, behavior, ..Call::default() },
        concurrency,
    };
    let mut cells = Vec::new();
    for count in options.concurrency.iter().map(|count| count.get()) {
        cells.push(cell(&format!("calls, {count} at a time"), count, false, None));
    }
    let slow = Some(("x-simulate-first-byte-delay-ms", "50"));
    cells.push(cell("calls, 64 at a time, provider takes 50 ms", 64, false, slow));
    if options.streams {
        let paced = Some(("x-simulate-chunk-delay-ms", "5"));
        cells.push(cell("streams of 24 events, 16 at a time", 16, true, None));
        cells.push(cell("streams of 24 events, 5 ms apart, 16 at a time", 16, true, paced));
    }
    cells
}

async fn one(
    stand: &mut Stand,
    gauge: &Gauge,
    cell: &Cell,
    target: Target,
    time: Duration,
) -> anyhow::Result<Figures> {
    let process = stand.process(target).unwrap_or_default();
    let before = gauge.read(process)?;
    let driven = stand.drive(target, &cell.call, cell.concurrency, Until::After(time)).await?;
    Ok(Figures::of(&driven, before, gauge.read(process)?))
}
