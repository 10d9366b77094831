//! Models that a key may call on the drop-in routes, as the SDKs of both formats list them.

use std::collections::HashSet;
use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tollgate_domain::{Issue, KeyKind, RequestFormat, RequestShape, SpendKey, Timestamp};
use tollgate_gateway::{Credential, match_model};
use tollgate_provider::Provider;
use tollgate_store::{merchants, spend_keys};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::forward::inbound::request_head;
use crate::http::error::{ApiError, ErrorCode, sdk_of};
use crate::http::list::Query;
use crate::http::parameters::refuse_unknown_parameters_but;
use crate::openapi::marks::{EitherShapeErrors, refused};
use crate::openapi::types::*;

/// A model with the fields that either SDK reads.
#[derive(Serialize, ToSchema)]
#[schema(as = Model)]
pub(crate) struct ModelView {
    /// The id for calls.
    id: String,
    /// Always `model`.
    object: &'static str,
    /// Always `model`.
    r#type: &'static str,
    /// A name for people.
    display_name: String,
    /// The provider.
    owned_by: String,
    /// The time when the present price took effect, in seconds since 1970. 0 if that is not known.
    created: i64,
    /// The time when the present price took effect. 1970 if that is not known.
    created_at: Timestamp,
}

/// A list with the page fields of either SDK.
#[derive(Serialize, ToSchema)]
#[schema(as = Models)]
pub(crate) struct ModelsView {
    /// Always `list`.
    object: &'static str,
    /// The elements of the page.
    data: Vec<ModelView>,
    /// Whether there are more.
    has_more: bool,
    /// The id of the first element.
    #[schema(required)]
    first_id: Option<String>,
    /// The id of the last element.
    #[schema(required)]
    last_id: Option<String>,
}

/// The requested part of the list, as documents have it; [`Page`] reads it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct ModelQuery {
    /// The most models of the answer. Default: all.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
    /// An id of the list. The answer has the models after it.
    after_id: Option<String>,
    /// An id of the list. The answer has the models before it.
    before_id: Option<String>,
}

/// List the models that may be called on the drop-in routes.
#[utoipa::path(
    method(get, head),
    path = "/models",
    operation_id = "listModels",
    params(ModelQuery),
    responses(
        (status = 200, description = "A page, by default of all", body = ModelsView),
        ApiError, refused::AuthHeaderMissing, refused::AuthInvalid,
        refused::ForwardTokenJsonInvalid, refused::SpendKeyPaused, refused::SpendKeyExpired,
        refused::RateLimited, EitherShapeErrors,
    ),
    security(("credential" = [])),
)]
pub(crate) async fn list(app: web::Data<App>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let listed = async {
        let key = spend_key(&http, &app).await?;
        refuse_unknown_parameters_but(&http, &["key"])?;
        let page = ModelPage::of(&http)?;
        Ok(HttpResponse::Ok().json(page.cut(models(&app, key.as_ref()))?))
    };
    listed.await.map_err(|error: ApiError| error.for_sdk(sdk_of(&http).unwrap_or_default()))
}

/// Read a model.
#[utoipa::path(
    method(get, head),
    path = "/models/{id:.+}",
    operation_id = "getModel",
    params(("id" = String, Path, description = "It may have slashes")),
    responses(
        (status = 200, description = "The model", body = ModelView),
        ApiError, refused::AuthHeaderMissing, refused::AuthInvalid,
        refused::ForwardTokenJsonInvalid, refused::SpendKeyPaused, refused::SpendKeyExpired,
        refused::RateLimited, EitherShapeErrors, refused::ModelNotFound,
    ),
    security(("credential" = [])),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    http: HttpRequest,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let found = async {
        let key = spend_key(&http, &app).await?;
        let model = model(&app, key.as_ref(), &id);
        let model = model.ok_or_else(|| ApiError::not_found(ErrorCode::ModelNotFound, "model"))?;
        Ok(HttpResponse::Ok().json(model))
    };
    found.await.map_err(|error: ApiError| error.for_sdk(sdk_of(&http).unwrap_or_default()))
}

/// The spend key of the request, if it may be used; `None` for a merchant's own key. Both kinds are looked
/// up, because no other step would notice here that the key was deleted.
async fn spend_key(http: &HttpRequest, app: &App) -> Result<Option<SpendKey>, ApiError> {
    let key = Credential::of_sdk(&request_head(http))?.key;
    let hash = key.hash();
    match key.kind() {
        KeyKind::Secret => {
            let find = move |conn: &mut _| merchants::find_secret_key(conn, &hash);
            let key = app.store.read(find).await?.ok_or_else(ApiError::auth_invalid)?;
            app.rate_limits.take_call(key.secret_key_id, app.clock.now())?;
            Ok(None)
        }
        KeyKind::Spend => {
            let find = move |conn: &mut _| spend_keys::find_by_hash(conn, &hash);
            let key = app.store.read(find).await?.ok_or_else(ApiError::auth_invalid)?;
            key.rules.check_usable(app.clock.now())?;
            Ok(Some(key))
        }
    }
}

