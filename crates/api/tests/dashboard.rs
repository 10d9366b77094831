//! The dashboard over HTTP: access to pages and changes, its headers for browsers, and its figures, which are those
//! of the interface. The tests of the program check its look in a real browser.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::timeout;
use tollgate_testkit::{Gate, ScriptedResponse, TestRequest};

use crate::support::browser::{Browser, ORIGIN, form, form_token, page, pages, try_sign_in};
use crate::support::*;

/// An amount of the interface in the format of the pages.
fn money(amount: &Value) -> String {
    let text = amount.as_str().unwrap();
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |rest| ("−", rest));
    let (usd, decimals) = text.split_once('.').unwrap();
    format!("{sign}${usd}.{:0<2}", decimals.trim_end_matches('0'))
}

fn path_of(path: &str) -> String {
    path.replace("{id:.+}", "x").replace("{id}", "x").replace("{delivery_id}", "x")
}

#[test]
fn a_session_is_a_random_token_in_a_cookie_that_no_script_and_no_other_site_has() {
    each_gateway(async |gateway| {
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let attributes: Vec<_> = browser.set_cookie.split("; ").skip(1).collect();
        assert_eq!(attributes, ["Max-Age=43200", "Path=/dashboard", "HttpOnly", "SameSite=Strict"]);
        let token = browser.cookie.strip_prefix("tollgate_session=").unwrap();
        assert_eq!(token.len(), 32);
        for (method, path) in pages() {
            let answer = browser.call(method, &path_of(path)).send().await;
            let everything = format!("{:?}{}", answer.headers, answer.text());
            for secret in [gateway.key(), token, &gateway.key()[12..]] {
                assert!(!everything.contains(secret), "{method} {path}");
            }
        }
        let over_tls = page(gateway, "POST", "/sign-in")
            .header("origin", "https://test")
            .header("x-forwarded-proto", "https");
        let answer = form(over_tls, &[("key", gateway.key())]).send().await;
        assert!(answer.header("set-cookie").unwrap().ends_with("; Secure"), "{answer:?}");
    });
}

#[test]
fn without_a_session_every_page_leads_to_where_one_signs_in() {
    each_gateway(async |gateway| {
        let cookies =
            ["", "tollgate_session=", &format!("tollgate_session={}", "x".repeat(32)), "other=1"]
                .map(str::to_owned);
        for (method, path) in pages() {
            if ["/sign-in", "/style.css", "/icon.svg", "/script.js"].contains(&path) {
                continue;
            }
            for cookie in &cookies {
                let call = page(gateway, method, &path_of(path)).header("origin", ORIGIN);
                let answer = call.header("cookie", cookie).send().await;
                assert_eq!(answer.status, 303, "{method} {path}: {}", answer.text());
                assert_eq!(answer.header("location"), Some("/dashboard/sign-in"));
            }
        }
        let shown = page(gateway, "GET", "/sign-in").send().await;
        assert!(shown.text().contains("Secret key"), "{}", shown.text());
    });
}

#[test]
fn signing_out_ends_the_session_and_so_does_deleting_its_key() {
    each_gateway(async |gateway| {
        let [first, second] = [(); 2].map(|()| Browser::sign_in(gateway, gateway.key()));
        let (first, second) = (first.await, second.await);
        let answer = first.send("/sign-out", &[]).await;
        assert_eq!(answer.header("location"), Some("/dashboard/sign-in"));
        assert!(answer.header("set-cookie").unwrap().starts_with("tollgate_session=; Max-Age=0"));
        assert_eq!(first.get("").await.status, 303, "what the browser still has opens nothing");
        second.show("").await;

        let made = gateway.post("/secret_keys", &json!({"name": "Own"})).await.expect(201);
        let third = Browser::sign_in(gateway, &text(&made, "secret_key")).await;
        let path = format!("/secret_keys/{}", text(&made, "secret_key_id"));
        gateway.delete(&path).await.expect(200);
        assert_eq!(third.get("").await.status, 303);
        second.show("").await;
    });
}

#[test]
fn what_is_no_secret_key_does_not_sign_in_and_after_ten_attempts_nothing_does() {
    each_gateway(async |gateway| {
        let spend_key = gateway.spend_key(&json!({})).await.key;
        let stranger = tollgate_domain::Key::generate(
            tollgate_domain::KeyKind::Secret,
            tollgate_domain::CellNumber::default(),
        );
        let wrong = ["", "open-sesame", "tgs_<b>", &spend_key, stranger.reveal()];
        for key in wrong.iter().chain(&wrong[1..]) {
            let answer = try_sign_in(gateway, key).await;
            assert_eq!(answer.status, 403, "{key}: {}", answer.text());
            assert!(answer.header("set-cookie").is_none());
            assert!(key.is_empty() || !answer.text().contains(key), "{key} is shown again");
        }
        // A successful attempt resets the count of failures.
        Browser::sign_in(gateway, gateway.key()).await;
        for _ in 0..10 {
            assert_eq!(try_sign_in(gateway, "open-sesame").await.status, 403);
        }
        for key in ["open-sesame", gateway.key()] {
            let answer = try_sign_in(gateway, key).await;
            assert_eq!(answer.status, 429, "{}", answer.text());
            let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=60).contains(&seconds));
        }
    });
}

#[test]
fn a_form_that_no_page_of_the_session_sent_changes_nothing() {
    each_gateway(async |gateway| {
        let spend_key = gateway.spend_key(&json!({})).await;
        let id = text(&spend_key.made, "spend_key_id");
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let another = Browser::sign_in(gateway, gateway.key()).await;
        let before = gateway.get(&spend_key.path).await.expect(200);
        for (method, path) in pages() {
            if method != "POST" || path == "/sign-in" {
                continue;
            }
            let path = path.replace("{id}", &id).replace("{delivery_id}", "x");
            let own = browser.form_token.as_str();
            for (origin, token) in [
                (None, own),
                (Some("null"), own),
                (Some("https://test"), own),
                (Some("http://test.example"), own),
                (Some("http://test:81"), own),
                (Some(ORIGIN), ""),
                (Some(ORIGIN), "wrong"),
                (Some(ORIGIN), &another.form_token),
            ] {
                let call = browser.call("POST", &path);
                let call = origin.into_iter().fold(call, |call, it| call.header("origin", it));
                let fields = [("form_token", token), ("name", "Made")];
                let answer = form(call, &fields).send().await;
                assert_eq!(answer.status, 403, "{path} from {origin:?}: {}", answer.text());
            }
        }
        let from_elsewhere =
            page(gateway, "POST", "/sign-in").header("origin", "https://evil.test");
        let answer = form(from_elsewhere, &[("key", gateway.key())]).send().await;
        assert_eq!((answer.status, answer.header("set-cookie")), (403, None));
        assert_eq!(gateway.get(&spend_key.path).await.expect(200), before);
        let keys = gateway.get("/spend_keys").await.expect(200);
        assert_eq!(keys["data"].as_array().unwrap().len(), 1);
        browser.show("").await;
    });
}

