//! Monthly statements of customers, as JSON, CSV and a page for printing.

use std::sync::LazyLock;

use actix_web::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tollgate_domain::{
    Connection, ConnectionId, CreditSummary, EventKind, Issue, LocalTime, MerchantId, ModelUsage,
    Month, MonthCorrection, Statement, StatementCharge, SubscriptionId, TimeZone, Timestamp,
    WalletId,
};
use tollgate_pricing::Amount;
use tollgate_store::statements::CustomerAccount;
use tollgate_store::subscriptions::RenewalScope;
use tollgate_store::{Conn, connections, merchants, statements};
use utoipa::{IntoParams, ToSchema};

use super::connections::not_found as connection_not_found;
use super::{LargeAmount, time_zone};
use crate::app::App;
use crate::html::HEADERS;
use crate::http::auth::Caller;
use crate::http::csv::{self, AnswerFormat};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::list::Query;
use crate::openapi::marks::refused;
use crate::openapi::types::*;

/// The months of a customer.
#[derive(Serialize, ToSchema)]
#[schema(as = StatementList)]
pub(crate) struct MonthsAnswer {
    /// The months in which the wallet has transactions or plan charges, newest first.
    data: Vec<MonthView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StatementMonth)]
struct MonthView {
    /// The calendar month.
    #[schema(value_type = String, pattern = "^[0-9]{4}-[0-9]{2}$")]
    month: Month,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Statement)]
pub(crate) struct StatementView {
    /// The customer.
    connection_id: ConnectionId,
    /// The wallet of the customer.
    wallet_id: WalletId,
    /// The calendar month.
    #[schema(value_type = String, pattern = "^[0-9]{4}-[0-9]{2}$")]
    month: Month,
    /// The time zone of the month.
    time_zone: String,
    /// The first instant of the month.
    start: LocalTime,
    /// The end of the month, which is not part of it.
    end: LocalTime,
    /// Whether the month has ended. Its statement does not change any more.
    ended: bool,
    /// The balance at the start.
    opening_balance: LargeAmount,
    /// The money that was put in.
    credits: LargeAmount,
    /// The money that was taken out, at most zero.
    debits: LargeAmount,
    /// The part of the month's calls that the balance paid, at most zero.
    usage: LargeAmount,
    /// Corrections, and calls of earlier months that were settled in this one. Negative takes out.
    corrections: LargeAmount,
    /// The balance at the end: the sum of the five amounts before.
    closing_balance: LargeAmount,
    /// The calls that were made and settled in the month, the most expensive model first.
    usage_by_model: Vec<ModelUsageView>,
    /// The corrections by the month of their calls, oldest first.
    corrections_by_month: Vec<MonthCorrectionView>,
    /// The amount that you have to collect for plans and bought credit: the sum of the `amount_due` of the month's
    /// events.
    plan_charges: LargeAmount,
    /// The parts of `plan_charges`, oldest first.
    plan_charge_items: Vec<PlanChargeView>,
    /// The credit of the customer's plan, and bought credit.
    credit: CreditSummaryView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StatementUsage)]
struct ModelUsageView {
    /// The model. Null: calls without one.
    #[schema(required)]
    model: Option<String>,
    /// The number of calls.
    requests: u64,
    /// The tokens of input and output.
    tokens: u64,
    /// The cost that the wallet paid, from the balance and from credit.
    amount: LargeAmount,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StatementCorrection)]
struct MonthCorrectionView {
    /// The month of the calls.
    #[schema(value_type = String, pattern = "^[0-9]{4}-[0-9]{2}$")]
    month: Month,
    /// The movement of the balance. Negative takes out.
    balance: LargeAmount,
    /// The movement of credit. Negative takes out.
    credit: LargeAmount,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StatementCharge)]
struct PlanChargeView {
    /// The time of effect.
    charged_at: Timestamp,
    /// The kind of the event that has the `amount_due`.
    r#type: EventKind,
    /// The subscription.
    subscription_id: SubscriptionId,
    /// The name of the plan or of the bundle at that time.
    name: String,
    /// The amount.
    amount: Amount,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StatementCredit)]
struct CreditSummaryView {
    /// The credit at the start.
    opening: LargeAmount,
    /// The included credit of the cycles that began, and bought credit.
    granted: LargeAmount,
    /// The part of the month's calls that credit paid.
    used: LargeAmount,
    /// Corrections, and calls of earlier months that were settled in this one. Negative takes out.
    corrected: LargeAmount,
    /// The credit that expired.
    expired: LargeAmount,
    /// The credit that moved from one cycle into the next. It does not change the sum.
    rolled_over: LargeAmount,
    /// The credit at the end: `opening` + `granted` + `corrected` − `used` − `expired`.
    closing: LargeAmount,
}

