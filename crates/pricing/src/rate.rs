use std::fmt;
use std::str::FromStr;

use bigdecimal::num_bigint::BigUint;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::amount::Amount;
use crate::exact::{Overflow, round_ratio};

/// An exact, non-negative decimal: a price per unit, a fee per unit, a percentage.
///
/// At most 18 digits before and 18 after the point, no exponent. Kept without trailing zeros, so
/// equal rates print alike.
///
/// ```
/// use tollgate_pricing::Rate;
///
/// let rate: Rate = "0.150".parse()?;
/// assert_eq!(rate.to_string(), "0.15");
/// # Ok::<(), tollgate_pricing::ParseRateError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The digits, without the point.
    mantissa: u128,
    /// How many of the digits stand after the point, 0 to 18.
    decimals: u32,
}

/// The most digits on either side of the point.
const MAX_DIGITS: usize = 18;

impl Rate {
    /// Nothing per unit.
    pub const ZERO: Self = Self { mantissa: 0, decimals: 0 };
    /// 18 digits on either side of the point.
    const LARGEST: Self = Self { mantissa: 10_u128.pow(36) - 1, decimals: 18 };

    /// Whether the rate is exactly nothing.
    pub const fn is_zero(self) -> bool {
        self.mantissa == 0
    }

    /// The number in millionths, if it has at most six decimals: seconds in microseconds.
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

    /// The product of two rates, rounded half-even to 18 decimals; the largest rate where it is
    /// larger.
    ///
    /// ```
    /// use tollgate_pricing::Rate;
    ///
    /// let (price, factor): (Rate, Rate) = ("2.5".parse()?, "1.1".parse()?);
    /// assert_eq!(price.times(factor).to_string(), "2.75");
    /// # Ok::<(), tollgate_pricing::ParseRateError>(())
    /// ```
    pub fn times(self, other: Self) -> Self {
        let decimals = self.decimals.saturating_add(other.decimals);
        match self.mantissa.checked_mul(other.mantissa) {
            Some(mantissa) if decimals <= 18 && mantissa < 10_u128.pow(18 + decimals) => {
                Self { mantissa, decimals }.without_trailing_zeros()
            }
            Some(mantissa) if decimals > 18 => {
                let scale = 10_u128.pow(decimals.saturating_sub(18));
                let (quotient, rest) = (mantissa / scale, mantissa % scale);
                let up = rest > scale / 2 || (rest == scale / 2 && quotient % 2 == 1);
                Self::from_attos(quotient.saturating_add(u128::from(up))).unwrap_or(Self::LARGEST)
            }
            _ => {
                let attos = BigUint::from(self.attos()) * BigUint::from(other.attos());
                let scale = BigUint::from(10_u128.pow(18));
                let (quotient, twice_rest) = (&attos / &scale, (&attos % &scale) * 2_u8);
                let up = twice_rest > scale || (twice_rest == scale && quotient.bit(0));
                let attos = u128::try_from(quotient + u8::from(up)).ok();
                attos.and_then(Self::from_attos).unwrap_or(Self::LARGEST)
            }
        }
    }

    /// A rate from a count of 10⁻¹⁸, if it has at most 18 digits before the point.
    pub(crate) fn from_attos(attos: u128) -> Option<Self> {
        (attos < 10_u128.pow(36))
            .then(|| Self { mantissa: attos, decimals: 18 }.without_trailing_zeros())
    }

    fn without_trailing_zeros(mut self) -> Self {
        while self.decimals > 0 && self.mantissa.is_multiple_of(10) {
            self.mantissa /= 10;
            self.decimals = self.decimals.saturating_sub(1);
        }
        self
    }

    /// This fraction of an amount that is not negative, rounded half-even once.
    ///
    /// # Errors
    /// [`Overflow`] when the result is beyond the range of an [`Amount`].
    pub fn of(self, amount: Amount) -> Result<Amount, Overflow> {
        let (rate, scale) = self.fraction();
        round_ratio(&[u128::from(amount.units().max(0).unsigned_abs()), rate], &[scale])
    }

    /// The rate as a fraction: numerator and denominator.
    pub(crate) fn fraction(self) -> (u128, u128) {
        (self.mantissa, 10_u128.pow(self.decimals))
    }

    /// The rate in units of 10⁻¹⁸.
    pub(crate) fn attos(self) -> u128 {
        self.mantissa * 10_u128.pow(18_u32.saturating_sub(self.decimals))
    }
}

impl PartialOrd for Rate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        match self.decimals == other.decimals {
            true => self.mantissa.cmp(&other.mantissa),
            false => self.attos().cmp(&other.attos()),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mantissa, scale) = self.fraction();
        match self.decimals {
            0 => write!(f, "{mantissa}"),
            decimals => {
                let width = usize::try_from(decimals).unwrap_or(MAX_DIGITS);
                write!(f, "{}.{:0width$}", mantissa / scale, mantissa % scale)
            }
        }
    }
}

/// Why a text is not a [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseRateError {
    /// Not digits with at most one point between them; a sign or an exponent counts as malformed.
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
        Ok(Self { mantissa, decimals })
    }
}

impl From<u32> for Rate {
    fn from(whole: u32) -> Self {
        Self { mantissa: u128::from(whole), decimals: 0 }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
