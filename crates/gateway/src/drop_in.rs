//! The drop-in routes, with the paths of the providers' own SDKs. They share the forward path, but the path
//! is the provider's, and the model names the provider.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use tollgate_domain::{MissingPrice, RequestFormat, SpendRules};
use tollgate_pricing::PriceMatch;
use tollgate_provider::http::Method;
use tollgate_provider::http::header::{CONTENT_TYPE, HeaderMap};
use tollgate_provider::{Endpoint, Provider};
use tollgate_usage::dialect::ObjectRole;
use tollgate_usage::{Dialect, EndpointFormat, InspectedBody};

use crate::batch_body::first_model;
use crate::batch_file::file_of_batch;
use crate::endpoint::check_endpoint;
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::inbound::InboundCall;
use crate::objects::owned_objects;
use crate::outbound::{OutboundCall, PassthroughQuery, metadata};
use crate::request::RequestHead;
use crate::tariff::{Tariff, is_priced};

/// The SDK that a route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SdkFamily {
    OpenAi,
    Anthropic,
    Google,
    Cohere,
}

impl SdkFamily {
    fn supports(self, endpoint: &Endpoint) -> bool {
        match (self, endpoint.format.dialect) {
            (Self::OpenAi, Dialect::OpenAi | Dialect::Azure)
            | (Self::Anthropic, Dialect::Anthropic)
            | (Self::Google, Dialect::Google)
            | (Self::Cohere, Dialect::Cohere) => true,
            // Documents are ranked in one format at all providers.
            (Self::OpenAi, Dialect::Cohere) => endpoint.url.path().ends_with("/rerank"),
            _ => false,
        }
    }
}

/// Whether the credential of a call is where Google's SDKs put it.
pub fn has_google_credential(headers: &HeaderMap, query: &str) -> bool {
    let has = |name: &str| headers.contains_key(name);
    let in_query = || url::form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "key");
    has("x-goog-api-key") || (!has("authorization") && !has("x-api-key") && in_query())
}

/// Every drop-in route that bills for a model, as documents write it. A model that the requested route does
/// not serve is looked up on these.
const ROUTES: [&str; 16] = [
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/embeddings",
    "/v1beta/models/{model}:generateContent",
    "/v1beta/models/{model}:embedContent",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/completions",
    "/v1/rerank",
    "/v2/chat",
    "/v2/embed",
    "/v2/rerank",
];

/// A route of this service with the path of a provider.
pub struct DropInRoute {
    family: SdkFamily,
    method: Method,
    /// The version in the path, such as `/v1`.
    version: &'static str,
    /// The path below the version, such as `/chat/completions`.
    path: String,
    /// The part of the query that is for the provider.
    query: Option<String>,
    metadata: Option<String>,
}

impl DropInRoute {
    /// The route of a request.
    pub fn of(head: &RequestHead<'_>) -> Self {
        let PassthroughQuery { query, metadata } = PassthroughQuery::of(head);
        let mut route = Self { query, metadata, ..Self::at(head.method, head.path) };
        // Three vendors have these paths. A header, or the place of the credential, says whose SDK it is.
        let is_shared = ["/files", "/batches"].iter().any(|shared| {
            let below = route.path.strip_prefix(shared);
            below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
        });
        if is_shared && has_google_credential(head.headers, head.query) {
            route.family = SdkFamily::Google;
        } else if is_shared && head.headers.contains_key("anthropic-version") {
            route.family = SdkFamily::Anthropic;
        }
        route
    }

    /// The route at a path, without a query.
    fn at(method: &Method, path: &str) -> Self {
        let versions = [
            ("/v1beta", SdkFamily::Google),
            ("/v1alpha", SdkFamily::Google),
            ("/v2", SdkFamily::Cohere),
            ("/v1", SdkFamily::OpenAi),
        ];
        let below = |(version, family)| Some((version, path.strip_prefix(version)?, family));
        let (version, path, family) =
            versions.into_iter().find_map(below).unwrap_or(("", path, SdkFamily::OpenAi));
        let family = match path {
            path if family == SdkFamily::OpenAi && path.starts_with("/messages") => {
                SdkFamily::Anthropic
            }
            path if family == SdkFamily::OpenAi
                && (path.starts_with("/models/") || path.starts_with("/ws/")) =>
            {
                SdkFamily::Google
            }
            _ => family,
        };
        let (path, method) = (path.to_owned(), method.clone());
        Self { family, method, version, path, query: None, metadata: None }
    }

