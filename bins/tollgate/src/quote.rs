//! `tollgate quote`: the cost of a usage, or the hold of a call, by the configuration's prices.

use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tollgate_api::{ApiError, HoldView, QuoteView};
use tollgate_domain::{Clock, FeeModel, MerchantId, MeterId, PricedUsage, PricingTerms, Quote};
use tollgate_gateway::{CallBound, Tariff};
use tollgate_pricing::{
    Amount, CostSide, FeeLine, Meter, PriceScale, PriceSource, Rate, RateType, Tier, TierUnit,
    TokenBasis, Unit, UnitPrices,
};
use tollgate_store::meters;

use crate::config::TollgateConfig;
use crate::database::open;
use crate::output::{self, with_issues};

/// The usage or call to price, and the meter.
#[derive(Args)]
pub(crate) struct QuoteArgs {
    /// The provider of the model.
    #[arg(long, requires = "model", conflicts_with = "url")]
    provider: Option<String>,
    /// The model.
    #[arg(long, requires = "provider")]
    model: Option<String>,
    #[command(flatten)]
    usage: UsageArgs,
    /// Instead of a usage: the URL of a provider, to price a call with this body and the operator's key, which
    /// must be in the configuration.
    #[arg(long, requires = "body", conflicts_with = "UsageArgs")]
    url: Option<String>,
    /// The file with that body; `-` is standard input.
    #[arg(long, requires = "url", value_name = "FILE")]
    body: Option<PathBuf>,
    #[command(flatten)]
    meter: MeterArgs,
}

/// A usage, with the names of a record; default: 0.
#[derive(Args, Serialize)]
struct UsageArgs {
    /// All tokens of the prompt.
    #[arg(long, value_name = "COUNT")]
    input_tokens: Option<u64>,
    /// The input tokens that were read from the provider's cache.
    #[arg(long, value_name = "COUNT")]
    cached_input_tokens: Option<u64>,
    /// The input tokens that were written to the provider's cache.
    #[arg(long, value_name = "COUNT")]
    cache_write_tokens: Option<u64>,
    /// The input tokens that are audio.
    #[arg(long, value_name = "COUNT")]
    input_audio_tokens: Option<u64>,
    /// All tokens of the answer.
    #[arg(long, value_name = "COUNT")]
    output_tokens: Option<u64>,
    /// The output tokens that are reasoning.
    #[arg(long, value_name = "COUNT")]
    reasoning_tokens: Option<u64>,
    /// The output tokens that are audio.
    #[arg(long, value_name = "COUNT")]
    output_audio_tokens: Option<u64>,
    /// Characters that were sent.
    #[arg(long, value_name = "COUNT")]
    input_characters: Option<u64>,
    /// Characters that were received.
    #[arg(long, value_name = "COUNT")]
    output_characters: Option<u64>,
    /// Seconds of audio or video that were sent, such as 1.5.
    #[arg(long, value_name = "SECONDS")]
    input_seconds: Option<String>,
    /// Seconds of audio or video that were received.
    #[arg(long, value_name = "SECONDS")]
    output_seconds: Option<String>,
    /// Images that were generated.
    #[arg(long, value_name = "COUNT")]
    images: Option<u64>,
    /// Calls of the provider's own tools.
    #[arg(long, value_name = "COUNT")]
    tool_calls: Option<u64>,
    /// Calls that the provider accepted; default: 1.
    #[arg(long, value_name = "COUNT")]
    requests: Option<u64>,
}

impl UsageArgs {
    fn is_none(&self) -> bool {
        let stated = serde_json::to_value(self).unwrap_or_default();
        stated.as_object().is_none_or(|fields| fields.values().all(Value::is_null))
    }
}

