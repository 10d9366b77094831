//! The real program, with real sockets, signals and crashes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::{OpenResponse, TestRequest, postgres};

use crate::site::{ServiceProcess, Site, assert_audit_clean, each_site, merchant_key};

/// Starts streams, and waits for the first event of each.
async fn streams(call: &TestRequest, count: usize) -> Vec<OpenResponse> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(call.open().await);
    }
    for open in &mut streams {
        open.read_until("data: ").await;
    }
    streams
}

/// A call whose stream takes about this time.
fn stream_of(
    service: &ServiceProcess,
    site: &Site,
    token: &str,
    tenths_of_a_second: u32,
) -> TestRequest {
    let call = service.forward(&site.chat_url(), token, true);
    let words = tenths_of_a_second.to_string();
    call.header("x-simulate-chunk-delay-ms", "100").header("x-simulate-words", &words)
}

#[test]
fn a_service_that_is_told_to_end_finishes_its_streams_first() {
    each_site(async |site| {
        let key = merchant_key(site);
        let mut service = site.serve();
        let token = service.create_customer(&key, "1000").await;
        let streams = streams(&stream_of(&service, site, &token, 40), 100).await;
        service.signal("-TERM");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let ready = service.call("GET", "/readyz", "").send().await;
            if ready.status == 503 {
                assert_eq!(ready.json()["status"], "draining");
                break;
            }
            assert!(Instant::now() < deadline, "it is still ready");
        }
        let refused = service.forward(&site.chat_url(), &token, false).send().await;
        assert_eq!((refused.status, refused.error().as_str()), (503, "shutting_down"));
        for mut open in streams {
            while open.read_some().await {}
            let answer = open.response();
            assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"));
        }
        assert_eq!(service.exit_code(), Some(0));
        let gone = tokio::net::TcpStream::connect(service.address).await;
        assert!(gone.is_err(), "nobody listens any more");
        let audit = assert_audit_clean(site);
        assert_eq!((&audit["requests"], &audit["pending"]), (&json!(100), &json!(0)));
        assert_eq!(site.simulator.stats().calls, 100);
    });
}

#[test]
fn a_service_that_is_told_to_end_settles_what_outlasts_its_patience() {
    each_site(async |site| {
        let key = merchant_key(site);
        let mut service = site.serve_with(&[("TOLLGATE_DRAIN_TIMEOUT_MS", "4000")]);
        let token = service.create_customer(&key, "1000").await;
        let outlasting = streams(&stream_of(&service, site, &token, 600), 50).await;
        let finishing = streams(&stream_of(&service, site, &token, 10), 50).await;
        let told = Instant::now();
        service.signal("-TERM");
        for mut open in finishing {
            while open.read_some().await {}
            assert!(open.response().complete);
        }
        for mut open in outlasting {
            while open.read_some().await {}
            let answer = open.response();
            assert!(!answer.complete && !answer.text().contains("[DONE]"), "it looks whole");
        }
        assert_eq!(service.exit_code(), Some(0));
        assert!(told.elapsed() < Duration::from_secs(25), "{:?}", told.elapsed());
        assert_eq!(assert_audit_clean(site)["pending"], json!(0));

        let service = site.serve();
        let list = service.call("GET", "/v1/requests?limit=100", &key).send().await.expect(200);
        let records = list["data"].as_array().unwrap();
        let of = |source: &str| {
            records
                .iter()
                .filter(|record| {
                    record["status"] == "completed" && record["usage_source"] == source
                })
                .count()
        };
        assert_eq!((of("reported"), of("partial"), records.len()), (50, 50, 100));
        let unpaid = records.iter().filter(|record| record["total_wallet_cost"] == "0.0000000000");
        assert_eq!(unpaid.count(), 0);
    });
}

#[test]
fn a_second_service_on_one_sqlite_file_does_not_start() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let _first = site.serve();
    let second = site.run(&["serve"]);
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("another tollgate serves"));
}

