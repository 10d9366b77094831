//! The pages of spend keys: the use of their limits, and forms to make, pause and rotate them.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use serde_json::{Map, Value, json};
use tollgate_domain::{
    AnswerReport, Connection, CycleCalendar, Key, MerchantId, RequestShape, SpendKey,
    SpendKeyChanges, SpendKeyId, SpendKeyStatus, Timestamp,
};
use tollgate_pricing::Amount;
use tollgate_store::requests::RequestFilter;
use tollgate_store::spend_keys::{self, SpendKeyUpdate};
use tollgate_store::usage::RollupSums;
use tollgate_store::{
    Conn, Page, RecordArchive, StoreError, connections, meters, refusals, wallets,
};

use crate::answer::{PageError, go_to, html, issue_sentences, respond};
use crate::budgets::budget_choices;
use crate::chart::{Chart, ChartUnit, GOOD, Layer};
use crate::clock::{Moment, PageClock};
use crate::form::{FormFields, SessionForm};
use crate::limits::{LimitBar, LimitFields};
use crate::page::{
    DashboardSection, Fact, FormChoice, Pager, Shell, meter_choices, name_of, page_of,
};
use crate::session::{SessionUser, carry_secret, clear_shown_key, secret_to_show};
use crate::text::{self, Figure};
use crate::time_range::MONTH;
use crate::trend::total;
use tollgate_api::operations::{
    make_spend_key, read_new_spend_key, spend_key_not_found as not_found, wallet_not_found,
};
use tollgate_api::{ApiError, App, ErrorCode};

/// The part of its spend limit that a key has used, and the limit.
pub(crate) fn limit_used(key: &SpendKey, now: Timestamp) -> Option<(Amount, Amount)> {
    let limit = key.rules.spend_limit?;
    Some((*key.counters_at(now).spent.get(limit.cycle), limit.amount))
}

/// The limits of a key and the use of each.
fn bars(key: &SpendKey, clock: &PageClock) -> Vec<LimitBar> {
    let (rules, counters) = (&key.rules, key.counters_at(clock.now));
    LimitBar::all((rules.spend_limit, rules.request_limit), &counters, rules.calendars(), clock)
}

/// The state of a key: whether calls can be made with it now.
pub(crate) fn state(key: &SpendKey, now: Timestamp) -> (&'static str, &'static str) {
    match key.rules.status {
        SpendKeyStatus::Paused => ("warn", "paused"),
        SpendKeyStatus::Active if key.rules.expires_at.is_some_and(|at| at <= now) => {
            ("bad", "expired")
        }
        SpendKeyStatus::Active => ("good", "active"),
    }
}

struct SpendKeyItem {
    id: String,
    name: String,
    key_preview: String,
    state: (&'static str, &'static str),
    bars: Vec<LimitBar>,
    total_spend: Figure,
    total_requests: String,
    last_used: Moment,
}

impl SpendKeyItem {
    fn of(key: &SpendKey, clock: &PageClock) -> Self {
        let now = clock.now;
        let counters = key.counters_at(now);
        Self {
            id: key.spend_key_id.to_string(),
            name: key.name.clone(),
            key_preview: key.key_preview.clone(),
            state: state(key, now),
            bars: bars(key, clock),
            total_spend: Figure::in_column(counters.spent.total.units().into()),
            total_requests: text::count(counters.requests.total.into()),
            last_used: clock.moment_or(counters.last_used_at, "never"),
        }
    }
}

#[derive(Template)]
#[template(path = "spend_keys.html")]
struct SpendKeysPage {
    shell: Shell,
    keys: Vec<SpendKeyItem>,
    pager: Pager,
    problems: Vec<String>,
    /// The fields of a form that made no key.
    filled: FormFields,
    wallets: Vec<FormChoice>,
    meters: Vec<FormChoice>,
    budgets: Vec<FormChoice>,
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    // A customer's page leads here with its wallet.
    let wallet = tollgate_api::Query::of(&http).get("wallet_id").map(str::to_owned);
    let chosen = wallet.iter().map(|id| ("wallet_id", id.as_str())).collect::<Vec<_>>();
    listing(&app, &visitor, &http, Vec::new(), FormFields::of(&chosen)).await
}