#[test]
fn every_answer_forbids_frames_other_scripts_and_all_that_is_elsewhere() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let nothing = [("GET", "/nothing"), ("DELETE", "/usage"), ("GET", "/requests/req_x")];
        for (method, path) in pages().into_iter().chain(nothing) {
            let answer = browser.call(method, &path_of(path)).send().await;
            let policy = answer.header("content-security-policy").unwrap();
            let expected = "default-src 'none'; style-src 'self'; script-src 'self'; \
                            connect-src 'self'; img-src 'self'; form-action 'self'; \
                            base-uri 'none'; frame-ancestors 'none'";
            assert_eq!(policy, expected, "{path}");
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
            assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{path}");
            assert_eq!(answer.header("referrer-policy"), Some("same-origin"), "{path}");
            let is_asset = ["/style.css", "/icon.svg", "/script.js"].contains(&path);
            let kept = if is_asset { "public, max-age=86400" } else { "no-store" };
            assert_eq!(answer.header("cache-control"), Some(kept), "{path}");
            let text = answer.text();
            // The pages have one small script, and it is a file of their own.
            assert!(text.matches("<script").count() <= 1 && !text.contains("<script>"), "{path}");
            for forbidden in [" style=", " onclick=", "src=\"http", "javascript:", "@import"] {
                assert!(!text.contains(forbidden), "{forbidden} in {path}");
            }
            assert!(path != "/script.js" || text.len() <= 8_192, "{}", text.len());
            if answer.status >= 400 {
                assert!(text.starts_with("<!DOCTYPE html>"), "{method} {path}: {text}");
            }
        }
        assert_eq!(browser.get("/nothing").await.status, 404);
        assert_eq!(browser.call("DELETE", "/usage").send().await.status, 405);
    });
}

#[test]
fn a_request_page_explains_its_price_in_the_exact_figures_of_the_record() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        let record = gateway.record().await;
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let shown = browser.show(&format!("/requests/{}", text(&record, "request_id"))).await;
        let line = &record["fee"]["breakdown"][0];
        let mut figures: Vec<_> =
            ["total_request_cost", "total_wallet_cost", "total_merchant_cost"]
                .map(|name| &record[name])
                .to_vec();
        let usage = &record["model_usage"];
        figures.extend([&usage["input_cost"], &usage["output_cost"], &usage["total_cost"]]);
        figures.extend([
            &line["cost"],
            &record["fee"]["amount"],
            &record["service_charge"]["amount"],
        ]);
        for figure in figures {
            let cell = format!("<td class=\"num\">{}</td>", figure.as_str().unwrap());
            assert!(shown.contains(&cell), "{cell} in {shown}");
        }
        // Units and rates, and the sums of the provider's lines.
        for cell in ["1,000", "$1 per million", "500", "$2 per million", "1,500", "$10 per million"]
        {
            assert!(shown.contains(&format!("<td class=\"num\">{cell}</td>")), "{cell} in {shown}");
        }
        let curl = "curl -X POST &#39;http://test/v1/providers/house/v1/chat/completions&#39;";
        assert!(shown.contains(curl), "{shown}");
        let listed = browser.show("/requests").await;
        assert!(listed.contains(&money(&record["total_request_cost"])), "{listed}");
        let spend = browser.show("/usage").await;
        assert!(spend.contains("house/m-1-2026"), "{spend}");
        for name in ["total_request_cost", "total_wallet_cost", "total_merchant_cost"] {
            assert!(spend.contains(&money(&record[name])), "{name} in {spend}");
        }
        let wallet = gateway.get(&format!("/wallets/{}", gateway.connection.wallet_id)).await;
        let wallet = wallet.expect(200);
        let shown = browser.show(&format!("/wallets/{}", gateway.connection.wallet_id)).await;
        for name in ["balance", "held", "available"] {
            assert!(
                shown.contains(&format!(" title=\"{}\">", money(&wallet[name]))),
                "{name}: {shown}"
            );
        }
        let cost = money(&record["total_wallet_cost"]);
        assert!(shown.contains(&format!("−{cost}")), "the transaction: {shown}");
    });
}

#[test]
fn a_preview_of_a_meter_is_what_a_quote_answers() {
    each_gateway(async |gateway| {
        let meter = json!({"name": "Graduated", "rate_type": "fixed", "tier_type": "tokens_1m",
            "tiers": [{"start": "0", "rate": "10.5"}, {"start": "1000", "rate": "5"}]});
        let meter = text(&gateway.post("/meters", &meter).await.expect(201), "meter_id");
        let connection = gateway.connection.connection_id.to_string();
        let quote = json!({"meter_id": meter, "connection_id": connection, "provider": "house",
            "model": "m-1", "usage": {"input_tokens": 1_234, "output_tokens": 567}});
        let quote = gateway.post("/quote", &quote).await.expect(200);
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let query =
            format!("input=1,234&output=567&connection_id={connection}&provider=house&model=m-1");
        let shown = browser.show(&format!("/meters/{meter}?{query}")).await;
        let lines = quote["fee"]["breakdown"].as_array().unwrap();
        assert_eq!(lines.len(), 2);
        let figures = lines.iter().map(|line| &line["cost"]).chain([
            &quote["fee"]["amount"],
            &quote["model_usage"]["total_cost"],
            &quote["total_request_cost"],
            &quote["total_wallet_cost"],
            &quote["total_merchant_cost"],
        ]);
        for figure in figures {
            let cell = format!("<td class=\"num\">{}</td>", figure.as_str().unwrap());
            assert!(shown.contains(&cell), "{cell} in {shown}");
        }
        for (query, problem) in [
            ("input=many", "whole number"),
            ("input=1&provider=house", "or neither"),
            ("input=1&connection_id=con_x", "no such customer"),
            ("input=1&provider=house&model=unheard-of", "what it charges is not known"),
            ("input=1", "name a provider and a model"),
            ("input=&provider=house&model=m-1", "Say how many tokens"),
        ] {
            let shown = browser.show(&format!("/meters/{meter}?{query}")).await;
            assert!(shown.contains(problem), "{query}: {shown}");
        }
    });
}

