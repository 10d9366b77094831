//! Tests of monthly statements on both databases, compared with the ledger lines, the records and the events.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use diesel::connection::SimpleConnection;
use tollgate_domain::admission::Call;
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::*;
use tollgate_pricing::Amount;
use tollgate_store::requests::{self, ListFilter, RequestFilter};
use tollgate_store::statements::CustomerAccount;
use tollgate_store::subscriptions::{self, PlanChange, RenewalScope, SubscribeOutcome};
use tollgate_store::wallets::{self, WalletMovement};
use tollgate_store::{
    Conn, Page, Store, StoreError, events, statements, subscription_configs as configs,
};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::{TestStore, amount, answered, each_store};

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// Zones with a change of their clocks in March or April, or in October or November.
const ZONES: [&str; 4] = ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Auckland"];
const ALL: u32 = 100_000;

fn zone(name: &str) -> TimeZone {
    TimeZone::named(name).unwrap()
}

struct Shop<'a> {
    store: &'a TestStore,
    /// The process that serves at present.
    node: Store,
    merchant_id: MerchantId,
    secret_key_id: SecretKeyId,
    meter: MerchantMeter,
    customers: Vec<Connection>,
    plans: Vec<configs::ConfigDetails>,
    open: Vec<RequestId>,
    /// Swept calls that may still be settled.
    swept: Vec<RequestId>,
    /// When calls were swept.
    swept_at: HashMap<RequestId, Timestamp>,
    /// The statements of months that have ended, as they were read first.
    ended: BTreeMap<(ConnectionId, Month, &'static str), Statement>,
}

