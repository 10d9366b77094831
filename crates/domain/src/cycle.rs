//! Cycles of limits, computed from the calendar in UTC. No job runs at midnight.

use serde::{Deserialize, Serialize};
use time::{Date, Duration, Month};

use crate::time::Timestamp;

/// The interval after which a limit starts again from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cycle {
    /// One day, from 00:00 UTC.
    Daily,
    /// One week, from Monday at 00:00 UTC.
    Weekly,
    /// One calendar month, from its first day at 00:00 UTC.
    Monthly,
    /// All time: the limit does not start again.
    Total,
}

impl Cycle {
    /// Returns whether two instants lie in one cycle.
    pub fn is_same(self, one: Timestamp, other: Timestamp) -> bool {
        // This runs many times per call. Both instants are mostly of one day, which needs no
        // calendar.
        one.days_since_1970() == other.days_since_1970()
            || self.first_day(one.date()) == self.first_day(other.date())
    }

    /// The end of the cycle that contains `at`, which is the start of the next. `None` for
    /// [`Cycle::Total`] and at the end of the calendar.
    pub fn ends_at(self, at: Timestamp) -> Option<Timestamp> {
        let first = self.first_day(at.date())?;
        let next = match self {
            Self::Daily => first.checked_add(Duration::DAY)?,
            Self::Weekly => first.checked_add(Duration::WEEK)?,
            Self::Monthly => match first.month() {
                Month::December => Date::from_calendar_date(first.year() + 1, Month::January, 1),
                month => Date::from_calendar_date(first.year(), month.next(), 1),
            }
            .ok()?,
            Self::Total => return None,
        };
        Some(Timestamp::at_midnight(next))
    }

    fn first_day(self, day: Date) -> Option<Date> {
        match self {
            Self::Daily => Some(day),
            Self::Weekly => {
                let since_monday = i64::from(day.weekday().number_days_from_monday());
                // The first week of the calendar may begin before the calendar does.
                Some(day.checked_sub(Duration::days(since_monday)).unwrap_or(Date::MIN))
            }
            Self::Monthly => day.replace_day(1).ok(),
            Self::Total => None,
        }
    }
}

/// One value for each cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerCycle<T> {
    /// The value of the day.
    pub day: T,
    /// The value of the week.
    pub week: T,
    /// The value of the month.
    pub month: T,
    /// The value of all time.
    pub total: T,
}

impl<T> PerCycle<T> {
    /// The value of one cycle.
    pub const fn get(&self, cycle: Cycle) -> &T {
        match cycle {
            Cycle::Daily => &self.day,
            Cycle::Weekly => &self.week,
            Cycle::Monthly => &self.month,
            Cycle::Total => &self.total,
        }
    }

    /// Each cycle with a mutable reference to its value.
    pub fn each_mut(&mut self) -> [(Cycle, &mut T); 4] {
        [
            (Cycle::Daily, &mut self.day),
            (Cycle::Weekly, &mut self.week),
            (Cycle::Monthly, &mut self.month),
            (Cycle::Total, &mut self.total),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn cycles_end_where_the_calendar_says() {
        for (cycle, instant, end) in [
            (Cycle::Daily, "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"),
            (Cycle::Daily, "2026-11-21T23:59:59.999999Z", "2026-11-22T00:00:00Z"),
            (Cycle::Daily, "2028-02-28T12:00:00Z", "2028-02-29T00:00:00Z"),
            (Cycle::Daily, "2027-02-28T12:00:00Z", "2027-03-01T00:00:00Z"),
            // A Monday, and the Sunday before it.
            (Cycle::Weekly, "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (Cycle::Weekly, "2026-11-22T23:59:59Z", "2026-11-23T00:00:00Z"),
            (Cycle::Weekly, "2026-12-31T08:00:00Z", "2027-01-04T00:00:00Z"),
            (Cycle::Monthly, "2028-02-29T12:00:00Z", "2028-03-01T00:00:00Z"),
            (Cycle::Monthly, "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(cycle.ends_at(at(instant)), Some(at(end)), "{cycle:?} of {instant}");
            assert!(cycle.is_same(at(instant), at(end).plus_millis(-1)), "{cycle:?} {instant}");
            assert!(!cycle.is_same(at(instant), at(end)), "{cycle:?} {instant}");
        }
        assert_eq!(Cycle::Total.ends_at(at("2026-11-21T00:00:00Z")), None);
        assert!(Cycle::Total.is_same(at("1970-01-01T00:00:00Z"), at("2126-11-21T00:00:00Z")));
    }
}
