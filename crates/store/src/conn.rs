//! A connection to either database, and how one is opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diesel::connection::{AnsiTransactionManager, SimpleConnection, TransactionManager};
use diesel::pg::PgConnection;
use diesel::sqlite::SqliteConnection;
use diesel::{Connection, QueryResult};

use crate::error::StoreError;
use crate::files::{canonical, private};

/// A connection to SQLite or PostgreSQL.
#[derive(diesel::MultiConnection)]
pub enum Conn {
    /// A file.
    Sqlite(SqliteConnection),
    /// A server.
    Postgres(PgConnection),
}

/// Writes an expression once and compiles it per database: for what the derived connection cannot
/// express (`on_conflict`, batches, row locks).
macro_rules! each_database {
    ($conn:expr, $inner:ident => $body:expr) => {
        match $conn {
            $crate::conn::Conn::Sqlite($inner) => $body,
            $crate::conn::Conn::Postgres($inner) => $body,
        }
    };
}
pub(crate) use each_database;

impl Conn {
    /// Runs `work` in a transaction that may write: `Err` takes everything back.
    ///
    /// On SQLite it takes the write lock at once, so that nothing read in it can be overtaken.
    ///
    /// # Errors
    /// What `work` returned, or the database's own error from beginning or committing.
    pub fn write<T, E>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        self.transaction("BEGIN IMMEDIATE", "BEGIN", work)
    }

    /// As [`Conn::write`], but a row that somebody else has locked is waited for two seconds only, where
    /// rows are locked.
    ///
    /// # Errors
    /// What `work` returned, the database's own error from beginning or committing, or
    /// [`StoreError::Unavailable`] when a lock was not to be had.
    pub fn write_apart<T, E>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        self.transaction("BEGIN IMMEDIATE", "BEGIN; SET LOCAL lock_timeout = '2s'", work)
    }

    /// As [`Conn::write_apart`]. On SQLite the transaction is not waited for until it is on the disk: a power cut may take
    /// it back, as long as no later one of this connection was committed. For what can be done again.
    pub(crate) fn write_again<T, E>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        self.set_synchronous("NORMAL")?;
        let done = self.write_apart(work);
        self.set_synchronous("FULL")?;
        done
    }

    fn set_synchronous(&mut self, mode: &str) -> Result<(), StoreError> {
        let Self::Sqlite(conn) = self else { return Ok(()) };
        let done = conn.batch_execute(&format!("PRAGMA synchronous = {mode}"));
        if done.is_err() {
            // A connection in an unknown mode is not used again.
            AnsiTransactionManager::transaction_manager_status_mut(conn).set_in_error();
        }
        Ok(done?)
    }

    /// As [`Conn::write`], but a row that somebody else has locked is not waited for longer than it takes to
    /// think again, where rows are locked.
    ///
    /// # Errors
    /// As [`Conn::write_apart`].
    pub(crate) fn write_soon<T, E>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        self.transaction("BEGIN IMMEDIATE", "BEGIN; SET LOCAL lock_timeout = '100ms'", work)
    }

    /// Runs `work` in a transaction that sees one state of the database throughout.
    ///
    /// # Errors
    /// As [`Conn::write`].
    pub fn snapshot<T, E>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        // It may think for a while between two questions, and has locked nothing.
        let postgres = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
                        SET LOCAL idle_in_transaction_session_timeout = 0";
        self.transaction("BEGIN", postgres, work)
    }

    /// Asks the database for a sign of life.
    ///
    /// # Errors
    /// Those of the store.
    pub fn ping(&mut self) -> Result<(), StoreError> {
        Ok(each_database!(self, conn => conn.batch_execute("SELECT 1"))?)
    }

    fn transaction<T, E>(
        &mut self,
        sqlite: &str,
        postgres: &str,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        let begun = match self {
            Self::Sqlite(conn) => AnsiTransactionManager::begin_transaction_sql(conn, sqlite),
            Self::Postgres(conn) => AnsiTransactionManager::begin_transaction_sql(conn, postgres),
        };
        begun.map_err(StoreError::from)?;
        let result = work(self);
        let ended = match result {
            Ok(_) => each_database!(self, conn => AnsiTransactionManager::commit_transaction(conn)),
            Err(_) => {
                each_database!(self, conn => AnsiTransactionManager::rollback_transaction(conn))
            }
        };
        match ended {
            Err(cause) if result.is_ok() => Err(StoreError::from(cause).of_a_commit().into()),
            // A rollback that fails leaves a connection that is not used again.
            _ => result,
        }
    }
}

/// Where the database is.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A SQLite file that is deleted on exit.
    SqliteTemporary,
    /// A PostgreSQL server, in libpq's URL form.
    Postgres(String),
}

/// The text names no database that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseDatabaseUrlError {
    /// It does not read as any database's name.
    Form,
    /// It asks for encryption, which is not compiled in.
    Encrypted,
}

