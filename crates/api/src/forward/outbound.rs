//! The outgoing call: its endpoint, headers and body, each checked.

use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::http::Method;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use tollgate_domain::{Issue, MerchantId, Metadata, MetadataError};
use tollgate_provider::{Endpoint, ProviderKey, request_headers};
use tollgate_usage::{BodyRefusal, InspectedBody};

use super::endpoint::{check_endpoint, find_endpoint, not_supported};
use super::inbound::InboundCall;
use super::refusal::body_invalid;
use crate::app::App;
use crate::http::error::{ApiError, ErrorCode};

/// A call that may be sent as it is, once it is admitted.
pub(super) struct OutboundCall {
    pub(super) endpoint: Arc<Endpoint>,
    /// The headers that go to the provider.
    pub(super) headers: HeaderMap,
    /// The body that goes to the provider.
    pub(super) body: Bytes,
    /// The fields that were read of the caller's body.
    pub(super) call_body: InspectedBody,
    pub(super) managed: bool,
    pub(super) metadata: Metadata,
}

const METADATA_HEADER: HeaderName = HeaderName::from_static("x-service-metadata");

impl OutboundCall {
    /// The call of `/forward`. The caller names the URL, which is not trusted before this check.
    pub(super) fn for_url(
        http: &HttpRequest,
        inbound: &InboundCall,
        app: &App,
    ) -> Result<Self, ApiError> {
        let credential = &inbound.credential;
        let parameters = ForwardParameters::of(http)?;
        let metadata = metadata(http, parameters.metadata.as_deref())?;
        let managed = credential.provider_key == ProviderKey::Managed;
        let endpoint = find_endpoint(http.method(), &parameters.u, managed, &app.providers)
            .map_err(|refused| refused.within("u"))?;
        Self::for_endpoint(http, inbound, endpoint, metadata)
    }

    /// The call of a provider route. The caller names the provider and a path of it.
    pub(super) fn for_provider(
        http: &HttpRequest,
        inbound: &InboundCall,
        app: &App,
    ) -> Result<Self, ApiError> {
        let name = http.match_info().get("provider").unwrap_or_default();
        let provider = app.providers.get(name).ok_or_else(|| {
            not_supported(format!("there is no provider {name:?}: see docs/PROVIDERS.md"))
        })?;
        let prefix = format!("/v1/providers/{name}");
        let path = http.uri().path().strip_prefix(&prefix).unwrap_or_default();
        let PassthroughQuery { query, metadata } = PassthroughQuery::of(http);
        let metadata = self::metadata(http, metadata.as_deref())?;
        let managed = inbound.credential.provider_key == ProviderKey::Managed;
        let found = provider.endpoint_at(http.method(), path, query.as_deref());
        let found = found.map_err(|why| not_supported(why.to_string()))?;
        let endpoint = check_endpoint(Arc::new(found), managed)?;
        Self::for_endpoint(http, inbound, endpoint, metadata)
    }

    /// The call to an endpoint that may be called.
    fn for_endpoint(
        http: &HttpRequest,
        inbound: &InboundCall,
        endpoint: Arc<Endpoint>,
        metadata: Metadata,
    ) -> Result<Self, ApiError> {
        let InboundCall { credential, owner, body, .. } = inbound;
        let managed = credential.provider_key == ProviderKey::Managed;
        // The body of a GET is dropped: a provider might read it as a part of the call.
        let (call_body, body) = match *http.method() {
            Method::GET => (InspectedBody::empty(), Bytes::new()),
            _ => (call_body(http, body, &endpoint, managed)?, body.clone()),
        };
        let call = (endpoint, call_body, body);
        Ok(Self::new(http, call, metadata, &credential.provider_key, owner.merchant_id))
    }

    pub(super) fn new(
        http: &HttpRequest,
        (endpoint, call_body, body): (Arc<Endpoint>, InspectedBody, Bytes),
        metadata: Metadata,
        key: &ProviderKey,
        merchant_id: MerchantId,
    ) -> Self {
        Self {
            headers: request_headers(
                http.headers(),
                &endpoint,
                key,
                merchant_id,
                call_body.inserts_usage(),
            ),
            body: call_body.apply_edits(&body).unwrap_or(body),
            managed: *key == ProviderKey::Managed,
            endpoint,
            call_body,
            metadata,
        }
    }
}

