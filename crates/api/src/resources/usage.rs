//! Sums of calls, day by day.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Serialize, Serializer};
use tollgate_domain::{Issue, LocalTime, TimeSpan, TimeSpanError, Timestamp};
use tollgate_store::usage::{self, RollupSums};
use utoipa::{IntoParams, ToSchema};

use super::ConnectionQuery;
use super::requests::{RecordQuery, filter};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::http::list::Query;
use crate::openapi::types::*;

/// The days that are shown without a `start`.
const DEFAULT_DAYS: i64 = 30;

#[derive(Serialize, ToSchema)]
#[schema(as = UsageByDay)]
pub(crate) struct UsageView {
    /// The start of the window that was counted, to a whole quarter of an hour.
    start: LocalTime,
    /// The end of the window that was counted, to a whole quarter of an hour.
    end: LocalTime,
    /// One item for each day, oldest first, also for days without usage.
    items: Vec<ItemView>,
    /// The sums of the whole window.
    totals: SumsView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = UsageOfDay)]
struct ItemView {
    /// The day.
    #[schema(format = Date)]
    date: String,
    /// The start of the day in the window.
    start: LocalTime,
    /// The end of the day in the window.
    end: LocalTime,
    #[serde(flatten)]
    sums: SumsView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = UsageSums)]
struct SumsView {
    /// The number of calls.
    total_requests: i128,
    /// The sum of the tokens.
    total_usage_tokens: i128,
    /// The sum of the base costs.
    total_usage_cost: LargeAmount,
    /// The sum of the fees.
    total_fee_amount: LargeAmount,
    /// The sum of the service charges.
    total_service_charge_amount: LargeAmount,
    /// Base cost, fee and service charge.
    total_request_cost: LargeAmount,
    /// The part that the customer's wallet pays.
    total_wallet_cost: LargeAmount,
    /// The part that the merchant's wallet pays.
    total_merchant_cost: LargeAmount,
}

/// A sum of amounts, which may be larger than any amount. It is written like one.
struct LargeAmount(i128);

impl Serialize for LargeAmount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const UNITS_PER_USD: u128 = 10_000_000_000;
        let sign = if self.0 < 0 { "-" } else { "" };
        let units = self.0.unsigned_abs();
        let (usd, rest) = (units / UNITS_PER_USD, units % UNITS_PER_USD);
        serializer.collect_str(&format_args!("{sign}{usd}.{rest:010}"))
    }
}

// It has the name of an amount, because both are alike in JSON.
looks! { LargeAmount as "Amount" => AmountSchema::schema(); }

impl From<&RollupSums> for SumsView {
    fn from(sums: &RollupSums) -> Self {
        Self {
            total_requests: sums.requests,
            total_usage_tokens: sums.tokens,
            total_usage_cost: LargeAmount(sums.usage_cost),
            total_fee_amount: LargeAmount(sums.fee),
            total_service_charge_amount: LargeAmount(sums.service_charge),
            total_request_cost: LargeAmount(sums.request_cost()),
            total_wallet_cost: LargeAmount(sums.wallet_cost),
            total_merchant_cost: LargeAmount(sums.merchant_cost),
        }
    }
}

/// The span of the sums, as documents have it; [`span`] reads it.
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
}

/// Sum up calls, day by day.
#[utoipa::path(
    get,
    path = "/usage",
    operation_id = "getUsage",
    params(SpanQuery, RecordQuery, ConnectionQuery),
    responses(
        (status = 200, description = "The sums by day, and in all", body = UsageView),
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
    let filter = filter(&query, &mut issues);
    let span = span(&query, app.clock.now(), &mut issues);
    let Some(span) = span.filter(|_| issues.is_empty()) else {
        return Err(ApiError::invalid(issues));
    };
    let read = move |conn: &mut _| usage::by_day(conn, caller.merchant_id, &filter, &span);
    let sums = app.store.read_snapshot(read).await?;
    let mut totals = RollupSums::default();
    let items = span.days().zip(&sums).map(|(day, sums)| {
        totals += *sums;
        ItemView {
            date: day.date.to_string(),
            start: day.start,
            end: day.end,
            sums: SumsView::from(sums),
        }
    });
    let items = items.collect();
    let (start, end) = (span.start(), span.end());
    Ok(HttpResponse::Ok().json(UsageView { start, end, items, totals: SumsView::from(&totals) }))
}

/// The requested span. The default end is now, the default start is 30 days before the end.
fn span(query: &Query, now: Timestamp, issues: &mut Vec<Issue>) -> Option<TimeSpan> {
    let mut given = |name| time(query, name, issues);
    let (start, end) = (given("start"), given("end"));
    let (start, end) = (start.ok()?, end.ok()?);
    let end = end.unwrap_or_else(|| start.unwrap_or(LocalTime::in_utc(now)).same_offset(now));
    let start = start.unwrap_or_else(|| end.minus_days(DEFAULT_DAYS));
    let errors = match TimeSpan::new(start, end) {
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

/// A time of the query; `Err` if it is invalid.
fn time(query: &Query, name: &str, issues: &mut Vec<Issue>) -> Result<Option<LocalTime>, ()> {
    // A plus that was not encoded has become a space; no time has a space.
    let text = query.get(name).map(|text| text.replace(' ', "+"));
    text.map(|text| text.parse()).transpose().map_err(|_| {
        issues.push(Issue::at(
            [name],
            "must be a date-time with an offset, such as 2026-11-21T00:00:00+01:00",
        ));
    })
}
