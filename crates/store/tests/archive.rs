//! Tests of the archive on both databases: all reads answer as before, and nothing is lost or counted twice.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use diesel::RunQueryDsl;
use diesel::connection::SimpleConnection;
use diesel::pg::PgConnection;
use diesel::sql_types::{BigInt, Bool};
use tollgate_domain::admission::{Call, CallKey};
use tollgate_domain::settlement::Ending;
use tollgate_domain::*;
use tollgate_pricing::{Catalog, ModelPattern, PriceBook, PriceRow, PriceSource, UnitPrices};
use tollgate_store::archiving::ArchivingWait;
use tollgate_store::moving::MoveError;
use tollgate_store::refusals::{self, RefusalFilter};
use tollgate_store::repricings::RepricingScope;
use tollgate_store::requests::{self, ListFilter, RequestFilter};
use tollgate_store::statements::{self, CustomerAccount};
use tollgate_store::usage::{self, Dimension, GroupedSums};
use tollgate_store::{
    Conn, Options, Page, RefusalCause, ReportOutcome, ReportedUsage, Store, StoreError, wallets,
};
use tollgate_testkit::random::Random;
use tollgate_testkit::store::{START, TestStore, amount, answered, each_store};

use crate::moving::each_pair;

const DAY: i64 = 24 * 3_600_000;
/// The days for which these tests keep records.
const KEEP: u32 = 10;

const OTHER_PAIR: &str = r#"\"user":"user-3""#;

struct Shop {
    merchant_id: MerchantId,
    merchant_wallet_id: WalletId,
    secret_key_id: SecretKeyId,
    customers: Vec<Connection>,
    meter: MerchantMeter,
    budget_id: BudgetId,
    spend_key: SpendKey,
    key: Key,
    references: Vec<String>,
}

impl Shop {
    async fn of(store: &TestStore) -> Self {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let customers = vec![
            store.connection(merchant_id, "400").await,
            store.connection(merchant_id, "90").await,
        ];
        let limit = SpendLimit { amount: amount("0.5"), cycle: Cycle::Monthly };
        let rules = BudgetRules {
            spend_limit: Some(limit),
            enforcement: BudgetEnforcement::Observe,
            ..BudgetRules::default()
        };
        let budget_id = store.budget(merchant_id, None, rules).await.budget_id;
        let wallet_id = Some(customers[0].wallet_id);
        let limit = SpendLimit { amount: amount("9000"), cycle: Cycle::Total };
        let rules = SpendRules { spend_limit: Some(limit), ..SpendRules::default() };
        let (spend_key, key) = store.spend_key(merchant_id, wallet_id, rules).await;
        store.move_key(&spend_key, Some(budget_id)).await;
        Self {
            merchant_id,
            merchant_wallet_id: merchant.merchant.wallet_id,
            secret_key_id: store.secret_key_id(&merchant).await,
            meter: store.meter(merchant_id, &[(0, "3"), (20_000, "1")]).await,
            customers,
            budget_id,
            spend_key,
            key,
            references: Vec::new(),
        }
    }

    fn call(&self, store: &TestStore, random: &mut Random) -> Call {
        let mut call = match random.below(3) {
            0 => store.call(self.merchant_id, self.secret_key_id),
            1 => Call {
                connection_id: Some(self.customers[random.index(2)].connection_id),
                meter_slug: Some(self.meter.slug.clone()),
                ..store.call(self.merchant_id, self.secret_key_id)
            },
            _ => store.call_with(&self.spend_key, &self.key),
        };
        let mut pairs = BTreeMap::new();
        for (key, values) in [("env", 2), ("user", 9)] {
            if !random.one_in(4) {
                pairs.insert(key, format!("{key}-{}", random.index(values)));
            }
        }
        // A value with the text of another pair.
        if random.one_in(5) {
            pairs.insert("note", OTHER_PAIR.to_owned());
        }
        let pairs = serde_json::to_value(pairs).unwrap();
        call.forwarded.metadata = Metadata::from_json(&pairs).unwrap();
        call.forwarded.model = Some(["large", "small", "tiny"][random.index(3)].to_owned());
        if random.one_in(3) {
            let run_id = format!("run-{}", random.index(3)).parse().unwrap();
            call.run = Some(CallRun { run_id, limit: None });
        }
        call
    }

    /// Makes a call, and advances the clock.
    async fn step(&mut self, store: &TestStore, random: &mut Random) {
        match random.below(10) {
            0 => {
                let run_id: RunId = "run-1".parse().unwrap();
                let cause = RefusalCause {
                    merchant_id: self.merchant_id,
                    key: CallKey::Secret(self.secret_key_id),
                    connection_id: Some(self.customers[0].connection_id),
                    model: Some(["large", "small"][random.index(2)]),
                    run_id: random.one_in(2).then_some(&run_id),
                    code: ["spend_limit_reached", "rate_limited"][random.index(2)],
                    at: store.clock.now(),
                };
                store.store.record_refusal(&cause, RefusedCall::default);
                store.store.write_refusals().await.unwrap();
            }
            1 => {
                let reference = format!("usage-{}", self.references.len());
                self.references.push(reference.clone());
                let outcome = self.report(store, &reference).await;
                assert!(matches!(outcome, ReportOutcome::Booked(_)), "{outcome:?}");
            }
            _ => {
                let call = self.call(store, random);
                let request_id = call.request_id;
                store.store.admit(Box::new(call)).await.unwrap().unwrap();
                // Some calls take long, also over the end of a month.
                if random.one_in(5) {
                    store.clock.advance_millis(random.between(0, DAY));
                }
                let cost = format!("0.{:010}", random.below(4_000_000_000));
                let mut report = answered(random.below(9_000), &cost);
                report.model = None;
                if random.one_in(6) {
                    report.ending = Ending::Unanswered;
                    report.provider_status = Some(500);
                }
                store.store.settle(request_id, report).await;
            }
        }
        store.clock.advance_millis(random.between(0, DAY / 3));
    }

    /// Records a refusal.
    async fn refuse(&self, store: &TestStore) {
        let cause = RefusalCause {
            merchant_id: self.merchant_id,
            key: CallKey::Secret(self.secret_key_id),
            connection_id: None,
            model: Some("large"),
            run_id: None,
            code: "rate_limited",
            at: store.clock.now(),
        };
        store.store.record_refusal(&cause, RefusedCall::default);
        store.store.write_refusals().await.unwrap();
    }