#[test]
fn a_spend_key_is_made_paused_and_given_a_new_key_on_its_pages() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let wallet = gateway.connection.wallet_id.to_string();
        let fields = [
            ("name", "Team <blue>"),
            ("wallet_id", wallet.as_str()),
            ("meter_id", ""),
            ("spend_limit", "1.50"),
            ("spend_cycle", "weekly"),
            ("request_limit", "10"),
            ("request_cycle", "daily"),
            ("rpm", "60"),
            ("enforcement", "strict"),
            ("request_shape", "shape_a"),
            ("allowed_models", "m-1\r\nm-2*"),
        ];
        let token = form_token(&browser.show("/spend-keys").await);
        let made = browser.send_with(&token, "/spend-keys", &fields).await;
        let again = browser.send_with(&token, "/spend-keys", &fields).await;
        assert_eq!(again.header("location"), made.header("location"), "{}", again.text());
        let listed = gateway.get("/spend_keys").await.expect(200);
        assert_eq!(listed["data"].as_array().unwrap().len(), 1, "a form makes one key");
        let cookie = made.header("set-cookie").unwrap();
        assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
        let shown_at = made.header("location").unwrap().to_owned();
        let made = browser.follow(&made).await;
        assert_eq!(made.status, 200, "{}", made.text());
        assert!(made.header("set-cookie").unwrap().starts_with("tollgate_new_key=; Max-Age=0"));
        let reloaded = browser.get(shown_at.strip_prefix("/dashboard").unwrap()).await;
        assert_eq!(reloaded.header("location"), Some(shown_at.strip_suffix("/key").unwrap()));
        let key_on = |page: &str| {
            let (_, after) = page.split_once("id=\"key\">").unwrap();
            after.split('<').next().unwrap().to_owned()
        };
        let key = key_on(made.text());
        let listed = gateway.get("/spend_keys").await.expect(200)["data"][0].clone();
        for (name, value) in [
            ("name", json!("Team <blue>")),
            ("wallet_id", json!(wallet)),
            ("meter_id", json!(null)),
            (
                "spend_limit",
                json!({"amount": "1.5000000000", "cycle": "weekly", "time_zone": "UTC"}),
            ),
            ("request_limit", json!({"count": 10, "cycle": "daily", "time_zone": "UTC"})),
            ("rate_limit", json!({"rpm": 60, "burst": 60})),
            ("enforcement", json!("strict")),
            ("allowed_models", json!(["m-1", "m-2*"])),
        ] {
            assert_eq!(listed[name], value, "{name}");
        }
        let id = text(&listed, "spend_key_id");
        let path = format!("/spend-keys/{id}");
        let call = async |key: &str| {
            let chat = gateway.forward_to(&gateway.provider.url("/v1/chat/completions"));
            chat.bearer(key).json(&with(chat_body(), &json!({"max_tokens": 9}))).send().await.status
        };
        assert_eq!(call(&key).await, 200);
        let shown = browser.show(&path).await;
        assert!(!shown.contains(&key) && shown.contains("Team &#60;blue&#62;"), "{shown}");
        let cost = gateway.get(&format!("/spend_keys/{id}")).await.expect(200);
        assert!(shown.contains(&format!("{} of $1.50", money(&cost["current_spend"]))), "{shown}");
        assert!(shown.contains("1 of 10"), "{shown}");

        let answer = browser.send(&format!("{path}/pause"), &[]).await;
        assert_eq!(answer.header("location"), Some(format!("/dashboard{path}").as_str()));
        assert_eq!(call(&key).await, 403);
        assert!(browser.show("").await.contains("is paused"));
        browser.send(&format!("{path}/resume"), &[]).await;
        assert_eq!(call(&key).await, 200);
        let rotated = browser.send(&format!("{path}/rotate"), &[]).await;
        let new = key_on(browser.follow(&rotated).await.text());
        assert_ne!(new, key);
        assert_eq!((call(&key).await, call(&new).await), (401, 200));

        // Values that the interface refuses are refused here, with a message.
        for (field, value, problem) in [
            ("name", "", "name"),
            ("spend_limit", "-1", "spend limit amount"),
            ("spend_limit", "1e3", "spend limit amount"),
            ("rpm", "often", "rate limit rpm"),
            ("enforcement", "none", "enforcement"),
            ("wallet_id", "wal_x", "no such wallet"),
        ] {
            let mut wrong = vec![("name", "Wrong")];
            wrong.retain(|(name, _)| *name != field);
            wrong.push((field, value));
            let answer = browser.send("/spend-keys", &wrong).await;
            assert_eq!(answer.status, 400, "{field}: {}", answer.text());
            assert!(answer.text().contains(problem), "{field}: {}", answer.text());
        }
        // All other fields keep their values; else a corrected form would create another key than intended.
        let mut wrong = fields;
        wrong[3] = ("spend_limit", "1,5");
        let shown = browser.send("/spend-keys", &wrong).await;
        assert_eq!(shown.status, 400);
        for kept in [
            "name=\"name\" value=\"Team &#60;blue&#62;\"".to_owned(),
            format!("value=\"{wallet}\" selected"),
            "name=\"spend_limit\" value=\"1,5\"".to_owned(),
            "value=\"weekly\" selected".to_owned(),
            "name=\"request_limit\" value=\"10\"".to_owned(),
            "name=\"rpm\" value=\"60\"".to_owned(),
            "value=\"strict\" selected".to_owned(),
            ">m-1\r\nm-2*</textarea>".to_owned(),
        ] {
            assert!(shown.text().contains(&kept), "{kept}: {}", shown.text());
        }
        let keys = gateway.get("/spend_keys").await.expect(200);
        assert_eq!(keys["data"].as_array().unwrap().len(), 1);
    });
}

