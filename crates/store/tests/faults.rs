//! Tests with a fault in each statement: a call is booked once or not at all, and leaves no hold.
//!
//! The tests of this file take turns, because a panic is armed for the whole process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use diesel::connection::{Instrumentation, InstrumentationEvent, SimpleConnection};
use diesel::sqlite::SqliteConnection;
use diesel::{Connection, RunQueryDsl};
use tollgate_domain::admission::Call;
use tollgate_domain::settlement::CallReport;
use tollgate_domain::*;
use tollgate_pricing::Amount;
use tollgate_store::{
    DatabaseUrl, Page, RecordArchive, SettleOutcome, Store, StoreError, events, requests, webhooks,
};
use tollgate_testkit::postgres::{FaultProxy, StatementFault};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::{amount, answered};
use tollgate_testkit::{TestStore, each_store};

/// A customer with money, a limited key and a meter.
///
/// The merchant receives an event for every call. A call of this customer writes to every table that calls write to.
struct MeteredCustomer<'a> {
    store: &'a TestStore,
    wallet: (MerchantId, WalletId),
    spend_key: SpendKey,
    key: Key,
    /// The cost of one call.
    price: Amount,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallFate {
    /// It was admitted, sent and answered.
    Answered,
    /// It was not sent.
    NotSent,
}

const BALANCE: &str = "100000";

impl<'a> MeteredCustomer<'a> {
    async fn of(store: &'a TestStore) -> Self {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let wallet_id = store.connection(merchant_id, BALANCE).await.wallet_id;
        let meter = store.meter(merchant_id, &[(0, "10"), (1_000, "5")]).await;
        let limit = SpendLimit { amount: amount("1000000"), cycle: Cycle::Daily };
        let rules = SpendRules {
            spend_limit: Some(limit),
            enforcement: Enforcement::Strict,
            ..SpendRules::default()
        };
        let now = store.clock.now();
        let new = NewSpendKey {
            budget_id: None,
            name: "Key".to_owned(),
            wallet_id: Some(wallet_id),
            meter_id: Some(meter.meter_id),
            rules,
        };
        let (spend_key, key) = store
            .store
            .write(move |conn| {
                let new_webhook = NewWebhook {
                    name: "All".to_owned(),
                    url: "https://example.com".to_owned(),
                    events: Some(vec![EventKind::RequestCompleted, EventKind::RequestFailed]),
                };
                webhooks::create(conn, merchant_id, new_webhook, now)?.unwrap();
                tollgate_store::spend_keys::create(conn, merchant_id, &new, now)
            })
            .await
            .unwrap()
            .unwrap();
        let wallet = (merchant_id, wallet_id);
        let mut customer = Self { store, wallet, spend_key, key, price: Amount::ZERO };
        // The first call fills the first, cheaper tier. All later calls cost the same.
        assert_eq!(customer.calls(&store.store).await, CallFate::Answered);
        let before = customer.balance().await;
        assert_eq!(customer.calls(&store.store).await, CallFate::Answered);
        customer.price = before.checked_sub(customer.balance().await).unwrap();
        assert!(customer.price.is_positive());
        customer
    }

