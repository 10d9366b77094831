//! Request records: one record, two views.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::Value;
use tollgate_domain::{
    ConnectionId, Issue, Metadata, MeterId, ProviderKeyType, RequestId, RequestRecord,
    RequestStatus, SpendKeyId, Timestamp, UsageSource,
};
use tollgate_pricing::{Amount, FeeLine, Payer, PriceSource, RateType, TierUnit, TokenBasis};
use tollgate_store::requests::{self, RequestFilter};

use super::meters::TierView;
use super::optional_id;
use crate::app::{App, InterfaceShape};
use crate::http::auth::Caller;
use crate::http::error::{ApiError, ErrorCode};
use crate::http::list::{Query, respond};

#[derive(Serialize)]
struct RecordView {
    request_id: RequestId,
    status: RequestStatus,
    provider: String,
    endpoint: String,
    provider_key_type: ProviderKeyType,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_status: Option<u16>,
    #[serde(flatten)]
    customer: Customer,
    #[serde(skip_serializing_if = "Option::is_none")]
    spend_key_id: Option<SpendKeyId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meter_id: Option<MeterId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<Timestamp>,
    model_usage: ModelUsageView,
    usage_source: UsageSource,
    price_source: PriceSource,
    #[serde(flatten)]
    cost: CostView,
    metadata: Metadata,
    created_at: Timestamp,
}

/// The customer, by the name that the shape has for it.
#[derive(Serialize)]
struct Customer {
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_id: Option<ConnectionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    customer_id: Option<ConnectionId>,
}

#[derive(Serialize)]
struct ModelUsageView {
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
    payer: Option<Payer>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CostView {
    Current {
        fee: FeeView,
        service_charge: ServiceChargeView,
        total_request_cost: Amount,
        total_wallet_cost: Amount,
        total_merchant_cost: Amount,
    },
    Earlier {
        cost: Amount,
        charge: FeeView,
    },
}

#[derive(Serialize)]
struct FeeView {
    amount: Amount,
    rate_type: RateType,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_basis: Option<TokenBasis>,
    breakdown: Vec<FeeLineView>,
}

#[derive(Serialize)]
struct FeeLineView {
    tier: TierView,
    tokens: u64,
    characters: u64,
    seconds: u64,
    requests: u64,
    cost: Amount,
}

#[derive(Serialize)]
struct ServiceChargeView {
    amount: Amount,
    payer: Payer,
}

impl RecordView {
    fn of(record: &RequestRecord, shape: InterfaceShape) -> Self {
        let current = shape == InterfaceShape::Current;
        let quote = &record.quote;
        let fee = FeeView {
            amount: quote.fee.amount().unwrap_or_default(),
            rate_type: record.rate_type,
            token_basis: current.then_some(record.token_basis),
            breakdown: quote.fee.lines.iter().map(FeeLineView::of).collect(),
        };
        let cost = match shape {
            InterfaceShape::Current => CostView::Current {
                fee,
                service_charge: ServiceChargeView {
                    amount: quote.service_charge.amount,
                    payer: quote.service_charge.payer,
                },
                total_request_cost: quote.total_request_cost,
                total_wallet_cost: quote.total_wallet_cost,
                total_merchant_cost: quote.total_merchant_cost,
            },
            InterfaceShape::Earlier => {
                CostView::Earlier { cost: quote.base.total().unwrap_or_default(), charge: fee }
            }
        };
        Self {
            request_id: record.request_id,
            status: record.status,
            provider: record.provider.clone(),
            endpoint: record.endpoint.clone(),
            provider_key_type: record.provider_key_type,
            provider_status: record.provider_status,
            customer: Customer {
                connection_id: record.connection_id.filter(|_| current),
                customer_id: record.connection_id.filter(|_| !current),
            },
            spend_key_id: record.spend_key_id,
            meter_id: record.meter_id,
            model: record.model.clone(),
            response_id: record.response_id.clone(),
            timestamp: record.timestamp,
            model_usage: ModelUsageView::of(record, current),
            usage_source: record.priced.usage_source,
            price_source: record.priced.price_source,
            cost,
            metadata: record.metadata.clone(),
            created_at: record.created_at,
        }
    }
}

impl ModelUsageView {
    fn of(record: &RequestRecord, current: bool) -> Self {
        let usage = &record.priced.usage;
        let quantities = &usage.quantities;
        let base = &record.quote.base;
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
            cached_input_tokens: quantities.cached_input,
            cache_write_tokens: usage.cache_write_tokens(),
            reasoning_tokens: quantities.reasoning,
            input_audio_tokens: quantities.input_audio,
            output_audio_tokens: quantities.output_audio,
            input_cost: base.input,
            output_cost: base.output,
            total_cost: base.total().unwrap_or_default(),
            payer: current.then_some(record.quote.base_payer),
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

/// `GET /requests/{id}`
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let not_found = || ApiError::not_found(ErrorCode::RequestNotFound, "request");
    let id: RequestId = id.parse().map_err(|_| not_found())?;
    let read = move |conn: &mut _| requests::find(conn, caller.merchant_id, id);
    let record = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(RecordView::of(&record, app.settings.shape)))
}

/// `GET /requests`
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let filter = filter(&query, &mut issues);
    let page = query.page::<RequestId>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let read = move |conn: &mut _| requests::list(conn, caller.merchant_id, &filter, &page);
    let found = app.store.read(read).await?;
    let shape = app.settings.shape;
    Ok(respond(
        found,
        page.limit,
        |one| one.request_id.to_string(),
        |one| RecordView::of(one, shape),
    ))
}

/// Which records are asked for.
pub(super) fn filter(query: &Query, issues: &mut Vec<Issue>) -> RequestFilter {
    let customer = query.get("connection_id").map(|id| ("connection_id", id));
    let customer = customer.or_else(|| query.get("customer_id").map(|id| ("customer_id", id)));
    RequestFilter {
        connection_id: customer.and_then(|(name, id)| optional_id(name, Some(id), issues)),
        meter_id: optional_id("meter_id", query.get("meter_id"), issues),
        metadata: metadata_filters(query.get("metadata_filters"), issues),
    }
}

/// A JSON array of `[key, value]` pairs of strings.
fn metadata_filters(text: Option<&str>, issues: &mut Vec<Issue>) -> Vec<(String, String)> {
    const NAME: &str = "metadata_filters";
    let Some(text) = text else { return Vec::new() };
    let Ok(pairs) = serde_json::from_str::<Vec<Value>>(text) else {
        issues.push(Issue::at([NAME], "must be a JSON array of [key, value] pairs"));
        return Vec::new();
    };
    let mut filters = Vec::new();
    for (place, pair) in pairs.into_iter().enumerate() {
        let place = place.to_string();
        match serde_json::from_value::<(String, String)>(pair) {
            Ok((key, _)) if !Metadata::is_key(&key) => issues.push(Issue::at(
                [NAME, &place, "0"],
                "must have 1 to 255 ASCII letters, digits and underscores",
            )),
            Ok((_, value)) if value.contains('\0') => {
                issues.push(Issue::at([NAME, &place, "1"], "must not contain NUL"));
            }
            Ok(filter) => filters.push(filter),
            Err(_) => {
                issues.push(Issue::at([NAME, &place], "must be a pair of strings: [key, value]"));
            }
        }
    }
    filters
}
