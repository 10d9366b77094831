//! The real program and real receivers: the operations on webhooks, and the messages that arrive when
//! receivers misbehave and nodes die.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::task::JoinSet;
use tollgate_testkit::store::block_on;
use tollgate_testkit::{TestRequest, TestResponse, postgres};

use crate::site::{ServiceProcess, Site, each_site, merchant_key};

/// The most deliveries that a node has in flight to one webhook.
const AT_ONE: usize = 16;

/// A merchant at a node, and a process that receives webhooks.
struct WebhookSite<'a> {
    site: &'a Site,
    node: ServiceProcess,
    receiver: ServiceProcess,
    key: String,
}

/// Runs `test` on a scene of each database.
fn each_webhook_site(test: impl AsyncFn(&mut WebhookSite<'_>)) {
    each_site(async |site| test(&mut WebhookSite::new(site)).await);
}

/// Calls `look` until it returns a value, and fails after `seconds`.
async fn wait_until<T>(seconds: u64, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} within {seconds} s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl<'a> WebhookSite<'a> {
    fn new(site: &'a Site) -> Self {
        let key = merchant_key(site);
        Self { site, node: site.serve(), receiver: site.simulate(), key }
    }

    fn call(&self, method: &str, path: &str) -> TestRequest {
        self.node.call(method, &format!("/v1{path}"), &self.key)
    }

    async fn get(&self, path: &str) -> TestResponse {
        self.call("GET", path).send().await
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> TestResponse {
        self.call(method, path).json(body).send().await
    }

    /// The URL of a receiver: its name, and its behaviour in the query.
    fn url(&self, receiver: &str) -> String {
        format!("http://{}/webhooks/{receiver}", self.receiver.address)
    }

    /// Creates a webhook for these events; returns its path.
    async fn create_webhook(&self, receiver: &str, events: &Value) -> String {
        self.create_webhook_at(&self.url(receiver), events).await
    }

    async fn create_webhook_at(&self, url: &str, events: &Value) -> String {
        let new = json!({"name": "Hook", "url": url, "events": events});
        let made = self.send("POST", "/webhooks", &new).await.expect(201);
        format!("/webhooks/{}", made["webhook_id"].as_str().unwrap())
    }

    /// Creates connections, eight at a time; returns their ids.
    async fn create_connections(&self, count: usize) -> BTreeSet<String> {
        let mut makers = JoinSet::new();
        for maker in 0..8 {
            let call = self.call("POST", "/connections").json(&json!({}));
            let share = (maker..count).step_by(8).len();
            makers.spawn(async move {
                let mut made = Vec::new();
                for _ in 0..share {
                    let connection = call.send().await.expect(201);
                    made.push(connection["connection_id"].as_str().unwrap().to_owned());
                }
                made
            });
        }
        makers.join_all().await.into_iter().flatten().collect()
    }

    /// The messages that a receiver has so far.
    async fn received(&self, receiver: &str) -> Vec<ArrivedMessage> {
        let path = format!("/webhooks/{receiver}");
        let answer = TestRequest::new(self.receiver.address, "GET", &path).send().await.expect(200);
        answer["data"].as_array().unwrap().iter().map(ArrivedMessage::new).collect()
    }

    /// The messages of a receiver, once it has at least `count`.
    async fn wait_for(&self, receiver: &str, count: usize, seconds: u64) -> Vec<ArrivedMessage> {
        let what = format!("{count} messages came to {receiver}");
        wait_until(seconds, &what, async || {
            let came = self.received(receiver).await;
            (came.len() >= count).then_some(came)
        })
        .await
    }

    /// All deliveries of a webhook, in the order of their sequence.
    async fn deliveries(&self, webhook: &str) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("{webhook}/deliveries?limit=100&cursor={cursor}");
            let page = self.get(&path).await.expect(200);
            all.extend(page["data"].as_array().unwrap().clone());
            cursor = page["next_cursor"].as_str().unwrap().to_owned();
            if page["has_more"] == false {
                all.sort_by_key(|one| one["sequence"].as_u64());
                return all;
            }
        }
    }

    /// All deliveries of a webhook, once there are `count` and none is pending.
    async fn wait_for_delivered(&self, webhook: &str, count: usize, seconds: u64) -> Vec<Value> {
        let what = format!("{count} deliveries of {webhook}");
        wait_until(seconds, &what, async || {
            let all = self.deliveries(webhook).await;
            let done = all.iter().all(|one| one["status"] == "delivered");
            (done && all.len() >= count).then_some(all)
        })
        .await
    }

    /// The first delivery of a webhook, once an attempt has ended.
    async fn wait_for_attempt(&self, webhook: &str) -> Value {
        self.wait_for_attempts(webhook, 1).await
    }

    /// The first delivery of a webhook, once this number of attempts has ended.
    async fn wait_for_attempts(&self, webhook: &str, attempts: u64) -> Value {
        let what = format!("attempt {attempts} of {webhook} ended");
        wait_until(15, &what, async || {
            let all = self.deliveries(webhook).await;
            let has_ended = |one: &Value| {
                one["attempts"].as_u64() >= Some(attempts) && !one["duration_ms"].is_null()
            };
            all.into_iter().next().filter(has_ended)
        })
        .await
    }

    fn kill(&mut self) {
        self.node.signal("-KILL");
        assert_eq!(self.node.exit_code(), None, "killed");
    }
}