impl fmt::Display for ParseDatabaseUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => {
                "must be sqlite:PATH, sqlite::memory: or postgres://USER:PASSWORD@HOST/DATABASE, with \
                 `/`, `?` and `@` in a user or password percent-encoded"
            }
            Self::Encrypted => {
                "asks for an encrypted connection by `sslmode`, which is not compiled in: leave it \
                 out, and reach the server by a socket, a private network or a tunnel"
            }
        })
    }
}

impl std::error::Error for ParseDatabaseUrlError {}

impl FromStr for DatabaseUrl {
    type Err = ParseDatabaseUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            // libpq would take what stands before a `/` for host and port, and say so aloud.
            return match (place(text).contains('@'), is_encrypted(text)) {
                (true, _) => Err(ParseDatabaseUrlError::Form),
                (_, true) => Err(ParseDatabaseUrlError::Encrypted),
                _ => Ok(Self::Postgres(text.to_owned())),
            };
        }
        let path = text.strip_prefix("sqlite:");
        match path.map(|path| path.strip_prefix("//").unwrap_or(path)) {
            Some(":memory:") => Ok(Self::SqliteTemporary),
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(PathBuf::from(path))),
            _ => Err(ParseDatabaseUrlError::Form),
        }
    }
}

/// Whether a PostgreSQL URL wants no connection but an encrypted one.
fn is_encrypted(url: &str) -> bool {
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    let mode = parameters.split('&').find_map(|parameter| parameter.strip_prefix("sslmode="));
    matches!(mode, Some("require" | "verify-ca" | "verify-full"))
}

impl fmt::Debug for DatabaseUrl {
    /// Without user, password and parameters, any of which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::SqliteTemporary => f.write_str("sqlite::memory:"),
            Self::Postgres(url) => {
                let place = place(url);
                let place = if place.contains('@') { "…" } else { place };
                write!(f, "postgres://{place}")
            }
        }
    }
}

/// Host, port and database of a PostgreSQL URL. A user ends where libpq lets it end: at the first `@`
/// before any `/`, whatever else stands between.
fn place(url: &str) -> &str {
    let place = url.split_once("://").map_or("", |(_, place)| place);
    let authority = place.split('/').next().unwrap_or_default();
    let place = match authority.split_once('@') {
        Some((user, _)) => place.get(user.len().saturating_add(1)..).unwrap_or_default(),
        None => place,
    };
    place.split('?').next().unwrap_or_default()
}

/// Opens connections, for a pool and for the ledger, and knows whether the last one could be opened.
/// Clones share that.
#[derive(Clone, Debug)]
pub(crate) struct Manager {
    place: Place,
    away: Arc<AtomicBool>,
    /// Whether one was ever opened. Until then whoever asked for it is told why it was not.
    reached: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
enum Place {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Manager {
    pub(crate) fn sqlite(path: &Path) -> Self {
        Self::new(Place::Sqlite(canonical(path)))
    }

    pub(crate) fn postgres(url: &str) -> Self {
        Self::new(Place::Postgres(with_timeouts(url)))
    }

    fn new(place: Place) -> Self {
        Self { place, away: Arc::default(), reached: Arc::default() }
    }

    /// The path of the file, where it is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::Sqlite(path) => Some(path),
            Place::Postgres(_) => None,
        }
    }

    /// Whether the database could not be reached when it was last tried.
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    fn open(&self) -> Result<Conn, StoreError> {
        let unreachable =
            |cause: diesel::ConnectionError| StoreError::Unavailable(cause.to_string());
        match &self.place {
            Place::Sqlite(path) => {
                let path = path.to_str().ok_or_else(|| {
                    StoreError::Unavailable("the path of the database is not UTF-8".to_owned())
                })?;
                // SQLite's own logs get the mode of the file. Where it cannot be made, SQLite says why.
                drop(private().create_new(true).open(path));
                let mut conn = SqliteConnection::establish(path).map_err(unreachable)?;
                conn.batch_execute(SQLITE_PRAGMAS).map_err(|cause| {
                    let is_other = cause.to_string().contains("file is not a database");
                    match is_other {
                        true => StoreError::Unavailable(format!("{path} is no SQLite database")),
                        false => cause.into(),
                    }
                })?;
                Ok(Conn::Sqlite(conn))
            }
            Place::Postgres(url) => {
                let mut conn = PgConnection::establish(url).map_err(unreachable)?;
                conn.batch_execute(POSTGRES_SETTINGS)?;
                Ok(Conn::Postgres(conn))
            }
        }
    }
}

/// Durable means durable: FULL survives a power cut. The busy timeout covers other processes
/// (a backup, a subcommand); our own writes queue for one writer.
const SQLITE_PRAGMAS: &str = "
    PRAGMA busy_timeout = 10000;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA foreign_keys = ON;
";

