//! Tests of subscriptions against a reference model.
//!
//! The model is written from the decisions alone. After any sequence of operations at any times, both have
//! the same balance, credit, holds, cycles, ledger lines and events.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::fmt::Debug;

use tollgate_domain::admission::{Call, CostBound, Refusal};
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::*;
use tollgate_pricing::Amount;
use tollgate_store::subscriptions::{
    self, ChangeOutcome, PlanChange, RenewalScope, SubscribeOutcome,
};
use tollgate_store::wallets::{MovementOutcome, WalletMovement};
use tollgate_store::{
    Page, ReportOutcome, ReportedUsage, SettleOutcome, connections, events,
    subscription_configs as configs, wallets,
};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::{answered, million_tokens, priced};
use tollgate_testkit::{TestStore, each_store};

use crate::reference::{
    self, DAY, OrderOutcome, ReferenceBundle, ReferenceConfig, ReferenceModel, ReferencePending,
};

/// An operation of a test. Indexes are taken modulo the number of items.
#[derive(Clone, Debug)]
enum ModelOperation {
    Subscribe(usize),
    /// A call that holds the first amount and costs the second. It ends before the next operation.
    Use(BoundedCall, i64),
    Open(BoundedCall),
    /// Reported usage under a meter.
    Report(usize, i64),
    Settle(usize, i64),
    /// An open call ends, and its wallet has nothing to pay.
    Fail(usize, Ending),
    Buy(usize, usize),
    Change(usize, UpgradeRule),
    ChangeToPresent,
    Cancel,
    Patch(usize, ConfigPatch),
    Retire(usize),
    TopUp(i64),
    Debit(i64),
    Renew(u64),
    /// A number of milliseconds passes.
    Pass(i64),
    /// Time passes to the end of the present cycle plus a number of milliseconds.
    PassToEnd(i64),
    /// A number of cycles passes.
    PassCycles(i64),
    Delete,
}

#[derive(Clone, Debug)]
struct BoundedCall {
    meter: usize,
    most: i64,
    is_billed: bool,
}

#[derive(Clone, Debug)]
struct ConfigPatch {
    included: Option<i64>,
    rolls_over: [Option<bool>; 2],
    links: Option<Vec<usize>>,
}

const METERS: usize = 3;
/// Mostly months, which have the most edge cases.
const INTERVALS: [BillingInterval; 6] = {
    use BillingInterval::{Day, Month, Week, Year};
    [Day, Week, Month, Month, Month, Year]
};
/// Days since the first of a leap year that fall on a day which some months lack.
const LAST_DAYS: [i64; 6] = [28, 29, 30, 59, 90, 366 + 30];

fn some_links(random: &mut Random) -> Vec<usize> {
    let all: [&[usize]; 5] = [&[], &[0], &[0, 1], &[1], &[2]];
    all[random.index(all.len())].to_vec()
}

fn some_config(random: &mut Random) -> ReferenceConfig {
    let bundle = |random: &mut Random| ReferenceBundle {
        cost: random.between(0, 1_000),
        credit: random.between(1, 1_500),
    };
    ReferenceConfig {
        // Some have the same price.
        price: random.between(0, 4) * 1_000,
        interval: INTERVALS[random.index(INTERVALS.len())],
        included: if random.one_in(8) { 0 } else { random.between(1, 3_000) },
        rolls_over: [random.one_in(2), random.one_in(2)],
        links: some_links(random),
        bundles: vec![bundle(random), bundle(random)],
        is_offered: true,
    }
}

/// Milliseconds after a leap year begins, mostly at the end of a month.
fn some_start(random: &mut Random) -> i64 {
    match random.one_in(3) {
        true => random.between(0, 4 * 365 * DAY),
        false => LAST_DAYS[random.index(LAST_DAYS.len())] * DAY + random.between(0, DAY),
    }
}

fn asked(random: &mut Random) -> BoundedCall {
    BoundedCall {
        meter: random.index(METERS),
        most: if random.one_in(20) { 0 } else { random.between(1, 1_200) },
        is_billed: !random.one_in(15),
    }
}

/// The cost of a call that may cost `most`: sometimes nothing, sometimes all, sometimes more.
fn cost(random: &mut Random, most: i64) -> i64 {
    match random.below(8) {
        0 => 0,
        1 => most,
        2 => most + random.between(0, 2_000),
        _ => random.between(0, most + 1),
    }
}

