//! The observability of the real program: its metrics under load, its access lines, and the output of its
//! commands for programs.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::site::load::Load;
use crate::site::{ServiceProcess, Site, assert_audit_clean, each_site, merchant_key};

/// The sum of all samples with this name and these labels.
fn sum(text: &str, name: &str, labels: &[&str]) -> u64 {
    let samples = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let is_meant =
            rest.starts_with(['{', ' ']) && labels.iter().all(|label| rest.contains(label));
        let (_, value) = rest.rsplit_once(' ').filter(|_| is_meant)?;
        Some(value.parse::<u64>().unwrap())
    });
    samples.sum()
}

async fn metrics(service: &ServiceProcess) -> String {
    service.call("GET", "/metrics", "").send().await.text().to_owned()
}

#[test]
fn what_is_counted_under_load_is_what_the_records_say() {
    each_site(async |site| {
        let key = merchant_key(site);
        let service = site.serve();
        let token = service.create_customer(&key, "1000").await;
        let rules = json!({"name": "Team", "request_limit": {"count": 30, "cycle": "daily"}});
        let made =
            service.call("POST", "/v1/spend_keys", &key).json(&rules).send().await.expect(201);
        let spend_key = made["key"].as_str().unwrap();
        let others = |answer: Option<&_>| {
            let answer: &tollgate_testkit::TestResponse = answer.unwrap();
            assert_eq!(answer.status, 429, "{}", answer.text());
        };
        let services = [service];
        let load = Load::start(&services, &[&token, spend_key], &site.chat_url(), others);
        let deadline = Instant::now() + Duration::from_secs(30);
        while load.counts().0 < 200 || load.counts().1 == 0 {
            assert!(Instant::now() < deadline, "{:?}", load.counts());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A scrape under load must show no more than the final figures.
        let amid = metrics(&services[0]).await;
        load.stop().await;
        let [service] = services;

        let text = loop {
            let text = metrics(&service).await;
            let open = ["tollgate_holds_open", "tollgate_calls_running"];
            if open.iter().all(|name| sum(&text, name, &[]) == 0) {
                break text;
            }
            assert!(Instant::now() < deadline, "{text}");
        };
        let usage = service.call("GET", "/v1/usage", &key).send().await.expect(200);
        let totals = &usage["totals"];
        let house = "provider=\"house\"";
        let admitted = sum(&text, "tollgate_calls_admitted_total", &[house]);
        let ended = sum(&text, "tollgate_calls_ended_total", &[house]);
        assert!(sum(&amid, "tollgate_calls_admitted_total", &[house]) <= admitted);
        assert!(sum(&amid, "tollgate_calls_ended_total", &[house]) <= ended);
        assert_eq!(admitted, ended, "{text}");
        assert_eq!(totals["total_requests"], admitted, "{totals} {text}");
        let tokens = sum(&text, "tollgate_tokens_total", &[house]);
        assert_eq!(totals["total_usage_tokens"], tokens, "{totals} {text}");
        let cost = sum(&text, "tollgate_cost_usd_e10_total", &[house]);
        let cost = format!("{}.{:010}", cost / 10_000_000_000, cost % 10_000_000_000);
        assert_eq!(totals["total_usage_cost"], cost, "{totals} {text}");
        // Some callers were stopped during a call, so its result is not known.
        let refused =
            sum(&text, "tollgate_calls_refused_total", &["code=\"request_limit_reached\""]);
        assert!(refused > 0, "{text}");
        for histogram in ["ledger_admission_seconds", "call_before_provider_seconds"] {
            let count = sum(&text, &format!("tollgate_{histogram}_count"), &[]);
            assert!(count >= admitted, "{histogram}: {text}");
        }
        drop(service);
        assert_eq!(assert_audit_clean(site)["requests"], admitted);
    });
}

/// The access lines of a log, as soon as `done`.
async fn lines(log: &Path, format: &str, done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let text = std::fs::read_to_string(log).unwrap();
        let lines = text.lines().filter(|line| line.contains("tollgate::access"));
        let read = |line: &str| -> Value {
            if format == "json" {
                return serde_json::from_str::<Value>(line).unwrap()["request"].clone();
            }
            let (_, fields) = line.split_once("] ").unwrap();
            let pairs = fields.split(' ').map(|pair| pair.split_once('=').unwrap());
            pairs.map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
        };
        let lines: Vec<_> = lines.map(read).collect();
        if done(&lines) {
            return lines;
        }
        assert!(Instant::now() < deadline, "{lines:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn each_request_has_a_line_with_ids_and_figures_and_nothing_that_a_caller_chose() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    each_site(async |site| {
        let format = if site.database.is_some() { "json" } else { "text" };
        let log = site.path().join("log");
        let on = [("TOLLGATE_ACCESS_LOG", "true"), ("TOLLGATE_LOG_FORMAT", format)];
        let key = merchant_key(site);
        let service = site.serve_logging_to(&log, &on);
        let token = service.create_customer(&key, "10").await;
        let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
        let call = service.forward(&site.chat_url(), &token, true).header("traceparent", &parent);
        let answer = call.send().await;
        assert_eq!(answer.status, 200);
        let request_id = answer.header("x-service-request-id").unwrap();
        let record = service.call("GET", &format!("/v1/requests/{request_id}"), &key).send().await;
        let record = record.expect(200);
        let bad = service.forward("https://evil.example/secret-path?token=canary", &token, false);
        assert_eq!(bad.send().await.error(), "forward_endpoint_not_supported");
        let stray = service.call("GET", "/v1/wallets/wal_canary?secret=canary", &key);
        assert_eq!(stray.send().await.error(), "validation_failed");
        let nothing = service.call("GET", "/nothing/canary", "tgs_canary");
        assert_eq!(nothing.send().await.status, 404);

        let lines = lines(&log, format, |lines| {
            lines.iter().any(|line| line["error"] == "route_not_found")
                && lines.iter().any(|line| line["request_id"] == request_id)
        })
        .await;
        let of_call = lines.iter().find(|line| line["request_id"] == request_id).unwrap();
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let usage = &record["model_usage"];
        for (name, expected) in [
            ("method", json!("POST")),
            ("path", json!("/v1/forward")),
            ("status", json!(200)),
            ("provider", json!("house")),
            ("provider_status", json!(200)),
            ("trace_id", json!(TRACE)),
            ("input_tokens", usage["input_tokens"].clone()),
            ("output_tokens", usage["output_tokens"].clone()),
            ("cost", usage["total_cost"].clone()),
        ] {
            assert_eq!(text(&of_call[name]), text(&expected), "{name} of {of_call}");
        }
        assert!(text(&of_call["merchant_id"]).starts_with("mch_"), "{of_call}");
        assert!(text(&of_call["key_id"]).starts_with("sec_"), "{of_call}");
        assert!(text(&of_call["duration_us"]).parse::<u64>().unwrap() > 0, "{of_call}");
        assert!(of_call.get("model").is_none() && of_call.get("error").is_none(), "{of_call}");
        let refused =
            lines.iter().find(|line| line["error"] == "forward_endpoint_not_supported").unwrap();
        assert_eq!(text(&refused["status"]), "400");
        assert!(refused.get("request_id").is_none() && refused.get("cost").is_none(), "{refused}");
        let wallet = lines.iter().find(|line| line["path"] == "/v1/wallets/{id}").unwrap();
        assert_eq!(text(&wallet["error"]), "validation_failed");
        let lost = lines.iter().find(|line| line["error"] == "route_not_found").unwrap();
        assert!(lost.get("path").is_none(), "{lost}");
        for line in &lines {
            let line = line.to_string();
            assert!(!line.contains("canary") && !line.contains("evil"), "{line}");
        }
    });
}

