//! The files beside a database: their names, and who may read them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that belongs to a SQLite file.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Opens files to write them. One that is made is for its owner alone, whatever the process makes otherwise: it
/// holds what merchants and their customers have paid.
pub(crate) fn private() -> OpenOptions {
    const OWNER: u32 = 0o600;
    File::options().write(true).mode(OWNER).clone()
}

/// Makes a folder, and those above it, for their owner alone. One that is there keeps its mode.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    const OWNER: u32 = 0o700;
    DirBuilder::new().recursive(true).mode(OWNER).create(path)
}

/// The one name of a file that may have several, by links in its path. It need not be there yet.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    if let Ok(whole) = path.canonicalize() {
        return whole;
    }
    // A link to a file that is not there yet leads to where it will be.
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

/// Makes the name of a file durable, which lives in its folder.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