fn deed(random: &mut Random) -> ModelOperation {
    match random.below(100) {
        0..=9 => ModelOperation::Subscribe(random.index(8)),
        10..=11 => ModelOperation::Report(random.index(METERS), random.between(0, 900)),
        12..=19 => {
            let asked = asked(random);
            let cost = cost(random, asked.most);
            ModelOperation::Use(asked, cost)
        }
        20..=31 => ModelOperation::Open(asked(random)),
        32..=41 => ModelOperation::Settle(random.index(8), cost(random, 900)),
        42..=43 => {
            let endings = [Ending::NotSent, Ending::Unanswered, Ending::Rejected];
            ModelOperation::Fail(random.index(8), endings[random.index(3)])
        }
        44..=51 => ModelOperation::Buy(random.index(8), random.index(2)),
        52..=59 => {
            let rules = [UpgradeRule::Carry, UpgradeRule::Expire, UpgradeRule::Prorate];
            ModelOperation::Change(random.index(8), rules[random.index(rules.len())])
        }
        60..=61 => ModelOperation::ChangeToPresent,
        62..=64 => ModelOperation::Cancel,
        65..=71 => ModelOperation::Patch(random.index(8), {
            let included = random.one_in(2).then(|| random.between(0, 3_000));
            let rolls = |random: &mut Random| random.one_in(2).then(|| random.one_in(2));
            let rolls_over = [rolls(random), rolls(random)];
            ConfigPatch {
                included,
                rolls_over,
                links: random.one_in(3).then(|| some_links(random)),
            }
        }),
        72 => ModelOperation::Retire(random.index(8)),
        73..=76 => ModelOperation::TopUp(random.between(1, 2_000)),
        77 => ModelOperation::Debit(random.between(1, 1_000)),
        78..=83 => ModelOperation::Renew(random.below(3)),
        84..=87 => ModelOperation::Pass(random.between(0, 3 * DAY)),
        88..=94 => {
            let beyond = [-1, 0, 0, 1, DAY, 5 * DAY];
            ModelOperation::PassToEnd(beyond[random.index(beyond.len())])
        }
        95..=98 => ModelOperation::PassCycles(random.between(1, 9)),
        _ => ModelOperation::Delete,
    }
}

fn cents(amount: Amount) -> i64 {
    const PER_CENT: i64 = 100_000_000;
    assert_eq!(amount.units() % PER_CENT, 0, "{amount}");
    amount.units() / PER_CENT
}

fn usd(cents: i64) -> Amount {
    Amount::from_units(cents * 100_000_000)
}

const fn millis(at: Timestamp) -> i64 {
    at.unix_micros() / 1_000
}

const fn rollover(rolls_over: bool) -> Rollover {
    if rolls_over { Rollover::Full } else { Rollover::None }
}

/// Compares a value of the store with that of the reference.
fn same<T: PartialEq + Debug>(what: &str, store: T, reference: T) -> Result<(), String> {
    match store == reference {
        true => Ok(()),
        false => Err(format!("{what}: the store says {store:?}, the reference {reference:?}")),
    }
}

/// A customer in the store and in the reference.
struct ModelledCustomer<'a> {
    store: &'a TestStore,
    merchant_id: MerchantId,
    secret_key_id: SecretKeyId,
    connection: Connection,
    meters: Vec<MerchantMeter>,
    configs: Vec<(SubscriptionConfigId, Vec<CreditBundleId>)>,
    subscriptions: Vec<SubscriptionId>,
    open: Vec<RequestId>,
    model: ReferenceModel,
    /// Whether a cycle has ended and the store has not renewed the subscription since.
    is_unseen: bool,
}

