//! What a call can cost at most, and what it cost.

use tollgate_domain::admission::{self, CostBound};
use tollgate_domain::{
    Forwarded, Issue, MissingPrice, PricedUsage, ProviderKeyType, RequestId, Timestamp, UsageSource,
};
use tollgate_pricing::{AppliedPrices, Listed, PriceRow, Served, Usage};
use tollgate_provider::{CallBody, Endpoint, OutputBound, Reading, UsageBound, estimate_input};

use super::credential::Credential;
use super::outbound::Outbound;
use crate::app::{App, KeyOwner, Unpriced};
use crate::http::error::{ApiError, ErrorCode};
use crate::metrics::OfProvider;

/// What a call is taken to answer at most when neither it nor the price list says.
const UNKNOWN_OUTPUT_TOKENS: u64 = 4_096;

/// How many bytes `"max_completion_tokens": 1000000000, ` and its like take.
const STATED_MAXIMUM_BYTES: u64 = 40;

/// The call as it asks to be admitted: refused here when its price is unknown and must not be.
pub(super) fn admission(
    owner: KeyOwner,
    credential: &Credential,
    outbound: &Outbound,
    app: &App,
) -> Result<Box<admission::Call>, ApiError> {
    let connection_id = credential.connection_id.as_deref().map(str::parse).transpose();
    let now = app.clock.now();
    let Outbound { endpoint, call_body, managed, .. } = outbound;
    let metered = endpoint.metered();
    let (bound, input_estimate) = match metered {
        true => {
            let tariff = app.tariff(now);
            let listed = tariff.find(&endpoint.provider.name, call_body.model.as_deref());
            let bound = bound(endpoint, call_body, *managed, listed, tariff.unpriced);
            let bound = bound.inspect_err(|refused| {
                if refused.code() == ErrorCode::ModelPriceUnknown {
                    let model = call_body.model.as_deref().unwrap_or_default();
                    let missing = MissingPrice::of_model(&endpoint.provider.name, model);
                    app.store.tell_missing_price(owner.merchant_id, missing);
                }
            })?;
            (bound, input_estimate(call_body, listed))
        }
        false => (CostBound::default(), PricedUsage::nothing()),
    };
    Ok(Box::new(admission::Call {
        request_id: RequestId::generate(now),
        merchant_id: owner.merchant_id,
        key: owner.key,
        connection_id: connection_id
            .map_err(|_| ApiError::from(admission::Refusal::ConnectionNotFound))?,
        meter_slug: credential.meter_slug.clone(),
        disable_billing: credential.disable_billing,
        forwarded: Forwarded {
            provider: endpoint.provider.name.clone(),
            endpoint: [endpoint.method.as_str(), " ", endpoint.recorded_url()].concat(),
            metered,
            provider_key_type: match managed {
                true => ProviderKeyType::Managed,
                false => ProviderKeyType::Unmanaged,
            },
            model: call_body.model.clone(),
            metadata: outbound.metadata.clone(),
            input_estimate,
        },
        shape: endpoint.shape(),
        names_other_models: call_body.names_other_models,
        bound,
        created_at: now,
    }))
}

/// The most that a metered call can use, and the prices that it can meet by the row that is `listed`
/// for its model; refused when they are unknown and must not be.
pub(crate) fn bound(
    endpoint: &Endpoint,
    body: &CallBody,
    managed: bool,
    listed: Option<Listed<'_>>,
    unpriced: Unpriced,
) -> Result<CostBound, ApiError> {
    // A row of prices for another kind of use would make this one cost nothing.
    let prices = |row: &PriceRow| {
        let mut sets = endpoint.billed_units().iter();
        sets.all(|units| units.iter().any(|unit| row.prices.price(*unit).is_some()))
    };
    let listed = listed.filter(|listed| prices(listed.row));
    if listed.is_none() {
        refuse_unpriced(endpoint, managed, unpriced)?;
    }
    Ok(bound_at(listed, endpoint, body))
}

fn refuse_unpriced(endpoint: &Endpoint, managed: bool, unpriced: Unpriced) -> Result<(), ApiError> {
    let allowed = match unpriced {
        Unpriced::Allow => true,
        Unpriced::Refuse => false,
        Unpriced::RefuseManaged => !managed,
    };
    if allowed {
        return Ok(());
    }
    let provider = &endpoint.provider.name;
    let issue = format!("has no price at {provider}; the operator can set one in [[prices]]");
    Err(ApiError::with_issues(
        ErrorCode::ModelPriceUnknown,
        "The price of this model is not known, so the call is not sent.",
        vec![Issue::at(["model"], issue)],
    ))
}