impl<'a> Shop<'a> {
    async fn of(store: &'a TestStore) -> Self {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let mut shop = Self {
            store,
            node: store.store.clone(),
            merchant_id,
            secret_key_id: store.secret_key_id(&merchant).await,
            meter: store.meter(merchant_id, &[(0, "3.7")]).await,
            customers: Vec::new(),
            plans: Vec::new(),
            open: Vec::new(),
            swept: Vec::new(),
            swept_at: HashMap::new(),
            ended: BTreeMap::new(),
        };
        for _ in 0..3 {
            shop.customers.push(store.connection(merchant_id, "40").await);
        }
        for (price, included, rollover) in
            [("20", "3", Rollover::None), ("50", "8", Rollover::Full)]
        {
            let new = NewSubscriptionConfig {
                name: format!("Plan {price}"),
                period_amount: amount(price),
                billing_interval: BillingInterval::Month,
                terms: ConfigTerms {
                    included_credit: amount(included),
                    rollover_type: rollover,
                    bundle_rollover_type: Rollover::Full,
                    meter_ids: Vec::new(),
                },
                credit_bundles: vec![NewCreditBundle {
                    name: "Bundle".to_owned(),
                    cost: amount("9"),
                    credit_amount: amount("4"),
                }],
            };
            let now = store.clock.now();
            let made = shop.node.write(move |conn| configs::create(conn, merchant_id, &new, now));
            shop.plans.push(made.await.unwrap().unwrap());
        }
        shop
    }

    fn call(&self, random: &mut Random) -> Call {
        let customer = &self.customers[random.index(self.customers.len())];
        let model = ["large", "small", "tiny"][random.index(3)];
        let call = self.store.call(self.merchant_id, self.secret_key_id);
        Call {
            connection_id: Some(customer.connection_id),
            meter_slug: Some(self.meter.slug.clone()),
            forwarded: ForwardedRequest { model: Some(model.to_owned()), ..call.forwarded },
            ..call
        }
    }

    fn report(random: &mut Random) -> CallReport {
        let mut report =
            answered(random.below(9_000), &format!("0.{:010}", random.below(4_000_000_000)));
        report.model = None;
        match random.below(6) {
            0 => report.ending = Ending::Unanswered,
            1 => report.priced = PricedUsage::nothing(),
            _ => {}
        }
        report
    }

    async fn step(&mut self, random: &mut Random) {
        let (merchant_id, now) = (self.merchant_id, self.store.clock.now());
        let customer = self.customers[random.index(self.customers.len())].clone();
        match random.below(100) {
            0..=54 => {
                let call = self.call(random);
                let request_id = call.request_id;
                if self.node.admit(Box::new(call)).await.unwrap().is_err() {
                    return;
                }
                match random.one_in(4) {
                    true => self.open.push(request_id),
                    false => drop(self.node.settle(request_id, Self::report(random)).await),
                }
            }
            55..=64 => {
                if !self.open.is_empty() {
                    let id = self.open.swap_remove(random.index(self.open.len()));
                    self.node.settle(id, Self::report(random)).await;
                }
            }
            65..=69 => {
                if let Some(id) = self.swept.pop() {
                    self.node.settle(id, Self::report(random)).await;
                }
            }
            70..=77 => {
                let kind = [TransactionKind::Credit, TransactionKind::Debit][random.index(2)];
                let movement = WalletMovement { kind, amount: amount("3.25"), description: None };
                let wallet_id = customer.wallet_id;
                let booked = self
                    .node
                    .write(move |conn| wallets::book(conn, merchant_id, wallet_id, &movement, now));
                booked.await.unwrap();
            }
            78..=87 => self.order(random, customer.connection_id).await,
            _ => {
                // Rarely long, so that cycles end while nothing is booked.
                let most = if random.one_in(6) { 20 * DAY } else { 2 * DAY };
                self.store.clock.advance_millis(random.between(0, most));
            }
        }
    }

    async fn order(&self, random: &mut Random, connection_id: ConnectionId) {
        let (merchant_id, now) = (self.merchant_id, self.store.clock.now());
        let plan = &self.plans[random.index(self.plans.len())];
        let config_id = plan.config.subscription_config_id;
        let bundle_id = plan.credit_bundles[0].credit_bundle_id;
        let on_upgrade =
            [UpgradeRule::Carry, UpgradeRule::Expire, UpgradeRule::Prorate][random.index(3)];
        let action = random.below(4);
        let ordered = self.node.write(move |conn| {
            let state =
                match subscriptions::create(conn, merchant_id, connection_id, config_id, now)? {
                    SubscribeOutcome::Exists => {
                        subscriptions::find_active(conn, merchant_id, connection_id)?
                    }
                    _ => None,
                };
            let Some(id) = state.map(|state| state.subscription_id) else { return Ok(()) };
            match action {
                0 => drop(subscriptions::cancel(conn, merchant_id, id, now)?),
                1 | 2 => {
                    let change = PlanChange { config_id, on_upgrade };
                    subscriptions::change(conn, merchant_id, id, change, now)?;
                }
                _ => drop(subscriptions::buy_bundle(conn, merchant_id, id, bundle_id, now)?),
            }
            Ok::<_, tollgate_store::StoreError>(())
        });
        ordered.await.unwrap();
    }

    /// The process ends, and another one sweeps its calls.
    async fn restart(&mut self) {
        self.node.close().await.unwrap();
        self.node = self.store.open_again();
        self.store.expire_other_leases(&self.node).await;
        self.node.sweep().await.unwrap();
        let now = self.store.clock.now();
        self.swept_at.extend(self.open.iter().map(|id| (*id, now)));
        self.swept.append(&mut self.open);
    }

    async fn months(&self, customer: &Connection, zone_name: &str) -> Vec<Month> {
        self.node.renew(RenewalScope::Connection(customer.connection_id)).await.unwrap();
        let (wallet_id, zone) = (customer.wallet_id, zone(zone_name));
        self.node
            .read_snapshot(move |conn| statements::months(conn, wallet_id, &zone))
            .await
            .unwrap()
    }

    async fn statement(&self, customer: &Connection, month: Month, zone_name: &str) -> Statement {
        let (customer, zone) = (CustomerAccount::from(customer), zone(zone_name));
        self.node
            .read_snapshot(move |conn| statements::read(conn, customer, month, &zone))
            .await
            .unwrap()
    }

    /// Reads all statements, and compares those of ended months with what they were before.
    async fn read_all(&mut self) {
        for customer in self.customers.clone() {
            for zone_name in ZONES {
                for month in self.months(&customer, zone_name).await {
                    let statement = self.statement(&customer, month, zone_name).await;
                    assert_eq!(statement.faults(), []);
                    if statement.end > self.store.clock.now() {
                        continue;
                    }
                    let key = (customer.connection_id, month, zone_name);
                    let first = self.ended.entry(key).or_insert_with(|| statement.clone());
                    assert_eq!(*first, statement, "{month} in {zone_name} has changed");
                }
            }
        }
    }

    async fn lines(&self, customer: &Connection) -> Vec<Transaction> {
        let (wallet_id, page) = (customer.wallet_id, Page { after: None, limit: ALL });
        let lines = self.node.read_records(move |conn, archive| {
            wallets::list_transactions(conn, archive, wallet_id, &page)
        });
        lines.await.unwrap()
    }

    async fn records(&self, customer: &Connection) -> Vec<RequestRecord> {
        let filter = RequestFilter {
            connection_id: Some(customer.connection_id),
            ..RequestFilter::default()
        };
        let (merchant_id, filter) = (self.merchant_id, ListFilter::from(filter));
        let (mut records, mut after) = (Vec::new(), None);
        loop {
            let (filter, page) = (filter.clone(), Page { after, limit: ALL });
            let found = self.node.read_records(move |conn, archive| {
                requests::list(conn, archive, merchant_id, &filter, &page)
            });
            let found = found.await.unwrap();
            records.extend(found.records);
            after = found.next;
            if after.is_none() {
                return records;
            }
        }
    }

    /// The amounts due of a customer's events, by time.
    async fn dues(&self, customer: &Connection) -> Vec<(Timestamp, Amount)> {
        let (merchant_id, page) = (self.merchant_id, Page { after: None, limit: ALL });
        let read = move |conn: &mut _| events::list(conn, merchant_id, &page);
        let all = self.node.read(read).await.unwrap();
        let dues = all.iter().filter_map(|event| {
            let charge = event.payload.charge()?;
            let is_theirs = charge.subscription.connection_id == customer.connection_id;
            is_theirs.then_some((event.created_at, charge.amount_due))
        });
        dues.collect()
    }
}

