//! WebSockets (RFC 6455): their messages on both sides, and those to providers.
//!
//! No extension is negotiated, so a frame with a reserved bit is an error. The fragments of a message are joined, and
//! it is sent on as one frame.

use std::time::Duration;

pub use actix_http::ws::{CloseCode, CloseReason};
use actix_http::ws::{Codec, Frame, Item, OpCode, Parser, ProtocolError};
use awc::BoxedSocket;
use awc::error::WsClientError;
use awc::http::header::{self, HeaderMap, HeaderValue};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;
use tokio_util::codec::Decoder;

use super::error::{SendError, send_error};
use super::mask::KeyMask;
use crate::table::Endpoint;

/// A message, or a control frame, which is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketMessage {
    /// A text, in UTF-8.
    Text(Bytes),
    /// Bytes.
    Binary(Bytes),
    /// A ping, with at most 125 bytes.
    Ping(Bytes),
    /// A pong, with at most 125 bytes.
    Pong(Bytes),
    /// The end, with its code and reason if they are stated.
    Close(Option<CloseReason>),
}

impl SocketMessage {
    /// The bytes of its payload.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(bytes) | Self::Binary(bytes) | Self::Ping(bytes) | Self::Pong(bytes) => {
                bytes.len()
            }
            Self::Close(_) => 0,
        }
    }

    /// Whether it has no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A fault of the bytes on a socket, which ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFault {
    /// They are no frames of RFC 6455, or one has an extension.
    Protocol,
    /// A text is not in UTF-8.
    NotUtf8,
    /// A message is longer than the limit.
    TooLarge,
    /// The connection has ended without a close frame.
    Lost,
}

impl SocketFault {
    /// The code with which the socket is closed.
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::Protocol => CloseCode::Protocol,
            Self::NotUtf8 => CloseCode::Invalid,
            Self::TooLarge => CloseCode::Size,
            Self::Lost => CloseCode::Abnormal,
        }
    }
}

/// The most bytes of the head of a frame.
const MOST_HEAD_BYTES: usize = 14;
/// The bits of the first byte that only extensions set.
const RESERVED_BITS: u8 = 0x70;
/// The bytes that are read at once.
const PIECE_BYTES: usize = 4 * 1024;

/// Makes messages of the bytes that one side sends.
#[derive(Debug)]
pub struct MessageDecoder {
    codec: Codec,
    bytes: BytesMut,
    /// The fragments of a message so far, and whether it is a text.
    joined: Option<(bool, BytesMut)>,
    limit: usize,
}

impl MessageDecoder {
    /// For the bytes of a client. A message may have `limit` bytes.
    pub fn of_client(limit: usize) -> Self {
        Self::of(Codec::new(), limit)
    }

