//! Backup and restore of a SQLite file.
//!
//! SQLite's own backup copies all pages in one step, from a snapshot. It has every call that was answered
//! before it began. Writers go on meanwhile.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use r2d2::ManageConnection;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::conn::{ConnManager, DatabaseUrl};
use crate::dialect;
use crate::error::StoreError;
use crate::files::{beside, canonical, private, sync_folder_of};
use crate::migrations::{self, MigrationError};
use crate::opening::{OpenError, lock_file};

/// The ends of the names of a database and of SQLite's files beside it.
const SUFFIXES: [&str; 4] = ["-wal", "-shm", "-journal", ""];
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
    /// A process serves from the database, or another program has it open.
    InUse,
    /// The file is not a database of this program, or has the schema of a newer version.
    Schema(PathBuf, MigrationError),
    /// The database cannot be read.
    Store(StoreError),
    /// SQLite cannot copy the file.
    Copy(PathBuf, rusqlite::Error),
    /// SQLite cannot move the log of the database into its file.
    Log(PathBuf, rusqlite::Error),
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
            Self::Damaged(path, what) => write!(f, "{} is damaged: {what}", path.display()),
            Self::InUse => f.write_str(
                "a process serves from the database, or has it open: stop it before a backup is restored",
            ),
            Self::Schema(path, MigrationError::Untouched) => {
                write!(f, "{} is not a database of tollgate", path.display())
            }
            Self::Schema(path, cause) => write!(f, "{}: {cause}", path.display()),
            Self::Store(cause) => cause.fmt(f),
            Self::Copy(path, cause) => write!(f, "SQLite cannot copy {}: {cause}", path.display()),
            Self::Log(path, cause) => {
                write!(f, "the log of {} cannot be emptied: {cause}", path.display())
            }
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
/// The replaced file is kept beside it as `PATH.replaced`, or with a number behind that name if there is one. Returns its path.
/// At each instant one of the two databases is at `url`, unless the old one is damaged.
///
/// # Errors
/// [`BackupError`]; then the database is as it was.
pub fn restore(url: &DatabaseUrl, backup: &Path) -> Result<Option<PathBuf>, BackupError> {
    let (path, backup) = (file_of(url)?, canonical(backup));
    if !backup.is_file() {
        return Err(BackupError::Missing(backup));
    }
    let _lock = lock_file(&path).map_err(|cause| match cause {
        OpenError::Io(cause) => BackupError::Io(path.clone(), cause),
        _ => BackupError::InUse,
    })?;
    let restored = beside(&path, ".restoring");
    // Left by an interrupted restore.
    remove(&restored)?;
    copy_whole(&backup, open_backup(&backup), &restored)?;
    let replaced = replace(&path, &restored);
    if replaced.is_err() {
        remove(&restored)?;
    }
    replaced
}

/// Puts a file in the place of a database that nothing serves. Returns the new name of the database that was there.
fn replace(path: &Path, restored: &Path) -> Result<Option<PathBuf>, BackupError> {
    if SUFFIXES.iter().all(|suffix| !beside(path, suffix).exists()) {
        fs::rename(restored, path).map_err(at(path))?;
        sync_folder_of(path).map_err(at(path))?;
        return Ok(None);
    }
    if let Ok(metadata) = path.metadata() {
        empty_log(path)?;
        // A service may run as another user than this command.
        if restored.metadata().map_err(at(restored))?.uid() != metadata.uid() {
            for file in [restored, &beside(path, ".lock")] {
                chown(file, Some(metadata.uid()), Some(metadata.gid())).map_err(at(file))?;
            }
        }
    }
    let replaced = unused_name(path);
    let mut moved = Vec::new();
    let mut put = || {
        // Those of a damaged file, or of one that is gone. They belong to no other file.
        for suffix in ["-wal", "-shm", "-journal"] {
            let (from, to) = (beside(path, suffix), beside(&replaced, suffix));
            if from.exists() {
                fs::rename(&from, &to)?;
                moved.push((from, to));
            }
        }
        if path.exists() {
            // Not every file system has links.
            fs::hard_link(path, &replaced).or_else(|_| {
                fs::copy(path, &replaced)?;
                File::open(&replaced)?.sync_all()
            })?;
        }
        fs::rename(restored, path)
    };
    if let Err(cause) = put() {
        let _ = fs::remove_file(&replaced);
        for (from, to) in &moved {
            let _ = fs::rename(to, from);
        }
        return Err(at(path)(cause));
    }
    sync_folder_of(path).map_err(at(path))?;
    Ok(replaced.exists().then_some(replaced))
}

/// Moves SQLite's log into the file, and deletes it. That of a damaged file stays.
fn empty_log(path: &Path) -> Result<(), BackupError> {
    let emptied = Connection::open(path).and_then(|conn| {
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0))
    });
    match emptied {
        Ok(is_busy) if is_busy || beside(path, "-wal").exists() => Err(BackupError::InUse),
        Ok(_) => Ok(()),
        Err(cause) => match cause.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SystemIoFailure,
            ) => Ok(()),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Err(BackupError::InUse),
            _ => Err(BackupError::Log(path.to_owned(), cause)),
        },
    }
}

/// The first name for a replaced database of which neither the file nor one of SQLite's files beside it is there.
fn unused_name(path: &Path) -> PathBuf {
    let mut name = beside(path, ".replaced");
    let mut number = 1;
    while SUFFIXES.iter().any(|suffix| beside(&name, suffix).exists()) {
        number += 1;
        name = beside(path, &format!(".replaced-{number}"));
    }
    name
}

fn file_of(url: &DatabaseUrl) -> Result<PathBuf, BackupError> {
    match url {
        DatabaseUrl::Sqlite(path) => Ok(canonical(path)),
        DatabaseUrl::SqliteTemporary | DatabaseUrl::Postgres(_) => Err(BackupError::NotSqlite),
    }
}

/// Opens a backup. Without a log or a journal beside it, its folder need not be writable.
fn open_backup(path: &Path) -> rusqlite::Result<Connection> {
    let is_alone = ["-wal", "-journal"].iter().all(|suffix| !beside(path, suffix).exists());
    let Some(name) = path.to_str().filter(|_| is_alone) else {
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
    for suffix in SUFFIXES {
        let file = beside(path, suffix);
        match fs::remove_file(&file) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(at(&file)(cause)),
            _ => {}
        }
    }
    Ok(())
}
