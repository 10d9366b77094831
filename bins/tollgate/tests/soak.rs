//! Memory of the real program: with many slow clients, with an endless line, and over time.
//!
//! The short forms run with every `cargo test`. `just soak` runs the long ones:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `SOAK_SECONDS` | the time for which random calls are made | 10 |
//! | `SOAK_CLIENTS`, `SOAK_CLIENT_SECONDS` | the number of slow clients, and the time for which they read | 100, 5 |
//! | `SOAK_LINE_MB` | the length of the line | 200 |
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::float_arithmetic,
    clippy::as_conversions,
    reason = "measures are rounded, and a helper of tests fails by panicking"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate_domain::{Key, KeyKind};
use tollgate_testkit::TestRequest;
use tollgate_testkit::random::Random;
use tollgate_testkit::store::block_on;

use crate::site::{ServiceProcess, Site, assert_audit_clean, merchant_key};

const MIB: u64 = 1024 * 1024;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn run(test: impl AsyncFn(&Site)) {
    let most = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: most.maximum, ..most }).unwrap();
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    block_on(test(&site));
}

/// A provider that streams as fast as its client reads. The name of the model sets the number of bytes,
/// in events or in one line. It answers other calls at once.
struct Firehose {
    address: SocketAddr,
    /// The bytes that it has written to all streams.
    written: Arc<AtomicU64>,
}

const EVENT: &str =
    r#"{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"CONTENT"}}]}"#;
const USAGE: &str = r#"{"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500}}"#;

impl Firehose {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let written = Arc::new(AtomicU64::new(0));
        let of_all = written.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                // A client that leaves early does so on purpose.
                tokio::spawn(Self::serve(client, of_all.clone()));
            }
        });
        Self { address, written }
    }

    async fn serve(mut client: TcpStream, written: Arc<AtomicU64>) -> std::io::Result<()> {
        let mut request = Vec::new();
        // All calls of these tests end with these bytes.
        while !request.ends_with(b"}]}") {
            if client.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let answer = async |client: &mut TcpStream, head: &str, body: &str| {
            let length = body.len();
            let all = format!(
                "HTTP/1.1 200 OK\r\n{head}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            client.write_all(all.as_bytes()).await
        };
        let Some((_, model)) = request.split_once("\"model\":\"firehose-") else {
            return answer(&mut client, "content-type: application/json\r\n", USAGE).await;
        };
        let mut words = model.split('"').next().unwrap_or_default().split('-');
        let (kind, bytes) = (words.next().unwrap(), words.next().unwrap().parse::<u64>().unwrap());
        let event = EVENT.replace("CONTENT", &"x".repeat(1024 - EVENT.len()));
        let piece = match kind {
            "events" => format!("data: {event}\n\n").repeat(64),
            _ => "x".repeat(64 * 1024),
        };
        let content_type = if kind == "json" { "application/json" } else { "text/event-stream" };
        let length = piece.len() as u64;
        let pieces = bytes.div_ceil(length);
        let (first, last) = match kind {
            "events" => (String::new(), format!("data: {USAGE}\n\ndata: [DONE]\n\n")),
            "json" => ("{\"content\":\"".to_owned(), format!("\",{}", &USAGE[1..])),
            _ => ("data: ".to_owned(), String::new()),
        };
        let total = first.len() as u64 + pieces * length + last.len() as u64;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nconnection: close\r\n\
             content-length: {total}\r\n\r\n{first}"
        );
        client.write_all(head.as_bytes()).await?;
        for _ in 0..pieces {
            client.write_all(piece.as_bytes()).await?;
            written.fetch_add(length, Ordering::Relaxed);
        }
        client.write_all(last.as_bytes()).await
    }

    fn u(&self) -> String {
        format!("http://{}/v1/chat/completions", self.address)
    }

    fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }
}

fn body(model: &str, stream: bool) -> Value {
    json!({"model": model, "stream": stream, "stream_options": {"include_usage": true},
           "messages": [{"role": "user", "content": "Hello"}]})
}

/// Runs `work`; returns its result and the highest memory of the process during it.
async fn highest_during<T>(service: &ServiceProcess, work: impl Future<Output = T>) -> (T, u64) {
    let mut highest = service.resident_bytes();
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return (done, highest.max(service.resident_bytes())),
            () = sleep(Duration::from_millis(100)) => highest = highest.max(service.resident_bytes()),
        }
    }
}

