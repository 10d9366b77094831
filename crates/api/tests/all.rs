//! All integration tests of this package, in one program: it is linked once, and its tests run in parallel.
//! A test of `layers.rs` checks that every file here is part of it.

mod cost_reports;
mod dashboard;
mod deliveries;
mod destinations;
mod drop_in;
mod earlier_shape;
mod endings;
mod errors;
mod failures;
mod forward;
mod headers;
mod health;
mod holds;
mod hostile_clients;
mod hostile_providers;
mod metrics;
mod missing_prices;
mod month;
mod openapi;
mod providers;
mod quote;
mod reference;
mod refusal_records;
mod refusals;
mod reports;
mod resources;
mod spend_keys;
mod statements;
mod subscriptions;
mod support;
mod tenants;
mod transparency;
mod usage;
mod wallets;
