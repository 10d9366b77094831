//! Spend over time: cost, payer, tokens, failures, and duration. All but the last is read from the roll-ups.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use actix_web::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{Interval, MerchantId, Month, RequestStatus, TimeSpan, TimeZone, Timestamp};
use tollgate_store::requests::{self, ListFilter, RequestFilter};
use tollgate_store::usage::{self, Dimension, GroupMembers, RollupSums};
use tollgate_store::{Conn, Page, StoreError, connections, spend_keys};

use crate::answer::{PageError, respond};
use crate::chart::{BAD, COLORS, Chart, ChartUnit, GOOD, GREY, Layer};
use crate::page::{ChoiceLink, DashboardSection, Shell};
use crate::session::SessionUser;
use crate::text::{self, Figure};
use tollgate_api::operations::UsageReport;
use tollgate_api::{App, Query};

/// A range of time to choose: its name, the interval of a column, and its extent.
pub(crate) struct TimeRange {
    name: &'static str,
    label: &'static str,
    interval: Interval,
    extent: RangeExtent,
}

/// The extent of a range.
enum RangeExtent {
    /// This number of columns, with the present one.
    Columns(u16),
    /// The present calendar month.
    ThisMonth,
    /// The calendar month before it.
    LastMonth,
}

const fn columns(
    name: &'static str,
    label: &'static str,
    interval: Interval,
    columns: u16,
) -> TimeRange {
    TimeRange { name, label, interval, extent: RangeExtent::Columns(columns) }
}

const RANGES: [TimeRange; 7] = [
    columns("24h", "24 hours", Interval::Hour, 24),
    columns("7d", "7 days", Interval::Day, 7),
    columns("30d", "30 days", Interval::Day, 30),
    TimeRange {
        name: "month",
        label: "This month",
        interval: Interval::Day,
        extent: RangeExtent::ThisMonth,
    },
    TimeRange {
        name: "last-month",
        label: "Last month",
        interval: Interval::Day,
        extent: RangeExtent::LastMonth,
    },
    columns("90d", "90 days", Interval::Day, 90),
    columns("12m", "12 months", Interval::Week, 52),
];

/// The default range.
pub(crate) const MONTH: &TimeRange = &RANGES[2];

impl TimeRange {
    fn from_query(query: &Query) -> &'static Self {
        let name = query.get("range");
        RANGES.iter().find(|range| Some(range.name) == name).unwrap_or(MONTH)
    }

    pub(crate) fn span(&self, now: Timestamp) -> TimeSpan {
        let this = Month::of(now, &TimeZone::UTC).range(&TimeZone::UTC);
        let month = match self.extent {
            RangeExtent::Columns(columns) => {
                return TimeSpan::ending(now, self.interval, columns, TimeZone::UTC);
            }
            RangeExtent::ThisMonth => this,
            RangeExtent::LastMonth => {
                Month::of(this.start.plus_micros(-1), &TimeZone::UTC).range(&TimeZone::UTC)
            }
        };
        let span = TimeSpan::new(month.start, month.end, TimeZone::UTC, self.interval);
        // A month is a valid span.
        span.unwrap_or_else(|_| TimeSpan::ending(now, self.interval, 31, TimeZone::UTC))
    }

    /// The labels of the columns.
    pub(crate) fn labels(&self, now: Timestamp) -> Vec<String> {
        let label = if self.interval == Interval::Hour { text::hour } else { text::short_day };
        self.span(now).periods().iter().map(|period| label(period.start.instant())).collect()
    }
}

/// A model is one of its provider.
pub(crate) const BY_MODEL: &[Dimension] = &[Dimension::Provider, Dimension::Model];

const DIMENSIONS: [(&str, &str, &[Dimension]); 4] = [
    ("model", "Model", BY_MODEL),
    ("provider", "Provider", &[Dimension::Provider]),
    ("connection", "Customer", &[Dimension::Connection]),
    ("spend_key", "Spend key", &[Dimension::SpendKey]),
];

