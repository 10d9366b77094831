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
    /// The database that an earlier restore replaced is still there.
    ReplacedExists(PathBuf),
    /// The file is damaged, with SQLite's report.
    Damaged(PathBuf, String),
    /// A process serves from the database.
    InUse,
    /// The file is not a database of this program, or has the schema of a newer version.
    Schema(PathBuf, MigrationError),
    /// The database cannot be read.
    Store(StoreError),
    /// SQLite cannot copy the file.
    Copy(PathBuf, rusqlite::Error),
    /// An operation on the file failed.
    Io(PathBuf, io::Error),
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
            Self::ReplacedExists(path) => write!(
                f,
                "{} is there already, from an earlier restore: move it away or delete it",
                path.display()
            ),
            Self::Damaged(path, what) => write!(f, "{} is damaged: {what}", path.display()),
            Self::InUse => f.write_str(
                "a process serves from the database: stop it before a backup is restored",
            ),
            Self::Schema(path, MigrationError::Untouched) => {
                write!(f, "{} is not a database of tollgate", path.display())
            }
            Self::Schema(path, cause) => write!(f, "{}: {cause}", path.display()),
            Self::Store(cause) => cause.fmt(f),
            Self::Copy(path, cause) => write!(f, "SQLite cannot copy {}: {cause}", path.display()),
            Self::Io(path, cause) => write!(f, "{}: {cause}", path.display()),
        }
    }
}

impl std::error::Error for BackupError {}

impl From<StoreError> for BackupError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

/// The error of an operation on a file.
fn at(path: &Path) -> impl Fn(io::Error) -> BackupError {
    move |cause| BackupError::Io(path.to_owned(), cause)
}

/// Copies the SQLite file at `url` to a new file, and checks the copy.
///
/// Returns the size of the copy in bytes. A process may serve from the file meanwhile.
///
/// # Errors
/// [`BackupError`]; then there is no new file.
pub fn back_up(url: &DatabaseUrl, to: &Path) -> Result<u64, BackupError> {
    let from = file_of(url)?;
    if !from.is_file() {
        return Err(BackupError::Missing(from));
    }
    if to.exists() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    let source = Connection::open_with_flags(&from, OpenFlags::SQLITE_OPEN_READ_ONLY);
    copy_whole(&from, source, to)?;
    Ok(to.metadata().map_err(at(to))?.len())
}

/// Puts a backup in the place of the SQLite file at `url`.
///
/// The replaced file is kept beside it as `PATH.replaced`. Returns its path.
///
/// # Errors
/// [`BackupError`]; then the database is as it was.
pub fn restore(url: &DatabaseUrl, backup: &Path) -> Result<Option<PathBuf>, BackupError> {
    let path = file_of(url)?;
    if !backup.is_file() {
        return Err(BackupError::Missing(backup.to_owned()));
    }
    let _lock = lock_file(&path).map_err(|cause| match cause {
        OpenError::Io(cause) => BackupError::Io(path.clone(), cause),
        _ => BackupError::InUse,
    })?;
    let replaced = beside(&path, ".replaced");
    // Only an interrupted restore leaves one without the other.
    if path.exists() && replaced.exists() {
        return Err(BackupError::ReplacedExists(replaced));
    }
    let unfinished = beside(&path, ".restoring");
    // Left by an interrupted restore.
    remove(&unfinished)?;
    copy_whole(backup, open_backup(backup), &unfinished)?;
    // SQLite's log first: it belongs to the replaced file only.
    for suffix in ["-wal", "-shm", ""] {
        let from = beside(&path, suffix);
        match fs::rename(&from, beside(&replaced, suffix)) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(at(&from)(cause)),
            _ => {}
        }
    }
    fs::rename(&unfinished, &path).map_err(at(&path))?;
    sync_folder_of(&path).map_err(at(&path))?;
    Ok(replaced.exists().then_some(replaced))
}

fn file_of(url: &DatabaseUrl) -> Result<PathBuf, BackupError> {
    match url {
        DatabaseUrl::Sqlite(path) => Ok(canonical(path)),
        DatabaseUrl::SqliteTemporary | DatabaseUrl::Postgres(_) => Err(BackupError::NotSqlite),
    }
}

/// Opens a backup. Without a log beside it, nothing else writes to it, and its folder need not be writable.
fn open_backup(path: &Path) -> rusqlite::Result<Connection> {
    let name = path.to_str().filter(|_| !beside(path, "-wal").exists());
    let Some(name) = name else {
        return Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    };
    let name = name.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{name}?immutable=1"), flags)
}

/// Copies a database to a new file, which appears only when it is complete and checked.
fn copy_whole(
    from: &Path,
    source: rusqlite::Result<Connection>,
    to: &Path,
) -> Result<(), BackupError> {
    let unfinished = beside(to, ".unfinished");
    remove(&unfinished)?;
    let copied = source
        .map_err(|cause| BackupError::Copy(from.to_owned(), cause))
        .and_then(|source| copy(from, &source, &unfinished))
        .and_then(|()| check(from, &unfinished));
    if copied.is_err() {
        remove(&unfinished)?;
        return copied;
    }
    File::open(&unfinished).and_then(|file| file.sync_all()).map_err(at(&unfinished))?;
    fs::rename(&unfinished, to).map_err(at(to))?;
    sync_folder_of(to).map_err(at(to))
}

fn copy(from: &Path, source: &Connection, to: &Path) -> Result<(), BackupError> {
    let failed = |cause| BackupError::Copy(from.to_owned(), cause);
    drop(private().create_new(true).open(to).map_err(at(to))?);
    let mut copy = Connection::open(to).map_err(failed)?;
    let backup = Backup::new(source, &mut copy).map_err(failed)?;
    let begun = Instant::now();
    loop {
        // All pages at once: page by page, SQLite would begin again at every commit of another connection.
        match backup.step(-1).map_err(failed)? {
            StepResult::Done => return Ok(()),
            _ if begun.elapsed() > PATIENCE => {
                let why = "another program keeps it locked".to_owned();
                return Err(StoreError::Unavailable(why).into());
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Fails unless the copy of a file is sound and this version knows its schema or can migrate it.
fn check(from: &Path, copy: &Path) -> Result<(), BackupError> {
    let mut conn = ConnManager::sqlite(copy).connect()?;
    if let Some(what) = dialect::find_damage(&mut conn).map_err(StoreError::from)? {
        return Err(BackupError::Damaged(from.to_owned(), what));
    }
    match migrations::check(&mut conn, false) {
        Ok(()) | Err(MigrationError::Pending(_)) => Ok(()),
        Err(cause) => Err(BackupError::Schema(from.to_owned(), cause)),
    }
}

/// Removes a database and SQLite's files beside it.
fn remove(path: &Path) -> Result<(), BackupError> {
    for suffix in ["-wal", "-shm", "-journal", ""] {
        let file = beside(path, suffix);
        match fs::remove_file(&file) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(at(&file)(cause)),
            _ => {}
        }
    }
    Ok(())
}
