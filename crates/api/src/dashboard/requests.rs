//! Requests: the list, and why one cost what it cost.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{
    ConnectionId, MeterId, ProviderKeyType, RequestId, RequestRecord, RequestStatus, UsageSource,
};
use tollgate_pricing::{
    AppliedPrices, BaseCost, FeeLine, Payer, PerUnit, PriceSource, RateType, Scale, TierUnit,
    TokenBasis, Unit, Usage,
};
use tollgate_store::requests::{self, HowEnded, RequestFilter};
use tollgate_store::{Conn, StoreError, connections, meters, spend_keys};

use super::page::{PageError, Pager, Place, Shell, page_of, respond};
use super::session::Visitor;
use super::spend::took_millis;
use super::text;
use crate::app::App;
use crate::http::error::ApiError;
use crate::http::list::Query;
use crate::resources::requests::find;

/// Something about a record that its figures alone do not say.
pub(super) struct Badge {
    pub(super) color: &'static str,
    pub(super) label: &'static str,
    pub(super) meaning: &'static str,
}

/// What is to be known of a record, its state first.
fn badges(record: &RequestRecord) -> Vec<Badge> {
    let badge = |color, label, meaning| Badge { color, label, meaning };
    let state = match record.status {
        RequestStatus::Pending => badge("plain", "pending", "It is on its way and holds money."),
        RequestStatus::Completed => badge("good", "completed", "It was answered and metered."),
        RequestStatus::Error => badge("bad", "error", "It failed."),
    };
    let known = match record.priced.usage_source {
        UsageSource::Partial => Some(badge(
            "warn",
            "partial",
            "The answer was cut: what passed until then was counted.",
        )),
        UsageSource::Estimated => Some(badge(
            "warn",
            "estimated",
            "The provider did not say what was used: it was estimated.",
        )),
        UsageSource::Reported | UsageSource::None => None,
    };
    let has_usage = record.priced.usage_source != UsageSource::None;
    let unpriced = (record.priced.price_source == PriceSource::Unpriced && has_usage).then(|| {
        badge("warn", "unpriced", "No price was known: the provider's part counts as nothing.")
    });
    let swept = record.swept.then(|| {
        badge("warn", "swept", "The process that had it died: how it ended is not known.")
    });
    let reported = record.reference_id.as_ref().map(|_| {
        badge("plain", "reported", "Its usage was reported to us; we did not forward it.")
    });
    [Some(state), known, unpriced, swept, reported].into_iter().flatten().collect()
}

/// A model as people know it.
pub(super) fn model(provider: &str, model: Option<&str>) -> String {
    match model {
        Some(model) if !model.is_empty() => format!("{provider}/{model}"),
        _ => format!("{provider}, no model"),
    }
}

/// A record in a list.
pub(super) struct Line {
    pub(super) request_id: String,
    pub(super) year: String,
    /// The rest of the time.
    pub(super) created_at: String,
    pub(super) model: String,
    pub(super) badges: Vec<Badge>,
    pub(super) tokens: String,
    pub(super) took: String,
    pub(super) cost: String,
}

impl Line {
    pub(super) fn of(record: &RequestRecord) -> Self {
        let usage = &record.priced.usage;
        let tokens = i128::from(usage.input_tokens()) + i128::from(usage.output_tokens());
        let took = took_millis(record).filter(|_| record.reference_id.is_none() && !record.swept);
        let is_pending = record.status == RequestStatus::Pending;
        let or_dash = |text: String| if is_pending { "–".to_owned() } else { text };
        let created_at = text::time(record.created_at);
        let (year, created_at) = created_at.split_once('-').unwrap_or(("", &created_at));
        Self {
            request_id: record.request_id.to_string(),
            year: year.to_owned(),
            created_at: created_at.to_owned(),
            model: model(&record.provider, record.model.as_deref()),
            badges: badges(record),
            tokens: or_dash(text::count(tokens)),
            took: took.map_or_else(|| "–".to_owned(), text::duration),
            cost: or_dash(text::money(record.quote.total_request_cost)),
        }
    }
}

#[derive(Template)]
#[template(path = "requests.html")]
struct RequestsPage {
    shell: Shell,
    requests: Vec<Line>,
    pager: Pager,
    asked: Asked,
    problem: &'static str,
    connections: Vec<Named>,
    meters: Vec<Named>,
}

/// Something to choose from.
pub(super) struct Named {
    pub(super) id: String,
    pub(super) name: String,
}

/// The filters as they were filled in.
#[derive(Default)]
struct Asked {
    connection_id: String,
    meter_id: String,
    key: String,
    value: String,
    failed: bool,
}

impl Asked {
    fn of(query: &Query) -> Self {
        let text = |name| query.get(name).unwrap_or_default().trim().to_owned();
        Self {
            connection_id: text("connection_id"),
            meter_id: text("meter_id"),
            key: text("key"),
            value: text("value"),
            failed: query.get("status") == Some("error"),
        }
    }