/// A message as the receiver got it.
#[derive(Clone, Debug)]
struct ArrivedMessage {
    at_ms: u64,
    headers: Value,
    text: String,
    body: Value,
}

impl ArrivedMessage {
    fn new(message: &Value) -> Self {
        let text = message["body"].as_str().unwrap().to_owned();
        let body: Value = serde_json::from_str(&text).unwrap();
        let mut names: Vec<_> = body.as_object().unwrap().keys().collect();
        names.sort();
        assert_eq!(names, ["data", "sequence", "timestamp", "type"]);
        let headers = message["headers"].clone();
        assert_eq!(headers["content-type"], "application/json");
        assert!(headers["webhook-signature"].as_str().unwrap().starts_with("v1,"));
        let at_ms = message["at_ms"].as_u64().unwrap();
        let attempt: u64 = headers["webhook-timestamp"].as_str().unwrap().parse().unwrap();
        assert!((attempt..=attempt + 11).contains(&(at_ms / 1_000)), "{attempt} came at {at_ms}");
        Self { at_ms, headers, text, body }
    }

    fn id(&self) -> &str {
        self.headers["webhook-id"].as_str().unwrap()
    }

    fn kind(&self) -> &str {
        self.body["type"].as_str().unwrap()
    }

    fn sequence(&self) -> u64 {
        self.body["sequence"].as_u64().unwrap()
    }

    /// The time from the event to the arrival of the message.
    fn delay_ms(&self) -> i64 {
        let happened = self.body["timestamp"].as_str().unwrap();
        let happened = OffsetDateTime::parse(happened, &Rfc3339).unwrap();
        let happened = i64::try_from(happened.unix_timestamp_nanos() / 1_000_000).unwrap();
        i64::try_from(self.at_ms).unwrap() - happened
    }

    fn connection(&self) -> &str {
        self.body["data"]["connection"]["connection_id"].as_str().unwrap()
    }
}

/// Fails unless there is a message for every connection, the messages are numbered without gaps from
/// `first`, and repeated messages are identical.
fn assert_complete(came: &[ArrivedMessage], made: &BTreeSet<String>, first: u64) {
    let told: BTreeSet<_> = came.iter().map(|message| message.connection().to_owned()).collect();
    assert_eq!(&told, made);
    let sequences: BTreeSet<_> = came.iter().map(ArrivedMessage::sequence).collect();
    let last = first + u64::try_from(made.len()).unwrap();
    assert!(sequences.into_iter().eq(first..last), "sequences have gaps");
    let mut texts = BTreeMap::new();
    for message in came {
        assert_eq!(*texts.entry(message.id()).or_insert(&message.text), &message.text);
    }
    assert_eq!(texts.len(), made.len(), "an id for each event");
}

#[track_caller]
fn assert_issues(answer: &TestResponse, paths: &[&str]) {
    assert_eq!((answer.status, answer.error().as_str()), (400, "validation_failed"));
    let mut found = answer.issue_paths();
    found.sort();
    assert_eq!(found, paths, "{}", answer.text());
}

