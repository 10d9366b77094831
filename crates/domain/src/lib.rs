//! The business rules of Tollgate: ids, keys, merchants, customers, wallets, meters, request
//! records, and the pure functions between them.
//!
//! This crate does no I/O, and the time is passed in, from a [`Clock`]. The two decisions that
//! money depends on, [`admission::decide`] and [`settlement::settle`], are functions of plain
//! values. They can be read, and tested as tables, without a database.

pub mod admission;
mod answer_report;
mod billing_interval;
mod budget;
mod calendar;
mod call_details;
mod cell;
mod connection;
mod credit;
mod cycle;
mod delivery;
mod event;
mod event_kind;
mod id;
mod issue;
mod job;
mod key;
mod limit;
mod merchant;
mod metadata;
mod meter;
mod missing_price;
mod plan_change;
mod quote;
mod rate_limit;
mod record;
mod refused_call;
pub mod repricing;
mod run;
mod session;
pub mod settlement;
mod span;
mod spend_counters;
mod spend_key;
mod statement;
mod subscription;
mod subscription_config;
mod subscription_state;
mod time;
mod wallet;
mod webhook;

pub use answer_report::{AnswerReport, CallCost};
pub use billing_interval::BillingInterval;
pub use budget::{
    BUDGET_LEVELS, Budget, BudgetEnforcement, BudgetRules, BudgetStatus, BudgetTree,
    MATCHING_BUDGETS, ParentFault,
};
pub use calendar::CycleCalendar;
pub use call_details::{CallDetails, CallFailure, CallTimings, FailureSource};
pub use cell::{CellNumber, ParseCellError};
pub use connection::{Connection, ConnectionChanges, ConnectionStatus, NewConnection};
pub use credit::{Credit, CreditHold, CreditSettlement, Credits, LedgerAccount, Rollover};
pub use cycle::{Cycle, PerCycle};
pub use delivery::{
    Attempt, Delivery, DeliveryFault, DeliveryStatus, Jitter, MAX_ANSWER_BYTES, OVERTAKEN_AFTER,
};
pub use event::{Event, EventPayload, PlanCharge};
pub use event_kind::EventKind;
pub use id::{
    BudgetId, ConnectionId, CreditBundleId, DeliveryId, EventId, Id, JobId, MerchantId, MeterId,
    NodeId, ParseIdError, RefusalId, RequestId, RunAccountId, SecretKeyId, SocketId, SpendKeyId,
    SubscriptionConfigId, SubscriptionId, TransactionId, WalletId, WebhookId,
};
pub use issue::Issue;
pub use job::{
    BatchRequests, JOB_LIFE_MILLIS, Job, JobEnd, JobKind, JobObserver, JobState, JobTerms,
    ObjectKind, ProviderObject, VideoTerms,
};
pub use key::{Key, KeyHash, KeyKind, ParseKeyError};
pub use limit::LimitOwner;
pub use merchant::{Merchant, SecretKey};
pub use metadata::{Metadata, MetadataError};
pub use meter::{MerchantMeter, MeterChanges, NewMeter, TierPeriod, slug_of};
pub use missing_price::MissingPrice;
pub use plan_change::{ChangePreview, UpgradeRule};
pub use quote::{FeeModel, Payer, PricingTerms, Quote, ServiceCharge};
pub use rate_limit::{Gcra, RateExceeded};
pub use record::{
    CallBudgets, ForwardedRequest, MeterVersion, PendingRecord, PricedUsage, ProviderKeyType,
    RecordLine, RequestRecord, RequestStatus,
};
pub use refused_call::{LimitQuantity, LimitState, RefusalRecord, RefusedCall};
pub use run::{CallRun, ParseRunIdError, RUN_ID_CHARS, Run, RunId};
pub use session::{Session, SessionHash, SessionToken};
pub use span::{
    Interval, LocalTime, Month, ParseTimeZoneError, Period, TimeSpan, TimeSpanError, TimeZone,
};
pub use spend_counters::{LimitCalendars, SpendCounters, SpendLimit};
pub use spend_key::{
    Enforcement, NewSpendKey, RateLimit, RequestFormat, RequestLimit, RequestShape, SpendKey,
    SpendKeyChanges, SpendKeyStatus, SpendRules,
};
pub use statement::{
    CreditSummary, ModelUsage, MonthCorrection, Statement, StatementCharge, StatementFault,
};
pub use subscription::{
    CreditMovement, PendingChange, Subscriber, Subscription, SubscriptionTransition,
};
pub use subscription_config::{
    BundleChange, ConfigTerms, ConfigVersion, CreditBundle, NewCreditBundle, NewSubscriptionConfig,
    SubscriptionConfig, SubscriptionConfigChanges,
};
pub use subscription_state::{
    PendingKind, PendingState, Plan, SubscriptionState, SubscriptionStatus,
};
pub use time::{Clock, ParseTimestampError, Timestamp};
pub use wallet::{Transaction, TransactionKind, Wallet, WalletChanges};
pub use webhook::{NewWebhook, Webhook, WebhookChanges, WebhookSecret, WebhookSecrets};

pub use tollgate_pricing::UsageSource;
