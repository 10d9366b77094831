//! Server-sent events, read while they pass, with bounded memory.

use memchr::memchr2;

use super::excerpt::Excerpt;

/// The most bytes of a line, or of the data of one event. Longer ones pass unread.
pub(super) const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;
/// The largest buffer that is kept after its event.
pub(super) const KEPT_CAPACITY_BYTES: usize = 64 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A step of the reader through the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventReaderStep {
    /// A line with a field ended. `name` and `data` are the event as far as it is known.
    Field,
    /// An empty line ended the event.
    Event,
}

/// Reads server-sent events as the WHATWG defines them, however the pieces are cut. Lines end in
/// LF, CRLF or CR. Holds at most one line and one event, of at most [`MAX_EVENT_BYTES`] each.
#[derive(Default)]
pub(super) struct EventReader {
    /// The start of a line that continues in the next piece.
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The current line, if it is beyond the bound.
    long_line: Option<Excerpt>,
    /// A line of the current event that was beyond the bound.
    long_field: Option<Excerpt>,
    /// Whether the last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    first_line_read: bool,
    /// The number of bytes read.
    position: u64,
    event_start: u64,
}

impl EventReader {
    /// Reads on to the next step; `None` at the end of `bytes`.
    pub(super) fn step(&mut self, bytes: &mut &[u8]) -> Option<EventReaderStep> {
        loop {
            self.swallow_line_feed(bytes);
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                self.keep(bytes);
                self.consume(bytes, bytes.len());
                return None;
            };
            let (line, rest) = bytes.split_at_checked(end)?;
            self.after_cr = rest.first() == Some(&b'\r');
            let step = self.end_line(line);
            self.consume(bytes, end.saturating_add(1));
            self.swallow_line_feed(bytes);
            if step.is_some() {
                return step;
            }
        }
    }

    /// Ends the line and the event that are open at the end of the body.
    pub(super) fn end(&mut self) -> Option<EventReaderStep> {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() || self.long_line.is_some() {
            self.end_line(&line);
        }
        (self.has_data || !self.name.is_empty()).then_some(EventReaderStep::Event)
    }

    /// The `event` field.
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// The `data` fields, joined by line feeds.
    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    /// The excerpt of a field of the event that was too long to be kept.
    pub(super) fn long_field(&self) -> Option<&Excerpt> {
        self.long_field.as_ref()
    }

    /// The number of bytes read.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The start of the current event, as an offset in the stream.
    pub(super) fn event_start(&self) -> u64 {
        self.event_start
    }

    /// The line that has not ended yet.
    pub(super) fn open_line(&self) -> &[u8] {
        &self.line
    }

    /// Whether a line feed at the start of the next piece still belongs to this event.
    pub(super) fn after_cr(&self) -> bool {
        self.after_cr
    }

    /// Drops the event that ended.
    pub(super) fn next_event(&mut self) {
        self.name.clear();
        self.data.clear();
        for buffer in [&mut self.name, &mut self.data, &mut self.line] {
            if buffer.capacity() > KEPT_CAPACITY_BYTES && buffer.is_empty() {
                *buffer = Vec::new();
            }
        }
        self.has_data = false;
        self.long_field = None;
        self.event_start = self.position;
    }

    /// The memory that the reader holds, in bytes.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        let long = [&self.long_line, &self.long_field].into_iter().flatten();
        let long: usize = long.map(Excerpt::capacity).sum();
        self.line.capacity() + self.name.capacity() + self.data.capacity() + long
    }

    fn consume(&mut self, bytes: &mut &[u8], count: usize) {
        *bytes = bytes.get(count..).unwrap_or_default();
        self.position = self.position.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    }

    fn swallow_line_feed(&mut self, bytes: &mut &[u8]) {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            if bytes.first() == Some(&b'\n') {
                let between_events = self.event_start == self.position;
                self.consume(bytes, 1);
                if between_events {
                    self.event_start = self.position;
                }
            }
        }
    }

    /// Keeps the start of a line until its end.
    fn keep(&mut self, bytes: &[u8]) {
        if self.line.len().saturating_add(bytes.len()) > MAX_EVENT_BYTES {
            self.long_line = Some(Excerpt::of(&std::mem::take(&mut self.line)));
        }
        match &mut self.long_line {
            Some(long) => long.push(bytes),
            None => self.line.extend_from_slice(bytes),
        }
    }

    fn end_line(&mut self, end: &[u8]) -> Option<EventReaderStep> {
        if let Some(mut long) = self.long_line.take() {
            long.push(end);
            self.long_field = Some(long);
            self.has_data = true;
            return Some(EventReaderStep::Field);
        }
        if self.line.is_empty() {
            return self.read_line(end);
        }
        self.line.extend_from_slice(end);
        let mut line = std::mem::take(&mut self.line);
        let step = self.read_line(&line);
        line.clear();
        self.line = line;
        step
    }

    fn read_line(&mut self, line: &[u8]) -> Option<EventReaderStep> {
        let line = match std::mem::replace(&mut self.first_line_read, true) {
            false => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line),
            true => line,
        };
        if line.is_empty() {
            return Some(EventReaderStep::Event);
        }
        let colon = line.iter().position(|&b| b == b':').unwrap_or(line.len());
        let (field, value) = line.split_at_checked(colon)?;
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.add_data(value),
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // Comments, ids, retry times.
            _ => return None,
        }
        Some(EventReaderStep::Field)
    }

    fn add_data(&mut self, value: &[u8]) {
        if self.data.len().saturating_add(value.len()) >= MAX_EVENT_BYTES {
            self.data = Vec::new();
        } else {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
        }
        self.has_data = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut reader = EventReader::default();
        let mut events = Vec::new();
        for piece in pieces {
            let mut bytes = *piece;
            while let Some(step) = reader.step(&mut bytes) {
                if step == EventReaderStep::Event {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    events.push((text(reader.name()), text(reader.data())));
                    reader.next_event();
                }
            }
        }
        events
    }

    #[test]
    fn every_kind_of_line_end_at_every_cut_gives_the_same_events() {
        let text =
            "\u{feff}: hello\nevent: a\ndata: one\ndata:two\nid: 7\n\ndata\n\ndata:  x: y\n\n";
        let expected = [("a", "one\ntwo"), ("", ""), ("", " x: y")];
        let expected = expected.map(|(name, data)| (name.to_owned(), data.to_owned()));
        for line_end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', line_end);
            for cut in 0..=text.len() {
                let (a, b) = text.as_bytes().split_at(cut);
                assert_eq!(events(&[a, b]), expected, "{line_end:?} cut at {cut}");
            }
            let bytes: Vec<_> = text.as_bytes().chunks(1).collect();
            assert_eq!(events(&bytes), expected, "{line_end:?} byte by byte");
        }
    }

    #[test]
    fn a_line_without_an_end_costs_bounded_memory_and_reading_goes_on_behind_it() {
        let mut reader = EventReader::default();
        let piece = vec![b'x'; 64 * 1024];
        for _ in 0..(20 * 1024 * 1024 / piece.len()) {
            assert_eq!(reader.step(&mut &piece[..]), None);
            assert!(reader.capacity() <= 2 * MAX_EVENT_BYTES, "{}", reader.capacity());
        }
        assert!(reader.capacity() < 8 * KEPT_CAPACITY_BYTES);
        let mut rest = &b"\n\ndata: after\n\n"[..];
        assert_eq!(reader.step(&mut rest), Some(EventReaderStep::Field));
        assert!(reader.long_field().is_some());
        assert_eq!(reader.step(&mut rest), Some(EventReaderStep::Event));
        reader.next_event();
        assert_eq!(reader.step(&mut rest), Some(EventReaderStep::Field));
        assert_eq!(reader.data(), b"after");
    }

    #[test]
    fn an_event_of_many_lines_costs_bounded_memory() {
        let mut reader = EventReader::default();
        let line = format!("data: {}\n", "x".repeat(64 * 1024));
        for _ in 0..400 {
            let mut bytes = line.as_bytes();
            while reader.step(&mut bytes).is_some() {}
            assert!(reader.capacity() <= 2 * MAX_EVENT_BYTES + 2 * line.len());
        }
    }
}