#[test]
fn the_commands_work_beside_a_running_service() {
    each_site(async |site| {
        let service = site.serve();
        let merchant = site.json(&["merchant", "create", "Acme"]);
        let id = merchant["merchant_id"].as_str().unwrap();
        let second = site.json(&["key", "create", "--merchant", id, "--name", "second"]);
        let second_key = second["secret_key"].as_str().unwrap();
        service.call("GET", "/v1/wallet", second_key).send().await.expect(200);
        let list = site.run(&["key", "list", "--merchant", id]);
        assert_eq!(String::from_utf8_lossy(&list.stdout).lines().count(), 2);

        let wallet = merchant["wallet_id"].as_str().unwrap();
        let credit = site.json(&["wallet", "credit", wallet, "12.5", "--description", "Start"]);
        assert_eq!(credit["balance_after"], "12.5000000000");
        let key_id = second["secret_key_id"].as_str().unwrap();
        site.json(&["key", "revoke", "--merchant", id, key_id]);
        let refused = service.call("GET", "/v1/wallet", second_key).send().await;
        assert_eq!(refused.error(), "auth_invalid");
        let list = site.run(&["key", "list", "--merchant", id, "--json"]);
        let first: Value = serde_json::from_slice(&list.stdout).unwrap();
        let last = site.run(&[
            "key",
            "revoke",
            "--merchant",
            id,
            first["secret_key_id"].as_str().unwrap(),
        ]);
        assert!(!last.status.success());
        assert!(String::from_utf8_lossy(&last.stderr).contains("last key"));
        let budget = |arguments: &[&str]| {
            let merchant = ["--merchant", id];
            site.json(&[&["budget"], &arguments[..1], &merchant, &arguments[1..]].concat())
        };
        let company = budget(&["create", "--name", "Company", "--spend-limit", "5"]);
        let company = company["budget_id"].as_str().unwrap();
        let job = ["create", "--name", "Job", "--match", "job=a", "--request-limit", "3"];
        let job = budget(&[&job[..], &["--parent", company, "--enforcement", "strict"]].concat());
        assert_eq!(
            (&job["match"]["job"], &job["request_limit"]["count"]),
            (&json!("a"), &json!(3))
        );
        let job = job["budget_id"].as_str().unwrap();
        let first_key = merchant["secret_key"].as_str().unwrap();
        let path = format!("/v1/budgets/{job}");
        let shown = service.call("GET", &path, first_key).send().await.expect(200);
        assert_eq!(shown["parent_id"], company);
        let changes = ["update", job, "--request-limit", "none", "--alerts", "50,90"];
        let changed = budget(&[&changes[..], &["--time-zone", "Europe/Berlin"]].concat());
        let shown = service.call("GET", &path, first_key).send().await.expect(200);
        assert_eq!(shown, changed);
        assert_eq!((shown.get("request_limit"), &shown["alerts"]), (None, &json!([50, 90])));
        let kept = budget(&["update", company, "--spend-limit", "6", "--spend-cycle", "total"]);
        assert_eq!(kept["spend_limit"]["cycle"], "total");
        let kept = budget(&["update", company, "--spend-limit", "7", "--alerts", "none"]);
        assert_eq!(kept["spend_limit"], json!({"amount": "7.0000000000", "cycle": "total"}));
        assert_eq!(kept["alerts"], json!([]));
        let alone = ["budget", "update", "--merchant", id, company, "--spend-cycle", "weekly"];
        assert_eq!(site.run(&alone).status.code(), Some(2));
        let list = site.run(&["budget", "list", "--merchant", id]);
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let lines: Vec<_> = list.lines().collect();
        assert!(lines[0].ends_with("  Company") && lines[1].ends_with("    Job"), "{list}");
        let used = site.run(&["budget", "delete", "--merchant", id, company]);
        let reason = String::from_utf8_lossy(&used.stderr).into_owned();
        assert!(!used.status.success() && reason.contains("names this budget"), "{reason}");
        let wrong = ["budget", "update", "--merchant", id, job, "--spend-limit", "much"];
        let wrong = site.run(&wrong);
        let reason = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(!wrong.status.success() && reason.contains("spend_limit.amount"), "{reason}");
        budget(&["delete", job]);
        service.call("GET", &path, first_key).send().await.expect(404);
        assert!(site.run(&["migrate"]).status.success());
        assert!(site.run(&["config", "check"]).status.success());
    });
}

#[test]
fn an_audit_names_what_was_tampered_with_and_fails() {
    let Some(database) = postgres::database() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    let merchant = site.json(&["merchant", "create", "Acme"]);
    let wallet = merchant["wallet_id"].as_str().unwrap();
    site.json(&["wallet", "credit", wallet, "1"]);
    assert_audit_clean(&site);
    site.database.as_ref().unwrap().execute("UPDATE wallets SET balance = balance + 1");
    let audit = site.run(&["audit"]);
    assert_eq!(audit.status.code(), Some(1));
    let said = String::from_utf8_lossy(&audit.stdout).into_owned();
    let expected = format!("wallet {wallet} balance: kept 10000000001, recomputed 10000000000");
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn a_database_that_is_not_there_is_not_audited_but_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup.db");
    let site = Site::new(&format!("sqlite:{}", file.display()), None);
    for command in [vec!["audit"], vec!["merchant", "list"], vec!["wallet", "credit", "wal_x", "1"]]
    {
        let output = site.run(&command);
        assert!(!output.status.success() && !file.exists(), "{command:?}");
    }
    let said = String::from_utf8(site.run(&["audit"]).stderr).unwrap();
    assert!(said.contains(&format!("there is no database at {}", file.display())), "{said}");
    site.json(&["merchant", "create", "Acme"]);
    assert_audit_clean(&site);
}

