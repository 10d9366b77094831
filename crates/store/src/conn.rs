//! A connection to either database, and its opening.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diesel::connection::{AnsiTransactionManager, SimpleConnection, TransactionManager};
use diesel::pg::PgConnection;
use diesel::sqlite::SqliteConnection;
use diesel::{Connection, QueryResult};

use crate::error::StoreError;
use crate::files::{canonical, private};
use crate::postgres_url::{ParseDatabaseUrlError, PostgresUrl, TlsMode};
use crate::tls_tunnel::TlsTunnel;
use crate::watchdog::Watchdog;

/// A connection to SQLite or PostgreSQL.
#[derive(diesel::MultiConnection)]
pub enum Conn {
    /// A file.
    Sqlite(SqliteConnection),
    /// A server.
    Postgres(PgConnection),
}

/// Compiles one expression for each database.
///
/// For statements that the derived connection cannot express (`on_conflict`, batches, row locks).
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
    /// Runs `work` in a transaction that may write. `Err` rolls it back.
    ///
    /// On SQLite it takes the write lock at once: no other write comes after its reads and before its
    /// commit.
    ///
    /// # Errors
    /// The error of `work`, or the database's own error from beginning or committing.
    pub fn write<T, E>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        self.transaction("BEGIN IMMEDIATE", "BEGIN", work)
    }

    /// As [`Conn::write`], but waits for a locked row for two seconds at most.
    ///
    /// Only PostgreSQL locks rows.
    ///
    /// # Errors
    /// The error of `work`, the database's own error from beginning or committing, or
    /// [`StoreError::Unavailable`] when a lock was not released in time.
    pub fn write_bounded<T, E>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        self.transaction("BEGIN IMMEDIATE", "BEGIN; SET LOCAL lock_timeout = '2s'", work)
    }

    /// As [`Conn::write_bounded`], for work that can be repeated.
    ///
    /// On SQLite the commit does not wait for the disk. A power cut may take it back, as long as no later
    /// transaction of this connection was committed.
    pub(crate) fn write_repeatable<T, E>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<StoreError>,
    {
        self.set_synchronous("NORMAL")?;
        let done = self.write_bounded(work);
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

    /// As [`Conn::write_bounded`], but waits for a locked row for 100 ms at most.
    ///
    /// # Errors
    /// As [`Conn::write_bounded`].
    pub(crate) fn write_short_wait<T, E>(
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
        // The transaction may be idle between two queries: calls do not wait for it. Partitions are not replaced between its
        // state and its first look at them. `LOCK` does not fix the state yet.
        let postgres = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
                        SET LOCAL idle_in_transaction_session_timeout = 0; \
                        LOCK TABLE ONLY requests, request_index, transactions IN ACCESS SHARE MODE";
        self.transaction("BEGIN", postgres, work)
    }

    /// Checks that the database answers.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
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
            Err(cause) if result.is_ok() => Err(StoreError::from(cause).into_commit_error().into()),
            // A rollback that fails leaves a connection that is not used again.
            _ => result,
        }
    }
}

/// The place of the database.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A SQLite file that is deleted on exit.
    SqliteTemporary,
    /// A PostgreSQL server, in libpq's URL form.
    Postgres(String),
}

impl FromStr for DatabaseUrl {
    type Err = ParseDatabaseUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            PostgresUrl::parse(text)?;
            return Ok(Self::Postgres(text.to_owned()));
        }
        let path = text.strip_prefix("sqlite:");
        match path.map(|path| path.strip_prefix("//").unwrap_or(path)) {
            Some(":memory:") => Ok(Self::SqliteTemporary),
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(PathBuf::from(path))),
            _ => Err(ParseDatabaseUrlError::Form),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    /// Omits user, password and parameters, any of which may be secret.
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

