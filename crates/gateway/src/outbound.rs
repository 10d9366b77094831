//! The outgoing call: its endpoint, headers and body, each checked.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tollgate_domain::admission::CostBound;
use tollgate_domain::{
    BatchRequests, CallRun, Issue, Metadata, MetadataError, PricedUsage, RunId, SocketId,
};
use tollgate_provider::http::Method;
use tollgate_provider::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use tollgate_provider::{Endpoint, ProviderKey, RequestBody, request_headers};
use tollgate_store::jobs::OpenJob;
use tollgate_usage::dialect::ObjectRole;
use tollgate_usage::{BodyRefusal, InspectedBody};

use crate::cost_report::ReportRequest;
use crate::credential::Credential;
use crate::endpoint::{find_at_provider, find_endpoint};
use crate::error::{CallError, body_invalid};
use crate::gateway::Gateway;
use crate::inbound::InboundCall;
use crate::request::RequestHead;
use crate::run::call_run;

/// A call that may be sent as it is, once it is admitted.
pub struct OutboundCall {
    pub(crate) endpoint: Arc<Endpoint>,
    /// The headers that go to the provider.
    pub(crate) headers: HeaderMap,
    /// The body that goes to the provider.
    pub(crate) body: RequestBody,
    /// The fields that were read of the caller's body.
    pub(crate) call_body: InspectedBody,
    pub(crate) managed: bool,
    pub(crate) provider_key: ProviderKey,
    /// The base URL of this service, by which the URLs of results in the answer are replaced.
    pub(crate) results_base: Option<String>,
    /// The endpoints whose objects are listed together. Empty for another call.
    pub(crate) listed_at: Vec<Arc<Endpoint>>,
    /// The requests of a batch.
    pub(crate) batch: Option<Box<BatchPlan>>,
    /// The room of the upload that is sent.
    pub(crate) _upload_room: Option<Rc<dyn Any>>,
    /// The requests in the file that is uploaded.
    pub(crate) file: Option<Box<BatchRequests>>,
    /// The running job whose object the answer is.
    pub(crate) observed: Option<Box<OpenJob>>,
    /// The socket on which the call is made.
    pub(crate) socket_id: Option<SocketId>,
    pub(crate) metadata: Metadata,
    pub(crate) run: Option<CallRun>,
    pub(crate) report: ReportRequest,
}

/// The facts about an outgoing call that a refusal states.
#[derive(Default)]
pub struct CallSummary {
    endpoint: Option<Arc<Endpoint>>,
    /// The requested model.
    pub model: Option<String>,
    /// Metadata from the caller.
    pub metadata: Metadata,
    /// The run that the call names.
    pub run_id: Option<RunId>,
}

impl CallSummary {
    /// The provider's name.
    pub fn provider(&self) -> Option<&str> {
        self.endpoint.as_ref().map(|endpoint| endpoint.provider.name.as_str())
    }

    /// Method and URL, without secrets.
    pub fn endpoint(&self) -> Option<String> {
        self.endpoint.as_ref().map(|endpoint| recorded(endpoint))
    }
}

/// Method and URL of an endpoint, as records have them.
pub(crate) fn recorded(endpoint: &Endpoint) -> String {
    let url = endpoint.recorded_url();
    match url.strip_prefix("http").filter(|_| endpoint.format.is_socket()) {
        // As its client opens it.
        Some(rest) => ["GET ws", rest].concat(),
        None => [endpoint.method.as_str(), " ", url].concat(),
    }
}

const METADATA_HEADER: HeaderName = HeaderName::from_static("x-service-metadata");

/// The most that a batch can cost, and what is known of its requests.
pub(crate) struct BatchPlan {
    pub(crate) bound: CostBound,
    /// The estimated input of all requests.
    pub(crate) input_estimate: PricedUsage,
}

impl OutboundCall {
    /// Lets URLs of results in the answer lead to this service, at `base`: an SDK calls them with the same key.
    pub fn lead_results_to(&mut self, base: impl FnOnce() -> Option<String>) {
        let format = &self.endpoint.format;
        if format.answers_batch() || format.object_role() == ObjectRole::Lists {
            self.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            self.results_base = base();
        }
    }

    /// Replaces the model of its body, which is `body`.
    pub(crate) fn name_model(&mut self, model: &str, body: &Bytes) {
        self.call_body.set_model(model);
        self.body = self.call_body.apply_edits(body).unwrap_or_else(|| body.clone()).into();
    }

    /// Whether its answer may come later, as a job.
    pub(crate) fn makes_job(&self) -> bool {
        self.call_body.background || self.batch.is_some() || self.endpoint.format.creates_video()
    }

    /// The facts about it that a refusal states.
    pub fn summary(&self) -> CallSummary {
        CallSummary {
            endpoint: Some(Arc::clone(&self.endpoint)),
            model: self.call_body.model.clone(),
            metadata: self.metadata.clone(),
            run_id: self.run.as_ref().map(|run| run.run_id.clone()),
        }
    }

    /// The call of `/forward`. The caller names the URL, which is not trusted before this check.
    ///
    /// # Errors
    /// The reason why the call may not go out.
    pub fn for_url(
        head: &RequestHead<'_>,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> Result<Self, CallError> {
        let parameters = ForwardParameters::of(head)?;
        let metadata = metadata(head, parameters.metadata.as_deref())?;
        let managed = inbound.credential.is_managed();
        let endpoint = find_endpoint(head.method, &parameters.u, managed, &gateway.providers)
            .map_err(|refused| refused.within("u"))?;
        Self::for_endpoint(head, inbound, endpoint, metadata, None)
    }