/// The providers that may be called with the key, in the order in which they are configured.
fn providers<'a>(
    app: &'a App,
    key: Option<&'a SpendKey>,
) -> impl Iterator<Item = &'a Arc<Provider>> {
    app.gateway.providers.iter().filter(move |provider| {
        let is_allowed = key.is_none_or(|key| {
            let rules = &key.rules;
            let is_spoken = match rules.request_shape {
                RequestShape::Any => true,
                RequestShape::ShapeA => provider.supports_format(RequestFormat::ShapeA),
                RequestShape::ShapeB => provider.supports_format(RequestFormat::ShapeB),
            };
            is_spoken && rules.allows_provider(&provider.name)
        });
        is_allowed && provider.takes_managed_calls()
    })
}

/// A model that may be called by this id. The id is listed, has its provider's name, or matches a pattern.
fn model(app: &App, key: Option<&SpendKey>, id: &str) -> Option<ModelView> {
    let tariff = app.gateway.tariff(app.clock.now());
    let found = providers(app, key).flat_map(|provider| {
        let ranks = match_model(provider, id, &tariff).into_iter();
        let allowed = ranks.filter(|(_, model, listed)| {
            listed.is_some() && key.is_none_or(|key| key.rules.allows_model(model))
        });
        allowed.map(move |(rank, _, listed)| (rank, provider, listed))
    });
    let (_, provider, listed) = found.min_by_key(|(rank, ..)| *rank)?;
    let since = listed?.row.effective_from.map(Timestamp::at_midnight);
    Some(ModelView::of(id, provider, since.unwrap_or_default()))
}

impl ModelView {
    /// The view of a model whose present price took effect at `created_at`.
    fn of(id: &str, provider: &Provider, created_at: Timestamp) -> Self {
        Self {
            id: id.to_owned(),
            object: "model",
            r#type: "model",
            display_name: id.to_owned(),
            owned_by: provider.name.clone(),
            created: created_at.unix_micros() / 1_000_000,
            created_at,
        }
    }
}

/// Every model that may be called, in the order in which providers are configured.
fn models(app: &App, key: Option<&SpendKey>) -> Vec<ModelView> {
    let today = app.clock.now().date();
    let prices = app.gateway.prices();
    let (mut models, mut seen): (Vec<ModelView>, HashSet<&str>) = Default::default();
    for provider in providers(app, key) {
        for (id, since) in prices.models(&provider.name, today) {
            if key.is_none_or(|key| key.rules.allows_model(id)) && seen.insert(id) {
                let created_at = since.map(Timestamp::at_midnight).unwrap_or_default();
                models.push(ModelView::of(id, provider, created_at));
            }
        }
    }
    models
}

/// The requested part of the list.
struct ModelPage {
    limit: Option<usize>,
    after_id: Option<String>,
    before_id: Option<String>,
}

impl ModelPage {
    fn of(http: &HttpRequest) -> Result<Self, ApiError> {
        let query = Query::of(http);
        let limit = query.get("limit").map(|text| match text.parse() {
            Ok(limit @ 1..=1_000) => Ok(limit),
            _ => Err(ApiError::invalid(vec![Issue::at(
                ["limit"],
                "must be an integer from 1 to 1000",
            )])),
        });
        Ok(Self {
            limit: limit.transpose()?,
            after_id: query.get("after_id").map(str::to_owned),
            before_id: query.get("before_id").map(str::to_owned),
        })
    }

    fn cut(&self, mut models: Vec<ModelView>) -> Result<ModelsView, ApiError> {
        let place = |models: &[ModelView], name: &str, id: &Option<String>| {
            let Some(id) = id else { return Ok(None) };
            let found = models.iter().position(|model| model.id == *id);
            let unknown =
                || ApiError::invalid(vec![Issue::at([name], "is not a model of this list")]);
            found.map(Some).ok_or_else(unknown)
        };
        if let Some(at) = place(&models, "after_id", &self.after_id)? {
            models.drain(..=at);
        }
        let before = place(&models, "before_id", &self.before_id)?;
        if let Some(at) = before {
            models.truncate(at);
        }
        let limit = self.limit.unwrap_or(models.len());
        let has_more = models.len() > limit;
        // With `before_id` the page is the end of the part before it.
        match before {
            Some(_) => drop(models.drain(..models.len().saturating_sub(limit))),
            None => models.truncate(limit),
        }
        Ok(ModelsView {
            object: "list",
            has_more,
            first_id: models.first().map(|model| model.id.clone()),
            last_id: models.last().map(|model| model.id.clone()),
            data: models,
        })
    }
}