    async fn report(&self, store: &TestStore, reference: &str) -> ReportOutcome {
        let reported = ReportedUsage {
            reference_id: reference.to_owned(),
            connection_id: self.customers[1].connection_id,
            meter_slug: self.meter.slug.clone(),
            forwarded: ForwardedRequest {
                provider: "unknown".to_owned(),
                endpoint: "POST /v1/requests".to_owned(),
                metered: true,
                provider_key_type: ProviderKeyType::Unmanaged,
                model: None,
                metadata: Metadata::default(),
                socket_id: None,
                input_estimate: PricedUsage::nothing(),
            },
            priced: tollgate_testkit::store::priced(1_000, "0"),
            applied: Vec::new(),
            missing: None,
        };
        let merchant_id = self.merchant_id;
        let known = store.store.find_archived_report(merchant_id, reported.clone()).await.unwrap();
        if let Some(known) = known {
            return known;
        }
        let node = store.store.clone();
        let book = move |conn: &mut Conn| node.report(conn, merchant_id, &reported);
        store.store.write(book).await.unwrap()
    }

    /// All pages of a list of records.
    async fn list(&self, store: &Store, filter: &ListFilter, limit: u32) -> Vec<RequestRecord> {
        let (mut all, mut after) = (Vec::new(), None);
        let mut pages = 0;
        loop {
            let (merchant_id, filter) = (self.merchant_id, filter.clone());
            let page = Page { after, limit };
            let read = store.read_records(move |conn, archive| {
                requests::list(conn, archive, merchant_id, &filter, &page)
            });
            let found = read.await.unwrap();
            assert!(found.records.len() <= usize::try_from(limit).unwrap());
            all.extend(found.records);
            after = found.next;
            pages += 1;
            assert!(pages < 2_000, "the list goes on");
            if after.is_none() {
                return all;
            }
        }
    }

    async fn refused(&self, store: &Store, filter: &RefusalFilter) -> Vec<RefusalRecord> {
        let (mut all, mut after): (Vec<RefusalRecord>, _) = (Vec::new(), None);
        loop {
            let (merchant_id, filter) = (self.merchant_id, filter.clone());
            let page = Page { after, limit: 3 };
            let read = store.read_records(move |conn, archive| {
                refusals::list(conn, archive, merchant_id, &filter, &page)
            });
            let mut found = read.await.unwrap();
            let has_more = found.len() > 3;
            found.truncate(3);
            after = found.last().map(|one| one.refusal_id);
            all.extend(found);
            if !has_more {
                return all;
            }
        }
    }

    /// All pages of the ledger lines of each wallet.
    async fn lines(&self, store: &Store) -> Vec<Vec<Transaction>> {
        let mut wallet_ids: Vec<_> = self.customers.iter().map(|one| one.wallet_id).collect();
        wallet_ids.push(self.merchant_wallet_id);
        let mut all = Vec::new();
        for (wallet_id, limit) in wallet_ids.into_iter().zip([3, 7, 50]) {
            let (mut lines, mut after): (Vec<Transaction>, _) = (Vec::new(), None);
            loop {
                let page = Page { after, limit };
                let read = store.read_records(move |conn, archive| {
                    wallets::list_transactions(conn, archive, wallet_id, &page)
                });
                let mut found = read.await.unwrap();
                let limit = usize::try_from(limit).unwrap();
                let has_more = found.len() > limit;
                found.truncate(limit);
                after = found.last().map(|one| one.number);
                lines.extend(found);
                if !has_more {
                    break;
                }
            }
            let numbers = lines.iter().rev().map(|one| usize::try_from(one.number).unwrap());
            assert!(numbers.eq(1..=lines.len()), "a number is missing or twice");
            all.push(lines);
        }
        all
    }

    /// A page of ledger lines of December does not need the files of November.
    async fn assert_a_page_reads_one_month(&self, store: &TestStore) {
        let december = Timestamp::from_unix_micros(1_796_083_200_000_000);
        let lines = self.lines(&store.store).await.swap_remove(0);
        let of_december =
            |line: &&Transaction| line.created_at >= december && line.request_id.is_some();
        let of_december: Vec<_> = lines.iter().rev().filter(of_december).collect();
        let (last, next) = (of_december[0], of_december[1]);
        assert_eq!(next.number, last.number + 1);
        assert!(lines.last().is_some_and(|line| line.created_at < december));
        let files = store.archive().join("transactions/month=2026-11");
        let away = files.with_file_name("away");
        fs::rename(&files, &away).unwrap();
        let page = Page { after: Some(next.number + 1), limit: 1 };
        let wallet_id = self.customers[0].wallet_id;
        let read = store.store.read_records(move |conn, archive| {
            wallets::list_transactions(conn, archive, wallet_id, &page)
        });
        let found = read.await.unwrap();
        assert_eq!(found, [next.clone(), last.clone()]);
        fs::rename(&away, &files).unwrap();
    }

    /// The statements of each customer, by the clocks of several zones.
    async fn statements(&self, store: &Store) -> Vec<Statement> {
        let mut all = Vec::new();
        for zone in ["UTC", "Pacific/Kiritimati", "Pacific/Niue", "Asia/Kathmandu"] {
            let zone: TimeZone = zone.parse().unwrap();
            for customer in &self.customers {
                let (account, zone) = (CustomerAccount::from(customer), zone.clone());
                let read = move |conn: &mut Conn| {
                    let months = statements::months(conn, account.wallet_id, &zone)?;
                    let months = months.into_iter();
                    let each = months.map(|month| statements::read(conn, account, month, &zone));
                    each.collect::<Result<Vec<_>, StoreError>>()
                };
                all.extend(store.read_snapshot(read).await.unwrap());
            }
        }
        all
    }

    fn filters(&self) -> Vec<ListFilter> {
        let at = |days: i64| Some(START.plus_millis(days * DAY + 7));
        let of = |calls: RequestFilter| ListFilter::from(calls);
        let pairs = |pairs: &[(&str, &str)]| RequestFilter {
            metadata: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..RequestFilter::default()
        };
        let connection_id = Some(self.customers[1].connection_id);
        let spend_key_id = Some(self.spend_key.spend_key_id);
        vec![
            ListFilter::default(),
            of(RequestFilter { connection_id, ..RequestFilter::default() }),
            of(RequestFilter { spend_key_id, ..RequestFilter::default() }),
            of(RequestFilter { budget_id: Some(self.budget_id), ..RequestFilter::default() }),
            of(RequestFilter { meter_id: Some(self.meter.meter_id), ..RequestFilter::default() }),
            of(RequestFilter { model: Some("tiny".to_owned()), ..RequestFilter::default() }),
            of(RequestFilter { provider: Some("unknown".to_owned()), ..RequestFilter::default() }),
            ListFilter { provider_status: Some(200), ..ListFilter::default() },
            ListFilter { provider_status: Some(500), ..ListFilter::default() },
            ListFilter { would_refuse: true, ..ListFilter::default() },
            ListFilter { run_id: Some("run-1".parse().unwrap()), ..ListFilter::default() },
            of(pairs(&[("env", "env-1")])),
            of(pairs(&[("env", "env-1"), ("user", "user-3")])),
            of(pairs(&[("user", "user-3")])),
            of(pairs(&[("note", OTHER_PAIR)])),
            ListFilter { status: Some(RequestStatus::Error), ..ListFilter::default() },
            ListFilter { status: Some(RequestStatus::Pending), ..ListFilter::default() },
            ListFilter { min_cost: Some(amount("0.02")), ..ListFilter::default() },
            ListFilter { start: at(5), end: at(33), ..ListFilter::default() },
            ListFilter { end: at(12), ..of(pairs(&[("env", "env-0")])) },
            ListFilter { start: at(40), ..ListFilter::default() },
        ]
    }

