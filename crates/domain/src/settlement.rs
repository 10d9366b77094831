//! Settlement: the booking of a call at its end, with its usage, cost and payers.
//!
//! Pure: the store locks the counter and the wallets, calls this module and writes the result in
//! one transaction.

use serde::{Deserialize, Serialize};
use tollgate_pricing::{AppliedPrices, BaseCost, PriceSource, Rate, RateType, TokenBasis};

use crate::call_details::{CallDetails, CallFailure, FailureSource};
use crate::job::{JobEnd, ProviderObject};
use crate::missing_price::MissingPrice;
use crate::quote::{FeeModel, Payer, PricingTerms, Quote};
use crate::record::{
    PendingRecord, PricedUsage, ProviderKeyType, RecordLine, RequestRecord, RequestStatus,
};
use crate::time::Timestamp;

/// The way in which a call ended. Every call has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The provider accepted it and answered to the end, even if the client left.
    Answered,
    /// The client left, and the answer was not read to the end.
    Abandoned,
    /// The provider accepted it and then broke off or sent an error.
    Broken,
    /// The provider answered with an error status.
    Rejected,
    /// The call did not reach the provider.
    NotSent,
    /// The call was sent, and no answer came.
    Unanswered,
    /// The service died before the settlement. The call may have been sent.
    Lost,
}

impl Ending {
    /// The status of a record with this ending.
    pub const fn status(self) -> RequestStatus {
        match self {
            Self::Answered | Self::Abandoned => RequestStatus::Completed,
            Self::Broken | Self::Rejected | Self::NotSent | Self::Unanswered | Self::Lost => {
                RequestStatus::Error
            }
        }
    }

    /// The failure of a call of which only the ending is known; `None` if it has not failed.
    fn failure(self) -> Option<CallFailure> {
        let (code, message) = match self {
            Self::Answered | Self::Abandoned => return None,
            Self::Rejected => {
                let source = FailureSource::Provider;
                return Some(CallFailure { source, kind: None, code: None, message: None });
            }
            Self::Broken => ("answer_broken", "The answer ended early."),
            Self::NotSent => ("provider_unreachable", "The call was not sent to the provider."),
            Self::Unanswered => ("provider_unreachable", "The provider closed without an answer."),
            Self::Lost => (
                "process_ended",
                "The process ended before the call was settled. The call may have been sent.",
            ),
        };
        Some(CallFailure::of_service(code, message))
    }

    /// Returns whether the provider accepted the call, so that the meter charges.
    const fn is_accepted(self) -> bool {
        matches!(self, Self::Answered | Self::Abandoned | Self::Broken)
    }

    /// Returns whether the wallet pays for the answer. If no answer arrived, the merchant pays what
    /// the provider may bill.
    const fn is_delivered(self) -> bool {
        !matches!(self, Self::Unanswered | Self::Lost)
    }
}

/// The outcome of a call, as the forward path saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallReport {
    /// The ending.
    pub ending: Ending,
    /// The HTTP status of the provider, if there is one.
    pub provider_status: Option<u16>,
    /// The model that served the call, if the answer names it.
    pub model: Option<String>,
    /// The provider's id of the answer.
    pub response_id: Option<String>,
    /// The usage and its base cost.
    pub priced: PricedUsage,
    /// The applied prices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<AppliedPrices>,
    /// The price that the call needed and that is in no price list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<MissingPrice>,
    /// The provider's time of the answer, or the end of the answer.
    pub timestamp: Timestamp,
    /// Whether the provider reported far more usage than the call could have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspicious: bool,
    /// Whether other calls hold money for it as well, as for the time of a long session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extended: bool,
    /// The end of the job that the call created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobEnd>,
    /// The requests of a batch, by model and tier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<RecordLine>,
    /// The objects that the provider keeps, which belong to the wallet that pays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ProviderObject>,
    /// The failure of the call, and its times.
    #[serde(default)]
    pub details: CallDetails,
}

impl CallReport {
    /// The report of a call of which nothing is known, and which may have been sent.
    pub fn unknown(pending: &PendingRecord, ending: Ending, now: Timestamp) -> Self {
        let forwarded = &pending.forwarded;
        let (provider, model) = (&forwarded.provider, forwarded.model.as_deref());
        let estimate = &forwarded.input_estimate;
        Self {
            ending,
            provider_status: None,
            model: None,
            response_id: None,
            priced: *estimate,
            applied: Vec::new(),
            missing: MissingPrice::of_estimate(provider, model.unwrap_or_default(), estimate),
            timestamp: now,
            suspicious: false,
            extended: false,
            job: None,
            lines: Vec::new(),
            objects: Vec::new(),
            details: CallDetails::default(),
        }
    }

    /// The report of a call that did not reach the provider.
    pub fn not_sent(now: Timestamp) -> Self {
        Self {
            ending: Ending::NotSent,
            provider_status: None,
            model: None,
            response_id: None,
            priced: PricedUsage::nothing(),
            applied: Vec::new(),
            missing: None,
            timestamp: now,
            suspicious: false,
            extended: false,
            job: None,
            lines: Vec::new(),
            objects: Vec::new(),
            details: CallDetails::default(),
        }
    }
}

