//! The real program on a disk that fails: at any system call of the ledger, or because it is full.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_testkit::store::block_on;
use tollgate_testkit::tools;

use crate::site::{ServiceProcess, Site, assert_audit_clean, merchant_key};

/// A tracer that makes system calls of one thread fail.
struct SyscallFaultInjector {
    tracer: Child,
    log: PathBuf,
}

impl SyscallFaultInjector {
    /// Makes the `number`th call of `call` by this thread end in `fault`, in strace's syntax.
    fn start(thread: u32, call: &str, fault: &str, number: usize, folder: &Path) -> Option<Self> {
        let log = folder.join("strace.log");
        let mut tracer = Command::new("strace")
            .args(["-e", &format!("trace={call}")])
            .args(["-e", &format!("inject={call}:{fault}:when={number}")])
            .args(["-p", &thread.to_string(), "-o"])
            .arg(&log)
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut said = String::new();
        BufReader::new(tracer.stderr.take()?).read_line(&mut said).ok()?;
        if !said.contains("attached") {
            let _ = tracer.wait();
            return None;
        }
        Some(Self { tracer, log })
    }

    /// Ends the tracer; returns whether the fault was injected.
    fn stop(mut self) -> bool {
        let interrupted = Command::new("kill").arg(self.tracer.id().to_string()).status();
        assert!(interrupted.unwrap().success());
        self.tracer.wait().unwrap();
        std::fs::read_to_string(&self.log).unwrap().contains("(INJECTED)")
    }
}

