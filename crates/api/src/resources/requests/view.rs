//! The two views of a record, for the two shapes of the interface.

use serde::Serialize;
use tollgate_domain::{
    BudgetId, CallFailure, CallTimings, ConnectionId, FailureSource, JobId, Metadata, MeterId,
    Payer, ProviderKeyType, Quote, RecordLine, RequestId, RequestRecord, RequestStatus, RunId,
    SocketId, SpendKeyId, Timestamp, UsageSource,
};
use tollgate_pricing::{Amount, FeeLine, PriceSource, RateType, TierUnit, TokenBasis, Usage};
use utoipa::ToSchema;

use super::super::meters::TierView;
use crate::openapi::fields::MetadataSchema;
use crate::openapi::types::*;
use crate::settings::InterfaceShape;

/// The view of a record.
#[derive(Serialize, ToSchema)]
#[schema(as = Request)]
pub struct RecordView {
    /// The id of the record.
    request_id: RequestId,
    /// The `request_id` of reported usage. Absent for a forwarded call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reference_id: Option<String>,
    /// The number of the record on the wallet of the call, or else on the merchant's own wallet. It counts 1, 2, 3,
    /// … without gaps, in the order in which calls are settled. Compare it with records that you keep elsewhere. A
    /// number that a database lost in a failover is given again. Absent while `pending`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sequence: Option<u64>,
    /// The state: `pending`, then `completed` or `error`.
    status: RequestStatus,
    /// The provider's name in the configuration.
    provider: String,
    /// The method and the URL, without query parameters whose names look like a credential (`key`, `token`,
    /// `secret`, …).
    endpoint: String,
    /// The owner of the provider key: `managed` is the operator's key, and `unmanaged` is the caller's.
    provider_key_type: ProviderKeyType,
    /// The provider's HTTP status. Absent when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    provider_status: Option<u16>,
    #[serde(flatten)]
    customer: CustomerView,
    /// The spend key of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spend_key_id: Option<SpendKeyId>,
    /// The budget that the spend key named, else the customer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    budget_id: Option<BudgetId>,
    /// All budgets that the call counted against. Absent when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<BudgetId>>, nullable = false)]
    budget_ids: Vec<BudgetId>,
    /// Whether a budget that observes would have refused the call. Absent when none would.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(value_type = Option<bool>, nullable = false)]
    would_refuse: bool,
    /// The run of the call. Empty for a call without a run, under a spend key with a `run_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    run_id: Option<RunId>,
    /// The job that the call created. Its provider answers later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    job_id: Option<JobId>,
    /// The WebSocket on which the call was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    socket_id: Option<SocketId>,
    /// The requests of a batch, by model and tier. Absent for other calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<RecordLineView>>, nullable = false)]
    lines: Vec<RecordLineView>,
    /// The meter that priced the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    meter_id: Option<MeterId>,
    /// The model that served the call. While that is not known, the model that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    model: Option<String>,
    /// The provider's id of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    response_id: Option<String>,
    /// The provider's own time of its answer, or else the time when the answer ended. Absent while `pending`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timestamp: Option<Timestamp>,
    /// The usage and the base cost.
    model_usage: ModelUsageView,
    /// The source of the usage.
    usage_source: UsageSource,
    /// The source of the price.
    price_source: PriceSource,
    #[serde(flatten)]
    #[schema(value_type = CurrentCost)]
    cost: CostView,
    /// Pairs of strings that you can filter by.
    metadata: Metadata,
    /// Unusual facts: the provider claims more than a hundred times of what the call could use. Absent when there are
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flags: Vec<RecordFlag>,
    /// The reason of the status `error`. Absent for other statuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<FailureView>,
    /// The provider's id of the request, if a header of its answer names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    provider_request_id: Option<String>,
    /// The life of the call.
    timings: TimingsView,
    /// The time of creation.
    created_at: Timestamp,
}

