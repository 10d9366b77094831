//! The dashboard of the real program in a real browser: the content of its pages, on a phone and on a desktop, and
//! that it sends no request to another host.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::io::{BufRead, BufReader, Cursor};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::actions::{InputSource, MOUSE_BUTTON_LEFT, MouseActions, PointerAction};
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_testkit::store::block_on;
use tollgate_testkit::tools;

use crate::site::{ServiceProcess, Site, merchant_key};

const CHROMIUM: &str = "/usr/bin/chromium";
const CHROMEDRIVER: &str = "/usr/bin/chromedriver";

/// Every page of the navigation.
const PAGES: [&str; 13] = [
    "",
    "/usage",
    "/requests",
    "/requests?status=refused",
    "/in-flight",
    "/spend-keys",
    "/budgets",
    "/pricing",
    "/customers",
    "/wallets",
    "/subscriptions",
    "/webhooks",
    "/developers",
];
/// The lists whose first item has its own page.
const LISTS: [&str; 8] = [
    "/requests",
    "/spend-keys",
    "/budgets",
    "/pricing",
    "/customers",
    "/wallets",
    "/subscriptions",
    "/webhooks",
];
const PHONE: u32 = 390;
const DESK: u32 = 1280;

/// A browser with an empty profile. It and its driver end with the test.
struct ChromiumBrowser {
    driver: Child,
    client: Client,
    _profile: TempDir,
}

impl Drop for ChromiumBrowser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// A command of the driver that is not part of WebDriver.
#[derive(Debug)]
struct DriverCommand(&'static str, Value);

impl WebDriverCompatibleCommand for DriverCommand {
    fn endpoint(
        &self,
        base: &url::Url,
        session: Option<&str>,
    ) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.1.to_string()))
    }
}

