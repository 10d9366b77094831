//! All tests of this package from outside, in one program: it is linked once, and its tests run beside
//! each other. A test of `layers.rs` looks that every file here is part of it.

mod backup;
mod deliveries;
mod failover;
mod ledger;
mod missing_prices;
mod partitions;
mod reference;
mod repricings;
mod sessions;
mod single_writer;
mod spend_keys;
mod sqlite;
mod subscription_model;
mod subscription_races;
mod subscriptions;
mod usage;
