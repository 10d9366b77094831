//! The pages of customers, which are connections in the API: their plan, money, usage, keys and statements.

use std::cmp::Reverse;
use std::collections::HashMap;

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use serde_json::{Value, json};
use tollgate_domain::{
    AnswerReport, Connection, ConnectionId, ConnectionStatus, MerchantId, Month, SpendKey,
    SubscriptionConfigId, SubscriptionState, SubscriptionStatus,
};
use tollgate_pricing::Amount;
use tollgate_store::requests::{self, ListFilter, RequestFilter};
use tollgate_store::subscription_configs::{self, ConfigDetails};
use tollgate_store::subscriptions::{self, RenewalScope, SubscriptionFilter};
use tollgate_store::usage::{self, Dimension, RollupSums};
use tollgate_store::{
    Conn, Page, RecordArchive, StoreError, connections, spend_keys, statements, wallets,
};

use crate::answer::{PageError, issue_sentences, respond};
use crate::budgets::budget_choices;
use crate::clock::{Moment, PageClock};
use crate::page::{ChoiceLink, DashboardSection, Fact, FormChoice, Shell, name_of};
use crate::requests::RequestItem as RequestLine;
use crate::session::SessionUser;
use crate::subscriptions::CreditBar;
use crate::text::{self, Figure};
use crate::time_range::MONTH;
use crate::trend::{margins_by_customer, sum_up};
use crate::wallets::WalletSummary;
use tollgate_api::operations::{StatementDocument, connection_not_found as not_found, perform};
use tollgate_api::{ApiError, App, Query};

/// The most customers that the list searches and sorts.
const MOST_CUSTOMERS: u32 = 5_000;
/// The customers of a page of the list.
const ROWS: usize = 25;
/// The most spend keys that are searched for those of a customer.
const MOST_KEYS: u32 = 5_000;

/// An order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CustomerOrder {
    Revenue,
    Margin,
    Name,
    Newest,
}

impl CustomerOrder {
    const ALL: [(&'static str, &'static str, Self); 4] = [
        ("revenue", "Revenue", Self::Revenue),
        ("margin", "Margin", Self::Margin),
        ("name", "Name", Self::Name),
        ("newest", "Newest", Self::Newest),
    ];

    fn from_query(query: &Query) -> (&'static str, Self) {
        let asked = query.get("sort");
        let found = Self::ALL.into_iter().find(|(name, ..)| Some(*name) == asked);
        found.map_or(("revenue", Self::Revenue), |(name, _, order)| (name, order))
    }

    fn sort(self, customers: &mut [CustomerFigures]) {
        match self {
            // The list is read newest first.
            Self::Newest => {}
            Self::Name => customers.sort_by_key(|one| name_of(&one.connection).to_lowercase()),
            Self::Revenue => customers.sort_by_key(|one| Reverse(one.sums.revenue)),
            Self::Margin => customers.sort_by_key(|one| Reverse(one.sums.margin())),
        }
    }
}

/// A customer with the sums of 30 days.
struct CustomerFigures {
    connection: Connection,
    sums: RollupSums,
}

impl CustomerFigures {
    fn has(&self, text: &str) -> bool {
        let Connection { name, reference_id, email, connection_id, .. } = &self.connection;
        let fields = [name, reference_id, email].into_iter().flatten();
        fields.map(|field| field.to_lowercase()).any(|field| field.contains(text))
            || connection_id.to_string().to_lowercase() == text
    }
}

/// The newest customers with their sums.
fn customers(
    conn: &mut Conn,
    merchant_id: MerchantId,
    clock: &PageClock,
) -> Result<Vec<CustomerFigures>, StoreError> {
    let newest = Page { after: None, limit: MOST_CUSTOMERS };
    let mut found = connections::list(conn, merchant_id, &newest)?;
    found.truncate(usize::try_from(MOST_CUSTOMERS).unwrap_or(usize::MAX));
    let mut sums = margins_by_customer(conn, merchant_id, clock)?;
    let with_sums = found.into_iter().map(|connection| {
        let sums = sums.remove(&connection.connection_id.to_string()).unwrap_or_default();
        CustomerFigures { connection, sums }
    });
    Ok(with_sums.collect())
}

struct CustomerItem {
    id: String,
    name: String,
    reference_id: String,
    is_suspended: bool,
    plan: String,
    revenue: Figure,
    margin: Figure,
    is_loss: bool,
    balance: Figure,
    is_low: bool,
    last_call: Moment,
}