#[test]
fn a_merchant_makes_a_webhook_changes_it_tries_it_and_deletes_it() {
    each_webhook_site(async |scene| {
        let new = json!({"name": "Orders", "url": scene.url("a")});
        let made = scene.send("POST", "/webhooks", &new).await.expect(201);
        let id = made["webhook_id"].as_str().unwrap();
        assert!(id.starts_with("whk_"), "{id}");
        let secret = made["webhook_secret"].as_str().unwrap();
        assert!(secret.starts_with("whsec_"));
        assert_eq!((&made["name"], &made["url"]), (&new["name"], &new["url"]));
        assert_eq!(made["events"], Value::Null);
        let mut shown = made.clone();
        shown.as_object_mut().unwrap().remove("webhook_secret");
        let path = format!("/webhooks/{id}");
        assert_eq!(scene.get(&path).await.expect(200), shown, "the secret is shown once");

        let second = scene.create_webhook("b", &json!(["price.missing"])).await;
        let page = scene.get("/webhooks?limit=1").await.expect(200);
        assert_eq!(page["data"][0]["webhook_id"], second["/webhooks/".len()..], "newest first");
        assert_eq!(page["has_more"], true);
        let next = format!("/webhooks?limit=1&cursor={}", page["next_cursor"].as_str().unwrap());
        let page = scene.get(&next).await.expect(200);
        assert_eq!(page, json!({"data": [shown], "has_more": false, "next_cursor": ""}));

        let events = json!(["connection.deleted", "connection.created"]);
        let changes = json!({"name": "Customers", "events": events});
        let changed = scene.send("PATCH", &path, &changes).await.expect(200);
        assert_eq!((&changed["name"], &changed["url"]), (&json!("Customers"), &shown["url"]));
        assert_eq!(changed["events"].as_array().unwrap().len(), 2);
        let changes = json!({"events": null, "url": scene.url("c")});
        let changed = scene.send("PATCH", &path, &changes).await.expect(200);
        assert_eq!((&changed["events"], &changed["url"]), (&Value::Null, &changes["url"]));

        let rotated = scene.call("POST", &format!("{path}/rotate")).send().await.expect(200);
        let new_secret = rotated["webhook_secret"].as_str().unwrap();
        assert!(new_secret.starts_with("whsec_") && new_secret != secret);

        let test = scene.call("POST", &format!("{path}/test")).send().await.expect(200);
        assert_eq!((&test["type"], &test["status"]), (&json!("webhook.test"), &json!("pending")));
        assert_eq!((&test["sequence"], &test["attempts"]), (&json!(1), &json!(0)));
        let one = format!("{path}/deliveries/{}", test["delivery_id"].as_str().unwrap());
        let delivered = scene.wait_for_delivered(&path, 1, 10).await.remove(0);
        assert_eq!(scene.get(&one).await.expect(200), delivered);
        for (name, value) in [
            ("event_id", &test["event_id"]),
            ("attempts", &json!(1)),
            ("response_status", &json!(200)),
            ("response_body", &json!(r#"{"received":true}"#)),
            ("error", &Value::Null),
            ("next_attempt_at", &Value::Null),
            ("created_at", &test["created_at"]),
        ] {
            assert_eq!(&delivered[name], value, "{name}");
        }
        assert!(delivered["last_attempt_at"].is_string() && delivered["duration_ms"].is_u64());

        let again = scene.call("POST", &format!("{one}/redeliver")).send().await.expect(200);
        assert_eq!((&again["status"], &again["sequence"]), (&json!("pending"), &json!(1)));
        let again = scene.wait_for_delivered(&path, 1, 10).await.remove(0);
        assert_eq!(again["attempts"], 2);
        let came = scene.received("c").await;
        assert_eq!(came.len(), 2);
        assert_eq!(came[0].text, came[1].text);
        assert!(came.iter().all(|message| test["event_id"] == message.id()));
        assert_eq!(came[0].headers["webhook-signature"].as_str().unwrap().split(' ').count(), 2);
        let mut webhook = changed.clone();
        webhook.as_object_mut().unwrap().remove("webhook_secret");
        assert_eq!(came[0].body["data"], json!({"webhook": webhook}));

        for (status, count) in [("delivered", 1), ("pending", 0), ("failed", 0), ("all", 1)] {
            let path = format!("{path}/deliveries?status={status}");
            let listed = scene.get(&path).await.expect(200);
            assert_eq!(listed["data"].as_array().unwrap().len(), count, "{status}");
        }

        let deleted = scene.call("DELETE", &path).send().await.expect(200);
        assert_eq!(deleted, json!({"id": id, "deleted": true}));
        for path in [&path, &format!("{path}/deliveries"), &one] {
            assert_eq!(scene.get(path).await.error(), "webhook_not_found", "{path}");
        }
        scene.create_connections(1).await;
        let left = scene.send("POST", &format!("{second}/test"), &json!({})).await.expect(200);
        assert_eq!(left["sequence"], 1);
        scene.wait_for("b", 1, 10).await;
        assert_eq!(scene.received("c").await.len(), 2, "nothing is sent to a deleted one");
    });
}

#[test]
fn what_is_wrong_with_a_webhook_is_said_for_each_field() {
    each_webhook_site(async |scene| {
        let create = async |body: Value| scene.send("POST", "/webhooks", &body).await;
        assert_issues(&create(json!({})).await, &["name", "url"]);
        let wrong = json!({"name": "", "url": "ftp://x", "events": ["price.missing", "x"], "y": 1});
        assert_issues(&create(wrong).await, &["events.1", "name", "url", "y"]);
        let wrong = json!({"name": 1, "url": 2, "events": 3});
        assert_issues(&create(wrong).await, &["events", "name", "url"]);
        let url = scene.url("a");
        for events in [json!([]), json!(["webhook.test"]), json!("price.missing")] {
            let answer = create(json!({"name": "Hook", "url": url, "events": events})).await;
            assert_eq!(answer.error(), "validation_failed", "{events}");
        }
        let long = format!("https://example.com/{}", "a".repeat(2_048));
        for url in ["", "/hooks", "https://u:p@example.com", "https://example.com/#a", &long] {
            assert_issues(&create(json!({"name": "Hook", "url": url})).await, &["url"]);
        }
        let path = scene.create_webhook("a", &json!(null)).await;
        let wrong = json!({"secret": "whsec_x", "url": null, "name": ""});
        assert_issues(&scene.send("PATCH", &path, &wrong).await, &["name", "secret", "url"]);
        assert_issues(
            &scene.get(&format!("{path}/deliveries?status=x&limit=0")).await,
            &["limit", "status"],
        );
        assert_issues(&scene.get("/webhooks?limit=101").await, &["limit"]);
        for operation in ["rotate", "test"] {
            let path = format!("{path}/{operation}");
            assert_issues(&scene.send("POST", &path, &json!({"x": 1})).await, &["x"]);
        }
    });
}

#[test]
fn another_merchants_webhooks_and_deliveries_are_not_found() {
    each_webhook_site(async |scene| {
        let path = scene.create_webhook("a", &json!(null)).await;
        let test = scene.send("POST", &format!("{path}/test"), &json!({})).await.expect(200);
        let id = test["delivery_id"].as_str().unwrap();
        let own = std::mem::replace(&mut scene.key, merchant_key(scene.site));
        let others = scene.create_webhook("b", &json!(null)).await;
        for (method, path, code) in [
            ("GET", path.clone(), "webhook_not_found"),
            ("PATCH", path.clone(), "webhook_not_found"),
            ("DELETE", path.clone(), "webhook_not_found"),
            ("POST", format!("{path}/rotate"), "webhook_not_found"),
            ("POST", format!("{path}/test"), "webhook_not_found"),
            ("GET", format!("{path}/deliveries"), "webhook_not_found"),
            ("GET", format!("{path}/deliveries/{id}"), "webhook_not_found"),
            ("POST", format!("{path}/deliveries/{id}/redeliver"), "webhook_not_found"),
            ("GET", format!("{others}/deliveries/{id}"), "delivery_not_found"),
            ("POST", format!("{others}/deliveries/{id}/redeliver"), "delivery_not_found"),
            ("GET", "/webhooks/whk_x".to_owned(), "webhook_not_found"),
            ("GET", format!("{others}/deliveries/x"), "delivery_not_found"),
        ] {
            let answer = scene.send(method, &path, &json!({})).await;
            assert_eq!((answer.status, answer.error().as_str()), (404, code), "{method} {path}");
        }
        let listed = scene.get("/webhooks").await.expect(200);
        assert_eq!(listed["data"].as_array().unwrap().len(), 1);
        scene.create_connections(1).await;
        scene.wait_for("b", 1, 10).await;

        scene.key = own;
        scene.wait_for_delivered(&path, 1, 10).await;
        assert_eq!(
            scene.received("a").await.len(),
            1,
            "only the test, nothing of the other merchant"
        );
        let answer = scene.node.call("GET", "/v1/webhooks", "tgs_nobody").send().await;
        assert_eq!((answer.status, answer.error().as_str()), (401, "auth_invalid"));
    });
}

#[test]
fn what_is_asked_twice_with_one_key_is_done_once_and_shows_no_secret_again() {
    each_webhook_site(async |scene| {
        let once = async |path: &str, key: &str, body: &Value, status: u16| {
            let call = scene.call("POST", path).header("idempotency-key", key).json(body);
            call.send().await.expect(status)
        };
        let new = json!({"name": "Hook", "url": scene.url("a")});
        let mut made = once("/webhooks", "make", &new, 201).await;
        let again = once("/webhooks", "make", &new, 201).await;
        made.as_object_mut().unwrap().remove("webhook_secret").unwrap();
        assert_eq!(again, made);
        let path = format!("/webhooks/{}", made["webhook_id"].as_str().unwrap());

        let rotate = format!("{path}/rotate");
        let mut rotated = once(&rotate, "rotate", &json!({}), 200).await;
        rotated.as_object_mut().unwrap().remove("webhook_secret").unwrap();
        assert_eq!(once(&rotate, "rotate", &json!({}), 200).await, rotated);

        let test = format!("{path}/test");
        let tried = once(&test, "test", &json!({}), 200).await;
        assert_eq!(once(&test, "test", &json!({}), 200).await, tried);
        scene.wait_for_delivered(&path, 1, 10).await;
        let id = tried["delivery_id"].as_str().unwrap();
        let redeliver = format!("{path}/deliveries/{id}/redeliver");
        let sent = once(&redeliver, "redeliver", &json!({}), 200).await;
        assert_eq!(once(&redeliver, "redeliver", &json!({}), 200).await, sent);
        assert_eq!(scene.wait_for_delivered(&path, 1, 10).await[0]["attempts"], 2);
        let came = scene.received("a").await;
        assert_eq!(came.len(), 2);
        assert_eq!(
            came[0].headers["webhook-signature"].as_str().unwrap().split(' ').count(),
            2,
            "rotated once"
        );
    });
}

#[test]
fn urls_of_the_inside_are_refused_when_written_and_when_sent_to() {
    each_webhook_site(async |scene| {
        let create_webhook = scene.create_webhook("a", &json!(null)).await;
        let test = async |scene: &WebhookSite<'_>| {
            scene.send("POST", &format!("{create_webhook}/test"), &json!({})).await.expect(200);
            scene.wait_for_attempt(&create_webhook).await
        };
        scene.kill();
        scene.node = scene.site.serve_with(&[
            ("TOLLGATE_WEBHOOK_ALLOW_HTTP", "false"),
            ("TOLLGATE_WEBHOOK_ALLOW_PRIVATE_NETWORK", "false"),
        ]);
        let inside =
            ["https://localhost", "https://127.0.0.1/a", "https://[::1]:8/", "https://10.1"];
        for url in inside.into_iter().chain(["http://example.com"]) {
            let answer =
                scene.send("POST", "/webhooks", &json!({"name": "Hook", "url": url})).await;
            assert_issues(&answer, &["url"]);
            let answer = scene.send("PATCH", &create_webhook, &json!({"url": url})).await;
            assert_issues(&answer, &["url"]);
        }
        // The URL was allowed when the webhook was created.
        assert_eq!(test(scene).await["error"], "url_refused");
        assert_eq!(scene.received("a").await.len(), 0);
    });
}

#[test]
fn what_receivers_do_is_shown_and_none_keeps_another_waiting() {
    each_webhook_site(async |scene| {
        let events = json!(["connection.created"]);
        let elsewhere = format!("redirect?redirect={}", scene.url("elsewhere"));
        let nowhere = "http://127.0.0.1:1/hooks";
        let no_tls = scene.url("a").replace("http:", "https:");
        let refusing = scene.create_webhook("refusing?status=503&body_bytes=10", &events).await;
        let failing = scene.create_webhook("failing?fail=1", &events).await;
        let stubborn = scene.create_webhook("stubborn?fail=3", &events).await;
        let hanging = scene.create_webhook("hanging?hang=1", &events).await;
        let cutting = scene.create_webhook("cutting?cut=1", &events).await;
        let redirecting = scene.create_webhook(&elsewhere, &events).await;
        let talking = scene.create_webhook("talking?body_bytes=1000000", &events).await;
        let absent = scene.create_webhook_at(nowhere, &events).await;
        let nameless = scene.create_webhook_at("https://nowhere.invalid/hooks", &events).await;
        let insecure = scene.create_webhook_at(&no_tls, &events).await;
        let healthy = scene.create_webhook("healthy", &events).await;

        scene.create_connections(1).await;
        for (webhook, status, error) in [
            (&refusing, json!(503), json!(null)),
            (&failing, json!(500), json!(null)),
            (&cutting, json!(null), json!("no_answer")),
            (&redirecting, json!(307), json!(null)),
            (&absent, json!(null), json!("unreachable")),
            (&nameless, json!(null), json!("name_not_found")),
            (&insecure, json!(null), json!("tls_failed")),
        ] {
            let tried = scene.wait_for_attempt(webhook).await;
            assert_eq!((&tried["response_status"], &tried["error"]), (&status, &error), "{tried}");
            assert_eq!((&tried["status"], &tried["attempts"]), (&json!("pending"), &json!(1)));
            assert!(tried["next_attempt_at"].as_str() > tried["last_attempt_at"].as_str());
        }
        assert_eq!(scene.wait_for_attempt(&refusing).await["response_body"], "x".repeat(10));
        assert_eq!(scene.received("elsewhere").await.len(), 0, "redirects are not followed");

        // Three answers of 500 and then 200; `redeliver` skips the wait before each attempt.
        for attempt in 1..=4 {
            let delivery = scene.wait_for_attempts(&stubborn, attempt).await;
            let expected = if attempt < 4 { (500, "pending") } else { (200, "delivered") };
            let (status, stands) = expected;
            assert_eq!(
                (&delivery["response_status"], &delivery["status"]),
                (&json!(status), &json!(stands))
            );
            if attempt < 4 {
                let again = format!("/{}/redeliver", delivery["delivery_id"].as_str().unwrap());
                let path = format!("{stubborn}/deliveries{again}");
                scene.send("POST", &path, &json!({})).await.expect(200);
            }
        }
        let came = scene.received("stubborn").await;
        assert_eq!(came.len(), 4);
        assert!(came.iter().all(|message| message.id() == came[0].id()));
        let talked = scene.wait_for_attempt(&talking).await;
        assert_eq!(talked["status"], "delivered");
        assert_eq!(talked["response_body"], "x".repeat(4_096));

        // The hanging receiver still hangs.
        scene.create_connections(40).await;
        scene.wait_for_delivered(&healthy, 41, 8).await;
        for message in scene.received("healthy").await {
            assert!(message.delay_ms() < 6_000, "{} ms", message.delay_ms());
        }
        let hung = scene.wait_for_attempt(&hanging).await;
        assert_eq!((&hung["response_status"], &hung["error"]), (&json!(null), &json!("timed_out")));
        assert!((10_000..13_000).contains(&hung["duration_ms"].as_u64().unwrap()), "{hung}");

        // The receiver that failed works again and gets everything, the first message after 5 s.
        scene.wait_for_delivered(&failing, 41, 10).await;
        let came = scene.received("failing").await;
        let first: Vec<_> = came.iter().filter(|message| message.sequence() == 1).collect();
        assert_eq!(first.len(), 2);
        assert_eq!(first[0].id(), first[1].id());
        let pause = first[1].at_ms - first[0].at_ms;
        assert!((5_000..8_000).contains(&pause), "{pause} ms");
    });
}

#[test]
fn nothing_is_lost_when_a_node_is_killed_while_it_delivers() {
    each_webhook_site(async |scene| {
        let slow = scene.create_webhook("slow?delay_ms=500", &json!(["connection.created"])).await;
        let made = scene.create_connections(300).await;
        scene.wait_for("slow", 40, 20).await;
        scene.kill();
        let before = scene.received("slow").await.len();
        assert!(before < 300, "there was something left: {before}");

        scene.node = scene.site.serve();
        // On PostgreSQL the dead node keeps the deliveries that it claimed for 30 s.
        let deliveries = scene.wait_for_delivered(&slow, 300, 60).await;
        assert_eq!(deliveries.len(), 300);
        let received = scene.received("slow").await;
        assert_complete(&received, &made, 1);
        let again = received.len() - 300;
        assert!(again <= AT_ONE, "{again} came twice: no more than were under way");
    });
}

#[test]
fn two_nodes_make_no_attempt_twice_and_one_goes_on_where_the_other_died() {
    let Some(database) = postgres::database() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    block_on(async {
        let mut scene = WebhookSite::new(&site);
        let other = site.serve();
        let hook = scene.create_webhook("quick", &json!(["connection.created"])).await;
        let mut made = scene.create_connections(150).await;
        let first = std::mem::replace(&mut scene.node, other);
        made.extend(scene.create_connections(150).await);
        let deliveries = scene.wait_for_delivered(&hook, 300, 30).await;
        assert!(deliveries.iter().all(|one| one["attempts"] == 1));
        let received = scene.received("quick").await;
        assert_complete(&received, &made, 1);
        assert_eq!(received.len(), 300, "each came once");

        let url = scene.url("slow?delay_ms=500");
        scene.send("PATCH", &hook, &json!({"url": url})).await.expect(200);
        let made = scene.create_connections(300).await;
        scene.wait_for("slow", 60, 20).await;
        first.signal("-KILL");
        let before = scene.received("slow").await.len();
        assert!(before < 300, "there was something left: {before}");
        scene.wait_for_delivered(&hook, 600, 60).await;
        let received = scene.received("slow").await;
        assert_complete(&received, &made, 301);
        let again = received.len() - 300;
        assert!(again <= AT_ONE, "{again} came twice: no more than were under way");
    });
}

#[test]
fn events_of_one_resource_come_one_after_the_other() {
    each_webhook_site(async |scene| {
        const DELAY_MS: u64 = 100;
        // On a database for several nodes, two nodes deliver.
        let _other = scene.site.database.is_some().then(|| scene.site.serve());
        let path = format!("a?delay_ms={DELAY_MS}");
        let events = json!([
            "connection.created",
            "connection.deleted",
            "wallet.balance_low",
            "wallet.balance_depleted",
        ]);
        let hook = scene.create_webhook(&path, &events).await;
        let made = scene.create_connections(20).await;
        for connection in &made {
            scene.call("DELETE", &format!("/connections/{connection}")).send().await.expect(200);
        }
        let connection = scene.send("POST", "/connections", &json!({})).await.expect(201);
        let wallet = format!("/wallets/{}", connection["wallet_id"].as_str().unwrap());
        let threshold = json!({"low_balance_threshold": "5"});
        scene.send("PATCH", &wallet, &threshold).await.expect(200);
        for _ in 0..4 {
            for (way, amount) in [("credits", "10"), ("debits", "6"), ("debits", "4")] {
                let path = format!("{wallet}/{way}");
                scene.send("POST", &path, &json!({"amount": amount})).await.expect(201);
            }
        }
        let count = 20 * 2 + 1 + 4 * 2;
        scene.wait_for_delivered(&hook, count, 30).await;
        let came = scene.received("a").await;
        assert_eq!(came.len(), count);
        let of = |is_theirs: &dyn Fn(&Value) -> bool| -> Vec<ArrivedMessage> {
            came.iter().filter(|message| is_theirs(&message.body["data"])).cloned().collect()
        };
        let in_order = |messages: &[ArrivedMessage], kinds: &[&str]| {
            let found: Vec<_> = messages.iter().map(ArrivedMessage::kind).collect();
            assert_eq!(found, kinds);
            assert!(messages.is_sorted_by_key(ArrivedMessage::sequence));
            for pair in messages.windows(2) {
                let pause = pair[1].at_ms - pair[0].at_ms;
                assert!(pause >= DELAY_MS, "the second came {pause} ms after the first");
            }
        };
        for id in &made {
            let messages = of(&|data| data["connection"]["connection_id"] == id.as_str());
            in_order(&messages, &["connection.created", "connection.deleted"]);
        }
        let messages = of(&|data| data["wallet"].is_object());
        in_order(&messages, &["wallet.balance_low", "wallet.balance_depleted"].repeat(4));
        let balances: Vec<_> =
            messages.iter().map(|message| &message.body["data"]["wallet"]["balance"]).collect();
        assert_eq!(json!(balances), json!(["4.0000000000", "0.0000000000"].repeat(4)));
    });
}

#[test]
fn single_calls_are_told_of_where_that_is_asked_for_with_their_records() {
    each_webhook_site(async |scene| {
        let asked = json!(["request.completed", "request.failed"]);
        let all_else = scene.create_webhook("all_else", &json!(null)).await;
        let token = scene.node.create_customer(&scene.key, "100").await;
        // No webhook has these events yet at this call; at the next one, a new webhook has.
        scene.node.forward(&scene.site.chat_url(), &token, false).send().await.expect(200);
        let before = scene.get("/requests").await.expect(200)["data"][0]["request_id"].clone();
        let failures = scene.create_webhook("failures", &json!(["request.failed"])).await;
        let calls = scene.create_webhook("calls", &asked).await;
        for (status, stream) in [("200", false), ("200", true), ("500", false)] {
            let call = scene.node.forward(&scene.site.chat_url(), &token, stream);
            let answer = call.header("x-simulate-status", status).send().await;
            assert_eq!(answer.status.to_string(), status, "{}", answer.text());
        }
        scene.wait_for_delivered(&calls, 3, 10).await;
        let listed = scene.get("/requests").await.expect(200);
        let ids = listed["data"].as_array().unwrap().iter().map(|one| &one["request_id"]);
        let ids = ids.filter(|id| **id != before);
        let ids: BTreeSet<_> = ids.map(|id| id.as_str().unwrap().to_owned()).collect();
        let mut told = BTreeMap::new();
        for message in scene.received("calls").await {
            let request = message.body["data"]["request"].clone();
            let id = request["request_id"].as_str().unwrap().to_owned();
            assert_eq!(scene.get(&format!("/requests/{id}")).await.expect(200), request);
            let has_failed = request["status"] == "error";
            assert_eq!(message.kind() == "request.failed", has_failed, "{request}");
            told.insert(id, message.kind().to_owned());
        }
        assert_eq!(told.keys().cloned().collect::<BTreeSet<_>>(), ids);
        let failed = told.values().filter(|kind| *kind == "request.failed").count();
        assert_eq!(failed, 1);

        scene.wait_for_delivered(&failures, 1, 10).await;
        assert_eq!(scene.received("failures").await[0].kind(), "request.failed");
        // The test event continues the sequence of its webhook.
        for (webhook, number) in [(&failures, 2), (&all_else, 2)] {
            let test = scene.send("POST", &format!("{webhook}/test"), &json!({})).await.expect(200);
            assert_eq!(test["sequence"], number);
        }
        let kinds: Vec<_> =
            scene.wait_for("all_else", 2, 10).await.iter().map(|m| m.kind().to_owned()).collect();
        assert_eq!(kinds, ["connection.created", "webhook.test"]);
    });
}

#[test]
fn a_node_that_is_told_to_end_does_so_in_time_although_a_receiver_hangs() {
    each_webhook_site(async |scene| {
        let hanging = scene.create_webhook("hanging?hang=1", &json!(["connection.created"])).await;
        scene.kill();
        for (drain_ms, within) in [("30000", 15), ("500", 5)] {
            scene.node = scene.site.serve_with(&[("TOLLGATE_DRAIN_TIMEOUT_MS", drain_ms)]);
            let before = scene.received("hanging").await.len();
            scene.create_connections(1).await;
            scene.wait_for("hanging", before + 1, 20).await;
            let told = Instant::now();
            scene.node.signal("-TERM");
            assert_eq!(scene.node.exit_code(), Some(0));
            let took = told.elapsed();
            assert!(took < Duration::from_secs(within), "{took:?} of {drain_ms} ms");
        }
        // The next node sends the messages that did not arrive.
        scene.node = scene.site.serve();
        let well = json!({"url": scene.url("well")});
        scene.send("PATCH", &hanging, &well).await.expect(200);
        scene.wait_for("well", 1, 20).await;
    });
}
