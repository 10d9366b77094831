//! Quotes: what a call would cost, or hold, without a call.

use actix_web::{HttpResponse, web};
use deserr::{Deserr, IntoValue, Value, ValuePointerRef};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollgate_domain::admission::Refusal;
use tollgate_domain::{
    ConnectionId, ConnectionStatus, FeeModel, Issue, MerchantId, MeterId, PricedUsage,
    PricingTerms, Quote, Timestamp,
};
use tollgate_pricing::{Amount, Overflow, PerUnit, PriceSource, Rate, RateType, TokenBasis, Usage};
use tollgate_store::{Conn, connections, meters};
use utoipa::ToSchema;

use super::connections::not_found as connection_not_found;
use super::meters::not_found as meter_not_found;
use super::requests::{CostView, CurrentCost, ModelUsageView};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::ApiError;
use crate::http::fields::{CountField, Issues, NameField, SecondsField, path, refuse, to_json};
use crate::openapi::marks::refused;
use crate::openapi::types::*;
use crate::settings::InterfaceShape;
use tollgate_gateway::CallBound;

/// The price of a usage, in the fields of a request record.
#[derive(Serialize, ToSchema)]
#[schema(as = QuoteOfUsage)]
pub struct QuoteView {
    /// The usage and the base cost.
    model_usage: ModelUsageView,
    /// The source of the price.
    price_source: PriceSource,
    #[serde(flatten)]
    #[schema(value_type = CurrentCost)]
    cost: CostView,
}

impl QuoteView {
    /// The view of a quote under a meter, or none.
    pub fn of(
        priced: &PricedUsage,
        quote: &Quote,
        meter: Option<&FeeModel>,
        shape: InterfaceShape,
    ) -> Self {
        let rate_type = meter.map_or(RateType::Fixed, |model| model.meter.rate_type);
        let token_basis = meter.map_or(TokenBasis::InputOutput, |model| model.meter.token_basis);
        Self {
            model_usage: ModelUsageView::of(&priced.usage, quote, shape),
            price_source: priced.price_source,
            cost: CostView::of(quote, rate_type, token_basis, shape),
        }
    }
}

/// The hold of a call.
#[derive(Serialize, ToSchema)]
#[schema(as = QuoteOfCall)]
pub struct HoldView {
    /// The amount that the call would hold, for any payer. A spend key holds all of it, and each wallet holds its
    /// part.
    hold: Amount,
    /// The path, within the body, of the field that leaves the cost without a bound. The hold is then an estimate.
    /// Absent when there is a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unbounded_field: Option<Vec<String>>,
}

impl HoldView {
    /// The view of a hold and of the bound that it comes from.
    pub fn of(hold: &Quote, bound: &CallBound) -> Self {
        Self {
            hold: hold.total_request_cost,
            unbounded_field: bound.cost().and_then(|cost| cost.unbounded.clone()),
        }
    }
}

/// The answer to either kind of question.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Quoted)]
enum QuoteResponse {
    Usage(QuoteView),
    Call(HoldView),
}

/// A usage in the fields of a record: totals, and the parts of them that are not plain text.
#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = Usage)]
struct StatedUsage {
    /// Tokens of input.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    input_tokens: CountField,
    /// Tokens of output.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    output_tokens: CountField,
    /// Characters of input.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    input_characters: CountField,
    /// Characters of output.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    output_characters: CountField,
    /// Seconds of input, also in a string with up to six decimals: `"1.5"`.
    #[deserr(default)]
    #[schema(value_type = Option<SecondsField>)]
    input_seconds: SecondsField,
    /// Seconds of output, likewise.
    #[deserr(default)]
    #[schema(value_type = Option<SecondsField>)]
    output_seconds: SecondsField,
    /// Input tokens that were read from a cache. They are part of `input_tokens`. The parts together are at most
    /// the total.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    cached_input_tokens: CountField,
    /// Input tokens that were written to a cache, for five minutes. They are part of `input_tokens`.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    cache_write_tokens: CountField,
    /// Input tokens of audio. They are part of `input_tokens`.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    input_audio_tokens: CountField,
    /// Output tokens of reasoning. They are part of `output_tokens`. The parts together are at most the total.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    reasoning_tokens: CountField,
    /// Output tokens of audio. They are part of `output_tokens`.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    output_audio_tokens: CountField,
    /// Images.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    images: CountField,
    /// Calls of tools at the provider.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>)]
    tool_calls: CountField,
    /// The number of calls. Default: 1.
    #[deserr(default = CountField(1))]
    #[schema(value_type = Option<CountField>)]
    requests: CountField,
}