/// Reads a kilobyte a second, from a socket with a small receive buffer.
async fn read_slowly(address: SocketAddr, request: Arc<str>, stop: Arc<AtomicBool>) -> usize {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut read, mut buffer) = (0, [0; 1024]);
    while !stop.load(Ordering::Relaxed) {
        let some = stream.read(&mut buffer).await.unwrap();
        assert!(some > 0, "the answer ended");
        read += some;
        sleep(Duration::from_secs(1)).await;
    }
    read
}

/// Times calls, one after the other, until `stop` is set.
async fn probe(call: TestRequest, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let mut latencies = Vec::new();
    while !stop.load(Ordering::Relaxed) || latencies.len() < 20 {
        let started = Instant::now();
        call.send().await.expect(200);
        latencies.push(started.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    latencies.sort_unstable();
    latencies
}

#[test]
fn clients_that_read_slowly_cost_little_memory_and_slow_nobody() {
    const STREAM_BYTES: u64 = 10 * MIB;
    /// The most that a client may cost: buffers on both sides, and the pieces between them.
    const BYTES_PER_CLIENT: u64 = 150 * 1024;
    /// The allowance for the first few clients of any kind.
    const BYTES_FOR_ALL: u64 = 30 * MIB;
    let clients = setting("SOAK_CLIENTS", 100);
    let seconds = setting("SOAK_CLIENT_SECONDS", 5);
    run(async |site| {
        let firehose = Firehose::start().await;
        let key = merchant_key(site);
        let service = site.serve_with(&[
            ("TOLLGATE_PROVIDERS__HOUSE__BASE_URL", &firehose.base_url()),
            // The rest of the streams must not be part of the measurement.
            ("TOLLGATE_ON_DISCONNECT", "cancel"),
        ]);
        let token = service.create_customer(&key, "100000").await;
        let call = |model: &str, stream| {
            let path = format!("/v1/forward?u={}", firehose.u());
            service.call("POST", &path, &token).json(&body(model, stream))
        };
        let now = Arc::new(AtomicBool::new(true));
        let before = probe(call("m", false), now).await;
        let idle = service.resident_bytes();

        let stop = Arc::new(AtomicBool::new(false));
        let slow_body = body(&format!("firehose-events-{STREAM_BYTES}"), true).to_string();
        let request: Arc<str> = format!(
            "POST /v1/forward?u={} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{slow_body}",
            firehose.u(),
            slow_body.len()
        )
        .into();
        let mut slow = JoinSet::new();
        for _ in 0..clients {
            slow.spawn(read_slowly(service.address, request.clone(), stop.clone()));
        }
        let probing = async {
            let probes = tokio::spawn(probe(call("m", false), stop.clone()));
            // One client among them that reads at full speed.
            let started = Instant::now();
            let fast = call(&format!("firehose-events-{STREAM_BYTES}"), true).send().await;
            assert!(fast.complete && fast.text().ends_with("data: [DONE]\n\n"));
            let fast = started.elapsed();
            sleep(Duration::from_secs(seconds)).await;
            stop.store(true, Ordering::Relaxed);
            (probes.await.unwrap(), fast)
        };
        let ((during, fast), highest) = highest_during(&service, probing).await;
        let written = firehose.written.load(Ordering::Relaxed) - STREAM_BYTES;
        let read: usize = slow.join_all().await.into_iter().sum();

        let grown = highest.saturating_sub(idle);
        let of = |latencies: &[Duration], percent: usize| {
            latencies[(latencies.len() - 1) * percent / 100]
        };
        println!(
            "{clients} clients at 1 KB/s for {seconds} s: {} MiB over {} MiB idle, {} KiB each; {} KiB read and \
             {} KiB written for each of {} KiB; a call takes {:?} (99 %: {:?}), before {:?} (99 %: {:?}); \
             {} MiB read at full speed in {fast:?}",
            grown / MIB,
            idle / MIB,
            grown / clients / 1024,
            read / clients as usize / 1024,
            written / clients / 1024,
            STREAM_BYTES / 1024,
            of(&during, 50),
            of(&during, 99),
            of(&before, 50),
            of(&before, 99),
            STREAM_BYTES / MIB,
        );
        assert!(grown < BYTES_FOR_ALL + clients * BYTES_PER_CLIENT, "{} MiB", grown / MIB);
        // The rest waits at the provider, because the service does not read it.
        assert!(written < clients * STREAM_BYTES * 9 / 10, "no pressure back: {written}");
        assert!(of(&during, 50) < Duration::from_millis(500), "{:?}", of(&during, 50));
        assert_all_settled(&service, &key, site).await;
    });
}

/// Fails unless after a while nothing is pending or held, and the audit is clean.
async fn assert_all_settled(service: &ServiceProcess, key: &str, site: &Site) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let audit = assert_audit_clean(site);
        if audit["pending"] == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "still pending: {audit}");
        sleep(Duration::from_millis(200)).await;
    }
    let wallet = service.call("GET", "/v1/wallet", key).send().await.expect(200);
    assert_eq!(wallet["held"], "0.0000000000");
}