/// The sums of a merchant over a range: of all calls, and of each member of the dimensions, by its name.
pub(crate) struct Trend {
    pub(crate) total: Vec<RollupSums>,
    pub(crate) members: BTreeMap<String, Vec<RollupSums>>,
}

impl Trend {
    pub(crate) fn read(
        conn: &mut Conn,
        merchant_id: MerchantId,
        by: &[Dimension],
        span: &TimeSpan,
    ) -> Result<Self, StoreError> {
        let all = RequestFilter::default();
        // Where there are too many members, the charts show their total.
        let groups = usage::sums(conn, merchant_id, &all, by, span)?.unwrap_or_default();
        let columns = span.periods().len();
        let members = groups
            .into_iter()
            .map(|(members, sums)| (name_of_group(by, &members), in_columns(&sums, columns)));
        Ok(Self { total: total(conn, merchant_id, span)?, members: members.collect() })
    }
}

/// The sums of all calls of a merchant, for each column.
pub(crate) fn total(
    conn: &mut Conn,
    merchant_id: MerchantId,
    span: &TimeSpan,
) -> Result<Vec<RollupSums>, StoreError> {
    let sums = usage::sums(conn, merchant_id, &RequestFilter::default(), &[], span)?;
    let sums = sums.and_then(|sums| sums.into_values().next()).unwrap_or_default();
    Ok(in_columns(&sums, span.periods().len()))
}

/// The sums of each column, also of those without calls.
fn in_columns(sums: &BTreeMap<usize, RollupSums>, columns: usize) -> Vec<RollupSums> {
    (0..columns).map(|column| sums.get(&column).copied().unwrap_or_default()).collect()
}

fn name_of_group(by: &[Dimension], members: &GroupMembers) -> String {
    let names = by.iter().zip(members).map(|(dimension, member)| match (dimension, member) {
        (_, Some(member)) => member.clone(),
        (Dimension::Model, None) => "no model".to_owned(),
        (Dimension::Connection, None) => "No customer".to_owned(),
        (Dimension::SpendKey, None) => "No spend key".to_owned(),
        (_, None) => "None".to_owned(),
    });
    names.collect::<Vec<_>>().join("/")
}

#[derive(Template)]
#[template(path = "spend.html")]
struct SpendPage {
    shell: Shell,
    ranges: Vec<ChoiceLink>,
    dimensions: Vec<ChoiceLink>,
    range: &'static str,
    by: &'static str,
    totals: Totals,
    spend: Chart,
    payers: Chart,
    tokens: Chart,
    calls: Chart,
    latency: Latency,
    members: Vec<SpendRow>,
    /// The link to the table as CSV.
    csv: String,
}

/// A row of the table below the charts.
struct SpendRow {
    color: &'static str,
    name: String,
    href: String,
    requests: String,
    tokens: String,
    provider_cost: Figure,
    fee: Figure,
    revenue: Figure,
    margin: Figure,
    is_loss: bool,
    cost: Figure,
    share: String,
}

/// The sums of a window.
pub(crate) struct Totals {
    pub(crate) cost: Figure,
    pub(crate) revenue: Figure,
    pub(crate) provider_cost: Figure,
    pub(crate) margin: Figure,
    pub(crate) margin_percent: String,
    pub(crate) is_loss: bool,
    pub(crate) requests: String,
    pub(crate) tokens: String,
    pub(crate) failed: String,
    pub(crate) error_rate: String,
}

impl Totals {
    pub(crate) fn of(total: &[RollupSums]) -> Self {
        let sums = sum_up(total);
        Self {
            cost: Figure::of(sums.request_cost()),
            revenue: Figure::of(sums.revenue),
            provider_cost: Figure::of(sums.provider_cost),
            margin: Figure::of(sums.margin()),
            margin_percent: text::percent(sums.margin(), sums.revenue),
            is_loss: sums.margin() < 0,
            requests: text::count(sums.requests),
            tokens: text::short(sums.tokens()),
            failed: text::count(sums.failed),
            error_rate: text::percent(sums.failed, sums.requests),
        }
    }
}

