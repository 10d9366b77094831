//! Subscriptions of connections. Each is shown in its present state.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::Deserr;
use serde::Serialize;
use tollgate_domain::admission::Refusal;
use tollgate_domain::{
    BillingInterval, ChangePreview, ConnectionId, CreditBundleId, Issue, PendingKind, PendingState,
    Rollover, SubscriptionConfigId, SubscriptionId, SubscriptionState, SubscriptionStatus,
    Timestamp, UpgradeRule,
};
use tollgate_pricing::Amount;
use tollgate_store::connections;
use tollgate_store::subscriptions::{
    self, ChangeOutcome, PlanChange, RenewalScope, SubscribeOutcome, SubscriptionFilter,
};
use utoipa::{IntoParams, ToSchema};

use super::connections::not_found as connection_not_found;
use super::subscription_configs::not_found as config_not_found;
use super::{ConnectionQuery, Success, id_filter};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{EnumField, Issues, NameField};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, Query, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;

/// The answer with a subscription.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubscriptionAnswer {
    /// The subscription.
    subscription: SubscriptionView,
}

/// The subscription of a connection, without the connection.
#[derive(Serialize, ToSchema)]
#[schema(as = SubscriptionOfConnection)]
pub(crate) struct ConnectionAnswer {
    /// The subscription.
    #[schema(required)]
    subscription: Option<OwnSubscriptionView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Subscription)]
pub(crate) struct SubscriptionView {
    /// The id of the subscription.
    subscription_id: SubscriptionId,
    #[serde(flatten)]
    whose: WhoseView,
    #[serde(flatten)]
    terms: TermsView,
}

/// A subscription without its connection.
#[derive(Serialize, ToSchema)]
#[schema(as = OwnSubscription)]
struct OwnSubscriptionView {
    /// The subscription.
    subscription_id: SubscriptionId,
    #[serde(flatten)]
    terms: TermsView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SubscriptionTerms)]
struct TermsView {
    /// The subscription configuration (the plan).
    subscription_config_id: SubscriptionConfigId,
    /// The present name of the configuration.
    name: String,
    /// The state. A subscription that will end stays `active` until it ends.
    status: SubscriptionStatus,
    /// The length of a billing cycle.
    billing_interval: BillingInterval,
    /// The price of a cycle, as the configuration has it at present.
    period_amount: Amount,
    /// The credit of a cycle, as the configuration has it at present.
    included_credit: Amount,
    /// The start of the present cycle.
    cycle_start_at: Timestamp,
    /// The first instant of the next cycle. For a cancelled subscription, the time when it ended.
    cycle_end_at: Timestamp,
    /// The remaining credit.
    credits: CreditsView,
    /// The change that happens at `cycle_end_at`. Null: none.
    #[schema(required)]
    pending_change: Option<PendingChangeView>,
}

/// The fields that are left out where the connection is known.
#[derive(Serialize, ToSchema)]
#[schema(as = Subscriber)]
struct WhoseView {
    /// The customer.
    connection_id: ConnectionId,
    /// The time of the start.
    started_at: Timestamp,
    /// The time of cancellation. Null: not cancelled.
    #[schema(required)]
    cancelled_at: Option<Timestamp>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SubscriptionCredits)]
struct CreditsView {
    /// All remaining credit.
    total_remaining: Amount,
    /// The remaining included credit, with the amount that calls in flight have reserved. 0 for a cancelled
    /// subscription.
    cycle_remaining: Amount,
    /// The remaining bought credit, likewise.
    bundle_remaining: Amount,
    /// The present rule for included credit that remains at the end of a cycle.
    cycle_rollover: Rollover,
    /// The present rule for bought credit that remains at the end of a cycle.
    bundle_rollover: Rollover,
}

#[derive(Serialize, ToSchema)]
#[schema(as = PendingChange)]
struct PendingChangeView {
    /// The kind of the change. The fields below are those of the configuration that applies from then on. For a
    /// cancellation they are those of the present one.
    r#type: PendingKind,
    /// The time at which it takes effect.
    effective_at: Timestamp,
    /// The subscription configuration (the plan).
    subscription_config_id: SubscriptionConfigId,
    /// The name of the configuration.
    name: String,
    /// The price of a cycle.
    period_amount: Amount,
    /// The credit that each cycle includes.
    included_credit: Amount,
}

impl SubscriptionView {
    pub(crate) fn of(state: &SubscriptionState) -> Self {
        let whose = WhoseView {
            connection_id: state.connection_id,
            started_at: state.started_at,
            cancelled_at: state.cancelled_at,
        };
        Self { subscription_id: state.subscription_id, whose, terms: TermsView::of(state) }
    }
}

