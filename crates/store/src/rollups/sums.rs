//! The sums of calls, and the keys of the rows in which they are kept.

use std::ops::{AddAssign, Sub};

use serde::{Deserialize, Serialize};
use tollgate_domain::{MerchantId, RequestRecord, RequestStatus};

use crate::ids::{AnyId, Id};
use crate::rows::{HIGH, PartSums, RollupRow};

/// The sums of some calls. Amounts are in units of 10⁻¹⁰ USD, in a type that no sum overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "[i128; 7]", from = "[i128; 7]")]
pub struct RollupSums {
    /// The number of calls.
    pub requests: i128,
    /// Tokens sent and received.
    pub tokens: i128,
    /// The charges of the providers.
    pub usage_cost: i128,
    /// The fees of the meters.
    pub fee: i128,
    /// The service charges of the operator.
    pub service_charge: i128,
    /// The costs paid by the wallets of the calls.
    pub wallet_cost: i128,
    /// The costs paid by the merchant.
    pub merchant_cost: i128,
}

impl RollupSums {
    /// The sums of one ended call.
    pub fn of(record: &RequestRecord) -> Self {
        let (usage, quote) = (&record.priced.usage, &record.quote);
        let units = |amount: tollgate_pricing::Amount| i128::from(amount.units());
        Self {
            requests: 1,
            tokens: i128::from(usage.input_tokens().saturating_add(usage.output_tokens())),
            usage_cost: units(quote.base.total().unwrap_or_default()),
            fee: units(quote.fee.amount().unwrap_or_default()),
            service_charge: units(quote.service_charge.amount),
            wallet_cost: units(quote.total_wallet_cost),
            merchant_cost: units(quote.total_merchant_cost),
        }
    }

    /// The costs of the calls, of all payers.
    pub const fn request_cost(&self) -> i128 {
        self.wallet_cost + self.merchant_cost
    }

    pub(crate) const fn each(self) -> [i128; 7] {
        let Self { requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost } =
            self;
        [requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost]
    }

    const fn from_each(each: [i128; 7]) -> Self {
        let [requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost] = each;
        Self { requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost }
    }
}

impl From<RollupSums> for [i128; 7] {
    fn from(sums: RollupSums) -> Self {
        sums.each()
    }
}

impl From<[i128; 7]> for RollupSums {
    fn from(each: [i128; 7]) -> Self {
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

/// The keys of pairs that are not metadata, for the provider and model, and for failures. Metadata keys have no colon.
pub(crate) const MODEL: &str = ":model";
pub(crate) const STATUS: &str = ":status";
/// The value of the pair of failed calls.
pub(crate) const FAILED: &str = "error";
/// The longest model name that has a pair of its own. Clients choose the name, and it is part of an index.
const MODEL_BYTES: usize = 255;

/// The pairs of an ended call beside its metadata.
pub(crate) fn traits(record: &RequestRecord) -> impl Iterator<Item = (&'static str, String)> {
    let model = record.model.as_deref().unwrap_or_default();
    let has_name = model.len() <= MODEL_BYTES && !model.contains(char::is_control);
    let model = format!("{}/{}", record.provider, if has_name { model } else { "" });
    let failed = (record.status == RequestStatus::Error).then(|| (STATUS, FAILED.to_owned()));
    [Some((MODEL, model)), failed].into_iter().flatten()
}

/// The quarter hours that a wide row covers. Long ranges are then few rows, and a day that does not begin with a wide
/// row has at most 11 narrow rows at each end.
pub(crate) const WIDE: i32 = 12;
pub(crate) const NARROW: i32 = 1;

/// The number of the quarter hour since 1970 of an instant in microseconds.
pub(crate) const fn slot(created_at: i64) -> i64 {
    created_at.div_euclid(15 * 60 * 1_000_000)
}

impl From<&RollupRow> for RollupSums {
    fn from(row: &RollupRow) -> Self {
        Self::from_each(
            [
                row.requests,
                row.tokens,
                row.usage_cost,
                row.fee,
                row.service_charge,
                row.wallet_cost,
                row.merchant_cost,
            ]
            .map(i128::from),
        )
    }
}

impl From<&PartSums> for RollupSums {
    fn from(sums: &PartSums) -> Self {
        let joined = |low: i64, high: i64| i128::from(low) + i128::from(high) * i128::from(HIGH);
        Self {
            requests: i128::from(sums.requests),
            tokens: joined(sums.tokens, sums.tokens_high),
            usage_cost: joined(sums.usage_cost, sums.usage_cost_high),
            fee: joined(sums.fee, sums.fee_high),
            service_charge: joined(sums.service_charge, sums.service_charge_high),
            wallet_cost: joined(sums.wallet_cost, sums.wallet_cost_high),
            merchant_cost: joined(sums.merchant_cost, sums.merchant_cost_high),
        }
    }
}

/// The key of a row of the roll-ups: merchant, series, width, slot and meter.
pub(crate) type RollupKey = (Id<MerchantId>, Id<AnyId>, i32, i64, Id<AnyId>);

impl RollupRow {
    pub(crate) fn new(
        (merchant_id, series_id, width, slot, meter_id): RollupKey,
        sums: &RollupSums,
    ) -> Self {
        let within =
            |sum: i128| i64::try_from(sum).unwrap_or(if sum > 0 { i64::MAX } else { i64::MIN });
        let [requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost] =
            sums.each().map(within);
        Self {
            merchant_id,
            series_id,
            width,
            slot,
            meter_id,
            requests,
            tokens,
            usage_cost,
            fee,
            service_charge,
            wallet_cost,
            merchant_cost,
        }
    }
}
