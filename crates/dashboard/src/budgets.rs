//! The pages of budgets: their tree with the use of their limits, and forms to make, move and change them.

use actix_web::{HttpResponse, web};
use askama::Template;
use tollgate_domain::{
    Budget, BudgetEnforcement, BudgetId, BudgetStatus, BudgetTree, Connection, MerchantId,
    Metadata, SpendKey,
};
use tollgate_store::requests::{self, ListFilter, RequestFilter};
use tollgate_store::usage::RollupSums;
use tollgate_store::{Conn, Page, RecordArchive, StoreError, budgets, connections, spend_keys};

use crate::answer::{PageError, respond};
use crate::chart::{Chart, ChartUnit, GOOD, Layer};
use crate::clock::PageClock;
use crate::limits::{LimitBar, LimitFields};
use crate::page::{DashboardSection, Fact, FormChoice, Shell, name_of};
use crate::requests::RequestItem;
use crate::session::SessionUser;
use crate::text::{self, Figure};
use crate::time_range::MONTH;
use crate::trend::total;
use tollgate_api::operations::budget_not_found as not_found;
use tollgate_api::{ApiError, App};

/// The most budgets, keys and customers that a page searches.
const MOST: u32 = 5_000;
/// The rows of the list of calls that would have been refused.
const ROWS: u32 = 25;

/// A row of the tree.
struct BudgetItem {
    id: String,
    name: String,
    /// The number of budgets above it that are shown.
    level: usize,
    badges: Vec<(&'static str, String)>,
    /// The metadata of the calls that it matches; empty if keys and customers name it.
    pairs: String,
    bars: Vec<LimitBar>,
    /// The spend in its cycle.
    spend: Figure,
}

impl BudgetItem {
    fn of(budget: &Budget, level: usize, clock: &PageClock) -> Self {
        let (rules, counters) = (&budget.rules, budget.counters_at(clock.now));
        let limits = (rules.spend_limit, rules.request_limit);
        Self {
            id: budget.budget_id.to_string(),
            name: budget.name.clone(),
            level,
            badges: badges(budget),
            pairs: rules.pairs.as_ref().map_or_else(String::new, |pairs| lines(pairs).join(", ")),
            bars: LimitBar::all(limits, &counters, rules.calendars(), clock),
            spend: Figure::in_column(counters.spent.get(rules.spend_cycle()).units().into()),
        }
    }

