//! Meters: the markups of a merchant.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::{Deserr, IntoValue, Value, ValuePointerRef};
use serde::Serialize;
use tollgate_domain::{
    FeeModel, Issue, MerchantMeter, MeterChanges, MeterId, NewMeter, Payer, TierPeriod, Timestamp,
};
use tollgate_pricing::{Meter, MeterError, Rate, RateType, Tier, TierErrors, TierUnit, TokenBasis};
use tollgate_store::meters::{self, MeterDeletion, MeterUpdate, MeterUse};
use utoipa::ToSchema;

use super::Deleted;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{EnumField, Issues, NameField, ParsedString, SlugField, TierStart};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, page, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;
use crate::settings::InterfaceShape;

#[derive(Serialize, ToSchema)]
#[schema(as = Meter)]
pub(crate) struct MeterView {
    /// The id of the meter.
    meter_id: MeterId,
    /// A short name of the meter, for forward tokens.
    meter_slug: String,
    /// A name for people.
    name: String,
    /// The kind of the rates: US dollars per unit, or percent of the base cost.
    rate_type: RateType,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = CurrentFields)]
    current: Option<CurrentFields>,
    /// The tiers, in ascending order.
    tiers: Vec<TierView>,
    /// The time of creation.
    created_at: Timestamp,
}

/// Fields that the earlier shape of the interface does not have.
#[derive(Serialize, ToSchema)]
#[schema(as = MeterTerms)]
struct CurrentFields {
    /// The tokens that count.
    token_basis: TokenBasis,
    /// The payer of the base cost.
    base_cost_payer: Payer,
    /// The payer of the service charge.
    service_charge_payer: Payer,
    /// The period after which the counter of the tiers starts again.
    tier_period: TierPeriod,
}

/// A tier as responses show it, in meters and in the breakdown of a fee.
#[derive(Serialize, ToSchema)]
#[schema(as = Tier)]
pub(super) struct TierView {
    /// The first unit of the tier: tokens, characters, minutes or requests, as the meter counts.
    start: u64,
    /// US dollars per unit, or percent of the base cost.
    rate: Rate,
    /// The unit of the meter: its `tier_type`.
    r#type: TierUnit,
}

