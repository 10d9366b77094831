//! Spend keys: restricted keys that forward within limits.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::{Deserr, IntoValue, Value, ValuePointerRef};
use serde::Serialize;
use tollgate_domain::{
    AnswerReport, BudgetId, CycleCalendar, Enforcement, Key, MerchantId, MeterId, NewSpendKey,
    RateLimit, RequestShape, SpendKey, SpendKeyChanges, SpendKeyId, SpendKeyStatus, SpendRules,
    Timestamp, WalletId,
};
use tollgate_pricing::Amount;
use tollgate_store::Conn;
use tollgate_store::spend_keys::{self, MissingResource, SpendKeyUpdate};
use utoipa::ToSchema;

use super::budgets::not_found as budget_not_found;
use super::limits::{
    RateLimitInput, RequestLimitInput, RequestLimitView, RunLimitInput, RunLimitView,
    SpendLimitInput, SpendLimitView, with_zone,
};
use super::meters::not_found as meter_not_found;
use super::{EmptyBody, Success};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{
    EnumField, Issues, NameField, NullablePatch, ParsedString, PatchField, refuse,
};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, page, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = SpendKey)]
pub(crate) struct SpendKeyView {
    /// The id of the spend key.
    spend_key_id: SpendKeyId,
    /// The first characters of the key.
    key_preview: String,
    /// The key itself. It is only in the answers to creation and rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    /// A name for people.
    name: String,
    /// Whether the key may make calls.
    status: SpendKeyStatus,
    /// The formats that the key may call.
    request_shape: RequestShape,
    /// The wallet that pays.
    wallet_id: WalletId,
    /// The meter that prices the calls of the key. Null: none.
    #[schema(required)]
    meter_id: Option<MeterId>,
    /// The budget that the calls of the key count against. Null: none.
    #[schema(required)]
    budget_id: Option<BudgetId>,
    /// The spend in the present cycle of `spend_limit`. Without that limit, the spend of the day (UTC).
    current_spend: Amount,
    /// The spend of all time.
    total_spend: Amount,
    /// The calls in the present cycle of `request_limit`. Without that limit, the calls of the day (UTC).
    current_requests: u64,
    /// The calls of all time.
    total_requests: u64,
    /// Ids of models, or prefixes with a `*` at the end. Null allows all, and `[]` allows none.
    #[schema(required)]
    allowed_models: Option<Vec<String>>,
    /// Names of providers. Null allows all.
    #[schema(required)]
    allowed_providers: Option<Vec<String>>,
    /// The limit of money per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spend_limit: Option<SpendLimitView>,
    /// The limit of calls per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    request_limit: Option<RequestLimitView>,
    /// The limit of calls per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    rate_limit: Option<RateLimit>,
    /// The limit of money of each run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    run_limit: Option<RunLimitView>,
    /// The way in which limits on money are kept.
    enforcement: Enforcement,
    /// The time from which the key is refused. Null: never.
    #[schema(required)]
    expires_at: Option<Timestamp>,
    /// The report in the answers to its calls. Null: none.
    #[schema(required)]
    report: Option<AnswerReport>,
    /// The time when a call was last admitted. Null: never.
    #[schema(required)]
    last_used_at: Option<Timestamp>,
    /// The time of creation.
    created_at: Timestamp,
}

impl SpendKeyView {
    /// The view of a key at an instant.
    pub(crate) fn of(key: &SpendKey, now: Timestamp) -> Self {
        let (rules, counters) = (&key.rules, key.counters_at(now));
        Self {
            spend_key_id: key.spend_key_id,
            key_preview: key.key_preview.clone(),
            key: None,
            name: key.name.clone(),
            status: rules.status,
            request_shape: rules.request_shape,
            wallet_id: key.wallet_id,
            meter_id: key.meter_id,
            budget_id: key.budget_id,
            current_spend: *counters.spent.get(rules.spend_cycle()),
            total_spend: counters.spent.total,
            current_requests: *counters.requests.get(rules.request_cycle()),
            total_requests: counters.requests.total,
            allowed_models: rules.allowed_models.clone(),
            allowed_providers: rules.allowed_providers.clone(),
            spend_limit: rules
                .spend_limit
                .map(|limit| SpendLimitView::of(limit, &rules.spend_calendar)),
            request_limit: rules
                .request_limit
                .map(|limit| RequestLimitView::of(limit, &rules.request_calendar)),
            rate_limit: rules.rate_limit,
            run_limit: rules.run_limit.map(|amount| RunLimitView { amount }),
            enforcement: rules.enforcement,
            expires_at: rules.expires_at,
            report: rules.report,
            last_used_at: counters.last_used_at,
            created_at: key.created_at,
        }
    }

