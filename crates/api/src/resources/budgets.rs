//! Budgets: limits that spend keys, connections and other budgets share.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::{Deserr, IntoValue, ValuePointerRef};
use serde::Serialize;
use serde_json::Value;
use tollgate_domain::{
    Budget, BudgetEnforcement, BudgetId, BudgetRules, BudgetStatus, BudgetTree, CycleCalendar,
    Issue, MerchantId, Metadata, ParentFault, SpendCounters, TimeZone, Timestamp,
};
use tollgate_pricing::Amount;
use tollgate_store::Conn;
use tollgate_store::budgets::{self, BudgetDeletion, BudgetFault};
use utoipa::ToSchema;

use super::Success;
use super::limits::{
    BudgetRequestLimitInput, BudgetRequestLimitView, BudgetSpendLimitInput, BudgetSpendLimitView,
    zone,
};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{
    BoundedInt, EnumField, Issues, MetadataField, NameField, NullablePatch, ParsedString,
    PatchField, refuse,
};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, page, respond};
use crate::openapi::fields::MetadataSchema;
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = Budget)]
pub(crate) struct BudgetView {
    /// The id of the budget.
    budget_id: BudgetId,
    /// A name for people.
    name: String,
    /// The budget that includes it. Null: none.
    #[schema(required)]
    parent_id: Option<BudgetId>,
    /// The limit of money per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spend_limit: Option<BudgetSpendLimitView>,
    /// The limit of calls per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    request_limit: Option<BudgetRequestLimitView>,
    /// The way in which the limits are kept.
    enforcement: BudgetEnforcement,
    /// The IANA name of the time zone by whose midnights cycles begin. A change takes effect at the next cycle.
    time_zone: String,
    /// Whether calls are accepted.
    status: BudgetStatus,
    /// The pairs of metadata that a call must have to count against it. Null: keys and connections name the budget.
    #[serde(rename = "match")]
    #[schema(required)]
    pairs: Option<Metadata>,
    /// The shares of the spend limit, in percent, that are reported.
    alerts: Vec<u8>,
    /// The spend in the present cycle of `spend_limit`. Without that limit, the spend of the day.
    current_spend: Amount,
    /// The calls in the present cycle of `request_limit`. Without that limit, the calls of the day.
    current_requests: u64,
    /// The holds of calls in flight, in the cycle of `current_spend`.
    held: Amount,
    /// The end of the present cycle of the spend limit, else of the request limit. Null: never.
    #[schema(required)]
    resets_at: Option<Timestamp>,
    /// Pairs of strings.
    metadata: Metadata,
    /// The time of creation.
    created_at: Timestamp,
}

impl BudgetView {
    /// The view of a budget at an instant.
    pub(crate) fn of(budget: &Budget, now: Timestamp) -> Self {
        let (rules, counters) = (&budget.rules, budget.counters_at(now));
        let limited = rules.spend_limit.map(|limit| limit.cycle);
        let limited = limited.or(rules.request_limit.map(|limit| limit.cycle));
        Self {
            budget_id: budget.budget_id,
            name: budget.name.clone(),
            parent_id: budget.parent_id,
            spend_limit: rules.spend_limit.map(Into::into),
            request_limit: rules.request_limit.map(Into::into),
            enforcement: rules.enforcement,
            time_zone: rules.calendar.zone_name().to_owned(),
            status: rules.status,
            pairs: rules.pairs.clone(),
            alerts: rules.alerts.clone(),
            current_spend: *counters.spent.get(rules.spend_cycle()),
            current_requests: *counters.requests.get(rules.request_cycle()),
            held: *counters.held.get(rules.spend_cycle()),
            resets_at: limited.and_then(|cycle| rules.calendar.ends_at(cycle, now)),
            metadata: budget.metadata.clone(),
            created_at: budget.created_at,
        }
    }
}

/// A budget and all below it.
#[derive(Serialize, ToSchema)]
#[schema(as = BudgetTree, no_recursion)]
pub(crate) struct BudgetTreeView {
    /// The budget.
    budget: BudgetView,
    /// The budgets directly below it, each with those below it.
    #[schema(no_recursion)]
    children: Vec<BudgetTreeView>,
}