#[test]
fn a_line_without_end_passes_in_bounded_memory_and_says_that_it_was_not_understood() {
    /// Several times more than any body, event or line that the service keeps.
    const BOUND: u64 = 64 * MIB;
    let bytes = setting("SOAK_LINE_MB", 200) * MIB;
    run(async |site| {
        let firehose = Firehose::start().await;
        let key = merchant_key(site);
        let base_url = firehose.base_url();
        let service = site.serve_with(&[("TOLLGATE_PROVIDERS__HOUSE__BASE_URL", &base_url)]);
        let token = service.create_customer(&key, "1000000").await;
        for kind in ["line", "json"] {
            for asks in [true, false] {
                let mut body = body(&format!("firehose-{kind}-{bytes}"), true);
                if !asks {
                    body.as_object_mut().unwrap().remove("stream_options");
                }
                let path = format!("/v1/forward?u={}", firehose.u());
                let call = service.call("POST", &path, &token).json(&body);
                let idle = service.resident_bytes();
                let reading = async {
                    let (mut stream, mut read) = (call.open().await.into_stream(), 0);
                    let mut buffer = vec![0; 256 * 1024];
                    loop {
                        match stream.read(&mut buffer).await.unwrap() {
                            0 => break read,
                            some => read += some as u64,
                        }
                    }
                };
                let (read, highest) = highest_during(&service, reading).await;
                let grown = highest.saturating_sub(idle);
                println!("{kind} of {} MiB: {} MiB over {}", bytes / MIB, grown / MIB, idle / MIB);
                assert!(read >= bytes, "{read} of {bytes}");
                assert!(grown < BOUND, "{} MiB for a {kind}", grown / MIB);
                let list =
                    service.call("GET", "/v1/requests?limit=1", &key).send().await.expect(200);
                let record = &list["data"][0];
                // The usage of a body is at its end, however long the body is. A stream without its last event
                // was broken off.
                let ended =
                    if kind == "json" { ["completed", "reported"] } else { ["error", "partial"] };
                assert_eq!([&record["status"], &record["usage_source"]], ended, "{kind}");
            }
        }
        assert_all_settled(&service, &key, site).await;
    });
}

/// A caller that makes calls of every kind, with random values that never repeat.
struct RandomCaller {
    address: SocketAddr,
    key: String,
    token: String,
    spend_key: String,
    url: String,
    random: Random,
}

impl RandomCaller {
    fn word(&mut self) -> String {
        let word = self.random.below(u64::MAX >> 31);
        format!("{word:x}")
    }

    fn call(&self, method: &str, path: &str, credential: &str) -> TestRequest {
        TestRequest::new(self.address, method, path).bearer(credential)
    }

