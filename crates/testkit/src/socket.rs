//! A WebSocket of a test, at either end.

use std::io;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::client::{OpenResponse, TestRequest, TestResponse};

/// The key of every upgrade.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// One end of a WebSocket. Dropping it breaks the connection.
#[derive(Debug)]
pub struct TestSocket(WebSocketStream<TcpStream>);

/// The next event on a socket.
#[derive(Clone, Debug, PartialEq)]
pub enum SocketEvent {
    /// A text.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
    /// A ping.
    Ping(Vec<u8>),
    /// A pong.
    Pong(Vec<u8>),
    /// The end with its code and reason; `None` for a close frame without them.
    Closed(Option<(u16, String)>),
    /// The connection has ended without a close frame.
    Lost,
}

impl TestSocket {
    pub(crate) async fn of(stream: TcpStream, role: Role, read: Vec<u8>) -> Self {
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        Self(WebSocketStream::from_partially_read(stream, read, role, Some(config)).await)
    }

    /// Sends a JSON message.
    pub async fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    /// Sends a text. The other side may have left.
    pub async fn send_text(&mut self, text: &str) {
        let _ = self.0.send(Message::text(text)).await;
    }

    /// Sends any message. The other side may have left.
    pub async fn send_message(&mut self, message: Message) {
        let _ = self.0.send(message).await;
    }

    /// Closes it with a code and a reason.
    pub async fn close(&mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code: CloseCode::from(code), reason: reason.into() };
        let _ = self.0.close(Some(frame)).await;
    }

    /// Breaks the connection.
    pub async fn leave(&mut self) {
        let _ = self.0.get_mut().shutdown().await;
    }

    /// Sends bytes that need not be frames.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.0.get_mut().write_all(bytes).await;
    }

    /// The next event.
    pub async fn next(&mut self) -> SocketEvent {
        match self.0.next().await {
            Some(Ok(Message::Text(text))) => SocketEvent::Text(text.as_str().to_owned()),
            Some(Ok(Message::Binary(bytes))) => SocketEvent::Binary(bytes.to_vec()),
            Some(Ok(Message::Ping(bytes))) => SocketEvent::Ping(bytes.to_vec()),
            Some(Ok(Message::Pong(bytes))) => SocketEvent::Pong(bytes.to_vec()),
            Some(Ok(Message::Close(reason))) => {
                let stated = |frame: CloseFrame| (frame.code.into(), frame.reason.to_string());
                SocketEvent::Closed(reason.map(stated))
            }
            Some(Ok(Message::Frame(_))) => unreachable!("frames are not read"),
            Some(Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake))) => {
                SocketEvent::Lost
            }
            Some(Err(Error::Protocol(fault))) => panic!("not a WebSocket: {fault}"),
            Some(Err(_)) | None => SocketEvent::Lost,
        }
    }

    /// The next event, which must be a text, as it was sent.
    pub async fn text(&mut self) -> String {
        match self.next().await {
            SocketEvent::Text(text) => text,
            other => panic!("a text was expected: {other:?}"),
        }
    }

    /// The next event, which must be a JSON message.
    pub async fn message(&mut self) -> Value {
        serde_json::from_str(&self.text().await).unwrap()
    }

    /// The code and the reason of the next event, which must be the end.
    pub async fn closed(&mut self) -> (u16, String) {
        match self.next().await {
            SocketEvent::Closed(Some(reason)) => reason,
            other => panic!("an end with a reason was expected: {other:?}"),
        }
    }
}

/// The head of the answer to an upgrade whose key is `key`.
pub(crate) fn upgrade_answer(key: &str) -> String {
    let accept = derive_accept_key(key.as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: {accept}\r\n\r\n"
    )
}

impl TestRequest {
    /// Requests a WebSocket.
    ///
    /// # Errors
    /// The answer, if it is another.
    pub async fn open_socket(self) -> Result<(TestSocket, TestResponse), TestResponse> {
        self.upgrade().await.expect("the server answers")
    }

    /// Requests a WebSocket of a server that may be absent or end meanwhile, or refuse it.
    pub async fn try_open_socket(self) -> Option<TestSocket> {
        self.upgrade().await.ok()?.ok().map(|(socket, _)| socket)
    }

    async fn upgrade(self) -> io::Result<Result<(TestSocket, TestResponse), TestResponse>> {
        let request = self
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", KEY);
        let mut stream = TcpStream::connect(request.address()).await?;
        stream.set_nodelay(true)?;
        stream.write_all(request.head("Upgrade").as_bytes()).await?;
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        if !bytes.starts_with(b"HTTP/1.1 101 ") {
            let mut refused = OpenResponse::of(stream, bytes);
            while !refused.has_body() && refused.read_some().await {}
            return Ok(Err(refused.response()));
        }
        let read = bytes.split_off(end);
        let answer = OpenResponse::of(stream, bytes);
        let head = answer.response();
        assert_eq!(
            head.header("sec-websocket-accept"),
            Some(derive_accept_key(KEY.as_bytes()).as_str())
        );
        Ok(Ok((TestSocket::of(answer.into_stream(), Role::Client, read).await, head)))
    }
}
