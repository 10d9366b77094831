//! What was read from a price list.

use std::collections::BTreeMap;

use super::note::Note;
use super::tidy;
use crate::catalog::{Catalog, CatalogFile};
use crate::price_row::PriceRow;

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
