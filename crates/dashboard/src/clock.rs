//! The present, and times as a page shows them: in the merchant's time zone, which each page names.

use tollgate_domain::{TimeZone, Timestamp};

/// The present and the zone of a page.
#[derive(Clone, Debug)]
pub(crate) struct PageClock {
    pub(crate) now: Timestamp,
    pub(crate) zone: TimeZone,
    /// Whether lists say how long ago a time was.
    pub(crate) is_relative: bool,
}

/// A time in a list, with the exact one to be shown on hover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) shown: String,
    /// Empty where `shown` is exact.
    pub(crate) exact: String,
}

impl Moment {
    /// A text in place of a time.
    pub(crate) fn text(text: &str) -> Self {
        Self { shown: text.to_owned(), exact: String::new() }
    }
}

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

impl PageClock {
    /// The IANA name of the zone.
    pub(crate) fn zone_name(&self) -> &str {
        self.zone.name().unwrap_or("UTC")
    }

    /// A time to the second.
    pub(crate) fn time(&self, at: Timestamp) -> String {
        let at = self.zone.at(at);
        let time = at.time();
        format!("{} {:02}:{:02}:{:02}", at.date(), time.hour(), time.minute(), time.second())
    }

    /// A day.
    pub(crate) fn day(&self, at: Timestamp) -> String {
        self.zone.at(at).date().to_string()
    }

    /// A time in a list.
    pub(crate) fn moment(&self, at: Timestamp) -> Moment {
        let exact = self.time(at);
        match self.is_relative {
            true => Moment { shown: self.distance(at), exact },
            false => Moment { shown: exact, exact: String::new() },
        }
    }

    /// A time in a list, or `none` where there is none.
    pub(crate) fn moment_or(&self, at: Option<Timestamp>, none: &str) -> Moment {
        at.map_or_else(|| Moment::text(none), |at| self.moment(at))
    }

    /// The time from now in its largest unit; the day, from a month on.
    fn distance(&self, at: Timestamp) -> String {
        let seconds = self.now.unix_micros().saturating_sub(at.unix_micros()) / 1_000_000;
        let units = |unit: i64, one: &str, name: &str| {
            let count = seconds.abs() / unit;
            let name = if count == 1 { one } else { name };
            match seconds {
                0.. => format!("{count} {name} ago"),
                _ => format!("in {count} {name}"),
            }
        };
        match seconds.abs() {
            0..10 => "now".to_owned(),
            10..MINUTE => units(1, "s", "s"),
            MINUTE..HOUR => units(MINUTE, "min", "min"),
            HOUR..DAY => units(HOUR, "h", "h"),
            _ if seconds.abs() < 30 * DAY => units(DAY, "day", "days"),
            _ => self.day(at),
        }
    }
}

/// A day in the short form of an axis.
pub(crate) fn short_day(at: tollgate_domain::LocalTime) -> String {
    let (date, month) = (at.date(), at.date().month().to_string());
    format!("{} {}", date.day(), month.chars().take(3).collect::<String>())
}

/// An hour in the short form of an axis.
pub(crate) fn hour(at: tollgate_domain::LocalTime) -> String {
    format!("{:02}:00", at.time().hour())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(is_relative: bool) -> PageClock {
        let zone = TimeZone::named("Europe/Berlin").unwrap();
        PageClock { now: "2026-11-25T12:00:00Z".parse().unwrap(), zone, is_relative }
    }

    #[test]
    fn times_are_those_of_the_zone_and_lists_say_how_long_ago_they_were() {
        for (at, shown, exact) in [
            ("2026-11-25T11:59:55Z", "now", "2026-11-25 12:59:55"),
            ("2026-11-25T11:59:18Z", "42 s ago", "2026-11-25 12:59:18"),
            ("2026-11-25T11:01:00Z", "59 min ago", "2026-11-25 12:01:00"),
            ("2026-11-25T10:30:00Z", "1 h ago", "2026-11-25 11:30:00"),
            ("2026-11-24T12:00:00Z", "1 day ago", "2026-11-24 13:00:00"),
            ("2026-11-20T12:00:00Z", "5 days ago", "2026-11-20 13:00:00"),
            ("2026-10-01T22:30:00Z", "2026-10-02", "2026-10-02 00:30:00"),
            ("2026-11-25T12:05:00Z", "in 5 min", "2026-11-25 13:05:00"),
        ] {
            let at = at.parse().unwrap();
            let moment = clock(true).moment(at);
            assert_eq!((moment.shown.as_str(), moment.exact.as_str()), (shown, exact));
            assert_eq!(clock(false).moment(at), Moment::text(exact));
        }
    }
}
