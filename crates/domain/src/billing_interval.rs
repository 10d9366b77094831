//! The lengths of billing cycles, computed from the calendar in UTC.
//!
//! Cycles are always counted from the same first day: a month that began on the 31st ends on the
//! last day of shorter months and on the 31st of longer ones.

use serde::{Deserialize, Serialize};
use time::{Date, Month};

use crate::time::Timestamp;

/// The length of a billing cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BillingInterval {
    /// 24 hours.
    Day,
    /// Seven days.
    Week,
    /// One month, to the same day of the next month or to its last day.
    Month,
    /// One year, to the same day of the next year; 29 February becomes 28 February in other years.
    Year,
}

const MICROS_PER_DAY: i64 = 24 * 60 * 60 * 1_000_000;
/// The end of a cycle beyond the calendar: an instant that never comes.
const NEVER: Timestamp = Timestamp::from_unix_micros(i64::MAX);

impl BillingInterval {
    /// The end of cycle number `count`, counted from 1 at `anchor`.
    pub fn end_of(self, anchor: Timestamp, count: i64) -> Timestamp {
        match self {
            Self::Day => anchor.plus_micros(count.saturating_mul(MICROS_PER_DAY)),
            Self::Week => anchor.plus_micros(count.saturating_mul(7 * MICROS_PER_DAY)),
            Self::Month => months_later(anchor, count),
            Self::Year => months_later(anchor, count.saturating_mul(12)),
        }
    }
}

/// The same time and day `count` months later, or the last day of that month.
fn months_later(anchor: Timestamp, count: i64) -> Timestamp {
    let day = anchor.date();
    let time_of_day = anchor.unix_micros() - Timestamp::at_midnight(day).unix_micros();
    let months = i64::from(day.year()) * 12 + i64::from(u8::from(day.month())) - 1;
    let months = months.saturating_add(count);
    let date = || {
        let year = i32::try_from(months.div_euclid(12)).ok()?;
        let month = Month::try_from(u8::try_from(months.rem_euclid(12) + 1).ok()?).ok()?;
        Date::from_calendar_date(year, month, day.day().min(month.length(year))).ok()
    };
    date().map_or(NEVER, |date| Timestamp::at_midnight(date).plus_micros(time_of_day))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn cycles_end_on_the_day_they_are_counted_from_or_the_last_of_the_month() {
        use BillingInterval::*;
        for (interval, anchor, ends) in [
            (
                Month,
                "2026-01-31T10:20:30.000004Z",
                &[
                    "2026-02-28T10:20:30.000004Z",
                    "2026-03-31T10:20:30.000004Z",
                    "2026-04-30T10:20:30.000004Z",
                    "2026-05-31T10:20:30.000004Z",
                ][..],
            ),
            // A leap year, after a December.
            (
                Month,
                "2027-11-30T00:00:00Z",
                &[
                    "2027-12-30T00:00:00Z",
                    "2028-01-30T00:00:00Z",
                    "2028-02-29T00:00:00Z",
                    "2028-03-30T00:00:00Z",
                ],
            ),
            (
                Month,
                "2027-01-29T23:59:59.999999Z",
                &["2027-02-28T23:59:59.999999Z", "2027-03-29T23:59:59.999999Z"],
            ),
            (Month, "2028-02-29T12:00:00Z", &["2028-03-29T12:00:00Z", "2028-04-29T12:00:00Z"]),
            (
                Year,
                "2024-02-29T12:00:00Z",
                &[
                    "2025-02-28T12:00:00Z",
                    "2026-02-28T12:00:00Z",
                    "2027-02-28T12:00:00Z",
                    "2028-02-29T12:00:00Z",
                ],
            ),
            (Year, "2026-12-31T00:00:00Z", &["2027-12-31T00:00:00Z"]),
            // UTC has no summer time: a day is always 24 hours.
            (Day, "2026-03-28T01:30:00Z", &["2026-03-29T01:30:00Z", "2026-03-30T01:30:00Z"]),
            (Day, "2028-02-28T00:00:00Z", &["2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"]),
            (Week, "2026-12-28T05:00:00Z", &["2027-01-04T05:00:00Z", "2027-01-11T05:00:00Z"]),
        ] {
            for (count, end) in (1..).zip(ends) {
                assert_eq!(
                    interval.end_of(at(anchor), count),
                    at(end),
                    "{interval:?} {count} from {anchor}"
                );
            }
        }
    }

    #[test]
    fn what_ends_after_the_calendar_never_ends() {
        let anchor = at("2026-01-31T00:00:00Z");
        assert_eq!(BillingInterval::Year.end_of(anchor, 8_000), NEVER);
        assert_eq!(BillingInterval::Month.end_of(anchor, i64::MAX), NEVER);
        assert_eq!(BillingInterval::Week.end_of(anchor, i64::MAX), NEVER);
    }
}
