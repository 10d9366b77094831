//! Tests of SQLite beside other users of its file: a long reader, a copy, a writer that keeps its lock.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use diesel::Connection;
use diesel::connection::SimpleConnection;
use diesel::sqlite::SqliteConnection;
use tokio::runtime::Handle;
use tollgate_domain::RequestStatus;
use tollgate_store::{
    DatabaseUrl, MigrationSteps, OpenError, Options, RecordArchive, SettleOutcome, Store, requests,
};
use tollgate_testkit::store::answered;
use tollgate_testkit::{TestStore, each_store};

/// A connection of another program, with the busy timeout of this service.
fn another(file: &Path) -> SqliteConnection {
    let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
    conn.batch_execute("PRAGMA busy_timeout = 10000").unwrap();
    conn
}

fn megabytes(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len() >> 20)
}

/// Repeats `work` until `stop` is set.
fn until(stop: &AtomicBool, mut work: impl FnMut()) {
    while !stop.load(Ordering::Relaxed) {
        work();
    }
}

struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs two hundred callers with `calls` calls each. Returns the time of the slowest step.
async fn load(store: &TestStore, calls: usize) -> Duration {
    let merchant = store.merchant().await;
    let key = store.secret_key_id(&merchant).await;
    let merchant_id = merchant.merchant.merchant_id;
    let callers = (0..200).map(|_| async {
        let mut slowest = Duration::ZERO;
        for _ in 0..calls {
            let call = store.call(merchant_id, key);
            let request_id = call.request_id;
            let begun = Instant::now();
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            slowest = slowest.max(begun.elapsed());
            let begun = Instant::now();
            let outcome = store.store.settle(request_id, answered(1_000, "0.001")).await;
            assert!(matches!(outcome, SettleOutcome::Settled(_)), "{outcome:?}");
            slowest = slowest.max(begun.elapsed());
        }
        slowest
    });
    futures_util::future::join_all(callers).await.into_iter().max().unwrap()
}

#[test]
fn two_hundred_writers_do_not_fail_beside_a_long_reader_a_backup_and_checkpoints() {
    each_store(async |store| {
        let DatabaseUrl::Sqlite(file) = &store.url else { return };
        let (wal, copy) = (file.with_extension("db-wal"), file.with_extension("copy"));
        let stop = AtomicBool::new(false);
        let mut reader = another(file);
        // Its snapshot stays until it ends, so the log cannot be emptied beyond it.
        reader.batch_execute("BEGIN; SELECT count(*) FROM requests").unwrap();
        let (mut backup, mut checkpointer, mut keeper) =
            (another(file), another(file), another(file));
        let vacuum = format!("VACUUM INTO '{}'", copy.display());
        let slowest = thread::scope(|scope| {
            scope.spawn(|| {
                until(&stop, || {
                    let _ = std::fs::remove_file(&copy);
                    backup.batch_execute(&vacuum).unwrap();
                    thread::sleep(Duration::from_millis(50));
                })
            });
            scope.spawn(|| {
                until(&stop, || {
                    // A busy log is an answer here, not an error.
                    let _ = checkpointer.batch_execute("PRAGMA wal_checkpoint(PASSIVE)");
                    thread::sleep(Duration::from_millis(20));
                })
            });
            scope.spawn(|| {
                until(&stop, || {
                    keeper.batch_execute("BEGIN IMMEDIATE").unwrap();
                    thread::sleep(Duration::from_millis(30));
                    keeper.batch_execute("ROLLBACK").unwrap();
                    thread::sleep(Duration::from_millis(200));
                })
            });
            // The other threads end with this block, even by a panic.
            let _stopped = StopGuard(&stop);
            let load = load(store, 10);
            tokio::task::block_in_place(|| Handle::current().block_on(load))
        });
        println!("the slowest step took {slowest:?}, the log has {} MB", megabytes(&wal));
        // Other programs may take a writer's turn, but a call waits for one of them only.
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");

        reader.batch_execute("ROLLBACK").unwrap();
        drop(reader);
        // The ledger moves the rest of the 16 MB of log, so the log is written from its beginning again.
        // Twelve loads write more than 40 MB.
        let mut largest = 0;
        for _ in 0..12 {
            load(store, 10).await;
            largest = largest.max(megabytes(&wal));
        }
        println!("without a long reader the log grows to {largest} MB");
        assert!(largest <= 32, "the log grows to {largest} MB");

        // The copy is a valid store, of one instant.
        let options = Options { clock: store.clock.clone(), ..Options::default() };
        let copied = Store::open(&DatabaseUrl::Sqlite(copy), &options).unwrap();
        let audit = copied.audit().await.unwrap();
        assert_eq!(audit.differences, []);
        assert!(audit.requests > 0);
        copied.close().await.unwrap();
    });
}

