//! The tests of the archive, in folders.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod months;
