//! Tests of concurrent operations, on both databases. On PostgreSQL there are two nodes.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;

use diesel::RunQueryDsl;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;
use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::*;
use tollgate_pricing::*;
use tollgate_store::subscriptions::{
    self, ChangeOutcome, PlanChange, RenewalScope, SubscribeOutcome,
};
use tollgate_store::{
    Conn, DatabaseUrl, Options, Page, ReportOutcome, ReportedUsage, SettleOutcome, Store,
    StoreError, connections, events, meters, spend_keys, subscription_configs, wallets,
};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::{amount, answered, priced};
use tollgate_testkit::{TestStore, each_store};

/// The hold of a call: 2 USD.
const HOLD: i64 = 200;

const fn change_to(config_id: SubscriptionConfigId) -> PlanChange {
    PlanChange { config_id, on_upgrade: UpgradeRule::Carry }
}

const fn usd(cents: i64) -> Amount {
    Amount::from_units(cents * 100_000_000)
}

/// The racing stores: one process, or two if the database is shared.
struct RacingNodes(Vec<Store>);

impl RacingNodes {
    fn of(store: &TestStore) -> Self {
        let DatabaseUrl::Postgres(url) = &store.url else {
            return Self(vec![store.store.clone(), store.store.clone()]);
        };
        let url = DatabaseUrl::Postgres(format!("{url}&application_name=racer"));
        let clock = store.clock.clone();
        let options = Options { serve: true, clock, ..Options::default() };
        Self((0..2).map(|_| Store::open(&url, &options).unwrap()).collect())
    }

    fn any(&self, random: &mut Random) -> Store {
        self.0[random.index(self.0.len())].clone()
    }

    /// Ends the race, and fails if there was a deadlock.
    async fn close(self, store: &TestStore) {
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            return;
        }
        for node in self.0 {
            node.close().await.unwrap();
        }
        // A server process reports its counts when it ends, at the latest.
        let racing = "(SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'racer')";
        while count(store, racing).await > 0 {
            tokio::task::yield_now().await;
        }
        let deadlocks =
            "(SELECT deadlocks FROM pg_stat_database WHERE datname = current_database())";
        assert_eq!(count(store, deadlocks).await, 0, "deadlocks");
    }
}

async fn count(store: &TestStore, sql: &'static str) -> i64 {
    let read = store.store.read(move |conn| match conn {
        Conn::Postgres(conn) => {
            let count = diesel::dsl::sql::<diesel::sql_types::BigInt>(sql);
            Ok::<_, StoreError>(diesel::select(count).get_result(conn)?)
        }
        Conn::Sqlite(_) => Ok(0),
    });
    read.await.unwrap()
}

/// A barrier at which all racers start at once.
struct StartBarrier(Arc<Barrier>);

impl StartBarrier {
    fn of(racers: usize) -> Self {
        Self(Arc::new(Barrier::new(racers)))
    }

    fn race<T: Send + 'static>(
        &self,
        random: &mut Random,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let (barrier, pauses) = (Arc::clone(&self.0), random.below(4));
        tokio::spawn(async move {
            barrier.wait().await;
            for _ in 0..pauses {
                tokio::task::yield_now().await;
            }
            work.await
        })
    }
}

/// A merchant with a meter that is linked to its configurations.
struct RaceShop<'a> {
    store: &'a TestStore,
    merchant_id: MerchantId,
    secret_key_id: SecretKeyId,
    meter: MerchantMeter,
}

/// A customer with a subscription.
#[derive(Clone)]
struct RaceCustomer {
    connection_id: ConnectionId,
    wallet_id: WalletId,
    subscription_id: SubscriptionId,
}