    /// Makes one random call, and fails unless its status is an expected one.
    async fn call_once(&mut self) {
        let (word, user) = (self.word(), self.word());
        let metadata = json!({"user": user, "trace": word}).to_string();
        let chat = json!({"model": format!("m-{word}"), "user": user, "stream": self.random.one_in(2),
                          "messages": [{"role": "user", "content": word}]});
        let forward = format!("/v1/forward?u={}", self.url);
        let (call, expected): (TestRequest, &[u16]) = match self.random.below(16) {
            0..=5 => {
                let call = self.call("POST", &forward, &self.token).json(&chat);
                let usage = if self.random.one_in(8) { "missing" } else { "reported" };
                let call = call.header("x-simulate-usage", usage);
                (call.header("x-service-metadata", &metadata), &[200])
            }
            6 | 7 => (self.call("POST", &forward, &self.spend_key).json(&chat), &[200]),
            8 => {
                let path = "/v1/chat/completions";
                (self.call("POST", path, &self.spend_key).json(&chat), &[200])
            }
            // A provider that has no price for this model.
            9 => {
                let path =
                    format!("/v1/forward?u=https://api.openai.com/v1/chat/completions/{word}");
                (self.call("POST", &path, &self.key).json(&chat), &[400])
            }
            10 => {
                let path = format!("/v1/forward?u=https://{word}.example/v1/chat");
                (self.call("POST", &path, &self.token).json(&chat), &[400])
            }
            // An unknown key with a valid checksum, so that the store is searched for it.
            11 => {
                let kind = if self.random.one_in(2) { KeyKind::Secret } else { KeyKind::Spend };
                let stranger = Key::generate(kind, tollgate_domain::CellNumber::default());
                (self.call("POST", &forward, stranger.reveal()).json(&chat), &[401])
            }
            12 => (self.call("GET", &format!("/{word}/{user}?{word}"), &word), &[404]),
            13 => {
                let token =
                    json!({"secret_key": self.key, "connection_id": null, "meter_slug": word});
                let token = STANDARD.encode(token.to_string());
                (self.call("POST", &forward, &token).json(&chat), &[404])
            }
            14 => {
                let filter = format!("/v1/requests?limit=3&metadata_filters[user]={user}");
                (self.call("GET", &filter, &self.key), &[200, 400])
            }
            _ => {
                let (path, fields) = match self.random.below(3) {
                    0 => ("/v1/connections", json!({"reference_id": word})),
                    1 => ("/v1/spend_keys", json!({"name": word})),
                    _ => (
                        "/v1/webhooks",
                        json!({"name": word, "url": format!("http://127.0.0.1:9/{word}"), "events": ["price.missing"]}),
                    ),
                };
                let call = self.call("POST", path, &self.key).json(&fields);
                // A merchant can have at most a hundred webhooks.
                (call.header("idempotency-key", &word), &[201, 400])
            }
        };
        let answer = timeout(Duration::from_secs(60), call.send()).await.unwrap();
        assert!(expected.contains(&answer.status), "{call:?}: {}", answer.text());
    }
}

/// The slope of the line of best fit.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let across: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    both / across
}

#[test]
fn memory_does_not_grow_with_calls_nor_with_what_callers_choose() {
    const CALLERS: usize = 8;
    /// The growth by a leak of 50 bytes a call.
    const MIB_PER_100_000_CALLS: f64 = 5.0;
    /// The noise of a short run: caches fill, and threads start.
    const GROWTH_MIB: f64 = 24.0;
    let seconds = setting("SOAK_SECONDS", 10);
    run(async |site| {
        let key = merchant_key(site);
        let service = site.serve();
        let token = service.create_customer(&key, "1000000").await;
        let made = json!({"name": "Soak"});
        let made =
            service.call("POST", "/v1/spend_keys", &key).json(&made).send().await.expect(201);
        let (stop, made_calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut callers = JoinSet::new();
        for number in 0..CALLERS {
            let mut caller = RandomCaller {
                address: service.address,
                key: key.clone(),
                token: token.clone(),
                spend_key: made["key"].as_str().unwrap().to_owned(),
                url: site.chat_url(),
                random: Random(number as u64),
            };
            let (stop, made_calls) = (stop.clone(), made_calls.clone());
            callers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    caller.call_once().await;
                    made_calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let started = Instant::now();
        let warm = Duration::from_secs(seconds) / 4;
        let mut points = Vec::new();
        let mut metrics = Vec::new();
        while started.elapsed() < Duration::from_secs(seconds) {
            sleep(Duration::from_secs(1)).await;
            assert!(callers.try_join_next().is_none(), "a caller met something else");
            if started.elapsed() >= warm {
                let calls = made_calls.load(Ordering::Relaxed);
                points
                    .push((calls as f64 / 100_000.0, service.resident_bytes() as f64 / MIB as f64));
                let shown = service.call("GET", "/metrics", "").send().await;
                metrics.push(shown.text().lines().count());
            }
        }
        stop.store(true, Ordering::Relaxed);
        callers.join_all().await;
        let [(_, first), .., (_, last)] = points[..] else { unreachable!("it was too short") };
        let (slope, calls) = (slope(&points), made_calls.load(Ordering::Relaxed));
        println!(
            "{calls} calls in {seconds} s: {first:.1} MiB at first, {last:.1} MiB at last, {slope:+.2} MiB per \
             100,000 calls; {} lines of metrics",
            metrics.last().unwrap()
        );
        assert!(calls > 100, "{calls}");
        assert!(
            slope < MIB_PER_100_000_CALLS || last - first < GROWTH_MIB,
            "{slope:+.2} MiB per 100,000 calls: {points:?}"
        );
        assert!(metrics.iter().max().unwrap() - metrics[0] < 100, "{metrics:?}");
        assert_all_settled(&service, &key, site).await;
    });
}