impl ChromiumBrowser {
    /// Starts a browser; `None`, with a message, if none is installed.
    async fn start() -> Option<Self> {
        let found = [CHROMIUM, CHROMEDRIVER].iter().all(|path| Path::new(path).exists());
        tools::require_tool("Chromium and its driver", found.then_some(()))?;
        let mut driver = Command::new(CHROMEDRIVER)
            .args(["--port=0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(driver.stdout.take().unwrap()).lines();
        let started = said.map_while(Result::ok).find(|line| line.contains("started successfully"));
        let started = started.unwrap();
        let port: u16 = started.rsplit(' ').next().unwrap().trim_end_matches('.').parse().unwrap();
        let profile = tempfile::tempdir().unwrap();
        let options = json!({
            "goog:chromeOptions": {"binary": CHROMIUM, "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                format!("--user-data-dir={}", profile.path().display()),
            ]},
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let capabilities: Capabilities = options.as_object().unwrap().clone();
        let client = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .unwrap();
        Some(Self { driver, client, _profile: profile })
    }

    async fn driver_command(&self, endpoint: &'static str, body: Value) -> Value {
        self.client.issue_cmd(DriverCommand(endpoint, body)).await.unwrap()
    }

    async fn show(&self, width: u32, scheme: &str) {
        self.show_at(width, 844, scheme).await;
    }

    async fn show_at(&self, width: u32, height: u32, scheme: &str) {
        let devtools = async |command: &str, parameters: Value| {
            self.driver_command("goog/cdp/execute", json!({"cmd": command, "params": parameters}))
                .await
        };
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width == PHONE});
        devtools("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        devtools("Emulation.setEmulatedMedia", scheme).await;
    }

    async fn run(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap().to_owned()
    }

    async fn click(&self, css: &str) {
        self.client.find(Locator::Css(css)).await.unwrap().click().await.unwrap();
    }

    /// Presses the mouse on an element, and keeps it pressed.
    async fn press(&self, css: &str) {
        let element = self.client.find(Locator::Css(css)).await.unwrap();
        let over = PointerAction::MoveToElement { element, duration: None, x: 0.0, y: 0.0 };
        let down = PointerAction::Down { button: MOUSE_BUTTON_LEFT };
        let mouse = MouseActions::new("mouse".to_owned()).then(over).then(down);
        self.client.perform_actions(mouse).await.unwrap();
    }

    /// Clicks a link or button that loads a page, possibly this one again, and waits until it is loaded. A
    /// page that is opened earlier would cancel the click.
    async fn follow(&self, css: &str) {
        self.run("window.isLeft = true").await;
        self.click(css).await;
        self.wait_for_page(css).await;
    }

    /// Releases the mouse, which loads a page, and waits until it is loaded.
    async fn release(&self) {
        self.run("window.isLeft = true").await;
        self.client.release_actions().await.unwrap();
        self.wait_for_page("the mouse").await;
    }

    async fn wait_for_page(&self, css: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let is_there = "return !window.isLeft && document.readyState === 'complete'";
        while self.client.execute(is_there, Vec::new()).await.ok() != Some(true.into()) {
            assert!(Instant::now() < deadline, "{css} leads nowhere");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn fill(&self, css: &str, text: &str) {
        self.client.find(Locator::Css(css)).await.unwrap().send_keys(text).await.unwrap();
    }

    /// Waits until the page contains this text.
    async fn wait_for_text(&self, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // While a page loads there may be no body.
            let text =
                self.client.execute("return document.body?.innerText ?? ''", Vec::new()).await;
            let text = text.unwrap_or_default();
            if text.as_str().is_some_and(|text| text.contains(what)) {
                return;
            }
            assert!(Instant::now() < deadline, "{what} in {text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Fails unless the page is at most as wide as the window, is accessible, and has sent no request to
    /// another host.
    async fn assert_sound(&self, what: &str, origin: &str) {
        let found = self
            .run(
                "const names = [...document.querySelectorAll('input:not([type=hidden]), select')]
                     .filter(it => !it.labels.length).map(it => it.outerHTML);
                 const asked = performance.getEntriesByType('resource').map(it => it.name);
                 return {
                     overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
                     unlabelled: names,
                     headless: [...document.querySelectorAll('table')].filter(it => !it.tHead).length,
                     headings: document.querySelectorAll('h1').length,
                     scripts: document.scripts.length,
                     asked,
                 }",
            )
            .await;
        assert!(found["overflow"].as_i64().unwrap() <= 0, "{what} is too wide: {found}");
        assert_eq!(found["unlabelled"], json!([]), "{what}");
        assert_eq!(found["headless"], 0, "a table without heads on {what}");
        assert_eq!(found["headings"], 1, "{what}");
        assert!(found["scripts"].as_u64().unwrap() <= 1, "{what}: {found}");
        for asked in found["asked"].as_array().unwrap() {
            assert!(asked.as_str().unwrap().starts_with(origin), "{what} asked for {asked}");
        }
    }
}

/// Creates a merchant's resources, so that every page has content.
async fn create_content(service: &ServiceProcess, site: &Site, key: &str) {
    let token = service.create_customer(key, "25").await;
    let send = async |path: &str, body: Value| {
        let answer = service.call("POST", path, key).json(&body).send().await;
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer.json()
    };
    for _ in 0..3 {
        service.forward(&site.chat_url(), &token, false).send().await.expect(200);
    }
    let meters = service.call("GET", "/v1/meters", key).send().await.expect(200);
    let connections = service.call("GET", "/v1/connections", key).send().await.expect(200);
    let config = send(
        "/v1/subscription_configs",
        json!({"name": "Pro", "period_amount": "20", "billing_interval": "month",
               "included_credit": "15", "product_ids": [meters["data"][0]["meter_id"]]}),
    )
    .await;
    let subscription = json!({
        "connection_id": connections["data"][0]["connection_id"],
        "subscription_config_id": config["subscription_config_id"],
    });
    send("/v1/subscriptions", subscription).await;
    let limit = json!({"amount": "5", "cycle": "daily"});
    let company = send("/v1/budgets", json!({"name": "Company", "spend_limit": limit})).await;
    let observed = json!({
        "name": "Research", "parent_id": company["budget_id"], "enforcement": "observe",
        "match": {"job": "nightly"}, "spend_limit": limit,
    });
    send("/v1/budgets", observed).await;
    send("/v1/spend_keys", json!({"name": "Team blue", "spend_limit": limit})).await;
    let hook = json!({"name": "Receiver", "url": site.simulator.url("/webhooks/dashboard")});
    let hook = send("/v1/webhooks", hook).await;
    send(&format!("/v1/webhooks/{}/test", hook["webhook_id"].as_str().unwrap()), json!({})).await;
}

#[test]
fn a_merchant_looks_at_every_page_and_changes_what_pages_change() {
    block_on(async {
        let Some(browser) = ChromiumBrowser::start().await else { return };
        let site = Site::new("sqlite:DIR/tollgate.db", None);
        let key = merchant_key(&site);
        let service = site.serve();
        create_content(&service, &site, &key).await;
        let origin = format!("http://{}", service.address);
        let dashboard = format!("{origin}/dashboard");
        let client = &browser.client;

        client.goto(&dashboard).await.unwrap();
        browser.wait_for_text("Sign in with a secret key").await;
        browser.show(PHONE, "light").await;
        browser.assert_sound("signing in", &origin).await;
        browser.fill("#key", &key).await;
        browser.click("button").await;
        browser.wait_for_text("Newest requests").await;
        assert_eq!(client.current_url().await.unwrap().as_str(), dashboard);
        assert_eq!(browser.run("return document.cookie").await, "", "no script sees the cookie");

        let mut pages: Vec<String> =
            PAGES.iter().map(|page| format!("{dashboard}{page}")).collect();
        for list in LISTS {
            client.goto(&format!("{dashboard}{list}")).await.unwrap();
            let first = client.find(Locator::Css("td a.main")).await.unwrap();
            let href = first.attr("href").await.unwrap().unwrap();
            pages.push(format!("{origin}{href}"));
        }
        for (width, scheme) in [(DESK, "light"), (PHONE, "dark")] {
            browser.show(width, scheme).await;
            for page in &pages {
                client.goto(page).await.unwrap();
                browser.assert_sound(&format!("{page} at {width}"), &origin).await;
            }
        }

        browser.show(DESK, "dark").await;
        client.goto(&format!("{dashboard}/spend-keys")).await.unwrap();
        browser.click("summary").await;
        browser.fill("#name", "From the browser").await;
        browser.fill("#spend_limit", "2.50").await;
        browser.click("form[action='/dashboard/spend-keys'] button").await;
        browser.wait_for_text("the only time it is shown").await;
        let shown = client.find(Locator::Css("#key")).await.unwrap().text().await.unwrap();
        assert!(shown.starts_with("tgk_"), "{shown}");
        let keys = async || {
            let list = service.call("GET", "/v1/spend_keys", &key).send().await.expect(200);
            list["data"].as_array().unwrap().len()
        };
        let made = keys().await;
        // The browser loads the page that it was redirected to again; the form is not sent again.
        let address = client.current_url().await.unwrap();
        assert!(address.path().ends_with("/key"), "{address}");
        client.refresh().await.unwrap();
        assert_eq!(keys().await, made);
        client.goto(address.as_str()).await.unwrap();
        assert!(!browser.text().await.contains(&shown), "it was shown before");
        let call = async |key: &str| {
            let body = json!({"model": "house/m", "max_tokens": 8, "messages": []});
            let call = service.call("POST", "/v1/chat/completions", key).json(&body);
            call.send().await.status
        };
        assert_eq!(call(&shown).await, 200);
        browser.wait_for_text("of $2.50").await;
        browser.click("form[action$='/pause'] button").await;
        browser.wait_for_text("paused").await;
        assert_eq!(call(&shown).await, 403);
        browser.click("form[action$='/resume'] button").await;
        browser.wait_for_text("active").await;
        browser.click(".pop summary").await;
        browser.click("form[action$='/rotate'] button").await;
        browser.wait_for_text("the only time it is shown").await;
        let rotated = client.find(Locator::Css("#key")).await.unwrap().text().await.unwrap();
        assert_eq!((call(&shown).await, call(&rotated).await), (401, 200));

        client.goto(&format!("{dashboard}/webhooks")).await.unwrap();
        browser.follow("td a.main").await;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !browser.text().await.contains("delivered") {
            assert!(Instant::now() < deadline, "{}", browser.text().await);
            client.refresh().await.unwrap();
        }
        browser.follow("form[action*='/deliveries/'] button").await;
        let is_sent_again = |text: &str| {
            text.lines()
                .any(|line| line.starts_with("webhook.test") && line.contains("delivered\t2"))
        };
        while !is_sent_again(&browser.text().await) {
            assert!(Instant::now() < deadline, "{}", browser.text().await);
            client.refresh().await.unwrap();
        }

        client.goto(&format!("{dashboard}/pricing")).await.unwrap();
        browser.click("#meters td a.main").await;
        browser.fill("#input", "1500").await;
        browser.click("#preview button").await;
        browser.wait_for_text("0.0125000000").await;

        browser.click("form[action='/dashboard/sign-out'] button").await;
        browser.wait_for_text("Sign in with a secret key").await;
        client.goto(&format!("{dashboard}/usage")).await.unwrap();
        browser.wait_for_text("Sign in with a secret key").await;

        let log = browser.driver_command("se/log", json!({"type": "browser"})).await;
        let wrong = log.as_array().unwrap().iter().filter(|line| line["level"] != "DEBUG");
        assert_eq!(wrong.collect::<Vec<_>>(), Vec::<&Value>::new());
        browser.client.clone().close().await.unwrap();
    });
}

/// The pages of the demo that the documentation shows, and their images in `docs/images`.
const IMAGES: [(&str, &str, &str); 3] = [
    ("", "Newest requests", "dashboard.png"),
    ("/usage", "Spend, 30 days", "spend.png"),
    ("/spend-keys", "Research agent", "spend-keys.png"),
];

/// Writes an image of the documentation, with `UPDATE_IMAGES` in the environment.
fn update_image(name: &str, image: &[u8]) {
    if std::env::var_os("UPDATE_IMAGES").is_some() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images");
        std::fs::write(format!("{folder}/{name}"), image).unwrap();
    }
}

/// An animation of screenshots, each with its duration in hundredths of a second.
fn animation(screenshots: &[(Vec<u8>, u16)]) -> Vec<u8> {
    let mut frames = screenshots.iter().map(|(screenshot, hundredths)| {
        let mut decoder = png::Decoder::new(Cursor::new(screenshot));
        decoder.set_transformations(png::Transformations::ALPHA);
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let size = reader.next_frame(&mut pixels).unwrap();
        let (width, height) = (size.width.try_into().unwrap(), size.height.try_into().unwrap());
        let mut frame = gif::Frame::from_rgba_speed(width, height, &mut pixels, 10);
        frame.delay = *hundredths;
        frame
    });
    let first = frames.next().unwrap();
    let mut image = Vec::new();
    let mut encoder = gif::Encoder::new(&mut image, first.width, first.height, &[]).unwrap();
    encoder.set_repeat(gif::Repeat::Infinite).unwrap();
    for frame in [first].into_iter().chain(frames) {
        encoder.write_frame(&frame).unwrap();
    }
    drop(encoder);
    image
}

/// With `UPDATE_IMAGES` in the environment it also writes the images of the documentation.
#[test]
fn the_demo_signs_in_and_has_a_business_to_look_at() {
    block_on(async {
        let Some(browser) = ChromiumBrowser::start().await else { return };
        let mut demo = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["demo", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(demo.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut words = lines.map(|line| line.split_whitespace().map(str::to_owned).collect());
        let sign_in: Vec<String> = words
            .find(|words: &Vec<String>| words.first().is_some_and(|w| w == "dashboard"))
            .unwrap();
        browser.show(DESK, "light").await;
        browser.client.goto(&sign_in[1]).await.unwrap();
        let dashboard = sign_in[1].replace("/demo", "/dashboard");
        for (page, text, image) in IMAGES {
            browser.client.goto(&format!("{dashboard}{page}")).await.unwrap();
            browser.wait_for_text(text).await;
            let png = browser.client.screenshot().await.unwrap();
            assert!(png.starts_with(b"\x89PNG") && png.len() > 20_000, "{image}: {}", png.len());
            update_image(image, &png);
        }
        // Of the storm's calls ten are answered, each time.
        browser.show_at(640, 480, "light").await;
        browser.client.goto(&sign_in[1].replace("/demo", "/demo/storm")).await.unwrap();
        let screenshot = async || browser.client.screenshot().await.unwrap();
        let mut screenshots = Vec::new();
        for _ in 0..2 {
            screenshots.push((screenshot().await, 200));
            browser.press("button").await;
            screenshots.push((screenshot().await, 40));
            browser.release().await;
            let text = browser.text().await.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains("Answered 10 Refused with 402 190 Limit $0.01702"), "{text}");
            assert!(text.contains("The limit was not exceeded."), "{text}");
        }
        screenshots.push((screenshot().await, 400));
        let storm = animation(&screenshots);
        assert!(storm.starts_with(b"GIF89a") && storm.len() < 400_000, "{}", storm.len());
        update_image("storm.gif", &storm);
        browser.show(DESK, "light").await;
        // The reference of the interface has a search and copy buttons.
        browser.client.goto(&sign_in[1].replace("/demo", "/docs")).await.unwrap();
        // The page is long, and the driver does not always wait for all of it.
        browser.wait_for_page("the reference").await;
        let cards = "return document.querySelectorAll('main .card:not([hidden])').length";
        let all = browser.run(cards).await.as_u64().unwrap();
        browser.fill("#search", "rotate spend key").await;
        let found = browser.run(cards).await.as_u64().unwrap();
        assert!(all > 100 && (1..10).contains(&found), "{found} of {all}");
        let buttons = browser.run("return document.querySelectorAll('.copy').length").await;
        assert!(buttons.as_u64().unwrap() > 50, "{buttons}");
        browser.client.clone().close().await.unwrap();
        let _ = demo.kill();
        let _ = demo.wait();
    });
}
