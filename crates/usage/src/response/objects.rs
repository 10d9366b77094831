//! Streams of JSON objects, read while they pass, with bounded memory.

use super::events::MAX_EVENT_BYTES;
use super::excerpt::Excerpt;

/// Reads a stream of JSON objects, as one array or as one object a line, however the pieces are
/// cut: each object outside all others is an item. Holds at most one item, of at most
/// [`MAX_EVENT_BYTES`]; a longer one is skipped.
#[derive(Default)]
pub(super) struct ObjectReader {
    item: Vec<u8>,
    /// The number of open braces and brackets within the item; 0 between items.
    depth: usize,
    in_string: bool,
    after_backslash: bool,
    /// The current item, if it is beyond the bound.
    long: Option<Excerpt>,
    /// Whether the items are those of one list, after which something else comes.
    is_list: bool,
    /// Whether the list has ended.
    has_ended: bool,
}

impl ObjectReader {
    /// A reader of the rest of a list, after its bracket. It stops behind the closing one.
    pub(super) fn of_list() -> Self {
        Self { is_list: true, ..Self::default() }
    }

    /// Whether the list has ended.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Reads on to the end of the next item; false at the end of `bytes`, or of the list.
    pub(super) fn step(&mut self, bytes: &mut &[u8]) -> bool {
        if self.depth == 0 {
            self.item.clear();
            self.item.shrink_to(super::events::KEPT_CAPACITY_BYTES);
            self.long = None;
        }
        let all = *bytes;
        let mut start = 0;
        for (place, &byte) in all.iter().enumerate() {
            let within = self.depth > 0;
            if self.in_string {
                match byte {
                    _ if self.after_backslash => self.after_backslash = false,
                    b'\\' => self.after_backslash = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' if !within => {
                    start = place;
                    self.depth = 1;
                }
                b'{' | b'[' if within => self.depth = self.depth.saturating_add(1),
                b'}' | b']' if within => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        let end = place.saturating_add(1);
                        self.keep(all.get(start..end).unwrap_or_default());
                        *bytes = all.get(end..).unwrap_or_default();
                        return true;
                    }
                }
                b']' if self.is_list => {
                    self.has_ended = true;
                    *bytes = all.get(place.saturating_add(1)..).unwrap_or_default();
                    return false;
                }
                _ => {}
            }
        }
        if self.depth > 0 {
            self.keep(all.get(start..).unwrap_or_default());
        }
        *bytes = &[];
        false
    }

    /// The item that has just ended; empty if it was too long.
    pub(super) fn item(&self) -> &[u8] {
        &self.item
    }

    /// The excerpt of the item, if it was too long.
    pub(super) fn long_item(&self) -> Option<&Excerpt> {
        self.long.as_ref()
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.item.len().saturating_add(bytes.len()) > MAX_EVENT_BYTES {
            self.long = Some(Excerpt::of(&std::mem::take(&mut self.item)));
        }
        match &mut self.long {
            Some(long) => long.push(bytes),
            None => self.item.extend_from_slice(bytes),
        }
    }

    /// The memory that the reader holds, in bytes.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.item.capacity() + self.long.as_ref().map_or(0, Excerpt::capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(pieces: &[&[u8]]) -> Vec<String> {
        let mut reader = ObjectReader::default();
        let mut items = Vec::new();
        for piece in pieces {
            let mut bytes = *piece;
            while reader.step(&mut bytes) {
                items.push(String::from_utf8(reader.item().to_vec()).unwrap());
            }
        }
        items
    }

    #[test]
    fn arrays_and_lines_at_every_cut_give_the_same_items() {
        let first = r#"{"a":"} ] \" {\\","b":[{"c":1}]}"#;
        let texts = [
            format!("[{first},\r\n{{}}\n , {{\"d\":[]}} ]"),
            format!("{first}\n{{}}\n{{\"d\":[]}}\n"),
            format!("  [\"{{\", 7, null, {first}{{}}{{\"d\":[]}}"),
        ];
        for text in texts {
            let expected = [first, "{}", "{\"d\":[]}"];
            for cut in 0..=text.len() {
                let (a, b) = text.as_bytes().split_at(cut);
                assert_eq!(items(&[a, b]), expected, "{text} cut at {cut}");
            }
            let bytes: Vec<_> = text.as_bytes().chunks(1).collect();
            assert_eq!(items(&bytes), expected, "{text} byte by byte");
        }
    }

    #[test]
    fn what_is_cut_or_no_json_is_no_item() {
        for text in ["", "{", "[{\"a\":1", "}}}]]", "\"{}\"", "null", "{\"a\":\"}"] {
            assert!(items(&[text.as_bytes()]).is_empty(), "{text}");
        }
    }

    #[test]
    fn an_item_without_an_end_costs_bounded_memory_and_reading_goes_on_behind_it() {
        let mut reader = ObjectReader::default();
        assert!(!reader.step(&mut &b"{\"a\":\""[..]));
        let piece = vec![b'x'; 64 * 1024];
        for _ in 0..(20 * 1024 * 1024 / piece.len()) {
            assert!(!reader.step(&mut &piece[..]));
            assert!(reader.capacity() <= 2 * MAX_EVENT_BYTES, "{}", reader.capacity());
        }
        let mut rest = &b"\"}{\"b\":1}"[..];
        assert!(reader.step(&mut rest) && reader.item().is_empty());
        assert!(reader.step(&mut rest));
        assert_eq!(reader.item(), b"{\"b\":1}");
    }
}