impl<'a> ModelledCustomer<'a> {
    async fn new(store: &'a TestStore, specs: &[ReferenceConfig], start: i64) -> Self {
        // Begins at a leap year, so that leap years come in the same order in every run.
        let (mut year, ..) = reference::date_of(millis(store.clock.now()) / DAY);
        year += 1;
        while !reference::is_leap(year) {
            year += 1;
        }
        let begins = reference::days_until(year, 1, 1) * DAY + start;
        store.clock.advance_millis(begins - millis(store.clock.now()));

        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let mut world = Self {
            store,
            merchant_id,
            secret_key_id: store.secret_key_id(&merchant).await,
            connection: store.connection(merchant_id, "0").await,
            meters: Vec::new(),
            configs: Vec::new(),
            subscriptions: Vec::new(),
            open: Vec::new(),
            model: ReferenceModel::new(begins, specs.to_vec()),
            is_unseen: false,
        };
        for _ in 0..METERS {
            world.meters.push(store.meter(merchant_id, &[(0, "0")]).await);
        }
        for spec in specs {
            world.offer(spec).await;
        }
        world
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(
            &mut tollgate_store::Conn,
            MerchantId,
            Timestamp,
        ) -> Result<T, tollgate_store::StoreError>
        + Send
        + 'static,
    ) -> T {
        let (merchant_id, now) = (self.merchant_id, self.store.clock.now());
        self.store.store.write(move |conn| work(conn, merchant_id, now)).await.unwrap()
    }

    fn links(&self, links: &[usize]) -> Vec<MeterId> {
        links.iter().map(|&meter| self.meters[meter].meter_id).collect()
    }

    async fn offer(&mut self, spec: &ReferenceConfig) {
        let bundles = spec.bundles.iter().enumerate();
        let new = NewSubscriptionConfig {
            name: "Plan".to_owned(),
            period_amount: usd(spec.price),
            billing_interval: spec.interval,
            terms: ConfigTerms {
                included_credit: usd(spec.included),
                rollover_type: rollover(spec.rolls_over[0]),
                bundle_rollover_type: rollover(spec.rolls_over[1]),
                meter_ids: self.links(&spec.links),
            },
            credit_bundles: bundles
                .map(|(number, bundle)| NewCreditBundle {
                    name: number.to_string(),
                    cost: usd(bundle.cost),
                    credit_amount: usd(bundle.credit),
                })
                .collect(),
        };
        let made =
            self.write(move |conn, merchant_id, now| configs::create(conn, merchant_id, &new, now));
        let mut made = made.await.unwrap();
        made.credit_bundles.sort_by(|one, other| one.name.cmp(&other.name));
        let bundles = made.credit_bundles.iter().map(|bundle| bundle.credit_bundle_id).collect();
        self.configs.push((made.config.subscription_config_id, bundles));
    }

    fn call(&self, asked: &BoundedCall) -> Call {
        // A million tokens cost two dollars.
        let input_tokens = u64::try_from(asked.most).unwrap() * 5_000;
        Call {
            connection_id: Some(self.connection.connection_id),
            meter_slug: Some(self.meters[asked.meter].slug.clone()),
            disable_billing: !asked.is_billed,
            bound: CostBound { input_tokens, ..million_tokens() },
            ..self.store.call(self.merchant_id, self.secret_key_id)
        }
    }

    /// Time passes in both. The store may not notice it.
    fn pass(&mut self, millis: i64) {
        self.store.clock.advance_millis(millis);
        self.is_unseen |= self.model.pass(millis);
    }

    async fn admit(&mut self, asked: &BoundedCall) -> Result<bool, String> {
        let call = self.call(asked);
        let request_id = call.request_id;
        self.is_unseen = false;
        let outcome = match self.store.store.admit(Box::new(call)).await.unwrap() {
            Ok(_) => OrderOutcome::Done,
            Err(Refusal::WalletInsufficient { .. }) => OrderOutcome::Insufficient,
            Err(Refusal::ConnectionDisabled) => OrderOutcome::ConnectionDeleted,
            Err(other) => return Err(format!("refused: {other:?}")),
        };
        same("admission", outcome, self.model.admit(asked.meter, asked.most, asked.is_billed))?;
        if outcome == OrderOutcome::Done {
            self.open.push(request_id);
        }
        Ok(outcome == OrderOutcome::Done)
    }

    async fn settle(&mut self, which: usize, ending: Ending, cost: i64) -> Result<(), String> {
        let request_id = self.open.remove(which);
        self.is_unseen = false;
        let report = CallReport { ending, ..answered(1, &usd(cost).to_string()) };
        let outcome = self.store.store.settle(request_id, report).await;
        if !matches!(outcome, SettleOutcome::Settled(_)) {
            return Err(format!("not settled: {outcome:?}"));
        }
        self.model.settle(which, if ending == Ending::Unanswered { 0 } else { cost });
        Ok(())
    }

