//! The calendar of a limit: the instants at which its cycles begin and end. No job runs at midnight.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::cycle::Cycle;
use crate::span::{Interval, TimeZone, quarter};
use crate::time::Timestamp;

/// The calendar by which the cycles of a limit begin: at midnight by the clocks of a time zone.
///
/// A change of the zone takes effect when the present cycle ends. So the cycle of an instant depends on the zones that
/// the limit had before, and these are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredCalendar<'_>", into = "StoredCalendar<'_>")]
pub struct CycleCalendar {
    zone: TimeZone,
    /// Each earlier zone with the instant at which it was replaced, oldest first.
    earlier: Vec<(TimeZone, Timestamp)>,
}

/// The number of earlier zones that are kept. There is about one for each day on which the zone is changed, so those
/// that are dropped have had no effect for a year.
const EARLIER_ZONES: usize = 400;

/// The calendar of UTC.
impl Default for CycleCalendar {
    fn default() -> Self {
        Self::of(TimeZone::UTC)
    }
}

impl CycleCalendar {
    /// The calendar of a zone.
    pub const fn of(zone: TimeZone) -> Self {
        Self { zone, earlier: Vec::new() }
    }

    /// The IANA name of the zone of the next cycle.
    pub fn zone_name(&self) -> &str {
        name_of(&self.zone)
    }

    /// Returns whether it always was the calendar of UTC.
    pub fn is_default(&self) -> bool {
        self.zone.is_utc() && self.earlier.is_empty()
    }

    /// Changes the zone at `now`. The change takes effect when the present cycle ends. `last_used_at` is the last instant
    /// for which cycles are asked later; `None` if there was none yet.
    pub fn change(&mut self, zone: TimeZone, now: Timestamp, last_used_at: Option<Timestamp>) {
        let Some(last) = last_used_at else {
            *self = Self::of(zone);
            return;
        };
        // Time does not go back, even if the clock of a node does.
        let now = now.max(last);
        let replaces = self.earlier.last().is_some_and(|(_, changed_at)| {
            let cycles = [Cycle::Daily, Cycle::Weekly, Cycle::Monthly];
            cycles.iter().all(|cycle| self.is_same(*cycle, *changed_at, now))
        });
        let before = std::mem::replace(&mut self.zone, zone);
        // A change that has had no effect yet is replaced.
        if !replaces && before != self.zone {
            self.earlier.push((before, now));
        }
        if self.earlier.last().is_some_and(|(before, _)| replaces && *before == self.zone) {
            self.earlier.pop();
        }
        let excess = self.earlier.len().saturating_sub(EARLIER_ZONES);
        self.earlier.drain(..excess);
    }

    /// Returns whether two instants lie in one cycle.
    pub fn is_same(&self, cycle: Cycle, one: Timestamp, other: Timestamp) -> bool {
        // This runs many times per call, and mostly needs no calendar.
        let is_near = match self.is_default() {
            true => one.days_since_1970() == other.days_since_1970(),
            // Clocks of all zones show full quarter hours at the same instants.
            false => quarter(one) == quarter(other),
        };
        is_near || self.start(cycle, one) == self.start(cycle, other)
    }

    /// The end of the cycle that contains `at`, which is the start of the next. `None` for [`Cycle::Total`] and at the
    /// end of the calendar.
    pub fn ends_at(&self, cycle: Cycle, at: Timestamp) -> Option<Timestamp> {
        let interval = interval(cycle)?;
        let (_, zone) = self.governing(interval, at);
        Some(zone.period(interval, at).end).filter(|end| *end > at)
    }

    /// The start of the cycle that contains `at`; `None` for [`Cycle::Total`].
    fn start(&self, cycle: Cycle, at: Timestamp) -> Option<Timestamp> {
        let interval = interval(cycle)?;
        let (since, zone) = self.governing(interval, at);
        let start = zone.period(interval, at).start;
        Some(since.map_or(start, |since| since.max(start)))
    }

    /// The zone whose clocks the cycle of `at` has, and the start of its first cycle; `None` if it is the first zone.
    fn governing(&self, interval: Interval, at: Timestamp) -> (Option<Timestamp>, &TimeZone) {
        let zones = self.earlier.iter().map(|(zone, _)| zone).chain([&self.zone]);
        let changes = self.earlier.iter().map(|(_, changed_at)| *changed_at);
        let mut zones = zones.peekable();
        let mut present = (None, zones.next().unwrap_or(&self.zone));
        // The zone of the next cycle, and the start of that cycle.
        let mut next: Option<(Timestamp, &TimeZone)> = None;
        for (changed_at, zone) in changes.zip(zones) {
            if let Some((since, zone)) = next.filter(|(since, _)| *since <= changed_at) {
                present = (Some(since), zone);
                next = None;
            }
            // A second change within a cycle replaces the first.
            let since = next.map(|(since, _)| since);
            let since = since.unwrap_or_else(|| present.1.period(interval, changed_at).end);
            if at < since {
                return present;
            }
            next = Some((since, zone));
        }
        next.map_or(present, |(since, zone)| (Some(since), zone))
    }
}

