//! Settlements that the database could not take: kept on disk, one file each, until it can.
//!
//! A file is complete or not there: it is written under another name, made durable, and renamed.
//! To book one twice does no harm, so it is removed only after it was booked.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tollgate_domain::RequestId;
use tollgate_domain::settlement::Report;

/// A settlement that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) request_id: RequestId,
    pub(crate) report: Report,
}

/// A folder of settlements that wait.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
}

impl Journal {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Keeps an entry, durably.
    pub(crate) fn write(&self, entry: &Entry) -> io::Result<()> {
        let name = self.path(entry.request_id);
        let unfinished = name.with_extension("unfinished");
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(entry)?)?;
        file.sync_all()?;
        fs::rename(&unfinished, &name)?;
        // The name itself lives in the folder.
        File::open(&self.folder)?.sync_all()
    }

    /// Every entry that waits.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                match serde_json::from_slice(&fs::read(&path)?) {
                    Ok(entry) => entries.push(entry),
                    Err(cause) => {
                        log::error!("{} is not readable: {cause}; set aside", path.display());
                        fs::rename(&path, path.with_extension("unreadable"))?;
                    }
                }
            }
        }
        Ok(entries)
    }

    /// Forgets an entry that was booked. Another node may have been faster.
    pub(crate) fn remove(&self, request_id: RequestId) -> io::Result<()> {
        match fs::remove_file(self.path(request_id)) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Keeps an entry that belongs to no record, for a person to look at.
    pub(crate) fn set_aside(&self, request_id: RequestId) -> io::Result<()> {
        let path = self.path(request_id);
        fs::rename(&path, path.with_extension("unknown"))
    }

    fn path(&self, request_id: RequestId) -> PathBuf {
        self.folder.join(format!("{request_id}.json"))
    }
}