#[test]
fn a_call_whose_client_left_has_its_figures_in_its_line() {
    each_site(async |site| {
        let log = site.path().join("log");
        let on = [("TOLLGATE_ACCESS_LOG", "true"), ("TOLLGATE_LOG_FORMAT", "json")];
        let key = merchant_key(site);
        let service = site.serve_logging_to(&log, &on);
        let token = service.create_customer(&key, "10").await;
        let call = service.forward(&site.chat_url(), &token, true);
        let call = call.header("x-simulate-chunk-delay-ms", "30").header("x-simulate-words", "20");
        let mut open = call.open().await;
        open.read_until("data: ").await;
        drop(open);
        let lines = lines(&log, "json", |lines| {
            lines.iter().any(|line| line["path"] == "/v1/forward" && !line["cost"].is_null())
        })
        .await;
        let line = lines.iter().find(|line| line["path"] == "/v1/forward").unwrap();
        let path = format!("/v1/requests/{}", line["request_id"].as_str().unwrap());
        let record = service.call("GET", &path, &key).send().await.expect(200);
        assert_eq!(line["output_tokens"], record["model_usage"]["output_tokens"]);
    });
}

#[test]
fn without_being_asked_for_there_are_no_access_lines() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let log = site.path().join("log");
        let mut service = site.serve_logging_to(&log, &[]);
        service.call("GET", "/healthz", "").send().await.expect(200);
        service.signal("-TERM");
        assert_eq!(service.exit_code(), Some(0));
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains("ended") && !text.contains("tollgate::access"), "{text}");
    });
}

