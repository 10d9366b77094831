//! Providers as data: a built-in table that the operator's configuration overrides and extends.

mod builtin;
mod document;
mod endpoint;
mod endpoint_cache;
mod provider;
mod settings;

use std::sync::Arc;

use awc::http::Method;
use tollgate_domain::Issue;
use url::Url;

use self::builtin::BUILTIN;
pub use self::document::provider_pages;
use self::endpoint::parse;
pub use self::endpoint::{Endpoint, EndpointError};
use self::endpoint_cache::EndpointCache;
pub use self::provider::{Mount, Provider};
pub use self::settings::ProviderSettings;
pub(crate) use self::settings::is_header_value;

/// All known providers.
#[derive(Clone, Debug)]
pub struct ProviderTable {
    /// The configured ones, then the other built-in ones.
    providers: Vec<Arc<Provider>>,
    /// The number of configured ones.
    configured: usize,
    /// Endpoints by their URLs.
    by_url: EndpointCache,
    /// Endpoints by a provider and the path below it.
    by_path: EndpointCache,
}

impl ProviderTable {
    /// The built-in providers, none of them with a key.
    pub fn builtin() -> Self {
        // A row whose URL has a name to fill in has no URL until it is configured.
        let named = |row: &&builtin::BuiltinProvider| row.base_url.contains('{');
        let providers = BUILTIN.iter().filter(|row| !named(row)).filter_map(|row| {
            Some(Arc::new(Provider {
                name: row.name.to_owned(),
                traits: Arc::new(row.traits(row.name)),
                mounts: row.mounts.to_vec(),
                base_url: Url::parse(row.base_url).ok()?,
                allow_private_network: false,
                managed_endpoints: Vec::new(),
                webhook_secret: None,
                api_key: None,
            }))
        });
        Self {
            providers: providers.collect(),
            configured: 0,
            by_url: EndpointCache::default(),
            by_path: EndpointCache::default(),
        }
    }

    /// Overrides a provider of the table, or adds one, which must have `base_url` and `dialect`.
    ///
    /// # Errors
    /// All issues of the settings, with paths that start at the provider. The table is then
    /// unchanged.
    pub fn configure(&mut self, name: &str, settings: ProviderSettings) -> Result<(), Vec<Issue>> {
        let provider = Arc::new(settings.apply(name, self.get(name).map(Arc::as_ref))?);
        let present = self.providers.iter().position(|provider| provider.name == name);
        let place = present.unwrap_or(usize::MAX).min(self.configured);
        if let Some(present) = present {
            self.providers.remove(present);
        }
        self.providers.insert(place, provider);
        (self.by_url, self.by_path) = (EndpointCache::default(), EndpointCache::default());
        self.configured = self.configured.max(place.saturating_add(1));
        Ok(())
    }

    /// The provider with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Provider>> {
        self.iter().find(|provider| provider.name == name)
    }

    /// All providers: the configured ones in the order in which they were first configured, then
    /// the other built-in ones by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Provider>> {
        self.providers.iter()
    }

    /// Finds the provider and endpoint of `u`, which comes from the caller and is not trusted: a
    /// managed key goes wherever this function says.
    ///
    /// There must be one way to read `u`. It is parsed once. If the parsed URL, written again,
    /// differs from `u` in any letter, `u` is refused, not repaired.
    ///
    /// # Errors
    /// [`EndpointError`] says which rule it breaks, or that no provider matches.
    pub fn find(&self, method: &Method, u: &str) -> Result<Arc<Endpoint>, EndpointError> {
        self.by_url.get_or_insert_with(method, u, || self.resolve(method, u))
    }

    /// As [`Provider::endpoint`], with a cache for paths without a query.
    pub fn find_below(
        &self,
        provider: &Arc<Provider>,
        method: &Method,
        path: &str,
        query: Option<&str>,
    ) -> Option<Arc<Endpoint>> {
        let found = || provider.endpoint(method, path, query).ok_or(());
        if query.is_some() {
            return found().ok().map(Arc::new);
        }
        // No path has a space, so different names and paths make different texts.
        let text = format!("{} {path}", provider.name);
        self.by_path.get_or_insert_with(method, &text, found).ok()
    }

    /// As [`ProviderTable::find_below`], at the part of the provider whose path is this version, if it has the endpoint.
    pub fn find_at_version(
        &self,
        provider: &Arc<Provider>,
        method: &Method,
        (version, path): (&str, &str),
        query: Option<&str>,
    ) -> Option<Arc<Endpoint>> {
        let path_with_version = format!("{version}{path}");
        let found = || {
            let exact = provider.endpoint_at(method, &path_with_version, query).ok();
            let listed = exact.filter(|endpoint| endpoint.format.operation.is_some());
            listed.or_else(|| provider.endpoint(method, path, query)).ok_or(())
        };
        if query.is_some() {
            return found().ok().map(Arc::new);
        }
        let text = format!("{} version {path_with_version}", provider.name);
        self.by_path.get_or_insert_with(method, &text, found).ok()
    }

    /// As [`ProviderTable::find`], without the cache.
    ///
    /// # Errors
    /// [`EndpointError`] says which rule it breaks, or that no provider matches.
    pub fn resolve(&self, method: &Method, u: &str) -> Result<Endpoint, EndpointError> {
        let url = &parse(u)?;
        // Of two providers on a host, the longer prefix wins; of equal prefixes, the first.
        let candidates = self.iter().filter_map(|provider| {
            let (mount, path) = provider.mount_at(method, url)?;
            Some((provider, mount, path))
        });
        let (provider, mount, path) =
            candidates.min_by_key(|(.., path)| path.len()).ok_or(EndpointError::UnknownProvider)?;
        Endpoint::new(provider, mount, method, path, url)
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
