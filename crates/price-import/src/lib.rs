//! Import of price lists of other projects: text in, price rows and notes out.
//!
//! Two formats are read: the JSON of the `genai-prices` project and LiteLLM's map of prices. Data that
//! price rows cannot express, and data that cannot be correct, is left out with a note.

mod changes;
mod error;
mod fill;
mod format;
mod genai_prices;
mod imported;
mod litellm;
mod note;
mod number;
mod patterns;
mod signature;
mod tidy;
mod time_of_day;
mod write;

use tollgate_pricing::CatalogFile;

pub use changes::{
    ChangeKind, ImportOptions, PriceChange, PriceDisagreement, disagreements, import_into,
    needs_review,
};
pub use error::ImportError;
pub use fill::fill;
pub use format::ImportFormat;
pub use imported::ImportedPrices;
pub use note::ImportNote;
pub use signature::{ParseSigningKeyError, SigningPublicKey};
pub use write::to_text;

impl ImportFormat {
    /// Reads a price list in this format.
    ///
    /// # Errors
    /// [`ImportError`] when the text is not in this format at all. A model that cannot be read is left out
    /// with a [`ImportNote`].
    pub fn read(self, text: &str) -> Result<ImportedPrices, ImportError> {
        // A byte order mark, which some programs write before UTF-8.
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

/// Sorts the rows of a file and groups models with equal prices into one row.
pub fn tidy(file: &mut CatalogFile) {
    tidy::group(&mut file.rows);
}
