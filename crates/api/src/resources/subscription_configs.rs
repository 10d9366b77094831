//! Subscription configurations: the plans of a merchant, each with a price per cycle.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::{Deserr, IntoValue, Value, ValuePointerRef};
use serde::Serialize;
use tollgate_domain::{
    BillingInterval, BundleChange, ConfigTerms, CreditBundle, CreditBundleId, Issue, MerchantId,
    MeterId, NewCreditBundle, NewSubscriptionConfig, Rollover, SubscriptionConfig,
    SubscriptionConfigChanges, SubscriptionConfigId, Timestamp,
};
use tollgate_pricing::Amount;
use tollgate_store::subscription_configs::{self, ConfigDetails, ConfigUpdate, UnknownResources};
use utoipa::ToSchema;

use super::Deleted;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{
    BoundedVec, EnumField, Issues, NameField, NonNegativeAmount, PatchField, PositiveAmount, path,
};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, page, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = SubscriptionConfig)]
pub(crate) struct ConfigView {
    /// The id of the subscription configuration.
    subscription_config_id: SubscriptionConfigId,
    /// The merchant that offers it.
    merchant_id: MerchantId,
    /// A name for people.
    name: String,
    /// The price of a cycle.
    period_amount: Amount,
    /// The credit that is granted at the start of each cycle.
    included_credit: Amount,
    /// The length of a billing cycle.
    billing_interval: BillingInterval,
    /// The rule for included credit that remains at the end of a cycle.
    rollover_type: Rollover,
    /// The rule for bought credit that remains at the end of a cycle.
    bundle_rollover_type: Rollover,
    /// The meters whose calls use the credit, without deleted ones. Without any, the calls of every meter use it.
    linked_meters: Vec<LinkedMeterView>,
    /// The bundles of credit that subscribers can buy, oldest first.
    credit_bundles: Vec<BundleView>,
    /// The time of creation.
    created_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
#[schema(as = LinkedMeter)]
struct LinkedMeterView {
    /// The meter.
    meter_id: MeterId,
    /// A name for people.
    name: String,
}

/// A bundle as its configuration shows it.
#[derive(Serialize, ToSchema)]
#[schema(as = BundleOfConfig)]
struct BundleView {
    /// The id of the credit bundle.
    credit_bundle_id: CreditBundleId,
    /// A name for people.
    name: String,
    /// The price.
    cost: Amount,
    /// The credit that it adds.
    credit_amount: Amount,
}

impl ConfigView {
    fn of(full: &ConfigDetails) -> Self {
        let config = &full.config;
        let terms = config.terms();
        let meter = |(meter_id, name): &(MeterId, String)| LinkedMeterView {
            meter_id: *meter_id,
            name: name.clone(),
        };
        Self {
            subscription_config_id: config.subscription_config_id,
            merchant_id: config.merchant_id,
            name: config.name.clone(),
            period_amount: config.period_amount,
            included_credit: terms.included_credit,
            billing_interval: config.billing_interval,
            rollover_type: terms.rollover_type,
            bundle_rollover_type: terms.bundle_rollover_type,
            linked_meters: full.linked_meters.iter().map(meter).collect(),
            credit_bundles: full.credit_bundles.iter().map(BundleView::of).collect(),
            created_at: config.created_at,
        }
    }
}

impl BundleView {
    fn of(bundle: &CreditBundle) -> Self {
        Self {
            credit_bundle_id: bundle.credit_bundle_id,
            name: bundle.name.clone(),
            cost: bundle.cost,
            credit_amount: bundle.credit_amount,
        }
    }
}

/// Ids of meters. There is an issue for each invalid id and for each unknown meter.
#[derive(Default)]
pub(crate) struct ProductIds(Vec<MeterId>);

/// The most bundles of a configuration.
const MAX_BUNDLES: usize = 100;
/// The most meters of a configuration.
const MAX_METERS: usize = 1_000;
const NOT_A_METER: &str = "is not a meter of yours";

impl Deserr<Issues> for ProductIds {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let meters = BoundedVec::<MAX_METERS, ProductId>::deserialize_from_value(value, location)?;
        let (mut ids, mut issues) = (Vec::new(), Vec::new());
        for (place, ProductId(id)) in meters.0.into_iter().enumerate() {
            if ids.contains(&id) {
                issues.push(at_product(place, "must stand only once"));
            }
            ids.push(id);
        }
        if issues.is_empty() { Ok(Self(ids)) } else { Err(Issues(issues)) }
    }
}

