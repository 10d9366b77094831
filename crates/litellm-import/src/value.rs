//! Values of LiteLLM's columns.

use std::str::FromStr as _;

use bigdecimal::num_bigint::BigInt;
use bigdecimal::{BigDecimal, RoundingMode};
use tollgate_domain::{KeyHash, Timestamp};
use tollgate_pricing::Amount;

/// A floating-point amount as an exact one, rounded half to even. The digits are the fewest that mean the same number,
/// which are those that LiteLLM shows. One beyond the range of amounts is the nearest that there is.
pub(crate) fn amount(usd: f64) -> Amount {
    let Ok(exact) = BigDecimal::from_str(&usd.to_string()) else { return Amount::ZERO };
    let rounded = exact.with_scale_round(10, RoundingMode::HalfEven);
    let (units, _) = rounded.into_bigint_and_exponent();
    let units = units.clamp(BigInt::from(0), BigInt::from(i64::MAX));
    Amount::from_units(i64::try_from(units).unwrap_or(i64::MAX))
}

/// The SHA-256 of a key, from 64 hexadecimal digits.
pub(crate) fn hash(text: &str) -> Option<KeyHash> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut hash = KeyHash::default();
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// The instant of a column without a time zone, which is UTC, or with one.
pub(crate) fn instant(text: &str) -> Option<Timestamp> {
    let text = text.replace(' ', "T");
    text.parse().or_else(|_| format!("{text}Z").parse()).ok()
}