#[test]
fn a_refused_call_has_a_page_that_says_why_and_only_its_merchant_sees_it() {
    each_gateway(async |gateway| {
        let limit = json!({"spend_limit": {"amount": "0.001", "cycle": "daily"}});
        let key = gateway.spend_key(&limit).await;
        let url = gateway.provider.url("/v1/chat/completions");
        let call = || gateway.forward_to(&url).bearer(&key.key).json(&chat_body());
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        call().send().await.expect(200);
        gateway.records().await;
        let answer = call().send().await;
        let error = answer.json()["error"].clone();
        let id = error["refusal_id"].as_str().unwrap();
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let list = browser.show("/requests?code=spend_limit_reached").await;
        assert!(list.contains(&format!("/dashboard/refusals/{id}")), "{list}");
        let page = browser.show(&format!("/refusals/{id}")).await;
        for shown in [error["message"].as_str().unwrap(), "$0.001", "Resets"] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
        let other = gateway.store.merchant().await;
        let other = Browser::sign_in(gateway, other.key.reveal()).await;
        assert!(!other.show("/requests?status=refused").await.contains(id));
    });
}

#[test]
fn calls_on_their_way_are_shown_with_what_they_hold_until_they_end() {
    each_gateway(async |gateway| {
        let gate = Gate::new();
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()).gate_head(&gate));
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        assert!(browser.show("/in-flight").await.contains("None, just now."));
        let call = with(chat_body(), &json!({"max_tokens": 100}));
        let open = gateway.chat().json(&call).open().await;
        gateway.provider.wait_for_calls(1).await;
        let (_, held) = gateway.wallet().await;
        assert_ne!(held, "0.0000000000");
        let shown = browser.show("/in-flight").await;
        assert!(shown.contains(&format!("<dd>{}</dd>", money(&json!(held)))), "{held}: {shown}");
        assert!(shown.contains("house/m-1"), "{shown}");
        let other = gateway.store.merchant().await;
        let other = Browser::sign_in(gateway, other.key.reveal()).await;
        assert!(other.show("/in-flight").await.contains("None, just now."));
        gate.open();
        let mut open = open;
        while open.read_some().await {}
        gateway.records().await;
        assert!(browser.show("/in-flight").await.contains("None, just now."));
    });
}

#[test]
fn a_record_says_what_its_figures_rest_on() {
    each_gateway(async |gateway| {
        let silent = json!({"id": "c", "object": "chat.completion", "choices": []});
        gateway.provider.push(ScriptedResponse::json(200, silent));
        gateway.chat().send().await.expect(200);
        gateway.provider.push(ScriptedResponse::json(500, json!({"error": {}})));
        assert_eq!(gateway.chat().send().await.status, 500);
        gateway.records().await;
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let shown = browser.show("/requests").await;
        for badge in ["estimated", "completed", "error: 500"] {
            assert!(shown.contains(&format!(">{badge}</span>")), "{badge} in {shown}");
        }
    });
}

#[test]
fn what_others_chose_is_shown_as_it_is_and_never_as_markup() {
    each_gateway(async |gateway| {
        let evil = "\"><script>alert(1)</script>'&";
        let customer = json!({"name": evil, "reference_id": evil, "metadata": {"k": evil}});
        let made = gateway.post("/connections", &customer).await.expect(201);
        gateway
            .provider
            .push(ScriptedResponse::json(200, with(chat_answer(), &json!({"model": evil}))));
        gateway.chat().json(&with(chat_body(), &json!({"model": "m-x"}))).send().await.expect(200);
        gateway.records().await;
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let connection = format!("/customers/{}", text(&made, "connection_id"));
        let shown =
            ["", "/usage", "/requests", "/customers", &connection, "/wallets", "/spend-keys"];
        for path in shown {
            let page = browser.show(path).await;
            assert!(!page.contains("<script>") && !page.contains("'&<"), "{path}: {page}");
        }
        assert!(browser.show("/usage").await.contains("&#60;script&#62;alert(1)"));
    });
}

#[test]
fn whoever_opens_the_address_comes_to_the_dashboard() {
    each_gateway(async |gateway| {
        let answer = TestRequest::new(gateway.address, "GET", "/").send().await;
        assert_eq!((answer.status, answer.header("location")), (307, Some("/dashboard")));
    });
}

#[test]
fn lists_go_on_where_the_last_page_ended_and_keep_their_filters() {
    each_gateway(async |gateway| {
        let merchant_id = gateway.merchant.merchant.merchant_id;
        for _ in 0..30 {
            gateway.store.connection(merchant_id, "1").await;
        }
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let ids = |page: &str| -> Vec<String> {
            let links = page.split("<a class=\"main\" href=\"/dashboard/customers/").skip(1);
            links.map(|link| link.split('"').next().unwrap().to_owned()).collect()
        };
        let older = |page: &str| {
            let link = page.split("href=\"").find(|link| link.contains("rel=\"next\""))?;
            Some(link.split('"').next()?.strip_prefix("/dashboard")?.replace("&#38;", "&"))
        };
        let first = browser.show("/customers?sort=newest").await;
        let second = browser.show(&older(&first).unwrap()).await;
        let mut all = [ids(&first), ids(&second)].concat();
        assert_eq!((ids(&first).len(), all.len()), (25, 31));
        assert!(all.is_sorted_by(|one, next| one > next), "newest first, and none twice");
        assert!(older(&second).is_none());
        all.dedup();
        assert_eq!(all.len(), 31);

        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        for user in 0..27 {
            let user = if user == 0 { "bob" } else { "ada" };
            let metadata = json!({"user": user}).to_string();
            gateway.chat().header("x-service-metadata", &metadata).send().await.expect(200);
        }
        gateway.records().await;
        let shown = browser.show("/requests?value=ada").await;
        assert!(shown.contains("Name the metadata key"), "{shown}");
        let shown = browser.show("/requests?key=user&value=ada").await;
        let next = browser.show(&older(&shown).unwrap()).await;
        let count = |page: &str| page.matches("<a class=\"main\"").count();
        assert_eq!((count(&shown), count(&next)), (25, 1));
        assert_eq!(count(&browser.show("/requests?status=error").await), 0);
        gateway.provider.push(ScriptedResponse::json(500, json!({"error": {"message": "no"}})));
        gateway.chat().send().await.expect(500);
        gateway.records().await;
        let failed = browser.show("/requests?status=error").await;
        assert!(count(&failed) == 1 && failed.contains(">error: 500</span>"), "{failed}");
        let none = browser.show("/requests?connection_id=con_x").await;
        assert!(none.contains("nothing with such an id") && count(&none) == 0);
    });
}

