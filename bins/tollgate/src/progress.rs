//! What is said while something takes long: on standard error, and only to a person who looks.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is written anew.
const EVERY: Duration = Duration::from_millis(200);

/// A line that is written over itself.
pub(crate) struct Progress {
    is_shown: bool,
    said: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_shown: std::io::stderr().is_terminal(), said: None }
    }

    /// Says how far it is, if it is time to.
    pub(crate) fn say(&mut self, how_far: impl Display) {
        if self.is_shown && self.said.is_none_or(|said| said.elapsed() >= EVERY) {
            self.said = Some(Instant::now());
            // Nobody needs to hear it.
            let _ = write!(std::io::stderr(), "\r\x1b[2K{how_far}");
        }
    }

    /// Takes the line away, for what comes after it.
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
