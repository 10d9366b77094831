//! Tests of a process that serves from a SQLite file.
//!
//! Its answers are in the file and SQLite's log, and the next process finds them there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use diesel::Connection;
use diesel::connection::SimpleConnection;
use diesel::sqlite::SqliteConnection;
use tokio::runtime::Handle;
use tollgate_domain::admission::Call;
use tollgate_domain::*;
use tollgate_pricing::Amount;
use tollgate_store::{
    DatabaseUrl, Options, RecordArchive, SettleOutcome, Store, StoreError, requests, spend_keys,
    wallets,
};
use tollgate_testkit::store::{TestStore, amount, answered, each_store};

/// A customer on SQLite whose calls cost one USD each.
struct SqliteCustomer {
    file: PathBuf,
    merchant_id: MerchantId,
    wallet_id: WalletId,
    spend_key: SpendKey,
    key: Key,
}

impl SqliteCustomer {
    async fn of(store: &TestStore) -> Option<Self> {
        let DatabaseUrl::Sqlite(file) = &store.url else { return None };
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let wallet_id = store.connection(merchant_id, "1000").await.wallet_id;
        let (spend_key, key) =
            store.spend_key(merchant_id, Some(wallet_id), SpendRules::default()).await;
        Some(Self { file: file.clone(), merchant_id, wallet_id, spend_key, key })
    }

    fn call(&self, store: &TestStore) -> Call {
        store.call_with(&self.spend_key, &self.key)
    }

    async fn admitted(&self, store: &TestStore) -> RequestId {
        let call = self.call(store);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        request_id
    }

    async fn calls(&self, store: &TestStore) {
        let request_id = self.admitted(store).await;
        let outcome = store.store.settle(request_id, answered(1_000, "1")).await;
        assert!(matches!(outcome, SettleOutcome::Settled(_)), "{outcome:?}");
    }

    /// A connection of another program.
    fn another(&self) -> SqliteConnection {
        let mut conn = SqliteConnection::establish(self.file.to_str().unwrap()).unwrap();
        conn.batch_execute("PRAGMA busy_timeout = 10000").unwrap();
        conn
    }

    fn wal(&self) -> Vec<u8> {
        std::fs::read(format!("{}-wal", self.file.display())).unwrap()
    }

    /// The files that a process leaves if it dies now, with `wal` as SQLite's log.
    fn left_behind(&self, folder: &Path, wal: &[u8]) -> DatabaseUrl {
        let copy = folder.join("tollgate.db");
        std::fs::copy(&self.file, &copy).unwrap();
        std::fs::write(folder.join("tollgate.db-wal"), wal).unwrap();
        DatabaseUrl::Sqlite(copy)
    }

    /// The wallet as this store reads it.
    async fn wallet(&self, store: &Store) -> Wallet {
        let (merchant_id, wallet_id) = (self.merchant_id, self.wallet_id);
        let found = store.read(move |conn| wallets::find(conn, merchant_id, wallet_id)).await;
        found.unwrap().unwrap()
    }

    /// The number of calls that the wallet has paid.
    async fn paid(&self, store: &Store) -> i64 {
        let balance = self.wallet(store).await.balance;
        amount("1000").checked_sub(balance).unwrap().units() / amount("1").units()
    }
}

fn serving(store: &TestStore, url: &DatabaseUrl) -> Store {
    let options = Options { serve: true, clock: store.clock.clone(), ..Options::default() };
    Store::open(url, &options).unwrap()
}

/// Makes five calls that are in SQLite's log only. Earlier writes are in the file.
async fn five_calls(store: &TestStore, customer: &SqliteCustomer) {
    customer.another().batch_execute("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    for _ in 0..5 {
        customer.calls(store).await;
    }
}

#[test]
fn a_copy_of_the_file_and_its_log_has_every_call_that_was_answered() {
    each_store(async |store| {
        let Some(customer) = SqliteCustomer::of(store).await else { return };
        five_calls(store, &customer).await;
        for number in 1..=20 {
            customer.calls(store).await;
            let folder = tempfile::tempdir().unwrap();
            let url = customer.left_behind(folder.path(), &customer.wal());
            // A subcommand sees the calls as well as the next service does.
            let options = Options { clock: store.clock.clone(), ..Options::default() };
            let next = Store::open(&url, &options).unwrap();
            assert_eq!(customer.paid(&next).await, 5 + number);
            assert_eq!(next.audit().await.unwrap().differences, []);
            next.close().await.unwrap();
        }
    });
}

#[test]
fn a_log_of_sqlite_that_is_cut_or_damaged_counts_as_far_as_it_is_whole() {
    each_store(async |store| {
        let Some(customer) = SqliteCustomer::of(store).await else { return };
        five_calls(store, &customer).await;
        let wal = customer.wal();
        let (mut cuts, mut flips) = (Vec::new(), Vec::new());
        for at in (0..wal.len()).step_by(wal.len() / 30) {
            for (paid, is_cut) in [(&mut cuts, true), (&mut flips, false)] {
                let mut wal = wal.clone();
                match is_cut {
                    true => wal.truncate(at),
                    false => *wal.get_mut(at).unwrap() ^= 0b100,
                }
                let folder = tempfile::tempdir().unwrap();
                let next = serving(store, &customer.left_behind(folder.path(), &wal));
                assert_eq!(next.audit().await.unwrap().differences, []);
                paid.push(customer.paid(&next).await);
                next.close().await.unwrap();
            }
        }
        for paid in [cuts, flips] {
            assert!(paid.is_sorted(), "{paid:?}");
            assert_eq!((paid.first(), paid.last()), (Some(&0), Some(&4)), "{paid:?}");
        }
    });
}