    async fn report(&mut self, meter: usize, cost: i64) -> Result<(), String> {
        let asked = BoundedCall { meter, most: 0, is_billed: true };
        let reported = ReportedUsage {
            applied: Vec::new(),
            missing: None,
            reference_id: RequestId::generate(self.store.clock.now()).to_string(),
            connection_id: self.connection.connection_id,
            meter_slug: self.meters[meter].slug.clone(),
            forwarded: self.call(&asked).forwarded,
            priced: priced(1, &usd(cost).to_string()),
        };
        self.is_unseen = false;
        let store = self.store.store.clone();
        let booked =
            self.write(move |conn, merchant_id, _| store.report(conn, merchant_id, &reported));
        let outcome = match booked.await {
            ReportOutcome::Booked(_) => OrderOutcome::Done,
            ReportOutcome::ConnectionDisabled => OrderOutcome::ConnectionDeleted,
            other => return Err(format!("{other:?}")),
        };
        same("report", outcome, self.model.report(meter, cost))
    }

    /// Applies an order to the last subscription, active or not.
    async fn order(
        &mut self,
        work: impl FnOnce(
            &mut tollgate_store::Conn,
            MerchantId,
            SubscriptionId,
            Timestamp,
        ) -> Result<ChangeOutcome, tollgate_store::StoreError>
        + Send
        + 'static,
        expected: impl FnOnce(&mut ReferenceModel) -> OrderOutcome,
    ) -> Result<(), String> {
        let Some(&id) = self.subscriptions.last() else { return Ok(()) };
        self.is_unseen = false;
        let changed = self.write(move |conn, merchant_id, now| work(conn, merchant_id, id, now));
        let outcome = match changed.await {
            ChangeOutcome::Subscription(_) => OrderOutcome::Done,
            ChangeOutcome::Ended(_) => OrderOutcome::Ended,
            ChangeOutcome::NotOffered => OrderOutcome::NotOffered,
            other => return Err(format!("{other:?}")),
        };
        same("order", outcome, expected(&mut self.model))
    }

    async fn subscribe(&mut self, config: usize) -> Result<(), String> {
        let (connection_id, config_id) = (self.connection.connection_id, self.configs[config].0);
        let started = self.write(move |conn, merchant_id, now| {
            subscriptions::create(conn, merchant_id, connection_id, config_id, now)
        });
        let outcome = match started.await {
            SubscribeOutcome::Subscription(state) => {
                self.subscriptions.push(state.subscription_id);
                OrderOutcome::Done
            }
            SubscribeOutcome::Exists => OrderOutcome::Exists,
            SubscribeOutcome::ConnectionDisabled => OrderOutcome::ConnectionDeleted,
            SubscribeOutcome::ConfigNotFound => OrderOutcome::NotOffered,
            SubscribeOutcome::ConnectionNotFound => return Err("no such connection".to_owned()),
        };
        // A refused subscription has changed nothing.
        self.is_unseen &= outcome != OrderOutcome::Done;
        same("subscribe", outcome, self.model.subscribe(config))
    }

    async fn patch(&mut self, config: usize, patch: &ConfigPatch) -> Result<(), String> {
        // An operation at the very instant at which a cycle ends comes after the end.
        if self.is_unseen {
            self.renew(0).await?;
        }
        let id = self.configs[config].0;
        let changes = SubscriptionConfigChanges {
            included_credit: patch.included.map(usd),
            rollover_type: patch.rolls_over[0].map(rollover),
            bundle_rollover_type: patch.rolls_over[1].map(rollover),
            meter_ids: patch.links.as_ref().map(|links| self.links(links)),
            ..SubscriptionConfigChanges::default()
        };
        let updated = self.write(move |conn, merchant_id, now| {
            configs::update(conn, merchant_id, id, &changes, now)
        });
        let is_done = matches!(updated.await, configs::ConfigUpdate::Config(_));
        let config = &mut self.model.configs[config];
        same("patch", is_done, config.is_offered)?;
        if is_done {
            config.included = patch.included.unwrap_or(config.included);
            for (rolls_over, patched) in config.rolls_over.iter_mut().zip(patch.rolls_over) {
                *rolls_over = patched.unwrap_or(*rolls_over);
            }
            config.links = patch.links.clone().unwrap_or_else(|| config.links.clone());
        }
        Ok(())
    }

