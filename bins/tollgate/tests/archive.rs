//! `tollgate archive` as users run it, and killed at its steps.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tollgate_domain::admission::CallKey;
use tollgate_domain::{Clock, MerchantId, NewConnection, TransactionKind};
use tollgate_store::wallets::{self, WalletMovement};
use tollgate_store::{Conn, Options, Page, Store, StoreError, connections, merchants};
use tollgate_testkit::postgres;
use tollgate_testkit::store::{a_call, amount, answered, block_on};
use tollgate_testkit::tools;

use crate::site::{Site, assert_audit_clean, each_site};

const DAY: i64 = 24 * 3_600_000;

/// Adds an archive to the configuration.
fn set_archive(site: &Site, keep_days: u32) {
    let path = site.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let folder = site.path().join("archive");
    let archive =
        format!("archive_url = \"file://{}\"\nrecords_keep_days = {keep_days}\n", folder.display());
    std::fs::write(&path, archive + &text).unwrap();
}

/// Makes calls of the last days, spread evenly, in the database of a site. Returns their merchant.
async fn make_calls(site: &Site, days: i64, count: i64) -> MerchantId {
    let made = site.json(&["merchant", "create", "Acme"]);
    let merchant_id: MerchantId = made["merchant_id"].as_str().unwrap().parse().unwrap();
    let now = Clock::system().now();
    let clock = Clock::manual(now.plus_millis(-days * DAY));
    let options = Options { clock: clock.clone(), ..Options::default() };
    let url = match &site.database {
        Some(database) => database.url().parse().unwrap(),
        None => format!("sqlite:{}/tollgate.db", site.path().display()).parse().unwrap(),
    };
    let store = Store::open(&url, &options).unwrap();
    let begin = clock.now();
    let set_up = move |conn: &mut Conn| {
        let made = connections::create(conn, merchant_id, &NewConnection::default(), begin)?;
        let customer = made.unwrap().connection;
        let credit = WalletMovement {
            kind: TransactionKind::Credit,
            amount: amount("100000"),
            description: None,
        };
        let _ = wallets::book(conn, merchant_id, customer.wallet_id, &credit, begin)?;
        let newest = Page { after: None, limit: 1 };
        let keys = merchants::list_secret_keys(conn, merchant_id, &newest)?;
        Ok::<_, StoreError>((customer.connection_id, keys[0].secret_key_id))
    };
    let (connection_id, secret_key_id) = store.write(set_up).await.unwrap();
    for number in 0..count {
        let mut call = a_call(merchant_id, CallKey::Secret(secret_key_id), clock.now());
        call.connection_id = (number % 3 > 0).then_some(connection_id);
        let id = call.request_id;
        store.admit(Box::new(call)).await.unwrap().unwrap();
        store.settle(id, answered(1_000, &format!("0.{:010}", number * 7_777_777))).await;
        clock.advance_millis(days * DAY / count);
    }
    store.fold().await.unwrap();
    store.close().await.unwrap();
    merchant_id
}

