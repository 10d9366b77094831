//! The business of the demo: 90 days of a company that resells AI to 40 customers on three plans, and one agent that ran
//! away and was stopped by its limit. It is booked by the ledger, call by call, on a clock of its own.

use anyhow::{Context as _, anyhow, bail};
use tokio::task::JoinSet;
use tollgate_api::ApiError;
use tollgate_domain::admission::{Call, CallKey, CostBound};
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{
    BillingInterval, Budget, BudgetEnforcement, BudgetId, BudgetRules, CallDetails, CallFailure,
    CallRun, CallTimings, Clock, ConfigTerms, Cycle, Enforcement, FailureSource, ForwardedRequest,
    Key, MerchantId, Metadata, MeterId, NewConnection, NewMeter, NewSpendKey,
    NewSubscriptionConfig, PricedUsage, ProviderKeyType, RefusedCall, RequestFormat, RequestId,
    Rollover, RunId, SpendCounters, SpendLimit, SpendRules, SubscriptionConfigId, TierPeriod,
    Timestamp, TransactionKind, UsageSource, WalletId,
};
use tollgate_pricing::{
    Amount, BaseCost, Meter, PriceBook, RateType, ServedCall, Tier, TierUnit, Usage,
};
use tollgate_store::deliveries::AttemptCapacity;
use tollgate_store::wallets::WalletMovement;
use tollgate_store::{
    Conn, DatabaseUrl, Options, RefusalCause, SettleOutcome, Store, budgets, connections,
    merchants, meters, spend_keys, subscription_configs, subscriptions, wallets,
};

const DAYS: i64 = 90;
const HOUR_MILLIS: i64 = 3_600_000;
/// The calls of such a span are booked together.
const STEP_HOURS: i64 = 3;
/// The day on which the agent runs away, and the run in which it does.
const RUNAWAY_DAY: i64 = 71;
const RUNAWAY_RUN: &str = "quarterly-report";
/// The time that a call takes.
const CALL_MILLIS: i64 = 1_800;

/// The plans: name, price and included credit in USD, and the number of customers.
const PLANS: [(&str, i64, i64, usize); 3] =
    [("Starter", 19, 20, 24), ("Team", 99, 110, 11), ("Business", 399, 450, 5)];

const NAMES: [&str; 40] = [
    "Acorn Legal",
    "Alder Labs",
    "Aurora Health",
    "Basalt Games",
    "Beacon Travel",
    "Birch & Co",
    "Brightwater",
    "Cedar Retail",
    "Cobalt Media",
    "Copperline",
    "Delta Notes",
    "Driftwood",
    "Elm Street Tutors",
    "Ember Analytics",
    "Fairway Insurance",
    "Fernhill",
    "Foundry Nine",
    "Glacier Data",
    "Granite Homes",
    "Harbor Search",
    "Hazel Recruiting",
    "Ironbridge",
    "Juniper Support",
    "Kestrel Maps",
    "Larch Logistics",
    "Lighthouse CRM",
    "Maple Robotics",
    "Meridian Law",
    "Northwind Books",
    "Oakline",
    "Orchard Foods",
    "Pinecrest",
    "Quarry Tools",
    "Redwood Finance",
    "Saffron Kitchens",
    "Silverbirch",
    "Summit Training",
    "Tidewater",
    "Willow Care",
    "Yarrow Studio",
];

/// The models, with the provider of each and its share in a hundred calls.
const MODELS: [(&str, &str, u64); 4] = [
    ("openai", "gpt-4o-mini", 52),
    ("openai", "gpt-4o", 22),
    ("anthropic", "claude-sonnet-4-5", 18),
    ("anthropic", "claude-haiku-4-5", 8),
];

/// A key that makes calls, and how many it makes in a day at the end of the 90 days.
struct Caller {
    key: CallKey,
    calls_a_day: u64,
    since_day: i64,
}

pub(super) const fn usd(whole: i64) -> Amount {
    Amount::from_units(whole * 10_000_000_000)
}

/// A call that is admitted, and how it ends.
struct AdmittedCall {
    request_id: RequestId,
    report: CallReport,
}

