//! Jobs of the real program under faults: nodes that are killed, clients that poll often, seldom or never, events of the
//! provider that are lost, doubled or forged, cancellations at any moment, and jobs that fail, expire or are forgotten.
//! Every job is settled once, at the sum of what the provider has answered.
//!
//! `JOBS` of the environment is the number of jobs, or 60.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_domain::{Clock, WebhookSecret};
use tollgate_pricing::Amount;
use tollgate_testkit::random::Random;
use tollgate_testkit::{TestRequest, postgres};

use crate::site::{ServiceProcess, Site, assert_audit_clean, each_site, merchant_key};

/// The usage of each answer, by the headers of its call: 0.0002 USD.
const TOKENS: [(&str, &str); 2] =
    [("x-simulate-input-tokens", "100"), ("x-simulate-output-tokens", "50")];
const ANSWER: &str = "0.0002";
/// A video of four seconds.
const VIDEO: &str = "0.4";
/// The lines of a file.
const LINES: u64 = 4;
/// The secret of the provider's events.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// The longest time until all jobs have ended.
const PATIENCE: Duration = Duration::from_secs(120);

/// The nodes, each of which may be killed and started again.
type Nodes = Arc<Mutex<Vec<std::net::SocketAddr>>>;

/// A call to a random node. `None` if the node does not answer.
async fn call(
    nodes: &Nodes,
    random: &mut Random,
    build: impl FnOnce(std::net::SocketAddr) -> TestRequest,
) -> Option<Value> {
    let address = {
        let nodes = nodes.lock().unwrap();
        nodes[random.index(nodes.len())]
    };
    let answer = build(address).try_send().await?;
    // An answer may be cut, and that to an event is empty.
    serde_json::from_str(answer.text()).ok().filter(|_| answer.status == 200)
}

/// The life of one job, and what it may cost by its final state.
#[derive(Clone, Debug)]
struct Plan {
    kind: &'static str,
    outcome: &'static str,
    failed_lines: u64,
    polls: u64,
    events: u64,
    cancels: bool,
}

impl Plan {
    fn of(random: &mut Random) -> Self {
        Self {
            kind: ["response", "batch", "video"][random.index(3)],
            outcome: ["succeeded", "succeeded", "succeeded", "failed", "expired", "forgotten"]
                [random.index(6)],
            failed_lines: random.below(3),
            polls: [0, 1, 10][random.index(3)],
            events: random.below(4),
            cancels: random.one_in(5),
        }
    }

    /// The path of its objects.
    fn path(&self) -> &'static str {
        match self.kind {
            "response" => "/v1/responses",
            "batch" => "/v1/batches",
            _ => "/v1/videos",
        }
    }

    /// The cost of a job that has ended in this state.
    fn cost(&self, state: &str) -> Amount {
        let one: Amount = ANSWER.parse().unwrap();
        let times =
            |count: u64| (0..count).fold(Amount::ZERO, |sum, _| sum.checked_add(one).unwrap());
        match (self.kind, state) {
            ("response", "succeeded") => one,
            ("video", "succeeded") => VIDEO.parse().unwrap(),
            ("batch", "succeeded") => times(LINES - self.failed_lines),
            // Half of the lines are served.
            ("batch", "expired") => times((LINES / 2).min(LINES - self.failed_lines)),
            _ => Amount::ZERO,
        }
    }

    /// The states in which it may end.
    fn states(&self) -> Vec<&'static str> {
        let natural = match (self.kind, self.outcome) {
            (_, "forgotten") => "lost",
            // A response does not expire.
            ("response", "expired") => "failed",
            (_, outcome) => outcome,
        };
        let mut states = vec![natural];
        if self.cancels && self.kind != "video" {
            states.push("cancelled");
        }
        states
    }
}

/// An event of the provider about an object.
fn event(address: std::net::SocketAddr, secret: &str, id: &str) -> TestRequest {
    let body = json!({"type": "response.completed", "data": {"id": id}}).to_string();
    let now = Clock::system().now().unix_micros() / 1_000_000;
    let signature = WebhookSecret::parse(secret).unwrap();
    let signature = signature.signature("msg_1", now, body.as_bytes()).unwrap();
    TestRequest::new(address, "POST", "/v1/provider_events/house")
        .header("webhook-id", "msg_1")
        .header("webhook-timestamp", &now.to_string())
        .header("webhook-signature", &signature)
        .bytes("application/json", body.as_bytes())
}

