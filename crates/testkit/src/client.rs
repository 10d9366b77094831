//! A plain HTTP/1.1 client for tests: it returns the bytes of the wire, and can hang up.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request, sent on a connection of its own.
#[derive(Clone, Debug)]
pub struct TestRequest {
    address: SocketAddr,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// An answer as it arrived.
#[derive(Clone, Debug)]
pub struct TestResponse {
    /// The HTTP status.
    pub status: u16,
    /// The names, in lower case, and values, in the order in which they arrived.
    pub headers: Vec<(String, String)>,
    /// The body, without chunk framing.
    pub body: Vec<u8>,
    /// The trailers.
    pub trailers: Vec<(String, String)>,
    /// Whether the whole body arrived.
    pub complete: bool,
}

impl TestRequest {
    /// A request to a server; `target` is the path and query.
    pub fn new(address: SocketAddr, method: &str, target: &str) -> Self {
        let (method, target) = (method.to_owned(), target.to_owned());
        Self { address, method, target, headers: Vec::new(), body: Vec::new() }
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds the header `Authorization: Bearer`.
    pub fn bearer(self, credential: &str) -> Self {
        self.header("authorization", &format!("Bearer {credential}"))
    }

    /// Sets a JSON body.
    pub fn json(self, body: &Value) -> Self {
        self.bytes("application/json", body.to_string().as_bytes())
    }

    /// Sets a body and its content type.
    pub fn bytes(mut self, content_type: &str, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self.headers.retain(|(name, _)| name != "content-type");
        self.header("content-type", content_type)
    }

    /// Sends the request and reads the whole answer.
    pub async fn send(&self) -> TestResponse {
        let mut open = self.open().await;
        while open.read_some().await {}
        open.response()
    }

    /// Sends the request to a server that may be absent or end meanwhile.
    ///
    /// Returns the answer as far as it arrived; `None` without a whole head.
    pub async fn try_send(&self) -> Option<TestResponse> {
        let mut open = self.open_on(TcpStream::connect(self.address).await.ok()?).await;
        while open.read_some().await {}
        open.head_end().map(|_| open.response())
    }

    /// Sends the request and leaves the answer unread.
    pub async fn open(&self) -> OpenResponse {
        self.open_on(TcpStream::connect(self.address).await.unwrap()).await
    }

    async fn open_on(&self, mut stream: TcpStream) -> OpenResponse {
        stream.set_nodelay(true).unwrap();
        let length = format!("content-length: {}\r\n\r\n", self.body.len());
        let head = self.head("close");
        let mut bytes = [head.strip_suffix("\r\n").unwrap(), &length].concat().into_bytes();
        bytes.extend_from_slice(&self.body);
        // A server may answer and close before it has read a body that is too large.
        let _ = stream.write_all(&bytes).await;
        OpenResponse { stream, bytes: Vec::new() }
    }
}

impl TestRequest {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The head of the request, without a length.
    pub(crate) fn head(&self, connection: &str) -> String {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: test\r\nconnection: {connection}\r\n",
            self.method, self.target
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head
    }
}

/// An answer that is being read. Dropping it hangs up.
pub struct OpenResponse {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl OpenResponse {
    pub(crate) fn of(stream: TcpStream, bytes: Vec<u8>) -> Self {
        Self { stream, bytes }
    }

    /// Whether all of a body with a stated length has arrived.
    pub(crate) fn has_body(&self) -> bool {
        self.head_end().is_some() && self.response().complete
    }

    /// Reads the bytes available; false when no more will arrive.
    pub async fn read_some(&mut self) -> bool {
        self.stream.read_buf(&mut self.bytes).await.is_ok_and(|count| count > 0)
    }

    /// Reads until `text` has arrived.
    pub async fn read_until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.bytes).contains(text) {
            assert!(
                self.read_some().await,
                "{text} never came: {}",
                String::from_utf8_lossy(&self.bytes)
            );
        }
    }

    /// The connection, for tests that do not keep the answer.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// All bytes so far, as they arrived.
    pub fn raw(&self) -> &[u8] {
        &self.bytes
    }

    /// The offset at which the head ends, if it has arrived.
    fn head_end(&self) -> Option<usize> {
        self.bytes.windows(4).position(|window| window == b"\r\n\r\n")
    }

    /// The bytes so far, parsed as HTTP.
    pub fn response(&self) -> TestResponse {
        let end = self
            .head_end()
            .unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&self.bytes)));
        let head = String::from_utf8(self.bytes[..end].to_vec()).unwrap();
        let (status_line, fields) = head.split_once("\r\n").unwrap_or((&head, ""));
        let status = status_line.split(' ').nth(1).unwrap().parse().unwrap();
        let headers = fields_of(fields);
        let rest = &self.bytes[end + 4..];
        let of = |name: &str| {
            headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        };
        let mut trailers = Vec::new();
        let (body, complete) = match (of("content-length"), of("transfer-encoding")) {
            (Some(length), _) => (rest.to_vec(), rest.len() == length.parse::<usize>().unwrap()),
            (None, Some(_)) => unchunk(rest, &mut trailers),
            (None, None) => (rest.to_vec(), true),
        };
        TestResponse { status, headers, body, trailers, complete }
    }
}

/// The names, in lower case, and values of header lines.
fn fields_of(lines: &str) -> Vec<(String, String)> {
    let fields = lines.lines().map(|line| line.split_once(':').unwrap());
    fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect()
}

/// The body in chunks, and whether it is whole.
fn unchunk(mut rest: &[u8], trailers: &mut Vec<(String, String)>) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else {
            return (body, false);
        };
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            let rest = std::str::from_utf8(&rest[end + 2..]).unwrap();
            let Some(lines) = rest.strip_suffix("\r\n") else { return (body, false) };
            *trailers = fields_of(lines);
            return (body, lines.is_empty() || lines.ends_with("\r\n"));
        }
        let Some(chunk) = rest.get(end + 2..end + 2 + length) else {
            body.extend_from_slice(rest.get(end + 2..).unwrap_or_default());
            return (body, false);
        };
        body.extend_from_slice(chunk);
        let Some(after) = rest.get(end + 4 + length..) else { return (body, false) };
        rest = after;
    }
}

impl TestResponse {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("not JSON: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The body as JSON, of an answer that must have this status.
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The code of an error in the envelope, which must be complete.
    pub fn error(&self) -> String {
        let json = self.json();
        let error = &json["error"];
        assert_eq!(error["status"], self.status, "{json}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{json}");
        assert!(error["issues"].is_array(), "{json}");
        error["code"].as_str().unwrap().to_owned()
    }

    /// The paths of the issues of an error, joined by dots.
    pub fn issue_paths(&self) -> Vec<String> {
        let json = self.json();
        let issues = json["error"]["issues"].as_array().unwrap();
        let path = |issue: &Value| {
            assert!(issue["message"].as_str().is_some_and(|message| !message.is_empty()));
            let parts: Vec<_> = issue["path"]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p.as_str().unwrap().to_owned())
                .collect();
            parts.join(".")
        };
        issues.iter().map(path).collect()
    }
}
