//! `tollgate reprice` beside a running service: the difference of a corrected price is booked once.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use serde_json::Value;

use crate::site::{Site, assert_audit_clean, each_site, merchant_key};

/// Changes the output price of every model in the configuration file.
fn set_output_price(site: &Site, before: &str, after: &str) {
    let path = site.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, after) = (format!("output = \"{before}\""), format!("output = \"{after}\""));
    assert!(text.contains(&before), "{text}");
    std::fs::write(&path, text.replace(&before, &after)).unwrap();
}

fn lines(site: &Site, more: &[&str]) -> Vec<String> {
    let arguments = ["reprice", "--from", "2000-01-01", "--to", "2100-01-01"];
    let output = site.run(&[&arguments, more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// An amount with ten decimals, in units.
fn units(amount: &Value) -> i64 {
    amount.as_str().unwrap().replace('.', "").parse().unwrap()
}

#[test]
fn a_price_that_is_put_right_is_put_right_for_what_was_settled_before() {
    each_site(async |site| {
        let key = merchant_key(site);
        let service = site.serve();
        let token = service.create_customer(&key, "10").await;
        for _ in 0..3 {
            service.forward(&site.chat_url(), &token, false).send().await.expect(200);
        }
        let get = async |path: &str| service.call("GET", path, &key).send().await.expect(200);
        let records = get("/v1/requests").await;
        let output = records["data"][0]["model_usage"]["output_tokens"].as_i64().unwrap();
        let wallets = get("/v1/connections").await;
        let wallet = format!("/v1/wallets/{}", wallets["data"][0]["wallet_id"].as_str().unwrap());
        let before = units(&get(&wallet).await["balance"]);

        assert_eq!(lines(site, &[]).last().unwrap(), "Nothing is to be booked.");
        // One USD more per million: 10,000 units more for each token of the three answers.
        set_output_price(site, "2", "3");
        let more = 3 * output * 10_000;
        let sum = format!("+0.{more:010}");
        let said = lines(site, &["--dry-run"]);
        let differ = |of: &str| {
            format!(
                "{of}: 3 of 3 records differ; base {sum}, wallets {sum}, merchants +0.0000000000 USD"
            )
        };
        let model = records["data"][0]["model"].as_str().unwrap();
        assert_eq!(
            said,
            [
                differ(&format!("house {model}")),
                differ("in all"),
                "Nothing was booked: this was a dry run.".to_owned()
            ]
        );
        assert_eq!(units(&get(&wallet).await["balance"]), before);

        let booked = lines(site, &["--json", "--provider", "house", "--model", "*"]);
        assert_eq!(booked.len(), 3);
        for line in &booked {
            let one: Value = serde_json::from_str(line).unwrap();
            assert_eq!(one["outcome"], "booked");
            assert_eq!(units(&one["wallet_difference"]), output * 10_000);
            assert_eq!(one["applied"][0]["prices"]["output"], "3");
        }
        assert_eq!(units(&get(&wallet).await["balance"]), before - more);
        let transactions = get(&format!("{wallet}/transactions")).await;
        assert_eq!(transactions["data"][0]["kind"], "correction");
        assert_eq!(transactions["data"][0]["description"], "repriced");
        assert_eq!(get("/v1/requests").await, records, "records stay as they were");
        assert_eq!(lines(site, &["--json"]), [""; 0]);
        assert_audit_clean(site);

        set_output_price(site, "3", "2");
        lines(site, &[]);
        assert_eq!(units(&get(&wallet).await["balance"]), before);
        assert_audit_clean(site);
    });
}

#[test]
fn what_cannot_be_meant_is_said() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    for (arguments, why) in [
        (&["--from", "2026-02-30", "--to", "2026-03-01"][..], "expected a date such as 2026-11-01"),
        (&["--from", "2026-03-02", "--to", "2026-03-01"], "--to is before --from"),
        (&["--from", "2026-03-02"], "--to"),
        (&["--from", "2026-03-01", "--to", "2026-03-01", "--merchant", "acme"], "--merchant"),
    ] {
        let output = site.run(&[&["reprice"], arguments].concat());
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(why), "{said}");
    }
}
