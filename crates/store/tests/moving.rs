//! Tests of the move of a merchant between the databases of two cells, of every pair of kinds.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use diesel::connection::SimpleConnection;
use tollgate_domain::admission::Refusal;
use tollgate_domain::*;
use tollgate_pricing::PriceBook;
use tollgate_store::moving::MoveError;
use tollgate_store::repricings::RepricingScope;
use tollgate_store::requests::{self, ListFilter};
use tollgate_store::{
    Conn, DatabaseUrl, Options, Page, RecordArchive, SettleOutcome, Store, StoreError, merchants,
    spend_keys, subscription_configs, subscriptions, wallets, webhooks,
};
use tollgate_testkit::postgres;
use tollgate_testkit::store::{TestStore, amount, answered, each_store};

const PATIENCE: Duration = Duration::from_secs(20);

fn seven() -> CellNumber {
    CellNumber::try_from(7).unwrap()
}

/// Runs `test` with a store of cell 0 and one of cell 7, of every pair of databases.
pub(crate) fn each_pair(test: impl AsyncFn(&TestStore, &Store)) {
    each_store(async |store| {
        let home = tempfile::tempdir().unwrap();
        let file = DatabaseUrl::Sqlite(home.path().join("seven.db"));
        let server = postgres::database();
        let server_url = server.as_ref().map(|database| database.url().parse().unwrap());
        for url in [Some(file), server_url].into_iter().flatten() {
            let options = Options { cell: Some(seven()), ..Options::default() };
            Store::open(&url, &options).unwrap().close().await.unwrap();
            let folder = tempfile::tempdir().unwrap();
            let target = store.open_in(&url, folder.path());
            test(store, &target).await;
            target.close().await.unwrap();
        }
    });
}

/// A webhook of the merchant, and a plan of the customer.
async fn subscribe(store: &TestStore, connection: &Connection) {
    let (merchant_id, connection_id) = (connection.merchant_id, connection.connection_id);
    let now = store.clock.now();
    let subscribe = move |conn: &mut _| -> Result<_, StoreError> {
        let url = "https://example.com".to_owned();
        let new = NewWebhook { name: "n".to_owned(), url, events: None };
        webhooks::create(conn, merchant_id, new, now)?.unwrap();
        let new = NewSubscriptionConfig {
            name: "Plan".to_owned(),
            period_amount: amount("25"),
            billing_interval: BillingInterval::Month,
            terms: ConfigTerms {
                included_credit: amount("0.05"),
                rollover_type: Rollover::None,
                bundle_rollover_type: Rollover::Full,
                meter_ids: Vec::new(),
            },
            credit_bundles: Vec::new(),
        };
        let made = subscription_configs::create(conn, merchant_id, &new, now)?.unwrap();
        let config_id = made.config.subscription_config_id;
        subscriptions::create(conn, merchant_id, connection_id, config_id, now)
    };
    store.store.write(subscribe).await.unwrap();
}

async fn assert_audited(store: &Store) {
    assert_eq!(store.audit().await.unwrap().differences, []);
}