async fn listing(
    app: &App,
    visitor: &SessionUser,
    http: &HttpRequest,
    problems: Vec<String>,
    filled: FormFields,
) -> Result<HttpResponse, PageError> {
    let status = if problems.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    let (page, merchant_id) = (page_of(http), visitor.merchant_id());
    let chosen = filled.get("wallet_id").map(str::to_owned);
    let read = move |conn: &mut Conn| {
        let keys = spend_keys::list(conn, merchant_id, &page)?;
        let wallets = wallet_choices(conn, merchant_id, chosen.as_deref())?;
        let budgets = budget_choices(conn, merchant_id)?;
        Ok::<_, StoreError>((keys, wallets, meter_choices(conn, merchant_id)?, budgets))
    };
    let (mut found, wallets, meters, budgets) = app.store.read(read).await?;
    let is_known = |id: &str| wallets.iter().any(|choice| choice.id == id);
    if problems.is_empty() && filled.get("wallet_id").is_some_and(|id| !is_known(id)) {
        return Err(wallet_not_found().into());
    }
    let pager = Pager::cut(http, &page, &mut found, |one| one.spend_key_id.to_string());
    let page = SpendKeysPage {
        shell: Shell::new(visitor, DashboardSection::Keys, "Spend keys"),
        keys: found.iter().map(|key| SpendKeyItem::of(key, &visitor.clock)).collect(),
        pager,
        problems,
        filled,
        wallets,
        meters,
        budgets,
    };
    html(status, &page)
}

/// The wallets of the newest customers by name, and the chosen one. Without the chosen one, a browser would send the
/// first choice in its place.
fn wallet_choices(
    conn: &mut Conn,
    merchant_id: MerchantId,
    chosen: Option<&str>,
) -> Result<Vec<FormChoice>, StoreError> {
    let newest = Page { after: None, limit: 100 };
    let connections = connections::list(conn, merchant_id, &newest)?;
    let choice =
        |one: &Connection| FormChoice { id: one.wallet_id.to_string(), name: name_of(one) };
    let mut choices: Vec<_> = connections.iter().map(choice).collect();
    let missing = chosen.filter(|id| choices.iter().all(|choice| choice.id != **id));
    let wallet = match missing.and_then(|id| id.parse().ok()) {
        Some(id) => wallets::find(conn, merchant_id, id)?,
        None => None,
    };
    if let Some(wallet) = wallet {
        let owner = match wallet.connection_id {
            Some(id) => connections::find(conn, merchant_id, id)?,
            None => None,
        };
        let name = owner.as_ref().map_or_else(|| "Your own".to_owned(), name_of);
        choices.push(FormChoice { id: wallet.wallet_id.to_string(), name });
    }
    Ok(choices)
}

/// The fields of a form as a body of `POST /spend_keys`, whose rules apply.
fn to_request_body(fields: &FormFields) -> Value {
    let text = |name: &str| fields.get(name).map(|text| Value::from(text.to_owned()));
    // A text that is not a number is kept as it is, so that it becomes one of the issues.
    let number = |name: &str| {
        let text = fields.get(name)?;
        Some(text.parse::<u32>().map_or_else(|_| text.into(), Value::from))
    };
    let mut key = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        key.extend(value.map(|value| (name.to_owned(), value)));
    };
    set("name", text("name"));
    set("wallet_id", text("wallet_id"));
    set("meter_id", text("meter_id"));
    set("budget_id", text("budget_id"));
    set("enforcement", text("enforcement"));
    set("request_shape", text("request_shape"));
    set("report", text("report"));
    set(
        "spend_limit",
        text("spend_limit").map(|amount| {
            let cycle = fields.get("spend_cycle").unwrap_or("monthly");
            json!({"amount": amount, "cycle": cycle, "time_zone": fields.get("time_zone")})
        }),
    );
    set(
        "request_limit",
        number("request_limit").map(|count| {
            let cycle = fields.get("request_cycle").unwrap_or("daily");
            json!({"count": count, "cycle": cycle, "time_zone": fields.get("time_zone")})
        }),
    );
    set("rate_limit", number("rpm").map(|rpm| json!({"rpm": rpm})));
    set("run_limit", text("run_limit").map(|amount| json!({"amount": amount})));
    let models = fields.get("allowed_models").map(|models| {
        let names = models.split('\n').map(str::trim).filter(|name| !name.is_empty());
        names.map(str::to_owned).collect::<Vec<_>>().into()
    });
    set("allowed_models", models);
    Value::Object(key)
}

