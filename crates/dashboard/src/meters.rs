//! The pages of meters, and a preview of what a usage would cost under one.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{MerchantMeter, MeterId, Payer, TierPeriod};
use tollgate_pricing::{Amount, PerUnit, PriceSource, Rate, RateType, TierUnit, Usage};
use tollgate_store::{Conn, StoreError, meters};

use crate::answer::{PageError, issue_sentences, respond};
use crate::page::{DashboardSection, Fact, FormChoice, Shell, connection_choices};
use crate::price::{PriceLine, fee_line, payer};
use crate::session::SessionUser;
use crate::text;
use tollgate_api::operations::meter_not_found as not_found;
use tollgate_api::operations::{QuotedUsage, quote_usage};
use tollgate_api::{ApiError, App, Query};

/// A meter in a list.
pub(crate) struct MeterItem {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) slug: String,
    pub(crate) kind: String,
    pub(crate) tiers: String,
    /// The part of revenue that its first markup leaves, if it is a markup that the customer pays.
    pub(crate) margin: String,
}

impl MeterItem {
    pub(crate) fn of(meter: &MerchantMeter, service_charge: Rate) -> Self {
        let rates = meter.model.meter.tiers().iter().map(|tier| rate(meter, tier.rate.to_string()));
        Self {
            id: meter.meter_id.to_string(),
            name: meter.name.clone(),
            slug: meter.slug.clone(),
            kind: unit(meter.model.meter.unit).to_owned(),
            tiers: rates.collect::<Vec<_>>().join(" → "),
            margin: margin(meter, service_charge).unwrap_or_else(|| "depends on use".to_owned()),
        }
    }
}

/// The part of what the customer pays that is left to the merchant at the first tier, after the provider's cost and the
/// service charge.
fn margin(meter: &MerchantMeter, service_charge: Rate) -> Option<String> {
    let model = &meter.model;
    let is_markup = model.meter.rate_type == RateType::Percentage;
    let tier = model.meter.tiers().first().filter(|_| is_markup)?;
    if model.base_cost_payer == Payer::Merchant {
        return None;
    }
    // Of a base cost of 100 USD, a rate in percent is an amount in USD.
    let fee = tier.rate.of(Amount::USD).ok()?;
    let charge = i128::from(service_charge.of(fee).ok()?.units());
    let (fee, cost) = (i128::from(fee.units()), 100 * i128::from(Amount::USD.units()));
    Some(match model.service_charge_payer {
        Payer::Wallet => text::percent(fee, cost + fee + charge),
        Payer::Merchant => text::percent(fee - charge, cost + fee),
    })
}

/// A rate with its unit.
fn rate(meter: &MerchantMeter, rate: String) -> String {
    match (meter.model.meter.rate_type, meter.model.meter.unit) {
        (RateType::Percentage, _) => format!("{rate}%"),
        (RateType::Fixed, TierUnit::Tokens | TierUnit::Characters) => format!("${rate}/M"),
        (RateType::Fixed, TierUnit::Minutes) => format!("${rate}/min"),
        (RateType::Fixed, TierUnit::Requests) => format!("${rate}"),
    }
}

const fn unit(unit: TierUnit) -> &'static str {
    match unit {
        TierUnit::Tokens => "tokens",
        TierUnit::Characters => "characters",
        TierUnit::Minutes => "minutes",
        TierUnit::Requests => "requests",
    }
}

#[derive(Template)]
#[template(path = "meter.html")]
struct MeterPage {
    shell: Shell,
    id: String,
    /// The rate of a meter with one tier, which the form changes.
    single_rate: Option<String>,
    facts: Vec<Fact>,
    tiers: Vec<(String, String)>,
    /// The unit that the meter counts, if it is not tokens.
    counts: Option<&'static str>,
    asked: PreviewForm,
    connections: Vec<FormChoice>,
    preview: Option<Preview>,
    problems: Vec<String>,
}

/// The form of the preview as it was filled in.
struct PreviewForm {
    input: String,
    output: String,
    /// Characters, minutes or requests, as the meter counts.
    amount: String,
    provider: String,
    model: String,
    connection_id: String,
    /// Whether the form was sent.
    is_sent: bool,
}

impl PreviewForm {
    fn of(query: &Query) -> Self {
        let text = |name| query.get(name).unwrap_or_default().trim().to_owned();
        Self {
            input: text("input"),
            output: text("output"),
            amount: text("amount"),
            provider: text("provider"),
            model: text("model"),
            connection_id: text("connection_id"),
            is_sent: query.get("input").is_some(),
        }
    }

    /// The usage of the form, if it has any.
    fn usage(&self, unit: TierUnit) -> Result<Option<Usage>, String> {
        if [&self.input, &self.output, &self.amount].iter().all(|text| text.is_empty()) {
            return Ok(None);
        }
        let number = |name: &str, text: &str| -> Result<u64, String> {
            if text.is_empty() {
                return Ok(0);
            }
            let digits: String = text.chars().filter(|c| !matches!(c, ',' | ' ' | '_')).collect();
            let parsed = digits.parse().ok().filter(|number| *number <= MOST);
            parsed.ok_or_else(|| format!("{name} must be a whole number up to 1,000,000,000,000."))
        };
        let mut quantities = PerUnit::<u64> {
            input: number("Input tokens", &self.input)?,
            output: number("Output tokens", &self.output)?,
            request: 1,
            ..PerUnit::default()
        };
        match unit {
            TierUnit::Tokens => {}
            TierUnit::Characters => {
                quantities.input_characters = number("Characters", &self.amount)?;
            }
            TierUnit::Minutes => {
                let minutes = number("Minutes", &self.amount)?.min(MOST_MINUTES);
                quantities.input_second = minutes.saturating_mul(60_000_000);
            }
            TierUnit::Requests => quantities.request = number("Requests", &self.amount)?,
        }
        Ok(Some(Usage { quantities, provider_cost: None }))
    }
}

