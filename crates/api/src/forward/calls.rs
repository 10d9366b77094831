//! The calls in flight, so that a shutdown can wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::http::error::{ApiError, ErrorCode};

/// The stage of a shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ShutdownStage {
    #[default]
    Open,
    /// No new calls.
    Draining,
    /// The calls that are left are settled with what has passed.
    Ending,
}

/// The calls in flight in this process. Clones share them.
#[derive(Clone, Debug)]
pub struct InFlightCalls(Arc<InFlightState>);

#[derive(Debug)]
struct InFlightState {
    running: AtomicUsize,
    stage: watch::Sender<ShutdownStage>,
}

impl Default for InFlightCalls {
    fn default() -> Self {
        let shared =
            InFlightState { running: AtomicUsize::new(0), stage: watch::Sender::default() };
        Self(Arc::new(shared))
    }
}

/// One call. It counts until this is dropped.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    calls: InFlightCalls,
    stage: watch::Receiver<ShutdownStage>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.calls.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl InFlightGuard {
    /// Whether the call must end now.
    pub(super) fn is_cancelled(&self) -> bool {
        *self.stage.borrow() == ShutdownStage::Ending
    }

    /// Resolves when the call must end now.
    pub(super) async fn cancelled(&mut self) {
        // An error means that the sender is gone, so nothing can end the call.
        if self.stage.wait_for(|stage| *stage == ShutdownStage::Ending).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl InFlightCalls {
    /// Counts a call in, unless a shutdown has begun or there are `most` calls already. The count is needed
    /// because a connection may carry many calls.
    pub(super) fn enter(&self, most: usize) -> Result<InFlightGuard, ApiError> {
        let running = self.0.running.fetch_add(1, Ordering::AcqRel);
        let tracked = InFlightGuard { calls: self.clone(), stage: self.0.stage.subscribe() };
        if running >= most {
            let message = "Too many calls in flight on this node; retry after 1 s.";
            return Err(ApiError::new(ErrorCode::Overloaded, message).retry_after(1_000_000));
        }
        match self.is_draining() {
            true => Err(ApiError::new(
                ErrorCode::ShuttingDown,
                "This node is shutting down. Send the call again; another one will take it.",
            )),
            false => Ok(tracked),
        }
    }

    /// The number of calls in flight.
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::Acquire)
    }

    /// Whether a shutdown has begun.
    pub fn is_draining(&self) -> bool {
        *self.0.stage.borrow() != ShutdownStage::Open
    }

    /// Takes no new calls, and waits for those in flight for `patience`. Then has the rest settled with what
    /// has passed, and waits for that.
    pub async fn drain(&self, patience: Duration) {
        self.0.stage.send_replace(ShutdownStage::Draining);
        if tokio::time::timeout(patience, self.all_done()).await.is_err() {
            log::warn!("{} calls are cut short", self.running());
            self.0.stage.send_replace(ShutdownStage::Ending);
            // A call that must end only has to settle, which the store bounds.
            let settled = tokio::time::timeout(Duration::from_secs(10), self.all_done()).await;
            if settled.is_err() {
                log::error!("{} calls did not end", self.running());
            }
        }
    }

    async fn all_done(&self) {
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        while self.running() > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
