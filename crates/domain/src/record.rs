//! Records of calls, pending and settled.

use crate::quote::Quote;
use serde::{Deserialize, Serialize};
use tollgate_pricing::{
    Amount, AppliedPrices, BaseCost, Overflow, PerUnit, PriceSource, Rate, RateType, TokenBasis,
    Usage, UsageSource,
};

use crate::answer_report::AnswerReport;
use crate::call_details::CallDetails;
use crate::credit::CreditHold;
use crate::id::{
    BudgetId, ConnectionId, JobId, MerchantId, MeterId, RequestId, SocketId, SpendKeyId, WalletId,
};
use crate::metadata::Metadata;
use crate::run::{Run, RunId};
use crate::spend_key::Enforcement;
use crate::time::Timestamp;

/// The status of a call.
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

/// The owner of the provider key of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKeyType {
    /// The operator: a managed key.
    #[default]
    Managed,
    /// The caller: a provider key of its own.
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

/// The provider's side of a call, as it is recorded. The serialized form is stored for every call,
/// so it leaves out the usual values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardedRequest {
    /// The provider's name.
    pub provider: String,
    /// Method and URL, without secrets.
    pub endpoint: String,
    /// Whether the endpoint is billed; model lists and the like are not.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub metered: bool,
    /// The owner of the provider key.
    #[serde(default, skip_serializing_if = "ProviderKeyType::is_managed")]
    pub provider_key_type: ProviderKeyType,
    /// The requested model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Metadata from the caller.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The socket on which the call was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_id: Option<SocketId>,
    /// The estimate of the input alone, for a call whose answer reports no usage.
    #[serde(default = "PricedUsage::nothing", skip_serializing_if = "PricedUsage::is_nothing")]
    pub input_estimate: PricedUsage,
}

/// The requests of a batch that one model has answered in one tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordLine {
    /// The model, by its own name.
    pub model: String,
    /// The tier.
    pub tier: String,
    /// The number of requests that report usage.
    pub requests: u64,
    /// The sum of their usage.
    pub usage: Usage,
    /// The sum of their base costs, each of which is rounded on its own.
    pub base: BaseCost,
}

/// A usage with its source and its base cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PricedUsage {
    /// The usage.
    pub usage: Usage,
    /// The source of the usage.
    pub usage_source: UsageSource,
    /// The provider's price of the usage.
    pub base: BaseCost,
    /// The source of the prices.
    pub price_source: PriceSource,
}

impl PricedUsage {
    /// No usage, at no cost.
    pub fn nothing() -> Self {
        Self {
            usage: Usage::default(),
            usage_source: UsageSource::None,
            base: BaseCost::default(),
            price_source: PriceSource::Catalog,
        }
    }

    /// The sum with another one, whose sources it has.
    ///
    /// # Errors
    /// [`Overflow`] if the cost is beyond all amounts.
    pub fn checked_add(&self, other: &Self) -> Result<Self, Overflow> {
        let mut sum = *other;
        sum.usage.quantities = PerUnit::sum(&self.usage.quantities, &other.usage.quantities);
        sum.base = self.base.checked_add(other.base)?;
        Ok(sum)
    }

    /// Returns whether it equals [`PricedUsage::nothing`].
    pub fn is_nothing(&self) -> bool {
        *self == Self::nothing()
    }
}

/// A call from its admission on. It is stored before a byte goes to the provider, and contains all
/// that any process needs to end the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRecord {
    /// The id of the call.
    pub request_id: RequestId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// The merchant's own id of reported usage; absent for a forwarded call.
    pub reference_id: Option<String>,
    /// The customer of the call.
    pub connection_id: Option<ConnectionId>,
    /// The spend key of the call.
    pub spend_key_id: Option<SpendKeyId>,
    /// The wallet of the request.
    pub wallet_id: Option<WalletId>,
    /// The merchant's own wallet.
    pub merchant_wallet_id: WalletId,
    /// The meter and its version at admission.
    pub meter: Option<MeterVersion>,
    /// Whether the credential requests that the customer is not billed.
    pub disable_billing: bool,
    /// The provider's side of the call.
    pub forwarded: ForwardedRequest,
    /// The budgets of the call.
    #[serde(default, skip_serializing_if = "CallBudgets::is_empty")]
    pub budgets: CallBudgets,
    /// The run of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The amount held on the spend key, on each budget and on the run, whichever wallet pays.
    pub spend_hold: Amount,
    /// The amount held on the balance of the request's wallet.
    pub wallet_hold: Amount,
    /// The credit reserved on that wallet; `None` for a call that may not draw on credit.
    pub credit_hold: Option<CreditHold>,
    /// The amount held on the merchant's own wallet.
    pub merchant_hold: Amount,
    /// The enforcement of its spend key. It is not stored: only the process that admitted the call
    /// knows it.
    #[serde(skip)]
    pub enforcement: Option<Enforcement>,
    /// The report that its answer contains. It is not stored.
    #[serde(skip)]
    pub report: Option<AnswerReport>,
    /// Whether its money is held before it is asked for. It has no record until it [begins].
    ///
    /// [begins]: crate::admission::Call::ahead
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ahead: bool,
    /// The time of admission.
    pub created_at: Timestamp,
}

