//! Price lists of others, read into rows of ours: text in, rows and notes out.
//!
//! Two formats are read: the JSON of the `genai-prices` project and LiteLLM's map of prices. What a
//! list says and our rows cannot, and what it says that cannot be meant, is left out with a note.

mod changes;
mod fill;
mod genai_prices;
mod litellm;
mod number;
mod patterns;
mod tidy;
mod time_of_day;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::catalog::{Catalog, CatalogFile};
use crate::price_row::PriceRow;

pub use changes::{Change, Disagreement, Kind, Update};
pub use tidy::{Mistake, mistakes};

/// A format of price lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The JSON of the `genai-prices` project: prices per million, with dates and variants.
    GenaiPrices,
    /// LiteLLM's map of models: prices of one, without dates.
    Litellm,
}

impl Format {
    /// Its name: what [`PriceRow::source`] says of its rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GenaiPrices => "genai-prices",
            Self::Litellm => "litellm",
        }
    }

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

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = [Self::GenaiPrices, Self::Litellm];
        known
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| "must be genai-prices or litellm".to_owned())
    }
}

/// What was read from a price list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The rows: one for each model and time of its prices, as yet not grouped by equal prices.
    pub rows: Vec<PriceRow>,
    /// For a provider, those whose prices hold where it lists none of its own.
    pub fallbacks: BTreeMap<String, Vec<String>>,
    /// What was not carried over, and what was decided.
    pub notes: Vec<Note>,
}

impl Imported {
    /// What was imported, as a catalogue of its own.
    pub fn into_catalog(self) -> Catalog {
        self.into_file().into()
    }

    /// The rows as a catalogue file, grouped by equal prices and in order.
    pub fn into_file(self) -> CatalogFile {
        let mut file =
            CatalogFile { sources: Vec::new(), fallbacks: self.fallbacks, rows: self.rows };
        tidy::group(&mut file.rows);
        file
    }
}

/// Puts the rows of a file in order: one row for all models whose prices are the same.
pub fn tidy(file: &mut CatalogFile) {
    tidy::group(&mut file.rows);
}

/// A remark on one model of a price list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// The provider: our name, or the list's where we have none.
    pub provider: String,
    /// The model as the list names it; empty where all models of the provider are meant.
    pub model: String,
    /// What there is to say.
    pub text: String,
    /// Whether the model is left out because something of it cannot be read: then it has no new price.
    pub left_out: bool,
}

impl Note {
    fn new(provider: &str, model: &str, text: impl Into<String>) -> Self {
        let (provider, model) = (provider.to_owned(), model.to_owned());
        Self { provider, model, text: text.into(), left_out: false }
    }

    /// That a model is left out, and what of it cannot be read.
    fn unreadable(provider: &str, model: &str, what: impl fmt::Display) -> Self {
        Self {
            left_out: true,
            ..Self::new(provider, model, format!("is left out, since it cannot be read: {what}"))
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = if self.model.is_empty() { "" } else { " " };
        write!(f, "{}{gap}{}: {}", self.provider, self.model, self.text)
    }
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
