use serde::{Deserialize, Serialize};
use tollgate_pricing::{
    Amount, AppliedPrices, BaseCost, PriceSource, Quote, Rate, RateType, TokenBasis, Usage,
};

use crate::credit::CreditHold;
use crate::id::{ConnectionId, MerchantId, MeterId, RequestId, SpendKeyId, WalletId};
use crate::metadata::Metadata;
use crate::spend_key::Enforcement;
use crate::time::Timestamp;

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestStatus {
    /// Admitted and not settled yet.
    Pending,
    /// Answered and metered.
    Completed,
    /// Failed, before or after it reached the provider.
    Error,
}

/// Whose provider key was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKeyType {
    /// The operator's.
    #[default]
    Managed,
    /// The caller's own.
    Unmanaged,
}

impl ProviderKeyType {
    fn is_managed(&self) -> bool {
        *self == Self::Managed
    }
}

const fn yes() -> bool {
    true
}

/// How a usage came to be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageSource {
    /// The provider stated it.
    Reported,
    /// The answer was cut: what passed until then.
    Partial,
    /// The provider did not state it, or not readably.
    Estimated,
    /// There was none.
    #[default]
    None,
}

/// What is forwarded where, as it goes into the record. Serialized without what most calls have in common: it is
/// stored for every call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forwarded {
    /// The provider's name.
    pub provider: String,
    /// Method and URL, without secrets.
    pub endpoint: String,
    /// Whether the endpoint is one that is billed for; model lists and the like are not.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub metered: bool,
    /// Whose provider key is used.
    #[serde(default, skip_serializing_if = "ProviderKeyType::is_managed")]
    pub provider_key_type: ProviderKeyType,
    /// The model that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Free pairs of the caller.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// What the input alone is estimated at, should no answer ever tell.
    #[serde(default = "PricedUsage::nothing", skip_serializing_if = "PricedUsage::is_nothing")]
    pub input_estimate: PricedUsage,
}

/// A usage, how it came to be known, and what the provider charges for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PricedUsage {
    /// What was used.
    pub usage: Usage,
    /// How that is known.
    pub usage_source: UsageSource,
    /// What it costs at the provider.
    pub base: BaseCost,
    /// Where the prices came from.
    pub price_source: PriceSource,
}

impl PricedUsage {
    /// Nothing used, nothing to price.
    pub fn nothing() -> Self {
        Self {
            usage: Usage::default(),
            usage_source: UsageSource::None,
            base: BaseCost::default(),
            price_source: PriceSource::Catalog,
        }
    }

    /// Whether it is [nothing](PricedUsage::nothing).
    pub fn is_nothing(&self) -> bool {
        *self == Self::nothing()
    }
}

/// A call from its admission on: what is stored before a byte goes to the provider, and all that
/// is needed to end it, by whoever ends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRecord {
    /// The call.
    pub request_id: RequestId,
    /// Whose call it is.
    pub merchant_id: MerchantId,
    /// The merchant's own id of it, if it was reported and not forwarded.
    pub reference_id: Option<String>,
    /// The customer who made it.
    pub connection_id: Option<ConnectionId>,
    /// The spend key it was made with.
    pub spend_key_id: Option<SpendKeyId>,
    /// The wallet of the request.
    pub wallet_id: Option<WalletId>,
    /// The merchant's own wallet.
    pub merchant_wallet_id: WalletId,
    /// The meter that prices it and the version it had at admission.
    pub meter: Option<MeterVersion>,
    /// Whether the credential asked not to bill the customer.
    pub disable_billing: bool,
    /// What is forwarded where.
    pub forwarded: Forwarded,
    /// What is held on the spend key, whoever pays.
    pub spend_hold: Amount,
    /// What is held on the balance of the request's wallet.
    pub wallet_hold: Amount,
    /// What is reserved of that wallet's credit; none for a call that may not draw on it.
    pub credit_hold: Option<CreditHold>,
    /// What is held on the merchant's own wallet.
    pub merchant_hold: Amount,
    /// How its spend key keeps limits on money. Known to the process that admitted it, and not kept.
    #[serde(skip)]
    pub enforcement: Option<Enforcement>,
    /// When it was admitted.
    pub created_at: Timestamp,
}

impl PendingRecord {
    /// The call when it has ended: it holds nothing any more.
    #[must_use]
    pub fn without_holds(self) -> Self {
        let none =
            |hold: CreditHold| CreditHold { in_cycle: hold.in_cycle, ..CreditHold::default() };
        Self {
            spend_hold: Amount::ZERO,
            wallet_hold: Amount::ZERO,
            credit_hold: self.credit_hold.map(none),
            merchant_hold: Amount::ZERO,
            ..self
        }
    }
}

/// A meter as it was when a call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MeterVersion {
    /// The meter.
    pub meter_id: MeterId,
    /// Its version then.
    pub version: i32,
}

/// A call as it is shown: pending, or with what it used and cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The call.
    pub request_id: RequestId,
    /// Whose call it is.
    pub merchant_id: MerchantId,
    /// The merchant's own id of it, if it was reported and not forwarded.
    pub reference_id: Option<String>,
    /// The customer who made it.
    pub connection_id: Option<ConnectionId>,
    /// The spend key it was made with.
    pub spend_key_id: Option<SpendKeyId>,
    /// The meter it was priced with.
    pub meter_id: Option<MeterId>,
    /// Its number among the settled calls of its wallet, or else of the merchant's own: 1, 2, 3, … without gaps.
    /// Absent while it is pending.
    pub sequence: Option<u64>,
    /// Where it stands.
    pub status: RequestStatus,
    /// The provider's name.
    pub provider: String,
    /// Method and URL, without secrets.
    pub endpoint: String,
    /// Whose provider key was used.
    pub provider_key_type: ProviderKeyType,
    /// The model that served it; the one asked for while that is not known.
    pub model: Option<String>,
    /// The provider's id of its answer.
    pub response_id: Option<String>,
    /// HTTP status of the provider.
    pub provider_status: Option<u16>,
    /// The provider's time of its answer, or when the answer ended.
    pub timestamp: Option<Timestamp>,
    /// What was used, and what the provider charges for it.
    pub priced: PricedUsage,
    /// The prices that were applied.
    pub applied: Vec<AppliedPrices>,
    /// What it cost and who paid.
    pub quote: Quote,
    /// The operator's charge as a fraction of the fee; absent where that was not kept, or nothing was
    /// charged by it.
    pub service_charge_rate: Option<Rate>,
    /// How the fee was reckoned.
    pub rate_type: RateType,
    /// Which tokens the fee counted.
    pub token_basis: TokenBasis,
    /// Free pairs of the caller.
    pub metadata: Metadata,
    /// When it was admitted.
    pub created_at: Timestamp,
    /// When it was settled. Absent while it is pending, and where it was not kept yet.
    pub settled_at: Option<Timestamp>,
    /// Whether it was ended for a process that died, so that nothing is known of its end.
    pub swept: bool,
    /// Whether the provider claimed far more than the call could use.
    pub suspicious: bool,
}
