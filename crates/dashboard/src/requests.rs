//! The page of a request: its price line by line, its times, and its error.

use std::borrow::Cow;

use actix_web::{HttpResponse, web};
use askama::Template;
use serde_json::json;
use tollgate_domain::{ProviderKeyType, RequestRecord, RequestStatus, Timestamp, UsageSource};
use tollgate_pricing::{Amount, PriceSource};
use tollgate_store::{Conn, RecordArchive, budgets, connections, meters, spend_keys};

use crate::answer::{PageError, respond};
use crate::clock::{Moment, PageClock};
use crate::latency::took_millis;
use crate::page::{DashboardSection, Fact, Shell, name_of};
use crate::price::PriceBreakdown;
use crate::session::SessionUser;

use crate::text::{self, Figure};
use tollgate_api::operations::find_request;
use tollgate_api::{ApiError, App};

/// A note on a record that its figures alone do not give.
pub(crate) struct Badge {
    pub(crate) color: &'static str,
    pub(crate) label: Cow<'static, str>,
    pub(crate) meaning: &'static str,
}

/// The badges of a record, its state first.
fn badges(record: &RequestRecord) -> Vec<Badge> {
    let badge = |color, label: &'static str, meaning| Badge { color, label: label.into(), meaning };
    let state = match record.status {
        RequestStatus::Pending => badge("plain", "pending", "It is in flight and holds money."),
        RequestStatus::Completed => badge("good", "completed", "It was answered and metered."),
        RequestStatus::Error => Badge { label: failure(record), ..badge("bad", "", "It failed.") },
    };
    let suspicious = record.suspicious.then(|| {
        badge("bad", "suspicious", "The provider claimed far more than the call could use.")
    });
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
    [Some(state), known, unpriced, suspicious, swept, reported].into_iter().flatten().collect()
}

/// The reason why a call failed, as far as its record has it.
fn failure(record: &RequestRecord) -> Cow<'static, str> {
    match (record.provider_status, record.priced.usage_source) {
        (Some(200..300), _) => "error: broke off".into(),
        (Some(status), _) => format!("error: {status}").into(),
        (None, UsageSource::None) => "error: not reached".into(),
        (None, _) => "error: no answer".into(),
    }
}

/// A model as `provider/model`.
pub(crate) fn model(provider: &str, model: Option<&str>) -> String {
    match model {
        Some(model) if !model.is_empty() => format!("{provider}/{model}"),
        _ => format!("{provider}, no model"),
    }
}

/// A record in a list.
pub(crate) struct RequestItem {
    pub(crate) request_id: String,
    pub(crate) created_at: Moment,
    pub(crate) model: String,
    pub(crate) badges: Vec<Badge>,
    pub(crate) tokens: String,
    pub(crate) took: String,
    /// The base cost of a managed call.
    pub(crate) provider_cost: Figure,
    /// The total of what was paid for it.
    pub(crate) charged: Figure,
}

impl RequestItem {
    pub(crate) fn of(record: &RequestRecord, clock: &PageClock) -> Self {
        let usage = &record.priced.usage;
        let tokens = i128::from(usage.input_tokens()) + i128::from(usage.output_tokens());
        let took = took_millis(record).filter(|_| record.reference_id.is_none() && !record.swept);
        let is_pending = record.status == RequestStatus::Pending;
        let none = || Figure { shown: "–".to_owned(), exact: String::new() };
        let figure = |amount: Amount| Figure::in_column(amount.units().into());
        let or_dash = |text: String| if is_pending { "–".to_owned() } else { text };
        Self {
            request_id: record.request_id.to_string(),
            created_at: clock.moment(record.created_at),
            model: model(&record.provider, record.model.as_deref()),
            badges: badges(record),
            tokens: or_dash(text::count(tokens)),
            took: took.map_or_else(|| "–".to_owned(), text::duration),
            provider_cost: match record.provider_key_type {
                ProviderKeyType::Managed if !is_pending => {
                    figure(record.quote.base.total().unwrap_or_default())
                }
                _ => none(),
            },
            charged: match is_pending {
                true => none(),
                false => figure(record.quote.total_request_cost),
            },
        }
    }
}