impl BudgetTreeView {
    fn of(tree: &BudgetTree, budget: &Budget, now: Timestamp) -> Self {
        let children = tree.children(budget.budget_id);
        Self {
            budget: BudgetView::of(budget, now),
            children: children.map(|child| Self::of(tree, child, now)).collect(),
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct CreateBudget {
    /// A name for people.
    name: NameField,
    /// The budget that includes it. A tree has at most 4 levels. Default: none.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetId>)]
    parent_id: Option<NameField>,
    /// The limit of money per cycle. Default: none.
    #[deserr(default)]
    spend_limit: Option<BudgetSpendLimitInput>,
    /// The limit of calls per cycle. Default: none.
    #[deserr(default)]
    request_limit: Option<BudgetRequestLimitInput>,
    /// The way in which the limits are kept: `observe` counts and refuses nothing. Default: `bounded`.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetEnforcement>)]
    enforcement: Option<EnumField<BudgetEnforcement>>,
    /// The IANA name of the time zone by whose midnights cycles begin. Default: `UTC`.
    #[deserr(default)]
    #[schema(value_type = Option<String>)]
    time_zone: Option<ParsedString<TimeZone>>,
    /// Whether calls are accepted. Default: `active`.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetStatus>)]
    status: Option<EnumField<BudgetStatus>>,
    /// The pairs of metadata that a call must have to count against the budget. Keys and connections cannot name such a
    /// budget. Default: none.
    #[deserr(rename = "match", default)]
    #[schema(rename = "match", value_type = Option<Metadata>)]
    pairs: Option<MetadataField>,
    /// The shares of the spend limit, in percent from 1 to 100, that are reported once per cycle. Default: 80, 95, 100.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<u8>>, max_items = 20)]
    alerts: Option<Alerts>,
    /// Pairs of strings. Default: none.
    #[deserr(default)]
    #[schema(value_type = Option<Metadata>)]
    metadata: Option<MetadataField>,
}

impl Input for CreateBudget {}

fn id_of(id: &str) -> Result<BudgetId, ApiError> {
    id.parse().map_err(|_| not_found())
}

/// The error of a budget that does not exist, or is of another merchant.
pub fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::BudgetNotFound, "budget")
}

/// The most shares that are reported.
const MOST_ALERTS: usize = 20;

/// The shares of the spend limit that are reported, in percent.
pub(crate) struct Alerts(Vec<BoundedInt<100>>);

impl Deserr<Issues> for Alerts {
    fn deserialize_from_value<V: IntoValue>(
        value: deserr::Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let shares = Vec::<BoundedInt<100>>::deserialize_from_value(value, location)?;
        match shares.len() <= MOST_ALERTS {
            true => Ok(Self(shares)),
            false => Err(refuse(format!("must have at most {MOST_ALERTS} elements"), location)),
        }
    }
}

fn shares(Alerts(alerts): Alerts) -> Vec<u8> {
    let mut shares: Vec<_> =
        alerts.into_iter().filter_map(|share| u8::try_from(share.0).ok()).collect();
    shares.sort_unstable();
    shares.dedup();
    shares
}

/// The pairs of a budget that matches calls; one without pairs would match all.
fn matched(pairs: Metadata) -> Result<Metadata, ApiError> {
    match pairs.is_empty() {
        true => Err(ApiError::invalid(vec![Issue::at(
            ["match"],
            "must have at least one pair; null lets keys and connections name the budget",
        )])),
        false => Ok(pairs),
    }
}

impl CreateBudget {
    fn new_budget(self, merchant_id: MerchantId, now: Timestamp) -> Result<Budget, ApiError> {
        let defaults = BudgetRules::default();
        let zone = zone(self.time_zone);
        Ok(Budget {
            budget_id: BudgetId::generate(now),
            merchant_id,
            parent_id: self.parent_id.map(|id| id_of(&id.0)).transpose()?,
            name: self.name.0,
            rules: BudgetRules {
                status: self.status.map(|word| word.0).unwrap_or_default(),
                enforcement: self.enforcement.map(|word| word.0).unwrap_or_default(),
                spend_limit: self.spend_limit.map(BudgetSpendLimitInput::limit),
                request_limit: self.request_limit.map(BudgetRequestLimitInput::limit),
                calendar: CycleCalendar::of(zone),
                pairs: self.pairs.map(|pairs| matched(pairs.0)).transpose()?,
                alerts: self.alerts.map_or(defaults.alerts, shares),
            },
            metadata: self.metadata.unwrap_or_default().0,
            counters: SpendCounters::default(),
            created_at: now,
        })
    }
}

impl From<BudgetFault> for ApiError {
    fn from(fault: BudgetFault) -> Self {
        let invalid = |field, message| Self::invalid(vec![Issue::at([field], message)]);
        match fault {
            BudgetFault::NotFound | BudgetFault::Parent(ParentFault::Unknown) => not_found(),
            BudgetFault::Parent(ParentFault::Cycle) => {
                invalid("parent_id", "must not be the budget itself or one below it")
            }
            BudgetFault::Parent(ParentFault::TooDeep) => {
                invalid("parent_id", "would make a tree of more than 4 levels")
            }
            BudgetFault::TooManyMatching => {
                invalid("match", "100 active budgets match calls already")
            }
            BudgetFault::IsNamed => {
                invalid("match", "is not possible while a key or a connection names the budget")
            }
        }
    }
}

/// Makes the budget that a JSON object describes, in the fields of `POST /budgets`. It must be called in a write
/// transaction.
pub fn make(
    conn: &mut Conn,
    merchant_id: MerchantId,
    described: Value,
    now: Timestamp,
) -> Result<Budget, ApiError> {
    let described: CreateBudget = read(described)?;
    let new = described.new_budget(merchant_id, now)?;
    budgets::save(conn, &new, true)??;
    Ok(new)
}

/// Changes a budget as a JSON object describes it, in the fields of `PUT /budgets/{id}`. It must be called in a write
/// transaction.
pub fn change(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: BudgetId,
    described: Value,
    now: Timestamp,
) -> Result<Budget, ApiError> {
    change_with(conn, merchant_id, id, read(described)?, now)
}

fn change_with(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: BudgetId,
    changes: UpdateBudget,
    now: Timestamp,
) -> Result<Budget, ApiError> {
    let locked = budgets::lock(conn, merchant_id, id)?;
    let mut budget = locked.ok_or_else(not_found)?;
    changes.change(&mut budget, now)?;
    budgets::save(conn, &budget, false)??;
    Ok(budget)
}

fn read<T: Deserr<Issues>>(described: Value) -> Result<T, ApiError> {
    deserr::deserialize(described).map_err(|Issues(issues)| ApiError::invalid(issues))
}

/// Deletes a budget that nothing names. It must be called in a write transaction.
pub fn remove(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: BudgetId,
    now: Timestamp,
) -> Result<(), ApiError> {
    match budgets::delete(conn, merchant_id, id, now)? {
        BudgetDeletion::Deleted => Ok(()),
        BudgetDeletion::NotFound => Err(not_found()),
        BudgetDeletion::InUse => Err(ApiError::new(
            ErrorCode::BudgetInUse,
            "A budget, a spend key or a connection names this budget. Move these first.",
        )),
    }
}

/// A budget as the API answers with it at an instant.
pub fn to_json(budget: &Budget, now: Timestamp) -> Value {
    serde_json::to_value(BudgetView::of(budget, now)).unwrap_or_default()
}

/// Make a budget.
#[utoipa::path(
    post,
    path = "/budgets",
    operation_id = "createBudget",
    params(IdempotencyHeader),
    request_body = CreateBudget,
    responses(
        (status = 201, description = "Made", body = BudgetView),
        ApiError, refused::BudgetNotFound,
    ),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Caller, CreateBudget>,
) -> Result<HttpResponse, ApiError> {
    let now = app.clock.now();
    let new = asked.what.new_budget(asked.caller.merchant_id, now)?;
    app.write(asked.idempotency_key, move |conn| {
        budgets::save(conn, &new, true)??;
        Ok(ApiResponse::created(&BudgetView::of(&new, now)))
    })
    .await
}

