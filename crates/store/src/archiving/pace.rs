//! The pauses of work that is done beside calls.

use std::time::{Duration, Instant};

/// The pause after some work: four times its duration, but less than a lease lasts.
pub(super) fn pause_after(work: Duration) -> Duration {
    (work * 4).min(Duration::from_secs(2))
}

/// The pace of a thread that reads many rows.
#[derive(Debug)]
pub(super) struct ReadPace {
    resumed: Instant,
}

impl ReadPace {
    pub(super) fn new() -> Self {
        Self { resumed: Instant::now() }
    }

    /// Pauses for the work since the last pause.
    pub(super) fn pause(&mut self) {
        std::thread::sleep(pause_after(self.resumed.elapsed()));
        self.resumed = Instant::now();
    }
}
