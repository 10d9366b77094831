//! A provider, and the parts of its API.

use std::fmt;

use awc::http::Method;
use tollgate_domain::RequestFormat;
use url::Url;

use crate::dialect::{Dialect, Operation, Rows, path_matches};

/// A part of a provider's API: what lies below a path of it, and how it speaks there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Below the base URL; empty where there is one part only.
    pub path: &'static str,
    /// How it speaks.
    pub dialect: Dialect,
    pub(crate) rows: Rows,
}

impl Mount {
    /// All that lies below the base URL, where the provider speaks `dialect`.
    pub(crate) const fn whole(dialect: Dialect) -> Self {
        Self { path: "", dialect, rows: dialect.operations() }
    }

    /// The endpoints on which a managed key may be used, in the order in which they are tried.
    pub fn operations(&self) -> impl Iterator<Item = &'static Operation> + use<> {
        self.rows.iter().copied().flatten()
    }

    /// The one of them that `path` below the mount is.
    pub(super) fn operation(&self, method: &Method, path: &str) -> Option<&'static Operation> {
        self.operations().find(|row| row.method == *method && path_matches(row.path, path))
    }
}

/// A provider to which calls may be forwarded.
#[derive(Clone)]
pub struct Provider {
    /// The name in the configuration, in price lists and in records.
    pub name: String,
    /// Whose rows of the price lists are its own: its name, unless the operator says otherwise.
    pub price_list: String,
    /// The parts of its API.
    pub mounts: Vec<Mount>,
    /// Origin and path prefix, without a slash at the end. Nothing outside is ever called.
    pub base_url: Url,
    /// Whether it may stand at a private address, and speak plain `http`.
    pub allow_private_network: bool,
    /// Whether a managed key may be used with handles to what the provider stores (files, earlier
    /// responses, prompts): only where every caller may see what every other stored.
    pub allow_stored_state: bool,
    /// Whether `stream_options` may be inserted into a streamed body.
    pub stream_options: bool,
    /// Whether chat honours `max_completion_tokens` beside `max_tokens`: where it does not, that field
    /// bounds nothing.
    pub max_completion_tokens: bool,
    /// Endpoints beyond those of the dialect on which the managed key may be used.
    pub managed_endpoints: Vec<(Method, String)>,
    pub(super) api_key: Option<String>,
}

impl Provider {
    /// Whether the operator has configured a key for it.
    pub fn has_api_key(&self) -> bool {
        self.api_key.is_some()
    }

    /// Whether calls may be made without a key of the caller's: the operator has configured one, or
    /// it stands in a network of their own, where it may well want none.
    pub fn takes_managed_calls(&self) -> bool {
        self.has_api_key() || self.allow_private_network
    }

    /// Whether any of its endpoints takes requests of a format.
    pub fn speaks(&self, shape: RequestFormat) -> bool {
        let mut rows = self.mounts.iter().flat_map(Mount::operations);
        rows.any(|row| row.api.shape() == Some(shape))
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
            .field("price_list", &self.price_list)
            .field("mounts", &self.mounts)
            .field("base_url", &self.base_url.as_str())
            .field("allow_private_network", &self.allow_private_network)
            .field("allow_stored_state", &self.allow_stored_state)
            .field("stream_options", &self.stream_options)
            .field("max_completion_tokens", &self.max_completion_tokens)
            .field("managed_endpoints", &self.managed_endpoints)
            .field("has_api_key", &self.has_api_key())
            .finish()
    }
}
