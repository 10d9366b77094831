//! Counts as providers and clients write them.

/// Nothing that is counted in one call comes near; a larger figure is a mistake.
const MAX_COUNT: u64 = 1_000_000_000_000;

/// The whole number in a JSON value: an integer, a float without a fraction (`12.0`, `1.2e1`) or
/// either of them in a string. `None` when it is negative, fractional, beyond 10¹² or no number.
///
/// Read from the text, digit by digit: no float is involved, so nothing is rounded.
pub(crate) fn count(json: &str) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::count;

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
