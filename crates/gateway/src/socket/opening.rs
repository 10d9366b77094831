//! A socket to a provider: its caller, its endpoint and the connection, before messages pass.

use std::sync::Arc;

use tollgate_domain::Metadata;
use tollgate_provider::http::Method;
use tollgate_provider::http::header::{
    CONTENT_TYPE, HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL,
};
use tollgate_provider::{
    Endpoint, ProviderClient, ProviderSocket, UpstreamSocket, request_headers,
};
use tollgate_usage::InspectedBody;
use tollgate_usage::socket::Conversation;

use super::keys::refused_keys;
use crate::cost_report::REPORT;
use crate::credential::{Credential, SUBPROTOCOL_KEY};
use crate::drop_in::{DropInRoute, match_model};
use crate::endpoint::{find_at_provider, find_endpoint};
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::keys::KeyOwner;
use crate::open_sockets::{SocketGuard, SocketKey};
use crate::outbound::{ForwardParameters, PassthroughQuery, body_refused, metadata};
use crate::request::RequestHead;
use crate::run::call_run;

/// The route on which a socket is requested.
#[derive(Clone, Copy, Debug)]
pub enum SocketRoute<'a> {
    /// `/forward`, with the provider's URL in the query.
    Url,
    /// The route of the provider with this name.
    Provider(&'a str),
    /// A route with the path of a provider. The model of each call is one of this service's list.
    DropIn,
}

/// An open socket to a provider, on which no message has passed.
pub struct SocketCall {
    pub(super) guard: SocketGuard,
    pub(super) caller: SocketCaller,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) conversation: Conversation,
    pub(super) provider: ProviderSocket,
}

/// The caller of a socket, and the parts of its request that all calls on it share.
pub(crate) struct SocketCaller {
    pub(crate) credential: Credential,
    pub(crate) owner: KeyOwner,
    /// The headers, as those of a call.
    pub(crate) headers: HeaderMap,
    pub(crate) metadata: Metadata,
    /// Whether the name of a model may have the provider's before it.
    pub(crate) names_providers: bool,
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl SocketCall {
    /// Opens the socket to the provider that the request names.
    ///
    /// # Errors
    /// The reason why there is none.
    pub async fn open(
        route: SocketRoute<'_>,
        head: &RequestHead<'_>,
        (credential, owner): (Credential, KeyOwner),
        gateway: &Gateway,
        client: &ProviderClient,
    ) -> Result<Self, CallError> {
        if gateway.calls.is_draining() {
            return Err(CallError::ShuttingDown);
        }
        let (endpoint, metadata) = endpoint(route, head, (&credential, owner), gateway).await?;
        call_run(head, &metadata)?;
        let conversation = conversation(&endpoint, credential.is_managed())?;
        let now = gateway.clock.now();
        let key = SocketKey { key: owner.key, hash: credential.key.hash() };
        let mut refused = gateway.store.read(move |conn| refused_keys(conn, &[key], now)).await?;
        if let Some((_, refusal)) = refused.pop() {
            return Err(refusal.into());
        }
        let limits = gateway.settings.sockets;
        let guard = gateway.sockets.enter(key, now, limits.most)?;
        let managed = credential.is_managed();
        let upstream = UpstreamSocket {
            endpoint: &endpoint,
            headers: request_headers(
                head.headers,
                &endpoint,
                &credential.provider_key,
                owner.merchant_id,
                true,
            ),
            protocols: offered_protocols(head.headers, managed),
            managed,
            message_limit: limits.message_bytes,
        };
        let provider = client.open_socket(upstream).await.map_err(CallError::SocketNotOpened)?;
        // A clone would have the room of the whole request, as long as the socket is open.
        let mut headers = HeaderMap::new();
        for (name, value) in head.headers {
            headers.append(name.clone(), value.clone());
        }
        headers.insert(CONTENT_TYPE, JSON);
        // A message has no place for a report.
        headers.remove(REPORT);
        let names_providers = matches!(route, SocketRoute::DropIn);
        let caller = SocketCaller { credential, owner, headers, metadata, names_providers };
        Ok(Self { guard, caller, endpoint, conversation, provider })
    }

    /// The subprotocol of the socket: the one that the provider has chosen. If it has chosen none, it is the first one that
    /// the client offers beside its credential, because a browser closes a socket for which it has offered some in vain.
    pub fn protocol(&self) -> Option<HeaderValue> {
        let chosen = self.provider.protocol.clone();
        chosen.or_else(|| {
            let offered =
                offered_protocols(&self.caller.headers, self.caller.credential.is_managed())?;
            HeaderValue::from_str(offered.to_str().ok()?.split(',').next()?).ok()
        })
    }
}

impl SocketCaller {
    /// The name by which the provider knows a model, if it differs.
    pub(crate) fn model_at<'a>(
        &self,
        endpoint: &Endpoint,
        model: &'a str,
        gateway: &Gateway,
    ) -> Result<Option<&'a str>, CallError> {
        if !self.names_providers {
            return Ok(None);
        }
        let tariff = gateway.tariff(gateway.clock.now());
        let ranks = match_model(&endpoint.provider, model, &tariff).into_iter();
        let best = ranks.min_by_key(|(rank, ..)| *rank);
        match best {
            Some((_, known, _)) => Ok(Some(known).filter(|known| *known != model)),
            None if self.credential.is_managed() => Err(CallError::ModelNotServed),
            None => Ok(None),
        }
    }
}