    /// The answers to everything that is asked of records.
    async fn answers(&self, node: &Store) -> Answers {
        node.fold().await.unwrap();
        let mut lists = Vec::new();
        for (number, filter) in self.filters().iter().enumerate() {
            let limit = [7, 20, 50][number % 3];
            lists.push(self.list(node, filter, limit).await);
        }
        let mut found = Vec::new();
        for record in &lists[0] {
            let (merchant_id, id) = (self.merchant_id, record.request_id);
            let find = node
                .read_records(move |conn, archive| requests::find(conn, archive, merchant_id, id));
            found.push(find.await.unwrap().unwrap());
        }
        assert_eq!(found, lists[0]);
        let mut referenced = Vec::new();
        for reference in self.references.clone() {
            let merchant_id = self.merchant_id;
            let find = node.read_records(move |conn, archive| {
                requests::find_by_reference(conn, archive, merchant_id, &reference)
            });
            referenced.push(find.await.unwrap().unwrap());
        }
        let code = Some("rate_limited".to_owned());
        let connection_id = Some(self.customers[0].connection_id);
        let [start, end] = [10, 40].map(|days| Some(START.plus_millis(days * DAY)));
        let mut refused = Vec::new();
        for filter in [
            RefusalFilter::default(),
            RefusalFilter { code, ..RefusalFilter::default() },
            RefusalFilter { connection_id, ..RefusalFilter::default() },
            RefusalFilter { run_id: Some("run-1".parse().unwrap()), ..RefusalFilter::default() },
            RefusalFilter { model: Some("large".to_owned()), start, ..RefusalFilter::default() },
            RefusalFilter { model: Some("small".to_owned()), ..RefusalFilter::default() },
            RefusalFilter { start, end, ..RefusalFilter::default() },
        ] {
            refused.push(self.refused(node, &filter).await);
        }
        let mut sums = Vec::new();
        let keys = |keys: &[&str]| -> Vec<Dimension> {
            keys.iter().map(|key| Dimension::Metadata((*key).to_owned())).collect()
        };
        let all = RequestFilter::default();
        let by = [vec![], vec![Dimension::Connection], keys(&["env"]), keys(&["env", "user"])];
        let mut asked: Vec<_> = by.map(|by| (all.clone(), by)).into();
        let filters: Vec<_> = self.filters().into_iter().map(|filter| filter.calls).collect();
        let of = filters.iter().step_by(3).map(|filter| (filter.clone(), keys(&["env", "user"])));
        asked.extend(of);
        // Sets have no other dimensions, so these sums read records.
        for filter in filters.iter().filter(|filter| filter.metadata.len() < 2) {
            let connection_id = Some(self.customers[1].connection_id);
            let mut of_customer = RequestFilter { connection_id, ..filter.clone() };
            asked.push((of_customer.clone(), keys(&["env", "user"])));
            of_customer.metadata.extend([("user".to_owned(), "user-5".to_owned())]);
            asked.push((of_customer, keys(&["env"])));
        }
        for by in [Dimension::Model, Dimension::SpendKey, Dimension::Budget, Dimension::Meter] {
            asked.push((filters[12].clone(), vec![by]));
        }
        for (filter, by) in asked {
            let merchant_id = self.merchant_id;
            let end = START.plus_millis(100 * DAY);
            let span = TimeSpan::new(START, end, TimeZone::UTC, Interval::Day).unwrap();
            let read = node.read_records(move |conn, archive| {
                usage::sums(conn, archive, merchant_id, &filter, &by, &span)
            });
            sums.push(read.await.unwrap().unwrap());
        }
        let (lines, statements) = (self.lines(node).await, self.statements(node).await);
        Answers { lists, referenced, refused, sums, lines, statements }
    }
}

#[derive(Clone)]
struct Answers {
    lists: Vec<Vec<RequestRecord>>,
    referenced: Vec<RequestRecord>,
    refused: Vec<Vec<RefusalRecord>>,
    sums: Vec<GroupedSums>,
    lines: Vec<Vec<Transaction>>,
    statements: Vec<Statement>,
}

impl Answers {
    fn assert_same(&self, other: &Self) {
        for (number, (list, others)) in self.lists.iter().zip(&other.lists).enumerate() {
            let ids = |list: &[RequestRecord]| {
                list.iter().map(|record| record.request_id).collect::<Vec<_>>()
            };
            assert_eq!(ids(list), ids(others), "list {number}");
            for (record, other) in list.iter().zip(others) {
                assert_eq!(record, other);
            }
        }
        assert_eq!(self.referenced, other.referenced);
        assert_eq!(self.refused, other.refused);
        assert_eq!(self.sums, other.sums);
        assert_eq!(self.lines, other.lines);
        assert_eq!(self.statements, other.statements);
    }
}

/// Executes statements on the database of a store.
async fn execute(store: &Store, sql: impl Into<String>) {
    let sql = sql.into();
    let write = move |conn: &mut Conn| {
        let done = match conn {
            Conn::Sqlite(conn) => conn.batch_execute(&sql),
            Conn::Postgres(conn) => conn.batch_execute(&sql),
        };
        done.map_err(StoreError::from)
    };
    store.write(write).await.unwrap();
}

/// An id in SQL.
fn literal(store: &TestStore, id: impl Id) -> String {
    let digits: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    match store.database {
        None => format!("x'{digits}'"),
        Some(_) => format!(r"'\x{digits}'"),
    }
}

/// The number that a `SELECT` has.
async fn number(store: &Store, expression: String) -> i64 {
    let number = diesel::dsl::sql::<BigInt>(&expression);
    let read = move |conn: &mut Conn| {
        diesel::select(number).get_result::<i64>(conn).map_err(StoreError::from)
    };
    store.read(read).await.unwrap()
}

/// The number of rows of a table.
async fn count(store: &Store, table: &'static str) -> i64 {
    number(store, format!("count(*) FROM {table}")).await
}

