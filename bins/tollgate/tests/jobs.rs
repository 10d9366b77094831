//! Jobs of the real program under faults: nodes that are killed, clients that poll often, seldom or never, events of the
//! provider that are lost, doubled, late or forged, cancellations at any moment, and jobs that fail, expire or are
//! forgotten. Every job is settled once, at the sum of what the provider has answered.
//!
//! `JOBS` of the environment is the number of jobs, or 60.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_domain::Timestamp;
use tollgate_pricing::Amount;
use tollgate_testkit::random::Random;
use tollgate_testkit::store::block_on;
use tollgate_testkit::{TestRequest, postgres};

use crate::site::{ServiceProcess, Site, assert_audit_clean, each_site, merchant_key};

/// The usage of each answer, by the headers of its call: 0.0002 USD.
const TOKENS: [(&str, &str); 2] =
    [("x-simulate-input-tokens", "100"), ("x-simulate-output-tokens", "50")];
const ANSWER: &str = "0.0002";
/// A video of four seconds.
const VIDEO: &str = "0.4";
/// The requests of a batch, and the videos of an operation.
const LINES: u64 = 4;
const SAMPLES: u64 = 2;
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

/// The kind of a job, by its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Response,
    Batch,
    Video,
    GoogleBatch,
    GoogleVideo,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Response, Self::Batch, Self::Video, Self::GoogleBatch, Self::GoogleVideo];

    /// The path and the body of the call that creates one.
    fn creation(self, file: &str) -> (&'static str, Value) {
        let contents = json!([{"role": "user", "parts": [{"text": "Hello"}]}]);
        let request = json!({"request": {"contents": contents, "generationConfig": {"maxOutputTokens": 100}}});
        let requests: Vec<_> = (0..LINES).map(|_| request.clone()).collect();
        match self {
            Self::Response => (
                "/v1/responses",
                json!({"model": "m", "input": "Hello", "background": true, "max_output_tokens": 100}),
            ),
            Self::Batch => (
                "/v1/batches",
                json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}),
            ),
            Self::Video => {
                ("/v1/videos", json!({"model": "film", "prompt": "A gate.", "seconds": "4"}))
            }
            Self::GoogleBatch => (
                "/v1beta/models/g:batchGenerateContent",
                json!({"batch": {"inputConfig": {"requests": {"requests": requests}}}}),
            ),
            Self::GoogleVideo => (
                "/v1beta/models/film:predictLongRunning",
                json!({"instances": [{"prompt": "A gate."}],
                    "parameters": {"durationSeconds": 4, "sampleCount": SAMPLES}}),
            ),
        }
    }

    /// The paths of an object that was created, and of its cancellation.
    fn paths(self, created: &Value) -> Option<(String, Option<String>)> {
        let text = |field: &str| created[field].as_str();
        Some(match self {
            Self::Response | Self::Batch | Self::Video => {
                let (creation, _) = self.creation("");
                let path = format!("{creation}/{}", text("id")?);
                let cancel = format!("{path}/cancel");
                (path, (self != Self::Video).then_some(cancel))
            }
            Self::GoogleBatch | Self::GoogleVideo => {
                let path = format!("/v1beta/{}", text("name")?);
                let cancel = format!("{path}:cancel");
                (path, (self == Self::GoogleBatch).then_some(cancel))
            }
        })
    }
}

/// The life of one job, and what it may cost by its final state.
#[derive(Clone, Debug)]
struct Plan {
    kind: Kind,
    millis: u64,
    outcome: &'static str,
    failed: u64,
    polls: u64,
    events: &'static str,
    event_delay_millis: u64,
    cancels: bool,
}

impl Plan {
    fn of(random: &mut Random) -> Self {
        Self {
            kind: Kind::ALL[random.index(Kind::ALL.len())],
            millis: 200 + random.below(2_500),
            outcome: ["succeeded", "succeeded", "succeeded", "failed", "expired", "forgotten"]
                [random.index(6)],
            failed: random.below(3),
            polls: [0, 1, 50][random.index(3)],
            events: ["sent", "lost", "doubled", "forged"][random.index(4)],
            event_delay_millis: [0, 0, 1_500][random.index(3)],
            cancels: random.one_in(5),
        }
    }

    /// The cost of a job that has ended in this state.
    fn cost(&self, state: &str) -> Amount {
        let times = |one: &str, count: u64| {
            let one: Amount = one.parse().unwrap();
            (0..count).fold(Amount::ZERO, |sum, _| sum.checked_add(one).unwrap())
        };
        match (self.kind, state) {
            (Kind::Response, "succeeded") => times(ANSWER, 1),
            (Kind::Video, "succeeded") => times(VIDEO, 1),
            (Kind::GoogleVideo, "succeeded") => times(VIDEO, SAMPLES - self.failed),
            (Kind::Batch | Kind::GoogleBatch, "succeeded") => times(ANSWER, LINES - self.failed),
            // Half of the lines are served.
            (Kind::Batch, "expired") => times(ANSWER, (LINES / 2).min(LINES - self.failed)),
            _ => Amount::ZERO,
        }
    }