    /// The view with the key itself, which is shown only once.
    fn revealing(key: &SpendKey, revealed: &Key, now: Timestamp) -> Self {
        Self { key: Some(revealed.reveal().to_owned()), ..Self::of(key, now) }
    }
}

/// A list of at least `AT_LEAST` names or patterns. Each admission reads it, so it is short.
pub(crate) struct Allowlist<const AT_LEAST: usize>(Vec<String>);

const MOST_ALLOWED: usize = 1_000;

impl<const AT_LEAST: usize> Deserr<Issues> for Allowlist<AT_LEAST> {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let names = Vec::<NameField>::deserialize_from_value(value, location)?;
        match (AT_LEAST..=MOST_ALLOWED).contains(&names.len()) {
            true => Ok(Self(names.into_iter().map(|name| name.0).collect())),
            false if names.is_empty() => {
                Err(refuse("must have at least 1 element; null allows all", location))
            }
            false => Err(refuse(format!("must have at most {MOST_ALLOWED} elements"), location)),
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct CreateSpendKey {
    /// A name for people.
    name: NameField,
    /// The wallet that pays: a wallet of this merchant or of its connections. It cannot be changed later. Default:
    /// the merchant's own wallet.
    #[deserr(default)]
    #[schema(value_type = Option<WalletId>)]
    wallet_id: Option<NameField>,
    /// The meter of this merchant that prices the calls of the key. Default: none.
    #[deserr(default)]
    #[schema(value_type = Option<MeterId>)]
    meter_id: Option<NameField>,
    /// The budget of this merchant that the calls of the key count against, with all that include it. Default: none.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetId>)]
    budget_id: Option<NameField>,
    /// Whether the key may make calls. Default: `active`.
    #[deserr(default)]
    #[schema(value_type = Option<SpendKeyStatus>)]
    status: Option<EnumField<SpendKeyStatus>>,
    /// The formats that the key may call: `any` permits every format, `shape_a` only that of
    /// `/v1/chat/completions`, `/responses` and `/embeddings`, and `shape_b` only that of `/v1/messages`. Default:
    /// `any`.
    #[deserr(default)]
    #[schema(value_type = Option<RequestShape>)]
    request_shape: Option<EnumField<RequestShape>>,
    /// Ids of models, or prefixes with a `*` at the end. Null allows all, and `[]` allows none. Default: null.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<NameField>>, max_items = 1_000)]
    allowed_models: Option<Allowlist<0>>,
    /// Names of providers. Null allows all. Default: null.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<NameField>>, min_items = 1, max_items = 1_000)]
    allowed_providers: Option<Allowlist<1>>,
    /// The limit of money per cycle. Default: none.
    #[deserr(default)]
    spend_limit: Option<SpendLimitInput>,
    /// The limit of calls per cycle. Default: none.
    #[deserr(default)]
    request_limit: Option<RequestLimitInput>,
    /// The limit of calls per minute. Default: none.
    #[deserr(default)]
    rate_limit: Option<RateLimitInput>,
    /// The limit of money of each run: of the calls with one `x-service-run`, and of those of a day (UTC) without it.
    /// Default: none.
    #[deserr(default)]
    run_limit: Option<RunLimitInput>,
    /// The way in which limits on money are kept. Default: `bounded`.
    #[deserr(default)]
    #[schema(value_type = Option<Enforcement>)]
    enforcement: Option<EnumField<Enforcement>>,
    /// The time (RFC 3339, of the years 0000 to 9999 in UTC) from which the key is refused. Default: never.
    #[deserr(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<ParsedString<Timestamp>>,
    /// The report in the answers to its calls: `cost`, what each call cost. Default: none.
    #[deserr(default)]
    #[schema(value_type = Option<AnswerReport>)]
    report: Option<EnumField<AnswerReport>>,
}

impl Input for CreateSpendKey {}

fn wallet_not_found() -> ApiError {
    ApiError::not_found(ErrorCode::WalletNotFound, "wallet")
}

impl CreateSpendKey {
    fn new_key(self) -> Result<NewSpendKey, ApiError> {
        let wallet_id = self.wallet_id.map(|id| id.0.parse().map_err(|_| wallet_not_found()));
        let meter_id = self.meter_id.map(|id| id.0.parse().map_err(|_| meter_not_found()));
        let budget_id = self.budget_id.map(|id| id.0.parse().map_err(|_| budget_not_found()));
        let (spend_limit, spend_zone) = with_zone(self.spend_limit.map(SpendLimitInput::limit));
        let (request_limit, request_zone) =
            with_zone(self.request_limit.map(RequestLimitInput::limit));
        Ok(NewSpendKey {
            name: self.name.0,
            wallet_id: wallet_id.transpose()?,
            meter_id: meter_id.transpose()?,
            budget_id: budget_id.transpose()?,
            rules: SpendRules {
                status: self.status.map(|word| word.0).unwrap_or_default(),
                request_shape: self.request_shape.map(|word| word.0).unwrap_or_default(),
                allowed_models: self.allowed_models.map(|allowed| allowed.0),
                allowed_providers: self.allowed_providers.map(|allowed| allowed.0),
                spend_limit,
                request_limit,
                rate_limit: self.rate_limit.map(RateLimitInput::limit),
                run_limit: self.run_limit.map(RunLimitInput::limit),
                enforcement: self.enforcement.map(|word| word.0).unwrap_or_default(),
                expires_at: self.expires_at.map(|at| at.0),
                report: self.report.map(|word| word.0),
                spend_calendar: CycleCalendar::of(spend_zone),
                request_calendar: CycleCalendar::of(request_zone),
            },
        })
    }
}

/// Reads the new spend key that a JSON object describes, in the fields of `POST /spend_keys`.
pub fn new_key(described: serde_json::Value) -> Result<NewSpendKey, ApiError> {
    let described: CreateSpendKey =
        deserr::deserialize(described).map_err(|Issues(issues)| ApiError::invalid(issues))?;
    described.new_key()
}

/// Makes a spend key. It must be called in a write transaction.
pub fn make(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: &NewSpendKey,
    now: Timestamp,
) -> Result<(SpendKey, Key), ApiError> {
    spend_keys::create(conn, merchant_id, new, now)?.map_err(|missing| match missing {
        MissingResource::Wallet => wallet_not_found(),
        MissingResource::Meter => meter_not_found(),
        MissingResource::Budget => budget_not_found(),
    })
}

/// Make a spend key.
#[utoipa::path(
    post,
    path = "/spend_keys",
    operation_id = "createSpendKey",
    params(IdempotencyHeader),
    request_body = CreateSpendKey,
    responses(
        (status = 201, description = "Made; the key is shown this once", body = SpendKeyView),
        ApiError, refused::WalletNotFound, refused::MeterNotFound, refused::BudgetNotFound,
    ),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Caller, CreateSpendKey>,
) -> Result<HttpResponse, ApiError> {
    let new = asked.what.new_key()?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        let (made, key) = make(conn, merchant_id, &new, now)?;
        Ok(ApiResponse::created(&SpendKeyView::revealing(&made, &key, now)))
    })
    .await
}