#[test]
fn a_key_that_nobody_could_read_is_told_of_with_what_was_made() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::new(&format!("sqlite:{}/tollgate.db", folder.path().display()), None);
    // The reader of its output is closed.
    let printing_to_nobody = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = site.command(arguments).stdout(writer).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (done, said) = printing_to_nobody(&["merchant", "create", "Acme"]);
    let list = site.json(&["merchant", "list"]);
    let id = list["merchant_id"].as_str().unwrap();
    assert!(!done && said.contains(id) && said.contains("tollgate key create"), "{said}");
    let (done, said) = printing_to_nobody(&["key", "create", "--merchant", id]);
    assert!(!done && said.contains("sec_"), "{said}");
    // A list that no process reads to its end is not an error; a full disk is one.
    assert_eq!(printing_to_nobody(&["merchant", "list"]), (true, String::new()));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = site.command(&["merchant", "list"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_command_that_looks_at_a_database_does_not_change_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    // SQLite takes an empty file for a database without tables.
    let file = folder.path().join("other.db");
    std::fs::write(&file, "").unwrap();
    let site = Site::new(&format!("sqlite:{}", file.display()), None);
    for command in [["merchant", "list"].as_slice(), &["audit"]] {
        let output = site.run(command);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("tollgate migrate"), "{said}");
    }
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("CREATE TABLE"));
    }
}

#[test]
fn a_mistake_is_told_without_a_backtrace() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let output = site
        .command(&["merchant", "list"])
        .env("RUST_BACKTRACE", "1")
        .env("TOLLGATE_DATABASE_URL", "mysql://nowhere")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("Error: the configuration is not valid:\n"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    // Containers set variables without a value.
    let empty = site.command(&["quote", "--help"]).env("TOLLGATE_CONFIG", "").output().unwrap();
    assert!(empty.status.success());
}

#[test]
fn a_database_that_cannot_be_opened_is_told_of_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "no database, but long enough to have the head of one").unwrap();
    for (url, why) in [
        (format!("sqlite:{}", file.display()), "is no SQLite database"),
        ("postgres://tollgate@127.0.0.1:1/tollgate".to_owned(), "onnection refused"),
    ] {
        let said = String::from_utf8(Site::new(&url, None).run(&["serve"]).stderr).unwrap();
        assert_eq!(said.matches(why).count(), 1, "{said}");
    }
}

#[test]
fn a_configuration_with_mistakes_does_not_start_and_says_all_of_them() {
    let site = Site::new("mysql://nowhere", None);
    let path = site.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("listn = \"x\"\n{text}")).unwrap();
    for command in [vec!["config", "check"], vec!["serve"]] {
        let output = site.run(&command);
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("listn:") && said.contains("database_url:"), "{said}");
    }
}

#[test]
fn the_demo_prints_lines_that_work_when_pasted() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["demo", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut script, mut sign_in, mut key) = (String::new(), String::new(), String::new());
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let line = line.trim();
        let word = |number| line.split_whitespace().nth(number).unwrap_or_default().to_owned();
        match word(0).as_str() {
            "dashboard" => sign_in = word(1),
            "merchant" => key = word(2),
            "curl" | "export" | "seq" => {
                script.push_str(line);
                script.push_str("\necho\n");
            }
            _ => (),
        }
        // The last line that can be pasted.
        if line.starts_with("seq ") {
            break;
        }
    }
    let base = sign_in.trim_end_matches("/demo");
    // As the SDKs use the exported lines, as a browser that is signed in, and as the merchant.
    script.push_str(&format!(
        r#"
        curl -s "$OPENAI_BASE_URL/models" -H "Authorization: Bearer $OPENAI_API_KEY"
        curl -sL -c cookies.txt "{sign_in}"
        curl -s "{base}/v1/connections?limit=100" -H "Authorization: Bearer {key}" | grep -o '"connection_id"' | wc -l
        curl -s "{base}/v1/usage" -H "Authorization: Bearer {key}" | grep -o '"totals":.*'
        "#,
    ));
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("bash").arg("-c").arg(&script).current_dir(&folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let _ = child.kill();
    let _ = child.wait();
    for expected in [
        "chat.completion",
        " 10 200\n",
        " 190 402\n",
        "\"id\":\"gpt-4o-mini\"",
        "<h1>Home",
        "</html>41\n",
    ] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
    let (_, requests) = said.split_once("\"total_requests\":").unwrap();
    let requests = requests.split(',').next().unwrap().parse::<u64>().unwrap();
    assert!(requests > 500, "{said}");
}
