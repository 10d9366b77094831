//! The archive of Tollgate: months of records as sealed Parquet files, in a folder or an S3 bucket.
//!
//! A month has files of at most a million rows for each table, and a manifest. The manifest has the SHA-256 of each file,
//! the sums of its amounts by merchant, and the SHA-256 of the previous manifest. Files of a sealed month never change.
//!
//! ```text
//! manifests/2026-01.json
//! requests/month=2026-01/00001.parquet
//! ```
//!
//! This crate knows files, not the business: a [`Table`] describes its rows as typed columns. All functions block. Call
//! them from threads for blocking work.

mod archive;
mod column;
mod error;
mod file_reader;
mod file_writer;
mod location;
mod manifest;
mod sealing;
mod selection;
mod walk;

pub use archive::Archive;
pub use column::{Cells, Column, ColumnType, Table, Value};
pub use error::ArchiveError;
pub use location::Location;
pub use manifest::{ArchivedFile, Manifest, MerchantSums, Sums, decimal};
pub use sealing::MonthWriter;
pub use selection::{Condition, Selection};
pub use walk::{Ascending, Descending, Part};