/// The reason why a call failed.
#[derive(Serialize, ToSchema)]
#[schema(as = RequestError)]
struct FailureView {
    /// `provider`: it answered with an error. `service`: the provider was unreachable or too slow, its answer broke off,
    /// or this service failed. `client`: the client left.
    #[schema(value_type = FailureSource)]
    source: FailureSource,
    /// The provider's own type of the error.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    kind: Option<String>,
    /// The provider's own code of the error, or the code of this service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    code: Option<String>,
    /// The first 500 characters of the message. What looks like a credential is replaced by `***`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    message: Option<String>,
}

/// The times of a call. Those that did not come are absent.
#[derive(Serialize, ToSchema)]
#[schema(as = RequestTimings)]
struct TimingsView {
    /// The time of admission, or at which usage was reported.
    admitted_at: Timestamp,
    /// The time at which the call was sent to the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sent_at: Option<Timestamp>,
    /// The time at which the provider's answer began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    first_byte_at: Option<Timestamp>,
    /// The time of the last byte of the provider's answer that was read before the settlement.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_byte_at: Option<Timestamp>,
    /// The time of settlement.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    settled_at: Option<Timestamp>,
}

impl FailureView {
    fn of(failure: &CallFailure) -> Self {
        let CallFailure { source, kind, code, message } = failure.clone();
        Self { source, kind, code, message }
    }
}

impl TimingsView {
    fn of(record: &RequestRecord) -> Self {
        let CallTimings { sent_at, first_byte_at, last_byte_at } = record.details.timings;
        let (admitted_at, settled_at) = (record.created_at, record.settled_at);
        Self { admitted_at, sent_at, first_byte_at, last_byte_at, settled_at }
    }
}

/// The columns of records as CSV: the fields of the view.
pub(super) const RECORD_COLUMNS: &[&str] = &[
    "request_id",
    "reference_id",
    "sequence",
    "created_at",
    "status",
    "provider",
    "model",
    "endpoint",
    "provider_key_type",
    "provider_status",
    "error.source",
    "error.type",
    "error.code",
    "error.message",
    "provider_request_id",
    "timings.admitted_at",
    "timings.sent_at",
    "timings.first_byte_at",
    "timings.last_byte_at",
    "timings.settled_at",
    "connection_id",
    "spend_key_id",
    "budget_id",
    "budget_ids",
    "would_refuse",
    "run_id",
    "meter_id",
    "response_id",
    "timestamp",
    "usage_source",
    "price_source",
    "model_usage.input_tokens",
    "model_usage.output_tokens",
    "model_usage.total_tokens",
    "model_usage.input_characters",
    "model_usage.output_characters",
    "model_usage.total_characters",
    "model_usage.input_seconds",
    "model_usage.output_seconds",
    "model_usage.total_seconds",
    "model_usage.cached_input_tokens",
    "model_usage.cache_write_tokens",
    "model_usage.reasoning_tokens",
    "model_usage.input_audio_tokens",
    "model_usage.output_audio_tokens",
    "model_usage.input_cost",
    "model_usage.output_cost",
    "model_usage.total_cost",
    "model_usage.payer",
    "fee.amount",
    "fee.rate_type",
    "fee.token_basis",
    "fee.breakdown",
    "service_charge.amount",
    "service_charge.payer",
    "total_request_cost",
    "total_wallet_cost",
    "total_merchant_cost",
    "metadata",
    "flags",
];

/// An unusual fact about a record.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum RecordFlag {
    /// The provider claimed more than a hundred times the most that the call could use.
    SuspiciousUsage,
}

/// The customer, under the name that the shape has for it.
#[derive(Serialize, ToSchema)]
#[schema(as = RequestCustomer)]
struct CustomerView {
    /// The customer for whom the call was made: the connection of the credential, or else the one whose wallet the
    /// spend key draws on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    connection_id: Option<ConnectionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    customer_id: Option<ConnectionId>,
}

/// The requests of a batch that one model has answered in one tier.
#[derive(Serialize, ToSchema)]
#[schema(as = RecordLine)]
pub(crate) struct RecordLineView {
    /// The model, by its own name.
    model: String,
    /// The tier, such as `batch`.
    tier: String,
    /// The number of requests that report usage.
    requests: u64,
    /// The sum of their usage.
    usage: UsageCountsView,
    /// The sum of their costs at the provider. Each is rounded on its own.
    cost: Amount,
}