/// List spend keys.
#[utoipa::path(
    get,
    path = "/spend_keys",
    operation_id = "listSpendKeys",
    params(PageQuery),
    responses((status = 200, description = "A page", body = ListView<SpendKeyView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let page = page::<SpendKeyId>(&http)?;
    let read = move |conn: &mut _| spend_keys::list(conn, caller.merchant_id, &page);
    let found = app.store.read(read).await?;
    let now = app.clock.now();
    Ok(respond(
        found,
        page.limit,
        |one| one.spend_key_id.to_string(),
        |one| SpendKeyView::of(one, now),
    ))
}

/// The error of a spend key that does not exist, or is of another merchant.
pub fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::SpendKeyNotFound, "spend key")
}

/// Read a spend key.
#[utoipa::path(
    get,
    path = "/spend_keys/{id}",
    operation_id = "getSpendKey",
    params(("id" = SpendKeyId, Path)),
    responses(
        (status = 200, description = "The spend key", body = SpendKeyView),
        ApiError, refused::SpendKeyNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SpendKeyId = id.parse().map_err(|_| not_found())?;
    let read = move |conn: &mut _| spend_keys::find(conn, caller.merchant_id, id);
    let key = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(SpendKeyView::of(&key, app.clock.now())))
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct UpdateSpendKey {
    /// A name for people.
    #[deserr(default)]
    #[schema(value_type = Option<NameField>, nullable = false)]
    name: PatchField<NameField>,
    /// Whether the key may make calls.
    #[deserr(default)]
    #[schema(value_type = Option<SpendKeyStatus>, nullable = false)]
    status: PatchField<EnumField<SpendKeyStatus>>,
    /// The formats that the key may call.
    #[deserr(default)]
    #[schema(value_type = Option<RequestShape>, nullable = false)]
    request_shape: PatchField<EnumField<RequestShape>>,
    /// The way in which limits on money are kept.
    #[deserr(default)]
    #[schema(value_type = Option<Enforcement>, nullable = false)]
    enforcement: PatchField<EnumField<Enforcement>>,
    /// The meter of this merchant that prices the calls of the key. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<MeterId>)]
    meter_id: NullablePatch<NameField>,
    /// The budget of this merchant that the calls of the key count against from the next one on. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<BudgetId>)]
    budget_id: NullablePatch<NameField>,
    /// Ids of models, or prefixes with a `*` at the end. Null allows all, and `[]` allows none.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<NameField>>, max_items = 1_000)]
    allowed_models: NullablePatch<Allowlist<0>>,
    /// Names of providers. Null allows all.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<NameField>>, min_items = 1, max_items = 1_000)]
    allowed_providers: NullablePatch<Allowlist<1>>,
    /// The limit of money per cycle, replaced as a whole. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<SpendLimitInput>)]
    spend_limit: NullablePatch<SpendLimitInput>,
    /// The limit of calls per cycle, replaced as a whole. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<RequestLimitInput>)]
    request_limit: NullablePatch<RequestLimitInput>,
    /// The limit of calls per minute, replaced as a whole. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<RateLimitInput>)]
    rate_limit: NullablePatch<RateLimitInput>,
    /// The limit of money of each run, replaced as a whole. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<RunLimitInput>)]
    run_limit: NullablePatch<RunLimitInput>,
    /// The time from which the key is refused. Null: never.
    #[deserr(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: NullablePatch<ParsedString<Timestamp>>,
    /// The report in the answers to its calls: `cost`, what each call cost. Null: none.
    #[deserr(default)]
    #[schema(value_type = Option<AnswerReport>)]
    report: NullablePatch<EnumField<AnswerReport>>,
}

