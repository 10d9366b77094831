//! The periods of a span, and the rows of sums that cover them.

use tollgate_domain::TimeSpan;

use crate::dialect::SlotRange;

/// The periods of a span, in quarter hours.
#[derive(Clone, Debug)]
pub(super) struct Periods {
    pub(super) start: i64,
    pub(super) end: i64,
    /// The beginning of each period. The first one may lie before the span.
    pub(super) starts: Vec<i64>,
}

/// Neighbouring periods of one length. The first and the last may be shorter.
#[derive(Debug)]
pub(super) struct Run {
    /// The number of the first period.
    pub(super) first: usize,
    /// The slot at which the first period would begin if it had the length of the others.
    pub(super) origin: i64,
    pub(super) step: i64,
    pub(super) ranges: Vec<SlotRange>,
}

impl Periods {
    pub(super) fn of(span: &TimeSpan) -> Self {
        let (start, end) = span.quarters();
        Self { start, end, starts: span.period_starts() }
    }

    /// The days in UTC from that of one slot to that of another.
    pub(super) fn days(first: i64, last: i64) -> Self {
        let starts: Vec<i64> = (first..=last).step_by(96).collect();
        Self { start: first, end: last.saturating_add(96), starts }
    }

    /// The span before a slot, as one period. `None` if it is empty.
    pub(super) fn before(&self, slot: i64) -> Option<Self> {
        let (start, end) = (self.start, self.end.min(slot));
        (start < end).then(|| Self { start, end, starts: vec![start] })
    }

    /// The quarter hours of the span.
    pub(super) fn quarters(&self) -> Self {
        Self { starts: (self.start..self.end).collect(), ..*self }
    }

    /// The number of the period that contains a slot.
    pub(super) fn of_slot(&self, slot: i64) -> Option<usize> {
        let is_within = (self.start..self.end).contains(&slot);
        is_within.then(|| self.starts.partition_point(|start| *start <= slot).saturating_sub(1))
    }

    /// The edges of the periods within the span: the start of each, and the end of the last.
    fn edges(&self) -> Vec<i64> {
        let later = self.starts.iter().skip(1).copied();
        [self.start].into_iter().chain(later).chain([self.end]).collect()
    }

    /// Splits the periods into runs. A statement adds up the periods of a run.
    pub(super) fn runs(&self, widths: &[i32]) -> Vec<Run> {
        let edges = self.edges();
        let lengths: Vec<i64> =
            edges.windows(2).map(|pair| edge(pair, 1) - edge(pair, 0)).collect();
        let mut runs = Vec::new();
        let mut first = 0;
        while first < lengths.len() {
            let length = |place: usize| lengths.get(place).copied().unwrap_or_default();
            // A first period that is shorter than the next one began before the run.
            let step = length(first).max(length(first + 1));
            let alone = length(first) > length(first + 1) && first + 1 < lengths.len();
            let step = if alone { length(first) } else { step };
            let mut past = first + 1;
            while past < lengths.len() && length(past) == step {
                past += 1;
            }
            if past < lengths.len() && length(past) < step {
                past += 1;
            }
            let of_run = edges.get(first..=past).unwrap_or_default();
            let origin = edge(of_run, 1) - step;
            runs.push(Run { first, origin, step, ranges: cover(of_run, widths) });
            first = past;
        }
        runs
    }
}

fn edge(edges: &[i64], place: usize) -> i64 {
    edges.get(place).copied().unwrap_or_default()
}

/// The fewest rows of these widths that cover the periods between these edges. No row reaches over an edge.
fn cover(edges: &[i64], widths: &[i32]) -> Vec<SlotRange> {
    let mut gaps: Vec<(i64, i64)> =
        edges.windows(2).map(|pair| (edge(pair, 0), edge(pair, 1))).collect();
    let mut ranges: Vec<SlotRange> = Vec::new();
    for &width in widths {
        let mut left = Vec::new();
        for (from, to) in gaps {
            let rows = i64::from(width);
            let (first, past) =
                ((from + rows - 1).div_euclid(rows) * rows, to.div_euclid(rows) * rows);
            if first >= past {
                left.push((from, to));
                continue;
            }
            match ranges.last_mut().filter(|last| last.width == width && last.past == first) {
                Some(last) => last.past = past,
                None => ranges.push(SlotRange { width, first, past }),
            }
            left.extend([(from, first), (past, to)].into_iter().filter(|(from, to)| from < to));
        }
        gaps = left;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tollgate_domain::{Interval, LocalTime, TimeZone};

    use super::*;

    fn periods(start: &str, end: &str, zone: &str, interval: Interval) -> Periods {
        let [start, end] = [start, end].map(|at| at.parse::<LocalTime>().unwrap().instant());
        let zone = TimeZone::named(zone).unwrap();
        Periods::of(&TimeSpan::new(start, end, zone, interval).unwrap())
    }

    /// Each quarter hour of a span is in one row of one run, and the run puts it into its period.
    #[test]
    fn every_quarter_hour_counts_once_in_its_period() {
        let spans = [
            ("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2026-03-27T22:45:00Z", "2026-03-31T01:15:00Z"),
            ("2026-10-24T00:00:00Z", "2026-10-27T00:00:00Z"),
            ("2026-02-28T23:15:00Z", "2026-03-01T00:30:00Z"),
        ];
        let zones =
            ["UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Cairo"];
        let intervals =
            [Interval::Hour, Interval::Day, Interval::Week, Interval::Month, Interval::None];
        for (start, end) in spans {
            for (zone, interval) in zones.iter().flat_map(|zone| intervals.map(|it| (*zone, it))) {
                let periods = periods(start, end, zone, interval);
                let mut seen = BTreeMap::new();
                for run in periods.runs(&[96, 4, 1]) {
                    for range in &run.ranges {
                        assert_eq!(range.first % i64::from(range.width), 0);
                        for slot in range.first..range.past {
                            let row = slot - slot.rem_euclid(i64::from(range.width));
                            let part = usize::try_from((row - run.origin) / run.step).unwrap();
                            assert_eq!(seen.insert(slot, run.first + part), None);
                        }
                    }
                }
                let expected: BTreeMap<_, _> = (periods.start..periods.end)
                    .map(|slot| (slot, periods.of_slot(slot).unwrap()))
                    .collect();
                assert_eq!(seen, expected, "{start} {end} {zone} {interval:?}");
            }
        }
    }

    #[test]
    fn a_long_span_is_few_rows() {
        let rows = |zone: &str, interval| {
            let periods = periods("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", zone, interval);
            let rows = |range: &SlotRange| (range.past - range.first) / i64::from(range.width);
            let runs = periods.runs(&[96, 4, 1]);
            (runs.len(), runs.iter().flat_map(|run| &run.ranges).map(rows).sum::<i64>())
        };
        assert_eq!(rows("UTC", Interval::Day), (1, 365));
        assert_eq!(rows("UTC", Interval::None), (1, 365));
        // Twelve months, none with more days than the one before it in the same run.
        assert_eq!(rows("UTC", Interval::Month).1, 365);
        // The clocks change twice.
        let (runs, hours) = rows("Europe/Berlin", Interval::Day);
        assert!(runs <= 5 && hours == 365 * 24, "{runs} {hours}");
    }
}