    async fn renew(&mut self, whose: u64) -> Result<(), String> {
        let whose = match whose {
            0 => RenewalScope::Merchant(self.merchant_id),
            1 => RenewalScope::Connection(self.connection.connection_id),
            _ => RenewalScope::Wallet(self.connection.wallet_id),
        };
        let renewed = self.store.store.renew(whose).await.unwrap();
        same("renewed", renewed, usize::from(std::mem::take(&mut self.is_unseen)))
    }

    async fn move_balance(&mut self, kind: TransactionKind, sum: i64) -> Result<(), String> {
        self.is_unseen = false;
        let wallet_id = self.connection.wallet_id;
        let movement = WalletMovement { kind, amount: usd(sum), description: None };
        let moved = self.write(move |conn, merchant_id, now| {
            wallets::book(conn, merchant_id, wallet_id, &movement, now)
        });
        same("booked", matches!(moved.await, MovementOutcome::Booked(_)), true)?;
        let signed = if kind == TransactionKind::Debit { -sum } else { sum };
        self.model.move_balance(kind, signed);
        Ok(())
    }

    async fn perform(&mut self, deed: &ModelOperation) -> Result<(), String> {
        let count = self.configs.len();
        match deed {
            ModelOperation::Subscribe(config) => self.subscribe(config % count).await,
            ModelOperation::Use(asked, cost) => match self.admit(asked).await? {
                true => self.settle(self.open.len() - 1, Ending::Answered, *cost).await,
                false => Ok(()),
            },
            ModelOperation::Open(asked) => self.admit(asked).await.map(drop),
            ModelOperation::Report(meter, cost) => self.report(*meter, *cost).await,
            ModelOperation::Settle(..) | ModelOperation::Fail(..) if self.open.is_empty() => Ok(()),
            ModelOperation::Settle(which, cost) => {
                self.settle(which % self.open.len(), Ending::Answered, *cost).await
            }
            ModelOperation::Fail(which, ending) => {
                let cost = if *ending == Ending::Unanswered { 25 } else { 0 };
                self.settle(which % self.open.len(), *ending, cost).await
            }
            ModelOperation::Buy(config, bundle) => {
                // Mostly a bundle of the present configuration.
                let present = self.model.active().map(|active| active.config);
                let config = present.filter(|_| *config < 7).unwrap_or(config % count);
                let (id, bundle) = (self.configs[config].1[*bundle], *bundle);
                self.order(
                    move |conn, merchant_id, of, now| {
                        subscriptions::buy_bundle(conn, merchant_id, of, id, now)
                    },
                    |model| model.buy(config, bundle),
                )
                .await
            }
            ModelOperation::Change(..) | ModelOperation::ChangeToPresent => {
                let present = self.model.active().map_or(0, |active| active.config);
                let (to, on_upgrade) = match *deed {
                    ModelOperation::Change(config, rule) => (config % count, rule),
                    _ => (present, UpgradeRule::Carry),
                };
                let order = PlanChange { config_id: self.configs[to].0, on_upgrade };
                self.order(
                    move |conn, merchant_id, of, now| {
                        let preview =
                            subscriptions::preview_change(conn, merchant_id, of, order, now)?;
                        let changed = subscriptions::change(conn, merchant_id, of, order, now)?;
                        match (&changed, &preview) {
                            // A change that waits for the end of the cycle is previewed as of then.
                            (ChangeOutcome::Subscription(state), Ok(preview)) => {
                                let waits = state.pending_change.is_some();
                                assert!(waits || preview.after == **state, "{preview:?} {state:?}");
                            }
                            (refused, preview) => assert_eq!(preview.as_ref().err(), Some(refused)),
                        }
                        Ok(changed)
                    },
                    |model| model.change(to, on_upgrade),
                )
                .await
            }
            ModelOperation::Cancel => {
                self.order(subscriptions::cancel, ReferenceModel::cancel).await
            }
            ModelOperation::Patch(config, patch) => self.patch(config % count, patch).await,
            ModelOperation::Retire(config) => {
                let id = self.configs[config % count].0;
                let retired =
                    self.write(move |conn, merchant, now| configs::delete(conn, merchant, id, now));
                let retired = retired.await;
                let config = &mut self.model.configs[config % count];
                same("retired", retired, std::mem::take(&mut config.is_offered))
            }
            ModelOperation::TopUp(sum) => self.move_balance(TransactionKind::Credit, *sum).await,
            ModelOperation::Debit(sum) => self.move_balance(TransactionKind::Debit, *sum).await,
            ModelOperation::Renew(whose) => self.renew(*whose).await,
            ModelOperation::Pass(millis) => {
                self.pass(*millis);
                Ok(())
            }
            ModelOperation::PassToEnd(beyond) => {
                if let Some(end) = self.model.active().map(|active| active.cycle_end) {
                    self.pass((end - self.model.now + beyond).max(0));
                }
                Ok(())
            }
            ModelOperation::PassCycles(cycles) => {
                if let Some(active) = self.model.active() {
                    let length = active.cycle_end - active.cycle_start;
                    self.pass(length * cycles.min(&(1_500 * DAY / length).max(1)));
                }
                Ok(())
            }
            ModelOperation::Delete => {
                let connection_id = self.connection.connection_id;
                let deleted = self.write(move |conn, merchant_id, now| {
                    connections::delete(conn, merchant_id, connection_id, now)
                });
                let deleted = deleted.await;
                self.is_unseen = false;
                same("deleted", deleted, self.model.delete())
            }
        }
    }

