//! The page of usage: a chart and a table of the sums of calls by any dimension. Everything that was chosen is in the URL.

use std::cmp::Reverse;

use actix_web::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{BudgetId, ConnectionId, MeterId, SpendKeyId};
use tollgate_store::requests::RequestFilter;
use tollgate_store::usage::{Dimension, GroupMembers, RollupSums};
use tollgate_store::{Conn, RecordArchive, StoreError};

use crate::answer::{PageError, respond};
use crate::chart::{COLORS, Chart, ChartUnit, GREY};
use crate::latency::Latency;
use crate::page::{ChoiceLink, DashboardSection, Shell};
use crate::session::SessionUser;
use crate::text::{self, Figure};
use crate::time_range::{RANGES, TimeRange};
use crate::trend::{BY_MODEL, Measure, Trend, others, sum_up, total};
use tollgate_api::operations::UsageReport;
use tollgate_api::{App, Query};

/// A dimension to choose: its name in the query, its label, and the filters of a member.
const DIMENSIONS: [(&str, &str, &[&str]); 7] = [
    ("model", "Model", &["provider", "model"]),
    ("provider", "Provider", &["provider"]),
    ("connection", "Customer", &["connection_id"]),
    ("spend_key", "Key", &["spend_key_id"]),
    ("budget", "Budget", &["budget_id"]),
    ("meter", "Markup", &["meter_id"]),
    ("status", "Status", &[]),
];

/// A figure to choose: its name in the query, its label, its unit, and the figure of some sums.
const MEASURES: [(&str, &str, ChartUnit, Measure); 6] = [
    ("revenue", "Revenue", ChartUnit::Money, |sums| sums.revenue),
    ("spend", "Spend", ChartUnit::Money, RollupSums::request_cost),
    ("cost", "Provider cost", ChartUnit::Money, |sums| sums.provider_cost),
    ("margin", "Margin", ChartUnit::Money, RollupSums::margin),
    ("tokens", "Tokens", ChartUnit::Count, RollupSums::tokens),
    ("requests", "Requests", ChartUnit::Count, |sums| sums.requests),
];

/// The filters, by their names in the query, with what they are called.
const FILTERS: [(&str, &str); 6] = [
    ("connection_id", "Customer"),
    ("spend_key_id", "Key"),
    ("budget_id", "Budget"),
    ("meter_id", "Markup"),
    ("provider", "Provider"),
    ("model", "Model"),
];

/// The question of the page.
#[derive(Clone)]
struct UsageQuestion {
    range: &'static TimeRange,
    /// The dimension: its name, its label, the parts of a group, and the filters of a member.
    by: String,
    by_label: String,
    dimension: Vec<Dimension>,
    member_filters: &'static [&'static str],
    measure: usize,
    /// The column of the table, and whether its smallest value is first.
    sort: String,
    is_ascending: bool,
    filters: Vec<(&'static str, String)>,
    /// Whether the metadata key that was asked for can be one.
    has_valid_key: bool,
}

impl UsageQuestion {
    fn of(query: &Query) -> Self {
        // The key of the metadata has a field of its own.
        let key = query.get("metadata").map(str::trim).filter(|key| !key.is_empty());
        let key = key.map(|key| format!("metadata.{key}"));
        let by = key.as_deref().or_else(|| query.get("by")).unwrap_or_default();
        let [first, ..] = DIMENSIONS;
        let known = DIMENSIONS.into_iter().find(|(name, ..)| *name == by);
        let key = by.strip_prefix("metadata.");
        let has_valid_key = key.is_none_or(is_metadata_key);
        let (by, by_label, dimension, member_filters) = match (known, key) {
            (None, Some(key)) => {
                let dimension = vec![Dimension::Metadata(key.to_owned())];
                (by.to_owned(), format!("Metadata {key}"), dimension, &[][..])
            }
            (known, _) => {
                let (name, label, filters) = known.unwrap_or(first);
                (name.to_owned(), label.to_owned(), dimension(name), filters)
            }
        };
        let measure = query.get("measure").unwrap_or_default();
        let measure = MEASURES.iter().position(|(name, ..)| *name == measure).unwrap_or(1);
        let sort = query.get("sort").unwrap_or_default();
        let (sort, is_ascending) = sort.strip_prefix('-').map_or((sort, false), |it| (it, true));
        let sort = COLUMNS.iter().find(|column| column.name == sort);
        let filters = FILTERS.into_iter().filter_map(|(name, _)| {
            let value = query.get(name).map(str::trim).filter(|value| !value.is_empty())?;
            Some((name, value.to_owned()))
        });
        Self {
            range: TimeRange::from_query(query),
            by,
            by_label,
            dimension,
            member_filters,
            measure,
            sort: sort.map_or_else(String::new, |column| column.name.to_owned()),
            is_ascending,
            filters: filters.collect(),
            has_valid_key,
        }
    }