/// A process that stops in the middle of a transaction, alive or not, must not keep what it has locked
/// from all others for as long as PostgreSQL believes in it.
///
/// What is committed is durable, whatever the server's own setting: with a synchronous standby on that, too.
const POSTGRES_SETTINGS: &str = "SET idle_in_transaction_session_timeout = '10s'; SET synchronous_commit = on; \
     SET bytea_output = hex";

impl r2d2::ManageConnection for Manager {
    type Connection = Conn;
    type Error = StoreError;

    fn connect(&self) -> Result<Conn, StoreError> {
        let opened = self.open();
        let was_away = self.away.swap(opened.is_err(), Ordering::Relaxed);
        let was_reached = self.reached.fetch_or(opened.is_ok(), Ordering::Relaxed);
        // Said when it goes and when it comes back, not for every call in between.
        match &opened {
            Ok(_) if was_away && was_reached => log::info!("the store can be reached again"),
            Err(cause) if !was_away && was_reached => log::error!("{cause}"),
            _ => {}
        }
        opened
    }

    fn is_valid(&self, conn: &mut Conn) -> Result<(), StoreError> {
        conn.ping()
    }

    fn has_broken(&self, conn: &mut Conn) -> bool {
        std::thread::panicking() || is_broken(conn)
    }
}

/// A server that is silent must be noticed; what the operator set himself stays as it is.
fn with_timeouts(url: &str) -> String {
    let mut url = url.to_owned();
    for (name, value) in [
        ("connect_timeout", "5"),
        ("tcp_user_timeout", "10000"),
        // A server that has vanished while it owed an answer is noticed within 20 s.
        ("keepalives_idle", "5"),
        ("keepalives_interval", "5"),
        ("keepalives_count", "3"),
    ] {
        if !url.contains(&format!("{name}=")) {
            let separator = if url.contains('?') { '&' } else { '?' };
            url.push_str(&format!("{separator}{name}={value}"));
        }
    }
    url
}

/// Whether the connection is lost or stuck in a transaction.
pub(crate) fn is_broken(conn: &mut Conn) -> bool {
    match conn {
        Conn::Sqlite(conn) => AnsiTransactionManager::is_broken_transaction_manager(conn),
        Conn::Postgres(conn) => AnsiTransactionManager::is_broken_transaction_manager(conn),
    }
}

/// Locks that serve until the session ends are PostgreSQL's; SQLite's one writer needs none.
pub(crate) fn advisory_lock(conn: &mut Conn, take: bool) -> QueryResult<()> {
    // An arbitrary number that no other application is likely to use: "tollgate" in ASCII.
    const MIGRATIONS: i64 = 0x746f_6c6c_6761_7465;
    match conn {
        Conn::Sqlite(_) => Ok(()),
        Conn::Postgres(conn) => {
            let call = if take { "pg_advisory_lock" } else { "pg_advisory_unlock" };
            conn.batch_execute(&format!("SELECT {call}({MIGRATIONS})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_asks_for_encryption_is_refused() {
        for (text, taken) in [
            ("postgres://db/tollgate?sslmode=require", false),
            ("postgres://db/tollgate?user=a&sslmode=verify-full", false),
            ("postgres://db/tollgate?sslmode=prefer", true),
            ("postgres://db/tollgate?application_name=sslmode=require", true),
        ] {
            let parsed = text.parse::<DatabaseUrl>();
            let expected = if taken { None } else { Some(ParseDatabaseUrlError::Encrypted) };
            assert_eq!(parsed.err(), expected, "{text}");
        }
    }

    #[test]
    fn a_url_shows_where_and_neither_who_nor_how() {
        for (text, shown) in [
            ("postgres://db/tollgate", "postgres://db/tollgate"),
            ("postgres://user:canary@db:5432/tollgate", "postgres://db:5432/tollgate"),
            ("postgresql://canary@db/tollgate?password=canary", "postgres://db/tollgate"),
            ("postgres://user:a?canary@db/tollgate", "postgres://db/tollgate"),
            ("postgres://user:a%2Fcanary@db/tollgate", "postgres://db/tollgate"),
            ("postgres:///tollgate?host=/run&user=a@canary", "postgres:///tollgate"),
            ("sqlite:/var/lib/tollgate.db", "sqlite:/var/lib/tollgate.db"),
        ] {
            let url: DatabaseUrl = text.parse().unwrap();
            assert_eq!(format!("{url:?}"), shown, "{text}");
        }
        // libpq would read these in another way than whoever wrote them.
        for text in ["postgres://user:a/canary@db/tollgate", "postgres://user:a@canary@db/tollgate"]
        {
            assert_eq!(text.parse::<DatabaseUrl>(), Err(ParseDatabaseUrlError::Form), "{text}");
            let shown = format!("{:?}", DatabaseUrl::Postgres(text.to_owned()));
            assert!(!shown.contains("canary"), "{shown}");
        }
    }
}