    /// The format of errors that SDKs expect, if any.
    pub fn format(&self) -> Option<RequestFormat> {
        match self.family {
            SdkFamily::OpenAi => Some(RequestFormat::ShapeA),
            SdkFamily::Anthropic => Some(RequestFormat::ShapeB),
            SdkFamily::Google | SdkFamily::Cohere => None,
        }
    }

    /// Whether the call has requests with a model each, as a batch of messages or a file of requests.
    fn has_requests(&self) -> bool {
        self.method == Method::POST && ["/messages/batches", "/files"].contains(&&*self.path)
    }

    /// Whether the call names the file of a batch.
    fn names_file(&self) -> bool {
        self.method == Method::POST && self.path == "/batches"
    }

    /// The requested model. Google has it in the path. If there are several requests, the first chooses the provider.
    async fn model(
        &self,
        head: &RequestHead<'_>,
        inbound: &InboundCall,
    ) -> Result<Option<String>, CallError> {
        if let Some(upload) = &inbound.upload {
            return upload.first_model().await;
        }
        if self.family == SdkFamily::Google {
            let model = self.path.strip_prefix("/models/").and_then(|path| path.rsplit_once(':'));
            let model = model.and_then(|(model, _)| percent_decode_str(model).decode_utf8().ok());
            return Ok(model.map(Cow::into_owned));
        }
        if self.names_file() {
            return Ok(None);
        }
        if self.has_requests() {
            return Ok(first_model(&inbound.body));
        }
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(InspectedBody::model_of(&inbound.body, content_type))
    }

    /// The outgoing call, checked, to the provider of the model.
    ///
    /// # Errors
    /// The reason why the call may not go out.
    pub async fn outbound(
        &self,
        head: &RequestHead<'_>,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> Result<OutboundCall, CallError> {
        let metadata = metadata(head, self.metadata.as_deref())?;
        let managed = inbound.credential.is_managed();
        let requested = self.model(head, inbound).await?;
        let named = match &requested {
            Some(model) => match self.endpoints_for(model, managed, gateway) {
                // The check of its requests names the place of the model.
                none if none.is_empty() && self.has_requests() => {
                    self.default_endpoint(managed, gateway)
                }
                served => served,
            },
            None => self.endpoints_of_object(inbound, gateway).await?,
        };
        let served = match named.as_slice() {
            [] => return Err(self.not_served(requested.as_deref(), managed, inbound, gateway)),
            [only] => only,
            [best, ..] => {
                let rules = inbound.owner.rules(&gateway.store).await?;
                named.iter().find(|served| served.is_allowed(&rules)).unwrap_or(best)
            }
        };
        let model = requested.filter(|model| *model != served.model && !self.has_requests());
        let model = model.map(|_| &*served.model);
        let endpoint = Arc::clone(&served.endpoint);
        let mut call = OutboundCall::for_endpoint(head, inbound, endpoint, metadata, model)?;
        if call.endpoint.format.object_role() == ObjectRole::Lists {
            call.listed_at = self.all_endpoints(managed, gateway).collect();
        }
        Ok(call)
    }

