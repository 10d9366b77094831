//! The store: merchants, meters, wallets, records and every movement of money.
//!
//! The data is in SQLite or PostgreSQL, behind one [`Store`].
//!
//! - Reading: [`Store::read`] with the functions of [`meters`], [`requests`], … on a connection.
//! - Writing: [`Store::write`] with the same, in one transaction.
//! - The hot path: [`Store::admit`] and [`Store::settle`], which the ledger groups.
//!
//! Every query starts from the merchant. The code calls the database without a trait in between, and the
//! tests run on both databases.

#![warn(clippy::too_many_lines)]

mod archived;
mod archived_sums;
pub mod archiving;
pub mod audit;
mod backlog;
pub mod backup;
mod batch_size;
pub mod budgets;
pub mod cells;
mod codes;
mod conn;
pub mod connections;
pub mod deliveries;
mod dialect;
mod error;
pub mod events;
mod files;
pub mod idempotency;
mod ids;
pub mod imports;
pub mod jobs;
mod journal;
mod ledger;
mod ledger_metrics;
pub mod merchants;
pub mod meters;
mod migrations;
mod missing_prices;
pub mod moving;
mod nodes;
mod opening;
mod outcome;
mod page;
mod partitions;
mod pooler;
mod postgres_url;
mod prepared;
pub mod price_lists;
pub mod provider_objects;
mod readers;
mod records;
mod refusal_queue;
pub mod refusals;
pub mod repricings;
pub mod requests;
pub mod rollups;
mod rows;
pub mod runs;
mod schema;
mod serving;
pub mod sessions;
mod settled_call;
pub mod spend_keys;
pub mod statements;
mod store;
pub mod subscription_configs;
pub mod subscriptions;
mod tables;
mod tls_tunnel;
pub mod upkeep;
pub mod usage;
pub mod wallets;
mod watchdog;
pub mod webhooks;
mod write_set;

pub use archived::RecordArchive;
pub use backlog::Backlog;
pub use conn::{Conn, DatabaseUrl};
pub use error::StoreError;
pub use journal::unbooked_settlements;
pub use ledger::{ReportOutcome, ReportedUsage, SettleOutcome, SettledRecord};
pub use ledger_metrics::LedgerMetrics;
pub use migrations::{MigrationError, MigrationSteps};
pub use opening::{ArchiveOptions, OpenError, Options};
pub use page::Page;
pub use postgres_url::ParseDatabaseUrlError;
pub use refusal_queue::RefusalCause;
pub use store::Store;