#[test]
fn a_delivery_that_failed_is_sent_again_from_its_page() {
    each_gateway_with_webhooks(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, json!({})));
        let hook = json!({"name": "Hook", "url": gateway.provider.url("/hook")});
        let hook = text(&gateway.post("/webhooks", &hook).await.expect(201), "webhook_id");
        let path = format!("/webhooks/{hook}");
        let sent = gateway.post(&format!("{path}/test"), &json!({})).await.expect(200);
        gateway.provider.wait_for_calls(1).await;
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let shown = browser.show(&path).await;
        assert!(shown.contains("webhook.test"), "{shown}");
        let again = format!("{path}/deliveries/{}/redeliver", text(&sent, "delivery_id"));
        assert!(shown.contains(&format!("action=\"/dashboard{again}\"")), "{shown}");
        let answer = browser.send(&again, &[]).await;
        assert_eq!(answer.header("location"), Some(format!("/dashboard{path}").as_str()));
        gateway.provider.wait_for_calls(2).await;
    });
}

#[test]
fn who_has_nothing_yet_is_told_what_to_do_next() {
    each_gateway(async |gateway| {
        let new = gateway.store.merchant().await;
        let browser = Browser::sign_in(gateway, new.key.reveal()).await;
        for (path, next) in [
            ("", "curl http://test/v1/chat/completions"),
            ("/usage", "Nothing in this time."),
            ("/requests", "curl http://test/v1/chat/completions"),
            ("/requests?status=refused", "There is no such request."),
            ("/in-flight", "None, just now."),
            ("/spend-keys", "Make a spend key"),
            ("/budgets", "Make a budget"),
            ("/pricing", "A plan costs a price per cycle"),
            ("/customers", "A customer (a connection in the API)"),
            ("/developers", "this session"),
            ("/wallets", "Make a customer"),
            ("/subscriptions", "curl http://test/v1/subscription_configs"),
            ("/webhooks", "There are no webhooks yet."),
        ] {
            let shown = browser.show(path).await;
            assert!(shown.contains(next), "{path}: {shown}");
        }
    });
}

/// Sends the form of an operation, and returns the page that it leads to.
async fn act(browser: &Browser<'_>, operation: &str, fields: &[(&str, &str)]) -> String {
    let answer = browser.send(&format!("/actions/{operation}"), fields).await;
    assert_eq!(answer.status, 303, "{operation}: {}", answer.text());
    answer.header("location").unwrap().strip_prefix("/dashboard").unwrap().to_owned()
}

