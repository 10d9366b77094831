//! All integration tests of this crate in one program.
//!
//! It is linked once and runs its tests in parallel. A test of `layers.rs` checks that every file here is
//! part of it.

mod catalog;
mod common;
mod hours;
mod import;
mod laws;
mod tables;
mod updates;
