//! Counts and amounts as providers and clients write them.

use tollgate_pricing::Amount;

/// The largest count that is accepted. No call comes near it; a larger figure is an error.
const MAX_COUNT: u64 = 1_000_000_000_000;

/// The whole number in a JSON value: an integer, a float without a fraction (`12.0`, `1.2e1`) or
/// either of them in a string. `None` when it is negative, fractional, beyond 10¹² or no number.
///
/// Read from the text, digit by digit: no float is involved, so nothing is rounded.
pub(crate) fn count(json: &str) -> Option<u64> {
    // The common form.
    if json.len() <= 12 && json.bytes().all(|b| b.is_ascii_digit()) {
        return json.parse().ok();
    }
    let text = json.trim();
    let text = match text.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?.trim(),
        None => text,
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let digits_only = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits_only(whole) || !digits_only(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let mut digits = format!("{whole}{fraction}");
    let shift = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    if digits.bytes().all(|b| b == b'0') {
        return Some(0);
    }
    for _ in 0..shift.clamp(0, 20) {
        digits.push('0');
    }
    for _ in 0..shift.min(0).unsigned_abs() {
        digits = digits.strip_suffix('0')?.to_owned();
    }
    digits.parse().ok().filter(|&count| shift <= 20 && count <= MAX_COUNT)
}

/// The amount of USD in a JSON number, or in one within a string, rounded half-even to ten decimals.
/// `None` when it is negative, too large or no number.
///
/// Providers write costs with an exponent, and with the noise of binary floats (`0.0021677500001`).
pub(crate) fn amount(json: &str) -> Option<Amount> {
    let units = scaled(json, 10)?;
    i64::try_from(units).ok().map(Amount::from_units)
}

/// The microseconds in a JSON number of seconds, or in one within a string, rounded half-even.
/// `None` when it is negative, too large or no number.
pub(crate) fn micros(json: &str) -> Option<u64> {
    scaled(json, 6).filter(|micros| *micros <= MAX_COUNT.saturating_mul(1_000))
}

/// A decimal number times 10 to the power `decimals`, rounded half-even.
fn scaled(json: &str, decimals: i32) -> Option<u64> {
    let text = json.trim().trim_matches('"').trim();
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let digits_only = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits_only(whole) || !digits_only(fraction) || mantissa.len() > 64 {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    // The number of digits before the point of the result.
    let shift = exponent.checked_add(decimals)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let kept = i32::try_from(digits.len()).ok()?.checked_add(shift)?;
    let Ok(kept) = usize::try_from(kept) else { return Some(0) };
    if digits.is_empty() {
        return Some(0);
    }
    if kept > 19 {
        return None;
    }
    let number =
        |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u64>().ok() };
    match digits.split_at_checked(kept) {
        None => {
            let zeros = u32::try_from(kept.checked_sub(digits.len())?).ok()?;
            number(digits)?.checked_mul(10_u64.checked_pow(zeros)?)
        }
        Some((whole, rest)) => {
            let whole = number(whole)?;
            let rest = rest.trim_end_matches('0');
            let up = match rest.as_bytes().first() {
                None | Some(b'0'..=b'4') => false,
                Some(b'5') if rest.len() == 1 => whole % 2 == 1,
                Some(_) => true,
            };
            whole.checked_add(u64::from(up))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{amount, count, micros};

    #[test]
    fn costs_are_rounded_half_even_to_ten_decimals() {
        let table = [
            ("0.00216775", Some(21_677_500)),
            ("7.75e-06", Some(77_500)),
            ("9.625000000000001e-05", Some(962_500)),
            ("\"1.5\"", Some(15_000_000_000)),
            ("0", Some(0)),
            ("0.0", Some(0)),
            ("1E2", Some(1_000_000_000_000)),
            ("0.00000000005", Some(0)),
            ("0.00000000015", Some(2)),
            ("0.00000000025", Some(2)),
            ("0.000000000251", Some(3)),
            ("4e-11", Some(0)),
            ("6e-11", Some(1)),
            ("1e-99", Some(0)),
            ("922337203.6854775807", Some(i64::MAX)),
            ("922337203.6854775808", None),
            ("1e99", None),
            ("1e999999999999", None),
            ("-1", None),
            ("null", None),
            ("", None),
            ("{}", None),
            (".5", None),
        ];
        for (text, expected) in table {
            assert_eq!(amount(text).map(|amount| amount.units()), expected, "{text}");
        }
        assert_eq!(micros("12.3456785"), Some(12_345_678));
        assert_eq!(micros("7"), Some(7_000_000));
    }

    #[test]
    fn whole_numbers_in_every_spelling() {
        let spellings = [
            ("0", 0),
            ("7", 7),
            ("12.0", 12),
            ("12.000", 12),
            ("\"12\"", 12),
            ("\" 12.0 \"", 12),
            ("1.2e1", 12),
            ("1E3", 1000),
            ("120e-1", 12),
            ("0.0", 0),
            ("0e99", 0),
            ("0012", 12),
            ("1000000000000", 1_000_000_000_000),
            ("1.5e+1", 15),
        ];
        for (text, expected) in spellings {
            assert_eq!(count(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn everything_else_is_unreadable() {
        for text in [
            "-1",
            "-0",
            "1.5",
            "12e-1",
            "1000000000001",
            "9007199254740993",
            "1e13",
            "1e99999",
            "18446744073709551616",
            "true",
            "null",
            "\"\"",
            "\"x\"",
            "\"12",
            "[]",
            "{}",
            "",
            "1e",
            ".5",
            "5.",
            "1e-999999999",
            "0x10",
            "+1",
            "1_000",
            "\"1\\u0030\"",
        ] {
            assert_eq!(count(text), None, "{text}");
        }
    }
}
