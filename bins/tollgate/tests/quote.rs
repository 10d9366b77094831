//! `tollgate quote` prints the cost and the hold that a service with the same configuration would book.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::io::Write;
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::site::{Site, each_site, merchant_key};

/// Adds a line at the top of the configuration file.
fn configure(site: &Site, line: &str) {
    let path = site.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{line}\n{text}")).unwrap();
}

fn text(site: &Site, arguments: &[&str]) -> String {
    let output = site.run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_provider_that_is_not_there_has_no_quote() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let output = site.run(&["quote", "--provider", "opnai", "--model", "m", "--input-tokens", "1"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{output:?}");
    assert!(
        said.contains("there is no provider opnai; there are ") && said.contains("openai"),
        "{said}"
    );
}

#[test]
fn the_command_the_service_and_the_record_agree() {
    each_site(async |site| {
        configure(site, "service_charge_rate = \"0.019\"");
        let key = merchant_key(site);
        let service = site.serve();
        let call = |method: &str, path: &str| service.call(method, path, &key);
        let tiers = json!([{"start": "0", "rate": "10"}, {"start": "2", "rate": "5"}]);
        let plan =
            json!({"name": "Plan", "rate_type": "fixed", "tier_type": "tokens_1m", "tiers": tiers});
        let meter = call("POST", "/v1/meters").json(&plan).send().await.expect(201);

        let u = site.chat_url();
        let token = json!({"secret_key": key, "meter_slug": meter["meter_slug"]});
        let token = STANDARD.encode(token.to_string());
        service.forward(&u, &token, false).send().await.expect(200);
        let list = call("GET", "/v1/requests").send().await.expect(200);
        let record = &list["data"][0];
        let count = |name: &str| record["model_usage"][name].to_string();
        let (input, output) = (count("input_tokens"), count("output_tokens"));
        assert_eq!(record["fee"]["breakdown"].as_array().unwrap().len(), 2, "{record}");

        let usage = [
            "quote",
            "--provider",
            "house",
            "--model",
            "m",
            "--input-tokens",
            &input,
            "--output-tokens",
            &output,
        ];
        let tiers = ["--tier", "0=10", "--tier", "2=5"];
        let by_tiers = site.json(&[&usage[..], &tiers].concat());
        for (name, value) in by_tiers.as_object().unwrap() {
            assert_eq!(value, &record[name], "{name}");
        }
        assert_ne!(record["service_charge"]["amount"], "0.0000000000");

        let ask = json!({
            "provider": "house", "model": "m", "meter_id": meter["meter_id"],
            "usage": {"input_tokens": record["model_usage"]["input_tokens"],
                      "output_tokens": record["model_usage"]["output_tokens"]},
        });
        let later = call("POST", "/v1/quote").json(&ask).send().await.expect(200);
        let counted = record["model_usage"]["total_tokens"].to_string();
        assert_eq!(later, site.json(&[&usage[..], &tiers, &["--counter", &counted]].concat()));

        let body = r#"{"model": "m", "max_tokens": 7, "messages": []}"#;
        let ask = format!(r#"{{"url": "{u}", "body": {body}, "meter_id": {}}}"#, meter["meter_id"]);
        let hold = call("POST", "/v1/quote").bytes("application/json", ask.as_bytes());
        let hold = hold.send().await.expect(200);
        std::fs::write(site.path().join("body.json"), body).unwrap();
        let call = ["quote", "--url", &u, "--body", "body.json"];
        assert_eq!(hold, site.json(&[&call[..], &tiers].concat()));
        let mut piped =
            site.command(&["quote", "--json", "--url", &u, "--body", "-", "--tier", "0=10"]);
        let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        piped.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let piped: Value =
            serde_json::from_slice(&piped.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(hold, piped);
    });
}

#[test]
fn a_meter_of_the_database_prices_as_well() {
    each_site(async |site| {
        let service = site.serve();
        let merchant = site.json(&["merchant", "create", "Acme"]);
        let (id, key) =
            (merchant["merchant_id"].as_str().unwrap(), merchant["secret_key"].as_str().unwrap());
        let plan = json!({"name": "Plan", "rate_type": "percentage", "tier_type": "requests",
                          "tiers": [{"start": "0", "rate": "20"}]});
        let meter = service.call("POST", "/v1/meters", key).json(&plan).send().await.expect(201);
        let meter = meter["meter_id"].as_str().unwrap();
        let usage = ["quote", "--provider", "house", "--model", "m", "--input-tokens", "1000000"];
        let quote = site.json(&[&usage[..], &["--meter", meter, "--merchant", id]].concat());
        assert_eq!(quote["fee"]["amount"], "0.2000000000");
        let other = site.json(&["merchant", "create", "Other"]);
        let other = other["merchant_id"].as_str().unwrap();
        let refused = site.run(&[&usage[..], &["--meter", meter, "--merchant", other]].concat());
        assert!(!refused.status.success());
        assert!(String::from_utf8_lossy(&refused.stderr).contains("has no meter"));
    });
}

#[test]
fn every_line_of_a_total_is_explained_without_a_database() {
    let site = Site::new("postgres://nobody@127.0.0.1:1/nowhere", None);
    configure(&site, "service_charge_rate = \"0.019\"");
    let said = text(
        &site,
        &[
            "quote",
            "--provider",
            "openai",
            "--model",
            "gpt-4o-mini",
            "--input-tokens",
            "1000000",
            "--cached-input-tokens",
            "400000",
            "--output-tokens",
            "500000",
            "--tier",
            "0=5",
            "--tier",
            "1000000=3",
        ],
    );
    let expected = "\
input cost            0.1200000000  600000 input at 0.15 per million, 400000 cached input at 0.075 per million
output cost           0.3000000000  500000 output at 0.6 per million
fee                   5.0000000000  1000000 tokens at 5 per million, tier from 0
fee                   1.5000000000  500000 tokens at 3 per million, tier from 1000000
service charge        0.1235000000  0.019 of the fee
total                 7.0435000000  USD
";
    assert_eq!(said, expected);

    let said = text(
        &site,
        &[
            "quote",
            "--input-seconds",
            "90.5",
            "--tier-type",
            "minutes",
            "--tier",
            "0=1",
            "--tier",
            "1=0.5",
            "--counter",
            "0",
        ],
    );
    let expected = "\
input cost            0.0000000000
output cost           0.0000000000
There is no price: what the provider charges is not known.
fee                   1.0000000000  60 seconds at 1 per minute, tier from 0
fee                   0.2541666667  30.5 seconds at 0.5 per minute, tier from 1
service charge        0.0238291667  0.019 of the fee
total                 1.2779958334  USD
";
    assert_eq!(said, expected);

    let url = site.chat_url();
    std::fs::write(
        site.path().join("body.json"),
        r#"{"model":"m","max_tokens":1000,"n":2,"messages":[],"service_tier":"priority"}"#,
    )
    .unwrap();
    let said = text(&site, &["quote", "--url", &url, "--body", "body.json"]);
    let expected = "\
input cost            0.0000770000  at most 77 tokens at 1 per million
output cost           0.0040000000  at most 2 x 1000 tokens at 2 per million
hold                  0.0040770000  USD
An estimate: service_tier leaves the cost without a bound.
";
    assert_eq!(said, expected);
}

#[test]
fn a_hold_is_explained_by_the_units_that_have_prices() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let path = site.path().join("tollgate.toml");
    let row = |model: &str, prices: &str| {
        format!("[[prices]]\nprovider = \"house\"\nmodel = \"{model}\"\n{prices}\n")
    };
    let rows = [
        row("speaker", "input_characters = \"15\""),
        row("painter", "image = \"0.04\""),
        row("asked", "input = \"1\"\noutput = \"2\"\nrequest = \"0.01\""),
    ];
    let first = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{first}\n{}", rows.concat())).unwrap();
    let said = |path: &str, body: &str| {
        std::fs::write(site.path().join("body.json"), body).unwrap();
        let url = site.simulator.url(path);
        text(&site, &["quote", "--url", &url, "--body", "body.json"])
    };
    let speech = r#"{"model": "speaker", "voice": "alloy", "input": "four"}"#;
    let expected = "\
input cost            0.0000600000  at most 4 input characters at 15 per million
output cost           0.0000000000
hold                  0.0000600000  USD
";
    assert_eq!(said("/v1/audio/speech", speech), expected);
    let expected = "\
input cost            0.0000000000
output cost           0.0800000000  at most 2 image at 0.04 each
hold                  0.0800000000  USD
";
    let images = r#"{"model": "painter", "prompt": "a house", "n": 2}"#;
    assert_eq!(said("/v1/images/generations", images), expected);
    let expected = "\
input cost            0.0000460000  at most 46 tokens at 1 per million
output cost           0.0100140000  at most 7 tokens at 2 per million, at most 1 request at 0.01 each
hold                  0.0100600000  USD
";
    let chat = r#"{"model":"asked","max_tokens":7,"messages":[]}"#;
    assert_eq!(said("/v1/chat/completions", chat), expected);
}

#[test]
fn what_is_wrong_is_said_with_all_its_issues() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    std::fs::write(site.path().join("body.json"), r#"{"max_tokens": -1}"#).unwrap();
    let url = site.chat_url();
    for (arguments, said) in [
        (vec!["--cached-input-tokens", "1", "--input-seconds", "x"], vec!["input_seconds: "]),
        (
            vec!["--cached-input-tokens", "1", "--reasoning-tokens", "2"],
            vec!["cached_input_tokens: ", "reasoning_tokens: "],
        ),
        (vec!["--tier", "5=1", "--tier", "5=x"], vec!["--tier"]),
        (vec!["--tier", "5=1", "--tier", "5=2"], vec!["in the first tier", "than the start"]),
        (vec!["--rate-type", "free", "--tier", "0=1"], vec!["percentage"]),
        (vec!["--provider", "house"], vec!["--model"]),
        (vec!["--url", &url], vec!["--body"]),
        (
            vec!["--url", &url, "--body", "body.json", "--input-tokens", "1"],
            vec!["cannot be used with"],
        ),
        (vec!["--url", &url, "--body", "missing.json"], vec!["cannot read missing.json"]),
        (vec!["--url", &url, "--body", "body.json"], vec!["body.model: ", "body.max_tokens: "]),
        (vec!["--url", "https://example.com/v1", "--body", "body.json"], vec!["url: must have"]),
    ] {
        let output = site.run(&[vec!["quote"], arguments.clone()].concat());
        assert!(!output.status.success(), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        for said in said {
            assert!(error.contains(said), "{arguments:?}: {said} is not in {error}");
        }
    }
    assert!(!site.path().join("tollgate.db").exists(), "no database was touched");
}