/// One id. It is read as a whole, so that its fault does not hide the faults of others.
struct ProductId(MeterId);

impl Deserr<Issues> for ProductId {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let text = NameField::deserialize_from_value(value, location)?;
        let issue = || Issue { path: path(location), message: NOT_A_METER.to_owned() };
        text.0.parse().map(Self).map_err(|_| Issues(vec![issue()]))
    }
}

fn at_product(place: usize, message: &str) -> Issue {
    Issue::at(["product_ids", &place.to_string()], message)
}

fn at_bundle(place: usize, field: &str, message: &str) -> Issue {
    Issue::at(["credit_bundles", &place.to_string(), field], message)
}

fn unknown(unknown: &UnknownResources) -> impl Iterator<Item = Issue> {
    let meters = unknown.meters.iter().map(|&place| at_product(place, NOT_A_METER));
    let message = "is not a bundle of this configuration";
    let bundles =
        unknown.bundles.iter().map(|&place| at_bundle(place, "credit_bundle_id", message));
    meters.chain(bundles)
}

fn invalid(missing: UnknownResources) -> ApiError {
    ApiError::invalid(unknown(&missing).collect())
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = NewCreditBundle)]
pub(crate) struct NewBundleInput {
    /// A name for people.
    name: NameField,
    /// The price.
    cost: NonNegativeAmount,
    /// The credit that it adds.
    credit_amount: PositiveAmount,
}

impl NewBundleInput {
    fn bundle(self) -> NewCreditBundle {
        NewCreditBundle {
            name: self.name.0,
            cost: self.cost.0,
            credit_amount: self.credit_amount.0,
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = CreateSubscriptionConfig)]
pub(crate) struct CreateConfig {
    /// A name for people.
    name: NameField,
    /// The price of a cycle. You collect it, and this service does not.
    period_amount: NonNegativeAmount,
    /// The length of a billing cycle.
    #[schema(value_type = BillingInterval)]
    billing_interval: EnumField<BillingInterval>,
    /// The credit that is granted at the start of each cycle. Default: the value of `period_amount`.
    #[deserr(default)]
    included_credit: Option<NonNegativeAmount>,
    /// The rule for included credit that remains at the end of a cycle: `full` keeps it, and `none` lets it expire.
    /// Default: `none`.
    #[deserr(default)]
    #[schema(value_type = Option<Rollover>)]
    rollover_type: Option<EnumField<Rollover>>,
    /// The rule for bought credit that remains at the end of a cycle. Default: `full`.
    #[deserr(default)]
    #[schema(value_type = Option<Rollover>)]
    bundle_rollover_type: Option<EnumField<Rollover>>,
    /// The ids of the meters whose calls use the credit, each once. Without any, the calls of every meter use it.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<MeterId>>, max_items = 1_000)]
    product_ids: Option<ProductIds>,
    /// The bundles of credit that subscribers can buy. Default: none.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<NewBundleInput>>, max_items = 100)]
    credit_bundles: Option<BoundedVec<MAX_BUNDLES, NewBundleInput>>,
}

impl Input for CreateConfig {}

/// Make a subscription configuration.
#[utoipa::path(
    post,
    path = "/subscription_configs",
    operation_id = "createSubscriptionConfig",
    params(IdempotencyHeader),
    request_body = CreateConfig,
    responses((status = 201, description = "Made", body = ConfigView), ApiError),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Caller, CreateConfig>,
) -> Result<HttpResponse, ApiError> {
    let body = asked.what;
    let bundles = body.credit_bundles.unwrap_or_default().0;
    let new = NewSubscriptionConfig {
        name: body.name.0,
        period_amount: body.period_amount.0,
        billing_interval: body.billing_interval.0,
        terms: ConfigTerms {
            included_credit: body.included_credit.unwrap_or(body.period_amount).0,
            rollover_type: body.rollover_type.map_or(Rollover::None, |word| word.0),
            bundle_rollover_type: body.bundle_rollover_type.map_or(Rollover::Full, |word| word.0),
            meter_ids: body.product_ids.unwrap_or_default().0,
        },
        credit_bundles: bundles.into_iter().map(NewBundleInput::bundle).collect(),
    };
    let (merchant_id, now) = (asked.caller.merchant_id, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        let made = subscription_configs::create(conn, merchant_id, &new, now)?;
        Ok(ApiResponse::created(&ConfigView::of(&made.map_err(invalid)?)))
    })
    .await
}

