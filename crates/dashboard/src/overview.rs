//! The first page: spend, failures, and notices of what needs attention.

use std::collections::HashMap;

use actix_web::{HttpResponse, web};
use askama::Template;
use tollgate_domain::{DeliveryStatus, SpendKeyStatus};
use tollgate_pricing::Amount;
use tollgate_store::deliveries::{self, DeliveryFilter};
use tollgate_store::requests::{self as records, ListFilter};
use tollgate_store::{Conn, Page, StoreError, spend_keys, wallets, webhooks};

use crate::answer::{PageError, respond};
use crate::chart::{Chart, ChartUnit};
use crate::in_flight::held;
use crate::page::{DashboardSection, Shell};
use crate::requests::RequestItem;
use crate::session::SessionUser;
use crate::spend::{BY_MODEL, DAY, MONTH, Totals, Trend, layers, total};
use crate::spend_keys::limit_used;
use crate::text::{self, Figure};
use tollgate_api::App;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    shell: Shell,
    day: Totals,
    month: Totals,
    in_flight: String,
    held: String,
    balance: Figure,
    spend: Chart,
    notices: Vec<Notice>,
    requests: Vec<RequestItem>,
}

/// A notice of something that needs attention.
struct Notice {
    href: String,
    what: String,
    why: String,
}

/// The number of the newest spend keys and webhooks that are checked for notices.
const LOOKED_AT: u32 = 100;
/// The part of a limit from which there is a notice, in thousandths.
const NEARLY_USED: i128 = 800;

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
) -> Result<HttpResponse, PageError> {
    let (now, merchant_id) = (app.clock.now(), visitor.merchant_id());
    let read = move |conn: &mut Conn| {
        let of_day = total(conn, merchant_id, &DAY.span(now))?;
        let of_month = Trend::read(conn, merchant_id, BY_MODEL, &MONTH.span(now))?;
        let in_flight = records::in_flight(conn, merchant_id)?;
        let wallet = wallets::find_own(conn, merchant_id)?;
        let newest = Page { after: None, limit: 8 };
        let requests = records::list(conn, merchant_id, &ListFilter::default(), &newest)?.records;
        let newest = Page { after: None, limit: LOOKED_AT };
        let keys = spend_keys::list(conn, merchant_id, &newest)?;
        let newest = Page { after: None, limit: LOOKED_AT };
        let mut failing = Vec::new();
        for webhook in webhooks::list(conn, merchant_id, &newest)? {
            let filter = DeliveryFilter { status: Some(DeliveryStatus::Failed) };
            let page = Page { after: None, limit: 1 };
            let id = webhook.webhook_id;
            let found = deliveries::list(conn, merchant_id, id, filter, &page)?;
            failing.extend(found.unwrap_or_default().into_iter().next().map(|_| webhook));
        }
        Ok::<_, StoreError>((of_day, of_month, in_flight, wallet, requests, keys, failing))
    };
    let (of_day, of_month, in_flight, wallet, requests, keys, failing) =
        app.store.read_snapshot(read).await?;
    let mut notices = Vec::new();
    for key in &keys {
        let used = limit_used(key, now);
        let why = if key.rules.status == SpendKeyStatus::Paused {
            "is paused".to_owned()
        } else if key.rules.expires_at.is_some_and(|at| at <= now) {
            "has expired".to_owned()
        } else if let Some((used, limit)) = used.filter(|(used, limit)| {
            text::thousandths(used.units().into(), limit.units().into()) >= NEARLY_USED
        }) {
            format!("has used {} of its {}", text::money(used), text::money(limit))
        } else {
            continue;
        };
        let href = format!("/dashboard/spend-keys/{}", key.spend_key_id);
        notices.push(Notice { href, what: key.name.clone(), why });
    }
    for webhook in failing {
        let href = format!("/dashboard/webhooks/{}?status=failed", webhook.webhook_id);
        let why = "has deliveries that failed".to_owned();
        notices.push(Notice { href, what: webhook.name, why });
    }
    let held = in_flight.iter().fold(Amount::ZERO, |all, call| all.saturating_add(held(call)));
    respond(&OverviewPage {
        shell: Shell::new(&visitor, DashboardSection::Home, "Home"),
        day: Totals::of(&of_day),
        month: Totals::of(&of_month.total),
        in_flight: text::count(i128::try_from(in_flight.len()).unwrap_or_default()),
        held: text::money(held),
        balance: Figure::of(wallet.map_or(0, |wallet| wallet.balance.units()).into()),
        spend: Chart::new(
            "Spend by model, last 30 days",
            ChartUnit::Money,
            &MONTH.labels(now),
            layers(&of_month, &HashMap::new()),
        ),
        notices,
        requests: requests.iter().map(RequestItem::of).collect(),
    })
}
