//! The error of this crate, and that of a price list that does not parse.

use std::fmt;

use crate::amount::ParseAmountError;
use crate::exact::Overflow;
use crate::meter::TierErrors;
use crate::rate::ParseRateError;
use crate::usage::Unit;

/// The reason why a calculation of this crate has no result.
///
/// Functions that can fail for one reason return that reason. Each converts to this error, so `?` works in a function
/// that returns it.
///
/// ```
/// use tollgate_pricing::{Amount, Error};
///
/// fn invoice(lines: &[&str]) -> Result<Amount, Error> {
///     let mut total = Amount::ZERO;
///     for line in lines {
///         total = total.checked_add(line.parse()?)?;
///     }
///     Ok(total.round_to_cents()?)
/// }
/// assert_eq!(invoice(&["0.004", "0.003"]).map(|sum| sum.to_string()).as_deref(), Ok("0.0100000000"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A text is not a valid amount.
    Amount(ParseAmountError),
    /// A text is not a valid rate.
    Rate(ParseRateError),
    /// A result is beyond the range of an [`Amount`](crate::Amount).
    Overflow,
    /// The tiers of a meter are not valid.
    Tiers(TierErrors),
    /// A text is not a valid price list.
    #[cfg(feature = "catalog")]
    Catalog(CatalogError),
    /// The price list has no row for the model at that moment.
    UnknownModel,
    /// The row has no price for a unit that was used.
    UnpricedUnit(Unit),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(error) => write!(f, "an amount {error}"),
            Self::Rate(error) => write!(f, "a rate {error}"),
            Self::Overflow => Overflow.fmt(f),
            Self::Tiers(errors) => errors.fmt(f),
            #[cfg(feature = "catalog")]
            Self::Catalog(error) => error.fmt(f),
            Self::UnknownModel => f.write_str("the price list does not have the model"),
            Self::UnpricedUnit(unit) => {
                write!(f, "the price list has no price for {:?} of the model", unit.price_key())
            }
        }
    }
}

// No source: each text contains the text of its cause.
impl std::error::Error for Error {}

impl From<ParseAmountError> for Error {
    fn from(error: ParseAmountError) -> Self {
        Self::Amount(error)
    }
}

impl From<ParseRateError> for Error {
    fn from(error: ParseRateError) -> Self {
        Self::Rate(error)
    }
}

impl From<Overflow> for Error {
    fn from(Overflow: Overflow) -> Self {
        Self::Overflow
    }
}

impl From<TierErrors> for Error {
    fn from(errors: TierErrors) -> Self {
        Self::Tiers(errors)
    }
}

#[cfg(feature = "catalog")]
impl From<CatalogError> for Error {
    fn from(error: CatalogError) -> Self {
        Self::Catalog(error)
    }
}

/// The reason why a price list file does not parse.
#[cfg(feature = "catalog")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogError(pub(crate) String);

#[cfg(feature = "catalog")]
impl fmt::Display for CatalogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the price catalogue does not parse: {}", self.0)
    }
}

#[cfg(feature = "catalog")]
// No source: the text contains the text of the cause.
impl std::error::Error for CatalogError {}