impl StatementView {
    fn of(document: &StatementDocument) -> Self {
        let StatementDocument { customer, statement, zone, zone_name, is_ended, .. } = document;
        let corrections = statement.corrections_by_month.iter();
        Self {
            connection_id: customer.connection_id,
            wallet_id: customer.wallet_id,
            month: statement.month,
            time_zone: zone_name.clone(),
            start: zone.at(statement.start),
            end: zone.at(statement.end),
            ended: *is_ended,
            opening_balance: LargeAmount(statement.opening_balance),
            credits: LargeAmount(statement.credits),
            debits: LargeAmount(statement.debits),
            usage: LargeAmount(statement.usage),
            corrections: LargeAmount(statement.corrections),
            closing_balance: LargeAmount(statement.closing_balance),
            usage_by_model: statement.usage_by_model.iter().map(ModelUsageView::of).collect(),
            corrections_by_month: corrections.map(MonthCorrectionView::of).collect(),
            plan_charges: LargeAmount(statement.plan_charges_total()),
            plan_charge_items: statement.plan_charges.iter().map(PlanChargeView::of).collect(),
            credit: CreditSummaryView::of(&statement.credit),
        }
    }
}

impl ModelUsageView {
    fn of(usage: &ModelUsage) -> Self {
        let ModelUsage { model, requests, tokens, amount } = usage.clone();
        Self { model, requests, tokens, amount: LargeAmount(amount) }
    }
}

impl MonthCorrectionView {
    const fn of(correction: &MonthCorrection) -> Self {
        let MonthCorrection { month, balance, credit } = *correction;
        Self { month, balance: LargeAmount(balance), credit: LargeAmount(credit) }
    }
}

impl PlanChargeView {
    fn of(charge: &StatementCharge) -> Self {
        let StatementCharge { charged_at, kind, subscription_id, name, amount } = charge.clone();
        Self { charged_at, r#type: kind, subscription_id, name, amount }
    }
}

impl CreditSummaryView {
    const fn of(credit: &CreditSummary) -> Self {
        Self {
            opening: LargeAmount(credit.opening),
            granted: LargeAmount(credit.granted),
            used: LargeAmount(credit.used),
            corrected: LargeAmount(credit.corrected),
            expired: LargeAmount(credit.expired),
            rolled_over: LargeAmount(credit.rolled_over),
            closing: LargeAmount(credit.closing),
        }
    }
}

/// A row of the CSV of a statement: a figure, or a line of one of its lists.
#[derive(Serialize)]
struct RowView {
    section: &'static str,
    name: String,
    at: Option<String>,
    requests: Option<u64>,
    tokens: Option<u64>,
    amount: LargeAmount,
}

const COLUMNS: [&str; 6] = ["section", "name", "at", "requests", "tokens", "amount"];

impl RowView {
    fn figure(section: &'static str, name: &str, units: i128) -> Self {
        Self {
            section,
            name: name.to_owned(),
            at: None,
            requests: None,
            tokens: None,
            amount: LargeAmount(units),
        }
    }

