//! Settlements that the database could not take, kept on disk until it can.
//!
//! Each has a file of its own. A file is complete or absent: it is written under another name, made
//! durable, and renamed. Booking it twice does no harm, so it is removed only after it was booked.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{PendingRecord, RequestId, Timestamp};

use crate::files::{private, private_folder, sync_folder_of};

/// A settlement that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JournalEntry {
    pub(crate) request_id: RequestId,
    pub(crate) report: CallReport,
    /// The call, if this process has admitted it: for a database that does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) call: Option<PendingRecord>,
}

/// The time for which a commit whose answer was lost may still be in flight.
const COMMITS_COME_WITHIN_MS: i64 = 10 * 60 * 1_000;

/// Returns the files of settlements in the journal `folder` that were not booked `within` this time: those that wait, and
/// those that were set aside because the database does not know their call, or because they are not readable.
///
/// A settlement of a call that was not sent is not among them for ten minutes, because its admission may still be
/// committed.
///
/// # Errors
/// [`io::Error`] when the folder or a file in it cannot be read.
pub fn unbooked_settlements(folder: &Path, within: Duration) -> io::Result<Vec<PathBuf>> {
    let mut unbooked = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let is_unbooked = match path.extension().and_then(|extension| extension.to_str()) {
            Some("unknown" | "unreadable") => true,
            Some("json") => match is_late(&path, within) {
                // A node has booked it meanwhile.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => false,
                late => late?,
            },
            _ => false,
        };
        if is_unbooked {
            unbooked.push(path);
        }
    }
    unbooked.sort();
    Ok(unbooked)
}

/// Whether a settlement has been waiting in its file for longer than that.
fn is_late(path: &Path, within: Duration) -> io::Result<bool> {
    let waits = fs::metadata(path)?.modified()?.elapsed().unwrap_or_default();
    let commits_come = Duration::from_millis(COMMITS_COME_WITHIN_MS.unsigned_abs());
    let within = match serde_json::from_slice::<JournalEntry>(&fs::read(path)?) {
        Ok(entry) if entry.report.ending == Ending::NotSent => within.max(commits_come),
        _ => within,
    };
    Ok(waits > within)
}

impl JournalEntry {
    /// Whether a record of this refused call may still appear.
    ///
    /// The call was refused because the outcome of its admission's commit is unknown.
    pub(crate) fn may_still_appear(&self, now: Timestamp) -> bool {
        let CallReport { ending, timestamp, .. } = &self.report;
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

    /// Writes an entry durably.
    pub(crate) fn write(&self, entry: &JournalEntry) -> io::Result<()> {
        // The folder may have been removed while it was empty.
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

    /// All entries that wait. An unreadable file is set aside; files with other names are ignored.
    pub(crate) fn entries(&self) -> io::Result<Vec<JournalEntry>> {
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

    /// The number of entries that wait, and their size in bytes.
    pub(crate) fn size(&self) -> io::Result<(u64, u64)> {
        let (mut entries, mut bytes) = (0, 0_u64);
        let files = match fs::read_dir(&self.folder) {
            // Removed while it was empty.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
            files => files?,
        };
        for file in files {
            let file = file?;
            if file.path().extension().is_some_and(|extension| extension == "json") {
                entries += 1;
                // A file that is gone by now was booked.
                bytes = bytes.saturating_add(file.metadata().map_or(0, |file| file.len()));
            }
        }
        Ok((entries, bytes))
    }

    /// Removes an entry that was booked. Another node may have removed it first.
    pub(crate) fn remove(&self, request_id: RequestId) -> io::Result<()> {
        match fs::remove_file(self.path(request_id)) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Sets aside an entry that belongs to no record, for inspection.
    pub(crate) fn set_aside(&self, request_id: RequestId) -> io::Result<()> {
        let path = self.path(request_id);
        fs::rename(&path, path.with_extension("unknown"))
    }

    fn path(&self, request_id: RequestId) -> PathBuf {
        self.folder.join(format!("{request_id}.json"))
    }
}