impl StatedUsage {
    /// The usage as disjoint quantities, or an issue for each part that exceeds its total.
    fn usage(&self) -> Result<Usage, Vec<Issue>> {
        let mut issues = Vec::new();
        let input = [
            ("cached_input_tokens", self.cached_input_tokens),
            ("cache_write_tokens", self.cache_write_tokens),
            ("input_audio_tokens", self.input_audio_tokens),
        ];
        let output = [
            ("reasoning_tokens", self.reasoning_tokens),
            ("output_audio_tokens", self.output_audio_tokens),
        ];
        let quantities = PerUnit {
            input: rest("input_tokens", self.input_tokens, &input, &mut issues),
            cached_input: self.cached_input_tokens.0,
            cache_write: self.cache_write_tokens.0,
            input_audio: self.input_audio_tokens.0,
            output: rest("output_tokens", self.output_tokens, &output, &mut issues),
            reasoning: self.reasoning_tokens.0,
            output_audio: self.output_audio_tokens.0,
            input_characters: self.input_characters.0,
            output_characters: self.output_characters.0,
            input_second: self.input_seconds.0,
            output_second: self.output_seconds.0,
            image: self.images.0,
            request: self.requests.0,
            tool_call: self.tool_calls.0,
            ..PerUnit::default()
        };
        match issues.is_empty() {
            true => Ok(Usage { quantities, provider_cost: None }),
            false => Err(issues),
        }
    }
}

/// The rest of a total without its parts.
fn rest(
    name: &str,
    total: CountField,
    parts: &[(&str, CountField)],
    issues: &mut Vec<Issue>,
) -> u64 {
    let mut left = total.0;
    for (part, count) in parts {
        match left.checked_sub(count.0) {
            Some(less) => left = less,
            None => {
                let message = format!("is a part of {name}, of which {left} are left");
                issues.push(Issue::at([part], message));
            }
        }
    }
    left
}

/// A usage as it is stated. A field that is null counts as absent.
struct UsageField(Usage);

impl Deserr<Issues> for UsageField {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let mut stated = to_json(value);
        if let Some(fields) = stated.as_object_mut() {
            fields.retain(|_, count| !count.is_null());
        }
        let stated = StatedUsage::deserialize_from_value(stated.into_value(), location)?;
        stated.usage().map(Self).map_err(|mut issues| {
            issues
                .iter_mut()
                .for_each(|issue| issue.path.splice(0..0, path(location)).for_each(drop));
            Issues(issues)
        })
    }
}

/// Reads the usage that a JSON object states, in the fields of `POST /quote`.
///
/// # Errors
/// [`ApiError`] with all issues of the object.
pub fn usage(stated: serde_json::Value) -> Result<Usage, ApiError> {
    let UsageField(usage) =
        deserr::deserialize(stated).map_err(|Issues(issues)| ApiError::invalid(issues))?;
    Ok(usage)
}

/// A JSON object; its contents are read elsewhere.
struct AnyObject;

impl Deserr<Issues> for AnyObject {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        match value {
            Value::Map(_) => Ok(Self),
            _ => Err(refuse("must be an object", location)),
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = Quote)]
struct QuoteFields {
    /// The meter that charges the fee. It starts where its counter is in the present tier period. The counter is
    /// that of the connection, or else that of the merchant's own calls. Without a meter there is no fee.
    #[deserr(default)]
    #[schema(value_type = Option<MeterId>)]
    meter_id: Option<NameField>,
    /// The connection whose wallet pays. It needs `meter_id`. Without a connection the merchant pays everything.
    #[deserr(default)]
    #[schema(value_type = Option<ConnectionId>)]
    connection_id: Option<NameField>,
    /// The provider of `usage`. It needs `model`.
    #[deserr(default)]
    provider: Option<NameField>,
    /// The model of `usage`. It needs `provider`. A model without a price costs 0, and `price_source` is
    /// `unpriced`.
    #[deserr(default)]
    model: Option<NameField>,
    /// The usage whose charge is asked for. A count that is absent is 0.
    #[deserr(default)]
    #[schema(value_type = Option<StatedUsage>)]
    usage: Option<UsageField>,
    /// The URL to which `body` would be posted with the operator's key.
    #[deserr(default)]
    url: Option<String>,
    /// The body whose hold is asked for. Its bytes count as they are here, including spaces.
    #[deserr(default, rename = "body")]
    #[schema(rename = "body", value_type = Option<Object>, additional_properties = true)]
    _body: Option<AnyObject>,
}

