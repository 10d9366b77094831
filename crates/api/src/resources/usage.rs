//! Sums of calls, by period and by dimension.

use std::collections::{BTreeMap, BTreeSet};

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tollgate_domain::{
    Interval, Issue, LocalTime, MerchantId, Metadata, TimeSpan, TimeSpanError, TimeZone, Timestamp,
};
use tollgate_store::requests::RequestFilter;
use tollgate_store::usage::{self, Dimension, GroupedCounts, GroupedSums, RollupSums};
use tollgate_store::{Conn, RecordArchive};
use utoipa::{IntoParams, ToSchema};

use super::requests::{RecordQuery, filter};
use super::{ConnectionQuery, LargeAmount, time, time_zone};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::csv::{self, AnswerFormat, FormatQuery};
use crate::http::error::ApiError;
use crate::http::list::Query;
use crate::openapi::types::*;

/// The days that are shown without a `start`.
const DEFAULT_DAYS: i64 = 30;
/// The most items of a JSON answer.
const MOST_ITEMS: usize = 10_000;
/// The most dimensions of a group.
const MOST_DIMENSIONS: usize = 2;

#[derive(Serialize, ToSchema)]
#[schema(as = UsageReport)]
struct UsageView {
    /// The start of the window that was counted, to a whole quarter of an hour.
    start: LocalTime,
    /// The end of the window that was counted, to a whole quarter of an hour.
    end: LocalTime,
    /// One item for each period, oldest first, also for periods without usage. With `group_by`, one item for each group
    /// that has calls in the period.
    items: Vec<ItemView>,
    /// The sums of the whole window.
    totals: TotalsView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = UsageTotals)]
