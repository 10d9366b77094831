//! Jobs: calls whose answer comes later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::answer::TokenCounts;
use crate::behavior::{Behavior, JobOutcome};
use crate::endpoint::SimulatedEndpoint;
use crate::error::SimulatedError;
use crate::stats::SimulatorCounters;

/// The state of a job at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    Running,
    Ended(JobOutcome),
    Cancelled,
}

/// A job: when it ends, and what it uses.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedJob {
    endpoint: SimulatedEndpoint,
    ends: Instant,
    outcome: JobOutcome,
    /// Shared with the copy that waits to send its event.
    is_cancelled: Arc<AtomicBool>,
    /// The tokens that are booked when it ends. `None` once they are.
    tokens: Option<TokenCounts>,
}

impl SimulatedJob {
    /// A job that begins now.
    pub(crate) fn new(
        endpoint: SimulatedEndpoint,
        tokens: TokenCounts,
        behavior: &Behavior,
    ) -> Self {
        let length = Duration::from_millis(behavior.job_ms);
        Self {
            endpoint,
            ends: Instant::now() + length,
            outcome: behavior.job_outcome,
            is_cancelled: Arc::default(),
            tokens: Some(tokens),
        }
    }

    /// The state as the provider shows it. A job that will be forgotten runs until then.
    pub(crate) fn state(&self) -> JobState {
        let has_ended = Instant::now() >= self.ends && self.outcome != JobOutcome::Forgotten;
        match self.is_cancelled.load(Ordering::Relaxed) {
            true => JobState::Cancelled,
            false if has_ended => JobState::Ended(self.outcome),
            false => JobState::Running,
        }
    }

    /// Whether the provider knows it no longer.
    pub(crate) fn is_forgotten(&self) -> bool {
        let is_cancelled = self.is_cancelled.load(Ordering::Relaxed);
        !is_cancelled && self.outcome == JobOutcome::Forgotten && Instant::now() >= self.ends
    }

    /// The time until it ends by itself.
    pub(crate) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// Lets a job end now.
    pub(crate) fn end(&mut self) {
        self.ends = Instant::now();
    }

    /// Cancels a job that runs.
    pub(crate) fn cancel(&mut self) {
        if self.state() == JobState::Running {
            self.is_cancelled.store(true, Ordering::Relaxed);
            self.tokens = None;
        }
    }

    /// Books the tokens of a job that has ended, once.
    pub(crate) fn book(&mut self, counters: &SimulatorCounters) {
        if matches!(self.state(), JobState::Ended(_))
            && let Some(tokens) = self.tokens.take()
        {
            counters.count_tokens(self.endpoint, tokens);
        }
    }
}

/// An object that does not exist.
pub(crate) fn not_found(noun: &str, id: &str) -> SimulatedError {
    SimulatedError::new(404, format!("{noun} with id '{id}' not found."))
}
