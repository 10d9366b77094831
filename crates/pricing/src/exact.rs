//! The rounding of products to whole units of money. All amounts are rounded here.

use std::fmt;

use bigdecimal::num_bigint::BigUint;

/// The error of a result outside the range of an [`Amount`](crate::Amount).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the amount is beyond 922337203.6854775807 USD")
    }
}

impl std::error::Error for Overflow {}

/// `Π numerators / Π denominators` in units of 10⁻¹⁰ USD, rounded half-even once.
///
/// The product is exact. Nearly every one fits 128 bits; the others are calculated with big integers,
/// with the same result. The denominators must not be zero.
pub(crate) fn units_of_ratio(numerators: &[u128], denominators: &[u128]) -> Result<i64, Overflow> {
    let product =
        |factors: &[u128]| factors.iter().try_fold(1_u128, |all, &one| all.checked_mul(one));
    let units = match (product(numerators), product(denominators)) {
        (Some(numerator), Some(denominator)) => {
            u64::try_from(round_half_even(numerator, denominator)).ok()
        }
        _ => {
            let product =
                |factors: &[u128]| factors.iter().map(|&one| BigUint::from(one)).product();
            let (numerator, denominator): (BigUint, BigUint) =
                (product(numerators), product(denominators));
            let (quotient, rest) = (&numerator / &denominator, &numerator % &denominator);
            let up = round_up(&rest, &(&denominator - &rest), quotient.bit(0));
            u64::try_from(quotient).ok().and_then(|units| units.checked_add(u64::from(up)))
        }
    };
    units.and_then(|units| i64::try_from(units).ok()).ok_or(Overflow)
}

/// The quotient, rounded half-even. The denominator must not be zero.
pub(crate) fn round_half_even(numerator: u128, denominator: u128) -> u128 {
    let (quotient, rest) = (numerator / denominator, numerator % denominator);
    // No overflow: a quotient of the largest number has no rest.
    quotient + u128::from(round_up(&rest, &(denominator - rest), quotient % 2 == 1))
}

/// Whether half-even rounding goes up: above half, or at exactly half from an odd quotient.
fn round_up<T: Ord>(below: &T, above: &T, odd: bool) -> bool {
    below > above || (below == above && odd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_go_to_the_even_neighbour() {
        for (numerator, expected) in [(5, 0), (15, 2), (25, 2), (35, 4), (14, 1), (16, 2)] {
            assert_eq!(units_of_ratio(&[numerator], &[10]), Ok(expected));
        }
    }

    proptest! {
        /// Scaling by a common factor forces the path of big integers. The result must not change.
        #[test]
        fn both_paths_agree(n in 0_u128..1 << 60, d in 1_u128..1 << 60) {
            let scale = 1_u128 << 100;
            prop_assert_eq!(units_of_ratio(&[n], &[d]), units_of_ratio(&[n, scale], &[d, scale]));
        }
    }
}
