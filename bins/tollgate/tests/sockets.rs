//! WebSockets of the real program: many sessions on one wallet, and sessions that end at any moment, on nodes that are
//! killed. Every response is a call, also one that the provider begins. No hold stays.
//!
//! `SOCKETS` of the environment is the number of sessions, or 40.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::{Value, json};
use tollgate_pricing::Amount;
use tollgate_testkit::random::Random;
use tollgate_testkit::store::block_on;
use tollgate_testkit::{SocketEvent, TestRequest, TestSocket, postgres};

use crate::site::{ServiceProcess, Site, assert_audit_clean, each_site, merchant_key};

/// The longest time until nothing is held any more.
const PATIENCE: Duration = Duration::from_secs(60);

fn sessions() -> usize {
    std::env::var("SOCKETS").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

/// Adds a provider of Google's format with a price, and one for sessions that are billed by their time.
fn add_providers(site: &Site) {
    let path = site.path().join("tollgate.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let more = format!(
        "
        [providers.palace]
        dialect = \"google\"
        base_url = \"{}\"
        allow_private_network = true
        [[prices]]
        provider = \"palace\"
        model = \"*\"
        input = \"1\"
        output = \"2\"
        [[prices]]
        provider = \"house\"
        model = \"voice\"
        input_second = \"0.001\"
        ",
        site.simulator.url("")
    );
    std::fs::write(&path, config + &more).unwrap();
}

/// A merchant's key, and a spend key of a customer with this much money.
async fn customer(site: &Site, service: &ServiceProcess, credit: &str, rules: &Value) -> Customer {
    let secret_key = merchant_key(site);
    let post = async |path: &str, body: &Value| {
        service.call("POST", path, &secret_key).json(body).send().await.expect(201)
    };
    let connection = post("/v1/connections", &json!({})).await;
    let wallet = connection["wallet_id"].as_str().unwrap().to_owned();
    post(&format!("/v1/wallets/{wallet}/credits"), &json!({"amount": credit})).await;
    let mut fields = json!({"name": "Voice", "wallet_id": wallet});
    fields.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    let made = post("/v1/spend_keys", &fields).await;
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    let (key, key_id) = (text("key"), text("spend_key_id"));
    Customer { secret_key, wallet, key, key_id, credit: credit.parse().unwrap() }
}

struct Customer {
    secret_key: String,
    wallet: String,
    key: String,
    key_id: String,
    credit: Amount,
}

impl Customer {
    async fn open(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        headers: &[(&str, &str)],
    ) -> Option<TestSocket> {
        let path = match protocol {
            Protocol::Responses => "/v1/responses",
            Protocol::Realtime => "/v1/realtime?model=m",
            Protocol::Live => LIVE,
            Protocol::GptLive => "/v1/live/sessions",
        };
        let request = TestRequest::new(address, "GET", path).bearer(&self.key);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let mut socket = request.try_open_socket().await?;
        let begin = match protocol {
            Protocol::Responses => return Some(socket),
            Protocol::Realtime => {
                json!({"type": "session.update", "session": {"max_output_tokens": 100}})
            }
            Protocol::Live => {
                json!({"setup": {"model": "models/m", "generationConfig": {"maxOutputTokens": 100}}})
            }
            Protocol::GptLive => {
                json!({"type": "session.start", "session": {"model": "voice", "delegation":
                    {"type": "responses", "responses": {"model": "m", "max_output_tokens": 100}}}})
            }
        };
        socket.send(&begin).await;
        Some(socket)
    }

    /// The records, once nothing is held, and what they cost the wallet. What is left on the wallet is the rest.
    async fn settled(&self, site: &Site, service: &ServiceProcess) -> (Vec<Value>, Amount) {
        let get =
            async |path: &str| service.call("GET", path, &self.secret_key).send().await.expect(200);
        let began = Instant::now();
        while assert_audit_clean(site)["pending"] != 0 {
            assert!(began.elapsed() < PATIENCE, "calls are open for ever");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let (mut records, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = get(&format!("/v1/requests?limit=100{cursor}")).await;
            records.extend(page["data"].as_array().unwrap().clone());
            if page["has_more"] == false {
                break;
            }
            cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
        }
        let paid = |record: &Value| {
            record["total_wallet_cost"].as_str().unwrap().parse::<Amount>().unwrap()
        };
        let sum =
            records.iter().fold(Amount::ZERO, |sum, record| sum.checked_add(paid(record)).unwrap());
        let wallet = get(&format!("/v1/wallets/{}", self.wallet)).await;
        assert_eq!(wallet["held"], "0.0000000000");
        let left: Amount = wallet["balance"].as_str().unwrap().parse().unwrap();
        assert_eq!(left.checked_add(sum).unwrap(), self.credit);
        (records, sum)
    }
}

/// The protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Responses,
    Realtime,
    Live,
    GptLive,
}

/// The protocols on which nothing but responses has a cost.
const OF_RESPONSES: [Protocol; 3] = [Protocol::Responses, Protocol::Realtime, Protocol::Live];
const ALL: [Protocol; 4] =
    [Protocol::Responses, Protocol::Realtime, Protocol::Live, Protocol::GptLive];
const LIVE: &str = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent";

/// The state of a response, as a message shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    /// The speaker is heard.
    Heard,
    Ended,
    Refused,
    Other,
}

