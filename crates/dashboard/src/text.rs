//! Figures, times and words as a page shows them. A figure is rounded only where its function says so.

use serde::Serialize;
use tollgate_domain::Timestamp;
use tollgate_pricing::Amount;

const UNITS_PER_USD: u128 = 10_000_000_000;
const UNITS_PER_CENT: u128 = UNITS_PER_USD / 100;

/// An amount, exact, without the zeros at its end beyond two decimals.
pub(crate) fn money(amount: Amount) -> String {
    money_of(i128::from(amount.units()))
}

/// As [`money`], of a sum that may be larger than any amount.
pub(crate) fn money_of(units: i128) -> String {
    let (usd, rest) = (units.unsigned_abs() / UNITS_PER_USD, units.unsigned_abs() % UNITS_PER_USD);
    let decimals = format!("{rest:010}");
    let decimals = decimals.trim_end_matches('0');
    format!("{}${}.{decimals:0<2}", sign(units), grouped(usd))
}

/// An amount for a headline, which has the exact amount beside it. It is rounded to cents, and below a dollar
/// to hundredths of a cent.
pub(crate) fn headline(units: i128) -> String {
    let size = units.unsigned_abs();
    let (unit, decimals) = match size {
        0 => (UNITS_PER_CENT, 2),
        1..UNITS_PER_USD => (UNITS_PER_CENT / 100, 4),
        _ => (UNITS_PER_CENT, 2),
    };
    let rounded = (size + unit / 2) / unit;
    let per_usd = UNITS_PER_USD / unit;
    let sign = if rounded == 0 { "" } else { sign(units) };
    format!("{sign}${}.{:0decimals$}", grouped(rounded / per_usd), rounded % per_usd)
}

const fn sign(units: i128) -> &'static str {
    if units < 0 { "−" } else { "" }
}

/// A number with separators between the thousands.
pub(crate) fn count(number: i128) -> String {
    format!("{}{}", sign(number), grouped(number.unsigned_abs()))
}

fn grouped(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with about three digits, for axes and tiles.
pub(crate) fn short(number: i128) -> String {
    let size = number.unsigned_abs();
    let scales = [(1_000_000_000_000, "T"), (1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k")];
    let scale = scales.into_iter().find(|(scale, _)| size >= *scale);
    let Some((scale, name)) = scale else { return count(number) };
    let tenths = size / (scale / 10);
    let rest = tenths % 10;
    match tenths >= 1_000 || rest == 0 {
        true => format!("{}{}{name}", sign(number), grouped(tenths / 10)),
        false => format!("{}{}.{rest}{name}", sign(number), tenths / 10),
    }
}

/// A part of a whole, in percent with one decimal; a dash if the whole is 0.
pub(crate) fn percent(part: i128, whole: i128) -> String {
    match whole {
        ..=0 => "–".to_owned(),
        _ => {
            let tenths = (part.max(0) * 1_000 + whole / 2) / whole;
            format!("{}.{}%", tenths / 10, tenths % 10)
        }
    }
}

/// The filled part of a bar, in thousandths.
pub(crate) fn thousandths(part: i128, whole: i128) -> i128 {
    if whole <= 0 { 0 } else { (part.max(0) * 1_000 / whole).min(1_000) }
}

/// A duration in milliseconds, in a readable unit.
pub(crate) fn duration(millis: i64) -> String {
    match millis {
        ..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        _ => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1_000),
    }
}

/// A time to the second, in UTC.
pub(crate) fn time(at: Timestamp) -> String {
    let time = at.time();
    format!("{} {:02}:{:02}:{:02}", at.date(), time.hour(), time.minute(), time.second())
}

/// A day in UTC.
pub(crate) fn day(at: Timestamp) -> String {
    at.date().to_string()
}

/// A day in the short form of an axis.
pub(crate) fn short_day(at: Timestamp) -> String {
    let (date, month) = (at.date(), at.date().month().to_string());
    format!("{} {}", date.day(), month.chars().take(3).collect::<String>())
}

/// An hour in the short form of an axis.
pub(crate) fn hour(at: Timestamp) -> String {
    format!("{:02}:00", at.time().hour())
}

/// The word of an enum, with spaces in place of underscores.
pub(crate) fn word(value: &impl Serialize) -> String {
    let word = serde_json::to_value(value).unwrap_or_default();
    word.as_str().unwrap_or_default().replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_exactly_and_headlines_are_rounded() {
        for (units, exact, rounded) in [
            (0, "$0.00", "$0.00"),
            (10_000_000_000, "$1.00", "$1.00"),
            (170_000_000, "$0.017", "$0.0170"),
            (-12_345_678_901_234, "−$1,234.5678901234", "−$1,234.57"),
            (1, "$0.0000000001", "$0.0000"),
            (-1, "−$0.0000000001", "$0.0000"),
            (9_999_999_999, "$0.9999999999", "$1.0000"),
        ] {
            assert_eq!((money_of(units).as_str(), headline(units).as_str()), (exact, rounded));
        }
    }

    #[test]
    fn numbers_are_short_where_there_is_no_room() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1k"),
            (1_250, "1.2k"),
            (123_456, "123k"),
            (2_500_000, "2.5M"),
            (-7_000_000_000, "−7B"),
        ];
        for (number, text) in cases {
            assert_eq!(short(number), text);
        }
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!((percent(1, 3), percent(0, 0)), ("33.3%".to_owned(), "–".to_owned()));
        assert_eq!(duration(61_500), "1 min 1 s");
    }
}
