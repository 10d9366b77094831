//! The files beside a database: their names and access rights.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
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
