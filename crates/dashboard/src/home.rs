//! The first page: what the merchant earns, what needs attention, and what happens now.

use std::cmp::Reverse;

use actix_web::http::header::CONTENT_TYPE;
use actix_web::{HttpResponse, web};
use askama::Template;
use serde_json::json;
use tollgate_domain::{
    DeliveryStatus, Interval, MerchantId, SpendKey, SpendKeyStatus, TimeSpan, Timestamp,
};
use tollgate_pricing::Amount;
use tollgate_store::deliveries::{self, DeliveryFilter};
use tollgate_store::requests::{self as records, ListFilter, RequestFilter};
use tollgate_store::usage::{self, RollupSums};
use tollgate_store::{
    Conn, Page, RecordArchive, StoreError, connections, meters, spend_keys, wallets, webhooks,
};

use crate::answer::{PageError, render, respond};
use crate::chart::{Chart, ChartUnit, GOOD, Layer};
use crate::clock::PageClock;
use crate::in_flight::held;
use crate::latency::Latency;
use crate::page::{DashboardSection, Shell, name_of};
use crate::requests::RequestItem;
use crate::session::SessionUser;
use crate::spend_keys::limit_used;
use crate::text::{self, Figure};
use crate::time_range::MONTH;
use crate::trend::{Measure, margins_by_customer, sum_up, total};
use tollgate_api::App;

/// The newest calls that the page shows.
const NEWEST: u32 = 8;
/// The days that a tile shows, and as many before them that it is compared with.
const DAYS: usize = 30;

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage {
    shell: Shell,
    live: LiveParts,
    spend: Chart,
    notices: Vec<Notice>,
    top: Vec<TopCustomer>,
}

/// The parts of the page that change while it is shown.
struct LiveParts {
    /// The steps of a merchant with fewer calls than the page shows.
    steps: Option<StepsPart>,
    tiles: TilesPart,
    calls: CallsPart,
    /// The sums of each day of two periods.
    by_day: Vec<RollupSums>,
}

#[derive(Template)]
#[template(path = "home_steps.html")]
struct StepsPart(Vec<Step>);

#[derive(Template)]
#[template(path = "home_tiles.html")]
struct TilesPart {
    tiles: Vec<Tile>,
    in_flight: String,
    held: String,
    balance: Figure,
}

#[derive(Template)]
#[template(path = "home_calls.html")]
struct CallsPart {
    requests: Vec<RequestItem>,
}

/// A step to the first call, and whether it is done.
struct Step {
    href: &'static str,
    what: &'static str,
    is_done: bool,
}

/// A figure of 30 days, with the change to the 30 days before and a line of its days.
struct Tile {
    name: &'static str,
    shown: String,
    exact: String,
    note: String,
    is_bad: bool,
    /// The points of the line, in a box of 100 by 24.
    points: String,
}

impl Tile {
    fn money(name: &'static str, days: &[RollupSums], of: fn(&RollupSums) -> i128) -> Self {
        let values: Vec<_> = days.iter().map(of).collect();
        let (before, last) = halves(&values);
        let Figure { shown, exact } = Figure::of(last);
        let is_bad = last < 0;
        Self { name, shown, exact, note: change(before, last), is_bad, points: points(&values) }
    }

    fn count(name: &'static str, values: &[i128]) -> Self {
        let (before, last) = halves(values);
        let shown = text::count(last);
        let note = change(before, last);
        Self { name, exact: shown.clone(), shown, note, is_bad: false, points: points(values) }
    }
}

/// The sums of the first and of the second half.
fn halves(values: &[i128]) -> (i128, i128) {
    let (before, last) = values.split_at(values.len().saturating_sub(DAYS));
    (before.iter().sum(), last.iter().sum())
}

/// The change from one period to the next, in percent.
fn change(before: i128, last: i128) -> String {
    if before <= 0 {
        return String::new();
    }
    let tenths = (last - before) * 1_000 / before;
    let sign = if last < before { "−" } else { "+" };
    let (percent, rest) = (tenths.abs() / 10, tenths.abs() % 10);
    match percent {
        ..10 => format!("{sign}{percent}.{rest}% on the 30 days before"),
        _ => format!("{sign}{}% on the 30 days before", text::count(percent)),
    }
}

