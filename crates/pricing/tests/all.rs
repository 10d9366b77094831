//! All integration tests of this crate in one program.
//!
//! It is linked once and runs its tests in parallel. A test of `layers.rs` checks that every file here is
//! part of it.

#[cfg(feature = "catalog")]
mod catalog;
mod decimal;
#[cfg(feature = "catalog")]
mod hours;
mod laws;
#[cfg(feature = "serde")]
mod tables;
