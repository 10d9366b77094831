//! What a settled call would have cost at other prices, and what has to be moved so that its payers
//! stand as if it had. Pure: the store locks record and wallets, asks here, and writes what comes back.
//!
//! The record never changes. Everything is reckoned from it, and never from an earlier repricing, so
//! that going back to the prices it was priced with comes back to what it cost, exactly.

use tollgate_pricing::{
    Amount, BaseCost, Overflow, Part, Payer, PriceBook, PriceSource, Priced, RateType, Served,
};

use crate::record::{PendingRecord, ProviderKeyType, RequestRecord, RequestStatus};

/// What a call costs each of those who pay for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// The wallet of the request.
    pub wallet: Amount,
    /// The merchant's own wallet.
    pub merchant: Amount,
}

impl Shares {
    /// What a record says.
    pub const fn of(record: &RequestRecord) -> Self {
        Self { wallet: record.quote.total_wallet_cost, merchant: record.quote.total_merchant_cost }
    }

    /// The sum of both, side by side.
    ///
    /// # Errors
    /// [`Overflow`] when a share is beyond the range of an [`Amount`].
    pub fn plus(self, other: Self) -> Result<Self, Overflow> {
        Ok(Self {
            wallet: self.wallet.checked_add(other.wallet)?,
            merchant: self.merchant.checked_add(other.merchant)?,
        })
    }

    /// How much more they are than others.
    ///
    /// # Errors
    /// As [`Shares::plus`].
    pub fn minus(self, other: Self) -> Result<Self, Overflow> {
        Ok(Self {
            wallet: self.wallet.checked_sub(other.wallet)?,
            merchant: self.merchant.checked_sub(other.merchant)?,
        })
    }

    /// Whether nobody pays anything.
    pub const fn is_nothing(self) -> bool {
        self.wallet.is_zero() && self.merchant.is_zero()
    }
}

/// A call at other prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repriced {
    /// What each pays then.
    pub shares: Shares,
    /// Whether the service charge had to stay as it is: there was no fee to tell its rate from.
    pub service_charge_kept: bool,
}

/// Whether prices decide what the base of a record is: it is settled, something was used, and it was
/// not the provider that stated the cost.
pub fn is_priced_by_list(record: &RequestRecord) -> bool {
    let usage = &record.priced.usage;
    record.status != RequestStatus::Pending
        && record.priced.price_source != PriceSource::Provider
        && usage.provider_cost.is_none()
        && usage.quantities != tollgate_pricing::PerUnit::default()
}

/// Prices a record by `book`, at the prices of the moment at which it was admitted: its parts in its
/// tiers, as the prices that were applied tell. Of one without a price neither was kept: then it is
/// its model at the standard price.
///
/// # Errors
/// [`Overflow`] when the cost is beyond the range of an [`Amount`].
pub fn price_again(
    pending: &PendingRecord,
    record: &RequestRecord,
    book: &PriceBook,
) -> Result<Priced, Overflow> {
    let asked = pending.forwarded.model.as_deref();
    let models: Vec<&str> = record.model.as_deref().into_iter().chain(asked).collect();
    let parts: Vec<Part> =
        record.applied.iter().filter_map(|applied| applied.part.clone()).collect();
    book.price(&Served {
        provider: &record.provider,
        models: &models,
        tiers: record.applied.first().map_or(&[], |applied| &applied.tiers),
        on: record.created_at.date(),
        time: Some(record.created_at.time()),
        usage: &record.priced.usage,
        parts: &parts,
    })
}

/// What wallet and merchant pay of a record whose base is another: by its payers, the lines of its
/// fee and its service charge. Percentages follow the base, fixed fees stay.
///
/// # Errors
/// [`Overflow`] when a line or a share is beyond the range of an [`Amount`].
pub fn reprice(
    pending: &PendingRecord,
    record: &RequestRecord,
    base: BaseCost,
) -> Result<Repriced, Overflow> {
    let quote = &record.quote;
    let base = base.total()?;
    let fee_before = quote.fee.amount()?;
    let fee = match record.rate_type {
        RateType::Percentage => quote.fee.of_base(base)?.amount()?,
        RateType::Fixed => fee_before,
    };
    let charge = quote.service_charge.amount;
    let charge_now = match record.service_charge_rate {
        _ if fee == fee_before => Some(charge),
        Some(rate) => Some(rate.of(fee)?),
        None => fee.in_proportion(charge, fee_before)?,
    };
    // A fee there is only of a call that was delivered: then who pays it was settled at admission.
    let wallet_pays = pending.wallet_id.is_some() && !pending.disable_billing;
    let base_due = record.provider_key_type == ProviderKeyType::Managed;
    let parts = [
        (if base_due { base } else { Amount::ZERO }, quote.base_payer),
        (fee, if wallet_pays { Payer::Wallet } else { Payer::Merchant }),
        (charge_now.unwrap_or(charge), quote.service_charge.payer),
    ];
    let paid_by =
        |payer: Payer| Amount::sum(parts.iter().filter(|part| part.1 == payer).map(|part| part.0));
    Ok(Repriced {
        shares: Shares { wallet: paid_by(Payer::Wallet)?, merchant: paid_by(Payer::Merchant)? },
        service_charge_kept: charge_now.is_none(),
    })
}