/// Waits until a statement waits for a table of PostgreSQL.
fn wait_until_locked(conn: &mut PgConnection, table: &str) -> Result<(), StoreError> {
    let waits = format!(
        "EXISTS (SELECT 1 FROM pg_locks JOIN pg_database AS d ON d.oid = database \
         WHERE datname = current_database() AND NOT granted AND relation = '{table}'::regclass)"
    );
    let begun = std::time::Instant::now();
    while !diesel::select(diesel::dsl::sql::<Bool>(&waits)).get_result(conn)? {
        assert!(begun.elapsed() < Duration::from_secs(60), "no statement waits for {table}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The identities of the partitions of these months, and 0 for one that is not there. SQLite has none.
async fn partitions(store: &TestStore, months: [&str; 2]) -> Vec<i64> {
    let mut found = Vec::new();
    let tables = ["requests", "request_index", "transactions"];
    for (table, month) in tables.iter().flat_map(|table| months.map(|month| (table, month))) {
        if store.database.is_some() {
            let identity = format!("coalesce(to_regclass('{table}_{month}')::oid::bigint, 0)");
            found.push(number(&store.store, identity).await);
        }
    }
    found
}

/// All files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

#[test]
fn lists_sums_and_single_records_are_the_same_before_and_after_their_months_leave() {
    each_store(async |store| {
        let mut random = Random(20_261_127);
        let mut shop = Shop::of(store).await;
        let mut other = Shop::of(store).await;
        while store.clock.now() < START.plus_millis(75 * DAY) {
            shop.step(store, &mut random).await;
            if random.one_in(4) {
                other.step(store, &mut random).await;
            }
        }
        let before = [shop.answers(&store.store).await, other.answers(&store.store).await];
        // Each filter finds records, except for that of pending ones, and only the first one finds all.
        let all = before[0].lists[0].len();
        for (filter, found) in shop.filters().iter().zip(&before[0].lists) {
            let is_pending = filter.status == Some(RequestStatus::Pending);
            assert_eq!(found.is_empty(), is_pending, "{filter:?}");
            assert_eq!(found.len() == all, *filter == ListFilter::default(), "{filter:?}");
        }
        let rows = count(&store.store, "requests").await;
        let lines = count(&store.store, "transactions").await;
        let full = partitions(store, ["2026_11", "2026_12"]).await;
        assert!(full.iter().all(|identity| *identity != 0), "{full:?}");
        let archiving = store.store.archive_months(KEEP).await.unwrap();
        let sealed: Vec<_> = archiving.sealed.iter().map(|one| &*one.month).collect();
        assert_eq!(sealed, ["2026-11", "2026-12"]);
        let left = partitions(store, ["2026_11", "2026_12"]).await;
        let kept: Vec<_> = full.iter().zip(&left).filter(|(full, left)| full == left).collect();
        assert!(kept.is_empty(), "partitions of archived months are not dropped: {left:?}");
        assert_eq!(archiving.waits, None);
        let left = count(&store.store, "requests").await;
        assert!(left * 2 < rows, "{left} of {rows} rows are left");
        let left = count(&store.store, "transactions").await;
        assert!(left * 3 < lines * 2, "{left} of {lines} ledger lines are left");
        let after = [shop.answers(&store.store).await, other.answers(&store.store).await];
        for (before, after) in before.iter().zip(&after) {
            before.assert_same(after);
        }
        store.assert_audited().await;
        let audit = store.store.audit_with_archive().await.unwrap();
        assert_eq!(audit.differences, []);
        let months = store.store.archived_months().await.unwrap();
        assert_eq!(months.len(), 2);
        for month in &months {
            assert!(!month.leaving);
            store.store.verify_archive(&month.month).await.unwrap();
        }
        shop.assert_a_page_reads_one_month(store).await;
        // A report that comes again is not booked again, and other usage under its reference is an error.
        let reference = shop.references[0].clone();
        let outcome = shop.report(store, &reference).await;
        assert!(matches!(outcome, ReportOutcome::Known(_)), "{outcome:?}");

        // The year goes on.
        while store.clock.now() < START.plus_millis(100 * DAY) {
            shop.step(store, &mut random).await;
        }
        let before = shop.answers(&store.store).await;
        let archiving = store.store.archive_months(KEEP).await.unwrap();
        assert_eq!(archiving.sealed.len(), 1, "{archiving:?}");
        before.assert_same(&shop.answers(&store.store).await);
        assert_eq!(store.store.audit_with_archive().await.unwrap().differences, []);
        let archiving = store.store.archive_months(KEEP).await.unwrap();
        assert_eq!(archiving.sealed, []);
    });
}

/// A sum that reads records reads the groups of rows with the times at which the rarest pair has calls.
#[test]
fn a_sum_of_few_calls_does_not_read_the_archive_of_other_times() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        // One user has calls in the first and in the last month.
        for user in ["a", "b", "a"] {
            for _ in 0..3 {
                let mut call = store.call(shop.merchant_id, shop.secret_key_id);
                let pairs = format!(r#"{{"env":"prod","user":"{user}"}}"#);
                call.forwarded.metadata = Metadata::parse(&pairs).unwrap();
                store.forward(call, 1_000, "0.25").await.unwrap();
                store.clock.advance_millis(DAY);
            }
            store.clock.advance_millis(27 * DAY);
        }
        store.store.fold().await.unwrap();
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed.len(), 3);
        // The rows of this month cannot be read any more. The statistics stand at the end of the file.
        let file = store.archive().join("requests/month=2026-12/00001.parquet");
        let mut content = fs::read(&file).unwrap();
        content[4..2_000].fill(0);
        fs::write(&file, content).unwrap();
        let sum = async |user: &str| {
            let pairs = [("env", "prod"), ("user", user)];
            let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let filter = RequestFilter { metadata: pairs.into(), ..RequestFilter::default() };
            let merchant_id = shop.merchant_id;
            let end = START.plus_millis(100 * DAY);
            let span = TimeSpan::new(START, end, TimeZone::UTC, Interval::None).unwrap();
            let by = [Dimension::Provider];
            let read = store.store.read_records(move |conn, archive| {
                usage::sums(conn, archive, merchant_id, &filter, &by, &span)
            });
            read.await.map(|found| {
                found.unwrap().values().flat_map(BTreeMap::values).map(|sums| sums.requests).sum()
            })
        };
        let found: Result<i128, _> = sum("a").await;
        assert_eq!(found.unwrap(), 6);
        assert_eq!(sum("c").await.unwrap(), 0);
        assert!(matches!(sum("b").await, Err(StoreError::Archive(_))));
    });
}

