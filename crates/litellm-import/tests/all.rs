//! All integration tests of this package, in one program: it is linked once, and its tests run in parallel.
//! A test of `layers.rs` checks that every file here is part of it.

mod import;
