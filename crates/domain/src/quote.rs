//! Quotes: the base cost, fee and service charge of a call, and their payers.

use serde::{Deserialize, Serialize};

use tollgate_pricing::{Amount, BaseCost, Fee, Meter, Overflow, Rate, Usage};

/// The payer of a part of the cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payer {
    /// The merchant's own account.
    Merchant,
    /// The wallet of the call.
    #[default]
    Wallet,
}

/// The fee model of a merchant's meter: the fee, and the payers of what the meter does not charge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeeModel {
    /// The units that are counted, and the fee for them.
    #[serde(flatten)]
    pub meter: Meter,
    /// The payer of the base cost.
    pub base_cost_payer: Payer,
    /// The payer of the service charge.
    pub service_charge_payer: Payer,
}

impl FeeModel {
    /// The model with one tier at its highest rate, for upper bounds.
    pub fn at_highest_rate(&self) -> Self {
        Self { meter: self.meter.at_highest_rate(), ..*self }
    }
}

impl From<Meter> for FeeModel {
    /// The fee model in which the wallet pays base cost and service charge.
    fn from(meter: Meter) -> Self {
        let (base_cost_payer, service_charge_payer) = (Payer::default(), Payer::default());
        Self { meter, base_cost_payer, service_charge_payer }
    }
}

/// The terms under which a call is priced.
#[derive(Clone, Copy, Debug)]
pub struct PricingTerms<'a> {
    /// The meter that prices the call, if any.
    pub meter: Option<&'a FeeModel>,
    /// The units counted under the meter before this call, as [`Meter::count`] counts.
    pub counter: u64,
    /// The service charge as a fraction of the fee: `"0.019"` is 1.9 %.
    pub service_charge_rate: Rate,
    /// Whether a wallet pays; without one the merchant pays everything.
    pub wallet_pays: bool,
    /// Whether the base cost is owed to the operator.
    ///
    /// It is not for a call with the merchant's own provider key.
    pub base_due: bool,
    /// Whether the meter charges: false for a call that the provider did not accept.
    pub fee_due: bool,
}

/// The operator's share of the fee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCharge {
    /// `service_charge_rate × fee`, rounded half-even once.
    pub amount: Amount,
    /// The payer of the charge.
    pub payer: Payer,
}

/// The base cost, fee and service charge of a call, and their payers.
///
/// Every total is the exact sum of its lines, and
/// `total_wallet_cost + total_merchant_cost = total_request_cost`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quote {
    /// The base cost, also if it is not owed to the operator.
    pub base: BaseCost,
    /// The payer of the base cost.
    pub base_payer: Payer,
    /// The fee of the meter: the merchant's income, paid by the wallet if there is one.
    pub fee: Fee,
    /// The service charge.
    pub service_charge: ServiceCharge,
    /// The base cost (if owed), fee and service charge.
    pub total_request_cost: Amount,
    /// The part that the wallet pays.
    pub total_wallet_cost: Amount,
    /// The part that the merchant pays.
    pub total_merchant_cost: Amount,
    /// The units that the call adds to the meter's counter.
    pub counted_units: u64,
}

impl Quote {
    /// A quote of zero, with the payers that `terms` name.
    pub fn free(terms: &PricingTerms<'_>) -> Self {
        let payer = |of_meter: fn(&FeeModel) -> Payer| match terms.wallet_pays {
            true => terms.meter.map_or(Payer::Wallet, of_meter),
            false => Payer::Merchant,
        };
        Self {
            base: BaseCost::default(),
            base_payer: payer(|meter| meter.base_cost_payer),
            fee: Fee::default(),
            service_charge: ServiceCharge {
                amount: Amount::ZERO,
                payer: payer(|meter| meter.service_charge_payer),
            },
            total_request_cost: Amount::ZERO,
            total_wallet_cost: Amount::ZERO,
            total_merchant_cost: Amount::ZERO,
            counted_units: 0,
        }
    }

    /// The quote of a call with a base cost of `base`.
    ///
    /// The fee is zero without a meter or if [`PricingTerms::fee_due`] is false. Each line of the fee, and the
    /// service charge, is rounded half-even once.
    ///
    /// # Errors
    /// [`Overflow`] when a line or a total is beyond the range of an [`Amount`].
    pub fn new(usage: &Usage, base: BaseCost, terms: &PricingTerms<'_>) -> Result<Self, Overflow> {
        let mut quote = Self { base, ..Self::free(terms) };
        let base_total = base.total()?;
        if let Some(FeeModel { meter, .. }) = terms.meter.filter(|_| terms.fee_due) {
            quote.fee = meter.fee(usage, terms.counter, base_total)?;
            quote.counted_units = meter.count(usage);
        }
        let fee = quote.fee.amount()?;
        quote.service_charge.amount = terms.service_charge_rate.of(fee)?;

        let parts = [
            (if terms.base_due { base_total } else { Amount::ZERO }, quote.base_payer),
            (fee, if terms.wallet_pays { Payer::Wallet } else { Payer::Merchant }),
            (quote.service_charge.amount, quote.service_charge.payer),
        ];
        let paid_by = |payer: Payer| {
            parts.iter().filter(|part| part.1 == payer).map(|part| part.0).sum::<Result<_, _>>()
        };
        quote.total_wallet_cost = paid_by(Payer::Wallet)?;
        quote.total_merchant_cost = paid_by(Payer::Merchant)?;
        quote.total_request_cost =
            quote.total_wallet_cost.checked_add(quote.total_merchant_cost)?;
        Ok(quote)
    }
}
