//! HTTP/1.1 at the lowest cost: requests are bytes made in advance, and of an answer only its status and
//! its end are parsed.

use std::net::SocketAddr;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use memchr::memmem;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const READ_BYTES: usize = 16 * 1024;

/// The bytes of a request.
pub(crate) fn request(
    method: &str,
    target: &str,
    host: &str,
    credential: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Vec<u8> {
    let mut text = format!(
        "{method} {target} HTTP/1.1\r\nhost: {host}\r\nuser-agent: tollgate-bench\r\n\
         accept: */*\r\nauthorization: Bearer {credential}\r\n"
    );
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        let length = body.len();
        text.push_str(&format!("content-type: application/json\r\ncontent-length: {length}\r\n"));
    }
    format!("{text}\r\n{body}").into_bytes()
}

/// Makes one call with a JSON answer, on its own connection.
pub(crate) async fn request_json(address: SocketAddr, request: &[u8]) -> anyhow::Result<Value> {
    let mut connection = HttpConnection::open(address).await?;
    let status = connection.call(request, false).await?;
    let body = connection.received();
    if !(200..300).contains(&status) {
        bail!("answered {status}: {}", String::from_utf8_lossy(body));
    }
    let json = memmem::find(body, b"\r\n\r\n").and_then(|end| body.get(end..));
    Ok(serde_json::from_slice(json.unwrap_or_default())?)
}

/// A connection that is kept alive.
pub(crate) struct HttpConnection {
    stream: TcpStream,
    received: Vec<u8>,
    /// The position up to which `received` was searched for times of sending.
    searched: usize,
    events_ns: Vec<u64>,
}

/// The bytes before a word of a stream, and the length of a word that is the time of its sending.
const WORD: &[u8] = br#""content":""#;
const STAMP_DIGITS: usize = 19;

impl HttpConnection {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let received = Vec::with_capacity(READ_BYTES);
        Ok(Self { stream, received, searched: 0, events_ns: Vec::new() })
    }

    /// Sends a request, reads the answer to its end, and returns its status. Of a stream it notes the latency
    /// of each event that has its time of sending.
    pub(crate) async fn call(&mut self, request: &[u8], streams: bool) -> anyhow::Result<u16> {
        self.received.clear();
        self.searched = 0;
        self.stream.write_all(request).await?;
        let head = loop {
            self.read(streams).await?;
            if let Some(head) = ResponseHead::parse(&self.received)? {
                break head;
            }
        };
        let mut body = BodyProgress { at: head.end, length: head.length };
        while !body.has_ended(&self.received)? {
            self.read(streams).await?;
        }
        Ok(head.status)
    }

    /// The last answer: its head, and its body with its framing.
    pub(crate) fn received(&self) -> &[u8] {
        &self.received
    }

    /// The latency of each event.
    pub(crate) fn into_events_ns(self) -> Vec<u64> {
        self.events_ns
    }

    async fn read(&mut self, streams: bool) -> anyhow::Result<()> {
        self.received.reserve(READ_BYTES);
        let count = self.stream.read_buf(&mut self.received).await?;
        ensure!(count > 0, "closed within an answer");
        if streams {
            let now = SystemTime::UNIX_EPOCH.elapsed()?.as_nanos().try_into()?;
            let new = self.received.get(self.searched..).unwrap_or_default();
            self.searched += note_events(new, now, &mut self.events_ns);
        }
        Ok(())
    }
}

/// Notes the latency of each event that has its time of sending. Returns the number of bytes that need
/// not be searched again.
fn note_events(bytes: &[u8], now: u64, events_ns: &mut Vec<u64>) -> usize {
    let mut searched = bytes.len().saturating_sub(WORD.len() + STAMP_DIGITS - 1);
    for at in memmem::find_iter(bytes, WORD) {
        let start = at + WORD.len();
        let Some(digits) = bytes.get(start..start + STAMP_DIGITS) else { break };
        if let Some(sent) = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()) {
            events_ns.push(now.saturating_sub(sent));
            searched = searched.max(start + STAMP_DIGITS);
        }
    }
    searched
}

