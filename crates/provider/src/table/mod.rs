//! Providers as data: a built-in table that the operator's configuration overrides and extends.

mod endpoint;
mod settings;

use std::fmt;
use std::sync::Arc;

use awc::http::Method;
use tollgate_domain::Issue;
use url::Url;

pub use self::endpoint::{Endpoint, EndpointError};
pub use self::settings::ProviderSettings;
pub(crate) use self::settings::is_header_value;
use crate::dialect::Dialect;

/// One row of the built-in table.
struct Row {
    name: &'static str,
    base_url: &'static str,
    dialect: Dialect,
    /// Whether `stream_options` may be inserted into a streamed body.
    stream_options: bool,
}

/// The providers that need no configuration but a key. Ordered by name.
const BUILTIN: [Row; 2] = [
    Row {
        name: "anthropic",
        base_url: "https://api.anthropic.com/v1",
        dialect: Dialect::Anthropic,
        stream_options: false,
    },
    Row {
        name: "openai",
        base_url: "https://api.openai.com/v1",
        dialect: Dialect::OpenAi,
        stream_options: true,
    },
];

/// A provider to which calls may be forwarded.
#[derive(Clone)]
pub struct Provider {
    /// The name in the configuration, in price lists and in records.
    pub name: String,
    /// How it speaks.
    pub dialect: Dialect,
    /// Origin and path prefix, without a slash at the end. Nothing outside is ever called.
    pub base_url: Url,
    /// Whether it may stand at a private address, and speak plain `http`.
    pub allow_private_network: bool,
    /// Whether a managed key may be used with handles to what the provider stores (files, earlier
    /// responses, prompts): only where every caller may see what every other stored.
    pub allow_stored_state: bool,
    /// Whether `stream_options` may be inserted into a streamed body.
    pub stream_options: bool,
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

    pub(crate) fn api_key(&self) -> Option<&str> {
        self.api_key.as_deref()
    }
}

/// Never prints the key.
impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("dialect", &self.dialect)
            .field("base_url", &self.base_url.as_str())
            .field("allow_private_network", &self.allow_private_network)
            .field("allow_stored_state", &self.allow_stored_state)
            .field("stream_options", &self.stream_options)
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
}

impl ProviderTable {
    /// The built-in providers, none of them with a key.
    pub fn builtin() -> Self {
        // A row whose URL does not parse would be left out; a test parses them all.
        let providers = BUILTIN.iter().filter_map(|row| {
            Some(Arc::new(Provider {
                name: row.name.to_owned(),
                dialect: row.dialect,
                base_url: Url::parse(row.base_url).ok()?,
                allow_private_network: false,
                allow_stored_state: false,
                stream_options: row.stream_options,
                managed_endpoints: Vec::new(),
                api_key: None,
            }))
        });
        Self { providers: providers.collect(), configured: 0 }
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
    fn every_builtin_row_makes_a_provider() {
        let table = ProviderTable::builtin();
        assert_eq!(table.iter().count(), BUILTIN.len());
        for (provider, row) in table.iter().zip(&BUILTIN) {
            assert_eq!(provider.name, row.name, "ordered by name");
            assert_eq!(provider.base_url.scheme(), "https");
            assert_eq!(provider.base_url.as_str(), row.base_url, "in normal form");
            assert!(!row.base_url.ends_with('/'));
        }
    }
}
