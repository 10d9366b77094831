//! Tests of backups of a SQLite file under load, and of their restore.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tollgate_domain::{MerchantId, WalletId};
use tollgate_store::backup::{self, BackupError};
use tollgate_store::{DatabaseUrl, OpenError, Options, SettleOutcome, Store, wallets};
use tollgate_testkit::each_store;
use tollgate_testkit::store::{TestStore, amount, answered};

fn file(store: &TestStore) -> Option<&Path> {
    match &store.url {
        DatabaseUrl::Sqlite(file) => Some(file),
        _ => None,
    }
}

fn options(store: &TestStore, serve: bool) -> Options {
    Options { serve, clock: store.clock.clone(), ..Options::default() }
}

async fn one_call(store: &TestStore, merchant_id: MerchantId, key: tollgate_domain::SecretKeyId) {
    let call = store.call(merchant_id, key);
    let request_id = call.request_id;
    store.store.admit(Box::new(call)).await.unwrap().unwrap();
    let outcome = store.store.settle(request_id, answered(1_000, "1")).await;
    assert!(matches!(outcome, SettleOutcome::Settled(_)), "{outcome:?}");
}

/// The number of calls that a merchant's own wallet has paid, at one USD each.
async fn paid(store: &Store, merchant_id: MerchantId, wallet_id: WalletId) -> i64 {
    let found = store.read(move |conn| wallets::find(conn, merchant_id, wallet_id)).await;
    -found.unwrap().unwrap().balance.units() / amount("1").units()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A merchant with two calls, and a backup that was made between them.
async fn backed_up(store: &TestStore, file: &Path) -> (MerchantId, WalletId, PathBuf) {
    let merchant = store.merchant().await;
    let key = store.secret_key_id(&merchant).await;
    let (merchant_id, wallet_id) = (merchant.merchant.merchant_id, merchant.merchant.wallet_id);
    one_call(store, merchant_id, key).await;
    let copy = file.with_extension("backup");
    backup::back_up(&store.url, &copy).unwrap();
    one_call(store, merchant_id, key).await;
    (merchant_id, wallet_id, copy)
}

/// Copies a database with its log, as a snapshot of the file system does.
fn copied(file: &Path, extension: &str) -> (PathBuf, DatabaseUrl) {
    let copy = file.with_extension(extension);
    for suffix in ["", "-wal"] {
        std::fs::copy(beside(file, suffix), beside(&copy, suffix)).unwrap();
    }
    (copy.clone(), DatabaseUrl::Sqlite(copy))
}

/// The database at a path has this number of calls.
async fn assert_paid(
    store: &TestStore,
    path: &Path,
    merchant_id: MerchantId,
    wallet_id: WalletId,
    calls: i64,
) {
    let url = DatabaseUrl::Sqlite(path.to_owned());
    let store = Store::open(&url, &options(store, true)).unwrap();
    assert_eq!(paid(&store, merchant_id, wallet_id).await, calls, "{}", path.display());
    assert_eq!(store.audit().await.unwrap().differences, []);
    store.close().await.unwrap();
}

#[test]
fn a_backup_under_load_has_every_call_that_was_answered_before_it_began() {
    each_store(async |store| {
        let Some(file) = file(store) else { return };
        let merchant = store.merchant().await;
        let key = store.secret_key_id(&merchant).await;
        let (merchant_id, wallet_id) = (merchant.merchant.merchant_id, merchant.merchant.wallet_id);
        let (answered, stop) = (AtomicI64::new(0), AtomicBool::new(false));
        let load = async {
            while !stop.load(Ordering::SeqCst) {
                one_call(store, merchant_id, key).await;
                answered.fetch_add(1, Ordering::SeqCst);
            }
        };
        let backups = async {
            for number in 0..10 {
                let copy = file.with_extension(format!("backup-{number}"));
                let before = answered.load(Ordering::SeqCst);
                let (url, to) = (store.url.clone(), copy.clone());
                let copied = tokio::task::spawn_blocking(move || backup::back_up(&url, &to));
                assert!(copied.await.unwrap().unwrap() > 0);
                let after = answered.load(Ordering::SeqCst) + 1;
                let mode = std::fs::metadata(&copy).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600);
                let copied = Store::open(&DatabaseUrl::Sqlite(copy), &options(store, false));
                let copied = copied.unwrap();
                let paid = paid(&copied, merchant_id, wallet_id).await;
                assert!((before..=after).contains(&paid), "{before} {paid} {after}");
                assert_eq!(copied.audit().await.unwrap().differences, []);
                copied.close().await.unwrap();
            }
            stop.store(true, Ordering::SeqCst);
        };
        tokio::join!(load, backups);
    });
}