/// A settled call: its record, and the move of its tier counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettlementResult {
    /// The final record.
    pub record: RequestRecord,
    /// The number of units to add to the tier counter.
    pub counter_delta: u64,
    /// Whether the cost was beyond the range of an amount. The call is then free and unpriced.
    pub overflowed: bool,
}

/// Settles `pending` by `report`. `meter` is the version of its admission, `counter` the present
/// value of that meter's tier counter.
///
/// It cannot fail. A cost beyond the range of an amount (a price mistyped by nine digits) leaves
/// the call unpriced and sets [`SettlementResult::overflowed`].
pub fn settle(
    pending: &PendingRecord,
    report: &CallReport,
    meter: Option<&FeeModel>,
    counter: u64,
    service_charge_rate: Rate,
) -> SettlementResult {
    let terms = terms(pending, report, meter, counter, service_charge_rate);
    let Ok(quote) = Quote::new(&report.priced.usage, report.priced.base, &terms) else {
        return settle_free(pending, report, meter);
    };
    let counter_moves = if pending.disable_billing { 0 } else { quote.counted_units };
    let mut record = record(pending, report, report.priced, quote, meter);
    record.applied.clone_from(&report.applied);
    record.service_charge_rate = meter.map(|_| service_charge_rate);
    SettlementResult { record, counter_delta: counter_moves, overflowed: false }
}

/// Settles `pending` at no cost, because its cost is beyond the range of an amount.
fn settle_free(
    pending: &PendingRecord,
    report: &CallReport,
    meter: Option<&FeeModel>,
) -> SettlementResult {
    let free = Quote::free(&terms(pending, report, meter, 0, Rate::ZERO));
    let record = record(pending, report, unpriced(report.priced), free, meter);
    SettlementResult { record, counter_delta: 0, overflowed: true }
}

/// The terms by which the call is priced.
fn terms<'a>(
    pending: &PendingRecord,
    report: &CallReport,
    meter: Option<&'a FeeModel>,
    counter: u64,
    service_charge_rate: Rate,
) -> PricingTerms<'a> {
    PricingTerms {
        meter,
        counter,
        service_charge_rate,
        wallet_pays: pending.wallet_id.is_some()
            && !pending.disable_billing
            && report.ending.is_delivered(),
        base_due: pending.forwarded.provider_key_type == ProviderKeyType::Managed,
        fee_due: pending.forwarded.metered && report.ending.is_accepted(),
    }
}

/// The record of a call with this report and quote.
fn record(
    pending: &PendingRecord,
    report: &CallReport,
    priced: PricedUsage,
    quote: Quote,
    meter: Option<&FeeModel>,
) -> RequestRecord {
    let forwarded = &pending.forwarded;
    RequestRecord {
        request_id: pending.request_id,
        merchant_id: pending.merchant_id,
        reference_id: pending.reference_id.clone(),
        sequence: None,
        connection_id: pending.connection_id,
        spend_key_id: pending.spend_key_id,
        meter_id: pending.meter.map(|meter| meter.meter_id),
        run_id: pending.run_id.clone(),
        budgets: pending.budgets.clone(),
        status: report.ending.status(),
        provider: forwarded.provider.clone(),
        endpoint: forwarded.endpoint.clone(),
        provider_key_type: forwarded.provider_key_type,
        model: report.model.clone().or_else(|| forwarded.model.clone()),
        response_id: report.response_id.clone(),
        provider_status: report.provider_status,
        timestamp: Some(report.timestamp),
        priced,
        applied: Vec::new(),
        quote,
        service_charge_rate: None,
        rate_type: meter.map_or(RateType::Fixed, |model| model.meter.rate_type),
        token_basis: meter.map_or(TokenBasis::InputOutput, |model| model.meter.token_basis),
        metadata: forwarded.metadata.clone(),
        created_at: pending.created_at,
        settled_at: None,
        swept: false,
        suspicious: report.suspicious,
        job_id: report.job.map(|end| end.job_id),
        socket_id: forwarded.socket_id,
        lines: report.lines.clone(),
        details: CallDetails {
            failure: report.details.failure.clone().or_else(|| report.ending.failure()),
            ..report.details.clone()
        },
    }
}

/// As `priced`, at no cost.
fn unpriced(priced: PricedUsage) -> PricedUsage {
    let price_source = PriceSource::Unpriced;
    PricedUsage { base: BaseCost::default(), price_source, ..priced }
}

/// Returns whether the merchant's own wallet may pay for a call with this ending. If not, its row
/// need not be locked.
pub fn merchant_may_pay(
    has_wallet: bool,
    disable_billing: bool,
    ending: Ending,
    meter: Option<&FeeModel>,
) -> bool {
    let payers = meter.map(|model| [model.base_cost_payer, model.service_charge_payer]);
    !has_wallet
        || disable_billing
        || !ending.is_delivered()
        || payers.is_some_and(|payers| payers.contains(&Payer::Merchant))
}

/// The record of a call in flight.
pub fn in_flight(pending: &PendingRecord, meter: Option<&FeeModel>) -> RequestRecord {
    let mut record =
        settle(pending, &CallReport::not_sent(pending.created_at), meter, 0, Rate::ZERO).record;
    record.status = RequestStatus::Pending;
    record.timestamp = None;
    record.details = CallDetails::default();
    record
}