    fn all(document: &StatementDocument) -> Vec<Self> {
        let statement = &document.statement;
        let credit = &statement.credit;
        let mut rows = vec![
            Self::figure("balance", "opening_balance", statement.opening_balance),
            Self::figure("balance", "credits", statement.credits),
            Self::figure("balance", "debits", statement.debits),
            Self::figure("balance", "usage", statement.usage),
            Self::figure("balance", "corrections", statement.corrections),
            Self::figure("balance", "closing_balance", statement.closing_balance),
        ];
        rows.extend(statement.usage_by_model.iter().map(|usage| Self {
            requests: Some(usage.requests),
            tokens: Some(usage.tokens),
            ..Self::figure(
                "usage_by_model",
                usage.model.as_deref().unwrap_or_default(),
                usage.amount,
            )
        }));
        for one in &statement.corrections_by_month {
            let month = one.month.to_string();
            rows.push(Self::figure("corrections_by_month.balance", &month, one.balance));
            rows.push(Self::figure("corrections_by_month.credit", &month, one.credit));
        }
        rows.extend(statement.plan_charges.iter().map(|charge| Self {
            at: Some(charge.charged_at.to_string()),
            ..Self::figure("plan_charge_items", &charge.name, charge.amount.units().into())
        }));
        rows.push(Self::figure("plan_charges", "plan_charges", statement.plan_charges_total()));
        rows.extend([
            Self::figure("credit", "opening", credit.opening),
            Self::figure("credit", "granted", credit.granted),
            Self::figure("credit", "used", credit.used),
            Self::figure("credit", "corrected", credit.corrected),
            Self::figure("credit", "expired", credit.expired),
            Self::figure("credit", "rolled_over", credit.rolled_over),
            Self::figure("credit", "closing", credit.closing),
        ]);
        rows
    }
}

/// A statement with the names that a page of it shows.
pub struct StatementDocument {
    merchant_name: String,
    customer: Connection,
    statement: Statement,
    zone: TimeZone,
    zone_name: String,
    is_ended: bool,
}

impl StatementDocument {
    /// Reads the statement of a customer for a month. `None` if the merchant has no such customer.
    ///
    /// The customer's subscription must have been renewed. Call it in a snapshot.
    ///
    /// # Errors
    /// [`ApiError`] when the store fails.
    pub fn read(
        conn: &mut Conn,
        merchant_id: MerchantId,
        connection_id: ConnectionId,
        month: Month,
        zone: TimeZone,
        now: Timestamp,
    ) -> Result<Option<Self>, ApiError> {
        let customer = connections::find(conn, merchant_id, connection_id)?;
        let merchant = merchants::find(conn, merchant_id)?;
        let Some((customer, merchant)) = customer.zip(merchant) else { return Ok(None) };
        let account = CustomerAccount::from(&customer);
        let statement = statements::read(conn, account, month, &zone)?;
        Ok(Some(Self {
            merchant_name: merchant.name,
            zone_name: zone.name().unwrap_or("UTC").to_owned(),
            is_ended: statement.end <= now,
            zone,
            customer,
            statement,
        }))
    }

    fn file_name(&self, extension: &str) -> String {
        let id = self.customer.connection_id;
        format!("statement-{id}-{}.{extension}", self.statement.month)
    }

    /// The JSON of the answer.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(StatementView::of(self)).unwrap_or_default()
    }

    /// The figures as CSV.
    ///
    /// # Errors
    /// [`ApiError`] for a row that cannot be written.
    pub fn csv_text(&self) -> Result<Bytes, ApiError> {
        csv::text(&COLUMNS.map(str::to_owned), &RowView::all(self))
    }

    /// The answer with the figures as CSV.
    ///
    /// # Errors
    /// [`ApiError`] for a row that cannot be written.
    pub fn to_csv(&self) -> Result<HttpResponse, ApiError> {
        csv::respond(&self.file_name("csv"), &COLUMNS.map(str::to_owned), &RowView::all(self))
    }

    /// The answer with the page for printing.
    ///
    /// # Errors
    /// [`ApiError`] for a page that cannot be made.
    pub fn to_page(&self) -> Result<HttpResponse, ApiError> {
        let page = StatementPage { document: self, style: STYLE }.render();
        let page = page.map_err(|cause| {
            log::error!("a statement cannot be rendered: {cause}");
            ApiError::new(ErrorCode::InternalError, "The statement could not be rendered.")
        })?;
        let mut response = HttpResponse::Ok();
        for header in HEADERS {
            response.insert_header(header);
        }
        response.insert_header((CONTENT_SECURITY_POLICY, POLICY.as_str()));
        Ok(response.insert_header((CONTENT_TYPE, "text/html; charset=utf-8")).body(page))
    }
}

const STYLE: &str = include_str!("../../templates/statement.css");

/// A page that is saved or sent has its style in itself, so the policy allows this one style sheet.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    )
});

#[derive(Template)]
#[template(path = "statement.html")]
struct StatementPage<'a> {
    document: &'a StatementDocument,
    style: &'static str,
}

impl StatementPage<'_> {
    fn customer_name(&self) -> String {
        let Connection { name, reference_id, connection_id, .. } = &self.document.customer;
        let name = name.as_ref().or(reference_id.as_ref()).cloned();
        name.unwrap_or_else(|| connection_id.to_string())
    }

    /// An amount, exact, with at least two decimals.
    fn money(&self, units: &i128) -> String {
        let text = LargeAmount(*units).to_string();
        let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
        let decimals = decimals.trim_end_matches('0');
        format!("{}.{decimals:0<2}", whole.replace('-', "−"))
    }

    /// The day of an instant in the zone of the statement.
    fn day(&self, at: &Timestamp) -> String {
        self.document.zone.at(*at).date().to_string()
    }

    fn last_day(&self) -> String {
        self.day(&self.document.statement.end.plus_micros(-1))
    }
}