/// The conversation on a socket that may be opened.
fn conversation(endpoint: &Endpoint, managed: bool) -> Result<Conversation, CallError> {
    let conversation = Conversation::of(&endpoint.format, managed);
    if !conversation.has_whole_bodies() {
        // A body would be checked together with the query.
        InspectedBody::without_body(&endpoint.format, managed).map_err(body_refused)?;
    }
    Ok(conversation)
}

/// The endpoint that the request names, and the metadata of its calls.
async fn endpoint(
    route: SocketRoute<'_>,
    head: &RequestHead<'_>,
    (credential, owner): (&Credential, KeyOwner),
    gateway: &Gateway,
) -> Result<(Arc<Endpoint>, Metadata), CallError> {
    let managed = credential.is_managed();
    let (found, text) = match route {
        SocketRoute::Url => {
            let ForwardParameters { u, metadata } = ForwardParameters::of(head)?;
            let url = u.strip_prefix("ws").map(|rest| ["http", rest].concat());
            let url = url.ok_or_else(|| {
                CallError::not_supported(
                    "must be a wss URL, because the request is for a WebSocket",
                )
            });
            let found = url
                .and_then(|url| find_endpoint(&Method::CONNECT, &url, managed, &gateway.providers));
            (found.map_err(|refused| refused.within("u"))?, metadata)
        }
        SocketRoute::Provider(name) => {
            let PassthroughQuery { query, metadata } = PassthroughQuery::of(head);
            let (at, providers) = ((head.path, query.as_deref()), &gateway.providers);
            (find_at_provider(&Method::CONNECT, name, at, managed, providers)?, metadata)
        }
        SocketRoute::DropIn => {
            let PassthroughQuery { metadata, .. } = PassthroughQuery::of(head);
            let rules = owner.rules(&gateway.store).await?;
            let route = DropInRoute::of(&RequestHead { method: &Method::CONNECT, ..*head });
            (route.socket_endpoint(head, &rules, managed, gateway)?, metadata)
        }
    };
    // The cost of a call on another one cannot be known, with any key.
    if found.format.operation.is_none() {
        return Err(CallError::not_supported(format!(
            "is not a WebSocket of {} that is known here",
            found.provider.name
        )));
    }
    Ok((found, metadata(head, text.as_deref())?))
}

/// The subprotocols that the client offers, without credentials.
fn offered_protocols(headers: &HeaderMap, managed: bool) -> Option<HeaderValue> {
    // They choose an account, as the headers of these names.
    const ACCOUNTS: [&str; 2] = ["openai-organization.", "openai-project."];
    let is_passed = |protocol: &&str| {
        let is_account = ACCOUNTS.iter().any(|account| protocol.starts_with(account));
        let is_dropped = protocol.starts_with(SUBPROTOCOL_KEY) || (managed && is_account);
        !protocol.is_empty() && !is_dropped
    };
    let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).filter_map(|line| line.to_str().ok());
    let passed: Vec<_> =
        lines.flat_map(|line| line.split(',')).map(str::trim).filter(is_passed).collect();
    HeaderValue::from_str(&passed.join(", ")).ok().filter(|_| !passed.is_empty())
}
