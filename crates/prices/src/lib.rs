#![doc = include_str!("../README.md")]

use std::sync::OnceLock;

use tollgate_pricing::{Catalog, CatalogError};

/// The catalogue of this crate. It is parsed once per process; clones share it.
///
/// # Errors
/// [`CatalogError`] when the catalogue does not parse. A test of this crate reads every row.
pub fn catalog() -> Result<Catalog, CatalogError> {
    static CATALOG: OnceLock<Catalog> = OnceLock::new();
    if let Some(catalog) = CATALOG.get() {
        return Ok(catalog.clone());
    }
    let catalog = Catalog::from_json(include_str!("../catalog.json"))?;
    Ok(CATALOG.get_or_init(|| catalog).clone())
}