    fn call(&self) -> Call {
        let mut call = self.store.call_with(&self.spend_key, &self.key);
        call.forwarded.metadata = Metadata::parse(r#"{"team": "red"}"#).unwrap();
        call
    }

    async fn balance(&self) -> Amount {
        self.store.wallet(self.wallet.0, self.wallet.1).await.balance
    }

    /// Makes a call as a forwarder does: admits it and settles it.
    async fn calls(&self, store: &Store) -> CallFate {
        let (request_id, became) = self.asks(store).await;
        if became == CallFate::Answered {
            self.settles(store, request_id).await;
        }
        became
    }

    async fn asks(&self, store: &Store) -> (RequestId, CallFate) {
        let call = self.call();
        let request_id = call.request_id;
        match store.admit(Box::new(call)).await {
            Ok(admitted) => {
                admitted.unwrap();
                return (request_id, CallFate::Answered);
            }
            // It may have been admitted although the answer was lost.
            Err(StoreError::Interrupted) => {
                let report = CallReport::not_sent(self.store.clock.now());
                store.settle_in_background(request_id, report);
            }
            Err(_) => {}
        }
        (request_id, CallFate::NotSent)
    }

    async fn settles(&self, store: &Store, request_id: RequestId) -> SettleOutcome {
        let outcome = store.settle(request_id, answered(1_000, "0.5")).await;
        assert!(
            matches!(
                outcome,
                SettleOutcome::Settled(_)
                    | SettleOutcome::Journaled
                    | SettleOutcome::NotSettled
                    | SettleOutcome::AlreadySettled
            ),
            "{outcome:?}"
        );
        outcome
    }

    /// Fails unless, soon, nothing is held and `calls` calls are paid once each.
    ///
    /// `before` is the balance before these calls.
    async fn has_paid(&self, calls: usize, before: Amount, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            self.store.store.replay_journal().await.unwrap();
            let wallet = self.store.wallet(self.wallet.0, self.wallet.1).await;
            if wallet.held == Amount::ZERO && self.pending().await == 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{what}: still held: {wallet:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let paid = before.checked_sub(self.balance().await).unwrap();
        let due = (0..calls).fold(Amount::ZERO, |sum, _| sum.saturating_add(self.price));
        assert_eq!(paid, due, "{what}: {calls} calls");
        let key = self.store.reload_spend_key(&self.spend_key).await;
        assert_eq!(key.counters.held, Default::default(), "{what}");
    }

    async fn pending(&self) -> usize {
        self.store.store.audit().await.unwrap().pending
    }

    /// The number of calls for which the merchant has a completion event.
    async fn told(&self) -> usize {
        self.store.store.fold().await.unwrap();
        let merchant_id = self.wallet.0;
        let page = Page { after: None, limit: 100_000 };
        let told = self.store.store.read(move |conn| events::list(conn, merchant_id, &page)).await;
        let completed = EventKind::RequestCompleted;
        told.unwrap().iter().filter(|event| event.payload.kind() == completed).count()
    }

    async fn record(&self, request_id: RequestId) -> Option<RequestRecord> {
        let merchant_id = self.wallet.0;
        let found = self.store.store.read(move |conn| {
            requests::find(conn, &RecordArchive::default(), merchant_id, request_id)
        });
        found.await.unwrap()
    }

    /// Makes one call with a fault at its admission and one with a fault at its settlement.
    ///
    /// `fail` arms a fault. `heal` disarms it and returns whether it was met. Both calls are booked once.
    /// Returns whether any fault was met.
    async fn survives(
        &self,
        store: &Store,
        what: &str,
        fail: impl Fn(),
        heal: impl Fn() -> bool,
    ) -> bool {
        let (before, told) = (self.balance().await, self.told().await);
        fail();
        let (first, became) = self.asks(store).await;
        let met_first = heal();
        if became == CallFate::Answered {
            self.settles(store, first).await;
        }
        let what = format!("{what} of an admission ({became:?})");
        let paid = usize::from(became == CallFate::Answered);
        self.has_paid(paid, before, &what).await;
        let record = self.record(first).await;
        let status = record.as_ref().map(|record| record.status);
        match became {
            CallFate::Answered => assert_eq!(status, Some(RequestStatus::Completed), "{what}"),
            // There is no record, or it is the record of a call that was not sent.
            CallFate::NotSent => assert_ne!(status, Some(RequestStatus::Completed), "{what}"),
        }

        let (second, became) = self.asks(store).await;
        assert_eq!(became, CallFate::Answered, "{what}: the next call");
        fail();
        self.settles(store, second).await;
        let met_second = heal();
        let what = what.replace("admission", "settlement");
        self.has_paid(paid + 1, before, &what).await;
        let record = self.record(second).await.unwrap();
        assert_eq!(record.status, RequestStatus::Completed, "{what}");
        assert_eq!(self.told().await, told + paid + 1, "{what}");
        met_first || met_second
    }
}

/// A number of statements that no admission or settlement reaches.
const MANY: usize = 200;

#[test]
fn whatever_befalls_any_statement_on_its_way_to_the_server_a_call_is_booked_once() {
    let _turn = turn();
    let faults = [
        StatementFault::Refused("XX000", "internal error"),
        StatementFault::Refused("40P01", "deadlock detected"),
        StatementFault::Refused("40001", "could not serialize access due to concurrent update"),
        StatementFault::Refused("55P03", "canceling statement due to lock timeout"),
        StatementFault::Refused("53100", "could not extend file: No space left on device"),
        StatementFault::Refused("57P01", "terminating connection due to administrator command"),
        StatementFault::Delayed(Duration::from_millis(20)),
        StatementFault::LostBefore,
        StatementFault::LostAfter,
        StatementFault::Late(Duration::from_millis(30)),
    ];
    each_store(async |store| {
        let Some(database) = &store.database else { return };
        let way = FaultProxy::to(database);
        let url: DatabaseUrl = way.url().parse().unwrap();
        let node = store.open_by(&url);
        node.renew_lease().await.unwrap();
        let customer = MeteredCustomer::of(store).await;
        for fault in faults {
            let mut statements = 0;
            for number in 1..MANY {
                let what = format!("{fault:?} at statement {number}");
                let heal = || {
                    if let StatementFault::Late(time) = fault {
                        // Waits until the statement has arrived.
                        std::thread::sleep(time * 3);
                    }
                    way.end_faults() > 0
                };
                let met = customer.survives(&node, &what, || way.fail(number, fault), heal).await;
                if !met {
                    break;
                }
                statements = number;
            }
            println!("{fault:?}: {statements} statements");
            // There are more when a connection is new: it is set up, and reads what the last one knew.
            assert!((4..MANY - 1).contains(&statements), "{fault:?}: {statements} statements");
        }
        node.close().await.unwrap();
    });
}

/// diesel does not report the SQLSTATE, and a server may translate its messages.
#[test]
fn a_deadlock_costs_no_call_in_any_language() {
    let _turn = turn();
    let deadlock = StatementFault::Refused("40P01", "Verklemmung entdeckt");
    each_store(async |store| {
        let Some(database) = &store.database else { return };
        let way = FaultProxy::to(database);
        let node = store.open_by(&way.url().parse().unwrap());
        node.renew_lease().await.unwrap();
        let customer = MeteredCustomer::of(store).await;
        assert_eq!(customer.calls(&node).await, CallFate::Answered);
        let mut statements = 0;
        loop {
            statements += 1;
            way.fail(statements, deadlock);
            let (request_id, became) = customer.asks(&node).await;
            let met_first = way.end_faults() > 0;
            assert_eq!(became, CallFate::Answered, "statement {statements} of an admission");
            way.fail(statements, deadlock);
            let outcome = customer.settles(&node, request_id).await;
            let met_second = way.end_faults() > 0;
            assert!(
                matches!(outcome, SettleOutcome::Settled(_)),
                "statement {statements} of a settlement: {outcome:?}"
            );
            if !met_first && !met_second {
                break;
            }
        }
        assert!(statements > 2, "{statements} statements");
        node.close().await.unwrap();
    });
}

/// A settlement waits for two seconds at most. A later booking meets the journal's entry.
#[test]
fn what_is_booked_late_is_not_booked_again_from_the_journal() {
    let _turn = turn();
    each_store(async |store| {
        let Some(database) = &store.database else { return };
        let way = FaultProxy::to(database);
        let node = store.open_by(&way.url().parse().unwrap());
        node.renew_lease().await.unwrap();
        let customer = MeteredCustomer::of(store).await;
        let before = customer.balance().await;
        let (request_id, became) = customer.asks(&node).await;
        assert_eq!(became, CallFate::Answered);
        way.fail(1, StatementFault::Delayed(Duration::from_millis(2_300)));
        let outcome = node.settle(request_id, answered(1_000, "0.5")).await;
        assert_eq!(outcome, SettleOutcome::Journaled);
        customer.has_paid(1, before, "late").await;
        node.close().await.unwrap();
        customer.has_paid(1, before, "late, and closed").await;
    });
}

/// Many calls at once, on connections that break, lose answers and fall into deadlocks.
#[test]
fn among_faults_at_random_every_call_is_booked_once() {
    const CALLERS: usize = 16;
    const CALLS: usize = 12;
    let _turn = turn();
    for seed in 0..seeds(3) {
        each_store(async |store| {
            let Some(database) = &store.database else { return };
            let way = FaultProxy::to(database);
            let nodes = [(); 2].map(|()| store.open_by(&way.url().parse().unwrap()));
            for node in &nodes {
                node.renew_lease().await.unwrap();
            }
            let customer = MeteredCustomer::of(store).await;
            let before = customer.balance().await;
            let told = customer.told().await;
            let mut random = Random(seed);
            way.set_plan(move |_| {
                let fault = match random.below(60) {
                    0 => StatementFault::Refused("40P01", "deadlock detected"),
                    1 => StatementFault::Refused("XX000", "internal error"),
                    2 => StatementFault::LostBefore,
                    3 => StatementFault::LostAfter,
                    4 | 5 => StatementFault::Delayed(Duration::from_millis(10)),
                    _ => return None,
                };
                Some(fault)
            });
            let paid = AtomicUsize::new(0);
            let callers = (0..CALLERS).map(|number| {
                let (customer, node, paid) = (&customer, &nodes[number % 2], &paid);
                async move {
                    for _ in 0..CALLS {
                        if customer.calls(node).await == CallFate::Answered {
                            paid.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
            futures_util::future::join_all(callers).await;
            let met = way.end_faults();
            let paid = paid.into_inner();
            println!("seed {seed}: {met} faults, {paid} of {} answered", CALLERS * CALLS);
            assert!(met > 10 && paid > 20, "{met} faults, {paid} answered");
            customer.has_paid(paid, before, &format!("seed {seed}")).await;
            assert_eq!(customer.told().await, told + paid, "seed {seed}");
            for node in nodes {
                node.close().await.unwrap();
            }
        });
    }
}

/// SQLite refuses a statement: each write to each table that calls write to.
#[test]
fn whichever_table_cannot_be_written_a_call_is_booked_once() {
    let _turn = turn();
    each_store(async |store| {
        let DatabaseUrl::Sqlite(file) = &store.url else { return };
        let customer = MeteredCustomer::of(store).await;
        let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        conn.batch_execute("PRAGMA busy_timeout = 10000").unwrap();
        let tables = tables(&mut conn);
        let mut met = Vec::new();
        for table in tables {
            for change in ["INSERT", "UPDATE", "DELETE"] {
                let before = customer.balance().await;
                let (first, became) = customer.asks(&store.store).await;
                assert_eq!(became, CallFate::Answered);
                conn.batch_execute(&format!(
                    "CREATE TRIGGER fault BEFORE {change} ON {table} \
                     BEGIN SELECT RAISE(ABORT, 'no {change} of {table}'); END"
                ))
                .unwrap();
                // A settlement that cannot be written waits in memory.
                let settled = customer.settles(&store.store, first).await;
                let (second, became) = customer.asks(&store.store).await;
                conn.batch_execute("DROP TRIGGER fault").unwrap();
                let what = format!("{change} of {table}");
                if settled == SettleOutcome::NotSettled || became == CallFate::NotSent {
                    met.push(format!("{change} {table}"));
                }
                if became == CallFate::Answered {
                    customer.settles(&store.store, second).await;
                }
                let paid = 1 + usize::from(became == CallFate::Answered);
                customer.has_paid(paid, before, &what).await;
                let status = customer.record(first).await.unwrap().status;
                assert_eq!(status, RequestStatus::Completed, "{what}");
            }
        }
        assert_eq!(
            met,
            [
                "INSERT open_calls",
                "DELETE open_calls",
                "INSERT requests",
                "INSERT rollup_queue",
                "UPDATE spend_counters",
                "INSERT tier_counters",
                "UPDATE tier_counters",
                "INSERT transactions",
                "UPDATE wallets",
            ]
        );
    });
}

/// As the test before, while calls are folded: none is folded twice, and none is left out.
#[test]
fn whichever_table_cannot_be_written_a_call_is_folded_once() {
    let _turn = turn();
    each_store(async |store| {
        let DatabaseUrl::Sqlite(file) = &store.url else { return };
        let customer = MeteredCustomer::of(store).await;
        let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        conn.batch_execute("PRAGMA busy_timeout = 10000").unwrap();
        let mut met = Vec::new();
        let mut told = customer.told().await;
        for table in tables(&mut conn) {
            for change in ["INSERT", "UPDATE", "DELETE"] {
                assert_eq!(customer.calls(&store.store).await, CallFate::Answered);
                conn.batch_execute(&format!(
                    "CREATE TRIGGER fault BEFORE {change} ON {table} \
                     BEGIN SELECT RAISE(ABORT, 'no {change} of {table}'); END"
                ))
                .unwrap();
                let folded = store.store.fold().await;
                conn.batch_execute("DROP TRIGGER fault").unwrap();
                if folded.is_err() {
                    met.push(format!("{change} {table}"));
                }
                told += 1;
                assert_eq!(customer.told().await, told, "{change} of {table}");
                store.assert_audited().await;
            }
        }
        assert_eq!(
            met,
            [
                "INSERT events",
                "INSERT metadata_rollups",
                "UPDATE metadata_rollups",
                "INSERT request_index",
                "DELETE rollup_queue",
                "INSERT usage_rollups",
                "UPDATE usage_rollups",
            ]
        );
    });
}

fn tables(conn: &mut SqliteConnection) -> Vec<String> {
    #[derive(diesel::QueryableByName)]
    struct TableName {
        #[diesel(sql_type = diesel::sql_types::Text)]
        name: String,
    }
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' \
                  AND name NOT LIKE 'sqlite%' AND name NOT LIKE '%diesel%' ORDER BY name";
    let tables: Vec<TableName> = diesel::sql_query(tables).load(conn).unwrap();
    tables.into_iter().map(|table| table.name).collect()
}

/// A panic within any statement fails its call and costs no money.
#[test]
fn whichever_statement_panics_a_call_is_booked_once() {
    let _turn = turn();
    diesel::connection::set_default_instrumentation(|| Some(Box::new(PanicInjector))).unwrap();
    each_store(async |store| {
        let customer = MeteredCustomer::of(store).await;
        let mut statements = 0;
        for number in 1..MANY {
            let what = format!("a panic at statement {number}");
            let fail = || UNTIL_PANIC.store(number, Ordering::SeqCst);
            let heal = || UNTIL_PANIC.swap(0, Ordering::SeqCst) == 0;
            if !customer.survives(&store.store, &what, fail, heal).await {
                break;
            }
            statements = number;
        }
        println!("{statements} statements");
        // There are more when a connection is new. Which writer has a new one is chance.
        assert!((4..MANY - 1).contains(&statements), "{statements} statements");
    });
    diesel::connection::set_default_instrumentation(|| None).unwrap();
}

/// The number of statements until one panics; 0 for none.
static UNTIL_PANIC: AtomicUsize = AtomicUsize::new(0);

struct PanicInjector;

impl Instrumentation for PanicInjector {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        if matches!(event, InstrumentationEvent::StartQuery { .. }) {
            let count = |left: usize| left.checked_sub(1);
            let before = UNTIL_PANIC.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count);
            assert_ne!(before, Ok(1), "a statement that a test makes panic");
        }
    }
}

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