/// Host, port and database of a PostgreSQL URL.
///
/// The user ends where libpq ends it: at the first `@` before any `/`.
fn place(url: &str) -> &str {
    let place = url.split_once("://").map_or("", |(_, place)| place);
    let authority = place.split('/').next().unwrap_or_default();
    let place = match authority.split_once('@') {
        Some((user, _)) => place.get(user.len().saturating_add(1)..).unwrap_or_default(),
        None => place,
    };
    place.split('?').next().unwrap_or_default()
}

/// Opens connections, and knows whether the last attempt succeeded.
///
/// The pool and the ledger use it. Clones share its state.
#[derive(Clone, Debug)]
pub(crate) struct ConnManager {
    place: DatabaseLocation,
    unavailable: Arc<AtomicBool>,
    /// Whether a connection was ever opened. Before that, a failure is returned and not logged.
    reached: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
enum DatabaseLocation {
    Sqlite(PathBuf),
    /// A URL.
    Postgres(Watchdog, String),
    /// The way to its servers, its URL, and the URL without encryption if that will do.
    PostgresOverTls(Watchdog, Arc<TlsTunnel>, String, Option<String>),
}

impl ConnManager {
    pub(crate) fn sqlite(path: &Path) -> Self {
        Self::new(DatabaseLocation::Sqlite(canonical(path)))
    }

    /// A connection on which no answer comes is closed after `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the encryption that the URL asks for cannot be set up.
    pub(crate) fn postgres(url: &str, timeout: Duration) -> Result<Self, StoreError> {
        let plainly = |url: String| {
            let watchdog = Watchdog::start(&url, timeout)?;
            Ok(Self::new(DatabaseLocation::Postgres(watchdog, url)))
        };
        let parsed = PostgresUrl::parse(url);
        let parsed = parsed.map_err(|cause| StoreError::Unavailable(cause.to_string()))?;
        let Some(tls) = &parsed.tls else { return plainly(with_timeouts(url, timeout)) };
        // What is preferred and cannot be had is not needed.
        let is_preferred = tls.mode == TlsMode::Prefer;
        let plain = is_preferred.then(|| with_timeouts(&without_tls(url), timeout));
        match (TlsTunnel::start(&parsed, tls), plain) {
            (Ok(tunnel), plain) => {
                let url = with_timeouts(tunnel.url(), timeout);
                let watchdog = Watchdog::start(&url, timeout)?;
                let tunnel = Arc::new(tunnel);
                Ok(Self::new(DatabaseLocation::PostgresOverTls(watchdog, tunnel, url, plain)))
            }
            (Err(cause), Some(plain)) => {
                log::warn!("no encrypted connections to PostgreSQL: {cause}");
                plainly(plain)
            }
            (Err(cause), None) => Err(cause),
        }
    }

    /// Whether the last connection to a server was encrypted. `None` for a file.
    pub(crate) fn is_encrypted(&self) -> Option<bool> {
        match &self.place {
            DatabaseLocation::Sqlite(_) => None,
            DatabaseLocation::Postgres(..) => Some(false),
            DatabaseLocation::PostgresOverTls(_, tunnel, ..) => Some(tunnel.is_encrypted()),
        }
    }

    fn new(place: DatabaseLocation) -> Self {
        Self { place, unavailable: Arc::default(), reached: Arc::default() }
    }

    /// The path of the file, if the database is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.place {
            DatabaseLocation::Sqlite(path) => Some(path),
            DatabaseLocation::Postgres(..) | DatabaseLocation::PostgresOverTls(..) => None,
        }
    }

    /// Whether the last attempt to reach the database failed.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.unavailable.load(Ordering::Relaxed)
    }

    fn open(&self) -> Result<Conn, StoreError> {
        let unreachable =
            |cause: diesel::ConnectionError| StoreError::Unavailable(cause.to_string());
        match &self.place {
            DatabaseLocation::Sqlite(path) => {
                let path = path.to_str().ok_or_else(|| {
                    StoreError::Unavailable("the path of the database is not UTF-8".to_owned())
                })?;
                // SQLite's own logs get the mode of the file. If the file cannot be made, SQLite reports
                // why.
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
            DatabaseLocation::Postgres(watchdog, url) => with_settings(watchdog.connect(url)?),
            DatabaseLocation::PostgresOverTls(watchdog, tunnel, url, plain) => {
                with_settings(match (watchdog.connect(url), plain) {
                    (Err(_), Some(plain)) => {
                        watchdog.connect(plain).inspect(|_| tunnel.note_plain())?
                    }
                    (opened, _) => opened?,
                })
            }
        }
    }
}