#[test]
fn a_customer_is_made_gets_money_a_plan_an_upgrade_and_a_statement_on_its_pages() {
    each_gateway(async |gateway| {
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let next = ("_next", "/dashboard/pricing");
        let meter = [
            next,
            ("name", "Retail"),
            ("rate_type", "percentage"),
            ("tier_type", "tokens_1m"),
            ("tiers.0.start", "0"),
            ("tiers.0.rate", "25"),
        ];
        act(&browser, "createMeter", &meter).await;
        let plan = async |name: &str, price: &str, credit: &str| {
            let fields = [
                ("_next", "/dashboard/plans/{subscription_config_id}"),
                ("name", name),
                ("period_amount", price),
                ("billing_interval", "month"),
                ("included_credit", credit),
                ("rollover_type", "none"),
                ("product_ids:list", ""),
                ("credit_bundles.0.name", ""),
            ];
            act(&browser, "createSubscriptionConfig", &fields).await
        };
        let basic = plan("Basic", "10", "5").await;
        let pro = plan("Pro", "20", "30").await;
        let shown = browser.show("/pricing").await;
        // The gateway has another meter with a fee per unit, so what full use costs is not known.
        assert!(shown.contains("Basic") && shown.contains("depends on use"), "{shown}");
        assert!(browser.show(&pro).await.contains("has a fee per unit"));

        let fields = [
            ("_next", "/dashboard/customers/{connection_id}"),
            ("name", "Globex <b>"),
            ("reference_id", "customer-8"),
            ("email", ""),
        ];
        let page = act(&browser, "createConnection", &fields).await;
        let id = page.strip_prefix("/customers/").unwrap();
        let made = gateway.get(&format!("/connections/{id}")).await.expect(200);
        assert_eq!((&made["reference_id"], &made["email"]), (&json!("customer-8"), &json!(null)));
        let wallet = text(&made, "wallet_id");
        let here = format!("/dashboard{page}");
        let next = ("_next", here.as_str());
        let credit = [next, ("_id", wallet.as_str()), ("amount", "25"), ("description", "Top-up")];
        assert_eq!(act(&browser, "creditWallet", &credit).await, page);
        let basic = basic.strip_prefix("/plans/").unwrap();
        let subscribe = [next, ("connection_id", id), ("subscription_config_id", basic)];
        act(&browser, "createSubscription", &subscribe).await;

        let shown = browser.show(&page).await;
        for text in ["Globex &#60;b&#62;", "$25.00", "Basic", "$5.00 of $5.00 left"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        let pro = pro.strip_prefix("/plans/").unwrap();
        let change = format!("{page}?plan={pro}&on_upgrade=carry");
        let preview = browser.show(&change).await;
        for text in ["Change to Pro", "$20.00", "$35.00"] {
            assert!(preview.contains(text), "{text}: {preview}");
        }
        let subscription =
            gateway.get(&format!("/connections/{id}/subscription")).await.expect(200);
        assert_eq!(subscription["subscription"]["name"], "Basic", "a preview changes nothing");
        let subscription_id = text(&subscription["subscription"], "subscription_id");
        let upgrade = [
            next,
            ("_id", subscription_id.as_str()),
            ("subscription_config_id", pro),
            ("on_upgrade", "carry"),
        ];
        act(&browser, "changeSubscription", &upgrade).await;
        let shown = browser.show(&page).await;
        assert!(shown.contains("$35.00 of $35.00 left"), "{shown}");
        let month = &text(&made, "created_at")[..7];
        let statement = browser.show(&format!("{page}/statements/{month}")).await;
        for text in ["Acme", "Globex &#60;b&#62;", "Plan charges", "30.00", "25.00"] {
            assert!(statement.contains(text), "{text}: {statement}");
        }
        let list = browser.show("/customers?q=GLOB").await;
        assert!(list.contains(&page) && list.contains(">Pro<"), "{list}");
        assert!(browser.show("/customers?q=initech").await.contains("No customer matches."));

        // Errors of the interface are shown with their issues, and nothing is made twice.
        let wrong = [next, ("_id", wallet.as_str()), ("amount", "-1")];
        let answer = browser.send("/actions/creditWallet", &wrong).await;
        assert!(answer.status == 400 && answer.text().contains("amount"), "{}", answer.text());
        let token = form_token(&browser.show(&page).await);
        let once = browser.send_with(&token, "/actions/creditWallet", &credit).await;
        let twice = browser.send_with(&token, "/actions/creditWallet", &credit).await;
        assert_eq!((once.status, twice.status), (303, 303));
        let wallet = gateway.get(&format!("/wallets/{wallet}")).await.expect(200);
        assert_eq!(wallet["balance"], "50.0000000000");
        let unknown = browser.send("/actions/createMerchant", &[next]).await;
        assert_eq!(unknown.status, 404);
    });
}

/// Reload, a double click, the back button and a second tab send a form again.
#[test]
fn a_form_is_performed_once_and_one_that_was_refused_can_be_corrected() {
    each_gateway(async |gateway| {
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let (connection, wallet) = (&gateway.connection, gateway.connection.wallet_id.to_string());
        let balance =
            async || text(&gateway.get(&format!("/wallets/{wallet}")).await.expect(200), "balance");
        let next = format!("/dashboard/customers/{}", connection.connection_id);
        let fields =
            |amount: &'static str| [("_next", next.as_str()), ("_id", &wallet), ("amount", amount)];
        let path = "/actions/creditWallet";
        let before = balance().await.parse::<tollgate_pricing::Amount>().unwrap();
        let after = |usd: i64| {
            let more = tollgate_pricing::Amount::from_cents(usd * 100).unwrap();
            before.checked_add(more).unwrap().to_string()
        };
        let token = form_token(&browser.show("/customers").await);

        // Refused: the texts are kept, the field says what is wrong, and the same page can be used again.
        let refused = browser.send_with(&token, path, &fields("-1")).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        for part in ["value=\"-1\" aria-invalid", "Nothing was changed", &wallet, &next] {
            assert!(refused.text().contains(part), "{part}: {}", refused.text());
        }
        let fresh = form_token(refused.text());
        assert_eq!(browser.send_with(&token, path, &fields("1")).await.status, 303);
        // Again, as a reload does: it leads to the same page, and nothing is credited twice.
        for _ in 0..2 {
            let again = browser.send_with(&token, path, &fields("1")).await;
            assert_eq!((again.status, again.header("location")), (303, Some(next.as_str())));
        }
        assert_eq!(balance().await, after(1));
        // Other values from a page that was used are not lost, and not taken for the first ones.
        let other = browser.send_with(&token, path, &fields("2")).await;
        assert_eq!(other.status, 409, "{}", other.text());
        assert!(other.text().contains("value=\"2\""), "{}", other.text());
        assert_eq!(balance().await, after(1));
        let renewed = form_token(other.text());
        assert_eq!(browser.send_with(&renewed, path, &fields("2")).await.status, 303);
        assert_eq!(browser.send_with(&fresh, path, &fields("4")).await.status, 303);
        assert_eq!(balance().await, after(7));

        // At once, as a double click does.
        let token = form_token(&browser.show("/customers").await);
        let (path, fields) = ("/actions/createMeter", [("_next", "/dashboard/meters/{meter_id}")]);
        let meter = [("name", "Twice"), ("rate_type", "percentage"), ("tiers.0.start", "0")];
        let meter =
            [&fields[..], &meter, &[("tier_type", "tokens_1m"), ("tiers.0.rate", "5")]].concat();
        let clicks = [(); 2].map(|()| browser.send_with(&token, path, &meter));
        let [one, two] = clicks;
        let (one, two) = futures_util::join!(one, two);
        // The second one waits, and leads to where the first one leads.
        assert_eq!((one.status, two.status), (303, 303), "{} {}", one.text(), two.text());
        assert_eq!(one.header("location"), two.header("location"));
        let meters = gateway.get("/meters?limit=100").await.expect(200);
        let twice = meters["data"].as_array().unwrap().iter().filter(|one| one["name"] == "Twice");
        assert_eq!(twice.count(), 1);

        // Lines stay lines, and what was chosen stays chosen.
        let key = gateway.spend_key(&json!({})).await;
        let id = text(&key.made, "spend_key_id");
        let page = format!("/dashboard/spend-keys/{id}");
        let lines = [
            ("_next", page.as_str()),
            ("_id", id.as_str()),
            ("spend_limit.amount:clears", "abc"),
            ("spend_limit.cycle", "weekly"),
            ("allowed_models:clear-lines", "m-1\r\nm-2*"),
        ];
        let refused = browser.send("/actions/updateSpendKey", &lines).await;
        for part in [
            ">\nm-1\r\nm-2*</textarea>",
            "type=\"hidden\" name=\"spend_limit.cycle\" value=\"weekly\"",
            ">Spend limit, USD</label>",
            "Must be a decimal number, such as 12.50.",
        ] {
            assert!(refused.text().contains(part), "{part}: {}", refused.text());
        }

        // A customer with an id that is taken is not a new one.
        let customer = [("name", "Globex"), ("reference_id", "customer-8")];
        assert_eq!(browser.send("/actions/createConnection", &customer).await.status, 303);
        let taken = browser.send("/actions/createConnection", &customer).await;
        assert!(taken.status == 400 && taken.text().contains("customer that exists"), "{taken:?}");
        // A form leads nowhere else.
        let forged = [("_next", "/dashboard/\r\nx: y"), ("name", "Initech")];
        let answer = browser.send("/actions/createConnection", &forged).await;
        assert_eq!(answer.header("location"), Some("/dashboard"));
    });
}

/// The first of two clicks is given up by the browser, which hangs up, often while the form is performed.
#[test]
fn a_form_is_performed_to_its_end_when_the_browser_hangs_up() {
    each_gateway(async |gateway| {
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let path = "/actions/createConnection";
        for millis in 0..20 {
            let token = form_token(&browser.show("/customers").await);
            let reference_id = format!("hung-up-{millis}");
            let fields = [("name", "Hung up"), ("reference_id", reference_id.as_str())];
            let given_up = browser.send_with(&token, path, &fields);
            let _ = timeout(Duration::from_millis(millis), given_up).await;
            let begun = Instant::now();
            let again = browser.send_with(&token, path, &fields).await;
            assert_eq!(again.status, 303, "after {millis} ms: {}", again.text());
            assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        }
    });
}

#[test]
fn a_budget_is_made_moved_and_tried_out_on_its_pages() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let url = gateway.provider.url("/v1/chat/completions");
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        assert!(browser.show("/budgets").await.contains("There is none yet"));
        let next = ("_next", "/dashboard/budgets/{budget_id}");
        let company = [next, ("name", "Company"), ("parent_id", ""), ("match:pairs", "")];
        let company = act(&browser, "createBudget", &company).await;
        let id_of = |page: &str| page.strip_prefix("/budgets/").unwrap().to_owned();
        let root = id_of(&company);
        let team = [
            next,
            ("name", "Research"),
            ("spend_limit.amount:clears", "0.001"),
            ("spend_limit.cycle", "monthly"),
            ("request_limit.count:clears-number", ""),
            ("request_limit.cycle", "daily"),
            ("time_zone:clear", "Europe/Berlin"),
            ("enforcement", "observe"),
        ];
        let page = act(&browser, "createBudget", &team).await;
        let team = id_of(&page);
        let shown = browser.show(&page).await;
        for part in ["No key and no customer", "No call yet. It observes", "Europe/Berlin"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }

        // A key names it, and its second call would have been refused.
        let key = gateway.spend_key(&json!({"name": "Agent"})).await;
        let key_id = text(&key.made, "spend_key_id");
        let key_page = format!("/dashboard/spend-keys/{key_id}");
        let named = [("_next", key_page.as_str()), ("_id", &key_id), ("budget_id:clear", &team)];
        act(&browser, "updateSpendKey", &named).await;
        for _ in 0..2 {
            gateway.forward_to(&url).bearer(&key.key).json(&chat_body()).send().await.expect(200);
        }
        let shown = browser.show(&page).await;
        for part in [">Agent</a>", "Would have been refused", "$0.004", "All of them"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let would = browser.show(&format!("/requests?budget_id={team}&status=would_refuse")).await;
        assert_eq!(would.matches("href=\"/dashboard/requests/req_").count(), 1, "{would}");
        let of_budget = browser.show(&format!("/requests?budget_id={team}")).await;
        assert_eq!(of_budget.matches("href=\"/dashboard/requests/req_").count(), 2);

        // It moves below the other one, which does not move below it.
        let moved = [("_next", "/dashboard/budgets"), ("_id", &team), ("parent_id:clear", &root)];
        act(&browser, "updateBudget", &moved).await;
        let tree = browser.show("/budgets").await;
        let row = |name: &str, level: u8| {
            let before = tree.split_once(&format!(">{name}</a>")).unwrap().0;
            before.rsplit_once("class=\"long level-").unwrap().1.starts_with(&level.to_string())
        };
        assert!(row("Company", 0) && row("Research", 1), "{tree}");
        let choices = browser.show(&company).await;
        let choices = choices.split_once("name=\"parent_id:clear\"").unwrap().1;
        let choices = choices.split_once("</select>").unwrap().0;
        assert!(!choices.contains(&team) && !choices.contains(&root), "{choices}");
        let circle = [("_id", root.as_str()), ("parent_id:clear", &team)];
        let refused = browser.send("/actions/updateBudget", &circle).await;
        assert!(refused.status == 400 && refused.text().contains("below it"), "{refused:?}");
        let used = browser.send("/actions/deleteBudget", &[("_id", &root)]).await;
        assert!(used.status == 409 && used.text().contains("names this budget"), "{used:?}");

        // Its metadata and alerts are those of the form.
        let job = [next, ("name", "Job"), ("match:pairs", "job=nightly\r\nteam = a")];
        let job = act(&browser, "createBudget", &job).await;
        let kept = gateway.get(&job).await.expect(200);
        assert_eq!(kept["match"], json!({"job": "nightly", "team": "a"}));
        assert!(browser.show(&job).await.contains(">job=nightly\nteam=a</textarea>"));
        let id = id_of(&job);
        let alerts =
            [("_id", id.as_str()), ("_next", "/dashboard/budgets"), ("alerts:numbers", "50, 100")];
        act(&browser, "updateBudget", &alerts).await;
        assert_eq!(gateway.get(&job).await.expect(200)["alerts"], json!([50, 100]));
        let wrong =
            [("_id", id.as_str()), ("alerts:numbers", "half"), ("match:clear-pairs", "job")];
        let refused = browser.send("/actions/updateBudget", &wrong).await;
        assert!(
            refused.status == 400 && refused.text().contains(">\njob</textarea>"),
            "{}",
            refused.text()
        );
        act(&browser, "deleteBudget", &[("_id", &id), ("_next", "/dashboard/budgets")]).await;
        assert!(!browser.show("/budgets").await.contains(">Job</a>"));

        // The record and the usage have it.
        let record = text(&gateway.records().await[0], "request_id");
        let record = browser.show(&format!("/requests/{record}")).await;
        assert!(record.contains(&format!("href=\"/dashboard{page}\">Research</a>")), "{record}");
        let usage = browser.show("/usage?by=budget&measure=spend").await;
        assert!(usage.contains(">Research</a>"), "{usage}");
        let usage = browser.show(&format!("/usage?budget_id={team}&measure=spend")).await;
        assert!(usage.contains("$0.004"), "{usage}");
        // The calls were made before the move.
        let usage = browser.show(&format!("/usage?budget_id={root}&measure=spend")).await;
        assert!(!usage.contains("$0.004") && usage.contains("Company"), "{usage}");
    });
}

