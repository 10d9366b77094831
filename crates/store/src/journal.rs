//! Settlements that the database could not take: kept on disk, one file each, until it can.
//!
//! A file is complete or not there: it is written under another name, made durable, and renamed.
//! To book one twice does no harm, so it is removed only after it was booked.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tollgate_domain::settlement::{Ending, Report};
use tollgate_domain::{PendingRecord, RequestId, Timestamp};

use crate::files::{private, private_folder, sync_folder_of};

/// A settlement that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) request_id: RequestId,
    pub(crate) report: Report,
    /// The call, if this process has admitted it: for a database that does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) call: Option<PendingRecord>,
}

/// For so long a commit whose answer was lost may still be on its way.
const COMMITS_COME_WITHIN_MS: i64 = 10 * 60 * 1_000;

impl Entry {
    /// Whether there may come to be a record of a call that was refused because nobody knows whether its
    /// admission was committed.
    pub(crate) fn may_come(&self, now: Timestamp) -> bool {
        let Report { ending, timestamp, .. } = &self.report;
        *ending == Ending::NotSent && now < timestamp.plus_millis(COMMITS_COME_WITHIN_MS)
    }
}

/// A folder of settlements that wait.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
}

impl Journal {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        private_folder(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Keeps an entry, durably.
    pub(crate) fn write(&self, entry: &Entry) -> io::Result<()> {
        // Somebody may have tidied it away while it was empty.
        private_folder(&self.folder)?;
        let name = self.path(entry.request_id);
        let unfinished = name.with_extension("unfinished");
        let write = || {
            let mut file = private().create(true).truncate(true).open(&unfinished)?;
            file.write_all(&serde_json::to_vec(entry)?)?;
            file.sync_all()?;
            fs::rename(&unfinished, &name)?;
            sync_folder_of(&name)
        };
        write().inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    /// Every entry that waits. What is none is set aside or left alone, and keeps no other waiting.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            let path = file.path();
            let is_named = path.extension().is_some_and(|extension| extension == "json");
            if !is_named || !file.file_type().is_ok_and(|kind| kind.is_file()) {
                continue;
            }
            let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
            match read {
                Ok(entry) => entries.push(entry),
                // Booked by another node meanwhile.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => {
                    log::error!("{} is not readable: {cause}; set aside", path.display());
                    let _ = fs::rename(&path, path.with_extension("unreadable"));
                }
            }
        }
        Ok(entries)
    }

    /// How many entries wait, and how many bytes they take.
    pub(crate) fn size(&self) -> io::Result<(u64, u64)> {
        let (mut entries, mut bytes) = (0, 0_u64);
        let files = match fs::read_dir(&self.folder) {
            // Tidied away while it was empty.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
            files => files?,
        };
        for file in files {
            let file = file?;
            if file.path().extension().is_some_and(|extension| extension == "json") {
                entries += 1;
                // One that is gone by now was booked.
                bytes = bytes.saturating_add(file.metadata().map_or(0, |file| file.len()));
            }
        }
        Ok((entries, bytes))
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
