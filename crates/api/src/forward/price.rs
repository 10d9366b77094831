//! What a call can cost at most, and what it cost.

use tollgate_domain::admission::{self, CostBound};
use tollgate_domain::{
    Forwarded, Issue, PricedUsage, ProviderKeyType, RequestId, Timestamp, UsageSource,
};
use tollgate_pricing::{BaseCost, PriceRow, PriceSource, Usage};
use tollgate_provider::{Reading, estimate_input};

use super::asked::Asked;
use super::credential::Credential;
use crate::app::{App, KeyOwner, Unpriced};
use crate::http::error::{ApiError, ErrorCode};

/// What a call is taken to answer at most when neither it nor the price list says.
const UNKNOWN_OUTPUT_TOKENS: u64 = 4_096;

/// The call as it asks to be admitted: refused here when its price is unknown and must not be.
pub(super) fn admission(
    owner: KeyOwner,
    credential: &Credential,
    asked: &Asked,
    app: &App,
) -> Result<Box<admission::Call>, ApiError> {
    let connection_id = credential.connection_id.as_deref().map(str::parse).transpose();
    let now = app.clock.now();
    let endpoint = &asked.endpoint;
    let model = asked.call_body.model.as_deref();
    let row = find(app, &endpoint.provider.name, model, now);
    let metered = endpoint.metered();
    if metered && row.is_none() {
        refuse_unpriced(asked, app)?;
    }
    let (bound, input_estimate) = match metered {
        true => (bound(asked, row), input_estimate(asked, row)),
        false => (CostBound::default(), PricedUsage::nothing()),
    };
    Ok(Box::new(admission::Call {
        request_id: RequestId::generate(now),
        merchant_id: owner.merchant_id,
        secret_key_id: owner.secret_key_id,
        connection_id: connection_id
            .map_err(|_| ApiError::from(admission::Refusal::ConnectionNotFound))?,
        meter_slug: credential.meter_slug.clone(),
        disable_billing: credential.disable_billing,
        forwarded: Forwarded {
            provider: endpoint.provider.name.clone(),
            endpoint: format!("{} {}", asked.method, endpoint.recorded_url()),
            metered,
            provider_key_type: match asked.managed {
                true => ProviderKeyType::Managed,
                false => ProviderKeyType::Unmanaged,
            },
            model: asked.call_body.model.clone(),
            metadata: asked.metadata.clone(),
            input_estimate,
        },
        bound,
        created_at: now,
    }))
}

/// A price row and whose it is.
type Priced<'a> = Option<(&'a PriceRow, PriceSource)>;

fn find<'a>(app: &'a App, provider: &str, model: Option<&str>, at: Timestamp) -> Priced<'a> {
    app.prices.find(provider, model?, at.date())
}

fn refuse_unpriced(asked: &Asked, app: &App) -> Result<(), ApiError> {
    let allowed = match app.settings.unpriced {
        Unpriced::Allow => true,
        Unpriced::Refuse => false,
        Unpriced::RefuseManaged => !asked.managed,
    };
    if allowed {
        return Ok(());
    }
    let provider = &asked.endpoint.provider.name;
    let issue = format!("has no price at {provider}; the operator can set one in [[prices]]");
    Err(ApiError::with_issues(
        ErrorCode::ModelPriceUnknown,
        "The price of this model is not known, so the call is not sent.",
        vec![Issue::at(["model"], issue)],
    ))
}

/// An upper bound: no tokenizer makes more tokens than there are bytes, and no answer has more
/// than the maximum that was asked for, times the number of answers.
fn bound(asked: &Asked, row: Priced<'_>) -> CostBound {
    let body = &asked.call_body;
    let most = row.and_then(|(row, _)| row.max_output_tokens);
    let output = body.max_output_tokens.or(most).unwrap_or(UNKNOWN_OUTPUT_TOKENS);
    let (input, output) = (body.input_bytes, output.saturating_mul(body.choices.max(1)));
    let mut usage = Usage::tokens(input, output);
    usage.quantities.request = 1;
    let base = row.map(|(row, _)| row.upper_bound(input, output)).unwrap_or_default();
    CostBound { usage, base }
}

/// What the input alone comes to, should no answer ever tell.
fn input_estimate(asked: &Asked, row: Priced<'_>) -> PricedUsage {
    price(estimate_input(&asked.call_body), UsageSource::Estimated, row)
}

/// Prices what was read from an answer: by the model that served it, at the prices of the day on
/// which the call came in.
pub(super) fn reading(
    reading: &Reading,
    asked: &Asked,
    app: &App,
    came_in: Timestamp,
) -> PricedUsage {
    if !asked.endpoint.metered() {
        return PricedUsage::nothing();
    }
    let provider = &asked.endpoint.provider.name;
    let served = find(app, provider, reading.model.as_deref(), came_in);
    // A provider may serve under a name that no list has; what was asked for was priced.
    let row = served.or_else(|| find(app, provider, asked.call_body.model.as_deref(), came_in));
    price(reading.usage, reading.source, row)
}

fn price(usage: Usage, usage_source: UsageSource, row: Priced<'_>) -> PricedUsage {
    let listed = row.and_then(|(row, source)| {
        let prices = row.prices_for(usage.input_tokens());
        if let Some(unit) = BaseCost::unpriced_unit(&usage, prices) {
            log::warn!("{} has no price for {}", row.model.as_str(), unit.price_key());
        }
        Some((BaseCost::of(&usage, prices).ok()?, source))
    });
    let (base, price_source) = match (listed, usage.provider_cost) {
        (Some((base, _)), Some(_)) => (base, PriceSource::Provider),
        (None, Some(total)) => {
            (BaseCost::from_total(Default::default(), total), PriceSource::Provider)
        }
        (Some((base, source)), None) => (base, source),
        (None, None) => (BaseCost::default(), PriceSource::Unpriced),
    };
    PricedUsage { usage, usage_source, base, price_source }
}