/// A meter, from these tiers or from the database.
#[derive(Args)]
struct MeterArgs {
    /// A tier of a meter: the number of tokens, characters, minutes or requests at which it starts, and its
    /// rate; repeatable.
    #[arg(long = "tier", value_name = "START=RATE", value_parser = tier, conflicts_with = "meter")]
    tiers: Vec<Tier>,
    /// The type of the rates; a `percentage` is of the base cost (20 is 20%).
    #[arg(long, default_value = "fixed", value_parser = words::<RateType>(&["fixed", "percentage"]), requires = "tiers")]
    rate_type: RateType,
    /// The unit that the meter counts.
    #[arg(long, default_value = "tokens_1m", value_parser = words::<TierUnit>(&["tokens_1m", "characters_1m", "minutes", "requests"]), requires = "tiers")]
    tier_type: TierUnit,
    /// The tokens that the meter counts.
    #[arg(long, default_value = "input+output", value_parser = words::<TokenBasis>(&["input+output", "output"]), requires = "tiers")]
    token_basis: TokenBasis,
    /// The units that were counted before, in the unit of the tiers' starts.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=Tier::MAX_START))]
    counter: u64,
    /// Instead of tiers: a meter of the database.
    #[arg(long, value_name = "mtr_…", requires = "merchant")]
    meter: Option<MeterId>,
    /// The merchant of that meter.
    #[arg(long, value_name = "mch_…", requires = "meter")]
    merchant: Option<MerchantId>,
}

fn tier(text: &str) -> Result<Tier, String> {
    let (start, rate) = text.split_once('=').ok_or("expected START=RATE, such as 0=5")?;
    let start = start.parse().map_err(|why| format!("{start}: {why}"))?;
    let rate: Rate = rate.parse().map_err(|why| format!("{rate}: {why}"))?;
    Ok(Tier { start, rate })
}

/// A parser of the words of an enum; shells complete them.
fn words<T>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    let parse = |text: String| serde_json::from_value::<T>(Value::from(text));
    PossibleValuesParser::new(words).try_map(parse)
}

impl MeterArgs {
    async fn meter(&self, config: &TollgateConfig) -> anyhow::Result<Option<FeeModel>> {
        if let (Some(meter_id), Some(merchant_id)) = (self.meter, self.merchant) {
            let find = move |conn: &mut _| meters::find(conn, merchant_id, meter_id);
            let found = open(config)?.read(find).await?;
            let found = found.with_context(|| format!("{merchant_id} has no meter {meter_id}"))?;
            return Ok(Some(found.model));
        }
        if self.tiers.is_empty() {
            return Ok(None);
        }
        let meter = Meter::new(self.rate_type, self.tier_type, self.tiers.clone());
        let mut meter =
            meter.map_err(|errors| anyhow!("the tiers do not make a meter: {errors}"))?;
        meter.token_basis = self.token_basis;
        Ok(Some(meter.into()))
    }
}

