use std::fmt;

/// Why the store could not do what it was asked. Business outcomes (taken, not found, refused) are
/// not errors; they are answers of the functions themselves.
#[derive(Debug)]
pub enum StoreError {
    /// The database cannot be reached, or not in time, or its disk takes nothing.
    Unavailable(String),
    /// Others change the same rows again and again. Nothing was done; later it may be.
    Busy(String),
    /// The connection was lost in the middle: what was asked may have been done, or not.
    Interrupted,
    /// The database refused a statement.
    Database(diesel::result::Error),
    /// A row cannot be read as what it should be.
    Corrupt {
        /// Which value of which table.
        what: &'static str,
        /// What stood there.
        value: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "the store cannot be reached: {why}"),
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
            Self::Unavailable(_) | Self::Busy(_) | Self::Interrupted | Self::Corrupt { .. } => None,
        }
    }
}

/// How PostgreSQL says that somebody else has locked a row for too long.
const LOCKED: &str = "canceling statement due to lock timeout";
/// How SQLite says that there is no room for a commit. Then it has not been done.
const FULL: &str = "database or disk is full";

impl From<diesel::result::Error> for StoreError {
    fn from(cause: diesel::result::Error) -> Self {
        use diesel::result::DatabaseErrorKind::{
            ClosedConnection, ReadOnlyTransaction, UnableToSendCommand, Unknown,
        };
        // How libpq says that a server has gone in the middle of a statement.
        const GONE: [&str; 4] = [
            "server closed the connection",
            "no connection to the server",
            "terminating connection",
            "the database system is",
        ];
        // How either says that its disk takes nothing more, or gives nothing any more.
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
    /// The same, of a commit: where it was lost, nobody knows whether it was done.
    pub(crate) fn of_a_commit(self) -> Self {
        match self {
            Self::Unavailable(why) if !why.contains(FULL) => Self::Interrupted,
            cause => cause,
        }
    }

    /// Whether the database is to blame, and not what it was asked.
    pub(crate) const fn is_away(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Interrupted)
    }

    /// Whether somebody else has locked a row for longer than was to be waited for.
    pub(crate) fn is_of_a_lock(&self) -> bool {
        matches!(self, Self::Unavailable(why) if why.contains(LOCKED))
    }

    /// The same, but a database that is busy, for longer than anybody waits, is away.
    pub(crate) fn or_away(self) -> Self {
        match self.is_transient() {
            true => Self::Unavailable("another program keeps writing to it".to_owned()),
            false => self,
        }
    }

    /// A row is not there that others say is.
    pub(crate) fn missing(noun: &str, id: impl fmt::Display) -> Self {
        Self::Corrupt { what: "row (it is missing)", value: format!("{noun} {id}") }
    }

    /// Whether SQLite has found that its file is damaged.
    pub(crate) fn is_of_damage(&self) -> bool {
        match self {
            Self::Database(diesel::result::Error::DatabaseError(_, info)) => {
                info.message().contains("malformed")
            }
            _ => false,
        }
    }

    /// Whether another attempt may well succeed: the database was busy, or broke a deadlock.
    pub(crate) fn is_transient(&self) -> bool {
        use diesel::result::DatabaseErrorKind::SerializationFailure;
        match self {
            Self::Database(diesel::result::Error::DatabaseError(kind, info)) => {
                matches!(kind, SerializationFailure)
                    || info.message().contains("deadlock detected")
                    || info.message().contains("database is locked")
            }
            _ => false,
        }
    }
}