#[test]
fn a_backup_is_written_to_a_new_file_and_of_a_file() {
    each_store(async |store| {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("backup.db");
        if file(store).is_none() {
            let refused = backup::back_up(&store.url, &to);
            assert!(matches!(refused, Err(BackupError::NotSqlite)), "{refused:?}");
            return;
        }
        std::fs::write(&to, "mine").unwrap();
        let refused = backup::back_up(&store.url, &to);
        assert!(matches!(refused, Err(BackupError::Exists(_))), "{refused:?}");
        assert_eq!(std::fs::read(&to).unwrap(), b"mine");
        let nowhere = DatabaseUrl::Sqlite(folder.path().join("none.db"));
        let refused = backup::back_up(&nowhere, &folder.path().join("copy.db"));
        assert!(matches!(refused, Err(BackupError::Missing(_))), "{refused:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    });
}

#[test]
fn a_restored_backup_is_the_database_as_it_was_and_what_was_there_is_kept() {
    each_store(async |store| {
        let Some(file) = file(store) else { return };
        let (merchant_id, wallet_id, copy) = backed_up(store, file).await;

        let refused = backup::restore(&store.url, &copy);
        assert!(matches!(refused, Err(BackupError::InUse)), "{refused:?}");
        // This process has the file itself open.
        let (file, url) = &copied(file, "home");
        // A damaged backup, and a file that is no database, change nothing.
        let mut bytes = std::fs::read(&copy).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle - 4_096..middle].fill(0xff);
        let damaged = file.with_extension("damaged");
        std::fs::write(&damaged, bytes).unwrap();
        let refused = backup::restore(url, &damaged);
        assert!(matches!(refused, Err(BackupError::Damaged(..))), "{refused:?}");
        let other = file.with_extension("other");
        std::fs::write(&other, "no database").unwrap();
        let refused = backup::restore(url, &other);
        assert!(matches!(refused, Err(BackupError::Copy(..))), "{refused:?}");
        let empty = file.with_extension("empty");
        std::fs::write(&empty, "").unwrap();
        let refused = backup::restore(url, &empty);
        assert!(matches!(refused, Err(BackupError::Schema(..))), "{refused:?}");
        assert_paid(store, file, merchant_id, wallet_id, 2).await;

        let replaced = backup::restore(url, &copy).unwrap().unwrap();
        assert_eq!(replaced, beside(file, ".replaced"));
        for suffix in ["-wal", "-shm"] {
            assert!(!beside(&copy, suffix).exists(), "{suffix}");
        }
        for (path, calls) in [(file, 1), (&replaced, 2)] {
            assert_paid(store, path, merchant_id, wallet_id, calls).await;
        }
        // The first one is undone.
        let again = backup::restore(url, &replaced).unwrap().unwrap();
        assert_eq!(again, beside(file, ".replaced-2"));
        for (path, calls) in [(file, 2), (&replaced, 2), (&again, 1)] {
            assert_paid(store, path, merchant_id, wallet_id, calls).await;
        }
    });
}

#[test]
fn sqlites_log_of_a_process_that_was_killed_stays_with_its_database() {
    each_store(async |store| {
        let Some(file) = file(store) else { return };
        let (merchant_id, wallet_id, copy) = backed_up(store, file).await;
        // As the files after a kill.
        let log = std::fs::read(beside(file, "-wal")).unwrap();
        let (killed, url) = copied(file, "killed");
        let (home, home_url) = copied(file, "home");
        let link = file.with_extension("link");
        std::os::unix::fs::symlink(&killed, &link).unwrap();

        std::fs::write(beside(&home, ".replaced-wal"), "of another file").unwrap();
        let replaced = backup::restore(&home_url, &link).unwrap().unwrap();
        assert_eq!(replaced, beside(&home, ".replaced-2"));
        assert_paid(store, &home, merchant_id, wallet_id, 2).await;

        let replaced = backup::restore(&url, &copy).unwrap().unwrap();
        for (path, calls) in [(&killed, 1), (&replaced, 2)] {
            assert_paid(store, path, merchant_id, wallet_id, calls).await;
        }

        // A database that is damaged, and one that is gone, have a log.
        for content in [Some(vec![0xff; 8_192]), None] {
            std::fs::remove_file(&killed).unwrap();
            std::fs::write(beside(&killed, "-wal"), &log).unwrap();
            if let Some(content) = &content {
                std::fs::write(&killed, content).unwrap();
            }
            let replaced = backup::restore(&url, &copy).unwrap();
            assert_eq!(replaced.map(|path| std::fs::read(path).unwrap()), content);
            let kept =
                beside(&killed, if content.is_some() { ".replaced-2" } else { ".replaced-3" });
            assert_eq!(std::fs::read(beside(&kept, "-wal")).unwrap(), log);
            assert_paid(store, &killed, merchant_id, wallet_id, 1).await;
        }
        // Another program has it open.
        let reader = rusqlite::Connection::open(&killed).unwrap();
        let read = "SELECT count(*) FROM requests";
        reader.query_row(read, [], |row| row.get::<_, i64>(0)).unwrap();
        let refused = backup::restore(&url, &copy);
        assert!(matches!(refused, Err(BackupError::InUse)), "{refused:?}");
        assert_paid(store, &killed, merchant_id, wallet_id, 1).await;
    });
}

#[test]
fn a_damaged_file_is_not_served_from_after_a_crash() {
    each_store(async |store| {
        let Some(file) = file(store) else { return };
        let copy = file.with_extension("copy");
        backup::back_up(&store.url, &copy).unwrap();
        let url = DatabaseUrl::Sqlite(copy.clone());
        Store::open(&url, &options(store, true)).unwrap().close().await.unwrap();
        drop(Store::open(&url, &options(store, true)).unwrap());
        let mut bytes = std::fs::read(&copy).unwrap();
        let last = bytes.len() - 4_096;
        bytes[last..].fill(0xff);
        std::fs::write(&copy, bytes).unwrap();
        let refused = Store::open(&url, &options(store, true)).map(drop);
        assert!(matches!(refused, Err(OpenError::Damaged(_))), "{refused:?}");
    });
}