    const fn is_any(&self) -> bool {
        let Self { connection_id, meter_id, key, value: _, failed } = self;
        *failed || !(connection_id.is_empty() && meter_id.is_empty() && key.is_empty())
    }

    /// What they ask for; an id that is none is said to be so.
    fn filter(&self) -> Result<RequestFilter, &'static str> {
        fn id<Id: std::str::FromStr>(text: &str) -> Result<Option<Id>, &'static str> {
            match text {
                "" => Ok(None),
                text => text.parse().map(Some).map_err(|_| "There is nothing with such an id."),
            }
        }
        if self.key.contains('\0') || self.value.contains('\0') {
            return Err("Metadata have no such characters.");
        }
        let pair = (!self.key.is_empty()).then(|| (self.key.clone(), self.value.clone()));
        Ok(RequestFilter {
            connection_id: id::<ConnectionId>(&self.connection_id)?,
            meter_id: id::<MeterId>(&self.meter_id)?,
            metadata: pair.into_iter().collect(),
        })
    }
}

pub(super) async fn list(
    app: web::Data<App>,
    visitor: Visitor,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let query = Query::of(&http);
    if let Some(id) = query.get("id").map(str::trim).filter(|id| !id.is_empty()) {
        let id: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
        return Ok(super::page::go_to(&format!("/dashboard/requests/{id}")));
    }
    let asked = Asked::of(&query);
    let (filter, problem) = match asked.filter() {
        Ok(filter) => (Some(filter), ""),
        Err(problem) => (None, problem),
    };
    let ended = if asked.failed { HowEnded::Failed } else { HowEnded::Anyhow };
    let page = page_of::<RequestId>(&http);
    let merchant_id = visitor.merchant_id();
    let read = move |conn: &mut Conn| {
        let found = match &filter {
            Some(filter) => requests::list(conn, merchant_id, filter, ended, &page)?,
            None => Vec::new(),
        };
        let connections = named_connections(conn, merchant_id)?;
        Ok::<_, StoreError>((found, connections, named_meters(conn, merchant_id)?))
    };
    let (mut found, connections, meters) = app.store.read(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |one| one.request_id.to_string());
    respond(&RequestsPage {
        shell: Shell::new(&visitor, Place::Requests, "Requests"),
        requests: found.iter().map(Line::of).collect(),
        pager,
        asked,
        problem,
        connections,
        meters,
    })
}

/// How many there are to choose from.
const CHOICES: u32 = 100;

/// The newest connections, by their names.
pub(super) fn named_connections(
    conn: &mut Conn,
    merchant_id: tollgate_domain::MerchantId,
) -> Result<Vec<Named>, StoreError> {
    let newest = tollgate_store::Page { after: None, limit: CHOICES };
    let found = connections::list(conn, merchant_id, &newest)?;
    let named = found.into_iter().map(|one| {
        let id = one.connection_id.to_string();
        Named { name: one.name.or(one.reference_id).unwrap_or_else(|| id.clone()), id }
    });
    Ok(named.collect())
}

/// The newest meters, by their names.
pub(super) fn named_meters(
    conn: &mut Conn,
    merchant_id: tollgate_domain::MerchantId,
) -> Result<Vec<Named>, StoreError> {
    let newest = tollgate_store::Page { after: None, limit: CHOICES };
    let found = meters::list(conn, merchant_id, &newest)?;
    Ok(found
        .into_iter()
        .map(|one| Named { id: one.meter_id.to_string(), name: one.name })
        .collect())
}

#[derive(Template)]
#[template(path = "request.html")]
struct RequestPage {
    shell: Shell,
    line: Line,
    facts: Vec<Fact>,
    metadata: Vec<(String, String)>,
    price: Price,
    is_pending: bool,
}

/// A row of what is known of a resource: its name, its value, and where that leads.
pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) href: String,
}

impl Fact {
    pub(super) fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), href: String::new() }
    }

    pub(super) fn leading(name: &'static str, value: impl Into<String>, href: String) -> Self {
        Self { name, value: value.into(), href }
    }
}

/// A line of a price: what was counted, at which rate, and what it comes to.
pub(super) struct PriceLine {
    pub(super) what: String,
    pub(super) units: String,
    pub(super) rate: String,
    pub(super) cost: String,
}

/// A price line by line, in the exact figures of the record.
pub(super) struct Price {
    base: Vec<PriceLine>,
    base_note: String,
    input_cost: String,
    output_cost: String,
    base_cost: String,
    base_payer: &'static str,
    is_base_due: bool,
    fee: Vec<PriceLine>,
    fee_note: String,
    fee_amount: String,
    fee_payer: &'static str,
    service_charge: String,
    service_charge_note: String,
    service_charge_payer: &'static str,
    total: String,
    wallet: String,
    merchant: String,
}