/// Creates a job and lives its life. Returns the id of its object, if the client has it.
async fn live(nodes: Nodes, key: String, plan: Plan, file: String, seed: u64) -> Option<String> {
    let mut random = Random(seed);
    let length = (200 + random.below(2_500)).to_string();
    let created = call(&nodes, &mut random, |address| {
        let call = TestRequest::new(address, "POST", plan.path()).bearer(&key);
        let call = TOKENS.iter().fold(call, |call, (name, value)| call.header(name, value));
        let call = call
            .header("x-simulate-job-ms", &length)
            .header("x-simulate-job-outcome", plan.outcome)
            .header("x-simulate-failed-requests", &plan.failed_lines.to_string());
        call.json(&match plan.kind {
            "response" => {
                json!({"model": "m", "input": "Hello", "background": true, "max_output_tokens": 100})
            }
            "batch" => json!({"input_file_id": file, "endpoint": "/v1/chat/completions",
                "completion_window": "24h"}),
            _ => json!({"model": "film", "prompt": "A gate.", "seconds": "4"}),
        })
    });
    let id = created.await?["id"].as_str()?.to_owned();
    let object = format!("{}/{id}", plan.path());
    for number in 0..plan.polls.max(plan.events) {
        tokio::time::sleep(Duration::from_millis(random.below(600))).await;
        if number < plan.polls {
            let get = |address| TestRequest::new(address, "GET", &object).bearer(&key);
            call(&nodes, &mut random, get).await;
        }
        if number < plan.events {
            let forged = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
            let secret = if random.one_in(2) { SECRET } else { forged };
            call(&nodes, &mut random, |address| event(address, secret, &id)).await;
        }
    }
    if plan.cancels && plan.kind != "video" {
        let cancel = format!("{object}/cancel");
        let cancel =
            |address| TestRequest::new(address, "POST", &cancel).bearer(&key).json(&json!({}));
        call(&nodes, &mut random, cancel).await;
    }
    Some(id)
}

/// Uploads a file of lines for batches.
async fn upload(service: &ServiceProcess, key: &str) -> String {
    let line = |number: u64| {
        let body = json!({"model": "m", "max_tokens": 100,
            "messages": [{"role": "user", "content": "Hello"}]});
        json!({"custom_id": number.to_string(), "method": "POST", "url": "/v1/chat/completions", "body": body})
    };
    let lines: Vec<_> = (0..LINES).map(|number| format!("{}\n", line(number))).collect();
    let form = format!(
        "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
         --x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{}\r\n--x--\r\n",
        lines.concat()
    );
    let call = service.call("POST", "/v1/files", key);
    let file = call.bytes("multipart/form-data; boundary=x", form.as_bytes()).send().await;
    file.expect(200)["id"].as_str().unwrap().to_owned()
}