    fn measure(&self) -> (&'static str, &'static str, ChartUnit, Measure) {
        let [_, spend, ..] = MEASURES;
        MEASURES.get(self.measure).copied().unwrap_or(spend)
    }

    /// The filter of the store. A text that is no id is one of nothing.
    fn filter(&self) -> Result<RequestFilter, PageError> {
        if !self.has_valid_key {
            return Err(PageError::invalid(
                "A metadata key has only letters, digits and underscores.",
            ));
        }
        let value = |name| self.filters.iter().find(|(it, _)| *it == name).map(|(_, value)| value);
        let unknown = || PageError::invalid("A filter of the address names nothing that exists.");
        let mut filter = RequestFilter {
            provider: value("provider").cloned(),
            model: value("model").cloned(),
            ..RequestFilter::default()
        };
        if self.filters.iter().any(|(_, value)| value.contains('\0')) {
            return Err(unknown());
        }
        if let Some(id) = value("connection_id") {
            filter.connection_id = Some(id.parse::<ConnectionId>().map_err(|_| unknown())?);
        }
        if let Some(id) = value("spend_key_id") {
            filter.spend_key_id = Some(id.parse::<SpendKeyId>().map_err(|_| unknown())?);
        }
        if let Some(id) = value("budget_id") {
            filter.budget_id = Some(id.parse::<BudgetId>().map_err(|_| unknown())?);
        }
        if let Some(id) = value("meter_id") {
            filter.meter_id = Some(id.parse::<MeterId>().map_err(|_| unknown())?);
        }
        Ok(filter)
    }

    /// The address of the page, or of its CSV, with this question.
    fn link(&self, path: &str) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair("range", self.range.name).append_pair("by", &self.by);
        query.append_pair("measure", self.measure().0);
        if !self.sort.is_empty() {
            let sign = if self.is_ascending { "-" } else { "" };
            query.append_pair("sort", &format!("{sign}{}", self.sort));
        }
        query.extend_pairs(&self.filters);
        format!("{path}?{}", query.finish())
    }

    /// Whether the members of the dimension have names of their own.
    fn has_names(&self) -> bool {
        let named = |one: &Dimension| {
            use Dimension::{Budget, Connection, Meter, SpendKey};
            matches!(one, Connection | SpendKey | Budget | Meter)
        };
        self.dimension.iter().any(named)
    }

    fn page(&self) -> String {
        self.link("/dashboard/usage")
    }

    /// The page of the calls of a member alone, by a finer dimension.
    fn of_member(&self, members: &GroupMembers) -> String {
        let values: Option<Vec<_>> = members.iter().cloned().collect();
        let Some(values) = values.filter(|_| !self.member_filters.is_empty()) else {
            return String::new();
        };
        let mut one = self.clone();
        one.filters.retain(|(name, _)| !self.member_filters.contains(name));
        one.filters.extend(self.member_filters.iter().copied().zip(values));
        let finer = if self.by == "model" { "connection" } else { "model" };
        one.by = finer.to_owned();
        one.page()
    }
}

/// The dimensions of the store of one to choose.
fn dimension(name: &str) -> Vec<Dimension> {
    match name {
        "provider" => vec![Dimension::Provider],
        "connection" => vec![Dimension::Connection],
        "spend_key" => vec![Dimension::SpendKey],
        "budget" => vec![Dimension::Budget],
        "meter" => vec![Dimension::Meter],
        "status" => vec![Dimension::Status],
        _ => BY_MODEL.to_vec(),
    }
}

