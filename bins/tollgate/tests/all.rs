//! All integration tests of this package, in one program: it is linked once, and its tests run in parallel.
//! A test of `layers.rs` checks that every file here is part of it.

mod archive;
mod backup;
mod canaries;
mod cells;
mod circles;
mod dashboard;
mod deaths;
mod disk;
mod first_steps;
mod import;
mod jobs;
mod language;
mod layers;
mod licenses;
mod nodes;
mod observability;
mod outage;
mod pages;
mod price_lists;
mod prices;
mod quote;
mod reports;
mod reprice;
mod service;
mod site;
mod soak;
mod sockets;
mod tls;
mod webhooks;