#[test]
fn a_suspended_customer_is_refused_until_it_is_resumed() {
    each_gateway(async |gateway| {
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let id = gateway.connection.connection_id.to_string();
        let page = format!("/dashboard/customers/{id}");
        let set = async |status: &'static str| {
            let fields = [("_next", page.as_str()), ("_id", id.as_str()), ("status", status)];
            act(&browser, "updateConnection", &fields).await
        };
        let wallet = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
        let key = gateway.spend_key(&wallet).await.key;
        let call = async |admitted: bool| {
            if admitted {
                gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            }
            gateway.chat().send().await.status
        };
        assert_eq!(call(true).await, 200);
        set("suspended").await;
        let shown = browser.show(&format!("/customers/{id}")).await;
        assert!(shown.contains("suspended") && shown.contains(">Resume<"), "{shown}");
        assert_eq!(call(false).await, 403);
        let url = gateway.provider.url("/v1/chat/completions");
        let by_key = gateway.forward_to(&url).bearer(&key).json(&chat_body()).send().await;
        assert_eq!((by_key.status, by_key.error().as_str()), (403, "connection_disabled"));
        assert!(browser.show("/customers").await.contains(">suspended<"));
        let read = gateway.get(&format!("/connections/{id}")).await.expect(200);
        assert_eq!(read["status"], "suspended");
        set("active").await;
        assert_eq!(call(true).await, 200);
        for wrong in [json!("deleted"), json!(null), json!(1)] {
            let answer =
                gateway.patch(&format!("/connections/{id}"), &json!({"status": wrong})).await;
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert_eq!(answer.json()["error"]["issues"][0]["path"], json!(["status"]));
        }
    });
}

