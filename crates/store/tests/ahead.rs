//! Books that are ahead of SQLite: what is in their log is not lost, and not booked twice.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diesel::Connection;
use diesel::connection::SimpleConnection;
use diesel::sqlite::SqliteConnection;
use tollgate_domain::*;
use tollgate_pricing::{Amount, Rate};
use tollgate_store::{DatabaseUrl, Options, SettleOutcome, Store, requests, spend_keys, wallets};
use tollgate_testkit::store::{TestStore, amount, answered, each_store};

/// What stands in the files of a ledger's log, by what is added to the database's name; the older first.
type Log = Vec<(&'static str, Vec<u8>)>;

/// A customer on SQLite whose calls cost one USD each.
struct Customer {
    file: PathBuf,
    merchant_id: MerchantId,
    wallet_id: WalletId,
    spend_key: SpendKey,
    key: Key,
}

impl Customer {
    async fn of(store: &TestStore) -> Option<Self> {
        let DatabaseUrl::Sqlite(file) = &store.url else { return None };
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let wallet_id = store.connection(merchant_id, "1000").await.wallet_id;
        let (spend_key, key) =
            store.spend_key(merchant_id, Some(wallet_id), SpendRules::default()).await;
        Some(Self { file: file.clone(), merchant_id, wallet_id, spend_key, key })
    }

    async fn admitted(&self, store: &TestStore) -> RequestId {
        let call = store.call_with(&self.spend_key, &self.key);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        request_id
    }

    async fn calls(&self, store: &TestStore) {
        let request_id = self.admitted(store).await;
        store.store.settle(request_id, answered(1_000, "1")).await;
    }

    /// Keeps SQLite's writer, so that the database cannot catch up.
    fn keeper(&self) -> SqliteConnection {
        let mut keeper = SqliteConnection::establish(self.file.to_str().unwrap()).unwrap();
        keeper.batch_execute("PRAGMA busy_timeout = 10000; BEGIN IMMEDIATE").unwrap();
        keeper
    }

    /// What is in the log: of each file as much as is not room for more.
    fn log(&self) -> Log {
        let mut files = ["-ledger-0", "-ledger-1"].map(|suffix| {
            let mut text = std::fs::read(format!("{}{suffix}", self.file.display())).unwrap();
            text.truncate(batches(&text));
            (suffix, text)
        });
        // A file begins with the number of its generation.
        files.sort_by_key(|(_, text)| {
            text.first_chunk().map_or(0, |generation| u64::from_le_bytes(*generation))
        });
        files.into()
    }

    /// What a process that dies now leaves behind, with so much of its log.
    fn left_behind(&self, folder: &Path, log: &Log) -> DatabaseUrl {
        let copy = folder.join("tollgate.db");
        for suffix in ["", "-wal"] {
            let name = format!("{}{suffix}", self.file.display());
            std::fs::copy(name, format!("{}{suffix}", copy.display())).unwrap();
        }
        for (suffix, text) in log {
            std::fs::write(format!("{}{suffix}", copy.display()), text).unwrap();
        }
        DatabaseUrl::Sqlite(copy)
    }

    /// The same, opened by the next process.
    async fn next_life(&self, store: &TestStore, folder: &Path, log: &Log) -> Store {
        let options = Options { serve: true, clock: store.clock.clone(), ..Options::default() };
        let next = Store::open(&self.left_behind(folder, log), &options).unwrap();
        assert_eq!(next.audit().await.unwrap().differences, []);
        next
    }

    /// The wallet in this life.
    async fn wallet(&self, store: &Store) -> Wallet {
        let (merchant_id, wallet_id) = (self.merchant_id, self.wallet_id);
        let found = store.read(move |conn| wallets::find(conn, merchant_id, wallet_id)).await;
        found.unwrap().unwrap()
    }
}

/// How long the batches of a file are: each begins with its generation, its length and a checksum.
fn batches(file: &[u8]) -> usize {
    let generation = file.first_chunk::<8>().filter(|generation| **generation != [0; 8]);
    let mut end = 0;
    while generation.is_some()
        && let Some(batch) = file.get(end..)
        && batch.first_chunk() == generation
        && let Some(length) = batch.get(8..).and_then(|rest| rest.first_chunk())
    {
        end += 16 + usize::try_from(u32::from_le_bytes(*length)).unwrap();
    }
    end
}

fn length(log: &Log) -> usize {
    log.iter().map(|(_, text)| text.len()).sum()
}

/// So much of the log as was there when this byte of it was not.
fn cut_at(log: &Log, mut end: usize) -> Log {
    let mut log = log.clone();
    for (_, text) in &mut log {
        text.truncate(end);
        end -= text.len();
    }
    log
}

fn byte_of(log: &mut Log, at: usize) -> &mut u8 {
    log.iter_mut().flat_map(|(_, text)| text).nth(at).unwrap()
}

#[test]
fn a_log_is_booked_as_far_as_it_is_whole_wherever_it_was_cut() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
        let mut keeper = customer.keeper();
        for _ in 0..5 {
            customer.calls(store).await;
        }
        let log = customer.log();
        let end = length(&log);
        let mut booked = Vec::new();
        for cut in (0..end).step_by(end / 40).chain([end - 1, end]) {
            let folder = tempfile::tempdir().unwrap();
            let next = customer.next_life(store, folder.path(), &cut_at(&log, cut)).await;
            let wallet = customer.wallet(&next).await;
            let paid = amount("1000").checked_sub(wallet.balance).unwrap();
            booked.push((paid.units() / amount("1").units(), wallet.held.is_positive()));
            next.close().await.unwrap();
        }
        assert_eq!(booked.first(), Some(&(0, false)), "nothing of no log");
        assert_eq!(booked.last(), Some(&(5, false)), "all of a whole one");
        assert!(booked.is_sorted_by_key(|(paid, _)| *paid), "{booked:?}");
        assert!(booked.contains(&(2, true)) || booked.contains(&(3, true)), "{booked:?}");
        keeper.batch_execute("ROLLBACK").unwrap();
    });
}

