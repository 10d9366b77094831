//! Price lists of others, read into rows of ours: text in, rows and notes out.
//!
//! Two formats are read: the JSON of the `genai-prices` project and LiteLLM's map of prices. What a
//! list says and our rows cannot, and what it says that cannot be meant, is left out with a note.

mod changes;
mod fill;
mod format;
mod genai_prices;
mod imported;
mod litellm;
mod note;
mod number;
mod patterns;
mod tidy;
mod time_of_day;
mod write;

use std::fmt;

use crate::catalog::CatalogFile;

pub use changes::{Change, Disagreement, Kind, Update};
pub use format::Format;
pub use imported::Imported;
pub use note::Note;
pub use tidy::{Mistake, mistakes};

impl Format {
    /// Reads a price list in this format.
    ///
    /// # Errors
    /// [`ImportError`] when the text is not in this format at all.
    pub fn read(self, text: &str) -> Result<Imported, ImportError> {
        // What some programs write before a text in UTF-8.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let (mut read, rows) = match self {
            Self::GenaiPrices => genai_prices::read(text)?,
            Self::Litellm => litellm::read(text)?,
        };
        read.rows = tidy::checked(rows, &mut read.notes);
        read.notes.sort();
        read.notes.dedup();
        Ok(read)
    }
}

/// Puts the rows of a file in order: one row for all models whose prices are the same.
pub fn tidy(file: &mut CatalogFile) {
    tidy::group(&mut file.rows);
}

/// Why a text is no price list of its format.
#[derive(Debug)]
pub struct ImportError(serde_json::Error);

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a price list of this format: {}", self.0)
    }
}

// Its text says what its cause does.
impl std::error::Error for ImportError {}