/// List subscription configurations.
#[utoipa::path(
    get,
    path = "/subscription_configs",
    operation_id = "listSubscriptionConfigs",
    params(PageQuery),
    responses((status = 200, description = "A page", body = ListView<ConfigView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let page = page::<SubscriptionConfigId>(&http)?;
    let read = move |conn: &mut _| subscription_configs::list(conn, caller.merchant_id, &page);
    let found = app.store.read(read).await?;
    Ok(respond(
        found,
        page.limit,
        |one| one.config.subscription_config_id.to_string(),
        ConfigView::of,
    ))
}

/// The error of a configuration that does not exist, or is of another merchant.
pub fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::SubscriptionConfigNotFound, "subscription configuration")
}

/// Read a subscription configuration.
#[utoipa::path(
    get,
    path = "/subscription_configs/{id}",
    operation_id = "getSubscriptionConfig",
    params(("id" = SubscriptionConfigId, Path)),
    responses(
        (status = 200, description = "The configuration", body = ConfigView),
        ApiError, refused::SubscriptionConfigNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SubscriptionConfigId = id.parse().map_err(|_| not_found())?;
    let read = move |conn: &mut _| subscription_configs::find(conn, caller.merchant_id, id);
    let config = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(ConfigView::of(&config)))
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = ChangeCreditBundle)]
pub(crate) struct BundleInput {
    /// The bundle that is changed, at most once in the list. Without an id, a bundle is made.
    #[deserr(default)]
    #[schema(value_type = Option<CreditBundleId>)]
    credit_bundle_id: Option<NameField>,
    /// A name for people. It is required for a new bundle.
    #[deserr(default)]
    name: Option<NameField>,
    /// The price. It is required for a new bundle.
    #[deserr(default)]
    cost: Option<NonNegativeAmount>,
    /// The credit that the bundle adds. It is required for a new bundle.
    #[deserr(default)]
    credit_amount: Option<PositiveAmount>,
    /// With true, the bundle is no longer offered.
    #[deserr(default)]
    is_deleted: Option<bool>,
}

impl BundleInput {
    /// The change that this element means, or its issues. With an id it changes a bundle, or deletes it if
    /// `is_deleted` is true. Without an id it makes a new bundle, and needs all fields.
    fn change(self, location: ValuePointerRef<'_>) -> Result<BundleChange, Vec<Issue>> {
        let issue = |field: &str, message: &str| {
            let mut path = path(location);
            path.push(field.to_owned());
            Issue { path, message: message.to_owned() }
        };
        let is_deleted = self.is_deleted.unwrap_or(false);
        if let Some(id) = self.credit_bundle_id {
            let credit_bundle_id = id.0.parse().map_err(|_| {
                vec![issue("credit_bundle_id", "is not a bundle of this configuration")]
            })?;
            return Ok(match is_deleted {
                true => BundleChange::Delete(credit_bundle_id),
                false => BundleChange::Update {
                    credit_bundle_id,
                    name: self.name.map(|name| name.0),
                    cost: self.cost.map(|cost| cost.0),
                    credit_amount: self.credit_amount.map(|credit| credit.0),
                },
            });
        }
        if is_deleted {
            return Err(vec![issue("credit_bundle_id", "is required to delete a bundle")]);
        }
        match (self.name, self.cost, self.credit_amount) {
            (Some(name), Some(cost), Some(credit_amount)) => {
                Ok(BundleChange::Create(NewBundleInput { name, cost, credit_amount }.bundle()))
            }
            (name, cost, credit_amount) => {
                let missing = [
                    ("name", name.is_none()),
                    ("cost", cost.is_none()),
                    ("credit_amount", credit_amount.is_none()),
                ];
                let missing = missing.into_iter().filter(|(_, is_missing)| *is_missing);
                Err(missing.map(|(field, _)| issue(field, "is required in a new bundle")).collect())
            }
        }
    }
}

