//! `tollgate prices update`: a signed price list that running nodes take over.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::Value;

use crate::site::{ServiceProcess, Site, assert_audit_clean, each_site, merchant_key};

fn new_key() -> Ed25519KeyPair {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap()
}

/// Writes a list with one price, and its signature.
fn release(folder: &Path, key: &Ed25519KeyPair, day: &str, output: &str) {
    release_with(folder, key, day, output, "{}");
}

/// As [`release`], with the fallbacks of providers.
fn release_with(folder: &Path, key: &Ed25519KeyPair, day: &str, output: &str, fallbacks: &str) {
    let row = format!(
        r#"{{"provider": "house", "models": ["m"], "prices": {{"input": "1", "output": "{output}"}}}}"#
    );
    let list = format!(r#"{{"released": "{day}", "fallbacks": {fallbacks}, "rows": [{row}]}}"#);
    let signature = STANDARD.encode(key.sign(list.as_bytes()));
    std::fs::write(folder.join("list.json"), list).unwrap();
    std::fs::write(folder.join("list.json.sig"), signature + "\n").unwrap();
}

/// Serves the files of a folder.
fn serve_files(folder: &Path) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, folder) = (listener.local_addr().unwrap(), folder.to_owned());
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            lines.find(|line| line.as_ref().unwrap().is_empty()).unwrap().unwrap();
            let path = first.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
            let (status, body) = match std::fs::read(folder.join(path)) {
                Ok(body) => ("200 OK", body),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
            client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body)).unwrap();
        }
    });
    address
}

/// Runs `prices update`; returns its exit code and output.
fn update(site: &Site, arguments: &[&str]) -> (i32, String) {
    let output = site.run(&[&["prices", "update"], arguments].concat());
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// The output price of the model at a node.
async fn output_price(service: &ServiceProcess, key: &str) -> Option<String> {
    let prices = service.call("GET", "/v1/prices?provider=house&model=m", key).send().await;
    let prices = prices.expect(200);
    prices["data"].get(0)?["prices"]["output"].as_str().map(str::to_owned)
}

async fn uses_soon(services: &[ServiceProcess], key: &str, output: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    for service in services {
        while output_price(service, key).await.as_deref() != Some(output) {
            assert!(Instant::now() < deadline, "a node does not use the list");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

#[test]
fn nodes_take_a_signed_list_over_and_no_other() {
    each_site(async |site| {
        let (own, foreign) = (new_key(), new_key());
        let list = site.path().join("list.json");
        let place = list.to_str().unwrap();
        let config = site.path().join("tollgate.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        // The catalogue has no price of this provider.
        let (text, _) = text.split_once("[[prices]]").unwrap();
        std::fs::write(&config, format!("unpriced = \"allow\"\n{text}")).unwrap();
        let (code, said) = update(site, &[place]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("set `prices_public_key`"), "{said}");
        let url = format!("http://{}/list.json", serve_files(site.path()));
        let settings = format!(
            "prices_public_key = \"{}\"\nprices_url = \"{url}\"\nunpriced = \"allow\"\n{text}",
            STANDARD.encode(own.public_key().as_ref())
        );
        std::fs::write(&config, settings).unwrap();

        let key = merchant_key(site);
        let nodes = if site.database.is_some() { 2 } else { 1 };
        let services: Vec<_> = (0..nodes).map(|_| site.serve()).collect();
        let service = &services[0];
        let token = service.create_customer(&key, "10").await;
        let last_record = async || -> Value {
            service.forward(&site.chat_url(), &token, false).send().await.expect(200);
            let records = service.call("GET", "/v1/requests?limit=1", &key).send().await;
            records.expect(200)["data"][0].clone()
        };
        assert_eq!(last_record().await["price_source"], "unpriced");

        // A list of another key.
        release(site.path(), &foreign, "2026-11-20", "2");
        let (code, said) = update(site, &[place]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("is not signed"), "{said}");
        assert_eq!(output_price(service, &key).await, None);

        release(site.path(), &own, "2026-11-20", "2");
        let (code, said) = update(site, &[place, "--dry-run"]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("added    house m: input 1, output 2"), "{said}");
        let (code, said) = update(site, &[place]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("Price list 1, released on 2026-11-20"), "{said}");
        uses_soon(&services, &key, "2").await;
        assert_eq!(last_record().await["price_source"], "catalog");

        // What had no price gets it by the existing command.
        let days = ["reprice", "--from", "2000-01-01", "--to", "2100-01-01"];
        let repriced = site.run(&days);
        let said = String::from_utf8(repriced.stdout).unwrap();
        assert!(said.contains("1 of 2 records differ"), "{said}");

        // Too large a change, and a list that is older.
        release(site.path(), &own, "2026-11-21", "40");
        let (code, said) = update(site, &[]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("! changed  house m: output 2 -> 40"), "{said}");
        release(site.path(), &own, "2026-11-19", "3");
        let (code, said) = update(site, &[]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("was released on 2026-11-19"), "{said}");

        // The past keeps its price.
        release(site.path(), &own, "2026-11-21", "3");
        let (code, said) = update(site, &[]);
        assert_eq!(code, 0, "{said}");
        uses_soon(&services, &key, "3").await;
        let listed = |on: &str| {
            let price = site.json(&["prices", "list", "--model", "m", "--on", on]);
            price["prices"]["output"].clone()
        };
        assert_eq!(listed("2026-11-20"), "2");
        let tomorrow = tollgate_domain::Clock::system().now().date().next_day().unwrap();
        assert_eq!(listed(&tomorrow.to_string()), "3");
        let checks = String::from_utf8(site.run(&["doctor"]).stdout).unwrap();
        assert!(checks.contains("price list 2 of the database"), "{checks}");
        for (other, number) in [("openai", 3), ("xai", 4)] {
            let fallbacks = format!(r#"{{"house": ["{other}"]}}"#);
            release_with(site.path(), &own, "2026-11-21", "3", &fallbacks);
            let (code, said) = update(site, &[]);
            assert_eq!(code, 1, "{said}");
            assert!(said.contains("fallbacks"), "{said}");
            let (code, said) = update(site, &["--accept"]);
            assert_eq!(code, 0, "{said}");
            assert!(said.contains(&format!("Price list {number}, ")), "{said}");
        }
        drop(services);
        assert_eq!(output_price(&site.serve(), &key).await.as_deref(), Some("3"));
        // A list of a newer version. Services go on, and nothing is priced again by other prices.
        site.execute("UPDATE price_lists SET list = '{\"form\": 2}'");
        for command in [&["prices", "list"][..], &days, &["doctor"]] {
            let output = site.run(command);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(said.contains("price list"), "{said}");
        }
        assert_eq!(site.serve().call("GET", "/readyz", "").send().await.status, 200);
        assert_audit_clean(site);
    });
}
