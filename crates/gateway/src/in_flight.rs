//! The calls in flight, so that a shutdown can wait for them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::CallError;

/// The calls in flight in this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct InFlightCalls {
    /// Counts the calls. It is closed when a shutdown begins.
    tracker: TaskTracker,
    /// Cancelled when a shutdown begins.
    draining: CancellationToken,
    /// Cancelled when the calls that are left must end.
    ending: CancellationToken,
}

/// One call. It counts until this is dropped.
#[derive(Debug)]
pub struct InFlightGuard {
    _counted: TaskTrackerToken,
    ending: CancellationToken,
}

impl InFlightGuard {
    /// Whether the call must end now.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.ending.is_cancelled()
    }

    /// Resolves when the call must end now.
    pub(crate) async fn cancelled(&self) {
        self.ending.cancelled().await;
    }
}

impl InFlightCalls {
    /// Counts a call in, of at most `most`. A connection of HTTP/2 may carry many calls, so a limit of connections does not bound them.
    ///
    /// # Errors
    /// [`CallError::TooManyCalls`], and [`CallError::ShuttingDown`] when a shutdown has begun.
    pub fn enter(&self, most: usize) -> Result<InFlightGuard, CallError> {
        // Counted before the checks, so that a shutdown that begins now waits for it.
        let guard = InFlightGuard { _counted: self.tracker.token(), ending: self.ending.clone() };
        match () {
            () if self.running() > most => Err(CallError::TooManyCalls),
            () if self.is_draining() => Err(CallError::ShuttingDown),
            () => Ok(guard),
        }
    }

    /// The number of calls in flight.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Resolves when a shutdown begins.
    pub(crate) async fn drain_begun(&self) {
        self.draining.cancelled().await;
    }

    /// Resolves when the calls that are left must end.
    pub(crate) async fn cancelled(&self) {
        self.ending.cancelled().await;
    }

    /// Whether a shutdown has begun.
    pub fn is_draining(&self) -> bool {
        self.tracker.is_closed()
    }

    /// Takes no new calls, and waits for those in flight for `patience`. Then has the rest settled with what
    /// has passed, and waits for that.
    pub async fn drain(&self, patience: Duration) {
        self.tracker.close();
        self.draining.cancel();
        if tokio::time::timeout(patience, self.tracker.wait()).await.is_err() {
            log::warn!("{} calls are cut short", self.running());
            self.ending.cancel();
            // A call that must end has to settle, and perhaps to be admitted before; the store bounds both.
            let settled = tokio::time::timeout(Duration::from_secs(10), self.tracker.wait()).await;
            if settled.is_err() {
                log::error!("{} calls did not end", self.running());
            }
        }
    }
}
