//! `tollgate usage`, `requests`, `refusals` and `statement` beside a running service: what they print is what the API
//! answers with.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use serde_json::{Value, json};

use crate::site::{Site, each_site, merchant_key};

/// The output of a command that succeeds.
fn output(site: &Site, command: &[&str]) -> String {
    let output = site.command(command).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn reports_of_the_command_line_are_those_of_the_interface() {
    each_site(async |site| {
        let key = merchant_key(site);
        let service = site.serve();
        let token = service.create_customer(&key, "25").await;
        for _ in 0..3 {
            service.forward(&site.chat_url(), &token, false).send().await.expect(200);
        }
        let paused = json!({"name": "Paused", "status": "paused"});
        let paused = service.call("POST", "/v1/spend_keys", &key).json(&paused).send().await;
        let paused = paused.expect(201)["key"].as_str().unwrap().to_owned();
        let body = json!({"model": "house/m", "max_tokens": 8, "messages": []});
        let refused = service.call("POST", "/v1/chat/completions", &paused).json(&body);
        let refusal_id = refused.send().await.expect(403)["error"]["refusal_id"].clone();
        let get = async |path: &str| service.call("GET", path, &key).send().await.expect(200);
        while get("/v1/requests?status=pending").await["data"] != json!([]) {}
        let customer = get("/v1/connections").await["data"][0].clone();
        let customer = customer["connection_id"].as_str().unwrap();
        let record = get("/v1/requests").await["data"][0].clone();
        let month = &record["created_at"].as_str().unwrap()[..7];
        let merchants = output(site, &["merchant", "list", "--json"]);
        let merchant: Value = serde_json::from_str(merchants.lines().next().unwrap()).unwrap();
        let merchant = merchant["merchant_id"].as_str().unwrap();
        let run = |command: &[&str]| output(site, &[command, &["--merchant", merchant]].concat());

        let refusals = get("/v1/refusals").await;
        assert_eq!(refusals["data"][0]["refusal_id"], refusal_id);
        let printed: Value = serde_json::from_str(&run(&["refusals", "--json"])).unwrap();
        assert_eq!(printed, refusals["data"][0]);
        let csv = run(&["refusals", "--csv", "--code", "spend_key_paused"]);
        assert!(csv.lines().count() == 2 && csv.contains(refusal_id.as_str().unwrap()), "{csv}");
        assert!(run(&["refusals"]).contains("This spend key is paused."));

        let path = format!("/v1/connections/{customer}/statements/{month}");
        let statement = get(&path).await;
        let asked = ["statement", "--connection", customer, "--month", month];
        let printed: Value =
            serde_json::from_str(&run(&[&asked[..], &["--json"]].concat())).unwrap();
        assert_eq!(printed, statement);
        let closing = statement["closing_balance"].as_str().unwrap();
        assert!(run(&asked).contains(closing));
        assert!(run(&[&asked[..], &["--csv"]].concat()).contains(closing));

        let usage = get(&format!("/v1/usage?connection_id={customer}&interval=none")).await;
        let printed = run(&["usage", "--by", "connection", "--month", month]);
        let revenue = usage["totals"]["revenue"].as_str().unwrap();
        let line = printed.lines().find(|line| line.contains(customer)).unwrap();
        assert!(line.contains(revenue), "{revenue}: {printed}");
        let records = run(&["requests", "--csv", "--connection", customer]);
        assert_eq!(records.lines().count(), 4, "{records}");
        let wrong = site.command(&["refusals", "--merchant", merchant, "--code", "nonsense"]);
        let wrong = { wrong }.output().unwrap();
        assert!(String::from_utf8_lossy(&wrong.stderr).contains("--code: "), "{wrong:?}");
        let wrong = site.command(&["usage", "--merchant", merchant, "--by", "nonsense"]);
        let wrong = { wrong }.output().unwrap();
        assert!(String::from_utf8_lossy(&wrong.stderr).contains("--by: "), "{wrong:?}");
        let unknown = "con_01M7XPE600126G16EDVKESBWE6";
        let wrong =
            ["statement", "--merchant", merchant, "--connection", unknown, "--month", month];
        assert_eq!(site.command(&wrong).output().unwrap().status.code(), Some(1));
    });
}
