//! The pages of webhooks and their deliveries, with a form to deliver again.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{Delivery, DeliveryId, DeliveryStatus, Timestamp, Webhook, WebhookId};
use tollgate_store::deliveries::{self, DeliveryFilter};
use tollgate_store::{Conn, StoreError, webhooks};

use crate::answer::{PageError, respond};
use crate::clock::{Moment, PageClock};
use crate::form::SessionForm;
use crate::page::{DashboardSection, Fact, Pager, Shell, page_of};
use crate::session::SessionUser;
use crate::text;
use tollgate_api::operations::{delivery_not_found, webhook_not_found as not_found};
use tollgate_api::{ApiError, App, Query};

#[derive(Template)]
#[template(path = "webhooks.html")]
struct WebhooksPage {
    shell: Shell,
    webhooks: Vec<WebhookItem>,
    pager: Pager,
}

struct WebhookItem {
    id: String,
    name: String,
    url: String,
    events: String,
    created_at: String,
    /// The time since which no message was accepted; empty while they are.
    failing_since: String,
}

impl WebhookItem {
    fn of(webhook: &Webhook, failing_since: Option<Timestamp>, clock: &PageClock) -> Self {
        Self {
            id: webhook.webhook_id.to_string(),
            name: webhook.name.clone(),
            url: webhook.url.clone(),
            events: match &webhook.events {
                None => "all but those of single calls".to_owned(),
                Some(events) => {
                    events.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ")
                }
            },
            created_at: clock.day(webhook.created_at),
            failing_since: failing_since.map_or_else(String::new, |at| clock.time(at)),
        }
    }
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let (page, merchant_id) = (page_of(&http), visitor.merchant_id());
    let read = move |conn: &mut Conn| {
        let mut found = Vec::new();
        for webhook in webhooks::list(conn, merchant_id, &page)? {
            let since = deliveries::failing_since(conn, webhook.webhook_id)?;
            found.push((webhook, since));
        }
        Ok::<_, StoreError>(found)
    };
    let mut found = app.store.read(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |(one, _)| one.webhook_id.to_string());
    respond(&WebhooksPage {
        shell: Shell::new(&visitor, DashboardSection::Webhooks, "Webhooks"),
        webhooks: found
            .iter()
            .map(|(one, since)| WebhookItem::of(one, *since, &visitor.clock))
            .collect(),
        pager,
    })
}

struct DeliveryItem {
    id: String,
    event_id: String,
    kind: &'static str,
    sequence: u64,
    status: &'static str,
    color: &'static str,
    attempts: u32,
    answer: String,
    body: String,
    created_at: Moment,
    next: Moment,
}

impl DeliveryItem {
    fn of(delivery: &Delivery, clock: &PageClock) -> Self {
        let (color, status) = match delivery.status {
            DeliveryStatus::Pending => ("plain", "pending"),
            DeliveryStatus::Delivered => ("good", "delivered"),
            DeliveryStatus::Failed => ("bad", "failed"),
        };
        let last = delivery.last.as_ref();
        let answer = last.map(|last| {
            let what = match (last.response_status, &last.fault) {
                (Some(status), _) => status.to_string(),
                (None, Some(fault)) => text::word(fault),
                (None, None) => "–".to_owned(),
            };
            format!("{what} in {}", text::duration(last.duration_ms.into()))
        });
        Self {
            id: delivery.delivery_id.to_string(),
            event_id: delivery.event_id.to_string(),
            kind: delivery.kind.as_str(),
            sequence: delivery.sequence,
            status,
            color,
            attempts: delivery.attempts,
            answer: answer.unwrap_or_else(|| "–".to_owned()),
            body: last.and_then(|last| last.response_body.clone()).unwrap_or_default(),
            created_at: clock.moment(delivery.created_at),
            next: clock.moment_or(delivery.next_attempt_at, ""),
        }
    }
}

#[derive(Template)]
#[template(path = "webhook.html")]
struct WebhookPage {
    shell: Shell,
    id: String,
    url: String,
    /// The chosen kinds of events; empty for the usual ones.
    events: String,
    failing_since: String,
    facts: Vec<Fact>,
    statuses: Vec<(&'static str, &'static str, bool)>,
    deliveries: Vec<DeliveryItem>,
    pager: Pager,
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let id: WebhookId = id.parse().map_err(|_| not_found())?;
    let asked = Query::of(&http);
    let statuses = [
        ("all", "All", None),
        ("pending", "Pending", Some(DeliveryStatus::Pending)),
        ("delivered", "Delivered", Some(DeliveryStatus::Delivered)),
        ("failed", "Failed", Some(DeliveryStatus::Failed)),
    ];
    let status = statuses.iter().find(|(name, ..)| Some(*name) == asked.get("status"));
    let status = status.and_then(|(.., status)| *status);
    let (page, merchant_id) = (page_of::<DeliveryId>(&http), visitor.merchant_id());
    let filter = DeliveryFilter { status };
    let read = move |conn: &mut Conn| {
        let webhook = webhooks::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let found = deliveries::list(conn, merchant_id, id, filter, &page)?;
        let since = deliveries::failing_since(conn, id)?;
        Ok::<_, ApiError>((webhook, since, found.ok_or_else(not_found)?))
    };
    let (webhook, since, mut found) = app.store.read(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |one| one.delivery_id.to_string());
    let line = WebhookItem::of(&webhook, since, &visitor.clock);
    respond(&WebhookPage {
        shell: Shell::new(&visitor, DashboardSection::Webhooks, line.name),
        url: line.url.clone(),
        failing_since: line.failing_since,
        events: webhook.events.as_ref().map_or_else(String::new, |_| line.events.clone()),
        facts: vec![
            Fact::new("Id", line.id.clone()),
            Fact::new("URL", line.url),
            Fact::new("Events", line.events),
            Fact::new("Made", visitor.clock.time(webhook.created_at)),
        ],
        id: line.id,
        statuses: statuses.map(|(name, label, one)| (name, label, one == status)).into(),
        deliveries: found.iter().map(|one| DeliveryItem::of(one, &visitor.clock)).collect(),
        pager,
    })
}

/// Sends all failed deliveries again.
pub(crate) async fn redeliver_failed(
    app: web::Data<App>,
    form: SessionForm,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let id: WebhookId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, now) = (form.visitor.merchant_id(), app.clock.now());
    let again = move |conn: &mut Conn| {
        let count = deliveries::redeliver_failed(conn, merchant_id, id, now)?;
        count.ok_or_else(not_found)
    };
    app.store.write_outside_calls(again).await?;
    form.accept(&app, &format!("/dashboard/webhooks/{id}")).await
}

pub(crate) async fn redeliver(
    app: web::Data<App>,
    form: SessionForm,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, PageError> {
    let id: WebhookId = path.0.parse().map_err(|_| not_found())?;
    let delivery_id: DeliveryId = path.1.parse().map_err(|_| delivery_not_found())?;
    let (merchant_id, now) = (form.visitor.merchant_id(), app.clock.now());
    let again = move |conn: &mut Conn| {
        let sent = deliveries::redeliver(conn, merchant_id, id, delivery_id, now)?;
        sent.ok_or_else(delivery_not_found)
    };
    app.store.write_outside_calls(again).await?;
    form.accept(&app, &format!("/dashboard/webhooks/{id}")).await
}
