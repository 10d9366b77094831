//! The open sockets of this process: their number, and the keys that opened them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tollgate_domain::admission::{CallKey, Refusal};
use tollgate_domain::{KeyHash, SocketId, Timestamp};

use crate::error::CallError;

/// The open sockets. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OpenSockets {
    tracker: TaskTracker,
    open: Arc<Mutex<HashMap<SocketId, OpenSocket>>>,
}

#[derive(Debug)]
struct OpenSocket {
    key: SocketKey,
    revoked: watch::Sender<Option<Refusal>>,
}

/// The key that opened a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SocketKey {
    pub(crate) key: CallKey,
    pub(crate) hash: KeyHash,
}

/// One socket. It counts until this is dropped.
#[derive(Debug)]
pub(crate) struct SocketGuard {
    pub(crate) id: SocketId,
    open: Arc<Mutex<HashMap<SocketId, OpenSocket>>>,
    /// The refusal of its key, once the key may not be used any more.
    revoked: watch::Receiver<Option<Refusal>>,
    _counted: TaskTrackerToken,
}

impl OpenSockets {
    /// Counts a socket in, of at most `most`.
    pub(crate) fn enter(
        &self,
        key: SocketKey,
        now: Timestamp,
        most: usize,
    ) -> Result<SocketGuard, CallError> {
        let mut open = lock(&self.open);
        if open.len() >= most {
            return Err(CallError::TooManySockets);
        }
        let (id, (sender, revoked)) = (SocketId::generate(now), watch::channel(None));
        open.insert(id, OpenSocket { key, revoked: sender });
        let counted = self.tracker.token();
        Ok(SocketGuard { id, open: Arc::clone(&self.open), revoked, _counted: counted })
    }

    /// The number of open sockets.
    pub fn len(&self) -> usize {
        lock(&self.open).len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until none is open, for at most this time. No new ones may come.
    pub async fn wait(&self, patience: Duration) {
        self.tracker.close();
        if tokio::time::timeout(patience, self.tracker.wait()).await.is_err() {
            log::warn!("{} sockets did not end", self.len());
        }
    }

    /// The keys of the open sockets.
    pub(crate) fn keys(&self) -> Vec<SocketKey> {
        let open = lock(&self.open);
        let mut keys: Vec<_> = open.values().map(|socket| socket.key).collect();
        drop(open);
        keys.sort_unstable_by_key(|key| key.hash);
        keys.dedup();
        keys
    }

    /// Closes the sockets of keys that may not be used any more, for these reasons.
    pub(crate) fn revoke(&self, refused: &[(SocketKey, Refusal)]) {
        let refused: HashMap<_, _> = refused.iter().map(|(key, why)| (*key, why)).collect();
        for socket in lock(&self.open).values() {
            if let Some(why) = refused.get(&socket.key) {
                socket.revoked.send_replace(Some((*why).clone()));
            }
        }
    }
}

impl SocketGuard {
    /// Resolves when the key may not be used any more.
    pub(crate) async fn revoked(&self) -> Refusal {
        let mut revoked = self.revoked.clone();
        loop {
            let why = revoked.borrow_and_update().clone();
            match why {
                Some(why) => return why,
                None if revoked.changed().await.is_err() => std::future::pending().await,
                None => {}
            }
        }
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
