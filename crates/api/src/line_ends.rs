//! The check of line ends in a request's head: a line that ends in a bare line feed is refused.
//!
//! The parser below actix-web takes such a line feed for an end of line, as RFC 9112, 2.2, allows. A proxy before
//! it may not, and then the two read different headers, or different requests, in the same bytes. So the line feed
//! is replaced by a byte that no head may have before the parser sees it, and the parser answers 400.

use actix_web::http::header;

/// The place of the next byte in the requests of a connection. It follows the framing of the parser; a
/// refusal of the parser ends the connection, so the bytes behind it do not matter.
#[derive(Debug, Default)]
pub(crate) struct LineEndFilter {
    place: StreamPosition,
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
    head: HeadFraming,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamPosition {
    #[default]
    Head,
    /// The bytes of a body that are still to come.
    Body(u64),
    /// In the line with the length of a chunk.
    ChunkSize,
    /// The bytes of a chunk that are still to come, with the end of its line.
    Chunk(u64),
    /// Behind the last chunk.
    Trailer,
    /// The rest of the connection, which has no more heads.
    Rest,
}

/// The framing of the bytes behind a head, from its lines.
#[derive(Debug, Default)]
struct HeadFraming {
    has_begun: bool,
    is_connect: bool,
    is_chunked: bool,
    is_websocket: bool,
    length: u64,
}

/// The bytes that are kept of a line that comes in pieces. Its end is decided by them, unless it is a line
/// with the length of the body that is longer than it needs to be.
const KEPT_BYTES: usize = 256;

/// A byte that no head may have.
const REFUSED: u8 = 0;

impl LineEndFilter {
    /// Replaces bare line feeds at the ends of lines.
    pub(crate) fn check(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            bytes = match self.place {
                StreamPosition::Rest => return,
                StreamPosition::Body(left) => {
                    let (rest, left) = skip(bytes, left);
                    self.place =
                        if left == 0 { StreamPosition::Head } else { StreamPosition::Body(left) };
                    rest
                }
                StreamPosition::Chunk(left) => {
                    let (rest, left) = skip(bytes, left);
                    self.place = if left == 0 {
                        StreamPosition::ChunkSize
                    } else {
                        StreamPosition::Chunk(left)
                    };
                    rest
                }
                StreamPosition::Head | StreamPosition::ChunkSize | StreamPosition::Trailer => {
                    self.check_line(bytes)
                }
            };
        }
    }

    /// Checks up to the end of a line, and returns the bytes behind it.
    fn check_line<'a>(&mut self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let Some(at) = memchr::memchr(b'\n', bytes) else {
            self.keep(bytes);
            return &mut [];
        };
        let (line, rest) = bytes.split_at_mut(at.saturating_add(1));
        let (text, end) = line.split_at_mut(at);
        let is_whole = match text.last() {
            Some(last) => *last == b'\r',
            None => self.begun.last() == Some(&b'\r'),
        };
        if !is_whole {
            end.fill(REFUSED);
            self.place = StreamPosition::Rest;
            return rest;
        }
        self.place = if self.begun.is_empty() {
            self.head.next(self.place, text.strip_suffix(b"\r").unwrap_or(text))
        } else {
            self.keep(text);
            let mut begun = std::mem::take(&mut self.begun);
            begun.pop();
            self.head.next(self.place, &begun)
        };
        rest
    }

    /// Keeps the beginning of a line, and its last byte.
    fn keep(&mut self, bytes: &[u8]) {
        let room = KEPT_BYTES.saturating_sub(self.begun.len()).min(bytes.len());
        let (kept, left) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.begun.extend_from_slice(kept);
        if let (Some(last), Some(of_line)) = (self.begun.last_mut(), left.last()) {
            *last = *of_line;
        }
    }
}