impl OwnSubscriptionView {
    fn of(state: &SubscriptionState) -> Self {
        Self { subscription_id: state.subscription_id, terms: TermsView::of(state) }
    }
}

/// The answer to a change: the subscription, or with `preview` the effect.
#[derive(ToSchema)]
#[schema(as = SubscriptionChange)]
#[expect(dead_code, reason = "read by its derive only")]
pub(crate) struct ChangeAnswer {
    /// The subscription. Absent for a preview.
    #[schema(nullable = false)]
    subscription: Option<SubscriptionView>,
    /// The effect that the change would have. Only for a preview.
    #[schema(nullable = false)]
    preview: Option<PreviewView>,
}

#[derive(Serialize)]
struct PreviewAnswer {
    preview: PreviewView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SubscriptionChangePreview)]
struct PreviewView {
    /// The time of effect: now, or the end of the cycle.
    effective_at: Timestamp,
    /// The amount that you have to collect at that time.
    amount_due: Amount,
    /// The credit that expires with the change.
    credit_lost: Amount,
    /// The credit that stays. For a change at the end of the cycle: if no more is used until then.
    credit_carried: Amount,
    /// The credit right after the change.
    credits_after: CreditsView,
}

impl PreviewView {
    fn of(preview: &ChangePreview) -> Self {
        Self {
            effective_at: preview.effective_at,
            amount_due: preview.amount_due,
            credit_lost: preview.credit_lost,
            credit_carried: preview.credit_carried,
            credits_after: CreditsView::of(&preview.after),
        }
    }
}

impl CreditsView {
    fn of(state: &SubscriptionState) -> Self {
        Self {
            total_remaining: state.cycle_remaining.saturating_add(state.bundle_remaining),
            cycle_remaining: state.cycle_remaining,
            bundle_remaining: state.bundle_remaining,
            cycle_rollover: state.cycle_rollover,
            bundle_rollover: state.bundle_rollover,
        }
    }
}

impl TermsView {
    fn of(state: &SubscriptionState) -> Self {
        let plan = &state.plan;
        Self {
            subscription_config_id: plan.subscription_config_id,
            name: plan.name.clone(),
            status: state.status,
            billing_interval: state.billing_interval,
            period_amount: plan.period_amount,
            included_credit: plan.included_credit,
            cycle_start_at: state.cycle_start_at,
            cycle_end_at: state.cycle_end_at,
            credits: CreditsView::of(state),
            pending_change: state.pending_change.as_ref().map(PendingChangeView::of),
        }
    }
}

impl PendingChangeView {
    fn of(pending: &PendingState) -> Self {
        Self {
            r#type: pending.kind,
            effective_at: pending.effective_at,
            subscription_config_id: pending.plan.subscription_config_id,
            name: pending.plan.name.clone(),
            period_amount: pending.plan.period_amount,
            included_credit: pending.plan.included_credit,
        }
    }
}

fn answer(state: &SubscriptionState) -> SubscriptionAnswer {
    SubscriptionAnswer { subscription: SubscriptionView::of(state) }
}

/// The error of a subscription that does not exist, or is of another merchant.
pub fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::SubscriptionNotFound, "subscription")
}

fn bundle_not_offered() -> ApiError {
    let message = "The configuration of this subscription has no such credit bundle.";
    ApiError::new(ErrorCode::CreditBundleNotFound, message)
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = CreateSubscription)]
pub(crate) struct Subscribe {
    /// The customer.
    #[schema(value_type = ConnectionId)]
    connection_id: NameField,
    /// The subscription configuration (the plan).
    #[schema(value_type = SubscriptionConfigId)]
    subscription_config_id: NameField,
}

impl Input for Subscribe {}

/// Subscribe a connection.
#[utoipa::path(
    post,
    path = "/subscriptions",
    operation_id = "createSubscription",
    params(IdempotencyHeader),
    request_body = Subscribe,
    responses(
        (status = 201, description = "The subscription", body = SubscriptionAnswer),
        ApiError, refused::ConnectionNotFound, refused::ConnectionDisabled,
        refused::SubscriptionConfigNotFound, refused::SubscriptionExists,
    ),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Caller, Subscribe>,
) -> Result<HttpResponse, ApiError> {
    let connection_id = asked.what.connection_id.0.parse().map_err(|_| connection_not_found())?;
    let config_id = asked.what.subscription_config_id.0.parse().map_err(|_| config_not_found())?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        match subscriptions::create(conn, merchant_id, connection_id, config_id, now)? {
            SubscribeOutcome::Subscription(state) => Ok(ApiResponse::created(&answer(&state))),
            SubscribeOutcome::ConnectionNotFound => Err(connection_not_found()),
            SubscribeOutcome::ConnectionDisabled => Err(Refusal::ConnectionDisabled.into()),
            SubscribeOutcome::ConfigNotFound => Err(config_not_found()),
            SubscribeOutcome::Exists => Err(ApiError::new(
                ErrorCode::SubscriptionExists,
                "The connection has an active subscription. Change that one, or cancel it.",
            )),
        }
    })
    .await
}