pub(crate) fn sum_up<'a>(parts: impl IntoIterator<Item = &'a RollupSums>) -> RollupSums {
    let mut sums = RollupSums::default();
    parts.into_iter().for_each(|part| sums += *part);
    sums
}

/// The sums of 30 days of each customer that has calls, by its id.
pub(crate) fn sums_by_customer(
    conn: &mut Conn,
    merchant_id: MerchantId,
    now: Timestamp,
) -> Result<HashMap<String, RollupSums>, StoreError> {
    let all = RequestFilter::default();
    let by = [Dimension::Connection];
    let groups = usage::sums(conn, merchant_id, &all, &by, &MONTH.span(now))?.unwrap_or_default();
    let of_customers = groups
        .into_iter()
        .filter_map(|(mut members, periods)| Some((members.pop()??, sum_up(periods.values()))));
    Ok(of_customers.collect())
}

/// The most expensive members of a trend as layers, and all the rest as one.
pub(crate) fn layers(trend: &Trend, names: &HashMap<String, String>) -> Vec<Layer> {
    let mut members: Vec<_> = trend.members.iter().collect();
    members.sort_by_key(|(name, sums)| (Reverse(sum_up(*sums).request_cost()), *name));
    let costs = |sums: &[RollupSums]| sums.iter().map(RollupSums::request_cost).collect::<Vec<_>>();
    let mut rest = costs(&trend.total);
    let mut layers = Vec::new();
    for (color, (id, sums)) in COLORS.into_iter().zip(members) {
        let values = costs(sums);
        rest.iter_mut().zip(&values).for_each(|(rest, value)| *rest -= value);
        layers.push(Layer { name: name_of(id, names), color, values });
    }
    if rest.iter().any(|rest| *rest != 0) {
        let name = if layers.is_empty() { "All" } else { "All others" };
        layers.push(Layer { name: name.to_owned(), color: GREY, values: rest });
    }
    layers
}

fn name_of(id: &str, names: &HashMap<String, String>) -> String {
    names.get(id).cloned().unwrap_or_else(|| id.to_owned())
}

/// The names of connections and spend keys.
fn names(
    conn: &mut Conn,
    merchant_id: MerchantId,
    trend: &Trend,
) -> Result<HashMap<String, String>, StoreError> {
    let mut names = HashMap::new();
    // Only members that can have a row below are named.
    let mut members: Vec<_> = trend.members.iter().collect();
    members.sort_by_key(|(_, sums)| Reverse(sum_up(*sums).request_cost()));
    for (member, _) in members.into_iter().take(MOST_ROWS) {
        let name = if let Ok(id) = member.parse() {
            connections::find(conn, merchant_id, id)?.and_then(|one| one.name.or(one.reference_id))
        } else if let Ok(id) = member.parse() {
            spend_keys::find(conn, merchant_id, id)?.map(|one| one.name)
        } else {
            None
        };
        names.extend(name.map(|name| (member.clone(), name)));
    }
    Ok(names)
}