/// The changes of bundles. Each invalid element has issues of its own.
#[derive(Default)]
pub(crate) struct BundleChanges(Vec<BundleChange>);

impl Deserr<Issues> for BundleChanges {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let elements =
            BoundedVec::<MAX_BUNDLES, BundleChangeField>::deserialize_from_value(value, location)?;
        let (mut changes, mut issues, mut named) = (Vec::new(), Vec::new(), Vec::new());
        for (place, BundleChangeField(change)) in elements.0.into_iter().enumerate() {
            if let BundleChange::Update { credit_bundle_id: id, .. } | BundleChange::Delete(id) =
                change
            {
                if named.contains(&id) {
                    issues.push(at_bundle(place, "credit_bundle_id", "must stand only once"));
                }
                named.push(id);
            }
            changes.push(change);
        }
        if issues.is_empty() { Ok(Self(changes)) } else { Err(Issues(issues)) }
    }
}

/// The change of one bundle. It is read as a whole, so that its fault does not hide the faults of others.
struct BundleChangeField(BundleChange);

impl Deserr<Issues> for BundleChangeField {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let element = BundleInput::deserialize_from_value(value, location)?;
        element.change(location).map(Self).map_err(Issues)
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = UpdateSubscriptionConfig)]
pub(crate) struct UpdateConfig {
    /// A name for people.
    #[deserr(default)]
    #[schema(value_type = Option<NameField>, nullable = false)]
    name: PatchField<NameField>,
    /// The credit that is granted at the start of each cycle.
    #[deserr(default)]
    #[schema(value_type = Option<NonNegativeAmount>, nullable = false)]
    included_credit: PatchField<NonNegativeAmount>,
    /// The rule for included credit that remains at the end of a cycle.
    #[deserr(default)]
    #[schema(value_type = Option<Rollover>, nullable = false)]
    rollover_type: PatchField<EnumField<Rollover>>,
    /// The rule for bought credit that remains at the end of a cycle.
    #[deserr(default)]
    #[schema(value_type = Option<Rollover>, nullable = false)]
    bundle_rollover_type: PatchField<EnumField<Rollover>>,
    /// The ids of the meters whose calls use the credit, each once. Without any, the calls of every meter use it.
    /// It replaces all links.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<MeterId>>, max_items = 1_000, nullable = false)]
    product_ids: PatchField<ProductIds>,
    /// Changes of bundles. Bundles that are not mentioned stay.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<BundleInput>>, max_items = 100, nullable = false)]
    credit_bundles: PatchField<BundleChanges>,
    /// The price of a cycle. It may only be sent back with its present value.
    // The immutable fields: they may be sent back as they are.
    #[deserr(default)]
    #[schema(value_type = Option<NonNegativeAmount>, nullable = false)]
    period_amount: PatchField<NonNegativeAmount>,
    /// The length of a billing cycle. It may only be sent back with its present value.
    #[deserr(default)]
    #[schema(value_type = Option<BillingInterval>, nullable = false)]
    billing_interval: PatchField<EnumField<BillingInterval>>,
}

impl Input for UpdateConfig {
    const READ_ONLY: &'static [&'static str] =
        &["subscription_config_id", "merchant_id", "linked_meters", "created_at"];
}