/// Prints the cost, and how it is calculated.
pub(crate) async fn run(
    config: &TollgateConfig,
    what: QuoteArgs,
    json: bool,
) -> anyhow::Result<()> {
    let meter = what.meter.meter(config).await?;
    let per_start = meter.as_ref().map_or(1, |model| model.meter.unit.counted_per_start());
    let terms = PricingTerms {
        meter: meter.as_ref(),
        counter: what.meter.counter.saturating_mul(per_start),
        service_charge_rate: config.service_charge_rate,
        wallet_pays: false,
        base_due: true,
        fee_due: true,
    };
    let tariff = Tariff {
        providers: &config.providers,
        prices: config.prices.clone(),
        unpriced: config.settings.calls.unpriced,
        at: Clock::system().now(),
    };
    let (view, lines) = match what.url.zip(what.body) {
        Some((url, file)) => {
            let bound = tariff.bound(&url, &read_body(&file)?).map_err(with_issues)?;
            let most = bound.hold(&terms);
            let in_body = |refused| with_issues(ApiError::from(refused).within("body"));
            let most = most.map_err(in_body)?;
            (serde_json::to_value(HoldView::of(&most, &bound))?, hold_lines(&bound, &most, &terms))
        }
        None if what.usage.is_none() && what.provider.is_none() && meter.is_none() => {
            bail!("say what is to be priced: a usage and a model, or --url and --body; see --help")
        }
        None => {
            let served = what.provider.as_deref().zip(what.model.as_deref());
            if let Some((provider, _)) = served
                && config.providers.get(provider).is_none()
            {
                let names: Vec<_> = config.providers.iter().map(|one| one.name.as_str()).collect();
                bail!("there is no provider {provider}; there are {}", names.join(", "));
            }
            let usage =
                tollgate_api::usage(serde_json::to_value(&what.usage)?).map_err(with_issues)?;
            let (priced, reason) = tariff.price_stated(served, usage);
            if let Some((provider, model)) = served
                && priced.price_source == PriceSource::Unpriced
                && reason.applied.is_empty()
            {
                bail!(
                    "there is no price for {provider} {model}: `tollgate prices list --provider \
                     {provider}` shows the models that have one"
                );
            }
            let is_markup =
                meter.as_ref().is_some_and(|model| model.meter.rate_type == RateType::Percentage);
            if served.is_none() && usage.provider_cost.is_none() && is_markup {
                bail!(
                    "the meter charges a percentage of the provider's cost: name --provider and --model"
                );
            }
            if let (Some((provider, model)), Some(applied)) = (served, reason.applied.first()) {
                let unpriced = Unit::ALL.iter().find(|unit| {
                    let is_used = *usage.quantities.get(**unit) > 0 && **unit != Unit::Request;
                    is_used && applied.prices.price(**unit).is_none()
                });
                if let Some(unit) = unpriced {
                    let unit = unit.price_key().replace('_', " ");
                    bail!("there is no price of {unit} for {provider} {model}");
                }
            }
            let quote = Quote::new(&usage, priced.base, &terms)
                .map_err(|_| anyhow!("that costs more than an amount can say"))?;
            let view = QuoteView::of(&priced, &quote, meter.as_ref(), config.settings.shape);
            let prices = reason.applied.first().map(|applied| applied.prices);
            (serde_json::to_value(view)?, usage_lines(&priced, prices, &quote, &terms))
        }
    };
    match json {
        true => output::print_line(view),
        false => output::print_lines(&lines),
    }
}

fn read_body(file: &PathBuf) -> anyhow::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return std::fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    }
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body).context("cannot read standard input")?;
    Ok(body)
}

fn line(what: &str, amount: Amount, why: &str) -> String {
    format!("{what:<16}{:>18}  {why}", amount.to_string()).trim_end().to_owned()
}