/// The parameters of statements, as documents have them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct ZoneQuery {
    /// The IANA name of the time zone by whose clocks months begin and end.
    #[param(default = "UTC", example = "Europe/Berlin")]
    time_zone: Option<String>,
}

/// The form of a statement, as documents have it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct StatementFormatQuery {
    /// The form of the answer: `json`, `csv`, or `html` for a page that can be printed. The header `Accept` asks for
    /// `text/csv` and `text/html`, too.
    #[param(default = "json", pattern = "^(json|csv|html)$")]
    format: Option<String>,
}

/// The form of a statement.
enum StatementFormat {
    Data(AnswerFormat),
    Page,
}

impl StatementFormat {
    fn of(http: &HttpRequest, query: &Query, issues: &mut Vec<Issue>) -> Self {
        let accept = http.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
        let first = accept.and_then(|types| types.split([',', ';']).next()).map(str::trim);
        let accepts_page = || first.is_some_and(|one| one.eq_ignore_ascii_case("text/html"));
        match query.get("format") {
            Some("html") => Self::Page,
            None if accepts_page() => Self::Page,
            None | Some("csv" | "json") => Self::Data(AnswerFormat::of(http, query, issues)),
            Some(_) => {
                issues.push(Issue::at(["format"], "must be one of json, csv, html"));
                Self::Page
            }
        }
    }
}

/// List the months of a customer's statements.
#[utoipa::path(
    get,
    path = "/connections/{id}/statements",
    operation_id = "listStatements",
    params(("id" = ConnectionId, Path), ZoneQuery),
    responses(
        (status = 200, description = "The months", body = MonthsAnswer),
        ApiError, refused::ConnectionNotFound,
    ),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: ConnectionId = id.parse().map_err(|_| connection_not_found())?;
    let mut issues = Vec::new();
    let Ok(zone) = time_zone(&Query::of(&http), &mut issues) else {
        return Err(ApiError::invalid(issues));
    };
    let zone = zone.unwrap_or(TimeZone::UTC);
    app.store.renew(RenewalScope::Connection(id)).await?;
    let merchant_id = caller.merchant_id;
    let months = app
        .store
        .read_snapshot(move |conn| {
            let customer = connections::find(conn, merchant_id, id)?;
            let customer = customer.ok_or_else(connection_not_found)?;
            Ok::<_, ApiError>(statements::months(conn, customer.wallet_id, &zone)?)
        })
        .await?;
    let data = months.into_iter().map(|month| MonthView { month }).collect();
    Ok(HttpResponse::Ok().json(MonthsAnswer { data }))
}

/// Read the statement of a customer for a calendar month.
///
/// Each figure is a sum of transactions of the customer's wallet by their `created_at`. What is booked after a month has
/// ended belongs to the month in which it is booked, as a correction that names the earlier month.
#[utoipa::path(
    get,
    path = "/connections/{id}/statements/{month}",
    operation_id = "getStatement",
    params(
        ("id" = ConnectionId, Path),
        ("month" = String, Path, description = "The calendar month, such as `2026-11`."),
        ZoneQuery, StatementFormatQuery,
    ),
    responses(
        (
            status = 200,
            description = "The statement",
            content(
                (StatementView = "application/json"), (String = "text/csv"),
                (String = "text/html"),
            ),
        ),
        ApiError, refused::ConnectionNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, ApiError> {
    let (id, month) = path.into_inner();
    let id: ConnectionId = id.parse().map_err(|_| connection_not_found())?;
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let zone = time_zone(&query, &mut issues);
    let format = StatementFormat::of(&http, &query, &mut issues);
    let month = month.parse::<Month>();
    if month.is_err() {
        issues.push(Issue::at(["month"], "must be a month, such as 2026-11"));
    }
    let (Ok(zone), Ok(month), true) = (zone, month, issues.is_empty()) else {
        return Err(ApiError::invalid(issues));
    };
    let zone = zone.unwrap_or(TimeZone::UTC);
    let (merchant_id, now) = (caller.merchant_id, app.clock.now());
    app.store.renew(RenewalScope::Connection(id)).await?;
    let read =
        move |conn: &mut Conn| StatementDocument::read(conn, merchant_id, id, month, zone, now);
    let document = app.store.read_snapshot(read).await?.ok_or_else(connection_not_found)?;
    match format {
        StatementFormat::Page => document.to_page(),
        StatementFormat::Data(AnswerFormat::Csv) => document.to_csv(),
        StatementFormat::Data(AnswerFormat::Json) => {
            Ok(HttpResponse::Ok().json(StatementView::of(&document)))
        }
    }
}
