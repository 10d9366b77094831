//! Hours of the day in the notations of price lists.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::hours::{DAY, DailyHours, Minute};

/// A minute of the day in UTC, from `08:00:00+08:00` and its shorter forms.
///
/// `None` if it is no whole minute.
pub(super) fn minute(text: &str) -> Option<Minute> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (clock, east, offset) = match text.split_once(['+', '-']) {
        Some((clock, offset)) => (clock, text.contains('+'), offset.parse::<Minute>().ok()?),
        None => (text, true, Minute::new(0)),
    };
    let clock = clock.strip_suffix(":00").filter(|rest| rest.contains(':')).unwrap_or(clock);
    let (clock, offset) = (clock.parse::<Minute>().ok()?, offset.after_midnight());
    let shift = if east { DAY.saturating_sub(offset) } else { offset };
    Some(Minute::new(clock.after_midnight().saturating_add(shift)))
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
pub(super) struct PeakHours {
    /// The hours that are not off-peak on every day of the week.
    pub(super) hours: Vec<DailyHours>,
    /// Whether some of them are off-peak on some days.
    pub(super) not_on_all_days: bool,
}

/// The hours outside the windows of an `off_peak_pricing`.
///
/// `None` if the windows cannot be read, or if the whole day is alike.
pub(super) fn peak(keys: &BTreeMap<String, Box<RawValue>>) -> Option<PeakHours> {
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
            let hours = DailyHours::new(from.trim().parse().ok()?, to.trim().parse().ok()?);
            off_peak.push((hours, days.clone()));
        }
    }
    let is_off_peak = |minute: u16, day: u8| {
        off_peak.iter().any(|(hours, days)| {
            hours.is_none_or(|hours| hours.contains_minute(minute)) && days.contains(&day)
        })
    };
    let on_days = |minute: u16| (1..=7).filter(|&day| is_off_peak(minute, day)).count();
    let runs = DailyHours::runs(|minute| on_days(minute) == 7);
    // No hours if it is the same all day.
    runs.iter().any(|(hours, _)| hours.is_some()).then(|| PeakHours {
        hours: runs.iter().filter(|(_, off)| !off).filter_map(|(hours, _)| *hours).collect(),
        not_on_all_days: (0..DAY).any(|minute| (1..7).contains(&on_days(minute))),
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
            assert_eq!(minute(text).map(|one| one.to_string()).as_deref(), expected, "{text}");
        }
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
