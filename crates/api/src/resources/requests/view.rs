//! The two views of a record, for the two shapes of the interface.

use serde::Serialize;
use tollgate_domain::{
    ConnectionId, Metadata, MeterId, Payer, ProviderKeyType, Quote, RequestId, RequestRecord,
    RequestStatus, SpendKeyId, Timestamp, UsageSource,
};
use tollgate_pricing::{Amount, FeeLine, PriceSource, RateType, TierUnit, TokenBasis, Usage};
use utoipa::ToSchema;

use super::super::meters::TierView;
use crate::openapi::fields::MetadataSchema;
use crate::openapi::types::*;
use crate::settings::InterfaceShape;

#[derive(Serialize, ToSchema)]
#[schema(as = Request)]
pub(crate) struct RecordView {
    request_id: RequestId,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reference_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sequence: Option<u64>,
    status: RequestStatus,
    provider: String,
    endpoint: String,
    provider_key_type: ProviderKeyType,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    provider_status: Option<u16>,
    #[serde(flatten)]
    customer: CustomerView,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spend_key_id: Option<SpendKeyId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    meter_id: Option<MeterId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    response_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timestamp: Option<Timestamp>,
    model_usage: ModelUsageView,
    usage_source: UsageSource,
    price_source: PriceSource,
    #[serde(flatten)]
    #[schema(value_type = CurrentCost)]
    cost: CostView,
    metadata: Metadata,
    /// Unusual facts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flags: Vec<RecordFlag>,
    created_at: Timestamp,
}

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
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    connection_id: Option<ConnectionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    customer_id: Option<ConnectionId>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ModelUsage)]
pub(crate) struct ModelUsageView {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
    input_characters: u64,
    output_characters: u64,
    total_characters: u64,
    input_seconds: u64,
    output_seconds: u64,
    total_seconds: u64,
    cached_input_tokens: u64,
    cache_write_tokens: u64,
    reasoning_tokens: u64,
    input_audio_tokens: u64,
    output_audio_tokens: u64,
    input_cost: Amount,
    output_cost: Amount,
    total_cost: Amount,
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
    fee: FeeView,
    service_charge: ServiceChargeView,
    total_request_cost: Amount,
    total_wallet_cost: Amount,
    total_merchant_cost: Amount,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Fee)]
pub(crate) struct FeeView {
    amount: Amount,
    rate_type: RateType,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    token_basis: Option<TokenBasis>,
    breakdown: Vec<FeeLineView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = FeeLine)]
pub(crate) struct FeeLineView {
    tier: TierView,
    tokens: u64,
    characters: u64,
    seconds: u64,
    requests: u64,
    cost: Amount,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ServiceCharge)]
pub(crate) struct ServiceChargeView {
    amount: Amount,
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

impl ModelUsageView {
    pub(crate) fn of(usage: &Usage, quote: &Quote, shape: InterfaceShape) -> Self {
        let (quantities, base) = (&usage.quantities, &quote.base);
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