impl RecordLineView {
    fn of(line: &RecordLine) -> Self {
        Self {
            model: line.model.clone(),
            tier: line.tier.clone(),
            requests: line.requests,
            usage: UsageCountsView::of(&line.usage),
            cost: line.base.total().unwrap_or_default(),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = UsageCounts)]
pub(crate) struct UsageCountsView {
    /// Tokens of input.
    input_tokens: u64,
    /// Tokens of output.
    output_tokens: u64,
    /// Tokens of input and output.
    total_tokens: u64,
    /// Characters of input.
    input_characters: u64,
    /// Characters of output.
    output_characters: u64,
    /// Characters of input and output.
    total_characters: u64,
    /// Seconds of input, rounded up. Pricing uses the exact value.
    input_seconds: u64,
    /// Seconds of output, rounded up. Pricing uses the exact value.
    output_seconds: u64,
    /// Seconds of input and output.
    total_seconds: u64,
    /// Input tokens that were read from a cache.
    cached_input_tokens: u64,
    /// Input tokens that were written to a cache.
    cache_write_tokens: u64,
    /// Output tokens of reasoning.
    reasoning_tokens: u64,
    /// Input tokens of audio.
    input_audio_tokens: u64,
    /// Output tokens of audio.
    output_audio_tokens: u64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ModelUsage)]
pub(crate) struct ModelUsageView {
    #[serde(flatten)]
    counts: UsageCountsView,
    /// The cost of the input.
    input_cost: Amount,
    /// The cost of the output and of everything else.
    output_cost: Amount,
    /// The base cost.
    total_cost: Amount,
    /// The payer of the base cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    payer: Option<Payer>,
}

/// The cost, in the fields of the shape. Documents have the current shape.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum CostView {
    Current(CurrentCost),
    Earlier { cost: Amount, charge: FeeView },
}

#[derive(Serialize, ToSchema)]
#[schema(as = RequestCost)]
pub(crate) struct CurrentCost {
    /// The fee of the meter.
    fee: FeeView,
    /// The operator's charge on the fee.
    service_charge: ServiceChargeView,
    /// Base cost, fee and service charge.
    total_request_cost: Amount,
    /// The part that the customer's wallet pays.
    total_wallet_cost: Amount,
    /// The part that the merchant's wallet pays.
    total_merchant_cost: Amount,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Fee)]
pub(crate) struct FeeView {
    /// The amount.
    amount: Amount,
    /// Whether rates are USD per unit or a percentage of the base cost.
    rate_type: RateType,
    /// The tokens that count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    token_basis: Option<TokenBasis>,
    /// One line for each tier that the call used. Its counts are the amounts in that tier, in the unit of the
    /// meter.
    breakdown: Vec<FeeLineView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = FeeLine)]
pub(crate) struct FeeLineView {
    /// The tier.
    tier: TierView,
    /// The tokens in this tier.
    tokens: u64,
    /// The characters in this tier.
    characters: u64,
    /// The seconds in this tier, rounded up.
    seconds: u64,
    /// The requests in this tier.
    requests: u64,
    /// The fee in this tier.
    cost: Amount,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ServiceCharge)]
pub(crate) struct ServiceChargeView {
    /// The amount.
    amount: Amount,
    /// The payer.
    payer: Payer,
}

