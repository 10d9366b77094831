//! The rows of the tables, a file for each table, and their conversion to and from domain types.

mod archive;
mod budgets;
mod connections;
mod deliveries;
mod events;
mod idempotency;
mod jobs;
mod merchants;
mod meters;
mod missing_prices;
mod open_calls;
mod plan_charges;
mod provider_objects;
mod refusals;
mod repricings;
mod requests;
mod rollups;
mod runs;
mod spend_keys;
mod subscription_configs;
mod subscriptions;
mod tier_counters;
mod transactions;
mod values;
mod wallets;
mod webhooks;

pub(crate) use archive::{ArchivedLinesRow, ArchivedMonthRow, ArchivedSumRow};
pub(crate) use budgets::BudgetRow;
pub(crate) use connections::ConnectionRow;
pub(crate) use deliveries::{DeliveryRow, PENDING, WAITING};
pub(crate) use events::EventRow;
pub(crate) use idempotency::AnswerRow;
pub(crate) use jobs::JobRow;
pub(crate) use merchants::{MerchantRow, SecretKeyRow};
pub(crate) use meters::{MeterRow, MeterVersionRow};
pub(crate) use missing_prices::MissingPriceRow;
pub(crate) use open_calls::OpenCallRow;
pub(crate) use plan_charges::PlanChargeRow;
pub(crate) use provider_objects::ProviderObjectRow;
pub(crate) use refusals::{RefusalCountRow, RefusalRow};
pub(crate) use repricings::RepricingRow;
pub(crate) use requests::{CorrectionRow, ReportedUsageRow, RequestIndexRow, RequestRow};
pub(crate) use rollups::{
    HIGH, MetadataSetRow, PartSums, QueueRow, RollupRow, SUMS, SeriesRow, SetRollupRow, joined_sum,
    split_sum, with_sums,
};
pub(crate) use runs::RunRow;
pub(crate) use spend_keys::{SpendCountersRow, SpendKeyRow};
pub(crate) use subscription_configs::{ConfigRow, ConfigVersionRow, CreditBundleRow};
pub(crate) use subscriptions::SubscriptionRow;
pub(crate) use tier_counters::{CounterKey, TierCounterRow, counter_key, counter_owner};
pub(crate) use transactions::{TransactionKeyRow, TransactionRow};
pub(crate) use values::{from_json, from_word, time, to_json, word};
pub(crate) use wallets::WalletRow;
pub(crate) use webhooks::WebhookRow;
