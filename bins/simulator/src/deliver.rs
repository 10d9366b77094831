//! Sends answers: as JSON or events, compressed, paced or cut off, as the behaviour says.

use std::convert::Infallible;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use actix_web::http::StatusCode;
use actix_web::{HttpResponse, HttpResponseBuilder};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;

use crate::answer::{STAMP, TokenCounts};
use crate::behavior::{Behavior, Encoding};

/// A finished answer and its usage.
pub(crate) struct SimulatedResponse {
    pub(crate) content: ResponseContent,
    pub(crate) tokens: TokenCounts,
}

pub(crate) enum ResponseContent {
    Json(Vec<u8>),
    Events(EventBuffer),
}

impl SimulatedResponse {
    pub(crate) fn json(body: &impl Serialize, tokens: TokenCounts) -> Self {
        Self { content: ResponseContent::Json(to_json(body)), tokens }
    }

    pub(crate) fn events(events: EventBuffer, tokens: TokenCounts) -> Self {
        Self { content: ResponseContent::Events(events), tokens }
    }
}

/// Writes a body as JSON. Bodies of this crate have string keys, so that cannot fail in memory.
pub(crate) fn to_json(body: &impl Serialize) -> Vec<u8> {
    let mut json = Vec::with_capacity(1024);
    drop(serde_json::to_writer(&mut json, body));
    json
}

/// Server-sent events in one buffer: a long stream costs one allocation, not one for each event.
#[derive(Clone)]
pub(crate) struct EventBuffer {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl EventBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::with_capacity(4096), ends: Vec::with_capacity(32) }
    }

    /// The number of events.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds an event that has data only.
    pub(crate) fn data(&mut self, data: &impl Serialize) {
        self.bytes.extend_from_slice(b"data: ");
        drop(serde_json::to_writer(&mut self.bytes, data));
        self.end();
    }

    /// Adds an event with a name.
    pub(crate) fn named(&mut self, name: &str, data: &impl Serialize) {
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
        self.data(data);
    }

    /// Adds the end mark of a stream in OpenAI's older dialects.
    pub(crate) fn done(&mut self) {
        self.bytes.extend_from_slice(b"data: [DONE]");
        self.end();
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(b"\n\n");
        self.ends.push(self.bytes.len());
    }

    /// The data of each event.
    pub(crate) fn data_of_events(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).filter_map(|(start, end)| {
            let event = self.bytes.get(start..*end)?;
            let at = event.windows(6).position(|part| part == b"data: ")?;
            Some(event.get(at.saturating_add(6)..)?.trim_ascii_end())
        })
    }

    /// The bytes from an event on.
    pub(crate) fn bytes_from(&self, event: usize) -> &[u8] {
        let start = match event.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(self.bytes.len()),
            None => 0,
        };
        self.bytes.get(start..).unwrap_or_default()
    }

    /// Removes all but the first `len` events.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().copied().unwrap_or_default());
    }

    fn into_chunks(self, encoding: Encoding) -> io::Result<Vec<Bytes>> {
        let mut bytes = Bytes::from(self.bytes);
        let mut start = 0;
        let events = self.ends.into_iter().map(|end| {
            let event = bytes.split_to(end - start);
            start = end;
            event
        });
        match encoding {
            Encoding::Identity => Ok(events.collect()),
            Encoding::Gzip => gzip_each(events),
        }
    }
}

/// Compresses a stream, in chunks of which each can be decompressed when it arrives.
fn gzip_each(parts: impl Iterator<Item = Bytes>) -> io::Result<Vec<Bytes>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut chunks = Vec::new();
    for part in parts {
        encoder.write_all(&part)?;
        encoder.flush()?;
        chunks.push(std::mem::take(encoder.get_mut()).into());
    }
    let trailer = encoder.finish()?;
    chunks.push(trailer.into());
    Ok(chunks)
}

/// Sends an answer as the behaviour of the call says.
pub(crate) fn deliver(
    mut response: HttpResponseBuilder,
    content: ResponseContent,
    behavior: &Behavior,
) -> HttpResponse {
    if behavior.encoding == Encoding::Gzip {
        response.insert_header(("content-encoding", "gzip"));
    }
    let sent = match content {
        ResponseContent::Json(body) => send_json(&mut response, body, behavior),
        ResponseContent::Events(events) => send_events(&mut response, events, behavior),
    };
    // Compressing in memory does not fail.
    sent.unwrap_or_else(|_| HttpResponse::new(StatusCode::INTERNAL_SERVER_ERROR))
}

fn send_json(
    response: &mut HttpResponseBuilder,
    body: Vec<u8>,
    behavior: &Behavior,
) -> io::Result<HttpResponse> {
    let body = match behavior.encoding {
        Encoding::Identity => Bytes::from(body),
        Encoding::Gzip => gzip_each([Bytes::from(body)].into_iter())?.concat().into(),
    };
    response.content_type("application/json");
    if behavior.cut_after_events.is_none() {
        return Ok(response.body(body));
    }
    response.no_chunking(u64::try_from(body.len()).unwrap_or(u64::MAX));
    let half = body.slice(..body.len() / 2);
    Ok(response.streaming(paced(vec![half], Duration::ZERO, true)))
}

fn send_events(
    response: &mut HttpResponseBuilder,
    events: EventBuffer,
    behavior: &Behavior,
) -> io::Result<HttpResponse> {
    let mut chunks = events.into_chunks(behavior.encoding)?;
    let cut = behavior.cut_after_events.is_some_and(|after| {
        chunks.truncate(after);
        true
    });
    response.content_type("text/event-stream; charset=utf-8");
    response.insert_header(("cache-control", "no-cache"));
    if !cut && behavior.chunk_delay_ms == 0 && !behavior.stamps {
        let chunks = chunks.into_iter().map(Ok::<_, Infallible>);
        return Ok(response.streaming(stream::iter(chunks)));
    }
    let delay = Duration::from_millis(behavior.chunk_delay_ms);
    let chunks = paced(chunks, delay, cut);
    match behavior.stamps {
        true => Ok(response.streaming(chunks.map(|chunk| chunk.map(fill_stamp)))),
        false => Ok(response.streaming(chunks)),
    }
}

/// Replaces the placeholder in a chunk, if any, by the present time.
pub(crate) fn fill_stamp(chunk: Bytes) -> Bytes {
    let stamp = STAMP.as_bytes();
    let Some(at) = chunk.windows(stamp.len()).position(|part| part == stamp) else { return chunk };
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
    let (before, rest) = chunk.split_at(at);
    let after = rest.get(stamp.len()..).unwrap_or_default();
    let now = format!("{now:0width$}", width = stamp.len());
    [before, now.as_bytes(), after].concat().into()
}

/// The chunks with a pause between them, and then a broken connection if `cut`.
fn paced(
    chunks: Vec<Bytes>,
    delay: Duration,
    cut: bool,
) -> impl Stream<Item = io::Result<Bytes>> + 'static {
    let start = (chunks.into_iter(), true, cut);
    stream::unfold(start, move |(mut chunks, first, cut)| async move {
        match chunks.next() {
            Some(chunk) => {
                if !first && !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                Some((Ok(chunk), (chunks, false, cut)))
            }
            None if cut => {
                // When a body fails, the server drops what it has not written yet. It writes when the body
                // pauses.
                tokio::task::yield_now().await;
                let error = io::Error::from(io::ErrorKind::ConnectionAborted);
                Some((Err(error), (chunks, false, false)))
            }
            None => None,
        }
    })
}