/// The most rows of the table.
const MOST_ROWS: usize = 50;

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let query = Query::of(&http);
    let range = TimeRange::from_query(&query);
    let asked = query.get("by");
    let [model, ..] = &DIMENSIONS;
    let (by, by_label, dimension) =
        DIMENSIONS.iter().find(|(name, ..)| Some(*name) == asked).unwrap_or(model);
    let (now, merchant_id) = (app.clock.now(), visitor.merchant_id());
    let span = range.span(now);
    let read = move |conn: &mut Conn| {
        let trend = Trend::read(conn, merchant_id, dimension, &span)?;
        let names = names(conn, merchant_id, &trend)?;
        Ok::<_, StoreError>((trend, names, Latency::read(conn, merchant_id)?))
    };
    let (trend, names, latency) = app.store.read_snapshot(read).await?;
    let labels = range.labels(now);
    let link = |range: &str, by: &str| format!("/dashboard/usage?range={range}&by={by}");
    let stacked = layers(&trend, &names);
    let members = members(&trend, &names, &stacked);
    let values = |of: fn(&RollupSums) -> i128| trend.total.iter().map(of).collect::<Vec<_>>();
    let good = values(|sums| sums.requests - sums.failed);
    let layer = |name: &str, color, values| Layer { name: name.to_owned(), color, values };
    let [first, second, ..] = COLORS;
    respond(&SpendPage {
        shell: Shell::new(&visitor, DashboardSection::Usage, "Usage"),
        ranges: RANGES
            .iter()
            .map(|one| ChoiceLink {
                href: link(one.name, by),
                label: one.label,
                is_chosen: one.name == range.name,
            })
            .collect(),
        dimensions: DIMENSIONS
            .iter()
            .map(|(name, label, _)| ChoiceLink {
                href: link(range.name, name),
                label,
                is_chosen: name == by,
            })
            .collect(),
        range: range.label,
        by: by_label,
        totals: Totals::of(&trend.total),
        spend: Chart::new(
            format!("Spend by {}", by_label.to_lowercase()),
            ChartUnit::Money,
            &labels,
            stacked,
        ),
        payers: Chart::new(
            "Who paid",
            ChartUnit::Money,
            &labels,
            vec![
                layer("The wallet of the request", first, values(|sums| sums.wallet_cost)),
                layer("You, as the merchant", second, values(|sums| sums.merchant_cost)),
            ],
        ),
        tokens: Chart::new(
            "Tokens",
            ChartUnit::Count,
            &labels,
            vec![layer("Tokens", first, values(RollupSums::tokens))],
        ),
        calls: Chart::new(
            "Requests",
            ChartUnit::Count,
            &labels,
            vec![layer("Completed", GOOD, good), layer("Failed", BAD, values(|sums| sums.failed))],
        ),
        latency,
        members,
        csv: format!("/dashboard/usage.csv?range={}&by={by}", range.name),
    })
}

/// The table as CSV: a row for each member of the dimension, with all sums of the range.
pub(crate) async fn csv(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let query = Query::of(&http);
    let (range, by) = (TimeRange::from_query(&query), query.get("by").unwrap_or("model"));
    let (now, merchant_id) = (app.clock.now(), visitor.merchant_id());
    let span = range.span(now);
    let group_by = if by == "model" { "provider,model" } else { by };
    let asked = [
        ("start", span.start().to_string()),
        ("end", span.end().to_string()),
        ("interval", "none".to_owned()),
        ("group_by", group_by.to_owned()),
    ];
    let asked = Query::new(asked.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let read = move |conn: &mut Conn| UsageReport::read(conn, merchant_id, &asked, now);
    let report = app.store.read_snapshot(read).await?;
    let name = format!("attachment; filename=\"usage-{}-{by}.csv\"", range.name);
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/csv; charset=utf-8"))
        .insert_header((CONTENT_DISPOSITION, name))
        .body(report.to_csv()?))
}

