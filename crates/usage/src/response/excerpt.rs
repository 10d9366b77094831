//! The beginning and end of something too large to be kept. Usage is in one of them.

use super::json;

/// The bytes that are kept of each.
const KEPT_BYTES: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct Excerpt {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Excerpt {
    /// An excerpt that begins with `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut excerpt = Self::default();
        excerpt.push(bytes);
        excerpt
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = KEPT_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.head.extend_from_slice(first);
        let last = rest.get(rest.len().saturating_sub(KEPT_BYTES)..).unwrap_or_default();
        // The buffer has twice the room, so that not every small piece moves all of it.
        if self.tail.len().saturating_add(last.len()) > KEPT_BYTES.saturating_mul(2) {
            self.tail.drain(..self.tail.len().saturating_sub(KEPT_BYTES));
        }
        self.tail.extend_from_slice(last);
    }

    /// The last object under a key, as an object with that key alone.
    pub(super) fn object(&self, key: &str) -> Option<String> {
        let quoted = format!("\"{key}\"");
        let found = [&self.tail, &self.head]
            .into_iter()
            .find_map(|part| json::last_object(part, quoted.as_bytes()))?;
        Some(format!("{{{quoted}:{found}}}"))
    }

    /// Whether it contains a text.
    pub(super) fn mentions(&self, text: &[u8]) -> bool {
        [&self.head, &self.tail].iter().any(|part| memchr::memmem::find(part, text).is_some())
    }

    /// The memory that it holds, in bytes.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.head.capacity() + self.tail.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_at_either_end_is_found_in_bounded_memory() {
        let filling = vec![b'x'; 1_000_000];
        for (start, end) in [("\"usage\":{\"a\":1}", ""), ("", "\"usage\":{\"a\":1}")] {
            let mut excerpt = Excerpt::of(start.as_bytes());
            for piece in filling.chunks(977) {
                excerpt.push(piece);
            }
            excerpt.push(end.as_bytes());
            assert_eq!(excerpt.object("usage").as_deref(), Some(r#"{"usage":{"a":1}}"#));
            assert!(excerpt.capacity() < 8 * KEPT_BYTES, "{}", excerpt.capacity());
        }
        assert_eq!(Excerpt::of(&filling).object("usage"), None);
    }
}
