//! Whether a call may go out. Pure: the store loads the facts, locks what money depends on, asks
//! here, and writes what comes back.

use tollgate_pricing::{Amount, BaseCost, Overflow, Quote, Rate, Terms, Usage};

use crate::connection::{Connection, ConnectionStatus};
use crate::id::{ConnectionId, MerchantId, RequestId, SecretKeyId, WalletId};
use crate::meter::MerchantMeter;
use crate::record::{Forwarded, MeterVersion, PendingRecord, ProviderKeyType};
use crate::time::Timestamp;
use crate::wallet::Wallet;

/// A call that asks to be admitted.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its id.
    pub request_id: RequestId,
    /// Whose call it is, by its key.
    pub merchant_id: MerchantId,
    /// The key it was made with.
    pub secret_key_id: SecretKeyId,
    /// The customer named in the credential.
    pub connection_id: Option<ConnectionId>,
    /// The meter named in the credential.
    pub meter_slug: Option<String>,
    /// Whether the credential asks not to bill the customer.
    pub disable_billing: bool,
    /// What is forwarded where.
    pub forwarded: Forwarded,
    /// The most the call can use.
    pub bound: CostBound,
    /// When it came in.
    pub created_at: Timestamp,
}

/// The most a call can use, and cost at the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostBound {
    /// The most it can use.
    pub usage: Usage,
    /// The most the provider can charge for it.
    pub base: BaseCost,
}

/// What the decision rests on, as it stands under the store's locks.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The merchant's own account; absent when the key is no longer valid.
    pub account: Option<Account<'a>>,
    /// The connection that the credential names, if it is this merchant's.
    pub connection: Option<&'a Connection>,
    /// The wallet of the connection.
    pub wallet: Option<&'a Wallet>,
    /// The meter that the credential names, if it is this merchant's.
    pub meter: Option<&'a MerchantMeter>,
}

/// A merchant's own account: without limit unless the operator set one.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// Its wallet.
    pub wallet_id: WalletId,
    /// The wallet as it stands, if it has a limit; one without guards nothing, and is a hot row
    /// that an admission leaves alone.
    pub limited: Option<&'a Wallet>,
}

/// Why a call may not go out, in the order in which it is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key is not, or no longer, valid.
    KeyInvalid,
    /// The credential's connection is unknown or another merchant's.
    ConnectionNotFound,
    /// The credential's meter is unknown or another merchant's.
    MeterNotFound,
    /// The connection was deleted.
    ConnectionDisabled,
    /// The call's upper bound does not fit an amount.
    BoundTooLarge,
    /// There is nothing left on the wallet that would pay.
    WalletEmpty {
        /// The wallet.
        wallet_id: WalletId,
        /// What could be drawn on; not above zero.
        available: Amount,
        /// How much of the wallet is held by calls in flight.
        held: Amount,
    },
}

/// Admits `call` or refuses it.
///
/// # Errors
/// The first [`Refusal`] in the order of that enum.
pub fn decide(
    call: &Call,
    facts: &Facts<'_>,
    service_charge_rate: Rate,
) -> Result<PendingRecord, Refusal> {
    let account = facts.account.ok_or(Refusal::KeyInvalid)?;
    if call.connection_id.is_some() && facts.connection.is_none() {
        return Err(Refusal::ConnectionNotFound);
    }
    if call.meter_slug.is_some() && facts.meter.is_none() {
        return Err(Refusal::MeterNotFound);
    }
    if facts.connection.is_some_and(|connection| connection.status == ConnectionStatus::Deleted) {
        return Err(Refusal::ConnectionDisabled);
    }

    let bound = bound(call, facts, service_charge_rate).map_err(|_| Refusal::BoundTooLarge)?;
    let wallet_hold = hold(facts.wallet, bound.total_wallet_cost)?;
    let merchant_hold = hold(account.limited, bound.total_merchant_cost)?;
    Ok(PendingRecord {
        request_id: call.request_id,
        merchant_id: call.merchant_id,
        connection_id: call.connection_id,
        spend_key_id: None,
        wallet_id: facts.wallet.map(|wallet| wallet.wallet_id),
        merchant_wallet_id: account.wallet_id,
        meter: facts
            .meter
            .map(|meter| MeterVersion { meter_id: meter.meter_id, version: meter.version }),
        disable_billing: call.disable_billing,
        forwarded: call.forwarded.clone(),
        wallet_hold,
        merchant_hold,
        created_at: call.created_at,
    })
}

/// What the call costs at most, and whom.
fn bound(call: &Call, facts: &Facts<'_>, service_charge_rate: Rate) -> Result<Quote, Overflow> {
    let dearest = facts.meter.map(|meter| meter.model.at_dearest_rate());
    let terms = Terms {
        meter: dearest.as_ref(),
        counter: 0,
        service_charge_rate,
        wallet_pays: facts.wallet.is_some() && !call.disable_billing,
        base_due: call.forwarded.provider_key_type == ProviderKeyType::Managed,
        fee_due: call.forwarded.metered,
    };
    Quote::new(&call.bound.usage, call.bound.base, &terms)
}

/// Holds `cost` on a wallet that has anything left; the last call's hold may cross the limit, so
/// that the overshoot is less than the cost of one call.
fn hold(wallet: Option<&Wallet>, cost: Amount) -> Result<Amount, Refusal> {
    match wallet {
        Some(wallet)
            if cost.is_positive()
                && wallet.overdraft_limit.is_some()
                && !wallet.available().is_positive() =>
        {
            Err(Refusal::WalletEmpty {
                wallet_id: wallet.wallet_id,
                available: wallet.available(),
                held: wallet.held,
            })
        }
        Some(_) => Ok(cost),
        None => Ok(Amount::ZERO),
    }
}
