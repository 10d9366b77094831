//! Scripted answers, and the gates that hold them back.

use std::fmt::Display;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

/// One scripted answer.
#[derive(Clone, Debug)]
pub struct ScriptedResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) framing: ResponseFraming,
    /// The offsets at which the body is cut into pieces, ascending.
    pub(super) edges: Vec<usize>,
    pub(super) head_gate: Option<Gate>,
    pub(super) piece_gate: Option<Gate>,
    pub(super) ending: ScriptedEnding,
}

/// The way in which the client finds the end of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseFraming {
    ContentLength,
    Chunked,
    UntilClose,
    /// No head is written, only the body.
    Raw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptedEnding {
    /// The answer ends as HTTP requires.
    Complete,
    /// The connection breaks after this number of bytes of the body, without an end mark.
    CutInBody(usize),
    /// The connection breaks after this number of bytes of the head.
    CutInHead(usize),
    /// No byte is sent, and the connection stays until the client leaves.
    Silence,
    /// The last piece of the body repeats until the client leaves.
    Endless,
    /// Nothing is sent after the pieces of the body, and the connection stays until the client leaves.
    Stalled,
    /// The next call is read on the same connection, even if this answer has no visible end.
    Kept,
}

impl ScriptedResponse {
    /// An answer with an empty body.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            framing: ResponseFraming::ContentLength,
            edges: Vec::new(),
            head_gate: None,
            piece_gate: None,
            ending: ScriptedEnding::Complete,
        }
    }

    /// An answer with a body of this content type.
    pub fn bytes(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let reply = Self::status(status).header("content-type", content_type);
        Self { body: body.into(), ..reply }
    }

    /// A JSON answer, from text or from a [`serde_json::Value`].
    pub fn json(status: u16, body: impl Display) -> Self {
        Self::bytes(status, "application/json", body.to_string())
    }

    /// A stream of events with these data, one chunk each.
    pub fn events(data: impl IntoIterator<Item = impl Display>) -> Self {
        Self::event_texts(data.into_iter().map(|data| format!("data: {data}\n\n")))
    }

    /// A stream of events with names and data, one chunk each.
    pub fn named_events<N: Display, D: Display>(events: impl IntoIterator<Item = (N, D)>) -> Self {
        let text = |(name, data)| format!("event: {name}\ndata: {data}\n\n");
        Self::event_texts(events.into_iter().map(text))
    }

    fn event_texts(texts: impl Iterator<Item = String>) -> Self {
        let mut reply = Self::bytes(200, "text/event-stream", "").chunked();
        for text in texts {
            reply.body.extend_from_slice(text.as_bytes());
            reply.edges.push(reply.body.len());
        }
        reply
    }

    /// No answer: the connection stays open until the client leaves.
    pub fn silence() -> Self {
        Self { ending: ScriptedEnding::Silence, ..Self::status(200) }
    }

    /// No answer: the connection is closed after the request is read.
    pub fn hang_up() -> Self {
        Self::status(200).cut_in_head_at(0)
    }

    /// These bytes in place of an HTTP answer; then the connection is closed.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { body: bytes.into(), framing: ResponseFraming::Raw, ..Self::status(200) }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a body that is already compressed by `encoding`.
    #[must_use]
    pub fn encoded(self, encoding: &str, body: impl Into<Vec<u8>>) -> Self {
        let reply = self.header("content-encoding", encoding);
        Self { body: body.into(), edges: Vec::new(), ..reply }
    }

    /// Frames the body by `content-length`, the default for answers without events.
    #[must_use]
    pub fn content_length(self) -> Self {
        Self { framing: ResponseFraming::ContentLength, ..self }
    }

    /// Frames the body in chunks, one for each piece.
    #[must_use]
    pub fn chunked(self) -> Self {
        Self { framing: ResponseFraming::Chunked, ..self }
    }

    /// Frames the body by the end of the connection.
    #[must_use]
    pub fn until_close(self) -> Self {
        Self { framing: ResponseFraming::UntilClose, ..self }
    }

    /// Cuts the body into pieces that end at these offsets, each written alone. On the wire only chunks
    /// keep their edges for certain; a test that needs separate reads uses a [`Gate`].
    #[must_use]
    pub fn pieces_at(self, offsets: impl IntoIterator<Item = usize>) -> Self {
        let mut edges: Vec<_> = offsets.into_iter().collect();
        edges.sort_unstable();
        edges.dedup();
        Self { edges, ..self }
    }

    /// Frames the body in chunks that end at these offsets.
    #[must_use]
    pub fn chunked_at(self, offsets: impl IntoIterator<Item = usize>) -> Self {
        self.pieces_at(offsets).chunked()
    }

    /// Frames the body in chunks of `bytes` bytes.
    #[must_use]
    pub fn chunked_every(self, bytes: usize) -> Self {
        let offsets = (0..self.body.len()).step_by(bytes.max(1));
        self.chunked_at(offsets)
    }

    /// Holds each piece of the body until the gate lets one pass. The head does not wait.
    #[must_use]
    pub fn gate(self, gate: &Gate) -> Self {
        Self { piece_gate: Some(gate.clone()), ..self }
    }

    /// Holds the head until the gate lets one pass.
    #[must_use]
    pub fn gate_head(self, gate: &Gate) -> Self {
        Self { head_gate: Some(gate.clone()), ..self }
    }

    /// Breaks the connection after the last byte of the body, without an end mark. Set body and framing
    /// first.
    #[must_use]
    pub fn cut(self) -> Self {
        let end = self.body.len();
        self.cut_at(end)
    }

    /// Breaks the connection after `body_bytes` bytes of the body. A `content-length` announces the whole
    /// body, and one byte more if the cut is at its end. A body that ends with the connection ends in a
    /// reset.
    #[must_use]
    pub fn cut_at(self, body_bytes: usize) -> Self {
        Self { ending: ScriptedEnding::CutInBody(body_bytes), ..self }
    }

    /// Breaks the connection after `head_bytes` bytes of status line and headers.
    #[must_use]
    pub fn cut_in_head_at(self, head_bytes: usize) -> Self {
        Self { ending: ScriptedEnding::CutInHead(head_bytes), ..self }
    }

    /// Repeats the last piece of the body until the client leaves.
    #[must_use]
    pub fn endless(self) -> Self {
        Self { ending: ScriptedEnding::Endless, ..self }
    }

    /// Sends nothing after the pieces of the body, and keeps the connection open.
    #[must_use]
    pub fn stalled(self) -> Self {
        Self { ending: ScriptedEnding::Stalled, ..self }
    }

    /// Reads the next call on the same connection, even if this answer has no visible end.
    #[must_use]
    pub fn kept(self) -> Self {
        Self { ending: ScriptedEnding::Kept, ..self }
    }

    /// Whether the status excludes a body, whatever the headers say.
    pub(super) const fn has_no_body(&self) -> bool {
        matches!(self.status, 100..200 | 204 | 304)
    }

    /// Status line and headers, with the empty line that ends them.
    pub(super) fn head(&self) -> String {
        use std::fmt::Write;

        if self.framing == ResponseFraming::Raw {
            return String::new();
        }
        let mut head = format!("HTTP/1.1 {} Scripted\r\n", self.status);
        for (name, value) in &self.headers {
            write!(head, "{name}: {value}\r\n").expect("text can be appended to text");
        }
        let cut_at_end = self.ending == ScriptedEnding::CutInBody(self.body.len());
        let framing = match self.framing {
            _ if self.has_no_body() => String::new(),
            ResponseFraming::ContentLength => {
                format!("content-length: {}\r\n", self.body.len() + usize::from(cut_at_end))
            }
            ResponseFraming::Chunked => "transfer-encoding: chunked\r\n".to_owned(),
            ResponseFraming::UntilClose => "connection: close\r\n".to_owned(),
            ResponseFraming::Raw => String::new(),
        };
        head + &framing + "\r\n"
    }

    /// The pieces of the body that are not empty.
    pub(super) fn pieces(&self) -> Vec<&[u8]> {
        let mut pieces = Vec::new();
        let mut start = 0;
        for &edge in self.edges.iter().chain([&self.body.len()]) {
            if let Some(piece) = self.body.get(start..edge).filter(|piece| !piece.is_empty()) {
                pieces.push(piece);
                start = edge;
            }
        }
        pieces
    }
}

/// A gate that holds an answer back until the test releases it.
#[derive(Clone, Debug)]
pub struct Gate {
    passes: Arc<Semaphore>,
    arrivals: Arc<watch::Sender<usize>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self { passes: Arc::new(Semaphore::new(0)), arrivals: Arc::new(watch::Sender::new(0)) }
    }

    /// Lets `count` arrivals pass, present or future.
    pub fn pass(&self, count: usize) {
        self.passes.add_permits(count);
    }

    /// Lets all pass from now on.
    pub fn open(&self) {
        self.passes.close();
    }

    /// The number of arrivals at the gate so far, passed or not.
    pub fn arrivals(&self) -> usize {
        *self.arrivals.borrow()
    }

    /// Returns when there were `count` arrivals at the gate.
    pub async fn wait_for_arrivals(&self, count: usize) {
        let mut arrivals = self.arrivals.subscribe();
        let reached = arrivals.wait_for(|&arrived| arrived >= count).await;
        reached.expect("the gate is still there");
    }

    pub(super) async fn wait(&self) {
        self.arrivals.send_modify(|arrivals| *arrivals += 1);
        // An error means that the gate was opened for all.
        if let Ok(pass) = self.passes.acquire().await {
            pass.forget();
        }
    }
}
