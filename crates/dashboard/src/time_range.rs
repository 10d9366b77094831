//! The ranges of time of charts and tables, in the merchant's zone.

use tollgate_api::Query;
use tollgate_domain::{Interval, Month, TimeSpan, Timestamp};

use crate::clock::{self, PageClock};

/// A range of time to choose: its name, the interval of a column, and its extent.
pub(crate) struct TimeRange {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    interval: Interval,
    extent: RangeExtent,
}

/// The extent of a range.
enum RangeExtent {
    /// This number of columns, with the present one.
    Columns(u16),
    /// The present calendar month.
    ThisMonth,
    /// The calendar month before it.
    LastMonth,
}

const fn columns(
    name: &'static str,
    label: &'static str,
    interval: Interval,
    columns: u16,
) -> TimeRange {
    TimeRange { name, label, interval, extent: RangeExtent::Columns(columns) }
}

const fn month(name: &'static str, label: &'static str, extent: RangeExtent) -> TimeRange {
    TimeRange { name, label, interval: Interval::Day, extent }
}

pub(crate) const RANGES: [TimeRange; 7] = [
    columns("24h", "24 hours", Interval::Hour, 24),
    columns("7d", "7 days", Interval::Day, 7),
    columns("30d", "30 days", Interval::Day, 30),
    month("month", "This month", RangeExtent::ThisMonth),
    month("last-month", "Last month", RangeExtent::LastMonth),
    columns("90d", "90 days", Interval::Day, 90),
    columns("12m", "12 months", Interval::Week, 52),
];

/// The default range.
pub(crate) const MONTH: &TimeRange = &RANGES[2];

impl TimeRange {
    pub(crate) fn from_query(query: &Query) -> &'static Self {
        let name = query.get("range");
        RANGES.iter().find(|range| Some(range.name) == name).unwrap_or(MONTH)
    }

    pub(crate) fn span(&self, clock: &PageClock) -> TimeSpan {
        let this = Month::of(clock.now, &clock.zone);
        match self.extent {
            RangeExtent::Columns(columns) => self.ending(clock.now, columns, clock),
            RangeExtent::ThisMonth => self.of_month(this, clock),
            RangeExtent::LastMonth => self.of_month(month_before(this, clock), clock),
        }
    }

    /// The span as one period.
    pub(crate) fn whole(&self, clock: &PageClock) -> TimeSpan {
        let span = self.span(clock);
        let (start, end) = (span.start().instant(), span.end().instant());
        // Each range is a valid span.
        TimeSpan::new(start, end, clock.zone.clone(), Interval::None).unwrap_or(span)
    }

    /// The span of the same extent before it.
    pub(crate) fn span_before(&self, clock: &PageClock) -> TimeSpan {
        let this = Month::of(clock.now, &clock.zone);
        let last = month_before(this, clock);
        match self.extent {
            RangeExtent::Columns(columns) => {
                let end = self.span(clock).start().instant().plus_micros(-1);
                self.ending(end, columns, clock)
            }
            RangeExtent::ThisMonth => self.of_month(last, clock),
            RangeExtent::LastMonth => self.of_month(month_before(last, clock), clock),
        }
    }

    fn ending(&self, end: Timestamp, columns: u16, clock: &PageClock) -> TimeSpan {
        TimeSpan::ending(end, self.interval, columns, clock.zone.clone())
    }

    fn of_month(&self, month: Month, clock: &PageClock) -> TimeSpan {
        let days = month.range(&clock.zone);
        let span = TimeSpan::new(days.start, days.end, clock.zone.clone(), self.interval);
        // A month is a valid span.
        span.unwrap_or_else(|_| self.ending(clock.now, 31, clock))
    }

    /// The number of columns that have begun.
    pub(crate) fn begun(&self, clock: &PageClock) -> usize {
        let periods = self.span(clock).periods();
        periods.iter().filter(|period| period.start.instant() <= clock.now).count()
    }

    /// The labels of the columns.
    pub(crate) fn labels(&self, clock: &PageClock) -> Vec<String> {
        let label = if self.interval == Interval::Hour { clock::hour } else { clock::short_day };
        self.span(clock).periods().iter().map(|period| label(period.start)).collect()
    }
}

fn month_before(month: Month, clock: &PageClock) -> Month {
    Month::of(month.range(&clock.zone).start.plus_micros(-1), &clock.zone)
}

#[cfg(test)]
mod tests {
    use tollgate_domain::TimeZone;

    use super::*;

    #[test]
    fn a_range_and_the_one_before_it_meet_in_the_zone_of_the_merchant() {
        // On 2026-10-25, clocks of Berlin go back an hour.
        let now = "2026-11-01T22:30:00Z".parse().unwrap();
        let zone = TimeZone::named("Europe/Berlin").unwrap();
        let clock = PageClock { now, zone, is_relative: true };
        for range in &RANGES {
            let (before, span) = (range.span_before(&clock), range.span(&clock));
            assert_eq!(before.end(), span.start(), "{}", range.name);
            assert_eq!(range.labels(&clock).len(), span.periods().len());
        }
        let ends = |span: TimeSpan| (span.start().to_string(), span.end().to_string());
        let expected = ("2026-10-01T00:00:00+02:00", "2026-11-01T00:00:00+01:00");
        let expected = (expected.0.to_owned(), expected.1.to_owned());
        assert_eq!(ends(RANGES[4].span(&clock)), expected);
        assert_eq!(RANGES[3].span_before(&clock), RANGES[4].span(&clock));
    }
}
