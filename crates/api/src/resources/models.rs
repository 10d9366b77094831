//! Models: what a key may call on the drop-in routes, as the SDKs of both formats list them.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{Issue, RequestShape, SpendKey, Timestamp};
use tollgate_provider::Dialect;
use tollgate_store::spend_keys;

use crate::app::App;
use crate::forward::Credential;
use crate::http::error::ApiError;
use crate::http::list::Query;

/// A model with what either SDK reads of it.
#[derive(Serialize)]
struct ModelView {
    id: String,
    object: &'static str,
    r#type: &'static str,
    display_name: String,
    owned_by: String,
    /// Seconds since 1970: when its present price took effect, 0 where that is not known.
    created: i64,
    created_at: Timestamp,
}

/// A list as either SDK pages through it.
#[derive(Serialize)]
struct ModelsView {
    object: &'static str,
    data: Vec<ModelView>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// `GET /models`: everything that has a price under an id of its own, all at once unless `limit`
/// says otherwise.
pub(crate) async fn list(app: web::Data<App>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    // Which SDK asks shows in a header that only one of them sends.
    let shape = match http.headers().contains_key("anthropic-version") {
        true => RequestShape::ShapeB,
        false => RequestShape::ShapeA,
    };
    let listed = async {
        let key = spend_key(&http, &app).await?;
        let page = Page::of(&http)?;
        Ok(page.cut(models(&app, key.as_ref())))
    };
    listed
        .await
        .map(|view| HttpResponse::Ok().json(view))
        .map_err(|error: ApiError| error.for_sdk(shape))
}

/// The spend key that asks, if it may be used; none for a merchant's own key.
async fn spend_key(http: &HttpRequest, app: &App) -> Result<Option<SpendKey>, ApiError> {
    let owner = app.owner_of(&Credential::of(http)?.key).await?;
    let CallKey::Spend(_, hash) = owner.key else { return Ok(None) };
    let find = move |conn: &mut _| spend_keys::find_by_hash(conn, &hash);
    let key = app.store.read(find).await?.ok_or_else(ApiError::auth_invalid)?;
    key.rules.may_be_used(app.clock.now())?;
    Ok(Some(key))
}

/// Every model that may be called, in the order in which providers are configured.
fn models(app: &App, key: Option<&SpendKey>) -> Vec<ModelView> {
    let today = app.clock.now().date();
    let mut models: Vec<ModelView> = Vec::new();
    for provider in app.providers.iter().filter(|provider| provider.takes_managed_calls()) {
        let shape = match provider.dialect {
            Dialect::OpenAi => RequestShape::ShapeA,
            Dialect::Anthropic => RequestShape::ShapeB,
            Dialect::None => continue,
        };
        let allowed = key.is_none_or(|key| {
            key.rules.request_shape == shape && key.rules.allows_provider(&provider.name)
        });
        if !allowed {
            continue;
        }
        for (id, since) in app.prices.models(&provider.name, today) {
            let is_new = !models.iter().any(|model| model.id == id);
            if is_new && key.is_none_or(|key| key.rules.allows_model(id)) {
                let created_at = since.map(Timestamp::at_midnight).unwrap_or_default();
                models.push(ModelView {
                    id: id.to_owned(),
                    object: "model",
                    r#type: "model",
                    display_name: id.to_owned(),
                    owned_by: provider.name.clone(),
                    created: created_at.unix_micros() / 1_000_000,
                    created_at,
                });
            }
        }
    }
    models
}

/// Which part of the list is asked for.
struct Page {
    limit: Option<usize>,
    after_id: Option<String>,
    before_id: Option<String>,
}

impl Page {
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

    fn cut(&self, mut models: Vec<ModelView>) -> ModelsView {
        let place = |models: &[ModelView], id: &Option<String>| {
            id.as_ref().and_then(|id| models.iter().position(|model| model.id == *id))
        };
        if let Some(at) = place(&models, &self.after_id) {
            models.drain(..=at);
        }
        let before = place(&models, &self.before_id);
        if let Some(at) = before {
            models.truncate(at);
        }
        let limit = self.limit.unwrap_or(models.len());
        let has_more = models.len() > limit;
        // Backwards, the page is the one that ends where the list was cut.
        match before {
            Some(_) => drop(models.drain(..models.len().saturating_sub(limit))),
            None => models.truncate(limit),
        }
        ModelsView {
            object: "list",
            has_more,
            first_id: models.first().map(|model| model.id.clone()),
            last_id: models.last().map(|model| model.id.clone()),
            data: models,
        }
    }
}