/// The most that `POST /quote` takes.
const MOST: u64 = 1_000_000_000_000;
const MOST_MINUTES: u64 = 100_000_000;

/// The price of the usage.
struct Preview {
    counted_before: String,
    fee: Vec<PriceLine>,
    fee_amount: String,
    base: String,
    /// A note on the provider's cost.
    of_base: &'static str,
    service_charge: String,
    wallet: String,
    merchant: String,
    total: String,
}

impl Preview {
    fn of(meter: &MerchantMeter, has_model: bool, quoted: &QuotedUsage) -> Self {
        let (quote, unit) = (&quoted.quote, meter.model.meter.unit);
        let counted = quoted.counter / unit.counted_per_start();
        let lines = quote.fee.lines.iter().map(|line| fee_line(line, meter.model.meter.rate_type));
        Self {
            counted_before: format!("{} {}", text::count(counted.into()), self::unit(unit)),
            fee: lines.collect(),
            fee_amount: quote.fee.amount().unwrap_or_default().to_string(),
            base: quoted.priced.base.total().unwrap_or_default().to_string(),
            of_base: match (has_model, quoted.priced.price_source) {
                (false, _) => "name a provider and a model to have it reckoned in",
                (true, PriceSource::Unpriced) => {
                    "there is no price of that model at that provider: what it charges is not known"
                }
                (true, _) => "",
            },
            service_charge: quote.service_charge.amount.to_string(),
            wallet: quote.total_wallet_cost.to_string(),
            merchant: quote.total_merchant_cost.to_string(),
            total: quote.total_request_cost.to_string(),
        }
    }
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let id: MeterId = id.parse().map_err(|_| not_found())?;
    let merchant_id = visitor.merchant_id();
    let asked = PreviewForm::of(&Query::of(&http));
    let chosen = asked.connection_id.parse().ok();
    let read = move |conn: &mut Conn| {
        let meter = meters::find(conn, merchant_id, id)?;
        Ok::<_, StoreError>((meter, connection_choices(conn, merchant_id, chosen)?))
    };
    let (meter, connections) = app.store.read(read).await?;
    let meter = meter.ok_or_else(not_found)?;
    let (preview, problems) = match preview(&app, &visitor, &meter, &asked).await {
        Ok(preview) => (preview, Vec::new()),
        Err(problems) => (None, problems),
    };
    let model = &meter.model;
    let tiers = model.meter.tiers().iter().map(|tier| {
        let start =
            format!("from {} {} on", text::count(tier.start.into()), unit(model.meter.unit));
        (start, rate(&meter, tier.rate.to_string()))
    });
    let facts = vec![
        Fact::new("Id", meter.meter_id.to_string()),
        Fact::new("Slug", meter.slug.clone()),
        Fact::new(
            "Counts",
            match model.meter.unit {
                TierUnit::Tokens => format!("tokens ({})", text::word(&model.meter.token_basis)),
                other => unit(other).to_owned(),
            },
        ),
        Fact::new(
            "Rates are",
            match model.meter.rate_type {
                RateType::Fixed => "USD per unit",
                RateType::Percentage => "percent on top of what the provider charges",
            },
        ),
        Fact::new(
            "Tiers start again",
            match meter.tier_period {
                TierPeriod::Lifetime => "never",
                TierPeriod::Month => "with each month, UTC",
            },
        ),
        Fact::new("Provider's cost", payer(model.base_cost_payer)),
        Fact::new("Service charge", payer(model.service_charge_payer)),
        Fact::new("Version", meter.version.to_string()),
    ];
    respond(&MeterPage {
        shell: Shell::new(&visitor, DashboardSection::Pricing, meter.name.clone()),
        id: meter.meter_id.to_string(),
        single_rate: match model.meter.tiers() {
            [tier] => Some(tier.rate.to_string()),
            _ => None,
        },
        facts,
        tiers: tiers.collect(),
        counts: Some(unit(model.meter.unit)).filter(|_| model.meter.unit != TierUnit::Tokens),
        asked,
        connections,
        preview,
        problems,
    })
}

/// Computes what `POST /quote` would answer.
async fn preview(
    app: &App,
    visitor: &SessionUser,
    meter: &MerchantMeter,
    asked: &PreviewForm,
) -> Result<Option<Preview>, Vec<String>> {
    let usage = asked.usage(meter.model.meter.unit).map_err(|problem| vec![problem])?;
    let Some(usage) = usage else {
        let nothing = "Say how many tokens, or what else the meter counts.".to_owned();
        return if asked.is_sent { Err(vec![nothing]) } else { Ok(None) };
    };
    let connection_id = match asked.connection_id.as_str() {
        "" => None,
        id => Some(id.parse().map_err(|_| vec!["There is no such customer.".to_owned()])?),
    };
    let served = match (asked.provider.as_str(), asked.model.as_str()) {
        ("", "") => None,
        ("", _) | (_, "") => {
            return Err(vec!["Name both the provider and the model, or neither.".to_owned()]);
        }
        both => Some(both),
    };
    let (merchant_id, meter_id) = (visitor.merchant_id(), meter.meter_id);
    let quoted = quote_usage(app, merchant_id, Some(meter_id), connection_id, served, usage).await;
    let said = |error: ApiError| match issue_sentences(error.issues()) {
        issues if issues.is_empty() => vec![error.message().to_owned()],
        issues => issues,
    };
    let quoted = quoted.map_err(said)?;
    Ok(Some(Preview::of(meter, served.is_some(), &quoted)))
}
