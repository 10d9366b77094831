//! A span of time in the days of one UTC offset.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use time::format_description::well_known::Rfc3339;
use time::{Date, Duration, OffsetDateTime, UtcOffset};

use crate::time::{ParseTimestampError, Timestamp};

/// An instant with the UTC offset in which it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime(OffsetDateTime);

impl LocalTime {
    /// The instant `at`, with the offset of UTC.
    pub fn in_utc(at: Timestamp) -> Self {
        Self(at.to_datetime())
    }

    /// The instant, without the offset.
    pub fn instant(self) -> Timestamp {
        let micros = self.0.unix_timestamp_nanos() / 1_000;
        Timestamp::from_unix_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    /// The instant `at`, in the offset of `self`.
    pub fn same_offset(self, at: Timestamp) -> Self {
        Self(at.to_datetime().to_offset(self.0.offset()))
    }

    /// The time `days` days earlier.
    pub fn minus_days(self, days: i64) -> Self {
        Self(self.0 - Duration::days(days))
    }

    /// Returns whether its offset is a whole number of quarter hours, as in all time zones.
    fn has_usual_offset(self) -> bool {
        i64::from(self.0.offset().whole_seconds()) % QUARTER_SECONDS == 0
    }

    /// The last quarter hour that is not after it.
    fn quarter_before(self) -> OffsetDateTime {
        let past = self.0.unix_timestamp().rem_euclid(QUARTER_SECONDS);
        let nanoseconds = i64::from(self.0.nanosecond());
        self.0 - Duration::seconds(past) - Duration::nanoseconds(nanoseconds)
    }

    /// The first quarter hour that is not before it.
    fn quarter_after(self) -> OffsetDateTime {
        let before = self.quarter_before();
        if before == self.0 { before } else { before + Duration::seconds(QUARTER_SECONDS) }
    }
}

impl FromStr for LocalTime {
    type Err = ParseTimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| ParseTimestampError)?;
        // The year stays more than a year away from the ends of what can be written, whatever the
        // offset.
        Some(at).filter(|at| (1..=9_997).contains(&at.year())).map(Self).ok_or(ParseTimestampError)
    }
}

impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.format(&Rfc3339).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for LocalTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The quarter hours from one instant to another, with the days that they lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    start: OffsetDateTime,
    end: OffsetDateTime,
}

/// A day of a [`TimeSpan`], clipped to the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanDay {
    /// The date in the span's offset.
    pub date: Date,
    /// Its first instant in the span.
    pub start: LocalTime,
    /// Its end in the span, exclusive.
    pub end: LocalTime,
}

/// An error in the ends of a [`TimeSpan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSpanError {
    /// The offset of the start is not a whole number of quarter hours.
    Offset,
    /// The end is not after the start.
    Empty,
    /// The span is longer than [`TimeSpan::MAX_DAYS`].
    TooLong,
}

const QUARTER_SECONDS: i64 = 15 * 60;
/// The number of quarter hours in a day.
const QUARTERS_PER_DAY: i64 = 96;

impl TimeSpan {
    /// The longest span, in days.
    pub const MAX_DAYS: i64 = 366;

    /// Creates the span from `start` to `end`, exclusive, in the days of the offset of `start`.
    /// Both ends are widened to whole quarter hours.
    ///
    /// # Errors
    /// All errors of the two ends, at once.
    pub fn new(start: LocalTime, end: LocalTime) -> Result<Self, Vec<TimeSpanError>> {
        let mut errors = Vec::new();
        if !start.has_usual_offset() {
            errors.push(TimeSpanError::Offset);
        }
        let length = end.0 - start.0;
        if !length.is_positive() {
            errors.push(TimeSpanError::Empty);
        } else if length > Duration::days(Self::MAX_DAYS) {
            errors.push(TimeSpanError::TooLong);
        }
        let end = end.quarter_after().to_offset(start.0.offset());
        let span = Self { start: start.quarter_before(), end };
        if errors.is_empty() { Ok(span) } else { Err(errors) }
    }

    /// Its first instant.
    pub fn start(&self) -> LocalTime {
        LocalTime(self.start)
    }

    /// Its end, exclusive.
    pub fn end(&self) -> LocalTime {
        LocalTime(self.end)
    }

    /// Its quarter hours, numbered from 1970: the first one, and the first after the span.
    pub fn quarters(&self) -> (i64, i64) {
        (quarter(self.start), quarter(self.end))
    }

