use std::fmt::Display;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

/// One scripted answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) framing: Framing,
    /// Where the body is cut into pieces, ascending.
    pub(super) edges: Vec<usize>,
    pub(super) head_gate: Option<Gate>,
    pub(super) piece_gate: Option<Gate>,
    pub(super) ending: Ending,
}

/// How the client can tell where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    ContentLength,
    Chunked,
    UntilClose,
    /// There is no head of ours: the body is all that is written.
    Raw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// As HTTP wants it.
    Complete,
    /// The connection breaks after so many bytes of the body, which has no end mark.
    CutInBody(usize),
    /// The connection breaks after so many bytes of the head.
    CutInHead(usize),
    /// Not a byte comes, and the connection stays until the client leaves.
    Silence,
    /// The last piece of the body comes over and over until the client leaves.
    Endless,
    /// Nothing comes after the pieces of the body, and the connection stays until the client
    /// leaves.
    Stalled,
    /// The next call is awaited on the connection, whatever the client makes of this answer.
    Kept,
}

impl Reply {
    /// An answer with an empty body.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            framing: Framing::ContentLength,
            edges: Vec::new(),
            head_gate: None,
            piece_gate: None,
            ending: Ending::Complete,
        }
    }

    /// An answer with a body of some type.
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

    /// No answer at all: the connection stays open until the client leaves.
    pub fn silence() -> Self {
        Self { ending: Ending::Silence, ..Self::status(200) }
    }

    /// No answer at all: the connection is closed when the request has been read.
    pub fn hang_up() -> Self {
        Self::status(200).cut_in_head_at(0)
    }

    /// These bytes in place of an answer, be they HTTP or not; then the connection is closed.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { body: bytes.into(), framing: Framing::Raw, ..Self::status(200) }
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body that is compressed already, by the method named.
    #[must_use]
    pub fn encoded(self, encoding: &str, body: impl Into<Vec<u8>>) -> Self {
        let reply = self.header("content-encoding", encoding);
        Self { body: body.into(), edges: Vec::new(), ..reply }
    }

    /// With a `content-length`; this is the default where there are no events.
    #[must_use]
    pub fn content_length(self) -> Self {
        Self { framing: Framing::ContentLength, ..self }
    }

    /// In chunks, one for each piece of the body.
    #[must_use]
    pub fn chunked(self) -> Self {
        Self { framing: Framing::Chunked, ..self }
    }

    /// With a body that ends where the connection does.
    #[must_use]
    pub fn until_close(self) -> Self {
        Self { framing: Framing::UntilClose, ..self }
    }

    /// With a body in pieces that end at these offsets and nowhere else, each written alone. On
    /// the wire only chunks keep their edges for certain; where it must be reads, use a [`Gate`].
    #[must_use]
    pub fn pieces_at(self, offsets: impl IntoIterator<Item = usize>) -> Self {
        let mut edges: Vec<_> = offsets.into_iter().collect();
        edges.sort_unstable();
        edges.dedup();
        Self { edges, ..self }
    }

    /// In chunks that end at these offsets of the body and nowhere else.
    #[must_use]
    pub fn chunked_at(self, offsets: impl IntoIterator<Item = usize>) -> Self {
        self.pieces_at(offsets).chunked()
    }

    /// In chunks of so many bytes.
    #[must_use]
    pub fn chunked_every(self, bytes: usize) -> Self {
        let offsets = (0..self.body.len()).step_by(bytes.max(1));
        self.chunked_at(offsets)
    }

    /// Each piece of the body waits until the gate lets one pass; the head does not wait.
    #[must_use]
    pub fn gate(self, gate: &Gate) -> Self {
        Self { piece_gate: Some(gate.clone()), ..self }
    }

    /// The head waits until the gate lets one pass.
    #[must_use]
    pub fn gate_head(self, gate: &Gate) -> Self {
        Self { head_gate: Some(gate.clone()), ..self }
    }

    /// The connection breaks after the body's last byte, before its end can be known. Give body
    /// and framing first.
    #[must_use]
    pub fn cut(self) -> Self {
        let end = self.body.len();
        self.cut_at(end)
    }

    /// The connection breaks after so many bytes of the body. A `content-length` promises the
    /// whole body, and one byte more if the cut is at its end; a body that ends with the
    /// connection ends in a reset.
    #[must_use]
    pub fn cut_at(self, body_bytes: usize) -> Self {
        Self { ending: Ending::CutInBody(body_bytes), ..self }
    }

    /// The connection breaks after so many bytes of status line and headers.
    #[must_use]
    pub fn cut_in_head_at(self, head_bytes: usize) -> Self {
        Self { ending: Ending::CutInHead(head_bytes), ..self }
    }

    /// The last piece of the body comes again and again, and the answer never ends; the connection
    /// does when the client leaves.
    #[must_use]
    pub fn endless(self) -> Self {
        Self { ending: Ending::Endless, ..self }
    }

    /// Nothing follows the pieces of the body: neither their end nor that of the connection.
    #[must_use]
    pub fn stalled(self) -> Self {
        Self { ending: Ending::Stalled, ..self }
    }

    /// With the next call awaited on the same connection, though nobody can tell where this answer
    /// ends.
    #[must_use]
    pub fn kept(self) -> Self {
        Self { ending: Ending::Kept, ..self }
    }

    /// Whether the status says that no body follows, whatever the headers say.
    pub(super) const fn has_no_body(&self) -> bool {
        matches!(self.status, 100..200 | 204 | 304)
    }

    /// Status line and headers, with the empty line that ends them.
    pub(super) fn head(&self) -> String {
        use std::fmt::Write;

        if self.framing == Framing::Raw {
            return String::new();
        }
        let mut head = format!("HTTP/1.1 {} Scripted\r\n", self.status);
        for (name, value) in &self.headers {
            write!(head, "{name}: {value}\r\n").expect("text can be appended to text");
        }
        let cut_at_end = self.ending == Ending::CutInBody(self.body.len());
        let framing = match self.framing {
            _ if self.has_no_body() => String::new(),
            Framing::ContentLength => {
                format!("content-length: {}\r\n", self.body.len() + usize::from(cut_at_end))
            }
            Framing::Chunked => "transfer-encoding: chunked\r\n".to_owned(),
            Framing::UntilClose => "connection: close\r\n".to_owned(),
            Framing::Raw => String::new(),
        };
        head + &framing + "\r\n"
    }

    /// The pieces of the body, none of them empty.
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

/// What holds an answer back until the test says so.
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

    /// Lets so many pass, now or when they come.
    pub fn pass(&self, count: usize) {
        self.passes.add_permits(count);
    }

    /// Lets all pass from now on.
    pub fn open(&self) {
        self.passes.close();
    }

    /// How many have come to the gate so far, passed or not.
    pub fn arrivals(&self) -> usize {
        *self.arrivals.borrow()
    }

    /// Returns when so many have come to the gate.
    pub async fn wait_for_arrivals(&self, count: usize) {
        let mut arrivals = self.arrivals.subscribe();
        let reached = arrivals.wait_for(|&arrived| arrived >= count).await;
        reached.expect("the gate counts as long as it stands");
    }

    pub(super) async fn wait(&self) {
        self.arrivals.send_modify(|arrivals| *arrivals += 1);
        // An error says that the gate was opened for good.
        if let Ok(pass) = self.passes.acquire().await {
            pass.forget();
        }
    }
}
