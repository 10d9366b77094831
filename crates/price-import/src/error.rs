//! The error of a price list that cannot be read at all.

use std::fmt;

/// The reason why a text is not a price list in its format.
#[derive(Debug)]
pub struct ImportError(pub(crate) serde_json::Error);

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a price list of this format: {}", self.0)
    }
}

// No source: the text already contains the text of the cause.
impl std::error::Error for ImportError {}