    /// Compares the present state.
    async fn compare(&self) -> Result<(), String> {
        let wallet = self.store.wallet(self.merchant_id, self.connection.wallet_id).await;
        let ReferenceModel { now, balance, .. } = self.model;
        same("now", millis(self.store.clock.now()), now)?;
        same("balance", cents(wallet.balance), balance)?;
        same("held of the balance", cents(wallet.held), self.model.held_on_balance())?;
        let Credits { cycle, bundle, .. } = wallet.credits;
        same("held of credit", [cents(cycle.held), cents(bundle.held)], self.model.held())?;
        if self.is_unseen {
            return Ok(());
        }
        let remaining = [cents(cycle.remaining), cents(bundle.remaining)];
        same("credit", remaining, self.model.remaining())?;
        let pairs = self.subscriptions.iter().zip(&self.model.subscriptions);
        for (&id, expected) in pairs.rev().take(2) {
            self.compare_subscription(id, expected).await?;
        }
        Ok(())
    }

    async fn compare_subscription(
        &self,
        id: SubscriptionId,
        expected: &reference::ReferenceSubscription,
    ) -> Result<(), String> {
        let merchant_id = self.merchant_id;
        let found = self.store.store.read(move |conn| subscriptions::find(conn, merchant_id, id));
        let state = found.await.unwrap().unwrap();
        let is_active = expected.cancelled_at.is_none();
        same("active", state.status == SubscriptionStatus::Active, is_active)?;
        same("started_at", millis(state.started_at), expected.started_at)?;
        same("cancelled_at", state.cancelled_at.map(millis), expected.cancelled_at)?;
        same("cycle_start_at", millis(state.cycle_start_at), expected.cycle_start)?;
        same("cycle_end_at", millis(state.cycle_end_at), expected.cycle_end)?;
        let config_id = |config: usize| self.configs[config].0;
        same("config", state.plan.subscription_config_id, config_id(expected.config))?;
        let config = &self.model.configs[expected.config];
        same("interval", state.billing_interval, config.interval)?;
        same("included", cents(state.plan.included_credit), config.included)?;
        same("rollover", state.cycle_rollover, rollover(config.rolls_over[0]))?;
        same("bundle rollover", state.bundle_rollover, rollover(config.rolls_over[1]))?;
        let shown = [cents(state.cycle_remaining), cents(state.bundle_remaining)];
        same("shown credit", shown, if is_active { self.model.remaining() } else { [0, 0] })?;
        let pending = state.pending_change.map(|change| {
            (change.kind, change.plan.subscription_config_id, millis(change.effective_at))
        });
        let expected = expected.pending.map(|change| match change {
            ReferencePending::Cancellation => {
                (PendingKind::Cancellation, config_id(expected.config), expected.cycle_end)
            }
            ReferencePending::Downgrade(to) => {
                (PendingKind::Downgrade, config_id(to), expected.cycle_end)
            }
        });
        same("pending change", pending, expected)
    }