fn usage_lines(
    priced: &PricedUsage,
    prices: Option<UnitPrices>,
    quote: &Quote,
    terms: &PricingTerms<'_>,
) -> Vec<String> {
    let side = |side| {
        let units = Unit::ALL.iter().filter(|unit| unit.side() == side);
        let used = units.map(|&unit| (unit, *priced.usage.quantities.get(unit)));
        let parts = used.filter(|(_, quantity)| *quantity > 0).filter_map(|(unit, quantity)| {
            let price = prices.as_ref()?.price(unit);
            // Without a price per request, requests are free and are not shown.
            (price.is_some() || unit != Unit::Request).then(|| usage_part(unit, quantity, price))
        });
        parts.collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![
        line("input cost", quote.base.input, &side(CostSide::Input)),
        line("output cost", quote.base.output, &side(CostSide::Output)),
    ];
    if priced.price_source == PriceSource::Unpriced {
        lines.push("There is no price: what the provider charges is not known.".to_owned());
    }
    lines.extend(owed_lines(quote, terms, "total"));
    lines
}

/// A quantity and its price.
fn usage_part(unit: Unit, quantity: u64, price: Option<Rate>) -> String {
    let name = unit.price_key().replace('_', " ");
    let (quantity, per) = match (unit, unit.scale()) {
        (Unit::InputSecond | Unit::OutputSecond, _) => (seconds(quantity), "each"),
        (_, PriceScale::PerMillion) => (quantity.to_string(), "per million"),
        (_, PriceScale::Each) => (quantity.to_string(), "each"),
    };
    match price {
        Some(price) => format!("{quantity} {name} at {price} {per}"),
        None => format!("{quantity} {name} without a price"),
    }
}

fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn hold_lines(bound: &CallBound, most: &Quote, terms: &PricingTerms<'_>) -> Vec<String> {
    let Some(cost) = bound.cost() else {
        return vec!["The call is free and holds nothing.".to_owned()];
    };
    let prices = cost.prices.unwrap_or_default();
    let answers = match cost.answers {
        1 => cost.max_tokens.to_string(),
        answers => format!("{answers} x {}", cost.max_tokens),
    };
    let mut others = cost.others;
    others.tool_call = cost.tool_calls;
    others.request = 1;
    let others = |side| -> Vec<String> {
        let units = Unit::ALL.iter().filter(|unit| unit.side() == side && !unit.counts_tokens());
        let priced = units.filter_map(|&unit| {
            let quantity = Some(*others.get(unit)).filter(|quantity| *quantity > 0)?;
            Some(format!("at most {}", usage_part(unit, quantity, Some(prices.price(unit)?))))
        });
        priced.collect()
    };
    // A model that is priced by another unit needs no price of tokens.
    let by_tokens = prices.input.is_some() || prices.output.is_some();
    let otherwise =
        [CostSide::Input, CostSide::Output].into_iter().any(|side| !others(side).is_empty());
    let side = |side, tokens: String, price: Option<Rate>| {
        let tokens = match price {
            Some(price) => Some(format!("at most {tokens} tokens at {price} per million")),
            None if otherwise && !by_tokens => None,
            None => Some(format!("at most {tokens} tokens without a price")),
        };
        tokens.into_iter().chain(others(side)).collect::<Vec<_>>().join(", ")
    };
    let input = side(CostSide::Input, cost.input_tokens.to_string(), prices.input);
    let output = side(CostSide::Output, answers, prices.output);
    let mut lines = vec![
        line("input cost", most.base.input, &input),
        line("output cost", most.base.output, &output),
    ];
    lines.extend(owed_lines(most, terms, "hold"));
    lines.extend(cost.unbounded.as_ref().map(|field| match field.as_slice() {
        [] => "An estimate: nothing is known that bounds what this endpoint costs.".to_owned(),
        path => format!("An estimate: {} leaves the cost without a bound.", path.join(".")),
    }));
    lines
}

/// The lines of the fee, the service charge, and the sum of everything.
fn owed_lines(quote: &Quote, terms: &PricingTerms<'_>, sum: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(FeeModel { meter, .. }) = terms.meter {
        lines.extend(quote.fee.lines.iter().map(|one| line("fee", one.cost, &fee(one, meter))));
        let rate = format!("{} of the fee", terms.service_charge_rate);
        lines.push(line("service charge", quote.service_charge.amount, &rate));
    }
    lines.push(line(sum, quote.total_request_cost, "USD"));
    lines
}

fn fee(line: &FeeLine, meter: &Meter) -> String {
    let (units, noun, per) = match line.unit {
        TierUnit::Tokens => (line.units.to_string(), "tokens", "per million"),
        TierUnit::Characters => (line.units.to_string(), "characters", "per million"),
        TierUnit::Minutes => (seconds(line.units), "seconds", "per minute"),
        TierUnit::Requests => (line.units.to_string(), "requests", "each"),
    };
    let Tier { start, rate } = line.tier;
    match meter.rate_type {
        RateType::Fixed => format!("{units} {noun} at {rate} {per}, tier from {start}"),
        RateType::Percentage => {
            format!("{rate}% of the base cost of {units} {noun}, tier from {start}")
        }
    }
}
