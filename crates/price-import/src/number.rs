//! Exact numbers from price lists, in any notation.

use serde_json::value::RawValue;
use tollgate_pricing::Rate;

/// The significant digits from which a number is an artefact of binary arithmetic.
///
/// An example is `0.18000000000000002`. No price list states a price with that many digits.
const ARTEFACT_DIGITS: usize = 15;
/// The digits that are kept of such a number.
const KEPT_DIGITS: usize = 12;

/// The factor from a number in a price list to a price of this crate.
#[derive(Clone, Copy)]
pub(crate) struct ScaleFactor {
    /// The power of ten to multiply by.
    pub(crate) power: i32,
    /// The number to divide by.
    pub(crate) divisor: u128,
}

impl ScaleFactor {
    /// No change.
    pub(crate) const ONE: Self = Self { power: 0, divisor: 1 };
    /// From a price of one to a price of a million.
    pub(crate) const MILLION: Self = Self { power: 6, divisor: 1 };
    /// From a price of a thousand to a price of one.
    pub(crate) const THOUSANDTH: Self = Self { power: -3, divisor: 1 };
    /// From a price of an hour to a price of a second.
    pub(crate) const PER_SECOND: Self = Self { power: 0, divisor: 3600 };
}

/// The number in `raw`, scaled and rounded half-even to 18 decimals. `None` for a negative number, no
/// number, or more than 18 digits before the point.
pub(crate) fn rate(raw: &RawValue, scale: ScaleFactor) -> Option<Rate> {
    parse(raw.get().trim_matches('"'), scale)
}

fn parse(text: &str, scale: ScaleFactor) -> Option<Rate> {
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => {
            (digits, exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?)
        }
        None => (text, 0_i32),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    if !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut mantissa: u128 = all.parse().ok()?;
    let mut power = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let significant = mantissa.checked_ilog10().map_or(0, |log| log.saturating_add(1));
    let significant = usize::try_from(significant).ok()?;
    if significant >= ARTEFACT_DIGITS && !mantissa.is_multiple_of(1_000) {
        let cut = u32::try_from(significant.saturating_sub(KEPT_DIGITS)).ok()?;
        mantissa = divide_half_even(mantissa, 10_u128.checked_pow(cut)?)?;
        power = power.checked_add(i32::try_from(cut).ok()?)?;
    }
    // In units of 10⁻¹⁸.
    let power = power.checked_add(scale.power)?.checked_add(18)?;
    let attos = match u32::try_from(power) {
        Ok(power) => {
            divide_half_even(mantissa.checked_mul(10_u128.checked_pow(power)?)?, scale.divisor)?
        }
        Err(_) => {
            let below = 10_u128.checked_pow(power.unsigned_abs())?;
            divide_half_even(mantissa, below.checked_mul(scale.divisor)?)?
        }
    };
    Rate::from_parts(attos, 18)
}

fn divide_half_even(number: u128, divisor: u128) -> Option<u128> {
    let quotient = number.checked_div(divisor)?;
    let twice = number.checked_rem(divisor)?.checked_mul(2)?;
    let up = twice > divisor || (twice == divisor && quotient % 2 == 1);
    quotient.checked_add(u128::from(up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_exactly_in_every_notation() {
        let table = [
            ("2.5", ScaleFactor::ONE, Some("2.5")),
            ("15", ScaleFactor::ONE, Some("15")),
            ("1.5e-07", ScaleFactor::MILLION, Some("0.15")),
            ("1E-6", ScaleFactor::MILLION, Some("1")),
            ("2e+1", ScaleFactor::ONE, Some("20")),
            ("0.0", ScaleFactor::MILLION, Some("0")),
            ("12", ScaleFactor::THOUSANDTH, Some("0.012")),
            ("0.36", ScaleFactor::PER_SECOND, Some("0.0001")),
            ("0.111", ScaleFactor::PER_SECOND, Some("0.000030833333333333")),
            ("0.18000000000000002", ScaleFactor::ONE, Some("0.18")),
            ("9.499999999999999e-07", ScaleFactor::MILLION, Some("0.95")),
            ("2.857142857142857e-07", ScaleFactor::MILLION, Some("0.285714285714")),
            ("-1", ScaleFactor::ONE, None),
            ("true", ScaleFactor::ONE, None),
            ("1e40", ScaleFactor::ONE, None),
            ("1e-60", ScaleFactor::ONE, None),
            ("", ScaleFactor::ONE, None),
            ("+1", ScaleFactor::ONE, None),
        ];
        for (text, scale, expected) in table {
            let read = parse(text, scale).map(|rate| rate.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }
}
