//! The migrations of the schema, embedded in the program.

mod series;

use std::fmt;

use diesel::dsl::sql;
use diesel::migration::{Migration, MigrationSource, MigrationVersion};
use diesel::prelude::*;
use diesel::sql_types::Bool;
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};

use crate::conn::{Conn, advisory_lock};
use crate::error::StoreError;
use crate::schema::breaking_migrations;

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
    /// The store has a breaking migration that this program does not know: a newer version wrote it.
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
                "it has none of tollgate's tables: is its URL the right one? `tollgate migrate` makes them",
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

/// The steps of a change of the schema. Older programs work with all that expands it. They do not work with what contracts
/// it, which is breaking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationSteps {
    /// Additions to the schema.
    Expand,
    /// Also removals from it. No older program may use the database any more.
    Contract,
}

/// The end of the names of migrations that contract.
const CONTRACT: &str = "_contract";

/// Migrates the schema, one process at a time. Returns the number of migrations that ran. A new database, which no older
/// program uses, gets all of them.
pub(crate) fn run(conn: &mut Conn, steps: MigrationSteps) -> Result<usize, MigrationError> {
    advisory_lock(conn, true).map_err(StoreError::from)?;
    let ran = refuse_unknown(conn).and_then(|()| match conn {
        Conn::Sqlite(conn) => run_on(conn, SQLITE, steps),
        Conn::Postgres(conn) => run_on(conn, POSTGRES, steps),
    });
    let completed = ran.is_ok().then(|| series::complete(conn));
    advisory_lock(conn, false).map_err(StoreError::from)?;
    completed.transpose()?;
    ran
}

/// Fails unless the schema is one that this program can use. Changes nothing. If it `accepts_newer`, it does not look for
/// breaking migrations.
pub(crate) fn check(conn: &mut Conn, accepts_newer: bool) -> Result<(), MigrationError> {
    // A query for migrations would create the table in which they are noted.
    if !is_noted(conn).map_err(StoreError::from)? {
        return Err(MigrationError::Untouched);
    }
    if !accepts_newer {
        refuse_unknown(conn)?;
    }
    let steps = MigrationSteps::Expand;
    let mut pending = match conn {
        Conn::Sqlite(conn) => pending(conn, SQLITE, steps)?.len(),
        Conn::Postgres(conn) => pending(conn, POSTGRES, steps)?.len(),
    };
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
    match check(conn, false) {
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

/// The migrations that are missing, without those of a later step unless they are asked for.
fn pending<DB: diesel::backend::Backend>(
    conn: &mut impl MigrationHarness<DB>,
    source: EmbeddedMigrations,
    steps: MigrationSteps,
) -> Result<Vec<Box<dyn Migration<DB>>>, MigrationError>
where
    EmbeddedMigrations: MigrationSource<DB>,
{
    let mut pending = conn.pending_migrations(source).map_err(failed)?;
    if steps == MigrationSteps::Expand {
        pending.retain(|migration| !migration.name().to_string().ends_with(CONTRACT));
    }
    Ok(pending)
}

fn run_on<DB: diesel::backend::Backend>(
    conn: &mut impl MigrationHarness<DB>,
    source: EmbeddedMigrations,
    steps: MigrationSteps,
) -> Result<usize, MigrationError>
where
    EmbeddedMigrations: MigrationSource<DB>,
{
    let is_new = conn.applied_migrations().map_err(failed)?.is_empty();
    let pending = pending(conn, source, if is_new { MigrationSteps::Contract } else { steps })?;
    Ok(conn.run_migrations(&pending).map_err(failed)?.len())
}

/// Refuses a schema with a breaking migration that this program does not know.
fn refuse_unknown(conn: &mut Conn) -> Result<(), MigrationError> {
    let unknown = match conn {
        Conn::Sqlite(conn) => unknown(conn, SQLITE),
        Conn::Postgres(conn) => unknown(conn, POSTGRES),
    }?;
    if unknown.is_empty() {
        return Ok(());
    }
    let breaking = breaking_migrations::table.select(breaking_migrations::version);
    let breaking = match breaking.load(conn).map_err(StoreError::from) {
        Ok(breaking) => breaking,
        Err(cause) if cause.is_unavailable() => return Err(cause.into()),
        // Another program's schema has no such table.
        Err(_) => unknown.clone(),
    };
    match unknown.into_iter().find(|version| breaking.contains(version)) {
        Some(version) => Err(MigrationError::Unknown(version)),
        None => Ok(()),
    }
}

/// The migrations of the database that this program does not know.
fn unknown<DB: diesel::backend::Backend>(
    conn: &mut impl MigrationHarness<DB>,
    source: EmbeddedMigrations,
) -> Result<Vec<String>, MigrationError>
where
    EmbeddedMigrations: MigrationSource<DB>,
{
    let known = MigrationSource::<DB>::migrations(&source).map_err(failed)?;
    let known: Vec<MigrationVersion<'_>> =
        known.iter().map(|migration| migration.name().version().as_owned()).collect();
    let applied = conn.applied_migrations().map_err(failed)?.into_iter();
    let unknown = applied.filter(|version| !known.contains(version));
    Ok(unknown.map(|version| version.to_string()).collect())
}

fn failed(cause: Box<dyn std::error::Error + Send + Sync>) -> MigrationError {
    MigrationError::Failed(cause.to_string())
}