impl Price {
    pub(super) fn of(record: &RequestRecord) -> Self {
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
            // A wallet that pays has paid the whole fee.
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

pub(super) const fn payer(payer: Payer) -> &'static str {
    match payer {
        Payer::Wallet => "paid by the wallet of the request",
        Payer::Merchant => "paid by you as the merchant",
    }
}

/// What the provider charges, unit by unit, where the prices were kept.
pub(super) fn base_lines(usage: &Usage, applied: &[AppliedPrices]) -> Vec<PriceLine> {
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
                Scale::PerMillion if seconds => "per second",
                Scale::PerMillion => "per million",
                Scale::Each => "each",
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

/// Microseconds as seconds, exact.
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

/// A tier that was walked.
pub(super) fn fee_line(line: &FeeLine, rate_type: RateType) -> PriceLine {
    let (unit, units) = match line.unit {
        TierUnit::Tokens => ("tokens", text::count(line.units.into())),
        TierUnit::Characters => ("characters", text::count(line.units.into())),
        TierUnit::Minutes => ("minutes", seconds_of(line.units)),
        TierUnit::Requests => ("requests", text::count(line.units.into())),
    };
    let rate = line.tier.rate;
    let rate = match (rate_type, line.unit) {
        (RateType::Percentage, _) => format!("{rate} % of the provider's cost"),
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

pub(super) async fn show(
    app: web::Data<App>,
    visitor: Visitor,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let merchant_id = visitor.merchant_id();
    let read = move |conn: &mut Conn| {
        let record = find(conn, merchant_id, &id)?;
        let connection = match record.connection_id {
            Some(id) => connections::find(conn, merchant_id, id)?,
            None => None,
        };
        let spend_key = match record.spend_key_id {
            Some(id) => spend_keys::find(conn, merchant_id, id)?,
            None => None,
        };
        let meter = match record.meter_id {
            Some(id) => meters::find(conn, merchant_id, id)?,
            None => None,
        };
        Ok::<_, ApiError>((record, connection, spend_key, meter))
    };
    let (record, connection, spend_key, meter) = app.store.read(read).await?;
    let mut facts = vec![
        Fact::new("Id", record.request_id.to_string()),
        Fact::new("Endpoint", record.endpoint.clone()),
        Fact::new("Model", model(&record.provider, record.model.as_deref())),
        Fact::new(
            "Provider key",
            match record.provider_key_type {
                ProviderKeyType::Managed => "the operator's",
                ProviderKeyType::Unmanaged => "the caller's own",
            },
        ),
    ];
    facts.extend(record.reference_id.clone().map(|id| Fact::new("Your id", id)));
    facts.extend(record.provider_status.map(|it| Fact::new("Provider's status", it.to_string())));
    facts.extend(record.response_id.clone().map(|id| Fact::new("Provider's id", id)));
    if let Some(id) = record.connection_id {
        let name = connection.and_then(|one| one.name.or(one.reference_id));
        let name = name.unwrap_or_else(|| id.to_string());
        facts.push(Fact::leading("Connection", name, format!("/dashboard/connections/{id}")));
    }
    if let Some(id) = record.spend_key_id {
        let href = spend_key.as_ref().map(|_| format!("/dashboard/spend-keys/{id}"));
        let name = spend_key.map_or_else(|| format!("{id} (deleted)"), |key| key.name);
        facts.push(Fact::leading("Spend key", name, href.unwrap_or_default()));
    }
    if let Some(id) = record.meter_id {
        let href = meter.as_ref().map(|_| format!("/dashboard/meters/{id}"));
        let name = meter.map_or_else(|| format!("{id} (deleted)"), |meter| meter.name);
        facts.push(Fact::leading("Meter", name, href.unwrap_or_default()));
    }
    facts.push(Fact::new("Admitted", text::time(record.created_at)));
    facts.extend(record.settled_at.map(|at| Fact::new("Settled", text::time(at))));
    let pairs = record.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
    respond(&RequestPage {
        shell: Shell::new(&visitor, Place::Requests, "Request"),
        line: Line::of(&record),
        facts,
        metadata: pairs.collect(),
        price: Price::of(&record),
        is_pending: record.status == RequestStatus::Pending,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::samples::completed;

    #[test]
    fn every_doubt_about_a_record_has_a_badge() {
        let labels = |record: &RequestRecord| {
            badges(record).into_iter().map(|badge| badge.label).collect::<Vec<_>>()
        };
        let mut record = completed();
        assert_eq!(labels(&record), ["completed"]);
        record.priced.usage_source = UsageSource::Partial;
        assert_eq!(labels(&record), ["completed", "partial"]);
        record.status = RequestStatus::Error;
        record.priced.usage_source = UsageSource::Estimated;
        record.priced.price_source = PriceSource::Unpriced;
        record.swept = true;
        record.reference_id = Some("own-1".to_owned());
        assert_eq!(labels(&record), ["error", "estimated", "unpriced", "swept", "reported"]);
        record.priced.usage_source = UsageSource::None;
        assert_eq!(labels(&record), ["error", "swept", "reported"], "nothing used needs no price");
    }
}