    /// The quarter hour in which the first day begins. It may lie before the span.
    pub fn first_midnight(&self) -> i64 {
        quarter(midnight(self.start.date(), self.start.offset()))
    }

    /// The quarter hours in which the days begin, except the first day.
    pub fn midnights(&self) -> impl Iterator<Item = i64> + use<> {
        let (first, (_, end)) = (self.first_midnight(), self.quarters());
        (1..).map(move |day| first + day * QUARTERS_PER_DAY).take_while(move |&at| at < end)
    }

    /// Its days, oldest first.
    pub fn days(&self) -> impl Iterator<Item = SpanDay> + use<> {
        let Self { start, end } = *self;
        let first = midnight(start.date(), start.offset());
        let midnights = (0..).map(move |day| first + Duration::days(day));
        midnights.take_while(move |&at| at < end).map(move |at| SpanDay {
            date: at.date(),
            start: LocalTime(at.max(start)),
            end: LocalTime((at + Duration::DAY).min(end)),
        })
    }
}

fn quarter(at: OffsetDateTime) -> i64 {
    at.unix_timestamp().div_euclid(QUARTER_SECONDS)
}

fn midnight(date: Date, offset: UtcOffset) -> OffsetDateTime {
    date.midnight().assume_offset(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: &str, end: &str) -> Result<TimeSpan, Vec<TimeSpanError>> {
        TimeSpan::new(start.parse().unwrap(), end.parse().unwrap())
    }

    #[test]
    fn days_are_those_of_the_starts_offset_and_clipped_at_both_ends() {
        let span = span("2026-11-01T06:00:00+05:45", "2026-11-03T00:00:00Z").unwrap();
        let days: Vec<_> =
            span.days().map(|day| format!("{} {} {}", day.date, day.start, day.end)).collect();
        assert_eq!(
            days,
            [
                "2026-11-01 2026-11-01T06:00:00+05:45 2026-11-02T00:00:00+05:45",
                "2026-11-02 2026-11-02T00:00:00+05:45 2026-11-03T00:00:00+05:45",
                "2026-11-03 2026-11-03T00:00:00+05:45 2026-11-03T05:45:00+05:45",
            ]
        );
        assert_eq!(span.midnights().count(), 2);
        let (first, past) = span.quarters();
        assert_eq!(past - first, 18 * 4 + 96 + 23);
        assert_eq!(first - span.first_midnight(), 6 * 4);
    }

    #[test]
    fn any_instants_are_widened_to_whole_quarters() {
        let cases = [
            ("2026-11-01T00:00:00Z", "2026-11-01T00:15:00Z", 1),
            ("2026-11-01T00:14:59.999Z", "2026-11-01T00:15:00Z", 1),
            ("2026-11-01T00:14:59.999Z", "2026-11-01T00:15:00.000001Z", 2),
            ("2026-11-01T05:47:00+05:45", "2026-11-01T00:07:00Z", 1),
            ("1969-12-31T23:59:59Z", "1970-01-01T00:00:01Z", 2),
        ];
        for (start, end, quarters) in cases {
            let span = span(start, end).unwrap();
            let (first, past) = span.quarters();
            assert_eq!(past - first, quarters, "{start} {end}");
            let (start, end): (LocalTime, LocalTime) =
                (start.parse().unwrap(), end.parse().unwrap());
            assert!(span.start().instant() <= start.instant(), "{start}");
            assert!(span.end().instant() >= end.instant(), "{end}");
        }
    }

    #[test]
    fn what_is_no_span_is_said_all_at_once() {
        use TimeSpanError::*;
        let cases: [(&str, &str, &[TimeSpanError]); 4] = [
            ("2026-11-02T00:01:00+00:07", "2026-11-01T00:00:01Z", &[Offset, Empty]),
            ("2026-11-01T00:00:00+00:07", "2026-11-02T00:00:00Z", &[Offset]),
            ("2026-11-01T00:00:00Z", "2026-11-01T01:00:00+01:00", &[Empty]),
            ("2026-11-01T00:00:00Z", "2027-11-02T00:15:00Z", &[TooLong]),
        ];
        for (start, end, errors) in cases {
            assert_eq!(span(start, end).unwrap_err(), errors, "{start} {end}");
        }
        assert_eq!(
            span("2027-11-01T00:00:00Z", "2028-11-01T00:00:00Z").unwrap().days().count(),
            366
        );
    }
}