/// Calls wait for another program that writes, but no longer than a client does.
#[test]
fn a_writer_that_another_program_keeps_loses_no_settlement() {
    each_store(async |store| {
        let DatabaseUrl::Sqlite(file) = &store.url else { return };
        let merchant = store.merchant().await;
        let key = store.secret_key_id(&merchant).await;
        let call = store.call(merchant.merchant.merchant_id, key);
        let (request_id, merchant) = (call.request_id, merchant.merchant);
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let mut keeper = another(file);
        keeper.batch_execute("BEGIN IMMEDIATE").unwrap();
        let outcome = store.store.settle(request_id, answered(1_000, "0.5")).await;
        assert_eq!(outcome, SettleOutcome::NotSettled);
        assert_eq!(store.store.unjournaled(), 1);
        // A read shows the committed state: the call is pending.
        let find = move |conn: &mut _| {
            requests::find(conn, &RecordArchive::default(), merchant.merchant_id, request_id)
        };
        let found = store.store.read(find).await.unwrap().unwrap();
        assert_eq!(found.status, RequestStatus::Pending);
        keeper.batch_execute("ROLLBACK").unwrap();
        while store.store.unjournaled() > 0 {
            store.store.replay_journal().await.unwrap();
        }
        let wallet = store.wallet(merchant.merchant_id, merchant.wallet_id).await;
        assert_eq!(
            (wallet.balance.to_string(), wallet.held.to_string()),
            ("-0.5000000000".to_owned(), "0.0000000000".to_owned())
        );
    });
}

/// A settlement in memory that cannot be booked does not block the others.
#[test]
fn a_settlement_that_cannot_be_booked_keeps_no_other_in_memory() {
    each_store(async |store| {
        let DatabaseUrl::Sqlite(file) = &store.url else { return };
        let merchant = store.merchant().await;
        let key = store.secret_key_id(&merchant).await;
        let merchant = merchant.merchant;
        let mut calls = Vec::new();
        for _ in 0..2 {
            let call = store.call(merchant.merchant_id, key);
            calls.push(call.request_id);
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
        }
        let mut keeper = another(file);
        keeper.batch_execute("BEGIN IMMEDIATE").unwrap();
        for request_id in &calls {
            let outcome = store.store.settle(*request_id, answered(1_000, "0.5")).await;
            assert_eq!(outcome, SettleOutcome::NotSettled);
        }
        // The hold of the first call differs from the hold on its wallet.
        let change = |plus: &str| {
            format!(
                "UPDATE open_calls SET merchant_hold = merchant_hold {plus} WHERE request_id = \
                 (SELECT min(request_id) FROM open_calls)"
            )
        };
        keeper.batch_execute(&format!("{}; COMMIT", change("+ 40000000000000"))).unwrap();
        let _ = store.store.replay_journal().await.unwrap_err();
        assert_eq!(store.store.unjournaled(), 1);
        let wallet = store.wallet(merchant.merchant_id, merchant.wallet_id).await;
        assert_eq!(wallet.balance.to_string(), "-0.5000000000", "the second is booked");
        keeper.batch_execute(&change("- 40000000000000")).unwrap();
        store.store.replay_journal().await.unwrap();
        let wallet = store.wallet(merchant.merchant_id, merchant.wallet_id).await;
        assert_eq!(wallet.balance.to_string(), "-1.0000000000");
        assert_eq!(store.store.unjournaled(), 0);
    });
}

/// The writes of operations and leases are moved out of the log, too.
#[test]
fn the_log_does_not_grow_without_calls() {
    each_store(async |store| {
        let DatabaseUrl::Sqlite(file) = &store.url else { return };
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let mut largest = 0;
        for _ in 0..30 {
            for _ in 0..100 {
                store.connection(merchant_id, "1").await;
            }
            largest = largest.max(megabytes(&file.with_extension("db-wal")));
        }
        println!("the log grows to {largest} MB");
        assert!(largest <= 32, "the log grows to {largest} MB");
    });
}

/// The statements of a database with a table of migrations that is empty.
const NOTHING_MIGRATED: &str = "PRAGMA journal_mode = WAL; CREATE TABLE __diesel_schema_migrations \
    (version VARCHAR(50) PRIMARY KEY NOT NULL, run_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)";

