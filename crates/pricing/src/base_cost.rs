//! The base cost of a call: usage times unit prices.

use crate::amount::Amount;
use crate::amount::round_ratio;
use crate::exact::Overflow;
use crate::usage::{CostSide, PriceScale, Unit, UnitPrices, Usage};

/// The provider's cost of a call: input and output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BaseCost {
    /// The cost of the input units.
    pub input: Amount,
    /// The cost of the output units and of all others (tools, images, per-request prices).
    pub output: Amount,
}

/// The units of an exact sum in one unit of an [`Amount`].
///
/// An exact sum is in 10⁻²⁴ USD: 18 decimals of a price, 6 of "per million".
const SUM_UNITS_PER_AMOUNT_UNIT: u128 = 10_u128.pow(14);

impl BaseCost {
    /// The sum with another cost, side by side.
    ///
    /// # Errors
    /// [`Overflow`] when a side is beyond the range of an [`Amount`].
    pub fn checked_add(self, other: Self) -> Result<Self, Overflow> {
        Ok(Self {
            input: self.input.checked_add(other.input)?,
            output: self.output.checked_add(other.output)?,
        })
    }

    /// The cost of `usage`: each side is summed exactly and rounded half-even once.
    ///
    /// A unit without a price takes its parent's. A unit without either costs nothing, and
    /// [`BaseCost::unpriced_unit`] names it. If the provider reports its own total, that is the total:
    /// the input keeps its listed price (at most the total), and the output is the rest.
    ///
    /// # Errors
    /// [`Overflow`] when a side is beyond the range of an [`Amount`].
    pub fn of(usage: &Usage, prices: &UnitPrices) -> Result<Self, Overflow> {
        let input = side_cost(usage, prices, CostSide::Input)?;
        match usage.provider_cost {
            Some(total) => Ok(Self::from_total(input, total)),
            None => Ok(Self { input, output: side_cost(usage, prices, CostSide::Output)? }),
        }
    }

    /// The cost of a call whose total the provider reports.
    ///
    /// `input` is the listed cost of the input, or zero without a price; at most `total` of it counts, and a
    /// negative one as zero. The output is the rest.
    pub fn from_total(input: Amount, total: Amount) -> Self {
        let input = input.max(Amount::ZERO).min(total);
        Self { input, output: total.saturating_sub(input) }
    }

    /// `input + output`.
    ///
    /// # Errors
    /// [`Overflow`] when the sum is beyond the range of an [`Amount`].
    pub fn total(self) -> Result<Amount, Overflow> {
        self.input.checked_add(self.output)
    }

    /// The first unit that was used and has no price.
    ///
    /// [`Unit::Request`] is skipped: a price list without a price per request charges none.
    pub fn unpriced_unit(usage: &Usage, prices: &UnitPrices) -> Option<Unit> {
        Unit::ALL.iter().copied().find(|&unit| {
            unit != Unit::Request && *usage.quantities.get(unit) > 0 && prices.price(unit).is_none()
        })
    }
}

fn side_cost(usage: &Usage, prices: &UnitPrices, side: CostSide) -> Result<Amount, Overflow> {
    let mut sum = 0_u128;
    for &unit in Unit::ALL.iter().filter(|unit| unit.side() == side) {
        let quantity = *usage.quantities.get(unit);
        if quantity == 0 {
            continue;
        }
        let Some(price) = prices.price(unit) else { continue };
        let per_price = match unit.scale() {
            PriceScale::PerMillion => 1,
            PriceScale::Each => 1_000_000,
        };
        // Every factor divides the exact value in 10⁻²⁴ USD, so a product beyond 128 bits is far beyond
        // the range of an amount.
        sum = u128::from(quantity)
            .checked_mul(price.attos())
            .and_then(|cost| cost.checked_mul(per_price))
            .and_then(|cost| cost.checked_add(sum))
            .ok_or(Overflow)?;
    }
    round_ratio(&[sum], &[SUM_UNITS_PER_AMOUNT_UNIT])
}
