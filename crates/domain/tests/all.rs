//! All tests of this package from outside, in one program: it is linked once, and its tests run beside
//! each other. A test of `layers.rs` looks that every file here is part of it.

mod desk;
mod histories;
mod interleavings;
mod money;
mod repricing;
mod spend_keys;
mod subscriptions;
mod texts;
