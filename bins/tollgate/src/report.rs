//! `tollgate usage`, `requests`, `refusals` and `statement`: the reports of a merchant, as the API answers with them.

use actix_web::web::Bytes;
use anyhow::{anyhow, bail};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tollgate_api::operations::{
    StatementDocument, UsageReport, list_refusals, list_requests, refusals_to_csv, requests_to_csv,
};
use tollgate_api::{ApiError, Query};
use tollgate_domain::{Clock, ConnectionId, MerchantId, Month, TimeSpan, TimeZone};
use tollgate_store::subscriptions::RenewalScope;
use tollgate_store::{Conn, Page, RecordArchive, Store};

use crate::config::TollgateConfig;
use crate::database::store_of;
use crate::output::{
    print_bytes, print_csv, print_line, print_lines, printable, table, with_issues,
    with_named_issues,
};

/// The number of items that are read at once.
const PAGE: u32 = 500;

/// The merchant, the calls and the form of a report.
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// The merchant.
    #[arg(long, value_name = "MERCHANT_ID")]
    merchant: MerchantId,
    /// A calendar month, such as 2026-11.
    #[arg(long, conflicts_with_all = ["start", "end"])]
    month: Option<String>,
    /// The first instant, such as 2026-11-01T00:00:00Z.
    #[arg(long)]
    start: Option<String>,
    /// The first instant that is not part of it.
    #[arg(long)]
    end: Option<String>,
    /// The IANA name of the time zone, such as Europe/Berlin; default: UTC.
    #[arg(long, value_name = "NAME")]
    time_zone: Option<String>,
    /// Only calls of this customer (a connection in the API).
    #[arg(long, value_name = "CONNECTION_ID")]
    connection: Option<String>,
    /// Only calls of this spend key.
    #[arg(long, value_name = "SPEND_KEY_ID")]
    spend_key: Option<String>,
    /// Only calls of this model.
    #[arg(long)]
    model: Option<String>,
    /// Print CSV.
    #[arg(long)]
    csv: bool,
}

/// More choices among the calls of a report. Refused calls have none of them.
#[derive(Args)]
struct SentCallArgs {
    /// Only calls that count against this budget.
    #[arg(long, value_name = "BUDGET_ID")]
    budget: Option<String>,
    /// Only calls of this provider.
    #[arg(long)]
    provider: Option<String>,
}

impl SentCallArgs {
    fn pairs(self) -> impl Iterator<Item = (String, String)> {
        let pairs = [("budget_id", self.budget), ("provider", self.provider)];
        pairs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)))
    }
}

fn zone_of(name: Option<&str>) -> anyhow::Result<TimeZone> {
    let Some(name) = name else { return Ok(TimeZone::UTC) };
    TimeZone::named(name).ok_or_else(|| anyhow!("{name} is no time zone, such as Europe/Berlin"))
}

fn month_of(text: &str) -> anyhow::Result<Month> {
    text.parse().map_err(|_| anyhow!("{text} is no month, such as 2026-11"))
}

impl ReportArgs {
    /// The query of the API that asks for the same.
    fn query(&self) -> anyhow::Result<Vec<(String, String)>> {
        let zone = zone_of(self.time_zone.as_deref())?;
        let (start, end) = match &self.month {
            Some(month) => {
                let span = TimeSpan::of_month(month_of(month)?, zone);
                (Some(span.start().to_string()), Some(span.end().to_string()))
            }
            None => (self.start.clone(), self.end.clone()),
        };
        let pairs = [
            ("start", start),
            ("end", end),
            ("connection_id", self.connection.clone()),
            ("spend_key_id", self.spend_key.clone()),
            ("model", self.model.clone()),
        ];
        let given = pairs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Ok(given.collect())
    }
}

/// The arguments of `tollgate usage`.
#[derive(Args)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    sent: SentCallArgs,
    /// Up to two dimensions: connection, spend_key, budget, meter, provider, model, status, metadata.KEY.
    #[arg(long, value_name = "DIMENSIONS")]
    by: Option<String>,
    /// The length of the periods: hour, day, week, month or none; default: none.
    #[arg(long, default_value = "none")]
    interval: String,
}

/// The arguments of `tollgate requests`.
#[derive(Args)]
pub(crate) struct RequestsArgs {
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    sent: SentCallArgs,
    /// Only records with this status: pending, completed or error.
    #[arg(long)]
    status: Option<String>,
    /// The most records that are printed, newest first; CSV has all of them.
    #[arg(long, default_value_t = 20)]
    limit: u32,
}

/// The arguments of `tollgate refusals`.
#[derive(Args)]
pub(crate) struct RefusalsArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Only refusals with this code, such as spend_limit_reached.
    #[arg(long)]
    code: Option<String>,
    /// The most refusals that are printed, newest first; CSV has all of them.
    #[arg(long, default_value_t = 20)]
    limit: u32,
}