/// The query of a route with a provider's path: the provider's part, and this service's.
pub(super) struct PassthroughQuery {
    pub(super) query: Option<String>,
    pub(super) metadata: Option<String>,
}

impl PassthroughQuery {
    pub(super) fn of(http: &HttpRequest) -> Self {
        let (mut metadata, mut query) = (None, Vec::new());
        for pair in http.query_string().split('&').filter(|pair| !pair.is_empty()) {
            let parsed = url::form_urlencoded::parse(pair.as_bytes()).next();
            match parsed.as_ref().map(|(name, value)| (name.as_ref(), value)) {
                Some(("metadata", value)) => metadata = Some(value.clone().into_owned()),
                // The caller's key is not for the provider.
                Some(("key", _)) => {}
                _ => query.push(pair),
            }
        }
        Self { query: (!query.is_empty()).then(|| query.join("&")), metadata }
    }
}

/// The query of a forward.
struct ForwardParameters {
    u: String,
    metadata: Option<String>,
}

impl ForwardParameters {
    fn of(http: &HttpRequest) -> Result<Self, ApiError> {
        let (mut u, mut metadata, mut issues) = (None, None, Vec::new());
        for (name, value) in url::form_urlencoded::parse(http.query_string().as_bytes()) {
            match name.as_ref() {
                "u" if u.is_some() => issues.push(Issue::at(["u"], "must stand only once")),
                "u" => u = Some(value.into_owned()),
                "metadata" => metadata = Some(value.into_owned()),
                "key" => {}
                other => issues.push(Issue::at(
                    [other],
                    "is not a parameter of forward; if it belongs to the provider's URL, \
                     percent-encode the whole value of u",
                )),
            }
        }
        match u.filter(|_| issues.is_empty()) {
            Some(u) => Ok(Self { u, metadata }),
            None if issues.is_empty() => {
                let hint = "is required: the provider's URL to forward to, percent-encoded";
                Err(ApiError::invalid(vec![Issue::at(["u"], hint)]))
            }
            None => Err(ApiError::invalid(issues)),
        }
    }
}

/// The metadata of a call. The header takes precedence over the query.
pub(super) fn metadata(http: &HttpRequest, in_query: Option<&str>) -> Result<Metadata, ApiError> {
    let header = http.headers().get(METADATA_HEADER);
    // Header values are bytes. JSON is UTF-8, so a value that is not UTF-8 is invalid.
    let in_header = header.map(|value| std::str::from_utf8(value.as_bytes()).unwrap_or(""));
    let Some(text) = in_header.or(in_query) else { return Ok(Metadata::default()) };
    Metadata::parse(text).map_err(|MetadataError(issues)| {
        ApiError::with_issues(ErrorCode::MetadataInvalid, "The metadata is not valid.", issues)
    })
}

/// The inspected body of a call, if it may be sent.
pub(super) fn call_body(
    http: &HttpRequest,
    body: &[u8],
    endpoint: &Endpoint,
    managed: bool,
) -> Result<InspectedBody, ApiError> {
    let unsupported = |hint: &str| ApiError::new(ErrorCode::ContentTypeUnsupported, hint);
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !http.headers().get_all(CONTENT_ENCODING).all(plain) {
        return Err(unsupported("Send the body as it is, without a Content-Encoding."));
    }
    let mut types = http.headers().get_all(CONTENT_TYPE);
    let content_type = types.next().map(|value| value.to_str().unwrap_or_default());
    if types.next().is_some() {
        return Err(unsupported("Send one Content-Type."));
    }
    InspectedBody::read(body, content_type, &endpoint.format, managed).map_err(|refused| {
        match refused {
            BodyRefusal::ContentType(hint) => unsupported(hint),
            BodyRefusal::Invalid(issues) => body_invalid(issues),
        }
    })
}