    fn of(codec: Codec, limit: usize) -> Self {
        Self { codec: codec.max_size(limit), bytes: BytesMut::new(), joined: None, limit }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if it is whole.
    ///
    /// # Errors
    /// [`SocketFault`]: no later message can be read.
    pub fn next_message(&mut self) -> Result<Option<SocketMessage>, SocketFault> {
        loop {
            // A frame begins here: the codec takes whole ones.
            if self.bytes.first().is_some_and(|first| first & RESERVED_BITS != 0) {
                return Err(SocketFault::Protocol);
            }
            let frame = self.codec.decode(&mut self.bytes).map_err(|fault| match fault {
                ProtocolError::Overflow => SocketFault::TooLarge,
                _ => SocketFault::Protocol,
            })?;
            let Some(frame) = frame else {
                // The codec would wait for the whole of a frame that is too long.
                let most = self.limit.saturating_add(MOST_HEAD_BYTES);
                return if self.bytes.len() > most { Err(SocketFault::TooLarge) } else { Ok(None) };
            };
            if self.bytes.is_empty() {
                // An idle socket keeps no memory of the messages before.
                self.bytes = BytesMut::new();
            }
            if let Some(message) = self.message(frame)? {
                return Ok(Some(message));
            }
        }
    }

    /// The message that a frame is or completes.
    fn message(&mut self, frame: Frame) -> Result<Option<SocketMessage>, SocketFault> {
        let (is_text, part, is_last) = match frame {
            Frame::Text(text) => return text_message(text).map(Some),
            Frame::Binary(bytes) => return Ok(Some(SocketMessage::Binary(bytes))),
            Frame::Ping(bytes) => return Ok(Some(SocketMessage::Ping(bytes))),
            Frame::Pong(bytes) => return Ok(Some(SocketMessage::Pong(bytes))),
            Frame::Close(reason) => return Ok(Some(SocketMessage::Close(reason))),
            Frame::Continuation(Item::FirstText(part)) => (Some(true), part, false),
            Frame::Continuation(Item::FirstBinary(part)) => (Some(false), part, false),
            Frame::Continuation(Item::Continue(part)) => (None, part, false),
            Frame::Continuation(Item::Last(part)) => (None, part, true),
        };
        if let Some(is_text) = is_text {
            self.joined = Some((is_text, BytesMut::new()));
        }
        let Some((is_text, joined)) = &mut self.joined else { return Err(SocketFault::Protocol) };
        if joined.len().saturating_add(part.len()) > self.limit {
            return Err(SocketFault::TooLarge);
        }
        joined.extend_from_slice(&part);
        if !is_last {
            return Ok(None);
        }
        let (is_text, whole) = (*is_text, joined.split().freeze());
        self.joined = None;
        match is_text {
            true => text_message(whole).map(Some),
            false => Ok(Some(SocketMessage::Binary(whole))),
        }
    }
}

fn text_message(text: Bytes) -> Result<SocketMessage, SocketFault> {
    match std::str::from_utf8(&text) {
        Ok(_) => Ok(SocketMessage::Text(text)),
        Err(_) => Err(SocketFault::NotUtf8),
    }
}

/// Makes frames of messages.
#[derive(Clone, Copy, Debug)]
pub struct MessageEncoder {
    /// A client masks its frames.
    masks: bool,
}

impl MessageEncoder {
    /// For frames to a client.
    pub const fn to_client() -> Self {
        Self { masks: false }
    }

    /// The frame of a message.
    pub fn frame(self, message: &SocketMessage) -> Bytes {
        let mut frame = BytesMut::new();
        let mut write = |code, payload: &Bytes| {
            Parser::write_message(&mut frame, payload, code, true, self.masks);
        };
        match message {
            SocketMessage::Text(text) => write(OpCode::Text, text),
            SocketMessage::Binary(bytes) => write(OpCode::Binary, bytes),
            SocketMessage::Ping(bytes) => write(OpCode::Ping, bytes),
            SocketMessage::Pong(bytes) => write(OpCode::Pong, bytes),
            SocketMessage::Close(reason) => {
                Parser::write_close(&mut frame, reason.clone(), self.masks);
            }
        }
        frame.freeze()
    }
}

/// A socket to be opened.
pub struct UpstreamSocket<'a> {
    /// The target.
    pub endpoint: &'a Endpoint,
    /// The headers, as [`request_headers`](crate::request_headers) makes them.
    pub headers: HeaderMap,
    /// The subprotocols that the client offers, without its credential.
    pub protocols: Option<HeaderValue>,
    /// Whether the operator's key is sent. It is then blanked in all messages.
    pub managed: bool,
    /// The most bytes of a message.
    pub message_limit: usize,
}

/// A socket to a provider.
pub struct ProviderSocket {
    /// The subprotocol that the provider chose.
    pub protocol: Option<HeaderValue>,
    /// Its messages.
    pub reader: SocketReader,
    /// The messages to it.
    pub writer: SocketWriter,
}

/// The reason that no socket was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOpenError {
    /// There is no answer.
    NoAnswer(SendError),
    /// The provider answers with this status.
    Refused(u16),
    /// The provider answers the upgrade with other headers than RFC 6455 requires.
    NotASocket,
}