#[test]
fn a_node_is_asked_for_its_health_by_the_program_itself() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut service = site.serve();
        let address = service.address.to_string();
        let health = json!({"ready": true, "status": "ok", "address": address});
        assert_eq!(site.json(&["health", "--address", &address]), health);
        // While the service drains, it must not get calls.
        let key = merchant_key(&site);
        let token = service.create_customer(&key, "10").await;
        let call = service.forward(&site.chat_url(), &token, true);
        let call = call.header("x-simulate-chunk-delay-ms", "100").header("x-simulate-words", "30");
        let mut open = call.open().await;
        open.read_until("data: ").await;
        service.signal("-TERM");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let output = site.run(&["health", "--address", &address]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.code() == Some(1) {
                assert_eq!(said, format!("{address} takes no calls: draining.\n"));
                break;
            }
            assert!(Instant::now() < deadline, "{said}");
        }
        while open.read_some().await {}
        assert_eq!(service.exit_code(), Some(0));
        let output = site.run(&["health", "--address", &address]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("is it running there"), "{said}");
    });
}

#[test]
fn every_command_that_prints_prints_json_too() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let merchant = site.json(&["merchant", "create", "Acme"]);
    let merchant_id = merchant["merchant_id"].as_str().unwrap();
    assert_eq!(site.json(&["merchant", "list"])["wallet_id"], merchant["wallet_id"]);
    assert_eq!(site.json(&["config", "check"])["valid"], true);
    assert_eq!(site.json(&["migrate"])["migrations"], 0);
    assert_eq!(site.json(&["audit"])["differences"], json!([]));
    let made = site.json(&["key", "create", "--merchant", merchant_id]);
    let key_id = made["secret_key_id"].as_str().unwrap();
    let revoked = site.json(&["key", "revoke", "--merchant", merchant_id, key_id]);
    assert_eq!(revoked, json!({"id": key_id, "deleted": true}));
    assert!(site.json(&["key", "list", "--merchant", merchant_id])["key_preview"].is_string());
    let wallet = merchant["wallet_id"].as_str().unwrap();
    assert_eq!(site.json(&["wallet", "credit", wallet, "5"])["balance_after"], "5.0000000000");
    let priced = ["prices", "list", "--provider", "house"];
    assert_eq!(site.json(&priced)["provider"], "house");
    let quote = ["quote", "--provider", "house", "--model", "m", "--input-tokens", "1000000"];
    assert_eq!(site.json(&quote)["model_usage"]["input_cost"], "1.0000000000");
}

