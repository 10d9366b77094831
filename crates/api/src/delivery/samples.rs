//! A sample event of each kind, for the OpenAPI document and `docs/features/webhook-messages.md`.

use tollgate_domain::{
    BillingInterval, Budget, BudgetId, BudgetRules, CallBudgets, CallDetails, CallFailure,
    CallTimings, Connection, ConnectionId, ConnectionStatus, CreditBundle, CreditBundleId, Credits,
    Cycle, Event, EventId, EventKind, EventPayload, FailureSource, Gcra, Job, JobId, JobKind,
    JobState, MerchantId, Metadata, MeterId, Payer, PerCycle, Plan, PricedUsage, ProviderKeyType,
    Quote, RateLimit, RequestId, RequestRecord, RequestStatus, Rollover, ServiceCharge,
    SpendCounters, SpendKey, SpendKeyId, SpendLimit, SpendRules, SubscriptionConfigId,
    SubscriptionId, SubscriptionState, SubscriptionStatus, Timestamp, UsageSource, Wallet,
    WalletId, Webhook, WebhookId,
};
use tollgate_pricing::{
    Amount, BaseCost, Fee, FeeLine, PriceSource, Rate, RateType, Tier, TierUnit, TokenBasis, Usage,
};

use super::message::{EventMessage, EventResources};
use crate::settings::InterfaceShape;

const SECOND: i64 = 1_000;
const DAY: i64 = 24 * 60 * 60 * SECOND;
/// 2026-11-21T12:00:00Z, the time of all samples.
const NOW: Timestamp = Timestamp::from_unix_micros(1_795_262_400_000_000);
/// The creation time of their resources.
const MADE: Timestamp = NOW.plus_millis(-40 * DAY);

const fn cents(cents: i64) -> Amount {
    Amount::from_units(cents.saturating_mul(Amount::USD.units() / 100))
}

/// The message of a kind.
pub(crate) fn message(kind: EventKind) -> serde_json::Value {
    let (event_id, merchant_id) = (EventId::least(NOW), MerchantId::least(MADE));
    let event = Event { event_id, merchant_id, payload: news(kind), created_at: NOW };
    let resources = EventResources { record: record(kind), job: job(kind) };
    let message = EventMessage::of(&event, 42, &resources, InterfaceShape::default());
    // The messages are structs of strings and numbers; they always make JSON.
    serde_json::to_value(message).unwrap_or_default()
}

fn news(kind: EventKind) -> EventPayload {
    let connection = || Box::new(connection(kind));
    let subscription = || Box::new(subscription(kind));
    match kind {
        EventKind::ConnectionCreated => {
            EventPayload::ConnectionCreated { connection: connection() }
        }
        EventKind::ConnectionDeleted => {
            EventPayload::ConnectionDeleted { connection: connection() }
        }
        EventKind::WalletBalanceLow => {
            EventPayload::WalletBalanceLow { wallet: Box::new(wallet(cents(480))) }
        }
        EventKind::WalletBalanceDepleted => {
            EventPayload::WalletBalanceDepleted { wallet: Box::new(wallet(cents(-1))) }
        }
        EventKind::SpendKeyThresholdReached => EventPayload::SpendKeyThresholdReached {
            spend_key: Box::new(spend_key(cents(4_012))),
            threshold: 80,
        },
        EventKind::SpendKeyLimitReached => {
            EventPayload::SpendKeyLimitReached { spend_key: Box::new(spend_key(cents(5_003))) }
        }
        EventKind::BudgetThresholdReached => EventPayload::BudgetThresholdReached {
            budget: Box::new(budget(cents(4_012))),
            threshold: 80,
        },
        EventKind::BudgetLimitReached => {
            EventPayload::BudgetLimitReached { budget: Box::new(budget(cents(5_003))) }
        }
        EventKind::SubscriptionCreated => EventPayload::SubscriptionCreated {
            subscription: subscription(),
            amount_due: cents(2_500),
        },
        EventKind::SubscriptionRenewed => EventPayload::SubscriptionRenewed {
            subscription: subscription(),
            amount_due: cents(2_500),
        },
        EventKind::SubscriptionChanged => EventPayload::SubscriptionChanged {
            subscription: subscription(),
            amount_due: cents(2_500),
        },
        EventKind::SubscriptionCancelled => {
            EventPayload::SubscriptionCancelled { subscription: subscription() }
        }
        EventKind::CreditBundlePurchased => EventPayload::CreditBundlePurchased {
            credit_bundle: Box::new(credit_bundle()),
            subscription: subscription(),
            amount_due: cents(1_000),
        },
        EventKind::PriceMissing => EventPayload::PriceMissing {
            provider: "openai".to_owned(),
            model: "gpt-next".to_owned(),
            unit: None,
        },
        EventKind::RequestCompleted => {
            EventPayload::RequestCompleted { request_id: RequestId::least(NOW) }
        }
        EventKind::RequestFailed => {
            EventPayload::RequestFailed { request_id: RequestId::least(NOW) }
        }
        EventKind::RequestSuspicious => {
            EventPayload::RequestSuspicious { request_id: RequestId::least(NOW) }
        }
        EventKind::JobSucceeded => EventPayload::JobSucceeded {
            job_id: JobId::least(NOW),
            request_id: RequestId::least(NOW),
        },
        EventKind::JobFailed => {
            EventPayload::JobFailed { job_id: JobId::least(NOW), request_id: RequestId::least(NOW) }
        }
        EventKind::JobLost => {
            EventPayload::JobLost { job_id: JobId::least(NOW), request_id: RequestId::least(NOW) }
        }
        EventKind::WebhookTest => EventPayload::WebhookTest { webhook: Box::new(webhook()) },
    }
}