/// The IANA name of a zone. Zones of limits have one.
fn name_of(zone: &TimeZone) -> &str {
    zone.name().unwrap_or("UTC")
}

/// The interval of a cycle; `None` for all time.
const fn interval(cycle: Cycle) -> Option<Interval> {
    match cycle {
        Cycle::Daily => Some(Interval::Day),
        Cycle::Weekly => Some(Interval::Week),
        Cycle::Monthly => Some(Interval::Month),
        Cycle::Total => None,
    }
}

/// A calendar as it is stored: with names of zones, and instants in microseconds since 1970.
#[derive(Serialize, Deserialize)]
struct StoredCalendar<'a> {
    zone: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<(Cow<'a, str>, i64)>,
}

impl From<CycleCalendar> for StoredCalendar<'_> {
    fn from(calendar: CycleCalendar) -> Self {
        let name = |zone: &TimeZone| Cow::Owned(name_of(zone).to_owned());
        let earlier = calendar.earlier.iter();
        Self {
            zone: name(&calendar.zone),
            earlier: earlier.map(|(zone, at)| (name(zone), at.unix_micros())).collect(),
        }
    }
}

impl TryFrom<StoredCalendar<'_>> for CycleCalendar {
    type Error = String;

    fn try_from(stored: StoredCalendar<'_>) -> Result<Self, String> {
        let zone = |name: &str| TimeZone::named(name).ok_or_else(|| format!("no zone {name}"));
        let earlier = stored.earlier.iter();
        let earlier = earlier
            .map(|(name, at)| Ok((zone(name)?, Timestamp::from_unix_micros(*at))))
            .collect::<Result<_, String>>()?;
        Ok(Self { zone: zone(&stored.zone)?, earlier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn calendar(zone: &str) -> CycleCalendar {
        CycleCalendar::of(TimeZone::named(zone).unwrap())
    }

    /// Asserts that the cycle of an instant ends at another one, and includes all instants between.
    fn assert_ends(calendar: &CycleCalendar, cycle: Cycle, instant: &str, end: &str) {
        let what = format!("{cycle:?} of {instant}");
        assert_eq!(calendar.ends_at(cycle, at(instant)), Some(at(end)), "{what}");
        assert!(calendar.is_same(cycle, at(instant), at(end).plus_micros(-1)), "{what}");
        assert!(!calendar.is_same(cycle, at(instant), at(end)), "{what}");
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
            assert_ends(&CycleCalendar::default(), cycle, instant, end);
        }
        let utc = CycleCalendar::default();
        assert_eq!(utc.ends_at(Cycle::Total, at("2026-11-21T00:00:00Z")), None);
        let ages = [at("1970-01-01T00:00:00Z"), at("2126-11-21T00:00:00Z")];
        assert!(utc.is_same(Cycle::Total, ages[0], ages[1]));
    }

    #[test]
    fn cycles_begin_at_local_midnight_on_days_of_23_and_25_hours_too() {
        for (zone, cycle, instant, end) in [
            ("Europe/Berlin", Cycle::Daily, "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
            ("Europe/Berlin", Cycle::Daily, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
            ("Europe/Berlin", Cycle::Weekly, "2026-10-19T00:00:00Z", "2026-10-25T23:00:00Z"),
            ("Europe/Berlin", Cycle::Monthly, "2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"),
            ("America/New_York", Cycle::Daily, "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
            ("Asia/Kathmandu", Cycle::Daily, "2026-11-21T18:15:00Z", "2026-11-22T18:15:00Z"),
            // Clocks skip midnight there.
            ("Africa/Cairo", Cycle::Daily, "2026-04-23T12:00:00Z", "2026-04-23T22:00:00Z"),
            // Clocks are moved by half an hour.
            ("Australia/Lord_Howe", Cycle::Daily, "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z"),
            // A day is skipped.
            ("Pacific/Apia", Cycle::Daily, "2011-12-30T09:00:00Z", "2011-12-30T10:00:00Z"),
            ("Pacific/Apia", Cycle::Daily, "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
        ] {
            assert_ends(&calendar(zone), cycle, instant, end);
        }
    }

    #[test]
    fn a_change_of_the_zone_takes_effect_when_the_cycle_ends() {
        let mut changed = CycleCalendar::default();
        let [tokyo, new_york] =
            ["Asia/Tokyo", "America/New_York"].map(|name| TimeZone::named(name).unwrap());
        let used = Some(at("2026-11-21T11:00:00Z"));
        changed.change(tokyo, at("2026-11-21T12:00:00Z"), used);
        for (cycle, instant, end) in [
            (Cycle::Daily, "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"),
            // The first cycle by the new zone begins where the old one ended.
            (Cycle::Daily, "2026-11-22T00:00:00Z", "2026-11-22T15:00:00Z"),
            (Cycle::Daily, "2026-11-22T15:00:00Z", "2026-11-23T15:00:00Z"),
            (Cycle::Weekly, "2026-11-22T15:00:00Z", "2026-11-23T00:00:00Z"),
            (Cycle::Weekly, "2026-11-23T00:00:00Z", "2026-11-29T15:00:00Z"),
            (Cycle::Monthly, "2026-11-22T15:00:00Z", "2026-12-01T00:00:00Z"),
        ] {
            assert_ends(&changed, cycle, instant, end);
        }
        // A second change within the day replaces the first; the week and the month have it as well.
        changed.change(new_york.clone(), at("2026-11-21T13:00:00Z"), used);
        for (cycle, instant, end) in [
            (Cycle::Daily, "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"),
            (Cycle::Daily, "2026-11-22T00:00:00Z", "2026-11-22T05:00:00Z"),
            (Cycle::Monthly, "2026-11-22T15:00:00Z", "2026-12-01T00:00:00Z"),
            (Cycle::Monthly, "2026-12-01T00:00:00Z", "2026-12-01T05:00:00Z"),
        ] {
            assert_ends(&changed, cycle, instant, end);
        }
        let stored = serde_json::to_string(&changed).unwrap();
        assert_eq!(serde_json::from_str::<CycleCalendar>(&stored).unwrap(), changed);
        // The zone that still has effect leaves nothing to remember.
        changed.change(TimeZone::UTC, at("2026-11-21T14:00:00Z"), used);
        assert!(changed.is_default());
        // Without a use, there is no present cycle.
        changed.change(new_york.clone(), at("2026-11-21T14:00:00Z"), None);
        assert_eq!(changed, CycleCalendar::of(new_york));
    }

    #[test]
    fn many_changes_within_a_cycle_are_as_the_last_of_them() {
        let zone = |name: &str| TimeZone::named(name).unwrap();
        let (used, mut calendar) = (at("2026-11-21T11:00:00Z"), CycleCalendar::default());
        for minute in 0..100 {
            let name = ["Asia/Tokyo", "Africa/Cairo", "Pacific/Kiritimati"][minute % 3];
            let now = used.plus_millis(60_000 * i64::try_from(minute).unwrap());
            calendar.change(zone(name), now, Some(used));
        }
        let mut once = CycleCalendar::default();
        once.change(zone("Asia/Tokyo"), used, Some(used));
        assert_eq!(calendar, once);
        // The change of a node whose clock is behind takes effect after the last use.
        let late = at("2026-11-22T00:30:00Z");
        let mut calendar = CycleCalendar::default();
        calendar.change(zone("Atlantic/Azores"), at("2026-11-21T23:06:00Z"), Some(late));
        assert!(calendar.is_same(Cycle::Daily, late, at("2026-11-22T23:59:59Z")));
    }

    proptest::proptest! {
        /// Cycles follow each other without a gap, and none is longer than its longest form, whatever was changed.
        #[test]
        fn each_cycle_ends_where_the_next_begins(
            zones in proptest::collection::vec((0..6_usize, 0..2_000_000_i64), 0..6),
            start in 0..2_000_000_i64,
        ) {
            const ZONES: [&str; 6] = [
                "UTC", "Asia/Kathmandu", "Africa/Cairo", "America/New_York", "Pacific/Kiritimati",
                "Australia/Lord_Howe",
            ];
            let epoch = at("2026-02-20T00:00:00Z");
            let mut changes: Vec<_> = zones;
            changes.sort_by_key(|(_, at)| *at);
            let mut calendar = CycleCalendar::default();
            for (zone, minutes) in changes {
                let zone = TimeZone::named(ZONES[zone]).unwrap();
                let now = epoch.plus_millis(minutes * 6_000);
                let before = calendar.clone();
                calendar.change(zone, now, Some(now));
                // The present cycle is as it was.
                for cycle in [Cycle::Daily, Cycle::Weekly, Cycle::Monthly] {
                    proptest::prop_assert_eq!(
                        [before.start(cycle, now), before.ends_at(cycle, now)],
                        [calendar.start(cycle, now), calendar.ends_at(cycle, now)]
                    );
                }
            }
            for (cycle, longest_days) in
                [(Cycle::Daily, 1), (Cycle::Weekly, 7), (Cycle::Monthly, 31)]
            {
                let mut instant = epoch.plus_millis(start * 6_000);
                for _ in 0..8 {
                    let end = calendar.ends_at(cycle, instant).unwrap();
                    let micros = end.unix_micros() - instant.unix_micros();
                    proptest::prop_assert!(micros > 0);
                    proptest::prop_assert!(micros <= (longest_days * 24 + 1) * 3_600_000_000);
                    proptest::prop_assert!(calendar.is_same(cycle, instant, end.plus_micros(-1)));
                    proptest::prop_assert!(!calendar.is_same(cycle, instant, end));
                    instant = end;
                }
            }
        }
    }
}