/// List budgets.
#[utoipa::path(
    get,
    path = "/budgets",
    operation_id = "listBudgets",
    params(PageQuery),
    responses((status = 200, description = "A page", body = ListView<BudgetView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let page = page::<BudgetId>(&http)?;
    let read = move |conn: &mut _| budgets::list(conn, caller.merchant_id, &page);
    let found = app.store.read(read).await?;
    let now = app.clock.now();
    Ok(respond(found, page.limit, |one| one.budget_id.to_string(), |one| BudgetView::of(one, now)))
}

/// Read a budget.
#[utoipa::path(
    get,
    path = "/budgets/{id}",
    operation_id = "getBudget",
    params(("id" = BudgetId, Path)),
    responses(
        (status = 200, description = "The budget", body = BudgetView),
        ApiError, refused::BudgetNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id = id_of(&id)?;
    let read = move |conn: &mut _| budgets::find(conn, caller.merchant_id, id);
    let budget = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(BudgetView::of(&budget, app.clock.now())))
}

/// Read a budget and all below it.
#[utoipa::path(
    get,
    path = "/budgets/{id}/tree",
    operation_id = "getBudgetTree",
    params(("id" = BudgetId, Path)),
    responses(
        (status = 200, description = "The tree", body = BudgetTreeView),
        ApiError, refused::BudgetNotFound,
    ),
)]
pub(crate) async fn tree(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id = id_of(&id)?;
    let read = move |conn: &mut _| budgets::tree(conn, caller.merchant_id, id);
    let tree = app.store.read(read).await?.ok_or_else(not_found)?;
    let root = tree.get(id).ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(BudgetTreeView::of(&tree, root, app.clock.now())))
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct UpdateBudget {
    /// A name for people.
    #[deserr(default)]
    #[schema(value_type = Option<NameField>, nullable = false)]
    name: PatchField<NameField>,
    /// The budget that includes it. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetId>)]
    parent_id: NullablePatch<NameField>,
    /// The limit of money per cycle, replaced as a whole. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetSpendLimitInput>)]
    spend_limit: NullablePatch<BudgetSpendLimitInput>,
    /// The limit of calls per cycle, replaced as a whole. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetRequestLimitInput>)]
    request_limit: NullablePatch<BudgetRequestLimitInput>,
    /// The way in which the limits are kept.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetEnforcement>, nullable = false)]
    enforcement: PatchField<EnumField<BudgetEnforcement>>,
    /// The IANA name of the time zone by whose midnights cycles begin. Null: `UTC`.
    #[deserr(default)]
    #[schema(value_type = Option<String>)]
    time_zone: NullablePatch<ParsedString<TimeZone>>,
    /// Whether calls are accepted.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetStatus>, nullable = false)]
    status: PatchField<EnumField<BudgetStatus>>,
    /// The pairs of metadata that a call must have to count against the budget. Null: none.
    #[deserr(rename = "match", default)]
    #[schema(rename = "match", value_type = Option<Metadata>)]
    pairs: NullablePatch<MetadataField>,
    /// The shares of the spend limit that are reported. Null: the default.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<u8>>, max_items = 20)]
    alerts: NullablePatch<Alerts>,
    /// Pairs of strings, replaced as a whole. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<Metadata>)]
    metadata: NullablePatch<MetadataField>,
}