#[test]
fn a_merchant_moves_with_everything_and_its_keys_work_there_alone() {
    each_pair(async |store, target| {
        let [merchant, stays] = [store.merchant().await, store.merchant().await];
        let merchant_id = merchant.merchant.merchant_id;
        let connection = store.connection(merchant_id, "100").await;
        let (spend_key, key) =
            store.spend_key(merchant_id, Some(connection.wallet_id), SpendRules::default()).await;
        store.meter(merchant_id, &[(0, "10"), (1_000, "5")]).await;
        let parent = store.budget(merchant_id, None, BudgetRules::default()).await;
        let budget =
            store.budget(merchant_id, Some(parent.budget_id), BudgetRules::default()).await;
        store.move_key(&spend_key, Some(budget.budget_id)).await;
        // An older budget below a newer one.
        let old = store.budget(merchant_id, None, BudgetRules::default()).await;
        let new = store.budget(merchant_id, None, BudgetRules::default()).await;
        let old = Budget { parent_id: Some(new.budget_id), ..old };
        store.save_budget(&old, false).await.unwrap();
        subscribe(store, &connection).await;
        let call = async |of: &Store| {
            let mut call = store.call_with(&spend_key, &key);
            call.forwarded.metadata = Metadata::parse(r#"{"team": "red – \"x\""}"#).unwrap();
            let request_id = call.request_id;
            let admitted = of.admit(Box::new(call)).await.unwrap();
            if admitted.is_ok() {
                let settled = of.settle(request_id, answered(100, "0.01")).await;
                assert!(matches!(settled, SettleOutcome::Settled(_)), "{settled:?}");
            }
            admitted.map(drop)
        };
        // Some calls are old, some are of this hour.
        for _ in 0..20 {
            call(&store.store).await.unwrap();
            store.clock.advance_millis(10 * 60 * 1_000);
        }
        let of_other = store.call(stays.merchant.merchant_id, store.secret_key_id(&stays).await);
        store.store.admit(Box::new(of_other)).await.unwrap().unwrap();
        let list = async |of: &Store| {
            let newest = Page { after: None, limit: 100 };
            let list = of.read(move |conn| {
                requests::list(
                    conn,
                    &RecordArchive::default(),
                    merchant_id,
                    &ListFilter::default(),
                    &newest,
                )
            });
            list.await.unwrap().records
        };
        let before = list(&store.store).await;
        let balance = store.wallet(merchant_id, connection.wallet_id).await.balance;

        let moved = store.store.move_merchant(target, merchant_id, PATIENCE).await.unwrap();
        assert_eq!((moved.rows["requests"], moved.rows["merchants"]), (20, 1));
        let read = move |conn: &mut Conn| merchants::find(conn, merchant_id);
        assert_eq!(store.store.read(read).await.unwrap().unwrap().moved_to, Some(seven()));
        assert_eq!(target.read(read).await.unwrap().unwrap().moved_to, None);
        for table in [
            "meter_versions",
            "budgets",
            "spend_counters",
            "subscriptions",
            "plan_charges",
            "webhooks",
            "events",
            "transactions",
            "request_index",
            "usage_rollups",
            "metadata_sets",
            "metadata_rollups",
        ] {
            assert!(moved.rows[table] > 0, "{table}");
        }
        assert_eq!(list(target).await, before);
        let found = target.read(move |conn| wallets::find(conn, merchant_id, connection.wallet_id));
        assert_eq!(found.await.unwrap().unwrap().balance, balance);
        assert_audited(&store.store).await;
        assert_audited(target).await;

        assert_eq!(call(&store.store).await, Err(Refusal::KeyInvalid));
        let hash = key.hash();
        let found = store.store.read(move |conn| spend_keys::find_by_hash(conn, &hash)).await;
        assert!(matches!(found, Err(StoreError::Moved(_))), "{found:?}");
        let hash = merchant.key.hash();
        let found = store.store.read(move |conn| merchants::find_secret_key(conn, &hash)).await;
        assert!(matches!(found, Err(StoreError::Moved(_))), "{found:?}");
        call(target).await.unwrap();
        target.fold().await.unwrap();
        assert_eq!(list(target).await.len(), 21);
        assert_audited(target).await;
        let made = target.write(move |conn| {
            merchants::create_secret_key(conn, merchant_id, "New", before[0].created_at)
        });
        assert!(
            made.await.map_err(|cause: StoreError| cause).unwrap().1.reveal().starts_with("tgs_7_")
        );

        let again = store.store.move_merchant(target, merchant_id, PATIENCE).await;
        assert!(matches!(again, Err(MoveError::HasMoved(7))), "{again:?}");
        let nowhere = tempfile::tempdir().unwrap();
        let nowhere = DatabaseUrl::Sqlite(nowhere.path().join("nowhere.db"));
        let nowhere = Store::open(&nowhere, &Options::default()).unwrap();
        let nowhere = target.move_merchant(&nowhere, merchant_id, PATIENCE).await;
        assert!(matches!(nowhere, Err(MoveError::NoCell)), "{nowhere:?}");
        let back = target.move_merchant(&store.store, merchant_id, PATIENCE).await;
        assert!(matches!(back, Err(MoveError::IsThere)), "{back:?}");
        // Another database of cell 7, such as an old copy.
        let other = tempfile::tempdir().unwrap();
        let other = DatabaseUrl::Sqlite(other.path().join("other.db"));
        let of_seven = Options { cell: Some(seven()), ..Options::default() };
        let other = Store::open(&other, &of_seven).unwrap();
        let copied = store.store.move_merchant(&other, merchant_id, PATIENCE).await;
        assert!(matches!(copied, Err(MoveError::NotThere(7))), "{copied:?}");
        other.close().await.unwrap();
        assert_eq!(store.store.read(read).await.unwrap().unwrap().moved_to, Some(seven()));
        // Both databases would serve it.
        let back = store.store.take_merchant_back(merchant_id, false).await;
        assert!(matches!(back, Err(MoveError::HasMoved(7))), "{back:?}");
        let scope = |merchant_id| RepricingScope {
            from: store.clock.now().date(),
            to: store.clock.now().date(),
            provider: None,
            model: None,
            merchant_id,
        };
        let (one, mut seen) = (scope(Some(merchant_id)), 0);
        let repriced = store.store.reprice(&one, &PriceBook::default(), true, |_| seen += 1).await;
        assert!(matches!(repriced, Err(StoreError::Moved(7))), "{repriced:?}");
        let all = scope(None);
        store.store.reprice(&all, &PriceBook::default(), true, |_| seen += 1).await.unwrap();
        assert_eq!(seen, 0);
    });
}

#[test]
fn a_merchant_whose_call_does_not_end_stays() {
    each_pair(async |store, target| {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let key = store.secret_key_id(&merchant).await;
        let open = store.call(merchant_id, key);
        let request_id = open.request_id;
        store.store.admit(Box::new(open)).await.unwrap().unwrap();
        let refused = store.store.move_merchant(target, merchant_id, Duration::ZERO).await;
        assert!(matches!(refused, Err(MoveError::OpenCalls(1))), "{refused:?}");
        // The rows of a month are being deleted there.
        let free = store.merchant().await.merchant.merchant_id;
        let change = |sql: &'static str| {
            move |conn: &mut Conn| {
                let done = match conn {
                    Conn::Sqlite(conn) => conn.batch_execute(sql),
                    Conn::Postgres(conn) => conn.batch_execute(sql),
                };
                done.map_err(StoreError::from)
            }
        };
        let leaving = "INSERT INTO archived_months (month, manifest, sealed_at) \
                       VALUES ('2020-01', 'digest', 0)";
        target.write(change(leaving)).await.unwrap();
        let refused = store.store.move_merchant(target, free, PATIENCE).await;
        assert!(matches!(refused, Err(MoveError::ArchivesThere)), "{refused:?}");
        target.write(change("DELETE FROM archived_months")).await.unwrap();
        store.store.move_merchant(target, free, PATIENCE).await.unwrap();
        let another = store.call(merchant_id, key);
        let other_id = another.request_id;
        store.store.admit(Box::new(another)).await.unwrap().unwrap();
        store.store.settle(request_id, answered(1, "1")).await;
        assert_audited(target).await;

        // A move that is interrupted leaves the merchant refused. The same move completes it.
        let moving = store.store.move_merchant(target, merchant_id, PATIENCE);
        let interrupted = tokio::time::timeout(Duration::from_millis(1_500), moving);
        let another = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            store.store.move_merchant(target, merchant_id, PATIENCE).await
        };
        let (interrupted, another) = tokio::join!(interrupted, another);
        assert!(matches!(another, Err(MoveError::Busy)), "{another:?}");
        assert!(interrupted.is_err(), "{interrupted:?}");
        let refused = store.store.admit(Box::new(store.call(merchant_id, key))).await.unwrap();
        assert_eq!(refused.map(drop), Err(Refusal::KeyInvalid));
        // Or it is taken back, without the other database.
        store.store.take_merchant_back(merchant_id, false).await.unwrap();
        store.forward(store.call(merchant_id, key), 1, "1").await.unwrap();
        let again = store.store.take_merchant_back(merchant_id, false).await;
        assert!(matches!(again, Err(MoveError::NotMoving)), "{again:?}");
        store.store.settle(other_id, answered(1, "1")).await;
        let moved = store.store.move_merchant(target, merchant_id, PATIENCE).await.unwrap();
        assert_eq!(moved.rows["requests"], 3);
        assert_audited(target).await;
        assert_audited(&store.store).await;
    });
}