/// The CSV of all records of a merchant.
fn records(site: &Site, merchant_id: MerchantId) -> String {
    let merchant = merchant_id.to_string();
    let output = site.run(&["requests", "--merchant", &merchant, "--csv"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Lets a minute pass for the lease of a process that was killed.
fn lapse_lease(site: &Site) {
    site.execute("UPDATE archive_state SET lease_until = 0");
}

fn sealed_months(site: &Site) -> usize {
    let output = site.run(&["archive", "list", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().count()
}

/// The system calls after which `archive run` is killed, and after how many of them. Files and folders are made, made durable
/// and named. Temporary files are removed. A commit to SQLite is an `fdatasync`. A statement to PostgreSQL is a `sendto`.
const FILE_STEPS: Steps = Steps {
    calls: "?mkdir,?mkdirat,fsync,?rename,?renameat,?renameat2,?unlink,?unlinkat",
    numbers: 1..=16,
    stride: 1,
    pause_micros: 30_000,
};
const SQLITE_STEPS: Steps =
    Steps { calls: "fdatasync", numbers: 5..=24, stride: 1, pause_micros: 30_000 };
const POSTGRES_STEPS: Steps =
    Steps { calls: "sendto", numbers: 50..=220, stride: 11, pause_micros: 5_000 };

struct Steps {
    calls: &'static str,
    numbers: RangeInclusive<usize>,
    stride: usize,
    /// The time before each call, in which the process can be killed.
    pause_micros: u32,
}

impl Steps {
    /// strace with these calls, each of which waits.
    fn tracer(&self, lines: &Path) -> Command {
        let mut tracer = Command::new("strace");
        tracer.args(["-f", "-qq", "-o"]).arg(lines).args([
            "-e",
            &format!("trace={}", self.calls),
            "-e",
            &format!("inject={}:delay_enter={}", self.calls, self.pause_micros),
        ]);
        tracer
    }
}

/// Runs `archive run` and kills it after `number` of the calls, as a rule before the next one. Returns the last one, or `None`
/// if there were fewer.
fn kill_after(site: &Site, steps: &Steps, number: usize) -> Option<String> {
    let run = site.command(&["archive", "run"]);
    let lines = site.path().join("steps");
    if !lines.exists() {
        assert!(Command::new("mkfifo").arg(&lines).status().unwrap().success());
    }
    let mut tracer = steps
        .tracer(&lines)
        .arg(run.get_program())
        .args(run.get_args())
        .current_dir(site.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(File::open(&lines).unwrap()).lines().map(Result::unwrap);
    let last = lines.by_ref().filter(|line| !line.contains("resumed>")).nth(number - 1);
    if let Some(line) = &last {
        let thread = line.split_whitespace().next().unwrap().parse().unwrap();
        // It may have ended by now.
        let _ = kill_process(Pid::from_raw(thread).unwrap(), Signal::KILL);
    }
    // The tracer must not meet a closed pipe.
    lines.for_each(drop);
    let status = tracer.wait().unwrap();
    let what = format!("{} {number}", steps.calls);
    assert!(status.success() || status.signal() == Some(9), "{what}: {status}");
    last.filter(|_| !status.success())
}

/// The files of uploads that were killed.
fn partial_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(partial_files(&path));
        } else if path.to_str().unwrap().contains('#') {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_process_on_sqlite_that_is_killed_at_any_step_loses_nothing_and_counts_nothing_twice() {
    block_on(kill_at_steps(&Site::new("sqlite:DIR/tollgate.db", None), SQLITE_STEPS));
}

#[test]
fn a_process_on_postgres_that_is_killed_at_any_step_loses_nothing_and_counts_nothing_twice() {
    let Some(database) = postgres::database() else { return };
    let url = database.url().to_owned();
    block_on(kill_at_steps(&Site::new(&url, Some(database)), POSTGRES_STEPS));
}

async fn kill_at_steps(site: &Site, of_database: Steps) {
    const MONTHS: u32 = 60;
    let probe = FILE_STEPS.tracer(Path::new("/dev/null")).arg("true").status();
    let probe = probe.ok().filter(ExitStatus::success);
    if tools::require_tool("strace", probe).is_none() {
        return;
    }
    set_archive(site, 20);
    let merchant_id = make_calls(site, 31 * i64::from(MONTHS), 10 * i64::from(MONTHS)).await;
    let before = records(site, merchant_id);
    // The header, and two pages of what is read at once.
    assert_eq!(before.lines().count(), 1 + 10 * usize::try_from(MONTHS).unwrap());
    let (used, audited) =
        (site.json(&["usage", "--merchant", &merchant_id.to_string()]), assert_audit_clean(site));
    // The span of the first sums: time goes on.
    let [start, end] = ["start", "end"].map(|key| used[key].as_str().unwrap());
    let usage = || {
        let merchant_id = merchant_id.to_string();
        site.json(&["usage", "--merchant", &merchant_id, "--start", start, "--end", end])
    };
    let mut kills = 0;
    for steps in [FILE_STEPS, of_database] {
        for number in steps.numbers.clone().step_by(steps.stride) {
            if let Some(last) = kill_after(site, &steps, number) {
                println!("{number}: {last}");
                kills += 1;
                assert_audit_clean(site);
            }
            lapse_lease(site);
        }
        assert_eq!(records(site, merchant_id), before, "after {}", steps.calls);
    }
    let sealed = sealed_months(site);
    println!("{kills} kills, {sealed} months sealed meanwhile");
    assert!(kills >= 30, "{kills} kills");
    assert!(sealed > 0);
    let run = site.json(&["archive", "run"]);
    assert_eq!(run["waits"], Value::Null);
    assert_eq!(records(site, merchant_id), before);
    assert_eq!(usage(), used);
    assert!(site.run(&["archive", "verify"]).status.success());
    let audit = site.json(&["audit", "--archive"]);
    assert_eq!(audit["differences"], json!([]));
    assert_eq!(audit["requests"], audited["requests"]);
    let here = assert_audit_clean(site)["requests"].as_i64().unwrap();
    assert!(here * 8 < audited["requests"].as_i64().unwrap(), "{here} records are left");
    assert_eq!(site.json(&["archive", "run"])["sealed"], json!([]));
    assert_eq!(partial_files(&site.path().join("archive")), Vec::<PathBuf>::new());
}

#[test]
fn verification_names_a_file_with_a_flipped_byte() {
    each_site(async |site| {
        set_archive(site, 20);
        make_calls(site, 62, 20).await;
        assert!(!site.json(&["archive", "run"])["sealed"].as_array().unwrap().is_empty());
        let months = site.path().join("archive/requests");
        let month = std::fs::read_dir(months).unwrap().next().unwrap().unwrap().path();
        let file = std::fs::read_dir(month).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        let verified = site.run(&["archive", "verify"]);
        assert_eq!(verified.status.code(), Some(1));
        let said = [verified.stdout, verified.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let name = file.strip_prefix(site.path().join("archive")).unwrap().to_str().unwrap();
        assert!(said.contains(name), "{name}: {said}");
        bytes[middle] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert!(site.run(&["archive", "verify"]).status.success());
    });
}

#[test]
fn a_service_archives_by_itself_and_answers_from_the_archive() {
    each_site(async |site| {
        set_archive(site, 10);
        make_calls(site, 70, 40).await;
        let service = site.serve();
        let deadline = Instant::now() + Duration::from_secs(60);
        while sealed_months(site) == 0 {
            assert!(Instant::now() < deadline, "no month is in the archive after a minute");
            std::thread::sleep(Duration::from_millis(200));
        }
        let merchants = site.run(&["merchant", "list", "--json"]);
        let merchant: Value = serde_json::from_slice(&merchants.stdout).unwrap();
        let merchant_id = merchant["merchant_id"].as_str().unwrap();
        let key = site.json(&["key", "create", "--merchant", merchant_id]);
        let key = key["secret_key"].as_str().unwrap();
        let mut all = Vec::new();
        let mut path = "/v1/requests?limit=7".to_owned();
        loop {
            let page = service.call("GET", &path, key).send().await.expect(200);
            all.extend(page["data"].as_array().unwrap().clone());
            let next = page["next_cursor"].as_str().unwrap();
            if next.is_empty() {
                break;
            }
            path = format!("/v1/requests?limit=7&cursor={next}");
        }
        assert_eq!(all.len(), 40);
        let oldest = all.last().unwrap();
        let id = oldest["request_id"].as_str().unwrap();
        let path = format!("/v1/requests/{id}");
        let found = service.call("GET", &path, key).send().await.expect(200);
        assert_eq!(found, *oldest);

        // A month that is being written would make the folder again.
        while site.json(&["archive", "run"])["waits"] != Value::Null {
            assert!(Instant::now() < deadline, "the service archives for a minute");
            std::thread::sleep(Duration::from_millis(200));
        }
        // Without the archive, what is here is still answered.
        let folder = site.path().join("archive");
        std::fs::rename(&folder, folder.with_extension("away")).unwrap();
        let answer = service.call("GET", &path, key).send().await;
        assert_eq!(answer.expect(503)["error"]["code"], "store_unavailable");
        let newest = all[0]["request_id"].as_str().unwrap();
        let path = format!("/v1/requests/{newest}");
        service.call("GET", &path, key).send().await.expect(200);
        service.call("GET", "/v1/requests?limit=1", key).send().await.expect(200);
        service.call("GET", "/v1/usage", key).send().await.expect(200);
        let output = site.run(&["archive", "verify"]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(archive_check(site)["status"], "failed");
        std::fs::rename(folder.with_extension("away"), &folder).unwrap();
        assert_eq!(archive_check(site)["status"], "ok");
        drop(service);
        assert_audit_clean(site);
    });
}

/// The check of the archive by `tollgate doctor`.
fn archive_check(site: &Site) -> Value {
    let output = String::from_utf8(site.run(&["doctor", "--json"]).stdout).unwrap();
    let mut checks = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    checks.find(|check| check["check"] == "archive").unwrap()
}