/// A month is marked, and then its rows are deleted. In between, reads find each record once, also those of earlier months
/// that stay.
#[test]
fn reads_are_the_same_while_the_rows_of_a_month_are_still_here() {
    const TABLES: [(&str, &str); 3] =
        [("requests", "request_id"), ("request_index", "request_id"), ("refusals", "refusal_id")];
    each_store(async |store| {
        let mut random = Random(20_261_128);
        let mut shop = Shop::of(store).await;
        // This record of November stays, because December has its settlement.
        let december = START.plus_millis(10 * DAY);
        store.clock.advance_millis(10 * DAY - 1_800_000);
        let call = Call {
            connection_id: Some(shop.customers[0].connection_id),
            ..store.call(shop.merchant_id, shop.secret_key_id)
        };
        let stays = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        store.clock.advance_millis(3_600_000);
        store.store.settle(stays, answered(1_000, "7")).await;
        while store.clock.now() < december.plus_millis(45 * DAY) {
            shop.step(store, &mut random).await;
        }
        let dear = ListFilter { min_cost: Some(amount("6")), ..ListFilter::default() };
        let before = shop.answers(&store.store).await;
        for table in TABLES.map(|(table, _)| table).iter().chain(&["transactions"]) {
            execute(&store.store, format!("CREATE TABLE saved_{table} AS SELECT * FROM {table}"))
                .await;
        }
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed.len(), 2);
        let left = count(&store.store, "requests").await;
        let lines = count(&store.store, "transactions").await;
        let first = literal(store, RequestId::least(december));
        // Some entries of the index have left before their records.
        execute(
            &store.store,
            "DELETE FROM saved_request_index WHERE key = ':connection' \
             AND request_id NOT IN (SELECT request_id FROM requests)",
        )
        .await;
        for (table, id) in TABLES {
            let restore = format!(
                "INSERT INTO {table} SELECT * FROM saved_{table} WHERE {id} >= {first} \
                 ON CONFLICT DO NOTHING; DROP TABLE saved_{table}"
            );
            execute(&store.store, restore).await;
        }
        // The ledger lines of one wallet are still here, and those of the others have left.
        let wallet = literal(store, shop.customers[0].wallet_id);
        execute(
            &store.store,
            format!(
                "DELETE FROM archived_transactions WHERE wallet_id = {wallet} AND month = '2026-12'; \
                 INSERT INTO transactions SELECT * FROM saved_transactions \
                 WHERE wallet_id = {wallet} AND transaction_id >= {first} ON CONFLICT DO NOTHING; \
                 DROP TABLE saved_transactions"
            ),
        )
        .await;
        let mark = "UPDATE archived_months SET deleted_at = NULL, transactions_deleted_at = NULL \
                    WHERE month = '2026-12'";
        execute(&store.store, mark).await;
        assert!(count(&store.store, "requests").await > left + 20);
        assert!(count(&store.store, "transactions").await > lines + 5);
        before.assert_same(&shop.answers(&store.store).await);
        let found = shop.list(&store.store, &dear, 3).await;
        assert_eq!(found.iter().map(|one| one.request_id).collect::<Vec<_>>(), [stays]);
        store.assert_audited().await;
        assert_eq!(store.store.audit_with_archive().await.unwrap().differences, []);
        store.store.archive_months(KEEP).await.unwrap();
        assert_eq!(count(&store.store, "requests").await, left);
        assert_eq!(count(&store.store, "transactions").await, lines);
        before.assert_same(&shop.answers(&store.store).await);
    });
}

#[test]
fn lists_are_whole_while_months_leave() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        for _ in 0..40 {
            let call = store.call(shop.merchant_id, shop.secret_key_id);
            store.forward(call, 1_000, "0.25").await.unwrap();
            shop.refuse(store).await;
            store.clock.advance_millis(15 * DAY);
        }
        store.store.fold().await.unwrap();
        let (all, none) = (ListFilter::default(), RefusalFilter::default());
        let lists = async || {
            (shop.list(&store.store, &all, 100).await, shop.refused(&store.store, &none).await)
        };
        let before = lists().await;
        assert_eq!((before.0.len(), before.1.len()), (40, 40));
        let is_done = Cell::new(false);
        let archiving = async {
            let archiving = store.store.archive_months(KEEP).await.unwrap();
            assert!(archiving.sealed.len() > 15, "{archiving:?}");
            is_done.set(true);
        };
        let reading = async {
            let mut times = 0;
            while !is_done.get() {
                assert!(lists().await == before, "a record is missing or twice");
                times += 1;
            }
            times
        };
        let ((), times) = tokio::join!(archiving, reading);
        assert!(times > 5, "{times} times");
    });
}

#[test]
fn a_month_with_an_open_call_waits_and_the_settlement_of_a_swept_call_is_booked_after_it() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        let customer = &shop.customers[0];
        let call = || Call {
            connection_id: Some(customer.connection_id),
            meter_slug: Some(shop.meter.slug.clone()),
            ..store.call(shop.merchant_id, shop.secret_key_id)
        };
        store.forward(call(), 1_000, "0.25").await.unwrap();
        let (open, swept) = (call(), call());
        let (open_id, swept_id) = (open.request_id, swept.request_id);
        for call in [open, swept] {
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
        }
        store.clock.advance_millis(40 * DAY);
        let archiving = store.store.archive_months(KEEP).await.unwrap();
        assert_eq!(archiving.waits, Some(ArchivingWait::OpenCalls("2026-11".to_owned())));
        assert_eq!(archiving.sealed, []);
        assert_eq!(count(&store.store, "requests").await, 1);

        store.store.settle(open_id, answered(2_000, "0.5")).await;
        store.store.close().await.unwrap();
        let node = store.open_again();
        store.expire_other_leases(&node).await;
        assert_eq!(node.sweep().await.unwrap(), 1);
        node.fold().await.unwrap();
        let archiving = node.archive_months(KEEP).await.unwrap();
        assert_eq!(archiving.sealed.len(), 1, "{archiving:?}");
        // The one that was settled in another month, and the one that was swept, stay.
        assert_eq!(count(&node, "requests").await, 2);
        assert_eq!(node.audit().await.unwrap().differences, []);

        let before = store.wallet(shop.merchant_id, customer.wallet_id).await.balance;
        node.settle(swept_id, answered(3_000, "0.75")).await;
        node.fold().await.unwrap();
        let read = async |store: &TestStore| {
            let wallet_id = customer.wallet_id;
            let merchant_id = shop.merchant_id;
            let read =
                move |conn: &mut Conn| tollgate_store::wallets::find(conn, merchant_id, wallet_id);
            let _ = store;
            node.read(read).await.unwrap().unwrap().balance
        };
        assert!(read(store).await < before);
        assert_eq!(node.audit().await.unwrap().differences, []);
        assert_eq!(node.audit_with_archive().await.unwrap().differences, []);
        let records = shop.list(&node, &ListFilter::default(), 2).await;
        assert_eq!(records.len(), 3);
        let swept = records.iter().find(|one| one.request_id == swept_id).unwrap();
        assert!(!swept.swept);
        assert_eq!(swept.quote.base.total().unwrap(), amount("0.75"));
        node.close().await.unwrap();
    });
}

