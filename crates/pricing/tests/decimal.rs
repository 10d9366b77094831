//! The bridges to other crates' decimals, for every input.

use std::str::FromStr;

use bigdecimal::BigDecimal;
use proptest::prelude::*;
use tollgate_pricing::{Amount, ParseAmountError, ParseRateError, Rate};

/// A rate of any number of digits.
fn rates() -> impl Strategy<Value = Rate> {
    (0_u128..10_u128.pow(36), 0_u32..=18).prop_map(|(digits, decimals)| {
        let digits = digits % 10_u128.pow(18 + decimals);
        Rate::from_parts(digits, decimals).unwrap_or_default()
    })
}

proptest! {
    #[test]
    fn amounts_and_rates_come_back_from_big_decimals(units: i64, rate in rates()) {
        let amount = Amount::from_units(units);
        prop_assert_eq!(BigDecimal::from(amount), BigDecimal::from_str(&amount.to_string()).unwrap());
        prop_assert_eq!(Amount::try_from(&BigDecimal::from(amount)), Ok(amount));
        prop_assert_eq!(BigDecimal::from(rate), BigDecimal::from_str(&rate.to_string()).unwrap());
        prop_assert_eq!(Rate::try_from(&BigDecimal::from(rate)), Ok(rate));
    }

    /// The bridge reads as the parser does.
    #[test]
    fn a_big_decimal_is_read_as_its_text(digits: i128, scale in -40_i64..60) {
        let number = BigDecimal::new(digits.into(), scale);
        let text = number.normalized().to_plain_string();
        prop_assert_eq!(Amount::try_from(&number).ok(), text.parse().ok());
        prop_assert_eq!(Rate::try_from(&number).ok(), text.parse().ok());
    }
}

#[test]
fn a_decimal_that_does_not_fit_is_an_error() {
    let number = |text: &str| BigDecimal::from_str(text).unwrap();
    let amount = |text: &str| Amount::try_from(&number(text));
    assert_eq!(amount("0.00000000001"), Err(ParseAmountError::TooPrecise));
    assert_eq!(amount("1e9"), Err(ParseAmountError::OutOfRange));
    assert_eq!(
        amount("1.50000000000000").map(|sum| sum.to_string()).as_deref(),
        Ok("1.5000000000")
    );
    let rate = |text: &str| Rate::try_from(&number(text));
    assert_eq!(rate("-1"), Err(ParseRateError::Malformed));
    assert_eq!(rate("1e18"), Err(ParseRateError::TooLong));
    assert_eq!(rate("1e-19"), Err(ParseRateError::TooLong));
    assert_eq!(rate("1e17").map(|rate| rate.to_string()).as_deref(), Ok("100000000000000000"));
    // No exponent takes long.
    for exponent in [i64::MAX, i64::MIN, 1 << 32, -(1 << 32), 999_999_999, -999_999_999] {
        let number = BigDecimal::new(10.into(), exponent);
        let expected = match exponent > 0 {
            true => ParseAmountError::TooPrecise,
            false => ParseAmountError::OutOfRange,
        };
        assert_eq!(Amount::try_from(&number), Err(expected), "{exponent}");
        assert_eq!(Rate::try_from(&number), Err(ParseRateError::TooLong), "{exponent}");
        assert_eq!(Amount::try_from(&BigDecimal::new(0.into(), exponent)), Ok(Amount::ZERO));
    }
}

#[cfg(feature = "rust_decimal")]
mod of_rust_decimal {
    use rust_decimal::Decimal;

    use super::*;

    proptest! {
        #[test]
        fn amounts_and_small_rates_come_back(units: i64, digits in 0_u128..1 << 96, decimals in 0_u32..=18) {
            let amount = Amount::from_units(units);
            prop_assert_eq!(Decimal::from(amount).to_string().parse(), Ok(amount));
            prop_assert_eq!(Amount::try_from(Decimal::from(amount)), Ok(amount));
            if let Some(rate) = Rate::from_parts(digits, decimals) {
                prop_assert_eq!(Rate::try_from(Decimal::try_from(rate).unwrap()), Ok(rate));
            }
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_an_error() {
        assert!(
            Decimal::try_from("999999999999999999.999999999999999999".parse::<Rate>().unwrap())
                .is_err()
        );
        assert_eq!(Amount::try_from(Decimal::MAX), Err(ParseAmountError::OutOfRange));
        assert_eq!(Rate::try_from(Decimal::NEGATIVE_ONE), Err(ParseRateError::Malformed));
    }
}