fn is_metadata_key(key: &str) -> bool {
    let is_of_key = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=255).contains(&key.len()) && key.bytes().all(is_of_key)
}

/// A column of the table that can be sorted by: its name in the query, its label, and the figure.
struct TableColumn {
    name: &'static str,
    label: &'static str,
    unit: ChartUnit,
    /// `None` for the names of members.
    figure: Option<Measure>,
}

const COLUMNS: [TableColumn; 8] = [
    TableColumn { name: "name", label: "", unit: ChartUnit::Count, figure: None },
    column("requests", "Requests", ChartUnit::Count, |sums| sums.requests),
    column("tokens", "Tokens", ChartUnit::Count, RollupSums::tokens),
    column("cost", "Provider cost", ChartUnit::Money, |sums| sums.provider_cost),
    column("fee", "Fee", ChartUnit::Money, |sums| sums.fee),
    column("revenue", "Revenue", ChartUnit::Money, |sums| sums.revenue),
    column("margin", "Margin", ChartUnit::Money, RollupSums::margin),
    column("spend", "Spend", ChartUnit::Money, RollupSums::request_cost),
];

const fn column(
    name: &'static str,
    label: &'static str,
    unit: ChartUnit,
    figure: Measure,
) -> TableColumn {
    TableColumn { name, label, unit, figure: Some(figure) }
}

/// The head of a column, with the page that is sorted by it.
struct TableHead {
    href: String,
    label: String,
    is_number: bool,
    /// Whether a phone shows it: the names, and the figure of the chart.
    is_narrow: bool,
    /// `ascending` or `descending`, if the table is sorted by it.
    order: &'static str,
}

/// A row of the table.
struct UsageRow {
    color: &'static str,
    name: String,
    /// The page of its calls alone; empty for none.
    href: String,
    /// The page of the customer, the key or the markup; empty for none.
    open: String,
    cells: Vec<UsageCell>,
}

struct UsageCell {
    figure: Figure,
    is_loss: bool,
    is_narrow: bool,
}

impl UsageRow {
    fn of(asked: &UsageQuestion, color: &'static str, name: String, sums: &RollupSums) -> Self {
        let cells = COLUMNS.iter().filter_map(|column| {
            let value = (column.figure?)(sums);
            Some(UsageCell {
                figure: match column.unit {
                    ChartUnit::Money => Figure::in_column(value),
                    ChartUnit::Count => Figure { shown: text::count(value), exact: String::new() },
                },
                is_loss: value < 0,
                is_narrow: column.name == asked.measure().0,
            })
        });
        let (href, open) = (String::new(), String::new());
        Self { color, name, href, open, cells: cells.collect() }
    }
}

/// The sums of a window.
struct Totals {
    spend: Figure,
    revenue: Figure,
    provider_cost: Figure,
    margin: Figure,
    margin_percent: String,
    is_loss: bool,
    requests: String,
    tokens: String,
    failed: String,
    error_rate: String,
}