struct ResponseHead {
    status: u16,
    end: usize,
    /// The length of a body that is not chunked.
    length: Option<usize>,
}

impl ResponseHead {
    fn parse(bytes: &[u8]) -> anyhow::Result<Option<Self>> {
        let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
        let head = std::str::from_utf8(bytes.get(..end).unwrap_or_default())?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok()).context("no status line")?;
        let (mut length, mut chunked) = (None, false);
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { bail!("no header: {line}") };
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = value.trim().eq_ignore_ascii_case("chunked");
            }
        }
        ensure!(length.is_some() != chunked, "an answer without an end: {head}");
        Ok(Some(Self { status, end: end + 4, length }))
    }
}

/// The progress of reading a body.
struct BodyProgress {
    /// The position where its content or its next chunk starts.
    at: usize,
    length: Option<usize>,
}

impl BodyProgress {
    fn has_ended(&mut self, bytes: &[u8]) -> anyhow::Result<bool> {
        if let Some(length) = self.length {
            ensure!(bytes.len() <= self.at + length, "more than an answer");
            return Ok(bytes.len() == self.at + length);
        }
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let Some(line) = memmem::find(rest, b"\r\n") else { return Ok(false) };
            let size = std::str::from_utf8(rest.get(..line).unwrap_or_default())?;
            let size = usize::from_str_radix(size, 16)?;
            let end = self.at + line + 2 + size + 2;
            if bytes.len() < end {
                return Ok(false);
            }
            self.at = end;
            if size == 0 {
                ensure!(bytes.len() == end, "more than an answer");
                return Ok(true);
            }
        }
    }
}

/// A field that is a string or a number, as text.
pub(crate) fn field_text(json: &Value, name: &str) -> anyhow::Result<String> {
    match json.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(count)) => Ok(count.to_string()),
        _ => bail!("there is no {name} in {json}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After each byte of an answer, whether it has ended.
    fn ends(answer: &[u8]) -> Vec<bool> {
        let mut body: Option<BodyProgress> = None;
        let prefixes = (0..=answer.len()).map(|end| &answer[..end]);
        prefixes
            .map(|bytes| {
                if body.is_none() {
                    body = ResponseHead::parse(bytes)
                        .unwrap()
                        .map(|head| BodyProgress { at: head.end, length: head.length });
                }
                body.as_mut().is_some_and(|body| body.has_ended(bytes).unwrap())
            })
            .collect()
    }

    #[test]
    fn an_answer_ends_with_its_last_byte() {
        let answers: [&[u8]; 3] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            b"HTTP/1.1 402 No\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\nA\r\n0123456789\r\n0\r\n\r\n",
        ];
        for answer in answers {
            let mut expected = vec![false; answer.len()];
            expected.push(true);
            assert_eq!(ends(answer), expected);
        }
    }

    #[test]
    fn each_event_that_says_when_it_was_sent_is_noted_once_however_it_comes() {
        let stream = br#"{"content":""} {"content":"1000000000000000005 "} {"content":"hi"}
            {"content":"1000000000000000003 "} {"finish_reason":"stop"}"#;
        for step in 1..stream.len() {
            let (mut events_ns, mut searched) = (Vec::new(), 0);
            for end in (0..stream.len()).step_by(step).chain([stream.len()]) {
                let new = &stream[searched..end.max(searched)];
                searched += note_events(new, 1_000_000_000_000_000_009, &mut events_ns);
            }
            assert_eq!(events_ns, [4, 6], "{step}");
        }
    }

    #[test]
    fn an_answer_without_an_end_is_an_error() {
        assert!(ResponseHead::parse(b"HTTP/1.1 200 OK\r\nserver: x\r\n\r\n").is_err());
    }
}