/// The subject of a quote, with its meter and connection.
pub(crate) struct QuoteInput {
    subject: QuoteSubject,
    meter_id: Option<NameField>,
    connection_id: Option<NameField>,
}

enum QuoteSubject {
    /// A usage, of a model at a provider.
    Usage(Option<(NameField, NameField)>, Box<Usage>),
    /// A body that would be posted to this URL.
    Call(String),
}

impl Input for QuoteInput {}

impl Deserr<Issues> for QuoteInput {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        // The combination of fields is checked beside their values, so that all issues come at once.
        let value = to_json(value);
        let mut issues = value.as_object().map(combination).unwrap_or_default();
        match QuoteFields::deserialize_from_value(value.into_value(), location) {
            Err(Issues(more)) => issues.extend(more),
            Ok(QuoteFields { meter_id, connection_id, provider, model, usage, url, .. }) => {
                let subject = match (usage, url) {
                    (Some(UsageField(usage)), _) => {
                        Some(QuoteSubject::Usage(provider.zip(model), Box::new(usage)))
                    }
                    (None, url) => url.map(QuoteSubject::Call),
                };
                if let Some(subject) = subject.filter(|_| issues.is_empty()) {
                    return Ok(Self { subject, meter_id, connection_id });
                }
            }
        }
        Err(Issues(issues))
    }
}

/// An issue for each field that is missing beside the others, or excluded by them.
fn combination(fields: &serde_json::Map<String, serde_json::Value>) -> Vec<Issue> {
    let has = |name| fields.get(name).is_some_and(|value| !value.is_null());
    let [usage, url, body] = ["usage", "url", "body"].map(has);
    let [provider, model] = ["provider", "model"].map(has);
    let call = !usage && (url || body);
    let rules = [
        (!usage && !call, None, "must have either usage, or url and body"),
        (usage && url, Some("url"), "does not go with usage"),
        (usage && body, Some("body"), "does not go with usage"),
        (call && !url, Some("url"), "is required with body"),
        (call && !body, Some("body"), "is required with url"),
        (call && provider, Some("provider"), "does not go with url, which says it"),
        (call && model, Some("model"), "does not go with body, which says it"),
        (!call && model && !provider, Some("provider"), "is required with model"),
        (!call && provider && !model, Some("model"), "is required with provider"),
        (
            has("connection_id") && !has("meter_id"),
            Some("meter_id"),
            "is required with connection_id: a connection is billed under a meter",
        ),
    ];
    let broken = rules.into_iter().filter(|(is_broken, ..)| *is_broken);
    broken
        .map(|(_, field, message)| Issue {
            path: field.into_iter().map(str::to_owned).collect(),
            message: message.to_owned(),
        })
        .collect()
}

/// The terms of a quote: the meter, its counter, and whether a connection pays.
#[derive(Default)]
struct QuoteContext {
    meter: Option<FeeModel>,
    counter: u64,
    has_connection: bool,
}

impl QuoteContext {
    fn find(
        conn: &mut Conn,
        merchant_id: MerchantId,
        meter_id: Option<MeterId>,
        connection_id: Option<ConnectionId>,
        now: Timestamp,
    ) -> Result<Self, ApiError> {
        let connection = match connection_id {
            Some(id) => {
                let found = connections::find(conn, merchant_id, id)?;
                Some(found.ok_or_else(connection_not_found)?)
            }
            None => None,
        };
        let Some(meter_id) = meter_id else { return Ok(Self::default()) };
        let meter = meters::find(conn, merchant_id, meter_id)?.ok_or_else(meter_not_found)?;
        if connection.is_some_and(|one| one.status == ConnectionStatus::Deleted) {
            return Err(Refusal::ConnectionDisabled.into());
        }
        Ok(Self {
            counter: meters::counted(conn, &meter, connection_id, now)?,
            meter: Some(meter.model),
            has_connection: connection_id.is_some(),
        })
    }

    /// The terms of a call with the operator's key that the provider accepts.
    fn terms(&self, service_charge_rate: Rate) -> PricingTerms<'_> {
        PricingTerms {
            meter: self.meter.as_ref(),
            counter: self.counter,
            service_charge_rate,
            wallet_pays: self.has_connection,
            base_due: true,
            fee_due: true,
        }
    }
}