    /// The endpoint of a socket. The model in the query chooses the provider, or else it is the first one that has the
    /// socket and that the key may use. A provider may have another use for the model, so it gets it only where it names
    /// the model of the socket.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn socket_endpoint(
        mut self,
        head: &RequestHead<'_>,
        rules: &SpendRules,
        managed: bool,
        gateway: &Gateway,
    ) -> Result<Arc<Endpoint>, CallError> {
        let model = head.parameter("model");
        let pairs = self.query.as_deref().unwrap_or_default().split('&');
        let kept: Vec<_> = pairs.filter(|pair| !pair.starts_with("model=")).collect();
        self.query = Some(kept.join("&")).filter(|query| !query.is_empty());
        let endpoint = {
            let mut all = self.all_endpoints(managed, gateway);
            let allowed = |endpoint: &Arc<Endpoint>| rules.allows_provider(&endpoint.provider.name);
            match &model {
                Some(model) => {
                    let tariff = gateway.tariff(gateway.clock.now());
                    let serves = |endpoint: &Arc<Endpoint>| {
                        !match_model(&endpoint.provider, model, &tariff).is_empty()
                    };
                    let ranked = all.filter(serves).filter(allowed).min_by_key(|endpoint| {
                        let ranks = match_model(&endpoint.provider, model, &tariff);
                        ranks.into_iter().map(|(rank, ..)| rank).min()
                    });
                    ranked.ok_or(CallError::ModelNotServed)
                }
                None => all.find(allowed).ok_or(CallError::RouteNotSupported),
            }?
        };
        let endpoint = match model.as_deref().zip(endpoint.format.model_parameter()) {
            Some((model, parameter)) => {
                self.with_model(&endpoint, (parameter, model), managed, gateway)?
            }
            None => endpoint,
        };
        check_endpoint(endpoint, managed)
    }

    /// The endpoint of a socket with the model in its query, as the provider knows it.
    fn with_model(
        mut self,
        endpoint: &Endpoint,
        (parameter, model): (&str, &str),
        managed: bool,
        gateway: &Gateway,
    ) -> Result<Arc<Endpoint>, CallError> {
        let tariff = gateway.tariff(gateway.clock.now());
        let ranks = match_model(&endpoint.provider, model, &tariff).into_iter();
        let best = ranks.min_by_key(|(rank, ..)| *rank);
        let (_, known, _) = best.ok_or(CallError::ModelNotServed)?;
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let query = query.append_pair(parameter, known).finish();
        self.query = Some(match self.query.take() {
            Some(others) => [&*query, &others].join("&"),
            None => query,
        });
        self.endpoint(&endpoint.provider, managed, gateway).ok_or(CallError::RouteNotSupported)
    }

    /// The endpoints that serve a model, the best first. A listed id goes before `provider/model`, because
    /// some ids have a slash. That goes before patterns, because the widest pattern would match it too.
    /// Longer patterns go before shorter, and equals stay in the configured order.
    fn endpoints_for(&self, model: &str, managed: bool, gateway: &Gateway) -> Vec<ModelEndpoint> {
        let mut found: Vec<(MatchRank, ModelEndpoint)> = Vec::new();
        let tariff = gateway.tariff(gateway.clock.now());
        for provider in gateway.providers.iter().filter(|one| !managed || one.takes_managed_calls())
        {
            let ranks = match_model(provider, model, &tariff);
            if ranks.is_empty() {
                continue;
            }
            let Some(endpoint) = self.endpoint(provider, managed, gateway) else { continue };
            // A price row for another kind of use means that the model is served elsewhere.
            let here = ranks.into_iter().filter(|(_, _, listed)| {
                listed.is_none_or(|listed| is_priced(&endpoint, listed.row))
            });
            found.extend(here.map(|(rank, model, listed)| {
                let (endpoint, model) = (endpoint.clone(), model.to_owned());
                (rank, ModelEndpoint { endpoint, model, has_price: listed.is_some() })
            }));
        }
        // A stable sort, so that equals stay in the configured order.
        found.sort_by_key(|(rank, _)| *rank);
        found.into_iter().map(|(_, served)| served).collect()
    }

    /// The endpoint at the provider whose object the call names, or else at the first provider that has the route.
    async fn endpoints_of_object(
        &self,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> Result<Vec<ModelEndpoint>, CallError> {
        let managed = inbound.credential.is_managed();
        let default = self.default_endpoint(managed, gateway);
        let format = default.first().map(|served| &served.endpoint.format);
        let id = match self.names_file() {
            true => file_of_batch(&inbound.body),
            false => format.and_then(EndpointFormat::object_id),
        };
        let Some(id) = id else { return Ok(default) };
        let owned = owned_objects(&id, inbound, gateway).await?;
        let endpoints = owned.iter().filter_map(|object| {
            let provider = gateway.providers.get(&object.provider)?;
            self.endpoint(provider, managed, gateway)
        });
        let found: Vec<_> = endpoints.map(ModelEndpoint::without_model).take(1).collect();
        Ok(if found.is_empty() { default } else { found })
    }

    /// The first provider that has the route. A body without a model is refused later, by its inspection.
    fn default_endpoint(&self, managed: bool, gateway: &Gateway) -> Vec<ModelEndpoint> {
        let endpoints = self.all_endpoints(managed, gateway);
        endpoints.take(1).map(ModelEndpoint::without_model).collect()
    }

    /// This route at each provider that has it.
    fn all_endpoints(
        &self,
        managed: bool,
        gateway: &Gateway,
    ) -> impl Iterator<Item = Arc<Endpoint>> {
        gateway
            .providers
            .iter()
            .filter_map(move |provider| self.endpoint(provider, managed, gateway))
    }

    /// This route at a provider that speaks its format and may be called with this kind of key.
    fn endpoint(
        &self,
        provider: &Arc<Provider>,
        managed: bool,
        gateway: &Gateway,
    ) -> Option<Arc<Endpoint>> {
        if managed && !provider.takes_managed_calls() {
            return None;
        }
        let query = self.query.as_deref();
        let (providers, method) = (&gateway.providers, &self.method);
        let endpoint = match self.family {
            // All versions have the same endpoints, and some models are in one of them only.
            SdkFamily::Google => {
                providers.find_at_version(provider, method, (self.version, &self.path), query)?
            }
            _ => providers.find_below(provider, method, &self.path, query)?,
        };
        self.family.supports(&endpoint).then_some(endpoint)
    }

    fn not_served(
        &self,
        model: Option<&str>,
        managed: bool,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> CallError {
        let Some(model) = model else {
            return CallError::RouteNotSupported;
        };
        let elsewhere = ROUTES.into_iter().find(|route| {
            let path = route.replace("{model}", "m");
            let served = Self::at(&Method::POST, &path).endpoints_for(model, managed, gateway);
            served.iter().any(|served| served.has_price)
        });
        if let Some(route) = elsewhere {
            return CallError::ModelOnOtherRoute { route };
        }
        let missing = MissingPrice::of_model("unknown", model);
        gateway.store.report_missing_price(inbound.owner.merchant_id, missing);
        CallError::ModelNotServed
    }
}

/// The ways in which the name of a model can mean this provider. Each has the model as the provider knows it,
/// and its price.
pub fn match_model<'a, 'p>(
    provider: &Provider,
    model: &'a str,
    tariff: &'p Tariff<'_>,
) -> Vec<(MatchRank, &'a str, Option<PriceMatch<'p>>)> {
    let prefixed = model.strip_prefix(provider.name.as_str());
    let named = prefixed.and_then(|rest| rest.strip_prefix('/'));
    let price = |model: &str| tariff.find(&provider.name, Some(model));
    // An id that matches only without the provider's name is sent without it. An id in another provider's
    // list needs the provider's name.
    let as_it_stands = |listed: &PriceMatch<'_>| {
        [&provider.name, &provider.traits.price_list].contains(&&listed.row.provider)
            && (named.is_none() || listed.pattern.matches(model))
    };
    let whole = price(model).filter(as_it_stands).map(|listed| {
        let pattern = listed.pattern;
        let rank = match pattern.is_exact() && pattern.matches(model) {
            true => MatchRank::Listed,
            false => MatchRank::Pattern(Reverse(pattern.as_str().len())),
        };
        (rank, model, Some(listed))
    });
    let named = named.map(|model| match price(model) {
        Some(listed) => (MatchRank::Named, model, Some(listed)),
        None => (MatchRank::NamedWithoutPrice, model, None),
    });
    whole.into_iter().chain(named).collect()
}

/// How well a model names a provider; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MatchRank {
    /// The id is in its price list as it is.
    Listed,
    /// The provider is named before a slash, and lists the rest.
    Named,
    /// A pattern of this length matches; a longer one is better.
    Pattern(Reverse<usize>),
    /// The provider is named, and the part behind the slash has no price there.
    NamedWithoutPrice,
}

/// A provider's endpoint, and the model as that provider knows it.
struct ModelEndpoint {
    endpoint: Arc<Endpoint>,
    model: String,
    has_price: bool,
}

impl ModelEndpoint {
    const fn without_model(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, model: String::new(), has_price: false }
    }

    fn is_allowed(&self, rules: &SpendRules) -> bool {
        rules.allows_provider(&self.endpoint.provider.name)
            && rules.allows_model(&self.model)
            && rules.request_shape.accepts(self.endpoint.shape())
    }
}
