//! Rates: exact decimals for prices, fees and percentages.

use std::fmt;
use std::num::NonZeroU128;
use std::str::FromStr;

use bigdecimal::num_bigint::BigUint;

use crate::amount::Amount;
use crate::amount::round_ratio;
use crate::exact::{Overflow, round_half_even};

/// An exact, non-negative decimal: a price per unit, a fee per unit, a percentage.
///
/// It has at most 18 digits before and 18 after the point, and no exponent. Trailing zeros are
/// removed, so equal rates have equal texts.
///
/// ```
/// use tollgate_pricing::Rate;
///
/// let rate: Rate = "0.150".parse()?;
/// assert_eq!(rate.to_string(), "0.15");
/// # Ok::<(), tollgate_pricing::ParseRateError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
// The digits without the point, and above them the number of decimals plus one. The value is never
// zero, so `Option<Rate>` takes no more room; calls contain many of them.
pub struct Rate(NonZeroU128);

/// The most digits on either side of the point.
const MAX_DIGITS: usize = 18;
/// The longest rate: 18 digits, a point, 18 digits.
const LONGEST: usize = 2 * MAX_DIGITS + 1;
/// The bit at which the number of decimals begins: 36 digits take less than 120 bits.
const DIGIT_BITS: u32 = 120;
/// The value of one more decimal.
const DECIMAL: u128 = 1 << DIGIT_BITS;

impl Rate {
    /// The rate zero.
    pub const ZERO: Self = match NonZeroU128::new(DECIMAL) {
        Some(zero) => Self(zero),
        None => Self(NonZeroU128::MIN),
    };

    /// The rate `mantissa` × 10^-`decimals`.
    ///
    /// `None` with more than 18 digits before or after the point.
    ///
    /// ```
    /// use tollgate_pricing::Rate;
    ///
    /// assert_eq!(Rate::from_parts(150, 3).map(|rate| rate.to_string()).as_deref(), Some("0.15"));
    /// assert_eq!(Rate::from_parts(1, 19), None);
    /// ```
    pub fn from_parts(mantissa: u128, decimals: u32) -> Option<Self> {
        let most = u32::try_from(MAX_DIGITS).ok()?;
        let fits = decimals <= most && mantissa < 10_u128.pow(most + decimals);
        fits.then(|| Self::without_trailing_zeros(mantissa, decimals))
    }

    /// A rate of digits without the point, with this number of decimals.
    fn new(mantissa: u128, decimals: u32) -> Self {
        Self(Self::ZERO.0.saturating_add(DECIMAL * u128::from(decimals)) | mantissa)
    }

    /// The largest rate: 18 nines on either side of the point.
    fn largest() -> Self {
        Self::new(10_u128.pow(36) - 1, 18)
    }

    /// The digits without the point; `1.05` has 105.
    pub const fn mantissa(self) -> u128 {
        self.0.get() % DECIMAL
    }

    /// The number of digits after the point, 0 to 18.
    pub fn decimals(self) -> u32 {
        u32::try_from(self.0.get() >> DIGIT_BITS).map_or(0, |above| above.saturating_sub(1))
    }

    /// Whether the rate is exactly zero.
    pub const fn is_zero(self) -> bool {
        self.mantissa() == 0
    }

    /// The rate in millionths, such as seconds in microseconds.
    ///
    /// `None` if it has more than six decimals or is too large.
    ///
    /// ```
    /// use tollgate_pricing::Rate;
    ///
    /// let micros = |text: &str| text.parse().ok().and_then(Rate::micros);
    /// assert_eq!(micros("1.5"), Some(1_500_000));
    /// assert_eq!(micros("0.0000001"), None);
    /// ```
    pub fn micros(self) -> Option<u64> {
        const ATTOS_PER_MICRO: u128 = 10_u128.pow(12);
        let (micros, rest) = (self.attos() / ATTOS_PER_MICRO, self.attos() % ATTOS_PER_MICRO);
        u64::try_from(micros).ok().filter(|_| rest == 0)
    }

    /// The product of two rates, rounded half-even to 18 decimals.
    ///
    /// A product above the largest rate is the largest rate.
    ///
    /// ```
    /// use tollgate_pricing::Rate;
    ///
    /// let (price, factor): (Rate, Rate) = ("2.5".parse()?, "1.1".parse()?);
    /// assert_eq!(price.times(factor).to_string(), "2.75");
    /// # Ok::<(), tollgate_pricing::ParseRateError>(())
    /// ```
    pub fn times(self, other: Self) -> Self {
        let decimals = self.decimals().saturating_add(other.decimals());
        match self.mantissa().checked_mul(other.mantissa()) {
            Some(mantissa) if decimals <= 18 && mantissa < 10_u128.pow(18 + decimals) => {
                Self::without_trailing_zeros(mantissa, decimals)
            }
            Some(mantissa) if decimals > 18 => {
                let scale = 10_u128.pow(decimals.saturating_sub(18));
                Self::from_parts(round_half_even(mantissa, scale), 18).unwrap_or_else(Self::largest)
            }
            _ => {
                let attos = BigUint::from(self.attos()) * BigUint::from(other.attos());
                let scale = BigUint::from(10_u128.pow(18));
                let (quotient, twice_rest) = (&attos / &scale, (&attos % &scale) * 2_u8);
                let up = twice_rest > scale || (twice_rest == scale && quotient.bit(0));
                let attos = u128::try_from(quotient + u8::from(up)).ok();
                attos.and_then(|attos| Self::from_parts(attos, 18)).unwrap_or_else(Self::largest)
            }
        }
    }

