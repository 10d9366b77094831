//! A provider, and the parts of its API.

use std::fmt;
use std::sync::Arc;

use awc::http::Method;
use tollgate_domain::{RequestFormat, WebhookSecret};
use tollgate_usage::dialect::rows::OperationSets;
use tollgate_usage::dialect::{Api, path_matches};
use tollgate_usage::{Dialect, Operation, ProviderTraits};
use url::Url;

/// The format of the requests of an endpoint with these answers, if it is one of the two common
/// ones.
pub(super) const fn shape_of(api: Api) -> Option<RequestFormat> {
    match api {
        Api::Chat | Api::Responses | Api::Realtime | Api::Embeddings => Some(RequestFormat::ShapeA),
        Api::Messages => Some(RequestFormat::ShapeB),
        _ => None,
    }
}

/// A part of a provider's API: a path, and the dialect below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The path below the base URL; empty if there is only one part.
    pub path: &'static str,
    /// The dialect of the part.
    pub dialect: Dialect,
    pub(crate) rows: OperationSets,
}

impl Mount {
    /// The whole API below the base URL, in one dialect.
    pub(crate) const fn whole(dialect: Dialect) -> Self {
        Self { path: "", dialect, rows: dialect.operations() }
    }

    /// The endpoints on which a managed key may be used, in the order in which they are tried.
    pub fn operations(&self) -> impl Iterator<Item = &'static Operation> + use<> {
        self.rows.iter().copied().flatten()
    }

    /// The row of `path` below the mount.
    pub(super) fn operation(&self, method: &Method, path: &str) -> Option<&'static Operation> {
        self.operations().find(|row| row.method == method.as_str() && path_matches(row.path, path))
    }
}

/// A provider to which calls may be forwarded.
#[derive(Clone)]
pub struct Provider {
    /// The name in the configuration, in price lists and in records.
    pub name: String,
    /// The facts that decide how bodies are read, such as the provider whose price rows apply: its
    /// own name, unless the operator sets another.
    pub traits: Arc<ProviderTraits>,
    /// The parts of its API.
    pub mounts: Vec<Mount>,
    /// Origin and path prefix, without a slash at the end. Nothing outside is ever called.
    pub base_url: Url,
    /// Whether it may have a private address, and speak plain `http`.
    pub allow_private_network: bool,
    /// Endpoints for the managed key, beyond the endpoints of the dialect.
    pub managed_endpoints: Vec<(Method, String)>,
    /// The secret by which its events are signed (Standard Webhooks).
    pub webhook_secret: Option<WebhookSecret>,
    pub(super) api_key: Option<String>,
}

impl Provider {
    /// Whether the operator has configured a key for it.
    pub fn has_api_key(&self) -> bool {
        self.api_key.is_some()
    }

    /// Whether calls may be made without the caller's own key: the operator has configured a key,
    /// or the provider is in a private network, where it may need none.
    pub fn takes_managed_calls(&self) -> bool {
        self.has_api_key() || self.allow_private_network
    }

    /// Whether any of its endpoints takes requests of this format.
    pub fn supports_format(&self, shape: RequestFormat) -> bool {
        let mut rows = self.mounts.iter().flat_map(Mount::operations);
        rows.any(|row| shape_of(row.api) == Some(shape))
    }

    pub(crate) fn api_key(&self) -> Option<&str> {
        self.api_key.as_deref()
    }
}

/// Never prints the key.
impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("traits", &self.traits)
            .field("mounts", &self.mounts)
            .field("base_url", &self.base_url.as_str())
            .field("allow_private_network", &self.allow_private_network)
            .field("managed_endpoints", &self.managed_endpoints)
            .field("has_api_key", &self.has_api_key())
            .finish()
    }
}