/// The values of the last days as the points of a line, whose highest one touches the top.
fn points(values: &[i128]) -> String {
    let days = values.get(values.len().saturating_sub(DAYS)..).unwrap_or_default();
    let (low, high) = (
        days.iter().copied().min().unwrap_or_default().min(0),
        days.iter().copied().max().unwrap_or_default().max(0),
    );
    let last = i128::try_from(days.len().saturating_sub(1)).unwrap_or(1).max(1);
    let point = |(place, value): (usize, &i128)| {
        let x = i128::try_from(place).unwrap_or_default() * 100 / last;
        let y = 23 - (value - low) * 22 / (high - low).max(1);
        format!("{x},{y}")
    };
    days.iter().enumerate().map(point).collect::<Vec<_>>().join(" ")
}

/// A notice of something that needs attention, with the page that mends it.
struct Notice {
    /// The order of notices: 0 stops calls or messages, 1 will, 2 is a setting.
    severity: u8,
    color: &'static str,
    href: String,
    what: String,
    why: String,
    action: &'static str,
}

impl Notice {
    fn new(
        severity: u8,
        href: String,
        what: impl Into<String>,
        why: impl Into<String>,
        action: &'static str,
    ) -> Self {
        let color = match severity {
            0 => "bad",
            1 => "warn",
            _ => "plain",
        };
        Self { severity, color, href, what: what.into(), why: why.into(), action }
    }
}

/// The number of the newest spend keys and webhooks that are checked for notices.
const LOOKED_AT: u32 = 100;
/// The part of a limit from which there is a notice, in thousandths.
const NEARLY_USED: i128 = 800;

/// The notice of a spend key, if it needs one.
fn key_notice(key: &SpendKey, now: Timestamp) -> Option<Notice> {
    let href = |part: &str| format!("/dashboard/spend-keys/{}{part}", key.spend_key_id);
    if key.rules.status == SpendKeyStatus::Paused {
        return Some(Notice::new(2, href(""), &key.name, "is paused", "Resume it"));
    }
    if key.rules.expires_at.is_some_and(|at| at <= now) {
        return Some(Notice::new(0, href(""), &key.name, "has expired", "Look at it"));
    }
    let (used, limit) = limit_used(key, now)?;
    let part = text::thousandths(used.units().into(), limit.units().into());
    let severity = match part {
        1_000.. => 0,
        NEARLY_USED..1_000 => 1,
        _ => return None,
    };
    let figure = |amount: Amount| Figure::of(amount.units().into()).shown;
    let why = format!("has used {} of its {}", figure(used), figure(limit));
    Some(Notice::new(severity, href("#change"), &key.name, why, "Raise the limit"))
}

struct TopCustomer {
    id: String,
    name: String,
    revenue: Figure,
    margin: Figure,
}

/// The customers with the highest revenue of 30 days.
fn top_customers(
    conn: &mut Conn,
    merchant_id: MerchantId,
    clock: &PageClock,
) -> Result<Vec<TopCustomer>, StoreError> {
    const MOST: usize = 5;
    let sums = margins_by_customer(conn, merchant_id, clock)?.into_iter();
    let mut sums: Vec<_> = sums.filter(|(_, sum)| sum.revenue > 0).collect();
    sums.sort_by_key(|(id, sum)| (Reverse(sum.revenue), id.clone()));
    let mut top = Vec::new();
    for (id, sum) in sums.into_iter().take(MOST) {
        let found = match id.parse() {
            Ok(id) => connections::find(conn, merchant_id, id)?,
            Err(_) => None,
        };
        top.push(TopCustomer {
            name: found.as_ref().map_or_else(|| id.clone(), name_of),
            revenue: Figure::in_column(sum.revenue),
            margin: Figure::in_column(sum.margin()),
            id,
        });
    }
    Ok(top)
}

