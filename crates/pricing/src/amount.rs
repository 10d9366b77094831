//! Amounts of money: exact sums of US dollars.

use std::fmt;
use std::iter::Sum;
use std::ops::Neg;
use std::str::FromStr;

use crate::exact::{Overflow, round_half_even, units_of_ratio};

/// An exact sum of US dollars, in units of 10⁻¹⁰ USD.
///
/// The range is -922,337,203.6854775807 to 922,337,203.6854775807 USD. An amount is written as a
/// string with exactly ten decimals and read from a string with at most ten. More decimals are an
/// error; they are not rounded. With the feature `serde`, formats that are not human-readable store the
/// number of units.
///
/// ```
/// use tollgate_pricing::Amount;
///
/// let cost: Amount = "0.0014".parse()?;
/// assert_eq!(cost.to_string(), "0.0014000000");
/// assert_eq!(cost.units(), 14_000_000);
/// assert_eq!([cost, -cost].iter().sum::<Result<Amount, _>>(), Ok(Amount::ZERO));
/// # Ok::<(), tollgate_pricing::ParseAmountError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i64);

/// The number of decimals of an amount.
const DECIMALS: usize = 10;
/// The units in one US dollar.
const UNITS_PER_USD: i64 = 10_000_000_000;
const USD_UNITS: u64 = UNITS_PER_USD.unsigned_abs();
/// The units in one cent.
const UNITS_PER_CENT: u128 = 100_000_000;

impl Amount {
    /// Zero USD.
    pub const ZERO: Self = Self(0);
    /// The largest amount: 922,337,203.6854775807 USD.
    pub const MAX: Self = Self(i64::MAX);
    /// The smallest amount: -922,337,203.6854775807 USD.
    pub const MIN: Self = Self(-i64::MAX);
    /// One US dollar.
    pub const USD: Self = Self(UNITS_PER_USD);

    /// An amount of `units` × 10⁻¹⁰ USD.
    ///
    /// [`i64::MIN`] gives [`Amount::MIN`]: each amount has an opposite.
    pub const fn from_units(units: i64) -> Self {
        if units == i64::MIN { Self::MIN } else { Self(units) }
    }

    /// The amount of these units, if it is within the range.
    fn checked(units: Option<i64>) -> Result<Self, Overflow> {
        units.filter(|units| *units != i64::MIN).map(Self).ok_or(Overflow)
    }

    /// An amount of whole cents.
    ///
    /// # Errors
    /// [`Overflow`] outside the range of an amount.
    pub fn from_cents(cents: i64) -> Result<Self, Overflow> {
        i64::try_from(UNITS_PER_CENT)
            .ok()
            .and_then(|units| cents.checked_mul(units))
            .map(Self)
            .ok_or(Overflow)
    }

    /// The amount in units of 10⁻¹⁰ USD.
    pub const fn units(self) -> i64 {
        self.0
    }

    /// The sum of both amounts.
    ///
    /// # Errors
    /// [`Overflow`] outside the range of an amount.
    pub fn checked_add(self, other: Self) -> Result<Self, Overflow> {
        Self::checked(self.0.checked_add(other.0))
    }

    /// The difference, `self - other`.
    ///
    /// # Errors
    /// [`Overflow`] outside the range of an amount.
    pub fn checked_sub(self, other: Self) -> Result<Self, Overflow> {
        Self::checked(self.0.checked_sub(other.0))
    }

    /// The sum, clamped to the range of an amount. For bounds and displays, not for bookkeeping.
    pub fn saturating_add(self, other: Self) -> Self {
        Self::from_units(self.0.saturating_add(other.0))
    }

    /// The difference, clamped to the range of an amount. For bounds and displays, not for bookkeeping.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self::from_units(self.0.saturating_sub(other.0))
    }

    /// The amount in whole cents, rounded half-even.
    ///
    /// An invoice rounds once, its total. The lines of a call keep their ten decimals. `{:.2}` prints an amount
    /// with two decimals, rounded in the same way.
    ///
    /// ```
    /// use tollgate_pricing::Amount;
    ///
    /// let rounded = |text: &str| text.parse::<Amount>().unwrap().round_to_cents().unwrap().to_string();
    /// assert_eq!(rounded("1.2350000001"), "1.2400000000");
    /// assert_eq!(rounded("1.2250000000"), "1.2200000000");
    /// assert_eq!(rounded("-1.2350000000"), "-1.2400000000");
    /// assert_eq!(format!("{:.2}", "0.4567".parse::<Amount>().unwrap()), "0.46");
    /// ```
    ///
    /// # Errors
    /// [`Overflow`] outside the range of an amount.
    pub fn round_to_cents(self) -> Result<Self, Overflow> {
        let cents = round_half_even(self.0.unsigned_abs().into(), UNITS_PER_CENT);
        let units = u64::try_from(cents * UNITS_PER_CENT).ok();
        let units = units.and_then(|units| i64::try_from(units).ok()).map(Self).ok_or(Overflow)?;
        Ok(if self.0 < 0 { -units } else { units })
    }

    /// `self × part ÷ whole`, calculated exactly and rounded half-even once. Negative amounts count as
    /// zero; `None` if `whole` is zero or negative.
    ///
    /// # Errors
    /// [`Overflow`] outside the range of an amount.
    pub fn in_proportion(self, part: Self, whole: Self) -> Result<Option<Self>, Overflow> {
        let units = |amount: Self| u128::from(amount.0.max(0).unsigned_abs());
        match units(whole) {
            0 => Ok(None),
            whole => round_ratio(&[units(self), units(part)], &[whole]).map(Some),
        }
    }

    /// Whether the amount is exactly zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether the amount is below zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether the amount is above zero.
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }
}