#[derive(Template)]
#[template(path = "request.html")]
struct RequestPage {
    shell: Shell,
    line: RequestItem,
    facts: Vec<Fact>,
    metadata: Vec<(String, String)>,
    price: PriceBreakdown,
    is_pending: bool,
    error: Vec<Fact>,
    timeline: Vec<(&'static str, String)>,
    id: String,
    /// A command that makes such a call.
    curl: String,
}

/// The error of a failed call, in the provider's words where it has some.
fn error(record: &RequestRecord) -> Vec<Fact> {
    let Some(failure) = &record.details.failure else { return Vec::new() };
    let mut facts = vec![Fact::new("On the side of", text::word(&failure.source))];
    facts.extend(failure.kind.clone().map(|kind| Fact::new("Type", kind)));
    facts.extend(failure.code.clone().map(|code| Fact::new("Code", code)));
    facts.extend(failure.message.clone().map(|message| Fact::new("Message", message)));
    facts
}

/// The times of a call, each with the time since its admission.
fn timeline(record: &RequestRecord, clock: &PageClock) -> Vec<(&'static str, String)> {
    let timings = &record.details.timings;
    let steps = [
        ("Sent to the provider", timings.sent_at),
        ("First byte of the answer", timings.first_byte_at),
        ("Last byte of the answer", timings.last_byte_at),
        ("Settled", record.settled_at),
    ];
    let since = |at: Timestamp| {
        let micros = at.unix_micros().saturating_sub(record.created_at.unix_micros());
        format!("+{}", text::duration(micros / 1_000))
    };
    let later = steps.into_iter().filter_map(|(name, at)| Some((name, since(at?))));
    std::iter::once(("Admitted", clock.time(record.created_at))).chain(later).collect()
}

/// A command that makes such a call through the route of its provider; empty for usage that was reported, and for a
/// response on a WebSocket. The body has its model only.
fn curl(record: &RequestRecord, origin: &str) -> String {
    if record.socket_id.is_some() {
        return String::new();
    }
    let called = record.endpoint.split_once(' ');
    let called = called.and_then(|(method, url)| Some((method, url::Url::parse(url).ok()?)));
    let Some((method, url)) = called else { return String::new() };
    let model = record.model.as_deref().unwrap_or_default();
    // A quote ends the text of the shell.
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let route = quoted(&format!("{origin}/v1/providers/{}{}", record.provider, url.path()));
    let body = quoted(&json!({ "model": model }).to_string());
    let parts = [
        format!("curl -X {method} {route}"),
        "-H 'Authorization: Bearer tgk_…'".to_owned(),
        "-H 'Content-Type: application/json'".to_owned(),
        format!("-d {body}"),
    ];
    parts.join(" \\\n  ")
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let merchant_id = visitor.merchant_id();
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        let record = find_request(conn, archive, merchant_id, &id)?;
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
        let mut named = Vec::new();
        for id in record.budgets.ids.iter().copied() {
            named.push((id, budgets::find(conn, merchant_id, id)?.map(|budget| budget.name)));
        }
        Ok::<_, ApiError>((record, connection, spend_key, meter, named))
    };
    let (record, connection, spend_key, meter, budgets) = app.store.read_records(read).await?;
    let mut facts = vec![
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
        let name = connection.as_ref().map_or_else(|| id.to_string(), name_of);
        facts.push(Fact::leading("Customer", name, format!("/dashboard/customers/{id}")));
    }
    facts.extend(record.spend_key_id.map(|id| Fact::of_spend_key(id, spend_key)));
    for (id, name) in budgets {
        let href = name.as_ref().map(|_| format!("/dashboard/budgets/{id}"));
        let name = name.unwrap_or_else(|| format!("{id} (deleted)"));
        facts.push(Fact::leading("Budget", name, href.unwrap_or_default()));
    }
    facts.extend(run_fact(&record));
    facts.extend(
        record.job_id.map(|id| Fact::leading("Job", id.to_string(), "/dashboard/jobs".to_owned())),
    );
    facts.extend(
        record.socket_id.map(|id| {
            Fact::leading("WebSocket", id.to_string(), format!("/dashboard/sockets/{id}"))
        }),
    );
    if let Some(id) = record.meter_id {
        let href = meter.as_ref().map(|_| format!("/dashboard/meters/{id}"));
        let name = meter.map_or_else(|| format!("{id} (deleted)"), |meter| meter.name);
        facts.push(Fact::leading("Markup", name, href.unwrap_or_default()));
    }
    let details = &record.details;
    facts.extend(
        details.provider_request_id.clone().map(|id| Fact::new("Provider's request id", id)),
    );
    let pairs = record.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
    respond(&RequestPage {
        shell: Shell::new(&visitor, DashboardSection::Requests, "Request"),
        line: RequestItem::of(&record, &visitor.clock),
        facts,
        metadata: pairs.collect(),
        price: PriceBreakdown::of(&record),
        is_pending: record.status == RequestStatus::Pending,
        error: error(&record),
        timeline: timeline(&record, &visitor.clock),
        id: record.request_id.to_string(),
        curl: curl(&record, &visitor.origin),
    })
}

/// The run of a call, which leads to the page of the run.
fn run_fact(record: &RequestRecord) -> Option<Fact> {
    let run = record.run()?;
    let name = match run.run_id.is_of_the_day() {
        true => "none: that of the day".to_owned(),
        false => run.run_id.to_string(),
    };
    Some(Fact::leading("Run", name, format!("/dashboard/runs/{}", run.account_id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_api::sample_record as completed;

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
        assert_eq!(
            labels(&record),
            ["error: broke off", "estimated", "unpriced", "swept", "reported"]
        );
        record.priced.usage_source = UsageSource::None;
        assert_eq!(
            labels(&record),
            ["error: broke off", "swept", "reported"],
            "nothing used needs no price"
        );
    }
}