/// Old sums are copied before the pause. The settlement of a call that the sweeper has ended changes some.
#[test]
fn old_sums_that_change_while_a_merchant_moves_are_copied_again() {
    const DAY: i64 = 24 * 60 * 60 * 1_000;
    each_store(async |store| {
        let folder = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::Sqlite(folder.path().join("seven.db"));
        let options = Options { cell: Some(seven()), ..Options::default() };
        Store::open(&url, &options).unwrap().close().await.unwrap();
        let target = store.open_in(&url, folder.path());
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let key = store.secret_key_id(&merchant).await;
        store.forward(store.call(merchant_id, key), 1_000, "0.25").await.unwrap();
        let swept = store.call(merchant_id, key);
        let swept_id = swept.request_id;
        store.store.admit(Box::new(swept)).await.unwrap().unwrap();
        store.store.close().await.unwrap();
        let node = store.open_again();
        store.expire_other_leases(&node).await;
        assert_eq!(node.sweep().await.unwrap(), 1);
        store.clock.advance_millis(5 * DAY);
        node.renew_lease().await.unwrap();
        let open = store.call(merchant_id, key);
        let open_id = open.request_id;
        node.admit(Box::new(open)).await.unwrap().unwrap();
        let moving = node.move_merchant(&target, merchant_id, PATIENCE);
        let meanwhile = async {
            // The merchant waits for its open call.
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            for id in [swept_id, open_id] {
                let settled = node.settle(id, answered(1_000, "0.5")).await;
                assert!(matches!(settled, SettleOutcome::Settled(_)), "{settled:?}");
            }
        };
        let (moved, ()) = tokio::join!(moving, meanwhile);
        let moved = moved.unwrap();
        assert_eq!((moved.rows["requests"], moved.rows["corrections"]), (3, 1));
        assert_audited(&node).await;
        assert_audited(&target).await;
        node.close().await.unwrap();
        target.close().await.unwrap();
    });
}

