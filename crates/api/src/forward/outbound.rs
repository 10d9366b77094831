//! What is sent: where to, with which headers and body, each checked before.

use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::http::Method;
use actix_web::http::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use bytes::Bytes;
use tollgate_domain::{Issue, Metadata, MetadataError};
use tollgate_provider::{
    CallBody, Endpoint, Provider, ProviderKey, ProviderTable, request_headers,
};

use super::credential::Credential;
use crate::app::App;
use crate::http::error::{ApiError, ErrorCode};

/// A call that may be sent as it is, once it is admitted.
pub(super) struct Outbound {
    pub(super) endpoint: Arc<Endpoint>,
    /// As they go to the provider.
    pub(super) headers: HeaderMap,
    /// As it goes to the provider.
    pub(super) body: Bytes,
    /// What was read of the caller's body.
    pub(super) call_body: CallBody,
    pub(super) managed: bool,
    pub(super) metadata: Metadata,
}

const METADATA_HEADER: HeaderName = HeaderName::from_static("x-service-metadata");

impl Outbound {
    /// What `/forward` sends: the caller names the URL, and nothing of it is trusted before.
    pub(super) fn to_url(
        http: &HttpRequest,
        body: Bytes,
        credential: &Credential,
        app: &App,
    ) -> Result<Self, ApiError> {
        let parameters = Parameters::of(http)?;
        let metadata = metadata(http, parameters.metadata.as_deref())?;
        let managed = credential.provider_key == ProviderKey::Managed;
        let endpoint = endpoint(http.method(), &parameters.u, managed, &app.providers)
            .map_err(|refused| refused.within("u"))?;
        let call_body = match *http.method() {
            Method::GET => CallBody::empty(),
            _ => call_body(http, &body, &endpoint, managed)?,
        };
        Ok(Self::new(http, endpoint, call_body, body, metadata, &credential.provider_key))
    }

    pub(super) fn new(
        http: &HttpRequest,
        endpoint: Arc<Endpoint>,
        call_body: CallBody,
        body: Bytes,
        metadata: Metadata,
        key: &ProviderKey,
    ) -> Self {
        Self {
            headers: request_headers(http.headers(), &endpoint, key, call_body.inserts_usage()),
            body: call_body.edited(&body).unwrap_or(body),
            managed: *key == ProviderKey::Managed,
            endpoint,
            call_body,
            metadata,
        }
    }
}

/// The query of a forward.
struct Parameters {
    u: String,
    metadata: Option<String>,
}

impl Parameters {
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

/// Metadata in the header wins over that in the query.
pub(super) fn metadata(http: &HttpRequest, in_query: Option<&str>) -> Result<Metadata, ApiError> {
    let header = http.headers().get(METADATA_HEADER);
    // Header values are bytes; JSON is UTF-8, and what is not is no JSON.
    let in_header = header.map(|value| std::str::from_utf8(value.as_bytes()).unwrap_or(""));
    let Some(text) = in_header.or(in_query) else { return Ok(Metadata::default()) };
    Metadata::parse(text).map_err(|MetadataError(issues)| {
        ApiError::with_issues(ErrorCode::MetadataInvalid, "The metadata is not valid.", issues)
    })
}

/// Where a URL leads, if the call may go there with this key.
pub(crate) fn endpoint(
    method: &Method,
    url: &str,
    managed: bool,
    providers: &ProviderTable,
) -> Result<Arc<Endpoint>, ApiError> {
    let refused = |why: String| {
        ApiError::with_issues(
            ErrorCode::ForwardEndpointNotSupported,
            "This URL cannot be forwarded to.",
            vec![Issue::at([], why)],
        )
    };
    let endpoint = providers.find(method, url).map_err(|why| refused(why.to_string()))?;
    let provider = &endpoint.provider;
    if managed && !provider.takes_managed_calls() {
        return Err(refused(no_key(provider)));
    }
    if managed && !endpoint.allows_managed_key() {
        return Err(refused(format!(
            "with the operator's key only the listed endpoints of {} may be called: put your own \
             key into the forward token as provider_key",
            provider.name
        )));
    }
    Ok(endpoint)
}

/// What to do about a provider for which the operator has no key.
pub(super) fn no_key(provider: &Provider) -> String {
    format!(
        "the operator has set no key for {}: put your own into the forward token as provider_key",
        provider.name
    )
}

/// What a body asks for, if it may be sent.
pub(super) fn call_body(
    http: &HttpRequest,
    body: &[u8],
    endpoint: &Endpoint,
    managed: bool,
) -> Result<CallBody, ApiError> {
    let content_type = http.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    CallBody::read(body, content_type, endpoint, managed).map_err(body_invalid)
}

pub(crate) fn body_invalid(issues: Vec<Issue>) -> ApiError {
    let message = "The body to be forwarded is not valid.";
    ApiError::with_issues(ErrorCode::ForwardTokenJsonInvalid, message, issues)
}