struct TotalsView {
    #[serde(flatten)]
    sums: SumsView,
    /// The number of refused calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    refused: Option<i64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = UsageItem)]
struct ItemView {
    /// The date of the first instant of the period.
    #[schema(format = Date)]
    date: String,
    /// The start of the period in the window.
    start: LocalTime,
    /// The end of the period in the window.
    end: LocalTime,
    /// The members of the group, by the names in `group_by`. `null` is the group of calls that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    group: Option<BTreeMap<String, Option<String>>>,
    #[serde(flatten)]
    sums: SumsView,
    /// The number of refused calls. It is absent in groups of other dimensions than `connection` and `spend_key`, and
    /// under other filters than `connection_id` and `spend_key_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    refused: Option<i64>,
}

/// Defines the view of sums with the names of its fields.
macro_rules! sums_view {
    ($( $(#[$attribute:meta])* $field:ident: $Type:ty = $sum:expr; )*) => {
        #[derive(Serialize, ToSchema)]
        #[schema(as = UsageSums)]
        struct SumsView {
            $( $(#[$attribute])* $field: $Type, )*
        }

        impl From<&RollupSums> for SumsView {
            fn from(sums: &RollupSums) -> Self {
                $( let $field: fn(&RollupSums) -> $Type = $sum; )*
                Self { $( $field: $field(sums), )* }
            }
        }

        const SUM_NAMES: &[&str] = &[$( stringify!($field) ),*];
    };
}

sums_view! {
    /// The number of calls.
    total_requests: i128 = |sums| sums.requests;
    /// The sum of the tokens.
    total_usage_tokens: i128 = |sums| sums.tokens();
    /// The sum of the base costs, of managed and unmanaged calls.
    total_usage_cost: LargeAmount = |sums| LargeAmount(sums.usage_cost);
    /// The sum of the fees.
    total_fee_amount: LargeAmount = |sums| LargeAmount(sums.fee);
    /// The sum of the service charges.
    total_service_charge_amount: LargeAmount = |sums| LargeAmount(sums.service_charge);
    /// Base cost, fee and service charge.
    total_request_cost: LargeAmount = |sums| LargeAmount(sums.request_cost());
    /// The part that the wallets of the calls pay.
    total_wallet_cost: LargeAmount = |sums| LargeAmount(sums.wallet_cost);
    /// The part that the merchant's wallet pays.
    total_merchant_cost: LargeAmount = |sums| LargeAmount(sums.merchant_cost);
    /// The base costs of managed calls: what the provider keys of the service cost.
    provider_cost: LargeAmount = |sums| LargeAmount(sums.provider_cost);
    /// The sum of the fees.
    fee_amount: LargeAmount = |sums| LargeAmount(sums.fee);
    /// The sum of the service charges.
    service_charge_amount: LargeAmount = |sums| LargeAmount(sums.service_charge);
    /// The sum of `total_wallet_cost` of calls with a `connection_id`: what customers pay.
    revenue: LargeAmount = |sums| LargeAmount(sums.revenue);
    /// `revenue` − `provider_cost` − `service_charge_amount`.
    margin: LargeAmount = |sums| LargeAmount(sums.margin());
    /// The number of calls.
    requests: i128 = |sums| sums.requests;
    /// The number of calls with the status `error`.
    failed: i128 = |sums| sums.failed;
    /// Tokens of input, of all kinds.
    input_tokens: i128 = |sums| sums.input_tokens;
    /// Tokens of output, of all kinds.
    output_tokens: i128 = |sums| sums.output_tokens;
    /// Input tokens that were read from a cache.
    cached_input_tokens: i128 = |sums| sums.cached_input_tokens;
    /// Input tokens that were written to a cache.
    cache_write_tokens: i128 = |sums| sums.cache_write_tokens;
    /// Output tokens of reasoning.
    reasoning_tokens: i128 = |sums| sums.reasoning_tokens;
    /// Input tokens of audio.
    input_audio_tokens: i128 = |sums| sums.input_audio_tokens;
    /// Output tokens of audio.
    output_audio_tokens: i128 = |sums| sums.output_audio_tokens;
}

/// The parameters of the sums, as documents have them; [`UsageRequest`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct SpanQuery {
    /// The start of the window, with an offset of whole quarter hours. Default: 30 days before `end`.
    #[param(format = DateTime, example = "2026-11-01T00:00:00+01:00")]
    start: Option<String>,
    /// The end of the window, which is not part of it, at most 366 days after `start`. Default: now.
    #[param(format = DateTime, example = "2026-12-01T00:00:00+01:00")]
    end: Option<String>,
    /// The length of the periods: `hour`, `day`, `week` (from Monday), `month`, or `none` for one period.
    #[param(default = "day", pattern = "^(hour|day|week|month|none)$")]
    interval: Option<String>,
    /// The IANA name of the time zone whose days and months count. Without it, the offset of `start` counts.
    #[param(example = "Europe/Berlin")]
    time_zone: Option<String>,
    /// Up to two dimensions, separated by a comma: `connection`, `spend_key`, `budget`, `meter`, `provider`, `model`,
    /// `status`, or `metadata.` and a key.
    #[param(example = "connection,model")]
    group_by: Option<String>,
}

/// Sum up calls by period, and by up to two dimensions.
///
/// Grouped by one dimension, the items of a period add up to the item without groups.
#[utoipa::path(
    get,
    path = "/usage",
    operation_id = "getUsage",
    params(SpanQuery, RecordQuery, ConnectionQuery, FormatQuery),
    responses(
        (
            status = 200,
            description = "The sums by period, and in all",
            content((UsageView = "application/json"), (String = "text/csv")),
        ),
        ApiError,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let request = UsageRequest::of(&query, app.clock.now(), &mut issues);
    let format = AnswerFormat::of(&http, &query, &mut issues);
    let Some(request) = request.filter(|_| issues.is_empty()) else {
        return Err(ApiError::invalid(issues));
    };
    app.store.flush_refusals().await;
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        request.read(conn, archive, caller.merchant_id)
    };
    let report = app.store.read_records(read).await?;
    if format == AnswerFormat::Csv {
        return csv::respond("usage.csv", &report.columns, &report.view.items);
    }
    if report.view.items.len() > MOST_ITEMS {
        return Err(too_many(MOST_ITEMS));
    }
    Ok(HttpResponse::Ok().json(report.view))
}

/// The question of sums: which calls, which periods, and which groups.
struct UsageRequest {
    filter: RequestFilter,
    dimensions: Vec<Dimension>,
    span: TimeSpan,
}

impl UsageRequest {
    fn of(query: &Query, now: Timestamp, issues: &mut Vec<Issue>) -> Option<Self> {
        let filter = filter(query, issues);
        let span = span(query, now, issues);
        let dimensions = dimensions(query, issues);
        Some(Self { filter, dimensions, span: span? })
    }

    fn read(
        &self,
        conn: &mut Conn,
        archive: &RecordArchive,
        merchant_id: MerchantId,
    ) -> Result<UsageReport, ApiError> {
        let Self { filter, dimensions, span } = self;
        let sums = usage::sums(conn, archive, merchant_id, filter, dimensions, span)?;
        let sums = sums.ok_or_else(|| too_many(usage::MOST_SUMS))?;
        let refused = usage::refused(conn, merchant_id, filter, dimensions, span)?;
        let items = items(span, dimensions, &sums, refused.as_ref());
        let mut totals = RollupSums::default();
        sums.values().flat_map(BTreeMap::values).for_each(|sums| totals += *sums);
        let all_refused = |all: &GroupedCounts| all.values().flat_map(BTreeMap::values).sum();
        let totals = TotalsView {
            sums: SumsView::from(&totals),
            refused: refused.as_ref().map(all_refused),
        };
        let names = ["date", "start", "end"].map(str::to_owned).into_iter();
        let groups = dimensions.iter().map(|dimension| format!("group.{}", name(dimension)));
        let sums = SUM_NAMES.iter().copied().chain(["refused"]).map(str::to_owned);
        let columns = names.chain(groups).chain(sums).collect();
        let view = UsageView { start: span.start(), end: span.end(), items, totals };
        Ok(UsageReport { view, columns })
    }
}

/// The error of sums of which there are more than can be returned.
pub(super) fn too_many(most: usize) -> ApiError {
    let message = format!("has more than {most} items; choose a longer interval or a filter");
    ApiError::invalid(vec![Issue::at(["group_by"], message)])
}

/// The sums of a merchant's calls, as `GET /v1/usage` answers with them.
pub struct UsageReport {
    view: UsageView,
    /// The columns of CSV.
    columns: Vec<String>,
}

impl UsageReport {
    /// Reads the sums that a query asks for. Call it in a snapshot.
    ///
    /// # Errors
    /// The error of a query that is not valid, or of the store.
    pub fn read(
        conn: &mut Conn,
        archive: &RecordArchive,
        merchant_id: MerchantId,
        query: &Query,
        now: Timestamp,
    ) -> Result<Self, ApiError> {
        let mut issues = Vec::new();
        let request = UsageRequest::of(query, now, &mut issues);
        match request.filter(|_| issues.is_empty()) {
            Some(request) => request.read(conn, archive, merchant_id),
            None => Err(ApiError::invalid(issues)),
        }
    }

    /// The JSON of the answer.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(&self.view).unwrap_or_default()
    }

    /// The CSV of the answer.
    ///
    /// # Errors
    /// [`ApiError`] for a row that cannot be written.
    pub fn to_csv(&self) -> Result<Bytes, ApiError> {
        csv::text(&self.columns, &self.view.items)
    }
}

/// The items, period by period. A group without calls in a period has no item there.
fn items(
    span: &TimeSpan,
    dimensions: &[Dimension],
    sums: &GroupedSums,
    refused: Option<&GroupedCounts>,
) -> Vec<ItemView> {
    let periods = span.periods();
    let mut places = BTreeSet::new();
    if dimensions.is_empty() {
        let nothing: &[Option<String>] = &[];
        places.extend((0..periods.len()).map(|period| (period, nothing)));
    }
    for (members, of_group) in sums {
        places.extend(of_group.keys().map(|period| (*period, members.as_slice())));
    }
    for (members, of_group) in refused.into_iter().flatten() {
        places.extend(of_group.keys().map(|period| (*period, members.as_slice())));
    }
    let item = |(place, members): (usize, &[Option<String>])| {
        let period = periods.get(place)?;
        let sums = sums.get(members).and_then(|of_group| of_group.get(&place));
        let refused = refused.map(|groups| {
            let of_period = groups.get(members).and_then(|of_group| of_group.get(&place));
            of_period.copied().unwrap_or_default()
        });
        let group = dimensions.iter().map(name).zip(members.iter().cloned());
        Some(ItemView {
            date: period.date.to_string(),
            start: period.start,
            end: period.end,
            group: (!dimensions.is_empty()).then(|| group.collect()),
            sums: SumsView::from(&sums.copied().unwrap_or_default()),
            refused,
        })
    };
    places.into_iter().filter_map(item).collect()
}

/// The name of a dimension.
fn name(dimension: &Dimension) -> String {
    match dimension {
        Dimension::Metadata(key) => format!("metadata.{key}"),
        other => {
            let known = DIMENSIONS.iter().find(|(_, dimension)| dimension == other);
            known.map_or("", |(name, _)| name).to_owned()
        }
    }
}

const DIMENSIONS: [(&str, Dimension); 7] = [
    ("connection", Dimension::Connection),
    ("spend_key", Dimension::SpendKey),
    ("budget", Dimension::Budget),
    ("meter", Dimension::Meter),
    ("provider", Dimension::Provider),
    ("model", Dimension::Model),
    ("status", Dimension::Status),
];

/// The requested dimensions.
fn dimensions(query: &Query, issues: &mut Vec<Issue>) -> Vec<Dimension> {
    let Some(text) = query.get("group_by").filter(|text| !text.is_empty()) else {
        return Vec::new();
    };
    let mut dimensions = Vec::new();
    for name in text.split(',') {
        let known = DIMENSIONS.iter().find(|(known, _)| *known == name);
        let dimension = match name.strip_prefix("metadata.") {
            Some(key) if Metadata::is_key(key) => Some(Dimension::Metadata(key.to_owned())),
            _ => known.map(|(_, dimension)| dimension.clone()),
        };
        match dimension {
            Some(dimension) if dimensions.contains(&dimension) => {
                issues.push(Issue::at(["group_by"], format!("names {name} twice")));
            }
            Some(dimension) => dimensions.push(dimension),
            None => issues.push(Issue::at(
                ["group_by"],
                "must name connection, spend_key, budget, meter, provider, model, status, or metadata. with a key",
            )),
        }
    }
    if dimensions.len() > MOST_DIMENSIONS {
        issues.push(Issue::at(["group_by"], "may name at most 2 dimensions"));
    }
    dimensions
}

/// The requested span. The default end is now, the default start is 30 days before the end.
fn span(query: &Query, now: Timestamp, issues: &mut Vec<Issue>) -> Option<TimeSpan> {
    let interval = match query.get("interval") {
        None | Some("day") => Some(Interval::Day),
        Some("hour") => Some(Interval::Hour),
        Some("week") => Some(Interval::Week),
        Some("month") => Some(Interval::Month),
        Some("none") => Some(Interval::None),
        Some(_) => {
            issues.push(Issue::at(["interval"], "must be one of hour, day, week, month, none"));
            None
        }
    };
    let zone = time_zone(query, issues);
    let mut given = |name| time(query, name, issues);
    let (start, end) = (given("start"), given("end"));
    let (start, end) = (start.ok()?, end.ok()?);
    let zone = zone.ok()?.unwrap_or_else(|| start.or(end).map_or(TimeZone::UTC, LocalTime::zone));
    let end = end.map_or(now, LocalTime::instant);
    let start = start.map_or(end.plus_millis(-DEFAULT_DAYS * 86_400_000), LocalTime::instant);
    let errors = match TimeSpan::new(start, end, zone, interval?) {
        Ok(span) => return Some(span),
        Err(errors) => errors,
    };
    issues.extend(errors.into_iter().map(|error| match error {
        TimeSpanError::Offset => {
            Issue::at(["start"], "must have an offset of whole quarters of an hour")
        }
        TimeSpanError::Empty => Issue::at(["end"], "must be after start"),
        TimeSpanError::TooLong => Issue::at(["end"], "must be at most 366 days after start"),
    }));
    None
}