impl RecordView {
    pub(crate) fn of(record: &RequestRecord, shape: InterfaceShape) -> Self {
        let current = shape == InterfaceShape::Current;
        Self {
            request_id: record.request_id,
            reference_id: record.reference_id.clone(),
            sequence: record.sequence,
            status: record.status,
            provider: record.provider.clone(),
            endpoint: record.endpoint.clone(),
            provider_key_type: record.provider_key_type,
            provider_status: record.provider_status,
            customer: CustomerView {
                connection_id: record.connection_id.filter(|_| current),
                customer_id: record.connection_id.filter(|_| !current),
            },
            spend_key_id: record.spend_key_id,
            budget_id: record.budgets.own,
            budget_ids: record.budgets.ids.clone(),
            run_id: record.run_id.clone(),
            job_id: record.job_id,
            socket_id: record.socket_id,
            lines: record.lines.iter().map(RecordLineView::of).collect(),
            would_refuse: record.budgets.would_refuse,
            meter_id: record.meter_id,
            model: record.model.clone(),
            response_id: record.response_id.clone(),
            timestamp: record.timestamp,
            model_usage: ModelUsageView::of(&record.priced.usage, &record.quote, shape),
            usage_source: record.priced.usage_source,
            price_source: record.priced.price_source,
            cost: CostView::of(&record.quote, record.rate_type, record.token_basis, shape),
            metadata: record.metadata.clone(),
            flags: record.suspicious.then_some(RecordFlag::SuspiciousUsage).into_iter().collect(),
            error: record.details.failure.as_ref().map(FailureView::of),
            provider_request_id: record.details.provider_request_id.clone(),
            timings: TimingsView::of(record),
            created_at: record.created_at,
        }
    }
}

impl CostView {
    pub(crate) fn of(
        quote: &Quote,
        rate_type: RateType,
        token_basis: TokenBasis,
        shape: InterfaceShape,
    ) -> Self {
        let fee = FeeView {
            amount: quote.fee.amount().unwrap_or_default(),
            rate_type,
            token_basis: (shape == InterfaceShape::Current).then_some(token_basis),
            breakdown: quote.fee.lines.iter().map(FeeLineView::of).collect(),
        };
        match shape {
            InterfaceShape::Current => Self::Current(CurrentCost {
                fee,
                service_charge: ServiceChargeView {
                    amount: quote.service_charge.amount,
                    payer: quote.service_charge.payer,
                },
                total_request_cost: quote.total_request_cost,
                total_wallet_cost: quote.total_wallet_cost,
                total_merchant_cost: quote.total_merchant_cost,
            }),
            InterfaceShape::Earlier => {
                Self::Earlier { cost: quote.base.total().unwrap_or_default(), charge: fee }
            }
        }
    }
}

impl UsageCountsView {
    fn of(usage: &Usage) -> Self {
        let quantities = &usage.quantities;
        let (input_tokens, output_tokens) = (usage.input_tokens(), usage.output_tokens());
        let (input_seconds, output_seconds) = (usage.input_seconds(), usage.output_seconds());
        Self {
            input_tokens,
            output_tokens,
            total_tokens: input_tokens.saturating_add(output_tokens),
            input_characters: quantities.input_characters,
            output_characters: quantities.output_characters,
            total_characters: usage.characters(),
            input_seconds,
            output_seconds,
            total_seconds: input_seconds.saturating_add(output_seconds),
            cached_input_tokens: usage.cached_input_tokens(),
            cache_write_tokens: usage.cache_write_tokens(),
            reasoning_tokens: quantities.reasoning,
            input_audio_tokens: quantities.input_audio,
            output_audio_tokens: quantities.output_audio,
        }
    }
}

impl ModelUsageView {
    pub(crate) fn of(usage: &Usage, quote: &Quote, shape: InterfaceShape) -> Self {
        let base = &quote.base;
        Self {
            counts: UsageCountsView::of(usage),
            input_cost: base.input,
            output_cost: base.output,
            total_cost: base.total().unwrap_or_default(),
            payer: (shape == InterfaceShape::Current).then_some(quote.base_payer),
        }
    }
}

impl FeeLineView {
    fn of(line: &FeeLine) -> Self {
        let if_unit = |unit| if line.unit == unit { line.units } else { 0 };
        Self {
            tier: TierView::of(&line.tier, line.unit),
            tokens: if_unit(TierUnit::Tokens),
            characters: if_unit(TierUnit::Characters),
            seconds: if_unit(TierUnit::Minutes).div_ceil(1_000_000),
            requests: if_unit(TierUnit::Requests),
            cost: line.cost,
        }
    }
}
