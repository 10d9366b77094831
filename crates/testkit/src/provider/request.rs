//! Requests as they arrived at the scripted provider.

/// A request as it arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The method.
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    /// The names, as sent, and values, in the order in which they arrived.
    pub headers: Vec<(String, String)>,
    /// The body's bytes, without the framing of chunks.
    pub body: Vec<u8>,
    /// Whether the whole body arrived.
    pub complete: bool,
}

impl RecordedRequest {
    /// The value of a header; its name is compared without case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    ///
    /// # Panics
    /// If it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of text")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a body of JSON")
    }

    /// Reads a head, without the empty line that ends it.
    pub(super) fn parse(head: &str) -> Option<Self> {
        let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
        let (method, rest_of_first) = first.split_once(' ')?;
        let (target, _version) = rest_of_first.rsplit_once(' ')?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        };
        let headers = rest.lines().map(header).collect::<Option<Vec<_>>>()?;
        let (method, target) = (method.to_owned(), target.to_owned());
        Some(Self { method, target, headers, ..Self::default() })
    }

    pub(super) fn body_framing(&self) -> RequestFraming {
        let says =
            |name, value: &str| self.header(name).is_some_and(|v| v.eq_ignore_ascii_case(value));
        if says("transfer-encoding", "chunked") {
            return RequestFraming::Chunked;
        }
        let length = self.header("content-length").and_then(|length| length.parse().ok());
        RequestFraming::Length(length.unwrap_or(0))
    }

    /// Whether the client waits for `100 Continue` before it sends its body.
    pub(super) fn expects_continue(&self) -> bool {
        self.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
    }

    pub(super) fn keeps_alive(&self) -> bool {
        !self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// The way in which the end of a request's body is found.
pub(super) enum RequestFraming {
    Length(usize),
    Chunked,
}