/// The filter of a list of subscriptions, as documents have it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct SubscriptionQuery {
    /// Only subscriptions in this state.
    #[param(inline, nullable = false)]
    status: Option<SubscriptionStatusFilter>,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case", default = "active")]
#[expect(dead_code, reason = "read by its derive only")]
enum SubscriptionStatusFilter {
    Active,
    Cancelled,
    All,
}

/// List subscriptions.
#[utoipa::path(
    get,
    path = "/subscriptions",
    operation_id = "listSubscriptions",
    params(SubscriptionQuery, ConnectionQuery, PageQuery),
    responses((status = 200, description = "A page", body = ListView<SubscriptionView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let status = match query.get("status") {
        None | Some("active") => Some(SubscriptionStatus::Active),
        Some("cancelled") => Some(SubscriptionStatus::Cancelled),
        Some("all") => None,
        Some(_) => {
            issues.push(Issue::at(["status"], "must be one of active, cancelled, all"));
            None
        }
    };
    let connection_id = id_filter("connection_id", &query, &mut issues);
    let page = query.page::<SubscriptionId>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let merchant_id = caller.merchant_id;
    app.store.renew(RenewalScope::Merchant(merchant_id)).await?;
    let filter = SubscriptionFilter { connection_id, status };
    let read = move |conn: &mut _| subscriptions::list(conn, merchant_id, &filter, &page);
    let found = app.store.read(read).await?;
    Ok(respond(found, page.limit, |one| one.subscription_id.to_string(), SubscriptionView::of))
}

/// Read a subscription.
#[utoipa::path(
    get,
    path = "/subscriptions/{id}",
    operation_id = "getSubscription",
    params(("id" = SubscriptionId, Path)),
    responses(
        (status = 200, description = "The subscription", body = SubscriptionAnswer),
        ApiError, refused::SubscriptionNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SubscriptionId = id.parse().map_err(|_| not_found())?;
    app.store.renew(RenewalScope::One(id)).await?;
    let read = move |conn: &mut _| subscriptions::find(conn, caller.merchant_id, id);
    let state = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(answer(&state)))
}

/// Read the active subscription of a connection.
#[utoipa::path(
    get,
    path = "/connections/{id}/subscription",
    operation_id = "getSubscriptionOfConnection",
    params(("id" = ConnectionId, Path)),
    responses(
        (status = 200, description = "The subscription, or null", body = ConnectionAnswer),
        ApiError, refused::ConnectionNotFound,
    ),
)]
pub(crate) async fn get_of_connection(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: ConnectionId = id.parse().map_err(|_| connection_not_found())?;
    let merchant_id = caller.merchant_id;
    app.store.renew(RenewalScope::Connection(id)).await?;
    let found = app
        .store
        .read(move |conn| {
            connections::find(conn, merchant_id, id)?.ok_or_else(connection_not_found)?;
            Ok::<_, ApiError>(subscriptions::find_active(conn, merchant_id, id)?)
        })
        .await?;
    let subscription = found.as_ref().map(OwnSubscriptionView::of);
    Ok(HttpResponse::Ok().json(ConnectionAnswer { subscription }))
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = ChangeSubscription)]
pub(crate) struct ChangePlan {
    /// The subscription configuration (the plan).
    #[schema(value_type = SubscriptionConfigId)]
    subscription_config_id: NameField,
    /// The rule of a change to a more expensive configuration. `carry`, the default: unused cycle credit stays until
    /// the new cycle ends. `expire`: it expires. `prorate`: it stays, and the price of the unused part of the old
    /// cycle is subtracted from the new price.
    #[deserr(default)]
    #[schema(value_type = Option<UpgradeRule>)]
    on_upgrade: Option<EnumField<UpgradeRule>>,
    /// Whether to answer with the effect of the change, without making it.
    #[deserr(default)]
    #[schema(nullable = false, default = false)]
    preview: Option<bool>,
}

impl Input for ChangePlan {}

