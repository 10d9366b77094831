//! All integration tests of this package, in one program.
//!
//! It is linked once, and its tests run in parallel. A test of `layers.rs` checks that every file here is
//! part of it.

mod archive;
mod backup;
mod budgets;
mod deliveries;
mod failover;
mod jobs;
mod ledger;
mod missing_prices;
mod moving;
mod partitions;
mod postgres_ways;
mod price_lists;
mod reference;
mod refusals;
mod repricings;
mod runs;
mod schema_changes;
mod sessions;
mod single_writer;
mod spend_keys;
mod sqlite;
mod statements;
mod subscription_model;
mod subscription_races;
mod subscriptions;
mod usage;
