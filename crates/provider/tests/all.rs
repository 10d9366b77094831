//! All tests of this package from outside, in one program: it is linked once, and its tests run beside
//! each other. A test of `layers.rs` looks that every file here is part of it.

mod bodies;
mod bounds;
mod client;
mod common;
mod golden;
mod headers;
mod native;
mod real_answers;
mod table;
mod urls;
