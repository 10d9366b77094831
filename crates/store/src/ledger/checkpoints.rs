//! The checkpoints of SQLite's log, made beside the ledger.
//!
//! SQLite would make a checkpoint at the end of a commit, and the callers of that commit would wait. A thread makes the
//! checkpoints instead. While it moves pages, new pages are appended to the log, so the log would grow without end.
//! When the log has [`MOST_PAGES`], the thread moves pages again until only [`FEW_PAGES`] were new, [`MOST_IN_A_ROW`] times in
//! all, and the ledger moves the rest between two groups. SQLite then writes its log from the beginning again.
//!
//! SQLite waits for the disk only when the whole log is moved, which the thread hardly ever achieves. So the thread lets the
//! file system write what was moved. Otherwise the ledger would wait for all of it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use r2d2::ManageConnection;

use crate::conn::{Conn, ConnManager};
use crate::dialect::{self, Checkpoint};
use crate::error::StoreError;

/// The number of admissions and settlements between two checkpoints of the thread. Another write counts as several.
const EVERY: usize = 512;
/// The pages of log from which the ledger moves the rest itself: 16 MB.
const MOST_PAGES: u64 = 4_096;
/// The pages that the ledger moves without a long wait for the disk.
const FEW_PAGES: u64 = 32;
/// The pages that the thread may leave in the log, because of a read, for the ledger to move the rest.
const MOST_LEFT: u64 = 512;
/// The most checkpoints of the thread in a row.
const MOST_IN_A_ROW: usize = 8;
/// The time from which the file system is too busy, for example with files of other programs, to be asked again at once.
const LONGEST_WRITE_BACK: Duration = Duration::from_secs(1);

pub(super) struct Checkpoints {
    /// Absent when the thread must end.
    orders: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Whether the thread must end soon.
    ends: Arc<AtomicBool>,
    /// The pages in the log at the last checkpoint. Zero when SQLite writes the log from the beginning again.
    pages: Gauge<u64, AtomicU64>,
    /// Whether the thread has moved nearly all pages since the ledger did. While a long read needs the log, it has not.
    has_moved: Arc<AtomicBool>,
    /// Admissions, settlements and what counts as them, since the thread was last notified.
    since: usize,
}

impl Checkpoints {
    pub(super) fn start(
        manager: &ConnManager,
        pages: &Gauge<u64, AtomicU64>,
    ) -> Result<Self, StoreError> {
        let (orders, ordered) = sync_channel::<()>(1);
        let pages = pages.clone();
        let (has_moved, ends) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let is_ending = Arc::clone(&ends);
        let (manager, log_pages, made) = (manager.clone(), pages.clone(), Arc::clone(&has_moved));
        let work = move || {
            let folder =
                manager.file().and_then(Path::parent).and_then(|path| File::open(path).ok());
            let folder = folder.as_ref();
            let mut conn = None;
            for () in ordered {
                let done = match &mut conn {
                    Some(conn) => move_pages(conn, folder, &is_ending),
                    None => manager
                        .connect()
                        .and_then(|new| move_pages(conn.insert(new), folder, &is_ending)),
                };
                match done {
                    Ok(done) => {
                        if let Some(done) = &done {
                            log_pages.set(done.pages);
                            made.store(done.is_nearly_complete(), Ordering::Release);
                        }
                    }
                    Err(cause) => {
                        log::warn!("SQLite's log is not moved: {cause}");
                        conn = None;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoints".to_owned()).spawn(work);
        let thread = thread.map_err(|cause| StoreError::Unavailable(cause.to_string()))?;
        Ok(Self { orders: Some(orders), thread: Some(thread), ends, pages, has_moved, since: 0 })
    }

    /// Must be called after each group of items and each other write, with the connection that has written it.
    pub(super) fn after_write(&mut self, items: usize, conn: &mut Conn) {
        self.since = self.since.saturating_add(items);
        if self.pages.get() >= MOST_PAGES && self.has_moved.swap(false, Ordering::AcqRel) {
            match checkpoint(conn) {
                Ok(Some(done)) => {
                    self.pages.set(if done.left == 0 { 0 } else { done.pages });
                }
                // The thread is making one. The ledger tries again after the next write.
                Ok(None) => self.has_moved.store(true, Ordering::Release),
                Err(cause) => log::warn!("SQLite's log is not moved: {cause}"),
            }
        } else if self.since >= EVERY
            && let Some(orders) = &self.orders
        {
            self.since = 0;
            // A checkpoint that is still being made is enough.
            let _ = orders.try_send(());
        }
    }
}

/// Makes a checkpoint. When the ledger is about to move the rest, it leaves few pages for it.
fn move_pages(
    conn: &mut Conn,
    folder: Option<&File>,
    ends: &AtomicBool,
) -> Result<Option<Checkpoint>, StoreError> {
    let mut last = checkpoint(conn)?;
    for _ in 1..MOST_IN_A_ROW {
        let before = match last {
            Some(done) if done.pages >= MOST_PAGES && done.is_nearly_complete() => done.pages,
            _ => break,
        };
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        folder.map(write_back);
        last = checkpoint(conn)?;
        let has_few_new = last.is_some_and(|done| done.pages.saturating_sub(before) <= FEW_PAGES);
        if has_few_new || begun.elapsed() > LONGEST_WRITE_BACK {
            break;
        }
    }
    Ok(last)
}

impl Checkpoint {
    /// Whether only the pages of short reads are left. The limit grows with the log, so that there is an end to it.
    fn is_nearly_complete(&self) -> bool {
        self.left <= MOST_LEFT.max(self.pages / 8)
    }
}

/// Waits until the file system of a folder has written what it keeps in memory. It needs no handle of the database's file: to
/// close one would end SQLite's locks. Only Linux has this; elsewhere the ledger waits for the disk.
fn write_back(folder: &File) {
    #[cfg(target_os = "linux")]
    // SQLite itself reports a disk that fails.
    let _ = rustix::fs::syncfs(folder);
    #[cfg(not(target_os = "linux"))]
    let _ = folder;
}

fn checkpoint(conn: &mut Conn) -> Result<Option<Checkpoint>, StoreError> {
    Ok(dialect::checkpoint(conn)?)
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.orders = None;
        self.thread.take().map(JoinHandle::join);
    }
}
