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

    /// The same, with a bar of how much of all is done.
    pub(crate) fn say_with_bar(&mut self, done: i64, all: i64, how_far: impl Display) {
        let percent = done.clamp(0, all.max(1)).saturating_mul(100) / all.max(1);
        let full = usize::try_from(percent / 4).unwrap_or_default();
        let (full, empty) = ("█".repeat(full), "░".repeat(25_usize.saturating_sub(full)));
        self.say(format_args!("{full}{empty} {percent:3} %  {how_far}"));
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