/// The time for the answer to an upgrade, once there is a connection.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// Opens a WebSocket, with this time for the connection.
pub(super) async fn open(
    client: &awc::Client,
    connect: Duration,
    socket: UpstreamSocket<'_>,
) -> Result<ProviderSocket, SocketOpenError> {
    let (target, host) = socket.endpoint.target.clone();
    let mut request = client.ws(target);
    for (name, value) in socket.headers {
        request = request.header(name, value);
    }
    request = request.set_header(header::HOST, host);
    if let Some(protocols) = socket.protocols {
        request = request.set_header(header::SEC_WEBSOCKET_PROTOCOL, protocols);
    }
    let limit = connect.saturating_add(HANDSHAKE);
    let opened = timeout(limit, request.connect())
        .await
        .unwrap_or_else(|_| Err(WsClientError::SendRequest(awc::error::SendRequestError::Timeout)));
    let (answer, framed) = opened.map_err(|why| match why {
        WsClientError::InvalidResponseStatus(status) => SocketOpenError::Refused(status.as_u16()),
        WsClientError::SendRequest(awc::error::SendRequestError::Timeout) => {
            SocketOpenError::NoAnswer(SendError::NoAnswer { timed_out: true })
        }
        WsClientError::SendRequest(why) => SocketOpenError::NoAnswer(send_error(&why)),
        _ => SocketOpenError::NotASocket,
    })?;
    let parts = framed.into_parts();
    let mut decoder = MessageDecoder::of(Codec::new().client_mode(), socket.message_limit);
    decoder.feed(&parts.read_buf);
    let (from, to) = tokio::io::split(parts.io);
    let key = socket.endpoint.provider.api_key().filter(|_| socket.managed);
    Ok(ProviderSocket {
        protocol: answer.headers().get(header::SEC_WEBSOCKET_PROTOCOL).cloned(),
        reader: SocketReader { from, decoder, mask: key.and_then(KeyMask::of) },
        writer: SocketWriter { to },
    })
}

/// The messages of a provider, with the operator's key blanked.
pub struct SocketReader {
    from: ReadHalf<BoxedSocket>,
    decoder: MessageDecoder,
    mask: Option<KeyMask>,
}

impl SocketReader {
    /// The next message. It may be dropped before it is there, and called again.
    ///
    /// # Errors
    /// [`SocketFault`]: there is no later one.
    pub async fn next(&mut self) -> Result<SocketMessage, SocketFault> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(self.masked(message));
            }
            self.decoder.bytes.reserve(PIECE_BYTES);
            match self.from.read_buf(&mut self.decoder.bytes).await {
                Ok(0) | Err(_) => return Err(SocketFault::Lost),
                Ok(_) => {}
            }
        }
    }

    /// The number of times that the operator's key was blanked since the last call.
    pub fn take_masked(&mut self) -> u64 {
        self.mask.as_mut().map_or(0, |mask| std::mem::take(&mut mask.found))
    }

    fn masked(&mut self, message: SocketMessage) -> SocketMessage {
        let Some(mask) = &mut self.mask else { return message };
        match message {
            SocketMessage::Text(text) => SocketMessage::Text(mask.whole(text)),
            SocketMessage::Binary(bytes) => SocketMessage::Binary(mask.whole(bytes)),
            SocketMessage::Ping(bytes) => SocketMessage::Ping(mask.whole(bytes)),
            SocketMessage::Pong(bytes) => SocketMessage::Pong(mask.whole(bytes)),
            SocketMessage::Close(Some(reason)) => {
                let words = reason.description.map(|words| {
                    let words = mask.whole(words.into());
                    String::from_utf8_lossy(&words).into_owned()
                });
                SocketMessage::Close(Some(CloseReason { code: reason.code, description: words }))
            }
            SocketMessage::Close(None) => SocketMessage::Close(None),
        }
    }
}

/// The messages to a provider.
pub struct SocketWriter {
    to: WriteHalf<BoxedSocket>,
}

impl SocketWriter {
    /// Sends a message; it waits while the provider takes none.
    ///
    /// # Errors
    /// [`SocketFault::Lost`] when the connection has ended.
    pub async fn send(&mut self, message: &SocketMessage) -> Result<(), SocketFault> {
        let frame = MessageEncoder { masks: true }.frame(message);
        let sent = async {
            self.to.write_all(&frame).await?;
            self.to.flush().await
        };
        sent.await.map_err(|_| SocketFault::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame of a client, masked with zeros.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap();
        let head = match u8::try_from(length) {
            Ok(short) if short < 126 => vec![first, 0x80 | short],
            _ => [&[first, 0xfe], length.to_be_bytes().as_slice()].concat(),
        };
        [head.as_slice(), &[0; 4], payload].concat()
    }

    /// The messages of bytes that come in these pieces, and the fault that ends them.
    fn decoded(pieces: &[&[u8]], limit: usize) -> (Vec<SocketMessage>, Option<SocketFault>) {
        let mut decoder = MessageDecoder::of_client(limit);
        let mut messages = Vec::new();
        for piece in pieces {
            decoder.feed(piece);
            loop {
                match decoder.next_message() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(fault) => return (messages, Some(fault)),
                }
            }
        }
        (messages, None)
    }

