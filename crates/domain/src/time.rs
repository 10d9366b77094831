//! Instants and clocks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::format_description::well_known::Rfc3339;
use time::{Date, OffsetDateTime, Time};
use tollgate_pricing::Moment;

/// An instant in UTC, to the microsecond. It is written as ISO 8601, and in binary formats as
/// microseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant of a number of microseconds since 1970-01-01T00:00:00Z.
    pub const fn from_unix_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The microseconds since 1970-01-01T00:00:00Z.
    pub const fn unix_micros(self) -> i64 {
        self.0
    }

    /// The instant of a number of whole seconds since 1970; `None` if it cannot be written.
    pub fn from_unix_seconds(seconds: i64) -> Option<Self> {
        OffsetDateTime::from_unix_timestamp(seconds).ok()?;
        seconds.checked_mul(1_000_000).map(Self)
    }

    /// The instant `millis` later.
    pub const fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1_000)))
    }

    /// The instant `micros` later.
    pub const fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// The first instant of a day in UTC.
    pub fn at_midnight(day: Date) -> Self {
        let seconds = day.midnight().assume_utc().unix_timestamp();
        Self(seconds.saturating_mul(1_000_000))
    }

    /// The whole days since 1970-01-01T00:00:00Z.
    pub const fn days_since_1970(self) -> i64 {
        self.0.div_euclid(24 * 60 * 60 * 1_000_000)
    }

    /// The day in UTC.
    pub fn date(self) -> Date {
        self.to_datetime().date()
    }

    /// The time of the day in UTC.
    pub fn time(self) -> Time {
        self.to_datetime().time()
    }

    pub(crate) fn to_datetime(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        let at = at.to_datetime();
        (at.date(), at.time()).into()
    }
}

/// The length of the longest date-time: to the nanosecond, in UTC.
const LONGEST: usize = "2026-11-21T12:00:00.123456789Z".len();

impl Timestamp {
    /// The text of the instant, made in `buffer`; `None` outside the years 0000 to 9999.
    fn text(self, buffer: &mut [u8; LONGEST]) -> Option<&str> {
        let mut room = &mut buffer[..];
        self.to_datetime().format_into(&mut room, &Rfc3339).ok()?;
        // `format_into` returns a smaller count than it has written.
        let length = LONGEST - room.len();
        str::from_utf8(buffer.get(..length)?).ok()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(&mut [0; LONGEST]).ok_or(fmt::Error)?)
    }
}

/// The error of a text that is no instant, or no instant that can be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseTimestampError;

impl fmt::Display for ParseTimestampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "must be a date-time such as 2026-11-21T12:00:00Z, of the years 0000 to 9999 in UTC",
        )
    }
}

impl std::error::Error for ParseTimestampError {}

impl std::str::FromStr for Timestamp {
    type Err = ParseTimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| ParseTimestampError)?;
        // An offset can lead out of the years with four digits. Such an instant could not be
        // written again.
        let at = at.checked_to_utc().filter(|at| (0..=9_999).contains(&at.year()));
        let micros = at.ok_or(ParseTimestampError)?.unix_timestamp_nanos() / 1_000;
        i64::try_from(micros).map(Self).map_err(|_| ParseTimestampError)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return self.0.serialize(serializer);
        }
        let mut buffer = [0; LONGEST];
        let text = self.text(&mut buffer).ok_or_else(|| S::Error::custom("a year beyond 9999"))?;
        serializer.serialize_str(text)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.is_human_readable() {
            true => String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom),
            false => i64::deserialize(deserializer).map(Self),
        }
    }
}

/// The source of the time: the system's clock, or one that a test moves.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The system's clock.
    pub const fn system() -> Self {
        Self(ClockSource::System)
    }

    /// A clock that shows `start` until it is moved. Clones move together.
    pub fn manual(start: Timestamp) -> Self {
        Self(ClockSource::Manual(Arc::new(AtomicI64::new(start.0))))
    }

    /// The present instant.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            ClockSource::System => {
                let nanos = OffsetDateTime::now_utc().unix_timestamp_nanos();
                Timestamp(i64::try_from(nanos / 1_000).unwrap_or(i64::MAX))
            }
            ClockSource::Manual(at) => Timestamp(at.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock forward. The system's clock does not change.
    pub fn advance_millis(&self, millis: i64) {
        if let ClockSource::Manual(at) = &self.0 {
            at.fetch_add(millis.saturating_mul(1_000), Ordering::SeqCst);
        }
    }
}