impl Protocol {
    /// Makes the provider begin a response: asks for it, or speaks and is silent. The answer is what ends that early.
    async fn ask(self, socket: &mut TestSocket) -> Option<Result<Shown, SocketEvent>> {
        match self {
            Self::Responses => {
                let create = json!({"type": "response.create", "model": "m", "input": "Hello",
                    "max_output_tokens": 100});
                socket.send(&create).await;
            }
            Self::Realtime => {
                // If the silence of an earlier turn was refused, its speaker is heard still.
                socket.send(&json!({"type": "input_audio_buffer.clear"})).await;
                let append = |sound| json!({"type": "input_audio_buffer.append", "audio": sound});
                socket.send(&append(sound(1, 4_800))).await;
                loop {
                    match self.next(socket).await {
                        Ok(Shown::Other) => {}
                        Ok(Shown::Heard) => break,
                        early => return Some(early),
                    }
                }
                socket.send(&append(sound(0, 9_600))).await;
            }
            Self::GptLive => socket.send(&json!({"type": "response.create"})).await,
            Self::Live => {
                for data in [sound(1, 3_200), sound(0, 16_000)] {
                    let audio = json!({"mimeType": "audio/pcm;rate=16000", "data": data});
                    socket.send(&json!({"realtimeInput": {"audio": audio}})).await;
                }
            }
        }
        None
    }

    /// The state that a message of the provider shows.
    fn shown(self, text: &str) -> Shown {
        let end = match self {
            Self::Responses | Self::GptLive => "\"response.completed\"",
            Self::Realtime => "\"response.done\"",
            Self::Live => "\"turnComplete\"",
        };
        match () {
            () if text.contains("\"status\":\"failed\"") => Shown::Refused,
            () if text.contains("speech_started") => Shown::Heard,
            () if text.contains(end) => Shown::Ended,
            () if text.contains("\"type\":\"error\"") => Shown::Refused,
            () => Shown::Other,
        }
    }

    /// The state that the next message shows.
    async fn next(self, socket: &mut TestSocket) -> Result<Shown, SocketEvent> {
        match socket.next().await {
            SocketEvent::Text(text) => Ok(self.shown(&text)),
            SocketEvent::Binary(bytes) => Ok(self.shown(&String::from_utf8(bytes).unwrap())),
            other => Err(other),
        }
    }
}

/// Sound of this many bytes, each of which is `byte`.
fn sound(byte: u8, bytes: usize) -> String {
    base64::engine::general_purpose::STANDARD.encode(vec![byte; bytes])
}

