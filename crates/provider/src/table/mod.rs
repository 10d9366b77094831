//! Providers as data: a built-in table that the operator's configuration overrides and extends.

mod builtin;
mod document;
mod endpoint;
mod known;
mod settings;

use std::fmt;
use std::sync::Arc;

use awc::http::Method;
use tollgate_domain::{Issue, RequestFormat};
use url::Url;

use self::builtin::BUILTIN;
pub use self::document::ProvidersDocument;
pub use self::endpoint::{Endpoint, EndpointError};
use self::known::Known;
pub use self::settings::ProviderSettings;
pub(crate) use self::settings::is_header_value;
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
    fn operation(&self, method: &Method, path: &str) -> Option<&'static Operation> {
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
    api_key: Option<String>,
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

/// Every provider that is known.
#[derive(Clone, Debug)]
pub struct ProviderTable {
    /// Those that are configured, then the other built-in ones.
    providers: Vec<Arc<Provider>>,
    /// How many are configured.
    configured: usize,
    /// Endpoints by their URLs.
    by_url: Known,
    /// Endpoints by a provider and the path below it.
    by_path: Known,
}

impl ProviderTable {
    /// The built-in providers, none of them with a key.
    pub fn builtin() -> Self {
        // A row whose URL has a name to fill in has no place to call until it is configured.
        let named = |row: &&builtin::Row| row.base_url.contains('{');
        let providers = BUILTIN.iter().filter(|row| !named(row)).filter_map(|row| {
            Some(Arc::new(Provider {
                name: row.name.to_owned(),
                price_list: row.name.to_owned(),
                mounts: row.mounts.to_vec(),
                base_url: Url::parse(row.base_url).ok()?,
                allow_private_network: false,
                allow_stored_state: false,
                stream_options: row.stream_options,
                max_completion_tokens: row.max_completion_tokens,
                managed_endpoints: Vec::new(),
                api_key: None,
            }))
        });
        Self {
            providers: providers.collect(),
            configured: 0,
            by_url: Known::default(),
            by_path: Known::default(),
        }
    }

    /// Overrides a provider of the table, or adds one, which must have `base_url` and `dialect`.
    ///
    /// # Errors
    /// Everything that is wrong with the settings; paths start at the provider. Then the table is
    /// unchanged.
    pub fn configure(&mut self, name: &str, settings: ProviderSettings) -> Result<(), Vec<Issue>> {
        let provider = Arc::new(settings.apply(name, self.get(name).map(Arc::as_ref))?);
        let present = self.providers.iter().position(|provider| provider.name == name);
        let place = present.unwrap_or(usize::MAX).min(self.configured);
        if let Some(present) = present {
            self.providers.remove(present);
        }
        self.providers.insert(place, provider);
        (self.by_url, self.by_path) = (Known::default(), Known::default());
        self.configured = self.configured.max(place.saturating_add(1));
        Ok(())
    }

    /// The provider of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<Provider>> {
        self.iter().find(|provider| provider.name == name)
    }

    /// All providers: the configured ones in the order in which they were first configured, then
    /// the other built-in ones by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Provider>> {
        self.providers.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_row_makes_a_provider_once_it_is_configured() {
        let mut table = ProviderTable::builtin();
        let settings = |resource: &str, region: &str| ProviderSettings {
            resource: Some(resource.to_owned()).filter(|text| !text.is_empty()),
            region: Some(region.to_owned()).filter(|text| !text.is_empty()),
            ..ProviderSettings::default()
        };
        table.configure("azure", settings("my-resource", "")).unwrap();
        table.configure("bedrock", settings("", "eu-central-1")).unwrap();
        assert_eq!(table.iter().count(), BUILTIN.len());
        assert!(BUILTIN.is_sorted_by_key(|row| row.name));
        for row in &BUILTIN {
            let provider = table.get(row.name).unwrap();
            assert_eq!(provider.base_url.scheme(), "https");
            let filled = row.base_url.replace("{resource}", "my-resource");
            let filled = filled.replace("{region}", "eu-central-1");
            let url = provider.base_url.as_str().trim_end_matches('/');
            assert_eq!(url, filled, "in normal form");
        }
    }

    #[test]
    fn a_name_in_a_url_must_be_given_and_be_a_name() {
        let mut table = ProviderTable::builtin();
        assert!(table.get("azure").is_none(), "there is no place to call yet");
        let refused = table.configure("azure", ProviderSettings::default()).unwrap_err();
        assert_eq!(refused[0].path, ["resource"]);
        for name in ["", "a.b", "a/b", "evil.com#", "-a", "A"] {
            let resource = Some(name.to_owned());
            let settings = ProviderSettings { resource, ..ProviderSettings::default() };
            let refused = table.configure("azure", settings).unwrap_err();
            assert_eq!(refused[0].path, ["resource"], "{name}");
        }
        let region = Some("eu-central-1".to_owned());
        let settings = ProviderSettings { region, ..ProviderSettings::default() };
        let refused = table.configure("openai", settings).unwrap_err();
        assert_eq!(refused[0].path, ["region"], "it has no such name");
    }
}