    /// The rows of a budget and all below it.
    fn below(
        tree: &BudgetTree,
        budget: &Budget,
        level: usize,
        clock: &PageClock,
        rows: &mut Vec<Self>,
    ) {
        rows.push(Self::of(budget, level, clock));
        for child in tree.children(budget.budget_id) {
            Self::below(tree, child, level + 1, clock, rows);
        }
    }
}

fn badges(budget: &Budget) -> Vec<(&'static str, String)> {
    let status = match budget.rules.status {
        BudgetStatus::Active => ("good", text::word(&budget.rules.status)),
        BudgetStatus::Paused => ("warn", text::word(&budget.rules.status)),
    };
    let enforcement = match budget.rules.enforcement {
        BudgetEnforcement::Bounded => None,
        other => Some(("", text::word(&other))),
    };
    [status].into_iter().chain(enforcement).collect()
}

/// Pairs of metadata, as a form has them.
fn lines(pairs: &Metadata) -> Vec<String> {
    pairs.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

/// Whether a form reads the lines of the pairs as the same pairs.
fn fits_lines(pairs: &Metadata) -> bool {
    pairs.iter().all(|(_, value)| !value.contains(['\n', '\r']) && value.trim() == value)
}

/// All budgets of a merchant.
fn all(conn: &mut Conn, merchant_id: MerchantId) -> Result<BudgetTree, StoreError> {
    let newest = Page { after: None, limit: MOST };
    Ok(budgets::list(conn, merchant_id, &newest)?.into_iter().collect())
}

/// Budgets of a tree as choices. Their names begin with those of the budgets above them.
fn choices(tree: &BudgetTree, is_choice: impl Fn(&Budget) -> bool) -> Vec<FormChoice> {
    let named = tree.iter().filter(|budget| is_choice(budget));
    let mut choices: Vec<_> = named
        .map(|budget| {
            let chain: Vec<_> = tree.chain(budget.budget_id).collect();
            let names = chain.iter().rev().filter_map(|id| Some(tree.get(*id)?.name.as_str()));
            FormChoice {
                id: budget.budget_id.to_string(),
                name: names.collect::<Vec<_>>().join(" / "),
            }
        })
        .collect();
    choices.sort_by_key(|choice| choice.name.to_lowercase());
    choices
}

/// The budgets that a spend key or a customer can name.
pub(crate) fn budget_choices(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Vec<FormChoice>, StoreError> {
    Ok(choices(&all(conn, merchant_id)?, |budget| budget.rules.pairs.is_none()))
}

/// All budgets, with those that match calls.
pub(crate) fn all_budget_choices(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Vec<FormChoice>, StoreError> {
    Ok(choices(&all(conn, merchant_id)?, |_| true))
}

#[derive(Template)]
#[template(path = "budgets.html")]
struct BudgetsPage {
    shell: Shell,
    rows: Vec<BudgetItem>,
    parents: Vec<FormChoice>,
    enforcement: String,
    limits: LimitFields,
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
) -> Result<HttpResponse, PageError> {
    let merchant_id = visitor.merchant_id();
    let tree = app.store.read(move |conn: &mut Conn| all(conn, merchant_id)).await?;
    let is_shown = |id| tree.get(id).is_some();
    let mut roots: Vec<_> =
        tree.iter().filter(|budget| !budget.parent_id.is_some_and(is_shown)).collect();
    roots.sort_by_key(|budget| budget.name.to_lowercase());
    let mut rows = Vec::new();
    for root in roots {
        BudgetItem::below(&tree, root, 0, &visitor.clock, &mut rows);
    }
    respond(&BudgetsPage {
        shell: Shell::new(&visitor, DashboardSection::Budgets, "Budgets"),
        rows,
        parents: choices(&tree, |_| true),
        enforcement: text::word(&BudgetEnforcement::default()),
        limits: LimitFields::of(None, None),
    })
}

#[derive(Template)]
#[template(path = "budget.html")]
struct BudgetPage {
    shell: Shell,
    row: BudgetItem,
    /// The budgets that include it, from the outside in.
    above: Vec<FormChoice>,
    below: Vec<BudgetItem>,
    keys: Vec<FormChoice>,
    customers: Vec<FormChoice>,
    held: Figure,
    requests: String,
    /// The spend of 30 days.
    spend: Chart,
    is_paused: bool,
    observes: bool,
    /// The newest calls that a budget would have refused.
    would_refuse: Vec<RequestItem>,
    parents: Vec<FormChoice>,
    parent_id: String,
    enforcement: String,
    limits: LimitFields,
    zone: String,
    alerts: String,
    /// The pairs of its form. `None` if lines cannot have them.
    pairs: Option<String>,
    facts: Vec<Fact>,
}

/// The rows that the page of a budget needs.
struct BudgetDetails {
    budget: Budget,
    tree: BudgetTree,
    keys: Vec<SpendKey>,
    customers: Vec<Connection>,
    spent: Vec<RollupSums>,
    would_refuse: Vec<RequestItem>,
}

impl BudgetDetails {
    fn read(
        conn: &mut Conn,
        merchant_id: MerchantId,
        id: BudgetId,
        clock: &PageClock,
    ) -> Result<Self, ApiError> {
        let tree = all(conn, merchant_id)?;
        let budget = budgets::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let names_it = |named: Option<BudgetId>| named == Some(id);
        let mut keys = spend_keys::list(conn, merchant_id, &Page { after: None, limit: MOST })?;
        keys.retain(|key| names_it(key.budget_id));
        let mut customers =
            connections::list(conn, merchant_id, &Page { after: None, limit: MOST })?;
        customers.retain(|customer| names_it(customer.budget_id));
        let calls = RequestFilter { budget_id: Some(id), ..RequestFilter::default() };
        let spent =
            total(conn, &RecordArchive::left_out(), merchant_id, &calls, &MONTH.span(clock))?;
        let filter = ListFilter { would_refuse: true, ..calls.into() };
        let newest = Page { after: None, limit: ROWS };
        let found =
            requests::list(conn, &RecordArchive::left_out(), merchant_id, &filter, &newest)?
                .records;
        let would_refuse = found.iter().map(|one| RequestItem::of(one, clock)).collect();
        Ok(Self { budget, tree, keys, customers, spent, would_refuse })
    }
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let id: BudgetId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, clock) = (visitor.merchant_id(), visitor.clock.clone());
    let read = move |conn: &mut Conn| BudgetDetails::read(conn, merchant_id, id, &clock);
    let details = app.store.read_snapshot(read).await?;
    let BudgetDetails { budget, tree, keys, customers, spent, would_refuse } = details;
    let (rules, counters) = (&budget.rules, budget.counters_at(visitor.clock.now));
    let mut below = Vec::new();
    for child in tree.children(id) {
        BudgetItem::below(&tree, child, 0, &visitor.clock, &mut below);
    }
    let mut above: Vec<_> = tree
        .chain(id)
        .skip(1)
        .filter_map(|id| tree.get(id))
        .map(|one| FormChoice { id: one.budget_id.to_string(), name: one.name.clone() })
        .collect();
    above.reverse();
    let named = |id: String, name: String| FormChoice { id, name };
    let parent = budget.parent_id;
    let can_include = |one: &Budget| {
        parent == Some(one.budget_id) || tree.check_parent(Some(id), one.budget_id).is_ok()
    };
    respond(&BudgetPage {
        shell: Shell::new(&visitor, DashboardSection::Budgets, budget.name.clone()),
        row: BudgetItem::of(&budget, 0, &visitor.clock),
        above,
        below,
        keys: keys.into_iter().map(|key| named(key.spend_key_id.to_string(), key.name)).collect(),
        customers: customers
            .iter()
            .map(|one| named(one.connection_id.to_string(), name_of(one)))
            .collect(),
        held: Figure::of(counters.held.get(rules.spend_cycle()).units().into()),
        requests: text::count((*counters.requests.get(rules.request_cycle())).into()),
        spend: Chart::new(
            "Spend, 30 days",
            ChartUnit::Money,
            &MONTH.labels(&visitor.clock),
            vec![Layer::new("Spend", GOOD, spent.iter().map(RollupSums::request_cost).collect())],
        ),
        is_paused: rules.status == BudgetStatus::Paused,
        observes: rules.enforcement == BudgetEnforcement::Observe,
        would_refuse,
        parents: choices(&tree, can_include),
        parent_id: parent.map_or_else(String::new, |id| id.to_string()),
        enforcement: text::word(&rules.enforcement),
        limits: LimitFields::of(rules.spend_limit, rules.request_limit),
        zone: rules.calendar.zone_name().to_owned(),
        alerts: rules.alerts.iter().map(u8::to_string).collect::<Vec<_>>().join(", "),
        pairs: match &rules.pairs {
            None => Some(String::new()),
            Some(pairs) => fits_lines(pairs).then(|| lines(pairs).join("\n")),
        },
        facts: vec![
            Fact::new("Id", budget.budget_id.to_string()),
            Fact::new("Enforcement", text::word(&rules.enforcement)),
            Fact::new("Cycles begin at midnight in", rules.calendar.zone_name()),
            Fact::new("Made", visitor.clock.time(budget.created_at)),
        ],
    })
}