fn with_settings(mut conn: PgConnection) -> Result<Conn, StoreError> {
    conn.batch_execute(POSTGRES_SETTINGS)?;
    Ok(Conn::Postgres(conn))
}

/// The settings of a connection to SQLite.
///
/// The space of deleted rows can be given back to the file system, in a file that has no tables yet. FULL survives a power cut. The busy timeout is for other processes (a backup, a subcommand): the writes
/// of this process queue for one writer.
const SQLITE_PRAGMAS: &str = "
    PRAGMA busy_timeout = 10000;
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA foreign_keys = ON;
";

/// The settings of a connection to PostgreSQL.
///
/// A process that stops in the middle of a transaction must not keep its locks for as long as PostgreSQL
/// keeps its session.
///
/// A commit is durable whatever the server's own setting, and also on a synchronous standby.
///
/// Statements are short: to compile one takes longer than to run it, and a cost that the planner overestimates would compile it.
const POSTGRES_SETTINGS: &str = "SET idle_in_transaction_session_timeout = '10s'; SET synchronous_commit = on; \
     SET bytea_output = hex; SET jit = off";

impl r2d2::ManageConnection for ConnManager {
    type Connection = Conn;
    type Error = StoreError;

    fn connect(&self) -> Result<Conn, StoreError> {
        let opened = self.open();
        let was_unavailable = self.unavailable.swap(opened.is_err(), Ordering::Relaxed);
        let was_reached = self.reached.fetch_or(opened.is_ok(), Ordering::Relaxed);
        // Logged when the database is lost and when it is back, not for every call in between.
        match &opened {
            Ok(_) if was_unavailable && was_reached => log::info!("the store can be reached again"),
            Err(cause) if !was_unavailable && was_reached => log::error!("{cause}"),
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

/// Adds timeouts, so that a silent server is noticed. The operator's own settings stay.
fn with_timeouts(url: &str, timeout: Duration) -> String {
    let mut url = url.to_owned();
    let opens_within = timeout.as_millis().div_ceil(1_000).to_string();
    for (name, value) in [
        ("connect_timeout", &*opens_within),
        ("tcp_user_timeout", "10000"),
        // A server that vanishes before it has answered is noticed within 20 s.
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

/// The URL without the parameters of encryption, which libpq has not.
fn without_tls(url: &str) -> String {
    let (place, parameters) = url.split_once('?').unwrap_or((url, ""));
    let kept = parameters.split('&').filter(|parameter| !parameter.starts_with("ssl"));
    let kept: Vec<_> = kept.filter(|parameter| !parameter.is_empty()).collect();
    match kept.is_empty() {
        true => place.to_owned(),
        false => format!("{place}?{}", kept.join("&")),
    }
}

/// Whether the connection is lost or stuck in a transaction.
pub(crate) fn is_broken(conn: &mut Conn) -> bool {
    match conn {
        Conn::Sqlite(conn) => AnsiTransactionManager::is_broken_transaction_manager(conn),
        Conn::Postgres(conn) => AnsiTransactionManager::is_broken_transaction_manager(conn),
    }
}

/// Takes or releases the lock of migrations on PostgreSQL. SQLite's one writer needs none.
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
        // libpq would read these URLs in another way than their writer.
        for text in ["postgres://user:a/canary@db/tollgate", "postgres://user:a@canary@db/tollgate"]
        {
            assert_eq!(text.parse::<DatabaseUrl>(), Err(ParseDatabaseUrlError::Form), "{text}");
            let shown = format!("{:?}", DatabaseUrl::Postgres(text.to_owned()));
            assert!(!shown.contains("canary"), "{shown}");
        }
    }
}
