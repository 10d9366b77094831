use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use awc::http::Method;

use super::Endpoint;

/// So many are kept at most; then they are begun anew.
const MOST: usize = 1_000;
/// What is asked for with a longer text is found anew each time.
const MAX_TEXT_BYTES: usize = 512;

/// Endpoints that were found before, by the text that they were asked for with. Most calls go to a
/// few: to take a URL apart with all the care that it needs costs more than the rest of its head.
///
/// The same text leads to the same endpoint as long as the table stays as it is. A text that may
/// carry a secret is not kept.
#[derive(Default)]
pub(super) struct Known(RwLock<HashMap<String, Arc<Endpoint>>>);

impl Known {
    /// The endpoint that `text` was found to mean, or what `find` finds it to mean.
    pub(super) fn get_or<E>(
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

/// Whoever changes the copy must not find what the original knew.
impl Clone for Known {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known(…)")
    }
}
