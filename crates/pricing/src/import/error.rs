//! What is wrong with a price list as a whole.

use std::fmt;

/// Why a text is no price list of its format.
#[derive(Debug)]
pub struct ImportError(pub(super) serde_json::Error);

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a price list of this format: {}", self.0)
    }
}

// Its text says what its cause does.
impl std::error::Error for ImportError {}
