//! Google's long-running operations, read while they pass, with bounded memory.
//!
//! The operation of a batch that has ended has all of its answers in it, in one or two lists. That of a video may have
//! the whole video as a text.

use super::excerpt::Excerpt;
use super::objects::ObjectReader;

/// The key of a list of answers.
const ANSWERS_KEY: &[u8] = b"inlinedResponses";
/// The longest text that is kept. A longer one becomes empty.
const MAX_TEXT_BYTES: usize = 8 * 1024;
/// The most bytes of an operation without its answers and long texts. What is longer is no operation.
const MAX_REST_BYTES: usize = 512 * 1024;

/// Reads an operation, however its pieces are cut: the answers in its first list one by one, and the rest of it as a
/// whole. A second list repeats the first.
#[derive(Default)]
pub struct OperationReader {
    rest: Vec<u8>,
    /// The list that is being read.
    list: Option<ObjectReader>,
    /// Whether the first list has ended.
    first_ended: bool,
    in_text: bool,
    after_backslash: bool,
    /// The position of the current text, or of the last one, in `rest`.
    text_start: usize,
    /// Whether the current text is too long.
    is_long: bool,
    /// Whether a text has ended after which a colon may come, and whether the colon has come.
    after_text: bool,
    after_key: bool,
}

impl OperationReader {
    /// Reads on to the end of the next answer; false at the end of `bytes`.
    pub(super) fn step(&mut self, bytes: &mut &[u8]) -> bool {
        loop {
            if let Some(list) = &mut self.list {
                if list.step(bytes) {
                    match self.first_ended {
                        true => continue,
                        false => return true,
                    }
                }
                if !list.has_ended() {
                    return false;
                }
                self.list = None;
                self.first_ended = true;
                self.keep(b']');
            }
            if !self.read_to_list(bytes) {
                return false;
            }
        }
    }

    /// Reads a piece of an operation of which only the rest counts.
    pub fn skip_answers(&mut self, mut bytes: &[u8]) {
        while self.step(&mut bytes) {}
    }

    /// The operation without the answers and long texts.
    pub fn rest(&self) -> &[u8] {
        &self.rest
    }

    /// The answer that has just ended; empty if it was too long.
    pub(super) fn answer(&self) -> &[u8] {
        self.list.as_ref().map_or(&[], ObjectReader::item)
    }

    /// The excerpt of the answer, if it was too long.
    pub(super) fn long_answer(&self) -> Option<&Excerpt> {
        self.list.as_ref()?.long_item()
    }

    /// Reads on to the beginning of a list of answers; false at the end of `bytes`.
    fn read_to_list(&mut self, bytes: &mut &[u8]) -> bool {
        let all = *bytes;
        for (place, &byte) in all.iter().enumerate() {
            if self.in_text {
                self.read_text(byte);
                continue;
            }
            self.keep(byte);
            match byte {
                b'"' => {
                    self.in_text = true;
                    self.text_start = self.rest.len();
                }
                b':' => self.after_key = self.after_text,
                b'[' if self.after_key => {
                    self.after_key = false;
                    self.list = Some(ObjectReader::of_list());
                    *bytes = all.get(place.saturating_add(1)..).unwrap_or_default();
                    return true;
                }
                b' ' | b'\t' | b'\r' | b'\n' => continue,
                _ => self.after_key = false,
            }
            self.after_text = false;
        }
        *bytes = &[];
        false
    }

    /// Reads a byte of a text.
    fn read_text(&mut self, byte: u8) {
        let ends = byte == b'"' && !self.after_backslash;
        self.after_backslash = byte == b'\\' && !self.after_backslash;
        if ends {
            let text = self.rest.get(self.text_start..).unwrap_or_default();
            self.after_text = text == ANSWERS_KEY && !self.is_long;
            (self.in_text, self.is_long, self.after_key) = (false, false, false);
            self.keep(byte);
        } else if !self.is_long {
            self.keep(byte);
            if self.rest.len().saturating_sub(self.text_start) > MAX_TEXT_BYTES {
                self.rest.truncate(self.text_start);
                self.is_long = true;
            }
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.rest.len() < MAX_REST_BYTES {
            self.rest.push(byte);
        }
    }

    /// The memory that the reader holds, in bytes.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.rest.capacity() + self.list.as_ref().map_or(0, ObjectReader::capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers and the rest of an operation in these pieces.
    fn read(pieces: &[&[u8]]) -> (Vec<String>, String) {
        let mut reader = OperationReader::default();
        let mut answers = Vec::new();
        for piece in pieces {
            let mut bytes = *piece;
            while reader.step(&mut bytes) {
                answers.push(String::from_utf8(reader.answer().to_vec()).unwrap());
            }
        }
        (answers, String::from_utf8(reader.rest().to_vec()).unwrap())
    }

    #[test]
    fn the_answers_of_the_first_list_are_read_at_every_cut() {
        let answers =
            [r#"{"response":{"text":"]} \" [{"}}"#, r#"{"error":{"inlinedResponses":[1]}}"#];
        let list = format!(
            r#"{{"inlinedResponses" : {{"inlinedResponses":[{}]}}}}"#,
            answers.join(" ,\n")
        );
        let text = format!(
            r#"{{"name":"batches/b","x":"inlinedResponses","y":["inlinedResponses"],"metadata":{{"output":{list},"state":"S"}},"done":true,"response":{list}}}"#
        );
        let empty = r#"{"inlinedResponses" : {"inlinedResponses":[]}}"#;
        let rest = format!(
            r#"{{"name":"batches/b","x":"inlinedResponses","y":["inlinedResponses"],"metadata":{{"output":{empty},"state":"S"}},"done":true,"response":{empty}}}"#
        );
        for cut in 0..=text.len() {
            let (a, b) = text.as_bytes().split_at(cut);
            assert_eq!(read(&[a, b]), (answers.map(str::to_owned).to_vec(), rest.clone()), "{cut}");
        }
        let bytes: Vec<_> = text.as_bytes().chunks(1).collect();
        assert_eq!(read(&bytes).0, answers);
    }

    #[test]
    fn a_long_text_becomes_empty_and_memory_is_bounded() {
        let long = "\\\"x".repeat(MAX_TEXT_BYTES);
        let text = format!(r#"{{"name":"n","bytesBase64Encoded":"{long}","done":true}}"#);
        let expected = r#"{"name":"n","bytesBase64Encoded":"","done":true}"#;
        for size in [1, 7, text.len()] {
            let pieces: Vec<_> = text.as_bytes().chunks(size).collect();
            assert_eq!(read(&pieces).1, expected);
        }
        let mut reader = OperationReader::default();
        for _ in 0..200_000 {
            reader.skip_answers(b"[\"what is no operation\"],");
        }
        assert!(reader.capacity() <= 2 * MAX_REST_BYTES, "{}", reader.capacity());
    }
}