fn connection(kind: EventKind) -> Connection {
    let (status, created_at) = match kind {
        EventKind::ConnectionDeleted => (ConnectionStatus::Deleted, MADE),
        _ => (ConnectionStatus::Active, NOW),
    };
    Connection {
        connection_id: ConnectionId::least(created_at),
        merchant_id: MerchantId::least(MADE),
        reference_id: Some("customer-17".to_owned()),
        name: Some("Ada".to_owned()),
        email: None,
        metadata: Metadata::default(),
        wallet_id: WalletId::least(created_at),
        status,
        report: None,
        budget_id: None,
        created_at,
    }
}

fn wallet(balance: Amount) -> Wallet {
    Wallet {
        wallet_id: WalletId::least(MADE),
        merchant_id: MerchantId::least(MADE),
        connection_id: Some(ConnectionId::least(MADE)),
        balance,
        held: Amount::ZERO,
        credits: Credits::default(),
        overdraft_limit: Some(Amount::ZERO),
        low_balance_threshold: Some(cents(500)),
        created_at: MADE,
    }
}

fn spend_key(spent: Amount) -> SpendKey {
    let all = |amount| PerCycle { day: amount, week: amount, month: amount, total: amount };
    SpendKey {
        spend_key_id: SpendKeyId::least(MADE),
        merchant_id: MerchantId::least(MADE),
        wallet_id: WalletId::least(MADE),
        meter_id: Some(MeterId::least(MADE)),
        budget_id: None,
        name: "Batch jobs".to_owned(),
        key_preview: "tgk_4Kd9Qx2v****".to_owned(),
        rules: SpendRules {
            allowed_providers: Some(vec!["openai".to_owned()]),
            spend_limit: Some(SpendLimit { amount: cents(5_000), cycle: Cycle::Monthly }),
            rate_limit: Some(RateLimit { rpm: 60, burst: 60 }),
            ..SpendRules::default()
        },
        counters: SpendCounters {
            spent: all(spent),
            requests: PerCycle { day: 310, week: 2_100, month: 2_674, total: 2_674 },
            bucket: Gcra::default(),
            last_used_at: Some(NOW.plus_millis(-3 * SECOND)),
            ..SpendCounters::default()
        },
        created_at: MADE,
    }
}

