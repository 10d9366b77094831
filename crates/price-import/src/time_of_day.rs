//! Hours of the day in the notations of price lists.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{Duration, Time};
use tollgate_pricing::DailyHours;

/// The minutes of a day.
const DAY: u16 = 24 * 60;

/// `16:30`.
const HOUR_AND_MINUTE: &[BorrowedFormatItem<'_>] = format_description!("[hour]:[minute]");

/// The time that a number of minutes after midnight is.
fn at(minute: u16) -> Time {
    Time::MIDNIGHT + Duration::minutes(minute.into())
}

/// A minute of the day in UTC, from `08:00:00+08:00` and its shorter forms.
///
/// `None` if it is no whole minute.
pub(crate) fn minute(text: &str) -> Option<Time> {
    let read = |text: &str| Time::parse(text, HOUR_AND_MINUTE).ok();
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (clock, east, offset) = match text.split_once(['+', '-']) {
        Some((clock, offset)) => (clock, text.contains('+'), read(offset)?),
        None => (text, true, Time::MIDNIGHT),
    };
    let clock = clock.strip_suffix(":00").filter(|rest| rest.contains(':')).unwrap_or(clock);
    let (clock, offset) = (read(clock)?, offset.duration_since(Time::MIDNIGHT));
    Some(if east { clock - offset } else { clock + offset })
}

/// The longest runs of minutes for which `value` is the same.
///
/// A run may pass midnight. If `value` is the same all day, the one run has no hours.
pub(crate) fn runs<T: PartialEq>(value: impl Fn(Time) -> T) -> Vec<(Option<DailyHours>, T)> {
    let ends: Vec<Time> =
        (0..DAY).map(at).filter(|&end| value(end) != value(end - Duration::MINUTE)).collect();
    if ends.is_empty() {
        return vec![(None, value(Time::MIDNIGHT))];
    }
    let next = ends.iter().skip(1).chain(ends.first());
    ends.iter().zip(next).map(|(&from, &to)| (DailyHours::new(from, to), value(from))).collect()
}

/// A window of off-peak prices: `{"hours_utc": "00:00-01:00", "weekdays": [1, 2]}`.
#[derive(Deserialize)]
struct OffPeakWindow {
    hours_utc: OneOrMore,
    weekdays: Option<Vec<u8>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// The hours of the peak.
pub(crate) struct PeakHours {
    /// The hours that are not off-peak on every day of the week.
    pub(crate) hours: Vec<DailyHours>,
    /// Whether some of them are off-peak on some days.
    pub(crate) not_on_all_days: bool,
}

/// The hours outside the windows of an `off_peak_pricing`.
///
/// `None` if the windows cannot be read, or if the whole day is alike.
pub(crate) fn peak(keys: &BTreeMap<String, Box<RawValue>>) -> Option<PeakHours> {
    let windows: Vec<OffPeakWindow> = serde_json::from_str(keys.get("windows")?.get()).ok()?;
    // `None` is the whole day.
    let mut off_peak: Vec<(Option<DailyHours>, Vec<u8>)> = Vec::new();
    for window in windows {
        let texts = match window.hours_utc {
            OneOrMore::One(text) => vec![text],
            OneOrMore::More(texts) => texts,
        };
        let days = window.weekdays.unwrap_or_else(|| (1..=7).collect());
        for text in texts {
            let (from, to) = text.split_once('-')?;
            let hours = DailyHours::new(minute(from.trim())?, minute(to.trim())?);
            off_peak.push((hours, days.clone()));
        }
    }
    let is_off_peak = |time: Time, day: u8| {
        off_peak.iter().any(|(hours, days)| {
            hours.is_none_or(|hours| hours.contains(time)) && days.contains(&day)
        })
    };
    let on_days = |time: Time| (1..=7).filter(|&day| is_off_peak(time, day)).count();
    let runs = runs(|time| on_days(time) == 7);
    // No hours if it is the same all day.
    runs.iter().any(|(hours, _)| hours.is_some()).then(|| PeakHours {
        hours: runs.iter().filter(|(_, off)| !off).filter_map(|(hours, _)| *hours).collect(),
        not_on_all_days: (0..DAY).map(at).any(|time| (1..7).contains(&on_days(time))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_those_of_utc() {
        let table = [
            ("01:00:00+00:00", Some("01:00")),
            ("16:30:00Z", Some("16:30")),
            ("16:30", Some("16:30")),
            ("00:00:00", Some("00:00")),
            ("02:00:00+08:00", Some("18:00")),
            ("20:30-05:00", Some("01:30")),
            ("01:00:30+00:00", None),
            ("25:00", None),
            ("00", None),
            ("", None),
        ];
        for (text, expected) in table {
            let read = minute(text).map(|time| time.format(HOUR_AND_MINUTE).unwrap());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn runs_go_through_midnight() {
        let hours = |from: &str, to: &str| {
            DailyHours::new(minute(from).unwrap(), minute(to).unwrap()).unwrap()
        };
        let night = hours("22:00", "02:00");
        let found = runs(|time| night.contains(time));
        assert_eq!(found, [(Some(hours("02:00", "22:00")), false), (Some(night), true)]);
        assert_eq!(runs(|_| 7), [(None, 7)]);
    }

    #[test]
    fn the_peak_is_what_is_off_peak_not_each_day() {
        let peak = |windows: &str| {
            let text = format!(r#"{{"windows": {windows}}}"#);
            let peak = peak(&serde_json::from_str(&text).unwrap())?;
            let hours: Vec<_> = peak.hours.iter().map(ToString::to_string).collect();
            Some((hours.join(", "), peak.not_on_all_days))
        };
        let some = |hours: &str, not_on_all_days| Some((hours.to_owned(), not_on_all_days));
        let table = [
            (r#"[{"hours_utc": "16:30-00:30"}]"#, some("00:30 to 16:30", false)),
            (
                r#"[{"hours_utc": ["00:00-01:00", "04:00-06:00", "10:00-00:00"], "weekdays": [1, 2, 3, 4, 5]},
                    {"hours_utc": "00:00-00:00", "weekdays": [6, 7]}]"#,
                some("01:00 to 04:00, 06:00 to 10:00", true),
            ),
            (r#"[{"hours_utc": "00:00-00:00", "weekdays": [6, 7]}]"#, None),
            (r#"[{"hours_utc": "00:00-00:00"}]"#, None),
            (r#"[{"hours_utc": "at night"}]"#, None),
            (r"[]", None),
        ];
        for (windows, expected) in table {
            assert_eq!(peak(windows), expected, "{windows}");
        }
    }
}