#[test]
fn records_that_are_in_the_archive_are_not_priced_again() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        let call = || store.call(shop.merchant_id, shop.secret_key_id);
        let mut answer = answered(1_000, "0.25");
        answer.priced.price_source = PriceSource::Catalog;
        for days in [0, 12, 40] {
            store.clock.advance_millis(days * DAY);
            let call = call();
            let id = call.request_id;
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            store.store.settle(id, answer.clone()).await;
        }
        store.store.fold().await.unwrap();
        store.store.archive_months(KEEP).await.unwrap();
        let row = PriceRow {
            provider: "house".to_owned(),
            models: vec![ModelPattern::new("*")],
            prices: UnitPrices { input: Some("9".parse().unwrap()), ..UnitPrices::default() },
            ..PriceRow::default()
        };
        let book = PriceBook::new(Catalog::default(), Catalog::new([row]));
        let scope = RepricingScope {
            from: START.date(),
            to: store.clock.now().date(),
            provider: None,
            model: None,
            merchant_id: None,
        };
        let mut told = Vec::new();
        store.store.reprice(&scope, &book, false, |one| told.push(one)).await.unwrap();
        assert!(told.len() <= 1, "{told:?}");
        assert_eq!(store.store.audit_with_archive().await.unwrap().differences, []);
    });
}

#[test]
fn without_its_archive_an_old_record_is_unavailable_and_nothing_is_deleted() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        let call = store.call(shop.merchant_id, shop.secret_key_id);
        let id = call.request_id;
        store.forward(call, 1_000, "0.25").await.unwrap();
        store.clock.advance_millis(30 * DAY);
        let new = store.call(shop.merchant_id, shop.secret_key_id);
        store.forward(new, 1_000, "0.25").await.unwrap();
        store.store.fold().await.unwrap();

        // A folder that cannot be written.
        let folder = store.archive();
        fs::write(&folder, "").unwrap();
        let failed = store.store.archive_months(KEEP).await;
        assert!(matches!(failed, Err(StoreError::Archive(_))), "{failed:?}");
        assert_eq!(count(&store.store, "requests").await, 2);
        fs::remove_file(&folder).unwrap();
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed.len(), 1);
        assert_eq!(count(&store.store, "requests").await, 1);

        let elsewhere = folder.with_extension("elsewhere");
        let find = async || {
            let merchant_id = shop.merchant_id;
            let find = store
                .store
                .read_records(move |conn, archive| requests::find(conn, archive, merchant_id, id));
            find.await
        };
        assert!(find().await.unwrap().is_some());
        fs::rename(&folder, &elsewhere).unwrap();
        let found = find().await;
        assert!(matches!(found, Err(StoreError::Archive(_))), "{found:?}");
        let filter = ListFilter::default();
        let (merchant_id, page) = (shop.merchant_id, Page { after: None, limit: 10 });
        let list = store.store.read_records(move |conn, archive| {
            requests::list(conn, archive, merchant_id, &filter, &page)
        });
        assert!(list.await.is_err());
        // The plain audit needs no archive.
        store.assert_audited().await;
        assert!(store.store.audit_with_archive().await.is_err());

        // Further months wait until the folder is there again, and none is created.
        store.clock.advance_millis(60 * DAY);
        assert!(store.store.archive_months(KEEP).await.is_err());
        assert!(!folder.exists());
        assert_eq!(count(&store.store, "requests").await, 1);
        fs::rename(&elsewhere, &folder).unwrap();
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed.len(), 1);
    });
}

#[test]
fn a_flipped_byte_of_any_file_is_found_and_the_file_is_named() {
    each_store(async |store| {
        let mut random = Random(7);
        let mut shop = Shop::of(store).await;
        while store.clock.now() < START.plus_millis(55 * DAY) {
            shop.step(store, &mut random).await;
        }
        store.store.fold().await.unwrap();
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed.len(), 2);
        let all = files(&store.archive());
        assert_eq!(all.len(), 8, "{all:?}");
        for file in all {
            let content = fs::read(&file).unwrap();
            let name = file.strip_prefix(store.archive()).unwrap().to_str().unwrap().to_owned();
            let month = ["2026-11", "2026-12"].into_iter().find(|month| name.contains(month));
            for _ in 0..5 {
                let mut flipped = content.clone();
                let at = random.index(flipped.len());
                flipped[at] ^= 1 << random.index(8);
                fs::write(&file, flipped).unwrap();
                // A process that has read the manifest before keeps it.
                let options = Options {
                    clock: store.clock.clone(),
                    archive: Some(tollgate_store::ArchiveOptions {
                        url: format!("file://{}", store.archive().display()),
                        endpoint: None,
                    }),
                    ..Options::default()
                };
                let node = Store::open(&store.url, &options).unwrap();
                let found = node.verify_archive(month.unwrap()).await;
                let found = found.expect_err("a byte is flipped").to_string();
                assert!(found.contains(&name), "{found} does not name {name}");
                node.close().await.unwrap();
            }
            fs::write(&file, content).unwrap();
            store.store.verify_archive(month.unwrap()).await.unwrap();
        }
    });
}

#[test]
fn ledger_lines_leave_when_no_older_program_uses_the_database() {
    const MIGRATION: &str = "20261201000001";
    each_store(async |store| {
        let mut random = Random(13);
        let mut shop = Shop::of(store).await;
        while store.clock.now() < START.plus_millis(55 * DAY) {
            shop.step(store, &mut random).await;
        }
        let before = shop.answers(&store.store).await;
        let lines = count(&store.store, "transactions").await;
        execute(
            &store.store,
            format!("DELETE FROM breaking_migrations WHERE version = '{MIGRATION}'"),
        )
        .await;
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed.len(), 2);
        assert_eq!(count(&store.store, "transactions").await, lines);
        store.assert_audited().await;
        assert_eq!(store.store.audit_with_archive().await.unwrap().differences, []);
        before.assert_same(&shop.answers(&store.store).await);

        let contract = format!("INSERT INTO breaking_migrations VALUES ('{MIGRATION}')");
        execute(&store.store, contract).await;
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed, []);
        assert!(count(&store.store, "transactions").await * 2 < lines);
        store.assert_audited().await;
        assert_eq!(store.store.audit_with_archive().await.unwrap().differences, []);
        before.assert_same(&shop.answers(&store.store).await);
    });
}