#[test]
fn a_damaged_log_is_not_read_beyond_the_damage() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
        let mut keeper = customer.keeper();
        for _ in 0..5 {
            customer.calls(store).await;
        }
        let log = customer.log();
        let end = length(&log);
        for at in (0..end).step_by(end / 20) {
            let mut damaged = log.clone();
            *byte_of(&mut damaged, at) ^= 0x10;
            let folder = tempfile::tempdir().unwrap();
            let next = customer.next_life(store, folder.path(), &damaged).await;
            assert!(customer.wallet(&next).await.balance > amount("995"), "damaged at {at}");
            next.close().await.unwrap();
        }
        keeper.batch_execute("ROLLBACK").unwrap();
    });
}

#[test]
fn a_log_that_the_database_has_is_not_booked_again() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
        let mut keeper = customer.keeper();
        customer.calls(store).await;
        let open = customer.admitted(store).await;
        let log = customer.log();
        keeper.batch_execute("ROLLBACK").unwrap();
        drop(keeper);
        // The database catches up; then the call that was open ends, too.
        assert_eq!(customer.wallet(&store.store).await.balance, amount("999"));
        store.store.settle(open, answered(1_000, "1")).await;
        let wallet = customer.wallet(&store.store).await;
        assert_eq!((wallet.balance, wallet.held), (amount("998"), Amount::ZERO));
        for _ in 0..2 {
            let folder = tempfile::tempdir().unwrap();
            let next = customer.next_life(store, folder.path(), &log).await;
            assert_eq!(customer.wallet(&next).await, wallet);
            next.close().await.unwrap();
        }
    });
}

/// What is being written is in nobody's books: a settlement that is tried again waits.
#[test]
fn a_call_that_is_being_written_is_not_settled_again() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
        let mut keeper = customer.keeper();
        let request_id = customer.admitted(store).await;
        let settled = store.store.settle(request_id, answered(1_000, "1")).await;
        assert!(matches!(settled, SettleOutcome::Settled(_)), "{settled:?}");
        // Once both files are in use, what stands in the older is with the scribe, who cannot write it.
        let (begun, mut calls) = (Instant::now(), 1);
        while customer.log().iter().any(|(_, text)| text.is_empty()) {
            assert!(begun.elapsed() < Duration::from_secs(5), "nothing is handed over");
            customer.calls(store).await;
            calls += 1;
        }
        let again = {
            let store = store.store.clone();
            tokio::spawn(async move { store.settle(request_id, answered(1_000, "1")).await })
        };
        keeper.batch_execute("ROLLBACK").unwrap();
        let again = again.await.unwrap();
        assert!(matches!(again, SettleOutcome::AlreadySettled), "{again:?}");
        let paid = amount("1000").checked_sub(customer.wallet(&store.store).await.balance).unwrap();
        assert_eq!(paid.units(), calls * amount("1").units());
    });
}