impl UpdateConfig {
    /// An issue for each immutable field that would change.
    fn immutable(&self, config: &SubscriptionConfig) -> Vec<Issue> {
        let amount = self.period_amount.0.is_some_and(|field| field.0 != config.period_amount);
        let interval =
            self.billing_interval.0.is_some_and(|word| word.0 != config.billing_interval);
        let changed = [("period_amount", amount), ("billing_interval", interval)];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        changed
            .map(|(name, _)| Issue::at([name], "cannot be changed; make another configuration"))
            .collect()
    }

    fn changes(self) -> SubscriptionConfigChanges {
        SubscriptionConfigChanges {
            name: self.name.0.map(|name| name.0),
            included_credit: self.included_credit.0.map(|credit| credit.0),
            rollover_type: self.rollover_type.0.map(|word| word.0),
            bundle_rollover_type: self.bundle_rollover_type.0.map(|word| word.0),
            meter_ids: self.product_ids.0.map(|ids| ids.0),
            credit_bundles: self.credit_bundles.0.unwrap_or_default().0,
        }
    }
}

fn too_many_bundles(present: &ConfigDetails, changes: &SubscriptionConfigChanges) -> Option<Issue> {
    let count = |is: fn(&BundleChange) -> bool| {
        changes.credit_bundles.iter().filter(|change| is(change)).count()
    };
    let made = count(|change| matches!(change, BundleChange::Create(_)));
    let deleted = count(|change| matches!(change, BundleChange::Delete(_)));
    let all = present.credit_bundles.len().saturating_add(made).saturating_sub(deleted);
    let message = format!("would be {all} bundles; a configuration offers at most {MAX_BUNDLES}");
    (made > 0 && all > MAX_BUNDLES).then(|| Issue::at(["credit_bundles"], message))
}

/// Change a subscription configuration, as a whole or not at all.
#[utoipa::path(
    patch,
    path = "/subscription_configs/{id}",
    operation_id = "updateSubscriptionConfig",
    params(("id" = SubscriptionConfigId, Path)),
    request_body = UpdateConfig,
    responses(
        (status = 200, description = "The configuration as it is now", body = ConfigView),
        ApiError, refused::SubscriptionConfigNotFound,
    ),
)]
pub(crate) async fn update(
    app: web::Data<App>,
    asked: ApiRequest<Caller, UpdateConfig>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SubscriptionConfigId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, now, body) = (asked.caller.merchant_id, app.clock.now(), asked.what);
    app.write(None, move |conn| {
        let present = subscription_configs::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let mut issues = body.immutable(&present.config);
        let changes = body.changes();
        issues.extend(unknown(&subscription_configs::unknown(conn, &present, &changes)?));
        issues.extend(too_many_bundles(&present, &changes));
        if !issues.is_empty() {
            return Err(ApiError::invalid(issues));
        }
        match subscription_configs::update(conn, merchant_id, id, &changes, now)? {
            ConfigUpdate::Config(config) => Ok(ApiResponse::ok(&ConfigView::of(&config))),
            ConfigUpdate::NotFound => Err(not_found()),
            ConfigUpdate::Unknown(missing) => Err(invalid(missing)),
        }
    })
    .await
}

/// Delete a subscription configuration: its subscriptions are kept.
#[utoipa::path(
    delete,
    path = "/subscription_configs/{id}",
    operation_id = "deleteSubscriptionConfig",
    params(("id" = SubscriptionConfigId, Path)),
    responses(
        (status = 200, description = "Deleted", body = Deleted),
        ApiError, refused::SubscriptionConfigNotFound,
    ),
)]
pub(crate) async fn delete(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: SubscriptionConfigId = id.parse().map_err(|_| not_found())?;
    let (merchant_id, now) = (caller.merchant_id, app.clock.now());
    app.write(None, move |conn| match subscription_configs::delete(conn, merchant_id, id, now)? {
        true => Ok(ApiResponse::ok(&Deleted { id: id.to_string(), deleted: true })),
        false => Err(not_found()),
    })
    .await
}