#[test]
fn a_line_that_is_written_while_its_month_leaves_postgres_is_kept() {
    each_store(async |store| {
        if store.database.is_none() {
            return;
        }
        let mut random = Random(17);
        let mut shop = Shop::of(store).await;
        for _ in 0..1_100 {
            let call = shop.call(store, &mut random);
            store.forward(call, 10, "0.001").await.unwrap();
        }
        while store.clock.now() < START.plus_millis(55 * DAY) {
            shop.step(store, &mut random).await;
        }
        let before = shop.answers(&store.store).await;
        let lines = count(&store.store, "transactions_2026_11").await;
        assert!(lines > 1_100, "{lines} lines are not read at once");

        // A node whose clock is wrong. It commits when the partition is about to be replaced.
        let (written, is_written) = tokio::sync::oneshot::channel();
        let late = store.store.write(move |conn| {
            let Conn::Postgres(conn) = conn else { return Ok(()) };
            conn.batch_execute(
                "INSERT INTO transactions_2026_11 SELECT transaction_id, merchant_id, wallet_id, account, \
                 number + 1000000, 1, 0, balance_after, NULL, 'late', created_at \
                 FROM transactions_2026_11 WHERE kind = 3 LIMIT 1",
            )?;
            written.send(()).unwrap();
            wait_until_locked(conn, "transactions_2026_11")
        });
        let archive = async {
            is_written.await.unwrap();
            store.store.archive_months(KEEP).await.unwrap()
        };
        let (late, archiving) = tokio::join!(late, archive);
        late.unwrap();
        assert_eq!(archiving.sealed.len(), 2, "{archiving:?}");
        let leaving = store.store.archived_months().await.unwrap();
        assert_eq!(leaving.iter().map(|month| month.leaving).collect::<Vec<_>>(), [true, false]);
        assert_eq!(count(&store.store, "transactions_2026_11").await, lines + 1);
        assert_eq!(count(&store.store, "archived_transactions WHERE month = '2026-11'").await, 0);

        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed, []);
        assert!(count(&store.store, "transactions_2026_11").await < 50);
        assert_eq!(count(&store.store, "transactions WHERE description = 'late'").await, 1);
        execute(&store.store, "DELETE FROM transactions WHERE description = 'late'").await;
        store.assert_audited().await;
        assert_eq!(store.store.audit_with_archive().await.unwrap().differences, []);
        before.assert_same(&shop.answers(&store.store).await);
    });
}

#[test]
fn a_month_leaves_postgres_when_reports_of_its_lines_end() {
    each_store(async |store| {
        if store.database.is_none() {
            return;
        }
        let mut random = Random(19);
        let mut shop = Shop::of(store).await;
        while store.clock.now() < START.plus_millis(55 * DAY) {
            shop.step(store, &mut random).await;
        }
        let before = shop.answers(&store.store).await;
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let report = store.store.write(move |conn| {
            let Conn::Postgres(conn) = conn else { return Ok(()) };
            conn.batch_execute("LOCK TABLE transactions IN ACCESS SHARE MODE")?;
            begun.send(()).unwrap();
            // The first attempt ends after 100 ms, and the second one is a second later.
            wait_until_locked(conn, "transactions")?;
            std::thread::sleep(Duration::from_millis(500));
            wait_until_locked(conn, "transactions")
        });
        let archive = async {
            has_begun.await.unwrap();
            store.store.archive_months(KEEP).await.unwrap()
        };
        let (report, archiving) = tokio::join!(report, archive);
        report.unwrap();
        assert_eq!(archiving.sealed.len(), 2, "{archiving:?}");
        let leaving = store.store.archived_months().await.unwrap();
        assert_eq!(leaving.iter().map(|month| month.leaving).collect::<Vec<_>>(), [false, false]);
        store.assert_audited().await;
        assert_eq!(store.store.audit_with_archive().await.unwrap().differences, []);
        before.assert_same(&shop.answers(&store.store).await);
    });
}

#[test]
fn an_audit_finds_changed_sums_of_the_archive() {
    each_store(async |store| {
        let mut random = Random(11);
        let mut shop = Shop::of(store).await;
        while store.clock.now() < START.plus_millis(55 * DAY) {
            shop.step(store, &mut random).await;
        }
        store.store.fold().await.unwrap();
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed.len(), 2);
        for column in [
            "archived_sums SET amount",
            "archived_sums SET records",
            "archived_transactions SET amount",
            "archived_transactions SET balance_after",
            "archived_transactions SET last_number",
        ] {
            let value = column.split_once("SET ").unwrap().1;
            execute(&store.store, format!("UPDATE {column} = {value} + 1")).await;
            assert_ne!(store.store.audit().await.unwrap().differences, [], "{column}");
            assert_ne!(store.store.audit_with_archive().await.unwrap().differences, [], "{column}");
            execute(&store.store, format!("UPDATE {column} = {value} - 1")).await;
        }
        store.assert_audited().await;
        assert_eq!(store.store.audit_with_archive().await.unwrap().differences, []);
    });
}

#[test]
fn an_archive_takes_the_months_of_one_database() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        let call = store.call(shop.merchant_id, shop.secret_key_id);
        store.forward(call, 1_000, "0.25").await.unwrap();
        store.clock.advance_millis(30 * DAY);
        store.store.fold().await.unwrap();
        // Another database has sealed this month in the same place.
        let manifests = store.archive().join("manifests");
        fs::create_dir_all(&manifests).unwrap();
        let foreign = r#"{"schema_version":1,"database":"other","month":"2026-11","previous":null,"files":[],"sums":{}}"#;
        fs::write(manifests.join("2026-11.json"), foreign).unwrap();
        let failed = store.store.archive_months(KEEP).await.expect_err("it is another's");
        assert!(failed.to_string().contains("another database"), "{failed}");
        assert_eq!(count(&store.store, "requests").await, 1);
        fs::remove_file(manifests.join("2026-11.json")).unwrap();
        store.store.archive_months(KEEP).await.unwrap();
    });
}

#[test]
fn an_older_database_does_not_replace_a_month_that_is_in_the_archive() {
    use diesel::prelude::*;
    use diesel::sql_types::Text;
    each_store(async |store| {
        let shop = Shop::of(store).await;
        let call = store.call(shop.merchant_id, shop.secret_key_id);
        store.forward(call, 1_000, "0.25").await.unwrap();
        store.clock.advance_millis(10 * DAY);
        store.store.fold().await.unwrap();
        store.store.archive_months(KEEP).await.unwrap();
        let id = |conn: &mut Conn| {
            let id = diesel::dsl::sql::<Text>("database_id FROM archive_state");
            diesel::select(id).get_result::<String>(conn).map_err(StoreError::from)
        };
        let id = store.store.read(id).await.unwrap();
        // The month was sealed from this database with two records, one of which a backup lacks.
        store.clock.advance_millis(20 * DAY);
        let file = store.archive().join("manifests/2026-11.json");
        let sums = format!(
            r#"{{"requests":{{"{}":{{"rows":2,"booked_merchant_cost":"0.5000000000"}}}}}}"#,
            shop.merchant_id
        );
        let manifest = format!(
            r#"{{"schema_version":1,"database":"{id}","month":"2026-11","previous":null,"files":[],"sums":{sums}}}"#
        );
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, &manifest).unwrap();
        let failed = store.store.archive_months(KEEP).await.expect_err("it has other records");
        assert!(failed.to_string().contains("older than the archive"), "{failed}");
        assert_eq!(files(&store.archive()).len(), 1);
        assert_eq!(fs::read_to_string(&file).unwrap(), manifest);
        assert_eq!(count(&store.store, "requests").await, 1);
        fs::remove_file(&file).unwrap();
        assert_eq!(store.store.archive_months(KEEP).await.unwrap().sealed.len(), 1);
    });
}

