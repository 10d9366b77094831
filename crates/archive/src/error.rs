//! The errors of the archive.

use std::fmt;

/// The reason that an operation on the archive failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The location is not a URL of a folder or a bucket, with the reason.
    Location(String),
    /// The location cannot be reached, or not in time.
    Unreachable(String),
    /// A file is missing.
    Missing(String),
    /// A file is not what its manifest says, or cannot be read.
    Damaged {
        /// The path of the file in the archive.
        path: String,
        /// The difference.
        why: String,
    },
    /// The month was sealed from another database.
    Foreign(String),
    /// The month was sealed with other rows.
    OtherRows(String),
    /// A temporary file cannot be written.
    Io(std::io::Error),
}

impl ArchiveError {
    /// The error for a file that is damaged.
    pub fn damaged(path: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Damaged { path: path.into(), why: why.to_string() }
    }
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Location(why) => {
                write!(f, "`archive_url` is not a location of an archive: {why}")
            }
            Self::Unreachable(why) => write!(f, "the archive cannot be reached: {why}"),
            Self::Missing(path) => write!(f, "the archive lacks {path}"),
            Self::Damaged { path, why } => write!(f, "{path} of the archive is damaged: {why}"),
            Self::Foreign(path) => write!(
                f,
                "{path} of the archive belongs to another database: each needs an `archive_url` of its own"
            ),
            Self::OtherRows(path) => write!(
                f,
                "{path} of the archive was sealed with other records: this database is older than the archive, or \
                 a copy"
            ),
            Self::Io(cause) => write!(f, "a temporary file cannot be written: {cause}"),
        }
    }
}

impl std::error::Error for ArchiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(cause) => Some(cause),
            _ => None,
        }
    }
}

impl From<std::io::Error> for ArchiveError {
    fn from(cause: std::io::Error) -> Self {
        Self::Io(cause)
    }
}