/// The webhooks that accept no message now, and those with deliveries that failed for good.
fn failing_webhooks(
    conn: &mut Conn,
    merchant_id: MerchantId,
    clock: &PageClock,
) -> Result<Vec<Notice>, StoreError> {
    let newest = Page { after: None, limit: LOOKED_AT };
    let mut failing = Vec::new();
    for webhook in webhooks::list(conn, merchant_id, &newest)? {
        let filter = DeliveryFilter { status: Some(DeliveryStatus::Failed) };
        let page = Page { after: None, limit: 1 };
        let id = webhook.webhook_id;
        let found = deliveries::list(conn, merchant_id, id, filter, &page)?.unwrap_or_default();
        let (why, href, action) = match (deliveries::failing_since(conn, id)?, found.first()) {
            (Some(since), _) => (
                format!("has accepted no message since {}", clock.time(since)),
                format!("/dashboard/webhooks/{id}"),
                "Look at its deliveries",
            ),
            (None, Some(last)) => (
                format!("has deliveries that failed, the last of {}", clock.time(last.created_at)),
                format!("/dashboard/webhooks/{id}?status=failed"),
                "Deliver them again",
            ),
            (None, None) => continue,
        };
        failing.push(Notice::new(0, href, webhook.name, why, action));
    }
    Ok(failing)
}

/// The steps to the first call.
fn steps(
    conn: &mut Conn,
    merchant_id: MerchantId,
    has_call: bool,
) -> Result<Vec<Step>, StoreError> {
    let has_meter = !meters::list(conn, merchant_id, &Page { after: None, limit: 1 })?.is_empty();
    let one = Page { after: None, limit: 1 };
    let has_customer = !connections::list(conn, merchant_id, &one)?.is_empty();
    let has_key = !spend_keys::list(conn, merchant_id, &Page { after: None, limit: 1 })?.is_empty();
    let step = |href, what, is_done| Step { href, what, is_done };
    Ok(vec![
        step("/dashboard/pricing#meters", "Make a markup: what you charge for calls", has_meter),
        step("/dashboard/customers", "Make a customer, and put credit on its wallet", has_customer),
        step("/dashboard/spend-keys#new", "Make a key for it", has_key),
        step("/dashboard/developers", "Make the first call with the key", has_call),
    ])
}

impl LiveParts {
    fn read(
        conn: &mut Conn,
        merchant_id: MerchantId,
        clock: &PageClock,
    ) -> Result<Self, StoreError> {
        let (all, days) = (RequestFilter::default(), u16::try_from(2 * DAYS).unwrap_or(u16::MAX));
        let span = TimeSpan::ending(clock.now, Interval::Day, days, clock.zone.clone());
        let by_day = total(conn, &RecordArchive::left_out(), merchant_id, &all, &span)?;
        let refused = usage::refused(conn, merchant_id, &all, &[], &span)?;
        let refused = refused.and_then(|groups| groups.into_values().next()).unwrap_or_default();
        let refused =
            (0..2 * DAYS).map(|day| refused.get(&day).copied().unwrap_or_default().into());
        let refused: Vec<i128> = refused.collect();
        let latency = Latency::read(conn, merchant_id, ListFilter::default())?;
        let in_flight = records::in_flight(conn, merchant_id)?;
        let held = in_flight.iter().fold(Amount::ZERO, |all, call| all.saturating_add(held(call)));
        let wallet = wallets::find_own(conn, merchant_id)?;
        let newest = Page { after: None, limit: NEWEST };
        let requests = records::list(
            conn,
            &RecordArchive::left_out(),
            merchant_id,
            &ListFilter::default(),
            &newest,
        )?
        .records;
        let is_new = u32::try_from(requests.len()).is_ok_and(|count| count < NEWEST);
        Ok(Self {
            steps: match is_new {
                true => Some(StepsPart(steps(conn, merchant_id, !requests.is_empty())?)),
                false => None,
            },
            tiles: TilesPart {
                tiles: tiles(&by_day, &refused, latency),
                in_flight: text::count(i128::try_from(in_flight.len()).unwrap_or_default()),
                held: Figure::of(held.units().into()).shown,
                balance: Figure::of(wallet.map_or(0, |wallet| wallet.balance.units()).into()),
            },
            by_day,
            calls: CallsPart {
                requests: requests.iter().map(|one| RequestItem::of(one, clock)).collect(),
            },
        })
    }
}