/// Books the business into an empty store, up to `end`. Returns its merchant, and the key of that.
pub(super) async fn book(
    url: &DatabaseUrl,
    prices: &PriceBook,
    end: Timestamp,
) -> anyhow::Result<(MerchantId, Key)> {
    let start = end.plus_millis(-DAYS * 24 * HOUR_MILLIS);
    let clock = Clock::manual(start);
    let options = Options { serve: true, clock: clock.clone(), ..Options::default() };
    let store = Store::open(url, &options)?;
    store.renew_lease().await?;
    let new = store.write(move |conn| merchants::create(conn, "Demo merchant", start)).await?;
    let merchant_id = new.merchant.merchant_id;
    let (callers, agent) =
        store.write(move |conn| create_customers(conn, merchant_id, start)).await?;
    let numbers = Numbers(20_261_125);
    let mut business = Business { store, prices, merchant_id, clock, numbers };
    for step in 0..DAYS * 24 / STEP_HOURS {
        let day = step * STEP_HOURS / 24;
        let next = business.clock.now().plus_millis(STEP_HOURS * HOUR_MILLIS);
        business.store.renew_lease().await?;
        let mut keys = Vec::new();
        for caller in callers.iter().filter(|caller| caller.since_day <= day) {
            let calls = business.numbers.calls_in_step(caller.calls_a_day, day);
            keys.extend((0..calls).map(|_| caller.key));
        }
        business.make_calls(keys).await?;
        if step * STEP_HOURS == RUNAWAY_DAY * 24 + 15 {
            business.run_away(agent).await?;
        }
        let left = next.unix_micros().saturating_sub(business.clock.now().unix_micros());
        business.clock.advance_millis(left / 1_000);
    }
    let Business { store, .. } = business;
    while store.fold().await? > 0 {}
    // These events are no news for the webhook that the demo creates later.
    while store.has_deliveries_due(AttemptCapacity::default()).await? {
        store.run_delivery_turn(Vec::new(), AttemptCapacity::default()).await?;
    }
    store.close().await?;
    Ok((merchant_id, new.key))
}

/// The budgets of the company: one of all, with one for customers and one for research in it, which observes. Returns
/// the last two.
fn create_budgets(
    conn: &mut Conn,
    merchant_id: MerchantId,
    start: Timestamp,
) -> anyhow::Result<[BudgetId; 2]> {
    let monthly = |amount| Some(SpendLimit { amount: usd(amount), cycle: Cycle::Monthly });
    let mut make = |parent_id, name: &str, rules| {
        let budget = Budget {
            budget_id: BudgetId::generate(start),
            merchant_id,
            parent_id,
            name: name.to_owned(),
            rules,
            metadata: Metadata::default(),
            counters: SpendCounters::default(),
            created_at: start,
        };
        budgets::save(conn, &budget, true)?
            .map_err(|fault| anyhow!("a budget of the demo: {fault:?}"))?;
        anyhow::Ok(budget.budget_id)
    };
    let limits = |spend_limit| BudgetRules { spend_limit, ..BudgetRules::default() };
    let company = make(None, "Company", limits(monthly(400)))?;
    let customers = make(Some(company), "Customers", limits(monthly(300)))?;
    let observed = BudgetRules {
        enforcement: BudgetEnforcement::Observe,
        spend_limit: Some(SpendLimit { amount: usd(20), cycle: Cycle::Daily }),
        ..BudgetRules::default()
    };
    Ok([customers, make(Some(company), "Research", observed)?])
}

/// The plans, the customers with a key each, and the key of the agent.
fn create_customers(
    conn: &mut Conn,
    merchant_id: MerchantId,
    start: Timestamp,
) -> anyhow::Result<(Vec<Caller>, CallKey)> {
    let tiers = vec![Tier { start: 0, rate: 30.into() }];
    let meter = NewMeter {
        name: "Retail".to_owned(),
        slug: Some("retail".to_owned()),
        tier_period: TierPeriod::Month,
        model: Meter::new(RateType::Percentage, TierUnit::Tokens, tiers)?.into(),
    };
    let meter_id = meters::create(conn, merchant_id, &meter, start)?
        .map_err(|taken| anyhow!("the meter of the demo: {taken:?}"))?
        .meter_id;
    let [of_customers, of_research] = create_budgets(conn, merchant_id, start)?;
    let mut names = NAMES.iter();
    let mut callers = Vec::new();
    for (plan, price, credit, customers) in PLANS {
        let config = NewSubscriptionConfig {
            name: plan.to_owned(),
            period_amount: usd(price),
            billing_interval: BillingInterval::Month,
            terms: ConfigTerms {
                included_credit: usd(credit),
                rollover_type: Rollover::None,
                bundle_rollover_type: Rollover::Full,
                meter_ids: vec![meter_id],
            },
            credit_bundles: Vec::new(),
        };
        let config = subscription_configs::create(conn, merchant_id, &config, start)?
            .map_err(|unknown| anyhow!("a plan of the demo: {unknown:?}"))?;
        let config_id = config.config.subscription_config_id;
        for (place, name) in names.by_ref().take(customers).enumerate() {
            let of = (config_id, meter_id, of_customers);
            let key = create_customer(conn, merchant_id, name, of, start)?;
            let calls_a_day = u64::try_from(credit)? / 20 + 2;
            callers.push(Caller { key, calls_a_day, since_day: i64::try_from(place)? * 2 });
        }
    }
    let rules = SpendRules {
        enforcement: Enforcement::Strict,
        spend_limit: Some(SpendLimit { amount: usd(50), cycle: Cycle::Daily }),
        run_limit: Some(usd(10)),
        ..SpendRules::default()
    };
    let of = ("Research agent", None, None, Some(of_research));
    let agent = spend_key(conn, merchant_id, of, rules, start)?;
    Ok((callers, agent))
}

