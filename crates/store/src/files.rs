//! The files beside a database: their names, access rights and locks.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The path of a file that belongs to a SQLite file.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Opens files to write them. A new file is for its owner alone.
///
/// It holds the payments of merchants and customers, so the mode does not depend on the process's own.
pub(crate) fn private() -> OpenOptions {
    const OWNER: u32 = 0o600;
    File::options().write(true).mode(OWNER).clone()
}

/// Makes a folder and its parents, for their owner alone. An existing one keeps its mode.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    const OWNER: u32 = 0o700;
    DirBuilder::new().recursive(true).mode(OWNER).create(path)
}

/// The lock of a file, which one process at a time has. It ends when this value is dropped, or with the process.
pub(crate) struct FileLock(File);

impl FileLock {
    /// Locks the file at `path`, and makes it if it is missing. `None` if another process has the lock.
    pub(crate) fn take(path: &Path) -> io::Result<Option<Self>> {
        let file = private().create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(cause)) => Err(cause),
        }
    }

    /// The identity of the file: another file at the same path has another one.
    pub(crate) fn identity(&self) -> io::Result<String> {
        let metadata = self.0.metadata()?;
        Ok(format!("{}:{}", metadata.dev(), metadata.ino()))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // To close the file is not enough: a child process that is just starting still has it open.
        let _ = self.0.unlock();
    }
}

/// The one name of a file that may have several, by links in its path. It need not exist.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    if let Ok(whole) = path.canonicalize() {
        return whole;
    }
    // A link to a file that does not exist yet leads to its future place.
    let target = path.read_link().map(|target| match path.parent() {
        Some(folder) => folder.join(target),
        None => target,
    });
    let path = target.as_deref().unwrap_or(path);
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    match (folder, path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// Makes the name of a file durable: the name is stored in the folder.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of the descriptor is what a child process has before it runs another program.
    #[test]
    fn a_lock_ends_when_it_is_dropped_although_a_copy_of_its_file_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = FileLock::take(&path).unwrap().unwrap();
        let copy = lock.0.try_clone().unwrap();
        assert!(FileLock::take(&path).unwrap().is_none());
        drop(lock);
        assert!(FileLock::take(&path).unwrap().is_some());
        drop(copy);
    }
}
