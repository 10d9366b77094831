//! The check whether a call may go to a URL, with the kind of key it is made with.

use std::sync::Arc;

use tollgate_provider::http::Method;
use tollgate_provider::{Endpoint, Provider, ProviderTable};

use crate::error::CallError;

/// The endpoint of a URL, if the call may go there with this kind of key.
pub(crate) fn find_endpoint(
    method: &Method,
    url: &str,
    managed: bool,
    providers: &ProviderTable,
) -> Result<Arc<Endpoint>, CallError> {
    let endpoint =
        providers.find(method, url).map_err(|why| CallError::not_supported(why.to_string()))?;
    check_endpoint(endpoint, managed)
}

/// The endpoint of a provider route, by the provider's name and the path of the route, if the call may go there with
/// this kind of key.
pub(crate) fn find_at_provider(
    method: &Method,
    name: &str,
    (path, query): (&str, Option<&str>),
    managed: bool,
    providers: &ProviderTable,
) -> Result<Arc<Endpoint>, CallError> {
    let provider = providers.get(name).ok_or_else(|| {
        CallError::not_supported(format!(
            "there is no provider {name:?}: see the list of providers in the documentation"
        ))
    })?;
    let path = path.strip_prefix(&format!("/v1/providers/{name}")).unwrap_or_default();
    let found = provider.endpoint_at(method, path, query);
    let found = found.map_err(|why| CallError::not_supported(why.to_string()))?;
    check_endpoint(Arc::new(found), managed)
}

/// The endpoint, if the call may go there with this kind of key.
pub(crate) fn check_endpoint(
    endpoint: Arc<Endpoint>,
    managed: bool,
) -> Result<Arc<Endpoint>, CallError> {
    let provider = &endpoint.provider;
    if managed && !provider.takes_managed_calls() {
        return Err(CallError::not_supported(missing_key_hint(provider)));
    }
    if managed && !endpoint.allows_managed_key() {
        return Err(CallError::not_supported(format!(
            "with the operator's key only the listed endpoints of {} may be called: put your own \
             key into the forward token as provider_key",
            provider.name
        )));
    }
    Ok(endpoint)
}

/// The advice for a provider for which the operator has no key.
fn missing_key_hint(provider: &Provider) -> String {
    format!(
        "the operator has set no key for {}: put your own into the forward token as provider_key",
        provider.name
    )
}
