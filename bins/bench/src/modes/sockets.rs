//! Voice sessions on WebSockets beside calls, compared to sessions directly at the provider, and the memory of
//! sockets that are idle.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::call::ChatCall;
use crate::load::{StopCondition, percentile_us};
use crate::metrics::MetricsPage;
use crate::options::BenchOptions;
use crate::process::memory_kib;
use crate::report;
use crate::testbed::{LoadTarget, Testbed};

const SESSIONS: usize = 500;
const IDLE: usize = 5_000;
/// Callers whose calls take 50 ms at the provider: at most 500 calls a second.
const CALLERS: usize = 26;
/// The time in which sessions speak, and the time for their last responses.
const SPEAKING: Duration = Duration::from_secs(10);
const ENDING: Duration = Duration::from_secs(3);
/// The time between two pieces of sound of a session. Five are speech, and five are silence.
const APART: Duration = Duration::from_millis(200);
/// A piece of sound: samples of 16 bits at 24 kHz.
const PIECE_BYTES: usize = 9_600;
const PATH: &str = "/v1/realtime?model=gpt-4o-realtime-preview";
/// The type of an event that ends a response, and a part of the answer to a question of this client.
const RESPONSE_ENDS: &str = "\"response.done\"";
const ANSWER: &str = "item_retrieve_invalid_item_id";

type Socket = WebSocketStream<TcpStream>;

/// The responses of a session, and the times of its answers.
#[derive(Default)]
struct SessionResult {
    responses: u64,
    /// The times from a message to its answer.
    answers_ns: Vec<u64>,
}

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    idle(stand).await?;
    let host = stand.service(0)?.database.host;
    report::print_title(
        &format!("{SESSIONS} voice sessions beside calls: from a message to its answer"),
        host,
        options,
    );
    println!(
        "| target | calls/s | responses/s | p50 | p99 | p99 to direct | within the node, p99 |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut direct_us = None;
    for target in [LoadTarget::Direct, LoadTarget::Tollgate(0)] {
        let delays = Delays::of(stand, target).await?;
        let (calls_per_s, seen) = speak(stand, target).await?;
        let p99_us = percentile_us(&seen.answers_ns, 0.99);
        let ratio = direct_us.map(|direct: f64| format!("{:.2}", p99_us / direct));
        let within = match delays {
            Some(before) => before.p99(&Delays::of(stand, target).await?.context("no delays")?),
            None => String::new(),
        };
        println!(
            "| {target} | {calls_per_s:.0} | {:.0} | {:.0} | {p99_us:.0} | {} | {within} |",
            seen.responses as f64 / SPEAKING.as_secs_f64(),
            percentile_us(&seen.answers_ns, 0.5),
            ratio.unwrap_or_default(),
        );
        direct_us.get_or_insert(p99_us);
    }
    println!();
    Ok(())
}

/// Opens sockets that stay idle, and prints the memory of the node before and with them.
async fn idle(stand: &Testbed) -> anyhow::Result<()> {
    let target = LoadTarget::Tollgate(0);
    let node = stand.processes(target).first().copied().context("no node")?;
    let (address, credential) = stand.address(target)?;
    let before = memory_kib(node)?;
    let mut sockets = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        sockets.push(open(address, &credential).await?);
    }
    let with = memory_kib(node)?;
    let megabytes = |kib: u64| kib as f64 * 1.024e-3;
    println!(
        "Memory in MB: {:.1} before and {:.1} with {IDLE} idle sockets.",
        megabytes(before),
        megabytes(with)
    );
    Ok(())
}