fn budget(spent: Amount) -> Budget {
    let all = |amount| PerCycle { day: amount, week: amount, month: amount, total: amount };
    Budget {
        budget_id: BudgetId::least(MADE),
        merchant_id: MerchantId::least(MADE),
        parent_id: None,
        name: "Research".to_owned(),
        rules: BudgetRules {
            spend_limit: Some(SpendLimit { amount: cents(5_000), cycle: Cycle::Monthly }),
            ..BudgetRules::default()
        },
        metadata: Metadata::default(),
        counters: SpendCounters {
            spent: all(spent),
            requests: PerCycle { day: 310, week: 2_100, month: 2_674, total: 2_674 },
            last_used_at: Some(NOW.plus_millis(-3 * SECOND)),
            ..SpendCounters::default()
        },
        created_at: MADE,
    }
}

fn subscription(kind: EventKind) -> SubscriptionState {
    let month_ago = NOW.plus_millis(-31 * DAY);
    let is_new = kind == EventKind::SubscriptionCreated;
    let has_ended = kind == EventKind::SubscriptionCancelled;
    let has_bundle = kind == EventKind::CreditBundlePurchased;
    let (cycle_start_at, cycle_end_at) =
        if has_ended { (month_ago, NOW) } else { (NOW, NOW.plus_millis(30 * DAY)) };
    SubscriptionState {
        subscription_id: SubscriptionId::least(if is_new { NOW } else { month_ago }),
        connection_id: ConnectionId::least(MADE),
        plan: Plan {
            subscription_config_id: SubscriptionConfigId::least(MADE),
            name: "Pro".to_owned(),
            period_amount: cents(2_500),
            included_credit: cents(3_000),
        },
        status: match has_ended {
            true => SubscriptionStatus::Cancelled,
            false => SubscriptionStatus::Active,
        },
        billing_interval: BillingInterval::Month,
        started_at: if is_new { NOW } else { month_ago },
        cancelled_at: has_ended.then_some(NOW),
        cycle_start_at,
        cycle_end_at,
        cycle_remaining: if has_ended { Amount::ZERO } else { cents(3_000) },
        bundle_remaining: if has_bundle { cents(1_100) } else { Amount::ZERO },
        cycle_rollover: Rollover::None,
        bundle_rollover: Rollover::Full,
        pending_change: None,
    }
}

fn credit_bundle() -> CreditBundle {
    CreditBundle {
        credit_bundle_id: CreditBundleId::least(MADE),
        subscription_config_id: SubscriptionConfigId::least(MADE),
        name: "Ten more".to_owned(),
        cost: cents(1_000),
        credit_amount: cents(1_100),
        created_at: MADE,
    }
}

fn webhook() -> Webhook {
    Webhook {
        webhook_id: WebhookId::least(MADE),
        merchant_id: MerchantId::least(MADE),
        name: "Billing".to_owned(),
        url: "https://example.com/webhooks/tollgate".to_owned(),
        events: None,
        created_at: MADE,
    }
}

/// The call that an event of this kind is about.
fn record(kind: EventKind) -> Option<RequestRecord> {
    match kind {
        EventKind::RequestCompleted => Some(completed()),
        EventKind::RequestFailed => Some(failed()),
        EventKind::RequestSuspicious => Some(RequestRecord { suspicious: true, ..completed() }),
        EventKind::JobSucceeded => Some(record_of_job(completed())),
        EventKind::JobFailed => Some(unsuccessful_job("job_cancelled", "The job was cancelled.")),
        EventKind::JobLost => {
            let message = "The provider no longer knows the job, or its end was never seen.";
            Some(unsuccessful_job("job_lost", message))
        }
        _ => None,
    }
}

fn job(kind: EventKind) -> Option<Job> {
    let state = match kind {
        EventKind::JobSucceeded => JobState::Succeeded,
        EventKind::JobFailed => JobState::Cancelled,
        EventKind::JobLost => JobState::Lost,
        _ => return None,
    };
    let created_at = NOW.plus_millis(-120 * SECOND);
    Some(Job {
        job_id: JobId::least(NOW),
        request_id: RequestId::least(NOW),
        merchant_id: MerchantId::least(MADE),
        kind: JobKind::Response,
        provider: "openai".to_owned(),
        provider_object_id: "resp_68f1".to_owned(),
        spend_key_id: None,
        connection_id: Some(ConnectionId::least(MADE)),
        state,
        hold: cents(20),
        created_at,
        last_seen_at: Some(NOW),
        ended_at: Some(NOW),
        expires_at: created_at.plus_millis(DAY),
    })
}