impl PendingRecord {
    /// The run of the call, before its first call. `None` if the call belongs to none.
    pub fn run(&self) -> Option<Run> {
        let run_id = self.run_id.clone()?;
        let (connection_id, key_id) = (self.connection_id, self.spend_key_id);
        Some(Run::of_call(self.merchant_id, connection_id, key_id, run_id, self.request_id))
    }

    /// The call after its end: without holds.
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

/// The budgets of a call, as its admission found them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallBudgets {
    /// The budget that its spend key names, else its customer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<BudgetId>,
    /// All budgets that it counts against, by ascending id.
    pub ids: Vec<BudgetId>,
    /// Whether a limit that refuses nothing would have refused it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub would_refuse: bool,
}

impl CallBudgets {
    /// Whether it counts against no budget.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// A meter at the version of a call's admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MeterVersion {
    /// The meter.
    pub meter_id: MeterId,
    /// Its version at that time.
    pub version: i32,
}

/// A call as it is shown: pending, or settled with usage and cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The id of the call.
    pub request_id: RequestId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// The merchant's own id of reported usage; absent for a forwarded call.
    pub reference_id: Option<String>,
    /// The customer of the call.
    pub connection_id: Option<ConnectionId>,
    /// The spend key of the call.
    pub spend_key_id: Option<SpendKeyId>,
    /// The meter of the call.
    pub meter_id: Option<MeterId>,
    /// The budgets of the call.
    pub budgets: CallBudgets,
    /// The run of the call.
    pub run_id: Option<RunId>,
    /// The number of the call among the settled calls of its wallet, or else of the merchant's own
    /// wallet: 1, 2, 3, … without gaps. Absent while the call is pending.
    pub sequence: Option<u64>,
    /// The status.
    pub status: RequestStatus,
    /// The provider's name.
    pub provider: String,
    /// Method and URL, without secrets.
    pub endpoint: String,
    /// The owner of the provider key.
    pub provider_key_type: ProviderKeyType,
    /// The model that served the call; the requested model until that is known.
    pub model: Option<String>,
    /// The provider's id of the answer.
    pub response_id: Option<String>,
    /// The HTTP status of the provider.
    pub provider_status: Option<u16>,
    /// The provider's time of the answer, or the end of the answer.
    pub timestamp: Option<Timestamp>,
    /// The usage and its base cost.
    pub priced: PricedUsage,
    /// The applied prices.
    pub applied: Vec<AppliedPrices>,
    /// The cost and its payers.
    pub quote: Quote,
    /// The service charge as a fraction of the fee. Absent where it was not recorded, or where
    /// nothing was charged by it.
    pub service_charge_rate: Option<Rate>,
    /// The rate type of the fee.
    pub rate_type: RateType,
    /// The tokens that the fee counts.
    pub token_basis: TokenBasis,
    /// Metadata from the caller.
    pub metadata: Metadata,
    /// The time of admission.
    pub created_at: Timestamp,
    /// The time of settlement. Absent while the call is pending, and where it was not recorded yet.
    pub settled_at: Option<Timestamp>,
    /// Whether the sweeper ended it after its process had died. Its real end is then unknown.
    pub swept: bool,
    /// Whether the provider reported far more usage than the call could have.
    pub suspicious: bool,
    /// The job that the call created.
    pub job_id: Option<JobId>,
    /// The socket on which it was made.
    pub socket_id: Option<SocketId>,
    /// The requests of a batch, by model and tier.
    pub lines: Vec<RecordLine>,
    /// The failure of the call, and its times.
    pub details: CallDetails,
}

impl RequestRecord {
    /// The run of the call, as [`PendingRecord::run`] has it.
    pub fn run(&self) -> Option<Run> {
        let run_id = self.run_id.clone()?;
        let (connection_id, key_id) = (self.connection_id, self.spend_key_id);
        Some(Run::of_call(self.merchant_id, connection_id, key_id, run_id, self.request_id))
    }
}