impl HeadFraming {
    /// The place behind a line in this place.
    fn next(&mut self, place: StreamPosition, line: &[u8]) -> StreamPosition {
        match place {
            StreamPosition::Head if !line.is_empty() => {
                self.read(line);
                StreamPosition::Head
            }
            // Empty lines may come before a request.
            StreamPosition::Head if !self.has_begun => StreamPosition::Head,
            StreamPosition::Head => match std::mem::take(self) {
                Self { is_chunked: true, .. } => StreamPosition::ChunkSize,
                Self { is_websocket: true, .. } => StreamPosition::Rest,
                Self { length: 0, is_connect: true, .. } => StreamPosition::Rest,
                Self { length: 0, .. } => StreamPosition::Head,
                Self { length, .. } => StreamPosition::Body(length),
            },
            StreamPosition::ChunkSize => match chunk_size(line) {
                Some(0) => StreamPosition::Trailer,
                // Two more bytes, for the end of its line.
                Some(size) => {
                    size.checked_add(2).map_or(StreamPosition::Rest, StreamPosition::Chunk)
                }
                None => StreamPosition::Rest,
            },
            StreamPosition::Trailer if line.is_empty() => StreamPosition::Head,
            place => place,
        }
    }

    fn read(&mut self, line: &[u8]) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.is_connect = line.starts_with(b"CONNECT ");
            return;
        }
        let Some(colon) = memchr::memchr(b':', line) else { return };
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let is = |known: header::HeaderName| name.eq_ignore_ascii_case(known.as_str().as_bytes());
        if is(header::CONTENT_LENGTH) {
            self.length =
                std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        } else if is(header::TRANSFER_ENCODING) {
            self.is_chunked = value.eq_ignore_ascii_case(b"chunked");
        } else if is(header::UPGRADE) {
            self.is_websocket |= value.eq_ignore_ascii_case(b"websocket");
        }
    }
}

/// The bytes behind the next `count`, and how many of those are still to come.
fn skip(bytes: &mut [u8], count: u64) -> (&mut [u8], u64) {
    let here = usize::try_from(count).unwrap_or(usize::MAX).min(bytes.len());
    let (_, rest) = bytes.split_at_mut_checked(here).unwrap_or_default();
    (rest, count.saturating_sub(u64::try_from(here).unwrap_or(u64::MAX)))
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next()?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a line feed of the text is refused when it comes in pieces of this length.
    fn is_refused(text: &str, piece: usize) -> bool {
        let mut lines = LineEndFilter::default();
        let mut bytes = text.as_bytes().to_vec();
        bytes.chunks_mut(piece).for_each(|piece| lines.check(piece));
        bytes.contains(&REFUSED)
    }

    const LAWFUL: [&str; 8] = [
        "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\n{\n\n\n\n}",
        "POST / HTTP/1.1\r\ncontent-length:\t 3 \r\n\r\n\n\n\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=\"y\"\r\n\n\n\n\r\nA \r\n0123\n56789\r\n0\r\nx: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n\n\n\n",
        "CONNECT x:1 HTTP/1.1\r\n\r\n\n\n\n",
        "DELETE / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    ];

    #[test]
    fn a_bare_line_feed_is_refused_in_every_head_however_it_is_cut() {
        let attack = "GET /b HTTP/1.1\r\nhost: x\nx: 1\r\n\r\n";
        let long = format!("GET /{} HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(700), "b".repeat(700));
        for text in LAWFUL.into_iter().chain([long.as_str()]) {
            for piece in 1..=text.len() {
                assert!(!is_refused(text, piece), "{text:?} in pieces of {piece}");
                let ends_all = text.contains("Upgrade") || text.contains("CONNECT");
                assert_eq!(
                    is_refused(&format!("{text}{attack}"), piece),
                    !ends_all,
                    "{text:?} {piece}"
                );
            }
        }
    }

    #[test]
    fn each_line_of_a_head_and_each_line_between_chunks_must_end_whole() {
        for text in LAWFUL {
            let (head, _) = text.trim_start().split_once("\r\n\r\n").unwrap();
            for (at, _) in format!("{head}\r\n\r\n").match_indices("\r\n") {
                let bare = format!("{head}\r\n\r\n");
                let bare = format!("{}{}", &bare[..at], &bare[at + 1..]);
                for piece in 1..=bare.len() {
                    assert!(is_refused(&bare, piece), "{bare:?} in pieces of {piece}");
                }
            }
        }
        for body in
            ["1\nx\r\n0\r\n\r\n", "1\r\nx\r\n0\n\r\n", "1\r\nx\r\n0\r\nx: 1\n\r\n", "0\r\n\n"]
        {
            let text = format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{body}");
            assert!((1..=text.len()).all(|piece| is_refused(&text, piece)), "{body:?}");
        }
    }
}