/// Compares a statement with sums over all lines, records and events, which share nothing with it but their rows.
fn assert_adds_up(
    statement: &Statement,
    zone: &TimeZone,
    lines: &[Transaction],
    records: &[RequestRecord],
    dues: &[(Timestamp, Amount)],
    swept_at: &HashMap<RequestId, Timestamp>,
) {
    let total = |amounts: &mut dyn Iterator<Item = Amount>| {
        amounts.map(|amount| i128::from(amount.units())).sum::<i128>()
    };
    let sum = |wanted: &dyn Fn(&Transaction) -> bool| {
        total(&mut lines.iter().filter(|line| wanted(line)).map(|line| line.amount))
    };
    let is_money = |line: &Transaction| line.account == LedgerAccount::Balance;
    let is_in = |at: Timestamp| Month::of(at, zone) == statement.month;
    let is_before = |at: Timestamp| Month::of(at, zone) < statement.month;
    let of_kind = |line: &Transaction, kind| is_in(line.created_at) && line.kind == kind;
    let made: HashMap<_, _> =
        records.iter().map(|record| (record.request_id, record.created_at)).collect();
    let month_of = |line: &Transaction| Month::of(made[&line.request_id.unwrap()], zone);
    let is_usage = |line: &Transaction| {
        of_kind(line, TransactionKind::Usage) && month_of(line) == statement.month
    };
    let is_correction = |line: &Transaction| {
        of_kind(line, TransactionKind::Correction)
            || of_kind(line, TransactionKind::Usage) && month_of(line) != statement.month
    };
    let opening = sum(&|line| is_money(line) && is_before(line.created_at));
    let closing =
        sum(&|line| is_money(line) && (is_before(line.created_at) || is_in(line.created_at)));
    assert_eq!((statement.opening_balance, statement.closing_balance), (opening, closing));
    assert_eq!(statement.credits, sum(&|line| of_kind(line, TransactionKind::Credit)));
    assert_eq!(statement.debits, sum(&|line| of_kind(line, TransactionKind::Debit)));
    assert_eq!(statement.usage, sum(&|line| is_money(line) && is_usage(line)));
    assert_eq!(statement.corrections, sum(&|line| is_money(line) && is_correction(line)));
    let credit = &statement.credit;
    let granted = |line: &Transaction| {
        of_kind(line, TransactionKind::CreditGrant)
            || of_kind(line, TransactionKind::BundlePurchase)
    };
    assert_eq!(credit.granted, sum(&granted));
    assert_eq!(credit.used, -sum(&|line| !is_money(line) && is_usage(line)));
    assert_eq!(credit.corrected, sum(&|line| !is_money(line) && is_correction(line)));
    assert_eq!(credit.expired, -sum(&|line| of_kind(line, TransactionKind::CreditExpiry)));
    let rolled =
        |line: &Transaction| of_kind(line, TransactionKind::Rollover) && line.amount.is_positive();
    assert_eq!(credit.rolled_over, sum(&rolled));
    let months: BTreeSet<_> =
        lines.iter().filter(|line| is_correction(line)).map(month_of).collect();
    let named: Vec<_> = statement.corrections_by_month.iter().map(|one| one.month).collect();
    assert_eq!(named, Vec::from_iter(months));
    for one in &statement.corrections_by_month {
        let of_month = |line: &Transaction| is_correction(line) && month_of(line) == one.month;
        assert_eq!(one.balance, sum(&|line| is_money(line) && of_month(line)));
        assert_eq!(one.credit, sum(&|line| !is_money(line) && of_month(line)));
    }
    let due = dues.iter().filter(|(at, due)| is_in(*at) && due.is_positive());
    let due: Vec<_> = due.map(|(_, due)| due.units()).collect();
    let mut charged: Vec<_> =
        statement.plan_charges.iter().map(|charge| charge.amount.units()).collect();
    charged.sort_unstable();
    let mut expected = due;
    expected.sort_unstable();
    assert_eq!(charged, expected);

    // By model: the calls of the month that were settled in it, as they were settled first.
    let mut by_model: BTreeMap<Option<String>, (u64, i128)> = BTreeMap::new();
    let ended = records.iter().filter(|record| record.status != RequestStatus::Pending);
    for record in ended.filter(|record| is_in(record.created_at)) {
        let paid = lines.iter().filter(|line| {
            line.kind == TransactionKind::Usage && line.request_id == Some(record.request_id)
        });
        let paid: i128 = paid.map(|line| -i128::from(line.amount.units())).sum();
        let settled_at = swept_at.get(&record.request_id).copied().or(record.settled_at);
        let is_late = settled_at.unwrap() >= statement.end;
        if !is_late {
            let (requests, sum) = by_model.entry(record.model.clone()).or_default();
            *requests += 1;
            *sum += paid;
        }
    }
    let stated: BTreeMap<_, _> = statement
        .usage_by_model
        .iter()
        .map(|one| (one.model.clone(), (one.requests, one.amount)))
        .collect();
    assert_eq!(stated, by_model);
}