/// The usage of each response: 0.0002 USD.
const USAGE: [(&str, &str); 3] = [
    ("x-simulate-input-tokens", "100"),
    ("x-simulate-output-tokens", "50"),
    ("x-simulate-chunk-delay-ms", "1"),
];
const RESPONSE: &str = "0.0002";

#[test]
fn sessions_at_once_spend_no_more_than_they_may() {
    for (protocol, enforcement) in OF_RESPONSES
        .into_iter()
        .flat_map(|protocol| ["bounded", "strict"].map(|enforcement| (protocol, enforcement)))
    {
        each_site(async |site| {
            add_providers(site);
            let service = site.serve();
            let count = sessions();
            // Enough for some responses of each session, of which one is held ahead.
            let limit =
                amount_times(RESPONSE, if protocol == Protocol::Responses { 3 } else { 6 } * count);
            let rules = json!({"enforcement": enforcement,
                "spend_limit": {"amount": limit.to_string(), "cycle": "total"}});
            let customer = Arc::new(customer(site, &service, "1000", &rules).await);
            let before = site.simulator.stats();
            let mut lives = Vec::new();
            for _ in 0..count {
                let (customer, address) = (Arc::clone(&customer), service.address);
                lives.push(tokio::spawn(async move {
                    let mut socket = customer.open(protocol, address, &USAGE).await.unwrap();
                    let mut ended = 0;
                    loop {
                        let mut next = protocol.ask(&mut socket).await;
                        loop {
                            let shown = match next.take() {
                                Some(early) => early,
                                None => protocol.next(&mut socket).await,
                            };
                            match shown {
                                Ok(Shown::Ended) => {
                                    ended += 1;
                                    break;
                                }
                                Ok(Shown::Refused) => break,
                                Ok(Shown::Heard | Shown::Other) => {}
                                Err(SocketEvent::Closed(Some((1008, code)))) => {
                                    return (ended, code);
                                }
                                Err(other) => unreachable!("{other:?}"),
                            }
                        }
                    }
                }));
            }
            let mut ended = 0;
            for life in lives {
                let (responses, code) = life.await.unwrap();
                assert_eq!(code, "spend_limit_reached");
                ended += responses;
            }
            let (records, spent) = customer.settled(site, &service).await;
            assert_eq!(records.len(), ended);
            assert_eq!(spent, amount_times(RESPONSE, ended));
            let most = match enforcement {
                "strict" => limit,
                // Less than one response of each session beyond it.
                _ => limit.checked_add(amount_times(RESPONSE, count)).unwrap(),
            };
            assert!(spent <= most, "{enforcement}: {spent} of {limit}");
            println!(
                "{protocol:?} {enforcement}: {ended} responses on {count} sockets for {spent} of {limit}"
            );
            // The provider has answered what is recorded.
            let after = site.simulator.stats();
            let tokens = |field: &str| -> u64 {
                let used =
                    records.iter().map(|record| record["model_usage"][field].as_u64().unwrap());
                used.sum()
            };
            assert_eq!(after.input_tokens - before.input_tokens, tokens("input_tokens"));
            assert_eq!(after.output_tokens - before.output_tokens, tokens("output_tokens"));
        });
    }
}

fn amount_times(amount: &str, times: usize) -> Amount {
    let amount: Amount = amount.parse().unwrap();
    (0..times).fold(Amount::ZERO, |sum, _| sum.checked_add(amount).unwrap())
}

/// The way in which a client ends its session.
#[derive(Clone, Copy, Debug)]
enum Way {
    Closes,
    Leaves,
    Garbage,
    Stays,
}