#[derive(Template)]
#[template(path = "new_key.html")]
struct NewKeyPage {
    shell: Shell,
    id: String,
    name: String,
    key: String,
    path: &'static str,
    body: &'static str,
}

impl NewKeyPage {
    fn of(visitor: &SessionUser, made: &SpendKey, key: &Key) -> Self {
        let (path, body) = match made.rules.request_shape {
            RequestShape::Any | RequestShape::ShapeA => (
                "/v1/chat/completions",
                r#"{"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello!"}]}"#,
            ),
            RequestShape::ShapeB => (
                "/v1/messages",
                r#"{"model": "claude-sonnet-4-5", "max_tokens": 256, "messages": [{"role": "user", "content": "Hello!"}]}"#,
            ),
        };
        Self {
            shell: Shell::new(visitor, DashboardSection::Keys, "New key"),
            id: made.spend_key_id.to_string(),
            name: made.name.clone(),
            key: key.reveal().to_owned(),
            path,
            body,
        }
    }
}

pub(crate) async fn create(
    app: web::Data<App>,
    http: HttpRequest,
    form: SessionForm,
) -> Result<HttpResponse, PageError> {
    let (merchant_id, now) = (form.visitor.merchant_id(), app.clock.now());
    let made = match read_new_spend_key(to_request_body(&form.fields)) {
        Ok(new) => app.store.write(move |conn| make_spend_key(conn, merchant_id, &new, now)).await,
        Err(invalid) => Err(invalid),
    };
    let error = match made {
        Ok((made, key)) => return show_new_key(&app, &http, &form, made.spend_key_id, &key).await,
        Err(error) => error,
    };
    let problems = match error.code() {
        ErrorCode::ValidationFailed => issue_sentences(error.issues()),
        ErrorCode::WalletNotFound | ErrorCode::MeterNotFound | ErrorCode::BudgetNotFound => {
            vec![error.message().to_owned()]
        }
        _ => return Err(error.into()),
    };
    form.release(&app).await?;
    listing(&app, &form.visitor, &http, problems, form.fields).await
}

#[derive(Template)]
#[template(path = "spend_key.html")]
struct SpendKeyPage {
    shell: Shell,
    line: SpendKeyItem,
    is_paused: bool,
    form: RulesForm,
    budgets: Vec<FormChoice>,
    facts: Vec<Fact>,
    /// The spend of 30 days.
    spend: Chart,
    /// The refused calls of 30 days by code, each with the page of them.
    refusals: Vec<RefusalRow>,
}

struct RefusalRow {
    code: String,
    label: String,
    count: String,
}

/// The rules of a key as the texts of a form.
struct RulesForm {
    limits: LimitFields,
    spend_zone: String,
    request_zone: String,
    rpm: String,
    run_limit: String,
    burst: String,
    /// `None` for a key that may call no model, which an empty text would let call all.
    models: Option<String>,
    /// Whether its answers report their cost.
    reports_cost: bool,
    /// The budget that it names, or empty.
    budget_id: String,
}

