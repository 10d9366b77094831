//! How a call ends: what it used becomes what it cost, and who pays. Pure: the store locks the
//! counter and the wallets, asks here, and writes what comes back in one transaction.

use serde::{Deserialize, Serialize};
use tollgate_pricing::{
    AppliedPrices, BaseCost, Meter, Payer, PriceSource, Quote, Rate, RateType, Terms, TokenBasis,
};

use crate::missing_price::MissingPrice;
use crate::record::{PendingRecord, PricedUsage, ProviderKeyType, RequestRecord, RequestStatus};
use crate::time::Timestamp;

/// How a call ended. Every call ends in one of these ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The provider accepted it and answered to the end, whether or not the client stayed.
    Answered,
    /// The client left and the provider was not read to the end.
    Abandoned,
    /// The provider accepted it and then broke off or sent an error.
    Broken,
    /// The provider answered with an error status.
    Rejected,
    /// It never reached the provider.
    NotSent,
    /// It was sent, and no answer came.
    Unanswered,
    /// The service died before it could settle; it may have been sent.
    Lost,
}

impl Ending {
    /// The status of a record that ended so.
    pub const fn status(self) -> RequestStatus {
        match self {
            Self::Answered | Self::Abandoned => RequestStatus::Completed,
            Self::Broken | Self::Rejected | Self::NotSent | Self::Unanswered | Self::Lost => {
                RequestStatus::Error
            }
        }
    }

    /// Whether the provider accepted the call, so that the meter charges.
    const fn accepted(self) -> bool {
        matches!(self, Self::Answered | Self::Abandoned | Self::Broken)
    }

    /// Whether anything of the answer reached the client: the wallet pays for what it received,
    /// what the provider may bill for an answer that never arrived is the merchant's.
    const fn delivered(self) -> bool {
        !matches!(self, Self::Unanswered | Self::Lost)
    }
}

/// What became of a call, as the forward path saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How it ended.
    pub ending: Ending,
    /// HTTP status of the provider, if one came.
    pub provider_status: Option<u16>,
    /// The model that served it, if the answer says.
    pub model: Option<String>,
    /// The provider's id of its answer.
    pub response_id: Option<String>,
    /// What was used, and what the provider charges for it.
    pub priced: PricedUsage,
    /// The prices that were applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<AppliedPrices>,
    /// The price that it needed and no list has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<MissingPrice>,
    /// The provider's time of its answer, or when the answer ended.
    pub timestamp: Timestamp,
    /// Whether the provider claimed far more than the call could use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspicious: bool,
}

impl Report {
    /// The report of a call that was perhaps sent and of which nothing is known.
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
        }
    }

    /// The report of a call that never reached the provider.
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
        }
    }
}

/// A settled call: its record, and what moves with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The record in its final state.
    pub record: RequestRecord,
    /// How far the tier counter moves.
    pub counter_moves: u64,
    /// Whether the cost did not fit an amount, and the call was let go unpriced.
    pub overflowed: bool,
}

/// Ends `pending` as `report` says. `meter` is the version it was admitted with, `counter` where
/// that meter's counter stands now.
///
/// It cannot fail: a cost beyond the range of an amount (a price mistyped by nine digits) leaves
/// the call unpriced and says so.
pub fn settle(
    pending: &PendingRecord,
    report: &Report,
    meter: Option<&Meter>,
    counter: u64,
    service_charge_rate: Rate,
) -> Settled {
    let terms = terms(pending, report, meter, counter, service_charge_rate);
    let Ok(quote) = Quote::new(&report.priced.usage, report.priced.base, &terms) else {
        return let_go(pending, report, meter);
    };
    let counter_moves = if pending.disable_billing { 0 } else { quote.counted_units };
    let mut record = record(pending, report, report.priced, quote, meter);
    record.applied.clone_from(&report.applied);
    record.service_charge_rate = meter.map(|_| service_charge_rate);
    Settled { record, counter_moves, overflowed: false }
}

/// Ends `pending` at no cost: for one whose cost an amount has no room for.
fn let_go(pending: &PendingRecord, report: &Report, meter: Option<&Meter>) -> Settled {
    let free = Quote::free(&terms(pending, report, meter, 0, Rate::ZERO));
    let record = record(pending, report, unpriced(report.priced), free, meter);
    Settled { record, counter_moves: 0, overflowed: true }
}

/// Under which terms a call that ended so is priced.
fn terms<'a>(
    pending: &PendingRecord,
    report: &Report,
    meter: Option<&'a Meter>,
    counter: u64,
    service_charge_rate: Rate,
) -> Terms<'a> {
    Terms {
        meter,
        counter,
        service_charge_rate,
        wallet_pays: pending.wallet_id.is_some()
            && !pending.disable_billing
            && report.ending.delivered(),
        base_due: pending.forwarded.provider_key_type == ProviderKeyType::Managed,
        fee_due: pending.forwarded.metered && report.ending.accepted(),
    }
}

/// The record of a call that ended so and is charged so.
fn record(
    pending: &PendingRecord,
    report: &Report,
    priced: PricedUsage,
    quote: Quote,
    meter: Option<&Meter>,
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
        rate_type: meter.map_or(RateType::Fixed, |meter| meter.rate_type),
        token_basis: meter.map_or(TokenBasis::InputOutput, |meter| meter.token_basis),
        metadata: forwarded.metadata.clone(),
        created_at: pending.created_at,
        settled_at: None,
        swept: false,
        suspicious: report.suspicious,
    }
}

/// The same usage, which costs nothing.
fn unpriced(priced: PricedUsage) -> PricedUsage {
    let price_source = PriceSource::Unpriced;
    PricedUsage { base: BaseCost::default(), price_source, ..priced }
}

/// Whether the merchant's own wallet may have to pay for a call that ended so: if not, its row need
/// not be locked.
pub fn merchant_may_pay(
    has_wallet: bool,
    disable_billing: bool,
    ending: Ending,
    meter: Option<&Meter>,
) -> bool {
    let payers = meter.map(|meter| [meter.base_cost_payer, meter.service_charge_payer]);
    !has_wallet
        || disable_billing
        || !ending.delivered()
        || payers.is_some_and(|payers| payers.contains(&Payer::Merchant))
}

/// The record of a call that is still on its way.
pub fn in_flight(pending: &PendingRecord, meter: Option<&Meter>) -> RequestRecord {
    let mut record =
        settle(pending, &Report::not_sent(pending.created_at), meter, 0, Rate::ZERO).record;
    record.status = RequestStatus::Pending;
    record.timestamp = None;
    record
}
