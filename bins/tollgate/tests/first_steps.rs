//! `tollgate init` and `tollgate doctor`, as a new operator runs them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails by panicking")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedProvider, ScriptedResponse};

use crate::site::{Site, each_site, merchant_key};

fn init(folder: &Path, answers: &str, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("init").args(options).current_dir(folder).env_remove("TOLLGATE_CONFIG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn four_answers_make_a_configuration_and_a_merchant_that_can_sign_in() {
    let folder = tempfile::tempdir().unwrap();
    let answers = "127.0.0.1:0\n\nopenai sk-secret\nAcme\n";
    let made = init(folder.path(), answers, &["--json"]);
    assert!(made.status.success(), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(made["dashboard"], "http://127.0.0.1:0/dashboard");
    assert!(made["secret_key"].as_str().unwrap().starts_with("tgs_"), "{made}");

    let file = folder.path().join("tollgate.toml");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(folder.path().join("tollgate.db").exists());
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("[providers.openai]") && text.contains("sk-secret"), "{text}");

    // A second run replaces nothing.
    let again = init(folder.path(), answers, &[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists"), "{again:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn answers_that_are_not_valid_write_nothing() {
    for (answers, said) in [
        ("nowhere\n\n\n\n", "listen"),
        ("\nmysql://db\n\n\n", "database_url"),
        ("\n\nsk-secret\n\n", "two words"),
        ("\n\nopnai sk-secret\n\n", "providers.opnai"),
        ("\n\n\n", "the input ended"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let made = init(folder.path(), answers, &[]);
        let text = String::from_utf8_lossy(&made.stderr).into_owned();
        assert_eq!(made.status.code(), Some(1), "{answers:?}: {text}");
        assert!(text.contains(said) && !text.contains("sk-secret"), "{answers:?}: {text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{answers:?}");
    }
}

#[test]
fn a_first_configuration_does_not_differ_from_what_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = init(folder.path(), "\n\n\n\n", &["--config", "none/tollgate.toml"]);
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("there is no folder"), "{nowhere:?}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("init").current_dir(folder.path()).env_remove("TOLLGATE_CONFIG");
    command.env("TOLLGATE_LISTEN", "127.0.0.1:1").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"127.0.0.1:2\n\n\n\n").unwrap();
    let made = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&made.stderr).contains("TOLLGATE_LISTEN"), "{made:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The checks of a run and its exit code, with settings of the environment.
fn examine(site: &Site, settings: &[(&str, &str)]) -> (Vec<Value>, Option<i32>) {
    let mut command = site.command(&["doctor", "--json"]);
    let output = command.envs(settings.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let checks = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (checks, output.status.code())
}

fn status<'a>(checks: &'a [Value], name: &str) -> &'a str {
    let found = checks.iter().find(|check| check["check"] == name);
    found.unwrap_or_else(|| panic!("{name}: {checks:?}"))["status"].as_str().unwrap()
}

#[test]
fn a_doctor_finds_nothing_where_all_is_well_and_names_what_is_not() {
    each_site(async |site| {
        // There is no database yet.
        if site.database.is_none() {
            let (checks, code) = examine(site, &[]);
            assert_eq!((status(&checks, "database"), code), ("failed", Some(1)));
        }
        let key = merchant_key(site);
        let service = site.serve();
        let (checks, code) = examine(site, &[]);
        for name in ["configuration", "database", "disk", "prices", "provider house"] {
            assert_ne!(status(&checks, name), "failed", "{checks:?}");
        }
        assert_eq!(code, Some(0), "{checks:?}");

        let refusing = ScriptedProvider::start();
        let date = "Mon, 23 Nov 2026 00:00:00 GMT";
        let answer = ScriptedResponse::json(401, json!({"error": "no"})).header("date", date);
        refusing.push_always(answer);
        let url = refusing.url("/v1");
        let bad = [
            ("TOLLGATE_PROVIDERS__BAD__BASE_URL", url.as_str()),
            ("TOLLGATE_PROVIDERS__BAD__DIALECT", "openai"),
            ("TOLLGATE_PROVIDERS__BAD__API_KEY", "sk-canary"),
            ("TOLLGATE_PROVIDERS__BAD__ALLOW_PRIVATE_NETWORK", "true"),
            ("TOLLGATE_PROVIDERS__GONE__BASE_URL", "http://127.0.0.1:9/v1"),
            ("TOLLGATE_PROVIDERS__GONE__DIALECT", "openai"),
            ("TOLLGATE_PROVIDERS__GONE__ALLOW_PRIVATE_NETWORK", "true"),
        ];
        let (good, gone) =
            (site.simulator.url("/webhooks/good"), "http://127.0.0.1:9/hook".to_owned());
        for (name, url) in [("Good", good), ("Gone", gone)] {
            let body = json!({"name": name, "url": url});
            service.call("POST", "/v1/webhooks", &key).json(&body).send().await.expect(201);
        }
        let (checks, code) = examine(site, &bad);
        assert_eq!(code, Some(1));
        assert_eq!(status(&checks, "provider bad"), "failed", "{checks:?}");
        assert_eq!(status(&checks, "provider gone"), "failed", "{checks:?}");
        assert_eq!(status(&checks, "provider house"), "ok", "{checks:?}");
        assert_eq!(status(&checks, "clock"), "ok", "by the clock of house: {checks:?}");
        assert_eq!(status(&checks, "webhook Good"), "ok", "{checks:?}");
        assert_eq!(status(&checks, "webhook Gone"), "failed", "{checks:?}");
        assert!(!serde_json::to_string(&checks).unwrap().contains("sk-canary"), "{checks:?}");

        let alone = [("TOLLGATE_PROVIDERS__HOUSE__BASE_URL", "http://127.0.0.1:9/v1")];
        let (checks, _) = examine(site, &[&bad[..], &alone].concat());
        assert_eq!(status(&checks, "clock"), "failed", "two days ahead: {checks:?}");
    });
}

#[test]
fn a_model_without_a_price_has_no_quote_and_usage_lines_name_what_is_missing() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    for json in [&["--json"][..], &[]] {
        let quote = ["quote", "--provider", "openai", "--model", "no-such-model"];
        let quote = site.run(&[&quote[..], &["--input-tokens", "1"], json].concat());
        let said = String::from_utf8_lossy(&quote.stderr).into_owned();
        assert_eq!(quote.status.code(), Some(1), "{said}");
        assert!(said.contains("no price for openai no-such-model"), "{said}");
        assert!(quote.stdout.is_empty());
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["key", "create"]).env("TOLLGATE_CONFIG", site.path().join("tollgate.toml"));
    let said = command.output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(2), "{text}");
    assert!(text.contains("--merchant") && !text.contains("--config"), "{text}");
}