impl CustomerItem {
    fn read(
        conn: &mut Conn,
        merchant_id: MerchantId,
        CustomerFigures { connection, sums }: &CustomerFigures,
        plan: Option<&String>,
        clock: &PageClock,
    ) -> Result<Self, StoreError> {
        let wallet = wallets::find(conn, merchant_id, connection.wallet_id)?;
        let available = wallet.as_ref().map_or(Amount::ZERO, |wallet| wallet.balance);
        let filter = RequestFilter {
            connection_id: Some(connection.connection_id),
            ..RequestFilter::default()
        };
        let newest = Page { after: None, limit: 1 };
        let last =
            requests::list(conn, &RecordArchive::left_out(), merchant_id, &filter.into(), &newest)?
                .records;
        Ok(Self {
            id: connection.connection_id.to_string(),
            name: name_of(connection),
            reference_id: connection.reference_id.clone().unwrap_or_default(),
            is_suspended: connection.status == ConnectionStatus::Suspended,
            plan: plan.cloned().unwrap_or_default(),
            revenue: Figure::in_column(sums.revenue),
            margin: Figure::in_column(sums.margin()),
            is_loss: sums.margin() < 0,
            balance: Figure::in_column(available.units().into()),
            is_low: wallet.is_some_and(|wallet| WalletSummary::is_low(&wallet)),
            last_call: clock.moment_or(last.first().map(|one| one.created_at), "never"),
        })
    }
}

#[derive(Template)]
#[template(path = "customers.html")]
struct CustomersPage {
    shell: Shell,
    customers: Vec<CustomerItem>,
    has_any: bool,
    search: String,
    sort: &'static str,
    orders: Vec<ChoiceLink>,
    found: usize,
    /// Whether there are more customers than are searched.
    is_cut: bool,
    earlier: String,
    later: String,
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let query = Query::of(&http);
    let search = query.get("q").unwrap_or_default().trim().to_owned();
    let (sort, order) = CustomerOrder::from_query(&query);
    let number: usize = query.get("page").and_then(|page| page.parse().ok()).unwrap_or(0);
    let (merchant_id, clock) = (visitor.merchant_id(), visitor.clock.clone());
    app.store.renew(RenewalScope::Merchant(merchant_id)).await?;
    let text = search.to_lowercase();
    let read = move |conn: &mut Conn| {
        let mut all = customers(conn, merchant_id, &clock)?;
        let count = all.len();
        all.retain(|one| text.is_empty() || one.has(&text));
        order.sort(&mut all);
        let plans = plans_by_customer(conn, merchant_id)?;
        let mut rows = Vec::new();
        for one in all.iter().skip(number.saturating_mul(ROWS)).take(ROWS) {
            let plan = plans.get(&one.connection.connection_id);
            rows.push(CustomerItem::read(conn, merchant_id, one, plan, &clock)?);
        }
        Ok::<_, StoreError>((rows, all.len(), count))
    };
    let (rows, found, count) = app.store.read_snapshot(read).await?;
    let link = |sort: &str, page: usize| {
        let mut link = url::form_urlencoded::Serializer::new(String::new());
        link.append_pair("q", &search).append_pair("sort", sort);
        format!("/dashboard/customers?{}&page={page}", link.finish())
    };
    let shown = number.saturating_add(1).saturating_mul(ROWS);
    respond(&CustomersPage {
        shell: Shell::new(&visitor, DashboardSection::Customers, "Customers"),
        has_any: count > 0,
        is_cut: u32::try_from(count).is_ok_and(|count| count >= MOST_CUSTOMERS),
        customers: rows,
        orders: CustomerOrder::ALL
            .into_iter()
            .map(|(name, label, _)| ChoiceLink {
                href: link(name, 0),
                label,
                is_chosen: name == sort,
            })
            .collect(),
        earlier: if number > 0 { link(sort, number - 1) } else { String::new() },
        later: if found > shown { link(sort, number + 1) } else { String::new() },
        search,
        sort,
        found,
    })
}

