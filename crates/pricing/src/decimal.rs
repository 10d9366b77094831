//! The bridges to decimals of other crates: `bigdecimal`, and `rust_decimal` with the feature of that name.

use bigdecimal::BigDecimal;
use bigdecimal::num_bigint::{BigInt, Sign};

use crate::amount::{Amount, ParseAmountError};
use crate::rate::{ParseRateError, Rate};

/// The decimals of an amount.
const AMOUNT_DECIMALS: u32 = 10;
/// The most decimals of a rate.
const RATE_DECIMALS: u32 = 18;

/// The amount in US dollars, exactly.
impl From<Amount> for BigDecimal {
    fn from(amount: Amount) -> Self {
        Self::new(amount.units().into(), AMOUNT_DECIMALS.into())
    }
}

/// US dollars; more than ten decimals are an error.
impl TryFrom<&BigDecimal> for Amount {
    type Error = ParseAmountError;

    fn try_from(usd: &BigDecimal) -> Result<Self, Self::Error> {
        let units = scaled(usd, AMOUNT_DECIMALS).map_err(|error| match error {
            ScaleError::Fraction => ParseAmountError::TooPrecise,
            ScaleError::TooLarge => ParseAmountError::OutOfRange,
        })?;
        let units = i64::try_from(units).ok().filter(|units| *units != i64::MIN);
        units.map(Self::from_units).ok_or(ParseAmountError::OutOfRange)
    }
}

/// The most digits of a number that is read, zeros at its end included.
const MOST_DIGITS: u32 = 300;

/// The reason why a number has no whole multiple.
enum ScaleError {
    Fraction,
    TooLarge,
}

/// `number` × 10^`decimals`, if that is a whole number of a bounded size.
///
/// The work is bounded whatever the exponent is: no power of ten above 10^300 is calculated.
fn scaled(number: &BigDecimal, decimals: u32) -> Result<BigInt, ScaleError> {
    let (digits, scale) = number.as_bigint_and_exponent();
    let power = |exponent: u32| BigInt::from(10).pow(exponent);
    if digits.sign() == Sign::NoSign {
        return Ok(digits);
    }
    // A digit takes less than four bits.
    if digits.bits() > u64::from(MOST_DIGITS) * 4 {
        return Err(ScaleError::TooLarge);
    }
    let shift = i128::from(decimals) - i128::from(scale);
    let exponent = u32::try_from(shift.unsigned_abs()).ok().filter(|by| *by <= MOST_DIGITS);
    match (shift >= 0, exponent) {
        (true, Some(exponent)) => Ok(digits * power(exponent)),
        (true, None) => Err(ScaleError::TooLarge),
        (false, Some(exponent)) => {
            let divisor = power(exponent);
            match (&digits % &divisor).sign() {
                Sign::NoSign => Ok(digits / divisor),
                Sign::Minus | Sign::Plus => Err(ScaleError::Fraction),
            }
        }
        (false, None) => Err(ScaleError::Fraction),
    }
}

/// The rate, exactly.
impl From<Rate> for BigDecimal {
    fn from(rate: Rate) -> Self {
        Self::new(BigInt::from(rate.mantissa()), rate.decimals().into())
    }
}

/// A non-negative number with at most 18 digits before and after the point.
impl TryFrom<&BigDecimal> for Rate {
    type Error = ParseRateError;

    fn try_from(number: &BigDecimal) -> Result<Self, Self::Error> {
        if number.sign() == Sign::Minus {
            return Err(ParseRateError::Malformed);
        }
        let attos = scaled(number, RATE_DECIMALS).map_err(|_| ParseRateError::TooLong)?;
        let attos = u128::try_from(attos).map_err(|_| ParseRateError::TooLong)?;
        Self::from_parts(attos, RATE_DECIMALS).ok_or(ParseRateError::TooLong)
    }
}

#[cfg(feature = "rust_decimal")]
mod rust_decimal {
    use rust_decimal::Decimal;

    use super::{AMOUNT_DECIMALS, Amount, ParseAmountError, ParseRateError, Rate};

    /// The amount in US dollars, exactly.
    impl From<Amount> for Decimal {
        fn from(amount: Amount) -> Self {
            Self::new(amount.units(), AMOUNT_DECIMALS)
        }
    }

    /// US dollars; more than ten decimals are an error.
    impl TryFrom<Decimal> for Amount {
        type Error = ParseAmountError;

        fn try_from(usd: Decimal) -> Result<Self, Self::Error> {
            usd.normalize().to_string().parse()
        }
    }

    /// The rate, exactly; an error for more digits than a [`Decimal`] has.
    impl TryFrom<Rate> for Decimal {
        type Error = rust_decimal::Error;

        fn try_from(rate: Rate) -> Result<Self, Self::Error> {
            let mantissa = i128::try_from(rate.mantissa());
            let mantissa =
                mantissa.map_err(|_| rust_decimal::Error::ExceedsMaximumPossibleValue)?;
            Self::try_from_i128_with_scale(mantissa, rate.decimals())
        }
    }

    /// A non-negative number with at most 18 digits before and after the point.
    impl TryFrom<Decimal> for Rate {
        type Error = ParseRateError;

        fn try_from(number: Decimal) -> Result<Self, Self::Error> {
            number.normalize().to_string().parse()
        }
    }
}