impl<'a> RaceShop<'a> {
    async fn new(store: &'a TestStore) -> Self {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        Self {
            store,
            merchant_id,
            secret_key_id: store.secret_key_id(&merchant).await,
            meter: store.meter(merchant_id, &[(0, "0")]).await,
        }
    }

    async fn offer(
        &self,
        price: i64,
        included: i64,
        rollover: Rollover,
    ) -> subscription_configs::ConfigDetails {
        let new = NewSubscriptionConfig {
            name: "Plan".to_owned(),
            period_amount: usd(price),
            billing_interval: BillingInterval::Day,
            terms: ConfigTerms {
                included_credit: usd(included),
                rollover_type: rollover,
                bundle_rollover_type: rollover,
                meter_ids: vec![self.meter.meter_id],
            },
            credit_bundles: vec![NewCreditBundle {
                name: "Bundle".to_owned(),
                cost: usd(900),
                credit_amount: usd(1_000),
            }],
        };
        let (merchant_id, now) = (self.merchant_id, self.store.clock.now());
        let made = self
            .store
            .store
            .write(move |conn| subscription_configs::create(conn, merchant_id, &new, now));
        made.await.unwrap().unwrap()
    }

    async fn customer(&self, config_id: SubscriptionConfigId) -> RaceCustomer {
        let made = self.store.connection(self.merchant_id, "0").await;
        let (connection_id, wallet_id) = (made.connection_id, made.wallet_id);
        let started = self.subscribe(&self.store.store, connection_id, config_id).await;
        let SubscribeOutcome::Subscription(state) = started else { panic!("{started:?}") };
        RaceCustomer { connection_id, wallet_id, subscription_id: state.subscription_id }
    }

    fn subscribe(
        &self,
        node: &Store,
        connection_id: ConnectionId,
        config_id: SubscriptionConfigId,
    ) -> impl Future<Output = SubscribeOutcome> + Send + use<> {
        let (merchant_id, now, node) = (self.merchant_id, self.store.clock.now(), node.clone());
        async move {
            let subscribe = move |conn: &mut Conn| {
                subscriptions::create(conn, merchant_id, connection_id, config_id, now)
            };
            node.write(subscribe).await.unwrap()
        }
    }

    fn order<W>(
        &self,
        node: &Store,
        customer: &RaceCustomer,
        work: W,
    ) -> impl Future<Output = ChangeOutcome> + Send + use<W>
    where
        W: FnOnce(
                &mut Conn,
                MerchantId,
                SubscriptionId,
                Timestamp,
            ) -> Result<ChangeOutcome, StoreError>
            + Send
            + 'static,
    {
        let (merchant_id, id) = (self.merchant_id, customer.subscription_id);
        let (node, clock) = (node.clone(), self.store.clock.clone());
        async move {
            let now = clock.now();
            node.write(move |conn| work(conn, merchant_id, id, now)).await.unwrap()
        }
    }

    fn delete(
        &self,
        node: &Store,
        connection_id: ConnectionId,
    ) -> impl Future<Output = bool> + Send + use<> {
        let (merchant_id, now, node) = (self.merchant_id, self.store.clock.now(), node.clone());
        async move {
            let delete =
                move |conn: &mut Conn| connections::delete(conn, merchant_id, connection_id, now);
            node.write(delete).await.unwrap()
        }
    }

    fn call(&self, customer: &RaceCustomer) -> Call {
        Call {
            connection_id: Some(customer.connection_id),
            meter_slug: Some(self.meter.slug.clone()),
            ..self.store.call(self.merchant_id, self.secret_key_id)
        }
    }

    async fn wallet(&self, customer: &RaceCustomer) -> Wallet {
        self.store.wallet(self.merchant_id, customer.wallet_id).await
    }

    async fn state(&self, customer: &RaceCustomer) -> SubscriptionState {
        let (merchant_id, id) = (self.merchant_id, customer.subscription_id);
        let read = self.store.store.read(move |conn| subscriptions::find(conn, merchant_id, id));
        read.await.unwrap().unwrap()
    }

    /// The number of events of a kind.
    async fn told(&self, kind: &str) -> usize {
        let merchant_id = self.merchant_id;
        let page = Page { after: None, limit: 10_000 };
        let told = self.store.store.read(move |conn| events::list(conn, merchant_id, &page));
        told.await.unwrap().iter().filter(|event| event.payload.kind().as_str() == kind).count()
    }

    /// The number of grants, and the used and expired credit in cents.
    ///
    /// Fails if any credit was ever below zero.
    async fn books(&self, customer: &RaceCustomer) -> CreditTotals {
        let wallet_id = customer.wallet_id;
        let page = Page { after: None, limit: 10_000 };
        let lines = self
            .store
            .store
            .read_records(move |conn, archive| {
                wallets::list_transactions(conn, archive, wallet_id, &page)
            })
            .await
            .unwrap();
        let mut books = CreditTotals::default();
        for line in lines {
            let sum = line.amount.units() / 100_000_000;
            match line.kind {
                TransactionKind::CreditGrant => books.grants += 1,
                TransactionKind::Usage => books.used -= sum,
                TransactionKind::CreditExpiry => books.expired -= sum,
                _ => {}
            }
            if line.account != LedgerAccount::Balance {
                assert!(line.balance_after >= Amount::ZERO, "{line:?}");
            }
        }
        books
    }

    /// Deletes the customers, so that later races do not renew them.
    async fn close(&self, customers: &[RaceCustomer]) {
        for customer in customers {
            self.delete(&self.store.store, customer.connection_id).await;
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CreditTotals {
    grants: usize,
    used: i64,
    expired: i64,
}

/// Admits a call; `None` if the wallet has too little money.
async fn admit(node: &Store, call: Call) -> Option<RequestId> {
    let request_id = call.request_id;
    match node.admit(Box::new(call)).await.unwrap() {
        Ok(_) => Some(request_id),
        Err(Refusal::WalletInsufficient { .. }) => None,
        Err(other) => panic!("{other:?}"),
    }
}

async fn settle(node: &Store, request_id: RequestId, cost: i64) {
    let settled = node.settle(request_id, answered(1, &usd(cost).to_string())).await;
    assert!(matches!(settled, SettleOutcome::Settled(_)), "{settled:?}");
}

const fn rollover(seed: u64) -> Rollover {
    if seed.is_multiple_of(2) { Rollover::None } else { Rollover::Full }
}

const DAY: i64 = 24 * 60 * 60 * 1_000;
const CUSTOMERS: usize = 4;
/// The number of calls of each customer that are in flight when its cycle ends.
const OPEN: usize = 8;
/// The number of calls that each customer makes after that.
const MORE: usize = 4;

/// Open calls have reserved all credit of a cycle when it ends.
///
/// They settle, some above their hold, other calls are admitted, and two nodes renew. All of it comes after
/// the end of the cycle, so the order makes no difference in the end.
#[test]
fn when_a_cycle_ends_among_settlements_and_admissions_nothing_is_lost_or_granted_twice() {
    each_store(async |store| {
        let nodes = RacingNodes::of(store);
        for seed in 0..seeds(15) {
            let mut random = Random(seed);
            let shop = RaceShop::new(store).await;
            let included = i64::try_from(OPEN).unwrap() * HOLD;
            let config = shop.offer(1_000, included, rollover(seed)).await.config;
            let (mut customers, mut open) = (Vec::new(), Vec::new());
            for _ in 0..CUSTOMERS {
                let customer = shop.customer(config.subscription_config_id).await;
                for _ in 0..OPEN {
                    let id = admit(&store.store, shop.call(&customer)).await.unwrap();
                    open.push((customers.len(), id));
                }
                assert_eq!(admit(&store.store, shop.call(&customer)).await, None);
                customers.push(customer);
            }
            store.clock.advance_millis(DAY);

            let mut expected = [CreditTotals { grants: 2, ..CreditTotals::default() }; CUSTOMERS];
            let mut left = [included; CUSTOMERS];
            let start = StartBarrier::of(open.len() + CUSTOMERS * MORE + 4);
            let mut racers = Vec::new();
            for (whose, request_id) in open {
                let (node, cost) = (nodes.any(&mut random), random.between(0, HOLD + 100));
                expected[whose].used += cost;
                match rollover(seed) {
                    Rollover::Full => left[whose] += HOLD - cost,
                    Rollover::None => {
                        expected[whose].expired += (HOLD - cost).max(0);
                        left[whose] -= (cost - HOLD).max(0);
                    }
                }
                racers.push(start.race(&mut random, async move {
                    settle(&node, request_id, cost).await;
                }));
            }
            for number in 0..CUSTOMERS * MORE {
                let whose = number % CUSTOMERS;
                let (first, second) = (nodes.any(&mut random), nodes.any(&mut random));
                let (call, cost) = (shop.call(&customers[whose]), random.between(0, HOLD + 1));
                expected[whose].used += cost;
                left[whose] -= cost;
                racers.push(start.race(&mut random, async move {
                    let request_id = admit(&first, call).await;
                    let request_id = request_id.expect("the next cycle has credit for it");
                    settle(&second, request_id, cost).await;
                }));
            }
            for whose in [RenewalScope::Everybody, RenewalScope::Merchant(shop.merchant_id)] {
                for node in &nodes.0 {
                    let node = node.clone();
                    racers.push(start.race(&mut random, async move {
                        node.renew(whose).await.unwrap();
                    }));
                }
            }
            for racer in racers {
                racer.await.unwrap();
            }

            for (whose, customer) in customers.iter().enumerate() {
                let wallet = shop.wallet(customer).await;
                assert_eq!(wallet.balance, Amount::ZERO, "seed {seed}");
                assert_eq!((wallet.held, wallet.credits.held()), (Amount::ZERO, Amount::ZERO));
                assert_eq!(wallet.credits.cycle.remaining, usd(left[whose]), "seed {seed}");
                assert_eq!(shop.books(customer).await, expected[whose], "seed {seed}");
            }
            assert_eq!(shop.told("subscription.renewed").await, CUSTOMERS, "seed {seed}");
            shop.close(&customers).await;
        }
        nodes.close(store).await;
    });
}

/// As the test before, but the cycle ends within the race: some calls settle before, some after.
#[test]
fn wherever_in_a_race_a_cycle_ends_what_was_granted_is_used_expired_or_there() {
    each_store(async |store| {
        let nodes = RacingNodes::of(store);
        for seed in 0..seeds(15) {
            let mut random = Random(seed);
            let shop = RaceShop::new(store).await;
            let included = i64::try_from(OPEN).unwrap() * HOLD + 50;
            let config = shop.offer(1_000, included, rollover(seed)).await.config;
            let customer = shop.customer(config.subscription_config_id).await;
            let mut open = Vec::new();
            for _ in 0..OPEN {
                open.push(admit(&store.store, shop.call(&customer)).await.unwrap());
            }
            let start = StartBarrier::of(OPEN + 24 + 5);
            let mut racers = Vec::new();
            for request_id in open {
                let (node, cost) = (nodes.any(&mut random), random.between(0, HOLD + 100));
                racers.push(start.race(&mut random, async move {
                    settle(&node, request_id, cost).await;
                    cost
                }));
            }
            for _ in 0..24 {
                let (first, second) = (nodes.any(&mut random), nodes.any(&mut random));
                let (call, cost) = (shop.call(&customer), random.between(0, HOLD + 100));
                racers.push(start.race(&mut random, async move {
                    let Some(request_id) = admit(&first, call).await else { return 0 };
                    settle(&second, request_id, cost).await;
                    cost
                }));
            }
            for _ in 0..4 {
                let node = nodes.any(&mut random);
                racers.push(start.race(&mut random, async move {
                    node.renew(RenewalScope::Everybody).await.unwrap();
                    0
                }));
            }
            let clock = store.clock.clone();
            racers.push(start.race(&mut random, async move {
                clock.advance_millis(DAY);
                0
            }));
            let mut used = 0;
            for racer in racers {
                used += racer.await.unwrap();
            }
            store.store.renew(RenewalScope::Merchant(shop.merchant_id)).await.unwrap();
            let wallet = shop.wallet(&customer).await;
            let books = shop.books(&customer).await;
            assert_eq!((books.grants, books.used), (2, used), "seed {seed}");
            let granted = usd(2 * included);
            let left = wallet.credits.remaining().checked_add(wallet.balance).unwrap();
            let gone = usd(books.used + books.expired);
            assert_eq!(left.checked_add(gone).unwrap(), granted, "seed {seed}");
            assert_eq!((wallet.held, wallet.credits.held()), (Amount::ZERO, Amount::ZERO));
            assert_eq!(shop.told("subscription.renewed").await, 1, "seed {seed}");
            shop.close(&[customer]).await;
        }
        nodes.close(store).await;
    });
}

/// An order of a customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CustomerOrder {
    Cancel,
    /// A change to the configuration of this index, the cheapest first.
    Change(usize),
}

/// The result of orders one after another: the configuration and the pending order.
fn one_by_one(orders: &[CustomerOrder]) -> (usize, Option<CustomerOrder>) {
    orders.iter().fold((1, None), |(present, _), order| match *order {
        CustomerOrder::Change(to) if to == present => (present, None),
        CustomerOrder::Change(to) if to > present => (to, None),
        later => (present, Some(later)),
    })
}

fn in_every_order(orders: &[CustomerOrder]) -> Vec<Vec<CustomerOrder>> {
    if orders.is_empty() {
        return vec![Vec::new()];
    }
    let with_first = |first: usize| {
        let mut rest = orders.to_vec();
        let first = rest.remove(first);
        in_every_order(&rest).into_iter().map(move |rest| [vec![first], rest].concat())
    };
    (0..orders.len()).flat_map(with_first).collect()
}

#[test]
fn orders_at_once_end_as_if_they_had_come_one_after_another() {
    use CustomerOrder::{Cancel, Change};
    let cases: [&[CustomerOrder]; 7] = [
        &[Cancel, Cancel],
        &[Cancel, Cancel, Cancel, Cancel],
        &[Cancel, Change(0)],
        &[Cancel, Change(2)],
        &[Change(0), Change(2)],
        &[Change(2), Change(2)],
        &[Cancel, Change(0), Change(1), Change(2)],
    ];
    each_store(async |store| {
        let nodes = RacingNodes::of(store);
        for seed in 0..seeds(21) {
            let mut random = Random(seed);
            let orders = cases[usize::try_from(seed).unwrap() % cases.len()];
            let shop = RaceShop::new(store).await;
            let mut configs = Vec::new();
            for price in [1_000, 2_000, 3_000] {
                let made = shop.offer(price, price, rollover(seed)).await;
                configs.push(made.config.subscription_config_id);
            }
            let customer = shop.customer(configs[1]).await;
            let start = StartBarrier::of(orders.len());
            let mut racers = Vec::new();
            for order in orders {
                let node = nodes.any(&mut random);
                racers.push(match *order {
                    Cancel => {
                        let cancel = shop.order(&node, &customer, subscriptions::cancel);
                        start.race(&mut random, cancel)
                    }
                    Change(to) => {
                        let to = configs[to];
                        let change =
                            shop.order(&node, &customer, move |conn, merchant, id, now| {
                                subscriptions::change(conn, merchant, id, change_to(to), now)
                            });
                        start.race(&mut random, change)
                    }
                });
            }
            for racer in racers {
                let changed = racer.await.unwrap();
                assert!(
                    matches!(changed, ChangeOutcome::Subscription(_)),
                    "seed {seed}: {changed:?}"
                );
            }
            let state = shop.state(&customer).await;
            let place = |plan: &Plan| {
                configs.iter().position(|id| *id == plan.subscription_config_id).unwrap()
            };
            let pending = state.pending_change.as_ref().map(|change| match change.kind {
                PendingKind::Cancellation => Cancel,
                PendingKind::Downgrade => Change(place(&change.plan)),
            });
            let ended = (place(&state.plan), pending);
            let possible: Vec<_> =
                in_every_order(orders).iter().map(|orders| one_by_one(orders)).collect();
            assert!(possible.contains(&ended), "seed {seed}: {ended:?} of {orders:?}");
            let upgrades = ended.0 - 1;
            let books = shop.books(&customer).await;
            assert_eq!(books.grants, 1 + upgrades, "seed {seed}: {orders:?}");
            assert_eq!(shop.told("subscription.changed").await, upgrades, "seed {seed}");
            let credit = if upgrades == 1 { 2_000 + 3_000 } else { 2_000 };
            assert_eq!(shop.wallet(&customer).await.credits.remaining(), usd(credit));
            shop.close(&[customer]).await;
        }
        nodes.close(store).await;
    });
}

#[test]
fn a_bundle_bought_when_a_cycle_ends_is_of_the_one_or_of_the_other() {
    each_store(async |store| {
        let nodes = RacingNodes::of(store);
        for seed in 0..seeds(20) {
            let mut random = Random(seed);
            let shop = RaceShop::new(store).await;
            let made = shop.offer(1_000, 500, rollover(seed)).await;
            let bundle_id = made.credit_bundles[0].credit_bundle_id;
            let customer = shop.customer(made.config.subscription_config_id).await;
            let buy = |node: &Store| {
                shop.order(node, &customer, move |conn, merchant_id, id, now| {
                    subscriptions::buy_bundle(conn, merchant_id, id, bundle_id, now)
                })
            };
            assert!(matches!(buy(&store.store).await, ChangeOutcome::Subscription(_)));
            // The cycle ends before the race, or in it.
            let ends_before = seed % 4 < 2;
            let clock = store.clock.clone();
            if ends_before {
                clock.advance_millis(DAY);
            }
            let start = StartBarrier::of(6);
            let mut racers = Vec::new();
            let bought = buy(&nodes.any(&mut random));
            let bought = start.race(&mut random, bought);
            for node in nodes.0.iter().chain(&nodes.0) {
                let node = node.clone();
                racers.push(start.race(&mut random, async move {
                    node.renew(RenewalScope::Everybody).await.unwrap();
                }));
            }
            racers.push(start.race(&mut random, async move {
                if !ends_before {
                    clock.advance_millis(DAY);
                }
            }));
            assert!(matches!(bought.await.unwrap(), ChangeOutcome::Subscription(_)), "seed {seed}");
            for racer in racers {
                racer.await.unwrap();
            }
            store.store.renew(RenewalScope::Everybody).await.unwrap();
            let credits = shop.wallet(&customer).await.credits;
            let possible: &[i64] = match (rollover(seed), ends_before) {
                (Rollover::Full, _) => &[2_000],
                (Rollover::None, true) => &[1_000],
                (Rollover::None, false) => &[0, 1_000],
            };
            let bundle = credits.bundle.remaining;
            assert!(possible.iter().any(|cents| usd(*cents) == bundle), "seed {seed}: {bundle}");
            let cycle = if rollover(seed) == Rollover::Full { 1_000 } else { 500 };
            assert_eq!(credits.cycle.remaining, usd(cycle), "seed {seed}");
            assert_eq!(shop.told("subscription.renewed").await, 1, "seed {seed}");
            assert_eq!(shop.told("credit_bundle.purchased").await, 2, "seed {seed}");
            shop.close(&[customer]).await;
        }
        nodes.close(store).await;
    });
}

/// Makes calls that cost the amount of their hold, from many callers. Returns the number of admissions.
async fn callers(nodes: &RacingNodes, random: &mut Random, call: impl Fn() -> Call) -> i64 {
    const CALLERS: usize = 40;
    let start = StartBarrier::of(CALLERS);
    let mut racers = Vec::new();
    for _ in 0..CALLERS {
        let (node, call, ends) = (nodes.any(random), call(), random.one_in(2));
        racers.push(start.race(random, async move {
            let request_id = admit(&node, call).await?;
            if ends {
                settle(&node, request_id, HOLD).await;
            }
            Some((request_id, ends))
        }));
    }
    let mut admitted = Vec::new();
    for racer in racers {
        admitted.extend(racer.await.unwrap());
    }
    for (request_id, _) in admitted.iter().filter(|(_, ends)| !ends) {
        settle(&nodes.0[0], *request_id, HOLD).await;
    }
    i64::try_from(admitted.len()).unwrap()
}

#[test]
fn of_forty_calls_on_credit_exactly_those_are_admitted_that_it_has_room_for() {
    each_store(async |store| {
        let nodes = RacingNodes::of(store);
        for seed in 0..seeds(12) {
            let mut random = Random(seed);
            let fits = random.between(1, 9);
            let rest = if seed % 3 == 0 { 0 } else { random.between(1, HOLD) };
            let is_strict = seed % 2 == 0;
            let shop = RaceShop::new(store).await;
            let config = shop.offer(1_000, fits * HOLD + rest, Rollover::None).await.config;
            let customer = shop.customer(config.subscription_config_id).await;
            let (admitted, fitting) = if is_strict {
                let rules =
                    SpendRules { enforcement: Enforcement::Strict, ..SpendRules::default() };
                let (made, key) =
                    store.spend_key(shop.merchant_id, Some(customer.wallet_id), rules).await;
                let (merchant_id, id, now) =
                    (made.merchant_id, made.spend_key_id, store.clock.now());
                let meter_id = Some(Some(shop.meter.meter_id));
                let linked = SpendKeyChanges { meter_id, ..SpendKeyChanges::default() };
                let link =
                    move |conn: &mut Conn| spend_keys::update(conn, merchant_id, id, linked, now);
                store.store.write(link).await.unwrap();
                let call = || store.call_with(&made, &key);
                (callers(&nodes, &mut random, call).await, fits)
            } else {
                let call = || shop.call(&customer);
                (callers(&nodes, &mut random, call).await, fits + i64::from(rest > 0))
            };
            assert_eq!(admitted, fitting, "seed {seed}");
            let wallet = shop.wallet(&customer).await;
            let credit = fits * HOLD + rest;
            let owed = (fitting * HOLD - credit).max(0);
            assert_eq!(wallet.balance, usd(-owed), "seed {seed}");
            assert_eq!(wallet.credits.remaining(), usd((credit - fitting * HOLD).max(0)));
            let books = shop.books(&customer).await;
            assert_eq!(books, CreditTotals { grants: 1, used: fitting * HOLD, expired: 0 });
            shop.close(&[customer]).await;
        }
        nodes.close(store).await;
    });
}

#[test]
fn of_those_who_subscribe_one_connection_at_once_one_succeeds() {
    each_store(async |store| {
        let nodes = RacingNodes::of(store);
        for seed in 0..seeds(20) {
            let mut random = Random(seed);
            let shop = RaceShop::new(store).await;
            let config_id = shop.offer(1_000, 500, Rollover::Full).await.config;
            let config_id = config_id.subscription_config_id;
            let connection = store.connection(shop.merchant_id, "0").await;
            let (id, wallet_id) = (connection.connection_id, connection.wallet_id);
            let subscribers = 2 + random.index(3);
            let is_deleted = seed % 2 == 1;
            let start = StartBarrier::of(subscribers + usize::from(is_deleted));
            let mut racers = Vec::new();
            for _ in 0..subscribers {
                let subscribe = shop.subscribe(&nodes.any(&mut random), id, config_id);
                racers.push(start.race(&mut random, subscribe));
            }
            let deleted = is_deleted.then(|| {
                let delete = shop.delete(&nodes.any(&mut random), id);
                start.race(&mut random, delete)
            });
            let (mut begun, mut disabled) = (0, 0);
            for racer in racers {
                match racer.await.unwrap() {
                    SubscribeOutcome::Subscription(_) => begun += 1,
                    SubscribeOutcome::ConnectionDisabled => disabled += 1,
                    SubscribeOutcome::Exists => {}
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            let wallet = async || store.wallet(shop.merchant_id, wallet_id).await;
            if let Some(deleted) = deleted {
                assert!(deleted.await.unwrap(), "seed {seed}");
                assert!(begun == 1 || disabled == subscribers, "seed {seed}: {begun}, {disabled}");
                assert_eq!(wallet().await.credits.remaining(), Amount::ZERO, "seed {seed}");
            } else {
                assert_eq!((begun, disabled), (1, 0), "seed {seed}");
                assert_eq!(wallet().await.credits.remaining(), usd(500), "seed {seed}");
                shop.delete(&store.store, id).await;
            }
            assert_eq!(shop.told("subscription.created").await, begun, "seed {seed}");
            assert_eq!(shop.told("subscription.cancelled").await, begun, "seed {seed}");
        }
        nodes.close(store).await;
    });
}

/// Both change the customer's wallet and the merchant's own, which is the older one.
#[test]
fn usage_that_is_reported_waits_in_no_circle_with_calls_that_settle() {
    each_store(async |store| {
        let nodes = RacingNodes::of(store);
        for seed in 0..seeds(10) {
            let mut random = Random(seed);
            let shop = RaceShop::new(store).await;
            let config = shop.offer(1_000, 50_000, Rollover::Full).await.config;
            let customer = shop.customer(config.subscription_config_id).await;
            let (merchant_id, meter_id, now) =
                (shop.merchant_id, shop.meter.meter_id, store.clock.now());
            let base_cost_payer = Some(Payer::Merchant);
            let changes = MeterChanges { base_cost_payer, ..MeterChanges::default() };
            let change =
                move |conn: &mut Conn| meters::update(conn, merchant_id, meter_id, &changes, now);
            store.store.write(change).await.unwrap();
            let mut open = Vec::new();
            for _ in 0..16 {
                open.push(admit(&store.store, shop.call(&customer)).await.unwrap());
            }
            let start = StartBarrier::of(32);
            let mut racers = Vec::new();
            for request_id in open {
                let node = nodes.any(&mut random);
                racers.push(start.race(&mut random, async move {
                    settle(&node, request_id, 100).await;
                }));
            }
            for number in 0..16 {
                let node = nodes.any(&mut random);
                let reported = ReportedUsage {
                    applied: Vec::new(),
                    missing: None,
                    reference_id: format!("{number}"),
                    connection_id: customer.connection_id,
                    meter_slug: shop.meter.slug.clone(),
                    forwarded: shop.call(&customer).forwarded,
                    priced: priced(1, "1"),
                };
                racers.push(start.race(&mut random, async move {
                    let same = node.clone();
                    let report = move |conn: &mut Conn| same.report(conn, merchant_id, &reported);
                    let booked = node.write(report).await.unwrap();
                    assert!(matches!(booked, ReportOutcome::Booked(_)), "{booked:?}");
                }));
            }
            for racer in racers {
                racer.await.unwrap();
            }
            assert_eq!(shop.wallet(&customer).await.credits.remaining(), amount("500"));
            shop.close(&[customer]).await;
        }
        nodes.close(store).await;
    });
}