    #[test]
    fn faults_end_a_socket_and_have_their_codes() {
        let long = frame(0x82, &[7; 200]);
        let huge = [&[0x82, 0xff], u64::MAX.to_be_bytes().as_slice(), &[0; 300]].concat();
        for (bytes, fault) in [
            // A compressed text, without the extension.
            (frame(0xc1, b"x"), SocketFault::Protocol),
            // Not masked.
            (vec![0x81, 1, b'x'], SocketFault::Protocol),
            // An unknown code.
            (frame(0x83, b"x"), SocketFault::Protocol),
            // A fragment of no message, and a message within another.
            (frame(0x80, b"x"), SocketFault::Protocol),
            ([frame(0x01, b"x"), frame(0x81, b"y")].concat(), SocketFault::Protocol),
            // A ping in fragments, and a long one.
            (frame(0x09, b"x"), SocketFault::Protocol),
            (frame(0x89, &[7; 126]), SocketFault::Protocol),
            (frame(0x81, &[0xff]), SocketFault::NotUtf8),
            ([frame(0x01, &[0xe2]), frame(0x80, &[0x82])].concat(), SocketFault::NotUtf8),
            (long.clone(), SocketFault::TooLarge),
            // Before all of it is there.
            (long[..150].to_vec(), SocketFault::TooLarge),
            ([frame(0x02, &[7; 70]), frame(0x80, &[7; 70])].concat(), SocketFault::TooLarge),
        ] {
            assert_eq!(decoded(&[&bytes], 128), (Vec::new(), Some(fault)), "{bytes:?}");
        }
        assert!(decoded(&[&huge], 128).1.is_some());
        assert_eq!(u16::from(SocketFault::TooLarge.close_code()), 1009);
        assert_eq!(u16::from(SocketFault::Protocol.close_code()), 1002);
        assert_eq!(u16::from(SocketFault::NotUtf8.close_code()), 1007);
    }

    #[test]
    fn fragments_are_joined_around_control_frames() {
        let bytes = [
            frame(0x01, "é".as_bytes().get(..1).unwrap()),
            frame(0x89, b"ping"),
            frame(0x00, "é".as_bytes().get(1..).unwrap()),
            frame(0x80, b""),
            frame(0x88, &[&1000_u16.to_be_bytes(), b"bye".as_slice()].concat()),
        ];
        let (messages, fault) = decoded(&[&bytes.concat()], 100);
        let close = CloseReason { code: CloseCode::Normal, description: Some("bye".to_owned()) };
        let expected = [
            SocketMessage::Ping(Bytes::from_static(b"ping")),
            SocketMessage::Text(Bytes::from_static("é".as_bytes())),
            SocketMessage::Close(Some(close)),
        ];
        assert_eq!((messages.as_slice(), fault), (expected.as_slice(), None));
    }

    fn any_message() -> impl Strategy<Value = SocketMessage> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        let short = proptest::collection::vec(any::<u8>(), 0..126).prop_map(Bytes::from);
        prop_oneof![
            ".{0,200}".prop_map(|text| SocketMessage::Text(text.into())),
            bytes.prop_map(SocketMessage::Binary),
            short.clone().prop_map(SocketMessage::Ping),
            short.prop_map(SocketMessage::Pong),
        ]
    }

    proptest! {
        #[test]
        fn messages_come_as_they_were_sent_however_their_bytes_are_cut(
            messages in proptest::collection::vec(any_message(), 0..8),
            cuts in proptest::collection::vec(0_usize..2_000, 0..12),
        ) {
            let encoder = MessageEncoder { masks: true };
            let frames: Vec<_> = messages.iter().map(|message| encoder.frame(message)).collect();
            let whole = frames.concat();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &whole[cut[0]..cut[1]]).collect();
            prop_assert_eq!(decoded(&pieces, 2_000), (messages, None));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            decoded(&[&bytes], 100);
        }
    }
}
