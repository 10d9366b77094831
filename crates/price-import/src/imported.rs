//! The content of an imported price list.

use std::collections::BTreeMap;
use tollgate_pricing::{Catalog, CatalogFile, PriceRow};

use crate::note::ImportNote;
use crate::tidy;

/// The rows, fallbacks and notes read from a price list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedPrices {
    /// The rows: one for each model and period of its prices, not grouped by equal prices.
    pub rows: Vec<PriceRow>,
    /// Per provider, the providers whose prices apply to models that it does not list.
    pub fallbacks: BTreeMap<String, Vec<String>>,
    /// Notes on data that was left out and on decisions.
    pub notes: Vec<ImportNote>,
}

impl ImportedPrices {
    /// The import as a [`Catalog`] of its own.
    pub fn into_catalog(self) -> Catalog {
        self.into_file().into()
    }

    /// The import as a price list file, its rows grouped by equal prices and sorted.
    pub fn into_file(self) -> CatalogFile {
        let mut file =
            CatalogFile { fallbacks: self.fallbacks, rows: self.rows, ..CatalogFile::default() };
        tidy::group(&mut file.rows);
        file
    }
}
