//! The tests of this package from outside, in one program: it is linked once, and its tests run in
//! parallel. A test of `layers.rs` checks that every file here is part of it.

mod budgets;
mod histories;
mod interleavings;
mod money;
mod quote;
mod repricing;
mod spend_key_model;
mod spend_keys;
mod subscriptions;
mod texts;