#[test]
fn a_call_that_was_open_when_its_process_died_is_swept_by_the_next_one() {
    each_store(async |store| {
        let Some(customer) = SqliteCustomer::of(store).await else { return };
        let open = customer.admitted(store).await;
        let folder = tempfile::tempdir().unwrap();
        let next = serving(store, &customer.left_behind(folder.path(), &customer.wal()));
        // The copy has another lock file, so the process that served before may be alive.
        assert_eq!(next.sweep().await.unwrap(), 0);
        assert!(customer.wallet(&next).await.held.is_positive());
        store.expire_other_leases(&next).await;
        assert_eq!(next.sweep().await.unwrap(), 1);
        assert_eq!(customer.wallet(&next).await.held, Amount::ZERO);
        let merchant_id = customer.merchant_id;
        let found = next
            .read(move |conn| requests::find(conn, &RecordArchive::default(), merchant_id, open))
            .await;
        assert_eq!(found.unwrap().unwrap().status, RequestStatus::Error);
        next.close().await.unwrap();
        store.store.renew_lease().await.unwrap();
    });
}

/// A process with the same lock file knows that the one before has ended.
#[test]
fn the_next_process_on_the_same_file_need_not_wait_for_a_lease() {
    each_store(async |store| {
        let Some(customer) = SqliteCustomer::of(store).await else { return };
        let folder = tempfile::tempdir().unwrap();
        let url = customer.left_behind(folder.path(), &customer.wal());
        serving(store, &url).close().await.unwrap();
        let dying = serving(store, &url);
        let call = customer.call(store);
        dying.admit(Box::new(call)).await.unwrap().unwrap();
        // The drop releases the lock, and does not end the process's lease in the store.
        drop(dying);
        let next = loop {
            let options = Options { serve: true, clock: store.clock.clone(), ..Options::default() };
            match Store::open(&url, &options) {
                Ok(next) => break next,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!(next.sweep().await.unwrap(), 1);
        next.close().await.unwrap();
    });
}

#[test]
fn a_process_that_is_overtaken_admits_nothing_more_and_settles_what_it_has() {
    each_store(async |store| {
        let Some(customer) = SqliteCustomer::of(store).await else { return };
        let open = customer.admitted(store).await;
        let held = customer.wallet(&store.store).await.held;
        std::fs::remove_file(format!("{}.lock", customer.file.display())).unwrap();
        let second = serving(store, &store.url);
        second.renew_lease().await.unwrap();

        let refused = store.store.admit(Box::new(customer.call(store))).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        let overtaken = tokio::time::timeout(Duration::from_secs(5), store.store.overtaken());
        assert_eq!(overtaken.await, Ok(()));

        // The second process admits calls, and leaves the calls of the first to it.
        assert_eq!(second.sweep().await.unwrap(), 0);
        let call = customer.call(store);
        let of_second = call.request_id;
        second.admit(Box::new(call)).await.unwrap().unwrap();
        assert!(customer.wallet(&second).await.held > held);
        let settled = store.store.settle(open, answered(1_000, "1")).await;
        assert!(matches!(settled, SettleOutcome::Settled(_)), "{settled:?}");
        second.settle(of_second, answered(1_000, "1")).await;
        let wallet = customer.wallet(&second).await;
        assert_eq!((wallet.balance, wallet.held), (amount("998"), Amount::ZERO));
        assert_eq!(second.audit().await.unwrap().differences, []);
        second.close().await.unwrap();
    });
}

/// A command beside the service: its changes count for the very next call.
#[test]
fn what_another_process_writes_is_what_the_next_call_is_decided_by() {
    each_store(async |store| {
        let Some(customer) = SqliteCustomer::of(store).await else { return };
        let options = Options { clock: store.clock.clone(), ..Options::default() };
        let command = Store::open(&store.url, &options).unwrap();
        let (merchant_id, id) = (customer.merchant_id, customer.spend_key.spend_key_id);
        for _ in 0..20 {
            for (status, is_admitted) in
                [(SpendKeyStatus::Paused, false), (SpendKeyStatus::Active, true)]
            {
                let now = store.clock.now();
                let changes =
                    SpendKeyChanges { status: Some(status), ..SpendKeyChanges::default() };
                let change =
                    move |conn: &mut _| spend_keys::update(conn, merchant_id, id, changes, now);
                let changed = command.write(change).await.unwrap();
                assert!(matches!(changed, spend_keys::SpendKeyUpdate::SpendKey(_)));
                let call = customer.call(store);
                let request_id = call.request_id;
                let decided = store.store.admit(Box::new(call)).await.unwrap();
                assert_eq!(decided.is_ok(), is_admitted, "{status:?}");
                if is_admitted {
                    store.store.settle(request_id, answered(1_000, "1")).await;
                }
            }
        }
        command.close().await.unwrap();
    });
}

/// Each commit of the other program makes earlier reads stale.
#[test]
fn calls_are_booked_beside_a_program_that_keeps_writing() {
    each_store(async |store| {
        let Some(customer) = SqliteCustomer::of(store).await else { return };
        let (stop, mut other) = (AtomicBool::new(false), customer.another());
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    other.batch_execute("UPDATE merchants SET name = name").unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let calls = async {
                for _ in 0..50 {
                    customer.calls(store).await;
                }
                stop.store(true, Ordering::SeqCst);
            };
            tokio::task::block_in_place(|| Handle::current().block_on(calls));
        });
        assert_eq!(customer.paid(&store.store).await, 50);
    });
}

#[test]
fn a_read_after_a_call_sees_it() {
    each_store(async |store| {
        let Some(customer) = SqliteCustomer::of(store).await else { return };
        for number in 1..=200 {
            customer.calls(store).await;
            assert_eq!(customer.paid(&store.store).await, number);
        }
    });
}