/// The price of a usage, with its inputs.
pub struct QuotedUsage {
    /// The priced usage.
    pub priced: PricedUsage,
    /// The quote.
    pub quote: Quote,
    /// The fee model, if there is a meter.
    pub meter: Option<FeeModel>,
    /// The units that were counted under the meter before.
    pub counter: u64,
}

/// Quotes a usage, of a model at a provider if one is named. Nothing is written.
pub async fn quote_usage(
    app: &App,
    merchant_id: MerchantId,
    meter_id: Option<MeterId>,
    connection_id: Option<ConnectionId>,
    served: Option<(&str, &str)>,
    usage: Usage,
) -> Result<QuotedUsage, ApiError> {
    let now = app.clock.now();
    let (priced, _) = app.gateway.tariff(now).price_stated(served, usage);
    let find =
        move |conn: &mut Conn| QuoteContext::find(conn, merchant_id, meter_id, connection_id, now);
    let standing = app.store.read(find).await?;
    let terms = standing.terms(app.store.service_charge_rate());
    let quote = Quote::new(&priced.usage, priced.base, &terms).map_err(cost_overflow)?;
    Ok(QuotedUsage { priced, quote, counter: standing.counter, meter: standing.meter })
}

/// Quote the price of a usage, or the hold of a call.
///
/// Send either `usage` (with `provider` and `model`, or neither), or `url` and `body` of a call. Nothing is
/// written.
#[utoipa::path(
    post,
    path = "/quote",
    operation_id = "quote",
    request_body = QuoteFields,
    responses(
        (status = 200, description = "The quote", body = QuoteResponse),
        ApiError, refused::ForwardEndpointNotSupported, refused::ForwardTokenJsonInvalid,
        refused::ModelPriceUnknown, refused::ConnectionNotFound, refused::MeterNotFound,
        refused::ConnectionDisabled,
    ),
)]
pub(crate) async fn quote(
    app: web::Data<App>,
    asked: ApiRequest<Caller, QuoteInput>,
) -> Result<HttpResponse, ApiError> {
    let QuoteInput { subject, meter_id, connection_id } = asked.what;
    let merchant_id = asked.caller.merchant_id;
    let ids = || {
        let meter_id = meter_id.map(|id| id.0.parse().map_err(|_| meter_not_found()));
        let connection_id =
            connection_id.map(|id| id.0.parse().map_err(|_| connection_not_found()));
        let connection_id = connection_id.transpose()?;
        Ok::<_, ApiError>((meter_id.transpose()?, connection_id))
    };
    let quoted = match subject {
        QuoteSubject::Usage(served, usage) => {
            let served = served.as_ref().map(|(provider, model)| (&*provider.0, &*model.0));
            let (meter_id, connection_id) = ids()?;
            let quoted =
                quote_usage(&app, merchant_id, meter_id, connection_id, served, *usage).await?;
            let QuotedUsage { priced, quote, meter, .. } = &quoted;
            QuoteResponse::Usage(QuoteView::of(priced, quote, meter.as_ref(), app.settings.shape))
        }
        QuoteSubject::Call(url) => {
            let now = app.clock.now();
            let bound = app.gateway.tariff(now).bound(&url, body_of(&asked.bytes))?;
            let (meter_id, connection_id) = ids()?;
            let find = move |conn: &mut Conn| {
                QuoteContext::find(conn, merchant_id, meter_id, connection_id, now)
            };
            let standing = app.store.read(find).await?;
            let terms = standing.terms(app.store.service_charge_rate());
            let hold = bound.hold(&terms);
            let hold = hold.map_err(|refused| ApiError::from(refused).within("body"))?;
            QuoteResponse::Call(HoldView::of(&hold, &bound))
        }
    };
    Ok(HttpResponse::Ok().json(quoted))
}

/// The body to be forwarded, byte for byte as it is in this request. Its spaces count.
fn body_of(bytes: &[u8]) -> &[u8] {
    #[derive(Deserialize)]
    struct ForwardedBody<'a> {
        #[serde(borrow)]
        body: &'a RawValue,
    }
    serde_json::from_slice(bytes)
        .map_or(b"", |whole: ForwardedBody<'_>| whole.body.get().as_bytes())
}

fn cost_overflow(_: Overflow) -> ApiError {
    ApiError::invalid(vec![Issue::at(["usage"], "costs more than an amount can say")])
}