impl RulesForm {
    /// The rules of a key. A limit that it does not have is offered in the zone of the page.
    fn of(key: &SpendKey, clock: &PageClock) -> Self {
        let zone = |has_limit, calendar: &CycleCalendar| match has_limit {
            true => calendar.zone_name().to_owned(),
            false => clock.zone_name().to_owned(),
        };
        let rules = &key.rules;
        Self {
            limits: LimitFields::of(rules.spend_limit, rules.request_limit),
            spend_zone: zone(rules.spend_limit.is_some(), &rules.spend_calendar),
            request_zone: zone(rules.request_limit.is_some(), &rules.request_calendar),
            run_limit: rules.run_limit.map_or_else(String::new, text::field),
            rpm: rules.rate_limit.map_or_else(String::new, |rate| rate.rpm.to_string()),
            // Without one, a burst is as large as a minute's calls, also after a change of these.
            burst: rules
                .rate_limit
                .filter(|rate| rate.burst != rate.rpm)
                .map_or_else(String::new, |rate| rate.burst.to_string()),
            models: match &rules.allowed_models {
                None => Some(String::new()),
                Some(models) if models.is_empty() => None,
                Some(models) => Some(models.join("\n")),
            },
            reports_cost: rules.report == Some(AnswerReport::Cost),
            budget_id: key.budget_id.map_or_else(String::new, |id| id.to_string()),
        }
    }
}

fn id_of(text: &str) -> Result<SpendKeyId, ApiError> {
    text.parse().map_err(|_| not_found())
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let (id, merchant_id) = (id_of(&id)?, visitor.merchant_id());
    let span = MONTH.span(&visitor.clock);
    let read = move |conn: &mut Conn| {
        let key = spend_keys::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let meter = match key.meter_id {
            Some(id) => meters::find(conn, merchant_id, id)?,
            None => None,
        };
        let calls = RequestFilter { spend_key_id: Some(id), ..RequestFilter::default() };
        let spent = total(conn, &RecordArchive::left_out(), merchant_id, &calls, &span)?;
        let refused = refusals::counts_by_code(conn, merchant_id, &span, Some(id), None)?;
        let budgets = budget_choices(conn, merchant_id)?;
        Ok::<_, ApiError>((key, meter, spent, refused, budgets))
    };
    app.store.flush_refusals().await;
    let (key, meter, spent, refused, budgets) = app.store.read_snapshot(read).await?;
    let rules = &key.rules;
    let list = |names: &Option<Vec<String>>| match names {
        None => "all".to_owned(),
        Some(names) if names.is_empty() => "none".to_owned(),
        Some(names) => names.join(", "),
    };
    let wallet = key.wallet_id.to_string();
    let mut facts = vec![
        Fact::new("Id", key.spend_key_id.to_string()),
        Fact::new("Key", key.key_preview.clone()),
        Fact::leading("Wallet", wallet.clone(), format!("/dashboard/wallets/{wallet}")),
    ];
    facts.push(match (&meter, key.meter_id) {
        (Some(meter), Some(id)) => {
            Fact::leading("Meter", meter.name.clone(), format!("/dashboard/meters/{id}"))
        }
        _ => Fact::new("Meter", "none: the provider's cost alone"),
    });
    facts.extend(key.budget_id.map(|id| {
        let budget = budgets.iter().find(|one| one.id == id.to_string());
        let name = budget.map_or_else(|| id.to_string(), |one| one.name.clone());
        Fact::leading("Budget", name, format!("/dashboard/budgets/{id}"))
    }));
    facts.extend([
        Fact::new("Enforcement", text::word(&rules.enforcement)),
        Fact::new(
            "Format",
            match rules.request_shape {
                RequestShape::Any => "any",
                RequestShape::ShapeA => "OpenAI's",
                RequestShape::ShapeB => "Anthropic's",
            },
        ),
        Fact::new("Models", list(&rules.allowed_models)),
        Fact::new("Providers", list(&rules.allowed_providers)),
        Fact::new(
            "Rate",
            match rules.rate_limit {
                None => "no limit".to_owned(),
                Some(rate) => format!("{} a minute, {} at once", rate.rpm, rate.burst),
            },
        ),
        Fact::new(
            "Expires",
            rules.expires_at.map_or_else(|| "never".to_owned(), |at| visitor.clock.time(at)),
        ),
        Fact::new("Made", visitor.clock.time(key.created_at)),
    ]);
    respond(&SpendKeyPage {
        shell: Shell::new(&visitor, DashboardSection::Keys, key.name.clone()),
        line: SpendKeyItem::of(&key, &visitor.clock),
        is_paused: rules.status == SpendKeyStatus::Paused,
        form: RulesForm::of(&key, &visitor.clock),
        budgets,
        facts,
        spend: Chart::new(
            "Spend, 30 days",
            ChartUnit::Money,
            &MONTH.labels(&visitor.clock),
            vec![Layer::new("Spend", GOOD, spent.iter().map(RollupSums::request_cost).collect())],
        ),
        refusals: refused
            .into_iter()
            .map(|(code, count)| RefusalRow {
                label: code.replace('_', " "),
                count: text::count(count.into()),
                code,
            })
            .collect(),
    })
}