fn create_customer(
    conn: &mut Conn,
    merchant_id: MerchantId,
    name: &str,
    (config_id, meter_id, budget_id): (SubscriptionConfigId, MeterId, BudgetId),
    start: Timestamp,
) -> anyhow::Result<CallKey> {
    let customer = NewConnection {
        name: Some(name.to_owned()),
        budget_id: Some(budget_id),
        ..NewConnection::default()
    };
    let made = connections::create(conn, merchant_id, &customer, start)?;
    let connection = made.context("the budget of the customers")?.connection;
    let (connection_id, wallet_id) = (connection.connection_id, connection.wallet_id);
    let movement = WalletMovement {
        kind: TransactionKind::Credit,
        amount: usd(200),
        description: Some("Card payment".to_owned()),
    };
    wallets::book(conn, merchant_id, wallet_id, &movement, start)?;
    subscriptions::create(conn, merchant_id, connection_id, config_id, start)?;
    let of = (name, Some(wallet_id), Some(meter_id), None);
    spend_key(conn, merchant_id, of, SpendRules::default(), start)
}

/// The name of a spend key, its wallet, its meter and its budget.
type NamedKey<'a> = (&'a str, Option<WalletId>, Option<MeterId>, Option<BudgetId>);

fn spend_key(
    conn: &mut Conn,
    merchant_id: MerchantId,
    (name, wallet_id, meter_id, budget_id): NamedKey<'_>,
    rules: SpendRules,
    start: Timestamp,
) -> anyhow::Result<CallKey> {
    let new = NewSpendKey { name: name.to_owned(), wallet_id, meter_id, budget_id, rules };
    let (made, key) = spend_keys::create(conn, merchant_id, &new, start)?
        .map_err(|missing| anyhow!("a spend key of the demo: no {missing:?}"))?;
    Ok(CallKey::Spend(made.spend_key_id, key.hash()))
}

struct Business<'a> {
    store: Store,
    prices: &'a PriceBook,
    merchant_id: MerchantId,
    clock: Clock,
    numbers: Numbers,
}

