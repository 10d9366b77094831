//! Backup and restore of a SQLite file.
//!
//! SQLite's own backup copies all pages in one step, from a snapshot. It has every call that was answered
//! before it began. Writers go on meanwhile.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use r2d2::ManageConnection;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use crate::conn::{ConnManager, DatabaseUrl};
use crate::dialect;
use crate::error::StoreError;
use crate::files::{beside, canonical, private, sync_folder_of};
use crate::migrations::{self, MigrationError};
use crate::opening::{OpenError, lock_file};

/// The longest wait for the lock of another program that writes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The reason that a backup is not made or not restored. Nothing has changed then.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackupError {
    /// The database is not a SQLite file.
    NotSqlite,
    /// There is no such database.
    Missing(PathBuf),
    /// There is a file where the backup would be written.
    Exists(PathBuf),
    /// The file is damaged, with SQLite's report.
    Damaged(PathBuf, String),
    /// A process serves from the database.
    InUse,
    /// The file is not a database of this program, or has the schema of a newer version.
    Schema(MigrationError),
    /// The database cannot be read.
    Store(StoreError),
    /// SQLite cannot copy it.
    Copy(rusqlite::Error),
    /// A file operation failed.
    Io(io::Error),
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSqlite => f.write_str(
                "the database is not a SQLite file: use pg_dump, or another tool of PostgreSQL",
            ),
            Self::Missing(path) => write!(f, "there is no database at {}", path.display()),
            Self::Exists(path) => {
                write!(f, "{} is there already: name another file", path.display())
            }
            Self::Damaged(path, what) => write!(f, "{} is damaged: {what}", path.display()),
            Self::InUse => f.write_str(
                "a process serves from the database: stop it before a backup is restored",
            ),
            Self::Schema(cause) => cause.fmt(f),
            Self::Store(cause) => cause.fmt(f),
            Self::Copy(cause) => write!(f, "SQLite cannot copy the database: {cause}"),
            Self::Io(cause) => cause.fmt(f),
        }
    }
}

impl std::error::Error for BackupError {}

impl From<io::Error> for BackupError {
    fn from(cause: io::Error) -> Self {
        Self::Io(cause)
    }
}

impl From<rusqlite::Error> for BackupError {
    fn from(cause: rusqlite::Error) -> Self {
        Self::Copy(cause)
    }
}

impl From<StoreError> for BackupError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

/// Copies the SQLite file at `url` to a new file, and checks the copy.
///
/// Returns the size of the copy in bytes. A process may serve from the file meanwhile.
///
/// # Errors
/// [`BackupError`]; then there is no new file.
pub fn back_up(url: &DatabaseUrl, to: &Path) -> Result<u64, BackupError> {
    let from = file_of(url)?;
    if !from.exists() {
        return Err(BackupError::Missing(from));
    }
    if to.exists() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    copy_whole(&from, to)?;
    Ok(to.metadata()?.len())
}

/// Puts a backup in the place of the SQLite file at `url`.
///
/// The replaced file is kept beside it as `PATH.replaced`. Returns its path.
///
/// # Errors
/// [`BackupError`]; then the database is as it was.
pub fn restore(url: &DatabaseUrl, backup: &Path) -> Result<Option<PathBuf>, BackupError> {
    let path = file_of(url)?;
    if !backup.exists() {
        return Err(BackupError::Missing(backup.to_owned()));
    }
    let _lock = lock_file(&path).map_err(|cause| match cause {
        OpenError::Io(cause) => BackupError::Io(cause),
        _ => BackupError::InUse,
    })?;
    let unfinished = beside(&path, ".restoring");
    // Left by an interrupted restore.
    remove(&unfinished)?;
    copy_whole(backup, &unfinished)?;
    let replaced = beside(&path, ".replaced");
    let was_there = path.exists();
    remove(&replaced)?;
    // SQLite's log first: it belongs to the replaced file only.
    for suffix in ["-wal", "-shm", ""] {
        match fs::rename(beside(&path, suffix), beside(&replaced, suffix)) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause.into()),
            _ => {}
        }
    }
    fs::rename(&unfinished, &path)?;
    sync_folder_of(&path)?;
    Ok(was_there.then_some(replaced))
}

fn file_of(url: &DatabaseUrl) -> Result<PathBuf, BackupError> {
    match url {
        DatabaseUrl::Sqlite(path) => Ok(canonical(path)),
        DatabaseUrl::SqliteTemporary | DatabaseUrl::Postgres(_) => Err(BackupError::NotSqlite),
    }
}

/// Copies a database to a new file, which appears only when it is complete and checked.
fn copy_whole(from: &Path, to: &Path) -> Result<(), BackupError> {
    let unfinished = beside(to, ".unfinished");
    remove(&unfinished)?;
    let copied = copy(from, &unfinished).and_then(|()| check(&unfinished));
    if copied.is_err() {
        remove(&unfinished)?;
        return copied;
    }
    File::open(&unfinished)?.sync_all()?;
    fs::rename(&unfinished, to)?;
    Ok(sync_folder_of(to)?)
}

fn copy(from: &Path, to: &Path) -> Result<(), BackupError> {
    drop(private().create_new(true).open(to)?);
    let source = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut copy = Connection::open(to)?;
    let backup = Backup::new(&source, &mut copy)?;
    let begun = Instant::now();
    loop {
        // All pages at once: page by page, SQLite would begin again at every commit of another connection.
        match backup.step(-1)? {
            StepResult::Done => return Ok(()),
            _ if begun.elapsed() > PATIENCE => {
                let why = "another program keeps it locked".to_owned();
                return Err(StoreError::Unavailable(why).into());
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Fails unless a file is sound and this version knows its schema or can migrate it.
fn check(path: &Path) -> Result<(), BackupError> {
    let mut conn = ConnManager::sqlite(path).connect()?;
    if let Some(what) = dialect::find_damage(&mut conn).map_err(StoreError::from)? {
        return Err(BackupError::Damaged(path.to_owned(), what));
    }
    match migrations::check(&mut conn, false) {
        Ok(()) | Err(MigrationError::Pending(_)) => Ok(()),
        Err(cause) => Err(BackupError::Schema(cause)),
    }
}

/// Removes a database and SQLite's files beside it.
fn remove(path: &Path) -> io::Result<()> {
    for suffix in ["-wal", "-shm", "-journal", ""] {
        match fs::remove_file(beside(path, suffix)) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
    }
    Ok(())
}