#[test]
fn refusals_of_a_month_without_records_leave_and_are_listed() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        for month in 0..4 {
            shop.refuse(store).await;
            if month == 2 {
                let call = store.call(shop.merchant_id, shop.secret_key_id);
                store.forward(call, 1_000, "0.25").await.unwrap();
            }
            store.clock.advance_millis(31 * DAY);
        }
        store.store.fold().await.unwrap();
        let before = shop.refused(&store.store, &RefusalFilter::default()).await;
        assert_eq!(before.len(), 4);
        let archiving = store.store.archive_months(KEEP).await.unwrap();
        assert_eq!(archiving.sealed.len(), 4, "{archiving:?}");
        assert_eq!(shop.refused(&store.store, &RefusalFilter::default()).await, before);
        assert_eq!(count(&store.store, "refusals").await, 0);
    });
}

/// The records and ledger lines come from the archive of the old cell. In the new one they are rows again, also those of
/// months that it has in an archive of its own.
#[test]
fn a_merchant_with_archived_months_moves_with_all_records() {
    const PATIENCE: Duration = Duration::from_secs(20);
    each_pair(async |store, target| {
        let mut random = Random(20_261_130);
        let [mut shop, mut earlier, mut later] =
            [Shop::of(store).await, Shop::of(store).await, Shop::of(store).await];
        let end = store.clock.now().plus_millis(75 * DAY);
        while store.clock.now() < end {
            for shop in [&mut shop, &mut earlier, &mut later] {
                shop.step(store, &mut random).await;
            }
        }
        let move_one = async |shop: &Shop| {
            let before = shop.answers(&store.store).await;
            let rows = store.store.move_merchant(target, shop.merchant_id, PATIENCE).await;
            // Those of older refused calls stay in the archive.
            let kept_from = store.clock.now().plus_millis(-29 * DAY);
            let kept = |answers: Answers| Answers {
                refused: answers
                    .refused
                    .into_iter()
                    .map(|refused| {
                        refused.into_iter().filter(|one| one.last_at >= kept_from).collect()
                    })
                    .collect(),
                ..answers
            };
            let after = shop.answers(target).await;
            kept(before).assert_same(&kept(after.clone()));
            store.assert_audited().await;
            assert_eq!(target.audit().await.unwrap().differences, []);
            let rows = rows.unwrap().rows["requests"];
            assert!(rows > 60, "{rows} records");
            after
        };
        let rows = count(&store.store, "requests").await;
        let sealed = store.store.archive_months(KEEP).await.unwrap().sealed;
        assert!(sealed.len() >= 2, "{sealed:?}");
        let left = count(&store.store, "requests").await;
        assert!(left * 2 < rows, "{left} of {rows} rows are left");

        // The other cell has no archive yet. There the months leave again.
        let before = move_one(&earlier).await;
        assert_eq!(target.archive_months(KEEP).await.unwrap().sealed.len(), 2);
        before.assert_same(&earlier.answers(target).await);
        assert_eq!(target.audit_with_archive().await.unwrap().differences, []);
        // It has archived the same months. There the rows stay.
        let left = count(target, "requests").await;
        let before = move_one(&later).await;
        assert!(count(target, "requests").await > left + 60);
        assert_eq!(target.audit_with_archive().await.unwrap().differences, []);
        store.clock.advance_millis(30 * DAY);
        assert_eq!(target.archive_months(KEEP).await.unwrap().sealed.len(), 1);
        before.assert_same(&later.answers(target).await);
        assert_eq!(target.audit().await.unwrap().differences, []);
        assert_eq!(target.audit_with_archive().await.unwrap().differences, []);

        // A file that is damaged is named, and the merchant stays.
        let month = &sealed.last().unwrap().month;
        let damaged = format!("requests/month={month}/00001.parquet");
        let file = store.archive().join(&damaged);
        let content = fs::read(&file).unwrap();
        let mut flipped = content.clone();
        let at = flipped.len() / 2;
        flipped[at] ^= 1;
        fs::write(&file, flipped).unwrap();
        let refused = store.store.move_merchant(target, shop.merchant_id, PATIENCE).await;
        let cause = refused.expect_err("a byte is flipped");
        assert!(cause.to_string().contains(&damaged), "{cause}");
        fs::write(&file, content).unwrap();
        // A month whose rows are being deleted is neither here nor there.
        let leaving =
            format!("UPDATE archived_months SET deleted_at = NULL WHERE month = '{month}'");
        execute(&store.store, &*leaving).await;
        let refused = store.store.move_merchant(target, shop.merchant_id, PATIENCE).await;
        assert!(matches!(refused, Err(MoveError::ArchivesHere)), "{refused:?}");
        execute(&store.store, leaving.replace("NULL", "1")).await;
        // A month that is closed and not marked may have been written without the merchant.
        let close = "UPDATE archive_state SET closed_until = closed_until";
        execute(target, format!("{close} + 1")).await;
        let refused = store.store.move_merchant(target, shop.merchant_id, PATIENCE).await;
        assert!(matches!(refused, Err(MoveError::ArchivesThere)), "{refused:?}");
        execute(target, format!("{close} - 1")).await;
        // The rows of an attempt that was interrupted do not count there. The next attempt replaces them.
        let call = shop.call(store, &mut random);
        let open = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let rows = count(target, "requests").await;
        let moving = store.store.move_merchant(target, shop.merchant_id, PATIENCE);
        let interrupted = tokio::time::timeout(Duration::from_secs(3), moving).await;
        assert!(interrupted.is_err(), "{interrupted:?}");
        assert!(count(target, "requests").await > rows + 60);
        assert_eq!(target.audit_with_archive().await.unwrap().differences, []);
        store.store.take_merchant_back(shop.merchant_id, false).await.unwrap();
        store.store.settle(open, answered(1, "0.5")).await;
        move_one(&shop).await;
    });
}

#[test]
fn one_process_archives_at_a_time_and_its_lease_lapses_within_a_minute() {
    each_store(async |store| {
        let shop = Shop::of(store).await;
        let call = store.call(shop.merchant_id, shop.secret_key_id);
        store.forward(call, 1_000, "0.25").await.unwrap();
        store.clock.advance_millis(30 * DAY);
        store.store.fold().await.unwrap();
        // A process that has died.
        let until = store.clock.now().plus_millis(60_000).unix_micros();
        let holder = match store.database {
            None => "x'00112233445566778899aabbccddeeff'",
            Some(_) => r"'\x00112233445566778899aabbccddeeff'",
        };
        let hold = format!(
            "INSERT INTO archive_state (number, database_id, closed_until, holder, lease_until) \
             VALUES (1, 'd', 0, {holder}, {until})"
        );
        execute(&store.store, hold).await;
        let archiving = store.store.archive_months(KEEP).await.unwrap();
        assert_eq!(archiving.waits, Some(ArchivingWait::OtherProcess));
        store.clock.advance_millis(60_001);
        let archiving = store.store.archive_months(KEEP).await.unwrap();
        assert_eq!(archiving.sealed.len(), 1, "{archiving:?}");
    });
}