impl Input for UpdateBudget {
    const READ_ONLY: &'static [&'static str] =
        &["budget_id", "current_spend", "current_requests", "held", "resets_at", "created_at"];
}

impl UpdateBudget {
    fn change(self, budget: &mut Budget, now: Timestamp) -> Result<(), ApiError> {
        if let Some(name) = self.name.0 {
            budget.name = name.0;
        }
        if let Some(parent_id) = self.parent_id.into_option(|id| id.0) {
            budget.parent_id = parent_id.map(|id| id_of(&id)).transpose()?;
        }
        let rules = &mut budget.rules;
        if let Some(limit) = self.spend_limit.into_option(BudgetSpendLimitInput::limit) {
            rules.spend_limit = limit;
        }
        if let Some(limit) = self.request_limit.into_option(BudgetRequestLimitInput::limit) {
            rules.request_limit = limit;
        }
        if let Some(word) = self.enforcement.0 {
            rules.enforcement = word.0;
        }
        if let Some(word) = self.status.0 {
            rules.status = word.0;
        }
        if let Some(zone) = self.time_zone.into_option(|zone| zone.0) {
            let zone = zone.unwrap_or(TimeZone::UTC);
            rules.calendar.change(zone, now, budget.counters.last_used_at);
        }
        if let Some(pairs) = self.pairs.into_option(|pairs| pairs.0) {
            rules.pairs = pairs.map(matched).transpose()?;
        }
        if let Some(alerts) = self.alerts.into_option(shares) {
            rules.alerts = alerts.unwrap_or_else(|| BudgetRules::default().alerts);
        }
        if let Some(metadata) = self.metadata.into_option(|metadata| metadata.0) {
            budget.metadata = metadata.unwrap_or_default();
        }
        Ok(())
    }
}

/// Change a budget.
///
/// An absent field is kept, a null field is cleared. What was spent stays where it was spent.
#[utoipa::path(
    put,
    path = "/budgets/{id}",
    operation_id = "updateBudget",
    params(("id" = BudgetId, Path)),
    request_body = UpdateBudget,
    responses(
        (status = 200, description = "The budget as it is now", body = BudgetView),
        ApiError, refused::BudgetNotFound,
    ),
)]
pub(crate) async fn update(
    app: web::Data<App>,
    asked: ApiRequest<Caller, UpdateBudget>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id = id_of(&id)?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write(None, move |conn| {
        let budget = change_with(conn, merchant_id, id, asked.what, now)?;
        Ok(ApiResponse::ok(&BudgetView::of(&budget, now)))
    })
    .await
}

/// Delete a budget that no budget, key or connection names.
#[utoipa::path(
    delete,
    path = "/budgets/{id}",
    operation_id = "deleteBudget",
    params(("id" = BudgetId, Path)),
    responses(
        (status = 200, description = "Deleted", body = Success),
        ApiError, refused::BudgetNotFound, refused::BudgetInUse,
    ),
)]
pub(crate) async fn delete(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id = id_of(&id)?;
    let now = app.clock.now();
    app.write(None, move |conn| {
        remove(conn, caller.merchant_id, id, now)?;
        Ok(ApiResponse::ok(&Success { success: true }))
    })
    .await
}