#[test]
fn every_figure_is_a_sum_of_lines_and_a_month_that_has_ended_does_not_change() {
    for seed in 0..seeds(2) {
        each_store(async |store| {
            let mut random = Random(seed + 20_261_125);
            let mut shop = Shop::of(store).await;
            let mut archived = 0;
            for step in 0..500 {
                shop.step(&mut random).await;
                if step % 90 == 60 {
                    shop.restart().await;
                }
                if step % 70 == 0 {
                    shop.read_all().await;
                }
                if step % 100 == 99 {
                    let archiving = shop.node.archive_months(10).await.unwrap();
                    archived += archiving.sealed.len();
                    shop.read_all().await;
                    assert_eq!(shop.node.audit().await.unwrap().differences, []);
                    let audit = shop.node.audit_with_archive().await.unwrap();
                    assert_eq!(audit.differences, []);
                }
            }
            shop.read_all().await;
            assert!(archived > 2, "{archived} months are in the archive");
            assert!(shop.ended.len() > 20, "{} months have ended", shop.ended.len());
            let mut corrected = 0;
            for customer in &shop.customers {
                let (lines, records) = (shop.lines(customer).await, shop.records(customer).await);
                let dues = shop.dues(customer).await;
                for zone_name in ZONES {
                    let months = shop.months(customer, zone_name).await;
                    let zone = zone(zone_name);
                    let dated = lines.iter().map(|line| line.created_at);
                    let dated = dated.chain(dues.iter().map(|(at, _)| *at));
                    let expected: BTreeSet<_> = dated.map(|at| Month::of(at, &zone)).collect();
                    assert_eq!(months, Vec::from_iter(expected.into_iter().rev()));
                    for month in months {
                        let statement = shop.statement(customer, month, zone_name).await;
                        corrected += statement.corrections_by_month.len();
                        assert_adds_up(&statement, &zone, &lines, &records, &dues, &shop.swept_at);
                    }
                }
            }
            assert!(corrected > 10, "{corrected} corrections");
            shop.node.close().await.unwrap();
        });
    }
}

#[test]
fn an_audit_names_a_statement_that_does_not_add_up() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        let call = shop.call(&mut Random(1));
        store.forward(call, 1_000, "0.5").await.unwrap();
        let customer = shop.customers[0].connection_id;
        // A credit of the customer becomes a movement of another kind.
        let change = |kind: i32| {
            move |conn: &mut Conn| {
                let sql = format!("UPDATE transactions SET kind = {kind} WHERE kind IN (1, 6)");
                match conn {
                    Conn::Sqlite(conn) => conn.batch_execute(&sql).map_err(StoreError::from),
                    Conn::Postgres(conn) => conn.batch_execute(&sql).map_err(StoreError::from),
                }
            }
        };
        store.store.write(change(6)).await.unwrap();
        let audit = store.store.audit().await.unwrap();
        let found: Vec<_> = audit.differences.iter().map(|one| one.what.clone()).collect();
        assert_eq!(found.len(), shop.customers.len(), "{found:?}");
        let of_customer = format!("statement 2026-11 of customer {customer} closing_balance");
        assert!(found.contains(&of_customer), "{found:?}");
        store.store.write(change(1)).await.unwrap();
    });
}
