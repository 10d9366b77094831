//! The routes of the providers' own SDKs. They are the forward path with another front: the path is
//! the provider's, and the provider is found by the model.

use std::cmp::Reverse;
use std::sync::Arc;

use actix_web::HttpRequest;
use tollgate_domain::admission::CallKey;
use tollgate_domain::{Issue, MissingPrice, RequestShape, SpendRules};
use tollgate_pricing::Listed;
use tollgate_provider::{CallBody, Endpoint, Provider, ProviderKey};
use tollgate_store::spend_keys;

use super::Inbound;
use super::outbound::{Outbound, call_body, metadata};
use crate::app::{App, KeyOwner};
use crate::http::error::{ApiError, ErrorCode};

/// A route of ours with the path of a provider.
pub(super) struct Route {
    /// Below the provider's base URL, such as `/chat/completions`.
    path: String,
    /// What of the query is the provider's.
    query: Option<String>,
    metadata: Option<String>,
}

impl Route {
    pub(super) fn of(http: &HttpRequest) -> Self {
        let path = http.path();
        let (mut metadata, mut query) = (None, Vec::new());
        for pair in http.query_string().split('&').filter(|pair| !pair.is_empty()) {
            let parsed = url::form_urlencoded::parse(pair.as_bytes()).next();
            match parsed.as_ref().map(|(name, value)| (name.as_ref(), value)) {
                Some(("metadata", value)) => metadata = Some(value.clone().into_owned()),
                // A key of ours.
                Some(("key", _)) => {}
                _ => query.push(pair),
            }
        }
        Self {
            path: path.strip_prefix("/v1").unwrap_or(path).to_owned(),
            query: (!query.is_empty()).then(|| query.join("&")),
            metadata,
        }
    }

    /// The format that is spoken here.
    pub(super) fn shape(&self) -> RequestShape {
        match self.path.starts_with("/messages") {
            true => RequestShape::ShapeB,
            false => RequestShape::ShapeA,
        }
    }

    /// What is sent, and to whom.
    pub(super) async fn outbound(
        &self,
        http: &HttpRequest,
        inbound: &Inbound,
        app: &App,
    ) -> Result<Outbound, ApiError> {
        let (body, key) = (inbound.body.clone(), &inbound.credential.provider_key);
        let metadata = metadata(http, self.metadata.as_deref())?;
        let managed = *key == ProviderKey::Managed;
        let asked = CallBody::model_of(&body);
        let named = match &asked {
            Some(model) => self.served(http, model, managed, app),
            None => self.any(http, managed, app),
        };
        let served = match named.as_slice() {
            [] => {
                if let Some(model) = &asked {
                    let missing = MissingPrice::of_model("unknown", model);
                    app.store.tell_missing_price(inbound.owner.merchant_id, missing);
                }
                return Err(self.nobody(asked.as_deref()));
            }
            [only] => only,
            [best, ..] => {
                let rules = rules_of(inbound.owner, app).await?;
                named.iter().find(|served| served.is_allowed(&rules)).unwrap_or(best)
            }
        };
        let endpoint = served.endpoint.clone();
        let mut call_body = call_body(http, &body, &endpoint, managed)?;
        if asked.as_deref() != Some(&served.model) {
            call_body.set_model(&served.model);
        }
        Ok(Outbound::new(http, endpoint, call_body, body, metadata, key))
    }