    fn without_trailing_zeros(mut mantissa: u128, mut decimals: u32) -> Self {
        while decimals > 0 && mantissa.is_multiple_of(10) {
            mantissa /= 10;
            decimals = decimals.saturating_sub(1);
        }
        Self::new(mantissa, decimals)
    }

    /// This fraction of an amount, rounded half-even once. A negative amount counts as zero.
    ///
    /// The rate is a factor: of `"0.2"` it is a fifth. A percentage of a [`Tier`](crate::Tier) is `"20"` for the same.
    ///
    /// # Errors
    /// [`Overflow`] when the result is beyond the range of an [`Amount`].
    pub fn of(self, amount: Amount) -> Result<Amount, Overflow> {
        let (rate, scale) = self.fraction();
        round_ratio(&[u128::from(amount.units().max(0).unsigned_abs()), rate], &[scale])
    }

    /// The rate as numerator and denominator.
    pub(crate) fn fraction(self) -> (u128, u128) {
        (self.mantissa(), 10_u128.pow(self.decimals()))
    }

    /// The rate in units of 10⁻¹⁸.
    pub(crate) fn attos(self) -> u128 {
        self.mantissa() * 10_u128.pow(18_u32.saturating_sub(self.decimals()))
    }

    /// The text of the rate, written into `buffer` from its end, as for an [`Amount`].
    fn text(self, buffer: &mut [u8; LONGEST]) -> &str {
        let (mut digits, decimals) = (self.mantissa(), self.decimals());
        let mut written = 0;
        let mut places = buffer.iter_mut().rev();
        // At least one digit precedes the point.
        while digits > 0 || written <= decimals {
            if written == decimals
                && decimals > 0
                && let Some(place) = places.next()
            {
                *place = b'.';
            }
            // Nearly all rates are small, and the division of 64-bit numbers is much faster.
            let digit;
            (digits, digit) = match u64::try_from(digits) {
                Ok(few) => (u128::from(few / 10), u8::try_from(few % 10)),
                Err(_) => (digits / 10, u8::try_from(digits % 10)),
            };
            if let (Some(place), Ok(digit)) = (places.next(), digit) {
                *place = b'0' + digit;
            }
            written += 1;
        }
        let unused = places.len();
        buffer.get(unused..).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default()
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self::ZERO
    }
}

impl PartialOrd for Rate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        match self.decimals() == other.decimals() {
            true => self.mantissa().cmp(&other.mantissa()),
            false => self.attos().cmp(&other.attos()),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad_integral(true, "", self.text(&mut [0; LONGEST]))
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rate({self})")
    }
}

/// The reason why a text is not a [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseRateError {
    /// Anything but digits with at most one point between them, such as a sign or an exponent.
    Malformed,
    /// More than 18 digits on one side of the point.
    TooLong,
}

impl fmt::Display for ParseRateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => {
                "must be a non-negative decimal number in a string, such as \"0.15\", without \
                 exponent"
            }
            Self::TooLong => "must have at most 18 digits before and 18 after the point",
        })
    }
}

impl std::error::Error for ParseRateError {}

impl FromStr for Rate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (whole, fraction) = match text.split_once('.') {
            Some((_, "")) => return Err(ParseRateError::Malformed),
            Some(parts) => parts,
            None => (text, ""),
        };
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
            return Err(ParseRateError::Malformed);
        }
        if whole.len() > MAX_DIGITS || fraction.len() > MAX_DIGITS {
            return Err(ParseRateError::TooLong);
        }
        let fraction = fraction.trim_end_matches('0');
        let mantissa = whole
            .bytes()
            .chain(fraction.bytes())
            .fold(0, |all, digit| all * 10 + u128::from(digit.saturating_sub(b'0')));
        let decimals = u32::try_from(fraction.len()).map_err(|_| ParseRateError::TooLong)?;
        Ok(Self::new(mantissa, decimals))
    }
}

impl From<u32> for Rate {
    fn from(whole: u32) -> Self {
        Self::new(u128::from(whole), 0)
    }
}

#[cfg(feature = "serde")]
mod serialized {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{LONGEST, Rate};

    impl Serialize for Rate {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str(self.text(&mut [0; LONGEST]))
        }
    }

    impl<'de> Deserialize<'de> for Rate {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_may_be_absent_takes_sixteen_bytes() {
        assert_eq!(size_of::<Option<Rate>>(), 16);
    }

    #[test]
    fn rates_are_written_as_they_are_read_to_the_last_of_36_digits() {
        let largest = "999999999999999999.999999999999999999";
        for text in [
            "0",
            "1",
            "10",
            "0.1",
            "1.05",
            "0.000000000000000001",
            "18446744073709551.616",
            largest,
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(
                (rate.to_string().as_str(), format!("{rate:?}")),
                (text, format!("Rate({text})"))
            );
        }
        assert_eq!(Rate::largest().to_string(), largest);
        assert_eq!(Rate::default(), "0.000".parse().unwrap());
    }
}