/// The arguments of `tollgate statement`.
#[derive(Args)]
pub(crate) struct StatementArgs {
    /// The merchant.
    #[arg(long, value_name = "MERCHANT_ID")]
    merchant: MerchantId,
    /// The customer (a connection in the API).
    #[arg(long, value_name = "CONNECTION_ID")]
    connection: ConnectionId,
    /// The calendar month, such as 2026-11.
    #[arg(long)]
    month: String,
    /// The IANA name of the time zone, such as Europe/Berlin; default: UTC.
    #[arg(long, value_name = "NAME")]
    time_zone: Option<String>,
    /// Print CSV.
    #[arg(long)]
    csv: bool,
}

/// An error with its issues, whose parameters of the API are named as options.
fn with_options(error: impl Into<ApiError>) -> anyhow::Error {
    with_named_issues(error, |parameter| match parameter {
        "connection_id" => "--connection".to_owned(),
        "spend_key_id" => "--spend-key".to_owned(),
        "budget_id" => "--budget".to_owned(),
        "group_by" => "--by".to_owned(),
        other => format!("--{}", other.replace('_', "-")),
    })
}

/// Prints sums.
pub(crate) async fn usage(
    config: &TollgateConfig,
    args: UsageArgs,
    json: bool,
) -> anyhow::Result<()> {
    let mut pairs = args.report.query()?;
    pairs.extend(args.sent.pairs());
    let (date, title) = match args.interval.as_str() {
        "hour" => ("start", "START"),
        _ => ("date", "DATE"),
    };
    let more = [
        ("interval", Some(args.interval)),
        ("group_by", args.by),
        ("time_zone", args.report.time_zone.clone()),
    ];
    let given = more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    pairs.extend(given);
    let (store, merchant) = (store_of(config, args.report.merchant).await?, args.report.merchant);
    let query = Query::new(pairs);
    let now = Clock::system().now();
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        UsageReport::read(conn, archive, merchant, &query, now)
    };
    let report = store.read_records(read).await.map_err(with_options)?;
    if args.report.csv {
        return print_bytes(&report.to_csv().map_err(with_issues)?);
    }
    let value = report.to_json();
    if json {
        return print_line(value);
    }
    let items = value.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    let groups = items.first().and_then(|item| item.get("group")).and_then(Value::as_object);
    let groups: Vec<String> = groups.into_iter().flat_map(|it| it.keys().cloned()).collect();
    let sums = [
        ("requests", "REQUESTS"),
        ("failed", "FAILED"),
        ("refused", "REFUSED"),
        ("total_usage_tokens", "TOKENS"),
        ("provider_cost", "PROVIDER COST"),
        ("revenue", "REVENUE"),
        ("margin", "MARGIN"),
    ];
    let header = std::iter::once(title.to_owned())
        .chain(groups.iter().map(|name| name.to_uppercase()))
        .chain(sums.map(|(_, title)| title.to_owned()));
    let mut rows = vec![header.collect::<Vec<_>>()];
    let mut row = |date: String, group: &Value, sums_of: &Value| {
        let members = groups.iter().map(|name| shown(group.get(name)));
        let figures = sums.iter().map(|(name, _)| shown(sums_of.get(name)));
        rows.push(std::iter::once(date).chain(members).chain(figures).collect());
    };
    for item in &items {
        row(shown(item.get(date)), item.get("group").unwrap_or(&Value::Null), item);
    }
    row("total".to_owned(), &Value::Null, value.get("totals").unwrap_or(&Value::Null));
    print_lines(&table(&rows, 1 + groups.len()))
}

/// The form in which a list is printed, newest first.
struct ListForm<View, Id> {
    csv: bool,
    json: bool,
    /// The most items that are printed; CSV has all of them.
    limit: u32,
    /// The columns of the table: the title, and the JSON Pointer of the value in an item.
    columns: &'static [(&'static str, &'static str)],
    /// The number of columns before those with figures.
    texts: usize,
    to_csv: fn(&[View]) -> Result<Bytes, ApiError>,
    read: ReadPage<View, Id>,
}

/// Reads a page of a merchant's list, and the id after which the list continues.
type ReadPage<View, Id> = fn(
    &mut Conn,
    &RecordArchive,
    MerchantId,
    &Query,
    &Page<Id>,
) -> Result<(Vec<View>, Option<Id>), ApiError>;