    /// Who serves a model, the best first. An id that is listed as it stands goes before
    /// `provider/model`, because some ids have a slash; that goes before patterns, of which the
    /// widest would match it too. Then longer patterns go before shorter, and among equals the
    /// configured order decides.
    fn served(&self, http: &HttpRequest, model: &str, managed: bool, app: &App) -> Vec<Served> {
        let now = app.clock.now();
        let mut found: Vec<(Rank, Served)> = Vec::new();
        let callable = |provider: &&Arc<Provider>| !managed || provider.takes_managed_calls();
        for provider in app.providers.iter().filter(callable) {
            let prefixed = model.strip_prefix(provider.name.as_str());
            let named = prefixed.and_then(|rest| rest.strip_prefix('/'));
            let price = |model| app.prices.find(&provider.name, model, now);
            // What is found only because the provider's name is passed over is sent without it, and
            // what stands in another's list only where the provider is named.
            let as_it_stands = |listed: &Listed<'_>| {
                [&provider.name, &provider.price_list].contains(&&listed.row.provider)
                    && (named.is_none() || listed.pattern.matches(model))
            };
            let whole = price(model).filter(as_it_stands).map(|listed| {
                let pattern = listed.pattern;
                match pattern.is_exact() && pattern.matches(model) {
                    true => (Rank::Listed, model),
                    false => (Rank::Pattern(Reverse(pattern.as_str().len())), model),
                }
            });
            let named = named.map(|model| match price(model) {
                Some(_) => (Rank::Named, model),
                None => (Rank::NamedWithoutPrice, model),
            });
            if whole.is_none() && named.is_none() {
                continue;
            }
            let Some(endpoint) = self.endpoint(http, provider, managed, app) else { continue };
            found.extend(whole.into_iter().chain(named).map(|(rank, model)| {
                (rank, Served { endpoint: endpoint.clone(), model: model.to_owned() })
            }));
        }
        // Stable, so that the configured order stays among equals.
        found.sort_by_key(|(rank, _)| *rank);
        found.into_iter().map(|(_, served)| served).collect()
    }

    /// Whoever has the route: a body without a model is refused by what inspects it.
    fn any(&self, http: &HttpRequest, managed: bool, app: &App) -> Vec<Served> {
        let endpoints =
            app.providers.iter().filter_map(|provider| self.endpoint(http, provider, managed, app));
        let first = endpoints.take(1);
        first.map(|endpoint| Served { endpoint, model: String::new() }).collect()
    }

    /// This route at a provider that speaks its format and may be called with such a key.
    fn endpoint(
        &self,
        http: &HttpRequest,
        provider: &Arc<Provider>,
        managed: bool,
        app: &App,
    ) -> Option<Arc<Endpoint>> {
        if managed && !provider.takes_managed_calls() {
            return None;
        }
        let query = self.query.as_deref();
        let endpoint = app.providers.find_below(provider, http.method(), &self.path, query)?;
        (endpoint.shape() == Some(self.shape())).then_some(endpoint)
    }

    fn nobody(&self, model: Option<&str>) -> ApiError {
        match model {
            Some(_) => ApiError::with_issues(
                ErrorCode::ModelPriceUnknown,
                "No configured provider serves this model in this format at a known price.",
                vec![Issue::at(["model"], "GET /v1/models lists what is served")],
            ),
            None => ApiError::new(
                ErrorCode::ForwardEndpointNotSupported,
                "No configured provider speaks the format of this route.",
            ),
        }
    }
}

/// How well a model names a provider; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The id is in its price list as it stands.
    Listed,
    /// The provider is named before a slash, and lists what stands behind it.
    Named,
    /// A pattern of this length matches; the longer the better.
    Pattern(Reverse<usize>),
    /// The provider is named, and what stands behind the slash has no price there.
    NamedWithoutPrice,
}

/// A provider's endpoint, and the model as that provider knows it.
struct Served {
    endpoint: Arc<Endpoint>,
    model: String,
}

impl Served {
    fn is_allowed(&self, rules: &SpendRules) -> bool {
        rules.allows_provider(&self.endpoint.provider.name) && rules.allows_model(&self.model)
    }
}

/// The rules of a spend key as they stand; a merchant's own key has none.
async fn rules_of(owner: KeyOwner, app: &App) -> Result<SpendRules, ApiError> {
    let CallKey::Spend(_, hash) = owner.key else { return Ok(SpendRules::default()) };
    let key = app.store.read_apart(move |conn| spend_keys::find_by_hash(conn, &hash)).await?;
    Ok(key.ok_or_else(ApiError::auth_invalid)?.rules)
}