/// One session: some responses, of which the last may be cut.
async fn live(customer: Arc<Customer>, nodes: Arc<Mutex<SocketAddr>>, seed: u64) -> usize {
    let mut random = Random(seed);
    let protocol = ALL[random.index(ALL.len())];
    let (mut ended, turns) = (0, 1 + random.index(5));
    let provider = random.index(6);
    let mut headers = USAGE.to_vec();
    // Some providers break off, or fail within an answer.
    match provider {
        0 => headers.push(("x-simulate-cut-after-events", "3")),
        1 => headers.push(("x-simulate-error-after-events", "2")),
        2 => headers.push(("x-simulate-status", "500")),
        _ => {}
    }
    let way = [Way::Closes, Way::Leaves, Way::Garbage, Way::Stays][random.index(4)];
    let address = *nodes.lock().unwrap();
    let Some(mut socket) = customer.open(protocol, address, &headers).await else { return 0 };
    for turn in 0..turns {
        match protocol.ask(&mut socket).await {
            Some(Err(_)) => return ended,
            Some(Ok(_)) => continue,
            None => {}
        }
        let is_cut = turn + 1 == turns && !matches!(way, Way::Stays);
        let events = if is_cut { random.index(12) } else { usize::MAX };
        for _ in 0..events {
            match protocol.next(&mut socket).await {
                Ok(Shown::Ended) => {
                    ended += 1;
                    break;
                }
                Ok(Shown::Refused) => break,
                Ok(Shown::Heard | Shown::Other) => {}
                Err(_) => return ended,
            }
        }
    }
    match way {
        Way::Closes | Way::Stays => socket.close(1000, "").await,
        Way::Leaves => drop(socket),
        Way::Garbage => socket.send_raw(&[0xff; 64]).await,
    }
    ended
}

#[test]
fn sessions_of_a_node_that_is_killed_leave_no_hold() {
    each_site(async |site| {
        add_providers(site);
        let mut service = site.serve();
        let customer = Arc::new(customer(site, &service, "1000", &json!({})).await);
        let address = Arc::new(Mutex::new(service.address));
        let mut random = Random(11);
        let lives = {
            let (customer, address) = (Arc::clone(&customer), Arc::clone(&address));
            let seeds: Vec<_> = (0..3 * sessions()).map(|_| random.below(1 << 31)).collect();
            tokio::spawn(async move {
                let mut ended = 0;
                for some in seeds.chunks(20) {
                    let some = some.iter().map(|seed| {
                        tokio::spawn(live(Arc::clone(&customer), Arc::clone(&address), *seed))
                    });
                    for life in some.collect::<Vec<_>>() {
                        ended += life.await.unwrap();
                    }
                }
                ended
            })
        };
        while !lives.is_finished() {
            tokio::time::sleep(Duration::from_millis(100 + random.below(900))).await;
            service.signal("-KILL");
            service = site.serve();
            *address.lock().unwrap() = service.address;
        }
        let seen = lives.await.unwrap();
        let (records, _) = customer.settled(site, &service).await;
        let complete = records.iter().filter(|record| record["usage_source"] == "reported").count();
        println!(
            "{seen} responses were seen whole, of {} records {complete} are reported",
            records.len()
        );
        // The end of a response passes only when it is settled.
        assert!(complete >= seen, "{complete} of {seen}");
        for record in &records {
            assert!(record["socket_id"].as_str().unwrap().starts_with("skt_"));
        }
    });
}

#[test]
fn a_key_that_is_paused_on_one_node_closes_its_sockets_on_another() {
    let Some(database) = postgres::database() else { return };
    let url = database.url().to_owned();
    let site = Site::new(&url, Some(database));
    block_on(async {
        let (here, there) = (site.serve(), site.serve());
        let customer = customer(&site, &here, "1", &json!({})).await;
        let open = customer.open(Protocol::Responses, here.address, &USAGE);
        let mut socket = open.await.unwrap();
        let path = format!("/v1/spend_keys/{}", customer.key_id);
        let pause = there.call("PUT", &path, &customer.secret_key);
        let began = Instant::now();
        pause.json(&json!({"status": "paused"})).send().await.expect(200);
        assert_eq!(socket.closed().await, (1008, "spend_key_paused".to_owned()));
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(2), "{waited:?}");
    });
}
