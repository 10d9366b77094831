//! The errors of a move.

use std::fmt;

use tollgate_archive::ArchiveError;
use tollgate_domain::CellNumber;

use crate::error::StoreError;

/// The reason that a merchant is not moved. It stays where it is.
#[derive(Debug)]
#[non_exhaustive]
pub enum MoveError {
    /// A database failed.
    Store(StoreError),
    /// Both databases are of this cell.
    SameCell(CellNumber),
    /// The merchant is not in this database.
    NotHere,
    /// The merchant has not begun to move.
    NotMoving,
    /// The merchant has moved to this cell.
    HasMoved(i32),
    /// The merchant has moved to this cell, and the other database, which is of that cell, does not have it.
    NotThere(i32),
    /// The merchant has moved to this cell, which is another one, or a move there was interrupted.
    MovesTo(i32),
    /// Another command moves the merchant.
    Busy,
    /// The other database has neither a number nor a merchant.
    NoCell,
    /// The rows of this table cannot be copied.
    Copy {
        /// The table.
        table: &'static str,
        /// The error of the database.
        cause: StoreError,
    },
    /// The other database has the merchant.
    IsThere,
    /// The archive of this cell cannot be read.
    Archive(ArchiveError),
    /// This database has an archive, and no archive is configured.
    NoArchive,
    /// A month of this database is being archived.
    ArchivesHere,
    /// A month of the other database is being archived.
    ArchivesThere,
    /// Calls of the merchant are settled again and again.
    NotFolded,
    /// This number of calls did not end in time.
    OpenCalls(i64),
    /// The databases have different numbers of rows in this table.
    Differs {
        /// The table.
        table: &'static str,
        /// The rows in this database.
        here: i64,
        /// The rows in the other database.
        there: i64,
    },
}

impl MoveError {
    /// Adds the table to an error of its rows.
    pub(super) fn of_table(self, table: &'static str) -> Self {
        match self {
            Self::Store(cause) => Self::Copy { table, cause },
            other => other,
        }
    }
}

impl From<StoreError> for MoveError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

impl From<ArchiveError> for MoveError {
    fn from(cause: ArchiveError) -> Self {
        Self::Archive(cause)
    }
}

impl From<diesel::result::Error> for MoveError {
    fn from(cause: diesel::result::Error) -> Self {
        Self::Store(cause.into())
    }
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(cause) => cause.fmt(f),
            Self::SameCell(cell) => {
                write!(f, "the other database is of cell {cell}, as this one, or it is this one")
            }
            Self::NotHere => f.write_str("there is no such merchant"),
            Self::NotMoving => f.write_str("there is no such merchant that has begun to move"),
            Self::HasMoved(cell) => write!(f, "the merchant has moved to cell {cell}"),
            Self::NotThere(cell) => write!(
                f,
                "the merchant has moved to cell {cell}, and the other database, of cell {cell}, does not have it: name \
                 the database that has it"
            ),
            Self::MovesTo(cell) => write!(f, "the merchant has moved, or moves, to cell {cell}"),
            Self::Busy => {
                f.write_str("another command moves the merchant, or one of the same file")
            }
            Self::NoCell => f.write_str(
                "the other database is of no cell yet: serve it with `cell` in its configuration",
            ),
            Self::Copy { table, cause } => {
                write!(f, "the rows of {table} cannot be copied: {cause:?}")
            }
            Self::IsThere => f.write_str("the other database has the merchant"),
            Self::Archive(cause) => cause.fmt(f),
            Self::NoArchive => f.write_str(
                "months of this database are in an archive, and `archive_url` is not set",
            ),
            Self::ArchivesHere => f.write_str(
                "a month of this database is being archived: move the merchant afterwards",
            ),
            Self::ArchivesThere => f.write_str(
                "a month of the other database is being archived: move the merchant afterwards",
            ),
            Self::NotFolded => {
                f.write_str("calls of the merchant are still being settled: move it once more")
            }
            Self::OpenCalls(count) => write!(f, "{count} calls of the merchant have not ended"),
            Self::Differs { table, here, there } => {
                write!(f, "{table} has {here} rows here and {there} in the other database")
            }
        }
    }
}

impl std::error::Error for MoveError {}
