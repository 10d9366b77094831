//! The files beside a database: their names, and who may read them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
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

/// Makes the name of a file durable, which lives in its folder.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Whether nothing is in it, or it is not there.
pub(crate) fn is_empty(path: &Path) -> bool {
    path.metadata().map_or(true, |file| file.len() == 0)
}