impl TierView {
    pub(super) fn of(tier: &Tier, unit: TierUnit) -> Self {
        Self { start: tier.start, rate: tier.rate, r#type: unit }
    }
}

impl MeterView {
    fn of(meter: &MerchantMeter, shape: InterfaceShape) -> Self {
        let model = &meter.model;
        let current = CurrentFields {
            token_basis: model.meter.token_basis,
            base_cost_payer: model.base_cost_payer,
            service_charge_payer: model.service_charge_payer,
            tier_period: meter.tier_period,
        };
        Self {
            meter_id: meter.meter_id,
            meter_slug: meter.slug.clone(),
            name: meter.name.clone(),
            rate_type: model.meter.rate_type,
            current: (shape == InterfaceShape::Current).then_some(current),
            tiers: model
                .meter
                .tiers()
                .iter()
                .map(|tier| TierView::of(tier, model.meter.unit))
                .collect(),
            created_at: meter.created_at,
        }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = NewTier)]
pub(crate) struct TierInput {
    /// The first unit of the tier: a whole number, also in a string. It counts tokens, characters, minutes or
    /// requests.
    start: TierStart,
    /// US dollars per unit, or percent of the base cost. It is not negative.
    #[schema(value_type = Rate)]
    rate: ParsedString<Rate>,
    /// The `tier_type` of the meter, as in answers. Any other value is an error.
    #[deserr(rename = "type", default)]
    #[schema(rename = "type", value_type = Option<TierUnit>)]
    unit: Option<EnumField<TierUnit>>,
}

impl TierInput {
    fn to_tier(&self) -> Tier {
        Tier { start: self.start.0, rate: self.rate.0 }
    }
}

/// The tiers of a meter. Their faults are issues of the body like any others.
pub(crate) struct Tiers {
    tiers: Vec<Tier>,
    units: Vec<Option<TierUnit>>,
}

impl Tiers {
    /// An issue for each tier that names another unit than its meter's.
    fn of_another_unit(&self, unit: TierUnit) -> Vec<Issue> {
        let named = self.units.iter().enumerate();
        let others = named.filter(|(_, named)| named.is_some_and(|named| named != unit));
        let hint = "must be the tier_type of the meter";
        others.map(|(place, _)| Issue::at(["tiers", &place.to_string(), "type"], hint)).collect()
    }
}

impl Deserr<Issues> for Tiers {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, Issues> {
        let tiers = Vec::<TierInput>::deserialize_from_value(value, location)?;
        let units = tiers.iter().map(|tier| tier.unit.as_ref().map(|word| word.0)).collect();
        let tiers: Vec<_> = tiers.iter().map(TierInput::to_tier).collect();
        match Meter::check_tiers(&tiers) {
            Ok(()) => Ok(Self { tiers, units }),
            Err(TierErrors(faults)) => Err(Issues(faults.iter().map(tier_issue).collect())),
        }
    }
}

/// A fault of tiers as an issue, at the tier that has it.
fn tier_issue(fault: &MeterError) -> Issue {
    let place = match fault {
        MeterError::FirstStart => Some(0),
        MeterError::NotAscending(place) | MeterError::StartTooLarge(place) => Some(*place),
        _ => None,
    };
    match place {
        Some(place) => Issue::at(["tiers", &place.to_string(), "start"], fault.to_string()),
        None => Issue::at(["tiers"], fault.to_string()),
    }
}

fn bad_tiers(TierErrors(faults): &TierErrors) -> ApiError {
    ApiError::invalid(faults.iter().map(tier_issue).collect())
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct CreateMeter {
    /// A name for people.
    name: NameField,
    /// The kind of the rates: `fixed` is US dollars per unit, and `percentage` is percent of the base cost: `"20"`
    /// is 20%, `"0.2"` is a fifth of a percent.
    #[schema(value_type = RateType)]
    rate_type: EnumField<RateType>,
    /// The unit that the meter counts.
    #[schema(value_type = TierUnit)]
    tier_type: EnumField<TierUnit>,
    /// The tiers. The first starts at 0, and each later one starts above the one before.
    #[schema(value_type = Vec<TierInput>, min_items = 1)]
    tiers: Tiers,
    /// A short name of the meter, for forward tokens, of `a-z`, `0-9`, `-` and `_`. It is unique per merchant.
    /// Default: made from the name.
    #[deserr(default)]
    meter_slug: Option<SlugField>,
    /// The period after which the counter of the tiers starts again. Default: `lifetime`.
    #[deserr(default)]
    #[schema(value_type = Option<TierPeriod>)]
    tier_period: Option<EnumField<TierPeriod>>,
    /// The tokens that count. Default: `input+output`.
    #[deserr(default)]
    #[schema(value_type = Option<TokenBasis>)]
    token_basis: Option<EnumField<TokenBasis>>,
    /// The payer of the base cost. Default: `wallet`.
    #[deserr(default)]
    #[schema(value_type = Option<Payer>)]
    base_cost_payer: Option<EnumField<Payer>>,
    /// The payer of the service charge. Default: `wallet`.
    #[deserr(default)]
    #[schema(value_type = Option<Payer>)]
    service_charge_payer: Option<EnumField<Payer>>,
}

impl Input for CreateMeter {}

/// Make a meter.
#[utoipa::path(
    post,
    path = "/meters",
    operation_id = "createMeter",
    params(IdempotencyHeader),
    request_body = CreateMeter,
    responses(
        (status = 201, description = "Made", body = MeterView),
        ApiError, refused::MeterSlugTaken,
    ),
)]
pub(crate) async fn create(
    app: web::Data<App>,
    asked: ApiRequest<Caller, CreateMeter>,
) -> Result<HttpResponse, ApiError> {
    let body = asked.what;
    let issues = body.tiers.of_another_unit(body.tier_type.0);
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let meter = Meter::new(body.rate_type.0, body.tier_type.0, body.tiers.tiers)
        .map_err(|faults| bad_tiers(&faults))?;
    let mut model = FeeModel::from(meter);
    model.meter.token_basis = body.token_basis.map_or(model.meter.token_basis, |word| word.0);
    model.base_cost_payer = body.base_cost_payer.map_or(model.base_cost_payer, |word| word.0);
    model.service_charge_payer =
        body.service_charge_payer.map_or(model.service_charge_payer, |word| word.0);
    let new = NewMeter {
        name: body.name.0,
        slug: body.meter_slug.map(|slug| slug.0),
        tier_period: body.tier_period.map_or(TierPeriod::default(), |word| word.0),
        model,
    };
    let (merchant_id, shape, now) = (asked.caller.merchant_id, app.settings.shape, app.clock.now());
    app.write(asked.idempotency_key, move |conn| {
        let made = meters::create(conn, merchant_id, &new, now)?.map_err(|_| {
            ApiError::with_issues(
                ErrorCode::MeterSlugTaken,
                "Another meter has this slug.",
                vec![Issue::at(["meter_slug"], "is taken; choose another or leave it out")],
            )
        })?;
        Ok(ApiResponse::created(&MeterView::of(&made, shape)))
    })
    .await
}

