//! The progress of long commands: on standard error, and only if that is a terminal.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The least time between two updates of the line.
const EVERY: Duration = Duration::from_millis(200);

/// A line that overwrites itself.
pub(crate) struct Progress {
    is_shown: bool,
    said: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_shown: std::io::stderr().is_terminal(), said: None }
    }

    /// Shows the progress, if the last update is long enough ago.
    pub(crate) fn update(&mut self, how_far: impl Display) {
        if self.is_shown && self.said.is_none_or(|said| said.elapsed() >= EVERY) {
            self.said = Some(Instant::now());
            // An error of a progress line is ignored.
            let _ = write!(std::io::stderr(), "\r\x1b[2K{how_far}");
        }
    }

    /// As [`Self::update`], with a bar of the part that is done.
    pub(crate) fn update_with_bar(&mut self, done: i64, all: i64, how_far: impl Display) {
        let percent = done.clamp(0, all.max(1)).saturating_mul(100) / all.max(1);
        let full = usize::try_from(percent / 4).unwrap_or_default();
        let (full, empty) = ("█".repeat(full), "░".repeat(25_usize.saturating_sub(full)));
        self.update(format_args!("{full}{empty} {percent:3}%  {how_far}"));
    }

    /// Removes the line, so that other output can follow.
    pub(crate) fn clear(&mut self) {
        if self.said.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