impl Input for UpdateSpendKey {
    const READ_ONLY: &'static [&'static str] = &[
        "spend_key_id",
        "key_preview",
        "key",
        "wallet_id",
        "current_spend",
        "total_spend",
        "current_requests",
        "total_requests",
        "last_used_at",
        "created_at",
    ];
}

impl UpdateSpendKey {
    fn changes(self) -> Result<SpendKeyChanges, ApiError> {
        let meter_id = match self.meter_id.into_option(|id| id.0) {
            Some(Some(id)) => Some(Some(id.parse().map_err(|_| meter_not_found())?)),
            Some(None) => Some(None),
            None => None,
        };
        let budget_id = match self.budget_id.into_option(|id| id.0) {
            Some(Some(id)) => Some(Some(id.parse().map_err(|_| budget_not_found())?)),
            Some(None) => Some(None),
            None => None,
        };
        let spend = self.spend_limit.into_option(SpendLimitInput::limit).map(with_zone);
        let (spend_limit, spend_zone) = spend.unzip();
        let requests = self.request_limit.into_option(RequestLimitInput::limit).map(with_zone);
        let (request_limit, request_zone) = requests.unzip();
        Ok(SpendKeyChanges {
            name: self.name.0.map(|name| name.0),
            meter_id,
            budget_id,
            status: self.status.0.map(|word| word.0),
            request_shape: self.request_shape.0.map(|word| word.0),
            allowed_models: self.allowed_models.into_option(|allowed| allowed.0),
            allowed_providers: self.allowed_providers.into_option(|allowed| allowed.0),
            spend_limit,
            spend_zone,
            request_limit,
            request_zone,
            rate_limit: self.rate_limit.into_option(RateLimitInput::limit),
            run_limit: self.run_limit.into_option(RunLimitInput::limit),
            enforcement: self.enforcement.0.map(|word| word.0),
            expires_at: self.expires_at.into_option(|at| at.0),
            report: self.report.into_option(|word| word.0),
        })
    }
}

