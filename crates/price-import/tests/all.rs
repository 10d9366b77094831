//! All integration tests of this crate in one program.

mod common;
mod formats;
mod hours;
mod updates;