pub(crate) async fn pause(
    app: web::Data<App>,
    form: SessionForm,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    set_status(&app, &form, &id, SpendKeyStatus::Paused).await
}

pub(crate) async fn resume(
    app: web::Data<App>,
    form: SessionForm,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    set_status(&app, &form, &id, SpendKeyStatus::Active).await
}

async fn set_status(
    app: &App,
    form: &SessionForm,
    id: &str,
    status: SpendKeyStatus,
) -> Result<HttpResponse, PageError> {
    let (id, merchant_id) = (id_of(id)?, form.visitor.merchant_id());
    let now = app.clock.now();
    let changes = SpendKeyChanges { status: Some(status), ..SpendKeyChanges::default() };
    let change =
        move |conn: &mut Conn| match spend_keys::update(conn, merchant_id, id, changes, now)? {
            SpendKeyUpdate::SpendKey(_) => Ok(()),
            _ => Err(not_found()),
        };
    app.store.write(change).await?;
    form.accept(app, &format!("/dashboard/spend-keys/{id}")).await
}

pub(crate) async fn rotate(
    app: web::Data<App>,
    http: HttpRequest,
    form: SessionForm,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let (id, merchant_id) = (id_of(&id)?, form.visitor.merchant_id());
    let rotate =
        move |conn: &mut Conn| spend_keys::rotate(conn, merchant_id, id)?.ok_or_else(not_found);
    let (_, key) = app.store.write(rotate).await?;
    show_new_key(&app, &http, &form, id, &key).await
}

/// Redirects to the page that shows a new key once.
async fn show_new_key(
    app: &App,
    http: &HttpRequest,
    form: &SessionForm,
    id: SpendKeyId,
    key: &Key,
) -> Result<HttpResponse, PageError> {
    let mut answer = form.accept(app, &format!("/dashboard/spend-keys/{id}/key")).await?;
    carry_secret(http, &mut answer, key.reveal())?;
    Ok(answer)
}

/// The page that shows a new key once. Loaded again, it redirects to the page of the spend key.
pub(crate) async fn show_key(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let (id, merchant_id) = (id_of(&id)?, visitor.merchant_id());
    let find =
        move |conn: &mut Conn| spend_keys::find(conn, merchant_id, id)?.ok_or_else(not_found);
    let made = app.store.read(find).await?;
    let shown = secret_to_show(&http).and_then(|secret| Key::parse(&secret).ok());
    let Some(key) = shown else {
        return Ok(go_to(&format!("/dashboard/spend-keys/{id}")));
    };
    let mut answer = respond(&NewKeyPage::of(&visitor, &made, &key))?;
    clear_shown_key(&http, &mut answer)?;
    Ok(answer)
}