    /// The states in which it may end.
    fn states(&self) -> Vec<&'static str> {
        let natural = match (self.kind, self.outcome) {
            (_, "forgotten") => "lost",
            // A response does not expire, and an operation only says that it has failed.
            (Kind::Response | Kind::GoogleVideo, "expired") => "failed",
            (_, outcome) => outcome,
        };
        let mut states = vec![natural];
        if self.cancels && !matches!(self.kind, Kind::Video | Kind::GoogleVideo) {
            states.push("cancelled");
        }
        states
    }

    /// The longest time from its end until it is settled, if nothing is killed: the time to the next look, and another
    /// look at one that is forgotten.
    fn patience_millis(&self) -> u64 {
        if self.outcome == "forgotten" { 2_000 + 5_000 } else { 2_000 }
    }
}

/// Creates a job and lives its life. Returns the id of its object, if the client has it.
async fn live(nodes: Nodes, key: String, plan: Plan, file: String, seed: u64) -> Option<String> {
    let mut random = Random(seed);
    let (path, body) = plan.kind.creation(&file);
    let receiver = nodes.lock().unwrap()[0];
    let created = call(&nodes, &mut random, |address| {
        let call = TestRequest::new(address, "POST", path).bearer(&key).json(&body);
        let call = TOKENS.iter().fold(call, |call, (name, value)| call.header(name, value));
        call.header("x-simulate-job-ms", &plan.millis.to_string())
            .header("x-simulate-job-outcome", plan.outcome)
            .header("x-simulate-failed-requests", &plan.failed.to_string())
            .header("x-simulate-events", plan.events)
            .header("x-simulate-event-url", &format!("http://{receiver}/v1/provider_events/house"))
            .header("x-simulate-event-secret", SECRET)
            .header("x-simulate-event-delay-ms", &plan.event_delay_millis.to_string())
    });
    let created = created.await?;
    let (object, cancel) = plan.kind.paths(&created)?;
    for _ in 0..plan.polls {
        tokio::time::sleep(Duration::from_millis(random.below(5_000 / plan.polls))).await;
        let get = |address| TestRequest::new(address, "GET", &object).bearer(&key);
        call(&nodes, &mut random, get).await;
    }
    if let Some(cancel) = cancel.filter(|_| plan.cancels) {
        let cancel =
            |address| TestRequest::new(address, "POST", &cancel).bearer(&key).json(&json!({}));
        call(&nodes, &mut random, cancel).await;
    }
    object.rsplit('/').next().map(str::to_owned)
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

/// Adds a provider of Google's format, and prices.
fn add_providers(site: &Site) {
    let path = site.path().join("tollgate.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let google = site.simulator.url("/v1beta");
    let more = format!(
        "
        [providers.palace]
        dialect = \"google\"
        base_url = \"{google}\"
        api_key = \"simulated\"
        allow_private_network = true
        [[prices]]
        provider = \"palace\"
        model = \"g\"
        input = \"1\"
        output = \"2\"
        [[prices]]
        provider = \"palace\"
        model = \"film\"
        output_second = \"0.1\"
        [[prices]]
        provider = \"house\"
        model = \"film\"
        output_second = \"0.1\"
        "
    );
    std::fs::write(&path, config + &more).unwrap();
}

/// Whether nodes are killed while jobs run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    Killed,
    None,
}

async fn assert_jobs_are_settled_once(site: &Site, count: usize, faults: Faults) {
    add_providers(site);
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

    let ordered: Option<u64> = std::env::var("JOBS").ok().and_then(|text| text.parse().ok());
    let jobs = ordered.unwrap_or(60);
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
    while faults == Faults::Killed && !lives.is_finished() {
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
    let (mut seen, mut latest) = (0, 0);
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
        let at = |field: &str| -> i64 {
            job[field].as_str().unwrap().parse::<Timestamp>().unwrap().unix_micros() / 1_000
        };
        let least = i64::try_from(plan.millis + plan.patience_millis()).unwrap();
        latest = latest.max(at("ended_at") - at("created_at") - least);
        seen += 1;
    }
    println!("{seen} of {jobs} jobs were known to their clients, {} in all", all.len());
    if faults == Faults::None {
        println!("at the latest, one was settled {latest} ms after the next look");
        // A machine that runs other tests is slow.
        let most = if ordered.is_some() { 1_000 } else { 10_000 };
        assert!(latest <= most, "{latest} ms");
    }
    // A node of a slow machine is away for longer than it is there.
    assert!(seen * 5 > known.len(), "{seen} of {jobs} calls were answered");
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
    each_site(async |site| assert_jobs_are_settled_once(site, 1, Faults::Killed).await);
}

#[test]
fn jobs_are_settled_soon_after_their_end() {
    each_site(async |site| assert_jobs_are_settled_once(site, 1, Faults::None).await);
}

#[test]
fn jobs_of_two_nodes_that_are_killed_are_settled_once() {
    let Some(database) = postgres::database() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    block_on(assert_jobs_are_settled_once(&site, 2, Faults::Killed));
}
