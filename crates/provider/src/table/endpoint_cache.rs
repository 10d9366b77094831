//! A cache of resolved endpoints.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use awc::http::Method;

use super::endpoint::Endpoint;

/// The most endpoints that are kept. Then the cache is cleared.
const MOST: usize = 1_000;
/// The longest text that is kept. A longer one is resolved each time.
const MAX_TEXT_BYTES: usize = 512;

/// Resolved endpoints by the text of the request for them. Most calls go to a few, and to parse a
/// URL with the necessary care costs more than the rest of the head.
///
/// The same text leads to the same endpoint while the table is unchanged. A text that may carry a
/// secret is not kept.
#[derive(Default)]
pub(super) struct EndpointCache(RwLock<HashMap<String, Arc<Endpoint>>>);

impl EndpointCache {
    /// The endpoint that is kept for `text`, else the one that `find` returns.
    pub(super) fn get_or_insert_with<E>(
        &self,
        method: &Method,
        text: &str,
        find: impl FnOnce() -> Result<Endpoint, E>,
    ) -> Result<Arc<Endpoint>, E> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = known.get(text).filter(|known| known.method == *method) {
            return Ok(Arc::clone(endpoint));
        }
        drop(known);
        let endpoint = Arc::new(find()?);
        if text.len() <= MAX_TEXT_BYTES && !endpoint.may_carry_secret() {
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(text.to_owned(), Arc::clone(&endpoint));
        }
        Ok(endpoint)
    }
}

/// An empty cache: a change of the copied table may invalidate the entries.
impl Clone for EndpointCache {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for EndpointCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ProviderSettings, ProviderTable};
    use super::*;

    #[test]
    fn an_endpoint_is_found_once_and_by_its_own_method_only() {
        let table = ProviderTable::builtin();
        let url = "https://api.openai.com/v1/responses/resp_1?stream=true";
        let find = |method: Method| table.find(&method, url).unwrap();
        let first = find(Method::GET);
        assert!(Arc::ptr_eq(&first, &find(Method::GET)));
        assert_eq!(find(Method::DELETE).method, Method::DELETE);
        assert_eq!(find(Method::GET).method, Method::GET);
        let below = |name: &str| {
            let path = "/chat/completions";
            table.find_below(table.get(name).unwrap(), &Method::POST, path, None).unwrap()
        };
        assert!(Arc::ptr_eq(&below("groq"), &below("groq")));
        assert_eq!(below("openai").provider.name, "openai");
    }

    #[test]
    fn what_may_carry_a_secret_and_what_is_long_is_not_kept() {
        let table = ProviderTable::builtin();
        let long = "x".repeat(MAX_TEXT_BYTES);
        for query in ["key=abc".to_owned(), format!("page={long}")] {
            let url = format!("https://api.openai.com/v1/models?{query}");
            let find = || table.find(&Method::GET, &url).unwrap();
            assert!(!Arc::ptr_eq(&find(), &find()), "{query}");
        }
        assert!(table.by_url.0.read().unwrap().is_empty());
    }

    #[test]
    fn what_was_found_is_forgotten_when_the_table_changes_and_when_it_is_much() {
        let mut table = ProviderTable::builtin();
        let url = "https://api.openai.com/v1/models";
        table.find(&Method::GET, url).unwrap();
        let eu = ProviderSettings {
            base_url: Some("https://eu.api.openai.com/v1".to_owned()),
            ..ProviderSettings::default()
        };
        table.configure("openai", eu).unwrap();
        assert!(table.find(&Method::GET, url).is_err());
        for number in 0..=MOST {
            let url = format!("https://eu.api.openai.com/v1/models/{number}");
            table.find(&Method::GET, &url).unwrap();
            assert!(table.by_url.0.read().unwrap().len() <= MOST);
        }
    }
}