/// List meters.
#[utoipa::path(
    get,
    path = "/meters",
    operation_id = "listMeters",
    params(PageQuery),
    responses((status = 200, description = "A page", body = ListView<MeterView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let page = page::<MeterId>(&http)?;
    let read = move |conn: &mut _| meters::list(conn, caller.merchant_id, &page);
    let found = app.store.read(read).await?;
    let shape = app.settings.shape;
    Ok(respond(found, page.limit, |one| one.meter_id.to_string(), |one| MeterView::of(one, shape)))
}

/// The error of a meter that does not exist, or is of another merchant.
pub fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::MeterNotFound, "meter")
}

/// Read a meter.
#[utoipa::path(
    get,
    path = "/meters/{id}",
    operation_id = "getMeter",
    params(("id" = MeterId, Path)),
    responses(
        (status = 200, description = "The meter", body = MeterView),
        ApiError, refused::MeterNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: MeterId = id.parse().map_err(|_| not_found())?;
    let read = move |conn: &mut _| meters::find(conn, caller.merchant_id, id);
    let meter = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(MeterView::of(&meter, app.settings.shape)))
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct UpdateMeter {
    /// A name for people.
    #[deserr(default)]
    name: Option<NameField>,
    /// The tiers, replaced as a whole.
    #[deserr(default)]
    #[schema(value_type = Option<Vec<TierInput>>, min_items = 1)]
    tiers: Option<Tiers>,
    /// The tokens that count.
    #[deserr(default)]
    #[schema(value_type = Option<TokenBasis>)]
    token_basis: Option<EnumField<TokenBasis>>,
    /// The payer of the base cost.
    #[deserr(default)]
    #[schema(value_type = Option<Payer>)]
    base_cost_payer: Option<EnumField<Payer>>,
    /// The payer of the service charge.
    #[deserr(default)]
    #[schema(value_type = Option<Payer>)]
    service_charge_payer: Option<EnumField<Payer>>,
    /// The short name of the meter. It may only be sent back with its present value.
    // The immutable fields: they may be sent back as they are.
    #[deserr(default)]
    meter_slug: Option<SlugField>,
    /// The kind of the rates. It may only be sent back with its present value.
    #[deserr(default)]
    #[schema(value_type = Option<RateType>)]
    rate_type: Option<EnumField<RateType>>,
    /// The unit that the meter counts. It may only be sent back with its present value.
    #[deserr(default)]
    #[schema(value_type = Option<TierUnit>)]
    tier_type: Option<EnumField<TierUnit>>,
    /// The period after which the counter of the tiers starts again. It may only be sent back with its present
    /// value.
    #[deserr(default)]
    #[schema(value_type = Option<TierPeriod>)]
    tier_period: Option<EnumField<TierPeriod>>,
}

