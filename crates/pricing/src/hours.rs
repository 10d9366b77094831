//! Hours of the day for price rows, and the moment for which a price is looked up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::{Date, Time};

/// The moment for which a price is looked up: a UTC day, and its time if known.
///
/// Without a time, rows for some hours are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The UTC day.
    pub day: Date,
    /// The UTC time of the day.
    pub time: Option<Time>,
}

impl From<Date> for Moment {
    fn from(day: Date) -> Self {
        Self { day, time: None }
    }
}

impl From<(Date, Time)> for Moment {
    fn from((day, time): (Date, Time)) -> Self {
        Self { day, time: Some(time) }
    }
}

/// A range of hours of every day in UTC, to the minute.
///
/// It is written as `{"from": "01:00", "to": "04:00"}`. `to` is exclusive; a `to` before `from` is on
/// the next day. Equal values are an error.
///
/// ```
/// use tollgate_pricing::DailyHours;
///
/// let night: DailyHours = serde_json::from_str(r#"{"from": "22:30", "to": "06:00"}"#)?;
/// assert!(night.contains(time::Time::MIDNIGHT));
/// assert_eq!(night.to_string(), "22:30 to 06:00");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "SerializedHours", into = "SerializedHours")]
pub struct DailyHours {
    /// The first minute of the day.
    from: Minute,
    /// The minute after the last.
    to: Minute,
}

/// The serialized form of hours.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SerializedHours {
    from: Minute,
    to: Minute,
}

/// A minute of the day: `"16:30"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Minute(u16);

impl Minute {
    /// The minute that begins at a time; `None` for a time within a minute.
    fn at(time: Time) -> Option<Self> {
        let (hour, minute, second, nanosecond) = time.as_hms_nano();
        let whole = (second, nanosecond) == (0, 0);
        whole.then(|| Self(u16::from(hour) * 60 + u16::from(minute)))
    }

    fn time(self) -> Time {
        let part = |number: u16| u8::try_from(number).unwrap_or_default();
        Time::from_hms(part(self.0 / 60), part(self.0 % 60), 0).unwrap_or(Time::MIDNIGHT)
    }
}

impl FromStr for Minute {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let two = |part: &str, below: u16| {
            let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<u16>().ok().filter(|number| digits && *number < below)
        };
        let minutes = text.split_once(':').and_then(|(hour, minute)| {
            let (hour, minute) = (two(hour, 24)?, two(minute, 60)?);
            hour.checked_mul(60)?.checked_add(minute)
        });
        minutes.map(Self).ok_or("must be a time of the day, from \"00:00\" to \"23:59\"")
    }
}

impl TryFrom<String> for Minute {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Minute> for String {
    fn from(minute: Minute) -> Self {
        minute.to_string()
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl TryFrom<SerializedHours> for DailyHours {
    type Error = &'static str;

    fn try_from(written: SerializedHours) -> Result<Self, Self::Error> {
        let SerializedHours { from, to } = written;
        Self::between(from, to).ok_or("from and to must differ: what holds all day has no hours")
    }
}

impl From<DailyHours> for SerializedHours {
    fn from(DailyHours { from, to }: DailyHours) -> Self {
        Self { from, to }
    }
}

impl DailyHours {
    /// The hours between two times of the day (UTC), `to` exclusive.
    ///
    /// `None` if they are equal, or if one is no whole minute.
    pub fn new(from: Time, to: Time) -> Option<Self> {
        Self::between(Minute::at(from)?, Minute::at(to)?)
    }

    fn between(from: Minute, to: Minute) -> Option<Self> {
        (from != to).then_some(Self { from, to })
    }

    /// Whether a time of the day (UTC) is within the hours.
    pub fn contains(self, time: Time) -> bool {
        self.contains_minute(u16::from(time.hour()) * 60 + u16::from(time.minute()))
    }

    /// The time of the day (UTC) at which the hours begin.
    pub fn begin(self) -> Time {
        self.from.time()
    }

    /// The time of the day (UTC) at which the hours end, exclusive.
    pub fn end(self) -> Time {
        self.to.time()
    }

    /// Whether both hours share a minute.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains_minute(other.from.0) || other.contains_minute(self.from.0)
    }

    fn contains_minute(self, minute: u16) -> bool {
        let (Minute(from), Minute(to)) = (self.from, self.to);
        match from < to {
            true => (from..to).contains(&minute),
            false => minute >= from || minute < to,
        }
    }
}

impl fmt::Display for DailyHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::time;

    fn hours(from: &str, to: &str) -> DailyHours {
        DailyHours::between(from.parse().unwrap(), to.parse().unwrap()).unwrap()
    }

    #[test]
    fn hours_hold_from_their_first_minute_until_before_their_last() {
        let day = hours("01:00", "04:30");
        for (at, holds) in [
            (time!(0:59:59.999), false),
            (time!(1:00), true),
            (time!(4:29:59.999_999_999), true),
            (time!(4:30), false),
        ] {
            assert_eq!(day.contains(at), holds, "{at}");
        }
    }

    #[test]
    fn hours_may_pass_midnight() {
        let night = hours("22:00", "00:30");
        for (at, holds) in [
            (time!(21:59), false),
            (time!(22:00), true),
            (time!(0:00), true),
            (time!(0:29), true),
            (time!(0:30), false),
            (time!(12:00), false),
        ] {
            assert_eq!(night.contains(at), holds, "{at}");
        }
        let until_midnight = hours("10:00", "00:00");
        assert!(until_midnight.contains(time!(23:59)));
        assert!(!until_midnight.contains(time!(0:00)));
    }

    #[test]
    fn hours_overlap_where_they_share_a_minute() {
        let table = [
            (("01:00", "04:00"), ("04:00", "06:00"), false),
            (("01:00", "04:00"), ("03:59", "06:00"), true),
            (("22:00", "02:00"), ("01:59", "03:00"), true),
            (("22:00", "02:00"), ("02:00", "22:00"), false),
            (("22:00", "02:00"), ("23:00", "23:01"), true),
        ];
        for ((a, b), (c, d), expected) in table {
            let (one, other) = (hours(a, b), hours(c, d));
            assert_eq!(one.overlaps(other), expected, "{one}, {other}");
            assert_eq!(other.overlaps(one), expected, "{other}, {one}");
        }
    }

    #[test]
    fn times_that_are_none_are_refused() {
        for text in ["24:00", "1:00", "01:60", "01:00:00", "+1:00", "", "01-00", "01:0a", "0１:00"]
        {
            assert!(text.parse::<Minute>().is_err(), "{text}");
        }
        for json in [
            r#"{"from": "01:00", "to": "01:00"}"#,
            r#"{"from": "01:00"}"#,
            r#"{"from": "01:00", "to": "02:00", "zone": "UTC"}"#,
            r#"{"from": 1, "to": 2}"#,
        ] {
            assert!(serde_json::from_str::<DailyHours>(json).is_err(), "{json}");
        }
        let text = r#"{"from":"22:00","to":"06:05"}"#;
        let read: DailyHours = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(read.begin(), time!(22:00));
    }
}
