//! The migrations of the schema, embedded in the program.

mod series;

use std::fmt;

use diesel::RunQueryDsl;
use diesel::dsl::sql;
use diesel::migration::{Migration, MigrationSource, MigrationVersion};
use diesel::sql_types::Bool;
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};

use crate::conn::{Conn, advisory_lock};
use crate::error::StoreError;

const SQLITE: EmbeddedMigrations = embed_migrations!("../../migrations/sqlite");
const POSTGRES: EmbeddedMigrations = embed_migrations!("../../migrations/postgres");

/// The reason that the schema cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum MigrationError {
    /// The store could not be queried.
    Store(StoreError),
    /// A migration failed; it was rolled back.
    Failed(String),
    /// The store has a migration that this program does not know: a newer version wrote it.
    Unknown(String),
    /// Migrations are missing and the operator runs them by hand.
    Pending(usize),
    /// No migration was ever run: the database is new, or another program's.
    Untouched,
}

impl fmt::Display for MigrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(cause) => cause.fmt(f),
            Self::Failed(why) => write!(f, "a migration failed and was taken back: {why}"),
            Self::Unknown(version) => write!(
                f,
                "the database has the migration {version}, which this version of tollgate does \
                 not know: run the version that wrote it, or a newer one"
            ),
            Self::Pending(count) => {
                write!(f, "{count} migrations are missing: run `tollgate migrate`")
            }
            Self::Untouched => f.write_str(
                "it has none of tollgate's tables: look at `database_url`; `tollgate migrate` makes them",
            ),
        }
    }
}

impl std::error::Error for MigrationError {}

impl From<StoreError> for MigrationError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

/// Migrates the schema, one process at a time. Returns the number of migrations that ran.
pub(crate) fn run(conn: &mut Conn) -> Result<usize, MigrationError> {
    advisory_lock(conn, true).map_err(StoreError::from)?;
    let ran = match conn {
        Conn::Sqlite(conn) => run_on(conn, SQLITE),
        Conn::Postgres(conn) => run_on(conn, POSTGRES),
    };
    let completed = ran.is_ok().then(|| series::complete(conn));
    advisory_lock(conn, false).map_err(StoreError::from)?;
    completed.transpose()?;
    ran
}

/// Fails unless the schema is exactly the one that this program knows. Changes nothing.
pub(crate) fn check(conn: &mut Conn) -> Result<(), MigrationError> {
    // A query for migrations would create the table in which they are noted.
    if !is_noted(conn).map_err(StoreError::from)? {
        return Err(MigrationError::Untouched);
    }
    let mut pending = match conn {
        Conn::Sqlite(conn) => pending_on(conn, SQLITE),
        Conn::Postgres(conn) => pending_on(conn, POSTGRES),
    }?;
    // A process may end between the last migration and the sums that it leaves to the program.
    if pending == 0 && !series::are_complete(conn)? {
        pending = 1;
    }
    if pending == 0 { Ok(()) } else { Err(MigrationError::Pending(pending)) }
}

/// Whether migrations are missing.
///
/// # Errors
/// [`MigrationError::Unknown`] when the database has one that this program does not know.
pub(crate) fn are_missing(conn: &mut Conn) -> Result<bool, MigrationError> {
    match check(conn) {
        Ok(()) => Ok(false),
        Err(MigrationError::Pending(_) | MigrationError::Untouched) => Ok(true),
        Err(cause) => Err(cause),
    }
}

/// Whether the table exists in which migrations are noted.
fn is_noted(conn: &mut Conn) -> diesel::QueryResult<bool> {
    let there = match conn {
        Conn::Sqlite(_) => {
            "EXISTS (SELECT 1 FROM sqlite_master WHERE name = '__diesel_schema_migrations')"
        }
        Conn::Postgres(_) => "to_regclass('__diesel_schema_migrations') IS NOT NULL",
    };
    diesel::select(sql::<Bool>(there)).get_result(conn)
}

fn run_on<DB: diesel::backend::Backend>(
    conn: &mut impl MigrationHarness<DB>,
    source: EmbeddedMigrations,
) -> Result<usize, MigrationError>
where
    EmbeddedMigrations: MigrationSource<DB>,
{
    refuse_unknown(conn, &source)?;
    let failed =
        |cause: Box<dyn std::error::Error + Send + Sync>| MigrationError::Failed(cause.to_string());
    Ok(conn.run_pending_migrations(source).map_err(failed)?.len())
}

fn pending_on<DB: diesel::backend::Backend>(
    conn: &mut impl MigrationHarness<DB>,
    source: EmbeddedMigrations,
) -> Result<usize, MigrationError>
where
    EmbeddedMigrations: MigrationSource<DB>,
{
    refuse_unknown(conn, &source)?;
    let pending = conn.pending_migrations(source);
    Ok(pending.map_err(|cause| MigrationError::Failed(cause.to_string()))?.len())
}

fn refuse_unknown<DB: diesel::backend::Backend>(
    conn: &mut impl MigrationHarness<DB>,
    source: &EmbeddedMigrations,
) -> Result<(), MigrationError>
where
    EmbeddedMigrations: MigrationSource<DB>,
{
    let failed =
        |cause: Box<dyn std::error::Error + Send + Sync>| MigrationError::Failed(cause.to_string());
    let known = MigrationSource::<DB>::migrations(source).map_err(failed)?;
    let known: Vec<MigrationVersion<'_>> =
        known.iter().map(|migration| migration.name().version().as_owned()).collect();
    let applied = conn.applied_migrations().map_err(failed)?;
    match applied.iter().find(|version| !known.contains(version)) {
        Some(version) => Err(MigrationError::Unknown(version.to_string())),
        None => Ok(()),
    }
}