impl Input for UpdateMeter {
    const READ_ONLY: &'static [&'static str] = &["meter_id", "created_at"];
}

impl UpdateMeter {
    /// An issue for each immutable field that would change.
    fn immutable(&self, meter: &MerchantMeter) -> Vec<Issue> {
        let changes = [
            ("meter_slug", self.meter_slug.as_ref().is_some_and(|slug| slug.0 != meter.slug)),
            ("rate_type", self.rate_type.is_some_and(|word| word.0 != meter.model.meter.rate_type)),
            ("tier_type", self.tier_type.is_some_and(|word| word.0 != meter.model.meter.unit)),
            ("tier_period", self.tier_period.is_some_and(|word| word.0 != meter.tier_period)),
        ];
        let changed = changes.into_iter().filter(|(_, changed)| *changed);
        let changed =
            changed.map(|(name, _)| Issue::at([name], "cannot be changed; make another meter"));
        let tiers =
            self.tiers.iter().flat_map(|tiers| tiers.of_another_unit(meter.model.meter.unit));
        changed.chain(tiers).collect()
    }
}

/// Change a meter, for calls that are admitted from now on.
#[utoipa::path(
    patch,
    path = "/meters/{id}",
    operation_id = "updateMeter",
    params(("id" = MeterId, Path)),
    request_body = UpdateMeter,
    responses(
        (status = 200, description = "The meter as it is now", body = MeterView),
        ApiError, refused::MeterNotFound,
    ),
)]
pub(crate) async fn update(
    app: web::Data<App>,
    asked: ApiRequest<Caller, UpdateMeter>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: MeterId = id.parse().map_err(|_| not_found())?;
    let body = asked.what;
    let changes = MeterChanges {
        name: body.name.as_ref().map(|name| name.0.clone()),
        tiers: body.tiers.as_ref().map(|tiers| tiers.tiers.clone()),
        token_basis: body.token_basis.map(|word| word.0),
        base_cost_payer: body.base_cost_payer.map(|word| word.0),
        service_charge_payer: body.service_charge_payer.map(|word| word.0),
    };
    let (merchant_id, shape, now) = (asked.caller.merchant_id, app.settings.shape, app.clock.now());
    app.write(None, move |conn| {
        let present = meters::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let immutable = body.immutable(&present);
        if !immutable.is_empty() {
            return Err(ApiError::invalid(immutable));
        }
        match meters::update(conn, merchant_id, id, &changes, now)? {
            MeterUpdate::Meter(meter) => Ok(ApiResponse::ok(&MeterView::of(&meter, shape))),
            MeterUpdate::NotFound => Err(not_found()),
            MeterUpdate::BadTiers(faults) => Err(bad_tiers(&faults)),
        }
    })
    .await
}

/// Delete a meter.
#[utoipa::path(
    delete,
    path = "/meters/{id}",
    operation_id = "deleteMeter",
    params(("id" = MeterId, Path)),
    responses(
        (status = 200, description = "Deleted", body = Deleted),
        ApiError, refused::MeterNotFound, refused::MeterInUse,
    ),
)]
pub(crate) async fn delete(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: MeterId = id.parse().map_err(|_| not_found())?;
    let now = app.clock.now();
    app.write(None, move |conn| match meters::delete(conn, caller.merchant_id, id, now)? {
        MeterDeletion::Deleted => {
            Ok(ApiResponse::ok(&Deleted { id: id.to_string(), deleted: true }))
        }
        MeterDeletion::NotFound => Err(not_found()),
        MeterDeletion::InUse(why) => Err(ApiError::new(
            ErrorCode::MeterInUse,
            match why {
                MeterUse::BySpendKeys => {
                    "Spend keys are priced by this meter. Give them another, or delete them, first."
                }
                MeterUse::ByConfigs => {
                    "It is the last meter linked to a subscription configuration, whose credit no \
                     call could draw on without it. Link another one first, or, where that \
                     configuration was deleted, change its subscribers to another."
                }
            },
        )),
    })
    .await
}