#[test]
fn calls_that_are_made_meanwhile_are_refused_or_move_as_well() {
    each_pair(async |store, target| {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let connection = store.connection(merchant_id, "1000").await;
        let (spend_key, key) =
            store.spend_key(merchant_id, Some(connection.wallet_id), SpendRules::default()).await;
        let settled = AtomicUsize::new(0);
        let caller = async || {
            loop {
                let call = store.call_with(&spend_key, &key);
                let request_id = call.request_id;
                match store.store.admit(Box::new(call)).await.unwrap() {
                    Ok(_) => {}
                    Err(refusal) => return assert_eq!(refusal, Refusal::KeyInvalid),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                store.store.settle(request_id, answered(1, "0.01")).await;
                settled.fetch_add(1, Ordering::SeqCst);
            }
        };
        let callers = futures_util::future::join_all((0..8).map(|_| caller()));
        let (moved, _) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                store.store.move_merchant(target, merchant_id, PATIENCE).await.unwrap()
            },
            callers
        );
        let settled = i64::try_from(settled.into_inner()).unwrap();
        assert_eq!(moved.rows["requests"], settled);
        let found = target.read(move |conn| wallets::find(conn, merchant_id, connection.wallet_id));
        let cents = 100_000 - settled;
        let left = amount(&format!("{}.{:02}", cents / 100, cents % 100));
        assert_eq!(found.await.unwrap().unwrap().balance, left);
        assert_audited(target).await;
        assert_audited(&store.store).await;
    });
}
