//! The bridges to decimals of other crates: `bigdecimal`, and `rust_decimal` with the feature of that name.

use bigdecimal::BigDecimal;
use bigdecimal::num_bigint::BigInt;

use crate::amount::{Amount, ParseAmountError};
use crate::rate::{ParseRateError, Rate};

/// The decimals of an amount.
const AMOUNT_DECIMALS: u32 = 10;

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
        let units = usd.with_scale(AMOUNT_DECIMALS.into());
        if units != *usd {
            return Err(ParseAmountError::TooPrecise);
        }
        let units = i64::try_from(units.into_bigint_and_exponent().0).ok();
        let in_range = units.filter(|units| *units != i64::MIN);
        in_range.map(Self::from_units).ok_or(ParseAmountError::OutOfRange)
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
        let (mantissa, decimals) = number.normalized().into_bigint_and_exponent();
        let (mantissa, decimals) = match u32::try_from(decimals) {
            Ok(decimals) => (mantissa, decimals),
            // A whole number with zeros at its end.
            Err(_) if decimals >= -36 => (number.with_scale(0).into_bigint_and_exponent().0, 0),
            Err(_) => return Err(ParseRateError::TooLong),
        };
        if mantissa.sign() == bigdecimal::num_bigint::Sign::Minus {
            return Err(ParseRateError::Malformed);
        }
        let mantissa = u128::try_from(mantissa).map_err(|_| ParseRateError::TooLong)?;
        Self::from_parts(mantissa, decimals).ok_or(ParseRateError::TooLong)
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