#[test]
fn a_call_that_was_open_when_its_process_died_is_swept_by_the_next_one() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
        let mut keeper = customer.keeper();
        let open = customer.admitted(store).await;
        let log = customer.log();
        let folder = tempfile::tempdir().unwrap();
        let next = customer.next_life(store, folder.path(), &log).await;
        assert!(customer.wallet(&next).await.held.is_positive());
        assert_eq!(next.sweep().await.unwrap(), 1);
        assert_eq!(customer.wallet(&next).await.held, Amount::ZERO);
        let merchant_id = customer.merchant_id;
        let found = next.read(move |conn| requests::find(conn, merchant_id, open)).await;
        assert_eq!(found.unwrap().unwrap().status, RequestStatus::Error);
        next.close().await.unwrap();
        keeper.batch_execute("ROLLBACK").unwrap();
    });
}

/// A command sees what a process that died has booked, without serving.
#[test]
fn a_command_after_a_crash_sees_what_was_booked() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
        let mut keeper = customer.keeper();
        customer.calls(store).await;
        let log = customer.log();
        let folder = tempfile::tempdir().unwrap();
        let options = Options { clock: store.clock.clone(), ..Options::default() };
        let command = Store::open(&customer.left_behind(folder.path(), &log), &options).unwrap();
        assert_eq!(customer.wallet(&command).await.balance, amount("999"));
        command.close().await.unwrap();
        keeper.batch_execute("ROLLBACK").unwrap();
    });
}

/// However whoever books it again is set.
#[test]
fn what_a_log_has_is_booked_again_at_the_rate_at_which_it_was_booked() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
        let merchant_id = customer.merchant_id;
        let new = NewSpendKey {
            name: "Metered".to_owned(),
            wallet_id: Some(customer.wallet_id),
            meter_id: Some(store.meter(merchant_id, &[(0, "10")]).await.meter_id),
            rules: SpendRules::default(),
        };
        let now = store.clock.now();
        let make = move |conn: &mut _| spend_keys::create(conn, merchant_id, &new, now);
        let (spend_key, key) = store.store.write(make).await.unwrap().unwrap();
        let customer = Customer { spend_key, key, ..customer };
        let mut keeper = customer.keeper();
        let request_id = customer.admitted(store).await;
        let settled = store.store.settle(request_id, answered(1_000, "1")).await;
        let SettleOutcome::Settled(settled) = settled else { panic!("{settled:?}") };
        let log = customer.log();
        assert_eq!(store.store.service_charge_rate(), Rate::ZERO);
        let folder = tempfile::tempdir().unwrap();
        let service_charge_rate = "0.5".parse().unwrap();
        let clock = store.clock.clone();
        let options = Options { clock, service_charge_rate, ..Options::default() };
        let command = Store::open(&customer.left_behind(folder.path(), &log), &options).unwrap();
        let find = move |conn: &mut _| requests::find(conn, merchant_id, request_id);
        assert_eq!(command.read(find).await.unwrap().unwrap().quote, settled.quote);
        command.close().await.unwrap();
        keeper.batch_execute("ROLLBACK").unwrap();
    });
}

/// A command beside the service, as `tollgate` has them: what it has done counts for the very next call.
#[test]
fn what_another_process_writes_is_what_the_next_call_is_decided_by() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
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
                assert!(matches!(changed, spend_keys::Updated::SpendKey(_)));
                let call = store.call_with(&customer.spend_key, &customer.key);
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

#[test]
fn whoever_reads_after_a_call_sees_it() {
    each_store(async |store| {
        let Some(customer) = Customer::of(store).await else { return };
        for number in 1..=200 {
            customer.calls(store).await;
            let paid = amount("1000").checked_sub(customer.wallet(&store.store).await.balance);
            assert_eq!(paid.unwrap().units(), number * amount("1").units());
        }
    });
}