fn members(trend: &Trend, names: &HashMap<String, String>, layers: &[Layer]) -> Vec<SpendRow> {
    let all = sum_up(&trend.total);
    let mut sums: Vec<_> = trend.members.iter().map(|(id, parts)| (id, sum_up(parts))).collect();
    sums.retain(|(_, sums)| *sums != RollupSums::default());
    sums.sort_by_key(|(id, sums)| (Reverse(sums.request_cost()), *id));
    let mut rest = all;
    let mut rows = Vec::new();
    for (id, sums) in sums.into_iter().take(MOST_ROWS) {
        rest = rest - sums;
        let name = name_of(id, names);
        let color = layers.iter().find(|layer| layer.name == name).map_or(GREY, |it| it.color);
        let href = match id.get(..4) {
            Some("con_") => format!("/dashboard/customers/{id}"),
            Some("spk_") => format!("/dashboard/spend-keys/{id}"),
            _ => String::new(),
        };
        rows.push(SpendRow { href, ..row(color, name, &sums, &all) });
    }
    if rest != RollupSums::default() {
        let name = if rows.is_empty() { "All" } else { "All others" };
        rows.push(row(GREY, name.to_owned(), &rest, &all));
    }
    rows
}

fn row(color: &'static str, name: String, sums: &RollupSums, all: &RollupSums) -> SpendRow {
    SpendRow {
        color,
        name,
        href: String::new(),
        requests: text::count(sums.requests),
        tokens: text::count(sums.tokens()),
        provider_cost: Figure::in_column(sums.provider_cost),
        fee: Figure::in_column(sums.fee),
        revenue: Figure::in_column(sums.revenue),
        margin: Figure::in_column(sums.margin()),
        is_loss: sums.margin() < 0,
        cost: Figure::in_column(sums.request_cost()),
        share: text::percent(sums.request_cost(), all.request_cost()),
    }
}

/// The time of the newest calls from their admission to their settlement.
pub(crate) struct Latency {
    pub(crate) calls: usize,
    pub(crate) median: String,
    pub(crate) p95: String,
    pub(crate) p99: String,
    pub(crate) chart: Chart,
}

/// The number of the newest records that are read for it, because no sum is kept of it.
const NEWEST: u32 = 500;
const BOUNDS_MILLIS: [(i64, &str); 8] = [
    (100, "< 0.1 s"),
    (250, "< 0.25 s"),
    (500, "< 0.5 s"),
    (1_000, "< 1 s"),
    (2_000, "< 2 s"),
    (5_000, "< 5 s"),
    (15_000, "< 15 s"),
    (i64::MAX, "longer"),
];

impl Latency {
    pub(crate) fn read(conn: &mut Conn, merchant_id: MerchantId) -> Result<Self, StoreError> {
        let page = Page { after: None, limit: NEWEST };
        let records = requests::list(conn, merchant_id, &ListFilter::default(), &page)?.records;
        // Reported usage was not waited for, and the end of a swept call is not known.
        let waited = records.iter().filter(|record| {
            record.status == RequestStatus::Completed
                && record.reference_id.is_none()
                && !record.swept
        });
        let mut millis: Vec<i64> = waited.filter_map(took_millis).collect();
        millis.sort_unstable();
        let at = |percent: usize| {
            let place = (millis.len() * percent).div_ceil(100).saturating_sub(1);
            millis.get(place).map_or_else(|| "–".to_owned(), |millis| text::duration(*millis))
        };
        let mut counts = [0_i128; BOUNDS_MILLIS.len()];
        for took in &millis {
            let place = BOUNDS_MILLIS.iter().position(|(bound, _)| took < bound);
            if let Some(count) = place.and_then(|place| counts.get_mut(place)) {
                *count += 1;
            }
        }
        let labels = BOUNDS_MILLIS.map(|(_, label)| label.to_owned());
        let values = counts.to_vec();
        let layer = Layer { name: "Requests".to_owned(), color: GOOD, values };
        Ok(Self {
            calls: millis.len(),
            median: at(50),
            p95: at(95),
            p99: at(99),
            chart: Chart::new("How long requests took", ChartUnit::Count, &labels, vec![layer]),
        })
    }
}

/// The time of a call, in milliseconds.
pub(crate) fn took_millis(record: &tollgate_domain::RequestRecord) -> Option<i64> {
    let settled_at = record.settled_at?.unix_micros();
    Some(settled_at.saturating_sub(record.created_at.unix_micros()).max(0) / 1_000)
}