    /// The call of a provider route. The caller names the provider and a path of it.
    ///
    /// # Errors
    /// The reason why the call may not go out.
    pub fn for_provider(
        head: &RequestHead<'_>,
        name: &str,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> Result<Self, CallError> {
        let PassthroughQuery { query, metadata } = PassthroughQuery::of(head);
        let managed = inbound.credential.is_managed();
        let (at, providers) = ((head.path, query.as_deref()), &gateway.providers);
        let endpoint = find_at_provider(head.method, name, at, managed, providers)?;
        let metadata = self::metadata(head, metadata.as_deref())?;
        Self::for_endpoint(head, inbound, endpoint, metadata, None)
    }

    /// The call to an endpoint that may be called. A `model` replaces that of the body.
    pub(crate) fn for_endpoint(
        head: &RequestHead<'_>,
        inbound: &InboundCall,
        endpoint: Arc<Endpoint>,
        metadata: Metadata,
        model: Option<&str>,
    ) -> Result<Self, CallError> {
        let InboundCall { credential, owner, body, .. } = inbound;
        let (key, managed) = (&credential.provider_key, credential.is_managed());
        // The body of a GET or DELETE is dropped: a provider might read it as a part of the call.
        let is_sent = match *head.method {
            Method::GET | Method::DELETE => false,
            // The body of an upload is checked when its file is.
            _ if inbound.upload.is_some() => false,
            // A cancellation needs none.
            _ => !body.is_empty() || endpoint.format.object_id().is_none(),
        };
        let (mut call_body, body) = match is_sent {
            true => (call_body(head, body, &endpoint, managed)?, body.clone()),
            false => {
                let none = InspectedBody::without_body(&endpoint.format, managed);
                (none.map_err(body_refused)?, Bytes::new())
            }
        };
        if let Some(model) = model {
            call_body.set_model(model);
        }
        let asks_usage = call_body.inserts_usage();
        let lists = endpoint.format.object_role() == ObjectRole::Lists;
        Ok(Self {
            headers: request_headers(head.headers, &endpoint, key, owner.merchant_id, asks_usage),
            body: call_body.apply_edits(&body).unwrap_or(body).into(),
            listed_at: lists.then(|| Arc::clone(&endpoint)).into_iter().collect(),
            ..Self::of_body(head, credential, endpoint, metadata, call_body)?
        })
    }

    /// A call without headers and bytes of its own: its body is in messages of a socket.
    pub(crate) fn of_body(
        head: &RequestHead<'_>,
        credential: &Credential,
        endpoint: Arc<Endpoint>,
        metadata: Metadata,
        call_body: InspectedBody,
    ) -> Result<Self, CallError> {
        Ok(Self {
            headers: HeaderMap::new(),
            body: Bytes::new().into(),
            managed: credential.is_managed(),
            provider_key: credential.provider_key.clone(),
            results_base: None,
            listed_at: Vec::new(),
            batch: None,
            _upload_room: None,
            file: None,
            observed: None,
            socket_id: None,
            endpoint,
            call_body,
            run: call_run(head, &metadata)?,
            metadata,
            report: ReportRequest::of(head)?,
        })
    }
}

/// The query of a route with a provider's path: the provider's part, and this service's.
pub(crate) struct PassthroughQuery {
    pub(crate) query: Option<String>,
    pub(crate) metadata: Option<String>,
}

impl PassthroughQuery {
    pub(crate) fn of(head: &RequestHead<'_>) -> Self {
        let (mut metadata, mut query) = (None, Vec::new());
        for pair in head.query.split('&').filter(|pair| !pair.is_empty()) {
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
pub(crate) struct ForwardParameters {
    pub(crate) u: String,
    pub(crate) metadata: Option<String>,
}

impl ForwardParameters {
    pub(crate) fn of(head: &RequestHead<'_>) -> Result<Self, CallError> {
        let (mut u, mut metadata, mut issues) = (None, None, Vec::new());
        for (name, value) in url::form_urlencoded::parse(head.query.as_bytes()) {
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
                Err(CallError::ParametersInvalid(vec![Issue::at(["u"], hint)]))
            }
            None => Err(CallError::ParametersInvalid(issues)),
        }
    }
}

/// The metadata of a call. The header takes precedence over the query.
pub(crate) fn metadata(
    head: &RequestHead<'_>,
    in_query: Option<&str>,
) -> Result<Metadata, CallError> {
    let header = head.headers.get(METADATA_HEADER);
    // Header values are bytes. JSON is UTF-8, so a value that is not UTF-8 is invalid.
    let in_header = header.map(|value| std::str::from_utf8(value.as_bytes()).unwrap_or(""));
    let Some(text) = in_header.or(in_query) else { return Ok(Metadata::default()) };
    Metadata::parse(text).map_err(|MetadataError(issues)| CallError::MetadataInvalid(issues))
}

/// The inspected body of a call, if it may be sent.
fn call_body(
    head: &RequestHead<'_>,
    body: &[u8],
    endpoint: &Endpoint,
    managed: bool,
) -> Result<InspectedBody, CallError> {
    let unsupported = |hint: &str| CallError::ContentTypeUnsupported(hint.to_owned());
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !head.headers.get_all(CONTENT_ENCODING).all(plain) {
        return Err(unsupported("Send the body as it is, without a Content-Encoding."));
    }
    let mut types = head.headers.get_all(CONTENT_TYPE);
    let content_type = types.next().map(|value| value.to_str().unwrap_or_default());
    if types.next().is_some() {
        return Err(unsupported("Send one Content-Type."));
    }
    InspectedBody::read(body, content_type, &endpoint.format, managed).map_err(body_refused)
}

pub(crate) fn body_refused(refused: BodyRefusal) -> CallError {
    match refused {
        BodyRefusal::ContentType(hint) => CallError::ContentTypeUnsupported(hint.to_owned()),
        BodyRefusal::Invalid(issues) => body_invalid(issues),
    }
}