fn tiles(by_day: &[RollupSums], refused: &[i128], latency: Latency) -> Vec<Tile> {
    let last = sum_up(by_day.iter().skip(DAYS));
    let percent = text::percent(last.margin(), last.revenue);
    let requests: Vec<_> = by_day.iter().map(|sums| sums.requests).collect();
    vec![
        Tile::money("Revenue, 30 days", by_day, |sums| sums.revenue),
        Tile::money("Provider cost, 30 days", by_day, |sums| sums.provider_cost),
        Tile {
            note: format!("{percent} of revenue"),
            ..Tile::money("Margin, 30 days", by_day, RollupSums::margin)
        },
        Tile::count("Requests, 30 days", &requests),
        Tile::count("Refused, 30 days", refused),
        Tile {
            name: "95% of calls within",
            shown: latency.p95,
            exact: String::new(),
            note: format!("of the newest {}", latency.calls),
            is_bad: false,
            points: String::new(),
        },
    ]
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
) -> Result<HttpResponse, PageError> {
    let (clock, merchant_id) = (visitor.clock.clone(), visitor.merchant_id());
    app.store.flush_refusals().await;
    let read = move |conn: &mut Conn| {
        let mut live = LiveParts::read(conn, merchant_id, &clock)?;
        // The steps are for those who have made no call yet.
        live.steps = live.steps.filter(|steps| steps.0.iter().any(|step| !step.is_done));
        let newest = Page { after: None, limit: LOOKED_AT };
        let keys = spend_keys::list(conn, merchant_id, &newest)?;
        let mut notices = failing_webhooks(conn, merchant_id, &clock)?;
        notices.extend(keys.iter().filter_map(|key| key_notice(key, clock.now)));
        notices.sort_by_key(|notice| notice.severity);
        let top = top_customers(conn, merchant_id, &clock)?;
        Ok::<_, StoreError>((live, notices, top))
    };
    let (live, notices, top) = app.store.read_snapshot(read).await?;
    respond(&HomePage {
        shell: Shell::new(&visitor, DashboardSection::Home, "Home"),
        spend: chart(&live.by_day, &visitor.clock),
        live,
        notices,
        top,
    })
}

/// The revenue of 30 days, or the spend of a merchant without customers, with the 30 days before.
fn chart(by_day: &[RollupSums], clock: &PageClock) -> Chart {
    let (name, measure): (_, Measure) = match by_day.iter().any(|sums| sums.revenue != 0) {
        true => ("Revenue", |sums| sums.revenue),
        false => ("Spend", RollupSums::request_cost),
    };
    let values: Vec<_> = by_day.iter().map(measure).collect();
    let (before, last) = values.split_at(values.len().saturating_sub(DAYS));
    let layer = Layer::new(name, GOOD, last.to_vec());
    let title = format!("{name}, last 30 days");
    let labels = MONTH.labels(clock);
    Chart::with_period_before(title, ChartUnit::Money, &labels, vec![layer], before, DAYS)
}

/// The time after which a browser asks for the next event, in milliseconds.
const LIVE_MILLIS: u32 = 5_000;

/// The changing parts of the page, as an event for each answer: the browser asks again after [`LIVE_MILLIS`]. So no
/// connection stays open, and each event is one of a session that still exists.
pub(crate) async fn live(
    app: web::Data<App>,
    visitor: SessionUser,
) -> Result<HttpResponse, PageError> {
    let (clock, merchant_id) = (visitor.clock.clone(), visitor.merchant_id());
    app.store.flush_refusals().await;
    let read = move |conn: &mut Conn| LiveParts::read(conn, merchant_id, &clock);
    let live = app.store.read_snapshot(read).await?;
    let parts = json!({
        "live-steps": live.steps.as_ref().map(render).transpose()?,
        "live-tiles": render(&live.tiles)?,
        "live-calls": render(&live.calls)?,
    });
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .body(format!("retry: {LIVE_MILLIS}\ndata: {parts}\n\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reaches_from_the_bottom_to_the_top_and_never_beyond() {
        assert_eq!(points(&[0, 5, 10]), "0,23 50,12 100,1");
        assert_eq!(points(&[0, 0]), "0,23 100,23");
        assert_eq!(points(&[-10, 10]), "0,23 100,1");
        assert_eq!(points(&[]), "");
        assert_eq!(points(&[7]), "0,1");
    }

    #[test]
    fn a_change_is_told_where_there_was_something_before() {
        assert_eq!(change(0, 5), "");
        assert_eq!(change(4, 5), "+25% on the 30 days before");
        assert_eq!(change(4, 3), "−25% on the 30 days before");
        assert_eq!(change(1_000, 991), "−0.9% on the 30 days before");
    }
}
