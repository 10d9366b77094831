//! Figures and words as a page shows them. A figure is rounded only where its function says so.

use serde::Serialize;
use tollgate_pricing::Amount;

const UNITS_PER_USD: u128 = 10_000_000_000;
const UNITS_PER_CENT: u128 = UNITS_PER_USD / 100;

/// An amount, exact, without the zeros at its end beyond two decimals.
pub(crate) fn money(amount: Amount) -> String {
    money_of(i128::from(amount.units()))
}

/// An exact amount as the text of a field, which an operation reads again.
pub(crate) fn field(amount: Amount) -> String {
    money(amount).replace(['$', ','], "").replace('−', "-")
}

/// As [`money`], of a sum that may be larger than any amount.
pub(crate) fn money_of(units: i128) -> String {
    let (usd, rest) = (units.unsigned_abs() / UNITS_PER_USD, units.unsigned_abs() % UNITS_PER_USD);
    let decimals = format!("{rest:010}");
    let decimals = decimals.trim_end_matches('0');
    format!("{}${}.{decimals:0<2}", sign(units), grouped(usd))
}

/// An amount for people, with the exact one to be shown beside it or on hover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) shown: String,
    pub(crate) exact: String,
}

impl Figure {
    pub(crate) fn of(units: i128) -> Self {
        Self { shown: rounded(units), exact: money_of(units) }
    }

    /// For a column of a table: decimals are filled up with spaces of digits, so that the points stand below each other.
    pub(crate) fn in_column(units: i128) -> Self {
        let Self { mut shown, exact } = Self::of(units);
        let decimals = shown.rsplit_once('.').map_or(0, |(_, decimals)| decimals.len());
        (decimals..COLUMN_DECIMALS).for_each(|_| shown.push('\u{2007}'));
        Self { shown, exact }
    }
}

/// The decimals for which columns have room.
const COLUMN_DECIMALS: usize = 4;

/// An amount with two decimals from a dollar on, four from a cent on, and two significant digits below.
fn rounded(units: i128) -> String {
    let size = units.unsigned_abs();
    let decimals: u32 = match size {
        0 | UNITS_PER_USD.. => 2,
        UNITS_PER_CENT..UNITS_PER_USD => 4,
        _ => 11_u32.saturating_sub(size.ilog10()).min(10),
    };
    let unit = UNITS_PER_USD / 10_u128.pow(decimals);
    let number = (size + unit / 2) / unit;
    let per_usd = UNITS_PER_USD / unit;
    let width = usize::try_from(decimals).unwrap_or_default();
    format!("{}${}.{:0width$}", sign(units), grouped(number / per_usd), number % per_usd)
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
            let tenths = (part.saturating_abs().saturating_mul(1_000) + whole / 2) / whole;
            let sign = if tenths > 0 { sign(part) } else { "" };
            format!("{sign}{}.{}%", tenths / 10, tenths % 10)
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

/// The word of an enum, with spaces in place of underscores.
pub(crate) fn word(value: &impl Serialize) -> String {
    let word = serde_json::to_value(value).unwrap_or_default();
    word.as_str().unwrap_or_default().replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_exactly_and_figures_are_rounded_by_their_size() {
        for (units, exact, shown) in [
            (0, "$0.00", "$0.00"),
            (10_000_000_000, "$1.00", "$1.00"),
            (170_000_000, "$0.017", "$0.0170"),
            (-12_345_678_901_234, "−$1,234.5678901234", "−$1,234.57"),
            (100_000_000, "$0.01", "$0.0100"),
            (12_345_678, "$0.0012345678", "$0.0012"),
            (1_234_567, "$0.0001234567", "$0.00012"),
            (123, "$0.0000000123", "$0.000000012"),
            (12, "$0.0000000012", "$0.0000000012"),
            (1, "$0.0000000001", "$0.0000000001"),
            (-1, "−$0.0000000001", "−$0.0000000001"),
            (9_999_999_999, "$0.9999999999", "$1.0000"),
            (i128::from(i64::MAX), "$922,337,203.6854775807", "$922,337,203.69"),
        ] {
            let figure = Figure::of(units);
            assert_eq!((figure.exact.as_str(), figure.shown.as_str()), (exact, shown));
        }
        assert_eq!(Figure::in_column(10_000_000_000).shown, "$1.00\u{2007}\u{2007}");
        assert_eq!(Figure::in_column(170_000_000).shown, "$0.0170");
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
        for (part, whole, text) in [
            (1, 3, "33.3%"),
            (0, 0, "–"),
            (-1, 4, "−25.0%"),
            (-1, 10_000, "0.0%"),
            (3, 2, "150.0%"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
        assert_eq!(duration(61_500), "1 min 1 s");
    }
}