/// Change a spend key.
///
/// An absent field is kept, a null field is cleared.
#[utoipa::path(
    put,
    path = "/spend_keys/{id}",
    operation_id = "updateSpendKey",
    params(("id" = SpendKeyId, Path)),
    request_body = UpdateSpendKey,
    responses(
        (status = 200, description = "The spend key as it is now", body = SpendKeyView),
        ApiError, refused::SpendKeyNotFound, refused::MeterNotFound, refused::BudgetNotFound,
    ),
)]
pub(crate) async fn update(
    app: web::Data<App>,
    asked: ApiRequest<Caller, UpdateSpendKey>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SpendKeyId = id.parse().map_err(|_| not_found())?;
    let changes = asked.what.changes()?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write(None, move |conn| match spend_keys::update(conn, merchant_id, id, changes, now)? {
        SpendKeyUpdate::SpendKey(key) => Ok(ApiResponse::ok(&SpendKeyView::of(&key, now))),
        SpendKeyUpdate::NotFound => Err(not_found()),
        SpendKeyUpdate::MeterNotFound => Err(meter_not_found()),
        SpendKeyUpdate::BudgetNotFound => Err(budget_not_found()),
    })
    .await
}

/// Replace the key.
///
/// The new key has the same rules and counters. The old key is refused from now on.
#[utoipa::path(
    post,
    path = "/spend_keys/{id}/rotate",
    operation_id = "rotateSpendKey",
    params(("id" = SpendKeyId, Path), IdempotencyHeader),
    responses(
        (status = 200, description = "The spend key; its new key is shown this once", body = SpendKeyView),
        ApiError, refused::SpendKeyNotFound,
    ),
)]
pub(crate) async fn rotate(
    app: web::Data<App>,
    asked: ApiRequest<Caller, EmptyBody>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SpendKeyId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        let (rotated, key) = spend_keys::rotate(conn, merchant_id, id)?.ok_or_else(not_found)?;
        Ok(ApiResponse::ok(&SpendKeyView::revealing(&rotated, &key, now)))
    })
    .await
}

/// Delete a spend key.
#[utoipa::path(
    delete,
    path = "/spend_keys/{id}",
    operation_id = "deleteSpendKey",
    params(("id" = SpendKeyId, Path)),
    responses(
        (status = 200, description = "Deleted", body = Success),
        ApiError, refused::SpendKeyNotFound,
    ),
)]
pub(crate) async fn delete(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SpendKeyId = id.parse().map_err(|_| not_found())?;
    let now = app.clock.now();
    app.write(None, move |conn| match spend_keys::delete(conn, caller.merchant_id, id, now)? {
        true => Ok(ApiResponse::ok(&Success { success: true })),
        false => Err(not_found()),
    })
    .await
}