    /// Compares all ledger lines and all events.
    async fn compare_books(&mut self) -> Result<(), String> {
        self.renew(0).await?;
        self.compare().await?;
        let wallet_id = self.connection.wallet_id;
        let page = Page { after: None, limit: 1_000_000 };
        let lines = self
            .store
            .store
            .read_records(move |conn, archive| {
                wallets::list_transactions(conn, archive, wallet_id, &page)
            })
            .await
            .unwrap();
        let line = |line: &Transaction| {
            let cents = cents(line.amount);
            reference::line(millis(line.created_at), line.account, line.kind, cents)
        };
        compare_lists("ledger", lines.iter().map(line).collect(), self.model.lines.clone())?;
        let merchant_id = self.merchant_id;
        let page = Page { after: None, limit: 1_000_000 };
        let told = self.store.store.read(move |conn| events::list(conn, merchant_id, &page));
        let told = told.await.unwrap();
        let told = told.iter().map(|event| {
            let due = match &event.payload {
                EventPayload::SubscriptionCreated { amount_due, .. }
                | EventPayload::SubscriptionRenewed { amount_due, .. }
                | EventPayload::SubscriptionChanged { amount_due, .. }
                | EventPayload::CreditBundlePurchased { amount_due, .. } => {
                    Some(cents(*amount_due))
                }
                _ => None,
            };
            reference::told(millis(event.created_at), event.payload.kind().as_str(), due)
        });
        compare_lists("events", told.collect(), self.model.told.clone())
    }
}

fn compare_lists(
    what: &str,
    mut store: Vec<String>,
    mut reference: Vec<String>,
) -> Result<(), String> {
    store.sort();
    reference.sort();
    let pairs = store.iter().map(Some).chain([None]).zip(reference.iter().map(Some).chain([None]));
    for (found, expected) in pairs {
        same(what, found, expected)?;
    }
    same(what, store.len(), reference.len())
}

/// Performs deeds and compares after each. Returns the difference and its deed.
async fn perform(
    store: &TestStore,
    specs: &[ReferenceConfig],
    start: i64,
    deeds: &[ModelOperation],
) -> Result<(), String> {
    let mut world = ModelledCustomer::new(store, specs, start).await;
    for (number, deed) in deeds.iter().enumerate() {
        let mut done = world.perform(deed).await;
        if done.is_ok() {
            done = world.compare().await;
        }
        done.map_err(|trouble| format!("deed {number}, {deed:?}: {trouble}"))?;
    }
    while !world.open.is_empty() {
        world.settle(0, Ending::Answered, 75).await?;
    }
    same("open calls", world.model.open_calls(), 0)?;
    world.compare_books().await.map_err(|trouble| format!("in the end: {trouble}"))
}

/// The same difference with as few deeds as possible.
async fn shrink(
    store: &TestStore,
    specs: &[ReferenceConfig],
    start: i64,
    mut deeds: Vec<ModelOperation>,
) -> String {
    let mut trouble = "none when it was run again".to_owned();
    let mut width = deeds.len();
    while width > 0 {
        let mut at = 0;
        while at < deeds.len() {
            let mut fewer = deeds.clone();
            fewer.drain(at..(at + width).min(deeds.len()));
            match perform(store, specs, start, &fewer).await {
                Ok(()) => at += width,
                Err(found) => (deeds, trouble) = (fewer, found),
            }
        }
        width /= 2;
    }
    format!("{trouble}\nof {specs:#?}\nafter {deeds:#?}")
}

/// The number of sequences that share a store, in which the years pass.
const SHARE: u64 = 20;
const DEEDS: usize = 60;

#[test]
fn whatever_is_done_at_whatever_time_store_and_reference_say_the_same() {
    let all: Vec<_> = (0..seeds(40)).collect();
    for some in all.chunks(usize::try_from(SHARE).unwrap()) {
        each_store(async |store| {
            for &seed in some {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let specs: Vec<_> = (0..5).map(|_| some_config(&mut random)).collect();
                let start = some_start(&mut random);
                let first = ModelOperation::Subscribe(random.index(8));
                let others = (1..DEEDS).map(|_| deed(&mut random));
                let deeds: Vec<_> = std::iter::once(first).chain(others).collect();
                if let Err(trouble) = perform(store, &specs, start, &deeds).await {
                    let least = shrink(store, &specs, start, deeds).await;
                    panic!("seed {seed}: {trouble}\nand at least: {least}");
                }
            }
        });
    }
}
