//! Repricing: the cost of a settled call at other prices, and the amounts to move so that its
//! payers have paid that cost.
//!
//! Pure: the store locks record and wallets, calls this module and writes the result.
//!
//! A record never changes. Each repricing is computed from the record, and not from an earlier
//! repricing. A return to the first prices therefore gives exactly the first cost.

use crate::quote::Payer;
use tollgate_pricing::{
    Amount, BaseCost, CostBreakdown, Overflow, PerModelUsage, PriceBook, PriceSource, RateType,
    ServedCall,
};

use crate::record::{PendingRecord, ProviderKeyType, RequestRecord, RequestStatus};

/// The cost of a call for each payer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostShares {
    /// The part of the wallet of the request.
    pub wallet: Amount,
    /// The part of the merchant's own wallet.
    pub merchant: Amount,
}

impl CostShares {
    /// The shares of a record.
    pub const fn of(record: &RequestRecord) -> Self {
        Self { wallet: record.quote.total_wallet_cost, merchant: record.quote.total_merchant_cost }
    }

    /// The sum with `other`, share by share.
    ///
    /// # Errors
    /// [`Overflow`] when a share is beyond the range of an [`Amount`].
    pub fn plus(self, other: Self) -> Result<Self, Overflow> {
        Ok(Self {
            wallet: self.wallet.checked_add(other.wallet)?,
            merchant: self.merchant.checked_add(other.merchant)?,
        })
    }

    /// The difference to `other`, share by share.
    ///
    /// # Errors
    /// As [`CostShares::plus`].
    pub fn minus(self, other: Self) -> Result<Self, Overflow> {
        Ok(Self {
            wallet: self.wallet.checked_sub(other.wallet)?,
            merchant: self.merchant.checked_sub(other.merchant)?,
        })
    }

    /// Returns whether both shares are zero.
    pub const fn is_nothing(self) -> bool {
        self.wallet.is_zero() && self.merchant.is_zero()
    }
}

/// A call at other prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepricedCost {
    /// The cost for each payer at these prices.
    pub shares: CostShares,
    /// Whether the service charge was kept, because there is no fee from which its rate follows.
    pub service_charge_kept: bool,
}

/// Returns whether price lists decide the base cost of a record: it is settled, its usage is not
/// empty, and the provider did not state the cost. The answers of a batch are rounded one by one, and
/// their sum cannot be computed again from the record.
pub fn is_priced_by_list(record: &RequestRecord) -> bool {
    let usage = &record.priced.usage;
    record.status != RequestStatus::Pending
        && record.priced.price_source != PriceSource::Provider
        && usage.provider_cost.is_none()
        && record.lines.is_empty()
        && usage.quantities != tollgate_pricing::PerUnit::default()
}

/// Prices a record by `book`, at the prices of its admission. The applied prices name its parts and
/// tiers. A record without applied prices is priced by its model, at the standard price.
///
/// # Errors
/// [`Overflow`] when the cost is beyond the range of an [`Amount`].
pub fn price_again(
    pending: &PendingRecord,
    record: &RequestRecord,
    book: &PriceBook,
) -> Result<CostBreakdown, Overflow> {
    let asked = pending.forwarded.model.as_deref();
    let models: Vec<&str> = record.model.as_deref().into_iter().chain(asked).collect();
    let parts: Vec<PerModelUsage> =
        record.applied.iter().filter_map(|applied| applied.part.clone()).collect();
    book.price(&ServedCall {
        provider: &record.provider,
        models: &models,
        tiers: record.applied.first().map_or(&[], |applied| &applied.tiers),
        on: record.created_at.date(),
        time: Some(record.created_at.time()),
        usage: &record.priced.usage,
        parts: &parts,
    })
}

/// Computes the cost for wallet and merchant at another base cost, by the record's payers, fee
/// lines and service charge. Percentages follow the base cost; fixed fees stay.
///
/// # Errors
/// [`Overflow`] when a line or a share is beyond the range of an [`Amount`].
pub fn reprice(
    pending: &PendingRecord,
    record: &RequestRecord,
    base: BaseCost,
) -> Result<RepricedCost, Overflow> {
    let quote = &record.quote;
    let base = base.total()?;
    let fee_before = quote.fee.amount()?;
    let fee = match record.rate_type {
        RateType::Percentage => quote.fee.recalculate_for(base)?.amount()?,
        RateType::Fixed => fee_before,
    };
    let charge = quote.service_charge.amount;
    let charge_now = match record.service_charge_rate {
        _ if fee == fee_before => Some(charge),
        Some(rate) => Some(rate.of(fee)?),
        None => fee.in_proportion(charge, fee_before)?,
    };
    // Only a delivered call has a fee. Its payer was decided at admission.
    let wallet_pays = pending.wallet_id.is_some() && !pending.disable_billing;
    let base_due = record.provider_key_type == ProviderKeyType::Managed;
    let parts = [
        (if base_due { base } else { Amount::ZERO }, quote.base_payer),
        (fee, if wallet_pays { Payer::Wallet } else { Payer::Merchant }),
        (charge_now.unwrap_or(charge), quote.service_charge.payer),
    ];
    let paid_by = |payer: Payer| {
        parts.iter().filter(|part| part.1 == payer).map(|part| part.0).sum::<Result<Amount, _>>()
    };
    Ok(RepricedCost {
        shares: CostShares { wallet: paid_by(Payer::Wallet)?, merchant: paid_by(Payer::Merchant)? },
        service_charge_kept: charge_now.is_none(),
    })
}