impl Business<'_> {
    /// Makes calls with these keys at once, and settles them a moment later.
    async fn make_calls(&mut self, keys: Vec<CallKey>) -> anyhow::Result<()> {
        let mut admitting = JoinSet::new();
        for key in keys {
            let (provider, model) = self.numbers.model();
            let usage =
                Usage::tokens(self.numbers.from(2_000, 60_000), self.numbers.from(200, 3_000));
            let (call, admitted) = self.call(key, provider, model, usage)?;
            let store = self.store.clone();
            admitting.spawn(async move {
                anyhow::Ok(store.admit(Box::new(call)).await?.is_ok().then_some(admitted))
            });
        }
        let mut settling = JoinSet::new();
        while let Some(admitted) = admitting.join_next().await {
            settling.extend(admitted??.map(|call| settle(self.store.clone(), call)));
        }
        self.clock.advance_millis(CALL_MILLIS);
        while let Some(settled) = settling.join_next().await {
            settled??;
        }
        Ok(())
    }

    /// An agent in a loop: large calls of one run, until its limit refuses them.
    async fn run_away(&mut self, agent: CallKey) -> anyhow::Result<()> {
        let run_id: RunId = RUNAWAY_RUN.parse().map_err(|_| anyhow!("the run of the demo"))?;
        loop {
            let usage = Usage::tokens(self.numbers.from(60_000, 120_000), 1_200);
            let (call, admitted) = self.call(agent, "openai", "gpt-4o", usage)?;
            let call = Call { run: Some(CallRun { run_id: run_id.clone(), limit: None }), ..call };
            let at = self.clock.now();
            match self.store.admit(Box::new(call)).await? {
                Ok(_) => {
                    self.clock.advance_millis(CALL_MILLIS);
                    settle(self.store.clone(), admitted).await?;
                }
                Err(refusal) => {
                    let error = ApiError::from(refusal);
                    let cause = RefusalCause {
                        merchant_id: self.merchant_id,
                        key: agent,
                        connection_id: None,
                        model: Some("gpt-4o"),
                        run_id: Some(&run_id),
                        code: error.code().name(),
                        at,
                    };
                    self.store.record_refusal(&cause, || RefusedCall {
                        message: error.message().to_owned(),
                        provider: Some("openai".to_owned()),
                        endpoint: Some(endpoint("openai")),
                        limit: error.limit(),
                        ..RefusedCall::default()
                    });
                    return Ok(self.store.write_refusals().await?);
                }
            }
        }
    }

    /// A call that holds what it costs in the end. One in fifty fails at the provider.
    fn call(
        &mut self,
        key: CallKey,
        provider: &str,
        model: &str,
        usage: Usage,
    ) -> anyhow::Result<(Call, AdmittedCall)> {
        let now = self.clock.now();
        let request_id = RequestId::generate(now);
        let on = now.date();
        let models: &[&str] = &[model];
        let served =
            ServedCall { provider, models, tiers: &[], on, time: None, usage: &usage, parts: &[] };
        let cost = self.prices.price(&served)?;
        let priced = PricedUsage {
            usage,
            usage_source: UsageSource::Reported,
            base: cost.base,
            price_source: cost.source,
        };
        let call = Call {
            request_id,
            merchant_id: self.merchant_id,
            key,
            connection_id: None,
            meter_slug: None,
            disable_billing: false,
            forwarded: ForwardedRequest {
                provider: provider.to_owned(),
                endpoint: endpoint(provider),
                metered: true,
                provider_key_type: ProviderKeyType::Managed,
                model: Some(model.to_owned()),
                metadata: Metadata::default(),
                socket_id: None,
                input_estimate: priced,
            },
            shape: Some(RequestFormat::ShapeA),
            names_other_models: false,
            run: None,
            bound: CostBound {
                input_tokens: usage.input_tokens(),
                max_tokens: usage.output_tokens(),
                answers: 1,
                prices: self.prices.find(provider, model, on).map(|found| found.row.prices),
                ..CostBound::default()
            },
            report: None,
            ahead: false,
            created_at: now,
        };
        let failed = self.numbers.below(50) == 0;
        let nothing = PricedUsage { usage: Usage::default(), base: BaseCost::default(), ..priced };
        let report = CallReport {
            ending: if failed { Ending::Rejected } else { Ending::Answered },
            provider_status: Some(if failed { 529 } else { 200 }),
            model: Some(model.to_owned()),
            response_id: None,
            priced: if failed { nothing } else { priced },
            applied: Vec::new(),
            missing: None,
            timestamp: now.plus_millis(CALL_MILLIS),
            suspicious: false,
            extended: false,
            job: None,
            lines: Vec::new(),
            objects: Vec::new(),
            details: CallDetails {
                failure: failed.then(overloaded),
                provider_request_id: None,
                timings: CallTimings {
                    sent_at: Some(now.plus_millis(1)),
                    first_byte_at: Some(now.plus_millis(CALL_MILLIS / 4)),
                    last_byte_at: Some(now.plus_millis(CALL_MILLIS)),
                },
            },
        };
        Ok((call, AdmittedCall { request_id, report }))
    }
}

/// The error of a provider that has no room.
fn overloaded() -> CallFailure {
    CallFailure {
        source: FailureSource::Provider,
        kind: Some("overloaded_error".to_owned()),
        code: None,
        message: Some("Overloaded".to_owned()),
    }
}

async fn settle(store: Store, call: AdmittedCall) -> anyhow::Result<()> {
    match store.settle(call.request_id, call.report).await {
        SettleOutcome::Settled(_) => Ok(()),
        other => bail!("a call of the demo is not settled: {other:?}"),
    }
}

fn endpoint(provider: &str) -> String {
    match provider {
        "anthropic" => "POST https://api.anthropic.com/v1/messages".to_owned(),
        _ => "POST https://api.openai.com/v1/chat/completions".to_owned(),
    }
}

/// Pseudo-random numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    /// A number of a range. Small ones are more frequent.
    fn from(&mut self, least: u64, most: u64) -> u64 {
        let span = 1 + self.below(most - least);
        least + self.below(span)
    }

    /// The calls of a caller in a step. They grow over the days.
    fn calls_in_step(&mut self, calls_a_day: u64, day: i64) -> u64 {
        let grown = calls_a_day * u64::try_from(DAYS / 2 + day).unwrap_or(0);
        let steps = u64::try_from(24 / STEP_HOURS * DAYS * 3 / 2).unwrap_or(1);
        let (whole, rest) = (grown / steps, grown % steps);
        whole + u64::from(self.below(steps) < rest)
    }

    fn model(&mut self) -> (&'static str, &'static str) {
        let mut share = self.below(100);
        for (provider, model, part) in MODELS {
            if share < part {
                return (provider, model);
            }
            share -= part;
        }
        ("openai", "gpt-4o-mini")
    }
}