/// The most that the call can use, and the dearest prices of its row.
fn bound_at(listed: Option<Listed<'_>>, endpoint: &Endpoint, body: &CallBody) -> CostBound {
    let UsageBound { input_tokens, output, answers, tool_calls, others, unbounded } =
        body.bound(endpoint);
    let row = listed.map(|listed| listed.row);
    let (max_tokens, is_unknown) = match (output, row.and_then(|row| row.max_output_tokens)) {
        (OutputBound::None, _) => (0, false),
        (OutputBound::Stated(most), _) | (OutputBound::Unstated, Some(most)) => (most, false),
        (OutputBound::Unstated, None) => (UNKNOWN_OUTPUT_TOKENS, true),
    };
    let (listed, unlisted): (Vec<_>, Vec<_>) = body
        .tiers()
        .iter()
        .partition(|(_, tier)| row.is_some_and(|row| row.tiers.contains_key(tier)));
    let tiers: Vec<&str> = listed.iter().map(|(_, tier)| tier.as_str()).collect();
    let prices = row.map(|row| row.dearest(input_tokens, &tiers));
    let tools_unpriced =
        tool_calls > 0 && prices.as_ref().is_some_and(|prices| prices.tool_call.is_none());
    let without_bound = [
        (prices.is_none(), "model"),
        (is_unknown, max_tokens_field(endpoint)),
        (tools_unpriced, "tools"),
    ];
    let unlisted = unlisted.first().map(|(field, _)| (true, *field));
    let field = without_bound.into_iter().chain(unlisted).find(|(holds, _)| *holds);
    // What the field takes of the body goes in too, in each round of a tool.
    let to_state_maximum = match output {
        OutputBound::Unstated => STATED_MAXIMUM_BYTES.saturating_mul(tool_calls.saturating_add(1)),
        OutputBound::None | OutputBound::Stated(_) => 0,
    };
    CostBound {
        input_tokens,
        max_tokens,
        to_state_maximum,
        answers,
        tool_calls,
        others,
        prices,
        unbounded: unbounded.or_else(|| field.map(|(_, field)| vec![field.to_owned()])),
    }
}

/// How the format of the endpoint names the most tokens of an answer.
fn max_tokens_field(endpoint: &Endpoint) -> &'static str {
    match endpoint.operation {
        Some(operation) if operation.path == "/responses" => "max_output_tokens",
        _ => "max_tokens",
    }
}

/// What the input alone comes to by the row of its model, should no answer ever tell.
fn input_estimate(body: &CallBody, listed: Option<Listed<'_>>) -> PricedUsage {
    let usage = estimate_input(body);
    // A cost that no amount has room for leaves it unpriced.
    let cost = listed.and_then(|listed| Some((listed.base(&usage).ok()?, listed.source)));
    let (base, price_source) = cost.unwrap_or_default();
    PricedUsage { usage, usage_source: UsageSource::Estimated, base, price_source }
}

/// What was used, and of an estimate no more than the model can answer: what comes beside the text is
/// not text.
fn believable(reading: &Reading, outbound: &Outbound, listed: Option<Listed<'_>>) -> Usage {
    let mut usage = reading.usage;
    let most = listed.and_then(|listed| listed.row.max_output_tokens);
    if let (UsageSource::Estimated | UsageSource::Partial, Some(most)) = (reading.source, most) {
        let most = most.saturating_mul(outbound.call_body.answers());
        usage.quantities.output = usage.quantities.output.min(most);
    }
    usage
}

/// Prices what was read from an answer: by the model that served it, at the prices of the moment at
/// which the call came in. A provider may serve under a name that no list has; then what was asked for
/// is priced.
pub(super) fn reading(
    reading: &Reading,
    outbound: &Outbound,
    app: &App,
    came_in: Timestamp,
    counts: &OfProvider,
) -> (PricedUsage, Vec<AppliedPrices>, Option<MissingPrice>) {
    if !outbound.endpoint.metered() {
        return (PricedUsage::nothing(), Vec::new(), None);
    }
    let asked = outbound.call_body.model.as_deref();
    let models: Vec<&str> = reading.model.as_deref().into_iter().chain(asked).collect();
    // A call may name no model by nature: then a row for all of them prices it.
    let models = if models.is_empty() { vec![""] } else { models };
    let provider = &outbound.endpoint.provider.name;
    let tariff = app.tariff(came_in);
    let listed = tariff.find(provider, models.first().copied());
    let used = believable(reading, outbound, listed);
    let others = || models.iter().skip(1).find_map(|model| tariff.find(provider, Some(*model)));
    let own = listed.or_else(others);
    let served = Served {
        provider,
        models: &models,
        tiers: &reading.tiers,
        on: came_in.date(),
        time: Some(came_in.time()),
        usage: &used,
        parts: &reading.parts,
    };
    let priced = tariff.price_by(&served, own);
    counts.answered(reading, &priced);
    let missing = MissingPrice::of(provider, models.first().unwrap_or(&""), &used, &priced);
    let usage = PricedUsage {
        usage: used,
        usage_source: reading.source,
        base: priced.base,
        price_source: priced.source,
    };
    (usage, priced.applied, missing)
}