/// A process that dies in the middle of a migration changes nothing. The next one migrates again.
#[test]
fn a_schema_that_was_not_completed_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.db");
    let url = DatabaseUrl::Sqlite(file.clone());
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations/sqlite");
    let names = std::fs::read_dir(&migrations).unwrap().map(|entry| entry.unwrap().path());
    let names: Vec<_> = names.collect();
    // The others change what the first one makes.
    let first = names.iter().min().unwrap();
    let sql = std::fs::read_to_string(first.join("up.sql")).unwrap();
    let mut conn = another(&file);
    conn.batch_execute(NOTHING_MIGRATED).unwrap();
    conn.batch_execute(&format!("BEGIN; {sql}")).unwrap();
    drop(conn);
    let check = Options { migrate: false, ..Options::default() };
    assert!(Store::open(&url, &check).is_err());
    assert_eq!(Store::migrate(&url, MigrationSteps::Expand).unwrap(), names.len());
    assert!(Store::open(&url, &check).is_ok());
    // A schema that only a newer program knows is not changed.
    let newer = "INSERT INTO __diesel_schema_migrations (version) VALUES ('29990101000000');
        INSERT INTO breaking_migrations (version) VALUES ('29990101000000')";
    another(&file).batch_execute(newer).unwrap();
    let refused = Store::open(&url, &Options::default());
    let why = refused.err().map(|why| why.to_string()).unwrap_or_default();
    assert!(why.contains("29990101000000") && why.contains("does not know"), "{why}");
}

/// The serving process would not know the new schema.
#[test]
fn a_schema_is_not_changed_while_somebody_serves() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.db");
    another(&file).batch_execute(NOTHING_MIGRATED).unwrap();
    let url = DatabaseUrl::Sqlite(file.clone());
    let ways = || {
        let serve = Options { serve: true, ..Options::default() };
        let opened =
            [serve, Options::default()].map(|options| Store::open(&url, &options).map(drop));
        let [serving, command] = opened.map(|opened| opened.err().map(|why| why.to_string()));
        [
            serving,
            command,
            Store::migrate(&url, MigrationSteps::Expand).err().map(|why| why.to_string()),
        ]
    };

    let lock = std::fs::File::create(folder.path().join("tollgate.db.lock")).unwrap();
    lock.lock().unwrap();
    for why in ways() {
        assert!(why.is_some_and(|why| why.contains("another tollgate serves")));
    }

    drop(lock);
    assert!(Store::migrate(&url, MigrationSteps::Expand).unwrap() > 0);
    assert_eq!(ways(), [None, None, None]);
    // Beside a process that serves, if there is nothing to migrate.
    let lock = std::fs::File::create(folder.path().join("tollgate.db.lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(Store::migrate(&url, MigrationSteps::Expand).unwrap(), 0);
}

/// A script may start a service and make a merchant at once.
#[test]
fn a_command_waits_for_a_service_that_is_just_making_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.db");
    let url = DatabaseUrl::Sqlite(file.clone());
    let mut keeper = another(&file);
    keeper.batch_execute("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE").unwrap();
    thread::scope(|scope| {
        let open = |serve| {
            let (url, options) = (url.clone(), Options { serve, ..Options::default() });
            scope.spawn(move || Store::open(&url, &options))
        };
        let service = open(true);
        let lock = folder.path().join("tollgate.db.lock");
        let is_locked = || std::fs::File::open(&lock).is_ok_and(|file| file.try_lock().is_err());
        while !is_locked() {
            thread::sleep(Duration::from_millis(2));
        }
        let command = open(false);
        thread::sleep(Duration::from_millis(300));
        keeper.batch_execute("ROLLBACK").unwrap();
        let opened = [service, command].map(|opened| opened.join().unwrap());
        assert!(opened.iter().all(Result::is_ok));
    });
}

#[test]
fn what_is_made_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::Sqlite(folder.path().join("tollgate.db"));
    let store = Store::open(&url, &Options { serve: true, ..Options::default() }).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(store.renew_lease()).unwrap();
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", file.file_name());
        names.push(file.file_name());
    }
    for name in ["tollgate.db", "tollgate.db.lock", "tollgate.db-wal"] {
        assert!(names.iter().any(|file| file == name), "{name}: {names:?}");
    }
    drop(store);
}

fn serving(file: &Path) -> Result<Store, OpenError> {
    let options = Options { serve: true, ..Options::default() };
    Store::open(&DatabaseUrl::Sqlite(file.to_owned()), &options)
}

#[test]
fn a_file_with_two_names_is_served_from_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.db");
    let link = folder.path().join("link.db");
    // A link to a file that does not exist yet, as on the first start.
    std::os::unix::fs::symlink("tollgate.db", &link).unwrap();
    let linked_folder = folder.path().join("folder");
    std::os::unix::fs::symlink(folder.path(), &linked_folder).unwrap();
    let first = serving(&link).unwrap();
    for name in [&file, &link, &linked_folder.join("tollgate.db")] {
        assert!(matches!(serving(name), Err(OpenError::InUse)), "{}", name.display());
    }
    drop(first);
    assert!(serving(&file).is_ok());
}