#[test]
fn programs_that_run_on_say_where_in_json() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    for (arguments, field) in [
        (&["serve"][..], "listening"),
        (&["simulator", "--listen", "127.0.0.1:0"], "base_url"),
        (&["demo", "--listen", "127.0.0.1:0"], "listening"),
    ] {
        let mut command = site.command(arguments);
        let child = command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        assert!(said[field].as_str().unwrap().starts_with("http://127.0.0.1:"), "{said}");
    }
}

#[test]
fn what_cannot_be_done_says_what_can() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let nobody = "mch_00000000000000000000000000";
    let wallet = "wal_00000000000000000000000000";
    assert!(site.run(&["migrate"]).status.success());
    for (arguments, code, expected) in [
        (&["key", "create", "--merchant", nobody][..], 1, "tollgate merchant list"),
        (&["key", "list", "--merchant", nobody], 1, "tollgate merchant list"),
        (&["wallet", "credit", wallet, "5"], 1, "tollgate merchant list"),
        (&["health", "--address", "127.0.0.1:1"], 1, "is it running there"),
        (&["simulator", "--set", "words"], 1, "such as first-byte-delay-ms=50"),
        (&["simulator", "--set", "foo=1"], 1, "there are first-byte-delay-ms, chunk-delay-ms"),
        (&["simulator", "--set", "words=x"], 1, "the setting words cannot have the value"),
        (&["prices", "list", "--config", "nope.toml"], 1, "TOLLGATE_CONFIG"),
        (&["merchant", "create", ""], 2, "must have 1 to 255 characters"),
        (&["demo", "--listen", "nonsense"], 1, "such as 127.0.0.1:8080"),
        (&["merchant"], 2, "tollgate merchant create"),
        (&["serv"], 2, "'serve'"),
    ] {
        let output = site.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn shells_learn_every_command_and_the_version_names_a_commit() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let help = site.run(&["--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let commands: Vec<_> =
        commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"health") && commands.len() >= 14, "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = site.run(&["completions", shell]);
        let script = String::from_utf8(script.stdout).unwrap();
        for command in &commands {
            assert!(script.contains(command), "{command} in that of {shell}");
        }
    }
    let version = String::from_utf8(site.run(&["--version"]).stdout).unwrap();
    let (program, zones) = version.trim().split_once("), time zones ").unwrap();
    assert!(zones.starts_with("20"), "{version}");
    let (_, commit) = program.split_once(" (").unwrap();
    let is_commit = commit.len() >= 7 && commit.chars().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_commit || commit == "unknown", "{version}");
}

/// Every command is in the document.
#[test]
fn the_document_of_commands_is_complete() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let document = include_str!("../../../docs/operate/commands.md");
    let names = |arguments: &[&str]| -> Vec<String> {
        let help = String::from_utf8(site.run(&[arguments, &["--help"]].concat()).stdout).unwrap();
        let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
        let (list, _) = list.split_once("\n\n").unwrap();
        let names = list.lines().filter_map(|line| line.split_whitespace().next());
        names.filter(|name| *name != "help").map(str::to_owned).collect()
    };
    for command in names(&[]) {
        let below = names(&[&command]);
        let all = if below.is_empty() { vec![String::new()] } else { below };
        for one in all {
            let typed = format!("`tollgate {}", format!("{command} {one}").trim());
            assert!(document.contains(&typed), "{typed}");
        }
    }
}

/// The names of models, which callers choose, make no labels and no lines.
#[test]
fn models_make_no_series() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let key = merchant_key(&site);
        let service = site.serve();
        let token = service.create_customer(&key, "10").await;
        let mut counts = Vec::new();
        for number in 0..20 {
            let body = json!({"model": format!("m-{number}"), "messages": []});
            let path = format!("/v1/forward?u={}", site.chat_url());
            service.call("POST", &path, &token).json(&body).send().await.expect(200);
            counts.push(metrics(&service).await.lines().count());
        }
        assert_eq!(counts.iter().min(), counts.iter().max(), "{counts:?}");
    });
}