impl Neg for Amount {
    type Output = Self;

    /// The amount with the opposite sign.
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

/// The exact sum of amounts; [`Overflow`] outside the range of an amount.
impl Sum<Amount> for Result<Amount, Overflow> {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Self {
        // 128 bits take more amounts than a memory has, so the order of the amounts does not matter.
        let units = amounts.fold(0_i128, |sum, amount| sum.saturating_add(amount.0.into()));
        Amount::checked(i64::try_from(units).ok())
    }
}

/// The exact sum of amounts; [`Overflow`] outside the range of an amount.
impl<'a> Sum<&'a Amount> for Result<Amount, Overflow> {
    fn sum<I: Iterator<Item = &'a Amount>>(amounts: I) -> Self {
        amounts.copied().sum()
    }
}

/// The longest text of an amount: a sign, nine digits, a point, ten digits.
const LONGEST: usize = 21;

impl Amount {
    /// The text of the amount, written into `buffer` from its end. Records of calls contain many
    /// amounts, and the formatting machinery takes many times as long.
    fn text(self, buffer: &mut [u8; LONGEST]) -> &str {
        let units = self.0.unsigned_abs();
        let (mut whole, mut fraction) = (units / USD_UNITS, units % USD_UNITS);
        let [front @ .., point, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10] = buffer;
        for place in [d10, d9, d8, d7, d6, d5, d4, d3, d2, d1] {
            *place = digit(fraction % 10);
            fraction /= 10;
        }
        *point = b'.';
        let mut front = front.iter_mut().rev();
        // At least one digit precedes the point.
        for place in front.by_ref() {
            *place = digit(whole % 10);
            whole /= 10;
            if whole == 0 {
                break;
            }
        }
        if self.0 < 0
            && let Some(place) = front.next()
        {
            *place = b'-';
        }
        let unused = front.len();
        buffer.get(unused..).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default()
    }

    /// Writes fewer than ten decimals.
    fn fmt_rounded(self, decimals: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = |exponent| (0..exponent).fold(1_u128, |power, _| power * 10);
        let (scale, dropped) = (power(decimals), power(DECIMALS - decimals));
        let rounded = round_half_even(self.0.unsigned_abs().into(), dropped);
        let (whole, fraction) = (rounded / scale, rounded % scale);
        let text = match decimals {
            0 => whole.to_string(),
            _ => format!("{whole}.{fraction:0decimals$}"),
        };
        f.pad_integral(self.0 >= 0 || rounded == 0, "", &text)
    }
}

/// The ASCII digit of a number below ten.
fn digit(number: u64) -> u8 {
    u8::try_from(number).map_or(b'?', |number| b'0' + number)
}

impl fmt::Display for Amount {
    /// Ten decimals, or as many as the format asks for, rounded half-even.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(decimals) = f.precision().filter(|decimals| *decimals < DECIMALS) {
            return self.fmt_rounded(decimals, f);
        }
        let mut buffer = [0; LONGEST];
        let text = self.text(&mut buffer);
        f.pad_integral(self.0 >= 0, "", text.strip_prefix('-').unwrap_or(text))
    }
}

/// The reason why a text is not an [`Amount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseAmountError {
    /// Anything but an optional minus, digits, and at most one point with digits on both sides.
    Malformed,
    /// More than ten decimals.
    TooPrecise,
    /// Below -922,337,203.6854775807 or above 922,337,203.6854775807 USD.
    OutOfRange,
}

impl fmt::Display for ParseAmountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "must be a decimal number in a string, such as \"12.50\"",
            Self::TooPrecise => "must have at most 10 decimals",
            Self::OutOfRange => "must be between -922337203.6854775807 and 922337203.6854775807",
        })
    }
}

impl std::error::Error for ParseAmountError {}

impl FromStr for Amount {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = match digits.split_once('.') {
            Some((_, "")) => return Err(ParseAmountError::Malformed),
            Some(parts) => parts,
            None => (digits, ""),
        };
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
            return Err(ParseAmountError::Malformed);
        }
        if fraction.len() > DECIMALS {
            return Err(ParseAmountError::TooPrecise);
        }
        let sign = if negative { -1 } else { 1 };
        whole
            .bytes()
            .chain(fraction.bytes())
            .chain(std::iter::repeat_n(b'0', DECIMALS.saturating_sub(fraction.len())))
            .try_fold(0_i64, |units, digit| {
                units.checked_mul(10)?.checked_add(i64::from(digit.saturating_sub(b'0')) * sign)
            })
            .filter(|units| *units != i64::MIN)
            .map(Self)
            .ok_or(ParseAmountError::OutOfRange)
    }
}

/// `Π numerators / Π denominators` in units of 10⁻¹⁰ USD, rounded half-even once.
pub(crate) fn round_ratio(numerators: &[u128], denominators: &[u128]) -> Result<Amount, Overflow> {
    units_of_ratio(numerators, denominators).map(Amount)
}

#[cfg(feature = "serde")]
mod serialized {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Amount, LONGEST};

    impl Serialize for Amount {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match serializer.is_human_readable() {
                true => serializer.serialize_str(self.text(&mut [0; LONGEST])),
                false => self.0.serialize(serializer),
            }
        }
    }

    impl<'de> Deserialize<'de> for Amount {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            match deserializer.is_human_readable() {
                true => {
                    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
                }
                false => i64::deserialize(deserializer).map(Self::from_units),
            }
        }
    }
}
