//! Binary event streams (`application/vnd.amazon.eventstream`), read frame by frame.

use super::events::MAX_EVENT_BYTES;

/// The size of the prelude of a frame: two lengths, and their checksum.
const PRELUDE_BYTES: usize = 12;
/// The size of the checksum after the payload.
const CHECKSUM_BYTES: usize = 4;
/// The longest frame that the format allows.
const MAX_FRAME_BYTES: usize = 24 * 1024 * 1024;

/// Reads a stream of binary frames, however the pieces are cut. Holds at most one frame, of at most
/// [`MAX_EVENT_BYTES`]; a longer one is skipped.
#[derive(Default)]
pub(super) struct FrameReader {
    /// The bytes of the current frame so far.
    frame: Vec<u8>,
    /// The bytes of the current frame that are still to be skipped.
    skip: usize,
    /// Whether the last frame was read: the next byte begins another one.
    ended: bool,
    /// Whether invalid bytes came. The frames after them cannot be found.
    broken: bool,
    name: Vec<u8>,
    payload: Vec<u8>,
}

impl FrameReader {
    /// Reads on to the end of the next frame; false at the end of `bytes`.
    pub(super) fn step(&mut self, bytes: &mut &[u8]) -> bool {
        if std::mem::take(&mut self.ended) {
            self.frame.clear();
            self.frame.shrink_to(super::events::KEPT_CAPACITY_BYTES);
        }
        while !self.broken && !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip = self.skip.saturating_sub(skipped);
                *bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            let wanted = self.length().unwrap_or(PRELUDE_BYTES);
            let missing = wanted.saturating_sub(self.frame.len()).min(bytes.len());
            let (part, rest) = bytes.split_at_checked(missing).unwrap_or_default();
            self.frame.extend_from_slice(part);
            *bytes = rest;
            if self.frame.len() == PRELUDE_BYTES && wanted == PRELUDE_BYTES {
                self.check_prelude();
            } else if self.frame.len() == wanted {
                self.ended = true;
                match self.read() {
                    Some((name, payload)) => (self.name, self.payload) = (name, payload),
                    None => self.broken = true,
                }
                return !self.broken;
            }
        }
        *bytes = &[];
        false
    }

    /// The type of the event, or `error` for an exception.
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// The payload of the frame.
    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Whether invalid bytes came.
    pub(super) fn broken(&self) -> bool {
        self.broken
    }

    /// The length of the current frame, once its prelude is there.
    fn length(&self) -> Option<usize> {
        Some(self.frame.len()).filter(|length| *length >= PRELUDE_BYTES)?;
        number(&self.frame, 0)
    }

    /// Refuses an invalid prelude, and skips a frame that is too long to be kept.
    fn check_prelude(&mut self) {
        let (length, headers) = (number(&self.frame, 0), number(&self.frame, 4));
        let checked = self.frame.get(..8).map(crc32fast::hash) == word(&self.frame, 8);
        let least = PRELUDE_BYTES.saturating_add(CHECKSUM_BYTES);
        let fits =
            |length: usize| headers.is_some_and(|headers| headers.saturating_add(least) <= length);
        match length.filter(|length| checked && fits(*length) && *length <= MAX_FRAME_BYTES) {
            None => self.broken = true,
            Some(length) if length > MAX_EVENT_BYTES => {
                self.frame.clear();
                self.skip = length.saturating_sub(PRELUDE_BYTES);
            }
            Some(_) => {}
        }
    }

    /// Name and payload of the frame; `None` if it is damaged.
    fn read(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let end = self.frame.len().checked_sub(CHECKSUM_BYTES)?;
        let checked = Some(crc32fast::hash(self.frame.get(..end)?)) == word(&self.frame, end);
        let headers_end = PRELUDE_BYTES.checked_add(number(&self.frame, 4)?)?;
        let headers = self.frame.get(PRELUDE_BYTES..headers_end).filter(|_| checked)?;
        let payload = self.frame.get(headers_end..end)?;
        Some((name(headers)?, payload.to_vec()))
    }

    /// The memory that the reader holds, in bytes.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.frame.capacity() + self.name.capacity() + self.payload.capacity()
    }
}

