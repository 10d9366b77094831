//! The pauses of work that is done beside calls.

use std::time::{Duration, Instant};

/// The pause after some work: four times its duration, but less than a lease lasts.
fn pause_after(work: Duration) -> Duration {
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

/// The number of rows or pages that are deleted in one transaction, so that the deletion takes two milliseconds, and the pause
/// after it. On SQLite calls wait for it.
#[derive(Debug)]
pub(super) struct DeletionPace {
    most: usize,
}

impl DeletionPace {
    const LEAST: usize = 10;
    const MOST: usize = 2_000;
    const LONGEST: Duration = Duration::from_millis(2);

    /// The pace for the first transaction.
    pub(super) const fn new() -> Self {
        Self { most: 50 }
    }

    /// The number of rows for the next transaction.
    pub(super) const fn most(&self) -> usize {
        self.most
    }

    /// Adapts the number to the time that the last deletion took. Returns the pause after it, from the time that it took with
    /// its wait and its commit.
    pub(super) fn adapt(&mut self, took: Duration, in_all: Duration) -> Duration {
        if took > Self::LONGEST {
            self.most = (self.most / 2).max(Self::LEAST);
        } else if took < Self::LONGEST / 2 {
            self.most = (self.most + self.most / 4 + 1).min(Self::MOST);
        }
        pause_after(in_all)
    }
}
