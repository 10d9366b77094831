//! `tollgate import litellm` with the tables of a real database: the keys go on working, with their limits and the spend so
//! far.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use serde_json::{Value, json};
use tollgate_testkit::TestRequest;

use crate::site::{ServiceProcess, Site, assert_audit_clean, each_site};

const AGENT: &str = "sk-Team_abcdefghijklmnop1234";
const ANN: &str = "sk-user-key-000000000001";
const OLD: &str = "sk-blocked-0000000000001";
const TIGHT: &str = "sk-tight-key-0000000000001";

/// The files of the tables.
fn tables() -> Vec<String> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/litellm-import/tests/data");
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| file.to_str().unwrap().to_owned()).collect()
}

fn import(site: &Site, merchant: &str, options: &[&str]) -> Value {
    let files = tables();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    site.json(&[&["import", "litellm", "--merchant", merchant], options, &files[..]].concat())
}

fn call(service: &ServiceProcess, site: &Site, key: &str, model: &str) -> TestRequest {
    let body =
        json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]});
    service.call("POST", &format!("/v1/forward?u={}", site.chat_url()), key).json(&body)
}

#[test]
fn keys_of_litellm_go_on_working_with_their_limits_and_their_spend() {
    each_site(async |site| {
        let service = site.serve();
        let merchant = site.json(&["merchant", "create", "Acme"]);
        let (id, secret) =
            (merchant["merchant_id"].as_str().unwrap(), merchant["secret_key"].as_str().unwrap());
        let unknown = call(&service, site, AGENT, "gpt-4o-mini").send().await;
        assert_eq!(unknown.error(), "forward_token_json_invalid", "as any text that is no key");
        let get = async |path: &str| service.call("GET", path, secret).send().await.expect(200);

        let dry = import(site, id, &["--dry-run"]);
        assert!(dry["budgets"].as_array().unwrap().iter().all(|one| one["is_new"] == json!(true)));
        assert_eq!(get("/v1/budgets").await["data"], json!([]));
        let made = import(site, id, &[]);
        assert_eq!((made["budgets"].as_array().unwrap().len(), &made["notes"]), (4, &dry["notes"]));
        assert_audit_clean(site);

        // The tree and the keys.
        let budgets = get("/v1/budgets").await["data"].as_array().unwrap().clone();
        let budget = |name: &str| budgets.iter().find(|one| one["name"] == name).unwrap().clone();
        assert_eq!(budget("Research")["parent_id"], budget("Acme")["budget_id"]);
        assert_eq!(budget("Acme")["current_spend"], "12.3456789012");
        let keys = get("/v1/spend_keys").await["data"].as_array().unwrap().clone();
        let key = |name: &str| keys.iter().find(|one| one["name"] == name).unwrap().clone();
        assert_eq!(key("agent")["budget_id"], budget("Research")["budget_id"]);
        assert_eq!(key("agent")["key_preview"], "sk-...1234");
        assert_eq!(key("agent")["rate_limit"]["rpm"], json!(60));
        assert_eq!(key("tight")["expires_at"], "2030-01-01T00:00:00Z");

        // The keys as their holders have them.
        call(&service, site, AGENT, "gpt-4o-mini").send().await.expect(200);
        let refused = call(&service, site, AGENT, "other").send().await;
        assert_eq!(refused.error(), "spend_key_model_not_allowed");
        call(&service, site, ANN, "any").send().await.expect(200);
        let refused = call(&service, site, OLD, "any").send().await;
        assert_eq!(refused.error(), "spend_key_paused");
        // 0.000001 USD are left of its month.
        call(&service, site, TIGHT, "any").send().await.expect(200);
        let refused = call(&service, site, TIGHT, "any").send().await;
        assert_eq!(refused.error(), "spend_limit_reached");
        let refused = service.call("GET", "/v1/wallet", AGENT).send().await;
        assert_eq!(refused.error(), "operation_not_allowed", "as any spend key");

        // Again: nothing is new, and what was spent since is kept.
        let before = get("/v1/spend_keys").await;
        let again = import(site, id, &[]);
        let is_new = |list: &str| {
            again[list].as_array().unwrap().iter().any(|one| one["is_new"] == json!(true))
        };
        assert!(!is_new("budgets") && !is_new("keys"), "{again}");
        assert_eq!(get("/v1/spend_keys").await, before);
        assert_audit_clean(site);

        // A key that was replaced stays dead, and a key belongs to one merchant.
        let rotate =
            format!("/v1/spend_keys/{}/rotate", key("ann")["spend_key_id"].as_str().unwrap());
        service.call("POST", &rotate, secret).send().await.expect(200);
        let again = import(site, id, &[]);
        assert!(again["keys"].as_array().unwrap().iter().all(|one| one["is_new"] == json!(false)));
        assert_eq!(call(&service, site, ANN, "any").send().await.error(), "auth_invalid");
        let second = site.json(&["merchant", "create", "Second"]);
        let second = import(site, second["merchant_id"].as_str().unwrap(), &[]);
        for one in second["keys"].as_array().unwrap() {
            assert_eq!([&one["is_new"], &one["is_of_another_merchant"]], [false, true], "{one}");
        }
        let other = site.path().join("tollgate.toml");
        let other = other.to_str().unwrap();
        let wrong = site.run(&["import", "litellm", "--merchant", id, other]);
        let reason = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(
            !wrong.status.success() && reason.contains("no table that is imported"),
            "{reason}"
        );
    });
}
