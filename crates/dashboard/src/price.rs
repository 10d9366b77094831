//! The explanation of a request's price, line by line.

use tollgate_domain::{Payer, ProviderKeyType, RequestRecord, UsageSource};
use tollgate_pricing::{
    AppliedPrices, BaseCost, FeeLine, PerUnit, PriceScale, PriceSource, RateType, TierUnit,
    TokenBasis, Unit, Usage,
};

use crate::text;

/// A line of a price: what was counted, at which rate, and the amount.
pub(crate) struct PriceLine {
    pub(crate) what: String,
    pub(crate) units: String,
    pub(crate) rate: String,
    pub(crate) cost: String,
}

/// A price line by line, in the exact figures of the record.
pub(crate) struct PriceBreakdown {
    pub(crate) base: Vec<PriceLine>,
    pub(crate) base_note: String,
    pub(crate) input_cost: String,
    pub(crate) output_cost: String,
    pub(crate) base_cost: String,
    pub(crate) base_payer: &'static str,
    pub(crate) is_base_due: bool,
    pub(crate) fee: Vec<PriceLine>,
    pub(crate) fee_note: String,
    pub(crate) fee_amount: String,
    pub(crate) fee_payer: &'static str,
    pub(crate) service_charge: String,
    pub(crate) service_charge_note: String,
    pub(crate) service_charge_payer: &'static str,
    pub(crate) total: String,
    pub(crate) wallet: String,
    pub(crate) merchant: String,
}

impl PriceBreakdown {
    pub(crate) fn of(record: &RequestRecord) -> Self {
        let quote = &record.quote;
        let is_base_due = record.provider_key_type == ProviderKeyType::Managed;
        let fee = quote.fee.amount().unwrap_or_default();
        Self {
            base: base_lines(&record.priced.usage, &record.applied),
            base_note: base_note(record),
            input_cost: quote.base.input.to_string(),
            output_cost: quote.base.output.to_string(),
            base_cost: quote.base.total().unwrap_or_default().to_string(),
            base_payer: payer(quote.base_payer),
            is_base_due,
            fee: quote.fee.lines.iter().map(|line| fee_line(line, record.rate_type)).collect(),
            fee_note: fee_note(record),
            fee_amount: fee.to_string(),
            // The wallet pays the whole fee or none of it.
            fee_payer: payer(match quote.total_wallet_cost < fee {
                true => Payer::Merchant,
                false => Payer::Wallet,
            }),
            service_charge: quote.service_charge.amount.to_string(),
            service_charge_note: record
                .service_charge_rate
                .map_or_else(String::new, |rate| format!("{rate} × the fee")),
            service_charge_payer: payer(quote.service_charge.payer),
            total: quote.total_request_cost.to_string(),
            wallet: quote.total_wallet_cost.to_string(),
            merchant: quote.total_merchant_cost.to_string(),
        }
    }
}

pub(crate) const fn payer(payer: Payer) -> &'static str {
    match payer {
        Payer::Wallet => "paid by the wallet of the request",
        Payer::Merchant => "paid by you as the merchant",
    }
}

/// The base cost, unit by unit, where the applied prices were kept.
pub(crate) fn base_lines(usage: &Usage, applied: &[AppliedPrices]) -> Vec<PriceLine> {
    let mut lines = Vec::new();
    for prices in applied {
        let quantities = prices.part.as_ref().map_or(&usage.quantities, |part| &part.quantities);
        for &unit in Unit::ALL {
            let count = *quantities.get(unit);
            if count == 0 || (unit == Unit::Request && prices.prices.price(unit).is_none()) {
                continue;
            }
            let mut alone = PerUnit::<u64>::default();
            *alone.get_mut(unit) = count;
            let alone = Usage { quantities: alone, provider_cost: None };
            let cost = BaseCost::of(&alone, &prices.prices).and_then(BaseCost::total);
            let seconds = matches!(unit, Unit::InputSecond | Unit::OutputSecond);
            let per = match unit.scale() {
                PriceScale::PerMillion if seconds => "per second",
                PriceScale::PerMillion => "per million",
                PriceScale::Each => "each",
            };
            let rate = prices.prices.price(unit);
            lines.push(PriceLine {
                what: unit.price_key().replace('_', " "),
                units: if seconds { seconds_of(count) } else { text::count(count.into()) },
                rate: rate.map_or_else(|| "no price".to_owned(), |rate| format!("${rate} {per}")),
                cost: cost.unwrap_or_default().to_string(),
            });
        }
    }
    lines
}

/// Microseconds as seconds, exactly.
fn seconds_of(micros: u64) -> String {
    let decimals = format!("{:06}", micros % 1_000_000);
    let decimals = decimals.trim_end_matches('0');
    let dot = if decimals.is_empty() { "" } else { "." };
    format!("{}{dot}{decimals} s", text::count((micros / 1_000_000).into()))
}

fn base_note(record: &RequestRecord) -> String {
    let source = match record.priced.price_source {
        PriceSource::Provider => "The provider stated what it charges.",
        PriceSource::Catalog => "By the catalogue's prices.",
        PriceSource::Custom => "By the operator's own prices.",
        PriceSource::Unpriced => "No price is known.",
    };
    let mut note = source.to_owned();
    for prices in &record.applied {
        note.push_str(&format!(" Row {}", prices.model.as_str()));
        if let Some(from) = prices.effective_from {
            note.push_str(&format!(", from {from} on"));
        }
        if !prices.tiers.is_empty() {
            note.push_str(&format!(", served as {}", prices.tiers.join(", ")));
        }
        if let Some(above) = prices.above_input_tokens {
            note.push_str(&format!(", prompts above {} tokens", text::count(above.into())));
        }
        note.push('.');
    }
    if record.priced.usage_source == UsageSource::Estimated {
        note.push_str(" What was used is an estimate.");
    }
    note
}

/// The line of a tier that the fee passed through.
pub(crate) fn fee_line(line: &FeeLine, rate_type: RateType) -> PriceLine {
    let (unit, units) = match line.unit {
        TierUnit::Tokens => ("tokens", text::count(line.units.into())),
        TierUnit::Characters => ("characters", text::count(line.units.into())),
        TierUnit::Minutes => ("minutes", seconds_of(line.units)),
        TierUnit::Requests => ("requests", text::count(line.units.into())),
    };
    let rate = line.tier.rate;
    let rate = match (rate_type, line.unit) {
        (RateType::Percentage, _) => format!("{rate}% of the provider's cost"),
        (RateType::Fixed, TierUnit::Tokens | TierUnit::Characters) => {
            format!("${rate} per million")
        }
        (RateType::Fixed, TierUnit::Minutes) => format!("${rate} per minute"),
        (RateType::Fixed, TierUnit::Requests) => format!("${rate} each"),
    };
    let start = text::count(line.tier.start.into());
    PriceLine {
        what: format!("tier from {start} {unit} on"),
        units,
        rate,
        cost: line.cost.to_string(),
    }
}

fn fee_note(record: &RequestRecord) -> String {
    match record.meter_id {
        None => "No meter priced this request.".to_owned(),
        Some(_) if record.quote.fee.lines.is_empty() => "Nothing was counted.".to_owned(),
        Some(_) if record.token_basis == TokenBasis::Output => {
            "Of tokens, those of the answer count.".to_owned()
        }
        Some(_) => String::new(),
    }
}