impl<View: Serialize + Send + 'static, Id: Send + 'static> ListForm<View, Id> {
    async fn print(
        &self,
        store: &Store,
        merchant: MerchantId,
        query: &Query,
    ) -> anyhow::Result<()> {
        let titles = self.columns.iter().map(|(title, _)| (*title).to_owned());
        let mut rows = vec![titles.collect::<Vec<_>>()];
        let (mut after, mut left, mut is_first) = (None, self.limit, true);
        loop {
            let limit = if self.csv { PAGE } else { left.min(PAGE) };
            let (page, query, read) = (Page { after, limit }, query.clone(), self.read);
            let read = move |conn: &mut Conn, archive: &RecordArchive| {
                read(conn, archive, merchant, &query, &page)
            };
            let (items, next) = store.read_records(read).await.map_err(with_options)?;
            if self.csv {
                print_csv(&(self.to_csv)(&items).map_err(with_issues)?, is_first)?;
                is_first = false;
            } else {
                left = left.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
                for item in &items {
                    let item = serde_json::to_value(item)?;
                    if self.json {
                        print_line(&item)?;
                    } else {
                        let cells = self.columns.iter().map(|(_, path)| shown(item.pointer(path)));
                        rows.push(cells.collect());
                    }
                }
            }
            after = next;
            if after.is_none() || (!self.csv && left == 0) {
                break;
            }
        }
        if self.csv || self.json { Ok(()) } else { print_lines(&table(&rows, self.texts)) }
    }
}

/// Prints records, newest first.
pub(crate) async fn requests(
    config: &TollgateConfig,
    args: RequestsArgs,
    json: bool,
) -> anyhow::Result<()> {
    let mut pairs = args.report.query()?;
    pairs.extend(args.sent.pairs());
    pairs.extend(args.status.map(|status| ("status".to_owned(), status)));
    let (store, merchant) = (store_of(config, args.report.merchant).await?, args.report.merchant);
    let form = ListForm {
        csv: args.report.csv,
        json,
        limit: args.limit,
        columns: &[
            ("TIME", "/created_at"),
            ("ID", "/request_id"),
            ("STATUS", "/status"),
            ("PROVIDER", "/provider"),
            ("MODEL", "/model"),
            ("TOKENS", "/model_usage/total_tokens"),
            ("COST", "/total_request_cost"),
        ],
        texts: 5,
        to_csv: requests_to_csv,
        read: list_requests,
    };
    form.print(&store, merchant, &Query::new(pairs)).await
}

/// Prints refused calls, newest first.
pub(crate) async fn refusals(
    config: &TollgateConfig,
    args: RefusalsArgs,
    json: bool,
) -> anyhow::Result<()> {
    let mut pairs = args.report.query()?;
    pairs.extend(args.code.map(|code| ("code".to_owned(), code)));
    let (store, merchant) = (store_of(config, args.report.merchant).await?, args.report.merchant);
    let form = ListForm {
        csv: args.report.csv,
        json,
        limit: args.limit,
        columns: &[
            ("TIME", "/at"),
            ("ID", "/refusal_id"),
            ("CALLS", "/count"),
            ("CODE", "/code"),
            ("MODEL", "/model"),
            ("MESSAGE", "/message"),
        ],
        texts: 6,
        to_csv: refusals_to_csv,
        read: list_refusals,
    };
    form.print(&store, merchant, &Query::new(pairs)).await
}

/// Prints the statement of a customer for a month.
pub(crate) async fn statement(
    config: &TollgateConfig,
    args: StatementArgs,
    json: bool,
) -> anyhow::Result<()> {
    let (zone, month) = (zone_of(args.time_zone.as_deref())?, month_of(&args.month)?);
    let StatementArgs { merchant, connection, csv, .. } = args;
    let store = store_of(config, merchant).await?;
    let now = Clock::system().now();
    let read = move |conn: &mut Conn| {
        StatementDocument::read(conn, merchant, connection, month, zone, now)
    };
    store.renew(RenewalScope::Connection(connection)).await?;
    let document = store.read_snapshot(read).await.map_err(with_issues)?;
    let Some(document) = document else { bail!("{merchant} has no customer {connection}") };
    if csv {
        return print_bytes(&document.csv_text().map_err(with_issues)?);
    }
    let value = document.to_json();
    if json {
        return print_line(value);
    }
    let mut rows = vec![["", "USD"].map(str::to_owned).to_vec()];
    let names = ["opening_balance", "credits", "debits", "usage", "corrections", "closing_balance"];
    for name in names {
        rows.push(vec![name.replace('_', " "), shown(value.get(name))]);
    }
    for (name, amount) in value.get("credit").and_then(Value::as_object).into_iter().flatten() {
        rows.push(vec![format!("credit {}", name.replace('_', " ")), shown(Some(amount))]);
    }
    for line in value.get("usage_by_model").and_then(Value::as_array).into_iter().flatten() {
        let model = format!("usage of {}", shown(line.get("model")));
        rows.push(vec![model, shown(line.get("amount"))]);
    }
    print_lines(&table(&rows, 1))
}

/// The text of a JSON value in a cell.
fn shown(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => printable(text),
        Some(other) => other.to_string(),
    }
}
