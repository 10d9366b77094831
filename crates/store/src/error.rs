//! The errors of the store.

use std::fmt;

/// The reason that an operation of the store failed.
///
/// Business outcomes (taken, not found, refused) are not errors: the functions return them as values.
#[derive(Debug)]
pub enum StoreError {
    /// The database cannot be reached, or not in time, or its disk is full or fails.
    Unavailable(String),
    /// The archive cannot be read or written, with the reason. The database is there.
    Archive(String),
    /// The merchant moves to this cell, or has moved there. Nothing is done for it here.
    Moved(i32),
    /// Other transactions change the same rows again and again. Nothing was done; a later attempt may
    /// succeed.
    Busy(String),
    /// The connection was lost in the middle: the operation may have been done, or not.
    Interrupted,
    /// The database refused a statement.
    Database(diesel::result::Error),
    /// A row has a value that cannot be read.
    Corrupt {
        /// The value's table and column.
        what: &'static str,
        /// The value that was found.
        value: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "the store cannot be reached: {why}"),
            Self::Archive(why) => f.write_str(why),
            Self::Moved(cell) => {
                write!(f, "the merchant moves to cell {cell}, or has moved there")
            }
            Self::Busy(why) => write!(f, "the store is busy: {why}"),
            Self::Interrupted => f.write_str("the store did not say whether it was done"),
            Self::Database(_) => f.write_str("the store refused a statement"),
            Self::Corrupt { what, value } => write!(f, "unreadable {what} in the store: {value}"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Database(cause) => Some(cause),
            _ => None,
        }
    }
}

/// PostgreSQL's message for a row that another transaction has locked for too long.
const LOCKED: &str = "canceling statement due to lock timeout";
/// SQLite's message for a full disk. The commit was not done then.
const FULL: &str = "database or disk is full";

impl From<diesel::result::Error> for StoreError {
    fn from(cause: diesel::result::Error) -> Self {
        use diesel::result::DatabaseErrorKind::{
            ClosedConnection, ReadOnlyTransaction, UnableToSendCommand, Unknown,
        };
        // libpq's messages for a server that has gone in the middle of a statement.
        const GONE: [&str; 4] = [
            "server closed the connection",
            "no connection to the server",
            "terminating connection",
            "the database system is",
        ];
        // The messages of both databases for a disk that is full or fails.
        const DISK: [&str; 4] =
            ["No space left on device", FULL, "disk I/O error", "unable to open database file"];
        match cause {
            // Another server has taken over, or an operator has stopped writes.
            diesel::result::Error::DatabaseError(
                ClosedConnection | ReadOnlyTransaction | UnableToSendCommand,
                why,
            ) => Self::Unavailable(why.message().to_owned()),
            diesel::result::Error::DatabaseError(Unknown, why)
                if [&GONE[..], &[LOCKED], &DISK]
                    .into_iter()
                    .flatten()
                    .any(|words| why.message().contains(words)) =>
            {
                Self::Unavailable(why.message().to_owned())
            }
            cause => Self::Database(cause),
        }
    }
}

impl From<r2d2::Error> for StoreError {
    fn from(cause: r2d2::Error) -> Self {
        Self::Unavailable(cause.to_string())
    }
}

impl StoreError {
    /// This error as that of a commit: if the connection was lost, the outcome is unknown.
    pub(crate) fn into_commit_error(self) -> Self {
        match self {
            Self::Unavailable(why) if !why.contains(FULL) => Self::Interrupted,
            cause => cause,
        }
    }

    /// Whether the database failed, and not the statement.
    pub(crate) const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Interrupted)
    }

    /// Whether another transaction has locked a row for longer than the timeout.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Unavailable(why) if why.contains(LOCKED))
    }

    /// This error, but a SQLite file that another program keeps writing to counts as unavailable.
    pub(crate) fn or_unavailable(self) -> Self {
        match self.has_message("database is locked") {
            true => Self::Unavailable("another program keeps writing to it".to_owned()),
            false => self,
        }
    }

    /// The error for a row that is missing, although other rows refer to it.
    pub(crate) fn missing(noun: &str, id: impl fmt::Display) -> Self {
        Self::Corrupt { what: "row (it is missing)", value: format!("{noun} {id}") }
    }

    /// Whether SQLite has found that its file is damaged.
    pub(crate) fn is_damage(&self) -> bool {
        self.has_message("malformed")
    }

    /// Whether the database refused a statement with these words. SQLite does not translate its messages.
    fn has_message(&self, words: &str) -> bool {
        match self {
            Self::Database(diesel::result::Error::DatabaseError(_, info)) => {
                info.message().contains(words)
            }
            _ => false,
        }
    }

    /// Whether another attempt may succeed: the database was busy, or broke a deadlock.
    ///
    /// diesel does not report the SQLSTATE of a deadlock (40P01), and PostgreSQL translates its message. So each error
    /// without a kind of its own counts. A statement that is refused for another reason is refused again.
    pub(crate) const fn is_transient(&self) -> bool {
        use diesel::result::DatabaseErrorKind::{SerializationFailure, Unknown};
        use diesel::result::Error::DatabaseError;
        matches!(self, Self::Database(DatabaseError(SerializationFailure | Unknown, _)))
    }
}