#[test]
fn days_and_times_are_those_of_the_zone_in_the_settings() {
    each_gateway(async |gateway| {
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        assert!(browser.show("").await.contains("Days and times are in UTC."));
        let wrong = [("time_zone", "Mars/Olympus"), ("times", "exact"), ("colors", "dark")];
        let answer = browser.send("/settings", &wrong).await;
        assert!(answer.status == 400 && answer.text().contains("Mars/Olympus"), "{answer:?}");
        let right = [("time_zone", "Asia/Kathmandu"), ("times", "exact"), ("colors", "dark")];
        let saved = browser.send("/settings", &right).await;
        let shown = browser.follow(&saved).await;
        for part in ["data-colors=\"dark\"", "Days and times are in Asia/Kathmandu."] {
            assert!(shown.text().contains(part), "{part}: {}", shown.text());
        }
        // Another browser has the zone, and its own look.
        let other = Browser::sign_in(gateway, gateway.key()).await.show("/settings").await;
        for part in ["data-colors=\"system\"", "value=\"Asia/Kathmandu\""] {
            assert!(other.contains(part), "{part}: {other}");
        }
    });
}

/// A choice that is missing would let the browser send the first one, which is the merchant's own wallet.
#[test]
fn a_new_key_of_an_old_customer_is_on_its_wallet() {
    each_gateway(async |gateway| {
        let merchant_id = gateway.merchant.merchant.merchant_id;
        for _ in 0..101 {
            gateway.store.connection(merchant_id, "0").await;
        }
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let old = &gateway.connection;
        let chosen = format!("value=\"{}\" selected", old.wallet_id);
        let form = browser.show(&format!("/spend-keys?wallet_id={}", old.wallet_id)).await;
        assert!(form.contains(&chosen), "{form}");
        let other = gateway.store.merchant().await.merchant.wallet_id;
        let unknown = browser.get(&format!("/spend-keys?wallet_id={other}")).await;
        assert_eq!(unknown.status, 404, "{}", unknown.text());
        // A form that is not valid keeps the wallet, too.
        let wallet = old.wallet_id.to_string();
        let wrong = browser.send("/spend-keys", &[("wallet_id", &wallet)]).await;
        assert!(wrong.status == 400 && wrong.text().contains(&chosen), "{}", wrong.text());
    });
}

#[test]
fn a_secret_of_a_form_is_shown_once_and_on_no_other_page() {
    each_gateway(async |gateway| {
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        let fields = [("_next", "/dashboard/developers"), ("name", "Backend")];
        let made = browser.send("/actions/createSecretKey", &fields).await;
        let page = browser.follow(&made).await;
        let (_, after) = page.text().split_once("id=\"key\">").unwrap();
        let key = after.split('<').next().unwrap();
        assert!(key.starts_with("tgs_"), "{key}");
        assert!(page.header("set-cookie").unwrap().contains("Max-Age=0"));
        let again = made.header("location").unwrap().strip_prefix("/dashboard").unwrap();
        let again = browser.get(again).await;
        assert_eq!(again.header("location"), Some("/dashboard/developers"));
        Browser::sign_in(gateway, key).await;
        assert!(!browser.show("/developers").await.contains(key));
    });
}

/// A form names its operation as the OpenAPI document does.
#[test]
fn every_form_of_a_page_performs_an_operation_of_the_interface() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboard/templates");
    let mut named = std::collections::BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let template = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let forms = template.split("action=\"/dashboard/actions/").skip(1);
        named.extend(forms.map(|form| form.split('"').next().unwrap().to_owned()));
    }
    assert!(named.len() >= 20, "{named:?}");
    let document = tollgate_api::openapi().to_string();
    for name in &named {
        assert!(document.contains(&format!("\"operationId\":\"{name}\"")), "{name}");
    }
    each_gateway(async |gateway| {
        let browser = Browser::sign_in(gateway, gateway.key()).await;
        for name in &named {
            let fields = [("_id", "x"), ("nothing", "x")];
            let answer = browser.send(&format!("/actions/{name}"), &fields).await;
            assert!(!answer.text().contains("no such form"), "{name}: {}", answer.text());
            assert!((400..500).contains(&answer.status), "{name}: {}", answer.text());
        }
    });
}