/// Speaks in all sessions while calls are made. Returns the calls in a second, and what the sessions have seen.
async fn speak(stand: &mut Testbed, target: LoadTarget) -> anyhow::Result<(f64, SessionResult)> {
    let (address, credential) = stand.address(target)?;
    let mut sockets = Vec::with_capacity(SESSIONS);
    for _ in 0..SESSIONS {
        sockets.push(open(address, &credential).await?);
    }
    let behavior = vec![("x-simulate-first-byte-delay-ms", "50".to_owned())];
    let load = stand.load(target, &ChatCall { behavior, ..ChatCall::default() }, CALLERS)?;
    let mut sessions = JoinSet::new();
    for (number, socket) in sockets.into_iter().enumerate() {
        // Their pieces are spread evenly over the time between two.
        let begin = APART.mul_f64(number as f64 / SESSIONS as f64);
        sessions.spawn(session(socket, begin));
    }
    let time = SPEAKING + ENDING;
    let driven = stand.drive(target, &load, StopCondition::After(time)).await?;
    let mut all = SessionResult::default();
    while let Some(seen) = sessions.join_next().await {
        let seen = seen??;
        all.responses += seen.responses;
        all.answers_ns.extend(seen.answers_ns);
    }
    all.answers_ns.sort_unstable();
    stand.count_answered(target, all.responses)?;
    Ok((driven.answered as f64 / driven.elapsed.as_secs_f64(), all))
}

/// One session: pieces of speech and of silence, and after each a question whose answer is timed.
async fn session(mut socket: Socket, begin: Duration) -> anyhow::Result<SessionResult> {
    let message = |byte: u8| {
        let audio = STANDARD.encode(vec![byte; PIECE_BYTES]);
        json!({"type": "input_audio_buffer.append", "audio": audio}).to_string()
    };
    let (speech, silence) = (message(1), message(0));
    let question = json!({"type": "conversation.item.retrieve", "item_id": "item_0"}).to_string();
    let mut seen = SessionResult::default();
    let start = tokio::time::Instant::now() + begin;
    let (mut next, mut pieces, mut asked_at) = (start, 0_u32, None);
    let end = start + SPEAKING + ENDING - Duration::from_secs(1);
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {
                if next >= end {
                    return Ok(seen);
                }
                next += APART;
                if next > start + SPEAKING {
                    // Only the end of the last response is waited for.
                    next = end;
                    continue;
                }
                let piece = if pieces % 10 < 5 { &speech } else { &silence };
                pieces += 1;
                socket.send(Message::text(piece.clone())).await?;
                if asked_at.is_none() {
                    asked_at = Some(Instant::now());
                    socket.send(Message::text(question.clone())).await?;
                }
            }
            message = socket.next() => match message.context("a session has ended")?? {
                Message::Text(text) if text.contains(ANSWER) => {
                    let asked_at = asked_at.take().context("an answer without a question")?;
                    seen.answers_ns.push(asked_at.elapsed().as_nanos().try_into()?);
                }
                Message::Text(text) if text.contains(RESPONSE_ENDS) => seen.responses += 1,
                Message::Text(text) if text.contains("\"error\"") => bail!("{text}"),
                Message::Close(reason) => bail!("closed: {reason:?}"),
                _ => {}
            }
        }
    }
}

async fn open(address: SocketAddr, credential: &str) -> anyhow::Result<Socket> {
    let mut request = format!("ws://{address}{PATH}").into_client_request()?;
    let headers = request.headers_mut();
    headers.insert("authorization", format!("Bearer {credential}").parse()?);
    // A response of a few words.
    headers.insert("x-simulate-words", "4".parse()?);
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut socket = client_async(request, stream).await?.0;
    // A strict key needs a bound.
    let update = json!({"type": "session.update", "session": {"max_output_tokens": 100}});
    socket.send(Message::text(update.to_string())).await?;
    Ok(socket)
}

/// The delays of messages within a node, as its metrics count them: the messages up to each bound.
struct Delays(Vec<(f64, u64)>);

impl Delays {
    async fn of(stand: &Testbed, target: LoadTarget) -> anyhow::Result<Option<Self>> {
        if !target.is_tollgate() {
            return Ok(None);
        }
        let (address, credential) = stand.address(target)?;
        let page = MetricsPage::of(address, &credential).await?;
        Ok(Some(Self(page.buckets("tollgate_socket_message_delay_seconds"))))
    }

    /// The bound of the bucket with the 99th percentile of the messages since then.
    fn p99(&self, later: &Self) -> String {
        let since = self
            .0
            .iter()
            .zip(&later.0)
            .map(|((bound, before), (_, after))| (bound, after - before));
        let since: Vec<_> = since.collect();
        let all = since.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let found = since.iter().find(|(_, count)| *count as f64 >= all as f64 * 0.99);
        found.map_or_else(String::new, |(bound, _)| format!("≤ {:.0}", **bound * 1e6))
    }
}