/// The record of the call of a job.
fn record_of_job(record: RequestRecord) -> RequestRecord {
    RequestRecord {
        endpoint: "POST https://api.openai.com/v1/responses".to_owned(),
        response_id: Some("resp_68f1".to_owned()),
        job_id: Some(JobId::least(NOW)),
        created_at: NOW.plus_millis(-120 * SECOND),
        ..record
    }
}

/// The record of the call of a job that has not succeeded.
fn unsuccessful_job(code: &str, message: &str) -> RequestRecord {
    let failure = Some(CallFailure::of_service(code, message));
    let record = RequestRecord { provider_status: Some(200), ..failed() };
    record_of_job(RequestRecord {
        details: CallDetails { failure, ..CallDetails::default() },
        ..record
    })
}

fn failed() -> RequestRecord {
    let amount = Amount::ZERO;
    RequestRecord {
        request_id: RequestId::least(NOW),
        merchant_id: MerchantId::least(MADE),
        reference_id: None,
        sequence: Some(42),
        connection_id: Some(ConnectionId::least(MADE)),
        spend_key_id: None,
        meter_id: Some(MeterId::least(MADE)),
        budgets: CallBudgets::default(),
        run_id: None,
        status: RequestStatus::Error,
        provider: "openai".to_owned(),
        endpoint: "POST https://api.openai.com/v1/chat/completions".to_owned(),
        provider_key_type: ProviderKeyType::Managed,
        model: Some("gpt-5-mini".to_owned()),
        response_id: None,
        provider_status: Some(500),
        timestamp: Some(NOW),
        priced: PricedUsage::nothing(),
        applied: Vec::new(),
        quote: Quote {
            base: BaseCost::default(),
            base_payer: Payer::Wallet,
            fee: Fee::default(),
            service_charge: ServiceCharge { amount, payer: Payer::Wallet },
            total_request_cost: amount,
            total_wallet_cost: amount,
            total_merchant_cost: amount,
            counted_units: 0,
        },
        service_charge_rate: None,
        rate_type: RateType::Fixed,
        token_basis: TokenBasis::InputOutput,
        metadata: Metadata::default(),
        created_at: NOW.plus_millis(-2 * SECOND),
        settled_at: Some(NOW),
        swept: false,
        suspicious: false,
        job_id: None,
        socket_id: None,
        lines: Vec::new(),
        details: CallDetails {
            timings: CallTimings {
                sent_at: Some(NOW.plus_millis(-2 * SECOND + 1)),
                first_byte_at: Some(NOW.plus_millis(-SECOND)),
                last_byte_at: Some(NOW),
            },
            failure: Some(CallFailure {
                source: FailureSource::Provider,
                kind: Some("server_error".to_owned()),
                code: None,
                message: Some("The server had an error while processing your request.".to_owned()),
            }),
            ..CallDetails::default()
        },
    }
}

/// 10,000 input tokens at 1 USD per million, 5,000 output tokens at 2 USD, and 10 USD per million of fee.
pub fn completed() -> RequestRecord {
    let failed = failed();
    let base = BaseCost { input: cents(1), output: cents(1) };
    let tier = Tier { start: 0, rate: Rate::from(10) };
    let line = FeeLine { tier, unit: TierUnit::Tokens, units: 15_000, cost: cents(15) };
    let total = cents(17);
    RequestRecord {
        status: RequestStatus::Completed,
        model: Some("gpt-5-mini-2026-08-07".to_owned()),
        response_id: Some("chatcmpl-Bv1c0".to_owned()),
        provider_status: Some(200),
        priced: PricedUsage {
            usage: Usage::tokens(10_000, 5_000),
            usage_source: UsageSource::Reported,
            base,
            price_source: PriceSource::Catalog,
        },
        quote: Quote {
            base,
            fee: Fee { lines: vec![line] },
            total_request_cost: total,
            total_wallet_cost: total,
            counted_units: 15_000,
            ..failed.quote
        },
        details: CallDetails { failure: None, ..failed.details },
        ..failed
    }
}