/// Change the configuration of a subscription.
///
/// A change to a more expensive one takes effect at once, to another when the cycle ends. A change to the
/// present one cancels a pending change. With `preview: true` nothing is changed: the answer says what the change
/// would do.
#[utoipa::path(
    post,
    path = "/subscriptions/{id}/change",
    operation_id = "changeSubscription",
    params(("id" = SubscriptionId, Path), IdempotencyHeader),
    request_body = ChangePlan,
    responses(
        (status = 200, description = "The subscription, or the preview", body = ChangeAnswer),
        ApiError, refused::SubscriptionNotFound, refused::SubscriptionConfigNotFound,
    ),
)]
pub(crate) async fn change(
    app: web::Data<App>,
    asked: ApiRequest<Caller, ChangePlan>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SubscriptionId = id.parse().map_err(|_| not_found())?;
    let config_id = asked.what.subscription_config_id.0.parse().map_err(|_| config_not_found())?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    let on_upgrade = asked.what.on_upgrade.map(|rule| rule.0).unwrap_or_default();
    let (change, is_preview) =
        (PlanChange { config_id, on_upgrade }, asked.what.preview == Some(true));
    app.write(asked.idempotency_key, move |conn| {
        if is_preview {
            let preview = subscriptions::preview_change(conn, merchant_id, id, change, now)?;
            let preview = match preview {
                Ok(preview) => PreviewView::of(&preview),
                Err(refused) => return Err(refusal(refused, config_not_found)),
            };
            return Ok(ApiResponse::ok(&PreviewAnswer { preview }));
        }
        let changed = subscriptions::change(conn, merchant_id, id, change, now)?;
        Ok(ApiResponse::ok(&answer(&*done(changed, config_not_found)?)))
    })
    .await
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = BuyCreditBundle)]
pub(crate) struct BuyBundle {
    /// The credit bundle.
    #[schema(value_type = CreditBundleId)]
    credit_bundle_id: NameField,
}

impl Input for BuyBundle {}

/// Buy a credit bundle for a subscription.
#[utoipa::path(
    post,
    path = "/subscriptions/{id}/bundles",
    operation_id = "buyCreditBundle",
    params(("id" = SubscriptionId, Path), IdempotencyHeader),
    request_body = BuyBundle,
    responses(
        (status = 201, description = "The subscription", body = SubscriptionAnswer),
        ApiError, refused::SubscriptionNotFound, refused::CreditBundleNotFound,
    ),
)]
pub(crate) async fn buy_bundle(
    app: web::Data<App>,
    asked: ApiRequest<Caller, BuyBundle>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SubscriptionId = id.parse().map_err(|_| not_found())?;
    let bundle_id: CreditBundleId =
        asked.what.credit_bundle_id.0.parse().map_err(|_| bundle_not_offered())?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        let bought = subscriptions::buy_bundle(conn, merchant_id, id, bundle_id, now)?;
        Ok(ApiResponse::created(&answer(&*done(bought, bundle_not_offered)?)))
    })
    .await
}

/// The subscription after a change, or the error of the change.
fn done(
    changed: ChangeOutcome,
    not_offered: impl FnOnce() -> ApiError,
) -> Result<Box<SubscriptionState>, ApiError> {
    match changed {
        ChangeOutcome::Subscription(state) => Ok(state),
        refused => Err(refusal(refused, not_offered)),
    }
}

/// The error of a change that was not made.
fn refusal(outcome: ChangeOutcome, not_offered: impl FnOnce() -> ApiError) -> ApiError {
    match outcome {
        ChangeOutcome::NotFound | ChangeOutcome::Subscription(_) => not_found(),
        ChangeOutcome::Ended(_) => ApiError::new(
            ErrorCode::SubscriptionNotFound,
            "This subscription has ended. Subscribe the connection again.",
        ),
        ChangeOutcome::NotOffered => not_offered(),
        ChangeOutcome::OutOfRange => ApiError::invalid(vec![Issue::at(
            ["credit_bundle_id"],
            "would take the credit beyond 922337203.6854775807 USD",
        )]),
    }
}

/// Cancel a subscription: it ends when its cycle ends.
///
/// A subscription that has ended stays as it is.
#[utoipa::path(
    delete,
    path = "/subscriptions/{id}",
    operation_id = "cancelSubscription",
    params(("id" = SubscriptionId, Path)),
    responses(
        (status = 200, description = "Cancelled", body = Success),
        ApiError, refused::SubscriptionNotFound,
    ),
)]
pub(crate) async fn cancel(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SubscriptionId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, now) = (caller.merchant_id, app.clock.now());
    app.write(None, move |conn| match subscriptions::cancel(conn, merchant_id, id, now)? {
        ChangeOutcome::Ended(_) => Ok(ApiResponse::ok(&Success { success: true })),
        changed => done(changed, not_found).map(|_| ApiResponse::ok(&Success { success: true })),
    })
    .await
}
