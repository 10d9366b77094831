//! Errors of tables.

use std::error::Error;
use std::fmt;

/// A table that cannot be read.
#[derive(Debug)]
pub enum ImportError {
    /// It is none of those that are imported.
    UnknownTable {
        /// The table.
        table: String,
        /// The names of those that are imported.
        known: &'static [&'static str],
    },
    /// It is no JSON array of rows.
    NoRows {
        /// The table.
        table: String,
        /// The reason.
        cause: serde_json::Error,
    },
    /// A row cannot be read.
    Row {
        /// The table.
        table: String,
        /// The number of the row, from 1.
        row: usize,
        /// The reason.
        cause: serde_json::Error,
    },
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTable { table, known } => {
                let known = known.join(", ");
                write!(f, "{table} is no table that is imported: expected one of {known}")
            }
            Self::NoRows { table, cause } => write!(f, "{table} is no JSON array of rows: {cause}"),
            Self::Row { table, row, cause } => write!(f, "{table}, row {row}: {cause}"),
        }
    }
}

impl Error for ImportError {}
