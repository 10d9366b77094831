//! The sums of calls, and the keys of the rows in which they are kept.

use std::ops::{AddAssign, Sub};

use serde::{Deserialize, Serialize};
use tollgate_domain::{ProviderKeyType, RequestRecord, RequestStatus};

use crate::ids::{AnyId, Id};
use crate::rows::{PartSums, RollupRow, SUMS, SetRollupRow, joined_sum, with_sums};

/// The sums of some calls. Amounts are in units of 10⁻¹⁰ USD, in a type that no sum overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "[i128; SUMS]", from = "[i128; SUMS]")]
pub struct RollupSums {
    /// The number of calls.
    pub requests: i128,
    /// The number of failed calls among them.
    pub failed: i128,
    /// Tokens of input, of all kinds.
    pub input_tokens: i128,
    /// Tokens of output, of all kinds.
    pub output_tokens: i128,
    /// Input tokens that were read from a cache.
    pub cached_input_tokens: i128,
    /// Input tokens that were written to a cache.
    pub cache_write_tokens: i128,
    /// Output tokens of reasoning.
    pub reasoning_tokens: i128,
    /// Input tokens of audio.
    pub input_audio_tokens: i128,
    /// Output tokens of audio.
    pub output_audio_tokens: i128,
    /// The base costs, of managed and unmanaged calls.
    pub usage_cost: i128,
    /// The base costs of managed calls: the cost of the operator's provider keys.
    pub provider_cost: i128,
    /// The fees of the meters.
    pub fee: i128,
    /// The service charges of the operator.
    pub service_charge: i128,
    /// The costs paid by the wallets of the calls.
    pub wallet_cost: i128,
    /// The costs paid by the merchant.
    pub merchant_cost: i128,
    /// The wallet costs of calls of customers.
    pub revenue: i128,
}

macro_rules! sums_as_arrays {
    ($($sum:ident),*) => {
        impl RollupSums {
            pub(crate) const fn each(self) -> [i128; SUMS] {
                [$( self.$sum ),*]
            }

            const fn from_each([$( $sum ),*]: [i128; SUMS]) -> Self {
                Self { $( $sum ),* }
            }
        }
    };
}

with_sums!(sums_as_arrays);

impl RollupSums {
    /// The sums of one ended call.
    pub fn of(record: &RequestRecord) -> Self {
        let (usage, quote) = (&record.priced.usage, &record.quote);
        let counts = &usage.quantities;
        let units = |amount: tollgate_pricing::Amount| i128::from(amount.units());
        let usage_cost = units(quote.base.total().unwrap_or_default());
        let wallet_cost = units(quote.total_wallet_cost);
        let is_managed = record.provider_key_type == ProviderKeyType::Managed;
        Self {
            requests: 1,
            failed: i128::from(record.status == RequestStatus::Error),
            input_tokens: usage.input_tokens().into(),
            output_tokens: usage.output_tokens().into(),
            cached_input_tokens: usage.cached_input_tokens().into(),
            cache_write_tokens: usage.cache_write_tokens().into(),
            reasoning_tokens: counts.reasoning.into(),
            input_audio_tokens: counts.input_audio.into(),
            output_audio_tokens: counts.output_audio.into(),
            usage_cost,
            provider_cost: if is_managed { usage_cost } else { 0 },
            fee: units(quote.fee.amount().unwrap_or_default()),
            service_charge: units(quote.service_charge.amount),
            wallet_cost,
            merchant_cost: units(quote.total_merchant_cost),
            revenue: if record.connection_id.is_some() { wallet_cost } else { 0 },
        }
    }

    /// Tokens of input and output.
    pub const fn tokens(&self) -> i128 {
        self.input_tokens + self.output_tokens
    }

    /// The costs of the calls, of all payers.
    pub const fn request_cost(&self) -> i128 {
        self.wallet_cost + self.merchant_cost
    }

    /// The merchant's margin: revenue without the costs of providers and of the operator.
    pub const fn margin(&self) -> i128 {
        self.revenue - self.provider_cost - self.service_charge
    }
}

impl From<RollupSums> for [i128; SUMS] {
    fn from(sums: RollupSums) -> Self {
        sums.each()
    }
}

impl From<[i128; SUMS]> for RollupSums {
    fn from(each: [i128; SUMS]) -> Self {
        Self::from_each(each)
    }
}

impl AddAssign for RollupSums {
    fn add_assign(&mut self, more: Self) {
        let mut sums = self.each();
        for (sum, more) in sums.iter_mut().zip(more.each()) {
            *sum += more;
        }
        *self = Self::from_each(sums);
    }
}

impl Sub for RollupSums {
    type Output = Self;

    fn sub(self, less: Self) -> Self {
        let mut sums = self.each();
        for (sum, less) in sums.iter_mut().zip(less.each()) {
            *sum -= less;
        }
        Self::from_each(sums)
    }
}

/// The number of the quarter hour since 1970 of an instant in microseconds.
pub(crate) const fn slot(created_at: i64) -> i64 {
    created_at.div_euclid(15 * 60 * 1_000_000)
}

/// The slot of the row of a width that covers a quarter hour.
pub(crate) fn slot_of(width: i32, quarter: i64) -> i64 {
    quarter - quarter.rem_euclid(i64::from(width))
}

impl From<&RollupRow> for RollupSums {
    fn from(row: &RollupRow) -> Self {
        Self::from_each(row.sums().map(|sum| i128::from(*sum)))
    }
}

impl From<&SetRollupRow> for RollupSums {
    fn from(row: &SetRollupRow) -> Self {
        Self::from_each(row.sums().map(|sum| i128::from(*sum)))
    }
}

impl From<&PartSums> for RollupSums {
    fn from(part: &PartSums) -> Self {
        let joined = |(low, high)| joined_sum(low, high);
        Self::from_each(part.sums().map(joined))
    }
}

/// The key of a row of the roll-ups: series, width and slot.
pub(crate) type RollupKey = (Id<AnyId>, i32, i64);

/// The row of a key, or an addition to it.
pub(crate) fn to_row(&(series_id, width, slot): &RollupKey, sums: &RollupSums) -> RollupRow {
    let within =
        |sum: i128| i64::try_from(sum).unwrap_or(if sum > 0 { i64::MAX } else { i64::MIN });
    RollupRow::new(series_id, (width, slot), sums.each().map(within))
}