/// The kind of the frame, from its headers.
fn name(mut headers: &[u8]) -> Option<Vec<u8>> {
    let (mut event, mut is_error) = (Vec::new(), false);
    while let Some((&length, rest)) = headers.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(length))?;
        let (&kind, rest) = rest.split_first()?;
        // Lengths of the fixed kinds: true, false, byte, short, integer, long, time, id.
        let (value, rest) = match kind {
            0 | 1 => rest.split_at_checked(0)?,
            2 => rest.split_at_checked(1)?,
            3 => rest.split_at_checked(2)?,
            4 => rest.split_at_checked(4)?,
            5 | 8 => rest.split_at_checked(8)?,
            9 => rest.split_at_checked(16)?,
            6 | 7 => {
                let (length, rest) = rest.split_at_checked(2)?;
                rest.split_at_checked(usize::from(u16::from_be_bytes(length.try_into().ok()?)))?
            }
            _ => return None,
        };
        match name {
            b":event-type" => event = value.to_vec(),
            b":message-type" => is_error = matches!(value, b"exception" | b"error"),
            _ => {}
        }
        headers = rest;
    }
    Some(if is_error { b"error".to_vec() } else { event })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*bytes))
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(word(bytes, at)?).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A frame with these headers, all of them strings.
    pub(crate) fn frame(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
        let mut written = Vec::new();
        for (name, value) in headers {
            written.push(u8::try_from(name.len()).unwrap());
            written.extend_from_slice(name.as_bytes());
            written.push(7);
            written.extend_from_slice(&u16::try_from(value.len()).unwrap().to_be_bytes());
            written.extend_from_slice(value.as_bytes());
        }
        let length = PRELUDE_BYTES + written.len() + payload.len() + CHECKSUM_BYTES;
        let mut frame = u32::try_from(length).unwrap().to_be_bytes().to_vec();
        frame.extend_from_slice(&u32::try_from(written.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
        frame.extend_from_slice(&written);
        frame.extend_from_slice(payload);
        frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
        frame
    }

    fn event(name: &str, payload: &str) -> Vec<u8> {
        let headers = [
            (":event-type", name),
            (":content-type", "application/json"),
            (":message-type", "event"),
        ];
        frame(&headers, payload.as_bytes())
    }

    fn frames(pieces: &[&[u8]]) -> (Vec<(String, String)>, bool) {
        let mut reader = FrameReader::default();
        let mut frames = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        for piece in pieces {
            let mut bytes = *piece;
            while reader.step(&mut bytes) {
                frames.push((text(reader.name()), text(reader.payload())));
            }
        }
        (frames, reader.broken())
    }

    #[test]
    fn frames_at_every_cut_are_the_same() {
        let exception = [(":message-type", "exception"), (":exception-type", "throttled")];
        let bytes = [
            event("messageStart", "{}"),
            event("metadata", r#"{"usage":{}}"#),
            frame(&exception, b"{\"message\":\"no\"}"),
        ]
        .concat();
        let expected = [
            ("messageStart", "{}"),
            ("metadata", r#"{"usage":{}}"#),
            ("error", r#"{"message":"no"}"#),
        ];
        let expected = expected.map(|(name, payload)| (name.to_owned(), payload.to_owned()));
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(frames(&[a, b]), (expected.to_vec(), false), "cut at {cut}");
        }
        let single: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(frames(&single), (expected.to_vec(), false), "byte by byte");
    }

    #[test]
    fn a_damaged_frame_ends_the_reading_at_every_byte() {
        let good = event("metadata", r#"{"usage":{}}"#);
        for place in 0..good.len() {
            let mut bytes = good.clone();
            bytes[place] ^= 0x10;
            bytes.extend_from_slice(&good);
            let (frames, broken) = frames(&[&bytes]);
            assert!(frames.is_empty() && broken, "byte {place}");
        }
    }

    #[test]
    fn a_long_frame_costs_bounded_memory_and_reading_goes_on_behind_it() {
        let mut reader = FrameReader::default();
        let long = frame(&[(":event-type", "chunk")], &vec![b'x'; MAX_EVENT_BYTES + 1]);
        for piece in long.chunks(64 * 1024) {
            assert!(!reader.step(&mut &*piece));
            assert!(reader.capacity() < 256 * 1024, "{}", reader.capacity());
        }
        assert!(reader.step(&mut &event("after", "{}")[..]));
        assert_eq!(reader.name(), b"after");
    }
}