/// The names of the plans of subscribed customers.
fn plans_by_customer(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<HashMap<ConnectionId, String>, StoreError> {
    let filter = SubscriptionFilter {
        status: Some(SubscriptionStatus::Active),
        ..SubscriptionFilter::default()
    };
    let page = Page { after: None, limit: MOST_CUSTOMERS };
    let active = subscriptions::list(conn, merchant_id, &filter, &page)?;
    Ok(active.into_iter().map(|one| (one.connection_id, one.plan.name)).collect())
}

#[derive(Template)]
#[template(path = "customer.html")]
struct CustomerPage {
    shell: Shell,
    id: String,
    name: String,
    is_deleted: bool,
    is_suspended: bool,
    revenue: Figure,
    provider_cost: Figure,
    service_charge: Figure,
    margin: Figure,
    margin_percent: String,
    requests: String,
    wallet: Option<WalletSummary>,
    overdraft_limit: String,
    low_balance_threshold: String,
    plan: Option<PlanCard>,
    plans: Vec<FormChoice>,
    models: Vec<ModelRow>,
    keys: Vec<KeyRow>,
    newest: Vec<RequestLine>,
    months: Vec<String>,
    /// The name and the email that can be changed.
    own_name: String,
    email: String,
    /// Whether the answers to its calls report their cost.
    reports_cost: bool,
    /// The budget that it names, or empty.
    budget_id: String,
    budgets: Vec<FormChoice>,
    facts: Vec<Fact>,
    metadata: Vec<(String, String)>,
}

/// The plan of a customer.
struct PlanCard {
    id: String,
    name: String,
    price: String,
    cycle_ends: String,
    pending: String,
    credits: Vec<CreditBar>,
    bundles: Vec<FormChoice>,
    preview: Option<ChangeCard>,
    problems: Vec<String>,
}

/// The preview of a change of the plan.
struct ChangeCard {
    plan_id: String,
    plan: String,
    on_upgrade: String,
    effective_at: String,
    rows: Vec<(&'static str, String)>,
}

struct ModelRow {
    model: String,
    requests: String,
    tokens: String,
    revenue: Figure,
    margin: Figure,
}

struct KeyRow {
    id: String,
    name: String,
    state: (&'static str, &'static str),
    spent: Figure,
    last_used: Moment,
}

impl KeyRow {
    fn of(key: &SpendKey, clock: &PageClock) -> Self {
        let counters = key.counters_at(clock.now);
        Self {
            id: key.spend_key_id.to_string(),
            name: key.name.clone(),
            state: crate::spend_keys::state(key, clock.now),
            spent: Figure::in_column(counters.spent.total.units().into()),
            last_used: clock.moment_or(counters.last_used_at, "never"),
        }
    }
}

/// The rows that a customer's page needs.
struct CustomerDetails {
    connection: Connection,
    wallet: Option<tollgate_domain::Wallet>,
    subscription: Option<(SubscriptionState, Amount)>,
    config: Option<ConfigDetails>,
    configs: Vec<ConfigDetails>,
    sums: RollupSums,
    models: Vec<(Option<String>, RollupSums)>,
    keys: Vec<SpendKey>,
    newest: Vec<RequestLine>,
    months: Vec<Month>,
    budgets: Vec<FormChoice>,
}

impl CustomerDetails {
    fn read(
        conn: &mut Conn,
        merchant_id: MerchantId,
        id: ConnectionId,
        clock: &PageClock,
    ) -> Result<Self, ApiError> {
        let connection = connections::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let wallet = wallets::find(conn, merchant_id, connection.wallet_id)?;
        let (mut subscription, mut config) = (None, None);
        if let Some(state) = subscriptions::find_active(conn, merchant_id, id)? {
            let at_start = subscriptions::cycle_credit_at_start(conn, &state)?;
            let config_id = state.plan.subscription_config_id;
            config = subscription_configs::find(conn, merchant_id, config_id)?;
            subscription = Some((state, at_start));
        }
        let offered = Page { after: None, limit: 100 };
        let configs = subscription_configs::list(conn, merchant_id, &offered)?;
        let filter = RequestFilter { connection_id: Some(id), ..RequestFilter::default() };
        let (span, by) = (MONTH.span(clock), [Dimension::Model]);
        let groups =
            usage::sums(conn, &RecordArchive::left_out(), merchant_id, &filter, &by, &span)?
                .unwrap_or_default();
        let models = groups
            .into_iter()
            .map(|(mut members, periods)| (members.pop().flatten(), sum_up(periods.values())));
        let mut models: Vec<_> = models.collect();
        let sums = sum_up(models.iter().map(|(_, sums)| sums));
        models.sort_by(|(one, its), (other, others)| {
            others.revenue.cmp(&its.revenue).then_with(|| one.cmp(other))
        });
        let all_keys = Page { after: None, limit: MOST_KEYS };
        let mut keys = spend_keys::list(conn, merchant_id, &all_keys)?;
        keys.retain(|key| key.wallet_id == connection.wallet_id);
        let newest = Page { after: None, limit: 10 };
        let newest = requests::list(
            conn,
            &RecordArchive::left_out(),
            merchant_id,
            &ListFilter::from(filter),
            &newest,
        )?
        .records;
        let months = statements::months(conn, connection.wallet_id, &clock.zone)?;
        let budgets = budget_choices(conn, merchant_id)?;
        Ok(Self {
            wallet,
            subscription,
            config,
            configs,
            sums,
            models,
            keys,
            newest: newest.iter().map(|one| RequestLine::of(one, clock)).collect(),
            months,
            budgets,
            connection,
        })
    }

    /// The card of the plan, with the preview that the query asks for.
    fn plan(
        &self,
        clock: &PageClock,
        change: Option<ChangeCard>,
        problems: Vec<String>,
    ) -> Option<PlanCard> {
        let (state, at_start) = self.subscription.as_ref()?;
        let pending = state.pending_change.as_ref().map(|pending| {
            let day = clock.day(pending.effective_at);
            match pending.kind {
                tollgate_domain::PendingKind::Cancellation => format!("ends on {day}"),
                tollgate_domain::PendingKind::Downgrade => {
                    format!("{} from {day} on", pending.plan.name)
                }
            }
        });
        let bundles = self.config.iter().flat_map(|config| &config.credit_bundles);
        let bundles = bundles.map(|bundle| FormChoice {
            id: bundle.credit_bundle_id.to_string(),
            name: format!(
                "{}: {} for {}",
                bundle.name,
                text::money(bundle.credit_amount),
                text::money(bundle.cost)
            ),
        });
        Some(PlanCard {
            id: state.subscription_id.to_string(),
            name: state.plan.name.clone(),
            price: format!(
                "{} a {}",
                text::money(state.plan.period_amount),
                text::word(&state.billing_interval)
            ),
            cycle_ends: clock.day(state.cycle_end_at),
            pending: pending.unwrap_or_default(),
            credits: CreditBar::of(state, *at_start),
            bundles: bundles.collect(),
            preview: change,
            problems,
        })
    }

    /// The plans that it can get: all but the present one, and that one to keep it after all.
    fn choices(&self) -> Vec<FormChoice> {
        // A change to the present plan takes a pending one back.
        let is_pending =
            self.subscription.as_ref().is_some_and(|(state, _)| state.pending_change.is_some());
        let present = self.config.as_ref().filter(|_| !is_pending);
        let present = present.map(|present| present.config.subscription_config_id);
        let others = self.configs.iter().map(|details| &details.config);
        let others = others.filter(|config| Some(config.subscription_config_id) != present);
        let choices = others.map(|config| {
            let price = text::money(config.period_amount);
            let interval = text::word(&config.billing_interval);
            FormChoice {
                id: config.subscription_config_id.to_string(),
                name: format!("{}: {price} a {interval}", config.name),
            }
        });
        choices.collect()
    }
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let id: ConnectionId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, clock) = (visitor.merchant_id(), visitor.clock.clone());
    app.store.renew(RenewalScope::Connection(id)).await?;
    let read = move |conn: &mut Conn| CustomerDetails::read(conn, merchant_id, id, &clock);
    let details = app.store.read_snapshot(read).await?;
    let (change, problems) = preview(&app, &visitor, &details, &Query::of(&http)).await;
    let name = name_of(&details.connection);
    let connection = &details.connection;
    let sums = &details.sums;
    let mut facts =
        vec![Fact::new("Id (a connection in the API)", connection.connection_id.to_string())];
    facts.extend(connection.reference_id.clone().map(|id| Fact::new("Your id", id)));
    facts.push(Fact::new("Made", visitor.clock.time(connection.created_at)));
    let amount = |amount: Option<Amount>| amount.map_or_else(String::new, text::field);
    let wallet = details.wallet.as_ref();
    let models = details.models.iter().map(|(model, sums)| ModelRow {
        model: model.clone().unwrap_or_else(|| "No model".to_owned()),
        requests: text::count(sums.requests),
        tokens: text::count(sums.tokens()),
        revenue: Figure::in_column(sums.revenue),
        margin: Figure::in_column(sums.margin()),
    });
    let pairs = connection.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
    respond(&CustomerPage {
        shell: Shell::new(&visitor, DashboardSection::Customers, name.clone()),
        id: connection.connection_id.to_string(),
        is_deleted: connection.status == ConnectionStatus::Deleted,
        is_suspended: connection.status == ConnectionStatus::Suspended,
        revenue: Figure::of(sums.revenue),
        provider_cost: Figure::of(sums.provider_cost),
        service_charge: Figure::of(sums.service_charge),
        margin: Figure::of(sums.margin()),
        margin_percent: text::percent(sums.margin(), sums.revenue),
        requests: text::count(sums.requests),
        overdraft_limit: amount(wallet.and_then(|wallet| wallet.overdraft_limit)),
        low_balance_threshold: amount(wallet.and_then(|wallet| wallet.low_balance_threshold)),
        wallet: wallet.map(|wallet| WalletSummary::of(wallet, name.clone())),
        plan: details.plan(&visitor.clock, change, problems),
        plans: details.choices(),
        models: models.collect(),
        keys: details.keys.iter().map(|key| KeyRow::of(key, &visitor.clock)).collect(),
        months: details.months.iter().map(Month::to_string).collect(),
        own_name: connection.name.clone().unwrap_or_default(),
        email: connection.email.clone().unwrap_or_default(),
        reports_cost: connection.report == Some(AnswerReport::Cost),
        budget_id: connection.budget_id.map_or_else(String::new, |id| id.to_string()),
        budgets: details.budgets,
        metadata: pairs.collect(),
        newest: details.newest,
        facts,
        name,
    })
}

/// The effect of the change of the plan that the query asks for. It is not made.
async fn preview(
    app: &web::Data<App>,
    visitor: &SessionUser,
    details: &CustomerDetails,
    query: &Query,
) -> (Option<ChangeCard>, Vec<String>) {
    let Some((plan_id, (state, _))) = query.get("plan").zip(details.subscription.as_ref()) else {
        return (None, Vec::new());
    };
    let on_upgrade = query.get("on_upgrade").unwrap_or("carry").to_owned();
    let body = json!({
        "subscription_config_id": plan_id, "on_upgrade": on_upgrade, "preview": true,
    });
    let id = state.subscription_id.to_string();
    let answer =
        perform(app.clone(), visitor.merchant_id(), "changeSubscription", &id, &body).await;
    let preview = match answer {
        Ok((_, answer)) => answer.get("preview").cloned().unwrap_or_default(),
        Err(error) if error.issues().is_empty() => return (None, vec![error.message().to_owned()]),
        Err(error) => return (None, issue_sentences(error.issues())),
    };
    let shown = |path: &str| {
        let text = preview.pointer(path).and_then(Value::as_str).unwrap_or_default();
        text.parse::<Amount>().map_or_else(|_| text.to_owned(), text::money)
    };
    let known = plan_id.parse::<SubscriptionConfigId>().ok();
    let mut configs = details.configs.iter().map(|details| &details.config);
    let plan = configs.find(|config| Some(config.subscription_config_id) == known);
    let effective_at = preview.get("effective_at").and_then(Value::as_str).unwrap_or_default();
    let change = ChangeCard {
        plan_id: plan_id.to_owned(),
        plan: plan.map_or_else(|| state.plan.name.clone(), |config| config.name.clone()),
        on_upgrade,
        effective_at: effective_at
            .parse()
            .map_or_else(|_| effective_at.to_owned(), |at| visitor.clock.time(at)),
        rows: vec![
            ("To collect", shown("/amount_due")),
            ("Credit that is lost", shown("/credit_lost")),
            ("Credit that stays", shown("/credit_carried")),
            ("Credit after the change", shown("/credits_after/total_remaining")),
        ],
    };
    (Some(change), Vec::new())
}

/// The printable statement of a customer for a month, or its CSV.
pub(crate) async fn statement(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, PageError> {
    let (id, month) = path.into_inner();
    let id: ConnectionId = id.parse().map_err(|_| not_found())?;
    let month: Month = month.parse().map_err(|_| PageError::invalid("That is no month."))?;
    let (merchant_id, now) = (visitor.merchant_id(), app.clock.now());
    app.store.renew(RenewalScope::Connection(id)).await?;
    let zone = visitor.clock.zone.clone();
    let read =
        move |conn: &mut Conn| StatementDocument::read(conn, merchant_id, id, month, zone, now);
    let document = app.store.read_snapshot(read).await?.ok_or_else(not_found)?;
    match Query::of(&http).get("format") {
        Some("csv") => Ok(document.to_csv()?),
        _ => Ok(document.to_page()?),
    }
}