impl Totals {
    fn of(sums: &RollupSums) -> Self {
        Self {
            spend: Figure::of(sums.request_cost()),
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

/// A filter that is set, and the page without it.
struct FilterLink {
    label: &'static str,
    value: String,
    href: String,
}

#[derive(Template)]
#[template(path = "usage.html")]
struct UsagePage {
    shell: Shell,
    ranges: Vec<ChoiceLink>,
    dimensions: Vec<ChoiceLink>,
    measures: Vec<ChoiceLink>,
    filters: Vec<FilterLink>,
    /// The metadata key of the dimension; empty for another dimension.
    metadata_key: String,
    /// The rest of the question, which the form for a metadata key keeps.
    kept: Vec<(String, String)>,
    range: &'static str,
    by: String,
    totals: Totals,
    chart: Chart,
    heads: Vec<TableHead>,
    rows: Vec<UsageRow>,
    total: UsageRow,
    latency: Latency,
    /// The link to the table as CSV.
    csv: String,
}

/// The most rows of the table.
const MOST_ROWS: usize = 50;

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let asked = UsageQuestion::of(&Query::of(&http));
    let (merchant_id, filter) = (visitor.merchant_id(), asked.filter()?);
    let (span, before) =
        (asked.range.span(&visitor.clock), asked.range.span_before(&visitor.clock));
    let question = asked.clone();
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        let by = (&*question.dimension, question.measure().3);
        let mut trend = Trend::read(conn, archive, merchant_id, &filter, by, &span)?;
        let before = total(conn, archive, merchant_id, &filter, &before)?;
        let members = table_members(&trend, &question);
        if question.has_names() {
            trend.read_names(conn, merchant_id, &members)?;
        }
        // The names of the members may change their order.
        let members = table_members(&trend, &question);
        let filtered: Vec<GroupMembers> =
            question.filters.iter().map(|(_, value)| vec![Some(value.clone())]).collect();
        trend.read_names(conn, merchant_id, &filtered)?;
        let latency = Latency::read(conn, merchant_id, filter.into())?;
        Ok::<_, StoreError>((trend, before, members, latency))
    };
    let (trend, before, members, latency) = app.store.read_records(read).await?;
    let (_, label, unit, measure) = asked.measure();
    let layers = trend.layers(|members| asked.of_member(members));
    let sums = sum_up(&trend.total);
    let rows = rows(&trend, &asked, &members, &sums);
    let before: Vec<_> = before.iter().map(measure).collect();
    let title = format!("{label} by {}", asked.by_label.to_lowercase());
    let labels = asked.range.labels(&visitor.clock);
    let begun = asked.range.begun(&visitor.clock);
    respond(&UsagePage {
        shell: Shell::new(&visitor, DashboardSection::Usage, "Usage"),
        ranges: RANGES
            .iter()
            .map(|range| ChoiceLink {
                href: UsageQuestion { range, ..asked.clone() }.page(),
                label: range.label,
                is_chosen: range.name == asked.range.name,
            })
            .collect(),
        dimensions: DIMENSIONS
            .iter()
            .map(|(name, label, _)| ChoiceLink {
                href: UsageQuestion { by: (*name).to_owned(), ..asked.clone() }.page(),
                label,
                is_chosen: *name == asked.by,
            })
            .collect(),
        measures: MEASURES
            .iter()
            .enumerate()
            .map(|(measure, (_, label, ..))| ChoiceLink {
                href: UsageQuestion { measure, ..asked.clone() }.page(),
                label,
                is_chosen: measure == asked.measure,
            })
            .collect(),
        filters: filter_links(&trend, &asked),
        metadata_key: asked.by.strip_prefix("metadata.").unwrap_or_default().to_owned(),
        kept: kept(&asked),
        range: asked.range.label,
        totals: Totals::of(&sums),
        chart: Chart::with_period_before(title, unit, &labels, layers, &before, begun),
        heads: heads(&asked),
        rows,
        total: UsageRow::of(&asked, GREY, "Total".to_owned(), &sums),
        latency,
        csv: asked.link("/dashboard/usage.csv"),
        by: asked.by_label,
    })
}

/// The members of the table in its order.
fn table_members(trend: &Trend, asked: &UsageQuestion) -> Vec<GroupMembers> {
    let (.., measure) = asked.measure();
    let column = COLUMNS.iter().find(|column| column.name == asked.sort);
    let mut members = trend.largest(column.and_then(|column| column.figure).unwrap_or(measure));
    if let Some(TableColumn { figure: None, .. }) = column {
        // The names are ascending first.
        members.sort_by_key(|members| trend.name(members).to_lowercase());
    } else if let Some(TableColumn { figure: Some(figure), .. }) = column {
        members.sort_by_key(|members| Reverse(trend.members.get(members).map_or(0, figure)));
    }
    if asked.is_ascending {
        members.reverse();
    }
    members.truncate(MOST_ROWS);
    members
}

fn rows(
    trend: &Trend,
    asked: &UsageQuestion,
    members: &[GroupMembers],
    all: &RollupSums,
) -> Vec<UsageRow> {
    let mut rest = *all;
    let mut rows = Vec::new();
    let (.., measure) = asked.measure();
    let largest = trend.largest(measure);
    for members in members {
        let sums = trend.members.get(members).copied().unwrap_or_default();
        rest = rest - sums;
        let name = trend.name(members);
        let place = largest.iter().position(|one| one == members);
        let color = place.and_then(|place| COLORS.get(place)).copied().unwrap_or(GREY);
        let id = members.first().and_then(Option::as_ref).filter(|_| asked.has_names());
        let open = id.map_or_else(String::new, |id| match id.get(..4) {
            Some("con_") => format!("/dashboard/customers/{id}"),
            Some("spk_") => format!("/dashboard/spend-keys/{id}"),
            Some("bud_") => format!("/dashboard/budgets/{id}"),
            Some("mtr_") => format!("/dashboard/meters/{id}"),
            _ => String::new(),
        });
        let href = asked.of_member(members);
        rows.push(UsageRow { href, open, ..UsageRow::of(asked, color, name, &sums) });
    }
    if rest != RollupSums::default() {
        let name = others(trend.members.len(), rows.len());
        rows.push(UsageRow::of(asked, GREY, name, &rest));
    }
    rows
}

fn heads(asked: &UsageQuestion) -> Vec<TableHead> {
    let head = |column: &TableColumn| {
        let is_sorted = column.name == asked.sort;
        let is_number = column.figure.is_some();
        let next = UsageQuestion {
            sort: column.name.to_owned(),
            is_ascending: is_sorted && !asked.is_ascending,
            ..asked.clone()
        };
        TableHead {
            href: next.page(),
            label: if is_number { column.label.to_owned() } else { asked.by_label.clone() },
            is_number,
            is_narrow: !is_number || column.name == asked.measure().0,
            // Names begin with the first letter, and figures with the largest one.
            order: match (is_sorted, is_number != asked.is_ascending) {
                (false, _) => "",
                (true, true) => "descending",
                (true, false) => "ascending",
            },
        }
    };
    COLUMNS.iter().map(head).collect()
}

fn filter_links(trend: &Trend, asked: &UsageQuestion) -> Vec<FilterLink> {
    let links = asked.filters.iter().map(|(name, value)| {
        let mut without = asked.clone();
        without.filters.retain(|(other, _)| other != name);
        FilterLink {
            label: FILTERS.into_iter().find(|(it, _)| it == name).map_or("", |(_, label)| label),
            value: trend.name(&vec![Some(value.clone())]),
            href: without.page(),
        }
    });
    links.collect()
}

/// The rest of the question, for a form that chooses another dimension.
fn kept(asked: &UsageQuestion) -> Vec<(String, String)> {
    let page = asked.page();
    let query = page.split_once('?').map_or("", |(_, query)| query);
    let pairs = url::form_urlencoded::parse(query.as_bytes()).into_owned();
    pairs.filter(|(name, value)| name != "by" || !value.starts_with("metadata.")).collect()
}

/// The table as CSV: a row for each member of the dimension, with all sums of the range.
pub(crate) async fn csv(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let asked = UsageQuestion::of(&Query::of(&http));
    asked.filter()?;
    let (now, merchant_id) = (visitor.clock.now, visitor.merchant_id());
    let span = asked.range.span(&visitor.clock);
    let group_by = if asked.by == "model" { "provider,model".to_owned() } else { asked.by.clone() };
    let mut query = vec![
        ("start".to_owned(), span.start().to_string()),
        ("end".to_owned(), span.end().to_string()),
        ("interval".to_owned(), "none".to_owned()),
        ("time_zone".to_owned(), visitor.clock.zone_name().to_owned()),
        ("group_by".to_owned(), group_by),
    ];
    query.extend(asked.filters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let query = Query::new(query);
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        UsageReport::read(conn, archive, merchant_id, &query, now)
    };
    let report = app.store.read_records(read).await?;
    let by = asked.by.split('.').next().unwrap_or_default();
    let name = format!("attachment; filename=\"usage-{}-{by}.csv\"", asked.range.name);
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/csv; charset=utf-8"))
        .insert_header((CONTENT_DISPOSITION, name))
        .body(report.to_csv()?))
}