/// The id of the thread with this name.
fn thread(process: u32, name: &str) -> u32 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let threads = threads.map(|thread| thread.unwrap().path());
    let found = threads.into_iter().find(|thread| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    found.unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Waits until the wallet has no holds; returns its balance in millionths.
async fn settled_balance(service: &ServiceProcess, key: &str, wallet: &str) -> i64 {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let wallet = service.call("GET", &format!("/v1/wallets/{wallet}"), key).send().await;
        if wallet.status == 200 && wallet.json()["held"] == "0.0000000000" {
            let balance = wallet.json()["balance"].as_str().unwrap().to_owned();
            return balance.replace('.', "").parse().unwrap();
        }
        assert!(Instant::now() < deadline, "still held: {}", wallet.text());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn whichever_system_call_of_the_ledger_the_disk_fails_a_call_is_booked_once() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    block_on(async {
        let key = merchant_key(&site);
        let service = site.serve();
        let token = service.create_customer(&key, "1000").await;
        let list = service.call("GET", "/v1/connections", &key).send().await.expect(200);
        let wallet = list["data"][0]["wallet_id"].as_str().unwrap();
        let call = service.forward(&site.chat_url(), &token, false);
        for _ in 0..100 {
            // After these calls the first tier is used up, and every call costs the same.
            call.send().await.expect(200);
        }
        let before = settled_balance(&service, &key, wallet).await;
        call.send().await.expect(200);
        let price = before - settled_balance(&service, &key, wallet).await;
        assert!(price > 0);

        let ledger = thread(service.process(), "ledger-0");
        let first =
            SyscallFaultInjector::start(ledger, "fdatasync", "error=EIO", 1_000, site.path());
        let Some(first) = tools::require_tool("strace", first) else { return };
        assert!(!first.stop());
        let mut met = 0;
        let sync = ["error=EIO", "error=ENOSPC", "delay_enter=50000"].as_slice();
        let write = ["error=EIO", "error=ENOSPC"].as_slice();
        for (system_call, faults) in [("fdatasync", sync), ("pwrite64", write)] {
            for fault in faults {
                for number in 1.. {
                    let what = format!("{fault} at {system_call} {number}");
                    let before = settled_balance(&service, &key, wallet).await;
                    let calls = site.simulator.stats().calls;
                    let saboteur = SyscallFaultInjector::start(
                        ledger,
                        system_call,
                        fault,
                        number,
                        site.path(),
                    )
                    .unwrap();
                    let answer = call.send().await;
                    let was_met = saboteur.stop();
                    let after = settled_balance(&service, &key, wallet).await;
                    let calls = site.simulator.stats().calls - calls;
                    match answer.status {
                        200 => assert_eq!(calls, 1, "{what}"),
                        503 => {
                            assert_eq!((answer.error().as_str(), calls), ("store_unavailable", 0))
                        }
                        other => unreachable!("{what}: {other}: {}", answer.text()),
                    }
                    let due = price * i64::try_from(calls).unwrap();
                    assert_eq!(before - after, due, "{what}: paid once for {calls} calls");
                    if !was_met {
                        break;
                    }
                    met += 1;
                }
            }
        }
        println!("{met} faults were met");
        assert!(met > 20, "{met} faults were met");
        let audit = assert_audit_clean(&site);
        assert_eq!(audit["pending"], 0);
    });
}

/// A file system of a few megabytes.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(place: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(place).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(place);
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        mounted.then(|| Self(place.to_owned()))
    }

    /// Fills the disk.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        let block = [0; 4096];
        while std::io::Write::write_all(&mut filler, &block).is_ok() {}
    }

    fn free_space(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_calls_and_loses_none_and_when_there_is_room_all_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("disk");
    let Some(disk) =
        tools::require_tool("a mount of a small disk", SmallDisk::mount(&place, "16m"))
    else {
        return;
    };
    let site = Site::new(&format!("sqlite:{}/tollgate.db", place.display()), None);
    block_on(async {
        let key = merchant_key(&site);
        let mut service = site.serve();
        let token = service.create_customer(&key, "1000").await;
        let list = service.call("GET", "/v1/connections", &key).send().await.expect(200);
        let wallet = list["data"][0]["wallet_id"].as_str().unwrap();
        let call = service.forward(&site.chat_url(), &token, true);
        let slow = call.header("x-simulate-chunk-delay-ms", "50").header("x-simulate-words", "20");
        let mut streams = Vec::new();
        for _ in 0..10 {
            let mut open = slow.open().await;
            open.read_until("data: ").await;
            streams.push(open);
        }

        disk.fill();
        let call = service.forward(&site.chat_url(), &token, false);
        // The database first uses up the free space in its own files.
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut refused = 0;
        while refused < 10 {
            refused = if call.send().await.status == 503 { refused + 1 } else { 0 };
            assert!(Instant::now() < deadline, "there is still room");
        }
        let calls = site.simulator.stats().calls;
        for _ in 0..5 {
            let answer = call.send().await;
            assert_eq!((answer.status, answer.error().as_str()), (503, "store_unavailable"));
            let change = service.call("POST", "/v1/connections", &key).json(&json!({}));
            assert_eq!(change.send().await.error(), "store_unavailable");
        }
        assert_eq!(site.simulator.stats().calls, calls, "nothing is forwarded");
        for mut open in streams {
            while open.read_some().await {}
            let answer = open.response();
            assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"));
        }
        service.call("GET", "/v1/wallet", &key).send().await.expect(200);

        disk.free_space();
        let deadline = Instant::now() + Duration::from_secs(5);
        while call.send().await.status != 200 {
            assert!(Instant::now() < deadline, "it does not recover");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        settled_balance(&service, &key, wallet).await;
        let audit = assert_audit_clean(&site);
        assert_eq!(audit["pending"], 0);
        let records = service.call("GET", "/v1/requests?limit=100", &key).send().await.expect(200);
        let completed = records["data"].as_array().unwrap().iter();
        let completed = completed.filter(|record| record["status"] == "completed").count();
        let calls = site.simulator.stats().calls;
        assert_eq!(u64::try_from(completed).unwrap(), calls, "each that was answered is paid");
        service.signal("-TERM");
        assert_eq!(service.exit_code(), Some(0));
    });
}