/// Sets a price of 0.1 USD per second for videos.
fn price_videos(site: &Site) {
    let path = site.path().join("tollgate.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let price = "provider = \"house\"\nmodel = \"film\"\noutput_second = \"0.1\"";
    std::fs::write(&path, format!("{config}\n[[prices]]\n{price}\n")).unwrap();
}

async fn assert_jobs_are_settled_once(site: &Site, count: usize) {
    price_videos(site);
    let serve = || site.serve_with(&[("TOLLGATE_PROVIDERS__HOUSE__WEBHOOK_SECRET", SECRET)]);
    let secret_key = merchant_key(site);
    let mut services: Vec<_> = (0..count).map(|_| serve()).collect();
    let post = async |path: &str, body: Value| {
        services[0].call("POST", path, &secret_key).json(&body).send().await.expect(201)
    };
    let customer = post("/v1/connections", json!({})).await;
    let wallet = format!("/v1/wallets/{}", customer["wallet_id"].as_str().unwrap());
    post(&format!("{wallet}/credits"), json!({"amount": "1000"})).await;
    let key = json!({"name": "Key", "wallet_id": customer["wallet_id"]});
    let key = post("/v1/spend_keys", key).await["key"].as_str().unwrap().to_owned();
    let file = upload(&services[0], &key).await;

    let jobs = std::env::var("JOBS").ok().and_then(|text| text.parse().ok()).unwrap_or(60_u64);
    let mut random = Random(u64::from(std::process::id()));
    println!("seed {}", random.0);
    let nodes: Nodes =
        Arc::new(Mutex::new(services.iter().map(|service| service.address).collect()));
    let lives = {
        let (nodes, mut random) = (nodes.clone(), Random(random.0 + 1));
        tokio::spawn(async move {
            let mut lives = Vec::new();
            for number in 0..jobs {
                let plan = Plan::of(&mut random);
                let life = live(nodes.clone(), key.clone(), plan.clone(), file.clone(), number);
                lives.push((plan, tokio::spawn(life)));
                tokio::time::sleep(Duration::from_millis(random.below(100))).await;
            }
            let mut known = Vec::new();
            for (plan, life) in lives {
                known.push((plan, life.await.unwrap()));
            }
            known
        })
    };
    while !lives.is_finished() {
        tokio::time::sleep(Duration::from_millis(300 + random.below(1_500))).await;
        let node = random.index(count);
        services[node].signal("-KILL");
        services[node] = serve();
        nodes.lock().unwrap()[node] = services[node].address;
    }
    let known = lives.await.unwrap();

    let get =
        async |path: &str| services[0].call("GET", path, &secret_key).send().await.expect(200);
    let deadline = Instant::now() + PATIENCE;
    while get("/v1/jobs?state=running").await["data"] != json!([])
        || assert_audit_clean(site)["pending"] != 0
    {
        assert!(Instant::now() < deadline, "jobs run for ever");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(&format!("/v1/jobs?limit=100{cursor}")).await;
        all.extend(page["data"].as_array().unwrap().clone());
        if page["has_more"] == false {
            break;
        }
        cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
    }
    let mut seen = 0;
    for (plan, id) in &known {
        let Some(id) = id else { continue };
        let of_object = |job: &&Value| job["provider_object_id"] == *id;
        let [job] = all.iter().filter(of_object).collect::<Vec<_>>()[..] else {
            unreachable!("{plan:?}: {id} has not one job")
        };
        let state = job["state"].as_str().unwrap();
        assert!(plan.states().contains(&state), "{plan:?}: {job}");
        let record = get(&format!("/v1/requests/{}", job["request_id"].as_str().unwrap())).await;
        let cost: Amount = record["total_request_cost"].as_str().unwrap().parse().unwrap();
        assert_eq!(cost, plan.cost(state), "{plan:?}: {record}");
        seen += 1;
    }
    println!("{seen} of {jobs} jobs were known to their clients, {} in all", all.len());
    assert!(seen * 2 > known.len(), "most calls are answered");
    // A call that ended with its node is paid by the merchant; all others are paid by the wallet, once.
    let (mut sum, mut cursor) = (Amount::ZERO, String::new());
    loop {
        let page = get(&format!("/v1/requests?limit=100{cursor}")).await;
        for record in page["data"].as_array().unwrap() {
            let cost: Amount = record["total_wallet_cost"].as_str().unwrap().parse().unwrap();
            sum = sum.checked_add(cost).unwrap();
        }
        if page["has_more"] == false {
            break;
        }
        cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
    }
    let wallet = get(&wallet).await;
    let left: Amount = wallet["balance"].as_str().unwrap().parse().unwrap();
    assert_eq!(left.checked_add(sum).unwrap(), "1000".parse().unwrap());
    assert_eq!(wallet["held"], "0.0000000000");
}

#[test]
fn jobs_of_a_node_that_is_killed_are_settled_once() {
    each_site(async |site| assert_jobs_are_settled_once(site, 1).await);
}

#[test]
fn jobs_of_two_nodes_that_are_killed_are_settled_once() {
    let Some(database) = postgres::database() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(assert_jobs_are_settled_once(&site, 2));
}
